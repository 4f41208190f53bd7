/*
 * What the kernels of a mixture-of-experts layer are given, for one lane. Included by C and by CUDA.
 *
 * A round is four kernels on the rank's stream: dispatch_send, dispatch_recv, combine_send, combine_recv.
 * Whatever depends on the routing is made by them, so a captured round may be replayed with other routings.
 *
 * Memory. Rows are pushed. What rank s sends to rank d lies in d's memory under s, row and list of experts of
 * token t at place t: so no count decides a place, and no routing overflows a receiver. Results come back to
 * the token owner's `slot`, one place for each term of a token's sum, in the order in which it is summed.
 *
 * Protocol. Nothing is reset, and there is no barrier between rounds.
 * - dispatch_send: every CTA pushes its tokens, then adds one to `arrived` of every rank, also when it sent
 *   that rank nothing. Before that it writes `rejected` there if a token of its own cannot be right.
 * - dispatch_recv: waits for all CTAs of all ranks. A rejection by anybody ends the round for everybody: the
 *   kernels that follow do nothing.
 * - combine_send: every CTA pushes results, then adds one to `returned` of every rank.
 * - combine_recv: waits for all CTAs of all ranks, and sums.
 *
 * In a layer that has `movers`, rows have counters of their own: `landed`, to which so many CTAs of every
 * rank add one each round. A round whose experts start on rows that have arrived is then dispatch_send of the
 * lists alone; dispatch_recv, which places what they say, and does not wait for rows; move, by so many CTAs
 * with an SM each, which pushes rows to one rank after another, its own first, and at the same time packs
 * those that came by expert, again one rank after another: step i brings the rows of rank - i; and the
 * product, whose tiles wait for the step that brings their last row. A rank may do so or not, round by round:
 * where it does not, dispatch_send adds to `landed` too, and dispatch_recv waits for both.
 *
 * The lists, `tokens` and `rejected` are doubled by the parity of the round: rank s may send round e + 1
 * while d still reads what s sent in e, if d got no rows of s; not e + 2, for which s must have received
 * e + 1 from d. Rows and slots are single: s overwrites a row of d after d has sent its results, and d a slot
 * of s after s has sent again.
 */
#ifndef WEFT_RUN_CUDA_MOE_DEVICE_H
#define WEFT_RUN_CUDA_MOE_DEVICE_H

#include "task.h"

enum {
    WEFT_CUDA_MOE_THREADS = 256, /* of a CTA: four fit an SM */
    WEFT_CUDA_MOE_RANKS = 256,   /* a CTA has a thread for every rank */
    WEFT_CUDA_MOE_BLOCK = 128,   /* elements of a row that share a scale: moe_wire.cuh */
    WEFT_CUDA_MOE_TOPK = 1024,   /* what a CTA keeps of a token in shared memory */
    WEFT_CUDA_MOE_MOVED_KEYS = 8 /* experts of a row that `move` can pack */
};

/* The kernels, in the order of a round. */
enum {
    WEFT_CUDA_MOE_DISPATCH_SEND,
    WEFT_CUDA_MOE_DISPATCH_RECV,
    WEFT_CUDA_MOE_COMBINE_SEND,
    WEFT_CUDA_MOE_COMBINE_RECV,
    WEFT_CUDA_MOE_PHASES,
    WEFT_CUDA_MOE_MOVE =
        WEFT_CUDA_MOE_PHASES /* between the halves of dispatch and the experts, or not at all */
};

/* Shared memory of a CTA that moves rows: places for pieces of them, for those that go and those that came.
 */
enum {
    WEFT_CUDA_MOE_MOVE_THREADS = 64,
    WEFT_CUDA_MOE_PIECE = 14336,
    WEFT_CUDA_MOE_PLACES = 7,
    WEFT_CUDA_MOE_MOVE_SHARED = 2 * WEFT_CUDA_MOE_PLACES * (WEFT_CUDA_MOE_PIECE + 128)
};

/* What is wrong with a token. */
enum {
    WEFT_CUDA_MOE_RANGE = 1, /* position `first` names `expert` */
    WEFT_CUDA_MOE_TWICE,     /* positions `first` and `second` name `expert` */
    WEFT_CUDA_MOE_REPEAT     /* `first` tokens repeat a routing of `expert` */
};

typedef struct weft_cuda_moe_fault {
    int32_t kind, expert, first, second;
} weft_cuda_moe_fault;

/* One expert of a row that was sent. */
typedef struct weft_cuda_moe_entry {
    int32_t slot; /* of the sender, for the result */
    float weight;
} weft_cuda_moe_entry;

/* What the kernels leave for each other and for the host. Faults keep the first round that had one, until the
 * host has read them: ~0 = none. */
