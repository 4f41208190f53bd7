#include "moe/routing.h"

#include <string.h>

/*
 * The token's experts as expert << 32 | k, ascending, by counting how many come before each: in random input
 * a sort would mispredict every other branch. Returns how many there are; -1, none, is the largest number.
 */
static int token_order(const int32_t *expert, int topk, uint64_t *order)
{
    int count = 0;

    for (int k = 0; k < topk; k++) {
        uint32_t id = (uint32_t)expert[k];
        int before = 0;

        for (int j = 0; j < k; j++)
            before += (uint32_t)expert[j] <= id;
        for (int j = k + 1; j < topk; j++)
            before += (uint32_t)expert[j] < id;
        order[before] = (uint64_t)id << 32 | (uint32_t)k;
        count += expert[k] >= 0;
    }
    return count;
}

weft_status weft_moe_refuse_range(const weft_moe_shape *shape, int64_t token, int expert, int position,
                                  weft_error_text *error)
{
    return weft_error_set(
        error, WEFT_ERR_ARGUMENT,
        "moe: token %lld asks for expert %d in position %d; experts are 0 to %d, or -1 for none",
        (long long)token, expert, position, shape->experts - 1);
}

weft_status weft_moe_refuse_twice(int64_t token, int expert, int first, int second, weft_error_text *error)
{
    return weft_error_set(
        error, WEFT_ERR_ARGUMENT,
        "moe: token %lld names expert %d twice (positions %d and %d); a token's experts are distinct",
        (long long)token, expert, first, second);
}

weft_status weft_moe_check_tokens(const weft_moe_shape *shape, int64_t tokens, weft_error_text *error)
{
    if (tokens < 0 || tokens > shape->capacity)
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "moe: %lld tokens, but the layer was made for at most %lld a rank; make it for %lld",
            (long long)tokens, (long long)shape->capacity, (long long)tokens);
    return WEFT_OK;
}

static weft_status token_check(const weft_moe_shape *shape, int64_t token, const int32_t *expert,
                               const uint64_t *order, int count, weft_error_text *error)
{
    for (int k = 0; k < shape->topk; k++)
        if (expert[k] < -1 || expert[k] >= shape->experts)
            return weft_moe_refuse_range(shape, token, expert[k], k, error);
    for (int i = 1; i < count; i++)
        if (order[i] >> 32 == order[i - 1] >> 32)
            return weft_moe_refuse_twice(token, (int)(order[i] >> 32), (int)(uint32_t)order[i - 1],
                                         (int)(uint32_t)order[i], error);
    return WEFT_OK;
}

/* Pass one: checks every token and counts rows and entries for each rank. */
static weft_status count_rows(const weft_moe_shape *shape, int64_t tokens, const int32_t *expert,
                              weft_moe_routing *routing, weft_error_text *error)
{
    memset(routing->row_next, 0, (size_t)shape->ranks * sizeof(*routing->row_next));
    memset(routing->entry_next, 0, (size_t)shape->ranks * sizeof(*routing->entry_next));
    memset(routing->stamp, 0xff, (size_t)shape->ranks * sizeof(*routing->stamp));
    if (shape->returner) {
        memset(routing->slot_next, 0, (size_t)shape->ranks * sizeof(*routing->slot_next));
        memset(routing->slot_stamp, 0xff, (size_t)shape->ranks * sizeof(*routing->slot_stamp));
    }
    for (int64_t t = 0; t < tokens; t++) {
        const int32_t *mine = expert + t * shape->topk;
        uint64_t *order = routing->order + t * shape->topk;
        int count = token_order(mine, shape->topk, order);
        weft_status status = token_check(shape, t, mine, order, count, error);

        if (status)
            return status;
        routing->ordered[t] = count;
        for (int i = 0; i < count; i++) {
            int rank = shape->owner[order[i] >> 32];

            routing->entry_next[rank]++;
            routing->row_next[rank] += !shape->one_row_per_rank || routing->stamp[rank] != (int32_t)t;
            routing->stamp[rank] = (int32_t)t;
            if (shape->returner) {
                rank = shape->returner[rank];
                routing->slot_next[rank] += routing->slot_stamp[rank] != (int32_t)t;
                routing->slot_stamp[rank] = (int32_t)t;
            }
        }
    }
    return WEFT_OK;
}

