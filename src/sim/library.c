#include "sim/library.h"

#include "core/dtype.h"
#include "core/round.h"

#include <math.h>

/*
 * A protocol of a ring: its start, a step to a neighbour on the same node or the next one, and its share of
 * the ring's rate. From NCCL's tuning table (src/graph/tuning.cc of its public source: base and hardware
 * latencies of rings). LL sends a flag with every word, Simple with every chunk, LL128 with every 128 bytes,
 * which must then arrive whole: no network promises that.
 */
typedef struct protocol {
    double start_us, step_us, network_step_us, share;
} protocol;

static const protocol protocols[] = {
    {6.6, 0.6, 2.7, 0.5},
    {14.0, 1.9, 0, 120.0 / 128},
    {8.4, 3.4, 14.0, 1},
};

enum { PROTOCOLS = sizeof(protocols) / sizeof(protocols[0]) };

typedef struct place {
    double ranks, near, nodes; /* ranks in all, ranks of a node, nodes */
    double rate;               /* of a ring through all of them, bytes a nanosecond */
} place;

static place place_of(const weft_machine *machine, int world)
{
    place p = {.ranks = world};
    double links;

    p.near = machine->ranks_per_node > 0 ? fmin(machine->ranks_per_node, world) : world;
    p.nodes = ceil(p.ranks / p.near);
    links = machine->link == WEFT_LINK_MESH ? p.near - 1 : machine->link == WEFT_LINK_RING ? 2 : 1;
    p.rate = machine->library_gbs > 0 ? machine->library_gbs : machine->link_gbs * fmax(1, links);
    if (machine->link == WEFT_LINK_MESH && p.near < machine->ranks_per_node) /* only the links between them */
        p.rate *= fmax(1, p.near - 1) / (machine->ranks_per_node - 1);
    if (p.nodes > 1) /* every rank of a node has a card, and rings enter by one and leave by another */
        p.rate = fmin(p.rate, machine->network_gbs * p.near);
    return p;
}

/*
 * So many steps of a ring that in all carry `bytes` past every rank. A ring goes in step: over nodes, each
 * step takes as long as the one through the network.
 */
static double ring_us(const place *p, double steps, double bytes)
{
    double best = INFINITY;

    for (int i = 0; i < PROTOCOLS; i++) {
        const protocol *way = &protocols[i];
        double step = p->nodes > 1 ? way->network_step_us : way->step_us;

        if (p->nodes > 1 && !way->network_step_us)
            continue;

        best = fmin(best, way->start_us + steps * step + bytes / (p->rate * way->share) * 1e-3);
    }
    return best;
}

/* The switch reads everyone's share, hands over one sum, takes one result and spreads it: a buffer and a
 * share of it pass each rank, each way. Between nodes the sums of a node go up and down a tree, a share on
 * every card. */
static double switch_us(const weft_machine *machine, const place *p, double bytes)
{
    double inside = bytes * (1 + 1 / p->near) / machine->multicast_gbs * 1e-3, across = 0, up = 0;

    if (p->nodes > 1) {
        across = 2 * (p->nodes - 1) / p->nodes * bytes / p->near / machine->network_gbs * 1e-3;
        up = 2 * ceil(log2(p->nodes)) * protocols[2].network_step_us;
    }
    return machine->multicast_us + up + fmax(inside, across);
}

/* Up a tree of nodes and down again, in chains inside nodes: few bytes over many ranks. */
static double tree_us(const place *p, double bytes)
{
    const protocol *way = &protocols[0];

    return way->start_us + 2 * ((p->near - 1) * way->step_us + ceil(log2(p->nodes)) * way->network_step_us) +
           2 * bytes / (p->rate * way->share) * 1e-3;
}

static double all_reduce_us(const weft_machine *machine, const place *p, double bytes, weft_library_way way)
{
    double us = ring_us(p, 2 * (p->ranks - 1), 2 * (p->ranks - 1) / p->ranks * bytes);

    if (way == WEFT_LIBRARY_FASTEST && p->nodes > 1)
        us = fmin(us, tree_us(p, bytes));
    if (way != WEFT_LIBRARY_RING && machine->multicast && machine->multicast_gbs > 0) {
        double adds = switch_us(machine, p, bytes);

        us = way == WEFT_LIBRARY_SWITCH ? adds : fmin(us, adds);
    }
    return us;
}

/* Everyone sends to everyone at once: what goes to another node passes one card. */
static double all_to_all_us(const weft_machine *machine, const place *p, double bytes_of_pair)
{
    const protocol *way = &protocols[2];
    double inside = bytes_of_pair * (p->near - 1) / p->rate, across = bytes_of_pair * (p->ranks - p->near);

    if (p->nodes > 1) {
        inside = bytes_of_pair * (p->near - 1) /
                 (machine->library_gbs > 0 ? machine->library_gbs : machine->link_gbs);
        across /= machine->network_gbs;
    }
    return way->start_us + (p->nodes > 1 ? way->network_step_us : way->step_us) + fmax(inside, across) * 1e-3;
}

