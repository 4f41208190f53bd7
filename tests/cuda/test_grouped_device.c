/* weft_grouped_gemm on the real GPU: exact on integers, the same bits every time, in graphs. */
#include "device_parts.h"
#include "grouped_cases.h"
#include "run/cuda/driver.h"

enum { BYTES = 512 << 20 };

static void exact_of(int world)
{
    weft_group *group;
    grouped_rank r;

    CHECK_INT(weft_group_threads(1, &group), WEFT_OK);
    grouped_begin(group, BYTES, &r);
    if (world == 1) {
        grouped_cases(&r, 120, GROUPED_EXPERTS, 700, 600, 600);
        grouped_errors(&r);
    } else {
        grouped_cases(&r, 12, 5, 300, 200, 200); /* for tools that slow everything down */
    }
    weft_group_free(group);
}

/* Real values, captured and replayed: which cluster makes which tile changes from run to run, the bits do
 * not.
 */
static void graph_of(int world)
{
    enum { REPLAYS = 100 };
    grouped_case c = {.dtype = WEFT_BF16,
                      .b_dtype = world == 1 ? WEFT_BF16 : WEFT_FP8_E4M3,
                      .d_dtype = WEFT_BF16,
                      .act = WEFT_ACT_SILU_GATED,
                      .experts = 24,
                      .n = 512,
                      .k = 512,
                      .rows_most = 300,
                      .transb = true,
                      .seed = 31};
    const weft_cuda_driver *cu = weft_cuda_driver_open(weft_error_thread());
    CUcontext context;
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;
    weft_group *group;
    grouped_rank r;
    grouped_pair p;

    CHECK_INT(weft_group_threads(1, &group), WEFT_OK);
    grouped_begin(group, BYTES, &r);
    grouped_make(&r, &c, &p);
    CHECK_INT(cu->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_INT(cu->cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(group, 1, stream), WEFT_OK);
    CHECK_INT(weft_grouped_gemm(group, &p.gpu), WEFT_OK);
    CHECK_INT(weft_group_wait(group), WEFT_OK);
    CHECK_INT(weft_memcpy(group, p.host[2], p.there_d, p.d_bytes), WEFT_OK);
    CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_INT(weft_grouped_gemm(group, &p.gpu), WEFT_OK);
    CHECK_INT(weft_grouped_gemm(group, &p.gpu), WEFT_OK);
    CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < REPLAYS; i++) {
        CHECK_INT(cu->cuMemsetD8Async((CUdeviceptr)(uintptr_t)p.there_d, 0x5a, p.d_bytes, stream),
                  CUDA_SUCCESS);
        CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
        CHECK_INT(weft_group_wait(group), WEFT_OK);
        CHECK(grouped_same(&r, &p));
    }
    CHECK_INT(weft_group_set_stream(group, 0, NULL), WEFT_OK);
    cu->cuGraphExecDestroy(replay);
    cu->cuGraphDestroy(graph);
    cu->cuStreamDestroy(stream);
    weft_group_free(group);
    cu->cuDevicePrimaryCtxRelease(0);
    grouped_free(&p);
}

int main(int argc, char **argv)
{
    static const device_part parts[] = {{"exact", exact_of, 1},
                                        {"graph", graph_of, 1},
                                        {"graph of fp8", graph_of, 2},
                                        {"small", exact_of, 2}};

    device_parts_run(parts, (int)(sizeof(parts) / sizeof(parts[0])), argc, argv);
    return device_parts_report("test_cuda_grouped_device");
}
