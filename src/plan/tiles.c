/* The search for tiles; see tiles.h. */
#include "plan/tiles.h"

#include "core/dtype.h"
#include "core/round.h"
#include "plan/generate.h"

#include <math.h>

enum {
    ROUNDS_MOST = 8,          /* tiles of a worker, about, at most */
    ROW_CUTS_MOST = 12,       /* ways to cut rows that are compared */
    SLICES_OF_SHARE = 8,      /* steps of k in a share, so that shares are even */
    SLICE_K_LEAST = 128,      /* of k: less is over before its sum is stored */
    SUM_MOVES = 4,            /* of each element of a slice: stored, and added to the others */
    TASK_MOVES = 2000,        /* starting a task costs as much as moving so many elements */
    CACHED_BYTES = 512 << 10, /* of B that a worker still has when its next tile needs them again */
    CHUNK_LINE_BYTES = 64     /* what two workers should not share */
};

/* A busiest worker may have this much more than the mean before other cuts are preferred. */
static const double even_enough = 1.12;

/* Sharing k must promise this much: what it costs is estimated no closer. */
static const double worth_cutting = 0.9;

/* Workers that have nothing while others have several micro-tiles: so much dearer may it be to use all. */
static const double idle_costs = 1.4;

/* What is cut: `shards` of rows x columns over k, by themselves since they arrive or leave one by one. */
typedef struct extents {
    double shards;
    int64_t rows, cols, k;
    bool stream_k; /* the schedules of this operation can cut k */
    double steps;  /* in which the tiles come where sums go from rank to rank: each should use all workers */
} extents;

typedef struct grid {
    int64_t down, across, tile_m, panels; /* panels: columns of the widest tile, in steps */
    double tiles, cost, uneven;
} grid;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static extents extents_of(const weft_problem *p, int world)
{
    bool two_level = p->schedule == WEFT_SCHEDULE_TWO_LEVEL;
    bool by_rows = p->layout == WEFT_LAYOUT_GATHER_A || p->layout == WEFT_LAYOUT_SCATTER_ROWS;
    int64_t part_m = weft_problem_part_m(p, world, 0).count, part_n = weft_problem_part_n(p, world, 0).count,
            part_k = weft_problem_part_k(p, world, 0).count;
    double shards = (double)least(by_rows ? p->m : p->n, world), steps;

    switch (p->op) {
    case WEFT_OP_AG_GEMM:
        if (weft_layout_gathers_k(p->layout))
            return p->layout == WEFT_LAYOUT_GATHER_A_K ? (extents){1, p->m, part_n, p->k, false, 1}
                                                       : (extents){1, part_m, p->n, p->k, false, 1};
        if (weft_ag_gemm_at_once(p, world))
            return (extents){1, p->m, part_n, p->k, false, 1};
        return (extents){shards, part_m, part_n, p->k, false, 1};
    case WEFT_OP_GEMM_RS:
        if (p->schedule == WEFT_SCHEDULE_UNFUSED) /* the whole product, then the scattering */
            return (extents){1, p->m, p->n, part_k, true, 1};
        steps = p->schedule == WEFT_SCHEDULE_DIRECT ? 1 : shards;
        return by_rows ? (extents){shards, part_m, p->n, part_k, false, steps}
                       : (extents){shards, p->m, part_n, part_k, false, steps};
    case WEFT_OP_GEMM_AR:
        return (extents){1, p->m, p->n, part_k, !two_level, two_level ? world : 1};
    default:
        return (extents){1, p->m, part_n, p->k, !two_level, 1};
    }
}

/* Multiplications that take as long as moving one element: what a kernel does of them is its tile's area. */
static double move_cost(const weft_gemm_steps *steps)
{
    return (double)steps->mr * steps->nr / 8;
}

/* The product of a tile, in multiplications: few rows have kernels of their own, but a micro-tile whose rows
 * were divided costs about a whole one, and is for evenness only. */
static double tile_work(const extents *e, const weft_gemm_steps *steps, int64_t rows, int64_t panels)
{
    int64_t padded = e->rows <= steps->mr && rows == e->rows ? rows : weft_round_up(rows, steps->mr);

    return (double)padded * (double)(panels * steps->nr) * (double)e->k;
}

/*
 * What the busiest worker does. It packs A for every tile; B too unless it is packed or streamed, else it
 * fetches the columns of B it has not seen: tiles are dealt in turn, row by row.
 */
