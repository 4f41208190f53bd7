/*
 * The innermost loops: packed rows of A against panels of B, and what becomes of the sums.
 *
 *     group of B panels > k block > A panel > B panel of the group: micro-kernel
 *
 * Where k fits one block, a group is several panels that lie in L1 together. A panel of A passes all of them
 * before the next one comes, so that a row of D is written (and the sums a tile starts from are read) some
 * hundred bytes at a time: whole cache lines, which matters most where they belong to another core.
 *
 * Whole micro-tiles whose epilogue only rounds go from registers to D, with the incoming sums added on the
 * way. Others leave their sums in a strip: one panel of A by one group, in L1, from where the epilogue takes
 * them. With several k blocks a group is one panel and its sums, over all packed rows, wait for all blocks:
 * dense, in the strip, also where D could hold them, whose rows may share a set of every cache. Then each
 * stretch of k reads D once, in its first block, and writes it once, in its last.
 *
 * A kernel with rows of panels of its own (`run_row`: AMX) has groups of panels that come from L2 instead,
 * also over several blocks, with a piece of A in L1.
 */
#include "core/dtype.h"
#include "core/round.h"
#include "gemm/epilogue.h"
#include "gemm/job.h"

#include <string.h>

enum {
    CACHE_LINE = 64,
    SPREAD_BYTES = 512 << 10 /* of D[0] at a time: what is likely to be in L2 still */
};

/* One panel of A, over one k block, against a group of panels of B. */
typedef struct pass {
    const gemm_job *job;
    int64_t k, panels;
    const char *panel_a, *panel_b;
    int64_t panel_bytes; /* from one panel of B to the next */
    weft_microkernel multiply;
    int64_t i, j, rows, cols; /* of the tile */
    char *sums;               /* kept between k blocks, or for the epilogue; D where it can hold them */
    int64_t ld;
    bool in_d;
    bool begins, ends; /* the k of the tile; of the stretch where sums of a stretch are kept apart from D */
    const char *acc;   /* sums to begin from, at (i, j), or NULL */
    int64_t acc_ld;

    /* What is needed soon, brought closer a piece at a time: the next group of B, the next sums. */
    const char *next_b;
    int64_t next_panels, slice; /* bytes of each panel of B */
    const char *next_acc;       /* or NULL */
    int64_t acc_rows, acc_stride, acc_bytes, acc_piece;
} pass;

static weft_dtype accumulator_of(const weft_gemm_tile *tile)
{
    return weft_dtype_accumulator(tile->bind->kernel->type);
}

bool weft_job_only_rounds(const weft_gemm_tile *tile)
{
    if (tile->raw)
        return true;
    return tile->alpha == 1 && (tile->beta == 0 || !tile->c) && tile->act == WEFT_ACT_NONE && !tile->bias &&
           !tile->row_scale && !tile->col_scale;
}

bool weft_job_is_identity(const weft_gemm_tile *tile)
{
    return tile->raw || (weft_job_only_rounds(tile) && tile->d_dtype == accumulator_of(tile));
}

static inline const char *acc_at(const weft_gemm_tile *tile, int64_t i, int64_t j)
{
    return (const char *)tile->acc + (size_t)(i * tile->acc_ld + j) * 4;
}

void weft_job_spread(const weft_gemm_tile *tile, int first, int64_t i0, int64_t rows, int64_t j0,
                     int64_t cols, size_t size)
{
    for (int d = first; d < tile->d_count; d++) {
        for (int64_t i = i0; i < i0 + rows; i++)
            memcpy(d_at(tile, d, i, j0, size), d_at(tile, 0, i, j0, size), (size_t)cols * size);
    }
}

