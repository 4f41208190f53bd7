/*
 * One rank of a collective in the loop: its peers are their memory, and beside it a kernel does what they
 * would do, when an emulated link would have brought it. All ranks of a collective do the same at the same
 * time, so what the rank says to a peer is what that peer says to it: the kernel watches what arrives there,
 * and answers in kind. Included by C and by CUDA.
 *
 * weft_link_signals stands for peers whose plans go by signals. Its first CTA answers ENTER one latency
 * later. Each of the others waits for one more DONE of the rank at its peers, lets the link carry what a lane
 * moves in one direction, stores what such a lane of every peer stores at this rank, and says DONE.
 * weft_link_packets stands for those whose plans go by packets: a chunk of every peer's packets comes when
 * the rank's own has arrived there and the link has carried them. weft_link_lines does so with lines, each of
 * their hops by WEFT_CUDA_LINK_THREADS threads of its own: what comes late of one holds up none of the other.
 * A CTA of it may have several of the rank's chunks, and goes on with all of them at once. And with as many
 * bytes of a product's sums as marked words (exchange.h).
 */
#ifndef WEFT_TOOLS_BENCH_CUDA_LINK_H
#define WEFT_TOOLS_BENCH_CUDA_LINK_H

#include "run/cuda/moe_device.h"
#include "run/cuda/task.h"

enum {
    WEFT_CUDA_LINK_THREADS = 256,
    WEFT_CUDA_LINK_PEERS = 7,
    WEFT_CUDA_LINK_LINES_CTAS = 72,
    /* Half of the least that it takes from one SM of a GPU to another and back: this long ago the rank made
     * what is seen here, and this long after it is stored the rank sees an answer. An emulated link's latency
     * is from one to the other. A signal, 1.8 to 1.9 us (the release waits for what was stored before); a
     * packet, 0.53 to 0.79. */
    WEFT_CUDA_LINK_SIGNAL_NS = 900,
    WEFT_CUDA_LINK_PACKET_NS = 260
};

/* What peers store at the rank, out of a copy of what it is to have in the end. */
typedef struct weft_cuda_link_store {
    const char *from;
    char *to;
    int64_t bytes;
} weft_cuda_link_store;

typedef struct weft_cuda_link_lane {
    uint32_t store0, store_count;
    int64_t busy_ns; /* the link carries what the lane moves */
    int64_t
        latency_ns; /* from there until its DONE is here: once for what is stored, once for what is read */
} weft_cuda_link_lane;

/* What peers send in a hop: `lines` of each, as they lie in an inbox but for the runs' numbers. */
typedef struct weft_cuda_link_hop {
    const char *images;
    const char *watched; /* where peer 1 has those of the rank */
    char *inbox;
    int64_t lines, watched_lines;
} weft_cuda_link_hop;

typedef struct weft_cuda_link {
    int32_t world;
    uint32_t runs;      /* to answer */
    uint64_t *answered; /* runs before, of each CTA: a signal's line apart */
    uint64_t *free_ns;  /* when the link has carried all that it was given */
    uint32_t *up;       /* CTAs that have begun */
    uint64_t deadline_ns;
    int64_t latency_ns, notice_ns;
    /* signals: those of the rank, number 0, which lie `stride` words apart from those of the next */
    uint64_t *signals;
    int64_t stride;
    const weft_cuda_link_lane *lanes; /* of CTA 1 and on */
    const weft_cuda_link_store *stores;
    const uint32_t *sent, *heard; /* by peer: DONE that it gets of the rank in a run, and the rank of it */
    /* packets */
    const uint64_t *payload; /* [peer * packets + at] */
    const char *watched;     /* where peer 1 has those of the rank */
    char *inbox;
    int64_t packets, chunk_packets, row_bytes, parity_bytes; /* chunk_packets: or lines */
    int64_t busy_ps;           /* the link carries a packet of every peer, or a line */
    weft_cuda_link_hop hop[2]; /* lines */
    int64_t chunks; /* of lines of the rank, that a CTA has: its number, and so many CTAs on, ... */
    int32_t marked; /* which have no number: see exchange.h */
} weft_cuda_link;

/* weft_experts_link: the posts of ranks that do not run in a MoE round, made when the link would
 * have delivered what they send. */
typedef struct weft_cuda_moe_link {
    uint64_t *signals; /* of the world; this rank makes its own posts */
    weft_cuda_moe_state *state;
    uint64_t *runs; /* of this kernel */
    int32_t world, rank, phase, pad;
    uint64_t posts, delay_ns; /* after the phase began */
    uint64_t step_ns;         /* the next rank's so much later: rank - 1, rank - 2, ... */
} weft_cuda_moe_link;

#endif
