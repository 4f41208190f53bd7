/*
 * The plan walker for Hopper: one persistent kernel runs a rank's lanes, each by a crew of one CTA or a
 * cluster of two (walker.h has the shapes it is compiled in).
 *
 * Card: a CTA makes 128 x TILE_N x 64 a step, by two consumer warpgroups of 64 x TILE_N (TILE_N / 2 sums a
 * thread), with four stages of 48 KiB (six of 32 where tiles have 128 columns, eight of 24 for few rows).
 * Each CTA of a crew loads its own A and its share of B, which is multicast to both. From 512 rows on it
 * reaches 0.85 to 1.0 of cuBLASLt, with fewer 0.5 to 0.8: docs/performance/gpu.md. One warp feeds the stages
 * and waits for the tile's chunks, where in k they are needed; one warp per consumer waits for what the sums
 * are added to or written over, stores finished boxes of 8 KiB through the copy engine and posts when they
 * are written, so neither waits nor stores hold up the tensor cores; between tiles the same warps run the
 * plan's copy lanes. A spare warp of the first CTA does ENTER and EXIT.
 *
 * Products of fp8 have the same bytes in a stage and twice the k, tiles of 128 columns, and both operands
 * along k; see sum_fp8.
 *
 * A crew has a member for each consumer, each storing its own 64 rows; the last one to finish a task posts.
 */
#include "copy_sm90.cuh"
#include "crew_sm90.cuh"
#include "epilogue_sm90.cuh"
#include "plain.cuh"
#include "wgmma.cuh"

#include <limits.h>

namespace
{

/* A task is announced as ending when this many steps are left to load: time to finish a piece of a copy. */
constexpr int ENDING_STEPS = 6;

/* Of a thread that feeds or stores, and of one that computes. They come out of what the launch gave to 384
 * threads of 168: asking for more would wait for ever. */
constexpr int REGISTERS_FEW = 56, REGISTERS_MANY = 224;
static_assert(128 * REGISTERS_FEW + 256 * REGISTERS_MANY <= THREADS * 168, "registers of a CTA");

/*
 * The waits of a GEMM, by the warp that loads: they count from a step on. One look at 32 of them costs as
 * much as at one, so those that hold already are passed at once; partner: the add_release of the posting
 * tasks.
 */
struct Waits {
    uint32_t next, end; /* those before `next` hold */
    int step;           /* of `next` */

    __device__ Waits(const weft_cuda_args &g, uint32_t first, uint32_t count)
        : next(first), end(first + count)
    {
        find_step(g);
    }

    __device__ void find_step(const weft_cuda_args &g) { step = next < end ? g.waits[next].step : INT_MAX; }

