/* Operands that go through symmetric memory of the plan. See weft_cuda_stage in plan.h. */
#include "run/cuda/plan.h"

#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/halves.h"
#include "run/given.h"

#include <stdlib.h>

enum { HELD_LEAST = 8 << 20 };

typedef struct weft_cuda_staging {
    struct weft_cuda_staging *next;
    char *memory;
    size_t bytes;
    int plans;
} weft_cuda_staging;

static bool is_collective(const weft_plan *plan)
{
    return plan->part.problem.op >= WEFT_OP_ALL_REDUCE;
}

/* What the collective beside a product moves: it knows no gaps between rows. */
static bool is_halved(const weft_plan *plan, int role)
{
    return weft_cuda_plan_of(plan)->collective.world && role == weft_cuda_halves_role(&plan->part.problem);
}

/* Whether it does so for this rank alone, which then stages it in memory of its own: no peer need know. */
static bool is_alone(const weft_plan *plan, int role)
{
    return is_halved(plan, role) && !(plan->touched & 1u << role);
}

bool weft_cuda_is_staged(const weft_plan *plan, int role, const weft_operands *operands)
{
    int operand = plan->operand_of_role[role];
    weft_given given, recv;
    size_t bytes;

    if (operand < 0 || plan->part.world == 1)
        return false;
    given = weft_given_of(plan, operand, operands);
    bytes = weft_given_span(plan, operand, &given);
    if (is_collective(plan)) {
        recv = weft_given_of(plan, plan->operand_of_role[WEFT_ROLE_RECV], operands);
        if (plan->part.problem.op == WEFT_OP_ALL_TO_ALL &&
            plan->part.problem.schedule == WEFT_SCHEDULE_PACKETS && given.data == recv.data)
            return false; /* a thread has sent what it overwrites */
    }
    if (weft_cuda_plan_of(plan)->untold && plan->touched & 1u << role && bytes &&
        weft_given_needed(plan, (weft_operand_role)role))
        return true;
    if (is_halved(plan, role) && given.rows > 1 && given.ld != given.cols)
        return true;
    return weft_given_must_move(plan, operand, &given, operands,
                                weft_cuda_contains(plan->group, given.data, bytes));
}

/* How an operand lies in staging memory: on every rank as on the one that has most of it, lines of a product
 * as the copy engine wants them. */
static weft_given staged_form(const weft_plan *plan, int operand)
{
    const weft_operand *o = &plan->part.operands[operand];
    weft_operands none = {.size = sizeof(none)};
    weft_given form = weft_given_of(plan, operand, &none);
    int64_t rows, cols;

    if (is_collective(plan)) /* as large on every rank */
        return form;
    rows = weft_operand_rows(o, plan->part.world, 0);
    cols = weft_operand_cols(o, plan->part.world, 0);
    form.rows = o->transposed ? cols : rows;
    form.cols = o->transposed ? rows : cols;
    form.ld = (int64_t)weft_round_up_bytes((size_t)form.cols, 8); /* 16 bytes of 16-bit elements */
    form.stride = form.rows * form.ld;
    return form;
}

weft_given weft_cuda_staged(const weft_plan *plan, int role)
{
    weft_given form = staged_form(plan, plan->operand_of_role[role]);

    if (is_alone(plan, role))
        form.data = weft_cuda_plan_of(plan)->alone ? weft_cuda_plan_of(plan)->alone->memory : NULL;
    else
        form.data = weft_cuda_plan_of(plan)->staging ? weft_cuda_staging_at(plan, role) : NULL;
    return form;
}

/* In symmetric memory: what peers touch, and a collective's SEND, which may have to move for RECV's sake. */
static bool may_be_staged(const weft_plan *plan, int role)
{
    return plan->operand_of_role[role] >= 0 && (is_collective(plan) || plan->touched & 1u << role);
}

char *weft_cuda_staging_at(const weft_plan *plan, int role)
{
    const weft_cuda_plan *p = weft_cuda_plan_of(plan);

    return p->staging->memory + p->staging_at[role];
}

