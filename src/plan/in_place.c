#include "plan/in_place.h"

#include "plan/two_level.h"

/* A slice is read by whoever adds it up, before anybody gets the sum. Not so where ranks add up what others
 * read as well; between domains that is also what is on its way to them, until it has left. */
static bool sums_in_place(const weft_problem *p, const int32_t *domain, int world)
{
    if (p->schedule == WEFT_SCHEDULE_ONE_SHOT)
        return p->tuning.staged && !domain;
    if (p->schedule == WEFT_SCHEDULE_PACKETS)
        return !domain;
    return p->schedule != WEFT_SCHEDULE_TWO_LEVEL || weft_two_level_count(domain, world) < world ||
           !weft_two_level_takes_one_trip(p, domain, world);
}

bool weft_plan_in_place(const weft_problem *p, const int32_t *domain, int world)
{
    if (p->schedule == WEFT_SCHEDULE_CUSTOM)
        return false;
    switch (p->op) {
    case WEFT_OP_ALL_REDUCE:
        return sums_in_place(p, domain, world);
    case WEFT_OP_ALL_GATHER: /* a block that stays where it is */
    case WEFT_OP_BROADCAST:
    case WEFT_OP_REDUCE_SCATTER: /* a row that its own rank adds up */
        return true;
    case WEFT_OP_ALL_TO_ALL: /* staged, a lane has copied the chunk that it overwrites */
        return p->tuning.staged && !domain;
    default:
        return false;
    }
}
