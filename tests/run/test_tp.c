/*
 * Every tensor-parallel operation and schedule, exactly: dtypes, transposes, uneven and tiny shapes,
 * epilogues (C beside D and in its place), packed weights, batches, tiles, workers, buffers in and outside
 * symmetric memory, 1 to 8 ranks. Nothing is written between the rows of D.
 * Integer data must give the single-rank product bit for bit; real data must stay under the derived bound; a
 * second run of the same data must give the same bits.
 */
#include "plan/plan.h"
#include "run/program.h"
#include "support/ranks.h"
#include "tp_case.h"

enum { SYMMETRIC_BYTES = 4 << 20 };

static uint64_t pick(uint64_t *state, uint64_t count)
{
    return check_random(state) % count;
}

/* Factors for blocks of 128 of k and of columns, which tiles and parts cut where they like. */
static void with_blocks(tp_case *t, uint64_t *s)
{
    weft_problem *p = &t->problem;

    if ((p->op == WEFT_OP_AG_GEMM && p->schedule == WEFT_SCHEDULE_TWO_LEVEL) ||
        p->b_form == WEFT_B_PREPACKED || p->act >= WEFT_ACT_RELU_GATED ||
        p->layout == WEFT_LAYOUT_GATHER_A_K || p->layout == WEFT_LAYOUT_GATHER_B_K)
        return;
    p->scales = TP_BLOCK;
    p->k = 1 + (int64_t)pick(s, 400);
    p->n = pick(s, 2) ? 100 + (int64_t)pick(s, 100) : p->n;
    p->tuning.tile_k = p->tuning.tile_k ? 1 + (int64_t)pick(s, 200) : 0;
    p->tuning.chunk_k = 0;
    if (t->integers) /* sums are larger than those without factors */
        p->wire_dtype = WEFT_F32;
    t->a_scale = pick(s, 4) != 0;
    t->b_scale = pick(s, 4) != 0;
}

/* A random problem around one op, schedule and dtype. */
static tp_case make_case(weft_op op, weft_schedule schedule, weft_layout layout, weft_dtype dtype, int world,
                         uint64_t seed)
{
    static const int64_t extents[] = {1, 2, 3, 5, 7, 8, 13, 16, 31, 40, 67};
    uint64_t s = seed * 1299709u + 17;
    tp_case t = {.seed = seed, .integers = seed % 4 != 0};
    weft_problem *p = &t.problem;

    weft_problem_init(p, op);
    p->schedule = schedule;
    p->layout = layout;
    p->dtype = dtype;
    p->d_dtype = dtype == WEFT_I8 ? (pick(&s, 2) ? WEFT_I32 : WEFT_F32) : pick(&s, 2) ? dtype : WEFT_F32;
    if (weft_dtype_is_fp8(dtype) && pick(&s, 3) == 0)
        p->d_dtype = WEFT_BF16;
    p->m = extents[pick(&s, 11)];
    p->n = extents[pick(&s, 11)];
    p->k = extents[pick(&s, 11)];
    if (pick(&s, 16) == 0)
        *(pick(&s, 3) == 0 ? &p->m : pick(&s, 2) ? &p->n : &p->k) = 0;
    p->l = pick(&s, 6) == 0 ? 2 : 1;
    p->transa = pick(&s, 3) == 0;
    p->transb = pick(&s, 3) == 0;
    p->b_form = (weft_b_form)pick(&s, 3);
    if (layout == WEFT_LAYOUT_GATHER_B && schedule != WEFT_SCHEDULE_DIRECT && p->b_form == WEFT_B_PREPACKED)
        p->b_form = WEFT_B_PACK_IN_RUN;
    if (layout == WEFT_LAYOUT_GATHER_A_K || layout == WEFT_LAYOUT_GATHER_B_K)
        p->b_form = (weft_b_form)(p->b_form % 2);
    if (pick(&s, 2)) {
        p->alpha = dtype == WEFT_I8 && p->d_dtype == WEFT_I32 ? 1 : 2;
        p->beta = (float)pick(&s, 2);
        p->bias = (int)pick(&s, 2);
        p->act = pick(&s, 2) ? WEFT_ACT_RELU : WEFT_ACT_NONE;
        if (!t.integers && dtype != WEFT_I8)
            p->act = (weft_act)pick(&s, 4);
    }
    if (pick(&s, 2)) {
        p->tuning.tile_m = 1 + (int64_t)pick(&s, 24);
        p->tuning.tile_n = 1 + (int64_t)pick(&s, 40);
        p->tuning.tile_k = 1 + (int64_t)pick(&s, 40);
    }
    if (pick(&s, 3) == 0) {
        p->tuning.copiers = 1 + (int)pick(&s, 3);
        p->tuning.chunk_k = (int64_t)pick(&s, 9);
        p->tuning.raster = (int64_t)pick(&s, 3);
    }
    p->tuning.workers = pick(&s, 4) == 0 && world <= 4 ? 2 : 1;
    t.slack = (int)pick(&s, 3) * 3;
    t.symmetric = pick(&s, 2) ? 31 : (unsigned)pick(&s, 32);
    /* Sums of these integers are exact in float16, not in bfloat16. */
    if (pick(&s, 3) == 0 && dtype != WEFT_I8)
        p->wire_dtype = t.integers || pick(&s, 2) ? WEFT_F16 : WEFT_BF16;
    p->tuning.sums_stay = (int)pick(&s, 2);
    p->tuning.exchange = (int)pick(&s, 4);
    if ((op == WEFT_OP_AG_GEMM || op == WEFT_OP_GEMM_AS) && pick(&s, 4) == 0) {
        p->act = t.integers ? WEFT_ACT_RELU_GATED : (weft_act)(WEFT_ACT_RELU_GATED + pick(&s, 3));
        p->beta = 0;
        p->d_dtype = p->d_dtype == WEFT_I32 || weft_dtype_is_fp8(p->d_dtype) ? WEFT_F32 : p->d_dtype;
    }
    t.in_place = p->beta != 0 && pick(&s, 2);
    if (weft_dtype_is_fp8(dtype) && pick(&s, 2))
        with_blocks(&t, &s);
    return t;
}

