/*
 * Work on threads of the program's own: a pool of pthreads, and bodies one after another as OpenMP runs them
 * with one thread. Every element is exact, weft starts no thread, and the workers nobody asked for are those
 * of the pool. The tiles are weft's own choice here.
 */
#include "support/entries.h"
#include "support/ranks.h"
#include "tp_case.h"

#include <stdatomic.h>
#include <time.h>

enum { THREADS = 3, SYMMETRIC_BYTES = 1 << 20, CALLERS = 3 };

static _Atomic int runs; /* by ranks that are threads, at the same time */

typedef struct body_call {
    void (*body)(void *argument, int index);
    void *argument;
    int index;
} body_call;

static void *call_body(void *opaque)
{
    body_call *it = opaque;

    it->body(it->argument, it->index);
    return NULL;
}

static void with_threads(void *context, int count, void (*body)(void *argument, int index), void *argument)
{
    pthread_t threads[16];
    body_call calls[16];

    CHECK(context == &runs && count <= 16);
    atomic_fetch_add(&runs, 1);
    for (int i = 0; i < count; i++) {
        calls[i] = (body_call){body, argument, i};
        CHECK_INT(pthread_create(&threads[i], NULL, call_body, &calls[i]), 0);
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static void in_turn(void *context, int count, void (*body)(void *argument, int index), void *argument)
{
    CHECK(context == &runs);
    atomic_fetch_add(&runs, 1);
    for (int i = 0; i < count; i++)
        body(argument, i);
}

/* Whether there are no more threads than before, when those that have ended are gone. */
static bool no_more_threads(int before)
{
    for (int i = 0; i < 1000 && entries_of("/proc/self/task") > before; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    return entries_of("/proc/self/task") <= before;
}

static void *nothing(void *argument)
{
    return argument;
}

static void products(weft_group *group, void *argument)
{
    static const weft_op ops[] = {WEFT_OP_AG_GEMM, WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AR, WEFT_OP_GEMM_AS};
    int world = weft_size(group), rank = weft_rank(group), expected = *(const int *)argument;
    void *symmetric = NULL;

    CHECK_INT(weft_alloc(group, SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    for (size_t op = 0; op < sizeof(ops) / sizeof(*ops); op++) {
        for (int64_t m = 1; m <= 33; m += 32) {
            tp_case t = {.integers = true, .symmetric = 31, .seed = (uint64_t)m};
            tp_instance s[TP_OPERANDS];
            weft_operands operands;
            weft_plan *plan = NULL;

            weft_problem_init(&t.problem, ops[op]);
            t.problem.d_dtype = WEFT_F32;
            t.problem.m = m;
            t.problem.n = 100;
            t.problem.k = 300;
            CHECK_INT(weft_plan_create(group, &t.problem, &plan), WEFT_OK);
            CHECK_INT(weft_plan_problem(plan)->tuning.workers, expected);
            tp_place(&t, world, rank, symmetric, s);
            for (int which = 0; which < TP_OPERANDS; which++)
                tp_fill(&t, which, &s[which]);
            operands = tp_operands(s);
            CHECK_INT(weft_run(plan, &operands), WEFT_OK);
            CHECK_INT(tp_wrong(&t, world, &s[TP_D]), 0);
            tp_release(s);
            weft_plan_destroy(plan);
        }
    }
}

/* Products of several threads at once, each exact. */
static void *multiply(void *argument)
{
    enum { M = 70, N = 130, K = 600 };
    float *a = malloc(M * K * sizeof(*a)), *b = malloc(K * N * sizeof(*b)), *d = malloc(M * N * sizeof(*d));
    int seed = (int)(intptr_t)argument;
    weft_gemm_args args;
    intptr_t wrong = 0;

    for (int i = 0; i < M * K; i++)
        a[i] = (float)((i + seed) % 5 - 2);
    for (int i = 0; i < K * N; i++)
        b[i] = (float)((i * 3 + seed) % 7 - 3);
    weft_gemm_args_init(&args, WEFT_F32, M, N, K);
    args.a = a;
    args.b = b;
    args.d = d;
    args.threads = 2;
    for (int round = 0; round < 10; round++) {
        memset(d, 0xff, M * N * sizeof(*d));
        wrong += weft_gemm(&args) != WEFT_OK;
        for (int i = 0; i < M; i += 7)
            for (int j = 0; j < N; j += 11) {
                double sum = 0;

                for (int k = 0; k < K; k++)
                    sum += (double)a[i * K + k] * (double)b[k * N + j];
                wrong += d[i * N + j] != (float)sum;
            }
    }
    free(a);
    free(b);
    free(d);
    return (void *)wrong;
}

static void products_at_once(void)
{
    pthread_t threads[CALLERS];
    void *wrong;

    for (int i = 0; i < CALLERS; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, multiply, (void *)(intptr_t)(i + 1)), 0);
    for (int i = 0; i < CALLERS; i++) {
        CHECK_INT(pthread_join(threads[i], &wrong), 0);
        CHECK(wrong == NULL);
    }
}

/* ---- callers that ask for one thread ---------------------------------------------------------------- */

static _Atomic bool long_begun, long_ended;

static void multiply_alone(int64_t m, int64_t k)
{
    weft_gemm_args args;
    float *a = calloc((size_t)(m * k), sizeof(*a)), *b = calloc((size_t)(m * k), sizeof(*b)),
          *d = malloc((size_t)(m * m) * sizeof(*d));

    weft_gemm_args_init(&args, WEFT_F32, m, m, k);
    args.threads = 1;
    args.a = a;
    args.b = b;
    args.d = d;
    CHECK_INT(weft_gemm(&args), WEFT_OK);
    free(a);
    free(b);
    free(d);
}

static void *multiply_long(void *nobody)
{
    atomic_store(&long_begun, true);
    multiply_alone(256, 40000);
    atomic_store(&long_ended, true);
    return nobody;
}

/* Products of other threads do not wait for one that takes long. Now and then this thread may get no CPU. */
static void side_by_side(void)
{
    enum { TIMES = 5, ENOUGH = 2, SHORT = 20 };
    int overtook = 0;

    for (int time = 0; time < TIMES && overtook < ENOUGH; time++) {
        pthread_t other;

        atomic_store(&long_begun, false);
        atomic_store(&long_ended, false);
        CHECK_INT(pthread_create(&other, NULL, multiply_long, NULL), 0);
        while (!atomic_load(&long_begun))
            nanosleep(&(struct timespec){0, 100000}, NULL);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
        for (int i = 0; i < SHORT; i++)
            multiply_alone(8, 8);
        overtook += !atomic_load(&long_ended);
        pthread_join(other, NULL);
    }
    CHECK(overtook >= ENOUGH);
}

int main(void)
{
    static const weft_parallel kinds[] = {with_threads, in_turn};
    int before, workers = THREADS;
    pthread_t first;

    /* Instrumented programs have a thread more once they have started one. */
    CHECK_INT(pthread_create(&first, NULL, nothing, NULL), 0);
    pthread_join(first, NULL);
    nanosleep(&(struct timespec){0, 10000000}, NULL);
    before = entries_of("/proc/self/task");
    for (int kind = 0; kind < 2; kind++) {
        CHECK_INT(weft_set_parallel(kinds[kind], &runs, THREADS), WEFT_OK);
        for (int world = 1; world <= 2; world++) {
            int begun = atomic_load(&runs);

            ranks_run(world, products, &workers);
            CHECK(atomic_load(&runs) - begun >= 8 * world);
        }
        products_at_once();
    }
    CHECK(no_more_threads(before));
    CHECK_INT(weft_set_parallel(NULL, NULL, 0), WEFT_OK);
    products_at_once();
    side_by_side();
    return check_report("test_run_parallel");
}
