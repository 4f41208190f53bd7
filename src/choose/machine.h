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
 * per machine and problem: the third tells whether this one is. The second asks first what `weft tune` kept
 * for the machine, takes it with its tiles, and leaves a problem that names its schedule as it is.
 */
weft_status weft_choose_schedule(const weft_machine *machine, const weft_problem *problem, int world,
                                 weft_schedule *schedule, weft_error_text *error);
weft_status weft_choose_schedule_of(const weft_machine *machine, weft_problem *problem, int world,
                                    weft_origin *origin, weft_error_text *error);
bool weft_choose_remembers(const weft_machine *machine, const weft_problem *problem, int world);

#endif
