/*
 * Collectives on a group of GPUs, each beside the same call on a group of CPUs: the same bits, and nothing
 * outside recv changes. Small integers, so that every order of summation is exact. Ranks are threads or
 * processes; the GPU may be a fake one.
 */
#ifndef WEFT_TESTS_CUDA_COLLECTIVE_CASES_H
#define WEFT_TESTS_CUDA_COLLECTIVE_CASES_H

#include "core/dtype.h"
#include "run/cuda/group.h"
#include "support/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

enum { COLL_BYTES = 24 << 20, COLL_GUARD = 64, COLL_LARGE = 40000 };

/* Where a rank's buffers lie: memory of the group's weft_alloc, or GPU memory that is none of it; or that on
 * one rank only. */
typedef enum coll_place { COLL_SYMMETRIC, COLL_ELSEWHERE, COLL_PLACES, COLL_MIXED = COLL_PLACES } coll_place;

typedef struct coll_rank {
    weft_group *gpu, *cpu, *solo;
    char *memory[COLL_PLACES];
    char *host, *want, *got; /* as much */
} coll_rank;

typedef struct coll_job {
    weft_op op;
    weft_schedule schedule; /* AUTO: the one-call function */
    weft_dtype dtype;
    weft_reduction reduction;
    int64_t count;
    int root, runs;
    bool in_place;
    int shift;    /* elements from an address that allows vectors */
    int64_t tile; /* 0: chosen; else chunks of so many elements, on two lanes */
    coll_place place;
    uint64_t seed;
} coll_job;

static inline bool coll_reduces(weft_op op)
{
    return op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_REDUCE_SCATTER;
}

/* Products of up to eight of them are exact in bfloat16 as well. */
static inline void coll_fill(const coll_job *j, int rank, char *buffer, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++) {
        uint64_t state = j->seed * 1000003u + (uint64_t)rank * 7919u + (uint64_t)i,
                 bits = check_random(&state);
        double value = j->reduction == WEFT_PRODUCT ? (double)(bits % 3) - 1 + (bits % 3 == 1)
                                                    : (double)(int)(bits % 17) - 8;

        if (j->dtype == WEFT_BYTE)
            buffer[i] = (char)bits;
        else
            weft_element_set(j->dtype, buffer, (size_t)i, value);
    }
}

static inline weft_status coll_call(weft_group *group, const coll_job *j, const void *send, void *recv)
{
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
        return weft_broadcast(group, weft_rank(group) == j->root ? (void *)(uintptr_t)send : recv, j->count,
                              j->dtype, j->root);
    }
}

/* By a plan when the schedule is given, all runs on the group's stream; else by calls. */
static inline weft_status coll_on_gpu(weft_group *gpu, const coll_job *j, const void *send, void *recv)
{
    weft_operands operands = {.size = sizeof(operands), .send = send, .recv = recv};
    weft_plan *plan = NULL;
    weft_problem problem;
    weft_status status = WEFT_OK;

    if (j->schedule == WEFT_SCHEDULE_AUTO) {
        for (int i = 0; i < j->runs && status == WEFT_OK; i++)
            status = coll_call(gpu, j, send, recv);
        return status;
    }
    weft_problem_init(&problem, j->op);
    problem.schedule = j->schedule;
    problem.dtype = j->dtype;
    problem.reduction = j->reduction;
    problem.count = j->count;
    problem.root = j->root;
    problem.tuning.tile_n = j->tile;
    problem.tuning.workers = j->tile ? 2 : 0;
    if (j->op == WEFT_OP_BROADCAST && weft_rank(gpu) != j->root)
        operands.send = NULL;
    status = weft_plan_create(gpu, &problem, &plan);
    for (int i = 0; i < j->runs && status == WEFT_OK; i++)
        status = weft_run_on(plan, &operands, WEFT_STREAM_OWN);
    if (status == WEFT_OK)
        status = weft_run_wait(plan, WEFT_STREAM_OWN);
    weft_plan_destroy(plan);
    return status;
}

