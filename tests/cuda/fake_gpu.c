/* The interpreter: runs what was launched, step by step, in the order of streams and in any other. What a
 * step computes has files of its own; fake_driver.c has the driver calls. */
#include "fake_gpu.h"

#include "core/clock.h"
#include "fake_exchange.h"
#include "fake_ladder.h"
#include "fake_link.h"
#include "fake_moe.h"
#include "fake_packets.h"
#include "fake_tasks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct fake_lane {
    uint32_t loaded, done; /* tasks the loader and the consumer have finished */
    float *product;        /* of task `loaded - 1`, when it is a GEMM */
} fake_lane;

typedef enum fake_kind {
    PRODUCT,
    COLLECTIVE,
    PACKETS,
    EXCHANGE,
    EXPERTS,
    CALL,
    LINK,
    PEERS,
    GATE,
    WALK,
    LADDER
} fake_kind;

typedef struct fake_launch {
    weft_cuda_args args; /* PACKETS, EXPERTS: only what waiting needs */
    weft_cuda_packets packets;
    weft_cuda_exchange exchange;
    weft_cuda_moe moe;
    weft_cuda_moe_args call;
    weft_gpu_moe_kernel kernel;
    weft_cuda_moe_link link;
    ladder_args ladder;
    ladder_kernel step; /* LADDER */
    weft_cuda_link peers;
    fake_link_kind by; /* PEERS */
    uint64_t answered; /* by each of its CTAs in the end */
    fake_kind kind;
    weft_reduction reduction;
    uint32_t lane_count;
    bool hopper;
    void (*host)(void *argument); /* CALL: all there is */
    void *argument;
    uint64_t *runs; /* GATE */
    void *walk;     /* WALK: what `walker` began */
    CUstream stream;
    int device;
    fake_lane *lanes;
    bool started, entered, active;
    int64_t moved_ns; /* when it last made progress */
    uint32_t seen;    /* as Patience of order.cuh has it */
} fake_launch;

enum { LAUNCHES_MAX = 4096, STREAMS_MAX = 64 };

/* One GPU per process; its ranks may be threads, so a lock guards all of it. */
static struct {
    pthread_mutex_t lock;
    fake_launch launches[LAUNCHES_MAX];
    int count;
    uint64_t random;
    fake_gpu_counts counts;
    int slow_rank;
    int64_t slow_ns; /* a step of it; 0: nobody is slow */
    const fake_walker *walker;
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER, .random = 1};

void fake_gpu_seed(uint64_t seed)
{
    gpu.random = seed * 2 + 1;
}

void fake_gpu_slow(int rank, int64_t step_ns)
{
    gpu.slow_rank = rank;
    gpu.slow_ns = step_ns;
}

void fake_gpu_walk_by(const fake_walker *walker)
{
    gpu.walker = walker;
}

static uint64_t draw(uint64_t below)
{
    gpu.random ^= gpu.random << 13;
    gpu.random ^= gpu.random >> 7;
    gpu.random ^= gpu.random << 17;
    return gpu.random % below;
}

/* ---- tasks ------------------------------------------------------------------------------------------- */

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

static void post(const fake_launch *launch, uint32_t post0, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        must_reach(launch, launch->args.posts[post0 + i], false);
        __atomic_fetch_add(launch->args.posts[post0 + i], 1, __ATOMIC_RELEASE);
    }
}

static void must_reach_views(const fake_launch *launch, const weft_cuda_task *t)
{
    const weft_cuda_view *v = &launch->args.views[t->view0];
    int count = t->destinations + (t->kind == WEFT_CUDA_REDUCE ? t->sources
                                   : t->kind == WEFT_CUDA_GEMM ? 2
                                                               : 1);
    for (int i = 0; i < count; i++)
        must_reach(launch, fake_task_at(&launch->args, v[i].ptr),
                   i < t->destinations && t->flags & WEFT_CUDA_ADD);
    if (t->acc >= 0)
        must_reach(launch, v[t->acc].ptr, false);
}

void fake_gpu_repitch(const weft_cuda_repitch *copy)
{
    gpu.counts.repitched++;
    for (int64_t i = 0; i < copy->batch * copy->lines; i++) {
        uint16_t *to = (uint16_t *)copy->to + i * copy->to_ld;
        memset(to, 0, (size_t)copy->to_ld * 2);
        memcpy(to,
               (const uint16_t *)copy->from + i / copy->lines * copy->from_stride +
                   i % copy->lines * copy->from_ld,
               (size_t)copy->length * 2);
    }
}

