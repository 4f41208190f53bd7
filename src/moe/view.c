/* The receiver's side of a routing: its rows, its entries by expert, and the way back of their results. */
#include <string.h>

#include "moe/moe.h"

/* Whether every sender still shows the routing that lane->in was made from. */
static bool unchanged(weft_moe_lane *lane)
{
    bool same = true;

    for (int s = 0; s < lane->moe->shape.ranks; s++) {
        int64_t generation = weft_moe_manifest_of(lane, s)->generation;

        same &= lane->seen[s] == generation;
        lane->seen[s] = generation;
    }
    return same;
}

static void point_at_tokens(weft_moe_lane *lane)
{
    weft_moe_received *in = &lane->in;

    for (int s = 0; s < lane->moe->shape.ranks; s++) {
        const weft_moe_manifest *manifest = weft_moe_manifest_of(lane, s);
        const char *x = weft_symm_at(lane->moe->group, s, manifest->x);
        bool by_token = lane->moe->rung->stage_once;
        int64_t stride = manifest->x_stride;

        if (by_token && weft_moe_is_far(lane, s)) {
            x = weft_moe_relayed_rows(lane, s);
            stride = lane->moe->wire_bytes;
        }
        for (int32_t i = in->rank_base[s]; i < in->rank_base[s + 1]; i++)
            in->row[i] = x + stride * (by_token ? in->token[i] : manifest->row_base + i - in->rank_base[s]);
    }
}

void weft_moe_collect(weft_moe_lane *lane)
{
    const weft_moe *moe = lane->moe;
    weft_moe_received *in = &lane->in;

    if (!unchanged(lane)) {
        int64_t rows = 0, entries = 0;

        for (int s = 0; s < moe->shape.ranks; s++) {
            const weft_moe_manifest *manifest = weft_moe_manifest_of(lane, s);
            const weft_moe_wire_row *row =
                (weft_moe_wire_row *)weft_moe_at(lane, lane->out.row, s) + manifest->row_base;
            const weft_moe_wire_entry *entry =
                (weft_moe_wire_entry *)weft_moe_at(lane, lane->out.entry, s) + manifest->entry_base;

            in->rank_base[s] = (int32_t)rows;
            memcpy(in->entry + entries, entry, (size_t)manifest->entries * sizeof(*entry));
            for (int32_t i = 0; i < lane->counts[s]; i++, rows++) {
                in->source[rows] = s;
                in->token[rows] = row[i].token;
                in->entry_base[rows] = (int32_t)entries;
                entries += row[i].entries;
            }
        }
        in->rank_base[moe->shape.ranks] = (int32_t)rows;
        in->entry_base[rows] = (int32_t)entries;
        in->rows = rows;
        in->entries = entries;
        in->grouped = false;
    }
    point_at_tokens(lane);
    if (moe->nodes.inside)
        weft_moe_inside_list(lane);
}

void weft_moe_group_by_expert(weft_moe_lane *lane)
{
    const int32_t *local = lane->moe->local_index;
    weft_moe_received *in = &lane->in;
    int experts = lane->moe->experts_here;

    if (in->grouped)
        return;
    in->grouped = true;
    memset(in->offset, 0, (size_t)(experts + 1) * sizeof(*in->offset));
    for (int64_t j = 0; j < in->entries; j++)
        in->offset[local[in->entry[j].expert] + 1]++;
    for (int e = 0; e < experts; e++) {
        in->offset[e + 1] += in->offset[e];
        in->next[e] = in->offset[e];
    }
    for (int64_t i = 0; i < in->rows; i++)
        for (int32_t j = in->entry_base[i]; j < in->entry_base[i + 1]; j++) {
            int64_t place = in->next[local[in->entry[j].expert]]++;

            in->place[j] = (int32_t)place;
            in->expert_row[place] = (int32_t)i;
            in->expert_weight[place] = in->entry[j].weight;
        }
}