static void judge(const weft_problem *p, const extents *e, const weft_gemm_steps *steps, grid *g)
{
    int64_t lanes = p->tuning.workers, columns = weft_divide_up(e->cols, steps->nr),
            down = weft_divide_up(e->rows, steps->mr);
    double rounds, seen, move = move_cost(steps), wide, packs_b;

    g->tile_m = weft_divide_up(e->rows, g->down);
    if (g->tile_m > steps->mr)
        g->tile_m = weft_round_up(g->tile_m, steps->mr);
    g->panels = weft_divide_up(columns, g->across);
    g->tiles = e->shards * (double)p->l * (double)(weft_divide_up(e->rows, g->tile_m) * g->across);
    rounds = e->steps * ceil(g->tiles / e->steps / (double)lanes);
    seen = lanes % g->across == 0 ? 1 : g->across % lanes == 0 ? (double)g->across / (double)lanes : rounds;
    wide = (double)(g->panels * steps->nr);
    if (seen * wide * (double)e->k * (double)weft_dtype_size(p->dtype) > CACHED_BYTES)
        seen = rounds;
    packs_b = p->b_form == WEFT_B_PLAIN && g->tile_m > steps->mr ? rounds : seen / 2;
    g->uneven = rounds * (double)least(g->tile_m, e->rows) * (double)g->panels * (double)lanes /
                (e->shards * (double)p->l * (double)e->rows * (double)columns);
    g->cost = rounds * tile_work(e, steps, least(g->tile_m, e->rows), g->panels) +
              move * ((double)e->k * (rounds * (double)g->tile_m + packs_b * wide) +
                      rounds * (TASK_MOVES + (double)least(g->tile_m, e->rows) * wide));
    if (g->tiles < (double)lanes && e->shards * (double)(p->l * down * columns) >= (double)lanes)
        g->cost *= idle_costs;
}

static bool better(const grid *one, const grid *other)
{
    bool even = one->uneven <= even_enough, other_even = other->uneven <= even_enough;

    return even != other_even ? even : one->cost < other->cost;
}

/* The best of the ways to cut rows and columns: for each cut of rows those of columns that fill rounds. */
static grid cut_rows_and_columns(const weft_problem *p, const extents *e, const weft_gemm_steps *steps,
                                 int64_t tiles_wanted)
{
    /* Down to a third of a micro-tile's rows, for which there are kernels: fewer leave most of a column's
     * reading unused. */
    int64_t down0 = weft_divide_up(e->rows, steps->m_tile),
            down_most = weft_divide_up(e->rows, weft_divide_up(steps->mr, 3));
    int64_t columns = weft_divide_up(e->cols, steps->nr), before = 0;
    double rounds = fmax(ROUNDS_MOST, ceil((double)tiles_wanted / p->tuning.workers));
    grid best = {.uneven = INFINITY, .cost = INFINITY};

    for (int64_t down = down0; down <= least(down_most, down0 + ROW_CUTS_MOST); down++) {
        double rows_of_tiles = e->shards * (double)p->l * (double)down;

        before = 0;
        for (double round = 1; round <= rounds + 1 && before < columns; round++) {
            double across = round > rounds ? (double)columns
                                           : floor(round * e->steps * p->tuning.workers / rows_of_tiles);
            grid g = {.down = down, .across = least((int64_t)fmin(across, (double)columns), columns)};

            if (g.across < 1 || g.across == before ||
                (rows_of_tiles * (double)g.across < (double)tiles_wanted && g.across < columns))
                continue;
            before = g.across;
            judge(p, e, steps, &g);
            if (better(&g, &best))
                best = g;
        }
    }
    return best;
}

/* Tiles of `panels` columns of which those that do not fill a round, fewer than there are workers, are cut
 * along k into equal shares. Returns the step of k, or 0 where that cannot be. */
static int64_t judge_cut(const weft_problem *p, const extents *e, const weft_gemm_steps *steps,
                         int64_t panels, grid *g)
{
    int64_t rest, slices, cut, rows;
    double move = move_cost(steps), share, wide;

    *g = (grid){.down = weft_divide_up(e->rows, steps->m_tile),
                .across = weft_divide_up(weft_divide_up(e->cols, steps->nr), panels)};
    judge(p, e, steps, g);
    rest = (int64_t)g->tiles % p->tuning.workers;
    if (!rest)
        return 0;
    slices = weft_divide_up(SLICES_OF_SHARE * (int64_t)p->tuning.workers, rest);
    cut = weft_round_up(weft_divide_up(e->k, slices), steps->k_step);
    if (cut < SLICE_K_LEAST)
        cut = weft_round_up(SLICE_K_LEAST, steps->k_step);
    if (cut >= e->k)
        return 0;
    rows = least(g->tile_m, e->rows);
    share =
        floor(g->tiles / p->tuning.workers) +
        (double)(weft_divide_up(rest * weft_divide_up(e->k, cut), p->tuning.workers) * cut) / (double)e->k;
    wide = (double)(g->panels * steps->nr);
    g->cost = share * tile_work(e, steps, rows, g->panels) +
              move * ((double)e->k * share * ((double)g->tile_m + wide / 2) + 3 * TASK_MOVES +
                      (share + SUM_MOVES) * (double)rows * wide);
    return cut;
}

