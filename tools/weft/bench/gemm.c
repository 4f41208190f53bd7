/*
 * `weft bench gemm`: the single-rank product beside what the core can do and beside other libraries.
 *
 * Every row alternates, in one run: the product; its limits; a peer. The limit is the micro-kernel over
 * panels that lie in L1 (loads included); with few rows also the bandwidth of plain loads over the same B.
 * Inputs rotate, so that no call finds its operands in cache by grace of the last one.
 */
#include "bench/bench.h"
#include "bench/gemm_torch.h"

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/round.h"
#include "core/topo.h"
#include "gemm/gemm.h"
#include "core/pool.h"
#include "plan/plan.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SAMPLES = 64, FEW_ROWS = 32, SETS_MOST = 8, LOOP_TURNS = 256, HUGE_PAGE = 2 << 20 };

static const double set_bytes_least = 192e6; /* of rotating B: beyond every cache */
static const double sample_us = 40000;       /* one sample makes as many calls as take about this long */
static const double row_seconds = 7;

typedef struct set {
    void *a, *b;
    const weft_packed *packed;
    double *expected, *bound; /* of D * t, per row */
} set;

typedef struct subject {
    bench_context *context;
    int64_t m, n, k;
    weft_dtype dtype, d_dtype;
    bool packed, transposed; /* B */
    int threads, calls, sets;
    set set[SETS_MOST];
    void *d;
    double *t;
    const weft_binding *bind;
    char *panels; /* of A, B and C per thread, for the ceilings */
    const blas_library *blas;
    interpreter torch;
    double max_err, err_bound;
    bool ok;
    _Atomic int64_t loops; /* taken by fetch_add */
    _Atomic uint64_t sink;
} subject;

static void *big_alloc(size_t bytes)
{
    bytes = weft_round_up_bytes(bytes, HUGE_PAGE);
    void *memory = aligned_alloc(HUGE_PAGE, bytes);

    if (memory) {
        madvise(memory, bytes, MADV_HUGEPAGE);
        memset(memory, 0, bytes);
    }
    return memory;
}

static void fill_random(bench_context *context, weft_dtype dtype, void *data, int64_t count)
{
    uint64_t state = bench_random(context);

    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double value = (double)(int64_t)(state >> 33) * 0x1p-30 - 1.0;

        weft_element_set(dtype, data, (size_t)i, dtype == WEFT_I8 ? nearbyint(value * 127) : value);
    }
}

static double b_at(const subject *it, const set *s, int64_t p, int64_t j)
{
    return weft_element_get(it->dtype, s->b, (size_t)(it->transposed ? j * it->k + p : p * it->n + j));
}

static double unit_of(weft_dtype dtype)
{
    return dtype == WEFT_F16 ? 0x1p-11 : dtype == WEFT_BF16 ? 0x1p-8 : dtype == WEFT_F32 ? 0x1p-24 : 0;
}

/* Of an addition. fp8 is multiplied as bfloat16, whose instruction may round to odd. */
static double sum_unit(weft_dtype dtype)
{
    return dtype == WEFT_I8 ? 0 : (dtype == WEFT_BF16 || weft_dtype_is_fp8(dtype) ? 4 : 2) * 0x1p-24;
}

/* What D * t must be and by how much it may differ: A * (B * t), and the same of magnitudes. */
static int expect(subject *it, set *s)
{
    double *bt = malloc(sizeof(double) * (size_t)it->k), *size = malloc(sizeof(double) * (size_t)it->k);
    double unit = sum_unit(it->dtype);

    s->expected = malloc(sizeof(double) * (size_t)it->m);
    s->bound = malloc(sizeof(double) * (size_t)it->m);
    if (!bt || !size || !s->expected || !s->bound) {
        free(bt);
        free(size);
        return 1;
    }
    for (int64_t p = 0; p < it->k; p++) {
        bt[p] = size[p] = 0;
        for (int64_t j = 0; j < it->n; j++) {
            double term = b_at(it, s, p, j) * it->t[j];

            bt[p] += term;
            size[p] += fabs(term);
        }
    }
    for (int64_t i = 0; i < it->m; i++) {
        double sum = 0, magnitude = 0;

        for (int64_t p = 0; p < it->k; p++) {
            double a = weft_element_get(it->dtype, s->a, (size_t)(i * it->k + p));

            sum += a * bt[p];
            magnitude += fabs(a) * size[p];
        }
        s->expected[i] = sum;
        s->bound[i] = magnitude * ((double)it->k + 8) * unit + 1e-9 * magnitude;
    }
    free(bt);
    free(size);
    return 0;
}

