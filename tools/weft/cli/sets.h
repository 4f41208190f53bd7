/* Shapes by name: the ones people publish, so that a bench or a prediction can run a whole table. */
#ifndef WEFT_TOOLS_CLI_SETS_H
#define WEFT_TOOLS_CLI_SETS_H

#include <weft/weft.h>

enum { SETS_MOST_SHAPES = 16 };

typedef struct set_shape {
    int64_t m, n, k; /* global */
    int bias, transb;
} set_shape;

/*
 * The shapes of a set for an operation, extents divided by `scale` (0: the set's own default). Returns how
 * many, or -1 when there is no such set. "overlap" is not here: its shapes are found by measuring.
 */
int set_shapes(const char *name, weft_op op, double scale, set_shape shapes[SETS_MOST_SHAPES]);

int set_is_known(const char *name);

/* What names there are, for messages. */
extern const char set_names[];

#endif
