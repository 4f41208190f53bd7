/*
 * The event loop against times worked out by hand: waves, links of every kind, contention, flags, threads
 * and cores; a plan that cannot end is reported; the critical path adds up to the total.
 */
#include "support/check.h"
#include "plan/builder.h"
#include "choose/machine.h"
#include "sim/library.h"
#include "sim/sim.h"

#include <math.h>

/* 1 GB/s is a byte per nanosecond, so sizes below read as nanoseconds. */
static const char gpu_text[] =
    "kind gpu\nname test\nranks_per_node 4\nnodes 2\nunits 4\ngflops f32 2\nstep_m 8\nstep_n 8\nstep_k 8\n"
    "tile_m 16\ntile_n 16\nmemory_gbs 1000000\ncopy_engines 2\nlink_gbs 1\nlink_us 0.1\nnetwork_gbs 0.5\n"
    "network_us 1\ncopy_us 0.01\nflag_us 0.2\nlaunch_fused_us 3\nlaunch_unfused_us 1\n";

static const char cpu_text[] = "kind cpu\nname test\nunits 2\ngflops f32 2\nmemory_gbs 4\ncopy_own 1 1 1\n"
                               "copy_pull 1 0.5 0.25\ncopy_push 1 0.5 0.25\nreduce f32 1 2 1\nreduce_shared "
                               "1 2 1\npack_a_gbs f32 1e9\npack_b_gbs f32 "
                               "1e9\nstream_gbs f32 1e9\nflag_us 0.2\nswitch_us 5\n";

typedef struct scene {
    weft_problem problem;
    void (*write)(weft_builder *builder, uint32_t operand);
} scene;

static weft_status make_part(void *arg, int rank, weft_plan_part *part, weft_error_text *error)
{
    const scene *s = arg;
    weft_builder builder = weft_builder_begin(&s->problem, NULL, (int)s->problem.count, rank);
    uint32_t operand = weft_builder_operand(
        &builder,
        (weft_operand){.name = "X", .dtype = WEFT_F32, .rows = 1 << 20, .cols = 1 << 10, .batch = 1});

    s->write(&builder, operand);
    return weft_builder_finish(&builder, part, error);
}

static weft_sim_result simulate(const char *machine_text, const char *more, int world, int workers,
                                void (*write)(weft_builder *, uint32_t), weft_status expected)
{
    scene s = {.problem = {.op = WEFT_OP_ALL_GATHER,
                           .schedule = WEFT_SCHEDULE_PULL,
                           .count = world,
                           .alpha = 1,
                           .tuning.workers = workers},
               .write = write};
    weft_sim_source source = {.problem = &s.problem, .world = world, .make = make_part, .arg = &s};
    weft_error_text error = {0};
    weft_sim_result result = {0};
    weft_machine machine;
    char text[1024];

    snprintf(text, sizeof(text), "%s%s", machine_text, more);
    CHECK_INT(weft_machine_parse(text, "test", &machine, &error), WEFT_OK);
    CHECK_INT(weft_sim_run(&machine, &source, WEFT_SIM_ALL, true, &result, &error), expected);
    if (expected)
        CHECK_HAS(error.text, "cannot end");
    return result;
}

#define CHECK_US(result, expected)                                                                           \
    do {                                                                                                     \
        double us_ = (result).us;                                                                            \
        CHECK(fabs(us_ - (expected)) < 0.002);                                                               \
        if (fabs(us_ - (expected)) >= 0.002)                                                                 \
            fprintf(stderr, "    %.4f us, by hand %.4f\n", us_, (double)(expected));                         \
        weft_sim_result_free(&(result));                                                                     \
    } while (0)

static weft_region block(uint32_t operand, int rank, int64_t row0, int64_t rows, int64_t cols)
{
    return (weft_region){operand, rank, 0, row0, rows, 0, cols};
}

