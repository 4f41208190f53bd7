/* See cost.h. */
#include "choose/cuda/cost.h"

#include "core/round.h"
#include "plan/crews.h"
#include "choose/cuda/kernels.h"

#include <math.h>

/* What a walker is by the model. Times are nanoseconds: a step of WEFT_CUDA_TILE_K when one crew works and
 * when all do, and what a tile takes beside its steps. */
typedef struct maker {
    int ctas;
    int32_t tile_m, tile_n;
    double idle, busy, tile;
    double memory; /* bytes a nanosecond out of memory, all SMs together */
} maker;

/* Measured with `cuda_gemm --tune`. */
static const struct {
    double idle, busy, tile;
} measured[WEFT_CUDA_WALKERS] = {
    [WEFT_CUDA_PAIR_256] = {424, WEFT_CREW_STEP_NS, 111},
    [WEFT_CUDA_PAIR_224] = {421, WEFT_CREW_NARROW_STEP_NS, 1471},
    [WEFT_CUDA_PAIR_128] = {262, WEFT_CREW_HALF_STEP_NS, 0},
    [WEFT_CUDA_ONE_256] = {389, 714, 1280},
    [WEFT_CUDA_ONE_128] = {324, 421, 178},
    [WEFT_CUDA_FEW_ROWS] = {262, 491, 1227},
};

static const double MEMORY_NS = 3914;

/*
 * The walker for any GPU, by the width of its tile. Not measured: an A100's tensor cores (1024 products a
 * cycle of 1.41 GHz) at 0.8 and 0.7 of their rate, for a warp of the narrow one loads 1.5 times as much for a
 * product, and nine tenths of its memory's. Other GPUs differ in all of them much alike, and only ratios
 * choose.
 */
static const maker any_wide = {1, 128, 256, 1816, 1816, 2000, 1400},
                   any_narrow = {1, 128, 128, 1037, 1037, 1300, 1400};

static const double MEMORY_SM_NS = 58;  /* bytes a nanosecond that one SM can take of memory */
static const double LAUNCH_NS = 5120;   /* from the kernel's start to the first product, and its end */
static const double FINISH_NS = 7865;   /* a cut tile: slices written, seen, added up */
static const double SLICE_NS = 55;      /* for each of them */
static const double SLICES_SHARE = 1.1; /* slices, all SMs together, as a multiple of memory's rate */
static const int64_t SLICE_STEPS = 4;   /* a slice is at least so long */
static const double EVEN = 0.8;         /* of the crews that must have a slice for all to be alike */

double weft_cuda_beyond_l2(double bytes, double cached)
{
    static const double BLUR = 4e6;

    return 1 / (1 + exp(-(bytes - cached) / BLUR));
}

/* A step by one of `sms` SMs that work at once. */
static double step_ns(const maker *w, double sms, double all)
{
    return w->idle + (w->busy - w->idle) * sms / all;
}

/* All operands. */
static double bytes_of(const weft_cuda_shape *s)
{
    return 2.0 * (double)s->l *
           ((double)s->m * (double)s->k + (double)s->k * (double)s->n + (double)s->m * (double)s->n);
}

/* What must come out of memory or go there, by as many SMs as work at once. */
static double memory_ns(double bytes, const maker *w, double sms)
{
    double rate = sms * MEMORY_SM_NS;

    return bytes / fmin(rate, w->memory);
}

/* An operand that so many tiles read at different times, but for what L2 still has. */
static double again_bytes(double bytes, int64_t times)
{
    return bytes * (1 + weft_cuda_beyond_l2(bytes, WEFT_CUDA_L2_BYTES) * (double)(times - 1));
}

/* What tiles read whose shares of k begin anywhere, if all do. */
static double apart_bytes(const weft_cuda_shape *s, const maker *w)
{
    double a = 2.0 * (double)s->m * (double)s->k, b = 2.0 * (double)s->k * (double)s->n;

    return (double)s->l * (again_bytes(a, weft_divide_up(s->n, w->tile_n)) +
                           again_bytes(b, weft_divide_up(s->m, w->tile_m)));
}

/* Tiles whole: rounds of all workers. */
static void cost_whole(const weft_cuda_shape *s, const maker *w, int64_t tiles, int64_t crews,
                       weft_cuda_way *way)
{
    int64_t rounds = weft_divide_up(tiles, crews), steps = weft_divide_up(s->k, WEFT_CUDA_TILE_K);
    double sms, tile;

    way->workers = rounds ? (int)weft_divide_up(tiles, rounds) : 1;
    sms = (double)way->workers * w->ctas;
    tile = (double)steps * step_ns(w, sms, (double)crews * w->ctas) + w->tile;
    way->ns = LAUNCH_NS + fmax((double)rounds * tile, memory_ns(bytes_of(s), w, sms));
}

