/* What the collectives over nodes have in common. */
#ifndef WEFT_PLAN_TWO_LEVEL_EXCHANGE_H
#define WEFT_PLAN_TWO_LEVEL_EXCHANGE_H

#include "plan/two_level.h"

typedef struct weft_exchange {
    weft_collective c;
    weft_builder *b;
    uint32_t kept, inbox; /* operands: nodes' sums, at their keepers and at their owners */
    uint32_t copy;        /* staged: operand for what the others of a node read, shaped as SEND or RECV is; of
                             an all_reduce a rank has room there for its share of what others add up, and for
                             the sums of what it adds up or keeps itself */
    int slots, nodes;
} weft_exchange;

/* Declares scratch memory; and staged, what the others of a node read, as `copy`. */
uint32_t weft_exchange_scratch(weft_exchange *x, const char *name, int64_t rows, int64_t cols);
void weft_exchange_copy(weft_exchange *x, int64_t rows);

/* Where a unit lies in scratch memory: at its number, whichever slice it is of. Its columns are not set. */
weft_region weft_exchange_at(const weft_exchange *x, uint32_t operand, int rank, int row, int64_t unit);

void weft_exchange_copy_when(weft_two_level *t, int lane, weft_region to, weft_region from, weft_wait when);

void weft_exchange_one_trip(weft_exchange *x);  /* all_reduce: two_level_one_trip.c */
void weft_exchange_broadcast(weft_exchange *x); /* two_level_broadcast.c */

#endif
