/*
 * Worlds: the ranks that were started together. Making one, entering it, and leaving it.
 *
 * However the ranks were started, they end up with the same sealed memory mapped, each holding its lock in it
 * and having written a proof there that the others read: from then on nothing outside that memory is used.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/env.h"
#include "group/group.h"
#include "group/launcher.h"
#include "group/rendezvous.h"

enum { ENTER_POLL_NS = 200000, ENTER_POLL_MS = 1 };

/* The world this process entered by weft_init. A process is one rank, so there is at most one. */
static _Atomic(weft_world *) entered;

/* NULL without memory, which is then the error. */
static weft_world *world_create(int size, weft_error_text *error)
{
    weft_world *world = calloc(1, sizeof(*world));

    if (world)
        world->members = calloc((size_t)size, sizeof(*world->members));
    if (!world || !world->members) {
        free(world);
        weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for a world of %d ranks", size);
        return NULL;
    }
    world->references = 1;
    world->pid = getpid();
    return world;
}

static void world_discard(weft_world *world)
{
    free(world->members);
    free(world);
}

void weft_world_drop(weft_world *world)
{
    weft_world *self = world;

    if (atomic_fetch_sub_explicit(&world->references, 1, memory_order_acq_rel) != 1)
        return;
    for (int rank = 0; rank < world->segment.header->size; rank++)
        for (weft_vacated *it = world->members[rank].vacated, *next; it; it = next) {
            next = it->next;
            free(it);
        }
    weft_segment_release(&world->segment);
    atomic_compare_exchange_strong(&entered, &self, NULL);
    world_discard(world);
}

/* A process that ends normally without weft_finalize has left, not died. */
__attribute__((destructor)) static void leave_at_exit(void)
{
    weft_world *world = atomic_load(&entered);

    if (world && world->pid == getpid())
        weft_segment_set_left(&world->segment, world->rank);
}

weft_status weft_world_create_threads(int size, weft_group **groups, weft_error_text *error)
{
    int members[WEFT_RANKS_MAX], made = 0;
    weft_cores cores;
    weft_world *world = world_create(size, error);
    weft_status status;

    if (!world)
        return error->status;
    status = weft_segment_create(size, true, &world->segment, error);
    if (status != WEFT_OK) {
        world_discard(world);
        return status;
    }
    weft_cores_here(&cores);
    for (int rank = 0; rank < size; rank++) {
        members[rank] = rank;
        world->segment.header->ranks[rank].cores = cores;
        world->segment.header->ranks[rank].state = WEFT_RANK_IN;
    }
    for (; status == WEFT_OK && made < size; made++)
        status = weft_group_open(world, 0, made, size, members, &groups[made], error);
    if (status != WEFT_OK)
        for (made--; made > 0;)
            weft_group_close(groups[--made]);
    weft_world_drop(world);
    return status;
}

/* ---- entering ------------------------------------------------------------------------------------- */

static uint64_t proof_of(const weft_segment *segment, int rank)
{
    return segment->header->nonce + 1 + (uint64_t)rank;
}

/* Takes the rank: its lock, its entry, its proof. */
static weft_status claim(weft_world *world, weft_error_text *error)
{
    weft_rank_entry *entry = &world->segment.header->ranks[world->rank];
    uint32_t state = WEFT_RANK_ABSENT;

    if (!weft_segment_lock(&world->segment, world->rank))
        return weft_error_set(error, WEFT_ERR_LAUNCH, "another process is rank %d of this world already",
                              world->rank);
    if (!atomic_compare_exchange_strong(&entry->state, &state, WEFT_RANK_CLAIMED))
        return weft_error_set(error, WEFT_ERR_STATE,
                              "rank %d has been in this world before and left it; it cannot enter again",
                              world->rank);
    atomic_store_explicit(&entry->pid, world->pid, memory_order_relaxed);
    atomic_store_explicit(&entry->proof, proof_of(&world->segment, world->rank), memory_order_relaxed);
    weft_cores_here(&entry->cores);
    /* Partner: the acquire in count_in. */
    atomic_store_explicit(&entry->state, WEFT_RANK_IN, memory_order_release);
    return WEFT_OK;
}

/* How many ranks are in; `missing` is the first that is not. */
static int count_in(const weft_segment *segment, int *missing)
{
    int in = 0;

    *missing = -1;
    for (int rank = 0; rank < segment->header->size; rank++) {
        /* Partner: the release in claim. */
        if (atomic_load_explicit(&segment->header->ranks[rank].state, memory_order_acquire) == WEFT_RANK_IN)
            in++;
        else if (*missing < 0)
            *missing = rank;
    }
    return in;
}

/* "0-2, 5": the ranks that are in, or those that are not. */
static void list_ranks(const weft_segment *segment, bool in, char *text, size_t bytes)
{
    int size = segment->header->size;
    size_t used = 0;

    text[0] = 0;
    for (int rank = 0; rank < size && used + 24 < bytes; rank++) {
        int last = rank;

        if ((atomic_load(&segment->header->ranks[rank].state) == WEFT_RANK_IN) != in)
            continue;
        while (last + 1 < size &&
               (atomic_load(&segment->header->ranks[last + 1].state) == WEFT_RANK_IN) == in)
            last++;
        used += (size_t)snprintf(text + used, bytes - used, last > rank ? "%s%d-%d" : "%s%d",
                                 used ? ", " : "", rank, last);
        rank = last;
    }
}

