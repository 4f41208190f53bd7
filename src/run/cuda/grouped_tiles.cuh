/* The grouped GEMM's tiles (grouped_sm90.cu): what a CTA has in shared memory, how tiles are numbered, and
 * how a cluster is handed the next one, when its rows are there. */
#ifndef WEFT_RUN_CUDA_GROUPED_TILES_CUH
#define WEFT_RUN_CUDA_GROUPED_TILES_CUH

#include "core/round.h"
#include "grouped_device.h"
#include "hopper.cuh"
#include "order.cuh"

namespace
{

constexpr int THREADS = 384, CTAS = 2, STAGES = 4, STAGE_BYTES = 49152, CTA_COLS = 128, GROUP_COLS = 64;
constexpr int TILE_K = 64, BOX_BYTES = 16384; /* weights of a CTA in a box */
constexpr int STAGING_BYTES = 8192;           /* of a consumer's sums on their way out */
constexpr int REGISTERS_FEW = 56, REGISTERS_MANY = 224, TAKE_AHEAD = 6;
constexpr int READERS =
    9; /* of a tile, in a CTA: the thread that loads, and a lane of every consumer's warp */
static_assert(128 * REGISTERS_FEW + 256 * REGISTERS_MANY <= THREADS * 168, "registers of a CTA");

/* How the weights are: of the type that is multiplied, or this kind of fp8, n x k. */
enum Stored { WHOLE, E4M3, E5M2 };

template <Stored B>
constexpr int BOX_BLOCKS = B == WHOLE ? 1 : 2; /* blocks of 64 in k, of a box of weights */
template <Stored B>
constexpr int MOST_ROWS = B == WHOLE ? WEFT_CUDA_GROUPED_ROWS : WEFT_CUDA_GROUPED_ROWS_STORED;

/* Blocks of 64 in k that a step of a tile has. */
template <Stored B> __host__ __device__ constexpr int blocks_of(int width)
{
    return B == WHOLE ? (width <= 64 ? 2 : 1) : (width <= 32 ? 4 : 2);
}

struct Layout { /* offsets from the 1024-aligned start of shared memory */
    static constexpr int staging = STAGES * STAGE_BYTES;
    static constexpr int full = staging + 2 * STAGING_BYTES;
    static constexpr int empty = full + 8 * STAGES;
    static constexpr int taken = empty + 8 * STAGES; /* the tile below is the next one */
    static constexpr int read = taken + 8;           /* CTA 0: and everybody has read it */
    static constexpr int tile = read + 8;
    static constexpr int table = tile + 16; /* CTA 0: [expert in the order of tiles]: first tile, expert */
    static constexpr int counts = table + 8 * WEFT_CUDA_GROUPED_EXPERTS;
    static constexpr int bytes = counts + 4 * WEFT_CUDA_GROUPED_EXPERTS;
};
static_assert(Layout::tile % 16 == 0, "a tile is read and written as a whole");
static_assert(Layout::bytes + 1024 <= WEFT_CUDA_GROUPED_SHARED, "shared memory of a CTA");

struct alignas(64) TensorMap {
    char bytes[128];
};

struct Ring {
    uint32_t stage = 0, phase = 0;
    __device__ void next()
    {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* Columns of D (of B) from `col` on, `rows` rows of A and D from `row` on, by a tile of `width` rows. */
struct Tile {
    int expert, col, row, rows, width;
};

/* ---- handing out tiles --------------------------------------------------------------------------------- */

template <Stored B> __device__ __forceinline__ int row_tiles_of(int rows)
{
    return weft_divide_up(rows, MOST_ROWS<B>);
}

/* The tile's width for so many rows of an expert: divided evenly over tiles of the most, rounded up. */
template <Stored B> __device__ __forceinline__ int width_of(int rows)
{
    int tiles = row_tiles_of<B>(rows);
    int most = tiles ? weft_divide_up(rows, tiles) : 0;
    return most > 192 ? 256 : most > 128 ? 192 : most > 64 ? 128 : most > 32 ? 64 : most > 16 ? 32 : 16;
}

__device__ __forceinline__ int first_row(const weft_cuda_grouped &g, int e)
{
    return (int)(g.start ? g.start[e] : g.offset[e]);
}

/* Rows of an expert, without those that would lie outside A and D. */
__device__ __forceinline__ int rows_of(const weft_cuda_grouped &g, int e)
{
    int64_t first = g.start ? g.start[e] : g.offset[e], rows = g.offset[e + 1] - g.offset[e];
    if (first < 0 || first >= g.rows || rows < 0)
        return 0;
    return (int)min(rows, g.rows - first);
}

__device__ __forceinline__ void put(uint32_t address, int value)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

/* Which of an expert's tiles an entry of the table is for: beside its number. */
enum Part { WHOLE_EXPERT = 0, FRONT = 1 << 16, BACK = 2 << 16, PARTS = 3 << 16 };

/* Of so many tiles by rows, those of the front: their rows come first. */
__device__ __forceinline__ int front_of(int row_tiles)
{
    return row_tiles < 2 ? 0 : max(1, row_tiles / 4);
}

__device__ __forceinline__ int row_tiles_in(int row_tiles, int part)
{
    int front = front_of(row_tiles);
    return part == FRONT ? front : part == BACK ? row_tiles - front : row_tiles;
}

/* One warp: the experts that have rows, widest tiles first, and where their tiles begin. Returns how many
 * tiles there are, with those of `tiles` before; `placed` counts entries. */
template <Stored B>
__device__ int lay_out_part(const weft_cuda_grouped &g, uint32_t smem, int column_tiles, int part, int tiles,
                            int &placed)
{
    int lane = threadIdx.x % 32;
    for (int w = 0; w < 6; w++) {
        int width = w < 2 ? 256 - 64 * w : 256 >> (w - 1); /* 256, 192, 128, 64, 32, 16 */
        for (int base = 0; base < g.experts; base += 32) {
            int e = base + lane, rows = e < g.experts ? (int)shared_word(smem + Layout::counts + 4 * e) : 0;
            int count = rows > 0 && width_of<B>(rows) == width
                            ? row_tiles_in(row_tiles_of<B>(rows), part) * column_tiles
                            : 0;
            int before = count;
            bool mine = count > 0;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                int other = __shfl_up_sync(~0u, before, step);
                before += lane >= step ? other : 0;
            }
            uint32_t who = __ballot_sync(~0u, mine);
            if (mine) {
                uint32_t at = smem + Layout::table + 8 * (placed + __popc(who & ((1u << lane) - 1)));
                put(at, tiles + before - count);
                put(at + 4, e | part);
            }
            tiles += __shfl_sync(~0u, before, 31);
            placed += __popc(who);
        }
    }
    return tiles;
}

/* One warp: the table of tiles. Returns how many there are, and in `entries` how many of those experts. */
template <Stored B>
__device__ int lay_out_tiles(const weft_cuda_grouped &g, uint32_t smem, int column_tiles, int &entries)
{
    int tiles = 0;
    for (int e = threadIdx.x % 32; e < g.experts; e += 32)
        put(smem + Layout::counts + 4 * e, rows_of(g, e));
    __syncwarp();
    entries = 0;
    if (g.arriving.ready) {
        tiles = lay_out_part<B>(g, smem, column_tiles, FRONT, 0, entries);
        tiles = lay_out_part<B>(g, smem, column_tiles, BACK, tiles, entries);
    } else {
        tiles = lay_out_part<B>(g, smem, column_tiles, WHOLE_EXPERT, 0, entries);
    }
    __syncwarp();
    return tiles;
}

/* Tile number t. Those of the same weights follow each other, so that these are read from memory once. */
template <Stored B> __device__ Tile tile_at(const weft_cuda_grouped &g, uint32_t smem, int entries, int t)
{
    int low = 0, high = entries; /* the last entry that begins at or before t */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if ((int)shared_word(smem + Layout::table + 8 * middle) <= t)
            low = middle;
        else
            high = middle;
    }
    int entry = (int)shared_word(smem + Layout::table + 8 * low + 4), part = entry & PARTS, e = entry ^ part;
    int in = t - (int)shared_word(smem + Layout::table + 8 * low);
    int rows = (int)shared_word(smem + Layout::counts + 4 * e);
    int row_tiles = row_tiles_of<B>(rows), here = row_tiles_in(row_tiles, part);
    int each = weft_divide_up(rows, row_tiles),
        at = (in % here + (part == BACK ? row_tiles - here : 0)) * each;
    return {e, in / here * WEFT_CUDA_GROUPED_COLS, first_row(g, e) + at, min(each, rows - at),
            width_of<B>(rows)};
}

/* Into both CTAs; partner: await_tile. */
__device__ __forceinline__ void tell_tile(uint32_t smem, const Tile &t)
{
    uint32_t sizes = (uint32_t)(t.rows | t.width << 16);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(smem + Layout::tile), "r"(t.expert),
                 "r"(t.col), "r"(t.row), "r"(sizes)
                 : "memory");
    bar_arrive(smem + Layout::taken);
    asm volatile(
        "{\n.reg .b32 at;\n"
        "mapa.shared::cluster.u32 at, %0, 1;\n"
        "st.shared::cluster.v4.u32 [at], {%2, %3, %4, %5};\n"
        "mapa.shared::cluster.u32 at, %1, 1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [at];\n}\n" ::"r"(smem + Layout::tile),
        "r"(smem + Layout::taken), "r"(t.expert), "r"(t.col), "r"(t.row), "r"(sizes)
        : "memory");
}

