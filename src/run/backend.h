/*
 * The seam between groups and what their plans run on. A backend is a folder that fills this table; a group
 * begins on the CPU and can be put on another backend before it is used. What is above (src/api) and beside
 * it (session, program) asks the table and never which backend it is. Agreement between the ranks is in host
 * memory on every backend (session.h).
 */
#ifndef WEFT_RUN_BACKEND_H
#define WEFT_RUN_BACKEND_H

#include "run/session.h"

struct weft_counted_job;
struct weft_device_moe_ops;
struct weft_onesided_ops;

typedef struct weft_backend {
    const char *name;
    const char *where; /* its groups are on, in sentences: "the CPU" */
    /* One line for people: what was found here, or why the backend cannot be used. */
    void (*describe)(char *text, size_t bytes);

    /* Collective: puts the group on `device`; the same outcome on every rank, WEFT_ERR_UNSUPPORTED where this
     * backend finds none, and the next is asked. NULL: where groups begin. */
    weft_status (*attach)(weft_group *group, int device);
    /* Before the group goes, without waiting for anybody. */
    void (*detach)(weft_group *group);

    /* Symmetric memory; the first two are collective. `peer` is NULL where `pointer` is not symmetric. */
    weft_status (*alloc)(weft_group *group, size_t bytes, size_t alignment, void **pointer);
    weft_status (*release)(weft_group *group, void *pointer);
    void *(*peer)(const weft_group *group, const void *pointer, int rank);
    weft_status (*copy)(weft_group *group, void *to, const void *from, size_t bytes);
    bool host_memory; /* symmetric memory is what symm/ gave */
    /* Programs' own use of it (onesided.h). NULL: ranks cannot touch one another's. */
    const struct weft_onesided_ops *onesided;
    /* For kernels of programs; the second is collective. NULL: programs have none here. */
    weft_status (*peer_table)(weft_group *group, const void *pointer, void *const **table);
    weft_status (*pad_create)(weft_group *group, uint32_t count, weft_signal_pad *pad);
    weft_status (*pad_wait)(weft_group *group, const weft_signal_pad *pad, void *stream);

    /* Collective, after the ranks have agreed that they ask for the same: fills a plan that has its group,
     * session and problem. `load` takes over a part that was checked; NULL: files do not run here. */
    weft_status (*plan_create)(struct weft_plan *plan);
    weft_status (*plan_load)(struct weft_plan *plan, weft_plan_part *part);
    /* Not collective: the same, where every rank can know by itself that all can, and what they decide.
     * False: they have to meet; or there is no way on this rank, and `*status` says so. NULL: never. */
    bool (*plan_alone)(struct weft_plan *plan, weft_status *status);
    /* Whether they do, as things are: peers of a rank that rejects a call do not come to hear of it. NULL:
     * they always do. */
    bool (*plans_alone)(const weft_group *group);
    /* Before and after the ranks meet to make a plan, so that peers see it that run instead. NULL: they see.
     */
    void (*meets)(const weft_group *group, weft_op op, bool begins);
    /* Frees what these made, also when they failed half-way. */
    void (*plan_destroy)(struct weft_plan *plan);
    size_t kept_bytes; /* that plans of the one-call functions may have together, as their `bytes` says */

    /* Whether peers can reach the operands of a run on every rank, of a plan for whose sake this matters
     * (`reached` of it). Collective where the ranks have not told each other. NULL: they tell in every run,
     * and the next one knows (reach.h). */
    weft_status (*reach)(struct weft_plan *plan, const weft_operands *operands, weft_reach *reach);

    /* Runs: to its end; on a stream as weft.h has it; as the calls that keep their plans do. */
    weft_status (*run)(struct weft_plan *plan, const weft_operands *operands);
    weft_status (*run_on)(struct weft_plan *plan, const weft_operands *operands, void *stream);
    weft_status (*issue)(struct weft_plan *plan, const weft_operands *operands);
    /* Whether the device reads a run's alpha or beta where it lies, when it comes to it, and the host cannot.
     * NULL: it always can. */
    bool (*device_reads)(const weft_group *group, const void *pointer);

    /* Until a stream has passed the plan's runs; until all that was issued in the group is done. */
    weft_status (*wait)(struct weft_plan *plan, void *stream);
    weft_status (*settle)(weft_group *group);
    /* Where `issue` goes from now on. NULL: there are no streams. */
    weft_status (*set_stream)(weft_group *group, bool ordered, void *stream);

    /* What `weft tune` keeps results of the group's plans by (choose/tuned.h). */
    uint64_t (*tuned_as)(const weft_group *group);

    /* What collectives can add up. */
    bool (*reduces)(weft_dtype dtype, weft_reduction reduction);
    /* A way for few bytes that needs no plan: whether it takes a problem, which then is session->small; and
     * what runs that. NULL: there is none. */
    bool (*small_take)(weft_group *group, const weft_problem *problem);
    weft_status (*small_run)(weft_group *group, const void *send, void *recv);
    /* Collectives with counts (counted.h), and messages. NULL: there are none. */
    weft_status (*counted)(weft_group *group, const struct weft_counted_job *job);
    weft_status (*send)(weft_group *group, const void *data, int64_t count, weft_dtype dtype, int to);
    weft_status (*recv)(weft_group *group, void *data, int64_t count, weft_dtype dtype, int from);
    /* Mixture of experts in the backend's memory (experts.h). NULL: in host memory, by src/moe. */
    const struct weft_device_moe_ops *moe;
    /* Products of many experts (weft_grouped_gemm), whose sizes have been checked, in the order of the calls
     * that keep their plans. NULL: in host memory, by src/gemm. */
    weft_status (*grouped)(weft_group *group, const weft_grouped_args *args);
} weft_backend;

/* The backends of this build: the CPU, then others; NULL beyond the last. */
const weft_backend *weft_backend_at(int index);

/* Collective: puts the group on the first backend that has devices here; where none has, what the last one
 * says. */
weft_status weft_backend_attach(weft_group *group, int device);

/* Where groups begin. */
extern const weft_backend weft_cpu_backend;

/* What the group's plans run on. */
static inline const weft_backend *weft_backend_of(const weft_group *group)
{
    return group->backend ? group->backend : &weft_cpu_backend;
}

#endif
