/* See fake_moe.h. */
#include "fake_moe.h"

#include "core/clock.h"
#include "core/dtype.h"
#include "moe/wire.h"

#include <stdlib.h>
#include <string.h>

static void *at_rank(const weft_cuda_moe *l, const void *mine, int rank)
{
    return (char *)(uintptr_t)mine + (rank - l->rank) * l->stride;
}

static int64_t list_at(const weft_cuda_moe *l, uint64_t round, int from, int64_t token)
{
    return ((int64_t)((round & 1) * (uint64_t)l->world + (uint64_t)from) * l->capacity + token) * l->keys;
}

static uint64_t *runs_of(const weft_cuda_moe *l, weft_device_moe_kernel phase, uint32_t cta)
{
    return l->runs + (size_t)(l->run0[phase] + cta) * WEFT_CUDA_LINE_WORDS;
}

/* The first rank from which rows have not all come; -1: they have. */
static int rows_awaited(const weft_cuda_moe *l, uint64_t round)
{
    for (int r = 0; r < l->world; r++)
        if (__atomic_load_n(l->landed + r * WEFT_CUDA_LINE_WORDS, __ATOMIC_ACQUIRE) < round * l->movers)
            return r;
    return -1;
}

int fake_moe_awaits(const weft_cuda_moe *l, const weft_cuda_moe_args *call, weft_device_moe_kernel kernel,
                    uint32_t cta, uint64_t *round)
{
    const uint64_t *signals = kernel == WEFT_DEVICE_MOE_DISPATCH_RECV  ? l->arrived
                              : kernel == WEFT_DEVICE_MOE_COMBINE_RECV ? l->returned
                                                                       : NULL;

    if (kernel == WEFT_DEVICE_MOE_MOVE) {
        *round = l->state->sent;
        return l->state->skipped ? -1 : rows_awaited(l, *round);
    }
    if (!signals || (kernel == WEFT_DEVICE_MOE_COMBINE_RECV && l->state->skipped))
        return -1;
    *round = *runs_of(l, kernel, cta) + 1;
    for (int r = 0; r < l->world; r++)
        if (__atomic_load_n(signals + r * WEFT_CUDA_LINE_WORDS, __ATOMIC_ACQUIRE) <
            *round * l->grid[kernel - 1])
            return r;
    if (kernel == WEFT_DEVICE_MOE_DISPATCH_RECV && l->movers && !call->lists)
        return rows_awaited(l, *round);
    return -1;
}

static void post_everywhere(const weft_cuda_moe *l, uint64_t *signals)
{
    for (int r = 0; r < l->world; r++)
        __atomic_fetch_add((uint64_t *)at_rank(l, signals + l->rank * WEFT_CUDA_LINE_WORDS, r), 1,
                           __ATOMIC_RELEASE);
}

/* ---- send ------------------------------------------------------------------------------------------------
 */

static bool tell_fault(const weft_cuda_moe *l, uint64_t round, int64_t token, weft_cuda_moe_fault fault)
{
    uint64_t word = round << 24 | (uint64_t)token;

    if (l->state->fault >> 24 < round)
        return false;
    l->fault[token] = fault;
    l->state->fault = word < l->state->fault ? word : l->state->fault;
    return false;
}

/* Positions by ascending expert, those that are none last; false when the token cannot be right. */
static bool order_token(const weft_cuda_moe *l, const int32_t *id, int *order, int *count, uint64_t round,
                        int64_t token)
{
    *count = 0;
    for (int k = 0; k < l->topk; k++)
        if (id[k] < -1 || id[k] >= l->experts)
            return tell_fault(l, round, token, (weft_cuda_moe_fault){WEFT_CUDA_MOE_RANGE, id[k], k, 0});
    for (int e = 0; e < l->experts; e++)
        for (int k = 0; k < l->topk; k++)
            if (id[k] == e)
                order[(*count)++] = k;
    for (int i = 1; i < *count; i++)
        if (id[order[i]] == id[order[i - 1]])
            return tell_fault(
                l, round, token,
                (weft_cuda_moe_fault){WEFT_CUDA_MOE_TWICE, id[order[i]], order[i - 1], order[i]});
    return true;
}

