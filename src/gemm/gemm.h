/*
 * The GEMM engine, called by tile.
 *
 *     D = act(alpha * row_scale[i] * col_scale[j] * (acc + A * B) + beta * C + bias[j])
 *
 * The caller owns the schedule: it asks for the steps, runs any tile in any order on any thread, and gives
 * the workspace. A tile call allocates nothing and makes no system call. It packs A block by block from
 * wherever A lives (a peer's memory: packing is the copy), and B too unless a window of packed weights is
 * given. Results go to one or more destinations.
 *
 * Order of the sum, hence the bits of the result: k is cut into ceil(k / kc) blocks of equal length (rounded
 * up to k_step, the last one shorter); each block is summed by the micro-kernel from zero and added to the
 * accumulator, blocks in ascending k, starting from `acc`. It depends on k, the core, its caches
 * and the compute type alone: not on m, n, the place of the tile, whether B was packed, or the number of
 * threads. A tile that starts from sums in order, or leaves them so, adds one product after another to them
 * instead, where the kernel has an order of its own (carried_sums.c). One exception: half products of few
 * rows may use another kernel (see kernel.h), with the same order of blocks.
 */
#ifndef WEFT_GEMM_GEMM_H
#define WEFT_GEMM_GEMM_H

#include "core/status.h"
#include "gemm/kernel.h"

#include <stdbool.h>

enum {
    WEFT_GEMM_DESTINATIONS_MAX = 16,
    WEFT_GEMM_ALIGNMENT = 128,
    WEFT_GEMM_STREAM_ROWS = 64 /* up to so many rows of A, fetching a packed B from memory decides */
};

/* ---- which kernels ------------------------------------------------------------------------------- */

/* The core named by WEFT_ISA, else the best this CPU has. The first call decides for the process. */
weft_status weft_core_current(const weft_core **core, weft_error_text *error);

/* By name, whatever WEFT_ISA says; an unknown name, or one this CPU cannot run, is an error. */
weft_status weft_core_find(const char *name, const weft_core **core, weft_error_text *error);

/* The `index`-th core of this build, best first, portable last; NULL past the end. */
const weft_core *weft_core_at(int index);
bool weft_core_available(const weft_core *core);

/* Blocks measured with some caches, for those of another core. */
weft_binding weft_binding_fit(const weft_binding *bind, const weft_caches *measured, const weft_caches *here);

/* The binding for products of `dtype` (F32, F16, BF16, I8, fp8); NULL for other types. */
const weft_binding *weft_core_binding(const weft_core *core, weft_dtype dtype, bool f16_fast);

/* What a scheduler should cut at: micro-kernel steps, and tiles that run at full speed. */
typedef struct weft_gemm_steps {
    int mr, nr, k_step;
    int m_tile, n_tile, k_tile; /* multiples of mr, nr, k_step */
    bool widens;                /* a packed B, anew with each tile of more than few rows */
} weft_gemm_steps;

weft_gemm_steps weft_gemm_steps_of(const weft_binding *bind);

/* ---- packed B ------------------------------------------------------------------------------------ */

/*
 * B packed for one binding: a header followed by the panels, one after another, each over all of k. It holds
 * no pointers, so it may lie in memory that ranks share and map at different addresses. A window may start
 * at any column that is a multiple of nr and any k that is a multiple of k_step; it must end at a multiple
 * of k_step or at the end of k.
 */
struct weft_packed {
    uint64_t magic;
    int64_t k, n;
    int32_t type; /* weft_dtype of the panels */
    int32_t nr, b_kr, k_step;
    int64_t panel_bytes;
    int32_t narrow; /* weft_dtype its elements were rounded to, of the binding */
    int32_t unused;
    int64_t reserved[9];
};

size_t weft_packed_bytes(const weft_binding *bind, int64_t k, int64_t n);

/* Writes the header into `memory` (weft_packed_bytes long, 128-byte aligned). */
weft_packed *weft_packed_begin(const weft_binding *bind, int64_t k, int64_t n, void *memory);