void weft_job_store(const weft_gemm_tile *tile, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                    const char *sums, int64_t sums_ld)
{
    weft_dtype acc_dtype = accumulator_of(tile), d_dtype = tile->raw ? acc_dtype : tile->d_dtype;
    size_t size = weft_dtype_size(d_dtype);
    bool plain = weft_job_is_identity(tile), reads_c = !plain && tile->c && tile->beta != 0;
    weft_epilogue epilogue = {
        .alpha = plain ? 1 : tile->alpha,
        .beta = plain ? 0 : tile->beta,
        .act = plain ? WEFT_ACT_NONE : tile->act,
        .acc_dtype = acc_dtype,
        .d_dtype = d_dtype,
        .row_scale = plain || !tile->row_scale ? NULL : tile->row_scale + i0,
        .col_scale = plain || !tile->col_scale ? NULL : tile->col_scale + j0,
        .c = reads_c ? (const char *)tile->c + (size_t)(i0 * tile->c_ld + j0) * size : NULL,
        .c_ld = tile->c_ld,
        .bias = plain || !tile->bias ? NULL : (const char *)tile->bias + (size_t)j0 * size,
    };

    int64_t width = weft_act_width(epilogue.act);

    weft_epilogue_block(&epilogue, rows, cols, sums, sums_ld, d_at(tile, 0, i0, j0 / width, size),
                        tile->d_ld[0]);
    weft_job_spread(tile, 1, i0, rows, j0 / width, cols / width, size);
}

/* Pieces of at most a micro-tile's row. */
static inline void put_rows(char *to, int64_t to_row, const char *from, int64_t from_row, int64_t rows,
                            int64_t bytes)
{
    for (int64_t r = 0; r < rows; r++, to += to_row, from += from_row)
        memcpy(to, from, (size_t)bytes);
}

void weft_job_put(const gemm_job *job, int64_t i, int64_t rows, int64_t j, int64_t cols, const char *micro)
{
    const weft_gemm_tile *tile = job->tile;
    int64_t size = (int64_t)job->d_bytes, from_row = job->kernel->nr * size, bytes = cols * size;

    for (int d = 0; d < (job->spreads ? 1 : tile->d_count); d++) {
        int64_t to_row = tile->d_ld[d] * size;
        char *to = d_at(tile, d, i, j, job->d_bytes);

        /* What is left of a row of 2^n elements: a word or two. Known sizes are no calls. */
        if (bytes == 8)
            put_rows(to, to_row, micro, from_row, rows, 8);
        else if (bytes == 16)
            put_rows(to, to_row, micro, from_row, rows, 16);
        else if (bytes == 32)
            put_rows(to, to_row, micro, from_row, rows, 32);
        else
            put_rows(to, to_row, micro, from_row, rows, bytes);
    }
}

void weft_job_copy(char *to, int64_t to_ld, const char *from, int64_t from_ld, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows && (to != from || to_ld != from_ld); i++)
        memcpy(to + (size_t)(i * to_ld) * 4, from + (size_t)(i * from_ld) * 4, (size_t)cols * 4);
}

/* A micro-tile that hangs over the edge of D, for a kernel without edges of its own: computed aside, its
 * inner part then stored or added. */
static void run_aside(const pass *s, const char *panel_b, char *sums, int64_t cols, bool add)
{
    _Alignas(64) uint32_t aside[TILE_ELEMENTS_MAX];
    int nr = s->job->kernel->nr;
    bool integer = s->job->kernel->type == WEFT_I8;

    s->multiply(s->k, s->panel_a, panel_b, aside, nr, 0);
    for (int64_t i = 0; i < s->rows; i++) {
        char *row = sums + (size_t)(i * s->ld) * 4;

        for (int64_t j = 0; j < cols && add; j++) {
            uint32_t *sum = &aside[i * nr + j];
            float old, new;

            if (integer) {
                *sum += ((uint32_t *)row)[j];
                continue;
            }
            memcpy(&new, sum, 4);
            memcpy(&old, row + (size_t)j * 4, 4);
            new = old + new;
            memcpy(sum, &new, 4);
        }
        memcpy(row, aside + i * nr, (size_t)cols * 4);
    }
}

