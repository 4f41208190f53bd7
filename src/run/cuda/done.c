/* See done.h. */
#include "run/cuda/done.h"

#include <stdlib.h>

/* 1 + the lane's last task that touches the rank. */
static uint32_t last_touch(const weft_plan_part *part, uint32_t lane, int rank)
{
    for (uint32_t i = part->lanes[lane].task_count; i-- > 0;) {
        const weft_task *task = &part->tasks[part->lanes[lane].task0 + i];
        for (uint32_t r = 0; r < task->region_count; r++)
            if (part->regions[task->region0 + r].rank == rank)
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

bool weft_cuda_done_find(const weft_plan_part *part, weft_cuda_done *done)
{
    size_t world = (size_t)part->world;
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
        }
    /* the join is the only task without regions' rows that says DONE for several lanes: the last before EXIT
     */
    for (int rank = 0; rank < part->world; rank++)
        if (done->lanes[rank] > 1 && done->join == UINT32_MAX) {
            done->join = part->lanes[0].task0 + part->lanes[0].task_count - 2;
            done->join_signal = part->waits[part->tasks[done->join].wait0].signal;
        }
    return true;
}

void weft_cuda_done_free(weft_cuda_done *done)
{
    free(done->last);
    free(done->lanes);
    *done = (weft_cuda_done){0};
}
