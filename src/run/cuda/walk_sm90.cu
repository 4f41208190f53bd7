/*
 * The plan walker for Hopper: one persistent kernel runs a rank's lanes, each by a cluster of two CTAs.
 *
 * Card: cluster tile 256 x 256 x 64 (a CTA: 128 x 256), two consumer warpgroups of 64 x 256 (128 sums a
 * thread), four stages of 48 KiB. Each CTA loads its own A and half of B; the half is multicast to both. One
 * thread feeds the stages (and waits for the tile's chunks), one thread per consumer stores finished boxes
 * of 8 KiB through the copy engine and posts when they are written, so neither waits nor stores hold up the
 * tensor cores. A spare warp of the first CTA does ENTER and EXIT.
 *
 * A crew has four members (two CTAs of two consumers), each storing its own 64 rows; the last one to finish a
 * task posts.
 */
#include "hopper.cuh"
#include "order.cuh"
#include "plain.cuh"

namespace
{

constexpr int CTAS = 2;
constexpr int CTA_M = 128, GROUP_M = 64, TILE_N = 256, TILE_K = 64;
constexpr int STAGES = 4;
constexpr int A_BYTES = CTA_M * TILE_K * 2, B_BYTES = TILE_N * TILE_K * 2, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int BOX_BYTES = 8192; /* 64 rows of 128 bytes */
constexpr int THREADS = 384;
constexpr uint32_t TALLY = 256, MEMBERS = 4, COPIERS = 2;

struct Layout { /* offsets from the 1024-aligned start of shared memory */
    static constexpr int a = 0;
    static constexpr int b = STAGES * A_BYTES;
    static constexpr int box = b + STAGES * B_BYTES;
    static constexpr int full = box + 4 * BOX_BYTES;
    static constexpr int empty = full + 8 * STAGES;
    static constexpr int box_full = empty + 8 * STAGES; /* [consumer][buffer] */
    static constexpr int box_free = box_full + 32;
    static constexpr int done =
        box_free + 32; /* CTA 0: how many members have finished task i, modulo TALLY */
};

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

/* One thread: waits for what the tile needs, then keeps the stages full. */
template <bool TRANS_A, bool TRANS_B>
__device__ void produce(const weft_cuda_args &g, const weft_cuda_lane &lane, uint32_t smem, uint32_t rank,
                        uint64_t run)
{
    Ring ring;
    for (uint32_t i = 0; i < lane.task_count; i++) {
        const weft_cuda_task t = g.tasks[lane.task0 + i];
        if (t.kind != WEFT_CUDA_GEMM || t.k == 0)
            continue;
        const void *a_map = map_at(g, t.a_map), *b_map = map_at(g, t.b_map);
        int a_m = t.a_m + (int)rank * CTA_M, b_n = t.b_n + (int)rank * (TILE_N / 2), a_k = t.a_k, b_k = t.b_k;
        int steps = (t.k + TILE_K - 1) / TILE_K;
        if (t.wait_count && !(t.flags & WEFT_CUDA_LATE)) {
            wait_all(g, t.wait0, t.wait_count, t.plan_task, run);
            fence_proxy_all();
        }
        for (int s = 0; s < steps; s++, ring.next(), a_k += TILE_K, b_k += TILE_K) {
            uint32_t full = smem + Layout::full + 8 * ring.stage;
            uint32_t a_at = smem + Layout::a + ring.stage * A_BYTES;
            uint32_t b_at = smem + Layout::b + ring.stage * B_BYTES + rank * (B_BYTES / 2);
            bar_wait(smem + Layout::empty + 8 * ring.stage, ring.phase ^ 1);
            bar_expect(full, STAGE_BYTES);
            if constexpr (TRANS_A) {
                tile_load(a_at, a_map, full, a_m, a_k);
                tile_load(a_at + A_BYTES / 2, a_map, full, a_m + 64, a_k);
            } else {
                tile_load(a_at, a_map, full, a_k, a_m);
            }
            if constexpr (TRANS_B) {
                tile_load_shared(b_at, b_map, full, b_k, b_n, 3);
            } else {
                tile_load_shared(b_at, b_map, full, b_n, b_k, 3);
                tile_load_shared(b_at + B_BYTES / 4, b_map, full, b_n + 64, b_k, 3);
            }
        }
    }
}

/* One thread per consumer: stores the boxes it fills, posts when a task's last box is written. */
__device__ void store_boxes(const weft_cuda_args &g, const weft_cuda_lane &lane, uint32_t smem, uint32_t rank,
                            uint32_t consumer)
{
    uint32_t full = smem + Layout::box_full + 16 * consumer, free = smem + Layout::box_free + 16 * consumer;
    uint32_t at = smem + Layout::box + 2 * BOX_BYTES * consumer, boxes = 0;
    for (uint32_t i = 0; i < lane.task_count; i++) {
        const weft_cuda_task t = g.tasks[lane.task0 + i]; /* copies: nothing is fetched while a box waits */
        if (t.kind != WEFT_CUDA_GEMM || !(t.flags & WEFT_CUDA_BULK))
            continue;
        const weft_cuda_view *d = &g.views[t.view0];
        int width = t.flags & WEFT_CUDA_WIDE_D ? 32 : 64, row = (int)(rank * CTA_M + consumer * GROUP_M);
        const void *first_map = map_at(g, d->map);
        int first_col = d->col, first_row = d->row + row;
        for (int col = 0; col < TILE_N; col += width, boxes++) {
            uint32_t buffer = boxes & 1;
            bar_wait(full + 8 * buffer, (boxes >> 1) & 1);
            tile_store(first_map, at + buffer * BOX_BYTES, first_col + col, first_row);
            for (int n = 1; n < t.destinations; n++)
                tile_store(map_at(g, d[n].map), at + buffer * BOX_BYTES, d[n].col + col, d[n].row + row);
            bulk_commit();
            if (col) {
                bulk_wait_read<1>();
                bar_arrive(free + 8 * (buffer ^ 1));
            }
        }
        bulk_wait_read<0>();
        bar_arrive(free + 8 * ((boxes - 1) & 1));
        stay_near(smem, i, MEMBERS);
        if (t.post_count || t.flags & WEFT_CUDA_DRAIN) {
            bulk_wait_written();
            fence_proxy_all();
        }
        if (last_of_crew(smem, i, MEMBERS))
            task_done(g, t);
    }
    bulk_wait_written();
}

/*
 * A thread's share of 64 columns is 16 pairs (8 column groups, 2 rows). Fetches the pairs of a matrix, all
 * loads issued before the first use.
 */
template <int NARROW>
__device__ __forceinline__ void fetch_pairs(const weft_cuda_task &t, const weft_cuda_view &m, int row,
                                            int col0, float2 (&x)[16])
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = make_float2(0, 0);
    if (m.dtype == DTYPE_F32) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int r = row + (i & 1) * 8, c = col0 + (i >> 1) * 8;
            if (r < t.rows && c < t.cols)
                x[i] = __ldcg((const float2 *)((const float *)m.ptr + r * m.rs + c));
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int r = row + (i & 1) * 8, c = col0 + (i >> 1) * 8;
        if (r < t.rows && c < t.cols)
            x[i].x = __uint_as_float(__ldcg((const uint32_t *)((const uint16_t *)m.ptr + r * m.rs + c)));
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = widen2(__float_as_uint(x[i].x), NARROW);
}

