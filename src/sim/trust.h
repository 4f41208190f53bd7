/*
 * How far predictions of a kind were off where there is something to compare them with: every prediction can
 * say it, also that nothing was. Only rows that nothing was found on or fitted to stand for a CPU. The
 * figures of GPUs are those of tests/sim/published.csv and measured.csv, and tests/sim/test_published.c holds
 * them to that, and the table of docs/simulator.md to all of them.
 */
#ifndef WEFT_SIM_TRUST_H
#define WEFT_SIM_TRUST_H

#include "plan/plan.h"
#include "sim/machine.h"

typedef enum weft_trust_kind {
    WEFT_TRUST_NONE,          /* there is nothing of its kind to compare with */
    WEFT_TRUST_UNFUSED,       /* a library's collective and a library's product, on one node */
    WEFT_TRUST_LIBRARY,       /* collectives of a library, on one node */
    WEFT_TRUST_LIBRARY_NODES, /* the same over nodes */
    WEFT_TRUST_LOADS,         /* collectives of kernels that load and store over the link, as weft's do */
    WEFT_TRUST_PRODUCTS,      /* weft's products on one GPU of eight behind an emulated link */
    WEFT_TRUST_MOE,           /* dispatch and combine of experts, likewise */
    WEFT_TRUST_CPU_COLLECTIVES_F32, /* weft's, on the machine that was calibrated */
    WEFT_TRUST_CPU_COLLECTIVES_BF16,
    WEFT_TRUST_CPU_F32, /* products of more than WEFT_GEMM_STREAM_ROWS rows */
    WEFT_TRUST_CPU_BF16,
    WEFT_TRUST_CPU_F16,
    WEFT_TRUST_CPU_I8,
    WEFT_TRUST_CPU_FEW_F32, /* of no more */
    WEFT_TRUST_CPU_FEW_BF16,
    WEFT_TRUST_CPU_FEW_F16,
    WEFT_TRUST_CPU_FEW_I8,
    WEFT_TRUST_KINDS
} weft_trust_kind;

typedef struct weft_trust {
    const char *what;
    int rows;
    double median_pct, most_pct, worst_pct; /* nine tenths stay within the second; NAN: not known */
} weft_trust;

const weft_trust *weft_trust_of(weft_trust_kind kind);

/* The kind of a prediction: of weft's own plan, or of what libraries take; and of a round of experts. */
weft_trust_kind weft_trust_kind_of(const weft_machine *machine, const weft_problem *problem, int world,
                                   bool library);
weft_trust_kind weft_trust_kind_of_moe(const weft_machine *machine, int world);

/* Whether any of the rows is of this very machine. */
bool weft_trust_has_rows(const weft_machine *machine);

/* "median 3 %, at most 10 % of 60 rows", or that there are none. */
void weft_trust_words(const weft_trust *trust, char *text, size_t bytes);

#endif
