/* Copying and adding, by how much data is handled: bytes that lie in this core's cache, another's, memory. */
#include "calibrate/calibrate.h"

#include "core/dtype.h"
#include "core/part.h"
#include "run/cpu/reduce.h"

#include <math.h>
#include <string.h>

static const int64_t sizes[] = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), MOST_BATCH = 32, BATCH_BYTES = 64 << 10 };

enum { ROUNDS = 3, PART_ROWS = 256, PART_BYTES = 1024, ROUNDED_BYTES = 256 << 10, ROW_COLS = 49 };

/* Beyond it a repetition takes so long that one round has to do. */
static const int64_t LONG_BYTES = 4 << 20;

static const double SECONDS = 0.015; /* of a rate, in a round */

typedef enum movement {
    COPY_OWN,
    COPY_PULL,
    COPY_PUSH,
    COPY_PARTS,
    REDUCE_SLICE,
    REDUCE_PUSH,
    REDUCE_ROWS,
    REDUCE_SHARED
} movement;

/* Each rank's buffers: `batch` sources and results of `bytes` bytes, so that a short copy can be timed. */
typedef struct memory_test {
    movement movement;
    weft_dtype dtype, to_dtype;
    int64_t bytes;
    int batch, cores;
    weft_group *groups[CALIBRATE_MOST_CORES];
    void *from[CALIBRATE_MOST_CORES], *to[CALIBRATE_MOST_CORES];
    weft_status status[CALIBRATE_MOST_CORES];
} memory_test;

static void fill(void *arg, int rank, int iteration)
{
    memory_test *t = arg;
    size_t all = (size_t)t->batch * (size_t)t->bytes;

    memset(t->from[rank], iteration & 1, all);
    memset(t->to[rank], 0x55, all);
}

/* As many as a rank adds up of its share. */
static int64_t rows_of_sums(const memory_test *t)
{
    return t->bytes / 4 / t->cores / ROW_COLS;
}

static weft_view view(void *base, int64_t at, int64_t elements)
{
    return (weft_view){(char *)base + at, elements};
}

/* Rows of two parts, each rank's own and one that it copies from the peer. */
static void fill_part(void *arg, int rank, int iteration)
{
    memory_test *t = arg;

    for (int64_t row = 0; row < PART_ROWS; row++)
        memset((char *)t->to[rank] + (2 * row + rank % 2) * PART_BYTES, iteration & 1, PART_BYTES);
}

static void move_parts(void *arg, int rank)
{
    memory_test *t = arg;
    int64_t at = (rank + 1) % 2 * PART_BYTES;
    int peer = t->cores > 1 ? rank ^ 1 : rank;

    if (peer < t->cores)
        weft_copy(1, PART_ROWS, PART_BYTES, view(t->to[rank], at, 2 * PART_BYTES),
                  view(t->to[peer], at, 2 * PART_BYTES));
}

/* Sums of two ranks row by row. */
static void add_rows(void *arg, int rank)
{
    memory_test *t = arg;
    weft_view sources[2] = {view(t->from[rank], 0, ROW_COLS),
                            view(t->from[(rank + 1) % t->cores], 0, ROW_COLS)},
              result = view(t->to[rank], 0, ROW_COLS);

    weft_reduce_rows(t->dtype, WEFT_SUM, rows_of_sums(t), ROW_COLS, sources, 2, t->to_dtype, &result, 1);
}