/* Accumulator-in and the epilogue on a thread's share of 64 columns; every matrix allows pair accesses. */
template <int NARROW>
__device__ __forceinline__ void finish_pairs(const weft_cuda_args &g, const weft_cuda_task &t,
                                             const weft_cuda_view *v, float *d, int row, int col0)
{
    float2 x[16];
    if (t.acc >= 0) {
        fetch_pairs<NARROW>(t, v[t.acc], row, col0, x);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            d[2 * i] = x[i].x + d[2 * i];
            d[2 * i + 1] = x[i].y + d[2 * i + 1];
        }
    }
    if (!(t.flags & WEFT_CUDA_EPILOGUE))
        return;
#pragma unroll
    for (int i = 0; i < 32; i++)
        d[i] *= g.alpha;
    if (t.c >= 0) {
        fetch_pairs<NARROW>(t, v[t.c], row, col0, x);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            d[2 * i] = fmaf(g.beta, x[i].x, d[2 * i]);
            d[2 * i + 1] = fmaf(g.beta, x[i].y, d[2 * i + 1]);
        }
    }
    if (t.bias >= 0) {
        fetch_pairs<NARROW>(t, v[t.bias], row, col0, x); /* its row stride is 0 */
#pragma unroll
        for (int i = 0; i < 16; i++) {
            d[2 * i] += x[i].x;
            d[2 * i + 1] += x[i].y;
        }
    }
    if (g.act != ACT_NONE) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            d[i] = activate(d[i], g.act);
    }
}

