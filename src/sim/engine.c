/*
 * The event loop. Time moves from the end of one task to the end of the next; everything that follows
 * from an end happens at once: posts are counted, lanes whose head was waiting look again, and whoever
 * stands first in the queue for a freed thread, core or copy engine starts.
 *
 * What always holds
 * - A lane has at most one event in the heap, and a task at most one more, for posts that follow later: the
 *   heap never holds more than there are lanes and tasks.
 * - A lane that moves bytes over a link goes on with the next bytes while the last ones are on their way: the
 *   latency of a link delays what waits for the bytes, not what is sent after them. One that sends messages
 * to other nodes does not wait for their bytes either.
 * - A lane is in exactly one place: in the heap, in one signal's list of waiters, in one pool's queue, or
 *   finished. An empty heap with unfinished lanes is a plan that cannot end, and is reported as such.
 * - A post is counted when its task ends, and is visible one flag latency later. A wait for n posts of a
 *   signal starts when the first n are visible: each signal keeps when that is, for every n.
 * - Every task remembers which task's end let it start. Following that from the last end gives the
 *   critical path, and so what the time was spent on.
 */
#include "core/round.h"
#include "sim/links.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

typedef struct signal_state {
    uint32_t count;
    uint32_t post0;               /* where its posts are kept, in the order in which they are made */
    uint32_t waiter, last_waiter; /* lanes that wait for more posts, the least demanding first */
} signal_state;

typedef struct post_state {
    double visible_ns; /* this post and all before it */
    uint32_t poster;   /* the task that decides that */
} post_state;

typedef struct lane_state {
    double idle_ns;   /* since when its head could not start */
    double ready_ns;  /* when what the head's waits that hold already ask for is visible, */
    uint32_t head;    /* task */
    uint32_t next;    /* in the list it stands in */
    uint32_t cause;   /* task whose end lets the head start */
    uint32_t decides; /* the task that decides that, */
    uint32_t hold;    /* and how many of its waits these are: they are not looked at again */
    uint32_t need;    /* posts it waits for */
    uint32_t pool;    /* that its tasks need a place in, or NONE */
    uint32_t core;    /* cpu: held while running */
    bool running;
    bool ahead; /* the running task's posts come when its bytes have arrived, after its turn */
} lane_state;

/* Places that lanes compete for: threads of a rank, copy engines of a rank, cores of a node. */
typedef struct pool {
    uint32_t free;
    uint32_t first; /* queue of lanes */
    bool by_lane;   /* the lowest lane first, else whoever came first */
} pool;

typedef struct task_state {
    double start_ns, end_ns;
    uint32_t cause;
    bool by_link, by_memory; /* what made it longer than its work */
} task_state;

typedef struct heap_entry {
    double ns;
    uint32_t lane;
    uint32_t arrived; /* a task whose last bytes are there now, or NONE: the lane's turn */
} heap_entry;

typedef struct engine {
    const model *m;
    links links;
    double *memory; /* gpu: when that of each rank has served the products that came so far */
    signal_state *signals;
    post_state *posts;
    lane_state *lanes;
    task_state *tasks;
    pool *pools; /* one per rank */
    pool *cores; /* one per node; cpu */
    int32_t *core_rank;
    bool oversubscribed;
    heap_entry *heap;
    size_t heap_count;
    double now;
    uint32_t last_task;
    weft_sim_result *result;
    size_t event_capacity;
    bool want_events;
} engine;

/* ---- heap ----------------------------------------------------------------------------------------- */

static void heap_push(engine *e, double ns, uint32_t lane, uint32_t arrived)
{
    size_t at = e->heap_count++;

    while (at > 0) {
        size_t up = (at - 1) / 4;

        if (e->heap[up].ns < ns || (e->heap[up].ns == ns && e->heap[up].lane < lane))
            break;
        e->heap[at] = e->heap[up];
        at = up;
    }
    e->heap[at] = (heap_entry){ns, lane, arrived};
}

