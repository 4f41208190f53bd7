/* From a problem to one rank's part, or all parts: picks the generator, closes the part, frees it. */
#include "plan/generate.h"
#include "plan/lower.h"
#include "plan/two_level.h"
#include "plan/user_operands.h"

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

static weft_status resolve(const weft_problem *problem, int world, weft_problem *resolved,
                           weft_error_text *error)
{
    weft_status status = weft_problem_resolve(problem, world, resolved, error);

    if (status != WEFT_OK)
        return status;
    if (resolved->schedule == WEFT_SCHEDULE_AUTO)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "a plan needs a schedule; auto must be resolved before");
    if (resolved->schedule == WEFT_SCHEDULE_CUSTOM)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "a custom schedule is a plan in a file, and is not made");
    return WEFT_OK;
}

static weft_status no_such_rank(int world, int rank, weft_error_text *error)
{
    return weft_error_set(error, WEFT_ERR_ARGUMENT, "rank %d is not one of the ranks 0 to %d", rank,
                          world - 1);
}

/* Where shards from other nodes are gathered they lie in the order in which they come. */
static bool loses_blocks(const weft_problem *resolved)
{
    return resolved->op == WEFT_OP_AG_GEMM && resolved->scales == WEFT_SCALE_BLOCK;
}

static weft_status no_blocks(weft_error_text *error)
{
    return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                          "ag_gemm with scales of blocks is for ranks of one node, and not by two_level");
}

/* Collectives that are lowered are not staged: ranks of other domains do not read a chunk before its memory
 * is used for the next. */
static bool stages_over(const weft_problem *p)
{
    return p->op < WEFT_OP_ALL_REDUCE || p->schedule == WEFT_SCHEDULE_TWO_LEVEL ||
           (p->op == WEFT_OP_ALL_TO_ALL && p->schedule == WEFT_SCHEDULE_PUSH);
}

bool weft_plan_can_be_staged(const weft_problem *problem, const int32_t *domain, int world)
{
    if (!weft_problem_can_be_staged(problem))
        return false;
    return !domain || (weft_two_level_count(domain, world) < world && stages_over(problem));
}

static bool knows_domains(const weft_problem *resolved, const int32_t *domain, int world)
{
    return resolved->schedule == WEFT_SCHEDULE_TWO_LEVEL || weft_ag_gemm_gathers_first(resolved, world) ||
           weft_two_level_takes_multimem(resolved, domain, world) ||
           (resolved->op >= WEFT_OP_ALL_REDUCE && resolved->tuning.staged);
}

/* Nothing crosses to an address: what a message brings, its receiver finds the place for. */
uint32_t weft_plan_touched(const weft_problem *problem, const int32_t *domain, int world)
{
    weft_problem made = *problem;

    if (!domain)
        return weft_user_operands_touched(problem);
    if (weft_two_level_count(domain, world) == world)
        return 0;
    if (!stages_over(&made))
        made.tuning.staged = 0;
    if (!knows_domains(&made, domain, world))
        made.tuning.sums_stay = 0;
    return weft_user_operands_touched(&made);
}

/* Of a resolved problem, as if all memory were one; over domains only schedules that know them. */
static weft_status make_part(const weft_problem *resolved, const int32_t *domain, int world, int rank,
                             weft_plan_part *part, weft_error_text *error)
{
    bool two_level = resolved->schedule == WEFT_SCHEDULE_TWO_LEVEL;
    weft_builder builder;

    if (two_level && loses_blocks(resolved))
        return no_blocks(error);
    builder = weft_builder_begin(resolved, domain, world, rank);
    if (resolved->op >= WEFT_OP_ALL_REDUCE &&
        (resolved->tuning.staged ? domain != NULL
                                 : two_level || weft_two_level_takes_multimem(resolved, domain, world)))
        weft_generate_two_level(&builder);
    else if (resolved->tuning.staged && resolved->op >= WEFT_OP_ALL_REDUCE)
        weft_generate_staged_collective(&builder);
    else if (two_level && resolved->op != WEFT_OP_AG_GEMM)
        weft_generate_two_level_gemm(&builder);
    else if (resolved->schedule == WEFT_SCHEDULE_PACKETS)
        weft_generate_packets(&builder);
    else if (resolved->schedule == WEFT_SCHEDULE_TWO_SHOT_PACKETS)
        weft_generate_two_shot_packets(&builder);
    else if (world > 1 && weft_problem_stores_sums(resolved))
        weft_generate_gemm_packets(&builder);
    else if (world == 1 && resolved->op <= WEFT_OP_GEMM_AS && resolved->tuning.chunk_k > 0)
        weft_generate_local(&builder);
    else if (weft_layout_gathers_k(resolved->layout))
        weft_generate_ag_gemm_k(&builder);
    else
        generators[resolved->op](&builder);
    return weft_builder_finish(&builder, part, error);
}

