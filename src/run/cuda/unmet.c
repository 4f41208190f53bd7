/* See unmet.h. */
#include "run/cuda/unmet.h"

#include "core/hash.h"
#include "plan/user_operands.h"
#include "run/cuda/collective.h"

#include <stdlib.h>

enum { UNMET = 1 << 28 };                 /* of a plan's number: no other plan has it */
#define RESERVED_MOST ((size_t)128 << 20) /* of the arena, before such a plan needs it */
#define UNTOLD_MOST ((size_t)32 << 20)    /* of operands that are copied once so that nobody need tell */

/* ---- the arena, swept --------------------------------------------------------------------------------- */

/* Ranks that are on the stream's run before have all ended it. */
static weft_status meet_on_stream(weft_group *group, CUstream stream)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_operands words = {
        .size = sizeof(words), .send = g->unmet.word, .recv = (int32_t *)g->unmet.word + 32};

    return weft_cuda_plan_run(g->unmet.barrier, &words, stream);
}

static weft_status clear_given(weft_group *group, CUstream stream)
{
    const weft_cuda_group *g = weft_cuda_of(group);
    const weft_cuda_driver *cu = g->device->cu;
    weft_error_text *error = &group->error;

    for (int i = 0; i < g->unmet.arena.count; i++) {
        const weft_cuda_region *r = &g->unmet.arena.regions[i];

        if (r->state == WEFT_CUDA_REGION_GIVEN)
            WEFT_CUDA_TRY(cuMemsetD8Async((CUdeviceptr)(uintptr_t)r->at, 0, r->bytes, stream));
    }
    return WEFT_OK;
}

/* A rank that cannot has plans elsewhere than the others from here on. */
static weft_status sweep(weft_group *group, CUstream stream)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_status status;

    weft_cuda_push(g);
    status = meet_on_stream(group, stream);
    if (status == WEFT_OK)
        status = clear_given(group, stream);
    if (status == WEFT_OK)
        status = meet_on_stream(group, stream);
    weft_cuda_pop(g);
    if (status != WEFT_OK)
        return weft_group_poison(group, status, "rank %d could not clear memory of plans: %.400s",
                                 group->rank, group->error.text);
    weft_cuda_arena_swept(&g->unmet.arena);
    return WEFT_OK;
}

/* A graph would sweep whenever it runs. */
static bool is_captured(const weft_cuda_group *g, CUstream stream)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;

    weft_cuda_push(g);
    if (g->device->cu->cuStreamIsCapturing(stream, &capture) != CUDA_SUCCESS)
        capture = CU_STREAM_CAPTURE_STATUS_NONE;
    weft_cuda_pop(g);
    return capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

weft_status weft_cuda_unmet_memory(weft_group *group, size_t bytes, char **memory)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_cuda_arena *arena = &g->unmet.arena;
    CUstream stream = weft_cuda_stream(g, g->issue_stream);
    weft_status status = WEFT_OK;

    *memory = weft_cuda_arena_take(arena, bytes);
    if (*memory)
        return WEFT_OK;
    if (weft_cuda_arena_could(arena, bytes) && !is_captured(g, stream))
        status = sweep(group, stream);
    else
        status = weft_cuda_arena_grow(group, arena, bytes);
    if (status != WEFT_OK)
        return status;
    *memory = weft_cuda_arena_take(arena, bytes);
    return *memory
               ? WEFT_OK
               : weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan", group->rank);
}

/* ---- plans -------------------------------------------------------------------------------------------- */

/* What of a plan the ranks compare when they make it together follows from the problem where no extent is 0.
 */
static bool is_whole(const weft_problem *p)
{
    return p->op < WEFT_OP_ALL_REDUCE ? p->m > 0 && p->n > 0 && p->k > 0 && p->l > 0 : p->count > 0;
}

bool weft_cuda_unmet_are(const weft_group *group)
{
    const weft_cuda_group *g = weft_cuda_of(group);

    return g->unmet.barrier && g->unmet.arena.bytes && g->unmet.alike && !g->crowds &&
           g->unmet.failures == group->session->failures;
}

bool weft_cuda_unmet_can(const weft_plan *plan)
{
    return plan->kept && weft_cuda_unmet_are(plan->group) && is_whole(&plan->asked) &&
           plan->asked.schedule != WEFT_SCHEDULE_MULTIMEM;
}

/* Everything but its block. Returns whether there is such a plan. */
static bool prepare(weft_plan *plan)
{
    weft_cuda_plan *p = weft_cuda_plan_of(plan);

    if (weft_cuda_plan_prepare(plan, &plan->asked, NULL) != WEFT_OK)
        return false;
    if (!p->collective.world)
        plan->touched |= weft_user_operands_touched(&plan->part.problem);
    weft_cuda_plan_note_reached(plan);
    plan->bytes = weft_cuda_plan_lay_out(plan);
    return true;
}

