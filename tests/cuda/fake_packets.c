#include "fake_packets.h"

#include "core/dtype.h"
#include "fake_lines.h"
#include "run/cpu/reduce.h"

#include <stdbool.h>
#include <string.h>

static int64_t packets_in(const weft_cuda_packets *p)
{
    return p->row_bytes / (p->lines ? WEFT_CUDA_LINE_BYTES : WEFT_CUDA_PACKET_BYTES);
}

static size_t payload(const weft_cuda_packets *p, int64_t at)
{
    int64_t left = p->bytes - at * WEFT_CUDA_PACKET_PAYLOAD;
    return (size_t)(left < WEFT_CUDA_PACKET_PAYLOAD ? left : WEFT_CUDA_PACKET_PAYLOAD);
}

fake_chunk fake_packets_chunk(const weft_cuda_packets *p, uint32_t cta)
{
    int64_t first = cta * p->chunk_packets, end = first + p->chunk_packets, total = packets_in(p);

    return (fake_chunk){
        .first = first, .end = end < total ? end : total, .epoch = p->epochs[cta * WEFT_CUDA_LINE_WORDS] + 1};
}

void fake_packets_send(const weft_cuda_packets *p, fake_chunk chunk)
{
    if (p->lines) {
        fake_lines_send(p, chunk);
        return;
    }
    for (int r = 0; r < p->world; r++)
        for (int64_t at = chunk.first; at < (p->peer[r].send ? chunk.end : chunk.first + 1) && p->peer[r].to;
             at++) {
            char *packet =
                p->peer[r].to + (int64_t)(chunk.epoch & 1) * p->parity_bytes + at * WEFT_CUDA_PACKET_BYTES;
            if (p->peer[r].send)
                memcpy(packet, p->peer[r].send + at * WEFT_CUDA_PACKET_PAYLOAD, payload(p, at));
            __atomic_store_n((uint64_t *)packet + 1, chunk.epoch,
                             __ATOMIC_RELEASE); /* partner: the load below */
        }
}

static const char *packet_of(const weft_cuda_packets *p, int from, int64_t at, uint64_t epoch)
{
    return p->inbox + (int64_t)(epoch & 1) * p->parity_bytes + from * p->row_bytes +
           at * WEFT_CUDA_PACKET_BYTES;
}

int fake_packets_await(const weft_cuda_packets *p, fake_chunk chunk, int hop)
{
    if (p->lines)
        return fake_lines_await(p, chunk, hop);
    for (int r = 0; r < p->world; r++) {
        bool rows = p->reduces || p->peer[r].recv, word = p->peer[r].to && p->peer[r].send;
        for (int64_t at = chunk.first; at < (rows   ? chunk.end
                                             : word ? chunk.first + 1
                                                    : chunk.first) &&
                                       r != p->rank;
             at++)
            if (__atomic_load_n((const uint64_t *)packet_of(p, r, at, chunk.epoch) + 1, __ATOMIC_ACQUIRE) <
                chunk.epoch)
                return r;
    }
    return -1;
}

void fake_packets_receive(const weft_cuda_packets *p, fake_chunk chunk, int hop)
{
    size_t size = weft_dtype_size((weft_dtype)p->dtype);

    if (p->lines) {
        fake_lines_receive(p, chunk, hop);
        return;
    }
    for (int64_t at = chunk.first; at < chunk.end; at++) {
        uint64_t words[WEFT_CUDA_PACKET_RANKS], out;
        weft_view views[WEFT_CUDA_PACKET_RANKS], into = {(char *)&out, 8};
        for (int r = 0; r < p->world; r++) {
            views[r] = (weft_view){(char *)&words[r], 8};
            words[r] = 0;
            if (r != p->rank)
                memcpy(&words[r], packet_of(p, r, at, chunk.epoch), sizeof(words[r]));
            else if (p->peer[r].send)
                memcpy(&words[r], p->peer[r].send + at * WEFT_CUDA_PACKET_PAYLOAD, payload(p, at));
        }
        for (int r = 0; r < p->world && !p->reduces; r++)
            if (p->peer[r].recv)
                memcpy(p->peer[r].recv + at * WEFT_CUDA_PACKET_PAYLOAD, &words[r], payload(p, at));
        if (!p->reduces)
            continue;
        weft_reduce_rows((weft_dtype)p->dtype, (weft_reduction)p->reduction, 1,
                         (int64_t)(payload(p, at) / size), views, p->world, (weft_dtype)p->dtype, &into, 1);
        memcpy(p->peer[0].recv + at * WEFT_CUDA_PACKET_PAYLOAD, &out, payload(p, at));
    }
}
