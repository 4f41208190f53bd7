/*
 * From addresses to connections. Everyone listens until all its peers are connected, and not after. Of two
 * peers the one with the lesser id connects. What an address says (an id, a proof, where to connect) goes
 * through the meeting of the ranks alone: whoever connects has to show the proof of the one it wants, and
 * gets that of its own back. So a stranger, or a neighbour's port at the same address, is told apart by the
 * first bytes.
 */
#include "net/tcp_peer.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "net/secret.h"

enum {
    NEAR_US = 2000,         /* the round trip between hosts of one room, when it is new */
    ATTEMPT_NS = 700000000, /* for a connection to be made; then the next address is tried, all in turn */
    GREETING_NS = 2000000000,
};

static const uint64_t mark = 0x7765667431u;

typedef struct greeting {
    uint64_t mark;
    unsigned char id[16], proof[16]; /* the sender's; the receiver's */
} greeting;

/* ---- where to connect ------------------------------------------------------------------------------ */

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

/* BBR spreads what it sends over time, for the sake of long lines. Between hosts of one room that takes a
 * tenth of the rate, and a small message may wait for hundreds of microseconds. Systems let every program
 * choose reno instead; but a connection that has begun with BBR is paced for ever, so one begins without. */
static void begin_unpaced(tcp_engine *engine, int fd)
{
    char name[sizeof(engine->paced)] = "";
    socklen_t bytes = sizeof(name) - 1;

    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0 && strncmp(name, "bbr", 3) == 0 &&
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0)
        memcpy(engine->paced, name, sizeof(name));
}

/* A long line gets what the system would have used. */
static void pace_if_far(const tcp_engine *engine, int fd)
{
    struct tcp_info info;
    socklen_t bytes = sizeof(info);

    if (engine->paced[0] && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
        info.tcpi_rtt >= NEAR_US)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, engine->paced, strlen(engine->paced)); /* else as it is */
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
        if (p->fd >= 0)
            begin_unpaced(p->engine, p->fd);
        if (p->fd >= 0 && (connect(p->fd, (struct sockaddr *)&name, bytes) == 0 || errno == EINPROGRESS)) {
            p->state = CONNECTING;
            p->until = weft_clock_ns() + ATTEMPT_NS;
            weft_tcp_watch(p->engine, EPOLL_CTL_ADD, p->fd, EPOLLOUT, p);
            return;
        }
        why = errno;
        if (p->fd >= 0)
            close(p->fd);
        p->fd = -1;
    }
    weft_tcp_lose(p, strerror(why));
}

static bool greet(const tcp_engine *engine, int fd, const tcp_address *whom)
{
    greeting hello = {.mark = mark};

    memcpy(hello.id, engine->own.id, sizeof(hello.id));
    memcpy(hello.proof, whom->proof, sizeof(hello.proof));
    return send(fd, &hello, sizeof(hello), MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof(hello);
}

static bool begin_connection(tcp_peer *p)
{
    tcp_engine *engine = p->engine;
    int one = 1;

    p->buffer = malloc(BUFFER_BYTES);
    if (!p->buffer) {
        weft_tcp_lose(p, "this rank has no memory for its messages");
        return false;
    }
    setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    pace_if_far(engine, p->fd);
    p->state = WELL;
    free(p->address);
    p->address = NULL;
    engine->live[engine->live_count++] = p;
    weft_tcp_met(engine);
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
        weft_tcp_watch(engine, EPOLL_CTL_MOD, p->fd, EPOLLIN, p);
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
        weft_tcp_watch(engine, EPOLL_CTL_MOD, fd, EPOLLIN, p);
        if (greet(engine, fd, p->address))
            begin_connection(p);
        else
            weft_tcp_lose(p, "it broke off when it had connected");
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

/* Nobody who knocks can be let in any more: those who are awaited will not come. */
static void await_nobody(tcp_engine *engine, int failed)
{
    char why[96];

    snprintf(why, sizeof(why), "this rank cannot take its connection: %s (ulimit -n)", strerror(failed));
    for (int number = 0; number < engine->peer_count; number++)
        if (engine->peers[number].state == AWAITED)
            weft_tcp_lose(&engine->peers[number], why);
}

static bool let_in(tcp_engine *engine, int64_t now)
{
    int fd;

    if (engine->listener < 0 || engine->stranger_count == STRANGERS)
        return false;
    fd = accept4(engine->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        int failed = errno; /* which it is, too, while nobody knocks */

        if ((failed == EMFILE || failed == ENFILE) &&
            engine->stranger_count == 0 && /* else one may give way */
            poll(&(struct pollfd){.fd = engine->listener, .events = POLLIN}, 1, 0) > 0)
            await_nobody(engine, failed);
        return false;
    }
    weft_tcp_watch(engine, EPOLL_CTL_ADD, fd, EPOLLIN, NULL);
    engine->strangers[engine->stranger_count++] = (stranger){fd, now + GREETING_NS};
    return true;
}

bool weft_tcp_meet(tcp_engine *engine)
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

weft_status weft_tcp_connect(void *handle, int number, const void *address, weft_error_text *error)
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

/* ---- where to be found ----------------------------------------------------------------------------- */

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
    if (fd >= 0)
        begin_unpaced(engine, fd); /* so do those that connect to it */
    if (fd < 0 || listen(fd, SOMAXCONN) != 0 || getsockname(fd, (struct sockaddr *)&name, &bytes) != 0)
        return false;
    engine->own.port = name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port
                                                  : ((struct sockaddr_in *)&name)->sin_port;
    weft_tcp_watch(engine, EPOLL_CTL_ADD, fd, EPOLLIN, NULL);
    return true;
}

bool weft_tcp_listen(tcp_engine *engine)
{
    tcp_address *own = &engine->own;

    own->mark = mark;
    return weft_random(own->id, sizeof(own->id)) && weft_random(own->proof, sizeof(own->proof)) &&
           list_interfaces(own) && listen_anywhere(engine);
}
