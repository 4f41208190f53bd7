/*
 * Reductions. Rows are cut into blocks; two sources go straight from memory to memory, more pass through a
 * block of accumulators that stays in the first-level cache, so that every source is read once and every
 * destination written once. The loops have constant types and operators after inlining: plain C that
 * compilers vectorise.
 */
#include "run/cpu/reduce.h"

#include "core/dtype.h"
#include "run/cpu/convert.h"

#include <stdbool.h>

enum { BLOCK = 1024 };

/* Tells the compiler that iterations are independent: a destination is either elsewhere or the same
 * element of a source. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

typedef union accumulators {
    float f[BLOCK];
    uint32_t w[BLOCK];
    uint64_t q[BLOCK];
    double d[BLOCK];
    uint8_t b[BLOCK];
} accumulators;

WEFT_INLINE double combine_f64(weft_reduction reduction, double a, double b)
{
    switch (reduction) {
    case WEFT_MIN:
        return (a < b || a != a) ? a : b;
    case WEFT_MAX:
        return (a > b || a != a) ? a : b;
    case WEFT_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

/* Sums and products wrap, whatever the sign; comparisons are of the values. */
WEFT_INLINE uint8_t combine_i8(bool is_signed, weft_reduction reduction, uint8_t a, uint8_t b)
{
    bool less = is_signed ? (int8_t)a < (int8_t)b : a < b;

    switch (reduction) {
    case WEFT_MIN:
        return less ? a : b;
    case WEFT_MAX:
        return less ? b : a;
    case WEFT_PRODUCT:
        return (uint8_t)((unsigned)a * b);
    default:
        return (uint8_t)(a + b);
    }
}

