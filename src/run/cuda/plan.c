/* Making plans on GPUs, waiting for their runs, dropping them. See plan.h. */
#include "run/cuda/plan.h"

#include "choose/tuned.h"
#include "run/cuda/journal.h"
#include "run/cuda/moe.h"
#include "choose/cuda/tuned.h"

#include <stdlib.h>
#include <string.h>

enum { RETIRED_MAX = 256 };

/* ---- making --------------------------------------------------------------------------------------- */

/*
 * What was asked for, with what rank 0 finds tuned for it where it leaves everything open: files differ
 * between hosts, and change.
 */
static weft_status take_tuned(weft_plan *plan, weft_problem *problem)
{
    weft_group *group = plan->group;
    weft_cuda_basis basis = weft_cuda_basis_of(group);
    struct {
        weft_schedule schedule;
        weft_tuning tuning;
        int32_t status;
        char text[256];
    } found;
    weft_status status;

    *problem = plan->asked;
    if (!weft_tuned_asks(problem) || problem->tuning.workers)
        return WEFT_OK;
    memset(&found, 0, sizeof(found));
    if (group->rank == 0) {
        weft_problem resolved;
        weft_error_text error = {0};

        if (weft_problem_resolve(problem, group->size, &resolved, &error) ==
            WEFT_OK) { /* else make_part says */
            found.status =
                (int32_t)weft_cuda_tuned(&basis, weft_cuda_of(group)->device->name, &resolved, &error);
            memcpy(found.text, error.text, sizeof(found.text) - 1);
            found.schedule = resolved.schedule;
            found.tuning = resolved.tuning;
        }
    }
    status = weft_group_broadcast(group, 0, &found, sizeof(found));
    if (status == WEFT_OK && found.status != WEFT_OK)
        status = weft_error_set(&group->error, (weft_status)found.status, "%s", found.text);
    if (status == WEFT_OK && found.schedule != WEFT_SCHEDULE_AUTO) {
        problem->schedule = found.schedule;
        problem->tuning = found.tuning;
    }
    return status;
}

/* What a rank tells the others when a plan is made. */
typedef struct outcome {
    int32_t status;
    int32_t hopper, tuned; /* by what it would plan alone */
    uint32_t touched, retired_count;
    uint32_t retired[RETIRED_MAX]; /* plans it has destroyed */
    char text[WEFT_ERROR_TEXT_BYTES];
} outcome;

_Static_assert(sizeof(outcome) <= WEFT_BOARD_BYTES, "ranks show it in one piece");

static void list_retired(const weft_cuda_group *g, outcome *mine)
{
    for (const weft_cuda_plan *p = g->plans; p && mine->retired_count < RETIRED_MAX; p = p->next)
        if (p->retired)
            mine->retired[mine->retired_count++] = p->number;
}

static bool retired_everywhere(const weft_group *group, uint32_t number)
{
    for (int rank = 0; rank < group->size; rank++) {
        const outcome *theirs = weft_group_board(group, rank);
        bool there = false;

        for (uint32_t i = 0; i < theirs->retired_count; i++)
            there |= theirs->retired[i] == number;
        if (!there)
            return false;
    }
    return true;
}

/* The memory of plans that all ranks have destroyed is given back, on all ranks in the same order: that of
 * the list, newest first. */
static void give_retired(weft_group *group)
{
    weft_cuda_plan **at = &weft_cuda_of(group)->plans;

    while (*at) {
        weft_cuda_plan *p = *at;

        if (p->retired && retired_everywhere(group, p->number)) {
            *at = p->next;
            if (p->sums && (char *)p->sums != p->block)
                weft_cuda_give(group, p->sums);
            weft_cuda_give(group, p->block);
            if (p->staging)
                weft_cuda_staging_leave(group, p->staging);
            free(p);
        } else {
            at = &p->next;
        }
    }
}

void weft_cuda_plans_free(weft_cuda_group *g)
{
    while (g->plans) {
        weft_cuda_plan *next = g->plans->next;

        free(g->plans);
        g->plans = next;
    }
    weft_cuda_staging_free(g);
}

