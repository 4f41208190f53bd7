/*
 * The stand-in expert of float16 rows, alone and fused into its weighted sum, on CPUs with fp16 arithmetic
 * (built with -march=armv8.2-a+fp16). Other types go to the baseline kernels.
 *
 * The sum is that of w * r over the experts, r = fp16(x f). Conversions between fp16 and fp32 are slow on
 * Neoverse cores, and fp32 sums take twice the registers and additions; so there is no fp32 here. With
 * r = x f + e, where e is what rounding r left out,
 *
 *     sum of w r = x c + sum of w e,    c = sum of w f.
 *
 * FMUL gives r, and FMLS gives e = r - x f without an error: it is at most half a step of r, and x f is a
 * multiple of the step of x, because f is an integer. The w e, 2^-11 of the whole, are added up in fp16,
 * with w rounded to it, and so is x times the part of c that fp16 cannot hold. One FMLA then adds x times
 * the part that it can: a product without an error, and the one rounding that the result has anyway.
 * So the sum is within (2 K + 3) 2^-22 of the size of its terms, and K + 1 steps of 2^-25 where fp16 has no
 * smaller ones; as good as fp32 sums with weights of 22 bits.
 *
 * An infinite x makes e = inf - inf. Nothing is tested in the loop: the CPU notes invalid operations and
 * overflows, and a row that had one is computed again by the baseline kernels. That is decided for the row
 * and the experts alone, before another row is added, so a result has the same bits whether it waited for
 * that row or not.
 *
 * Card. 64 columns: 8 loads, 8 sums, 4 results in flight, factors, weights and c in three registers; 3 FP
 * operations per 8 elements and expert, 2 a result. Neoverse V1 does 3 of 4 in a cycle, in any order that was
 * tried.
 */
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "bench/standin/scale_kernels.h"
#include "moe/fpsr.h"

enum { LANES = 8, GROUPS = 8, HALF = 4, FACTORS_MAX = 8 };

#define INLINE static inline __attribute__((always_inline))

/* Beyond these a sum of w e could overflow, or lose what is left of c among the smallest fp16. */
static const double WEIGHTS_MAX = 2048, TERMS_MAX = 32768, TERMS_MIN = 0.125;

/* With at least this, x c does not vanish unless x is zero. */
static const double SURE_MIN = 0.75;

INLINE float16x8_t load8(const void *base, int64_t i)
{
    return vreinterpretq_f16_u16(vld1q_u16((const uint16_t *)base + i));
}

INLINE void store8(void *base, int64_t i, float16x8_t v)
{
    vst1q_u16((uint16_t *)base + i, vreinterpretq_u16_f16(v));
}

/* A register set to zero. The compiler would copy one that is, which takes a vector pipe; MOVI takes none. */
INLINE float16x8_t zero(void)
{
    float16x8_t v;

    __asm__ volatile("movi %0.2d, #0" : "=w"(v));
    return v;
}

static void scale(weft_dtype dtype, void *out, const void *x, float factor, int64_t elements)
{
    int64_t vectors = dtype == WEFT_F16 ? elements / LANES * LANES : 0;

#pragma GCC unroll 8
    for (int64_t i = 0; i < vectors; i += LANES)
        store8(out, i, vmulq_n_f16(load8(x, i), (__fp16)factor));
    if (vectors < elements)
        weft_standin_kernels_neon.scale(dtype, (uint16_t *)out + vectors, (const uint16_t *)x + vectors,
                                        factor, elements - vectors);
}

/* A factor and a weight in each lane; c in two, what fp16 holds of it and the rest. */
typedef struct scales {
    float16x8_t factor, weight, whole;
    bool sure; /* no result is -0 */
} scales;

/* Whether the experts' sum can be computed this way. */
static bool split_scales(scales *s, const float *factor, const float *weight, int64_t factors)
{
    __fp16 f[FACTORS_MAX] = {0}, w[FACTORS_MAX] = {0}, c[LANES] = {0};
    double whole = 0, size = 0, weights = 0;

    if (factors < 1 || factors > FACTORS_MAX)
        return false;
    for (int64_t j = 0; j < factors; j++) {
        f[j] = (__fp16)factor[j];
        w[j] = (__fp16)weight[j];
        whole += (double)weight[j] * factor[j];
        size += fabs((double)weight[j] * factor[j]);
        weights += fabsf(weight[j]);
    }
    if (!(weights <= WEIGHTS_MAX && size <= TERMS_MAX && size >= TERMS_MIN)) /* a NaN is none of these */
        return false;
    c[0] = (__fp16)whole;
    c[1] = (__fp16)(whole - (double)c[0]);
    *s = (scales){load8(f, 0), load8(w, 0), load8(c, 0), fabs(whole) >= SURE_MIN};
    return true;
}

