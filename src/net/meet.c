#include "net/meet.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/round.h"
#include "net/secret.h"

#define MEET_MAGIC 0x7766742d6d656574u

enum {
    BACKLOG = 256,
    STRANGERS = 64,      /* connections that have proved nothing, at most */
    SHY_NS = 2000000000, /* how long one may take to prove itself */
    RETRY_NS = 20000000,
    REFUSED_NS = 1000000000, /* how long whoever was turned away looks for another rank 0 at these ports */
    POLL_MS = 50,
    VERSION_BYTES = 24,
};

/* Rank 0 to whoever has connected. */
typedef struct challenge {
    uint64_t magic;
    uint64_t number[2];
} challenge;

/* The answer, before the block. */
typedef struct hello {
    uint64_t magic;
    char version[VERSION_BYTES];
    int32_t rank, size;
    uint64_t bytes;
    uint64_t number[2]; /* that rank 0's last word must be about */
    uint64_t code;      /* of the challenge, all above and the block */
} hello;

/* Rank 0's last word, before the blocks of all. */
typedef struct verdict {
    uint64_t magic;
    int32_t status, unused;
    char text[WEFT_ERROR_TEXT_BYTES];
    uint64_t code; /* of the number in the hello, all above and the blocks */
} verdict;

/* One piece, so that a code is over everything at once. */
typedef struct guest {
    int fd;
    int rank; /* -1: it has proved nothing */
    int64_t since;
    size_t have;
    uint64_t number[2]; /* its own */
    char *transcript;   /* challenge, hello, block */
} guest;

typedef struct host {
    const weft_meet *meet;
    weft_secret secret;
    size_t bytes;
    char *all;
    int listener, count, room, come;
    int refused; /* who spoke as ranks do and did not know the secret */
    guest *guests;
    struct pollfd *polled;
} host;

/* While ranks wait for others nothing is said for minutes; that the other end is there is then seen by what
 * its system answers. Where a system cannot, a cut link is seen at the deadline. */
static void set_up(const weft_meet *meet, int fd)
{
    int one = 1, silence_ms = (int)weft_min(weft_divide_up(meet->silence_ns, 1000000), INT_MAX);

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (silence_ms <= 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof(one)); /* seconds */
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
}

/* Whether a connection that ended with this error was cut off by a link, not by the other end. */
static bool is_cut(int error)
{
    return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
}

static weft_status tell_cut(const weft_meet *meet, int rank, weft_error_text *error)
{
    return weft_error_set(error, WEFT_ERR_PEER_DIED,
                          "rank %d was lost while the ranks met: nothing has come from its host for %.1f s "
                          "(WEFT_LINK_TIMEOUT)",
                          rank, (double)meet->silence_ns * 1e-9);
}

static uint64_t code_of(const weft_secret *secret, const void *transcript, size_t before, size_t after,
                        const void *block, size_t block_bytes)
{
    uint64_t parts[3] = {weft_secret_code(secret, transcript, before),
                         weft_secret_code(secret, block, block_bytes), after};

    return weft_secret_code(secret, parts, sizeof(parts));
}

/* ---- rank 0 --------------------------------------------------------------------------------------- */

