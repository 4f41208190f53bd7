#include "run/reach.h"

#include "core/dtype.h"
#include "core/round.h"
#include "run/given.h"

/* Of a collective: a few of them for each rank stay in a core's cache. Shorter ones would be waited for more
 * than worked on. */
enum { CHUNKS_BYTES = 128 << 10, CHUNK_BYTES_MIN = 32 << 10, CHUNK_STEP = 4 << 10 };

/* The ranks meet to tell each other: a call by itself, with a hash that no run has. */
static weft_status ask(const weft_plan *plan, const weft_operands *in)
{
    weft_session *s = plan->session;
    weft_record *record = weft_session_begin(s, WEFT_CALLED_RUN, ~plan->part.hash, &plan->part.problem);
    weft_status status;

    record->beyond = weft_given_beyond(plan, in);
    weft_session_publish(s);
    status = weft_session_meet(s);
    if (status != WEFT_OK)
        return atomic_load(&s->fault) ? weft_session_resync(s, false) : status;
    weft_session_learn(s, plan->part.problem.op, weft_session_beyond(s));
    return WEFT_OK;
}

static weft_status make_staged(weft_plan *plan)
{
    weft_problem staged = plan->part.problem;
    weft_status status;

    if (weft_backend_of(plan->group)->reach && staged.op >= WEFT_OP_ALL_REDUCE)
        staged.tuning = plan->asked.tuning; /* it chooses lanes and chunks for such plans */
    staged.tuning.staged = 1;
    if (staged.op >= WEFT_OP_ALL_REDUCE && !plan->part.domain) { /* over nodes a chunk is a message */
        int64_t bytes = CHUNKS_BYTES / plan->group->size / CHUNK_STEP * CHUNK_STEP;
        int64_t chunk = weft_max(bytes, CHUNK_BYTES_MIN) / (int64_t)weft_dtype_size(staged.dtype);

        if (staged.tuning.tile_n > chunk)
            staged.tuning.tile_n = chunk;
    }
    status = weft_program_make(plan->session, &staged, plan->kept, &plan->staged);
    if (status != WEFT_OK)
        return status;
    plan->staged->told = plan->reached;
    return WEFT_OK;
}

weft_status weft_reach_pick(weft_plan *plan, const weft_operands *in, weft_plan **fit)
{
    const weft_backend *backend = weft_backend_of(plan->group);
    weft_reach *reach = &plan->session->reach[plan->part.problem.op];
    weft_status status = weft_group_check(plan->group);

    if (status == WEFT_OK && backend->reach)
        status = backend->reach(plan, in, reach);
    else if (status == WEFT_OK && *reach == WEFT_REACH_UNKNOWN)
        status = ask(plan, in);
    if (status != WEFT_OK || *reach != WEFT_REACH_BEYOND)
        return status;
    if (!plan->staged)
        status = make_staged(plan);
    if (status == WEFT_OK)
        *fit = plan->staged;
    return status;
}
