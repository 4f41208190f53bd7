/*
 * A rank writes its payload into its own slot, then the call's number (release); its peers wait for that
 * number in the slot (acquire) and read the payload from there. Every rank waits for every other, whatever
 * the operation.
 *
 * Slots alternate. The slot of small collective j is written again for number j + 2; by then the rank has
 * finished number j + 1, so every peer has begun that one and is through with j. Other calls in between
 * change nothing, because small collectives are counted apart.
 *
 * A slot also shows the hash of what was asked. Ranks that ask for different small collectives see it there;
 * a rank that waits in vain looks at the records, in which every call is announced.
 *
 * Far ranks have one copy of the slot a node, at the rank that listens there. Of an all_to_all it holds only
 * the shares of that node's ranks, one behind the other; a record follows only if the call fails.
 */
#include "run/cpu/small.h"

#include "core/dtype.h"
#include "run/cpu/reduce.h"

#include <string.h>

enum {
    /* Two ranks are faster by a plan from here on: the payload is then read where it lies. More ranks are
     * likely to share cores, where the second hop of a plan costs more than copying. */
    PAIR_BYTES = 1024,
    NEAR_BYTES = 4096,
    FAR_BYTES = 16 << 10, /* the same where a plan costs more: what it sends, and what its parts wait for */
};

static int64_t send_shares(int world, weft_op op)
{
    return op == WEFT_OP_REDUCE_SCATTER || op == WEFT_OP_ALL_TO_ALL ? world : 1;
}

/* Sums of several ranks a node travel as one where there is a plan. */
static int64_t most_bytes(const weft_group *group, weft_op op)
{
    if (!group->spread)
        return group->size == 2 ? PAIR_BYTES : NEAR_BYTES;
    if (group->size > 2 && (op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_REDUCE_SCATTER))
        return NEAR_BYTES;
    return op == WEFT_OP_ALL_TO_ALL ? WEFT_SMALL_BYTES : FAR_BYTES;
}

bool weft_small_fits(const weft_group *group, const weft_problem *p)
{
    int world = group->size;
    int64_t most = most_bytes(group, p->op);

    return p->count <= most &&
           p->count * (int64_t)weft_dtype_size(p->dtype) * send_shares(world, p->op) <= most;
}

static uint64_t hash_of(const weft_problem *p)
{
    uint64_t hash = (uint64_t)p->count << 24 ^ (uint64_t)p->op << 16 ^ (uint64_t)p->dtype << 12 ^
                    (uint64_t)p->reduction << 8 ^ (uint64_t)p->root;

    return hash * 0x9e3779b97f4a7c15u;
}

static weft_small *slot_of(const weft_executor *x, int rank)
{
    return &x->session->of[rank]->small[x->small_count & 1];
}

typedef struct arrival {
    weft_executor *x;
    weft_small *slot;
    unsigned polls;
} arrival;

static bool arrived(void *argument)
{
    arrival *a = argument;

    /* Partner: the store in weft_small_run there. */
    return weft_signal_reached(&a->slot->sequence, a->x->session->sequence) ||
           (++a->polls % WEFT_WAIT_LOOKS == 0 && weft_session_faulted(a->x->session));
}

static weft_status wait_for(weft_executor *x, int rank, weft_op op, uint64_t hash)
{
    arrival a = {.x = x, .slot = slot_of(x, rank)};
    weft_wait_note note = {.op = weft_op_name(op),
                           .peer = rank,
                           .task = -1,
                           .epoch = x->session->sequence,
                           .kind = WEFT_WAIT_ENTER};
    weft_status status = weft_wait_beside(x->group, &a.slot->sequence, arrived, &a, &note);

    if (status != WEFT_OK)
        return status;
    if (atomic_load_explicit(&x->session->fault, memory_order_relaxed) || a.slot->hash != hash)
        return WEFT_ERR_MISMATCH;
    return WEFT_OK;
}

/* Where the share of this rank begins in what `rank` shows. */
static const char *share_of(const weft_executor *x, int rank, size_t bytes)
{
    const weft_session *s = x->session;
    bool far = s->node && s->node[rank] != s->node[x->rank];

    return slot_of(x, rank)->payload + bytes * (size_t)(far ? s->place : x->rank);
}