static bool sooner(const heap_entry *a, const heap_entry *b)
{
    return a->ns < b->ns || (a->ns == b->ns && a->lane < b->lane);
}

static heap_entry heap_pop(engine *e)
{
    heap_entry top = e->heap[0], moved = e->heap[--e->heap_count];
    size_t at = 0, count = e->heap_count;

    for (;;) {
        size_t best = 4 * at + 1, end = weft_min_bytes(best + 4, count);

        if (best >= count)
            break;
        for (size_t i = best + 1; i < end; i++)
            if (sooner(&e->heap[i], &e->heap[best]))
                best = i;
        if (!sooner(&e->heap[best], &moved))
            break;
        e->heap[at] = e->heap[best];
        at = best;
    }
    e->heap[at] = moved;
    return top;
}

/* ---- pools ---------------------------------------------------------------------------------------- */

/* Takes a place, or queues the lane and returns false. */
static bool pool_take(engine *e, pool *p, uint32_t lane)
{
    uint32_t *at = &p->first;

    if (p->free) {
        p->free--;
        return true;
    }
    /* Threads look at their rank's lanes from the first on; cores and engines serve who came first. */
    while (*at != NONE && (!p->by_lane || *at < lane))
        at = &e->lanes[*at].next;
    e->lanes[lane].next = *at;
    *at = lane;
    return false;
}

/* Takes the next lane out of the queue if there is a place for it; else NONE. */
static uint32_t pool_next(engine *e, pool *p)
{
    uint32_t lane = p->free ? p->first : NONE;

    if (lane != NONE) {
        p->free--;
        p->first = e->lanes[lane].next;
    }
    return lane;
}

/* ---- tasks ---------------------------------------------------------------------------------------- */

static void record(engine *e, uint32_t lane, weft_event_kind kind, double start_ns, double end_ns,
                   uint32_t task)
{
    const model_lane *ml = &e->m->lanes[lane];
    weft_event *event;

    if (!e->want_events || end_ns <= start_ns)
        return;
    event = &e->result->events[e->result->event_count++];
    *event = (weft_event){.start_ns = (int64_t)llround(start_ns),
                          .end_ns = (int64_t)llround(end_ns),
                          .rank = ml->rank,
                          .lane = ml->index,
                          .kind = (uint8_t)kind,
                          .task = task == NONE ? WEFT_EVENT_NO_TASK : e->m->tasks[task].number};
}

static double core_switch_ns(engine *e, uint32_t lane)
{
    int rank = e->m->lanes[lane].rank, node = model_node(e->m, rank), units = e->m->machine->units;
    int32_t *cores = &e->core_rank[(size_t)node * (size_t)units];
    int found = -1;

    /* Negative: idle, and last used by rank -1 - value. */
    for (int c = 0; c < units; c++)
        if (cores[c] < 0 && (found < 0 || cores[c] == -1 - rank))
            found = c;
    e->lanes[lane].core = (uint32_t)found;
    if (cores[found] == -1 - rank || cores[found] == INT32_MIN || !e->oversubscribed) {
        cores[found] = rank;
        return 0;
    }
    cores[found] = rank;
    return e->m->machine->switch_us * 1e3;
}

/* Whether the lane's next task is more of the same: it does not read what this one brings. */
static bool goes_on(const engine *e, uint32_t lane)
{
    uint32_t head = e->lanes[lane].head;
    const model_task *task = &e->m->tasks[head];

    return head + 1 < e->m->lanes[lane].task_end && task[1].event == task->event &&
           (task[1].transfer_count || task[1].stored_next);
}

/* Messages to other nodes are handed to the network, however many there are. */
static bool is_message(const engine *e, const model_task *task)
{
    const model_transfer *transfer = &e->m->transfers[task->transfer0];

    return task->event == WEFT_EVENT_COPY && task->transfer_count && transfer->from >= 0 &&
           transfer->to >= 0 && model_node(e->m, transfer->from) != model_node(e->m, transfer->to);
}

