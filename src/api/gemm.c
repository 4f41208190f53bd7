/* Products on one rank: the entry points of weft.h. */
#include "api/least.h"
#include "core/dtype.h"
#include "core/part.h"
#include "gemm/convert.h"
#include "gemm/epilogue.h"
#include "gemm/product.h"

#include <string.h>

void weft_gemm_args_init_sized(weft_gemm_args *args, size_t size, weft_dtype dtype, int64_t m, int64_t n,
                               int64_t k)
{
    const weft_gemm_args defaults = {
        .m = m,
        .n = n,
        .k = k,
        .l = 1,
        .dtype = dtype,
        .a_dtype = dtype,
        .b_dtype = dtype,
        .d_dtype = weft_dtype_result(dtype),
        .alpha = 1,
    };

    weft_sized_init(args, size, &defaults, sizeof(defaults), WEFT_GEMM_ARGS_LEAST);
}

/* What every call needs right: the struct, the sizes, a kernel for the type. */
static weft_status find_binding(const weft_gemm_args *given, const char *call, weft_gemm_args *args,
                                const weft_binding **bind)
{
    weft_error_text *error = weft_error_thread();
    const weft_core *core;
    weft_status status;

    if (!weft_sized_read(args, sizeof(*args), given, WEFT_GEMM_ARGS_LEAST))
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
    if ((unsigned)args->act > WEFT_ACT_SILU_GATED)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s: act %d is not one", call, (int)args->act);
    if (args->threads < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s: threads is %d; 0 means all", call,
                              args->threads);
    status = weft_core_current(&core, error);
    if (status)
        return status;
    *bind = weft_core_binding(core, args->dtype, args->f16_fast != 0);
    if (!*bind)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "%s: there is no product of %s; f32, f16, bf16, i8 and fp8 have one", call,
                              weft_dtype_name(args->dtype));
    return WEFT_OK;
}

/* What is multiplied as fp8 is fp8, and only its results are. */
static weft_status check_fp8(const weft_gemm_args *args, const char *call)
{
    bool fp8 = weft_dtype_is_fp8(args->dtype);

    if (fp8 && (!weft_dtype_is_fp8(args->a_dtype) || !weft_dtype_is_fp8(args->b_dtype)))
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT,
                              "%s: a product of %s reads A and B of fp8, not %s and %s", call,
                              weft_dtype_name(args->dtype), weft_dtype_name(args->a_dtype),
                              weft_dtype_name(args->b_dtype));
    if (!fp8 && weft_dtype_is_fp8(args->d_dtype))
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT,
                              "%s: D of a product of %s cannot be %s; of fp8 it can", call,
                              weft_dtype_name(args->dtype), weft_dtype_name(args->d_dtype));
    return WEFT_OK;
}

static int64_t ld_or(int64_t given, int64_t tight)
{
    return given ? given : tight > 0 ? tight : 1;
}

/* How a matrix lies in memory: what is given, completed and checked. */
typedef struct place {
    int64_t ld, stride;
} place;

/* `rows` of `cols` as stored. What is given for one row or one matrix is not used, and may be anything large
 * enough. */
static weft_status place_matrix(const char *call, const char *name, int64_t rows, int64_t cols, int64_t batch,
                                int64_t ld, int64_t stride, place *out)
{
    ld = ld_or(ld, cols);
    if (ld < cols)
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT,
                              "%s: ld%s = %lld is less than the %lld elements of a row", call, name,
                              (long long)ld, (long long)cols);
    if (rows <= 1)
        ld = ld_or(0, cols);
    if (!weft_extents_fit(rows, ld, 1))
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT,
                              "%s: ld%s = %lld: a matrix spans at most 2^46 elements", call, name,
                              (long long)ld);
    if (!stride || batch <= 1)
        stride = rows * ld;
    if (!weft_span_fits(rows, cols, ld, batch, stride))
        return weft_error_set(weft_error_thread(), WEFT_ERR_ARGUMENT,
                              "%s: stride_%s = %lld: a batch spans at most 2^46 elements", call, name,
                              (long long)stride);
    *out = (place){ld, stride};
    return WEFT_OK;
}

