/*
 * Reductions. Rows are cut into blocks; two sources go straight from memory to memory, more pass through a
 * block of accumulators that stays in the first-level cache, so that every source is read once and every
 * destination written once. The loops have constant types and operators after inlining: plain C that
 * compilers vectorise.
 */
#include "run/cpu/reduce.h"

#include "core/dtype.h"
#include "gemm/convert.h"
#include "run/cpu/convert.h"

#include <stdbool.h>

enum { BLOCK = 1024 };

/* Where compilers have no vectors that convert float16, loops would be scalar: such elements are converted a
 * block at a time instead, by what the CPU has. */
static bool converts_in_loops(weft_dtype dtype)
{
#if defined(__aarch64__)
    (void)dtype;
    return true;
#else
    return dtype != WEFT_F16;
#endif
}

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

/* combine_f32 and its kin: a op b. Sums and products of integers are of unsigned `type`, so that they wrap;
 * comparisons are of the values as `compared`. A NaN that comes first stays. */
#define COMBINE(name, type, compared, is_nan)                                                                \
    WEFT_INLINE type combine_##name(weft_reduction reduction, type a, type b)                                \
    {                                                                                                        \
        switch (reduction) {                                                                                 \
        case WEFT_MIN:                                                                                       \
            return (compared)a < (compared)b || is_nan ? a : b;                                              \
        case WEFT_MAX:                                                                                       \
            return (compared)a > (compared)b || is_nan ? a : b;                                              \
        case WEFT_PRODUCT:                                                                                   \
            return (type)(a * b);                                                                            \
        default:                                                                                             \
            return (type)(a + b);                                                                            \
        }                                                                                                    \
    }

COMBINE(f32, float, float, a != a)
COMBINE(f64, double, double, a != a)
COMBINE(i8, uint8_t, int8_t, false)
COMBINE(u8, uint8_t, uint8_t, false)
COMBINE(i32, uint32_t, int32_t, false)
COMBINE(i64, uint64_t, int64_t, false)

/* A statement for each reduction that is made of pairs, in which `OP` is a constant. An average is a sum that
 * reduce_row divides. */
#define FOR_CONSTANT(reduction, statement)                                                                   \
    switch (reduction) {                                                                                     \
    case WEFT_SUM: {                                                                                         \
        const weft_reduction OP = WEFT_SUM;                                                                  \
        statement;                                                                                           \
        break;                                                                                               \
    }                                                                                                        \
    case WEFT_MIN: {                                                                                         \
        const weft_reduction OP = WEFT_MIN;                                                                  \
        statement;                                                                                           \
        break;                                                                                               \
    }                                                                                                        \
    case WEFT_MAX: {                                                                                         \
        const weft_reduction OP = WEFT_MAX;                                                                  \
        statement;                                                                                           \
        break;                                                                                               \
    }                                                                                                        \
    case WEFT_PRODUCT: {                                                                                     \
        const weft_reduction OP = WEFT_PRODUCT;                                                              \
        statement;                                                                                           \
        break;                                                                                               \
    }                                                                                                        \
    case WEFT_AVERAGE:                                                                                       \
        break;                                                                                               \
    }

/* pair_f64 and its kin: d ← a op b, where elements are added as they lie; `d2`, when there is one, receives
 * the same. */
#define PAIR(name, type)                                                                                     \
    WEFT_INLINE void pair_##name##_as(weft_reduction reduction, type *d, type *d2, const type *a,            \
                                      const type *b, int64_t n)                                              \
    {                                                                                                        \
        if (d2) {                                                                                            \
            INDEPENDENT                                                                                      \
            for (int64_t i = 0; i < n; i++)                                                                  \
                d[i] = d2[i] = combine_##name(reduction, a[i], b[i]);                                        \
        } else {                                                                                             \
            INDEPENDENT                                                                                      \
            for (int64_t i = 0; i < n; i++)                                                                  \
                d[i] = combine_##name(reduction, a[i], b[i]);                                                \
        }                                                                                                    \
    }                                                                                                        \
    static void pair_##name(weft_reduction reduction, void *d, void *d2, const void *a, const void *b,       \
                            int64_t n)                                                                       \
    {                                                                                                        \
        FOR_CONSTANT(reduction, pair_##name##_as(OP, d, d2, a, b, n))                                        \
    }

PAIR(f32, float)
PAIR(f64, double)
PAIR(i8, uint8_t)
PAIR(u8, uint8_t)
PAIR(i32, uint32_t)
PAIR(i64, uint64_t)

/* The same for elements that are added as float32. */
WEFT_INLINE void pair_half_as(weft_dtype dtype, weft_reduction reduction, void *d, void *d2, const void *a,
                              const void *b, int64_t n)
{
    if (d2) {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            float value = combine_f32(reduction, weft_load(dtype, a, i), weft_load(dtype, b, i));

            weft_store(dtype, d, i, value);
            weft_store(dtype, d2, i, value);
        }
    } else {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++)
            weft_store(dtype, d, i, combine_f32(reduction, weft_load(dtype, a, i), weft_load(dtype, b, i)));
    }
}

