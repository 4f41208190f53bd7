/* Connections between nodes: strangers, who comes late, who cannot be let in, and how they are set up. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/tcp_peer.h"
#include "pair.h"

/* A peer with another key is a stranger: nothing it sends counts, not even against silence. */
static void check_stranger(void)
{
    static const uint64_t keys[RANKS] = {1, 2};
    node nodes[RANKS];
    weft_net_put put = {.post_count = 1};

    if (!open_pair(nodes, keys, 1500000000))
        return;
    put.posts[0] = (weft_net_post){nodes[1].slots + 256, 1};
    weft_net_send(nodes[1].net, 0, &put, NULL);
    for (int i = 0; i < 2000 && !weft_net_lost(nodes[0].net, 1); i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    CHECK(weft_net_lost(nodes[0].net, 1));
    CHECK_HAS(weft_net_why(nodes[0].net, 1), "nothing has come");
    CHECK_INT(weft_signal_load((weft_signal *)(nodes[0].slots + 256)), 0);
    close_pair(nodes);
}

/* Descriptors of this process that listen, up to `most`; returns how many there are. */
static int list_listeners(int fds[], int most)
{
    int count = 0;

    for (int fd = 0; fd < 256; fd++) {
        int listens = 0;
        socklen_t bytes = sizeof(listens);

        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens && count++ < most)
            fds[count - 1] = fd;
    }
    return count;
}

/* A socket, also where there is one descriptor left: a thread that looks for connections has it for a moment.
 */
static int open_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    for (int i = 0; i < 1000 && fd < 0 && errno == EMFILE; i++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        fd = socket(AF_INET, SOCK_STREAM, 0);
    }
    return fd;
}

/* A stranger that connects before the ranks do. */
static int come_uninvited(int listener)
{
    struct sockaddr_in6 name;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(name);
    char garbage[200];
    int fd = open_socket();

    CHECK(getsockname(listener, (struct sockaddr *)&name, &bytes) == 0);
    to.sin_port = name.sin6_port; /* at the same place in both kinds of names */
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    memset(garbage, 0x5a, sizeof(garbage));
    /* who comes uninvited may be shown the door before having said a word */
    CHECK(send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL) == (ssize_t)sizeof(garbage) ||
          errno == ECONNRESET || errno == EPIPE);
    return fd;
}

/* Connections of weft's own: strangers are shown the door, and it is closed once the ranks have met. */
static void check_door(void)
{
    static const uint64_t keys[RANKS] = {42, 42};
    weft_net_put put = {.effect = WEFT_NET_STORE, .post_count = 1};
    node nodes[RANKS];
    int listeners[RANKS], strangers[RANKS];
    char byte;

    CHECK_INT(list_listeners(listeners, RANKS), 0);
    CHECK(open_nets(nodes));
    CHECK_INT(list_listeners(listeners, RANKS), RANKS);
    for (int i = 0; i < RANKS; i++)
        strangers[i] = come_uninvited(listeners[i]);
    begin_nets(nodes, keys, 60000000000);
    put.posts[0] = (weft_net_post){nodes[1].slots + 256, 1};
    weft_net_send(nodes[1].net, 0, &put, NULL);
    CHECK(wait_for((weft_signal *)(nodes[0].slots + 256), 1));
    put.posts[0] = (weft_net_post){nodes[0].slots + STRIDE + 256, 1};
    weft_net_send(nodes[0].net, 1, &put, NULL);
    CHECK(wait_for((weft_signal *)(nodes[1].slots + STRIDE + 256), 1));
    CHECK_INT(list_listeners(listeners, RANKS), 0);
    for (int i = 0; i < RANKS; i++) {
        CHECK(recv(strangers[i], &byte, 1, 0) <= 0);
        close(strangers[i]);
    }
    close_pair(nodes);
}