static void gemm(weft_builder *b, int lane, uint32_t x, int64_t row0, int64_t m, int64_t n, int64_t k)
{
    weft_builder_task(b, lane, WEFT_TASK_GEMM, 0);
    weft_builder_to(b, block(x, b->rank, row0, m, n));
    weft_builder_from(b, block(x, b->rank, row0, m, k));
    weft_builder_from(b, block(x, b->rank, row0, k, n));
    weft_builder_end(b);
}

/* 40 x 64 in tiles of 16 x 16: 12 tiles on 4 units, 3 waves of 16*16*8 fused multiply-adds at 1 a ns. */
static void one_big_product(weft_builder *b, uint32_t x)
{
    gemm(b, weft_builder_lanes(b, WEFT_LANE_COMPUTE, 1), x, 0, 40, 64, 8);
}

/* The same as 12 tasks on 4 lanes of one unit each; 5 columns cost as much as 8. */
static void a_product_per_unit(weft_builder *b, uint32_t x)
{
    int lane = weft_builder_lanes(b, WEFT_LANE_COMPUTE, 4);

    for (int i = 0; i < 12; i++)
        gemm(b, lane + i % 4, x, 16 * i, 16, i < 4 ? 5 : 16, 8);
}

static void copy_from(weft_builder *b, int lane, uint32_t x, int from, int64_t row0)
{
    weft_builder_copy(b, lane, block(x, b->rank, row0, 1000, 1), block(x, from, row0, 1000, 1));
}

static void pull_neighbour(weft_builder *b, uint32_t x)
{
    int lane = weft_builder_lanes(b, WEFT_LANE_COPY, 1);

    copy_from(b, lane, x, (b->rank + 1) % b->world, 0);
}

static void pull_opposite(weft_builder *b, uint32_t x)
{
    int lane = weft_builder_lanes(b, WEFT_LANE_COPY, 1);

    copy_from(b, lane, x, (b->rank + 2) % b->world, 0);
}

/* All from rank 0: its one port is the bottleneck of a switch. */
static void pull_from_root(weft_builder *b, uint32_t x)
{
    int lane = weft_builder_lanes(b, WEFT_LANE_COPY, 1);

    if (b->rank != 0)
        copy_from(b, lane, x, 0, 0);
}

/* Three lanes, two engines, three different peers. */
static void pull_all(weft_builder *b, uint32_t x)
{
    int lane = weft_builder_lanes(b, WEFT_LANE_COPY, 3);

    for (int i = 0; i < 3; i++)
        copy_from(b, lane + i, x, (b->rank + 1 + i) % b->world, 0);
}

/* Rank r multiplies after rank r-1 has. */
static void relay(weft_builder *b, uint32_t x)
{
    int lane = weft_builder_lanes(b, WEFT_LANE_COMPUTE, 1);
    uint32_t baton = weft_builder_signals(b, 1);

    weft_builder_expect(b, baton, b->rank > 0);
    weft_builder_task(b, lane, WEFT_TASK_GEMM, 0);
    weft_builder_to(b, block(x, b->rank, 0, 16, 16));
    weft_builder_from(b, block(x, b->rank, 0, 16, 8));
    weft_builder_from(b, block(x, b->rank, 0, 8, 16));
    if (b->rank > 0)
        weft_builder_wait(b, baton, 1);
    if (b->rank + 1 < b->world)
        weft_builder_post(b, baton, b->rank + 1);
    weft_builder_end(b);
}

