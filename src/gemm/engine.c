/*
 * The loops around the micro-kernel, for one tile.
 *
 *     columns > stretches of k: pack B > rows: pack A > B panel > k block > A panel: micro-kernel
 *
 * A stretch is several k blocks: as many as keep the packed rows of A inside the L2 cache. One panel of B
 * over one k block stays in L1 while all packed rows pass by; the sums of those rows and one panel's columns
 * stay in L1 too, until all k blocks are done and the epilogue empties them. So sums leave the cache only
 * between stretches, which takes a long k: then they wait in D if D can hold them, else in the workspace.
 */
#include "core/dtype.h"
#include "gemm/epilogue.h"
#include "gemm/gemm.h"
#include "gemm/pack.h"

#include <string.h>

enum {
    ROWS_MIN = 96,               /* packed rows of A that make it worth reading a panel of B */
    SUMS_BYTES = 4 << 20,        /* of sums kept in the workspace between stretches */
    TILE_ELEMENTS_MAX = 64 * 64, /* mr * nr of the largest micro-kernel */
    STREAM_ROWS_MOST = 64,       /* up to so many rows of A, fetching B from memory decides */
    CACHE_LINE = 64
};

typedef struct blocks {
    int64_t k, k_count; /* length of a k block, how many */
    int64_t stretch;    /* length of a stretch: a multiple of k */
    int64_t m;          /* rows of A packed at a time */
    int64_t n;          /* columns at a time */
    int64_t stripe;     /* rows whose sums wait in the workspace; m when nothing waits */
    bool waits;         /* there is more than one stretch */
} blocks;

typedef struct gemm_job {
    const weft_gemm_tile *tile;
    const weft_kernel *kernel;
    weft_microkernel run, first; /* for each panel of A; for the first of them, which brings B in */
    weft_pack_side side_a;
    blocks cut;
    bool streams;   /* the micro-kernel itself prefetches B */
    bool direct;    /* D takes the micro-kernel's output as it is */
    bool sums_in_d; /* D holds the sums between stretches */
    size_t type_bytes;
    char *a_block, *b_block, *sums;
    int64_t sums_ld;
} gemm_job;

/* A block of columns of B over a stretch of k, ready to use. */
typedef struct block_b {
    const char *panels;
    int64_t panel_bytes;
    int64_t j0, cols;
    int64_t k0, k;    /* of the tile */
    bool first, last; /* stretch of k */
} block_b;

/* One panel of that block: where it is, and where its sums go. */
typedef struct panel_run {
    const char *panel, *next;
    int64_t i0, j0, cols; /* of the tile */
    char *to;
    int64_t ld;
} panel_run;

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
}

/* The length of equal blocks of at most `most`, a multiple of `step`; `length` itself if it fits. */
static int64_t cut_evenly(int64_t length, int64_t most, int64_t step)
{
    int64_t count = (length + most - 1) / most;

    return count <= 1 ? round_up(length > 0 ? length : 1, step)
                      : round_up((length + count - 1) / count, step);
}

/* Rows and columns for stretches of this length: mc * kc elements of A and kc * nc of B fit their caches. */
static int64_t rows_for(const weft_binding *bind, int64_t stretch)
{
    int64_t rows = (int64_t)bind->mc * bind->kc / stretch / bind->kernel->mr * bind->kernel->mr;

    return rows > bind->mc ? bind->mc : rows > bind->kernel->mr ? rows : bind->kernel->mr;
}

static int64_t columns_for(const weft_binding *bind, int64_t stretch)
{
    int64_t cols = (int64_t)bind->kc * bind->nc / stretch / bind->kernel->nr * bind->kernel->nr;

    return cols > bind->nc ? bind->nc : cols > bind->kernel->nr ? cols : bind->kernel->nr;
}

