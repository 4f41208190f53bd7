/*
 * Products, through the engine's tiles, on all cores at once. A wide and a narrow product of the same rows
 * tell arithmetic and the packing of A apart, a short one what a result costs; filling a packed B and a
 * product of one row give the rest.
 *
 * Rates are differences of times, and a machine that is slower for a second would make nonsense of them: all
 * is measured in rounds, each of which has every time, and what counts is the median of each rate over them.
 */
#include "calibrate/calibrate.h"

#include "core/dtype.h"
#include "gemm/gemm.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Products of about a millisecond: a longer one would be cut by other processes of the machine. */
enum { WIDE = 384, STREAM_K = 4096, STREAM_N = 1024, SHORTER = 8, ROUNDS = 5 };

static const double SECONDS = 0.05; /* of a time, in a round */

typedef struct product_test {
    const weft_binding *bind;
    int cores;
    weft_dtype dtype, d_dtype;
    int64_t m, n, k;
    char *acc[CALIBRATE_MOST_CORES]; /* sums of each rank's tile that another core wrote; NULL = zeros */
    bool from_acc, twice;
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
    if (t->from_acc) { /* as plans hand them on */
        int order = weft_gemm_order(t->bind, t->m, t->k, false);

        tile.acc = t->acc[rank];
        tile.acc_ld = t->n;
        tile.acc_in_order = order > 0;
        tile.order = order > 0 ? order : 1;
    }
    if (t->twice) {
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

/* A rank's own memory, as if it had used it. */
static void touch_own(void *arg, int rank, int iteration)
{
    product_test *t = arg;

    (void)iteration;
    memset(t->acc[rank], 0, (size_t)(t->m * t->n) * 4);
}

static void pack(void *arg, int rank)
{
    product_test *t = arg;
    weft_packed *packed = weft_packed_begin(t->bind, t->k, t->n, t->packed[rank]);

    weft_packed_fill(t->bind, packed, t->b, t->dtype, t->n, 1, 0, t->k, 0, t->n);
}

static void pack_first(void *arg, int rank, int iteration)
{
    if (iteration == 0)
        pack(arg, rank);
}

static double time_of(product_test *t, int cores, int64_t m, int64_t n, int64_t k, void (*work)(void *, int))
{
    calibrate_job job = {.arg = t,
                         .prepare = work == multiply ? pack_first : NULL,
                         .work = work,
                         .workers = cores,
                         .seconds = SECONDS,
                         .quantile = 0.1};

    t->m = m;
    t->n = n;
    t->k = k;
    return calibrate_time(cores, &job);
}

/* What a product takes longer for with *flag set: `bytes` of sums or results, in bytes per nanosecond. */
static double longer_rate(product_test *t, int cores, bool *flag, void (*prepare)(void *, int, int),
                          double bytes)
{
    calibrate_job job = {.arg = t,
                         .prepare = prepare,
                         .work = multiply,
                         .workers = cores,
                         .seconds = SECONDS,
                         .quantile = 0.25};
    double without = calibrate_time(cores, &job), with;

    *flag = true;
    with = calibrate_time(cores, &job);
    *flag = false;
    return bytes / fmax(with - without, bytes / 128);
}

/* Short products of as many columns as show it: from sums that the other core left, and with results that the
 * other core gets too. */
static void measure_handing_on(product_test *t, int cores, int64_t m, int64_t k, weft_machine *machine)
{
    double elements = (double)m * STREAM_N;

    time_of(t, cores, m, STREAM_N, k, pack); /* for this k and n */
    machine->acc_gbs[t->dtype] = longer_rate(t, cores, &t->from_acc, leave_sums, elements * 4);
    machine->twice_gbs[t->dtype] =
        longer_rate(t, cores, &t->twice, touch_own, elements * (double)weft_dtype_size(t->d_dtype));
}

static void measure_round(product_test *t, int cores, weft_machine *machine)
{
    weft_gemm_steps steps = weft_gemm_steps_of(t->bind);
    int64_t m = steps.m_tile, k = steps.k_tile, few = 2 * (int64_t)steps.nr; /* whole micro-tiles */
    double element = (double)weft_dtype_size(t->dtype), a_bytes = (double)(m * k) * element;
    double wide = time_of(t, cores, m, WIDE, k, multiply), narrow = time_of(t, cores, m, few, k, multiply);
    double column = (wide - narrow) / (double)(WIDE - few), rows = narrow - (double)few * column;
    double shorter = time_of(t, cores, m, WIDE, k / SHORTER, multiply);
    double finish = shorter - (wide - shorter) / (SHORTER - 1); /* what is left without k */
    double row = time_of(t, cores, 1, STREAM_N, STREAM_K, multiply);

    machine->finish_ns[t->d_dtype] = fmax(0.02, finish / (double)(m * WIDE));
    if (t->d_dtype != t->dtype) { /* int8, summed in int32: what rounding back to int8 adds */
        t->d_dtype = t->dtype;
        machine->finish_ns[t->dtype] =
            machine->finish_ns[WEFT_I32] +
            fmax(0, time_of(t, cores, m, WIDE, k / SHORTER, multiply) - shorter) / (double)(m * WIDE);
    }
    column -= finish / WIDE;
    machine->gflops[t->dtype] = 2.0 * (double)(m * k) / column;
    /* Noise can make the difference vanish; packing is never faster than copying in a cache. */
    machine->pack_a_gbs[t->dtype] = a_bytes / (rows > a_bytes / 32 ? rows : a_bytes / 32);
    machine->pack_b_gbs[t->dtype] = (double)(WIDE * k) * element / time_of(t, cores, m, WIDE, k, pack);
    machine->stream_gbs[t->dtype] = (double)STREAM_N * STREAM_K * element / row;
    measure_handing_on(t, cores, m, k / SHORTER, machine);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median of the rounds; how far the middle ones are apart, as a share of it. */
static double settle(double *values, double *spread)
{
    qsort(values, ROUNDS, sizeof(double), compare);
    *spread =
        values[ROUNDS / 2] > 0 ? (values[ROUNDS / 2 + 1] - values[ROUNDS / 2 - 1]) / values[ROUNDS / 2] : 0;
    return values[ROUNDS / 2];
}

static void measure_type(product_test *t, int cores, weft_machine *machine, double *spread)
{
    static const size_t rates[] = {offsetof(weft_machine, gflops),     offsetof(weft_machine, pack_a_gbs),
                                   offsetof(weft_machine, pack_b_gbs), offsetof(weft_machine, acc_gbs),
                                   offsetof(weft_machine, twice_gbs),  offsetof(weft_machine, stream_gbs),
                                   offsetof(weft_machine, finish_ns)};
    weft_gemm_steps steps = weft_gemm_steps_of(t->bind);
    weft_dtype sums = t->d_dtype;
    weft_machine rounds[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        rounds[i] = (weft_machine){0};
        t->d_dtype = sums;
        measure_round(t, cores, &rounds[i]);
    }
    for (size_t r = 0; r < sizeof(rates) / sizeof(rates[0]); r++)
        for (int type = 0; type < WEFT_MACHINE_DTYPES; type++) {
            size_t at = rates[r] + (size_t)type * sizeof(double);
            double values[ROUNDS], apart, median;

            for (int i = 0; i < ROUNDS; i++)
                memcpy(&values[i], (const char *)&rounds[i] + at, sizeof(double));
            median = settle(values, &apart);
            if (median > 0)
                memcpy((char *)machine + at, &median, sizeof(double));
            if (r == 0 && median > 0)
                *spread = apart;
        }
    if (t->dtype == WEFT_F32) { /* of types that have no kernel of their own */
        machine->step_m = steps.mr;
        machine->step_n = steps.nr;
    }
    machine->type_step_m[t->dtype] = steps.mr;
    machine->type_step_n[t->dtype] = steps.nr;
    machine->type_step_k[t->dtype] = steps.k_step;
}

static void *room(size_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

    if (memory)
        memset(memory, 0, bytes);
    return memory;
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
    t.a = room((size_t)most_m * (size_t)most_k * 4);
    t.b = room((size_t)STREAM_N * STREAM_K * 4);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]) && !status; i++) {
        t.dtype = types[i];
        t.d_dtype = types[i] == WEFT_I8 ? WEFT_I32 : types[i];
        t.bind = weft_core_binding(core, types[i], false);
        for (int rank = 0; rank < cores; rank++) {
            t.packed[rank] = room(weft_packed_bytes(t.bind, STREAM_K, STREAM_N));
            t.d[rank] = room((size_t)most_m * STREAM_N * 4);
            t.workspace[rank] = room(weft_gemm_workspace_bytes(t.bind, most_m, STREAM_N, most_k, true));
            t.acc[rank] = room((size_t)most_m * STREAM_N * 4);
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
    }
    if (status || !t.a || !t.b)
        fprintf(stderr, "weft calibrate: no memory to time products on %d cores\n", cores);
    status = status || !t.a || !t.b;
    free(t.a);
    free(t.b);
    return status;
}
