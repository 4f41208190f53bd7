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
 * a rank that waits in vain looks at the records, in which every call is announced: here as the last that a
 * rank does before it waits, so that peers need not wait for it to be written.
 *
 * What peers could read where it lies is better run by a plan unless it is very small. What they cannot reach
 * would be copied for a plan too, so that it is small up to all that a slot holds. Where operands lie the
 * ranks know from the last call of the operation (run/reach.h); those that are small for that reason tell it
 * as well.
 *
 * Where ranks share cores, the last one that comes to a core finds everybody there. It would go on with what
 * follows the call while a rank that came before it still waits on the same core; so it lets that one go
 * first.
 *
 * Between nodes the first rank of each carries: it waits for the slots of its node and sends what is in them,
 * one behind the other, as one message to the first rank of every other node, where all of that node read it.
 * Of an all_to_all that is only the shares of those ranks. Bundles alternate as slots do: a node
 * sends number j + 2 when its ranks have finished j + 1, for which all of the other node had begun that.
 *
 * Where ranks share cores, a message takes time of a core that another rank needs, and n nodes would send
 * n (n - 1). Then the others send to node 0 alone, whose first rank, the hub, sends each what it is to get:
 * 2 (n - 1), for one hop more. The hub sends number j when it has heard of all nodes that they have begun j.
 */
#include "run/cpu/small.h"

#include "core/dtype.h"
#include "core/round.h"
#include "run/cpu/reduce.h"

#include <sched.h>
#include <stddef.h>
#include <string.h>

enum {
    NEAR_BYTES = 4096,
/* Two ranks are faster by a plan from here on: the payload is then read where it lies. More ranks are
 * likely to share cores, where the second hop of a plan costs more than copying; and where lines of a
 * slot are asked for ahead, copying costs less. */
#if defined(__x86_64__)
    PAIR_BYTES = 2048,
#else
    PAIR_BYTES = 1024,
#endif
    BESIDE_FLAG_BYTES = PAIR_BYTES, /* of a payload to which a line more matters: it begins in its flag's */
    AHEAD_BYTES = NEAR_BYTES,       /* of a slot, that are asked for ahead: more would wait for each other */
    LOOKS = 32,                     /* at a peer's slot before a wait that watches the group as well */
    FAR_BYTES = 16 << 10, /* the same where a plan costs more: what it sends, and what its parts wait for */
    FAR_SHARES_BYTES = 32 << 10,  /* of an all_to_all … */
    LONE_SHARES_BYTES = 64 << 10, /* … of ranks alone on their nodes, who copy it for nobody */
    HUB_SHARE_BYTES = 8 << 10,    /* of an all_to_all through the hub … */
    THREE_SHARE_BYTES = 4 << 10,  /* … of three nodes */
    PACKET_BYTES = 1368,          /* that an Ethernet packet carries besides what a message says of itself */
    SUMMED_BYTES = 128 << 10,     /* of all ranks, which each adds up by itself: beyond, sharing that pays */
};

static int64_t send_shares(int world, weft_op op)
{
    return op == WEFT_OP_REDUCE_SCATTER || op == WEFT_OP_ALL_TO_ALL ? world : 1;
}

/* Bytes of a bundle that are of one rank. */
static int64_t bundle_bytes(int world)
{
    int64_t each =
        WEFT_BUNDLE_BYTES / world / WEFT_LINE_BYTES * WEFT_LINE_BYTES; /* sums read elements there */

    return weft_min(each, WEFT_SMALL_BYTES);
}

static bool are_alone(const weft_group *group)
{
    return group->session && group->session->seating && group->session->seating->node_count == group->size;
}

/* Whether nodes send to the hub. `bytes`: of a share. With three nodes it spares two messages, which cost
 * less than a hop while they fit a packet. Of an all_to_all each share travels once more through the hub. */
