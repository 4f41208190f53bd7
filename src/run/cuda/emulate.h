/*
 * An emulated link, for measurements of one rank in the loop (world.h): what a task reads from peers or
 * stores at them takes the link's time, and what peers would say comes when the link would have brought it.
 * Only kernels that are compiled for it (with WEFT_LINK) know of it, by emulate.cuh: the bench has them and
 * the library has not, nor does its host code know this struct (weft_cuda_stand_in). Included by C and by
 * CUDA.
 */
#ifndef WEFT_RUN_CUDA_EMULATE_H
#define WEFT_RUN_CUDA_EMULATE_H

#include <stdint.h>

/* What a task has to do with the link: whether it posts to peers, too. */
typedef struct weft_cuda_transfer {
    uint32_t bytes, tells;
} weft_cuda_transfer;

/* In device memory. The link carries one direction at its rate, one transfer after another; its times are in
 * eighths of a nanosecond, or 8 KiB at 450 GB/s would be 1 % off. */
typedef struct weft_cuda_emulation {
    uint64_t latency_ns;
    uint64_t late_ns; /* by which peers do everything later than this rank */
    float eighths_per_byte;
    uint32_t peers;      /* that enter: all ranks but this one, or 0 where nobody waits for them */
    int64_t bytes;       /* that it carries in a run */
    int64_t exchange_ns; /* weft_exchange_link: sums have come this long after they were sent */
    uint64_t began_ns;
    uint64_t free;                  /* when the link has taken all that it was given */
    uint64_t first;                 /* when it began with the first of this run; all ones: nothing yet */
    uint64_t run_first, run_end;    /* the same of the run before this, and when it had taken the last */
    weft_cuda_transfer transfers[]; /* by task of the plan */
} weft_cuda_emulation;

#endif
