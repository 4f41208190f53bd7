/*
 * The warps of a crew that store: one per consumer. Each stores the boxes that its consumer fills and, while
 * there are none to store, copies: it runs a copy lane of the plan through the same boxes, a piece of up to
 * 16 KiB at a time, in and out by the bulk engine. So copies need neither SMs nor shared memory of their own.
 *
 * The boxes change hands once a task: the storer gives them to its consumer (`granted`) when the task only
 * has to finish: it is almost loaded (`ending`) and what it adds to is there. From then on the task waits for
 * nobody, so a copy that others wait for is never held up by more than an epilogue.
 *
 * Compiled for an emulated link (LINK), a box is free only when the link has taken what is in it, and a piece
 * that is fetched is there when the link would have brought it: see emulate.cuh and held_sm90.cuh.
 */
#ifndef WEFT_RUN_CUDA_COPY_SM90_CUH
#define WEFT_RUN_CUDA_COPY_SM90_CUH

#include "crew_sm90.cuh"
#include "held_sm90.cuh"

namespace
{

/* What a lane moves at a time, and how many do: the engine takes its time with every request. */
constexpr uint32_t SEGMENT_BYTES = 1024, SEGMENTS = 2 * BOX_BYTES / SEGMENT_BYTES;

/* A warp on its copy lane; every lane of the warp keeps the same but for the words of tasks. */
struct Copier {
    uint32_t task, end; /* the copy lane's next task and its end */
    uint32_t word, next_word;
    uint32_t segment; /* how far the task is */
    uint32_t phase;
    bool open;    /* its waits are over */
    bool fetches; /* LINK: over it */
    Patience patience;

    __device__ Copier(const weft_cuda_args &g, const weft_cuda_lane &lane)
        : task(lane.task0), end(lane.task0 + lane.task_count), word(0), next_word(0), segment(0), phase(0),
          open(false), fetches(false)
    {
        if (busy())
            word = task_word(g, task);
    }

    __device__ bool busy() const { return task < end; }

    /* Whether the task may begin. */
    __device__ bool ready(const weft_cuda_args &g, uint64_t run)
    {
        uint32_t wait0 = WEFT_FIELD(wait0), plan_task = WEFT_FIELD(plan_task),
                 waits = WEFT_FIELD(wait_count) & 0xffff;
        bool go = true;
        if (waits && threadIdx.x % 32 == 0)
            go = poll_all(g, wait0, waits, plan_task, run, patience);
        go = __shfl_sync(~0u, go, 0);
        if (go && waits) {
            __syncwarp(); /* a shuffle orders no memory: all lanes load what one saw posted */
            fence_proxy_all();
        }
        return go;
    }

    /* Does a piece of the next task, unless it cannot begin yet. */
    __device__ bool step(const weft_cuda_args &g, uint32_t smem, uint32_t storer, uint64_t run)
    {
        if (!open) {
            if (!ready(g, run))
                return false;
            open = true;
            if (LINK)
                fetches = g.link->transfers[WEFT_FIELD(plan_task)].bytes;
            segment = 0;
            if (task + 1 < end)
                next_word = task_word(g, task + 1);
        }
        if (!move(g, smem, storer))
            return true;
        if (WEFT_FIELD(wait_count) >> 16)
            tell(g);
        open = false;
        task++;
        word = next_word;
        return true;
    }

    /* The posts of a finished task. */
    __device__ void tell(const weft_cuda_args &g)
    {
        uint32_t post0 = WEFT_FIELD(post0), count = WEFT_FIELD(wait_count) >> 16,
                 plan_task = WEFT_FIELD(plan_task);
        bool first = threadIdx.x % 32 == 0;
        uint64_t *post = first ? g.posts[post0] : NULL; /* fetched while the stores are written */
        uint32_t aborted = first ? load_relaxed(&g.control->abort) : 1;
        bulk_wait_written();
        __syncwarp();
        if (first) {
            trace_done(g, plan_task);
            count_step(g);
            if (!aborted) {
                add_release(post);
                for (uint32_t i = 1; i < count; i++)
                    add_release(g.posts[post0 + i]);
            }
        }
        __syncwarp();
    }

