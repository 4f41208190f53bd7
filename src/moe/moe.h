/*
 * A mixture-of-experts layer over the ranks of a group: what it keeps, and the four phases of a round.
 *
 * Memory. Everything that travels lies in the memory of the rank whose tokens they are, so its own capacity
 * bounds it and no routing, however skewed, can overflow a receiver. Tokens stay where they are (symmetric
 * memory) or are copied once to `stage`; receivers read them in place. Results are written into the token
 * owner's `slot` rows, which combine sums.
 *
 * Protocol of an epoch, one per dispatch. No barrier, nothing is reset.
 *   1. The sender writes manifest, wire rows and entries, then one {epoch, count} word to every rank, even
 *      if zero, doubled by the parity of the epoch. A rank whose input was rejected sends the count REJECTED.
 *   2. A receiver waits for the words of all ranks before it reads anything else. If one says rejected, every
 *      rank sees that, and all leave the epoch.
 *   3. The sender stages tokens and advances `staged`, {epoch, tokens}; receivers follow it.
 *   4. A receiver writes result rows and advances `done` at the token owner, {epoch, rows}. A rank that got
 * no rows of a sender writes nothing there, and the sender does not wait for it.
 *   5. The sender waits for the `done` of the ranks it sent rows to. Then nobody reads its tokens or writes
 *      its slots any more, and it may begin the next epoch.
 * Why two words suffice: whoever writes the word of epoch e + 2 has read its peer's word of e + 1, which the
 * peer sent after it had read all words of e. That is also why a rejecting rank must read its peers' words
 * before its next epoch. tests/moe/test_protocol.c searches all interleavings, and those of broken variants.
 */
#ifndef WEFT_MOE_MOE_H
#define WEFT_MOE_MOE_H

#include <stdatomic.h>

#include "moe/routing.h"
#include "moe/sum.h"
#include "moe/wire.h"
#include "symm/symm.h"

typedef struct weft_moe_lane weft_moe_lane;

/* One rung of the ladder. A phase returns a status with the sentence in the group's error. */
typedef struct weft_moe_rung {
    const char *name;
    bool one_row_per_rank;
    bool stage_once; /* a token is staged once, not once for each of its experts */
    bool row_flags;  /* one flag per staged row and per slot */
    bool input_copy; /* shows its experts and weights as they were given */

    /* Makes tokens and routing readable by others, and posts the counts. */
    weft_status (*dispatch_send)(weft_moe_lane *lane, const void *x);
    /* After all counts are in: fills lane->in, and waits until its rows can be read. */
    weft_status (*dispatch_recv)(weft_moe_lane *lane);
    /* Sends results (rows of `hidden` elements in the layout of `start`) to their owners. */
    weft_status (*combine_send)(weft_moe_lane *lane, const void *results, const int64_t *start);
    /* Waits for the results of the own tokens and sums them. */
    weft_status (*combine_recv)(weft_moe_lane *lane, void *y);
    /* A whole round after the counts are in, or NULL: dispatch_recv, experts, combine_send, combine_recv. */
    weft_status (*forward)(weft_moe_lane *lane, const weft_moe_expert *expert, void *y);
} weft_moe_rung;

extern const weft_moe_rung weft_moe_fused, weft_moe_rows, weft_moe_sorted, weft_moe_reference;

/* What a sender shows one receiver in one epoch; doubled by parity like the count words, and for the same
 * reason readable also when there are no rows. */
typedef struct weft_moe_manifest {
    int64_t generation; /* changes with the routing or its weights */
    weft_symm_place x;  /* where the tokens lie: in the sender's stage, or where they were given */
    int64_t x_stride;
    int32_t row_base, entry_base, entries;
    int32_t sharers; /* ranks of the receiver's node that get rows */
} weft_moe_manifest;

/* A row whose result waits to be summed with those of other ranks of its node: whose it is, and where the sum
 * goes. */
typedef struct weft_moe_part {
    int32_t token, slot;
} weft_moe_part;

