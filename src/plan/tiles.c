/* The search for tiles; see tiles.h. */
#include "plan/tiles.h"

#include "core/dtype.h"
#include "core/round.h"
#include "gemm/cost.h"
#include "plan/generate.h"

#include <math.h>

enum {
    ROUNDS_MOST = 8,      /* tiles of a worker, about, at most */
    ROW_CUTS_MOST = 12,   /* ways to cut rows that are compared, one by one; then an eighth more each */
    CUTS_REACH = 4,       /* times as many rows of tiles as those */
    ROWS_PAY = 2,         /* micro-tiles of rows that read a panel of B */
    SLICES_OF_SHARE = 8,  /* steps of k in a share, so that shares are even */
    SLICE_K_LEAST = 128,  /* of k: less is over before its sum is stored */
    SUM_MOVES = 4,        /* of each element of a slice: stored, and added to the others */
    OWNER_MOVES = 1,      /* of each element from each rank: the owner of a tile adds them up */
    TRAVEL_MOVES = 4,     /* of each element of a narrow tile that all nodes get: gathered, and scattered */
    STEP_K = 8,           /* at most, in the time of a step: AMX has more in one */
    STEP_BYTES = 32,      /* are packed in the time of a step of the kernel */
    TASK_STEPS = 128,     /* starting a task costs as much as so many steps of its kernel */
    CHUNK_LINE_BYTES = 64 /* what two workers should not share */
};

/* An element of the result, finished and stored, in steps of the kernel. */
static const double result_steps = 1.0 / 8;

/* A busiest worker may have this much more than the mean; beyond that its work counts so many times more:
 * others, where there are any, wait for whoever is late. Starts of tasks do not: where they take longer than
 * the tasks, fewer are better. */
static const double even_enough = 1.14, uneven_costs = 2;

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
    int owners;    /* ranks that add up tiles of their own which all have sent; 0: none does */
} extents;

typedef struct grid {
    int64_t down, across, tile_m, panels; /* panels: columns of the widest tile, in steps */
    double tiles, cost, uneven;
    double strain; /* that the cost of an uneven grid counts for more */
} grid;

static extents extents_of(const weft_problem *p, int world)
{
    bool two_level = p->schedule == WEFT_SCHEDULE_TWO_LEVEL;
    bool by_rows = p->layout == WEFT_LAYOUT_GATHER_A || p->layout == WEFT_LAYOUT_SCATTER_ROWS;
    int64_t part_m = weft_problem_part_m(p, world, 0).count, part_n = weft_problem_part_n(p, world, 0).count,
            part_k = weft_problem_part_k(p, world, 0).count;
    double shards = (double)weft_min(by_rows ? p->m : p->n, world), steps;
    int owners = p->schedule == WEFT_SCHEDULE_TWO_SHOT && world > 2 ? world : 0;

    switch (p->op) {
    case WEFT_OP_AG_GEMM:
        if (weft_layout_gathers_k(p->layout))
            return p->layout == WEFT_LAYOUT_GATHER_A_K ? (extents){1, p->m, part_n, p->k, false, 1, 0}
                                                       : (extents){1, part_m, p->n, p->k, false, 1, 0};
        if (weft_ag_gemm_at_once(p, world))
            return (extents){1, p->m, part_n, p->k, false, 1, 0};
        return (extents){shards, part_m, part_n, p->k, false, 1, 0};
    case WEFT_OP_GEMM_RS:
        if (p->schedule == WEFT_SCHEDULE_UNFUSED) /* the whole product, then the scattering */
            return (extents){1, p->m, p->n, part_k, true, 1, 0};
        steps = p->schedule == WEFT_SCHEDULE_DIRECT ? 1 : shards;
        return by_rows ? (extents){shards, part_m, p->n, part_k, false, steps, 0}
                       : (extents){shards, p->m, part_n, part_k, false, steps, 0};
    case WEFT_OP_GEMM_AR: /* of two ranks' two_shot, too, an own tile starts from the peer's sum */
        steps = two_level || (p->schedule == WEFT_SCHEDULE_TWO_SHOT && world == 2) ? world : 1;
        return (extents){1, p->m, p->n, part_k, !two_level, steps, owners};
    default:
        return (extents){1, p->m, part_n, p->k, !two_level, 1, 0};
    }
}