static weft_gemm_args args_of(const subject *it, int which)
{
    weft_gemm_args args;

    weft_gemm_args_init(&args, it->dtype, it->m, it->n, it->k);
    args.a = it->set[which].a;
    args.b = it->set[which].b;
    args.transb = it->transposed;
    args.packed_b = it->packed ? it->set[which].packed : NULL;
    args.d = it->d;
    args.threads = it->threads;
    return args;
}

static int set_of(const subject *it, int iteration, int call)
{
    return (int)(((int64_t)iteration * it->calls + call) % it->sets);
}

static int poison(void *argument, int iteration)
{
    subject *it = argument;

    (void)iteration;
    memset(it->d, 0xff, (size_t)(it->m * it->n) * weft_dtype_size(it->d_dtype));
    return 0;
}

/* Some elements against their own sum in float64: sharper than the whole row's bound. */
static void check_samples(subject *it, const set *s)
{
    double unit = sum_unit(it->dtype);

    for (int x = 0; x < SAMPLES; x++) {
        int64_t i = (int64_t)(bench_random(it->context) % (uint64_t)it->m);
        int64_t j = (int64_t)(bench_random(it->context) % (uint64_t)it->n);
        double sum = 0, magnitude = 0, actual = weft_element_get(it->d_dtype, it->d, (size_t)(i * it->n + j));

        for (int64_t p = 0; p < it->k; p++) {
            double term = weft_element_get(it->dtype, s->a, (size_t)(i * it->k + p)) * b_at(it, s, p, j);

            sum += term;
            magnitude += fabs(term);
        }
        double bound = magnitude * (((double)it->k + 8) * unit + unit_of(it->d_dtype) * 1.01);

        it->max_err = fmax(it->max_err, fabs(actual - sum));
        it->err_bound = fmax(it->err_bound, bound);
        it->ok = it->ok && fabs(actual - sum) <= bound;
    }
}

/* Every element enters the residual D * t - A * (B * t); what was not written is still NaN. */
static int check(void *argument, int iteration)
{
    subject *it = argument;
    const set *s = &it->set[set_of(it, iteration, it->calls - 1)];

    check_samples(it, s);
    for (int64_t i = 0; i < it->m; i++) {
        double sum = 0, magnitude = 0;

        for (int64_t j = 0; j < it->n; j++) {
            double term = weft_element_get(it->d_dtype, it->d, (size_t)(i * it->n + j)) * it->t[j];

            sum += term;
            magnitude += fabs(term);
        }
        double error = fabs(sum - s->expected[i]),
               bound = s->bound[i] + magnitude * unit_of(it->d_dtype) * 1.01;

        it->ok = it->ok && error <= bound; /* false for NaN */
    }
    return 0;
}

static int run_weft(void *argument, int iteration)
{
    subject *it = argument;

    for (int i = 0; i < it->calls; i++) {
        weft_gemm_args args = args_of(it, set_of(it, iteration, i));

        if (weft_gemm(&args) != WEFT_OK)
            return 1;
    }
    return 0;
}

static int run_one_thread(void *argument, int iteration)
{
    subject *it = argument;
    int threads = it->threads;

    it->threads = 1;
    int status = run_weft(it, iteration);

    it->threads = threads;
    return status;
}

