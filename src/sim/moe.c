#include "sim/moe.h"

#include "core/dtype.h"

#include <math.h>
#include <string.h>

/* Bytes of a row: of those that pass the link, and of those that pass memory beside it. Dispatch reads a
 * token, and its receiver reads what came and lays it out; combine reads a result, and its receiver reads it
 * to add it up. */
typedef struct row_bytes {
    double link, memory;
} row_bytes;

static row_bytes result_row(const weft_moe_shape *s)
{
    double given = (double)s->hidden * (double)weft_dtype_size(s->dtype);

    return (row_bytes){given, 2 * given};
}

static row_bytes token_row(const weft_moe_shape *s)
{
    double given = (double)s->hidden * (double)weft_dtype_size(s->dtype),
           wire = s->fp8 ? (double)s->hidden + 4 * ceil((double)s->hidden / 128) : given;

    return (row_bytes){wire, 2 * given + wire};
}

/* Ranks that the first `topk` experts lie on. */
static double hot_ranks(const weft_moe_shape *s, double per_rank)
{
    return fmin(s->ranks, ceil(s->topk / per_rank));
}

/* That none of a token's experts lies on a given rank. */
static double missed(const weft_moe_shape *s, double per_rank)
{
    double none = 1;

    for (int i = 0; i < s->topk && none > 0; i++)
        none *= fmax(0, (s->experts - per_rank - i) / (s->experts - i));
    return none;
}

typedef struct traffic {
    double in, out; /* rows that the busiest receiver gets, and a sender sends, to or from all ranks */
    double inside, outside; /* of the larger of these: with a full node's others, and with those elsewhere
                               from the node that has the fewest ranks */
} traffic;

/* `per_token`: rows of a random token in all, `hot`: rows of one of those that all want the same. */
static traffic rows_of(const weft_machine *machine, const weft_moe_shape *s, double per_token, double hot,
                       double hot_on_rank)
{
    double near = machine->ranks_per_node > 0 ? fmin(machine->ranks_per_node, s->ranks) : s->ranks;
    double left = fmod(s->ranks, near), fewest = left > 0 ? left : near; /* ranks of the last node */
    double most;
    traffic t;

    t.in = (double)s->tokens * s->ranks * ((1 - s->skew) * per_token / s->ranks + s->skew * hot_on_rank);
    t.out = (double)s->tokens * ((1 - s->skew) * per_token + s->skew * hot);
    most = fmax(t.in, t.out);
    t.inside = most * (near - 1) / s->ranks;
    t.outside = most * (s->ranks - fewest) / s->ranks;
    return t;
}

/* Moving rows there, whichever way, `hops` latencies after one another; what passes memory meanwhile is not
 * hidden. */
static double move_us(const weft_machine *machine, row_bytes row, const traffic *t, int hops, double launch,
                      weft_moe_time *time)
{
    double links = machine->link == WEFT_LINK_MESH ? fmax(1, machine->ranks_per_node - 1) : 1, link, memory;

    if (machine->kind == WEFT_MACHINE_CPU) {
        double rate = weft_curve_rate(&machine->copy_push, fmax(t->in, t->out) * row.link, true);

        memory = fmax(t->in, t->out) * (row.memory - row.link) / rate * 1e-3;
        link = t->outside > 0 ? t->outside * row.link / machine->network_gbs * 1e-3 : 0;
    } else {
        link = t->inside * row.link / (machine->link_gbs * links) * 1e-3;
        if (t->outside > 0)
            link = fmax(link, t->outside * row.link / machine->network_gbs * 1e-3);
        memory = fmax(t->in, t->out) * row.memory / machine->memory_gbs * 1e-3;
    }
    time->link_us += link;
    time->memory_us += memory;
    return launch + hops * (t->outside > 0 ? machine->network_us : machine->flag_us) + 2 * machine->copy_us +
           link + memory;
}

