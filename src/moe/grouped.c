/*
 * A round for experts that gain from many rows at once (`expert_rows`), such as a grouped GEMM.
 *
 * An expert is called as soon as expert_rows of its rows have arrived, from whichever ranks; while nothing
 * has, own tokens whose results are back are summed. The last call of an expert takes what is left, so that
 * the sizes of its calls follow from the routing alone: expert_rows each, the last one at least half and less
 * than one and a half times as many; or one call with all rows if they are fewer. Which rows stand in which
 * call depends on the order in which ranks arrive. An expert whose result for a row does not depend on the
 * other rows of a call, nor on their number above half of expert_rows, gives the same bits in any order.
 *
 * A row goes back when its last expert is done. Owners count rows in order, so `done` follows the first row
 * that is not.
 */
#include "moe/moe.h"

/* Entries of local expert e from source s, in the order of the view. */
static weft_moe_span *span_of(weft_moe_lane *lane, int e, int s)
{
    return &lane->span[(int64_t)e * lane->moe->shape.ranks + s];
}

int64_t weft_moe_next_call(int64_t expert_rows, int64_t left)
{
    return left - expert_rows >= expert_rows - expert_rows / 2 ? expert_rows : left;
}

/* What every entry reads and writes, by its place in expert order; and which entries each rank sends. */
static weft_status prepare(weft_moe_lane *lane)
{
    const weft_moe *moe = lane->moe;
    weft_moe_received *in = &lane->in;
    bool sum = moe->shape.one_result_per_row;
    weft_status status = sum ? weft_moe_scratch(lane, (size_t)(in->entries * moe->slot_stride) + 1) : WEFT_OK;

    if (status)
        return status;
    weft_moe_group_by_expert(lane);
    for (int64_t i = 0; i < in->rows; i++) {
        lane->row_left[i] = in->entry_base[i + 1] - in->entry_base[i];
        for (int32_t j = in->entry_base[i]; j < in->entry_base[i + 1]; j++)
            lane->block_out[in->place[j]] = sum ? lane->scratch + in->place[j] * moe->slot_stride
                                                : weft_moe_slot_at(lane, in->source[i], in->entry[j].slot);
    }
    for (int e = 0; e < moe->experts_here; e++) {
        int64_t at = in->offset[e];

        in->next[e] = at;
        for (int s = 0; s < moe->shape.ranks; s++) {
            weft_moe_span *span = span_of(lane, e, s);

            span->begin = span->arrived = (int32_t)at;
            while (at < in->offset[e + 1] && in->source[in->expert_row[at]] == s)
                at++;
            span->end = (int32_t)at;
        }
    }
    for (int s = 0; s < moe->shape.ranks; s++) {
        lane->tokens_seen[s] = 0;
        lane->rows_back[s] = 0;
    }
    return WEFT_OK;
}

/* How many tokens of a source can be read; of one that has no rows here, none matter. */
static int64_t tokens_staged(weft_moe_lane *lane, int source)
{
    uint64_t word = weft_signal_load(weft_moe_staged_word(lane, source));

    if (!lane->counts[source] || !weft_signal_passed(word, weft_moe_word(lane, 0)))
        return 0;
    return (int64_t)(word - weft_moe_word(lane, 0));
}

static bool more_staged(void *argument)
{
    weft_moe_lane *lane = argument;

    for (int s = 0; s < lane->moe->shape.ranks; s++)
        if (tokens_staged(lane, s) > lane->tokens_seen[s])
            return true;
    return false;
}

/* Moves `arrived` of every span of the sources that have staged more. */
static void look(weft_moe_lane *lane)
{
    const weft_moe_received *in = &lane->in;

    for (int s = 0; s < lane->moe->shape.ranks; s++) {
        int64_t tokens = tokens_staged(lane, s);

        if (tokens <= lane->tokens_seen[s])
            continue;
        lane->tokens_seen[s] = tokens;
        for (int e = 0; e < lane->moe->experts_here; e++) {
            weft_moe_span *span = span_of(lane, e, s);

            while (span->arrived < span->end && in->token[in->expert_row[span->arrived]] < tokens)
                span->arrived++;
        }
    }
}

static int64_t waiting(weft_moe_lane *lane, int e)
{
    int64_t rows = 0;

    for (int s = 0; s < lane->moe->shape.ranks; s++)
        rows += span_of(lane, e, s)->arrived - span_of(lane, e, s)->begin;
    return rows;
}

