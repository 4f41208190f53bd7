/*
 * Collectives nobody thought of, against a plain reference, exactly: every call of weft.h that moves or
 * reduces, with any type, reduction, counts and root, in place or not, in symmetric memory on some ranks and
 * outside it on others, in one call or by a plan of any schedule. Buffers that are not symmetric lie between
 * guard pages; what is only read stays as it was.
 *
 * usage: test_fuzz_collective [seed]        runs that one call, over 1 to 5 ranks
 *        test_fuzz_collective SEED COUNT    so many, as a rank of a job (weft run -n 8 --nodes 3+5 …)
 */
#include "core/dtype.h"
#include "fuzz/job.h"
#include "support/check.h"
#include "support/guard.h"
#include "support/ranks.h"

#include <inttypes.h>
#include <stdbool.h>

enum { WORLDS = 5, MOST = 15, SYMMETRIC_BYTES = 8 << 20 };

typedef enum kind {
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    BROADCAST, /* up to here plans have them too */
    REDUCE,
    GATHER,
    SCATTER,
    ALL_GATHER_V,
    REDUCE_SCATTER_V,
    ALL_TO_ALL_V,
    MESSAGES,
    KINDS
} kind;

/* The same on every rank. */
typedef struct job {
    uint64_t seed;
    kind kind;
    weft_dtype dtype;
    weft_reduction reduction;
    int world, root;
    int64_t count;
    int schedule; /* of a plan; -1: one call */
} job;

static uint64_t pick(uint64_t *state, uint64_t count)
{
    return check_random(state) % count;
}

static int64_t pick_count(uint64_t *s)
{
    static const int64_t edges[] = {0,  1,  2,   3,   5,    7,    8,    9,    63,
                                    64, 65, 255, 257, 1023, 1024, 1025, 4095, 4097};

    return pick(s, 3) ? edges[pick(s, sizeof(edges) / sizeof(*edges))] : (int64_t)pick(s, 20000);
}

static bool reduces(kind it)
{
    return it == ALL_REDUCE || it == REDUCE_SCATTER || it == REDUCE || it == REDUCE_SCATTER_V;
}

static job make_job(uint64_t seed, int world)
{
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I8,   WEFT_I32,
                                        WEFT_I64, WEFT_F64, WEFT_U8,   WEFT_BOOL, WEFT_BYTE};
    uint64_t s = seed * 2654435761u + 12345;
    job j = {.seed = seed, .world = world, .schedule = -1};

    j.kind = (kind)pick(&s, KINDS);
    j.dtype = dtypes[pick(&s, reduces(j.kind) ? 9 : 10)];
    j.reduction = (weft_reduction)pick(&s, j.dtype <= WEFT_BF16 || j.dtype == WEFT_F64 ? 5 : 4);
    j.count = pick_count(&s);
    j.root = (int)pick(&s, (uint64_t)world);
    if (j.kind <= BROADCAST && pick(&s, 3) == 0)
        j.schedule = (int)pick(&s, 100);
    return j;
}

/* Elements that `from` has for `to`, or has at all. */
static int64_t share(const job *j, int from, int to)
{
    uint64_t s = j->seed * 77 + (uint64_t)from * 13 + (uint64_t)to * 5;

    switch (j->kind) {
    case ALL_GATHER_V:
    case REDUCE_SCATTER_V:
        s = j->seed * 77 + (uint64_t)(j->kind == ALL_GATHER_V ? from : to);
        return pick(&s, 4) ? pick_count(&s) / 4 : 0;
    case ALL_TO_ALL_V:
        return pick(&s, 4) ? pick_count(&s) / 4 : 0;
    default:
        return j->count;
    }
}

/* Small integers, so that every order is exact in every type; averages come out even. */
static double element(const job *j, int rank, int64_t index)
{
    uint64_t s = j->seed * 1000003u + (uint64_t)rank * 7919u + (uint64_t)index;
    uint64_t bits = check_random(&s);
    bool is_signed = j->dtype != WEFT_U8 && j->dtype != WEFT_BYTE;

    if (j->dtype == WEFT_BOOL)
        return (double)(bits % 2);
    if (!reduces(j->kind))
        return (double)(bits % 100);
    if (j->reduction == WEFT_PRODUCT)
        return bits % 3 == 0 && is_signed ? -1 : (double)(1 + (rank < WORLDS && bits % 2)); /* fits a byte */
    return ((double)(bits % 17) - (is_signed ? 8 : 0)) * (j->reduction == WEFT_AVERAGE ? j->world : 1);
}

