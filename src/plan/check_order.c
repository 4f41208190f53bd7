/*
 * The order stage: what certainly happens before what.
 *
 * One run is simulated: whenever the head of a lane has all of its posts, it is done. Doing a task can only
 * make others ready, never unready, so it does not matter which ready task is taken: if the simulation ends
 * with all tasks done, every execution does, whether each lane has its worker or one thread serves all lanes
 * of a rank (some unfinished task is always at the head of its lane with its waits held, and the thread may
 * take it). If it gets stuck, every execution does.
 *
 * Each task gets a vector clock: how many tasks of every lane are certainly finished when it starts. A wait
 * adds the clocks of the posts it stands for. Which those are:
 *   - A signal whose posts are all made by one lane: the first `count` posts of that lane, because a lane
 *     posts in order, in this run and over runs. So do the crossing COPYs of a lane to one rank: that is a
 *     channel, and counts as a lane for this purpose.
 *   - Any other signal: all posts of the run. That needs `count` to be all of them, and that no post of the
 *     next run can be counted in place of a missing one of this run. The second holds when a poster posts
 *     only after ENTER of the signal's owner in the same run (or is the owner), which the plan's contract
 * asks of all posts but those of the reserved signals: the owner enters run e + 1 after all its waits of run
 * e. Were there a first wait in time satisfied by a post of a later run, all waits before it would have meant
 * what they say, its poster would have been after the owner's ENTER of that later run, and the wait long
 * over: a contradiction.
 *
 * A crossing COPY is two events: for its lane it is finished when it is sent; what it writes is there, and
 * its posts are made, when it has landed. A clock says of each channel how many of its messages have
 * certainly landed, and only the posts of those messages say so: that the lane has gone on says nothing.
 *
 * Over runs: every touch of a peer's memory must be after that peer's ENTER of the run, and must be finished
 * before the peer's run ends (be in the joined clocks of its lanes). Then any touch of a rank's memory in
 * run e, by anyone, is before that rank's end of run e, which is before its ENTER of run e + 1, which is
 * before any touch in run e + 1. So accesses of different runs never conflict, for three runs or any number,
 * the caller's own accesses between runs included, and only one run needs to be looked at for races. The same
 * is asked of posts: the runs of all plans of a group count on one table of signals, and a post that comes
 * when its owner has gone on to another plan would be counted there.
 */
#include "plan/check_stages.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = UINT32_MAX, MANY_POSTERS = 48 };

/* Posts at every (rank, signal), and how they are made. */
typedef struct signal_info {
    uint32_t first, posts; /* in `posters` */
    uint32_t lane;         /* the only posting lane, or NONE */
    uint32_t made;         /* during the simulation */
    uint32_t waiter;       /* first lane that waits for it now, or NONE */
    uint32_t clock;        /* joined clock of all posts, for signals with many; NONE until needed */
} signal_info;

typedef struct order_state {
    weft_checker *checker;
    signal_info *signals; /* [rank][signal] */
    uint32_t signal_count;
    uint32_t *posters; /* tasks, grouped by signal, in lane order */
    uint32_t *next;    /* [lane] task to do next, counted from the lane's first */
    uint32_t *waiting; /* [lane] next lane that waits for the same signal */
    uint32_t *queue;   /* lanes to look at */
    uint32_t queued, done;
    uint32_t *scratch; /* one clock */
} order_state;

static signal_info *signal_at(order_state *s, int rank, uint32_t signal)
{
    return &s->signals[(size_t)rank * s->signal_count + signal];
}