static int run_blas(void *argument, int iteration)
{
    subject *it = argument;

    for (int i = 0; i < it->calls; i++) {
        const set *s = &it->set[set_of(it, iteration, i)];

        it->blas->sgemm(BLAS_ROW_MAJOR, BLAS_PLAIN, it->transposed ? BLAS_TRANSPOSED : BLAS_PLAIN, (int)it->m,
                        (int)it->n, (int)it->k, 1, s->a, (int)it->k, s->b,
                        (int)(it->transposed ? it->k : it->n), 0, it->d, (int)it->n);
    }
    return 0;
}

static int run_torch(void *argument, int iteration)
{
    subject *it = argument;

    (void)iteration;
    return gemm_torch_run(&it->torch, it->calls);
}

/* The kernel's own loop, with its loads: `panels` panels of B over k that a panel of A passes at a time. */
typedef struct kernel_loop {
    int64_t k, panels;
} kernel_loop;

/* As products run it: over a block of k, whose panels come from L2 where they are longer than L1. */
static kernel_loop loop_of_product(const weft_binding *bind)
{
    return (kernel_loop){bind->kc, bind->kernel->run_row ? bind->kernel->row_panels : 1};
}

/* Over so short a k that both panels lie in L1. */
static kernel_loop loop_in_l1(const weft_binding *bind)
{
    const weft_kernel *kernel = bind->kernel;
    int64_t step_bytes = (kernel->mr + kernel->nr) * kernel->k_step * (int64_t)weft_dtype_size(kernel->type);
    int64_t most = bind->l1_bytes * 3 / 4 / step_bytes * kernel->k_step;

    return (kernel_loop){most < kernel->k_step ? kernel->k_step : most < bind->kc ? most : bind->kc, 1};
}

/* Where panels of a product lie in L1, the two are one. */
static bool loops_differ(const weft_binding *bind)
{
    return loop_in_l1(bind).k < bind->kc;
}

/* How often the loop runs in place of the product's calls. */
static int64_t loop_count(const subject *it, kernel_loop loop)
{
    const weft_kernel *kernel = it->bind->kernel;
    double tiles = (double)it->m / kernel->mr * (double)it->n / kernel->nr * (double)it->k / (double)loop.k;

    return (int64_t)(tiles / (double)loop.panels * it->calls) + 1;
}

/* Threads take what is left, as those of a product do: cores need not have one pace. A LOOP_TURNS-th of a
 * share at a time: the shortest loops take as long as a count that goes from core to core. */
static void run_loop(subject *it, int member, kernel_loop loop)
{
    const weft_kernel *kernel = it->bind->kernel;
    int64_t k_bytes = loop.k * (int64_t)weft_dtype_size(kernel->type);
    char *a = it->panels + (size_t)member * HUGE_PAGE, *c = a + HUGE_PAGE / 2;
    weft_panels b = {.first = a + k_bytes * kernel->mr, .bytes = k_bytes * kernel->nr, .count = loop.panels};
    int64_t count = loop_count(it, loop), step = 1 + count / ((int64_t)it->threads * LOOP_TURNS), done;

    if (kernel->prepare)
        kernel->prepare();
    while ((done = atomic_fetch_add(&it->loops, step)) < count) {
        for (int64_t left = weft_min(step, count - done); left > 0; left--) {
            if (loop.panels > 1)
                kernel->run_row(loop.k, a, &b, c, loop.panels * kernel->nr, 0);
            else
                kernel->run(loop.k, a, b.first, c, kernel->nr, 0);
        }
    }
    if (kernel->release)
        kernel->release();
}

static void ceiling_work(void *argument, int member)
{
    run_loop(argument, member, loop_of_product(((subject *)argument)->bind));
}

static void l1_work(void *argument, int member)
{
    run_loop(argument, member, loop_in_l1(((subject *)argument)->bind));
}

