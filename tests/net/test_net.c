/* Puts between two "nodes" of this process, by each engine: bytes, rows, order of posts, what comes before
 * its call, what travels with another, what comes after it, good-bye, loss, strangers. */
#include "net/net.h"

#include <errno.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "net/tcp_peer.h"
#include "net/ucx.h"
#include "net/wire.h"
#include "support/check.h"

enum { STRIDE = 8 << 20, RANKS = 2, MANY = 400 };

typedef struct node {
    weft_net *net;
    char *slots;
    _Atomic int notes, gone;
    char note[32];
} node;

static void on_note(void *context, int from, const void *data, size_t bytes)
{
    node *n = context;

    CHECK_INT(from, 1);
    CHECK(bytes <= sizeof(n->note));
    memcpy(n->note, data, bytes);
    n->notes++;
}

static void on_gone(void *context, int from)
{
    (void)from;
    ((node *)context)->gone++;
}

static char *locate(void *context, int rank, uint64_t at, uint64_t bytes)
{
    return at <= STRIDE && bytes <= STRIDE - at ? ((node *)context)->slots + rank * (size_t)STRIDE + at
                                                : NULL;
}

static bool name(void *context, int rank, const void *address, uint64_t *at)
{
    *at = (uint64_t)((const char *)address - ((node *)context)->slots) - rank * (uint64_t)STRIDE;
    return *at < STRIDE;
}

static int wait_for(const weft_signal *signal, uint64_t value)
{
    int64_t until = weft_clock_ns() + 20000000000;

    while (!weft_signal_reached(signal, value) && weft_clock_ns() < until)
        nanosleep(&(struct timespec){0, 100000}, NULL);
    return weft_signal_reached(signal, value);
}

static bool open_nets(node nodes[RANKS])
{
    weft_error_text error;

    for (int rank = 0; rank < RANKS; rank++) {
        nodes[rank] = (node){.slots = aligned_alloc(4096, (size_t)STRIDE * RANKS)};
        memset(nodes[rank].slots, 0, (size_t)STRIDE * RANKS);
        if (weft_net_open(RANKS, &nodes[rank].net, &error) != WEFT_OK) {
            CHECK_INT(error.status, WEFT_ERR_UNSUPPORTED);
            printf("test_net: skipped: %s\n", error.text);
            free(nodes[rank].slots);
            return false;
        }
    }
    return true;
}

static void begin_net(node nodes[RANKS], int rank, uint64_t key, int64_t silence_ns)
{
    const void *addresses[RANKS] = {NULL};
    weft_error_text error;
    size_t bytes;
    weft_net_world world = {
        .rank = rank,
        .size = RANKS,
        .key = key,
        .silence_ns = silence_ns,
        .hooks = {.context = &nodes[rank], .note = on_note, .gone = on_gone, .locate = locate, .name = name}};

    addresses[1 - rank] = weft_net_address(nodes[1 - rank].net, &bytes);
    nodes[rank].net->peers[1 - rank].sent = nodes[rank].net->peers[1 - rank].next = UINT32_MAX - MANY / 2;
    CHECK_INT(weft_net_begin(nodes[rank].net, &world, addresses, &error), WEFT_OK);
}

static void begin_nets(node nodes[RANKS], const uint64_t keys[RANKS], int64_t silence_ns)
{
    for (int rank = 0; rank < RANKS; rank++)
        begin_net(nodes, rank, keys[rank], silence_ns);
}

/* Ranks 0 and 1 of a world whose key is `keys[rank]`. */
static bool open_pair(node nodes[RANKS], const uint64_t keys[RANKS], int64_t silence_ns)
{
    if (!open_nets(nodes))
        return false;
    begin_nets(nodes, keys, silence_ns);
    return true;
}

static void close_pair(node nodes[RANKS])
{
    for (int rank = 0; rank < RANKS; rank++) {
        if (nodes[rank].net)
            weft_net_close(nodes[rank].net);
        free(nodes[rank].slots);
    }
}

/* Messages of very different sizes, so that some overtake others: each post says that all before it are
 * there. */
