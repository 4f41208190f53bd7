/* See epilogue.h. */
#include "run/cuda/epilogue.h"

#include "core/clock.h"
#include "core/dtype.h"
#include "core/round.h"
#include "plan/user_operands.h"
#include "run/cuda/epilogue_device.h"
#include "run/cuda/unmet.h"

#include <stdlib.h>
#include <string.h>

enum { PADDED = 8, BLOCKS_A_SM = 16 };

/* ---- when ----------------------------------------------------------------------------------------- */

bool weft_cuda_epilogue_always(const weft_problem *p)
{
    return p->op < WEFT_OP_ALL_REDUCE &&
           (weft_problem_is_gated(p) || (p->scales && !weft_dtype_is_fp8(p->dtype)));
}

/* Kernels that apply an alpha or a beta take any but 0, with which the sums, or C, do not count. */
bool weft_cuda_epilogue_needed(const weft_plan *plan, const weft_operands *operands,
                               const weft_cuda_values *values)
{
    const weft_problem *p = &plan->part.problem;
    bool scales = p->scales != 0; /* of fp8: its kernels have these */

    if (p->op >= WEFT_OP_ALL_REDUCE)
        return false;
    if (weft_cuda_epilogue_always(p) || values->beta_at)
        return true;
    if (!scales && (operands->row_scale || operands->col_scale || values->alpha_at))
        return true;
    return (values->alpha != p->alpha &&
            (values->alpha == 0 || p->alpha == 0 || (p->alpha == 1 && !scales))) ||
           (values->beta != p->beta && values->beta == 0);
}

/* ---- the product ---------------------------------------------------------------------------------- */

/* A column of D is two of B where it is gated. */
static weft_problem sums_of(const weft_problem *asked)
{
    weft_problem sums = *asked;

    if (weft_problem_is_gated(asked)) {
        sums.n *= 2;
        sums.granule_n = asked->granule_n > 1 ? 2 * asked->granule_n : 2;
    }
    sums.alpha = 1;
    sums.beta = 0;
    sums.bias = 0;
    sums.act = WEFT_ACT_NONE;
    sums.d_dtype = WEFT_F32;
    if (sums.scales != WEFT_SCALE_BLOCK)
        sums.scales = 0;
    return sums;
}

/* The ranks have agreed on the plan whose product it is. What peers cannot reach of its operands is copied as
 * a whole: `reached` of it is 0. */
static weft_status make_product(weft_plan *plan)
{
    weft_plan *product = calloc(1, sizeof(*product));
    weft_status status = WEFT_OK;

    if (!product)
        return weft_group_poison(plan->group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan",
                                 plan->group->rank);
    product->group = plan->group;
    product->session = plan->session;
    product->asked = sums_of(&plan->asked);
    product->kept = plan->kept;
    weft_cuda_plan_of(plan)->product = product;
    if (!weft_cuda_plan_of(plan)->unmet)
        status = weft_cuda_plan_create(product);
    else if (!weft_cuda_unmet_make(product, &status) && status == WEFT_OK)
        status = plan->group->error.status;
    product->reached = 0;
    return status;
}

static void free_product(weft_plan *product)
{
    if (!product)
        return;
    weft_cuda_plan_destroy(product);
    weft_plan_part_free(&product->part);
    free(product);
}

/* Memory for as many sums as the rank with most has, and an event for its runs. */
static weft_status take_memory(weft_plan *plan)
{
    weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    const weft_operand *d = &p->product->part.operands[p->product->operand_of_role[WEFT_ROLE_D]];
    void *memory = NULL;
    char *unmet = NULL;
    weft_status status;

    p->sums_ld = weft_round_up(weft_operand_cols(d, plan->group->size, 0), PADDED);
    p->sums_bytes =
        (size_t)(d->batch * weft_operand_rows(d, plan->group->size, 0) * p->sums_ld) * sizeof(float);
    if (p->unmet) {
        status = weft_cuda_unmet_memory(plan->group, p->sums_bytes, &unmet);
        memory = unmet;
    } else {
        status = weft_cuda_alloc(plan->group, p->sums_bytes, 1024, &memory);
    }
    if (status != WEFT_OK)
        return status;
    weft_cuda_push(g);
    status = weft_cuda_event_take(plan->group, &p->finished);
    weft_cuda_pop(g);
    if (!p->unmet)
        status = weft_cuda_agree(plan->group, WEFT_SYNC_AGREE, status);
    else if (status != WEFT_OK) /* not on all ranks */
        status = weft_group_poison(plan->group, status, "rank %d has no event for a plan: %.400s",
                                   plan->group->rank, plan->group->error.text);
    if (status == WEFT_OK)
        p->sums = memory;
    else if (p->unmet)
        weft_cuda_arena_give(&g->unmet.arena, unmet);
    else
        weft_cuda_give(plan->group, memory);
    return status;
}

