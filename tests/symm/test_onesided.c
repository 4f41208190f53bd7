/*
 * Put, get, signals and atomics of weft.h: the order they promise, as litmus tests between ranks that are
 * threads (ThreadSanitizer sees the plain data), and every way to ask wrongly.
 */
#include <weft/weft.h>

#include "support/check.h"
#include "support/ranks.h"

#include <stdbool.h>
#include <string.h>

enum { WORDS = 64, SIGNALS = 8 };

typedef struct shared {
    char *signals; /* SIGNALS of them */
    uint64_t *box; /* WORDS words from each rank */
    int64_t *word;
} shared;

static shared share(weft_group *group)
{
    shared s = {NULL, NULL, NULL};

    CHECK_INT(weft_alloc(group, (size_t)SIGNALS * WEFT_SIGNAL_BYTES, 0, (void **)&s.signals), WEFT_OK);
    CHECK_INT(weft_alloc(group, (size_t)weft_size(group) * WORDS * 8, 0, (void **)&s.box), WEFT_OK);
    CHECK_INT(weft_alloc(group, 64, 0, (void **)&s.word), WEFT_OK);
    return s;
}

static void *signal_at(const shared *s, int index)
{
    return s->signals + (size_t)index * WEFT_SIGNAL_BYTES;
}

static int stale(const uint64_t *box, uint64_t round)
{
    int wrong = 0;

    for (int i = 0; i < WORDS; i++)
        wrong += box[i] != round * 1000 + (uint64_t)i;
    return wrong;
}

static void fill(uint64_t *box, uint64_t round)
{
    for (int i = 0; i < WORDS; i++)
        box[i] = round * 1000 + (uint64_t)i;
}

/* Message passing and reuse of one buffer, round a ring: by weft_put_signal, and by weft_put and a post. */
static void ring(weft_group *group, void *argument)
{
    int size = weft_size(group), rank = weft_rank(group), next = (rank + 1) % size,
        before = (rank + size - 1) % size, wrong = 0;
    uint64_t mine[WORDS], rounds = *(const uint64_t *)argument;
    shared s = share(group);

    for (uint64_t round = 1; round <= rounds; round++) {
        fill(mine, round);
        CHECK_INT(weft_wait_signal(group, signal_at(&s, 1), round - 1, next), WEFT_OK);
        if (round % 2) {
            CHECK_INT(weft_put_signal(group, s.box, mine, sizeof(mine), signal_at(&s, 0), 1, next), WEFT_OK);
        } else {
            CHECK_INT(weft_put(group, s.box, mine, sizeof(mine), next), WEFT_OK);
            CHECK_INT(weft_post_signal(group, signal_at(&s, 0), 1, next), WEFT_OK);
        }
        memset(mine, 0xff, sizeof(mine)); /* it has been put */
        CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), round, before), WEFT_OK);
        wrong += stale(s.box, round);
        CHECK_INT(weft_post_signal(group, signal_at(&s, 1), 1, before), WEFT_OK);
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

/* What rank 0 put on the last rank is there when that has heard so of a third: order is handed on. */
static void handed_on(weft_group *group, void *argument)
{
    int last = weft_size(group) - 1, rank = weft_rank(group), wrong = 0;
    uint64_t mine[WORDS], rounds = *(const uint64_t *)argument;
    shared s = share(group);

    for (uint64_t round = 1; round <= rounds; round++) {
        if (rank == 0) {
            fill(mine, round);
            CHECK_INT(weft_wait_signal(group, signal_at(&s, 1), round - 1, last), WEFT_OK);
            CHECK_INT(weft_put(group, s.box, mine, sizeof(mine), last), WEFT_OK);
            CHECK_INT(weft_post_signal(group, signal_at(&s, 0), 1, 1), WEFT_OK);
        } else if (rank < last) {
            CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), round, rank - 1), WEFT_OK);
            CHECK_INT(weft_post_signal(group, signal_at(&s, 0), 1, rank + 1), WEFT_OK);
        } else {
            CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), round, -1), WEFT_OK);
            wrong += stale(s.box, round);
            CHECK_INT(weft_post_signal(group, signal_at(&s, 1), 1, 0), WEFT_OK);
        }
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