static bool allocate(order_state *s)
{
    weft_checker *c = s->checker;
    size_t tasks = c->tasks, lanes = c->lanes, posts = 0;

    for (int rank = 0; rank < c->world; rank++)
        posts += c->parts[rank].post_count;
    s->signal_count = c->parts[0].signal_count;
    s->signals = calloc((size_t)c->world * s->signal_count, sizeof(*s->signals));
    s->posters = malloc((posts + 1) * sizeof(uint32_t));
    s->next = calloc(lanes, sizeof(uint32_t));
    s->waiting = malloc(lanes * sizeof(uint32_t));
    s->queue = malloc(lanes * sizeof(uint32_t));
    s->scratch = malloc(c->columns * sizeof(uint32_t));
    c->sequence = malloc(tasks * sizeof(uint32_t));
    c->clock_of = calloc(tasks, sizeof(uint32_t));
    c->clock_room = 64;
    c->clocks = calloc((size_t)c->clock_room * c->columns, sizeof(uint32_t));
    c->clock_count = 1; /* clock 0: nothing is finished */
    return s->signals && s->posters && s->next && s->waiting && s->queue && s->scratch && c->sequence &&
           c->clock_of && c->clocks;
}

/* The channel of each crossing COPY, and its place there; `last` is a number for every rank. */
static void number_channels(weft_checker *c, uint32_t *last)
{
    uint32_t lane = UINT32_MAX, first = c->lanes;

    c->columns = c->lanes;
    for (uint32_t task = 0; task < c->tasks; task++) {
        int rank = weft_check_rank(c, task);
        const weft_task *t = weft_check_task(c, task);
        uint32_t before;
        int to;

        if (c->lane_of[task] != lane) {
            lane = c->lane_of[task];
            first = c->columns;
        }
        if (!weft_task_crosses(&c->parts[rank], t))
            continue;
        to = weft_task_regions(&c->parts[rank], t)->rank;
        before = last[to];
        last[to] = task;
        if (before != UINT32_MAX && c->channel[before] >= first) {
            c->channel[task] = c->channel[before];
            c->landing[task] = c->landing[before] + 1;
        } else {
            c->channel[task] = c->columns++;
            c->landing[task] = 1;
        }
    }
}

static bool number_lanes(weft_checker *c)
{
    uint32_t *last = malloc((size_t)c->world * sizeof(uint32_t));

    c->lane_of = malloc(c->tasks * sizeof(uint32_t));
    c->position = malloc(c->tasks * sizeof(uint32_t));
    c->rank_of = malloc(c->lanes * sizeof(uint32_t));
    c->channel = calloc(c->tasks, sizeof(uint32_t));
    c->landing = calloc(c->tasks, sizeof(uint32_t));
    if (!last || !c->lane_of || !c->position || !c->rank_of || !c->channel || !c->landing) {
        free(last);
        return false;
    }
    for (int rank = 0; rank < c->world; rank++) {
        const weft_plan_part *part = &c->parts[rank];

        for (uint32_t lane = 0; lane < part->lane_count; lane++) {
            c->rank_of[c->lane_base[rank] + lane] = (uint32_t)rank;
            for (uint32_t i = 0; i < part->lanes[lane].task_count; i++) {
                uint32_t task = c->task_base[rank] + part->lanes[lane].task0 + i;

                c->lane_of[task] = c->lane_base[rank] + lane;
                c->position[task] = i + 1;
            }
        }
        last[rank] = UINT32_MAX;
    }
    number_channels(c, last);
    free(last);
    return true;
}

/* The lane that makes a task's posts, or the channel. */
static uint32_t posting_lane(const weft_checker *c, uint32_t task)
{
    return c->channel[task] ? c->channel[task] : c->lane_of[task];
}

