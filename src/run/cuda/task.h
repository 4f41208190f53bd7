/*
 * What the host writes and the kernels read: a plan as device arrays.
 *
 * A lane is run by one "crew": a cluster of CTAs (Hopper) or one CTA (other GPUs). All waits, posts and
 * the order of tasks come from here; the kernels decide nothing about order. The members of a crew each store
 * their share of a task; the last to finish posts. Included by C and by CUDA.
 */
#ifndef WEFT_RUN_CUDA_TASK_H
#define WEFT_RUN_CUDA_TASK_H

#include "choose/cuda/kernels.h"

#include <stdint.h>

enum { WEFT_CUDA_SCALE_BLOCK = 128 }; /* of k, and of columns of B: what a factor of blocks is for */

/* The walker for any GPU: its threads, and the stages of its largest block, 128 x 256 and 32 of k. */
enum { WEFT_CUDA_ANY_THREADS = 256, WEFT_CUDA_ANY_STAGES = 4 };
enum { WEFT_CUDA_ANY_SHARED_BYTES = WEFT_CUDA_ANY_STAGES * (128 + 256) * 32 * 2 };

enum { WEFT_CUDA_LINE_WORDS = 16 }; /* a signal has a line of 128 bytes to itself */

/* SWITCHED: a REDUCE whose last two sources are its destination and its source as the switch between GPUs
 * knows them (multicast.h). */
enum { WEFT_CUDA_COPY, WEFT_CUDA_GEMM, WEFT_CUDA_REDUCE, WEFT_CUDA_SWITCHED };

enum {
    WEFT_CUDA_EPILOGUE = 1 << 0, /* alpha, beta, bias, act */
    WEFT_CUDA_LATE = 1 << 1,     /* GEMM: A and B need no wait; the waits guard ACC and the destinations */
    WEFT_CUDA_WIDE = 1 << 2,     /* COPY, REDUCE: every address and stride allows vector accesses */
    WEFT_CUDA_BULK = 1 << 3,     /* GEMM: destinations by tensor map; ACC, C and bias allow aligned pairs */
    WEFT_CUDA_D_F32 = 1 << 4,    /* GEMM: destinations are float32 (else 16-bit); REDUCE: sources are */
    WEFT_CUDA_DRAIN =
        1 << 5, /* BULK, and the next task is not: its stores must be written when it counts as done */
    WEFT_CUDA_AFTER_BULK = 1 << 6, /* not BULK, and the task before it is: starts when that one is done */
    WEFT_CUDA_ADD = 1 << 7         /* BULK, and ACC is the destination: the copy engine adds in memory */
};

/* One matrix in device memory as a task sees it: the pointer is at the region's first element. */
typedef struct weft_cuda_view {
    void *ptr;
    int64_t rs, cs;   /* element strides */
    int32_t dtype;    /* weft_dtype */
    int32_t map;      /* destinations and ACC: tensor map, or -1 */
    int32_t row, col; /* the region's first element in the map's coordinates; of A: the row of the product and
                         the k it begins at, of B: the column (run/scales.h) */
} weft_cuda_view;

/* One line of the cache. The list has one entry more than tasks: the walkers fetch one ahead. */
typedef struct weft_cuda_task {
    uint8_t kind, flags;
    uint16_t destinations, sources; /* sources: REDUCE */
    int16_t acc, c, bias;           /* views counted from view0; -1 = none */
    uint32_t view0; /* destinations, then COPY: source; GEMM: A, B; REDUCE: sources; then acc, c, bias */
    uint32_t wait0, post0;
    uint16_t wait_count, post_count;
    int32_t rows, cols, k;
    int32_t a_map, a_m, a_k, b_map, b_n, b_k; /* GEMM on Hopper: where A and B begin in their maps */
    uint32_t plan_task;                       /* for messages */
    int32_t
        copy_bytes; /* COPY, aligned: bytes of a row, and where rows begin: all a copier needs in one line */
    int32_t pad0;
    const void *copy_from;
    void *copy_to;
    int64_t copy_from_step, copy_to_step; /* bytes */
    uint32_t pad[4];
} weft_cuda_task;

typedef struct weft_cuda_wait {
    const uint64_t *signal;
    uint32_t count, total; /* total: posts the signal gets in a run */
    uint32_t number;       /* the plan's number of the signal, for messages */
    int32_t step;          /* GEMM: before which step of WEFT_CUDA_TILE_K (_FP8_K); waits are sorted by it */
} weft_cuda_wait;

typedef struct weft_cuda_lane {
    uint32_t task0, task_count;
} weft_cuda_lane;

/* A wait that expired; the first one of the rank is kept. `set` is written last. */
typedef struct weft_cuda_record {
    uint32_t set, plan_task, signal, lane;
    uint64_t run, have, want;
} weft_cuda_record;

