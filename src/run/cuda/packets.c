/* See packets.h. What goes where is read from the plan's tasks. */
#include "run/cuda/packets.h"

#include "core/dtype.h"
#include "core/round.h"

static bool by_lines(const weft_plan_part *part, weft_cuda_wire wire)
{
    return weft_cuda_by_lines(part->problem.op, part->problem.schedule, wire);
}

/* What a CTA has a whole number of, of payload and as it is sent. */
static int64_t unit_payload(const weft_plan_part *part, weft_cuda_wire wire)
{
    return by_lines(part, wire) ? weft_cuda_line_payload(wire.whole_lines) : WEFT_CUDA_PACKET_PAYLOAD;
}

static int64_t unit_bytes(const weft_plan_part *part, weft_cuda_wire wire)
{
    return by_lines(part, wire) ? WEFT_CUDA_LINE_BYTES : WEFT_CUDA_PACKET_BYTES;
}

/* Payload of the longest row of an inbox. */
static int64_t share_bytes(const weft_plan_part *part)
{
    int64_t cols = 0;

    for (uint32_t o = 0; o < part->operand_count; o++)
        if (part->operands[o].place == WEFT_PLACE_STAGING)
            cols = part->operands[o].cols;
    return cols * (int64_t)weft_dtype_size(part->problem.dtype);
}

static int64_t row_bytes(const weft_plan_part *part, weft_cuda_wire wire)
{
    return weft_divide_up(share_bytes(part), unit_payload(part, wire)) * unit_bytes(part, wire);
}

size_t weft_cuda_inbox_bytes(const weft_plan_part *part, weft_cuda_wire wire)
{
    return (size_t)(2 * part->world * row_bytes(part, wire));
}

uint32_t weft_cuda_packets_grid(const weft_cuda_packets *p)
{
    int64_t units = p->row_bytes / (p->lines ? WEFT_CUDA_LINE_BYTES : WEFT_CUDA_PACKET_BYTES);

    return units ? (uint32_t)weft_divide_up(units, p->chunk_packets) : 0;
}

uint32_t weft_cuda_packets_threads(const weft_cuda_packets *p)
{
    int64_t wanted = p->chunk_packets * (p->lines ? WEFT_CUDA_ROUND_THREADS : 1);

    return wanted <= WEFT_CUDA_COLLECTIVE_THREADS ? WEFT_CUDA_COLLECTIVE_THREADS : WEFT_CUDA_PACKETS_THREADS;
}

/* Where this rank's row of rank r's inbox is. A rank in the loop sends to itself what stands for a peer's. */
static char *row_there(const weft_plan_part *part, const weft_cuda_binding *binding, int64_t bytes,
                       uint32_t operand, int r)
{
    char *inbox = binding->places[operand * (uint32_t)part->world + (uint32_t)r].base;

    return inbox + (binding->peers ? r : part->rank) * bytes;
}

/* Inboxes come first among the plan's own operands, then results. */
static void bind_inboxes(const weft_plan_part *part, const weft_cuda_binding *binding, weft_cuda_packets *p)
{
    for (uint32_t o = 0; o < part->operand_count; o++) {
        bool first = !p->inbox;

        if (part->operands[o].place != WEFT_PLACE_STAGING)
            continue;
        for (int r = 0; r < part->world; r++) {
            char *there = row_there(part, binding, p->row_bytes, o, r);

            if (r != part->rank && first)
                p->peer[r].to = there;
            else if (r != part->rank)
                p->peer[r].back = there;
        }
        *(first ? &p->inbox : &p->results) =
            binding->places[o * (uint32_t)part->world + (uint32_t)part->rank].base;
    }
}

/* Slices of an all_reduce. The first of a slice's chunks comes first. */
static void place_slices(const weft_plan_part *part, weft_cuda_packets *p, weft_cuda_packet_rows *rows)
{
    int64_t size = (int64_t)weft_dtype_size(part->problem.dtype);

    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];
        const weft_region *to = weft_task_regions(part, task), *from = weft_task_inputs(part, task);
        bool reduces = task->kind == WEFT_TASK_REDUCE,
             sends = task->kind == WEFT_TASK_COPY && to->rows > 0 && to->rank != part->rank;

        if (!reduces && !sends)
            continue;
        if (rows->send_at[to->rank] < 0)
            rows->send_at[to->rank] = rows->recv_at[to->rank] = (reduces ? to : from)->col0 * size;
        p->peer[to->rank].bytes += to->cols * size;
    }
}