static void move(void *arg, int rank)
{
    memory_test *t = arg;
    int peer = (rank + 1) % t->cores;
    size_t element = weft_dtype_size(t->dtype);
    int64_t elements = t->bytes / (int64_t)element;

    for (int i = 0; i < t->batch; i++) {
        int64_t at = i * t->bytes;
        weft_view sources[2] = {view(t->from[rank], at, elements), view(t->from[peer], at, elements)};
        weft_view result = view(t->to[t->movement == COPY_PUSH ? peer : rank], at, elements);

        if (t->movement == REDUCE_SHARED) {
            weft_reduce_rows(t->dtype, WEFT_SUM, 1, elements, sources, 2, t->dtype, &result, 1);
        } else if (t->movement == REDUCE_SLICE || t->movement == REDUCE_PUSH) {
            weft_span slice = weft_part(elements, t->cores, rank);
            weft_view results[2] = {result, view(t->to[peer], at, elements)};

            for (int s = 0; s < 2; s++)
                sources[s].data += (size_t)slice.begin * element;
            for (int d = 0; d < 2; d++)
                results[d].data += (size_t)slice.begin * element;
            weft_reduce_rows(t->dtype, WEFT_SUM, 1, slice.count, sources, 2, t->to_dtype, results,
                             t->movement == REDUCE_PUSH ? 2 : 1);
        } else {
            weft_copy(element, 1, elements, result, sources[t->movement == COPY_PULL]);
        }
    }
}

static double rate(memory_test *t, int workers)
{
    bool parts = t->movement == COPY_PARTS, by_rows = t->movement == REDUCE_ROWS;
    calibrate_job job = {.arg = t,
                         .prepare = parts ? fill_part : fill,
                         .work = parts     ? move_parts
                                 : by_rows ? add_rows
                                           : move,
                         .workers = workers,
                         .seconds = SECONDS,
                         .quantile = 0.5};
    double bytes = (double)t->batch * (double)t->bytes;

    if (t->movement == REDUCE_SHARED)
        bytes *= 2;
    if (t->movement == REDUCE_SLICE || t->movement == REDUCE_PUSH || by_rows)
        bytes *= 2.0 / t->cores;

    return bytes / calibrate_time(t->cores, &job);
}

/* Keeps the best of all rounds: others who use the machine can only slow it down. */
static void measure_curve(memory_test *t, movement how, int round, weft_curve *curve)
{
    t->movement = how;
    for (int i = 0; i < SIZES && (round == 0 || sizes[i] <= LONG_BYTES); i++) {
        t->bytes = sizes[i];
        t->batch = sizes[i] < BATCH_BYTES ? (int)(BATCH_BYTES / sizes[i]) : 1;
        curve->bytes[i] = (double)sizes[i];
        curve->alone[i] = fmax(curve->alone[i], rate(t, 1));
        curve->all[i] = t->cores > 1 ? fmax(curve->all[i], rate(t, t->cores)) : curve->alone[i];
    }
    curve->count = SIZES;
}

/* What of a curve of sums to two places is due to the second: half as many bytes as the sources have. */
static double further_gbs(double two, double one)
{
    const double most = 128;
    double longer = 1 / two - 1 / one; /* of a byte of the sources */

    return 0.5 / fmax(longer, 0.5 / most);
}

static void settle_push(weft_machine *machine, weft_curve two)
{
    const weft_curve *one = &machine->reduce[WEFT_F32];

    for (int i = 0; i < two.count; i++) {
        two.alone[i] = further_gbs(two.alone[i], one->alone[i]);
        two.all[i] = further_gbs(two.all[i], one->all[i]);
    }
    machine->reduce_push = two;
}

/* What adding up two of float32 and rounding the sum takes, of each, in one row and in short ones: the least
 * of all rounds. */
static void measure_rounding(memory_test *t, int round, double least_ns[2][WEFT_MACHINE_DTYPES])
{
    double sums = ROUNDED_BYTES / 4.0, bytes = 2.0 * ROUNDED_BYTES;

    t->movement = REDUCE_SLICE;
    t->dtype = WEFT_F32;
    t->bytes = ROUNDED_BYTES;
    t->batch = 1;
    for (int to = WEFT_F32; to <= WEFT_BF16; to++)
        for (int by_rows = 0; by_rows < 2; by_rows++) {
            double ns;

            t->movement = by_rows ? REDUCE_ROWS : REDUCE_SLICE;
            t->to_dtype = (weft_dtype)to;
            ns = bytes / rate(t, t->cores) / sums;
            least_ns[by_rows][to] = round == 0 ? ns : fmin(least_ns[by_rows][to], ns);
        }
}

