/*
 * The model: the parts of all ranks, boiled down to what the event loop needs. A part is made, boiled
 * down and freed before the next one is made, so that memory holds one whole part and, for every task of
 * the others, some tens of bytes.
 *
 * Everything here is private to src/sim.
 */
#ifndef WEFT_SIM_MODEL_H
#define WEFT_SIM_MODEL_H

#include "plan/plan.h"
#include "sim/machine.h"
#include "sim/sim.h"

typedef struct model_wait {
    uint32_t slot; /* signal of the waiting rank */
    uint32_t count;
} model_wait;

typedef struct model_post {
    uint32_t signal;
    int32_t rank;
} model_post;

/*
 * Bytes that cross a link: every port on their way is held for bytes / bandwidth. A switch that adds and
 * spreads by itself is rank -1: what it takes in or hands out holds one rank's port only.
 */
typedef struct model_transfer {
    int32_t from, to;
    float bytes;
} model_transfer;

typedef struct model_task {
    float work_ns;     /* on its unit or core, with the fixed cost of a task of its kind */
    float overhead_ns; /* the fixed cost alone */
    float stores_ns;   /* gpu: from its start until it has something to store elsewhere */
    float last_share;  /* gpu: of what it stores, that its last wave of tiles makes */
    float boxed_ns;    /* gpu: that its last stores take, which a crew does not wait for */
    float memory_ns;   /* gpu: that it keeps the memory of its rank busy, which products share */
    uint8_t event;     /* weft_event_kind */
    uint8_t bound;     /* weft_bound of its work */
    bool stored_next;  /* a crew's product: the next of its lane stores what it made, and waits for that */
    uint32_t number;   /* in its part */
    uint16_t wait_count, post_count, transfer_count;
    uint32_t wait0, post0, transfer0;
} model_task;

typedef struct model_lane {
    int32_t rank;
    uint16_t index; /* in its rank */
    uint16_t kind;  /* weft_lane_kind */
    uint32_t task0, task_end;
} model_lane;

#define MODEL_ARRAY(type, name)                                                                              \
    type *name;                                                                                              \
    size_t name##_count, name##_capacity

typedef struct model {
    const weft_machine *machine;
    int world;
    int ranks_per_node;
    int threads;       /* compute lanes of a rank */
    int64_t crew_cols; /* gpu: of a tile where lanes are crews (plan/crews.h), or several that stand side by
                          side; else 0 */
    bool all;          /* cpu: cores compete for memory */
    bool packets;      /* gpu: data says itself that it has come: no flags, no ENTER and DONE, */
    double times;      /* but so many times the bytes */
    weft_sim_mode mode;
    double launch_ns;
    uint32_t signal_count;
    uint64_t plan_tasks;
    MODEL_ARRAY(model_task, tasks);
    MODEL_ARRAY(model_wait, waits);
    MODEL_ARRAY(model_post, posts);
    MODEL_ARRAY(model_transfer, transfers);
    MODEL_ARRAY(model_lane, lanes);
} model;

static inline int model_node(const model *m, int rank)
{
    return rank / m->ranks_per_node;
}

weft_status model_load(model *m, const weft_machine *machine, const weft_sim_source *source,
                       weft_sim_mode mode, weft_error_text *error);
void model_free(model *m);

/* What the products of a part have in common. */
typedef struct model_products {
    double
        reuse; /* of the operand bytes that GEMM tasks name, what really comes from memory: each byte once */
    double operands; /* gpu: these bytes, of all GEMM tasks */
    double results;  /* gpu: elements that they make */
    double idle; /* gpu, where a library makes the product: units that each tile may have along k; else 1 */
    double set;  /* cpu: bytes of its rank's operands, of source and result in the mean, as curves count */
    uint64_t shared; /* cpu: operands that peers read, by number; */
    double share;    /* of what products store there, what they read; */
    uint64_t filled; /* operands that peers write */
} model_products;

/* Units of a GPU that a compute lane stands for. */
double model_lane_units(const model *m);

model_products model_products_of(const model *m, const weft_plan_part *part);

/* Prices one task of a part: fills work_ns, overhead_ns, event, bound, and appends its transfers. */
weft_status model_price(model *m, const weft_plan_part *part, const weft_task *task,
                        const model_products *products, model_task *out, weft_error_text *error);

weft_status model_run(const model *m, bool want_events, weft_sim_result *result, weft_error_text *error);

/* Makes room for `more` elements. */
weft_status model_reserve(void **array, size_t *capacity, size_t count, size_t more, size_t element_bytes,
                          weft_error_text *error);

#endif