static bool send_token(const weft_cuda_moe *l, const void *x, const int32_t *expert, const float *weight,
                       int keep, bool lists, uint64_t round, int64_t token)
{
    const int32_t *id = expert + token * l->topk;
    int *order = calloc((size_t)(l->topk + l->world), sizeof(int)), *sent = order + l->topk, count, terms = 0;
    int64_t list = list_at(l, round, l->rank, token), kept = (keep * l->capacity + token) * l->topk;
    bool right = order_token(l, id, order, &count, round, token);

    for (int k = 0; right && keep >= 0 && k < l->topk; k++) {
        l->kept_expert[kept + k] = id[k];
        l->kept_weight[kept + k] = weight ? weight[token * l->topk + k] : 1.0f;
    }
    for (int i = 0; right && i < count; i++) {
        int k = order[i], to = l->owner[id[k]], nth = sent[to]++;
        float w = weight ? weight[token * l->topk + k] : 1.0f;
        int32_t *key = (int32_t *)at_rank(l, l->key, to) + list;

        if (nth == 0 || !l->reduced)
            l->term_weight[token * l->terms + terms++] = l->reduced ? 1.0f : w;
        key[nth] = l->local[id[k]];
        ((weft_cuda_moe_entry *)at_rank(l, l->entry, to))[list + nth] =
            (weft_cuda_moe_entry){(int32_t)(token * l->terms) + terms - 1, w};
        if (nth == 0) {
            char *row = (char *)at_rank(l, l->row, to) + (l->rank * l->capacity + token) * l->row_stride;
            const char *given = (const char *)x + token * l->row_bytes;

            if (l->scales_at && !lists)
                weft_moe_quantise((weft_dtype)l->dtype, l->hidden, row, given);
            else if (!lists)
                memcpy(row, given, (size_t)l->row_bytes);
            l->state->rows_sent_total++;
        }
    }
    for (int r = 0; right && r < l->world; r++)
        if (sent[r] < l->keys)
            ((int32_t *)at_rank(l, l->key, r))[list + sent[r]] = -1;
    for (int r = 0; right && lists && r < l->world; r++)
        l->goes[token * l->world + r] = sent[r] > 0;
    l->terms_of[token] = terms;
    free(order);
    return right;
}

/* What note_begin does there. */
static void begin(const weft_cuda_moe *l, weft_device_moe_kernel phase, uint32_t cta, uint64_t round)
{
    if (cta != 0)
        return;
    l->state->began_ns[phase] = (uint64_t)weft_clock_ns();
    l->state->round[phase] = round;
}

static void send(const weft_cuda_moe *l, const weft_cuda_moe_args *call, uint32_t cta, uint32_t ctas,
                 uint64_t round)
{
    weft_cuda_moe_state *s = l->state;
    bool repeats = !call->expert && call->tokens != 0, fresh = !repeats || call->weight,
         right = !call->reject;
    int64_t before = s->kept * l->capacity * l->topk, had = s->kept_tokens[s->kept];
    const float *weight = repeats && !call->weight ? l->kept_weight + before : call->weight;
    size_t word = (size_t)((round & 1) * (uint64_t)l->world + (uint64_t)l->rank);

    if (repeats && right && had != call->tokens + 1) {
        right = false;
        if (cta == 0)
            tell_fault(
                l, round, 0,
                (weft_cuda_moe_fault){WEFT_CUDA_MOE_REPEAT, (int)(had ? had - 1 : 0), (int)call->tokens, 0});
    }
    for (int64_t token = cta; token < call->tokens && right; token += ctas)
        right = send_token(l, call->x, repeats ? l->kept_expert + before : call->expert, weight,
                           fresh ? 1 - s->kept : -1, call->lists, round, token);
    if (cta == 0) {
        s->fresh = fresh && !call->reject;
        s->kept_tokens[1 - s->kept] = call->tokens + 1;
        s->tokens = call->tokens;
        s->sent = round;
        s->moved += call->lists != 0;
    }
    for (int r = 0; r < l->world; r++) {
        if (cta == 0)
            ((int64_t *)at_rank(l, l->tokens, r))[word] = call->tokens;
        if (!right)
            ((uint64_t *)at_rank(l, l->rejected, r))[word] = round;
    }
    post_everywhere(l, l->arrived);
    if (!call->lists && cta < l->movers)
        post_everywhere(l, l->landed);
}

