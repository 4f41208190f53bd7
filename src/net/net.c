/* The net of a rank: its thread, who is there, opening and closing. Messages are in send.c and receive.c. */
#include "net/net.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/thread.h"
#include "net/find.h"
#include "net/wire.h"

enum {
    BEAT_NS = 500000000, /* the longest silence of a rank that is well */
    LOOK_NS = 100000000, /* between looks at the clock, and calls of the beat hook */
    LINGER_NS = 1000000000,
    STAND_BACK_NS = 1000000, /* a waiter that has polled within this time will again */
    TURNS = 64,              /* of progress while others wait for the lock */
    HELPS = 8, /* while the thread listens: a waiter that goes on would have it woken by each message */
};

enum { ENGINE_NAME = 8 };

/* ---- progress ------------------------------------------------------------------------------------- */

/* Beats to those who have heard nothing for a while, and who has been silent too long. */
static void look_at_peers(weft_net *net, int64_t now)
{
    char why[96];

    for (int number = 0; number < net->size; number++) {
        peer *p = &net->peers[number];

        if (atomic_load_explicit(&p->state, memory_order_relaxed) != PEER_WELL)
            continue;
        if (p->spoken)
            p->spoken_at = now;
        if (p->heard)
            p->heard_at = now;
        p->spoken = p->heard = false;
        if (now - p->spoken_at >= BEAT_NS)
            weft_net_send_plain(net, number, KIND_BEAT);
        if (now - p->heard_at >= net->world.silence_ns) {
            snprintf(why, sizeof(why), "nothing has come from it for %.1f s",
                     (double)net->world.silence_ns * 1e-9);
            weft_net_lose(net, number, why);
        }
    }
}

/* Until one of them has something; the first is weft_net.wake, which has nothing then. */
static void sleep_on(struct pollfd *fds, nfds_t count, int64_t ns)
{
    uint64_t times;

    if (ppoll(fds, count, &(struct timespec){0, ns}, NULL) > 0 && fds[0].revents &&
        read(fds[0].fd, &times, sizeof(times)) < 0)
        times = 0;
}

static void wake_thread(const weft_net *net)
{
    uint64_t one = 1;

    if (write(net->wake, &one, sizeof(one)) < 0) /* then it looks within LOOK_NS */
        (void)one;
}

static void make_progress(weft_net *net)
{
    for (int turn = 0; turn < TURNS && net->engine->progress(net->handle); turn++)
        ;
}

/* Sleeps until the engine has something to do; whether a waiter has said that it does that itself. */
static bool listen_on(weft_net *net, struct pollfd fds[2])
{
    bool told;

    sleep_on(fds, 2, LOOK_NS);
    pthread_mutex_lock(&net->lock);
    told = net->helps == HELPS;
    net->helps = HELPS;
    pthread_mutex_unlock(&net->lock);
    return told;
}

/* Progress, then sleep until the engine has some; what a message lacks whose sender is stopped may never
 * come. While a waiter makes progress the thread stands back: two who take turns would be slower than one,
 * and the system wakes whoever listens with every message, also with those that the waiter has read by then.
 */
static void *work(void *argument)
{
    weft_net *net = argument;
    int64_t next_look = 0;

    while (!atomic_load_explicit(&net->stop, memory_order_relaxed)) {
        struct pollfd fds[2] = {{.fd = net->wake, .events = POLLIN},
                                {.fd = net->engine->descriptor(net->handle), .events = POLLIN}};
        int64_t now = weft_clock_ns();
        bool idle = true;

        if (now >= next_look) {
            if (net->world.hooks.beat)
                net->world.hooks.beat(net->world.hooks.context);
            pthread_mutex_lock(&net->lock);
            look_at_peers(net, now);
            pthread_mutex_unlock(&net->lock);
            next_look = now + LOOK_NS;
        }
        /* Partners: weft_net_poll and weft_net_rest: either it sees that this thread stands back, or this
         * that there is no more help. */
        atomic_store(&net->stands_back, true);
        if (atomic_exchange(&net->helped, false)) {
            sleep_on(fds, 1, STAND_BACK_NS);
            continue;
        }
        atomic_store_explicit(&net->stands_back, false, memory_order_relaxed);
        pthread_mutex_lock(&net->lock);
        make_progress(net);
        idle = net->engine->arm(net->handle);
        net->helps = idle ? 0 : HELPS;
        pthread_mutex_unlock(&net->lock);
        /* Whoever helped before a long sleep may compute now. One who still waits says so with its next poll.
         */
        if (idle && !listen_on(net, fds) && weft_clock_ns() - now > STAND_BACK_NS)
            atomic_store(&net->helped, false);
    }
    return NULL;
}

void weft_net_poll(weft_net *net)
{
    bool tell;

    if (pthread_mutex_trylock(&net->lock) != 0)
        return;
    make_progress(net);
    tell = net->helps < HELPS && ++net->helps == HELPS;
    pthread_mutex_unlock(&net->lock);
    /* Partner: work. No clock is asked: a call of few bytes polls a dozen times. */
    atomic_store_explicit(&net->helped, true, memory_order_relaxed);
    if (tell)
        wake_thread(net);
}

