/*
 * Which cores a rank may count on, beside the other ranks of its machine.
 *
 * Every rank says which CPUs it may run on and how much time of them its control group gets. A CPU that
 * several ranks may use is divided between them, a CPU of one rank alone is all its own: ranks that a
 * launcher has bound to their shares have all of them, unbound ranks an even part. The same with quotas.
 */
#ifndef WEFT_CORE_CORES_H
#define WEFT_CORE_CORES_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_CORES_WORDS = 128 }; /* 8192 CPUs, the most that Linux has */

typedef struct weft_cores {
    uint64_t machine; /* a name of it, so that ranks of two do not seem to share CPUs */
    uint64_t control; /* a name of the control group whose quota counts; 0: there is no quota */
    double quota;     /* CPUs */
    uint64_t cpus[WEFT_CORES_WORDS];
} weft_cores;

/* The CPUs that the calling thread may run on. False when the system does not say. */
bool weft_cores_allowed(uint64_t cpus[WEFT_CORES_WORDS]);

/* Of the calling thread. */
void weft_cores_here(weft_cores *cores);

/* The cores rank `rank` of `count` may count on: not a whole number where some are shared. */
double weft_cores_share(const weft_cores *const *ranks, int count, int rank);

/* The workers that a rank with such a share has where nobody says: whole cores, at least 1. */
int weft_cores_workers(double share);

/* The whole cores of one that has them to itself, at least 1: its CPUs, or what its quota is good for. */
int weft_cores_whole(const weft_cores *cores);

/* CPUs' worth of time the control group of a process gets: the least of its groups up to the root, and a name
 * of the one that says so. 0 without a quota. The process's list of groups is read from `list`
 * (/proc/self/cgroup), their files under `root` (/sys/fs/cgroup). */
double weft_cores_quota(const char *list, const char *root, uint64_t *control);

#endif
