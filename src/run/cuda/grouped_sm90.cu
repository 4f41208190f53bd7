/*
 * Grouped GEMM for Hopper: the products of many experts, whose numbers of rows are read from memory.
 *
 * The weights are on the tensor cores' 64-row axis and the tokens on the other, so that few rows of an expert
 * cost no more than reading its weights, and many fill the tensor cores: the same kernel takes tiles of 16 to
 * 256 tokens, each as its expert needs it.
 *
 * Card: persistent clusters of two CTAs; a CTA makes 128 columns of D for N = 16, 32, 64, 128, 192 or 256
 * rows, by two consumer warpgroups of 64 columns (N / 2 sums a thread). Four stages of 48 KiB: a step of 64
 * in k for up to 256 rows (16 KiB of weights, 32 of tokens), of 128 in k for up to 64 rows, so that 128 KiB
 * of weights are on their way to each SM. Each CTA loads its own weights and half of the tokens, which are
 * multicast to both. One warp loads, one (of the cluster's first CTA) hands out tiles; a tile is taken when
 * the one before is almost loaded. Figures: docs/performance/moe.md.
 *
 * Where rows arrive while it runs, a quarter of every expert's tiles, those of the rows that come first,
 * stand before all others, and a tile is handed out when the step that brings its last row has come.
 *
 * Weights that are stored as fp8 (WEFT_CUDA_STORED: the kernels of a file of their own) pass memory as such.
 * Consumers convert them, exactly, on the way from shared memory to registers, whence the tensor cores take
 * them: 64 x 64 of a warpgroup while the 64 of k before them are multiplied. A tile has up to 128 rows; a
 * step is 128 in k, for up to 32 rows 256, so that again 128 KiB of weights are on their way.
 */
#include "grouped_tiles.cuh"
#include "plain.cuh"
#include "wgmma.cuh"

