#include "group/enter.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/env.h"
#include "group/launcher.h"
#include "group/nodes.h"
#include "group/presence.h"
#include "group/rendezvous.h"
#include "group/sync.h"
#include "net/meet.h"
#include "net/secret.h"

enum {
    ENTER_POLL_NS = 200000,
    ENTER_POLL_RANK_NS = 50000,
    ENTER_POLL_MS = 1,
    LOOK_NS = 50000000,   /* between two looks whether those who have not come are still there */
    TELL_NS = 2000000000, /* how long a rank 0 that failed stays to tell those who have not come yet */
    UNREACHED_S = 5,      /* the others may be slow, but whoever waits longer wants to know for what */
};

/* The world that this process entered by weft_init and has not left: at most one at a time. */
static _Atomic(weft_world *) entered;
static _Atomic int worlds_entered; /* by weft_init, so far */

/* What an id holds. The rest is room for where to go when ranks are on other machines. */
typedef struct id_form {
    char magic[8];
    unsigned char name[WEFT_PRESENCE_BYTES];
    unsigned char token[WEFT_TOKEN_BYTES];
} id_form;

static const char id_magic[8] = "weftid1";

_Static_assert(sizeof(id_form) <= sizeof(weft_id), "an id holds its form");

/* What a rank gives to the all-gather of weft_group_create_from. */
typedef struct offer {
    weft_id id;    /* rank 0's counts; each is present under the name in its own until it is in */
    uint64_t node; /* a name of it */
    int32_t rank, size, status, pid;
} offer;

static const unsigned char *name_in(const weft_id *id)
{
    return id->bytes + offsetof(id_form, name);
}

/* What a rank knows when it comes to enter a world. */
typedef struct bootstrap {
    const char *call; /* that the ranks make */
    const char *who;  /* announced them */
    int rank, size;
    const weft_error_text *refusal; /* NULL, or why this rank comes only to tell the others */
    int fd;                         /* memory that was inherited, or -1: the ranks meet */
    uint64_t nonce;
    weft_rendezvous rendezvous;
    int leader, near;              /* the rank that makes the memory of this node, and how many share it */
    const offer *offers;           /* NULL, or every rank's */
    const weft_gatherer *gatherer; /* NULL, or how ranks that may be on several nodes meet */
    weft_nodes *nodes;             /* NULL: all are on this one */
    int64_t begun, enter_ns;
    weft_host *host; /* rank 0's, while others come */
    int connection;  /* to it, until this rank is in; or -1 */
} bootstrap;

weft_status weft_enter_threads(int size, weft_group **groups, weft_error_text *error)
{
    int members[WEFT_RANKS_MAX], made = 0;
    weft_cores cores;
    weft_segment segment;
    weft_world *world;
    weft_status status = weft_segment_create(size, true, &segment, error);

    if (status != WEFT_OK)
        return status;
    weft_cores_here(&cores);
    for (int rank = 0; rank < size; rank++) {
        members[rank] = rank;
        segment.header->ranks[rank].cores = cores;
        segment.header->ranks[rank].state = WEFT_RANK_IN;
    }
    status = weft_world_create(&segment, false, 0, &world, error);
    if (status != WEFT_OK)
        return status;
    for (; status == WEFT_OK && made < size; made++)
        status = weft_group_open(world, 0, made, size, members, &groups[made], error);
    if (status != WEFT_OK)
        for (made--; made > 0;) {
            weft_group_leave(groups[--made]);
            weft_group_close(groups[made]);
        }
    weft_world_drop(world, NULL);
    return status;
}

/* ---- coming in ------------------------------------------------------------------------------------ */

static uint64_t proof_of(const weft_segment *segment, int rank)
{
    return segment->header->nonce + 1 + (uint64_t)rank;
}

/* Takes the rank: its lock, its entry, its proof. */
static weft_status claim(weft_world *world, const weft_nodes *nodes, weft_error_text *error)
{
    weft_rank_entry *entry = &world->segment.header->ranks[world->rank];
    uint32_t state = WEFT_RANK_ABSENT;

    if (!weft_segment_lock(&world->segment, world->rank, &world->life))
        return weft_error_set(error, WEFT_ERR_LAUNCH, "another process is rank %d of this world already",
                              world->rank);
    if (!atomic_compare_exchange_strong(&entry->state, &state, WEFT_RANK_CLAIMED))
        return weft_error_set(error, WEFT_ERR_STATE,
                              "rank %d has been in this world before and left it; it cannot enter again",
                              world->rank);
    atomic_store_explicit(&entry->pid, (int32_t)getpid(), memory_order_relaxed);
    atomic_store_explicit(&entry->proof, proof_of(&world->segment, world->rank), memory_order_relaxed);
    if (nodes)
        entry->cores = *weft_nodes_cores(nodes);
    else
        weft_cores_here(&entry->cores);
    /* Partner: the acquire in is_in. */
    atomic_store_explicit(&entry->state, WEFT_RANK_IN, memory_order_release);
    return WEFT_OK;
}

