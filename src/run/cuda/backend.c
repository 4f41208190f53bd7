#include "run/cuda/backend.h"

#include "core/dtype.h"
#include "run/cuda/channels.h"
#include "run/cuda/cublaslt.h"
#include "run/cuda/epilogue.h"
#include "run/cuda/group.h"
#include "run/cuda/grouped.h"
#include "run/cuda/journal.h"
#include "run/cuda/moe.h"
#include "run/cuda/moe_ffn.h"
#include "run/cuda/nodes.h"
#include "run/cuda/onesided.h"
#include "choose/cuda/tuned.h"
#include "run/cuda/unmet.h"

#include <stdio.h>
#include <string.h>

static void describe(char *text, size_t bytes)
{
    size_t used;

    if (!weft_cuda_describe(text, bytes))
        return;
    used = strlen(text);
    snprintf(text + used, bytes - used, "; ");
    used = strlen(text);
    weft_cublaslt_describe(text + used, bytes - used);
}

/* The same outcome on every rank. */
static weft_status open_channels(weft_group *group)
{
    weft_status status = weft_cuda_channels_open(group);
    weft_error_text why = group->error;

    if (status != WEFT_OK) {
        weft_cuda_channels_close(group);
        weft_cuda_detach(group);
        group->error = why;
    }
    return status;
}

static weft_status attach(weft_group *group, int device)
{
    weft_status status;
    bool apart;

    if (group->spread)
        return weft_cuda_nodes_backend.attach(group, device);
    status = weft_cuda_attach(group, device, &apart);
    if (status == WEFT_OK && apart)
        return weft_cuda_nodes_backend.attach(group, device);
    if (status == WEFT_OK)
        status = open_channels(group);
    if (status == WEFT_OK)
        group->backend = &weft_cuda_backend;
    return status;
}

static void detach(weft_group *group)
{
    if (group->world->foreign) /* a driver does not work in a child of fork */
        return;
    weft_cuda_channels_close(group);
    weft_cuda_unmet_free(group);
    weft_cuda_tables_free(weft_cuda_of(group));
    weft_cuda_plans_free(weft_cuda_of(group));
    weft_cuda_detach(group);
}

/* A plan of which nothing but the product is like others. */
static weft_status plan_create(weft_plan *plan)
{
    weft_status status = weft_cuda_epilogue_always(&plan->asked) ? weft_cuda_epilogue_create(plan)
                                                                 : weft_cuda_plan_create(plan);

    return status == WEFT_OK ? weft_cuda_unmet_reserve(plan) : status;
}

static bool plan_alone(weft_plan *plan, weft_status *status)
{
    if (!weft_cuda_unmet_can(plan))
        return false;
    return weft_cuda_epilogue_always(&plan->asked) ? weft_cuda_epilogue_alone(plan, status)
                                                   : weft_cuda_unmet_make(plan, status);
}

static void plan_destroy(weft_plan *plan)
{
    if (plan->lowered)
        weft_cuda_epilogue_free(plan);
    weft_cuda_plan_destroy(plan);
}

static weft_status check_values(const weft_plan *plan, const weft_operands *operands,
                                const weft_cuda_values *values)
{
    const weft_problem *p = &plan->part.problem;
    weft_error_text *error = &plan->group->error;

    if ((operands->a_scale || operands->b_scale) && p->scales != WEFT_SCALE_BLOCK)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "the run has scales of blocks, but the plan was made with scales = %d, not %d",
                              p->scales, WEFT_SCALE_BLOCK);
    if (p->beta == 0 && (values->beta != 0 || values->beta_at))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "the run has a beta, but the plan was made with beta = 0 and has no C");
    return WEFT_OK;
}

static weft_status run_on(weft_plan *plan, const weft_operands *operands, void *stream)
{
    weft_cuda_values values = weft_cuda_values_of(plan, operands);
    weft_status status = check_values(plan, operands, &values);

    if (status != WEFT_OK)
        return status;
    if (!weft_cuda_epilogue_needed(plan, operands, &values))
        return weft_cuda_plan_run(plan, operands, stream);
    if (plan->loaded)
        return weft_error_set(
            &plan->group->error, WEFT_ERR_UNSUPPORTED,
            "on GPUs a run of a plan from a file has its alpha and beta, or others than 0 and 1 "
            "where these are, and no scales");
    return weft_cuda_epilogue_run(plan, operands, &values, stream);
}