    __device__ void pass(const weft_cuda_args &g, int s, uint32_t plan_task, uint64_t run)
    {
        while (step <= s) {
            uint32_t mine = next + threadIdx.x % 32;
            bool holds = true;
            if (mine < end) {
                const weft_cuda_wait &w = g.waits[mine];
                holds = (int64_t)(load_acquire(w.signal) - (run * w.total + w.count)) >= 0;
            }
            uint32_t missing = ~__ballot_sync(~0u, holds);
            next = min(end, next + (missing ? __ffs(missing) - 1 : 32));
            find_step(g);
            if (step > s)
                break;
            if (missing) {
                if (threadIdx.x % 32 == 0)
                    wait_all(g, next, 1, plan_task, run);
                __syncwarp();
                next++;
                find_step(g);
            }
        }
        __syncwarp(); /* a ballot orders no memory: one lane loads what any of them has seen posted */
        fence_proxy_all();
    }
};

/* A box of B, to all CTAs of the crew. */
__device__ __forceinline__ void load_b(uint32_t dst, const void *map, uint32_t bar, int x, int y)
{
    if constexpr (CTAS > 1)
        tile_load_shared(dst, map, bar, x, y, (1 << CTAS) - 1);
    else
        tile_load(dst, map, bar, x, y);
}

/* One warp: waits for what the tile needs, then keeps the stages full. */
template <bool TRANS_A, bool TRANS_B>
__device__ void produce(const weft_cuda_args &g, const weft_cuda_lane &lane, uint32_t smem, uint32_t rank)
{
    Ring ring;
    bool first = threadIdx.x % 32 == 0;
    uint32_t told = 0; /* tasks announced as ending */
    uint32_t next_word = task_word(g, lane.task0);
    uint64_t run = begin_run(g);
    for (uint32_t i = 0; i < lane.task_count; i++) {
        uint32_t word = next_word;
        const weft_cuda_task t = gemm_fields(word);
        next_word = task_word(g, lane.task0 + i + 1);
        if (t.kind != WEFT_CUDA_GEMM || t.k == 0)
            continue;
        const void *a_map = map_at(g, (int)WEFT_FIELD(a_map)), *b_map = map_at(g, (int)WEFT_FIELD(b_map));
        int a_m = (int)(WEFT_FIELD(a_m) + rank * CTA_M), b_n = (int)(WEFT_FIELD(b_n) + rank * SHARE_COLS);
        int a_k = (int)WEFT_FIELD(a_k), b_k = (int)WEFT_FIELD(b_k), steps = weft_divide_up(t.k, TILE_K);
        bool late = waits_late(t);
        Waits waits(g, t.wait0, late ? 0 : t.wait_count);
        int forward = TILE_K;
        if (i % 2 && waits.step == INT_MAX && !g.a_scale &&
            !g.b_scale) { /* from the end of k: L2 still has what was used last */
            a_k += (steps - 1) * TILE_K;
            b_k += (steps - 1) * TILE_K;
            forward = -TILE_K;
        }
        for (int s = 0; s < steps; s++, ring.next(), a_k += forward, b_k += forward) {
            uint32_t full = smem + Layout::full + 8 * ring.stage;
            uint32_t a_at = smem + Layout::a + ring.stage * A_BYTES;
            uint32_t b_at = smem + Layout::b + ring.stage * B_BYTES + rank * (B_BYTES / CTAS);
            if (waits.step <= s)
                waits.pass(g, s, t.plan_task, run);
            bar_wait(smem + Layout::empty + 8 * ring.stage, ring.phase ^ 1);
            if (first) {
                if (told <= i && waits.step == INT_MAX && s >= steps - ENDING_STEPS) {
                    told = i + 1;
                    word_raise(smem + Layout::ending, told);
                }
                bar_expect(full, STAGE_BYTES);
                if constexpr (TRANS_A) {
                    tile_load(a_at, a_map, full, a_m, a_k);
                    tile_load(a_at + A_BYTES / 2, a_map, full, a_m + 64, a_k);
                } else {
                    tile_load(a_at, a_map, full, a_k, a_m);
                }
                if constexpr (TRANS_B) {
#pragma unroll
                    for (int c = 0; c < SHARE_COLS; c += SHARE_BOX)
                        load_b(b_at + c * LINE, b_map, full, b_k, b_n + c);
                } else {
#pragma unroll
                    for (int c = 0; c < SHARE_COLS; c += 64)
                        load_b(b_at + c * LINE, b_map, full, b_n + c, b_k);
                }
            }
            __syncwarp();
        }
    }
}

/* Before plain work, and before the epilogue where it is plain: one thread waits for the warpgroup. */
__device__ __forceinline__ void consumer_waits(const weft_cuda_args &g, const weft_cuda_task &t, bool waits,
                                               uint32_t i, uint32_t smem, uint32_t consumer, uint64_t run)
{
    if (!waits && !(t.flags & WEFT_CUDA_AFTER_BULK))
        return;
    if (threadIdx.x % 128 == 0) {
        if (t.flags & WEFT_CUDA_AFTER_BULK)
            crew_done(smem, i - 1, MEMBERS);
        if (waits)
            wait_all(g, t.wait0, t.wait_count, t.plan_task, run);
    }
    group_sync(consumer);
}

/* What a warpgroup keeps from task to task. */
struct Place {
    Ring ring;
    uint32_t boxes = 0, grants = 0, fetched = 0, handed = 0;
};

#ifdef WEFT_CUDA_FP8
/*
 * A thread's factors of blocks: of its two rows of A times those of the block of columns of B, or of two
 * where the tile does not begin with one. The four lanes that have the same rows hold four steps of k between
 * them, and ask for the next four when they begin with these: memory has as long as four steps take.
 */
template <int BLOCKS> struct Factors {
    enum { AHEAD = 4 };
    int at_a[2], at_b[BLOCKS];                       /* where those are that this lane asks for next */
    float here[BLOCKS][2], a[2] = {1, 1}, b[BLOCKS]; /* of these steps; and what was asked for */

    __device__ __forceinline__ Factors(const weft_cuda_args &g, const weft_cuda_task &t, int row, int steps)
    {
        const weft_cuda_view *v = &g.views[t.view0 + t.destinations];
        int mine = threadIdx.x % AHEAD, block = v[0].col / WEFT_CUDA_SCALE_BLOCK + mine,
            col = v[1].col / WEFT_CUDA_SCALE_BLOCK, last = (v[1].col + t.cols - 1) / WEFT_CUDA_SCALE_BLOCK;
#pragma unroll
        for (int i = 0; i < 2; i++)
            at_a[i] = (int)((v[0].row + min(row + 8 * i, t.rows - 1)) * g.a_scale_row + block * g.a_scale_k);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            at_b[i] = (int)(min(col + i, last) * g.b_scale_col + block * g.b_scale_k);
            b[i] = 1;
        }
        ask(g, mine < steps);
    }