/* The tile has been read; partner: hand_out's wait. */
__device__ __forceinline__ void tile_read(uint32_t smem, uint32_t rank)
{
    if (rank == 0)
        bar_arrive(smem + Layout::read);
    else
        bar_arrive_at(smem + Layout::read, 0);
}

__device__ __forceinline__ Tile await_tile(uint32_t smem, uint32_t &phase)
{
    Tile t;
    int sizes;
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\nbra again;\ndone:\n}\n" ::"r"(smem + Layout::taken),
                 "r"(phase)
                 : "memory");
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(t.expert), "=r"(t.col), "=r"(t.row), "=r"(sizes)
                 : "r"(smem + Layout::tile)
                 : "memory");
    phase ^= 1;
    t.rows = sizes & 0xffff;
    t.width = sizes >> 16;
    return t;
}

/* The same for a warp, of which one lane reads: it says itself, and at once, that it has. */
__device__ __forceinline__ Tile await_tile_together(uint32_t smem, uint32_t rank, uint32_t &phase)
{
    Tile t = {};
    if (threadIdx.x % 32 == 0) {
        t = await_tile(smem, phase);
        if (t.expert >= 0)
            tile_read(smem, rank);
    }
    phase = __shfl_sync(~0u, phase, 0);
    t.expert = __shfl_sync(~0u, t.expert, 0);
    t.col = __shfl_sync(~0u, t.col, 0);
    t.row = __shfl_sync(~0u, t.row, 0);
    t.rows = __shfl_sync(~0u, t.rows, 0);
    t.width = __shfl_sync(~0u, t.width, 0);
    return t;
}