static inline void coll_tell(const coll_rank *r, const coll_job *j, const char *what, const char *why)
{
    fprintf(stderr,
            "%s: %s: op %d schedule %d dtype %d reduction %d count %lld root %d %s shift %d place %d, rank "
            "%d of %d\n",
            what, why, (int)j->op, (int)j->schedule, (int)j->dtype, (int)j->reduction, (long long)j->count,
            j->root, j->in_place ? "in place" : "", j->shift, (int)j->place, weft_rank(r->gpu),
            weft_size(r->gpu));
}

static inline char *coll_memory(const coll_rank *r, const coll_job *j)
{
    bool odd = weft_rank(r->gpu) == (int)j->count % weft_size(r->gpu);

    return r->memory[j->place == COLL_MIXED ? (odd ? COLL_ELSEWHERE : COLL_SYMMETRIC) : j->place];
}

static inline void coll_try(const coll_rank *r, const coll_job *j)
{
    int world = weft_size(r->gpu), rank = weft_rank(r->gpu);
    bool parted = j->op == WEFT_OP_REDUCE_SCATTER || j->op == WEFT_OP_ALL_TO_ALL,
         gathers = j->op == WEFT_OP_ALL_GATHER || j->op == WEFT_OP_ALL_TO_ALL;
    int64_t size = (int64_t)weft_dtype_size(j->dtype), share = j->count * size;
    int64_t send_bytes = share * (parted ? world : 1), recv_bytes = share * (gathers ? world : 1);
    int64_t larger = send_bytes > recv_bytes ? send_bytes : recv_bytes;
    int64_t send_at = COLL_GUARD + j->shift * size,
            recv_at = j->in_place ? send_at : (send_at + larger + 2 * COLL_GUARD) / 64 * 64 + j->shift * size;
    int64_t bytes = recv_at + larger + COLL_GUARD;
    char *device = coll_memory(r, j);
    weft_status status;

    if (j->in_place && j->op == WEFT_OP_ALL_GATHER)
        send_at += rank * share; /* the rank's own share of the larger buffer */
    if (j->in_place && j->op == WEFT_OP_REDUCE_SCATTER)
        recv_at += rank * share;
    CHECK(bytes <= COLL_BYTES);
    memset(r->host, 0x5a, (size_t)bytes);
    coll_fill(j, rank, r->host + send_at, send_bytes / size);
    memcpy(r->want, r->host, (size_t)bytes);
    CHECK_INT(weft_memcpy(r->gpu, device, r->host, (size_t)bytes), WEFT_OK);
    status = coll_on_gpu(r->gpu, j, device + send_at, device + recv_at);
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK) {
        coll_tell(r, j, "gpu", weft_error(r->gpu));
        return;
    }
    CHECK_INT(weft_memcpy(r->gpu, r->got, device, (size_t)bytes), WEFT_OK);
    for (int i = 0; i < j->runs; i++)
        CHECK_INT(coll_call(r->cpu, j, r->want + send_at, r->want + recv_at), WEFT_OK);
    /* the one-call broadcast has one buffer, the root's send */
    if (j->op == WEFT_OP_BROADCAST && j->schedule != WEFT_SCHEDULE_AUTO && rank == j->root)
        memcpy(r->want + recv_at, r->want + send_at, (size_t)share);
    if (memcmp(r->got, r->want, (size_t)bytes) != 0)
        coll_tell(r, j, "gpu and cpu", "differ");
    CHECK_INT(memcmp(r->got, r->want, (size_t)bytes), 0);
}

/* One of those that the dtype has. */
static inline weft_reduction coll_reduction(weft_dtype dtype, uint64_t seed)
{
    weft_reduction reduction = (weft_reduction)(seed % 5);

    return weft_dtype_reduces(dtype, reduction) ? reduction : WEFT_SUM;
}

/* Every operation, schedule and dtype; counts around every boundary, in and out of place, aligned or not. Of
 * each count one dtype in `step`, of large ones in `large_step`: others with each schedule and number of
 * ranks. */
