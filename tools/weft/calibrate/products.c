/*
 * Products, through the engine's tiles, on all cores at once. A wide and a narrow product of the same rows
 * tell arithmetic and the packing of A apart, a short one what a result costs, for each type it may have; the
 * same of few rows, from sums of the other core and to two places; one with a B that no cache holds; filling
 * a packed B; a product of one row; and sums of two ranks that leave as D is.
 *
 * Rates are differences of times, and a machine that is slower for a second would make nonsense of them: all
 * times are taken in turn, types too, in rounds, and of each counts the median of rounds in which cores were
 * their own. What no round has is tried further; where that fails, the least counts, as others who use the
 * machine can only add to it.
 */
#include "calibrate/calibrate.h"

#include "core/dtype.h"
#include "core/round.h"
#include "gemm/gemm.h"
#include "run/cpu/reduce.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Products that stay in a core's cache, of about a millisecond at most: a longer one would be cut by other
 * processes of the machine. */
enum {
    WIDE = 384,
    DEEP = 512,
    STREAM_K = 4096,
    STREAM_N = 1024,
    LARGE_BYTES = 4 << 20, /* of a B of many rows: twice what a core's own cache has */
    SHORTER = 8,
    CACHE_LINE = 64,
    ROUNDS = 5,
    MOST_ROUNDS = 20, /* of times that were never taken by cores of their own */
    HURRIED_ROUNDS = 2,
    HIDES_B = 8,
    SUM_ROWS = 40,    /* of sums that are finished: the blocks in which a REDUCE does it */
    SUMS_AT = 1 << 20 /* in the workspace, behind what such a tile needs of it */
};

static const double SECONDS = 0.04; /* of a time, in a round */

/* What is timed: first what a type's products take, then what becomes of their sums, by the type of D. */
typedef enum product_time {
    TIME_WIDE,
    TIME_NARROW,
    TIME_PANEL, /* as TIME_WIDE, of the rows of one micro-tile */
    TIME_LARGE_B,
    TIME_ROW,
    TIME_PACK,
    TIME_SUM,    /* sums of two ranks, as they are */
    TIME_SHORT,  /* from here on of each D */
    TIME_FEW,    /* as TIME_SHORT, of few rows */
    TIME_ACC,    /* as TIME_SHORT, from sums that the other core left */
    TIME_TWICE,  /* as TIME_SHORT, into rows of which the other core has the other half, and its rows too */
    TIME_OWN,    /* between TIME_SHORT and TIME_WIDE; */
    TIME_SHARED, /* the same, results in lines that the other core has read */
    TIME_FINISH, /* as TIME_SUM, but leaving as D is */
    TIMES
} product_time;

/* The types that D of a product may have: what the type gives unless asked otherwise, and itself. */
enum { RESULTS = 2 };

typedef struct product_test {
    const weft_binding *bind;
    int cores;
    weft_dtype dtype, d_dtype;
    int64_t m, n, k;
    char *acc[CALIBRATE_MOST_CORES]; /* sums of each rank's tile that another core wrote */
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
    if (t->time == TIME_TWICE) {
        int64_t half = rank % 2 * t->n * (int64_t)weft_dtype_size(t->d_dtype);

        tile.d_count = 2;
        tile.d[0] = t->d[rank] + half;
        tile.d[1] = t->d[(rank + 1) % t->cores] + half;
        tile.d_ld[0] = tile.d_ld[1] = 2 * t->n;
    }
    weft_gemm_run_tile(&tile, t->workspace[rank]);
}

/* Sums of two ranks, as a REDUCE does it: what only rounds in one pass, bytes and their sums by an epilogue.
 */