/* Of all threads, for one call of the product. */
static double loop_flops(const subject *it, kernel_loop loop)
{
    const weft_kernel *kernel = it->bind->kernel;
    double one = 2.0 * kernel->mr * kernel->nr * (double)(loop.k * loop.panels);

    return one * (double)loop_count(it, loop) / it->calls;
}

/* Plain wide loads over the B that the next call would read. */
static void bandwidth_work(void *argument, int member)
{
    subject *it = argument;
    int members = it->threads;
    size_t bytes = (size_t)(it->n * it->k) * weft_dtype_size(it->dtype);
    size_t words = bytes / 8, from = words / (size_t)members * (size_t)member;
    uint64_t sums[16] = {0};

    for (int call = 0; call < it->calls; call++) {
        const uint64_t *word = (const uint64_t *)it->set[set_of(it, 0, call)].b + from;

        for (size_t i = 0; i + 16 <= words / (size_t)members; i += 16) {
            for (int x = 0; x < 16; x++)
                sums[x] += word[i + (size_t)x];
        }
    }
    for (int x = 0; x < 16; x++)
        atomic_fetch_add_explicit(&it->sink, sums[x], memory_order_relaxed);
}

static int on_pool(subject *it, weft_pool_work work)
{
    weft_error_text error;
    weft_loan loan;

    if (weft_pool_borrow(it->threads, 0, &loan, &error) != WEFT_OK)
        return 1;
    atomic_store(&it->loops, 0);
    weft_pool_run(loan.pool, it->threads, work, it);
    weft_pool_return(&loan);
    return 0;
}

static int run_ceiling(void *argument, int iteration)
{
    subject *it = argument;

    (void)iteration;
    return on_pool(it, ceiling_work);
}

static int run_one_ceiling(void *argument, int iteration)
{
    subject *it = argument;
    int threads = it->threads;

    (void)iteration;
    it->threads = 1;
    int status = on_pool(it, ceiling_work);

    it->threads = threads;
    return status;
}

static int run_in_l1(void *argument, int iteration)
{
    subject *it = argument;

    (void)iteration;
    return on_pool(it, l1_work);
}

static int run_bandwidth(void *argument, int iteration)
{
    subject *it = argument;

    (void)iteration;
    return on_pool(it, bandwidth_work);
}

static void free_subject(subject *it)
{
    for (int i = 0; i < it->sets; i++) {
        free(it->set[i].a);
        free(it->set[i].b);
        free((void *)it->set[i].packed);
        free(it->set[i].expected);
        free(it->set[i].bound);
    }
    free(it->d);
    free(it->t);
    free(it->panels);
}

static int make_set(subject *it, set *s)
{
    size_t size = weft_dtype_size(it->dtype);

    s->a = big_alloc((size_t)(it->m * it->k) * size);
    s->b = big_alloc((size_t)(it->k * it->n) * size);
    if (!s->a || !s->b)
        return 1;
    fill_random(it->context, it->dtype, s->a, it->m * it->k);
    fill_random(it->context, it->dtype, s->b, it->k * it->n);
    if (it->packed) {
        weft_gemm_args args = args_of(it, (int)(s - it->set));

        args.packed_b = NULL;
        void *memory = big_alloc(weft_pack_bytes(&args));

        if (!memory || weft_pack(&args, memory, &s->packed) != WEFT_OK) {
            free(memory);
            return 1;
        }
    }
    return expect(it, s);
}

