/* Messages that come: whether they may be what they say, where they go, and when they take effect. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/wire.h"

#include "core/round.h"

enum {
    AHEAD_MAX = 1 << 20,    /* messages that may have overtaken another */
    LARGE_BYTES = 32 << 10, /* of a payload: its memory is kept */
    SPARE_BYTES = 8 << 20,  /* of what is kept and not used */
};

void weft_net_lose(weft_net *net, int number, const char *why)
{
    peer *p = &net->peers[number];
    int well = PEER_WELL;

    if (atomic_load_explicit(&p->state, memory_order_relaxed) != PEER_WELL)
        return;
    snprintf(p->why, sizeof(p->why), "%s", why);
    /* Partner: the acquire in weft_net_lost. All who write the state hold the lock. */
    atomic_compare_exchange_strong_explicit(&p->state, &well, PEER_LOST, memory_order_release,
                                            memory_order_relaxed);
}

enum { PLACE = 0, POSTS = 1 }; /* bits of `own` */

/* The address of `bytes` bytes in the slot of this rank or, by a bit of `own`, of the sender; NULL: they are
 * not there. */
static char *locate(const weft_net *net, const message *m, unsigned bit, uint64_t name, uint64_t bytes)
{
    int slot = m->own >> bit & 1 ? m->from : net->world.rank;

    return net->world.hooks.locate(net->world.hooks.context, slot, name, bytes);
}

/* From the first byte of the first row to the last of the last; false: no such place exists. */
static bool span_of(const message *m, uint64_t row_bytes, uint64_t *bytes)
{
    *bytes = row_bytes;
    if (m->rows <= 1)
        return true;
    return m->pitch >= 0 && !__builtin_mul_overflow(m->rows - 1, (uint64_t)m->pitch, bytes) &&
           !__builtin_add_overflow(*bytes, row_bytes, bytes);
}

static uint64_t row_bytes_of(const message *m, size_t bytes)
{
    return m->rows ? bytes / m->rows : 0;
}

static bool is_one_piece(const message *m, size_t bytes)
{
    return m->rows <= 1 || (uint64_t)m->pitch == row_bytes_of(m, bytes);
}

static bool is_ours(const weft_net *net, const message *m)
{
    return m->key == net->world.key && m->from < net->size &&
           atomic_load_explicit(&net->peers[m->from].state, memory_order_relaxed) == PEER_WELL;
}

static bool is_marked(const message *m, uint32_t post)
{
    return m->marked >> post & 1;
}

static bool is_sound(const weft_net *net, const message *m, size_t bytes)
{
    const peer *p = &net->peers[m->from];
    uint64_t span, row_bytes = row_bytes_of(m, bytes);

    if (m->number - p->next >= AHEAD_MAX || m->post_count > WEFT_NET_POSTS || m->rows * row_bytes != bytes)
        return false;
    if (m->kind != KIND_PUT)
        return m->kind <= KIND_EARLY && m->post_count == 0;
    for (uint32_t i = 0; i < m->post_count; i++)
        if (m->posts[i].offset %
                (m->effect == WEFT_NET_COUNT && !is_marked(m, i) ? sizeof(uint32_t) : sizeof(uint64_t)) ||
            !locate(net, m, POSTS + i, m->posts[i].offset, sizeof(weft_signal)))
            return false;
    return span_of(m, row_bytes, &span) && (bytes == 0 || locate(net, m, PLACE, m->offset, span));
}

static void make_posts(const weft_net *net, const message *m)
{
    for (uint32_t i = 0; i < m->post_count; i++) {
        const wire_post *post = &m->posts[i];
        void *at = locate(net, m, POSTS + i, post->offset, 0);

        if (m->effect == WEFT_NET_MARK || is_marked(m, i)) /* partners: those who look at the mark */
            atomic_store_explicit((_Atomic uint64_t *)at, post->value, memory_order_release);
        else if (m->effect == WEFT_NET_STORE)
            weft_signal_store(at, post->value);
        else if (m->effect == WEFT_NET_ADD)
            weft_signal_post(at, post->value);
        else /* partners: those who count on this node */
            atomic_fetch_add_explicit((_Atomic uint32_t *)at, (uint32_t)post->value, memory_order_acq_rel);
    }
}

static void scatter(const inbound *a, char *into, ptrdiff_t pitch)
{
    for (uint64_t row = 0; row < a->head.rows; row++)
        memcpy(into + (ptrdiff_t)row * pitch, a->payload + row * a->row_bytes, a->row_bytes);
}

/* The open run of the call that an early message is for, or of a later one of its group; NULL: it has not
 * begun. */
static weft_net_run *run_for(const weft_net *net, const message *m)
{
    weft_net_run *run = net->runs;

    while (run && (run->call.channel != m->early.call.channel || run->call.sequence < m->early.call.sequence))
        run = run->next;
    return run;
}

/* Ranks that ask for different things find it in their records; what they send each other is dropped. */
static bool is_of(const weft_net_run *run, const message *m)
{
    return run->call.sequence == m->early.call.sequence && run->call.hash == m->early.call.hash;
}

