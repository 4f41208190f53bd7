/* Element types: names as they are read, and exact scalar conversions (round to nearest even, NaN stays NaN);
 * weft.h has their sizes and names. */
#ifndef WEFT_CORE_DTYPE_H
#define WEFT_CORE_DTYPE_H

#include <weft/weft.h>

/* Accepts long and short names (bfloat16, bf16). Returns 0 on success, -1 when unknown. */
int weft_dtype_parse(const char *name, weft_dtype *dtype);

/* The type partial sums of products of this type are kept in: int32 for int8, else float32. */
weft_dtype weft_dtype_accumulator(weft_dtype dtype);

/* Whether an element may lie there. Sizes are powers of two. */
static inline int weft_dtype_fits_at(weft_dtype dtype, const void *pointer)
{
    return !((uintptr_t)pointer & (weft_dtype_size(dtype) - 1));
}

static inline int weft_dtype_is_fp8(weft_dtype dtype)
{
    return dtype == WEFT_FP8_E4M3 || dtype == WEFT_FP8_E5M2;
}

/* What tells the two kinds of fp8 apart; both keep the order of magnitudes in the order of codes. */
typedef struct weft_fp8_format {
    int fraction;      /* bits */
    uint32_t rebias;   /* what float32's exponent is more than theirs */
    float step;        /* between numbers below the smallest normal one */
    float shift;       /* a float32 whose last bit is worth as much */
    uint32_t infinity; /* codes from here on are no numbers */
    uint32_t largest;
} weft_fp8_format;

static inline weft_fp8_format weft_fp8_format_of(weft_dtype dtype)
{
    return dtype == WEFT_FP8_E4M3 ? (weft_fp8_format){3, 120, 0x1p-9f, 0x1p14f, 0x7f, 0x7e}
                                  : (weft_fp8_format){2, 112, 0x1p-16f, 0x1p7f, 0x7c, 0x7b};
}

/* What results of a product of this type have where nobody says. */
static inline weft_dtype weft_dtype_result(weft_dtype dtype)
{
    return dtype == WEFT_I8 ? WEFT_I32 : weft_dtype_is_fp8(dtype) ? WEFT_BF16 : dtype;
}

/* Whether D of a product of `dtype` can be of type `d`. */
static inline int weft_dtype_stores(weft_dtype dtype, weft_dtype d)
{
    return d == WEFT_F32 || d == WEFT_F16 || d == WEFT_BF16 ||
           (dtype == WEFT_I8 && (d == WEFT_I32 || d == WEFT_I8)) ||
           (weft_dtype_is_fp8(dtype) && weft_dtype_is_fp8(d));
}

/* Whether elements of this type can be combined so: bytes and fp8 cannot, and integers have no average. */
static inline int weft_dtype_reduces(weft_dtype dtype, weft_reduction reduction)
{
    return reduction == WEFT_AVERAGE
               ? dtype == WEFT_F32 || dtype == WEFT_F16 || dtype == WEFT_BF16 || dtype == WEFT_F64
               : dtype != WEFT_BYTE && !weft_dtype_is_fp8(dtype);
}

float weft_f16_to_f32(uint16_t half);
uint16_t weft_f32_to_f16(float value);
float weft_bf16_to_f32(uint16_t brain);
uint16_t weft_f32_to_bf16(float value);

/* To fp8 saturates: what is beyond the largest number, infinities too, becomes it. */
float weft_fp8_to_f32(weft_dtype dtype, uint8_t code);
uint8_t weft_f32_to_fp8(weft_dtype dtype, float value);

/* One element as a double and back (back: rounded to nearest even; integers saturate). */
double weft_element_get(weft_dtype dtype, const void *base, size_t index);
void weft_element_set(weft_dtype dtype, void *base, size_t index, double value);

#endif
