/*
 * A graph of what a stream is given between begin and end, ready to be launched again and again: what is
 * timed is the GPU and not the host's launches.
 */
#ifndef WEFT_TOOLS_BENCH_CUDA_GRAPH_H
#define WEFT_TOOLS_BENCH_CUDA_GRAPH_H

#include "run/cuda/driver.h"

#include <stddef.h>

typedef struct gpu_graph {
    CUgraph graph;
    CUgraphExec replay;
} gpu_graph;

static inline CUresult gpu_graph_begin(const weft_cuda_driver *cu, CUstream stream)
{
    return cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
}

/* Ends the recording even where something in between has failed, as the stream needs it to be ended. */
static inline CUresult gpu_graph_end(const weft_cuda_driver *cu, CUstream stream, gpu_graph *g)
{
    CUresult ended = cu->cuStreamEndCapture(stream, &g->graph);

    return ended == CUDA_SUCCESS ? cu->cuGraphInstantiate(&g->replay, g->graph, 0) : ended;
}

/* Whatever of it is there. */
static inline void gpu_graph_drop(const weft_cuda_driver *cu, gpu_graph *g)
{
    if (g->replay)
        cu->cuGraphExecDestroy(g->replay);
    if (g->graph)
        cu->cuGraphDestroy(g->graph);
    *g = (gpu_graph){NULL, NULL};
}

#endif
