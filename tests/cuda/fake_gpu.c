/* The interpreter: runs what was launched, step by step, in the order of streams and in any other.
 * fake_driver.c has the driver calls. */
#include "fake_interpreter.h"

#include "core/clock.h"
#include "fake_exchange.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { QUEUE = 1024 }; /* of a stream, as a driver has it */
static const int64_t STUCK_NS = 20000000000;

fake_interpreter gpu = {.lock = PTHREAD_MUTEX_INITIALIZER, .random = 1};

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

uint64_t fake_draw(uint64_t below)
{
    gpu.random ^= gpu.random << 13;
    gpu.random ^= gpu.random >> 7;
    gpu.random ^= gpu.random << 17;
    return gpu.random % below;
}

void fake_launch_start(fake_launch *launch)
{
    if (launch->started)
        return;
    launch->lanes = calloc(launch->lane_count, sizeof(*launch->lanes));
    launch->started = true;
}

void fake_launch_end(fake_launch *launch)
{
    for (uint32_t l = 0; launch->started && l < launch->lane_count; l++)
        free(launch->lanes[l].product);
    if (launch->started)
        free(launch->lanes);
    launch->active = false;
}

bool fake_step_call(fake_launch *launch)
{
    launch->host(launch->argument);
    fake_launch_end(launch);
    return true;
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
    weft_cuda_wait packet = {.number = planned ? 0 : (uint32_t)fake_awaited(launch, &round)};
    const weft_cuda_wait *wait = planned                       ? fake_open_wait(launch)
                                 : packet.number == UINT32_MAX ? NULL
                                                               : &packet;
    uint64_t limit = wait && wait->number < g->ranks_enter ? g->enter_deadline_ns : g->progress_deadline_ns;
    if (g->stop && __atomic_load_n(g->stop, __ATOMIC_ACQUIRE))
        __atomic_store_n(&g->control->abort, 1, __ATOMIC_RELEASE);
    if (!__atomic_load_n(&g->control->abort, __ATOMIC_ACQUIRE)) {
        if (!wait || !loses_patience(launch, wait->number < g->ranks_enter, now, (int64_t)limit))
            return;
        g->control->record =
            (weft_cuda_record){.set = 2,
                               .signal = wait->number,
                               .plan_task = launch->kind == EXPERTS    ? launch->kernel
                                            : launch->kind == CHANNELS ? WEFT_CUDA_CHANNEL_LATE
                                                                       : 0,
                               .run = planned ? g->control->run : round};
        for (int r = 0; r < g->world; r++)
            __atomic_store_n(launch->kind == CHANNELS
                                 ? &weft_cuda_channel_control(&launch->channels, r)->abort
                             : launch->kind == EXPERTS
                                 ? &((weft_cuda_control *)((char *)launch->moe.control +
                                                           (r - launch->moe.rank) * launch->moe.stride))
                                        ->abort
                                 : &g->peers[r]->abort,
                             1, __ATOMIC_RELEASE);
    }
    fake_launch_end(launch);
}

/* By kind. */
static bool (*const steps[])(fake_launch *launch) = {
    [PRODUCT] = fake_step_plan,      [COLLECTIVE] = fake_step_plan,   [PACKETS] = fake_step_packets,
    [CHANNELS] = fake_step_channels, [EXCHANGE] = fake_step_exchange, [EXPERTS] = fake_step_experts,
    [CALL] = fake_step_call,         [LINK] = fake_step_link,         [PEERS] = fake_step_peers,
    [GATE] = fake_step_gate,         [WALK] = fake_step_walk,         [LADDER] = fake_step_ladder,
};

/* The kinds that end by themselves, whatever they wait for. */
static const unsigned unwatched = 1u << LINK | 1u << PEERS | 1u << WALK | 1u << LADDER;

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
        if (steps[launch->kind](launch)) {
            launch->moved_ns = now;
            *moved = true;
        } else if (!(1u << launch->kind & unwatched)) {
            give_up(launch, now);
        }
    }
    for (int i = 0; i < gpu.count; i++)
        if (gpu.launches[i].active) {
            if (kept != i)
                gpu.launches[kept] = gpu.launches[i];
            kept++;
        }
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

