/* Timing plans side by side. See tune.h. */
#include "tune/tune.h"

#include "core/clock.h"
#include "core/dtype.h"
#include "core/round.h"
#include "group/group.h"
#include "group/sync.h"
#include "run/backend.h"

#include <weft/weft.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_ROUNDS = 5, MOST_ROUNDS = 400, OPERANDS = 5, LAUNCHES = 4, PIECE = 1 << 16 };

typedef struct trial {
    tune_try *tries; /* rank 0, or the rank of a launcher, says there how they went */
    int count;
    double seconds;
    bool cuda;
} trial;

typedef struct member {
    const trial *t;
    weft_group *group;
    pthread_t thread;
    weft_plan *plans[TUNE_MOST_TRIES];
    void *memory[OPERANDS];
    size_t bytes[OPERANDS];
    weft_operands operands;
    double *samples; /* [try][round]: this rank's, in the end the slowest rank's */
    int rounds;
    uint64_t machine;
    weft_status status;
} member;

/* Bytes of the largest rank's a, b, c, bias and d; or send and receive. */
static void operand_bytes(const weft_problem *p, int ranks, size_t bytes[OPERANDS])
{
    size_t element = weft_dtype_size(p->dtype), sum = weft_dtype_size(p->d_dtype);
    bool inner = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;
    int64_t l = p->l > 1 ? p->l : 1, m = p->m, n = p->n, k = p->k, d;

    memset(bytes, 0, OPERANDS * sizeof(*bytes));
    if (p->op >= WEFT_OP_ALL_REDUCE) {
        bool spread = p->op == WEFT_OP_REDUCE_SCATTER || p->op == WEFT_OP_ALL_TO_ALL;
        bool gathered = p->op == WEFT_OP_ALL_GATHER || p->op == WEFT_OP_ALL_TO_ALL;

        bytes[0] = (size_t)(p->count * (spread ? ranks : 1)) * element;
        bytes[1] = (size_t)(p->count * (gathered ? ranks : 1)) * element;
        return;
    }
    /* Whole where a rank holds a part of it, whichever that is: an upper bound that needs no case for each
     * layout. */
    if (inner)
        k = weft_divide_up(k, ranks);
    d = m * n;
    if (p->op == WEFT_OP_AG_GEMM || p->op == WEFT_OP_GEMM_RS)
        d = p->layout == WEFT_LAYOUT_GATHER_B || p->layout == WEFT_LAYOUT_SCATTER_ROWS ||
                    (p->op == WEFT_OP_GEMM_RS && p->layout == WEFT_LAYOUT_DEFAULT)
                ? weft_divide_up(m, ranks) * n
                : m * weft_divide_up(n, ranks);
    bytes[0] = (size_t)(l * (p->op == WEFT_OP_AG_GEMM ? weft_divide_up(m, ranks) : m) * k) * element;
    bytes[1] = (size_t)(l * k * (inner ? n : weft_divide_up(n, ranks))) * element;
    bytes[2] = p->beta != 0 ? (size_t)(l * d) * sum : 0;
    bytes[3] = p->bias ? (size_t)(l * n) * sum : 0;
    bytes[4] = (size_t)(l * d) * sum;
}

/* On a GPU, numbers that are none are as fast as zeros, and those are faster than what people have. */
static weft_status fill(member *me, int operand, weft_dtype dtype)
{
    size_t element = weft_dtype_size(dtype);
    weft_status status = WEFT_OK;
    uint64_t random = 1;
    char piece[PIECE];

    for (size_t i = 0; i < PIECE / element; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        weft_element_set(dtype, piece, i, (double)(random >> 40) * 0x1p-23 - 1);
    }
    for (size_t at = 0; at < me->bytes[operand] && status == WEFT_OK; at += PIECE) {
        size_t left = me->bytes[operand] - at;

        status = weft_memcpy(me->group, (char *)me->memory[operand] + at, piece, left < PIECE ? left : PIECE);
    }
    return status;
}

