/*
 * What the threads of a Hopper crew share: the shape of its tile, the layout of shared memory, and how its
 * members count finished tasks.
 */
#ifndef WEFT_RUN_CUDA_CREW_SM90_CUH
#define WEFT_RUN_CUDA_CREW_SM90_CUH

#include "hopper.cuh"
#include "order.cuh"

#ifndef WEFT_TILE_N /* columns of a crew's tile: 256, or 224 where that fills the last round better */
#define WEFT_TILE_N 256
#endif

namespace
{

constexpr int CTAS = 2;
constexpr int CTA_M = 128, GROUP_M = 64, TILE_N = WEFT_TILE_N, TILE_K = 64, SUMS = TILE_N / 2;
constexpr int STAGES = 4;
/* B is kept in boxes of 64 columns, the last one half used when the tile is 224 wide */
constexpr int A_BYTES = CTA_M * TILE_K * 2, B_BYTES = 256 * TILE_K * 2, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int BOX_BYTES = 8192; /* 64 rows of 128 bytes */
constexpr int THREADS = 384;
constexpr uint32_t TALLY = 256, MEMBERS = 4, HELD = 8;

struct Layout { /* offsets from the 1024-aligned start of shared memory */
    static constexpr int a = 0;
    static constexpr int b = STAGES * A_BYTES;
    static constexpr int box = b + STAGES * B_BYTES; /* [consumer][buffer] */
    static constexpr int full = box + 4 * BOX_BYTES;
    static constexpr int empty = full + 8 * STAGES;
    static constexpr int box_full = empty + 8 * STAGES; /* [consumer][buffer] */
    static constexpr int box_free = box_full + 32;
    static constexpr int granted = box_free + 32; /* [consumer]: the boxes are the next task's */
    static constexpr int copied =
        granted + 16; /* [consumer]: a piece that is copied through the boxes is there */
    static constexpr int ending = copied + 16; /* tasks of the lane whose last waits are over */
    static constexpr int late = ending + 4;    /* [consumer]: the same, for those that wait late */
    static constexpr int held = late + 12; /* [consumer][HELD] of 16 bytes: due, task, whether there is one */
    static constexpr int done = held + 2 * HELD * 16; /* CTA 0: members that finished task i, modulo TALLY */
    static constexpr int bytes = done + 4 * TALLY;
    static constexpr int words = bytes - ending; /* everything from `ending` on starts as 0 */
};
static_assert(Layout::held % 16 == 0, "a held post is read and written as a whole");
static_assert(Layout::bytes + 1024 <= 232448, "shared memory of a CTA");

struct Ring { /* a position in the ring of stages */
    uint32_t stage = 0, phase = 0;
    __device__ void next()
    {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

__device__ __forceinline__ const void *map_at(const weft_cuda_args &g, int index)
{
    return (const char *)g.maps + (size_t)index * 128;
}

/* The waits of such a task are made by the consumers before they store, not before A and B are loaded. */
__device__ __forceinline__ bool waits_late(const weft_cuda_task &t)
{
    return t.k == 0 || (t.flags & WEFT_CUDA_LATE && t.wait_count);
}

/* A member has finished task i of its lane. True for the last one, which then sees what the others stored:
 * the count is acq_rel, its partners are the same call of the other members. */
__device__ __forceinline__ bool last_of_crew(uint32_t smem, uint32_t i, uint32_t members)
{
    uint32_t before;
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %1, 0;\n"
                 "atom.add.acq_rel.cluster.shared::cluster.u32 %0, [at], 1;\n}\n"
                 : "=r"(before)
                 : "r"(smem + Layout::done + 4 * (i % TALLY))
                 : "memory");
    return before % members == members - 1;
}

/* Waits until all members have finished task i of the lane. */
__device__ __forceinline__ void crew_done(uint32_t smem, uint32_t i, uint32_t members)
{
    uint32_t count;
    do {
        asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %1, 0;\n"
                     "ld.acquire.cluster.shared::cluster.u32 %0, [at];\n}\n"
                     : "=r"(count)
                     : "r"(smem + Layout::done + 4 * (i % TALLY))
                     : "memory");
    } while (count < members * (i / TALLY + 1));
}

/* Keeps a member from running so far ahead of its crew that the tally of task i would mean two tasks. */
__device__ __forceinline__ void stay_near(uint32_t smem, uint32_t i, uint32_t members)
{
    if (i >= TALLY / 2)
        crew_done(smem, i - TALLY / 2, members);
}

} // namespace

#endif