static bool through_hub(const weft_group *group, weft_op op, size_t bytes)
{
    int nodes = group->session && group->session->seating ? group->session->seating->node_count : 1;
    size_t message = op == WEFT_OP_REDUCE_SCATTER ? bytes * (size_t)group->size : bytes;

    if (group->alone || nodes < 3 || (nodes == 3 && are_alone(group) && message <= PACKET_BYTES))
        return false;
    return op != WEFT_OP_ALL_TO_ALL || bytes <= (nodes == 3 ? THREE_SHARE_BYTES : HUB_SHARE_BYTES);
}

/* By a plan, sums of several ranks a node travel as one, and of more nodes each sends fewer bytes. */
static int64_t most_bytes(const weft_group *group, weft_op op)
{
    int64_t most;

    if (!group->spread)
        return group->size == 2 ? PAIR_BYTES : NEAR_BYTES;
    most = op != WEFT_OP_ALL_TO_ALL ? FAR_BYTES : are_alone(group) ? LONE_SHARES_BYTES : FAR_SHARES_BYTES;
    if (op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_REDUCE_SCATTER)
        most = through_hub(group, op, FAR_BYTES / 2) ? FAR_BYTES / 2
                                                     : weft_max(FAR_BYTES / (group->size - 1), NEAR_BYTES);
    return weft_min(most, bundle_bytes(group->size));
}

static bool fits(const weft_group *group, const weft_problem *p, int64_t most)
{
    return p->count <= most &&
           p->count * (int64_t)weft_dtype_size(p->dtype) * send_shares(group->size, p->op) <= most;
}

/* Of what peers cannot reach. */
static int64_t most_beyond(const weft_group *group, weft_op op)
{
    int64_t shared = op == WEFT_OP_ALL_REDUCE ? SUMMED_BYTES / group->size : WEFT_SMALL_BYTES;

    return weft_min(shared, WEFT_SMALL_BYTES);
}

bool weft_small_fits(const weft_group *group, const weft_problem *p)
{
    if (fits(group, p, most_bytes(group, p->op)))
        return true;
    return !group->spread && group->session && group->session->reach[p->op] == WEFT_REACH_BEYOND &&
           fits(group, p, most_beyond(group, p->op));
}

static uint64_t hash_of(const weft_problem *p)
{
    uint64_t hash = (uint64_t)p->count << 24 ^ (uint64_t)p->op << 16 ^ (uint64_t)p->dtype << 12 ^
                    (uint64_t)p->reduction << 8 ^ (uint64_t)p->root;

    return hash * 0x9e3779b97f4a7c15u;
}

bool weft_small_take(weft_group *group, const weft_problem *p)
{
    enum { BEHIND_FLAG = offsetof(weft_small, payload) };
    weft_small_call *call = &group->session->small;
    size_t element_bytes = weft_dtype_size(p->dtype), bytes = (size_t)p->count * element_bytes;
    size_t shown = bytes * (size_t)send_shares(group->size, p->op);

    if (!weft_small_fits(group, p))
        return false;
    /* Where a line more does not matter, a payload is at the beginning of one. */
    *call = (weft_small_call){.problem = *p,
                              .reach = group->session->reach[p->op],
                              .element_bytes = element_bytes,
                              .bytes = bytes,
                              .shown = p->op == WEFT_OP_BROADCAST && group->rank != p->root ? 0 : shown,
                              .payload = shown <= BESIDE_FLAG_BYTES ? BEHIND_FLAG : WEFT_LINE_BYTES,
                              .hash = hash_of(p),
                              .sums = p->op == WEFT_OP_ALL_REDUCE || p->op == WEFT_OP_REDUCE_SCATTER,
                              .told = !group->spread && !fits(group, p, most_bytes(group, p->op)),
                              .hub = through_hub(group, p->op, bytes)};
    return true;
}

/* Whether a plan would have to copy what this rank gives or gets. */
static bool is_beyond(const weft_executor *x, const weft_small_call *c, const void *send, const void *recv)
{
    return c->shown &&
           (!weft_symm_contains(x->group, send, c->shown) ||
            (c->problem.op == WEFT_OP_ALL_REDUCE && !weft_symm_contains(x->group, recv, c->bytes)));
}

