#include "run/cuda/channels.h"

#include "core/clock.h"
#include "core/hash.h"
#include "core/round.h"
#include "run/cuda/channel.h"
#include "run/cuda/collective.h"
#include "run/cuda/journal.h"

#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(weft_cuda_channels) <= 4096, "the parameters of a kernel");
_Static_assert(sizeof(weft_cuda_control) <= WEFT_CUDA_CHANNEL_HEAD, "it stands before the lines");
_Static_assert(1 + 2 * WEFT_CUDA_CHANNEL_SLOTS <= WEFT_CUDA_LINE_WORDS, "notes stand in a count's line");
_Static_assert((int)WEFT_CUDA_CHANNEL_RANKS <= (int)WEFT_CUDA_COLLECTIVE_THREADS, "a thread for each rank");

/* ---- memory ------------------------------------------------------------------------------------------- */

/* Enough for pushes and pulls with every peer to go on at once; the same on all ranks. */
static int32_t tracks_of(const weft_group *group)
{
    int peers = group->size > 1 ? group->size - 1 : 1, tracks = weft_cuda_of(group)->crews / (2 * peers);

    return (int32_t)weft_max(1, weft_min(tracks, WEFT_CUDA_CHANNEL_TRACKS));
}

weft_status weft_cuda_channels_open(weft_group *group)
{
    weft_cuda_group *g = weft_cuda_of(group);
    const weft_cuda_driver *cu = g->device->cu;
    void *block = NULL;
    weft_status status;

    if (group->size > WEFT_CUDA_CHANNEL_RANKS)
        return WEFT_OK; /* such calls say so */
    g->channels.tracks = tracks_of(group);
    weft_cuda_push(g);
    status = weft_cuda_check(cu, cu->cuEventCreate(&g->channels.last, CU_EVENT_DISABLE_TIMING),
                             "cuEventCreate", &group->error);
    weft_cuda_pop(g);
    status = weft_cuda_agree(group, WEFT_SYNC_GPU, status);
    if (status == WEFT_OK)
        status = weft_cuda_alloc(group, (size_t)weft_cuda_channels_bytes(group->size, g->channels.tracks),
                                 1024, &block);
    g->channels.block = block;
    return status;
}

void weft_cuda_channels_close(weft_group *group)
{
    weft_cuda_group *g = weft_cuda_of(group);
    const weft_cuda_driver *cu = g->device->cu;
    int64_t begun = weft_clock_ns();

    if (!g->channels.last)
        return;
    weft_cuda_push(g);
    while (cu->cuEventQuery(g->channels.last) == CUDA_ERROR_NOT_READY &&
           weft_clock_ns() - begun <= group->progress_ns)
        ;
    cu->cuEventDestroy(g->channels.last);
    g->channels.last = NULL;
    weft_cuda_pop(g);
}

/* ---- calls -------------------------------------------------------------------------------------------- */

static uint64_t call_of(weft_entry entry, weft_dtype dtype, weft_reduction reduction, const int64_t *counts,
                        int count)
{
    uint64_t hash = counts ? weft_hash(WEFT_HASH_START, counts, sizeof(*counts) * (size_t)count) : 0;

    return (uint64_t)entry | (uint64_t)dtype << WEFT_CUDA_CALL_DTYPE |
           (uint64_t)reduction << WEFT_CUDA_CALL_REDUCTION | hash << WEFT_CUDA_CALL_COUNTS;
}

