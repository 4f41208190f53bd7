/* What `weft info` says about the CUDA backend; the one header of it that needs no CUDA header. */
#ifndef WEFT_RUN_CUDA_DESCRIBE_H
#define WEFT_RUN_CUDA_DESCRIBE_H

#include <stddef.h>

/* One line: the GPU that was found, or why the backend cannot be used here. */
void weft_cuda_describe(char *text, size_t bytes);

#endif
