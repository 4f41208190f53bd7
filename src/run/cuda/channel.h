/*
 * Channels: how collectives with counts and messages go between GPUs. Included by C and by CUDA.
 *
 * A channel leads from one rank to another. It has tracks, each with an inbox of two slots in the receiver's
 * memory, a count of what has arrived beside it, and a count of what was taken in the sender's. A message
 * goes in chunks, track by track in turn, at least one: beside a chunk stands of which call it is and how
 * long the message is, so that ranks which do not agree find out. The counts only grow, over all calls; how
 * far a rank has come stands in its own memory, so that a call needs no word between hosts, may have other
 * sizes and buffers each time, and may be replayed from a graph.
 *
 * A rank's kernel has jobs: to push to a peer by one track, to pull from one (or to reduce what comes from
 * all), to copy what it sends to itself. A CTA has jobs i, i + grid, i + 2 grid, ... and does round k of all
 * of them, the pushes first, before round k + 1 of any. A push in round k waits for pulls in round k - 2 and
 * a pull for pushes in round k: so with all CTAs of all ranks on their GPUs somebody can always go on,
 * however few they are.
 */
#ifndef WEFT_RUN_CUDA_CHANNEL_H
#define WEFT_RUN_CUDA_CHANNEL_H

#include "core/round.h"
#include "task.h"

enum {
    WEFT_CUDA_CHANNEL_RANKS = 96, /* what fits the parameters of a kernel */
    WEFT_CUDA_CHANNEL_TRACKS = 8,
    WEFT_CUDA_CHANNEL_SLOTS = 2,
    WEFT_CUDA_CHUNK_BYTES = 64 << 10, /* of a slot */
    WEFT_CUDA_CHUNK_LEAST = 4 << 10,  /* shorter messages take fewer tracks */
    WEFT_CUDA_CHANNEL_HEAD = 1024,    /* of a rank's block: its control block */
};

/* Lines of a rank's block, for each rank and track. */
typedef enum weft_cuda_channel_line {
    WEFT_CUDA_ARRIVED, /* chunks that came from a rank; then call and bytes of those in the slots */
    WEFT_CUDA_TAKEN,   /* chunks that a rank has taken of what this one sent */
    WEFT_CUDA_WANTED,  /* the chunk that a rank waits for in weft_recv; of track 0 */
    WEFT_CUDA_SENT,    /* chunks that this rank has sent to one, and received: only it looks */
    WEFT_CUDA_RECEIVED,
    WEFT_CUDA_CHANNEL_LINES
} weft_cuda_channel_line;

/* Why a kernel gave up: plan_task of a record, whose `run` is the call and `signal` the peer. */
typedef enum weft_cuda_channel_fault {
    WEFT_CUDA_CHANNEL_LATE = 1, /* the peer did not come in time */
    WEFT_CUDA_CHANNEL_CALL,     /* it makes another call: `have` is its, `want` this rank's */
    WEFT_CUDA_CHANNEL_BYTES,    /* it sends `have` bytes, and `want` are expected */
    WEFT_CUDA_CHANNEL_SENDS,    /* both send to each other first */
    WEFT_CUDA_CHANNEL_RECEIVES, /* both wait for each other's message */
} weft_cuda_channel_fault;

/* A call as ranks compare it: weft_entry, dtype, reduction, and a hash of the counts where all have the
 * same. */
enum { WEFT_CUDA_CALL_DTYPE = 8, WEFT_CUDA_CALL_REDUCTION = 16, WEFT_CUDA_CALL_COUNTS = 24 };

/* What goes to a rank and what comes from it; of the rank itself what it keeps. */
typedef struct weft_cuda_channel_peer {
    const char *send;
    char *recv;
    int64_t send_bytes, recv_bytes;
} weft_cuda_channel_peer;

typedef struct weft_cuda_channels {
    char *block; /* this rank's; that of another is `stride` bytes further for every rank between them */
    int64_t stride;
    int32_t world, rank, tracks;
    int32_t only;            /* a message's other rank; -1: all, in a collective */
    int32_t sends, receives; /* a message: one of them */
    int32_t reduces;         /* into the own recv; all peers send the same bytes */
    int32_t dtype, reduction;
    uint64_t call;
    const uint32_t *stop; /* a word of host memory: not zero ends the run */
    uint64_t enter_deadline_ns, progress_deadline_ns;
    weft_cuda_channel_peer peer[WEFT_CUDA_CHANNEL_RANKS];
} weft_cuda_channels;

typedef enum weft_cuda_job_kind {
    WEFT_CUDA_PUSH,
    WEFT_CUDA_PULL,
    WEFT_CUDA_COMBINE,
    WEFT_CUDA_KEEP,
} weft_cuda_job_kind;

typedef struct weft_cuda_job {
    weft_cuda_job_kind kind;
    int32_t peer, track;   /* COMBINE and KEEP: the rank itself */
    int64_t bytes;         /* of the message, and of a chunk of it */
    int64_t chunk, chunks; /* chunks: that this track has */
} weft_cuda_job;

#ifdef __CUDACC__
#define WEFT_CUDA_EITHER static __device__ __forceinline__
#else
#define WEFT_CUDA_EITHER static inline
#endif

