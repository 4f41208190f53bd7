/* Conversions are exact where they can be and rounded to nearest even where they cannot. */
#include "core/dtype.h"
#include "support/check.h"

#include <math.h>

static void check_half_round_trip(void)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float value = weft_f16_to_f32((uint16_t)h);

        if (isnan(value))
            CHECK(isnan(weft_f16_to_f32(weft_f32_to_f16(value))));
        else
            CHECK_INT(weft_f32_to_f16(value), h);
        value = weft_bf16_to_f32((uint16_t)h);
        if (isnan(value))
            CHECK(isnan(weft_bf16_to_f32(weft_f32_to_bf16(value))));
        else
            CHECK_INT(weft_f32_to_bf16(value), h);
    }
}

/* Between two neighbouring halves: below the middle goes down, above goes up, the middle goes to even. */
static void check_half_rounding(void)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double low = weft_f16_to_f32((uint16_t)h);
        double high = h == 0x7bff ? 65536.0 : weft_f16_to_f32((uint16_t)(h + 1));
        float middle = (float)((low + high) / 2);

        CHECK_INT(weft_f32_to_f16(middle), h & 1 ? h + 1 : h);
        CHECK_INT(weft_f32_to_f16(nextafterf(middle, 0)), h);
        CHECK_INT(weft_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        CHECK_INT(weft_f32_to_f16(-middle), 0x8000u | (h & 1 ? h + 1 : h));
    }
}

int main(void)
{
    weft_dtype dtype;
    int8_t small[1];

    check_half_round_trip();
    check_half_rounding();
    CHECK_INT(weft_dtype_parse("bf16", &dtype), 0);
    CHECK_INT(dtype, WEFT_BF16);
    CHECK_INT(weft_dtype_parse("float16", &dtype), 0);
    CHECK_INT(dtype, WEFT_F16);
    CHECK_INT(weft_dtype_parse("float8", &dtype), -1);
    CHECK_INT(weft_dtype_size(WEFT_I64), 8);
    weft_element_set(WEFT_I8, small, 0, 400.0);
    CHECK_INT(small[0], 127);
    CHECK(weft_element_get(WEFT_I8, small, 0) == 127.0);
    return check_report("dtype");
}
