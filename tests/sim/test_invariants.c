/*
 * What holds for every shipped description, whatever its numbers: `auto` is as fast as the best schedule,
 * more work takes no less time, no prediction is below what compute, memory and links allow, and tasks that
 * stand for several tiles, which large groups need, do not change a result.
 */
#include "support/check.h"
#include "core/dtype.h"
#include "choose/machine.h"
#include "sim/library.h"
#include "sim/model.h"

#include <math.h>

enum { PROBLEMS = 40, GROWING = 12, LARGEST = 1 << 12 };

static int64_t pick(uint64_t *seed, int64_t below)
{
    return (int64_t)(check_random(seed) % (uint64_t)below);
}

/* Sizes of every magnitude are equally likely. */
static int64_t pick_size(uint64_t *seed, int64_t most)
{
    double exponent = (double)pick(seed, 1000) / 1000 * log((double)most);

    return (int64_t)exp(exponent) + 1;
}

/* A type that the machine multiplies: on CPUs all of them, fp8 as bfloat16. */
static weft_dtype random_type(const weft_machine *machine, uint64_t *seed)
{
    static const weft_dtype types[] = {WEFT_BF16, WEFT_F32, WEFT_F16, WEFT_I8, WEFT_FP8_E4M3, WEFT_FP8_E5M2};
    weft_dtype type = types[pick(seed, sizeof(types) / sizeof(types[0]))];

    return machine->gflops[type] > 0 ? type : WEFT_BF16;
}

static weft_problem random_problem(const weft_machine *machine, uint64_t *seed)
{
    weft_problem p = {.size = sizeof(p), .alpha = 1, .l = 1, .wire_dtype = WEFT_DTYPE_DEFAULT};

    p.op = (weft_op)pick(seed, WEFT_OP_BROADCAST + 1);
    p.m = pick_size(seed, LARGEST);
    p.n = pick_size(seed, 2 * LARGEST);
    p.k = pick_size(seed, 2 * LARGEST);
    p.count = pick_size(seed, 1 << 22);
    if (p.op == WEFT_OP_AG_GEMM)
        p.layout = pick(seed, 2) ? WEFT_LAYOUT_GATHER_A : WEFT_LAYOUT_GATHER_B;
    if (p.op == WEFT_OP_GEMM_RS)
        p.layout = pick(seed, 2) ? WEFT_LAYOUT_SCATTER_ROWS : WEFT_LAYOUT_SCATTER_COLS;
    p.dtype = p.op < WEFT_OP_ALL_REDUCE ? random_type(machine, seed) : pick(seed, 2) ? WEFT_BF16 : WEFT_F32;
    p.d_dtype = p.op < WEFT_OP_ALL_REDUCE ? weft_dtype_result(p.dtype) : p.dtype;
    return p;
}

static int random_world(const weft_machine *machine, uint64_t *seed)
{
    int64_t most = machine->ranks_per_node ? (int64_t)machine->nodes * machine->ranks_per_node : 8;

    return (int)(2 + pick(seed, most > 16 ? 15 : most - 1));
}

/* Negative where the schedule cannot run there. */
static double time_of(const weft_machine *machine, int world, weft_problem problem, weft_schedule schedule,
                      int64_t regions)
{
    weft_sim_source source = {.problem = &problem, .world = world};
    weft_error_text error = {0};
    weft_sim_result result = {0};

    problem.schedule = schedule;
    if (!weft_sim_can_run(machine, &problem, world, &error))
        return -1;
    if (weft_problem_resolve(&problem, world, &problem, &error) != WEFT_OK) /* tiles follow the wire's type */
        return -1;
    weft_choose_tiles_within(machine, world, regions, &problem);
    if (weft_problem_resolve(&problem, world, &problem, &error) != WEFT_OK)
        return -1;
    CHECK_INT(weft_sim_run(machine, &source, WEFT_SIM_ALL, false, &result, &error), WEFT_OK);
    return result.us;
}

