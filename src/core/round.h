/* Multiples of a step, of values that are not negative; the smaller and the larger of two. */
#ifndef WEFT_CORE_ROUND_H
#define WEFT_CORE_ROUND_H

#include <stddef.h>
#include <stdint.h>

static inline int64_t weft_divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

static inline int64_t weft_round_up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
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

#endif
