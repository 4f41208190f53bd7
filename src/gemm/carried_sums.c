/*
 * Tiles whose sums come from another tile of the engine, or stay for one.
 *
 * Such sums are nobody else's business, so they lie as the micro-kernel has them in registers, one micro-tile
 * after another: leaving them is storing whole cache lines in sequence, continuing is starting from loads
 * instead of zeros, and neither needs an addition. In memory: groups of panels of nr columns one after
 * another, in each the rows of micro-tiles, in each its micro-tiles: the sequence in which they are computed,
 * which hardware fetches by itself. A micro-tile at an edge holds only its rows x columns, row by row, so
 * that the tile takes m * n elements; it is laid out for the kernel here.
 */
#include "core/dtype.h"
#include "core/round.h"
#include "gemm/job.h"

#include <string.h>

enum { CACHE_LINE = 64, STRIP_BYTES = 8 << 10, NR_MAX = 64 };

/* A group of panels of B against packed rows of A over one k block. */
typedef struct link {
    const gemm_job *job;
    int64_t k, i, j, rows, cols; /* of the tile */
    const char *panel_a, *panel_b;
    int64_t panel_bytes;
    const char *next_b; /* a slice of each panel of the next group, fetched with each panel of A */
    int64_t next_panels, slice;
    char
        *kept; /* between k blocks: micro-tiles as the kernel leaves them, kept_row bytes to the next row's */
    int64_t kept_row;
    bool begins, ends; /* the k of the tile */
} link;

static int64_t micro_bytes(const weft_kernel *kernel)
{
    return (int64_t)kernel->mr * kernel->nr * 4;
}

/* Where the micro-tile at (i, j) of sums in order begins; it has `rows` rows. */
static char *in_order(const gemm_job *job, const void *base, int64_t i, int64_t j, int64_t rows)
{
    int64_t wide = job->group * job->kernel->nr, first = j / wide * wide;
    int64_t cols = weft_min(wide, job->tile->n - first);

    return (char *)(uintptr_t)base + (first * job->tile->m + i * cols + (j - first) * rows) * 4;
}

/* Rows x cols elements, rows `ld` apart, as the kernel starts from them; what hangs over is zero. */
static void lay_out(const weft_kernel *kernel, const char *from, int64_t ld, int64_t rows, int64_t cols,
                    char *to)
{
    uint32_t row[NR_MAX] = {0};

    memset(to, 0, (size_t)micro_bytes(kernel));
    for (int64_t i = 0; i < rows; i++) {
        memcpy(row, from + i * ld * 4, (size_t)cols * 4);
        weft_keep_row(kernel, to, i, row);
    }
}

/* The other way, rows side by side. */
static void take_out(const weft_kernel *kernel, const char *from, char *to, int64_t rows, int64_t cols)
{
    uint32_t row[NR_MAX];

    for (int64_t i = 0; i < rows; i++) {
        weft_kept_row(kernel, from, i, row);
        memcpy(to + i * cols * 4, row, (size_t)cols * 4);
    }
}

/* One micro-tile, whole or not, whatever its sums come from and go to. */
static void run_any(const link *l, int64_t i, int64_t j, int64_t rows, int64_t cols, const char *panel_a,
                    const char *panel_b, char *kept)
{
    const gemm_job *job = l->job;
    const weft_gemm_tile *tile = job->tile;
    const weft_kernel *kernel = job->kernel;
    _Alignas(64) char before[TILE_ELEMENTS_MAX * 4], after[TILE_ELEMENTS_MAX * 4];
    bool whole = rows == kernel->mr && cols == kernel->nr;
    const char *start = l->begins ? NULL : kept;

    if (l->begins && tile->acc) {
        const char *acc = tile->acc_in_order ? in_order(job, tile->acc, i, j, rows)
                                             : (const char *)tile->acc + (i * tile->acc_ld + j) * 4;

        if (whole && tile->acc_in_order)
            memcpy(before, acc, (size_t)micro_bytes(kernel));
        else
            lay_out(kernel, acc, tile->acc_in_order ? cols : tile->acc_ld, rows, cols, before);
        start = before;
    }
    if (l->k > 0 && l->ends && !tile->d_in_order && job->finish) {
        job->finish(l->k, panel_a, &(weft_panels){.first = panel_b, .count = 1},
                    &(weft_places){.start = start, .d = {after}, .d_ld = {kernel->nr}});
        weft_job_put(job, i, rows, j, cols, after);
        return;
    }
    if (l->k > 0)
        kernel->keep(l->k, panel_a, panel_b, start, l->ends ? after : kept);
    else if (start)
        memcpy(after, start, (size_t)micro_bytes(kernel));
    else
        memset(after, 0, (size_t)micro_bytes(kernel));
    if (!l->ends)
        return;
    if (tile->d_in_order && whole) {
        memcpy(in_order(job, tile->d[0], i, j, rows), after, (size_t)micro_bytes(kernel));
    } else if (tile->d_in_order) {
        take_out(kernel, after, in_order(job, tile->d[0], i, j, rows), rows, cols);
    } else {
        take_out(kernel, after, before, rows, cols);
        weft_job_store(tile, i, rows, j, cols, before, cols);
    }
}

