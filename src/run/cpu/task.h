/* The bodies of tasks: regions become addresses, then one call to a kernel. */
#ifndef WEFT_RUN_CPU_TASK_H
#define WEFT_RUN_CPU_TASK_H

#include "run/cpu/program.h"

/* Starts a crossing COPY (plan.h): its posts are made where it lands, and `departed` gets one when its source
 * may be overwritten. */
/* Whether a crossing COPY may leave before its destination has entered the run: it lands there as it is. */
bool weft_task_may_be_early(const weft_executor *executor, const weft_task *task);

/* A crossing COPY whose destination only the receiver can find: always sent as if it were early. */
bool weft_task_is_placed(const weft_executor *executor, const weft_task *task);

/* Starts such a COPY. What has to be shown with it goes along. */
void weft_task_send_early(weft_executor *executor, const weft_task *task, weft_signal *departed);

/* The receiving side of it, for the net: see weft_net_run. */
char *weft_task_place_early(void *executor, const uint64_t what[WEFT_NET_WORDS], uint64_t rows,
                            uint64_t row_bytes, ptrdiff_t *pitch);
void weft_task_landed_early(void *executor, const uint64_t what[WEFT_NET_WORDS]);

void weft_task_send(weft_executor *executor, const weft_task *task, weft_signal *departed);

/* Points the running plan's peer operands at where `rank` says they are. Its record must have been seen or
 * follow from what was seen. */
void weft_task_bind(weft_executor *executor, int rank);

/* Runs one COPY, GEMM or REDUCE task of the running plan. `workspace` is the worker's own. */
void weft_task_run(weft_executor *executor, const weft_task *task, char *workspace);

#endif
