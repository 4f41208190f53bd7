/* Put, get, signals and atomics of programs on groups of GPUs: the order they promise, by calls of the host
 * alone, so that the same cases run on a fake GPU and on a real one. */
#ifndef WEFT_TESTS_CUDA_ONESIDED_CASES_H
#define WEFT_TESTS_CUDA_ONESIDED_CASES_H

#include "support/check.h"

#include <stdbool.h>
#include <string.h>
#include <weft/weft.h>

enum { WORDS = 64, SIGNALS = 8 };

/* The group's memory: on the GPU, where the host cannot look by itself. */
typedef struct shared {
    char *signals; /* SIGNALS of them */
    uint64_t *box; /* WORDS */
    int64_t *word;
} shared;

static inline shared share(weft_group *group)
{
    shared s = {NULL, NULL, NULL};

    CHECK_INT(weft_group_use_gpu(group, -1), WEFT_OK);
    CHECK_INT(weft_alloc(group, (size_t)SIGNALS * WEFT_SIGNAL_BYTES, 0, (void **)&s.signals), WEFT_OK);
    CHECK_INT(weft_alloc(group, WORDS * 8, 0, (void **)&s.box), WEFT_OK);
    CHECK_INT(weft_alloc(group, 64, 0, (void **)&s.word), WEFT_OK);
    return s;
}

static inline void *signal_at(const shared *s, int index)
{
    return s->signals + (size_t)index * WEFT_SIGNAL_BYTES;
}

static inline void fill(uint64_t *box, uint64_t round)
{
    for (int i = 0; i < WORDS; i++)
        box[i] = round * 1000 + (uint64_t)i;
}

static inline int stale(const uint64_t *box, uint64_t round)
{
    int wrong = 0;

    for (int i = 0; i < WORDS; i++)
        wrong += box[i] != round * 1000 + (uint64_t)i;
    return wrong;
}

/* Of this rank's own box. */
static inline int stale_here(weft_group *group, const shared *s, uint64_t round)
{
    uint64_t seen[WORDS] = {0};

    CHECK_INT(weft_memcpy(group, seen, s->box, sizeof(seen)), WEFT_OK);
    return stale(seen, round);
}

/* Message passing and reuse of one buffer, round a ring. */
static inline void ring_rank(weft_group *group, void *argument)
{
    int size = weft_size(group), rank = weft_rank(group), next = (rank + 1) % size,
        before = (rank + size - 1) % size, wrong = 0;
    uint64_t mine[WORDS], rounds = *(const uint64_t *)argument;
    shared s = share(group);

    for (uint64_t round = 1; round <= rounds; round++) {
        fill(mine, round);
        CHECK_INT(weft_wait_signal(group, signal_at(&s, 1), round - 1, next), WEFT_OK);
        if (round % 2) {
            CHECK_INT(weft_put_signal(group, s.box, mine, sizeof(mine), signal_at(&s, 0), 3, next), WEFT_OK);
        } else {
            CHECK_INT(weft_put(group, s.box, mine, sizeof(mine), next), WEFT_OK);
            CHECK_INT(weft_post_signal(group, signal_at(&s, 0), 3, next), WEFT_OK);
        }
        memset(mine, 0xff, sizeof(mine)); /* it has been put */
        CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), 3 * round, before), WEFT_OK);
        wrong += stale_here(group, &s, round);
        CHECK_INT(weft_post_signal(group, signal_at(&s, 1), 1, before), WEFT_OK);
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

/* weft_get reads what its owner wrote before its post, and what rank 0 put on the last rank is there when
 * that has heard so of a third. */