/* Ranks of the first node send to those of the second, which multiply when what was sent is there. */
static void message(weft_builder *b, uint32_t x)
{
    int lane = weft_builder_lanes(b, WEFT_LANE_COMPUTE, 1);
    uint32_t here = weft_builder_signals(b, 1);
    bool sends = b->rank < b->world / 2;

    weft_builder_expect(b, here, !sends);
    weft_builder_task(b, lane, sends ? WEFT_TASK_COPY : WEFT_TASK_GEMM, 0);
    if (sends) {
        weft_builder_to(b, block(x, b->rank + b->world / 2, 0, 1000, 1));
        weft_builder_from(b, block(x, b->rank, 0, 1000, 1));
        weft_builder_post(b, here, b->rank + b->world / 2);
    } else {
        weft_builder_to(b, block(x, b->rank, 2000, 16, 16));
        weft_builder_from(b, block(x, b->rank, 0, 16, 8));
        weft_builder_from(b, block(x, b->rank, 0, 8, 16));
        weft_builder_wait(b, here, 1);
    }
    weft_builder_end(b);
}

static void stuck(weft_builder *b, uint32_t x)
{
    int lane = weft_builder_lanes(b, WEFT_LANE_COMPUTE, 1);
    uint32_t never = weft_builder_signals(b, 1);

    weft_builder_task(b, lane, WEFT_TASK_COPY, 0);
    weft_builder_to(b, block(x, b->rank, 0, 1, 1));
    weft_builder_from(b, block(x, b->rank, 1, 1, 1));
    weft_builder_wait(b, never, 1);
    weft_builder_end(b);
}

/* Two lanes of one product each; how many run at once is the machine's affair. */
static void two_lanes(weft_builder *b, uint32_t x)
{
    int lane = weft_builder_lanes(b, WEFT_LANE_COMPUTE, 2);

    gemm(b, lane, x, 0, 100, 100, 10);
    gemm(b, lane + 1, x, 500, 100, 100, 10);
}

static void reduce_two(weft_builder *b, uint32_t x)
{
    int lane = weft_builder_lanes(b, WEFT_LANE_COMPUTE, 1);

    weft_builder_task(b, lane, WEFT_TASK_REDUCE, 0);
    weft_builder_to(b, block(x, b->rank, 2000, 1000, 1));
    weft_builder_from(b, block(x, 0, 0, 1000, 1));
    weft_builder_from(b, block(x, 1, 0, 1000, 1));
    weft_builder_end(b);
}

static uint32_t add_operand(weft_builder *b, weft_dtype dtype, int64_t rows, int64_t cols, bool packed)
{
    return weft_builder_operand(
        b, (weft_operand){
               .name = "Y", .dtype = dtype, .rows = rows, .cols = cols, .batch = 1, .packed = packed});
}

static void product_of(weft_builder *b, weft_region d, weft_region left, weft_region right)
{
    weft_builder_task(b, weft_builder_lanes(b, WEFT_LANE_COMPUTE, 1), WEFT_TASK_GEMM, 0);
    weft_builder_to(b, d);
    weft_builder_from(b, left);
    weft_builder_from(b, right);
    weft_builder_end(b);
}

/* 10^5 multiply-adds each, whose sums are rounded to bfloat16: as many rows as count as few, and more. */
static void rounded(weft_builder *b, int64_t rows, int64_t cols, int64_t k)
{
    uint32_t y = add_operand(b, WEFT_BF16, 1000, 1000, false);

    product_of(b, block(y, b->rank, 0, rows, cols), block(y, b->rank, 100, rows, k),
               block(y, b->rank, 200, k, cols));
}

static void few_rows(weft_builder *b, uint32_t x)
{
    (void)x;
    rounded(b, 50, 100, 20);
}

static void many_rows(weft_builder *b, uint32_t x)
{
    (void)x;
    rounded(b, 100, 100, 10);
}

/* By a packed B of 10 x 100, 4000 bytes. */
static void packed_b(weft_builder *b, uint32_t x)
{
    uint32_t y = add_operand(b, WEFT_F32, 10, 100, true);

    product_of(b, block(x, b->rank, 0, 100, 100), block(x, b->rank, 500, 100, 10),
               block(y, b->rank, 0, 10, 100));
}

