/*
 * What a rank syncs for, for agreement, and which call of weft.h it is in meanwhile, for error sentences. One
 * call may sync for several things: a first product agrees on a plan and allocates.
 */
#ifndef WEFT_GROUP_SYNC_KIND_H
#define WEFT_GROUP_SYNC_KIND_H

typedef enum weft_sync_kind {
    WEFT_SYNC_BARRIER = 1,
    WEFT_SYNC_AGREE,
    WEFT_SYNC_BROADCAST,
    WEFT_SYNC_SPLIT,
    WEFT_SYNC_ALLOC,
    WEFT_SYNC_GPU,
    WEFT_SYNC_COUNTED,
    WEFT_SYNC_RESYNC, /* after a call that failed on some rank */
    WEFT_SYNC_KINDS,  /* at most 16: see weft_control.arrived */
} weft_sync_kind;

/* Entry points of weft.h that make ranks wait for each other. */
#define WEFT_ENTRIES(X)                                                                                      \
    X(BARRIER, "weft_barrier")                                                                               \
    X(GROUP_SPLIT, "weft_group_split")                                                                       \
    X(GROUP_USE_GPU, "weft_group_use_gpu")                                                                   \
    X(ALLOC, "weft_alloc")                                                                                   \
    X(SIGNAL_PAD_CREATE, "weft_signal_pad_create")                                                           \
    X(PLAN_CREATE, "weft_plan_create")                                                                       \
    X(PLAN_LOAD, "weft_plan_load")                                                                           \
    X(RUN, "weft_run")                                                                                       \
    X(RUN_ON, "weft_run_on")                                                                                 \
    X(AG_GEMM, "weft_ag_gemm")                                                                               \
    X(GEMM_RS, "weft_gemm_rs")                                                                               \
    X(GEMM_AR, "weft_gemm_ar")                                                                               \
    X(GEMM_AS, "weft_gemm_as")                                                                               \
    X(ALL_REDUCE, "weft_all_reduce")                                                                         \
    X(ALL_GATHER, "weft_all_gather")                                                                         \
    X(REDUCE_SCATTER, "weft_reduce_scatter")                                                                 \
    X(ALL_TO_ALL, "weft_all_to_all")                                                                         \
    X(BROADCAST, "weft_broadcast")                                                                           \
    X(ALL_GATHER_V, "weft_all_gather_v")                                                                     \
    X(REDUCE_SCATTER_V, "weft_reduce_scatter_v")                                                             \
    X(ALL_TO_ALL_V, "weft_all_to_all_v")                                                                     \
    X(GATHER, "weft_gather")                                                                                 \
    X(SCATTER, "weft_scatter")                                                                               \
    X(REDUCE, "weft_reduce")                                                                                 \
    X(SEND, "weft_send")                                                                                     \
    X(RECV, "weft_recv")                                                                                     \
    X(WAIT_SIGNAL, "weft_wait_signal")                                                                       \
    X(MOE_CREATE, "weft_moe_create")                                                                         \
    X(MOE_DISPATCH_SEND, "weft_moe_dispatch_send")                                                           \
    X(MOE_DISPATCH_RECV, "weft_moe_dispatch_recv")                                                           \
    X(MOE_COMBINE_SEND, "weft_moe_combine_send")                                                             \
    X(MOE_COMBINE_RECV, "weft_moe_combine_recv")                                                             \
    X(MOE_FORWARD, "weft_moe_forward")

typedef enum weft_entry {
    WEFT_ENTRY_NONE, /* the group is being made, or used below weft.h */
#define WEFT_ENTRY(entry, name) WEFT_ENTRY_##entry,
    WEFT_ENTRIES(WEFT_ENTRY)
#undef WEFT_ENTRY
} weft_entry;

const char *weft_entry_name(unsigned entry);

#endif
