/*
 * TCP behind the engine table: one connection between two peers, the kernel's own calls, nothing to install.
 *
 * A message is a frame (how long its header and its payload are), the header and the payload, written by one
 * call. The receiver reads into a small buffer; once it has the header it knows the place of the payload, and
 * reads what has not come yet straight into it. Messages of one peer do not overtake one another here.
 *
 * A large payload is lent: its pages go to the connection through a pipe, without being copied. They may be
 * read there, on this host or another, until the receiver says that it has read them; then it was sent.
 *
 * Everyone listens until all its peers are connected, and not after. Of two peers the one with the lesser id
 * connects. What an address says (an id, a proof, where to connect) goes through the meeting of the ranks
 * alone: whoever connects has to show the proof of the one it wants, and gets that of its own back. So a
 * stranger, or a neighbour's port at the same address, is told apart by the first bytes.
 */
#include "net/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/clock.h"
#include "net/secret.h"

enum {
    BUFFER_BYTES = 8 << 10, /* more of a payload than this is worth a call that reads it in its place */
    HEADER_MAX = 4 << 10,
    FEW_BYTES = 8 << 10,    /* are written in one piece, which is quicker */
    WRITE_MAX = 1 << 20,    /* by one call: between two, what has come is read while caches hold it */
    LEND_BYTES = 256 << 10, /* from here on, copying costs more than being told */
    PIPE_BYTES = 1 << 20,   /* more is not for everybody */
    CANDIDATES = 16,        /* addresses of a host */
    STRANGERS = 64,         /* who have connected and not yet said who they are */
    DIRECT = 1,             /* so few connections are read without asking which have something */
    EVENTS = 16,
    NEAR_US = 2000,         /* the round trip between hosts of one room, when it is new */
    ATTEMPT_NS = 700000000, /* for a connection to be made; then the next address is tried, all in turn */
    GREETING_NS = 2000000000,
};

static const uint64_t mark = 0x7765667431u;

typedef struct candidate {
    unsigned char family, prefix; /* AF_INET or AF_INET6; how many bits name the network */
    unsigned char at[16];
} candidate;

typedef struct tcp_address {
    uint64_t mark;
    unsigned char id[16], proof[16];
    uint16_t port, count;
    candidate candidates[CANDIDATES];
} tcp_address;

typedef struct greeting {
    uint64_t mark;
    unsigned char id[16], proof[16]; /* the sender's; the receiver's */
} greeting;

typedef enum frame_kind {
    FRAME_MESSAGE,
    FRAME_LENT, /* a message; the receiver tells when it has read it */
    FRAME_READ, /* the first lent message that it has not told of yet */
} frame_kind;

typedef struct frame {
    uint32_t header_bytes, kind;
    uint64_t bytes;
} frame;

/* A message that has not left whole, or has been lent and not been read. */
typedef struct outgoing {
    struct outgoing *next;
    frame head;
    const void *header, *data;
    size_t gone; /* bytes, from the frame on */
    weft_engine_sent sent;
    void *argument;
} outgoing;

typedef enum peer_state { NONE, AWAITED, CONNECTING, GREETED, WELL, LOST } peer_state;

typedef struct tcp_peer {
    struct tcp_engine *engine;
    int number, fd;
    peer_state state;
    bool watched; /* until it can be written to */

    tcp_address *address; /* until it is connected */
    int tried;            /* candidates */
    bool silent;          /* one of them has not answered: the peer may be slow */
    int64_t until;        /* for this attempt */

    outgoing *first, **last;
    outgoing *lent, **last_lent; /* have left */
    int pipe[2];                 /* made for the first; -1: there is none */
    size_t piped;                /* bytes of the first message that are in it */
    bool copies;                 /* the system lends nothing */

    char *buffer;
    size_t begin, end; /* what has been read and not been understood */
    size_t left;       /* of a payload that comes */
    bool wanted, borrowed;
    char *into;
    void *token;
} tcp_peer;

typedef struct stranger {
    int fd;
    int64_t until;
} stranger;

typedef struct tcp_engine {
    weft_engine_events events;
    tcp_address own;
    int epoll, listener;
    int unmet;   /* peers that are not connected yet */
    int waiting; /* messages that have not left */
    bool closing;
    int stranger_count;
    stranger strangers[STRANGERS];
    int live_count;
    tcp_peer **live; /* those that are connected */
    int peer_count;
    tcp_peer peers[];
} tcp_engine;

/* ---- sockets --------------------------------------------------------------------------------------- */

