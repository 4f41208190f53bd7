/*
 * One rank's bf16 product on a GPU beside cuBLASLt: row-major D[m,n] = A[m,k] B[k,n], over the shapes of
 * layers and a few hard ones. Each shape is first run on small integers, where all must give the same bits;
 * then they are timed on random data by replaying graphs of several runs, in turns: cuBLASLt by the fastest
 * of its candidates, weft's own kernels, and weft with cuBLASLt (`unfused`), which takes one that adds up in
 * order, without timing it. `auto` is one of the two latter; the row says which. Operands stay the same from
 * run to run, so that small ones stay in L2, for all.
 *
 * usage: cuda_gemm [--fp8 | --blocks | --fast | --silu] [--tune] [M N K]...
 *   --fp8   e4m3 into bf16 instead, of a B that is stored n x k, which cuBLASLt and the tensor cores need
 *   --blocks  the same, weft's own kernels with factors for blocks of 128, all of them one
 *   --fast    the same, weft's sums staying in the tensor cores
 *   --silu    weft applies it, cuBLASLt does not: nothing is compared
 *   --tune  also every walker, its tiles whole and divided along k, and what the model of products by
 *           themselves has for the fastest ways, beside what the models say
 */
#include "bench/cuda/cublas_peer.h"
#include "core/dtype.h"
#include "core/round.h"
#include "choose/cuda/choose.h"
#include "choose/cuda/cost.h"
#include "choose/cuda/makes.h"
#include "run/cuda/splitk_product.h"
#include "run/cuda/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 20, ROUNDS = 7 };
static const size_t POOL_BYTES = (size_t)64 << 20, ONES_BYTES = (size_t)32 << 20;

typedef struct shape {
    int64_t m, n, k;
} shape;

/* Tokens against layers of Llama 3 8B and 70B, Qwen 2.5, DeepSeek V3 and GPT-OSS on one rank and on one of
 * eight. */
static const shape shapes[] = {
    {1, 8192, 8192},     {1, 1280, 8192},    {1, 28672, 4096},    {1, 7168, 2048},     {1, 4096, 14336},
    {2, 6144, 4096},     {2, 7168, 8192},    {2, 2880, 4096},     {7, 8192, 1024},     {7, 3584, 18944},
    {7, 2112, 7168},     {7, 4096, 4096},    {16, 8192, 8192},    {16, 8192, 3584},    {16, 24576, 1536},
    {16, 5120, 2880},    {33, 28672, 4096},  {33, 1280, 8192},    {33, 7168, 16384},   {33, 4096, 1792},
    {64, 28672, 8192},   {64, 7168, 8192},   {64, 4096, 4096},    {64, 2880, 2880},    {64, 8192, 1024},
    {100, 6144, 4096},   {100, 8192, 3584},  {100, 3584, 18944},  {100, 1280, 8192},   {128, 8192, 8192},
    {128, 7168, 8192},   {128, 7168, 2048},  {128, 4096, 14336},  {128, 768, 4096},    {256, 28672, 4096},
    {256, 8192, 3584},   {256, 2112, 7168},  {256, 5120, 2880},   {256, 256, 65536},   {512, 4096, 14336},
    {512, 8192, 8192},   {512, 7168, 2048},  {512, 1280, 8192},   {512, 37888, 3584},  {1000, 6144, 4096},
    {1000, 8192, 1024},  {1000, 7168, 8192}, {1000, 2880, 2880},  {1024, 1024, 1024},  {2048, 2048, 2048},
    {2048, 3584, 4096},  {2048, 8192, 3584}, {2048, 28672, 4096}, {2048, 7168, 16384}, {4096, 1792, 4096},
    {4096, 4096, 4096},  {4096, 8192, 8192}, {4096, 3584, 8192},  {4096, 5120, 2880},  {4096, 4096, 512},
    {4096, 24576, 1536}, {5000, 5000, 5000}, {8192, 8192, 8192},  {4097, 4095, 4099},  {997, 1009, 1013},
};