/*
 * Packs columns [n0, n0 + n) and k [k0, k0 + k) of B; n0 a multiple of nr, k0 of k_step; the ends likewise,
 * or the ends of B. `b` is element (0, 0) of the whole B. Pieces may be packed in any order, by any thread.
 */
void weft_packed_fill(const weft_binding *bind, weft_packed *packed, const void *b, weft_dtype b_dtype,
                      int64_t b_rs, int64_t b_cs, int64_t k0, int64_t k, int64_t n0, int64_t n);

/* Is this memory a B of this shape packed for this binding? */
bool weft_packed_fits(const weft_binding *bind, const weft_packed *packed, int64_t k, int64_t n);

/* ---- tiles --------------------------------------------------------------------------------------- */

typedef struct weft_gemm_tile {
    const weft_binding *bind;
    int64_t m, n, k; /* k = 0 still applies acc and the epilogue; n counts columns of B: of D, gated, half */

    const void *a; /* element (i, p) at a[i * a_rs + p * a_cs]; one of the strides is 1 */
    int64_t a_rs, a_cs;
    weft_dtype a_dtype; /* converted to the type of the product while packing: F32, F16, BF16, fp8, I8; only
                           I8 for I8 */

    const void *b; /* element (p, j) at b[p * b_rs + j * b_cs]; ignored when packed_b is set */
    int64_t b_rs, b_cs;
    weft_dtype b_dtype;
    const weft_packed *packed_b;
    int64_t packed_k0, packed_n0;

    const void *acc; /* F32 (I8: I32) to start from, NULL = zero; may be a peer's memory */
    int64_t acc_ld;
    bool acc_in_order; /* acc is what a tile of the same m, n and order with d_in_order left */
    int order;         /* of both, from weft_gemm_order */

    bool raw; /* D receives the bare accumulators; nothing below applies except d */
    float alpha, beta;
    weft_act act;
    const float *row_scale, *col_scale; /* NULL = 1 */
    const void *c;                      /* dtype of D; never read when beta = 0 */
    int64_t c_ld;
    const void *bias; /* per column, dtype of D; NULL = none */

    /* With raw and one destination: D takes m * n accumulators in the order the engine makes them, which is a
     * matter between it and the tile that starts from them: whole lines, one after another, d_ld is ignored.
     */
    bool d_in_order;
    weft_dtype d_dtype;
    int d_count; /* every destination receives the whole tile */
    void *d[WEFT_GEMM_DESTINATIONS_MAX];
    int64_t d_ld[WEFT_GEMM_DESTINATIONS_MAX];
} weft_gemm_tile;

/* The order in which products of this k, m rows in all, are best handed on: how many panels of B lie side by
 * side in it; 0 where rows serve better. `two`: the last product has two destinations. Nothing else depends
 * on it. */
int weft_gemm_order(const weft_binding *bind, int64_t m, int64_t k, bool two);

/* A tile with everything optional off: alpha = 1, beta = 0, one destination, all of `dtype` (I8: D is I32).
 */
weft_gemm_tile weft_gemm_tile_init(const weft_binding *bind, weft_dtype dtype);

/* Says what is wrong with a tile, if anything. Running a tile does not check again. */
weft_status weft_gemm_tile_check(const weft_gemm_tile *tile, weft_error_text *error);

/* Workspace that suffices for every tile of at most m x n x k, 128-byte aligned. */
size_t weft_gemm_workspace_bytes(const weft_binding *bind, int64_t m, int64_t n, int64_t k, bool packed_b);

/* All the workspace that this tile needs, where it is so small that its operands are not packed; else -1. */
int64_t weft_gemm_small_bytes(const weft_gemm_tile *tile);

/* Runs a tile of which that is not -1, as weft_gemm_run_tile does. */
void weft_gemm_run_small(const weft_gemm_tile *tile, void *workspace);

void weft_gemm_run_tile(const weft_gemm_tile *tile, void *workspace);

/* The k of a block, each of which is summed from zero and added to those before. */
int64_t weft_gemm_block(const weft_binding *bind, int64_t k);

/* Whether the tile is few rows of a row-major B that is read as it lies. */
bool weft_gemm_streams(const weft_gemm_tile *tile);

#endif
