/*
 * A layer over several nodes. What a rank shows or writes to a far rank goes as a message, in the order of
 * the protocol (moe.h), so waits look where they look on one node: in the own memory, or in this process's
 * shadow of the far rank's (net/net.h).
 *
 * Rows of tokens go once to a node in the fused rung: to the keeper of their owner there, the rank with its
 * local number (modulo the ranks of that node), into whose `relay` they land at the place of their token, and
 * whose word `relayed` says how many there are. The ranks of that node read both there. The owner overwrites
 * them only after the `done` of all whom it sent rows to, as it does with what it staged. Results go from
 * where they are made straight to the owner, those of one call or block in one message: their slots follow
 * each other; or they are summed inside their node before (inside.c). They leave uncopied from this process's
 * shadow of those slots, which is written again in the next epoch: the owner begins that when it has them.
 *
 * Bytes of two messages may land in any order; only their words keep it. In an epoch that takes place nothing
 * is sent to a place again before the `done` of those who read it. Nobody answers in an epoch that is
 * rejected, so the ranks, who all see that, wait before the next one until everything has landed.
 */
#include "moe/moe.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "group/far.h"

enum {
    LEAVE_NS = 500000000,
    COPIED_BYTES = 16 << 10,
};

static int size_of_node(const weft_moe *moe, int node)
{
    int size = 0;

    for (int rank = 0; rank < moe->shape.ranks; rank++)
        size += moe->nodes.node[rank] == node;
    return size;
}

static int local_number(const weft_moe *moe, int rank)
{
    int number = 0;

    for (int before = 0; before < rank; before++)
        number += moe->nodes.node[before] == moe->nodes.node[rank];
    return number;
}

/* The rank of `node` that keeps what `owner`, which is elsewhere, sends there. */
static int keeper_on(const weft_moe *moe, int node, int owner)
{
    int number = local_number(moe, owner) % size_of_node(moe, node), rank = 0;

    while (moe->nodes.node[rank] != node || number-- > 0)
        rank++;
    return rank;
}

static int slot_on(const weft_moe *moe, int node, int owner)
{
    int keeper = keeper_on(moe, node, owner), slot = 0;

    for (int before = 0; before < owner; before++)
        slot += moe->nodes.node[before] != node && keeper_on(moe, node, before) == keeper;
    return slot;
}

bool weft_moe_find_nodes(weft_moe *moe)
{
    weft_group *group = moe->group;
    weft_moe_nodes *nodes = &moe->nodes;
    int ranks = group->size, me = group->rank;

    if (!group->spread)
        return true;
    nodes->node = calloc(8 * (size_t)ranks, sizeof(int32_t));
    if (!nodes->node)
        return false;
    nodes->keeper = nodes->node + ranks;
    nodes->slot = nodes->keeper + ranks;
    nodes->to = nodes->slot + ranks;
    nodes->to_slot = nodes->to + ranks;
    nodes->size = nodes->to_slot + ranks;
    nodes->number = nodes->size + ranks;
    nodes->returner = nodes->number + ranks;
    for (int rank = 0; rank < ranks; rank++) {
        int domain = group->world->domain[group->seats[rank].world_rank], first = 0;

        while (group->world->domain[group->seats[first].world_rank] != domain)
            first++;
        nodes->node[rank] = first < rank ? nodes->node[first] : nodes->count++;
    }
    for (int rank = 0; rank < ranks; rank++)
        for (int node = 0; node < nodes->count; node++) {
            int slot;

            if (node == nodes->node[rank])
                continue;
            slot = slot_on(moe, node, rank);
            nodes->slots = slot >= nodes->slots ? slot + 1 : nodes->slots;
            if (node == nodes->node[me]) {
                nodes->keeper[rank] = keeper_on(moe, node, rank);
                nodes->slot[rank] = slot;
            }
            if (rank == me) {
                nodes->to[node] = keeper_on(moe, node, rank);
                nodes->to_slot[node] = slot;
            }
        }
    return true;
}

static void send(const weft_moe_lane *lane, int to, const weft_net_put *put)
{
    const weft_group *group = lane->moe->group;

    weft_net_send(group->world->net, group->seats[to].world_rank, put, NULL);
}

/* The same of rows that stay as they are until their receiver has them: many are not copied. */
static void send_in_place(weft_moe_lane *lane, int to, const weft_net_put *put)
{
    const weft_group *group = lane->moe->group;

    if (put->rows * put->row_bytes <= COPIED_BYTES) {
        send(lane, to, put);
        return;
    }
    lane->departing++;
    weft_net_send(group->world->net, group->seats[to].world_rank, put, lane->departed);
}

/* ---- there --------------------------------------------------------------------------------------------- */

static void show(const weft_moe_lane *lane, int to, const void *memory, int64_t bytes)
{
    if (bytes > 0)
        weft_far_show_to(lane->moe->group, to, memory, (size_t)bytes, NULL);
}

