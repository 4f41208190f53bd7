/*
 * `weft bench moe --backend cuda --inter I`: the feed-forward experts of one rank on the whole GPU, gate and
 * up with the gated activation, then down, each one grouped product; beside cuBLAS in a loop over the
 * experts, without the activation. In graphs of several calls, in turn; the weights are more than the caches
 * hold. With --torch also beside torch._grouped_mm, in a process of its own, after them, on weights n x k.
 * The bound is what must go through memory at the rate of a copy: few rows can come near it, many cannot.
 *
 * With --weights the grouped products read weights that are stored as fp8, n x k, and multiply by a factor
 * for every column; cuBLAS still has them in the products' type.
 *
 * Outputs are poisoned first; every element must have been written, and some of each expert are compared with
 * sums in double.
 */
#include "bench/cuda/cublas_peer.h"
#include "bench/cuda/bench_cuda.h"
#include "bench/cuda/failed.h"
#include "bench/cuda/graph.h"
#include "bench/interpreter.h"
#include "bench/moe/bench_moe.h"

#include "core/dtype.h"
#include "run/cuda/grouped.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 4, GRAPHS = 15, EXPERTS_MOST = 1024, SHIFT = 64, SAMPLES = 3 };

/* One product of all experts: D = A B, rows of A by expert. */
typedef struct product {
    const char *name;
    CUdeviceptr a, b, stored, d; /* stored: B of the grouped product */
    const char *host_a;
    int64_t n, k; /* of B: n counts gates and ups */
    bool gated;
} product;

typedef struct expert_bench {
    weft_cuda_device device;
    weft_error_text error;
    report report;
    int experts;
    int64_t hidden, inter, rows; /* rows: of each expert */
    weft_dtype dtype, weights;   /* weights: as they are stored */
    CUstream stream;
    CUevent begin, end;
    CUdeviceptr offset, counter, factors;
    CUdeviceptr a, d, loop_d; /* of the products, and what the loop makes */
    CUdeviceptr b_weights,
        b_stored; /* B of all experts; stored: of the grouped product, 0 where it is that */
    cublas_peer peer;
    bool has_peer;
    interpreter torch;
    double copy_bytes_per_us;
    float factor;        /* of every column */
    char *pool, *stored; /* random elements on the host: B of expert e begins e * SHIFT of them into it */
    char *x;             /* A, on the host */
} expert_bench;

static const report_column columns[] = {{"experts", "experts", REPORT_PLAIN, 8},
                                        {"H", "hidden", REPORT_PLAIN, 6},
                                        {"inter", "inter", REPORT_PLAIN, 6},
                                        {"rows", "rows", REPORT_PLAIN, 5},
                                        {"product", "impl", REPORT_PLAIN, 8},
                                        {"grouped µs", "us", REPORT_TIME, 16},
                                        {"memory µs", "bound_us", REPORT_RATE, 9},
                                        {"TFLOP/s", "tflops", REPORT_RATE, 8},
                                        {"cuBLAS loop µs", "peer_us", REPORT_TIME, 16},
                                        {"ratio", "peer_over_weft", REPORT_RATIO, 6},
                                        {"torch µs", "torch_us", REPORT_TIME, 9},
                                        {"ratio", "torch_over_weft", REPORT_RATIO, 6},
                                        {"ok", "ok", REPORT_PLAIN, 3},
                                        {NULL, NULL, REPORT_PLAIN, 0}};

/* ---- what is timed ------------------------------------------------------------------------------------- */

static bool is_stored(const expert_bench *b)
{
    return b->weights != b->dtype;
}

