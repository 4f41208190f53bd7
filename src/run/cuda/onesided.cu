/*
 * Posts and atomic adds that programs make on the host (onesided.c), to a word of any rank.
 *
 * Card: one thread, no shared memory of its own. Where kernels that wait leave no room on any SM it comes
 * after one of them.
 */
#include "ptx.cuh"
#include "task.h"

extern "C" __global__ void __launch_bounds__(32) weft_add(const __grid_constant__ weft_cuda_add a)
{
    uint64_t before = add_acquire_release(a.word, a.add);
    if (a.before)
        *a.before = before;
}
