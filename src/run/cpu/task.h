/* The bodies of tasks: regions become addresses, then one call to a kernel. */
#ifndef WEFT_RUN_CPU_TASK_H
#define WEFT_RUN_CPU_TASK_H

#include "run/cpu/program.h"

/* Starts a crossing COPY (plan.h): its posts are made where it lands, and `departed` gets one when its source
 * may be overwritten. */
void weft_task_send(weft_executor *executor, const weft_task *task, weft_signal *departed);

/* Points the running plan's peer operands at where `rank` says they are. Its record must have been seen or
 * follow from what was seen. */
void weft_task_bind(weft_executor *executor, int rank);

/* Runs one COPY, GEMM or REDUCE task of the running plan. `workspace` is the worker's own. */
void weft_task_run(weft_executor *executor, const weft_task *task, char *workspace);

#endif
