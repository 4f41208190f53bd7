/* The end of a part. */
#include "plan/plan.h"

#include <stdlib.h>

void weft_plan_part_free(weft_plan_part *part)
{
    free(part->domain);
    free(part->operands);
    free(part->lanes);
    free(part->tasks);
    free(part->regions);
    free(part->waits);
    free(part->posts);
    free(part->signal_posts);
    *part = (weft_plan_part){0};
}
