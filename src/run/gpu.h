/*
 * The seam between groups and GPUs. A group that was put on GPUs has a weft_gpu, whose calls take the place
 * of symmetric memory, plans and runs on the CPU; agreement between the ranks stays where it is, in host
 * memory.
 */
#ifndef WEFT_RUN_GPU_H
#define WEFT_RUN_GPU_H

#include "run/cpu/program.h"

typedef struct weft_gpu_calls {
    /* Collective, as weft_alloc and weft_free. */
    weft_status (*alloc)(weft_group *group, size_t bytes, size_t alignment, void **pointer);
    weft_status (*release)(weft_group *group, void *pointer);
    void *(*peer)(const weft_group *group, const void *pointer, int rank);
    weft_status (*copy)(weft_group *group, void *to, const void *from, size_t bytes);

    /* Collective, after the ranks have agreed that they ask for the same. */
    weft_status (*plan_create)(weft_executor *executor, const weft_problem *problem, struct weft_plan **plan);
    void (*plan_destroy)(struct weft_plan *plan);

    /* Puts a run on a stream (NULL: the group's own); waits until a stream has passed everything on it. */
    weft_status (*run)(struct weft_plan *plan, const weft_operands *operands, void *stream);
    weft_status (*wait)(struct weft_plan *plan, void *stream);

    /* The same for all plans that the executor keeps. */
    weft_status (*settle)(weft_executor *executor, void *stream);

    void (*detach)(weft_group *group);
} weft_gpu_calls;

/* What every kind of GPU begins with. */
typedef struct weft_gpu {
    const weft_gpu_calls *calls;
    bool ordered; /* calls that keep their plans go on `stream` and return at once */
    void *stream;
} weft_gpu;

/* Puts a run on a stream, unless it brings along what only CPUs can do. */
weft_status weft_gpu_run(struct weft_plan *plan, const weft_operands *operands, void *stream);

/* Collective: puts the group on GPUs. The same outcome on every rank. */
weft_status weft_gpu_attach(weft_group *group, int device);
void weft_gpu_detach(weft_group *group);

#endif