static weft_status listen_somewhere(host *h, weft_error_text *error)
{
    const weft_meet *meet = h->meet;
    int none = 0, one = 1, why = 0;

    for (int port = meet->port; port < meet->port + meet->ports; port++) {
        struct sockaddr_in6 any = {
            .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_ANY_INIT};
        struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        bool bound;

        h->listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (h->listener >= 0) {
            setsockopt(h->listener, IPPROTO_IPV6, IPV6_V6ONLY, &none, sizeof(none));
            setsockopt(h->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
            bound = bind(h->listener, (struct sockaddr *)&any, sizeof(any)) == 0;
        } else {
            h->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            setsockopt(h->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
            bound = bind(h->listener, (struct sockaddr *)&any4, sizeof(any4)) == 0;
        }
        if (bound && listen(h->listener, BACKLOG) == 0)
            return WEFT_OK;
        why = errno;
        close(h->listener);
    }
    h->listener = -1;
    return weft_error_set(error, WEFT_ERR_LAUNCH,
                          "rank 0 cannot listen on port %d (nor on the %d after it): %s; set MASTER_PORT to "
                          "one that is free",
                          meet->port, meet->ports - 1, strerror(why));
}

static void dismiss(host *h, int index)
{
    close(h->guests[index].fd);
    free(h->guests[index].transcript);
    h->guests[index] = h->guests[--h->count];
}

static size_t expected(const host *h)
{
    return sizeof(hello) + h->bytes;
}

/* The oldest that has proved nothing gives way to a newcomer. Where all have, and no more may be open, those
 * who knock would wait in vain. */
static void accept_one(host *h, weft_error_text *error)
{
    challenge mine = {.magic = MEET_MAGIC};
    int fd = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int oldest = -1;
    guest *g;

    if (fd < 0) {
        if ((errno == EMFILE || errno == ENFILE) && h->count == h->come)
            weft_error_set(error, WEFT_ERR_SYSTEM,
                           "rank 0 cannot take another connection, with %d of %d ranks there: %s (ulimit -n)",
                           h->come + 1, h->meet->size, strerror(errno));
        return;
    }
    for (int i = 0; i < h->count && h->count == h->room; i++)
        if (h->guests[i].rank < 0 && (oldest < 0 || h->guests[i].since < h->guests[oldest].since))
            oldest = i;
    if (oldest >= 0)
        dismiss(h, oldest);
    g = &h->guests[h->count];
    *g = (guest){.fd = fd, .rank = -1, .since = weft_clock_ns()};
    g->transcript = h->count < h->room ? malloc(sizeof(challenge) + expected(h)) : NULL;
    if (!g->transcript || !weft_random(mine.number, sizeof(mine.number)) ||
        send(fd, &mine, sizeof(mine), MSG_NOSIGNAL) != (ssize_t)sizeof(mine)) {
        free(g->transcript);
        close(fd);
        return;
    }
    set_up(h->meet, fd);
    memcpy(g->transcript, &mine, sizeof(mine));
    h->count++;
}

/* A whole hello with its block: is it one of ours? Errors that ranks are to hear of are in `error`. */
static weft_status judge(host *h, guest *g, bool *stranger, weft_error_text *error)
{
    const char *block = g->transcript + sizeof(challenge) + sizeof(hello);
    hello said;

    memcpy(&said, g->transcript + sizeof(challenge), sizeof(said));
    *stranger = said.magic != MEET_MAGIC || said.bytes != h->bytes ||
                said.code != code_of(&h->secret, g->transcript, sizeof(challenge) + offsetof(hello, code), 1,
                                     block, h->bytes);
    if (*stranger) {
        h->refused++;
        return WEFT_OK;
    }
    said.version[VERSION_BYTES - 1] = 0;
    memcpy(g->number, said.number, sizeof(g->number));
    if (strcmp(said.version, weft_version()) != 0)
        return weft_error_set(error, WEFT_ERR_LAUNCH,
                              "rank %d has weft %s, and rank 0 has weft %s; all ranks need the same",
                              (int)said.rank, said.version, weft_version());
    if (said.size != h->meet->size || said.rank <= 0 || said.rank >= said.size)
        return weft_error_set(error, WEFT_ERR_LAUNCH, "rank %d of %d came to rank 0 of %d", (int)said.rank,
                              (int)said.size, h->meet->size);
    for (int i = 0; i < h->count; i++)
        if (h->guests[i].rank == said.rank)
            return weft_error_set(error, WEFT_ERR_LAUNCH, "two processes are rank %d of this job",
                                  (int)said.rank);
    g->rank = said.rank;
    memcpy(h->all + (size_t)said.rank * h->bytes, block, h->bytes);
    h->come++;
    return WEFT_OK;
}

/* Reads what a connection has. False: it is to go. */
static bool listen_to(host *h, guest *g, weft_error_text *error)
{
    char surplus;
    ssize_t got;
    bool stranger;

    if (g->rank >= 0) { /* nothing but its end may come now */
        got = recv(g->fd, &surplus, 1, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (got < 0 && is_cut(errno))
            tell_cut(h->meet, g->rank, error);
        else
            weft_error_set(error, WEFT_ERR_PEER_DIED, "rank %d went away while the ranks met", g->rank);
        return false;
    }
    got = recv(g->fd, g->transcript + sizeof(challenge) + g->have, expected(h) - g->have, 0);
    if (got <= 0)
        return got < 0 && (errno == EAGAIN || errno == EINTR);
    g->have += (size_t)got;
    if (g->have >= sizeof(uint64_t) &&
        memcmp(g->transcript + sizeof(challenge), &(uint64_t){MEET_MAGIC}, sizeof(uint64_t)) != 0)
        return false;
    if (g->have < expected(h))
        return true;
    judge(h, g, &stranger, error);
    return !stranger;
}

static void list_missing(const host *h, char *text, size_t bytes)
{
    size_t used = 0;

    for (int rank = 1; rank < h->meet->size && used + 16 < bytes; rank++) {
        bool here = false;

        for (int i = 0; i < h->count && !here; i++)
            here = h->guests[i].rank == rank;
        if (!here)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", used ? ", " : "", rank);
    }
}

static weft_status receive_all(host *h, weft_error_text *error)
{
    char missing[160], refused[96] = "";

    error->status = WEFT_OK;
    while (h->come < h->meet->size - 1 && error->status == WEFT_OK) {
        int64_t now;
        int count = h->count;

        h->polled[0] = (struct pollfd){.fd = h->listener, .events = POLLIN};
        for (int i = 0; i < count; i++)
            h->polled[1 + i] = (struct pollfd){.fd = h->guests[i].fd, .events = POLLIN};
        poll(h->polled, (nfds_t)count + 1, POLL_MS);
        now = weft_clock_ns();
        for (int i = count - 1; i >= 0 && error->status == WEFT_OK; i--) {
            guest *g = &h->guests[i];

            if ((h->polled[1 + i].revents && !listen_to(h, g, error)) ||
                (g->rank < 0 && now - g->since > SHY_NS))
                dismiss(h, i);
        }
        if (h->polled[0].revents && error->status == WEFT_OK)
            accept_one(h, error);
        if (now > h->meet->deadline_ns && error->status == WEFT_OK) {
            list_missing(h, missing, sizeof(missing));
            if (h->refused)
                snprintf(refused, sizeof(refused), "; somebody came with another WEFT_SECRET, %d times",
                         h->refused);
            return weft_error_set(error, WEFT_ERR_LAUNCH,
                                  "of %d ranks these have not come to rank 0 at port %d: %s%s", h->meet->size,
                                  h->meet->port, missing, refused);
        }
    }
    return error->status;
}

static bool send_whole(int fd, const void *data, size_t bytes, int64_t deadline_ns)
{
    const char *at = data;

    while (bytes > 0) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
        struct pollfd ready = {.fd = fd, .events = POLLOUT};

        if (sent > 0) {
            at += sent;
            bytes -= (size_t)sent;
        } else if (sent < 0 && (errno == EAGAIN || errno == EINTR) && weft_clock_ns() < deadline_ns) {
            poll(&ready, 1, POLL_MS);
        } else {
            return false;
        }
    }
    return true;
}

/* All who have proved themselves hear the outcome. */
static weft_status answer_all(host *h, weft_status status, weft_error_text *error)
{
    size_t all_bytes = status == WEFT_OK ? h->bytes * (size_t)h->meet->size : 0;
    struct {
        uint64_t number[2];
        verdict last;
    } transcript;

    for (int i = 0; i < h->count; i++) {
        guest *g = &h->guests[i];
        weft_error_text why;

        if (g->rank < 0)
            continue;
        memset(&transcript, 0, sizeof(transcript));
        memcpy(transcript.number, g->number, sizeof(transcript.number));
        transcript.last.magic = MEET_MAGIC;
        transcript.last.status = (int32_t)status;
        if (status != WEFT_OK)
            memcpy(transcript.last.text, error->text, sizeof(transcript.last.text));
        transcript.last.code =
            code_of(&h->secret, &transcript, sizeof(transcript.number) + offsetof(verdict, code), 2, h->all,
                    all_bytes);
        if ((!send_whole(g->fd, &transcript.last, sizeof(transcript.last), h->meet->deadline_ns) ||
             !send_whole(g->fd, h->all, all_bytes, h->meet->deadline_ns)) &&
            status == WEFT_OK) {
            /* Those after it are told why; those before it find out when they meet. */
            status =
                weft_error_set(&why, WEFT_ERR_PEER_DIED, "rank %d went away while the ranks met", g->rank);
            *error = why;
            all_bytes = 0;
        }
    }
    return status;
}

static weft_status gather_as_host(const weft_meet *meet, const void *mine, size_t bytes, void *all,
                                  weft_error_text *error)
{
    host h = {
        .meet = meet, .secret = weft_secret_of(meet->secret), .bytes = bytes, .all = all, .listener = -1};
    weft_status status;

    h.room = meet->size + STRANGERS;
    h.guests = calloc((size_t)h.room + 1, sizeof(*h.guests));
    h.polled = calloc((size_t)h.room + 1, sizeof(*h.polled));
    memcpy(all, mine, bytes);
    if (!h.guests || !h.polled)
        status =
            weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for a meeting of %d ranks", meet->size);
    else
        status = listen_somewhere(&h, error);
    if (status == WEFT_OK) {
        status = receive_all(&h, error);
        close(h.listener);
        status = answer_all(&h, status, error);
    }
    while (h.count)
        dismiss(&h, h.count - 1);
    free(h.guests);
    free(h.polled);
    return status;
}

/* ---- other ranks ---------------------------------------------------------------------------------- */

/* A connection to the port, within a second or two; -1: none, and *why is an errno. */
static int reach(const struct addrinfo *list, int port, int *why)
{
    for (const struct addrinfo *at = list; at; at = at->ai_next) {
        struct sockaddr_storage address;
        struct pollfd ready;
        int fd, failed = 0;
        socklen_t bytes = sizeof(failed);

        memcpy(&address, at->ai_addr, at->ai_addrlen);
        if (at->ai_family == AF_INET)
            ((struct sockaddr_in *)&address)->sin_port = htons((uint16_t)port);
        else if (at->ai_family == AF_INET6)
            ((struct sockaddr_in6 *)&address)->sin6_port = htons((uint16_t)port);
        else
            continue;
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            *why = *why ? *why : errno; /* what another address says tells more */
            continue;
        }
        ready = (struct pollfd){.fd = fd, .events = POLLOUT};
        if (connect(fd, (struct sockaddr *)&address, at->ai_addrlen) == 0)
            return fd;
        failed = errno;
        if (failed == EINPROGRESS && poll(&ready, 1, 2000) == 1 &&
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes) == 0 && failed == 0)
            return fd;
        *why = failed == EINPROGRESS ? ETIMEDOUT : failed;
        close(fd);
    }
    return -1;
}