static int make_subject(subject *it)
{
    double b_bytes = (double)it->n * (double)it->k * (double)weft_dtype_size(it->dtype);
    double a_bytes = (double)it->m * (double)it->k * (double)weft_dtype_size(it->dtype), bytes;
    const weft_core *core;
    weft_error_text error;

    if (weft_core_current(&core, &error) != WEFT_OK)
        return bench_say(it->context, "%s", error.text);
    it->bind = weft_core_binding(core, it->dtype, false);
    it->d_dtype = weft_dtype_result(it->dtype);
    it->sets = it->m <= FEW_ROWS ? (int)fmin(SETS_MOST, ceil(set_bytes_least / b_bytes)) : 3;
    bytes = it->sets * ((it->packed ? 2 : 1) * b_bytes + a_bytes) + (double)it->m * (double)it->n * 4;
    if (bytes > 0.75 * (double)weft_topo_memory_bytes())
        return 1; /* the system would grant it, and end somebody when it is touched */
    it->d = big_alloc((size_t)(it->m * it->n) * 4);
    it->t = malloc(sizeof(double) * (size_t)it->n);
    it->panels = big_alloc((size_t)it->threads * HUGE_PAGE);
    it->ok = true;
    if (!it->d || !it->t || !it->panels)
        return 1;
    for (int64_t j = 0; j < it->n; j++)
        it->t[j] = (double)(bench_random(it->context) >> 40) * 0x1p-23 - 1;
    for (int i = 0; i < it->sets; i++) {
        if (make_set(it, &it->set[i]))
            return 1;
    }
    return 0;
}

/* The contender that runs so; NULL when there is none. */
static const bench_contender *running(const bench_contender *c, int count, int (*run)(void *, int))
{
    for (int i = 0; i < count; i++) {
        if (c[i].run == run)
            return &c[i];
    }
    return NULL;
}

static double median_of(const bench_contender *c)
{
    return c ? c->stats.median : NAN;
}

/* Its time over the product's, of the same iterations: a core may have another pace in the next one. */
static double over_product(const bench_contender *c)
{
    return c ? c->over : NAN;
}

static void print_row(subject *it, const bench_contender *c, int count)
{
    report *r = &it->context->report;
    double flops = 2.0 * (double)it->m * (double)it->n * (double)it->k, us = c[0].stats.median;
    double b_bytes = (double)it->n * (double)it->k * (double)weft_dtype_size(it->dtype);
    double gflops = flops / us * 1e-3;
    double loop = loop_flops(it, loop_of_product(it->bind)),
           short_loop = loop_flops(it, loop_in_l1(it->bind));
    const bench_contender *ceiling = running(c, count, run_ceiling), *l1 = running(c, count, run_in_l1);
    const bench_contender *reads = running(c, count, run_bandwidth), *one = running(c, count, run_one_thread),
                          *one_loop = running(c, count, run_one_ceiling);
    const bench_contender *peer = running(c, count, it->blas ? run_blas : run_torch);
    bool few = it->m <= FEW_ROWS;

    report_text(r, "op", "gemm");
    report_text(r, "backend", "cpu");
    report_int(r, "ranks", 1);
    report_int(r, "m", it->m);
    report_int(r, "n", it->n);
    report_int(r, "k", it->k);
    report_int(r, "l", 1);
    report_text(r, "dtype", "%s", weft_dtype_name(it->dtype));
    report_text(r, "kernel", "%s", it->bind->kernel->name);
    report_int(r, "threads", it->threads);
    report_bool(r, "packed", it->packed);
    report_bool(r, "transb", it->transposed);
    report_time(r, "us", c[0].stats);
    report_real(r, "gflops", gflops);
    report_real(r, "ceiling_gflops", loop / median_of(ceiling) * 1e-3);
    report_real(r, "of_ceiling", flops / loop * over_product(ceiling));
    report_real(r, "l1_gflops", short_loop / median_of(l1) * 1e-3);
    report_real(r, "of_l1", flops / short_loop * over_product(l1));
    report_real(r, "gbs", few ? b_bytes / us * 1e-3 : NAN);
    report_real(r, "memory_gbs", b_bytes / median_of(reads) * 1e-3);
    report_real(r, "of_memory", over_product(reads));
    report_real(r, "one_thread_us", median_of(one));
    report_real(r, "thread_speedup", over_product(one));
    report_real(r, "loop_speedup", over_product(one_loop) / over_product(ceiling));
    report_text(r, "peer", "%s", it->blas ? it->blas->name : it->torch.name);
    report_real(r, "peer_us", median_of(peer));
    report_real(r, "speedup", over_product(peer));
    report_real(r, "max_err", it->max_err);
    report_real(r, "err_bound", it->err_bound);
    report_bool(r, "ok", it->ok);
    report_row(r);
}