/* `bytes`: of a share. */
static void finish(weft_executor *x, const weft_problem *p, size_t bytes, const void *send, void *recv)
{
    weft_view sources[WEFT_RANKS_MAX], into = {recv, p->count};

    switch (p->op) {
    case WEFT_OP_ALL_REDUCE:
    case WEFT_OP_REDUCE_SCATTER:
        for (int rank = 0; rank < x->world; rank++)
            sources[rank] = (weft_view){slot_of(x, rank)->payload +
                                            (p->op == WEFT_OP_ALL_REDUCE ? 0 : bytes * (size_t)x->rank),
                                        p->count};
        weft_reduce_rows(p->dtype, p->reduction, 1, p->count, sources, x->world, p->dtype, &into, 1);
        break;
    case WEFT_OP_BROADCAST:
        if (x->rank != p->root)
            memcpy(recv, slot_of(x, p->root)->payload, bytes);
        break;
    default: /* first its own, which may lie where others' go */
        memmove((char *)recv + (size_t)x->rank * bytes,
                (const char *)send + (p->op == WEFT_OP_ALL_TO_ALL ? (size_t)x->rank * bytes : 0), bytes);
        for (int rank = 0; rank < x->world; rank++)
            if (rank != x->rank)
                memcpy((char *)recv + (size_t)rank * bytes,
                       p->op == WEFT_OP_ALL_TO_ALL ? share_of(x, rank, bytes) : slot_of(x, rank)->payload,
                       bytes);
        break;
    }
}

/* The shares of an all_to_all for the ranks of a node, where they lie one behind the other or in `gathered`.
 */
static const char *shares_for(const weft_session *s, int node, const char *send, size_t bytes, char *gathered,
                              size_t *sent)
{
    int first = 0, end, count = 0;

    while (s->node[first] != node)
        first++;
    for (end = first; end < s->world && s->node[end] == node;)
        end++;
    for (int rank = end; rank < s->world; rank++)
        count += s->node[rank] == node;
    *sent = bytes * (size_t)(end - first + count);
    if (!count)
        return send + bytes * (size_t)first;
    count = 0;
    for (int rank = first; rank < s->world; rank++)
        if (s->node[rank] == node)
            memcpy(gathered + bytes * (size_t)count++, send + bytes * (size_t)rank, bytes);
    return gathered;
}

/* To one rank of every other node. */
static void show_far(const weft_executor *x, const weft_problem *p, uint64_t hash, const char *send,
                     size_t share, size_t bytes)
{
    const weft_session *s = x->session;
    char gathered[WEFT_SMALL_BYTES];

    for (int i = 0; i < s->listener_count; i++) {
        weft_small *there = &s->listeners[i].there->small[x->small_count & 1];
        weft_net_put put = {.into = there->payload,
                            .from = send,
                            .rows = 1,
                            .row_bytes = bytes,
                            .effect = WEFT_NET_STORE,
                            .post_count = 2,
                            .mark_count = 1,
                            .posts = {{&there->hash, hash}, {&there->sequence, s->sequence}}};

        if (p->op == WEFT_OP_ALL_TO_ALL)
            put.from = shares_for(s, s->listeners[i].node, send, share, gathered, &put.row_bytes);
        weft_net_send(x->group->world->net, x->group->seats[s->listeners[i].rank].world_rank, &put, NULL);
    }
}

weft_status weft_small_run(weft_executor *x, const weft_problem *p, const void *send, void *recv)
{
    size_t bytes = (size_t)p->count * weft_dtype_size(p->dtype),
           sent = bytes * (size_t)send_shares(x->world, p->op);
    uint64_t hash = hash_of(p);
    weft_small *own = slot_of(x, x->rank);
    bool shows = p->count && (p->op != WEFT_OP_BROADCAST || x->rank == p->root);
    bool sums = p->op == WEFT_OP_ALL_REDUCE || p->op == WEFT_OP_REDUCE_SCATTER;
    weft_status status = weft_group_check(x->group);

    if (status != WEFT_OK)
        return status;
    weft_session_begin(x->session, WEFT_CALLED_SMALL, hash, p);
    weft_session_publish_near(x->session);
    own->hash = hash;
    if (shows && (sums || x->session->near_count > 1))
        memcpy(own->payload, send, sent);
    /* Partner: arrived on the peers. */
    weft_signal_store(&own->sequence, x->session->sequence);
    if (x->group->spread)
        show_far(x, p, hash, send, bytes, shows ? sent : 0);
    for (int rank = 0; rank < x->world && status == WEFT_OK; rank++)
        if (rank != x->rank)
            status = wait_for(x, rank, p->op, hash);
    if (status != WEFT_OK)
        return weft_group_check(x->group) == WEFT_OK ? weft_session_resync(x->session, false) : status;
    if (__builtin_expect(weft_run_before_task != NULL, 0))
        weft_run_before_task(x->rank, 0);
    if (p->count) /* buffers of nothing may be NULL */
        finish(x, p, bytes, send, recv);
    x->small_count++;
    return WEFT_OK;
}
