/* Puts between two "nodes" of this process over loopback: bytes, rows, order of posts, what comes before its
 * call, good-bye, loss, strangers. */
#include "net/net.h"

#include <pthread.h>
#include <time.h>

#include "core/clock.h"
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

/* Ranks 0 and 1 of a world whose key is `keys[rank]`. */
static bool open_pair(node nodes[RANKS], const uint64_t keys[RANKS], int64_t silence_ns)
{
    const void *addresses[RANKS][RANKS] = {{NULL}};
    weft_error_text error;
    size_t bytes;

    for (int rank = 0; rank < RANKS; rank++) {
        nodes[rank] = (node){.slots = aligned_alloc(4096, (size_t)STRIDE * RANKS)};
        memset(nodes[rank].slots, 0, (size_t)STRIDE * RANKS);
        if (weft_net_open(RANKS, &nodes[rank].net, &error) != WEFT_OK) {
            CHECK_INT(error.status, WEFT_ERR_UNSUPPORTED);
            printf("test_net: skipped: %s\n", error.text);
            return false;
        }
    }
    for (int rank = 0; rank < RANKS; rank++) {
        weft_net_world world = {
            .rank = rank,
            .size = RANKS,
            .key = keys[rank],
            .silence_ns = silence_ns,
            .hooks = {
                .context = &nodes[rank], .note = on_note, .gone = on_gone, .locate = locate, .name = name}};

        addresses[rank][1 - rank] = weft_net_address(nodes[1 - rank].net, &bytes);
        CHECK_INT(weft_net_begin(nodes[rank].net, &world, addresses[rank], &error), WEFT_OK);
    }
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

int main(void)
{
    static const uint64_t keys[RANKS] = {42, 42};
    node nodes[RANKS];

    if (!open_pair(nodes, keys, 60000000000))
        return 0;
    check_order(nodes);
    check_rows(nodes);
    check_words(nodes);
    check_early(nodes);
    check_goodbye(nodes);
    close_pair(nodes);
    check_stranger();
    check_bounds();
    return check_report("test_net");
}
