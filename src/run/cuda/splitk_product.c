/* See splitk_product.h. */
#include "run/cuda/splitk_product.h"

#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/asked.h"
#include "run/cuda/cost.h"
#include "run/cuda/exchanged.h"

#include <math.h>
#include <string.h>

enum { VECTOR = 8, BOX = 64 /* columns of B that come at once */ };

/* Tiles, in the order of WEFT_CUDA_SPLITK_TILES. */
enum { T8X64, T16X64, T32X64, T64X64, T64X128, T128X64, T128X128, T96X128, T256X128, T256X64 };

static const struct {
    int tokens, cols, ctas;
} tiles[] = {
#define TILE(tokens, cols, ctas) {tokens, cols, ctas},
    WEFT_CUDA_SPLITK_TILES(TILE)
#undef TILE
};

/* ---- how it is divided ------------------------------------------------------------------------------- */

/* The part of the SMs that clusters of 1, 2, ... CTAs can fill at once. */
static const double USABLE[WEFT_CUDA_SPLITK_SLICES] = {1, 1, 0.88, 0.86, 0.83, 0.74, 0.81, 0.85};

/*
 * What a product of more than 32 rows takes, in nanoseconds and bytes a nanosecond, fitted to 1 450 ways of
 * dividing 57 products on an H200 of 132 SMs (`cuda_gemm --tune`). What the model takes was 1.2 % slower than
 * the fastest way in the geometric mean. A line of weights takes an SM twice as long as one of tokens, which
 * many SMs read at about the same time.
 */
typedef struct model {
    double launch;                /* and its end */
    double memory, cache, cached; /* all SMs together, out of memory and L2; bytes that stay there */
    double apart;                 /* by how much memory is slower for every further part of k that the sharers
                                     of a tile read at once */
    double token, weight;         /* of a line's time as WEFT_CUDA_LINE_NS has it, by whose line it is */
    double loads, shared;         /* from wherever, all SMs together: weights, and that part of the tokens */
    double far;                   /* from the request of a stage to its arrival out of memory */
    double multiplies, step;      /* elements by elements of k on one SM, and what a step takes besides */
    double power;                 /* by how much that takes longer where much is to be multiplied */
    double weights;               /* tokens that take as long as loading the weights into the tensor cores */
    double tile, own;       /* the end of a tile, and of each of its sums where a CTA has them all; else */
    double put, element;    /* of each of a slice's, and of those that it adds up */
    double exchange, slice; /* bytes out of other CTAs' shared memory, and for each slice */
    double sent, send;      /* where slices send: all of that, and for each sum */
    double odd;             /* times all, for clusters of other than 1, 2, 4 and 8 CTAs */
    double groups, group;   /* sums of groups written, seen, added up; for each group */
    double overlap;         /* of rounds, where several CTAs fit an SM */
} model;

static const model h200 = {.launch = 438,
                           .memory = 4263,
                           .cache = 26700,
                           .cached = WEFT_CUDA_L2_BYTES,
                           .apart = 0.133,
                           .token = 0.599,
                           .weight = 1.43,
                           .loads = 9295,
                           .shared = 0.485,
                           .far = 903,
                           .multiplies = 4180,
                           .power = 1.2,
                           .step = 21.4,
                           .weights = 5,
                           .tile = 857,
                           .own = 0.1055,
                           .put = 0.0827,
                           .element = 0.116,
                           .exchange = 75.4,
                           .slice = 481,
                           .sent = 1937,
                           .send = 0.14,
                           .odd = 1.023,
                           .groups = 1634,
                           .group = 691,
                           .overlap = 0.24};
enum { FEW_ROWS = 32, FEW_SENT = 3 /* slices of them */, FITTED_SMS = 132 };
static const double MUCH = 2.5e10; /* products of two elements, from which on power bounds them */

/* The largest of three, rounded where two are near: less so with a higher `power`. */
static double about_largest(double power, double x, double y, double z)
{
    double top = fmax(x, fmax(y, z));

    return top * pow(pow(x / top, power) + pow(y / top, power) + pow(z / top, power), 1 / power);
}

