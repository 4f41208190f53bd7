/*
 * A group on GPUs. Every rank, thread or process, has its own range of addresses with a slot per rank: its
 * own slot holds memory of its GPU, the others' are mapped from their descriptors (heap.h). Memory is added
 * piece by piece as it is asked for; where objects lie in a slot is decided by the same bookkeeping as on the
 * CPU, so all ranks find the same offsets.
 *
 * Ranks that share a GPU share its SMs: each launches at most its part of the crews that fit at once, so a
 * kernel that waits never keeps out the one it waits for. That holds for threads and for processes under MPS.
 * Processes without MPS take turns on the GPU; a kernel that waits gives way when its time slice ends.
 */
#ifndef WEFT_RUN_CUDA_GROUP_H
#define WEFT_RUN_CUDA_GROUP_H

#include "run/cuda/arena.h"
#include "run/cuda/executor.h"
#include "run/cuda/heap.h"
#include "run/cuda/multicast.h"
#include "run/program.h"
#include "symm/heap.h"

enum { WEFT_CUDA_EVENTS = 1024 };

typedef struct weft_cuda_group {
    weft_cuda_device *device;
    weft_cuda_heap heap;
    weft_heap *offsets;
    size_t committed; /* bytes at the beginning of every slot that have memory */
    int crews;        /* that a rank may use; the least over all ranks */
    bool adds;        /* bulk stores may add in any rank's memory */
    bool whole;       /* every rank has a GPU to itself */
    bool switched;    /* and the switch between them adds and spreads */
    bool library;     /* every rank has cuBLASLt */
    bool crowded;     /* other ranks of the group are threads of this process on the same GPU */
    bool crowds;      /* that is so of some rank */
    CUstream stream;  /* the rank's own */
    weft_cuda_multicast multicast;
    struct {
        char *block;           /* symmetric; NULL: too many ranks */
        int32_t tracks;        /* of a channel */
        bool issued, captured; /* since outcomes were known; by a graph, which may run at any time */
        CUevent last;          /* behind the last call */
    } channels;                /* channels.c */
    CUdeviceptr tiles;         /* what grouped products count in (grouped.c); 0 = none yet */
    bool issue_ordered;        /* calls that keep their plans go on `issue_stream` and return at once */
    void *issue_stream;        /* as weft.h has it */
    void *pinned;              /* host memory of WEFT_CUDA_PINNED_BYTES, for words that are copied */
    uint32_t *stop;            /* in it: the word that kernels which wait look at */
    uint32_t *met;             /* and where a rehearsal says how it went */
    struct weft_cuda_plan *plans;
    uint32_t plans_made;
    struct {
        bool alike;                        /* all ranks plan by the same, as they told each other, */
        uint64_t failures;                 /* when so many calls had failed */
        weft_cuda_arena arena;             /* of their blocks */
        struct weft_plan *barrier;         /* NULL: there are no others, or no such plans */
        void *word;                        /* that it adds up */
        struct weft_cuda_staging *staging; /* held, so that there is one */
        bool made;                         /* since journals were last compared */
    } unmet;                               /* plans that each rank makes by itself: unmet.c */
    struct {
        CUevent spare[WEFT_CUDA_EVENTS];
        int count;
    } events;                      /* that plans have left */
    weft_cuda_workspace workspace; /* of cuBLASLt's products of several ranks, which run one after another */
    bool has_met;                  /* this rank, since its last run: journal.c */
    struct weft_device_moe *layers;
    weft_group *watched_next;          /* watch.c */
    struct weft_cuda_table *tables;    /* pad.c */
    struct weft_cuda_staging *staging; /* stage.c; the newest, which is the largest, first */
    struct weft_cuda_staging *alone;   /* likewise, in memory of the rank's own */
    uint64_t runs;                     /* of its plans, captured ones apart */
    size_t spare_most;                 /* bytes of programs beside the first of every plan: bind.c */
} weft_cuda_group;

enum { WEFT_CUDA_PINNED_BYTES = 4096 };
#define WEFT_CUDA_SPARE_BYTES ((size_t)512 << 20)

static inline weft_cuda_group *weft_cuda_of(const weft_group *group)
{
    return group->device;
}

static inline weft_cuda_wire weft_cuda_wire_of(const weft_cuda_group *g)
{
    return (weft_cuda_wire){.whole_lines = g->adds, .apart = g->whole};
}

/* The stream that weft.h's callers mean. The default stream goes by its name: NULL would be another one in
 * programs that are built for a default stream of every thread. */
static inline CUstream weft_cuda_stream(const weft_cuda_group *g, void *given)
{
    return given == WEFT_STREAM_OWN ? g->stream : given ? (CUstream)given : CU_STREAM_LEGACY;
}

/* A GPU of this process, open as long as somebody has it. A negative index takes the GPUs in turn. */
weft_status weft_cuda_device_take(int index, int rank, weft_cuda_device **device, weft_error_text *error);
void weft_cuda_device_give(weft_cuda_device *device);