static inline void coll_all(const coll_rank *r, const int64_t *counts, int count_count, int step,
                            int large_step)
{
    static const weft_schedule schedules[] = {
        WEFT_SCHEDULE_AUTO, WEFT_SCHEDULE_ONE_SHOT, WEFT_SCHEDULE_TWO_SHOT,        WEFT_SCHEDULE_PULL,
        WEFT_SCHEDULE_PUSH, WEFT_SCHEDULE_PACKETS,  WEFT_SCHEDULE_TWO_SHOT_PACKETS};
    uint64_t seed = 1;

    for (weft_op op = WEFT_OP_ALL_REDUCE; op <= WEFT_OP_BROADCAST; op++)
        for (size_t s = 0; s < sizeof(schedules) / sizeof(*schedules); s++) {
            bool shots = schedules[s] == WEFT_SCHEDULE_ONE_SHOT || schedules[s] == WEFT_SCHEDULE_TWO_SHOT ||
                         schedules[s] == WEFT_SCHEDULE_TWO_SHOT_PACKETS;

            if ((shots && op != WEFT_OP_ALL_REDUCE) ||
                (op == WEFT_OP_ALL_REDUCE && schedules[s] == WEFT_SCHEDULE_PULL))
                continue;
            for (int c = 0; c < count_count; c++)
                for (weft_dtype dtype = WEFT_F32; dtype <= WEFT_FP8_E5M2; dtype++, seed++) {
                    bool left_out = ((int)dtype + (int)s + (int)op + weft_size(r->gpu)) %
                                    (counts[c] >= COLL_LARGE ? large_step : step);

                    if (left_out || (coll_reduces(op) && (dtype == WEFT_BYTE || weft_dtype_is_fp8(dtype))))
                        continue;
                    coll_job j = {.op = op,
                                  .schedule = schedules[s],
                                  .dtype = dtype,
                                  .reduction = coll_reduces(op) ? coll_reduction(dtype, seed) : WEFT_SUM,
                                  .count = counts[c],
                                  .root = (int)(seed % (uint64_t)weft_size(r->gpu)),
                                  .runs = 1 + (int)(seed % 3),
                                  .in_place = seed / 2 % 3 == 0,
                                  .shift = seed % 4 == 3 ? (int)(seed % 5) : 0,
                                  .tile = seed % 7 > 3 ? 61 + counts[c] / 40 : 0,
                                  .place = seed % 5 > 2    ? COLL_ELSEWHERE
                                           : seed % 5 == 2 ? COLL_MIXED
                                                           : COLL_SYMMETRIC,
                                  .seed = seed};

                    coll_try(r, &j);
                }
        }
}

/* The all_reduce of ranks that have GPUs to themselves, in one hop and two: every type, lines that are not
 * full, odd addresses; and so many runs back to back, each of which reads what the one before wrote. */
static inline void coll_lines(const coll_rank *r, int rounds)
{
    static const int64_t counts[] = {0, 1, 61, 4099, 9001};
    uint64_t seed = 1;

    for (int two = 0; two < 2; two++) {
        weft_schedule schedule = two ? WEFT_SCHEDULE_TWO_SHOT_PACKETS : WEFT_SCHEDULE_PACKETS;
        coll_job often = {.op = WEFT_OP_ALL_REDUCE,
                          .schedule = schedule,
                          .dtype = WEFT_I32,
                          .count = 1000,
                          .runs = rounds,
                          .in_place = true,
                          .seed = 1000};

        for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++)
            for (weft_dtype dtype = WEFT_F32; dtype <= WEFT_BOOL; dtype++, seed++) {
                coll_job j = {.op = WEFT_OP_ALL_REDUCE,
                              .schedule = schedule,
                              .dtype = dtype,
                              .reduction = coll_reduction(dtype, seed),
                              .count = counts[c],
                              .runs = 1 + (int)(seed % 3),
                              .in_place = seed / 2 % 3 == 0,
                              .shift = seed % 4 == 3 ? (int)(seed % 5) : 0,
                              .seed = seed};

                if (dtype != WEFT_BYTE)
                    coll_try(r, &j);
            }
        coll_try(r, &often);
    }
    for (weft_op op = WEFT_OP_ALL_REDUCE; op <= WEFT_OP_ALL_TO_ALL; op++)
        for (size_t c = 0; c < sizeof(counts) / sizeof(*counts) && op != WEFT_OP_BROADCAST; c++, seed++) {
            weft_dtype dtype = c % 2 ? WEFT_BF16 : WEFT_I64;
            coll_job j = {.op = op,
                          .schedule = WEFT_SCHEDULE_PACKETS,
                          .dtype = dtype,
                          .reduction = coll_reduction(dtype, seed),
                          .count = counts[c],
                          .runs = c == 2 ? rounds : 3,
                          .in_place = seed % 3 == 0,
                          .shift = seed % 4 == 3 ? (int)(seed % 5) : 0,
                          .seed = seed};

            coll_try(r, &j);
        }
}

