#include "group/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "group/presence.h"

enum {
    BACKLOG = 1024,
    RETRY_NS = 2000000,
    RETRY_MAX_NS = 50000000,
    STRANGERS = 64, /* connections that have asked for nothing, at most: the oldest gives way */
};

#define REQUEST_MAGIC 0x7766742d6a6f696eu

typedef struct request {
    uint64_t magic;
    char version[WEFT_VERSION_BYTES];
    unsigned char token[WEFT_TOKEN_BYTES];
    int32_t rank, size;
} request;

typedef struct answer {
    uint64_t nonce;
    int32_t status; /* WEFT_OK: the memory comes along */
    char text[WEFT_ERROR_TEXT_BYTES];
} answer;

typedef struct visitor {
    int fd;
    int rank; /* -1: it has not asked yet */
    int pid;
} visitor;

struct weft_host {
    weft_rendezvous rendezvous;
    int listener;
    int size, answered;
    weft_error_text misfit; /* why one that knew the token can never be in; status WEFT_OK: there was none */
    int count, room;
    struct pollfd *polled; /* the listener, then the visitors */
    visitor *visitors;
};

/* Calls that a signal may interrupt are made again. */
#define RETRIED(result, call)                                                                                \
    do                                                                                                       \
        (result) = (call);                                                                                   \
    while ((result) < 0 && errno == EINTR)

static socklen_t address_of(const weft_rendezvous *rendezvous, int number, struct sockaddr_un *address)
{
    int length;

    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, number ? "%s.%d" : "%s",
                      rendezvous->name, number);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int names_of(const weft_rendezvous *rendezvous)
{
    return rendezvous->names > 0 ? rendezvous->names : 1;
}

/* Whether the other end, as it was when it connected or began to listen, has our effective user. */
static bool same_user(int connection, int *pid)
{
    struct ucred who;
    socklen_t bytes = sizeof(who);

    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0 || who.uid != geteuid())
        return false;
    if (pid)
        *pid = (int)who.pid;
    return true;
}

/* A connection to whoever listens under that number; -1 with errno set. */
static int reach(const weft_rendezvous *rendezvous, int number)
{
    struct sockaddr_un address;
    socklen_t bytes = address_of(rendezvous, number, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), result, why;

    if (fd < 0)
        return -1;
    RETRIED(result, connect(fd, (struct sockaddr *)&address, bytes));
    if (result == 0)
        return fd;
    why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* ---- rank 0 --------------------------------------------------------------------------------------- */

/* Takes the first name that is free. One that belongs to another user is passed over. */
static weft_status take_name(weft_host *host, weft_error_text *error)
{
    struct sockaddr_un address;

    for (int number = 0; number < names_of(&host->rendezvous); number++) {
        socklen_t bytes = address_of(&host->rendezvous, number, &address);
        int there;
        bool ours;

        if (bind(host->listener, (struct sockaddr *)&address, bytes) == 0)
            return WEFT_OK;
        if (errno != EADDRINUSE)
            return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot listen on socket @%s: %s",
                                  address.sun_path + 1, strerror(errno));
        there = reach(&host->rendezvous, number);
        ours = there < 0 ? errno != ECONNREFUSED : same_user(there, NULL);
        if (there >= 0)
            close(there);
        if (ours)
            return weft_error_set(error, WEFT_ERR_LAUNCH,
                                  "another process is rank 0 of this job already (socket @%s); give each job "
                                  "its own MASTER_PORT or job id, each group its own weft_id",
                                  address.sun_path + 1);
    }
    return weft_error_set(error, WEFT_ERR_LAUNCH,
                          "other users occupy all names of this job (sockets @%s and %d more); another "
                          "MASTER_PORT or job id has other names",
                          host->rendezvous.name, names_of(&host->rendezvous) - 1);
}

weft_status weft_host_open(const weft_rendezvous *rendezvous, int size, weft_host **host_out,
                           weft_error_text *error)
{
    weft_host *host = calloc(1, sizeof(*host));
    weft_status status;

    if (host) {
        host->room = size + STRANGERS;
        host->polled = calloc((size_t)host->room + 1, sizeof(*host->polled));
        host->visitors = calloc((size_t)host->room, sizeof(*host->visitors));
    }
    if (!host || !host->polled || !host->visitors) {
        status = weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for a rendezvous of %d ranks", size);
        goto err_free;
    }
    host->rendezvous = *rendezvous;
    host->size = size;
    host->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (host->listener < 0) {
        status = weft_error_set(error, WEFT_ERR_SYSTEM, "cannot open a socket: %s", strerror(errno));
        goto err_free;
    }
    status = take_name(host, error);
    if (status == WEFT_OK && listen(host->listener, BACKLOG) != 0)
        status = weft_error_set(error, WEFT_ERR_SYSTEM, "cannot listen on socket @%s: %s", rendezvous->name,
                                strerror(errno));
    if (status != WEFT_OK) {
        close(host->listener);
        goto err_free;
    }
    *host_out = host;
    return WEFT_OK;

err_free:
    if (host) {
        free(host->polled);
        free(host->visitors);
    }
    free(host);
    return status;
}