WEFT_INLINE float combine_f32(weft_reduction reduction, float a, float b)
{
    switch (reduction) {
    case WEFT_MIN:
        return (a < b || a != a) ? a : b;
    case WEFT_MAX:
        return (a > b || a != a) ? a : b;
    case WEFT_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

/* Unsigned, so that sums wrap; comparisons are of the signed values. */
WEFT_INLINE uint32_t combine_i32(weft_reduction reduction, uint32_t a, uint32_t b)
{
    switch (reduction) {
    case WEFT_MIN:
        return (int32_t)a < (int32_t)b ? a : b;
    case WEFT_MAX:
        return (int32_t)a > (int32_t)b ? a : b;
    case WEFT_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

WEFT_INLINE uint64_t combine_i64(weft_reduction reduction, uint64_t a, uint64_t b)
{
    switch (reduction) {
    case WEFT_MIN:
        return (int64_t)a < (int64_t)b ? a : b;
    case WEFT_MAX:
        return (int64_t)a > (int64_t)b ? a : b;
    case WEFT_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

/* d ← a op b; `d2`, when there is one, receives the same. `to` is the type of the destinations. */
WEFT_INLINE void pair_as(weft_dtype dtype, weft_dtype to, weft_reduction reduction, void *d, void *d2,
                         const void *a, const void *b, int64_t n)
{
    if (dtype == WEFT_F64) {
        const double *x = a, *y = b;
        double *z = d, *z2 = d2;

        INDEPENDENT
        for (int64_t i = 0; i < n; i++)
            z[i] = combine_f64(reduction, x[i], y[i]);
        if (z2)
            memcpy(z2, z, (size_t)n * sizeof(*z));
    } else if (dtype == WEFT_I8 || dtype == WEFT_U8) {
        const uint8_t *x = a, *y = b;
        uint8_t *z = d;

        INDEPENDENT
        for (int64_t i = 0; i < n; i++)
            z[i] = combine_i8(dtype == WEFT_I8, reduction, x[i], y[i]);
        if (d2)
            memcpy(d2, z, (size_t)n);
    } else if (dtype == WEFT_I64) {
        const uint64_t *x = a, *y = b;
        uint64_t *z = d, *z2 = d2;

        if (z2) {
            INDEPENDENT
            for (int64_t i = 0; i < n; i++)
                z[i] = z2[i] = combine_i64(reduction, x[i], y[i]);
        } else {
            INDEPENDENT
            for (int64_t i = 0; i < n; i++)
                z[i] = combine_i64(reduction, x[i], y[i]);
        }
    } else if (dtype == WEFT_I32) {
        const uint32_t *x = a, *y = b;
        uint32_t *z = d, *z2 = d2;

        if (z2) {
            INDEPENDENT
            for (int64_t i = 0; i < n; i++)
                z[i] = z2[i] = combine_i32(reduction, x[i], y[i]);
        } else {
            INDEPENDENT
            for (int64_t i = 0; i < n; i++)
                z[i] = combine_i32(reduction, x[i], y[i]);
        }
    } else if (d2) {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            float value = combine_f32(reduction, weft_load(dtype, a, i), weft_load(dtype, b, i));

            weft_store(to, d, i, value);
            weft_store(to, d2, i, value);
        }
    } else {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++)
            weft_store(to, d, i, combine_f32(reduction, weft_load(dtype, a, i), weft_load(dtype, b, i)));
    }
}

WEFT_INLINE void pair_of(weft_dtype dtype, weft_dtype to, weft_reduction reduction, void *d, void *d2,
                         const void *a, const void *b, int64_t n)
{
    switch (reduction) {
    case WEFT_SUM:
        pair_as(dtype, to, WEFT_SUM, d, d2, a, b, n);
        break;
    case WEFT_MIN:
        pair_as(dtype, to, WEFT_MIN, d, d2, a, b, n);
        break;
    case WEFT_MAX:
        pair_as(dtype, to, WEFT_MAX, d, d2, a, b, n);
        break;
    case WEFT_PRODUCT:
        pair_as(dtype, to, WEFT_PRODUCT, d, d2, a, b, n);
        break;
    case WEFT_AVERAGE: /* reduce_row divides */
        break;
    }
}

/* Two sources of one type into one or two destinations of the same type. */
static void pair(weft_dtype dtype, weft_reduction reduction, void *d, void *d2, const void *a, const void *b,
                 int64_t n)
{
    switch (dtype) {
    case WEFT_F16:
        pair_of(WEFT_F16, WEFT_F16, reduction, d, d2, a, b, n);
        break;
    case WEFT_BF16:
        pair_of(WEFT_BF16, WEFT_BF16, reduction, d, d2, a, b, n);
        break;
    case WEFT_I32:
        pair_of(WEFT_I32, WEFT_I32, reduction, d, d2, a, b, n);
        break;
    case WEFT_F64:
        pair_of(WEFT_F64, WEFT_F64, reduction, d, d2, a, b, n);
        break;
    case WEFT_I8:
        pair_of(WEFT_I8, WEFT_I8, reduction, d, d2, a, b, n);
        break;
    case WEFT_U8:
        pair_of(WEFT_U8, WEFT_U8, reduction, d, d2, a, b, n);
        break;
    case WEFT_I64:
        pair_of(WEFT_I64, WEFT_I64, reduction, d, d2, a, b, n);
        break;
    default:
        pair_of(WEFT_F32, WEFT_F32, reduction, d, d2, a, b, n);
        break;
    }
}

WEFT_INLINE void start_as(weft_dtype dtype, accumulators *sum, const void *a, int64_t n)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        sum->f[i] = weft_load(dtype, a, i);
}

static void start(weft_dtype dtype, accumulators *sum, const void *a, int64_t n)
{
    switch (dtype) {
    case WEFT_F16:
        start_as(WEFT_F16, sum, a, n);
        break;
    case WEFT_BF16:
        start_as(WEFT_BF16, sum, a, n);
        break;
    default:
        memcpy(sum, a, (size_t)n * weft_dtype_size(dtype));
        break;
    }
}

WEFT_INLINE void widen_as(weft_dtype dtype, weft_reduction reduction, accumulators *sum, const void *a,
                          int64_t n)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        sum->f[i] = combine_f32(reduction, sum->f[i], weft_load(dtype, a, i));
}

WEFT_INLINE void widen(weft_dtype dtype, weft_reduction reduction, accumulators *sum, const void *a,
                       int64_t n)
{
    switch (reduction) {
    case WEFT_SUM:
        widen_as(dtype, WEFT_SUM, sum, a, n);
        break;
    case WEFT_MIN:
        widen_as(dtype, WEFT_MIN, sum, a, n);
        break;
    case WEFT_MAX:
        widen_as(dtype, WEFT_MAX, sum, a, n);
        break;
    case WEFT_PRODUCT:
        widen_as(dtype, WEFT_PRODUCT, sum, a, n);
        break;
    case WEFT_AVERAGE: /* reduce_row divides */
        break;
    }
}

static void take(weft_dtype dtype, weft_reduction reduction, accumulators *sum, const void *a, int64_t n)
{
    switch (dtype) {
    case WEFT_F16:
        widen(WEFT_F16, reduction, sum, a, n);
        break;
    case WEFT_BF16:
        widen(WEFT_BF16, reduction, sum, a, n);
        break;
    default:
        pair(dtype, reduction, sum, NULL, sum, a, n);
        break;
    }
}

WEFT_INLINE void finish_as(weft_dtype to, void *d, const accumulators *sum, int64_t n)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        weft_store(to, d, i, sum->f[i]);
}

static void finish_i32(weft_dtype to, void *d, const accumulators *sum, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        weft_element_set(to, d, (size_t)i, (double)(int32_t)sum->w[i]);
}

/* `dtype` is the type of the sources: what the accumulators hold follows from it. */
static void finish(weft_dtype dtype, weft_dtype to, void *d, const accumulators *sum, int64_t n)
{
    if (dtype == WEFT_I32 && to != WEFT_I32)
        finish_i32(to, d, sum, n);
    else if (to == WEFT_F16)
        finish_as(WEFT_F16, d, sum, n);
    else if (to == WEFT_BF16)
        finish_as(WEFT_BF16, d, sum, n);
    else
        memcpy(d, sum, (size_t)n * weft_dtype_size(to));
}

static void divide(weft_dtype dtype, accumulators *sum, int count, int64_t n)
{
    if (dtype == WEFT_F64)
        for (int64_t i = 0; i < n; i++)
            sum->d[i] /= count;
    else
        for (int64_t i = 0; i < n; i++)
            sum->f[i] /= (float)count;
}

static void reduce_row(weft_dtype dtype, weft_reduction reduction, int64_t cols, int64_t row,
                       const weft_view *sources, int source_count, weft_dtype to,
                       const weft_view *destinations, int destination_count)
{
    int64_t from_bytes = (int64_t)weft_dtype_size(dtype), to_bytes = (int64_t)weft_dtype_size(to);
    bool average = reduction == WEFT_AVERAGE;
    accumulators sum;

    reduction = average ? WEFT_SUM : reduction;

#define SOURCE(index) (sources[index].data + (row * sources[index].ld + col) * from_bytes)
#define DESTINATION(index) (destinations[index].data + (row * destinations[index].ld + col) * to_bytes)
    if (source_count == 2 && destination_count <= 2 && dtype == to && !average) {
        int64_t col = 0;

        pair(dtype, reduction, DESTINATION(0), destination_count == 2 ? DESTINATION(1) : NULL, SOURCE(0),
             SOURCE(1), cols);
        return;
    }
    for (int64_t col = 0; col < cols; col += BLOCK) {
        int64_t n = cols - col < BLOCK ? cols - col : BLOCK;

        start(dtype, &sum, SOURCE(0), n);
        for (int source = 1; source < source_count; source++)
            take(dtype, reduction, &sum, SOURCE(source), n);
        if (average)
            divide(dtype, &sum, source_count, n);
        for (int destination = 0; destination < destination_count; destination++)
            finish(dtype, to, DESTINATION(destination), &sum, n);
    }
#undef SOURCE
#undef DESTINATION
}

void weft_reduce_rows(weft_dtype dtype, weft_reduction reduction, int64_t rows, int64_t cols,
                      const weft_view *sources, int source_count, weft_dtype to,
                      const weft_view *destinations, int destination_count)
{
    if (dtype == WEFT_BOOL) { /* of bytes that are 0 or 1 */
        reduction = reduction == WEFT_SUM ? WEFT_MAX : reduction == WEFT_PRODUCT ? WEFT_MIN : reduction;
        dtype = to = WEFT_U8;
    }
    for (int64_t row = 0; row < rows; row++)
        reduce_row(dtype, reduction, cols, row, sources, source_count, to, destinations, destination_count);
}

void weft_copy(size_t element_bytes, int64_t rows, int64_t cols, weft_view destination, weft_view source)
{
    size_t row_bytes = (size_t)cols * element_bytes;

    if (destination.data == source.data || rows <= 0 || cols <= 0)
        return;
    if (destination.ld == cols && source.ld == cols) {
        memcpy(destination.data, source.data, (size_t)rows * row_bytes);
        return;
    }
    for (int64_t row = 0; row < rows; row++)
        memcpy(destination.data + (size_t)(row * destination.ld) * element_bytes,
               source.data + (size_t)(row * source.ld) * element_bytes, row_bytes);
}

void weft_copy_transposed(size_t element_bytes, int64_t rows, int64_t cols, weft_view destination,
                          weft_view source)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < cols; col++)
            memcpy(destination.data + (size_t)(row * destination.ld + col) * element_bytes,
                   source.data + (size_t)(col * source.ld + row) * element_bytes, element_bytes);
}
