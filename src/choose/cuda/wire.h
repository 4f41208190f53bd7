/* What goes between GPU ranks in packets, and what in whole lines of them (kernels.h). */
#ifndef WEFT_CHOOSE_CUDA_WIRE_H
#define WEFT_CHOOSE_CUDA_WIRE_H

#include "choose/cuda/kernels.h"

#include <stdbool.h>
#include <stdint.h>
#include <weft/weft.h>

/* What goes between ranks can be, the same for all of them. */
typedef struct weft_cuda_wire {
    bool whole_lines; /* 128 bytes that a warp stores at once come so to any rank */
    bool apart;       /* no two ranks share a GPU */
} weft_cuda_wire;

/* In one hop packets a thread take fewer threads than lines, and lines half of the link. */
static inline bool weft_cuda_by_lines(weft_op op, weft_schedule schedule, weft_cuda_wire wire)
{
    return schedule == WEFT_SCHEDULE_TWO_SHOT_PACKETS ||
           (schedule == WEFT_SCHEDULE_PACKETS && op != WEFT_OP_BROADCAST && wire.whole_lines && wire.apart);
}

/* Bytes of payload in a line. */
static inline int64_t weft_cuda_line_payload(bool whole)
{
    return whole ? WEFT_CUDA_LINE_BYTES - (int64_t)sizeof(uint64_t)
                 : WEFT_CUDA_LINE_THREADS * (int64_t)WEFT_CUDA_PACKET_PAYLOAD;
}

#endif
