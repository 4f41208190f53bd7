/*
 * How far predictions of a kind were off where there is something to compare them with: every prediction can
 * say it. The figures of GPUs are those of tests/sim/published.csv and measured.csv, and
 * tests/sim/test_published.c holds them to that; those of CPUs are of docs/simulator.md.
 */
#ifndef WEFT_SIM_TRUST_H
#define WEFT_SIM_TRUST_H

#include "plan/plan.h"
#include "sim/machine.h"

typedef enum weft_trust_kind {
    WEFT_TRUST_UNFUSED,         /* a library's collective and a library's product */
    WEFT_TRUST_LIBRARY,         /* collectives of a library, on one node */
    WEFT_TRUST_LIBRARY_NODES,   /* the same over nodes */
    WEFT_TRUST_LOADS,           /* collectives of kernels that load and store over the link, as weft's do */
    WEFT_TRUST_PRODUCTS,        /* weft's products on one GPU of eight behind an emulated link */
    WEFT_TRUST_CPU_COLLECTIVES, /* weft's, on the machine that was calibrated */
    WEFT_TRUST_CPU_PRODUCTS,
    WEFT_TRUST_KINDS
} weft_trust_kind;

typedef struct weft_trust {
    const char *what;
    int rows;
    double median_pct, worst_pct;
} weft_trust;

const weft_trust *weft_trust_of(weft_trust_kind kind);

/* The kind of a prediction: of weft's own plan, or of what libraries take. */
weft_trust_kind weft_trust_kind_of(const weft_machine *machine, const weft_problem *problem, int world,
                                   bool library);

/* Whether any of the rows is of this very machine. */
bool weft_trust_has_rows(const weft_machine *machine);

#endif
