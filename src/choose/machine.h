/*
 * Choices for a machine that one has a description of, this or another: tiles and workers of a problem, and
 * the schedule behind `auto`.
 */
#ifndef WEFT_CHOOSE_MACHINE_H
#define WEFT_CHOOSE_MACHINE_H

#include "plan/plan.h"
#include "sim/machine.h"

/* What a simulation of seconds can hold: regions of all ranks. */
enum { WEFT_CHOOSE_REGIONS = 3000000 };

/* The description of no CPU in particular, which stands in for this one until somebody calibrates it. */
#define WEFT_CHOOSE_GENERIC "cpu"

/* What decided about a schedule. */
typedef enum weft_origin {
    WEFT_ORIGIN_ASKED,     /* the problem itself */
    WEFT_ORIGIN_TUNED,     /* what `weft tune` kept for it */
    WEFT_ORIGIN_SIMULATED, /* the fastest of all, simulated */
    WEFT_ORIGIN_RULE       /* what was measured fastest for problems of its kind */
} weft_origin;

/* Fills what the problem leaves open and the machine decides: tiles and workers of a rank. The second, with
 * about so many regions at most. */
void weft_choose_tiles(const weft_machine *machine, int world, weft_problem *problem);
void weft_choose_tiles_within(const weft_machine *machine, int world, int64_t regions, weft_problem *problem);

/*
 * The fastest schedule of a resolved problem whose schedule is AUTO, among those that give the layout asked
 * for, unfused included: each is simulated as weft_sim_run would simulate it alone. Answers are remembered
 * per machine and problem. The second asks first what `weft tune` kept for the machine, takes it with its
 * tiles, and leaves a problem that names its schedule as it is.
 */
weft_status weft_choose_schedule(const weft_machine *machine, const weft_problem *problem, int world,
                                 weft_schedule *schedule, weft_error_text *error);
weft_status weft_choose_schedule_of(const weft_machine *machine, weft_problem *problem, int world,
                                    weft_origin *origin, weft_error_text *error);

/*
 * Few rows change with every call of a server, and simulating takes longer than they take to multiply: what
 * is chosen for the next power of two serves them all, and it is chosen for every power together, which only
 * the first call of a layer waits for.
 */
enum { WEFT_CHOOSE_FEW = 256, WEFT_CHOOSE_FEW_CLASSES = 9 }; /* rows; powers of two up to them */

typedef struct weft_chosen_few {
    uint64_t key;                              /* of machine, layer and world; 0: nothing */
    uint8_t schedule[WEFT_CHOOSE_FEW_CLASSES]; /* weft_schedule, for 1, 2, 4, ... rows */
} weft_chosen_few;

static inline bool weft_choose_is_few(const weft_problem *problem)
{
    return problem->m > 0 && problem->m <= WEFT_CHOOSE_FEW;
}

/* The choices for few rows of a problem, whose own rows do not matter; remembered, beside the others. AUTO
 * for those that cannot be simulated. The second only where they are remembered: it never simulates. */
void weft_choose_few(const weft_machine *machine, const weft_problem *problem, int world,
                     weft_chosen_few *few);
bool weft_choose_recall_few(const weft_machine *machine, const weft_problem *problem, int world,
                            weft_chosen_few *few);
weft_schedule weft_choose_of_few(const weft_chosen_few *few, int64_t m);

/* Remembers what a peer has chosen. */
void weft_choose_learn_few(const weft_chosen_few *few);

#endif
