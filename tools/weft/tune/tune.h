/* What `weft tune` tries, and how the tries are timed. */
#ifndef WEFT_TOOLS_TUNE_TUNE_H
#define WEFT_TOOLS_TUNE_TUNE_H

#include "sim/sim.h"
#include "choose/tuned.h"

enum { TUNE_MOST_TRIES = 32 };

typedef struct tune_try {
    weft_problem problem; /* as asked of weft; when it was timed, everything decided */
    double us;            /* INFINITY: it cannot run */
} tune_try;

/*
 * Times all tries side by side: ranks are threads, every round runs each try once, with its inputs written
 * anew, and a try's time is the lower quartile over rounds of its slowest rank, as other processes can only
 * add to it. `cores` of a rank, as its group counts them. 0, or 1 after a line on standard error.
 */
int tune_measure(tune_try *tries, int count, int ranks, double seconds, int *cores);

#endif
