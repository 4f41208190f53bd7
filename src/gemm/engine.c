/*
 * The loops around the micro-kernel, for one tile.
 *
 *     columns (nc) > row stripes > k blocks (kc): pack B > row blocks (mc): pack A > groups of B panels >
 *     B panel > A panel: micro-kernel
 *
 * The packed block of A stays in the L2 cache while all columns pass by, one panel of B stays in L1. Sums of
 * earlier k blocks wait in D itself where D can hold them, else in the workspace; the stripe bounds how much
 * that is. When k is one block the workspace holds only a group of panels at a time, so the epilogue finds
 * its input in cache and works on rows long enough to vectorize.
 */
#include "core/dtype.h"
#include "gemm/epilogue.h"
#include "gemm/gemm.h"
#include "gemm/pack.h"

#include <string.h>

enum {
    GROUP_COLUMNS = 96,         /* of the workspace that the epilogue empties while it is in cache */
    STRIPE_BYTES = 4 << 20,     /* of sums kept in the workspace between k blocks */
    TILE_ELEMENTS_MAX = 64 * 64 /* mr * nr of the largest micro-kernel */
};

typedef struct extent {
    int64_t block; /* every block but the last has this length */
    int64_t count;
} extent;

typedef struct blocks {
    extent m, n, k, stripe;
    int64_t padded_k; /* of one block */
} blocks;

typedef struct gemm_job {
    const weft_gemm_tile *tile;
    const weft_kernel *kernel;
    weft_microkernel run;
    weft_pack_side side_a;
    blocks cut;
    bool direct;       /* D takes the micro-kernel's output as it is */
    bool sums_in_d;    /* D holds the sums between k blocks */
    size_t type_bytes; /* of a panel element */
    char *a_block, *b_block, *sums;
    int64_t sums_ld;
} gemm_job;

/* One block of columns of B in one block of k. */
typedef struct block_b {
    const char *panels;
    int64_t panel_bytes;
    int64_t j0, cols; /* columns of the tile */
    int64_t k;        /* multiple of k_step */
    bool first, last; /* of the blocks of k */
} block_b;

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
}

/* Equal blocks of at most `most`, each a multiple of `step`. */
static extent cut_evenly(int64_t length, int64_t most, int64_t step)
{
    int64_t count = (length + most - 1) / most;

    if (count <= 1)
        return (extent){.block = length > 0 ? length : 1, .count = length > 0};
    int64_t block = round_up((length + count - 1) / count, step);

    return (extent){.block = block, .count = (length + block - 1) / block};
}

static blocks cut_blocks(const weft_binding *bind, int64_t m, int64_t n, int64_t k, bool packed,
                         bool sums_in_d)
{
    const weft_kernel *kernel = bind->kernel;
    blocks cut = {
        .m = cut_evenly(m, bind->mc, kernel->mr),
        .n = cut_evenly(n, bind->nc, kernel->nr),
        .k = cut_evenly(k, bind->kc, kernel->k_step),
    };
    int64_t rows = STRIPE_BYTES / (4 * round_up(cut.n.block, kernel->nr)) / cut.m.block * cut.m.block;

    cut.padded_k = weft_pack_k(kernel, cut.k.block);
    if (cut.k.count <= 1 || sums_in_d)
        cut.stripe.block = m > 0 ? m : 1;
    else if (packed || rows < cut.m.block)
        cut.stripe.block = cut.m.block;
    else
        cut.stripe.block = rows;
    cut.stripe.count = (m + cut.stripe.block - 1) / cut.stripe.block;
    return cut;
}

static int64_t group_columns(const weft_kernel *kernel)
{
    return round_up(GROUP_COLUMNS, kernel->nr);
}

static size_t aligned_bytes(int64_t elements, size_t size)
{
    return ((size_t)elements * size + WEFT_GEMM_ALIGNMENT - 1) / WEFT_GEMM_ALIGNMENT * WEFT_GEMM_ALIGNMENT;
}

