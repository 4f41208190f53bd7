/*
 * Products: what measured fastest. See choose.h. A problem as asked goes one way: who multiplies, in which
 * schedule and how ranks exchange (choose_maker); what that wants of tiles and lanes (begin_tuning); what is
 * still open of them (choose_tuning). Nothing that was decided is decided again.
 */
#include "choose/cuda/cost.h"
#include "choose/cuda/decide.h"
#include "choose/cuda/kernels.h"
#include "choose/cuda/makes.h"
#include "choose/cuda/shared.h"
#include "choose/cuda/splitk_ways.h"
#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"
#include "plan/crews.h"

enum {
    PANELS_SIDE_BY_SIDE = 8, /* 8 x 8 tiles are about a round of the crews: least traffic for the product */
    CHUNK_K = 512,           /* 1 KiB of a row: small enough to start early, large enough to copy fast */
    COPIERS = 2,
    HALF_M = 128,
    HALF_N = 128,
    ANY_M = 128, /* rows of a block of the walker for any GPU */
    SIX_TILES_ROWS = 1536,
    OWN_ROWS = 2048,
    SPLITK_ROWS = 8,      /* up to which the kernel for products by themselves is faster than cuBLASLt, */
    SPLITK_COLS = 96,     /* if no SM has twice as many of its tiles as another: so many columns to an SM */
    NARROW_COLS = 24,     /* to an SM, up to which it divides k better */
    TWO_TILES_ROWS = 224, /* of up to so many rows where k is long, */
    LONG_K = 6144,        /* but of more than one tile's not longer than this; */
    SMALL_COLS = 32,      /* and up to which it is faster */
    ONE_TILE_ROWS = 32,   /* with so many rows */
    SMALL_B = 16 << 20,   /* where B has no more elements than this */
    HALF_A_GPU = WEFT_CREWS_H200 / 2,
    A_QUARTER = WEFT_CREWS_H200 / 4,
    SEND_ROWS = 32, /* up to which the product's kernel sends its sums faster than a collective does, */
    SEND_ROWS_WHOLE = 128, /* and of ranks that each have a GPU */
    HOP_BYTES = 1200000,   /* a link of 450 GB/s and 2 us carries while a second hop waits */
    PADDED = 8,            /* elements, to which lines of staged operands are padded */
    SUM_ROWS = 32,         /* of what is added up at once, */
    SUM_COLS = 512,        /* where every lane has two such */
    MOVED_BYTES = 16 << 10 /* of A, at once */
};

/* The walkers that plan/crews.h speaks of. */
_Static_assert((int)WEFT_CREW_ROWS == WEFT_CUDA_TILE_M && (int)WEFT_CREW_COLS == WEFT_CUDA_TILE_N &&
                   (int)WEFT_CREW_STEP_K == WEFT_CUDA_TILE_K && (int)WEFT_CREW_HALF_COLS == WEFT_CUDA_FP8_N,
               "crews are planned as they are compiled");

static weft_schedule usual_schedule(const weft_problem *p)
{
    switch (p->op) {
    case WEFT_OP_AG_GEMM:
        if (weft_layout_gathers_k(p->layout)) /* every tile needs all of it: fetched once, it is there */
            return WEFT_SCHEDULE_UNFUSED;
        return p->layout == WEFT_LAYOUT_GATHER_B ? WEFT_SCHEDULE_ALLGATHER_ROTATING_B
                                                 : WEFT_SCHEDULE_ALLGATHER_ROTATING_A;
    case WEFT_OP_GEMM_RS:
        return p->layout == WEFT_LAYOUT_SCATTER_COLS ? WEFT_SCHEDULE_REDUCESCATTER_TILING_B
                                                     : WEFT_SCHEDULE_REDUCESCATTER_TILING_A;
    case WEFT_OP_GEMM_AR:
        return WEFT_SCHEDULE_TWO_SHOT;
    default:
        return WEFT_SCHEDULE_ALL_SCATTER;
    }
}

/* The width with which rounds of the walker for any GPU take less time: it takes about 8/7 of the time for a
 * tile of half the width twice. */
static int64_t any_width(const weft_problem *p, int world, int crews)
{
    int64_t wide =
                weft_divide_up(weft_crews_tiles(p, world, ANY_M, WEFT_CUDA_TILE_N), crews) * WEFT_CUDA_TILE_N,
            narrow = weft_divide_up(weft_crews_tiles(p, world, ANY_M, HALF_N), crews) * HALF_N;

    return narrow * 8 < wide * 7 ? HALF_N : WEFT_CUDA_TILE_N;
}

