/* The walker for any GPU, its own text, on the threads of simt.h: integer data, compared for equality. */
#include "api_cases.h"
#include "cases.h"
#include "fake_gpu.h"
#include "simt_walk.h"
#include "support/ranks.h"

/* A CPU takes its time. */
static const weft_cuda_world_options patient = {.limits = {100, 100}};

static void *begin(const weft_cuda_args *args, uint32_t lanes)
{
    simt_kernel kernel = SIMT_BF16;

    for (uint32_t lane = 0; lane < lanes; lane++)
        for (uint32_t i = 0; i < args->lanes[lane].task_count; i++) {
            const weft_cuda_task *t = &args->tasks[args->lanes[lane].task0 + i];
            int32_t dtype = args->views[t->view0 + t->destinations].dtype;

            if (t->kind == WEFT_CUDA_GEMM)
                kernel = weft_dtype_is_fp8((weft_dtype)dtype) ? SIMT_FP8
                         : dtype == WEFT_F16                  ? SIMT_F16
                                                              : SIMT_BF16;
        }
    return simt_walk_begin(args, lanes, kernel);
}

static bool step(void *walk, bool *goes_on)
{
    bool moved = simt_walk_step(walk);

    *goes_on = !simt_walk_over(walk);
    return moved;
}

static void end(void *walk)
{
    simt_walk_free(walk);
}

static const fake_walker walker = {begin, step, end};

/* Blocks of both widths, whole and cut off, in every form; k that ends inside of a step and of a vector, that
 * is shorter than the ring of stages and longer; nothing in the same banks. */
static void test_blocks(void)
{
    static const int64_t shapes[][3] = {{130, 264, 200}, {77, 100, 168}, {256, 256, 32},
                                        {8, 8, 8},       {60, 304, 0},   {129, 136, 40}};
    simt_counts counts;

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int form = 0; form < 4; form++) {
            weft_problem p =
                problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, shapes[i][0], shapes[i][1], shapes[i][2]);

            p.transa = form & 1;
            p.transb = form >> 1;
            p.tuning.library = 2;
            p.dtype = p.d_dtype = (i + (size_t)form) % 2 ? WEFT_F16 : WEFT_BF16;
            if (i < 2)
                p.tuning.tile_m = p.tuning.tile_n = i ? 128 : 256;
            try("a block", &p, 1, &patient, 1);
        }
    counts = simt_take_counts();
    CHECK(counts.matrices > 0 && counts.copies > 0 && counts.products > 0);
    CHECK_INT(counts.conflicts, 0);
}

/* The epilogue, batches, D that no vector fits, k divided over lanes whose slices others add up. */
static void test_ends(void)
{
    weft_cuda_world_options dense = patient;

    dense.dense = true;
    for (int i = 0; i < 6; i++) {
        weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 70, 137 + i % 2 * 3, 136);

        p.transb = 1;
        p.tuning.library = 2;
        p.tuning.tile_m = 128;
        p.tuning.tile_n = i % 3 ? 128 : 256;
        p.tuning.chunk_k = i > 2 ? 64 : 0;
        p.tuning.workers = 3;
        p.bias = i != 1;
        p.beta = i % 3 == 2 ? 2 : 0;
        p.alpha = i % 2 ? 0.5f : 1;
        p.act = i % 4 == 3 ? WEFT_ACT_RELU : WEFT_ACT_NONE;
        p.d_dtype = i == 4 ? WEFT_F32 : p.dtype;
        p.l = i == 5 ? 2 : 1;
        try("an epilogue", &p, 1, i % 2 ? &patient : &dense, 2);
    }
}

/* Operands that cannot be copied: peers' ones with odd strides. A rank's own are copied before, except where
 * only k ends between vectors. */
static void test_odd_strides(void)
{
    weft_cuda_world_options dense = patient;

    dense.dense = true;
    fake_gpu_take_counts();
    for (int form = 0; form < 4; form++) {
        weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 77, 45, 51);

        p.transa = form & 1;
        p.transb = form >> 1;
        p.bias = 1;
        try("odd strides", &p, 2, &dense, 1);
        CHECK(fake_gpu_take_counts().repitched > 0);
        try("only k is odd", &p, 1, &patient, 1);
        CHECK_INT(fake_gpu_take_counts().repitched, 0);
    }
    CHECK_INT(simt_take_counts().conflicts, 0);
}

/* Every operation over ranks: waits, posts, sums that travel, all by the kernel's own code. */
static void test_ranks(void)
{
    static const struct {
        weft_op op;
        weft_schedule schedule;
    } cases[] = {{WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A},
                 {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_B},
                 {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_UNFUSED},
                 {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A},
                 {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_DIRECT},
                 {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_ONE_SHOT},
                 {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT},
                 {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_problem p = problem_of(cases[i].op, cases[i].schedule, 90, 72, 80);

        p.wire_dtype = i == 3 ? WEFT_BF16 : WEFT_F32;
        p.bias = i % 2;
        try("over ranks", &p, i % 2 ? 2 : 3, &patient, 2);
    }
}

/* Rank 1 never comes: the kernel says so, and works afterwards. */
static void test_missing(void)
{
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, 64, 64, 32);
    weft_cuda_world_options options = {.limits = {0.1, 100}};
    weft_error_text error = {0};
    weft_cuda_world w;

    CHECK_INT(weft_cuda_world_make(&device, &p, 2, &options, &w, &error), WEFT_OK);
    CHECK_INT(matrix_fill(&w, 7), 0);
    CHECK_INT(weft_cuda_executor_launch(&w.executors[0], w.streams[0], &error), WEFT_OK);
    CHECK_INT(weft_cuda_executor_outcome(&w.executors[0], w.streams[0], NULL, &error), WEFT_ERR_TIMEOUT);
    CHECK_HAS(error.text, "for rank 1");
    weft_cuda_world_free(&w);
    try("after an error", &p, 2, &patient, 1);
}

/* fp8 of both kinds, converted; scales of blocks, which fold sums. */
static void test_fp8_converted(void)
{
    static api_run scaled = {.small = true, .runs = 1, .shapes = 1};

    for (int i = 0; i < 8; i++) {
        weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT, 40, 72, i % 3 ? 136 : 99);

        p.dtype = i % 2 ? WEFT_FP8_E5M2 : WEFT_FP8_E4M3;
        p.d_dtype = i % 4 == 3 ? p.dtype : WEFT_BF16;
        p.transa = i >> 1 & 1;
        p.transb = i >> 2 & 1;
        try("fp8", &p, 1, &patient, 1);
    }
    fake_gpu_install(1, 8, false);
    ranks_run(2, api_scaled_rank, &scaled);
}

int main(void)
{
    thorough = false;
    device = fake_gpu(4, false, 1);
    fake_gpu_walk_by(&walker);
    test_blocks();
    test_ends();
    test_odd_strides();
    device = fake_gpu(12, false, 3);
    test_ranks();
    test_missing();
    test_fp8_converted();
    return check_report("test_cuda_simt");
}