typedef struct bench {
    weft_cuda_device device;
    cublas_peer peer;
    CUdeviceptr integers, reals, result; /* the two pools of operands; D of cuBLASLt */
    CUevent begin, end;
    weft_error_text error;
    CUdeviceptr ones; /* --blocks: factors */
    bool fp8, blocks, fast, silu;
} bench;

static int fail(const bench *b, const char *what)
{
    fprintf(stderr, "cuda_gemm: %s%s%s\n", what, b->error.text[0] ? ": " : "", b->error.text);
    return 1;
}

static bool make_pool(const weft_cuda_driver *cu, weft_dtype dtype, bool integers, CUdeviceptr *pool)
{
    void *words = malloc(POOL_BYTES);
    uint64_t x = 88172645463325252u;
    bool good;

    for (size_t i = 0; words && i < POOL_BYTES / weft_dtype_size(dtype); i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        float value = integers ? (float)((int)(x % 5) - 2) : (float)(int32_t)x * 0x1p-31f;

        weft_element_set(dtype, words, i, value);
    }
    good = words && cu->cuMemAlloc(pool, POOL_BYTES) == CUDA_SUCCESS &&
           cu->cuMemcpyHtoDAsync(*pool, words, POOL_BYTES, NULL) == CUDA_SUCCESS &&
           cu->cuStreamSynchronize(NULL) == CUDA_SUCCESS;
    free(words);
    return good;
}

static void fill(bench *b, const weft_cuda_world *w, weft_operand_role role, size_t bytes, CUdeviceptr pool)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)weft_cuda_world_place(w, role, 0).base;

    for (size_t done = 0; done < bytes; done += POOL_BYTES)
        b->device.cu->cuMemcpyAsync(at + done, pool, bytes - done < POOL_BYTES ? bytes - done : POOL_BYTES,
                                    NULL);
}

static void fill_all(bench *b, const weft_cuda_world *w, const shape *s, CUdeviceptr pool)
{
    size_t bytes = b->fp8 ? 1 : 2;

    fill(b, w, WEFT_ROLE_A, (size_t)(s->m * s->k) * bytes, pool);
    fill(b, w, WEFT_ROLE_B, (size_t)(s->k * s->n) * bytes, pool);
    b->device.cu->cuStreamSynchronize(NULL);
}

/* A run of either: `product` NULL is weft's. */
static bool enqueue(bench *b, weft_cuda_world *w, const cublas_product *product, int candidate)
{
    if (!product)
        return weft_cuda_world_launch(w, &b->error) == WEFT_OK;
    return cublas_product_run(&b->peer, product, candidate, weft_cuda_world_place(w, WEFT_ROLE_A, 0).base,
                              weft_cuda_world_place(w, WEFT_ROLE_B, 0).base, (void *)(uintptr_t)b->result,
                              w->streams[0]) == 0;
}

static CUgraphExec capture(bench *b, weft_cuda_world *w, const cublas_product *product, int candidate)
{
    const weft_cuda_driver *cu = b->device.cu;
    CUgraphExec made = NULL;
    CUgraph graph = NULL;

    cu->cuStreamBeginCapture(w->streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL);
    for (int i = 0; i < RUNS; i++)
        enqueue(b, w, product, candidate);
    if (cu->cuStreamEndCapture(w->streams[0], &graph) == CUDA_SUCCESS)
        cu->cuGraphInstantiate(&made, graph, 0);
    if (graph)
        cu->cuGraphDestroy(graph);
    return made;
}

static double time_graph(bench *b, weft_cuda_world *w, CUgraphExec graph)
{
    const weft_cuda_driver *cu = b->device.cu;
    float ms = 0;

    if (!graph)
        return NAN;
    cu->cuEventRecord(b->begin, w->streams[0]);
    cu->cuGraphLaunch(graph, w->streams[0]);
    cu->cuEventRecord(b->end, w->streams[0]);
    if (cu->cuEventSynchronize(b->end) != CUDA_SUCCESS ||
        cu->cuEventElapsedTime(&ms, b->begin, b->end) != CUDA_SUCCESS)
        return NAN;
    return (double)ms * 1e3 / RUNS;
}