/* What this rank received: rows by source rank, then wire order, with their entries; and the same entries by
 * local expert. */
typedef struct weft_moe_received {
    int64_t rows, entries;
    int32_t *rank_base; /* ranks + 1: rows of source s */
    const void **row;
    int32_t *source, *token;
    int32_t *entry_base; /* rows + 1: entries of a row */
    weft_moe_wire_entry *entry;
    bool grouped;    /* whether what follows is set */
    int64_t *offset; /* local experts + 1 */
    int32_t *place;  /* entry -> its position in expert order */
    int32_t *expert_row;
    float *expert_weight;
    int64_t *next; /* local experts: scratch */
} weft_moe_received;

/* Entries of one local expert from one rank, as places in expert order: run before `begin`, arrived before
 * `arrived`. */
typedef struct weft_moe_span {
    int32_t begin, arrived, end;
} weft_moe_span;

typedef enum weft_moe_state {
    WEFT_MOE_IDLE,
    WEFT_MOE_SENT,
    WEFT_MOE_RECEIVED,
    WEFT_MOE_RETURNED
} weft_moe_state;

struct weft_moe_lane {
    weft_moe *moe;
    int index;
    weft_moe_state state;
    uint64_t epoch;
    bool undrained;     /* this epoch was rejected here, and the peers' words have not been read */
    bool spoiled;       /* over nodes: what was sent in the last epoch, which was rejected, may still land */
    int64_t routing;    /* how many routings were made; 0 = none yet */
    int64_t generation; /* changes with the routing and with its weights */
    int64_t *seen;      /* per source: generation of the routing in `in`, -1 = none */
    int32_t *counts;    /* per source: rows of this epoch */

    /* symmetric memory, at this rank's addresses */
    weft_signal *count;  /* [2][ranks], written by rank `source`; partner: await_counts there */
    weft_signal *staged; /* written by this rank; partner: weft_moe_await_staged of receivers */
    weft_signal *done;   /* [ranks], written by the rank that returns rows; partner: weft_moe_await_done */
    weft_moe_manifest *manifest; /* [2][ranks] */
    _Atomic uint64_t *row_flag, *result_flag;
    int32_t *index_copy; /* reference: the input as it was given */
    float *weight_copy;
    char *stage, *slot;
    weft_symm_place stage_place; /* of `stage`, as its peers find it */
    weft_signal *settled; /* over nodes: [2][ranks], written by that rank; partner: weft_moe_far_settle */
    weft_signal *relayed; /* over nodes: [slots], as `staged` of an owner elsewhere, written by it */
    char *relay;          /* [slots][tokens] rows, dense */
    /* where sums are formed inside nodes (inside.c): */
    char *parts;                  /* [sources][tokens] results of received rows */
    weft_moe_part *part;          /* [sources][tokens] whose they are, in the order of the rows */
    _Atomic uint64_t *part_count; /* [sources] {epoch, rows}; partner: rows_of on a rank of the node */
    _Atomic uint64_t *counted;    /* [slots][chunks] {epoch, ranks that are done}; partners: each other */
    weft_signal *summed_there;    /* [nodes][chunks] {epoch, 1}, written by a rank of that node; partner:
                                     weft_moe_await_back */