/* In steps of the kernel, each mr x nr x k_step multiplications: 5.1 to 5.7 ns for every type on a Cascade
 * Lake, where a core packs 4 to 8 GB/s of A, streams 10 to 18 of B, and starts a task in 0.6 us. */
static weft_gemm_rates rates_of(const weft_problem *p, const weft_gemm_steps *steps)
{
    double move = (double)weft_dtype_size(p->dtype) / STEP_BYTES,
           deep = (double)weft_min(steps->k_step, STEP_K);

    return (weft_gemm_rates){.multiply = 1 / ((double)steps->mr * steps->nr * deep),
                             .pack_a = move,
                             .pack_b = move,
                             .stream_b = move / 2};
}

/* A task of rows x columns over k, with its results. Reading B is added, which a core may do beside the
 * arithmetic: where several tiles of few rows read all of a large B, they take twice as long as one that
 * packs it. */
static double task_cost(const weft_problem *p, const weft_gemm_steps *steps, int64_t rows, int64_t cols,
                        int64_t k, bool has_b)
{
    weft_gemm_rates rates = rates_of(p, steps);
    double b_bytes = (double)cols * (double)k * (double)weft_dtype_size(p->dtype);
    weft_gemm_cost cost = weft_gemm_cost_of(
        &rates, steps, rows, cols, k,
        weft_gemm_b_of(rows, steps->mr, p->b_form != WEFT_B_PLAIN, has_b && !steps->widens, b_bytes));

    return cost.arithmetic + cost.stream + cost.packing + result_steps * (double)rows * (double)cols +
           TASK_STEPS;
}

/* Whether a worker's next tile has the columns of its last one. Tiles are dealt in turn, row by row; those of
 * a two_shot owner by owner, whose tiles are of other columns each. */
static bool keeps_columns(const weft_problem *p, const grid *g)
{
    return p->schedule == WEFT_SCHEDULE_TWO_SHOT ? g->across == 1 : p->tuning.workers % g->across == 0;
}

/* What the busiest worker does. */
static void judge(const weft_problem *p, const extents *e, const weft_gemm_steps *steps, grid *g)
{
    int64_t lanes = p->tuning.workers, columns = weft_divide_up(e->cols, steps->nr),
            down = weft_divide_up(e->rows, steps->mr), rows, cols;
    double first, rounds, each; /* micro-tiles of a worker: whole ones cannot be more even */

    g->tile_m = weft_divide_up(e->rows, g->down);
    if (g->tile_m > steps->mr || lanes == 1) /* fewer rows than a micro-tile has are for idle workers */
        g->tile_m = weft_round_up(g->tile_m, steps->mr);
    g->panels = weft_divide_up(columns, g->across);
    rows = weft_min(g->tile_m, e->rows);
    cols = weft_min(g->panels * steps->nr, e->cols);
    g->tiles = e->shards * (double)p->l * (double)(weft_divide_up(e->rows, g->tile_m) * g->across);
    /* Lanes are dealt to on and on: who has one more in a step has one less in another. */
    rounds = lanes == 1 || g->tiles >= e->steps * (double)lanes
                 ? ceil(g->tiles / (double)lanes)
                 : e->steps * ceil(g->tiles / e->steps / (double)lanes);
    g->uneven = rounds * (double)rows * (double)g->panels * (double)lanes /
                (e->shards * (double)p->l * (double)e->rows * (double)columns);
    g->cost = first = task_cost(p, steps, rows, cols, e->k, false);
    if (rounds > 1)
        g->cost += (rounds - 1) * (keeps_columns(p, g) ? task_cost(p, steps, rows, cols, e->k, true) : first);
    if (p->op == WEFT_OP_GEMM_AR && p->schedule == WEFT_SCHEDULE_TWO_LEVEL && e->steps > 1 && g->across > 1)
        g->cost += rounds * TRAVEL_MOVES * result_steps * (double)rows * (double)cols;
    if (e->owners) /* an owner adds a tile up where it has multiplied it: few tiles are few workers */
        g->cost += ceil(ceil(g->tiles / e->owners) / (double)lanes) * e->owners * OWNER_MOVES * result_steps *
                   (double)rows * (double)cols;
    if (g->tiles < (double)lanes && e->shards * (double)(p->l * down * columns) >= (double)lanes) {
        g->cost += (idle_costs - 1) * (g->cost - rounds * TASK_STEPS);
        g->uneven = fmax(g->uneven, idle_costs);
    }
    each = e->shards * (double)(p->l * down * columns) / (double)lanes;
    g->strain = g->uneven <= fmax(even_enough, ceil(each) / each) || lanes == 1
                    ? 0
                    : uneven_costs * (g->cost - rounds * TASK_STEPS);
}

