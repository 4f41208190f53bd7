/*
 * Collectives against a plain reference, exactly: every operation, schedule, dtype and reduction, 1 to 8
 * ranks as threads, counts around every boundary, buffers in and outside symmetric memory and in place; then
 * a long mixed sequence without barriers and with random delays.
 */
#include "core/dtype.h"
#include "run/cpu/executor.h"
#include "support/check.h"
#include "support/ranks.h"

#include <time.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SEQUENCE = 1500 }; /* instrumented code is slow */
#else
enum { SEQUENCE = 10000 };
#endif

typedef enum place { OUTSIDE, SYMMETRIC, PLACES } place;

typedef struct job {
    weft_op op;
    weft_schedule schedule; /* AUTO: the one-call function */
    weft_dtype dtype;
    weft_reduction reduction;
    int64_t count;
    int root;
    bool in_place;
    place place;
    uint64_t seed;
} job;

/* What rank `rank` sends as element `index`: small integers, so that every order of summation is exact.
 * Products of up to eight of them stay exact in bfloat16 as well. */
static double element(const job *j, int rank, int64_t index)
{
    uint64_t state = j->seed * 1000003u + (uint64_t)rank * 7919u + (uint64_t)index;
    uint64_t bits = check_random(&state);

    if (j->dtype == WEFT_BYTE || j->dtype == WEFT_I8)
        return (double)(bits % 100);
    if (j->reduction == WEFT_PRODUCT)
        return bits % 3 == 0 ? -1 : bits % 3 == 1 ? 1 : 2;
    return (double)(int)(bits % 17) - 8;
}

static int64_t send_count(const job *j, int world)
{
    bool shares = j->op == WEFT_OP_REDUCE_SCATTER || j->op == WEFT_OP_ALL_TO_ALL;

    return j->count * (shares ? world : 1);
}

static int64_t recv_count(const job *j, int world)
{
    return j->count * (j->op == WEFT_OP_ALL_GATHER || j->op == WEFT_OP_ALL_TO_ALL ? world : 1);
}

static double combine(weft_reduction reduction, double a, double b)
{
    switch (reduction) {
    case WEFT_MIN:
        return a < b ? a : b;
    case WEFT_MAX:
        return a > b ? a : b;
    case WEFT_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

static double expected(const job *j, int world, int rank, int64_t index)
{
    int64_t offset = j->op == WEFT_OP_REDUCE_SCATTER ? rank * j->count : 0;
    double value;

    switch (j->op) {
    case WEFT_OP_ALL_GATHER:
        return element(j, (int)(index / j->count), index % j->count);
    case WEFT_OP_ALL_TO_ALL:
        return element(j, (int)(index / j->count), rank * j->count + index % j->count);
    case WEFT_OP_BROADCAST:
        return element(j, j->root, index);
    default:
        value = element(j, 0, offset + index);
        for (int other = 1; other < world; other++)
            value = combine(j->reduction, value, element(j, other, offset + index));
        return value;
    }
}

static weft_status call(weft_group *group, const job *j, const void *send, void *recv)
{
    weft_operands operands = {.size = sizeof(operands), .send = send, .recv = recv};
    weft_problem problem;
    weft_plan *plan;
    weft_status status;

    if (j->schedule == WEFT_SCHEDULE_AUTO) {
        switch (j->op) {
        case WEFT_OP_ALL_REDUCE:
            return weft_all_reduce(group, send, recv, j->count, j->dtype, j->reduction);
        case WEFT_OP_ALL_GATHER:
            return weft_all_gather(group, send, recv, j->count, j->dtype);
        case WEFT_OP_REDUCE_SCATTER:
            return weft_reduce_scatter(group, send, recv, j->count, j->dtype, j->reduction);
        case WEFT_OP_ALL_TO_ALL:
            return weft_all_to_all(group, send, recv, j->count, j->dtype);
        default:
            return weft_broadcast(group, recv, j->count, j->dtype, j->root);
        }
    }
    weft_problem_init(&problem, j->op);
    problem.schedule = j->schedule;
    problem.dtype = j->dtype;
    problem.reduction = j->reduction;
    problem.count = j->count;
    problem.root = j->root;
    problem.tuning.workers = j->seed % 5 == 0 ? 2 : 1;
    problem.tuning.tile_n = j->seed % 3 == 0 ? 7 : 0;
    status = weft_plan_create(group, &problem, &plan);
    if (status != WEFT_OK)
        return status;
    status = weft_run(plan, &operands);
    weft_plan_destroy(plan);
    return status;
}

/* One collective with fresh data, poisoned output and guard bytes; every element checked. */
static void check_job(weft_group *group, const job *j, char *memory)
{
    int world = weft_size(group), rank = weft_rank(group);
    size_t size = weft_dtype_size(j->dtype);
    int64_t sends = send_count(j, world), recvs = recv_count(j, world);
    char *send = memory, *recv = memory + 64 + (size_t)sends * size;
    int wrong = 0;
    weft_status status;

    recv += -(uintptr_t)recv % 8;
    if (j->in_place) {
        recv = memory;
        if (j->op == WEFT_OP_ALL_GATHER)
            send = recv + (size_t)(rank * j->count) * size;
        if (j->op == WEFT_OP_REDUCE_SCATTER)
            recv = send + (size_t)(rank * j->count) * size;
    } else {
        memset(recv, 0xa5, (size_t)recvs * size + 8);
    }
    if (j->op == WEFT_OP_BROADCAST && j->schedule == WEFT_SCHEDULE_AUTO)
        send = recv;
    if (j->op != WEFT_OP_BROADCAST || rank == j->root)
        for (int64_t i = 0; i < sends; i++)
            weft_element_set(j->dtype, send, (size_t)i, element(j, rank, i));
    status = call(group, j, send, recv);
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_error(group));
        return;
    }
    for (int64_t i = 0; i < recvs; i++)
        wrong += weft_element_get(j->dtype, recv, (size_t)i) != expected(j, world, rank, i);
    if (!j->in_place)
        for (int i = 0; i < 8; i++)
            wrong += (unsigned char)recv[(size_t)recvs * size + (size_t)i] != 0xa5;
    CHECK_INT(wrong, 0);
    if (wrong)
        fprintf(stderr, "op %d schedule %d dtype %d reduction %d count %lld ranks %d rank %d %s%s\n",
                (int)j->op, (int)j->schedule, (int)j->dtype, (int)j->reduction, (long long)j->count, world,
                rank, j->place == SYMMETRIC ? "symmetric" : "outside", j->in_place ? " in place" : "");
}

