/*
 * Plans from files: what print.h writes, in either form, and what others write like it. A file has the parts
 * of all ranks, in order. What was read is well-formed enough to be checked, and nothing more:
 * weft_plan_check says whether it is right.
 */
#ifndef WEFT_PLAN_READ_H
#define WEFT_PLAN_READ_H

#include "plan/plan.h"

/* `where` names the text in messages. The parts are freed by weft_plan_parts_free. */
weft_status weft_plan_read(const char *text, size_t bytes, const char *where, weft_plan_part **parts,
                           int *world, weft_error_text *error);
weft_status weft_plan_read_file(const char *path, weft_plan_part **parts, int *world, weft_error_text *error);
void weft_plan_parts_free(weft_plan_part *parts, int world);

/* A part of its own with the same contents. */
weft_status weft_plan_part_copy(const weft_plan_part *part, weft_plan_part *copy, weft_error_text *error);

/* Writes a JSON plan as text; `*text` is allocated. Only for weft_plan_read. */
weft_status weft_plan_json_to_text(const char *json, size_t bytes, const char *where, char **text,
                                   size_t *length, weft_error_text *error);

#endif
