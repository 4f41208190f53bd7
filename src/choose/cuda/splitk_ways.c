/* See splitk_ways.h. */
#include "choose/cuda/splitk_ways.h"

#include "choose/cuda/cost.h"
#include "core/round.h"

#include <math.h>

enum { VECTOR = 8 /* lines of shared memory */ };

/* Tiles, in the order of WEFT_CUDA_SPLITK_TILES. */
enum { T8X64, T16X64, T32X64, T64X64, T64X128, T128X64, T128X128, T96X128, T256X128, T256X64 };

const weft_splitk_tile weft_splitk_tiles[WEFT_CUDA_SPLITK_TILE_COUNT] = {
#define TILE(tokens, cols, ctas) {tokens, cols, ctas},
    WEFT_CUDA_SPLITK_TILES(TILE)
#undef TILE
};

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
int64_t weft_splitk_clusters_on(const weft_splitk_way *way, int sms)
{
    int cluster = way->sharers * way->slices;

    return (int64_t)(sms * weft_splitk_tiles[way->tile].ctas * USABLE[cluster - 1] / cluster);
}

/* Of a tile's tokens those that are multiplied, of which there are so many rows. */
int weft_splitk_width(int tile, int64_t rows)
{
    int width = (int)weft_round_up(rows, WEFT_CUDA_SPLITK_WIDTHS), tokens = weft_splitk_tiles[tile].tokens,
        least = WEFT_CUDA_SPLITK_WIDTH_LEAST(tokens);

    return least < tokens && width > least ? width : least;
}

int weft_splitk_stages(int tile, int width)
{
    return WEFT_CUDA_SPLITK_STAGES(width, weft_splitk_tiles[tile].cols, weft_splitk_tiles[tile].ctas);
}

/* Where a rank has a GPU to itself and no SM has more than one CTA, there is room for more of them beside one
 * of the next product, which comes in early: 32 x 8192 x 1024 6.5 -> 5.9 us. Not of 8 tokens: 5.7 -> 5.9. */
int weft_splitk_stages_beside(int tile, int width, unsigned grid, int sms)
{
    bool few = weft_splitk_tiles[tile].tokens > weft_splitk_tiles[T8X64].tokens &&
               weft_splitk_tiles[tile].ctas > 2 && grid <= (unsigned)sms;

    return few ? WEFT_CUDA_SPLITK_STAGES(width, weft_splitk_tiles[tile].cols, 2)
               : weft_splitk_stages(tile, width);
}

/* Tokens that each sharer of a tile brings: as many as there are, evenly over the tiles. */
int64_t weft_splitk_rows(const weft_splitk_way *way, int64_t m)
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
    int tokens = weft_splitk_width(way->tile, rows), cols = weft_splitk_tiles[way->tile].cols;
    double usable = sms * USABLE[way->sharers * way->slices - 1],
           beside = fmax(1, fmin(weft_splitk_tiles[way->tile].ctas, ceil(ctas / usable))),
           power = (double)x->m * (double)x->n * (double)x->k > MUCH ? f->power : 1;

    return about_largest(
        4, far * f->far / (weft_splitk_stages(way->tile, tokens) - 1),
        beside * ((double)rows * x->token_ns * f->token + cols * x->weight_ns * f->weight),
        power * beside * (tokens + f->weights) * cols * WEFT_CUDA_SPLITK_STEP / f->multiplies + f->step);
}

static double cost(const weft_splitk_way *way, const operands *x, int sms)
{
    const model *f = &h200;
    int64_t m = x->m, n = x->n, k = x->k;
    int cols = weft_splitk_tiles[way->tile].cols, parts = way->slices * way->groups,
        cluster = way->sharers * way->slices;
    int64_t steps = weft_divide_up(k, WEFT_CUDA_SPLITK_STEP), down = way->down,
            across = weft_round_up(weft_divide_up(n, cols), way->sharers),
            rows = weft_splitk_rows(way, m) * way->sharers,
            clusters = down * across / way->sharers * way->groups, fit = weft_splitk_clusters_on(way, sms);
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
    rounds = weft_splitk_tiles[way->tile].ctas == 1 ? ceil(rounds)
                                                    : f->overlap * rounds + (1 - f->overlap) * ceil(rounds);
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
    int tokens = weft_splitk_tiles[way->tile].tokens, parts = way->slices * way->groups;
    int64_t across = weft_divide_up(n, weft_splitk_tiles[way->tile].cols), ctas = way->down * across * parts;
    double room = (double)sms * weft_splitk_tiles[way->tile].ctas;

    if (m <= weft_splitk_tiles[T128X128].tokens
            ? tokens < m || tokens >= 2 * m
            : tokens < weft_splitk_tiles[m > 384 ? T96X128 : T64X64].tokens)
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
            slices = (int64_t)(1.21 * sms / (double)weft_divide_up(n, weft_splitk_tiles[T8X64].cols) + 0.5);

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
        int tokens = weft_splitk_tiles[tile].tokens, least = WEFT_CUDA_SPLITK_WIDTH_LEAST(tokens);
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