static void dismiss(weft_host *host, int index)
{
    close(host->visitors[index].fd);
    host->visitors[index] = host->visitors[--host->count];
}

/* One that has not asked for anything gives way to a newcomer. */
static void accept_all(weft_host *host)
{
    for (;;) {
        int pid = 0, fd;

        RETRIED(fd, accept4(host->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd < 0)
            return;
        if (!same_user(fd, &pid)) {
            close(fd);
            continue;
        }
        for (int i = 0; i < host->count && host->count == host->room; i++)
            if (host->visitors[i].rank < 0)
                dismiss(host, i);
        if (host->count == host->room) {
            close(fd);
            continue;
        }
        host->visitors[host->count++] = (visitor){fd, -1, pid};
    }
}

/* Why the one who asks cannot have the memory, or WEFT_OK. */
static weft_status judge(const weft_host *host, const request *asked, weft_error_text *why)
{
    if (strncmp(asked->version, weft_version(), sizeof(asked->version)) != 0)
        return weft_error_set(why, WEFT_ERR_LAUNCH,
                              "rank %d has weft %.23s, and rank 0 has weft %s; all ranks need the same",
                              (int)asked->rank, asked->version, weft_version());
    if (asked->size != host->size)
        return weft_error_set(why, WEFT_ERR_LAUNCH, "rank %d was told of %d ranks, rank 0 of %d",
                              (int)asked->rank, (int)asked->size, host->size);
    if (asked->rank <= 0 || asked->rank >= host->size)
        return weft_error_set(why, WEFT_ERR_LAUNCH, "%d is not another rank than rank 0 of %d ranks",
                              (int)asked->rank, host->size);
    return WEFT_OK;
}

/* Answers a request that has come. False when the visitor is to go. */
static bool answer_one(weft_host *host, visitor *who, const weft_segment *segment,
                       const weft_error_text *failure)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    weft_error_text why = {.status = WEFT_OK};
    answer reply = {.status = WEFT_OK};
    struct iovec part = {&reply, sizeof(reply)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct cmsghdr *header;
    request asked;
    ssize_t got;

    RETRIED(got, recv(who->fd, &asked, sizeof(asked), 0));
    if (got < 0)
        return errno == EAGAIN;
    if (got != (ssize_t)sizeof(asked) || asked.magic != REQUEST_MAGIC ||
        memcmp(asked.token, host->rendezvous.token, sizeof(asked.token)) != 0)
        return false;
    if (judge(host, &asked, &why) != WEFT_OK)
        host->misfit = why;
    if (why.status == WEFT_OK && failure)
        why = *failure;
    reply.status = (int32_t)why.status;
    if (why.status == WEFT_OK) {
        reply.nonce = segment->header->nonce;
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &segment->fd, sizeof(int));
        who->rank = asked.rank;
    } else {
        memcpy(reply.text, why.text, sizeof(reply.text));
    }
    RETRIED(got, sendmsg(who->fd, &message, MSG_NOSIGNAL));
    host->answered++;
    return why.status == WEFT_OK;
}

int weft_host_serve(weft_host *host, const weft_segment *segment, const weft_error_text *failure, int wait_ms,
                    int *pid)
{
    int count = host->count, lost = -1;

    host->polled[0] = (struct pollfd){.fd = host->listener, .events = POLLIN};
    for (int i = 0; i < count; i++)
        host->polled[1 + i] = (struct pollfd){.fd = host->visitors[i].fd, .events = POLLIN};
    if (poll(host->polled, (nfds_t)count + 1, wait_ms) <= 0)
        return -1;
    /* Backwards, since the last one takes the place of one that goes. */
    for (int i = count - 1; i >= 0; i--) {
        visitor *who = &host->visitors[i];

        if (!host->polled[1 + i].revents)
            continue;
        if (who->rank < 0) {
            if (!answer_one(host, who, segment, failure))
                dismiss(host, i);
            continue;
        }
        /* Nothing but its end comes after the answer. */
        if (!failure && !weft_segment_came(segment, who->rank)) {
            lost = who->rank;
            *pid = who->pid;
        }
        dismiss(host, i);
    }
    if (host->polled[0].revents)
        accept_all(host);
    return lost;
}

const char *weft_host_misfit(const weft_host *host)
{
    return host->misfit.status == WEFT_OK ? NULL : host->misfit.text;
}

int weft_host_answered(const weft_host *host)
{
    return host->answered;
}

