/* Handles: making and dropping them, poison, and who is still there. */
#include "group/group.h"

#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/env.h"
#include "group/far.h"

enum { RADIX_SMALL = 8, RADIX_LARGE = 4, POISON_WRITE_NS = 20000000 };

/* The state of handles that are no rank's any more. */
static weft_poison of_a_fork = {
    .state = 2,
    .status = WEFT_ERR_STATE,
    .text = "this process is a child of the one whose rank the handle was; only freeing remains in it",
};
static weft_poison of_a_freed = {
    .state = 2,
    .status = WEFT_ERR_STATE,
    .text = "the group was freed; only freeing remains for what was made in it",
};

static void orphan(weft_guest *guest)
{
    weft_group *group = (weft_group *)((char *)guest - offsetof(weft_group, guest));

    group->poison = &of_a_fork;
}

static weft_status no_memory(weft_error_text *error)
{
    return weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for a group handle");
}

static weft_status read_deadlines(weft_group *group, weft_error_text *error)
{
    double enter, progress;
    weft_status status = weft_env_seconds(WEFT_ENV_ENTER_TIMEOUT, &enter, error);

    if (status == WEFT_OK)
        status = weft_env_seconds(WEFT_ENV_PROGRESS_TIMEOUT, &progress, error);
    if (status != WEFT_OK)
        return status;
    group->enter_ns = (int64_t)(enter * 1e9);
    group->progress_ns = (int64_t)(progress * 1e9);
    return WEFT_OK;
}

void weft_group_count_cores(weft_group *group)
{
    const weft_segment_header *header = group->world->segment.header;
    const weft_cores *ranks[WEFT_RANKS_MAX],
        *own = &header->ranks[group->seats[group->rank].world_rank].cores;
    const weft_cores *last = NULL;
    double least = HUGE_VAL;

    for (int rank = 0; rank < header->size; rank++)
        /* Partner: the release of whoever took the rank. */
        ranks[rank] = atomic_load_explicit(&header->ranks[rank].state, memory_order_acquire) >= WEFT_RANK_IN
                          ? &header->ranks[rank].cores
                          : own;
    for (int rank = 0; rank < group->size; rank++) {
        int world_rank = group->seats[rank].world_rank;

        /* Ranks that nobody has bound are all alike. */
        if (!last || memcmp(last, ranks[world_rank], sizeof(*last)) != 0)
            least = fmin(least, weft_cores_share(ranks, header->size, world_rank));
        last = ranks[world_rank];
    }
    group->alone = least > 1 - 1e-6;
    group->share = least;
    group->cores = weft_cores_workers(least);
}

weft_status weft_group_open(weft_world *world, int window, int rank, int size, const int *members,
                            weft_group **group_out, weft_error_text *error)
{
    weft_group *group = calloc(1, sizeof(*group));
    weft_status status;

    if (!group)
        return no_memory(error);
    group->seats = calloc((size_t)size, sizeof(*group->seats));
    if (!group->seats) {
        status = no_memory(error);
        goto err_free;
    }
    status = read_deadlines(group, error);
    if (status != WEFT_OK)
        goto err_free;
    group->rank = rank;
    group->size = size;
    group->window = window;
    group->radix = size <= RADIX_SMALL ? RADIX_SMALL : RADIX_LARGE;
    group->world = world;
    status = weft_world_prepare(world, window, members[rank], error);
    if (status == WEFT_OK) /* where the poison stands: it may be looked at before its owner has come */
        status = weft_world_prepare(world, window, members[0], error);
    if (status != WEFT_OK)
        goto err_free;
    for (int peer = 0; peer < size; peer++)
        group->seats[peer] = (weft_seat){
            .world_rank = members[peer],
            .far = weft_world_far(world, members[peer]),
            .left = 1, /* as in a world; a split says otherwise */
            .control = weft_segment_control(&world->segment, members[peer], window),
        };
    for (int peer = 0; peer < size; peer++)
        group->spread = group->spread || group->seats[peer].far;
    if (group->spread)
        group->radix = size > group->radix ? size : group->radix; /* see weft_group_sync */
    weft_group_count_cores(group);
    group->poison = &group->seats[group->spread ? rank : 0].control->poison;
    group->next_watched = rank;
    group->guest.orphan = orphan;
    weft_world_hold(world, &group->guest);
    weft_group_member(group)->windows |= (uint64_t)1 << window;
    weft_group_member(group)->groups++;
    *group_out = group;
    return WEFT_OK;

err_free:
    free(group->seats);
    free(group);
    return status;
}

/* Remembers that the window may be reused once every member of the group has left it. Without memory for
 * that the window stays taken, which only costs address space. */
static void vacate(weft_group *group)
{
    weft_member *member = weft_group_member(group);
    weft_vacated *vacated = malloc(sizeof(*vacated) + sizeof(weft_seat) * (size_t)group->size);

    if (!vacated)
        return;
    vacated->window = group->window;
    vacated->size = group->size;
    vacated->rank = group->rank;
    memcpy(vacated->seats, group->seats, sizeof(weft_seat) * (size_t)group->size);
    vacated->next = member->vacated;
    member->vacated = vacated;
}

/* Whoever leaves a sub-group last gives its memory back to the system, of all members: before the window can
 * be taken again, which waits until it has left too. */
static void depart(weft_group *group)
{
    const weft_segment *segment = &group->world->segment;
    /* Partners: the same of the other members. */
    uint32_t departed =
        atomic_fetch_add_explicit(&group->seats[0].control->departed, 1, memory_order_acq_rel) + 1;

    for (int rank = 0; departed == (uint32_t)group->size && rank < group->size; rank++)
        weft_segment_clear(segment, group->seats[rank].world_rank, group->window);
}

