/* The parts of a lowered plan: every task in its own lane, without what crosses, and a lane of transfers. */
#include "plan/lower.h"
#include "plan/lowering.h"

#include <stdio.h>

typedef struct emission {
    const lowering *l;
    weft_builder b;
    uint32_t happened; /* signals: (lane) of the own tasks, or (rank, lane) of all of the domain */
    int wire;          /* the lane of transfers */
} emission;

static uint32_t moved_signal(const lowering *l, uint32_t signal)
{
    return signal + (uint32_t)l->world; /* the signals that count landings come before */
}

static uint32_t trigger_signal(const emission *e, int rank, uint32_t lane)
{
    return e->happened + (e->l->far_triggers ? (uint32_t)rank * e->l->lanes : 0) + lane;
}

/* What tasks of a rank of the domain post here. */
static void expect_triggers(emission *e, int rank)
{
    const lowering *l = e->l;
    uint32_t end = l->task_base[rank + 1];

    for (uint32_t i = weft_lowering_triggers(l, l->task_base[rank]);
         i < l->trigger_count && l->triggers[i].task < end; i++)
        if (l->triggers[i].target == e->b.rank)
            weft_builder_expect(
                &e->b,
                trigger_signal(e, rank, l->flat[rank].tasks[l->triggers[i].task - l->task_base[rank]].lane),
                l->triggers[i].number);
}

static void declare(emission *e)
{
    const lowering *l = e->l;
    const weft_plan_part *part = &l->flat[e->b.rank];
    int64_t ordinary = (int64_t)part->signal_count - 2 * (int64_t)l->world;
    uint32_t first;

    for (uint32_t i = 0; i < l->operands; i++) {
        weft_operand operand = part->operands[i];

        operand.handed_on = false;
        if (l->shared[i])
            operand.place = WEFT_PLACE_STAGING;
        weft_builder_operand(&e->b, operand);
    }
    for (int i = 0; i < DIRECTIONS * (int)l->operands; i++) {
        const stand_in *in = &l->stand_ins[i];
        const weft_operand *o = &part->operands[i % (int)l->operands];
        weft_operand operand = {.place = WEFT_PLACE_STAGING,
                                .dtype = o->dtype,
                                .rows = in->rows * (l->world - 1),
                                .cols = in->cols,
                                .transposed = o->transposed,
                                .paired = o->paired,
                                .batch = o->batch};

        if (!in->rows)
            continue;
        snprintf(operand.name, sizeof(operand.name), "%s%u", i < (int)l->operands ? "in" : "out",
                 (uint8_t)(i % (int)l->operands));
        weft_builder_operand(&e->b, operand);
    }
    for (uint32_t i = 0; i < part->lane_count; i++)
        weft_builder_lanes(&e->b, part->lanes[i].kind, 1);
    e->wire = weft_builder_lanes(&e->b, WEFT_LANE_COPY, l->first[e->b.rank + 1] > l->first[e->b.rank]);
    first = weft_builder_signals(&e->b, ordinary);
    for (int64_t i = 0; i < ordinary; i++)
        weft_builder_expect(&e->b, first + (uint32_t)i, part->signal_posts[2 * l->world + i]);
    e->happened = weft_builder_signals(&e->b, (int64_t)l->lanes * (l->far_triggers ? l->world : 1));
    for (int rank = 0; rank < l->world; rank++)
        if (!apart(l, rank, e->b.rank))
            expect_triggers(e, rank);
    for (int rank = 0; rank < l->world; rank++)
        weft_builder_expect(&e->b, WEFT_SIGNAL_LANDED(l->world, rank),
                            l->sent[(size_t)rank * (size_t)l->world + (size_t)e->b.rank]);
}

static void add_waits(emission *e, const flat_task *t)
{
    const lowering *l = e->l;

    for (uint32_t i = 0; i < t->task->wait_count; i++) {
        const weft_wait *wait = &t->part->waits[t->task->wait0 + i];

        if (!reserved(l, wait->signal))
            weft_builder_wait(&e->b, moved_signal(l, wait->signal), wait->count);
    }
    for (uint32_t i = 0; i < t->task->region_count; i++) {
        uint32_t by = l->read_by[l->region_base[t->rank] + t->task->region0 + i];

        if (by != NONE)
            weft_builder_wait(&e->b, WEFT_SIGNAL_LANDED(l->world, l->transfers[by].from),
                              l->transfers[by].number);
    }
}

static void add_posts(emission *e, const flat_task *t, int to)
{
    weft_post post;

    for (uint32_t at = 0; next_post(e->l, t, to, &at, &post);)
        weft_builder_post(&e->b, moved_signal(e->l, post.signal), post.rank);
}

static void add_triggers(emission *e, const flat_task *t)
{
    const lowering *l = e->l;

    for (uint32_t i = weft_lowering_triggers(l, t->number);
         i < l->trigger_count && l->triggers[i].task == t->number; i++)
        weft_builder_post(&e->b, trigger_signal(e, t->rank, t->task->lane), l->triggers[i].target);
}

static void nothing(emission *e)
{
    weft_builder_to(&e->b, (weft_region){.rank = e->b.rank});
    weft_builder_from(&e->b, (weft_region){.rank = e->b.rank});
}

/* Is it where lanes of the flat plan join, or one ends, to say DONE and no more? What is built here says it
 * by itself. */