static int by_value(const void *x, const void *y)
{
    return (*(const double *)x > *(const double *)y) - (*(const double *)x < *(const double *)y);
}

/* The fastest of cuBLASLt's candidates. */
static CUgraphExec capture_fastest(bench *b, weft_cuda_world *w, cublas_product *product)
{
    const weft_cuda_driver *cu = b->device.cu;
    CUgraphExec fastest = NULL;
    double best = INFINITY;

    for (int i = 0; i < product->count; i++) {
        CUgraphExec graph = capture(b, w, product, i), worse = graph;
        double first = time_graph(b, w, graph), then = time_graph(b, w, graph);

        (void)first;
        if (graph && then < best) {
            best = then;
            worse = fastest;
            fastest = graph;
        }
        if (worse)
            cu->cuGraphExecDestroy(worse);
    }
    return fastest;
}

enum { PEER, OWN, LIBRARY, CONTENDERS };

/* Medians of each, in turns: cuBLASLt's unless `product` is NULL, and of the worlds there are. */
static void time_all(bench *b, weft_cuda_world *worlds[CONTENDERS], cublas_product *product,
                     double us[CONTENDERS])
{
    const weft_cuda_driver *cu = b->device.cu;
    CUgraphExec graphs[CONTENDERS] = {0};
    double samples[CONTENDERS][ROUNDS];

    for (int i = 0; i < CONTENDERS; i++)
        if (i == PEER && product)
            graphs[i] = capture_fastest(b, worlds[OWN], product);
        else if (i != PEER && worlds[i]) {
            graphs[i] = capture(b, worlds[i], NULL, 0);
            time_graph(b, worlds[i], graphs[i]);
        }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < CONTENDERS; i++)
            samples[i][round] = time_graph(b, worlds[OWN], graphs[i]);
    for (int i = 0; i < CONTENDERS; i++) {
        qsort(samples[i], ROUNDS, sizeof(double), by_value);
        us[i] = samples[i][ROUNDS / 2];
        if (graphs[i])
            cu->cuGraphExecDestroy(graphs[i]);
    }
}

/* Elements of weft's D that differ from cuBLASLt's on integers; -1: it did not run. */
static int64_t count_wrong(bench *b, weft_cuda_world *w, const shape *s, const cublas_product *product)
{
    const weft_cuda_driver *cu = b->device.cu;
    size_t bytes = (size_t)(s->m * s->n) * 2;
    CUdeviceptr d = (CUdeviceptr)(uintptr_t)weft_cuda_world_place(w, WEFT_ROLE_D, 0).base;
    uint16_t *own = malloc(bytes), *other = malloc(bytes);
    int64_t wrong = -1;

    fill_all(b, w, s, b->integers);
    cu->cuMemsetD8Async(d, 0xff, bytes, NULL);
    cu->cuMemsetD8Async(b->result, 0x7f, bytes, NULL);
    cu->cuStreamSynchronize(NULL);
    if (own && other && enqueue(b, w, NULL, 0) && weft_cuda_world_finish(w, &b->error) == WEFT_OK &&
        enqueue(b, w, product, 0) && cu->cuStreamSynchronize(w->streams[0]) == CUDA_SUCCESS &&
        cu->cuMemcpyDtoHAsync(own, d, bytes, NULL) == CUDA_SUCCESS &&
        cu->cuMemcpyDtoHAsync(other, b->result, bytes, NULL) == CUDA_SUCCESS &&
        cu->cuStreamSynchronize(NULL) == CUDA_SUCCESS) {
        wrong = 0;
        for (int64_t i = 0; i < s->m * s->n; i++)
            wrong += own[i] != other[i];
    }
    free(own);
    free(other);
    return wrong;
}

static weft_problem problem_of(const bench *b, const shape *s)
{
    weft_problem p;

    weft_problem_init(&p, WEFT_OP_AG_GEMM);
    p.layout = WEFT_LAYOUT_GATHER_A;
    p.m = s->m, p.n = s->n, p.k = s->k;
    p.dtype = b->fp8 ? WEFT_FP8_E4M3 : WEFT_BF16;
    p.d_dtype = WEFT_BF16;
    p.transb = b->fp8;
    p.fp8_fast = b->fast;
    p.act = b->silu ? WEFT_ACT_SILU : WEFT_ACT_NONE;
    return p;
}

