/* Random problems of every kind, and the plans of all their ranks. See interpret.h. */
#include "interpret.h"

#include "support/check.h"

bool interpret_make(const weft_problem *problem, int world, weft_plan_part *parts)
{
    weft_error_text error = {0};

    for (int rank = 0; rank < world; rank++) {
        if (weft_plan_make(problem, world, rank, &parts[rank], &error) != WEFT_OK) {
            fprintf(stderr, "%s: %s\n", interpret_describe(problem, world), error.text);
            interpret_free(parts, rank);
            return false;
        }
    }
    return true;
}

bool interpret_make_over(const weft_problem *problem, const int32_t *domain, int world, weft_plan_part *parts)
{
    weft_error_text error = {0};

    if (weft_plan_make_all(problem, domain, world, parts, &error) == WEFT_OK)
        return true;
    fprintf(stderr, "%s: %s\n", interpret_describe(problem, world), error.text);
    return false;
}

void interpret_domains(int world, int32_t *domain, uint64_t *seed)
{
    int count = 2 + (int)(check_random(seed) % 3), blocks = (int)(check_random(seed) % 3);
    int cut = 1 + (int)(check_random(seed) % (uint64_t)(world > 1 ? world - 1 : 1));

    for (int rank = 0; rank < world; rank++)
        domain[rank] = blocks == 0   ? rank >= cut
                       : blocks == 1 ? rank * count / world
                                     : (int32_t)(check_random(seed) % (uint64_t)count);
}

void interpret_free(weft_plan_part *parts, int world)
{
    for (int rank = 0; rank < world; rank++)
        weft_plan_part_free(&parts[rank]);
}

const char *interpret_describe(const weft_problem *p, int world)
{
    static _Thread_local char text[400];

    snprintf(text, sizeof(text),
             "%s %s layout %d W=%d m=%lld n=%lld k=%lld l=%lld count=%lld tile %lldx%lldx%lld grain %lld "
             "b_form %d workers %d "
             "beta %g bias %d act %d reduction %d root %d granules %lld %lld %lld",
             weft_op_name(p->op), weft_schedule_name(p->op, p->schedule), (int)p->layout, world,
             (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->l, (long long)p->count,
             (long long)p->tuning.tile_m, (long long)p->tuning.tile_n, (long long)p->tuning.tile_k,
             (long long)p->tuning.grain_n, (int)p->b_form, p->tuning.workers, p->beta, p->bias, (int)p->act,
             (int)p->reduction, p->root, (long long)p->granule_m, (long long)p->granule_n,
             (long long)p->granule_k);
    return text;
}

static int64_t pick(uint64_t *seed, int64_t below)
{
    return (int64_t)(check_random(seed) % (uint64_t)below);
}

weft_problem interpret_random(weft_op op, weft_schedule schedule, weft_layout layout, uint64_t *seed)
{
    weft_problem p = {.size = sizeof(p), .op = op, .schedule = schedule, .layout = layout, .alpha = 1};
    int64_t most = pick(seed, 3) ? 14 : 33;

    p.m = pick(seed, most);
    p.n = pick(seed, most);
    p.k = pick(seed, most);
    p.l = 1 + (pick(seed, 4) == 0);
    p.granule_m = pick(seed, 3) ? 0 : pick(seed, 6);
    p.granule_n = pick(seed, 3) ? 0 : pick(seed, 6);
    p.granule_k = pick(seed, 3) ? 0 : pick(seed, 6);
    p.count = pick(seed, 40);
    p.reduction = (weft_reduction)pick(seed, 5);
    p.tuning.tile_m = pick(seed, 9);
    p.tuning.tile_n = pick(seed, 9);
    p.tuning.tile_k = pick(seed, 6);
    p.tuning.workers = 1 + (int)pick(seed, 4);
    p.tuning.copiers = pick(seed, 2) ? 1 + (int)pick(seed, 4) : 0;
    p.tuning.chunk_k = (int64_t)pick(seed, 4);
    p.tuning.raster = pick(seed, 4);
    p.tuning.grain_n = pick(seed, 2) ? pick(seed, 6) : 0;
    p.tuning.sums_stay = (int)pick(seed, 2);
    p.tuning.exchange = (int)pick(seed, 4);
    p.tuning.staged = (int)pick(seed, 2);
    p.alpha = (float)(1 + pick(seed, 2));
    p.beta = (float)pick(seed, 3);
    p.bias = (int)pick(seed, 2);
    p.act = pick(seed, 2) ? WEFT_ACT_RELU : WEFT_ACT_NONE;
    p.transa = (int)pick(seed, 2);
    p.transb = (int)pick(seed, 2);
    p.b_form = (weft_b_form)pick(seed, (layout == WEFT_LAYOUT_GATHER_B && schedule != WEFT_SCHEDULE_DIRECT) ||
                                               weft_layout_gathers_k(layout)
                                           ? 2
                                           : 3);
    if ((op == WEFT_OP_AG_GEMM || op == WEFT_OP_GEMM_AS) && pick(seed, 4) == 0) {
        p.act = WEFT_ACT_RELU_GATED;
        p.beta = 0;
    }
    return p;
}

bool interpret_kind_at(int index, interpret_kind *kind)
{
    static const struct {
        weft_op op;
        weft_layout layout;
    } all[] = {
        {WEFT_OP_AG_GEMM, WEFT_LAYOUT_GATHER_A},       {WEFT_OP_AG_GEMM, WEFT_LAYOUT_GATHER_B},
        {WEFT_OP_AG_GEMM, WEFT_LAYOUT_GATHER_A_K},     {WEFT_OP_AG_GEMM, WEFT_LAYOUT_GATHER_B_K},
        {WEFT_OP_GEMM_RS, WEFT_LAYOUT_SCATTER_ROWS},   {WEFT_OP_GEMM_RS, WEFT_LAYOUT_SCATTER_COLS},
        {WEFT_OP_GEMM_AR, WEFT_LAYOUT_DEFAULT},        {WEFT_OP_GEMM_AS, WEFT_LAYOUT_DEFAULT},
        {WEFT_OP_ALL_REDUCE, WEFT_LAYOUT_DEFAULT},     {WEFT_OP_ALL_GATHER, WEFT_LAYOUT_DEFAULT},
        {WEFT_OP_REDUCE_SCATTER, WEFT_LAYOUT_DEFAULT}, {WEFT_OP_ALL_TO_ALL, WEFT_LAYOUT_DEFAULT},
        {WEFT_OP_BROADCAST, WEFT_LAYOUT_DEFAULT},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        int count;
        const weft_schedule *list = weft_schedule_list(all[i].op, all[i].layout, &count);

        if (index < count) {
            *kind = (interpret_kind){all[i].op, all[i].layout, list[index]};
            return true;
        }
        index -= count;
    }
    return false;
}