/* Whole micro-tiles that go on from where they lie: the hot loops. `start` and what follows it are `row`
 * bytes apart. */
static void sweep_to_d(const link *l, weft_panels b, const char *start, int64_t row, int64_t rows)
{
    const gemm_job *job = l->job;
    const weft_gemm_tile *tile = job->tile;
    int64_t mr = job->kernel->mr, size = (int64_t)job->d_bytes;
    bool twice = tile->d_count > 1 && !job->spreads;
    const char *panel_a = l->panel_a;
    weft_places to = {
        .start = start,
        .d = {d_at(tile, 0, l->i, l->j, job->d_bytes),
              twice ? d_at(tile, 1, l->i, l->j, job->d_bytes) : NULL},
        .d_ld = {tile->d_ld[0], tile->d_ld[1]},
    };

    for (int64_t i = 0; i < rows; i += mr) {
        job->finish(l->k, panel_a, &b, &to);
        panel_a += l->k * mr * (int64_t)job->type_bytes;
        b.ahead += l->slice;
        to.start = start ? to.start + row : NULL;
        to.d[0] += mr * to.d_ld[0] * size;
        to.d[1] = twice ? to.d[1] + mr * to.d_ld[1] * size : NULL;
    }
}

/* The same by way of rows of sums, which the epilogue takes from L1. */
static void sweep_to_epilogue(const link *l, weft_panels b, const char *start, int64_t row, int64_t rows)
{
    _Alignas(64) char strip[STRIP_BYTES];
    const gemm_job *job = l->job;
    const weft_kernel *kernel = job->kernel;
    int64_t mr = kernel->mr, nr = kernel->nr, micro = micro_bytes(kernel), most = STRIP_BYTES / micro;
    const char *panel_a = l->panel_a;

    for (int64_t i = 0; i < rows; i += mr) {
        for (int64_t g = 0; g < b.count; g += most) {
            int64_t count = weft_min(most, b.count - g);
            weft_panels some = {
                .first = b.first + g * b.bytes,
                .bytes = b.bytes,
                .count = count,
                .ahead = b.ahead + g * b.bytes,
                .ahead_count = b.ahead_count - g,
                .slice = b.slice,
            };
            weft_places to = {.start = start ? start + g * micro : NULL, .d = {strip}, .d_ld = {count * nr}};

            kernel->settle(l->k, panel_a, &some, &to);
            weft_job_store(job->tile, l->i + i, mr, l->j + g * nr, count * nr, strip, count * nr);
        }
        panel_a += l->k * mr * (int64_t)job->type_bytes;
        start = start ? start + row : NULL;
        b.ahead += b.slice;
    }
}

static void sweep_to_sums(const link *l, weft_panels b, const char *start, int64_t row, int64_t rows)
{
    const gemm_job *job = l->job;
    const weft_kernel *kernel = job->kernel;
    int64_t k = l->k, mr = kernel->mr, micro = micro_bytes(kernel);
    const char *panel_a = l->panel_a;
    char *to = l->ends ? in_order(job, job->tile->d[0], l->i, l->j, mr) : l->kept;
    int64_t to_row = l->ends ? mr * l->cols * 4 : l->kept_row;

    for (int64_t i = 0; i < rows; i += mr) {
        const char *panel_b = b.first, *from = start;

        if (kernel->keep_row)
            kernel->keep_row(k, panel_a, &b, start, to);
        for (int64_t g = 0; g < b.count && !kernel->keep_row; g++) {
            for (int64_t at = 0; at < b.slice && g < b.ahead_count; at += CACHE_LINE)
                __builtin_prefetch(b.ahead + g * b.bytes + at, 0, 2);
            kernel->keep(k, panel_a, panel_b, from, to + g * micro);
            from = from ? from + micro : NULL;
            panel_b += b.bytes;
        }
        panel_a += k * mr * (int64_t)job->type_bytes;
        start = start ? start + row : NULL;
        to += to_row;
        b.ahead += b.slice;
    }
}

