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
 */
#include "run/cpu/small.h"

#include "core/dtype.h"
#include "run/cpu/reduce.h"

#include <string.h>

enum {
    /* Two ranks are faster by a plan from here on: the payload is then read where it lies. More ranks are
     * likely to share cores, where the second hop of a plan costs more than copying. */
    PAIR_BYTES = 1024,
};

static int64_t send_shares(int world, weft_op op)
{
    return op == WEFT_OP_REDUCE_SCATTER || op == WEFT_OP_ALL_TO_ALL ? world : 1;
}

bool weft_small_fits(const weft_group *group, const weft_problem *p)
{
    int world = group->size;
    int64_t most = world == 2 && !group->spread ? PAIR_BYTES : WEFT_SMALL_BYTES;

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

/* `bytes`: of a share. */
static void finish(weft_executor *x, const weft_problem *p, size_t bytes, void *recv)
{
    bool mine = p->op == WEFT_OP_REDUCE_SCATTER || p->op == WEFT_OP_ALL_TO_ALL;
    size_t offset = mine ? bytes * (size_t)x->rank : 0;
    weft_view sources[WEFT_RANKS_MAX], into = {recv, p->count};

    switch (p->op) {
    case WEFT_OP_ALL_REDUCE:
    case WEFT_OP_REDUCE_SCATTER:
        for (int rank = 0; rank < x->world; rank++)
            sources[rank] = (weft_view){slot_of(x, rank)->payload + offset, p->count};
        weft_reduce_rows(p->dtype, p->reduction, 1, p->count, sources, x->world, p->dtype, &into, 1);
        break;
    case WEFT_OP_BROADCAST:
        if (x->rank != p->root)
            memcpy(recv, slot_of(x, p->root)->payload, bytes);
        break;
    default:
        for (int rank = 0; rank < x->world; rank++)
            memcpy((char *)recv + (size_t)rank * bytes, slot_of(x, rank)->payload + offset, bytes);
        break;
    }
}

/* To one rank of every other node, with the record. */
static void show_far(const weft_executor *x, const weft_small *own, size_t bytes)
{
    weft_session *s = x->session;

    for (int i = 0; i < s->listener_count; i++) {
        weft_small *there = &s->listeners[i].there->small[x->small_count & 1];
        weft_net_put record, put = {.into = &there->hash,
                                    .from = &own->hash,
                                    .rows = 1,
                                    .row_bytes = sizeof(own->hash) + bytes,
                                    .effect = WEFT_NET_STORE,
                                    .post_count = 1,
                                    .posts = {{&there->sequence, s->sequence}}};
        bool along = weft_session_take_along(s, s->listeners[i].rank, &record);

        weft_net_send_behind(x->group->world->net, x->group->seats[s->listeners[i].rank].world_rank, &put,
                             along ? &record : NULL);
    }
}

weft_status weft_small_run(weft_executor *x, const weft_problem *p, const void *send, void *recv)
{
    size_t bytes = (size_t)p->count * weft_dtype_size(p->dtype),
           sent = bytes * (size_t)send_shares(x->world, p->op);
    uint64_t hash = hash_of(p);
    weft_small *own = slot_of(x, x->rank);
    weft_status status = weft_group_check(x->group);

    if (status != WEFT_OK)
        return status;
    weft_session_begin(x->session, WEFT_CALLED_SMALL, hash, p);
    weft_session_publish_near(x->session);
    own->hash = hash;
    if (p->count && (p->op != WEFT_OP_BROADCAST || x->rank == p->root))
        memcpy(own->payload, send, sent);
    /* Partner: arrived on the peers. */
    weft_signal_store(&own->sequence, x->session->sequence);
    show_far(x, own, sent);
    for (int rank = 0; rank < x->world && status == WEFT_OK; rank++)
        if (rank != x->rank)
            status = wait_for(x, rank, p->op, hash);
    if (status != WEFT_OK)
        return weft_group_check(x->group) == WEFT_OK ? weft_session_resync(x->session, false) : status;
    if (__builtin_expect(weft_run_before_task != NULL, 0))
        weft_run_before_task(x->rank, 0);
    if (p->count) /* buffers of nothing may be NULL */
        finish(x, p, bytes, recv);
    x->small_count++;
    return WEFT_OK;
}