void weft_net_rest(weft_net *net)
{
    /* Partner: work. */
    atomic_store(&net->helped, false);
    if (atomic_load(&net->stands_back))
        wake_thread(net);
}

bool weft_net_lost(const weft_net *net, int number)
{
    /* Partner: the release in lose. */
    return atomic_load_explicit(&net->peers[number].state, memory_order_acquire) == PEER_LOST;
}

const char *weft_net_why(const weft_net *net, int number)
{
    return net->peers[number].why;
}

/* ---- opening and closing -------------------------------------------------------------------------- */

static bool write_address(weft_net *net)
{
    size_t bytes;
    const void *said = net->engine->address(net->handle, &bytes);

    net->address = calloc(1, ENGINE_NAME + bytes);
    if (!net->address)
        return false;
    snprintf(net->address, ENGINE_NAME, "%s", net->engine->name);
    memcpy(net->address + ENGINE_NAME, said, bytes);
    net->address_bytes = ENGINE_NAME + bytes;
    return true;
}

static void on_lost(void *context, int number, const char *why)
{
    weft_net_lose(context, number, why);
}

weft_status weft_net_open(int size, weft_net **net_out, weft_error_text *error)
{
    weft_net *net = calloc(1, sizeof(*net));
    weft_engine_events events = {
        .context = net, .place = weft_net_place, .landed = weft_net_landed, .lost = on_lost};
    weft_status status;

    if (net)
        net->peers = calloc((size_t)size, sizeof(*net->peers));
    if (!net || !net->peers) {
        free(net);
        return weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for connections to %d ranks", size);
    }
    net->size = size;
    net->held_end = &net->held;
    pthread_mutex_init(&net->lock, NULL);
    net->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (net->wake < 0)
        status = weft_error_set(error, WEFT_ERR_SYSTEM, "cannot make an eventfd: %s", strerror(errno));
    else
        status = weft_engine_find(&net->engine, error);
    if (status == WEFT_OK)
        status = net->engine->open(size, &events, &net->handle, error);
    if (status == WEFT_OK && !write_address(net)) {
        net->engine->close(net->handle, 0);
        status = weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for an address");
    }
    if (status != WEFT_OK) {
        if (net->wake >= 0)
            close(net->wake);
        free(net->peers);
        free(net);
        return status;
    }
    *net_out = net;
    return WEFT_OK;
}

const void *weft_net_address(const weft_net *net, size_t *bytes)
{
    *bytes = net->address_bytes;
    return net->address;
}

weft_status weft_net_begin(weft_net *net, const weft_net_world *world, const void *const *addresses,
                           weft_error_text *error)
{
    int64_t now = weft_clock_ns();

    net->world = *world;
    for (int number = 0; number < world->size; number++) {
        const char *address = addresses[number];
        weft_status status;

        if (!address)
            continue;
        if (memcmp(address, net->address, ENGINE_NAME) != 0)
            return weft_error_set(error, WEFT_ERR_MISMATCH,
                                  "rank %d is reached by %.8s, and rank %d by %s: WEFT_NET=tcp on all ranks "
                                  "makes them meet",
                                  number, address, world->rank, net->address);
        net->peers[number].heard_at = now;
        net->peers[number].state = PEER_WELL;
        status = net->engine->connect(net->handle, number, address + ENGINE_NAME, error);
        if (status != WEFT_OK)
            return status;
    }
    if (weft_thread_start(&net->thread, NULL, work, net) != 0)
        return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot start the thread that serves other nodes: %s",
                              strerror(errno));
    net->running = true;
    return WEFT_OK;
}

static void stop_thread(weft_net *net)
{
    if (!net->running)
        return;
    atomic_store_explicit(&net->stop, true, memory_order_relaxed);
    wake_thread(net);
    pthread_join(net->thread, NULL);
    net->running = false;
}

void weft_net_goodbye(weft_net *net)
{
    stop_thread(net);
    pthread_mutex_lock(&net->lock);
    for (int number = 0; number < net->size; number++)
        weft_net_send_plain(net, number, KIND_GOODBYE);
    for (int turn = 0; turn < TURNS; turn++)
        net->engine->progress(net->handle);
    net->silent = true;
    pthread_mutex_unlock(&net->lock);
}

void weft_net_close(weft_net *net)
{
    bool begun = net->running;

    stop_thread(net);
    for (int number = 0; begun && number < net->size; number++)
        weft_net_send_plain(net, number, KIND_GOODBYE);
    net->world.hooks.note = NULL; /* the world is about to go; its memory goes last */
    net->world.hooks.gone = NULL;
    net->engine->close(net->handle, begun ? LINGER_NS : 0);
    for (int number = 0; number < net->size; number++)
        weft_net_free_inbound(net->peers[number].waiting);
    weft_net_free_inbound(net->held);
    weft_net_free_inbound(net->spare);
    close(net->wake);
    pthread_mutex_destroy(&net->lock);
    free(net->address);
    free(net->peers);
    free(net);
}
