/* Running every kernel once. See warm.h. */
#include "run/cuda/warm.h"

#include "run/cuda/kernels.h"
#include "run/cuda/task.h"

enum { SCRATCH_BYTES = 8192, TASKS_AT = 4096 };

/* One crew with an empty lane in a world of nobody: the kernel counts a run and ends. */
static weft_status run_once(weft_cuda_device *device, CUmodule module, const char *name, bool hopper,
                            CUdeviceptr scratch, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    weft_cuda_args args = {.control = (weft_cuda_control *)(uintptr_t)scratch,
                           .tasks = (const weft_cuda_task *)(uintptr_t)(scratch + TASKS_AT)};
    void *parameters[] = {&args};
    CUlaunchConfig config = {.gridDimX = hopper ? 2 : 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = hopper ? WEFT_CUDA_THREADS : 256,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .sharedMemBytes = hopper ? WEFT_CUDA_SHARED_BYTES : 0,
                             .hStream = device->uploads};
    CUfunction walk;
    WEFT_CUDA_TRY(cuModuleGetFunction(&walk, module, name));
    if (hopper)
        WEFT_CUDA_TRY(cuFuncSetAttribute(walk, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                         WEFT_CUDA_SHARED_BYTES));
    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, walk, parameters, NULL));
    return WEFT_OK;
}

static weft_status run_all(weft_cuda_device *device, CUdeviceptr scratch, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    weft_status status = WEFT_OK;
    WEFT_CUDA_TRY(cuMemsetD8Async(scratch, 0, SCRATCH_BYTES, device->uploads));
    for (int f16 = 0; f16 < 2 && status == WEFT_OK; f16++) {
        status = run_once(device, device->any, weft_cuda_any_names[f16], false, scratch, error);
        for (int i = 0; device->hopper && i < 8 && status == WEFT_OK; i++)
            status = run_once(device, device->walkers[f16][i / 4], weft_cuda_walker_names[f16][i % 4], true,
                              scratch, error);
    }
    if (status == WEFT_OK)
        WEFT_CUDA_TRY(cuStreamSynchronize(device->uploads));
    return status;
}

weft_status weft_cuda_warm(weft_cuda_device *device, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    CUdeviceptr scratch = 0;
    WEFT_CUDA_TRY(cuMemAllocAsync(&scratch, SCRATCH_BYTES, device->uploads));
    weft_status status = run_all(device, scratch, error);
    cu->cuMemFreeAsync(scratch, device->uploads);
    return status;
}
