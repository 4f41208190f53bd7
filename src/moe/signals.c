/* The words of the protocol: posting and awaiting counts, staged tokens and returned rows. */
#include "moe/moe.h"

static weft_signal *count_word(weft_moe_lane *lane, int source)
{
    return &lane->count[(lane->epoch & 1) * (uint64_t)lane->moe->shape.ranks + (uint64_t)source];
}

void weft_moe_post_counts(weft_moe_lane *lane, bool rejected)
{
    const weft_moe *moe = lane->moe;
    int ranks = moe->shape.ranks, me = moe->group->rank;
    weft_signal *mine = count_word(lane, me);

    for (int i = 1; i <= ranks; i++) {
        int to = (me + i) % ranks;
        int64_t count = rejected ? WEFT_MOE_REJECTED : lane->out.row_base[to + 1] - lane->out.row_base[to];

        if (weft_moe_is_far(lane, to)) {
            weft_moe_far_count(lane, to, weft_moe_at(lane, mine, to), count);
            continue;
        }
        /* Release: manifest, wire rows and entries before it. Partner: the wait in weft_moe_await_counts. */
        weft_signal_store(weft_moe_at(lane, mine, to), weft_moe_word(lane, count));
    }
}

weft_status weft_moe_refuse_peer(int rank, uint64_t epoch, int lane, weft_error_text *error)
{
    return weft_error_set(error, WEFT_ERR_PEER,
                          "moe: rank %d rejected its input in round %llu of lane %d; its own error says why",
                          rank, (unsigned long long)epoch, lane);
}

weft_status weft_moe_await_counts(weft_moe_lane *lane)
{
    weft_group *group = lane->moe->group;
    int rejected = -1;

    for (int source = 0; source < lane->moe->shape.ranks; source++) {
        weft_wait_note note = {.op = "moe dispatch",
                               .peer = source,
                               .task = lane->index,
                               .epoch = lane->epoch,
                               .kind = WEFT_WAIT_ENTER};
        weft_signal *word = count_word(lane, source);
        weft_status status = weft_signal_wait(group, word, weft_moe_word(lane, 0), &note);

        if (status)
            return status;
        lane->counts[source] = (int32_t)(weft_signal_load(word) & WEFT_MOE_REJECTED);
        lane->returned[source] = 0;
        lane->chunks_done[source] = 0;
        if (lane->counts[source] == WEFT_MOE_REJECTED && rejected < 0)
            rejected = source;
    }
    if (rejected >= 0)
        return weft_moe_refuse_peer(rejected, lane->epoch, lane->index, &group->error);
    return WEFT_OK;
}

void weft_moe_post_staged(weft_moe_lane *lane, int64_t tokens)
{
    /* Partner: weft_moe_await_staged on any rank. */
    weft_signal_store(lane->staged, weft_moe_word(lane, tokens));
}

weft_status weft_moe_await_staged(weft_moe_lane *lane, int source, int64_t tokens)
{
    weft_signal *word = weft_moe_staged_word(lane, source);
    weft_wait_note note = {.op = "moe dispatch",
                           .peer = source,
                           .task = lane->index,
                           .epoch = lane->epoch,
                           .kind = WEFT_WAIT_PROGRESS};

    if (weft_signal_reached(word, weft_moe_word(lane, tokens)))
        return WEFT_OK;
    return weft_signal_wait(lane->moe->group, word, weft_moe_word(lane, tokens), &note);
}

void weft_moe_post_done(weft_moe_lane *lane, int source, int64_t rows)
{
    if (weft_moe_is_inside(lane->moe, lane->moe->group->rank, source)) {
        weft_moe_inside_done(lane, source, rows);
        return;
    }
    if (weft_moe_is_far(lane, source)) {
        weft_moe_far_done(lane, source, rows);
        return;
    }
    /* Partner: weft_moe_await_done on the source. */
    weft_signal_store(weft_moe_at(lane, &lane->done[lane->moe->group->rank], source),
                      weft_moe_word(lane, rows));
}

static weft_status await_back(weft_moe_lane *lane, int rank, weft_signal *word, int64_t value)
{
    weft_wait_note note = {.op = "moe combine",
                           .peer = rank,
                           .task = lane->index,
                           .epoch = lane->epoch,
                           .kind = WEFT_WAIT_ENTER};

    if (weft_signal_reached(word, weft_moe_word(lane, value)))
        return WEFT_OK;
    return weft_signal_wait(lane->moe->group, word, weft_moe_word(lane, value), &note);
}

weft_status weft_moe_await_done(weft_moe_lane *lane, int rank, int64_t rows)
{
    return await_back(lane, rank, &lane->done[rank], rows);
}

/* The word that says that the result of a term of token t is back, and what it says then. */
static weft_signal *back_word(const weft_moe_lane *lane, int64_t t, const weft_moe_term *term, int64_t *value)
{
    const weft_moe_nodes *nodes = &lane->moe->nodes;

    *value = term->row + 1;
    if (!weft_moe_is_inside(lane->moe, term->rank, lane->moe->group->rank))
        return &lane->done[term->rank];
    *value = 1;
    return &lane->summed_there[nodes->node[term->rank] * nodes->chunks + t / nodes->chunk_tokens];
}

bool weft_moe_is_back(const weft_moe_lane *lane, int64_t t, const weft_moe_term *term)
{
    int64_t value;
    weft_signal *word = back_word(lane, t, term, &value);

    return weft_signal_reached(word, weft_moe_word(lane, value));
}

weft_status weft_moe_await_back(weft_moe_lane *lane, int64_t t, const weft_moe_term *term)
{
    int64_t value;
    weft_signal *word = back_word(lane, t, term, &value);

    return await_back(lane, term->rank, word, value);
}