void weft_group_leave(weft_group *group)
{
    weft_world *world = group->world;
    const weft_seat *own = &group->seats[group->rank];

    group->freed = true;
    group->poison = world->foreign ? &of_a_fork : &of_a_freed;
    if (world->foreign)
        return;
    weft_far_leave(group);
    if (group->window != 0) {
        if (!group->spread) /* else a rank gives back its own when it takes the window again */
            depart(group);
        vacate(group);
    }
    /* Partner: weft_seat_empty. */
    atomic_store_explicit(&weft_seat_entry(world, own)->left[group->window], own->left, memory_order_release);
    if (--weft_group_member(group)->groups == 0) /* sub-groups outlive the group they were split from */
        weft_segment_set_left(&world->segment, own->world_rank);
}

void weft_group_close(weft_group *group)
{
    weft_world *world = group->world;

    weft_world_drop(world, &group->guest);
    free(group->ancestors);
    free(group->seats);
    free(group);
}

/* Copies the poison into the handle. A writer that was killed between claim and sentence is not waited for.
 */
static weft_status read_poison(weft_group *group, weft_poison *poison)
{
    int64_t until = weft_clock_ns() + POISON_WRITE_NS;

    /* Partner: the release in weft_group_poison. */
    while (atomic_load_explicit(&poison->state, memory_order_acquire) != 2) {
        if (weft_clock_ns() > until)
            return weft_error_set(&group->error, WEFT_ERR_PEER, "another rank failed and could not say why");
        sched_yield();
    }
    /* Threads that work for one rank may come here together: one writes, and only what is not there yet. */
    while (atomic_flag_test_and_set_explicit(&group->writing, memory_order_acquire))
        sched_yield();
    if (group->error.status != (weft_status)poison->status || strcmp(group->error.text, poison->text) != 0)
        weft_error_set(&group->error, (weft_status)poison->status, "%s", poison->text);
    atomic_flag_clear_explicit(&group->writing, memory_order_release);
    return (weft_status)poison->status;
}

weft_status weft_group_check(weft_group *group)
{
    /* The sentence is acquired in read_poison. */
    if (__builtin_expect(!weft_group_failed(group), 1))
        return WEFT_OK;
    return read_poison(group, group->poison);
}

/* "1-3, 7": the ranks that the members have in their world. */
static void list_members(const weft_group *group, char *text, size_t bytes)
{
    size_t used = 0;

    for (int rank = 0, last; rank < group->size && used + 24 < bytes; rank = last + 1) {
        int first = group->seats[rank].world_rank;

        for (last = rank;
             last + 1 < group->size && group->seats[last + 1].world_rank == first + last + 1 - rank; last++)
            ;
        used += (size_t)snprintf(text + used, bytes - used, last > rank ? "%s%d-%d" : "%s%d",
                                 used ? ", " : "", first, first + last - rank);
    }
}

static void claim_poison(weft_group *group, weft_status status, const char *format, va_list arguments)
{
    char text[WEFT_ERROR_TEXT_BYTES], members[128];
    int used = vsnprintf(text, sizeof(text), format, arguments);

    if (group->window != 0 && used >= 0 && (size_t)used < sizeof(text)) {
        list_members(group, members, sizeof(members));
        snprintf(text + used, sizeof(text) - (size_t)used,
                 " (ranks are those of a sub-group: 0 to %d are %s of the world)", group->size - 1, members);
    }
    if (weft_poison_write(group->poison, status, text))
        weft_far_poison(group);
}

weft_status weft_group_poison(weft_group *group, weft_status status, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    claim_poison(group, status, format, arguments);
    va_end(arguments);
    return read_poison(group, group->poison);
}

__attribute__((format(printf, 3, 4))) static void end_with(weft_group *group, weft_status status,
                                                           const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    claim_poison(group, status, format, arguments);
    va_end(arguments);
}

void weft_group_end(weft_group *group, weft_status status, const char *why)
{
    end_with(group, status, "%s", why);
}

bool weft_seat_empty(const weft_world *world, int window, const weft_seat *seat)
{
    /* Partner: weft_group_close. */
    uint32_t left = atomic_load_explicit(&weft_seat_entry(world, seat)->left[window], memory_order_acquire);

    return (int32_t)(left - seat->left) >= 0 || weft_segment_left(&world->segment, seat->world_rank);
}

bool weft_group_absent(const weft_group *group, int rank)
{
    return weft_seat_empty(group->world, group->window, &group->seats[rank]);
}

bool weft_group_dead(const weft_group *group, int rank)
{
    const weft_segment *segment = &group->world->segment;
    int world_rank = group->seats[rank].world_rank;

    if (group->seats[rank].far)
        return weft_net_lost(group->world->net, world_rank);
    /* A rank that has come holds its lock before its state says so, and a rank that leaves sets its state
     * before its lock goes: so the state is read both before and after. */
    return group->world->processes && rank != group->rank && weft_segment_came(segment, world_rank) &&
           !weft_segment_locked(segment, world_rank) && !weft_segment_left(segment, world_rank);
}

int weft_group_find_dead(weft_group *group, int rank)
{
    int other = atomic_load_explicit(&group->next_watched, memory_order_relaxed) + 1;

    if (!group->world->processes)
        return -1;
    other = other < group->size ? other : 0;
    atomic_store_explicit(&group->next_watched, other, memory_order_relaxed);
    if (rank >= 0 && weft_group_dead(group, rank))
        return rank;
    return weft_group_dead(group, other) ? other : -1;
}

int weft_group_pid(const weft_group *group, int rank)
{
    const weft_rank_entry *entry = weft_seat_entry(group->world, &group->seats[rank]);

    return group->world->processes ? atomic_load_explicit(&entry->pid, memory_order_relaxed) : 0;
}