/* 64 columns of the consumer's rows into one box of 16-bit elements or two of float32, swizzled. */
template <int NARROW>
__device__ __forceinline__ void fill_boxes(const float *d, bool wide, uint32_t smem, uint32_t consumer,
                                           uint32_t &boxes)
{
    uint32_t full = smem + Layout::box_full + 16 * consumer, free = smem + Layout::box_free + 16 * consumer;
    uint32_t base = smem + Layout::box + 2 * BOX_BYTES * consumer;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    if (!wide) {
        uint32_t buffer = boxes & 1, row = warp * 16 + lane % 16, at = base + buffer * BOX_BYTES + row * 128;
        bar_wait(free + 8 * buffer, ((boxes >> 1) & 1) ^ 1);
#pragma unroll
        for (int j = 0; j < 8; j += 2)
            matrices_store(at + (((j + lane / 16) ^ (row & 7)) << 4), narrow2(d[4 * j], d[4 * j + 1], NARROW),
                           narrow2(d[4 * j + 2], d[4 * j + 3], NARROW),
                           narrow2(d[4 * j + 4], d[4 * j + 5], NARROW),
                           narrow2(d[4 * j + 6], d[4 * j + 7], NARROW));
        fence_proxy_shared();
        bar_arrive(full + 8 * buffer);
        boxes++;
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++, boxes++) {
        uint32_t buffer = boxes & 1, row = warp * 16 + lane / 4, at = base + buffer * BOX_BYTES;
        bar_wait(free + 8 * buffer, ((boxes >> 1) & 1) ^ 1);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i = 16 * half + 4 * j, chunk = 2 * j + (lane % 4) / 2;
            uint32_t spot = at + row * 128 + ((chunk ^ (row & 7)) << 4) + (lane & 1) * 8;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(spot), "f"(d[i]), "f"(d[i + 1]) : "memory");
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(spot + 1024), "f"(d[i + 2]), "f"(d[i + 3])
                         : "memory");
        }
        fence_proxy_shared();
        bar_arrive(full + 8 * buffer);
    }
}

/*
 * 64 columns when some matrix of the task is not aligned: the sums go through shared memory, then element by
 * element to their destinations. Rolled up, so that the rare path stays out of the instruction cache.
 */
__device__ __forceinline__ void finish_elements(const weft_cuda_args &g, const weft_cuda_task &t,
                                                const weft_cuda_view *v, const float *d, int row0, int col0,
                                                uint32_t smem, uint32_t consumer, uint32_t boxes)
{
    int thread = threadIdx.x % 128, at = thread / 32 * 16 + thread % 32 / 4;
    uint32_t sums = smem + Layout::box + 2 * BOX_BYTES * consumer,
             free = smem + Layout::box_free + 16 * consumer;
    bar_wait(free + 8 * (boxes & 1),
             ((boxes >> 1) & 1) ^ 1); /* stores of earlier tasks have left both boxes */
    bar_wait(free + 8 * ((boxes + 1) & 1), (((boxes + 1) >> 1) & 1) ^ 1);
    group_sync(consumer);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t spot = sums + (at + (i & 1) * 8) * 256 + (i >> 1) * 32 + thread % 4 * 8;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(spot), "f"(d[2 * i]), "f"(d[2 * i + 1])
                     : "memory");
    }
    group_sync(consumer);
