/*
 * Plans and collectives over several nodes, exactly: every collective and product, its schedules, types and
 * sizes, again and again without a barrier between; and what comes of ranks that ask for different things or
 * die. With an argument it is one rank of a job that somebody else started (hosts.sh): `well` does the same,
 * `skew` runs many operations with random pauses, `loop` runs until an error, which it prints with the time.
 */
#include <sched.h>
#include <time.h>

#include "core/dtype.h"
#include "group/group.h"
#include "run/tp_case.h"
#include "support/nodes.h"
#include "symm/symm.h"

static const char *placement;

static double element(int rank, int64_t i, int round)
{
    return (double)((rank * 7 + i * 3 + round) % 13) - 6;
}

/* ---- collectives ---------------------------------------------------------------------------------- */

static int64_t shares(weft_op op, bool send, int world)
{
    if (op == WEFT_OP_REDUCE_SCATTER)
        return send ? world : 1;
    if (op == WEFT_OP_ALL_GATHER)
        return send ? 1 : world;
    return op == WEFT_OP_ALL_TO_ALL ? world : 1;
}

static double reduced(const weft_problem *p, double sum, int world)
{
    return p->reduction == WEFT_AVERAGE ? (double)((float)sum / (float)world) : sum;
}

static double expected(const weft_problem *p, int world, int rank, int64_t i, int round)
{
    int64_t count = p->count, block = count ? i / count : 0, at = count ? i % count : 0;
    double sum = 0;

    switch (p->op) {
    case WEFT_OP_ALL_REDUCE:
        for (int source = 0; source < world; source++)
            sum += element(source, i, round);
        return reduced(p, sum, world);
    case WEFT_OP_REDUCE_SCATTER:
        for (int source = 0; source < world; source++)
            sum += element(source, rank * count + i, round);
        return reduced(p, sum, world);
    case WEFT_OP_ALL_GATHER:
        return element((int)block, at, round);
    case WEFT_OP_ALL_TO_ALL:
        return element((int)block, rank * count + at, round);
    default:
        return element(p->root, i, round);
    }
}

/* `in_place`: SEND and RECV are the same memory, the smaller of them this rank's share of the larger. */
static void check_collective(weft_group *group, const weft_problem *p, bool symmetric, bool in_place)
{
    int world = weft_size(group), rank = weft_rank(group);
    int64_t sent = p->count * shares(p->op, true, world), got = p->count * shares(p->op, false, world);
    size_t size = weft_dtype_size(p->dtype), bytes = (size_t)(sent + got + 2) * size;
    char *memory = NULL;
    weft_plan *plan = NULL;
    weft_operands operands = {.size = sizeof(operands)};
    int64_t wrong = 0;

    if (symmetric)
        CHECK_INT(weft_alloc(group, bytes, 0, (void **)&memory), WEFT_OK);
    else
        memory = malloc(bytes);
    operands.send = memory + (in_place && sent < got ? (size_t)(rank * p->count) * size : 0);
    operands.recv = memory + (!in_place ? (size_t)sent : sent > got ? (size_t)(rank * p->count) : 0) * size;
    CHECK_INT(weft_plan_create(group, p, &plan), WEFT_OK);
    if (!plan)
        fprintf(stderr, "rank %d: op %d schedule %d: %s\n", rank, (int)p->op, (int)p->schedule,
                weft_error(group));
    for (int round = 0; plan && round < 4; round++) {
        memset(operands.recv, 0xa5, (size_t)got * size);
        for (int64_t i = 0; i < sent; i++)
            weft_element_set(p->dtype, (void *)(uintptr_t)operands.send, (size_t)i, element(rank, i, round));
        CHECK_INT(weft_run(plan, &operands), WEFT_OK);
        for (int64_t i = 0; i < got; i++)
            wrong +=
                weft_element_get(p->dtype, operands.recv, (size_t)i) != expected(p, world, rank, i, round);
    }
    if (wrong)
        fprintf(stderr, "rank %d of %s: op %d schedule %d count %lld dtype %d symmetric %d%s\n", rank,
                placement, (int)p->op, (int)p->schedule, (long long)p->count, (int)p->dtype, symmetric,
                in_place ? " in place" : "");
    CHECK_INT(wrong, 0);
    weft_plan_destroy(plan);
    if (symmetric)
        CHECK_INT(weft_free(group, memory), WEFT_OK);
    else
        free(memory);
}