/* A rank's own product. */
static weft_cuda_shape shape_of(const weft_problem *p, int crews)
{
    return (weft_cuda_shape){p->m, p->n, p->k, p->l, crews, p->transa, p->transb};
}

/* Nothing is asked about tiles and lanes. */
static bool all_open(const weft_tuning *t)
{
    return !t->tile_m && !t->tile_n && !t->tile_k && !t->workers && !t->chunk_k && !t->crew;
}

/* Whether the kernel for products by themselves beats cuBLASLt: with very few rows, and where so few columns
 * leave SMs without work that k has to be divided, which it does better. */
static bool splitk_beats(const weft_problem *p, int sms)
{
    int64_t columns = weft_divide_up(p->n, sms);
    bool few = p->m <= SPLITK_ROWS && columns <= SPLITK_COLS,
         divided = p->m <= (p->k > LONG_K ? ONE_TILE_ROWS : TWO_TILES_ROWS) && columns <= NARROW_COLS &&
                   p->k >= 2 * p->n,
         small = p->m <= ONE_TILE_ROWS && columns <= SMALL_COLS && p->n * p->k <= SMALL_B;

    return weft_splitk_makes(p, 1) && (few || divided || small);
}

/*
 * Whether weft's own kernels beat cuBLASLt on aligned operands: without a walker, and where tiles of 224
 * columns, which cuBLASLt has not, fill rounds that those of 256 leave half empty and none is filled in part,
 * and lines begin on whole sectors.
 */
static bool own_wins(const weft_problem *p, int crews)
{
    weft_cuda_shape shape = shape_of(p, crews);
    weft_cuda_way way = weft_cuda_cost_least(&shape, false);

    if (weft_dtype_is_fp8(p->dtype))
        return false;
    return splitk_beats(p, WEFT_CREW_SMS * crews) ||
           (way.walker == WEFT_CUDA_PAIR_224 && way.chunk_k == 0 && p->m >= OWN_ROWS &&
            p->n % weft_cuda_walkers[way.walker].tile_n == 0 && p->k % WEFT_CUDA_TILE_K == 0);
}

/* Whether a rank alone does without a walker: where half of their rows would be empty it was always faster,
 * else by the models, up to what was measured. */
static bool splitk_wins(const weft_problem *p, int crews)
{
    static const double fitted = 2.5e10, measured = 1e11; /* products of two elements */
    double products = (double)p->m * (double)p->n * (double)p->k;
    weft_cuda_shape shape = shape_of(p, crews);

    if (!weft_splitk_makes(p, 1) || p->m <= HALF_M)
        return weft_splitk_makes(p, 1);
    return (products <= fitted || (p->m <= SIX_TILES_ROWS && products <= measured)) &&
           weft_splitk_fastest(p->m, p->n, p->k, p->transb, WEFT_CREW_SMS * crews).ns <
               weft_cuda_cost_least(&shape, false).ns;
}

/* Whether unfused it has halves: see choose.h. */
static bool has_halves(const weft_problem *p, int world)
{
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;

    if (world == 1 || p->l != 1)
        return false;
    if (p->op == WEFT_OP_AG_GEMM)
        return p->layout != WEFT_LAYOUT_GATHER_B && !weft_layout_gathers_k(p->layout) && !p->transa &&
               weft_parts_even(p->m, p->granule_m, world, 1) && p->k % PADDED == 0;
    return sums &&
           (p->op == WEFT_OP_GEMM_AR ||
            (p->layout != WEFT_LAYOUT_SCATTER_COLS && weft_parts_even(p->m, p->granule_m, world, 1))) &&
           p->n % PADDED == 0 && p->wire_dtype == p->d_dtype && p->alpha == 1 && p->beta == 0 && !p->bias &&
           p->act == WEFT_ACT_NONE;
}

bool weft_cuda_halves(const weft_problem *p, int world)
{
    return p->schedule == WEFT_SCHEDULE_UNFUSED && has_halves(p, world);
}

/*
 * A rank with a GPU to itself, few rows: tiles of a fused product leave most SMs without work for all of k,
 * which costs more than the communication that they hide. The ring of a gemm_ar cuts rows into the ranks'
 * parts, which had better fill its tiles.
 */
