/*
 * The executor of plans on CPU ranks: workers of a rank take tasks in lane order.
 *
 * Worker w begins with lane w. A worker whose lane is blocked runs one task of another lane and looks again
 * at its own; a lane is run by whoever holds its try-lock, so nothing is reordered within it. With every lane
 * blocked a worker waits. In a run that does not have to sleep nothing is allocated and no system call made.
 *
 * Over nodes a worker looks around after every task that takes long, before the next one of its lane: what
 * has come is taken in, and what other lanes have ready to send or to tell leaves. A rank whose lane never
 * blocks would else keep from its peers what they wait for until it has nothing more to do.
 *
 * A crossing COPY is started, and its lane goes on when its source may be overwritten. The next one of the
 * lane need not wait for that where nothing that it causes can overwrite the source: when it goes to the same
 * rank, which then has the first before anything of the second, or when the source is an input.
 *
 * A crossing COPY waits for its destination to enter, but the first EARLY_BYTES of a run to a rank do not:
 * where that rank has not entered yet, its net keeps them until it does. So a small exchange takes one trip,
 * not two. What can leave at once takes the rank's record along.
 */
#include "core/clock.h"
#include "run/cpu/operands.h"
#include "run/cpu/task.h"

#include <string.h>
#include <time.h>

enum { LOOKS = 16, LEAVE_NS = 500000000, EARLY_BYTES = 512 << 10, LONG_BYTES = 64 << 10 };

typedef struct worker {
    weft_executor *x;
    int index;
    uint32_t first_lane;
    char *workspace;
    weft_trace *trace;
    unsigned polls;
    int awaited; /* the peer whose record is waited for, as told to the wait; -1: all are there */
} worker;

static bool wait_holds(weft_executor *x, const weft_wait *wait)
{
    if (wait->signal < (uint32_t)x->world)
        return weft_session_seen(x->session, (int)wait->signal);
    return weft_signal_reached(&x->signals[wait->signal], x->base[wait->signal] + wait->count);
}

static int64_t task_bytes(const weft_executor *x, const weft_task *task)
{
    const weft_region *to = weft_task_regions(&x->plan->part, task);

    return to->rows * to->cols * x->program->operands[to->operand].element_bytes;
}

/* Whether a crossing COPY need not wait for its destination. */
static bool is_early(const weft_executor *x, const weft_task *task)
{
    int to = weft_task_regions(&x->plan->part, task)->rank;

    return task_bytes(x, task) <= atomic_load_explicit(&x->early_bytes[to], memory_order_relaxed) &&
           weft_task_may_be_early(x, task);
}

/* Whether a wait of the task, but for `except` to enter, does not hold yet: which. */
static inline bool is_blocked_by(weft_executor *x, const weft_task *task, uint32_t except, weft_wait *by)
{
    const weft_wait *waits = &x->plan->part.waits[task->wait0];

    for (uint32_t i = 0; i < task->wait_count; i++) {
        if (waits[i].signal != except && !wait_holds(x, &waits[i])) {
            *by = waits[i];
            return true;
        }
    }
    return false;
}

/* The same, or for the destination of a message. */
static bool is_blocked(weft_executor *x, const weft_task *task, weft_wait *by)
{
    const weft_plan_part *part = &x->plan->part;
    uint32_t to;

    if (!part->domain || !weft_task_crosses(part, task))
        return is_blocked_by(x, task, UINT32_MAX, by);
    to = (uint32_t)weft_task_regions(part, task)->rank;
    if (is_blocked_by(x, task, to, by))
        return true;
    *by = (weft_wait){.signal = to};
    return !wait_holds(x, by) && !is_early(x, task);
}

static weft_signal *signal_of(weft_executor *x, const weft_wait *wait)
{
    if (wait->signal < (uint32_t)x->world)
        return &weft_session_record(x->session, (int)wait->signal)->sequence;
    return &x->signals[wait->signal];
}

static bool stopped(const weft_executor *x)
{
    return atomic_load_explicit(&x->session->fault, memory_order_relaxed) != 0 || weft_group_failed(x->group);
}

static void stop(weft_executor *x)
{
    int none = 0;

    atomic_compare_exchange_strong_explicit(&x->session->fault, &none, x->world + 1, memory_order_relaxed,
                                            memory_order_relaxed);
}

