/* Operands beyond the peers' reach are staged by the plan, whoever has them there, and results are the same
 * to the bit. */
#include "run/cpu/executor.h"
#include "run/program.h"
#include "support/check.h"
#include "support/ranks.h"

#include <string.h>

enum { ROUNDS = 6 };

/* Which ranks have symmetric memory in a round: all, none twice, one of them, all again twice. */
static bool has_symmetric(int round, int rank)
{
    return round == 0 || round > 3 || (round == 3 && rank == 1);
}

typedef struct job {
    weft_op op;
    weft_schedule schedule;
    weft_layout layout;
    int64_t m, n, k, count, tile;
    bool in_place;
    int workers;
} job;

static int64_t in_elements(const job *j, int ranks)
{
    bool own_rows = j->op == WEFT_OP_REDUCE_SCATTER || j->op == WEFT_OP_ALL_TO_ALL;

    return j->count ? j->count * (own_rows ? ranks : 1) : j->k * (j->m > j->n ? j->m : j->n);
}

static int64_t out_elements(const job *j, int ranks)
{
    bool all_rows = j->op == WEFT_OP_ALL_GATHER || j->op == WEFT_OP_ALL_TO_ALL;

    return j->count ? j->count * (all_rows ? ranks : 1) : j->m * j->n;
}

/* Small integers: sums are exact, whatever their order. */
static void fill(float *to, int64_t count, int rank, int round)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = (float)((i * 7 + rank * 3 + round) % 5 - 2);
}

static weft_status run(const job *j, weft_plan *plan, const float *in, const float *b, float *out)
{
    weft_operands operands = {.size = sizeof(operands)};

    if (j->count) {
        operands.send = in;
        operands.recv = out;
    } else {
        operands.a = j->layout == WEFT_LAYOUT_GATHER_B ? b : in;
        operands.b = j->layout == WEFT_LAYOUT_GATHER_B ? in : b;
        operands.d = out;
    }
    return weft_run(plan, &operands);
}

static void rounds(weft_group *group, void *argument)
{
    const job *j = argument;
    int ranks = weft_size(group), rank = weft_rank(group);
    int64_t in_count = in_elements(j, ranks), out_count = out_elements(j, ranks);
    size_t out_bytes = (size_t)out_count * sizeof(float);
    float *shared_in, *shared_out, *in = malloc((size_t)in_count * sizeof(float)),
                                   *b = calloc((size_t)(j->k * j->n + 1), sizeof(*b)),
                                   *out = malloc(out_bytes), *expected = malloc(out_bytes);
    weft_problem problem;
    void *memory[2];
    weft_plan *plan;

    for (int i = 0; i < 2; i++)
        CHECK_INT(weft_alloc(group, (size_t)(i ? out_count : in_count) * sizeof(float), 0, &memory[i]),
                  WEFT_OK);
    shared_in = memory[0];
    shared_out = memory[1];
    fill(b, j->k * j->n, rank + 1, 0);
    weft_problem_init(&problem, j->op);
    problem.schedule = j->schedule;
    problem.layout = j->layout;
    problem.m = j->m;
    problem.n = j->n;
    problem.k = j->k;
    problem.count = j->count;
    problem.tuning.workers = j->workers;
    problem.tuning.tile_n = j->tile;
    CHECK_INT(weft_plan_create(group, &problem, &plan), WEFT_OK);
    CHECK(plan->reached != 0);
    for (int round = 0; round < ROUNDS; round++) {
        bool symmetric = has_symmetric(round, rank);
        float *from = symmetric ? shared_in : in, *to = symmetric ? shared_out : out;

        /* What symmetric memory gives on all ranks, in a run of its own. */
        fill(shared_in, in_count, rank, round);
        memset(shared_out, 0xff, out_bytes);
        CHECK_INT(run(j, plan, shared_in, b, shared_out), WEFT_OK);
        CHECK(!plan->staged || plan->session->reach[j->op] == WEFT_REACH_ALL);
        memcpy(expected, shared_out, out_bytes);
        for (int again = 0; again < 2;
             again++) { /* the first is a surprise where it differs, the second not */
            if (j->in_place)
                from = to;
            fill(from, in_count, rank, round);
            if (!j->in_place)
                memset(to, 0xff, out_bytes);
            CHECK_INT(run(j, plan, from, b, to), WEFT_OK);
            CHECK_INT(memcmp(to, expected, out_bytes), 0);
        }
        CHECK_INT(plan->session->reach[j->op], round == 0 || round > 3 ? WEFT_REACH_ALL : WEFT_REACH_BEYOND);
        CHECK_INT(plan->staged != NULL, round > 0);
    }
    free(expected);
    weft_plan_destroy(plan);
    for (int i = 0; i < 2; i++)
        CHECK_INT(weft_free(group, memory[i]), WEFT_OK);
    free(in);
    free(b);
    free(out);
}