    weft_moe_routing out;
    weft_moe_received in;
    char *expanded; /* with fp8 on the wire: [rows] as experts see them */
    char *receive;  /* sorted: private copy of what was received */
    size_t receive_bytes;
    int32_t *inverse; /* sorted: slot -> place in the sorted order */
    int64_t sorted_routing;
    char *scratch; /* forward: results on their way */
    size_t scratch_bytes;
    bool *summed;          /* forward: own tokens whose y is written */
    const void **block_in; /* pointers to the entries of a block by expert, of a row, or of a token: the
                              last two at the place of the row's or the token's, so that threads may share */
    void **block_out;
    int32_t *block_place; /* entry of the block -> its position there */
    float *block_weight;
    weft_moe_span *span;   /* grouped.c: local experts x ranks */
    int32_t *row_left;     /* per received row: entries that are not done */
    int64_t *tokens_seen;  /* per source: tokens that had been staged */
    int64_t *rows_back;    /* per source: rows that went back */
    int64_t *shown;        /* over nodes, per rank: the generation that it has been shown, -1 = none */
    int64_t *returned;     /* over nodes, per source: rows whose results were sent */
    int64_t *chunks_done;  /* over nodes, per source: chunks counted in this epoch */
    uint8_t *marks;        /* over nodes: [nodes][tokens] */
    weft_signal *departed; /* over nodes: results that left from where they lie; NULL: on one node */
    uint64_t departing;    /* how many were sent so */
    const void **run_in;   /* pointers to the rows of a call */
    void **run_out;
    weft_moe_stats stats;
    int64_t begin_ns;
};

/* Where the ranks are; all 0 on one node. */
typedef struct weft_moe_nodes {
    int count;              /* of nodes */
    int slots;              /* the most owners elsewhere whose rows one rank keeps */
    int32_t *node;          /* [rank] */
    int32_t *keeper, *slot; /* [rank] who keeps its rows on this node, and where */
    int32_t *to, *to_slot;  /* [node] the same of this rank's rows there */
    /* Whether nodes of several ranks sum what they return, and then: */
    bool inside;
    int sources;          /* the most ranks elsewhere of a rank of such a node */
    int64_t chunk_tokens; /* that come back together */
    int chunks;           /* of a rank's tokens */
    int32_t *size;        /* [node] */
    int32_t *number;      /* [rank] among those on other nodes than this */
    int32_t *returner;    /* [rank] as in the shape of a routing */
} weft_moe_nodes;

struct weft_moe {
    weft_group *group;
    weft_moe_nodes nodes;
    const weft_moe_rung *rung;
    weft_moe_config config; /* expert_rank unused: see owner */
    weft_moe_shape shape;
    int64_t row_bytes;    /* of a token, as it is given and as experts see it */
    int64_t wire_bytes;   /* as it travels */
    int64_t row_stride;   /* bytes between expanded rows */
    int64_t stage_stride; /* bytes between staged rows */
    int64_t slot_stride;  /* bytes between result rows */
    int64_t result_bytes; /* hidden elements */
    int32_t *owner;       /* expert -> rank */
    int32_t *local_index; /* expert -> index on its owner */
    int32_t *local;       /* ids of the experts here, ascending */
    int experts_here, experts_most;
    void *symmetric;
    weft_moe_lane *lanes;
    void *memory;                   /* everything private */
    const struct weft_moe_ops *ops; /* of weft.h, where the layer is */
    struct weft_device_moe *device; /* on a backend with memory of its own: in place of all memory, and of all
                                 of a lane but its state and the tokens of `out` */
};

/* ---- layer.c: making one ----------------------------------------------------------------------------- */

weft_status weft_moe_measure(const weft_moe_config *config, int ranks, size_t *symmetric_bytes,
                             size_t *private_bytes, weft_error_text *error);
/* What a layer would be on a rank, without memory, lanes or a group; weft_moe_forget gives its tables back.
 */
weft_status weft_moe_imagine(const weft_moe_config *config, int ranks, int rank, weft_moe *moe,
                             weft_error_text *error);
void weft_moe_forget(weft_moe *moe);
/* `on_device`: without memory, which a backend has. */
weft_status weft_moe_open(weft_group *group, const weft_moe_config *config, bool on_device, weft_moe **moe);
weft_status weft_moe_close(weft_moe *moe);

/* Makes lane->scratch hold at least `bytes`; failing poisons the group, since the peers are in the round. */
weft_status weft_moe_scratch(weft_moe_lane *lane, size_t bytes);

/* ---- share.c: work that threads share ------------------------------------------------------------------ */

/* Threads of a round. */
int weft_moe_members(const weft_moe *moe);

/* Calls piece(context, b, e) for parts [b, e) that make up [begin, end), by threads where the items, of so
 * many bytes each, are worth it. Items do not depend on each other. */