static blocks cut_blocks(const weft_binding *bind, int64_t m, int64_t n, int64_t k, bool packed,
                         bool sums_in_d)
{
    const weft_kernel *kernel = bind->kernel;
    int64_t fewest = min64(round_up(m > 0 ? m : 1, kernel->mr), ROWS_MIN);
    int64_t longest = bind->kc * (bind->mc > fewest ? bind->mc / fewest : 1);
    blocks cut = {.k = cut_evenly(k, bind->kc, kernel->k_step)};

    cut.k_count = (k + cut.k - 1) / cut.k;
    cut.stretch = min64(longest / cut.k > 1 ? longest / cut.k : 1, cut.k_count > 0 ? cut.k_count : 1) * cut.k;
    cut.waits = k > cut.stretch;
    cut.m = cut_evenly(m, rows_for(bind, cut.stretch), kernel->mr);
    cut.n = cut_evenly(n, packed && !cut.waits ? n + 1 : columns_for(bind, cut.stretch), kernel->nr);
    cut.stripe = round_up(m, cut.m);
    if (cut.waits && !sums_in_d) {
        int64_t rows = SUMS_BYTES / (4 * cut.n) / cut.m * cut.m;

        cut.stripe = min64(cut.stripe, packed || rows < cut.m ? cut.m : rows);
    }
    return cut;
}

static size_t aligned_bytes(int64_t elements, size_t size)
{
    return ((size_t)elements * size + WEFT_GEMM_ALIGNMENT - 1) / WEFT_GEMM_ALIGNMENT * WEFT_GEMM_ALIGNMENT;
}

static size_t a_block_bytes(const weft_kernel *kernel, const blocks *cut)
{
    return aligned_bytes(cut->m * cut->stretch, weft_dtype_size(kernel->type));
}

static size_t b_block_bytes(const weft_kernel *kernel, const blocks *cut)
{
    return aligned_bytes(cut->n * cut->stretch, weft_dtype_size(kernel->type));
}

/*
 * Every tile of at most m x n x k must fit, also those that are cut otherwise: few rows allow a longer
 * stretch, a short k more rows and columns. What holds for all of them: packed rows times stretch stay within
 * mc * kc, since a stretch is at most kc * mc / mr; likewise columns, within kc * nc or one panel of the
 * longest stretch.
 */
size_t weft_gemm_workspace_bytes(const weft_binding *bind, int64_t m, int64_t n, int64_t k, bool packed_b)
{
    const weft_kernel *kernel = bind->kernel;
    size_t size = weft_dtype_size(kernel->type);
    int64_t mc = round_up(bind->mc, kernel->mr), kc = round_up(bind->kc, kernel->k_step);
    int64_t nc = round_up(bind->nc, kernel->nr);
    int64_t rows = round_up(m, kernel->mr), cols = round_up(n, kernel->nr);
    int64_t padded_k = k + (k / bind->kc + 2) * kernel->k_step; /* each block may be rounded up */
    int64_t longest = kc * (mc / kernel->mr), wide = min64(rows, mc) * min64(cols, nc);
    int64_t a = min64(mc * kc, rows * padded_k), sums = min64(rows, mc) * kernel->nr;
    int64_t b = min64(kc * nc > kernel->nr * longest ? kc * nc : kernel->nr * longest, cols * padded_k);
    size_t bytes, streamed = 0;

    if (k > bind->kc) {
        int64_t waiting = wide > SUMS_BYTES / 4 ? wide : SUMS_BYTES / 4;

        waiting = packed_b ? wide : min64(waiting, 2 * rows * min64(cols, nc));
        sums = sums > waiting ? sums : waiting;
    }
    bytes = aligned_bytes(a, size) + (packed_b ? 0 : aligned_bytes(b, size)) + aligned_bytes(sums, 4);
    if (!packed_b && (kernel->along || kernel->across))
        streamed =
            aligned_bytes(weft_pack_k(kernel, k) * kernel->mr, size) + aligned_bytes(kernel->mr * n, 4);
    return bytes > streamed ? bytes : streamed;
}

