/* What `weft bench --backend cuda` fills operands with and how it judges results, on the fake GPU. */
#include "bench_cuda_data.h"
#include "core/dtype.h"
#include "fake_gpu.h"
#include "support/check.h"

#include <math.h>

static weft_cuda_device device;
static const weft_cuda_world_options plain = {.limits = {10, 5}};

static weft_problem problem_of(weft_op op, weft_schedule schedule, int64_t m, int64_t n, int64_t k)
{
    return (weft_problem){.size = sizeof(weft_problem),
                          .op = op,
                          .schedule = schedule,
                          .m = m,
                          .n = n,
                          .k = k,
                          .l = 1,
                          .dtype = WEFT_BF16,
                          .d_dtype = WEFT_BF16,
                          .wire_dtype = WEFT_F32,
                          .alpha = 1};
}

static weft_cuda_world run(weft_problem p, int world, const weft_cuda_world_options *options)
{
    weft_error_text error = {0};
    weft_cuda_world w;

    CHECK_INT(weft_cuda_world_make(&device, &p, world, options, &w, &error), WEFT_OK);
    CHECK(gpu_data_fill(&w, 11, true));
    CHECK_INT(weft_cuda_world_launch(&w, &error), WEFT_OK);
    CHECK_INT(weft_cuda_world_finish(&w, &error), WEFT_OK);
    return w;
}

static void test_right_results_pass(void)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
    } cases[] = {{WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A},
                 {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A},
                 {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT},
                 {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int world = 1; world <= 3; world++) {
            weft_problem p = problem_of(cases[i].op, cases[i].schedule, 130, 120, 96);
            weft_cuda_world w = run(p, world, &plain);
            gpu_data_verdict verdict;

            CHECK(gpu_data_check(&w, &verdict));
            CHECK(verdict.error == 0);
            weft_cuda_world_free(&w);
        }
}

/* A rank alone adds up what it sends; the check knows. */
static void test_alone(void)
{
    static const weft_cuda_world_options alone = {.alone = true, .limits = {10, 5}};
    weft_problem p = problem_of(WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A, 128, 128, 256);
    weft_cuda_world w = run(p, 4, &alone);
    gpu_data_verdict verdict;

    CHECK(gpu_data_check(&w, &verdict));
    CHECK(verdict.error == 0);
    weft_cuda_world_free(&w);
}

/* The worst element is named: one that was not written, and one that is off by a little everywhere. */
static void test_wrong_results_are_found(void)
{
    weft_problem p = problem_of(WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER, 64, 64, 64);
    weft_cuda_world w = run(p, 2, &plain);
    weft_cuda_place place = weft_cuda_world_place(&w, WEFT_ROLE_D, 1);
    gpu_data_verdict verdict;
    double kept = weft_element_get(WEFT_BF16, place.base, (size_t)(7 * place.ld + 9));

    weft_element_set(WEFT_BF16, place.base, (size_t)(7 * place.ld + 9), NAN);
    CHECK(gpu_data_check(&w, &verdict));
    CHECK(verdict.error == INFINITY && isnan(verdict.got));
    CHECK_INT(verdict.rank, 1);
    CHECK_INT(verdict.row, 7);
    CHECK_INT(verdict.col, 9);
    CHECK(verdict.expected == kept);
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 64; j++)
            weft_element_set(WEFT_BF16, place.base, (size_t)(i * place.ld + j), 1024);
    CHECK(gpu_data_check(&w, &verdict));
    CHECK_INT(verdict.rank, 1);
    CHECK(verdict.got == 1024 && verdict.error == fabs(1024 - verdict.expected));
    CHECK(verdict.error > verdict.bound);
    weft_cuda_world_free(&w);
}

int main(void)
{
    device = fake_gpu(12, true, 21);
    test_right_results_pass();
    test_alone();
    test_wrong_results_are_found();
    return check_report("test_cuda_bench_data");
}
