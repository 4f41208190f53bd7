/*
 * Products of few rows, by how many they are and by where B is: in a core's cache, in one that cores share,
 * in memory; with a B as it lies and with a packed one. Two widths and two lengths of k tell what each
 * element of B takes from what each of k takes, as of laying out A, and from results. Every core has a B of
 * its own.
 */
#include "calibrate/calibrate.h"

#include "core/dtype.h"
#include "core/round.h"
#include "gemm/cost.h"

#include <math.h>
#include <stdlib.h>

enum {
    NEAR_COLS = 256,
    NARROW_PANELS = 2,
    SHORTER = 8,
    STORE_K = 16,
    STORE_SLACK = 1 << 20, /* of columns that are rounded up */
    MOST_GBS = 128,
    ROUNDS = 3,
    PLACE_ROWS = 4, /* of a B that is read as it lies, whatever the kernel */
    FAR = 3,
    MOST_ROWS = 8,
    USUAL_CACHE = 1 << 20 /* where nobody says what a core's own is */
};

static const int64_t MOST_BYTES = 4000000000;        /* of all cores' B */
static const double SECONDS = 0.01, LEAST_NS = 1e-4; /* of a time, in a round */

/* Columns that are not a power of two: lines of B share no sets of caches. */
static const int64_t far_cols[FAR] = {1040, 2080, 4160};

typedef struct few_test {
    const weft_binding *bind;
    weft_gemm_steps steps;
    int cores, workers;
    int64_t near_bytes, far_bytes[FAR]; /* of a core's B, as it lies or packed */
    weft_dtype dtype;
    bool packs;
    int64_t m, n, k;
    char *a, *b[CALIBRATE_MOST_CORES], *packed[CALIBRATE_MOST_CORES], *d[CALIBRATE_MOST_CORES],
        *workspace[CALIBRATE_MOST_CORES];
} few_test;

static void pack_first(void *arg, int rank, int iteration)
{
    few_test *t = arg;

    if (t->packs && iteration == 0)
        weft_packed_fill(t->bind, weft_packed_begin(t->bind, t->k, t->n, t->packed[rank]), t->b[rank],
                         t->dtype, t->n, 1, 0, t->k, 0, t->n);
}

static void multiply(void *arg, int rank)
{
    few_test *t = arg;
    weft_gemm_tile tile = weft_gemm_tile_init(t->bind, t->dtype);

    tile.m = t->m;
    tile.n = t->n;
    tile.k = t->k;
    tile.a = t->a;
    tile.a_rs = t->k;
    tile.b = t->b[rank];
    tile.b_rs = t->n;
    if (t->packs)
        tile.packed_b = (const weft_packed *)(const void *)t->packed[rank];
    tile.d[0] = t->d[rank];
    tile.d_ld[0] = t->n;
    weft_gemm_run_tile(&tile, t->workspace[rank]);
}

static double time_of(few_test *t, int64_t n, int64_t k)
{
    calibrate_job job = {
        .arg = t, .prepare = pack_first, .work = multiply, .workers = t->workers, .seconds = SECONDS};

    t->n = n;
    t->k = k;
    return calibrate_time(t->cores, &job);
}

/* The least of them counts: others can only add to a time. */
static int rounds_now(void)
{
    return calibrate_hurries() ? 1 : ROUNDS;
}

static int64_t most_rows(const weft_gemm_steps *steps)
{
    return weft_round_up(weft_max(steps->m_tile / 2, WEFT_GEMM_STREAM_ROWS + 1), steps->mr);
}

/* Of whole panels; the k that makes so many bytes with so many columns. */
static int64_t cols_of(const few_test *t, int64_t cols)
{
    return weft_round_up(cols, t->steps.nr);
}

static int64_t k_of(const few_test *t, int64_t bytes, int64_t cols)
{
    return weft_round_up(bytes / cols / (int64_t)weft_dtype_size(t->dtype), SHORTER * t->steps.k_step);
}

/* What is timed of so many rows. */
enum { WIDE, WIDE_SHORT, NARROW, NARROW_SHORT, FIRST_FAR, TIMES = FIRST_FAR + FAR };

/* The least of all rounds: others can only add to it. */
static void measure_rows(few_test *t, double *least)
{
    int64_t wide = cols_of(t, NEAR_COLS), narrow = NARROW_PANELS * t->steps.nr,
            k = k_of(t, t->near_bytes, wide);

    least[WIDE] = fmin(least[WIDE], time_of(t, wide, k));
    least[WIDE_SHORT] = fmin(least[WIDE_SHORT], time_of(t, wide, k / SHORTER));
    least[NARROW] = fmin(least[NARROW], time_of(t, narrow, k));
    least[NARROW_SHORT] = fmin(least[NARROW_SHORT], time_of(t, narrow, k / SHORTER));
    for (int i = 0; i < FAR; i++) {
        int64_t cols = cols_of(t, far_cols[i]);

        least[FIRST_FAR + i] = fmin(least[FIRST_FAR + i], time_of(t, cols, k_of(t, t->far_bytes[i], cols)));
    }
}

