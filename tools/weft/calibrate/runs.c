/*
 * What does not scale with bytes: flags, the fixed cost of tasks and of runs, cores that serve several ranks.
 * Real plans run on threads as ranks; what they take beyond what the simulator already explains is the
 * number looked for.
 */
#include "calibrate/calibrate.h"

#include "core/clock.h"
#include "core/dtype.h"
#include "core/round.h"
#include "core/signal.h"
#include "gemm/gemm.h"
#include "sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 200, PIECES = 64, PIECE = 16, MOST_RANKS = 8 };

typedef struct run_test {
    int ranks;
    weft_problem problem;
    weft_group *groups[2 * CALIBRATE_MOST_CORES];
    weft_plan *plans[2 * CALIBRATE_MOST_CORES];
    void *send[2 * CALIBRATE_MOST_CORES], *recv[2 * CALIBRATE_MOST_CORES];
    weft_status status[2 * CALIBRATE_MOST_CORES];
} run_test;

/* ---- flags ---------------------------------------------------------------------------------------- */

typedef struct flag_test {
    weft_signal signals[2];
    uint64_t value;
} flag_test;

static void raise_value(void *arg, int rank, int iteration)
{
    flag_test *t = arg;

    if (rank == 0)
        t->value = (uint64_t)iteration * ROUNDS;
}

/* Partner of each store: the other rank's spin on the same signal. */
static void ping_pong(void *arg, int rank)
{
    flag_test *t = arg;

    if (rank > 1)
        return;
    for (uint64_t round = t->value + 1; round <= t->value + ROUNDS; round++) {
        if (rank == 0)
            weft_signal_store(&t->signals[0], round);
        while (!weft_signal_reached(&t->signals[1 - rank], round))
            weft_pause();
        if (rank == 1)
            weft_signal_store(&t->signals[1], round);
    }
}

static double flag_us(int cores)
{
    static _Alignas(WEFT_LINE_BYTES) flag_test t;
    calibrate_job job = {.arg = &t, .prepare = raise_value, .work = ping_pong, .workers = 2, .seconds = 0.2};

    if (cores < 2)
        return 0.1;
    return calibrate_time(cores, &job) / (2 * ROUNDS) / 1e3;
}

/* ---- runs ----------------------------------------------------------------------------------------- */

/* The first time: every rank's own thread makes its plan and buffers, which is collective. */
static void set_up(void *arg, int rank, int iteration)
{
    run_test *t = arg;
    size_t bytes = (size_t)t->problem.count * weft_dtype_size(t->problem.dtype);
    weft_status status;

    if (iteration)
        return;
    status = weft_plan_create(t->groups[rank], &t->problem, &t->plans[rank]);
    if (!status)
        status = weft_alloc(t->groups[rank], bytes, 0, &t->send[rank]);
    if (!status)
        status = weft_alloc(t->groups[rank], bytes * (size_t)t->ranks, 0, &t->recv[rank]);
    t->status[rank] = status;
}

static void run_once(void *arg, int rank)
{
    run_test *t = arg;
    weft_operands operands = {.size = sizeof(operands), .send = t->send[rank], .recv = t->recv[rank]};

    if (!t->status[rank])
        t->status[rank] = weft_run(t->plans[rank], &operands);
}

/* NaN, after a line that says why. */
static double failed(const char *what, const char *why)
{
    fprintf(stderr, "weft calibrate: %s failed: %s\n", what, why);
    return NAN;
}

/* Microseconds of one run of a collective of float32 cut into pieces of `tile` elements; NaN on failure. */
static double run_us(int ranks, weft_op op, weft_schedule schedule, int64_t count, int64_t tile)
{
    run_test *t = calloc(1, sizeof(*t));
    calibrate_job job = {
        .arg = t, .prepare = set_up, .work = run_once, .workers = ranks, .seconds = 0.3, .quantile = 0.5};
    double us;

    if (!t)
        return failed("a small run", "no memory");
    if (weft_group_threads(ranks, t->groups) != WEFT_OK) {
        free(t);
        return failed("a small run", weft_error(NULL));
    }
    t->ranks = ranks;
    weft_problem_init(&t->problem, op);
    t->problem.schedule = schedule;
    t->problem.count = count;
    t->problem.tuning.tile_n = tile;
    t->problem.tuning.workers = 1;
    us = calibrate_time(ranks, &job) / 1e3;
    for (int rank = 0; rank < ranks; rank++) {
        if (t->status[rank] && !isnan(us))
            us = failed("a small run", weft_error(t->groups[rank]));
        weft_plan_destroy(t->plans[rank]);
    }
    for (int rank = 0; rank < ranks; rank++)
        weft_group_free(t->groups[rank]);
    free(t);
    return us;
}

