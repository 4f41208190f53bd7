/*
 * Ranks on several hosts. For each host an agent (ssh, or any command that runs a command there) starts this
 * program once more, as the host's *member*: that one looks after the ranks there as launch.h says.
 * Everything it must know comes through its standard input, so that no secret and no argument stands in a
 * command line; then each byte is a signal for the ranks, and the end means that whoever started it is gone.
 * Output, errors and the exit status go the way the agent has for them.
 */
#ifndef WEFT_TOOLS_LAUNCH_HOSTS_H
#define WEFT_TOOLS_LAUNCH_HOSTS_H

#include "launch/launch.h"

enum { LAUNCH_HOSTS_MAX = 1024, LAUNCH_AGENT_WORDS = 32 };

typedef struct launch_host {
    char *name;
    int first, ranks;
} launch_host;

typedef struct launch_hosts {
    launch_host host[LAUNCH_HOSTS_MAX];
    int count, ranks;
    char *agent[LAUNCH_AGENT_WORDS + 1]; /* its words; the host and the command follow */
    const char *master;                  /* where the others find the first host */
} launch_hosts;

/* Reads "a:4,b:4" or "[fd00::1]:4"; false: it is not that. The text is changed, and names point into it. */
bool launch_hosts_parse(char *text, launch_hosts *hosts);

/* Splits an agent's words at blanks; false: too many, or none. */
bool launch_hosts_agent(char *text, launch_hosts *hosts);

/* As launch_ranks, for the program `argv`; of the job only bind and output matter. */
int launch_over_hosts(const launch_job *job, const launch_hosts *hosts, char **argv);

/* What an agent started: reads standard input and looks after the ranks of this host. */
int launch_member(void);

#endif
