/* fp16 by FMLAL into fp32. Per 2 k: 5 loads, 48 FMLAL. The 24 halves of B that 2 k hold fill three registers.
 */
#include "finish8x12.h"
#include "kernels.h"
#include "pack.h"

/* Row of an even k: columns 0..7 in v2, 8..11 in the low half of v3. Odd: 0..3 in its high half, 4..11 in v4.
 */
#define EVEN(d0, d1, d2, va, e)                                                                              \
    "fmlal v" #d0 ".4s, v2.4h, " va ".h[" #e "]\n fmlal2 v" #d1 ".4s, v2.4h, " va ".h[" #e "]\n fmlal v" #d2 \
    ".4s, v3.4h, " va ".h[" #e "]\n"
#define ODD(d0, d1, d2, va, e)                                                                               \
    "fmlal2 v" #d0 ".4s, v3.4h, " va ".h[" #e "]\n fmlal v" #d1 ".4s, v4.4h, " va ".h[" #e                   \
    "]\n fmlal2 v" #d2 ".4s, v4.4h, " va ".h[" #e "]\n"

/* As STEP_BY_ELEMENT, with two k in a step. */
#define STEP(op, bt, at, i)                                                                                  \
    "ldr q0, [%[a], #32 * " #i "]\n ldr q1, [%[a], #32 * " #i " + 16]\n" LOAD_B_48(i)                        \
        EVEN(8, 9, 10, "v0", 0) EVEN(11, 12, 13, "v0", 1) EVEN(14, 15, 16, "v0", 2)                          \
            EVEN(17, 18, 19, "v0", 3) EVEN(20, 21, 22, "v0", 4) EVEN(23, 24, 25, "v0", 5)                    \
                EVEN(26, 27, 28, "v0", 6) EVEN(29, 30, 31, "v0", 7) ODD(8, 9, 10, "v1", 0)                   \
                    ODD(11, 12, 13, "v1", 1) ODD(14, 15, 16, "v1", 2) ODD(17, 18, 19, "v1", 3)               \
                        ODD(20, 21, 22, "v1", 4) ODD(23, 24, 25, "v1", 5) ODD(26, 27, 28, "v1", 6)           \
                            ODD(29, 30, 31, "v1", 7)

/*
 * Few rows: their sums are so few that they would wait for each other, so those of even and odd k are kept
 * apart, 12 registers, and joined at the end.
 */
#define STEP_1(op, bt, at, i)                                                                                \
    "ldr s0, [%[a], #4 * " #i "]\n" LOAD_B_48(i) EVEN(8, 9, 10, "v0", 0) ODD(20, 21, 22, "v0", 1)
#define STEP_2(op, bt, at, i)                                                                                \
    "ldr d0, [%[a], #8 * " #i "]\n" LOAD_B_48(i) EVEN(8, 9, 10, "v0", 0) EVEN(11, 12, 13, "v0", 1)           \
        ODD(20, 21, 22, "v0", 2) ODD(23, 24, 25, "v0", 3)
#define STEP_4(op, bt, at, i)                                                                                \
    "ldr q0, [%[a], #16 * " #i "]\n" LOAD_B_48(i) EVEN(8, 9, 10, "v0", 0) EVEN(11, 12, 13, "v0", 1)          \
        EVEN(14, 15, 16, "v0", 2) EVEN(17, 18, 19, "v0", 3) ODD(20, 21, 22, "v0", 4)                         \
            ODD(23, 24, 25, "v0", 5) ODD(26, 27, 28, "v0", 6) ODD(29, 30, 31, "v0", 7)
#define JOIN_ROW(d0, d1, d2, s0, s1, s2)                                                                     \
    "fadd v" #d0 ".4s, v" #d0 ".4s, v" #s0 ".4s\n fadd v" #d1 ".4s, v" #d1 ".4s, v" #s1 ".4s\n fadd v" #d2   \
    ".4s, v" #d2 ".4s, v" #s2 ".4s\n"
#define JOIN                                                                                                 \
    JOIN_ROW(8, 9, 10, 20, 21, 22)                                                                           \
    JOIN_ROW(11, 12, 13, 23, 24, 25) JOIN_ROW(14, 15, 16, 26, 27, 28) JOIN_ROW(17, 18, 19, 29, 30, 31)

TILE_KERNEL(run, 2, ZERO_TILE LOOP_BY_ELEMENT(STEP, 32, , , , "") STORE_TILE("fadd"))
TILE_KERNEL(run_ahead, 2, ZERO_TILE LOOP_BY_ELEMENT(STEP, 32, , , , AHEAD_OF_B) STORE_TILE("fadd"))
TILE_KERNEL(run_1, 2, ZERO_TILE LOOP_BY_ELEMENT(STEP_1, 4, , , , AHEAD_OF_B) JOIN STORE_TILE_1("fadd"))
TILE_KERNEL(run_2, 2, ZERO_TILE LOOP_BY_ELEMENT(STEP_2, 8, , , , AHEAD_OF_B) JOIN STORE_TILE_2("fadd"))
TILE_KERNEL(run_4, 2, ZERO_TILE LOOP_BY_ELEMENT(STEP_4, 16, , , , AHEAD_OF_B) JOIN STORE_TILE_4("fadd"))

static void keep(int64_t k, const void *a, const void *b, const void *start, void *to)
{
    KEEP_ALL(LOOP_BY_ELEMENT(STEP, 32, , , , ""), k / 2, a, b, start, to);
}

const weft_kernel weft_f16_8x12_fmlal = {
    .name = "neon_f16_8x12_fmlal",
    .type = WEFT_F16,
    .mr = 8,
    .nr = 12,
    .a_kr = 1,
    .b_kr = 1,
    .k_step = 2,
    RUN_KERNELS,
    .keep = keep,
    .keep_block = 1,
    FEW_KERNELS,
    STREAM_KERNELS(f16),
    WEFT_PACKERS(2, 1, 12),
    WEFT_WIDE_PACKER(2, 1),
};