/* One per rank, in its symmetric memory: peers raise `abort`. */
typedef struct weft_cuda_control {
    /* runs of this plan so far; advanced by the last CTA, so a captured graph replays; or see `shares` */
    uint64_t run;
    uint32_t finished;
    uint32_t abort;
    uint32_t steps;   /* tasks done so far, in all runs; peers look */
    uint32_t entered; /* the run, counted from 1, that every peer has entered */
    weft_cuda_record record;
    uint64_t shares; /* of runs of a product whose sums are sent: see exchange.cuh */
} weft_cuda_control;

/* A meeting of the ranks' kernels before the first run, or none. */
typedef struct weft_cuda_rehearsal {
    uint64_t *arrived; /* a word that every rank's kernel adds one to; NULL: no meeting */
    uint64_t want, deadline_ns;
    uint32_t *met; /* host memory: 1 when all came in time, else 0 */
} weft_cuda_rehearsal;

/* To a word of any rank; `before`, host memory, gets what it was. NULL: nobody asks. */
typedef struct weft_cuda_add {
    uint64_t *word;
    uint64_t add;
    uint64_t *before;
} weft_cuda_add;

/* A matrix to be copied so that its lines begin on 16 bytes and end with zeros: lines of `to_ld`, the batch
 * elements one after another. Turned, of elements of one byte: byte j of line i lies j times from_ld and i
 * bytes from the beginning. */
typedef struct weft_cuda_repitch {
    const void *from;
    void *to;
    int64_t batch, lines;
    int64_t length, from_ld, from_stride, to_ld; /* bytes */
    int32_t turned;
} weft_cuda_repitch;

/*
 * Operands of a collective that no peer touches may lie elsewhere in every run. Tables have them where no GPU
 * has memory: the upper two bits of an address are the number of its operand, 0 of what stays where it is;
 * the launch says what to add to it.
 */
enum { WEFT_CUDA_STAYS, WEFT_CUDA_SEND, WEFT_CUDA_RECV, WEFT_CUDA_OPERANDS };
enum { WEFT_CUDA_OPERAND_SHIFT = 62 };

enum { WEFT_CUDA_OTHER_MEETING = 1 << 30 }; /* plan_task of a record: a peer entered with other operands */

typedef struct weft_cuda_args {
    /* Each crew's lane, passed by value: the walkers begin without a load. Behind them, in memory, the copy
     * lanes that the storers of the Hopper crews run, WEFT_CUDA_CTA_COPIERS to a CTA. */
    weft_cuda_lane lanes[WEFT_CUDA_CREWS_MAX];
    const weft_cuda_lane *copies;
    uint32_t copy_count, map_count;
    const weft_cuda_task *tasks;
    const weft_cuda_view *views;
    const weft_cuda_wait *waits;
    uint64_t *const *posts;
    const void *maps;     /* CUtensorMap[] */
    uint32_t maps_reused; /* other maps may have been there before: see maps.h */
    uint32_t meeting;     /* which of the ranks' operands this run has; it enters with it */
    weft_cuda_control *control;
    weft_cuda_control *const *peers; /* every rank's control block, own included */
    int32_t world;
    uint32_t enter_post0, enter_posts, exit_wait0, exit_waits;
    uint32_t enter_wait0, enter_waits;
    float alpha, beta;
    int32_t act;
    uint64_t enter_deadline_ns, progress_deadline_ns;
    const uint64_t *signals; /* this rank's, ENTER signals first */
    const uint32_t *stop;    /* NULL, or a word of host memory: not zero ends the run */
    int32_t rank;
    struct weft_cuda_emulation *link; /* NULL but for measurements: see weft_cuda_stand_in */
    int32_t tile_m, tile_n;           /* that the kernel was compiled for */
    uint32_t exchanged;               /* A and B of tasks are those of the transposed product */
    uint32_t ranks_enter; /* signals below this number are ENTER signals: they have the longer deadline */
    /* NULL, or globaltimer of the last run: [2 t] when plan task t could begin (0: it had no wait), [2 t + 1]
     * when it was done; behind the last task when the kernel began and when its peers were done with it. */
    uint64_t *trace;
    uint32_t trace_tasks;
    uint32_t alone; /* no other rank is on this GPU: what follows on the stream may be brought in early */
    /* fp8: what a run brings, in device memory, or NULL; the factors of blocks with their strides. */
    const float *alpha_at, *row_scale, *col_scale, *a_scale, *b_scale;
    int64_t a_scale_row, a_scale_k, b_scale_k, b_scale_col;
    uint32_t fast;                      /* fp8: sums stay in the tensor cores */
    uint64_t moved[WEFT_CUDA_OPERANDS]; /* collectives: what to add to addresses of each; of what stays 0 */
} weft_cuda_args;

#endif
