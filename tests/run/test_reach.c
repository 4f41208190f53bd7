/* Operands beyond the peers' reach are staged by the plan, whoever has them there, and results are the same
 * to the bit. */
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
    int64_t m, n, k, count;
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

int main(void)
{
    static job jobs[] = {
        {.op = WEFT_OP_ALL_REDUCE, .count = 200001, .workers = 1},
        {.op = WEFT_OP_ALL_REDUCE, .count = 200001, .workers = 2, .in_place = true},
        {.op = WEFT_OP_ALL_REDUCE, .schedule = WEFT_SCHEDULE_ONE_SHOT, .count = 70001, .workers = 2},
        {.op = WEFT_OP_ALL_GATHER, .count = 150001, .workers = 2},
        {.op = WEFT_OP_ALL_GATHER, .schedule = WEFT_SCHEDULE_PUSH, .count = 70001, .workers = 1},
        {.op = WEFT_OP_REDUCE_SCATTER, .count = 150001, .workers = 1},
        {.op = WEFT_OP_ALL_TO_ALL, .count = 150001, .workers = 2},
        {.op = WEFT_OP_BROADCAST, .count = 200001, .workers = 1},
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
    ranks_run(3, first_call, NULL);
    ranks_run(2, after_a_failure, NULL);
    return check_report("test_run_reach");
}