namespace
{

/* ---- loading ------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void load_weights(uint32_t dst, const void *map, uint32_t bar, int x, int y, int e)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(e)
                 : "memory");
}

/* One thread keeps the stages full. */
template <bool TRANS_B, Stored B>
__device__ void produce(const weft_cuda_grouped &g, const TensorMap &b_map, const TensorMap &few_map,
                        const TensorMap &many_map, uint32_t smem, uint32_t rank)
{
    Ring ring;
    uint32_t phase = 0;
    for (;;) {
        Tile t = await_tile(smem, phase);
        if (t.expert < 0)
            return;
        if (g.arriving.ready) /* what others have brought is read by the copy engine */
            fence_proxy_all();
        int blocks = blocks_of<B>(t.width), steps = weft_divide_up(g.k, TILE_K * blocks);
        int half = t.width / CTAS,
            box = half < WEFT_CUDA_GROUPED_MANY ? WEFT_CUDA_GROUPED_FEW : WEFT_CUDA_GROUPED_MANY;
        const void *map = box == WEFT_CUDA_GROUPED_FEW ? &few_map : &many_map;
        uint32_t weights_bytes = (uint32_t)(blocks / BOX_BLOCKS<B> * BOX_BYTES),
                 block_bytes = (uint32_t)(t.width * 2 * TILE_K); /* of tokens */
        int col = t.col + (int)rank * CTA_COLS, row = t.row + (int)rank * half,
            told = max(0, steps - TAKE_AHEAD);
        for (int s = 0; s < steps; s++, ring.next()) {
            uint32_t full = smem + Layout::full + 8 * ring.stage, at = smem + ring.stage * STAGE_BYTES;
            if (s == told)
                tile_read(smem, rank);
            bar_wait(smem + Layout::empty + 8 * ring.stage, ring.phase ^ 1);
            bar_expect(full, weights_bytes + blocks * block_bytes);
            for (int b = 0; b < blocks; b++) {
                int k = (s * blocks + b) * TILE_K;
                uint32_t weights = at + b / BOX_BLOCKS<B> * BOX_BYTES;
                uint32_t tokens = at + weights_bytes + b * block_bytes + rank * half * 128;
                if constexpr (!TRANS_B) {
                    load_weights(weights, &b_map, full, col, k, t.expert);
                    load_weights(weights + BOX_BYTES / 2, &b_map, full, col + GROUP_COLS, k, t.expert);
                } else if (b % BOX_BLOCKS<B> == 0) {
                    load_weights(weights, &b_map, full, k, col, t.expert);
                }
                for (int r = 0; r < half; r += box)
                    tile_load_shared(tokens + r * 128, map, full, k, row + r, (1 << CTAS) - 1);
            }
        }
        if (steps == 0)
            tile_read(smem, rank);
    }
}

/* The thread's place in its warpgroup, read anew: what follows from it is then made where it is used, and
 * does not take registers that the sums of the widest tiles need. */
__device__ __forceinline__ int group_thread()
{
    uint32_t thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return (int)(thread % 128);
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void matrices_store_turned(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                                      uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* Chunks of a tile go out by the same registers and the same code, into which the others move: an epilogue
 * runs once in many steps, and short code is worth more than saved moves. */
template <int BY, int SUMS> __device__ __forceinline__ void move_down(float (&d)[SUMS])
{
#pragma unroll
    for (int i = 0; i + BY < SUMS; i++)
        d[i] = d[i + BY];
}

/* Eight columns of D, of which some may be beyond the last. */
__device__ __forceinline__ void store_eight(const weft_cuda_grouped &g, uint16_t *to, uint4 x, int column,
                                            int64_t cols)
{
    if (g.aligned && column + 8 <= cols) {
        *(uint4 *)to = x;
        return;
    }
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (column + e < cols)
            to[e] = (uint16_t)(words[e / 2] >> (e % 2 * 16));
}

/* The sums as they are, rounded: 64 tokens at a time through rows of 128 bytes in shared memory, swizzled. */
template <int DTYPE, int SUMS>
__device__ __forceinline__ void store_bare(const weft_cuda_grouped &g, const Tile &t, float (&d)[SUMS],
                                           int col, uint32_t staging, uint32_t consumer)
{
    constexpr int WIDTH = 2 * SUMS, CHUNK = WIDTH < 64 ? WIDTH : 64;
    int thread = group_thread(), lane = thread % 32, part = thread / 32 * 2 + (lane / 8 & 1);
#pragma unroll 1
    for (int c = 0; c < t.rows; c += CHUNK) {
        group_sync(consumer); /* the chunk before has been read */
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j += 2) {
            int token = 8 * (j + lane / 16) + lane % 8;
            const float *x = d + 4 * j;
            matrices_store_turned(staging + token * 128 + ((part ^ (token & 7)) << 4),
                                  narrow2(x[0], x[1], DTYPE), narrow2(x[2], x[3], DTYPE),
                                  narrow2(x[4], x[5], DTYPE), narrow2(x[6], x[7], DTYPE));
        }
        group_sync(consumer);
#pragma unroll
        for (int i = 0; i < CHUNK * 8 / 128; i++) {
            int token = (thread + 128 * i) / 8, at = thread % 8, column = col + 8 * at;
            uint4 x;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                         : "r"(staging + token * 128 + ((at ^ (token & 7)) << 4))
                         : "memory");
            if (c + token < t.rows)
                store_eight(g, (uint16_t *)g.d + (int64_t)(t.row + c + token) * g.ldd + column, x, column,
                            g.cols);
        }
        move_down<CHUNK / 2>(d);
    }
}

/*
 * A gated activation and nothing else: gates and ups are in lanes side by side (a column of B is a row of the
 * sums, four lanes wide). Of two tokens each lane of such a pair finishes one: it gives the other's half away
 * and gets its own. Then out by rows of 64 bytes, 80 apart in shared memory so that no banks meet.
 */
template <int DTYPE, int SUMS>
__device__ __forceinline__ void store_gated(const weft_cuda_grouped &g, const Tile &t, float (&d)[SUMS],
                                            float alpha, int col, uint32_t staging, uint32_t consumer)
{
    constexpr int WIDTH = 2 * SUMS, CHUNK = WIDTH < 64 ? WIDTH : 64, PITCH = 80;
    int thread = group_thread(), lane = thread % 32, odd = lane >> 2 & 1;
    int64_t cols = g.cols / 2;
    uint32_t spot = staging + (lane % 4 * 2 + odd) * PITCH + (thread / 32 * 8 + lane / 8) * 2;
#pragma unroll 1
    for (int c = 0; c < t.rows; c += CHUNK) {
        group_sync(consumer); /* the chunk before has been read */
        float gate[CHUNK / 4], up[CHUNK / 4];
#pragma unroll
        for (int i = 0; i < CHUNK / 4; i++) {
            float mine = alpha * (odd ? d[2 * i + 1] : d[2 * i]);
            float other = __shfl_xor_sync(~0u, alpha * (odd ? d[2 * i] : d[2 * i + 1]), 4);
            gate[i] = odd ? other : mine;
            up[i] = odd ? mine : other;
        }
        activate_all<CHUNK / 4>(gate, g.act);
#pragma unroll
        for (int i = 0; i < CHUNK / 4; i++)
            asm volatile("st.shared.u16 [%0], %1;" ::"r"(spot + (i >> 1) * (8 * PITCH) + (i & 1) * 8),
                         "h"(narrow(gate[i] * up[i], DTYPE))
                         : "memory");
        group_sync(consumer);
#pragma unroll
        for (int at = thread; at < CHUNK * 4; at += 128) {
            int token = at / 4, column = col / 2 + at % 4 * 8;
            uint4 x;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                         : "r"(staging + token * PITCH + at % 4 * 16)
                         : "memory");
            if (c + token < t.rows)
                store_eight(g, (uint16_t *)g.d + (int64_t)(t.row + c + token) * g.ldd + column, x, column,
                            cols);
        }
        move_down<CHUNK / 2>(d);
    }
}

