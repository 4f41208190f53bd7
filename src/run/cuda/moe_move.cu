/*
 * Mixture of experts on Hopper, where experts start on rows that have arrived: rows to other ranks, one rank
 * after another, and those that came into the rows of the experts. The protocol stands in moe_device.h.
 *
 * Card: a CTA of two warps takes an SM, by its shared memory: what is left of the GPU is for the product that
 * waits for these rows. One warp sends and one packs, each through 7 places of 14 KiB that the copy engine
 * fills and empties: 4 pieces come in, 3 go out. A row that several experts want is read once.
 *
 * It comes in while dispatch_recv places rows, to send without waiting for that, and lets the product in at
 * once: every CTA of it is resident then. They must be, because they wait for one another's rows. All other
 * waits are for peers and for kernels that were launched before, so that it ends too where kernels of a
 * stream run one after another.
 */
#include "early.cuh"
#include "hopper.cuh"
#include "moe_round.cuh"

namespace
{

enum { SHARED_PLACES = WEFT_CUDA_MOE_PLACES, COMING = 4, KEYS = WEFT_CUDA_MOE_MOVED_KEYS };

/* Where a piece goes from its place in shared memory. */
struct Way {
    char *to[KEYS];
    uint32_t bytes, count;
};

/* The places of a warp, of which one lane does everything. `loaded` and `stored` pieces have been begun. */
struct Places {
    uint32_t bytes, full; /* addresses */
    Way *way;
    uint32_t loaded = 0, stored = 0;

    __device__ void store_next()
    {
        uint32_t at = stored % SHARED_PLACES;
        bar_wait(full + 8 * at, stored / SHARED_PLACES & 1);
        for (uint32_t i = 0; i < way[at].count; i++)
            bulk_store(way[at].to[i], bytes + at * WEFT_CUDA_MOE_PIECE, way[at].bytes);
        bulk_commit();
        stored++;
    }

    /* A piece to `count` places, whose addresses are in the way that next_way gave. */
    __device__ Way &next_way() { return way[loaded % SHARED_PLACES]; }

    __device__ void load(const char *from, uint32_t size, uint32_t count)
    {
        uint32_t at = loaded % SHARED_PLACES;
        way[at].bytes = size;
        way[at].count = count;
        bulk_wait_read<SHARED_PLACES - COMING - 1>(); /* what was here before has been read */
        bar_expect(full + 8 * at, size);
        bulk_load(bytes + at * WEFT_CUDA_MOE_PIECE, from, size, full + 8 * at);
        if (++loaded - stored > COMING)
            store_next();
    }