enum { ONCE_IN_TWO, NEVER }; /* whether operands are in symmetric memory */

static void check_collectives(weft_group *group, int symmetric)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
    } kinds[] = {
        {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_ONE_SHOT},  {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_TWO_SHOT},
        {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_MULTIMEM},  {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_AUTO},
        {WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_PULL},      {WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_PUSH},
        {WEFT_OP_REDUCE_SCATTER, WEFT_SCHEDULE_PULL},  {WEFT_OP_REDUCE_SCATTER, WEFT_SCHEDULE_PUSH},
        {WEFT_OP_ALL_TO_ALL, WEFT_SCHEDULE_PULL},      {WEFT_OP_ALL_TO_ALL, WEFT_SCHEDULE_PUSH},
        {WEFT_OP_BROADCAST, WEFT_SCHEDULE_PULL},       {WEFT_OP_BROADCAST, WEFT_SCHEDULE_PUSH},
        {WEFT_OP_BROADCAST, WEFT_SCHEDULE_AUTO},       {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_TWO_LEVEL},
        {WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_TWO_LEVEL}, {WEFT_OP_REDUCE_SCATTER, WEFT_SCHEDULE_TWO_LEVEL},
        {WEFT_OP_ALL_TO_ALL, WEFT_SCHEDULE_TWO_LEVEL}, {WEFT_OP_BROADCAST, WEFT_SCHEDULE_TWO_LEVEL},
    };
    static const int64_t counts[] = {0, 5, 1000, 150000};
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_I32, WEFT_BF16};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        for (int j = 0; j < 4; j++) {
            weft_problem p;

            weft_problem_init(&p, kinds[i].op);
            p.schedule = kinds[i].schedule;
            p.count = counts[j];
            p.dtype = dtypes[(i + (size_t)j) % 3];
            p.root = (int)(i + (size_t)j) % weft_size(group);
            if (p.dtype == WEFT_F32 && shares(p.op, false, 2) == 1 && p.op != WEFT_OP_BROADCAST)
                p.reduction = WEFT_AVERAGE;
            check_collective(group, &p, symmetric == ONCE_IN_TWO && (i + (size_t)j) % 2, false);
            if (symmetric == ONCE_IN_TWO && j == 2 + (int)(i % 2) && p.op != WEFT_OP_ALL_TO_ALL)
                check_collective(group, &p, i / 2 % 2, true);
        }
}

/* Element `i` of what a rank gets from `source` in a call. */
static double received(weft_op op, int world, int rank, int source, int64_t count, int64_t i, int round)
{
    double sum = 0;

    if (op == WEFT_OP_ALL_TO_ALL)
        return element(source, rank * count + i, round);
    if (op == WEFT_OP_ALL_GATHER || op == WEFT_OP_BROADCAST)
        return element(source, i, round);
    for (int other = 0; other < world; other++)
        sum += element(other, op == WEFT_OP_REDUCE_SCATTER ? rank * count + i : i, round);
    return sum;
}