static void watch(const tcp_engine *engine, int how, int fd, uint32_t events, void *what)
{
    struct epoll_event event = {.events = events, .data.ptr = what};

    epoll_ctl(engine->epoll, how, fd, &event); /* what is not watched is seen at the next look at the clock */
}

/* Until all that waits has left. */
static void watch_writes(tcp_peer *p)
{
    bool wanted = p->first != NULL;

    if (p->state == WELL && wanted != p->watched) {
        watch(p->engine, EPOLL_CTL_MOD, p->fd, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN, p);
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

static void meet_one(tcp_engine *engine)
{
    if (--engine->unmet > 0 || engine->listener < 0)
        return;
    close(engine->listener);
    engine->listener = -1;
    while (engine->stranger_count > 0)
        close(engine->strangers[--engine->stranger_count].fd);
}

static void lose(tcp_peer *p, const char *why)
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
        meet_one(engine);
    if (!engine->closing)
        engine->events.lost(engine->events.context, p->number, why);
}

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
        size_t skipped = skip < size[i] ? skip : size[i], rest = size[i] - skipped;

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

/* A connection that has ended may send a signal, which the program is not to see. */
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
    if (gone < 0 && why == EPIPE && !was_pending)
        sigtimedwait(&broken, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return gone;
}

/* Lends pages of the payload, from `gone` on. What the system does not want to lend is written. */
static ssize_t lend_some(tcp_peer *p, const outgoing *o)
{
    size_t ahead = sizeof(o->head) + o->head.header_bytes, rest = o->head.bytes - (o->gone - ahead);
    struct iovec part = {(char *)(uintptr_t)o->data + (o->gone - ahead),
                         rest < PIPE_BYTES ? rest : PIPE_BYTES};
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
        lose(p, strerror(errno));
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
            lose(p, "this rank has no memory for a message to it");
        now->sent(now->argument, false);
        return;
    }
    *o = *now;
    if (lent && has_left(o)) {
        append(o, &p->last_lent);
        return;
    }
    append(o, &p->last);
    p->engine->waiting++;
    watch_writes(p); /* whoever sleeps on the descriptor is to know */
}

static void tcp_send(void *handle, int number, const void *header, size_t header_bytes, const void *data,
                     size_t bytes, weft_engine_sent sent, void *argument)
{
    tcp_peer *p = &((tcp_engine *)handle)->peers[number];
    outgoing now = {.head = {.header_bytes = (uint32_t)header_bytes,
                             .kind = bytes >= LEND_BYTES && !p->copies ? FRAME_LENT : FRAME_MESSAGE,
                             .bytes = bytes},
                    .header = header,
                    .data = data,
                    .sent = sent,
                    .argument = argument};

    send_message(p, &now);
}

/* One write of those that wait. Whether more would go. */
static bool flush(tcp_peer *p)
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

static void nobody_asked(void *argument, bool whole)
{
    (void)argument;
    (void)whole;
}

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
        lose(p, "it sent a message that cannot be");
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
        lose(p, "it sent a message that cannot be");
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
    p->into = events->place(events->context, at + sizeof(head), head.header_bytes, head.bytes, &p->token);
    p->wanted = p->into != NULL;
    p->left = head.bytes;
    if (!p->left && p->wanted)
        events->landed(p->token, true);
    return true;
}

static void take_payload(tcp_peer *p, size_t bytes)
{
    p->left -= bytes;
    if (p->wanted)
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
        size_t have = p->end - p->begin, bytes = have < p->left ? have : p->left;

        if (!p->left) {
            if (!begin_message(p))
                break;
            continue;
        }
        if (!bytes)
            break;
        if (p->wanted)
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
    size_t straight = p->left && p->wanted ? p->left : 0, room = BUFFER_BYTES - p->end;
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
        lose(p, got < 0 ? strerror(errno) : "its connection has ended");
        return false;
    }
    if (straight) {
        size_t bytes = (size_t)got < straight ? (size_t)got : straight;

        p->end += (size_t)got - bytes;
        take_payload(p, bytes);
    } else {
        p->end += (size_t)got;
    }
    understand(p);
    return (size_t)got == straight + room;
}

/* What a buffer takes and, of a payload that has begun in it, the rest. Whether there may be more. */
static bool read_some(tcp_peer *p)
{
    bool full = read_once(p);

    if (full && p->state == WELL && p->left)
        full = read_once(p);
    return p->state == WELL && (p->left || full);
}

static bool serve(tcp_peer *p)
{
    bool more = flush(p);

    return (p->state == WELL && read_some(p)) || more;
}

