/*
 * The two promises of core/signal.h, between two threads that share nothing but one buffer and two signals:
 *
 *   message passing   what was written before a post is seen after the wait;
 *   buffer reuse      what is read before a post is read before the buffer is overwritten after the wait.
 *
 * The data are plain memory, so each promise rests on the orders in that header alone. This file is built
 * with them, and with the release or the acquire weakened to relaxed. How much a CPU reorders is its own
 * affair; under ThreadSanitizer, which knows the C11 rules, a weakened order is a data race on every CPU.
 *
 * usage: litmus ROUNDS; the exit status is 1 when stale or torn data was seen.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/signal.h"

enum { LINES = 16, WORDS = WEFT_LINE_BYTES / 8, SPINS = 2000 };

static struct {
    _Alignas(WEFT_LINE_BYTES) uint64_t data[LINES][WORDS];
    weft_signal full;  /* posted by the producer */
    weft_signal empty; /* stored by the consumer */
} box;

static long rounds;

/* The kernel is not asked to sleep: this is about memory order, not about waking. */
static void await(weft_signal *signal, uint64_t value)
{
    for (int spins = 0; !weft_signal_reached(signal, value); spins++) {
        weft_pause();
        if (spins > SPINS) {
            sched_yield();
            spins = 0;
        }
    }
}

/* How many lines round r uses, and which first: varied, so that stores meet warm and cold lines. */
static int used(long round)
{
    return 1 + (int)((uint64_t)round * 0x9e3779b97f4a7c15u >> 60) % LINES;
}

static void *produce(void *unused)
{
    (void)unused;
    for (long round = 1; round <= rounds; round++) {
        await(&box.empty, (uint64_t)round - 1);
        for (int i = 0; i < used(round); i++)
            box.data[(i * 7 + round) % LINES][i % WORDS] = (uint64_t)round;
        weft_signal_post(&box.full, 1);
    }
    return NULL;
}

static void *consume(void *unused)
{
    (void)unused;
    for (long round = 1; round <= rounds; round++) {
        int stale = 0;

        await(&box.full, (uint64_t)round);
        for (int i = used(round) - 1; i >= 0; i--)
            stale += box.data[(i * 7 + round) % LINES][i % WORDS] != (uint64_t)round;
        if (stale) {
            fprintf(stderr, "litmus: stale data in round %ld of %ld\n", round, rounds);
            exit(1);
        }
        weft_signal_store(&box.empty, (uint64_t)round);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t producer, consumer;

    rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 100000;
    if (getenv("WEFT_SOAK") && strcmp(getenv("WEFT_SOAK"), "1") == 0 && argc > 2)
        rounds = strtol(argv[2], NULL, 10);
    if (rounds < 1 || pthread_create(&producer, NULL, produce, NULL) != 0 ||
        pthread_create(&consumer, NULL, consume, NULL) != 0)
        return 2;
    pthread_join(producer, NULL);
    pthread_join(consumer, NULL);
    return 0;
}
