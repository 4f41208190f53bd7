/*
 * Few rows of A against a row-major B that is used once: B is packed and used up a piece at a time.
 *
 *     columns, as many as sums fit L2 > k block > piece of k > part of the columns: pack, multiply
 *
 * A piece is few successive rows of B over many columns. So B is read in long sequences, which hardware
 * fetches ahead, and what is packed goes no further than L2 or L3. The price is that sums are put aside
 * between pieces; the kernel leaves them as its registers have them (weft_keeper) and goes on from there, so
 * that the order of every sum is that of whole blocks.
 */
#include "core/dtype.h"
#include "core/round.h"
#include "gemm/job.h"

#include <string.h>

enum {
    ROWS_MOST = 16,          /* more rows are worth packing all of k first: then sums stay where they are */
    PIECE_BYTES = 256,       /* of k in each column */
    PART_BYTES = 1024 << 10, /* of a packed part of a piece */
    KEPT_BYTES = 512 << 10,  /* of sums put aside */
    APART_BYTES = 17 * 64    /* between panels of A, so that they do not share sets of L1 */
};

typedef struct pieces {
    const weft_gemm_tile *tile;
    const weft_kernel *kernel;
    int64_t size, panels; /* of an element; of A */
    int64_t panel_a;      /* elements */
    const char *a;
    char *part, *kept, *sums; /* sums: rows of n */
} pieces;

bool weft_few_rows_suit(const weft_gemm_tile *tile)
{
    const weft_kernel *kernel = tile->bind->kernel;

    return kernel->keep && !tile->packed_b && !tile->acc_in_order && !tile->d_in_order && tile->k > 0 &&
           tile->m <= ROWS_MOST && tile->b_cs == 1;
}

size_t weft_few_rows_bytes(const weft_binding *bind, int64_t m, int64_t n, int64_t k)
{
    const weft_kernel *kernel = bind->kernel;
    int64_t rows = weft_round_up(weft_min(m, ROWS_MOST), kernel->mr);

    return aligned_bytes(rows * weft_pack_k(kernel, k), weft_dtype_size(kernel->type)) +
           (size_t)(rows / kernel->mr * APART_BYTES) + WEFT_GEMM_ALIGNMENT + PART_BYTES + KEPT_BYTES +
           aligned_bytes(weft_min(m, ROWS_MOST) * n, 4);
}

/* k [p, p + k) and columns [j, j + cols): packed, then every panel of A passes every panel of them. */
static void run_part(const pieces *s, int64_t p, int64_t k, int64_t j, int64_t cols, char *kept, bool first)
{
    const weft_gemm_tile *tile = s->tile;
    const weft_kernel *kernel = s->kernel;
    weft_pack_side side = weft_pack_side_b(tile->bind);
    int64_t padded = weft_pack_k(kernel, k), panel_bytes = padded * kernel->nr * s->size;
    int64_t micro = (int64_t)kernel->mr * kernel->nr * 4;

    weft_pack_panels(kernel, &side, s->part, panel_bytes,
                     (const char *)tile->b + (p * tile->b_rs + j) * (int64_t)weft_dtype_size(tile->b_dtype),
                     tile->b_dtype, 1, tile->b_rs, cols, k);
    for (int64_t x = 0; x < weft_divide_up(cols, kernel->nr); x++) {
        for (int64_t i = 0; i < s->panels; i++, kept += micro)
            kernel->keep(padded, s->a + (i * s->panel_a + p * kernel->mr) * s->size,
                         s->part + x * panel_bytes, first ? NULL : kept, kept);
    }
}

/* Sums put aside become rows, or are added to them. */
static void add_tile(const pieces *s, const char *kept, int64_t i0, int64_t j0, int64_t cols, bool add)
{
    const weft_gemm_tile *tile = s->tile;
    int64_t rows = weft_min(s->kernel->mr, tile->m - i0);
    bool integer = s->kernel->type == WEFT_I8;
    union {
        uint32_t bits[TILE_ELEMENTS_MAX];
        float real[TILE_ELEMENTS_MAX];
    } row;

    for (int64_t i = 0; i < rows; i++) {
        void *to = s->sums + ((i0 + i) * tile->n + j0) * 4;

        weft_kept_row(s->kernel, kept, i, row.bits);
        for (int64_t j = 0; j < cols && add; j++) {
            if (integer)
                row.bits[j] += ((const uint32_t *)to)[j];
            else
                row.real[j] = ((const float *)to)[j] + row.real[j];
        }
        memcpy(to, row.bits, (size_t)cols * 4);
    }
}

/* Columns [j0, j0 + cols), all of k. */
static void run_columns(const pieces *s, int64_t j0, int64_t cols)
{
    const weft_gemm_tile *tile = s->tile;
    const weft_kernel *kernel = s->kernel;
    int64_t nr = kernel->nr, micro = (int64_t)kernel->mr * nr * 4;
    int64_t block = weft_job_cut_evenly(tile->k, tile->bind->kc, kernel->k_step);
    int64_t piece = weft_round_up(PIECE_BYTES / s->size, kernel->k_step);
    int64_t wide = PART_BYTES / (piece * s->size) / nr * nr;

    for (int64_t p = 0; p < tile->k; p += block) {
        int64_t end = weft_min(p + block, tile->k);

        for (int64_t q = p; q < end; q += piece) {
            for (int64_t j = 0; j < cols; j += wide)
                run_part(s, q, weft_min(piece, end - q), j0 + j, weft_min(wide, cols - j),
                         s->kept + j / nr * s->panels * micro, q == p);
        }
        for (int64_t j = 0; j < cols; j += nr) {
            for (int64_t i = 0; i < s->panels; i++)
                add_tile(s, s->kept + (j / nr * s->panels + i) * micro, i * kernel->mr, j0 + j,
                         weft_min(nr, cols - j), p > 0 || tile->acc);
        }
    }
}

void weft_few_rows_run(const weft_gemm_tile *tile, char *workspace)
{
    const weft_kernel *kernel = tile->bind->kernel;
    weft_pack_side side = weft_pack_side_a(tile->bind, kernel->mr);
    pieces s = {
        .tile = tile,
        .kernel = kernel,
        .size = (int64_t)weft_dtype_size(kernel->type),
        .panels = weft_divide_up(tile->m, kernel->mr),
        .a = workspace,
    };
    s.panel_a = weft_pack_k(kernel, tile->k) * kernel->mr + APART_BYTES / s.size;
    int64_t wide = KEPT_BYTES / (s.panels * kernel->mr * 4) / kernel->nr * kernel->nr;

    s.part = workspace + aligned_bytes(s.panels * s.panel_a, (size_t)s.size);
    s.kept = s.part + PART_BYTES;
    s.sums = s.kept + KEPT_BYTES;
    weft_pack_panels(kernel, &side, workspace, s.panel_a * s.size, tile->a, tile->a_dtype, tile->a_rs,
                     tile->a_cs, tile->m, tile->k);
    if (tile->acc)
        weft_job_copy(s.sums, tile->n, tile->acc, tile->acc_ld, tile->m, tile->n);
    for (int64_t j = 0; j < tile->n; j += wide)
        run_columns(&s, j, weft_min(wide, tile->n - j));
    weft_job_store(tile, 0, tile->m, 0, tile->n, s.sums, tile->n);
}
