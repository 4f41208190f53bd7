/*
 * One tile on its way through the engine: how it is cut, which kernel runs, where sums lie. Private to
 * engine.c, which cuts and packs, and macro_kernel.c, which multiplies and stores.
 */
#ifndef WEFT_GEMM_JOB_H
#define WEFT_GEMM_JOB_H

#include "gemm/gemm.h"
#include "core/round.h"
#include "gemm/pack.h"

#include <string.h>

enum {
    TILE_ELEMENTS_MAX = 64 * 64, /* mr * nr of the largest micro-kernel */
    GROUP_COLUMNS = 192          /* of a group of panels, at most */
};

typedef struct blocks {
    int64_t k, k_count; /* length of a k block, how many */
    int64_t stretch;    /* length of a stretch: a multiple of k */
    int64_t m;          /* rows of A packed at a time */
    int64_t n;          /* columns at a time */
    int64_t band;       /* rows whose sums wait in the workspace; m when nothing waits */
    bool waits;         /* there is more than one stretch */
} blocks;

typedef struct gemm_job {
    const weft_gemm_tile *tile;
    const weft_kernel *kernel;
    weft_microkernel run, first; /* for each panel of A; for the first of them, which brings B in */
    weft_edge_kernel edge; /* or NULL: for edges of them, where panels of A have the kernel's own rows */
    weft_pack_side side_a;
    blocks cut;
    bool streams;               /* the micro-kernel itself prefetches B */
    bool widens;                /* B is packed as halves, which the micro-kernel does not read */
    weft_finisher finish;       /* or NULL: writes D from registers, for whole micro-tiles */
    int64_t group;              /* panels of B that pass a panel of A at a time */
    bool b_stays;               /* in L2, all of it */
    bool carried;               /* sums come or stay in the order of weft_keeper */
    bool spreads;               /* D[1] is copied from D[0], some columns at a time */
    bool direct;                /* D[0] takes the micro-kernel's output as it is */
    bool sums_in_d;             /* D[0] holds the sums between stretches */
    bool gathers;               /* D[0] likewise, but sums of one stretch are gathered in the workspace */
    size_t type_bytes, d_bytes; /* of an element */
    char *a_block, *b_block, *sums;
    int64_t sums_ld;
} gemm_job;

/* A block of columns of B over a stretch of k, ready to use. */
typedef struct block_b {
    const char *panels;
    int64_t panel_bytes;
    int64_t type_bytes; /* of an element */
    int64_t j0, cols;
    int64_t k0, k;    /* of the tile */
    bool first, last; /* stretch of k */
} block_b;

static inline size_t aligned_bytes(int64_t elements, size_t size)
{
    return weft_round_up_bytes((size_t)elements * size, WEFT_GEMM_ALIGNMENT);
}

/* The length of equal blocks of at most `most`, a multiple of `step`; `length` itself if it fits. */
static inline int64_t weft_job_cut_evenly(int64_t length, int64_t most, int64_t step)
{
    int64_t count = weft_divide_up(length, most);

    return count <= 1 ? weft_round_up(length > 0 ? length : 1, step)
                      : weft_round_up(weft_divide_up(length, count), step);
}

static inline char *d_at(const weft_gemm_tile *tile, int which, int64_t i, int64_t j, size_t size)
{
    return (char *)tile->d[which] + (size_t)(i * tile->d_ld[which] + j) * size;
}

/* Row i of a micro-tile as weft_keeper leaves it: side by side, or two elements of each block of 2 x 2. */
static inline void weft_kept_row(const weft_kernel *kernel, const char *kept, int64_t i, uint32_t *row)
{
    if (kernel->keep_block == 1) {
        memcpy(row, kept + i * kernel->nr * 4, (size_t)kernel->nr * 4);
    } else {
        const char *from = kept + (i / 2 * 2 * kernel->nr + i % 2 * 2) * 4;

        for (int64_t j = 0; j < kernel->nr; j += 2)
            memcpy(row + j, from + j * 8, 8);
    }
}

/* The other way: for one to start from. */
static inline void weft_keep_row(const weft_kernel *kernel, char *kept, int64_t i, const uint32_t *row)
{
    if (kernel->keep_block == 1) {
        memcpy(kept + i * kernel->nr * 4, row, (size_t)kernel->nr * 4);
    } else {
        char *to = kept + (i / 2 * 2 * kernel->nr + i % 2 * 2) * 4;

        for (int64_t j = 0; j < kernel->nr; j += 2)
            memcpy(to + j * 8, row + j, 8);
    }
}

/* Whether several panels of B may pass together over such a k. */
bool weft_job_has_groups(const weft_binding *bind, int64_t k);

/* Rows of sums (4 bytes each); nothing where source and destination are the same. */
void weft_job_copy(char *to, int64_t to_ld, const char *from, int64_t from_ld, int64_t rows, int64_t cols);

/* Finished sums of rows [i0, i0 + rows) and columns [j0, j0 + cols) go through the epilogue into every D. */
void weft_job_store(const weft_gemm_tile *tile, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                    const char *sums, int64_t sums_ld);

/* A finished micro-tile of D's type, `nr` columns wide, of which rows x cols belong to D at (i, j): to every
 * destination that is not filled from D[0]. */
void weft_job_put(const gemm_job *job, int64_t i, int64_t rows, int64_t j, int64_t cols, const char *micro);

/* What D[0] has, to the destinations from `first` on. */
void weft_job_spread(const weft_gemm_tile *tile, int first, int64_t i0, int64_t rows, int64_t j0,
                     int64_t cols, size_t size);

/* The same for a job that spreads, whenever a block of columns up to `done` of the block of B is complete. */
void weft_job_spread_block(const gemm_job *job, const block_b *b, int64_t i0, int64_t rows, int64_t done);

/* The epilogue does nothing but round to the type of D. */
bool weft_job_only_rounds(const weft_gemm_tile *tile);

/* The epilogue changes nothing: D is the accumulators. */
bool weft_job_is_identity(const weft_gemm_tile *tile);

/* Packed rows [i0, i0 + rows) of A, in the band that starts at s0, against one block of B. */
void weft_job_rows(const gemm_job *job, const block_b *b, int64_t s0, int64_t i0, int64_t rows);

/* The same where sums are carried; and without products: sums that came go through the epilogue, or stay. */
void weft_carried_rows(const gemm_job *job, const block_b *b, int64_t s0, int64_t i0, int64_t rows);
void weft_carried_empty(const gemm_job *job);

/* Few rows against a row-major B, packed a piece at a time (few_rows.c); what weft_few_rows_run needs to work
 * in.
 */
bool weft_few_rows_suit(const weft_gemm_tile *tile);
size_t weft_few_rows_bytes(const weft_binding *bind, int64_t m, int64_t n, int64_t k);
void weft_few_rows_run(const weft_gemm_tile *tile, char *workspace);

/* Whether a tile is small (small.c), and workspace that suffices for all small tiles of at most n x k of B.
 */
bool weft_gemm_is_small(const weft_gemm_tile *tile);
size_t weft_gemm_small_bytes_most(const weft_binding *bind, int64_t n, int64_t k);

#endif
