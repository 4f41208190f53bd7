/* Interned interval sets; joins are remembered, because the same two sets meet in every tile. */
#include "plan/check_sets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct stored {
    int64_t *bounds; /* begin, end, begin, end, ... */
    int count;       /* intervals */
} stored;

typedef struct remembered {
    int64_t a, b, result; /* a = -1: free */
} remembered;

enum { REMEMBERED = 4096 };

struct weft_sets {
    stored *list;
    int64_t count, room;
    remembered joins[REMEMBERED];
};

weft_sets *weft_sets_new(void)
{
    weft_sets *sets = calloc(1, sizeof(*sets));

    if (!sets)
        return NULL;
    sets->room = 64;
    sets->list = calloc((size_t)sets->room, sizeof(*sets->list));
    if (!sets->list) {
        free(sets);
        return NULL;
    }
    sets->count = 1;
    for (int i = 0; i < REMEMBERED; i++)
        sets->joins[i].a = -1;
    return sets;
}

void weft_sets_free(weft_sets *sets)
{
    if (!sets)
        return;
    for (int64_t i = 0; i < sets->count; i++)
        free(sets->list[i].bounds);
    free(sets->list);
    free(sets);
}

/* Finds or stores a set; takes over `bounds`. */
static int64_t intern(weft_sets *sets, int64_t *bounds, int count)
{
    size_t bytes = 2 * (size_t)count * sizeof(*bounds);

    for (int64_t i = 0; i < sets->count; i++) {
        if (sets->list[i].count == count && (!count || !memcmp(sets->list[i].bounds, bounds, bytes))) {
            free(bounds);
            return i;
        }
    }
    if (sets->count == sets->room) {
        stored *more = realloc(sets->list, 2 * (size_t)sets->room * sizeof(*more));

        if (!more) {
            free(bounds);
            return WEFT_SETS_NO_MEMORY;
        }
        sets->list = more;
        sets->room *= 2;
    }
    sets->list[sets->count] = (stored){bounds, count};
    return sets->count++;
}

int64_t weft_sets_interval(weft_sets *sets, int64_t begin, int64_t end)
{
    int64_t *bounds;

    if (begin >= end)
        return 0;
    bounds = malloc(2 * sizeof(*bounds));
    if (!bounds)
        return WEFT_SETS_NO_MEMORY;
    bounds[0] = begin;
    bounds[1] = end;
    return intern(sets, bounds, 1);
}

static int64_t merge(weft_sets *sets, const stored *a, const stored *b)
{
    int64_t *bounds = malloc(2 * (size_t)(a->count + b->count) * sizeof(*bounds));
    int i = 0, j = 0, count = 0;

    if (!bounds)
        return WEFT_SETS_NO_MEMORY;
    while (i < a->count || j < b->count) {
        bool from_a = j == b->count || (i < a->count && a->bounds[2 * i] < b->bounds[2 * j]);
        const int64_t *next = from_a ? &a->bounds[2 * i++] : &b->bounds[2 * j++];

        if (count && next[0] < bounds[2 * count - 1]) {
            free(bounds);
            return WEFT_SETS_OVERLAP;
        }
        if (count && next[0] == bounds[2 * count - 1]) {
            bounds[2 * count - 1] = next[1];
            continue;
        }
        bounds[2 * count] = next[0];
        bounds[2 * count + 1] = next[1];
        count++;
    }
    return intern(sets, bounds, count);
}

int64_t weft_sets_join(weft_sets *sets, int64_t a, int64_t b)
{
    remembered *join;

    if (!a || !b)
        return a ? a : b;
    join = &sets->joins[(uint64_t)(a * 31 + b) % REMEMBERED];
    if (join->a != a || join->b != b)
        *join = (remembered){a, b, merge(sets, &sets->list[a], &sets->list[b])};
    return join->result;
}

const char *weft_sets_text(const weft_sets *sets, int64_t set)
{
    static _Thread_local char text[100];
    size_t at = 0;

    text[0] = 0;
    for (int i = 0; i < sets->list[set].count && at < sizeof(text) - 48; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%lld..%lld", i ? " " : "",
                               (long long)sets->list[set].bounds[2 * i],
                               (long long)sets->list[set].bounds[2 * i + 1]);
    return set ? text : "nothing";
}