static void check_case(weft_group *group, const tp_case *t, char *symmetric)
{
    int world = weft_size(group), rank = weft_rank(group);
    tp_instance s[TP_OPERANDS];
    weft_operands operands;
    weft_plan *plan = NULL;
    weft_status status;
    guarded packed = {0}, scales[2] = {{0}, {0}};
    char *first;

    tp_place(t, world, rank, symmetric, s);
    for (int which = 0; which < TP_OPERANDS; which++)
        tp_fill(t, which, &s[which]);
    operands = tp_operands(s);
    if (t->problem.b_form == WEFT_B_PREPACKED) {
        packed = tp_pack(t, &s[TP_B]);
        operands.b = packed.data;
    }
    for (int b = 0; b < 2; b++)
        if (b ? t->b_scale : t->a_scale) {
            scales[b] = guarded_make((size_t)tp_blocks(t, b, world, rank, NULL) * sizeof(float));
            tp_blocks(t, b, world, rank, scales[b].data);
        }
    operands.a_scale = scales[0].data;
    operands.b_scale = scales[1].data;
    status = weft_plan_create(group, &t->problem, &plan);
    if (status == WEFT_OK)
        status = weft_run(plan, &operands);
    CHECK_INT(status, WEFT_OK);
    if (status == WEFT_OK) {
        int64_t wrong = tp_wrong(t, world, &s[TP_D]);

        CHECK_INT(wrong, 0);
        if (wrong)
            tp_print(t, world, rank);
        first = malloc(s[TP_D].bytes + 1);
        memcpy(first, s[TP_D].data, s[TP_D].bytes);
        tp_fill(t, TP_D, &s[TP_D]);
        CHECK_INT(weft_run(plan, &operands), WEFT_OK);
        CHECK(memcmp(first, s[TP_D].data, s[TP_D].bytes) == 0);
        free(first);
    } else {
        fprintf(stderr, "%s\n", weft_error(group));
        tp_print(t, world, rank);
    }
    weft_plan_destroy(plan);
    guarded_drop(&packed);
    guarded_drop(&scales[0]);
    guarded_drop(&scales[1]);
    tp_release(s);
}

