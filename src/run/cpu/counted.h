/* Collectives with counts on CPU ranks. */
#ifndef WEFT_RUN_CPU_COUNTED_H
#define WEFT_RUN_CPU_COUNTED_H

#include "run/counted.h"
#include "run/cpu/executor.h"

/* Collective. */
weft_status weft_counted_run(weft_group *group, const weft_counted_job *job);

#endif