/* Eight columns of B: their epilogue. Returns how many columns of D they are. */
__device__ __forceinline__ int finish_run(const weft_cuda_grouped &g, const Tile &t, float (&x)[8], int row,
                                          int column)
{
    float scale = g.row_scale ? g.alpha * g.row_scale[row] : g.alpha;
    int64_t at = (int64_t)t.expert * g.cols + column;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        if (column + e >= g.cols)
            break;
        float s = g.col_scale ? scale * g.col_scale[at + e] : scale;
        x[e] = g.bias ? fmaf(s, x[e], element_get(g.bias, at + e, g.d_dtype)) : s * x[e];
    }
    if (!g.gated) {
        activate_all<8>(x, g.act);
        return 8;
    }
    float gate[4] = {x[0], x[2], x[4], x[6]};
    activate_all<4>(gate, g.act);
#pragma unroll
    for (int e = 0; e < 4; e++)
        x[e] = gate[e] * x[2 * e + 1];
    return 4;
}

__device__ __forceinline__ void store_run(const weft_cuda_grouped &g, const float (&x)[8], int count, int row,
                                          int column)
{
    int64_t cols = g.gated ? g.cols / 2 : g.cols, at = (int64_t)row * g.ldd + column;
    if (!g.aligned || column + count > cols) {
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (e < count && column + e < cols)
                element_set(g.d, at + e, x[e], g.d_dtype);
    } else if (g.d_dtype == DTYPE_F32) {
        *(float4 *)((float *)g.d + at) = make_float4(x[0], x[1], x[2], x[3]);
        if (count == 8)
            *(float4 *)((float *)g.d + at + 4) = make_float4(x[4], x[5], x[6], x[7]);
    } else {
        uint2 low = {narrow2(x[0], x[1], g.d_dtype), narrow2(x[2], x[3], g.d_dtype)};
        if (count == 4) {
            *(uint2 *)((uint16_t *)g.d + at) = low;
            return;
        }
        *(uint4 *)((uint16_t *)g.d + at) =
            make_uint4(low.x, low.y, narrow2(x[4], x[5], g.d_dtype), narrow2(x[6], x[7], g.d_dtype));
    }
}

