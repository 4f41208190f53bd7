/* See shared.h. Times are in microseconds. */
#include "choose/cuda/shared.h"

#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"
#include "plan/crews.h"
#include "choose/cuda/kernels.h"

#include <math.h>

enum { FITTED_ROWS = 8 /* at least, of the products that the model was fitted to */ };

static const double launch_us = 3, /* of a rank's kernel in a graph, one rank after another; */
    launches_us = 4,               /* of a product's and a collective's; */
    tile_us = 2,                   /* of the end of a crew's tile, and as much where it adds to others'; */
    step_us = 0.70,                /* of a crew's tile of 256 x 256, 64 of k; */
    narrow_step = 0.60,            /* and of one of 128 columns, of that */
    operations_us = WEFT_CREWS_H200_TFLOPS * 1e6,
                    bytes_us = 4.2e6; /* of a GPU that is full, and of its memory */

/* What a schedule takes: so much of what its products would, of what it moves and of the sums that it moves,
 * and always. */
typedef struct schedule_cost {
    weft_op op;
    weft_schedule schedule;
    double products, moved, sums, always;
    enum {
        ANY,
        HALVES,
        NO_HALVES
    } only; /* unfused, where a collective by itself is the other half, or not */
} schedule_cost;

static const schedule_cost costs[] = {
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_UNFUSED, 1.16, 3.95, 0, 16.0, ANY},
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 0.84, 2.86, 0, 13.2, ANY},
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_B, 0.84, 2.86, 0, 13.2, ANY},
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 0.89, 1.00, 0, 11.1, ANY},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_UNFUSED, 0.96, 0, 7.09, 9.7, HALVES},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_UNFUSED, 1.49, 0, 5.43, 12.7, NO_HALVES},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, 0.88, 0, 1.00, 8.0, ANY},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_B, 0.88, 0, 1.00, 8.0, ANY},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_DIRECT, 0.90, 0, 5.92, 9.6, ANY},
    {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED, 1.14, 3.15, 1.07, 11.0, HALVES},
    {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED, 1.31, 1.87, 11.24, 14.1, NO_HALVES},
    {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, 0.93, 2.59, 1.00, 15.5, ANY},
    {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_LEVEL, 0.86, 1.00, 3.22, 21.4, ANY},
    {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_TWO_LEVEL, 0.89, 2.56, 0, 10.6, ANY},
    {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_UNFUSED, 1.02, 10.71, 0, 16.4, ANY},
    {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER, 0.84, 3.19, 0, 45.0, ANY},
};

static bool gathers_b(const weft_problem *p)
{
    return p->op == WEFT_OP_AG_GEMM && p->layout == WEFT_LAYOUT_GATHER_B;
}

static bool by_columns(const weft_problem *p)
{
    return p->op == WEFT_OP_GEMM_RS && p->layout == WEFT_LAYOUT_SCATTER_COLS;
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
    bool narrow = ring && schedule != WEFT_SCHEDULE_DIRECT && s->ring_cols < tile_n,
         sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;
    int64_t wide = narrow ? s->ring_cols : tile_n, down, across, steps;
    if (gathers_b(p)) {
        down = weft_divide_up(weft_divide_up(p->m, s->world), tile_m);
        across = weft_part_tiles(p->n, s->world, tile_n);
    } else if (p->op == WEFT_OP_AG_GEMM) {
        down = weft_part_tiles(p->m, s->world, tile_m);
        across = weft_divide_up(weft_divide_up(p->n, s->world), tile_n);
    } else if (p->op == WEFT_OP_GEMM_AS) {
        down = weft_divide_up(p->m, tile_m);
        across = weft_divide_up(weft_divide_up(p->n, s->world), tile_n);
    } else if (by_columns(p)) {
        down = weft_divide_up(p->m, tile_m);
        across = weft_part_tiles(p->n, s->world, wide);
    } else {
        down = ring ? weft_part_tiles(p->m, s->world, tile_m) : weft_divide_up(p->m, tile_m);
        across = weft_divide_up(p->n, wide);
    }
    steps = weft_divide_up(depth_of(p, s->world), WEFT_CUDA_TILE_K);
    return (double)weft_divide_up(down * across * p->l, s->crews) *
           ((double)steps * step_us * (narrow ? narrow_step : 1) + (sums ? 2 : 1) * tile_us);
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
    double here = (double)WEFT_CREWS_H200 / s->crews / s->world; /* share of the ranks that this GPU has */
    double sent = (s->world - 1) * (double)p->l / bytes_us * here, area = (double)p->m * (double)p->n;
    double moved = p->op == WEFT_OP_AG_GEMM ? (double)p->k * (double)(gathers_b(p) ? p->n : p->m) *
                                                  (double)weft_dtype_size(p->dtype)
                                            : area * (double)weft_dtype_size(p->d_dtype);
    double products = unfused ? library_products(p, s) * here : fused_products(p, s, c->schedule);
    return fmax((unfused ? launches_us : launch_us) * here * s->world,
                c->always + c->products * products + c->moved * moved * sent +
                    c->sums * area * (double)weft_dtype_size(p->wire_dtype) * sent);
}

/* Whether it is one of the problem's schedules, and can be. */
static bool is_candidate(const weft_problem *p, const weft_cuda_sharing *s, const schedule_cost *c)
{
    if (c->op != p->op)
        return false;
    switch (c->schedule) {
    case WEFT_SCHEDULE_UNFUSED:
        return s->unfused && (c->only == ANY || (c->only == HALVES) == s->halves);
    case WEFT_SCHEDULE_ALLGATHER_ROTATING_A:
        return !gathers_b(p);
    case WEFT_SCHEDULE_ALLGATHER_ROTATING_B:
        return gathers_b(p);
    case WEFT_SCHEDULE_REDUCESCATTER_TILING_A:
        return !by_columns(p);
    case WEFT_SCHEDULE_REDUCESCATTER_TILING_B:
        return by_columns(p);
    case WEFT_SCHEDULE_TWO_LEVEL: /* sums that are wider than results wait for one another on the way */
        return p->op != WEFT_OP_GEMM_AR || s->world == 2 || p->wire_dtype == p->d_dtype;
    default:
        return true;
    }
}

weft_schedule weft_cuda_shared_fastest(const weft_problem *p, const weft_cuda_sharing *s)
{
    weft_schedule best = p->schedule;
    double least = INFINITY;
    /* with fewer rows tiles of 256 take longer than the model says: one row of a gemm_rs 70 us, unfused 50 */
    if (p->m < FITTED_ROWS && s->unfused)
        return WEFT_SCHEDULE_UNFUSED;
    for (size_t i = 0; i < sizeof(costs) / sizeof(costs[0]); i++) {
        double us = is_candidate(p, s, &costs[i]) ? time_of(p, s, &costs[i]) : INFINITY;
        if (us < least) {
            least = us;
            best = costs[i].schedule;
        }
    }
    return best;
}
