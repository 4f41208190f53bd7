/* Which GPUs this build knows. See gpu.h. */
#include "run/gpu.h"

#ifdef WEFT_HAVE_CUDA
#include "run/cuda/attach.h"
#endif

weft_status weft_gpu_attach(weft_group *group, int device)
{
#ifdef WEFT_HAVE_CUDA
    return weft_cuda_attach(group, device);
#else
    return weft_error_set(
        &group->error, WEFT_ERR_UNSUPPORTED,
        "weft_group_use_gpu(%d): this build has no GPU backend (it was made without nvcc, or "
        "with WEFT_CUDA=OFF)",
        device);
#endif
}

weft_status weft_gpu_run(weft_plan *plan, const weft_operands *operands, void *stream)
{
    const weft_problem *p = &plan->part.problem;

    if (operands->row_scale || operands->col_scale || (operands->alpha && *operands->alpha != p->alpha) ||
        (operands->beta && *operands->beta != p->beta))
        return weft_error_set(&plan->group->error, WEFT_ERR_UNSUPPORTED,
                              "on GPUs a run has no scales, and the alpha and beta of its plan");
    return plan->group->gpu->calls->run(plan, operands, stream);
}

void weft_gpu_detach(weft_group *group)
{
    if (group->gpu)
        group->gpu->calls->detach(group);
}