static double reduced(const job *j, int64_t index)
{
    double value = element(j, 0, index);

    for (int rank = 1; rank < j->world; rank++) {
        double other = element(j, rank, index);

        value = j->reduction == WEFT_MIN       ? (other < value ? other : value)
                : j->reduction == WEFT_MAX     ? (other > value ? other : value)
                : j->reduction == WEFT_PRODUCT ? value * other
                                               : value + other;
    }
    if (j->dtype == WEFT_BOOL)
        return value != 0;
    return j->reduction == WEFT_AVERAGE ? value / j->world : value;
}

static int64_t begin_of(const job *j, int from, int to)
{
    int64_t begin = 0;

    for (int other = 0; other < to; other++)
        begin += share(j, from, other);
    return begin;
}

/* Elements this rank gives, and gets. */
static int64_t send_elements(const job *j, int rank)
{
    switch (j->kind) {
    case REDUCE_SCATTER:
    case ALL_TO_ALL:
        return j->count * j->world;
    case SCATTER:
        return rank == j->root ? j->count * j->world : 0;
    case REDUCE_SCATTER_V:
    case ALL_TO_ALL_V:
        return begin_of(j, rank, j->world);
    case ALL_GATHER_V:
        return share(j, rank, 0);
    case BROADCAST:
        return rank == j->root ? j->count : 0;
    default:
        return j->count;
    }
}

static int64_t recv_elements(const job *j, int rank)
{
    int64_t sum = 0;

    switch (j->kind) {
    case ALL_GATHER:
    case ALL_TO_ALL:
        return j->count * j->world;
    case GATHER:
        return rank == j->root ? j->count * j->world : 0;
    case REDUCE:
        return rank == j->root ? j->count : 0;
    case ALL_GATHER_V:
    case ALL_TO_ALL_V:
        for (int from = 0; from < j->world; from++)
            sum += share(j, from, rank);
        return sum;
    case REDUCE_SCATTER_V:
        return share(j, 0, rank);
    default:
        return j->count;
    }
}

/* What the rank must find in place `index` of what it got. */
static double expected(const job *j, int rank, int64_t index)
{
    int from = 0;

    switch (j->kind) {
    case ALL_REDUCE:
    case REDUCE:
        return reduced(j, index);
    case REDUCE_SCATTER:
    case REDUCE_SCATTER_V:
        return reduced(j, begin_of(j, 0, rank) + index);
    case ALL_GATHER:
    case GATHER:
        return element(j, (int)(index / j->count), index % j->count);
    case ALL_TO_ALL:
        return element(j, (int)(index / j->count), rank * j->count + index % j->count);
    case SCATTER:
        return element(j, j->root, rank * j->count + index);
    case BROADCAST:
        return element(j, j->root, index);
    case MESSAGES:
        return element(j, (rank + j->world - 1) % j->world, index);
    default:
        while (index >= share(j, from, rank))
            index -= share(j, from++, rank);
        return element(j, from, (j->kind == ALL_TO_ALL_V ? begin_of(j, from, rank) : 0) + index);
    }
}

/* ---- one rank of a call --------------------------------------------------------------------------- */

typedef struct buffers {
    guarded send_guard, recv_guard;
    char *send, *recv;
    bool in_place;
} buffers;

/* Where the rank's own share lies in the larger buffer. */
static int64_t own_begin(const job *j, int rank)
{
    int64_t begin = 0;

    if (j->kind == ALL_GATHER_V)
        for (int from = 0; from < rank; from++)
            begin += share(j, from, 0);
    else if (j->kind == REDUCE_SCATTER_V)
        begin = begin_of(j, 0, rank);
    else if (j->kind == ALL_GATHER || j->kind == REDUCE_SCATTER)
        begin = rank * j->count;
    return begin;
}

