/*
 * The two loops all 8x12 kernels of this folder are made of, as text for one asm statement each.
 *
 * 24 accumulators in v8..v31 leave 8 registers for operands, which are loaded at the head of a k-step with
 * immediate offsets. Evenly spread loads fell to half rate on Neoverse V1 after a second; bunched ones did
 * not. Written in assembly because compilers move the loads and spill.
 *
 * "By element" (fmla, sdot, bfdot): a step is 16 bytes of B for 4 columns times one 4-byte element of A.
 *     accumulator of row i, columns 4j..4j+3: v(8 + 3i + j). A in v0, v1; B in v2, v3, v4.
 * "Matrix" (bfmmla, smmla): a step is 16 bytes of A for 2 rows times 16 bytes of B for 2 columns.
 *     accumulator of rows 2i, 2i+1 and columns 2j, 2j+1: v(8 + 6i + j). A in v0..v3; B in v4..v7, then v4,
 * v5.
 */
#ifndef WEFT_KERNELS_AARCH64_TILE8X12_H
#define WEFT_KERNELS_AARCH64_TILE8X12_H

/* clang-format off */

#define ZERO_TILE \
    "movi v8.2d, #0\n movi v9.2d, #0\n movi v10.2d, #0\n movi v11.2d, #0\n" \
    "movi v12.2d, #0\n movi v13.2d, #0\n movi v14.2d, #0\n movi v15.2d, #0\n" \
    "movi v16.2d, #0\n movi v17.2d, #0\n movi v18.2d, #0\n movi v19.2d, #0\n" \
    "movi v20.2d, #0\n movi v21.2d, #0\n movi v22.2d, #0\n movi v23.2d, #0\n" \
    "movi v24.2d, #0\n movi v25.2d, #0\n movi v26.2d, #0\n movi v27.2d, #0\n" \
    "movi v28.2d, #0\n movi v29.2d, #0\n movi v30.2d, #0\n movi v31.2d, #0\n"

/* One row of a step by element: `op` is the instruction, bt and at the types of B and of an element of A. */
#define ROW_BY_ELEMENT(op, bt, at, d0, d1, d2, va, e) \
    op " v" #d0 ".4s, v2." bt ", " va "." at "[" #e "]\n" \
    op " v" #d1 ".4s, v3." bt ", " va "." at "[" #e "]\n" \
    op " v" #d2 ".4s, v4." bt ", " va "." at "[" #e "]\n"

/* The i-th step of an unrolled loop: 32 bytes of A, 48 of B. */
#define STEP_BY_ELEMENT(op, bt, at, i) \
    "ldr q0, [%[a], #32 * " #i "]\n" \
    "ldr q1, [%[a], #32 * " #i " + 16]\n" \
    LOAD_B_48(i) \
    ROW_BY_ELEMENT(op, bt, at, 8, 9, 10, "v0", 0) \
    ROW_BY_ELEMENT(op, bt, at, 11, 12, 13, "v0", 1) \
    ROW_BY_ELEMENT(op, bt, at, 14, 15, 16, "v0", 2) \
    ROW_BY_ELEMENT(op, bt, at, 17, 18, 19, "v0", 3) \
    ROW_BY_ELEMENT(op, bt, at, 20, 21, 22, "v1", 0) \
    ROW_BY_ELEMENT(op, bt, at, 23, 24, 25, "v1", 1) \
    ROW_BY_ELEMENT(op, bt, at, 26, 27, 28, "v1", 2) \
    ROW_BY_ELEMENT(op, bt, at, 29, 30, 31, "v1", 3)

#define LOAD_B_48(i) \
    "ldr q2, [%[b], #48 * " #i "]\n" \
    "ldr q3, [%[b], #48 * " #i " + 16]\n" \
    "ldr q4, [%[b], #48 * " #i " + 32]\n"

/* The same for few rows: their panels of A hold 4, 8 or 16 bytes a step. */
#define STEP_BY_ELEMENT_1(op, bt, at, i) \
    "ldr s0, [%[a], #4 * " #i "]\n" \
    LOAD_B_48(i) \
    ROW_BY_ELEMENT(op, bt, at, 8, 9, 10, "v0", 0)

#define STEP_BY_ELEMENT_2(op, bt, at, i) \
    "ldr d0, [%[a], #8 * " #i "]\n" \
    LOAD_B_48(i) \
    ROW_BY_ELEMENT(op, bt, at, 8, 9, 10, "v0", 0) \
    ROW_BY_ELEMENT(op, bt, at, 11, 12, 13, "v0", 1)