/*
 * Sends what the head moves over links; when the last byte is there, and the latency in that. What it stores
 * elsewhere follows what it has computed or loaded; of a task of several waves of tiles, the last one's
 * follows the end of its work.
 */
static double send(engine *e, uint32_t lane, double work_end, double *in_flight)
{
    const model_task *task = &e->m->tasks[e->lanes[lane].head];
    double work = task->work_ns - task->overhead_ns, linked = 0;
    /* Where memory holds products up, it does so evenly. */
    double stores_ns = task->event == WEFT_EVENT_COMPUTE && work > 0
                           ? task->stores_ns / work * (work_end - e->now - task->overhead_ns)
                           : task->stores_ns;

    *in_flight = 0;
    for (uint32_t i = 0; i < task->transfer_count; i++) {
        const model_transfer *transfer = &e->m->transfers[task->transfer0 + i];
        bool stores = task->stores_ns > 0 && transfer->from == e->m->lanes[lane].rank;
        double begin = e->now + task->overhead_ns + (stores ? stores_ns : 0), latency;
        double there = links_send(&e->links, transfer, begin, &latency);

        if (task->last_share > 0 && transfer->from == e->m->lanes[lane].rank)
            there = fmax(there,
                         work_end + latency + transfer->bytes / e->m->machine->link_gbs * task->last_share);
        if (there > linked) {
            linked = there;
            *in_flight = latency;
        }
    }
    return linked;
}

/* The head holds everything it needs: run it. */
static void start_task(engine *e, uint32_t lane)
{
    lane_state *ls = &e->lanes[lane];
    const model_task *task = &e->m->tasks[ls->head];
    double work_end = e->now + task->work_ns, linked, in_flight, end;
    bool by_memory = false;

    if (e->cores)
        work_end += core_switch_ns(e, lane);
    if (task->memory_ns > 0) {
        double *memory = &e->memory[e->m->lanes[lane].rank];

        *memory = fmax(*memory, e->now + task->overhead_ns) + task->memory_ns;
        by_memory = *memory > work_end;
        work_end = fmax(work_end, *memory);
    }
    linked = send(e, lane, work_end, &in_flight);
    end = fmax(work_end, linked);
    e->tasks[ls->head] = (task_state){e->now, end, ls->cause, linked > work_end, by_memory};
    record(e, lane, WEFT_EVENT_WAIT, ls->idle_ns, e->now, ls->head);
    ls->running = true;
    ls->ahead = goes_on(e, lane) && (linked - in_flight < end || is_message(e, task));
    if (ls->ahead) {
        heap_push(e, end, lane, ls->head);
        end = is_message(e, task) ? work_end : fmax(work_end, linked - in_flight - task->boxed_ns);
    }
    record(e, lane, (weft_event_kind)task->event, e->now, end, ls->head);
    heap_push(e, end, lane, NONE);
}

/* The head's waits hold now: take a thread, then a core. */
static void take_core(engine *e, uint32_t lane)
{
    if (!e->cores || pool_take(e, &e->cores[model_node(e->m, e->m->lanes[lane].rank)], lane))
        start_task(e, lane);
}

static void take_place(engine *e, uint32_t lane)
{
    uint32_t p = e->lanes[lane].pool;

    if (p == NONE)
        start_task(e, lane);
    else if (pool_take(e, &e->pools[p], lane))
        take_core(e, lane);
}

/* Mostly the newcomer wants more than those already there, so that this takes no time. */
static void stand_and_wait(engine *e, signal_state *signal, uint32_t lane, uint32_t need)
{
    lane_state *ls = &e->lanes[lane];
    uint32_t *at = &signal->waiter;

    ls->need = need;
    if (signal->waiter != NONE && e->lanes[signal->last_waiter].need <= need)
        at = &e->lanes[signal->last_waiter].next;
    while (*at != NONE && e->lanes[*at].need <= need)
        at = &e->lanes[*at].next;
    ls->next = *at;
    *at = lane;
    if (ls->next == NONE)
        signal->last_waiter = lane;
}