/* What a receiver looks at when it has the count. A routing that it has been shown it still sees. */
static void show_routing(weft_moe_lane *lane, int to)
{
    const weft_moe *moe = lane->moe;
    const weft_moe_routing *out = &lane->out;
    int64_t first = out->row_base[to], rows = out->row_base[to + 1] - first,
            pairs = out->tokens * moe->shape.topk;
    bool seen = lane->shown[to] == lane->generation;

    show(lane, to, weft_moe_manifest_for(lane, to), sizeof(weft_moe_manifest));
    if (!rows)
        return;
    lane->shown[to] = lane->generation;
    if (moe->rung->input_copy) {
        if (!seen) {
            show(lane, to, lane->index_copy, pairs * (int64_t)sizeof(int32_t));
            show(lane, to, lane->weight_copy, pairs * (int64_t)sizeof(float));
        }
        show(lane, to, lane->stage, out->tokens * moe->stage_stride);
        return;
    }
    if (!seen) {
        int64_t entry = out->entry_base[to];

        show(lane, to, out->row + first, rows * (int64_t)sizeof(*out->row));
        show(lane, to, out->entry + entry, (out->entry_base[to + 1] - entry) * (int64_t)sizeof(*out->entry));
    }
    if (!moe->rung->stage_once && !moe->rung->row_flags)
        show(lane, to, lane->stage + first * moe->stage_stride, rows * moe->stage_stride);
}

void weft_moe_far_count(weft_moe_lane *lane, int to, weft_signal *word, int64_t count)
{
    weft_net_put put = {
        .effect = WEFT_NET_STORE, .post_count = 1, .posts = {{word, weft_moe_word(lane, count)}}};

    if (count != WEFT_MOE_REJECTED)
        show_routing(lane, to);
    /* Partner: the wait in weft_moe_await_counts. */
    send(lane, to, &put);
}

void weft_moe_far_row(weft_moe_lane *lane, int to, void *row, int64_t bytes, _Atomic uint64_t *flag)
{
    weft_net_put put = {.into = row,
                        .from = row,
                        .rows = 1,
                        .row_bytes = (size_t)bytes,
                        .effect = WEFT_NET_MARK,
                        .post_count = 1,
                        .posts = {{(void *)flag, lane->epoch}}};

    send(lane, to, &put);
}

/* Whether token t has an expert on a node. */
static uint8_t *mark_of(const weft_moe_lane *lane, int node, int64_t t)
{
    return &lane->marks[node * lane->moe->shape.capacity + t];
}

void weft_moe_relay_begin(weft_moe_lane *lane)
{
    const weft_moe *moe = lane->moe;

    if (!moe->nodes.count)
        return;
    memset(lane->marks, 0, (size_t)(moe->nodes.count * moe->shape.capacity));
    for (int to = 0; to < moe->shape.ranks; to++)
        for (int32_t i = lane->out.row_base[to]; i < lane->out.row_base[to + 1]; i++)
            *mark_of(lane, moe->nodes.node[to], lane->out.row[i].token) = 1;
}

/* Rows of one owner lie one after another in its slot of a keeper's relay. */
static char *relay_at(const weft_moe_lane *lane, int keeper, int slot)
{
    return (char *)weft_moe_at(lane, lane->relay, keeper) +
           slot * lane->moe->shape.capacity * lane->moe->wire_bytes;
}

static void relay_to(weft_moe_lane *lane, int node, const char *rows, int64_t stride, int64_t begin,
                     int64_t end)
{
    const weft_moe *moe = lane->moe;
    int keeper = moe->nodes.to[node], slot = moe->nodes.to_slot[node];
    weft_net_put put = {.row_bytes = (size_t)moe->wire_bytes,
                        .into_pitch = moe->wire_bytes,
                        .from_pitch = stride,
                        .effect = WEFT_NET_STORE};

    for (int64_t t = begin; t < end; t++) {
        if (!*mark_of(lane, node, t))
            continue;
        if (t > begin && *mark_of(lane, node, t - 1)) {
            put.rows++;
            continue;
        }
        if (put.rows)
            send_in_place(lane, keeper, &put);
        put.into = relay_at(lane, keeper, slot) + t * moe->wire_bytes;
        put.from = rows + t * stride;
        put.rows = 1;
    }
    if (!put.rows)
        return;
    /* Partner: weft_moe_await_staged on any rank of that node. */
    put.posts[put.post_count++] =
        (weft_net_post){weft_moe_at(lane, &lane->relayed[slot], keeper), weft_moe_word(lane, end)};
    send_in_place(lane, keeper, &put);
}

void weft_moe_relay(weft_moe_lane *lane, const char *rows, int64_t stride, int64_t begin, int64_t end)
{
    const weft_moe_nodes *nodes = &lane->moe->nodes;

    for (int step = 1; step < nodes->count; step++)
        relay_to(lane, (nodes->node[lane->moe->group->rank] + step) % nodes->count, rows, stride, begin, end);
}