/* all_reduce through the switch: what it reduces, of every length, at every address, out of memory that has
 * grown since; what it does not is refused, and so is what lies elsewhere on another rank. */
static inline void coll_switched(const coll_rank *r)
{
    static const int64_t counts[] = {0, 1, 17, 61, 4099, 300001};
    int own = weft_rank(r->gpu) == 1 ? 4096 : 0;
    weft_operands operands = {.size = sizeof(operands), .send = r->memory[0], .recv = r->memory[0] + own};
    void *more;
    weft_problem problem;
    weft_plan *plan;
    uint64_t seed = 1;

    weft_problem_init(&problem, WEFT_OP_ALL_REDUCE);
    problem.schedule = WEFT_SCHEDULE_MULTIMEM;
    problem.count = 100;
    CHECK_INT(weft_plan_create(r->gpu, &problem, &plan), WEFT_OK);
    CHECK_INT(weft_run_on(plan, &operands, WEFT_STREAM_OWN), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(r->gpu), "push does not");
    weft_plan_destroy(plan);
    for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++)
        for (weft_dtype dtype = WEFT_F32; dtype <= WEFT_BOOL; dtype++, seed++) {
            coll_job j = {.op = WEFT_OP_ALL_REDUCE,
                          .schedule = WEFT_SCHEDULE_MULTIMEM,
                          .dtype = dtype,
                          .reduction = coll_reduction(dtype, seed),
                          .count = counts[c],
                          .runs = 1 + (int)(seed % 3),
                          .in_place = seed / 2 % 3 == 0,
                          .shift = seed % 4 == 3 ? (int)(seed % 5) : 0,
                          .tile = seed % 7 > 3 ? 61 + counts[c] / 40 : 0,
                          .place = seed % 5 == 2 ? COLL_ELSEWHERE : COLL_SYMMETRIC,
                          .seed = seed};

            problem.dtype = dtype;
            problem.reduction = j.reduction;
            if (dtype == WEFT_BYTE)
                continue;
            if (weft_cuda_multicast_reduces(dtype, j.reduction))
                coll_try(r, &j);
            else
                CHECK_INT(weft_plan_create(r->gpu, &problem, &plan), WEFT_ERR_UNSUPPORTED);
            if (seed == 9)
                CHECK_INT(weft_alloc(r->gpu, COLL_BYTES, 0, &more), WEFT_OK);
        }
}

/*
 * One call again and again, whose buffers lie elsewhere each time: on all ranks in the same call within or
 * beyond the others' reach, there anywhere; or beyond it on one rank, while the others' are in another place,
 * too.
 */