typedef void (*weft_moe_piece)(void *context, int64_t begin, int64_t end);
void weft_moe_share(const weft_moe *moe, int64_t begin, int64_t end, int64_t item_bytes, weft_moe_piece piece,
                    void *context);

/* ---- round.c: the calls of a round, each an error when out of order ----------------------------------- */

/* Begins an epoch. Input that is rejected, for itself or for the `fault` its caller found, ends it for all.
 */
weft_status weft_moe_lane_dispatch_send(weft_moe_lane *lane, const weft_moe_input *input, const char *fault);
weft_status weft_moe_lane_dispatch_recv(weft_moe_lane *lane);
weft_status weft_moe_lane_combine_send(weft_moe_lane *lane, const void *results, const int64_t *start);
weft_status weft_moe_lane_combine_recv(weft_moe_lane *lane, void *y);
weft_status weft_moe_lane_forward(weft_moe_lane *lane, const weft_moe_input *input,
                                  const weft_moe_expert *expert, void *y, const char *fault);

/* What any backend says of a call out of order, of input that is wrong by itself, and of a `y` that cannot
 * take the sums of what the lane has sent. */
weft_status weft_moe_out_of_order(const weft_moe_lane *lane, const char *call);
weft_status weft_moe_check_input(const weft_moe_lane *lane, const weft_moe_input *input, const char *fault);
weft_status weft_moe_check_y(const weft_moe_lane *lane, const void *y);
weft_status weft_moe_refuse_repeat(int64_t had, int64_t tokens, weft_error_text *error);

/* Rows can be read: notes what was received, and the time. */
void weft_moe_note_received(weft_moe_lane *lane);

/* ---- signals.c: the words ranks exchange --------------------------------------------------------------- */

enum {
    /* {epoch, count} = epoch << 24 | count. Eight bits of the epoch lie in the low half, which sleepers
       watch. */
    WEFT_MOE_COUNT_BITS = 24,
    WEFT_MOE_REJECTED = (1 << WEFT_MOE_COUNT_BITS) - 1,
};

static inline uint64_t weft_moe_word(const weft_moe_lane *lane, int64_t count)
{
    return lane->epoch << WEFT_MOE_COUNT_BITS | (uint64_t)count;
}

/* Tells every rank how many rows it will get, from lane->out; or, when rejected, that it will get none. */
void weft_moe_post_counts(weft_moe_lane *lane, bool rejected);

weft_status weft_moe_refuse_peer(int rank, uint64_t epoch, int lane, weft_error_text *error);

/* Waits for the words of every rank; WEFT_ERR_PEER when one rejected its input. */
weft_status weft_moe_await_counts(weft_moe_lane *lane);

/* The sender's progress: its first `tokens` tokens (or rows) can be read. */
void weft_moe_post_staged(weft_moe_lane *lane, int64_t tokens);
weft_status weft_moe_await_staged(weft_moe_lane *lane, int source, int64_t tokens);

/* The receiver's progress: the results of the first `rows` rows of `source` are written. */
void weft_moe_post_done(weft_moe_lane *lane, int source, int64_t rows);
weft_status weft_moe_await_done(weft_moe_lane *lane, int rank, int64_t rows);

/* Whether the result that is a term of own token t is back; and waiting for it. */
bool weft_moe_is_back(const weft_moe_lane *lane, int64_t t, const weft_moe_term *term);
weft_status weft_moe_await_back(weft_moe_lane *lane, int64_t t, const weft_moe_term *term);

static inline void *weft_moe_at(const weft_moe_lane *lane, const void *mine, int rank)
{
    return weft_symm_peer(lane->moe->group, mine, rank);
}

/* A result row of the rank `source`. */
static inline char *weft_moe_slot_at(const weft_moe_lane *lane, int source, int32_t slot)
{
    return (char *)weft_moe_at(lane, lane->slot, source) + slot * lane->moe->slot_stride;
}