weft_signal *weft_moe_relayed_word(const weft_moe_lane *lane, int source)
{
    const weft_moe_nodes *nodes = &lane->moe->nodes;

    return weft_moe_at(lane, &lane->relayed[nodes->slot[source]], nodes->keeper[source]);
}

const char *weft_moe_relayed_rows(const weft_moe_lane *lane, int source)
{
    const weft_moe_nodes *nodes = &lane->moe->nodes;

    return relay_at(lane, nodes->keeper[source], nodes->slot[source]);
}

/* ---- and back ------------------------------------------------------------------------------------------ */

/* Slots that follow each other. */
typedef struct slots {
    int32_t first;
    int64_t count;
} slots;

void weft_moe_far_return(weft_moe_lane *lane, int source, int32_t first, int64_t count, weft_signal *word,
                         uint64_t value)
{
    weft_net_put put = {.rows = count > 0,
                        .row_bytes = (size_t)(count * lane->moe->slot_stride),
                        .effect = WEFT_NET_STORE,
                        .post_count = word != NULL};

    if (count) /* they were written into the shadow of the owner's */
        put.into = weft_moe_slot_at(lane, source, first);
    put.from = put.into;
    put.posts[0] = (weft_net_post){word, value};
    send_in_place(lane, source, &put);
}

bool weft_moe_far_open(weft_moe_lane *lane)
{
    if (!lane->moe->nodes.count)
        return true;
    lane->departed = aligned_alloc(WEFT_LINE_BYTES, sizeof(*lane->departed));
    if (lane->departed)
        *lane->departed = (weft_signal){0};
    return lane->departed != NULL;
}

/* A peer that is gone, or a link that is cut, can delay it for ever: then a line of memory stays. */
void weft_moe_far_close(weft_moe_lane *lane)
{
    int64_t until = weft_clock_ns() + LEAVE_NS;

    if (!lane->departed)
        return;
    while (!weft_signal_reached(lane->departed, lane->departing) && weft_clock_ns() < until)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (weft_signal_reached(lane->departed, lane->departing))
        free(lane->departed);
}

void weft_moe_far_done(weft_moe_lane *lane, int source, int64_t rows)
{
    const weft_moe_received *in = &lane->in;
    bool all = lane->moe->rung->input_copy; /* rows stand by expert there, and all come back together */
    int64_t begin = all ? 0 : in->rank_base[source] + lane->returned[source],
            end = all ? in->rows : in->rank_base[source] + rows;
    int64_t results =
        lane->moe->shape.one_result_per_row ? end - begin : in->entry_base[end] - in->entry_base[begin];
    slots run = {0};

    if (!all && rows < lane->counts[source] && results * lane->moe->slot_stride < WEFT_MOE_TOGETHER_BYTES)
        return;
    for (int64_t i = begin; i < end; i++)
        for (int32_t j = in->entry_base[i]; j < in->entry_base[i + 1] && in->source[i] == source; j++) {
            int32_t slot = in->entry[j].slot;

            if (lane->moe->shape.one_result_per_row && j > in->entry_base[i])
                break;
            if (run.count && slot != run.first + run.count) {
                weft_moe_far_return(lane, source, run.first, run.count, NULL, 0);
                run.count = 0;
            }
            if (!run.count)
                run.first = slot;
            run.count++;
        }
    lane->returned[source] = rows;
    /* Partner: weft_moe_await_done on the source. */
    weft_moe_far_return(lane, source, run.first, run.count,
                        weft_moe_at(lane, &lane->done[lane->moe->group->rank], source),
                        weft_moe_word(lane, rows));
}

/* ---- after an epoch that was rejected ------------------------------------------------------------------ */

weft_status weft_moe_far_settle(weft_moe_lane *lane)
{
    weft_group *group = lane->moe->group;
    int ranks = lane->moe->shape.ranks;

    /* The first word of a rank says that what it sent has landed here; its second, that it has heard so from
     * all. */
    for (int step = 0; step < 2; step++) {
        weft_signal *words = lane->settled + (ptrdiff_t)step * ranks;

        for (int to = 0; to < ranks; to++) {
            weft_net_put put = {.effect = WEFT_NET_STORE,
                                .post_count = 1,
                                .posts = {{weft_moe_at(lane, &words[group->rank], to), lane->epoch}}};

            if (weft_moe_is_far(lane, to))
                send(lane, to, &put); /* partner: the wait below on that rank */
        }
        for (int from = 0; from < ranks; from++) {
            weft_wait_note note = {.op = "moe dispatch",
                                   .peer = from,
                                   .task = lane->index,
                                   .epoch = lane->epoch,
                                   .kind = WEFT_WAIT_ENTER};
            weft_status status = weft_moe_is_far(lane, from)
                                     ? weft_signal_wait(group, &words[from], lane->epoch, &note)
                                     : WEFT_OK;

            if (status)
                return status;
        }
    }
    return WEFT_OK;
}