typedef struct weft_cuda_moe_state {
    int32_t skipped;        /* the last dispatch was rejected, here or elsewhere */
    int32_t kept;           /* which instance of the kept routing is the one before */
    int32_t fresh;          /* the last send has put a new one beside it */
    int32_t parity;         /* of the last dispatch */
    int64_t kept_tokens[2]; /* 1 + tokens; 0 = none yet */
    int64_t rows, entries;  /* received */
    int64_t tokens, rows_sent, rows_sent_before, rows_sent_total;
    uint64_t sent;       /* rounds */
    uint64_t moved;      /* of those: whose rows are moved for themselves */
    uint64_t fault;      /* round << 24 | token */
    uint64_t peer_fault; /* round << 24 | rank */
    uint64_t overflow;   /* layout: local expert << 32 | its rows */
    int64_t overflow_padded;
    /* When a phase of the last round began, its number, and when the last CTA had finished it; and what the
     * rounds before took, together. */
    uint64_t began_ns[WEFT_CUDA_MOE_PHASES + 1], round[WEFT_CUDA_MOE_PHASES + 1],
        ended_ns[WEFT_CUDA_MOE_PHASES];
    uint64_t dispatch_ns, combine_ns;
} weft_cuda_moe_state;

typedef struct weft_cuda_moe {
    int64_t stride; /* bytes from a rank's memory to the next one's */
    int32_t world, rank;
    int32_t experts, experts_here, topk;
    int32_t terms; /* places of a token in `slot` */
    int32_t keys;  /* places of a row in `key` and `entry`: a multiple of 4, which are read together */
    int32_t dtype, reduced;
    uint32_t grid[WEFT_CUDA_MOE_PHASES]; /* CTAs: what a rank waits for from each */
    uint32_t movers;                     /* CTAs that move rows, even; 0: no round of the layer has such */
    int64_t capacity, hidden;
    int64_t row_bytes, result_bytes, slot_stride;
    int64_t row_stride, scales_at; /* of rows that travel; as fp8: where their scales begin, else 0 */
    int64_t pieces, piece_bytes;   /* of a token's sum: a CTA of combine_recv has one at a time */

    /* symmetric, at this rank's addresses; [2]: by parity of the round; [world]: by the rank that writes */
    uint64_t *arrived, *returned; /* [world], a signal's line apart */
    uint64_t *landed;             /* likewise, with movers */
    uint64_t *rejected;           /* [2][world]: the round that was */
    int64_t *tokens;              /* [2][world] */
    int32_t *key;                 /* [2][world][capacity][keys]: local experts, -1 ends them */
    weft_cuda_moe_entry *entry;   /* likewise */
    char *row;                    /* [world][capacity] */
    char *slot;                   /* [capacity * terms] */
    weft_cuda_control *control;

    /* private */
    const int32_t *owner, *local; /* of an expert: its rank, and its number there */
    uint64_t *runs;               /* [phases][grid of a phase]: rounds each CTA has finished, a line apart */
    uint32_t run0[WEFT_CUDA_MOE_PHASES];
    weft_cuda_moe_state *state;
    weft_cuda_moe_fault *fault; /* [capacity] */
    int32_t *terms_of;          /* [capacity] */
    float *term_weight;         /* [capacity * terms] */
    int32_t *kept_expert;       /* [2][capacity * topk] */
    float *kept_weight;         /* likewise */
    int32_t *place;             /* [world * capacity * keys]: of a list's expert in the order of experts */

    /* what was received */
    const void **view_row;
    int32_t *source, *token;
    int64_t *offset; /* [experts_here + 1] */
    int32_t *entry_row, *entry_expert;
    float *entry_weight;
    char **entry_to; /* where the result goes */

    /* with movers */
    unsigned char *goes; /* [capacity][world]: whether a token goes to a rank */
    int32_t *entry_step; /* which brings the entry's row */
    uint64_t *ready; /* [world + 1], a line apart: movers that have packed a step; last: that have begun */

    const uint32_t *stop; /* a word of host memory: not zero ends the run */
    uint64_t deadline_ns;
} weft_cuda_moe;

/* What changes from call to call. */
typedef struct weft_cuda_moe_args {
    const void *x; /* dispatch_send, move: tokens. combine_send: results. gather: unused */
    const int32_t *expert;
    const float *weight;
    int64_t tokens;
    int32_t reject;       /* dispatch_send: the host has rejected the input */
    int32_t lists;        /* dispatch: rows are moved for themselves */
    const int64_t *start; /* gather, combine_send */
    void *out;            /* combine_recv: y. gather, move: packed. layout: start */
    int64_t *rows;        /* layout */
    int64_t alignment;
} weft_cuda_moe_args;

#endif
