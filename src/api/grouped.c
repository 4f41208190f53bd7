/*
 * Products of many experts in one call: the entry point of weft.h. On the CPU an expert's product is a
 * weft_gemm of its rows; on a backend with memory of its own the backend reads how many there are.
 */
#include "api/grouped.h"

#include "api/least.h"
#include "core/dtype.h"
#include "core/part.h"
#include "gemm/epilogue.h"
#include "run/backend.h"

void weft_grouped_args_init_sized(weft_grouped_args *args, size_t size, weft_dtype dtype, int experts,
                                  int64_t rows, int64_t n, int64_t k)
{
    const weft_grouped_args defaults = {
        .experts = experts,
        .rows = rows,
        .n = n,
        .k = k,
        .dtype = dtype,
        .a_dtype = dtype,
        .b_dtype = dtype,
        .d_dtype = weft_dtype_result(dtype),
        .alpha = 1,
    };

    weft_sized_init(args, size, &defaults, sizeof(defaults), WEFT_GROUPED_ARGS_LEAST);
}

/* Where the caller hears of what is wrong. */
static weft_error_text *error_of(weft_group *group)
{
    return group ? &group->error : weft_error_thread();
}

/* What both backends need right; fills in what was left to weft. */
weft_status weft_grouped_complete(weft_grouped_args *args, weft_error_text *error)
{
    int64_t n;

    if (args->experts < 0 || args->rows < 0 || args->n < 0 || args->k < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_grouped_gemm: experts, rows, n, k = %d, %lld, %lld, %lld: none may be "
                              "negative",
                              args->experts, (long long)args->rows, (long long)args->n, (long long)args->k);
    if ((unsigned)args->act > WEFT_ACT_SILU_GATED)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_grouped_gemm: act %d is not one",
                              (int)args->act);
    if (args->threads < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_grouped_gemm: threads is %d; 0 means all",
                              args->threads);
    n = weft_extents_fit(args->n, 2, 1) ? args->n * weft_act_width(args->act) : -1;
    if (n < 0 || !weft_extents_fit(args->rows, args->k, 1) || !weft_extents_fit(args->rows, n, 1) ||
        !weft_extents_fit(args->k, n, args->experts))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_grouped_gemm: experts, rows, n, k = %d, %lld, %lld, %lld: a matrix has "
                              "at most 2^46 elements",
                              args->experts, (long long)args->rows, (long long)args->n, (long long)args->k);
    int64_t b_rows = args->transb ? n : args->k, b_cols = args->transb ? args->k : n;
    args->lda = args->lda ? args->lda : args->k;
    args->ldb = args->ldb && !args->packed_b ? args->ldb : b_cols;
    args->ldd = args->ldd ? args->ldd : args->n;
    if (args->lda < args->k || args->ldb < b_cols || args->ldd < args->n)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_grouped_gemm: lda, ldb, ldd = %lld, %lld, %lld are less than the %lld, "
                              "%lld, %lld elements of a row",
                              (long long)args->lda, (long long)args->ldb, (long long)args->ldd,
                              (long long)args->k, (long long)b_cols, (long long)args->n);
    if (b_rows <= 1) /* not used, and may be anything large enough */
        args->ldb = b_cols;
    if (args->packed_b)
        args->stride_b = 0;
    else if (!args->stride_b && weft_extents_fit(b_rows, args->ldb, 1))
        args->stride_b = b_rows * args->ldb;
    if (args->experts > 1 && args->stride_b < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_grouped_gemm: stride_b = %lld: it must not be negative",
                              (long long)args->stride_b);
    if (!weft_extents_fit(args->rows, args->lda, 1) || !weft_extents_fit(args->rows, args->ldd, 1) ||
        !weft_span_fits(b_rows, b_cols, args->ldb, args->experts, args->stride_b))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_grouped_gemm: lda, ldb, ldd, stride_b = %lld, %lld, %lld, %lld: a matrix "
                              "and the experts together span at most 2^46 elements",
                              (long long)args->lda, (long long)args->ldb, (long long)args->ldd,
                              (long long)args->stride_b);
    if (args->experts && !args->offset)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_grouped_gemm: offset is NULL");
    return WEFT_OK;
}

