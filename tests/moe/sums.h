/* What tests of sums of rows share: random elements, and how far rounding to a type may be off. */
#ifndef WEFT_TESTS_MOE_SUMS_H
#define WEFT_TESTS_MOE_SUMS_H

#include <stdint.h>

#include <weft/weft.h>

#include "support/check.h"

static inline double rounding(weft_dtype dtype)
{
    return dtype == WEFT_F16 ? 0x1p-11 : dtype == WEFT_BF16 ? 0x1p-8 : 0x1p-24;
}

static inline double smallest(weft_dtype dtype)
{
    return dtype == WEFT_F16 ? 0x1p-24 : 0x1p-126;
}

static inline double random_value(uint64_t *state)
{
    return ((double)(check_random(state) >> 11) * 0x1p-52 - 1) * 4;
}

#endif
