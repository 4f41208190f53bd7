/* The CPU's backend: ranks are threads or processes that share memory. */
#include "run/backend.h"

#include "choose/choose.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "run/cpu/counted.h"
#include "run/cpu/onesided.h"
#include "run/cpu/program.h"
#include "run/cpu/small.h"
#include "symm/message.h"
#include "symm/symm.h"

#include <stdio.h>
#include <string.h>

static void cpu_describe(char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", weft_cpu_name());
}

static void *cpu_peer(const weft_group *group, const void *pointer, int rank)
{
    if (!weft_symm_contains(group, pointer, 1) || group->seats[rank].far)
        return NULL;
    return weft_symm_reach(group, pointer, rank);
}

static weft_status cpu_copy(weft_group *group, void *to, const void *from, size_t bytes)
{
    (void)group;
    if (bytes)
        memcpy(to, from, bytes);
    return WEFT_OK;
}

static weft_status cpu_run_on(weft_plan *plan, const weft_operands *operands, void *stream)
{
    if (!stream || stream == WEFT_STREAM_OWN)
        return weft_cpu_run(plan, operands);
    weft_error_set(&plan->group->error, WEFT_ERR_ARGUMENT,
                   "weft_run_on: stream is %p, but the group is on the CPU, which has no streams", stream);
    return weft_session_reject(plan->group, &plan->part.problem, WEFT_ERR_ARGUMENT);
}

/* Runs are over when they return. */
static weft_status cpu_wait(weft_plan *plan, void *stream)
{
    (void)stream;
    return weft_group_check(plan->group);
}

static bool cpu_reduces(weft_dtype dtype, weft_reduction reduction)
{
    return weft_dtype_reduces(dtype, reduction);
}

static weft_status cpu_small_run(weft_group *group, const void *send, void *recv)
{
    weft_executor *executor;
    weft_status status = weft_executor_of(group, &executor);

    return status == WEFT_OK ? weft_small_run(executor, send, recv) : status;
}

const weft_backend weft_cpu_backend = {
    .name = "cpu",
    .where = "the CPU",
    .describe = cpu_describe,
    .detach = weft_executor_detach,
    .alloc = weft_symm_alloc_staggered,
    .release = weft_symm_free,
    .peer = cpu_peer,
    .copy = cpu_copy,
    .host_memory = true,
    .onesided = &weft_cpu_onesided,
    .plan_create = weft_cpu_plan_create,
    .plan_load = weft_cpu_plan_load,
    .plan_alone = weft_cpu_plan_alone,
    .plan_destroy = weft_cpu_plan_destroy,
    .kept_bytes = (size_t)64 << 20,
    .run = weft_cpu_run,
    .run_on = cpu_run_on,
    .issue = weft_cpu_run,
    .wait = cpu_wait,
    .settle = weft_group_check,
    .tuned_as = weft_choose_tuned_as,
    .reduces = cpu_reduces,
    .small_take = weft_small_take,
    .small_run = cpu_small_run,
    .counted = weft_counted_run,
    .send = weft_message_send,
    .recv = weft_message_recv,
};
