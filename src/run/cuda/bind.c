/* Runs of plans on GPUs: operands met for, lowered once, launched. See plan.h; checked: operands.c. */
#include "run/cuda/plan.h"

#include "core/clock.h"
#include "run/cuda/journal.h"
#include "run/given.h"

#include <stdlib.h>
#include <string.h>

/* ---- meeting -------------------------------------------------------------------------------------- */

static bool by_packets(const weft_plan *plan)
{
    return weft_schedule_is_packets(plan->part.problem.schedule);
}

static bool is_touched(const weft_plan *plan, int role)
{
    return plan->part.world > 1 && plan->touched & 1u << role && plan->operand_of_role[role] >= 0;
}

/* What a meeting tells of: also whether a SEND is staged, which only its own rank touches. */
static bool is_told(const weft_plan *plan, int role)
{
    return is_touched(plan, role) ||
           (role == WEFT_ROLE_SEND && plan->part.world > 1 && plan->operand_of_role[role] >= 0);
}

/*
 * Whether peers would touch an operand of this rank that they cannot reach, where all ranks then run by the
 * plan that stages. Other plans copy such operands as a whole: see weft_cuda_stage.
 */
static bool lies_beyond(const weft_plan *plan, const weft_operands *operands)
{
    bool beyond = false;

    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT && plan->reached; role++) {
        weft_given given;
        size_t bytes;

        if (!is_touched(plan, role) || !weft_given_needed(plan, (weft_operand_role)role))
            continue;
        given = weft_given_of(plan, plan->operand_of_role[role], operands);
        bytes = weft_given_span(plan, plan->operand_of_role[role], &given);
        beyond |= bytes && !weft_cuda_contains(plan->group, given.data, bytes);
    }
    return beyond;
}

static weft_cuda_spot own_spot(const weft_plan *plan, int role, const weft_operands *operands)
{
    weft_given given = weft_given_of(plan, plan->operand_of_role[role], operands);
    const char *slot = weft_cuda_heap_slot(&weft_cuda_of(plan->group)->heap, plan->group->rank);
    weft_cuda_spot spot = {0};

    if (is_touched(plan, role))
        spot = (weft_cuda_spot){given.data - slot, given.ld, given.stride};
    if (weft_cuda_is_staged(plan, role, operands)) {
        weft_given staged = weft_cuda_staged(plan, role);

        spot = (weft_cuda_spot){WEFT_CUDA_STAGED, staged.ld, staged.stride};
    }
    return spot;
}

/* The meeting at which this rank had these operands, or NULL. */
static weft_cuda_meeting *find_meeting(const weft_plan *plan, const weft_operands *operands)
{
    weft_cuda_meeting *meeting = weft_cuda_plan_of(plan)->meetings;
    weft_cuda_spot mine[WEFT_ROLE_COUNT];

    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++)
        if (is_told(plan, role))
            mine[role] = own_spot(plan, role, operands);
    for (; meeting; meeting = meeting->next) {
        bool same = true;

        for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++)
            if (is_told(plan, role)) {
                weft_cuda_spot then = meeting->spots[role * plan->part.world + plan->part.rank];

                same = same && mine[role].offset == then.offset && mine[role].ld == then.ld &&
                       mine[role].stride == then.stride;
            }
        if (same)
            return meeting;
    }
    return NULL;
}

/* The switch knows one place in the memory of all ranks. The same on all ranks, which have the same spots. */
static weft_status meet_switch(weft_plan *plan, const weft_cuda_meeting *meeting)
{
    int world = plan->part.world;

    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++)
        for (int rank = 1; rank < world && is_touched(plan, role); rank++)
            if (meeting->spots[role * world + rank].offset != meeting->spots[role * world].offset)
                return weft_error_set(&plan->group->error, WEFT_ERR_ARGUMENT,
                                      "operand %s of rank %d is another place of symmetric memory than rank "
                                      "0's: multimem needs the same, push does not",
                                      plan->part.operands[plan->operand_of_role[role]].name, rank);
    return weft_cuda_multicast_cover(plan->group);
}