static int run_grouped(expert_bench *b, const product *p)
{
    weft_grouped_args args;
    weft_cuda_grouped_launch launch;
    int64_t n = p->gated ? p->n / 2 : p->n;
    weft_status status;

    weft_grouped_args_init(&args, b->dtype, b->experts, b->experts * b->rows, n, p->k);
    args.offset = (const int64_t *)(uintptr_t)b->offset;
    args.a = (const void *)(uintptr_t)p->a;
    args.b = (const void *)(uintptr_t)p->stored;
    args.d = (void *)(uintptr_t)p->d;
    args.lda = p->k;
    args.ldb = is_stored(b) ? p->k : p->n;
    if (is_stored(b)) {
        args.b_dtype = b->weights;
        args.transb = 1;
        args.col_scale = (const float *)(uintptr_t)b->factors;
    }
    args.ldd = n;
    args.stride_b = p->n * p->k;
    args.act = p->gated ? WEFT_ACT_SILU_GATED : WEFT_ACT_NONE;
    status = weft_cuda_grouped_prepare(&b->device, &args, NULL, (uint32_t *)(uintptr_t)b->counter,
                                       b->device.crews, &launch, &b->error);
    if (status == WEFT_OK)
        status = weft_cuda_grouped_start(&b->device, &launch, true, b->stream, &b->error);
    return failed(&b->error, status);
}

static int run_loop(expert_bench *b, const product *p, const cublas_product *one, int candidate)
{
    for (int64_t e = 0; e < b->experts; e++)
        if (cublas_product_run(
                &b->peer, one, candidate, (void *)(uintptr_t)(p->a + (size_t)(e * b->rows * p->k) * 2),
                (void *)(uintptr_t)(p->b + (size_t)(e * p->n * p->k) * 2),
                (void *)(uintptr_t)(b->loop_d + (size_t)(e * b->rows * p->n) * 2), b->stream)) {
            fprintf(stderr, "weft bench: cuBLAS refused a product\n");
            return 1;
        }
    return 0;
}

/* Calls in a graph; `one` NULL: the grouped product. */
static int capture(expert_bench *b, const product *p, const cublas_product *one, gpu_graph *calls)
{
    const weft_cuda_driver *cu = b->device.cu;
    int status =
        failed(&b->error, weft_cuda_check(cu, gpu_graph_begin(cu, b->stream), "capturing calls", &b->error));
    CUresult ended;

    if (status)
        return status;
    for (int i = 0; i < CALLS && !status; i++)
        status = one ? run_loop(b, p, one, one->best) : run_grouped(b, p);
    ended = gpu_graph_end(cu, b->stream, calls);
    return status || failed(&b->error, weft_cuda_check(cu, ended, "a graph of calls", &b->error));
}

static int time_graph(expert_bench *b, const gpu_graph *calls, double *us)
{
    float ms = 0;

    TRY(cuEventRecord(b->begin, b->stream));
    TRY(cuGraphLaunch(calls->replay, b->stream));
    TRY(cuEventRecord(b->end, b->stream));
    TRY(cuStreamSynchronize(b->stream));
    TRY(cuEventElapsedTime(&ms, b->begin, b->end));
    *us = (double)ms * 1e3 / CALLS;
    return 0;
}

/* The best of cuBLAS's own candidates, by one loop of each after another. */
static int choose_candidate(expert_bench *b, const product *p, cublas_product *one)
{
    double least = INFINITY;

    for (int i = 0; i < 2 * one->count; i++) {
        float ms = 0;

        TRY(cuEventRecord(b->begin, b->stream));
        if (run_loop(b, p, one, i % one->count))
            return 1;
        TRY(cuEventRecord(b->end, b->stream));
        TRY(cuStreamSynchronize(b->stream));
        TRY(cuEventElapsedTime(&ms, b->begin, b->end));
        if (i >= one->count && (double)ms < least) {
            least = (double)ms;
            one->best = i % one->count;
        }
    }
    return 0;
}

/* ---- results ------------------------------------------------------------------------------------------- */

static double sum_of(const expert_bench *b, const product *p, int64_t row, int64_t column)
{
    int64_t e = row / b->rows;
    double sum = 0;

    for (int64_t i = 0; i < p->k; i++)
        sum += weft_element_get(b->dtype, p->host_a, (size_t)(row * p->k + i)) *
               weft_element_get(b->weights, b->stored,
                                (size_t)(e * SHIFT + (is_stored(b) ? column * p->k + i : i * p->n + column)));
    return sum * (double)b->factor;
}

