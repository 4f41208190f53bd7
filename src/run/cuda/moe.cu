/*
 * Mixture of experts on the device: the four kernels of a round and what lies between its halves. The
 * protocol stands in moe_device.h.
 *
 * Card: 256 threads, at most 64 registers, 18 KiB of shared memory at most. Two CTAs of a kernel are on an
 * SM, and there is room for the two of the next one, which comes in early. A CTA has a token, an entry or a
 * row at a time, its threads 16 bytes each of it; pushing, summing and looking through lists have 4 loads in
 * flight a thread. Where tokens are fewer than CTAs, several CTAs sum a token.
 */
#include "early.cuh"
#include "moe_device.h"
#include "order.cuh"
#include "reduce.cuh"

namespace
{

enum { THREADS = WEFT_CUDA_MOE_THREADS, WARPS = THREADS / 32, DEPTH = 4, TOGETHER = 4, AHEAD = 4 };

template <class T> __device__ __forceinline__ T *at_rank(const weft_cuda_moe &p, T *mine, int rank)
{
    return (T *)((char *)mine + (rank - p.rank) * p.stride);
}

/* Where rank `from` has its lists of the round at `to`, or this rank those of rank `from`. */
__device__ __forceinline__ int64_t list_at(const weft_cuda_moe &p, uint64_t round, int from, int64_t token)
{
    return ((int64_t)((round & 1) * p.world + from) * p.capacity + token) * p.keys;
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

/* The first expired wait of the rank writes the record, then raises every rank's abort word. */
__device__ void expired(const weft_cuda_moe &p, int from, int phase, uint64_t round, uint64_t have,
                        uint64_t want)
{
    weft_cuda_record *record = &p.control->record;
    if (atomicCAS(&record->set, 0u, 1u) == 0) {
        record->plan_task = (uint32_t)phase;
        record->signal = (uint32_t)from;
        record->lane = blockIdx.x;
        record->run = round;
        record->have = have;
        record->want = want;
        __threadfence_system();
        atomicExch(&record->set, 2u);
    }
    for (int r = 0; r < p.world; r++)
        atomicExch_system(&at_rank(p, p.control, r)->abort, 1u);
}

/* One thread: until all CTAs of a rank have posted in that many rounds, those of the phase before; partner:
 * post_everywhere there. False when the round is to be given up. */
__device__ bool await(const weft_cuda_moe &p, const uint64_t *signal, int from, int phase, uint64_t round)
{
    uint64_t want = round * p.grid[phase - 1], began = 0;
    for (uint32_t looks = 1;; looks++) {
        uint64_t have = load_acquire(signal);
        if ((int64_t)(have - want) >= 0)
            return true;
        if (looks % 32)
            continue;
        if (load_relaxed(&p.control->abort))
            return false;
        if (looks % 2048 == 0 && p.stop && load_relaxed(p.stop)) { /* the host's word, across the bus */
            atomicExch_system(&p.control->abort, 1u);
            return false;
        }
        uint64_t now = now_ns();
        if (!began) {
            began = now;
        } else if (now - began > p.deadline_ns) {
            expired(p, from, phase, round, have, want);
            return false;
        }
    }
}

/* The CTA waits for every rank. */
__device__ __forceinline__ bool await_all(const weft_cuda_moe &p, const uint64_t *signals, int phase,
                                          uint64_t round)
{
    bool lost = false;
    for (int r = threadIdx.x; r < p.world; r += THREADS)
        lost |= !await(p, signals + (int64_t)r * WEFT_CUDA_LINE_WORDS, r, phase, round);
    return !__syncthreads_or(lost);
}

/* Everything the CTA has stored comes before; partner: await there. */
__device__ __forceinline__ void post_everywhere(const weft_cuda_moe &p, uint64_t *signals)
{
    __syncthreads();
    for (int r = threadIdx.x; r < p.world; r += THREADS)
        add_release(at_rank(p, signals + (int64_t)p.rank * WEFT_CUDA_LINE_WORDS, r));
}

/* How many rounds this CTA has finished in a phase: only it writes that. */
__device__ __forceinline__ uint64_t *runs_of(const weft_cuda_moe &p, int phase)
{
    return p.runs + (int64_t)(p.run0[phase] + blockIdx.x) * WEFT_CUDA_LINE_WORDS;
}

/* One thread of the rank: the phase begins. */
__device__ __forceinline__ void note_begin(const weft_cuda_moe &p, int phase, uint64_t round)
{
    weft_cuda_moe_state *s = p.state;
    if (blockIdx.x != 0 || threadIdx.x != 0)
        return;
    if (phase == WEFT_CUDA_MOE_DISPATCH_SEND && round > 1) {
        s->dispatch_ns += s->ended_ns[WEFT_CUDA_MOE_DISPATCH_RECV] - s->began_ns[WEFT_CUDA_MOE_DISPATCH_SEND];
        if (!s->skipped)
            s->combine_ns +=
                s->ended_ns[WEFT_CUDA_MOE_COMBINE_RECV] - s->began_ns[WEFT_CUDA_MOE_COMBINE_SEND];
    }
    s->began_ns[phase] = now_ns();
    __threadfence();
    *(volatile uint64_t *)&s->round[phase] = round; /* partner: weft_experts_link */
}

/* Every thread has read the number of the round. */
__device__ __forceinline__ void count_run(const weft_cuda_moe &p, int phase, uint64_t *runs, uint64_t round)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        *runs = round;
        atomicMax((unsigned long long *)&p.state->ended_ns[phase], (unsigned long long)now_ns());
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/* A word past L1, or zero. Without a branch: a load inside one is waited for where the branch ends. */
template <class Word> __device__ __forceinline__ Word load_if(bool wanted, const Word *from)
{
    return wanted ? __ldcg(from) : Word();
}

template <> __device__ __forceinline__ uint4 load_if<uint4>(bool wanted, const uint4 *from)
{
    uint4 x = {0, 0, 0, 0};
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.u32 p, %5, 0;\n"
                 "@p ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "l"(from), "r"((unsigned)wanted)
                 : "memory");
    return x;
}

/* A row to several places. */
template <class Word>
__device__ __forceinline__ void push_words(char *const *to, int places, const char *from, int64_t bytes)
{
    int64_t total = bytes / (int64_t)sizeof(Word);
#pragma unroll 1
    for (int64_t base = threadIdx.x; base < total; base += THREADS * DEPTH) {
        Word x[DEPTH];
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
            x[j] = load_if(base + j * THREADS < total, (const Word *)from + base + j * THREADS);
#pragma unroll 1
        for (int i = 0; i < places; i++) {
            Word *row = (Word *)to[i];
#pragma unroll
            for (int j = 0; j < DEPTH; j++)
                if (base + j * THREADS < total)
                    row[base + j * THREADS] = x[j];
        }
    }
}

/* By the widest words that all addresses allow; `ends` has those of the places where they do not begin on 16
 * bytes. */
__device__ __forceinline__ void push_row(char *const *to, int places, const char *from, int64_t bytes,
                                         uintptr_t ends)
{
    ends |= (uintptr_t)from | (uintptr_t)bytes;
    if (ends % 16 == 0)
        push_words<uint4>(to, places, from, bytes);
    else if (ends % 4 == 0)
        push_words<uint32_t>(to, places, from, bytes);
    else if (ends % 2 == 0)
        push_words<unsigned short>(to, places, from, bytes);
    else
        push_words<unsigned char>(to, places, from, bytes);
}

/* Rows to be added up, and with what weights; NULL with weight 0: nothing. */
struct Terms {
    const char *from[WEFT_CUDA_MOE_TOPK];
    float weight[WEFT_CUDA_MOE_TOPK];
    int count; /* a multiple of TOGETHER, which are under way at a time */
};

/* Fills up the last ones of `count`. */
__device__ __forceinline__ void end_terms(Terms &s, int count)
{
    int whole = (count + TOGETHER - 1) / TOGETHER * TOGETHER;
    for (int i = count + (int)threadIdx.x; i < whole; i += THREADS) {
        s.from[i] = nullptr;
        s.weight[i] = 0;
    }
    if (threadIdx.x == 0)
        s.count = whole;
}

/* to = sum of weight * row, in the order given, in fp32, rounded once. */
template <int DTYPE, class Word>
__device__ __forceinline__ void sum_words(const Terms &s, char *to, int64_t bytes)
{
    typedef typename Type<DTYPE>::Stored Stored;
    enum { COUNT = sizeof(Word) / sizeof(Stored) };
    int64_t total = bytes / (int64_t)sizeof(Word);
#pragma unroll 1
    for (int64_t at = threadIdx.x; at < total; at += THREADS) {
        float sum[COUNT];
#pragma unroll
        for (int c = 0; c < COUNT; c++)
            sum[c] = 0;
#pragma unroll 1
        for (int i0 = 0; i0 < s.count; i0 += TOGETHER) {
            const Word *from[TOGETHER];
            Word x[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                from[i] = (const Word *)s.from[i0 + i];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                x[i] = load_if(from[i] != nullptr, from[i] + at);
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                Stored y[COUNT];
                memcpy(y, &x[i], sizeof(y));
#pragma unroll
                for (int c = 0; c < COUNT; c++)
                    sum[c] = fmaf(s.weight[i0 + i], (float)Type<DTYPE>::widen(y[c]), sum[c]);
            }
        }
        Stored out[COUNT];
        Word word;
#pragma unroll
        for (int c = 0; c < COUNT; c++)
            out[c] = Type<DTYPE>::narrow(sum[c]);
        memcpy(&word, out, sizeof(word));
        ((Word *)to)[at] = word;
    }
}

template <int DTYPE>
__device__ __forceinline__ void sum_rows(const Terms &s, char *to, int64_t bytes, uintptr_t ends)
{
    ends |= (uintptr_t)to | (uintptr_t)bytes;
    if (ends % 16 == 0)
        sum_words<DTYPE, uint4>(s, to, bytes);
    else
        sum_words<DTYPE, typename Type<DTYPE>::Stored>(s, to, bytes);
}

__device__ __forceinline__ void sum_any(const weft_cuda_moe &p, const Terms &s, char *to, int64_t bytes,
                                        uintptr_t ends)
{
    if (p.dtype == WEFT_F16)
        sum_rows<WEFT_F16>(s, to, bytes, ends);
    else if (p.dtype == WEFT_BF16)
        sum_rows<WEFT_BF16>(s, to, bytes, ends);
    else
        sum_rows<WEFT_F32>(s, to, bytes, ends);
}

/* ---- dispatch_send ------------------------------------------------------------------------------------- */

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
        push_row(s.to, s.ranks, (const char *)call.x + token * p.row_bytes, p.row_bytes, 0);
        sent += s.ranks;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p.state->fresh = fresh && !call.reject;
        p.state->kept_tokens[1 - kept] = call.tokens + 1;
        p.state->tokens = call.tokens;
        p.state->sent = round;
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
    count_run(p, WEFT_CUDA_MOE_DISPATCH_SEND, runs, round);
}