static const char *describe(const weft_machine *machine, int world, const weft_problem *p, weft_schedule s)
{
    static char text[200];

    snprintf(text, sizeof(text), "%s, %d ranks, %s %s %s %lld %lld %lld count %lld", machine->name, world,
             weft_op_name(p->op), weft_schedule_name(p->op, s), weft_dtype_name(p->dtype), (long long)p->m,
             (long long)p->n, (long long)p->k, (long long)p->count);
    return text;
}

static void expect(bool holds, const char *what, const char *where)
{
    CHECK(holds);
    if (!holds)
        fprintf(stderr, "%s: %s\n", what, where);
}

/* ---- bounds --------------------------------------------------------------------------------------- */

/* Bytes that some rank must take in over its links, or send, whatever the schedule; 0: not said here. */
static double least_link_bytes(const weft_problem *p, int world, weft_schedule schedule)
{
    double element = (double)weft_dtype_size(p->dtype), others = (double)(world - 1) / world;

    switch (p->op) {
    case WEFT_OP_AG_GEMM:
        return floor((double)(p->layout == WEFT_LAYOUT_GATHER_B ? p->n : p->m) * others) * (double)p->k *
               element;
    case WEFT_OP_GEMM_RS:
    case WEFT_OP_GEMM_AR:
        return schedule == WEFT_SCHEDULE_MULTIMEM ? 0 : floor((double)p->m * (double)p->n * others) * 4;
    case WEFT_OP_GEMM_AS:
        return (double)p->m * floor((double)p->n * others) * element;
    case WEFT_OP_ALL_REDUCE:
        return schedule == WEFT_SCHEDULE_MULTIMEM ? 0
                                                  : floor((double)p->count * others) * element *
                                                        (schedule == WEFT_SCHEDULE_TWO_SHOT ? 2 : 1);
    case WEFT_OP_BROADCAST:
        return (double)p->count * element;
    default:
        return (double)p->count * (world - 1) * element;
    }
}

static double least_us(const weft_machine *machine, int world, const weft_problem *p, weft_schedule schedule)
{
    bool gpu = machine->kind == WEFT_MACHINE_GPU;
    double flops = p->op < WEFT_OP_ALL_REDUCE ? 2 * (double)p->m * (double)p->n * (double)p->k : 0;
    double compute = flops / machine->gflops[p->dtype] / machine->units / (gpu ? world : 1), memory = 0,
           link = 0;

    if (p->op == WEFT_OP_GEMM_AS && gpu)
        compute =
            floor((double)p->n / world) / (double)p->n * flops / machine->gflops[p->dtype] / machine->units;
    if (gpu && p->op < WEFT_OP_ALL_REDUCE) /* a rank's share of B */
        memory = floor((double)p->n * (double)p->k / world) * (double)weft_dtype_size(p->dtype) /
                 machine->memory_gbs;
    if (gpu && world <= machine->ranks_per_node)
        link = least_link_bytes(p, world, schedule) /
               (machine->link_gbs * (machine->link == WEFT_LINK_MESH ? world - 1 : 1));
    if (p->op >= WEFT_OP_ALL_REDUCE) {
        weft_sim_limits limits = weft_sim_limits_of(machine, p, world);

        return fmax(link / 1e3, fmax(limits.network_us, limits.node_us));
    }
    return fmax(compute, fmax(memory, link)) / 1e3;
}

/* What passes a rank's links at least, with a library's rates: what is summed travels as the result's type,
 * and a switch that adds takes a sum once. Memory: each operand of the product, once. */
