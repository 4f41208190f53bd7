#include "group/nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/env.h"
#include "core/hash.h"
#include "group/far.h"
#include "net/net.h"
#include "net/secret.h"

enum { ADDRESS_BYTES = 4096, TEXT_BYTES = 256 };

/* The first words of a rank. */
typedef struct words {
    uint64_t node; /* a name of it */
    uint64_t key;  /* rank 0's is the world's */
    uint64_t heap_bytes;
    int32_t pid, rank, size;
    int32_t status; /* not WEFT_OK: it cannot take part, and `text` says why */
    char text[TEXT_BYTES];
    char host[WEFT_HOST_BYTES];
    weft_cores cores;
    uint64_t address_bytes;
    char address[ADDRESS_BYTES];
} words;

struct weft_nodes {
    int rank, size, count, leader, near;
    weft_net *net;
    int *domain; /* by rank: nodes are numbered in the order of their first ranks */
    words *all;
};

/* ---- meeting -------------------------------------------------------------------------------------- */

static uint64_t hash_file(uint64_t hash, const char *path)
{
    char text[64] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd >= 0 ? read(fd, text, sizeof(text)) : 0;

    if (fd >= 0)
        close(fd);
    return weft_hash(hash, text, bytes > 0 ? (size_t)bytes : 0);
}

/* Ranks of one system meet at a socket in the abstract namespace, of which each network has one. */
uint64_t weft_nodes_name(void)
{
    const char *node = weft_env_word(WEFT_ENV_NODE);
    char network[64] = "", host[WEFT_HOST_BYTES] = "";
    uint64_t hash = hash_file(WEFT_HASH_START, "/proc/sys/kernel/random/boot_id");
    ssize_t bytes = readlink("/proc/self/ns/net", network, sizeof(network));

    gethostname(host, sizeof(host) - 1);
    hash = weft_hash(hash, network, bytes > 0 ? (size_t)bytes : 0);
    hash = weft_hash(hash, host, strlen(host) + 1);
    return weft_hash(hash, node, strlen(node));
}

/* What fails here is told to all, so that nobody waits for this rank. */
static void find_words(weft_nodes *nodes, words *mine, weft_error_text *error)
{
    weft_status status = weft_net_open(nodes->size, &nodes->net, error);
    const void *address;
    size_t bytes = 0;

    memset(mine, 0, sizeof(*mine));
    mine->rank = nodes->rank;
    mine->size = nodes->size;
    mine->pid = (int32_t)getpid();
    gethostname(mine->host, sizeof(mine->host) - 1);
    mine->node = weft_nodes_name();
    weft_cores_here(&mine->cores);
    if (status == WEFT_OK)
        status = weft_segment_heap(nodes->size, &mine->heap_bytes, error);
    if (status == WEFT_OK && !weft_random(&mine->key, sizeof(mine->key)))
        status = weft_error_set(error, WEFT_ERR_SYSTEM, "cannot get random bytes: %s", strerror(errno));
    if (status == WEFT_OK) {
        address = weft_net_address(nodes->net, &bytes);
        if (bytes > sizeof(mine->address))
            status = weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                    "the address of rank %d has %zu bytes, more than %zu; fewer network "
                                    "devices (UCX_NET_DEVICES) make it shorter",
                                    nodes->rank, bytes, sizeof(mine->address));
        else
            memcpy(mine->address, address, bytes);
    }
    mine->address_bytes = bytes;
    mine->status = (int32_t)status;
    if (status != WEFT_OK)
        snprintf(mine->text, sizeof(mine->text), "%.255s", error->text);
}

static weft_status judge(const weft_nodes *nodes, weft_error_text *error)
{
    for (int rank = 0; rank < nodes->size; rank++) {
        const words *theirs = &nodes->all[rank];

        if (theirs->rank != rank || theirs->size != nodes->size)
            return weft_error_set(error, WEFT_ERR_MISMATCH, "in place %d of %d there is rank %d of %d", rank,
                                  nodes->size, (int)theirs->rank, (int)theirs->size);
        if (theirs->status != WEFT_OK)
            return weft_error_set(error, (weft_status)theirs->status, "rank %d on %.63s: %.255s", rank,
                                  theirs->host, theirs->text);
    }
    return WEFT_OK;
}

static void number_nodes(weft_nodes *nodes)
{
    for (int rank = 0; rank < nodes->size; rank++) {
        int first = 0;

        while (nodes->all[first].node != nodes->all[rank].node)
            first++;
        nodes->domain[rank] = first == rank ? nodes->count++ : nodes->domain[first];
        if (nodes->all[rank].node == nodes->all[nodes->rank].node) {
            nodes->leader = nodes->near ? nodes->leader : rank;
            nodes->near++;
        }
    }
}

