/* Messages that leave, whole or in pieces. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "net/wire.h"

#include "core/round.h"

/* What leaves in pieces; under the lock. */
typedef struct journey {
    size_t left; /* pieces that have not arrived at the engine's hands */
    weft_signal *finished;
} journey;

/* A message that leaves. */
typedef struct departure {
    weft_signal *finished;
    journey *whole; /* it is a piece; NULL: it is all */
    message *first; /* travels with an early one, in `payload`; or NULL */
    size_t ahead;   /* bytes of that and of its own payload */
    message head;
    char payload[]; /* behind those */
} departure;

_Static_assert(sizeof(message) == offsetof(message, early) + sizeof(wire_early),
               "an early message has an end");

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
    d->head.from = (uint16_t)net->world.rank;
    if (d->first) {
        d->first->key = net->world.key;
        d->first->from = (uint16_t)net->world.rank;
        d->first->number = p->sent++;
    }
    d->head.number = p->sent++;
    p->spoken = true;
    net->engine->send(net->handle, to, &d->head, weft_message_bytes(&d->head) + d->ahead, data, bytes,
                      on_sent, d);
}

/* The name of an address in the slot in which it lies, the receiver's or this rank's own: whether it is the
 * latter. An address of neither is refused by the receiver. */
static bool is_own(const weft_net *net, int to, const void *address, uint64_t *name)
{
    const weft_net_hooks *hooks = &net->world.hooks;

    *name = UINT64_MAX;
    if (hooks->name(hooks->context, to, address, name))
        return false;
    hooks->name(hooks->context, net->world.rank, address, name);
    return true;
}

static departure *allocate(size_t payload)
{
    departure *d = malloc(sizeof(*d) + payload);

    if (!d)
        return NULL;
    d->head = (message){0};
    d->finished = NULL;
    d->whole = NULL;
    d->first = NULL;
    d->ahead = 0;
    return d;
}

/* Without memory for a message the peer can only be given up: it would wait for ever. */
static departure *new_departure(weft_net *net, int to, size_t payload)
{
    departure *d = allocate(payload);

    if (!d) {
        pthread_mutex_lock(&net->lock);
        weft_net_lose(net, to, "this rank has no memory for a message to it");
        pthread_mutex_unlock(&net->lock);
    }
    return d;
}

static void write_put(const weft_net *net, int to, const weft_net_put *put, message *m)
{
    unsigned own = 0;

    m->kind = KIND_PUT;
    m->effect = (uint8_t)put->effect;
    m->rows = put->rows;
    m->pitch = put->into_pitch;
    if (put->rows * put->row_bytes > 0)
        own = is_own(net, to, put->into, &m->offset);
    for (int i = 0; i < put->post_count; i++) {
        m->posts[i].value = put->posts[i].value;
        own |= (unsigned)is_own(net, to, put->posts[i].at, &m->posts[i].offset) << (1 + i);
    }
    m->post_count = (unsigned)put->post_count;
    m->marked = (1u << put->mark_count) - 1;
    m->own = own;
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
        part.row_bytes = weft_min_bytes(bytes - at, piece);
        part.post_count = bytes - at <= piece ? put->post_count : 0;
        pthread_mutex_lock(&net->lock);
        if (d) {
            write_put(net, to, &part, &d->head);
            d->whole = whole;
            whole->left++;
            depart(net, to, d, part.from, part.row_bytes);
        } else {
            weft_net_lose(net, to, "this rank has no memory for a message to it");
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

/* From where it lies, if the engine takes it before this returns. */
static bool send_now(weft_net *net, int to, const weft_net_put *put, size_t bytes)
{
    peer *p = &net->peers[to];
    message head = {.key = net->world.key, .from = (uint16_t)net->world.rank};
    bool gone;

    if (!net->engine->send_now)
        return false;
    write_put(net, to, put, &head);
    pthread_mutex_lock(&net->lock);
    head.number = p->sent;
    gone = !net->silent && atomic_load_explicit(&p->state, memory_order_relaxed) == PEER_WELL &&
           net->engine->send_now(net->handle, to, &head, weft_message_bytes(&head), put->from, bytes);
    if (gone) {
        p->sent++;
        p->spoken = true;
    }
    pthread_mutex_unlock(&net->lock);
    return gone;
}

void weft_net_send(weft_net *net, int to, const weft_net_put *put, weft_signal *finished)
{
    size_t bytes = put->rows * put->row_bytes, piece = net->engine->piece(net->handle);
    bool dense = put->rows <= 1 || (size_t)put->from_pitch == put->row_bytes;
    bool copied = bytes > 0 && (!finished || !dense);
    departure *d;

    if (!finished && dense && send_now(net, to, put, bytes))
        return;
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

/* At most. */
static size_t bytes_ahead(const weft_net_put *before)
{
    return before ? sizeof(message) + before->row_bytes : 0;
}

static void write_before(const weft_net *net, int to, const weft_net_put *before, departure *d)
{
    if (!before)
        return;
    d->first = (message *)(void *)d->payload;
    *d->first = (message){0};
    write_put(net, to, before, d->first);
    memcpy((char *)d->first + weft_message_bytes(d->first), before->from, before->row_bytes);
    d->ahead = weft_message_bytes(d->first) + before->row_bytes;
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
    d->head.early.call = early->call;
    memcpy(d->head.early.what, early->what, sizeof(early->what));
    d->finished = finished;
    if (copied)
        gather(d->payload + ahead, early->from, early->rows, early->row_bytes, early->from_pitch);
    pthread_mutex_lock(&net->lock);
    depart(net, to, d, copied ? d->payload + ahead : early->from, bytes);
    pthread_mutex_unlock(&net->lock);
}

void weft_net_tell(weft_net *net, int to, const void *data, size_t bytes)
{
    departure *d = new_departure(net, to, bytes);

    if (!d)
        return;
    d->head.kind = KIND_NOTE;
    d->head.rows = 1;
    memcpy(d->payload, data, bytes);
    pthread_mutex_lock(&net->lock);
    depart(net, to, d, d->payload, bytes);
    pthread_mutex_unlock(&net->lock);
}

void weft_net_send_plain(weft_net *net, int to, uint16_t kind)
{
    departure *d = allocate(0);

    if (!d) /* the next beat may find some */
        return;
    d->head.kind = kind;
    depart(net, to, d, NULL, 0);
}