/* Turns counts in `next` into first places, in `base` for good and in `next` as cursors. */
static int64_t scan(int32_t *base, int32_t *next, int ranks)
{
    int32_t sum = 0;

    for (int d = 0; d < ranks; d++) {
        int32_t count = next[d];

        base[d] = next[d] = sum;
        sum += count;
    }
    base[ranks] = sum;
    return sum;
}

/* The slot of token t from a rank that returns one sum a row. Whether no rank has had it before. */
static bool find_slot(const weft_moe_shape *shape, int64_t t, int rank, int32_t row,
                      weft_moe_routing *routing, int32_t *slot)
{
    bool fresh;

    *slot = row;
    if (!shape->returner)
        return true;
    rank = shape->returner[rank];
    fresh = routing->slot_stamp[rank] != (int32_t)t;
    routing->slot_stamp[rank] = (int32_t)t;
    routing->slot_next[rank] += fresh;
    *slot = routing->slot_next[rank] - 1;
    return fresh;
}

/* Pass two for one token. stamp[rank] is the last row placed for that rank. */
static void place_token(const weft_moe_shape *shape, int64_t t, const float *weight,
                        weft_moe_routing *routing)
{
    const uint64_t *order = routing->order + t * shape->topk;
    int count = routing->ordered[t];
    int64_t first = t * shape->terms_per_token;
    int used = 0;

    for (int i = 0; i < count; i++) {
        int32_t id = (int32_t)(order[i] >> 32), k = (int32_t)(uint32_t)order[i];
        int32_t rank = shape->owner[id], row = routing->stamp[rank];
        float w = weight ? weight[t * shape->topk + k] : 1.0f;
        bool fresh = !shape->one_row_per_rank || row < 0 || routing->row[row].token != (int32_t)t;
        int32_t at = routing->entry_next[rank]++, slot = at;
        bool term = true;

        if (fresh) {
            row = routing->stamp[rank] = routing->row_next[rank]++;
            routing->row[row] = (weft_moe_wire_row){.token = (int32_t)t};
        }
        routing->row[row].entries++;
        if (shape->one_result_per_row)
            term = find_slot(shape, t, rank, row, routing, &slot) && fresh;
        routing->entry[at] = (weft_moe_wire_entry){.expert = id, .slot = slot, .weight = w, .position = k};
        if (term)
            routing->term[first + used++] = (weft_moe_term){.rank = rank,
                                                            .row = row - routing->row_base[rank],
                                                            .slot = slot,
                                                            .position = k,
                                                            .weight = shape->one_result_per_row ? 1.0f : w};
    }
    routing->terms[t] = used;
}

weft_status weft_moe_route(const weft_moe_shape *shape, int64_t tokens, const int32_t *expert,
                           const float *weight, weft_moe_routing *routing, weft_error_text *error)
{
    weft_status status = weft_moe_check_tokens(shape, tokens, error);

    if (!status)
        status = count_rows(shape, tokens, expert, routing, error);
    if (status)
        return status;
    routing->tokens = tokens;
    routing->rows = scan(routing->row_base, routing->row_next, shape->ranks);
    routing->entries = scan(routing->entry_base, routing->entry_next, shape->ranks);
    memset(routing->stamp, 0xff, (size_t)shape->ranks * sizeof(*routing->stamp));
    if (shape->returner) {
        for (int32_t d = 0, sum = 0; d < shape->ranks; d++) {
            int32_t count = routing->slot_next[d];

            routing->slot_next[d] = sum;
            sum += count;
        }
        memset(routing->slot_stamp, 0xff, (size_t)shape->ranks * sizeof(*routing->slot_stamp));
    }
    for (int64_t t = 0; t < tokens; t++)
        place_token(shape, t, weight, routing);
    return WEFT_OK;
}

void weft_moe_reweigh(const weft_moe_shape *shape, const float *weight, weft_moe_routing *routing)
{
    weft_moe_wire_entry *entry = routing->entry;

    for (int64_t i = 0; i < routing->rows; i++)
        for (int j = 0; j < routing->row[i].entries; j++, entry++)
            entry->weight = weight[(int64_t)routing->row[i].token * shape->topk + entry->position];
    for (int64_t t = 0; t < routing->tokens && !shape->one_result_per_row; t++) {
        weft_moe_term *term = routing->term + t * shape->terms_per_token;

        for (int32_t i = 0; i < routing->terms[t]; i++)
            term[i].weight = weight[t * shape->topk + term[i].position];
    }
}
