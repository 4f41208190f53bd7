/*
 * What a rank that makes its plan alone must know of the others' without asking: in which roles peers touch
 * operands by address, and where messages land; that signals and scratch memory are the same on every rank,
 * so that all need more room at the same time.
 */
#include "choose/choose.h"
#include "plan/tiles.h"
#include "run/given.h"
#include "support/check.h"

#include <string.h>

enum { MOST_RANKS = 6 };

typedef struct nodes {
    int world;
    int32_t domain[MOST_RANKS];
} nodes;

static const nodes placements[] = {{2, {0, 1}},       {3, {0, 1, 2}},       {3, {0, 0, 1}},
                                   {4, {0, 1, 0, 1}}, {5, {0, 1, 2, 0, 1}}, {6, {0, 1, 2, 0, 3, 1}}};

static const weft_core *core;
static int made;

static void describe(const weft_problem *p, const nodes *at)
{
    fprintf(stderr, "%s by %s, layout %d, m %lld count %lld, %d ranks, domains", weft_op_name(p->op),
            weft_schedule_name(p->op, p->schedule), (int)p->layout, (long long)p->m, (long long)p->count,
            at->world);
    for (int rank = 0; rank < at->world; rank++)
        fprintf(stderr, " %d", at->domain[rank]);
    fprintf(stderr, "\n");
}

static bool same_memory(const weft_plan_part *one, const weft_plan_part *other)
{
    bool same = one->signal_count == other->signal_count && one->operand_count == other->operand_count;

    for (uint32_t i = 0; same && i < one->operand_count; i++) {
        const weft_operand *a = &one->operands[i], *b = &other->operands[i];

        same = a->place == b->place && a->dtype == b->dtype && a->rows == b->rows && a->cols == b->cols &&
               a->batch == b->batch;
    }
    return same;
}

/* A problem that has its tiles. */
static void check(const weft_problem *p, const nodes *at)
{
    weft_plan_part parts[MOST_RANKS];
    uint32_t touched = 0, landed = 0, known = weft_plan_touched(p, at->domain, at->world);
    uint32_t results = 1u << (p->op < WEFT_OP_ALL_REDUCE ? WEFT_ROLE_D : WEFT_ROLE_RECV);
    int failures = check_failures;
    weft_error_text error;

    if (weft_plan_make_all(p, at->domain, at->world, parts, &error) != WEFT_OK)
        return;
    made++;
    for (int rank = 0; rank < at->world; rank++) {
        weft_plan plan = {.part = parts[rank]};

        if (p->op < WEFT_OP_ALL_REDUCE)
            plan.bind = weft_core_binding(core, p->dtype, false);
        weft_given_note(&plan);
        touched |= plan.touched;
        for (uint32_t i = 0; i < plan.part.task_count; i++) {
            const weft_task *task = &plan.part.tasks[i];
            const weft_region *to = weft_task_regions(&plan.part, task);

            if (weft_task_crosses(&plan.part, task) && to->rows && to->cols &&
                plan.part.operands[to->operand].place == WEFT_PLACE_USER)
                landed |= 1u << plan.part.operands[to->operand].role;
        }
        CHECK(same_memory(&parts[0], &parts[rank]));
    }
    CHECK((touched & ~known) == 0);
    CHECK((landed & ~results) == 0);
    /* No more is moved than must be: but for a broadcast, whose root is alone in having what it sends. */
    CHECK(p->m == 1 || p->op == WEFT_OP_BROADCAST || touched == known);
    if (check_failures > failures)
        describe(p, at);
    for (int rank = 0; rank < at->world; rank++)
        weft_plan_part_free(&parts[rank]);
}

static void check_product(weft_problem p, const nodes *at)
{
    weft_gemm_steps steps = weft_gemm_steps_of(weft_core_binding(core, p.dtype, false));
    weft_error_text error;

    if (weft_problem_resolve(&p, at->world, &p, &error) != WEFT_OK)
        return;
    weft_plan_tiles(&p, at->world, &steps);
    check(&p, at);
}

static void check_products(weft_op op, const nodes *at)
{
    static const int64_t rows[] = {1, 2, 5, 40, 300};
    static const weft_layout layouts[] = {WEFT_LAYOUT_DEFAULT,      WEFT_LAYOUT_GATHER_B,
                                          WEFT_LAYOUT_GATHER_A_K,   WEFT_LAYOUT_GATHER_B_K,
                                          WEFT_LAYOUT_SCATTER_COLS, WEFT_LAYOUT_SCATTER_ROWS};

    for (size_t layout = 0; layout < sizeof(layouts) / sizeof(*layouts); layout++) {
        int count;
        const weft_schedule *list = weft_schedule_list(op, layouts[layout], &count);

        for (int variant = 0; variant < 48; variant++) {
            weft_problem p;

            weft_problem_init(&p, op);
            p.layout = layouts[layout];
            p.n = 48;
            p.k = 200;
            p.dtype = variant % 2 ? WEFT_BF16 : WEFT_F32;
            p.d_dtype = variant % 3 ? WEFT_F32 : p.dtype;
            p.wire_dtype = variant % 5 == 1 ? WEFT_BF16 : WEFT_DTYPE_DEFAULT;
            p.beta = (float)(variant / 2 % 2);
            p.bias = variant / 4 % 2;
            p.transa = variant % 3 == 1;
            p.transb = variant % 3 == 2;
            p.b_form = variant / 8 % 3 == 0   ? WEFT_B_PLAIN
                       : variant / 8 % 3 == 1 ? WEFT_B_PACK_IN_RUN
                                              : WEFT_B_PREPACKED;
            p.act = variant % 7 == 3 ? WEFT_ACT_SILU_GATED : WEFT_ACT_NONE;
            p.granule_n = variant % 11 == 5 ? 8 : 0;
            p.l = variant % 13 == 6 ? 2 : 1;
            p.tuning.staged = variant / 24;
            p.tuning.workers = 2;
            p.m = rows[variant % 5];
            for (int i = 0; i < count; i++) {
                p.schedule = list[i];
                check_product(p, at);
            }
        }
    }
}

static void check_collectives(weft_op op, const nodes *at)
{
    static const int64_t counts[] = {1, 3, 500, 20000};
    int count;
    const weft_schedule *list = weft_schedule_list(op, WEFT_LAYOUT_DEFAULT, &count);
    weft_error_text error;

    for (int variant = 0; variant < 8; variant++)
        for (int i = 0; i < count; i++) {
            weft_problem p;

            weft_problem_init(&p, op);
            p.schedule = list[i];
            p.count = counts[variant % 4];
            p.dtype = WEFT_F32;
            p.root = variant % at->world;
            p.tuning.staged = variant / 4;
            p.tuning.workers = 2;
            if (weft_problem_resolve(&p, at->world, &p, &error) != WEFT_OK)
                continue;
            if (!p.tuning.tile_n)
                p.tuning.tile_n = weft_plan_chunk(&p, at->world);
            check(&p, at);
        }
}

int main(void)
{
    weft_error_text error;

    CHECK_INT(weft_core_current(&core, &error), WEFT_OK);
    for (size_t i = 0; i < sizeof(placements) / sizeof(*placements); i++)
        for (weft_op op = WEFT_OP_AG_GEMM; op <= WEFT_OP_BROADCAST; op++) {
            if (op < WEFT_OP_ALL_REDUCE)
                check_products(op, &placements[i]);
            else
                check_collectives(op, &placements[i]);
        }
    CHECK(made > 1000);
    return check_report("test_run_touched");
}