/* ---- meeting --------------------------------------------------------------------------------------- */

static bool same_network(const candidate *theirs, const candidate *mine)
{
    int bits = mine->prefix;

    if (theirs->family != mine->family)
        return false;
    for (int i = 0; bits > 0; i++, bits -= 8) {
        unsigned char mask = bits >= 8 ? 0xff : (unsigned char)(0xff << (8 - bits));

        if ((theirs->at[i] ^ mine->at[i]) & mask)
            return false;
    }
    return true;
}

static bool is_loopback(const candidate *c)
{
    static const unsigned char six[16] = {[15] = 1};

    return c->family == AF_INET ? c->at[0] == 127 : memcmp(c->at, six, sizeof(six)) == 0;
}

/* In which order addresses are tried: those of a network that this host is in, others, this host's own. */
static int rank_of(const tcp_engine *engine, const candidate *c)
{
    if (is_loopback(c))
        return 2;
    for (int i = 0; i < engine->own.count; i++)
        if (same_network(c, &engine->own.candidates[i]))
            return 0;
    return 1;
}

static void order_candidates(const tcp_engine *engine, tcp_address *address)
{
    candidate sorted[CANDIDATES];
    int count = 0;

    for (int rank = 0; rank < 3; rank++)
        for (int i = 0; i < address->count; i++)
            if (rank_of(engine, &address->candidates[i]) == rank)
                sorted[count++] = address->candidates[i];
    memcpy(address->candidates, sorted, sizeof(sorted[0]) * (size_t)count);
}

static socklen_t write_name(const candidate *c, uint16_t port, struct sockaddr_storage *name)
{
    memset(name, 0, sizeof(*name));
    if (c->family == AF_INET6) {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)name;

        six->sin6_family = AF_INET6;
        six->sin6_port = port;
        memcpy(&six->sin6_addr, c->at, 16);
        return sizeof(*six);
    }
    ((struct sockaddr_in *)name)->sin_family = AF_INET;
    ((struct sockaddr_in *)name)->sin_port = port;
    memcpy(&((struct sockaddr_in *)name)->sin_addr, c->at, 4);
    return sizeof(struct sockaddr_in);
}

/* To the next address that can be tried; without one the peer is lost. */
static void attempt(tcp_peer *p)
{
    int why = ENETUNREACH;

    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
    if (p->tried == p->address->count && p->silent) { /* how long to wait is not known here */
        p->tried = 0;
        p->silent = false;
    }
    while (p->tried < p->address->count) {
        const candidate *c = &p->address->candidates[p->tried++];
        struct sockaddr_storage name;
        socklen_t bytes = write_name(c, p->address->port, &name);

        p->fd = socket(c->family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (p->fd >= 0 && (connect(p->fd, (struct sockaddr *)&name, bytes) == 0 || errno == EINPROGRESS)) {
            p->state = CONNECTING;
            p->until = weft_clock_ns() + ATTEMPT_NS;
            watch(p->engine, EPOLL_CTL_ADD, p->fd, EPOLLOUT, p);
            return;
        }
        why = errno;
        if (p->fd >= 0)
            close(p->fd);
        p->fd = -1;
    }
    lose(p, strerror(why));
}

static bool greet(const tcp_engine *engine, int fd, const tcp_address *whom)
{
    greeting hello = {.mark = mark};

    memcpy(hello.id, engine->own.id, sizeof(hello.id));
    memcpy(hello.proof, whom->proof, sizeof(hello.proof));
    return send(fd, &hello, sizeof(hello), MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof(hello);
}

/* BBR spreads what it sends over time, for the sake of long lines: between hosts of one room that takes a
 * tenth of the rate. Systems let every program choose reno instead. */
static void avoid_pacing(int fd)
{
    char name[16] = "";
    socklen_t bytes = sizeof(name);
    struct tcp_info info;

    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) != 0 || strncmp(name, "bbr", 3) != 0)
        return;
    bytes = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && info.tcpi_rtt < NEAR_US)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); /* else as it was */
}

static bool begin_connection(tcp_peer *p)
{
    tcp_engine *engine = p->engine;
    int one = 1;

    p->buffer = malloc(BUFFER_BYTES);
    if (!p->buffer) {
        lose(p, "this rank has no memory for its messages");
        return false;
    }
    setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    avoid_pacing(p->fd);
    p->state = WELL;
    free(p->address);
    p->address = NULL;
    engine->live[engine->live_count++] = p;
    meet_one(engine);
    return true;
}

