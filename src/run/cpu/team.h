/*
 * Worker threads of a rank, besides the thread that calls weft_run. They are started once, spin a little
 * between runs and then sleep.
 */
#ifndef WEFT_RUN_CPU_TEAM_H
#define WEFT_RUN_CPU_TEAM_H

#include "core/status.h"

typedef struct weft_team weft_team;

/* `size` workers in all: size - 1 threads. */
weft_status weft_team_create(int size, weft_team **team, weft_error_text *error);
void weft_team_destroy(weft_team *team);
int weft_team_size(const weft_team *team);

/* Runs work(argument, worker) once for each worker 0 .. count-1, worker 0 in the caller's thread, and returns
 * when all have returned. */
void weft_team_run(weft_team *team, int count, void (*work)(void *argument, int worker), void *argument);

#endif