/* 40000 bytes of results, of which the peer reads half. */
static void results_read(weft_builder *b, uint32_t x)
{
    uint32_t y = add_operand(b, WEFT_F32, 100, 100, false);
    int copier = weft_builder_lanes(b, WEFT_LANE_COPY, 1);

    product_of(b, block(y, b->rank, 0, 100, 100), block(x, b->rank, 500, 100, 10),
               block(x, b->rank, 700, 10, 100));
    weft_builder_copy(b, copier, block(x, b->rank, 0, 50, 100), block(y, b->rank ^ 1, 0, 50, 100));
}

/* The same bytes, stored to the peer. */
static void results_given(weft_builder *b, uint32_t x)
{
    product_of(b, block(x, b->rank ^ 1, 0, 100, 100), block(x, b->rank, 500, 100, 10),
               block(x, b->rank, 700, 10, 100));
}

/* 2 million multiply-adds over a k of 1024. */
static void long_k(weft_builder *b, uint32_t x)
{
    product_of(b, block(x, b->rank, 0, 100, 10), block(x, b->rank, 500, 100, 1024),
               block(x, b->rank, 3000, 1024, 10));
}

/* By a B of 10 x 100, 4000 bytes, where it lies. */
static void rows_in_place(weft_builder *b, uint32_t x)
{
    product_of(b, block(x, b->rank, 0, 4, 100), block(x, b->rank, 500, 4, 10),
               block(x, b->rank, 700, 10, 100));
}

/* 1000 sums, rounded. */
static void sum_rounded(weft_builder *b, uint32_t x)
{
    uint32_t y = add_operand(b, WEFT_BF16, 1000, 1, false);

    weft_builder_task(b, weft_builder_lanes(b, WEFT_LANE_COMPUTE, 1), WEFT_TASK_REDUCE, WEFT_TASK_EPILOGUE);
    weft_builder_to(b, block(y, b->rank, 0, 1000, 1));
    weft_builder_from(b, block(x, b->rank, 0, 1000, 1));
    weft_builder_from(b, block(x, b->rank ^ 1, 0, 1000, 1));
    weft_builder_end(b);
}

/* 4000 bytes of sums, which the peer gets, too. */
static void sum_for_both(weft_builder *b, uint32_t x)
{
    uint32_t y = add_operand(b, WEFT_F32, 2000, 1, false);

    weft_builder_task(b, weft_builder_lanes(b, WEFT_LANE_COMPUTE, 1), WEFT_TASK_REDUCE, 0);
    weft_builder_to(b, block(y, b->rank, 1000 * b->rank, 1000, 1));
    weft_builder_to(b, block(y, b->rank ^ 1, 1000 * b->rank, 1000, 1));
    weft_builder_from(b, block(x, 0, 0, 1000, 1));
    weft_builder_from(b, block(x, 1, 0, 1000, 1));
    weft_builder_end(b);
}

/* 4000 bytes to the peer's scratch memory, and those that it has sent here from there. */
static void sent_and_taken(weft_builder *b, uint32_t x)
{
    uint32_t y = add_operand(b, WEFT_F32, 1000, 1, false);
    int lane = weft_builder_lanes(b, WEFT_LANE_COPY, 1);

    weft_builder_copy(b, lane, block(y, b->rank ^ 1, 0, 1000, 1), block(x, b->rank, 0, 1000, 1));
    weft_builder_copy(b, lane, block(x, b->rank, 2000, 1000, 1), block(y, b->rank, 0, 1000, 1));
}

static void pull_a_row(weft_builder *b, uint32_t x)
{
    weft_builder_copy(b, weft_builder_lanes(b, WEFT_LANE_COPY, 1), block(x, b->rank, 0, 1, 1000),
                      block(x, b->rank ^ 1, 0, 1, 1000));
}

