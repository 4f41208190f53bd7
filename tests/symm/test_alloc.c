/* Symmetric memory: same offset everywhere, reachable on peers, zeroed; failures are the same on every rank.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/check.h"
#include "support/ranks.h"
#include "symm/room.h"

/* Asks for what cannot be had: on the way all that every rank has freed becomes free. */
static void collect(weft_group *group)
{
    void *memory = NULL;

    CHECK_INT(weft_alloc(group, SIZE_MAX, 0, &memory), WEFT_ERR_MEMORY);
}

static bool is_pristine(const weft_group *group)
{
    return weft_heap_pristine(weft_symm_heap(group, 0)) && weft_heap_pristine(weft_symm_heap(group, 1));
}

static void peers_reach(weft_group *group, void *argument)
{
    int rank = weft_rank(group), size = weft_size(group);
    int64_t *words = NULL;
    void *odd = NULL;

    (void)argument;
    CHECK_INT(weft_alloc(group, sizeof(int64_t) * 100, 0, (void **)&words), WEFT_OK);
    CHECK_INT(weft_alloc(group, 3, 4096, &odd), WEFT_OK);
    CHECK(odd && (uintptr_t)odd % 4096 == 0 && (uintptr_t)words % 128 == 0);
    for (int i = 0; i < 100; i++)
        CHECK_INT(words[i], 0);
    words[0] = rank;
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int peer = 0; peer < size; peer++) {
        int64_t *theirs = weft_peer(group, words, peer);

        CHECK_INT(theirs[0], peer);
        theirs[1 + rank] = 1000 * peer + rank;
    }
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int peer = 0; peer < size; peer++)
        CHECK_INT(words[1 + peer], 1000 * rank + peer);
    CHECK(weft_peer(group, words, rank) == (void *)words);
    CHECK(weft_peer(group, &rank, 0) == NULL && weft_peer(group, words, size) == NULL);
    CHECK(weft_symm_contains(group, words, 800) && !weft_symm_contains(group, words, (size_t)1 << 62));
    CHECK(size == 1 || !weft_symm_contains(group, weft_peer(group, words, (rank + 1) % size), 1));
    CHECK_INT(weft_free(group, words), WEFT_OK);
    CHECK_INT(weft_free(group, odd), WEFT_OK);
    CHECK_INT(weft_free(group, NULL), WEFT_OK);
}

/* Small blocks are cleared, large ones come as fresh pages; both were dirty before. */
static void reused_is_zero(weft_group *group, void *argument)
{
    static const size_t sizes[] = {64, 5000, 1 << 20, 5 << 20, 100, 9 << 20};
    uint64_t budget, used;

    (void)argument;
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            unsigned char *memory = NULL;
            size_t dirty = 0;

            CHECK_INT(weft_alloc(group, sizes[i], 0, (void **)&memory), WEFT_OK);
            for (size_t at = 0; at < sizes[i]; at++)
                dirty += memory[at] != 0;
            CHECK_INT(dirty, 0);
            memset(memory, 0xff, sizes[i]);
            CHECK_INT(weft_free(group, memory), WEFT_OK);
        }
    collect(group);
    weft_symm_usage(group, &budget, &used);
    CHECK_INT(used, 0);
    CHECK(is_pristine(group));
}

/* The system takes no pages back of which one is locked. */
static void locked_is_zero(weft_group *group, void *argument)
{
    enum { BYTES = 5 << 20 };
    unsigned char *memory = NULL, *again = NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), dirty = 0;
    void *inside;

    (void)argument;
    CHECK_INT(weft_alloc(group, BYTES, 0, (void **)&memory), WEFT_OK);
    memset(memory, 0xff, BYTES);
    inside = (void *)(((uintptr_t)memory + BYTES / 2) / page * page);
    CHECK_INT(mlock(inside, page), 0);
    CHECK_INT(weft_free(group, memory), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK); /* every rank has let go: the place can be had again */
    CHECK_INT(weft_alloc(group, BYTES, 0, (void **)&again), WEFT_OK);
    CHECK(again == memory);
    for (size_t at = 0; at < BYTES; at++)
        dirty += again[at] != 0;
    CHECK_INT(dirty, 0);
    munlock(inside, page);
    CHECK_INT(weft_free(group, again), WEFT_OK);
}