/* Two sources of one type into one or two destinations of the same type. */
static void pair(weft_dtype dtype, weft_reduction reduction, void *d, void *d2, const void *a, const void *b,
                 int64_t n)
{
    switch (dtype) {
    case WEFT_F16:
        FOR_CONSTANT(reduction, pair_half_as(WEFT_F16, OP, d, d2, a, b, n))
        break;
    case WEFT_BF16:
        FOR_CONSTANT(reduction, pair_half_as(WEFT_BF16, OP, d, d2, a, b, n))
        break;
    case WEFT_I32:
        pair_i32(reduction, d, d2, a, b, n);
        break;
    case WEFT_F64:
        pair_f64(reduction, d, d2, a, b, n);
        break;
    case WEFT_I8:
        pair_i8(reduction, d, d2, a, b, n);
        break;
    case WEFT_U8:
        pair_u8(reduction, d, d2, a, b, n);
        break;
    case WEFT_I64:
        pair_i64(reduction, d, d2, a, b, n);
        break;
    default:
        pair_f32(reduction, d, d2, a, b, n);
        break;
    }
}

static void start(weft_dtype dtype, accumulators *sum, const void *a, int64_t n)
{
    if (dtype == WEFT_F16 || dtype == WEFT_BF16)
        weft_convert_row(WEFT_F32, sum->f, dtype, a, n);
    else
        memcpy(sum, a, (size_t)n * weft_dtype_size(dtype));
}

WEFT_INLINE void widen_as(weft_dtype dtype, weft_reduction reduction, accumulators *sum, const void *a,
                          int64_t n)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        sum->f[i] = combine_f32(reduction, sum->f[i], weft_load(dtype, a, i));
}

static void take(weft_dtype dtype, weft_reduction reduction, accumulators *sum, const void *a, int64_t n)
{
    float wide[BLOCK];

    if (!converts_in_loops(dtype)) {
        weft_convert_row(WEFT_F32, wide, dtype, a, n);
        pair_f32(reduction, sum->f, NULL, sum->f, wide, n);
        return;
    }
    switch (dtype) {
    case WEFT_F16:
        FOR_CONSTANT(reduction, widen_as(WEFT_F16, OP, sum, a, n))
        break;
    case WEFT_BF16:
        FOR_CONSTANT(reduction, widen_as(WEFT_BF16, OP, sum, a, n))
        break;
    default:
        pair(dtype, reduction, sum, NULL, sum, a, n);
        break;
    }
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
    else if (to == WEFT_F16 || to == WEFT_BF16)
        weft_convert_row(to, d, WEFT_F32, sum->f, n);
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

/* `over` > 0: an average. */
static void reduce_row(weft_dtype dtype, weft_reduction reduction, int over, int64_t cols, int64_t row,
                       const weft_view *sources, int source_count, weft_dtype to,
                       const weft_view *destinations, int destination_count)
{
    int64_t from_bytes = (int64_t)weft_dtype_size(dtype);
    int64_t to_bytes = to == dtype ? from_bytes : (int64_t)weft_dtype_size(to);
    accumulators sum;

#define SOURCE(index) (sources[index].data + (row * sources[index].ld + col) * from_bytes)
#define DESTINATION(index) (destinations[index].data + (row * destinations[index].ld + col) * to_bytes)
    if (source_count == 2 && destination_count <= 2 && dtype == to && !over && converts_in_loops(dtype)) {
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
        if (over)
            divide(dtype, &sum, over, n);
        for (int destination = 0; destination < destination_count; destination++)
            finish(dtype, to, DESTINATION(destination), &sum, n);
    }
#undef SOURCE
#undef DESTINATION
}

void weft_average_rows(weft_dtype dtype, int over, int64_t rows, int64_t cols, const weft_view *sources,
                       int source_count, weft_dtype to, const weft_view *destinations, int destination_count)
{
    for (int64_t row = 0; row < rows; row++)
        reduce_row(dtype, WEFT_SUM, over, cols, row, sources, source_count, to, destinations,
                   destination_count);
}

void weft_reduce_rows(weft_dtype dtype, weft_reduction reduction, int64_t rows, int64_t cols,
                      const weft_view *sources, int source_count, weft_dtype to,
                      const weft_view *destinations, int destination_count)
{
    if (reduction == WEFT_AVERAGE) {
        weft_average_rows(dtype, source_count, rows, cols, sources, source_count, to, destinations,
                          destination_count);
        return;
    }
    if (dtype == WEFT_BOOL) { /* of bytes that are 0 or 1 */
        reduction = reduction == WEFT_SUM ? WEFT_MAX : reduction == WEFT_PRODUCT ? WEFT_MIN : reduction;
        dtype = to = WEFT_U8;
    }
    for (int64_t row = 0; row < rows; row++)
        reduce_row(dtype, reduction, 0, cols, row, sources, source_count, to, destinations,
                   destination_count);
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