/* The sums with their epilogue: 32 tokens at a time, turned round as float32. */
template <int SUMS>
__device__ __forceinline__ void store_finished(const weft_cuda_grouped &g, const Tile &t, float (&d)[SUMS],
                                               int col, uint32_t staging, uint32_t consumer)
{
    constexpr int WIDTH = 2 * SUMS, CHUNK = WIDTH < 32 ? WIDTH : 32;
    int thread = group_thread(), n = thread / 32 * 16 + thread % 32 / 4, m = thread % 4 * 2;
    auto spot = [&](int row, int column) {
        return staging + 4 * (row * GROUP_COLS + (column ^ (row >> 1 & 3) << 3));
    };
#pragma unroll 1
    for (int c = 0; c < t.rows; c += CHUNK) {
        group_sync(consumer);
#pragma unroll
        for (int i = 0; i < CHUNK / 2; i++)
            asm volatile(
                "st.shared.f32 [%0], %1;" ::"r"(spot((i >> 2) * 8 + m + (i & 1), n + (i >> 1 & 1) * 8)),
                "f"(d[i])
                : "memory");
        group_sync(consumer);
#pragma unroll 1
        for (int i = thread; i < CHUNK * 8; i += 128) {
            int token = i / 8, at = i % 8 * 8, row = t.row + c + token, column = col + at;
            float x[8];
            if (c + token >= t.rows || column >= g.cols)
                continue;
#pragma unroll
            for (int e = 0; e < 8; e += 4)
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(x[e]), "=f"(x[e + 1]), "=f"(x[e + 2]), "=f"(x[e + 3])
                             : "r"(spot(token, at + e))
                             : "memory");
            int count = finish_run(g, t, x, row, column);
            store_run(g, x, count, row, g.gated ? column / 2 : column);
        }
        move_down<CHUNK / 2>(d);
    }
}

/* 64 of k, where the tokens of a block are `b`; partner of what is loaded: produce. */
template <bool BF16, bool TRANS_B, int SUMS>
__device__ __forceinline__ void multiply_block(float (&d)[SUMS], uint32_t weights, uint64_t b, int keep)
{
    constexpr uint32_t A_STEP = TRANS_B ? 32 : 2048;
    uint64_t a = operand(weights, 8192, 1024);
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
        wgmma<BF16, !TRANS_B, 0>(d, a + kk * (A_STEP >> 4), b + kk * (32 >> 4), keep | kk);
}

/* Two weights, side by side in k, as they are multiplied: fp8's numbers are float16's and bfloat16's too. */
template <bool BF16, Stored B> __device__ __forceinline__ uint32_t convert_pair(uint32_t address)
{
    uint16_t codes;
    uint32_t halves;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(codes) : "r"(address) : "memory");
    if constexpr (B == E4M3)
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    else
        asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(codes));
    if constexpr (!BF16)
        return halves;
    __half2 two = *(__half2 *)&halves;
    return narrow2(__low2float(two), __high2float(two), DTYPE_BF16);
}

/* 64 x 64 of the weights in a box, from the `half`th 64 of k on, as wgmma_held wants them. `row`: of the
 * thread's first row and k, which lies in a line of 128 bytes, swizzled by `turn`. */
template <bool BF16, Stored B>
__device__ __forceinline__ void convert_block(uint32_t (&a)[16], uint32_t row, uint32_t turn, int half)
{
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        uint32_t at = row + (((half * 4 + kk) ^ turn) << 4);
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[4 * kk + i] = convert_pair<BF16, B>(at + i % 2 * 1024 + i / 2 * 8);
    }
}

/* The sums of one warpgroup's part of a tile: 64 columns of N rows. */
template <bool BF16, bool TRANS_B, int N>
__device__ __forceinline__ void sum_tile(const weft_cuda_grouped &g, float (&d)[N / 2], uint32_t smem,
                                         uint32_t consumer, Ring &ring)
{
    constexpr int BLOCKS = blocks_of<WHOLE>(N);
    int thread = group_thread(), steps = weft_divide_up(g.k, TILE_K * BLOCKS);
    uint32_t last = 0;
    for (int s = 0; s < steps; s++) {
        uint32_t at = smem + ring.stage * STAGE_BYTES, mine = at + consumer * (BOX_BYTES / 2);
        bar_wait(smem + Layout::full + 8 * ring.stage, ring.phase);
        wgmma_begin();
#pragma unroll
        for (int block = 0; block < BLOCKS; block++)
            multiply_block<BF16, TRANS_B>(
                d, mine + block * BOX_BYTES,
                operand(at + BLOCKS * BOX_BYTES + block * (N * 2 * TILE_K), 8192, 1024), s | block);
        wgmma_commit();
        if (s) { /* the step before has been read */
            wgmma_wait<1>();
            if (thread < CTAS)
                bar_arrive_at(last, thread);
        }
        last = smem + Layout::empty + 8 * ring.stage;
        ring.next();
    }
    wgmma_wait<0>();
    if (steps && thread < CTAS)
        bar_arrive_at(last, thread);
}

