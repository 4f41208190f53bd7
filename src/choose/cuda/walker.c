/* See walker.h. */
#include "choose/cuda/walker.h"

#include "core/round.h"

const weft_cuda_walker weft_cuda_walkers[WEFT_CUDA_WALKERS] = {
    [WEFT_CUDA_PAIR_256] = {2, 256, 256, false}, [WEFT_CUDA_PAIR_224] = {2, 256, 224, false},
    [WEFT_CUDA_PAIR_128] = {2, 256, 128, false}, [WEFT_CUDA_ONE_256] = {1, 128, 256, false},
    [WEFT_CUDA_ONE_128] = {1, 128, 128, false},  [WEFT_CUDA_FEW_ROWS] = {1, 64, 128, true},
};

int weft_cuda_walker_for(int ctas, int64_t rows, int64_t cols, bool fp8)
{
    if (fp8)
        return ctas == 1 ? WEFT_CUDA_ONE_128 : WEFT_CUDA_PAIR_128;
    if (ctas != 1)
        return cols > 224 ? WEFT_CUDA_PAIR_256 : cols > 128 ? WEFT_CUDA_PAIR_224 : WEFT_CUDA_PAIR_128;
    if (cols > 128)
        return WEFT_CUDA_ONE_256;
    return rows > 64 ? WEFT_CUDA_ONE_128 : WEFT_CUDA_FEW_ROWS;
}

uint32_t weft_cuda_walker_box(const weft_cuda_walker *walker)
{
    int32_t cols = walker->exchanged ? walker->tile_m : walker->tile_n, step = 64 * walker->ctas;
    int32_t share = (int32_t)weft_divide_up(cols, step) * 64;

    return (uint32_t)weft_min(share, 128);
}

int weft_cuda_walker_form(const weft_cuda_walker *walker, bool transa, bool transb)
{
    return walker->exchanged ? 2 * !transb + !transa : 2 * transa + transb;
}