static void deliver(weft_net *net, const weft_net_run *run, const inbound *a)
{
    const message *m = &a->head;
    ptrdiff_t pitch = 0;
    char *into = NULL;

    if (!is_of(run, m))
        return;
    if (!a->placed && m->rows && a->row_bytes) {
        into = run->place(run->context, m->early.what, m->rows, a->row_bytes, &pitch);
        if (!into) {
            weft_net_lose(net, m->from, "it sent a message that cannot be");
            return;
        }
        scatter(a, into, pitch);
    }
    run->landed(run->context, m->early.what);
}

static void hold(weft_net *net, inbound *a)
{
    a->next = NULL;
    *net->held_end = a;
    net->held_end = &a->next;
}

/* ---- memory of messages --------------------------------------------------------------------------- */

/*
 * Memory of a large payload is used again. Whether malloc still has pages for it or gets new ones, which the
 * system clears while the payload comes, depends on what the program asked for before, and is a third of the
 * time of an exchange.
 */
static inbound *new_inbound(weft_net *net, size_t bytes)
{
    size_t room = bytes < LARGE_BYTES ? bytes : weft_round_up_bytes(bytes, LARGE_BYTES);
    inbound *a;

    for (inbound **link = &net->spare; bytes >= LARGE_BYTES && (a = *link) != NULL; link = &a->next)
        if (a->room >= bytes && a->room <= 2 * room) { /* else the next large one would have none */
            *link = a->next;
            return a;
        }
    a = malloc(sizeof(*a) + room);
    if (a)
        a->room = room;
    return a;
}

/* Kept for the next, and what was used last before the rest. */
static void drop_inbound(weft_net *net, inbound *a)
{
    inbound **link = &net->spare, *rest;
    size_t kept = 0;

    if (a->room < LARGE_BYTES || a->room > SPARE_BYTES) {
        free(a);
        return;
    }
    a->next = net->spare;
    net->spare = a;
    while (*link && kept + (*link)->room <= SPARE_BYTES) {
        kept += (*link)->room;
        link = &(*link)->next;
    }
    rest = *link;
    *link = NULL;
    weft_net_free_inbound(rest);
}

void weft_net_free_inbound(inbound *list)
{
    for (inbound *next; list; list = next) {
        next = list->next;
        free(list);
    }
}

/* The turn of a message has come. */
static void take_effect(weft_net *net, inbound *a)
{
    const weft_net_hooks *hooks = &net->world.hooks;
    const weft_net_run *run;

    switch (a->head.kind) {
    case KIND_PUT:
        make_posts(net, &a->head);
        break;
    case KIND_EARLY:
        run = run_for(net, &a->head);
        if (!run) {
            hold(net, a);
            return;
        }
        deliver(net, run, a);
        break;
    case KIND_NOTE:
        if (hooks->note)
            hooks->note(hooks->context, a->head.from, a->payload, a->row_bytes);
        break;
    case KIND_GOODBYE:
        /* Partner: weft_net_lost. */
        atomic_store_explicit(&net->peers[a->head.from].state, PEER_GONE, memory_order_release);
        if (hooks->gone)
            hooks->gone(hooks->context, a->head.from);
        break;
    default:
        break;
    }
    drop_inbound(net, a);
}

/* Memory of the ranks stays as long as the net; the caller's only as long as its call. */
static bool outlives_run(const weft_net *net, const void *address)
{
    const weft_net_hooks *hooks = &net->world.hooks;
    uint64_t name;

    return hooks->name(hooks->context, net->world.rank, address, &name);
}

/* Where the payload of a message belongs, if that is known now, it is one piece there and may be written
 * until all has come (which is now, `at_once`); *run: who has to say when that ends, or NULL. */
static char *place_of(weft_net *net, const message *m, size_t bytes, bool at_once, weft_net_run **run)
{
    weft_net_run *open;
    ptrdiff_t pitch = 0;
    char *into;

    *run = NULL;
    if (m->kind == KIND_PUT)
        return is_one_piece(m, bytes) && bytes ? locate(net, m, PLACE, m->offset, 0) : NULL;
    open = m->kind == KIND_EARLY && bytes ? run_for(net, m) : NULL;
    if (!open || !is_of(open, m))
        return NULL;
    into = open->place(open->context, m->early.what, m->rows, row_bytes_of(m, bytes), &pitch);
    if (!into || (m->rows > 1 && (uint64_t)pitch != row_bytes_of(m, bytes)))
        return NULL;
    if (at_once)
        return into;
    if (!net->engine->forget)
        return outlives_run(net, into) ? into : NULL;
    *run = open;
    return into;
}

