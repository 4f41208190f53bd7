/* Kernels that walk a plan's lanes, task by task: a loader ahead of each lane's consumer, lanes in any order.
 */
#include "fake_interpreter.h"

#include "core/clock.h"
#include "fake_tasks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reached(const fake_launch *launch, uint32_t wait0, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const weft_cuda_wait *w = &launch->args.waits[wait0 + i];
        /* acquire: the partner may be a post in another process */
        if ((int64_t)(__atomic_load_n(w->signal, __ATOMIC_ACQUIRE) -
                      (launch->args.control->run * w->total + w->count)) < 0)
            return false;
    }
    return true;
}

/* A GPU that touches what it was not given access to stops, and so does the test. */
static void must_reach(const fake_launch *launch, const void *at, bool adds)
{
    if (fake_gpu_reaches(launch->device, at, adds))
        return;
    fprintf(stderr, "fake GPU %d %s %p, which it cannot\n", launch->device, adds ? "adds at" : "touches", at);
    abort();
}

void fake_post(const fake_launch *launch, uint32_t post0, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        must_reach(launch, launch->args.posts[post0 + i], false);
        __atomic_fetch_add(launch->args.posts[post0 + i], 1, __ATOMIC_RELEASE);
    }
}

static void must_reach_views(const fake_launch *launch, const weft_cuda_task *t)
{
    const weft_cuda_view *v = &launch->args.views[t->view0];
    int count = t->destinations + (t->kind == WEFT_CUDA_GEMM   ? 2
                                   : t->kind == WEFT_CUDA_COPY ? 1
                                                               : t->sources);
    for (int i = 0; i < count; i++)
        must_reach(launch, fake_task_at(&launch->args, v[i].ptr),
                   i < t->destinations && t->flags & WEFT_CUDA_ADD);
    if (t->acc >= 0)
        must_reach(launch, v[t->acc].ptr, false);
}

/* The crews' lanes, then those that their storers run. */
static const weft_cuda_lane *lane_at(const fake_launch *launch, uint32_t index)
{
    uint32_t crews = launch->lane_count - launch->args.copy_count;
    return index < crews ? &launch->args.lanes[index] : &launch->args.copies[index - crews];
}

static bool load_ahead(fake_launch *launch, fake_lane *lane, const weft_cuda_lane *list)
{
    if (lane->loaded == list->task_count || lane->loaded > lane->done)
        return false;
    const weft_cuda_task *t = &launch->args.tasks[list->task0 + lane->loaded];
    bool gemm = t->kind == WEFT_CUDA_GEMM && t->k > 0;
    if (gemm && !(t->flags & WEFT_CUDA_LATE && launch->hopper) && !reached(launch, t->wait0, t->wait_count))
        return false;
    gpu.counts.gemms += gemm;
    gpu.counts.exchanged += gemm && launch->args.exchanged;
    lane->product = gemm ? fake_task_multiply(&launch->args, launch->hopper, t) : NULL;
    lane->loaded++;
    return true;
}

static void stamp(const fake_launch *launch, uint32_t task, int which)
{
    if (launch->args.trace)
        launch->args.trace[2 * task + (uint32_t)which] = (uint64_t)weft_clock_ns();
}

static bool step_lane(fake_launch *launch, uint32_t index)
{
    fake_lane *lane = &launch->lanes[index];
    const weft_cuda_lane *list = lane_at(launch, index);
    if (fake_draw(2) && load_ahead(launch, lane, list))
        return true;
    if (lane->done == lane->loaded)
        return load_ahead(launch, lane, list);
    const weft_cuda_task *t = &launch->args.tasks[list->task0 + lane->done];
    if (!reached(launch, t->wait0, t->wait_count))
        return false;
    gpu.counts.bulk += index >= launch->lane_count - launch->args.copy_count;
    float *product = lane->product;
    lane->product = NULL;
    stamp(launch, t->plan_task, 0);
    must_reach_views(launch, t);
    gpu.counts.maps += fake_task_bulk(launch->hopper, t);
    gpu.counts.switched += t->kind == WEFT_CUDA_SWITCHED;
    if (launch->kind == COLLECTIVE)
        fake_task_move(&launch->args, launch->reduction, t);
    else
        fake_task_finish(&launch->args, launch->hopper, t, product);
    stamp(launch, t->plan_task, 1);
    free(product);
    __atomic_fetch_add(&launch->args.control->steps, 1, __ATOMIC_RELAXED);
    fake_post(launch, t->post0, t->post_count);
    lane->done++;
    return true;
}

