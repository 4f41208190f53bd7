/* FNV-1a, for hashing what was asked and what names a job. Start from WEFT_HASH_START. */
#ifndef WEFT_CORE_HASH_H
#define WEFT_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define WEFT_HASH_START 0xcbf29ce484222325u

static inline uint64_t weft_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = (const unsigned char *)data;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

#endif
