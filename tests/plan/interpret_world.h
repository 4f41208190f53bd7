/*
 * The world that the interpreter of plans moves: ranks, their memory, lanes and signals, messages between
 * domains. Private to interpret.c, which moves it, and interpret_values.c, which says what is in it at first
 * and what must be in the end.
 */
#ifndef WEFT_TESTS_PLAN_INTERPRET_WORLD_H
#define WEFT_TESTS_PLAN_INTERPRET_WORLD_H

#include "interpret.h"

typedef struct lane_state {
    uint32_t next; /* task of the lane to do, counted from its first */
    bool started;  /* it has read; `result` waits to be written */
    double *result;
    int64_t rows, cols; /* of the result */
    double *carried;    /* by the task before, to the next one */
    int64_t carried_rows, carried_cols;
} lane_state;

typedef struct rank_state {
    int run; /* 1-based; runs + 1 when finished */
    uint64_t *signals;
    double **memory; /* [operand]; two that share it where the caller gave it twice */
    double **owned;  /* [operand] NULL where another has it */
    uint64_t **tile; /* [operand] handed on: which region was left there */
    lane_state *lanes;
    int busy; /* tasks started and not ended */
} rank_state;

/* On its way between domains. */
typedef struct message {
    int rank; /* of the sender */
    const weft_task *task;
    double *data;
    bool landed, posted;
} message;

typedef struct world_state {
    const weft_plan_part *parts;
    int world, runs;
    uint64_t seed, data_seed;
    rank_state *ranks;
    const lane_state *lane; /* whose task is computed */
    int acting;             /* the rank that reads or writes */
    message *messages;      /* in the order in which they were sent; those posted are gone */
    size_t message_count, message_room, on_their_way;
    bool reals, wrong;
} world_state;

/* What a caller does between runs: new inputs, poisoned outputs. Private scratch is poisoned too. */
void interpret_prepare(world_state *w, int rank);

/* Whether the rank's outputs are what its run must give; else the world is wrong. */
void interpret_verify(world_state *w, int rank);

double interpret_activate(const weft_problem *p, double value);
double interpret_combine(weft_reduction reduction, double a, double b);

#endif
