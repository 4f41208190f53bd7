/*
 * A packet: 8 bytes of payload and the number of the run in one 16-byte store, so that what arrives says
 * itself that it has arrived. And waiting for one.
 */
#ifndef WEFT_RUN_CUDA_PACKET_CUH
#define WEFT_RUN_CUDA_PACKET_CUH

#include "order.cuh"

namespace
{

struct Packet {
    uint64_t payload, epoch;
};

/* Payload and flag in one store; partner: packet_get there. */
__device__ __forceinline__ void packet_put(char *to, uint64_t payload, uint64_t epoch)
{
    asm volatile("{ .reg .b128 p; mov.b128 p, {%1, %2}; st.relaxed.sys.global.b128 [%0], p; }" ::"l"(to),
                 "l"(payload), "l"(epoch)
                 : "memory");
}

__device__ __forceinline__ Packet packet_get(const char *from)
{
    Packet p;
    asm volatile("{ .reg .b128 p; ld.relaxed.sys.global.b128 p, [%2]; mov.b128 {%0, %1}, p; }"
                 : "=l"(p.payload), "=l"(p.epoch)
                 : "l"(from)
                 : "memory");
    return p;
}

/* ---- waiting: P has `control`, `controls`, `world`, `stop` and `deadline_ns` -----------------------------
 */

/* The first expired wait of the rank writes the record, then raises every rank's abort word. Called, lest
 * code that nobody runs be fetched with that around it. */
template <class P>
__device__ __noinline__ void packet_expired(const P &p, int from, uint64_t have, uint64_t want)
{
    weft_cuda_record *record = &p.control->record;
    if (atomicCAS(&record->set, 0u, 1u) == 0) {
        record->plan_task = 0;
        record->signal = (uint32_t)from;
        record->lane = blockIdx.x;
        record->run = want - 1;
        record->have = have;
        record->want = want;
        __threadfence_system();
        atomicExch(&record->set, 2u);
    }
    for (int r = 0; r < p.world; r++)
        atomicExch_system(&p.controls[r]->abort, 1u);
}

struct Watch {
    uint64_t began;
    uint32_t looks;
    bool lost;
};

/* A look that found nothing: whether to go on asking. */
template <class P>
__device__ __forceinline__ bool keep_waiting(const P &p, Watch &watch, int from, uint64_t have, uint64_t want)
{
    if (++watch.looks % 64)
        return true;
    if (load_relaxed(&p.control->abort)) {
        watch.lost = true;
    } else if (watch.looks % 4096 == 0 && p.stop && load_relaxed(p.stop)) { /* across the bus */
        atomicExch_system(&p.control->abort, 1u);
        watch.lost = true;
    } else {
        uint64_t now = now_ns();
        if (!watch.began) {
            watch.began = now;
        } else if (now - watch.began > p.deadline_ns) {
            packet_expired(p, from, have, want);
            watch.lost = true;
        }
    }
    return !watch.lost;
}

/* The packet of this run, `packet` being the first look at it; anything when the run is given up. */
template <class P>
__device__ __forceinline__ uint64_t packet_await(const P &p, Watch &watch, const char *inbox, Packet packet,
                                                 int from, uint64_t epoch)
{
    while ((int64_t)(packet.epoch - epoch) < 0 && keep_waiting(p, watch, from, packet.epoch, epoch))
        packet = packet_get(inbox);
    return packet.payload;
}

} // namespace

#endif