/* 1: one that knows the proof of this side has greeted; 0: not yet; -1: somebody else. */
static int hear(const tcp_engine *engine, int fd, greeting *hello)
{
    ssize_t got = recv(fd, hello, sizeof(*hello), MSG_PEEK | MSG_DONTWAIT);

    if (got < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
    if (got < (ssize_t)sizeof(*hello))
        return got == 0 ? -1 : 0;
    recv(fd, hello, sizeof(*hello), MSG_DONTWAIT);
    return hello->mark == mark && memcmp(hello->proof, engine->own.proof, sizeof(hello->proof)) == 0 ? 1 : -1;
}

static bool advance(tcp_peer *p, int64_t now)
{
    tcp_engine *engine = p->engine;
    struct pollfd ready = {.fd = p->fd, .events = POLLOUT};
    greeting hello;
    int heard;

    if (p->state == CONNECTING && poll(&ready, 1, 0) > 0) {
        if ((ready.revents & (POLLERR | POLLHUP)) || !greet(engine, p->fd, p->address)) {
            attempt(p);
            return true;
        }
        p->state = GREETED;
        p->until = now + GREETING_NS;
        watch(engine, EPOLL_CTL_MOD, p->fd, EPOLLIN, p);
        return true;
    }
    if (p->state == GREETED) {
        heard = hear(engine, p->fd, &hello);
        if (heard > 0 && memcmp(hello.id, p->address->id, sizeof(hello.id)) == 0)
            return begin_connection(p);
        if (heard) { /* it may have waited too long for a greeting */
            p->silent = true;
            attempt(p);
            return true;
        }
    }
    if (now >= p->until) {
        p->silent = true;
        attempt(p);
    }
    return false;
}

/* Whoever gave this connection up for another has closed it behind its greeting. */
static bool is_open(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

static void receive_stranger(tcp_engine *engine, int fd, const greeting *hello)
{
    for (int number = 0; number < engine->peer_count; number++) {
        tcp_peer *p = &engine->peers[number];

        if (p->state != AWAITED || memcmp(p->address->id, hello->id, sizeof(hello->id)) != 0 || !is_open(fd))
            continue;
        p->fd = fd;
        watch(engine, EPOLL_CTL_MOD, fd, EPOLLIN, p);
        if (greet(engine, fd, p->address))
            begin_connection(p);
        else
            lose(p, "it broke off when it had connected");
        return;
    }
    close(fd);
}

static bool hear_strangers(tcp_engine *engine, int64_t now)
{
    bool some = false;

    for (int i = 0; i < engine->stranger_count; i++) {
        stranger s = engine->strangers[i];
        greeting hello;
        int heard = hear(engine, s.fd, &hello);

        if (!heard && now < s.until)
            continue;
        engine->strangers[i--] = engine->strangers[--engine->stranger_count];
        if (heard > 0)
            receive_stranger(engine, s.fd, &hello); /* the last one empties the list */
        else
            close(s.fd);
        some = true;
    }
    return some;
}

static bool let_in(tcp_engine *engine, int64_t now)
{
    int fd = engine->listener >= 0 && engine->stranger_count < STRANGERS
                 ? accept4(engine->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
                 : -1;

    if (fd < 0)
        return false;
    watch(engine, EPOLL_CTL_ADD, fd, EPOLLIN, NULL);
    engine->strangers[engine->stranger_count++] = (stranger){fd, now + GREETING_NS};
    return true;
}

static bool meet(tcp_engine *engine)
{
    int64_t now = weft_clock_ns();
    bool some = let_in(engine, now);

    some = hear_strangers(engine, now) || some;
    for (int number = 0; number < engine->peer_count; number++) {
        tcp_peer *p = &engine->peers[number];

        if (p->state == CONNECTING || p->state == GREETED)
            some = advance(p, now) || some;
    }
    return some;
}

/* ---- progress -------------------------------------------------------------------------------------- */

static bool serve_many(tcp_engine *engine)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(engine->epoll, events, EVENTS, 0);
    bool more = count == EVENTS;

    for (int i = 0; i < count; i++) {
        tcp_peer *p = events[i].data.ptr;

        if (p && p->state == WELL)
            more = read_some(p) || more;
    }
    for (int i = 0; engine->waiting && i < engine->live_count; i++)
        more = flush(engine->live[i]) || more;
    return more;
}

static bool tcp_progress(void *handle)
{
    tcp_engine *engine = handle;
    bool more = engine->unmet > 0 && meet(engine);

    if (engine->live_count > DIRECT)
        return serve_many(engine) || more;
    for (int i = engine->live_count - 1; i >= 0;
         i--) /* one that is lost makes room for one that was served */
        more = serve(engine->live[i]) || more;
    return more;
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
        watch_writes(engine->live[i]);
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

static weft_status tcp_connect(void *handle, int number, const void *address, weft_error_text *error)
{
    tcp_engine *engine = handle;
    tcp_peer *p = &engine->peers[number];

    p->address = malloc(sizeof(*p->address));
    if (!p->address)
        return weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for the connection to rank %d", number);
    memcpy(p->address, address, sizeof(*p->address));
    if (p->address->mark != mark || p->address->count > CANDIDATES)
        return weft_error_set(error, WEFT_ERR_SYSTEM, "rank %d has an address that cannot be", number);
    engine->unmet++;
    p->state = AWAITED;
    if (memcmp(engine->own.id, p->address->id, sizeof(engine->own.id)) > 0)
        return WEFT_OK;
    order_candidates(engine, p->address);
    attempt(p);
    return WEFT_OK;
}

static int prefix_of(const unsigned char *mask, int bytes)
{
    int bits = 0;

    while (bits < 8 * bytes && mask[bits / 8] & 0x80 >> bits % 8)
        bits++;
    return bits;
}

static bool take_interface(const struct ifaddrs *entry, candidate *c)
{
    static const unsigned char no_mask[16];
    const unsigned char *at, *mask = no_mask;

    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP))
        return false;
    *c = (candidate){.family = (unsigned char)entry->ifa_addr->sa_family};
    if (c->family == AF_INET) {
        at = (const unsigned char *)&((const struct sockaddr_in *)(void *)entry->ifa_addr)->sin_addr;
        if (entry->ifa_netmask)
            mask = (const unsigned char *)&((const struct sockaddr_in *)(void *)entry->ifa_netmask)->sin_addr;
    } else if (c->family == AF_INET6) {
        at = (const unsigned char *)&((const struct sockaddr_in6 *)(void *)entry->ifa_addr)->sin6_addr;
        if (at[0] == 0xfe && (at[1] & 0xc0) == 0x80) /* of one link: it says nothing without its name */
            return false;
        if (entry->ifa_netmask)
            mask =
                (const unsigned char *)&((const struct sockaddr_in6 *)(void *)entry->ifa_netmask)->sin6_addr;
    } else {
        return false;
    }
    memcpy(c->at, at, c->family == AF_INET ? 4 : 16);
    c->prefix = (unsigned char)prefix_of(mask, c->family == AF_INET ? 4 : 16);
    return true;
}

static bool list_interfaces(tcp_address *own)
{
    struct ifaddrs *all;

    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *entry = all; entry && own->count < CANDIDATES; entry = entry->ifa_next)
        if (take_interface(entry, &own->candidates[own->count]))
            own->count++;
    freeifaddrs(all);
    return true;
}