    /* Is not waited for before it is used: the load itself is what may not happen. */
    static __device__ __forceinline__ void load(float &x, const float *from, int &at, int64_t step, bool asks)
    {
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.cg.f32 %0, [%1];\n}\n"
                     : "+f"(x)
                     : "l"(from + at), "r"((uint32_t)(asks && from)));
        at += AHEAD * (int)step;
    }

    __device__ __forceinline__ void ask(const weft_cuda_args &g, bool asks)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            load(a[i], g.a_scale, at_a[i], g.a_scale_k, asks);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
            load(b[i], g.b_scale, at_b[i], g.b_scale_k, asks);
    }

    /* Of step s of `steps`. Nothing but the branch may look at what was asked for: it would wait for it. */
    __device__ __forceinline__ void get(const weft_cuda_args &g, int s, int steps, float (&scale)[BLOCKS][2])
    {
        if (s % AHEAD == 0) {
#pragma unroll
            for (int i = 0; i < 2 * BLOCKS; i++)
                here[i / 2][i % 2] = a[i % 2] * b[i / 2];
            ask(g, s + AHEAD + (int)threadIdx.x % AHEAD < steps);
        }
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++)
            scale[i / 2][i % 2] = __shfl_sync(~0u, here[i / 2][i % 2], s % AHEAD, AHEAD);
    }
};

/*
 * The products of fp8. Tensor cores add them up with about 14 bits, so what a step has summed, 128 of k, is
 * added to sums in float32; where blocks have factors, times those, which come meanwhile: of the tile's
 * columns from `cut` on of the second block. And meanwhile the other warpgroup multiplies. (Turns that they
 * give each other at the tensor cores make it slower.)
 */
