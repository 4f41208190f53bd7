/*
 * The simulator: how long would this plan take on that machine?
 *
 * A discrete-event run of the parts of all ranks: lanes do their tasks in order, tasks wait for signals,
 * hold units, cores, copy engines and link ports, and post. docs/simulator.md has the model and how well
 * it predicts. Making and running the model takes O(tasks log lanes) time.
 */
#ifndef WEFT_SIM_SIM_H
#define WEFT_SIM_SIM_H

#include "plan/plan.h"
#include "sim/machine.h"
#include "trace/trace.h"

/* What time on the critical path was spent on. */
typedef enum weft_bound {
    WEFT_BOUND_COMPUTE = 0,
    WEFT_BOUND_LINK,
    WEFT_BOUND_LATENCY, /* flags, launches, fixed costs of tasks */
    WEFT_BOUND_MEMORY,
    WEFT_BOUND_COUNT
} weft_bound;

const char *weft_bound_name(weft_bound bound);

typedef enum weft_sim_mode {
    WEFT_SIM_ALL = 0,
    WEFT_SIM_GEMM_ONLY, /* communication is free and instant: the local product with resident operands */
    WEFT_SIM_COMM_ONLY  /* products are free */
} weft_sim_mode;

typedef struct weft_sim_result {
    double us;                        /* from the call to the last task's end */
    double path_us[WEFT_BOUND_COUNT]; /* the critical path, by what it was spent on */
    weft_bound bound;                 /* the largest of them */
    uint64_t tasks;
    weft_event *events; /* when asked for: tasks and waits of all ranks; freed by weft_sim_result_free */
    size_t event_count;
} weft_sim_result;

/*
 * Where parts come from; `make` is called once per rank, in order. NULL: those of the problem, over the
 * machine's nodes where it takes several. Only schedules that know nodes are made for more than
 * WEFT_SIM_LOWERED ranks on several, or for products of more than WEFT_SIM_LOWERED_REGIONS.
 */
enum { WEFT_SIM_LOWERED = 64, WEFT_SIM_LOWERED_REGIONS = 1 << 20 };

typedef struct weft_sim_source {
    const weft_problem *problem; /* resolved and tuned */
    int world;
    weft_status (*make)(void *arg, int rank, weft_plan_part *part, weft_error_text *error);
    void *arg;
    bool graph; /* on a GPU: launched from a graph, not by the host */
} weft_sim_source;

weft_status weft_sim_run(const weft_machine *machine, const weft_sim_source *source, weft_sim_mode mode,
                         bool want_events, weft_sim_result *result, weft_error_text *error);
void weft_sim_result_free(weft_sim_result *result);

/* About how many regions the GEMM tasks of all ranks have, with the tiles that the problem has. */
double weft_sim_regions(const weft_problem *problem, int world);

/* Can the machine run this schedule at all? Where not, why not is in `error`. */
bool weft_sim_can_run(const weft_machine *machine, const weft_problem *problem, int world,
                      weft_error_text *error);

/*
 * What no schedule of a collective can be faster than, on GPUs: what must reach each node, over all of its
 * cards, and what each rank must take in or send in all, over its link inside the node and its card together.
 * Links count at the better of weft's rate and a library's, so that neither is below; where a switch adds,
 * sums pass a link once. 0 where there is no network.
 */
typedef struct weft_sim_limits {
    double network_us, node_us;
} weft_sim_limits;

weft_sim_limits weft_sim_limits_of(const weft_machine *machine, const weft_problem *problem, int world);

#endif
