/*
 * Exchanges over nodes in two levels: inside, across, inside. Every rank owns some units of data (its shard,
 * its slice of a sum). A unit travels once between any two nodes: from its owner to one rank there, its
 * keeper, from which the others of that node fetch it; and a node's part of a sum is added up by the keeper
 * before it travels to the owner. The keeper of rank s's units on a node is the rank with the local number of
 * s, modulo the ranks there: so every rank's own link works, and uneven nodes share the load as well as they
 * can. With one node nothing crosses, and what is left is the exchange inside.
 *
 * Sums are added in a fixed order: nodes in order, the ranks of a node in order; those of the owner's node
 * one by one, of another node as one sum.
 *
 * Staged (staged.h), ranks of a node touch only scratch memory of each other: each copies there, unit by
 * unit, what the others read of its own, what comes from other nodes lands there, and whoever makes a result
 * leaves it there too. A rank that is alone on its node does none of that. What is sent leaves from where it
 * lies.
 *
 * Three kinds of lanes: the compute lanes move and add, the relay lane tells the node what has landed, the
 * wire lane sends. Messages of a rank are sent in the order in which the phases are generated.
 */
#ifndef WEFT_PLAN_TWO_LEVEL_H
#define WEFT_PLAN_TWO_LEVEL_H

#include "plan/generate.h"

/* Where things lie. A unit is number `unit` of those of rank `owner`. */
typedef struct weft_two_level_map {
    int64_t (*units)(void *context, int owner);
    weft_region (*part)(void *context, int rank, int owner, int64_t unit);   /* rank's share of a sum */
    weft_region (*kept)(void *context, int rank, int slot, int64_t unit);    /* scratch: a node's sum at its
                                                                                keeper, shaped as the unit */
    weft_region (*inbox)(void *context, int owner, int node, int64_t unit);  /* the same at the owner */
    weft_region (*origin)(void *context, int owner, int64_t unit);           /* what is spread */
    weft_region (*result)(void *context, int rank, int owner, int64_t unit); /* where to, on every rank */
    weft_region (*shared)(void *context, int rank, int owner, int64_t unit); /* staged: where a rank leaves a
                                                                                unit, or its share of a sum,
                                                                                for its node; else NULL */
    int64_t (*turn)(void *context, int owner); /* how many lanes later its first unit is dealt; NULL: none */
    bool stored;                               /* the owner has stored them to its own node */
    void *context;
} weft_two_level_map;

typedef struct weft_two_level {
    weft_builder *builder;
    weft_two_level_map map;
    int nodes, me, lanes;
    int *members, *first; /* ranks by node: members[first[node] .. first[node + 1]) */
    int *local;           /* [rank] its number in its node */
    int relay, wire;      /* lanes */
    uint32_t shared;      /* [rank of the node] what its relay has told */
    uint32_t copied;      /* staged: [rank of the node][lane] what it has copied for this one */
    uint32_t summed;      /* [rank of the node][lane] units it has added up as their owner */
    uint32_t ready;       /* [lane] tasks of the compute lanes that the wire lane waits for */
    int64_t *told;        /* [rank] so far, by relays */
    int64_t dealt;
    bool sums; /* the owner makes what is spread */
} weft_two_level;

/* Declares lanes and signals; operands are declared before. Ends with weft_two_level_end. */
weft_two_level weft_two_level_begin(weft_builder *builder, weft_two_level_map map);
void weft_two_level_end(weft_two_level *level);

static inline uint32_t weft_two_level_summed(const weft_two_level *level, int rank, int lane)
{
    return level->summed + (uint32_t)(level->local[rank] * level->lanes + lane);
}

int weft_two_level_node(const weft_two_level *level, int rank);
int weft_two_level_keeper(const weft_two_level *level, int node, int owner);

/* The most owners that one rank keeps units of: `kept` has a slot for each. */
int weft_two_level_slots(const weft_builder *builder);
int weft_two_level_nodes(const weft_builder *builder);
int weft_two_level_count(const int32_t *domain, int world); /* of nodes */

/* Whether the sums of an all_reduce travel once, as those of whole nodes: two_level_one_trip.c. */
bool weft_two_level_takes_one_trip(const weft_problem *problem, const int32_t *domain, int world);

/* Whether a multimem all_reduce goes so, too, and each sum is stored to its whole node: over two nodes of the
 * same size, of several ranks. */
bool weft_two_level_takes_multimem(const weft_problem *problem, const int32_t *domain, int world);

/* Every owner's units are added up, into origin. */
void weft_two_level_sum(weft_two_level *level);

/* Every owner's units go to every rank, from origin into result. */
void weft_two_level_spread(weft_two_level *level);

/* ---- what phases are made of --------------------------------------------------------------------- */

int weft_two_level_size(const weft_two_level *level, int node);
int weft_two_level_lane(weft_two_level *level); /* of the next task */

/* Nodes send in steps: in step `step` to the node so many places after theirs, and hear from the one before.
 */
int weft_two_level_receiver(const weft_two_level *level, int step);
int weft_two_level_sender(const weft_two_level *level, int step);

/* A message, sent when `after` holds (a count of 0: at once). */
void weft_two_level_send(weft_two_level *level, weft_region to, weft_region from, weft_wait after);

/* Staged: copies what `reader`, of this node, reads of this rank's, and waits for what a rank of the node has
 * copied for this one. Each rank reads in the order in which the others copy for it in a lane. */
void weft_two_level_copy_for(weft_two_level *level, int reader, int lane, weft_region to, weft_region from);
void weft_two_level_await_copy(weft_two_level *level, int rank, int lane);

/* Whether there are others on this rank's node, who read what it has. */
bool weft_two_level_has_others(const weft_two_level *level);

/* The lane that makes a unit at its owner, where the owner makes them, and how many of an owner a lane makes:
 * units are dealt in turn. */
int weft_two_level_unit_lane(const weft_two_level *level, int owner, int64_t unit);
int64_t weft_two_level_lane_units(const weft_two_level *level, int owner, int lane);

/* The slot of an owner's units at its keeper on `node`: those that keeper has of nodes before, and of its
 * own. */
int weft_two_level_slot(const weft_two_level *level, int node, int owner);

/* Every unit of this rank is sent to its keepers; where the owner makes them, when it has. */
void weft_two_level_send_own(weft_two_level *level);

/* The units of a node's ranks in the order in which they land here. */
typedef void (*weft_two_level_visit)(void *context, int owner, int64_t unit);
void weft_two_level_for_node(weft_two_level *level, int node, weft_two_level_visit visit, void *context);

/* The open task of a compute lane is one that the wire lane waits for: returns what for. */
weft_wait weft_two_level_tell_wire(weft_two_level *level, int lane);

/* The open task posts a signal at the others of the node. */
void weft_two_level_tell(weft_two_level *level, uint32_t signal);

/* A message of `from` lands here, and the node is told; returns its number. */
int64_t weft_two_level_relay(weft_two_level *level, int from);

/* What says that the next message the keeper relays is there. */
weft_wait weft_two_level_told(weft_two_level *level, int keeper);

/* What says that the next message of an owner elsewhere is on this node; this rank tells the others where it
 * is the one that keeps it. */
weft_wait weft_two_level_comes(weft_two_level *level, int owner);

void weft_generate_two_level(weft_builder *builder);      /* any collective */
void weft_generate_two_level_gemm(weft_builder *builder); /* gemm_rs, gemm_ar, gemm_as */

#endif