/* Every rank publishes where its operands are, or that it rejected them, and reads where the others' are. */
static weft_status meet(weft_plan *plan, const weft_operands *operands, weft_cuda_meeting **held)
{
    weft_session *x = plan->session;
    bool staged = false;
    weft_record *record = weft_session_begin(x, WEFT_CALLED_RUN, plan->part.hash, &plan->part.problem);
    weft_cuda_meeting *meeting =
        calloc(1, sizeof(*meeting) + sizeof(weft_cuda_spot) * (size_t)(WEFT_ROLE_COUNT * x->world));
    weft_status status = meeting ? weft_cuda_check_operands(plan, operands)
                                 : weft_error_set(&x->group->error, WEFT_ERR_MEMORY,
                                                  "rank %d has no memory for its peers' operands", x->rank);

    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT && status == WEFT_OK; role++)
        if (is_told(plan, role)) {
            weft_cuda_spot mine = own_spot(plan, role, operands);

            record->place[weft_record_index((weft_operand_role)role)] = mine.offset;
            if (role <= WEFT_ROLE_D) {
                record->ld[role] = mine.ld;
                record->stride[role] = mine.stride;
            }
        }
    record->beyond = lies_beyond(plan, operands);
    record->status = (int32_t)status;
    weft_session_publish(x);
    if (status != WEFT_OK) {
        free(meeting);
        return weft_session_resync(x, true);
    }
    status = weft_session_meet(x);
    if (status != WEFT_OK) {
        free(meeting);
        return weft_group_check(x->group) == WEFT_OK ? weft_session_resync(x, false) : status;
    }
    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++)
        for (int rank = 0; rank < x->world && is_told(plan, role); rank++) {
            const weft_record *theirs = weft_session_record(x, rank);
            weft_cuda_spot *spot = &meeting->spots[role * x->world + rank];

            *spot = own_spot(plan, role, operands); /* collectives have the same strides on all ranks */
            spot->offset = theirs->place[weft_record_index((weft_operand_role)role)];
            if (role <= WEFT_ROLE_D) {
                spot->ld = theirs->ld[role];
                spot->stride = theirs->stride[role];
            }
            staged |= spot->offset == WEFT_CUDA_STAGED;
        }
    for (int rank = 0; rank < x->world; rank++)
        meeting->beyond |= weft_session_record(x, rank)->beyond;
    if (staged && !meeting->beyond && !weft_cuda_plan_of(plan)->staging)
        status = weft_cuda_staging_take(plan);
    if (status == WEFT_OK && plan->part.problem.schedule == WEFT_SCHEDULE_MULTIMEM)
        status = meet_switch(plan, meeting);
    if (status != WEFT_OK) {
        free(meeting);
        return status;
    }
    meeting->next = weft_cuda_plan_of(plan)->meetings;
    meeting->number = meeting->next ? meeting->next->number + 1 : 1;
    weft_cuda_plan_of(plan)->meetings = meeting;
    *held = meeting;
    return WEFT_OK;
}

static weft_status hold_meeting(weft_plan *plan, const weft_operands *operands, weft_cuda_meeting **held)
{
    weft_status status;

    weft_cuda_journal_meet(plan);
    status = meet(plan, operands, held);
    weft_cuda_journal_met(plan);
    return status;
}

weft_status weft_cuda_plan_reach(weft_plan *plan, const weft_operands *operands, weft_reach *reach)
{
    weft_cuda_meeting *meeting;
    weft_status status = WEFT_OK;

    if (weft_cuda_plan_of(plan)->untold) {
        *reach = WEFT_REACH_ALL;
        return WEFT_OK;
    }
    meeting = find_meeting(plan, operands);
    weft_cuda_push(weft_cuda_of(plan->group));
    if (!meeting)
        status = hold_meeting(plan, operands, &meeting);
    weft_cuda_pop(weft_cuda_of(plan->group));
    if (status == WEFT_OK)
        *reach = meeting->beyond ? WEFT_REACH_BEYOND : WEFT_REACH_ALL;
    return status;
}

/* What stands for one where nobody has told anything: all that peers touch is staged, on every rank in the
 * same form. */
static weft_cuda_meeting *stand_for_meeting(const weft_plan *plan)
{
    int world = plan->part.world;
    weft_cuda_meeting *none =
        calloc(1, sizeof(*none) + sizeof(weft_cuda_spot) * (size_t)(WEFT_ROLE_COUNT * world));

    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT && none; role++)
        for (int rank = 0; rank < world && is_touched(plan, role); rank++) {
            weft_given form = weft_cuda_staged(plan, role);

            none->spots[role * world + rank] = (weft_cuda_spot){WEFT_CUDA_STAGED, form.ld, form.stride};
        }
    return none;
}

/* ---- lowering ------------------------------------------------------------------------------------- */

/* Whether a program is good for any address of an operand: a collective's that no peer touches. */
static bool is_anywhere(const weft_plan *plan, int role)
{
    return plan->part.problem.op >= WEFT_OP_ALL_REDUCE && !by_packets(plan) && !is_touched(plan, role);
}

