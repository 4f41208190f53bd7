/* The end of a connection and of all that was on its way over it, and which sockets are watched. */
#include "net/tcp_peer.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

void weft_tcp_watch(const tcp_engine *engine, int how, int fd, uint32_t events, void *what)
{
    struct epoll_event event = {.events = events, .data.ptr = what};

    epoll_ctl(engine->epoll, how, fd, &event); /* what is not watched is seen at the next look at the clock */
}

void weft_tcp_watch_writes(tcp_peer *p)
{
    bool wanted = p->first != NULL;

    if (p->state == WELL && wanted != p->watched) {
        weft_tcp_watch(p->engine, EPOLL_CTL_MOD, p->fd, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN, p);
        p->watched = wanted;
    }
}

static void drop_list(outgoing **first, outgoing ***last)
{
    while (*first) {
        outgoing *o = *first;

        *first = o->next;
        o->sent(o->argument, false);
        free(o);
    }
    *last = first;
}

static void drop_outgoing(tcp_peer *p)
{
    for (const outgoing *o = p->first; o; o = o->next)
        p->engine->waiting--;
    drop_list(&p->lent, &p->last_lent);
    drop_list(&p->first, &p->last);
}

static void end_connection(tcp_peer *p)
{
    tcp_engine *engine = p->engine;

    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
    for (int i = 0; i < 2; i++) {
        if (p->pipe[i] >= 0)
            close(p->pipe[i]);
        p->pipe[i] = -1;
    }
    for (int i = 0; i < engine->live_count; i++)
        if (engine->live[i] == p)
            engine->live[i--] = engine->live[--engine->live_count];
    if (p->left && p->wanted)
        engine->events.landed(p->token, false);
    p->left = 0;
}

void weft_tcp_met(tcp_engine *engine)
{
    if (--engine->unmet > 0 || engine->listener < 0)
        return;
    close(engine->listener);
    engine->listener = -1;
    while (engine->stranger_count > 0)
        close(engine->strangers[--engine->stranger_count].fd);
}

void weft_tcp_lose(tcp_peer *p, const char *why)
{
    tcp_engine *engine = p->engine;
    bool met = p->state == WELL;

    if (p->state == LOST)
        return;
    p->state = LOST;
    end_connection(p);
    drop_outgoing(p);
    free(p->address);
    p->address = NULL;
    if (!met)
        weft_tcp_met(engine);
    if (!engine->closing)
        engine->events.lost(engine->events.context, p->number, why);
}