static int64_t rows_of(const weft_grouped_args *args, int e)
{
    return args->offset[e + 1] - args->offset[e];
}

static int64_t first_of(const weft_grouped_args *args, int e)
{
    return args->start ? args->start[e] : args->offset[e];
}

static weft_status check_rows(const weft_grouped_args *args, weft_error_text *error)
{
    for (int e = 0; e < args->experts; e++) {
        int64_t first = first_of(args, e);

        if (args->offset[e] < 0 || args->offset[e + 1] < args->offset[e])
            return weft_error_set(error, WEFT_ERR_ARGUMENT,
                                  "weft_grouped_gemm: offset[%d] and the next are %lld and %lld: they must "
                                  "rise, from 0 or more",
                                  e, (long long)args->offset[e], (long long)args->offset[e + 1]);
        if (rows_of(args, e) > 0 && (first < 0 || first > args->rows - rows_of(args, e)))
            return weft_error_set(error, WEFT_ERR_ARGUMENT,
                                  "weft_grouped_gemm: expert %d has %lld rows from row %lld on, but there "
                                  "are %lld",
                                  e, (long long)rows_of(args, e), (long long)first, (long long)args->rows);
    }
    return WEFT_OK;
}

static const char *element(const void *base, int64_t index, weft_dtype dtype)
{
    return base ? (const char *)base + index * (int64_t)weft_dtype_size(dtype) : NULL;
}

/* The product of one expert, as weft_gemm takes it. */
static weft_gemm_args product_of(const weft_grouped_args *args, int e)
{
    int64_t first = first_of(args, e), n = args->n * weft_act_width(args->act);
    weft_gemm_args one;

    weft_gemm_args_init(&one, args->dtype, rows_of(args, e), args->n, args->k);
    one.a_dtype = args->a_dtype;
    one.b_dtype = args->b_dtype;
    one.d_dtype = args->d_dtype;
    one.transb = args->transb;
    one.a = element(args->a, first * args->lda, args->a_dtype);
    one.b = element(args->b, e * args->stride_b, args->b_dtype);
    one.packed_b = args->packed_b ? args->packed_b[e] : NULL;
    one.bias = element(args->bias, e * n, args->d_dtype);
    one.row_scale = args->row_scale ? args->row_scale + first : NULL;
    one.col_scale = args->col_scale ? args->col_scale + e * n : NULL;
    one.d = args->d ? (char *)args->d + first * args->ldd * (int64_t)weft_dtype_size(args->d_dtype) : NULL;
    one.lda = args->lda;
    one.ldb = args->ldb;
    one.ldd = args->ldd;
    one.alpha = args->alpha;
    one.act = args->act;
    one.f16_fast = args->f16_fast;
    one.threads = args->threads;
    return one;
}

/* An expert's weights are read once for all of its rows, by all threads: beside one another the products
 * would only share the memory's rate. */
static weft_status run_on_cpu(const weft_grouped_args *args, weft_error_text *error)
{
    weft_status status = check_rows(args, error);

    for (int e = 0; e < args->experts && status == WEFT_OK; e++) {
        weft_gemm_args one = product_of(args, e);

        if (one.m > 0)
            status = weft_gemm(&one);
        if (status != WEFT_OK) {
            weft_error_text why = *weft_error_thread();

            weft_error_set(error, status, "weft_grouped_gemm: expert %d: %s", e, why.text);
        }
    }
    return status;
}

weft_status weft_grouped_gemm(weft_group *group, const weft_grouped_args *given)
{
    weft_error_text *error = error_of(group);
    weft_status status = group ? weft_group_check(group) : WEFT_OK;
    weft_grouped_args args;

    if (status != WEFT_OK)
        return status;
    if (!weft_sized_read(&args, sizeof(args), given, WEFT_GROUPED_ARGS_LEAST))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_grouped_gemm: args must be given, set by weft_grouped_args_init");
    status = weft_grouped_complete(&args, error);
    if (status != WEFT_OK)
        return status;
    return group && weft_backend_of(group)->grouped ? weft_backend_of(group)->grouped(group, &args)
                                                    : run_on_cpu(&args, error);
}
