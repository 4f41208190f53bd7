/* Makes a layer: checks and agrees on the configuration, and lays out its memory. */
#include "moe/moe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"

static const weft_moe_rung *rung_of(weft_moe_impl impl)
{
    switch (impl) {
    case WEFT_MOE_FUSED:
        return &weft_moe_fused;
    case WEFT_MOE_ROWS:
        return &weft_moe_rows;
    case WEFT_MOE_SORTED:
        return &weft_moe_sorted;
    case WEFT_MOE_REFERENCE:
        return &weft_moe_reference;
    }
    return NULL;
}

enum { EXPERTS_MAX = 1 << 20 }; /* of all of which every rank has a table */

/* ---- what a layer needs -------------------------------------------------------------------------------- */

static weft_status check_config(const weft_moe_config *c, int ranks, weft_error_text *error)
{
    const int64_t most_rows = WEFT_MOE_REJECTED - 1;

    if (ranks < 1)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "moe: %d ranks; at least 1 is needed", ranks);
    if (c->experts < 1 || c->topk < 1 || c->topk > c->experts)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "moe: %d experts and topk %d; topk must be 1 to the number of experts",
                              c->experts, c->topk);
    if (c->experts > EXPERTS_MAX)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "moe: %d experts; at most %d are possible",
                              c->experts, EXPERTS_MAX);
    if (c->hidden < 1 || c->tokens < 1 || c->tokens > most_rows / c->topk || c->hidden > INT32_MAX ||
        c->row_bytes < 0 || c->row_bytes > INT32_MAX)
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "moe: hidden %lld, row_bytes %lld, tokens %lld; hidden and tokens are at least 1, tokens x "
            "topk is at most %lld, rows are shorter than 2 GiB",
            (long long)c->hidden, (long long)c->row_bytes, (long long)c->tokens, (long long)most_rows);
    if (c->tokens * c->topk > INT32_MAX / ranks)
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "moe: %d ranks of %lld tokens with topk %d: a rank may receive more than 2^31 entries", ranks,
            (long long)c->tokens, c->topk);
    if (c->dtype != WEFT_F16 && c->dtype != WEFT_BF16 && c->dtype != WEFT_F32)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "moe: results cannot be %s; they are float16, bfloat16 or float32",
                              weft_dtype_name(c->dtype));
    if (!rung_of(c->impl) || (c->mode != WEFT_MOE_EXACT && c->mode != WEFT_MOE_REDUCED))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "moe: impl %d or mode %d is not one", (int)c->impl,
                              (int)c->mode);
    if (c->mode == WEFT_MOE_REDUCED && c->impl != WEFT_MOE_FUSED)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "moe: %s has no reduced mode; only fused has",
                              rung_of(c->impl)->name);
    if (c->lanes < 1 || c->lanes > 64)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "moe: %d lanes; 1 to 64 are possible", c->lanes);
    if (c->threads < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "moe: %d threads; 0 means all there are", c->threads);
    if (c->wire != WEFT_MOE_WIRE_GIVEN && c->wire != WEFT_MOE_WIRE_FP8)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "moe: wire %d is not one", (int)c->wire);
    if (c->wire == WEFT_MOE_WIRE_FP8 && c->row_bytes &&
        c->row_bytes != c->hidden * (int64_t)weft_dtype_size(c->dtype))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "moe: rows of %lld bytes cannot travel as fp8; those of %lld %s can",
                              (long long)c->row_bytes, (long long)c->hidden, weft_dtype_name(c->dtype));
    for (int e = 0; c->expert_rank && e < c->experts; e++)
        if (c->expert_rank[e] < 0 || c->expert_rank[e] >= ranks)
            return weft_error_set(error, WEFT_ERR_ARGUMENT,
                                  "moe: the table puts expert %d on rank %d; ranks are 0 to %d", e,
                                  c->expert_rank[e], ranks - 1);
    return WEFT_OK;
}

static int owner_of(const weft_moe_config *c, int ranks, int expert)
{
    return c->expert_rank ? c->expert_rank[expert] : (int)weft_part_of(c->experts, ranks, expert);
}