WEFT_CUDA_EITHER int64_t weft_cuda_inboxes_at(int32_t world, int32_t tracks)
{
    return WEFT_CUDA_CHANNEL_HEAD + (int64_t)WEFT_CUDA_CHANNEL_LINES * world * tracks * WEFT_CUDA_LINE_WORDS *
                                        (int64_t)sizeof(uint64_t);
}

WEFT_CUDA_EITHER int64_t weft_cuda_channels_bytes(int32_t world, int32_t tracks)
{
    return weft_cuda_inboxes_at(world, tracks) +
           (int64_t)world * tracks * WEFT_CUDA_CHANNEL_SLOTS * WEFT_CUDA_CHUNK_BYTES;
}

WEFT_CUDA_EITHER char *weft_cuda_block_of(const weft_cuda_channels *c, int32_t rank)
{
    return c->block + (rank - c->rank) * c->stride;
}

WEFT_CUDA_EITHER weft_cuda_control *weft_cuda_channel_control(const weft_cuda_channels *c, int32_t rank)
{
    return (weft_cuda_control *)weft_cuda_block_of(c, rank);
}

/* In the block of rank `in`, that of its channel with `with`. */
WEFT_CUDA_EITHER uint64_t *weft_cuda_channel_at(const weft_cuda_channels *c, int32_t in,
                                                weft_cuda_channel_line line, int32_t with, int32_t track)
{
    return (uint64_t *)(weft_cuda_block_of(c, in) + WEFT_CUDA_CHANNEL_HEAD) +
           (((int64_t)line * c->world + with) * c->tracks + track) * WEFT_CUDA_LINE_WORDS;
}

/* The slot of chunk number `chunk`, counted over all calls, from rank `from` in the block of `in`. */
WEFT_CUDA_EITHER char *weft_cuda_channel_slot(const weft_cuda_channels *c, int32_t in, int32_t from,
                                              int32_t track, uint64_t chunk)
{
    int64_t slot = ((int64_t)from * c->tracks + track) * WEFT_CUDA_CHANNEL_SLOTS +
                   (int64_t)(chunk % WEFT_CUDA_CHANNEL_SLOTS);

    return weft_cuda_block_of(c, in) + weft_cuda_inboxes_at(c->world, c->tracks) +
           slot * WEFT_CUDA_CHUNK_BYTES;
}

/* Behind an ARRIVED count: call and bytes of that chunk's message. */
WEFT_CUDA_EITHER uint64_t *weft_cuda_channel_note(uint64_t *arrived, uint64_t chunk)
{
    return arrived + 1 + 2 * (chunk % WEFT_CUDA_CHANNEL_SLOTS);
}

WEFT_CUDA_EITHER int32_t weft_cuda_channel_peers(const weft_cuda_channels *c)
{
    return c->only >= 0 ? 1 : c->world - 1;
}

WEFT_CUDA_EITHER int32_t weft_cuda_jobs(const weft_cuda_channels *c)
{
    int32_t peers = weft_cuda_channel_peers(c),
            rows = (c->sends ? peers : 0) + (c->reduces || !c->receives ? 0 : peers) + (c->only < 0);

    return rows * c->tracks;
}

/* Pushes come first. Each rank begins with another peer. */
WEFT_CUDA_EITHER weft_cuda_job weft_cuda_job_at(const weft_cuda_channels *c, int32_t index)
{
    int32_t peers = weft_cuda_channel_peers(c), row = index / c->tracks, pushes = c->sends ? peers : 0;
    weft_cuda_job job = {WEFT_CUDA_KEEP, c->rank, index % c->tracks, 0, 0, 0};
    int64_t each, total;

    if (row < pushes) {
        job.kind = WEFT_CUDA_PUSH;
        job.peer = c->only >= 0 ? c->only : (c->rank + 1 + row) % c->world;
    } else if (c->reduces) {
        job.kind = WEFT_CUDA_COMBINE;
    } else if (c->receives && row - pushes < peers) {
        job.kind = WEFT_CUDA_PULL;
        job.peer = c->only >= 0 ? c->only : (c->rank + c->world - 1 - (row - pushes)) % c->world;
    }
    job.bytes = job.kind == WEFT_CUDA_PUSH ? c->peer[job.peer].send_bytes : c->peer[job.peer].recv_bytes;
    each = weft_round_up(weft_divide_up(job.bytes, c->tracks), WEFT_CUDA_CHUNK_LEAST);
    job.chunk = weft_max(WEFT_CUDA_CHUNK_LEAST, weft_min(each, WEFT_CUDA_CHUNK_BYTES));
    total = job.bytes > 0 ? weft_divide_up(job.bytes, job.chunk) : 1;
    job.chunks = weft_divide_up(total - job.track, c->tracks);
    return job;
}

/* Where a job's chunk of a round begins in the message, and its bytes. */
WEFT_CUDA_EITHER int64_t weft_cuda_job_begin(const weft_cuda_channels *c, const weft_cuda_job *job,
                                             int64_t round)
{
    return (round * c->tracks + job->track) * job->chunk;
}

WEFT_CUDA_EITHER int64_t weft_cuda_job_bytes(const weft_cuda_channels *c, const weft_cuda_job *job,
                                             int64_t round)
{
    return weft_min(job->bytes - weft_cuda_job_begin(c, job, round), job->chunk);
}

#endif
