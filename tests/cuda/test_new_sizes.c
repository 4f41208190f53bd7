/* Sizes that change in every call, on groups of fake GPUs. */
#include "fake_gpu.h"
#include "new_sizes_cases.h"
#include "support/procs.h"
#include "support/ranks.h"

/* A rank that is late keeps no other's call. */
static void test_late(void)
{
    _Atomic int returned = 0;
    sizes_run run = {.sizes = 30,
                     .at_once = 30,
                     .step = 1,
                     .side = 32,
                     .apart = true,
                     .late = true,
                     .returned = &returned};

    fake_gpu_install(3, 16, true);
    ranks_run(3, sizes_rank, &run);
}

/* More than are kept, so that memory of some is used for others. */
static void test_many(void)
{
    sizes_run threads = {.sizes = 200, .at_once = 20, .quiet = 100, .step = 1, .side = 16, .apart = true},
              processes = {.sizes = 90, .at_once = 9, .quiet = 70, .step = 1, .side = 16};

    fake_gpu_install(2, 16, true);
    ranks_run(2, sizes_rank, &threads);
    fake_gpu_install(1, 16, false);
    procs_run_ranks(2, sizes_rank, &processes);
}

/* Rows that are no whole number of 16 bytes: what is staged of them is copied once more, behind that. */
static void test_ragged(void)
{
    sizes_run run = {.sizes = 24, .at_once = 6, .quiet = 24, .step = 1, .side = 17, .apart = true};

    fake_gpu_install(2, 16, true);
    ranks_run(2, sizes_rank, &run);
}

/* Ranks that ask for different sizes are told when they wait. */
static void differ_rank(weft_group *group, void *argument)
{
    sizes_run run = {.sizes = 4, .step = 1, .side = 16};
    sizes_call calls[2];
    char *memory, *at;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, weft_rank(group)), WEFT_OK);
    CHECK_INT(weft_alloc(group, 1 << 20, 0, (void **)&memory), WEFT_OK);
    at = memory;
    sizes_begin(group, &run, 0, &at, &calls[0]);
    sizes_begin(group, &run, 6 + 6 * weft_rank(group), &at, &calls[1]);
    CHECK_INT(sizes_issue(group, &calls[0]), WEFT_OK);
    CHECK_INT(sizes_issue(group, &calls[1]), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "ran another plan of ag_gemm than rank");
    for (int i = 0; i < 2; i++)
        tp_release(calls[i].hosts);
}

/* Ranks that are threads on one GPU meet for each: unmet.h says why. */
static void crowded_rank(weft_group *group, void *argument)
{
    sizes_run run = {.sizes = 4, .step = 1, .side = 16};
    sizes_call call;
    char *memory, *at;

    (void)argument;
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, 1 << 20, 0, (void **)&memory), WEFT_OK);
    for (int i = 0; i < run.sizes; i++) {
        uint64_t told;

        at = memory;
        sizes_begin(group, &run, i, &at, &call);
        told = sizes_told(group);
        CHECK_INT(sizes_issue(group, &call), WEFT_OK);
        CHECK(sizes_told(group) > told);
        sizes_check(group, &call);
        tp_release(call.hosts);
    }
}

int main(void)
{
    test_late();
    test_many();
    test_ragged();
    fake_gpu_install(2, 16, true);
    ranks_run(2, differ_rank, NULL);
    fake_gpu_install(1, 16, true);
    ranks_run(2, crowded_rank, NULL);
    return check_report("test_cuda_new_sizes");
}
