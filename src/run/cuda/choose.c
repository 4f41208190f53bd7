/* What measured fastest. See choose.h. */
#include "run/cuda/choose.h"

#include "core/part.h"
#include "run/cuda/task.h"

enum { WIDE_COLUMNS = 4096 };

static weft_schedule usual_schedule(const weft_problem *p)
{
    switch (p->op) {
    case WEFT_OP_AG_GEMM:
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

/* A crew that copies moves 40 to 70 GB/s beside a GEMM. Each row that is fetched is multiplied with this
 * rank's columns: few of them leave little time to hide the copies in, so more crews copy. */
static int usual_copiers(const weft_problem *p, int world, int crews)
{
    if (crews < 32)
        return 2;
    return weft_part(p->n, world, 0).count > WIDE_COLUMNS ? 6 : 10;
}

void weft_cuda_choose(weft_problem *p, int world, int crews)
{
    if (p->schedule == WEFT_SCHEDULE_AUTO)
        p->schedule = usual_schedule(p);
    if (!p->tile_m)
        p->tile_m = WEFT_CUDA_TILE_M;
    if (!p->tile_n)
        p->tile_n = WEFT_CUDA_TILE_N;
    if (!p->tile_k)
        p->tile_k = WEFT_CUDA_TILE_K;
    if (world == 1 || p->op != WEFT_OP_AG_GEMM || p->schedule == WEFT_SCHEDULE_DIRECT ||
        p->schedule == WEFT_SCHEDULE_UNFUSED)
        p->copiers = 0;
    else if (!p->copiers)
        p->copiers = usual_copiers(p, world, crews);
    if (!p->workers)
        p->workers = crews > p->copiers ? crews - p->copiers : 1;
    p->b_form = WEFT_B_PLAIN;
}