static int check(expert_bench *b, const product *p, bool *ok)
{
    int64_t n = p->gated ? p->n / 2 : p->n, rows = b->experts * b->rows;
    size_t bytes = (size_t)(rows * n) * 2;
    char *d = malloc(bytes);
    double tolerance = b->dtype == WEFT_F16 ? 0x1p-9 : 0x1p-6;

    if (!d)
        return 1;
    TRY(cuMemsetD8Async(p->d, 0xff, bytes, b->stream)); /* not a number */
    if (run_grouped(b, p)) {
        free(d);
        return 1;
    }
    TRY(cuStreamSynchronize(b->stream));
    TRY(cuMemcpyDtoHAsync(d, p->d, bytes, b->stream));
    TRY(cuStreamSynchronize(b->stream));
    for (int64_t i = 0; i < rows * n; i++)
        *ok &= !isnan(weft_element_get(b->dtype, d, (size_t)i));
    for (int64_t i = 0; i < b->experts * SAMPLES; i++) {
        int64_t row = i / SAMPLES * b->rows + i * 31 % b->rows, column = i * 7919 % n;
        double want = p->gated ? sum_of(b, p, row, 2 * column) : sum_of(b, p, row, column), got;

        if (p->gated)
            want = want / (1 + exp(-want)) * sum_of(b, p, row, 2 * column + 1);
        got = weft_element_get(b->dtype, d, (size_t)(row * n + column));
        *ok &= fabs(got - want) <= tolerance * (fabs(want) + 1); /* sums are about 1 */
    }
    free(d);
    return 0;
}

/* Rank 0 of nobody: answers "experts rows n k calls rounds" with the median of a graph's calls. */
static const char script[] =
    "import sys,statistics,torch\n"
    "t=getattr(torch,sys.argv[1]); torch.cuda.set_device(0)\n"
    "print('ready',torch.__version__,flush=True)\n"
    "for line in sys.stdin:\n"
    "  E,m,n,k,calls,rounds=map(int,line.split())\n"
    "  a=torch.randn(E*m,k,device='cuda').to(t); b=torch.empty(E,n,k,device='cuda',dtype=t)\n"
    "  for e in range(E): b[e]=torch.randn(n,k,device='cuda')*k**-0.5\n"
    "  ends=torch.arange(m,E*m+1,m,device='cuda',dtype=torch.int32); w=b.transpose(-2,-1)\n"
    "  op=lambda: torch._grouped_mm(a,w,offs=ends); stream=torch.cuda.Stream()\n"
    "  with torch.cuda.stream(stream): op()\n"
    "  torch.cuda.synchronize(); graph=torch.cuda.CUDAGraph(); times=[]\n"
    "  with torch.cuda.graph(graph,stream=stream):\n"
    "    for _ in range(calls): op()\n"
    "  for _ in range(rounds+2):\n"
    "    x,y=(torch.cuda.Event(enable_timing=True) for _ in range(2))\n"
    "    x.record(); graph.replay(); y.record(); y.synchronize()\n"
    "    times.append(x.elapsed_time(y)*1e3/calls)\n"
    "  print(statistics.median(times[2:]),flush=True)\n"
    "  del a,b,w,graph,op; torch.cuda.empty_cache()\n";

/* What torch._grouped_mm takes for the same product; NaN: not measured. */
static double ask_torch(expert_bench *b, const product *p)
{
    double us = NAN;

    if (!b->torch.pid)
        return NAN;
    if (fprintf(b->torch.ask, "%d %lld %lld %lld %d %d\n", b->experts, (long long)b->rows, (long long)p->n,
                (long long)p->k, CALLS, GRAPHS) < 0 ||
        fflush(b->torch.ask) || fscanf(b->torch.answer, "%lf", &us) != 1) {
        fprintf(stderr, "weft bench: PyTorch is left out: torch._grouped_mm failed\n");
        interpreter_close(&b->torch);
        return NAN;
    }
    return us;
}