static bool better(const grid *one, const grid *other)
{
    return one->cost + one->strain < other->cost + other->strain;
}

/* How many tiles there should be at least. Sums leave and come while others are formed: two for each owner,
 * and as much for one as another. */
static int64_t tiles_wanted(const weft_problem *p, int world, bool travels)
{
    return travels || p->schedule == WEFT_SCHEDULE_TWO_SHOT ? 2 * (int64_t)world : 1;
}

/* Rows of tiles as wide as the result, of which there are as many as are wanted because they travel; 0: none
 * are, or they would have fewer rows than pay. They may be more than the search below comes to. */
static int64_t rows_of_many(const weft_problem *p, const extents *e, const weft_gemm_steps *steps,
                            int64_t wanted)
{
    double down = ceil((double)wanted / (e->shards * (double)p->l));
    int64_t rows = (int64_t)((double)e->rows / down) / steps->mr * steps->mr;

    return e->steps > 1 && wanted > 1 && rows >= ROWS_PAY * (int64_t)steps->mr ? rows : 0;
}

/* The best of the ways to cut rows and columns: for each cut of rows those of columns that fill rounds. */
static grid cut_rows_and_columns(const weft_problem *p, const extents *e, const weft_gemm_steps *steps,
                                 int64_t wanted)
{
    /* Down to a third of a micro-tile's rows, for which there are kernels: fewer leave most of a column's
     * reading unused. */
    int64_t down0 = weft_divide_up(e->rows, steps->m_tile),
            down_most = weft_divide_up(e->rows, weft_divide_up(steps->mr, 3));
    int64_t columns = weft_divide_up(e->cols, steps->nr), before = 0;
    double rounds = fmax(ROUNDS_MOST, ceil((double)wanted / p->tuning.workers));
    int64_t few = rows_of_many(p, e, steps, wanted);
    int64_t near = down0 + ROW_CUTS_MOST, far = p->tuning.workers > 1 ? CUTS_REACH * near : near;
    grid best = {.uneven = INFINITY, .cost = INFINITY};

    for (int64_t down = down0; down <= weft_min(down_most, far);
         down += down < near ? 1 : weft_divide_up(down, 8)) {
        double rows_of_tiles = e->shards * (double)p->l * (double)down;
        int64_t narrow = weft_round_up(weft_divide_up(e->cols, weft_divide_up(wanted, p->l * down)),
                                       WEFT_PACK_COLUMNS),
                narrowed = weft_divide_up(e->cols, narrow);

        before = 0;
        for (double round = 1; round <= rounds + 1 && before < columns; round++) {
            /* Rows of tiles that are more than so many rounds by themselves have all columns. */
            double across = round > rounds
                                ? (double)columns
                                : fmax(1, floor(round * e->steps * p->tuning.workers / rows_of_tiles));
            grid g = {.down = down, .across = weft_min((int64_t)fmin(across, (double)columns), columns)};

            if (e->owners) /* those that would have less are narrowed */
                g.across = weft_max(g.across, narrowed);
            if (g.across == before ||
                (!e->owners && rows_of_tiles * (double)g.across < (double)wanted && g.across < columns))
                continue;
            before = g.across;
            judge(p, e, steps, &g);
            /* Rounded up to whole micro-tiles they may be fewer: an owner would have one where others have
             * two. */
            if (e->steps > 1 && g.tiles < (double)wanted && g.across < columns)
                continue;
            if (better(&g, &best))
                best = g;
        }
    }
    if (few) {
        grid g = {.down = weft_divide_up(e->rows, few), .across = 1};

        judge(p, e, steps, &g);
        if (better(&g, &best))
            best = g;
    }
    return best;
}

/* Tiles of `panels` columns of which those that do not fill a round, fewer than there are workers, are cut
 * along k into equal shares. Returns the step of k, or 0 where that cannot be. */