static void gpu_times(void)
{
    const double launch = 1, enter = 0.2, done = 0.2, copy = 4.0 + 0.1 + 0.01;
    weft_sim_result r;

    r = simulate(gpu_text, "", 1, 1, one_big_product, WEFT_OK);
    CHECK_US(r, launch + 3 * 2.048);
    r = simulate(gpu_text, "", 1, 4, a_product_per_unit, WEFT_OK);
    CHECK_US(r, launch + 2 * 2.048 + 1.024);

    /* Everyone pulls from another one: no port is shared. */
    r = simulate(gpu_text, "", 4, 1, pull_neighbour, WEFT_OK);
    CHECK_INT(r.bound, WEFT_BOUND_LINK);
    CHECK_US(r, launch + enter + copy + done);
    r = simulate(gpu_text, "", 4, 1, pull_from_root, WEFT_OK);
    CHECK_US(r, launch + enter + copy + 2 * 4.0 + done);
    r = simulate(gpu_text, "link mesh\n", 4, 1, pull_from_root, WEFT_OK);
    CHECK_US(r, launch + enter + copy + done);
    /* Of the two copies a rank starts with, some stand second at the far end; the third follows the first. */
    r = simulate(gpu_text, "", 4, 1, pull_all, WEFT_OK);
    CHECK_US(r, launch + enter + copy + 4.0 + copy + done);
    /* With a link each, only the engines limit: the third copy starts when the first is over. */
    r = simulate(gpu_text, "link mesh\n", 4, 1, pull_all, WEFT_OK);
    CHECK_US(r, launch + enter + 2 * copy + done);
    r = simulate(gpu_text, "link ring\n", 4, 1, pull_neighbour, WEFT_OK);
    CHECK_US(r, launch + enter + copy + done);
    /* Two hops: every link carries the bytes of two transfers. */
    r = simulate(gpu_text, "link ring\n", 4, 1, pull_opposite, WEFT_OK);
    CHECK_US(r, launch + enter + copy + 4.0 + 0.1 + done);
    /* Ranks 3 and 7 pull from the other node at half the rate, and all flags to there take longer. */
    r = simulate(gpu_text, "", 8, 1, pull_neighbour, WEFT_OK);
    CHECK_US(r, launch + 1 + 8.0 + 1 + 0.01 + 1);

    /* Put with signal is one message: the network's latency once for the bytes and their post. */
    r = simulate(gpu_text, "", 8, 4, message, WEFT_OK);
    CHECK_US(r, launch + 1 + 0.01 + 8.0 + 1 + 2.048);

    r = simulate(gpu_text, "", 3, 4, relay, WEFT_OK);
    CHECK_INT(r.bound, WEFT_BOUND_COMPUTE);
    CHECK(fabs(r.path_us[WEFT_BOUND_COMPUTE] - 3 * 2.048) < 0.002);
    CHECK(fabs(r.path_us[WEFT_BOUND_COMPUTE] + r.path_us[WEFT_BOUND_LATENCY] - r.us) < 0.002);
    /* Nobody touches another's memory, so nobody waits at the end. */
    CHECK_US(r, launch + enter + 3 * 2.048 + 2 * 0.2);
    r = simulate(gpu_text, "", 2, 4, stuck, WEFT_ERR_ARGUMENT);
}

