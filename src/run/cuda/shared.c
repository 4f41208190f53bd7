/* See shared.h. Times are in microseconds. */
#include "run/cuda/shared.h"

#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"
#include "run/cuda/task.h"

#include <math.h>

enum { ALL_CREWS = 66 }; /* of an H200 */

static const double launch_us = 9.5,         /* of a rank's kernel, one rank after another; */
    launches_us = 15.5,                      /* of a product's and a collective's, */
    launches_k_us = 0.0008,                  /* and more for each k of a product that few SMs make */
    step_us = 0.70,                          /* of a crew's tile of 256 x 256, 64 of k; */
    narrow_step = 0.55,                      /* and of one of 128 columns, of that */
    operations_us = 790e6, bytes_us = 4.2e6; /* of a GPU that is full, and of its memory */

/* What a schedule takes: so much of what its products would, of what it moves and of the sums that it moves,
 * and always. */
typedef struct schedule_cost {
    weft_op op;
    weft_schedule schedule;
    double products, moved, sums, always;
} schedule_cost;

static const schedule_cost halves_costs[] = {
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_UNFUSED, 1.18, 3.75, 0, 16.2},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_UNFUSED, 0.95, 0, 5.50, 23.9},
    {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED, 1.04, 2.69, 2.11, 14.0},
};

static const schedule_cost costs[] = {
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_UNFUSED, 1.18, 3.75, 0, 16.2},
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 0.90, 2.68, 0, 14.5},
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_B, 0.90, 2.68, 0, 14.5},
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 0.95, 1.00, 0, 15.1},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_UNFUSED, 1.08, 0, 5.69, 26.7},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, 1.29, 0, 2.60, 9.6},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_B, 1.29, 0, 2.60, 9.6},
    {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED, 1.76, 2.48, 1.09, 17.8},
    {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, 1.25, 1.00, 1.00, 31.7},
    {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_LEVEL, 1.11, 6.91, 1.00, 24.2},
    {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_UNFUSED, 0.96, 9.72, 0, 31.0},
    {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER, 0.92, 2.82, 0, 45.0},
    {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_TWO_LEVEL, 0.93, 2.65, 0, 13.9},
};

static bool gathers_b(const weft_problem *p)
{
    return p->op == WEFT_OP_AG_GEMM && p->layout == WEFT_LAYOUT_GATHER_B;
}

static bool by_columns(const weft_problem *p)
{
    return p->op == WEFT_OP_GEMM_RS && p->layout == WEFT_LAYOUT_SCATTER_COLS;
}

/* Tiles of an extent that is cut into the ranks' parts first. */
static int64_t cut_tiles(int64_t extent, int world, int64_t tile)
{
    int64_t tiles = 0;
    for (int r = 0; r < world; r++)
        tiles += weft_divide_up(weft_part(extent, world, r).count, tile);
    return tiles;
}

static int64_t depth_of(const weft_problem *p, int world)
{
    return p->op == WEFT_OP_AG_GEMM || p->op == WEFT_OP_GEMM_AS ? p->k : weft_divide_up(p->k, world);
}

/* The products of one rank by its crews: rounds of whole tiles. */
static double fused_products(const weft_problem *p, const weft_cuda_sharing *s, weft_schedule schedule)
{
    const int64_t tile_m = WEFT_CUDA_TILE_M, tile_n = WEFT_CUDA_TILE_N;
    bool ring = p->op == WEFT_OP_GEMM_RS || schedule == WEFT_SCHEDULE_TWO_SHOT;
    bool narrow = ring && s->ring_cols < tile_n;
    int64_t wide = narrow ? s->ring_cols : tile_n, down, across;
    if (gathers_b(p)) {
        down = weft_divide_up(weft_divide_up(p->m, s->world), tile_m);
        across = cut_tiles(p->n, s->world, tile_n);
    } else if (p->op == WEFT_OP_AG_GEMM) {
        down = cut_tiles(p->m, s->world, tile_m);
        across = weft_divide_up(weft_divide_up(p->n, s->world), tile_n);
    } else if (p->op == WEFT_OP_GEMM_AS) {
        down = weft_divide_up(p->m, tile_m);
        across = weft_divide_up(weft_divide_up(p->n, s->world), tile_n);
    } else if (by_columns(p)) {
        down = weft_divide_up(p->m, tile_m);
        across = cut_tiles(p->n, s->world, wide);
    } else {
        down = ring ? cut_tiles(p->m, s->world, tile_m) : weft_divide_up(p->m, tile_m);
        across = weft_divide_up(p->n, wide);
    }
    return (double)weft_divide_up(down * across * p->l, s->crews) *
           (double)weft_divide_up(depth_of(p, s->world), WEFT_CUDA_TILE_K) * step_us *
           (narrow ? narrow_step : 1);
}