/* Looks at the waits of the lane's head; stands where the first unsatisfied one says, or goes on. */
static void look(engine *e, uint32_t lane)
{
    const model_lane *ml = &e->m->lanes[lane];
    lane_state *ls = &e->lanes[lane];
    const model_task *task;

    if (ls->head == ml->task_end)
        return;
    task = &e->m->tasks[ls->head];
    for (; ls->hold < task->wait_count; ls->hold++) {
        const model_wait *wait = &e->m->waits[task->wait0 + ls->hold];
        signal_state *signal = &e->signals[(size_t)ml->rank * e->m->signal_count + wait->slot];
        const post_state *seen;

        if (signal->count < wait->count) {
            stand_and_wait(e, signal, lane, wait->count);
            return;
        }
        seen = &e->posts[signal->post0 + wait->count - 1];
        if (seen->visible_ns > ls->ready_ns) {
            ls->ready_ns = seen->visible_ns;
            ls->decides = seen->poster;
        }
    }
    if (ls->ready_ns > e->now) {
        ls->cause = ls->decides;
        heap_push(e, ls->ready_ns, lane, NONE);
    } else
        take_place(e, lane);
}

/* A message to another node brings what is posted there along: it is seen when the bytes are. */
static double flag_ns(const engine *e, uint32_t task, int from, int to)
{
    const model_task *posting = &e->m->tasks[task];

    return is_message(e, posting) && e->m->transfers[posting->transfer0].to == to
               ? 0
               : links_flag_ns(e->m, from, to);
}

static void post(engine *e, uint32_t task, int from, const model_post *posted)
{
    signal_state *signal = &e->signals[(size_t)posted->rank * e->m->signal_count + posted->signal];
    post_state *made = &e->posts[signal->post0 + signal->count];

    *made = (post_state){e->now + flag_ns(e, task, from, posted->rank), task};
    if (signal->count && made[-1].visible_ns > made->visible_ns)
        *made = made[-1];
    signal->count++;
    while (signal->waiter != NONE && e->lanes[signal->waiter].need <= signal->count) {
        uint32_t lane = signal->waiter;

        signal->waiter = e->lanes[lane].next;
        e->lanes[lane].cause = task;
        look(e, lane);
    }
}

/* Everything a task did is there: those who wait for it are told. */
static void arrive(engine *e, int rank, uint32_t done)
{
    const model_task *task = &e->m->tasks[done];

    e->last_task = done;
    for (uint32_t i = 0; i < task->post_count; i++)
        post(e, done, rank, &e->m->posts[task->post0 + i]);
}

static void free_core(engine *e, uint32_t lane, uint32_t done)
{
    int rank = e->m->lanes[lane].rank, node = model_node(e->m, rank);
    uint32_t next;

    e->core_rank[(size_t)node * (size_t)e->m->machine->units + e->lanes[lane].core] = -1 - rank;
    e->cores[node].free++;
    next = pool_next(e, &e->cores[node]);
    if (next == NONE)
        return;
    e->lanes[next].cause = done;
    start_task(e, next);
}

static bool head_is_ready(const engine *e, uint32_t lane)
{
    const model_lane *ml = &e->m->lanes[lane];
    const model_task *task = &e->m->tasks[e->lanes[lane].head];

    if (e->lanes[lane].head == ml->task_end)
        return false;
    for (uint32_t i = 0; i < task->wait_count; i++) {
        const model_wait *wait = &e->m->waits[task->wait0 + i];
        const signal_state *signal = &e->signals[(size_t)ml->rank * e->m->signal_count + wait->slot];

        if (signal->count < wait->count || e->posts[signal->post0 + wait->count - 1].visible_ns > e->now)
            return false;
    }
    return true;
}

/*
 * A task is over. A CPU thread stays on its own lane (and its core) while that has ready tasks; lanes
 * beyond the threads are run one task at a time, and then the lower ones are looked at first.
 */
