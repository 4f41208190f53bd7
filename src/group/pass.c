/*
 * Descriptors travel as ancillary data of datagrams. Each rank opens a socket under a name the kernel picks,
 * shows the name to the others, then sends its descriptor to every one of them and receives theirs. Only
 * messages of this user that carry the world's nonce count.
 */
#include "group/pass.h"

#include "core/clock.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { NAME_BYTES = 16, WAIT_MS = 1, LOOK_NS = 10000000 };

typedef struct address {
    int32_t bytes; /* of the name; 0: the rank could not open its socket */
    char name[NAME_BYTES];
} address;

typedef struct letter {
    uint64_t nonce;
    int32_t rank;
} letter;

typedef union ancillary {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
} ancillary;

static int open_socket(address *mine)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof(name);
    int on = 1, fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *mine = (address){0};
    if (fd < 0)
        return -1;
    /* Binding to nothing but the family makes the kernel choose a free name outside the file system. */
    if (bind(fd, (struct sockaddr *)&name, sizeof(sa_family_t)) != 0 ||
        getsockname(fd, (struct sockaddr *)&name, &bytes) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0 ||
        bytes - offsetof(struct sockaddr_un, sun_path) > NAME_BYTES) {
        close(fd);
        return -1;
    }
    mine->bytes = (int32_t)(bytes - offsetof(struct sockaddr_un, sun_path));
    memcpy(mine->name, name.sun_path, (size_t)mine->bytes);
    return fd;
}

/* 0, or the error number; EAGAIN while the receiver's queue is full. */
static int send_to(int from, const address *to, const letter *what, int fd)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    ancillary control = {0};
    struct iovec part = {(void *)(uintptr_t)what, sizeof(*what)};
    struct msghdr message = {.msg_name = &name,
                             .msg_namelen =
                                 (socklen_t)(offsetof(struct sockaddr_un, sun_path)) + (socklen_t)to->bytes,
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    memcpy(name.sun_path, to->name, (size_t)to->bytes);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(int));
    return sendmsg(from, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

/* Takes one message. Whether it was a descriptor we still lacked. */
static bool receive(const weft_group *group, int socket_fd, int *fds)
{
    letter what = {0};
    ancillary control = {0};
    struct iovec part = {&what, sizeof(what)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    bool mine = false;
    int fd = -1;

    if (recvmsg(socket_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < (ssize_t)sizeof(what))
        return false;
    for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
        if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_RIGHTS)
            memcpy(&fd, CMSG_DATA(at), sizeof(int));
        if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_CREDENTIALS) {
            struct ucred sender;

            memcpy(&sender, CMSG_DATA(at), sizeof(sender));
            mine = sender.uid == geteuid();
        }
    }
    if (fd >= 0 && mine && what.nonce == group->world->segment.header->nonce && what.rank >= 0 &&
        what.rank < group->size && fds[what.rank] < 0) {
        fds[what.rank] = fd;
        return true;
    }
    if (fd >= 0)
        close(fd);
    return false;
}

/* Sends to all and receives from all, in whatever order they are ready. */
static weft_status swap(weft_group *group, int socket_fd, int fd, int *fds)
{
    letter mine = {group->world->segment.header->nonce, group->rank};
    int64_t begun = weft_clock_ns(), looked = begun;
    int sent = 0, received = 0;

    while (sent < group->size || received < group->size) {
        struct pollfd incoming = {.fd = socket_fd, .events = POLLIN};
        int64_t now = weft_clock_ns();

        if (sent < group->size) {
            const address *to = weft_group_board(group, (group->rank + sent) % group->size);
            int error = send_to(socket_fd, to, &mine, fd);

            if (error == 0)
                sent++;
            else if (error != EAGAIN && error != EINTR && error != ECONNREFUSED) /* refused: it died */
                return weft_group_poison(group, WEFT_ERR_SYSTEM,
                                         "rank %d cannot pass a descriptor to rank %d: %s", group->rank,
                                         (group->rank + sent) % group->size, strerror(error));
        }
        if (poll(&incoming, 1, sent < group->size ? 0 : WAIT_MS) > 0)
            received += receive(group, socket_fd, fds);
        if (now - looked > LOOK_NS) {
            weft_status status = weft_group_check(group);
            int dead = status == WEFT_OK ? weft_group_find_dead(group, -1) : -1;

            looked = now;
            if (status != WEFT_OK)
                return status;
            if (dead >= 0)
                return weft_group_poison(group, WEFT_ERR_PEER_DIED,
                                         "rank %d (process %d) died while rank %d waited for its memory",
                                         dead, weft_group_pid(group, dead), group->rank);
            if (now - begun > group->progress_ns)
                return weft_group_poison(group, WEFT_ERR_TIMEOUT,
                                         "rank %d waited %.3g s for its peers' descriptors; %d of %d came",
                                         group->rank, (double)group->progress_ns * 1e-9, received,
                                         group->size);
        }
    }
    return WEFT_OK;
}

weft_status weft_group_pass(weft_group *group, weft_sync_kind kind, int fd, int *fds)
{
    address mine;
    int socket_fd = open_socket(&mine);
    weft_status status = weft_group_exchange(group, kind, &mine, sizeof(mine));

    for (int rank = 0; rank < group->size; rank++)
        fds[rank] = -1;
    for (int rank = 0; status == WEFT_OK && rank < group->size; rank++)
        if (((const address *)weft_group_board(group, rank))->bytes == 0)
            status = weft_group_poison(group, WEFT_ERR_SYSTEM,
                                       "rank %d cannot open a socket to pass descriptors", rank);
    if (status == WEFT_OK)
        status = swap(group, socket_fd, fd, fds);
    if (socket_fd >= 0)
        close(socket_fd);
    if (status != WEFT_OK)
        for (int rank = 0; rank < group->size; rank++) {
            if (fds[rank] >= 0)
                close(fds[rank]);
            fds[rank] = -1;
        }
    return status;
}