void weft_cuda_epilogue_free(weft_plan *plan)
{
    weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    int64_t begun = weft_clock_ns();

    weft_cuda_push(g);
    if (p->finished && p->unmet && !plan->group->freed && weft_group_check(plan->group) == WEFT_OK)
        weft_cuda_pass_event(plan->group, p->finished); /* as long as its runs wait for a peer that is late */
    while (p->finished && g->device->cu->cuEventQuery(p->finished) == CUDA_ERROR_NOT_READY &&
           weft_clock_ns() - begun <= plan->group->progress_ns)
        ;
    if (p->finished)
        weft_cuda_event_give(g, p->finished);
    p->finished = NULL;
    weft_cuda_pop(g);
    free_product(p->product);
    p->product = NULL;
}

weft_status weft_cuda_epilogue_make(weft_plan *plan)
{
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    weft_status status = make_product(plan);

    if (status == WEFT_OK)
        status = take_memory(plan);
    if (status == WEFT_OK) {
        plan->bytes += p->sums_bytes + p->product->bytes;
        return WEFT_OK;
    }
    weft_cuda_epilogue_free(plan);
    return status;
}

/* What the caller brings; there are no tasks. */
static weft_status describe(weft_plan *plan, const weft_problem *problem)
{
    weft_plan_part *part = &plan->part;

    *part = (weft_plan_part){.problem = *problem,
                             .world = plan->group->size,
                             .rank = plan->group->rank,
                             .hash = weft_problem_hash(problem, plan->group->size),
                             .operands = calloc(WEFT_USER_OPERANDS_MAX, sizeof(*part->operands))};
    if (!part->operands)
        return weft_group_poison(plan->group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan",
                                 plan->group->rank);
    part->operand_count = (uint32_t)weft_user_operands(problem, part->world, part->operands);
    weft_given_note(plan);
    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++)
        if (plan->operand_of_role[role] >= 0)
            plan->used |= 1u << role;
    return WEFT_OK;
}

/* `unmet`: each rank by itself. */
static weft_status create(weft_plan *plan, bool unmet)
{
    weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_cuda_plan *p = calloc(1, sizeof(*p));
    weft_problem resolved;
    weft_status status;

    if (!p)
        return weft_group_poison(plan->group, WEFT_ERR_MEMORY, "rank %d has no memory for a plan",
                                 plan->group->rank);
    plan->lowered = p;
    p->unmet = unmet;
    status = weft_problem_resolve(&plan->asked, plan->group->size, &resolved, &plan->group->error);
    if (status == WEFT_OK)
        status = weft_cuda_epilogue_make(plan);
    if (status != WEFT_OK)
        return status;
    resolved.schedule = p->product->part.problem.schedule;
    resolved.tuning = p->product->part.problem.tuning;
    resolved.b_form = WEFT_B_PLAIN;
    p->block = (char *)p->sums;
    p->number = unmet ? 0 : ++g->plans_made;
    p->next = g->plans;
    g->plans = p;
    return describe(plan, &resolved);
}

weft_status weft_cuda_epilogue_create(weft_plan *plan)
{
    return create(plan, false);
}

bool weft_cuda_epilogue_alone(weft_plan *plan, weft_status *status)
{
    if (create(plan, true) == WEFT_OK)
        return true;
    *status = weft_group_check(plan->group);
    return false;
}

/* ---- running -------------------------------------------------------------------------------------- */

/* What the kernel may read and write four elements of at a time. */
static bool is_wide(const void *at, int64_t ld, int64_t stride, size_t size)
{
    return (uintptr_t)at % (WEFT_CUDA_EPILOGUE_WIDTH * size) == 0 && ld % WEFT_CUDA_EPILOGUE_WIDTH == 0 &&
           stride % WEFT_CUDA_EPILOGUE_WIDTH == 0;
}

static weft_cuda_epilogue bind(const weft_plan *plan, const weft_operands *operands,
                               const weft_cuda_values *values)
{
    const weft_problem *p = &plan->part.problem;
    const weft_cuda_plan *own = weft_cuda_plan_of(plan);
    int c_at = plan->operand_of_role[WEFT_ROLE_C], bias_at = plan->operand_of_role[WEFT_ROLE_BIAS];
    weft_given d = weft_given_of(plan, plan->operand_of_role[WEFT_ROLE_D], operands), c = {0};
    bool gated = weft_problem_is_gated(p), fp8 = weft_dtype_is_fp8(p->d_dtype);
    size_t size = weft_dtype_size(p->d_dtype);

    if (c_at >= 0)
        c = weft_given_of(plan, c_at, operands);
    return (weft_cuda_epilogue){
        .batch = d.batch,
        .rows = d.rows,
        .cols = d.cols,
        .sums = own->sums,
        .sums_ld = own->sums_ld,
        .sums_stride = d.rows * own->sums_ld,
        .d = d.data,
        .d_ld = d.ld,
        .d_stride = d.stride,
        .c = c.data,
        .c_ld = c.ld,
        .c_stride = c.stride,
        .bias = bias_at >= 0 ? operands->bias : NULL,
        .alpha_at = values->alpha_at,
        .beta_at = values->beta_at,
        .alpha = values->alpha,
        .beta = values->beta,
        .row_scale = operands->row_scale,
        .col_scale = operands->col_scale,
        .act = (int32_t)(gated ? p->act - WEFT_ACT_RELU_GATED + WEFT_ACT_RELU : p->act),
        .gated = gated,
        .dtype = (int32_t)p->d_dtype,
        .wide = is_wide(d.data, d.ld, d.stride, size) &&
                (!c.data || (!fp8 && is_wide(c.data, c.ld, c.stride, size))),
    };
}