double weft_library_collective_us(const weft_machine *machine, const weft_problem *problem, int world,
                                  weft_library_way way, bool graph)
{
    double launch = graph ? machine->launch_graph_us : machine->launch_library_us;
    double bytes = (double)problem->count * (double)weft_dtype_size(problem->dtype);
    place p;

    if (machine->kind != WEFT_MACHINE_GPU || world < 2)
        return 0;
    p = place_of(machine, world);
    switch (problem->op) {
    case WEFT_OP_ALL_GATHER:
    case WEFT_OP_REDUCE_SCATTER:
        return launch + ring_us(&p, p.ranks - 1, bytes * (p.ranks - 1));
    case WEFT_OP_ALL_REDUCE:
        return launch + all_reduce_us(machine, &p, bytes, way);
    case WEFT_OP_BROADCAST:
        return launch + ring_us(&p, p.ranks - 1, bytes);
    case WEFT_OP_ALL_TO_ALL:
        return launch + all_to_all_us(machine, &p, bytes);
    default:
        return 0;
    }
}

/*
 * Whole waves of the machine's tiles; where the tiles are fewer than the units, k is split over those that
 * have none. Or the memory traffic, with each operand read once.
 */
double weft_library_gemm_us(const weft_machine *machine, weft_dtype dtype, int64_t m, int64_t n, int64_t k)
{
    int64_t tile_m = machine->tile_m > 0 ? machine->tile_m : 128,
            tile_n = machine->tile_n > 0 ? machine->tile_n : 128;
    int64_t tiles = weft_divide_up(m, tile_m) * weft_divide_up(n, tile_n);
    int64_t rows = m < tile_m ? weft_round_up(m, machine->step_m) : tile_m,
            cols = n < tile_n ? weft_round_up(n, machine->step_n) : tile_n;
    double bytes = (double)weft_dtype_size(dtype) *
                   ((double)m * (double)k + (double)k * (double)n + (double)m * (double)n);
    double waves = ceil((double)tiles / machine->units), slices = 1, compute;
    double deep = (double)weft_round_up(k, machine->step_k);
    int64_t idle = machine->units / tiles; /* units for each tile */

    if (machine->gflops[dtype] <= 0)
        return 0;
    if (idle > 1)
        slices = fmax(1, fmin((double)idle, deep / WEFT_LIBRARY_SPLIT_K));
    if (slices > 1) /* their sums are written and read again, in float32 */
        bytes += 8 * slices * (double)m * (double)n;
    compute = waves * 2 * (double)rows * (double)cols * deep / slices / machine->gflops[dtype];
    return fmax(compute, bytes / machine->memory_gbs) * 1e-3;
}

weft_dtype weft_library_wire(const weft_problem *problem)
{
    bool sums = problem->op == WEFT_OP_GEMM_RS || problem->op == WEFT_OP_GEMM_AR;

    if (problem->op == WEFT_OP_AG_GEMM)
        return problem->dtype;
    if (sums && problem->wire_dtype != WEFT_DTYPE_DEFAULT)
        return problem->wire_dtype;
    return problem->d_dtype == WEFT_DTYPE_DEFAULT ? weft_dtype_result(problem->dtype) : problem->d_dtype;
}

double weft_library_unfused_us(const weft_machine *machine, const weft_problem *problem, int world,
                               bool graph)
{
    weft_problem moved = {.size = sizeof(moved), .dtype = weft_library_wire(problem)};
    int64_t m = problem->m, n = problem->n, k = problem->k;
    double gemm, launch = graph ? machine->launch_graph_us : machine->launch_library_us;

    if (machine->kind != WEFT_MACHINE_GPU)
        return 0;
    switch (problem->op) {
    case WEFT_OP_AG_GEMM:
        moved.op = WEFT_OP_ALL_GATHER;
        if (problem->layout == WEFT_LAYOUT_GATHER_B) {
            moved.count = weft_divide_up(n, world) * k;
            m = weft_divide_up(m, world);
        } else {
            moved.count = weft_divide_up(m, world) * k;
            n = weft_divide_up(n, world);
        }
        break;
    case WEFT_OP_GEMM_AS:
        moved.op = WEFT_OP_ALL_GATHER;
        n = weft_divide_up(n, world);
        moved.count = m * n;
        break;
    case WEFT_OP_GEMM_RS:
        moved.op = WEFT_OP_REDUCE_SCATTER;
        moved.count = weft_divide_up(m * n, world);
        k = weft_divide_up(k, world);
        break;
    case WEFT_OP_GEMM_AR:
        moved.op = WEFT_OP_ALL_REDUCE;
        moved.count = m * n;
        k = weft_divide_up(k, world);
        break;
    default:
        return 0;
    }
    gemm = weft_library_gemm_us(machine, problem->dtype, m, n, k) * (double)weft_max(problem->l, 1);
    moved.count *= weft_max(problem->l, 1);
    return gemm > 0 ? launch + gemm +
                          weft_library_collective_us(machine, &moved, world, WEFT_LIBRARY_FASTEST, graph)
                    : 0;
}
