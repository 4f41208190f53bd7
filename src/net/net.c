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

enum {
    BEAT_NS = 500000000, /* the longest silence of a rank that is well */
    LOOK_NS = 100000000, /* between looks at the clock, and calls of the beat hook */
    LINGER_NS = 1000000000,
    HELPED_NS = 1000000, /* a waiter that has polled within this time will again */
    STAND_BACK_NS = 200000,
    AHEAD_MAX = 1 << 20, /* messages that may have overtaken another */
    TURNS = 64,          /* of progress by one poll */
};

enum { KIND_PUT = 1, KIND_NOTE, KIND_BEAT, KIND_GOODBYE, KIND_EARLY };

enum { PEER_NONE, PEER_WELL, PEER_GONE, PEER_LOST };

typedef struct wire_post {
    uint64_t offset, value;
    int32_t slot;
    uint32_t marks;
} wire_post;

typedef struct wire_early {
    weft_net_call call;
    uint64_t what[WEFT_NET_WORDS];
} wire_early;

/* Behind its last byte there may be another message and its payload, which takes effect before it. */
typedef struct message {
    uint64_t key;
    uint64_t number; /* of the messages from this rank to that, from 0 */
    uint64_t offset; /* its name in the slot */
    uint64_t rows, row_bytes;
    int64_t pitch;
    int32_t from, slot;
    uint16_t kind, effect;
    uint32_t post_count;
    union {
        wire_post posts[WEFT_NET_POSTS];
        wire_early early;
    };
} message;

/* A message that has come, until its turn. */
typedef struct inbound {
    struct inbound *next;
    struct weft_net *net;
    message head;
    bool landed;
    bool placed;    /* the payload is where it belongs */
    char payload[]; /* else: of notes, of rows that are not one piece, of what has come too early */
} inbound;

/* What leaves in pieces; under the lock. */
typedef struct journey {
    size_t left; /* pieces that have not arrived at the engine's hands */
    weft_signal *finished;
} journey;

/* A message that leaves. */
typedef struct departure {
    weft_signal *finished;
    journey *whole; /* it is a piece; NULL: it is all */
    size_t before;  /* bytes of the message that travels with it */
    message head;
    char payload[]; /* behind that message */
} departure;

typedef struct peer {
    _Atomic int state;
    uint64_t sent, next;    /* numbers; under the lock, as `waiting` */
    inbound *waiting;       /* by number */
    _Atomic int64_t heard;  /* when something came last */
    _Atomic int64_t spoken; /* when something was sent last */
    char why[96];           /* it is lost; written before the state says so */
} peer;

enum { ENGINE_NAME = 8 };

struct weft_net {
    const weft_engine *engine;
    void *handle;
    char *address; /* the name of the engine, then what it says of itself */
    size_t address_bytes;
    weft_net_world world;
    pthread_mutex_t lock; /* around the engine */
    pthread_t thread;
    bool running;
    int wake; /* an eventfd that ends the thread's sleep */
    _Atomic bool stop;
    _Atomic int64_t polled; /* when a waiter made progress last; 0: none does */
    bool silent;            /* good-bye has been said */
    int size;
    weft_net_run *runs;        /* open; under the lock, as those below */
    inbound *held, **held_end; /* early messages, in the order in which they came */
    peer *peers;
};

/* ---- receiving ------------------------------------------------------------------------------------ */

static void lose(weft_net *net, int number, const char *why)
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

static void on_lost(void *context, int number, const char *why)
{
    lose(context, number, why);
}

/* The address of `bytes` bytes in the slot of this rank or the sender; NULL: they are not there. */
static char *locate(const weft_net *net, const message *m, int slot, uint64_t name, uint64_t bytes)
{
    if (slot != net->world.rank && slot != m->from)
        return NULL;
    return net->world.hooks.locate(net->world.hooks.context, slot, name, bytes);
}

/* From the first byte of the first row to the last of the last; false: no such place exists. */
static bool span_of(const message *m, uint64_t *bytes)
{
    *bytes = m->row_bytes;
    if (m->rows <= 1)
        return true;
    return m->pitch >= 0 && !__builtin_mul_overflow(m->rows - 1, (uint64_t)m->pitch, bytes) &&
           !__builtin_add_overflow(*bytes, m->row_bytes, bytes);
}

static bool is_one_piece(const message *m)
{
    return m->rows <= 1 || (uint64_t)m->pitch == m->row_bytes;
}

static bool is_ours(const weft_net *net, const message *m)
{
    return m->key == net->world.key && m->from >= 0 && m->from < net->size &&
           atomic_load_explicit(&net->peers[m->from].state, memory_order_relaxed) == PEER_WELL;
}

