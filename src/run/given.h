/* The caller's buffers of a run, as every backend sees and checks them. */
#ifndef WEFT_RUN_GIVEN_H
#define WEFT_RUN_GIVEN_H

#include "run/program.h"

enum { WEFT_LANDED_POSTS = 2 }; /* that a message for a place of the receiver's finding makes, at most */

/* Once a plan's part is there: which operands the user gives and how large they are, and which of them peers
 * touch. */
void weft_given_note(struct weft_plan *plan);

/* Whether a COPY to another node says itself where it goes in an operand of the receiver, who then finds the
 * place: the operand may lie anywhere. Others are sent to an address. */
bool weft_given_lands(const weft_plan_part *part, const weft_task *task);

/* Roles that peers touch, if it is worth having a plan that stages them; 0: none. */
uint32_t weft_given_reached(const struct weft_plan *plan);

/* Roles of which runs tell whether peers can reach them: those of a collective whatever its size, for a small
 * one that nobody can read in place needs no plan (cpu/small.c). */
uint32_t weft_given_told(const struct weft_plan *plan);

/* Does an operand of this rank of which peers are told lie where they cannot reach it? */
bool weft_given_beyond(const struct weft_plan *plan, const weft_operands *operands);

weft_given weft_given_of(const struct weft_plan *plan, int operand, const weft_operands *operands);

static inline bool weft_given_empty(const weft_given *given)
{
    return given->rows <= 0 || given->cols <= 0;
}

/* Bytes from the first to the last element. */
size_t weft_given_span(const struct weft_plan *plan, int operand, const weft_given *given);

/* Does anybody touch this rank's instance? */
bool weft_given_needed(const struct weft_plan *plan, weft_operand_role role);

/* Whether a rank tells its peers where so many bytes of an operand lie. */
bool weft_given_tells(const struct weft_plan *plan, weft_operand_role role, size_t bytes);

/* WEFT_OK, or why it cannot be used, with the sentence in group->error. */
weft_status weft_given_check(const struct weft_plan *plan, int operand, const weft_given *given);

/* Must its instance be staged? Because peers touch it and it is not `shared` with them, or because it is a
 * SEND that a RECV would overwrite too early. */
bool weft_given_must_move(const struct weft_plan *plan, int operand, const weft_given *given,
                          const weft_operands *operands, bool shared);

#endif