static weft_status make_operands(member *me, const weft_problem *p)
{
    bool product = p->op < WEFT_OP_ALL_REDUCE;
    weft_status status = WEFT_OK;

    operand_bytes(p, me->group->size, me->bytes);
    for (int i = 0; i < OPERANDS && status == WEFT_OK; i++) {
        if (!me->bytes[i])
            continue;
        status = weft_alloc(me->group, me->bytes[i], 4096, &me->memory[i]);
        if (status == WEFT_OK)
            status = fill(me, i, product && i >= 2 ? p->d_dtype : p->dtype);
    }
    me->operands = (weft_operands){.size = sizeof(weft_operands)};
    if (product) {
        me->operands.a = me->memory[0];
        me->operands.b = me->memory[1];
        me->operands.c = me->memory[2];
        me->operands.bias = me->memory[3];
        me->operands.d = me->memory[4];
    } else {
        me->operands.send = me->memory[0];
        me->operands.recv = me->memory[1];
    }
    return status;
}

/* One rank's turn at one try: its inputs anew, then all together. Runs of a GPU follow each other, as they do
 * in programs. */
static weft_status run_once(member *me, int index, int round)
{
    int launches = me->t->cuda ? LAUNCHES : 1;
    weft_status status;
    int64_t start;

    if (!me->t->cuda)
        memset(me->memory[0], round & 1, me->bytes[0]);
    status = weft_barrier(me->group);
    start = weft_clock_ns();
    for (int i = 0; i < launches && status == WEFT_OK; i++)
        status = weft_run_on(me->plans[index], &me->operands, WEFT_STREAM_OWN);
    if (status == WEFT_OK)
        status = weft_run_wait(me->plans[index], WEFT_STREAM_OWN);
    if (round > 0) /* the first one warms up */
        me->samples[index * MOST_ROUNDS + round - 1] = (double)(weft_clock_ns() - start) * 1e-3 / launches;
    return status;
}

/* Rounds, until rank 0 says that it is enough. */
static weft_status run_rounds(member *me)
{
    int64_t begin = weft_clock_ns();
    weft_status status = WEFT_OK;
    int32_t over = 0;

    for (int round = 0; status == WEFT_OK && !over; round++) {
        for (int i = 0; i < me->t->count && status == WEFT_OK; i++)
            if (me->plans[i]) /* on all ranks, or on none */
                status = run_once(me, i, round);
        me->rounds = round;
        over = round == MOST_ROUNDS ||
               (round >= LEAST_ROUNDS && (double)(weft_clock_ns() - begin) > me->t->seconds * 1e9);
        if (status == WEFT_OK)
            status = weft_group_broadcast(me->group, 0, &over, sizeof(over));
    }
    return status;
}

