/* What `weft tune` tries, and how the tries are timed. */
#ifndef WEFT_TOOLS_TUNE_TUNE_H
#define WEFT_TOOLS_TUNE_TUNE_H

#include "choose/tuned.h"
#include "sim/sim.h"

enum { TUNE_MOST_TRIES = 32 };

typedef struct tune_try {
    weft_problem problem; /* as asked of weft; when it was timed, everything decided */
    double us;            /* INFINITY: it cannot run */
} tune_try;

/* The ranks that tries are timed on: threads of this process, or those that a launcher started, of which this
 * process is one. */
typedef struct tune_place {
    int ranks;
    bool cuda;         /* on GPUs */
    weft_group *group; /* of ranks that a launcher started; NULL: threads, in groups of their own */
    uint64_t machine;  /* set by tune_measure: what results are kept by */
} tune_place;

/*
 * Times all tries side by side: every round runs each try once, with its inputs written anew where that is
 * host memory, and a try's time is the lower quartile over rounds of its slowest rank, as other processes can
 * only add to it. All ranks of a launcher call it, and get the same. WEFT_OK, or what failed in `error`.
 */
weft_status tune_measure(tune_try *tries, int count, double seconds, tune_place *place,
                         weft_error_text *error);

#endif