static bool only_says_done(const lowering *l, const flat_task *t)
{
    if (t->task->kind != WEFT_TASK_COPY || !is_empty(t->regions) || t->regions[0].rank != t->rank ||
        weft_copy_source(t->part, t->task)->rank != t->rank || posts_to(l, t, -1) ||
        l->caused[t->number] != NONE)
        return false;
    for (uint32_t i = 0; i < t->task->post_count; i++)
        if (reserved(l, t->part->posts[t->task->post0 + i].signal))
            return true;
    return false;
}

/* A task in its own lane, without what crosses. */
static void emit_task(emission *e, const flat_task *t)
{
    const lowering *l = e->l;
    bool moves = is_push(l, t) || is_pull(l, t), out = false;
    const weft_region *on = t->task->kind == WEFT_TASK_COPY ? NULL : pushed_on(l, t, &out);

    if (t->task->kind == WEFT_TASK_ENTER || t->task->kind == WEFT_TASK_EXIT || is_free(l, t) ||
        only_says_done(l, t))
        return;
    weft_builder_task(&e->b, t->task->lane, (weft_task_kind)t->task->kind, t->task->flags);
    if (moves)
        nothing(e);
    if (out)
        weft_builder_to(&e->b, kept(l, OUT, t->rank, on));
    for (int i = 0; i < t->task->region_count && !moves; i++) {
        uint32_t by = l->read_by[l->region_base[t->rank] + t->task->region0 + (uint32_t)i];
        const weft_region *r = &t->regions[i];

        if (i >= t->task->destinations)
            weft_builder_from(&e->b, by != NONE ? l->transfers[by].target : *r);
        else if (t->task->kind == WEFT_TASK_COPY && is_empty(r))
            weft_builder_to(&e->b, (weft_region){.rank = e->b.rank});
        else if (!on || !apart(l, t->rank, r->rank))
            weft_builder_to(&e->b, *r);
    }
    add_waits(e, t);
    if (!is_push(l, t))
        add_posts(e, t, -1);
    add_triggers(e, t);
    weft_builder_end(&e->b);
}

static void emit_transfer(emission *e, uint32_t number)
{
    const lowering *l = e->l;
    const transfer *move = &l->transfers[number];
    flat_task cause = {0};

    if (move->cause != NONE)
        cause = task_at(l, move->from, move->cause - l->task_base[move->from]);
    weft_builder_task(&e->b, e->wire, WEFT_TASK_COPY, 0);
    weft_builder_to(&e->b, move->target);
    weft_builder_from(&e->b, move->source);
    if (move->awaits)
        weft_builder_wait(&e->b, trigger_signal(e, move->from, cause.task->lane),
                          weft_lowering_trigger(l, move->cause, move->from)->number);
    for (uint32_t i = 0; i < move->need_count; i++) {
        const need *n = &l->needs[move->need0 + i];

        if (n->task != NONE) {
            int rank = rank_of(l, n->task);

            weft_builder_wait(&e->b,
                              trigger_signal(e, rank, l->flat[rank].tasks[n->task - l->task_base[rank]].lane),
                              weft_lowering_trigger(l, n->task, move->from)->number);
        } else {
            weft_builder_wait(&e->b, WEFT_SIGNAL_LANDED(l->world, l->transfers[n->landed].from),
                              l->transfers[n->landed].number);
        }
    }
    if (move->cause != NONE)
        add_posts(e, &cause, move->to);
    weft_builder_end(&e->b);
    if (move->cause != NONE && is_push(l, &cause) && posts_to(l, &cause, -1)) {
        weft_builder_task(&e->b, e->wire, WEFT_TASK_COPY, 0);
        nothing(e);
        add_posts(e, &cause, -1);
        weft_builder_end(&e->b);
    }
}

static weft_status emit(const lowering *l, int rank, weft_plan_part *part, weft_error_text *error)
{
    emission e = {.l = l, .b = weft_builder_begin(l->problem, l->domain, l->world, rank)};

    declare(&e);
    for (uint32_t i = 0; i < l->flat[rank].task_count; i++) {
        flat_task t = task_at(l, rank, i);

        emit_task(&e, &t);
    }
    for (uint32_t i = l->first[rank]; i < l->first[rank + 1]; i++)
        emit_transfer(&e, l->order[i]);
    return weft_builder_finish(&e.b, part, error);
}

weft_status weft_plan_lower(const weft_problem *problem, const weft_plan_part *flat, const int32_t *domain,
                            int world, int only, weft_plan_part *parts, weft_error_text *error)
{
    lowering l = {.problem = problem, .flat = flat, .domain = domain, .world = world};
    weft_status status = WEFT_OK;

    weft_lowering_find(&l);
    if (l.failed)
        status = weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %d ranks over nodes", world);
    else if (l.refused)
        status = weft_error_set(error, WEFT_ERR_UNSUPPORTED, "%s %s cannot run over several nodes: %s",
                                weft_op_name(problem->op), weft_schedule_name(problem->op, problem->schedule),
                                l.refused);
    for (int rank = only < 0 ? 0 : only; rank < (only < 0 ? world : only + 1) && status == WEFT_OK; rank++)
        status = emit(&l, rank, &parts[only < 0 ? rank : 0], error);
    weft_lowering_free(&l);
    return status;
}