/* Clusters that are on so many SMs at once. */
static int64_t clusters_on(const weft_splitk_way *way, int sms)
{
    int cluster = way->sharers * way->slices;

    return (int64_t)(sms * tiles[way->tile].ctas * USABLE[cluster - 1] / cluster);
}

/* Of a tile's tokens those that are multiplied, of which there are so many rows. */
static int width_of(int tile, int64_t rows)
{
    int width = (int)weft_round_up(rows, WEFT_CUDA_SPLITK_WIDTHS), tokens = tiles[tile].tokens,
        least = WEFT_CUDA_SPLITK_WIDTH_LEAST(tokens);

    return least < tokens && width > least ? width : least;
}

static int stages_of(int tile, int width)
{
    return WEFT_CUDA_SPLITK_STAGES(width, tiles[tile].cols, tiles[tile].ctas);
}

/* Where a rank has a GPU to itself and no SM has more than one CTA, there is room for more of them beside one
 * of the next product, which comes in early: 32 x 8192 x 1024 6.5 -> 5.9 us. Not of 8 tokens: 5.7 -> 5.9. */
static int stages_beside(int tile, int width, unsigned grid, int sms)
{
    bool few = tiles[tile].tokens > tiles[T8X64].tokens && tiles[tile].ctas > 2 && grid <= (unsigned)sms;

    return few ? WEFT_CUDA_SPLITK_STAGES(width, tiles[tile].cols, 2) : stages_of(tile, width);
}

/* Tokens that each sharer of a tile brings: as many as there are, evenly over the tiles. */
static int64_t rows_of(const weft_splitk_way *way, int64_t m)
{
    int64_t rows = weft_divide_up(m, (int64_t)way->down * way->sharers);

    /* the copy engine's pattern repeats every 8 lines of shared memory */
    return way->sharers > 1 ? weft_round_up(rows, VECTOR) : rows;
}

/* What is to be multiplied. */
typedef struct operands {
    int64_t m, n, k;
    double token_ns, weight_ns; /* of their lines: WEFT_CUDA_LINE_NS */
} operands;

/* A step of a CTA. */
static double step_cost(const model *f, const operands *x, const weft_splitk_way *way, int64_t rows,
                        double ctas, double far, int sms)
{
    int tokens = width_of(way->tile, rows), cols = tiles[way->tile].cols;
    double usable = sms * USABLE[way->sharers * way->slices - 1],
           beside = fmax(1, fmin(tiles[way->tile].ctas, ceil(ctas / usable))),
           power = (double)x->m * (double)x->n * (double)x->k > MUCH ? f->power : 1;

    return about_largest(
        4, far * f->far / (stages_of(way->tile, tokens) - 1),
        beside * ((double)rows * x->token_ns * f->token + cols * x->weight_ns * f->weight),
        power * beside * (tokens + f->weights) * cols * WEFT_CUDA_SPLITK_STEP / f->multiplies + f->step);
}

static double cost(const weft_splitk_way *way, const operands *x, int sms)
{
    const model *f = &h200;
    int64_t m = x->m, n = x->n, k = x->k;
    int cols = tiles[way->tile].cols, parts = way->slices * way->groups, cluster = way->sharers * way->slices;
    int64_t steps = weft_divide_up(k, WEFT_CUDA_SPLITK_STEP), down = way->down,
            across = weft_round_up(weft_divide_up(n, cols), way->sharers),
            rows = rows_of(way, m) * way->sharers, clusters = down * across / way->sharers * way->groups,
            fit = clusters_on(way, sms);
    double ctas = (double)(clusters * cluster), part = (double)sms / FITTED_SMS,
           bytes = 2 * ((double)m * (double)k + (double)k * (double)n + (double)m * (double)n),
           far = weft_cuda_beyond_l2(bytes, f->cached),
           loads = (double)(down * across * steps) * WEFT_CUDA_SPLITK_STEP * 2 *
                   (f->shared * (double)rows + cols),
           element = parts == 1  ? f->own
                     : way->sent ? f->send
                                 : f->put + f->element / way->slices,
           rounds, ns;

    if (fit < 1)
        return INFINITY;
    rounds = (double)clusters / (double)fit;
    rounds =
        tiles[way->tile].ctas == 1 ? ceil(rounds) : f->overlap * rounds + (1 - f->overlap) * ceil(rounds);
    rounds = fmax(1, rounds);
    ns = f->launch + (f->tile + element * (double)rows * cols) * rounds;
    ns += about_largest(
        6, rounds * (double)weft_divide_up(steps, parts) * step_cost(f, x, way, rows, ctas, far, sms),
        bytes / (far * f->memory / (1 + f->apart * (parts - 1) / way->sharers) + (1 - far) * f->cache),
        loads / (f->loads * part));
    if (way->slices > 1 && way->sent)
        ns += f->sent;
    else if (way->slices > 1)
        ns += (double)rows * cols * 4.0 * (way->slices - 1) / way->slices / f->exchange +
              f->slice * way->slices;
    if (way->groups > 1)
        ns += f->groups + f->group * way->groups;
    return cluster & (cluster - 1) ? ns * f->odd : ns;
}

