/* What a tile may be: checked once when work is planned, so that running it need not look. */
#include "core/dtype.h"
#include "gemm/epilogue.h"
#include "gemm/gemm.h"
#include "gemm/job.h"

static bool is_real(weft_dtype dtype)
{
    return dtype == WEFT_F32 || dtype == WEFT_F16 || dtype == WEFT_BF16 || weft_dtype_is_fp8(dtype);
}

/* Halves and float32 hold every int8. */
static bool reads(weft_dtype type, weft_dtype dtype)
{
    return dtype == type || (is_real(type) && (is_real(dtype) || dtype == WEFT_I8));
}

static weft_status check_source(const char *name, const void *source, weft_dtype dtype, int64_t rs,
                                int64_t cs, weft_dtype type, weft_error_text *error)
{
    if (!source)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s is NULL", name);
    if (!reads(type, dtype))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s is %s, which a %s product cannot read", name,
                              weft_dtype_name(dtype), weft_dtype_name(type));
    if (rs != 1 && cs != 1)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "%s has strides %lld and %lld; one of them must be 1 (row-major or transposed)",
                              name, (long long)rs, (long long)cs);
    return WEFT_OK;
}

static weft_status check_window(const weft_gemm_tile *tile, weft_error_text *error)
{
    const weft_packed *packed = tile->packed_b;
    const weft_kernel *kernel = tile->bind->kernel;
    int64_t k_end = tile->packed_k0 + tile->k;

    if (!weft_packed_fits(tile->bind, packed, packed->k, packed->n))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "the packed B was not packed for kernel %s",
                              kernel->name);
    if (tile->packed_n0 < 0 || tile->packed_n0 % kernel->nr || tile->packed_n0 + tile->n > packed->n)
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "columns %lld to %lld of a packed B with %lld columns: the first must be a multiple of %d",
            (long long)tile->packed_n0, (long long)(tile->packed_n0 + tile->n), (long long)packed->n,
            kernel->nr);
    if (tile->packed_k0 < 0 || tile->packed_k0 % kernel->k_step || k_end > packed->k ||
        (k_end % kernel->k_step && k_end != packed->k))
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "k %lld to %lld of a packed B with k = %lld: both must be multiples of %d, or the end",
            (long long)tile->packed_k0, (long long)k_end, (long long)packed->k, kernel->k_step);
    return WEFT_OK;
}

static weft_status check_destinations(const weft_gemm_tile *tile, weft_error_text *error)
{
    bool integer = tile->bind->kernel->type == WEFT_I8, gated = !tile->raw && weft_act_is_gated(tile->act);
    int64_t cols = gated ? tile->n / 2 : tile->n;

    if (gated && (tile->n % 2 || !is_real(tile->d_dtype) || weft_dtype_is_fp8(tile->d_dtype) ||
                  tile->beta != 0 || tile->acc_in_order))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "a gated activation takes pairs of columns to a D of float32, float16 or "
                              "bfloat16, with beta = 0");
    if (tile->d_count < 1 || tile->d_count > WEFT_GEMM_DESTINATIONS_MAX)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%d destinations; 1 to %d are possible",
                              tile->d_count, WEFT_GEMM_DESTINATIONS_MAX);
    if (tile->d_in_order && (!tile->raw || tile->d_count > 1))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "only bare sums for one destination stay in order");
    if ((tile->d_in_order || tile->acc_in_order) &&
        (tile->order < 1 || (tile->order > 1 && !weft_job_has_groups(tile->bind, tile->k))))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "no product over k = %lld has order %d",
                              (long long)tile->k, tile->order);
    for (int i = 0; i < tile->d_count; i++) {
        if (!tile->d[i] || (tile->m > 1 && tile->d_ld[i] < cols && !tile->d_in_order))
            return weft_error_set(
                error, WEFT_ERR_ARGUMENT,
                "destination %d is NULL or its leading dimension %lld is less than n = %lld", i,
                (long long)tile->d_ld[i], (long long)cols);
    }
    if (!tile->raw && !is_real(tile->d_dtype) &&
        !(integer && (tile->d_dtype == WEFT_I32 || tile->d_dtype == WEFT_I8)))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "D cannot be %s", weft_dtype_name(tile->d_dtype));
    if (!tile->raw && tile->beta != 0 && tile->c && tile->m > 1 && tile->c_ld < tile->n)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "the leading dimension %lld of C is less than n = %lld", (long long)tile->c_ld,
                              (long long)tile->n);
    return WEFT_OK;
}

weft_status weft_gemm_tile_check(const weft_gemm_tile *tile, weft_error_text *error)
{
    weft_dtype type = tile->bind->kernel->type;
    weft_status status = WEFT_OK;

    if (tile->m < 0 || tile->n < 0 || tile->k < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "m, n, k = %lld, %lld, %lld: none may be negative",
                              (long long)tile->m, (long long)tile->n, (long long)tile->k);
    if (tile->m == 0 || tile->n == 0)
        return WEFT_OK;
    if (tile->acc && tile->m > 1 && tile->acc_ld < tile->n && !tile->acc_in_order)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "the leading dimension %lld of the accumulator is less than n = %lld",
                              (long long)tile->acc_ld, (long long)tile->n);
    if (tile->k > 0)
        status = check_source("A", tile->a, tile->a_dtype, tile->a_rs, tile->a_cs, type, error);
    if (!status && tile->k > 0)
        status = tile->packed_b
                     ? check_window(tile, error)
                     : check_source("B", tile->b, tile->b_dtype, tile->b_rs, tile->b_cs, type, error);
    return status ? status : check_destinations(tile, error);
}
