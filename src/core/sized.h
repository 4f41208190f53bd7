/*
 * Public structs begin with their size and only grow at their end, where zero always means the default. So an
 * older caller's struct is a shorter one, and a newer caller's is one whose end must be zero.
 */
#ifndef WEFT_CORE_SIZED_H
#define WEFT_CORE_SIZED_H

#include <stdbool.h>
#include <stddef.h>

/* The size of a struct that ends with `field`: what the first callers of a frozen version have. */
#define WEFT_SIZE_TO(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

/* Whether the size of a struct is at least that, and no longer than any struct is. */
bool weft_sized_fits(const void *sized, size_t least);

/*
 * A caller's struct as this library knows it, what the caller does not have being zero. `from` may be NULL.
 * False: its size is less than `least`, or it has something at its end that this library does not know.
 */
bool weft_sized_read(void *to, size_t bytes, const void *from, size_t least);

/* The other way: as much of it as the caller's struct has room for; its size stays. False: it has less than
 * `least`. */
bool weft_sized_write(void *to, const void *from, size_t bytes, size_t least);

/* A caller's new struct of `size` bytes, which may be NULL: its size, and as much of `from` as it has room
 * for. Nothing is written where it has no room for its size. */
void weft_sized_init(void *to, size_t size, const void *from, size_t bytes, size_t least);

#endif