/* `in_place`: of the larger of both, SEND and RECV are the rank's share or all of it. */
static int64_t check_call(weft_group *group, weft_op op, int64_t count, int round, bool in_place, float *send,
                          float *recv)
{
    int world = weft_size(group), rank = weft_rank(group), root = round % world;
    int shares = op == WEFT_OP_ALL_GATHER || op == WEFT_OP_ALL_TO_ALL ? world : 1;
    int64_t wrong = 0;

    if (in_place && op == WEFT_OP_REDUCE_SCATTER)
        recv = send + rank * count;
    else if (in_place)
        send = recv + (op == WEFT_OP_ALL_GATHER ? rank * count : 0);
    memset(recv, 0xee, (size_t)(count * shares) * sizeof(*recv));
    for (int64_t i = 0; i < count * (op == WEFT_OP_ALL_GATHER ? 1 : world); i++)
        send[i] = (float)element(rank, i, round);
    if (op == WEFT_OP_BROADCAST && rank == root)
        memcpy(recv, send, (size_t)count * sizeof(*recv));
    CHECK_INT(op == WEFT_OP_ALL_REDUCE ? weft_all_reduce(group, send, recv, count, WEFT_F32, WEFT_SUM)
              : op == WEFT_OP_REDUCE_SCATTER
                  ? weft_reduce_scatter(group, send, recv, count, WEFT_F32, WEFT_SUM)
              : op == WEFT_OP_ALL_GATHER ? weft_all_gather(group, send, recv, count, WEFT_F32)
              : op == WEFT_OP_ALL_TO_ALL ? weft_all_to_all(group, send, recv, count, WEFT_F32)
                                         : weft_broadcast(group, recv, count, WEFT_F32, root),
              WEFT_OK);
    for (int share = 0; share < shares; share++)
        for (int64_t i = 0; i < count; i++)
            wrong += recv[share * count + i] !=
                     received(op, world, rank, shares > 1 ? share : root, count, i, round);
    return wrong;
}

/* The calls without a plan: small ones have a path of their own, also where they are just small enough. */
static void check_calls(weft_group *group)
{
    enum { MOST = 5000 };
    static const int64_t counts[] = {16, 1, 1000, 4096, 1024, 700, MOST, 2000};
    float *send = malloc(sizeof(float) * MOST * 8), *recv = malloc(sizeof(float) * MOST * 8);
    int64_t wrong = 0;

    for (int round = 0; round < 80; round++)
        wrong += check_call(group, (weft_op)(WEFT_OP_ALL_REDUCE + round % 5), counts[round / 5 % 8], round,
                            round >= 40, send, recv);
    CHECK_INT(wrong, 0);
    free(send);
    free(recv);
}

/* What rank `from` has for rank `to` in an exchange with counts. */
static int64_t share(int from, int to, int64_t scale)
{
    return (from + 2 * to) % 3 * scale;
}

static int64_t sum_of_ranks(int world, int64_t i, int round)
{
    int64_t sum = 0;

    for (int source = 0; source < world; source++)
        sum += (int64_t)element(source, i, round);
    return sum;
}

/* Counts that differ, and none; a root; more than goes through at once. */
static void check_counted(weft_group *group)
{
    static const int64_t scales[] = {1, 700, 90000};
    int world = weft_size(group), rank = weft_rank(group), root = world - 1;
    int64_t counts[16], there[16], here[16], wrong = 0;

    for (int round = 0; round < 3; round++) {
        int64_t scale = scales[round], total = 0, mine, first = 0, at;
        int32_t *send, *recv;

        for (int peer = 0; peer < world; peer++) {
            first = peer == rank ? total : first;
            total += counts[peer] = (peer * 3 + 1) % 4 * scale;
            there[peer] = share(rank, peer, scale);
            here[peer] = share(peer, rank, scale);
        }
        mine = counts[rank];
        send = calloc((size_t)(3 * world * scale + total + 1), sizeof(*send));
        recv = calloc((size_t)(3 * world * scale + total + 1), sizeof(*recv));
        for (int64_t i = 0; i < 3 * world * scale + total; i++)
            send[i] = (int32_t)element(rank, i, round);
        CHECK_INT(weft_all_gather_v(group, send, recv, counts, WEFT_I32), WEFT_OK);
        at = 0;
        for (int peer = 0; peer < world; peer++)
            for (int64_t i = 0; i < counts[peer]; i++)
                wrong += recv[at++] != (int32_t)element(peer, i, round);
        CHECK_INT(weft_reduce_scatter_v(group, send, recv, counts, WEFT_I32, WEFT_SUM), WEFT_OK);
        for (int64_t i = 0; i < mine; i++)
            wrong += recv[i] != sum_of_ranks(world, first + i, round);
        CHECK_INT(weft_all_to_all_v(group, send, there, recv, here, WEFT_I32), WEFT_OK);
        at = 0;
        for (int peer = 0; peer < world; peer++) {
            int64_t begin = 0;

            for (int before = 0; before < rank; before++)
                begin += share(peer, before, scale);
            for (int64_t i = 0; i < here[peer]; i++)
                wrong += recv[at++] != (int32_t)element(peer, begin + i, round);
        }
        CHECK_INT(weft_gather(group, send, recv, scale, WEFT_I32, root), WEFT_OK);
        for (int64_t i = 0; rank == root && i < world * scale; i++)
            wrong += recv[i] != (int32_t)element((int)(i / scale), i % scale, round);
        CHECK_INT(weft_scatter(group, send, recv, scale, WEFT_I32, root), WEFT_OK);
        for (int64_t i = 0; i < scale; i++)
            wrong += recv[i] != (int32_t)element(root, rank * scale + i, round);
        CHECK_INT(weft_reduce(group, send, recv, scale, WEFT_I32, WEFT_SUM, root), WEFT_OK);
        for (int64_t i = 0; rank == root && i < scale; i++)
            wrong += recv[i] != sum_of_ranks(world, i, round);
        free(send);
        free(recv);
    }
    CHECK_INT(wrong, 0);
}