/* Of a rank of this node. */
static weft_small *slot_of(const weft_executor *x, int rank)
{
    const weft_session *s = x->session;

    return &((weft_run_control *)(void *)((char *)s->control + s->delta[rank]))->small[x->small_count & 1];
}

/* What a rank of this node shows. */
static char *payload_of(weft_small *slot, const weft_small_call *c)
{
    return (char *)slot + c->payload;
}

/* The lines of its slot that this rank is about to write, and peers have read since. */
static void fetch_slot(weft_small *own, const weft_small_call *c, size_t shown)
{
    weft_fetch_to_write(own);
    weft_fetch_all_to_write(payload_of(own, c), weft_min((int64_t)shown, AHEAD_BYTES));
}

/* What node `from` shows, where the first rank of `node` has it. */
static weft_bundle *bundle_at(const weft_executor *x, int node, int from)
{
    const weft_session *s = x->session;
    char *area = (char *)s->control + s->delta[s->seating->first[node]] + s->bundles;

    return (weft_bundle *)(void *)area + (x->small_count & 1 ? s->seating->node_count : 0) + from;
}

static char *load_at(const weft_executor *x, int node, int from)
{
    const weft_session *s = x->session;
    char *area = (char *)s->control + s->delta[s->seating->first[node]] + s->bundles +
                 2 * sizeof(weft_bundle) * (size_t)s->seating->node_count;

    return area + (x->small_count & 1 ? WEFT_BUNDLE_BYTES : 0) +
           (size_t)bundle_bytes(x->world) * (size_t)s->seating->before[from];
}

typedef struct slot_wait {
    weft_executor *x;
    weft_signal *sequence;
    unsigned polls;
} slot_wait;

static bool is_there(void *argument)
{
    slot_wait *a = argument;

    /* Partners: the stores in weft_small_run and carry there. */
    return weft_signal_reached(a->sequence, a->x->session->sequence) ||
           (++a->polls % WEFT_WAIT_LOOKS == 0 && weft_session_faulted(a->x->session));
}

/* Apart, so that a peer who is nearly there costs no more than the looks at what it shows. */
static weft_status __attribute__((noinline))
wait_long(weft_executor *x, int rank, weft_signal *sequence, weft_op op)
{
    slot_wait wait = {.x = x, .sequence = sequence};
    weft_wait_note note = {.op = weft_op_name(op),
                           .peer = rank,
                           .task = -1,
                           .epoch = x->session->sequence,
                           .kind = WEFT_WAIT_ENTER};

    return weft_wait_beside(x->group, sequence, is_there, &wait, &note);
}

static weft_status wait_for(weft_executor *x, int rank, weft_signal *sequence, const uint64_t *shown,
                            const weft_small_call *c)
{
    weft_status status = WEFT_OK;
    int looks = 0;

    /* Partners: the stores in weft_small_run and carry there. */
    while (!weft_signal_reached(sequence, x->session->sequence) && status == WEFT_OK) {
        if (++looks < LOOKS && x->group->alone && !x->group->spread)
            weft_pause();
        else
            status = wait_long(x, rank, sequence, c->problem.op);
        if (status == WEFT_OK && atomic_load_explicit(&x->session->fault, memory_order_relaxed))
            return WEFT_ERR_MISMATCH;
    }
    return status == WEFT_OK && *shown != c->hash ? WEFT_ERR_MISMATCH : status;
}

static bool is_near(const weft_session *s, int rank)
{
    return !s->seating || s->seating->node[rank] == s->seating->node[s->rank];
}

static weft_status wait_near(weft_executor *x, const weft_small_call *c)
{
    weft_status status = WEFT_OK;

    for (int rank = 0; rank < x->world && status == WEFT_OK; rank++) {
        weft_small *slot = slot_of(x, rank);

        if (rank != x->rank && is_near(x->session, rank))
            status = wait_for(x, rank, &slot->sequence, &slot->hash, c);
    }
    return status;
}