/* ---- receive ---------------------------------------------------------------------------------------------
 */

static void receive_expert(const weft_cuda_moe *l, uint64_t round, int expert, bool by_step)
{
    int64_t rows = 0, less = 0, equal = 0;

    for (int pass = 0; pass < 2; pass++) {
        rows = equal = 0;
        for (int step = 0; step < l->world; step++) {
            int s = by_step ? (l->rank - step + l->world) % l->world : step;

            for (int64_t t = 0; t < l->tokens[(round & 1) * (uint64_t)l->world + (uint64_t)s]; t++) {
                const int32_t *key = l->key + list_at(l, round, s, t);

                for (int j = 0; j < l->keys && key[j] >= 0; j++) {
                    weft_cuda_moe_entry entry = l->entry[list_at(l, round, s, t) + j];

                    less += pass == 0 && key[j] < expert;
                    if (key[j] != expert)
                        continue;
                    if (pass == 1) {
                        l->entry_row[less + equal] = (int32_t)rows;
                        l->entry_expert[less + equal] = expert;
                        l->entry_weight[less + equal] = entry.weight;
                        l->entry_to[less + equal] =
                            (char *)at_rank(l, l->slot, s) + entry.slot * l->slot_stride;
                        l->place[(s * l->capacity + t) * l->keys + j] = (int32_t)(less + equal);
                        if (by_step)
                            l->entry_step[less + equal] = step;
                    }
                    equal++;
                }
                if (pass == 1 && expert == 0 && key[0] >= 0) {
                    l->view_row[rows] = l->row + (s * l->capacity + t) * l->row_stride;
                    l->source[rows] = s;
                    l->token[rows] = (int32_t)t;
                }
                rows += key[0] >= 0;
            }
        }
    }
    l->offset[expert] = less;
    if (expert == 0)
        l->state->rows = rows;
    if (expert == l->experts_here - 1)
        l->offset[expert + 1] = l->state->entries = less + equal;
}

static void receive(const weft_cuda_moe *l, bool lists, uint32_t cta, uint32_t ctas, uint64_t round)
{
    const uint64_t *rejected = l->rejected + (round & 1) * (uint64_t)l->world;
    weft_cuda_moe_state *s = l->state;
    bool own = rejected[l->rank] == round;
    int rejecting = 0;

    while (rejecting < l->world && rejected[rejecting] != round)
        rejecting++;
    for (int e = (int)cta; e < l->experts_here; e += (int)ctas) {
        if (rejecting == l->world)
            receive_expert(l, round, e, lists);
        else
            l->offset[e] = l->offset[e + 1] = 0;
    }
    if (cta != 0)
        return;
    s->skipped = rejecting < l->world;
    s->parity = (int32_t)(round & 1);
    s->kept ^= s->fresh && !own;
    s->fresh = 0;
    s->rows_sent = s->rows_sent_total - s->rows_sent_before;
    s->rows_sent_before = s->rows_sent_total;
    if (s->skipped || l->experts_here == 0)
        s->rows = s->entries = l->offset[0] = 0;
    if (s->skipped && !own && s->peer_fault == UINT64_MAX)
        s->peer_fault = round << 24 | (uint64_t)rejecting;
}

