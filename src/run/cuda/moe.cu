/*
 * Mixture of experts on the device: the four kernels of a round and what lies between its halves. The
 * protocol stands in moe_device.h.
 *
 * Card: 256 threads, at most 64 registers, 18 KiB of shared memory at most. Two CTAs of a kernel are on an
 * SM, and there is room for the two of the next one, which comes in early. A CTA has a token, an entry or a
 * row at a time, its threads 16 bytes each of it; pushing, summing and looking through lists have 4 loads in
 * flight a thread. Where tokens are fewer than CTAs, several CTAs sum a token.
 */
#include "core/round.h"
#include "early.cuh"
#include "moe_receive.cuh"
#include "moe_rows.cuh"
#include "moe_send.cuh"
#include "moe_wire.cuh"

/* ---- dispatch ------------------------------------------------------------------------------------------ */

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    weft_experts_dispatch_send(const __grid_constant__ weft_cuda_moe p,
                               const __grid_constant__ weft_cuda_moe_args call)
{
    __shared__ Token s;
    uint64_t *runs = runs_of(p, WEFT_CUDA_MOE_DISPATCH_SEND);
    wait_for_stream();
    uint64_t round = __ldcg(runs) + 1;
    note_begin(p, WEFT_CUDA_MOE_DISPATCH_SEND, round);
    int kept = p.state->kept;
    bool repeats = !call.expert && call.tokens != 0, fresh = !repeats || call.weight, rejects = call.reject;
    const int32_t *expert = repeats ? p.kept_expert + kept * p.capacity * p.topk : call.expert;
    const float *weight = repeats && !call.weight ? p.kept_weight + kept * p.capacity * p.topk : call.weight;
    int64_t sent = 0;
    if (repeats && !rejects && p.state->kept_tokens[kept] != call.tokens + 1) {
        int64_t had = p.state->kept_tokens[kept];
        rejects = true;
        if (blockIdx.x == 0 && threadIdx.x == 0)
            tell_fault(p, round, 0, WEFT_CUDA_MOE_REPEAT, (int)(had ? had - 1 : 0), (int)call.tokens, 0);
    }
    for (int64_t token = blockIdx.x; token < call.tokens && !rejects; token += gridDim.x) {
        if (!order_token(p, s, expert, round, token)) {
            rejects = true;
            break;
        }
        if (fresh)
            keep_token(p, s, weight, 1 - kept, token);
        place_token(p, s, weight, round, token);
        const char *row = (const char *)call.x + token * p.row_bytes;
        if (call.lists)
            note_ranks(p, s, token);
        else if (p.scales_at)
            quantise_any(p, s.to, s.ranks, row);
        else
            push_row(s.to, s.ranks, row, p.row_bytes, 0);
        sent += s.ranks;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p.state->fresh = fresh && !call.reject;
        p.state->kept_tokens[1 - kept] = call.tokens + 1;
        p.state->tokens = call.tokens;
        p.state->sent = round;
        p.state->moved += call.lists;
    }
    if (threadIdx.x == 0 && sent)
        atomicAdd((unsigned long long *)&p.state->rows_sent_total, (unsigned long long)sent);
    int64_t word = (int64_t)((round & 1) * p.world + p.rank);
    for (int r = threadIdx.x; r < p.world; r += THREADS) {
        if (blockIdx.x == 0)
            at_rank(p, p.tokens, r)[word] = call.tokens;
        if (rejects)
            at_rank(p, p.rejected, r)[word] = round;
    }
    post_everywhere(p, p.arrived);
    if (!call.lists && blockIdx.x < p.movers)
        post_everywhere(p, p.landed);
    count_run(p, WEFT_CUDA_MOE_DISPATCH_SEND, runs, round);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    weft_experts_dispatch_recv(const __grid_constant__ weft_cuda_moe p,
                               const __grid_constant__ weft_cuda_moe_args call)
{
    __shared__ int64_t tokens[WEFT_CUDA_MOE_RANKS];
    __shared__ Found found[WARPS];
    __shared__ int rejecting;
    uint64_t *runs = runs_of(p, WEFT_CUDA_MOE_DISPATCH_RECV);
    wait_for_stream();
    uint64_t round = __ldcg(runs) + 1;
    if (!await_all(p, p.arrived, WEFT_CUDA_MOE_DISPATCH_RECV, round, p.grid[WEFT_CUDA_MOE_DISPATCH_SEND]) ||
        (p.movers && !call.lists && !await_all(p, p.landed, WEFT_CUDA_MOE_MOVE, round, p.movers)))
        return;
    bool skips = find_rejection(p, round, tokens, &rejecting) < p.world;
    for (int expert = blockIdx.x; expert < p.experts_here; expert += gridDim.x) {
        if (!skips)
            receive_expert(p, round, tokens, found, expert, expert == 0, call.lists);
        else if (threadIdx.x == 0)
            p.offset[expert] = p.offset[expert + 1] = 0;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        note_round(p, round, rejecting);
    count_run(p, WEFT_CUDA_MOE_DISPATCH_RECV, runs, round);
}

/* ---- between dispatch and combine ---------------------------------------------------------------------- */

/* One CTA. An expert that has more rows than it is padded to gets no place. */
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    weft_experts_layout(const __grid_constant__ weft_cuda_moe p,
                        const __grid_constant__ weft_cuda_moe_args call)
{
    __shared__ int64_t sums[THREADS];
    int64_t *start = (int64_t *)call.out, base = 0;
    wait_for_stream();
    for (int first = 0; first < p.experts_here; first += THREADS) {
        int expert = first + threadIdx.x;
        int64_t count = expert < p.experts_here ? p.offset[expert + 1] - p.offset[expert] : 0;
        int64_t rows = expert >= p.experts_here ? 0
                       : call.alignment < 0     ? -call.alignment
                                                : weft_round_up(count, call.alignment);
        bool over = call.alignment < 0 && count > -call.alignment;
        __syncthreads();
        sums[threadIdx.x] = rows;
        __syncthreads();
        for (int step = 1; step < THREADS; step *= 2) {
            int64_t other = (int)threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
            __syncthreads();
            sums[threadIdx.x] += other;
            __syncthreads();
        }
        if (expert < p.experts_here)
            start[expert] = over ? -1 : base + sums[threadIdx.x] - rows;
        if (over) {
            atomicMin((unsigned long long *)&p.state->overflow,
                      (unsigned long long)expert << 32 | (unsigned long long)count);
            p.state->overflow_padded = -call.alignment;
        }
        base += sums[THREADS - 1];
    }
    if (threadIdx.x == 0)
        *call.rows = base;
}

namespace
{

/* Where an entry lies in the layout of `start`; negative: nowhere. */
__device__ __forceinline__ int64_t packed_place(const weft_cuda_moe &p, const int64_t *start, int64_t place)
{
    int expert = p.entry_expert[place];
    if (!start)
        return place;
    return start[expert] < 0 ? -1 : start[expert] + place - p.offset[expert];
}

} // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    weft_experts_gather(const __grid_constant__ weft_cuda_moe p,
                        const __grid_constant__ weft_cuda_moe_args call)
{
    __shared__ char *to;
    wait_for_stream();
    int64_t entries = p.state->entries;
    for (int64_t place = blockIdx.x; place < entries; place += gridDim.x) {
        int64_t at = packed_place(p, call.start, place);
        const char *row = (const char *)p.view_row[p.entry_row[place]];
        if (p.scales_at) {
            if (at >= 0)
                expand_any(p, (char *)call.out + at * p.row_bytes, row);
            continue;
        }
        __syncthreads();
        if (threadIdx.x == 0)
            to = (char *)call.out + at * p.row_bytes;
        __syncthreads();
        if (at >= 0)
            push_row(&to, 1, row, p.row_bytes, (uintptr_t)call.out);
    }
}

/* ---- combine ------------------------------------------------------------------------------------------- */

namespace
{

/* The results of a received row, summed in the order of its experts. */
__device__ void send_sum(const weft_cuda_moe &p, const weft_cuda_moe_args &call, Terms &s, int64_t row)
{
    int from = p.source[row], token = p.token[row];
    int64_t list = list_at(p, (uint64_t)p.state->parity, from, token);
    const int32_t *place = p.place + ((int64_t)from * p.capacity + token) * p.keys;
    __syncthreads(); /* the row before it is through */
    if (threadIdx.x < 32) {
        int count = 0;
        for (int n = 32;
             n == 32 && count < p.keys;) { /* until -1: after it there is what older rounds left */
            int j = count + (int)threadIdx.x;
            bool is = j < p.keys;
            int64_t at = is ? packed_place(p, call.start, place[j]) : -1;
            float weight = is ? p.entry[list + j].weight : 0;
            uint32_t found = __ballot_sync(~0u, is && p.key[list + j] >= 0);
            n = found == ~0u ? 32 : __ffs((int)~found) - 1;
            if ((int)threadIdx.x < n) {
                s.from[j] = at < 0 ? nullptr : (const char *)call.x + at * p.result_bytes;
                s.weight[j] = at < 0 ? 0 : weight;
            }
            count += n;
        }
        end_terms(s, count);
    }
    __syncthreads();
    sum_any(p, s, at_rank(p, p.slot, from) + p.entry[list].slot * p.slot_stride, p.result_bytes,
            (uintptr_t)call.x);
}

__device__ __forceinline__ void send_result(const weft_cuda_moe &p, const weft_cuda_moe_args &call, char **to,
                                            int64_t place)
{
    int64_t at = packed_place(p, call.start, place);
    __syncthreads();
    if (threadIdx.x == 0)
        *to = p.entry_to[place];
    __syncthreads();
    if (at >= 0)
        push_row(to, 1, (const char *)call.x + at * p.result_bytes, p.result_bytes, 0);
    for (int64_t i = threadIdx.x; i < p.result_bytes && at < 0; i += THREADS)
        (*to)[i] = 0;
}

} // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    weft_experts_combine_send(const __grid_constant__ weft_cuda_moe p,
                              const __grid_constant__ weft_cuda_moe_args call)
{
    __shared__ Terms s;
    __shared__ char *to;
    uint64_t *runs = runs_of(p, WEFT_CUDA_MOE_COMBINE_SEND);
    wait_for_stream();
    uint64_t round = __ldcg(runs) + 1;
    if (p.state->skipped)
        return;
    note_begin(p, WEFT_CUDA_MOE_COMBINE_SEND, round);
    int64_t units = p.reduced ? p.state->rows : p.state->entries;
    for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x)
        if (p.reduced)
            send_sum(p, call, s, unit);
        else
            send_result(p, call, &to, unit);
    post_everywhere(p, p.returned);
    count_run(p, WEFT_CUDA_MOE_COMBINE_SEND, runs, round);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    weft_experts_combine_recv(const __grid_constant__ weft_cuda_moe p,
                              const __grid_constant__ weft_cuda_moe_args call)
{
    __shared__ Terms s;
    uint64_t *runs = runs_of(p, WEFT_CUDA_MOE_COMBINE_RECV);
    wait_for_stream();
    uint64_t round = __ldcg(runs) + 1;
    int64_t units = p.state->tokens * p.pieces, unit = blockIdx.x;
    if (p.state->skipped)
        return;
    do { /* what to add up is known before it has come */
        int64_t token = unit / p.pieces, begin = unit % p.pieces * p.piece_bytes;
        int count = unit < units ? p.terms_of[token] : 0;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += THREADS) {
            s.from[i] = p.slot + (token * p.terms + i) * p.slot_stride + begin;
            s.weight[i] = p.term_weight[token * p.terms + i];
        }
        end_terms(s, count);
        __syncthreads();
        if (unit == blockIdx.x &&
            !await_all(p, p.returned, WEFT_CUDA_MOE_COMBINE_RECV, round, p.grid[WEFT_CUDA_MOE_COMBINE_SEND]))
            return;
        if (unit < units)
            sum_any(p, s, (char *)call.out + token * p.result_bytes + begin,
                    min(p.piece_bytes, p.result_bytes - begin), 0);
        unit += gridDim.x;
    } while (unit < units);
    count_run(p, WEFT_CUDA_MOE_COMBINE_RECV, runs, round);
}