static weft_event_kind event_of(const weft_task *task)
{
    static const weft_event_kind kinds[] = {[WEFT_TASK_ENTER] = WEFT_EVENT_ENTER,
                                            [WEFT_TASK_COPY] = WEFT_EVENT_COPY,
                                            [WEFT_TASK_GEMM] = WEFT_EVENT_COMPUTE,
                                            [WEFT_TASK_REDUCE] = WEFT_EVENT_REDUCE,
                                            [WEFT_TASK_EXIT] = WEFT_EVENT_EXIT};

    return kinds[task->kind];
}

/* The messages of the lane have left their sources. */
static bool has_sent(const weft_executor *x, uint32_t lane)
{
    return !x->plan->part.domain ||
           weft_signal_reached(&x->departed[lane],
                               atomic_load_explicit(&x->lanes[lane].sent, memory_order_relaxed));
}

/* Whether the lane's next task has to wait for its messages. */
static bool awaits_sent(const weft_executor *x, uint32_t lane, const weft_task *task)
{
    const weft_plan_part *part = &x->plan->part;
    const weft_lane_state *state = &x->lanes[lane];

    if (has_sent(x, lane))
        return false;
    return !weft_task_crosses(part, task) ||
           (!state->sent_inputs && state->sent_to != weft_task_regions(part, task)->rank);
}

/* Before what may be long: whoever has not got the record cannot send, and would begin only behind it. */
static void show_record(weft_executor *x, int rank)
{
    weft_net_put record;

    if (weft_session_take_along(x->session, rank, &record))
        weft_net_send(x->group->world->net, x->group->seats[rank].world_rank, &record, NULL);
}

