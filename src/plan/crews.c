/* What measured fastest on an H200; see crews.h. */
#include "plan/crews.h"

#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"

enum {
    NARROW_COLS = 224,
    STRIPE_COLS = 8192, /* of a gemm_ar's stripe, its rows of tiles together: fewer leave crews idle, and the
                           last stripe is fetched when all is multiplied */
    STRIPE_MOST = 8,    /* rows of tiles */
    LINK_K = 878,       /* 790 TFLOP/s beside 450 GB/s */
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
    int64_t narrow = weft_divide_up(weft_crews_tiles(p, world, tile_m, NARROW_COLS), crews) * NARROW_COLS;

    if (p->op == WEFT_OP_GEMM_AS || p->op == WEFT_OP_GEMM_AR)
        return WEFT_CREW_COLS;
    return narrow < wide ? NARROW_COLS : WEFT_CREW_COLS;
}

int64_t weft_crews_width(const weft_problem *p, int world, int crews, int64_t tile_m, bool ring)
{
    if (ring && world > 1 && weft_crews_narrow_ring(p, world, crews, tile_m))
        return WEFT_CREW_HALF_COLS;
    return usual_width(p, world, crews, tile_m);
}

int64_t weft_crews_cols(const weft_problem *p, int world, int crews)
{
    if (weft_dtype_is_fp8(p->dtype))
        return WEFT_CREW_HALF_COLS;
    return weft_crews_width(p, world, crews, WEFT_CREW_ROWS, weft_crews_ring(p, p->schedule));
}

bool weft_crews_gather(const weft_problem *p, weft_schedule schedule)
{
    return p->op == WEFT_OP_AG_GEMM && schedule != WEFT_SCHEDULE_UNFUSED && schedule != WEFT_SCHEDULE_DIRECT;
}

/* As few crews as take no more rounds. What a round needs is fetched side by side, and a few tiles of one
 * more shard would make all the others wait for it; and in a ring, a few tiles of a later step wait for this
 * one. */
static int even_crews(int64_t tiles, int crews)
{
    int64_t rounds = weft_divide_up(tiles, crews);

    return rounds > 0 ? (int)weft_divide_up(tiles, rounds) : crews;
}

/* Rows of tiles of a stripe of a gemm_ar. */
static int64_t stripe_of(const weft_problem *p)
{
    int64_t panels = p->n > 0 ? weft_divide_up(STRIPE_COLS, p->n) : 1;

    return panels < STRIPE_MOST ? panels : STRIPE_MOST;
}

void weft_crews_share(const weft_problem *p, int world, int crews, bool fetches, weft_tuning *t)
{
    if (!t->raster && t->sums_stay && p->op == WEFT_OP_GEMM_AR)
        t->raster = stripe_of(p);
    if (!t->workers)
        t->workers = fetches || t->sums_stay
                         ? even_crews(weft_crews_tiles(p, world, t->tile_m, t->tile_n), crews)
                         : crews;
}