template <bool E5M2, int BLOCKS>
__device__ __forceinline__ void sum_steps(const weft_cuda_args &g, float (&d)[SUMS], int steps, uint32_t smem,
                                          uint32_t consumer, Factors<BLOCKS ? BLOCKS : 1> *factors, int cut,
                                          Place &place)
{
    int thread = threadIdx.x % 128;
    static_assert(A_BYTES == B_BYTES, "a stage is as far from the next in both");
#pragma unroll
    for (int j = 0; j < SUMS; j++)
        d[j] = 0;
    for (int s = 0; s < steps; s++, place.ring.next()) {
        /* All lanes have it alike, which only this says: so it is made once for the warp, in the registers in
         * which the tensor cores are told where their operands are. */
        uint32_t at = __shfl_sync(~0u, place.ring.stage * (A_BYTES >> 4) + consumer * (A_BYTES >> 5), 0);
        uint32_t a = (smem + Layout::a >> 4) + at, b = (smem + Layout::b >> 4) + (at & ~((A_BYTES >> 4) - 1));
        float part[SUMS], scale[BLOCKS ? BLOCKS : 1][2];
        bar_wait(smem + Layout::full + 8 * place.ring.stage, place.ring.phase);
        wgmma_begin();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            wgmma_fp8<E5M2>(part, operand_at(a + 2 * kk, BOX_BYTES, 1024),
                            operand_at(b + 2 * kk, BOX_BYTES, 1024), kk);
        wgmma_commit();
        if constexpr (BLOCKS > 0)
            factors->get(g, s, steps, scale);
        wgmma_wait<0>();
        if (thread < CTAS)
            bar_arrive_at(smem + Layout::empty + 8 * place.ring.stage, thread);
#pragma unroll
        for (int j = 0; j < SUMS; j++) {
            int row = j >> 1 & 1, col = (j >> 2) * 8 + thread % 4 * 2 + (j & 1);
            if constexpr (BLOCKS == 0)
                d[j] += part[j];
            else
                d[j] = fmaf(BLOCKS > 1 && col >= cut ? scale[BLOCKS - 1][row] : scale[0][row], part[j], d[j]);
        }
    }
}

template <bool E5M2>
__device__ __forceinline__ void sum_fp8(const weft_cuda_args &g, uint32_t word, float (&d)[SUMS], int steps,
                                        uint32_t smem, uint32_t rank, uint32_t consumer, Place &place)
{
    int thread = threadIdx.x % 128;
    int row = (int)(rank * CTA_M + consumer * GROUP_M) + thread / 32 * 16 + thread % 32 / 4;
    if (!g.a_scale && !g.b_scale) {
        sum_steps<E5M2, 0>(g, d, steps, smem, consumer, nullptr, 0, place);
        return;
    }
    const weft_cuda_task t = gemm_fields(word);
    int col = g.views[t.view0 + t.destinations + 1].col % WEFT_CUDA_SCALE_BLOCK,
        cut = WEFT_CUDA_SCALE_BLOCK - col;
    if (cut >= t.cols) {
        Factors<1> factors(g, t, row, steps);
        sum_steps<E5M2, 1>(g, d, steps, smem, consumer, &factors, cut, place);
    } else {
        Factors<2> factors(g, t, row, steps);
        sum_steps<E5M2, 2>(g, d, steps, smem, consumer, &factors, cut, place);
    }
}
#endif

/* Those of 16 bits, and of fp8 where that is asked for: all of k in the tensor cores' own sums. */
template <int KIND, bool TRANS_A, bool TRANS_B>
__device__ __forceinline__ void sum_there(float (&d)[SUMS], int steps, uint32_t smem, uint32_t consumer,
                                          Place &place)
{
    constexpr uint32_t A_STEP = TRANS_A ? 2048 : 32, B_STEP = TRANS_B ? 32 : 2048;
    int thread = threadIdx.x % 128;
    uint32_t last = 0;
    if (steps == 0) {
#pragma unroll
        for (int j = 0; j < SUMS; j++)
            d[j] = 0;
    }
    for (int s = 0; s < steps; s++) {
        uint32_t a_at = smem + Layout::a + place.ring.stage * A_BYTES + consumer * (A_BYTES / 2);
        uint32_t b_at = smem + Layout::b + place.ring.stage * B_BYTES;
        bar_wait(smem + Layout::full + 8 * place.ring.stage, place.ring.phase);
        uint64_t a = operand(a_at, BOX_BYTES, 1024), b = operand(b_at, BOX_BYTES, 1024);
        wgmma_begin();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            if constexpr (KIND >= DTYPE_E4M3)
                wgmma_fp8<KIND == DTYPE_E5M2>(d, a + 2 * kk, b + 2 * kk, s | kk);
            else
                wgmma<KIND == DTYPE_BF16, TRANS_A, !TRANS_B>(d, a + kk * (A_STEP >> 4),
                                                             b + kk * (B_STEP >> 4), s | kk);
        }
        wgmma_commit();
        if (s) { /* the step before has been read: give its stage back to both CTAs' producers */
            wgmma_wait<1>();
            if (thread < CTAS)
                bar_arrive_at(last, thread);
        }
        last = smem + Layout::empty + 8 * place.ring.stage;
        place.ring.next();
    }
    wgmma_wait<0>();
    if (steps && thread < CTAS)
        bar_arrive_at(last, thread);
}