static inline void coll_moves(const coll_rank *r, int rounds)
{
    for (int kind = 0; kind < 4 * 5; kind++)
        for (int i = 0; i < rounds; i++) {
            uint64_t shared = (uint64_t)(i * 20 + kind), own = shared + 7919u * (uint64_t)weft_rank(r->gpu);
            coll_place beyond = kind / 5 % 2 ? COLL_MIXED : COLL_ELSEWHERE;
            coll_job j = {.op = (weft_op)(WEFT_OP_ALL_REDUCE + kind % 5),
                          .dtype = WEFT_I32,
                          .count = 40009 + kind, /* too many for packets, and a plan of their own */
                          .runs = 1,
                          .place = check_random(&shared) % 3 ? beyond : COLL_SYMMETRIC,
                          .in_place = kind / 10,
                          .seed = shared};

            j.shift = j.place == COLL_ELSEWHERE ? (int)(check_random(&own) % 500) : (int)j.place;
            coll_try(r, &j);
        }
}

/* Where coll_graph has what it makes, in elements. */
enum {
    COLL_FEW = 1000,
    COLL_LOT = 50000, /* of a rank's share: too many for packets */
    COLL_MANY = 600000,
    COLL_SUMS = COLL_MANY,
    COLL_GATHERED = 2 * COLL_MANY,
    COLL_OTHERS = 3 * COLL_MANY,
    COLL_SCATTERED = 4 * COLL_MANY,
    COLL_EXCHANGED = 5 * COLL_MANY,
    COLL_SENT = 6 * COLL_MANY,
    COLL_KEPT = 7 * COLL_MANY,
    COLL_END = 8 * COLL_MANY
};

/* Calls whose results do not change when they are made again, each of which reads what one before it wrote:
 * max of everything, of a part the sums, all of those, of these the sums, an exchange of maxima, and what the
 * last rank has. */
static inline void coll_graph_calls(const coll_rank *r, char *memory)
{
    int32_t *m = (int32_t *)(void *)memory;
    int last = weft_size(r->gpu) - 1;

    CHECK_INT(weft_all_reduce(r->gpu, m, m, COLL_MANY, WEFT_I32, WEFT_MAX), WEFT_OK);
    CHECK_INT(weft_all_reduce(r->gpu, m, m + COLL_SUMS, COLL_FEW, WEFT_I32, WEFT_SUM), WEFT_OK);
    CHECK_INT(weft_all_gather(r->gpu, m + COLL_SUMS, m + COLL_GATHERED, COLL_FEW, WEFT_I32), WEFT_OK);
    CHECK_INT(
        weft_reduce_scatter(r->gpu, m + COLL_GATHERED, m + COLL_SCATTERED, COLL_FEW, WEFT_I32, WEFT_SUM),
        WEFT_OK);
    CHECK_INT(weft_all_to_all(r->gpu, m, m + COLL_EXCHANGED, COLL_LOT, WEFT_I32), WEFT_OK);
    CHECK_INT(weft_broadcast(r->gpu, m + COLL_SENT, COLL_LOT, WEFT_I32, last), WEFT_OK);
    CHECK_INT(weft_all_gather(r->gpu, m + COLL_SENT, m + COLL_KEPT, COLL_LOT, WEFT_I32), WEFT_OK);
}

/* How many elements are not what those calls make of i % 97 + rank. */
static inline int64_t coll_graph_wrong(const coll_rank *r, const int32_t *got)
{
    int world = weft_size(r->gpu), rank = weft_rank(r->gpu);
    int64_t wrong = 0;

    for (int64_t i = 0; i < COLL_MANY; i++)
        wrong += got[i] != (int32_t)(i % 97) + world - 1;
    for (int64_t i = 0; i < COLL_FEW * world; i++)
        wrong += got[COLL_GATHERED + i] != ((int32_t)(i % COLL_FEW % 97) + world - 1) * world;
    for (int64_t i = 0; i < COLL_FEW; i++)
        wrong += got[COLL_SCATTERED + i] != ((int32_t)(i % 97) + world - 1) * world * world;
    for (int64_t i = 0; i < COLL_LOT * world; i++) {
        wrong += got[COLL_EXCHANGED + i] != (int32_t)((rank * COLL_LOT + i % COLL_LOT) % 97) + world - 1;
        wrong += got[COLL_KEPT + i] != (int32_t)((COLL_SENT + i % COLL_LOT) % 97) + world - 1;
    }
    return wrong;
}