/* Fills what follows from the configuration alone. Returns whether memory sufficed. */
static bool settle(weft_moe *moe, const weft_moe_config *c, int ranks, int rank)
{
    int64_t size = (int64_t)weft_dtype_size(c->dtype);
    int32_t *here;

    moe->config = *c;
    moe->config.expert_rank = NULL;
    moe->rung = rung_of(c->impl);
    moe->result_bytes = c->hidden * size;
    moe->row_bytes = c->row_bytes ? c->row_bytes : moe->result_bytes;
    moe->wire_bytes = c->wire == WEFT_MOE_WIRE_FP8 ? weft_moe_fp8_bytes(c->hidden) : moe->row_bytes;
    moe->row_stride = weft_round_up(moe->row_bytes, 64);
    moe->stage_stride = weft_round_up(moe->wire_bytes, 64);
    moe->slot_stride = weft_round_up(moe->result_bytes, 64);
    moe->owner = malloc((size_t)c->experts * sizeof(int32_t));
    moe->local_index = malloc((size_t)c->experts * sizeof(int32_t));
    moe->local = malloc((size_t)c->experts * sizeof(int32_t));
    here = calloc((size_t)ranks, sizeof(int32_t));
    if (moe->owner && moe->local_index && moe->local && here)
        for (int e = 0; e < c->experts; e++) {
            int owner = owner_of(c, ranks, e);

            moe->owner[e] = owner;
            moe->local_index[e] = here[owner]++;
            if (here[owner] > moe->experts_most)
                moe->experts_most = here[owner];
            if (owner == rank)
                moe->local[moe->experts_here++] = e;
        }
    free(here);
    moe->shape =
        (weft_moe_shape){.ranks = ranks,
                         .experts = c->experts,
                         .topk = c->topk,
                         .capacity = c->tokens,
                         .owner = moe->owner,
                         .one_row_per_rank = moe->rung->one_row_per_rank,
                         .one_result_per_row = c->mode == WEFT_MOE_REDUCED,
                         .terms_per_token = c->mode == WEFT_MOE_EXACT || c->topk < ranks ? c->topk : ranks};
    return moe->owner && moe->local_index && moe->local && here;
}

static void unsettle(weft_moe *moe)
{
    free(moe->owner);
    free(moe->local_index);
    free(moe->local);
    free(moe->nodes.node);
}

/* ---- where things lie -----------------------------------------------------------------------------------
 */

/* Hands out pieces of a block; with base NULL it only measures. */
typedef struct carver {
    char *base;
    size_t used;
} carver;

static void *carve(carver *c, size_t bytes)
{
    size_t at = c->used;

    c->used += weft_round_up_bytes(bytes, WEFT_LINE_BYTES);
    return c->base ? c->base + at : NULL;
}

