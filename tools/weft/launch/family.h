/* The processes below this one, found in /proc. */
#ifndef WEFT_TOOLS_LAUNCH_FAMILY_H
#define WEFT_TOOLS_LAUNCH_FAMILY_H

#include <sys/types.h>

/* Sends a signal to every descendant of the calling process; returns how many there were. Zombies do not
 * count. */
int launch_family_signal(int signal);

/* Kills every descendant and waits until none is left. The caller must be a child subreaper. */
void launch_family_end(void);

#endif