static void cpu_times(void)
{
    const double product = 2e5 / 2 / 1e3, written = 40.0; /* 10^5 multiply-adds, 40000 bytes of result */
    weft_sim_result r;

    /* One thread does both lanes in turn; two threads do them at once. */
    r = simulate(cpu_text, "", 1, 1, two_lanes, WEFT_OK);
    CHECK_US(r, 2 * (product + written));
    r = simulate(cpu_text, "", 1, 2, two_lanes, WEFT_OK);
    CHECK_US(r, product + written);
    /* The kernel of a type makes 200 rows at a time, half of which nobody wants; others do not. */
    r = simulate(cpu_text, "type_step_m float32 200\n", 1, 2, two_lanes, WEFT_OK);
    CHECK_US(r, 2 * product + written);
    r = simulate(cpu_text, "type_step_m bfloat16 200\n", 1, 2, two_lanes, WEFT_OK);
    CHECK_US(r, product + written);
    /* Four ranks on two cores: four rounds of products, and a core that changes rank pays for it. */
    r = simulate(cpu_text, "flag_us 0\nswitch_us 0\n", 4, 1, two_lanes, WEFT_OK);
    CHECK_US(r, 4 * (product + written));
    r = simulate(cpu_text, "flag_us 0\n", 4, 1, two_lanes, WEFT_OK);
    CHECK(r.us > 4 * (product + written) + 5);
    weft_sim_result_free(&r);
    /* A rank reads 4000 bytes at the rate of all cores working. */
    r = simulate(cpu_text, "", 2, 1, pull_neighbour, WEFT_OK);
    CHECK_INT(r.bound, WEFT_BOUND_MEMORY);
    CHECK_US(r, 0.2 + 4.0 / 0.25 + 0.2);
    r = simulate(cpu_text, "", 2, 1, reduce_two, WEFT_OK);
    CHECK_US(r, 0.2 + 8.0 / 1 + 0.2);
    /* Alone on a machine of many cores a rank gets a core's own rate. */
    r = simulate(cpu_text, "units 64\n", 2, 1, reduce_two, WEFT_OK);
    CHECK_US(r, 0.2 + 8.0 / 2 + 0.2);
}

/* What lines of a description add to a run, in microseconds. */
static double added_us(const char *more, int world, void (*write)(weft_builder *, uint32_t))
{
    static const char base[] = "flag_us 0\ngflops bf16 2\npack_a_gbs bf16 1e9\npack_b_gbs bf16 "
                               "1e9\nstream_gbs bf16 1e9\n";
    char text[256];
    weft_sim_result with, without;
    double added;

    snprintf(text, sizeof(text), "%s%s", base, more);
    with = simulate(cpu_text, text, world, 1, write, WEFT_OK);
    without = simulate(cpu_text, base, world, 1, write, WEFT_OK);
    added = with.us - without.us;
    weft_sim_result_free(&with);
    weft_sim_result_free(&without);
    return added;
}

#define CHECK_ADDED(more, world, write, expected)                                                            \
    do {                                                                                                     \
        double us_ = added_us(more, world, write);                                                           \
        CHECK(fabs(us_ - (expected)) < 0.01);                                                                \
        if (fabs(us_ - (expected)) >= 0.01)                                                                  \
            fprintf(stderr, "    %.4f us more, by hand %.4f\n", us_, (double)(expected));                    \
    } while (0)