/* weft_get reads what its owner wrote before its post; the owner writes again after all have read. */
static void fetched(weft_group *group, void *argument)
{
    int size = weft_size(group), rank = weft_rank(group), wrong = 0;
    uint64_t got[WORDS], rounds = *(const uint64_t *)argument / 4;
    shared s = share(group);

    for (uint64_t round = 1; round <= rounds; round++) {
        CHECK_INT(weft_wait_signal(group, signal_at(&s, 1), (round - 1) * (uint64_t)size, -1), WEFT_OK);
        fill(s.box, round + (uint64_t)rank);
        for (int to = 0; to < size; to++)
            CHECK_INT(weft_post_signal(group, signal_at(&s, 0), 1, to), WEFT_OK);
        CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), round * (uint64_t)size, -1), WEFT_OK);
        for (int from = 0; from < size; from++) {
            CHECK_INT(weft_get(group, got, s.box, sizeof(got), from), WEFT_OK);
            wrong += stale(got, round + (uint64_t)from);
            CHECK_INT(weft_post_signal(group, signal_at(&s, 1), 1, from), WEFT_OK);
        }
        /* Nobody posts for the next round before all are through this one. */
        CHECK_INT(weft_barrier(group), WEFT_OK);
    }
    CHECK_INT(wrong, 0);
}

/* Every value is given out once. */
static void counted(weft_group *group, void *argument)
{
    enum { EACH = 500 };
    static _Atomic int taken[16 * EACH];
    int size = weft_size(group), twice = 0;
    shared s = share(group);
    int64_t before = -1;

    (void)argument;
    for (int i = 0; i < EACH; i++) {
        CHECK_INT(weft_atomic_add(group, s.word, 1, size - 1, &before), WEFT_OK);
        twice += before < 0 || before >= (int64_t)size * EACH || taken[before]++ != 0;
    }
    CHECK_INT(twice, 0);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_atomic_add(group, s.word, 0, size - 1, &before), WEFT_OK);
    CHECK_INT(before, (int64_t)size * EACH);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int i = 0; weft_rank(group) == 0 && i < 16 * EACH; i++)
        taken[i] = 0;
    CHECK_INT(weft_atomic_add(group, s.word, -1, weft_rank(group), NULL), WEFT_OK);
}

static void asked_wrongly(weft_group *group, void *argument)
{
    int size = weft_size(group);
    shared s = share(group);
    uint64_t mine[WORDS] = {0};

    (void)argument;
    CHECK_INT(weft_put(NULL, s.box, mine, 8, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_put(group, s.box, mine, 8, size), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "there is no rank");
    CHECK_INT(weft_put(group, mine, s.box, 8, 0), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "not symmetric memory");
    CHECK_INT(weft_put(group, s.box, NULL, 8, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_put(group, s.box, mine, (size_t)1 << 60, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_put(group, s.box, NULL, 0, 0), WEFT_OK);
    CHECK_INT(weft_get(group, mine, mine, 8, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_get(group, NULL, s.box, 8, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_put_signal(group, s.box, mine, 8, s.signals + 64, 1, 0), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "on a boundary of 128");
    CHECK_INT(weft_post_signal(group, s.signals, 1, -1), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_post_signal(group, NULL, 1, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_wait_signal(NULL, s.signals, 0, -1), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_wait_signal(group, s.signals, 0, size), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_wait_signal(group, s.signals, 0, -1), WEFT_OK);
    CHECK_INT(weft_atomic_add(group, (int64_t *)(void *)((char *)s.word + 4), 1, 0, NULL), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_barrier(group), WEFT_OK); /* nobody else has heard of it */
}

/* Two ranks that wait for each other: both are told, and not at the deadline. */
static void for_each_other(weft_group *group, void *argument)
{
    shared s = share(group);

    (void)argument;
    CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), 1, 1 - weft_rank(group)), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "waited in weft_wait_signal for rank");
    CHECK_INT(weft_put(group, s.box, s.box, 8, 0), WEFT_ERR_MISMATCH); /* the group is poisoned */
}

static void aborted(weft_group *group, void *argument)
{
    shared s = share(group);

    (void)argument;
    if (weft_rank(group) == 0)
        CHECK_INT(weft_group_abort(group, "enough"), WEFT_OK);
    else
        CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), 1, -1), WEFT_ERR_ABORTED);
}

int main(void)
{
    uint64_t rounds = (uint64_t)check_repeat(2000, 100000);

    for (int size = 1; size <= 4; size++)
        ranks_run(size, ring, &rounds);
    ranks_run(3, handed_on, &rounds);
    ranks_run(4, handed_on, &rounds);
    for (int size = 1; size <= 3; size++)
        ranks_run(size, fetched, &rounds);
    for (int size = 1; size <= 4; size++)
        ranks_run(size, counted, NULL);
    for (int size = 1; size <= 2; size++)
        ranks_run(size, asked_wrongly, NULL);
    ranks_run(2, for_each_other, NULL);
    ranks_run(3, aborted, NULL);
    return check_report("test_symm_onesided");
}