static double least_library_us(const weft_machine *machine, int world, const weft_problem *p)
{
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR, product = p->op < WEFT_OP_ALL_REDUCE;
    double size = (double)weft_dtype_size(p->dtype), m = (double)p->m, n = (double)p->n, k = (double)p->k;
    weft_problem moved = *p;
    weft_sim_limits limits;
    double memory = 0;

    if (product) {
        double all = p->op == WEFT_OP_AG_GEMM ? (p->layout == WEFT_LAYOUT_GATHER_B ? n : m) * k : m * n;

        moved.op = p->op == WEFT_OP_GEMM_RS   ? WEFT_OP_REDUCE_SCATTER
                   : p->op == WEFT_OP_GEMM_AR ? WEFT_OP_ALL_REDUCE
                                              : WEFT_OP_ALL_GATHER;
        moved.dtype = p->op == WEFT_OP_AG_GEMM ? p->dtype : p->d_dtype;
        moved.count = (int64_t)(p->op == WEFT_OP_GEMM_AR ? all : all / world);
        if (sums)
            k = floor(k / world);
        else if (p->op == WEFT_OP_AG_GEMM && p->layout == WEFT_LAYOUT_GATHER_B)
            m = floor(m / world);
        else
            n = floor(n / world);
        memory = (m * k + k * n) * size / machine->memory_gbs * 1e-3;
    }
    limits = weft_sim_limits_of(machine, &moved, world);
    return fmax(limits.network_us, limits.node_us) + memory;
}

/* ---- the four invariants -------------------------------------------------------------------------- */

static void check_auto(const weft_machine *machine, int world, const weft_problem *problem)
{
    weft_error_text error = {0};
    weft_problem resolved;
    weft_schedule picked = WEFT_SCHEDULE_AUTO;
    const weft_schedule *list;
    double taken, best = INFINITY;
    int count;

    CHECK_INT(weft_problem_resolve(problem, world, &resolved, &error), WEFT_OK);
    CHECK_INT(weft_choose_schedule(machine, &resolved, world, &picked, &error), WEFT_OK);
    list = weft_schedule_list(resolved.op, resolved.layout, &count);
    for (int i = 0; i < count; i++) {
        double us = time_of(machine, world, resolved, list[i], WEFT_CHOOSE_REGIONS);

        if (us < 0)
            continue;
        /* Of two_level on one node, which `auto` does not try for these, more ranks than cores are left out:
         * who is switched to decides there, and its tiles are others. */
        if (list[i] != WEFT_SCHEDULE_TWO_LEVEL || machine->kind == WEFT_MACHINE_GPU ||
            world <= machine->units)
            best = fmin(best, us);
        expect(us >= 0.999 * least_us(machine, world, &resolved, list[i]), "below its bounds",
               describe(machine, world, &resolved, list[i]));
    }
    taken = time_of(machine, world, resolved, picked, WEFT_CHOOSE_REGIONS);
    expect(taken > 0 && taken <= 1.02 * best, "auto is not the best",
           describe(machine, world, &resolved, picked));
}

/* On one node two_level gathers as the schedule for it does: nothing is promised for nodes there are none of,
 * and nothing is lost by not taking it. */
static void check_auto_on_one_node(void)
{
    static const char *const names[] = {"h100x8", "b200x8", "mi300x8", "l20x8", "grace72"};
    weft_problem p = {.size = sizeof(p), .op = WEFT_OP_AG_GEMM, .alpha = 1, .l = 1, .m = 4096, .n = 28672};
    weft_schedule picked = WEFT_SCHEDULE_AUTO;
    weft_error_text error = {0};
    weft_machine machine;

    p.k = 8192;
    p.layout = WEFT_LAYOUT_GATHER_A;
    p.dtype = p.d_dtype = WEFT_BF16;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        for (int world = 2; world <= 8; world++) {
            double levels, plain;

            CHECK_INT(weft_machine_find(names[i], &machine, &error), WEFT_OK);
            CHECK_INT(weft_choose_schedule(&machine, &p, world, &picked, &error), WEFT_OK);
            CHECK(picked != WEFT_SCHEDULE_TWO_LEVEL);
            if (machine.kind == WEFT_MACHINE_CPU)
                continue;
            levels = time_of(&machine, world, p, WEFT_SCHEDULE_TWO_LEVEL, WEFT_CHOOSE_REGIONS);
            plain = time_of(&machine, world, p, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, WEFT_CHOOSE_REGIONS);
            expect(fabs(levels - plain) <= 0.01 * plain, "two_level on one node is something else",
                   describe(&machine, world, &p, WEFT_SCHEDULE_TWO_LEVEL));
        }
    p.m = 1167, p.n = 4360, p.k = 1771;
    CHECK_INT(weft_machine_find("b200x8", &machine, &error), WEFT_OK);
    check_auto(&machine, 4, &p);
}

