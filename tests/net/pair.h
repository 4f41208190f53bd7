/* Two "nodes" of this process, connected by an engine, and what shows that something has passed between them.
 */
#ifndef WEFT_TESTS_NET_PAIR_H
#define WEFT_TESTS_NET_PAIR_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "net/net.h"
#include "net/wire.h"
#include "support/check.h"

enum { STRIDE = 8 << 20, RANKS = 2, MANY = 400 };

typedef struct node {
    weft_net *net;
    char *slots;
    _Atomic int notes, gone;
    char note[32];
} node;

static inline void on_note(void *context, int from, const void *data, size_t bytes)
{
    node *n = context;

    CHECK_INT(from, 1);
    CHECK(bytes <= sizeof(n->note));
    memcpy(n->note, data, bytes);
    n->notes++;
}

static inline void on_gone(void *context, int from)
{
    (void)from;
    ((node *)context)->gone++;
}

static inline char *locate(void *context, int rank, uint64_t at, uint64_t bytes)
{
    return at <= STRIDE && bytes <= STRIDE - at ? ((node *)context)->slots + rank * (size_t)STRIDE + at
                                                : NULL;
}

static inline bool name(void *context, int rank, const void *address, uint64_t *at)
{
    *at = (uint64_t)((const char *)address - ((node *)context)->slots) - rank * (uint64_t)STRIDE;
    return *at < STRIDE;
}

static inline int wait_for(const weft_signal *signal, uint64_t value)
{
    int64_t until = weft_clock_ns() + 20000000000;

    while (!weft_signal_reached(signal, value) && weft_clock_ns() < until)
        nanosleep(&(struct timespec){0, 100000}, NULL);
    return weft_signal_reached(signal, value);
}

static inline bool open_nets(node nodes[RANKS])
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

static inline void begin_net(node nodes[RANKS], int rank, uint64_t key, int64_t silence_ns)
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

static inline void begin_nets(node nodes[RANKS], const uint64_t keys[RANKS], int64_t silence_ns)
{
    for (int rank = 0; rank < RANKS; rank++)
        begin_net(nodes, rank, keys[rank], silence_ns);
}

/* Ranks 0 and 1 of a world whose key is `keys[rank]`. */
static inline bool open_pair(node nodes[RANKS], const uint64_t keys[RANKS], int64_t silence_ns)
{
    if (!open_nets(nodes))
        return false;
    begin_nets(nodes, keys, silence_ns);
    return true;
}

static inline void close_pair(node nodes[RANKS])
{
    for (int rank = 0; rank < RANKS; rank++) {
        if (nodes[rank].net)
            weft_net_close(nodes[rank].net);
        free(nodes[rank].slots);
    }
}

/* A plain word and a signal in one message: the word is there when the signal is, and nothing beside it
 * changes. */
static inline void check_marks(node nodes[RANKS])
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

#endif