void weft_host_close(weft_host *host)
{
    while (host->count)
        dismiss(host, host->count - 1);
    close(host->listener);
    free(host->polled);
    free(host->visitors);
    free(host);
}

/* ---- other ranks ---------------------------------------------------------------------------------- */

static void pause_for(int64_t *pause_ns)
{
    nanosleep(&(struct timespec){0, *pause_ns}, NULL);
    if (*pause_ns < RETRY_MAX_NS)
        *pause_ns *= 2;
}

/* A connection to a process of this user under any of the names. */
static weft_status connect_until(const weft_rendezvous *rendezvous, int rank, int64_t deadline_ns,
                                 int *connection, weft_error_text *error)
{
    int64_t begun = weft_clock_ns(), pause_ns = RETRY_NS;
    bool foreign = false;

    for (;;) {
        for (int number = 0; number < names_of(rendezvous); number++) {
            int fd = reach(rendezvous, number);

            if (fd >= 0 && same_user(fd, NULL)) {
                *connection = fd;
                return WEFT_OK;
            }
            if (fd >= 0) {
                foreign = true;
                close(fd);
            } else if (errno != ECONNREFUSED && errno != EAGAIN) {
                return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot connect to socket @%s: %s",
                                      rendezvous->name, strerror(errno));
            }
        }
        if (rendezvous->presence && weft_presence_ended(rendezvous->presence))
            return weft_error_set(error, WEFT_ERR_PEER_DIED,
                                  "rank %d died or gave up before rank %d found it", rendezvous->host, rank);
        if (weft_clock_ns() >= deadline_ns)
            return weft_error_set(
                error, WEFT_ERR_LAUNCH,
                "rank %d waited %.1f s for rank %d, which has not come (is it on this machine? they "
                "meet at socket @%s%s)",
                rank, (double)(weft_clock_ns() - begun) * 1e-9, rendezvous->host, rendezvous->name,
                foreign ? "; another user listens there" : "");
        pause_for(&pause_ns);
    }
}

/* Waits for rank 0's answer, which may be busy or stopped. */
static bool await_answer(int connection, int64_t deadline_ns)
{
    struct pollfd incoming = {.fd = connection, .events = POLLIN};

    for (;;) {
        int64_t left_ms = (deadline_ns - weft_clock_ns()) / 1000000 + 1;
        int ready;

        if (left_ms <= 0)
            return false;
        ready = poll(&incoming, 1, left_ms > 1000 ? 1000 : (int)left_ms);
        if (ready > 0)
            return true;
        if (ready < 0 && errno != EINTR)
            return false;
    }
}

weft_status weft_rendezvous_join(const weft_rendezvous *rendezvous, int rank, int size, int64_t deadline_ns,
                                 int *fd, uint64_t *nonce, int *connection_out, weft_error_text *error)
{
    request asked = {.magic = REQUEST_MAGIC, .rank = rank, .size = size};
    answer reply = {0};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {&reply, sizeof(reply)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *header;
    int connection = -1;
    ssize_t moved;
    int64_t begun = weft_clock_ns();
    weft_status status = connect_until(rendezvous, rank, deadline_ns, &connection, error);

    if (status != WEFT_OK)
        return status;
    snprintf(asked.version, sizeof(asked.version), "%s", weft_version());
    memcpy(asked.token, rendezvous->token, sizeof(asked.token));
    RETRIED(moved, send(connection, &asked, sizeof(asked), MSG_NOSIGNAL));
    if (moved == (ssize_t)sizeof(asked) && !await_answer(connection, deadline_ns)) {
        close(connection);
        return weft_error_set(error, WEFT_ERR_LAUNCH,
                              "rank %d waited %.1f s for rank %d, which is there but has not answered", rank,
                              (double)(weft_clock_ns() - begun) * 1e-9, rendezvous->host);
    }
    if (moved == (ssize_t)sizeof(asked))
        RETRIED(moved, recvmsg(connection, &message, MSG_CMSG_CLOEXEC));
    header = CMSG_FIRSTHDR(&message);
    if (moved != (ssize_t)sizeof(reply) ||
        (reply.status == WEFT_OK && (!header || header->cmsg_type != SCM_RIGHTS))) {
        close(connection);
        return weft_error_set(error, WEFT_ERR_LAUNCH,
                              "rank %d went away while rank %d asked it for the memory", rendezvous->host,
                              rank);
    }
    if (reply.status != WEFT_OK) {
        close(connection);
        reply.text[sizeof(reply.text) - 1] = 0;
        return weft_error_set(error, (weft_status)reply.status, "%s", reply.text);
    }
    memcpy(fd, CMSG_DATA(header), sizeof(int));
    *nonce = reply.nonce;
    *connection_out = connection;
    return WEFT_OK;
}
