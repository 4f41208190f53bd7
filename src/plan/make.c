/* From a resolved problem to one rank's part: picks the generator, closes the part, frees it. */
#include "plan/generate.h"

#include <stdlib.h>

static void (*const generators[])(weft_builder *) = {
    [WEFT_OP_AG_GEMM] = weft_generate_ag_gemm,
    [WEFT_OP_GEMM_RS] = weft_generate_gemm_rs,
    [WEFT_OP_GEMM_AR] = weft_generate_gemm_ar,
    [WEFT_OP_GEMM_AS] = weft_generate_gemm_as,
    [WEFT_OP_ALL_REDUCE] = weft_generate_all_reduce,
    [WEFT_OP_ALL_GATHER] = weft_generate_all_gather,
    [WEFT_OP_REDUCE_SCATTER] = weft_generate_reduce_scatter,
    [WEFT_OP_ALL_TO_ALL] = weft_generate_all_to_all,
    [WEFT_OP_BROADCAST] = weft_generate_broadcast,
};

weft_status weft_plan_make(const weft_problem *problem, int world, int rank, weft_plan_part *part,
                           weft_error_text *error)
{
    weft_problem resolved;
    weft_builder builder;
    weft_status status = weft_problem_resolve(problem, world, &resolved, error);

    if (status != WEFT_OK)
        return status;
    if (rank < 0 || rank >= world)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "rank %d is not one of the ranks 0 to %d", rank,
                              world - 1);
    if (resolved.schedule == WEFT_SCHEDULE_AUTO)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "a plan needs a schedule; auto must be resolved before");
    if (resolved.schedule == WEFT_SCHEDULE_CUSTOM)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "a custom schedule is a plan in a file, and is not made");
    builder = weft_builder_begin(&resolved, world, rank);
    if (resolved.schedule == WEFT_SCHEDULE_PACKETS)
        weft_generate_packets(&builder);
    else if (world == 1 && resolved.op <= WEFT_OP_GEMM_AS && resolved.tuning.chunk_k > 0)
        weft_generate_local(&builder);
    else
        generators[resolved.op](&builder);
    return weft_builder_finish(&builder, part, error);
}

void weft_plan_part_free(weft_plan_part *part)
{
    free(part->operands);
    free(part->lanes);
    free(part->tasks);
    free(part->regions);
    free(part->waits);
    free(part->posts);
    free(part->signal_posts);
    *part = (weft_plan_part){0};
}
