/*
 * The loops of reductions, in plain C that compilers vectorise: each file that includes this is compiled for
 * other vectors and ends in a weft_reduce_loops. What they compute is the same to the bit. Types and
 * operators are constants after inlining.
 */
#include "run/cpu/convert.h"
#include "run/cpu/reduce_kernels.h"

#include <stdbool.h>

/* Tells the compiler that iterations are independent: a destination is either elsewhere or the same
 * element of a source. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

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

WEFT_INLINE void widen_as(weft_dtype dtype, weft_reduction reduction, float *sum, const void *a, int64_t n)
{
    INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        sum[i] = combine_f32(reduction, sum[i], weft_load(dtype, a, i));
}

/* sum ← sum op a, of elements that are added as float32. */
static void widen(weft_dtype dtype, weft_reduction reduction, float *sum, const void *a, int64_t n)
{
    if (dtype == WEFT_F16)
        FOR_CONSTANT(reduction, widen_as(WEFT_F16, OP, sum, a, n))
    else
        FOR_CONSTANT(reduction, widen_as(WEFT_BF16, OP, sum, a, n))
}