/* Whether a way is worth a thought: a tile of few rows holds all of them and not twice as many, and k is
 * divided only into stretches of two steps or more, and only where the CTAs still fit. */
static bool is_sensible(const weft_splitk_way *way, int64_t m, int64_t n, int64_t k, int sms)
{
    int tokens = tiles[way->tile].tokens, parts = way->slices * way->groups;
    int64_t across = weft_divide_up(n, tiles[way->tile].cols), ctas = way->down * across * parts;
    double room = (double)sms * tiles[way->tile].ctas;

    if (m <= tiles[T128X128].tokens ? tokens < m || tokens >= 2 * m
                                    : tokens < tiles[m > 384 ? T96X128 : T64X64].tokens)
        return false;
    if (way->sharers * way->slices > WEFT_CUDA_SPLITK_SLICES || across % way->sharers)
        return false;
    return parts == 1 || (2 * parts <= weft_divide_up(k, WEFT_CUDA_SPLITK_STEP) && (double)ctas <= room &&
                          (way->groups == 1 || (double)ctas / way->groups <= room / 2));
}

/* Up to 32 rows: one tile of tokens, and so many slices that the CTAs are as many as measured best for a GPU.
 * Clusters of seven leave more SMs without one than those of six. */
static weft_splitk_way divide_few(int64_t m, int64_t n, int64_t k, int sms)
{
    int64_t most = weft_divide_up(k, WEFT_CUDA_SPLITK_STEP) / 4,
            slices = (int64_t)(1.21 * sms / (double)weft_divide_up(n, tiles[T8X64].cols) + 0.5);

    most = weft_max(1, weft_min(most, WEFT_CUDA_SPLITK_SLICES));
    slices = weft_max(1, weft_min(slices, most));
    slices -= slices == 7;
    return (weft_splitk_way){.tile = m <= 8    ? T8X64
                                     : m <= 16 ? T16X64
                                               : T32X64,
                             .down = 1,
                             .sharers = 1,
                             .slices = (int)slices,
                             .groups = 1,
                             .sent = slices >= FEW_SENT};
}

/* The ways of a tile so often down. */
static void visit_tile(const operands *x, int sms, int tile, int64_t down, weft_splitk_visit *visit,
                       void *context)
{
    static const int groups[] = {1, 2, 3, 4, 6, 8, 12, 16};
    weft_splitk_way way = {.tile = tile, .down = (int)down};

    for (way.sharers = 1; way.sharers <= 2; way.sharers++)
        for (way.slices = 1; way.slices <= WEFT_CUDA_SPLITK_SLICES; way.slices++)
            for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
                way.groups = groups[i];
                if (!is_sensible(&way, x->m, x->n, x->k, sms))
                    continue;
                for (int sent = 0; sent <= (way.slices > 1); sent++) {
                    way.sent = sent;
                    way.ns = cost(&way, x, sms);
                    visit(context, &way);
                }
            }
}

