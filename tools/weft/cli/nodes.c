/* Reading --nodes; see nodes.h. */
#include "cli/nodes.h"

#include "core/part.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool number(const char **text, long most, long *value)
{
    char *end;

    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    *value = strtol(*text, &end, 10);
    *text = end;
    return !errno && *value >= 1 && *value <= most;
}

const char *nodes_parse(const char *text, int world, int32_t *domain)
{
    const char *wrong = "a number of nodes from 1 to that of ranks, or the ranks of each, as in 3+5";
    const char *uneven = "the ranks of each node, which are together as many as --ranks says";
    long count;
    int rank = 0;

    memset(domain, 0, (size_t)world * sizeof(*domain));
    if (!text)
        return NULL;
    if (!strchr(text, '+')) {
        if (!number(&text, world, &count) || *text)
            return wrong;
        for (; rank < world; rank++)
            domain[rank] = (int32_t)weft_part_of(world, count, rank);
        return NULL;
    }
    for (int32_t node = 0;; node++, text++) {
        if (!number(&text, INT_MAX, &count))
            return wrong;
        if (count > world - rank)
            return uneven;
        for (long i = 0; i < count; i++)
            domain[rank++] = node;
        if (*text != '+')
            break;
    }
    return *text ? wrong : rank != world ? uneven : NULL;
}