static void place_packets(const weft_plan_part *part, weft_cuda_packets *p, weft_cuda_packet_rows *rows)
{
    bool hears[WEFT_CUDA_PACKET_RANKS] = {false};

    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_region *to = weft_task_regions(part, &part->tasks[i]);
        const weft_region *from = weft_task_inputs(part, &part->tasks[i]);
        bool copy = part->tasks[i].kind == WEFT_TASK_COPY && to->rows > 0;

        if (copy && to->rank != part->rank) { /* into a peer's inbox */
            rows->send_at[to->rank] = from->row0 * p->bytes;
            hears[to->rank] = true;
        } else if (copy && part->operands[from->operand].place == WEFT_PLACE_STAGING) {
            rows->recv_at[from->row0] = to->row0 * p->bytes;
        } else if (copy) { /* what stays here */
            rows->send_at[part->rank] = from->row0 * p->bytes;
            rows->recv_at[part->rank] = to->row0 * p->bytes;
        } else if (part->tasks[i].kind == WEFT_TASK_REDUCE) {
            rows->recv_at[0] = 0;
            rows->send_at[part->rank] = (from + part->rank)->row0 * p->bytes;
        }
    }
    /* Who neither hears nor is heard in the plan is not waited for: two that are not the root of a broadcast.
     */
    if (part->problem.op == WEFT_OP_BROADCAST)
        for (int r = 0; r < part->world; r++)
            if (!hears[r] && r != part->problem.root)
                p->peer[r].to = NULL;
}

/* Rows that lines have, each as long as the others. */
static void place_rows(const weft_plan_part *part, weft_cuda_packets *p, weft_cuda_packet_rows *rows)
{
    place_packets(part, p, rows);
    for (int r = 0; r < part->world; r++)
        p->peer[r].bytes = p->bytes;
    if (p->reduces)
        rows->recv_at[part->rank] = 0;
}

weft_status weft_cuda_packets_make(const weft_plan_part *part, const weft_cuda_binding *binding,
                                   weft_cuda_packets *packets, weft_cuda_packet_rows *rows,
                                   weft_error_text *error)
{
    int64_t size = (int64_t)weft_dtype_size(part->problem.dtype), tile = part->problem.tuning.tile_n;
    weft_op op = part->problem.op;
    weft_cuda_packets made = {.world = part->world,
                              .rank = part->rank,
                              .bytes = share_bytes(part),
                              .dtype = (int32_t)part->problem.dtype,
                              .reduction = weft_cuda_reduction_of(&part->problem),
                              .lines = by_lines(part, binding->wire),
                              .whole_lines = by_lines(part, binding->wire) && binding->wire.whole_lines};

    if (part->world > WEFT_CUDA_PACKET_RANKS)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "packets on GPUs are for at most %d ranks, not %d",
                              WEFT_CUDA_PACKET_RANKS, part->world);
    made.row_bytes = row_bytes(part, binding->wire);
    made.parity_bytes = made.row_bytes * part->world;
    made.chunk_packets = weft_divide_up(tile && tile * size < made.bytes ? tile * size : made.bytes,
                                        unit_payload(part, binding->wire));
    bind_inboxes(part, binding, &made);
    /* also where this rank has nothing to add up itself */
    made.reduces = op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_REDUCE_SCATTER;
    made.epochs = binding->signals[part->rank] + (size_t)part->signal_count * WEFT_CUDA_LINE_WORDS;
    for (int r = 0; r < part->world; r++)
        rows->send_at[r] = rows->recv_at[r] = -1;
    /* all_reduce and broadcast have one row; slices begin on 16 bytes of it */
    rows->aligned =
        made.bytes % WEFT_CUDA_PACKET_PAYLOAD == 0 || op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_BROADCAST;
    if (made.lines && op == WEFT_OP_ALL_REDUCE)
        place_slices(part, &made, rows);
    else if (made.lines)
        place_rows(part, &made, rows);
    else
        place_packets(part, &made, rows);
    *packets = made;
    return WEFT_OK;
}

void weft_cuda_packets_bind(const weft_cuda_packet_rows *rows, const void *send, void *recv,
                            weft_cuda_packets *p)
{
    uintptr_t ends = (uintptr_t)send | (uintptr_t)recv;

    for (int r = 0; r < p->world; r++) {
        p->peer[r].send = rows->send_at[r] < 0 ? NULL : (const char *)send + rows->send_at[r];
        p->peer[r].recv = rows->recv_at[r] < 0 ? NULL : (char *)recv + rows->recv_at[r];
    }
    p->aligned = ends % WEFT_CUDA_PACKET_PAYLOAD == 0 && rows->aligned;
}