#define STEP_BY_ELEMENT_4(op, bt, at, i) \
    "ldr q0, [%[a], #16 * " #i "]\n" \
    LOAD_B_48(i) \
    ROW_BY_ELEMENT(op, bt, at, 8, 9, 10, "v0", 0) \
    ROW_BY_ELEMENT(op, bt, at, 11, 12, 13, "v0", 1) \
    ROW_BY_ELEMENT(op, bt, at, 14, 15, 16, "v0", 2) \
    ROW_BY_ELEMENT(op, bt, at, 17, 18, 19, "v0", 3)

/*
 * Eight steps at a time while eight are left, then one by one: the taken branch of a short body costs a few per
 * cent. %[k] counts steps; `step` is one of the above, a_bytes what one takes of A.
 */
#define LOOP_BY_ELEMENT(step, a_bytes, op, bt, at, ahead) \
    "subs %[k], %[k], #8\n" \
    "b.lt 2f\n" \
    "1:\n" \
    ahead \
    step(op, bt, at, 0) \
    step(op, bt, at, 1) \
    step(op, bt, at, 2) \
    step(op, bt, at, 3) \
    step(op, bt, at, 4) \
    step(op, bt, at, 5) \
    step(op, bt, at, 6) \
    step(op, bt, at, 7) \
    "add %[a], %[a], #8 * " #a_bytes "\n" \
    "add %[b], %[b], #384\n" \
    "subs %[k], %[k], #8\n" \
    "b.ge 1b\n" \
    "2:\n" \
    "adds %[k], %[k], #8\n" \
    "b.eq 4f\n" \
    "3:\n" \
    step(op, bt, at, 0) \
    "add %[a], %[a], #" #a_bytes "\n" \
    "add %[b], %[b], #48\n" \
    "subs %[k], %[k], #1\n" \
    "b.gt 3b\n" \
    "4:\n"

/* Two columns of a matrix step: all four row pairs against the B register vb. */
#define COLUMNS_MATRIX(op, t, vb, d0, d1, d2, d3) \
    op " v" #d0 ".4s, v0." t ", " vb "." t "\n" \
    op " v" #d1 ".4s, v1." t ", " vb "." t "\n" \
    op " v" #d2 ".4s, v2." t ", " vb "." t "\n" \
    op " v" #d3 ".4s, v3." t ", " vb "." t "\n"

/*
 * A comes from L2, one panel after another; the hardware does not fetch it into L1 early enough. One line a step,
 * amid the multiplies, gained 5 to 9 per cent in a bare kernel loop; 448 bytes ahead was too near, 768 too far, and all lines of an
 * iteration at once cost more than they gave.
 */
#define AHEAD_OF_A(a_off) "prfm pldl1keep, [%[a], #" #a_off " + 576]\n"

/* 64 bytes of A at a_off, 96 bytes of B at b_off. */
#define STEP_MATRIX(op, t, a_off, b_off, ahead) \
    "ldr q0, [%[a], #" #a_off "]\n" \
    "ldr q1, [%[a], #" #a_off " + 16]\n" \
    "ldr q2, [%[a], #" #a_off " + 32]\n" \
    "ldr q3, [%[a], #" #a_off " + 48]\n" \
    "ldr q4, [%[b], #" #b_off "]\n" \
    "ldr q5, [%[b], #" #b_off " + 16]\n" \
    "ldr q6, [%[b], #" #b_off " + 32]\n" \
    "ldr q7, [%[b], #" #b_off " + 48]\n" \
    COLUMNS_MATRIX(op, t, "v4", 8, 14, 20, 26) \
    ahead \
    COLUMNS_MATRIX(op, t, "v5", 9, 15, 21, 27) \
    COLUMNS_MATRIX(op, t, "v6", 10, 16, 22, 28) \
    COLUMNS_MATRIX(op, t, "v7", 11, 17, 23, 29) \
    "ldr q4, [%[b], #" #b_off " + 64]\n" \
    "ldr q5, [%[b], #" #b_off " + 80]\n" \
    COLUMNS_MATRIX(op, t, "v4", 12, 18, 24, 30) \
    COLUMNS_MATRIX(op, t, "v5", 13, 19, 25, 31)

/*
 * `ahead` is "" or, where B streams from memory once (few rows of A), AHEAD_OF_B: far ahead and into L3 reached
 * 0.97 of the bandwidth of plain loads, near and into L1 or L2 0.75 to 0.9, none 0.8.
 */
#define AHEAD_OF_B \
    "prfm pldl3keep, [%[b], #16384]\n prfm pldl3keep, [%[b], #16448]\n prfm pldl3keep, [%[b], #16512]\n" \
    "prfm pldl3keep, [%[b], #16576]\n prfm pldl3keep, [%[b], #16640]\n prfm pldl3keep, [%[b], #16704]\n"

