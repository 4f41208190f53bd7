/* How the GPU benches fail: in one line on standard error, and with status 1. */
#ifndef WEFT_TOOLS_BENCH_CUDA_FAILED_H
#define WEFT_TOOLS_BENCH_CUDA_FAILED_H

#include "run/cuda/driver.h"

#include <stdio.h>

/* 0 where all is well. */
static inline int failed(const weft_error_text *error, weft_status status)
{
    if (status != WEFT_OK)
        fprintf(stderr, "weft bench: %s\n", error->text);
    return status != WEFT_OK;
}

/* A call of the driver, in functions of a bench `b` that has a `device` and an `error`. */
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        if (failed(&b->error, weft_cuda_check(b->device.cu, b->device.cu->call, #call, &b->error)))          \
            return 1;                                                                                        \
    } while (0)

#endif