/* The same of weights that are stored: two blocks of 64 in k are held, of which one is converted while the
 * other is multiplied. */
template <bool BF16, Stored B, int N>
__device__ __forceinline__ void sum_tile_stored(const weft_cuda_grouped &g, float (&d)[N / 2], uint32_t smem,
                                                uint32_t consumer, Ring &ring)
{
    constexpr int BLOCKS = blocks_of<B>(N);
    int thread = group_thread(), lane = thread % 32, steps = weft_divide_up(g.k, TILE_K * BLOCKS);
    uint32_t last = 0, held[2][16], row = (thread / 32 * 16 + lane / 4) * 128 + lane % 4 * 2;
    for (int s = 0; s < steps; s++) {
        uint32_t at = smem + ring.stage * STAGE_BYTES, mine = at + consumer * (BOX_BYTES / 2) + row;
        bar_wait(smem + Layout::full + 8 * ring.stage, ring.phase);
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            uint64_t b = operand(at + BLOCKS / 2 * BOX_BYTES + block * (N * 2 * TILE_K), 8192, 1024);
            convert_block<BF16, B>(held[block % 2], mine + block / 2 * BOX_BYTES, (uint32_t)lane / 4,
                                   block % 2);
            wgmma_begin();
#pragma unroll
            for (int kk = 0; kk < 4; kk++)
                wgmma_held<BF16>(d, held[block % 2] + 4 * kk, b + kk * (32 >> 4), s | block | kk);
            wgmma_commit();
            wgmma_wait<1>();                    /* what the block before was held in is free */
            if (block == 0 && s && lane < CTAS) /* every warp, of what it has read itself */
                bar_arrive_at(last, lane);
        }
        last = smem + Layout::empty + 8 * ring.stage;
        ring.next();
    }
    wgmma_wait<0>();
    if (steps && lane < CTAS)
        bar_arrive_at(last, lane);
}

/* The sums times the factors of their columns: a thread has two. */
template <int SUMS>
__device__ __forceinline__ void scale_columns(const weft_cuda_grouped &g, const Tile &t, float (&d)[SUMS],
                                              int col)
{
    int thread = group_thread(), column = col + thread / 32 * 16 + thread % 32 / 4;
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        factor[i] =
            column + 8 * i < g.cols ? g.alpha * g.col_scale[(int64_t)t.expert * g.cols + column + 8 * i] : 0;
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        d[i] *= factor[i / 2 % 2];
}

template <bool BF16, bool TRANS_B, Stored B, int N>
__device__ __forceinline__ void make_tile(const weft_cuda_grouped &g, const Tile &t, uint32_t smem,
                                          uint32_t rank, uint32_t consumer, Ring &ring)
{
    constexpr int NARROW = BF16 ? DTYPE_BF16 : DTYPE_F16;
    int col = t.col + (int)rank * CTA_COLS + (int)consumer * GROUP_COLS;
    asm volatile("" : "+r"(smem)); /* as group_thread */
    uint32_t staging = smem + Layout::staging + consumer * STAGING_BYTES;
    float d[N / 2], alpha = g.alpha;
    if (g.k == 0) {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            d[i] = 0;
    }
    if constexpr (B == WHOLE)
        sum_tile<BF16, TRANS_B, N>(g, d, smem, consumer, ring);
    else
        sum_tile_stored<BF16, B, N>(g, d, smem, consumer, ring);
    if constexpr (B != WHOLE) {
        if (g.bare && g.col_scale) {
            scale_columns(g, t, d, col);
            alpha = 1;
        }
    }
    if (g.bare && g.gated)
        store_gated<NARROW>(g, t, d, alpha, col, staging, consumer);
    else if (g.bare)
        store_bare<NARROW>(g, t, d, col, staging, consumer);
    else
        store_finished(g, t, d, col, staging, consumer);
}