/* What one more piece makes a run longer; NaN on failure. */
static double piece_us(int ranks, weft_op op, weft_schedule schedule)
{
    int64_t count = (int64_t)PIECES * PIECE;
    double few = run_us(ranks, op, schedule, count, count);
    double many = isnan(few) ? few : run_us(ranks, op, schedule, count, PIECE);

    return (many - few) / (PIECES - 1);
}

static double simulated_us(const weft_machine *machine, int ranks)
{
    weft_problem problem;
    weft_sim_source source = {.problem = &problem, .world = ranks};
    weft_sim_result result = {0};
    weft_error_text error = {0};

    weft_problem_init(&problem, WEFT_OP_ALL_GATHER);
    problem.schedule = WEFT_SCHEDULE_PULL;
    problem.count = PIECE;
    problem.tuning.tile_n = PIECE;
    problem.tuning.workers = 1;
    if (weft_problem_resolve(&problem, ranks, &problem, &error) ||
        weft_sim_run(machine, &source, WEFT_SIM_ALL, false, &result, &error))
        return failed("simulating a small run", error.text);
    return result.us;
}

/* The cost of a core's change of rank that makes the simulated run as long as the measured one. */
static double fit_switch(weft_machine *machine, int ranks, double measured_us)
{
    double low = 0, high = 200;

    while (high - low > 0.05) {
        machine->switch_us = (low + high) / 2;
        if (simulated_us(machine, ranks) < measured_us)
            low = machine->switch_us;
        else
            high = machine->switch_us;
    }
    return (low + high) / 2;
}

static double tiny_product_us(void)
{
    static _Alignas(128) float a[64], d[64], b[64];
    weft_error_text error;
    const weft_core *core;
    const weft_binding *bind;
    weft_gemm_tile tile;
    double best = INFINITY;
    void *workspace;

    if (weft_core_current(&core, &error))
        return 0;
    bind = weft_core_binding(core, WEFT_F32, false);
    workspace = aligned_alloc(128, weft_round_up_bytes(weft_gemm_workspace_bytes(bind, 8, 8, 8, false), 128));
    tile = weft_gemm_tile_init(bind, WEFT_F32);
    tile.m = tile.n = tile.k = 8;
    tile.a = a;
    tile.b = b;
    tile.a_rs = tile.b_rs = 8;
    tile.a_cs = tile.b_cs = 1;
    tile.d[0] = d;
    tile.d_ld[0] = 8;
    for (int i = 0; workspace && i < 1000; i++) {
        int64_t start = weft_clock_ns();

        weft_gemm_run_tile(&tile, workspace);
        best = fmin(best, (double)(weft_clock_ns() - start) / 1e3);
    }
    free(workspace);
    return isinf(best) ? 0 : best;
}

int calibrate_runs(int cores, weft_machine *machine)
{
    int ranks = cores < 2 ? 2 : cores > MOST_RANKS ? MOST_RANKS : cores;
    double copies, reduction, small, simulated, crowded;

    machine->flag_us = flag_us(cores);
    if (isnan(copies = piece_us(ranks, WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_PULL)) ||
        isnan(reduction = piece_us(ranks, WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_ONE_SHOT)))
        return 1;
    machine->copy_us = fmax(0.01, copies / ranks);
    machine->reduce_us = fmax(0.01, reduction);
    machine->gemm_us = machine->copy_us + tiny_product_us();

    if (isnan(small = run_us(ranks, WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_PULL, PIECE, PIECE)) ||
        isnan(simulated = simulated_us(machine, ranks)) ||
        isnan(crowded = run_us(2 * ranks, WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_PULL, PIECE, PIECE)))
        return 1;
    machine->launch_unfused_us = fmax(0, small - simulated);
    machine->launch_fused_us = machine->launch_unfused_us;
    machine->switch_us = fit_switch(machine, 2 * ranks, crowded);
    return 0;
}