/* Large objects lie at different places of a page on neighbouring ranks, aligned all the same; an alignment
 * that allows no such thing is kept; the whole budget can still be had in one piece. */
static void staggered(weft_group *group, void *argument)
{
    static const size_t sizes[] = {64 << 10, 3 << 20, 9 << 20};
    int rank = weft_rank(group), size = weft_size(group), next = (rank + 1) % size;
    uint64_t budget, used;
    char *memory = NULL, *theirs;

    (void)argument;
    weft_symm_usage(group, &budget, &used);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        CHECK_INT(weft_alloc(group, sizes[i], 0, (void **)&memory), WEFT_OK);
        theirs = weft_peer(group, memory, next);
        CHECK((uintptr_t)memory % 128 == 0 && (uintptr_t)theirs % 128 == 0);
        CHECK(size == 1 || sizes[i] > budget / 8 || (uintptr_t)memory % 2048 != (uintptr_t)theirs % 2048);
        theirs[0] = theirs[sizes[i] - 1] = (char)(rank + 1);
        CHECK_INT(weft_barrier(group), WEFT_OK);
        CHECK(memory[0] == 1 + (rank + size - 1) % size && memory[sizes[i] - 1] == memory[0]);
        CHECK_INT(weft_free(group, memory), WEFT_OK);

        CHECK_INT(weft_alloc(group, sizes[i], 4096, (void **)&memory), WEFT_OK);
        CHECK((uintptr_t)memory % 4096 == 0 && (uintptr_t)weft_peer(group, memory, next) % 4096 == 0);
        CHECK_INT(weft_free(group, memory), WEFT_OK);
    }
    weft_symm_usage(group, &budget, &used);
    CHECK_INT(weft_symm_alloc(group, budget - (3 << 20), 0, (void **)&memory), WEFT_OK);
    CHECK_INT(weft_alloc(group, 3 << 20, 0, (void **)&theirs), WEFT_OK);
    weft_symm_usage(group, &budget, &used);
    CHECK_INT(used, budget);
    CHECK_INT(weft_free(group, theirs), WEFT_OK);
    CHECK_INT(weft_free(group, memory), WEFT_OK);
}

static void too_much(weft_group *group, void *argument)
{
    uint64_t budget, used;
    void *half = NULL, *memory = NULL;
    char left[64];

    (void)argument;
    weft_symm_usage(group, &budget, &used);
    CHECK_INT(weft_alloc(group, 1 << 20, 0, &half), WEFT_OK);
    CHECK_INT(weft_alloc(group, budget, 0, &memory), WEFT_ERR_MEMORY);
    weft_symm_usage(group, &budget, &used);
    CHECK(used >= 1 << 20 && used < (1 << 20) + 4096);
    snprintf(left, sizeof(left), "has %llu of %llu bytes left", (unsigned long long)(budget - used),
             (unsigned long long)budget);
    CHECK_HAS(weft_error(group), left);
    CHECK_INT(weft_alloc(group, SIZE_MAX, 0, &memory), WEFT_ERR_MEMORY);
    CHECK(memory == NULL);
    CHECK_INT(weft_free(group, half), WEFT_OK);
}

/* One object of more than 4 GiB, where there is memory for it. */
static void large(weft_group *group, void *argument)
{
    const size_t bytes = ((size_t)4 << 30) + 4096;
    uint64_t budget, used;
    unsigned char *memory = NULL;

    (void)argument;
    weft_symm_usage(group, &budget, &used);
    if (budget < bytes + bytes / 2)
        return;
    CHECK_INT(weft_alloc(group, bytes, 4096, (void **)&memory), WEFT_OK);
    memory[0] = 1;
    memory[(size_t)4 << 30] = (unsigned char)(2 + weft_rank(group));
    memory[bytes - 1] = (unsigned char)(20 + weft_rank(group));
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int peer = 0; peer < weft_size(group); peer++) {
        const unsigned char *theirs = weft_peer(group, memory, peer);

        CHECK(theirs[0] == 1 && theirs[(size_t)4 << 30] == 2 + peer && theirs[bytes - 1] == 20 + peer);
    }
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_free(group, memory), WEFT_OK);
}