/* ---- rows for themselves
 * -----------------------------------------------------------------------------------
 */

void fake_moe_move(const weft_cuda_moe *l, const weft_cuda_moe_args *call, uint32_t cta)
{
    uint64_t round = l->state->sent;
    bool rejects = l->rejected[(round & 1) * (uint64_t)l->world + (uint64_t)l->rank] == round;

    begin(l, WEFT_DEVICE_MOE_MOVE, cta, round);
    for (int r = 0; r < l->world; r++) {
        for (int64_t t = cta; t < l->state->tokens && !rejects; t += l->movers)
            if (l->goes[t * l->world + r])
                memcpy((char *)at_rank(l, l->row, r) + (l->rank * l->capacity + t) * l->row_stride,
                       (const char *)call->x + t * l->row_bytes, (size_t)l->row_bytes);
        __atomic_fetch_add((uint64_t *)at_rank(l, l->landed + l->rank * WEFT_CUDA_LINE_WORDS, r), 1,
                           __ATOMIC_RELEASE);
    }
}

static void pack(const weft_cuda_moe *l, const weft_cuda_moe_args *call, uint32_t cta)
{
    uint64_t round = l->state->sent;

    for (int s = 0; s < l->world && !l->state->skipped; s++)
        for (int64_t t = cta; t < l->tokens[(round & 1) * (uint64_t)l->world + (uint64_t)s]; t += l->movers) {
            const int32_t *key = l->key + list_at(l, round, s, t);

            for (int j = 0; j < l->keys && key[j] >= 0; j++)
                memcpy((char *)call->out + l->place[(s * l->capacity + t) * l->keys + j] * l->row_bytes,
                       l->row + (s * l->capacity + t) * l->row_stride, (size_t)l->row_bytes);
        }
    for (int i = 0; i <= l->world; i++)
        l->ready[i * WEFT_CUDA_LINE_WORDS]++;
}

/* ---- between, and combine ---------------------------------------------------------------------------------
 */

static void layout(const weft_cuda_moe *l, const weft_cuda_moe_args *call)
{
    int64_t *start = call->out, next = 0;

    for (int e = 0; e < l->experts_here; e++) {
        int64_t count = l->offset[e + 1] - l->offset[e], padded = -call->alignment;

        start[e] = next;
        if (padded > 0 && count > padded) {
            uint64_t word = (uint64_t)e << 32 | (uint64_t)count;

            start[e] = -1;
            l->state->overflow = word < l->state->overflow ? word : l->state->overflow;
            l->state->overflow_padded = padded;
        }
        next += padded > 0 ? padded : (count + call->alignment - 1) / call->alignment * call->alignment;
    }
    *call->rows = next;
}

static int64_t packed_place(const weft_cuda_moe *l, const int64_t *start, int64_t place)
{
    int expert = l->entry_expert[place];

    if (!start)
        return place;
    return start[expert] < 0 ? -1 : start[expert] + place - l->offset[expert];
}

static void gather(const weft_cuda_moe *l, const weft_cuda_moe_args *call, uint32_t cta, uint32_t ctas)
{
    for (int64_t place = cta; place < l->state->entries; place += ctas) {
        int64_t at = packed_place(l, call->start, place);

        const void *row = l->view_row[l->entry_row[place]];

        if (at >= 0 && l->scales_at)
            weft_moe_expand((weft_dtype)l->dtype, l->hidden, (char *)call->out + at * l->row_bytes, row);
        else if (at >= 0)
            memcpy((char *)call->out + at * l->row_bytes, row, (size_t)l->row_bytes);
    }
}

static void sum(const weft_cuda_moe *l, void *to, const void *const *from, const float *weight, int count)
{
    for (int64_t i = 0; i < l->hidden; i++) {
        float total = 0;

        for (int j = 0; j < count; j++)
            total += weight[j] * (float)weft_element_get((weft_dtype)l->dtype, from[j], (size_t)i);
        weft_element_set((weft_dtype)l->dtype, to, (size_t)i, total);
    }
}