#pragma unroll 1
    for (int e = thread; e < GROUP_M * 64; e += 128) {
        int row = row0 + e / 64, col = col0 + e % 64;
        float x;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(sums + 4 * e));
        if (row >= t.rows || col >= t.cols)
            continue;
        if (t.acc >= 0)
            x = element_get(v[t.acc].ptr, row * v[t.acc].rs + col * v[t.acc].cs, v[t.acc].dtype) + x;
        if (t.flags & WEFT_CUDA_EPILOGUE)
            x = finish_element(g, t, v, x, row, col);
#pragma unroll 1
        for (int n = 0; n < t.destinations; n++)
            element_set(v[n].ptr, row * v[n].rs + col * v[n].cs, x, v[n].dtype);
    }
}

/* Before plain work and before the epilogue: one thread waits for the warpgroup. */
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

/* The k of a GEMM, -1 for other tasks. */
__device__ __forceinline__ int k_of(const weft_cuda_task *task)
{
    return task->kind == WEFT_CUDA_GEMM ? task->k : -1;
}

/* One warpgroup's part of a GEMM: the products of its 64 rows, then their epilogue. */
template <bool BF16, bool TRANS_A, bool TRANS_B>
__device__ __forceinline__ void gemm_task(const weft_cuda_args &g, const weft_cuda_task &t, int k, uint32_t i,
                                          uint32_t smem, uint32_t rank, uint32_t consumer, uint64_t run,
                                          Ring &ring, uint32_t &boxes)
{
    constexpr int NARROW = BF16 ? DTYPE_BF16 : DTYPE_F16; /* every 16-bit matrix of a problem has its dtype */
    constexpr uint32_t A_STEP = TRANS_A ? 2048 : 32, B_STEP = TRANS_B ? 32 : 2048;
    int thread = threadIdx.x % 128, steps = (k + TILE_K - 1) / TILE_K;
    uint32_t last = 0;
    float d[128];
    if (steps == 0) {
#pragma unroll
        for (int j = 0; j < 128; j++)
            d[j] = 0;
    }
    for (int s = 0; s < steps; s++) {
        uint32_t a_at = smem + Layout::a + ring.stage * A_BYTES + consumer * (A_BYTES / 2);
        uint32_t b_at = smem + Layout::b + ring.stage * B_BYTES;
        bar_wait(smem + Layout::full + 8 * ring.stage, ring.phase);
        uint64_t a = operand(a_at, BOX_BYTES, 1024), b = operand(b_at, BOX_BYTES, 1024);
        wgmma_begin();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
            wgmma<BF16, TRANS_A, !TRANS_B>(d, a + kk * (A_STEP >> 4), b + kk * (B_STEP >> 4), s | kk);
        wgmma_commit();
        if (s) { /* the step before has been read: give its stage back to both CTAs' producers */
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
    consumer_waits(g, t, t.wait_count && (k == 0 || (t.flags & WEFT_CUDA_LATE)), i, smem, consumer, run);
    const weft_cuda_view *v = &g.views[t.view0];
    int row0 = (int)(rank * CTA_M + consumer * GROUP_M), row = row0 + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int b = 0; b < 4; b++) {
        if (t.flags & WEFT_CUDA_BULK) {
            finish_pairs<NARROW>(g, t, v, d + 32 * b, row, 64 * b + thread % 4 * 2);
            fill_boxes<NARROW>(d + 32 * b, t.flags & WEFT_CUDA_WIDE_D, smem, consumer, boxes);
        } else {
            finish_elements(g, t, v, d + 32 * b, row0, 64 * b, smem, consumer, boxes);
        }
    }
}

/* One warpgroup: every task of the lane in order. */
template <bool BF16, bool TRANS_A, bool TRANS_B>
__device__ void consume(const weft_cuda_args &g, const weft_cuda_lane &lane, uint32_t smem, uint32_t rank,
                        uint32_t consumer, uint64_t run, uint64_t began)
{
    int thread = threadIdx.x % 128;
    Ring ring;
    uint32_t boxes = 0;
    int next_k = k_of(&g.tasks[lane.task0]);
    for (uint32_t i = 0; i < lane.task_count; i++) {
        const weft_cuda_task t = g.tasks[lane.task0 + i]; /* a copy: fetched while the products are summed */
        int k = next_k;
        next_k = k_of(&g.tasks[lane.task0 + i + 1]);
        if (k >= 0) {
            gemm_task<BF16, TRANS_A, TRANS_B>(g, t, k, i, smem, rank, consumer, run, ring, boxes);
            if (t.flags & WEFT_CUDA_BULK)
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
            stay_near(smem, i, MEMBERS);
            if (last_of_crew(smem, i, MEMBERS)) {
                link_hold(g, began, t.due_ns);
                task_done(g, t);
            }
        }
        __syncwarp();
    }
}

/* A lane of aligned copies: bulk loads into the ring, bulk stores out of it. CTA `rank` does every other row
 * (or half of the bytes when the rows lie back to back). */
struct Pieces {
    const char *src;
    char *dst;
    int64_t src_step, dst_step, rows, row_bytes;
    __device__ Pieces(const weft_cuda_task &t, const weft_cuda_view *v, uint32_t rank)
    {
        int size = element_bytes(v[0].dtype);
        row_bytes = (int64_t)t.cols * size;
        dst_step = v[0].rs * size;
        src_step = v[1].rs * size;
        rows = t.rows;
        if (src_step == row_bytes && dst_step == row_bytes) {
            row_bytes *= rows;
            rows = 1;
        }
        int64_t half = rows == 1 ? (row_bytes / 2 + 15) / 16 * 16 : 0;
        src = (const char *)v[1].ptr;
        dst = (char *)v[0].ptr;
        if (rows == 1) {
            src += rank * half;
            dst += rank * half;
            row_bytes = rank ? row_bytes - half : half;
        } else {
            src += rank * src_step;
            dst += rank * dst_step;
            src_step *= CTAS;
            dst_step *= CTAS;
            rows = (rows + (rank ? 0 : 1)) / 2;
        }
    }
};

__device__ void copy_in(const weft_cuda_args &g, const weft_cuda_lane &lane, uint32_t smem, uint32_t rank,
                        uint64_t run)
{
    Ring ring;
    for (uint32_t i = 0; i < lane.task_count; i++) {
        const weft_cuda_task t = g.tasks[lane.task0 + i];
        Pieces p(t, &g.views[t.view0], rank);
        if (t.wait_count) {
            wait_all(g, t.wait0, t.wait_count, t.plan_task, run);
            fence_proxy_all();
        }
        for (int64_t row = 0; row < p.rows; row++) {
            for (int64_t at = 0; at < p.row_bytes; at += STAGE_BYTES, ring.next()) {
                uint32_t full = smem + Layout::full + 8 * ring.stage;
                uint32_t bytes = (uint32_t)(p.row_bytes - at < STAGE_BYTES ? p.row_bytes - at : STAGE_BYTES);
                bar_wait(smem + Layout::box_free + 8 * ring.stage, ring.phase ^ 1);
                bar_expect(full, bytes);
                bulk_load(smem + ring.stage * STAGE_BYTES, p.src + row * p.src_step + at, bytes, full);
            }
        }
    }
}

__device__ void copy_out(const weft_cuda_args &g, const weft_cuda_lane &lane, uint32_t smem, uint32_t rank,
                         uint64_t began)
{
    Ring ring;
    uint32_t pending = 0; /* pieces stored but not yet handed back: at most one */
    uint32_t previous = 0;
    for (uint32_t i = 0; i < lane.task_count; i++) {
        const weft_cuda_task &t = g.tasks[lane.task0 + i];
        Pieces p(t, &g.views[t.view0], rank);
        for (int64_t row = 0; row < p.rows; row++) {
            for (int64_t at = 0; at < p.row_bytes; at += STAGE_BYTES, ring.next()) {
                uint32_t bytes = (uint32_t)(p.row_bytes - at < STAGE_BYTES ? p.row_bytes - at : STAGE_BYTES);
                bar_wait(smem + Layout::full + 8 * ring.stage, ring.phase);
                bulk_store(p.dst + row * p.dst_step + at, smem + ring.stage * STAGE_BYTES, bytes);
                bulk_commit();
                if (pending) {
                    bulk_wait_read<1>();
                    bar_arrive(smem + Layout::box_free + 8 * previous);
                }
                previous = ring.stage;
                pending = 1;
            }
        }
        stay_near(smem, i, COPIERS);
        if (t.post_count) {
            bulk_wait_written();
            fence_proxy_all();
        }
        if (last_of_crew(smem, i, COPIERS)) {
            link_hold(g, began, t.due_ns);
            task_done(g, t);
        }
    }
    bulk_wait_written();
}

template <bool BF16, bool TRANS_A, bool TRANS_B> __device__ __forceinline__ void walk(const weft_cuda_args &g)
{
    extern __shared__ char raw[];
    uint32_t smem = (smem_address(raw) + 1023) & ~1023u;
    uint32_t rank = cluster_rank();
    int group = threadIdx.x / 128, warp = threadIdx.x / 32;
    weft_cuda_lane lane = g.lanes[blockIdx.x / CTAS];
    uint64_t run = g.control->run, began = now_ns();
    if (threadIdx.x < TALLY)
        asm volatile("st.shared.u32 [%0], 0;" ::"r"(smem + Layout::done + 4 * threadIdx.x) : "memory");
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            bar_init(smem + Layout::full + 8 * s, 1);
            bar_init(smem + Layout::empty + 8 * s, 2 * CTAS);
        }
        for (int s = 0; s < 4; s++) {
            bar_init(smem + Layout::box_full + 8 * s, 128);
            bar_init(smem + Layout::box_free + 8 * s, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    if (group == 0) {
        registers_shrink<40>();
        if (threadIdx.x % 32 == 0) {
            if (warp == 0 && lane.bulk)
                copy_in(g, lane, smem, rank, run);
            else if (warp == 0)
                produce<TRANS_A, TRANS_B>(g, lane, smem, rank, run);
            else if (warp == 1 && lane.bulk)
                copy_out(g, lane, smem, rank, began);
            else if (warp <= 2 && !lane.bulk)
                store_boxes(g, lane, smem, rank, warp - 1);
            else if (warp == 3 && blockIdx.x == 0) {
                enter_run(g, run, began);
                exit_run(g, run);
            }
        }
    } else {
        registers_grow<232>();
        if (!lane.bulk)
            consume<BF16, TRANS_A, TRANS_B>(g, lane, smem, rank, group - 1, run, began);
    }
    __syncwarp();
    cluster_sync();
    if (threadIdx.x == 0)
        finish(g);
}

} // namespace

#define WEFT_WALK(NAME, BF16, TRANS_A, TRANS_B)                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CTAS, 1, 1)                    \
        weft_walk_##NAME(const __grid_constant__ weft_cuda_args g)                                           \
    {                                                                                                        \
        walk<BF16, TRANS_A, TRANS_B>(g);                                                                     \
    }

/* Compiled once for each dtype, so that the two can be built beside each other. */
#ifdef WEFT_CUDA_F16
WEFT_WALK(f16_nn, false, false, false)
WEFT_WALK(f16_nt, false, false, true)
WEFT_WALK(f16_tn, false, true, false)
WEFT_WALK(f16_tt, false, true, true)
#else
WEFT_WALK(bf16_nn, true, false, false)
WEFT_WALK(bf16_nt, true, false, true)
WEFT_WALK(bf16_tn, true, true, false)
WEFT_WALK(bf16_tt, true, true, true)
#endif
