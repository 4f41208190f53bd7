/*
 * Products, through the engine's tiles, on all cores at once. A wide and a narrow product of the same rows
 * tell arithmetic and the packing of A apart, a short one what a result costs; the same of few rows; one of a
 * long k; filling a packed B; and one row. Few rows have kernels of their own, by how many they are, and what
 * any wait for a B that no cache of a core has is measured with them: few.c.
 *
 * Rates are differences of times, and a machine that is slower for a second would make nonsense of them: all
 * times are taken in turn, in rounds, and of each counts the least, of rounds in which cores were their own
 * where there are any: others who use the machine can only add to it. What no round has is tried further.
 */
#include "calibrate/calibrate.h"

#include "core/dtype.h"
#include "core/round.h"
#include "gemm/gemm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Products that stay in a core's cache, of about a millisecond at most: a longer one would be cut by other
 * processes of the machine. */
enum {
    WIDE = 384,
    NARROW_SUMS = 49,
    DEEP = 512,
    STREAM_K = 4096,
    STREAM_N = 1024,
    LONG_PANELS = 8,
    SHORTER = 8,
    CACHE_LINE = 64,
    ROUNDS = 5,
    MOST_ROUNDS = 20, /* of times that were never taken by cores of their own */
    HURRIED_ROUNDS = 2
};

static const double SECONDS = 0.04; /* of a time, in a round */

/* So much of a wide product is arithmetic at least: beside a neighbour who comes and goes, differences of
 * times may leave nothing of it, or less. */
static const double least_arithmetic = 0.25;

/* What is timed. */
typedef enum product_time {
    TIME_WIDE,
    TIME_NARROW,
    TIME_SHORT,
    TIME_FEW, /* rows */
    TIME_FEW_SHORT,
    TIME_LONG, /* k, half of the rows */
    TIME_ROW,
    TIME_PACK,
    TIME_ROUNDED,     /* int8 only: as TIME_WIDE, sums in int32 rounded back to it; */
    TIME_FEW_ROUNDED, /* as TIME_FEW; */
    TIME_SUMS,        /* without a product, as a sum of ranks is finished; */
    TIME_SUMS_NARROW, /* in short rows */
    TIME_ACC,         /* as TIME_SHORT, from sums that the other core left */
    TIME_TWICE,       /* results that the other core gets too */
    TIME_OWN,         /* between TIME_SHORT and TIME_WIDE; */
    TIME_SHARED,      /* the same, results in lines that the other core has read */
    TIMES
} product_time;

typedef struct product_test {
    const weft_binding *bind;
    int cores;
    weft_dtype dtype, d_dtype;
    int64_t m, n, k;
    char *acc[CALIBRATE_MOST_CORES]; /* sums of each rank's tile that another core wrote; NULL = zeros */
    product_time time;
    char *a, *b, *d[CALIBRATE_MOST_CORES], *packed[CALIBRATE_MOST_CORES], *workspace[CALIBRATE_MOST_CORES];
} product_test;

static void multiply(void *arg, int rank)
{
    product_test *t = arg;
    weft_gemm_tile tile = weft_gemm_tile_init(t->bind, t->dtype);

    tile.m = t->m;
    tile.n = t->n;
    tile.k = t->k;
    tile.a = t->a;
    tile.a_rs = t->k;
    tile.a_cs = 1;
    tile.packed_b = (const weft_packed *)(const void *)t->packed[rank];
    tile.d_dtype = t->d_dtype;
    tile.d[0] = t->d[rank];
    tile.d_ld[0] = t->n;
    if (t->time == TIME_ACC) { /* as plans hand them on */
        int order = weft_gemm_order(t->bind, t->m, t->k, false);

        tile.acc = t->acc[rank];
        tile.acc_ld = t->n;
        tile.acc_in_order = order > 0;
        tile.order = order > 0 ? order : 1;
    }
    if (t->time == TIME_SUMS || t->time == TIME_SUMS_NARROW) {
        tile.acc = t->acc[rank];
        tile.acc_ld = t->n;
    }
    if (t->time == TIME_TWICE) {
        tile.d_count = 2;
        tile.d[1] = t->acc[(rank + 1) % t->cores];
        tile.d_ld[1] = t->n;
    }
    weft_gemm_run_tile(&tile, t->workspace[rank]);
}