static bool few_rows(const weft_problem *p, const weft_cuda_basis *b)
{
    int64_t few = p->op == WEFT_OP_GEMM_AS ? 32 : p->op == WEFT_OP_GEMM_AR ? 128 : 256, tiled = 0;

    for (int r = 0; r < b->world; r++)
        tiled += weft_round_up(weft_problem_part_m(p, b->world, r).count, WEFT_CUDA_TILE_M);
    return p->m <= few || (p->op == WEFT_OP_GEMM_AR && b->hopper && b->adds && 2 * tiled > 3 * p->m);
}

/* What `auto` takes of several ranks; `can`: a library can multiply. */
static weft_schedule automatic_schedule(const weft_problem *p, const weft_cuda_basis *b, bool can)
{
    weft_cuda_sharing sharing = {.world = b->world,
                                 .crews = b->crews,
                                 .ring_cols = weft_crews_narrow_ring(p, b->world, b->crews, WEFT_CUDA_TILE_M)
                                                  ? HALF_N
                                                  : WEFT_CUDA_TILE_N,
                                 .unfused = can,
                                 .halves = has_halves(p, b->world)};

    if (b->hopper && b->adds && b->crews <= HALF_A_GPU && !weft_dtype_is_fp8(p->dtype) &&
        !weft_layout_gathers_k(p->layout))
        return weft_cuda_shared_fastest(p, &sharing);
    return can && few_rows(p, b) ? WEFT_SCHEDULE_UNFUSED : usual_schedule(p);
}

/* In how many hops sums go where ranks have a GPU each: every sum to every rank, or to its owner and, of a
 * gemm_ar, from there. Of more than a few rows cuBLASLt multiplies large weights faster, by more than that
 * saves. */
static int hops_over_links(const weft_problem *p, int world)
{
    int64_t bytes = p->m * p->n * (int64_t)weft_dtype_size(p->wire_dtype);
    bool faster = p->m <= SPLITK_ROWS || (p->m <= SEND_ROWS_WHOLE && p->n * p->k / world <= SMALL_B),
         whole = p->op == WEFT_OP_GEMM_RS || weft_cuda_spared_by_a_hop(bytes, world) <= HOP_BYTES;

    return faster ? whole ? 1 : 2 : 0;
}

/* In how many hops the product's kernel sends its sums, where that is faster than a collective behind it; 0:
 * it is not, or it cannot. */
static int hops_of_sums(const weft_problem *p, const weft_cuda_basis *b)
{
    int world = b->world, hops;
    bool beside = p->m <= SEND_ROWS && (p->op == WEFT_OP_GEMM_RS ? (world > 4) == (p->m <= 8)
                                        : world > 4              ? p->m <= 4
                                                                 : world == 2 && p->m > 8);

    hops = !b->whole ? beside : b->adds ? hops_over_links(p, world) : 0;
    return hops && weft_splitk_makes(p, world) && weft_cuda_exchanges(p, world, hops) ? hops : 0;
}

/* Whether the kernel for products by themselves is faster than cuBLASLt beside others like it on one GPU: of
 * sums, where many ranks share it and each has little of k. */
static bool splits_beside(const weft_problem *p, int world, int crews)
{
    return (p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR) && world > 4 && crews <= A_QUARTER &&
           p->m <= 2 * SEND_ROWS && weft_splitk_makes(p, world);
}

/* Rows of A that are moved at once. */
static int64_t moved_rows(const weft_problem *p)
{
    int64_t rows = MOVED_BYTES / (p->k * (int64_t)weft_dtype_size(p->dtype) + 1);

    return weft_max(rows, 1);
}

/* What is decided first. */
typedef struct maker {
    weft_schedule schedule;
    int library, exchange; /* as of a tuning; exchange is asked for, or what the schedule and library need */
} maker;

/* The kernel for products by themselves was asked for, and can. Of several ranks cuBLASLt makes those whose
 * operands turn out not to be aligned. */
static bool takes_splitk(const weft_problem *p, const weft_cuda_basis *b)
{
    return p->tuning.library == 3 && b->hopper && weft_splitk_makes(p, b->world) &&
           (b->world == 1 || (b->library && weft_cublaslt_makes(p, b->world) &&
                              (p->schedule == WEFT_SCHEDULE_AUTO || p->schedule == WEFT_SCHEDULE_UNFUSED)));
}

