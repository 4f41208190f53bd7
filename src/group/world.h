/*
 * A world: ranks that share one segment of memory, as this process sees it. Groups stand on it: the group of
 * all its ranks, and those that were split off.
 *
 * Ranks that are threads of one call (weft_group_threads) share one weft_world. Every other rank has its own,
 * with its own mapping of the segment, also when several of them live in one process.
 *
 * A child of fork is no rank. It gets the handles of its parent, but they are dead in it: their groups say so
 * (weft_guest), and nothing is written to the shared memory any more.
 */
#ifndef WEFT_GROUP_WORLD_H
#define WEFT_GROUP_WORLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "group/segment.h"

struct weft_control;
struct weft_net;

enum { WEFT_HOST_BYTES = 64 };

/* One member of a group. */
typedef struct weft_seat {
    int world_rank;
    bool far;      /* on another node: its control block here is a shadow (net/net.h) */
    uint32_t left; /* what its count of groups left in the window becomes when it leaves this one */
    struct weft_control *control;
} weft_seat;

/* A window that a freed sub-group of this rank may still occupy, until all members have freed it. */
typedef struct weft_vacated {
    struct weft_vacated *next;
    int window, size, rank;
    weft_seat seats[];
} weft_vacated;

/* What one rank of a world keeps for all its groups; only that rank's thread touches it. */
typedef struct weft_member {
    uint64_t windows; /* bit w: this rank is in a group of window w */
    int groups;       /* that it has not left */
    uint64_t heap_used;
    weft_vacated *vacated;
} weft_member;

/* A group as its world knows it. */
typedef struct weft_guest {
    struct weft_guest *next, **link;
    void (*orphan)(struct weft_guest *guest); /* called in a child of fork */
} weft_guest;

typedef struct weft_world {
    weft_segment segment;
    bool processes; /* liveness must be watched: not all ranks are threads of this handle's process */
    bool foreign;   /* this process is a child of the one that made it */
    int rank;       /* of this handle, when `processes` */
    weft_life life;
    struct weft_net *net;           /* NULL: all ranks are on this node */
    int *domain;                    /* by rank, when there is a net: the number of its node */
    char (*hosts)[WEFT_HOST_BYTES]; /* likewise: the name of its machine */
    _Atomic int references;
    weft_member *members; /* by world rank; of process ranks only the own entry is used */
    weft_guest *guests;
    struct weft_world *next, **link;
} weft_world;

/* Takes the segment over; on failure it is released. The caller has the first reference. */
weft_status weft_world_create(const weft_segment *segment, bool processes, int rank, weft_world **world,
                              weft_error_text *error);

/* Makes a window ready for the rank: mapped, and its control block there. */
weft_status weft_world_prepare(weft_world *world, int window, int rank, weft_error_text *error);

void weft_world_hold(weft_world *world, weft_guest *guest);

/* Takes the guest out; NULL: the first reference. The last one unmaps the segment. */
void weft_world_drop(weft_world *world, weft_guest *guest);

/* From here on ranks of other nodes hear when this process ends. Called once the net's libraries are loaded,
 * so that it comes before they end. */
void weft_world_watch_exit(void);

/* Calls for every group of the world. */
void weft_world_each_guest(weft_world *world, void (*call)(weft_guest *guest));

/* Whether a rank is on another node than the one of this handle. */
static inline bool weft_world_far(const weft_world *world, int rank)
{
    return world->net && world->domain[rank] != world->domain[world->rank];
}

static inline weft_rank_entry *weft_seat_entry(const weft_world *world, const weft_seat *seat)
{
    return &world->segment.header->ranks[seat->world_rank];
}

#endif
