#include "fake_channels.h"

#include "core/dtype.h"
#include "run/cpu/reduce.h"

#include <string.h>

static uint64_t load(const weft_cuda_channels *c, weft_cuda_channel_line line, int with, int track)
{
    return __atomic_load_n(weft_cuda_channel_at(c, c->rank, line, with, track), __ATOMIC_ACQUIRE);
}

static void post(const weft_cuda_channels *c, int in, weft_cuda_channel_line line, int track)
{
    __atomic_fetch_add(weft_cuda_channel_at(c, in, line, c->rank, track), 1, __ATOMIC_RELEASE);
}

static void give_up(const weft_cuda_channels *c, int peer, weft_cuda_channel_fault why, uint64_t have,
                    uint64_t want)
{
    weft_cuda_record *record = &weft_cuda_channel_control(c, c->rank)->record;

    if (!record->set)
        *record = (weft_cuda_record){
            .set = 2, .plan_task = why, .signal = (uint32_t)peer, .run = c->call, .have = have, .want = want};
    for (int r = 0; r < c->world; r++)
        __atomic_store_n(&weft_cuda_channel_control(c, r)->abort, 1, __ATOMIC_RELEASE);
}

/* As `deadlocks` of channels.cu. */
static bool reached(const weft_cuda_channels *c, weft_cuda_channel_line line, int peer, int track,
                    uint64_t want)
{
    weft_cuda_channel_line theirs = c->sends ? WEFT_CUDA_ARRIVED : WEFT_CUDA_WANTED,
                           mine = c->sends ? WEFT_CUDA_RECEIVED : WEFT_CUDA_SENT;

    if (load(c, line, peer, track) >= want)
        return true;
    if (c->only >= 0 && load(c, theirs, peer, 0) > load(c, mine, peer, 0) &&
        load(c, line, peer, track) < want)
        give_up(c, peer, c->sends ? WEFT_CUDA_CHANNEL_SENDS : WEFT_CUDA_CHANNEL_RECEIVES, 0, want);
    return false;
}

/* Whom a job waits for in a round, or at its end; -1: nobody. */
static int awaits(const weft_cuda_channels *c, const weft_cuda_job *job, int64_t round, bool ends)
{
    if (job->kind == WEFT_CUDA_PUSH) {
        int64_t want = (int64_t)load(c, WEFT_CUDA_SENT, job->peer, job->track) +
                       (ends ? job->chunks : round + 1 - WEFT_CUDA_CHANNEL_SLOTS);

        if ((ends && c->only < 0) || want <= 0 ||
            reached(c, WEFT_CUDA_TAKEN, job->peer, job->track, (uint64_t)want))
            return -1;
        return job->peer;
    }
    if (ends || job->kind == WEFT_CUDA_KEEP)
        return -1;
    for (int rank = 0; rank < c->world; rank++) {
        uint64_t chunk = load(c, WEFT_CUDA_RECEIVED, rank, job->track) + (uint64_t)round;

        if (rank == c->rank || (job->kind == WEFT_CUDA_PULL && rank != job->peer))
            continue;
        if (c->only >= 0 && job->track == 0 && round == 0)
            __atomic_store_n(weft_cuda_channel_at(c, rank, WEFT_CUDA_WANTED, c->rank, 0), chunk + 1,
                             __ATOMIC_RELEASE);
        if (!reached(c, WEFT_CUDA_ARRIVED, rank, job->track, chunk + 1))
            return rank;
    }
    return -1;
}

/* Whether the chunk is of the message that is expected. */
static bool agrees(const weft_cuda_channels *c, const weft_cuda_job *job, int peer, uint64_t chunk)
{
    const uint64_t *note =
        weft_cuda_channel_note(weft_cuda_channel_at(c, c->rank, WEFT_CUDA_ARRIVED, peer, job->track), chunk);
    bool other = note[0] != c->call;

    if (!other && note[1] == (uint64_t)job->bytes)
        return true;
    give_up(c, peer, other ? WEFT_CUDA_CHANNEL_CALL : WEFT_CUDA_CHANNEL_BYTES, note[!other],
            other ? c->call : (uint64_t)job->bytes);
    return false;
}

static void copy(char *to, const char *from, int64_t bytes)
{
    if (bytes > 0 && to != from)
        memcpy(to, from, (size_t)bytes);
}

static void push(const weft_cuda_channels *c, const weft_cuda_job *job, int64_t round)
{
    uint64_t chunk = load(c, WEFT_CUDA_SENT, job->peer, job->track) + (uint64_t)round;
    uint64_t *note = weft_cuda_channel_note(
        weft_cuda_channel_at(c, job->peer, WEFT_CUDA_ARRIVED, c->rank, job->track), chunk);

    copy(weft_cuda_channel_slot(c, job->peer, c->rank, job->track, chunk),
         c->peer[job->peer].send + weft_cuda_job_begin(c, job, round), weft_cuda_job_bytes(c, job, round));
    note[0] = c->call;
    note[1] = (uint64_t)job->bytes;
    post(c, job->peer, WEFT_CUDA_ARRIVED, job->track);
}

