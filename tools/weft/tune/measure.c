/* Timing plans side by side, on ranks that are threads of this process. See tune.h. */
#include "tune/tune.h"

#include "core/clock.h"
#include "core/dtype.h"
#include "group/group.h"

#include <weft/weft.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_ROUNDS = 5, MOST_ROUNDS = 400, OPERANDS = 5 };

typedef struct trial {
    tune_try *tries;
    int count, ranks;
    double seconds;
    weft_group **groups;
    pthread_barrier_t barrier;
    double *took;    /* [try][rank] of this round */
    double *samples; /* [try][round] */
    int rounds;
    bool over, failed;
} trial;

typedef struct member {
    trial *t;
    int rank;
    pthread_t thread;
    weft_plan *plans[TUNE_MOST_TRIES];
    void *memory[OPERANDS];
    weft_operands operands;
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
        k = (k + ranks - 1) / ranks;
    d = m * n;
    if (p->op == WEFT_OP_AG_GEMM || p->op == WEFT_OP_GEMM_RS)
        d = p->layout == WEFT_LAYOUT_GATHER_B || p->layout == WEFT_LAYOUT_SCATTER_ROWS ||
                    (p->op == WEFT_OP_GEMM_RS && p->layout == WEFT_LAYOUT_DEFAULT)
                ? (m + ranks - 1) / ranks * n
                : m * ((n + ranks - 1) / ranks);
    bytes[0] = (size_t)(l * (p->op == WEFT_OP_AG_GEMM ? (m + ranks - 1) / ranks : m) * k) * element;
    bytes[1] = (size_t)(l * k * (inner ? n : (n + ranks - 1) / ranks)) * element;
    bytes[2] = p->beta != 0 ? (size_t)(l * d) * sum : 0;
    bytes[3] = p->bias ? (size_t)(l * n) * sum : 0;
    bytes[4] = (size_t)(l * d) * sum;
}

static bool make_operands(member *me, const weft_problem *p, size_t bytes[OPERANDS])
{
    operand_bytes(p, me->t->ranks, bytes);
    for (int i = 0; i < OPERANDS; i++) {
        if (bytes[i] && weft_alloc(me->t->groups[me->rank], bytes[i], 4096, &me->memory[i]) != WEFT_OK)
            return false;
        if (bytes[i])
            memset(me->memory[i], 0, bytes[i]);
    }
    me->operands = (weft_operands){.size = sizeof(weft_operands)};
    if (p->op >= WEFT_OP_ALL_REDUCE) {
        me->operands.send = me->memory[0];
        me->operands.recv = me->memory[1];
    } else {
        me->operands.a = me->memory[0];
        me->operands.b = me->memory[1];
        me->operands.c = me->memory[2];
        me->operands.bias = me->memory[3];
        me->operands.d = me->memory[4];
    }
    return true;
}

/* One rank's turn at one try: its inputs anew, then all together. */
static void run_once(member *me, int index, const size_t *bytes, int round)
{
    trial *t = me->t;
    int64_t start;

    memset(me->memory[0], round & 1, bytes[0]);
    pthread_barrier_wait(&t->barrier);
    start = weft_clock_ns();
    if (weft_run(me->plans[index], &me->operands) != WEFT_OK)
        t->failed = true;
    t->took[index * t->ranks + me->rank] = (double)(weft_clock_ns() - start) * 1e-3;
    pthread_barrier_wait(&t->barrier);
}

/* Rank 0 keeps the slowest rank's times, and says when it is enough. */
static void end_round(trial *t, int64_t begin, int round)
{
    for (int i = 0; i < t->count; i++) {
        double slowest = 0;

        for (int r = 0; r < t->ranks; r++)
            slowest = fmax(slowest, t->took[i * t->ranks + r]);
        if (round > 0) /* the first one warms up */
            t->samples[i * MOST_ROUNDS + round - 1] = slowest;
    }
    t->rounds = round;
    t->over = t->failed || round == MOST_ROUNDS ||
              (round >= LEAST_ROUNDS && (double)(weft_clock_ns() - begin) > t->seconds * 1e9);
}

static void *serve(void *arg)
{
    member *me = arg;
    trial *t = me->t;
    weft_group *group = t->groups[me->rank];
    size_t bytes[OPERANDS];
    int64_t begin;

    if (!make_operands(me, &t->tries[0].problem, bytes))
        t->failed = true;
    for (int i = 0; i < t->count; i++) {
        weft_status status = weft_plan_create(group, &t->tries[i].problem, &me->plans[i]);

        if (status != WEFT_OK)
            me->plans[i] = NULL;
    }
    pthread_barrier_wait(&t->barrier);
    begin = weft_clock_ns();
    for (int round = 0; !t->failed; round++) {
        for (int i = 0; i < t->count; i++)
            if (me->plans[i]) /* on all ranks, or on none */
                run_once(me, i, bytes, round);
        if (me->rank == 0)
            end_round(t, begin, round);
        pthread_barrier_wait(&t->barrier);
        if (t->over)
            break;
    }
    if (me->rank == 0)
        for (int i = 0; i < t->count; i++) {
            if (me->plans[i])
                t->tries[i].problem = *weft_plan_problem(me->plans[i]);
            t->tries[i].us = me->plans[i] ? 0 : INFINITY;
        }
    pthread_barrier_wait(&t->barrier);
    for (int i = 0; i < t->count; i++)
        if (me->plans[i])
            weft_plan_destroy(me->plans[i]);
    weft_barrier(group);
    weft_group_free(group);
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int tune_measure(tune_try *tries, int count, int ranks, double seconds, int *cores)
{
    trial t = {.tries = tries, .count = count, .ranks = ranks, .seconds = seconds};
    member *members = calloc((size_t)ranks, sizeof(*members));
    bool made = false;

    t.groups = calloc((size_t)ranks, sizeof(weft_group *));
    t.took = calloc((size_t)(count * ranks), sizeof(double));
    t.samples = calloc((size_t)count * MOST_ROUNDS, sizeof(double));
    if (!members || !t.groups || !t.took || !t.samples || weft_group_threads(ranks, t.groups) != WEFT_OK) {
        fprintf(stderr, "weft tune: no memory for %d ranks\n", ranks);
        t.failed = true;
    } else {
        made = true;
        *cores = t.groups[0]->cores;
        pthread_barrier_init(&t.barrier, NULL, (unsigned)ranks);
        for (int r = 0; r < ranks; r++) {
            members[r].t = &t;
            members[r].rank = r;
            pthread_create(&members[r].thread, NULL, serve, &members[r]);
        }
        for (int r = 0; r < ranks; r++)
            pthread_join(members[r].thread, NULL);
        pthread_barrier_destroy(&t.barrier);
        if (t.failed)
            fprintf(stderr, "weft tune: a run failed\n");
    }
    for (int i = 0; made && !t.failed && i < count; i++)
        if (isfinite(tries[i].us)) {
            qsort(&t.samples[i * MOST_ROUNDS], (size_t)t.rounds, sizeof(double), by_size);
            tries[i].us = t.samples[i * MOST_ROUNDS + t.rounds / 4];
        }
    free(members);
    free(t.groups);
    free(t.took);
    free(t.samples);
    return t.failed;
}