/* Columns [i, i + 8 * groups) for `count` experts, and the row `other` if there is one. */
INLINE void scale_columns(void *out, const void *x, const scales *s, int count, const void *other, int64_t i,
                          int groups)
{
    float16x8_t v[GROUPS], sum[GROUPS], result[GROUPS];

#pragma GCC unroll 8
    for (int g = 0; g < groups; g++) {
        v[g] = load8(x, i + g * LANES);
        sum[g] = vfmaq_laneq_f16(zero(), v[g], s->whole, 1);
    }
    /* The lane of an instruction is written in it: a loop will not do for every compiler. Four vectors at a
     * time, and none moved across the line: gcc would start all products first, and run out of registers. */
#define EXPERT(lane)                                                                                         \
    if ((lane) < count) {                                                                                    \
        _Pragma("GCC unroll 2") for (int h = 0; h < groups; h += HALF)                                       \
        {                                                                                                    \
            const int end = h + HALF < groups ? h + HALF : groups;                                           \
                                                                                                             \
            __asm__ volatile("");                                                                            \
            _Pragma("GCC unroll 4") for (int g = h; g < end; g++) result[g] =                                \
                vmulq_laneq_f16(v[g], s->factor, lane);                                                      \
            _Pragma("GCC unroll 4") for (int g = h; g < end; g++) result[g] =                                \
                vfmsq_laneq_f16(result[g], v[g], s->factor, lane);                                           \
            _Pragma("GCC unroll 4") for (int g = h; g < end; g++) sum[g] =                                   \
                vfmaq_laneq_f16(sum[g], result[g], s->weight, lane);                                         \
        }                                                                                                    \
    }
    EXPERT(0)
    EXPERT(1)
    EXPERT(2)
    EXPERT(3)
    EXPERT(4)
    EXPERT(5)
    EXPERT(6)
    EXPERT(7)
#undef EXPERT
#pragma GCC unroll 8
    for (int g = 0; g < groups; g++)
        sum[g] = vfmaq_laneq_f16(sum[g], v[g], s->whole, 0);
#pragma GCC unroll 8
    for (int g = 0; g < groups; g++)
        store8(out, i + g * LANES, other ? vaddq_f16(sum[g], load8(other, i + g * LANES)) : sum[g]);
}

INLINE void scale_all(void *out, const void *x, const scales *given, int count, const void *other,
                      int64_t elements)
{
    const scales s = *given;
    int64_t i = 0;

    for (; i + GROUPS * LANES <= elements; i += GROUPS * LANES)
        scale_columns(out, x, &s, count, other, i, GROUPS);
    for (; i + LANES <= elements; i += LANES)
        scale_columns(out, x, &s, count, other, i, 1);
    if (i < elements) {
        uint16_t last[2][LANES] = {{0}};
        size_t bytes = (size_t)(elements - i) * sizeof(uint16_t);

        memcpy(last[0], (const uint16_t *)x + i, bytes);
        if (other)
            memcpy(last[1], (const uint16_t *)other + i, bytes);
        scale_columns(last[0], last[0], &s, count, other ? last[1] : NULL, 0, 1);
        memcpy((uint16_t *)out + i, last[0], bytes);
    }
}

INLINE void scale_with(void *out, const void *x, const scales *s, int64_t factors, const void *other,
                       int64_t elements)
{
#define WITH(count)                                                                                          \
    case count:                                                                                              \
        scale_all(out, x, s, count, other, elements);                                                        \
        break;
    switch (factors) { /* a constant in each call, so that there is no loop over experts */
        WITH(1)
        WITH(2)
        WITH(3)
        WITH(4)
        WITH(5)
        WITH(6)
        WITH(7)
        WITH(8)
    }
#undef WITH
}

/* Whether all went well. */
static bool scale_checked(void *out, const void *x, const scales *s, int64_t factors, const void *other,
                          int64_t elements)
{
    uint64_t before = weft_fpsr_watch();

    scale_with(out, x, s, factors, other, elements);
    return weft_fpsr_clean(before);
}

static void scale_sum(weft_dtype dtype, void *out, const void *x, const float *factor, const float *weight,
                      int64_t factors, const void *other, int64_t elements)
{
    scales s;
    bool fast = dtype == WEFT_F16 && split_scales(&s, factor, weight, factors);

    /* Added at once, -0 and -0 would give -0; weft_standin_add_other gives 0. */
    if (fast && other && s.sure && scale_checked(out, x, &s, factors, other, elements))
        return;
    if (!fast || !scale_checked(out, x, &s, factors, NULL, elements))
        weft_standin_kernels_neon.scale_sum(dtype, out, x, factor, weight, factors, NULL, elements);
    weft_standin_add_other(dtype, out, other, elements);
}

const weft_standin_kernels weft_standin_kernels_fp16 = {scale, scale_sum};
