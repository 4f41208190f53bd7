/*
 * Measurements of one rank over an emulated link (run/cuda/emulate.h): the kernels for it, which only the
 * bench has, and what they read. The library's executors take them as kernels that stand in for their own.
 */
#ifndef WEFT_TOOLS_BENCH_CUDA_EMULATED_H
#define WEFT_TOOLS_BENCH_CUDA_EMULATED_H

#include "run/cuda/emulate.h"
#include "run/cuda/executor.h"

enum {
    EMULATED_WALKERS = 3, /* the first of weft_cuda_walkers: crews of two */
    EMULATED_IMAGES = EMULATED_WALKERS + 4
};

typedef enum emulated_peers { EMULATED_SIGNALS, EMULATED_PACKETS, EMULATED_LINES } emulated_peers;

typedef struct emulated {
    weft_cuda_stand_in stand_in; /* of the walkers and what goes on behind products */
    double bytes_per_ns, latency_ns;
    double late_ns; /* by which peers enter, and do everything, later than the rank */
    CUmodule modules[EMULATED_IMAGES];
    CUfunction peers[3], experts; /* of a rank in the loop: see link.h */
    CUfunction walkers[EMULATED_WALKERS], collective[WEFT_BF16 + 1], sums, exchange;
} emulated;

/* Loads the kernels, once; on failure it has none. Nothing may run on the GPU. */
weft_status emulated_load(const weft_cuda_device *device, emulated *e, weft_error_text *error);
void emulated_free(const weft_cuda_device *device, emulated *e);

/* After the stream has passed runs of an executor with its kernels: how the link did. */
weft_status emulated_read(const weft_cuda_executor *executor, CUstream stream, weft_cuda_emulation *link,
                          weft_error_text *error);

#endif
