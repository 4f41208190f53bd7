/* See splitk_product.h. */
#include "run/cuda/splitk_product.h"

#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/asked.h"
#include "run/cuda/exchanged.h"

#include <math.h>
#include <string.h>

enum { VECTOR = 8, GROUPS_MOST = 16, STREAMED = 25 << 20, CACHED = 20 << 20 /* elements of B */ };

/* Tiles, in the order of WEFT_CUDA_SPLITK_TILES. */
enum { T8X64, T16X64, T32X64, T64X64, T64X128, T128X64, T128X128 };

static const struct {
    int tokens, cols, ctas;
} tiles[] = {
#define TILE(tokens, cols, ctas) {tokens, cols, ctas},
    WEFT_CUDA_SPLITK_TILES(TILE)
#undef TILE
};

/* ---- how it is divided ------------------------------------------------------------------------------- */

/* Measured on an H200: a step of a CTA when few work and when all do, and what a tile takes beside its steps,
 * all in nanoseconds. */
static const struct {
    double idle, busy, tile;
} measured[] = {
    {152, 363, 0},    {57, 707, 94},    {54, 580, 1065},  {50, 452, 2036},
    {268, 339, 1702}, {168, 312, 2102}, {390, 460, 1610},
};

/* The part of the SMs that clusters of 1, 2, ... CTAs can fill at once. */
static const double USABLE[WEFT_CUDA_SPLITK_SLICES] = {1, 1, 0.91, 0.86, 0.86, 0.74, 0.81, 0.85};

static const double LAUNCH_NS = 315;        /* of a launch, and its end */
static const double MEMORY_NS = 3997;       /* bytes a nanosecond out of memory, all SMs together */
static const double CACHE_NS = 3358;        /* and out of L2 */
static const double CACHE_BYTES = 11306805; /* operands that stay there */
static const double LOADS_NS = 10740;       /* bytes a nanosecond that all SMs load, from wherever */
static const double FAR_NS = 827;           /* from the request of a stage to its arrival, out of memory */
static const double NEAR_NS = 824;          /* and out of L2 */
static const double CLUSTER_NS = 167;       /* CTAs of a cluster meet */
static const double EXCHANGE_NS = 16;       /* bytes a nanosecond out of other CTAs' shared memory */
static const double SLICE_NS = 85;          /* for each slice */
static const double GROUPS_NS = 1787;       /* sums of groups written, seen, added up */
static const double GROUP_NS = 0;           /* for each group */

static double larger(double x, double y)
{
    return x > y ? x : y;
}

/* Clusters that are on so many SMs at once. */
static int64_t clusters_on(const weft_splitk_way *way, int sms)
{
    int cluster = way->sharers * way->slices;

    return (int64_t)(sms * tiles[way->tile].ctas * USABLE[cluster - 1] / cluster);
}

/* Rounds of all clusters that fit at once. Where several CTAs fit an SM, a round begins while the one before
 * it ends. */
static double rounds_of(const weft_splitk_way *way, int64_t clusters, int sms)
{
    int ctas = tiles[way->tile].ctas;
    double fit = (double)clusters_on(way, sms), x, whole;

    if (fit < 1)
        return INFINITY;
    x = (double)clusters / fit;
    whole = ceil(x);
    return larger(1, ctas == 1 ? whole : (x + whole) / 2);
}

static int stages_of(int tile)
{
    return WEFT_CUDA_SPLITK_STAGES(tiles[tile].tokens, tiles[tile].cols, tiles[tile].ctas);
}

