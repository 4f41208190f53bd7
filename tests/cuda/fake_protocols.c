/* Kernels with a protocol of their own: packets, exchanged sums, mixture of experts, gates, and what stands
 * for peers over a link. What a step computes has files of its own. */
#include "fake_interpreter.h"

#include "core/clock.h"
#include "fake_exchange.h"
#include "fake_ladder.h"
#include "fake_link.h"
#include "fake_moe.h"
#include "fake_packets.h"

#include <stdlib.h>

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

bool fake_step_packets(fake_launch *launch)
{
    bool moved = false, over = true;
    fake_launch_start(launch);
    for (uint32_t i = 0; i < launch->lane_count; i++)
        moved |= step_cta(launch, (uint32_t)fake_draw(launch->lane_count));
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= launch->lanes[i].done;
    if (over) {
        for (uint32_t i = 0; i < launch->lane_count; i++)
            launch->packets.epochs[i * WEFT_CUDA_LINE_WORDS]++;
        fake_launch_end(launch);
        moved = true;
    }
    return moved;
}

/* ---- collectives with counts, and messages ------------------------------------------------------------ */

bool fake_step_channels(fake_launch *launch)
{
    bool moved = false, over = true;
    fake_launch_start(launch);
    for (uint32_t i = 0; i < launch->lane_count && !launch->args.control->abort; i++) {
        uint32_t cta = (uint32_t)fake_draw(launch->lane_count);
        bool done = false;
        if (launch->lanes[cta].done)
            continue;
        moved |=
            fake_channels_step(&launch->channels, cta, launch->lane_count, &launch->lanes[cta].at, &done);
        launch->lanes[cta].done = done;
    }
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= launch->lanes[i].done;
    if (over)
        fake_launch_end(launch);
    return moved;
}

/* ---- sums of products as marked words ---------------------------------------------------------------- */

bool fake_step_exchange(fake_launch *launch)
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
    fake_launch_end(launch);
    return true;
}

/* ---- mixture of experts -------------------------------------------------------------------------------- */

static void end_if_over(fake_launch *launch)
{
    for (uint32_t i = 0; i < launch->lane_count; i++)
        if (!launch->lanes[i].done)
            return;
    fake_launch_end(launch);
}

/* CTAs in any order. */
bool fake_step_experts(fake_launch *launch)
{
    bool moved = false;
    fake_launch_start(launch);
    for (uint32_t i = 0; i < launch->lane_count; i++) {
        uint32_t cta = (uint32_t)fake_draw(launch->lane_count);
        uint64_t round;
        if (launch->kernel == WEFT_DEVICE_MOE_MOVE && !launch->lanes[cta].loaded) {
            fake_moe_move(&launch->moe, &launch->call, cta);
            launch->lanes[cta].loaded = 1;
            moved = true;
        }
        if (launch->lanes[cta].done ||
            fake_moe_awaits(&launch->moe, &launch->call, launch->kernel, cta, &round) >= 0)
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
bool fake_step_ladder(fake_launch *launch)
{
    bool moved = false;
    if (!launch->started)
        fake_ladder_begin(&launch->ladder, launch->step);
    fake_launch_start(launch);
    if (weft_clock_ns() - launch->moved_ns > LADDER_PATIENCE_NS && launch->ladder.state)
        launch->ladder.state->lost = 1; /* as the kernels say it, so that a test ends */
    for (uint32_t i = 0; i < launch->lane_count; i++) {
        uint32_t cta = (uint32_t)fake_draw(launch->lane_count);
        if (launch->lanes[cta].done ||
            !fake_ladder_run(&launch->ladder, launch->step, cta, launch->lane_count))
            continue;
        launch->lanes[cta].done = 1;
        moved = true;
    }
    end_if_over(launch);
    return moved;
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

bool fake_step_gate(fake_launch *launch)
{
    const weft_cuda_args *g = &launch->args;

    if (!launch->started) {
        fake_post(launch, g->enter_post0, g->enter_posts);
        return launch->started = true;
    }
    if (gate_awaits(launch) >= 0)
        return false;
    ++*launch->runs;
    fake_launch_end(launch);
    return true;
}

/* The posts of ranks that do not run; no time passes on this link. */
bool fake_step_link(fake_launch *launch)
{
    const weft_cuda_moe_link *l = &launch->link;
    if (l->state->round[l->phase] <= *l->runs)
        return false;
    for (int r = 0; r < l->world; r++)
        if (r != l->rank)
            l->signals[r * WEFT_CUDA_LINE_WORDS] += l->posts;
    ++*l->runs;
    fake_launch_end(launch);
    return true;
}

/* The peers of a rank in the loop, their CTAs in any order. */
bool fake_step_peers(fake_launch *launch)
{
    bool moved = false, over = true;
    for (uint32_t i = 0; i < launch->lane_count; i++) {
        uint32_t cta = (uint32_t)fake_draw(launch->lane_count);
        if (fake_link_answered(&launch->peers, cta) < launch->answered)
            moved |= fake_link_step(&launch->peers, launch->by, cta, launch->lane_count);
    }
    for (uint32_t i = 0; i < launch->lane_count; i++)
        over &= fake_link_answered(&launch->peers, i) == launch->answered;
    if (over)
        fake_launch_end(launch);
    return moved || over;
}

int fake_awaited(const fake_launch *launch, uint64_t *round)
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
            return fake_moe_awaits(&launch->moe, &launch->call, launch->kernel, i, round);
    for (uint32_t i = 0; launch->kind == CHANNELS && launch->started && i < launch->lane_count; i++) {
        const fake_lane *lane = &launch->lanes[i];
        int peer = lane->done ? -1 : fake_channels_await(&launch->channels, i, launch->lane_count, &lane->at);
        *round = launch->channels.call;
        if (peer >= 0)
            return peer;
    }
    for (uint32_t i = 0; launch->kind == PACKETS && launch->started && i < launch->lane_count; i++) {
        const fake_lane *lane = &launch->lanes[i];
        int from = lane->loaded ? fake_packets_await(p, fake_packets_chunk(p, i), (int)lane->loaded - 1) : -1;
        if (!lane->done && from >= 0)
            return from;
    }
    return -1;
}