static void check_order(node nodes[RANKS])
{
    static const size_t sizes[] = {8, 1 << 20, 64, 300 << 10, 0, 4096};
    weft_signal *there = (weft_signal *)(nodes[1].slots + STRIDE);
    weft_signal *here = (weft_signal *)(nodes[0].slots + STRIDE), finished = {0};
    char *into = nodes[1].slots + STRIDE + 4096, *data = malloc(1 << 20);
    bool all_there = true;

    for (int i = 0; i < MANY; i++) {
        size_t bytes = sizes[i % 6];
        weft_net_put put = {.into = nodes[0].slots + STRIDE + 4096 + i % 6 * (1 << 20),
                            .from = data,
                            .rows = 1,
                            .row_bytes = bytes,
                            .post_count = 1,
                            .posts = {{here, 1}}};

        memset(data, i + 1, bytes);
        weft_net_send(nodes[0].net, 1, &put, i % 3 ? &finished : NULL);
        if (i % 3) { /* the bytes are read where they lie */
            CHECK(wait_for(&finished, (uint64_t)(i / 3 * 2 + i % 3)));
        }
        if (i % 6 == 5) { /* all six have landed when the last has posted */
            CHECK(wait_for(there, (uint64_t)i + 1));
            for (int j = 0; j < 6; j++)
                for (size_t at = 0; at < sizes[j]; at += 997)
                    all_there = all_there && into[j * (1 << 20) + (long)at] == (char)(i - 5 + j + 1);
        }
    }
    CHECK(all_there);
    CHECK(wait_for(there, MANY));
    free(data);
}

static void check_rows(node nodes[RANKS])
{
    weft_signal *there = (weft_signal *)(nodes[0].slots + 128);
    char rows[300][50], *into = nodes[0].slots + 4096;
    bool equal = true, clean = true;
    weft_net_put put = {.into = nodes[1].slots + 4096,
                        .from = rows,
                        .rows = 300,
                        .row_bytes = 40,
                        .from_pitch = 50,
                        .into_pitch = 64,
                        .effect = WEFT_NET_STORE,
                        .post_count = 1,
                        .posts = {{nodes[1].slots + 128, 77}}};

    for (int i = 0; i < 300; i++)
        memset(rows[i], i, sizeof(rows[i]));
    weft_net_send(nodes[1].net, 0, &put, NULL);
    CHECK(wait_for(there, 77));
    for (int i = 0; i < 300; i++) {
        equal = equal && memcmp(into + i * 64, rows[i], 40) == 0;
        clean = clean && into[i * 64 + 40] == 0;
    }
    CHECK(equal);
    CHECK(clean);
    /* A word of the sender's own slot appears in the receiver's shadow of it. */
    put = (weft_net_put){
        .effect = WEFT_NET_STORE, .post_count = 1, .posts = {{nodes[1].slots + STRIDE + 512, 5}}};
    weft_net_send(nodes[1].net, 0, &put, NULL);
    CHECK(wait_for((weft_signal *)(nodes[0].slots + STRIDE + 512), 5));
    CHECK_INT(weft_signal_load((weft_signal *)(nodes[1].slots + STRIDE + 512)), 0);
}

/* A plain word and a signal in one message: the word is there when the signal is, and nothing beside it
 * changes. */
static void check_marks(node nodes[RANKS])
{
    weft_signal *there = (weft_signal *)(nodes[0].slots + 1024);
    uint64_t *word = (uint64_t *)(void *)(nodes[0].slots + 1168);
    weft_net_put put = {.into = nodes[1].slots + 12288,
                        .from = "marked",
                        .rows = 1,
                        .row_bytes = 7,
                        .effect = WEFT_NET_ADD,
                        .post_count = 2,
                        .mark_count = 1,
                        .posts = {{nodes[1].slots + 1168, 9}, {nodes[1].slots + 1024, 3}}};

    for (uint64_t round = 1; round <= 2; round++) {
        weft_net_send(nodes[1].net, 0, &put, NULL);
        CHECK(wait_for(there, 3 * round));
        CHECK_INT(*word, 9);
        CHECK_INT(word[1], 0);
        CHECK(strcmp(nodes[0].slots + 12288, "marked") == 0);
    }
}

/* Bytes that are read where they lie belong to the sender again only when the receiver has them, also those
 * of one page after another, from an odd address, in both directions at once. */
