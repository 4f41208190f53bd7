/*
 * Multiples of a step, of values that are not negative; the smaller and the larger of two.
 *
 * In C they are of 64 bits, or of sizes. In C++, that is in kernels, they are of the type of what they are
 * given, as an expression written out would be, and constants where that is constant.
 */
#ifndef WEFT_CORE_ROUND_H
#define WEFT_CORE_ROUND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus

#ifdef __CUDACC__
#define WEFT_ROUND_FUNCTION __host__ __device__ constexpr
#else
#define WEFT_ROUND_FUNCTION constexpr
#endif

template <class Value, class By> WEFT_ROUND_FUNCTION auto weft_divide_up(Value value, By by)
{
    return (value + by - 1) / by;
}

template <class Value, class Step> WEFT_ROUND_FUNCTION auto weft_round_up(Value value, Step step)
{
    return (value + step - 1) / step * step;
}

/* To a power of two: the compiler then knows which bits are zero. */
template <class Value, class Step> WEFT_ROUND_FUNCTION auto weft_align_up(Value value, Step step)
{
    return (value + step - 1) & ~(step - 1);
}

template <class A, class B> WEFT_ROUND_FUNCTION auto weft_min(A a, B b)
{
    return a < b ? a : b;
}

template <class A, class B> WEFT_ROUND_FUNCTION auto weft_max(A a, B b)
{
    return a > b ? a : b;
}

#else

/* value / by. Sizes are 64 bits wide and seldom need them: a CPU may take three times as long to divide those
 * (a Cascade Lake 40 cycles to 90, and 26), and what plans are made of divides a lot. */
static inline int64_t weft_quotient(int64_t value, int64_t by)
{
    if (__builtin_constant_p(by))
        return value / by;
    return ((uint64_t)value | (uint64_t)by) >> 32 ? value / by : (int64_t)((uint32_t)value / (uint32_t)by);
}

static inline int64_t weft_remainder(int64_t value, int64_t by)
{
    return value - weft_quotient(value, by) * by;
}

static inline int64_t weft_divide_up(int64_t value, int64_t by)
{
    return weft_quotient(value + by - 1, by);
}

static inline int64_t weft_round_up(int64_t value, int64_t step)
{
    return weft_divide_up(value, step) * step;
}

static inline size_t weft_round_up_bytes(size_t bytes, size_t step)
{
    return (bytes + step - 1) / step * step;
}

static inline int64_t weft_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t weft_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline size_t weft_min_bytes(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t weft_max_bytes(size_t a, size_t b)
{
    return a > b ? a : b;
}

#endif

#endif
