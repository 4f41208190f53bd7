/*
 * Sums inside a node before they travel: in reduced mode what the ranks of a node make of a token of an owner
 * elsewhere goes back as one row.
 *
 * A rank writes the sums of its rows into memory of its own (`parts`), beside it whose they are (`part`), and
 * counts, chunk of tokens by chunk, at the keeper of their owner. Whoever is the last of those that have rows
 * of this owner adds up the chunk, ranks in ascending order, in this process's shadow of the owner's slots,
 * and sends it with one word. So nobody waits for another, and which rank that is shows in nothing but time.
 *
 * Why nothing is overwritten too early: a rank writes parts and lists in epoch e + 1 only when it has the
 * words of all ranks for it. The owner sends its own when it has all sums of e, the others of this node
 * theirs when they have left e, and with it have read what they add. A count carries its epoch, and begins
 * anew with the first rank of the next. tests/moe/test_inside.c searches all interleavings.
 */
#include "moe/moe.h"

static int size_around(const weft_moe *moe, int rank)
{
    return moe->nodes.size[moe->nodes.node[rank]];
}

static int first_of(const weft_moe *moe, int node)
{
    int rank = 0;

    while (moe->nodes.node[rank] != node)
        rank++;
    return rank;
}

void weft_moe_find_inside(weft_moe *moe)
{
    weft_moe_nodes *nodes = &moe->nodes;
    int ranks = moe->shape.ranks, me = moe->group->rank, returners = 0, number = 0;

    if (!nodes->count)
        return;
    for (int rank = 0; rank < ranks; rank++)
        nodes->size[nodes->node[rank]]++;
    for (int rank = 0; rank < ranks; rank++) {
        int size = size_around(moe, rank);

        if (size > 1 && ranks - size > nodes->sources)
            nodes->sources = ranks - size;
        if (size + nodes->count - 1 > returners)
            returners = size + nodes->count - 1;
    }
    /* A rank keeps a row for each token of those elsewhere: not more of them than it would take back. */
    nodes->inside = moe->shape.one_result_per_row && nodes->sources > 0 && nodes->sources <= moe->config.topk;
    if (!nodes->inside)
        return;
    for (int rank = 0; rank < ranks; rank++) {
        bool far = nodes->node[rank] != nodes->node[me];

        nodes->number[rank] = far ? number++ : 0;
        nodes->returner[rank] = far ? first_of(moe, nodes->node[rank]) : rank;
    }
    nodes->chunk_tokens = WEFT_MOE_TOGETHER_BYTES / moe->slot_stride;
    nodes->chunk_tokens = nodes->chunk_tokens < 1 ? 1 : nodes->chunk_tokens;
    nodes->chunks = (int)((moe->shape.capacity - 1) / nodes->chunk_tokens + 1);
    moe->shape.returner = nodes->returner;
    if (returners < moe->shape.terms_per_token)
        moe->shape.terms_per_token = returners;
}

int32_t weft_moe_sharers(const weft_moe_lane *lane, int receiver)
{
    const weft_moe *moe = lane->moe;
    int32_t sharers = 0;

    if (!weft_moe_is_inside(moe, receiver, moe->group->rank))
        return 0;
    for (int rank = 0; rank < moe->shape.ranks; rank++)
        sharers += moe->nodes.node[rank] == moe->nodes.node[receiver] &&
                   lane->out.row_base[rank + 1] > lane->out.row_base[rank];
    return sharers;
}

void weft_moe_inside_list(weft_moe_lane *lane)
{
    const weft_moe *moe = lane->moe;
    const weft_moe_received *in = &lane->in;

    for (int source = 0; source < moe->shape.ranks; source++) {
        int number = moe->nodes.number[source];
        weft_moe_part *part = lane->part + number * moe->shape.capacity;

        if (!weft_moe_is_inside(moe, moe->group->rank, source))
            continue;
        for (int32_t i = in->rank_base[source]; i < in->rank_base[source + 1]; i++)
            *part++ = (weft_moe_part){in->token[i], in->entry[in->entry_base[i]].slot};
        /* Partner: rows_of on a rank of this node, which may look before this rank has come so far: then it
         * has no rows, or the others would not be done. */
        atomic_store_explicit(&lane->part_count[number], weft_moe_word(lane, lane->counts[source]),
                              memory_order_release);
    }
}

/* How many rows of a source another rank of this node has in this epoch. */
static int64_t rows_of(const weft_moe_lane *lane, int rank, int number)
{
    _Atomic uint64_t *word = weft_moe_at(lane, &lane->part_count[number], rank);
    uint64_t count = atomic_load_explicit(word, memory_order_acquire) - weft_moe_word(lane, 0);

    return count <= WEFT_MOE_REJECTED ? (int64_t)count : 0;
}

/* A chunk of a source's tokens, and a walk over those of them that ranks of this node have. */
typedef struct chunk {
    const weft_moe_lane *lane;
    int source;
    int64_t begin, end; /* tokens */
} chunk;

typedef struct walk {
    int ranks; /* that have any */
    struct {
        const weft_moe_part *at, *end;
        const char *row;
    } of[WEFT_RANKS_MAX];
} walk;