/* That is: of each of k, then of each element of B, near and far. */
static void settle(const few_test *t, const weft_machine *machine, int64_t rows, const double *times,
                   double ns[2 + FAR], double *column_ns)
{
    int64_t wide = cols_of(t, NEAR_COLS), narrow = NARROW_PANELS * t->steps.nr,
            k = k_of(t, t->near_bytes, wide);
    double of_k = SHORTER / (SHORTER - 1.0) / (double)k; /* of what a long k takes longer */
    double whole = of_k * (times[WIDE] - times[WIDE_SHORT]),
           part = of_k * (times[NARROW] - times[NARROW_SHORT]);
    /* What no k makes: of results, and of starting. */
    double rest = times[WIDE] - (double)k * whole, narrow_rest = times[NARROW] - (double)k * part;

    ns[1] = fmax(LEAST_NS, (whole - part) / (double)(wide - narrow));
    ns[0] = fmax(LEAST_NS, whole - (double)wide * ns[1]);
    *column_ns = fmax(LEAST_NS, (rest - narrow_rest) / (double)(wide - narrow));
    for (int i = 0; i < FAR; i++) {
        int64_t cols = cols_of(t, far_cols[i]), deep = k_of(t, t->far_bytes[i], cols);
        double d_bytes = (double)(rows * cols) * (double)weft_dtype_size(weft_dtype_result(t->dtype));
        double store = d_bytes / weft_curve_rate(&machine->copy_own, d_bytes, t->cores > 1);
        double of_b = times[FIRST_FAR + i] - (double)deep * ns[0] - fmax((double)cols * *column_ns, store);

        ns[2 + i] = fmax(ns[1], of_b / (double)(cols * deep));
    }
}

/* Those that kernels for B as it lies are for, then micro-tiles; at last as many as tell what more take. */
static int rows_of(const weft_gemm_steps *steps, int64_t *rows)
{
    int64_t first = (WEFT_GEMM_PLACE_ROWS / steps->mr + 1) * steps->mr,
            last = WEFT_GEMM_STREAM_ROWS / steps->mr * steps->mr, many = most_rows(steps);
    int count = 0;

    for (int64_t few = 1; few <= WEFT_GEMM_PLACE_ROWS; few *= 2)
        rows[count++] = few;
    for (int64_t some = first; some < last && count < MOST_ROWS - 2; some *= 2)
        rows[count++] = some;
    rows[count++] = last;
    rows[count++] = many;
    return count;
}

/* What each of k takes longer where columns end within a micro-tile than at the end of the same. */
static double edge_ns(few_test *t, int64_t rows)
{
    int64_t cols = cols_of(t, NEAR_COLS), k = k_of(t, t->near_bytes, cols);
    double whole = INFINITY, ragged = INFINITY;

    t->packs = false;
    t->m = rows;
    for (int round = 0; round < rounds_now(); round++) {
        whole = fmin(whole, time_of(t, cols, k));
        ragged = fmin(ragged, time_of(t, cols - t->steps.nr / 2 - 1, k));
    }
    return fmax(LEAST_NS, (ragged - whole) / (double)k);
}

static void measure(few_test *t, weft_machine *machine)
{
    weft_few_rows *few = &machine->few[t->dtype], *results = &machine->few_results[t->dtype];
    int rounds = rounds_now(), count;
    double times[2][MOST_ROWS][TIMES];
    int64_t rows[MOST_ROWS];

    count = rows_of(&t->steps, rows);
    for (int i = 0; i < 2 * count; i++)
        for (int j = 0; j < TIMES; j++)
            times[i % 2][i / 2][j] = INFINITY;
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < 2 * count; i++) {
            t->packs = i % 2;
            t->m = rows[i / 2];
            measure_rows(t, times[i % 2][i / 2]);
        }
    few->count = count * (2 + FAR);
    for (int i = 0; i < few->count; i++) { /* half of a cache holds what a quarter does */
        int at = i % (2 + FAR);
        int64_t row = rows[i / (2 + FAR)];

        few->rows[i] = (double)row;
        few->bytes[i] = at == 0 ? 0 : at == 1 ? 2 * (double)t->near_bytes : (double)t->far_bytes[at - 2];
    }
    results->count = count;
    for (int i = 0; i < count; i++) {
        results->rows[i] = (double)rows[i];
        settle(t, machine, rows[i], times[0][i], few->plain_ns + i * (2 + FAR), &results->plain_ns[i]);
        settle(t, machine, rows[i], times[1][i], few->packed_ns + i * (2 + FAR), &results->packed_ns[i]);
    }
}

