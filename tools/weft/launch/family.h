/*
 * The processes below this one: those it started, whose ids it knows, and whatever they started, which only
 * /proc tells. Where /proc is missing or shows another world, the known ones are still reached.
 */
#ifndef WEFT_TOOLS_LAUNCH_FAMILY_H
#define WEFT_TOOLS_LAUNCH_FAMILY_H

#include <stdbool.h>
#include <sys/types.h>

/* Sends a signal to the `count` known children (0: one that has ended) and to every descendant of the calling
 * process; returns how many there were. Zombies do not count. */
int launch_family_signal(const pid_t *known, int count, int signal);

/* Kills every descendant and waits until none is left; known children that ended become 0. The caller must be
 * a child subreaper. False when some are left that cannot be found. */
bool launch_family_end(pid_t *known, int count);

#endif
