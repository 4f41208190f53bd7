/*
 * Who started this process: the rank and size that a launcher announced in the environment.
 *
 * Looked for in this order: weft's own launcher, torchrun-style variables, Open MPI, PMI (MPICH and its
 * kin), SLURM. Where ranks are on several nodes, MASTER_ADDR and MASTER_PORT say where rank 0 is, and
 * WEFT_SECRET what it asks for: a group of fewer ranks than announced would compute something else than was
 * asked for.
 */
#ifndef WEFT_GROUP_LAUNCHER_H
#define WEFT_GROUP_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "group/rendezvous.h"
#include "group/segment.h"

typedef struct weft_launch {
    const char *launcher; /* for people; NULL: nobody, a group of one */
    int rank, size;
    int fd;         /* memory inherited from weft's launcher, or -1: the ranks have to meet */
    uint64_t nonce; /* of that memory */
    uint64_t key;   /* the same for the ranks of one job, different for others */
    bool nodes;     /* the ranks may be on several nodes: they meet over TCP, at … */
    const char *master, *secret;
    int port, ports; /* the first that rank 0 may take, and how many there are */
} weft_launch;

weft_status weft_launcher_find(weft_launch *launch, weft_error_text *error);

/* The other side: makes the calling process rank `rank` of `size` on a node of that name, who meet at `port`
 * of `master`. */
bool weft_launcher_announce_node(int rank, int size, const char *node, const char *master, int port,
                                 const char *secret);

/* Where the ranks of the job meet for the world that they enter as number `world`, counted from 0. */
weft_rendezvous weft_launcher_rendezvous(const weft_launch *launch, int world);

/* The other side: makes the calling process (a fresh fork) rank `rank` of the world, by its environment and
 * the descriptor it inherits. False when the environment cannot be set. */
bool weft_launcher_announce(const weft_segment *segment, int rank);

#endif