static buffers place(const job *j, int rank, char *symmetric)
{
    size_t size = weft_dtype_size(j->dtype);
    size_t send_bytes = (size_t)send_elements(j, rank) * size,
           recv_bytes = (size_t)recv_elements(j, rank) * size;
    uint64_t s = j->seed * 31 + (uint64_t)rank;
    uint64_t way = pick(&s, 4);
    bool may = j->kind == ALL_REDUCE || j->kind == ALL_GATHER || j->kind == REDUCE_SCATTER ||
               j->kind == ALL_GATHER_V || j->kind == REDUCE_SCATTER_V;
    buffers b = {.in_place = j->kind == BROADCAST || (may && pick(&s, 3) == 0)};
    size_t larger = send_bytes > recv_bytes ? send_bytes : recv_bytes;

    b.send_guard = guarded_make(b.in_place ? larger : send_bytes);
    b.recv_guard = guarded_make(b.in_place ? 0 : recv_bytes);
    b.send = way & 1 ? symmetric + pick(&s, 64) * 8 : b.send_guard.data;
    b.recv = way & 2 ? symmetric + SYMMETRIC_BYTES / 2 + pick(&s, 64) * 8 : b.recv_guard.data;
    if (b.in_place) {
        bool recv_larger = recv_bytes > send_bytes;
        char *whole = b.send;

        b.send = whole + (recv_larger ? (size_t)own_begin(j, rank) * size : 0);
        b.recv = whole + (recv_larger || recv_bytes == send_bytes ? 0 : (size_t)own_begin(j, rank) * size);
        if (j->kind == BROADCAST)
            b.send = b.recv = whole;
    }
    memset(b.recv, 0x5a, recv_bytes);
    for (int64_t i = 0; i < send_elements(j, rank); i++)
        weft_element_set(j->dtype, b.send, (size_t)i, element(j, rank, i));
    return b;
}

static weft_status by_plan(weft_group *group, const job *j, const buffers *b)
{
    static const weft_op ops[] = {WEFT_OP_ALL_REDUCE, WEFT_OP_ALL_GATHER, WEFT_OP_REDUCE_SCATTER,
                                  WEFT_OP_ALL_TO_ALL, WEFT_OP_BROADCAST};
    weft_operands operands = {.size = sizeof(operands), .send = b->send, .recv = b->recv};
    const weft_schedule *schedules;
    weft_plan *plan = NULL;
    weft_problem problem;
    weft_status status;
    int count;

    weft_problem_init(&problem, ops[j->kind]);
    schedules = weft_schedule_list(ops[j->kind], WEFT_LAYOUT_DEFAULT, &count);
    problem.dtype = j->dtype;
    problem.count = j->count;
    problem.reduction = j->reduction;
    problem.root = j->root;
    problem.schedule = schedules[j->schedule % count];
    problem.tuning.workers = 1 + (int)(j->seed % 2);
    problem.tuning.staged = (int)(j->seed / 2 % 2);
    status = weft_plan_create(group, &problem, &plan);
    if (status == WEFT_OK)
        status = weft_run(plan, &operands);
    weft_plan_destroy(plan);
    return status;
}

static weft_status exchange(weft_group *group, const job *j, const buffers *b)
{
    int rank = weft_rank(group), next = (rank + 1) % j->world, previous = (rank + j->world - 1) % j->world;
    weft_status status = WEFT_OK;

    if (j->world == 1) {
        memcpy(b->recv, b->send, (size_t)j->count * weft_dtype_size(j->dtype));
        return WEFT_OK;
    }
    if (rank == 0)
        status = weft_send(group, b->send, j->count, j->dtype, next);
    if (status == WEFT_OK)
        status = weft_recv(group, b->recv, j->count, j->dtype, previous);
    if (status == WEFT_OK && rank)
        status = weft_send(group, b->send, j->count, j->dtype, next);
    return status;
}