#define LOOP_MATRIX(op, t, ahead) \
    "subs %[k], %[k], #4\n" \
    "b.lt 2f\n" \
    "1:\n" \
    ahead \
    STEP_MATRIX(op, t, 0, 0, AHEAD_OF_A(0)) \
    STEP_MATRIX(op, t, 64, 96, AHEAD_OF_A(64)) \
    STEP_MATRIX(op, t, 128, 192, AHEAD_OF_A(128)) \
    STEP_MATRIX(op, t, 192, 288, AHEAD_OF_A(192)) \
    "add %[a], %[a], #256\n" \
    "add %[b], %[b], #384\n" \
    "subs %[k], %[k], #4\n" \
    "b.ge 1b\n" \
    "2:\n" \
    "adds %[k], %[k], #4\n" \
    "b.eq 4f\n" \
    "3:\n" \
    STEP_MATRIX(op, t, 0, 0, "") \
    "add %[a], %[a], #64\n" \
    "add %[b], %[b], #96\n" \
    "subs %[k], %[k], #1\n" \
    "b.gt 3b\n" \
    "4:\n"

#define STORE_ROW(d0, d1, d2) \
    "stp q" #d0 ", q" #d1 ", [%[c]]\n" \
    "str q" #d2 ", [%[c], #32]\n" \
    "add %[c], %[c], %[ld]\n"

#define ADD_ROW(add_op, d0, d1, d2) \
    "ldp q0, q1, [%[c]]\n" \
    "ldr q2, [%[c], #32]\n" \
    add_op " v" #d0 ".4s, v0.4s, v" #d0 ".4s\n" \
    add_op " v" #d1 ".4s, v1.4s, v" #d1 ".4s\n" \
    add_op " v" #d2 ".4s, v2.4s, v" #d2 ".4s\n" \
    STORE_ROW(d0, d1, d2)

/* C = tile or C += tile; add_op is fadd or add; `store` and `add` are lists of rows. */
#define STORE_OR_ADD(store, add) \
    "cbnz %w[add], 5f\n" \
    store \
    "b 6f\n" \
    "5:\n" \
    add \
    "6:\n"

#define STORE_TILE(add_op) \
    STORE_OR_ADD(STORE_ROW(8, 9, 10) STORE_ROW(11, 12, 13) STORE_ROW(14, 15, 16) STORE_ROW(17, 18, 19) \
                 STORE_ROW(20, 21, 22) STORE_ROW(23, 24, 25) STORE_ROW(26, 27, 28) STORE_ROW(29, 30, 31), \
                 ADD_ROW(add_op, 8, 9, 10) ADD_ROW(add_op, 11, 12, 13) ADD_ROW(add_op, 14, 15, 16) \
                 ADD_ROW(add_op, 17, 18, 19) ADD_ROW(add_op, 20, 21, 22) ADD_ROW(add_op, 23, 24, 25) \
                 ADD_ROW(add_op, 26, 27, 28) ADD_ROW(add_op, 29, 30, 31))

#define STORE_TILE_4(add_op) \
    STORE_OR_ADD(STORE_ROW(8, 9, 10) STORE_ROW(11, 12, 13) STORE_ROW(14, 15, 16) STORE_ROW(17, 18, 19), \
                 ADD_ROW(add_op, 8, 9, 10) ADD_ROW(add_op, 11, 12, 13) ADD_ROW(add_op, 14, 15, 16) \
                 ADD_ROW(add_op, 17, 18, 19))

#define STORE_TILE_2(add_op) \
    STORE_OR_ADD(STORE_ROW(8, 9, 10) STORE_ROW(11, 12, 13), \
                 ADD_ROW(add_op, 8, 9, 10) ADD_ROW(add_op, 11, 12, 13))

#define STORE_TILE_1(add_op) STORE_OR_ADD(STORE_ROW(8, 9, 10), ADD_ROW(add_op, 8, 9, 10))

/* From 2x2 blocks to rows: the block row d0..d5 becomes rows 2i (v0..v2) and 2i+1 (v3..v5). */
#define UNZIP_PAIR(d0, d1, d2, d3, d4, d5) \
    "zip1 v0.2d, v" #d0 ".2d, v" #d1 ".2d\n" \
    "zip1 v1.2d, v" #d2 ".2d, v" #d3 ".2d\n" \
    "zip1 v2.2d, v" #d4 ".2d, v" #d5 ".2d\n" \
    "zip2 v3.2d, v" #d0 ".2d, v" #d1 ".2d\n" \
    "zip2 v4.2d, v" #d2 ".2d, v" #d3 ".2d\n" \
    "zip2 v5.2d, v" #d4 ".2d, v" #d5 ".2d\n"

#define STORE_PAIR(d0, d1, d2, d3, d4, d5) \
    UNZIP_PAIR(d0, d1, d2, d3, d4, d5) \
    STORE_ROW(0, 1, 2) \
    STORE_ROW(3, 4, 5)

