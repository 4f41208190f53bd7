/* dispatch_recv, by the expert: looks through the lists that came and places their rows; and whether the
 * round takes place. */
#ifndef WEFT_RUN_CUDA_MOE_RECEIVE_CUH
#define WEFT_RUN_CUDA_MOE_RECEIVE_CUH

#include "core/round.h"
#include "moe_round.cuh"

namespace
{

enum { WARPS = THREADS / 32, AHEAD = 4 };

/* What a warp found among its lists. */
struct Found {
    int rows, equal, less;
};

/* One list: whether a row came, how many of its experts stand before `expert`, and where that is; -1 = not.
 */
struct Look {
    bool present;
    int less, at;
    weft_cuda_moe_entry entry; /* of `at` */
};

/* Four experts of a list from the `j`th on; false when the rest of it cannot matter. */
__device__ __forceinline__ bool look_at_four(Look &look, int4 four, int j, int expert)
{
    const int k[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (k[i] < 0 || k[i] > expert)
            return false;
        if (k[i] == expert) {
            look.at = j + i;
            return false;
        }
        look.less++;
    }
    return true;
}

/* The beginning of a list, or none, through L1: the rest is beside it. */
__device__ __forceinline__ int4 list_if(bool wanted, const int4 *from)
{
    int4 x = {-1, -1, -1, -1};
    WEFT_LOAD4_IF("ld.global.v4.u32", x, wanted, from);
    return x;
}

/* The rank whose lists are looked at in the `i`th place: in order, or as `move` brings their rows. */
__device__ __forceinline__ int rank_at(const weft_cuda_moe &p, int i, bool by_step)
{
    return !by_step ? i : p.rank >= i ? p.rank - i : p.rank - i + p.world;
}

/* AHEAD lists of every thread of a warp, 32 apart, from `first` on: all are under way before one is looked
 * at. */
__device__ __forceinline__ void look_ahead(const weft_cuda_moe &p, uint64_t round, const int64_t *tokens,
                                           int first, int end, int expert, bool by_step, Look (&look)[AHEAD])
{
    const int4 *list[AHEAD];
    int4 four[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        unsigned at = (unsigned)(first + i * 32 + threadIdx.x % 32), step = at / (unsigned)p.capacity;
        int64_t token = at - step * p.capacity;
        int from = rank_at(p, min((int)step, p.world - 1), by_step);
        list[i] = (const int4 *)(p.key + list_at(p, round, from, token));
        look[i] = {(int)at < end && token < tokens[from], 0, -1, {0, 0}};
        four[i] = list_if(look[i].present, list[i]);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (!look[i].present)
            continue;
        look[i].present = four[i].x >= 0;
        for (int j = 0; look_at_four(look[i], four[i], j, expert) && j + 4 < p.keys; j += 4)
            four[i] = list[i][j / 4 + 1];
        if (look[i].at >= 0) {
            int64_t place = (const int32_t *)list[i] - p.key + look[i].at;
            look[i].entry = p.entry[place];
        }
    }
}

/* All rows, of which those of one local expert: counted by every warp over its part of the lists, then placed
 * from the sums of the warps before it. No other CTA is needed for that. A warp that sees its part at one
 * look, as it does while tokens are few, places from what it saw; else it looks again. */
__device__ void receive_expert(const weft_cuda_moe &p, uint64_t round, const int64_t *tokens, Found *found,
                               int expert, bool lists_rows, bool by_step)
{
    enum { STEP = 32 * AHEAD };
    int lists = p.world * (int)p.capacity, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int part = weft_divide_up(lists, THREADS) * 32, begin = min(lists, warp * part),
        end = min(lists, begin + part);
    uint32_t before = (1u << lane) - 1;
    Found mine = {0, 0, 0}, base = {0, 0, 0}, all = {0, 0, 0};
    Look look[AHEAD];
    for (int first = begin; first < end; first += STEP) {
        look_ahead(p, round, tokens, first, end, expert, by_step, look);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            mine.rows += __popc(__ballot_sync(~0u, look[i].present));
            mine.equal += __popc(__ballot_sync(~0u, look[i].at >= 0));
            mine.less += look[i].less;
        }
    }
    mine.less = (int)__reduce_add_sync(~0u, (unsigned)mine.less);
    __syncthreads(); /* the expert before it is through */
    if (lane == 0)
        found[warp] = mine;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        if (w == warp)
            base = all;
        all = {all.rows + found[w].rows, all.equal + found[w].equal, all.less + found[w].less};
    }
    for (int first = begin; first < end; first += STEP) {
        if (part > STEP)
            look_ahead(p, round, tokens, first, end, expert, by_step, look);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int at = first + i * 32 + lane, step = at / (int)p.capacity;
            int token = at - step * (int)p.capacity, from = rank_at(p, min(step, p.world - 1), by_step);
            int64_t list = from * p.capacity + token;
            uint32_t rows = __ballot_sync(~0u, look[i].present), equal = __ballot_sync(~0u, look[i].at >= 0);
            int row = base.rows + __popc(rows & before),
                place = all.less + base.equal + __popc(equal & before);
            if (look[i].present && lists_rows) {
                p.view_row[row] = p.row + list * p.row_stride;
                p.source[row] = from;
                p.token[row] = token;
            }
            if (look[i].at >= 0) {
                p.entry_row[place] = row;
                p.entry_expert[place] = expert;
                p.entry_weight[place] = look[i].entry.weight;
                p.entry_to[place] = at_rank(p, p.slot, from) + look[i].entry.slot * p.slot_stride;
                p.place[list * p.keys + look[i].at] = place;
                if (by_step)
                    p.entry_step[place] = step;
            }
            base.rows += __popc(rows);
            base.equal += __popc(equal);
        }
    }
    if (threadIdx.x == 0) {
        p.offset[expert] = all.less;
        if (expert == p.experts_here - 1) {
            p.offset[expert + 1] = all.less + all.equal;
            p.state->entries = all.less + all.equal;
        }
        if (lists_rows)
            p.state->rows = all.rows;
    }
}

/* The lowest rank that rejected the round; the number of ranks when none did. */
__device__ __forceinline__ int find_rejection(const weft_cuda_moe &p, uint64_t round, int64_t *tokens,
                                              int *rejecting)
{
    if (threadIdx.x == 0)
        *rejecting = p.world;
    __syncthreads();
    for (int r = threadIdx.x; r < p.world; r += THREADS) {
        int64_t word = (int64_t)((round & 1) * p.world + r);
        tokens[r] = p.tokens[word];
        if (p.rejected[word] == round)
            atomicMin(rejecting, r);
    }
    __syncthreads();
    return *rejecting;
}

/* One thread of the rank: how the round stands, for the kernels behind and for the host. */
__device__ void note_round(const weft_cuda_moe &p, uint64_t round, int rejecting)
{
    weft_cuda_moe_state *state = p.state;
    bool own = p.rejected[(round & 1) * p.world + p.rank] == round;
    state->skipped = rejecting < p.world;
    state->parity = (int32_t)(round & 1);
    if (state->fresh && !own)
        state->kept ^= 1;
    state->fresh = 0;
    state->rows_sent = state->rows_sent_total - state->rows_sent_before;
    state->rows_sent_before = state->rows_sent_total;
    if (rejecting < p.world || p.experts_here == 0)
        state->rows = state->entries = p.offset[0] = 0;
    if (rejecting < p.world && !own && state->peer_fault == ~0ull)
        state->peer_fault = round << 24 | (uint64_t)rejecting;
}

} // namespace

#endif