static void mistakes(weft_group *group, void *argument)
{
    bool last = weft_rank(group) == weft_size(group) - 1;
    void *one = NULL, *two = NULL;

    (void)argument;
    CHECK_INT(weft_alloc(group, last ? 200 : 100, 0, &one), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "rank 0 asks for 100 bytes");
    CHECK_HAS(weft_error(group), "for 200 aligned");
    CHECK_INT(weft_alloc(group, 100, 96, &one), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "alignment is 96");
    CHECK_INT(weft_alloc(group, 100, last ? 96 : 64, &one), WEFT_ERR_MISMATCH);
    CHECK(one == NULL);
    CHECK_INT(weft_alloc(group, 100, 0, &one), WEFT_OK);
    CHECK_INT(weft_alloc(group, 100, 0, &two), WEFT_OK);
    CHECK_INT(weft_free(group, last ? one : two), WEFT_OK);
    CHECK_INT(weft_free(group, last ? one : two), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_free(group, (char *)one + 128 * 1000), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_free(group, last ? two : one), WEFT_OK);
    collect(group);
    CHECK(is_pristine(group));
}

static void put_arrives(weft_group *group, void *argument)
{
    enum { COUNT = 1000 };
    int size = weft_size(group), next = (weft_rank(group) + 1) % size,
        previous = (weft_rank(group) + size - 1) % size;
    weft_wait_note note = {.op = "put", .peer = previous, .task = -1, .kind = WEFT_WAIT_PROGRESS};
    weft_signal *arrived = NULL, *consumed = NULL;
    int *buffer = NULL, mine[COUNT];

    (void)argument;
    CHECK_INT(weft_alloc(group, sizeof(*arrived), 0, (void **)&arrived), WEFT_OK);
    CHECK_INT(weft_alloc(group, sizeof(*consumed), 0, (void **)&consumed), WEFT_OK);
    CHECK_INT(weft_alloc(group, sizeof(mine), 0, (void **)&buffer), WEFT_OK);
    for (int round = 1; round <= 200; round++) {
        int wrong = 0;

        for (int i = 0; i < COUNT; i++)
            mine[i] = round * 7 + i + weft_rank(group);
        /* The buffer is single: the next rank must have read the round before. */
        CHECK_INT(weft_signal_wait(group, consumed, (uint64_t)round - 1, &note), WEFT_OK);
        CHECK_INT(weft_put_signal(group, buffer, mine, sizeof(mine), arrived, 1, next), WEFT_OK);
        CHECK_INT(weft_signal_wait(group, arrived, (uint64_t)round, &note), WEFT_OK);
        for (int i = 0; i < COUNT; i++)
            wrong += buffer[i] != round * 7 + i + previous;
        CHECK_INT(wrong, 0);
        weft_signal_post(weft_symm_peer(group, consumed, previous), 1);
    }
}

/* Mixed sizes, many live at once, freed in another order: the heap is as it was, on every rank. */
static void mixed(weft_group *group, void *argument)
{
    enum { LIVE = 64 };
    long rounds = *(long *)argument;
    void *live[LIVE] = {NULL};
    uint64_t seed = 42, budget, used;

    for (long round = 0; round < rounds; round++) {
        int slot = (int)(check_random(&seed) % LIVE);
        size_t bytes = (size_t)(check_random(&seed) % ((uint64_t)1 << check_random(&seed) % 17));

        if (live[slot])
            CHECK_INT(weft_free(group, live[slot]), WEFT_OK);
        CHECK_INT(weft_alloc(group, bytes, (size_t)64 << check_random(&seed) % 8, &live[slot]), WEFT_OK);
    }
    for (int slot = 0; slot < LIVE; slot++)
        CHECK_INT(weft_free(group, live[slot]), WEFT_OK);
    collect(group);
    weft_symm_usage(group, &budget, &used);
    CHECK_INT(used, 0);
    CHECK(is_pristine(group));
}

