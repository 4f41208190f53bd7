/* Parts without their product. */
#include "run/cuda/leftover.h"

#include <stdlib.h>
#include <string.h>

void weft_cuda_leftover_free(weft_cuda_leftover *rest)
{
    free(rest->tasks);
    free(rest->regions);
    free(rest->waits);
    free(rest->posts);
}

/* Whether a signal only says that a rank's product is there: the product's own task posts it, or the task
 * that tells the peers, which moves nothing. */
static bool tells_of_product(const weft_plan_part *part, uint32_t product, uint32_t signal)
{
    if (signal < WEFT_SIGNAL_DONE((uint32_t)part->world, (uint32_t)part->world))
        return false;
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];
        bool empty = task->kind == WEFT_TASK_COPY && weft_task_regions(part, task)->rows == 0;

        for (uint32_t j = 0; j < task->post_count && (i == product || empty); j++)
            if (part->posts[task->post0 + j].signal == signal &&
                (i == product || part->posts[task->post0 + j].rank != part->rank))
                return true;
    }
    return false;
}

weft_status weft_cuda_leftover_make(const weft_plan_part *part, uint32_t product, weft_cuda_leftover *rest,
                                    weft_error_text *error)
{
    bool sums = part->problem.op == WEFT_OP_GEMM_RS || part->problem.op == WEFT_OP_GEMM_AR;
    weft_task *task;

    *rest = (weft_cuda_leftover){.part = *part,
                                 .tasks = malloc((part->task_count + 1) * sizeof(*rest->tasks)),
                                 .regions = calloc(part->region_count + 2, sizeof(*rest->regions)),
                                 .waits = malloc((part->wait_count + 1) * sizeof(*rest->waits)),
                                 .posts = malloc((part->post_count + 1) * sizeof(*rest->posts))};
    if (!rest->tasks || !rest->regions || !rest->waits || !rest->posts)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u tasks", part->task_count);
    memcpy(rest->tasks, part->tasks, part->task_count * sizeof(*rest->tasks));
    memcpy(rest->regions, part->regions, part->region_count * sizeof(*rest->regions));
    memcpy(rest->waits, part->waits, part->wait_count * sizeof(*rest->waits));
    memcpy(rest->posts, part->posts, part->post_count * sizeof(*rest->posts));
    rest->regions[part->region_count].rank = rest->regions[part->region_count + 1].rank = part->rank;
    for (uint32_t i = 0; i < part->task_count && sums; i++) {
        uint16_t waits = 0, posts = 0;

        task = &rest->tasks[i];
        for (uint32_t j = 0; j < task->wait_count; j++)
            if (!tells_of_product(part, product, part->waits[task->wait0 + j].signal))
                rest->waits[task->wait0 + waits++] = part->waits[task->wait0 + j];
        for (uint32_t j = 0; j < task->post_count; j++)
            if (!tells_of_product(part, product, part->posts[task->post0 + j].signal))
                rest->posts[task->post0 + posts++] = part->posts[task->post0 + j];
        task->wait_count = waits;
        task->post_count = posts;
    }
    task = &rest->tasks[product];
    task->kind = WEFT_TASK_COPY;
    task->flags = 0;
    task->destinations = 1;
    task->region0 = part->region_count;
    task->region_count = 2;
    rest->part.tasks = rest->tasks;
    rest->part.regions = rest->regions;
    rest->part.waits = rest->waits;
    rest->part.posts = rest->posts;
    rest->part.region_count += 2;
    return WEFT_OK;
}