/* For the nodes before `end`. */
static weft_status wait_far(weft_executor *x, const weft_small_call *c, int end)
{
    const weft_seating *seats = x->session->seating;
    weft_status status = WEFT_OK;

    for (int node = 0; node < end && status == WEFT_OK; node++) {
        weft_bundle *bundle = bundle_at(x, seats->node[x->rank], node);

        if (node != seats->node[x->rank])
            status = wait_for(x, seats->first[node], &bundle->sequence, &bundle->hash, c);
    }
    return status;
}

/* Whether a rank that came to this call before this one waits on the same core. A system may not say which it
 * is (-1). */
static bool is_waited_behind(const weft_executor *x, int cpu, uint64_t number)
{
    for (int rank = 0; rank < x->world && cpu >= 0; rank++) {
        const weft_small *slot = rank != x->rank && is_near(x->session, rank) ? slot_of(x, rank) : NULL;

        /* Partner: the store in weft_small_run there. */
        if (slot && weft_signal_reached(&slot->sequence, number) && slot->cpu == cpu)
            return true;
    }
    return false;
}

/* Whether a rank has told that a plan would have to copy. All are of this node, and have shown it. */
static bool was_beyond(const weft_executor *x)
{
    bool beyond = false;

    for (int rank = 0; rank < x->world; rank++)
        beyond = beyond || slot_of(x, rank)->beyond;
    return beyond;
}

/* How many bytes of a rank of node `from` go to node `to`. */
static size_t bundled_of(const weft_executor *x, const weft_small_call *c, int from, int to)
{
    const weft_seating *seats = x->session->seating;

    if (c->problem.op == WEFT_OP_ALL_TO_ALL)
        return c->bytes * (size_t)(c->hub ? x->world - seats->size[from] : seats->size[to]);
    return c->bytes * (size_t)send_shares(x->world, c->problem.op);
}

/* The place of a rank among those that are not on `node`, in the order of nodes. */
static size_t place_beyond(const weft_seating *seats, int rank, int node)
{
    int of = seats->node[rank];

    return (size_t)(seats->before[of] + seats->place[rank] - (of > node ? seats->size[node] : 0));
}

/* What `rank` has sent to this rank's node, of an all_to_all for rank `to`. */
static char *sent_by(const weft_executor *x, const weft_small_call *c, int rank, int to)
{
    const weft_seating *seats = x->session->seating;
    int mine = seats->node[x->rank], from = seats->node[rank];
    size_t place = c->problem.op == WEFT_OP_BROADCAST ? 0 : (size_t)seats->place[rank], share = 0;

    if (c->problem.op == WEFT_OP_ALL_TO_ALL)
        share = c->hub ? place_beyond(seats, to, from) : (size_t)seats->place[to];
    return load_at(x, mine, from) + place * bundled_of(x, c, from, mine) + share * c->bytes;
}

/* The same of what the hub has sent. */
static char *forwarded_of(const weft_executor *x, const weft_small_call *c, int rank)
{
    const weft_seating *seats = x->session->seating;
    int mine = seats->node[x->rank];
    char *all = load_at(x, mine, 0);

    if (c->problem.op == WEFT_OP_BROADCAST)
        return all;
    if (c->problem.op != WEFT_OP_ALL_TO_ALL)
        return all + place_beyond(seats, rank, mine) * c->bytes;
    return all +
           (place_beyond(seats, rank, mine) * (size_t)seats->size[mine] + (size_t)seats->place[x->rank]) *
               c->bytes;
}

/* What `rank` shows, of an all_to_all for this rank. */
static char *shown_by(const weft_executor *x, const weft_small_call *c, int rank)
{
    if (is_near(x->session, rank))
        return payload_of(slot_of(x, rank), c) +
               (c->problem.op == WEFT_OP_ALL_TO_ALL ? c->bytes * (size_t)x->rank : 0);
    if (c->hub && x->session->seating->node[x->rank] != 0)
        return forwarded_of(x, c, rank);
    return sent_by(x, c, rank, x->rank);
}

/* Where the share of a sum that this rank adds begins. */
static size_t own_begin(const weft_executor *x, const weft_small_call *c)
{
    return c->problem.op == WEFT_OP_ALL_REDUCE ? 0 : c->bytes * (size_t)x->rank;
}

