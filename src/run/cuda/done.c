/* See done.h. */
#include "run/cuda/done.h"

#include <stdlib.h>

/* 1 + the lane's last task that touches the rank. */
static uint32_t last_touch(const weft_plan_part *part, uint32_t lane, int rank)
{
    for (uint32_t i = part->lanes[lane].task_count; i-- > 0;) {
        const weft_task *task = &part->tasks[part->lanes[lane].task0 + i];
        for (uint32_t r = 0; r < task->region_count; r++)
            if (weft_task_regions(part, task)[r].rank == rank)
                return part->lanes[lane].task0 + i + 1;
    }
    return 0;
}

uint32_t weft_cuda_done_lanes(const weft_plan_part *part, int rank)
{
    uint32_t lanes = 0;
    for (uint32_t lane = 0; lane < part->lane_count; lane++)
        lanes += last_touch(part, lane, rank) != 0;
    return lanes;
}

/* A task that moves nothing, touches nobody, and says DONE: that is what a join is. */
static bool is_join(const weft_plan_part *part, const weft_task *task)
{
    const weft_region *regions = weft_task_regions(part, task);
    uint32_t done = WEFT_SIGNAL_DONE((uint32_t)part->world, (uint32_t)part->rank);

    if (task->kind != WEFT_TASK_COPY || regions[0].rows || regions[0].rank != part->rank ||
        weft_copy_source(part, task)->rank != part->rank || !task->wait_count)
        return false;
    for (uint32_t i = 0; i < task->post_count; i++)
        if (part->posts[task->post0 + i].signal == done)
            return true;
    return false;
}

bool weft_cuda_done_find(const weft_plan_part *part, weft_cuda_done *done)
{
    size_t world = (size_t)part->world;
    bool several = false;
    *done = (weft_cuda_done){.join = UINT32_MAX};
    done->last = calloc(part->lane_count * world + 1, sizeof(*done->last));
    done->lanes = calloc(world, sizeof(*done->lanes));
    if (!done->last || !done->lanes)
        return false;
    for (uint32_t lane = 0; lane < part->lane_count; lane++)
        for (int rank = 0; rank < part->world; rank++) {
            uint32_t last = rank == part->rank ? 0 : last_touch(part, lane, rank);
            done->last[lane * world + (size_t)rank] = last;
            done->lanes[rank] += last != 0;
            several |= done->lanes[rank] > 1;
        }
    for (uint32_t i = 0; several && i < part->task_count && done->join == UINT32_MAX; i++)
        if (is_join(part, &part->tasks[i])) {
            done->join = i;
            done->join_signal = part->waits[part->tasks[i].wait0].signal;
        }
    return true;
}

void weft_cuda_done_free(weft_cuda_done *done)
{
    free(done->last);
    free(done->lanes);
    *done = (weft_cuda_done){0};
}
