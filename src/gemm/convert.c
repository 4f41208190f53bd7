#include "gemm/convert.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "core/round.h"

#include <stdbool.h>
#include <string.h>

static inline uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

#if defined(__x86_64__)
static bool has_f16c(void)
{
    const uint32_t need = WEFT_CPU_AVX2 | WEFT_CPU_F16C;

    return (weft_cpu_features() & need) == need;
}
#endif

static void bf16_from_f32(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
#if defined(__aarch64__)
    if (weft_cpu_features() & WEFT_CPU_BF16) {
        weft_convert_bf16_bfcvt(dst, src, n);
        return;
    }
#elif defined(__x86_64__)
    if (has_f16c()) {
        weft_convert_bf16_avx2(dst, src, n);
        return;
    }
#endif
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(src[i]);
        uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        uint32_t quiet = (bits >> 16) | 0x40u;

        dst[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

static void f32_from_bf16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = float_of((uint32_t)src[i] << 16);
}

#if defined(__aarch64__)

/* fp16 <-> fp32 is in the base instruction set, and the compiler vectorizes it. */
static void f16_from_f32(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
    __fp16 *restrict half = (__fp16 *)(void *)dst;

    for (int64_t i = 0; i < n; i++)
        half[i] = (__fp16)src[i];
}

static void f32_from_f16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
    const __fp16 *restrict half = (const __fp16 *)(const void *)src;

    for (int64_t i = 0; i < n; i++)
        dst[i] = (float)half[i];
}

#else

/* Branch-free forms of weft_f32_to_f16 and back, so that the compiler can vectorize them. */
static void f16_from_f32(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
#if defined(__x86_64__)
    if (has_f16c()) {
        weft_convert_f16_f16c(dst, src, n);
        return;
    }
#endif
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(src[i]);
        uint32_t sign = (bits >> 16) & 0x8000u;
        uint32_t magnitude = bits & 0x7fffffffu;
        uint32_t tiny = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
        uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
        uint32_t half = magnitude < 0x38800000u ? tiny : normal;

        half = magnitude >= 0x477ff000u ? 0x7c00u : half;
        half = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : half;
        dst[i] = (uint16_t)(sign | half);
    }
}

static void f32_from_f16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
#if defined(__x86_64__)
    if (has_f16c()) {
        weft_convert_f32_f16c(dst, src, n);
        return;
    }
#endif
    for (int64_t i = 0; i < n; i++) {
        uint32_t sign = (uint32_t)(src[i] & 0x8000u) << 16;
        uint32_t rest = (uint32_t)(src[i] & 0x7fffu);
        uint32_t normal = (rest << 13) + 0x38000000u;
        uint32_t tiny = bits_of((float)rest * 0x1p-24f);
        uint32_t special = (rest << 13) | 0x7f800000u | (rest > 0x7c00u ? 0x400000u : 0);
        uint32_t bits = rest < 0x400u ? tiny : normal;

        dst[i] = float_of(sign | (rest >= 0x7c00u ? special : bits));
    }
}

#endif

/* Branch-free forms of weft_fp8_to_f32 and back; called with constants. */
static inline __attribute__((always_inline)) void
f32_from_fp8(float *restrict dst, const uint8_t *restrict src, int64_t n, weft_fp8_format f)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t sign = (uint32_t)(src[i] & 0x80u) << 24;
        uint32_t rest = src[i] & 0x7fu;
        uint32_t normal = (rest << (23 - f.fraction)) + (f.rebias << 23);
        uint32_t tiny = bits_of((float)(int32_t)rest * f.step);
        uint32_t bits = rest >> f.fraction ? normal : tiny;
        uint32_t special = rest == 0x7cu ? 0x7f800000u : 0x7fc00000u;

        dst[i] = float_of(sign | (rest >= f.infinity ? special : bits));
    }
}

static inline __attribute__((always_inline)) void
fp8_from_f32(uint8_t *restrict dst, const float *restrict src, int64_t n, weft_fp8_format f)
{
    const int drop = 23 - f.fraction;

    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(src[i]);
        uint32_t sign = (bits >> 24) & 0x80u;
        uint32_t magnitude = bits & 0x7fffffffu;
        uint32_t tiny = bits_of(float_of(magnitude) + f.shift) - bits_of(f.shift);
        uint32_t normal =
            (magnitude - (f.rebias << 23) + (1u << (drop - 1)) - 1 + ((magnitude >> drop) & 1u)) >> drop;
        uint32_t code = magnitude < (f.rebias + 1) << 23 ? tiny : normal;

        code = code < f.largest ? code : f.largest;
        dst[i] = (uint8_t)(sign | (magnitude > 0x7f800000u ? 0x7fu : code));
    }
}

static void f32_from_i8(float *restrict dst, const int8_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = src[i];
}

static void to_f32(float *dst, weft_dtype from, const void *src, int64_t n)
{
    if (from == WEFT_FP8_E4M3)
        f32_from_fp8(dst, src, n, weft_fp8_format_of(WEFT_FP8_E4M3));
    else if (from == WEFT_FP8_E5M2)
        f32_from_fp8(dst, src, n, weft_fp8_format_of(WEFT_FP8_E5M2));
    else if (from == WEFT_I8)
        f32_from_i8(dst, src, n);
    else if (from == WEFT_F16)
        f32_from_f16(dst, src, n);
    else
        f32_from_bf16(dst, src, n);
}

static void from_f32(weft_dtype to, void *dst, const float *src, int64_t n)
{
    if (to == WEFT_FP8_E4M3)
        fp8_from_f32(dst, src, n, weft_fp8_format_of(WEFT_FP8_E4M3));
    else if (to == WEFT_FP8_E5M2)
        fp8_from_f32(dst, src, n, weft_fp8_format_of(WEFT_FP8_E5M2));
    else if (to == WEFT_F16)
        f16_from_f32(dst, src, n);
    else
        bf16_from_f32(dst, src, n);
}

void weft_convert_row(weft_dtype to, void *dst, weft_dtype from, const void *src, int64_t n)
{
    float part[64];

    /* Rows are short: what most of them do not need is not looked up. */
    if (to == from) {
        memcpy(dst, src, (size_t)n * weft_dtype_size(to));
        return;
    }
    if (to == WEFT_F32) {
        to_f32(dst, from, src, n);
        return;
    }
    if (from == WEFT_F32) {
        from_f32(to, dst, src, n);
        return;
    }
    for (int64_t i = 0; i < n; i += 64) {
        int64_t count = weft_min(n - i, 64);

        to_f32(part, from, (const char *)src + i * (int64_t)weft_dtype_size(from), count);
        from_f32(to, (char *)dst + i * (int64_t)weft_dtype_size(to), part, count);
    }
}

void weft_interleave(void *to, const void *one, const void *other, int64_t count, size_t bytes)
{
#define INTERLEAVE(type)                                                                                     \
    for (int64_t i = 0; i < count; i++) {                                                                    \
        ((type *)to)[2 * i] = ((const type *)one)[i];                                                        \
        ((type *)to)[2 * i + 1] = ((const type *)other)[i];                                                  \
    }
    if (bytes == 4) {
        INTERLEAVE(uint32_t)
    } else if (bytes == 2) {
        INTERLEAVE(uint16_t)
    } else {
        INTERLEAVE(uint8_t)
    }
#undef INTERLEAVE
}