/* Whether what is received overwrites some of that share before it is read. */
static bool is_overwritten(const weft_executor *x, const weft_small_call *c, const char *send,
                           const char *recv)
{
    const char *own = send + own_begin(x, c);

    return own != recv && own + c->bytes > recv && recv + c->bytes > own;
}

/* What `rank` gives to a sum: this rank where the caller has it, for reading back what was just stored by
 * other instructions waits until the store is through; unless it is overwritten. */
static const char *summand_of(const weft_executor *x, const weft_small_call *c, int rank, const char *send,
                              const char *recv)
{
    return rank == x->rank && !is_overwritten(x, c, send, recv) ? send : shown_by(x, c, rank);
}

static void finish(weft_executor *x, const weft_small_call *c, const void *send, void *recv)
{
    const weft_seating *seats = x->session->seating;
    weft_view into = {recv, c->problem.count};

    switch (c->problem.op) {
    case WEFT_OP_ALL_REDUCE:
    case WEFT_OP_REDUCE_SCATTER:
        if (c->hub && seats->node[x->rank] != 0) {
            memcpy(recv,
                   load_at(x, seats->node[x->rank], 0) + (c->problem.op == WEFT_OP_REDUCE_SCATTER
                                                              ? c->bytes * (size_t)seats->place[x->rank]
                                                              : 0),
                   c->bytes);
            break;
        }
        for (int rank = 0; rank < x->world; rank++) {
            const char *given = summand_of(x, c, rank, send, recv);

            x->summands[rank] = (weft_view){(char *)(uintptr_t)given + own_begin(x, c), c->problem.count};
        }
        weft_reduce_rows(c->problem.dtype, c->problem.reduction, 1, c->problem.count, x->summands, x->world,
                         c->problem.dtype, &into, 1);
        break;
    case WEFT_OP_BROADCAST:
        if (x->rank != c->problem.root)
            memcpy(recv, shown_by(x, c, c->problem.root), c->bytes);
        break;
    default: /* first its own, which may lie where others' go */
        memmove((char *)recv + (size_t)x->rank * c->bytes,
                (const char *)send + (c->problem.op == WEFT_OP_ALL_TO_ALL ? (size_t)x->rank * c->bytes : 0),
                c->bytes);
        for (int rank = 0; rank < x->world; rank++)
            if (rank != x->rank)
                memcpy((char *)recv + (size_t)rank * c->bytes, shown_by(x, c, rank), c->bytes);
        break;
    }
}

/* Puts what a rank of this node shows to the ranks of `node` at `into`. */
static void load(const weft_executor *x, const weft_small_call *c, const char *from, int node, char *into)
{
    const weft_seating *seats = x->session->seating;
    int mine = seats->node[x->rank];
    bool hub = c->hub;

    if (c->problem.op != WEFT_OP_ALL_TO_ALL) {
        memcpy(into, from, bundled_of(x, c, mine, node));
        return;
    }
    for (int to = 0; to < x->world; to++)
        if (hub ? seats->node[to] != mine : seats->node[to] == node)
            memcpy(into + c->bytes * (hub ? place_beyond(seats, to, mine) : (size_t)seats->place[to]),
                   from + c->bytes * (size_t)to, c->bytes);
}

/* Whether the ranks of a node have their numbers in a row. */
static bool in_a_row(const weft_seating *seats, int world, int node)
{
    int last = seats->first[node] + seats->size[node] - 1;

    return last < world && seats->node[last] == node && seats->place[last] == seats->size[node] - 1;
}

