/*
 * Collectives over nodes: close to what links allow, no slower with more ranks a node, and never by a switch
 * that ends at the node.
 */
#include "choose/machine.h"
#include "sim/library.h"
#include "sim/sim.h"

#include "support/check.h"

#include <math.h>

static const weft_op sums_and_gathers[] = {WEFT_OP_ALL_GATHER, WEFT_OP_REDUCE_SCATTER, WEFT_OP_ALL_REDUCE};

static weft_problem collective(weft_op op, int world, int64_t bytes)
{
    int64_t floats = bytes / 4;

    return (weft_problem){.op = op,
                          .schedule = WEFT_SCHEDULE_TWO_LEVEL,
                          .size = sizeof(weft_problem),
                          .count =
                              op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_BROADCAST ? floats : floats / world,
                          .dtype = WEFT_F32};
}

static double predict(const weft_machine *machine, weft_problem *problem, int world)
{
    weft_sim_source source = {.problem = problem, .world = world};
    weft_sim_result result = {0};
    weft_error_text error = {0};

    weft_choose_tiles(machine, world, problem);
    CHECK_INT(weft_problem_resolve(problem, world, problem, &error), WEFT_OK);
    if (weft_sim_run(machine, &source, WEFT_SIM_ALL, false, &result, &error) != WEFT_OK) {
        fprintf(stderr, "%s\n", error.text);
        CHECK(!"simulated");
        return NAN;
    }
    return result.us;
}

/* What `auto` takes, and the library's time, which is none below either. */
static void near_the_limit(void)
{
    static const int worlds[] = {16, 64, 256};
    weft_error_text error;
    weft_machine machine;

    CHECK_INT(weft_machine_find("h100x1024", &machine, &error), WEFT_OK);
    for (size_t i = 0; i < 3; i++) {
        for (size_t w = 0; w < 3; w++) {
            weft_problem p = collective(sums_and_gathers[i], worlds[w], 1 << 30);
            weft_sim_limits limits = weft_sim_limits_of(&machine, &p, worlds[w]);
            double limit = fmax(limits.network_us, limits.node_us), us;

            p.schedule = WEFT_SCHEDULE_AUTO;
            CHECK_INT(weft_problem_resolve(&p, worlds[w], &p, &error), WEFT_OK);
            CHECK_INT(weft_choose_schedule(&machine, &p, worlds[w], &p.schedule, &error), WEFT_OK);
            us = predict(&machine, &p, worlds[w]);
            CHECK(weft_library_collective_us(&machine, &p, worlds[w], WEFT_LIBRARY_FASTEST, false) >= limit);
            if (!(us >= limit && us <= 1.3 * limit))
                fprintf(stderr, "%s over %d ranks: %g us, network %g, node %g\n", weft_op_name(p.op),
                        worlds[w], us, limits.network_us, limits.node_us);
            CHECK(us >= limit && us <= 1.3 * limit);
        }
    }
}

/* Four nodes with the same bytes each, over one to eight ranks. */
static void more_ranks_a_node(void)
{
    for (size_t i = 0; i < 3; i++) {
        double before = INFINITY;

        for (int ranks = 1; ranks <= 8; ranks *= 2) {
            weft_problem p = collective(sums_and_gathers[i], 4 * ranks, 256 << 20);
            weft_machine machine;
            weft_error_text error;
            char text[200];
            double us;

            snprintf(text, sizeof(text),
                     "like h100x8\nname four\nnodes 4\nranks_per_node %d\nnetwork_gbs 46\n"
                     "network_us 5\n",
                     ranks);
            CHECK_INT(weft_machine_parse(text, "here", &machine, &error), WEFT_OK);
            us = predict(&machine, &p, 4 * ranks);
            if (!(us <= before))
                fprintf(stderr, "%s with %d ranks a node: %g us, with half as many %g\n", weft_op_name(p.op),
                        ranks, us, before);
            CHECK(us <= before);
            before = us;
        }
    }
}