static bool is_in(const weft_segment *segment, int rank)
{
    /* Partner: the release in claim. */
    return atomic_load_explicit(&segment->header->ranks[rank].state, memory_order_acquire) == WEFT_RANK_IN;
}

static int count_in(const weft_segment *segment)
{
    int in = 0;

    for (int rank = 0; rank < segment->header->size; rank++)
        in += is_in(segment, rank);
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

static weft_status fail_missing(weft_group *group, const bootstrap *b, double waited)
{
    char came[160], missing[160];

    list_ranks(&group->world->segment, true, came, sizeof(came));
    list_ranks(&group->world->segment, false, missing, sizeof(missing));
    return weft_group_poison(
        group, WEFT_ERR_LAUNCH,
        "%s announced %d ranks, but after %.1f s only these have come to %s: %s; missing: %s", b->who,
        b->size, waited, b->call, came, missing);
}

/* Lets others come and looks whether one that was coming has died; -1: no. */
static int rest(weft_group *group, const bootstrap *b, int *pid)
{
    int dead;

    if (b->host)
        return weft_host_serve(b->host, &group->world->segment, NULL, ENTER_POLL_MS, pid);
    /* Every rank that waits looks at all: the more there are, the less often, or those who are still to come
     * get no core. */
    nanosleep(&(struct timespec){0, ENTER_POLL_NS + group->size * ENTER_POLL_RANK_NS}, NULL);
    dead = weft_group_find_dead(group, 0);
    if (dead >= 0)
        *pid = weft_group_pid(group, dead);
    return dead;
}

/* A rank of this node that ended before it came; -1: none did. One that comes is in before it ceases to be
 * present, so it is asked in this order. */
static int find_ended(const weft_segment *segment, const bootstrap *b)
{
    for (int rank = 0; rank < b->size; rank++)
        if (b->offers[rank].node == b->offers[b->rank].node && !is_in(segment, rank) &&
            weft_presence_ended(name_in(&b->offers[rank].id)) && !is_in(segment, rank))
            return rank;
    return -1;
}

/* Waits until every rank is in. Rank 0 meanwhile answers those who come to ask for the memory. */
static weft_status gather(weft_group *group, const bootstrap *b)
{
    const weft_segment *segment = &group->world->segment;
    int64_t looked = b->begun;

    while (count_in(segment) < group->size) {
        weft_status status = weft_group_check(group);
        int64_t now = weft_clock_ns();
        int pid = 0, dead;

        if (status != WEFT_OK)
            return status;
        dead = rest(group, b, &pid);
        if (dead < 0 && b->host && (dead = weft_group_find_dead(group, -1)) >= 0)
            pid = weft_group_pid(group, dead);
        if (dead < 0 && b->host && b->offers && now - looked > LOOK_NS) {
            looked = now;
            dead = find_ended(segment, b);
            if (dead >= 0)
                pid = b->offers[dead].pid;
        }
        if (dead >= 0)
            return weft_group_poison(group, WEFT_ERR_PEER_DIED,
                                     "rank %d (process %d) died or gave up during %s", dead, pid, b->call);
        if (b->host && weft_host_misfit(b->host))
            return weft_group_poison(group, WEFT_ERR_LAUNCH, "%s", weft_host_misfit(b->host));
        for (int rank = 0; rank < group->size; rank++)
            if (weft_group_absent(group, rank))
                return weft_group_poison(group, WEFT_ERR_PEER_DIED,
                                         "rank %d ended before every rank had come to %s", rank, b->call);
        if (now - b->begun > b->enter_ns)
            return fail_missing(group, b, (double)(now - b->begun) * 1e-9);
    }
    for (int rank = 0; rank < group->size; rank++)
        if (atomic_load_explicit(&segment->header->ranks[rank].proof, memory_order_relaxed) !=
            proof_of(segment, rank))
            return weft_group_poison(group, WEFT_ERR_LAUNCH, "rank %d does not share memory with the others",
                                     rank);
    return weft_group_barrier(group);
}

/* Brings the world's memory: inherited, made (rank 0) or asked for. */
static weft_status obtain(bootstrap *b, weft_segment *segment, weft_error_text *error)
{
    weft_status status;
    int fd = b->fd;

    if (fd >= 0)
        return weft_segment_attach(fd, b->nonce, segment, error);
    if (b->nodes && b->rank == b->leader)
        return weft_nodes_segment(b->nodes, segment, error);
    if (b->rank == b->leader)
        return weft_segment_create(b->size, false, segment, error);
    status = weft_rendezvous_join(&b->rendezvous, b->rank, b->size, b->begun + b->enter_ns, &fd, &b->nonce,
                                  &b->connection, error);
    if (status != WEFT_OK)
        return status;
    status = weft_segment_attach(fd, b->nonce, segment, error);
    if (status != WEFT_OK)
        close(fd);
    return status;
}

/* Ends the world that this rank has come into, with the reason for the others and its own for the caller. */
static weft_status refuse(weft_group *group, const bootstrap *b)
{
    weft_group_poison(group, WEFT_ERR_PEER, "rank %d rejected its arguments: %s", b->rank, b->refusal->text);
    group->error = *b->refusal;
    return b->refusal->status;
}

static weft_status come_in(bootstrap *b, weft_world *world, weft_group **group, weft_error_text *error)
{
    int members[WEFT_RANKS_MAX];
    /* Peers look at the control block as soon as the rank is in. */
    weft_status status = weft_world_prepare(world, 0, world->rank, error);

    if (status == WEFT_OK)
        status = claim(world, b->nodes, error);
    if (b->connection >= 0) { /* the lock tells of this rank's end now */
        close(b->connection);
        b->connection = -1;
    }
    if (status != WEFT_OK)
        return status;
    if (b->nodes) {
        status = weft_nodes_attach(b->nodes, world, error);
        if (status != WEFT_OK) {
            weft_segment_set_left(&world->segment, world->rank);
            return status;
        }
    }
    for (int rank = 0; rank < b->size; rank++)
        members[rank] = rank;
    status = weft_group_open(world, 0, world->rank, b->size, members, group, error);
    if (status != WEFT_OK) {
        weft_segment_set_left(&world->segment, world->rank);
        return status;
    }
    status = b->refusal ? refuse(*group, b) : gather(*group, b);
    weft_group_count_cores(*group);
    if (status != WEFT_OK) {
        *error = (*group)->error;
        weft_group_leave(*group);
        weft_group_close(*group);
        *group = NULL;
    }
    return status;
}

/* A rank 0 that failed stays a moment for those who are still on their way, and tells them why. */
static void tell_others(const bootstrap *b, const weft_error_text *why)
{
    int64_t until = weft_clock_ns() + TELL_NS;
    weft_error_text told = {.status = WEFT_ERR_PEER};
    int pid;

    if (why->status == WEFT_ERR_LAUNCH || why->status == WEFT_ERR_PEER_DIED)
        told = *why;
    else
        snprintf(told.text, sizeof(told.text), "rank 0 failed in %s: %.440s", b->call, why->text);
    while (weft_host_answered(b->host) < b->near - 1 && weft_clock_ns() < until)
        weft_host_serve(b->host, NULL, &told, ENTER_POLL_MS, &pid);
}

static weft_status read_settings(bootstrap *b, weft_error_text *error)
{
    double enter_seconds;
    weft_status status = weft_env_check(error);

    if (status == WEFT_OK)
        status = weft_env_seconds(WEFT_ENV_ENTER_TIMEOUT, &enter_seconds, error);
    if (status == WEFT_OK)
        b->enter_ns = (int64_t)(enter_seconds * 1e9);
    return status;
}

static weft_status enter_here(bootstrap *b, weft_world **world_out, weft_group **group,
                              weft_error_text *error)
{
    weft_world *world = NULL;
    weft_segment segment;
    weft_status status;

    b->connection = -1;
    if (b->offers)
        b->rendezvous.presence = name_in(&b->offers[b->leader].id);
    if (b->rank == b->leader && b->fd < 0) { /* first, so that whatever fails can be told */
        status = weft_host_open(&b->rendezvous, b->size, &b->host, error);
        if (status != WEFT_OK)
            return status;
    }
    status = read_settings(b, error);
    if (status == WEFT_OK && b->refusal && b->host) {
        *error = *b->refusal;
        status = error->status;
    }
    if (status == WEFT_OK)
        status = obtain(b, &segment, error);
    if (status == WEFT_OK && segment.header->size != b->size) {
        status =
            weft_error_set(error, WEFT_ERR_LAUNCH, "WEFT_SIZE says %d ranks, the inherited memory is for %d",
                           b->size, (int)segment.header->size);
        weft_segment_release(&segment);
    }
    if (status == WEFT_OK)
        status = weft_world_create(&segment, true, b->rank, &world, error);
    if (status == WEFT_OK)
        status = come_in(b, world, group, error);
    if (status != WEFT_OK && b->host)
        tell_others(b, error);
    if (world) {
        if (world_out && status == WEFT_OK)
            *world_out = world;
        weft_world_drop(world, NULL);
    }
    if (b->host)
        weft_host_close(b->host);
    if (b->connection >= 0)
        close(b->connection);
    return status;
}

/* The ranks find out which of them are on one node, and whether there are several. */
static weft_status enter(bootstrap *b, weft_world **world, weft_group **group, weft_error_text *error)
{
    weft_status status = WEFT_OK;

    b->begun = weft_clock_ns();
    b->near = b->size;
    if (b->gatherer) {
        status = weft_nodes_meet(b->gatherer, b->rank, b->size, &b->nodes, error);
        if (status != WEFT_OK)
            return status;
        b->rendezvous = weft_nodes_rendezvous(b->nodes);
        b->leader = weft_nodes_leader(b->nodes);
        b->near = weft_nodes_near(b->nodes);
        if (weft_nodes_count(b->nodes) == 1) {
            weft_nodes_free(b->nodes);
            b->nodes = NULL;
        }
    }
    status = enter_here(b, world, group, error);
    weft_nodes_free(b->nodes);
    return status;
}

/* ---- launchers ------------------------------------------------------------------------------------ */

static weft_status gather_by_tcp(void *context, const void *mine, size_t bytes, void *all,
                                 weft_error_text *error)
{
    weft_meet *meet = context;
    bootstrap b = {0};
    double silence;
    weft_status status = read_settings(&b, error);

    if (status == WEFT_OK)
        status = weft_env_seconds(WEFT_ENV_LINK_TIMEOUT, &silence, error);
    if (status != WEFT_OK)
        return status;
    meet->deadline_ns = weft_clock_ns() + b.enter_ns;
    meet->silence_ns = (int64_t)(silence * 1e9);
    meet->tell_ns = (int64_t)UNREACHED_S * 1000000000;
    return weft_meet_gather(meet, mine, bytes, all, error);
}

weft_status weft_enter_launched(const weft_error_text *refusal, weft_group **group, weft_error_text *error)
{
    weft_meet meet;
    weft_gatherer gatherer = {gather_by_tcp, &meet};
    weft_launch launch;
    weft_world *before = atomic_load(&entered), *world;
    weft_status status = weft_launcher_find(&launch, error);
    bootstrap b;
    int number;

    if (status != WEFT_OK)
        return status;
    if (!launch.launcher)
        return refusal ? refusal->status : weft_enter_threads(1, group, error);
    if (before && !before->foreign)
        return weft_error_set(error, WEFT_ERR_STATE,
                              "weft_init was called before in this process, and its group is not finalized");
    number = atomic_fetch_add(&worlds_entered, 1);
    b = (bootstrap){.call = "weft_init",
                    .who = launch.launcher,
                    .rank = launch.rank,
                    .size = launch.size,
                    .refusal = refusal,
                    .fd = number == 0 ? launch.fd : -1,
                    .nonce = launch.nonce,
                    .gatherer = launch.nodes ? &gatherer : NULL,
                    .rendezvous = weft_launcher_rendezvous(&launch, number)};
    if (launch.nodes)
        meet = (weft_meet){.host = launch.master,
                           .port = launch.port,
                           .ports = launch.ports,
                           .secret = launch.secret,
                           .rank = launch.rank,
                           .size = launch.size};
    status = enter(&b, &world, group, error);
    if (status == WEFT_OK)
        atomic_store(&entered, world);
    return status;
}

void weft_enter_forget(const weft_group *group)
{
    weft_world *world = group->world;

    if (group->window == 0)
        atomic_compare_exchange_strong(&entered, &world, NULL);
}

/* ---- ids ------------------------------------------------------------------------------------------ */

weft_status weft_enter_make_id(weft_id *id, weft_error_text *error)
{
    id_form form;

    memset(id, 0, sizeof(*id));
    if (!weft_random(form.name, sizeof(form.name)) || !weft_random(form.token, sizeof(form.token)))
        return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot get random bytes: %s", strerror(errno));
    memcpy(form.magic, id_magic, sizeof(form.magic));
    memcpy(id->bytes, &form, sizeof(form));
    return WEFT_OK;
}

static weft_status enter_by_id(bootstrap *b, const weft_id *id, weft_group **group, weft_error_text *error)
{
    id_form form;
    int used;

    memcpy(&form, id->bytes, sizeof(form));
    if (memcmp(form.magic, id_magic, sizeof(form.magic)) != 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "weft_group_create: these bytes are no id; weft_id_create makes one");
    if (b->size == 1)
        return b->refusal ? b->refusal->status : weft_enter_threads(1, group, error);
    used = snprintf(b->rendezvous.name, sizeof(b->rendezvous.name), "weft-");
    for (size_t i = 0; i < sizeof(form.name); i++)
        used += snprintf(b->rendezvous.name + used, sizeof(b->rendezvous.name) - (size_t)used, "%02x",
                         form.name[i]);
    memcpy(b->rendezvous.token, form.token, sizeof(form.token));
    return enter(b, NULL, group, error);
}

weft_status weft_enter_id(const weft_id *id, int rank, int size, const weft_error_text *refusal,
                          weft_group **group, weft_error_text *error)
{
    bootstrap b = {.call = "weft_group_create",
                   .who = "weft_group_create",
                   .rank = rank,
                   .size = size,
                   .refusal = refusal,
                   .fd = -1};

    return enter_by_id(&b, id, group, error);
}

typedef struct callback {
    weft_allgather_fn allgather;
    void *context;
} callback;

static weft_status gather_by_callback(void *context, const void *mine, size_t bytes, void *all,
                                      weft_error_text *error)
{
    const callback *by = context;

    if (by->allgather(by->context, mine, bytes, all) == 0)
        return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_PEER, "weft_group_create_from: the all-gather failed");
}