/* Twice of something: 0 rows, 1 columns, 2 k of a product, 0 of a collective. */
static weft_problem twice(const weft_problem *problem, int what)
{
    weft_problem more = *problem;

    if (problem->op < WEFT_OP_ALL_REDUCE)
        *(what == 0 ? &more.m : what == 1 ? &more.n : &more.k) *= 2;
    else
        more.count *= 2;
    return more;
}

static int extents(const weft_problem *problem)
{
    return problem->op < WEFT_OP_ALL_REDUCE ? 3 : 1;
}

/* What a problem takes by each schedule, negative where one cannot run, and by the fastest. */
typedef struct timed {
    double by[WEFT_SCHEDULE_TWO_SHOT_PACKETS + 1], best;
    weft_schedule fastest;
} timed;

static timed time_all(const weft_machine *machine, int world, const weft_problem *problem)
{
    timed t = {.best = INFINITY};
    const weft_schedule *list;
    int count;

    list = weft_schedule_list(problem->op, problem->layout, &count);
    for (int i = 0; i < count; i++) {
        double us = time_of(machine, world, *problem, list[i], WEFT_CHOOSE_REGIONS);

        t.by[list[i]] = us;
        if (us >= 0 && us < t.best) {
            t.best = us;
            t.fastest = list[i];
        }
    }
    return t;
}

/* On CPUs, of the pairs that were tried, those in which what `auto` takes fell. */
static long cpu_pairs, cpu_falls;
static char last_fall[200];

/*
 * Twice of anything takes at least as long: on GPUs what `auto` takes within half a percent, and each
 * schedule within `each` of itself, whose plan may have another form for more rows, or messages that come in
 * another order. On CPUs tiles follow the shape, and a schedule may have better ones for twice as much; what
 * counts is the best of them, as close as starting a task. More ranks than cores are left out: there who is
 * switched to decides.
 */
static void check_growth(const weft_machine *machine, int world, const weft_problem *problem, double each)
{
    bool cpu = machine->kind == WEFT_MACHINE_CPU;
    const weft_schedule *list;
    timed once;
    int count;

    if (cpu && world > machine->units)
        return;
    list = weft_schedule_list(problem->op, problem->layout, &count);
    once = time_all(machine, world, problem);
    for (int what = 0; what < extents(problem); what++) {
        weft_problem more = twice(problem, what);
        timed then = time_all(machine, world, &more);

        if (cpu) {
            cpu_pairs++;
            if (then.best >= 0.98 * once.best - machine->gemm_us)
                continue;
            cpu_falls++;
            snprintf(last_fall, sizeof(last_fall), "%s", describe(machine, world, problem, once.fastest));
            continue;
        }
        expect(then.best >= 0.995 * once.best, "auto takes less for twice as much",
               describe(machine, world, problem, once.fastest));
        for (int i = 0; i < count; i++)
            expect(once.by[list[i]] < 0 || then.by[list[i]] >= each * once.by[list[i]],
                   "twice as much is faster", describe(machine, world, problem, list[i]));
    }
}

/*
 * What once took longer than twice as much: DONE behind a sum, a join of lanes that nobody waits for, tiles
 * that were even but so small that starting them took longest, one tile where a shard each would have had
 * several, slices of k whose sums took longer than they saved, joins behind tasks that wait, crews that
 * were counted for columns of ranks that a gemm_ar does not cut, a latency of the network for every post of a
 * message, and few rows that alone went through one rank of each node.
 */