static void check_lent(node nodes[RANKS])
{
    enum { LARGE = (3 << 20) + 5 };
    char *data[RANKS] = {malloc(LARGE + 3), malloc(LARGE + 3)};
    weft_signal finished[RANKS] = {{0}};
    bool equal = true;

    for (int round = 1; round <= 3; round++) {
        for (int rank = 0; rank < RANKS; rank++) {
            weft_net_put put = {
                .into = nodes[rank].slots + (size_t)STRIDE * (size_t)(1 - rank) + 65539,
                .from = data[rank] + 3,
                .rows = 1,
                .row_bytes = LARGE,
                .post_count = 1,
                .posts = {{nodes[rank].slots + (size_t)STRIDE * (size_t)(1 - rank) + 384, 1}}};

            for (int at = 0; at < LARGE; at++)
                data[rank][3 + at] = (char)(at * 7 + at / 4096 + round * 11 + rank);
            weft_net_send(nodes[rank].net, 1 - rank, &put, &finished[rank]);
        }
        for (int rank = 0; rank < RANKS; rank++) {
            CHECK(wait_for(&finished[rank], (uint64_t)round));
            memset(data[rank], 0xee, LARGE + 3);
        }
        for (int rank = 0; rank < RANKS; rank++) {
            const char *into = nodes[rank].slots + (size_t)STRIDE * (size_t)rank + 65539;

            CHECK(wait_for((weft_signal *)(void *)(nodes[rank].slots + (size_t)STRIDE * (size_t)rank + 384),
                           (uint64_t)round));
            for (int at = 0; at < LARGE; at++)
                equal = equal && into[at] == (char)(at * 7 + at / 4096 + round * 11 + 1 - rank);
        }
    }
    CHECK(equal);
    free(data[0]);
    free(data[1]);
}

/* Bytes that may change at once may do so too where the connection takes only some of them, or none. */
static void check_full(node nodes[RANKS])
{
    enum { PIECES = 32, PIECE = 200 << 10 };
    weft_signal *there = (weft_signal *)(nodes[1].slots + STRIDE + 640);
    char *data = malloc(PIECE);
    bool equal = true;

    pthread_mutex_lock(&nodes[1].net->lock); /* so that nobody reads */
    for (int i = 0; i < PIECES; i++) {
        weft_net_put put = {.into = nodes[0].slots + STRIDE + 65536 + (size_t)i * PIECE,
                            .from = data,
                            .rows = 1,
                            .row_bytes = PIECE,
                            .post_count = 1,
                            .posts = {{nodes[0].slots + STRIDE + 640, 1}}};

        for (int at = 0; at < PIECE; at++)
            data[at] = (char)(at * 5 + at / 1000 + i);
        weft_net_send(nodes[0].net, 1, &put, NULL);
    }
    pthread_mutex_unlock(&nodes[1].net->lock);
    CHECK(wait_for(there, PIECES));
    for (int i = 0; i < PIECES; i++)
        for (int at = 0; at < PIECE; at++)
            equal =
                equal && nodes[1].slots[STRIDE + 65536 + i * PIECE + at] == (char)(at * 5 + at / 1000 + i);
    CHECK(equal);
    free(data);
}

static void check_words(node nodes[RANKS])
{
    weft_net_put last = {.post_count = 1, .posts = {{nodes[1].slots + 256, 1}}};

    weft_net_tell(nodes[1].net, 0, "a note", 7);
    weft_net_send(nodes[1].net, 0, &last, NULL);
    CHECK(wait_for((weft_signal *)(nodes[0].slots + 256), 1));
    CHECK_INT(nodes[0].notes, 1);
    CHECK(strcmp(nodes[0].note, "a note") == 0);
}

/* ---- early messages -------------------------------------------------------------------------------- */

typedef struct taken {
    char memory[8][64];
    _Atomic int count;
    int order[8];
} taken;

static char *place_early(void *context, const uint64_t *what, uint64_t rows, uint64_t row_bytes,
                         ptrdiff_t *pitch)
{
    *pitch = 16;
    return what[0] < 8 && rows * 16 <= 64 && row_bytes <= 16 ? ((taken *)context)->memory[what[0]] : NULL;
}

static void landed_early(void *context, const uint64_t *what)
{
    taken *t = context;

    t->order[t->count] = (int)what[0];
    t->count++;
}