/* What needs no look at the buffers: whether the group and the stream can have such a call. */
static weft_status begin(weft_group *group, weft_entry entry, weft_cuda_channels *c)
{
    const weft_cuda_group *g = weft_cuda_of(group);
    weft_status status = weft_group_check(group);

    if (status != WEFT_OK)
        return status;
    if (!g->channels.block)
        return weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED,
                              "%s on GPUs is for groups of at most %d ranks, not %d", weft_entry_name(entry),
                              WEFT_CUDA_CHANNEL_RANKS, group->size);
    if (g->crowded && weft_cuda_stream(g, g->issue_stream) == CU_STREAM_LEGACY)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "%s: ranks that are threads on one GPU cannot share its default stream, where "
                              "their kernels would wait for one another: give each a stream, or "
                              "WEFT_STREAM_OWN",
                              weft_entry_name(entry));
    *c = (weft_cuda_channels){.block = g->channels.block,
                              .stride = (int64_t)g->heap.stride,
                              .world = group->size,
                              .rank = group->rank,
                              .tracks = g->channels.tracks,
                              .only = -1,
                              .stop = g->stop,
                              .enter_deadline_ns = (uint64_t)group->enter_ns,
                              .progress_deadline_ns = (uint64_t)group->progress_ns};
    return WEFT_OK;
}

static weft_status check_buffer(weft_group *group, weft_entry entry, const char *name, const void *pointer,
                                int64_t bytes)
{
    char what[64];

    if (weft_cuda_contains(group, pointer, (size_t)bytes))
        return WEFT_OK;
    snprintf(what, sizeof(what), "%s of %s", name, weft_entry_name(entry));
    return weft_cuda_check_memory(group, what, pointer, (size_t)bytes);
}

/* Ranks that share a GPU leave half of it to what a peer has to finish first. */
static unsigned grid_for(const weft_cuda_group *g, const weft_cuda_channels *c)
{
    int most = weft_cuda_ctas(g->device, g->crews), jobs = weft_cuda_jobs(c);

    if (!g->whole && most > 1)
        most /= 2;
    return (unsigned)weft_min(jobs, most);
}

/* `begun`: whether its kernel is on the stream. */
static weft_status launch(weft_group *group, weft_cuda_channels *c, CUstream stream, bool *begun)
{
    weft_cuda_group *g = weft_cuda_of(group);
    const weft_cuda_driver *cu = g->device->cu;
    weft_error_text *error = &group->error;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    void *parameters[] = {c};
    CUlaunchConfig config = weft_cuda_config(grid_for(g, c), WEFT_CUDA_COLLECTIVE_THREADS, 0, stream);

    WEFT_CUDA_TRY(cuStreamIsCapturing(stream, &capture));
    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, g->device->channels, parameters, NULL));
    *begun = g->channels.issued = true;
    if (capture == CU_STREAM_CAPTURE_STATUS_NONE)
        WEFT_CUDA_TRY(cuEventRecord(g->channels.last, stream));
    else
        g->channels.captured = true;
    return WEFT_OK;
}

/* ---- outcomes ----------------------------------------------------------------------------------------- */

static void name_call(uint64_t call, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s of %s", weft_entry_name(call & 0xff),
             weft_dtype_name((weft_dtype)(call >> WEFT_CUDA_CALL_DTYPE & 0xff)));
}

/* The sentence of a record. */
static weft_status explain(const weft_group *group, const weft_cuda_record *r, char *text, size_t bytes)
{
    int me = group->rank, peer = (int)r->signal;
    char mine[64], theirs[64];

    name_call(r->run, mine, sizeof(mine));
    name_call(r->have, theirs, sizeof(theirs));
    switch ((weft_cuda_channel_fault)r->plan_task) {
    case WEFT_CUDA_CHANNEL_CALL:
        snprintf(text, bytes, "rank %d is in %s, and rank %d in %s%s", me, mine, peer, theirs,
                 strcmp(mine, theirs) ? "" : ", with other counts, or another reduction or root");
        return WEFT_ERR_MISMATCH;
    case WEFT_CUDA_CHANNEL_BYTES:
        snprintf(text, bytes, "%s: rank %d sends %lld bytes to rank %d, which expects %lld", mine, peer,
                 (long long)r->have, me, (long long)r->want);
        return WEFT_ERR_MISMATCH;
    case WEFT_CUDA_CHANNEL_SENDS:
        snprintf(text, bytes, "ranks %d and %d both send to each other first, and wait to be received", me,
                 peer);
        return WEFT_ERR_MISMATCH;
    case WEFT_CUDA_CHANNEL_RECEIVES:
        snprintf(text, bytes, "ranks %d and %d both wait for a message of each other", me, peer);
        return WEFT_ERR_MISMATCH;
    default:
        snprintf(
            text, bytes,
            "rank %d waited for rank %d to enter %s (%.3g s), or to go on there (%.3g s), and it did not", me,
            peer, mine, (double)group->enter_ns * 1e-9, (double)group->progress_ns * 1e-9);
        return WEFT_ERR_TIMEOUT;
    }
}