static void carve_symmetric(const weft_moe *moe, weft_moe_lane *lane, carver *c)
{
    size_t ranks = (size_t)moe->shape.ranks, tokens = (size_t)moe->shape.capacity;
    size_t pairs = tokens * (size_t)moe->shape.topk;
    size_t per_rank = moe->shape.topk < moe->shape.ranks ? pairs : tokens * ranks;
    size_t rows = moe->rung->one_row_per_rank ? per_rank : pairs;

    lane->count = carve(c, 2 * ranks * sizeof(weft_signal));
    lane->staged = carve(c, sizeof(weft_signal));
    lane->done = carve(c, ranks * sizeof(weft_signal));
    lane->manifest = carve(c, 2 * ranks * sizeof(weft_moe_manifest));
    lane->out.row = carve(c, rows * sizeof(weft_moe_wire_row));
    lane->out.entry = carve(c, pairs * sizeof(weft_moe_wire_entry));
    lane->row_flag = carve(c, moe->rung->row_flags ? rows * sizeof(uint64_t) : 0);
    lane->result_flag = carve(c, moe->rung->row_flags ? pairs * sizeof(uint64_t) : 0);
    lane->index_copy = carve(c, moe->rung->input_copy ? pairs * sizeof(int32_t) : 0);
    lane->weight_copy = carve(c, moe->rung->input_copy ? pairs * sizeof(float) : 0);
    lane->stage = carve(c, (moe->rung->stage_once ? tokens : pairs) * (size_t)moe->stage_stride);
    lane->slot = carve(c, tokens * (size_t)moe->shape.terms_per_token * (size_t)moe->slot_stride);
    lane->settled = carve(c, moe->nodes.count ? 2 * ranks * sizeof(weft_signal) : 0);
    if (moe->rung->one_row_per_rank) {
        lane->relayed = carve(c, (size_t)moe->nodes.slots * sizeof(weft_signal));
        lane->relay = carve(c, (size_t)moe->nodes.slots * tokens * (size_t)moe->wire_bytes);
    }
    if (moe->nodes.inside) {
        size_t sources = (size_t)moe->nodes.sources, chunks = (size_t)moe->nodes.chunks;

        lane->parts = carve(c, sources * tokens * (size_t)moe->slot_stride);
        lane->part = carve(c, sources * tokens * sizeof(weft_moe_part));
        lane->part_count = carve(c, sources * sizeof(uint64_t));
        lane->counted = carve(c, (size_t)moe->nodes.slots * chunks * sizeof(uint64_t));
        lane->summed_there = carve(c, (size_t)moe->nodes.count * chunks * sizeof(weft_signal));
    }
}

static void carve_private(const weft_moe *moe, weft_moe_lane *lane, carver *c)
{
    size_t ranks = (size_t)moe->shape.ranks, tokens = (size_t)moe->shape.capacity,
           topk = (size_t)moe->shape.topk;
    size_t experts = (size_t)moe->experts_most, most = weft_min_bytes(topk, experts);
    size_t entries = ranks * tokens * most, rows = moe->rung->one_row_per_rank ? ranks * tokens : entries;
    size_t block = weft_max_bytes(entries, tokens * topk);
    weft_moe_routing *out = &lane->out;
    weft_moe_received *in = &lane->in;

    lane->seen = carve(c, ranks * sizeof(*lane->seen));
    lane->counts = carve(c, ranks * sizeof(*lane->counts));
    out->row_base = carve(c, (ranks + 1) * sizeof(int32_t));
    out->entry_base = carve(c, (ranks + 1) * sizeof(int32_t));
    out->row_next = carve(c, ranks * sizeof(int32_t));
    out->entry_next = carve(c, ranks * sizeof(int32_t));
    out->stamp = carve(c, ranks * sizeof(int32_t));
    out->slot_next = carve(c, moe->nodes.inside ? ranks * sizeof(int32_t) : 0);
    out->slot_stamp = carve(c, moe->nodes.inside ? ranks * sizeof(int32_t) : 0);
    out->order = carve(c, tokens * topk * sizeof(uint64_t));
    out->ordered = carve(c, tokens * sizeof(int32_t));
    out->terms = carve(c, tokens * sizeof(int32_t));
    out->term = carve(c, tokens * topk * sizeof(weft_moe_term));
    in->rank_base = carve(c, (ranks + 1) * sizeof(int32_t));
    in->row = carve(c, rows * sizeof(void *));
    in->source = carve(c, rows * sizeof(int32_t));
    in->token = carve(c, rows * sizeof(int32_t));
    in->entry_base = carve(c, (rows + 1) * sizeof(int32_t));
    in->entry = carve(c, entries * sizeof(weft_moe_wire_entry));
    in->offset = carve(c, (experts + 1) * sizeof(int64_t));
    in->place = carve(c, entries * sizeof(int32_t));
    in->expert_row = carve(c, entries * sizeof(int32_t));
    in->expert_weight = carve(c, entries * sizeof(float));
    in->next = carve(c, experts * sizeof(int64_t));
    lane->summed = carve(c, tokens * sizeof(bool));
    lane->inverse = carve(c, tokens * topk * sizeof(int32_t));
    lane->span = carve(c, experts * ranks * sizeof(weft_moe_span));
    lane->row_left = carve(c, rows * sizeof(int32_t));
    lane->tokens_seen = carve(c, ranks * sizeof(int64_t));
    lane->rows_back = carve(c, ranks * sizeof(int64_t));
    lane->shown = carve(c, ranks * sizeof(int64_t));
    lane->returned = carve(c, ranks * sizeof(int64_t));
    lane->chunks_done = carve(c, ranks * sizeof(int64_t));
    lane->marks = carve(c, (size_t)moe->nodes.count * tokens);
    lane->run_in = carve(c, block * sizeof(void *));
    lane->run_out = carve(c, block * sizeof(void *));
    lane->block_in = carve(c, block * sizeof(void *));
    lane->block_out = carve(c, block * sizeof(void *));
    lane->block_place = carve(c, block * sizeof(int32_t));
    lane->block_weight = carve(c, block * sizeof(float));
    lane->expanded = carve(c, moe->config.wire == WEFT_MOE_WIRE_FP8 ? rows * (size_t)moe->row_stride : 0);
}

