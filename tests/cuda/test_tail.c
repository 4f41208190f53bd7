/* What a graph that is being captured ends with: run/cuda/tail.h. The driver here says what a test wants. */
#include "run/cuda/tail.h"

#include "support/check.h"

static struct {
    CUstreamCaptureStatus status;
    cuuint64_t graph;
    CUgraphNode nodes[2];
    size_t count;
    CUresult result;
} says;

#if CUDA_VERSION >= 13000
static CUresult info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *graph, CUgraph *made,
                     const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count)
{
    (void)edges;
#else
static CUresult info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *graph, CUgraph *made,
                     const CUgraphNode **nodes, size_t *count)
{
#endif
    (void)stream;
    (void)made;
    *status = says.status;
    *graph = says.graph;
    *nodes = says.nodes;
    *count = says.count;
    return says.result;
}

static const weft_cuda_driver cu = {.cuStreamGetCaptureInfo = info};
static const weft_cuda_extent d = {1000, 2000}, b = {2000, 3000};

/* A run has ended a graph with node 7. */
static void run(void)
{
    says.status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    says.graph = 3;
    says.nodes[0] = (CUgraphNode)(uintptr_t)7;
    says.count = 1;
    says.result = CUDA_SUCCESS;
    weft_cuda_tail_set(&cu, NULL, d);
    CHECK(weft_cuda_tail_leaves(&cu, NULL, b));
}

int main(void)
{
    weft_cuda_driver old = {0};

    CHECK(!weft_cuda_tail_leaves(&cu, NULL, b)); /* nothing has run */
    run();
    CHECK(!weft_cuda_tail_leaves(&cu, NULL, (weft_cuda_extent){1999, 3000})); /* D reaches into it */
    CHECK(!weft_cuda_tail_leaves(&cu, NULL, (weft_cuda_extent){900, 1001}));
    CHECK(weft_cuda_tail_leaves(&cu, NULL, (weft_cuda_extent){900, 1000}));

    says.nodes[0] = (CUgraphNode)(uintptr_t)8; /* somebody's kernel or copy in between */
    CHECK(!weft_cuda_tail_leaves(&cu, NULL, b));
    run();
    says.count = 2; /* or another stream's, which this one waits for */
    CHECK(!weft_cuda_tail_leaves(&cu, NULL, b));
    run();
    says.count = 0;
    CHECK(!weft_cuda_tail_leaves(&cu, NULL, b));
    run();
    says.graph = 4; /* another graph, whose first node has the place of an old one */
    CHECK(!weft_cuda_tail_leaves(&cu, NULL, b));
    run();
    says.status = CU_STREAM_CAPTURE_STATUS_NONE; /* no graph: other kernels may come unseen */
    CHECK(!weft_cuda_tail_leaves(&cu, NULL, b));
    run();
    says.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    CHECK(!weft_cuda_tail_leaves(&cu, NULL, b));
    run();
    says.result = CUDA_ERROR_UNKNOWN;
    CHECK(!weft_cuda_tail_leaves(&cu, NULL, b));

    run();
    says.status = CU_STREAM_CAPTURE_STATUS_NONE; /* a run outside a graph ends none */
    weft_cuda_tail_set(&cu, NULL, d);
    says.status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    CHECK(!weft_cuda_tail_leaves(&cu, NULL, b));
    run();
    CHECK(!weft_cuda_tail_leaves(&old, NULL, b)); /* a driver that does not say */
    return check_report("test_cuda_tail");
}