/* Where the busiest worker of `best` has more to do than all have in the mean, with the slices' sums on top:
 * tiles as wide as one for each worker would be, or the next smaller. */
static void cut_k(const weft_problem *p, const extents *e, const weft_gemm_steps *steps, grid *best,
                  int64_t *tile_k)
{
    int64_t even = weft_divide_up(e->cols, steps->nr) * weft_divide_up(e->rows, steps->m_tile) * p->l;
    double uncut = best->cost;

    for (int64_t panels = even / p->tuning.workers; panels <= even / p->tuning.workers + 1; panels++) {
        int64_t cut;
        grid g;

        if (!panels)
            continue;
        cut = judge_cut(p, e, steps, panels, &g);
        if (cut && g.cost < fmin(worth_cutting * uncut, best->cost)) {
            *best = g;
            *tile_k = cut;
        }
    }
}

void weft_plan_tiles(weft_problem *p, int world, const weft_gemm_steps *steps)
{
    bool open = !p->tuning.tile_m && !p->tuning.tile_n && !p->tuning.grain_n;
    int64_t rows_once = p->tuning.tile_m ? p->tuning.tile_m : steps->m_tile;
    /* Sums leave and come while others are formed: two for each owner at least, and as much for one as
     * another. */
    bool travels =
        p->schedule == WEFT_SCHEDULE_TWO_LEVEL && (p->op == WEFT_OP_GEMM_AR || p->op == WEFT_OP_GEMM_RS);
    extents e = extents_of(p, world);

    if (open && (p->tuning.workers > 1 || travels) && e.rows > 0 && e.cols > 0 && e.k > 0) {
        int64_t wanted = travels || p->schedule == WEFT_SCHEDULE_TWO_SHOT ? 2 * (int64_t)world : 1;
        grid best = cut_rows_and_columns(p, &e, steps, wanted);

        if (e.stream_k && !p->tuning.tile_k && best.uneven > even_enough)
            cut_k(p, &e, steps, &best, &p->tuning.tile_k);
        p->tuning.tile_m = best.tile_m;
        p->tuning.tile_n = weft_divide_up(e.cols, best.across);
        p->tuning.grain_n = steps->nr;
    }
    if (!p->tuning.tile_m)
        p->tuning.tile_m = steps->m_tile;
    /* Windows of packed panels begin where a panel does. */
    if (!p->tuning.grain_n)
        p->tuning.tile_n = weft_round_up(p->tuning.tile_n ? p->tuning.tile_n
                                         : p->n > 0       ? p->n
                                                          : 1,
                                         steps->nr);
    p->tuning.tile_k = weft_round_up(p->tuning.tile_k ? p->tuning.tile_k
                                     : p->k > 0       ? p->k
                                                      : 1,
                                     steps->k_step);
    p->tuning.chunk_k = weft_round_up(p->tuning.chunk_k, steps->k_step);
    /* A B that only one tile of rows uses is better packed in the cache, block by block, or streamed; so is
     * one whose rows were cut here only to have a tile for every worker. */
    if (p->b_form == WEFT_B_PACK_IN_RUN && (p->op != WEFT_OP_AG_GEMM || world == 1) && p->m <= rows_once)
        p->b_form = WEFT_B_PLAIN;
}

int64_t weft_plan_chunk(const weft_problem *p, int world)
{
    bool sliced = p->op == WEFT_OP_ALL_REDUCE && p->schedule != WEFT_SCHEDULE_ONE_SHOT;
    int64_t line = CHUNK_LINE_BYTES / (int64_t)weft_dtype_size(p->dtype);
    int64_t extent = sliced ? weft_divide_up(p->count, world) : p->count;

    return extent > 0 ? weft_round_up(weft_divide_up(extent, p->tuning.workers), line > 0 ? line : 1) : 1;
}
