/*
 * The words of plans that are written down: kinds, places, and every field of a problem by its name in
 * weft.h. Printing and reading, text and JSON, go by these tables.
 */
#ifndef WEFT_PLAN_FIELDS_H
#define WEFT_PLAN_FIELDS_H

#include "plan/plan.h"

enum { WEFT_WORD_BYTES = 48 };

/* The field's name, or NULL past the last. Operation and schedule are not among them. */
const char *weft_field_name(int field);

/* Whether its value is a word, which JSON writes as a string. */
bool weft_field_is_word(int field);
void weft_field_get(int field, const weft_problem *problem, char text[WEFT_WORD_BYTES]);

/* False when it has no such value. */
bool weft_field_set(int field, weft_problem *problem, const char *text);
int weft_field_find(const char *name); /* -1: there is none */

const char *weft_task_kind_name(weft_task_kind kind);
int weft_task_kind_parse(const char *name); /* -1: there is none */
const char *weft_place_name(weft_operand_place place);
int weft_place_parse(const char *name);
const char *weft_lane_kind_name(weft_lane_kind kind);
int weft_lane_kind_parse(const char *name);

/* The role of a caller's operand, by its name; WEFT_ROLE_NONE: there is none. */
weft_operand_role weft_role_parse(const char *name);

/* A whole number, all of the text; false where it is none or does not fit. */
bool weft_number_parse(const char *text, int64_t *number);

#endif
