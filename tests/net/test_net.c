/* Puts between two nodes, by each engine: bytes, rows, order of posts, what may change when, notes, good-bye,
 * and what cannot be. */
#include <unistd.h>

#include "net/tcp_peer.h"
#include "net/ucx.h"
#include "pair.h"

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

/* What comes for one who has polled, so often that the net's thread stands back or less, and then does
 * something else, with or without a word. */
static void check_polled(node nodes[RANKS])
{
    weft_net_put put = {.effect = WEFT_NET_STORE, .post_count = 1};
    weft_signal *there = (weft_signal *)(nodes[0].slots + 2048);

    for (int round = 1; round <= 48; round++) {
        if (round % 3 == 0)
            usleep(2000); /* it listens by then */
        for (int poll = round % 16; poll > 0; poll--)
            weft_net_poll(nodes[0].net);
        if (round & 1)
            weft_net_rest(nodes[0].net);
        put.posts[0] = (weft_net_post){nodes[1].slots + 2048, (uint64_t)round};
        weft_net_send(nodes[1].net, 0, &put, NULL);
        CHECK(wait_for(there, (uint64_t)round));
    }
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
    check_polled(nodes);
    check_marks(nodes);
    check_lent(nodes);
    check_full(nodes);
    check_goodbye(nodes);
    close_pair(nodes);
    check_bounds();
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
    check_engine("ucx");
    check_together();
    return check_report("test_net");
}