/* What of it is due to the rounding. A difference of each round's would be least where the other was slowed.
 */
static void settle_rounding(weft_machine *machine, const double least_ns[2][WEFT_MACHINE_DTYPES])
{
    for (int to = WEFT_F16; to <= WEFT_BF16; to++)
        machine->round_ns[to] = fmax(0.001, least_ns[0][to] - least_ns[0][WEFT_F32]);
    for (int to = WEFT_F32; to <= WEFT_BF16; to++)
        machine->row_ns[to] = fmax(0.001, ROW_COLS * (least_ns[1][to] - least_ns[0][to]));
}

static void measure_round(memory_test *t, int round, weft_machine *machine, weft_curve *two,
                          double rounded_ns[2][WEFT_MACHINE_DTYPES])
{
    static const weft_dtype reduced[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I32, WEFT_I64};

    t->dtype = WEFT_F32;
    measure_curve(t, COPY_OWN, round, &machine->copy_own);
    measure_curve(t, COPY_PULL, round, &machine->copy_pull);
    measure_curve(t, COPY_PUSH, round, &machine->copy_push);
    measure_curve(t, REDUCE_SHARED, round, &machine->reduce_shared);
    for (size_t i = 0; i < sizeof(reduced) / sizeof(reduced[0]); i++) {
        t->dtype = t->to_dtype = reduced[i];
        measure_curve(t, REDUCE_SLICE, round, &machine->reduce[reduced[i]]);
        if (reduced[i] == WEFT_F32)
            measure_curve(t, REDUCE_PUSH, round, two);
    }
    measure_rounding(t, round, rounded_ns);
    t->movement = COPY_PARTS;
    t->bytes = PART_BYTES;
    t->batch = PART_ROWS;
    if (t->cores > 1)
        machine->parts_gbs = fmax(machine->parts_gbs, rate(t, t->cores));
}

/* Symmetric memory, as runs use it; every rank's own thread asks for its part. */
static void allocate(void *arg, int rank)
{
    memory_test *t = arg;
    size_t bytes = (size_t)sizes[SIZES - 1];

    if (t->from[rank])
        return;
    t->status[rank] = weft_alloc(t->groups[rank], bytes, 4096, &t->from[rank]);
    if (!t->status[rank])
        t->status[rank] = weft_alloc(t->groups[rank], bytes, 4096, &t->to[rank]);
}

/* NULL, or why there is none. */
static const char *open_memory(memory_test *t)
{
    calibrate_job job = {.arg = t, .work = allocate, .workers = t->cores};

    if (weft_group_threads(t->cores, t->groups) != WEFT_OK)
        return weft_error(NULL);
    calibrate_time(t->cores, &job);
    for (int rank = 0; rank < t->cores; rank++)
        if (t->status[rank])
            return weft_error(t->groups[rank]);
    return NULL;
}

int calibrate_memory(int cores, weft_machine *machine)
{
    memory_test t = {.cores = cores};
    weft_curve two = {0};
    double rounded_ns[2][WEFT_MACHINE_DTYPES] = {0};
    const char *fault = open_memory(&t);

    if (fault) {
        fprintf(stderr, "weft calibrate: no memory for the buffers of %d cores: %s\n", cores, fault);
        return 1;
    }
    for (int round = 0; round < (calibrate_hurries() ? 1 : ROUNDS); round++)
        measure_round(&t, round, machine, &two, rounded_ns);
    settle_push(machine, two);
    settle_rounding(machine, rounded_ns);
    /* Read and write of a copy that no cache holds, by all cores. */
    machine->memory_gbs = 2 * cores * machine->copy_own.all[SIZES - 1];
    for (int rank = 0; rank < cores; rank++)
        weft_group_free(t.groups[rank]);
    return 0;
}