static void free_after_poison(weft_group *group, void *argument)
{
    _Atomic int *arrived = NULL;
    void *memory = NULL;

    (void)argument;
    CHECK_INT(weft_alloc(group, 100, 0, &memory), WEFT_OK);
    /* A rank that is still leaving the call would get the error instead of memory. */
    arrived = weft_peer(group, memory, 0);
    atomic_fetch_add(arrived, 1);
    while (weft_rank(group) == 0 && atomic_load(arrived) < weft_size(group))
        ;
    if (weft_rank(group) == 0)
        CHECK_INT(weft_group_poison(group, WEFT_ERR_PEER, "the test says so"), WEFT_ERR_PEER);
    while (weft_group_check(group) == WEFT_OK)
        ;
    CHECK_INT(weft_alloc(group, 100, 0, &memory), WEFT_ERR_PEER);
    CHECK_HAS(weft_error(group), "the test says so");
    CHECK_INT(weft_free(group, memory), WEFT_OK);
}

/* Every rank frees in an order of its own, whenever it likes, as a garbage collector would; nothing that a
 * rank still has is touched, and in the end all room is there again. */
static void freed_in_any_order(weft_group *group, void *argument)
{
    enum { LIVE = 300 };
    unsigned char *live[LIVE];
    int rank = weft_rank(group), wrong = 0, order[LIVE];
    uint64_t seed = 77 + (uint64_t)rank, budget, used;
    unsigned char *all = NULL;

    (void)argument;
    for (int i = 0; i < LIVE; i++) {
        int other = (int)(check_random(&seed) % (uint64_t)(i + 1));

        CHECK_INT(weft_alloc(group, i % 50 ? (size_t)(1000 + i) : 5 << 20, 0, (void **)&live[i]), WEFT_OK);
        live[i][0] = live[i][999] = (unsigned char)(i * 7 + rank);
        order[i] = order[other];
        order[other] = i;
    }
    for (int at = 0; at < LIVE; at++) {
        int i = order[at];
        void *more = NULL;

        wrong += live[i][0] != (unsigned char)(i * 7 + rank) || live[i][999] != (unsigned char)(i * 7 + rank);
        CHECK_INT(weft_free(group, live[i]), WEFT_OK);
        if (at % 20 == 0) { /* the heaps of all ranks stay alike meanwhile */
            CHECK_INT(weft_alloc(group, 3000, 0, &more), WEFT_OK);
            *(int *)weft_peer(group, more, (rank + 1) % weft_size(group)) = at;
            CHECK_INT(weft_barrier(group), WEFT_OK);
            wrong += *(int *)more != at;
            CHECK_INT(weft_barrier(group), WEFT_OK);
            CHECK_INT(weft_free(group, more), WEFT_OK);
        }
    }
    CHECK_INT(wrong, 0);
    /* Almost all of the budget at once, right after the last free. */
    weft_symm_usage(group, &budget, &used);
    CHECK_INT(weft_symm_alloc(group, budget - (3 << 20), 0, (void **)&all), WEFT_OK);
    CHECK_INT(weft_free(group, all), WEFT_OK);
    collect(group);
    CHECK(is_pristine(group));
}

int main(void)
{
    static const int sizes[] = {1, 2, 3, 5};
    long rounds = check_repeat(2000, 1000000);

    setenv("WEFT_HEAP", "64M", 1); /* all of it is had, and there */
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ranks_run(sizes[i], peers_reach, NULL);
        ranks_run(sizes[i], reused_is_zero, NULL);
        ranks_run(sizes[i], locked_is_zero, NULL);
        ranks_run(sizes[i], staggered, NULL);
        ranks_run(sizes[i], too_much, NULL);
        ranks_run(sizes[i], put_arrives, NULL);
        ranks_run(sizes[i], free_after_poison, NULL);
        ranks_run(sizes[i], freed_in_any_order, NULL);
        if (sizes[i] > 1)
            ranks_run(sizes[i], mistakes, NULL);
    }
    ranks_run(2, mixed, &rounds);
    unsetenv("WEFT_HEAP");
    ranks_run((int)check_repeat(1, 2), large, NULL);
    return check_report("test_symm_alloc");
}