/* Of the plan and its place, so that ranks that differ in either run different ones. */
static uint32_t number_of(const weft_plan *plan)
{
    const weft_cuda_group *g = weft_cuda_of(plan->group);
    size_t at = (size_t)(weft_cuda_plan_of(plan)->block - weft_cuda_heap_slot(&g->heap, plan->group->rank));
    uint64_t hash = weft_hash(plan->part.hash, &at, sizeof(at));

    return UNMET | ((uint32_t)(hash ^ hash >> 32) & (UNMET - 1));
}

/* Where its first run stages what peers touch, where that is not too much. */
static weft_status begin_untold(weft_plan *plan)
{
    size_t bytes = plan->touched ? weft_cuda_staging_bytes(plan) : 0;
    weft_status status;

    if (!bytes || bytes > UNTOLD_MOST)
        return WEFT_OK;
    status = weft_cuda_staging_hold(plan->group, bytes);
    if (status == WEFT_OK)
        status = weft_cuda_staging_take(plan);
    weft_cuda_plan_of(plan)->untold = status == WEFT_OK;
    return status;
}

bool weft_cuda_unmet_make(weft_plan *plan, weft_status *status)
{
    weft_group *group = plan->group;
    weft_cuda_group *g = weft_cuda_of(group);
    weft_cuda_plan *p = calloc(1, sizeof(*p));

    if (!p) {
        *status = weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan", group->rank);
        return false;
    }
    plan->lowered = p;
    p->unmet = true;
    if (!prepare(plan)) {
        if (group->error.status == WEFT_ERR_MEMORY) /* not on all ranks */
            *status =
                weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan", group->rank);
        return false;
    }
    *status = weft_cuda_unmet_memory(group, plan->bytes, &p->block);
    if (*status == WEFT_OK)
        *status = begin_untold(plan);
    if (*status != WEFT_OK)
        return false;
    p->number = number_of(plan);
    p->next = g->plans;
    g->plans = p;
    g->unmet.made = true;
    return true;
}

/* ---- what they need ----------------------------------------------------------------------------------- */

/* A barrier on the stream: an all_reduce of one element, in packets. */
static weft_status make_barrier(const weft_plan *plan)
{
    weft_group *group = plan->group;
    weft_cuda_group *g = weft_cuda_of(group);
    weft_plan *barrier = calloc(1, sizeof(*barrier));
    weft_status status;

    if (!barrier)
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan", group->rank);
    barrier->group = group;
    barrier->session = plan->session;
    barrier->asked = (weft_problem){.size = sizeof(barrier->asked),
                                    .op = WEFT_OP_ALL_REDUCE,
                                    .count = 1,
                                    .l = 1,
                                    .alpha = 1,
                                    .dtype = WEFT_I32,
                                    .d_dtype = WEFT_DTYPE_DEFAULT,
                                    .wire_dtype = WEFT_DTYPE_DEFAULT,
                                    .b_form = WEFT_B_PLAIN,
                                    .schedule = WEFT_SCHEDULE_PACKETS};
    status = g->unmet.word ? WEFT_OK : weft_cuda_alloc(group, 256, 256, &g->unmet.word);
    if (status == WEFT_OK)
        status = weft_cuda_plan_create(barrier);
    g->unmet.barrier = barrier;
    if (status != WEFT_OK)
        weft_cuda_unmet_free(group);
    return status;
}

weft_status weft_cuda_unmet_reserve(const weft_plan *plan)
{
    weft_group *group = plan->group;
    weft_cuda_group *g = weft_cuda_of(group);
    size_t bytes = 2 * plan->bytes <= RESERVED_MOST ? 2 * plan->bytes : 0;
    weft_status status = WEFT_OK;

    if (!plan->kept || !g->unmet.alike || g->crowds || group->size == 1 ||
        group->size > WEFT_CUDA_PACKET_RANKS)
        return WEFT_OK;
    if (!g->unmet.barrier)
        status = make_barrier(plan);
    if (status == WEFT_OK && !g->unmet.arena.bytes)
        status = weft_cuda_arena_grow(group, &g->unmet.arena, bytes);
    if (status == WEFT_OK)
        weft_cuda_staging_hold(group, 0);
    return weft_group_check(group); /* without memory for them the ranks go on making theirs together */
}

void weft_cuda_unmet_free(weft_group *group)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_plan *barrier = g->unmet.barrier;

    if (barrier) {
        weft_cuda_plan_destroy(barrier);
        weft_plan_part_free(&barrier->part);
        free(barrier);
    }
    g->unmet.barrier = NULL;
    weft_cuda_arena_free(&g->unmet.arena);
}