static void finish_task(engine *e, uint32_t lane)
{
    lane_state *ls = &e->lanes[lane];
    const model_lane *ml = &e->m->lanes[lane];
    uint32_t done = ls->head, next;

    ls->running = false;
    ls->idle_ns = e->now;
    ls->cause = done;
    ls->head++;
    ls->hold = 0;
    ls->ready_ns = 0;
    if (!ls->ahead)
        arrive(e, ml->rank, done);
    if (e->cores && ml->index < e->m->threads && head_is_ready(e, lane)) {
        e->core_rank[(size_t)model_node(e->m, ml->rank) * (size_t)e->m->machine->units + ls->core] =
            -1 - ml->rank;
        start_task(e, lane);
        return;
    }
    if (e->cores)
        free_core(e, lane, done);
    if (ls->pool != NONE) {
        e->pools[ls->pool].free++;
        next = pool_next(e, &e->pools[ls->pool]);
        if (next != NONE) {
            e->lanes[next].cause = done;
            take_core(e, next);
        }
    }
    look(e, lane);
}

/* ---- the run -------------------------------------------------------------------------------------- */

static void add_path(const engine *e, weft_sim_result *result)
{
    uint32_t at = e->last_task;
    double path[WEFT_BOUND_COUNT] = {0}, end = e->now;

    while (at != NONE) {
        const task_state *ts = &e->tasks[at];
        const model_task *task = &e->m->tasks[at];
        /* What followed may have started before this one's bytes had arrived. */
        double duration = fmin(ts->end_ns, end) - ts->start_ns, overhead = fmin(task->overhead_ns, duration);

        path[WEFT_BOUND_LATENCY] += fmax(0, end - ts->end_ns) + overhead;
        path[ts->by_link     ? WEFT_BOUND_LINK
             : ts->by_memory ? WEFT_BOUND_MEMORY
                             : (int)task->bound] += duration - overhead;
        end = ts->start_ns;
        at = ts->cause;
    }
    path[WEFT_BOUND_LATENCY] += end;
    for (int i = 0; i < WEFT_BOUND_COUNT; i++) {
        result->path_us[i] = path[i] / 1e3;
        if (path[i] > path[result->bound])
            result->bound = (weft_bound)i;
    }
}

static weft_status report_stuck(const engine *e, weft_error_text *error)
{
    for (size_t i = 0; i < e->m->lanes_count; i++) {
        const model_lane *ml = &e->m->lanes[i];

        if (e->lanes[i].head != ml->task_end)
            return weft_error_set(error, WEFT_ERR_ARGUMENT,
                                  "the plan cannot end: lane %d of rank %d waits for ever before its task %u",
                                  ml->index, ml->rank,
                                  e->m->tasks[e->lanes[i].head].number - e->m->tasks[ml->task0].number);
    }
    return WEFT_OK;
}

static weft_status run_events(engine *e, weft_error_text *error)
{
    weft_status status;

    e->now = e->m->launch_ns;
    for (uint32_t i = 0; i < e->m->lanes_count; i++) {
        record(e, i, WEFT_EVENT_LAUNCH, 0, e->now, NONE);
        e->lanes[i].idle_ns = e->now;
    }
    for (uint32_t i = 0; i < e->m->lanes_count; i++)
        look(e, i);
    while (e->heap_count) {
        heap_entry event = heap_pop(e);

        e->now = event.ns;
        if (event.arrived != NONE)
            arrive(e, e->m->lanes[event.lane].rank, event.arrived);
        else if (e->lanes[event.lane].running)
            finish_task(e, event.lane);
        else
            take_place(e, event.lane);
    }
    status = report_stuck(e, error);
    if (status)
        return status;
    e->result->us = e->now / 1e3;
    e->result->tasks = e->m->plan_tasks;
    add_path(e, e->result);
    return WEFT_OK;
}