static int make_world(bench *b, const weft_problem *p, weft_cuda_world *w)
{
    weft_cuda_world_options options = {.dense = true, .limits = {10, 10}};

    return weft_cuda_world_make(&b->device, p, 1, &options, w, &b->error) == WEFT_OK ? 0 : fail(b, "no plan");
}

static void tune(bench *b, const shape *s, const cublas_product *product)
{
    int twice = b->fp8 ? 2 : 1; /* the k of a step */
    weft_cuda_shape asked = {s->m, s->n, s->k / twice, 1, b->device.crews, false, b->fp8};

    for (int walker = 0; walker < WEFT_CUDA_WALKERS; walker++)
        for (int divided = 0; divided < 2; divided++) {
            weft_problem p = problem_of(b, s);
            weft_cuda_world w;
            weft_cuda_way way;
            weft_cuda_world *only[CONTENDERS] = {[OWN] = &w};
            double us[CONTENDERS];
            int64_t wrong;

            if ((b->fp8 &&
                 (weft_cuda_walkers[walker].tile_n != 128 || weft_cuda_walkers[walker].exchanged)) ||
                !weft_cuda_cost(&asked, walker, divided, &way))
                continue;
            p.schedule = WEFT_SCHEDULE_DIRECT;
            p.tuning.crew = weft_cuda_walkers[walker].ctas;
            p.tuning.tile_m = weft_cuda_walkers[walker].tile_m;
            p.tuning.tile_n = weft_cuda_walkers[walker].tile_n;
            p.tuning.chunk_k = twice * way.chunk_k;
            p.tuning.workers = way.workers;
            if (make_world(b, &p, &w))
                continue;
            wrong = count_wrong(b, &w, s, product);
            fill_all(b, &w, s, b->reals);
            time_all(b, only, NULL, us);
            printf("   walker %d %s workers %3d chunk %5d  %8.1f µs  model %8.1f%s\n", walker,
                   divided ? "divided" : "whole  ", way.workers, (int)way.chunk_k, us[OWN], way.ns * 1e-3,
                   wrong ? "  WRONG" : "");
            weft_cuda_world_free(&w);
        }
}

/* The fastest ways of dividing a product by itself, by the model. */
enum { WAYS = 28 };
typedef struct ways {
    weft_splitk_way at[WAYS];
    int count;
} ways;

static void keep_way(void *context, const weft_splitk_way *way)
{
    ways *kept = context;
    int at;

    if (kept->count == WAYS && way->ns >= kept->at[WAYS - 1].ns)
        return;
    at = kept->count < WAYS ? kept->count++ : WAYS - 1;
    for (; at > 0 && kept->at[at - 1].ns > way->ns; at--)
        kept->at[at] = kept->at[at - 1];
    kept->at[at] = *way;
}

/* Few rows are not divided by the model: what is taken, and the same sent. */
static void find_ways(const bench *b, const shape *s, ways *found)
{
    weft_splitk_way few = weft_splitk_fastest(s->m, s->n, s->k, false, b->device.sm_count);

    found->count = 0;
    if (few.tile > 2) {
        weft_splitk_ways(s->m, s->n, s->k, false, b->device.sm_count, keep_way, found);
        return;
    }
    for (few.slices = 1; few.slices <= WEFT_CUDA_SPLITK_SLICES; few.slices++)
        for (int sent = 0; sent <= (few.slices > 1); sent++) {
            few.sent = sent;
            keep_way(found, &few);
        }
}