/* What every rank gave fits together. */
static weft_status check_offers(const offer *all, int size, weft_error_text *error)
{
    for (int peer = 0; peer < size; peer++)
        if (all[peer].status == WEFT_ERR_ARGUMENT)
            return weft_error_set(error, WEFT_ERR_PEER,
                                  "rank %d rejected its arguments for weft_group_create_from", peer);
    for (int peer = 0; peer < size; peer++)
        if (all[peer].rank != peer || all[peer].size != size)
            return weft_error_set(
                error, WEFT_ERR_MISMATCH,
                "weft_group_create_from: in place %d of %d the all-gather has rank %d of %d", peer, size,
                (int)all[peer].rank, (int)all[peer].size);
    for (int peer = 0; peer < size; peer++)
        if (all[peer].status != WEFT_OK)
            return weft_error_set(error, (weft_status)all[peer].status,
                                  "weft_group_create_from: rank %d could not make its offer", peer);
    return WEFT_OK;
}

weft_status weft_enter_gathered(weft_allgather_fn allgather, void *context, int rank, int size,
                                const weft_error_text *refusal, weft_group **group, weft_error_text *error)
{
    offer mine = {.node = weft_nodes_name(), .rank = rank, .size = size, .pid = (int32_t)getpid()};
    callback by = {allgather, context};
    weft_gatherer gatherer = {gather_by_callback, &by};
    offer *all = calloc((size_t)size, sizeof(*all));
    bootstrap b = {.call = "weft_group_create_from",
                   .who = "weft_group_create_from",
                   .rank = rank,
                   .size = size,
                   .fd = -1,
                   .offers = all};
    weft_status status = WEFT_OK;
    int presence = -1;

    if (!all)
        return weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for the ids of %d ranks", size);
    if (refusal)
        *error = *refusal;
    status = refusal ? refusal->status : weft_enter_make_id(&mine.id, error);
    if (status == WEFT_OK)
        status = weft_presence_open(name_in(&mine.id), &presence, error);
    mine.status = (int32_t)status;
    if (status == WEFT_OK) {
        status = gather_by_callback(&by, &mine, sizeof(mine), all, error);
        if (status == WEFT_OK)
            status = check_offers(all, size, error);
    } else { /* the others learn it, and this rank keeps its own reason */
        weft_error_text ignored;

        gather_by_callback(&by, &mine, sizeof(mine), all, &ignored);
    }
    for (int peer = 0; status == WEFT_OK && peer < size; peer++)
        if (all[peer].node != all[0].node)
            b.gatherer = &gatherer; /* ranks of several nodes exchange more */
    if (status == WEFT_OK)
        status = b.gatherer ? enter(&b, NULL, group, error) : enter_by_id(&b, &all[0].id, group, error);
    if (presence >= 0)
        close(presence);
    free(all);
    return status;
}