/* With the g-th panel of a pass. D is not fetched: whole lines are written without being read. */
static inline void fetch(const pass *s, int64_t g)
{
    const char *b = s->next_b + g * s->panel_bytes, *acc = s->next_acc;

    for (int64_t at = 0; at < s->slice && g < s->next_panels; at += CACHE_LINE)
        __builtin_prefetch(b + at, 0, 2);
    for (int64_t r = 0; acc && r < s->acc_rows; r++, acc += s->acc_stride) {
        int64_t from = g * s->acc_piece, to = weft_min(from + s->acc_piece, s->acc_bytes);

        for (int64_t at = from; at < to; at += CACHE_LINE)
            __builtin_prefetch(acc + at, 0, 3);
    }
}

/*
 * The two hot loops: whole micro-tiles only, all that a call needs in registers. Rows [0, rows) of the pass's
 * panels of A, `panels` of the group.
 */
static void sweep_to_sums(const pass *s, int64_t rows, int64_t panels)
{
    const gemm_job *job = s->job;
    int64_t k = s->k, ld = s->ld, lines = job->side_a.lines, nr = job->kernel->nr, slice = s->slice;
    int64_t panel_bytes = s->panel_bytes, ahead_panels = weft_min(panels, s->next_panels);
    const char *panel_a = s->panel_a, *ahead = s->next_b;
    weft_microkernel multiply = s->multiply;
    weft_row_kernel row = s->multiply == job->kernel->run ? job->kernel->run_row : NULL;
    char *sums = s->sums;

    for (int64_t i = 0; i < rows; i += lines) {
        const char *panel_b = s->panel_b;

        if (row) {
            weft_panels b = {s->panel_b, panel_bytes, panels, ahead, ahead_panels, slice};

            row(k, panel_a, &b, sums, ld, !s->begins);
        }
        for (int64_t g = 0; g < panels && !row; g++) {
            for (int64_t at = 0; at < slice && g < ahead_panels; at += CACHE_LINE)
                __builtin_prefetch(ahead + g * panel_bytes + at, 0, 2);
            multiply(k, panel_a, panel_b, sums + g * nr * 4, ld, !s->begins);
            panel_b += panel_bytes;
        }
        multiply = job->run;
        panel_a += k * lines * (int64_t)job->type_bytes;
        sums += lines * ld * 4;
        ahead += slice;
    }
}

/* From registers to D; sums come from elsewhere, or from the k blocks before. */
static void sweep_to_d(const pass *s, int64_t rows, int64_t panels)
{
    const gemm_job *job = s->job;
    const weft_gemm_tile *tile = job->tile;
    bool aside = job->gathers && !s->ends, twice = s->ends && tile->d_count > 1 && !job->spreads;
    int64_t lines = job->side_a.lines;
    const char *panel_a = s->panel_a;
    weft_panels b = {
        .first = s->panel_b,
        .bytes = s->panel_bytes,
        .count = panels,
        .ahead = s->next_b,
        .ahead_count = weft_min(panels, s->next_panels),
        .slice = s->slice,
    };
    weft_places to = {
        .acc = s->begins ? s->acc : s->sums,
        .acc_ld = s->begins ? s->acc_ld : s->ld,
        .d = {aside ? s->sums : d_at(tile, 0, s->i, s->j, job->d_bytes),
              twice ? d_at(tile, 1, s->i, s->j, job->d_bytes) : NULL},
        .d_ld = {aside ? s->ld : tile->d_ld[0], tile->d_ld[1]},
    };

    for (int64_t i = 0; i < rows; i += lines) {
        to.acc_below = to.acc && i + lines < rows;
        job->finish(s->k, panel_a, &b, &to);
        panel_a += s->k * lines * (int64_t)job->type_bytes;
        b.ahead += s->slice;
        to.acc = to.acc ? to.acc + lines * to.acc_ld * 4 : NULL;
        to.d[0] += lines * to.d_ld[0] * (int64_t)job->d_bytes;
        to.d[1] = twice ? to.d[1] + lines * to.d_ld[1] * (int64_t)job->d_bytes : NULL;
    }
}