/* Where its tables have such an operand: as far from 16 bytes as the caller has it. */
static char *stand_in(weft_operand_role role, const void *pointer)
{
    uintptr_t number = role == WEFT_ROLE_SEND ? WEFT_CUDA_SEND : WEFT_CUDA_RECV;

    return (char *)(number << WEFT_CUDA_OPERAND_SHIFT | (uintptr_t)pointer % 16);
}

static uint64_t moved(weft_operand_role role, const void *pointer)
{
    return (uintptr_t)pointer - (uintptr_t)stand_in(role, pointer);
}

static void fill_places(const weft_plan *plan, const weft_operands *operands,
                        const weft_cuda_meeting *meeting, weft_cuda_place *places)
{
    const weft_cuda_group *g = weft_cuda_of(plan->group);
    int world = plan->part.world, me = plan->part.rank;

    for (uint32_t i = 0; i < plan->part.operand_count; i++) {
        const weft_operand *o = &plan->part.operands[i];
        weft_cuda_place *at = &places[i * (uint32_t)world];

        for (int rank = 0; rank < world; rank++) {
            ptrdiff_t distance = (ptrdiff_t)(rank - me) * (ptrdiff_t)g->heap.stride;

            if (o->place != WEFT_PLACE_USER) {
                at[rank] = (weft_cuda_place){weft_cuda_plan_of(plan)->block + distance +
                                                 weft_cuda_plan_of(plan)->offsets[i],
                                             weft_cuda_plan_of(plan)->lds[i], 0, false};
            } else if (rank != me && is_touched(plan, (int)o->role)) {
                weft_cuda_spot spot = meeting->spots[(int)o->role * world + rank];
                char *base = spot.offset == WEFT_CUDA_STAGED
                                 ? weft_cuda_staging_at(plan, (int)o->role) + distance
                                 : weft_cuda_heap_slot(&g->heap, rank) + spot.offset;

                at[rank] = (weft_cuda_place){base, spot.ld, spot.stride, false};
            }
        }
        if (o->place == WEFT_PLACE_USER) {
            bool staged = weft_cuda_is_staged(plan, (int)o->role, operands);
            weft_given given =
                staged ? weft_cuda_staged(plan, (int)o->role) : weft_given_of(plan, (int)i, operands);

            if (!staged && is_anywhere(plan, (int)o->role))
                given.data = stand_in(o->role, given.data);
            at[me] = (weft_cuda_place){given.data, given.ld, given.stride, false};
        }
    }
}

static int64_t to_switch(const weft_plan *plan)
{
    const weft_cuda_group *g = weft_cuda_of(plan->group);

    if (plan->part.problem.schedule != WEFT_SCHEDULE_MULTIMEM || plan->part.world == 1)
        return 0;
    return (int64_t)(g->multicast.range.base -
                     (CUdeviceptr)(uintptr_t)weft_cuda_heap_slot(&g->heap, plan->part.rank));
}

static weft_status lower(weft_plan *plan, const weft_operands *operands, const weft_cuda_meeting *meeting,
                         weft_cuda_executor *executor)
{
    weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_error_text *error = &plan->group->error;
    int world = plan->part.world;
    weft_operands brought = *operands; /* what the kernels read by themselves */
    weft_cuda_place *places = calloc((size_t)plan->part.operand_count * (size_t)world, sizeof(*places));
    uint64_t **signals = calloc((size_t)world, sizeof(*signals));
    weft_cuda_control **controls = calloc((size_t)world, sizeof(*controls));
    char **inboxes = calloc((size_t)world, sizeof(*inboxes));
    const weft_plan_part *collective = &weft_cuda_plan_of(plan)->collective;
    weft_cuda_limits limits = {(double)plan->group->enter_ns * 1e-9, (double)plan->group->progress_ns * 1e-9};
    weft_status status =
        places && signals && controls && inboxes
            ? WEFT_OK
            : weft_error_set(error, WEFT_ERR_MEMORY, "no memory to bind the operands of a run");

    brought.alpha = weft_cuda_values_of(plan, operands).alpha_at;
    if (status == WEFT_OK) {
        fill_places(plan, operands, meeting, places);
        for (int rank = 0; rank < world; rank++) {
            char *block = weft_cuda_plan_of(plan)->block +
                          (ptrdiff_t)(rank - plan->part.rank) * (ptrdiff_t)g->heap.stride;

            inboxes[rank] = block + weft_cuda_plan_of(plan)->inboxes_at;
            signals[rank] = (uint64_t *)(block + weft_cuda_plan_of(plan)->signals_at);
            controls[rank] = (weft_cuda_control *)(block + weft_cuda_plan_of(plan)->control_at);
        }
        status = weft_cuda_executor_make(
            g->device, &plan->part,
            &(weft_cuda_binding){.places = places,
                                 .signals = signals,
                                 .done_posts = weft_cuda_plan_of(plan)->done_posts,
                                 .collective = collective->world ? collective : NULL,
                                 .inboxes = inboxes,
                                 .workspace = &weft_cuda_of(plan->group)->workspace,
                                 .values = plan->part.problem.scales ? &brought : NULL,
                                 .wire = weft_cuda_wire_of(g),
                                 .to_switch = to_switch(plan),
                                 .given = plan->loaded},
            controls, g->crews, &limits, executor, error);
    }
    free(places);
    free(signals);
    free(controls);
    free(inboxes);
    return status;
}