/* What this rank's node shows to `node`: how many bytes, where. */
static const char *load_for(const weft_executor *x, const weft_small_call *c, int node, const char *send,
                            size_t *bytes)
{
    const weft_seating *seats = x->session->seating;
    int mine = seats->node[x->rank];
    size_t each = bundled_of(x, c, mine, node);

    *bytes = each * (size_t)seats->size[mine];
    if (c->problem.op == WEFT_OP_BROADCAST) {
        *bytes = seats->node[c->problem.root] == mine ? each : 0;
        return c->problem.root == x->rank ? send : *bytes ? payload_of(slot_of(x, c->problem.root), c) : NULL;
    }
    if (seats->size[mine] == 1 && c->problem.op != WEFT_OP_ALL_TO_ALL)
        return send;
    if (seats->size[mine] == 1 && !c->hub && in_a_row(seats, x->world, node))
        return send + c->bytes * (size_t)seats->first[node];
    for (int rank = 0; rank < x->world; rank++)
        if (seats->node[rank] == mine)
            load(x, c, rank == x->rank ? send : payload_of(slot_of(x, rank), c), node,
                 x->session->load + each * (size_t)seats->place[rank]);
    return x->session->load;
}

/* To the first rank of another node, from that of this. */
static void carry_to(const weft_executor *x, int node, uint64_t hash, const void *from, size_t bytes)
{
    const weft_session *s = x->session;
    int mine = s->seating->node[x->rank];
    weft_bundle *there = bundle_at(x, node, mine);
    weft_net_put put = {.into = load_at(x, node, mine),
                        .from = from,
                        .rows = 1,
                        .row_bytes = bytes,
                        .effect = WEFT_NET_STORE,
                        .post_count = 2,
                        .mark_count = 1,
                        .posts = {{&there->hash, hash}, {&there->sequence, s->sequence}}};

    weft_net_send(x->group->world->net, x->group->seats[s->seating->first[node]].world_rank, &put, NULL);
}

/* To all other nodes, or to the hub. */
static void carry(const weft_executor *x, const weft_small_call *c, const void *send)
{
    const weft_seating *seats = x->session->seating;
    int mine = seats->node[x->rank], nodes = seats->node_count;
    bool hub = c->hub;

    for (int step = 1; step < nodes && !(hub && (mine == 0 || step > 1)); step++) {
        int node = hub ? 0 : (mine + step) % nodes;
        size_t bytes;
        const char *from = load_for(x, c, node, send, &bytes);

        carry_to(x, node, c->hash, from, bytes);
    }
}

/* What `rank` gives rank `to` of another node, where the hub sees it. */
static const char *given_by(const weft_executor *x, const weft_small_call *c, int rank, int to,
                            const char *send)
{
    bool shares = c->problem.op == WEFT_OP_ALL_TO_ALL || c->problem.op == WEFT_OP_REDUCE_SCATTER;
    const char *near = rank == x->rank             ? send
                       : is_near(x->session, rank) ? payload_of(slot_of(x, rank), c)
                                                   : NULL;

    if (near)
        return near + (shares ? c->bytes * (size_t)to : 0);
    return sent_by(x, c, rank, to) + (c->problem.op == WEFT_OP_REDUCE_SCATTER ? c->bytes * (size_t)to : 0);
}

/* Puts what the ranks of `node` are to get into the room for it: how many bytes. */
static size_t gather_for(const weft_executor *x, const weft_small_call *c, int node, const char *send)
{
    const weft_seating *seats = x->session->seating;
    size_t each = c->problem.op == WEFT_OP_ALL_TO_ALL ? (size_t)seats->size[node] : 1;

    for (int rank = 0; rank < x->world; rank++) {
        if (seats->node[rank] == node)
            continue;
        for (int to = 0; to < x->world; to++)
            if (seats->node[to] == node && (c->problem.op == WEFT_OP_ALL_TO_ALL || seats->place[to] == 0))
                memcpy(x->session->load + (place_beyond(seats, rank, node) * each +
                                           (each > 1 ? (size_t)seats->place[to] : 0)) *
                                              c->bytes,
                       given_by(x, c, rank, to, send), c->bytes);
    }
    return c->bytes * each * (size_t)(x->world - seats->size[node]);
}