/* The grouped GEMM of the busiest rank: gate, up and down of every expert it has. */
static double experts_us(const weft_machine *machine, const weft_moe_shape *s, double per_rank, double launch)
{
    double mean = (1 - s->skew) * (double)s->tokens * s->ranks * s->topk / s->experts;
    double busy = s->skew * (double)s->tokens * s->ranks, hot = s->skew > 0 ? fmin(s->topk, per_rank) : 0;
    double units =
        machine->kind == WEFT_MACHINE_CPU
            ? fmax(1, machine->units / fmax(1, machine->ranks_per_node ? machine->ranks_per_node : s->ranks))
            : machine->units;
    double tile_m = machine->tile_m > 0 ? (double)machine->tile_m : (double)machine->step_m,
           tile_n = machine->tile_n > 0 ? (double)machine->tile_n : (double)machine->step_n;
    double inter = (double)s->inter, hidden = (double)s->hidden, rate = machine->gflops[s->dtype];
    double up = ceil(2 * inter / tile_n), down = ceil(hidden / tile_n), rows, wide, weights, compute;

    rows = hot * ceil((mean + busy) / tile_m) + (per_rank - hot) * ceil(mean / tile_m); /* of tiles */
    wide = fmin(tile_m, ceil((mean + busy) / (double)machine->step_m) * (double)machine->step_m);
    compute = (ceil(rows * up / units) * 2 * wide * tile_n * hidden +
               ceil(rows * down / units) * 2 * wide * tile_n * inter) /
              rate * 1e-3;
    weights = per_rank * 3 * inter * hidden * (double)weft_dtype_size(s->dtype);
    if (machine->kind == WEFT_MACHINE_CPU)
        return 2 * launch + fmax(compute, weights / (machine->stream_gbs[s->dtype] * units) * 1e-3);
    return 2 * launch + fmax(compute, weights / machine->memory_gbs * 1e-3);
}

static weft_status check_shape(const weft_machine *machine, const weft_moe_shape *s, weft_error_text *error)
{
    int64_t most = (int64_t)machine->nodes * machine->ranks_per_node;

    if (s->topk > s->experts)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "a token cannot have %d of %d experts", s->topk,
                              s->experts);
    if (machine->ranks_per_node > 0 && s->ranks > most)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%d ranks do not fit on %s, which has %lld", s->ranks,
                              machine->name, (long long)most);
    if (s->inter > 0 && machine->gflops[s->dtype] <= 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s has no rate for %s products", machine->name,
                              weft_dtype_name(s->dtype));
    return WEFT_OK;
}

weft_status weft_sim_moe(const weft_machine *machine, const weft_moe_shape *s, bool graph,
                         weft_moe_time *time, weft_error_text *error)
{
    double per_rank = (double)s->experts / s->ranks, launch, distinct, hot;
    weft_status status = check_shape(machine, s, error);
    traffic there, back;

    if (status != WEFT_OK)
        return status;
    memset(time, 0, sizeof(*time));
    launch =
        graph && machine->kind == WEFT_MACHINE_GPU ? machine->launch_graph_us : machine->launch_unfused_us;
    distinct = s->ranks * (1 - missed(s, per_rank));
    hot = hot_ranks(s, per_rank);
    there = rows_of(machine, s, distinct, hot, 1);
    back = s->reduced ? there : rows_of(machine, s, s->topk, s->topk, fmin(s->topk, per_rank));
    /* Counts are told, then rows follow; on the way back both ends know them. */
    time->dispatch_us = move_us(machine, token_row(s), &there, 2, launch, time);
    time->combine_us = move_us(machine, result_row(s), &back, 1, launch, time);
    time->experts_us = s->inter > 0 ? experts_us(machine, s, per_rank, launch) : 0;
    time->rows = there.in;
    time->link_bytes = there.inside * token_row(s).link;
    time->network_bytes = there.outside * token_row(s).link;
    return WEFT_OK;
}