/* One row: this product, its limits, one peer or none. `python` is that of PyTorch, or NULL. */
static int bench_row(bench_context *context, int64_t m, int64_t n, int64_t k, weft_dtype dtype, bool packed,
                     int threads, const blas_library *blas, const char *python)
{
    subject it = {
        .context = context, .m = m, .n = n, .k = k, .dtype = dtype, .packed = packed, .threads = threads};
    bench_contender contenders[7] = {
        {.name = "weft", .argument = &it, .prepare = poison, .run = run_weft, .check = check},
        {.name = "ceiling", .argument = &it, .run = run_ceiling}};
    char label[96];
    int count = 2, status = 0;

    it.blas = blas;
    it.transposed = context->options->problem.transb;
    it.calls =
        1 + (int)fmin(200, sample_us / (2.0 * (double)m * (double)n * (double)k / 2e5 / threads + 600));
    if (m <= FEW_ROWS)
        contenders[count++] = (bench_contender){.name = "bandwidth", .argument = &it, .run = run_bandwidth};
    if (threads > 1) {
        contenders[count++] = (bench_contender){
            .name = "one thread", .argument = &it, .prepare = poison, .run = run_one_thread, .check = check};
        contenders[count++] =
            (bench_contender){.name = "one thread's ceiling", .argument = &it, .run = run_one_ceiling};
    }
    if (blas) {
        blas->set_threads(threads);
        contenders[count++] = (bench_contender){
            .name = blas->name, .argument = &it, .prepare = poison, .run = run_blas, .check = check};
    }
    snprintf(label, sizeof label, "%lld x %lld x %lld %s", (long long)m, (long long)n, (long long)k,
             weft_dtype_name(dtype));
    if (make_subject(&it))
        status = bench_say(context, "no memory for a product of %s", label);
    if (status == 0 && python) {
        if (gemm_torch_open(&it.torch, python, m, n, k, dtype, threads, it.sets) == 0)
            contenders[count++] = (bench_contender){.name = it.torch.name, .argument = &it, .run = run_torch};
        else
            fprintf(stderr, "weft bench: PyTorch is left out of %s: %s cannot multiply it\n", label, python);
    }
    if (status == 0 && loops_differ(it.bind))
        contenders[count++] = (bench_contender){.name = "in L1", .argument = &it, .run = run_in_l1};
    for (int i = 1; i < count; i++)
        contenders[i].beside = contenders;
    if (status == 0)
        status = bench_measure(context, contenders, count, it.calls, row_seconds, label);
    if (status == 0)
        print_row(&it, contenders, count);
    interpreter_close(&it.torch);
    free_subject(&it);
    return status;
}

/* A shape packed beforehand, then beside every peer with nothing packed. */
static int bench_shape(bench_context *context, int64_t m, int64_t n, int64_t k, weft_dtype dtype, int threads)
{
    const blas_library *peers[] = {context->blas, context->blas ? blas_blis() : NULL};
    bool peerless = dtype == WEFT_I8 || weft_dtype_is_fp8(dtype);
    const char *python = peerless ? NULL : bench_torch_python();
    int status = bench_row(context, m, n, k, dtype, true, threads, NULL, NULL), compared = 0;

    if (peerless && bench_torch_python())
        fprintf(stderr, "weft bench: PyTorch is left out of %lld x %lld x %lld %s: it has no such product\n",
                (long long)m, (long long)n, (long long)k, weft_dtype_name(dtype));

    for (int i = 0; i < 2 && status == 0 && dtype == WEFT_F32; i++) {
        if (peers[i]) {
            status = bench_row(context, m, n, k, dtype, false, threads, peers[i], NULL);
            compared++;
        }
    }
    if (status == 0 && (!compared || python))
        status = bench_row(context, m, n, k, dtype, false, threads, NULL, python);
    return status;
}