/* The manifest this rank shows `receiver`, or that `source` shows this rank, in this epoch. */
static inline weft_moe_manifest *weft_moe_manifest_for(weft_moe_lane *lane, int receiver)
{
    return &lane->manifest[(lane->epoch & 1) * (uint64_t)lane->moe->shape.ranks + (uint64_t)receiver];
}

static inline const weft_moe_manifest *weft_moe_manifest_of(weft_moe_lane *lane, int source)
{
    return weft_moe_at(lane, weft_moe_manifest_for(lane, lane->moe->group->rank), source);
}

/* ---- nodes.c: what crosses to ranks on other nodes ----------------------------------------------------- */

/* Of results that leave as one message, which lends its pages (net/). */
enum { WEFT_MOE_TOGETHER_BYTES = 512 << 10 };

/* Fills moe->nodes. Returns whether memory sufficed. */
bool weft_moe_find_nodes(weft_moe *moe);

static inline bool weft_moe_is_far(const weft_moe_lane *lane, int rank)
{
    const weft_moe_nodes *nodes = &lane->moe->nodes;

    return nodes->count && nodes->node[rank] != nodes->node[lane->moe->group->rank];
}

/* The word for a far rank, behind all that it looks at when it has it. */
void weft_moe_far_count(weft_moe_lane *lane, int to, weft_signal *word, int64_t count);

/* A row, at the address it has here, with its flag: staged here, or in the shadow of its owner's slots. */
void weft_moe_far_row(weft_moe_lane *lane, int to, void *row, int64_t bytes, _Atomic uint64_t *flag);

/* Sends tokens [begin, end) of this epoch to the nodes that have experts for them; relay_begin comes first.
 */
void weft_moe_relay_begin(weft_moe_lane *lane);
void weft_moe_relay(weft_moe_lane *lane, const char *rows, int64_t stride, int64_t begin, int64_t end);

/* Where those of a far source are, and the word that says how many. */
weft_signal *weft_moe_relayed_word(const weft_moe_lane *lane, int source);
const char *weft_moe_relayed_rows(const weft_moe_lane *lane, int source);

/* The results of the first `rows` rows of a far source, but for those sent before, and `done`. */
void weft_moe_far_done(weft_moe_lane *lane, int source, int64_t rows);

/* Makes what lanes over nodes need to send; gives it back, when what was sent has left. */
bool weft_moe_far_open(weft_moe_lane *lane);
void weft_moe_far_close(weft_moe_lane *lane);

/* After an epoch that was rejected: waits until all that far ranks sent in it has landed everywhere. */
weft_status weft_moe_far_settle(weft_moe_lane *lane);

/* A message of `count` slots of a far source, from `first` on, as they stand in this process's shadow of
 * them, and a word of the source's behind it. */
void weft_moe_far_return(weft_moe_lane *lane, int source, int32_t first, int64_t count, weft_signal *word,
                         uint64_t value);

/* ---- inside.c: sums formed inside a node before they travel -------------------------------------------- */

/* Decides whether they are, and what of moe->nodes and moe->shape follows. */
void weft_moe_find_inside(weft_moe *moe);

/* Whether what `maker` makes of rows of `owner`, on another node, is summed there before it travels. */
static inline bool weft_moe_is_inside(const weft_moe *moe, int maker, int owner)
{
    const weft_moe_nodes *nodes = &moe->nodes;

    return nodes->inside && nodes->node[maker] != nodes->node[owner] && nodes->size[nodes->node[maker]] > 1;
}

/* Where the weighted sum of received row i goes. */
static inline char *weft_moe_sum_at(const weft_moe_lane *lane, int64_t i)
{
    const weft_moe_received *in = &lane->in;
    const weft_moe *moe = lane->moe;
    int source = in->source[i];

    if (weft_moe_is_inside(moe, moe->group->rank, source))
        return lane->parts + (moe->nodes.number[source] * moe->shape.capacity + i - in->rank_base[source]) *
                                 moe->slot_stride;
    return weft_moe_slot_at(lane, source, in->entry[in->entry_base[i]].slot);
}

