/*
 * Messages over the connections of tcp.c.
 *
 * A message is a frame (how long its header and its payload are), the header and the payload, written by one
 * call. The receiver reads into a small buffer; once it has the header it knows the place of the payload, and
 * reads what has not come yet straight into it. Messages of one peer do not overtake one another here.
 *
 * A large payload is lent: its pages go to the connection through a pipe, without being copied. They may be
 * read there, on this host or another, until the receiver says that it has read them; then it was sent.
 */
#include "net/tcp_peer.h"

#include "core/round.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    HEADER_MAX = 4 << 10,
    FEW_BYTES = 8 << 10,    /* are written in one piece, which is quicker */
    WRITE_MAX = 1 << 20,    /* by one call: between two, what has come is read while caches hold it */
    LEND_BYTES = 256 << 10, /* from here on, copying costs more than being told */
    PIPE_BYTES = 1 << 20,   /* more is not for everybody */
};

/* ---- sending --------------------------------------------------------------------------------------- */

/* The bytes of a message from `gone` on, at most WRITE_MAX of the payload, or without it; returns how many
 * parts. */
static int list_rest(const outgoing *o, bool without, struct iovec parts[3], size_t *bytes)
{
    const void *at[3] = {&o->head, o->header, o->data};
    size_t size[3] = {sizeof(o->head), o->head.header_bytes, o->head.bytes}, skip = o->gone;
    int count = 0;

    *bytes = 0;
    for (int i = 0; i < (without ? 2 : 3); i++) {
        size_t skipped = weft_min_bytes(skip, size[i]), rest = size[i] - skipped;

        skip -= skipped;
        if (rest > WRITE_MAX)
            rest = WRITE_MAX;
        if (rest)
            parts[count++] = (struct iovec){(char *)(uintptr_t)at[i] + skipped, rest};
        *bytes += rest;
    }
    return count;
}

static ssize_t write_parts(int fd, struct iovec *parts, int count, size_t bytes, int more)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    char few[FEW_BYTES];

    if (bytes > sizeof(few))
        return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL | more);
    for (int i = 0, at = 0; i < count; at += (int)parts[i++].iov_len)
        memcpy(few + at, parts[i].iov_base, parts[i].iov_len);
    return send(fd, few, bytes, MSG_DONTWAIT | MSG_NOSIGNAL | more);
}

static bool has_pipe(tcp_peer *p)
{
    if (p->pipe[0] >= 0)
        return true;
    if (p->copies || pipe2(p->pipe, O_NONBLOCK | O_CLOEXEC) != 0) {
        p->copies = true;
        return false;
    }
    fcntl(p->pipe[1], F_SETPIPE_SZ, (int)PIPE_BYTES); /* else it is smaller */
    return true;
}

/* A connection that has ended sends a signal, which the program is not to see; one that ends meanwhile does
 * so although something has gone. */
