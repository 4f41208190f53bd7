#include "sim/sim.h"

#include "core/dtype.h"

#include <math.h>

/* What a rank takes in over all of its links inside a node, at the better of the two rates that kernels were
 * seen to reach: weft's loads and stores, and a library's collectives. */
static double node_gbs(const weft_machine *machine, double near)
{
    bool mesh = machine->link == WEFT_LINK_MESH;
    double links = mesh ? near - 1 : machine->link == WEFT_LINK_RING ? 2 : 1, library = machine->library_gbs;

    if (mesh && machine->ranks_per_node > 1) /* a library's rate is that of all links of a full node */
        library *= (near - 1) / (machine->ranks_per_node - 1);
    return fmax(machine->link_gbs * fmax(1, links), library);
}

weft_sim_limits weft_sim_limits_of(const weft_machine *machine, const weft_problem *p, int world)
{
    double ranks = world, near = machine->ranks_per_node > 0 ? fmin(machine->ranks_per_node, ranks) : ranks;
    double bytes = (double)p->count * (double)weft_dtype_size(p->dtype), nodes = ranks / near;
    double card = ranks > near ? machine->network_gbs : 0, across, all, us;

    if (machine->kind != WEFT_MACHINE_GPU || p->op < WEFT_OP_ALL_REDUCE || world < 2)
        return (weft_sim_limits){0};
    switch (p->op) {
    case WEFT_OP_BROADCAST: /* every node hears it once, over all of its cards */
        across = bytes / near;
        all = bytes;
        break;
    case WEFT_OP_ALL_TO_ALL:
        across = bytes * (ranks - near);
        all = bytes * (ranks - 1);
        break;
    case WEFT_OP_ALL_REDUCE: /* a slice of everyone's, there and back */
        across = 2 * (nodes - 1) / nodes * bytes / near;
        all = 2 * (ranks - 1) / ranks * bytes;
        break;
    default: /* of a node's, what its ranks do not have */
        across = bytes * (ranks - near) / near;
        all = bytes * (ranks - 1);
        break;
    }
    us = all / (node_gbs(machine, near) + card) * 1e-3;
    /* Where the switch adds and spreads, a rank sends its share of every sum, or the sum itself, once. */
    if (p->op == WEFT_OP_ALL_REDUCE && machine->multicast && machine->link == WEFT_LINK_SWITCH)
        us = fmin(us, bytes /
                          ((machine->multicast_gbs > 0 ? machine->multicast_gbs : machine->link_gbs) + card) *
                          1e-3);
    return (weft_sim_limits){card > 0 ? across / card * 1e-3 : 0, us};
}
