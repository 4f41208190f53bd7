/*
 * The allocator behind symmetric memory. It hands out offsets and touches no memory: each rank keeps its own
 * copy of the bookkeeping, and because all ranks make the same calls in the same order, all get the same
 * offsets without talking to each other.
 *
 * Free blocks are kept in classes of four per power of two and found through two bitmaps; neighbours are
 * joined at once, so a heap from which everything was freed is one free block again. Every operation takes
 * constant time but for the hash chain of the block's offset.
 */
#ifndef WEFT_SYMM_HEAP_H
#define WEFT_SYMM_HEAP_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_HEAP_UNIT = 128 };

typedef struct weft_heap weft_heap;

/* A heap of `bytes` (a multiple of WEFT_HEAP_UNIT), or NULL without memory for the bookkeeping. */
weft_heap *weft_heap_create(uint64_t bytes);
void weft_heap_destroy(weft_heap *heap);

/* Finds `bytes` at a multiple of `alignment` (a power of two). False when no free block is large enough
 * or the bookkeeping has no memory; the heap is then as it was. */
bool weft_heap_take(weft_heap *heap, uint64_t bytes, uint64_t alignment, uint64_t *offset);

/* The bytes of the block that begins at `offset`, rounded up to units; 0 when there is none. */
uint64_t weft_heap_size(const weft_heap *heap, uint64_t offset);

/* A word that the block which begins at `offset` carries for its owner; there must be one. */
uint32_t *weft_heap_tag(weft_heap *heap, uint64_t offset);

/* Whether weft_heap_take would find room, memory for the bookkeeping aside. */
bool weft_heap_fits(const weft_heap *heap, uint64_t bytes, uint64_t alignment);

/* Gives back the block that begins at `offset`; without one there nothing happens. */
void weft_heap_give(weft_heap *heap, uint64_t offset);

uint64_t weft_heap_used(const weft_heap *heap);

/* Whether the heap is one free block, with its bookkeeping as after creation. */
bool weft_heap_pristine(const weft_heap *heap);

#endif
