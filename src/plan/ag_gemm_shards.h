/*
 * What the schedules of all-gather + GEMM (ag_gemm.c, ag_gemm_chunks.c, ag_gemm_nodes.c) share. A shard, what
 * a rank holds of the gathered operand, is fetched and used in pieces; a tile of the result is a piece with a
 * cut of the other operand; pieces are taken in rasters (tuning.raster), whose tiles lie side by side in
 * time.
 */
#ifndef WEFT_PLAN_AG_GEMM_SHARDS_H
#define WEFT_PLAN_AG_GEMM_SHARDS_H

#include "plan/gemm_parts.h"
#include "plan/two_level.h"

typedef struct weft_ag_gen {
    weft_gemm_gen gen;
    uint32_t gathered;     /* operand the peers' shards are fetched into, plain or packed */
    int64_t slot;          /* columns between shards in a packed one; 0: shards lie at their global place */
    int copy_lanes;        /* lane gen.lanes is the first */
    uint32_t signal;       /* rotating: one per copy lane; unfused: the first */
    int64_t fetched[2];    /* by each copy lane so far */
    int64_t chunks;        /* of k, in which pieces come when all copy lanes fetch them together */
    uint32_t carry;        /* operand for a lane's sum between chunks */
    int64_t bands;         /* copy tasks dealt to the copy lanes so far */
    weft_two_level *level; /* two_level: where shards of other nodes are gathered */
    uint32_t near;         /* two_level with copiers: operand for what peers of the node hold */
} weft_ag_gen;

enum { WEFT_AG_COPY_LANES = 2 };

/* Where a shard is read. */
typedef enum weft_ag_source { WEFT_AG_FROM_PLACE, WEFT_AG_FROM_GATHERED, WEFT_AG_FROM_NEAR } weft_ag_source;

/* A tile of the result: a piece of a shard with a cut of the other operand. */
typedef struct weft_ag_tile {
    int rank;
    int64_t batch;
    weft_span piece, cut;
} weft_ag_tile;

static inline bool weft_ag_gathers_a(const weft_ag_gen *ag)
{
    return ag->gen.problem->layout == WEFT_LAYOUT_GATHER_A;
}

/* What of the gathered extent lies on a rank, and the local extent of the other operand: columns of B, or
 * rows of A. */
weft_span weft_ag_shard(const weft_ag_gen *ag, int rank);
int64_t weft_ag_local_extent(const weft_ag_gen *ag);

/* Pieces in which a shard of `extent` rows or columns is fetched and used; the i-th. */
int64_t weft_ag_piece_count(const weft_ag_gen *ag, int64_t extent);
weft_span weft_ag_piece(const weft_ag_gen *ag, int64_t extent, int64_t index);

/* Where `k` of a piece of `rank`'s shard (counted from the shard's start) lies: in the gathered operand, in
 * its owner's memory, in the operand for what peers of the node hold. */
weft_region weft_ag_in_gathered(const weft_ag_gen *ag, int rank, int64_t batch, weft_span piece, weft_span k);
weft_region weft_ag_in_place(const weft_ag_gen *ag, int rank, int64_t batch, weft_span piece, weft_span k);
weft_region weft_ag_in_near(const weft_ag_gen *ag, int rank, int64_t batch, weft_span piece, weft_span k);

/* Cuts of the other operand. */
int64_t weft_ag_cut_count(const weft_ag_gen *ag);

/* Pieces are taken in rasters: the i-th of a shard, and tile `number` of one. */
weft_span weft_ag_raster(const weft_ag_gen *ag, int rank, int64_t index);
int64_t weft_ag_raster_count(const weft_ag_gen *ag, int rank);
weft_ag_tile weft_ag_tile_at(const weft_ag_gen *ag, int rank, int64_t batch, weft_span raster,
                             int64_t number);

/* The product of one tile over `k`, `source` being where the shard is read; to D, or to the lane's carry. */
void weft_ag_multiply(weft_ag_gen *ag, int lane, const weft_ag_tile *t, weft_region source, weft_span k,
                      bool first, bool last, uint32_t signal, int64_t count);

/* All tiles of one raster, or of a shard, each a task that waits for `count` posts of `signal` when count is
 * not 0. */
void weft_ag_multiply_raster(weft_ag_gen *ag, int rank, int64_t batch, weft_span raster, weft_ag_source from,
                             uint32_t signal, int64_t count);
void weft_ag_multiply_shard(weft_ag_gen *ag, int rank, weft_ag_source from, uint32_t signal, int64_t count);

/* Fetches one shard into the gathered operand by tasks of the compute lanes, each posting `signal` here when
 * there are several lanes. Returns the number of tasks. */
int64_t weft_ag_fetch_shard(weft_ag_gen *ag, int rank, uint32_t signal);

/* An operand of this rank's own, of the gathered one's kind. */
uint32_t weft_ag_private_operand(weft_ag_gen *ag, const char *name, int64_t rows, int64_t cols, bool packed);

/* A packed operand that holds every rank's shard of B, each from a column where a window may start. */
void weft_ag_declare_packed_shards(weft_ag_gen *ag);

/* Declares where fetched shards go; true when fetching a shard of B packs it. */
bool weft_ag_declare_gathered(weft_ag_gen *ag);

#endif