static void send_sum(const weft_cuda_moe *l, const weft_cuda_moe_args *call, int64_t row, const void **from,
                     float *weight)
{
    int64_t list = list_at(l, (uint64_t)l->state->parity, l->source[row], l->token[row]);
    int64_t places = (l->source[row] * l->capacity + l->token[row]) * l->keys;
    int count = 0;

    for (int j = 0; j < l->keys && l->key[list + j] >= 0; j++) {
        int64_t at = packed_place(l, call->start, l->place[places + j]);

        if (at < 0)
            continue;
        from[count] = (const char *)call->x + at * l->result_bytes;
        weight[count++] = l->entry[list + j].weight;
    }
    sum(l, (char *)at_rank(l, l->slot, l->source[row]) + l->entry[list].slot * l->slot_stride, from, weight,
        count);
}

static void combine(const weft_cuda_moe *l, const weft_cuda_moe_args *call, bool sends, uint32_t cta,
                    uint32_t ctas)
{
    const void **from = calloc((size_t)l->topk, sizeof(*from));
    float *weight = calloc((size_t)l->topk, sizeof(*weight));
    int64_t units = !sends ? l->state->tokens : l->reduced ? l->state->rows : l->state->entries;

    for (int64_t unit = cta; unit < units; unit += ctas) {
        int64_t at = sends && !l->reduced ? packed_place(l, call->start, unit) : 0;

        if (sends && l->reduced) {
            send_sum(l, call, unit, from, weight);
        } else if (sends && at < 0) {
            memset(l->entry_to[unit], 0, (size_t)l->result_bytes);
        } else if (sends) {
            memcpy(l->entry_to[unit], (const char *)call->x + at * l->result_bytes, (size_t)l->result_bytes);
        } else {
            for (int i = 0; i < l->terms_of[unit]; i++)
                from[i] = l->slot + (unit * l->terms + i) * l->slot_stride;
            sum(l, (char *)call->out + unit * l->result_bytes, from, l->term_weight + unit * l->terms,
                l->terms_of[unit]);
        }
    }
    free(from);
    free(weight);
}

void fake_moe_run(const weft_cuda_moe *l, const weft_cuda_moe_args *call, weft_device_moe_kernel kernel,
                  uint32_t cta, uint32_t ctas)
{
    uint64_t *runs = kernel <= WEFT_DEVICE_MOE_COMBINE_RECV ? runs_of(l, kernel, cta) : NULL,
             round = runs ? *runs + 1 : 0;

    if ((kernel == WEFT_DEVICE_MOE_COMBINE_SEND || kernel == WEFT_DEVICE_MOE_COMBINE_RECV) &&
        l->state->skipped)
        return;
    switch (kernel) {
    case WEFT_DEVICE_MOE_DISPATCH_SEND:
        begin(l, kernel, cta, round);
        send(l, call, cta, ctas, round);
        break;
    case WEFT_DEVICE_MOE_DISPATCH_RECV:
        receive(l, call->lists, cta, ctas, round);
        break;
    case WEFT_DEVICE_MOE_MOVE:
        pack(l, call, cta);
        break;
    case WEFT_DEVICE_MOE_LAYOUT:
        layout(l, call);
        break;
    case WEFT_DEVICE_MOE_GATHER:
        gather(l, call, cta, ctas);
        break;
    default:
        if (kernel == WEFT_DEVICE_MOE_COMBINE_SEND)
            begin(l, kernel, cta, round);
        combine(l, call, kernel == WEFT_DEVICE_MOE_COMBINE_SEND, cta, ctas);
        if (kernel == WEFT_DEVICE_MOE_COMBINE_SEND)
            post_everywhere(l, l->returned);
        break;
    }
    if (runs)
        *runs = round;
}
