/* Messages for calls that their receiver may not have begun, by each engine: they wait for it, in memory that
 * is used again, what travels with one is there before it, and of one that breaks off nothing is written when
 * its call is over. */
#include <malloc.h>
#include <sys/resource.h>

#include "pair.h"

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

static void check_engine(const char *name)
{
    static const uint64_t keys[RANKS] = {42, 42};
    node nodes[RANKS];

    setenv("WEFT_NET", name, 1);
    if (!open_pair(nodes, keys, 60000000000))
        return;
    check_early(nodes);
    check_memory_is_kept(nodes);
    close_pair(nodes);
}

int main(void)
{
    check_engine("tcp");
    check_cut();
    check_engine("ucx");
    /* Large messages are fetched then, and not without their sender. */
    setenv("UCX_RNDV_THRESH", "1k", 1);
    setenv("UCX_TLS", "tcp", 1);
    check_cut();
    return check_report("test_net_early");
}
