/*
 * A plain interpreter of plans: every rank's memory is an array of doubles, tasks are loops, and a random
 * scheduler interleaves the lanes of all ranks over several runs without any barrier. A task is two events:
 * it reads (and computes) when it starts, and writes and posts when it ends. Data are small integers, new in
 * every run; outputs and private memory are poisoned between runs; results must be exact.
 *
 * It is as strict as an engine may be. What a caller brings follows from the problem, not from the plan. A
 * copy into a packed operand spoils the rest of its last panel, and one that begins inside a panel, or a
 * window that cuts a step of k, gives nothing of use. Sums that are handed on can be had only as the tile
 * they were left as. Carried sums stay with their lane. What is stored is rounded to the type of its operand.
 * Every other caller has the same memory for C and D, and for SEND and RECV where the schedule allows that.
 *
 * Memory of another domain is poison to read and swallows what is written; so do its signals, but for ENTER.
 * What a crossing COPY moves is read when it ends, and lands some time later, in any order; the messages of
 * one lane to one rank make their posts in order.
 */
#ifndef WEFT_TESTS_PLAN_INTERPRET_H
#define WEFT_TESTS_PLAN_INTERPRET_H

#include "plan/plan.h"

typedef enum interpret_result { INTERPRET_EXACT, INTERPRET_WRONG, INTERPRET_STUCK } interpret_result;

/* One thread per rank (a rank does one task at a time) or one worker per lane. */
interpret_result interpret(const weft_plan_part *parts, int world, int runs, bool one_thread, uint64_t seed);

/* One run on numbers that are no integers: INTERPRET_WRONG where ranks that are promised equal bits differ.
 */
interpret_result interpret_bits(const weft_plan_part *parts, int world, uint64_t seed);

/* Makes the parts of all ranks; false and a message when one fails. */
bool interpret_make(const weft_problem *problem, int world, weft_plan_part *parts);
bool interpret_make_over(const weft_problem *problem, const int32_t *domain, int world,
                         weft_plan_part *parts);

/* A partition of the ranks into domains: 2 to 4, in blocks or scattered, even or not. */
void interpret_domains(int world, int32_t *domain, uint64_t *seed);
void interpret_free(weft_plan_part *parts, int world);

/* One line that says which problem this is, for failures. */
const char *interpret_describe(const weft_problem *problem, int world);

/* A random problem of an operation and schedule. Sizes are tiny, tiles tinier. */
weft_problem interpret_random(weft_op op, weft_schedule schedule, weft_layout layout, uint64_t *seed);

/* Every (op, layout, schedule) there is, one by one; false past the last. */
typedef struct interpret_kind {
    weft_op op;
    weft_layout layout;
    weft_schedule schedule;
} interpret_kind;
bool interpret_kind_at(int index, interpret_kind *kind);

#endif
