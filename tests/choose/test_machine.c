/* `auto`: the fastest by simulation, of the layout asked for, remembered, and never one that cannot run. */
#include "choose/choose.h"
#include "choose/machine.h"
#include "core/round.h"
#include "sim/sim.h"
#include "support/check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TUNED "test_choose_machine.tuned"

static weft_machine find(const char *name)
{
    weft_error_text error = {0};
    weft_machine machine = {0};

    CHECK_INT(weft_machine_find(name, &machine, &error), WEFT_OK);
    return machine;
}

static weft_problem ag_gemm(int64_t m, int64_t n, int64_t k, weft_layout layout)
{
    weft_problem problem = {.size = sizeof(problem),
                            .op = WEFT_OP_AG_GEMM,
                            .layout = layout,
                            .m = m,
                            .n = n,
                            .k = k,
                            .l = 1,
                            .dtype = WEFT_BF16,
                            .d_dtype = WEFT_BF16,
                            .alpha = 1};
    weft_error_text error = {0};

    CHECK_INT(weft_problem_resolve(&problem, 8, &problem, &error), WEFT_OK);
    return problem;
}

static double time_of(const weft_machine *machine, weft_problem problem, weft_schedule schedule)
{
    weft_sim_source source = {.problem = &problem, .world = 8};
    weft_error_text error = {0};
    weft_sim_result result = {0};

    problem.schedule = schedule;
    weft_choose_tiles(machine, 8, &problem);
    CHECK_INT(weft_sim_run(machine, &source, WEFT_SIM_ALL, false, &result, &error), WEFT_OK);
    return result.us;
}

static void picks_the_fastest(const char *name, weft_problem problem)
{
    weft_machine machine = find(name);
    weft_schedule picked = WEFT_SCHEDULE_AUTO, again = WEFT_SCHEDULE_AUTO;
    weft_error_text error = {0};
    const weft_schedule *list;
    bool listed = false;
    int count;

    CHECK_INT(weft_choose_schedule(&machine, &problem, 8, &picked, &error), WEFT_OK);
    CHECK_INT(weft_choose_schedule(&machine, &problem, 8, &again, &error), WEFT_OK);
    CHECK_INT(again, picked);
    list = weft_schedule_list(problem.op, problem.layout, &count);
    for (int i = 0; i < count; i++) {
        listed = listed || list[i] == picked;
        CHECK(time_of(&machine, problem, picked) <= 1.02 * time_of(&machine, problem, list[i]));
    }
    CHECK(listed);
}

/* A fused schedule that promises a lot is taken, one that promises next to nothing is not. */
static void weighs_the_promise(void)
{
    weft_machine machine = find("cpu");
    weft_error_text error = {0};

    for (int64_t k = 64; k <= 8192; k *= 2) {
        weft_problem problem = ag_gemm(512, 1024, k, WEFT_LAYOUT_DEFAULT);
        weft_schedule picked = WEFT_SCHEDULE_AUTO;
        double fused, unfused;

        problem.op = WEFT_OP_GEMM_AS;
        CHECK_INT(weft_choose_schedule(&machine, &problem, 8, &picked, &error), WEFT_OK);
        fused = time_of(&machine, problem, WEFT_SCHEDULE_ALL_SCATTER);
        unfused = time_of(&machine, problem, WEFT_SCHEDULE_UNFUSED);
        CHECK(fused < unfused);
        CHECK(fused > 0.9 * unfused || picked == WEFT_SCHEDULE_ALL_SCATTER);
        CHECK(fused < 0.998 * unfused || picked == WEFT_SCHEDULE_UNFUSED);
        CHECK(k > 64 || picked == WEFT_SCHEDULE_ALL_SCATTER);
        CHECK(k < 8192 || picked == WEFT_SCHEDULE_UNFUSED);
    }
}

/* Whatever rows a layer is first called with, and however many ranks there are, what it comes to for few rows
 * is known then, to peers that are told as well; and stays so whatever other rows come. */