static weft_status launch(const weft_plan *plan, weft_cuda_epilogue *epilogue, CUstream stream)
{
    const weft_cuda_device *device = weft_cuda_of(plan->group)->device;
    const weft_cuda_driver *cu = device->cu;
    weft_error_text *error = &plan->group->error;
    int64_t across = weft_divide_up(epilogue->cols, WEFT_CUDA_EPILOGUE_WIDTH), wide = 1, down, most;
    void *parameters[] = {epilogue};
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = {.hStream = stream, .blockDimZ = 1, .attrs = &early};

    if (epilogue->rows == 0 || epilogue->cols == 0)
        return WEFT_OK;
    config.numAttrs = device->hopper && weft_cuda_of(plan->group)->crews >= device->crews;
    while (wide < across && wide < WEFT_CUDA_EPILOGUE_THREADS)
        wide *= 2;
    config.blockDimX = (unsigned)wide;
    config.blockDimY = (unsigned)(WEFT_CUDA_EPILOGUE_THREADS / wide);
    config.gridDimX = (unsigned)weft_divide_up(across, wide);
    config.gridDimZ = (unsigned)(epilogue->batch < BLOCKS_A_SM ? epilogue->batch : BLOCKS_A_SM);
    down = weft_divide_up(epilogue->rows, config.blockDimY);
    most =
        weft_divide_up((int64_t)device->sm_count * BLOCKS_A_SM, (int64_t)config.gridDimX * config.gridDimZ);
    config.gridDimY = (unsigned)weft_min(down, most);
    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, device->epilogue, parameters, NULL));
    return WEFT_OK;
}

/* The caller's operands; before the first run of a plan that ranks made together they agree that all have
 * right ones, as in a meeting. */
static weft_status check(weft_plan *plan, const weft_operands *operands)
{
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    weft_status status = WEFT_OK;

    if (memcmp(&p->checked, operands, sizeof(*operands)) != 0)
        status = weft_cuda_check_operands(plan, operands);
    if (!p->product_ran && !p->unmet)
        status = weft_cuda_agree(plan->group, WEFT_SYNC_AGREE, status);
    if (status == WEFT_OK)
        p->checked = *operands;
    return status;
}

/* So that nothing is freed under it: a graph may run it at any time. */
static weft_status mark(weft_plan *plan, CUstream stream)
{
    const weft_cuda_driver *cu = weft_cuda_of(plan->group)->device->cu;
    weft_error_text *error = &plan->group->error;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;

    WEFT_CUDA_TRY(cuStreamIsCapturing(stream, &capture));
    if (capture == CU_STREAM_CAPTURE_STATUS_NONE)
        WEFT_CUDA_TRY(cuEventRecord(weft_cuda_plan_of(plan)->finished, stream));
    else
        plan->captured = true;
    return WEFT_OK;
}

weft_status weft_cuda_epilogue_run(weft_plan *plan, const weft_operands *operands,
                                   const weft_cuda_values *values, void *given)
{
    weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_cuda_plan *p = weft_cuda_plan_of(plan);
    CUstream stream = weft_cuda_stream(g, given);
    weft_operands of_sums = {.size = sizeof(of_sums),
                             .a = operands->a,
                             .b = operands->b,
                             .lda = operands->lda,
                             .ldb = operands->ldb,
                             .stride_a = operands->stride_a,
                             .stride_b = operands->stride_b,
                             .a_scale = operands->a_scale,
                             .b_scale = operands->b_scale};
    weft_cuda_epilogue epilogue;
    weft_status status = WEFT_OK;

    if (!p->product)
        status = weft_cuda_epilogue_make(plan);
    if (status == WEFT_OK)
        status = check(plan, operands);
    of_sums.d = p->sums;
    of_sums.ldd = p->sums_ld;
    if (status == WEFT_OK)
        status = weft_cuda_plan_run(p->product, &of_sums, given);
    if (status != WEFT_OK)
        return status;
    p->product_ran = true;
    epilogue = bind(plan, operands, values);
    weft_cuda_push(g);
    status = launch(plan, &epilogue, stream);
    if (status == WEFT_OK)
        status = mark(plan, stream);
    weft_cuda_pop(g);
    return status;
}