/* Groups all posts by signal; parts list tasks lane by lane, so the posts of a lane come in its order. */
static void group_posts(order_state *s)
{
    weft_checker *c = s->checker;
    uint32_t at = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t task = 0; task < c->tasks; task++) {
            int rank = weft_check_rank(c, task);
            const weft_task *t = weft_check_task(c, task);

            for (uint32_t j = 0; j < t->post_count; j++) {
                const weft_post *post = &c->parts[rank].posts[t->post0 + j];
                signal_info *signal = signal_at(s, post->rank, post->signal);

                if (pass == 0) {
                    signal->posts++;
                    continue;
                }
                s->posters[signal->first + signal->made++] = task;
            }
        }
        for (size_t i = 0; i < (size_t)c->world * s->signal_count; i++) {
            signal_info *signal = &s->signals[i];

            if (pass == 0) {
                signal->first = at;
                at += signal->posts;
            } else {
                signal->lane = signal->posts ? posting_lane(c, s->posters[signal->first]) : NONE;
                for (uint32_t j = 1; j < signal->posts; j++) {
                    if (posting_lane(c, s->posters[signal->first + j]) != signal->lane)
                        signal->lane = NONE;
                }
            }
            signal->made = 0;
            signal->waiter = NONE;
            signal->clock = NONE;
        }
    }
}

/* A wait for fewer posts than a run makes says how many, not which, unless one lane makes them all. */
static void check_wait_rule(order_state *s)
{
    weft_checker *c = s->checker;

    for (uint32_t task = 0; task < c->tasks; task++) {
        int rank = weft_check_rank(c, task);
        const weft_task *t = weft_check_task(c, task);

        for (uint32_t j = 0; j < t->wait_count; j++) {
            const weft_wait *wait = &c->parts[rank].waits[t->wait0 + j];
            signal_info *signal = signal_at(s, rank, wait->signal);

            if (wait->count != signal->posts && signal->lane == NONE)
                weft_check_find(
                    c, rank, task - c->task_base[rank],
                    "%s waits for %u of the %u posts of signal %u, which several lanes make: a count does "
                    "not say which",
                    weft_check_task_text(c, task), wait->count, signal->posts, wait->signal);
        }
    }
}

/* ---- clocks -------------------------------------------------------------------------------------- */

static uint32_t *clock_at(weft_checker *c, uint32_t clock)
{
    return c->clocks + (size_t)clock * c->columns;
}

/* Keeps a clock; NONE when memory is exhausted. */
static uint32_t keep_clock(weft_checker *c, const uint32_t *clock)
{
    if (c->clock_count == c->clock_room) {
        uint32_t *more = realloc(c->clocks, (size_t)c->clock_room * 2 * c->columns * sizeof(uint32_t));

        if (!more)
            return NONE;
        c->clocks = more;
        c->clock_room *= 2;
    }
    memcpy(clock_at(c, c->clock_count), clock, c->columns * sizeof(uint32_t));
    return c->clock_count++;
}

static void join(uint32_t *into, const uint32_t *from, uint32_t lanes)
{
    for (uint32_t i = 0; i < lanes; i++)
        into[i] = into[i] > from[i] ? into[i] : from[i];
}

/* Adds what is finished once `task` is. */
static void join_task(weft_checker *c, uint32_t *into, uint32_t task)
{
    uint32_t lane = c->lane_of[task];

    join(into, clock_at(c, c->clock_of[task]), c->columns);
    into[lane] = into[lane] > c->position[task] ? into[lane] : c->position[task];
}

/* Adds what is finished once the posts of `task` are made: what it says in another domain has landed. */
static void join_post(weft_checker *c, uint32_t *into, uint32_t task)
{
    uint32_t channel = c->channel[task];

    join_task(c, into, task);
    if (channel && into[channel] < c->landing[task])
        into[channel] = c->landing[task];
}

/* Adds what a wait stands for. False when memory is exhausted. */
static bool join_wait(order_state *s, uint32_t *into, signal_info *signal, uint32_t count)
{
    weft_checker *c = s->checker;

    if (signal->lane != NONE) {
        join_post(c, into, s->posters[signal->first + count - 1]);
        return true;
    }
    if (signal->posts <= MANY_POSTERS) {
        for (uint32_t i = 0; i < signal->posts; i++)
            join_post(c, into, s->posters[signal->first + i]);
        return true;
    }
    if (signal->clock == NONE) {
        uint32_t *joined = calloc(c->columns, sizeof(uint32_t));

        for (uint32_t i = 0; i < signal->posts && joined; i++)
            join_post(c, joined, s->posters[signal->first + i]);
        signal->clock = joined ? keep_clock(c, joined) : NONE;
        free(joined);
        if (signal->clock == NONE)
            return false;
    }
    join(into, clock_at(c, signal->clock), c->columns);
    return true;
}