/* Every collective captured on the caller's own stream and replayed, packets and tasks; the numbers of runs
 * live on the device. */
static inline void coll_graph(const coll_rank *r, coll_place place, int replays)
{
    const weft_cuda_device *device = weft_cuda_of(r->gpu)->device;
    const weft_cuda_driver *cu = device->cu;
    char *memory = r->memory[place];
    int32_t *want = (int32_t *)r->want, *got = (int32_t *)r->got;
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;

    CHECK_INT(cu->cuCtxSetCurrent(device->context), CUDA_SUCCESS);
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(r->gpu, 1, stream), WEFT_OK);
    for (int64_t i = 0; i < COLL_END; i++)
        want[i] = (int32_t)(i % 97) + weft_rank(r->gpu);
    CHECK_INT(weft_memcpy(r->gpu, memory, want, COLL_END * sizeof(*want)), WEFT_OK);
    coll_graph_calls(r, memory);
    CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    coll_graph_calls(r, memory);
    CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
    /* what another call has meanwhile is not the graph's */
    CHECK_INT(weft_all_reduce(r->gpu, (int32_t *)(void *)memory + COLL_OTHERS,
                              (int32_t *)(void *)memory + COLL_OTHERS, COLL_MANY, WEFT_I32, WEFT_MAX),
              WEFT_OK);
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    CHECK_INT(weft_memcpy(r->gpu, memory, want, COLL_END * sizeof(*want)), WEFT_OK); /* all to be made anew */
    CHECK_INT(weft_barrier(r->gpu), WEFT_OK);
    for (int i = 0; i < replays; i++)
        CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    CHECK_INT(weft_memcpy(r->gpu, got, memory, COLL_END * sizeof(*got)), WEFT_OK);
    CHECK_INT(coll_graph_wrong(r, got), 0);
    CHECK_INT(weft_barrier(r->gpu), WEFT_OK);
    cu->cuGraphExecDestroy(replay);
    cu->cuGraphDestroy(graph);
    cu->cuStreamDestroy(stream);
}

/* Calls of all kinds back to back on a stream, without a word between the ranks: each reads what the one
 * before wrote. Then the same on the CPU. */
static inline void coll_stream(const coll_rank *r, int rounds, int64_t most)
{
    enum { BUFFERS = 3 };
    int world = weft_size(r->gpu), rank = weft_rank(r->gpu);
    int64_t room = most * world * 8;
    coll_job first = {.dtype = WEFT_I32, .seed = 99};

    CHECK(BUFFERS * room <= COLL_BYTES);
    coll_fill(&first, rank, r->host, BUFFERS * room / 4);
    memcpy(r->want, r->host, (size_t)(BUFFERS * room));
    CHECK_INT(weft_memcpy(r->gpu, r->memory[COLL_SYMMETRIC], r->host, (size_t)(BUFFERS * room)), WEFT_OK);
    for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
        char *base = on_cpu ? r->want : r->memory[COLL_SYMMETRIC];

        for (int i = 0; i < rounds; i++) {
            uint64_t shared = (uint64_t)i * 31 + 7;
            coll_job j = {.op = (weft_op)(WEFT_OP_ALL_REDUCE + check_random(&shared) % 5),
                          .dtype = WEFT_I32,
                          .reduction = (weft_reduction)(check_random(&shared) % 3),
                          .root = (int)(check_random(&shared) % (uint64_t)world)};
            int64_t few = 1 + (int64_t)(check_random(&shared) % 4) * 40, many = most - few;
            int source = (int)(check_random(&shared) % BUFFERS);
            bool whole = j.op == WEFT_OP_ALL_REDUCE || j.op == WEFT_OP_ALL_TO_ALL; /* send may be recv */
            char *from = base + source * room,
                 *to = base + (source + (int)(check_random(&shared) % 2) + !whole) % BUFFERS * room;
            weft_status status;

            j.count = check_random(&shared) % 4 ? few : many;
            if (i == 20) /* by now plans are kept; all of this rank's go on the stream */
                CHECK_INT(on_cpu ? WEFT_OK : weft_group_set_stream(r->gpu, 1, WEFT_STREAM_OWN), WEFT_OK);
            status = coll_call(on_cpu ? r->cpu : r->gpu, &j, from, j.op == WEFT_OP_BROADCAST ? from : to);
            if (status != WEFT_OK) {
                coll_tell(r, &j, on_cpu ? "cpu" : "gpu", weft_error(on_cpu ? r->cpu : r->gpu));
                CHECK_INT(status, WEFT_OK);
                return;
            }
        }
    }
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    CHECK_INT(weft_memcpy(r->gpu, r->got, r->memory[COLL_SYMMETRIC], (size_t)(BUFFERS * room)), WEFT_OK);
    CHECK_INT(memcmp(r->got, r->want, (size_t)(BUFFERS * room)), 0);
}