typedef struct memories {
    char *of[PLACES];
} memories;

enum { MEMORY_BYTES = 8 << 20 };

static memories take_memory(weft_group *group)
{
    void *symmetric = NULL;
    memories m;

    m.of[OUTSIDE] = malloc(MEMORY_BYTES);
    CHECK_INT(weft_alloc(group, MEMORY_BYTES, 0, &symmetric), WEFT_OK);
    m.of[SYMMETRIC] = symmetric;
    return m;
}

static void every_kind(weft_group *group, void *argument)
{
    static const weft_schedule schedules[] = {
        WEFT_SCHEDULE_AUTO, WEFT_SCHEDULE_ONE_SHOT, WEFT_SCHEDULE_TWO_SHOT, WEFT_SCHEDULE_MULTIMEM,
        WEFT_SCHEDULE_PULL, WEFT_SCHEDULE_PUSH,     WEFT_SCHEDULE_PACKETS,  WEFT_SCHEDULE_TWO_SHOT_PACKETS};
    static const int64_t counts[] = {0, 1, 2, 3, 5, 8, 61, 1000, 4099};
    memories m = take_memory(group);
    uint64_t seed = 1;

    (void)argument;
    for (weft_op op = WEFT_OP_ALL_REDUCE; op <= WEFT_OP_BROADCAST; op++) {
        bool reduces = op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_REDUCE_SCATTER;

        for (size_t s = 0; s < sizeof(schedules) / sizeof(*schedules); s++) {
            int known, found = schedules[s] == WEFT_SCHEDULE_AUTO;
            const weft_schedule *list = weft_schedule_list(op, WEFT_LAYOUT_DEFAULT, &known);

            for (int i = 0; i < known; i++)
                found |= list[i] == schedules[s];
            if (!found)
                continue;
            for (weft_dtype dtype = WEFT_F32; dtype <= WEFT_BYTE; dtype++) {
                if (reduces && (dtype == WEFT_I8 || dtype == WEFT_BYTE))
                    continue;
                for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++, seed++) {
                    job j = {.op = op,
                             .schedule = schedules[s],
                             .dtype = dtype,
                             .reduction = reduces ? (weft_reduction)(seed % 4) : WEFT_SUM,
                             .count = counts[c],
                             .root = (int)(seed % (uint64_t)weft_size(group)),
                             .in_place = seed / 2 % 3 == 0,
                             .place = (place)(seed % 2),
                             .seed = seed};

                    check_job(group, &j, m.of[j.place]);
                }
            }
        }
    }
    free(m.of[OUTSIDE]);
}

static void nap(uint64_t *state)
{
    if (check_random(state) % 8 == 0) {
        struct timespec time = {0, (long)(check_random(state) % 100000)};

        nanosleep(&time, NULL);
    }
}