/* One warpgroup's part of a GEMM: the products of its 64 rows, then their epilogue. */
template <int KIND, bool TRANS_A, bool TRANS_B>
__device__ __forceinline__ void gemm_task(const weft_cuda_args &g, uint32_t word, uint32_t i, uint32_t smem,
                                          uint32_t rank, uint32_t consumer, uint64_t run, Place &place)
{
    /* every 16-bit matrix of a problem has its dtype; that of fp8 any, which they themselves say */
    constexpr int NARROW = KIND >= DTYPE_E4M3 ? ANY_NARROW : KIND;
    int steps = weft_divide_up((int)WEFT_FIELD(k), TILE_K);
    float d[SUMS];
#ifdef WEFT_CUDA_FP8
    if (g.a_scale || g.b_scale || !g.fast)
        sum_fp8<KIND == DTYPE_E5M2>(g, word, d, steps, smem, rank, consumer, place);
    else
#endif
        sum_there<KIND, TRANS_A, TRANS_B>(d, steps, smem, consumer, place);
    const weft_cuda_task t = gemm_fields(word);
    consumer_waits(g, t, false, i, smem, consumer, run);
    bar_wait(smem + Layout::granted + 8 * consumer, place.grants++ & 1);
    finish_sums<NARROW>(g, t, d, (int)(rank * CTA_M + consumer * GROUP_M), smem, consumer, place.boxes,
                        place.fetched);
}

/* One warpgroup: every task of the lane in order. */
template <int KIND, bool TRANS_A, bool TRANS_B>
__device__ void consume(const weft_cuda_args &g, const weft_cuda_lane &lane, uint32_t smem, uint32_t rank,
                        uint32_t consumer)
{
    int thread = threadIdx.x % 128;
    Place place;
    uint32_t next_word = task_word(g, lane.task0);
    uint64_t run = begin_run(g);
    for (uint32_t i = 0; i < lane.task_count; i++) {
        uint32_t word = next_word, head = WEFT_FIELD(kind);
        next_word = task_word(g, lane.task0 + i + 1); /* fetched while the products are summed */
        const weft_cuda_task &t = g.tasks[lane.task0 + i];
        if ((head & 0xff) == WEFT_CUDA_GEMM) {
            gemm_task<KIND, TRANS_A, TRANS_B>(g, word, i, smem, rank, consumer, run, place);
            if (head >> 8 & WEFT_CUDA_BULK)
                continue; /* store_boxes posts */
        } else {
            const weft_cuda_view *v = &g.views[t.view0];
            int first = (int)(rank * 2 + consumer) * 128 + thread;
            consumer_waits(g, t, t.wait_count, i, smem, consumer, run);
            if (t.kind == WEFT_CUDA_COPY)
                copy(t, v, first, CTAS * 256);
            else
                reduce(g, t, v, first, CTAS * 256);
        }
        group_sync(consumer);
        if (thread == 0) {
            if (LINK && g.link->transfers[t.plan_task].bytes) /* a member's share */
                link_wait(link_carry(g.link, g.link->transfers[t.plan_task].bytes / MEMBERS).taken());
            stay_near(smem, i, MEMBERS);
            bool last = last_of_crew(smem, i, MEMBERS);
            if (last && LINK && is_held(g, t))
                hand_over(smem, 2 + consumer, place.handed, link_answer(g.link), lane.task0 + i);
            else if (last)
                task_done(g, t);
        }
        __syncwarp();
    }
    if (LINK && thread == 0)
        hand_over(smem, 2 + consumer, place.handed, 0, NO_MORE);
    __syncwarp();
}