static void foresees_few_rows(int world)
{
    weft_problem problem = ag_gemm(1000, 1024, 512, WEFT_LAYOUT_GATHER_A), resolved;
    weft_basis basis = {.machine = find("epyc96"), .workers = 4};
    weft_chosen_few told, few;
    weft_error_text error = {0};

    CHECK_INT(weft_core_current(&basis.core, &error), WEFT_OK);
    problem.tuning.workers = basis.workers;
    CHECK(!weft_choose_recall_few(&basis.machine, &problem, world, &few));
    CHECK_INT(weft_choose_and_tell(&basis, &problem, world, &resolved, &told, NULL, &error), WEFT_OK);
    for (problem.m = 257; problem.m < 1000 && world == 4; problem.m++)
        CHECK_INT(weft_choose_cpu(&basis, &problem, world, &resolved, NULL, &error), WEFT_OK);
    CHECK(weft_choose_recall_few(&basis.machine, &problem, world, &few));
    CHECK(memcmp(&few, &told, sizeof(few)) == 0);
    for (problem.m = 1; problem.m <= 256; problem.m *= 2) {
        weft_schedule fastest = WEFT_SCHEDULE_AUTO;

        CHECK_INT(weft_choose_schedule(&basis.machine, &problem, world, &fastest, &error), WEFT_OK);
        CHECK_INT(weft_choose_of_few(&few, problem.m), fastest);
        CHECK_INT(weft_choose_cpu(&basis, &problem, world, &resolved, NULL, &error), WEFT_OK);
        CHECK_INT(resolved.schedule, fastest);
    }
    CHECK_INT(weft_choose_of_few(&few, 33), weft_choose_of_few(&few, 64));
    told.key++;
    told.schedule[0] = WEFT_SCHEDULE_DIRECT;
    weft_choose_learn_few(&told);
    weft_choose_learn_few(&(weft_chosen_few){0}); /* of a call for which nothing was simulated */
}

/* What ranks compare: the file of weft tune is in it by what this version finds there, in whatever order;
 * over nodes the description of the machine, of which each has its own, is not. */
static void compares_what_decides(void)
{
    weft_problem one = ag_gemm(64, 1024, 512, WEFT_LAYOUT_GATHER_A), other = one;
    weft_tuned first = {.schedule = WEFT_SCHEDULE_DIRECT}, second = {.schedule = WEFT_SCHEDULE_UNFUSED};
    weft_basis basis, again;
    weft_error_text error = {0};
    uint64_t none, both;

    unlink(TUNED);
    setenv("WEFT_TUNE", TUNED, 1);
    weft_basis_assume(4, NULL, &basis);
    none = weft_basis_hash(&basis);
    CHECK(none != 0);
    other.m = 65;
    one.schedule = other.schedule = WEFT_SCHEDULE_AUTO;
    CHECK_INT(weft_tuned_keep(1, &one, 4, &first, "one", &error), WEFT_OK);
    CHECK_INT(weft_tuned_keep(1, &other, 4, &second, "other", &error), WEFT_OK);
    CHECK(weft_basis_hash(&basis) == none); /* found before */
    weft_basis_drop(&basis);
    weft_basis_assume(4, NULL, &basis);
    both = weft_basis_hash(&basis);
    CHECK(both != none && both != 0);
    unlink(TUNED);
    CHECK_INT(weft_tuned_keep(1, &other, 4, &second, "other", &error), WEFT_OK);
    CHECK_INT(weft_tuned_keep(1, &one, 4, &first, "one", &error), WEFT_OK);
    weft_basis_assume(4, NULL, &again);
    CHECK(weft_basis_hash(&again) == both);
    weft_basis_drop(&again);
    CHECK_INT(weft_tuned_keep(1, &one, 4, &second, "one", &error), WEFT_OK);
    weft_basis_assume(4, NULL, &again);
    CHECK(weft_basis_hash(&again) != both && weft_basis_hash(&again) != none);
    again.machine.id++;
    CHECK(weft_basis_hash(&again) != 0);
    both = weft_basis_hash(&again);
    again.machine.id--;
    CHECK(weft_basis_hash(&again) != both);
    again.spread = true;
    both = weft_basis_hash(&again);
    again.machine.id++;
    CHECK(weft_basis_hash(&again) == both);
    weft_basis_drop(&again);
    weft_basis_drop(&basis);
    unlink(TUNED);
    setenv("WEFT_TUNE", "off", 1);
}