/* The sums of the next rank, as a product of this one would leave them there. */
static void leave_sums(void *arg, int rank, int iteration)
{
    product_test *t = arg;

    (void)iteration;
    memset(t->acc[(rank + 1) % t->cores], 0, (size_t)(t->m * t->n) * 4);
}

/* The results of the next rank. */
static void read_results(void *arg, int rank, int iteration)
{
    product_test *t = arg;
    const volatile char *d = t->d[(rank + 1) % t->cores];

    (void)iteration;
    for (int64_t at = 0; at < t->m * t->n * (int64_t)weft_dtype_size(t->d_dtype); at += CACHE_LINE)
        (void)d[at];
}

static void pack(void *arg, int rank)
{
    product_test *t = arg;
    weft_packed *packed = weft_packed_begin(t->bind, t->k, t->n, t->packed[rank]);

    weft_packed_fill(t->bind, packed, t->b, t->dtype, t->n, 1, 0, t->k, 0, t->n);
}

static void pack_first(void *arg, int rank, int iteration)
{
    product_test *t = arg;

    if (iteration == 0)
        pack(arg, rank);
    if (t->time == TIME_ACC)
        leave_sums(arg, rank, iteration);
    if (t->time == TIME_SHARED)
        read_results(arg, rank, iteration);
}

/* Rows of whole micro-tiles that count as few. */
static int64_t few_rows(const weft_gemm_steps *steps)
{
    return WEFT_GEMM_STREAM_ROWS / steps->mr * steps->mr;
}

static int64_t deep(const weft_gemm_steps *steps)
{
    return steps->k_tile < DEEP ? steps->k_tile : DEEP;
}

static int64_t half_rows(const weft_gemm_steps *steps)
{
    return weft_round_up(steps->m_tile / 2, steps->mr);
}

static bool is_timed(weft_dtype dtype, product_time time)
{
    return dtype == WEFT_I8 || (time != TIME_ROUNDED && time != TIME_FEW_ROUNDED && time != TIME_SUMS &&
                                time != TIME_SUMS_NARROW);
}

static double time_of(product_test *t, int cores, product_time time)
{
    weft_gemm_steps steps = weft_gemm_steps_of(t->bind);
    calibrate_job job = {.arg = t,
                         .prepare = time == TIME_PACK ? NULL : pack_first,
                         .work = time == TIME_PACK ? pack : multiply,
                         .workers = cores,
                         .seconds = SECONDS,
                         .quantile = 0.25};
    bool few = time == TIME_FEW || time == TIME_FEW_SHORT || time == TIME_FEW_ROUNDED;
    bool half = time == TIME_LONG;
    bool whole = time == TIME_WIDE || time == TIME_NARROW || time == TIME_FEW || time == TIME_PACK ||
                 time == TIME_ROUNDED || time == TIME_FEW_ROUNDED;
    bool middle = time == TIME_OWN || time == TIME_SHARED;

    t->time = time;
    t->m = time == TIME_ROW ? 1 : few ? few_rows(&steps) : half ? half_rows(&steps) : steps.m_tile;
    t->n = time == TIME_LONG          ? LONG_PANELS * steps.nr
           : time == TIME_ROW         ? STREAM_N
           : time == TIME_NARROW      ? 2 * steps.nr
           : time == TIME_SUMS_NARROW ? NARROW_SUMS
                                      : WIDE;
    t->k = time == TIME_LONG                               ? WEFT_MACHINE_LONG_K
           : time == TIME_ROW                              ? STREAM_K
           : time == TIME_SUMS || time == TIME_SUMS_NARROW ? 0
           : whole                                         ? deep(&steps)
                                                           : deep(&steps) / (middle ? SHORTER / 2 : SHORTER);
    t->d_dtype =
        time == TIME_ROUNDED || time == TIME_FEW_ROUNDED || time == TIME_SUMS || time == TIME_SUMS_NARROW
            ? t->dtype
            : weft_dtype_result(t->dtype);
    return calibrate_time(cores, &job);
}

/* Bytes per nanosecond that make `longer` of nanoseconds; noise can make the difference vanish, and nothing
 * is faster than `most`. */