weft_status weft_nodes_meet(const weft_gatherer *gatherer, int rank, int size, weft_nodes **nodes_out,
                            weft_error_text *error)
{
    weft_nodes *nodes = calloc(1, sizeof(*nodes));
    words *mine = malloc(sizeof(*mine));
    weft_status status = WEFT_OK;

    if (nodes) {
        nodes->all = calloc((size_t)size, sizeof(*nodes->all));
        nodes->domain = calloc((size_t)size, sizeof(*nodes->domain));
        nodes->rank = rank;
        nodes->size = size;
    }
    if (!nodes || !nodes->all || !nodes->domain || !mine) {
        status = weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for the words of %d ranks", size);
    } else {
        find_words(nodes, mine, error);
        status = gatherer->gather(gatherer->context, mine, sizeof(*mine), nodes->all, error);
    }
    free(mine);
    if (status == WEFT_OK)
        status = judge(nodes, error);
    if (status != WEFT_OK) {
        weft_nodes_free(nodes);
        return status;
    }
    number_nodes(nodes);
    *nodes_out = nodes;
    return WEFT_OK;
}

void weft_nodes_free(weft_nodes *nodes)
{
    if (!nodes)
        return;
    if (nodes->net)
        weft_net_close(nodes->net);
    free(nodes->all);
    free(nodes->domain);
    free(nodes);
}

int weft_nodes_count(const weft_nodes *nodes)
{
    return nodes->count;
}

int weft_nodes_leader(const weft_nodes *nodes)
{
    return nodes->leader;
}

int weft_nodes_near(const weft_nodes *nodes)
{
    return nodes->near;
}

/* The world's key is random: nobody else can guess, occupy or join the rendezvous. */
weft_rendezvous weft_nodes_rendezvous(const weft_nodes *nodes)
{
    weft_rendezvous rendezvous = {.host = nodes->leader};

    snprintf(rendezvous.name, sizeof(rendezvous.name), "weft-%016llx%016llx",
             (unsigned long long)nodes->all[0].key, (unsigned long long)nodes->all[nodes->rank].node);
    memcpy(rendezvous.token, &nodes->all[nodes->leader].key, sizeof(uint64_t));
    return rendezvous;
}

/* ---- memory --------------------------------------------------------------------------------------- */

weft_status weft_nodes_segment(const weft_nodes *nodes, weft_segment *segment, weft_error_text *error)
{
    uint64_t heap_bytes = nodes->all[0].heap_bytes;
    weft_status status;

    for (int rank = 1; rank < nodes->size; rank++)
        if (nodes->all[rank].heap_bytes < heap_bytes)
            heap_bytes = nodes->all[rank].heap_bytes;
    status = weft_segment_create_sized(nodes->size, heap_bytes, segment, error);
    if (status != WEFT_OK)
        return status;
    for (int rank = 0; rank < nodes->size; rank++) {
        weft_rank_entry *entry = &segment->header->ranks[rank];

        if (nodes->domain[rank] == nodes->domain[nodes->rank])
            continue;
        entry->pid = nodes->all[rank].pid;
        entry->proof = segment->header->nonce + 1 + (uint64_t)rank;
        entry->cores = nodes->all[rank].cores;
        entry->state = WEFT_RANK_IN; /* nobody else has the memory yet */
    }
    return WEFT_OK;
}

const weft_cores *weft_nodes_cores(const weft_nodes *nodes)
{
    return &nodes->all[nodes->rank].cores;
}

weft_status weft_nodes_attach(weft_nodes *nodes, weft_world *world, weft_error_text *error)
{
    const void *addresses[WEFT_RANKS_MAX];
    weft_net_world seen = {
        .rank = nodes->rank, .size = nodes->size, .key = nodes->all[0].key, .hooks = weft_far_hooks(world)};
    double silence;
    weft_status status = weft_env_seconds(WEFT_ENV_LINK_TIMEOUT, &silence, error);

    if (status != WEFT_OK)
        return status;
    world->hosts = calloc(WEFT_RANKS_MAX, sizeof(*world->hosts));
    if (!world->hosts)
        return weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for the names of nodes");
    for (int rank = 0; rank < nodes->size; rank++) {
        memcpy(world->hosts[rank], nodes->all[rank].host, sizeof(world->hosts[rank]));
        addresses[rank] =
            nodes->domain[rank] == nodes->domain[nodes->rank] ? NULL : (const void *)nodes->all[rank].address;
    }
    seen.silence_ns = (int64_t)(silence * 1e9);
    world->domain = nodes->domain;
    world->net = nodes->net;
    nodes->domain = NULL;
    nodes->net = NULL;
    /* The first window was mapped before it was known who is far. */
    for (int rank = 0; rank < nodes->size; rank++)
        if (weft_world_far(world, rank) && world->segment.windows[0] &&
            !weft_segment_cast(&world->segment, rank, 0))
            return weft_error_set(error, WEFT_ERR_MEMORY, "cannot map room for what other nodes show: %s",
                                  strerror(errno));
    weft_world_watch_exit();
    return weft_net_begin(world->net, &seen, addresses, error);
}