/* Who waits for its peer to connect, and may open no more: it says so as soon as somebody knocks. */
static void check_no_more_files(void)
{
    node nodes[RANKS];
    const tcp_address *addresses[RANKS];
    struct rlimit files, fewer;
    int listeners[RANKS], spare, next, knocks, waits;
    size_t bytes;

    CHECK(open_nets(nodes));
    CHECK_INT(list_listeners(listeners, RANKS), RANKS);
    for (int rank = 0; rank < RANKS; rank++)
        addresses[rank] = weft_net_address(nodes[rank].net, &bytes);
    waits = memcmp(addresses[0]->id, addresses[1]->id, sizeof(addresses[0]->id)) > 0 ? 0 : 1;
    begin_net(nodes, waits, 42, INT64_MAX);
    spare = dup(STDIN_FILENO);
    next = dup(STDIN_FILENO);
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
    fewer = (struct rlimit){(rlim_t)next, files.rlim_max};
    close(next);
    CHECK(setrlimit(RLIMIT_NOFILE, &fewer) == 0);
    close(spare);
    knocks = come_uninvited(listeners[waits]); /* with the last one */
    for (int i = 0; i < 2000 && !weft_net_lost(nodes[waits].net, 1 - waits); i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    CHECK(weft_net_lost(nodes[waits].net, 1 - waits));
    CHECK_HAS(weft_net_why(nodes[waits].net, 1 - waits), "this rank cannot take its connection: ");
    CHECK_HAS(weft_net_why(nodes[waits].net, 1 - waits), "ulimit -n");
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    close(knocks);
    close_pair(nodes);
}

/* A rank that begins when its peer has tried every address more than once. Who connects is drawn: both ways.
 */
static void check_late(void)
{
    node pairs[2][RANKS];

    for (int pair = 0; pair < 2; pair++) {
        if (!open_nets(pairs[pair]))
            return;
        begin_net(pairs[pair], pair, 7, INT64_MAX);
    }
    usleep(2600000);
    for (int pair = 0; pair < 2; pair++) {
        begin_net(pairs[pair], 1 - pair, 7, INT64_MAX);
        check_marks(pairs[pair]);
        CHECK(!weft_net_lost(pairs[pair][0].net, 1) && !weft_net_lost(pairs[pair][1].net, 0));
    }
    for (int pair = 0; pair < 2; pair++)
        close_pair(pairs[pair]);
}

/* A connection that has begun with BBR is paced for ever. */
static void check_unpaced(void)
{
    char name[16] = "";
    socklen_t bytes = sizeof(name) - 1;
    weft_error_text error;
    weft_net *net;

    CHECK_INT(weft_net_open(RANKS, &net, &error), WEFT_OK);
    CHECK_INT(getsockopt(((tcp_engine *)net->handle)->listener, IPPROTO_TCP, TCP_CONGESTION, name, &bytes),
              0);
    CHECK(strncmp(name, "bbr", 3) != 0);
    weft_net_close(net);
}

/* A connection that ends while pages leave for it, some of which are gone: an error, and no signal that ends
 * the program. */
typedef struct cut {
    int fd, other;
    long after_ns;
} cut;

static void *cut_later(void *opaque)
{
    const cut *c = opaque;
    int64_t until = weft_clock_ns() + c->after_ns;

    while (weft_clock_ns() < until)
        ;
    CHECK(dup2(c->other, c->fd) == c->fd); /* which closes it, as the end of a process does */
    return NULL;
}

static void check_cut(void)
{
    enum { ROUNDS = 30, LARGE = 7 << 20 };
    static const uint64_t keys[RANKS] = {3, 3};
    char *data = calloc(1, LARGE);
    int nothing = open("/dev/null", O_RDWR);
    node nodes[RANKS];

    for (int i = 0; i < ROUNDS && open_pair(nodes, keys, 20000000000); i++) {
        weft_net_put put = {.into = nodes[1].slots + 65536, .from = data, .rows = 1, .row_bytes = LARGE};
        weft_signal finished = {0};
        cut c = {.other = nothing, .after_ns = 100000 + i * 30000};
        pthread_t thread;

        check_marks(nodes); /* so that they are connected */
        c.fd = ((tcp_engine *)nodes[0].net->handle)->peers[1].fd;
        CHECK_INT(pthread_create(&thread, NULL, cut_later, &c), 0);
        weft_net_send(nodes[1].net, 0, &put, &finished);
        pthread_join(thread, NULL);
        CHECK(wait_for(&finished, 1));
        close_pair(nodes);
    }
    close(nothing);
    free(data);
}

int main(void)
{
    setenv("WEFT_NET", "tcp", 1);
    check_stranger();
    check_door();
    check_no_more_files();
    check_late();
    check_unpaced();
    check_cut();
    setenv("WEFT_NET", "ucx", 1);
    check_stranger();
    return check_report("test_net_connections");
}
