/* See fake_link.h, and run/cuda/link.cu for what it stands in for. */
#include "fake_link.h"

#include "run/cuda/collective.h"

#include <string.h>

uint64_t fake_link_answered(const weft_cuda_link *p, uint32_t cta)
{
    return p->answered[(size_t)cta * WEFT_CUDA_LINE_WORDS];
}

/* Partner: the posts of the rank's launch. */
static bool at_least(const uint64_t *signal, uint64_t want)
{
    return (int64_t)(__atomic_load_n(signal, __ATOMIC_ACQUIRE) - want) >= 0;
}

static bool answer_enter(const weft_cuda_link *p, uint64_t run)
{
    for (int peer = 1; peer < p->world; peer++)
        if (!at_least(p->signals + peer * p->stride, run + 1))
            return false;
    for (int peer = 1; peer < p->world; peer++) {
        uint64_t *mine = p->signals + peer * WEFT_CUDA_LINE_WORDS;

        mine[1 + run % 2] = p->signals[peer * p->stride + 1 + (int64_t)(run % 2)];
        __atomic_fetch_add(mine, 1, __ATOMIC_RELEASE);
    }
    return true;
}

static bool answer_done(const weft_cuda_link *p, uint32_t lane, uint64_t run)
{
    const weft_cuda_link_lane *l = &p->lanes[lane];

    for (int peer = 1; peer < p->world; peer++) {
        uint64_t want = lane + 1 < p->sent[peer] ? lane + 1 : p->sent[peer];

        if (!at_least(p->signals + peer * p->stride + p->world * WEFT_CUDA_LINE_WORDS,
                      run * p->sent[peer] + want))
            return false;
    }
    for (uint32_t i = 0; i < l->store_count; i++)
        memcpy(p->stores[l->store0 + i].to, p->stores[l->store0 + i].from,
               (size_t)p->stores[l->store0 + i].bytes);
    for (int peer = 1; peer < p->world; peer++)
        if (lane < p->heard[peer])
            __atomic_fetch_add(p->signals + (p->world + peer) * WEFT_CUDA_LINE_WORDS, 1, __ATOMIC_RELEASE);
    return true;
}

static bool answer_packets(const weft_cuda_link *p, uint32_t cta, uint64_t epoch)
{
    int64_t first = cta * p->chunk_packets, end = first + p->chunk_packets,
            parity = (int64_t)(epoch & 1) * p->parity_bytes;

    end = end < p->packets ? end : p->packets;
    for (int64_t at = first; at < end; at++)
        if (!at_least((const uint64_t *)(p->watched + parity + at * WEFT_CUDA_PACKET_BYTES) + 1, epoch))
            return false;
    for (int peer = 1; peer < p->world; peer++)
        for (int64_t at = first; at < end; at++) {
            uint64_t *packet =
                (uint64_t *)(p->inbox + parity + peer * p->row_bytes + at * WEFT_CUDA_PACKET_BYTES);

            packet[0] = p->payload[peer * p->packets + at];
            __atomic_store_n(&packet[1], epoch, __ATOMIC_RELEASE);
        }
    return true;
}

enum { WORDS = WEFT_CUDA_LINE_BYTES / sizeof(uint64_t) };

/* Whether a line that the rank sent is there. */
static bool line_there(const weft_cuda_link *p, const uint64_t *line, uint64_t epoch)
{
    const uint32_t *words = (const uint32_t *)line;
    bool all = true;

    if (!p->marked)
        return at_least(line + WORDS - 1, epoch);
    for (int i = 0; i < 2 * WORDS; i++)
        all &= __atomic_load_n(&words[i], __ATOMIC_ACQUIRE) != 0;
    return all;
}

/* Of a chunk of the rank's, once they are there. */
static bool answer_chunk(const weft_cuda_link *p, const weft_cuda_link_hop *hop, int64_t chunk,
                         uint64_t epoch)
{
    int64_t first = chunk * p->chunk_packets, end = first + p->chunk_packets,
            parity = (int64_t)(epoch & 1) * p->parity_bytes,
            seen = end < hop->watched_lines ? end : hop->watched_lines;
    uint64_t *watched = (uint64_t *)(uintptr_t)(hop->watched + parity);

    for (int64_t line = first; line < seen; line++)
        if (!line_there(p, watched + line * WORDS, epoch))
            return false;
    for (int64_t line = first; line < seen && p->marked; line++)
        memset(watched + line * WORDS, 0, WEFT_CUDA_LINE_BYTES);
    for (int peer = 1; peer < p->world; peer++)
        for (int64_t line = first; line < (end < hop->lines ? end : hop->lines); line++) {
            int64_t at = peer * p->row_bytes + line * WEFT_CUDA_LINE_BYTES;
            uint64_t *to = (uint64_t *)(hop->inbox + parity + at), last;

            memcpy(to, hop->images + at, (WORDS - 1) * sizeof(*to));
            memcpy(&last, hop->images + at + (WORDS - 1) * sizeof(*to), sizeof(last));
            __atomic_store_n(&to[WORDS - 1], p->marked ? last : epoch, __ATOMIC_RELEASE);
        }
    return true;
}

/* Which chunks and hops of this run have been answered is a bit each, beside the count of the CTA. */
static bool answer_lines(const weft_cuda_link *p, uint32_t cta, uint32_t ctas, uint64_t epoch)
{
    uint64_t *done = &p->answered[(size_t)cta * WEFT_CUDA_LINE_WORDS + 1], bit = 1;
    bool all = true;

    for (int64_t i = 0; i < p->chunks; i++)
        for (int hop = 0; hop < 2; hop++, bit <<= 1)
            if (*done & bit || answer_chunk(p, &p->hop[hop], cta + i * ctas, epoch))
                *done |= bit;
            else
                all = false;
    if (all)
        *done = 0;
    return all;
}

bool fake_link_step(const weft_cuda_link *p, fake_link_kind by, uint32_t cta, uint32_t ctas)
{
    uint64_t run = fake_link_answered(p, cta);

    if (by == FAKE_LINK_LINES     ? !answer_lines(p, cta, ctas, run + 1)
        : by == FAKE_LINK_PACKETS ? !answer_packets(p, cta, run + 1)
        : cta == 0                ? !answer_enter(p, run)
                                  : !answer_done(p, cta - 1, run))
        return false;
    p->answered[(size_t)cta * WEFT_CUDA_LINE_WORDS] = run + 1;
    return true;
}