/* More tiles than hold all rows are shorter, as far as they are multiplied in part, and may fill rounds of
 * the SMs better. */
static void visit_all(const operands *x, int sms, weft_splitk_visit *visit, void *context)
{
    enum { MORE = 4 };

    for (int tile = T64X64; tile < WEFT_CUDA_SPLITK_TILE_COUNT; tile++) {
        int tokens = tiles[tile].tokens, least = WEFT_CUDA_SPLITK_WIDTH_LEAST(tokens);
        int64_t down = weft_divide_up(x->m, tokens), most = down + MORE;

        do
            visit_tile(x, sms, tile, down, visit, context);
        while (++down <= most && weft_divide_up(x->m, down) > least - WEFT_CUDA_SPLITK_WIDTHS &&
               least < tokens);
    }
}

static void keep_faster(void *best, const weft_splitk_way *way)
{
    weft_splitk_way *kept = best;

    if (way->ns < kept->ns)
        *kept = *way;
}

void weft_splitk_ways(int64_t m, int64_t n, int64_t k, bool transb, int sms, weft_splitk_visit *visit,
                      void *context)
{
    operands x = {m, n, k, WEFT_CUDA_LINE_NS(k), WEFT_CUDA_LINE_NS(transb ? k : n)};

    visit_all(&x, sms, visit, context);
}

weft_splitk_way weft_splitk_fastest(int64_t m, int64_t n, int64_t k, bool transb, int sms)
{
    weft_splitk_way best = {.ns = INFINITY};

    if (m <= FEW_ROWS)
        return divide_few(m, n, k, sms);
    weft_splitk_ways(m, n, k, transb, sms, keep_faster, &best);
    return best;
}

/* ---- a rank's product -------------------------------------------------------------------------------- */

