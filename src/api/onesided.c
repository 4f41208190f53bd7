/* Put, get, signals and atomics of programs: the entry points of weft.h. What was asked is checked here, and
 * the backend does it (run/onesided.h). */
#include "api/least.h"
#include "api/no_group.h"
#include "run/backend.h"
#include "run/onesided.h"

static const weft_onesided_ops *ops_of(const weft_group *group)
{
    return weft_backend_of(group)->onesided;
}

/* Where `rank` has what this rank has at `pointer`, `bytes` long on a boundary of `alignment`. */
static weft_status reach(weft_group *group, const char *call, const void *pointer, size_t bytes,
                         size_t alignment, int rank, void **there)
{
    weft_status status;

    if (!group)
        return weft_no_group(call);
    status = weft_group_check(group);
    if (status != WEFT_OK)
        return status;
    if (rank < 0 || rank >= group->size)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "%s: there is no rank %d among %d", call,
                              rank, group->size);
    if (!ops_of(group))
        return weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED,
                              "%s: the group is on %s, where no rank can touch memory of another", call,
                              weft_backend_of(group)->where);
    if (!ops_of(group)->holds(group, pointer, bytes) || (uintptr_t)pointer % alignment)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "%s: %zu bytes at %p are not symmetric memory of rank %d, on a boundary of %zu",
                              call, bytes, pointer, group->rank, alignment);
    *there = weft_peer(group, pointer, rank);
    if (!*there)
        return weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED,
                              "%s: rank %d does not share memory with rank %d", call, rank, group->rank);
    return WEFT_OK;
}

static weft_status reach_bytes(weft_group *group, const char *call, const void *symmetric, const void *other,
                               size_t bytes, int rank, void **there)
{
    weft_status status = reach(group, call, symmetric, bytes ? bytes : 1, 1, rank, there);

    if (status == WEFT_OK && bytes && !other)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT, "%s: %zu bytes at NULL", call, bytes);
    return status;
}

weft_status weft_put(weft_group *group, void *to, const void *from, size_t bytes, int rank)
{
    void *there = NULL;
    weft_status status = reach_bytes(group, "weft_put", to, from, bytes, rank, &there);

    return status == WEFT_OK && bytes ? ops_of(group)->move(group, there, from, bytes) : status;
}

weft_status weft_get(weft_group *group, void *to, const void *from, size_t bytes, int rank)
{
    void *there = NULL;
    weft_status status = reach_bytes(group, "weft_get", from, to, bytes, rank, &there);

    return status == WEFT_OK && bytes ? ops_of(group)->move(group, to, there, bytes) : status;
}

static weft_status reach_signal(weft_group *group, const char *call, void *signal, int rank, void **there)
{
    _Static_assert(WEFT_SIGNAL_BYTES == sizeof(weft_signal), "a signal of weft.h is one");
    return reach(group, call, signal, WEFT_SIGNAL_BYTES, WEFT_SIGNAL_BYTES, rank, there);
}

weft_status weft_put_signal(weft_group *group, void *to, const void *from, size_t bytes, void *signal,
                            uint64_t add, int rank)
{
    void *there = NULL, *posted = NULL;
    weft_status status = reach_bytes(group, "weft_put_signal", to, from, bytes, rank, &there);

    if (status == WEFT_OK)
        status = reach_signal(group, "weft_put_signal", signal, rank, &posted);
    if (status == WEFT_OK && bytes)
        status = ops_of(group)->move(group, there, from, bytes);
    return status == WEFT_OK ? ops_of(group)->post(group, posted, add) : status;
}

weft_status weft_post_signal(weft_group *group, void *signal, uint64_t add, int rank)
{
    void *there = NULL;
    weft_status status = reach_signal(group, "weft_post_signal", signal, rank, &there);

    return status == WEFT_OK ? ops_of(group)->post(group, there, add) : status;
}

weft_status weft_wait_signal(weft_group *group, void *signal, uint64_t value, int from)
{
    void *mine = NULL;
    weft_status status = reach_signal(group, "weft_wait_signal", signal, group ? group->rank : 0, &mine);

    if (status != WEFT_OK)
        return status;
    if (from < -1 || from >= group->size)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_wait_signal: there is no rank %d among %d", from, group->size);
    group->entry = WEFT_ENTRY_WAIT_SIGNAL;
    return ops_of(group)->wait(group, mine, value, from);
}

weft_status weft_atomic_add(weft_group *group, int64_t *word, int64_t add, int rank, int64_t *before)
{
    void *there = NULL;
    int64_t was = 0;
    weft_status status = reach(group, "weft_atomic_add", word, sizeof(*word), sizeof(*word), rank, &there);

    if (status == WEFT_OK)
        status = ops_of(group)->add(group, there, add, &was);
    if (status == WEFT_OK && before)
        *before = was;
    return status;
}

/* ---- kernels of programs -------------------------------------------------------------------------- */

static weft_status check_kernels(weft_group *group, const char *call)
{
    weft_status status;

    if (!group)
        return weft_no_group(call);
    status = weft_group_check(group);
    if (status == WEFT_OK && !weft_backend_of(group)->peer_table)
        return weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED,
                              "%s: the group is on %s, where programs have no kernels", call,
                              weft_backend_of(group)->where);
    return status;
}

weft_status weft_peer_table(weft_group *group, const void *pointer, void *const **table)
{
    weft_status status = check_kernels(group, "weft_peer_table");

    if (status != WEFT_OK)
        return status;
    if (!table)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_peer_table: table is NULL; it receives the address");
    return weft_backend_of(group)->peer_table(group, pointer, table);
}

weft_status weft_signal_pad_create(weft_group *group, uint32_t count, weft_signal_pad *pad)
{
    weft_status status = check_kernels(group, "weft_signal_pad_create");
    weft_signal_pad made;

    if (status != WEFT_OK)
        return status;
    group->entry = WEFT_ENTRY_SIGNAL_PAD_CREATE;
    if (!pad || !weft_sized_fits(pad, WEFT_SIGNAL_PAD_LEAST) || count < 1) {
        weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                       !pad    ? "weft_signal_pad_create: pad is NULL; it receives the pad"
                       : count ? "weft_signal_pad_create: the pad's size is not set"
                               : "weft_signal_pad_create: a pad of no signals");
        return weft_group_reject(group, WEFT_SYNC_ALLOC);
    }
    status = weft_backend_of(group)->pad_create(group, count, &made);
    if (status == WEFT_OK)
        weft_sized_write(pad, &made, sizeof(made), WEFT_SIGNAL_PAD_LEAST);
    return status;
}

weft_status weft_signal_pad_wait(weft_group *group, const weft_signal_pad *pad, void *stream)
{
    weft_status status = check_kernels(group, "weft_signal_pad_wait");
    weft_signal_pad given;

    if (status != WEFT_OK)
        return status;
    if (!pad || !weft_sized_read(&given, sizeof(given), pad, WEFT_SIGNAL_PAD_LEAST))
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "weft_signal_pad_wait: pad is NULL, or not one of weft_signal_pad_create");
    return weft_backend_of(group)->pad_wait(group, &given, stream);
}