/* Without a calibration: several workers of several ranks add up together, one worker or two ranks as they
 * go.
 */
static void many_workers_add_up_together(void)
{
    static const struct {
        int world, workers;
        weft_schedule schedule;
    } cases[] = {
        {4, 4, WEFT_SCHEDULE_UNFUSED}, {4, 1, WEFT_SCHEDULE_TWO_SHOT}, {2, 4, WEFT_SCHEDULE_TWO_SHOT}};
    weft_error_text error = {0};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_basis basis = {.machine = find("cpu"), .workers = cases[i].workers};
        weft_problem problem = ag_gemm(1024, 1792, 512, WEFT_LAYOUT_DEFAULT), resolved;

        problem.op = WEFT_OP_GEMM_AR;
        CHECK_INT(weft_core_current(&basis.core, &error), WEFT_OK);
        CHECK_INT(weft_choose_cpu(&basis, &problem, cases[i].world, &resolved, NULL, &error), WEFT_OK);
        CHECK_INT(resolved.schedule, cases[i].schedule);
    }
}

/* Ranks with few rows each gather them and read B once, whatever their number; with many they do not. */
static void reads_b_once_for_few_rows(void)
{
    static const struct {
        int64_t m;
        int world;
        bool once;
    } cases[] = {{1, 2, true},   {32, 2, true},   {64, 2, true},
                 {256, 8, true}, {128, 2, false}, {512, 32, false}};
    weft_basis basis = {.machine = find("cpu"), .workers = 1};
    weft_error_text error = {0};

    CHECK_INT(weft_core_current(&basis.core, &error), WEFT_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_problem problem = ag_gemm(cases[i].m, 4096, 512, WEFT_LAYOUT_GATHER_A), resolved;
        weft_plan_part part = {0};
        int64_t gemms = 0;

        CHECK_INT(weft_choose_cpu(&basis, &problem, cases[i].world, &resolved, NULL, &error), WEFT_OK);
        CHECK_INT(resolved.schedule, cases[i].once ? WEFT_SCHEDULE_UNFUSED : WEFT_SCHEDULE_DIRECT);
        CHECK_INT(weft_plan_make(&resolved, cases[i].world, 0, &part, &error), WEFT_OK);
        for (uint32_t t = 0; t < part.task_count; t++)
            gemms += part.tasks[t].kind == WEFT_TASK_GEMM;
        if (cases[i].once)
            CHECK_INT(gemms, weft_divide_up(cases[i].m, resolved.tuning.tile_m));
        weft_plan_part_free(&part);
    }
}

/* Sums of two or three ranks that are alone on their nodes, of some size, go straight to their place. */
static void pushes_sums_of_lone_ranks(void)
{
    static const struct {
        int32_t domain[4];
        int world;
        int64_t bytes;
        bool pushed;
    } cases[] = {{{0, 1, 2}, 3, 64 << 10, true}, {{0, 1}, 2, 128 << 10, true},
                 {{0, 1}, 2, 4 << 20, true},     {{0, 1}, 2, 64 << 10, false},
                 {{0, 1, 2}, 3, 8 << 20, false}, {{0, 1, 0}, 3, 1 << 20, false},
                 {{0, 0, 1}, 3, 1 << 20, false}, {{0, 1, 2, 3}, 4, 1 << 20, false}};
    weft_error_text error = {0};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_problem problem = {.op = WEFT_OP_ALL_REDUCE, .dtype = WEFT_F32, .count = cases[i].bytes / 4};
        weft_problem resolved;
        weft_basis basis;

        weft_basis_assume(cases[i].world, cases[i].domain, &basis);
        CHECK_INT(weft_choose_cpu(&basis, &problem, cases[i].world, &resolved, NULL, &error), WEFT_OK);
        CHECK_INT(resolved.schedule, cases[i].pushed ? WEFT_SCHEDULE_PUSH : WEFT_SCHEDULE_TWO_LEVEL);
        weft_basis_drop(&basis);
    }
}