/* ---- programs ------------------------------------------------------------------------------------- */

static bool is_running(const weft_cuda_driver *cu, const weft_cuda_bound *bound)
{
    return bound->used && cu->cuEventQuery(bound->last) == CUDA_ERROR_NOT_READY;
}

bool weft_cuda_bound_pass(const weft_group *group, const weft_cuda_bound *bound)
{
    int64_t begun = weft_clock_ns();

    while (is_running(weft_cuda_of(group)->device->cu, bound))
        if (weft_clock_ns() - begun > group->progress_ns)
            return false;
    return true;
}

bool weft_cuda_bound_free(weft_group *group, weft_cuda_bound *bound)
{
    if (!weft_cuda_bound_pass(group, bound))
        return false; /* better lost than freed under a kernel */
    weft_cuda_executor_free(&bound->executor);
    *bound = (weft_cuda_bound){.last = bound->last};
    return true;
}

/* What programs of all plans have that could go: the first of each stays, by which a plan's outcome is read,
 * and so do those that a graph may run. */
static size_t spare_bytes(const weft_cuda_group *g)
{
    size_t bytes = 0;

    for (const weft_cuda_plan *p = g->plans; p; p = p->next)
        for (int i = 1; i < p->bound_count; i++)
            bytes += p->bound[i].captured ? 0 : weft_cuda_executor_bytes(&p->bound[i].executor);
    return bytes;
}

/* Frees of them the one that has not run for longest; false when all still run. */
static bool free_spare(weft_group *group)
{
    const weft_cuda_group *g = weft_cuda_of(group);
    weft_cuda_plan *owner = NULL;
    weft_cuda_bound *oldest = NULL, *end;
    CUevent event;

    for (weft_cuda_plan *p = g->plans; p; p = p->next)
        for (int i = 1; i < p->bound_count; i++)
            if (!p->bound[i].captured && (!oldest || p->bound[i].used < oldest->used) &&
                !is_running(g->device->cu, &p->bound[i]))
                owner = p, oldest = &p->bound[i];
    if (!oldest || !weft_cuda_bound_free(group, oldest))
        return false;
    event = oldest->last;
    end = &owner->bound[--owner->bound_count];
    *oldest = *end;
    *end = (weft_cuda_bound){.last = event};
    return true;
}

/* A place for a new program: the plan's that has not run for longest goes when all are taken. */
static weft_status make_room(weft_plan *plan, weft_cuda_bound **room)
{
    const weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    weft_cuda_bound *oldest = NULL;

    while (spare_bytes(g) > g->spare_most && free_spare(plan->group))
        ;
    if (p->bound_count < WEFT_CUDA_BOUND_MAX) {
        weft_cuda_bound *next = &p->bound[p->bound_count];
        weft_status status = next->last ? WEFT_OK : weft_cuda_event_take(plan->group, &next->last);

        if (status != WEFT_OK)
            return status;
        p->bound_count++;
        *room = next;
        return WEFT_OK;
    }
    for (int i = 0; i < p->bound_count; i++)
        if (!p->bound[i].captured && (!oldest || p->bound[i].used < oldest->used))
            oldest = &p->bound[i];
    if (!oldest || !weft_cuda_bound_free(plan->group, oldest))
        return weft_error_set(&plan->group->error, WEFT_ERR_STATE,
                              "a plan keeps the programs of %d sets of operands, and all are in use",
                              WEFT_CUDA_BOUND_MAX);
    *room = oldest;
    return WEFT_OK;
}

