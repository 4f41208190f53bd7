/* See tail.h. */
#include "run/cuda/tail.h"

/* The only thing that the stream's next one depends on; NULL: there is no such, or no graph. */
static CUgraphNode only_node(const weft_cuda_driver *cu, CUstream stream, cuuint64_t *graph)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode *nodes = NULL;
    size_t count = 0;
    CUresult result;

    if (!cu->cuStreamGetCaptureInfo)
        return NULL;
#if CUDA_VERSION >= 13000
    result = cu->cuStreamGetCaptureInfo(stream, &status, graph, NULL, &nodes, NULL, &count);
#else
    result = cu->cuStreamGetCaptureInfo(stream, &status, graph, NULL, &nodes, &count);
#endif
    return result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE && count == 1 ? nodes[0]
                                                                                             : NULL;
}

static _Thread_local struct tail {
    cuuint64_t graph; /* no two captures of a process have one number */
    CUgraphNode node;
    weft_cuda_extent written;
} tail;

void weft_cuda_tail_set(const weft_cuda_driver *cu, CUstream stream, weft_cuda_extent written)
{
    tail.written = written;
    tail.node = only_node(cu, stream, &tail.graph);
}

bool weft_cuda_tail_leaves(const weft_cuda_driver *cu, CUstream stream, weft_cuda_extent read)
{
    cuuint64_t graph = 0;
    CUgraphNode node = tail.node ? only_node(cu, stream, &graph) : NULL;

    return node && node == tail.node && graph == tail.graph &&
           (read.end <= tail.written.begin || tail.written.end <= read.begin);
}