static void pull(const weft_cuda_channels *c, const weft_cuda_job *job, int64_t round)
{
    uint64_t chunk = load(c, WEFT_CUDA_RECEIVED, job->peer, job->track) + (uint64_t)round;

    if (!agrees(c, job, job->peer, chunk))
        return;
    copy(c->peer[job->peer].recv + weft_cuda_job_begin(c, job, round),
         weft_cuda_channel_slot(c, c->rank, job->peer, job->track, chunk),
         weft_cuda_job_bytes(c, job, round));
    post(c, job->peer, WEFT_CUDA_TAKEN, job->track);
}

static void combine(const weft_cuda_channels *c, const weft_cuda_job *job, int64_t round)
{
    int64_t begin = weft_cuda_job_begin(c, job, round), bytes = weft_cuda_job_bytes(c, job, round),
            elements = bytes > 0 ? bytes / (int64_t)weft_dtype_size((weft_dtype)c->dtype) : 0;
    weft_view sources[WEFT_CUDA_CHANNEL_RANKS], into = {c->peer[c->rank].recv + begin, elements};

    for (int rank = 0; rank < c->world; rank++) {
        uint64_t chunk = load(c, WEFT_CUDA_RECEIVED, rank, job->track) + (uint64_t)round;

        if (rank != c->rank && !agrees(c, job, rank, chunk))
            return;
        sources[rank] =
            (weft_view){rank == c->rank ? (char *)(uintptr_t)c->peer[rank].send + begin
                                        : weft_cuda_channel_slot(c, c->rank, rank, job->track, chunk),
                        elements};
    }
    if (elements)
        weft_reduce_rows((weft_dtype)c->dtype, (weft_reduction)c->reduction, 1, elements, sources, c->world,
                         (weft_dtype)c->dtype, &into, 1);
    for (int rank = 0; rank < c->world; rank++)
        if (rank != c->rank)
            post(c, rank, WEFT_CUDA_TAKEN, job->track);
}

static void run_chunk(const weft_cuda_channels *c, const weft_cuda_job *job, int64_t round)
{
    int64_t begin = weft_cuda_job_begin(c, job, round);

    if (job->kind == WEFT_CUDA_PUSH)
        push(c, job, round);
    else if (job->kind == WEFT_CUDA_PULL)
        pull(c, job, round);
    else if (job->kind == WEFT_CUDA_COMBINE)
        combine(c, job, round);
    else
        copy(c->peer[c->rank].recv + begin, c->peer[c->rank].send + begin,
             weft_cuda_job_bytes(c, job, round));
}

static void end_job(const weft_cuda_channels *c, const weft_cuda_job *job)
{
    for (int rank = 0; rank < c->world; rank++)
        if (rank == job->peer ? job->kind == WEFT_CUDA_PUSH || job->kind == WEFT_CUDA_PULL
                              : job->kind == WEFT_CUDA_COMBINE)
            *weft_cuda_channel_at(c, c->rank,
                                  job->kind == WEFT_CUDA_PUSH ? WEFT_CUDA_SENT : WEFT_CUDA_RECEIVED, rank,
                                  job->track) += (uint64_t)job->chunks;
}

int fake_channels_await(const weft_cuda_channels *c, uint32_t cta, uint32_t ctas, const fake_progress *at)
{
    int32_t index = (int32_t)cta + at->job * (int32_t)ctas;

    if (index >= weft_cuda_jobs(c))
        return -1;
    weft_cuda_job job = weft_cuda_job_at(c, index);
    return at->ends || at->round < job.chunks ? awaits(c, &job, at->round, at->ends) : -1;
}

bool fake_channels_step(const weft_cuda_channels *c, uint32_t cta, uint32_t ctas, fake_progress *at,
                        bool *over)
{
    int32_t index = (int32_t)cta + at->job * (int32_t)ctas, jobs = weft_cuda_jobs(c);
    bool more = false;

    if (index >= jobs) { /* the next round, or the end of it */
        for (int32_t j = (int32_t)cta; j < jobs; j += (int32_t)ctas)
            more |= weft_cuda_job_at(c, j).chunks > at->round + 1;
        *over = at->ends;
        at->ends |= !more;
        at->round++;
        at->job = 0;
        return true;
    }
    if (fake_channels_await(c, cta, ctas, at) >= 0)
        return false;
    weft_cuda_job job = weft_cuda_job_at(c, index);
    if (at->ends)
        end_job(c, &job);
    else if (at->round < job.chunks)
        run_chunk(c, &job, at->round);
    at->job++;
    return true;
}