/* The type of D follows that of A and B; with alpha = 0 it does not matter what those hold. */
static void alpha_zero(weft_group *group, void *argument)
{
    enum { SIDE = 12 };
    uint16_t a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE], d[SIDE * SIDE + 1];
    weft_problem p;
    weft_operands operands = {.size = sizeof(operands), .a = a, .b = b, .c = c, .d = d};

    (void)argument;
    for (size_t i = 0; i < SIDE * SIDE; i++) {
        weft_element_set(WEFT_BF16, a, i, NAN);
        weft_element_set(WEFT_BF16, b, i, INFINITY);
        weft_element_set(WEFT_BF16, c, i, (double)i);
    }
    for (weft_op op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++) {
        int count;
        const weft_schedule *list = weft_schedule_list(op, WEFT_LAYOUT_DEFAULT, &count);

        for (int i = 0; i < count; i++) {
            int64_t rows =
                op == WEFT_OP_GEMM_RS ? weft_part(SIDE, weft_size(group), weft_rank(group)).count : SIDE;
            int64_t cols =
                op == WEFT_OP_AG_GEMM ? weft_part(SIDE, weft_size(group), weft_rank(group)).count : SIDE;

            weft_problem_init(&p, op);
            p.schedule = list[i];
            p.layout = op == WEFT_OP_AG_GEMM   ? WEFT_LAYOUT_GATHER_A
                       : op == WEFT_OP_GEMM_RS ? WEFT_LAYOUT_SCATTER_ROWS
                                               : WEFT_LAYOUT_DEFAULT;
            if (p.schedule == WEFT_SCHEDULE_ALLGATHER_ROTATING_B ||
                p.schedule == WEFT_SCHEDULE_REDUCESCATTER_TILING_B)
                continue;
            p.m = p.n = p.k = SIDE;
            p.dtype = WEFT_BF16;
            p.alpha = 0;
            p.beta = 1;
            memset(d, 0xa5, sizeof(d));
            CHECK_INT((*(weft_status(*[])(weft_group *, const weft_problem *, const weft_operands *)){
                          weft_ag_gemm, weft_gemm_rs, weft_gemm_ar, weft_gemm_as}[op])(group, &p, &operands),
                      WEFT_OK);
            CHECK(memcmp(d, c, (size_t)(rows * cols) * 2) == 0);
            CHECK_INT(d[rows * cols], 0xa5a5);
        }
    }
}

/* Another alpha or beta is no other plan; ranks that bring different ones are told, and so is a beta without
 * a C. */
static void values_of_the_run(weft_group *group, void *argument)
{
    enum { SIDE = 6 };
    float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE], d[SIDE * SIDE], alpha = 1, beta = 0;
    weft_operands operands = {.size = sizeof(operands), .a = a, .b = b, .c = c, .d = d};
    weft_session *session;
    weft_plan *plan = NULL;
    weft_problem p;
    int plans = 0;

    (void)argument;
    for (int i = 0; i < SIDE * SIDE; i++)
        a[i] = b[i] = c[i] = 1;
    weft_problem_init(&p, WEFT_OP_GEMM_AR);
    p.m = p.n = p.k = SIDE;
    for (int i = 2; i < 8; i++) {
        p.alpha = (float)i;
        p.beta = (float)-i;
        CHECK_INT(weft_gemm_ar(group, &p, &operands), WEFT_OK);
        CHECK(d[0] == (float)(SIDE * i - i) && d[SIDE * SIDE - 1] == d[0]);
    }
    CHECK_INT(weft_session_of(group, &session), WEFT_OK);
    for (const weft_plan *at = session->cached; at; at = at->next)
        plans++;
    CHECK_INT(plans, 1);
    p.alpha = 1;
    p.beta = 0;
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    operands.alpha = &alpha;
    operands.beta = &beta;
    alpha = weft_rank(group) == 1 ? 3 : 2;
    CHECK_INT(weft_run(plan, &operands), weft_size(group) > 1 ? WEFT_ERR_MISMATCH : WEFT_OK);
    alpha = 2;
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    CHECK(d[0] == 2 * SIDE);
    beta = 1;
    CHECK_INT(weft_run(plan, &operands), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "has no C");
    beta = 0;
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    weft_plan_destroy(plan);
}

/* Plans are kept up to a number, and up to bytes: those that the ranks met for, and those that each made. */
typedef struct kept_plans {
    int count[2], large;
    size_t bytes[2];
} kept_plans;

static kept_plans count_kept(const weft_session *session)
{
    kept_plans kept = {0};

    for (const weft_plan *at = session->cached; at; at = at->next) {
        kept.count[at->alone]++;
        kept.bytes[at->alone] += at->bytes;
        kept.large += at->bytes > 1 << 20;
    }
    return kept;
}

static void kept_within_bounds(weft_group *group, void *argument)
{
    enum { MOST = 64, BYTES = 64 << 20, COLS = 640 };
    weft_session *session;
    weft_plan *plan;
    weft_problem p;
    kept_plans kept;

    (void)argument;
    CHECK_INT(weft_session_of(group, &session), WEFT_OK);
    weft_problem_init(&p, WEFT_OP_GEMM_AR);
    p.schedule = WEFT_SCHEDULE_ONE_SHOT;
    p.b_form = WEFT_B_PLAIN;
    p.n = p.k = 2;
    for (p.m = 1; p.m <= 2 * MOST + 9; p.m++)
        CHECK_INT(weft_program_cached(session, &p, &plan), WEFT_OK);
    kept = count_kept(session);
    CHECK_INT(weft_max(kept.count[false], kept.count[true]), MOST);
    p.tuning.tile_m = p.tuning.tile_n = 1;
    p.m = 500;
    for (p.n = COLS - 40; p.n <= COLS; p.n++)
        CHECK_INT(weft_program_cached(session, &p, &plan), WEFT_OK);
    kept = count_kept(session);
    for (int alone = 0; alone < 2; alone++)
        CHECK(kept.bytes[alone] <= BYTES && kept.count[alone] <= MOST);
    CHECK(weft_max(kept.bytes[false], kept.bytes[true]) > BYTES / 2 && kept.large > 4 && kept.large < 41);
}

