/*
 * What the GEMM operations share: their operands, the packed copy of a local B, and the emission of one GEMM
 * task. Coordinates of a result tile are those of the D instance it is written to.
 */
#ifndef WEFT_PLAN_GEMM_PARTS_H
#define WEFT_PLAN_GEMM_PARTS_H

#include "plan/generate.h"

typedef struct weft_gemm_gen {
    weft_builder *builder;
    const weft_problem *problem;
    int world, me, lanes;      /* lanes: compute lanes, numbered from 0 */
    uint32_t a, b, c, bias, d; /* operands */
    uint32_t results;          /* staged, on one node: where results for peers are left; else they are stored
                                  to their D */
    uint32_t b_source;         /* what GEMM tasks read: b itself, or its packed copy */
    int64_t dealt;             /* tasks dealt to compute lanes so far */
    int copiers;               /* copy lanes, behind the compute lanes, that fetch what is finished */
    int64_t copied;            /* tasks dealt to them so far */
    weft_span local_k;         /* of A's columns and B's rows on this rank; begins at 0 */
    uint32_t packed_signal;
} weft_gemm_gen;

/* Operands, compute lanes and signals that every GEMM op has. */
weft_gemm_gen weft_gemm_begin(weft_builder *builder);

/* The lane of the next task. */
static inline int weft_gemm_lane(weft_gemm_gen *gen)
{
    return (int)(gen->dealt++ % gen->lanes);
}

/* The lane of the next copy of what is finished: a copy lane where there are some. */
static inline int weft_gemm_copy_lane(weft_gemm_gen *gen)
{
    return gen->copiers ? gen->lanes + (int)(gen->copied++ % gen->copiers) : weft_gemm_lane(gen);
}

/* Declares the copy lanes that a problem asks for, behind the compute lanes. */
void weft_gemm_declare_copiers(weft_gemm_gen *gen);

static inline bool weft_gemm_by_library(const weft_gemm_gen *gen)
{
    return weft_problem_by_library(gen->problem, gen->world);
}

/* Scratch for partial sums that travel. */
uint32_t weft_gemm_staging(weft_gemm_gen *gen, const char *name, int64_t rows, int64_t cols, int64_t batch);

/* Such scratch that only products write and only products start from, tile by tile, if it holds whole sums.
 */
void weft_gemm_hand_on(weft_gemm_gen *gen, uint32_t staging);

/*
 * When the problem says so, packs this rank's B at the head of the compute lanes, split over them, and
 * makes GEMM tasks read the packed copy.
 */
void weft_gemm_declare_packed(weft_gemm_gen *gen);
void weft_gemm_pack(weft_gemm_gen *gen);

/*
 * A matrix that is moved or added, not multiplied, cut for the compute lanes: into a share for each where the
 * problem has a grain, into tiles where not.
 */
typedef struct weft_shares {
    weft_span rows, cols;
    int64_t tile_m, tile_n;
    int64_t down, across;
    bool even;
} weft_shares;

weft_shares weft_shares_of(const weft_problem *problem, weft_span rows, weft_span cols, int64_t tile_m,
                           int64_t tile_n);

static inline int64_t weft_shares_count(const weft_shares *shares)
{
    return shares->down * shares->across;
}

/* The rows and columns of the `index`-th. */
void weft_share(const weft_shares *shares, int64_t index, weft_span *rows, weft_span *cols);

/* Destinations of a task that makes a tile of D for every rank: all of their Ds; or, staged, the own D and
 * the results left for others, which `left` tells them. */
void weft_gemm_to_all(weft_gemm_gen *gen, int64_t batch, weft_span rows, weft_span cols, uint32_t left);

/* A tile that `from` has left, once it has told so. */
void weft_gemm_fetch(weft_gemm_gen *gen, int from, int64_t batch, weft_span rows, weft_span cols,
                     uint32_t left);

/* Opens a GEMM or REDUCE task with the epilogue flags the problem asks for, or raw. */
void weft_gemm_open(weft_gemm_gen *gen, int lane, weft_task_kind kind, bool epilogue, bool acc);

/* Adds C and bias for a result tile of D on this rank, where the epilogue needs them, and ends the task. */
void weft_gemm_close(weft_gemm_gen *gen, bool epilogue, int64_t batch, weft_span rows, weft_span cols);

#endif
