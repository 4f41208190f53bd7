/*
 * Experts as callbacks over blocks of received rows.
 *
 * A block is a run of received rows. Its entries are grouped by expert, each expert is called once with its
 * rows, and the results go back. In exact mode an expert writes straight into the owners' slots. In reduced
 * mode results wait in scratch memory until the row's other experts are done, so blocks should be small
 * enough for the cache, unless an expert gains from many rows at once.
 */
#include "core/round.h"
#include "moe/moe.h"

/* Where an expert sums by the row, nothing waits in between, and longer runs of rows are better read. */
enum { CACHE_BYTES = 256 << 10, STREAM_BYTES = 512 << 10 };

int64_t weft_moe_block_rows(const weft_moe_lane *lane, const weft_moe_expert *expert)
{
    const weft_moe *moe = lane->moe;
    bool by_row = weft_moe_by_row(lane, expert);
    int64_t per_row = by_row || !lane->in.rows ? 1 : weft_divide_up(lane->in.entries, lane->in.rows);
    int64_t rows = (by_row ? STREAM_BYTES : CACHE_BYTES) / (moe->row_bytes + per_row * moe->slot_stride);

    if (expert->block_rows > 0)
        return expert->block_rows;
    return weft_max(rows, 1);
}

void weft_moe_run_row(weft_moe_lane *lane, const weft_moe_expert *expert, int64_t i, const void *other,
                      void *out)
{
    weft_moe_received *in = &lane->in;
    const weft_moe_wire_entry *entry = in->entry + in->entry_base[i];
    int64_t entries = in->entry_base[i + 1] - in->entry_base[i];

    for (int64_t j = 0; j < entries; j++) {
        lane->block_place[j] = entry[j].expert;
        lane->block_weight[j] = entry[j].weight;
    }
    expert->row(expert->context, entries, lane->block_place, lane->block_weight, in->row[i], other, out);
}

/* Groups the block's entries by expert: in and out pointers in expert order, next[e] = end of expert e. */
static void group_block(weft_moe_lane *lane, int64_t begin, int64_t end)
{
    const weft_moe *moe = lane->moe;
    weft_moe_received *in = &lane->in;
    int32_t first = in->entry_base[begin], last = in->entry_base[end];
    int64_t sum = 0;

    for (int e = 0; e < moe->experts_here; e++)
        in->next[e] = 0;
    for (int32_t j = first; j < last; j++)
        in->next[moe->local_index[in->entry[j].expert]]++;
    for (int e = 0; e < moe->experts_here; e++) {
        int64_t count = in->next[e];

        in->next[e] = sum;
        sum += count;
    }
    for (int64_t i = begin; i < end; i++)
        for (int32_t j = in->entry_base[i]; j < in->entry_base[i + 1]; j++) {
            int64_t place = in->next[moe->local_index[in->entry[j].expert]]++;

            lane->block_place[j - first] = (int32_t)place;
            lane->block_in[place] = in->row[i];
            lane->block_out[place] = moe->shape.one_result_per_row
                                         ? lane->scratch + place * moe->slot_stride
                                         : weft_moe_slot_at(lane, in->source[i], in->entry[j].slot);
        }
}

typedef struct block {
    weft_moe_lane *lane;
    int32_t first; /* entry */
} block;

/* Rows of a block whose experts are done: one weighted sum each goes back. */
static void return_sums(void *context, int64_t begin, int64_t end)
{
    const block *b = context;
    weft_moe_lane *lane = b->lane;
    const weft_moe_received *in = &lane->in;

    for (int64_t i = begin; i < end; i++) {
        int32_t from = in->entry_base[i] - b->first, to = in->entry_base[i + 1] - b->first;

        for (int32_t j = from; j < to; j++) {
            lane->block_in[j] = lane->block_out[lane->block_place[j]];
            lane->block_weight[j] = in->entry[b->first + j].weight;
        }
        weft_moe_return_row(lane, i, lane->block_in + from, lane->block_weight + from);
    }
}

weft_status weft_moe_run_block(weft_moe_lane *lane, const weft_moe_expert *expert, int64_t begin, int64_t end)
{
    const weft_moe *moe = lane->moe;
    weft_moe_received *in = &lane->in;
    int32_t first = in->entry_base[begin];
    int64_t done = 0;
    block sums = {lane, first};

    if (weft_moe_by_row(lane, expert)) {
        for (int64_t i = begin; i < end; i++)
            weft_moe_run_row(lane, expert, i, NULL, weft_moe_sum_at(lane, i));
        return WEFT_OK;
    }
    if (moe->shape.one_result_per_row) {
        weft_status status =
            weft_moe_scratch(lane, (size_t)((in->entry_base[end] - first) * moe->slot_stride));

        if (status)
            return status;
    }
    group_block(lane, begin, end);
    for (int e = 0; e < moe->experts_here; e++) {
        if (in->next[e] > done)
            expert->block(expert->context, moe->local[e], in->next[e] - done, lane->block_in + done,
                          lane->block_out + done);
        done = in->next[e];
        weft_group_progress(moe->group, true);
    }
    if (moe->shape.one_result_per_row)
        weft_moe_share(moe, begin, end, moe->result_bytes, return_sums, &sums);
    return WEFT_OK;
}