template <int KIND, bool TRANS_A, bool TRANS_B> __device__ __forceinline__ void walk(const weft_cuda_args &g)
{
    extern __shared__ char raw[];
    uint32_t smem = weft_align_up(smem_address(raw), 1024u);
    uint32_t rank = cluster_rank(), crew = blockIdx.x / CTAS;
    int group = threadIdx.x / 128, warp = threadIdx.x / 32;
    weft_cuda_lane lane = g.lanes[crew];
    for (int i = threadIdx.x; i < Layout::words / 4; i += THREADS)
        asm volatile("st.shared.u32 [%0], 0;" ::"r"(smem + Layout::ending + 4 * i) : "memory");
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            bar_init(smem + Layout::full + 8 * s, 1);
            bar_init(smem + Layout::empty + 8 * s, 2 * CTAS);
        }
        for (int s = 0; s < 4; s++) {
            bar_init(smem + Layout::box_full + 8 * s, 128);
            bar_init(smem + Layout::box_free + 8 * s, 1);
            bar_init(smem + Layout::fetched + 8 * s, 1);
        }
        for (int s = 0; s < 2; s++) {
            bar_init(smem + Layout::copied + 8 * s, 1);
            bar_init(smem + Layout::granted + 8 * s, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (uint32_t i = threadIdx.x % 32; warp == 3 && i < g.map_count; i += 32) {
        if (g.maps_reused)
            map_acquire(map_at(g, (int)i));
        if (i < 32)
            map_prefetch(map_at(g, (int)i));
    }
    cluster_sync();
    if (group == 0) {
        registers_shrink<REGISTERS_FEW>();
        if (warp == 0) {
            produce<TRANS_A, TRANS_B>(g, lane, smem, rank);
        } else if (warp <= 2) {
            uint32_t storer = (crew * CTAS + rank) * 2 + warp - 1;
            weft_cuda_lane copies = {0, 0};
            if (storer < g.copy_count)
                copies = g.copies[storer];
            store_boxes(g, lane, copies, smem, rank, warp - 1);
        } else {
            uint64_t run = begin_run(g);
            if (g.alone)
                grid_began();
            if (blockIdx.x == 0 && threadIdx.x % 32 == 0)
                enter_run(g, run, now_ns());
            __syncwarp();
            if constexpr (LINK)
                hold_posts(g, smem);
            if (blockIdx.x == 0 && threadIdx.x % 32 == 0)
                exit_run(g, run);
        }
    } else {
        registers_grow<REGISTERS_MANY>();
        consume<KIND, TRANS_A, TRANS_B>(g, lane, smem, rank, group - 1);
    }
    __syncwarp();
    cluster_sync();
    if (threadIdx.x == 0 && finish(g) && LINK)
        link_finish(g.link);
}

} // namespace

#define WEFT_WALK(NAME, KIND, TRANS_A, TRANS_B)                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CTAS, 1, 1)                    \
        weft_walk_##NAME(const __grid_constant__ weft_cuda_args g)                                           \
    {                                                                                                        \
        walk<KIND, TRANS_A, TRANS_B>(g);                                                                     \
    }

/* Compiled once for each dtype, so that the two can be built beside each other. */
#if defined(WEFT_CUDA_FP8)
WEFT_WALK(e4m3, DTYPE_E4M3, false, true)
WEFT_WALK(e5m2, DTYPE_E5M2, false, true)
#elif defined(WEFT_CUDA_F16)
WEFT_WALK(f16_nn, DTYPE_F16, false, false)
WEFT_WALK(f16_nt, DTYPE_F16, false, true)
WEFT_WALK(f16_tn, DTYPE_F16, true, false)
WEFT_WALK(f16_tt, DTYPE_F16, true, true)
#else
WEFT_WALK(bf16_nn, DTYPE_BF16, false, false)
#if !WEFT_LINK
WEFT_WALK(bf16_nt, DTYPE_BF16, false, true)
WEFT_WALK(bf16_tn, DTYPE_BF16, true, false)
WEFT_WALK(bf16_tt, DTYPE_BF16, true, true)
#endif
#endif