static double cost(const weft_splitk_way *way, int64_t m, int64_t n, int64_t k, int sms)
{
    int tokens = tiles[way->tile].tokens, cols = tiles[way->tile].cols;
    int64_t steps = weft_divide_up(k, WEFT_CUDA_SPLITK_STEP), down = weft_divide_up(m, tokens),
            across = weft_round_up(weft_divide_up(n, cols), way->sharers),
            clusters = down * across / way->sharers * way->groups;
    double ctas = (double)(clusters * way->sharers * way->slices),
           most = (double)(sms * tiles[way->tile].ctas), load = ctas < most ? ctas / most : 1,
           rounds = rounds_of(way, clusters, sms),
           bytes = 2 * ((double)m * (double)k + (double)k * (double)n + (double)m * (double)n),
           step =
               larger(measured[way->tile].idle + (measured[way->tile].busy - measured[way->tile].idle) * load,
                      (bytes > CACHE_BYTES ? FAR_NS : NEAR_NS) / (stages_of(way->tile) - 1)),
           loads = (double)(down * across * steps) * WEFT_CUDA_SPLITK_STEP * 2 *
                   ((double)tokens / way->sharers + cols),
           ns = LAUNCH_NS + measured[way->tile].tile * rounds;

    ns += larger(rounds * (double)weft_divide_up(steps, way->slices * way->groups) * step,
                 larger(bytes / (bytes > CACHE_BYTES ? MEMORY_NS : CACHE_NS), loads / LOADS_NS));
    if (way->sharers * way->slices > 1)
        ns += CLUSTER_NS;
    if (way->slices > 1)
        ns += tokens * cols * 4.0 * (way->slices - 1) / way->slices / EXCHANGE_NS + SLICE_NS * way->slices;
    if (way->groups > 1)
        ns += GROUPS_NS + GROUP_NS * way->groups;
    return ns;
}

static int between(double value, int least, int64_t most)
{
    int near = (int)(value + 0.5);

    return near < least || most < least ? least : near > most ? (int)most : near;
}

/* Up to 128 rows: one tile of tokens, so many slices that the CTAs are as many as measured best for a GPU. */
static weft_splitk_way divide_few(int64_t m, int64_t n, int64_t k, double sms)
{
    int64_t narrow = weft_divide_up(n, 64), half = weft_divide_up(n, 128),
            most = weft_divide_up(k, WEFT_CUDA_SPLITK_STEP) / 2;
    weft_splitk_way way = {.sharers = 1, .groups = 1};

    most = most > WEFT_CUDA_SPLITK_SLICES ? WEFT_CUDA_SPLITK_SLICES : most;
    if (m <= 32) {
        way.tile = m <= 8 ? T8X64 : m <= 16 ? T16X64 : T32X64;
        way.slices = between(1.21 * sms / (double)narrow, 1, most);
    } else if (m <= 64 && n * k > STREAMED) {
        way.tile = T64X128;
        way.sharers = 2;
        way.slices = between(0.91 * sms / (double)half, 1, most / 2);
    } else if (m <= 64) {
        way.tile = T64X64;
        way.slices = between(0.83 * sms / (double)narrow, 1, most < 5 ? most : 5);
    } else if (n * k <= CACHED && (double)narrow >= 0.75 * sms) {
        way.tile = T128X64;
        way.slices = between(0.9 * sms / (double)narrow, 1, most);
    } else if ((double)half >= 0.18 * sms) {
        way.tile = T128X128;
        way.slices = between(0.91 * sms / (double)half, 1, most);
        while (way.slices > 2 && (double)(half * way.slices) > 0.86 * sms) /* clusters would not all fit */
            way.slices--;
        if (half % 2 == 0 && (double)(half * way.slices) <= 0.85 * sms && 2 * way.slices <= most)
            way.sharers = 2;
    } else {
        way.tile = T128X64;
        way.slices = between(0.76 * sms / (double)narrow, 1, most);
    }
    return way;
}

/* More rows: tiles of 128 tokens; slices, and groups of them, where there are too few tiles. */
static weft_splitk_way divide_many(int64_t m, int64_t n, int64_t k, double sms)
{
    int64_t down = weft_divide_up(m, 128), narrow = down * weft_divide_up(n, 64),
            half = down * weft_divide_up(n, 128), most = weft_divide_up(k, WEFT_CUDA_SPLITK_STEP) / 2;
    weft_splitk_way way = {.tile = T128X64, .sharers = 1, .slices = 1, .groups = 1};

    if ((double)(2 * half) > sms) {
        way.tile = T128X128;
    } else if ((double)(2 * narrow) > sms && (double)half <= 0.33 * sms && most >= 2) {
        way.tile = T128X128;
        way.sharers = way.slices = 2;
    } else if ((double)(8 * narrow) <= sms && most >= 3 * GROUPS_MOST) {
        way.sharers = 2;
        way.slices = 3;
        way.groups = between(0.75 * sms / (double)(3 * narrow), 1, GROUPS_MOST);
    } else {
        while (2 * way.slices <= most && 2 * way.slices <= WEFT_CUDA_SPLITK_SLICES &&
               (double)(2 * way.slices * narrow) <= sms)
            way.slices *= 2;
    }
    return way;
}