/* Stores of products so short that they decide: what these take beyond their arithmetic. */
static double store_gbs(few_test *t, const weft_machine *machine, int64_t bytes, int workers)
{
    const weft_few_rows *few = &machine->few[WEFT_F32];
    int64_t cols = cols_of(t, bytes / 4 / t->m), k = weft_round_up(STORE_K, t->steps.k_step);
    double ns = INFINITY, arithmetic, stored = (double)(t->m * cols) * 4;

    t->workers = workers;
    for (int round = 0; round < rounds_now(); round++)
        ns = fmin(ns, time_of(t, cols, k));
    t->workers = t->cores;
    arithmetic = (double)k * (weft_few_rows_ns(few, t->m, t->steps.mr, 0, true) +
                              (double)cols * weft_few_rows_ns(few, t->m, t->steps.mr, 1, true));
    return stored / fmax(ns - arithmetic, stored / MOST_GBS);
}

static void measure_store(few_test *t, weft_machine *machine)
{
    t->packs = true;
    t->m = most_rows(&t->steps);
    for (int i = 0; i <= FAR; i++) {
        int64_t bytes = i ? t->far_bytes[i - 1] : t->near_bytes;
        double before = i ? machine->store.alone[i - 1] : MOST_GBS, all;

        machine->store.bytes[i] = (double)bytes;
        machine->store.alone[i] = fmin(before, store_gbs(t, machine, bytes, 1));
        all = t->cores > 1 ? store_gbs(t, machine, bytes, t->cores) : machine->store.alone[i];
        machine->store.all[i] = fmin(i ? machine->store.all[i - 1] : MOST_GBS, all);
    }
    machine->store.count = 1 + FAR;
}

/* What the largest B needs, and the longest k. */
static bool open_rank(few_test *t, int rank)
{
    size_t b = 0, packed = 0, work = 0;

    for (int i = 0; i < FAR; i++) {
        int64_t cols = cols_of(t, far_cols[i]), k = k_of(t, t->far_bytes[i], cols);

        b = weft_max_bytes(b, (size_t)(cols * k) * weft_dtype_size(t->dtype));
        packed = weft_max_bytes(packed, weft_packed_bytes(t->bind, k, cols));
        work = weft_max_bytes(work, weft_gemm_workspace_bytes(t->bind, most_rows(&t->steps), cols, k, false));
    }
    t->b[rank] = calibrate_room(b);
    t->packed[rank] = calibrate_room(packed);
    t->workspace[rank] = calibrate_room(work);
    t->d[rank] =
        calibrate_room(weft_max_bytes((size_t)(most_rows(&t->steps) * cols_of(t, far_cols[FAR - 1])) * 4,
                                      (size_t)(t->far_bytes[FAR - 1] + STORE_SLACK)));
    return t->b[rank] && t->packed[rank] && t->workspace[rank] && t->d[rank];
}

int calibrate_few_rows(int cores, const weft_binding *bind, weft_dtype dtype, weft_machine *machine)
{
    few_test t = {
        .bind = bind, .steps = weft_gemm_steps_of(bind), .cores = cores, .workers = cores, .dtype = dtype};
    int64_t cache = machine->cache_bytes > 0 ? (int64_t)machine->cache_bytes : USUAL_CACHE, longest = 0;
    int64_t most = MOST_BYTES / 2 / cores;
    bool opened;

    t.near_bytes = cache / 4;
    t.far_bytes[0] = weft_min(3 * cache / 2, most / 4); /* what passes it */
    t.far_bytes[1] = weft_min(weft_max(8 << 20, 2 * t.far_bytes[0]), most / 2);
    t.far_bytes[2] = weft_min(weft_max(32 << 20, 2 * t.far_bytes[1]), most);

    for (int i = 0; i < FAR; i++)
        longest = weft_max(longest, k_of(&t, t.far_bytes[i], cols_of(&t, far_cols[i])));
    longest = weft_max(longest, k_of(&t, t.near_bytes, cols_of(&t, NEAR_COLS)));
    t.a = calibrate_room((size_t)(most_rows(&t.steps) * longest) * 4);
    opened = t.a != NULL;
    for (int rank = 0; rank < cores && opened; rank++)
        opened = open_rank(&t, rank);
    if (opened) {
        measure(&t, machine);
        if (dtype == WEFT_F32)
            measure_store(&t, machine);
        machine->edge_ns[dtype] = edge_ns(&t, WEFT_GEMM_STREAM_ROWS);
        machine->edge_place_ns[dtype] = edge_ns(&t, PLACE_ROWS);
    } else
        fprintf(stderr, "weft calibrate: no memory to time products of few rows on %d cores\n", cores);
    for (int rank = 0; rank < cores; rank++) {
        free(t.b[rank]);
        free(t.packed[rank]);
        free(t.workspace[rank]);
        free(t.d[rank]);
    }
    free(t.a);
    return opened ? 0 : 1;
}