static void add(void *arg, int rank)
{
    product_test *t = arg;
    bool plain = t->time == TIME_SUM || t->dtype != WEFT_I8;
    weft_view sources[] = {{t->acc[rank], t->n}, {t->acc[(rank + 1) % t->cores], t->n}};
    weft_view into = {plain ? t->d[rank] : t->workspace[rank] + SUMS_AT, t->n};
    weft_dtype sums = weft_dtype_accumulator(t->dtype);
    weft_gemm_tile tile = weft_gemm_tile_init(t->bind, t->dtype);

    weft_reduce_rows(sums, WEFT_SUM, t->m, t->n, sources, 2, plain ? t->d_dtype : sums, &into, 1);
    if (plain)
        return;
    tile.m = t->m;
    tile.n = t->n;
    tile.acc = into.data;
    tile.acc_ld = t->n;
    tile.d_dtype = t->d_dtype;
    tile.d[0] = t->d[rank];
    tile.d_ld[0] = t->n;
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

/* Columns of a B of many rows that is large and yet no longer to multiply than need be. */
static int64_t large_cols(weft_dtype dtype)
{
    return LARGE_BYTES / STREAM_K / (int64_t)weft_dtype_size(dtype);
}

static double time_of(product_test *t, int cores, product_time time, weft_dtype d_dtype)
{
    weft_gemm_steps steps = weft_gemm_steps_of(t->bind);
    bool large = time == TIME_LARGE_B || time == TIME_ROW, adds = time == TIME_SUM || time == TIME_FINISH;
    bool whole = time == TIME_WIDE || time == TIME_NARROW || time == TIME_PANEL || time == TIME_PACK;
    bool middle = time == TIME_OWN || time == TIME_SHARED;
    calibrate_job job = {.arg = t,
                         .prepare = adds || time == TIME_PACK ? NULL : pack_first,
                         .work = adds                ? add
                                 : time == TIME_PACK ? pack
                                                     : multiply,
                         .workers = cores,
                         .seconds = SECONDS,
                         .quantile = 0.5};

    t->time = time;
    t->m = time == TIME_ROW     ? 1
           : time == TIME_PANEL ? steps.mr
           : time == TIME_FEW   ? few_rows(&steps)
           : adds               ? SUM_ROWS
                                : steps.m_tile;
    t->n = time == TIME_LARGE_B  ? large_cols(t->dtype)
           : time == TIME_ROW    ? STREAM_N
           : time == TIME_NARROW ? 2 * steps.nr
                                 : WIDE;
    t->k = large ? STREAM_K : whole ? deep(&steps) : deep(&steps) / (middle ? SHORTER / 2 : SHORTER);
    t->d_dtype = d_dtype;
    return calibrate_time(cores, &job);
}

/* Bytes per nanosecond that make `longer` of nanoseconds; noise can make the difference vanish, and nothing
 * is faster than `most`. */
static double rate_of(double bytes, double longer, double most)
{
    return bytes / fmax(longer, bytes / most);
}

/* The rates of a type from its times. */
static void settle(const product_test *t, const double *times, weft_machine *machine)
{
    weft_gemm_steps steps = weft_gemm_steps_of(t->bind);
    weft_dtype dtype = t->dtype;
    double m = steps.m_tile, k = (double)deep(&steps), narrow = 2.0 * steps.nr,
           element = (double)weft_dtype_size(dtype), large_n = (double)large_cols(dtype), in_cache;
    double column = (times[TIME_WIDE] - times[TIME_NARROW]) / (WIDE - narrow);
    double rows = times[TIME_NARROW] - narrow * column;
    /* What is left without k. */
    double finish = fmax(0, times[TIME_SHORT] - (times[TIME_WIDE] - times[TIME_SHORT]) / (SHORTER - 1));

    column -= finish / WIDE;
    machine->gflops[dtype] = 2 * m * k / column;
    machine->pack_a_gbs[dtype] = rate_of(m * k * element, rows, 32);
    in_cache = large_n * (column * STREAM_K / k + finish / WIDE) + fmax(0, rows) * STREAM_K / k;
    machine->panel_gbs[dtype] =
        rate_of(WIDE * k * element, times[TIME_PANEL] - steps.mr / m * (fmax(0, rows) + finish), 128);
    machine->pack_b_gbs[dtype] = WIDE * k * element / times[TIME_PACK];
    machine->stream_gbs[dtype] = (double)STREAM_N * STREAM_K * element / times[TIME_ROW];
    /* Where B comes many times faster than it is multiplied by, the arithmetic hides it. */
    if (large_n * STREAM_K * element / machine->stream_gbs[dtype] > in_cache / HIDES_B)
        machine->load_b_gbs[dtype] =
            rate_of(large_n * STREAM_K * element, times[TIME_LARGE_B] - in_cache, 128);
}

/* What it costs that sums become results of a type, from the times of that D; after the type's own rates. */
static void settle_results(const product_test *t, weft_dtype d_dtype, const double *times,
                           weft_machine *machine)
{
    weft_gemm_steps steps = weft_gemm_steps_of(t->bind);
    double m = steps.m_tile, k = (double)deep(&steps) / SHORTER, few = (double)few_rows(&steps);
    double result = (double)weft_dtype_size(d_dtype), elements = m * WIDE;
    double element = (double)weft_dtype_size(t->dtype),
           pass = WIDE * k * element / machine->panel_gbs[t->dtype];
    double row = 2 * WIDE * k / machine->gflops[t->dtype], lay = k * element / machine->pack_a_gbs[t->dtype];

    machine->finish_ns[d_dtype] = fmax(0.02, (times[TIME_SHORT] - m * (row + lay)) / elements);
    if (d_dtype != weft_dtype_accumulator(t->dtype))
        machine->epilogue_ns[d_dtype] =
            fmax(machine->finish_ns[d_dtype],
                 (times[TIME_FEW] - few * lay - fmax(few * row, pass)) / (few * WIDE));
    machine->sums_ns[d_dtype] = fmax(0.001, (times[TIME_FINISH] - times[TIME_SUM]) / (SUM_ROWS * WIDE));
    machine->acc_gbs[d_dtype] = rate_of(elements * 4, times[TIME_ACC] - times[TIME_SHORT], 128);
    machine->twice_gbs[d_dtype] = rate_of(elements * result, times[TIME_TWICE] - times[TIME_SHORT], 128);
    machine->shared_gbs[d_dtype] = rate_of(elements * result, times[TIME_SHARED] - times[TIME_OWN], 128);
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

/* A time over all rounds: what cores of their own took, and the least of all. */
typedef struct product_rounds {
    double alone[MOST_ROUNDS], any;
    int count;
} product_rounds;

/* Of one type, by its D. */
typedef struct product_times {
    product_rounds of[RESULTS][TIMES];
    double wide[ROUNDS];
} product_times;

/* One round of a type; `further`: only of what was never timed by cores of their own. */
static void measure_round(product_test *t, int cores, int round, bool further, product_times *times)
{
    weft_dtype results[RESULTS] = {weft_dtype_result(t->dtype), t->dtype};
    int kinds = results[1] == results[0] ? 1 : RESULTS;

    for (int i = 0; i < kinds * TIMES; i++) {
        product_rounds *taken = &times->of[i / TIMES][i % TIMES];
        product_time time = (product_time)(i % TIMES);
        double ns;

        if ((i >= TIMES && time < TIME_SHORT) || (further && taken->count))
            continue;
        ns =
            time_of(t, cores, time, time == TIME_SUM ? weft_dtype_accumulator(t->dtype) : results[i / TIMES]);
        taken->any = taken->any > 0 ? fmin(taken->any, ns) : ns;
        if (!calibrate_company_last())
            taken->alone[taken->count++] = ns;
        if (i == TIME_WIDE && !further)
            times->wide[round] = ns;
    }
}

/* The median of what cores of their own took: a run will meet what they meet. */
static double usual(product_rounds *taken)
{
    qsort(taken->alone, (size_t)taken->count, sizeof(double), compare);
    return taken->count ? taken->alone[taken->count / 2] : taken->any;
}

static void settle_type(const product_test *t, product_times *times, weft_machine *machine)
{
    weft_gemm_steps steps = weft_gemm_steps_of(t->bind);
    weft_dtype results[RESULTS] = {weft_dtype_result(t->dtype), t->dtype};

    double ns[TIMES];

    for (int kind = 0; kind < (results[1] == results[0] ? 1 : RESULTS); kind++) {
        for (int i = kind ? TIME_SHORT : 0; i < TIMES; i++)
            ns[i] = usual(&times->of[kind][i]);
        if (kind == 0)
            settle(t, ns, machine);
        settle_results(t, results[kind], ns, machine);
    }
    if (t->dtype == WEFT_F32) { /* of types that have no kernel of their own */
        machine->step_m = steps.mr;
        machine->step_n = steps.nr;
    }
    machine->type_step_m[t->dtype] = steps.mr;
    machine->type_step_n[t->dtype] = steps.nr;
    machine->type_step_k[t->dtype] = steps.k_step;
}

/* A line that a peer has read is asked back alike whatever is stored there: results of the type with the
 * fastest products tell it best, in others it is little beside the arithmetic. */
static void share_fastest(weft_machine *machine)
{
    int fastest = 0;
    double shared;

    for (int type = 1; type < WEFT_MACHINE_DTYPES; type++)
        if (machine->gflops[type] > machine->gflops[fastest])
            fastest = type;
    shared = machine->shared_gbs[weft_dtype_result((weft_dtype)fastest)];
    for (int type = 0; type < WEFT_MACHINE_DTYPES; type++)
        if (machine->shared_gbs[type] > 0)
            machine->shared_gbs[type] = shared;
}

static void *room(size_t bytes)
{
    void *memory = aligned_alloc(4096, weft_round_up_bytes(bytes, 4096));

    if (memory)
        memset(memory, 0, bytes);
    return memory;
}

static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I8};

enum { TYPES = sizeof(types) / sizeof(types[0]) };

/* Types take turns as well: a second in which others use the machine costs each of them a little. */
static void measure_types(product_test *t, const weft_core *core, int cores, weft_machine *machine,
                          calibrate_spread *spread)
{
    static product_times times[TYPES];
    int rounds = calibrate_hurries() ? HURRIED_ROUNDS : ROUNDS,
        most = calibrate_hurries() ? rounds : MOST_ROUNDS;

    memset(times, 0, sizeof(times));
    for (int round = 0; round < most; round++)
        for (int i = 0; i < TYPES; i++) {
            t->dtype = types[i];
            t->bind = weft_core_binding(core, types[i], false);
            measure_round(t, cores, round, round >= rounds, &times[i]);
        }
    for (int i = 0; i < TYPES; i++) {
        t->dtype = types[i];
        t->bind = weft_core_binding(core, types[i], false);
        settle_type(t, &times[i], machine);
        spread->of[types[i]] = spread_of(times[i].wide, rounds);
    }
    share_fastest(machine);
}

int calibrate_products(int cores, weft_machine *machine, calibrate_spread *spread)
{
    const int64_t most_m = 1024, most_k = 4096;
    size_t packed = 0, workspace = SUMS_AT + (size_t)SUM_ROWS * WIDE * 4;
    const weft_core *core;
    weft_error_text error = {0};
    product_test t = {.cores = cores};
    int status = 0;

    if (weft_core_current(&core, &error) != WEFT_OK) {
        fprintf(stderr, "weft calibrate: %s\n", error.text);
        return 1;
    }
    for (int i = 0; i < TYPES; i++) {
        const weft_binding *bind = weft_core_binding(core, types[i], false);
        size_t of_b = weft_packed_bytes(bind, STREAM_K, STREAM_N),
               of_tile = weft_gemm_workspace_bytes(bind, most_m, STREAM_N, most_k, true);

        packed = of_b > packed ? of_b : packed;
        workspace = of_tile > workspace ? of_tile : workspace;
    }
    t.a = room((size_t)most_m * (size_t)most_k * 4);
    t.b = room((size_t)STREAM_N * STREAM_K * 4);
    for (int rank = 0; rank < cores; rank++) {
        t.packed[rank] = room(packed);
        t.d[rank] = room((size_t)most_m * STREAM_N * 4);
        t.workspace[rank] = room(workspace);
        t.acc[rank] = room((size_t)most_m * STREAM_N * 4);
        status = status || !t.packed[rank] || !t.d[rank] || !t.workspace[rank] || !t.acc[rank];
    }
    if (status || !t.a || !t.b) {
        fprintf(stderr, "weft calibrate: no memory to time products on %d cores\n", cores);
        status = 1;
    } else {
        measure_types(&t, core, cores, machine, spread);
    }
    for (int rank = 0; rank < cores; rank++) {
        free(t.packed[rank]);
        free(t.d[rank]);
        free(t.acc[rank]);
        free(t.workspace[rank]);
    }
    free(t.a);
    free(t.b);
    return status;
}
