/*
 * The caller's buffers of one run: checked, published, and staged through symmetric memory where peers must
 * touch what they cannot reach.
 */
#ifndef WEFT_RUN_CPU_OPERANDS_H
#define WEFT_RUN_CPU_OPERANDS_H

#include "run/cpu/program.h"

/* One of the caller's buffers, seen as its operand: stored rows of `cols` elements. */
typedef struct weft_given {
    char *data;
    int64_t ld;
    int64_t stride; /* elements between batch elements; bytes when packed */
    int64_t rows, cols;
    int64_t batch;
} weft_given;

weft_given weft_given_of(const struct weft_plan *plan, int operand, const weft_operands *operands);

/* Bytes from the first to the last element. */
size_t weft_given_span(const struct weft_plan *plan, int operand, const weft_given *given);

/* Does anybody touch this rank's instance? */
bool weft_given_needed(const struct weft_plan *plan, weft_operand_role role);

/* WEFT_OK, or why it cannot be used, with the sentence in group->error. */
weft_status weft_given_check(const struct weft_plan *plan, int operand, const weft_given *given);

/* Must its instance be staged? Because peers touch it and it is not `shared` with them, or because it is a
 * SEND that a RECV would overwrite too early. */
bool weft_given_must_move(const struct weft_plan *plan, int operand, const weft_given *given,
                          const weft_operands *operands, bool shared);

/* Fills this rank's places and its record, and stages inputs. A refusal comes with a sentence in
 * group->error. */
weft_status weft_operands_enter(struct weft_plan *plan, const weft_operands *operands, weft_record *record);

/* After the run: outputs that were written into bounce memory go to the caller's. */
void weft_operands_leave(struct weft_plan *plan, const weft_operands *operands);

#endif
