/*
 * Starting ranks on this machine and looking after them until the last of their descendants is gone.
 *
 * Two processes do it. The front is what the caller started and what gets its signals; it starts the warden,
 * which starts the ranks. The warden notices when the front ends, however that happens, and ends everything
 * below it; ranks end with the warden. Both adopt orphans (child subreapers), so also what ranks started and
 * left behind is found. Nothing of this has a name in the file system.
 */
#ifndef WEFT_TOOLS_LAUNCH_LAUNCH_H
#define WEFT_TOOLS_LAUNCH_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum launch_bind {
    LAUNCH_BIND_AUTO, /* core where there are enough, else none */
    LAUNCH_BIND_NONE,
    LAUNCH_BIND_CORE, /* each rank its own share of the cores */
    LAUNCH_BIND_NUMA, /* each rank all cores of one memory node, ranks spread evenly over nodes */
} launch_bind;

typedef enum launch_output {
    LAUNCH_OUTPUT_MERGE,  /* ranks write straight to where the caller writes */
    LAUNCH_OUTPUT_PREFIX, /* each line gets its rank in front: "[2] " */
} launch_output;

/* Names in the environment the command that has `weft run` start its ranks, and whose lines those of it are.
 */
#define LAUNCH_FOR "WEFT_BENCH_COMMAND"

typedef struct launch_job {
    const char *who; /* begins error lines: "weft run" */
    int size;
    /* By rank: a number of its node, as if there were several, connected by this machine's network; NULL:
     * one. */
    const int32_t *domain;
    /* Of a job on several hosts (hosts.h): this one has ranks from `first` on, of `total`, who meet at the
     * port of `master`. `commands` is a descriptor from which signals for the ranks come, as bytes; its end
     * ends them. total 0: all ranks are here. */
    int first, total;
    const char *host, *master, *secret;
    int port, commands;
    launch_bind bind;
    launch_output output;
    /* What a rank does, in its own process, its environment set so that weft_init works. Its result is
     * the exit status of the rank. */
    int (*body)(int rank, void *argument);
    void *argument;
} launch_job;

/* Where this program is; false when nothing tells. */
bool launch_own_path(char *path, size_t bytes);

/* Whether there is such a program, in the path or where the name says; errno tells why not. */
bool launch_finds(const char *program);

/* Runs the ranks and returns when they and what they started are gone: 0 when every rank ended with 0;
 * otherwise the status of the rank that failed first, or 128 + the signal that ended it, after one line on
 * standard error that says so. 2 when the job cannot be started as asked. */
int launch_ranks(const launch_job *job);

#endif
