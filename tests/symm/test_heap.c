/* Blocks never overlap, are aligned, and a heap from which everything was freed is as it was. */
#include "support/check.h"
#include "symm/heap.h"

typedef struct piece {
    uint64_t offset, bytes;
} piece;

static int by_offset(const void *a, const void *b)
{
    const piece *one = a, *two = b;

    return one->offset < two->offset ? -1 : one->offset > two->offset;
}

static void no_overlap(const piece *pieces, int count)
{
    piece sorted[512];

    memcpy(sorted, pieces, sizeof(piece) * (size_t)count);
    qsort(sorted, (size_t)count, sizeof(piece), by_offset);
    for (int i = 1; i < count; i++)
        CHECK(sorted[i - 1].offset + sorted[i - 1].bytes <= sorted[i].offset);
}

static uint64_t random_size(uint64_t *seed)
{
    unsigned shift = (unsigned)(check_random(seed) % 24);

    return check_random(seed) % ((uint64_t)1 << shift) + (check_random(seed) & 1);
}

static void mixed_sizes(long rounds)
{
    enum { LIVE = 512 };
    const uint64_t total = (uint64_t)3 << 30;
    weft_heap *heap = weft_heap_create(total);
    weft_heap *twin = weft_heap_create(total);
    piece pieces[LIVE];
    uint64_t seed = 1, twin_offset;
    int live = 0;

    for (long round = 0; round < rounds; round++) {
        if (live < LIVE && (live == 0 || check_random(&seed) % 5 < 3)) {
            uint64_t bytes = random_size(&seed), alignment = (uint64_t)128 << check_random(&seed) % 14;
            piece *mine = &pieces[live];

            if (!weft_heap_take(heap, bytes, alignment, &mine->offset)) {
                CHECK(!weft_heap_take(twin, bytes, alignment, &twin_offset));
                continue;
            }
            CHECK(weft_heap_take(twin, bytes, alignment, &twin_offset) && twin_offset == mine->offset);
            CHECK(mine->offset % alignment == 0);
            mine->bytes = weft_heap_size(heap, mine->offset);
            CHECK(mine->bytes >= bytes && mine->offset + mine->bytes <= total);
            live++;
        } else {
            int victim = (int)(check_random(&seed) % (uint64_t)live);

            weft_heap_give(heap, pieces[victim].offset);
            weft_heap_give(twin, pieces[victim].offset);
            pieces[victim] = pieces[--live];
        }
        if (round % 997 == 0)
            no_overlap(pieces, live);
    }
    no_overlap(pieces, live);
    while (live > 0)
        weft_heap_give(heap, pieces[--live].offset);
    CHECK(weft_heap_pristine(heap));
    CHECK(!weft_heap_pristine(twin) || rounds == 0);
    weft_heap_destroy(heap);
    weft_heap_destroy(twin);
}

static void edges(void)
{
    weft_heap *heap = weft_heap_create(4096);
    uint64_t a, b;

    CHECK(weft_heap_pristine(heap));
    CHECK(!weft_heap_take(heap, 4097, 128, &a));
    CHECK(!weft_heap_take(heap, UINT64_MAX, 128, &a));
    CHECK(!weft_heap_take(heap, 1, UINT64_MAX / 2 + 1, &a));
    CHECK(weft_heap_take(heap, 4096, 128, &a) && a == 0);
    CHECK(!weft_heap_take(heap, 1, 128, &b));
    CHECK_INT(weft_heap_size(heap, 0), 4096);
    CHECK_INT(weft_heap_size(heap, 128), 0);
    weft_heap_give(heap, a);
    CHECK(weft_heap_pristine(heap));
    /* A class whose blocks are only partly large enough is searched. */
    CHECK(weft_heap_take(heap, 4096 - 128, 128, &a));
    CHECK(weft_heap_take(heap, 0, 0, &b) && weft_heap_size(heap, b) == 128);
    CHECK_INT(weft_heap_used(heap), 4096);
    weft_heap_destroy(heap);
}

int main(void)
{
    edges();
    mixed_sizes(check_repeat(100000, 2000000));
    return check_report("test_symm_heap");
}