static bool wait_taken(const taken *t, int count)
{
    for (int i = 0; i < 2000 && t->count < count; i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    return t->count == count;
}

static void send_early(node nodes[RANKS], weft_net_call call, uint64_t number, const weft_net_put *before)
{
    static char rows[4][20];
    weft_net_early early = {
        .call = call, .what = {number}, .from = rows, .rows = 4, .row_bytes = 8, .from_pitch = 20};

    for (int row = 0; row < 4; row++)
        memset(rows[row], (int)(16 * number) + row, sizeof(rows[row]));
    weft_net_send_early(nodes[1].net, 0, &early, before, NULL);
}

/* What comes before its call waits for it, in order; what is of an earlier call or asks for something else is
 * dropped; what travels along is there at once. */
static void check_early(node nodes[RANKS])
{
    static taken t;
    weft_net_call call = {.channel = 7, .sequence = 5, .hash = 99};
    weft_net_call last = {7, 4, 99}, next = {7, 6, 99}, other = {7, 5, 98}, elsewhere = {8, 5, 99};
    weft_net_run run = {.call = call, .context = &t, .place = place_early, .landed = landed_early};
    weft_net_put along = {.into = nodes[1].slots + 8192,
                          .from = "along",
                          .rows = 1,
                          .row_bytes = 6,
                          .effect = WEFT_NET_STORE,
                          .post_count = 1,
                          .posts = {{nodes[1].slots + 640, 9}}};

    memset(&t, 0, sizeof(t));
    send_early(nodes, last, 0, NULL);
    send_early(nodes, call, 1, NULL);
    send_early(nodes, next, 2, NULL);
    send_early(nodes, other, 3, NULL);
    send_early(nodes, elsewhere, 4, NULL);
    send_early(nodes, call, 5, &along);
    CHECK(wait_for((weft_signal *)(nodes[0].slots + 640), 9));
    CHECK(strcmp(nodes[0].slots + 8192, "along") == 0);
    /* Another message has come, so that all of those have. */
    along.posts[0].value = 10;
    weft_net_send(nodes[1].net, 0, &along, NULL);
    CHECK(wait_for((weft_signal *)(nodes[0].slots + 640), 10));
    CHECK_INT(t.count, 0);
    weft_net_open_run(nodes[0].net, &run);
    CHECK_INT(t.count, 2);
    CHECK_INT(t.order[0], 1);
    CHECK_INT(t.order[1], 5);
    send_early(nodes, call, 6, NULL); /* into the open run */
    CHECK(wait_taken(&t, 3));
    weft_net_close_run(nodes[0].net, &run);
    for (int row = 0; row < 4; row++) {
        CHECK_INT(t.memory[1][16 * row + 7], 16 + row);
        CHECK_INT(t.memory[6][16 * row], 96 + row);
        CHECK_INT(t.memory[6][16 * row + 8], 0);
    }
    weft_net_drop_early(nodes[0].net, 8);
    run.call = elsewhere;
    weft_net_open_run(nodes[0].net, &run);
    CHECK_INT(t.count, 3);
    weft_net_close_run(nodes[0].net, &run);
    run.call = next;
    weft_net_open_run(nodes[0].net, &run);
    CHECK_INT(t.count, 4);
    CHECK_INT(t.order[3], 2);
    weft_net_close_run(nodes[0].net, &run);
}

static char *place_whole(void *context, const uint64_t *what, uint64_t rows, uint64_t row_bytes,
                         ptrdiff_t *pitch)
{
    (void)what;
    (void)rows;
    *pitch = (ptrdiff_t)row_bytes;
    return context;
}

static void landed_whole(void *context, const uint64_t *what)
{
    (void)context;
    CHECK_INT(what[0], 5);
}

static long page_faults(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

/* Large messages that come before their calls lie in the same memory, one after the other, whatever malloc
 * does. (UCX puts them together in memory of its own first.) */
static void check_memory_is_kept(node nodes[RANKS])
{
    enum { BYTES = 256 << 10, CALLS = 40, PAGES = BYTES / 4096 };
    static weft_signal finished;
    char *data = malloc(BYTES), *into = malloc(BYTES);
    weft_net_call call = {.channel = 11, .hash = 99};
    weft_net_run run = {.context = into, .place = place_whole, .landed = landed_whole};
    weft_net_early early = {.what = {5}, .from = data, .rows = 1, .row_bytes = BYTES};
    weft_net_put behind = {.effect = WEFT_NET_STORE, .post_count = 1, .posts = {{nodes[1].slots + 768, 0}}};
    long before = 0, faults;

    weft_signal_store(&finished, 0);
    mallopt(M_MMAP_THRESHOLD, BYTES / 2); /* and whoever asks for so much gets new pages */
    memset(into, 0, BYTES);
    for (int i = 1; i <= CALLS; i++) {
        if (i == 3)
            before = page_faults();
        call.sequence = (uint64_t)i;
        early.call = run.call = call;
        memset(data, i, BYTES);
        weft_net_send_early(nodes[1].net, 0, &early, NULL, &finished);
        behind.posts[0].value = (uint64_t)i;
        weft_net_send(nodes[1].net, 0, &behind, NULL);
        CHECK(wait_for((weft_signal *)(nodes[0].slots + 768), (uint64_t)i));
        CHECK(wait_for(&finished, (uint64_t)i));
        weft_net_open_run(nodes[0].net, &run);
        weft_net_close_run(nodes[0].net, &run);
        CHECK(memcmp(into, data, BYTES) == 0);
    }
    faults = page_faults() - before;
    CHECK(faults < CALLS * PAGES / 2 || strcmp(nodes[0].net->engine->name, "TCP") != 0);
    free(data);
    free(into);
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

static void landed_never(void *context, const uint64_t *what)
{
    (void)context;
    (void)what;
    CHECK(false);
}

/* A call that ends when half of a message has come, whose sender is stopped: it ends, and the other half is
 * written nowhere. */
static void check_cut(void)
{
    enum { BYTES = 32 << 20 }; /* more than a connection takes while nobody reads */
    static const uint64_t keys[RANKS] = {42, 42};
    static const weft_net_call call = {.channel = 7, .sequence = 1, .hash = 99};
    char *data = malloc(BYTES), *into = calloc(1, BYTES);
    weft_net_run run = {.call = call, .context = into, .place = place_whole, .landed = landed_never};
    weft_net_early early = {.call = call, .from = data, .rows = 1, .row_bytes = BYTES};
    weft_net_put last = {.effect = WEFT_NET_STORE, .post_count = 1};
    node nodes[RANKS];
    bool begun = false;
    int written = 0;

    if (!open_pair(nodes, keys, 60000000000)) {
        free(data);
        free(into);
        return;
    }
    check_marks(nodes); /* they have met */
    memset(data, 1, BYTES);
    weft_net_open_run(nodes[0].net, &run);
    pthread_mutex_lock(&nodes[0].net->lock); /* reads nothing until its sender is stopped */
    weft_net_send_early(nodes[1].net, 0, &early, NULL, NULL);
    pthread_mutex_lock(&nodes[1].net->lock);
    while (nodes[1].net->engine->progress(nodes[1].net->handle)) /* as much as the connection takes */
        ;
    pthread_mutex_unlock(&nodes[0].net->lock);
    for (int i = 0; i < 2000 && !begun; i++) {
        nanosleep(&(struct timespec){0, 10000000}, NULL);
        pthread_mutex_lock(&nodes[0].net->lock);
        begun = nodes[0].net->peers[1].waiting && (!nodes[0].net->engine->forget || into[0] == 1);
        pthread_mutex_unlock(&nodes[0].net->lock);
    }
    CHECK(begun);
    CHECK_INT(run.arriving, nodes[0].net->engine->forget != NULL);
    weft_net_close_run(nodes[0].net, &run);
    memset(into, 0x77, BYTES);
    pthread_mutex_unlock(&nodes[1].net->lock);
    last.posts[0] = (weft_net_post){nodes[1].slots + 640, 1};
    weft_net_send(nodes[1].net, 0, &last, NULL);
    CHECK(wait_for((weft_signal *)(nodes[0].slots + 640), 1)); /* so all has come */
    for (int at = 0; at < BYTES; at++)
        written += into[at] != 0x77;
    CHECK_INT(written, 0);
    close_pair(nodes);
    free(data);
    free(into);
}

/* Beyond the slot: not written, and its sender is no peer any more. */
static void check_bounds(void)
{
    static const uint64_t keys[RANKS] = {3, 3};
    node nodes[RANKS];
    weft_net_put put = {.post_count = 1};

    if (!open_pair(nodes, keys, 60000000000))
        return;
    put.posts[0] = (weft_net_post){nodes[1].slots + 256 + (size_t)RANKS * STRIDE, 1};
    weft_net_send(nodes[1].net, 0, &put, NULL);
    for (int i = 0; i < 2000 && !weft_net_lost(nodes[0].net, 1); i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    CHECK(weft_net_lost(nodes[0].net, 1));
    CHECK_HAS(weft_net_why(nodes[0].net, 1), "cannot be");
    close_pair(nodes);
}

static void check_goodbye(node nodes[RANKS])
{
    weft_net_close(nodes[1].net);
    nodes[1].net = NULL;
    for (int i = 0; i < 2000 && !nodes[0].gone; i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    CHECK_INT(nodes[0].gone, 1);
    CHECK(!weft_net_lost(nodes[0].net, 1));
}

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

/* A stranger that connects before the ranks do. */
static int come_uninvited(int listener)
{
    struct sockaddr_in6 name;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(name);
    char garbage[200];
    int fd = socket(AF_INET, SOCK_STREAM, 0);

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

static void check_engine(const char *name)
{
    static const uint64_t keys[RANKS] = {42, 42};
    node nodes[RANKS];

    setenv("WEFT_NET", name, 1);
    if (!open_pair(nodes, keys, 60000000000))
        return;
    check_order(nodes);
    check_rows(nodes);
    check_words(nodes);
    check_marks(nodes);
    check_lent(nodes);
    check_full(nodes);
    check_early(nodes);
    check_memory_is_kept(nodes);
    check_goodbye(nodes);
    close_pair(nodes);
    check_stranger();
    check_bounds();
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

/* A kilobyte and a third, of a collective of 4 KiB over three nodes, leaves in one packet of 1448 bytes. */
static void check_short(void)
{
    message m = {.kind = KIND_PUT, .post_count = 2};

    CHECK(sizeof(frame) + weft_message_bytes(&m) + 4096 / 3 <= 1448);
}

/* UCX reads sizes of buffers from the environment alone. What is set there for one engine is gone when the
 * next is opened, or that one takes it for the user's, and finds it gone in the middle. */
static _Atomic int settings, mixed;

static bool is_setting(const char *name)
{
    return strcmp(name, "UCX_TCP_RX_SEG_SIZE") == 0;
}

char *__real_getenv(const char *name);
int __real_setenv(const char *name, const char *value, int overwrite);
int __real_unsetenv(const char *name);
char *__wrap_getenv(const char *name);
int __wrap_setenv(const char *name, const char *value, int overwrite);
int __wrap_unsetenv(const char *name);

char *__wrap_getenv(const char *name)
{
    mixed += is_setting(name) && settings;
    return __real_getenv(name);
}

int __wrap_setenv(const char *name, const char *value, int overwrite)
{
    settings += is_setting(name);
    return __real_setenv(name, value, overwrite);
}

int __wrap_unsetenv(const char *name)
{
    settings -= is_setting(name);
    return __real_unsetenv(name);
}

static void *open_engines(void *opaque)
{
    const weft_engine *engine = opaque;
    const weft_engine_events events = {0};
    weft_error_text error;

    for (int i = 0; i < 3; i++) {
        void *handle = NULL;

        CHECK_INT(engine->open(RANKS, &events, &handle, &error), WEFT_OK);
        if (handle)
            engine->close(handle, 0);
    }
    return NULL;
}

static void check_together(void)
{
    const weft_engine *engine;
    pthread_t threads[4];
    weft_error_text error;

    if (weft_engine_ucx(&engine, &error) != WEFT_OK)
        return;
    for (int i = 0; i < 4; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, open_engines, (void *)engine), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(mixed, 0);
    CHECK_INT(settings, 0);
}

int main(void)
{
    check_short();
    check_engine("tcp");
    check_door();
    check_no_more_files();
    check_late();
    check_cut();
    check_unpaced();
    check_engine("ucx");
    check_together();
    /* Large messages are fetched then, and not without their sender. */
    setenv("UCX_RNDV_THRESH", "1k", 1);
    setenv("UCX_TLS", "tcp", 1);
    check_cut();
    return check_report("test_net");
}