static void carve_all(weft_moe *moe, weft_moe_lane *lanes, carver *symmetric, carver *private)
{
    for (int i = 0; i < moe->config.lanes; i++) {
        carve_symmetric(moe, &lanes[i], symmetric);
        carve_private(moe, &lanes[i], private);
    }
}

weft_status weft_moe_imagine(const weft_moe_config *config, int ranks, int rank, weft_moe *moe,
                             weft_error_text *error)
{
    weft_status status = check_config(config, ranks, error);

    *moe = (weft_moe){0};
    if (status)
        return status;
    if (settle(moe, config, ranks, rank))
        return WEFT_OK;
    unsettle(moe);
    return weft_error_set(error, WEFT_ERR_MEMORY, "moe: no memory for a table of %d experts",
                          config->experts);
}

void weft_moe_forget(weft_moe *moe)
{
    unsettle(moe);
}

weft_status weft_moe_measure(const weft_moe_config *config, int ranks, size_t *symmetric_bytes,
                             size_t *private_bytes, weft_error_text *error)
{
    carver symmetric = {NULL, 0}, private = {NULL, 0};
    weft_moe_lane lane;
    weft_moe moe;
    weft_status status = weft_moe_imagine(config, ranks, 0, &moe, error);

    if (status)
        return status;
    for (int i = 0; i < config->lanes; i++) {
        carve_symmetric(&moe, &lane, &symmetric);
        carve_private(&moe, &lane, &private);
    }
    weft_moe_forget(&moe);
    *symmetric_bytes = symmetric.used;
    *private_bytes = private.used + (size_t)config->lanes * sizeof(weft_moe_lane) + sizeof(weft_moe) +
                     3 * (size_t)config->experts * sizeof(int32_t);
    return WEFT_OK;
}

/* ---- making and freeing ---------------------------------------------------------------------------------
 */

static weft_status agree(weft_group *group, const weft_moe_config *c)
{
    int64_t facts[] = {c->experts,   c->topk,          c->hidden,        c->tokens, (int64_t)c->dtype,
                       c->row_bytes, (int64_t)c->mode, (int64_t)c->impl, c->lanes,  (int64_t)c->wire};
    uint64_t hash = weft_hash(WEFT_HASH_START, facts, sizeof(facts));
    char text[256];

    for (int e = 0; e < c->experts; e++) {
        int32_t owner = owner_of(c, group->size, e);

        hash = weft_hash(hash, &owner, sizeof(owner));
    }
    snprintf(text, sizeof(text),
             "%d experts, topk %d, hidden %lld, %lld tokens, %s, row_bytes %lld, mode %d, impl %d, %d lanes, "
             "wire %d, table %08x",
             c->experts, c->topk, (long long)c->hidden, (long long)c->tokens, weft_dtype_name(c->dtype),
             (long long)c->row_bytes, (int)c->mode, (int)c->impl, c->lanes, (int)c->wire,
             (unsigned)(hash & 0xffffffff));
    return weft_group_agree(group, "the mixture-of-experts layer", hash, text);
}