/* Calls of the driver stand between these two: the caller's thread keeps the context it had, and while it, or
 * anybody else, captures a graph, what weft allocates and waits for beside the capture is allowed. */
void weft_cuda_push(const weft_cuda_group *g);
void weft_cuda_pop(const weft_cuda_group *g);

/* Whether [pointer, pointer + bytes) is symmetric memory of this rank. */
bool weft_cuda_contains(const weft_group *group, const void *pointer, size_t bytes);

/* Whether this rank's GPU can use [pointer, pointer + bytes); `what` begins the sentence of an error. */
weft_status weft_cuda_check_memory(weft_group *group, const char *what, const void *pointer, size_t bytes);

/* CU_MEMORYTYPE_DEVICE; CU_MEMORYTYPE_HOST: pinned; 0: memory that the GPU does not know. */
unsigned weft_cuda_memory_type(const weft_cuda_group *g, const void *pointer);

/* Whether an alpha or beta there is the GPU's to read. What lies on the host, pinned or not, the call reads.
 */
bool weft_cuda_reads(const weft_cuda_group *g, const void *pointer);

/* Collective, as weft_alloc. `what` begins the sentence of an error. */
weft_status weft_cuda_alloc(weft_group *group, size_t bytes, size_t alignment, void **pointer);

/* Gives memory back without asking anybody: every rank does so at the same point of its calls. */
void weft_cuda_give(weft_group *group, void *pointer);

/* Before the group goes: what weft_cuda_peer_table made, and what is left of plans, all of them destroyed. */
void weft_cuda_tables_free(weft_cuda_group *g);
void weft_cuda_plans_free(weft_cuda_group *g);

/* Waits at most that long until the stream has passed everything; WEFT_ERR_TIMEOUT when it has not. */
weft_status weft_cuda_drain(const weft_cuda_group *g, CUstream stream, int64_t limit_ns,
                            weft_error_text *error);

/* An event for a program's runs: one that a plan has left, or a new one. Making one may wait for every kernel
 * of the context (weft_cuda_rehearse), so plans that ranks make together have theirs before they run. */
weft_status weft_cuda_event_take(weft_group *group, CUevent *event);
void weft_cuda_event_give(weft_cuda_group *g, CUevent event);

/* Collective: WEFT_OK when every rank says so; otherwise the first failing rank's status and sentence, on
 * all.
 */
weft_status weft_cuda_agree(weft_group *group, weft_sync_kind kind, weft_status mine);

/* The same; `*most` becomes the largest that a rank had there. */
weft_status weft_cuda_agree_most(weft_group *group, weft_sync_kind kind, weft_status mine, size_t *most);

/* The backend's calls (run/backend.h): group.c, plan.c, operands.c, bind.c. `attach` leaves it to the table
 * to take the group over; `apart`, on all ranks: GPUs cannot address one another, and nothing was attached
 * (nodes.h). */
weft_status weft_cuda_attach(weft_group *group, int device, bool *apart);
void weft_cuda_detach(weft_group *group);
weft_status weft_cuda_release(weft_group *group, void *pointer);
void *weft_cuda_peer(const weft_group *group, const void *pointer, int rank);
weft_status weft_cuda_copy(weft_group *group, void *to, const void *from, size_t bytes);
weft_status weft_cuda_copy_on(const weft_cuda_group *g, void *to, const void *from, size_t bytes,
                              weft_error_text *error);
weft_status weft_cuda_peer_table(weft_group *group, const void *pointer, void *const **table);
weft_status weft_cuda_pad_create(weft_group *group, uint32_t count, weft_signal_pad *pad);
weft_status weft_cuda_pad_wait(weft_group *group, const weft_signal_pad *pad, void *stream);
weft_status weft_cuda_plan_create(struct weft_plan *plan);
weft_status weft_cuda_plan_load(struct weft_plan *plan, struct weft_plan_part *part);
void weft_cuda_plan_destroy(struct weft_plan *plan);
/* Of a plan whose operands peers touch: whether they can on all ranks. Collective where the ranks have
 * not met for these operands. */
weft_status weft_cuda_plan_reach(struct weft_plan *plan, const weft_operands *operands, weft_reach *reach);
weft_status weft_cuda_plan_run(struct weft_plan *plan, const weft_operands *operands, void *stream);
weft_status weft_cuda_plan_wait(struct weft_plan *plan, void *stream);
weft_status weft_cuda_settle(weft_group *group);

/* Until the stream has passed everything, or the group is lost and the kernels have been stopped. */
weft_status weft_cuda_pass(weft_group *group, CUstream stream);
/* The same of what is before an event that was recorded. */
weft_status weft_cuda_pass_event(weft_group *group, CUevent event);

/* How many ranks of this process's groups are on the same GPU, this one among them. */
int weft_cuda_sharers(const weft_cuda_group *g);

/* A kernel gave up: poisons the group with the sentence, or, for WEFT_ERR_PEER, with that of the peer whose
 * kernel was the first. */
weft_status weft_cuda_lost(weft_group *group, weft_status status, const char *why);

#endif
