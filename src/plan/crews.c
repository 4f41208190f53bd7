/* What measured fastest on an H200; see crews.h. */
#include "plan/crews.h"

#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"

#include <math.h>

enum {
    STRIPE_COLS = 8192, /* of a gemm_ar's stripe, its rows of tiles together: fewer leave crews idle, and the
                           last stripe is fetched when all is multiplied */
    STRIPE_MOST = 8,    /* rows of tiles */
    LINK_GBS = 450,
    LINK_K = (1000 * WEFT_CREWS_H200_TFLOPS + LINK_GBS) / (2 * LINK_GBS),
};

bool weft_crews_ring(const weft_problem *p, weft_schedule schedule)
{
    return (p->op == WEFT_OP_GEMM_AR && schedule == WEFT_SCHEDULE_TWO_SHOT) ||
           (p->op == WEFT_OP_GEMM_RS && schedule != WEFT_SCHEDULE_DIRECT &&
            schedule != WEFT_SCHEDULE_UNFUSED);
}

int64_t weft_crews_tiles(const weft_problem *p, int world, int64_t tile_m, int64_t tile_n)
{
    bool ag = p->op == WEFT_OP_AG_GEMM, gather_a = p->layout == WEFT_LAYOUT_GATHER_A;
    int64_t down = ag && !gather_a ? weft_divide_up(weft_part(p->m, world, 0).count, tile_m)
                                   : weft_part_tiles(p->m, world, tile_m);
    int64_t across = ag && gather_a ? weft_divide_up(weft_part(p->n, world, 0).count, tile_n)
                                    : weft_part_tiles(p->n, world, tile_n);

    return down * across * p->l;
}

/*
 * The ring of a gemm_rs has narrow tiles where the links are busy for longer than the tensor cores, or where
 * a step's tiles are too few for the crews: the first are finished sooner, and no crew waits for sums of
 * another that began when it did. A link takes as long for an element as the product for LINK_K times its
 * bytes in k.
 */
bool weft_crews_narrow_ring(const weft_problem *p, int world, int crews, int64_t tile_m)
{
    int64_t k = weft_part(p->k, world, 0).count, wire = (int64_t)weft_dtype_size(p->wire_dtype);

    return k < LINK_K * wire ||
           weft_crews_tiles(p, world, tile_m, WEFT_CREW_COLS) * 2 <= (int64_t)crews * world;
}

/* The width with which the crews' rounds take less time: a round lasts as long as its tiles are wide. Wider
 * tiles load less for the same product, so they win a tie. Stream-K divides the last round anyway. */
static int64_t usual_width(const weft_problem *p, int world, int crews, int64_t tile_m)
{
    int64_t wide = weft_divide_up(weft_crews_tiles(p, world, tile_m, WEFT_CREW_COLS), crews) * WEFT_CREW_COLS;
    int64_t narrow = weft_divide_up(weft_crews_tiles(p, world, tile_m, WEFT_CREW_NARROW_COLS), crews) *
                     WEFT_CREW_NARROW_COLS;

    if (p->op == WEFT_OP_GEMM_AS || p->op == WEFT_OP_GEMM_AR)
        return WEFT_CREW_COLS;
    return narrow < wide ? WEFT_CREW_NARROW_COLS : WEFT_CREW_COLS;
}

/* `ring`: the sums stay. */
static int64_t width_of(const weft_problem *p, int world, int crews, int64_t tile_m, bool ring)
{
    if (weft_dtype_is_fp8(p->dtype))
        return WEFT_CREW_HALF_COLS;
    if (ring && world > 1 && weft_crews_narrow_ring(p, world, crews, tile_m))
        return WEFT_CREW_HALF_COLS;
    return usual_width(p, world, crews, tile_m);
}

int64_t weft_crews_cols(const weft_problem *p, int world, int crews)
{
    return width_of(p, world, crews, WEFT_CREW_ROWS, weft_crews_ring(p, p->schedule));
}

bool weft_crews_gather(const weft_problem *p, weft_schedule schedule)
{
    return p->op == WEFT_OP_AG_GEMM && schedule != WEFT_SCHEDULE_UNFUSED && schedule != WEFT_SCHEDULE_DIRECT;
}

bool weft_crews_fetch(const weft_problem *p, weft_schedule schedule, int world, bool sums_stay)
{
    return world > 1 && (weft_crews_gather(p, schedule) || (sums_stay && p->op == WEFT_OP_GEMM_AR) ||
                         (p->tuning.staged && schedule != WEFT_SCHEDULE_UNFUSED));
}

/* As few crews as take no more rounds. What a round needs is fetched side by side, and a few tiles of one
 * more shard would make all the others wait for it; and in a ring, a few tiles of a later step wait for this
 * one. */
static int even_crews(int64_t tiles, int crews)
{
    int64_t rounds = weft_divide_up(tiles, crews);

    return rounds > 0 ? (int)weft_divide_up(tiles, rounds) : crews;
}

/* Tiles that are dealt to crews. The columns of a gemm_ar are nobody's own. */
static int64_t tiles_made(const weft_problem *p, int world, int64_t tile_m, int64_t tile_n)
{
    return p->op == WEFT_OP_GEMM_AR
               ? weft_part_tiles(p->m, world, tile_m) * weft_divide_up(p->n, tile_n) * p->l
               : weft_crews_tiles(p, world, tile_m, tile_n);
}

/* Rows of tiles of a stripe of a gemm_ar. */
static int64_t stripe_of(const weft_problem *p)
{
    int64_t panels = p->n > 0 ? weft_divide_up(STRIPE_COLS, p->n) : 1;

    return weft_min(panels, STRIPE_MOST);
}

void weft_crews_tune(const weft_problem *p, weft_schedule schedule, int world, int crews, bool adds,
                     weft_tuning *t)
{
    /* the copy engine adds in memory: the crews need not read what they add to */
    t->sums_stay = adds && weft_crews_ring(p, schedule);
    if (!t->tile_m)
        t->tile_m = WEFT_CREW_ROWS;
    if (!t->tile_n)
        t->tile_n = width_of(p, world, crews, t->tile_m, t->sums_stay);
    if (!t->raster && t->sums_stay && p->op == WEFT_OP_GEMM_AR)
        t->raster = stripe_of(p);
    if (!t->workers)
        t->workers = t->sums_stay || weft_crews_fetch(p, schedule, world, t->sums_stay)
                         ? even_crews(tiles_made(p, world, t->tile_m, t->tile_n), crews)
                         : crews;
}

double weft_crews_rate(int64_t cols)
{
    bool wide = cols > WEFT_CREW_NARROW_COLS, half = cols <= WEFT_CREW_HALF_COLS;
    double width = wide   ? WEFT_CREW_COLS
                   : half ? WEFT_CREW_HALF_COLS
                          : WEFT_CREW_NARROW_COLS,
           step_ns = wide   ? WEFT_CREW_STEP_NS
                     : half ? WEFT_CREW_HALF_STEP_NS
                            : WEFT_CREW_NARROW_STEP_NS,
           library_ns = 2 * WEFT_CREW_ROWS * width * WEFT_CREW_STEP_K * WEFT_CREWS_H200 /
                        (1e3 * WEFT_CREWS_H200_TFLOPS);

    return round(1e3 * library_ns / step_ns) / 1e3; /* steps are known to three digits */
}