static void tune_by_itself(bench *b, const shape *s, const cublas_product *product)
{
    weft_problem p = problem_of(b, s);
    weft_cuda_world w;
    weft_cuda_world *only[CONTENDERS] = {[OWN] = &w};
    ways found;

    p.tuning.library = 3;
    if (b->fp8 || !weft_splitk_makes(&p, 1) || make_world(b, &p, &w))
        return;
    find_ways(b, s, &found);
    for (int i = 0; i < found.count; i++) {
        const weft_splitk_way *way = &found.at[i];
        weft_splitk_product *made = &w.executors[0].splitk;
        double us[CONTENDERS];
        int64_t wrong;

        weft_splitk_product_free(&b->device, made);
        if (weft_splitk_product_make(&b->device, &w.parts[0], w.places, &w.parts[0].tasks[0], b->device.crews,
                                     way, made, &b->error) != WEFT_OK)
            break;
        wrong = count_wrong(b, &w, s, product);
        fill_all(b, &w, s, b->reals);
        time_all(b, only, NULL, us);
        printf("   splitk %d down %2d sharers %d slices %d groups %2d sent %d  %8.2f µs  model %8.2f%s\n",
               way->tile, way->down, way->sharers, way->slices, way->groups, (int)way->sent, us[OWN],
               way->ns * 1e-3, wrong ? "  WRONG" : "");
    }
    weft_cuda_world_free(&w);
}

/* Whether `auto` leaves the product to cuBLASLt. */
static bool is_left(bench *b, const shape *s)
{
    weft_problem p = problem_of(b, s);
    weft_cuda_world w = {0};
    bool left = make_world(b, &p, &w) == 0 && w.executors[0].library.lt;

    if (w.device)
        weft_cuda_world_free(&w);
    return left;
}

/* cuBLASLt's time over that of `auto`, and of weft's own kernels. */
typedef struct ratios {
    double chosen, own;
} ratios;

/* Factors of blocks for one rank's product: cuBLASLt has none, so they are one. */
static void give_ones(const bench *b, const shape *s, weft_cuda_args *args)
{
    args->a_scale = args->b_scale = (const float *)(uintptr_t)b->ones;
    args->a_scale_row = args->b_scale_col = weft_divide_up(s->k, WEFT_CUDA_SCALE_BLOCK);
    args->a_scale_k = args->b_scale_k = 1;
}

static int bench_shape(bench *b, const shape *s, bool tunes, ratios *r)
{
    weft_problem own = problem_of(b, s), library = own;
    weft_cuda_world worlds[CONTENDERS] = {0}, *timed[CONTENDERS] = {NULL, &worlds[OWN], &worlds[LIBRARY]};
    cublas_product product;
    double us[CONTENDERS];
    int64_t wrong = 0;
    bool left = is_left(b, s);

    own.schedule = WEFT_SCHEDULE_DIRECT;
    library.schedule = WEFT_SCHEDULE_UNFUSED;
    if ((b->fp8 ? cublas_product_make_fp8 : cublas_product_make)(&b->peer, s->m, s->n, s->k, &product))
        return fail(b, "cuBLASLt has no product of this shape");
    if (make_world(b, &own, &worlds[OWN]) || make_world(b, &library, &worlds[LIBRARY]))
        return 1;
    if (b->blocks)
        give_ones(b, s, &worlds[OWN].executors[0].args);
    for (int i = OWN; i <= LIBRARY; i++) {
        wrong += count_wrong(b, &worlds[i], s, &product) != 0 && !b->silu;
        fill_all(b, &worlds[i], s, b->reals);
    }
    if (!worlds[LIBRARY].executors[0].library.lt)
        timed[LIBRARY] = NULL;
    time_all(b, timed, &product, us);
    const weft_problem *chosen = &worlds[OWN].parts[0].problem;
    *r = (ratios){us[PEER] / us[left ? LIBRARY : OWN], us[PEER] / us[OWN]};
    printf("%6d %6d %6d  %8.1f %8.1f %8.1f  %-8s %6.3f %6.3f  %4dx%-4d chunk %5d workers %3d%s%s\n",
           (int)s->m, (int)s->n, (int)s->k, us[PEER], us[LIBRARY], us[OWN], left ? "cuBLASLt" : "weft",
           r->chosen, r->own, (int)chosen->tuning.tile_m, (int)chosen->tuning.tile_n,
           (int)chosen->tuning.chunk_k, chosen->tuning.workers,
           worlds[OWN].executors[0].splitk.kernel ? "  by itself"
           : worlds[OWN].executors[0].hopper      ? ""
                                                  : "  any strides",
           wrong ? "  WRONG" : "");
    fflush(stdout);
    for (int i = OWN; i <= LIBRARY; i++)
        weft_cuda_world_free(&worlds[i]);
    if (tunes) {
        tune_by_itself(b, s, &product);
        tune(b, s, &product);
    }
    return wrong != 0;
}