/* Rank 1 does not call; `argument`: of how many elements, few by packets, many by a plan's arrays. */
static inline void coll_missing_rank(weft_group *group, void *argument)
{
    int64_t count = *(int64_t *)argument;
    void *memory;

    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, (size_t)count * 4, 0, &memory), WEFT_OK);
    CHECK_INT(weft_all_reduce(group, memory, memory, count, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, weft_rank(group) == 1 ? 20 : 0.3, 20), WEFT_OK);
    if (weft_rank(group) == 1) {
        CHECK_INT(weft_barrier(group), WEFT_ERR_TIMEOUT);
    } else {
        CHECK_INT(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), WEFT_OK);
        CHECK_INT(weft_all_reduce(group, memory, memory, count, WEFT_F32, WEFT_SUM), WEFT_OK);
        CHECK_INT(weft_group_wait(group), WEFT_ERR_TIMEOUT);
    }
    CHECK_HAS(weft_error(group), "for rank 1 to enter run 2");
    CHECK_INT(weft_all_reduce(group, memory, memory, count, WEFT_F32, WEFT_SUM), WEFT_ERR_TIMEOUT);
}

/* A group on GPUs, of the same ranks one on the CPU, and a group of one for memory that is not the first's.
 */
static inline bool coll_begin_on(weft_group *group, int gpu, coll_rank *r)
{
    weft_status status;
    void *memory = NULL;

    *r = (coll_rank){.gpu = group};
    CHECK_INT(weft_group_split(group, 0, weft_rank(group), &r->cpu), WEFT_OK);
    CHECK_INT(weft_group_split(group, weft_rank(group), 0, &r->solo), WEFT_OK);
    status = weft_group_use_gpu(group, gpu);
    if (status == WEFT_OK)
        status = weft_group_use_gpu(r->solo, gpu);
    if (status == WEFT_OK)
        status = weft_alloc(group, COLL_BYTES, 0, &memory);
    r->memory[COLL_SYMMETRIC] = memory;
    if (status == WEFT_OK)
        status = weft_alloc(r->solo, COLL_BYTES, 0, &memory);
    r->memory[COLL_ELSEWHERE] = memory;
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK)
        fprintf(stderr, "rank %d: %s\n", weft_rank(group), weft_error(group));
    weft_set_deadlines(group, 20, 20);
    r->host = malloc(COLL_BYTES);
    r->want = malloc(COLL_BYTES);
    r->got = malloc(COLL_BYTES);
    return status == WEFT_OK && r->host && r->want && r->got;
}

static inline bool coll_begin(weft_group *group, coll_rank *r)
{
    return coll_begin_on(group, 0, r);
}

static inline void coll_end(coll_rank *r)
{
    CHECK_INT(weft_barrier(r->gpu), WEFT_OK);
    free(r->host);
    free(r->want);
    free(r->got);
    weft_group_free(r->solo);
    weft_group_free(r->cpu);
}

#endif