static bool device_reads(const weft_group *group, const void *pointer)
{
    return weft_cuda_reads(weft_cuda_of(group), pointer);
}

static weft_status run(weft_plan *plan, const weft_operands *operands)
{
    weft_status status = weft_group_check(plan->group);

    if (status == WEFT_OK)
        status = run_on(plan, operands, WEFT_STREAM_OWN);
    return status == WEFT_OK ? weft_cuda_plan_wait(plan, WEFT_STREAM_OWN) : status;
}

static weft_status issue(weft_plan *plan, const weft_operands *operands)
{
    const weft_cuda_group *g = weft_cuda_of(plan->group);

    return g->issue_ordered ? run_on(plan, operands, g->issue_stream) : run(plan, operands);
}

static weft_status settle(weft_group *group)
{
    weft_status status = weft_cuda_settle(group);

    if (status != WEFT_OK)
        return status;
    weft_cuda_push(weft_cuda_of(group));
    status = weft_cuda_channels_settle(group);
    weft_cuda_pop(weft_cuda_of(group));
    return status;
}

static weft_status set_stream(weft_group *group, bool ordered, void *stream)
{
    weft_cuda_group *g = weft_cuda_of(group);

    g->issue_ordered = ordered;
    g->issue_stream = ordered ? stream : WEFT_STREAM_OWN;
    return WEFT_OK;
}

static uint64_t tuned_as(const weft_group *group)
{
    const weft_cuda_group *g = weft_cuda_of(group);

    return weft_cuda_tuned_as(g->device->name, g->crews, g->whole);
}

static bool reduces(weft_dtype dtype, weft_reduction reduction)
{
    return weft_dtype_reduces(dtype, reduction);
}

static bool is_ordered(const weft_group *group)
{
    return weft_cuda_of(group)->issue_ordered;
}

static const weft_device_moe_ops moe_ops = {
    .measure = weft_cuda_moe_bytes,
    .create = weft_cuda_moe_create,
    .destroy = weft_cuda_moe_destroy,
    .launch = weft_cuda_moe_run,
    .takes_arriving = weft_cuda_moe_takes_arriving,
    .multiply = weft_cuda_moe_multiply,
    .ffn_check = weft_cuda_moe_ffn_check,
    .ffn_pack = weft_cuda_moe_ffn_pack,
    .ordered = is_ordered,
    .wait = weft_cuda_moe_wait,
    .view = weft_cuda_moe_view,
    .check = weft_cuda_check_memory,
    .memory = weft_cuda_moe_memory,
    .discard = weft_cuda_moe_discard,
};

const weft_backend weft_cuda_backend = {
    .name = "cuda",
    .where = "GPUs",
    .describe = describe,
    .attach = attach,
    .detach = detach,
    .alloc = weft_cuda_alloc,
    .release = weft_cuda_release,
    .peer = weft_cuda_peer,
    .copy = weft_cuda_copy,
    .onesided = &weft_cuda_onesided,
    .peer_table = weft_cuda_peer_table,
    .pad_create = weft_cuda_pad_create,
    .pad_wait = weft_cuda_pad_wait,
    .plan_create = plan_create,
    .plan_load = weft_cuda_plan_load,
    .plan_alone = plan_alone,
    .plans_alone = weft_cuda_unmet_are,
    .meets = weft_cuda_journal_meets,
    .plan_destroy = plan_destroy,
    .kept_bytes = (size_t)512 << 20,
    .reach = weft_cuda_plan_reach,
    .run = run,
    .run_on = run_on,
    .issue = issue,
    .device_reads = device_reads,
    .wait = weft_cuda_plan_wait,
    .settle = settle,
    .set_stream = set_stream,
    .tuned_as = tuned_as,
    .reduces = reduces,
    .counted = weft_cuda_counted,
    .send = weft_cuda_send,
    .recv = weft_cuda_recv,
    .moe = &moe_ops,
    .grouped = weft_cuda_grouped_run,
};