static bool is_sound(const weft_net *net, const message *m, size_t bytes)
{
    const peer *p = &net->peers[m->from];
    uint64_t span, payload;

    if (m->number < p->next || m->number - p->next >= AHEAD_MAX || m->post_count > WEFT_NET_POSTS ||
        __builtin_mul_overflow(m->rows, m->row_bytes, &payload) || payload != bytes)
        return false;
    if (m->kind != KIND_PUT)
        return m->kind <= KIND_EARLY && m->post_count == 0;
    for (uint32_t i = 0; i < m->post_count; i++)
        if (m->posts[i].offset %
                (m->effect == WEFT_NET_COUNT && !m->posts[i].marks ? sizeof(uint32_t) : sizeof(uint64_t)) ||
            !locate(net, m, m->posts[i].slot, m->posts[i].offset, sizeof(weft_signal)))
            return false;
    return span_of(m, &span) && (bytes == 0 || locate(net, m, m->slot, m->offset, span));
}

static void make_posts(const weft_net *net, const message *m)
{
    for (uint32_t i = 0; i < m->post_count; i++) {
        const wire_post *post = &m->posts[i];
        void *at = locate(net, m, post->slot, post->offset, 0);

        if (m->effect == WEFT_NET_MARK || post->marks) /* partners: those who look at the mark */
            atomic_store_explicit((_Atomic uint64_t *)at, post->value, memory_order_release);
        else if (m->effect == WEFT_NET_STORE)
            weft_signal_store(at, post->value);
        else if (m->effect == WEFT_NET_ADD)
            weft_signal_post(at, post->value);
        else /* partners: those who count on this node */
            atomic_fetch_add_explicit((_Atomic uint32_t *)at, (uint32_t)post->value, memory_order_acq_rel);
    }
}

static void scatter(const message *m, const char *payload, char *into, ptrdiff_t pitch)
{
    for (uint64_t row = 0; row < m->rows; row++)
        memcpy(into + (ptrdiff_t)row * pitch, payload + row * m->row_bytes, m->row_bytes);
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
    if (!a->placed && m->rows && m->row_bytes) {
        into = run->place(run->context, m->early.what, m->rows, m->row_bytes, &pitch);
        if (!into) {
            lose(net, m->from, "it sent a message that cannot be");
            return;
        }
        scatter(m, a->payload, into, pitch);
    }
    run->landed(run->context, m->early.what);
}

static void hold(weft_net *net, inbound *a)
{
    a->next = NULL;
    *net->held_end = a;
    net->held_end = &a->next;
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
            hooks->note(hooks->context, a->head.from, a->payload, a->head.row_bytes);
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
    free(a);
}

/* Where the payload of a message belongs, if that is known now and it is one piece there. */
static char *place_of(weft_net *net, const message *m, size_t bytes)
{
    const weft_net_run *run;
    ptrdiff_t pitch = 0;
    char *into;

    if (m->kind == KIND_PUT)
        return is_one_piece(m) && bytes ? locate(net, m, m->slot, m->offset, 0) : NULL;
    run = m->kind == KIND_EARLY && bytes ? run_for(net, m) : NULL;
    if (!run || !is_of(run, m))
        return NULL;
    into = run->place(run->context, m->early.what, m->rows, m->row_bytes, &pitch);
    return m->rows == 1 || (uint64_t)pitch == m->row_bytes ? into : NULL;
}

/* Takes a message in; NULL: it is not for us. */
static void *accept_message(weft_net *net, const message *m, size_t bytes, void **token)
{
    inbound *a, **link;
    char *into;

    if (!is_sound(net, m, bytes)) {
        lose(net, m->from, "it sent a message that cannot be");
        return NULL;
    }
    for (link = &net->peers[m->from].waiting; *link && (*link)->head.number < m->number;
         link = &(*link)->next)
        ;
    if (*link && (*link)->head.number == m->number)
        return NULL;
    into = place_of(net, m, bytes);
    a = malloc(sizeof(*a) + (into ? 0 : bytes));
    if (!a) {
        lose(net, m->from, "this rank has no memory for its messages");
        return NULL;
    }
    *a = (inbound){.next = *link, .net = net, .head = *m, .placed = into != NULL};
    *link = a;
    *token = a;
    return into ? into : a->payload;
}