static size_t a_block_bytes(const weft_kernel *kernel, const blocks *cut)
{
    return aligned_bytes(round_up(cut->m.block, kernel->mr) * cut->padded_k, weft_dtype_size(kernel->type));
}

static size_t b_block_bytes(const weft_kernel *kernel, const blocks *cut)
{
    return aligned_bytes(round_up(cut->n.block, kernel->nr) * cut->padded_k, weft_dtype_size(kernel->type));
}

/* Columns of the workspace's sums: the whole block between k blocks, else one group. */
static int64_t sums_columns(const weft_kernel *kernel, const blocks *cut)
{
    return cut->k.count > 1 ? round_up(cut->n.block, kernel->nr) : group_columns(kernel);
}

size_t weft_gemm_workspace_bytes(const weft_binding *bind, int64_t m, int64_t n, int64_t k, bool packed_b)
{
    /* Blocks of a smaller tile are never longer than these, because cutting evenly never exceeds mc, nc, kc.
     */
    const weft_kernel *kernel = bind->kernel;
    blocks most = {
        .m = {.block = min64(round_up(m, kernel->mr), round_up(bind->mc, kernel->mr))},
        .n = {.block = min64(round_up(n, kernel->nr), round_up(bind->nc, kernel->nr))},
        .k = {.block = min64(weft_pack_k(kernel, k), weft_pack_k(kernel, bind->kc)),
              .count = k > bind->kc ? 2 : 1},
    };
    int64_t most_sums = most.m.block * most.n.block;

    most.padded_k = most.k.block;
    if (!packed_b && most_sums < STRIPE_BYTES / 4)
        most_sums = min64(STRIPE_BYTES / 4, round_up(m, kernel->mr) * most.n.block);
    if (most.k.count <= 1 || most_sums < most.m.block * group_columns(kernel))
        most_sums = most.m.block * group_columns(kernel);
    return a_block_bytes(kernel, &most) + (packed_b ? 0 : b_block_bytes(kernel, &most)) +
           aligned_bytes(most_sums + kernel->mr * group_columns(kernel), 4);
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

static void epilogue_rows(const weft_gemm_tile *tile, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                          const char *sums, int64_t sums_ld)
{
    weft_epilogue epilogue = {
        .alpha = tile->alpha,
        .beta = tile->beta,
        .act = tile->act,
        .acc_dtype = accumulator_of(tile),
        .d_dtype = tile->raw ? accumulator_of(tile) : tile->d_dtype,
    };
    size_t size = weft_dtype_size(epilogue.d_dtype);
    bool plain = tile->raw || is_identity(tile);

    for (int64_t i = 0; i < rows; i++) {
        const char *from = sums + (size_t)(i * sums_ld) * 4;
        const char *c = tile->c && tile->beta != 0
                            ? (const char *)tile->c + (size_t)((i0 + i) * tile->c_ld + j0) * size
                            : NULL;
        char *first = d_at(tile, 0, i0 + i, j0);

        if (!plain)
            weft_epilogue_row(&epilogue, cols, from, tile->row_scale ? tile->row_scale[i0 + i] : 1,
                              tile->col_scale ? tile->col_scale + j0 : NULL, c,
                              tile->bias ? (const char *)tile->bias + (size_t)j0 * size : NULL, first);
        else if (from != first)
            memcpy(first, from, (size_t)cols * 4);
        for (int d = 1; d < tile->d_count; d++)
            memcpy(d_at(tile, d, i0 + i, j0), first, (size_t)cols * size);
    }
}

static void copy_rows(char *to, int64_t to_ld, const char *from, int64_t from_ld, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows && (to != from || to_ld != from_ld); i++)
        memcpy(to + (size_t)(i * to_ld) * 4, from + (size_t)(i * from_ld) * 4, (size_t)cols * 4);
}

