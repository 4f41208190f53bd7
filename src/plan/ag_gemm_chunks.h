/*
 * All-gather + GEMM whose shards all copy lanes fetch together. Tiles that start at about the same time need
 * their pieces at the same time: those are fetched side by side, chunk by chunk of k, so that all of them can
 * start with the first chunk and none waits for a whole piece.
 */
#ifndef WEFT_PLAN_AG_GEMM_CHUNKS_H
#define WEFT_PLAN_AG_GEMM_CHUNKS_H

#include "plan/ag_gemm_shards.h"

/* What weft_ag_share_all needs (`pack_b`: fetching packs), signals apart; and how many of those. */
void weft_ag_declare_chunks(weft_ag_gen *ag, bool pack_b);
int64_t weft_ag_chunk_signals(const weft_ag_gen *ag);

/* Fetches all peers' shards and multiplies them. */
void weft_ag_share_all(weft_ag_gen *ag);

#endif