static weft_status read_control(const weft_cuda_group *g, weft_cuda_control *control, weft_error_text *error)
{
    const weft_cuda_driver *cu = g->device->cu;

    WEFT_CUDA_TRY(cuMemcpyDtoHAsync(control, (CUdeviceptr)(uintptr_t)g->channels.block, sizeof(*control),
                                    g->device->uploads));
    WEFT_CUDA_TRY(cuStreamSynchronize(g->device->uploads));
    return WEFT_OK;
}

/* A stream that was set earlier may still have the last of them: who waits for that one is told then. */
weft_status weft_cuda_channels_settle(weft_group *group)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_cuda_control control;
    char why[256];
    weft_status status;

    if (!g->channels.issued && !g->channels.captured)
        return WEFT_OK;
    g->channels.issued = g->device->cu->cuEventQuery(g->channels.last) == CUDA_ERROR_NOT_READY;
    status = read_control(g, &control, &group->error);
    if (status != WEFT_OK || (!control.record.set && !control.abort))
        return status;
    if (!control.record.set) /* a peer's kernel gave up first: its rank says why */
        return weft_cuda_lost(group, WEFT_ERR_PEER, "a kernel of another rank gave up");
    status = explain(group, &control.record, why, sizeof(why));
    return weft_cuda_lost(group, status, why);
}

/* On the stream of the group's calls; to its end where they are not ordered. `journal`: peers compare it. */
static weft_status issue(weft_group *group, weft_cuda_channels *c, const weft_entry *journal)
{
    weft_cuda_group *g = weft_cuda_of(group);
    CUstream stream = weft_cuda_stream(g, g->issue_stream);
    bool begun = false;
    weft_status status;

    if (journal)
        weft_cuda_journal_call(group, *journal);
    status = launch(group, c, stream, &begun);
    if (journal && !begun)
        weft_cuda_journal_failed(group);

    if (status == WEFT_OK && !g->issue_ordered) {
        status = weft_cuda_pass(group, stream);
        if (status == WEFT_OK)
            status = weft_cuda_channels_settle(group);
    }
    return status;
}

/* ---- collectives with counts -------------------------------------------------------------------------- */

/* Where every peer's pieces lie, and how much memory they span. */
static void lay_out(const weft_counted_job *job, weft_cuda_channels *c, int64_t *send_bytes,
                    int64_t *recv_bytes)
{
    int64_t element = (int64_t)weft_dtype_size(job->dtype);

    *send_bytes = *recv_bytes = 0;
    for (int rank = 0; rank < c->world; rank++) {
        weft_cuda_channel_peer *peer = &c->peer[rank];

        peer->send_bytes = job->send_count[job->shared ? c->rank : rank] * element;
        peer->recv_bytes = job->recv_count[rank] * element;
        peer->send = (const char *)job->send + (job->shared ? 0 : *send_bytes);
        peer->recv = (char *)job->recv + (job->reduces ? 0 : *recv_bytes);
        *send_bytes = job->shared ? peer->send_bytes : *send_bytes + peer->send_bytes;
        *recv_bytes = job->reduces ? peer->recv_bytes : *recv_bytes + peer->recv_bytes;
    }
}

