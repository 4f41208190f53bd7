/* dispatch_send, by the token: orders its experts, finds what cannot be, and writes its lists at every rank.
 */
#ifndef WEFT_RUN_CUDA_MOE_SEND_CUH
#define WEFT_RUN_CUDA_MOE_SEND_CUH

#include "moe_round.cuh"

namespace
{

/* A token's experts: as given, and in ascending order, those that are none last. */
struct Token {
    int32_t id[WEFT_CUDA_MOE_TOPK], order[WEFT_CUDA_MOE_TOPK];
    int32_t dest[WEFT_CUDA_MOE_TOPK]; /* by place in the order */
    int32_t nth[WEFT_CUDA_MOE_TOPK];  /* of its rank's */
    char *to[WEFT_CUDA_MOE_RANKS];    /* its row at the ranks it goes to */
    int32_t count, ranks, out_of_range, twice;
};

__device__ void tell_fault(const weft_cuda_moe &p, uint64_t round, int64_t token, int kind, int expert,
                           int first, int second)
{
    if (*(volatile uint64_t *)&p.state->fault >> 24 < round) /* an earlier round's is still unread */
        return;
    p.fault[token] = {kind, expert, first, second};
    atomicMin((unsigned long long *)&p.state->fault, (unsigned long long)(round << 24 | (uint64_t)token));
}

/* Orders the experts and finds what cannot be. */
__device__ bool order_token(const weft_cuda_moe &p, Token &s, const int32_t *expert, uint64_t round,
                            int64_t token)
{
    int topk = p.topk;
    __syncthreads(); /* the token before it is through */
    if (threadIdx.x == 0) {
        s.count = s.ranks = 0;
        s.out_of_range = s.twice = INT32_MAX;
    }
    for (int k = threadIdx.x; k < topk; k += THREADS)
        s.id[k] = expert[token * topk + k];
    __syncthreads();
    for (int k = threadIdx.x; k < topk; k += THREADS) {
        uint32_t id = (uint32_t)s.id[k];
        int before = 0;
        for (int j = 0; j < topk; j++)
            before += (uint32_t)s.id[j] < id || ((uint32_t)s.id[j] == id && j < k);
        s.order[before] = k;
        if (s.id[k] >= 0)
            atomicAdd(&s.count, 1);
        if (s.id[k] < -1 || s.id[k] >= p.experts)
            atomicMin(&s.out_of_range, k);
    }
    __syncthreads();
    for (int i = threadIdx.x; i + 1 < s.count; i += THREADS)
        if (s.id[s.order[i]] == s.id[s.order[i + 1]])
            atomicMin(&s.twice, i);
    __syncthreads();
    if (s.out_of_range != INT32_MAX) {
        if (threadIdx.x == 0)
            tell_fault(p, round, token, WEFT_CUDA_MOE_RANGE, s.id[s.out_of_range], s.out_of_range, 0);
        return false;
    }
    if (s.twice != INT32_MAX) {
        if (threadIdx.x == 0)
            tell_fault(p, round, token, WEFT_CUDA_MOE_TWICE, s.id[s.order[s.twice]], s.order[s.twice],
                       s.order[s.twice + 1]);
        return false;
    }
    return true;
}

/* Writes the lists of the token at every rank, and what combine_recv will need. */
__device__ void place_token(const weft_cuda_moe &p, Token &s, const float *weight, uint64_t round,
                            int64_t token)
{
    for (int i = threadIdx.x; i < s.count; i += THREADS)
        s.dest[i] = p.owner[s.id[s.order[i]]];
    __syncthreads();
    for (int i = threadIdx.x; i < s.count; i += THREADS) {
        int nth = 0;
        for (int j = 0; j < i; j++)
            nth += s.dest[j] == s.dest[i];
        s.nth[i] = nth;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < s.count; i += THREADS) {
        int k = s.order[i], dest = s.dest[i], firsts = 0;
        float w = weight ? weight[token * p.topk + k] : 1.0f;
        int64_t list = list_at(p, round, p.rank, token) + s.nth[i];
        bool last = true;
        for (int j = 0; j < i; j++)
            firsts += s.nth[j] == 0;
        for (int j = i + 1; j < s.count; j++)
            last &= s.dest[j] != dest;
        int32_t slot = (int32_t)(token * p.terms) + (p.reduced ? firsts : i);
        at_rank(p, p.key, dest)[list] = p.local[s.id[k]];
        at_rank(p, p.entry, dest)[list] = {slot, w};
        if (last && s.nth[i] + 1 < p.keys)
            at_rank(p, p.key, dest)[list + 1] = -1;
        if (s.nth[i] == 0) {
            s.to[firsts] = at_rank(p, p.row, dest) + (p.rank * p.capacity + token) * p.row_stride;
            atomicAdd(&s.ranks, 1);
        }
        if (!p.reduced)
            p.term_weight[token * p.terms + i] = w;
        else if (s.nth[i] == 0)
            p.term_weight[token * p.terms + firsts] = 1.0f;
    }
    for (int r = threadIdx.x; r < p.world; r += THREADS) {
        bool goes = false;
        for (int i = 0; i < s.count; i++)
            goes |= s.dest[i] == r;
        if (!goes)
            at_rank(p, p.key, r)[list_at(p, round, p.rank, token)] = -1;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        p.terms_of[token] = p.reduced ? s.ranks : s.count;
}

/* The ranks of a token whose row is moved later. */
__device__ __forceinline__ void note_ranks(const weft_cuda_moe &p, const Token &s, int64_t token)
{
    for (int r = threadIdx.x; r < p.world; r += THREADS) {
        bool goes = false;
        for (int i = 0; i < s.count; i++)
            goes |= s.dest[i] == r;
        p.goes[token * p.world + r] = goes;
    }
}

/* The routing of this round is the one to repeat from the next on, unless it is rejected. */
__device__ __forceinline__ void keep_token(const weft_cuda_moe &p, const Token &s, const float *weight,
                                           int to, int64_t token)
{
    int64_t at = (to * p.capacity + token) * p.topk;
    for (int k = threadIdx.x; k < p.topk; k += THREADS) {
        p.kept_expert[at + k] = s.id[k];
        p.kept_weight[at + k] = weight ? weight[token * p.topk + k] : 1.0f;
    }
}

} // namespace

#endif