/* Received rows block_place[begin .. end), whose last entry is done: one weighted sum each goes back. */
static void return_sums(void *context, int64_t begin, int64_t end)
{
    weft_moe_lane *lane = context;
    const weft_moe_received *in = &lane->in;

    for (int64_t at = begin; at < end; at++) {
        int64_t i = lane->block_place[at];
        int32_t first = in->entry_base[i];

        for (int32_t j = first; j < in->entry_base[i + 1]; j++) {
            lane->run_in[j] = lane->block_out[in->place[j]];
            lane->block_weight[j] = in->entry[j].weight;
        }
        weft_moe_return_row(lane, i, lane->run_in + first, lane->block_weight + first);
    }
}

/* All results of received row i have gone back. */
static void row_back(weft_moe_lane *lane, int64_t i)
{
    const weft_moe_received *in = &lane->in;
    int source = in->source[i];
    int64_t *back = &lane->rows_back[source], before = *back;

    while (in->rank_base[source] + *back < in->rank_base[source + 1] &&
           !lane->row_left[in->rank_base[source] + *back])
        ++*back;
    if (*back > before)
        weft_moe_post_done(lane, source, *back);
}

/* Received rows block_place[begin .. end), as the expert of a call sees them. */
static void show_rows(void *context, int64_t begin, int64_t end)
{
    weft_moe_lane *lane = context;

    for (int64_t i = begin; i < end; i++)
        lane->run_in[i] = weft_moe_row_of(lane, lane->block_place[i]);
}

/* One call of local expert e with `rows` rows that have arrived, sources in ascending order. */
static void call(weft_moe_lane *lane, const weft_moe_expert *expert, int e, int64_t rows)
{
    const weft_moe *moe = lane->moe;
    const weft_moe_received *in = &lane->in;
    int64_t count = 0, whole = 0, shown = moe->config.wire == WEFT_MOE_WIRE_FP8 ? moe->row_bytes : 0;

    for (int s = 0; s < moe->shape.ranks; s++)
        for (weft_moe_span *span = span_of(lane, e, s); span->begin < span->arrived && count < rows;
             count++) {
            int32_t place = span->begin++;

            lane->run_out[count] = lane->block_out[place];
            lane->block_place[count] = in->expert_row[place];
        }
    weft_moe_share(moe, 0, count, shown, show_rows, lane);
    expert->block(expert->context, moe->local[e], rows, lane->run_in, lane->run_out);
    weft_group_progress(moe->group, true);
    in->next[e] += rows;
    for (int64_t i = 0; i < rows; i++)
        if (!--lane->row_left[lane->block_place[i]])
            lane->block_place[whole++] = lane->block_place[i];
    if (moe->shape.one_result_per_row)
        weft_moe_share(moe, 0, whole, moe->result_bytes, return_sums, lane);
    for (int64_t i = 0; i < whole; i++)
        row_back(lane, lane->block_place[i]);
}

/* Runs what has arrived and makes a call; returns how many entries that were. */
static int64_t run_arrived(weft_moe_lane *lane, const weft_moe_expert *expert)
{
    const weft_moe_received *in = &lane->in;
    int64_t ran = 0;

    for (int e = 0; e < lane->moe->experts_here; e++) {
        int64_t left = in->offset[e + 1] - in->next[e];
        int64_t rows = weft_moe_next_call(expert->expert_rows, left);

        if (!left || waiting(lane, e) < rows)
            continue;
        call(lane, expert, e, rows);
        ran += rows;
        look(lane);
    }
    return ran;
}

/* Waits until a rank that has not staged all its tokens has staged more. */
static weft_status await_more(weft_moe_lane *lane)
{
    const weft_moe_received *in = &lane->in;
    int ranks = lane->moe->shape.ranks, late = 0;
    weft_wait_note note = {
        .op = "moe dispatch", .task = lane->index, .epoch = lane->epoch, .kind = WEFT_WAIT_PROGRESS};

    while (late < ranks - 1 &&
           (!lane->counts[late] || in->token[in->rank_base[late + 1] - 1] < lane->tokens_seen[late]))
        late++;
    note.peer = late;
    return weft_wait_beside(lane->moe->group, weft_moe_staged_word(lane, late), more_staged, lane, &note);
}

weft_status weft_moe_run_by_expert(weft_moe_lane *lane, const weft_moe_expert *expert, void *y,
                                   int64_t *taken)
{
    weft_status status = prepare(lane);

    for (int64_t left = lane->in.entries; left > 0 && !status;) {
        int64_t ran;

        look(lane);
        ran = run_arrived(lane, expert);
        left -= ran;
        *taken = weft_moe_take_ready(lane, *taken, y);
        if (!ran && left > 0)
            status = await_more(lane);
    }
    return status;
}
