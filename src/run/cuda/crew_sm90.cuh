/*
 * What the threads of a Hopper crew share: the shape of its tile, the layout of shared memory, and how its
 * members count finished tasks.
 */
#ifndef WEFT_RUN_CUDA_CREW_SM90_CUH
#define WEFT_RUN_CUDA_CREW_SM90_CUH

#include "core/round.h"
#include "hopper.cuh"
#include "order.cuh"

#include <stddef.h>

#ifndef WEFT_TILE_N /* columns of a crew's tile: 256, 224, 128 or 64; see walker.h */
#define WEFT_TILE_N 256
#endif
#ifndef WEFT_CTAS /* of a crew: a cluster of 2, or 1 */
#define WEFT_CTAS 2
#endif
#ifdef WEFT_CUDA_FP8 /* A and B have elements of one byte, both along k; 128 columns */
#define WEFT_ELEMENT 1
#else
#define WEFT_ELEMENT 2
#endif
#ifndef WEFT_LINK /* 1: for measurements over an emulated link, see emulate.h */
#define WEFT_LINK 0
#endif
#ifndef WEFT_EXCHANGED /* 1: the tile is that of the transposed product, see epilogue_sm90.cuh */
#define WEFT_EXCHANGED 0
#endif

namespace
{

constexpr int CTAS = WEFT_CTAS;
constexpr bool EXCHANGED = WEFT_EXCHANGED, LINK = WEFT_LINK;
constexpr int LINE = 128; /* bytes of A and B along k that a step takes */
constexpr int CTA_M = 128, GROUP_M = 64, TILE_N = WEFT_TILE_N, TILE_K = LINE / WEFT_ELEMENT,
              SUMS = TILE_N / 2;
/* B is kept in boxes of 64 columns, the last one half used when the tile is 224 wide. Each CTA of a crew
 * loads its share, in boxes of SHARE_BOX columns where k is contiguous */
constexpr int B_COLS = weft_round_up(TILE_N, 64 * CTAS), SHARE_COLS = B_COLS / CTAS;
constexpr int SHARE_BOX = SHARE_COLS < 128 ? SHARE_COLS : 128;
constexpr int A_BYTES = CTA_M * LINE, B_BYTES = B_COLS * LINE, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int STAGES = 4 * 49152 / STAGE_BYTES;
constexpr int BOX_BYTES = 8192; /* 64 rows of 128 bytes */
constexpr int THREADS = 384;
constexpr uint32_t TALLY = 256, MEMBERS = 2 * CTAS;
constexpr uint32_t HELD = 6, HOLDERS = 4; /* LINK: see hold_posts */

struct Layout { /* offsets from the 1024-aligned start of shared memory */
    static constexpr int a = 0;
    static constexpr int b = STAGES * A_BYTES;
    static constexpr int box = b + STAGES * B_BYTES; /* [consumer][buffer] */
    static constexpr int full = box + 4 * BOX_BYTES;
    static constexpr int empty = full + 8 * STAGES;
    static constexpr int box_full = empty + 8 * STAGES; /* [consumer][buffer] */
    static constexpr int box_free = box_full + 32;
    static constexpr int fetched = box_free + 32; /* [consumer][buffer]: what sums are added to is in it */
    static constexpr int granted = fetched + 32;  /* [consumer]: the boxes are the next task's */
    static constexpr int copied =
        granted + 16; /* [consumer]: a piece that is copied through the boxes is there */
    static constexpr int ending = copied + 16; /* tasks of the lane that are almost loaded */
    static constexpr int held = ending + 16; /* LINK: [holder][HELD] of 16 bytes: due, task, whether there is
                                                one */
    static constexpr int done = held + (LINK ? HOLDERS * HELD * 16 : 0); /* CTA 0: members that finished task
                                                                           i, modulo TALLY */
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

/* What is before this kernel on the stream has ended. Called by every thread before it touches anything but
 * the plan's tables, which do not change; returns the number of the run. */
__device__ __forceinline__ uint64_t begin_run(const weft_cuda_args &g)
{
    grid_wait();
    return g.control->run;
}

__device__ __forceinline__ const void *map_at(const weft_cuda_args &g, int index)
{
    return (const char *)g.maps + (size_t)index * 128;
}

/*
 * A task as a warp holds it: each lane one word, so that a task is fetched at once, the next one while the
 * present one is moved, and takes two registers.
 */
static_assert(sizeof(weft_cuda_task) == 128, "a word for each lane of a warp");

__device__ __forceinline__ uint32_t task_word(const weft_cuda_args &g, uint32_t task)
{
    return __ldg((const uint32_t *)&g.tasks[task] + threadIdx.x % 32);
}

__device__ __forceinline__ uint32_t field(uint32_t word, size_t offset)
{
    return __shfl_sync(~0u, word, (int)(offset / 4));
}

__device__ __forceinline__ uint64_t field64(uint32_t word, size_t offset)
{
    return field(word, offset) | (uint64_t)field(word, offset + 4) << 32;
}

#define WEFT_FIELD(name) field(word, offsetof(weft_cuda_task, name))
#define WEFT_FIELD64(name) field64(word, offsetof(weft_cuda_task, name))

/* What consumers and storers need of a GEMM, in a few registers; the other members stay 0. */
__device__ __forceinline__ weft_cuda_task gemm_fields(uint32_t word)
{
    weft_cuda_task t = {};
    uint32_t head = WEFT_FIELD(kind), acc = WEFT_FIELD(sources), more = WEFT_FIELD(c);
    uint32_t counts = WEFT_FIELD(wait_count);
    t.kind = head & 0xff;
    t.flags = head >> 8 & 0xff;
    t.destinations = head >> 16;
    t.acc = (int16_t)(acc >> 16);
    t.c = (int16_t)(more & 0xffff);
    t.bias = (int16_t)(more >> 16);
    t.view0 = WEFT_FIELD(view0);
    t.wait0 = WEFT_FIELD(wait0);
    t.post0 = WEFT_FIELD(post0);
    t.wait_count = counts & 0xffff;
    t.post_count = counts >> 16;
    t.rows = (int32_t)WEFT_FIELD(rows);
    t.cols = (int32_t)WEFT_FIELD(cols);
    t.k = (int32_t)WEFT_FIELD(k);
    t.plan_task = WEFT_FIELD(plan_task);
    return t;
}

/* The waits of such a task are made by the storers, beside its products, not before A and B are loaded. */
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