/* ---- products ------------------------------------------------------------------------------------- */

static void check_product(weft_group *group, const tp_case *t)
{
    int world = weft_size(group), rank = weft_rank(group);
    tp_instance s[TP_OPERANDS];
    weft_operands operands;
    weft_problem planned = tp_planned(t);
    weft_plan *plan = NULL;
    int64_t wrong = 0;

    tp_place(t, world, rank, NULL, s);
    for (int which = 0; which < TP_OPERANDS; which++)
        tp_fill(t, which, &s[which]);
    operands = tp_operands(s);
    CHECK_INT(weft_plan_create(group, &planned, &plan), WEFT_OK);
    for (int round = 0; plan && round < 3; round++) {
        tp_fill(t, TP_D, &s[TP_D]);
        CHECK_INT(weft_run(plan, &operands), WEFT_OK);
        wrong += tp_wrong(t, world, &s[TP_D]);
    }
    if (wrong || !plan) {
        fprintf(stderr, "%s\n", plan ? "" : weft_error(group));
        tp_print(t, world, rank);
    }
    CHECK_INT(wrong, 0);
    weft_plan_destroy(plan);
    tp_release(s);
}

static void check_products(weft_group *group)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
    } kinds[] = {
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_B},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_UNFUSED},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_AUTO},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_B},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_DIRECT},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_UNFUSED},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_AUTO},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_ONE_SHOT},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_AUTO},
        {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER},
        {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_UNFUSED},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_TWO_LEVEL},
        {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_TWO_LEVEL},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_LEVEL},
        {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_TWO_LEVEL},
        {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_AUTO},
    };
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_I8};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        for (int shape = 0; shape < 2; shape++) {
            tp_case t = {.seed = 11 + i, .integers = true, .slack = shape};
            weft_problem *p = &t.problem;

            weft_problem_init(p, kinds[i].op);
            p->schedule = kinds[i].schedule;
            p->dtype = dtypes[(i + (size_t)shape) % 3];
            p->d_dtype = p->dtype == WEFT_I8 ? WEFT_I32 : WEFT_F32;
            p->m = shape ? 67 : 13;
            p->n = shape ? 130 : 7;
            p->k = shape ? 96 : 31;
            p->l = 1;
            p->transa = shape && i % 2;
            p->transb = i % 3 == 0;
            p->bias = (int)i % 2;
            p->beta = p->dtype == WEFT_I8 ? 0 : (float)(i % 2);
            p->layout = shape && p->schedule == WEFT_SCHEDULE_TWO_LEVEL && p->op == WEFT_OP_AG_GEMM
                            ? WEFT_LAYOUT_GATHER_B
                        : shape && p->schedule == WEFT_SCHEDULE_TWO_LEVEL && p->op == WEFT_OP_GEMM_RS
                            ? WEFT_LAYOUT_SCATTER_COLS
                            : p->layout;
            p->tuning.tile_m = shape ? 16 : 0;
            p->tuning.tile_n = shape ? 32 : 0;
            check_product(group, &t);
        }
}

