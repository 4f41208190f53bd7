/* The queues of links.h for each kind of link. */
#include "sim/links.h"

#include "core/round.h"

#include <math.h>
#include <stdlib.h>

/* Ports of a rank inside its node: out and in (switch), one per peer (mesh), up and down (ring). */
static size_t ports_of_rank(const model *m)
{
    return m->machine->link == WEFT_LINK_MESH ? (size_t)m->ranks_per_node : 2;
}

weft_status links_open(links *l, const model *m, weft_error_text *error)
{
    l->m = m;
    l->inside = calloc((size_t)m->world * ports_of_rank(m), sizeof(double));
    l->network = calloc((size_t)m->world * 2, sizeof(double));
    if (l->inside && l->network)
        return WEFT_OK;
    links_close(l);
    return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the links of %d ranks", m->world);
}

void links_close(links *l)
{
    free(l->inside);
    free(l->network);
    l->inside = l->network = NULL;
}

static double pass(double *free_at, double now, double ns)
{
    *free_at = fmax(*free_at, now) + ns;
    return *free_at;
}

/* The shorter way round; each hop's link carries the bytes, and hops work on different pieces at once. */
static double send_ring(links *l, const model_transfer *transfer, double now, double *latency)
{
    const model *m = l->m;
    int first = model_node(m, transfer->from) * m->ranks_per_node;
    int size = (int)weft_min(m->world - first, m->ranks_per_node);
    int at = transfer->from - first, goal = transfer->to - first;
    int up = (goal - at + size) % size, step = up <= size - up ? 1 : size - 1;
    double ns = transfer->bytes / m->machine->link_gbs, end = now;

    *latency = 0;
    for (; at != goal; at = (at + step) % size) {
        end = fmax(end, pass(&l->inside[2 * (size_t)(first + at) + (step != 1)], now, ns));
        *latency += m->machine->link_us * 1e3;
    }
    return end + *latency;
}

double links_send(links *l, const model_transfer *transfer, double now, double *latency)
{
    const model *m = l->m;
    const weft_machine *machine = m->machine;
    size_t from = (size_t)transfer->from, to = (size_t)transfer->to;
    double ns, end;

    *latency = machine->link_us * 1e3;
    ns = transfer->bytes / machine->link_gbs;
    if ((transfer->from < 0 || transfer->to < 0) && machine->multicast_gbs > 0)
        ns = transfer->bytes / machine->multicast_gbs;
    if (transfer->from < 0 || transfer->to < 0)
        return pass(&l->inside[transfer->to < 0 ? 2 * from : 2 * to + 1], now, ns) + *latency;
    if (model_node(m, transfer->from) != model_node(m, transfer->to)) {
        *latency = machine->network_us * 1e3;
        ns = transfer->bytes / machine->network_gbs;
        end = pass(&l->network[2 * from], now, ns);
        return fmax(end, pass(&l->network[2 * to + 1], now, ns)) + *latency;
    }
    if (machine->link == WEFT_LINK_RING)
        return send_ring(l, transfer, now, latency);
    if (machine->link == WEFT_LINK_MESH)
        return pass(&l->inside[from * ports_of_rank(m) + to % (size_t)m->ranks_per_node], now, ns) + *latency;
    end = pass(&l->inside[2 * from], now, ns);
    return fmax(end, pass(&l->inside[2 * to + 1], now, ns)) + *latency;
}

double links_flag_ns(const model *m, int from, int to)
{
    if (m->mode == WEFT_SIM_GEMM_ONLY || from == to)
        return 0;
    if (m->packets) /* no flag travels, but what has come must be seen like one */
        return 1e3 * fmax(0, m->machine->flag_us - m->machine->link_us);
    return 1e3 * (model_node(m, from) == model_node(m, to) ? m->machine->flag_us : m->machine->network_us);
}
