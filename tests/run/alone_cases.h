/*
 * New sizes in a group on CPUs, whatever lies between its ranks: after a first call the ranks meet for none
 * of them, so that one which comes late keeps no peer from planning and entering its run.
 */
#ifndef WEFT_TESTS_RUN_ALONE_CASES_H
#define WEFT_TESTS_RUN_ALONE_CASES_H

#include "run/tp_case.h"

#include "run/session.h"

#include <time.h>

enum { SYMMETRIC_BYTES = 4 << 20, MOST = 200 };

typedef weft_status (*product)(weft_group *group, const weft_problem *problem, const weft_operands *operands);

static const product products[] = {weft_ag_gemm, weft_gemm_rs, weft_gemm_ar, weft_gemm_as};

/* Runs a product of m rows and checks it, unless it is a large one. */
static inline weft_status multiply(weft_group *group, char *symmetric, weft_op op, int64_t m)
{
    tp_case t = {.integers = true, .symmetric = m % 3 ? 31 : 0, .seed = (uint64_t)m};
    tp_instance s[TP_OPERANDS];
    weft_operands operands;
    weft_status status;

    weft_problem_init(&t.problem, op);
    t.problem.d_dtype = WEFT_F32;
    t.problem.m = m;
    t.problem.n = 48;
    t.problem.k = 40;
    t.problem.layout = op == WEFT_OP_AG_GEMM   ? WEFT_LAYOUT_GATHER_A
                       : op == WEFT_OP_GEMM_RS ? WEFT_LAYOUT_SCATTER_ROWS
                                               : WEFT_LAYOUT_DEFAULT;
    tp_place(&t, weft_size(group), weft_rank(group), symmetric, s);
    for (int which = 0; which < TP_OPERANDS; which++)
        tp_fill(&t, which, &s[which]);
    operands = tp_operands(s);
    status = products[op](group, &t.problem, &operands);
    if (status == WEFT_OK && m <= MOST)
        CHECK_INT(tp_wrong(&t, weft_size(group), &s[TP_D]), 0);
    tp_release(s);
    return status;
}

static inline void new_sizes(weft_group *group, void *argument)
{
    void *symmetric = NULL;

    (void)argument;
    CHECK_INT(weft_alloc(group, SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    for (weft_op op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++)
        CHECK_INT(multiply(group, symmetric, op, MOST), WEFT_OK);
    for (int64_t m = 1; m < MOST; m += m < 10 ? 1 : 17) {
        for (weft_op op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++) {
            uint64_t syncs = group->sync, calls = group->session->sequence;

            CHECK_INT(multiply(group, symmetric, op, m), WEFT_OK);
            CHECK_INT(group->sync, syncs);
            CHECK_INT(group->session->sequence, calls + 1); /* the run's own ENTER */
        }
    }
    weft_free(group, symmetric);
}

/* Whether all others have entered a run that this rank has not come to. */
static inline bool others_run(const weft_session *s)
{
    uint64_t next = s->sequence + 1;

    for (int rank = 0; rank < s->world; rank++) {
        const weft_record *record = &s->of[rank][next & 1];

        if (rank != s->rank &&
            (!weft_signal_reached(&record->sequence, next) || record->kind != WEFT_CALLED_RUN))
            return false;
    }
    return true;
}

/* Every rank in turn comes late to new sizes. Far ranks show their records to one rank of a node, whose
 * memory the others of it see. */
static inline void late_rank(weft_group *group, void *argument)
{
    const weft_session *s;

    (void)argument;
    CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, MOST), WEFT_OK);
    s = group->session;
    for (int64_t m = 1; m <= 2 * weft_size(group); m++) {
        bool entered = false;

        for (int tries = 0; m % weft_size(group) == weft_rank(group) && !entered && tries < 20000; tries++) {
            entered = others_run(s);
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
        CHECK(entered || m % weft_size(group) != weft_rank(group));
        CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, m), WEFT_OK);
    }
}

#endif
