#include "run/program.h"

#include <stdlib.h>

enum { CACHE_PLANS = 64 };

static weft_plan *new_plan(weft_session *s, const weft_problem *problem, bool kept)
{
    weft_plan *plan = calloc(1, sizeof(*plan));

    if (!plan)
        return NULL;
    plan->group = s->group;
    plan->session = s;
    plan->asked = *problem;
    plan->kept = kept;
    return plan;
}

/* The ranks ask for the same; then a plan for the backend to fill. */
static weft_status open_plan(weft_session *s, uint64_t hash, const weft_problem *problem, bool kept,
                             weft_plan **out)
{
    const weft_backend *backend = weft_backend_of(s->group);
    weft_status status;
    weft_plan *plan;

    weft_session_begin(s, WEFT_CALLED_CREATE, hash, problem);
    weft_session_publish(s);
    if (backend->meets)
        backend->meets(s->group, problem->op, true);
    status = weft_session_meet(s);
    if (backend->meets)
        backend->meets(s->group, problem->op, false);
    if (status != WEFT_OK)
        return atomic_load(&s->fault) ? weft_session_resync(s, false) : status;
    plan = new_plan(s, problem, kept);
    if (!plan)
        return weft_group_poison(s->group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan", s->rank);
    *out = plan;
    return WEFT_OK;
}

static weft_status close_plan(weft_plan *plan, weft_status status, weft_plan **out)
{
    if (status == WEFT_OK)
        *out = plan;
    else
        weft_program_destroy(plan);
    return status;
}

static weft_status make_together(weft_session *s, const weft_problem *problem, bool kept, weft_plan **out)
{
    weft_plan *plan = NULL;
    weft_status status = open_plan(s, weft_problem_hash(problem, s->world), problem, kept, &plan);

    return status == WEFT_OK ? close_plan(plan, weft_backend_of(s->group)->plan_create(plan), out) : status;
}

weft_status weft_program_create(weft_session *s, const weft_problem *problem, weft_plan **out)
{
    return make_together(s, problem, false, out);
}

weft_status weft_program_load(weft_session *s, weft_plan_part *part, weft_plan **out)
{
    weft_plan *plan = NULL;
    weft_status status = open_plan(s, part->hash, &part->problem, false, &plan);

    if (status != WEFT_OK)
        return status;
    plan->loaded = true;
    return close_plan(plan, weft_backend_of(s->group)->plan_load(plan, part), out);
}

void weft_program_destroy(weft_plan *plan)
{
    if (!plan)
        return;
    weft_program_destroy(plan->staged);
    weft_backend_of(plan->group)->plan_destroy(plan);
    weft_plan_part_free(&plan->part);
    free(plan);
}

weft_status weft_program_reject(weft_group *group, const weft_problem *asked, weft_status rejection)
{
    const weft_backend *backend = weft_backend_of(group);
    weft_error_text why = group->error;
    weft_session *s;
    weft_status status = weft_session_of(group, &s);

    if (status != WEFT_OK)
        return status;
    group->error = why;
    if (backend->plans_alone && backend->plans_alone(group))
        return rejection;
    if (backend->meets)
        backend->meets(group, asked->op, true);
    status = weft_session_reject(group, asked, rejection);
    if (backend->meets)
        backend->meets(group, asked->op, false);
    return status;
}

/*
 * A plan of this rank alone: what the others ask for is compared when it runs. WEFT_OK and none in `*out`:
 * the ranks have to meet. A rank that fails tells the others, who are in the run.
 */
static weft_status make_alone(weft_session *s, const weft_problem *problem, bool kept, weft_plan **out)
{
    const weft_backend *backend = weft_backend_of(s->group);
    weft_status status = WEFT_OK;
    weft_plan *plan;
    bool made;

    *out = NULL;
    plan = backend->plan_alone ? new_plan(s, problem, kept) : NULL;
    if (!plan)
        return WEFT_OK;
    made = backend->plan_alone(plan, &status);
    if (made)
        *out = plan;
    else
        weft_program_destroy(plan);
    return status == WEFT_OK ? WEFT_OK : weft_session_reject(s->group, problem, status);
}

weft_status weft_program_make(weft_session *s, const weft_problem *problem, bool kept, weft_plan **plan)
{
    weft_status status = make_alone(s, problem, kept, plan);

    return status == WEFT_OK && !*plan ? make_together(s, problem, kept, plan) : status;
}

static bool is_captured(const weft_plan *plan)
{
    return plan->captured || (plan->staged && plan->staged->captured);
}

/* When the ranks' lists may differ, or new plans be others. Graphs run theirs all the same. */
static void forget_cached(weft_session *s)
{
    while (s->cached) {
        weft_plan *plan = s->cached;

        s->cached = plan->next;
        if (is_captured(plan)) {
            plan->next = s->aside;
            s->aside = plan;
        } else {
            weft_program_destroy(plan);
        }
    }
}

/* What of a plan's bytes is this rank's own, or agreed. */
static size_t bytes_of(const weft_plan *plan, bool alone)
{
    size_t bytes = plan->alone == alone ? plan->bytes : 0;

    return plan->staged ? bytes + bytes_of(plan->staged, alone) : bytes;
}

/* Drops what was used longest ago, beyond so many plans and so many bytes; never the first. Ranks that met
 * for a plan agreed on its bytes, and drop it at the same call, one at which they have met for another: who
 * met for it again would find nobody where others still have it. So what they made alone, and can make
 * again, counts apart, and makes no room there. */
static void trim_cached(weft_session *s)
{
    struct {
        int count;
        size_t bytes;
    } alone = {0}, agreed = {0}, *of;
    size_t most = weft_backend_of(s->group)->kept_bytes;
    bool met = bytes_of(s->cached, false) > 0;

    for (weft_plan **at = &s->cached; *at;) {
        weft_plan *plan = *at;
        size_t here_alone = bytes_of(plan, true), here_agreed = bytes_of(plan, false);

        of = here_agreed ? &agreed : &alone;
        if (plan == s->cached || is_captured(plan) || (here_agreed && !met) ||
            (of->count < CACHE_PLANS && of->bytes + (here_agreed ? here_agreed : here_alone) <= most)) {
            alone.bytes += here_alone;
            agreed.bytes += here_agreed;
            of->count++;
            at = &plan->next;
            continue;
        }
        *at = plan->next;
        weft_program_destroy(plan);
    }
}

weft_status weft_program_cached(weft_session *s, const weft_problem *problem, weft_plan **plan)
{
    weft_status status;

    if (weft_session_age(s) != s->cached_age) {
        forget_cached(s);
        s->cached_age = weft_session_age(s);
    }
    for (weft_plan **at = &s->cached; *at; at = &(*at)->next) {
        weft_plan *found = *at;

        if (weft_problem_same(&found->asked, problem)) {
            *at = found->next;
            found->next = s->cached;
            s->cached = found;
            *plan = found;
            return WEFT_OK;
        }
    }
    status = weft_program_make(s, problem, true, plan);
    if (status == WEFT_OK) {
        (*plan)->next = s->cached;
        s->cached = *plan;
        trim_cached(s);
    }
    return status;
}

static void drop(weft_plan *list)
{
    while (list) {
        weft_plan *plan = list;

        list = plan->next;
        weft_program_destroy(plan);
    }
}

void weft_program_drop_cached(weft_session *s)
{
    drop(s->cached);
    drop(s->aside);
    s->cached = s->aside = NULL;
}