static void set_places(engine *e)
{
    const model *m = e->m;
    bool cpu = m->machine->kind == WEFT_MACHINE_CPU;
    int nodes = (int)weft_divide_up(m->world, m->ranks_per_node);
    int on_node = (int)weft_min(m->world, m->ranks_per_node);
    uint32_t posts = 0;

    for (int r = 0; r < m->world; r++)
        e->pools[r] = (pool){(uint32_t)(cpu ? m->threads : m->machine->copy_engines), NONE, cpu};
    for (uint32_t i = 0; i < m->lanes_count; i++)
        e->lanes[i] = (lane_state){.head = m->lanes[i].task0,
                                   .next = NONE,
                                   .cause = NONE,
                                   /* crews copy by warps of their own */
                                   .pool = cpu || (m->lanes[i].kind == WEFT_LANE_COPY && !m->crew_cols)
                                               ? (uint32_t)m->lanes[i].rank
                                               : NONE};
    for (size_t i = 0; i < m->posts_count; i++) /* for now, how many posts each gets */
        e->signals[(size_t)m->posts[i].rank * m->signal_count + m->posts[i].signal].post0++;
    for (size_t i = 0; i < (size_t)m->world * m->signal_count; i++) {
        uint32_t count = e->signals[i].post0;

        e->signals[i] = (signal_state){.post0 = posts, .waiter = NONE};
        posts += count;
    }
    for (int n = 0; cpu && n < nodes; n++)
        e->cores[n] = (pool){(uint32_t)m->machine->units, NONE, false};
    for (int c = 0; cpu && c < nodes * m->machine->units; c++)
        e->core_rank[c] = INT32_MIN;
    e->oversubscribed = cpu && on_node * m->threads > m->machine->units;
}

weft_status model_run(const model *m, bool want_events, weft_sim_result *result, weft_error_text *error)
{
    engine e = {.m = m, .result = result, .want_events = want_events, .last_task = NONE};
    int nodes = (int)weft_divide_up(m->world, m->ranks_per_node);
    bool cpu = m->machine->kind == WEFT_MACHINE_CPU, missing;
    weft_status status = links_open(&e.links, m, error);

    if (status)
        return status;
    memset(result, 0, sizeof(*result));
    e.signals = calloc((size_t)m->world * m->signal_count + 1, sizeof(*e.signals));
    e.posts = malloc((m->posts_count + 1) * sizeof(*e.posts));
    e.memory = calloc((size_t)m->world, sizeof(*e.memory));
    e.lanes = calloc(m->lanes_count + 1, sizeof(*e.lanes));
    e.tasks = calloc(m->tasks_count + 1, sizeof(*e.tasks));
    e.heap = malloc((m->lanes_count + m->tasks_count + 1) * sizeof(*e.heap));
    e.pools = calloc((size_t)m->world, sizeof(*e.pools));
    e.cores = cpu ? calloc((size_t)nodes, sizeof(*e.cores)) : NULL;
    e.core_rank = cpu ? calloc((size_t)nodes * (size_t)m->machine->units, sizeof(*e.core_rank)) : NULL;
    if (want_events)
        result->events = malloc((2 * m->tasks_count + m->lanes_count + 1) * sizeof(*result->events));
    missing = !e.signals || !e.posts || !e.memory || !e.lanes || !e.tasks || !e.heap || !e.pools ||
              (cpu && (!e.cores || !e.core_rank)) || (want_events && !result->events);
    if (missing) {
        status = weft_error_set(error, WEFT_ERR_MEMORY, "no memory to simulate %zu tasks", m->tasks_count);
    } else {
        set_places(&e);
        status = run_events(&e, error);
    }
    if (status)
        weft_sim_result_free(result);
    free(e.signals);
    free(e.posts);
    free(e.memory);
    free(e.lanes);
    free(e.tasks);
    free(e.heap);
    free(e.pools);
    free(e.cores);
    free(e.core_rank);
    links_close(&e.links);
    return status;
}