static void check_growth_of_few(void)
{
    static const struct {
        const char *machine;
        int world;
        weft_op op;
        weft_layout layout;
        weft_dtype dtype;
        int64_t m, n, k, count;
    } cases[] = {
        {"h200_link", 6, WEFT_OP_GEMM_RS, WEFT_LAYOUT_SCATTER_ROWS, WEFT_BF16, 2, 5765, 295, 0},
        {"h100x8", 2, WEFT_OP_ALL_REDUCE, WEFT_LAYOUT_DEFAULT, WEFT_BF16, 0, 0, 0, 17585},
        {"grace72", 8, WEFT_OP_GEMM_RS, WEFT_LAYOUT_SCATTER_COLS, WEFT_BF16, 98, 5268, 45, 0},
        {"h100x16", 6, WEFT_OP_AG_GEMM, WEFT_LAYOUT_GATHER_A, WEFT_F32, 100, 482, 2984, 0},
        {"gb200x72", 2, WEFT_OP_AG_GEMM, WEFT_LAYOUT_GATHER_B, WEFT_FP8_E4M3, 3440, 502, 1561, 0},
        {"l20x8", 3, WEFT_OP_GEMM_AS, WEFT_LAYOUT_DEFAULT, WEFT_F32, 137, 12, 3181, 0},
        {"h100x8", 3, WEFT_OP_AG_GEMM, WEFT_LAYOUT_GATHER_A, WEFT_F32, 386, 580, 977, 0},
        {"h800x8", 7, WEFT_OP_GEMM_RS, WEFT_LAYOUT_SCATTER_ROWS, WEFT_BF16, 335, 98, 5268, 0},
        {"h200_link", 8, WEFT_OP_GEMM_RS, WEFT_LAYOUT_SCATTER_ROWS, WEFT_FP8_E5M2, 7, 4360, 92, 0},
        {"a100x8", 6, WEFT_OP_AG_GEMM, WEFT_LAYOUT_GATHER_A, WEFT_F32, 3677, 2562, 3, 0},
        {"h100x1024", 14, WEFT_OP_AG_GEMM, WEFT_LAYOUT_GATHER_A, WEFT_FP8_E4M3, 5, 1364, 1202, 0},
        {"h200_link", 7, WEFT_OP_GEMM_RS, WEFT_LAYOUT_SCATTER_COLS, WEFT_BF16, 3527, 3, 125, 0},
        {"h20x8", 7, WEFT_OP_GEMM_AR, WEFT_LAYOUT_DEFAULT, WEFT_F16, 12, 419, 3707, 0},
        {"h100x16", 16, WEFT_OP_ALL_REDUCE, WEFT_LAYOUT_DEFAULT, WEFT_BF16, 0, 0, 0, 11},
        {"h100x1024", 9, WEFT_OP_AG_GEMM, WEFT_LAYOUT_GATHER_A, WEFT_FP8_E4M3, 209, 2, 5462, 0},
        {"h100x16", 11, WEFT_OP_AG_GEMM, WEFT_LAYOUT_GATHER_A, WEFT_F16, 173, 2933, 2, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_problem p = {.size = sizeof(p), .op = cases[i].op, .layout = cases[i].layout};
        weft_error_text error = {0};
        weft_machine machine;

        p.alpha = 1, p.l = 1, p.wire_dtype = WEFT_DTYPE_DEFAULT;
        p.dtype = cases[i].dtype;
        p.d_dtype = p.op < WEFT_OP_ALL_REDUCE ? weft_dtype_result(p.dtype) : p.dtype;
        p.m = cases[i].m, p.n = cases[i].n, p.k = cases[i].k, p.count = cases[i].count;
        CHECK_INT(weft_machine_find(cases[i].machine, &machine, &error), WEFT_OK);
        check_growth(&machine, cases[i].world, &p, 0.999);
    }
}

static double library_us(const weft_machine *machine, int world, const weft_problem *p)
{
    return p->op < WEFT_OP_ALL_REDUCE
               ? weft_library_unfused_us(machine, p, world, false)
               : weft_library_collective_us(machine, p, world, WEFT_LIBRARY_FASTEST, false);
}

/* What libraries take grows with everything, too, and has its bounds; on CPUs there are none. */
static void check_library(const weft_machine *machine, int world, const weft_problem *problem)
{
    double once = library_us(machine, world, problem), compute;
    bool product = problem->op < WEFT_OP_ALL_REDUCE;

    if (machine->kind == WEFT_MACHINE_CPU) {
        CHECK(once == 0);
        return;
    }
    for (int what = 0; what < extents(problem); what++) {
        weft_problem more = twice(problem, what);

        expect(library_us(machine, world, &more) >= 0.999 * once, "twice as much is faster with libraries",
               describe(machine, world, problem, WEFT_SCHEDULE_UNFUSED));
    }
    compute = product ? 2e-3 * (double)problem->m * (double)problem->n * (double)problem->k /
                            machine->gflops[problem->dtype] / machine->units / world
                      : 0;
    expect(once >= 0.999 * least_library_us(machine, world, problem),
           "libraries are below what links and memory allow",
           describe(machine, world, problem, WEFT_SCHEDULE_UNFUSED));
    expect(once > 0 && once >= 0.999 * compute, "libraries are below their bounds",
           describe(machine, world, problem, WEFT_SCHEDULE_UNFUSED));
}

/* A product with some hundred thousand tiles, as it is, and with tasks of many tiles each. */
static void check_coarsening(const char *name, int world, weft_op op, weft_layout layout, int64_t m,
                             int64_t n, int64_t regions)
{
    weft_problem p = {.size = sizeof(p), .op = op, .layout = layout, .alpha = 1, .l = 1, .m = m, .n = n};
    weft_error_text error = {0};
    const weft_schedule *list;
    weft_machine machine;
    weft_problem grown, whole;
    int count, compared = 0;

    p.k = 4096;
    p.dtype = p.d_dtype = WEFT_BF16;
    CHECK_INT(weft_machine_find(name, &machine, &error), WEFT_OK);
    CHECK_INT(weft_problem_resolve(&p, world, &p, &error), WEFT_OK);
    list = weft_schedule_list(op, p.layout, &count);
    grown = p;
    grown.schedule = WEFT_SCHEDULE_TWO_LEVEL;
    whole = grown;
    weft_choose_tiles_within(&machine, world, regions, &grown);
    weft_choose_tiles_within(&machine, world, INT64_MAX, &whole);
    CHECK(grown.tuning.tile_m * grown.tuning.tile_n >= 2 * whole.tuning.tile_m * whole.tuning.tile_n);
    for (int i = 0; i < count; i++) {
        double fine = time_of(&machine, world, p, list[i], INT64_MAX),
               coarse = time_of(&machine, world, p, list[i], regions);

        if (fine < 0) /* many ranks: only two_level is for them */
            continue;
        compared++;
        expect(fabs(coarse - fine) <= 0.01 * fine, "coarse tasks change the result",
               describe(&machine, world, &p, list[i]));
    }
    CHECK(compared > 0);
}

/* Of a gemm_as of many ranks, which fetch for much longer than they multiply, as many tasks as were asked
 * for: where their own tiles are few rounds, too. */
static void many_fetch_few_tasks(const char *name, int world)
{
    weft_problem p = {.size = sizeof(p), .op = WEFT_OP_GEMM_AS, .alpha = 1, .l = 1};
    weft_error_text error = {0};
    weft_machine machine;

    p.m = p.n = 199288, p.k = 8192;
    p.dtype = p.d_dtype = WEFT_BF16;
    p.schedule = WEFT_SCHEDULE_TWO_LEVEL;
    CHECK_INT(weft_machine_find(name, &machine, &error), WEFT_OK);
    CHECK_INT(weft_problem_resolve(&p, world, &p, &error), WEFT_OK);
    weft_choose_tiles(&machine, world, &p);
    CHECK(weft_sim_regions(&p, world) <= WEFT_CHOOSE_REGIONS);
}

/* Over nodes, schedules that do not know them are simulated tile by tile, or refused. */
static void check_refused(void)
{
    weft_problem p = {.size = sizeof(p), .op = WEFT_OP_GEMM_RS, .alpha = 1, .l = 1, .m = 65536, .n = 16384};
    weft_error_text error = {0};
    weft_machine machine;

    p.k = 4096;
    p.dtype = p.d_dtype = WEFT_BF16;
    p.schedule = WEFT_SCHEDULE_DIRECT;
    CHECK_INT(weft_machine_find("h100x1024", &machine, &error), WEFT_OK);
    CHECK(!weft_sim_can_run(&machine, &p, 64, &error));
    CHECK_HAS(error.text, "direct is simulated tile by tile, up to 1048576 regions");
    p.schedule = WEFT_SCHEDULE_TWO_LEVEL;
    CHECK(weft_sim_can_run(&machine, &p, 64, &error));
}

/* Tiles of `direct` read a peer's A over the link, each by itself: larger ones would hide that. */
static void the_largest_product(void)
{
    weft_problem p = {.size = sizeof(p), .op = WEFT_OP_AG_GEMM, .alpha = 1, .l = 1, .m = 131072, .n = 53248};
    weft_schedule picked = WEFT_SCHEDULE_AUTO;
    weft_error_text error = {0};
    weft_machine machine;

    p.k = 16384;
    p.dtype = p.d_dtype = WEFT_BF16;
    CHECK_INT(weft_machine_find("h100x8", &machine, &error), WEFT_OK);
    CHECK_INT(weft_problem_resolve(&p, 8, &p, &error), WEFT_OK);
    CHECK_INT(weft_choose_schedule(&machine, &p, 8, &picked, &error), WEFT_OK);
    CHECK_INT(picked, WEFT_SCHEDULE_ALLGATHER_ROTATING_A);
}

int main(void)
{
    for (int i = 0; weft_machine_builtin_name(i); i++) {
        uint64_t seed = 77, growing = 2026 + (uint64_t)i;
        weft_error_text error = {0};
        weft_machine machine;

        CHECK_INT(weft_machine_find(weft_machine_builtin_name(i), &machine, &error), WEFT_OK);
        for (int j = 0; j < PROBLEMS; j++) {
            weft_problem problem = random_problem(&machine, &seed);
            int world = random_world(&machine, &seed);

            check_auto(&machine, world, &problem);
            check_library(&machine, world, &problem);
            if (j % 4 == 0)
                check_growth(&machine, world, &problem, 0.95);
        }
        for (long j = 0; j < check_repeat(GROWING, 20 * GROWING); j++) {
            weft_problem problem = random_problem(&machine, &growing);

            check_growth(&machine, random_world(&machine, &growing), &problem, 0.95);
        }
    }
    check_auto_on_one_node();
    check_growth_of_few();
    expect(200 * cpu_falls <= cpu_pairs, "too often twice as much is faster on CPUs, last", last_fall);
    the_largest_product();
    check_coarsening("h100x8", 8, WEFT_OP_AG_GEMM, WEFT_LAYOUT_DEFAULT, 16384, 57344, 4000);
    check_coarsening("h100x8", 8, WEFT_OP_GEMM_RS, WEFT_LAYOUT_DEFAULT, 8192, 16384, 4000);
    check_coarsening("h100x8", 8, WEFT_OP_GEMM_AR, WEFT_LAYOUT_DEFAULT, 8192, 16384, 50000);
    check_coarsening("h100x8", 8, WEFT_OP_GEMM_AS, WEFT_LAYOUT_DEFAULT, 16384, 57344, 50000);
    check_coarsening("h100x16", 16, WEFT_OP_AG_GEMM, WEFT_LAYOUT_DEFAULT, 16384, 114688, 8000);
    check_coarsening("h100x16", 16, WEFT_OP_GEMM_RS, WEFT_LAYOUT_DEFAULT, 8192, 16384, 8000);
    check_coarsening("h100x1024", 128, WEFT_OP_GEMM_RS, WEFT_LAYOUT_SCATTER_ROWS, 8192, 8192, 40000);
    check_coarsening("h100x1024", 128, WEFT_OP_GEMM_RS, WEFT_LAYOUT_SCATTER_COLS, 8192, 8192, 40000);
    check_coarsening("gb200x72", 63, WEFT_OP_GEMM_AS, WEFT_LAYOUT_DEFAULT, 16384, 57344, 40000);
    check_coarsening("h100x1024", 128, WEFT_OP_GEMM_AS, WEFT_LAYOUT_DEFAULT, 16384, 16384, 500000);
    many_fetch_few_tasks("gb200x72", 63);
    many_fetch_few_tasks("h100x1024", 63);
    check_refused();
    return check_report("sim invariants");
}