/* Under the lane's lock. */
static void send_across(weft_executor *x, uint32_t lane, const weft_task *task)
{
    const weft_plan_part *part = &x->plan->part;
    weft_lane_state *state = &x->lanes[lane];
    const weft_region *to = weft_task_regions(part, task);
    const weft_operand *from = &part->operands[weft_copy_source(part, task)->operand];
    bool input = to->rows == 0 || (from->place == WEFT_PLACE_USER && !from->output), idle = has_sent(x, lane);

    state->sent_to = idle || state->sent_to == to->rank ? to->rank : -1;
    state->sent_inputs = input && (idle || state->sent_inputs);
    atomic_store_explicit(&state->sent, atomic_load_explicit(&state->sent, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    if (!weft_session_seen(x->session, to->rank)) {
        atomic_fetch_sub_explicit(&x->early_bytes[to->rank], task_bytes(x, task), memory_order_relaxed);
        weft_task_send_early(x, task, &x->departed[lane]);
        return;
    }
    show_record(x, to->rank);
    if (weft_task_is_placed(x, task))
        weft_task_send_early(x, task, &x->departed[lane]);
    else
        weft_task_send(x, task, &x->departed[lane]);
}

/* What is near: by the task itself, then by its posts. */
static void run_near(weft_executor *x, const weft_task *task, char *workspace)
{
    const weft_plan_part *part = &x->plan->part;

    weft_task_run(x, task, workspace);
    for (uint32_t i = 0; i < task->post_count; i++) {
        const weft_post *post = &part->posts[task->post0 + i];

        /* Posting ENTER is publishing the record, which was done before the lanes began. */
        if (post->signal >= (uint32_t)x->world)
            weft_signal_post((weft_signal *)((char *)&x->signals[post->signal] + x->delta[post->rank]), 1);
    }
}

static void run_task(worker *w, uint32_t lane, uint32_t index)
{
    weft_executor *x = w->x;
    const weft_plan_part *part = &x->plan->part;
    const weft_task *task = &part->tasks[index];
    int64_t start = w->trace ? weft_clock_ns() : 0;

    if (__builtin_expect(weft_run_before_task != NULL, 0))
        weft_run_before_task(x->rank, index);
    if (weft_task_crosses(part, task))
        send_across(x, lane, task);
    else
        run_near(x, task, w->workspace);
    if (task->kind != WEFT_TASK_ENTER && task->kind != WEFT_TASK_EXIT) /* which take no time */
        weft_group_progress(x->group, x->program->workers == 1);
    if (w->trace)
        weft_trace_add(w->trace, event_of(task), x->rank, lane, index, start, weft_clock_ns());
}

/* So long that messages may have come meanwhile, which nobody else takes in. */
static bool takes_long(const weft_executor *x, uint32_t index)
{
    const weft_task *task = &x->plan->part.tasks[index];

    return task->kind == WEFT_TASK_GEMM ||
           ((task->kind == WEFT_TASK_COPY || task->kind == WEFT_TASK_REDUCE) &&
            task_bytes(x, task) >= LONG_BYTES);
}

/* Runs ready tasks of a lane, at most `most`, and over nodes none after one that takes long. False when there
 * was none or another worker has the lane. */
static bool run_lane(worker *w, uint32_t lane, uint32_t most)
{
    weft_executor *x = w->x;
    const weft_lane *list = &x->plan->part.lanes[lane];
    weft_lane_state *state = &x->lanes[lane];
    uint32_t next = atomic_load_explicit(&state->next, memory_order_relaxed), done = 0;
    weft_wait by;

    if (next == list->task_count || atomic_load_explicit(&state->taken, memory_order_relaxed) ||
        atomic_exchange_explicit(&state->taken, 1, memory_order_acquire))
        return false;
    next = atomic_load_explicit(&state->next, memory_order_relaxed);
    /* Looking at the waits may find a record that does not agree: then nothing more is touched. */
    while (done < most && next < list->task_count &&
           !is_blocked(x, &x->plan->part.tasks[list->task0 + next], &by) &&
           !awaits_sent(x, lane, &x->plan->part.tasks[list->task0 + next]) && !stopped(x)) {
        run_task(w, lane, list->task0 + next);
        if (x->plan->part.domain && takes_long(x, list->task0 + next)) {
            weft_net_poll(x->group->world->net);
            most = done;
        }
        atomic_store_explicit(&state->next, ++next, memory_order_relaxed);
        done++;
    }
    atomic_store_explicit(&state->taken, 0, memory_order_release);
    return done > 0;
}

/* Whether the next task of a lane is for other ranks and takes no time of this one. */
static bool is_brief(const weft_executor *x, uint32_t lane)
{
    const weft_lane *list = &x->plan->part.lanes[lane];
    uint32_t next = atomic_load_explicit(&x->lanes[lane].next, memory_order_relaxed);
    const weft_task *task = &x->plan->part.tasks[list->task0 + next];

    return next < list->task_count && task->kind == WEFT_TASK_COPY &&
           (weft_task_crosses(&x->plan->part, task) || task_bytes(x, task) == 0);
}

/* What other ranks may wait for leaves. */
static void run_brief(worker *w)
{
    for (uint32_t lane = 0; lane < w->x->plan->part.lane_count; lane++)
        while (is_brief(w->x, lane) && run_lane(w, lane, 1))
            ;
}

static bool all_finished(const weft_executor *x)
{
    const weft_plan_part *part = &x->plan->part;

    for (uint32_t lane = 0; lane < part->lane_count; lane++)
        if (atomic_load_explicit(&x->lanes[lane].next, memory_order_relaxed) < part->lanes[lane].task_count ||
            !has_sent(x, lane))
            return false;
    return true;
}

static bool all_entered(weft_executor *x)
{
    for (int rank = 0; rank < x->world; rank++)
        if (rank != x->rank && !weft_session_seen(x->session, rank))
            return false;
    return true;
}

/* May the worker go on? Also when there is nothing left to wait for, and when it waits for somebody else now.
 */
static bool may_go_on(void *argument)
{
    worker *w = argument;
    weft_executor *x = w->x;
    const weft_plan_part *part = &x->plan->part;
    bool finished = true;

    if (stopped(x))
        return true;
    for (uint32_t lane = 0; lane < part->lane_count; lane++) {
        uint32_t next = atomic_load_explicit(&x->lanes[lane].next, memory_order_relaxed);

        if (next == part->lanes[lane].task_count && has_sent(x, lane))
            continue;
        weft_wait by;

        finished = false;
        if (next < part->lanes[lane].task_count &&
            !atomic_load_explicit(&x->lanes[lane].taken, memory_order_relaxed) &&
            !is_blocked(x, &part->tasks[part->lanes[lane].task0 + next], &by) &&
            !awaits_sent(x, lane, &part->tasks[part->lanes[lane].task0 + next]))
            return true;
    }
    if (++w->polls % WEFT_WAIT_LOOKS == 0)
        return finished || weft_session_faulted(x->session) ||
               (w->awaited >= 0 && weft_session_seen(x->session, w->awaited));
    return finished;
}

static weft_status wait_for_work(worker *w)
{
    weft_executor *x = w->x;
    const weft_plan_part *part = &x->plan->part;
    weft_wait_note note = {
        .op = weft_op_name(part->problem.op), .peer = -1, .task = -1, .epoch = x->session->sequence};
    weft_signal *signal = NULL;
    int64_t start = w->trace ? weft_clock_ns() : 0;
    uint32_t lane = w->first_lane;
    weft_status status;

    for (uint32_t i = 0; i < part->lane_count && !signal; i++) {
        uint32_t next;
        weft_wait wait;

        lane = (w->first_lane + i) % part->lane_count;
        next = atomic_load_explicit(&x->lanes[lane].next, memory_order_relaxed);
        if (next == part->lanes[lane].task_count ||
            awaits_sent(x, lane, &part->tasks[part->lanes[lane].task0 + next])) {
            if (!has_sent(x, lane))
                signal = &x->departed[lane];
            continue;
        }
        if (is_blocked(x, &part->tasks[part->lanes[lane].task0 + next], &wait)) {
            signal = signal_of(x, &wait);
            note.task = part->lanes[lane].task0 + next;
            note.peer = wait.signal < (uint32_t)x->world ? (int)wait.signal : -1;
        }
    }
    note.kind = all_entered(x) ? WEFT_WAIT_PROGRESS : WEFT_WAIT_ENTER;
    if (note.kind == WEFT_WAIT_PROGRESS)
        note.peer = -1; /* it may leave while another worker does what waited for it */
    for (int rank = 0; note.peer < 0 && note.kind == WEFT_WAIT_ENTER && rank < x->world; rank++)
        if (rank != x->rank && !weft_session_seen(x->session, rank))
            note.peer = rank;
    w->awaited = note.kind == WEFT_WAIT_ENTER ? note.peer : -1;
    status = weft_wait_beside(x->group, signal, may_go_on, w, &note);
    if (w->trace)
        weft_trace_add(w->trace, WEFT_EVENT_WAIT, x->rank, lane,
                       note.task >= 0 ? (uint32_t)note.task : WEFT_EVENT_NO_TASK, start, weft_clock_ns());
    return status;
}

/* A few looks before the wait that watches the group as well, and says for whom it waits. Messages are taken
 * in by that one. */
static bool goes_on_soon(worker *w)
{
    for (int look = 0; look < LOOKS && !w->x->plan->part.domain && !w->trace; look++) {
        if (may_go_on(w))
            return true;
        weft_pause();
    }
    return false;
}

static void work(void *argument, int index)
{
    weft_executor *x = argument;
    const weft_plan *plan = x->plan;
    uint32_t lanes = plan->part.lane_count;
    worker w = {.x = x, .index = index, .first_lane = (uint32_t)index % lanes, .awaited = -1};

    w.workspace =
        x->private_memory + x->program->workspace_offset + x->program->workspace_bytes * (size_t)index;
    w.trace = index < x->trace_count ? &x->traces[index] : NULL;
    while (!stopped(x)) {
        bool progress = run_lane(&w, w.first_lane, UINT32_MAX);

        if (progress && plan->part.domain)
            run_brief(&w);
        for (uint32_t i = 1; i < lanes && !progress; i++)
            progress = run_lane(&w, (w.first_lane + i) % lanes, 1);
        if (progress)
            continue;
        if (all_finished(x))
            return;
        if (!goes_on_soon(&w) && wait_for_work(&w) != WEFT_OK)
            stop(x);
    }
}

/* After a failed run the caller's buffers are its own again as soon as nothing reads them, which a peer that
 * is gone, or a link that is cut, can delay for ever. */
static void let_messages_leave(const weft_executor *x)
{
    int64_t until = weft_clock_ns() + LEAVE_NS;

    while (weft_lanes_sending(x) && weft_clock_ns() < until)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static bool sends_next(const weft_executor *x, uint32_t lane)
{
    const weft_lane *list = &x->plan->part.lanes[lane];
    uint32_t next = atomic_load_explicit(&x->lanes[lane].next, memory_order_relaxed);

    return next < list->task_count &&
           weft_task_crosses(&x->plan->part, &x->plan->part.tasks[list->task0 + next]);
}

/* Messages that have come early are taken in before peers are told that this rank has entered: those that
 * they send then come after. Lanes that send run until they have to wait, then the peers are told who have
 * not got the record with a message. */
static void begin_far(weft_executor *x, uint64_t hash)
{
    const weft_plan_part *part = &x->plan->part;
    worker w = {.x = x, .workspace = x->private_memory + x->program->workspace_offset};

    w.trace = x->trace_count > 0 ? x->traces : NULL;
    for (int rank = 0; rank < x->world; rank++)
        atomic_store_explicit(&x->early_bytes[rank], EARLY_BYTES, memory_order_relaxed);
    x->early.call.sequence = x->session->sequence;
    x->early.call.hash = hash;
    x->early.context = x;
    x->early.place = weft_task_place_early;
    x->early.landed = weft_task_landed_early;
    weft_net_open_run(x->group->world->net, &x->early);
    for (uint32_t lane = 0; lane < part->lane_count; lane++)
        while (sends_next(x, lane) && run_lane(&w, lane, 1))
            ;
    weft_session_publish_far(x->session);
}

/* Every lane has ended on this rank. */
static void close_run(weft_executor *x)
{
    const weft_plan_part *part = &x->plan->part;

    for (uint32_t signal = (uint32_t)x->world; signal < part->signal_count; signal++)
        x->base[signal] += part->signal_posts[signal];
}

/* What the run brings along, or the plan's own; refused: a C or blocks that the plan does not have. */
static weft_status take_values(weft_executor *x, const weft_plan *plan, const weft_operands *operands)
{
    const weft_problem *p = &plan->part.problem;
    weft_error_text *error = &plan->group->error;

    x->values = (weft_run_values){.alpha = operands->alpha ? *operands->alpha : p->alpha,
                                  .beta = operands->beta ? *operands->beta : p->beta,
                                  .row_scale = operands->row_scale,
                                  .col_scale = operands->col_scale,
                                  .a_scale = operands->a_scale,
                                  .b_scale = operands->b_scale};
    if (p->beta == 0 && x->values.beta != 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "beta of the run is %g, but the plan was made with beta = 0 and has no C",
                              (double)x->values.beta);
    if ((operands->a_scale || operands->b_scale) && p->scales != WEFT_SCALE_BLOCK)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "the run has scales of blocks, but the plan was made with scales = %d, not %d",
                              p->scales, WEFT_SCALE_BLOCK);
    return WEFT_OK;
}

/* Ranks that bring different values ask for different things. */
static uint64_t values_hash(const weft_run_values *values)
{
    uint32_t words[2];

    memcpy(&words[0], &values->alpha, sizeof(words[0]));
    memcpy(&words[1], &values->beta, sizeof(words[1]));
    return ((uint64_t)words[0] << 32 | words[1]) * 0x9e3779b97f4a7c15u + (values->row_scale ? 0x51 : 0) +
           (values->col_scale ? 0x5100 : 0) + (values->a_scale ? 0x510000 : 0) +
           (values->b_scale ? 0x51000000 : 0);
}

weft_status weft_cpu_run(weft_plan *plan, const weft_operands *operands)
{
    weft_program *program = weft_program_of(plan);
    weft_executor *x = program->executor;
    weft_status status = weft_group_check(plan->group);
    weft_record *record;

    if (status != WEFT_OK)
        return status;
    if (plan->part.problem.op >= WEFT_OP_ALL_REDUCE) { /* have none: every nanosecond counts */
        record = weft_session_begin(x->session, WEFT_CALLED_RUN, plan->part.hash, &plan->part.problem);
    } else {
        status = take_values(x, plan, operands);
        record = weft_session_begin(x->session, WEFT_CALLED_RUN, plan->part.hash + values_hash(&x->values),
                                    &plan->part.problem);
    }
    x->plan = plan;
    x->program = program;
    if (status == WEFT_OK)
        status = weft_operands_enter(plan, operands, record);
    record->status = (int32_t)status;
    if (status != WEFT_OK) {
        weft_session_publish(x->session);
        return weft_session_resync(x->session, true);
    }
    for (uint32_t lane = 0; lane < plan->part.lane_count; lane++) {
        atomic_store_explicit(&x->lanes[lane].next, 0, memory_order_relaxed);
        atomic_store_explicit(&x->lanes[lane].taken, 0, memory_order_relaxed);
    }
    weft_session_publish_near(x->session);
    if (plan->part.domain)
        begin_far(x, record->hash);
    weft_pool_run(x->pool, program->workers, work, x);
    if (stopped(x) && plan->part.domain)
        let_messages_leave(x);
    status = stopped(x) ? weft_group_check(x->group) : weft_session_meet(x->session);
    if (plan->part.domain)
        weft_net_close_run(x->group->world->net, &x->early);
    if (stopped(x) && weft_group_check(x->group) == WEFT_OK)
        return weft_session_resync(x->session, false);
    if (status != WEFT_OK)
        return status;
    close_run(x);
    if (plan->told)
        weft_session_learn(x->session, plan->part.problem.op, weft_session_beyond(x->session));
    weft_operands_leave(plan, operands);
    return WEFT_OK;
}