static void on_landed(void *token, bool whole)
{
    inbound *a = token;
    weft_net *net = a->net;
    peer *p = &net->peers[a->head.from];

    if (!whole) /* its turn never comes */
        lose(net, a->head.from, "a message broke off");
    if (whole && a->head.kind == KIND_PUT && !a->placed && a->head.rows && a->head.row_bytes)
        scatter(&a->head, a->payload, locate(net, &a->head, a->head.slot, a->head.offset, 0), a->head.pitch);
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
    void *token, *into = accept_message(net, m, bytes, &token);

    if (!into)
        return;
    memcpy(into, payload, bytes);
    on_landed(token, true);
}

static void *on_place(void *context, const void *header, size_t header_bytes, size_t bytes, void **token)
{
    weft_net *net = context;
    message m, first;

    if (header_bytes < sizeof(m))
        return NULL;
    memcpy(&m, header, sizeof(m));
    if (!is_ours(net, &m))
        return NULL;
    atomic_store_explicit(&net->peers[m.from].heard, weft_clock_ns(), memory_order_relaxed);
    if (header_bytes > sizeof(m)) {
        size_t rest = header_bytes - sizeof(m);

        if (rest >= sizeof(first))
            memcpy(&first, (const char *)header + sizeof(m), sizeof(first));
        if (rest < sizeof(first) || first.key != m.key || first.from != m.from) {
            lose(net, m.from, "it sent a message that cannot be");
            return NULL;
        }
        take_whole(net, &first, (const char *)header + sizeof(m) + sizeof(first), rest - sizeof(first));
    }
    return accept_message(net, &m, bytes, token);
}

/* ---- sending -------------------------------------------------------------------------------------- */

static void on_sent(void *argument, bool whole)
{
    departure *d = argument;

    (void)whole; /* a peer that is lost is told by the engine */
    if (d->finished)
        weft_signal_post(d->finished, 1);
    if (d->whole && --d->whole->left == 0) {
        weft_signal_post(d->whole->finished, 1);
        free(d->whole);
    }
    free(d);
}

/* Under the lock. */
static void depart(weft_net *net, int to, departure *d, const void *data, size_t bytes)
{
    peer *p = &net->peers[to];

    if (net->silent || atomic_load_explicit(&p->state, memory_order_relaxed) != PEER_WELL) {
        on_sent(d, false);
        return;
    }
    d->head.key = net->world.key;
    d->head.from = net->world.rank;
    if (d->before) {
        message *first = (message *)(void *)d->payload;

        first->key = net->world.key;
        first->from = net->world.rank;
        first->number = p->sent++;
    }
    d->head.number = p->sent++;
    atomic_store_explicit(&p->spoken, weft_clock_ns(), memory_order_relaxed);
    net->engine->send(net->handle, to, &d->head, sizeof(d->head) + d->before, data, bytes, on_sent, d);
}

/* In which slot an address lies, the receiver's or this rank's own, and its name there. An address of neither
 * is refused by the receiver. */
static int slot_of(const weft_net *net, int to, const void *address, uint64_t *name)
{
    const weft_net_hooks *hooks = &net->world.hooks;

    *name = UINT64_MAX;
    if (hooks->name(hooks->context, to, address, name))
        return to;
    hooks->name(hooks->context, net->world.rank, address, name);
    return net->world.rank;
}

/* Without memory for a message the peer can only be given up: it would wait for ever. */
static departure *new_departure(weft_net *net, int to, size_t payload)
{
    departure *d = malloc(sizeof(*d) + payload);

    if (!d) {
        pthread_mutex_lock(&net->lock);
        lose(net, to, "this rank has no memory for a message to it");
        pthread_mutex_unlock(&net->lock);
        return NULL;
    }
    d->head = (message){0};
    d->finished = NULL;
    d->whole = NULL;
    d->before = 0;
    return d;
}

static void write_put(const weft_net *net, int to, const weft_net_put *put, message *m)
{
    m->kind = KIND_PUT;
    m->effect = (uint16_t)put->effect;
    m->rows = put->rows;
    m->row_bytes = put->row_bytes;
    m->pitch = put->into_pitch;
    if (put->rows * put->row_bytes > 0)
        m->slot = slot_of(net, to, put->into, &m->offset);
    m->post_count = (uint32_t)put->post_count;
    for (int i = 0; i < put->post_count; i++) {
        m->posts[i].value = put->posts[i].value;
        m->posts[i].marks = i < put->mark_count;
        m->posts[i].slot = slot_of(net, to, put->posts[i].at, &m->posts[i].offset);
    }
}

static void gather(char *into, const void *from, size_t rows, size_t row_bytes, ptrdiff_t pitch)
{
    for (size_t row = 0; row < rows; row++)
        memcpy(into + row * row_bytes, (const char *)from + (ptrdiff_t)row * pitch, row_bytes);
}