/* A try takes as long as its slowest rank. */
static weft_status take_slowest(member *me)
{
    size_t count = (size_t)me->t->count * MOST_ROUNDS;
    double *theirs = malloc(count * sizeof(double)), *slowest = calloc(count, sizeof(double));
    weft_status status = WEFT_OK;

    if (!theirs || !slowest)
        status = weft_group_poison(me->group, WEFT_ERR_MEMORY, "rank %d has no memory for %zu times",
                                   me->group->rank, count);
    for (int rank = 0; rank < me->group->size && status == WEFT_OK; rank++) {
        memcpy(theirs, me->samples, count * sizeof(double));
        status = weft_group_broadcast(me->group, rank, theirs, count * sizeof(double));
        for (size_t i = 0; i < count && status == WEFT_OK; i++)
            slowest[i] = fmax(slowest[i], theirs[i]);
    }
    if (status == WEFT_OK)
        memcpy(me->samples, slowest, count * sizeof(double));
    free(theirs);
    free(slowest);
    return status;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void say_how_they_went(member *me)
{
    for (int i = 0; i < me->t->count; i++) {
        tune_try *tried = &me->t->tries[i];
        double *samples = &me->samples[i * MOST_ROUNDS];

        tried->us = INFINITY;
        if (!me->plans[i])
            continue;
        qsort(samples, (size_t)me->rounds, sizeof(double), by_size);
        tried->problem = *weft_plan_problem(me->plans[i]);
        tried->us = samples[me->rounds / 4];
    }
}

static weft_status time_tries(member *me, bool speaks)
{
    weft_status status = make_operands(me, &me->t->tries[0].problem);

    me->machine = weft_backend_of(me->group)->tuned_as(me->group);
    me->samples = calloc((size_t)me->t->count * MOST_ROUNDS, sizeof(double));
    if (!me->samples)
        status =
            weft_group_poison(me->group, WEFT_ERR_MEMORY, "rank %d has no memory for times", me->group->rank);
    for (int i = 0; i < me->t->count && status == WEFT_OK; i++)
        if (weft_plan_create(me->group, &me->t->tries[i].problem, &me->plans[i]) != WEFT_OK)
            me->plans[i] = NULL;
    if (status == WEFT_OK)
        status = run_rounds(me);
    if (status == WEFT_OK)
        status = take_slowest(me);
    if (status == WEFT_OK && speaks)
        say_how_they_went(me);
    for (int i = 0; i < me->t->count; i++)
        if (me->plans[i])
            weft_plan_destroy(me->plans[i]);
    for (int i = 0; i < OPERANDS; i++)
        if (me->memory[i])
            weft_free(me->group, me->memory[i]);
    free(me->samples);
    return status;
}

static void *serve(void *arg)
{
    member *me = arg;

    me->status = me->t->cuda ? weft_group_use_gpu(me->group, -1) : WEFT_OK;
    if (me->status == WEFT_OK)
        me->status = time_tries(me, me->group->rank == 0);
    if (me->status == WEFT_OK)
        me->status = weft_barrier(me->group);
    return NULL;
}

/* What a failed rank says; every one says the same where the group is lost. */
static weft_status outcome(const member *members, int count, weft_error_text *error)
{
    for (int r = 0; r < count; r++)
        if (members[r].status != WEFT_OK)
            return weft_error_set(error, members[r].status, "%s", weft_error(members[r].group));
    return WEFT_OK;
}

static weft_status measure_threads(const trial *t, tune_place *place, weft_error_text *error)
{
    member *members = calloc((size_t)place->ranks, sizeof(*members));
    weft_group **groups = calloc((size_t)place->ranks, sizeof(weft_group *));
    weft_status status;
    int started = 0;

    if (!members || !groups || weft_group_threads(place->ranks, groups) != WEFT_OK) {
        free(members);
        free(groups);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for %d ranks", place->ranks);
    }
    for (int r = 0; r < place->ranks; r++)
        members[r] = (member){.t = t, .group = groups[r]};
    while (started < place->ranks &&
           pthread_create(&members[started].thread, NULL, serve, &members[started]) == 0)
        started++;
    if (started < place->ranks)
        weft_group_abort(groups[started], "a thread of weft tune could not be started");
    for (int r = 0; r < started; r++)
        pthread_join(members[r].thread, NULL);
    status = started < place->ranks ? weft_error_set(error, WEFT_ERR_MEMORY,
                                                     "a thread for rank %d could not be started", started)
                                    : outcome(members, place->ranks, error);
    place->machine = members[0].machine;
    for (int r = 0; r < place->ranks; r++)
        weft_group_free(groups[r]);
    free(members);
    free(groups);
    return status;
}

weft_status tune_measure(tune_try *tries, int count, double seconds, tune_place *place,
                         weft_error_text *error)
{
    trial t = {.tries = tries, .count = count, .seconds = seconds, .cuda = place->cuda};
    member me = {.t = &t, .group = place->group};

    if (!place->group)
        return measure_threads(&t, place, error);
    me.status = time_tries(&me, true);
    place->machine = me.machine;
    return outcome(&me, 1, error);
}