/* Without barriers, kinds and sizes mixed, random delays between calls. */
static void long_sequence(weft_group *group, void *argument)
{
    long rounds = *(long *)argument;
    memories m = take_memory(group);
    uint64_t mine = (uint64_t)weft_rank(group) + 99;

    for (long round = 0; round < rounds; round++) {
        uint64_t shared = (uint64_t)round * 77 + 5;
        job j = {.op = (weft_op)(WEFT_OP_ALL_REDUCE + check_random(&shared) % 5),
                 .dtype = (weft_dtype)(check_random(&shared) % 3),
                 .reduction = (weft_reduction)(check_random(&shared) % 3),
                 .count = (int64_t)(check_random(&shared) % (check_random(&shared) % 4 ? 300 : 6000)),
                 .root = (int)(check_random(&shared) % (uint64_t)weft_size(group)),
                 .seed = (uint64_t)round};

        j.in_place = check_random(&shared) % 3 == 0;
        j.place = (place)(check_random(&shared) % 2);
        if (check_random(&shared) % 3 == 0)
            j.count = 1 + j.count % 3 * 700; /* often a plan that is kept */
        nap(&mine);
        check_job(group, &j, m.of[j.place]);
    }
    free(m.of[OUTSIDE]);
}

/* Sums that are received some elements before or behind where their rank has what it sends. */
static void overlap(weft_group *group, int64_t count, int shift, bool scatters)
{
    int rank = weft_rank(group), world = weft_size(group), before = abs(shift);
    float *memory = malloc((size_t)(world * count + 2 * before) * sizeof(float));
    float *send = memory + before, *recv = send + (scatters ? rank * count : 0) + shift;
    long wrong = 0;

    for (int64_t i = 0; i < world * count; i++)
        send[i] = (float)(10 * i + rank);
    if (scatters)
        CHECK_INT(weft_reduce_scatter(group, send, recv, count, WEFT_F32, WEFT_SUM), WEFT_OK);
    else
        CHECK_INT(weft_all_reduce(group, send, recv, count, WEFT_F32, WEFT_SUM), WEFT_OK);
    for (int64_t i = 0; i < count; i++) {
        int64_t from = i + (scatters ? rank * count : 0);

        wrong += recv[i] != (float)(10 * from * world + world * (world - 1) / 2);
    }
    CHECK_INT(wrong, 0);
    free(memory);
}

static void overlapping(weft_group *group, void *argument)
{
    (void)argument;
    for (int shift = -24; shift <= 24; shift++)
        for (int scatters = 0; scatters < 2; scatters++) {
            overlap(group, 20, shift, scatters);
            if (shift % 6 == 0 || abs(shift) == 1)
                overlap(group, 3000, 11 * shift, scatters);
        }
}

static void disagreement(weft_group *group, void *argument)
{
    memories m = take_memory(group);
    int rank = weft_rank(group), world = weft_size(group);
    job j = {.op = WEFT_OP_ALL_REDUCE, .count = 3000, .seed = 3};
    float *buffer = (float *)m.of[SYMMETRIC];

    (void)argument;
    /* Different sizes: both small, both planned, and one of each. */
    for (int round = 0; round < 6; round++) {
        int64_t count = round % 3 == 0   ? 10 + (rank == 1)
                        : round % 3 == 1 ? 2000 + (rank == 1)
                        : rank == 1      ? 2
                                         : 5000;

        CHECK_INT(weft_all_reduce(group, buffer, buffer, count, WEFT_F32, WEFT_SUM), WEFT_ERR_MISMATCH);
        CHECK_HAS(weft_error(group), "different things");
        check_job(group, &j, m.of[OUTSIDE]);
    }
    /* A rejected argument on one rank, in a small collective, in a planned one, and by the entry point. */
    for (int round = 0; round < 6; round++) {
        bool bad = rank == world - 1;
        int64_t count = round % 3 == 0 ? 10 : 4000;
        const void *send = bad && round % 3 != 2 ? NULL : buffer;
        weft_dtype dtype = bad && round % 3 == 2 ? WEFT_BYTE : WEFT_F32;

        CHECK_INT(weft_all_reduce(group, send, buffer, count, dtype, WEFT_SUM),
                  bad ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
        if (!bad)
            CHECK_HAS(weft_error(group), "rejected its arguments for a run of all_reduce");
        check_job(group, &j, m.of[SYMMETRIC]);
    }
    free(m.of[OUTSIDE]);
}

static void sleep_sometimes(int rank, uint32_t task)
{
    static _Atomic uint64_t calls;
    uint64_t state = ++calls + (uint64_t)rank * 31 + task;

    nap(&state);
}

int main(void)
{
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    long rounds = check_repeat(SEQUENCE, 100000);

    for (size_t i = 0; i < sizeof(worlds) / sizeof(*worlds); i++)
        ranks_run(worlds[i], every_kind, NULL);
    ranks_run(1, overlapping, NULL);
    ranks_run(2, overlapping, NULL);
    ranks_run(4, overlapping, NULL);
    ranks_run(2, disagreement, NULL);
    ranks_run(4, disagreement, NULL);
    ranks_run(2, long_sequence, &rounds);
    weft_run_before_task = sleep_sometimes;
    rounds /= 3;
    ranks_run(3, long_sequence, &rounds);
    ranks_run(5, long_sequence, &rounds);
    return check_report("test_run_collective");
}
