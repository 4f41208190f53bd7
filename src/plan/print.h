/* A part as text, one line per task and greppable, or as one JSON object on one line. */
#ifndef WEFT_PLAN_PRINT_H
#define WEFT_PLAN_PRINT_H

#include "plan/plan.h"

#include <stdio.h>

const char *weft_task_kind_name(weft_task_kind kind);

void weft_plan_print_text(const weft_plan_part *part, FILE *file);
void weft_plan_print_json(const weft_plan_part *part, FILE *file);

#endif
