/* weft_grouped_gemm of a group on a fake GPU: what the host makes ready is what the kernel needs. */
#include "fake_gpu.h"
#include "grouped_cases.h"
#include "run/cuda/driver.h"

/* In the order of a stream, captured, and replayed with other rows. */
static void test_graph(grouped_rank *r, const weft_cuda_driver *cu)
{
    grouped_case c = {.dtype = WEFT_F16,
                      .b_dtype = WEFT_F16,
                      .d_dtype = WEFT_F16,
                      .experts = 5,
                      .n = 24,
                      .k = 40,
                      .rows_most = 20,
                      .transb = true,
                      .seed = 12};
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;
    grouped_pair p;

    grouped_make(r, &c, &p);
    CHECK_INT(cu->cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(r->gpu, 1, stream), WEFT_OK);
    CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_INT(weft_grouped_gemm(r->gpu, &p.gpu), WEFT_OK);
    CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < 4; i++) {
        int64_t *offset = p.host[6];

        for (int e = 1; e < c.experts; e++) /* the same rows, dealt out otherwise */
            offset[e] = offset[c.experts] * ((e + i) % c.experts) / c.experts;
        for (int e = 1; e < c.experts; e++)
            offset[e] = offset[e] < offset[e - 1] ? offset[e - 1] : offset[e];
        CHECK_INT(weft_memcpy(r->gpu, (void *)(uintptr_t)p.gpu.offset, offset,
                              ((size_t)c.experts + 1) * sizeof(*offset)),
                  WEFT_OK);
        CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
        CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
        CHECK_INT(weft_grouped_gemm(NULL, &p.cpu), WEFT_OK);
        CHECK(grouped_same(r, &p));
    }
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    cu->cuGraphExecDestroy(replay);
    cu->cuGraphDestroy(graph);
    cu->cuStreamDestroy(stream);
    grouped_free(&p);
}

int main(void)
{
    weft_cuda_device device = fake_gpu(4, true, 3);
    grouped_rank r;
    weft_group *group;

    fake_gpu_install(1, 4, true);
    CHECK_INT(weft_group_threads(1, &group), WEFT_OK);
    grouped_begin(group, 8 << 20, &r);
    grouped_cases(&r, 60, 6, 40, 70, 20);
    grouped_errors(&r);
    test_graph(&r, device.cu);
    weft_group_free(group);

    fake_gpu_install(1, 4, false); /* no Hopper */
    CHECK_INT(weft_group_threads(1, &group), WEFT_OK);
    grouped_begin(group, 8 << 20, &r);
    grouped_case c = {.dtype = WEFT_F16,
                      .b_dtype = WEFT_F16,
                      .d_dtype = WEFT_F16,
                      .experts = 2,
                      .n = 8,
                      .k = 8,
                      .rows_most = 4,
                      .transb = true,
                      .seed = 1};
    grouped_pair p;
    grouped_make(&r, &c, &p);
    CHECK_INT(weft_grouped_gemm(group, &p.gpu), WEFT_ERR_UNSUPPORTED);
    grouped_free(&p);
    weft_group_free(group);
    return check_report("test_cuda_grouped");
}
