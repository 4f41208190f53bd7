#include "group/rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

enum { BACKLOG = 1024, RETRY_NS = 2000000, RETRY_MAX_NS = 50000000, ANSWER_SECONDS = 10 };

typedef struct request {
    int32_t rank, size;
} request;

typedef struct answer {
    uint64_t nonce;
    int32_t size; /* of the world; the memory comes along when it is the one asked for */
} answer;

static socklen_t address_of(uint64_t key, struct sockaddr_un *address)
{
    int length;

    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "weft-%u-%016llx",
                      (unsigned)getuid(), (unsigned long long)key);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int same_user(int connection)
{
    struct ucred who;
    socklen_t bytes = sizeof(who);

    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == getuid();
}

static void limit_waiting(int connection)
{
    struct timeval limit = {ANSWER_SECONDS, 0};

    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

weft_status weft_rendezvous_listen(uint64_t key, int *listener, weft_error_text *error)
{
    struct sockaddr_un address;
    socklen_t bytes = address_of(key, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot open a socket: %s", strerror(errno));
    if (bind(fd, (struct sockaddr *)&address, bytes) != 0 || listen(fd, BACKLOG) != 0) {
        int why = errno;

        close(fd);
        if (why == EADDRINUSE)
            return weft_error_set(
                error, WEFT_ERR_LAUNCH,
                "another process is rank 0 of this job already (socket @%s); give each job its own "
                "MASTER_PORT or job id",
                address.sun_path + 1);
        return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot listen on socket @%s: %s", address.sun_path + 1,
                              strerror(why));
    }
    *listener = fd;
    return WEFT_OK;
}

static void answer_one(int connection, const weft_segment *segment)
{
    answer reply = {.nonce = segment->header->nonce, .size = segment->header->size};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {&reply, sizeof(reply)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    request asked;

    limit_waiting(connection);
    if (!same_user(connection) || recv(connection, &asked, sizeof(asked), 0) != (ssize_t)sizeof(asked))
        return;
    if (asked.size == segment->header->size && asked.rank > 0 && asked.rank < asked.size) {
        struct cmsghdr *header;

        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &segment->fd, sizeof(int));
    }
    sendmsg(connection, &message, MSG_NOSIGNAL);
}

void weft_rendezvous_serve(int listener, const weft_segment *segment, int wait_ms)
{
    struct pollfd listening = {.fd = listener, .events = POLLIN};

    while (poll(&listening, 1, wait_ms) > 0) {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

        if (connection < 0)
            return;
        answer_one(connection, segment);
        close(connection);
        wait_ms = 0;
    }
}

static weft_status connect_until(uint64_t key, int rank, int64_t deadline_ns, int *connection,
                                 weft_error_text *error)
{
    struct sockaddr_un address;
    socklen_t bytes = address_of(key, &address);
    int64_t begun = weft_clock_ns(), pause_ns = RETRY_NS;

    for (;;) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

        if (fd < 0)
            return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot open a socket: %s", strerror(errno));
        if (connect(fd, (struct sockaddr *)&address, bytes) == 0) {
            *connection = fd;
            return WEFT_OK;
        }
        if (errno != ECONNREFUSED && errno != EINTR && errno != EAGAIN) {
            weft_error_set(error, WEFT_ERR_SYSTEM, "cannot connect to socket @%s: %s", address.sun_path + 1,
                           strerror(errno));
            close(fd);
            return WEFT_ERR_SYSTEM;
        }
        close(fd);
        if (weft_clock_ns() >= deadline_ns)
            return weft_error_set(
                error, WEFT_ERR_LAUNCH,
                "rank %d waited %.1f s for rank 0, which has not come (is it on this machine? they "
                "meet at socket @%s)",
                rank, (double)(weft_clock_ns() - begun) * 1e-9, address.sun_path + 1);
        nanosleep(&(struct timespec){0, pause_ns}, NULL);
        if (pause_ns < RETRY_MAX_NS)
            pause_ns *= 2;
    }
}

weft_status weft_rendezvous_join(uint64_t key, int rank, int size, int64_t deadline_ns, int *fd,
                                 uint64_t *nonce, weft_error_text *error)
{
    request asked = {rank, size};
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
    weft_status status = connect_until(key, rank, deadline_ns, &connection, error);

    if (status != WEFT_OK)
        return status;
    limit_waiting(connection);
    if (!same_user(connection)) {
        close(connection);
        return weft_error_set(error, WEFT_ERR_LAUNCH,
                              "where rank 0 of this job should be is a process of another user");
    }
    if (send(connection, &asked, sizeof(asked), MSG_NOSIGNAL) != (ssize_t)sizeof(asked) ||
        recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(reply)) {
        close(connection);
        return weft_error_set(error, WEFT_ERR_LAUNCH,
                              "rank 0 went away while rank %d asked it for the memory", rank);
    }
    close(connection);
    header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS)
        return weft_error_set(error, WEFT_ERR_LAUNCH, "rank %d was told of %d ranks, rank 0 of %d", rank,
                              size, (int)reply.size);
    memcpy(fd, CMSG_DATA(header), sizeof(int));
    *nonce = reply.nonce;
    return WEFT_OK;
}
