/* What the parts of `weft sim` share: one operation, the table of a sweep, and mixture of experts. */
#ifndef WEFT_TOOLS_CLI_SIM_H
#define WEFT_TOOLS_CLI_SIM_H

#include "cli/options.h"
#include "report/page.h"
#include "report/report.h"

#include "sim/sim.h"
#include "sim/trust.h"

typedef struct simulation {
    const weft_options *options;
    weft_machine machine;
    int world;
    bool graph; /* kernels are launched from a graph */
    report report;
    bool tuned; /* what follows is what `weft tune` kept for the problem */
    weft_tuning tuning;
    weft_problem last; /* what --svg and --trace draw */
    report_page page;  /* of --html */
} simulation;

/* One line on standard error; the exit status. */
int sim_fail(const weft_error_text *error, weft_status status);

/* Simulates a problem with this schedule, tuned to the machine; 0 or the exit status. */
int sim_simulate(simulation *s, const weft_problem *asked, weft_schedule schedule, weft_sim_mode mode,
                 weft_sim_result *result);

/* What libraries take for a product, with sums that travel as asked; 0 on CPUs. */
double sim_library_us(const simulation *s, const weft_problem *problem);

/* Elements of one rank's share (or of the buffer) for a message of this many bytes, as bench counts them. */
int64_t sim_count_for(const weft_problem *problem, int world, int64_t bytes);

/* The part of a row that says how far predictions like it were off: error_class and the figures of its rows.
 */
void sim_add_trust(simulation *s, weft_trust_kind kind);

/* The values of a sweep, from "ranks=8:1024", "m=", "n=", "k=" or "bytes=": each is twice the one before. */
typedef struct sim_sweep {
    const char *name; /* "ranks", "m", "n", "k", "bytes"; NULL: no sweep */
    int64_t first, last;
} sim_sweep;

/* Reads one; NULL, or what it should have been. */
const char *sim_sweep_read(void *target, const char *value);

/* Whether the operation and the machine have it: 0, or 2 after a line. */
int sim_sweep_check(const simulation *s, const sim_sweep *sweep);

/* The line above the table: the problem, as far as it is the same in every row. */
void sim_sweep_title(simulation *s, const sim_sweep *sweep);

/* A row a value, and a chart of where the time goes in --svg and --html; 0 or the exit status. */
int sim_sweep_show(simulation *s, const sim_sweep *sweep);

/* Mixture of experts: its flags (ended by NULL names), and a row for each way to combine. */
extern const options_flag sim_moe_flags[];
int sim_moe_show(simulation *s);

#endif
