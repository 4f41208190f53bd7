#include "symm/heap.h"

#include "core/round.h"

#include <stdlib.h>

enum {
    SUBCLASS_BITS = 2,
    SUBCLASSES = 1 << SUBCLASS_BITS,
    CLASSES = 64,
    BUCKETS_FIRST = 64,
};

typedef struct block {
    uint64_t offset, bytes;
    uint32_t tag;
    bool free;
    struct block *before, *after;   /* by address */
    struct block *smaller, *larger; /* list of its class, when free; no order in it */
    struct block *chain;            /* hash bucket, when taken; pool of spare blocks, when neither */
} block;

struct weft_heap {
    uint64_t bytes, used;
    block *classes[CLASSES][SUBCLASSES];
    uint64_t class_map;
    uint8_t subclass_map[CLASSES];
    block **buckets;
    uint64_t bucket_count, taken;
    block *spare; /* descriptors to reuse */
};

static void class_of(uint64_t bytes, int *major, int *minor)
{
    uint64_t units = bytes / WEFT_HEAP_UNIT;

    *major = 63 - __builtin_clzll(units);
    *minor = *major < SUBCLASS_BITS ? (int)(units << (SUBCLASS_BITS - *major)) & (SUBCLASSES - 1)
                                    : (int)(units >> (*major - SUBCLASS_BITS)) & (SUBCLASSES - 1);
}

static void list_insert(weft_heap *heap, block *it)
{
    int major, minor;

    class_of(it->bytes, &major, &minor);
    it->free = true;
    it->smaller = NULL;
    it->larger = heap->classes[major][minor];
    if (it->larger)
        it->larger->smaller = it;
    heap->classes[major][minor] = it;
    heap->class_map |= (uint64_t)1 << major;
    heap->subclass_map[major] |= (uint8_t)(1 << minor);
}

static void list_remove(weft_heap *heap, block *it)
{
    int major, minor;

    class_of(it->bytes, &major, &minor);
    it->free = false;
    if (it->larger)
        it->larger->smaller = it->smaller;
    if (it->smaller) {
        it->smaller->larger = it->larger;
        return;
    }
    heap->classes[major][minor] = it->larger;
    if (it->larger)
        return;
    heap->subclass_map[major] &= (uint8_t) ~(1 << minor);
    if (!heap->subclass_map[major])
        heap->class_map &= ~((uint64_t)1 << major);
}

/* A free block of at least `bytes`: one from the classes whose every block is large enough, or, when
 * those are empty, a fitting one of the class `bytes` itself falls into. */
static block *find(const weft_heap *heap, uint64_t bytes)
{
    int major, minor;
    uint64_t majors;
    unsigned minors;

    class_of(bytes, &major, &minor);
    minors = heap->subclass_map[major] & (0xffu << (minor + 1));
    if (minors)
        return heap->classes[major][__builtin_ctz(minors)];
    majors = major == 63 ? 0 : heap->class_map & ~(uint64_t)0 << (major + 1);
    if (majors) {
        major = __builtin_ctzll(majors);
        return heap->classes[major][__builtin_ctz(heap->subclass_map[major])];
    }
    for (block *it = heap->classes[major][minor]; it; it = it->larger)
        if (it->bytes >= bytes)
            return it;
    return NULL;
}

static uint64_t bucket_of(uint64_t offset, uint64_t buckets)
{
    return (offset / WEFT_HEAP_UNIT * 0x9e3779b97f4a7c15u >> 20) & (buckets - 1);
}

/* Doubles the table when it is full; without memory for it chains only grow longer. */
static void table_grow(weft_heap *heap)
{
    uint64_t count = heap->bucket_count * 2;
    block **buckets = heap->taken < heap->bucket_count ? NULL : calloc(count, sizeof(*buckets));

    if (!buckets)
        return;
    for (uint64_t i = 0; i < heap->bucket_count; i++)
        for (block *it = heap->buckets[i], *next; it; it = next) {
            uint64_t bucket = bucket_of(it->offset, count);

            next = it->chain;
            it->chain = buckets[bucket];
            buckets[bucket] = it;
        }
    free(heap->buckets);
    heap->buckets = buckets;
    heap->bucket_count = count;
}

static block **table_find(const weft_heap *heap, uint64_t offset)
{
    block **link = &heap->buckets[bucket_of(offset, heap->bucket_count)];

    while (*link && (*link)->offset != offset)
        link = &(*link)->chain;
    return link;
}

/* Keeps at least `count` descriptors in reserve, so that a take cannot fail half-way. */
static bool reserve(weft_heap *heap, int count)
{
    int have = 0;

    for (block *it = heap->spare; it && have < count; it = it->chain)
        have++;
    for (; have < count; have++) {
        block *it = malloc(sizeof(*it));

        if (!it)
            return false;
        it->chain = heap->spare;
        heap->spare = it;
    }
    return true;
}