static int64_t judge_cut(const weft_problem *p, const extents *e, const weft_gemm_steps *steps,
                         int64_t panels, grid *g)
{
    int64_t rest, slices, cut, rows, cols, share;

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
    rows = weft_min(g->tile_m, e->rows);
    cols = weft_min(g->panels * steps->nr, e->cols);
    share = weft_divide_up(rest * weft_divide_up(e->k, cut), p->tuning.workers) * cut;
    if (share >= e->k) /* as long as a tile that is not cut */
        return 0;
    g->cost = floor(g->tiles / p->tuning.workers) * task_cost(p, steps, rows, cols, e->k, false) +
              task_cost(p, steps, rows, cols, share, false) +
              SUM_MOVES * result_steps * (double)rows * (double)cols + 0.5 * TASK_STEPS;
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

/* One worker: two tiles for every owner, as far as whole panels divide so, so that what it goes on from has
 * left the peer's cache. */
static int64_t columns_of_two_shot(const weft_problem *p, int world, const weft_gemm_steps *steps)
{
    int64_t down = weft_divide_up(p->m, p->tuning.tile_m) * p->l, panels = weft_divide_up(p->n, steps->nr);

    return down > 0 ? weft_divide_up(panels, weft_divide_up(2 * (int64_t)world, down)) * steps->nr : 0;
}

void weft_plan_tiles(weft_problem *p, int world, const weft_gemm_steps *steps)
{
    bool open = !p->tuning.tile_m && !p->tuning.tile_n && !p->tuning.grain_n;
    int64_t rows_once = p->tuning.tile_m ? p->tuning.tile_m : steps->m_tile;
    bool travels =
        p->schedule == WEFT_SCHEDULE_TWO_LEVEL && (p->op == WEFT_OP_GEMM_AR || p->op == WEFT_OP_GEMM_RS);
    extents e = extents_of(p, world);

    /* A B that only one tile of rows uses is better packed in the cache, block by block, or streamed; so is
     * one whose rows are cut here only to have a tile for every worker. */
    if (p->b_form == WEFT_B_PACK_IN_RUN && (p->op != WEFT_OP_AG_GEMM || world == 1) && p->m <= rows_once)
        p->b_form = WEFT_B_PLAIN;
    if (open && (p->tuning.workers > 1 || travels) && e.rows > 0 && e.cols > 0 && e.k > 0) {
        grid best = cut_rows_and_columns(p, &e, steps, tiles_wanted(p, world, travels));

        if (e.stream_k && !p->tuning.tile_k && best.strain > 0)
            cut_k(p, &e, steps, &best, &p->tuning.tile_k);
        p->tuning.tile_m = best.tile_m;
        p->tuning.tile_n = weft_divide_up(e.cols, best.across);
        p->tuning.grain_n = steps->nr;
    }
    if (!p->tuning.tile_m)
        p->tuning.tile_m = steps->m_tile;
    if (open && p->tuning.workers == 1 && p->op == WEFT_OP_GEMM_AR && p->schedule == WEFT_SCHEDULE_TWO_SHOT)
        p->tuning.tile_n = columns_of_two_shot(p, world, steps);
    /* Windows of packed panels begin where a panel does. */
    if (p->tuning.grain_n)
        p->tuning.grain_n = (int)weft_round_up(p->tuning.grain_n, steps->nr);
    else
        p->tuning.tile_n = weft_round_up(p->tuning.tile_n ? p->tuning.tile_n
                                         : p->n > 0       ? p->n
                                                          : 1,
                                         steps->nr);
    p->tuning.tile_k = weft_round_up(p->tuning.tile_k ? p->tuning.tile_k
                                     : p->k > 0       ? p->k
                                                      : 1,
                                     steps->k_step);
    p->tuning.chunk_k = weft_round_up(p->tuning.chunk_k, steps->k_step);
}

int64_t weft_plan_chunk(const weft_problem *p, int world)
{
    bool sliced = p->op == WEFT_OP_ALL_REDUCE && p->schedule != WEFT_SCHEDULE_ONE_SHOT;
    int64_t line = CHUNK_LINE_BYTES / (int64_t)weft_dtype_size(p->dtype);
    int64_t extent = sliced ? weft_divide_up(p->count, world) : p->count;

    return extent > 0 ? weft_round_up(weft_divide_up(extent, p->tuning.workers), line > 0 ? line : 1) : 1;
}