/* ---- lanes ------------------------------------------------------------------------------------------- */

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
    if (draw(2) && load_ahead(launch, lane, list))
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
    if (launch->kind == COLLECTIVE)
        fake_task_move(&launch->args, launch->reduction, t);
    else
        fake_task_finish(&launch->args, launch->hopper, t, product);
    stamp(launch, t->plan_task, 1);
    free(product);
    __atomic_fetch_add(&launch->args.control->steps, 1, __ATOMIC_RELAXED);
    post(launch, t->post0, t->post_count);
    lane->done++;
    return true;
}

static void launch_end(fake_launch *launch)
{
    for (uint32_t l = 0; launch->started && l < launch->lane_count; l++)
        free(launch->lanes[l].product);
    if (launch->started)
        free(launch->lanes);
    launch->active = false;
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

static bool step_launch(fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;
    bool moved = false, over = true, slow = gpu.slow_ns && g->rank == gpu.slow_rank;
    if (slow && weft_clock_ns() - launch->moved_ns < gpu.slow_ns)
        return false;
    if (!launch->started) {
        launch->lanes = calloc(launch->lane_count, sizeof(*launch->lanes));
        launch->started = true;
    }
    if (!launch->entered && reached(launch, g->enter_wait0, g->enter_waits)) {
        stamp(launch, g->trace_tasks, 0);
        for (uint32_t i = 0; i < g->enter_posts; i++)
            g->posts[g->enter_post0 + i][1 + g->control->run % 2] = g->meeting;
        post(launch, g->enter_post0, g->enter_posts);
        for (int r = 0; r < g->world && g->link; r++) /* no time passes on this link */
            __atomic_fetch_add((uint64_t *)g->signals + r * WEFT_CUDA_LINE_WORDS, r != g->rank,
                               __ATOMIC_RELEASE);
        launch->entered = moved = true;
    }
    for (uint32_t i = 0; i < launch->lane_count && !(slow && moved); i++)
        moved |= step_lane(launch, (uint32_t)draw(launch->lane_count));
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= launch->lanes[i].done == lane_at(launch, i)->task_count;
    if (over && launch->entered && reached(launch, g->exit_wait0, g->exit_waits)) {
        stamp(launch, g->trace_tasks, 1);
        if (same_meeting(launch))
            g->control->run++;
        launch_end(launch);
        moved = true;
    }
    return moved;
}

/* A walker that is not interpreted: it waits, posts and gives up by itself. */
static bool step_walk(fake_launch *launch)
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

/* ---- packets ----------------------------------------------------------------------------------------- */

static bool step_cta(fake_launch *launch, uint32_t cta)
{
    fake_lane *lane = &launch->lanes[cta];
    fake_chunk chunk = fake_packets_chunk(&launch->packets, cta);

    if (!lane->loaded) {
        fake_packets_send(&launch->packets, chunk);
        lane->loaded = 1;
        return true;
    }
    int hop = (int)lane->loaded - 1;
    if (lane->done || fake_packets_await(&launch->packets, chunk, hop) >= 0)
        return false;
    fake_packets_receive(&launch->packets, chunk, hop);
    if (hop == 0 && launch->packets.results)
        lane->loaded = 2;
    else
        lane->done = 1;
    return true;
}

static bool step_packets(fake_launch *launch)
{
    bool moved = false, over = true;
    if (!launch->started) {
        launch->lanes = calloc(launch->lane_count, sizeof(*launch->lanes));
        launch->started = true;
    }
    for (uint32_t i = 0; i < launch->lane_count; i++)
        moved |= step_cta(launch, (uint32_t)draw(launch->lane_count));
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= launch->lanes[i].done;
    if (over) {
        for (uint32_t i = 0; i < launch->lane_count; i++)
            launch->packets.epochs[i * WEFT_CUDA_LINE_WORDS]++;
        launch_end(launch);
        moved = true;
    }
    return moved;
}

/* ---- sums of products as marked words ---------------------------------------------------------------- */

static bool step_exchange(fake_launch *launch)
{
    const weft_cuda_exchange *x = &launch->exchange;

    if (!launch->started) {
        launch->started = true;
        if (x->sums)
            fake_exchange_send_all(x);
        return true;
    }
    if (!launch->entered && fake_exchange_await(x) < 0) {
        fake_exchange_add_up(x);
        launch->entered = true;
        return true;
    }
    if (!launch->entered || fake_exchange_await_results(x) >= 0)
        return false;
    fake_exchange_take(x);
    x->control->run++;
    launch_end(launch);
    return true;
}

/* ---- mixture of experts -------------------------------------------------------------------------------- */

static void end_if_over(fake_launch *launch)
{
    for (uint32_t i = 0; i < launch->lane_count; i++)
        if (!launch->lanes[i].done)
            return;
    launch_end(launch);
}

/* CTAs in any order. */
static bool step_experts(fake_launch *launch)
{
    bool moved = false;
    if (!launch->started) {
        launch->lanes = calloc(launch->lane_count, sizeof(*launch->lanes));
        launch->started = true;
    }
    for (uint32_t i = 0; i < launch->lane_count; i++) {
        uint32_t cta = (uint32_t)draw(launch->lane_count);
        uint64_t round;
        if (launch->lanes[cta].done || fake_moe_awaits(&launch->moe, launch->kernel, cta, &round) >= 0)
            continue;
        fake_moe_run(&launch->moe, &launch->call, launch->kernel, cta, launch->lane_count);
        launch->lanes[cta].done = 1;
        moved = true;
    }
    end_if_over(launch);
    return moved;
}

static const int64_t LADDER_PATIENCE_NS = 60000000000;

/* CTAs in any order, as far as nothing has to be waited for. */
static bool step_ladder(fake_launch *launch)
{
    bool moved = false;
    if (!launch->started) {
        launch->lanes = calloc(launch->lane_count, sizeof(*launch->lanes));
        launch->started = true;
        fake_ladder_begin(&launch->ladder, launch->step);
    }
    if (weft_clock_ns() - launch->moved_ns > LADDER_PATIENCE_NS && launch->ladder.state)
        launch->ladder.state->lost = 1; /* as the kernels say it, so that a test ends */
    for (uint32_t i = 0; i < launch->lane_count; i++) {
        uint32_t cta = (uint32_t)draw(launch->lane_count);
        if (launch->lanes[cta].done ||
            !fake_ladder_run(&launch->ladder, launch->step, cta, launch->lane_count))
            continue;
        launch->lanes[cta].done = 1;
        moved = true;
    }
    end_if_over(launch);
    return moved;
}

static bool step_call(fake_launch *launch)
{
    launch->host(launch->argument);
    launch_end(launch);
    return true;
}

/* The first rank whose gate has not begun; -1: all have. */
static int gate_awaits(const fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;

    for (int r = 0; r < g->world; r++)
        if (r != g->rank &&
            __atomic_load_n(&g->signals[r * WEFT_CUDA_LINE_WORDS], __ATOMIC_ACQUIRE) <= *launch->runs)
            return r;
    return -1;
}

static bool step_gate(fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;

    if (!launch->started) {
        post(launch, g->enter_post0, g->enter_posts);
        return launch->started = true;
    }
    if (gate_awaits(launch) >= 0)
        return false;
    ++*launch->runs;
    launch_end(launch);
    return true;
}

/* The posts of ranks that do not run; no time passes on this link. */
static bool step_link(fake_launch *launch)
{
    const weft_cuda_moe_link *l = &launch->link;
    if (l->state->round[l->phase] <= *l->runs)
        return false;
    for (int r = 0; r < l->world; r++)
        if (r != l->rank)
            l->signals[r * WEFT_CUDA_LINE_WORDS] += l->posts;
    ++*l->runs;
    launch_end(launch);
    return true;
}

/* The peers of a rank in the loop, their CTAs in any order. */
static bool step_peers(fake_launch *launch)
{
    bool moved = false, over = true;
    for (uint32_t i = 0; i < launch->lane_count; i++) {
        uint32_t cta = (uint32_t)draw(launch->lane_count);
        if (fake_link_answered(&launch->peers, cta) < launch->answered)
            moved |= fake_link_step(&launch->peers, launch->by, cta, launch->lane_count);
    }
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= fake_link_answered(&launch->peers, i) == launch->answered;
    if (over)
        launch_end(launch);
    return moved || over;
}

/* Whom a launch of packets or of experts waits for; -1: nobody. */
static int awaited(const fake_launch *launch, uint64_t *round)
{
    const weft_cuda_packets *p = &launch->packets;
    *round = launch->kind == PACKETS ? p->epochs[0] : 0;
    if (launch->kind == GATE) {
        *round = *launch->runs;
        return gate_awaits(launch);
    }
    if (launch->kind == EXCHANGE) {
        *round = launch->exchange.control->run;
        return launch->entered ? fake_exchange_await_results(&launch->exchange)
                               : fake_exchange_await(&launch->exchange);
    }
    for (uint32_t i = 0; launch->kind == EXPERTS && launch->started && i < launch->lane_count; i++)
        if (!launch->lanes[i].done)
            return fake_moe_awaits(&launch->moe, launch->kernel, i, round);
    for (uint32_t i = 0; launch->kind == PACKETS && launch->started && i < launch->lane_count; i++) {
        const fake_lane *lane = &launch->lanes[i];
        int from = lane->loaded ? fake_packets_await(p, fake_packets_chunk(p, i), (int)lane->loaded - 1) : -1;
        if (!lane->done && from >= 0)
            return from;
    }
    return -1;
}

/* The first wait that does not hold, ENTER signals first; NULL when there is none. */
static const weft_cuda_wait *open_wait(const fake_launch *launch)
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

/* As Patience of order.cuh: a wait for progress lasts while tasks of any rank end. */
static bool loses_patience(fake_launch *launch, bool enters, int64_t now, int64_t limit)
{
    const weft_cuda_args *g = &launch->args;
    bool planned = launch->kind == PRODUCT || launch->kind == COLLECTIVE;
    uint32_t steps = 1;
    if (now - launch->moved_ns <= limit / 2) {
        launch->seen = 0;
        return false;
    }
    for (int r = 0; r < g->world && planned && !enters; r++)
        steps += __atomic_load_n(&g->peers[r]->steps, __ATOMIC_RELAXED);
    if (!launch->seen)
        launch->seen = steps;
    if (now - launch->moved_ns <= limit || launch->seen == steps)
        return now - launch->moved_ns > limit;
    launch->moved_ns = now;
    launch->seen = 0;
    return false;
}

/* Like the kernels: an abort word ends a launch, and so does a wait that lasts too long. */
static void give_up(fake_launch *launch, int64_t now)
{
    weft_cuda_args *g = &launch->args;
    uint64_t round = 0;
    bool planned = launch->kind == PRODUCT || launch->kind == COLLECTIVE;
    weft_cuda_wait packet = {.number = planned ? 0 : (uint32_t)awaited(launch, &round)};
    const weft_cuda_wait *wait = planned ? open_wait(launch) : packet.number == UINT32_MAX ? NULL : &packet;
    uint64_t limit = wait && wait->number < g->ranks_enter ? g->enter_deadline_ns : g->progress_deadline_ns;
    if (g->stop && __atomic_load_n(g->stop, __ATOMIC_ACQUIRE))
        __atomic_store_n(&g->control->abort, 1, __ATOMIC_RELEASE);
    if (!__atomic_load_n(&g->control->abort, __ATOMIC_ACQUIRE)) {
        if (!wait || !loses_patience(launch, wait->number < g->ranks_enter, now, (int64_t)limit))
            return;
        g->control->record = (weft_cuda_record){.set = 2,
                                                .signal = wait->number,
                                                .plan_task = launch->kind == EXPERTS ? launch->kernel : 0,
                                                .run = planned ? g->control->run : round};
        for (int r = 0; r < g->world; r++)
            __atomic_store_n(launch->kind == EXPERTS
                                 ? &((weft_cuda_control *)((char *)launch->moe.control +
                                                           (r - launch->moe.rank) * launch->moe.stride))
                                        ->abort
                                 : &g->peers[r]->abort,
                             1, __ATOMIC_RELEASE);
    }
    launch_end(launch);
}

/* One round over all streams, each in order; whether `stream` still has something to do. */
static bool advance(CUstream stream, bool *moved)
{
    bool busy[STREAMS_MAX] = {false};
    int kept = 0;
    *moved = false;
    for (int i = 0; i < gpu.count; i++) {
        fake_launch *launch = &gpu.launches[i];
        size_t at = (size_t)(uintptr_t)launch->stream;
        int64_t now = weft_clock_ns();
        if (busy[at])
            continue;
        busy[at] = true;
        if (!launch->moved_ns)
            launch->moved_ns = now;
        if (launch->kind == CALL       ? step_call(launch)
            : launch->kind == PACKETS  ? step_packets(launch)
            : launch->kind == EXCHANGE ? step_exchange(launch)
            : launch->kind == EXPERTS  ? step_experts(launch)
            : launch->kind == LINK     ? step_link(launch)
            : launch->kind == PEERS    ? step_peers(launch)
            : launch->kind == GATE     ? step_gate(launch)
            : launch->kind == WALK     ? step_walk(launch)
            : launch->kind == LADDER   ? step_ladder(launch)
                                       : step_launch(launch)) {
            launch->moved_ns = now;
            *moved = true;
        } else if (launch->kind != LINK && launch->kind != PEERS && launch->kind != WALK &&
                   launch->kind != LADDER) {
            give_up(launch, now);
        }
    }
    for (int i = 0; i < gpu.count; i++)
        if (gpu.launches[i].active)
            gpu.launches[kept++] = gpu.launches[i];
    gpu.count = kept;
    for (int i = 0; i < gpu.count; i++)
        if (gpu.launches[i].stream == stream)
            return true;
    return false;
}

bool fake_gpu_busy(CUstream stream)
{
    bool moved, busy;
    pthread_mutex_lock(&gpu.lock);
    busy = advance(stream, &moved);
    pthread_mutex_unlock(&gpu.lock);
    return busy;
}

void fake_gpu_finish(CUstream stream)
{
    for (bool moved = true, busy = true; busy;) {
        pthread_mutex_lock(&gpu.lock);
        busy = advance(stream, &moved);
        pthread_mutex_unlock(&gpu.lock);
        if (busy && !moved)
            nanosleep(&(struct timespec){0, 20000}, NULL);
    }
}

bool fake_gpu_settle(int64_t limit_ns)
{
    for (int64_t begun = weft_clock_ns(); weft_clock_ns() - begun < limit_ns;) {
        bool moved, running;

        pthread_mutex_lock(&gpu.lock);
        advance(NULL, &moved);
        running = gpu.count > 0;
        pthread_mutex_unlock(&gpu.lock);
        if (!running)
            return true;
        if (!moved)
            nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    return false;
}

static bool enqueue(const fake_launch *launch)
{
    bool room;
    pthread_mutex_lock(&gpu.lock);
    room = gpu.count < LAUNCHES_MAX;
    gpu.counts.collectives += launch->kind == COLLECTIVE;
    gpu.counts.packets += launch->kind == PACKETS;
    if (room) {
        gpu.launches[gpu.count] = *launch;
        gpu.launches[gpu.count++].device = fake_gpu_current();
    }
    pthread_mutex_unlock(&gpu.lock);
    return room;
}

bool fake_gpu_launch(const weft_cuda_args *args, uint32_t lanes, bool hopper, bool early, CUstream stream)
{
    fake_launch launch = {.args = *args,
                          .lane_count = lanes + args->copy_count,
                          .hopper = hopper,
                          .kind = gpu.walker && !hopper ? WALK : PRODUCT,
                          .stream = stream,
                          .active = true};
    pthread_mutex_lock(&gpu.lock);
    gpu.counts.early += early;
    pthread_mutex_unlock(&gpu.lock);
    return enqueue(&launch);
}

bool fake_gpu_exchange(const weft_cuda_exchange *exchange, CUstream stream)
{
    fake_launch launch = {.exchange = *exchange, .kind = EXCHANGE, .stream = stream, .active = true};

    pthread_mutex_lock(&gpu.lock);
    gpu.counts.exchanges++;
    pthread_mutex_unlock(&gpu.lock);
    launch.args.control = exchange->control;
    launch.args.peers = exchange->controls;
    launch.args.world = exchange->world;
    launch.args.stop = exchange->stop;
    launch.args.enter_deadline_ns = exchange->deadline_ns;
    launch.args.ranks_enter = (uint32_t)exchange->world;
    return enqueue(&launch);
}

bool fake_gpu_splitk(const weft_cuda_splitk *args, const weft_cuda_exchange *exchange, int tile, int form,
                     uint32_t ctas, uint32_t cluster, bool early, CUstream stream)
{
    static const int shapes[][2] = {
#define SHAPE(tokens, cols, ctas) {tokens, cols},
        WEFT_CUDA_SPLITK_TILES(SHAPE)
#undef SHAPE
    };
    fake_splitk *f = malloc(sizeof(*f));

    if (!f)
        return false;
    *f = (fake_splitk){.args = *args,
                       .sends = exchange != NULL,
                       .tile_tokens = shapes[tile][0],
                       .tile_cols = shapes[tile][1],
                       .form = form,
                       .ctas = ctas,
                       .cluster = cluster};
    memcpy(&f->weights, &args->weights, sizeof(f->weights));
    memcpy(&f->tokens, &args->tokens, sizeof(f->tokens));
    if (exchange)
        f->exchange = *exchange;
    pthread_mutex_lock(&gpu.lock);
    gpu.counts.splitk++;
    gpu.counts.early += early;
    pthread_mutex_unlock(&gpu.lock);
    /* what waits in the same kernel does so behind it */
    return fake_gpu_call(fake_splitk_run, f, stream) &&
           (!exchange || !exchange->receives || fake_gpu_exchange(exchange, stream));
}

bool fake_gpu_call(void (*call)(void *argument), void *argument, CUstream stream)
{
    fake_launch launch = {.kind = CALL, .host = call, .argument = argument, .stream = stream, .active = true};
    return enqueue(&launch);
}

bool fake_gpu_sums(const weft_cuda_args *args, uint32_t lanes, CUstream stream)
{
    pthread_mutex_lock(&gpu.lock);
    gpu.counts.sums++;
    pthread_mutex_unlock(&gpu.lock);
    return fake_gpu_launch(args, lanes, false, false, stream);
}

bool fake_gpu_gate(const weft_cuda_args *args, uint64_t *runs, CUstream stream)
{
    fake_launch launch = {.args = *args, .kind = GATE, .runs = runs, .stream = stream, .active = true};
    pthread_mutex_lock(&gpu.lock);
    gpu.counts.gates++;
    pthread_mutex_unlock(&gpu.lock);
    return enqueue(&launch);
}

bool fake_gpu_collective(const weft_cuda_args *args, uint32_t lanes, int32_t reduction, CUstream stream)
{
    fake_launch launch = {.args = *args,
                          .kind = COLLECTIVE,
                          .reduction = (weft_reduction)reduction,
                          .lane_count = lanes,
                          .stream = stream,
                          .active = true};
    return enqueue(&launch);
}

bool fake_gpu_packets(const weft_cuda_packets *packets, uint32_t ctas, CUstream stream)
{
    fake_launch launch = {.packets = *packets,
                          .kind = PACKETS,
                          .reduction = (weft_reduction)packets->reduction,
                          .lane_count = ctas,
                          .stream = stream,
                          .active = true};
    launch.args.control = packets->control;
    launch.args.peers = packets->controls;
    launch.args.world = packets->world;
    launch.args.stop = packets->stop;
    launch.args.enter_deadline_ns = packets->deadline_ns;
    launch.args.ranks_enter = (uint32_t)packets->world;
    return enqueue(&launch);
}

bool fake_gpu_moe(const weft_cuda_moe *lane, const weft_cuda_moe_args *call, weft_gpu_moe_kernel kernel,
                  uint32_t ctas, CUstream stream)
{
    fake_launch launch = {.moe = *lane,
                          .call = *call,
                          .kernel = kernel,
                          .kind = EXPERTS,
                          .lane_count = ctas,
                          .stream = stream,
                          .active = true};
    launch.args.control = lane->control;
    launch.args.world = lane->world;
    launch.args.stop = lane->stop;
    launch.args.enter_deadline_ns = lane->deadline_ns;
    launch.args.ranks_enter = (uint32_t)lane->world;
    return enqueue(&launch);
}

bool fake_gpu_moe_link(const weft_cuda_moe_link *link, CUstream stream)
{
    fake_launch launch = {.link = *link, .kind = LINK, .stream = stream, .active = true};
    return enqueue(&launch);
}

bool fake_gpu_ladder(const ladder_args *args, ladder_kernel kernel, uint32_t ctas, CUstream stream)
{
    fake_launch launch = {.ladder = *args,
                          .step = kernel,
                          .kind = LADDER,
                          .lane_count = ctas,
                          .stream = stream,
                          .active = true};
    return enqueue(&launch);
}

bool fake_gpu_peers(const weft_cuda_link *link, fake_link_kind by, uint32_t ctas, CUstream stream)
{
    fake_launch launch = {.peers = *link,
                          .by = by,
                          .answered = fake_link_answered(link, 0) + link->runs,
                          .kind = PEERS,
                          .lane_count = ctas,
                          .stream = stream,
                          .active = true};
    *link->up = ctas;
    return enqueue(&launch);
}

fake_gpu_counts fake_gpu_take_counts(void)
{
    fake_gpu_counts counts = gpu.counts;
    gpu.counts = (fake_gpu_counts){0};
    return counts;
}