/* From panel `first` on, into the place of the sums. */
static void pass_to_sums(const pass *s, int64_t first)
{
    const gemm_job *job = s->job;
    int64_t nr = job->kernel->nr;
    bool add = s->acc || !s->begins;
    bool low = s->in_d && s->rows < job->side_a.lines;
    const char *panel_b = s->panel_b + first * s->panel_bytes;
    char *sums = s->sums + first * nr * 4;

    if (s->acc)
        weft_job_copy(sums, s->ld, s->acc + first * nr * 4, s->acc_ld, s->rows, s->cols - first * nr);
    if (!low && s->multiply == job->kernel->run && job->kernel->run_row) {
        int64_t whole = s->in_d ? s->cols / nr : s->panels;
        weft_panels b = {panel_b,
                         s->panel_bytes,
                         whole - first,
                         s->next_b + first * s->panel_bytes,
                         weft_min(whole, s->next_panels) - first,
                         s->slice};

        job->kernel->run_row(s->k, s->panel_a, &b, sums, s->ld, add);
        panel_b += b.count * s->panel_bytes;
        sums += b.count * nr * 4;
        first = whole;
    }
    for (int64_t g = first; g < s->panels; g++, panel_b += s->panel_bytes, sums += nr * 4) {
        int64_t cols = weft_min(nr, s->cols - g * nr);

        fetch(s, g);
        if (job->edge && (s->rows < job->side_a.lines || cols < nr))
            job->edge(s->rows, cols, s->k, s->panel_a, panel_b, sums, s->ld, add);
        else if (low || (s->in_d && cols < nr))
            run_aside(s, panel_b, sums, cols, add);
        else
            s->multiply(s->k, s->panel_a, panel_b, sums, s->ld, add);
    }
}

/* The sums of a pass are complete: from column `done` on, which are not in D yet, they go there. */
static void finish_pass(const pass *s, int64_t done)
{
    const gemm_job *job = s->job;
    const weft_gemm_tile *tile = job->tile;

    if (done < s->cols && !job->direct)
        weft_job_store(tile, s->i, s->rows, s->j + done, s->cols - done, s->sums + (size_t)done * 4, s->ld);
    else if (done < s->cols)
        weft_job_spread(tile, 1, s->i, s->rows, s->j + done, s->cols - done, job->d_bytes);
    if (done > 0)
        weft_job_spread(tile, 2, s->i, s->rows, s->j, done, job->d_bytes);
}

/* Panels from `first` on by the kernel that finishes: all of k at once, a part of each micro-tile kept. */
static void finish_edges(const pass *s, int64_t first)
{
    _Alignas(64) char aside[TILE_ELEMENTS_MAX * 4], before[TILE_ELEMENTS_MAX * 4];
    const gemm_job *job = s->job;
    const weft_gemm_tile *tile = job->tile;
    int64_t nr = job->kernel->nr;
    weft_places to = {.acc = s->acc ? before : NULL, .acc_ld = nr, .d = {aside}, .d_ld = {nr}};

    for (int64_t g = first; g < s->panels; g++) {
        int64_t cols = weft_min(nr, s->cols - g * nr), j = s->j + g * nr;
        const char *panel_b = s->panel_b + g * s->panel_bytes;

        /* What is left out must be worth rounding the rest outside the registers. */
        if (job->edge && 2 * s->rows * cols <= job->kernel->mr * nr) {
            if (s->acc)
                weft_job_copy(before, nr, s->acc + g * nr * 4, s->acc_ld, s->rows, cols);
            job->edge(s->rows, cols, s->k, s->panel_a, panel_b, before, nr, s->acc != NULL);
            weft_job_store(tile, s->i, s->rows, j, cols, before, nr);
            continue;
        }
        if (s->acc) {
            memset(before, 0, (size_t)(job->kernel->mr * nr) * 4);
            weft_job_copy(before, nr, s->acc + g * nr * 4, s->acc_ld, s->rows, cols);
        }
        job->finish(s->k, s->panel_a, &(weft_panels){.first = panel_b, .count = 1}, &to);
        weft_job_put(job, s->i, s->rows, j, cols, aside);
    }
    if (first > 0 && !job->spreads)
        weft_job_spread(tile, 2, s->i, s->rows, s->j, first * nr, job->d_bytes);
}