static weft_status place_b(const weft_gemm_args *args, const char *call, weft_gemm_tile *tile,
                           int64_t *stride)
{
    place at = {1, 0};
    weft_status status = WEFT_OK;

    int64_t n = args->n * weft_act_width(args->act);

    if (!args->packed_b)
        status = place_matrix(call, "b", args->transb ? n : args->k, args->transb ? args->k : n, args->l,
                              args->ldb, args->stride_b, &at);
    tile->b = args->b;
    tile->b_dtype = args->b_dtype;
    tile->b_rs = args->transb ? 1 : at.ld;
    tile->b_cs = args->transb ? at.ld : 1;
    *stride = at.stride;
    return status;
}

static weft_status place_operands(const weft_gemm_args *args, weft_product *product)
{
    weft_gemm_tile *t = &product->tile;
    place a, c = {1, 0}, d;
    bool reads_c = args->c && args->beta != 0;
    weft_status status =
        place_matrix("weft_gemm", "a", args->transa ? args->k : args->m, args->transa ? args->m : args->k,
                     args->l, args->lda, args->stride_a, &a);

    if (!status)
        status = place_b(args, "weft_gemm", t, &product->b_stride);
    if (!status && reads_c)
        status = place_matrix("weft_gemm", "c", args->m, args->n, args->l, args->ldc, args->stride_c, &c);
    if (!status)
        status = place_matrix("weft_gemm", "d", args->m, args->n, args->l, args->ldd, args->stride_d, &d);
    if (!status && weft_batch_overlaps(args->m, args->n, d.ld, args->l, d.stride))
        status = weft_error_set(
            weft_error_thread(), WEFT_ERR_ARGUMENT,
            "weft_gemm: stride_d = %lld: the %lld matrices of D, of %lld x %lld with rows %lld "
            "elements apart, would overlap",
            (long long)d.stride, (long long)args->l, (long long)args->m, (long long)args->n, (long long)d.ld);
    if (status)
        return status;
    t->a = args->a;
    t->a_dtype = args->a_dtype;
    t->a_rs = args->transa ? 1 : a.ld;
    t->a_cs = args->transa ? a.ld : 1;
    t->c = reads_c ? args->c : NULL;
    t->c_ld = c.ld;
    t->d[0] = args->d;
    t->d_ld[0] = d.ld;
    product->a_stride = a.stride;
    product->c_stride = c.stride;
    product->d_stride = d.stride;
    return WEFT_OK;
}

/* A packed B is used as it was packed: what weft_gemm_tile_check takes is a window of one. */
static weft_status check_packed(const weft_gemm_tile *t, weft_error_text *error)
{
    const weft_packed *packed = t->packed_b;

    if (!packed || t->k == 0 || !weft_packed_fits(t->bind, packed, packed->k, packed->n) ||
        weft_packed_fits(t->bind, packed, t->k, t->n))
        return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_ARGUMENT,
                          "weft_gemm: packed_b is a B of %lld x %lld, and this product's is %lld x %lld",
                          (long long)packed->k, (long long)packed->n, (long long)t->k, (long long)t->n);
}

weft_status weft_gemm(const weft_gemm_args *given)
{
    weft_error_text *error = weft_error_thread();
    const weft_binding *bind = NULL;
    weft_gemm_args read, *args = &read;
    weft_status status = find_binding(given, "weft_gemm", args, &bind);
    weft_product product;
    weft_gemm_tile *t = &product.tile;

    if (status)
        return status;
    status = check_fp8(args, "weft_gemm");
    if (status)
        return status;
    if (args->beta != 0 && !args->c)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_gemm: beta is %g but c is NULL", args->beta);
    product.tile = weft_gemm_tile_init(bind, args->dtype);
    product.batch = args->l;
    product.threads = args->threads;
    status = place_operands(args, &product);
    if (status)
        return status;
    t->m = args->m;
    t->n = args->n * weft_act_width(args->act);
    t->k = args->alpha == 0 ? 0 : args->k; /* nothing of A and B is read then */
    t->packed_b = args->packed_b;
    t->alpha = args->alpha;
    t->beta = t->c ? args->beta : 0;
    t->act = args->act;
    t->row_scale = args->row_scale;
    t->col_scale = args->col_scale;
    t->bias = args->bias;
    t->d_dtype = args->d_dtype;
    if (args->l > 0)
        status = check_packed(t, error);
    if (!status && args->l > 0)
        status = weft_gemm_tile_check(t, error);
    return status ? status : weft_product_run(&product, error);
}