/* ---- dispatch_recv ------------------------------------------------------------------------------------- */

namespace
{

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

/* The beginning of a list, as load_if does it, but through L1: the rest is beside it. */
__device__ __forceinline__ int4 list_if(bool wanted, const int4 *from)
{
    int4 x = {-1, -1, -1, -1};
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.u32 p, %5, 0;\n"
                 "@p ld.global.v4.s32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "l"(from), "r"((unsigned)wanted)
                 : "memory");
    return x;
}

/* AHEAD lists of every thread of a warp, 32 apart, from `first` on: all are under way before one is looked
 * at. */
__device__ __forceinline__ void look_ahead(const weft_cuda_moe &p, uint64_t round, const int64_t *tokens,
                                           int first, int end, int expert, Look (&look)[AHEAD])
{
    const int4 *list[AHEAD];
    int4 four[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        unsigned at = (unsigned)(first + i * 32 + threadIdx.x % 32), from = at / (unsigned)p.capacity;
        int64_t token = at - from * p.capacity;
        list[i] = (const int4 *)(p.key + list_at(p, round, (int)from, token));
        look[i] = {(int)at < end && token < tokens[min((int)from, p.world - 1)], 0, -1, {0, 0}};
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
                               int expert, bool lists_rows)
{
    enum { STEP = 32 * AHEAD };
    int lists = p.world * (int)p.capacity, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int part = (lists + THREADS - 1) / THREADS * 32, begin = min(lists, warp * part),
        end = min(lists, begin + part);
    uint32_t before = (1u << lane) - 1;
    Found mine = {0, 0, 0}, base = {0, 0, 0}, all = {0, 0, 0};
    Look look[AHEAD];
    for (int first = begin; first < end; first += STEP) {
        look_ahead(p, round, tokens, first, end, expert, look);
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
            look_ahead(p, round, tokens, first, end, expert, look);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int list = first + i * 32 + lane, from = list / (int)p.capacity;
            uint32_t rows = __ballot_sync(~0u, look[i].present), equal = __ballot_sync(~0u, look[i].at >= 0);
            int row = base.rows + __popc(rows & before),
                place = all.less + base.equal + __popc(equal & before);
            if (look[i].present && lists_rows) {
                p.view_row[row] = p.row + list * p.row_stride;
                p.source[row] = from;
                p.token[row] = list - from * (int)p.capacity;
            }
            if (look[i].at >= 0) {
                p.entry_row[place] = row;
                p.entry_expert[place] = expert;
                p.entry_weight[place] = look[i].entry.weight;
                p.entry_to[place] = at_rank(p, p.slot, from) + look[i].entry.slot * p.slot_stride;
                p.place[(int64_t)list * p.keys + look[i].at] = place;
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

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    weft_experts_dispatch_recv(const __grid_constant__ weft_cuda_moe p)
{
    __shared__ int64_t tokens[WEFT_CUDA_MOE_RANKS];
    __shared__ Found found[WARPS];
    __shared__ int rejecting;
    uint64_t *runs = runs_of(p, WEFT_CUDA_MOE_DISPATCH_RECV);
    wait_for_stream();
    uint64_t round = __ldcg(runs) + 1;
    if (!await_all(p, p.arrived, WEFT_CUDA_MOE_DISPATCH_RECV, round))
        return;
    bool skips = find_rejection(p, round, tokens, &rejecting) < p.world;
    for (int expert = blockIdx.x; expert < p.experts_here; expert += gridDim.x) {
        if (!skips)
            receive_expert(p, round, tokens, found, expert, expert == 0);
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
                                            : (count + call.alignment - 1) / call.alignment * call.alignment;
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
        __syncthreads();
        if (threadIdx.x == 0)
            to = (char *)call.out + at * p.row_bytes;
        __syncthreads();
        if (at >= 0)
            push_row(&to, 1, (const char *)p.view_row[p.entry_row[place]], p.row_bytes, (uintptr_t)call.out);
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
    int64_t tokens = p.state->tokens;
    if (p.state->skipped || !await_all(p, p.returned, WEFT_CUDA_MOE_COMBINE_RECV, round))
        return;
    for (int64_t unit = blockIdx.x; unit < tokens * p.pieces; unit += gridDim.x) {
        int64_t token = unit / p.pieces, begin = unit % p.pieces * p.piece_bytes;
        int count = p.terms_of[token];
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += THREADS) {
            s.from[i] = p.slot + (token * p.terms + i) * p.slot_stride + begin;
            s.weight[i] = p.term_weight[token * p.terms + i];
        }
        end_terms(s, count);
        __syncthreads();
        sum_any(p, s, (char *)call.out + token * p.result_bytes + begin,
                min(p.piece_bytes, p.result_bytes - begin), 0);
    }
    count_run(p, WEFT_CUDA_MOE_COMBINE_RECV, runs, round);
}

/* One thread, beside a rank in the loop. */
extern "C" __global__ void weft_experts_link(const __grid_constant__ weft_cuda_moe_link p)
{
    uint64_t round = *p.runs + 1;
    while (*(volatile uint64_t *)&p.state->round[p.phase] < round)
        __nanosleep(50);
    __threadfence();
    uint64_t due = *(volatile uint64_t *)&p.state->began_ns[p.phase] + p.delay_ns;
    while (now_ns() < due)
        __nanosleep(50);
    for (int r = 0; r < p.world; r++)
        if (r != p.rank)
            atomicAdd_system((unsigned long long *)p.signals + (int64_t)r * WEFT_CUDA_LINE_WORDS,
                             (unsigned long long)p.posts);
    *p.runs = round;
}
