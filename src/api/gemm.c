/* Products on one rank: the doors of weft.h. */
#include "core/dtype.h"
#include "core/part.h"
#include "gemm/product.h"

void weft_gemm_args_init(weft_gemm_args *args, weft_dtype dtype, int64_t m, int64_t n, int64_t k)
{
    if (!args)
        return;
    *args = (weft_gemm_args){
        .size = sizeof(*args),
        .m = m,
        .n = n,
        .k = k,
        .l = 1,
        .dtype = dtype,
        .a_dtype = dtype,
        .b_dtype = dtype,
        .d_dtype = dtype == WEFT_I8 ? WEFT_I32 : dtype,
        .alpha = 1,
    };
}

/* What every call needs right: the struct, the sizes, a kernel for the type. */
static weft_status find_binding(const weft_gemm_args *args, const char *call, const weft_binding **bind)
{
    weft_error_text *error = weft_error_thread();
    const weft_core *core;
    weft_status status;

    if (!args || args->size != sizeof(*args))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s: args must be given, set by weft_gemm_args_init",
                              call);
    if (args->m < 0 || args->n < 0 || args->k < 0 || args->l < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "%s: m, n, k, l = %lld, %lld, %lld, %lld: none may be negative", call,
                              (long long)args->m, (long long)args->n, (long long)args->k, (long long)args->l);
    if (!weft_extents_fit(args->m, args->n, args->l) || !weft_extents_fit(args->m, args->k, args->l) ||
        !weft_extents_fit(args->k, args->n, args->l))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "%s: m, n, k, l = %lld, %lld, %lld, %lld: a matrix has at most 2^46 elements",
                              call, (long long)args->m, (long long)args->n, (long long)args->k,
                              (long long)args->l);
    status = weft_core_current(&core, error);
    if (status)
        return status;
    *bind = weft_core_binding(core, args->dtype, args->f16_fast != 0);
    if (!*bind)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "%s: there is no product of %s; f32, f16, bf16 and i8 have one", call,
                              weft_dtype_name(args->dtype));
    return WEFT_OK;
}

static int64_t ld_or(int64_t given, int64_t tight)
{
    return given ? given : tight > 0 ? tight : 1;
}

static weft_status check_ld(const char *call, const char *name, int64_t ld, int64_t width)
{
    if (ld >= width)
        return WEFT_OK;
    return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT,
                          "%s: %s = %lld is less than the %lld elements of a row", call, name, (long long)ld,
                          (long long)width);
}

static void place_b(const weft_gemm_args *args, weft_gemm_tile *tile)
{
    int64_t ldb = ld_or(args->ldb, args->transb ? args->k : args->n);

    tile->b = args->b;
    tile->b_dtype = args->b_dtype;
    tile->b_rs = args->transb ? 1 : ldb;
    tile->b_cs = args->transb ? ldb : 1;
}

weft_status weft_gemm(const weft_gemm_args *args)
{
    weft_error_text *error = weft_error_thread();
    const weft_binding *bind = NULL;
    weft_status status = find_binding(args, "weft_gemm", &bind);
    weft_product product;
    weft_gemm_tile *t = &product.tile;

    if (status)
        return status;
    int64_t lda = ld_or(args->lda, args->transa ? args->m : args->k);

    product = (weft_product){
        .tile = weft_gemm_tile_init(bind, args->dtype), .batch = args->l, .threads = args->threads};
    t->m = args->m;
    t->n = args->n;
    t->k = args->k;
    t->a = args->a;
    t->a_dtype = args->a_dtype;
    t->a_rs = args->transa ? 1 : lda;
    t->a_cs = args->transa ? lda : 1;
    place_b(args, t);
    t->packed_b = args->packed_b;
    t->alpha = args->alpha;
    t->beta = args->c ? args->beta : 0;
    t->act = args->act;
    t->row_scale = args->row_scale;
    t->col_scale = args->col_scale;
    t->c = args->c;
    t->c_ld = ld_or(args->ldc, args->n);
    t->bias = args->bias;
    t->d_dtype = args->d_dtype;
    t->d[0] = args->d;
    t->d_ld[0] = ld_or(args->ldd, args->n);
    product.a_stride = args->stride_a ? args->stride_a : (args->transa ? args->k : args->m) * lda;
    product.b_stride = args->stride_b ? args->stride_b : args->transb ? args->n * t->b_cs : args->k * t->b_rs;
    product.c_stride = args->stride_c ? args->stride_c : args->m * t->c_ld;
    product.d_stride = args->stride_d ? args->stride_d : args->m * t->d_ld[0];
    status = check_ld("weft_gemm", "lda", lda, args->transa ? args->m : args->k);
    if (!status && !args->packed_b)
        status =
            check_ld("weft_gemm", "ldb", args->transb ? t->b_cs : t->b_rs, args->transb ? args->k : args->n);
    if (!status && args->beta != 0 && !args->c)
        status = weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_gemm: beta is %g but c is NULL", args->beta);
    if (!status)
        status = weft_gemm_tile_check(t, error);
    return status ? status : weft_product_run(&product, error);
}

size_t weft_pack_bytes(const weft_gemm_args *args)
{
    const weft_binding *bind = NULL;

    return find_binding(args, "weft_pack_bytes", &bind) ? 0 : weft_packed_bytes(bind, args->k, args->n);
}

weft_status weft_pack(const weft_gemm_args *args, void *memory, const weft_packed **packed)
{
    weft_error_text *error = weft_error_thread();
    const weft_binding *bind = NULL;
    weft_status status = find_binding(args, "weft_pack", &bind);
    weft_gemm_tile tile;

    if (status)
        return status;
    if (!memory || (uintptr_t)memory % WEFT_GEMM_ALIGNMENT || !packed || !args->b)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_pack: b, packed and memory must be given, memory on a 128-byte boundary");
    tile = weft_gemm_tile_init(bind, args->dtype);
    place_b(args, &tile);
    status =
        check_ld("weft_pack", "ldb", args->transb ? tile.b_cs : tile.b_rs, args->transb ? args->k : args->n);
    if (!status && tile.b_dtype != args->dtype && (tile.b_dtype > WEFT_BF16 || args->dtype == WEFT_I8))
        status =
            weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_pack: b is %s, which a %s product cannot read",
                           weft_dtype_name(tile.b_dtype), weft_dtype_name(args->dtype));
    if (status)
        return status;
    weft_packed *begun = weft_packed_begin(bind, args->k, args->n, memory);

    status =
        weft_product_pack(bind, begun, args->b, args->b_dtype, tile.b_rs, tile.b_cs, args->threads, error);
    if (!status)
        *packed = begun;
    return status;
}