/* On all addresses of this host, at a port that the system chooses. */
static bool listen_anywhere(tcp_engine *engine)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_storage name;
    socklen_t bytes = sizeof(name);
    int off = 0, fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd >= 0)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (fd < 0 || bind(fd, (struct sockaddr *)&six, sizeof(six)) != 0) { /* a system without IPv6 */
        if (fd >= 0)
            close(fd);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&four, sizeof(four)) != 0) {
            close(fd);
            fd = -1;
        }
    }
    engine->listener = fd;
    if (fd < 0 || listen(fd, SOMAXCONN) != 0 || getsockname(fd, (struct sockaddr *)&name, &bytes) != 0)
        return false;
    engine->own.port = name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port
                                                  : ((struct sockaddr_in *)&name)->sin_port;
    watch(engine, EPOLL_CTL_ADD, fd, EPOLLIN, NULL);
    return true;
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
    engine->own.mark = mark;
    engine->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (engine->epoll < 0 || !weft_random(engine->own.id, sizeof(engine->own.id)) ||
        !weft_random(engine->own.proof, sizeof(engine->own.proof)) || !list_interfaces(&engine->own) ||
        !listen_anywhere(engine)) {
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
            lose(&engine->peers[number], "");
    free_engine(engine);
}

const weft_engine *weft_engine_tcp(void)
{
    static const weft_engine table = {
        .name = "TCP",
        .open = tcp_open,
        .address = tcp_address_of,
        .connect = tcp_connect,
        .send = tcp_send,
        .piece = tcp_piece,
        .progress = tcp_progress,
        .descriptor = tcp_descriptor,
        .arm = tcp_arm,
        .close = tcp_close,
    };

    return &table;
}