static bool set_clock(order_state *s, uint32_t task)
{
    weft_checker *c = s->checker;
    int rank = weft_check_rank(c, task);
    const weft_task *t = weft_check_task(c, task);
    uint32_t before = c->position[task] > 1 ? c->clock_of[task - 1] : 0;

    c->clock_of[task] = before;
    if (!t->wait_count)
        return true;
    memcpy(s->scratch, clock_at(c, before), c->columns * sizeof(uint32_t));
    for (uint32_t i = 0; i < t->wait_count; i++) {
        const weft_wait *wait = &c->parts[rank].waits[t->wait0 + i];

        if (!join_wait(s, s->scratch, signal_at(s, rank, wait->signal), wait->count))
            return false;
    }
    if (memcmp(s->scratch, clock_at(c, before), c->columns * sizeof(uint32_t)))
        c->clock_of[task] = keep_clock(c, s->scratch);
    return c->clock_of[task] != NONE;
}

/* ---- the simulation ------------------------------------------------------------------------------ */

/* The first wait of a task that does not hold yet, or NULL. */
static signal_info *unheld_wait(order_state *s, uint32_t task)
{
    weft_checker *c = s->checker;
    int rank = weft_check_rank(c, task);
    const weft_task *t = weft_check_task(c, task);

    for (uint32_t i = 0; i < t->wait_count; i++) {
        const weft_wait *wait = &c->parts[rank].waits[t->wait0 + i];
        signal_info *signal = signal_at(s, rank, wait->signal);

        if (signal->made < wait->count)
            return signal;
    }
    return NULL;
}

static void make_posts(order_state *s, uint32_t task)
{
    weft_checker *c = s->checker;
    const weft_task *t = weft_check_task(c, task);
    int rank = weft_check_rank(c, task);

    for (uint32_t i = 0; i < t->post_count; i++) {
        const weft_post *post = &c->parts[rank].posts[t->post0 + i];
        signal_info *signal = signal_at(s, post->rank, post->signal);
        uint32_t lane = signal->waiter;

        signal->made++;
        signal->waiter = NONE;
        while (lane != NONE) {
            uint32_t following = s->waiting[lane];

            s->queue[s->queued++] = lane;
            lane = following;
        }
    }
}

/* Does what a lane can do; leaves it in the list of the signal it waits for. */
static bool advance(order_state *s, uint32_t lane)
{
    weft_checker *c = s->checker;
    int rank = (int)c->rank_of[lane];
    const weft_lane *l = &c->parts[rank].lanes[lane - c->lane_base[rank]];

    while (s->next[lane] < l->task_count) {
        uint32_t task = c->task_base[rank] + l->task0 + s->next[lane];
        signal_info *blocked = unheld_wait(s, task);

        if (blocked) {
            s->waiting[lane] = blocked->waiter;
            blocked->waiter = lane;
            return true;
        }
        if (!set_clock(s, task))
            return false;
        c->sequence[s->done++] = task;
        s->next[lane]++;
        make_posts(s, task);
    }
    return true;
}

static bool simulate(order_state *s)
{
    weft_checker *c = s->checker;

    for (uint32_t lane = c->lanes; lane-- > 0;)
        s->queue[s->queued++] = lane;
    while (s->queued) {
        if (!advance(s, s->queue[--s->queued]))
            return false;
    }
    return true;
}

