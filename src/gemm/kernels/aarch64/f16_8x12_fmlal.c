/* fp16 by FMLAL into fp32. Per 2 k: 5 loads, 48 FMLAL. The 24 halves of B that 2 k hold fill three registers.
 */
#include "kernels.h"
#include "pack.h"
#include "tile8x12.h"

/* k even: columns 0..7 in v2, 8..11 in the low half of v3; k odd: 0..3 in its high half, 4..11 in v4. */
#define ROW(d0, d1, d2, e)                                                                                   \
    "fmlal v" #d0 ".4s, v2.4h, v0.h[" #e "]\n fmlal2 v" #d1 ".4s, v2.4h, v0.h[" #e "]\n fmlal v" #d2         \
    ".4s, v3.4h, v0.h[" #e "]\n"
#define ROW_ODD(d0, d1, d2, e)                                                                               \
    "fmlal2 v" #d0 ".4s, v3.4h, v1.h[" #e "]\n fmlal v" #d1 ".4s, v4.4h, v1.h[" #e "]\n fmlal2 v" #d2        \
    ".4s, v4.4h, v1.h[" #e "]\n"

#define STEP                                                                                                 \
    "1:\n ldr q0, [%[a]]\n ldr q1, [%[a], #16]\n ldr q2, [%[b]]\n ldr q3, [%[b], #16]\n ldr q4, [%[b], "     \
    "#32]\n" ROW(8, 9, 10, 0) ROW(11, 12, 13, 1) ROW(14, 15, 16, 2) ROW(17, 18, 19, 3) ROW(20, 21, 22, 4)    \
        ROW(23, 24, 25, 5) ROW(26, 27, 28, 6) ROW(29, 30, 31, 7) ROW_ODD(8, 9, 10, 0) ROW_ODD(11, 12, 13, 1) \
            ROW_ODD(14, 15, 16, 2) ROW_ODD(17, 18, 19, 3) ROW_ODD(20, 21, 22, 4) ROW_ODD(23, 24, 25, 5)      \
                ROW_ODD(26, 27, 28, 6)                                                                       \
                    ROW_ODD(29, 30, 31,                                                                      \
                            7) "add %[a], %[a], #32\n add %[b], %[b], #48\n subs %[k], %[k], #1\n b.gt 1b\n"

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    RUN_TILE(ZERO_TILE STEP STORE_TILE("fadd"), k / 2, a, b, c, c_ld, add);
}

const weft_kernel weft_f16_8x12_fmlal = {
    .name = "neon_f16_8x12_fmlal",
    .type = WEFT_F16,
    .mr = 8,
    .nr = 12,
    .a_kr = 1,
    .b_kr = 1,
    .k_step = 2,
    .run = run,
    WEFT_PACKERS(2, 1, 12),
};