/* Cuts the first `bytes` off a block; the rest becomes a block of its own, which is returned. */
static block *cut(weft_heap *heap, block *it, uint64_t bytes)
{
    block *rest = heap->spare;

    heap->spare = rest->chain;
    *rest =
        (block){.offset = it->offset + bytes, .bytes = it->bytes - bytes, .before = it, .after = it->after};
    if (it->after)
        it->after->before = rest;
    it->after = rest;
    it->bytes = bytes;
    return rest;
}

/* Joins a block with the one after it. */
static void join(weft_heap *heap, block *it)
{
    block *after = it->after;

    it->bytes += after->bytes;
    it->after = after->after;
    if (it->after)
        it->after->before = it;
    after->chain = heap->spare;
    heap->spare = after;
}

weft_heap *weft_heap_create(uint64_t bytes)
{
    weft_heap *heap = calloc(1, sizeof(*heap));
    block *whole = calloc(1, sizeof(*whole));

    if (heap)
        heap->buckets = calloc(BUCKETS_FIRST, sizeof(*heap->buckets));
    if (!heap || !whole || !heap->buckets) {
        if (heap)
            free(heap->buckets);
        free(heap);
        free(whole);
        return NULL;
    }
    heap->bytes = bytes;
    heap->bucket_count = BUCKETS_FIRST;
    whole->bytes = bytes;
    list_insert(heap, whole);
    return heap;
}

void weft_heap_destroy(weft_heap *heap)
{
    block *it = NULL;

    if (!heap)
        return;
    /* Any block leads to all others by address. */
    for (uint64_t i = 0; i < heap->bucket_count && !it; i++)
        it = heap->buckets[i];
    for (int major = 0; major < CLASSES && !it; major++)
        for (int minor = 0; minor < SUBCLASSES && !it; minor++)
            it = heap->classes[major][minor];
    while (it && it->before)
        it = it->before;
    for (block *next; it; it = next) {
        next = it->after;
        free(it);
    }
    for (block *next; heap->spare; heap->spare = next) {
        next = heap->spare->chain;
        free(heap->spare);
    }
    free(heap->buckets);
    free(heap);
}

static uint64_t slack_of(uint64_t alignment)
{
    return alignment > WEFT_HEAP_UNIT ? alignment - WEFT_HEAP_UNIT : 0;
}

/* The free block from which `*bytes`, which are rounded up, can be taken; NULL: none. */
static block *find_room(const weft_heap *heap, uint64_t *bytes, uint64_t slack)
{
    if (*bytes > heap->bytes || slack > heap->bytes)
        return NULL;
    *bytes = *bytes ? weft_round_up_bytes(*bytes, WEFT_HEAP_UNIT) : WEFT_HEAP_UNIT;
    return find(heap, *bytes + slack);
}

bool weft_heap_fits(const weft_heap *heap, uint64_t bytes, uint64_t alignment)
{
    return find_room(heap, &bytes, slack_of(alignment)) != NULL;
}

uint32_t *weft_heap_tag(weft_heap *heap, uint64_t offset)
{
    return &(*table_find(heap, offset))->tag;
}

bool weft_heap_take(weft_heap *heap, uint64_t bytes, uint64_t alignment, uint64_t *offset)
{
    uint64_t slack = slack_of(alignment);
    uint64_t start, bucket;
    block *it = find_room(heap, &bytes, slack);

    if (!it || !reserve(heap, 2))
        return false;
    list_remove(heap, it);
    start = slack ? weft_round_up_bytes(it->offset, alignment) : it->offset;
    if (start > it->offset) {
        block *rest = cut(heap, it, start - it->offset);

        list_insert(heap, it);
        it = rest;
    }
    if (it->bytes > bytes)
        list_insert(heap, cut(heap, it, bytes));
    heap->taken++;
    table_grow(heap);
    bucket = bucket_of(it->offset, heap->bucket_count);
    it->chain = heap->buckets[bucket];
    heap->buckets[bucket] = it;
    heap->used += bytes;
    *offset = it->offset;
    return true;
}

uint64_t weft_heap_size(const weft_heap *heap, uint64_t offset)
{
    const block *it = *table_find(heap, offset);

    return it ? it->bytes : 0;
}

void weft_heap_give(weft_heap *heap, uint64_t offset)
{
    block **link = table_find(heap, offset);
    block *it = *link;

    if (!it)
        return;
    *link = it->chain;
    heap->taken--;
    heap->used -= it->bytes;
    if (it->after && it->after->free) {
        list_remove(heap, it->after);
        join(heap, it);
    }
    if (it->before && it->before->free) {
        it = it->before;
        list_remove(heap, it);
        join(heap, it);
    }
    list_insert(heap, it);
}

uint64_t weft_heap_used(const weft_heap *heap)
{
    return heap->used;
}

bool weft_heap_pristine(const weft_heap *heap)
{
    int major, minor;
    const block *whole;

    class_of(heap->bytes, &major, &minor);
    whole = heap->classes[major][minor];
    return heap->used == 0 && heap->taken == 0 && whole && whole->offset == 0 &&
           whole->bytes == heap->bytes && !whole->before && !whole->after &&
           heap->class_map == (uint64_t)1 << major && heap->subclass_map[major] == 1u << minor;
}
