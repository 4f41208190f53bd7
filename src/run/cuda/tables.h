/* The arrays that a kernel walks (task.h), in the GPU's memory. */
#ifndef WEFT_RUN_CUDA_TABLES_H
#define WEFT_RUN_CUDA_TABLES_H

#include "run/cuda/driver.h"
#include "run/cuda/program.h"

typedef struct weft_cuda_tables {
    CUdeviceptr at; /* memory of the stream `uploads` of its device; 0: none */
    size_t bytes;
} weft_cuda_tables;

/* Uploads the arrays of `program`, and what is emulated of the link that `binding` has. Of `args` it sets the
 * addresses of the arrays. On failure `tables` has what is to be freed. */
weft_status weft_cuda_tables_make(weft_cuda_device *device, const weft_cuda_program *program,
                                  const weft_plan_part *part, const weft_cuda_binding *binding,
                                  weft_cuda_control *const *controls, weft_cuda_args *args,
                                  weft_cuda_tables *tables, weft_error_text *error);

#endif
