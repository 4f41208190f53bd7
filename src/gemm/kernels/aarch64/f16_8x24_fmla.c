/*
 * fp16 products and fp16 sums by FMLA, for who asks for it: twice the rate of FMLAL. Sums are widened to fp32
 * when the k block ends, so the block length bounds the error. Per k: 4 loads, 24 FMLA.
 */
#include "kernels.h"
#include "pack.h"
#include "tile8x12.h"

#define ROW(d0, d1, d2, e)                                                                                   \
    "fmla v" #d0 ".8h, v2.8h, v0.h[" #e "]\n fmla v" #d1 ".8h, v3.8h, v0.h[" #e "]\n fmla v" #d2             \
    ".8h, v4.8h, v0.h[" #e "]\n"

#define LOOP                                                                                                 \
    "1:\n ldr q0, [%[a]], #16\n ldr q2, [%[b]]\n ldr q3, [%[b], #16]\n ldr q4, [%[b], #32]\n" ROW(8, 9, 10,  \
                                                                                                  0)         \
        ROW(11, 12, 13, 1) ROW(14, 15, 16, 2) ROW(17, 18, 19, 3) ROW(20, 21, 22, 4) ROW(23, 24, 25, 5)       \
            ROW(26, 27, 28, 6) ROW(29, 30, 31, 7) "add %[b], %[b], #48\n subs %[k], %[k], #1\n b.gt 1b\n"

#define WIDEN(d, lo, hi) "fcvtl v" #lo ".4s, v" #d ".4h\n fcvtl2 v" #hi ".4s, v" #d ".8h\n"

#define STORE_WIDE(d0, d1, d2)                                                                               \
    WIDEN(d0, 0, 1)                                                                                          \
    WIDEN(d1, 2, 3)                                                                                          \
    WIDEN(d2, 4, 5)                                                                                          \
    "stp q0, q1, [%[c]]\n stp q2, q3, [%[c], #32]\n stp q4, q5, [%[c], "                                     \
    "#64]\n add %[c], %[c], %[ld]\n"

#define ADD_TWO(lo, hi, at)                                                                                  \
    "ldp q6, q7, [%[c], #" #at "]\n fadd v" #lo ".4s, v" #lo ".4s, v6.4s\n fadd v" #hi ".4s, v" #hi          \
    ".4s, v7.4s\n stp q" #lo ", q" #hi ", [%[c], #" #at "]\n"

#define ADD_WIDE(d0, d1, d2)                                                                                 \
    WIDEN(d0, 0, 1)                                                                                          \
    WIDEN(d1, 2, 3)                                                                                          \
    WIDEN(d2, 4, 5) ADD_TWO(0, 1, 0) ADD_TWO(2, 3, 32) ADD_TWO(4, 5, 64) "add %[c], %[c], %[ld]\n"

#define FINISH                                                                                               \
    "cbnz %w[add], 5f\n" STORE_WIDE(8, 9, 10) STORE_WIDE(11, 12, 13) STORE_WIDE(14, 15, 16)                  \
        STORE_WIDE(17, 18, 19) STORE_WIDE(20, 21, 22) STORE_WIDE(23, 24, 25) STORE_WIDE(26, 27, 28)          \
            STORE_WIDE(29, 30, 31) "b 6f\n"                                                                  \
                                   "5:\n" ADD_WIDE(8, 9, 10) ADD_WIDE(11, 12, 13) ADD_WIDE(14, 15, 16)       \
                                       ADD_WIDE(17, 18, 19) ADD_WIDE(20, 21, 22) ADD_WIDE(23, 24, 25)        \
                                           ADD_WIDE(26, 27, 28) ADD_WIDE(29, 30, 31) "6:\n"

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    RUN_TILE(ZERO_TILE LOOP FINISH, k, a, b, c, c_ld, add);
}

const weft_kernel weft_f16_8x24_fmla = {
    .name = "neon_f16_8x24_fmla",
    .type = WEFT_F16,
    .mr = 8,
    .nr = 24,
    .a_kr = 1,
    .b_kr = 1,
    .k_step = 1,
    .run = run,
    WEFT_PACKERS(2, 1, 24),
};