/* Where each role's begins; how much it is in all. */
static size_t lay_out(const weft_plan *plan, size_t begin[])
{
    size_t at = 0;

    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++) {
        weft_given form;

        if (!may_be_staged(plan, role))
            continue;
        form = staged_form(plan, plan->operand_of_role[role]);
        begin[role] = at;
        at += weft_round_up_bytes(weft_given_span(plan, plan->operand_of_role[role], &form), 1024);
    }
    return at;
}

size_t weft_cuda_staging_bytes(const weft_plan *plan)
{
    size_t begin[WEFT_ROLE_COUNT];

    return lay_out(plan, begin);
}

/* Of at least so many bytes. */
static weft_status add(weft_group *group, size_t bytes)
{
    weft_cuda_group *g = weft_cuda_of(group);
    weft_cuda_staging *staging;
    void *memory = NULL;
    weft_status status;

    if (g->staging && g->staging->bytes >= bytes)
        return WEFT_OK;
    status = weft_cuda_alloc(group, bytes, 1024, &memory);
    if (status != WEFT_OK)
        return status;
    staging = calloc(1, sizeof(*staging));
    if (!staging)
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan", group->rank);
    *staging = (weft_cuda_staging){g->staging, memory, bytes, 0};
    g->staging = staging;
    return WEFT_OK;
}

weft_status weft_cuda_staging_hold(weft_group *group, size_t bytes)
{
    weft_cuda_group *g = weft_cuda_of(group);
    size_t most = HELD_LEAST;
    weft_status status;

    if (g->unmet.staging && g->unmet.staging->bytes >= bytes)
        return WEFT_OK;
    while (most < bytes) /* plans that grow one after another are to share it, too */
        most *= 2;
    status = add(group, most);
    if (status != WEFT_OK)
        return status;
    if (g->unmet.staging)
        weft_cuda_staging_leave(group, g->unmet.staging);
    g->unmet.staging = g->staging;
    g->staging->plans++;
    return WEFT_OK;
}

weft_status weft_cuda_staging_take(weft_plan *plan)
{
    weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    weft_status status = add(plan->group, lay_out(plan, p->staging_at));

    if (status != WEFT_OK)
        return status;
    g->staging->plans++;
    p->staging = g->staging;
    return WEFT_OK;
}

static void take_out(weft_cuda_staging **list, const weft_cuda_staging *staging)
{
    while (*list != staging)
        list = &(*list)->next;
    *list = staging->next;
}

void weft_cuda_staging_leave(weft_group *group, weft_cuda_staging *staging)
{
    if (--staging->plans > 0)
        return;
    take_out(&weft_cuda_of(group)->staging, staging);
    weft_cuda_give(group, staging->memory);
    free(staging);
}

weft_status weft_cuda_alone_take(const weft_plan *plan, const weft_operands *operands)
{
    weft_cuda_group *g = weft_cuda_of(plan->group);
    const weft_cuda_driver *cu = g->device->cu;
    weft_error_text *error = &plan->group->error;
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    int role = weft_cuda_halves_role(&plan->part.problem), operand = plan->operand_of_role[role];
    weft_given form;
    size_t bytes = 1, needed;
    CUdeviceptr memory;
    weft_cuda_staging *alone;

    if (p->alone || !is_alone(plan, role) || !weft_cuda_is_staged(plan, role, operands))
        return WEFT_OK;
    form = staged_form(plan, operand);
    needed = weft_given_span(plan, operand, &form);
    if (!g->alone || g->alone->bytes < needed) {
        while (bytes < needed) /* plans that grow one after another are to share it, too */
            bytes *= 2;
        alone = calloc(1, sizeof(*alone));
        if (!alone)
            return weft_error_set(error, WEFT_ERR_MEMORY, "out of memory for a plan");
        if (cu->cuMemAllocAsync(&memory, bytes, g->device->uploads) != CUDA_SUCCESS) {
            free(alone);
            return weft_error_set(error, WEFT_ERR_MEMORY, "the GPU has no %zu bytes to stage an operand in",
                                  bytes);
        }
        *alone = (weft_cuda_staging){g->alone, (char *)(uintptr_t)memory, bytes, 0};
        g->alone = alone;
        WEFT_CUDA_TRY(cuStreamSynchronize(g->device->uploads));
    }
    g->alone->plans++;
    p->alone = g->alone;
    return WEFT_OK;
}