weft_splitk_way weft_splitk_fastest(int64_t m, int64_t n, int64_t k, int sms)
{
    weft_splitk_way way = m <= 128 ? divide_few(m, n, k, sms) : divide_many(m, n, k, sms);

    way.ns = cost(&way, m, n, k, sms);
    return way;
}

/* ---- a rank's product -------------------------------------------------------------------------------- */

/* The copy engine reads whole 16 bytes of lines, of which A has k and B n or k. */
bool weft_splitk_makes(const weft_problem *p, int world)
{
    bool sums = world > 1 && (p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR);
    weft_dtype out = sums ? p->wire_dtype : p->d_dtype;
    int64_t k = sums ? p->k / world : p->k, n = world > 1 && !sums ? p->n / world : p->n;
    bool even = world == 1 || (p->k % (sums ? (int64_t)VECTOR * world : VECTOR) == 0 &&
                               p->n % (sums ? VECTOR : (int64_t)VECTOR * world) == 0);

    return p->op < WEFT_OP_ALL_REDUCE && (p->dtype == WEFT_F16 || p->dtype == WEFT_BF16) &&
           (out == p->dtype || out == WEFT_F32) && p->l == 1 && p->alpha != 0 && !p->transa &&
           weft_cuda_multiplies_everywhere(p, world) && even && k % VECTOR == 0 &&
           (p->transb || n % VECTOR == 0) && p->m <= INT32_MAX && p->n <= INT32_MAX && p->k <= INT32_MAX;
}