static void cpu_products(void)
{
    /* What few rows take of each element of B, and of each of k, in place of 100 us; many have their
     * rate, and lay B out. */
    CHECK_ADDED("few bf16 50 0 1500 9\nfew bf16 50 9 75 9\n", 1, few_rows, 1.5 * 20 + 75e-3 * 20 * 100 - 100);
    CHECK_ADDED("few bf16 50 0 1500 9\nfew bf16 50 9 75 75\n", 1, many_rows, 0);
    CHECK_ADDED("few bf16 50 0 1500 9\nfew bf16 50 9 75 9\n", 1, many_rows, 1000 * 66e-3); /* packing */
    /* 5000 sums that wait in memory, 10 us to store; those of many rows are rounded in registers. */
    CHECK_ADDED("epilogue_ns bf16 4\n", 1, few_rows, 5 * 4 - 10);
    CHECK_ADDED("epilogue_ns bf16 4\n", 1, many_rows, 0);
    /* A third of the way from a k of 512 to one of 4096. */
    CHECK_ADDED("gflops_long f32 1\n", 1, long_k, 2048e3 * (1.0 / 3 * 0.5) / 1e3);
    CHECK_ADDED("gflops_long f32 1\n", 1, packed_b, 0);
    /* 100 columns over a k of 10 end within a micro-tile of 30, none of 25; a packed B has no such end. */
    CHECK_ADDED("edge_ns bf16 500\nedge_place_ns bf16 900\n", 1, many_rows, 0);
    CHECK(fabs(added_us("type_step_n bf16 30\nedge_ns bf16 500\n", 1, many_rows) -
               added_us("type_step_n bf16 30\n", 1, many_rows) - 10 * 0.5) < 0.01);
    CHECK_ADDED("type_step_n bf16 25\nedge_ns bf16 500\n", 1, many_rows, 0);
    CHECK(fabs(added_us("step_n 30\nedge_place_ns f32 500\n", 1, rows_in_place) -
               added_us("step_n 30\n", 1, rows_in_place)) < 10 * 0.5 + 0.01);
    CHECK(fabs(added_us("step_n 30\nedge_ns f32 500\n", 1, packed_b) - added_us("step_n 30\n", 1, packed_b)) <
          0.01);
    /* 100 columns of few rows' results, where that is longer than storing 10 us; of many each result. */
    CHECK_ADDED("few_results bf16 50 0 170 9\n", 1, few_rows, 17 - 10);
    CHECK_ADDED("few_results bf16 50 0 70 9\n", 1, few_rows, 0);
    CHECK_ADDED("few_results bf16 50 0 170 9\n", 1, many_rows, 0);
    CHECK_ADDED("few_results bf16 50 0 170 9\nepilogue_ns bf16 4\n", 1, few_rows, 17 - 10);
    /* Four rows of a B as it lies. */
    CHECK_ADDED("few f32 2 0 1 1\nfew f32 4 0 10 1\nfew f32 4 9 5 1\n", 1, rows_in_place, 10e-3 * 10 + 5 - 4);
    /* 1000 sums rounded beside adding, where that takes longer than to store them, 2 us. */
    CHECK_ADDED("round_ns bf16 5\n", 2, sum_rounded, 5 - 2);
    CHECK_ADDED("round_ns bf16 5\nepilogue_ns bf16 9\n", 2, sum_rounded, 5 - 2);
    CHECK_ADDED("epilogue_ns bf16 9\n", 2, sum_rounded, 9 - 2);
    CHECK_ADDED("row_ns bf16 3\nrow_ns f32 5\n", 2, sum_rounded, 1000 * 3e-3); /* in as many rows */
    /* The second place of a sum, else as half of a copy. */
    CHECK_ADDED("reduce_push 1 0.1 0.1\n", 2, sum_for_both, 4 / 0.1 - 0.5 * 4 / 0.25);
    /* What a peer has sent comes from its cache. */
    CHECK_ADDED("copy_pull 2 0.1 0.1\n", 2, sent_and_taken, 4 / 0.1 - 4 / 0.25);
    /* 1000 elements of a B that is in no cache of the core: what the most rows that were measured wait. */
    CHECK_ADDED("few f32 60 0 1 1\nfew f32 60 9 70 50\nfew f32 60 4000 80 53\n", 1, packed_b, 3);
    CHECK_ADDED("few f32 60 0 1 1\nfew f32 60 4000 80 53\nfew f32 60 9999 80 59\n", 1, packed_b, 0);
    CHECK_ADDED("cache_bytes 1e6\n", 1, packed_b, 0);
    /* Lines that the peer reads, or has, where they take longer than storing 40000 bytes. */
    CHECK_ADDED("shared_gbs f32 0.25\n", 2, results_read, 20 / 0.25 - 40);
    CHECK_ADDED("shared_gbs f32 0.25\n", 2, results_given, 40 / 0.25 - 40);
    CHECK_ADDED("shared_gbs f32 0.6\n", 2, results_read, 0);
    CHECK_ADDED("shared_gbs f32 0.25\n", 1, packed_b, 0);
    /* The same bytes stored at a rate of their own. */
    CHECK_ADDED("store 1 0.5 0.4\n", 1, packed_b, 40 / 0.5 - 40);
    /* 4000 bytes in parts of rows of a peer; and as one row. */
    CHECK_ADDED("parts_gbs 0.125\n", 2, pull_neighbour, 4 / 0.125 - 4 / 0.25);
    CHECK_ADDED("parts_gbs 0.125\n", 2, pull_a_row, 0);
}