static void print_row(expert_bench *b, const product *p, report_stats weft, report_stats loop,
                      double torch_us, bool ok)
{
    report *r = &b->report;
    double rows = (double)b->experts * (double)b->rows, n = (double)p->n, k = (double)p->k;
    double bytes = b->experts * n * k * (double)weft_dtype_size(b->weights) +
                   2 * (rows * k + rows * (p->gated ? n / 2 : n));

    report_text(r, "op", "moe");
    report_text(r, "backend", "cuda");
    report_int(r, "ranks", 1);
    report_text(r, "dtype", "%s", weft_dtype_name(b->dtype));
    report_text(r, "weights", "%s", weft_dtype_name(b->weights));
    report_int(r, "experts", b->experts);
    report_int(r, "hidden", b->hidden);
    report_int(r, "inter", b->inter);
    report_int(r, "rows", b->rows);
    report_text(r, "impl", "%s", p->name);
    report_time(r, "us", weft);
    report_real(r, "bound_us", bytes / b->copy_bytes_per_us);
    report_real(r, "tflops", 2 * rows * n * k / weft.median * 1e-6);
    if (b->has_peer)
        report_text(r, "peer", "cuBLASLt %zu", b->peer.version);
    report_time(r, "peer_us", loop);
    report_real(r, "peer_over_weft", loop.median / weft.median);
    if (isfinite(torch_us))
        report_text(r, "torch", "%s", b->torch.name);
    report_time(r, "torch_us", report_exact(torch_us));
    report_real(r, "torch_over_weft", torch_us / weft.median);
    report_bool(r, "ok", ok);
    report_row(r);
}

static int measure_product(expert_bench *b, const product *p)
{
    double samples[2][GRAPHS];
    gpu_graph calls[2] = {0};
    cublas_product one;
    bool ok = true;
    int sides = 1, status = check(b, p, &ok);

    if (!status && b->has_peer && cublas_product_make(&b->peer, b->rows, p->n, p->k, &one) == 0) {
        sides = 2;
        status = choose_candidate(b, p, &one);
    }
    for (int i = 0; i < sides && !status; i++)
        status = capture(b, p, i ? &one : NULL, &calls[i]);
    for (int n = -2; n < GRAPHS && !status; n++)
        for (int i = 0; i < sides && !status; i++)
            status = time_graph(b, &calls[i], &samples[i][n < 0 ? 0 : n]);
    if (!status)
        print_row(b, p, report_summarise(samples[0], GRAPHS),
                  sides == 2 ? report_summarise(samples[1], GRAPHS) : report_missing(), ask_torch(b, p), ok);
    for (int i = 0; i < sides; i++)
        gpu_graph_drop(b->device.cu, &calls[i]);
    return status;
}

/* ---- data ---------------------------------------------------------------------------------------------- */

static int upload(expert_bench *b, CUdeviceptr to, const void *from, size_t bytes)
{
    TRY(cuMemcpyHtoDAsync(to, from, bytes, b->stream));
    TRY(cuStreamSynchronize(b->stream));
    return 0;
}

/* `count` weights of every expert: the pool, from another place on for each. */
static int upload_pool(expert_bench *b, CUdeviceptr to, const char *pool, weft_dtype dtype, int64_t count)
{
    size_t size = weft_dtype_size(dtype);

    for (int64_t e = 0; e < b->experts; e++)
        if (upload(b, to + (size_t)(e * count) * size, pool + (size_t)(e * SHIFT) * size,
                   (size_t)count * size))
            return 1;
    return 0;
}

static int upload_weights(expert_bench *b, int64_t count)
{
    return upload_pool(b, b->b_weights, b->pool, b->dtype, count) ||
           (is_stored(b) && upload_pool(b, b->b_stored, b->stored, b->weights, count));
}

static int64_t widest(const expert_bench *b)
{
    return b->hidden > b->inter ? b->hidden : b->inter;
}

