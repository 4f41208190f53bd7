/* A part as text, one line per task and greppable, or as one JSON object on one line. */
#ifndef WEFT_PLAN_PRINT_H
#define WEFT_PLAN_PRINT_H

#include "plan/plan.h"

#include <stdio.h>

/* Of everything a part says: what is read back has the same. */
uint64_t weft_plan_part_hash(const weft_plan_part *part);

void weft_plan_print_text(const weft_plan_part *part, FILE *file);
void weft_plan_print_json(const weft_plan_part *part, FILE *file);

#endif
