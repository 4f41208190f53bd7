/*
 * Operands where peers cannot reach them (`staged` of a tuning): no rank touches another's.
 *
 * An input that peers read is copied to symmetric memory by its owner, in chunks, between the tasks that need
 * no peer, or by copy lanes before they fetch anything; whoever reads it waits for the chunks it needs, so
 * that nobody waits for the whole. A rank that makes results of a product for others leaves them in its own
 * symmetric memory, and they fetch them; sums of an all_reduce go to the chunks that they were made of.
 *
 * No chunk waits for a later one: before a task that reads chunk c of a peer, a rank has copied its own
 * chunks up to c (in whichever lane).
 */
#ifndef WEFT_PLAN_STAGED_H
#define WEFT_PLAN_STAGED_H

#include "plan/builder.h"

/* Whether copy lanes do it: those of a rotating schedule, where they fetch every piece together, or of
 * `direct`, where they do nothing else. */
bool weft_staged_by_copiers(const weft_problem *problem);

/* From here on what peers have of `operand` is read where they stage it. Compute lanes are declared
 * before, and copy lanes next. */
void weft_staged_begin(weft_builder *builder, uint32_t operand, bool by_rows);

/* Copies the next chunk of this rank's, if there is one; all up to row (column) `end` of a matrix; the rest.
 * Without weft_staged_begin there is nothing to do. */
void weft_staged_next(weft_builder *builder);
void weft_staged_until(weft_builder *builder, int64_t batch, int64_t end);
void weft_staged_rest(weft_builder *builder);

/* An operand like D for the results that this rank leaves for others. */
uint32_t weft_staged_results(weft_builder *builder, uint32_t d);

#endif
