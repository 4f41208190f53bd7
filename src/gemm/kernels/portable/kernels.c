/*
 * The reference kernels in plain C: what every other kernel must agree with, and what runs on a CPU weft has
 * no better kernel for. 4 x 8 tiles of fp32 sums that a compiler can keep in registers; halves are widened
 * once per element of a panel.
 */
#include "core/dtype.h"
#include "gemm/kernel.h"

enum { MR = 4, NR = 8 };

static void finish(const float sum[MR][NR], float *c, int64_t c_ld, int add)
{
    for (int i = 0; i < MR; i++) {
        for (int j = 0; j < NR; j++)
            c[i * c_ld + j] = add ? c[i * c_ld + j] + sum[i][j] : sum[i][j];
    }
}

static inline void multiply(float sum[MR][NR], const float *a, const float *b)
{
    for (int i = 0; i < MR; i++) {
        for (int j = 0; j < NR; j++)
            sum[i][j] += a[i] * b[j];
    }
}

static void run_f32(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    const float *pa = a, *pb = b;
    float sum[MR][NR] = {{0}};

    for (int64_t p = 0; p < k; p++)
        multiply(sum, pa + p * MR, pb + p * NR);
    finish(sum, c, c_ld, add);
}

static inline void run_widened(int64_t k, const uint16_t *a, const uint16_t *b, float *c, int64_t c_ld,
                               int add, float (*widen)(uint16_t))
{
    float sum[MR][NR] = {{0}};

    for (int64_t p = 0; p < k; p++) {
        float wa[MR], wb[NR];

        for (int i = 0; i < MR; i++)
            wa[i] = widen(a[p * MR + i]);
        for (int j = 0; j < NR; j++)
            wb[j] = widen(b[p * NR + j]);
        multiply(sum, wa, wb);
    }
    finish(sum, c, c_ld, add);
}

static void run_f16(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    run_widened(k, a, b, c, c_ld, add, weft_f16_to_f32);
}

static void run_bf16(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    run_widened(k, a, b, c, c_ld, add, weft_bf16_to_f32);
}

/* Sums wrap modulo 2^32, as the instructions of every CPU do: hence the unsigned sums. */
static void run_i8(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    const int8_t *pa = a, *pb = b;
    uint32_t sum[MR][NR] = {{0}};
    uint32_t *out = c;

    for (int64_t p = 0; p < k; p++) {
        for (int i = 0; i < MR; i++) {
            for (int j = 0; j < NR; j++)
                sum[i][j] += (uint32_t)(pa[p * MR + i] * pb[p * NR + j]);
        }
    }
    for (int i = 0; i < MR; i++) {
        for (int j = 0; j < NR; j++)
            out[i * c_ld + j] = add ? out[i * c_ld + j] + sum[i][j] : sum[i][j];
    }
}

#define KERNEL(short_name, dtype, function)                                                                  \
    {                                                                                                        \
        .name = "portable_" short_name "_4x8", .type = dtype, .mr = MR, .nr = NR, .a_kr = 1, .b_kr = 1,      \
        .k_step = 1, .run = function                                                                         \
    }

static const weft_kernel kernel_f32 = KERNEL("f32", WEFT_F32, run_f32);
static const weft_kernel kernel_f16 = KERNEL("f16", WEFT_F16, run_f16);
static const weft_kernel kernel_bf16 = KERNEL("bf16", WEFT_BF16, run_bf16);
static const weft_kernel kernel_i8 = KERNEL("i8", WEFT_I8, run_i8);

const weft_core weft_core_portable = {
    .name = "portable",
    .needs = 0,
    .caches = {.l1 = 32 << 10, .l2 = 256 << 10, .l3 = 4 << 20},
    .bind =
        {
            [WEFT_COMPUTE_F32] = {&kernel_f32, .mc = 64, .kc = 256, .nc = 1024},
            [WEFT_COMPUTE_F16] = {&kernel_f16, .mc = 64, .kc = 512, .nc = 1024},
            [WEFT_COMPUTE_F16_FAST] = {&kernel_f16, .mc = 64, .kc = 512, .nc = 1024},
            [WEFT_COMPUTE_BF16] = {&kernel_bf16, .mc = 64, .kc = 512, .nc = 1024},
            [WEFT_COMPUTE_I8] = {&kernel_i8, .mc = 64, .kc = 1024, .nc = 1024},
        },
};
