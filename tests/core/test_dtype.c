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

static void check_fp8_type(weft_dtype dtype, uint32_t largest, float most)
{
    CHECK(weft_fp8_to_f32(dtype, (uint8_t)largest) == most);
    for (uint32_t code = 0; code < 0x100; code++) {
        float value = weft_fp8_to_f32(dtype, (uint8_t)code);
        uint16_t half = weft_f32_to_f16(value), brain = weft_f32_to_bf16(value);

        if (isnan(value)) {
            CHECK(isnan(weft_fp8_to_f32(dtype, weft_f32_to_fp8(dtype, value))));
            continue;
        }
        CHECK(weft_f16_to_f32(half) == value && weft_bf16_to_f32(brain) == value);
        CHECK_INT(weft_f32_to_fp8(dtype, value), (code & 0x7fu) > largest ? (code & 0x80u) | largest : code);
    }
    for (uint32_t code = 0; code < largest; code++) {
        double low = weft_fp8_to_f32(dtype, (uint8_t)code),
               high = weft_fp8_to_f32(dtype, (uint8_t)(code + 1));
        float middle = (float)((low + high) / 2);

        CHECK_INT(weft_f32_to_fp8(dtype, middle), code & 1 ? code + 1 : code);
        CHECK_INT(weft_f32_to_fp8(dtype, nextafterf(middle, 0)), code);
        CHECK_INT(weft_f32_to_fp8(dtype, nextafterf(middle, INFINITY)), code + 1);
        CHECK_INT(weft_f32_to_fp8(dtype, -middle), 0x80u | (code & 1 ? code + 1 : code));
    }
    CHECK_INT(weft_f32_to_fp8(dtype, 1.25f * most), largest);
    CHECK_INT(weft_f32_to_fp8(dtype, -1e30f), 0x80u | largest);
    CHECK_INT(weft_f32_to_fp8(dtype, INFINITY), largest);
    CHECK(!weft_dtype_reduces(dtype, WEFT_SUM) && weft_dtype_stores(dtype, dtype));
}

/* As halves: all codes there and back, every middle between two, and saturation. */
static void check_fp8(void)
{
    check_fp8_type(WEFT_FP8_E4M3, 0x7e, 448);
    check_fp8_type(WEFT_FP8_E5M2, 0x7b, 57344);
    CHECK(isinf(weft_fp8_to_f32(WEFT_FP8_E5M2, 0xfc)) && isnan(weft_fp8_to_f32(WEFT_FP8_E4M3, 0xff)));
    CHECK(weft_fp8_to_f32(WEFT_FP8_E4M3, 1) == 0x1p-9f && weft_fp8_to_f32(WEFT_FP8_E5M2, 1) == 0x1p-16f);
    CHECK(!weft_dtype_stores(WEFT_BF16, WEFT_FP8_E4M3));
}

int main(void)
{
    weft_dtype dtype;
    int8_t small[1];

    check_half_round_trip();
    check_half_rounding();
    check_fp8();
    CHECK_INT(weft_dtype_parse("bf16", &dtype), 0);
    CHECK_INT(dtype, WEFT_BF16);
    CHECK_INT(weft_dtype_parse("float16", &dtype), 0);
    CHECK_INT(dtype, WEFT_F16);
    CHECK_INT(weft_dtype_parse("float8", &dtype), -1);
    CHECK_INT(weft_dtype_parse("fp8_e4m3", &dtype), 0);
    CHECK_INT(dtype, WEFT_FP8_E4M3);
    CHECK_INT(weft_dtype_parse("float8_e5m2", &dtype), 0);
    CHECK_INT(dtype, WEFT_FP8_E5M2);
    CHECK_INT(weft_dtype_size(WEFT_FP8_E5M2), 1);
    CHECK_INT(weft_dtype_size(WEFT_I64), 8);
    weft_element_set(WEFT_I8, small, 0, 400.0);
    CHECK_INT(small[0], 127);
    CHECK(weft_element_get(WEFT_I8, small, 0) == 127.0);
    return check_report("dtype");
}