/* Panels from `first` on of one panel of A, edges and all. */
static void run_pass(const pass *s, int64_t first)
{
    if (first < s->panels)
        pass_to_sums(s, first);
    if (s->ends && !(s->job->direct && s->job->tile->d_count == 1))
        finish_pass(s, first * s->job->kernel->nr);
}

/* The sums that the panel of A after row i starts from: the next rows, or the first of the next group. */
static void set_next_acc(pass *s, const block_b *b, int64_t i0, int64_t rows, int64_t i, int64_t j)
{
    int lines = s->job->side_a.lines;
    int64_t below = rows - i - lines, right = b->cols - j - s->cols;

    s->next_acc = NULL;
    if (below > 0) {
        s->next_acc = acc_at(s->job->tile, i0 + i + lines, b->j0 + j);
        s->acc_rows = weft_min(lines, below);
        s->acc_bytes = s->cols * 4;
    } else if (right > 0) {
        s->next_acc = acc_at(s->job->tile, i0, b->j0 + j + s->cols);
        s->acc_rows = weft_min(lines, rows);
        s->acc_bytes = weft_min(s->cols, right) * 4;
    }
}

/* Where the sums of packed row i and column j of the block begin; how far apart their rows are. */
static char *sums_at(const gemm_job *job, const block_b *b, int64_t s0, int64_t i0, int64_t j, int64_t *row)
{
    *row = 0;
    if (job->gathers) {
        *row = job->sums_ld;
        return job->sums;
    }
    if (job->direct || job->sums_in_d) {
        *row = job->tile->d_ld[0];
        return d_at(job->tile, 0, i0, b->j0 + j, 4);
    }
    if (job->cut.waits || job->cut.k_count > 1)
        *row = job->sums_ld;
    return job->sums + (job->cut.waits ? (size_t)((i0 - s0) * job->sums_ld + j) * 4 : 0);
}

/* What the first block of a stretch begins from, or NULL: sums that came in, or what D has of the stretches
 * before. */
static const char *begins_from(const gemm_job *job, const block_b *b, int64_t i, int64_t j, int64_t *ld)
{
    const weft_gemm_tile *tile = job->tile;

    *ld = b->first ? tile->acc_ld : tile->d_ld[0];
    if (!b->first)
        return d_at(tile, 0, i, j, 4);
    return tile->acc ? acc_at(tile, i, j) : NULL;
}

