/*
 * What the kernels of collectives are given. Included by C and by CUDA.
 *
 * weft_collective_* (collective.cu) walk the arrays of task.h, like the walkers of products, without their
 * shared memory. weft_packets (packets.cu) runs plans of the schedule `packets`: a packet is 8 bytes of
 * payload and the run's number in one 16-byte store, so that what arrives says itself that it has arrived.
 * Inboxes are doubled by parity. A rank writes those of run e + 2 after it has finished e + 1, for which
 * every peer sent it something, so every peer was through with run e: no ENTER, no DONE, no barrier between
 * runs.
 *
 * weft_lines (lines.cu) does so for all_reduce in two hops (`two_shot_packets`), and where no two ranks share
 * a GPU for all but broadcast in one, by lines of 128 bytes that eight threads of a warp store at once. Where
 * links keep such a store whole, as NVLink does, a line is 15 words of payload and the run's number in its
 * last one; elsewhere it is eight packets. Thread i of the eight has words i and, of whole lines, 8 + i of a
 * line's payload, side by side. A rank of whose slice nothing is left in a chunk hears in its place the
 * results of those that have some, and those are all that it writes to.
 */
#ifndef WEFT_RUN_CUDA_COLLECTIVE_H
#define WEFT_RUN_CUDA_COLLECTIVE_H

#include "choose/cuda/wire.h"
#include "task.h"

#include <stdbool.h>
#include <weft/weft.h>

enum {
    WEFT_CUDA_COLLECTIVE_THREADS = 256, /* of a CTA, with at most 128 registers: two fit an SM */
    WEFT_CUDA_PACKETS_THREADS = 512,    /* at most, of a CTA of packets.cu and lines.cu, with 64: again two */
    WEFT_CUDA_ROUND_THREADS = 32        /* a warp has a line of all ranks at a time */
};

/* What goes to a rank, and its inbox's row of this one; NULL and a row: a packet without payload, so that it
 * knows this rank has come. Where its payload goes, NULL when it sends none; REDUCE: that of rank 0 is the
 * result's. Lines: the rank's slice in send and recv and how long it is, all of it in one hop, and what it
 * reduces goes to its own recv. `back`: this rank's row of its inbox of results. */
typedef struct weft_cuda_packet_peer {
    const char *send;
    char *to, *recv, *back;
    int64_t bytes;
} weft_cuda_packet_peer;

/* In the order in which a kernel needs it: its parameters come from memory, too. */
typedef struct weft_cuda_packets {
    uint64_t *epochs;                /* the runs each CTA has finished: a signal's line apart */
    int64_t bytes, chunk_packets;    /* of a row's payload, the longest; of it that a CTA has: or lines */
    int64_t row_bytes, parity_bytes; /* between rows of inboxes, and between their two instances */
    const char *inbox, *results;     /* row 0 of this rank's; two hops: that of results, else NULL */
    int32_t world, rank;
    int32_t reduces, dtype, reduction;
    int32_t aligned;            /* every address allows accesses of 8 bytes */
    int32_t lines, whole_lines; /* of lines.cu */
    weft_cuda_packet_peer peer[WEFT_CUDA_PACKET_RANKS];
    weft_cuda_control *control;
    weft_cuda_control *const *controls; /* every rank's */
    const uint32_t *stop;               /* NULL, or a word of host memory: not zero ends the run */
    uint64_t deadline_ns;
} weft_cuda_packets;

/* How the kernels reduce: a bool is a byte for them, whose "or" is the larger one and "and" the smaller. */
static inline int32_t weft_cuda_reduction_of(const weft_problem *problem)
{
    if (problem->dtype != WEFT_BOOL)
        return (int32_t)problem->reduction;
    return problem->reduction == WEFT_SUM       ? (int32_t)WEFT_MAX
           : problem->reduction == WEFT_PRODUCT ? (int32_t)WEFT_MIN
                                                : (int32_t)problem->reduction;
}

#endif