static weft_status compare_outcomes(weft_plan *plan, weft_status mine)
{
    weft_group *group = plan->group;
    weft_cuda_group *g = weft_cuda_of(group);
    outcome own = {.status = (int32_t)mine,
                   .hopper = g->device->hopper,
                   .tuned = weft_tuned_there(),
                   .touched = plan->touched};
    bool alike = !own.tuned;
    weft_status status;

    if (mine != WEFT_OK)
        memcpy(own.text, group->error.text, sizeof(own.text));
    list_retired(g, &own);
    status = weft_group_exchange(group, WEFT_SYNC_AGREE, &own, sizeof(own));
    for (int rank = 0; status == WEFT_OK && rank < group->size; rank++) {
        const outcome *theirs = weft_group_board(group, rank);

        plan->touched |= theirs->touched;
        alike = alike && !theirs->tuned && theirs->hopper == own.hopper;
        if (theirs->status != WEFT_OK)
            status = weft_error_set(&group->error, (weft_status)theirs->status, "%.511s", theirs->text);
    }
    g->unmet.alike = alike && status == WEFT_OK; /* else not all have been looked at */
    g->unmet.failures = plan->session->failures;
    if (status == WEFT_OK)
        give_retired(group);
    return status;
}

static weft_status make_events(weft_plan *plan)
{
    weft_status status = WEFT_OK;

    weft_cuda_push(weft_cuda_of(plan->group));
    for (int i = 0; i < WEFT_CUDA_BOUND_MAX && status == WEFT_OK; i++)
        status = weft_cuda_event_take(plan->group, &weft_cuda_plan_of(plan)->bound[i].last);
    weft_cuda_pop(weft_cuda_of(plan->group));
    return status;
}

/* With the part that is given, or one made of the problem. */
static weft_status open_plan(weft_plan *plan, weft_plan_part *given)
{
    weft_group *group = plan->group;
    weft_cuda_group *g = weft_cuda_of(group);
    weft_cuda_plan *p = calloc(1, sizeof(*p));
    weft_problem problem;
    void *block = NULL;
    weft_status status;

    if (!p)
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan", group->rank);
    plan->lowered = p;
    if (!given && (status = take_tuned(plan, &problem)) != WEFT_OK)
        return status;
    status = weft_cuda_plan_prepare(plan, &problem, given);
    if (status == WEFT_OK)
        status = make_events(plan);
    status = compare_outcomes(plan, status);
    if (status == WEFT_OK) {
        weft_cuda_plan_note_reached(plan);
        plan->bytes = weft_cuda_plan_lay_out(plan);
        status = weft_cuda_alloc(group, plan->bytes, 1024, &block);
    }
    if (status != WEFT_OK)
        return status;
    p->block = block;
    p->number = ++g->plans_made;
    p->next = g->plans;
    g->plans = p;
    return WEFT_OK;
}

weft_status weft_cuda_plan_create(weft_plan *plan)
{
    return open_plan(plan, NULL);
}

weft_status weft_cuda_plan_load(weft_plan *plan, weft_plan_part *part)
{
    return open_plan(plan, part);
}

/* ---- dropping ------------------------------------------------------------------------------------- */

/* How the runs of a program ended. A kernel that gave up has stopped its peers' kernels; this tells their
 * hosts why. */
static weft_status outcome_of(weft_plan *plan, const weft_cuda_executor *executor)
{
    weft_error_text why = {0};
    weft_status status = weft_cuda_executor_outcome(executor, weft_cuda_of(plan->group)->device->uploads,
                                                    NULL, &why); /* the stream has passed: no wait */

    return status == WEFT_OK ? WEFT_OK : weft_cuda_lost(plan->group, status, why.text);
}

/* All ranks are here at the same point of their calls, and the arena is swept before it is used again: what
 * a peer still runs is through by then. Without giving anything back where a kernel did not end. */
static void give_unmet(weft_group *group, weft_cuda_plan *p, bool done)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_cuda_plan **at = &g->plans;

    while (*at && *at != p)
        at = &(*at)->next;
    if (*at)
        *at = p->next;
    if (done && p->sums && (char *)p->sums != p->block)
        weft_cuda_arena_give(&g->unmet.arena, (char *)p->sums);
    if (done && p->block)
        weft_cuda_arena_give(&g->unmet.arena, p->block);
    if (p->staging)
        weft_cuda_staging_leave(group, p->staging);
    free(p);
}

/* Whether the GPU is done with all of a plan's programs. Of one that all ranks drop here its last runs may
 * still wait for a peer that is late: they know how long, and this one waits for them. Once it is gone nobody
 * asks how they ended: a group that goes on is told here. */