weft_status weft_plan_make(const weft_problem *problem, int world, int rank, weft_plan_part *part,
                           weft_error_text *error)
{
    weft_problem resolved;
    weft_status status = resolve(problem, world, &resolved, error);

    if (status != WEFT_OK)
        return status;
    if (rank < 0 || rank >= world)
        return no_such_rank(world, rank, error);
    return make_part(&resolved, NULL, world, rank, part, error);
}

/* ---- over domains -------------------------------------------------------------------------------- */

/* Numbers domains as they first appear; returns how many there are. */
static int number_domains(const int32_t *domain, int world, int32_t *numbered)
{
    int count = 0;

    for (int rank = 0; rank < world; rank++) {
        int first = 0;

        while (domain[first] != domain[rank])
            first++;
        numbered[rank] = first < rank ? numbered[first] : count++;
    }
    return count;
}

/* All parts (`only` < 0), or one, of a resolved problem over several domains, by lowering. */
static weft_status make_lowered(const weft_problem *resolved, const int32_t *domain, int world, int only,
                                weft_plan_part *parts, weft_error_text *error)
{
    weft_plan_part *flat = calloc((size_t)world, sizeof(*flat));
    weft_problem plain = *resolved;
    weft_status status = WEFT_OK;

    if (!flat)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the plans of %d ranks", world);
    plain.tuning.sums_stay = 0; /* the ranks of other domains cannot add to them where they lie */
    for (int rank = 0; rank < world && status == WEFT_OK; rank++)
        status = make_part(&plain, NULL, world, rank, &flat[rank], error);
    if (status == WEFT_OK)
        status = weft_plan_lower(resolved, flat, domain, world, only, parts, error);
    for (int rank = 0; rank < world; rank++)
        weft_plan_part_free(&flat[rank]);
    free(flat);
    return status;
}

static weft_status make_over(const weft_problem *problem, const int32_t *domain, int world, int only,
                             weft_plan_part *parts, weft_error_text *error)
{
    weft_problem resolved;
    weft_status status = resolve(problem, world, &resolved, error);
    int32_t *numbered = NULL;
    int domains = 1;

    if (status != WEFT_OK)
        return status;
    if (domain) {
        numbered = malloc((size_t)world * sizeof(*numbered));
        if (!numbered)
            return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the domains of %d ranks", world);
        domains = number_domains(domain, world, numbered);
    }
    if (domains > 1 && !stages_over(&resolved))
        resolved.tuning.staged = 0;
    if (domains > 1 && loses_blocks(&resolved))
        status = no_blocks(error);
    else if (domains > 1 && !knows_domains(&resolved, numbered, world))
        status = make_lowered(&resolved, numbered, world, only, parts, error);
    else
        for (int rank = only < 0 ? 0 : only; rank < (only < 0 ? world : only + 1) && !status; rank++)
            status = make_part(&resolved, domains > 1 ? numbered : NULL, world, rank,
                               &parts[only < 0 ? rank : 0], error);
    free(numbered);
    return status;
}

weft_status weft_plan_make_over(const weft_problem *problem, const int32_t *domain, int world, int rank,
                                weft_plan_part *part, weft_error_text *error)
{
    if (world > 0 && (rank < 0 || rank >= world))
        return no_such_rank(world, rank, error);
    return make_over(problem, domain, world, rank, part, error);
}

weft_status weft_plan_make_all(const weft_problem *problem, const int32_t *domain, int world,
                               weft_plan_part *parts, weft_error_text *error)
{
    weft_status status;

    for (int rank = 0; rank < world; rank++)
        parts[rank] = (weft_plan_part){0};
    status = make_over(problem, domain, world, -1, parts, error);
    for (int rank = 0; rank < world && status != WEFT_OK; rank++)
        weft_plan_part_free(&parts[rank]);
    return status;
}
