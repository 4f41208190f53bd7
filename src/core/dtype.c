#include "core/dtype.h"

#include <math.h>
#include <string.h>

static const struct {
    size_t size;
    const char *name;
    const char *alias;
} dtype_table[] = {
    [WEFT_F32] = {4, "float32", "f32"},
    [WEFT_F16] = {2, "float16", "f16"},
    [WEFT_BF16] = {2, "bfloat16", "bf16"},
    [WEFT_I8] = {1, "int8", "i8"},
    [WEFT_I32] = {4, "int32", "i32"},
    [WEFT_I64] = {8, "int64", "i64"},
    [WEFT_BYTE] = {1, "byte", "raw"},
    [WEFT_F64] = {8, "float64", "f64"},
    [WEFT_U8] = {1, "uint8", "u8"},
    [WEFT_BOOL] = {1, "bool", "b8"},
    [WEFT_FP8_E4M3] = {1, "float8_e4m3fn", "fp8_e4m3"},
    [WEFT_FP8_E5M2] = {1, "float8_e5m2", "fp8_e5m2"},
};

enum { DTYPE_COUNT = sizeof(dtype_table) / sizeof(dtype_table[0]) };

size_t weft_dtype_size(weft_dtype dtype)
{
    return (size_t)dtype < DTYPE_COUNT ? dtype_table[dtype].size : 0;
}

const char *weft_dtype_name(weft_dtype dtype)
{
    return (size_t)dtype < DTYPE_COUNT ? dtype_table[dtype].name : "invalid";
}

int weft_dtype_parse(const char *name, weft_dtype *dtype)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (!strcmp(name, dtype_table[i].name) || !strcmp(name, dtype_table[i].alias)) {
            *dtype = (weft_dtype)i;
            return 0;
        }
    }
    return -1;
}

weft_dtype weft_dtype_accumulator(weft_dtype dtype)
{
    return dtype == WEFT_I8 ? WEFT_I32 : WEFT_F32;
}

static uint32_t float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float bits_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

float weft_bf16_to_f32(uint16_t brain)
{
    return bits_float((uint32_t)brain << 16);
}

uint16_t weft_f32_to_bf16(float value)
{
    uint32_t bits = float_bits(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) |
                          0x40u); /* a NaN whose payload sat in the low half must not become infinity */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float weft_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;

    if (exponent == 0x1f)
        return bits_float(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0));
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f;

        return sign ? -magnitude : magnitude;
    }
    return bits_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

uint16_t weft_f32_to_f16(float value)
{
    uint32_t bits = float_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        /* Subnormal half: adding 0.5 puts the rounding point of the half at the float's last bit. */
        float shifted = bits_float(magnitude) + 0.5f;

        return (uint16_t)(sign | (float_bits(shifted) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

float weft_fp8_to_f32(weft_dtype dtype, uint8_t code)
{
    weft_fp8_format f = weft_fp8_format_of(dtype);
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, rest = code & 0x7fu;

    if (rest >= f.infinity)
        return bits_float(sign | (rest == 0x7cu ? 0x7f800000u : 0x7fc00000u));
    if (rest >> f.fraction == 0) {
        float magnitude = (float)rest * f.step;

        return sign ? -magnitude : magnitude;
    }
    return bits_float(sign | ((rest << (23 - f.fraction)) + (f.rebias << 23)));
}

uint8_t weft_f32_to_fp8(weft_dtype dtype, float value)
{
    weft_fp8_format f = weft_fp8_format_of(dtype);
    uint32_t bits = float_bits(value), sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu, code;
    int drop = 23 - f.fraction;

    if (magnitude > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (magnitude < (f.rebias + 1) << 23)
        code = float_bits(bits_float(magnitude) + f.shift) - float_bits(f.shift);
    else
        code = (magnitude - (f.rebias << 23) + (1u << (drop - 1)) - 1 + ((magnitude >> drop) & 1u)) >> drop;
    return (uint8_t)(sign | (code < f.largest ? code : f.largest));
}

double weft_element_get(weft_dtype dtype, const void *base, size_t index)
{
    switch (dtype) {
    case WEFT_F32:
        return ((const float *)base)[index];
    case WEFT_F16:
        return weft_f16_to_f32(((const uint16_t *)base)[index]);
    case WEFT_BF16:
        return weft_bf16_to_f32(((const uint16_t *)base)[index]);
    case WEFT_I8:
        return ((const int8_t *)base)[index];
    case WEFT_I32:
        return ((const int32_t *)base)[index];
    case WEFT_I64:
        return (double)((const int64_t *)base)[index];
    case WEFT_BYTE:
    case WEFT_U8:
    case WEFT_BOOL:
        return ((const uint8_t *)base)[index];
    case WEFT_F64:
        return ((const double *)base)[index];
    case WEFT_FP8_E4M3:
    case WEFT_FP8_E5M2:
        return weft_fp8_to_f32(dtype, ((const uint8_t *)base)[index]);
    case WEFT_DTYPE_DEFAULT:
        break;
    }
    return NAN;
}

static double saturate(double value, double low, double high)
{
    if (!(value > low))
        return low; /* also NaN */
    return value > high ? high : nearbyint(value);
}

void weft_element_set(weft_dtype dtype, void *base, size_t index, double value)
{
    switch (dtype) {
    case WEFT_F32:
        ((float *)base)[index] = (float)value;
        break;
    case WEFT_F16:
        ((uint16_t *)base)[index] = weft_f32_to_f16((float)value);
        break;
    case WEFT_BF16:
        ((uint16_t *)base)[index] = weft_f32_to_bf16((float)value);
        break;
    case WEFT_I8:
        ((int8_t *)base)[index] = (int8_t)saturate(value, INT8_MIN, INT8_MAX);
        break;
    case WEFT_I32:
        ((int32_t *)base)[index] = (int32_t)saturate(value, INT32_MIN, INT32_MAX);
        break;
    case WEFT_I64:
        ((int64_t *)base)[index] = value >= 0x1p63    ? INT64_MAX
                                   : value <= -0x1p63 ? INT64_MIN
                                                      : (int64_t)nearbyint(value);
        break;
    case WEFT_F64:
        ((double *)base)[index] = value;
        break;
    case WEFT_FP8_E4M3:
    case WEFT_FP8_E5M2:
        ((uint8_t *)base)[index] = weft_f32_to_fp8(dtype, (float)value);
        break;
    case WEFT_BOOL:
        ((uint8_t *)base)[index] = value != 0;
        break;
    case WEFT_BYTE:
    case WEFT_U8:
        ((uint8_t *)base)[index] = (uint8_t)saturate(value, 0, UINT8_MAX);
        break;
    case WEFT_DTYPE_DEFAULT:
        break;
    }
}