/* One run of bytes on both sides leaves in pieces, the last of which posts. */
static void send_pieces(weft_net *net, int to, const weft_net_put *put, size_t piece, weft_signal *finished)
{
    size_t bytes = put->rows * put->row_bytes;
    journey *whole = malloc(sizeof(*whole));

    if (whole)
        *whole = (journey){1, finished};
    for (size_t at = 0; at < bytes; at += piece) {
        weft_net_put part = *put;
        departure *d = whole ? new_departure(net, to, 0) : NULL;

        part.into = (char *)put->into + at;
        part.from = (const char *)put->from + at;
        part.rows = 1;
        part.row_bytes = bytes - at < piece ? bytes - at : piece;
        part.post_count = bytes - at <= piece ? put->post_count : 0;
        pthread_mutex_lock(&net->lock);
        if (d) {
            write_put(net, to, &part, &d->head);
            d->whole = whole;
            whole->left++;
            depart(net, to, d, part.from, part.row_bytes);
        } else {
            lose(net, to, "this rank has no memory for a message to it");
        }
        pthread_mutex_unlock(&net->lock);
    }
    pthread_mutex_lock(&net->lock);
    if (!whole || --whole->left == 0) {
        weft_signal_post(finished, 1);
        free(whole);
    }
    pthread_mutex_unlock(&net->lock);
}

void weft_net_send(weft_net *net, int to, const weft_net_put *put, weft_signal *finished)
{
    size_t bytes = put->rows * put->row_bytes, piece = net->engine->piece(net->handle);
    bool dense = put->rows <= 1 || (size_t)put->from_pitch == put->row_bytes;
    bool copied = bytes > 0 && (!finished || !dense);
    departure *d;

    if (finished && dense && bytes > piece && (put->rows <= 1 || (size_t)put->into_pitch == put->row_bytes)) {
        send_pieces(net, to, put, piece, finished);
        return;
    }
    d = new_departure(net, to, copied ? bytes : 0);
    if (!d) {
        if (finished)
            weft_signal_post(finished, 1);
        return;
    }
    write_put(net, to, put, &d->head);
    d->finished = finished;
    if (copied)
        gather(d->payload, put->from, put->rows, put->row_bytes, put->from_pitch);
    pthread_mutex_lock(&net->lock);
    depart(net, to, d, copied ? d->payload : put->from, bytes);
    pthread_mutex_unlock(&net->lock);
}

static size_t bytes_ahead(const weft_net_put *before)
{
    return before ? sizeof(message) + before->row_bytes : 0;
}

static void write_before(const weft_net *net, int to, const weft_net_put *before, departure *d)
{
    message *first = (message *)(void *)d->payload;

    if (!before)
        return;
    *first = (message){0};
    write_put(net, to, before, first);
    memcpy(first + 1, before->from, before->row_bytes);
    d->before = bytes_ahead(before);
}

void weft_net_send_early(weft_net *net, int to, const weft_net_early *early, const weft_net_put *before,
                         weft_signal *finished)
{
    size_t bytes = early->rows * early->row_bytes;
    bool dense = early->rows <= 1 || (size_t)early->from_pitch == early->row_bytes;
    bool copied = bytes > 0 && (!finished || !dense);
    size_t ahead = bytes_ahead(before);
    departure *d = new_departure(net, to, ahead + (copied ? bytes : 0));

    if (!d) {
        if (finished)
            weft_signal_post(finished, 1);
        return;
    }
    write_before(net, to, before, d);
    d->head.kind = KIND_EARLY;
    d->head.rows = early->rows;
    d->head.row_bytes = early->row_bytes;
    d->head.early.call = early->call;
    memcpy(d->head.early.what, early->what, sizeof(early->what));
    d->finished = finished;
    if (copied)
        gather(d->payload + ahead, early->from, early->rows, early->row_bytes, early->from_pitch);
    pthread_mutex_lock(&net->lock);
    depart(net, to, d, copied ? d->payload + ahead : early->from, bytes);
    pthread_mutex_unlock(&net->lock);
}

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
        free(a);
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
    pthread_mutex_unlock(&net->lock);
}

void weft_net_drop_early(weft_net *net, uint64_t channel)
{
    pthread_mutex_lock(&net->lock);
    release_held(net, channel, UINT64_MAX, NULL);
    pthread_mutex_unlock(&net->lock);
}

void weft_net_tell(weft_net *net, int to, const void *data, size_t bytes)
{
    departure *d = new_departure(net, to, bytes);

    if (!d)
        return;
    d->head.kind = KIND_NOTE;
    d->head.rows = 1;
    d->head.row_bytes = bytes;
    memcpy(d->payload, data, bytes);
    pthread_mutex_lock(&net->lock);
    depart(net, to, d, d->payload, bytes);
    pthread_mutex_unlock(&net->lock);
}