static bool end_programs(weft_plan *plan)
{
    weft_group *group = plan->group;
    const weft_cuda_plan *p = weft_cuda_plan_of(plan);
    bool done = true, told = group->freed || weft_group_check(group) != WEFT_OK;

    for (int i = 0; i < p->bound_count && done; i++) {
        if (p->unmet && !told && p->bound[i].used)
            told = weft_cuda_pass_event(group, p->bound[i].last) != WEFT_OK;
        done = weft_cuda_bound_pass(group, &p->bound[i]);
    }
    if (done && !told && p->issued && p->bound_count > 0)
        outcome_of(plan, &p->bound[0].executor);
    return done;
}

void weft_cuda_plan_destroy(weft_plan *plan)
{
    weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    bool done;

    if (!p)
        return;
    weft_cuda_push(g);
    done = end_programs(plan);
    for (int i = 0; i < p->bound_count && done; i++)
        weft_cuda_bound_free(plan->group, &p->bound[i]);
    if (done && p->alone)
        weft_cuda_alone_leave(g, p->alone);
    for (int i = 0; i < WEFT_CUDA_BOUND_MAX && p->bound[i].last; i++) /* the first so many have one */
        weft_cuda_event_give(g, p->bound[i].last);
    weft_cuda_pop(g);
    while (p->meetings) {
        weft_cuda_meeting *next = p->meetings->next;

        free(p->meetings);
        p->meetings = next;
    }
    free(p->offsets);
    free(p->lds);
    free(p->done_posts);
    weft_plan_part_free(&p->collective);
    p->bound_count = 0;
    p->retired = true;
    if (p->unmet)
        give_unmet(plan->group, p, done);
    else if (!p->block) /* it never came into the group's list, where others wait for their peers */
        free(p);
}

/* ---- waiting -------------------------------------------------------------------------------------- */

/* A plan has one word for all of its programs; and one more where it has another plan that stages, or one of
 * its product alone. */
static weft_status outcome_of_all(weft_plan *plan)
{
    const weft_cuda_plan *p = weft_cuda_plan_of(plan);
    weft_status status = p->bound_count > 0 ? outcome_of(plan, &p->bound[0].executor) : WEFT_OK;

    if (status == WEFT_OK && p->product)
        status = outcome_of_all(p->product);
    return status == WEFT_OK && plan->staged ? outcome_of_all(plan->staged) : status;
}

/* Whether it may have run since this was last asked. */
static bool take_issued(weft_plan *plan)
{
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    bool issued = p->issued || plan->captured;

    p->issued = false;
    if (p->product && take_issued(p->product))
        issued = true;
    return (plan->staged && take_issued(plan->staged)) || issued;
}

static weft_status look_at(weft_plan *list)
{
    weft_status status = WEFT_OK;

    for (weft_plan *plan = list; plan && status == WEFT_OK; plan = plan->next)
        if (take_issued(plan))
            status = outcome_of_all(plan);
    return status;
}

/* When a stream has passed: plans that ranks made by themselves may be different ones, in the same memory,
 * whose kernels are content with each other. */
static weft_status look_unmet(weft_group *group)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_status status = WEFT_OK;

    if (g->unmet.barrier && take_issued(g->unmet.barrier))
        status = outcome_of_all(g->unmet.barrier);
    if (status == WEFT_OK && g->unmet.made)
        status = weft_cuda_journal_compare(group, true);
    g->unmet.made = false;
    return status;
}

weft_status weft_cuda_plan_wait(weft_plan *plan, void *stream)
{
    weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_status status;

    weft_cuda_push(g);
    status = weft_cuda_pass(plan->group, weft_cuda_stream(g, stream));
    if (status == WEFT_OK)
        status = look_unmet(plan->group);
    if (status == WEFT_OK)
        status = outcome_of_all(plan);
    weft_cuda_pop(g);
    return status;
}

weft_status weft_cuda_settle(weft_group *group)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_status status = weft_group_check(group);

    if (status != WEFT_OK)
        return status;
    weft_cuda_push(g);
    status = weft_cuda_pass(group, weft_cuda_stream(g, g->issue_stream));
    if (status == WEFT_OK)
        status = look_unmet(group);
    if (status == WEFT_OK && group->session)
        status = look_at(group->session->cached);
    if (status == WEFT_OK && group->session)
        status = look_at(group->session->aside);
    if (status == WEFT_OK)
        status = weft_cuda_moe_settle(group);
    weft_cuda_pop(g);
    return status;
}