/* Operands of nobody's reach that are large enough are staged by the plan: none is copied as a whole. */
static void check_staged(weft_group *group)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
        int64_t m, n, k;
    } kinds[] = {
        {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_AUTO, 0, 0, 0},
        {WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_AUTO, 0, 0, 0},
        {WEFT_OP_REDUCE_SCATTER, WEFT_SCHEDULE_AUTO, 0, 0, 0},
        {WEFT_OP_ALL_TO_ALL, WEFT_SCHEDULE_AUTO, 0, 0, 0},
        {WEFT_OP_ALL_TO_ALL, WEFT_SCHEDULE_TWO_LEVEL, 0, 0, 0},
        {WEFT_OP_BROADCAST, WEFT_SCHEDULE_AUTO, 0, 0, 0},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_AUTO, 84, 8, 1100},
        {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 84, 8, 1100},
        {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_AUTO, 270, 260, 10},
        {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_AUTO, 270, 260, 10},
    };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        tp_case t = {.seed = 5 + i, .integers = true};
        weft_problem *p = &t.problem;

        weft_problem_init(p, kinds[i].op);
        p->schedule = kinds[i].schedule;
        /* each rank's own rows are large enough */
        p->m = p->op == WEFT_OP_AG_GEMM ? kinds[i].m * weft_size(group) - 1 : kinds[i].m;
        p->n = kinds[i].n;
        p->k = kinds[i].k;
        p->l = 1;
        p->d_dtype = WEFT_F32;
        if (kinds[i].op < WEFT_OP_ALL_REDUCE) {
            check_product(group, &t);
        } else {
            p->count = 70001;
            p->root = weft_size(group) - 1;
            p->tuning.tile_n = 9000;
            check_collective(group, p, false, false);
            if (p->op == WEFT_OP_ALL_REDUCE)
                check_collective(group, p, false, true);
        }
        CHECK_INT(weft_symm_own_size(group), 0);
    }
}

static void be_well(int rank, void *argument)
{
    weft_group *group = NULL, *sub = NULL;

    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    if (!group) {
        fprintf(stderr, "rank %d: %s\n", rank, weft_error(NULL));
        return;
    }
    rank = weft_rank(group);
    check_staged(group);
    check_calls(group);
    check_counted(group);
    check_collectives(group, ONCE_IN_TWO);
    check_products(group);
    /* Sub-groups: one across the nodes, one that may be inside one. */
    CHECK_INT(weft_group_split(group, rank % 2, 0, &sub), WEFT_OK);
    check_calls(sub);
    weft_group_free(sub);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

/* In place nothing is copied before, but where a rank adds to what may still be on its way to another. */
static void check_in_place(weft_group *group)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
    } kinds[] = {
        {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_PUSH},          {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_TWO_SHOT},
        {WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_PUSH},          {WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_TWO_LEVEL},
        {WEFT_OP_REDUCE_SCATTER, WEFT_SCHEDULE_TWO_LEVEL}, {WEFT_OP_BROADCAST, WEFT_SCHEDULE_TWO_LEVEL},
        {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_ONE_SHOT},
    };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        weft_problem p;

        weft_problem_init(&p, kinds[i].op);
        p.schedule = kinds[i].schedule;
        p.count = 300000;
        check_collective(group, &p, false, true);
        CHECK_INT(weft_symm_own_size(group) > 0, kinds[i].schedule == WEFT_SCHEDULE_ONE_SHOT);
    }
}

/* Ranks that are each alone on their nodes: nothing is shared inside one. What others send lands in place,
 * wherever that is. */
