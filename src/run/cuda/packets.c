/* See packets.h. What goes where is read from the plan's tasks. */
#include "run/cuda/packets.h"

#include "core/dtype.h"

static int64_t packets_of(int64_t bytes)
{
    return (bytes + WEFT_CUDA_PACKET_PAYLOAD - 1) / WEFT_CUDA_PACKET_PAYLOAD;
}

static int64_t share_bytes(const weft_plan_part *part)
{
    return part->problem.count * (int64_t)weft_dtype_size(part->problem.dtype);
}

size_t weft_cuda_inbox_bytes(const weft_plan_part *part)
{
    return (size_t)(2 * part->world * packets_of(share_bytes(part))) * WEFT_CUDA_PACKET_BYTES;
}

uint32_t weft_cuda_packets_grid(const weft_cuda_packets *p)
{
    int64_t total = packets_of(p->bytes);

    return total ? (uint32_t)((total + p->chunk_packets - 1) / p->chunk_packets) : 0;
}

weft_status weft_cuda_packets_make(const weft_plan_part *part, const weft_cuda_binding *binding,
                                   weft_cuda_packets *packets, weft_error_text *error)
{
    int64_t size = (int64_t)weft_dtype_size(part->problem.dtype), tile = part->problem.tuning.tile_n;
    weft_cuda_packets made = {.world = part->world,
                              .rank = part->rank,
                              .bytes = share_bytes(part),
                              .dtype = (int32_t)part->problem.dtype,
                              .reduction = weft_cuda_reduction_of(&part->problem)};

    if (part->world > WEFT_CUDA_PACKET_RANKS)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "packets on GPUs are for at most %d ranks, not %d",
                              WEFT_CUDA_PACKET_RANKS, part->world);
    if (tile * size % WEFT_CUDA_PACKET_PAYLOAD && tile < part->problem.count)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "chunks of %lld elements do not end with a packet of %d bytes", (long long)tile,
                              WEFT_CUDA_PACKET_PAYLOAD);
    made.row_bytes = packets_of(made.bytes) * WEFT_CUDA_PACKET_BYTES;
    made.parity_bytes = made.row_bytes * part->world;
    made.chunk_packets = packets_of(tile && tile < part->problem.count ? tile * size : made.bytes);
    for (uint32_t o = 0; o < part->operand_count; o++)
        for (int r = 0; r < part->world && part->operands[o].place == WEFT_PLACE_STAGING; r++) {
            char *inbox = binding->places[o * (uint32_t)part->world + (uint32_t)r].base;

            if (r == part->rank)
                made.inbox = inbox;
            else /* a rank in the loop sends to itself what stands for a peer's */
                made.peer[r].to = inbox + (binding->peers ? r : part->rank) * made.row_bytes;
        }
    for (uint32_t i = 0; i < part->task_count; i++)
        made.reduces |= part->tasks[i].kind == WEFT_TASK_REDUCE;
    made.epochs = binding->signals[part->rank] + (size_t)part->signal_count * WEFT_CUDA_LINE_WORDS;
    *packets = made;
    return WEFT_OK;
}

void weft_cuda_packets_bind(const weft_plan_part *part, const void *send, void *recv, weft_cuda_packets *p)
{
    int64_t share = p->bytes;
    uintptr_t ends = (uintptr_t)send | (uintptr_t)recv;
    bool hears[WEFT_CUDA_PACKET_RANKS] = {false};

    for (int r = 0; r < part->world; r++) {
        p->peer[r].send = NULL;
        p->peer[r].recv = NULL;
    }
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_region *to = &part->regions[part->tasks[i].region0], *from = to + 1;
        bool copy = part->tasks[i].kind == WEFT_TASK_COPY && to->rows > 0;

        if (copy && to->rank != part->rank) { /* into a peer's inbox */
            p->peer[to->rank].send = (const char *)send + from->row0 * share;
            hears[to->rank] = true;
        } else if (copy && part->operands[from->operand].place == WEFT_PLACE_STAGING) {
            p->peer[from->row0].recv = (char *)recv + to->row0 * share;
        } else if (copy) { /* what stays here */
            p->peer[part->rank].send = (const char *)send + from->row0 * share;
            p->peer[part->rank].recv = (char *)recv + to->row0 * share;
        } else if (part->tasks[i].kind == WEFT_TASK_REDUCE) {
            p->peer[0].recv = recv;
            p->peer[part->rank].send = (const char *)send + (from + part->rank)->row0 * share;
        }
    }
    /* Who neither hears nor is heard in the plan is not waited for: two that are not the root of a broadcast.
     */
    if (part->problem.op == WEFT_OP_BROADCAST)
        for (int r = 0; r < part->world; r++)
            if (!hears[r] && r != part->problem.root)
                p->peer[r].to = NULL;
    p->aligned = ends % WEFT_CUDA_PACKET_PAYLOAD == 0 &&
                 (share % WEFT_CUDA_PACKET_PAYLOAD == 0 || part->problem.op == WEFT_OP_ALL_REDUCE ||
                  part->problem.op == WEFT_OP_BROADCAST); /* which have one row */
}
