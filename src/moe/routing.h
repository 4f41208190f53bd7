/*
 * Routing: what one rank sends where, decided from its tokens' experts alone.
 *
 * Count, exclusive scan, stable placement: no sort over tokens and no atomics, so a row's place is a pure
 * function of the input. Wire rows are rank-major, and in token order within a rank. A wire row is one
 * (token, destination rank) pair, or one (token, expert) pair where rows are not deduplicated. The experts
 * of a row are its entries, in ascending global id.
 *
 * A term is one of the results that combine sums: terms of token t are t * terms_per_token + 0, 1, ... in the
 * order in which it does. That is one per expert in ascending global id. With one result row per token and
 * rank, ranks stand in the order of their lowest expert of that token; ranks whose results come back as one
 * sum have one term, at the place and with the row of the first of them.
 *
 * A slot is where a result comes back to. Slots stand in wire order, one for each result (those of ranks that
 * share one, in token order where the first of these ranks would have its own): so a rank writes
 * one run of slots from its begin to its end, and the owner reads one run for each rank. Rows apart would
 * make the hardware's prefetching start anew with each, which costs as much as a quarter of the work on a
 * row.
 */
#ifndef WEFT_MOE_ROUTING_H
#define WEFT_MOE_ROUTING_H

#include <stdbool.h>

#include "core/status.h"

/* What the receiver of a row needs to know about it; lies in the sender's symmetric memory. */
typedef struct weft_moe_wire_row {
    int32_t token;
    int32_t entries;
} weft_moe_wire_row;

typedef struct weft_moe_wire_entry {
    int32_t expert; /* global id */
    int32_t slot;   /* of the sender, for the result */
    float weight;
    int32_t position; /* k of the sender's input */
} weft_moe_wire_entry;

/* A result that combine sums: that of row `row` of the rows sent to `rank`. */
typedef struct weft_moe_term {
    int32_t rank;
    int32_t row;
    int32_t slot;
    int32_t position; /* k of the input, where a term is one expert's */
    float weight;     /* what combine multiplies it with */
} weft_moe_term;

/* The fixed facts a routing is made from. */
typedef struct weft_moe_shape {
    int ranks;
    int experts;
    int topk;
    int64_t capacity;        /* tokens */
    const int32_t *owner;    /* expert -> rank */
    bool one_row_per_rank;   /* a token travels once to a rank, however many experts it has there */
    bool one_result_per_row; /* the receiver returns one weighted sum a row; implies one_row_per_rank */
    const int32_t *returner; /* with that, rank -> first of the ranks that return one sum a token together;
                                NULL: each its own */
    int terms_per_token;
} weft_moe_shape;

typedef struct weft_moe_routing {
    int64_t tokens;
    int64_t rows;
    int64_t entries;
    int32_t *row_base;   /* ranks + 1: rows of rank d are row_base[d] .. row_base[d + 1] */
    int32_t *entry_base; /* ranks + 1 */
    weft_moe_wire_row *row;
    weft_moe_wire_entry *entry;
    int32_t *terms; /* per token: how many it has */
    weft_moe_term *term;
    /* scratch: per rank cursors and the last token or row seen; each token's experts in order, and how many
     */
    int32_t *row_next, *entry_next, *stamp;
    int32_t *slot_next, *slot_stamp; /* by returner; only where there are any */
    uint64_t *order;                 /* tokens x topk */
    int32_t *ordered;
} weft_moe_routing;

/* Checks the input and fills the routing, whose arrays hold `capacity` tokens. On an error nothing but
 * scratch has changed. `weight` NULL means 1. */
weft_status weft_moe_route(const weft_moe_shape *shape, int64_t tokens, const int32_t *expert,
                           const float *weight, weft_moe_routing *routing, weft_error_text *error);

/* The sentences that reject a token, and a number of tokens that the layer has no room for. */
weft_status weft_moe_refuse_range(const weft_moe_shape *shape, int64_t token, int expert, int position,
                                  weft_error_text *error);
weft_status weft_moe_refuse_twice(int64_t token, int expert, int first, int second, weft_error_text *error);
weft_status weft_moe_check_tokens(const weft_moe_shape *shape, int64_t tokens, weft_error_text *error);

/* Puts other weights (tokens x topk) on a routing. */
void weft_moe_reweigh(const weft_moe_shape *shape, const float *weight, weft_moe_routing *routing);

#endif
