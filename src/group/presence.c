#include "group/presence.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static socklen_t address_of(const unsigned char name[WEFT_PRESENCE_BYTES], struct sockaddr_un *address)
{
    size_t room = sizeof(address->sun_path) - 1;
    int used;

    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    used = snprintf(address->sun_path + 1, room, "weft-here-");
    for (int i = 0; i < WEFT_PRESENCE_BYTES; i++)
        used += snprintf(address->sun_path + 1 + used, room - (size_t)used, "%02x", name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

/* Datagrams: whoever looks connects, and nobody has to accept. */
static int make_socket(void)
{
    return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

weft_status weft_presence_open(const unsigned char name[WEFT_PRESENCE_BYTES], int *fd, weft_error_text *error)
{
    struct sockaddr_un address;
    socklen_t bytes = address_of(name, &address);
    int made = make_socket();

    if (made < 0)
        return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot make a socket: %s", strerror(errno));
    if (bind(made, (struct sockaddr *)&address, bytes) != 0) {
        weft_error_set(error, WEFT_ERR_SYSTEM, "cannot bind socket @%s: %s", address.sun_path + 1,
                       strerror(errno));
        close(made);
        return WEFT_ERR_SYSTEM;
    }
    *fd = made;
    return WEFT_OK;
}

bool weft_presence_ended(const unsigned char name[WEFT_PRESENCE_BYTES])
{
    struct sockaddr_un address;
    socklen_t bytes = address_of(name, &address);
    int probe = make_socket();
    bool ended;

    if (probe < 0) /* nobody knows */
        return false;
    ended = connect(probe, (struct sockaddr *)&address, bytes) != 0 && errno == ECONNREFUSED;
    close(probe);
    return ended;
}
