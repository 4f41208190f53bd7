/* What the collectives over nodes have in common. */
#ifndef WEFT_PLAN_TWO_LEVEL_ACROSS_H
#define WEFT_PLAN_TWO_LEVEL_ACROSS_H

#include "plan/two_level.h"

typedef struct weft_across {
    weft_collective c;
    weft_builder *b;
    uint32_t kept, inbox; /* operands: nodes' sums, at their keepers and at their owners */
    uint32_t copy;        /* staged: operand for what the others of a node read, shaped as SEND or RECV is; of
                             an all_reduce a rank has room there for its share of what others add up, and for
                             the sums of what it adds up or keeps itself */
    int slots, nodes;
} weft_across;

/* Declares scratch memory; and staged, what the others of a node read, as `copy`. */
uint32_t weft_across_scratch(weft_across *x, const char *name, int64_t rows, int64_t cols);
void weft_across_copy(weft_across *x, int64_t rows);

/* Where a unit lies in scratch memory: at its number, whichever slice it is of. Its columns are not set. */
weft_region weft_across_at(const weft_across *x, uint32_t operand, int rank, int row, int64_t unit);

void weft_across_copy_when(weft_two_level *t, int lane, weft_region to, weft_region from, weft_wait when);

void weft_across_one_trip(weft_across *x);  /* all_reduce: two_level_one_trip.c */
void weft_across_broadcast(weft_across *x); /* two_level_broadcast.c */

#endif