/* Two full nodes add with their switches and exchange the sums of nodes; others do not. */
static void no_switch_across(void)
{
    weft_problem p = collective(WEFT_OP_ALL_REDUCE, 24, 1 << 20);
    weft_sim_source source = {.problem = &p, .world = 24};
    weft_schedule picked;
    weft_sim_result result;
    weft_machine machine;
    weft_error_text error;
    double levels;

    CHECK_INT(weft_machine_find("h100x1024", &machine, &error), WEFT_OK);
    p.schedule = WEFT_SCHEDULE_MULTIMEM;
    weft_choose_tiles(&machine, 24, &p);
    CHECK_INT(weft_sim_run(&machine, &source, WEFT_SIM_ALL, false, &result, &error), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(error.text, "two full ones");
    CHECK(!weft_sim_can_run(&machine, &p, 12, &error));
    p = collective(WEFT_OP_ALL_REDUCE, 16, 1 << 30);
    levels = predict(&machine, &p, 16);
    p = collective(WEFT_OP_ALL_REDUCE, 16, 1 << 30);
    p.schedule = WEFT_SCHEDULE_MULTIMEM;
    CHECK(predict(&machine, &p, 16) < 0.8 * levels);
    p = collective(WEFT_OP_ALL_REDUCE, 256, 1 << 30);
    p.schedule = WEFT_SCHEDULE_AUTO;
    CHECK_INT(weft_machine_find("h100x1024", &machine, &error), WEFT_OK);
    CHECK_INT(weft_problem_resolve(&p, 256, &p, &error), WEFT_OK);
    CHECK_INT(weft_choose_schedule(&machine, &p, 256, &picked, &error), WEFT_OK);
    CHECK_INT(picked, WEFT_SCHEDULE_TWO_LEVEL);
}

/* A shard is fetched once, not by every tile that reads it: two levels stay ahead of one after the other. */
static void products_fetch_once(void)
{
    weft_problem p;
    weft_machine machine;
    weft_error_text error = {0};
    weft_sim_source source = {.problem = &p, .world = 16};
    weft_sim_result result = {0};

    weft_problem_init(&p, WEFT_OP_AG_GEMM);
    p.dtype = WEFT_BF16;
    p.m = p.n = 16384, p.k = 8192;
    p.schedule = WEFT_SCHEDULE_TWO_LEVEL;
    CHECK_INT(weft_machine_find("h100x16", &machine, &error), WEFT_OK);
    weft_choose_tiles(&machine, 16, &p);
    CHECK_INT(weft_problem_resolve(&p, 16, &p, &error), WEFT_OK);
    CHECK_INT(weft_sim_run(&machine, &source, WEFT_SIM_ALL, false, &result, &error), WEFT_OK);
    CHECK(result.us < weft_library_unfused_us(&machine, &p, 16, false));
    weft_sim_result_free(&result);
}

/* A thousand ranks of a product have few enough tasks to be simulated in seconds. */
static void a_thousand_ranks(void)
{
    static const weft_op ops[] = {WEFT_OP_AG_GEMM, WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AS};
    weft_error_text error = {0};
    weft_machine machine;
    weft_schedule picked = WEFT_SCHEDULE_AUTO;
    weft_problem p = collective(WEFT_OP_ALL_TO_ALL, 64, 1 << 30);

    CHECK_INT(weft_machine_find("h100x1024", &machine, &error), WEFT_OK);
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        weft_plan_part part = {0};
        int32_t node[1024];

        weft_problem_init(&p, ops[i]);
        p.dtype = WEFT_BF16;
        p.m = p.n = 16384, p.k = 8192;
        p.schedule = WEFT_SCHEDULE_TWO_LEVEL;
        for (int rank = 0; rank < 1024; rank++)
            node[rank] = rank / 8;
        weft_choose_tiles(&machine, 1024, &p);
        CHECK_INT(weft_problem_resolve(&p, 1024, &p, &error), WEFT_OK);
        CHECK_INT(weft_plan_make_over(&p, node, 1024, 0, &part, &error), WEFT_OK);
        CHECK(part.task_count <= 3000);
        weft_plan_part_free(&part);
    }
    /* And one schedule, where others would take long and win nothing. */
    p = collective(WEFT_OP_ALL_TO_ALL, 64, 1 << 30);
    p.schedule = WEFT_SCHEDULE_AUTO;
    CHECK_INT(weft_problem_resolve(&p, 64, &p, &error), WEFT_OK);
    CHECK_INT(weft_choose_schedule(&machine, &p, 64, &picked, &error), WEFT_OK);
    CHECK_INT(picked, WEFT_SCHEDULE_TWO_LEVEL);
}

/* Sums of other nodes' units leave while those after them are formed: the links inside a node decide. */
static void sums_travel_meanwhile(void)
{
    weft_problem p;
    weft_machine machine;
    weft_error_text error = {0};
    weft_sim_source source = {.problem = &p, .world = 16};
    weft_sim_result result = {0};
    double inside;

    weft_problem_init(&p, WEFT_OP_GEMM_RS);
    p.dtype = p.d_dtype = p.wire_dtype = WEFT_BF16;
    p.m = p.n = 16384, p.k = 8192;
    p.schedule = WEFT_SCHEDULE_TWO_LEVEL;
    CHECK_INT(weft_machine_find("h100x16", &machine, &error), WEFT_OK);
    weft_choose_tiles(&machine, 16, &p);
    CHECK_INT(weft_problem_resolve(&p, 16, &p, &error), WEFT_OK);
    CHECK_INT(weft_sim_run(&machine, &source, WEFT_SIM_ALL, false, &result, &error), WEFT_OK);
    inside = 7.0 / 8 * (double)(p.m * p.n) * 2 / machine.link_gbs / 1e3;
    CHECK(result.us < 1.1 * inside);
    CHECK(result.us < 0.8 * weft_library_unfused_us(&machine, &p, 16, false));
    weft_sim_result_free(&result);
}

int main(void)
{
    sums_travel_meanwhile();
    a_thousand_ranks();
    products_fetch_once();
    near_the_limit();
    more_ranks_a_node();
    no_switch_across();
    return check_report("test_sim_nodes");
}