/* Columns [j, j + cols) of the block: a group of panels. */
static void run_group(const gemm_job *job, const block_b *b, int64_t s0, int64_t i0, int64_t rows, int64_t j,
                      int64_t cols)
{
    const weft_gemm_tile *tile = job->tile;
    int64_t lines = job->side_a.lines, nr = job->kernel->nr, type = (int64_t)job->type_bytes, sums_row;
    int64_t slices = weft_divide_up(rows, lines);
    bool fetched = job->b_stays || job->streams || job->widens || job->kernel->fetches;
    int64_t left = fetched ? 0 : b->cols - j - cols;
    char *sums = sums_at(job, b, s0, i0, j, &sums_row);
    pass s = {
        .job = job,
        .panels = weft_divide_up(cols, nr),
        .panel_bytes = b->panel_bytes,
        .j = b->j0 + j,
        .cols = cols,
        .ld = sums_row ? sums_row : job->sums_ld,
        .in_d = job->direct || job->sums_in_d,
        .next_panels = weft_divide_up(left, nr),
        .acc_stride = tile->acc_ld * 4,
        .acc_piece = weft_round_up(nr * 4, CACHE_LINE),
    };

    for (int64_t p = 0; p < b->k; p += job->cut.k) {
        int64_t whole = 0; /* panels done by a sweep, in whole panels of A */
        bool finishes;

        s.k = weft_pack_k(job->kernel, weft_min(job->cut.k, b->k - p));
        s.begins = p == 0 && (b->first || job->gathers);
        s.ends = p + job->cut.k >= b->k && (b->last || job->gathers);
        s.acc = s.begins ? begins_from(job, b, i0, s.j, &s.acc_ld) : NULL;
        s.panel_a = job->a_block + p * slices * lines * type;
        s.panel_b = b->panels + j / nr * b->panel_bytes + p * nr * b->type_bytes;
        s.next_b = s.panel_b + job->group * b->panel_bytes;
        s.slice = weft_round_up(s.k * nr * type / slices, CACHE_LINE);
        if (job->widens) {
            s.panel_bytes = s.k * nr * type;
            weft_packed_widen(tile->bind, job->b_block, s.panel_bytes, s.panel_b, b->panel_bytes, s.k,
                              s.panels);
            s.panel_b = job->b_block;
        }
        s.multiply = job->first;
        s.sums = sums;
        s.i = i0;
        finishes = job->finish && (s.ends || ((s.in_d || job->gathers) && s.acc)) &&
                   !(job->direct && tile->d_count == 1 && !s.acc);
        if (finishes)
            sweep_to_d(&s, rows - rows % lines, whole = cols / nr);
        else if (!s.acc && (job->direct || !s.ends))
            sweep_to_sums(&s, rows - rows % lines, whole = cols / nr);
        if (whole == s.panels && rows % lines == 0 && tile->d_count <= 2)
            continue;
        for (int64_t i = 0; i < rows; i += lines) {
            s.i = i0 + i;
            s.rows = weft_min(lines, rows - i);
            s.next_acc = NULL;
            if (s.acc && b->first)
                set_next_acc(&s, b, i0, rows, i, j);
            if (finishes && s.begins && s.ends)
                finish_edges(&s, s.rows < lines ? 0 : whole);
            else
                run_pass(&s, s.rows < lines ? 0 : whole);
            s.multiply = job->run;
            s.panel_a += s.k * lines * type;
            s.next_b += s.slice;
            s.sums += sums_row * lines * 4;
            s.acc = s.acc ? s.acc + s.acc_ld * lines * 4 : NULL;
        }
    }
}

void weft_job_rows(const gemm_job *job, const block_b *b, int64_t s0, int64_t i0, int64_t rows)
{
    int64_t wide = job->group * job->kernel->nr;

    for (int64_t j = 0; j < b->cols; j += wide) {
        run_group(job, b, s0, i0, rows, j, weft_min(wide, b->cols - j));
        weft_job_spread_block(job, b, i0, rows, j + wide);
    }
}

void weft_job_spread_block(const gemm_job *job, const block_b *b, int64_t i0, int64_t rows, int64_t done)
{
    int64_t wide = job->group * job->kernel->nr, j;
    int64_t block = SPREAD_BYTES / (job->cut.m * (int64_t)job->d_bytes) / wide * wide;

    block = weft_max(block, wide);
    if (!job->spreads || !b->last || (done < b->cols && done % block))
        return;
    done = weft_min(done, b->cols);
    j = (done - 1) / block * block;
    weft_job_spread(job->tile, 1, i0, rows, b->j0 + j, done - j, job->d_bytes);
}