static void every_schedule(weft_group *group, void *argument)
{
    static const weft_layout layouts[] = {
        WEFT_LAYOUT_GATHER_A,     WEFT_LAYOUT_GATHER_B,     WEFT_LAYOUT_GATHER_A_K, WEFT_LAYOUT_GATHER_B_K,
        WEFT_LAYOUT_SCATTER_ROWS, WEFT_LAYOUT_SCATTER_COLS, WEFT_LAYOUT_DEFAULT};
    int repeat = *(const int *)argument;
    void *symmetric = NULL;
    uint64_t seed = 1;

    CHECK_INT(weft_alloc(group, SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    for (weft_op op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++) {
        int first = op == WEFT_OP_AG_GEMM ? 0 : op == WEFT_OP_GEMM_RS ? 4 : 6;
        int last = op == WEFT_OP_AG_GEMM ? 3 : op == WEFT_OP_GEMM_RS ? 5 : 6;

        for (int l = first; l <= last; l++) {
            int count;
            const weft_schedule *list = weft_schedule_list(op, layouts[l], &count);

            for (int i = -1; i < count; i++)
                for (weft_dtype dtype = WEFT_F32; dtype <= WEFT_FP8_E5M2;
                     dtype += dtype == WEFT_I8 ? WEFT_FP8_E4M3 - WEFT_I8 : 1)
                    for (int r = 0; r < (dtype > WEFT_I8 ? (repeat + 2) / 3 : repeat); r++) {
                        tp_case t = make_case(op, i < 0 ? WEFT_SCHEDULE_AUTO : list[i], layouts[l], dtype,
                                              weft_size(group), seed++);

                        if (i < 0 && t.problem.b_form == WEFT_B_PREPACKED &&
                            layouts[l] == WEFT_LAYOUT_GATHER_B)
                            t.problem.schedule = WEFT_SCHEDULE_DIRECT;
                        check_case(group, &t, symmetric);
                    }
        }
    }
}

/* Kernels that take k in pairs or fours, chunks of it that are no multiple of that, and packed panels. */
static void chunks_inside_a_step(weft_group *group, void *argument)
{
    void *symmetric = NULL;
    uint64_t seed = 1;

    (void)argument;
    CHECK_INT(weft_alloc(group, SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    for (weft_dtype dtype = WEFT_F16; dtype <= WEFT_I8; dtype++)
        for (int chunk = 1; chunk <= 7; chunk += 2)
            for (int form = WEFT_B_PLAIN; form <= WEFT_B_PREPACKED; form++) {
                tp_case t = {.integers = true, .symmetric = 31, .seed = seed++};

                weft_problem_init(&t.problem, WEFT_OP_AG_GEMM);
                t.problem.schedule = WEFT_SCHEDULE_ALLGATHER_ROTATING_A;
                t.problem.dtype = dtype;
                t.problem.d_dtype = dtype == WEFT_I8 ? WEFT_I32 : WEFT_F32;
                t.problem.b_form = (weft_b_form)form;
                t.problem.m = t.problem.n = t.problem.k = 2 * chunk;
                t.problem.tuning.copiers = 1;
                t.problem.tuning.chunk_k = chunk;
                check_case(group, &t, symmetric);
            }
    weft_free(group, symmetric);
}

int main(void)
{
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    int repeat = (int)check_repeat(6, 60);

    for (size_t i = 0; i < sizeof(worlds) / sizeof(*worlds); i++)
        ranks_run(worlds[i], every_schedule, &repeat);
    for (int world = 2; world <= 3; world++)
        ranks_run(world, chunks_inside_a_step, NULL);
    for (int world = 1; world <= 3; world++)
        ranks_run(world, alpha_zero, NULL);
    for (int world = 1; world <= 3; world++)
        ranks_run(world, values_of_the_run, NULL);
    for (int world = 1; world <= 2; world++)
        ranks_run(world, kept_within_bounds, NULL);
    return check_report("test_run_tp");
}