static weft_status check_job(weft_group *group, const weft_counted_job *job, const weft_cuda_channels *c,
                             int64_t send_bytes, int64_t recv_bytes)
{
    const weft_cuda_channel_peer *own = &c->peer[c->rank];
    weft_status status = check_buffer(group, job->entry, "send", job->send, send_bytes);

    if (status == WEFT_OK)
        status = check_buffer(group, job->entry, "recv", job->recv, recv_bytes);
    if (status != WEFT_OK)
        return status;
    if (own->send_bytes != own->recv_bytes)
        return weft_error_set(&group->error, WEFT_ERR_MISMATCH,
                              "%s: rank %d sends %lld bytes to rank %d, which expects %lld",
                              weft_entry_name(job->entry), c->rank, (long long)own->send_bytes, c->rank,
                              (long long)own->recv_bytes);
    return WEFT_OK;
}

weft_status weft_cuda_counted(weft_group *group, const weft_counted_job *job)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_problem reduced = {.dtype = job->dtype, .reduction = job->reduction};
    int64_t send_bytes, recv_bytes;
    weft_cuda_channels c;
    weft_session *session;
    weft_status status;

    if (!job->send_count) /* it was rejected: the rank is told alone */
        return group->error.status;
    status = begin(group, job->entry, &c);
    if (status == WEFT_OK)
        status = weft_session_of(group, &session);
    if (status != WEFT_OK)
        return status;
    lay_out(job, &c, &send_bytes, &recv_bytes);
    c.sends = c.receives = true;
    c.reduces = job->reduces;
    c.dtype = (int32_t)job->dtype;
    c.reduction = weft_cuda_reduction_of(&reduced);
    c.call = call_of(job->entry, job->dtype, job->reduces ? job->reduction : WEFT_SUM,
                     job->entry == WEFT_ENTRY_ALL_TO_ALL_V ? NULL
                     : job->entry == WEFT_ENTRY_SCATTER    ? job->recv_count
                                                           : job->send_count,
                     c.world);
    weft_cuda_push(g);
    status = check_job(group, job, &c, send_bytes, recv_bytes);
    if (status == WEFT_OK)
        status = issue(group, &c, &job->entry);
    weft_cuda_pop(g);
    return status;
}

/* ---- messages ----------------------------------------------------------------------------------------- */

static weft_status pass(weft_group *group, weft_entry entry, const void *send, void *recv, int64_t count,
                        weft_dtype dtype, int peer)
{
    weft_cuda_group *g = weft_cuda_of(group);
    int64_t bytes = count * (int64_t)weft_dtype_size(dtype);
    weft_cuda_channels c;
    weft_status status = begin(group, entry, &c);

    if (status != WEFT_OK)
        return status;
    c.only = peer;
    c.sends = entry == WEFT_ENTRY_SEND;
    c.receives = !c.sends;
    c.dtype = (int32_t)dtype;
    c.call = call_of(WEFT_ENTRY_SEND, dtype, WEFT_SUM, NULL, 0);
    c.peer[peer] = (weft_cuda_channel_peer){send, recv, send ? bytes : 0, send ? 0 : bytes};
    weft_cuda_push(g);
    status = check_buffer(group, entry, "buffer", send ? send : recv, bytes);
    if (status == WEFT_OK)
        status = issue(group, &c, NULL);
    weft_cuda_pop(g);
    return status;
}

weft_status weft_cuda_send(weft_group *group, const void *data, int64_t count, weft_dtype dtype, int to)
{
    return pass(group, WEFT_ENTRY_SEND, data, NULL, count, dtype, to);
}

weft_status weft_cuda_recv(weft_group *group, void *data, int64_t count, weft_dtype dtype, int from)
{
    return pass(group, WEFT_ENTRY_RECV, NULL, data, count, dtype, from);
}
