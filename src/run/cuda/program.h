/*
 * A rank's part of a plan, lowered to the arrays of task.h.
 *
 * Lowering is plain arithmetic on addresses: it needs no GPU and is tested without one. Tensor maps are kept
 * as descriptions and encoded when the program is loaded.
 */
#ifndef WEFT_RUN_CUDA_PROGRAM_H
#define WEFT_RUN_CUDA_PROGRAM_H

#include "plan/plan.h"
#include "run/cuda/collective.h"
#include "run/cuda/task.h"
#include "choose/cuda/walker.h"

enum { WEFT_CUDA_PRIVATE_SIGNALS = 4096 }; /* the most that the lowering may add to a plan's */

/* Where an operand's instance lies on one rank: device addresses that the lowering rank can use. */
typedef struct weft_cuda_place {
    void *base;
    int64_t ld;
    int64_t stride; /* elements between batch elements; 0 = one after another */
    bool padded;    /* zeros follow every line, up to 16 bytes */
} weft_cuda_place;

/* Memory that the programs of a group use one after another. */
typedef struct weft_cuda_workspace {
    uint64_t at; /* CUdeviceptr; 0: not taken yet */
    size_t bytes;
} weft_cuda_workspace;

typedef struct weft_cuda_binding {
    const weft_cuda_place *places; /* [operand * world + rank]; base NULL where this rank never touches it */
    uint64_t *const *signals;      /* [rank]: first signal of the rank */
    const struct weft_cuda_stand_in *stand_in; /* NULL, or kernels for a rank that runs alone: executor.h */
    /* NULL, or the parts of all ranks: this rank runs alone, and what it sends to peers stands for what they
     * would send to it at that time (all ranks do the same by turns). Peers' staging memory is its own. */
    const weft_plan_part *peers;
    /* NULL, or by rank how many lanes of it touch this rank: the lanes say DONE themselves, see done.h. */
    const uint32_t *done_posts;
    /* NULL, or the collective that is the other half of an unfused product, and each rank's inboxes of it:
     * see halves.h. */
    const weft_plan_part *collective;
    char *const *inboxes;
    const weft_operands *values;    /* NULL, or a run's: alpha and scales in device memory */
    weft_cuda_workspace *workspace; /* NULL, or the group's, for cuBLASLt */
    weft_cuda_wire wire;
    int64_t to_switch; /* 0, or how far from an own address the switch's is: REDUCE goes through it */
    bool given;        /* somebody else's plan: nothing is known of its copies but what the checker proves */
} weft_cuda_binding;

typedef struct weft_cuda_map {
    void *base;
    uint64_t inner, outer, pitch_bytes; /* extents in elements, row pitch */
    uint32_t box_inner, box_outer;
    int32_t dtype;
} weft_cuda_map;

typedef struct weft_cuda_program {
    weft_cuda_lane *lanes;  /* one per crew */
    weft_cuda_lane *copies; /* Hopper: copy lanes that the crews' storers run */
    weft_cuda_task *tasks;
    weft_cuda_view *views;
    weft_cuda_wait *waits;
    uint64_t **posts;
    weft_cuda_map *maps;
    uint32_t lane_count, copy_count, task_count, view_count, wait_count, post_count, map_count;
    uint32_t view_room, wait_room, post_room, map_room;
    uint32_t enter_post0, enter_posts, enter_wait0, enter_waits, exit_wait0, exit_waits;
    uint32_t private_signals; /* signals beyond the plan's that order tasks within a lane */
    bool hopper;              /* false: some operand needs the walker for any strides */
    int walker;               /* of weft_cuda_walkers, where hopper */
} weft_cuda_program;

/*
 * `hopper` asks for the Hopper walker; the program says whether it is possible (strides the copy engine
 * refuses make it false). Fails for what no walker can do: dtypes other than float16, bfloat16 and fp8,
 * tiles larger than WEFT_CUDA_TILE_M x WEFT_CUDA_TILE_N.
 */
weft_status weft_cuda_program_make(const weft_plan_part *part, const weft_cuda_binding *binding, bool hopper,
                                   weft_cuda_program *program, weft_error_text *error);
void weft_cuda_program_free(weft_cuda_program *program);

#endif