/* Those of all ranks on the GPU by all of it, or what they move through its memory. */
static double library_products(const weft_problem *p, const weft_cuda_sharing *s)
{
    double m = (double)p->m, n = (double)p->n, k = (double)p->k, l = (double)p->l;
    double size = (double)weft_dtype_size(p->dtype), out = (double)weft_dtype_size(p->d_dtype),
           wire = (double)weft_dtype_size(p->wire_dtype);
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;
    double copies_a = sums || gathers_b(p) ? 1 : s->world, copies_b = gathers_b(p) ? s->world : 1;
    double bytes = k * n * size * copies_b + m * k * size * copies_a + m * n * (sums ? wire * s->world : out);
    return l * fmax(2 * m * n * k / operations_us, bytes / bytes_us);
}

static double time_of(const weft_problem *p, const weft_cuda_sharing *s, const schedule_cost *c)
{
    bool unfused = c->schedule == WEFT_SCHEDULE_UNFUSED;
    double here = (double)ALL_CREWS / s->crews / s->world; /* share of the ranks that this GPU has */
    double sent = (s->world - 1) * (double)p->l / bytes_us * here, area = (double)p->m * (double)p->n;
    double moved = p->op == WEFT_OP_AG_GEMM ? (double)p->k * (double)(gathers_b(p) ? p->n : p->m) *
                                                  (double)weft_dtype_size(p->dtype)
                                            : area * (double)weft_dtype_size(p->d_dtype);
    double products = unfused ? library_products(p, s) * here : fused_products(p, s, c->schedule);
    double launches = unfused ? launches_us + launches_k_us * (double)depth_of(p, s->world) : launch_us;
    return fmax(launches * here * s->world,
                c->always + c->products * products + c->moved * moved * sent +
                    c->sums * area * (double)weft_dtype_size(p->wire_dtype) * sent);
}

/* Whether it is one of the problem's schedules, and can be. */
static bool is_candidate(const weft_problem *p, const weft_cuda_sharing *s, const schedule_cost *c)
{
    switch (c->schedule) {
    case WEFT_SCHEDULE_UNFUSED:
        return s->unfused;
    case WEFT_SCHEDULE_ALLGATHER_ROTATING_A:
        return !gathers_b(p);
    case WEFT_SCHEDULE_ALLGATHER_ROTATING_B:
        return gathers_b(p);
    case WEFT_SCHEDULE_REDUCESCATTER_TILING_A:
        return !by_columns(p);
    case WEFT_SCHEDULE_REDUCESCATTER_TILING_B:
        return by_columns(p);
    default:
        return true;
    }
}

weft_schedule weft_cuda_shared_fastest(const weft_problem *p, const weft_cuda_sharing *s)
{
    weft_schedule best = p->schedule;
    double least = INFINITY;
    for (size_t i = 0; i < sizeof(costs) / sizeof(costs[0]); i++) {
        const schedule_cost *c = &costs[i];
        double us;
        if (c->op != p->op || !is_candidate(p, s, c))
            continue;
        for (size_t j = 0; s->halves && c->schedule == WEFT_SCHEDULE_UNFUSED &&
                           j < sizeof(halves_costs) / sizeof(halves_costs[0]);
             j++)
            if (halves_costs[j].op == p->op)
                c = &halves_costs[j];
        us = time_of(p, s, c);
        if (us < least) {
            least = us;
            best = c->schedule;
        }
    }
    return best;
}
