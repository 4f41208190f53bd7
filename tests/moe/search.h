/*
 * A search of all interleavings of a model: actors that take steps, each one access to shared memory, and a
 * state, plain bytes, in which stands where every actor is and what the memory holds.
 */
#ifndef WEFT_TESTS_MOE_SEARCH_H
#define WEFT_TESTS_MOE_SEARCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef enum step_result { WENT, BLOCKED, BROKE, OVER } step_result; /* OVER: the actor has no more steps */
typedef enum result { FINE, CORRUPT, DEADLOCK } result;

typedef step_result (*search_step)(const void *model, void *state, int actor);

enum { SEARCH_TABLE = 1 << 21, SEARCH_STACK = 1 << 20 };

typedef struct search {
    size_t bytes; /* of a state */
    char *table, *stack, *now;
    uint32_t *stamp, number;
} search;

/* Whether memory sufficed. */
static inline bool search_open(search *s, size_t bytes)
{
    *s = (search){.bytes = bytes,
                  .table = calloc(SEARCH_TABLE, bytes),
                  .stack = calloc(SEARCH_STACK, bytes),
                  .now = calloc(2, bytes),
                  .stamp = calloc(SEARCH_TABLE, sizeof(uint32_t))};
    return s->table && s->stack && s->now && s->stamp;
}

static inline void search_close(search *s)
{
    free(s->table);
    free(s->stack);
    free(s->now);
    free(s->stamp);
}

static inline bool search_is_new(search *s, const char *state)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < s->bytes; i++)
        hash = (hash ^ (uint8_t)state[i]) * 0x100000001b3u;
    hash ^= hash >> 29;
    for (uint32_t i = (uint32_t)hash % SEARCH_TABLE;; i = (i + 1) % SEARCH_TABLE) {
        if (s->stamp[i] != s->number) {
            s->stamp[i] = s->number;
            memcpy(s->table + i * s->bytes, state, s->bytes);
            return true;
        }
        if (!memcmp(s->table + i * s->bytes, state, s->bytes))
            return false;
    }
}

/* Visits every state that can be reached from the one that is all zeros. */
static inline result search_all(search *s, const void *model, int actors, search_step step)
{
    char *now = s->now, *next = s->now + s->bytes;
    long depth = 0;

    s->number++;
    memset(s->stack, 0, s->bytes);
    search_is_new(s, s->stack);
    for (depth = 1; depth;) {
        bool finished = true, moved = false;

        memcpy(now, s->stack + (size_t)--depth * s->bytes, s->bytes);
        for (int actor = 0; actor < actors; actor++) {
            step_result went;

            memcpy(next, now, s->bytes);
            went = step(model, next, actor);
            if (went == BROKE)
                return CORRUPT;
            finished &= went == OVER;
            moved |= went == WENT;
            if (went == WENT && search_is_new(s, next))
                memcpy(s->stack + (size_t)depth++ * s->bytes, next, s->bytes);
        }
        if (!finished && !moved)
            return DEADLOCK;
    }
    return FINE;
}

#endif