void weft_moe_return_row(weft_moe_lane *lane, int64_t i, const void *const *result, const float *weight)
{
    const weft_moe *moe = lane->moe;
    const weft_moe_wire_entry *entry = lane->in.entry + lane->in.entry_base[i];
    int64_t entries = lane->in.entry_base[i + 1] - lane->in.entry_base[i];
    int source = lane->in.source[i];

    if (moe->shape.one_result_per_row) {
        weft_moe_sum(moe->config.dtype, weft_moe_sum_at(lane, i), result, weight, entries,
                     moe->config.hidden);
        return;
    }
    for (int64_t j = 0; j < entries; j++)
        memcpy(weft_moe_slot_at(lane, source, entry[j].slot), result[j], (size_t)moe->result_bytes);
}

typedef struct returns {
    weft_moe_lane *lane;
    const char *results;
    const int64_t *start;
} returns;

static void return_rows(void *context, int64_t begin_row, int64_t end_row)
{
    const returns *r = context;
    weft_moe_lane *lane = r->lane;
    weft_moe_received *in = &lane->in;

    for (int64_t i = begin_row; i < end_row; i++) {
        int32_t begin = in->entry_base[i];

        for (int32_t j = begin; j < in->entry_base[i + 1]; j++) {
            int local = lane->moe->local_index[in->entry[j].expert];
            int64_t place = r->start ? r->start[local] + in->place[j] - in->offset[local] : in->place[j];

            lane->block_in[j] = r->results + place * lane->moe->result_bytes;
            lane->block_weight[j] = in->entry[j].weight;
        }
        weft_moe_return_row(lane, i, lane->block_in + begin, lane->block_weight + begin);
    }
}

void weft_moe_return_from(weft_moe_lane *lane, int64_t begin, int64_t end, const char *results,
                          const int64_t *start)
{
    returns r = {lane, results, start};

    weft_moe_share(lane->moe, begin, end, lane->moe->result_bytes, return_rows, &r);
}

typedef struct sums {
    weft_moe_lane *lane;
    char *y;
} sums;

static void sum_tokens(void *context, int64_t begin, int64_t end)
{
    const sums *s = context;
    weft_moe_lane *lane = s->lane;
    const weft_moe *moe = lane->moe;

    for (int64_t t = begin; t < end; t++) {
        const weft_moe_term *term = lane->out.term + t * moe->shape.terms_per_token;
        const void **row = lane->block_in + t * moe->shape.terms_per_token;
        float *weight = lane->block_weight + t * moe->shape.terms_per_token;

        if (lane->summed[t])
            continue;
        for (int32_t i = 0; i < lane->out.terms[t]; i++) {
            row[i] = lane->slot + term[i].slot * moe->slot_stride;
            weight[i] = term[i].weight;
        }
        weft_moe_sum(moe->config.dtype, s->y + t * moe->result_bytes, row, weight, lane->out.terms[t],
                     moe->config.hidden);
    }
}

void weft_moe_sum_tokens(weft_moe_lane *lane, int64_t begin, int64_t end, void *y)
{
    sums s = {lane, y};

    weft_moe_share(lane->moe, begin, end, lane->moe->result_bytes, sum_tokens, &s);
}

/* Whether all results of token t are here, without waiting. */
static bool token_back(const weft_moe_lane *lane, int64_t t)
{
    const weft_moe_term *term = lane->out.term + t * lane->moe->shape.terms_per_token;

    for (int32_t i = 0; i < lane->out.terms[t]; i++)
        if (!weft_moe_is_back(lane, t, &term[i]))
            return false;
    return true;
}

int64_t weft_moe_take_ready(weft_moe_lane *lane, int64_t t, void *y)
{
    int64_t end = t;

    while (end < lane->out.tokens && (lane->summed[end] || token_back(lane, end)))
        end++;
    weft_moe_sum_tokens(lane, t, end, y);
    return end;
}