/* How many ranks of the node of `receiver` get rows; 0 where nothing is summed inside. */
int32_t weft_moe_sharers(const weft_moe_lane *lane, int receiver);

/* Shows the ranks of this node which rows this rank has. */
void weft_moe_inside_list(weft_moe_lane *lane);

/* The results of the first `rows` rows of a source are made. */
void weft_moe_inside_done(weft_moe_lane *lane, int source, int64_t rows);

/* How far a source is whose tokens are staged once. */
static inline weft_signal *weft_moe_staged_word(const weft_moe_lane *lane, int source)
{
    return weft_moe_is_far(lane, source) ? weft_moe_relayed_word(lane, source)
                                         : weft_moe_at(lane, lane->staged, source);
}

/* ---- travel.c: rows on and off the wire ---------------------------------------------------------------- */

/* A token to where it travels from, and as it was before. */
void weft_moe_put_row(const weft_moe *moe, void *wire, const void *row);
void weft_moe_take_row(const weft_moe *moe, void *row, const void *wire);

/* Received row i as experts see it, which has arrived; from then on in->row points there. Threads may ask for
 * different rows. */
const void *weft_moe_row_of(const weft_moe_lane *lane, int64_t i);

/* The same of rows [begin, end), by threads. */
void weft_moe_expand_rows(weft_moe_lane *lane, int64_t begin, int64_t end);

/* ---- view.c: what was received ------------------------------------------------------------------------ */

/* Fills lane->in from the senders' wire rows, unless no sender's routing changed. Row pointers are to the
 * senders' tokens. */
void weft_moe_collect(weft_moe_lane *lane);

/* Sets offset, place, expert_row and expert_weight of lane->in from its rows and entries, unless they are. */
void weft_moe_group_by_expert(weft_moe_lane *lane);

/* Writes the results of received row i to its owner: each to its slot, or one weighted sum. `result` and
 * `weight` run over the entries of the row. */
void weft_moe_return_row(weft_moe_lane *lane, int64_t i, const void *const *result, const float *weight);

/* The same of rows [begin, end), from results in the layout of `start` (NULL: entry order). */
void weft_moe_return_from(weft_moe_lane *lane, int64_t begin, int64_t end, const char *results,
                          const int64_t *start);

/* y of tokens [begin, end) that are not `summed` yet, from their slots, in slot order. */
void weft_moe_sum_tokens(weft_moe_lane *lane, int64_t begin, int64_t end, void *y);

/* Sums the own tokens from `t` on whose results are here; returns the first that is not. */
int64_t weft_moe_take_ready(weft_moe_lane *lane, int64_t t, void *y);

/* ---- blocks.c: experts over received rows -------------------------------------------------------------- */

/* Runs the expert over received rows [begin, end) and returns their results to their owners. */
weft_status weft_moe_run_block(weft_moe_lane *lane, const weft_moe_expert *expert, int64_t begin,
                               int64_t end);

/* Whether the expert computes the weighted sum of a row itself, and that for received row i. */
static inline bool weft_moe_by_row(const weft_moe_lane *lane, const weft_moe_expert *expert)
{
    return expert->row && lane->moe->shape.one_result_per_row;
}

void weft_moe_run_row(weft_moe_lane *lane, const weft_moe_expert *expert, int64_t i, const void *other,
                      void *out);

/* How many received rows make a block for this expert. */
int64_t weft_moe_block_rows(const weft_moe_lane *lane, const weft_moe_expert *expert);

/* ---- grouped.c: experts that gain from many rows at once ----------------------------------------------- */

/* Runs all received entries expert by expert as they arrive; sums own tokens from *taken on meanwhile. */
weft_status weft_moe_run_by_expert(weft_moe_lane *lane, const weft_moe_expert *expert, void *y,
                                   int64_t *taken);

/* How many rows the next call of an expert takes that has `left` rows left. */
int64_t weft_moe_next_call(int64_t expert_rows, int64_t left);

#endif
