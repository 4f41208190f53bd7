/* All cases on the fake GPU: what the host side makes of a plan, and whether its waits are enough. */
#include "cases.h"
#include "fake_gpu.h"

static void run_all(int crews, bool hopper, uint64_t seed)
{
    device = fake_gpu(crews, hopper, seed);
    test_gemm_alone();
    test_any_strides();
    test_operations();
    test_missing_rank();
}

static void test_paths(void)
{
    fake_gpu_counts counts;
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 512, 512, 256);
    device = fake_gpu(16, true, 3);
    fake_gpu_take_counts();
    try("paths", &p, 4, &plain, 1);
    counts = fake_gpu_take_counts();
    CHECK_INT(counts.gemms, 4 * 4 * 1); /* four shards of 128 rows, 128 columns a rank */
    CHECK_INT(counts.maps, counts.gemms);
    CHECK_INT(counts.bulk, 4 * 3 * 2); /* each piece in two bands */
}

static void test_refusals(void)
{
    weft_error_text error = {0};
    weft_cuda_world w;
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 64, 64, 64);
    device = fake_gpu(4, true, 5);
    p.dtype = p.d_dtype = WEFT_F32;
    CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(error.text, "float16 and bfloat16, not float32");
    p.dtype = WEFT_BF16;
    p.d_dtype = WEFT_F16;
    CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_ERR_UNSUPPORTED);
    p.d_dtype = WEFT_BF16;
    p.tile_m = 512;
    p.m = 1024;
    CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "at most 256 x 256");
    p.tile_m = 0;
    p.n = 2048;
    p.workers = 9;
    CHECK_INT(weft_cuda_world_make(&device, &p, 1, &plain, &w, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "9 lanes, but only 4 can be resident");
    CHECK_INT(weft_cuda_world_make(&device, &p, 9, &plain, &w, &error), WEFT_ERR_ARGUMENT);
}

int main(void)
{
    thorough = check_repeat(0, 1);
    run_all(32, true, 1);
    test_paths();
    test_refusals();
    return check_report("test_cuda_fake");
}