/* On a device: what the host knows of lanes. */
static weft_status allocate_lanes(weft_moe *moe)
{
    moe->lanes = calloc((size_t)moe->config.lanes, sizeof(*moe->lanes));
    if (!moe->lanes)
        return weft_group_poison(moe->group, WEFT_ERR_MEMORY, "moe: no memory for %d lanes",
                                 moe->config.lanes);
    for (int i = 0; i < moe->config.lanes; i++) {
        moe->lanes[i].moe = moe;
        moe->lanes[i].index = i;
    }
    return WEFT_OK;
}

/* Private memory, then symmetric memory: a rank that lacks the first still takes part in the second. */
static weft_status allocate(weft_moe *moe)
{
    weft_group *group = moe->group;
    carver symmetric = {NULL, 0}, private = {NULL, 0};
    weft_moe_lane *lanes = calloc((size_t)moe->config.lanes, sizeof(*lanes));
    bool enough = lanes != NULL;
    weft_status status;

    if (lanes)
        carve_all(moe, lanes, &symmetric, &private);
    moe->lanes = lanes;
    for (int i = 0; enough && i < moe->config.lanes; i++) {
        lanes[i].moe = moe;
        lanes[i].index = i;
        enough = weft_moe_far_open(&lanes[i]);
    }
    moe->memory = enough ? aligned_alloc(WEFT_LINE_BYTES, private.used) : NULL;
    status = weft_group_agree(group, "memory for the mixture-of-experts layer", moe->memory != NULL,
                              moe->memory ? "enough" : "no private memory left");
    if (!status && !moe->memory)
        status = weft_error_set(&group->error, WEFT_ERR_MEMORY, "moe: no memory for %zu private bytes",
                                private.used);
    if (!status)
        status = weft_symm_alloc(group, symmetric.used, WEFT_LINE_BYTES, &moe->symmetric);
    if (status)
        return status;
    memset(moe->memory, 0, private.used);
    symmetric = (carver){moe->symmetric, 0};
    private = (carver){moe->memory, 0};
    carve_all(moe, lanes, &symmetric, &private);
    for (int i = 0; i < moe->config.lanes; i++) {
        weft_symm_find(group, lanes[i].stage, 0, &lanes[i].stage_place);
        memset(lanes[i].seen, 0xff, (size_t)moe->shape.ranks * sizeof(*lanes[i].seen));
        memset(lanes[i].shown, 0xff, (size_t)moe->shape.ranks * sizeof(*lanes[i].shown));
    }
    return WEFT_OK;
}

static void discard(weft_moe *moe)
{
    for (int i = 0; moe->lanes && i < moe->config.lanes; i++) {
        weft_moe_far_close(&moe->lanes[i]);
        free(moe->lanes[i].receive);
        free(moe->lanes[i].scratch);
    }
    free(moe->lanes);
    free(moe->memory);
    unsettle(moe);
    free(moe);
}

weft_status weft_moe_open(weft_group *group, const weft_moe_config *config, bool on_device, weft_moe **result)
{
    weft_status status = check_config(config, group->size, &group->error);
    weft_moe *moe;

    if (status)
        return weft_group_reject(group, WEFT_SYNC_AGREE);
    moe = calloc(1, sizeof(*moe));
    status = agree(group, config);
    if (moe)
        moe->group = group;
    if (!status && (!moe || !settle(moe, config, group->size, group->rank) || !weft_moe_find_nodes(moe)))
        status = weft_group_poison(group, WEFT_ERR_MEMORY, "moe: no memory for a table of %d experts",
                                   config->experts);
    if (!status)
        weft_moe_find_inside(moe);
    if (!status)
        status = on_device ? allocate_lanes(moe) : allocate(moe);
    if (status) {
        if (moe)
            discard(moe);
        return status;
    }
    *result = moe;
    return WEFT_OK;
}

weft_status weft_moe_close(weft_moe *moe)
{
    weft_status status = moe->symmetric ? weft_symm_free(moe->group, moe->symmetric) : WEFT_OK;

    discard(moe);
    return status;
}