static weft_status call(weft_group *group, const job *j, const buffers *b)
{
    int rank = weft_rank(group);
    int64_t sent[MOST], got[MOST];

    for (int other = 0; other < j->world; other++) {
        bool gathers = j->kind == ALL_GATHER_V;

        sent[other] = gathers ? share(j, other, 0) : share(j, rank, other);
        got[other] = share(j, other, rank);
    }
    if (j->schedule >= 0)
        return by_plan(group, j, b);
    switch (j->kind) {
    case ALL_REDUCE:
        return weft_all_reduce(group, b->send, b->recv, j->count, j->dtype, j->reduction);
    case ALL_GATHER:
        return weft_all_gather(group, b->send, b->recv, j->count, j->dtype);
    case REDUCE_SCATTER:
        return weft_reduce_scatter(group, b->send, b->recv, j->count, j->dtype, j->reduction);
    case ALL_TO_ALL:
        return weft_all_to_all(group, b->send, b->recv, j->count, j->dtype);
    case BROADCAST:
        return weft_broadcast(group, b->recv, j->count, j->dtype, j->root);
    case REDUCE:
        return weft_reduce(group, b->send, b->recv, j->count, j->dtype, j->reduction, j->root);
    case GATHER:
        return weft_gather(group, b->send, b->recv, j->count, j->dtype, j->root);
    case SCATTER:
        return weft_scatter(group, b->send, b->recv, j->count, j->dtype, j->root);
    case ALL_GATHER_V:
        return weft_all_gather_v(group, b->send, b->recv, sent, j->dtype);
    case REDUCE_SCATTER_V:
        return weft_reduce_scatter_v(group, b->send, b->recv, sent, j->dtype, j->reduction);
    case ALL_TO_ALL_V:
        return weft_all_to_all_v(group, b->send, sent, b->recv, got, j->dtype);
    default:
        return exchange(group, j, b);
    }
}

static void run(weft_group *group, void *argument)
{
    const seeds *now = argument;
    int rank = weft_rank(group), world = weft_size(group);
    char *symmetric = NULL;

    CHECK_INT(weft_alloc(group, SYMMETRIC_BYTES, 0, (void **)&symmetric), WEFT_OK);
    for (long i = 0; i < now->count; i++) {
        job j = make_job(now->first + (uint64_t)i, world);
        buffers b = place(&j, rank, symmetric);
        weft_status status = call(group, &j, &b);
        int64_t wrong = 0, changed = 0;

        for (int64_t at = 0; status == WEFT_OK && at < recv_elements(&j, rank); at++)
            wrong += weft_element_get(j.dtype, b.recv, (size_t)at) != expected(&j, rank, at);
        for (int64_t at = 0; !b.in_place && at < send_elements(&j, rank); at++)
            changed += weft_element_get(j.dtype, b.send, (size_t)at) != element(&j, rank, at);
        CHECK_INT(status, WEFT_OK);
        CHECK_INT(wrong, 0);
        CHECK_INT(changed, 0);
        if (status || wrong || changed)
            fprintf(stderr,
                    "test_fuzz_collective: seed %" PRIu64
                    ", rank %d of %d: kind %d, %s, reduction %d, count %lld, "
                    "root %d, schedule %d, in place %d: %s\n",
                    j.seed, rank, world, (int)j.kind, weft_dtype_name(j.dtype), (int)j.reduction,
                    (long long)j.count, j.root, j.schedule, b.in_place, status ? weft_error(group) : "wrong");
        guarded_drop(&b.send_guard);
        guarded_drop(&b.recv_guard);
    }
    CHECK_INT(weft_free(group, symmetric), WEFT_OK);
}

int main(int argc, char **argv)
{
    const long rounds = check_repeat(15, 1000), each = 40;

    if (argc > 2) {
        run_in_job((seeds){strtoull(argv[1], NULL, 10), strtol(argv[2], NULL, 10)}, 20, MOST, run);
        return check_report("test_fuzz_collective");
    }
    if (argc > 1) {
        seeds one = {strtoull(argv[1], NULL, 10), 1};

        for (int world = 1; world <= WORLDS; world++)
            ranks_run(world, run, &one);
        return check_report("test_fuzz_collective");
    }
    for (long round = 0; round < rounds; round++) {
        seeds next = {(uint64_t)(round * each), each};

        ranks_run(1 + (int)(round % WORLDS), run, &next);
    }
    return check_report("test_fuzz_collective");
}
