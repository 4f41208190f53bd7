/*
 * What it costs a product to leave results with another core, or to start from what another core left: this
 * build's micro-kernels over panels that stay in L1, on two pinned threads at once, with nothing else of the
 * engine around them.
 *
 *     peer_lines [f32|bf16 [K]]
 *
 * The memory is shared pages of the system's ordinary size, as symmetric memory of processes. Before each
 * run every thread writes its own D, and the sums that its peer will start from. D has a half of its columns
 * for the results of each core. "rows": micro-tiles of rows 1024 (sums) or 2048 (results) columns apart; "in
 * order": one after another, as the kernel has them in registers. "asked for": with prefetches, one or two
 * micro-tiles ahead (sums in rows: one row of them).
 */
#include "calibrate.h"

#include "core/dtype.h"
#include "gemm/gemm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ROWS = 512, COLS = 1024, CORES = 2, GROUP = 16, LINE = 64 };

static const double SECONDS = 0.5;

typedef struct variant {
    const char *name;
    bool keeps;         /* bare sums in order, instead of rows of results */
    bool own, peer;     /* where results go */
    bool rows, ordered; /* what the product starts from */
    bool ahead;
} variant;

static const variant variants[] = {
    {.name = "results in rows, own", .own = true},
    {.name = "results in rows, the peer's", .peer = true},
    {.name = "results in rows, both", .own = true, .peer = true},
    {.name = "results in rows, both, asked for", .own = true, .peer = true, .ahead = true},
    {.name = "sums in order, own", .keeps = true, .own = true},
    {.name = "sums in order, the peer's", .keeps = true, .peer = true},
    {.name = "sums in order, the peer's, asked for", .keeps = true, .peer = true, .ahead = true},
    {.name = "from the peer's sums in rows", .own = true, .rows = true},
    {.name = "from the peer's sums in rows, asked for", .own = true, .rows = true, .ahead = true},
    {.name = "from the peer's sums in order", .own = true, .ordered = true},
    {.name = "from the peer's sums in order, asked for", .own = true, .ordered = true, .ahead = true},
};

typedef struct test {
    const weft_kernel *kernel;
    const variant *how;
    int64_t k, panels; /* whole ones in COLS */
    size_t d_bytes;    /* of an element */
    char *a[CORES], *b[CORES], *d[CORES], *sums[CORES];
} test;

static void prepare(void *arg, int rank, int iteration)
{
    test *t = arg;

    memset(t->d[rank], iteration, CORES * ROWS * COLS * t->d_bytes);
    memset(t->sums[1 - rank], 0, (size_t)ROWS * COLS * 4);
}

static void ask(const char *at, int64_t row, int64_t rows, int64_t bytes, bool to_write)
{
    for (int64_t i = 0; i < rows; i++, at += row)
        for (int64_t line = 0; line < bytes; line += LINE) {
            if (to_write)
                __builtin_prefetch(at + line, 1, 3);
            else
                __builtin_prefetch(at + line, 0, 3);
        }
}

/* Group after group of panels, in each the rows of micro-tiles, as the engine goes. */
static void work(void *arg, int rank)
{
    const test *t = arg;
    const variant *how = t->how;
    const weft_kernel *kernel = t->kernel;
    int64_t mr = kernel->mr, nr = kernel->nr, micro = mr * nr * 4, size = (int64_t)t->d_bytes, done = 0;
    char *own = t->d[rank] + rank * COLS * size, *peer = t->d[1 - rank] + rank * COLS * size,
         *sums = t->sums[rank];

    for (int64_t first = 0; first < t->panels; first += GROUP) {
        int64_t count = t->panels - first < GROUP ? t->panels - first : GROUP;

        for (int64_t i = 0; i < ROWS; i += mr) {
            for (int64_t g = 0; g < count; g++, done++) {
                const char *b = t->b[rank] + g * nr * t->k * (int64_t)weft_dtype_size(kernel->type);
                int64_t at = i * COLS + (first + g) * nr, below = (at + mr * COLS) % (ROWS * COLS);
                int64_t to = (i * CORES) * COLS + (first + g) * nr;
                weft_places places = {.d_ld = {CORES * COLS, CORES * COLS}, .acc_ld = COLS};

                if (how->keeps) {
                    char *kept = (how->own ? sums : t->sums[1 - rank]) + done * micro;

                    if (how->ahead)
                        ask(kept + 2 * micro, 0, 1, micro, true);
                    kernel->keep(t->k, t->a[rank], b, NULL, kept);
                    continue;
                }
                places.d[0] = (how->own ? own : peer) + to * size;
                places.d[1] = how->own && how->peer ? peer + to * size : NULL;
                places.acc = how->rows ? sums + at * 4 : NULL;
                places.start = how->ordered ? sums + done * micro : NULL;
                if (how->ahead && how->rows)
                    ask(sums + below * 4, COLS * 4, mr, nr * 4, false);
                else if (how->ahead && how->ordered)
                    ask(sums + (done + 2) * micro, 0, 1, micro, false);
                else if (how->ahead)
                    ask(peer + to * size + nr * size, CORES * COLS * size, mr, nr * size, true);
                kernel->finish(t->k, t->a[rank], &(weft_panels){.first = b, .count = 1}, &places);
            }
        }
    }
}

static void *shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED) {
        perror("peer_lines");
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

int main(int argc, char **argv)
{
    weft_dtype dtype = argc > 1 && strcmp(argv[1], "bf16") == 0 ? WEFT_BF16 : WEFT_F32;
    test t = {.k = argc > 2 ? atoi(argv[2]) : 48};
    const weft_core *core;
    weft_error_text error = {0};
    double base = 0;

    if (weft_core_current(&core, &error) != WEFT_OK) {
        fprintf(stderr, "peer_lines: %s\n", error.text);
        return 1;
    }
    t.kernel = weft_core_binding(core, dtype, false)->kernel;
    if (!t.kernel->finish || t.k < 1) {
        fprintf(stderr, "peer_lines: %s cannot finish a tile in registers\n", t.kernel->name);
        return 1;
    }
    t.k = (t.k + t.kernel->k_step - 1) / t.kernel->k_step * t.kernel->k_step;
    t.panels = COLS / t.kernel->nr;
    t.d_bytes = weft_dtype_size(t.kernel->type);
    for (int rank = 0; rank < CORES; rank++) {
        t.a[rank] = shared((size_t)(t.kernel->mr * t.k) * t.d_bytes + 4096); /* kernels prefetch beyond */
        t.b[rank] = shared((size_t)(GROUP * t.kernel->nr * t.k) * t.d_bytes);
        t.d[rank] = shared(CORES * ROWS * COLS * t.d_bytes);
        t.sums[rank] = shared(((size_t)ROWS * COLS + 4 * 1024) * 4); /* and so does this program */
    }
    printf("%s, k = %lld, %d x %lld results on each of two cores\n", t.kernel->name, (long long)t.k, ROWS,
           (long long)(t.panels * t.kernel->nr));
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        calibrate_job job = {.arg = &t,
                             .prepare = prepare,
                             .work = work,
                             .workers = CORES,
                             .seconds = SECONDS,
                             .quantile = 0.5};
        double us;

        t.how = &variants[i];
        us = calibrate_time(CORES, &job) * 1e-3;
        base = i ? base : us;
        printf("%-44s %8.1f us %+8.1f\n", variants[i].name, us, us - base);
    }
    return 0;
}