static weft_status encode(const weft_cuda_driver *cu, const weft_cuda_matrix *x, int64_t inner, int64_t outer,
                          int box_outer, weft_cuda_splitk_map *map, weft_error_text *error)
{
    cuuint64_t extents[2] = {(cuuint64_t)inner, (cuuint64_t)outer}, pitch[1] = {(cuuint64_t)x->ld * 2};
    cuuint32_t box[2] = {WEFT_CUDA_SPLITK_STEP, (cuuint32_t)box_outer}, steps[2] = {1, 1};
    CUtensorMap made;

    WEFT_CUDA_TRY(cuTensorMapEncodeTiled(
        &made, x->dtype == WEFT_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
        x->at, extents, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    memcpy(map, &made, sizeof(*map));
    return WEFT_OK;
}

/* Every 8 columns of D, C and bias lie on 16 bytes. */
static bool is_wide(const weft_cuda_asked *q)
{
    uintptr_t ends = (uintptr_t)q->d.at | (uintptr_t)q->c.at | (uintptr_t)q->bias.at;

    return ends % 16 == 0 && (q->d.ld | (q->c.at ? q->c.ld : 0)) % VECTOR == 0;
}

static weft_status give_memory(weft_cuda_device *device, int64_t tile_count, int tile,
                               weft_splitk_product *made, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    size_t sums =
               (size_t)(tile_count * made->args.groups) * (size_t)(tiles[tile].tokens * tiles[tile].cols) * 4,
           counts = (size_t)(tile_count * made->args.slices) * sizeof(uint32_t);

    WEFT_CUDA_TRY(cuMemAllocAsync(&made->memory, sums + counts, device->uploads));
    made->args.sums = (float *)(uintptr_t)made->memory;
    made->args.arrived = (uint32_t *)(uintptr_t)(made->memory + sums);
    WEFT_CUDA_TRY(cuMemsetD8Async(made->memory + sums, 0, counts, device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(device->uploads));
    return WEFT_OK;
}

weft_status weft_splitk_product_make(weft_cuda_device *device, const weft_plan_part *part,
                                     const weft_cuda_place *places, const weft_task *task, int crews,
                                     weft_splitk_product *product, weft_error_text *error)
{
    bool alone = crews >= device->crews;
    weft_splitk_product made = {.early = alone, .sends = weft_cuda_is_exchanged(part)};
    weft_cuda_asked q;
    weft_splitk_way way;
    weft_status status;
    int64_t down, across;
    int tokens, cols, ctas;

    *product = (weft_splitk_product){0};
    if (!device->hopper || !weft_splitk_makes(&part->problem, part->world))
        return WEFT_OK;
    q = weft_cuda_asked_of(part, places, task);
    if (!weft_cuda_matrix_on_vectors(&q.a) || !weft_cuda_matrix_on_vectors(&q.b))
        return WEFT_OK;
    way = weft_splitk_fastest(q.m, q.n, q.k, device->sm_count);
    tokens = tiles[way.tile].tokens, cols = tiles[way.tile].cols, ctas = tiles[way.tile].ctas;
    down = weft_divide_up(q.m, tokens), across = weft_divide_up(weft_divide_up(q.n, cols), way.sharers);
    made.args = (weft_cuda_splitk){.m = (int32_t)q.m,
                                   .n = (int32_t)q.n,
                                   .steps = (int32_t)weft_divide_up(q.k, WEFT_CUDA_SPLITK_STEP),
                                   .m_tiles = (int32_t)down,
                                   .slices = way.slices,
                                   .groups = way.groups,
                                   .sharers = way.sharers,
                                   .d = q.d.at,
                                   .c = q.c.at,
                                   .bias = q.bias.at,
                                   .d_ld = q.d.ld,
                                   .c_ld = q.c.ld,
                                   .dtype = (int32_t)q.d.dtype,
                                   .wide = is_wide(&q),
                                   .changes = q.alpha != 1 || q.c.at || q.bias.at || q.act != WEFT_ACT_NONE,
                                   .alpha = q.alpha,
                                   .beta = q.beta,
                                   .act = (int32_t)q.act};
    made.kernel = made.sends ? device->splitk_send[q.a.dtype == WEFT_F16][way.tile][q.b.transposed]
                             : device->splitk[q.a.dtype == WEFT_F16][way.tile][q.b.transposed];
    made.cluster = (unsigned)(way.sharers * way.slices);
    /* clusters of several ranks could keep each other from places that only one of them can take */
    made.fits = (alone || made.cluster == 1) &&
                down * across * way.groups <= clusters_on(&way, weft_cuda_ctas(device, crews));
    made.grid = (unsigned)(down * across) * made.cluster * (unsigned)way.groups;
    made.threads = (unsigned)WEFT_CUDA_SPLITK_THREADS(cols);
    made.shared_bytes = (unsigned)WEFT_CUDA_SPLITK_SHARED_BYTES(tokens, cols, ctas);
    status = encode(device->cu, &q.a, q.k, q.m, tokens / way.sharers, &made.args.tokens, error);
    if (status == WEFT_OK)
        status = q.b.transposed
                     ? encode(device->cu, &q.b, q.k, q.n, cols, &made.args.weights, error)
                     : encode(device->cu, &q.b, q.n, q.k, WEFT_CUDA_SPLITK_STEP, &made.args.weights, error);
    if (status == WEFT_OK && way.groups > 1)
        status = give_memory(device, down * across * way.sharers, way.tile, &made, error);
    if (status != WEFT_OK) {
        weft_splitk_product_free(device, &made);
        return status;
    }
    *product = made;
    return WEFT_OK;
}

void weft_splitk_product_free(weft_cuda_device *device, weft_splitk_product *product)
{
    if (product->memory)
        device->cu->cuMemFreeAsync(product->memory, device->uploads);
    *product = (weft_splitk_product){0};
}

weft_status weft_splitk_product_launch(weft_cuda_device *device, const weft_splitk_product *product,
                                       const weft_cuda_exchange *exchange, CUstream stream,
                                       weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    weft_cuda_splitk args = product->args;
    weft_cuda_exchange sent = *exchange;
    void *parameters[] = {&args, &sent};
    CUlaunchAttribute attributes[] = {
        {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {product->cluster, 1, 1}},
        {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
         .value.programmaticStreamSerializationAllowed = 1}};
    CUlaunchConfig config = {.gridDimX = product->grid,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = product->threads,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .sharedMemBytes = product->shared_bytes,
                             .hStream = stream,
                             .attrs = attributes,
                             .numAttrs = product->early ? 2 : 1};

    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, product->kernel, parameters, NULL));
    return WEFT_OK;
}