/* The tiles that do not fill a round divided along k: into equal slices, one to a crew, where that keeps most
 * crews busy; else into what is an equal share of the work. */
static void cost_divided(const weft_cuda_shape *s, const maker *w, int64_t tiles, int64_t crews,
                         weft_cuda_way *way)
{
    int64_t steps = weft_divide_up(s->k, WEFT_CUDA_TILE_K), rounds = tiles / crews, rest = tiles % crews;
    int64_t slices = crews / rest, most = steps / SLICE_STEPS, written;
    double rows = (double)weft_min(s->m, w->tile_m), bytes = bytes_of(s), sms, step, longest;

    slices = weft_min(slices, most);
    if (rounds == 0 && slices > 1 && (double)(rest * slices) >= EVEN * (double)crews) {
        way->workers = (int)(rest * slices);
        way->chunk_k = weft_divide_up(steps, slices) * WEFT_CUDA_TILE_K;
        written = way->workers;
    } else {
        way->workers = (int)crews;
        way->chunk_k = SLICE_STEPS * WEFT_CUDA_TILE_K;
        written = 2 * crews;
    }
    sms = (double)way->workers * w->ctas;
    step = step_ns(w, sms, (double)crews * w->ctas);
    longest = (double)rounds * ((double)steps * step + w->tile) +
              (double)weft_divide_up(rest * steps, way->workers) * step;
    if (written > crews) {
        longest += w->tile;
        slices = crews / rest + 2;
        bytes = fmax(bytes, (rounds ? bytes : 0) + apart_bytes(s, w) * (double)rest / (double)tiles);
    }
    way->ns = LAUNCH_NS + fmax(longest, memory_ns(bytes, w, sms)) + FINISH_NS + SLICE_NS * (double)slices +
              (double)written * rows * w->tile_n * 8 / (SLICES_SHARE * w->memory);
}

static bool cost(const weft_cuda_shape *s, const maker *w, int64_t crews, bool divided, weft_cuda_way *way)
{
    int64_t tiles = weft_divide_up(s->m, w->tile_m) * weft_divide_up(s->n, w->tile_n) * s->l;

    way->tile_m = w->tile_m;
    way->tile_n = w->tile_n;
    way->ctas = w->ctas;
    if (crews < 1 || (divided && (tiles % crews == 0 || s->k < 2 * SLICE_STEPS * WEFT_CUDA_TILE_K)))
        return false;
    if (divided)
        cost_divided(s, w, tiles, crews, way);
    else
        cost_whole(s, w, tiles, crews, way);
    return true;
}

bool weft_cuda_cost(const weft_cuda_shape *s, int walker, bool divided, weft_cuda_way *way)
{
    const weft_cuda_walker *w = &weft_cuda_walkers[walker];
    int64_t cols = weft_round_up(w->tile_n, (int64_t)64 * w->ctas); /* that come of B */
    double lines = (double)w->tile_m / w->ctas * WEFT_CUDA_LINE_NS(s->transa ? s->m : s->k) +
                   (double)cols / w->ctas * WEFT_CUDA_LINE_NS(s->transb ? s->k : s->n);
    maker by = {
        w->ctas,  w->tile_m, w->tile_n, measured[walker].idle, measured[walker].busy, measured[walker].tile,
        MEMORY_NS};

    if (lines > by.busy)
        by.idle = by.busy = lines;
    *way = (weft_cuda_way){.walker = walker};
    return cost(s, &by, (int64_t)s->pairs * 2 / w->ctas, divided, way);
}

weft_cuda_way weft_cuda_cost_least(const weft_cuda_shape *shape, bool whole)
{
    weft_cuda_way best = {0}, way;

    for (int walker = 0; walker < WEFT_CUDA_WALKERS; walker++)
        for (int divided = 0; divided <= !whole; divided++)
            if (weft_cuda_cost(shape, walker, divided, &way) && (best.workers == 0 || way.ns < best.ns))
                best = way;
    return best;
}

weft_cuda_way weft_cuda_cost_any(const weft_cuda_shape *shape, int sms, bool narrow)
{
    weft_cuda_way best = {0}, way;

    for (int i = 0; i < 4; i++) {
        way = (weft_cuda_way){.walker = -1};
        if (cost(shape, i / 2 || narrow ? &any_narrow : &any_wide, sms, i % 2, &way) &&
            (best.workers == 0 || way.ns < best.ns))
            best = way;
    }
    return best;
}