/* One worker each, alone on their nodes: sums hidden beside the product cost an Arm core more than they save.
 */
static void multiplies_first_on_lone_arm_cores(void)
{
    static const int32_t apart[] = {0, 1, 2}, together[] = {0, 0, 1};
    weft_error_text error = {0};

    for (int workers = 1; workers <= 2; workers++)
        for (int alone = 0; alone < 2; alone++)
            for (int op = 0; op < 3; op++) {
                static const weft_op ops[] = {WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AR, WEFT_OP_GEMM_AS};
                weft_problem problem, resolved;
                weft_basis basis;
                bool first;

                weft_problem_init(&problem, ops[op]);
                problem.m = problem.n = problem.k = 512;
                problem.tuning.workers = workers;
                weft_basis_assume(3, alone ? apart : together, &basis);
                CHECK_INT(weft_choose_cpu(&basis, &problem, 3, &resolved, NULL, &error), WEFT_OK);
                first = alone && workers == 1 && op < 2 && strncmp(basis.core->name, "neon", 4) == 0;
                CHECK_INT(resolved.schedule, first ? WEFT_SCHEDULE_UNFUSED : WEFT_SCHEDULE_TWO_LEVEL);
            }
}

int main(void)
{
    weft_machine machine = find("mi300x8");
    weft_problem reduce = {
        .size = sizeof(reduce), .op = WEFT_OP_ALL_REDUCE, .count = 1 << 22, .dtype = WEFT_BF16};
    weft_schedule picked = WEFT_SCHEDULE_AUTO, tiny = WEFT_SCHEDULE_AUTO;
    weft_error_text error = {0};

    picks_the_fastest("h100x8", ag_gemm(8192, 8 * 3584, 8192, WEFT_LAYOUT_GATHER_A));
    picks_the_fastest("h100x8", ag_gemm(64, 8 * 128, 512, WEFT_LAYOUT_GATHER_A));
    picks_the_fastest("h100x8", ag_gemm(8192, 8 * 3584, 8192, WEFT_LAYOUT_GATHER_B));
    picks_the_fastest("cpu", ag_gemm(1024, 1024, 1024, WEFT_LAYOUT_GATHER_A));

    weighs_the_promise();
    multiplies_first_on_lone_arm_cores();
    foresees_few_rows(4);
    foresees_few_rows(12);
    compares_what_decides();
    many_workers_add_up_together();
    reads_b_once_for_few_rows();
    pushes_sums_of_lone_ranks();
    /* Where a fused kernel's launch costs more than a tiny problem's communication, it is not taken. */
    {
        weft_machine h100 = find("h100x8");
        weft_problem problem = ag_gemm(64, 8 * 128, 512, WEFT_LAYOUT_GATHER_A);

        h100.launch_fused_us += 50;
        h100.id += 2;
        CHECK_INT(weft_choose_schedule(&h100, &problem, 8, &tiny, &error), WEFT_OK);
        CHECK_INT(tiny, WEFT_SCHEDULE_UNFUSED);
    }
    CHECK_INT(weft_problem_resolve(&reduce, 8, &reduce, &error), WEFT_OK);
    CHECK_INT(weft_choose_schedule(&machine, &reduce, 8, &picked, &error), WEFT_OK);
    CHECK(picked != WEFT_SCHEDULE_MULTIMEM);
    machine = find("h100x8");
    reduce.op = (weft_op)77;
    machine.gflops[WEFT_BF16] = 0;
    machine.id++;
    {
        weft_problem problem = ag_gemm(64, 1024, 512, WEFT_LAYOUT_GATHER_A);

        CHECK_INT(weft_choose_schedule(&machine, &problem, 8, &picked, &error), WEFT_ERR_ARGUMENT);
        CHECK_HAS(error.text, "no rate for bfloat16");
    }
    return check_report("sim pick");
}