static ssize_t splice_quietly(const tcp_peer *p, bool more)
{
    sigset_t broken, before, pending;
    bool was_pending;
    ssize_t gone;
    int why;

    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    was_pending = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    gone = splice(p->pipe[0], NULL, p->fd, NULL, p->piped, SPLICE_F_NONBLOCK | (more ? SPLICE_F_MORE : 0));
    why = errno;
    if (!was_pending)
        sigtimedwait(&broken, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return gone;
}

/* Lends pages of the payload, from `gone` on. What the system does not want to lend is written. */
static ssize_t lend_some(tcp_peer *p, const outgoing *o)
{
    size_t ahead = sizeof(o->head) + o->head.header_bytes, rest = o->head.bytes - (o->gone - ahead);
    struct iovec part = {(char *)(uintptr_t)o->data + (o->gone - ahead), weft_min_bytes(rest, PIPE_BYTES)};
    ssize_t piped;

    if (!p->piped && has_pipe(p)) {
        piped = vmsplice(p->pipe[1], &part, 1, SPLICE_F_NONBLOCK);
        if (piped > 0)
            p->piped = (size_t)piped;
        else if (errno != EINTR && errno != EAGAIN)
            p->copies = true;
    }
    if (p->piped)
        return splice_quietly(p, p->piped < rest);
    return write_parts(p->fd, &part, 1, part.iov_len, 0);
}

static ssize_t write_rest(tcp_peer *p, const outgoing *o)
{
    bool lent = o->head.kind == FRAME_LENT;
    struct iovec parts[3];
    size_t bytes;
    int count = list_rest(o, lent, parts, &bytes);
    ssize_t gone;

    if (count)
        return write_parts(p->fd, parts, count, bytes, lent ? MSG_MORE : 0);
    gone = lend_some(p, o);
    if (gone > 0 && p->piped)
        p->piped -= (size_t)gone;
    return gone;
}

static bool has_left(const outgoing *o)
{
    return o->gone == sizeof(o->head) + o->head.header_bytes + o->head.bytes;
}

/* Writes what the connection takes now. Whether the message has left. */
static bool write_some(tcp_peer *p, outgoing *o)
{
    ssize_t gone;

    do
        gone = write_rest(p, o);
    while (gone < 0 && errno == EINTR);
    if (gone < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) {
        weft_tcp_lose(p, strerror(errno));
        return false;
    }
    if (gone > 0)
        o->gone += (size_t)gone;
    return has_left(o);
}

static void append(outgoing *o, outgoing ***last)
{
    o->next = NULL;
    **last = o;
    *last = &o->next;
}

static outgoing *take_first(outgoing **first, outgoing ***last)
{
    outgoing *o = *first;

    *first = o->next;
    if (!*first)
        *last = first;
    return o;
}

static void await_turn(tcp_peer *p, outgoing *o)
{
    append(o, &p->last);
    p->engine->waiting++;
    weft_tcp_watch_writes(p); /* whoever sleeps on the descriptor is to know */
}

/* At once, or when its turn comes. */
static void send_message(tcp_peer *p, outgoing *now)
{
    bool lent = now->head.kind == FRAME_LENT;
    outgoing *o;

    if (p->state == WELL && !p->first && write_some(p, now) && !lent) {
        now->sent(now->argument, true);
        return;
    }
    o = p->state == NONE || p->state == LOST ? NULL : malloc(sizeof(*o));
    if (!o) {
        if (p->state != NONE)
            weft_tcp_lose(p, "this rank has no memory for a message to it");
        now->sent(now->argument, false);
        return;
    }
    *o = *now;
    if (lent && has_left(o)) {
        append(o, &p->last_lent);
        return;
    }
    await_turn(p, o);
}

void weft_tcp_send(void *handle, int number, const void *header, size_t header_bytes, const void *data,
                   size_t bytes, weft_engine_sent sent, void *argument)
{
    tcp_peer *p = &((tcp_engine *)handle)->peers[number];
    outgoing now = {.head = {.header_bytes = header_bytes,
                             .kind = bytes >= LEND_BYTES && !p->copies ? FRAME_LENT : FRAME_MESSAGE,
                             .bytes = bytes},
                    .header = header,
                    .data = data,
                    .sent = sent,
                    .argument = argument};

    send_message(p, &now);
}

static void nobody_asked(void *argument, bool whole)
{
    (void)argument;
    (void)whole;
}

bool weft_tcp_send_now(void *handle, int number, const void *header, size_t header_bytes, const void *data,
                       size_t bytes)
{
    tcp_peer *p = &((tcp_engine *)handle)->peers[number];
    outgoing now = {.head = {.header_bytes = header_bytes, .kind = FRAME_MESSAGE, .bytes = bytes},
                    .header = header,
                    .data = data,
                    .sent = nobody_asked};
    outgoing *o;
    char *kept;

    if (p->state != WELL || p->first || bytes >= LEND_BYTES)
        return false;
    if (write_some(p, &now) || now.gone == 0)
        return now.gone > 0;
    o = malloc(sizeof(*o) + header_bytes + bytes);
    if (!o) {
        weft_tcp_lose(p, "this rank has no memory for a message to it");
        return true;
    }
    *o = now;
    kept = (char *)(o + 1);
    o->header = memcpy(kept, header, header_bytes);
    if (bytes)
        o->data = memcpy(kept + header_bytes, data, bytes);
    await_turn(p, o);
    return true;
}

bool weft_tcp_flush(tcp_peer *p)
{
    outgoing *o = p->first;
    size_t before;
    bool left;

    if (!o)
        return false;
    before = o->gone;
    left = write_some(p, o);
    if (p->state != WELL) /* it is gone, and all that waited */
        return false;
    if (!left)
        return o->gone > before;
    take_first(&p->first, &p->last);
    p->engine->waiting--;
    if (o->head.kind == FRAME_LENT) {
        append(o, &p->last_lent);
        return true;
    }
    o->sent(o->argument, true);
    free(o);
    return true;
}

/* ---- receiving ------------------------------------------------------------------------------------- */

/* Tells the peer that what it lent has been read. */
static void give_back(tcp_peer *p)
{
    outgoing told = {.head = {.kind = FRAME_READ}, .sent = nobody_asked};

    p->borrowed = false;
    send_message(p, &told);
}

static void take_back(tcp_peer *p)
{
    outgoing *o;

    if (!p->lent) {
        weft_tcp_lose(p, "it sent a message that cannot be");
        return;
    }
    o = take_first(&p->lent, &p->last_lent);
    o->sent(o->argument, true);
    free(o);
}

/* Begins the message at `begin` if its header is there. */
static bool begin_message(tcp_peer *p)
{
    const weft_engine_events *events = &p->engine->events;
    size_t have = p->end - p->begin;
    const char *at = p->buffer + p->begin;
    frame head;

    if (have < sizeof(head))
        return false;
    memcpy(&head, at, sizeof(head));
    if (head.header_bytes > HEADER_MAX) {
        weft_tcp_lose(p, "it sent a message that cannot be");
        return false;
    }
    if (have - sizeof(head) < head.header_bytes)
        return false;
    p->begin += sizeof(head) + head.header_bytes;
    if (head.kind == FRAME_READ) {
        take_back(p);
        return true;
    }
    p->borrowed = head.kind == FRAME_LENT;
    p->into =
        events->place(events->context, at + sizeof(head), head.header_bytes, head.bytes, false, &p->token);
    p->wanted = p->into != NULL;
    p->left = head.bytes;
    if (!p->left && p->wanted)
        events->landed(p->token, true);
    return true;
}

static void take_payload(tcp_peer *p, size_t bytes)
{
    p->left -= bytes;
    if (p->into)
        p->into += bytes;
    if (p->left)
        return;
    if (p->wanted)
        p->engine->events.landed(p->token, true);
    if (p->borrowed)
        give_back(p);
}

/* What has been read: whole messages, then the beginning of one. */
static void understand(tcp_peer *p)
{
    while (p->state == WELL) {
        size_t have = p->end - p->begin, bytes = weft_min_bytes(have, p->left);

        if (!p->left) {
            if (!begin_message(p))
                break;
            continue;
        }
        if (!bytes)
            break;
        if (p->into)
            memcpy(p->into, p->buffer + p->begin, bytes);
        p->begin += bytes;
        take_payload(p, bytes);
    }
    memmove(p->buffer, p->buffer + p->begin, p->end - p->begin);
    p->end -= p->begin;
    p->begin = 0;
}

/* One read. Whether it has taken all that it could. */
static bool read_once(tcp_peer *p)
{
    struct iovec parts[2];
    size_t straight = p->left && p->into ? p->left : 0, room = BUFFER_BYTES - p->end;
    int count = 0;
    ssize_t got;

    if (straight)
        parts[count++] = (struct iovec){p->into, straight};
    parts[count++] = (struct iovec){p->buffer + p->end, room};
    do
        got = straight ? readv(p->fd, parts, count) : recv(p->fd, p->buffer + p->end, room, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return false;
    if (got <= 0) {
        weft_tcp_lose(p, got < 0 ? strerror(errno) : "its connection has ended");
        return false;
    }
    if (straight) {
        size_t bytes = weft_min_bytes((size_t)got, straight);

        p->end += (size_t)got - bytes;
        take_payload(p, bytes);
    } else {
        p->end += (size_t)got;
    }
    understand(p);
    return (size_t)got == straight + room;
}

bool weft_tcp_read(tcp_peer *p)
{
    bool full = read_once(p);

    if (full && p->state == WELL && p->left)
        full = read_once(p);
    return p->state == WELL && (p->left || full);
}

bool weft_tcp_serve(tcp_peer *p)
{
    bool more = weft_tcp_flush(p);

    return (p->state == WELL && weft_tcp_read(p)) || more;
}