static void be_alone(int rank, void *argument)
{
    weft_group *group = NULL;

    (void)rank;
    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    if (group) {
        check_collectives(group, NEVER);
        CHECK_INT(weft_symm_own_size(group), 0);
        check_in_place(group);
        check_products(group);
        check_calls(group);
        group->alone = true; /* as if each had a core to itself */
        check_calls(group);
    }
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

/* Ranks that share one core: nodes send through one of them. Then as if each had its own. */
static void be_crowded(int rank, void *argument)
{
    weft_group *group = NULL;
    cpu_set_t allowed, one;
    int cpu = 0;

    (void)rank;
    (void)argument;
    CHECK_INT(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    while (!CPU_ISSET(cpu, &allowed))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK_INT(sched_setaffinity(0, sizeof(one), &one), 0);
    CHECK_INT(weft_init(&group), WEFT_OK);
    if (group) {
        check_calls(group);
        group->alone = true;
        check_calls(group);
    }
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

/* ---- errors --------------------------------------------------------------------------------------- */

/* Ranks that ask for different things hear of it, and the group goes on; then one dies in the middle of runs.
 */
static void be_bad(int rank, void *argument)
{
    enum { COUNT = 200000 };
    int bad = *(const int *)argument;
    weft_group *group = NULL;
    float *send = calloc(COUNT, sizeof(*send)), *recv = calloc(COUNT, sizeof(*recv));
    weft_status status = WEFT_OK;
    char sentence[24];
    int written = 0;

    CHECK_INT(weft_init(&group), WEFT_OK);
    if (!group)
        return;
    for (int i = 0; i < 3; i++) {
        CHECK_INT(weft_all_reduce(group, send, recv, rank == bad ? COUNT - 1 : COUNT, WEFT_F32, WEFT_SUM),
                  WEFT_ERR_MISMATCH);
        CHECK_INT(weft_all_reduce(group, send, recv, COUNT, WEFT_F32, WEFT_SUM), WEFT_OK);
        /* Of small ones: two that differ; one beside a large one, whichever the others are in. */
        CHECK_INT(weft_all_reduce(group, send, recv, rank == bad ? 7 : 8, WEFT_F32, WEFT_SUM),
                  WEFT_ERR_MISMATCH);
        CHECK_HAS(weft_error(group), "7 elements");
        CHECK_INT(weft_all_reduce(group, send, recv, rank == bad ? COUNT : 8, WEFT_F32, WEFT_SUM),
                  WEFT_ERR_MISMATCH);
        CHECK_INT(weft_all_reduce(group, send, recv, rank == bad ? 8 : COUNT, WEFT_F32, WEFT_SUM),
                  WEFT_ERR_MISMATCH);
        CHECK_HAS(weft_error(group), "8 elements");
        /* One that goes straight beside one that goes through a node. */
        CHECK_INT(weft_all_reduce(group, send, recv, rank == bad ? 8 : 400, WEFT_F32, WEFT_SUM),
                  WEFT_ERR_MISMATCH);
        CHECK_INT(weft_all_reduce(group, send, recv, rank == bad ? 400 : 8, WEFT_F32, WEFT_SUM),
                  WEFT_ERR_MISMATCH);
        CHECK_INT(weft_all_reduce(group, send, recv, 8, WEFT_F32, WEFT_SUM), WEFT_OK);
    }
    for (int i = 0; status == WEFT_OK && i < 100000; i++) {
        if (rank == bad && i == 5)
            kill(getpid(), SIGKILL);
        status = weft_all_reduce(group, send, recv, COUNT, WEFT_F32, WEFT_SUM);
    }
    CHECK_INT(status, WEFT_ERR_PEER_DIED);
    snprintf(sentence, sizeof(sentence), "rank %d (process", bad);
    CHECK_HAS(weft_error(group), sentence);
    /* What others had sent comes to nobody's memory any more. */
    memset(recv, 0x77, COUNT * sizeof(*recv));
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    for (int i = 0; i < COUNT; i++)
        written += memcmp(&recv[i], "wwww", sizeof(*recv)) != 0;
    CHECK_INT(written, 0);
    CHECK_INT(weft_finalize(group), WEFT_OK);
    free(send);
    free(recv);
}

/* ---- as a rank of somebody's job ------------------------------------------------------------------ */

/* Collectives and products in an order that all ranks draw alike, each rank pausing when it likes. */
static void be_skewed(long operations)
{
    weft_group *group = NULL;
    uint64_t shared = 1, own = (uint64_t)getpid();

    CHECK_INT(weft_init(&group), WEFT_OK);
    for (long i = 0; group && i < operations && !check_failures; i++) {
        weft_op op = (weft_op)(check_random(&shared) % (WEFT_OP_BROADCAST + 1));
        int count;
        const weft_schedule *list = weft_schedule_list(op, WEFT_LAYOUT_DEFAULT, &count);

        if (check_random(&own) % 16 == 0)
            usleep((useconds_t)(check_random(&own) % 2000));
        if (op <= WEFT_OP_GEMM_AS) {
            tp_case t = {.seed = (uint64_t)i, .integers = true};

            weft_problem_init(&t.problem, op);
            t.problem.d_dtype = WEFT_F32;
            t.problem.schedule = list[check_random(&shared) % (uint64_t)count];
            t.problem.m = 1 + (int64_t)(check_random(&shared) % 40);
            t.problem.n = 1 + (int64_t)(check_random(&shared) % 40);
            t.problem.k = 1 + (int64_t)(check_random(&shared) % 40);
            t.problem.l = 1;
            check_product(group, &t);
        } else {
            weft_problem p;

            weft_problem_init(&p, op);
            do
                p.schedule = list[check_random(&shared) % (uint64_t)count];
            while (p.schedule == WEFT_SCHEDULE_PACKETS || p.schedule == WEFT_SCHEDULE_TWO_SHOT_PACKETS);
            p.count = (int64_t)(check_random(&shared) % 5000);
            p.root = (int)(check_random(&shared) % (uint64_t)weft_size(group));
            check_collective(group, &p, check_random(&shared) % 2,
                             p.op != WEFT_OP_ALL_TO_ALL && check_random(&shared) % 2);
        }
    }
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

static int be_looping(void)
{
    enum { COUNT = 20000 };
    static float send[COUNT], recv[COUNT];
    weft_group *group = NULL;
    weft_status status = weft_init(&group);

    for (long i = 0; status == WEFT_OK; i++) {
        status = weft_all_reduce(group, send, recv, COUNT, WEFT_F32, WEFT_SUM);
        if (i == 20)
            nodes_say_running(group);
    }
    nodes_say_end(group);
    weft_finalize(group);
    return 3;
}

int main(int argc, char **argv)
{
    static const char *const placements[] = {"aabb", "abcab"}, *const lone[] = {"ab", "abc"};

    if (argc > 1) {
        placement = "hosts";
        if (strcmp(argv[1], "loop") == 0)
            return be_looping();
        if (strcmp(argv[1], "skew") == 0)
            be_skewed(argc > 2 ? atol(argv[2]) : 100);
        else
            be_well(0, NULL);
        return check_report("test_nodes_run");
    }
    if (!nodes_possible("test_nodes_run"))
        return NODES_SKIPPED;
    for (int i = 0; i < 2; i++) {
        placement = placements[i];
        nodes_run(placement, be_well, NULL);
    }
    for (int i = 0; i < 2; i++) {
        placement = lone[i];
        nodes_run(placement, be_alone, NULL);
    }
    placement = "abcadb";
    nodes_run(placement, be_crowded, NULL);
    /* The last of a node; the first of one, which hears of far ranks for the others there; one alone. */
    placement = "abab";
    nodes_lose(placement, 3, be_bad);
    nodes_lose(placement, 1, be_bad);
    placement = "abc";
    nodes_lose(placement, 2, be_bad);
    return check_report("test_nodes_run");
}