static void sweep(const link *l, int64_t rows, int64_t panels)
{
    const gemm_job *job = l->job;
    const weft_gemm_tile *tile = job->tile;
    bool incoming = l->begins && tile->acc;
    const char *start = incoming    ? in_order(job, tile->acc, l->i, l->j, job->kernel->mr)
                        : l->begins ? NULL
                                    : l->kept;
    int64_t row = incoming ? job->kernel->mr * l->cols * 4 : l->kept_row;
    weft_panels b = {
        .first = l->panel_b,
        .bytes = l->panel_bytes,
        .count = panels,
        .ahead = l->next_b,
        .ahead_count = weft_min(panels, l->next_panels),
        .slice = l->slice,
    };

    if (!l->ends || tile->d_in_order)
        sweep_to_sums(l, b, start, row, rows);
    else
        (job->finish ? sweep_to_d : sweep_to_epilogue)(l, b, start, row, rows);
}

/* Rows and panels of a group beyond `whole` panels of whole rows. */
static void run_rest(const link *l, int64_t whole)
{
    const gemm_job *job = l->job;
    int64_t mr = job->kernel->mr, nr = job->kernel->nr;

    for (int64_t i = 0; i < l->rows; i += mr) {
        int64_t rows = weft_min(mr, l->rows - i);
        const char *panel_a = l->panel_a + i * l->k * (int64_t)job->type_bytes;

        for (int64_t j = rows < mr ? 0 : whole * nr; j < l->cols; j += nr)
            run_any(l, l->i + i, l->j + j, rows, weft_min(nr, l->cols - j), panel_a,
                    l->panel_b + j / nr * l->panel_bytes,
                    l->kept + i / mr * l->kept_row + j / nr * micro_bytes(job->kernel));
    }
}

void weft_carried_rows(const gemm_job *job, const block_b *b, int64_t s0, int64_t i0, int64_t rows)
{
    const weft_gemm_tile *tile = job->tile;
    const weft_kernel *kernel = job->kernel;
    int64_t mr = kernel->mr, nr = kernel->nr, type = (int64_t)job->type_bytes, wide = job->group * nr;
    int64_t slices = weft_divide_up(rows, mr);

    for (int64_t j = 0; j < b->cols; j += wide) {
        link l = {
            .job = job,
            .i = i0,
            .j = b->j0 + j,
            .rows = rows,
            .cols = weft_min(wide, b->cols - j),
            .panel_bytes = b->panel_bytes,
            .kept_row = job->cut.waits ? mr * weft_round_up(job->cut.n, nr) * 4 : micro_bytes(kernel),
        };

        l.kept = job->sums + (job->cut.waits ? (i0 - s0) / mr * l.kept_row + j * mr * 4 : 0);
        l.next_panels = weft_divide_up(b->cols - j - l.cols, nr);
        for (int64_t p = 0; p < b->k; p += job->cut.k) {
            bool straight;

            l.k = weft_pack_k(kernel, weft_min(job->cut.k, b->k - p));
            l.begins = b->first && p == 0;
            l.ends = b->last && p + job->cut.k >= b->k;
            l.panel_a = job->a_block + p * slices * mr * type;
            l.panel_b = b->panels + j / nr * b->panel_bytes + p * nr * type;
            l.next_b = l.panel_b + job->group * b->panel_bytes;
            l.slice = weft_round_up(l.k * nr * type / slices, CACHE_LINE);
            straight = !l.begins || !tile->acc || tile->acc_in_order;
            if (straight)
                sweep(&l, rows - rows % mr, l.cols / nr);
            if (!straight || l.cols % nr || rows % mr)
                run_rest(&l, straight ? l.cols / nr : 0);
        }
        if (tile->d_count > 2 && b->last && job->finish && !job->spreads)
            weft_job_spread(tile, 2, i0, rows, l.j, l.cols, job->d_bytes);
        weft_job_spread_block(job, b, i0, rows, j + wide);
    }
}

void weft_carried_empty(const gemm_job *job)
{
    const weft_gemm_tile *tile = job->tile;
    int64_t mr = job->kernel->mr, nr = job->kernel->nr;
    link l = {.job = job, .begins = true, .ends = true};

    for (int64_t i = 0; i < tile->m; i += mr) {
        for (int64_t j = 0; j < tile->n; j += nr)
            run_any(&l, i, j, weft_min(mr, tile->m - i), weft_min(nr, tile->n - j), NULL, NULL, NULL);
    }
}
