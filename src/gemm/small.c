/*
 * Small products: A and B are used as they lie, by a kernel for what is not packed, since packing would take
 * longer than it gains. They need little memory or none, so that a call for one need not ask for any.
 *
 *     k block > rows of micro-tiles > columns: the kernel
 *
 * The order of every sum is that of what is packed, so that what counts as small decides nothing but the
 * time.
 */
#include "core/dtype.h"
#include "core/round.h"
#include "gemm/job.h"

enum {
    SMALL_TILES = 6,           /* micro-tiles, half the sides of a square D that is not worth packing */
    SMALL_ROWS = 24,           /* that leave all of a B unpacked that stays in L2 */
    SMALL_K = 32,              /* worth laying out a transposed B for, */
    LAID_ROWS = 4,             /* with more rows than these */
    SAME_SET_BYTES = 4096,     /* lines so far apart share a set of L1, */
    SAME_SET_PRODUCT = 1 << 20 /* which costs more than packing from so many multiplications on */
};

/* Whether rows of a matrix, as it lies, share a set of L1. */
static bool shares_sets(int64_t row_stride, int64_t size)
{
    return row_stride * size % SAME_SET_BYTES == 0;
}

/* A B of lines of k is laid out first, which pays where it is little, else neither few rows nor a short k. */
static bool pays_laying_out(const weft_gemm_tile *tile, int64_t little)
{
    return tile->m > LAID_ROWS ? tile->k >= SMALL_K || tile->m * tile->n <= little
                               : tile->m > 1 && tile->k * tile->n <= little;
}

/*
 * Whether packing costs more than it gains: that is a share of 1 / m + 1 / n of the product. Rows of A are
 * read as they lie once for every micro-tile in a row of D, lines of B once for every row of micro-tiles: so
 * B is nearly in L1, or it stays in L2 and rows are few, and so does an A of which only pieces of lines are
 * read.
 */
static bool is_small(const weft_gemm_tile *tile)
{
    const weft_binding *bind = tile->bind;
    int64_t size = (int64_t)weft_dtype_size(bind->kernel->type), m = tile->m, n = tile->n, k = tile->k;
    int64_t in_l1 = bind->l1_bytes / size, in_l2 = (int64_t)bind->mc * bind->kc;
    bool lies = tile->b_cs == 1, along = tile->a_cs == 1;

    if (m * n > (m + n) * SMALL_TILES * bind->kernel->mr || (!along && m * k > in_l2 / 2))
        return false;
    if (!lies && !pays_laying_out(tile, in_l1 / 8))
        return false;
    if (((along && shares_sets(tile->a_rs, size)) || (lies && shares_sets(tile->b_rs, size))) &&
        k * n * m > SAME_SET_PRODUCT)
        return false;
    return k * n <= 2 * in_l1 || k * n * weft_max(m, SMALL_ROWS) <= in_l2 * SMALL_ROWS;
}

/* Whether a tile is small, and such as a kernel for what is not packed takes. */
bool weft_gemm_is_small(const weft_gemm_tile *tile)
{
    const weft_binding *bind = tile->bind;
    const weft_kernel *kernel = bind->kernel;

    return kernel->unpacked && bind->narrow == WEFT_F32 && tile->a_dtype == kernel->type &&
           tile->b_dtype == kernel->type && !tile->packed_b && !tile->acc && !tile->d_in_order &&
           tile->d_count == 1 && tile->k > 0 && is_small(tile) &&
           (tile->k <= bind->kc || weft_job_is_identity(tile));
}

/* For a small product (is_small): panels of a B of lines of k, the last of them filled up, and sums of a row
 * of micro-tiles. */
size_t weft_gemm_small_bytes_most(const weft_binding *bind, int64_t n, int64_t k)
{
    const weft_kernel *kernel = bind->kernel;
    int64_t size = (int64_t)weft_dtype_size(kernel->type), block = weft_pack_k(kernel, weft_min(k, bind->kc));
    int64_t most = weft_max((int64_t)bind->mc * bind->kc, 2 * bind->l1_bytes / size) + block * kernel->nr;

    return aligned_bytes(weft_min(weft_round_up(n, kernel->nr) * block, most), (size_t)size) +
           aligned_bytes((int64_t)kernel->mr * GROUP_COLUMNS, 4);
}

static int64_t block_of(const weft_gemm_tile *tile)
{
    return weft_job_cut_evenly(tile->k, tile->bind->kc, tile->bind->kernel->k_step);
}

/* Of panels of a B of lines of k. */
static size_t panels_bytes(const weft_gemm_tile *tile)
{
    const weft_kernel *kernel = tile->bind->kernel;

    return tile->b_cs == 1 ? 0
                           : aligned_bytes(weft_round_up(tile->n, kernel->nr) * block_of(tile),
                                           weft_dtype_size(kernel->type));
}

int64_t weft_gemm_small_bytes(const weft_gemm_tile *tile)
{
    if (!weft_gemm_is_small(tile))
        return -1;
    return (int64_t)panels_bytes(tile) +
           (weft_job_is_identity(tile) ? 0 : tile->bind->kernel->mr * GROUP_COLUMNS * 4);
}

/* Rows of micro-tiles; a B of lines of k is laid out as panels first. */
void weft_gemm_run_small(const weft_gemm_tile *tile, void *workspace)
{
    const weft_kernel *kernel = tile->bind->kernel;
    int64_t size = (int64_t)weft_dtype_size(kernel->type), block = block_of(tile);
    bool in_d = weft_job_is_identity(tile), lies = tile->b_cs == 1;
    int64_t width = !lies ? kernel->nr : in_d ? tile->n : GROUP_COLUMNS;
    int64_t rows = lies && in_d ? tile->m : weft_job_cut_evenly(tile->m, kernel->mr, 1);
    weft_pack_side side = weft_pack_side_b(tile->bind);
    char *panels = workspace, *sums = panels + panels_bytes(tile);

    for (int64_t p = 0; p < tile->k; p += block) {
        int64_t k = weft_min(block, tile->k - p), panel_bytes = k * width * size;
        const char *b = (const char *)tile->b + p * tile->b_rs * size;

        if (!lies)
            weft_pack_panels(kernel, &side, panels, panel_bytes, b, tile->b_dtype, tile->b_cs, tile->b_rs,
                             tile->n, k);
        for (int64_t i = 0; i < tile->m; i += rows)
            for (int64_t j = 0; j < tile->n; j += width) {
                weft_unpacked s = {.m = weft_min(rows, tile->m - i),
                                   .n = weft_min(width, tile->n - j),
                                   .k = k,
                                   .a = (const char *)tile->a + (i * tile->a_rs + p * tile->a_cs) * size,
                                   .a_rs = tile->a_rs,
                                   .a_cs = tile->a_cs,
                                   .b = lies ? b + j * size : panels + j / width * panel_bytes,
                                   .ldb = lies ? tile->b_rs : width,
                                   .c = in_d ? d_at(tile, 0, i, j, (size_t)size) : sums,
                                   .c_ld = in_d ? tile->d_ld[0] : width,
                                   .add = p > 0};

                kernel->unpacked(&s);
                if (!in_d)
                    weft_job_store(tile, i, s.m, j, s.n, sums, width);
            }
    }
}