    /* Everything is where it goes. */
    __device__ void finish()
    {
        while (stored != loaded)
            store_next();
        bulk_wait_written();
    }
};

/* Tokens of this CTA among 32 of its own, from the `first` of all on: one a lane. */
__device__ __forceinline__ int64_t own_token(const weft_cuda_moe &p, int64_t first, int nth)
{
    return first + (int64_t)nth * p.movers + blockIdx.x;
}

__device__ void send_rows(const weft_cuda_moe &p, const weft_cuda_moe_args &call, Places &places,
                          uint64_t round)
{
    int lane = threadIdx.x % 32;
    int64_t tokens = __ldcg(&p.state->tokens);
    bool rejects = __ldcg(&p.rejected[(round & 1) * p.world + p.rank]) == round;
    for (int i = 0; i < p.world; i++) {
        int to = (p.rank + i) % p.world;
        char *rows = at_rank(p, p.row, to) + p.rank * p.capacity * p.row_stride;
        for (int64_t first = 0; first < tokens && !rejects; first += 32 * p.movers) {
            int64_t token = own_token(p, first, lane);
            uint32_t all =
                __ballot_sync(~0u, token < tokens && __ldcg(p.goes + min(token, tokens - 1) * p.world + to));
            for (; all && lane == 0; all &= all - 1) {
                token = own_token(p, first, __ffs((int)all) - 1);
                const char *from = (const char *)call.x + token * p.row_bytes;
                for (int64_t at = 0; at < p.row_bytes; at += WEFT_CUDA_MOE_PIECE) {
                    places.next_way().to[0] = rows + token * p.row_stride + at;
                    places.load(from + at, (uint32_t)min((int64_t)WEFT_CUDA_MOE_PIECE, p.row_bytes - at), 1);
                }
            }
            __syncwarp();
        }
        if (lane == 0) {
            places.finish();
            add_release(at_rank(p, p.landed + (int64_t)p.rank * WEFT_CUDA_LINE_WORDS, to));
        }
    }
}

/* The rows of one rank. */
__device__ void pack_rows(const weft_cuda_moe &p, const weft_cuda_moe_args &call, Places &places,
                          uint64_t round, int from)
{
    int lane = threadIdx.x % 32;
    int64_t tokens = p.tokens[(round & 1) * p.world + from];
    for (int64_t first = 0; first < tokens; first += 32 * p.movers) {
        int64_t token = own_token(p, first, lane);
        int key[KEYS], place[KEYS], count = 0;
#pragma unroll
        for (int j = 0; j < KEYS; j += 4) {
            bool is = token < tokens && j < p.keys;
            int4 four = {-1, -1, -1, -1}, at = four;
            if (is) {
                four = *(const int4 *)(p.key + list_at(p, round, from, token) + j);
                at = *(const int4 *)(p.place + (from * p.capacity + token) * p.keys + j);
            }
            key[j] = four.x, key[j + 1] = four.y, key[j + 2] = four.z, key[j + 3] = four.w;
            place[j] = at.x, place[j + 1] = at.y, place[j + 2] = at.z, place[j + 3] = at.w;
        }
#pragma unroll
        for (int j = 0; j < KEYS; j++) /* until -1: after it there is what older rounds left */
            count += count == j && key[j] >= 0;
        for (uint32_t all = __ballot_sync(~0u, count > 0); all; all &= all - 1) {
            int who = __ffs((int)all) - 1, places_of = __shfl_sync(~0u, count, who), mine[KEYS];
#pragma unroll
            for (int j = 0; j < KEYS; j++)
                mine[j] = __shfl_sync(~0u, place[j], who);
            if (lane != 0)
                continue;
            const char *row = p.row + (from * p.capacity + own_token(p, first, who)) * p.row_stride;
            for (int64_t at = 0; at < p.row_bytes; at += WEFT_CUDA_MOE_PIECE) {
                Way &way = places.next_way();
#pragma unroll
                for (int j = 0; j < KEYS; j++)
                    way.to[j] = (char *)call.out + mine[j] * p.row_bytes + at;
                places.load(row + at, (uint32_t)min((int64_t)WEFT_CUDA_MOE_PIECE, p.row_bytes - at),
                            (uint32_t)places_of);
            }
        }
    }
    __syncwarp();
    if (lane == 0)
        places.finish();
}

__device__ void receive_rows(const weft_cuda_moe &p, const weft_cuda_moe_args &call, Places &places,
                             uint64_t round)
{
    bool lane0 = threadIdx.x % 32 == 0, skips = __ldcg(&p.state->skipped);
    if (lane0)
        add_release_here(p.ready + (int64_t)p.world * WEFT_CUDA_LINE_WORDS);
    for (int i = 0; i < p.world; i++) {
        int from = (p.rank - i + p.world) % p.world;
        if (!skips) {
            bool came = lane0 && await(p, p.landed, from, WEFT_CUDA_MOE_MOVE, round, p.movers);
            if (!__shfl_sync(~0u, came, 0))
                return; /* the abort word is set: the product looks at it too */
            fence_proxy_all();
            pack_rows(p, call, places, round, from);
        }
        if (lane0)
            add_release_here(p.ready + (int64_t)i * WEFT_CUDA_LINE_WORDS); /* partner: await_rows */
    }
    if (lane0)
        atomicMax((unsigned long long *)&p.state->ended_ns[WEFT_CUDA_MOE_DISPATCH_RECV],
                  (unsigned long long)now_ns());
}

} // namespace

extern "C" __global__ void __launch_bounds__(WEFT_CUDA_MOE_MOVE_THREADS) __cluster_dims__(2, 1, 1)
    weft_experts_move(const __grid_constant__ weft_cuda_moe p,
                      const __grid_constant__ weft_cuda_moe_args call)
{
    extern __shared__ __align__(128) char shared[];
    int warp = threadIdx.x / 32;
    char *pieces = shared + warp * SHARED_PLACES * WEFT_CUDA_MOE_PIECE,
         *rest = shared + 2 * SHARED_PLACES * WEFT_CUDA_MOE_PIECE + warp * SHARED_PLACES * 128;
    Places places;
    places.bytes = smem_address(pieces);
    places.full = smem_address(rest);
    places.way = (Way *)(rest + 64);
    let_next_in();
    uint64_t round = __ldcg(&p.state->sent);
    if (warp == 0)
        note_begin(p, WEFT_CUDA_MOE_MOVE, round);
    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < SHARED_PLACES; i++)
            bar_init(places.full + 8 * i, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        fence_proxy_all();
    }
    __syncwarp();
    if (warp == 0) {
        send_rows(p, call, places, round);
    } else {
        wait_for_last(); /* dispatch_recv has placed them */
        receive_rows(p, call, places, round);
    }
}
