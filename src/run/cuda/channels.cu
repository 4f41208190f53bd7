/*
 * Collectives with counts and messages: see channel.h. A CTA does a chunk of a job with all threads.
 *
 * Card: 256 threads, at most 128 registers: two CTAs fit an SM. 8 loads of 16 bytes are in flight a thread.
 */
#include "channel.h"
#include "order.cuh"
#include "rows.cuh"

namespace
{

/* ---- waiting ----------------------------------------------------------------------------------------- */

/* The first of the rank writes the record, then raises every rank's abort word, which all waits look at. */
__device__ void give_up(const weft_cuda_channels &c, int peer, weft_cuda_channel_fault why, uint64_t have,
                        uint64_t want)
{
    weft_cuda_record *record = &weft_cuda_channel_control(&c, c.rank)->record;
    if (atomicCAS(&record->set, 0u, 1u) == 0) {
        record->plan_task = why;
        record->signal = (uint32_t)peer;
        record->lane = blockIdx.x;
        record->run = c.call;
        record->have = have;
        record->want = want;
        __threadfence_system();
        atomicExch(&record->set, 2u);
    }
    for (int r = 0; r < c.world; r++)
        atomicExch_system(&weft_cuda_channel_control(&c, r)->abort, 1u);
}

__device__ __forceinline__ uint32_t steps_of_all(const weft_cuda_channels &c)
{
    uint32_t steps = 0;
    for (int r = 0; r < c.world; r++)
        steps += load_relaxed(&weft_cuda_channel_control(&c, r)->steps);
    return steps;
}

/* Until all peers were heard of in this run they have the longer deadline, and then the wait lasts while
 * anybody's chunks go on. */
__device__ __forceinline__ bool expires(const weft_cuda_channels &c, Patience &patience)
{
    uint64_t now = now_ns();
    bool enters =
        load_relaxed(&weft_cuda_channel_control(&c, c.rank)->entered) < (uint32_t)weft_cuda_channel_peers(&c);
    if (!patience.since)
        patience.since = now;
    return patience.ends(now, enters ? c.enter_deadline_ns : c.progress_deadline_ns, enters,
                         [&] { return steps_of_all(c); });
}

/* Whether this rank and the one that its message is for, or from, wait for each other. What the peer did
 * before it posted that is visible now: so the count is looked at once more. */
__device__ bool deadlocks(const weft_cuda_channels &c, const uint64_t *count, uint64_t want)
{
    weft_cuda_channel_line theirs = c.sends ? WEFT_CUDA_ARRIVED : WEFT_CUDA_WANTED,
                           mine = c.sends ? WEFT_CUDA_RECEIVED : WEFT_CUDA_SENT;
    return c.only >= 0 &&
           load_acquire(weft_cuda_channel_at(&c, c.rank, theirs, c.only, 0)) >
               *weft_cuda_channel_at(&c, c.rank, mine, c.only, 0) &&
           load_acquire(count) < want;
}

/* Until a count is there; partners: the add_release of push and of pull. False when the run is given up. */
__device__ bool await(const weft_cuda_channels &c, int peer, const uint64_t *count, uint64_t want)
{
    weft_cuda_control *control = weft_cuda_channel_control(&c, c.rank);
    Patience patience;
    for (uint32_t spins = 1;; spins++) {
        uint64_t have = load_acquire(count);
        if ((int64_t)(have - want) >= 0)
            return true;
        if (spins % 32)
            continue;
        if (load_relaxed(&control->abort))
            return false;
        if (spins % 2048 == 0 && c.stop && load_relaxed(c.stop)) { /* the host's word, across the bus */
            atomicExch_system(&control->abort, 1u);
            return false;
        }
        if (spins % 1024 == 0 && deadlocks(c, count, want)) {
            give_up(c, peer, c.sends ? WEFT_CUDA_CHANNEL_SENDS : WEFT_CUDA_CHANNEL_RECEIVES, have, want);
            return false;
        }
        if (expires(c, patience)) {
            give_up(c, peer, WEFT_CUDA_CHANNEL_LATE, have, want);
            return false;
        }
    }
}

/* ---- jobs -------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void count_chunk(const weft_cuda_channels &c)
{
    count_relaxed(&weft_cuda_channel_control(&c, c.rank)->steps);
}

/* One thread: a peer has come to this run. */
__device__ __forceinline__ void hear(const weft_cuda_channels &c)
{
    atomicAdd(&weft_cuda_channel_control(&c, c.rank)->entered, 1u);
}

__device__ bool push(const weft_cuda_channels &c, const weft_cuda_job &job, int64_t round)
{
    uint64_t chunk = *weft_cuda_channel_at(&c, c.rank, WEFT_CUDA_SENT, job.peer, job.track) + round;
    bool lost = false;
    if (threadIdx.x == 0 && chunk >= WEFT_CUDA_CHANNEL_SLOTS) {
        lost = !await(c, job.peer, weft_cuda_channel_at(&c, c.rank, WEFT_CUDA_TAKEN, job.peer, job.track),
                      chunk + 1 - WEFT_CUDA_CHANNEL_SLOTS);
        if (c.only >= 0 && job.track == 0 && round == WEFT_CUDA_CHANNEL_SLOTS)
            hear(c);
    }
    if (__syncthreads_or(lost))
        return false;
    copy_row(weft_cuda_channel_slot(&c, job.peer, c.rank, job.track, chunk),
             c.peer[job.peer].send + weft_cuda_job_begin(&c, &job, round),
             weft_cuda_job_bytes(&c, &job, round));
    __syncthreads();
    if (threadIdx.x == 0) {
        uint64_t *arrived = weft_cuda_channel_at(&c, job.peer, WEFT_CUDA_ARRIVED, c.rank, job.track);
        volatile uint64_t *note = weft_cuda_channel_note(arrived, chunk);
        note[0] = c.call;
        note[1] = (uint64_t)job.bytes;
        add_release(arrived); /* partner: await; the barrier before brought the others' stores */
        count_chunk(c);
    }
    return true;
}

/* One thread: a chunk of a peer has come, and is of the message that this rank expects. */
__device__ bool arrives(const weft_cuda_channels &c, const weft_cuda_job &job, int peer, int64_t round,
                        uint64_t chunk)
{
    uint64_t *arrived = weft_cuda_channel_at(&c, c.rank, WEFT_CUDA_ARRIVED, peer, job.track);
    volatile uint64_t *note = weft_cuda_channel_note(arrived, chunk);
    if (c.only >= 0 && job.track == 0 && round == 0) /* partner: deadlocks, on the peer */
        atomicExch_system((unsigned long long *)weft_cuda_channel_at(&c, peer, WEFT_CUDA_WANTED, c.rank, 0),
                          chunk + 1);
    if (!await(c, peer, arrived, chunk + 1))
        return false;
    if (job.track == 0 && round == 0)
        hear(c);
    if (note[0] == c.call && note[1] == (uint64_t)job.bytes)
        return true;
    bool other = note[0] != c.call;
    give_up(c, peer, other ? WEFT_CUDA_CHANNEL_CALL : WEFT_CUDA_CHANNEL_BYTES, note[other ? 0 : 1],
            other ? c.call : (uint64_t)job.bytes);
    return false;
}

__device__ bool pull(const weft_cuda_channels &c, const weft_cuda_job &job, int64_t round)
{
    uint64_t chunk = *weft_cuda_channel_at(&c, c.rank, WEFT_CUDA_RECEIVED, job.peer, job.track) + round;
    if (__syncthreads_or(threadIdx.x == 0 && !arrives(c, job, job.peer, round, chunk)))
        return false;
    copy_row(c.peer[job.peer].recv + weft_cuda_job_begin(&c, &job, round),
             weft_cuda_channel_slot(&c, c.rank, job.peer, job.track, chunk),
             weft_cuda_job_bytes(&c, &job, round));
    __syncthreads();
    if (threadIdx.x == 0) {
        add_release(weft_cuda_channel_at(&c, job.peer, WEFT_CUDA_TAKEN, c.rank, job.track));
        count_chunk(c);
    }
    return true;
}

struct CombinedRows {
    uint32_t flags, destinations, sources;
    int32_t cols;
};

/* Not inlined, and with half of the loads in flight: a type is a function, and the kernel one. */
template <int DTYPE>
__device__ __noinline__ void combine_rows(CombinedRows rows, int64_t bytes, char *const *views, int reduction)
{
    rows.cols = (int32_t)(bytes / (int64_t)sizeof(typename Type<DTYPE>::Stored));
    reduce_row<DTYPE, false, ROW_DEPTH / 2>(rows, views, reduction);
}

__device__ void combine_as(const weft_cuda_channels &c, CombinedRows rows, int64_t bytes, char *const *views)
{
    switch (c.dtype) {
    case WEFT_F32:
        combine_rows<WEFT_F32>(rows, bytes, views, c.reduction);
        break;
    case WEFT_F16:
        combine_rows<WEFT_F16>(rows, bytes, views, c.reduction);
        break;
    case WEFT_BF16:
        combine_rows<WEFT_BF16>(rows, bytes, views, c.reduction);
        break;
    case WEFT_I32:
        combine_rows<WEFT_I32>(rows, bytes, views, c.reduction);
        break;
    case WEFT_I64:
        combine_rows<WEFT_I64>(rows, bytes, views, c.reduction);
        break;
    case WEFT_F64:
        combine_rows<WEFT_F64>(rows, bytes, views, c.reduction);
        break;
    case WEFT_I8:
        combine_rows<WEFT_I8>(rows, bytes, views, c.reduction);
        break;
    default: /* bool: see weft_cuda_reduction_of */
        combine_rows<WEFT_U8>(rows, bytes, views, c.reduction);
        break;
    }
}

/* What comes from all, in rank order; a thread for each rank. */
__device__ bool combine(const weft_cuda_channels &c, const weft_cuda_job &job, int64_t round)
{
    __shared__ char *views[1 + WEFT_CUDA_CHANNEL_RANKS];
    int64_t begin = weft_cuda_job_begin(&c, &job, round), bytes = weft_cuda_job_bytes(&c, &job, round);
    const weft_cuda_channel_peer &own = c.peer[c.rank];
    int rank = (int)threadIdx.x;
    bool lost = false;
    if (rank < c.world && rank != c.rank) {
        uint64_t chunk = *weft_cuda_channel_at(&c, c.rank, WEFT_CUDA_RECEIVED, rank, job.track) + round;
        lost = !arrives(c, job, rank, round, chunk);
        views[1 + rank] = weft_cuda_channel_slot(&c, c.rank, rank, job.track, chunk);
    } else if (rank == c.rank) {
        views[0] = own.recv + begin;
        views[1 + rank] = (char *)own.send + begin;
    }
    if (__syncthreads_or(lost))
        return false;
    CombinedRows rows = {0, 1, (uint32_t)c.world, 0};
    if (((uintptr_t)own.recv | (uintptr_t)own.send) % 16 == 0)
        rows.flags = WEFT_CUDA_WIDE;
    if (bytes > 0)
        combine_as(c, rows, bytes, views);
    __syncthreads();
    if (rank < c.world && rank != c.rank)
        add_release(weft_cuda_channel_at(&c, rank, WEFT_CUDA_TAKEN, c.rank, job.track));
    if (rank == 0)
        count_chunk(c);
    return true;
}

__device__ void keep(const weft_cuda_channels &c, const weft_cuda_job &job, int64_t round)
{
    int64_t begin = weft_cuda_job_begin(&c, &job, round);
    copy_row(c.peer[c.rank].recv + begin, c.peer[c.rank].send + begin, weft_cuda_job_bytes(&c, &job, round));
}

__device__ bool run_chunk(const weft_cuda_channels &c, const weft_cuda_job &job, int64_t round)
{
    if (job.kind == WEFT_CUDA_PUSH)
        return push(c, job, round);
    if (job.kind == WEFT_CUDA_PULL)
        return pull(c, job, round);
    if (job.kind == WEFT_CUDA_COMBINE)
        return combine(c, job, round);
    keep(c, job, round);
    return true;
}

/* A message that was sent has been received when the stream goes on. Then the counts of the next call. */
__device__ bool end_job(const weft_cuda_channels &c, const weft_cuda_job &job)
{
    int rank = (int)threadIdx.x;
    weft_cuda_channel_line line = job.kind == WEFT_CUDA_PUSH ? WEFT_CUDA_SENT : WEFT_CUDA_RECEIVED;
    bool mine = job.kind == WEFT_CUDA_COMBINE ? rank < c.world && rank != c.rank
                                              : rank == 0 && job.kind != WEFT_CUDA_KEEP,
         lost = false;
    uint64_t *count =
        weft_cuda_channel_at(&c, c.rank, line, job.kind == WEFT_CUDA_COMBINE ? rank : job.peer, job.track);
    if (!mine)
        return true;
    if (job.kind == WEFT_CUDA_PUSH && c.only >= 0 && job.chunks > 0)
        lost = !await(c, job.peer, weft_cuda_channel_at(&c, c.rank, WEFT_CUDA_TAKEN, job.peer, job.track),
                      *count + job.chunks);
    *count += job.chunks;
    return !lost;
}

__device__ void run(const weft_cuda_channels &c)
{
    int jobs = weft_cuda_jobs(&c);
    bool more = true, goes_on = true;
    for (int64_t round = 0; more && goes_on; round++) {
        more = false;
        for (int j = (int)blockIdx.x; j < jobs && goes_on; j += (int)gridDim.x) {
            weft_cuda_job job = weft_cuda_job_at(&c, j);
            if (round >= job.chunks)
                continue;
            more = true;
            goes_on = run_chunk(c, job, round);
        }
    }
    for (int j = (int)blockIdx.x; j < jobs && goes_on; j += (int)gridDim.x) {
        __syncthreads(); /* all have read the counts */
        goes_on = !__syncthreads_or(!end_job(c, weft_cuda_job_at(&c, j)));
    }
    weft_cuda_control *control = weft_cuda_channel_control(&c, c.rank);
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(&control->finished, 1u) == gridDim.x - 1) {
            control->finished = 0;
            control->entered = 0;
            control->run++;
        }
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(WEFT_CUDA_COLLECTIVE_THREADS, 2)
    weft_channels(const __grid_constant__ weft_cuda_channels c)
{
    run(c);
}