/* Who multiplies. `unfused` is cuBLASLt's; `auto` is unfused where that is faster. */
static maker choose_maker(const weft_problem *p, const weft_cuda_basis *b)
{
    int world = b->world, crews = b->crews, asked = p->tuning.library, exchange = p->tuning.exchange, library;
    bool open = asked == 0 && all_open(&p->tuning), automatic = p->schedule == WEFT_SCHEDULE_AUTO;
    bool can = b->library && weft_cublaslt_makes(p, world);
    weft_schedule fastest =
                      automatic && open && world > 1 ? automatic_schedule(p, b, can) : usual_schedule(p),
                  schedule, usual = automatic ? fastest : p->schedule;
    bool left = can && (world > 1 ? fastest == WEFT_SCHEDULE_UNFUSED : !(b->hopper && own_wins(p, crews)));

    if (weft_problem_stores_sums(p) && !weft_cuda_exchanges(p, world, exchange))
        asked = 2; /* as any plan */
    else if (takes_splitk(p, b))
        return (maker){world > 1 ? WEFT_SCHEDULE_UNFUSED : usual, 3, exchange};
    else if (asked == 3)
        asked = 2;
    if (automatic && open && left && world > 1 && b->hopper && hops_of_sums(p, b))
        return (maker){WEFT_SCHEDULE_UNFUSED, 3, hops_of_sums(p, b)};
    if (automatic && open && left && b->hopper && splits_beside(p, world, crews))
        return (maker){WEFT_SCHEDULE_UNFUSED, 3, exchange};
    schedule = automatic && ((open && left) || (can && asked == 1)) ? WEFT_SCHEDULE_UNFUSED : usual;
    library = can && asked != 2 && (open || asked) && schedule == WEFT_SCHEDULE_UNFUSED ? 1 : 2;
    if (world == 1 && open && library == 2 && b->hopper && splitk_wins(p, crews))
        library = 3;
    return (maker){schedule, library, exchange};
}

/* Columns of what is added up at once: many, so that a task is more than its waits, where there is enough. */
static int64_t sum_cols(const weft_problem *p, int world, int64_t lanes)
{
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;

    return sums && p->m * p->n / world >= 2 * lanes * SUM_ROWS * SUM_COLS ? SUM_COLS : HALF_N;
}

/* Unfused, of several ranks: how they get what they share. A collective is the fastest way unless tiles are
 * asked for, which it does not know. */
static weft_tuning tune_exchange(const weft_problem *p, const weft_cuda_basis *b, const maker *m)
{
    weft_tuning t = p->tuning;
    bool open = !t.tile_m && !t.tile_n && !t.workers;
    int ctas = b->hopper ? WEFT_CREW_SMS * b->crews : b->crews / WEFT_CREW_SMS * WEFT_CREW_SMS;

    t.exchange = m->exchange == 3 || (m->exchange == 0 && open) ? 3 * has_halves(p, b->world) : m->exchange;
    if (!t.tile_n)
        t.tile_n = t.exchange ? HALF_N : sum_cols(p, b->world, ctas);
    if (!t.tile_m && p->op != WEFT_OP_AG_GEMM)
        t.tile_m = SUM_ROWS;
    else if (!t.tile_m && weft_layout_gathers_k(p->layout))
        t.tile_m = HALF_M;
    else if (!t.tile_m && p->layout != WEFT_LAYOUT_GATHER_B)
        t.tile_m = moved_rows(p);
    if (!t.workers)
        t.workers = (int)weft_min(ctas, WEFT_CUDA_CREWS_MAX);
    return t;
}

/* The fastest way for fp8, which has two walkers; their steps take twice the k of 16 bits in the same time.
 */
static weft_cuda_way fp8_least(const weft_problem *p, int crews)
{
    static const int walkers[] = {WEFT_CUDA_PAIR_128, WEFT_CUDA_ONE_128};
    weft_cuda_shape shape = shape_of(p, crews);
    weft_cuda_way best = {0}, way;

    shape.k = weft_divide_up(p->k, 2);
    for (int i = 0; i < 4; i++)
        if (weft_cuda_cost(&shape, walkers[i / 2], i % 2, &way) && (best.workers == 0 || way.ns < best.ns))
            best = way;
    best.chunk_k *= 2;
    return best;
}