/* One thread: until a step has come, or nothing comes any more: whoever waited for that has told it before
 * this expires. Partner: the add_release_here of those who bring rows. */
__device__ void await_rows(const weft_cuda_arriving_rows &a, int step)
{
    const uint64_t *word = a.ready + (int64_t)step * WEFT_CUDA_LINE_WORDS;
    uint64_t want = __ldcg(a.runs) * (uint64_t)a.posts, began = now_ns();
    while ((int64_t)(load_acquire(word) - want) < 0) {
        if (load_relaxed(a.abort))
            return;
        if (now_ns() - began > a.deadline_ns)
            atomicExch_system(a.abort, 1u);
        __nanosleep(100);
    }
}

template <Stored B> __device__ void hand_out(const weft_cuda_grouped &g, uint32_t smem)
{
    int column_tiles = (int)(weft_divide_up(g.cols, WEFT_CUDA_GROUPED_COLS)), entries;
    if (g.arriving.ready) {
        if (threadIdx.x % 32 == 0)
            await_rows(g.arriving, g.arriving.steps);
        __syncwarp();
    }
    int tiles = lay_out_tiles<B>(g, smem, column_tiles, entries), clusters = (int)gridDim.x / CTAS;
    int t = (int)blockIdx.x / CTAS, come = -1; /* steps that have */
    if (threadIdx.x % 32)
        return;
    for (uint32_t phase = 0;; phase ^= 1) {
        Tile next = t < tiles ? tile_at<B>(g, smem, entries, t) : Tile{-1, 0, 0, 0, 0};
        if (g.arriving.ready && t < tiles) {
            int step = g.arriving.step[next.row + next.rows - 1];
            if (step > come)
                await_rows(g.arriving, step);
            come = max(come, step);
        }
        tell_tile(smem, next);
        if (t >= tiles)
            break;
        bar_wait(smem + Layout::read, phase);
        t = clusters + (int)atomicAdd(&g.counter[0], 1);
    }
    if (atomicAdd(&g.counter[1], 1) ==
        (unsigned)clusters - 1) { /* nobody asks again before the next launch */
        g.counter[0] = 0;
        g.counter[1] = 0;
    }
}

} // namespace

#endif