/* The operands that a program is made for: those that are staged it does not know, of those that may be
 * anywhere only how they are aligned. Values come with the launch. */
static weft_operands known_operands(const weft_plan *plan, const weft_operands *operands,
                                    const weft_cuda_values *values)
{
    weft_operands known = *operands;

    known.alpha = values->alpha_at;
    known.beta = NULL;
    if (weft_cuda_is_staged(plan, WEFT_ROLE_A, operands))
        known.a = NULL, known.lda = known.stride_a = 0;
    if (weft_cuda_is_staged(plan, WEFT_ROLE_B, operands))
        known.b = NULL, known.ldb = known.stride_b = 0;
    if (weft_cuda_is_staged(plan, WEFT_ROLE_D, operands))
        known.d = NULL, known.ldd = known.stride_d = 0;
    if (weft_cuda_is_staged(plan, WEFT_ROLE_SEND, operands))
        known.send = NULL;
    else if (is_anywhere(plan, WEFT_ROLE_SEND))
        known.send = stand_in(WEFT_ROLE_SEND, operands->send);
    if (weft_cuda_is_staged(plan, WEFT_ROLE_RECV, operands))
        known.recv = NULL;
    else if (is_anywhere(plan, WEFT_ROLE_RECV))
        known.recv = stand_in(WEFT_ROLE_RECV, operands->recv);
    return known;
}

/* Where no peer touches a rank's operands nobody waits for it before its kernels begin. But making the first
 * program may load kernels of the library, which on some drivers waits for all that run: also for those of a
 * peer that is through with it, and waits for this rank. So the first is made by all before any runs, but of
 * plans that each makes by itself: those ranks have no context in common. */
static bool makes_together(const weft_plan *plan)
{
    const weft_cuda_plan *p = weft_cuda_plan_of(plan);

    return !p->unmet && plan->part.world > 1 && plan->part.problem.op < WEFT_OP_ALL_REDUCE &&
           p->bound_count == 0;
}

static weft_status bind(weft_plan *plan, const weft_operands *operands, const weft_operands *known,
                        weft_cuda_bound **bound)
{
    weft_cuda_executor executor = {0};
    weft_cuda_meeting *meeting = NULL, *none = NULL;
    weft_cuda_bound *room = NULL;
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    bool touched = false, together;
    size_t bytes;
    weft_status status;

    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++)
        touched |= is_told(plan, role) && !by_packets(plan);
    meeting = touched && !p->untold ? find_meeting(plan, operands) : NULL;
    if (touched && !meeting && !p->untold) {
        status = hold_meeting(plan, operands, &meeting);
        if (status != WEFT_OK)
            return status;
    } else {
        status = weft_cuda_check_operands(plan, operands);
    }
    together = makes_together(plan) || (meeting && !meeting->agreed);
    if (status != WEFT_OK && !together)
        return status;
    if (status == WEFT_OK)
        status = weft_cuda_alone_take(plan, operands);
    if (status == WEFT_OK && p->untold && !(none = stand_for_meeting(plan)))
        status = weft_error_set(&plan->group->error, WEFT_ERR_MEMORY,
                                "rank %d has no memory for its peers' operands", plan->group->rank);
    if (status == WEFT_OK)
        status = lower(plan, operands, none ? none : meeting, &executor);
    free(none);
    executor.args.meeting = meeting ? meeting->number : 0;
    bytes = weft_cuda_executor_bytes(&executor);
    if (together)
        status = weft_cuda_agree_most(plan->group, WEFT_SYNC_AGREE, status, &bytes);
    if (status == WEFT_OK && (together || plan->part.world == 1) && !p->counted) {
        plan->bytes += bytes; /* as all ranks have it, so that they keep the same plans */
        p->counted = true;
    }
    if (meeting && status == WEFT_OK)
        meeting->agreed = true;
    if (status == WEFT_OK)
        status = make_room(plan, &room);
    if (status != WEFT_OK) {
        weft_cuda_executor_free(&executor);
        return status;
    }
    room->operands = *known;
    room->checked = *operands;
    room->executor = executor;
    room->untold = p->untold;
    *bound = room;
    return WEFT_OK;
}

/* ---- running -------------------------------------------------------------------------------------- */