static void walk_from(const chunk *c, int64_t token, walk *w)
{
    const weft_moe_lane *lane = c->lane;
    const weft_moe_nodes *nodes = &lane->moe->nodes;
    int64_t first = nodes->number[c->source] * lane->moe->shape.capacity;

    w->ranks = 0;
    for (int rank = 0; rank < lane->moe->shape.ranks; rank++) {
        const weft_moe_part *part;
        int64_t low = 0, high, rows;

        if (nodes->node[rank] != nodes->node[lane->moe->group->rank])
            continue;
        high = rows = rows_of(lane, rank, nodes->number[c->source]);
        part = (const weft_moe_part *)weft_moe_at(lane, lane->part, rank) + first;
        while (low < high) {
            int64_t middle = (low + high) / 2;

            if (part[middle].token < token)
                low = middle + 1;
            else
                high = middle;
        }
        if (low == rows || part[low].token >= c->end)
            continue;
        w->of[w->ranks].at = part + low;
        w->of[w->ranks].end = part + rows;
        w->of[w->ranks++].row =
            (const char *)weft_moe_at(lane, lane->parts, rank) + (first + low) * lane->moe->slot_stride;
    }
}

/* The next token before `end`, its slot and its rows; false: there is none. */
static bool walk_on(walk *w, int64_t end, int64_t stride, weft_moe_part *next, const void **row, int *rows)
{
    *next = (weft_moe_part){.token = (int32_t)end};
    for (int i = 0; i < w->ranks; i++)
        if (w->of[i].at < w->of[i].end && w->of[i].at->token < next->token)
            *next = *w->of[i].at;
    *rows = 0;
    for (int i = 0; i < w->ranks && next->token < end; i++)
        if (w->of[i].at < w->of[i].end && w->of[i].at->token == next->token) {
            row[(*rows)++] = w->of[i].row;
            w->of[i].row += stride;
            w->of[i].at++;
        }
    return *rows > 0;
}

static void sum_tokens(void *context, int64_t begin, int64_t end)
{
    const chunk *c = context;
    const weft_moe *moe = c->lane->moe;
    const void *row[WEFT_RANKS_MAX];
    float ones[WEFT_RANKS_MAX];
    weft_moe_part next;
    walk w;
    int rows;

    for (int i = 0; i < moe->shape.ranks; i++)
        ones[i] = 1.0f;
    walk_from(c, begin, &w);
    while (walk_on(&w, end, moe->slot_stride, &next, row, &rows))
        weft_moe_sum(moe->config.dtype, weft_moe_slot_at(c->lane, c->source, next.slot), row, ones, rows,
                     moe->config.hidden);
}

/* Adds up a chunk that all have counted, and sends it. */
static void send_chunk(weft_moe_lane *lane, int source, int64_t number)
{
    weft_moe *moe = lane->moe;
    int64_t begin = number * moe->nodes.chunk_tokens, end = begin + moe->nodes.chunk_tokens, count = 0;
    chunk c = {lane, source, begin, end < moe->shape.capacity ? end : moe->shape.capacity};
    const void *row[WEFT_RANKS_MAX];
    weft_moe_part next;
    int32_t first = 0;
    walk w;
    int rows;

    walk_from(&c, begin, &w);
    for (; walk_on(&w, c.end, 0, &next, row, &rows); count++)
        first = count ? first : next.slot;
    if (!count)
        return;
    weft_moe_share(moe, c.begin, c.end, moe->result_bytes, sum_tokens, &c);
    /* Partner: weft_moe_await_back on the source. */
    weft_moe_far_return(
        lane, source, first, count,
        weft_moe_at(lane, &lane->summed_there[moe->nodes.node[moe->group->rank] * moe->nodes.chunks + number],
                    source),
        weft_moe_word(lane, 1));
}

/* Counts this rank in at a chunk. Whether it is the last. */
static bool count_in(weft_moe_lane *lane, int source, int64_t number)
{
    const weft_moe_nodes *nodes = &lane->moe->nodes;
    _Atomic uint64_t *word = weft_moe_at(lane, &lane->counted[nodes->slot[source] * nodes->chunks + number],
                                         nodes->keeper[source]);
    int32_t sharers = weft_moe_manifest_of(lane, source)->sharers;
    uint64_t now = atomic_load_explicit(word, memory_order_relaxed), next;

    /* Partner: itself on the other ranks of this node. The release gives this rank's parts on, through the
     * counts of others too, and the acquire of the last takes those of all. */
    do
        next = now - weft_moe_word(lane, 0) < WEFT_MOE_REJECTED ? now + 1 : weft_moe_word(lane, 1);
    while (
        !atomic_compare_exchange_weak_explicit(word, &now, next, memory_order_acq_rel, memory_order_relaxed));
    return next == weft_moe_word(lane, sharers);
}

void weft_moe_inside_done(weft_moe_lane *lane, int source, int64_t rows)
{
    const weft_moe_nodes *nodes = &lane->moe->nodes;
    const weft_moe_received *in = &lane->in;
    int64_t *next = &lane->chunks_done[source];
    int64_t before = rows < lane->counts[source] ? in->token[in->rank_base[source] + rows] : INT64_MAX;

    for (; *next < nodes->chunks && (*next + 1) * nodes->chunk_tokens <= before; ++*next)
        if (count_in(lane, source, *next))
            send_chunk(lane, source, *next);
}
