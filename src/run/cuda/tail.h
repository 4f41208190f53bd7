/*
 * What a graph that is being captured ends with. A kernel may be let in before the one in front of it has
 * ended, and may then read what that one does not write, if it knows which one that is. On a stream it does
 * not: between two of weft's runs there may be any other's. A graph says what its next kernel depends on.
 */
#ifndef WEFT_RUN_CUDA_TAIL_H
#define WEFT_RUN_CUDA_TAIL_H

#include "run/cuda/driver.h"

/* Memory from `begin` up to `end`. */
typedef struct weft_cuda_extent {
    uintptr_t begin, end;
} weft_cuda_extent;

/* Remembers for this thread that a run of which nothing lets the next kernel in before all that precede the
 * run have ended, and that writes nothing of the caller's but `written`, has just been put on the stream. */
void weft_cuda_tail_set(const weft_cuda_driver *cu, CUstream stream, weft_cuda_extent written);

/* Whether what is put on the stream now follows such a run of this thread in a graph, and nothing else, and
 * that does not write what is to be read. */
bool weft_cuda_tail_leaves(const weft_cuda_driver *cu, CUstream stream, weft_cuda_extent read);

#endif
