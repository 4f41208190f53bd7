/*
 * What it costs a product to leave results with another core, or to start from what another core left: this
 * build's micro-kernels over panels that stay in L1, on two pinned threads at once, with nothing else of the
 * engine around them, in three kinds of memory.
 *
 *     peer_lines [f32|bf16 [K]]
 *
 * Before each run every thread writes its own D, and the sums that its peer will start from. D has a half of
 * its columns for the results of each core. "rows": micro-tiles of rows 512 (sums) or 1024 (results) columns
 * apart; "in order": one after another, as the kernel has them in registers. Memory of both cores lies at the
 * same place of a page, or staggered, as symmetric memory does.
 */
#include "calibrate/calibrate.h"

#include "core/dtype.h"
#include "core/round.h"
#include "gemm/gemm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { ROWS = 1024, COLS = 512, CORES = 2, GROUP = 16, HUGE_PAGE = 2 << 20, STAGGER = 1152 };

static const double SECONDS = 0.5;

typedef struct memory_kind {
    const char *name;
    bool huge;
    int64_t stagger;
} memory_kind;

static const memory_kind kinds[] = {
    {"small pages", false, 0},
    {"huge pages", true, 0},
    {"huge, staggered", true, STAGGER},
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

typedef struct variant {
    const char *name;
    bool keeps;         /* bare sums in order, instead of rows of results */
    bool own, peer;     /* where results go */
    bool rows, ordered; /* what the product starts from */
} variant;

static const variant variants[] = {
    {.name = "results in rows, own", .own = true},
    {.name = "results in rows, the peer's", .peer = true},
    {.name = "results in rows, both", .own = true, .peer = true},
    {.name = "sums in order, own", .keeps = true, .own = true},
    {.name = "sums in order, the peer's", .keeps = true, .peer = true},
    {.name = "from the peer's sums in rows", .own = true, .rows = true},
    {.name = "from the peer's sums in order", .own = true, .ordered = true},
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

/* Group after group of panels, in each the rows of micro-tiles, as the engine goes. */
static void work(void *arg, int rank)
{
    const test *t = arg;
    const variant *how = t->how;
    const weft_kernel *kernel = t->kernel;
    int64_t mr = kernel->mr, nr = kernel->nr, micro = mr * nr * 4, size = (int64_t)t->d_bytes, done = 0;
    char *own = t->d[rank] + rank * COLS * size, *peer = t->d[1 - rank] + rank * COLS * size;
    char *sums = t->sums[rank], *kept = how->own ? sums : t->sums[1 - rank];
    weft_panels b = {.first = t->b[rank], .bytes = nr * t->k * (int64_t)weft_dtype_size(kernel->type)};

    for (int64_t first = 0; first < t->panels; first += GROUP) {
        b.count = t->panels - first < GROUP ? t->panels - first : GROUP;
        for (int64_t i = 0; i < ROWS; i += mr, done += b.count) {
            int64_t to = (i * CORES * COLS + first * nr) * size;
            weft_places places = {
                .start = how->ordered ? sums + done * micro : NULL,
                .acc = how->rows ? sums + (i * COLS + first * nr) * 4 : NULL,
                .acc_ld = COLS,
                .d = {(how->own ? own : peer) + to, how->own && how->peer ? peer + to : NULL},
                .d_ld = {CORES * COLS, CORES * COLS},
            };

            for (int64_t g = 0; g < b.count && how->keeps; g++)
                kernel->keep(t->k, t->a[rank], b.first + g * b.bytes, NULL, kept + (done + g) * micro);
            if (!how->keeps)
                kernel->finish(t->k, t->a[rank], &b, &places);
        }
    }
}

/* Memory as processes share it, `stagger` bytes into a page. */
static char *shared(size_t bytes, bool huge, int64_t stagger)
{
    size_t whole = weft_round_up_bytes(bytes + (size_t)stagger, HUGE_PAGE);
    char *room = mmap(NULL, whole + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *memory;

    memory = (char *)weft_round_up_bytes((uintptr_t)room, HUGE_PAGE);
    if (room == MAP_FAILED || mmap(memory, whole, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        perror("peer_lines");
        exit(1);
    }
    memset(memory, 0, whole);
    if (huge && madvise(memory, whole, MADV_COLLAPSE) != 0)
        perror("peer_lines: no huge pages");
    return memory + stagger;
}

static void open_memory(test *t, const memory_kind *kind)
{
    for (int rank = 0; rank < CORES; rank++) {
        int64_t stagger = rank * kind->stagger;

        t->a[rank] =
            shared((size_t)(t->kernel->mr * t->k) * t->d_bytes + 4096, kind->huge, 0); /* kernels prefetch */
        t->b[rank] = shared((size_t)(GROUP * t->kernel->nr * t->k) * t->d_bytes, kind->huge, 0);
        t->d[rank] = shared(CORES * ROWS * COLS * t->d_bytes, kind->huge, stagger);
        t->sums[rank] = shared((size_t)ROWS * COLS * 4, kind->huge, stagger);
    }
}

int main(int argc, char **argv)
{
    weft_dtype dtype = argc > 1 && strcmp(argv[1], "bf16") == 0 ? WEFT_BF16 : WEFT_F32;
    test t = {.k = argc > 2 ? atoi(argv[2]) : 48}, in[KINDS];
    const weft_core *core;
    weft_error_text error = {0};
    double base[KINDS] = {0};

    if (weft_core_current(&core, &error) != WEFT_OK) {
        fprintf(stderr, "peer_lines: %s\n", error.text);
        return 1;
    }
    t.kernel = weft_core_binding(core, dtype, false)->kernel;
    if (!t.kernel->finish || t.k < 1) {
        fprintf(stderr, "peer_lines: %s cannot finish a tile in registers\n", t.kernel->name);
        return 1;
    }
    t.k = weft_round_up(t.k, t.kernel->k_step);
    t.panels = COLS / t.kernel->nr;
    t.d_bytes = weft_dtype_size(t.kernel->type);
    printf("%s, k = %lld, %d x %lld results on each of two cores, us and more than the first\n%-32s",
           t.kernel->name, (long long)t.k, ROWS, (long long)(t.panels * t.kernel->nr), "");
    for (int kind = 0; kind < KINDS; kind++) {
        in[kind] = t;
        open_memory(&in[kind], &kinds[kind]);
        printf("  %18s", kinds[kind].name);
    }
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        printf("\n%-32s", variants[i].name);
        for (int kind = 0; kind < KINDS; kind++) {
            calibrate_job job = {.arg = &in[kind],
                                 .prepare = prepare,
                                 .work = work,
                                 .workers = CORES,
                                 .seconds = SECONDS,
                                 .quantile = 0.5};
            double us;

            in[kind].how = &variants[i];
            us = calibrate_time(CORES, &job) * 1e-3;
            base[kind] = i ? base[kind] : us;
            printf("  %9.1f %+8.1f", us, us - base[kind]);
        }
    }
    printf("\n");
    return 0;
}
