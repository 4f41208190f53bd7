/* Products of many experts on a GPU (weft_grouped_gemm): one launch, whose tiles the kernel counts. */
#ifndef WEFT_RUN_CUDA_GROUPED_H
#define WEFT_RUN_CUDA_GROUPED_H

#include "run/cuda/driver.h"
#include "run/cuda/grouped_device.h"

#include <weft/weft.h>

/* A launch made ready: the kernel's parameters. Holds no memory of its own. */
typedef struct weft_cuda_grouped_launch {
    CUtensorMap b_map, few_map, many_map;
    weft_cuda_grouped grouped;
    CUfunction kernel; /* NULL: there is nothing to do */
    int clusters;
} weft_cuda_grouped_launch;

/* From arguments that have been completed (src/api/grouped.c), for at most `clusters` clusters of two CTAs.
 * `counter` is two words of the device, 0 between launches. `arriving`: of rows that come meanwhile, or NULL.
 */
weft_status weft_cuda_grouped_prepare(const weft_cuda_device *device, const weft_grouped_args *args,
                                      const weft_cuda_arriving_rows *arriving, uint32_t *counter,
                                      int clusters, weft_cuda_grouped_launch *launch, weft_error_text *error);

/* `early`: nobody else is on the GPU, and the kernel may come in while the one before it ends. */
weft_status weft_cuda_grouped_start(const weft_cuda_device *device, const weft_cuda_grouped_launch *launch,
                                    bool early, CUstream stream, weft_error_text *error);

/* Of rows that come meanwhile. */
weft_status weft_cuda_grouped_run_arriving(weft_group *group, const weft_grouped_args *args,
                                           const weft_cuda_arriving_rows *arriving);

/* The backend's call (run/backend.h). */
weft_status weft_cuda_grouped_run(weft_group *group, const weft_grouped_args *args);

#endif