static void events_tell_the_run(void)
{
    weft_sim_result r = simulate(gpu_text, "", 4, 1, pull_all, WEFT_OK);
    int copies = 0, waits = 0;
    int64_t last = 0;

    for (size_t i = 0; i < r.event_count; i++) {
        copies += r.events[i].kind == WEFT_EVENT_COPY;
        waits += r.events[i].kind == WEFT_EVENT_WAIT;
        last = r.events[i].end_ns > last ? r.events[i].end_ns : last;
    }
    CHECK_INT(copies, 12);
    CHECK(waits > 0);
    CHECK(fabs((double)last / 1e3 - r.us) < 0.002);
    weft_sim_result_free(&r);
}

/* Hundreds of ranks run in bounded memory; soak takes a thousand. */
static void many_ranks(void)
{
    int world = (int)check_repeat(128, 1024);
    weft_problem problem = {.size = sizeof(problem),
                            .op = WEFT_OP_AG_GEMM,
                            .schedule = WEFT_SCHEDULE_TWO_LEVEL,
                            .m = 128 * (int64_t)world,
                            .n = 53248,
                            .k = 16384,
                            .l = 1,
                            .dtype = WEFT_BF16,
                            .d_dtype = WEFT_BF16,
                            .alpha = 1};
    weft_sim_source source = {.problem = &problem, .world = world};
    weft_error_text error = {0};
    weft_sim_result r = {0};
    weft_machine machine;
    /* An eighth comes over the network, to this rank; the rest from its seven neighbours. */
    double link_us = (double)problem.m * (double)problem.k * 2 * 7 / 8 / 329e3;

    CHECK_INT(weft_machine_find("h100x1024", &machine, &error), WEFT_OK);
    CHECK_INT(weft_problem_resolve(&problem, world, &problem, &error), WEFT_OK);
    weft_choose_tiles(&machine, world, &problem);
    CHECK_INT(weft_sim_run(&machine, &source, WEFT_SIM_ALL, false, &r, &error), WEFT_OK);
    CHECK_INT(r.bound, WEFT_BOUND_LINK);
    CHECK(r.us > link_us && r.us < 1.5 * link_us);
    problem.schedule = WEFT_SCHEDULE_DIRECT;
    CHECK_INT(weft_sim_run(&machine, &source, WEFT_SIM_ALL, false, &r, &error), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(error.text, "two_level");
    CHECK_INT(weft_machine_find("h100x8", &machine, &error), WEFT_OK);
    CHECK_INT(weft_sim_run(&machine, &source, WEFT_SIM_ALL, false, &r, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "do not fit on h100x8");
}

/* Libraries reduce what products leave: of fp8 that is bfloat16, twice the bytes of the operands. */
static void libraries_reduce_results(void)
{
    weft_problem problem, moved;
    weft_machine machine;
    weft_error_text error = {0};

    CHECK_INT(weft_machine_find("h100x8", &machine, &error), WEFT_OK);
    weft_problem_init(&problem, WEFT_OP_GEMM_RS);
    problem.dtype = WEFT_FP8_E4M3;
    problem.m = problem.n = 8192, problem.k = 512;
    weft_problem_init(&moved, WEFT_OP_REDUCE_SCATTER);
    moved.dtype = WEFT_BF16;
    moved.count = problem.m * problem.n / 8;
    CHECK(weft_library_unfused_us(&machine, &problem, 8, false) >
          weft_library_collective_us(&machine, &moved, 8, WEFT_LIBRARY_FASTEST, false));
}

int main(void)
{
    libraries_reduce_results();
    gpu_times();
    cpu_times();
    cpu_products();
    events_tell_the_run();
    many_ranks();
    return check_report("sim engine");
}