static weft_status fail_missing(weft_group *group, const weft_launch *launch, double waited)
{
    char came[160], missing[160];

    list_ranks(&group->world->segment, true, came, sizeof(came));
    list_ranks(&group->world->segment, false, missing, sizeof(missing));
    return weft_group_poison(
        group, WEFT_ERR_LAUNCH,
        "%s announced %d ranks, but after %.1f s only these have come to weft_init: %s; missing: %s",
        launch->launcher, launch->size, waited, came, missing);
}

/* Waits until every rank is in. Rank 0 meanwhile answers those who come to ask for the memory. */
static weft_status gather(weft_group *group, const weft_launch *launch, int listener, int64_t begun)
{
    const weft_segment *segment = &group->world->segment;
    int missing, dead;

    while (count_in(segment, &missing) < group->size) {
        weft_status status = weft_group_check(group);
        int64_t now = weft_clock_ns();

        if (status != WEFT_OK)
            return status;
        dead = weft_group_find_dead(group);
        if (dead >= 0)
            return weft_group_poison(group, WEFT_ERR_PEER_DIED, "rank %d (process %d) died during weft_init",
                                     dead, weft_group_pid(group, dead));
        for (int rank = 0; rank < group->size; rank++)
            if (weft_group_absent(group, rank))
                return weft_group_poison(group, WEFT_ERR_PEER_DIED,
                                         "rank %d ended before every rank had come to weft_init", rank);
        if (now - begun > group->enter_ns)
            return fail_missing(group, launch, (double)(now - begun) * 1e-9);
        if (listener >= 0)
            weft_rendezvous_serve(listener, segment, ENTER_POLL_MS);
        else
            nanosleep(&(struct timespec){0, ENTER_POLL_NS}, NULL);
    }
    for (int rank = 0; rank < group->size; rank++)
        if (atomic_load_explicit(&segment->header->ranks[rank].proof, memory_order_relaxed) !=
            proof_of(segment, rank))
            return weft_group_poison(group, WEFT_ERR_LAUNCH, "rank %d does not share memory with the others",
                                     rank);
    return weft_group_barrier(group);
}

/* Brings the world's memory: inherited, made (rank 0) or asked for. `listener` is where rank 0 serves it. */
static weft_status obtain(const weft_launch *launch, int64_t begun, weft_segment *segment, int *listener,
                          weft_error_text *error)
{
    weft_status status;
    uint64_t nonce = launch->nonce;
    double enter;
    int fd = launch->fd;

    if (fd >= 0)
        return weft_segment_attach(fd, nonce, segment, error);
    if (launch->rank == 0) {
        status = weft_rendezvous_listen(launch->key, listener, error);
        return status == WEFT_OK ? weft_segment_create(launch->size, false, segment, error) : status;
    }
    status = weft_env_seconds(WEFT_ENV_ENTER_TIMEOUT, &enter, error);
    if (status == WEFT_OK)
        status = weft_rendezvous_join(launch->key, launch->rank, launch->size, begun + (int64_t)(enter * 1e9),
                                      &fd, &nonce, error);
    if (status != WEFT_OK)
        return status;
    status = weft_segment_attach(fd, nonce, segment, error);
    if (status != WEFT_OK)
        close(fd);
    return status;
}

static weft_status enter_launched(weft_world *world, const weft_launch *launch, weft_group **group,
                                  weft_error_text *error)
{
    int members[WEFT_RANKS_MAX], listener = -1;
    int64_t begun = weft_clock_ns();
    weft_status status = obtain(launch, begun, &world->segment, &listener, error);

    if (status != WEFT_OK) {
        world_discard(world);
        goto out;
    }
    if (world->segment.header->size != launch->size) {
        status =
            weft_error_set(error, WEFT_ERR_LAUNCH, "WEFT_SIZE says %d ranks, the inherited memory is for %d",
                           launch->size, (int)world->segment.header->size);
        weft_world_drop(world);
        goto out;
    }
    for (int rank = 0; rank < launch->size; rank++)
        members[rank] = rank;
    status = claim(world, error);
    if (status == WEFT_OK) {
        atomic_store(&entered, world);
        status = weft_group_open(world, 0, world->rank, launch->size, members, group, error);
        if (status == WEFT_OK) {
            status = gather(*group, launch, listener, begun);
            weft_group_count_cores(*group);
            if (status != WEFT_OK) {
                *error = (*group)->error;
                weft_group_close(*group);
                *group = NULL;
            }
        } else
            weft_segment_set_left(&world->segment, world->rank);
    }
    weft_world_drop(world);
out:
    if (listener >= 0)
        close(listener);
    return status;
}

weft_status weft_world_enter(weft_group **group, weft_error_text *error)
{
    weft_launch launch;
    weft_world *world;
    weft_status status = weft_launcher_find(&launch, error);

    if (status != WEFT_OK)
        return status;
    if (!launch.launcher)
        return weft_world_create_threads(1, group, error);
    if (atomic_load(&entered))
        return weft_error_set(error, WEFT_ERR_STATE,
                              "weft_init was called before in this process, and its group is not finalized");
    world = world_create(launch.size, error);
    if (!world)
        return error->status;
    world->processes = true;
    world->rank = launch.rank;
    return enter_launched(world, &launch, group, error);
}