/* ---- progress ------------------------------------------------------------------------------------- */

/* Under the lock. */
static void send_plain(weft_net *net, int to, uint16_t kind)
{
    departure *d = malloc(sizeof(*d));

    if (!d) /* the next beat may find some */
        return;
    d->head = (message){.kind = kind};
    d->finished = NULL;
    d->whole = NULL;
    d->before = 0;
    depart(net, to, d, NULL, 0);
}

/* Beats to those who have heard nothing for a while, and who has been silent too long. */
static void look_at_peers(weft_net *net, int64_t now)
{
    char why[96];

    for (int number = 0; number < net->size; number++) {
        peer *p = &net->peers[number];

        if (atomic_load_explicit(&p->state, memory_order_relaxed) != PEER_WELL)
            continue;
        if (now - atomic_load_explicit(&p->spoken, memory_order_relaxed) >= BEAT_NS)
            send_plain(net, number, KIND_BEAT);
        if (now - atomic_load_explicit(&p->heard, memory_order_relaxed) >= net->world.silence_ns) {
            snprintf(why, sizeof(why), "nothing has come from it for %.1f s",
                     (double)net->world.silence_ns * 1e-9);
            lose(net, number, why);
        }
    }
}

static bool is_helped(const weft_net *net)
{
    /* Partners: weft_net_poll and weft_net_rest. */
    int64_t polled = atomic_load_explicit(&net->polled, memory_order_relaxed);

    return polled && weft_clock_ns() - polled < HELPED_NS;
}

/* Progress until there is none, then sleep until the engine has some. While a waiter makes progress the
 * thread stands back: two who take turns would be slower than one. */
static void *work(void *argument)
{
    weft_net *net = argument;
    int64_t next_look = 0;

    while (!atomic_load_explicit(&net->stop, memory_order_relaxed)) {
        struct pollfd fds[2] = {{.fd = net->engine->descriptor(net->handle), .events = POLLIN},
                                {.fd = net->wake, .events = POLLIN}};
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
        if (is_helped(net)) {
            nanosleep(&(struct timespec){0, STAND_BACK_NS}, NULL);
            continue;
        }
        pthread_mutex_lock(&net->lock);
        while (net->engine->progress(net->handle))
            ;
        idle = net->engine->arm(net->handle);
        pthread_mutex_unlock(&net->lock);
        if (idle)
            poll(fds, 2, LOOK_NS / 1000000);
    }
    return NULL;
}

void weft_net_poll(weft_net *net)
{
    if (pthread_mutex_trylock(&net->lock) != 0)
        return;
    for (int turn = 0; turn < TURNS && net->engine->progress(net->handle); turn++)
        ;
    pthread_mutex_unlock(&net->lock);
    atomic_store_explicit(&net->polled, weft_clock_ns(), memory_order_relaxed);
}

void weft_net_rest(weft_net *net)
{
    atomic_store_explicit(&net->polled, 0, memory_order_relaxed);
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

weft_status weft_net_open(int size, weft_net **net_out, weft_error_text *error)
{
    weft_net *net = calloc(1, sizeof(*net));
    weft_engine_events events = {.context = net, .place = on_place, .landed = on_landed, .lost = on_lost};
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
        net->peers[number].heard = now;
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
    uint64_t one = 1;

    if (!net->running)
        return;
    atomic_store_explicit(&net->stop, true, memory_order_relaxed);
    if (write(net->wake, &one, sizeof(one)) < 0) /* then the thread looks within LOOK_NS */
        (void)one;
    pthread_join(net->thread, NULL);
    net->running = false;
}

void weft_net_goodbye(weft_net *net)
{
    stop_thread(net);
    pthread_mutex_lock(&net->lock);
    for (int number = 0; number < net->size; number++)
        send_plain(net, number, KIND_GOODBYE);
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
        send_plain(net, number, KIND_GOODBYE);
    net->world.hooks.note = NULL; /* the world is about to go; its memory goes last */
    net->world.hooks.gone = NULL;
    net->engine->close(net->handle, begun ? LINGER_NS : 0);
    for (int number = 0; number < net->size; number++)
        for (inbound *a = net->peers[number].waiting, *next; a; a = next) {
            next = a->next;
            free(a);
        }
    for (inbound *a = net->held, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    close(net->wake);
    pthread_mutex_destroy(&net->lock);
    free(net->address);
    free(net->peers);
    free(net);
}