/* The same of a reduce_scatter: their sums. */
static size_t sum_for(const weft_executor *x, const weft_small_call *c, int node, const char *send)
{
    const weft_seating *seats = x->session->seating;

    for (int to = 0; to < x->world; to++) {
        weft_view into = {x->session->load + c->bytes * (size_t)seats->place[to], c->problem.count};

        if (seats->node[to] != node)
            continue;
        for (int rank = 0; rank < x->world; rank++)
            x->summands[rank] =
                (weft_view){(char *)(uintptr_t)given_by(x, c, rank, to, send), c->problem.count};
        weft_reduce_rows(c->problem.dtype, c->problem.reduction, 1, c->problem.count, x->summands, x->world,
                         c->problem.dtype, &into, 1);
    }
    return c->bytes * (size_t)seats->size[node];
}

/* The hub's part: to each node what it is to get. Of an all_reduce that is in `recv`. */
static void forward(const weft_executor *x, const weft_small_call *c, const void *send, const void *recv)
{
    const weft_seating *seats = x->session->seating;

    for (int node = 1; node < seats->node_count; node++) {
        const void *from = x->session->load;
        size_t bundled = 0;

        if (c->problem.op == WEFT_OP_ALL_REDUCE) {
            from = recv;
            bundled = c->bytes;
        } else if (c->problem.op == WEFT_OP_BROADCAST) {
            from = given_by(x, c, c->problem.root, 0, send);
            bundled = seats->node[c->problem.root] == node ? 0 : c->bytes;
        } else if (c->problem.count) { /* buffers of nothing may be NULL */
            bundled = c->problem.op == WEFT_OP_REDUCE_SCATTER ? sum_for(x, c, node, send)
                                                              : gather_for(x, c, node, send);
        }
        carry_to(x, node, c->hash, from, bundled);
    }
}

weft_status weft_small_run(weft_executor *x, const void *send, void *recv)
{
    weft_session *s = x->session;
    const weft_small_call *c = &s->small;
    const weft_seating *seats = s->seating;
    bool gives_way = false, forwards = c->hub && x->rank == seats->first[0];
    uint64_t number = s->sequence + 1;
    weft_small *own = slot_of(x, x->rank);
    size_t shown = c->shown;
    weft_status status;

    if (weft_group_failed(x->group))
        return weft_group_check(x->group);
    /* A rank alone on its node shows it to nobody; it keeps what a sum would overwrite. */
    if (seats && seats->size[seats->node[x->rank]] == 1 && !(c->sums && is_overwritten(x, c, send, recv)))
        shown = 0;
    fetch_slot(own, c, shown);
    own->hash = c->hash;
    if (c->told)
        own->beyond = is_beyond(x, c, send, recv);
    if (!x->group->alone) {
        own->cpu = (int16_t)sched_getcpu();
        gives_way = is_waited_behind(x, own->cpu, number);
    }
    if (shown)
        memcpy(payload_of(own, c), send, shown);
    /* Partner: is_there on the peers. */
    weft_signal_store(&own->sequence, number);
    weft_session_begin(s, WEFT_CALLED_SMALL, c->hash, &c->problem);
    weft_session_publish_near(s);
    status = wait_near(x, c);
    if (status == WEFT_OK && seats && seats->place[x->rank] == 0)
        carry(x, c, send);
    if (status == WEFT_OK && seats)
        status = wait_far(x, c, c->hub && seats->node[x->rank] ? 1 : seats->node_count);
    if (status != WEFT_OK)
        return weft_group_check(x->group) == WEFT_OK ? weft_session_resync(s, false) : status;
    if (__builtin_expect(weft_run_before_task != NULL, 0))
        weft_run_before_task(x->rank, 0);
    if (forwards && c->problem.op != WEFT_OP_ALL_REDUCE) /* before `recv`, which may be `send`, is written */
        forward(x, c, send, recv);
    if (c->bytes) /* buffers of nothing may be NULL */
        finish(x, c, send, recv);
    if (forwards && c->problem.op == WEFT_OP_ALL_REDUCE)
        forward(x, c, send, recv);
    if (c->told)
        weft_session_learn(s, c->problem.op, was_beyond(x));
    x->small_count++;
    if (gives_way)
        sched_yield();
    return WEFT_OK;
}