    /* A segment by each lane, into the boxes and out of them; true when it was the last piece. */
    __device__ bool move(const weft_cuda_args &g, uint32_t smem, uint32_t storer)
    {
        uint32_t lane = threadIdx.x % 32, bar = smem + Layout::copied + 8 * storer;
        uint32_t row_bytes = WEFT_FIELD(copy_bytes), rows = WEFT_FIELD(rows);
        uint32_t in_row = weft_divide_up(row_bytes, SEGMENT_BYTES);
        uint32_t mine = segment + lane, row = mine / in_row, at = (mine - row * in_row) * SEGMENT_BYTES;
        uint32_t box = smem + Layout::box + 2 * BOX_BYTES * storer + lane * SEGMENT_BYTES;
        uint32_t bytes = lane < SEGMENTS && row < rows ? min(SEGMENT_BYTES, row_bytes - at) : 0;
        uint32_t all = __reduce_add_sync(~0u, bytes);
        const char *from = (const char *)WEFT_FIELD64(copy_from) + row * WEFT_FIELD64(copy_from_step) + at;
        char *to = (char *)WEFT_FIELD64(copy_to) + row * WEFT_FIELD64(copy_to_step) + at;
        if (lane == 0)
            bar_expect(bar, all);
        __syncwarp();
        uint64_t comes =
            LINK && fetches && lane == 0 ? link_carry(g.link, all).taken() + g.link->latency_ns : 0;
        if (bytes)
            bulk_load(box, from, bytes, bar);
        bar_wait(bar, phase);
        if (LINK) {
            link_wait(comes);
            __syncwarp();
        }
        phase ^= 1;
        if (bytes)
            bulk_store(to, box, bytes);
        bulk_commit();
        bulk_wait_read<0>();
        segment += SEGMENTS;
        __syncwarp();
        return segment >= rows * in_row;
    }
};

/* One lane: the boxes of a task that its consumer fills, to all destinations. */
__device__ __forceinline__ void store_task(const weft_cuda_args &g, const weft_cuda_task &t, uint32_t smem,
                                           uint32_t rank, uint32_t consumer, uint32_t boxes)
{
    uint32_t over = LINK ? g.link->transfers[t.plan_task].bytes / MEMBERS : 0;
    Carried carried = {0, 0};
    uint32_t full = smem + Layout::box_full + 16 * consumer, free = smem + Layout::box_free + 16 * consumer;
    uint32_t at = smem + Layout::box + 2 * BOX_BYTES * consumer;
    const weft_cuda_view *d = &g.views[t.view0];
    int width = t.flags & WEFT_CUDA_D_F32 ? 32 : 64, row = (int)(rank * CTA_M + consumer * GROUP_M);
    const void *first_map = map_at(g, d->map);
    bool add = t.flags & WEFT_CUDA_ADD;
    int first_col = d->col, first_row = d->row + row;
    for (int col = 0; col < TILE_N; col += width, boxes++) {
        uint32_t buffer = boxes & 1;
        bar_wait(full + 8 * buffer, (boxes >> 1) & 1);
        if (add)
            tile_add(first_map, at + buffer * BOX_BYTES, first_col + col, first_row);
        else
            tile_store(first_map, at + buffer * BOX_BYTES, first_col + col, first_row);
        for (int n = 1; n < t.destinations; n++)
            tile_store(map_at(g, d[n].map), at + buffer * BOX_BYTES, d[n].col + col, d[n].row + row);
        bulk_commit();
        if (LINK && over && col == 0)
            carried = link_carry(g.link, over);
        if (col) {
            bulk_wait_read<1>();
            if (LINK && over)
                link_wait(carried.taken((uint32_t)col, TILE_N));
            bar_arrive(free + 8 * (buffer ^ 1));
        }
    }
    bulk_wait_read<0>();
    if (LINK && over)
        link_wait(carried.taken());
    bar_arrive(free + 8 * ((boxes - 1) & 1));
}

/* One lane: a task's boxes are written. */
__device__ __forceinline__ void end_task(const weft_cuda_args &g, const weft_cuda_task &t, uint32_t smem,
                                         uint32_t consumer, uint32_t i, uint32_t number, uint32_t &handed)
{
    stay_near(smem, i, MEMBERS);
    if (t.post_count || t.flags & WEFT_CUDA_DRAIN) {
        bulk_wait_written();
        fence_proxy_all();
    }
    if (!last_of_crew(smem, i, MEMBERS))
        return;
    if (LINK && is_held(g, t))
        hand_over(smem, consumer, handed, link_answer(g.link), number);
    else
        task_done(g, t);
}

/* A storer that has no boxes to store yet: it makes the waits of task i where they come late, and copies
 * until the task only has to finish. */
__device__ __forceinline__ void await_task(const weft_cuda_args &g, const weft_cuda_task &t, uint32_t i,
                                           Copier &copier, uint32_t smem, uint32_t consumer, uint64_t run)
{
    bool pending = t.wait_count && waits_late(t), first = threadIdx.x % 32 == 0;
    Patience patience;
    while (pending || copier.busy()) {
        if (pending) {
            bool holds = first && poll_all(g, t.wait0, t.wait_count, t.plan_task, run, patience);
            pending = !__shfl_sync(~0u, holds, 0);
            if (!pending) /* the bulk engine adds to what others stored, or stores over what they read */
                fence_proxy_all();
        }
        if (!pending && (t.k == 0 || __shfl_sync(~0u, first ? word_seen(smem + Layout::ending) : 0, 0) > i))
            return;
        if (copier.busy() && !copier.step(g, smem, consumer, run) && !pending)
            __nanosleep(200);
    }
}

/* One warp per consumer: stores the boxes it fills, posts when a task's last box is written, and copies. */
__device__ void store_boxes(const weft_cuda_args &g, const weft_cuda_lane &lane, const weft_cuda_lane &copies,
                            uint32_t smem, uint32_t rank, uint32_t consumer)
{
    uint32_t boxes = 0, handed = 0;
    bool first = threadIdx.x % 32 == 0;
    Copier copier(g, copies);
    uint32_t next_word = task_word(g, lane.task0);
    uint64_t run = begin_run(g);
    for (uint32_t i = 0; i < lane.task_count; i++) {
        uint32_t word = next_word;
        const weft_cuda_task t = gemm_fields(word); /* nothing is fetched while a box waits */
        next_word = task_word(g, lane.task0 + i + 1);
        if (t.kind != WEFT_CUDA_GEMM)
            continue;
        await_task(g, t, i, copier, smem, consumer, run);
        if (first) {
            bar_arrive(smem + Layout::granted + 8 * consumer);
            if (t.flags & WEFT_CUDA_BULK) {
                store_task(g, t, smem, rank, consumer, boxes);
                end_task(g, t, smem, consumer, i, lane.task0 + i, handed);
            } else { /* the consumer stores by itself, through the boxes */
                bar_wait(smem + Layout::box_full + 16 * consumer + 8 * (boxes & 1), (boxes >> 1) & 1);
                bar_arrive(smem + Layout::box_free + 16 * consumer + 8 * (boxes & 1));
            }
        }
        boxes += !(t.flags & WEFT_CUDA_BULK) ? 1
                 : t.flags & WEFT_CUDA_D_F32 ? TILE_N / 32
                                             : weft_divide_up(TILE_N, 64);
        __syncwarp();
    }
    while (copier.busy())
        if (!copier.step(g, smem, consumer, run))
            __nanosleep(200);
    bulk_wait_written();
    if (LINK && first)
        hand_over(smem, consumer, handed, 0, NO_MORE);
}

} // namespace

#endif
