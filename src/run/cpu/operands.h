/*
 * The caller's buffers of one run: checked, published, and staged through symmetric memory where peers must
 * touch what they cannot reach.
 */
#ifndef WEFT_RUN_CPU_OPERANDS_H
#define WEFT_RUN_CPU_OPERANDS_H

#include "run/cpu/program.h"
#include "run/given.h"

/* Fills this rank's places and its record, and stages inputs. A refusal comes with a sentence in
 * group->error. */
weft_status weft_operands_enter(struct weft_plan *plan, const weft_operands *operands, weft_record *record);

/* After the run: outputs that were written into bounce memory go to the caller's. */
void weft_operands_leave(struct weft_plan *plan, const weft_operands *operands);

#endif