static void report_stuck(order_state *s)
{
    weft_checker *c = s->checker;

    for (uint32_t lane = 0; lane < c->lanes; lane++) {
        int rank = (int)c->rank_of[lane];
        const weft_lane *l = &c->parts[rank].lanes[lane - c->lane_base[rank]];

        if (s->next[lane] < l->task_count) {
            uint32_t index = l->task0 + s->next[lane];
            signal_info *signal = unheld_wait(s, c->task_base[rank] + index);

            weft_check_find(
                c, rank, index, "deadlock: %s waits for ever on signal %u, which has %u of its %u posts",
                weft_check_task_text(c, c->task_base[rank] + index),
                (uint32_t)((size_t)(signal - s->signals) % s->signal_count), signal->made, signal->posts);
        }
    }
}

/* ---- over runs ----------------------------------------------------------------------------------- */

/* What is certainly finished when each rank's run ends: [rank][lane]. */
static uint32_t *end_clocks(weft_checker *c)
{
    uint32_t *ends = calloc((size_t)c->world * c->columns, sizeof(uint32_t));

    for (int rank = 0; rank < c->world && ends; rank++) {
        const weft_plan_part *part = &c->parts[rank];

        for (uint32_t lane = 0; lane < part->lane_count; lane++) {
            const weft_lane *l = &part->lanes[lane];

            if (l->task_count)
                join_task(c, ends + (size_t)rank * c->columns,
                          c->task_base[rank] + l->task0 + l->task_count - 1);
        }
    }
    return ends;
}

static void check_touches(order_state *s, const uint32_t *ends, uint32_t task)
{
    weft_checker *c = s->checker;
    int rank = weft_check_rank(c, task);
    const weft_task *t = weft_check_task(c, task);
    uint32_t end = c->channel[task] ? c->landing[task] : c->position[task];
    int64_t index = task - c->task_base[rank];

    for (uint32_t i = 0; i < t->region_count; i++) {
        const weft_region *region = weft_task_regions(&c->parts[rank], t) + i;

        if (region->rank == rank || !region->rows || !region->cols)
            continue;
        if (!weft_check_before(c, c->task_base[region->rank], task))
            weft_check_find(c, rank, index, "%s touches %s, before that rank's ENTER",
                            weft_check_task_text(c, task), weft_check_region_text(c, region));
        if (i < t->destinations
                ? ends[(size_t)region->rank * c->columns + posting_lane(c, task)] < end
                : ends[(size_t)region->rank * c->columns + c->lane_of[task]] < c->position[task])
            weft_check_find(c, rank, index, "%s may still touch %s, when that rank's run has ended",
                            weft_check_task_text(c, task), weft_check_region_text(c, region));
    }
    for (uint32_t i = 0; i < t->post_count; i++) {
        const weft_post *post = &c->parts[rank].posts[t->post0 + i];

        if (post->rank == rank || post->signal < 2 * (uint32_t)c->world)
            continue;
        if (!weft_check_before(c, c->task_base[post->rank], task))
            weft_check_find(
                c, rank, index,
                "%s posts signal %u of rank %d before that rank's ENTER: it may be counted in the "
                "run before",
                weft_check_task_text(c, task), post->signal, post->rank);
        else if (ends[(size_t)post->rank * c->columns + posting_lane(c, task)] < end)
            weft_check_find(c, rank, index,
                            "%s may post signal %u of rank %d after that rank's run has ended: it would be "
                            "counted in another",
                            weft_check_task_text(c, task), post->signal, post->rank);
    }
}

bool weft_check_order(weft_checker *checker)
{
    order_state s = {.checker = checker};
    bool ok = number_lanes(checker) && allocate(&s);
    uint32_t *ends = NULL;

    if (ok) {
        group_posts(&s);
        check_wait_rule(&s);
    }
    if (ok && !checker->report->count) {
        ok = simulate(&s);
        if (ok && s.done < checker->tasks)
            report_stuck(&s);
    }
    if (ok && !checker->report->count) {
        ends = end_clocks(checker);
        ok = ends != NULL;
        for (uint32_t task = 0; ok && task < checker->tasks; task++)
            check_touches(&s, ends, task);
    }
    free(ends);
    free(s.signals);
    free(s.posters);
    free(s.next);
    free(s.waiting);
    free(s.queue);
    free(s.scratch);
    return ok;
}