/* Takes a message in; NULL: it is not for us. */
static void *accept_message(weft_net *net, const message *m, size_t bytes, bool at_once, void **token)
{
    uint32_t next = net->peers[m->from].next;
    inbound *a, **link;
    weft_net_run *run;
    char *into;

    if (!is_sound(net, m, bytes)) {
        weft_net_lose(net, m->from, "it sent a message that cannot be");
        return NULL;
    }
    for (link = &net->peers[m->from].waiting; *link && (*link)->head.number - next < m->number - next;
         link = &(*link)->next)
        ;
    if (*link && (*link)->head.number == m->number)
        return NULL;
    into = place_of(net, m, bytes, at_once, &run);
    a = new_inbound(net, into ? 0 : bytes);
    if (!a) {
        weft_net_lose(net, m->from, "this rank has no memory for its messages");
        return NULL;
    }
    *a = (inbound){.next = *link,
                   .net = net,
                   .head = *m,
                   .row_bytes = row_bytes_of(m, bytes),
                   .placed = into != NULL,
                   .run = run,
                   .room = a->room};
    *link = a;
    if (run)
        run->arriving++;
    *token = a;
    return into ? into : a->payload;
}

void weft_net_landed(void *token, bool whole)
{
    inbound *a = token;
    weft_net *net = a->net;
    peer *p = &net->peers[a->head.from];

    if (a->run)
        a->run->arriving--;
    a->run = NULL;
    if (!whole) /* its turn never comes */
        weft_net_lose(net, a->head.from, "a message broke off");
    if (whole && a->head.kind == KIND_PUT && !a->placed && a->head.rows && a->row_bytes)
        scatter(a, locate(net, &a->head, PLACE, a->head.offset, 0), a->head.pitch);
    a->landed = whole;
    while (p->waiting && p->waiting->landed && p->waiting->head.number == p->next) {
        inbound *first = p->waiting;

        p->waiting = first->next;
        p->next++;
        take_effect(net, first);
    }
}

/* A message that travelled with another, its payload behind it. */
static void take_whole(weft_net *net, const message *m, const void *payload, size_t bytes)
{
    void *token, *into = accept_message(net, m, bytes, true, &token);

    if (!into)
        return;
    memcpy(into, payload, bytes);
    weft_net_landed(token, true);
}

/* Takes the message at the beginning of `bytes` bytes: how long it is; 0: it cannot be one. */
static size_t read_message(const void *header, size_t bytes, message *m)
{
    memset(m, 0, sizeof(*m));
    memcpy(m, header, weft_min_bytes(bytes, sizeof(*m)));
    return bytes < offsetof(message, posts) || bytes < weft_message_bytes(m) ? 0 : weft_message_bytes(m);
}

void *weft_net_place(void *context, const void *header, size_t header_bytes, size_t bytes, bool at_once,
                     void **token)
{
    weft_net *net = context;
    message m, first;
    size_t own = read_message(header, header_bytes, &m), rest = header_bytes - own;

    if (!own || !is_ours(net, &m))
        return NULL;
    net->peers[m.from].heard = true;
    if (rest > 0) {
        size_t ahead = read_message((const char *)header + own, rest, &first);

        if (!ahead || first.key != m.key || first.from != m.from) {
            weft_net_lose(net, m.from, "it sent a message that cannot be");
            return NULL;
        }
        take_whole(net, &first, (const char *)header + own + ahead, rest - ahead);
    }
    return accept_message(net, &m, bytes, at_once, token);
}

/* ---- what comes before its call ------------------------------------------------------------------- */

/* Takes the messages of a channel up to a call out of those held; `run`: they are delivered if they are its.
 * Under the lock. */
static void release_held(weft_net *net, uint64_t channel, uint64_t sequence, const weft_net_run *run)
{
    inbound **link = &net->held;

    while (*link) {
        inbound *a = *link;

        if (a->head.early.call.channel != channel || a->head.early.call.sequence > sequence) {
            link = &a->next;
            continue;
        }
        *link = a->next;
        if (run)
            deliver(net, run, a);
        drop_inbound(net, a);
    }
    net->held_end = link;
}

void weft_net_open_run(weft_net *net, weft_net_run *run)
{
    pthread_mutex_lock(&net->lock);
    run->next = net->runs;
    net->runs = run;
    release_held(net, run->call.channel, run->call.sequence, run);
    pthread_mutex_unlock(&net->lock);
}

void weft_net_close_run(weft_net *net, weft_net_run *run)
{
    weft_net_run **link = &net->runs;

    pthread_mutex_lock(&net->lock);
    while (*link && *link != run)
        link = &(*link)->next;
    if (*link)
        *link = run->next;
    /* Of a run that has ended well all has landed. */
    for (int number = 0; run->arriving && number < net->size; number++)
        for (inbound *a = net->peers[number].waiting; a; a = a->next)
            if (a->run == run) {
                net->engine->forget(net->handle, a);
                a->run = NULL;
                run->arriving--;
            }
    pthread_mutex_unlock(&net->lock);
}

void weft_net_drop_early(weft_net *net, uint64_t channel)
{
    pthread_mutex_lock(&net->lock);
    release_held(net, channel, UINT64_MAX, NULL);
    pthread_mutex_unlock(&net->lock);
}