/* Whether it has been put behind what its stream has, which is not more than a driver's queue holds. */
static bool put(const fake_launch *launch)
{
    int before = 0;

    for (int i = 0; i < gpu.count; i++)
        before += gpu.launches[i].stream == launch->stream;
    if (before >= QUEUE || gpu.count == LAUNCHES_MAX)
        return false;
    gpu.counts.collectives += launch->kind == COLLECTIVE;
    gpu.counts.packets += launch->kind == PACKETS;
    gpu.launches[gpu.count] = *launch;
    gpu.launches[gpu.count++].device = fake_gpu_current();
    return true;
}

/* Waits for room, as a driver does; false when nothing moves any more. */
static bool enqueue(const fake_launch *launch)
{
    for (int64_t moved_ns = weft_clock_ns();;) {
        bool moved = false, room;

        pthread_mutex_lock(&gpu.lock);
        room = put(launch);
        if (!room)
            advance(launch->stream, &moved);
        pthread_mutex_unlock(&gpu.lock);
        if (room)
            return true;
        if (moved)
            moved_ns = weft_clock_ns();
        else if (weft_clock_ns() - moved_ns > STUCK_NS)
            return false;
        else
            nanosleep(&(struct timespec){0, 20000}, NULL);
    }
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
                     bool sent, uint32_t ctas, uint32_t cluster, bool early, CUstream stream)
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
                       .sent = sent,
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

bool fake_gpu_channels(const weft_cuda_channels *channels, uint32_t ctas, CUstream stream)
{
    fake_launch launch = {
        .channels = *channels, .kind = CHANNELS, .lane_count = ctas, .stream = stream, .active = true};
    launch.args.control = weft_cuda_channel_control(channels, channels->rank);
    launch.args.world = channels->world;
    launch.args.stop = channels->stop;
    launch.args.enter_deadline_ns = channels->enter_deadline_ns;
    launch.args.ranks_enter = (uint32_t)channels->world;
    return enqueue(&launch);
}

bool fake_gpu_moe(const weft_cuda_moe *lane, const weft_cuda_moe_args *call, weft_device_moe_kernel kernel,
                  uint32_t ctas, CUstream stream)
{
    fake_launch launch = {.moe = *lane,
                          .call = *call,
                          .kernel = kernel,
                          .kind = EXPERTS,
                          .lane_count = ctas,
                          .stream = stream,
                          .active = true};
    pthread_mutex_lock(&gpu.lock);
    gpu.counts.moves += kernel == WEFT_DEVICE_MOE_MOVE;
    pthread_mutex_unlock(&gpu.lock);
    launch.args.control = lane->control;
    launch.args.world = lane->world;
    launch.args.stop = lane->stop;
    launch.args.enter_deadline_ns = lane->deadline_ns;
    launch.args.ranks_enter = (uint32_t)lane->world;
    return enqueue(&launch);
}

static void repitch(void *argument)
{
    weft_cuda_repitch *copy = argument;

    for (int64_t i = 0; i < copy->batch * copy->lines; i++) {
        char *to = (char *)copy->to + i * copy->to_ld;
        const char *from = (const char *)copy->from + i / copy->lines * copy->from_stride;

        memset(to, 0, (size_t)copy->to_ld);
        for (int64_t j = 0; j < copy->length && copy->turned; j++)
            to[j] = from[j * copy->from_ld + i % copy->lines];
        if (!copy->turned)
            memcpy(to, from + i % copy->lines * copy->from_ld, (size_t)copy->length);
    }
    free(copy);
}

bool fake_gpu_repitch(const weft_cuda_repitch *copy, CUstream stream)
{
    weft_cuda_repitch *own = malloc(sizeof(*own));

    pthread_mutex_lock(&gpu.lock);
    gpu.counts.repitched++;
    pthread_mutex_unlock(&gpu.lock);
    if (!own)
        return false;
    *own = *copy;
    return fake_gpu_call(repitch, own, stream);
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
