#include "group/world.h"

#include <pthread.h>
#include <stdlib.h>

#include "net/net.h"

/* All worlds of this process, for the day it forks or ends. The lock also guards their lists of guests. */
static weft_world *worlds;
static pthread_mutex_t worlds_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t worlds_once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&worlds_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&worlds_lock);
}

static void in_child(void)
{
    for (weft_world *world = worlds; world; world = world->next) {
        world->foreign = true;
        world->life.page = NULL; /* the child did not get it */
        for (weft_guest *guest = world->guests; guest; guest = guest->next)
            guest->orphan(guest);
    }
    pthread_mutex_unlock(&worlds_lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
}

/* To other nodes good-bye is said while the libraries that carry it are still whole. */
static void say_goodbye(void)
{
    weft_net *nets[16]; /* of worlds beyond these the others notice the end of the process */
    int count = 0;

    pthread_mutex_lock(&worlds_lock);
    for (weft_world *world = worlds; world; world = world->next)
        if (world->net && !world->foreign && count < 16)
            nets[count++] = world->net;
    pthread_mutex_unlock(&worlds_lock);
    while (count > 0) /* without the lock, which the threads of the nets take */
        weft_net_goodbye(nets[--count]);
}

static void register_goodbye(void)
{
    atexit(say_goodbye);
}

void weft_world_watch_exit(void)
{
    static pthread_once_t registered = PTHREAD_ONCE_INIT;

    pthread_once(&registered, register_goodbye);
}

/* A process that ends normally without weft_finalize has left, not died. */
__attribute__((destructor)) static void leave_at_exit(void)
{
    pthread_mutex_lock(&worlds_lock);
    for (weft_world *world = worlds; world; world = world->next)
        if (world->processes && !world->foreign)
            weft_segment_set_left(&world->segment, world->rank);
    pthread_mutex_unlock(&worlds_lock);
}

weft_status weft_world_create(const weft_segment *segment, bool processes, int rank, weft_world **world_out,
                              weft_error_text *error)
{
    weft_world *world = calloc(1, sizeof(*world));
    int size = segment->header->size;

    if (world)
        world->members = calloc((size_t)size, sizeof(*world->members));
    if (!world || !world->members) {
        weft_segment released = *segment;

        free(world);
        weft_segment_release(&released);
        return weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for a world of %d ranks", size);
    }
    world->segment = *segment;
    world->processes = processes;
    world->rank = rank;
    world->references = 1;
    pthread_once(&worlds_once, watch_forks);
    pthread_mutex_lock(&worlds_lock);
    world->next = worlds;
    world->link = &worlds;
    if (worlds)
        worlds->link = &world->next;
    worlds = world;
    pthread_mutex_unlock(&worlds_lock);
    *world_out = world;
    return WEFT_OK;
}

weft_status weft_world_prepare(weft_world *world, int window, int rank, weft_error_text *error)
{
    weft_status status;
    bool fresh;

    /* Ranks that are threads share the mapping. */
    pthread_mutex_lock(&worlds_lock);
    fresh = !world->segment.windows[window];
    status = weft_segment_map(&world->segment, window, error);
    for (int other = 0; status == WEFT_OK && fresh && world->net && other < world->segment.header->size;
         other++)
        if (weft_world_far(world, other) && !weft_segment_cast(&world->segment, other, window))
            status = weft_error_set(error, WEFT_ERR_MEMORY, "cannot map room for what other nodes show");
    pthread_mutex_unlock(&worlds_lock);
    if (status == WEFT_OK &&
        !weft_segment_populate(&world->segment, weft_segment_control(&world->segment, rank, window),
                               WEFT_CONTROL_BYTES))
        status = weft_error_set(error, WEFT_ERR_MEMORY, "the system has no memory for a group");
    return status;
}

void weft_world_hold(weft_world *world, weft_guest *guest)
{
    pthread_mutex_lock(&worlds_lock);
    guest->next = world->guests;
    guest->link = &world->guests;
    if (guest->next)
        guest->next->link = &guest->next;
    world->guests = guest;
    pthread_mutex_unlock(&worlds_lock);
    atomic_fetch_add_explicit(&world->references, 1, memory_order_relaxed);
}

void weft_world_each_guest(weft_world *world, void (*call)(weft_guest *guest))
{
    pthread_mutex_lock(&worlds_lock);
    for (weft_guest *guest = world->guests; guest; guest = guest->next)
        call(guest);
    pthread_mutex_unlock(&worlds_lock);
}

void weft_world_drop(weft_world *world, weft_guest *guest)
{
    pthread_mutex_lock(&worlds_lock);
    if (guest) {
        *guest->link = guest->next;
        if (guest->next)
            guest->next->link = guest->link;
    }
    if (atomic_fetch_sub_explicit(&world->references, 1, memory_order_acq_rel) != 1) {
        pthread_mutex_unlock(&worlds_lock);
        return;
    }
    *world->link = world->next;
    if (world->next)
        world->next->link = world->link;
    pthread_mutex_unlock(&worlds_lock);
    for (int rank = 0; rank < world->segment.header->size; rank++)
        for (weft_vacated *it = world->members[rank].vacated, *next; it; it = next) {
            next = it->next;
            free(it);
        }
    if (world->net && !world->foreign) /* a child of fork has neither its thread nor its connections */
        weft_net_close(world->net);
    free(world->domain);
    free(world->hosts);
    weft_segment_unlock(&world->life);
    weft_segment_release(&world->segment);
    free(world->members);
    free(world);
}