/* The copy engine reads whole 16 bytes of lines, of which A has k and B n or k. */
bool weft_splitk_makes(const weft_problem *p, int world)
{
    bool sums = world > 1 && (p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR);
    weft_dtype out = sums ? p->wire_dtype : p->d_dtype;
    int64_t k = sums ? p->k / world : p->k, n = world > 1 && !sums ? p->n / world : p->n;
    bool even =
        world == 1 || (sums ? weft_parts_even(p->k, p->granule_k, world, VECTOR) && p->n % VECTOR == 0
                            : weft_parts_even(p->n, p->granule_n, world, VECTOR) && p->k % VECTOR == 0);

    return p->op < WEFT_OP_ALL_REDUCE && (p->dtype == WEFT_F16 || p->dtype == WEFT_BF16) &&
           !weft_layout_gathers_k(p->layout) && (out == p->dtype || out == WEFT_F32) && p->l == 1 &&
           p->alpha != 0 && !p->transa && weft_cuda_multiplies_everywhere(p, world) && even &&
           k % VECTOR == 0 && (p->transb || n % VECTOR == 0) && p->m <= INT32_MAX && p->n <= INT32_MAX &&
           p->k <= INT32_MAX;
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

/* What groups write and count, and slices send. */
static weft_status give_memory(weft_cuda_device *device, int64_t tile_count, const weft_splitk_way *way,
                               weft_splitk_product *made, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    size_t tile = (size_t)(tiles[way->tile].tokens * tiles[way->tile].cols) * sizeof(float),
           parts = (size_t)(tile_count * way->groups), sums = way->groups > 1 ? parts * tile : 0,
           sent = way->sent ? parts * (size_t)way->slices * tile : 0,
           counts = (size_t)(tile_count * way->slices) * sizeof(uint32_t);

    made->memory_bytes = sums + sent + counts;
    WEFT_CUDA_TRY(cuMemAllocAsync(&made->memory, made->memory_bytes, device->uploads));
    made->args.sums = (float *)(uintptr_t)made->memory;
    made->args.sent = (float *)(uintptr_t)(made->memory + sums);
    made->args.arrived = (uint32_t *)(uintptr_t)(made->memory + sums + sent);
    WEFT_CUDA_TRY(cuMemsetD8Async(made->memory + sums + sent, 0, counts, device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(device->uploads));
    return WEFT_OK;
}

weft_status weft_splitk_product_make(weft_cuda_device *device, const weft_plan_part *part,
                                     const weft_cuda_place *places, const weft_task *task, int crews,
                                     const weft_splitk_way *asked, weft_splitk_product *product,
                                     weft_error_text *error)
{
    bool alone = crews >= device->crews;
    weft_splitk_product made = {.early = alone, .sends = weft_cuda_is_exchanged(part)};
    weft_cuda_asked q;
    weft_splitk_way way;
    weft_status status;
    int64_t down, across, rows;
    CUfunction(*kernels)[WEFT_CUDA_SPLITK_TILE_COUNT][2];
    int cols;

    *product = (weft_splitk_product){0};
    if (!device->hopper || !weft_splitk_makes(&part->problem, part->world))
        return WEFT_OK;
    q = weft_cuda_asked_of(part, places, task);
    if (!weft_cuda_matrix_on_vectors(&q.a) || !weft_cuda_matrix_on_vectors(&q.b))
        return WEFT_OK;
    way = asked ? *asked : weft_splitk_fastest(q.m, q.n, q.k, q.b.transposed, device->sm_count);
    way.sent = way.sent && !made.sends;
    cols = tiles[way.tile].cols;
    down = way.down, across = weft_divide_up(weft_divide_up(q.n, cols), way.sharers);
    rows = rows_of(&way, q.m);
    made.args = (weft_cuda_splitk){
        .m = (int32_t)q.m,
        .n = (int32_t)q.n,
        .steps = (int32_t)weft_divide_up(q.k, WEFT_CUDA_SPLITK_STEP),
        .m_tiles = (int32_t)down,
        .slices = way.slices,
        .groups = way.groups,
        .sharers = way.sharers,
        .rows = (int32_t)rows,
        .eights = (int32_t)weft_divide_up(rows * way.sharers, (int64_t)WEFT_CUDA_SPLITK_EIGHT * way.slices),
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
    made.args.own = way.slices * way.groups == 1 && q.n % VECTOR == 0 && q.d.dtype != WEFT_F32 &&
                    (made.sends || (made.args.wide && !q.c.at));
    made.cluster = (unsigned)(way.sharers * way.slices);
    /* clusters of several ranks could keep each other from places that only one of them can take; a rank
     * alone has a faster kernel for it */
    made.fits = !alone && made.cluster == 1 &&
                down * across * way.groups <= clusters_on(&way, weft_cuda_ctas(device, crews));
    made.grid = (unsigned)(down * across) * made.cluster * (unsigned)way.groups;
    made.threads = (unsigned)WEFT_CUDA_SPLITK_THREADS(cols);
    made.args.width = width_of(way.tile, rows * way.sharers);
    made.args.stage_bytes = WEFT_CUDA_SPLITK_STAGE_BYTES(made.args.width, cols);
    made.args.stages = alone ? stages_beside(way.tile, made.args.width, made.grid, device->sm_count)
                             : stages_of(way.tile, made.args.width);
    made.shared_bytes = (unsigned)WEFT_CUDA_SPLITK_SHARED_BYTES(made.args.stages * made.args.stage_bytes);
    kernels = made.sends ? device->splitk_send : way.sent ? device->splitk_sent : device->splitk;
    made.kernel = kernels[q.a.dtype == WEFT_F16][way.tile][q.b.transposed];
    status = encode(device->cu, &q.a, q.k, q.m, (int)rows, &made.args.tokens, error);
    if (status == WEFT_OK)
        status = encode(device->cu, &q.b, q.b.transposed ? q.k : q.n, q.b.transposed ? q.n : q.k, BOX,
                        &made.args.weights, error);
    if (status == WEFT_OK && (way.groups > 1 || way.sent))
        status = give_memory(device, down * across * way.sharers, &way, &made, error);
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
    CUlaunchConfig config = weft_cuda_config(product->grid, product->threads, product->shared_bytes, stream);

    config.attrs = attributes;
    config.numAttrs = product->early ? 2 : 1;
    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, product->kernel, parameters, NULL));
    return WEFT_OK;
}
