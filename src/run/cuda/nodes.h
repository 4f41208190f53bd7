/*
 * GPU ranks that cannot address one another's memory, on several nodes or on one without peer access. Plans
 * are those of the CPU, and run there: a run waits for its stream, copies what the plan reads into pinned
 * memory of the host, runs as CPU ranks do, and copies results back. Exact, and as fast as the host.
 */
#ifndef WEFT_RUN_CUDA_NODES_H
#define WEFT_RUN_CUDA_NODES_H

#include "run/backend.h"

extern const weft_backend weft_cuda_nodes_backend;

#endif