void weft_cuda_alone_leave(weft_cuda_group *g, weft_cuda_staging *alone)
{
    if (--alone->plans > 0)
        return;
    take_out(&g->alone, alone);
    g->device->cu->cuMemFreeAsync((CUdeviceptr)(uintptr_t)alone->memory, g->device->uploads);
    free(alone);
}

static void free_list(weft_cuda_staging *staging)
{
    while (staging) {
        weft_cuda_staging *next = staging->next;

        free(staging);
        staging = next;
    }
}

void weft_cuda_staging_free(weft_cuda_group *g)
{
    free_list(g->staging);
    free_list(g->alone);
    g->staging = g->alone = g->unmet.staging = NULL;
}

void weft_cuda_stage_bind(const weft_plan *plan, const weft_operands *operands, weft_cuda_stages *stages)
{
    const weft_cuda_plan *p = weft_cuda_plan_of(plan);

    *stages = (weft_cuda_stages){0};
    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT && (p->staging || p->alone); role++) {
        int operand = plan->operand_of_role[role];
        weft_given user, staged;
        int64_t element;

        if (!weft_cuda_is_staged(plan, role, operands))
            continue;
        user = weft_given_of(plan, operand, operands);
        staged = weft_cuda_staged(plan, role);
        element = (int64_t)weft_dtype_size(plan->part.operands[operand].dtype);
        stages->of[stages->count++] = (weft_cuda_stage){
            .user = user.data,
            .staged = staged.data,
            .back = role == WEFT_ROLE_D || role == WEFT_ROLE_RECV,
            .line_bytes = (size_t)(user.cols * element),
            .lines = (size_t)user.rows,
            .batch = (size_t)user.batch,
            .user_pitch = (size_t)(user.ld * element),
            .staged_pitch = (size_t)(staged.ld * element),
            .user_stride = (size_t)(user.stride * element),
            .staged_stride = (size_t)(staged.stride * element),
        };
    }
}

/* One matrix of the batch: in one piece where neither side has gaps. */
static weft_status copy(const weft_cuda_driver *cu, const weft_cuda_stage *s, size_t index, CUstream stream,
                        weft_error_text *error)
{
    CUdeviceptr user = (CUdeviceptr)(uintptr_t)s->user + index * s->user_stride,
                staged = (CUdeviceptr)(uintptr_t)s->staged + index * s->staged_stride;
    CUDA_MEMCPY2D lines = {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = s->back ? staged : user,
        .srcPitch = s->back ? s->staged_pitch : s->user_pitch,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = s->back ? user : staged,
        .dstPitch = s->back ? s->user_pitch : s->staged_pitch,
        .WidthInBytes = s->line_bytes,
        .Height = s->lines,
    };

    if (s->lines == 1 || (s->user_pitch == s->line_bytes && s->staged_pitch == s->line_bytes))
        WEFT_CUDA_TRY(cuMemcpyAsync(lines.dstDevice, lines.srcDevice, s->line_bytes * s->lines, stream));
    else
        WEFT_CUDA_TRY(cuMemcpy2DAsync(&lines, stream));
    return WEFT_OK;
}

weft_status weft_cuda_stage_run(const weft_plan *plan, const weft_cuda_stages *stages, bool back,
                                CUstream stream)
{
    const weft_cuda_driver *cu = weft_cuda_of(plan->group)->device->cu;
    weft_status status = WEFT_OK;

    for (int i = 0; i < stages->count; i++)
        for (size_t index = 0; stages->of[i].back == back && index < stages->of[i].batch; index++)
            if (status == WEFT_OK)
                status = copy(cu, &stages->of[i], index, stream, &plan->group->error);
    return status;
}
