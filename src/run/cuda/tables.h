/* The arrays that a kernel walks (task.h), in the GPU's memory. */
#ifndef WEFT_RUN_CUDA_TABLES_H
#define WEFT_RUN_CUDA_TABLES_H

#include "run/cuda/driver.h"
#include "run/cuda/program.h"

typedef struct weft_cuda_tables {
    CUdeviceptr at; /* memory of the stream `uploads` of its device; 0: none */
    size_t bytes;
} weft_cuda_tables;

/* What a kernel that stands in reads beside them (executor.h); 0 bytes: nothing. */
typedef struct weft_cuda_beside {
    void *at;
    size_t bytes;
} weft_cuda_beside;

/* Uploads the arrays of `program` of one of `world` ranks, and what is beside them. Of `args` it sets their
 * addresses. On failure `tables` has what is to be freed. */
weft_status weft_cuda_tables_make(weft_cuda_device *device, const weft_cuda_program *program, int world,
                                  weft_cuda_beside beside, weft_cuda_control *const *controls,
                                  weft_cuda_args *args, weft_cuda_tables *tables, weft_error_text *error);

#endif
