/*
 * A world whose ranks are on several nodes: ranks of one node share a segment of memory, as everywhere; the
 * others are reached over the net (net/net.h), and what they show stands in shadows of their slots.
 *
 * Which ranks share a node is what they say of themselves: the same running system, the same network, and the
 * same WEFT_NODE. That they really share memory is then proved like in any other world (enter.c).
 */
#ifndef WEFT_GROUP_NODES_H
#define WEFT_GROUP_NODES_H

#include "core/cores.h"
#include "group/rendezvous.h"
#include "group/world.h"

/* How ranks get each other's first words: `bytes` of every rank, in `all` by rank. */
typedef struct weft_gatherer {
    weft_status (*gather)(void *context, const void *mine, size_t bytes, void *all, weft_error_text *error);
    void *context;
} weft_gatherer;

/* What ranks know of each other before they share memory or are connected. */
typedef struct weft_nodes weft_nodes;

/* A name of the node that this process is on. */
uint64_t weft_nodes_name(void);

/* Collective over all who are to enter. */
weft_status weft_nodes_meet(const weft_gatherer *gatherer, int rank, int size, weft_nodes **nodes,
                            weft_error_text *error);
void weft_nodes_free(weft_nodes *nodes);

int weft_nodes_count(const weft_nodes *nodes);

/* The rank that makes the memory of this rank's node, how many share it, and where they meet. */
int weft_nodes_leader(const weft_nodes *nodes);
int weft_nodes_near(const weft_nodes *nodes);
weft_rendezvous weft_nodes_rendezvous(const weft_nodes *nodes);

/* The leader: makes the node's segment, in which ranks of other nodes count as come. */
weft_status weft_nodes_segment(const weft_nodes *nodes, weft_segment *segment, weft_error_text *error);

/* This rank's cores as it has told them: what all ranks count with must be the same. */
const weft_cores *weft_nodes_cores(const weft_nodes *nodes);

/* Connects. From here on windows that are mapped have shadows in the place of far ranks' memory. */
weft_status weft_nodes_attach(weft_nodes *nodes, weft_world *world, weft_error_text *error);

#endif