/* False: the other end is gone, and errno says why (0: it has ended), or the time is over. */
static bool read_whole(int fd, void *into, size_t bytes, int64_t deadline_ns)
{
    char *at = into;

    while (bytes > 0) {
        ssize_t got = recv(fd, at, bytes, 0);
        struct pollfd ready = {.fd = fd, .events = POLLIN};

        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        } else if (got < 0 && (errno == EAGAIN || errno == EINTR) && weft_clock_ns() < deadline_ns) {
            poll(&ready, 1, POLL_MS);
        } else {
            errno = got == 0 ? 0 : errno;
            return false;
        }
    }
    return true;
}

typedef enum answer { NO_ANSWER, REFUSED, ANSWERED } answer;

/* One attempt. Who does not speak our language gives no answer; who does and then nothing more refuses. */
static weft_status ask(const weft_meet *meet, int fd, const void *mine, size_t bytes, void *all, answer *got,
                       weft_error_text *error)
{
    weft_secret secret = weft_secret_of(meet->secret);
    int64_t shy = weft_clock_ns() + SHY_NS;
    struct {
        challenge first;
        hello answer;
    } transcript;
    struct {
        uint64_t number[2];
        verdict last;
    } heard;

    memset(&transcript, 0, sizeof(transcript));
    *got = NO_ANSWER;
    if (!read_whole(fd, &transcript.first, sizeof(transcript.first),
                    shy < meet->deadline_ns ? shy : meet->deadline_ns) ||
        transcript.first.magic != MEET_MAGIC)
        return WEFT_OK;
    transcript.answer.magic = MEET_MAGIC;
    snprintf(transcript.answer.version, sizeof(transcript.answer.version), "%s", weft_version());
    transcript.answer.rank = meet->rank;
    transcript.answer.size = meet->size;
    transcript.answer.bytes = bytes;
    if (!weft_random(transcript.answer.number, sizeof(transcript.answer.number)))
        return weft_error_set(error, WEFT_ERR_SYSTEM, "cannot get random bytes: %s", strerror(errno));
    transcript.answer.code =
        code_of(&secret, &transcript, sizeof(challenge) + offsetof(hello, code), 1, mine, bytes);
    if (!send_whole(fd, &transcript.answer, sizeof(transcript.answer), meet->deadline_ns) ||
        !send_whole(fd, mine, bytes, meet->deadline_ns))
        return WEFT_OK;
    *got = REFUSED;
    memset(&heard, 0, sizeof(heard));
    memcpy(heard.number, transcript.answer.number, sizeof(heard.number));
    if (!read_whole(fd, &heard.last, sizeof(heard.last), meet->deadline_ns)) {
        if (is_cut(errno)) {
            *got = ANSWERED; /* it is no other's rank 0 that is to be looked for */
            return tell_cut(meet, 0, error);
        }
        return weft_error_set(error, WEFT_ERR_LAUNCH,
                              "rank 0 at %s did not accept rank %d: WEFT_SECRET differs, or rank 0 has ended",
                              meet->host, meet->rank);
    }
    *got = ANSWERED;
    if (heard.last.magic != MEET_MAGIC ||
        (heard.last.status == WEFT_OK &&
         !read_whole(fd, all, bytes * (size_t)meet->size, meet->deadline_ns)) ||
        heard.last.code != code_of(&secret, &heard, sizeof(heard.number) + offsetof(verdict, code), 2, all,
                                   heard.last.status == WEFT_OK ? bytes * (size_t)meet->size : 0))
        return weft_error_set(error, WEFT_ERR_LAUNCH, "whoever listens at %s is not rank 0 of this job",
                              meet->host);
    heard.last.text[sizeof(heard.last.text) - 1] = 0;
    return heard.last.status == WEFT_OK
               ? WEFT_OK
               : weft_error_set(error, (weft_status)heard.last.status, "%s", heard.last.text);
}