template <bool BF16, bool TRANS_B, Stored B>
__device__ void consume(const weft_cuda_grouped &g, uint32_t smem, uint32_t rank, uint32_t consumer)
{
    Ring ring;
    uint32_t phase = 0;
    for (;;) {
        Tile t = await_tile_together(smem, rank, phase);
        if (t.expert < 0)
            return;
        switch (t.width) {
        case 16:
            make_tile<BF16, TRANS_B, B, 16>(g, t, smem, rank, consumer, ring);
            break;
        case 32:
            make_tile<BF16, TRANS_B, B, 32>(g, t, smem, rank, consumer, ring);
            break;
        case 64:
            make_tile<BF16, TRANS_B, B, 64>(g, t, smem, rank, consumer, ring);
            break;
        case 128:
            make_tile<BF16, TRANS_B, B, 128>(g, t, smem, rank, consumer, ring);
            break;
        default:
            if constexpr (B == WHOLE) {
                if (t.width == 192)
                    make_tile<BF16, TRANS_B, B, 192>(g, t, smem, rank, consumer, ring);
                else
                    make_tile<BF16, TRANS_B, B, 256>(g, t, smem, rank, consumer, ring);
            }
            break;
        }
    }
}

template <bool BF16, bool TRANS_B, Stored B>
__device__ __forceinline__ void multiply(const weft_cuda_grouped &g, const TensorMap &b_map,
                                         const TensorMap &few_map, const TensorMap &many_map)
{
    extern __shared__ char raw[];
    uint32_t smem = weft_align_up(smem_address(raw), 1024u), rank = cluster_rank();
    int group = threadIdx.x / 128, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            bar_init(smem + Layout::full + 8 * s, 1);
            bar_init(smem + Layout::empty + 8 * s, (B == WHOLE ? 2 : 8) * CTAS); /* groups, or their warps */
        }
        bar_init(smem + Layout::taken, 1);
        bar_init(smem + Layout::read, READERS * CTAS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        map_prefetch(&b_map);
        map_prefetch(&few_map);
        map_prefetch(&many_map);
    }
    cluster_sync();
    if (!g.arriving.ready)
        grid_wait();
    grid_began();
    if (group == 0) {
        registers_shrink<REGISTERS_FEW>();
        if (threadIdx.x == 0)
            produce<TRANS_B, B>(g, b_map, few_map, many_map, smem, rank);
        else if (warp == 1 && rank == 0)
            hand_out<B>(g, smem);
    } else {
        registers_grow<REGISTERS_MANY>();
        consume<BF16, TRANS_B, B>(g, smem, rank, group - 1);
    }
    __syncwarp();
    if (g.arriving.ready)
        grid_wait(); /* the next kernel waits for this one alone */
    cluster_sync();  /* what one CTA tells the other must find it there */
}

} // namespace

#define WEFT_GROUPED(NAME, BF16, TRANS_B, B)                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CTAS, 1, 1)                    \
        weft_grouped_##NAME(                                                                                 \
            const __grid_constant__ weft_cuda_grouped g, const __grid_constant__ TensorMap b_map,            \
            const __grid_constant__ TensorMap few_map, const __grid_constant__ TensorMap many_map)           \
    {                                                                                                        \
        multiply<BF16, TRANS_B, B>(g, b_map, few_map, many_map);                                             \
    }

#ifdef WEFT_CUDA_STORED
WEFT_GROUPED(bf16_e4m3, true, true, E4M3)
WEFT_GROUPED(bf16_e5m2, true, true, E5M2)
WEFT_GROUPED(f16_e4m3, false, true, E4M3)
WEFT_GROUPED(f16_e5m2, false, true, E5M2)
#else
WEFT_GROUPED(bf16_n, true, false, WHOLE)
WEFT_GROUPED(bf16_t, true, true, WHOLE)
WEFT_GROUPED(f16_n, false, false, WHOLE)
WEFT_GROUPED(f16_t, false, true, WHOLE)
#endif