/* What is measured when no sizes are asked for: `dtype` at each kind of shape, or the type that shows it
 * best. */
static int bench_usual(bench_context *context, bool asked, weft_dtype dtype, int threads)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_BF16, WEFT_F16, WEFT_I8, WEFT_FP8_E4M3, WEFT_FP8_E5M2};
    weft_dtype large = asked ? dtype : WEFT_F32, few = asked ? dtype : WEFT_BF16;
    int all = weft_pool_members(0), status = 0;

    for (int t = 0; t < 6 && status == 0; t++) {
        if (asked ? types[t] == dtype : types[t] <= WEFT_I8)
            status = bench_shape(context, 1024, 1024, 1024, types[t], threads);
    }
    if (status == 0)
        status = bench_shape(context, 2048, 2048, 2048, large, threads);
    for (int64_t m = 1; m <= 8 && status == 0; m += 7)
        status = bench_row(context, m, 4096, 4096, few, true, threads, NULL, NULL);
    if (status == 0 && all > 1)
        status = bench_row(context, 2048, 2048, 2048, large, false, all, NULL, NULL);
    return status;
}

int bench_gemm(bench_context *context)
{
    static const report_column columns[] = {
        {"M", "m", REPORT_PLAIN, 6},
        {"N", "n", REPORT_PLAIN, 6},
        {"K", "k", REPORT_PLAIN, 6},
        {"dtype", "dtype", REPORT_PLAIN, 9},
        {"threads", "threads", REPORT_PLAIN, 7},
        {"packed", "packed", REPORT_PLAIN, 6},
        {"time µs", "us", REPORT_TIME, 16},
        {"Gop/s", "gflops", REPORT_RATE, 8},
        {"of ceiling", "of_ceiling", REPORT_RATIO, 10},
        {"of L1", "of_l1", REPORT_RATIO, 6},
        {"of memory", "of_memory", REPORT_RATIO, 9},
        {"threads x", "thread_speedup", REPORT_RATIO, 9},
        {"loop x", "loop_speedup", REPORT_RATIO, 6},
        {"peer", "peer", REPORT_PLAIN, 16},
        {"vs peer", "speedup", REPORT_RATIO, 8},
        {"ok", "ok", REPORT_PLAIN, 4},
        {NULL, NULL, REPORT_PLAIN, 0},
    };
    const weft_options *options = context->options;
    weft_problem p = options->problem;
    weft_error_text error;
    int threads = weft_pool_members(options->threads ? (int)options->threads : 1);

    if (p.dtype > WEFT_I8 && !weft_dtype_is_fp8(p.dtype))
        return options_error("bench", "--dtype %s: gemm multiplies float32, bfloat16, float16, int8 or fp8",
                             weft_dtype_name(p.dtype));
    context->report.columns = columns;
    report_note(&context->report,
                "products of one process; " REPORT_TIME_LEGEND " of one call, operands not in a cache\n"
                "packed: B was packed beforehand; of ceiling: beside the kernel's own loop on the panels of "
                "a block;\n"
                "of L1: on such short panels that they lie in L1, where those do not; of memory: beside "
                "plain reads of B\n"
                "(few rows); threads x: beside one thread; loop x: the same of the kernel's own loop;\n"
                "vs peer: the peer's time over weft's");
    if (!options->sizes_given)
        return bench_usual(context, options->dtype_given, p.dtype, threads);
    p.m = p.m ? p.m : 1024;
    p.n = p.n ? p.n : 1024;
    p.k = p.k ? p.k : 1024;
    if (weft_problem_resolve(&p, 1, &p, &error) != WEFT_OK)
        return options_error("bench", "%s", error.text);
    return bench_shape(context, p.m, p.n, p.k, p.dtype, threads);
}
