/* A plan that the user brings: `weft plan --from FILE`, `weft sim --plan FILE`. */
#ifndef WEFT_CLI_GIVEN_PLAN_H
#define WEFT_CLI_GIVEN_PLAN_H

#include "cli/options.h"
#include "plan/plan.h"

typedef struct given_plan {
    weft_plan_part *parts; /* NULL: none was given */
    int world;
    int argc; /* the arguments, with the operation that the plan is of */
    char **argv;
} given_plan;

/* Looks for `flag FILE` and reads the file. Returns the exit status of a command that cannot go on, or 0. */
int given_plan_open(given_plan *given, const char *command, const char *flag, int argc, char **argv);
void given_plan_close(given_plan *given);

/* Flags that say again what the file says, or something else: 2 after a line on standard error, 0 where there
 * are none. */
int given_plan_refuses(const given_plan *given, const char *command, const char *flag,
                       const weft_options *options);

/* Says what is wrong with it, on standard error; 1 when something is. */
int given_plan_check(const given_plan *given, const char *command);

/* A copy of a rank's part, as weft_sim_source asks for it. */
weft_status given_plan_make(void *given, int rank, weft_plan_part *part, weft_error_text *error);

#endif