/* Row r0..r2 plus C, through d0..d2, which the pair no longer needs. */
#define ADD_ROW_VIA(add_op, r0, r1, r2, d0, d1, d2) \
    "ldp q" #d0 ", q" #d1 ", [%[c]]\n" \
    "ldr q" #d2 ", [%[c], #32]\n" \
    add_op " v" #r0 ".4s, v" #d0 ".4s, v" #r0 ".4s\n" \
    add_op " v" #r1 ".4s, v" #d1 ".4s, v" #r1 ".4s\n" \
    add_op " v" #r2 ".4s, v" #d2 ".4s, v" #r2 ".4s\n" \
    STORE_ROW(r0, r1, r2)

#define ADD_PAIR(add_op, d0, d1, d2, d3, d4, d5) \
    UNZIP_PAIR(d0, d1, d2, d3, d4, d5) \
    ADD_ROW_VIA(add_op, 0, 1, 2, d0, d1, d2) \
    ADD_ROW_VIA(add_op, 3, 4, 5, d3, d4, d5)

/* The same for the tile of the matrix loop. */
#define STORE_MATRIX_TILE(add_op) \
    STORE_OR_ADD(STORE_PAIR(8, 9, 10, 11, 12, 13) STORE_PAIR(14, 15, 16, 17, 18, 19) \
                 STORE_PAIR(20, 21, 22, 23, 24, 25) STORE_PAIR(26, 27, 28, 29, 30, 31), \
                 ADD_PAIR(add_op, 8, 9, 10, 11, 12, 13) ADD_PAIR(add_op, 14, 15, 16, 17, 18, 19) \
                 ADD_PAIR(add_op, 20, 21, 22, 23, 24, 25) ADD_PAIR(add_op, 26, 27, 28, 29, 30, 31))

#define TILE_CLOBBERS \
    "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", \
    "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", \
    "v29", "v30", "v31"

/* The whole kernel: `steps` of k, then C. */
#define RUN_TILE(text, steps, pa, pb, pc, c_ld, add_flag) \
    do { \
        int64_t steps_ = (steps), ld_ = (c_ld) * 4; \
        const void *a_ = (pa), *b_ = (pb); \
        void *c_ = (pc); \
        \
        __asm__ volatile(text \
                         : [k] "+r"(steps_), [a] "+r"(a_), [b] "+r"(b_), [c] "+r"(c_) \
                         : [ld] "r"(ld_), [add] "r"(add_flag) \
                         : TILE_CLOBBERS); \
    } while (0)

/* A micro-kernel of this text; `step_k` is the k of a step. */
#define TILE_KERNEL(name, step_k, text) \
    static void name(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add) \
    { \
        RUN_TILE(text, k / (step_k), a, b, c, c_ld, add); \
    }

/* The kernels by element: of 8 rows, with and without prefetching B, and of few, which stream B from memory. */
#define KERNELS_BY_ELEMENT(step_k, add_op, op, bt, at) \
    TILE_KERNEL(run, step_k, ZERO_TILE LOOP_BY_ELEMENT(STEP_BY_ELEMENT, 32, op, bt, at, "") STORE_TILE(add_op)) \
    TILE_KERNEL(run_ahead, step_k, \
                ZERO_TILE LOOP_BY_ELEMENT(STEP_BY_ELEMENT, 32, op, bt, at, AHEAD_OF_B) STORE_TILE(add_op)) \
    TILE_KERNEL(run_1, step_k, \
                ZERO_TILE LOOP_BY_ELEMENT(STEP_BY_ELEMENT_1, 4, op, bt, at, AHEAD_OF_B) STORE_TILE_1(add_op)) \
    TILE_KERNEL(run_2, step_k, \
                ZERO_TILE LOOP_BY_ELEMENT(STEP_BY_ELEMENT_2, 8, op, bt, at, AHEAD_OF_B) STORE_TILE_2(add_op)) \
    TILE_KERNEL(run_4, step_k, \
                ZERO_TILE LOOP_BY_ELEMENT(STEP_BY_ELEMENT_4, 16, op, bt, at, AHEAD_OF_B) STORE_TILE_4(add_op))

/* The kernels of a matrix instruction. */
#define KERNELS_MATRIX(step_k, add_op, op, t) \
    TILE_KERNEL(run, step_k, ZERO_TILE LOOP_MATRIX(op, t, "") STORE_MATRIX_TILE(add_op)) \
    TILE_KERNEL(run_ahead, step_k, ZERO_TILE LOOP_MATRIX(op, t, AHEAD_OF_B) STORE_MATRIX_TILE(add_op))

#define RUN_KERNELS .run = run, .run_ahead = run_ahead
#define FEW_KERNELS .few = (const weft_few[]){{1, run_1}, {2, run_2}, {4, run_4}, {0}}

/* clang-format on */

#endif