/* The i-th of those that were asked for, from argv[first] on, or of the table. */
static shape shape_at(int argc, char **argv, int first, int i)
{
    char **numbers = argv + first + 3 * (ptrdiff_t)i;

    return argc > first ? (shape){atoll(numbers[0]), atoll(numbers[1]), atoll(numbers[2])} : shapes[i];
}

int main(int argc, char **argv)
{
    bench b = {0};
    bool blocks = argc > 1 && strcmp(argv[1], "--blocks") == 0,
         fast = argc > 1 && strcmp(argv[1], "--fast") == 0, silu = argc > 1 && strcmp(argv[1], "--silu") == 0,
         fp8 = blocks || fast || (argc > 1 && strcmp(argv[1], "--fp8") == 0), option = fp8 || silu;
    bool tunes = argc > 1 + option && strcmp(argv[1 + option], "--tune") == 0;
    weft_dtype dtype = fp8 ? WEFT_FP8_E4M3 : WEFT_BF16;
    int first = 1 + option + tunes,
        count = argc > first ? (argc - first) / 3 : (int)(sizeof(shapes) / sizeof(shapes[0]));
    ratios sum = {0, 0}, least = {INFINITY, INFINITY};
    int64_t result_bytes = 256;
    int failed = 0;

    for (int i = 0; i < count; i++) {
        shape s = shape_at(argc, argv, first, i);

        result_bytes = weft_max(result_bytes, s.m * s.n * 2);
    }
    if (weft_cuda_device_open(0, &b.device, &b.error) != WEFT_OK)
        return fail(&b, "no GPU");
    const weft_cuda_driver *cu = b.device.cu;
    if (cublas_peer_open(&b.peer, cu))
        return fail(&b, "cuBLASLt was not found");
    b.fp8 = fp8, b.blocks = blocks, b.fast = fast, b.silu = silu;
    if (!make_pool(cu, dtype, true, &b.integers) || !make_pool(cu, dtype, false, &b.reals) ||
        cu->cuMemAlloc(&b.result, (size_t)result_bytes) != CUDA_SUCCESS ||
        cu->cuEventCreate(&b.begin, 0) != CUDA_SUCCESS || cu->cuEventCreate(&b.end, 0) != CUDA_SUCCESS)
        return fail(&b, "no memory on the GPU");
    if (blocks && (cu->cuMemAlloc(&b.ones, ONES_BYTES) != CUDA_SUCCESS ||
                   cu->cuMemsetD32Async(b.ones, 0x3f800000, ONES_BYTES / 4, NULL) != CUDA_SUCCESS))
        return fail(&b, "no memory on the GPU");
    printf("%s, cuBLASLt %zu, %s, µs; ratios are cuBLASLt's fastest ÷ weft\n"
           "     M      N      K  cuBLASLt  unfused      own  auto is   ratio    own  tile of own\n",
           b.device.name, b.peer.version, fp8 ? "fp8 (e4m3) to bf16" : "bf16");
    for (int i = 0; i < count; i++) {
        shape s = shape_at(argc, argv, first, i);
        ratios r = {NAN, NAN};

        failed |= bench_shape(&b, &s, tunes, &r);
        sum.chosen += log(r.chosen);
        sum.own += log(r.own);
        least.chosen = fmin(least.chosen, r.chosen);
        least.own = fmin(least.own, r.own);
    }
    printf("cuBLASLt ÷ weft over %d shapes: auto: geometric mean %.3f, least %.3f; own kernels: %.3f, %.3f\n",
           count, exp(sum.chosen / count), least.chosen, exp(sum.own / count), least.own);
    weft_cuda_device_close(&b.device);
    return failed;
}