/* One rank has its product to itself: the fastest walker and division of k, by the model. */
static weft_tuning tune_alone(const weft_problem *p, const weft_cuda_basis *b)
{
    weft_cuda_shape shape = shape_of(p, b->crews);
    bool fp8 = weft_dtype_is_fp8(p->dtype);
    weft_cuda_way way = !b->hopper ? weft_cuda_cost_any(&shape, b->crews, fp8)
                        : fp8      ? fp8_least(p, b->crews)
                                   : weft_cuda_cost_least(&shape, false);
    weft_tuning t = p->tuning;

    t.tile_m = way.tile_m;
    t.tile_n = way.tile_n;
    t.chunk_k = fp8 ? weft_round_up(way.chunk_k, WEFT_CUDA_FP8_K) : way.chunk_k;
    t.workers = way.workers;
    t.crew = way.ctas;
    return t;
}

/* What who multiplies decides of the rest. */
static weft_tuning begin_tuning(const weft_problem *p, const weft_cuda_basis *b, const maker *m)
{
    const weft_tuning *asked = &p->tuning;
    bool untouched = !asked->tile_m && !asked->tile_n && !asked->workers && !asked->chunk_k;

    if (b->world > 1 && m->library != 2)
        return tune_exchange(p, b, m);
    return b->world == 1 && untouched ? tune_alone(p, b) : *asked;
}

/* What is open of the walker for any GPU. */
static void tune_any(const weft_problem *p, const weft_cuda_basis *b, weft_tuning *t)
{
    t->sums_stay = false;
    if (!t->tile_m)
        t->tile_m = ANY_M;
    if (!t->tile_n)
        t->tile_n = weft_dtype_is_fp8(p->dtype) ? WEFT_CUDA_FP8_N : any_width(p, b->world, b->crews);
    if (!t->workers)
        t->workers = b->crews;
}

/* Unfused, whether the ranks can fetch their results from each other, and need not be stored to: those of an
 * all_reduce by itself. */
static bool leaves_sums(const weft_problem *p, const weft_tuning *t)
{
    return p->op == WEFT_OP_GEMM_AR && t->exchange == 3;
}

bool weft_cuda_has_chunks(const weft_problem *p, weft_schedule schedule, const weft_tuning *t)
{
    if (schedule == WEFT_SCHEDULE_UNFUSED)
        return leaves_sums(p, t);
    return p->op != WEFT_OP_AG_GEMM ||
           (schedule != WEFT_SCHEDULE_TWO_LEVEL && !weft_layout_gathers_k(p->layout));
}

static weft_tuning choose_tuning(const weft_problem *p, const weft_cuda_basis *b, const maker *m)
{
    weft_tuning t = begin_tuning(p, b, m);
    bool fp8 = weft_dtype_is_fp8(p->dtype), fetches;

    t.library = m->library;
    t.staged = p->tuning.staged && weft_cuda_has_chunks(p, m->schedule, &t);
    if (b->hopper)
        weft_crews_tune(p, m->schedule, b->world, b->crews, b->adds, &t);
    else
        tune_any(p, b, &t);
    if (!t.tile_k)
        t.tile_k = fp8 ? WEFT_CUDA_FP8_K : WEFT_CUDA_TILE_K;
    if (!t.raster)
        t.raster = PANELS_SIDE_BY_SIDE;
    /* the storers of Hopper crews copy beside their own work; elsewhere a copy lane is a CTA */
    fetches = weft_crews_fetch(p, m->schedule, b->world, t.sums_stay);
    if (!fetches)
        t.copiers = 0;
    else if (!t.copiers)
        t.copiers = b->hopper ? b->crews * WEFT_CREW_SMS * WEFT_CUDA_CTA_COPIERS : COPIERS;
    if (fetches && weft_crews_gather(p, m->schedule) && !t.chunk_k)
        t.chunk_k = fp8 ? 2 * CHUNK_K : CHUNK_K;
    if (!b->hopper && b->crews > t.copiers && t.workers > b->crews - t.copiers)
        t.workers = b->crews - t.copiers;
    return t;
}

weft_problem weft_cuda_choose_product(const weft_problem *asked, const weft_cuda_basis *b)
{
    weft_problem decided = *asked;
    maker m;

    if (b->world == 1 && weft_layout_gathers_k(asked->layout)) /* alone, all of k is there */
        decided.layout = WEFT_LAYOUT_GATHER_A;
    m = choose_maker(&decided, b);
    decided.tuning = choose_tuning(&decided, b, &m);
    decided.schedule = m.schedule;
    decided.b_form = WEFT_B_PLAIN;
    return decided;
}