weft_gemm_steps weft_gemm_steps_of(const weft_binding *bind)
{
    const weft_kernel *kernel = bind->kernel;

    return (weft_gemm_steps){
        .mr = kernel->mr,
        .nr = kernel->nr,
        .k_step = kernel->k_step,
        .m_tile = (int)round_up(bind->mc, kernel->mr),
        .n_tile = (int)round_up(512, kernel->nr),
        .k_tile = (int)weft_pack_k(kernel, bind->kc),
    };
}

weft_gemm_tile weft_gemm_tile_init(const weft_binding *bind, weft_dtype dtype)
{
    return (weft_gemm_tile){
        .bind = bind,
        .a_cs = 1,
        .a_dtype = dtype,
        .b_cs = 1,
        .b_dtype = dtype,
        .alpha = 1,
        .d_dtype = dtype == WEFT_I8 ? WEFT_I32 : dtype,
        .d_count = 1,
    };
}

static weft_dtype accumulator_of(const weft_gemm_tile *tile)
{
    return weft_dtype_accumulator(tile->bind->kernel->type);
}

/* The epilogue changes nothing: D is the accumulators. */
static bool is_identity(const weft_gemm_tile *tile)
{
    if (tile->raw)
        return true;
    return tile->alpha == 1 && tile->beta == 0 && tile->act == WEFT_ACT_NONE && !tile->bias &&
           !tile->row_scale && !tile->col_scale && tile->d_dtype == accumulator_of(tile);
}

static char *d_at(const weft_gemm_tile *tile, int which, int64_t i, int64_t j)
{
    size_t size = tile->raw ? 4 : weft_dtype_size(tile->d_dtype);

    return (char *)tile->d[which] + (size_t)(i * tile->d_ld[which] + j) * size;
}

/* The finished sums of rows [i0, i0 + rows) and columns [j0, j0 + cols) go through the epilogue into D. */
static void finish_rows(const weft_gemm_tile *tile, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                        const char *sums, int64_t sums_ld)
{
    weft_dtype acc_dtype = accumulator_of(tile), d_dtype = tile->raw ? acc_dtype : tile->d_dtype;
    size_t size = weft_dtype_size(d_dtype);
    bool plain = is_identity(tile), reads_c = !plain && tile->c && tile->beta != 0;
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

    weft_epilogue_block(&epilogue, rows, cols, sums, sums_ld, d_at(tile, 0, i0, j0), tile->d_ld[0]);
    for (int d = 1; d < tile->d_count; d++) {
        for (int64_t i = 0; i < rows; i++)
            memcpy(d_at(tile, d, i0 + i, j0), d_at(tile, 0, i0 + i, j0), (size_t)cols * size);
    }
}

static void copy_rows(char *to, int64_t to_ld, const char *from, int64_t from_ld, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows && (to != from || to_ld != from_ld); i++)
        memcpy(to + (size_t)(i * to_ld) * 4, from + (size_t)(i * from_ld) * 4, (size_t)cols * 4);
}

/* A micro-tile that hangs over the edge of D: computed aside, its inner part then stored or added. */
static void run_edge(const gemm_job *job, weft_microkernel multiply, int64_t k, const char *panel_a,
                     const char *panel_b, char *to, int64_t ld, int64_t rows, int64_t cols, bool add)
{
    _Alignas(64) uint32_t aside[TILE_ELEMENTS_MAX];
    int nr = job->kernel->nr;
    bool integer = job->kernel->type == WEFT_I8;

    multiply(k, panel_a, panel_b, aside, nr, 0);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols && add; j++) {
            uint32_t *sum = &aside[i * nr + j];
            float old, new;

            if (integer) {
                *sum += ((uint32_t *)to)[i * ld + j];
                continue;
            }
            memcpy(&new, sum, 4);
            memcpy(&old, to + (size_t)(i * ld + j) * 4, 4);
            new = old + new;
            memcpy(sum, &new, 4);
        }
        memcpy(to + (size_t)(i * ld) * 4, aside + i * nr, (size_t)cols * 4);
    }
}

