#include "sim/sim.h"

#include "core/dtype.h"

#include <math.h>

weft_sim_limits weft_sim_limits_of(const weft_machine *machine, const weft_problem *p, int world)
{
    double ranks = world, near = machine->ranks_per_node > 0 ? fmin(machine->ranks_per_node, ranks) : ranks;
    double bytes = (double)p->count * (double)weft_dtype_size(p->dtype), across, inside;

    if (machine->kind != WEFT_MACHINE_GPU || p->op < WEFT_OP_ALL_REDUCE)
        return (weft_sim_limits){0};
    switch (p->op) {
    case WEFT_OP_BROADCAST: /* every node hears it once, over all of its links */
        across = ranks > near ? bytes / near : 0;
        inside = bytes - bytes / near;
        break;
    case WEFT_OP_ALL_TO_ALL:
        across = bytes * (ranks - near);
        inside = bytes * (near - 1);
        break;
    default: /* what every rank must hear, less what comes to it from the network */
        if (p->op == WEFT_OP_ALL_REDUCE && machine->multicast && ranks <= near) {
            /* The switch reads what others add up and spreads their results; a rank sends its own sums. */
            across = 0;
            inside = bytes * fmin(1, 2 * (near - 1) / near);
            break;
        }
        if (p->op == WEFT_OP_ALL_REDUCE)
            bytes *= 2 / ranks; /* of a slice, there and back */
        across = bytes * (ranks - near) / near;
        inside = bytes * (ranks - 1) - across;
        break;
    }
    return (weft_sim_limits){across > 0 ? across / machine->network_gbs * 1e-3 : 0,
                             inside / machine->link_gbs * 1e-3};
}
