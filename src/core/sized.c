#include "core/sized.h"

#include "core/round.h"

#include <string.h>

enum { BYTES_MOST = 4096 }; /* of any struct: what claims to be longer was never set */

static size_t size_of(const void *sized)
{
    size_t size;

    memcpy(&size, sized, sizeof(size));
    return size;
}

bool weft_sized_fits(const void *sized, size_t least)
{
    return size_of(sized) >= least && size_of(sized) <= BYTES_MOST;
}

bool weft_sized_read(void *to, size_t bytes, const void *from, size_t least)
{
    size_t size;

    if (!from || !weft_sized_fits(from, least))
        return false;
    size = size_of(from);
    for (size_t i = bytes; i < size; i++)
        if (((const unsigned char *)from)[i])
            return false;
    memset(to, 0, bytes);
    memcpy(to, from, weft_min_bytes(size, bytes));
    memcpy(to, &bytes, sizeof(bytes));
    return true;
}

bool weft_sized_write(void *to, const void *from, size_t bytes, size_t least)
{
    size_t size = size_of(to);

    if (!weft_sized_fits(to, least))
        return false;
    memset(to, 0, size);
    memcpy(to, from, weft_min_bytes(size, bytes));
    memcpy(to, &size, sizeof(size));
    return true;
}

void weft_sized_init(void *to, size_t size, const void *from, size_t bytes, size_t least)
{
    if (!to || size < sizeof(size))
        return;
    memcpy(to, &size, sizeof(size));
    weft_sized_write(to, from, bytes, least);
}