static double rate_of(double bytes, double longer, double most)
{
    return bytes / fmax(longer, bytes / most);
}

/* int8 that is rounded back to it, beside its sums of int32. */
static void settle_rounded(const double *times, double rows, double few, double finish_few,
                           weft_machine *machine)
{
    double longer = fmax(0, times[TIME_FEW_ROUNDED] - times[TIME_FEW]);

    machine->finish_ns[WEFT_I8] =
        machine->finish_ns[WEFT_I32] + fmax(0, times[TIME_ROUNDED] - times[TIME_WIDE]) / (rows * WIDE);
    machine->epilogue_ns[WEFT_I8] =
        fmax(machine->finish_ns[WEFT_I8], (fmax(0, finish_few) + longer) / (few * WIDE));
    machine->round_ns[WEFT_I8] =
        fmax(0.001, times[TIME_SUMS] - times[TIME_SUMS_NARROW]) / (rows * (WIDE - NARROW_SUMS));
    machine->row_ns[WEFT_I8] =
        machine->row_ns[WEFT_F32] +
        fmax(0, times[TIME_SUMS_NARROW] / rows - NARROW_SUMS * machine->round_ns[WEFT_I8]);
}

/* The rates of a type from its times. */
static void settle(const product_test *t, const double *times, weft_machine *machine)
{
    weft_gemm_steps steps = weft_gemm_steps_of(t->bind);
    weft_dtype dtype = t->dtype, d_dtype = weft_dtype_result(dtype);
    double m = steps.m_tile, k = (double)deep(&steps), narrow = 2.0 * steps.nr,
           few = (double)few_rows(&steps);
    double element = (double)weft_dtype_size(dtype), result = (double)weft_dtype_size(d_dtype);
    double column = (times[TIME_WIDE] - times[TIME_NARROW]) / (WIDE - narrow);
    double rows = times[TIME_NARROW] - narrow * column;
    /* What is left without k; and of few rows. */
    double finish = times[TIME_SHORT] - (times[TIME_WIDE] - times[TIME_SHORT]) / (SHORTER - 1);
    double of_k = (times[TIME_FEW] - times[TIME_FEW_SHORT]) * SHORTER / (SHORTER - 1);
    double finish_few = times[TIME_FEW] - of_k, half = (double)half_rows(&steps) / m, pack_a, long_k;

    column = fmax(column - fmax(0, finish) / WIDE, least_arithmetic * times[TIME_WIDE] / WIDE);
    machine->finish_ns[d_dtype] = fmax(0.02, finish / (m * WIDE));
    machine->gflops[dtype] = 2 * m * k / column;
    machine->pack_a_gbs[dtype] = rate_of(m * k * element, rows, 32);
    pack_a = element / machine->pack_a_gbs[dtype];
    if (d_dtype != weft_dtype_accumulator(dtype))
        machine->epilogue_ns[d_dtype] = fmax(machine->finish_ns[d_dtype], finish_few / (few * WIDE));
    long_k = times[TIME_LONG] -
             half * m * (WEFT_MACHINE_LONG_K * pack_a + LONG_PANELS * steps.nr * machine->finish_ns[d_dtype]);
    machine->gflops_long[dtype] =
        fmin(2 * half * m * LONG_PANELS * steps.nr * WEFT_MACHINE_LONG_K / fmax(long_k, 1),
             machine->gflops[dtype]);
    machine->pack_b_gbs[dtype] = WIDE * k * element / times[TIME_PACK];
    machine->stream_gbs[dtype] = (double)STREAM_N * STREAM_K * element / times[TIME_ROW];
    if (dtype == WEFT_I8)
        settle_rounded(times, m, few, finish_few, machine);
    machine->acc_gbs[dtype] = rate_of(m * WIDE * 4, times[TIME_ACC] - times[TIME_SHORT], 128);
    machine->twice_gbs[dtype] = rate_of(m * WIDE * result, times[TIME_TWICE] - times[TIME_SHORT], 128);
    machine->shared_gbs[dtype] = rate_of(m * WIDE * result, times[TIME_SHARED] - times[TIME_OWN], 128);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* How far the better half of the rounds is apart, as a share of the best. */
static double spread_of(double *ns, int count)
{
    qsort(ns, (size_t)count, sizeof(double), compare);
    return ns[(count - 1) / 2] / ns[0] - 1;
}

static void measure_type(product_test *t, int cores, weft_machine *machine, double *spread)
{
    weft_gemm_steps steps = weft_gemm_steps_of(t->bind);
    int rounds = calibrate_hurries() ? HURRIED_ROUNDS : ROUNDS,
        most = calibrate_hurries() ? rounds : MOST_ROUNDS;
    double alone[TIMES], any[TIMES], wide[ROUNDS];

    for (int i = 0; i < TIMES; i++)
        alone[i] = any[i] = INFINITY;
    for (int round = 0; round < most; round++)
        for (int i = 0; i < TIMES; i++) {
            double ns;

            if ((round >= rounds && !isinf(alone[i])) || !is_timed(t->dtype, (product_time)i))
                continue;
            ns = time_of(t, cores, (product_time)i);
            any[i] = fmin(any[i], ns);
            if (!calibrate_company_last())
                alone[i] = fmin(alone[i], ns);
            if (i == TIME_WIDE && round < rounds)
                wide[round] = ns;
        }
    for (int i = 0; i < TIMES; i++)
        alone[i] = isinf(alone[i]) ? any[i] : alone[i];
    settle(t, alone, machine);
    *spread = spread_of(wide, rounds);
    if (t->dtype == WEFT_F32) { /* of types that have no kernel of their own */
        machine->step_m = steps.mr;
        machine->step_n = steps.nr;
    }
    machine->type_step_m[t->dtype] = steps.mr;
    machine->type_step_n[t->dtype] = steps.nr;
    machine->type_step_k[t->dtype] = steps.k_step;
}

/* A line that a peer has read is asked back alike whatever is stored there: the type with the fastest
 * products tells it best, in others it is little beside the arithmetic. */
static void share_fastest(weft_machine *machine)
{
    int fastest = 0;

    for (int type = 1; type < WEFT_MACHINE_DTYPES; type++)
        if (machine->gflops[type] > machine->gflops[fastest])
            fastest = type;
    for (int type = 0; type < WEFT_MACHINE_DTYPES; type++)
        if (machine->shared_gbs[type] > 0)
            machine->shared_gbs[type] = machine->shared_gbs[fastest];
}

int calibrate_products(int cores, weft_machine *machine, calibrate_spread *spread)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I8};
    const int64_t most_m = 1024, most_k = 4096;
    const weft_core *core;
    weft_error_text error = {0};
    product_test t = {.cores = cores};
    int status = 0;

    if (weft_core_current(&core, &error) != WEFT_OK) {
        fprintf(stderr, "weft calibrate: %s\n", error.text);
        return 1;
    }
    t.a = calibrate_room((size_t)most_m * (size_t)most_k * 4);
    t.b = calibrate_room((size_t)STREAM_N * STREAM_K * 4);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]) && !status; i++) {
        t.dtype = types[i];
        t.bind = weft_core_binding(core, types[i], false);
        size_t packed = weft_packed_bytes(t.bind, STREAM_K, STREAM_N),
               work = weft_gemm_workspace_bytes(t.bind, most_m, STREAM_N, most_k, true);

        for (int rank = 0; rank < cores; rank++) {
            t.packed[rank] = calibrate_room(packed);
            t.d[rank] = calibrate_room((size_t)most_m * STREAM_N * 4);
            t.workspace[rank] = calibrate_room(work);
            t.acc[rank] = calibrate_room((size_t)most_m * STREAM_N * 4);
            status = status || !t.packed[rank] || !t.d[rank] || !t.workspace[rank] || !t.acc[rank];
        }
        if (!status && t.a && t.b)
            measure_type(&t, cores, machine, &spread->of[t.dtype]);
        for (int rank = 0; rank < cores; rank++) {
            free(t.packed[rank]);
            free(t.d[rank]);
            free(t.acc[rank]);
            free(t.workspace[rank]);
        }
        status = status || calibrate_few_rows(cores, t.bind, t.dtype, machine);
    }
    if (status || !t.a || !t.b)
        fprintf(stderr, "weft calibrate: no memory to time products on %d cores\n", cores);
    status = status || !t.a || !t.b;
    share_fastest(machine);
    free(t.a);
    free(t.b);
    return status;
}