static int measure_rows(expert_bench *b)
{
    int64_t offset[EXPERTS_MOST + 1], total = b->experts * b->rows;
    CUdeviceptr stored = is_stored(b) ? b->b_stored : b->b_weights;
    const product products[2] = {
        {"gate+up", b->a, b->b_weights, stored, b->d, b->x, 2 * b->inter, b->hidden, true},
        {"down", b->a, b->b_weights, stored, b->d, b->x, b->hidden, b->inter, false},
    };
    int status;

    for (int e = 0; e <= b->experts; e++)
        offset[e] = e * b->rows;
    status = upload(b, b->a, b->x, (size_t)(total * widest(b)) * 2) ||
             upload(b, b->offset, offset, ((size_t)b->experts + 1) * sizeof(offset[0]));
    for (int i = 0; i < 2 && !status; i++) {
        /* the matrices of down are half as large: packed anew */
        status = upload_weights(b, (2 - i) * b->hidden * b->inter);
        if (!status)
            status = measure_product(b, &products[i]);
    }
    return status;
}

/* What a copy inside the GPU's memory reaches, reading and writing. */
static int measure_copy(expert_bench *b, CUdeviceptr memory, size_t bytes)
{
    enum { COPIES = 10 };
    float ms = 0;

    for (int i = -2; i < COPIES; i++) {
        if (i == 0)
            TRY(cuEventRecord(b->begin, b->stream));
        TRY(cuMemcpyAsync(memory + bytes / 2, memory, bytes / 2, b->stream));
    }
    TRY(cuEventRecord(b->end, b->stream));
    TRY(cuStreamSynchronize(b->stream));
    TRY(cuEventElapsedTime(&ms, b->begin, b->end));
    b->copy_bytes_per_us = (double)bytes * COPIES / ((double)ms * 1e3);
    return 0;
}

/* The factor of every column of all experts. */
static int upload_factors(expert_bench *b, int64_t count)
{
    float *all;
    int status;

    TRY(cuMemAlloc(&b->factors, (size_t)count * sizeof(float)));
    all = malloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count && all; i++)
        all[i] = b->factor;
    status = !all || upload(b, b->factors, all, (size_t)count * sizeof(float));
    free(all);
    return status;
}

/* Leaves what it has taken to release(), however it ends. */
static int measure(expert_bench *b, int64_t rows)
{
    static const int64_t usual[] = {16, 64, 256, 1024};
    int64_t weights_each = 2 * b->hidden * b->inter, count = weights_each + b->experts * SHIFT;
    int64_t most = rows ? rows : usual[3], x_count = b->experts * most * widest(b);
    double scale = 2 / sqrt((double)widest(b));
    uint64_t state = 88172645463325252u;
    int status = 0;

    b->x = malloc((size_t)x_count * 2);
    b->pool = malloc((size_t)count * 2);
    b->stored = is_stored(b) ? malloc((size_t)count) : b->pool;
    if (!b->pool || !b->stored || !b->x) {
        fprintf(stderr, "weft bench: no memory for the weights\n");
        return 1;
    }
    for (int64_t i = 0; i < count + x_count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double value = ((double)(state >> 40) * 0x1p-24 - 0.5) * 2;

        if (i < count && is_stored(b))
            weft_element_set(b->weights, b->stored, (size_t)i, value);
        if (i < count)
            weft_element_set(b->dtype, b->pool, (size_t)i, value * scale);
        else
            weft_element_set(b->dtype, b->x, (size_t)(i - count), value);
    }
    TRY(cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING));
    TRY(cuEventCreate(&b->begin, CU_EVENT_DEFAULT));
    TRY(cuEventCreate(&b->end, CU_EVENT_DEFAULT));
    TRY(cuMemAlloc(&b->a, (size_t)x_count * 2));
    TRY(cuMemAlloc(&b->d, (size_t)x_count * 2));
    TRY(cuMemAlloc(&b->loop_d, (size_t)x_count * 4));
    TRY(cuMemAlloc(&b->b_weights, (size_t)(b->experts * weights_each) * 2));
    b->factor = 1;
    if (is_stored(b)) {
        b->factor = (float)scale;
        TRY(cuMemAlloc(&b->b_stored, (size_t)(b->experts * weights_each)));
        status = upload_factors(b, b->experts * (2 * b->inter > b->hidden ? 2 * b->inter : b->hidden));
    }
    TRY(cuMemAlloc(&b->offset, (EXPERTS_MOST + 1) * sizeof(int64_t)));
    TRY(cuMemAlloc(&b->counter, 2 * sizeof(uint32_t)));
    TRY(cuMemsetD8Async(b->counter, 0, 2 * sizeof(uint32_t), b->stream));
    status = status || measure_copy(b, b->b_weights, (size_t)(b->experts * weights_each) * 2);
    report_note(&b->report,
                "experts of %s%s%s, one rank with the whole GPU, on %s; a copy in memory moves %.0f GB/s",
                weft_dtype_name(b->dtype), is_stored(b) ? ", weights stored as " : "",
                is_stored(b) ? weft_dtype_name(b->weights) : "", b->device.name, b->copy_bytes_per_us * 1e-3);
    report_note(
        &b->report, REPORT_TIME_LEGEND
        "; H elements a row, inter of them between the products, rows of each expert; grouped: all\nexperts "
        "in one call; memory: what must pass it, at the rate of a copy; cuBLAS loop: one expert after "
        "another;\n"
        "ratio: the time before it ÷ grouped");
    for (int i = 0; i < (rows ? 1 : 4) && !status; i++) {
        b->rows = rows ? rows : usual[i];
        status = measure_rows(b);
    }
    return status;
}

