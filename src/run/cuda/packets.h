/*
 * Plans that go by packets for the kernels weft_packets and weft_lines: their parameters instead of the
 * arrays of task.h. Only the caller's own buffers change from run to run, and no peer need know: a run binds
 * them anew.
 */
#ifndef WEFT_RUN_CUDA_PACKETS_H
#define WEFT_RUN_CUDA_PACKETS_H

#include "run/cuda/collective.h"
#include "run/cuda/program.h"

/* Where what goes to a rank lies in the caller's buffers, and what comes from it, in bytes; -1: nothing does.
 */
typedef struct weft_cuda_packet_rows {
    int64_t send_at[WEFT_CUDA_PACKET_RANKS], recv_at[WEFT_CUDA_PACKET_RANKS];
    bool aligned; /* to words, as far as the buffers are */
} weft_cuda_packet_rows;

/* Bytes of an operand of inboxes: both instances of a row of packets for every rank. */
size_t weft_cuda_inbox_bytes(const weft_plan_part *part, weft_cuda_wire wire);

/* All but the caller's buffers. Fails for more ranks than the kernel's parameters have room for. */
weft_status weft_cuda_packets_make(const weft_plan_part *part, const weft_cuda_binding *binding,
                                   weft_cuda_packets *packets, weft_cuda_packet_rows *rows,
                                   weft_error_text *error);

/* The caller's buffers of the next run. */
void weft_cuda_packets_bind(const weft_cuda_packet_rows *rows, const void *send, void *recv,
                            weft_cuda_packets *packets);

/* Threads of a CTA: one for each packet, or a warp for each line, while there are threads. */
uint32_t weft_cuda_packets_threads(const weft_cuda_packets *packets);

/* CTAs of the kernel: at most one for each chunk of the plan; 0 when there is nothing to send. */
uint32_t weft_cuda_packets_grid(const weft_cuda_packets *packets);

#endif
