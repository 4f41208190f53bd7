/* Collectives with counts or a root: the entry points of weft.h. */
#include "api/no_group.h"
#include "core/dtype.h"
#include "core/part.h"
#include "run/backend.h"
#include "run/counted.h"

#include <stdlib.h>

static bool good_counts(const int64_t *counts, int size, int64_t *total)
{
    *total = 0;
    for (int rank = 0; counts && rank < size; rank++)
        if (counts[rank] < 0 || __builtin_add_overflow(*total, counts[rank], total) ||
            !weft_extents_fit(*total, 1, 1))
            return false;
    return counts != NULL;
}

/* Why the job cannot be done, or NULL. */
static const char *fault_of(const weft_group *group, const weft_counted_job *job)
{
    int64_t sent, received;

    if (!weft_dtype_size(job->dtype))
        return "dtype is not one";
    if (!good_counts(job->send_count, group->size, &sent) ||
        !good_counts(job->recv_count, group->size, &received))
        return "counts are NULL, negative or too large";
    if (job->reduces &&
        ((unsigned)job->reduction > WEFT_AVERAGE || !weft_dtype_reduces(job->dtype, job->reduction)))
        return "the dtype cannot be reduced so";
    if (job->shared)
        sent = job->send_count[group->rank];
    if ((sent && !job->send) || (received && !job->recv))
        return "a buffer is NULL";
    if (job->reduces && ((sent && !weft_dtype_fits_at(job->dtype, job->send)) ||
                         (received && !weft_dtype_fits_at(job->dtype, job->recv))))
        return "a buffer is not aligned for its type";
    return NULL;
}

/* `fault`: what is wrong with it already, or NULL. */
static weft_status run(weft_group *group, weft_counted_job *job, const char *fault)
{
    group->entry = job->entry;
    if (!weft_backend_of(group)->counted) {
        weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED,
                       "%s: a group on %s has no collectives with counts", weft_entry_name(job->entry),
                       weft_backend_of(group)->where);
        return weft_group_reject(group, WEFT_SYNC_COUNTED);
    }
    if (!fault)
        fault = fault_of(group, job);
    if (fault) {
        weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "%s: %s", weft_entry_name(job->entry), fault);
        job->send_count = NULL;
    }
    return weft_backend_of(group)->counted(group, job);
}

weft_status weft_all_gather_v(weft_group *group, const void *send, void *recv, const int64_t *counts,
                              weft_dtype dtype)
{
    weft_counted_job job = {.entry = WEFT_ENTRY_ALL_GATHER_V,
                            .send = send,
                            .recv = recv,
                            .dtype = dtype,
                            .shared = true,
                            .send_count = counts,
                            .recv_count = counts};

    return group ? run(group, &job, NULL) : weft_no_group(weft_entry_name(job.entry));
}

/* `count` for each rank where `all`, else for rank `one` alone. NULL without memory. */
static int64_t *count_for(const weft_group *group, bool all, int one, int64_t count)
{
    int64_t *counts = calloc((size_t)group->size, sizeof(*counts));

    for (int rank = 0; counts && rank < group->size; rank++)
        counts[rank] = all || rank == one ? count : 0;
    return counts;
}

/* A job of `count` elements of each rank to (`gathers`) or from a root. Without memory for the counts
 * they are NULL, which is rejected. */
static weft_status run_rooted(weft_group *group, weft_counted_job *job, bool gathers, int64_t count, int root)
{
    int64_t *of_rank, *of_root;
    const char *fault;
    weft_status status;

    if (!group)
        return weft_no_group(weft_entry_name(job->entry));
    fault = root < 0 || root >= group->size ? "root must be a rank" : NULL;
    of_rank = fault ? NULL : count_for(group, false, root, count);
    of_root = fault ? NULL : count_for(group, group->rank == root, -1, count);
    job->send_count = gathers ? of_rank : of_root;
    job->recv_count = gathers ? of_root : of_rank;
    status = run(group, job, fault);
    free(of_rank);
    free(of_root);
    return status;
}

weft_status weft_reduce_scatter_v(weft_group *group, const void *send, void *recv, const int64_t *counts,
                                  weft_dtype dtype, weft_reduction reduction)
{
    weft_counted_job job = {.entry = WEFT_ENTRY_REDUCE_SCATTER_V,
                            .send = send,
                            .recv = recv,
                            .dtype = dtype,
                            .reduces = true,
                            .reduction = reduction};
    int64_t *mine;
    weft_status status;

    if (!group)
        return weft_no_group(weft_entry_name(job.entry));
    mine = counts ? count_for(group, true, 0, counts[group->rank]) : NULL;
    job.send_count = counts;
    job.recv_count = mine;
    status = run(group, &job, NULL);
    free(mine);
    return status;
}

weft_status weft_all_to_all_v(weft_group *group, const void *send, const int64_t *send_counts, void *recv,
                              const int64_t *recv_counts, weft_dtype dtype)
{
    weft_counted_job job = {.entry = WEFT_ENTRY_ALL_TO_ALL_V,
                            .send = send,
                            .recv = recv,
                            .dtype = dtype,
                            .send_count = send_counts,
                            .recv_count = recv_counts};

    return group ? run(group, &job, NULL) : weft_no_group(weft_entry_name(job.entry));
}

weft_status weft_gather(weft_group *group, const void *send, void *recv, int64_t count, weft_dtype dtype,
                        int root)
{
    weft_counted_job job = {.entry = WEFT_ENTRY_GATHER, .send = send, .recv = recv, .dtype = dtype};

    return run_rooted(group, &job, true, count, root);
}

weft_status weft_scatter(weft_group *group, const void *send, void *recv, int64_t count, weft_dtype dtype,
                         int root)
{
    weft_counted_job job = {.entry = WEFT_ENTRY_SCATTER, .send = send, .recv = recv, .dtype = dtype};

    return run_rooted(group, &job, false, count, root);
}

weft_status weft_reduce(weft_group *group, const void *send, void *recv, int64_t count, weft_dtype dtype,
                        weft_reduction reduction, int root)
{
    weft_counted_job job = {.entry = WEFT_ENTRY_REDUCE,
                            .send = send,
                            .recv = recv,
                            .dtype = dtype,
                            .reduces = true,
                            .reduction = reduction};

    return run_rooted(group, &job, true, count, root);
}