/* Without a descriptor to be had neither a name is found nor a rank reached, and neither of them says so. */
static bool may_open(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0)
        close(fd);
    return fd >= 0 || (errno != EMFILE && errno != ENFILE);
}

/* For whoever looks at a job that does not begin: nothing else would be heard until the deadline. Whether it
 * was time. */
static bool tell_of_wait(const weft_meet *meet, int64_t begun, const char *why)
{
    int64_t now = weft_clock_ns();

    if (now - begun < meet->tell_ns)
        return false;
    fprintf(stderr,
            "weft: rank %d has not reached rank 0 at %s, port %d, for %.0f s (%s): MASTER_ADDR must name the "
            "host of rank 0, as this host reaches it; trying for another %.0f s (WEFT_ENTER_TIMEOUT)\n",
            meet->rank, meet->host, meet->port, (double)(now - begun) * 1e-9, why,
            (double)(meet->deadline_ns - now) * 1e-9);
    return true;
}

static weft_status gather_as_guest(const weft_meet *meet, const void *mine, size_t bytes, void *all,
                                   weft_error_text *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int64_t begun = weft_clock_ns(), refused = 0;
    int failed = EAI_AGAIN, why = 0;
    bool told = false;

    do {
        if (!may_open()) {
            weft_error_set(error, WEFT_ERR_SYSTEM, "rank %d cannot connect to rank 0 at %s: %s (ulimit -n)",
                           meet->rank, meet->host, strerror(errno));
            if (list)
                freeaddrinfo(list);
            return error->status;
        }
        if (failed)
            failed = getaddrinfo(meet->host, NULL, &hints, &list);
        for (int port = meet->port;
             !failed && port < meet->port + meet->ports && weft_clock_ns() < meet->deadline_ns; port++) {
            int fd = reach(list, port, &why);
            weft_status status;
            answer got;

            if (fd < 0 && !told)
                told = tell_of_wait(meet, begun, strerror(why));
            if (fd < 0)
                continue;
            set_up(meet, fd);
            status = ask(meet, fd, mine, bytes, all, &got, error);
            close(fd);
            if (got == NO_ANSWER && status == WEFT_OK && !told)
                told = tell_of_wait(meet, begun, "who is there is not rank 0");
            if (got == REFUSED && !refused) /* it may be rank 0 of another job */
                refused = weft_clock_ns();
            if (got == ANSWERED || (got == NO_ANSWER && status != WEFT_OK)) {
                freeaddrinfo(list);
                return status;
            }
        }
        if (failed && !told)
            told = tell_of_wait(meet, begun, gai_strerror(failed));
        nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
    } while (weft_clock_ns() < (refused ? refused + REFUSED_NS : meet->deadline_ns));
    if (list)
        freeaddrinfo(list);
    if (refused) /* its sentence stands */
        return error->status;
    return weft_error_set(error, WEFT_ERR_LAUNCH,
                          "rank %d waited %.1f s for rank 0, which does not answer at %s, port %d%s%s",
                          meet->rank, (double)(weft_clock_ns() - begun) * 1e-9, meet->host, meet->port,
                          failed || why ? ": " : "",
                          failed ? gai_strerror(failed)
                          : why  ? strerror(why)
                                 : "");
}

weft_status weft_meet_gather(const weft_meet *meet, const void *mine, size_t bytes, void *all,
                             weft_error_text *error)
{
    return meet->rank == 0 ? gather_as_host(meet, mine, bytes, all, error)
                           : gather_as_guest(meet, mine, bytes, all, error);
}