/* A micro-tile that hangs over the edge of D: computed aside, its inner part then stored or added. */
static void run_edge(const gemm_job *job, const block_b *b, const char *panel_a, const char *panel_b,
                     char *to, int64_t ld, int64_t rows, int64_t cols, bool add)
{
    _Alignas(64) uint32_t aside[TILE_ELEMENTS_MAX];
    int nr = job->kernel->nr;
    bool integer = job->kernel->type == WEFT_I8;

    job->run(b->k, panel_a, panel_b, aside, nr, 0);
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

/* All micro-tiles of `rows` rows (packed in a_block) and the columns [g0, g0 + cols) of the block of B. */
static void run_group(const gemm_job *job, const block_b *b, int64_t rows, int64_t g0, int64_t cols, char *to,
                      int64_t ld, bool in_d, bool add)
{
    int lines = job->side_a.lines, nr = job->kernel->nr;
    size_t a_panel = (size_t)(b->k * lines) * job->type_bytes;

    for (int64_t j = 0; j < cols; j += nr) {
        const char *panel_b = b->panels + (g0 + j) / nr * b->panel_bytes;
        int64_t width = min64(nr, cols - j);

        for (int64_t i = 0; i < rows; i += lines) {
            const char *panel_a = job->a_block + (size_t)(i / lines) * a_panel;
            char *here = to + (size_t)(i * ld + j) * 4;
            int64_t height = min64(lines, rows - i);

            if (in_d && (width < nr || height < lines))
                run_edge(job, b, panel_a, panel_b, here, ld, height, width, add);
            else
                job->run(b->k, panel_a, panel_b, here, ld, add);
        }
    }
}

/* One packed block of A (rows [i0, i0 + rows), rows counted in the stripe from s0) against one block of B. */
static void run_block(const gemm_job *job, const block_b *b, int64_t s0, int64_t i0, int64_t rows)
{
    const weft_gemm_tile *tile = job->tile;
    int64_t group = group_columns(job->kernel);

    for (int64_t g = 0; g < b->cols; g += group) {
        int64_t cols = min64(group, b->cols - g), j = b->j0 + g, ld;
        bool in_d = job->direct || job->sums_in_d, add = !b->first;
        char *to;

        if (in_d) {
            to = d_at(tile, 0, i0, j);
            ld = tile->d_ld[0];
        } else {
            bool kept = job->cut.k.count > 1;

            to = job->sums + (kept ? (size_t)((i0 - s0) * job->sums_ld + g) * 4 : 0);
            ld = job->sums_ld;
        }
        if (b->first && tile->acc) {
            copy_rows(to, ld, (const char *)tile->acc + (size_t)(i0 * tile->acc_ld + j) * 4, tile->acc_ld,
                      rows, cols);
            add = true;
        }
        run_group(job, b, rows, g, cols, to, ld, in_d, add);
        if (b->last && !job->direct)
            epilogue_rows(tile, i0, rows, j, cols, to, ld);
    }
}

static void run_stripe(const gemm_job *job, block_b *b, int64_t s0, int64_t stripe_rows, int64_t k0,
                       int64_t k)
{
    const weft_gemm_tile *tile = job->tile;
    size_t a_size = weft_dtype_size(tile->a_dtype);

    for (int64_t i = s0; i < s0 + stripe_rows; i += job->cut.m.block) {
        int64_t rows = min64(job->cut.m.block, s0 + stripe_rows - i);

        weft_pack_panels(job->kernel, &job->side_a, job->a_block,
                         b->k * job->side_a.lines * (int64_t)job->type_bytes,
                         (const char *)tile->a + (size_t)(i * tile->a_rs + k0 * tile->a_cs) * a_size,
                         tile->a_dtype, tile->a_rs, tile->a_cs, rows, k);
        run_block(job, b, s0, i, rows);
    }
}

/* Makes the block of B at columns j0 and k0 ready: a window of the packed B, or packed here. */
static void prepare_b(const gemm_job *job, block_b *b, int64_t k0, int64_t k)
{
    const weft_gemm_tile *tile = job->tile;
    const weft_kernel *kernel = job->kernel;

    b->k = weft_pack_k(kernel, k);
    if (tile->packed_b) {
        const weft_packed *packed = tile->packed_b;

        b->panel_bytes = packed->panel_bytes;
        b->panels = (const char *)(packed + 1) +
                    (tile->packed_n0 + b->j0) / kernel->nr * packed->panel_bytes +
                    (size_t)((tile->packed_k0 + k0) * kernel->nr) * job->type_bytes;
        return;
    }
    weft_pack_side side = weft_pack_side_b(kernel);
    const char *source = (const char *)tile->b +
                         (size_t)(k0 * tile->b_rs + b->j0 * tile->b_cs) * weft_dtype_size(tile->b_dtype);

    b->panel_bytes = b->k * kernel->nr * (int64_t)job->type_bytes;
    b->panels = job->b_block;
    weft_pack_panels(kernel, &side, job->b_block, b->panel_bytes, source, tile->b_dtype, tile->b_cs,
                     tile->b_rs, b->cols, k);
}

/* k = 0: the accumulators are what came in, or zero. */
static void run_empty(const gemm_job *job)
{
    const weft_gemm_tile *tile = job->tile;
    int64_t group = group_columns(job->kernel);

    memset(job->sums, 0, (size_t)group * 4);
    for (int64_t i = 0; i < tile->m; i++) {
        for (int64_t j = 0; j < tile->n; j += group) {
            const char *from =
                tile->acc ? (const char *)tile->acc + (size_t)(i * tile->acc_ld + j) * 4 : job->sums;

            epilogue_rows(tile, i, 1, j, min64(group, tile->n - j), from, 0);
        }
    }
}

void weft_gemm_run_tile(const weft_gemm_tile *tile, void *workspace)
{
    const weft_kernel *kernel = tile->bind->kernel;
    bool few = kernel->run_few && tile->m <= kernel->few_rows;
    gemm_job job = {
        .tile = tile,
        .kernel = kernel,
        .run = few ? kernel->run_few : kernel->run,
        .side_a = weft_pack_side_a(kernel, few),
        .type_bytes = weft_dtype_size(kernel->type),
        .direct = is_identity(tile) && tile->d_count == 1,
    };
    weft_dtype d_dtype = tile->raw ? accumulator_of(tile) : tile->d_dtype;

    job.sums_in_d = d_dtype == accumulator_of(tile) && (tile->beta == 0 || !tile->c || tile->raw);
    job.cut = cut_blocks(tile->bind, tile->m, tile->n, tile->k, tile->packed_b != NULL, job.sums_in_d);
    job.sums_in_d = job.sums_in_d && job.cut.k.count > 1;
    job.a_block = workspace;
    job.b_block = job.a_block + a_block_bytes(kernel, &job.cut);
    job.sums = job.b_block + (tile->packed_b ? 0 : b_block_bytes(kernel, &job.cut));
    job.sums_ld = sums_columns(kernel, &job.cut);
    if (tile->k == 0) {
        run_empty(&job);
        return;
    }
    for (int64_t j = 0; j < tile->n; j += job.cut.n.block) {
        for (int64_t s = 0; s < tile->m; s += job.cut.stripe.block) {
            int64_t rows = min64(job.cut.stripe.block, tile->m - s);

            for (int64_t p = 0; p < tile->k; p += job.cut.k.block) {
                int64_t k = min64(job.cut.k.block, tile->k - p);
                block_b b = {
                    .j0 = j,
                    .cols = min64(job.cut.n.block, tile->n - j),
                    .first = p == 0,
                    .last = p + k == tile->k,
                };

                prepare_b(&job, &b, p, k);
                run_stripe(&job, &b, s, rows, p, k);
            }
        }
    }
}