static weft_status launch(weft_plan *plan, weft_cuda_bound *bound, const weft_operands *operands,
                          const weft_cuda_values *values, CUstream stream)
{
    const weft_cuda_driver *cu = weft_cuda_of(plan->group)->device->cu;
    weft_error_text *error = &plan->group->error;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    weft_cuda_stages stages;
    weft_status status;

    bound->executor.args.stop = weft_cuda_of(plan->group)->stop;
    bound->executor.args.enter_deadline_ns = (uint64_t)plan->group->enter_ns;
    bound->executor.args.progress_deadline_ns = (uint64_t)plan->group->progress_ns;
    bound->executor.args.moved[WEFT_CUDA_SEND] = moved(WEFT_ROLE_SEND, operands->send);
    bound->executor.args.moved[WEFT_CUDA_RECV] = moved(WEFT_ROLE_RECV, operands->recv);
    weft_cuda_executor_values(&bound->executor, values->alpha, values->beta);
    WEFT_CUDA_TRY(cuStreamIsCapturing(stream, &capture));
    weft_cuda_stage_bind(plan, operands, &stages);
    weft_cuda_journal_run(plan, bound->executor.args.meeting);
    status = weft_cuda_stage_run(plan, &stages, false, stream);
    if (status == WEFT_OK)
        status = weft_cuda_executor_launch(&bound->executor, stream, error);
    if (status != WEFT_OK) {
        weft_cuda_journal_failed(plan->group);
        return status;
    }
    status = weft_cuda_stage_run(plan, &stages, true, stream); /* for peers it has run in any case */
    weft_cuda_plan_of(plan)->issued = true;
    weft_cuda_plan_of(plan)->untold = false;
    if (capture == CU_STREAM_CAPTURE_STATUS_NONE) {
        bound->used = ++weft_cuda_of(plan->group)->runs;
        WEFT_CUDA_TRY(cuEventRecord(bound->last, stream));
    } else {
        bound->captured = plan->captured = true;
    }
    return status;
}

/* No peer touches the caller's buffers, so every run may have its own without telling anybody. */
static weft_status bind_packets(weft_plan *plan, const weft_operands *operands, weft_cuda_executor *executor)
{
    weft_status status = weft_cuda_check_operands(plan, operands);

    if (status == WEFT_OK && weft_cuda_is_staged(plan, WEFT_ROLE_SEND, operands))
        status = weft_error_set(&plan->group->error, WEFT_ERR_ARGUMENT,
                                "send of %s at %p and recv at %p overlap, and not as in place",
                                weft_op_name(plan->part.problem.op), operands->send, operands->recv);
    if (status == WEFT_OK)
        weft_cuda_packets_bind(&executor->packet_rows, operands->send, operands->recv, &executor->packets);
    return status;
}

/* Operands that a program ran with before, at other addresses. */
static weft_status check_again(const weft_plan *plan, const weft_operands *operands, weft_cuda_bound *bound)
{
    weft_status status = WEFT_OK;

    if (memcmp(&bound->checked, operands, sizeof(*operands)) != 0)
        status = weft_cuda_check_operands(plan, operands);
    if (status == WEFT_OK)
        bound->checked = *operands;
    return status;
}

weft_status weft_cuda_plan_run(weft_plan *plan, const weft_operands *operands, void *stream)
{
    weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    weft_cuda_bound *bound = NULL;
    weft_cuda_values values = weft_cuda_values_of(plan, operands);
    weft_operands known = known_operands(plan, operands, &values);
    weft_status status = weft_group_check(plan->group);

    if (status == WEFT_OK && g->crowded && weft_cuda_stream(g, stream) == CU_STREAM_LEGACY)
        status = weft_error_set(&plan->group->error, WEFT_ERR_ARGUMENT,
                                "ranks that are threads on one GPU cannot share its default stream, where "
                                "their kernels would wait for one another: give each a stream, or "
                                "WEFT_STREAM_OWN");
    if (status != WEFT_OK)
        return status;
    if (by_packets(plan) && p->bound_count > 0)
        bound = &p->bound[0];
    for (int i = 0; i < p->bound_count && !bound; i++)
        if (p->bound[i].untold == p->untold && memcmp(&p->bound[i].operands, &known, sizeof(known)) == 0)
            bound = &p->bound[i];
    weft_cuda_push(g);
    if (!bound)
        status = bind(plan, operands, &known, &bound);
    else if (!by_packets(plan))
        status = check_again(plan, operands, bound);
    if (status == WEFT_OK && by_packets(plan))
        status = bind_packets(plan, operands, &bound->executor);
    if (status == WEFT_OK)
        status = launch(plan, bound, operands, &values, weft_cuda_stream(g, stream));
    weft_cuda_pop(g);
    return status;
}