/* The accumulators the next panel of columns starts from: they may lie in another core's cache. */
static inline void prefetch_acc(const gemm_job *job, int64_t i0, int64_t rows, int64_t j0, int64_t cols)
{
    const char *row = (const char *)job->tile->acc + (size_t)(i0 * job->tile->acc_ld + j0) * 4;
    size_t stride = (size_t)job->tile->acc_ld * 4, last = (size_t)cols * 4 - 1;

    for (int64_t i = 0; i < rows; i++, row += stride) {
        __builtin_prefetch(row, 0, 2);
        __builtin_prefetch(row + last, 0, 2);
    }
}

/*
 * One panel of B against all packed rows, k block after k block. Each micro-kernel call also brings a slice
 * of the panel that comes next (`next`, or NULL) into L2. D is not prefetched: its rows fall into few sets of
 * L1 and push the panels out, which cost int8 2 per cent.
 */
static void run_panel(const gemm_job *job, const block_b *b, const panel_run *run, int64_t rows, bool add)
{
    int lines = job->side_a.lines, nr = job->kernel->nr;
    bool in_d = job->direct || job->sums_in_d;
    int64_t slices = (rows + lines - 1) / lines;
    size_t type = job->type_bytes;

    for (int64_t p = 0; p < b->k; p += job->cut.k) {
        int64_t k = weft_pack_k(job->kernel, min64(job->cut.k, b->k - p));
        const char *panel_b = run->panel + (size_t)(p * nr) * type;
        const char *ahead = run->next && !job->streams ? run->next + (size_t)(p * nr) * type : NULL;
        size_t slice = ((size_t)(k * nr) * type / (size_t)slices + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;

        for (int64_t i = 0; i < rows; i += lines) {
            const char *panel_a = job->a_block + (size_t)(p * slices * lines + i * k) * type;
            char *to = run->to + (size_t)(i * run->ld) * 4;
            int64_t height = min64(lines, rows - i);
            weft_microkernel multiply = i == 0 ? job->first : job->run;

            for (size_t line = 0; line < slice && ahead; line += CACHE_LINE)
                __builtin_prefetch(ahead + (size_t)(i / lines) * slice + line, 0, 2);
            if (p == 0 && run->next && b->first && job->tile->acc)
                prefetch_acc(job, run->i0 + i, height, run->j0 + nr,
                             min64(nr, b->j0 + b->cols - run->j0 - nr));
            if (in_d && (run->cols < nr || height < lines))
                run_edge(job, multiply, k, panel_a, panel_b, to, run->ld, height, run->cols, add || p > 0);
            else
                multiply(k, panel_a, panel_b, to, run->ld, add || p > 0);
        }
    }
}

/* Packed rows [i0, i0 + rows) of A, in the stripe that starts at s0, against one block of B. */
static void run_rows(const gemm_job *job, const block_b *b, int64_t s0, int64_t i0, int64_t rows)
{
    const weft_gemm_tile *tile = job->tile;
    int nr = job->kernel->nr;
    bool in_d = job->direct || job->sums_in_d;

    for (int64_t j = 0; j < b->cols; j += nr) {
        panel_run run = {
            .panel = b->panels + j / nr * b->panel_bytes,
            .i0 = i0,
            .j0 = b->j0 + j,
            .cols = min64(nr, b->cols - j),
            .to = job->sums,
            .ld = in_d ? tile->d_ld[0] : job->sums_ld,
        };
        bool add = !b->first;

        if (j + nr < b->cols)
            run.next = run.panel + b->panel_bytes;
        if (in_d)
            run.to = d_at(tile, 0, i0, run.j0);
        else if (job->cut.waits)
            run.to += (size_t)((i0 - s0) * run.ld + j) * 4;
        if (b->first && tile->acc) {
            copy_rows(run.to, run.ld, (const char *)tile->acc + (size_t)(i0 * tile->acc_ld + run.j0) * 4,
                      tile->acc_ld, rows, run.cols);
            add = true;
        }
        run_panel(job, b, &run, rows, add);
        if (b->last && !job->direct)
            finish_rows(tile, i0, rows, run.j0, run.cols, run.to, run.ld);
    }
}

/* Rows of A are packed one k block after the other: each is read in one sweep for every panel of B. */
static void run_stripe(const gemm_job *job, const block_b *b, int64_t s0, int64_t stripe_rows)
{
    const weft_gemm_tile *tile = job->tile;
    size_t a_size = weft_dtype_size(tile->a_dtype);

    for (int64_t i = s0; i < s0 + stripe_rows; i += job->cut.m) {
        int64_t rows = min64(job->cut.m, s0 + stripe_rows - i);
        char *to = job->a_block;

        for (int64_t p = 0; p < b->k; p += job->cut.k) {
            int64_t k = min64(job->cut.k, b->k - p);
            int64_t panel_bytes = weft_pack_k(job->kernel, k) * job->side_a.lines * (int64_t)job->type_bytes;
            int64_t at = i * tile->a_rs + (b->k0 + p) * tile->a_cs;

            weft_pack_panels(job->kernel, &job->side_a, to, panel_bytes,
                             (const char *)tile->a + (size_t)at * a_size, tile->a_dtype, tile->a_rs,
                             tile->a_cs, rows, k);
            to += round_up(rows, job->side_a.lines) / job->side_a.lines * panel_bytes;
        }
        run_rows(job, b, s0, i, rows);
    }
}

/* Makes the block of B ready: a window of the packed B, or packed here. */
static void prepare_b(const gemm_job *job, block_b *b)
{
    const weft_gemm_tile *tile = job->tile;
    const weft_kernel *kernel = job->kernel;

    if (tile->packed_b) {
        const weft_packed *packed = tile->packed_b;

        b->panel_bytes = packed->panel_bytes;
        b->panels = (const char *)(packed + 1) +
                    (tile->packed_n0 + b->j0) / kernel->nr * packed->panel_bytes +
                    (size_t)((tile->packed_k0 + b->k0) * kernel->nr) * job->type_bytes;
        return;
    }
    weft_pack_side side = weft_pack_side_b(kernel);
    const char *source = (const char *)tile->b +
                         (size_t)(b->k0 * tile->b_rs + b->j0 * tile->b_cs) * weft_dtype_size(tile->b_dtype);

    b->panel_bytes = weft_pack_k(kernel, b->k) * kernel->nr * (int64_t)job->type_bytes;
    b->panels = job->b_block;
    weft_pack_panels(kernel, &side, job->b_block, b->panel_bytes, source, tile->b_dtype, tile->b_cs,
                     tile->b_rs, b->cols, b->k);
}

/* Whether a tile with these operands goes straight through a streaming kernel. */
static const weft_stream *stream_of(const weft_gemm_tile *tile)
{
    const weft_kernel *kernel = tile->bind->kernel;
    const weft_stream *stream = tile->b_rs == 1 ? kernel->along : tile->b_cs == 1 ? kernel->across : NULL;

    if (tile->packed_b || tile->b_dtype != kernel->type)
        return NULL;
    while (stream && stream->rows && stream->rows < tile->m)
        stream++;
    return stream && stream->rows ? stream : NULL;
}

/* Few rows, B used once: A is packed whole, B is read where it lies. */
static void run_streamed(const weft_gemm_tile *tile, const weft_stream *stream, char *workspace)
{
    const weft_kernel *kernel = tile->bind->kernel;
    weft_pack_side side = weft_pack_side_a(kernel, stream->rows);
    int64_t padded_k = weft_pack_k(kernel, tile->k);
    size_t a_bytes = aligned_bytes(padded_k * side.lines, weft_dtype_size(kernel->type));
    char *sums = workspace + a_bytes;

    weft_pack_panels(kernel, &side, workspace, (int64_t)a_bytes, tile->a, tile->a_dtype, tile->a_rs,
                     tile->a_cs, tile->m, tile->k);
    if (tile->acc)
        copy_rows(sums, tile->n, tile->acc, tile->acc_ld, tile->m, tile->n);
    stream->run(tile->m, tile->n, tile->k, cut_evenly(tile->k, tile->bind->kc, kernel->k_step), workspace,
                tile->b, tile->b_rs == 1 ? tile->b_cs : tile->b_rs, sums, tile->n, tile->acc != NULL);
    finish_rows(tile, 0, tile->m, 0, tile->n, sums, tile->n);
}

/* k = 0: the sums are what came in, or zero. */
static void run_empty(const gemm_job *job)
{
    const weft_gemm_tile *tile = job->tile;
    int nr = job->kernel->nr;

    memset(job->sums, 0, (size_t)nr * 4);
    for (int64_t i = 0; i < tile->m; i++) {
        for (int64_t j = 0; j < tile->n; j += nr) {
            const char *from =
                tile->acc ? (const char *)tile->acc + (size_t)(i * tile->acc_ld + j) * 4 : job->sums;

            finish_rows(tile, i, 1, j, min64(nr, tile->n - j), from, 0);
        }
    }
}

/* The narrowest kernel for so few rows, or NULL. */
static const weft_few *few_of(const weft_kernel *kernel, int64_t m)
{
    const weft_few *few = kernel->few;

    while (few && few->rows && few->rows < m)
        few++;
    return few && few->rows ? few : NULL;
}

static gemm_job make_job(const weft_gemm_tile *tile, char *workspace)
{
    const weft_kernel *kernel = tile->bind->kernel;
    const weft_few *few = few_of(kernel, tile->m);
    bool packed = tile->packed_b != NULL;
    weft_dtype d_dtype = tile->raw ? accumulator_of(tile) : tile->d_dtype;
    bool d_holds_sums = d_dtype == accumulator_of(tile) && (tile->raw || tile->beta == 0 || !tile->c);
    gemm_job job = {
        .tile = tile,
        .kernel = kernel,
        .run = few ? few->run : kernel->run,
        .side_a = weft_pack_side_a(kernel, few ? few->rows : kernel->mr),
        .cut = cut_blocks(tile->bind, tile->m, tile->n, tile->k, packed, d_holds_sums),
        .direct = is_identity(tile) && tile->d_count == 1,
        .type_bytes = weft_dtype_size(kernel->type),
    };

    job.streams = few || (packed && kernel->run_ahead && tile->m <= STREAM_ROWS_MOST);
    job.first = job.streams && !few ? kernel->run_ahead : job.run;
    job.sums_in_d = d_holds_sums && job.cut.waits;
    job.a_block = workspace;
    job.b_block = job.a_block + a_block_bytes(kernel, &job.cut);
    job.sums = job.b_block + (packed ? 0 : b_block_bytes(kernel, &job.cut));
    job.sums_ld = job.cut.waits ? job.cut.n : kernel->nr;
    return job;
}

void weft_gemm_run_tile(const weft_gemm_tile *tile, void *workspace)
{
    const weft_stream *stream = stream_of(tile);

    if (stream && tile->k > 0) {
        run_streamed(tile, stream, workspace);
        return;
    }
    gemm_job job = make_job(tile, workspace);

    if (tile->k == 0) {
        run_empty(&job);
        return;
    }
    for (int64_t j = 0; j < tile->n; j += job.cut.n) {
        for (int64_t s = 0; s < tile->m; s += job.cut.stripe) {
            for (int64_t p = 0; p < tile->k; p += job.cut.stretch) {
                block_b b = {
                    .j0 = j,
                    .cols = min64(job.cut.n, tile->n - j),
                    .k0 = p,
                    .k = min64(job.cut.stretch, tile->k - p),
                    .first = p == 0,
                    .last = p + job.cut.stretch >= tile->k,
                };

                prepare_b(&job, &b);
                run_stripe(&job, &b, s, min64(job.cut.stripe, tile->m - s));
            }
        }
    }
}