/* The first call of a kind already stages, also where only one rank has to; a new size does without more. */
static void first_call(weft_group *group, void *argument)
{
    enum { COUNT = 1 << 16 };
    int rank = weft_rank(group), ranks = weft_size(group);
    float *own = malloc((COUNT + 64) * sizeof(*own)), *buffer;
    void *memory;

    (void)argument;
    CHECK_INT(weft_alloc(group, (COUNT + 64) * sizeof(float), 0, &memory), WEFT_OK);
    buffer = rank == 0 ? own : memory;
    for (int64_t count = COUNT; count < COUNT + 3; count++) {
        const weft_session *session;

        for (int64_t i = 0; i < count; i++)
            buffer[i] = (float)(i % 3 + rank);
        CHECK_INT(weft_all_reduce(group, buffer, buffer, count, WEFT_F32, WEFT_SUM), WEFT_OK);
        for (int64_t i = 0; i < count; i += 97)
            CHECK(buffer[i] == (float)(i % 3 * ranks + ranks * (ranks - 1) / 2));
        session = group->session;
        CHECK(session->cached->staged != NULL);
    }
    CHECK_INT(weft_free(group, memory), WEFT_OK);
    free(own);
}

/* After a call that failed nothing is known any more, on any rank. */
static void after_a_failure(weft_group *group, void *argument)
{
    enum { COUNT = 1 << 16 };
    static float zeros[COUNT];
    float *out = malloc(COUNT * sizeof(*out));

    (void)argument;
    CHECK_INT(weft_all_reduce(group, zeros, out, COUNT, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK(weft_all_reduce(group, zeros, out, weft_rank(group) ? COUNT : COUNT - 1, WEFT_F32, WEFT_SUM) !=
          WEFT_OK);
    CHECK_INT(((const weft_session *)group->session)->reach[WEFT_OP_ALL_REDUCE], WEFT_REACH_UNKNOWN);
    CHECK_INT(weft_all_reduce(group, zeros, out, COUNT, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK(weft_all_reduce(group, weft_rank(group) ? zeros : NULL, out, COUNT, WEFT_F32, WEFT_SUM) != WEFT_OK);
    CHECK_INT(weft_all_reduce(group, zeros, out, COUNT, WEFT_F32, WEFT_SUM), WEFT_OK);
    free(out);
}

static weft_status collective(weft_group *group, const job *j, const float *in, float *out)
{
    switch (j->op) {
    case WEFT_OP_ALL_REDUCE:
        return weft_all_reduce(group, in, out, j->count, WEFT_F32, WEFT_SUM);
    case WEFT_OP_ALL_GATHER:
        return weft_all_gather(group, in, out, j->count, WEFT_F32);
    case WEFT_OP_REDUCE_SCATTER:
        return weft_reduce_scatter(group, in, out, j->count, WEFT_F32, WEFT_SUM);
    case WEFT_OP_ALL_TO_ALL:
        return weft_all_to_all(group, in, out, j->count, WEFT_F32);
    default:
        return weft_broadcast(group, out, j->count, WEFT_F32, 1);
    }
}

/* Element i of the result on `rank`. */
static float expected_at(const job *j, int ranks, int rank, int round, int64_t i)
{
    int64_t from = i / j->count, at = i % j->count;
    float value, sum = 0;

    if (j->op == WEFT_OP_BROADCAST)
        from = 1;
    if (j->op == WEFT_OP_ALL_TO_ALL || j->op == WEFT_OP_REDUCE_SCATTER)
        at += rank * j->count;
    for (int r = 0; r < ranks; r++) {
        value = (float)((at * 7 + r * 3 + round) % 5 - 2);
        if (j->op == WEFT_OP_ALL_REDUCE || j->op == WEFT_OP_REDUCE_SCATTER)
            sum += value;
        else if (r == from)
            return value;
    }
    return sum;
}

/* Collectives that fit a slot need no plan where peers could not read operands in place: from the second call
 * on, and as long as one rank has them there. */
static void without_a_plan(weft_group *group, void *argument)
{
    const job *j = argument;
    int ranks = weft_size(group), rank = weft_rank(group);
    int64_t in_count = in_elements(j, ranks), out_count = out_elements(j, ranks);
    void *shared[2];
    float *own[2] = {malloc((size_t)in_count * sizeof(float)), malloc((size_t)out_count * sizeof(float))};

    for (int i = 0; i < 2; i++)
        CHECK_INT(weft_alloc(group, (size_t)(i ? out_count : in_count) * sizeof(float), 0, &shared[i]),
                  WEFT_OK);
    for (int round = 0; round < 2 * ROUNDS; round++) {
        bool symmetric = has_symmetric(round / 2, rank), beyond = round / 2 > 0 && round / 2 <= 3;
        float *in = symmetric ? shared[0] : own[0], *out = symmetric ? shared[1] : own[1];
        uint64_t before = group->device ? ((weft_executor *)group->device)->small_count : 0;
        const weft_session *session;

        if (j->op == WEFT_OP_BROADCAST)
            beyond = round / 2 == 1 || round / 2 == 2; /* only where the root has it matters */
        if (j->in_place || j->op == WEFT_OP_BROADCAST)
            in = out;
        fill(in, in_count, rank, round);
        CHECK_INT(collective(group, j, in, out), WEFT_OK);
        for (int64_t i = 0; i < out_count; i++)
            CHECK(out[i] == expected_at(j, ranks, rank, round, i));
        session = group->session;
        CHECK_INT(session->reach[j->op], beyond ? WEFT_REACH_BEYOND : WEFT_REACH_ALL);
        if (round % 2)
            CHECK_INT(((weft_executor *)group->device)->small_count - before, beyond);
    }
    for (int i = 0; i < 2; i++) {
        CHECK_INT(weft_free(group, shared[i]), WEFT_OK);
        free(own[i]);
    }
}

int main(void)
{
    static job small[] = {
        {.op = WEFT_OP_ALL_REDUCE, .count = 10001},
        {.op = WEFT_OP_ALL_REDUCE, .count = 1500, .in_place = true},
        {.op = WEFT_OP_ALL_GATHER, .count = 16384},
        {.op = WEFT_OP_REDUCE_SCATTER, .count = 5461},
        {.op = WEFT_OP_ALL_TO_ALL, .count = 3000},
        {.op = WEFT_OP_BROADCAST, .count = 16000},
    };
    static job jobs[] = {
        {.op = WEFT_OP_ALL_REDUCE, .count = 200001, .workers = 1},
        {.op = WEFT_OP_ALL_REDUCE, .count = 200001, .workers = 2, .in_place = true},
        {.op = WEFT_OP_ALL_REDUCE, .schedule = WEFT_SCHEDULE_ONE_SHOT, .count = 70001, .workers = 2},
        {.op = WEFT_OP_ALL_GATHER, .count = 150001, .workers = 2},
        {.op = WEFT_OP_ALL_GATHER, .schedule = WEFT_SCHEDULE_PUSH, .count = 70001, .workers = 1},
        {.op = WEFT_OP_REDUCE_SCATTER, .count = 150001, .workers = 1},
        {.op = WEFT_OP_ALL_TO_ALL, .count = 150001, .workers = 2},
        {.op = WEFT_OP_BROADCAST, .count = 200001, .workers = 1},
        /* Several times round in what they are staged in. */
        {.op = WEFT_OP_ALL_REDUCE, .count = 200001, .tile = 3000, .workers = 2, .in_place = true},
        {.op = WEFT_OP_ALL_REDUCE, .count = 200001, .tile = 3000, .workers = 1},
        {.op = WEFT_OP_ALL_GATHER, .count = 150001, .tile = 3000, .workers = 1},
        {.op = WEFT_OP_REDUCE_SCATTER, .count = 150001, .tile = 3000, .workers = 2},
        {.op = WEFT_OP_ALL_TO_ALL, .count = 150001, .tile = 3000, .workers = 1},
        {.op = WEFT_OP_ALL_TO_ALL, .count = 150001, .tile = 3000, .workers = 2, .in_place = true},
        {.op = WEFT_OP_BROADCAST, .count = 200001, .tile = 3000, .workers = 2},
        {.op = WEFT_OP_AG_GEMM, .m = 600, .n = 24, .k = 400, .workers = 1},
        {.op = WEFT_OP_AG_GEMM, .layout = WEFT_LAYOUT_GATHER_B, .m = 24, .n = 600, .k = 400, .workers = 2},
        {.op = WEFT_OP_AG_GEMM, .layout = WEFT_LAYOUT_GATHER_A_K, .m = 400, .n = 24, .k = 600, .workers = 2},
        {.op = WEFT_OP_GEMM_AS, .m = 300, .n = 400, .k = 16, .workers = 2},
        {.op = WEFT_OP_GEMM_AR,
         .schedule = WEFT_SCHEDULE_TWO_SHOT,
         .m = 300,
         .n = 400,
         .k = 32,
         .workers = 2},
        {.op = WEFT_OP_GEMM_AR, .schedule = WEFT_SCHEDULE_UNFUSED, .m = 300, .n = 400, .k = 32, .workers = 1},
    };

    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++)
        ranks_run(2 + (int)(i % 2), rounds, &jobs[i]);
    for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++)
        for (int ranks = 2; ranks <= 3; ranks++)
            ranks_run(ranks, without_a_plan, &small[i]);
    ranks_run(3, first_call, NULL);
    ranks_run(2, after_a_failure, NULL);
    return check_report("test_run_reach");
}
