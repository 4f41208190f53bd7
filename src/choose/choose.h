/*
 * Decides what a problem leaves open on CPU ranks: schedule, tiles, workers, how B is given. What it is
 * decided by, beside the problem, is a basis: found on a rank, and kept by all where they have found that
 * theirs are the same. From then on each decides by itself what the others decide.
 */
#ifndef WEFT_CHOOSE_CHOOSE_H
#define WEFT_CHOOSE_CHOOSE_H

#include "choose/machine.h"
#include "choose/tuned.h"
#include "group/group.h"
#include "gemm/gemm.h"
#include "plan/plan.h"
#include "sim/machine.h"

typedef struct weft_basis {
    weft_error_text why; /* status not WEFT_OK: what the next two lack, and so some products or all */
    weft_machine machine;
    const weft_core *core; /* whose kernels this process takes; or NULL */
    int workers;           /* of a rank where nobody asks for another number */
    bool spread;           /* the ranks are on several nodes */
    bool alone;            /* each on one of its own */
    uint64_t nodes;        /* hash of how many each has; 0: one node */
    /* What weft tune has kept, as it was when this was found: the file may change at any time, and what ranks
     * decide may not change with it on some only. */
    weft_tuned_file *tuned;
    weft_error_text tuned_why; /* status not WEFT_OK: it cannot be read */
    uint64_t pool_uses;        /* weft_pool_uses() when this was found */
} weft_basis;

/* Until weft_basis_drop. */
void weft_basis_find(const weft_group *group, weft_basis *basis);
void weft_basis_drop(weft_basis *basis);

/* That of a group which is not there: so many ranks of this machine that nobody has bound, on these nodes
 * (NULL: one). */
void weft_basis_assume(int world, const int32_t *domain, weft_basis *basis);

/* What results of this group's plans are kept by (tuned.h). */
uint64_t weft_choose_tuned_as(const weft_group *group);

/* What ranks compare, beside their workers, of which they take those of rank 0; 0: nothing that could be the
 * same. */
uint64_t weft_basis_hash(const weft_basis *basis);

/* Whether what can change in a process is still what it was: where it is not, it has changed on all ranks,
 * though one may have as many threads as before. */
bool weft_basis_holds(const weft_basis *basis);

/* `origin`, where it is not NULL: by what. */
weft_status weft_choose_cpu(const weft_basis *basis, const weft_problem *problem, int world,
                            weft_problem *resolved, weft_origin *origin, weft_error_text *error);

/* The same, and what was simulated for it, for peers to choose by without simulating: they learn it
 * (weft_choose_learn_few). */
weft_status weft_choose_and_tell(const weft_basis *basis, const weft_problem *problem, int world,
                                 weft_problem *resolved, weft_chosen_few *few, weft_origin *origin,
                                 weft_error_text *error);

#endif