/* Whether every peer entered with the operands that this launch has; if not, it is given up. */
static bool same_meeting(fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;
    for (int r = 0; r < g->world; r++) {
        const uint64_t *enter = g->signals + r * WEFT_CUDA_LINE_WORDS;
        if (r == g->rank || enter[1 + g->control->run % 2] == g->meeting)
            continue;
        g->control->record = (weft_cuda_record){
            .set = 2, .signal = (uint32_t)r, .plan_task = WEFT_CUDA_OTHER_MEETING, .run = g->control->run};
        for (int p = 0; p < g->world; p++)
            __atomic_store_n(&g->peers[p]->abort, 1, __ATOMIC_RELEASE);
        return false;
    }
    return true;
}

bool fake_step_plan(fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;
    bool moved = false, over = true, slow = gpu.slow_ns && g->rank == gpu.slow_rank;
    if (slow && weft_clock_ns() - launch->moved_ns < gpu.slow_ns)
        return false;
    fake_launch_start(launch);
    if (!launch->entered && reached(launch, g->enter_wait0, g->enter_waits)) {
        stamp(launch, g->trace_tasks, 0);
        for (uint32_t i = 0; i < g->enter_posts; i++)
            g->posts[g->enter_post0 + i][1 + g->control->run % 2] = g->meeting;
        fake_post(launch, g->enter_post0, g->enter_posts);
        for (int r = 0; r < g->world && g->link; r++) /* no time passes on this link */
            __atomic_fetch_add((uint64_t *)g->signals + r * WEFT_CUDA_LINE_WORDS, r != g->rank,
                               __ATOMIC_RELEASE);
        launch->entered = moved = true;
    }
    for (uint32_t i = 0; i < launch->lane_count && !(slow && moved); i++)
        moved |= step_lane(launch, (uint32_t)fake_draw(launch->lane_count));
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= launch->lanes[i].done == lane_at(launch, i)->task_count;
    if (over && launch->entered && reached(launch, g->exit_wait0, g->exit_waits)) {
        stamp(launch, g->trace_tasks, 1);
        if (same_meeting(launch))
            g->control->run++;
        fake_launch_end(launch);
        moved = true;
    }
    return moved;
}

/* A walker that is not interpreted: it waits, posts and gives up by itself. */
bool fake_step_walk(fake_launch *launch)
{
    if (!launch->started) {
        launch->walk = gpu.walker->begin(&launch->args, launch->lane_count);
        launch->started = true;
    }
    bool moved = gpu.walker->step(launch->walk, &launch->active);
    if (!launch->active)
        gpu.walker->end(launch->walk);
    return moved;
}

const weft_cuda_wait *fake_open_wait(const fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;
    const weft_cuda_wait *first = NULL;
    for (uint32_t l = 0; launch->started && l < launch->lane_count; l++) {
        const weft_cuda_lane *list = lane_at(launch, l);
        const weft_cuda_task *t = &g->tasks[list->task0 + launch->lanes[l].done];
        if (launch->lanes[l].done == list->task_count)
            continue;
        for (uint32_t w = 0; w < t->wait_count; w++) {
            const weft_cuda_wait *wait = &g->waits[t->wait0 + w];
            if (!reached(launch, t->wait0 + w, 1) && (!first || wait->number < g->ranks_enter))
                first = wait;
        }
    }
    for (uint32_t w = 0; w < g->exit_waits && !first; w++)
        if (!reached(launch, g->exit_wait0 + w, 1))
            first = &g->waits[g->exit_wait0 + w];
    return first;
}