size_t weft_pack_bytes(const weft_gemm_args *given)
{
    const weft_binding *bind = NULL;
    weft_gemm_args args;

    return find_binding(given, "weft_pack_bytes", &args, &bind)
               ? 0
               : weft_packed_bytes(bind, args.k, args.n * weft_act_width(args.act));
}

/* By products that convert what they read. */
static bool is_readable(weft_dtype dtype)
{
    return dtype == WEFT_F32 || dtype == WEFT_F16 || dtype == WEFT_BF16 || dtype == WEFT_I8 ||
           weft_dtype_is_fp8(dtype);
}

weft_status weft_pack(const weft_gemm_args *given, void *memory, const weft_packed **packed)
{
    weft_error_text *error = weft_error_thread();
    const weft_binding *bind = NULL;
    weft_gemm_args read, *args = &read;
    weft_status status = find_binding(given, "weft_pack", args, &bind);
    weft_gemm_tile tile;
    int64_t stride;

    if (status)
        return status;
    if (!memory || (uintptr_t)memory % WEFT_GEMM_ALIGNMENT || !packed || !args->b)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_pack: b, packed and memory must be given, memory on a 128-byte boundary");
    tile = weft_gemm_tile_init(bind, args->dtype);
    args->packed_b = NULL; /* one B as it lies in memory */
    args->l = 1;
    status = place_b(args, "weft_pack", &tile, &stride);
    if (!status)
        status = check_fp8(args, "weft_pack");
    if (!status && tile.b_dtype != args->dtype && (args->dtype == WEFT_I8 || !is_readable(tile.b_dtype)))
        status =
            weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_pack: b is %s, which a %s product cannot read",
                           weft_dtype_name(tile.b_dtype), weft_dtype_name(args->dtype));
    if (status)
        return status;
    weft_packed *begun = weft_packed_begin(bind, args->k, args->n * weft_act_width(args->act), memory);

    status =
        weft_product_pack(bind, begun, args->b, args->b_dtype, tile.b_rs, tile.b_cs, args->threads, error);
    if (!status)
        *packed = begun;
    return status;
}

weft_status weft_gate_up(weft_dtype dtype, int trans, int64_t k, int64_t n, const void *gate, int64_t ld_gate,
                         const void *up, int64_t ld_up, void *b, int64_t ld_b)
{
    weft_error_text *error = weft_error_thread();
    int64_t rows = trans ? n : k, cols = trans ? k : n, width = trans ? 1 : 2;
    int64_t size = (int64_t)weft_dtype_size(dtype);
    place from_gate, from_up, to;
    weft_status status;

    if (dtype != WEFT_F32 && dtype != WEFT_F16 && dtype != WEFT_BF16 && dtype != WEFT_I8 &&
        !weft_dtype_is_fp8(dtype))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_gate_up: there is no product of %s",
                              weft_dtype_name(dtype));
    if (k < 0 || n < 0 || !weft_extents_fit(k, n, 2))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_gate_up: k, n = %lld, %lld: neither may be negative, and a matrix has at "
                              "most 2^46 elements",
                              (long long)k, (long long)n);
    if (k == 0 || n == 0)
        return WEFT_OK;
    if (!gate || !up || !b)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "weft_gate_up: gate, up and b must be given");
    status = place_matrix("weft_gate_up", "_gate", rows, cols, 1, ld_gate, 0, &from_gate);
    if (!status)
        status = place_matrix("weft_gate_up", "_up", rows, cols, 1, ld_up, 0, &from_up);
    if (!status)
        status = place_matrix("weft_gate_up", "_b", trans ? 2 * rows : rows, cols * width, 1, ld_b, 0, &to);
    for (int64_t i = 0; !status && i < rows; i++) {
        const char *one = (const char *)gate + i * from_gate.ld * size;
        const char *other = (const char *)up + i * from_up.ld * size;

        if (trans) {
            memcpy((char *)b + 2 * i * to.ld * size, one, (size_t)(cols * size));
            memcpy((char *)b + (2 * i + 1) * to.ld * size, other, (size_t)(cols * size));
        } else {
            weft_interleave((char *)b + i * to.ld * size, one, other, cols, (size_t)size);
        }
    }
    return status;
}