static inline void handed_rank(weft_group *group, void *argument)
{
    int last = weft_size(group) - 1, rank = weft_rank(group), wrong = 0;
    uint64_t words[WORDS], rounds = *(const uint64_t *)argument;
    shared s = share(group);

    for (uint64_t round = 1; round <= rounds; round++) {
        if (rank == 0) {
            fill(words, round);
            CHECK_INT(weft_wait_signal(group, signal_at(&s, 1), round - 1, last), WEFT_OK);
            CHECK_INT(weft_put(group, s.box, words, sizeof(words), last), WEFT_OK);
            CHECK_INT(weft_put(group, s.box, words, sizeof(words), 0), WEFT_OK);
            CHECK_INT(weft_post_signal(group, signal_at(&s, 0), 1, 1), WEFT_OK);
            continue;
        }
        CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), round, rank < last ? rank - 1 : -1), WEFT_OK);
        if (rank < last) {
            CHECK_INT(weft_post_signal(group, signal_at(&s, 0), 1, rank + 1), WEFT_OK);
            continue;
        }
        wrong += stale_here(group, &s, round);
        CHECK_INT(weft_get(group, words, s.box, sizeof(words), 0), WEFT_OK);
        wrong += stale(words, round);
        CHECK_INT(weft_post_signal(group, signal_at(&s, 1), 1, 0), WEFT_OK);
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

/* Every value is given out once; not where GPUs cannot add in one another's memory. */
static inline void counted_rank(weft_group *group, void *argument)
{
    enum { EACH = 100, RANKS = 16 };
    static _Atomic int taken[RANKS * EACH];
    bool adds = *(const bool *)argument;
    int size = weft_size(group), twice = 0;
    shared s = share(group);
    int64_t before = -1;

    if (!adds) {
        CHECK_INT(weft_atomic_add(group, s.word, 1, 0, &before), WEFT_ERR_UNSUPPORTED);
        CHECK_HAS(weft_error(group), "cannot add in one another's memory");
        return;
    }
    for (int i = 0; i < EACH; i++) {
        CHECK_INT(weft_atomic_add(group, s.word, 1, size - 1, &before), WEFT_OK);
        twice += before < 0 || before >= (int64_t)size * EACH || taken[before]++ != 0;
    }
    CHECK_INT(twice, 0);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_atomic_add(group, s.word, -5, size - 1, &before), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_atomic_add(group, s.word, 0, size - 1, &before), WEFT_OK);
    CHECK_INT(before, (int64_t)size * (EACH - 5));
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int i = 0; weft_rank(group) == 0 && i < RANKS * EACH; i++)
        taken[i] = 0;
}

static inline void asked_wrongly_rank(weft_group *group, void *argument)
{
    int size = weft_size(group);
    shared s = share(group);
    uint64_t mine[WORDS] = {0};

    (void)argument;
    CHECK_INT(weft_put(group, s.box, mine, 8, size), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "there is no rank");
    CHECK_INT(weft_put(group, mine, s.box, 8, 0), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "not symmetric memory");
    CHECK_INT(weft_put(group, s.box, NULL, 8, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_put(group, s.box, mine, (size_t)1 << 60, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_put(group, s.box, NULL, 0, 0), WEFT_OK);
    CHECK_INT(weft_get(group, mine, mine, 8, 0), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_put_signal(group, s.box, mine, 8, s.signals + 64, 1, 0), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "on a boundary of 128");
    CHECK_INT(weft_post_signal(group, s.signals, 1, -1), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_wait_signal(group, s.signals, 0, size), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_wait_signal(group, s.signals, 0, -1), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK); /* nobody else has heard of it */
}

/* A wait ends when a rank says that it is over, and when nobody has come in time. */
static inline void aborted_rank(weft_group *group, void *argument)
{
    shared s = share(group);

    (void)argument;
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (weft_rank(group) == 0)
        CHECK_INT(weft_group_abort(group, "enough"), WEFT_OK);
    else
        CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), 1, -1), WEFT_ERR_ABORTED);
}

static inline void late_rank(weft_group *group, void *argument)
{
    shared s = share(group);
    bool waits = weft_rank(group) == 1;

    (void)argument;
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_set_deadlines(group, waits ? 0.2 : 20, 20), WEFT_OK);
    CHECK_INT(weft_wait_signal(group, signal_at(&s, 0), 1, 1 - weft_rank(group)), WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "weft_wait_signal");
    CHECK_INT(weft_put(group, s.box, s.word, 8, 0), WEFT_ERR_TIMEOUT); /* the group is poisoned */
}

#endif
