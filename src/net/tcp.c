/*
 * TCP behind the engine table: one connection between two peers, the kernel's own calls, nothing to install.
 * tcp_peer.h says what is where.
 */
#include "net/tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "core/clock.h"
#include "net/tcp_peer.h"

enum {
    DIRECT = 1, /* so few connections are read without asking which have something */
    EVENTS = 16,
};

/* ---- progress -------------------------------------------------------------------------------------- */

static bool serve_many(tcp_engine *engine)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(engine->epoll, events, EVENTS, 0);
    bool more = count == EVENTS;

    for (int i = 0; i < count; i++) {
        tcp_peer *p = events[i].data.ptr;

        if (p && p->state == WELL)
            more = weft_tcp_read(p) || more;
    }
    for (int i = 0; engine->waiting && i < engine->live_count; i++)
        more = weft_tcp_flush(engine->live[i]) || more;
    return more;
}

static bool tcp_progress(void *handle)
{
    tcp_engine *engine = handle;
    bool more = engine->unmet > 0 && weft_tcp_meet(engine);

    if (engine->live_count > DIRECT)
        return serve_many(engine) || more;
    for (int i = engine->live_count - 1; i >= 0;
         i--) /* one that is lost makes room for one that was served */
        more = weft_tcp_serve(engine->live[i]) || more;
    return more;
}

static void tcp_forget(void *handle, const void *token)
{
    tcp_engine *engine = handle;

    for (int i = 0; i < engine->live_count; i++)
        if (engine->live[i]->left && engine->live[i]->wanted && engine->live[i]->token == token)
            engine->live[i]->into = NULL;
}

static int tcp_descriptor(const void *handle)
{
    return ((const tcp_engine *)handle)->epoll;
}

/* The descriptor tells what is there, also what was there before. */
static bool tcp_arm(void *handle)
{
    tcp_engine *engine = handle;

    for (int i = 0; i < engine->live_count; i++)
        weft_tcp_watch_writes(engine->live[i]);
    return true;
}

/* ---- opening and closing --------------------------------------------------------------------------- */

static size_t tcp_piece(const void *handle)
{
    (void)handle;
    return SIZE_MAX;
}

static const void *tcp_address_of(const void *handle, size_t *bytes)
{
    *bytes = sizeof(tcp_address);
    return &((const tcp_engine *)handle)->own;
}

static void free_engine(tcp_engine *engine)
{
    if (engine->listener >= 0)
        close(engine->listener);
    while (engine->stranger_count > 0)
        close(engine->strangers[--engine->stranger_count].fd);
    for (int number = 0; number < engine->peer_count; number++) {
        free(engine->peers[number].buffer);
        free(engine->peers[number].address);
    }
    if (engine->epoll >= 0)
        close(engine->epoll);
    free(engine->live);
    free(engine);
}

static weft_status tcp_open(int peers, const weft_engine_events *events, void **handle,
                            weft_error_text *error)
{
    tcp_engine *engine = calloc(1, sizeof(*engine) + sizeof(tcp_peer) * (size_t)peers);

    if (engine)
        engine->live = calloc((size_t)peers, sizeof(tcp_peer *));
    if (!engine || !engine->live) {
        free(engine);
        return weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for %d connections", peers);
    }
    engine->events = *events;
    engine->peer_count = peers;
    for (int number = 0; number < peers; number++) {
        tcp_peer *p = &engine->peers[number];

        *p = (tcp_peer){.engine = engine, .number = number, .fd = -1, .pipe = {-1, -1}};
        p->last = &p->first;
        p->last_lent = &p->lent;
    }
    engine->listener = -1;
    engine->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (engine->epoll < 0 || !weft_tcp_listen(engine)) {
        weft_error_set(error, WEFT_ERR_SYSTEM, "cannot listen for ranks of other nodes: %s", strerror(errno));
        free_engine(engine);
        return error->status;
    }
    *handle = engine;
    return WEFT_OK;
}

static void tcp_close(void *handle, int64_t linger_ns)
{
    tcp_engine *engine = handle;
    int64_t until = weft_clock_ns() + linger_ns;

    engine->closing = true;
    while (engine->waiting > 0 && weft_clock_ns() < until) {
        struct pollfd ready = {.fd = engine->epoll, .events = POLLIN};

        if (!tcp_progress(engine) && tcp_arm(engine))
            poll(&ready, 1, 10);
    }
    for (int number = 0; number < engine->peer_count; number++)
        if (engine->peers[number].state != NONE)
            weft_tcp_lose(&engine->peers[number], "");
    free_engine(engine);
}

const weft_engine *weft_engine_tcp(void)
{
    static const weft_engine table = {
        .name = "TCP",
        .open = tcp_open,
        .address = tcp_address_of,
        .connect = weft_tcp_connect,
        .send = weft_tcp_send,
        .send_now = weft_tcp_send_now,
        .piece = tcp_piece,
        .forget = tcp_forget,
        .progress = tcp_progress,
        .descriptor = tcp_descriptor,
        .arm = tcp_arm,
        .close = tcp_close,
    };

    return &table;
}