static void release(expert_bench *b)
{
    const CUdeviceptr memory[] = {b->offset, b->counter, b->factors,   b->a,
                                  b->d,      b->loop_d,  b->b_weights, b->b_stored};
    const weft_cuda_driver *cu = b->device.cu;

    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        if (memory[i])
            cu->cuMemFree(memory[i]);
    if (b->begin)
        cu->cuEventDestroy(b->begin);
    if (b->end)
        cu->cuEventDestroy(b->end);
    if (b->stream)
        cu->cuStreamDestroy(b->stream);
    free(b->x);
    if (b->stored != b->pool)
        free(b->stored);
    free(b->pool);
}

int bench_cuda_experts(const weft_options *options, const bench_moe_choice *choice, report_page *page)
{
    expert_bench b = {.experts = choice->experts,
                      .hidden = choice->shape[0].hidden,
                      .inter = choice->inter,
                      .dtype = choice->dtype,
                      .weights = choice->weights};
    weft_error_text none;
    int status, closed;

    if (options->ranks_given && options->ranks != 1)
        return options_error("bench",
                             "--inter with --backend cuda measures the experts of one rank, not of %lld",
                             (long long)options->ranks);
    if (b.experts > EXPERTS_MOST || (b.dtype != WEFT_F16 && b.dtype != WEFT_BF16))
        return options_error(
            "bench", "--inter with --backend cuda: at most %d experts of float16 or bfloat16", EXPERTS_MOST);
    if (weft_cuda_gpus.open(0, &b.device, &b.error) != WEFT_OK)
        return options_error("bench", "--backend cuda: %s", b.error.text);
    b.device.cu->cuCtxSetCurrent(b.device.context);
    b.has_peer = b.dtype == WEFT_BF16 && b.device.cu == weft_cuda_driver_open(&none) &&
                 cublas_peer_open(&b.peer, b.device.cu) == 0;
    if (bench_torch_python()) {
        char *argv[] = {(char *)bench_torch_python(), "-c", (char *)script, (char *)weft_dtype_name(b.dtype),
                        NULL};

        if (interpreter_open(&b.torch, argv))
            fprintf(stderr, "weft bench: PyTorch is left out: it does not start on this GPU\n");
    }
    report_open(&b.report, stdout, options->json, columns);
    b.report.page = page;
    status = measure(&b, choice->rows);
    release(&b);
    interpreter_close(&b.torch);
    closed = report_close(&b.report);
    weft_cuda_device_close(&b.device);
    return status ? status : closed;
}
