/* What a run brings: its operands, whether the GPU can use them, and its values. See plan.h. */
#include "run/cuda/plan.h"

#include "run/given.h"
#include "run/scales.h"

#include <stdio.h>

/* Where the allocation ends that an address is in, of those that cudaMalloc makes: what lies behind it is
 * another one's. 0 for other memory: a tensor may span several mappings. */
static CUdeviceptr allocation_end(const weft_cuda_driver *cu, CUdeviceptr at)
{
    unsigned whole = 0;
    CUdeviceptr begin = 0;
    size_t bytes = 0;

    if (cu->cuPointerGetAttribute(&whole, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at) !=
            CUDA_SUCCESS ||
        !whole ||
        cu->cuPointerGetAttribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at) != CUDA_SUCCESS ||
        cu->cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at) != CUDA_SUCCESS)
        return 0;
    return begin + bytes;
}

/* Memory of another GPU is refused: nothing says that this one may touch it. */
weft_status weft_cuda_check_memory(weft_group *group, const char *what, const void *pointer, size_t bytes)
{
    const weft_cuda_device *device = weft_cuda_of(group)->device;
    const weft_cuda_driver *cu = device->cu;
    CUdeviceptr first = (CUdeviceptr)(uintptr_t)pointer, last = first + bytes - 1;
    CUdeviceptr end;
    unsigned type = 0;
    int owner = device->device;

    if (bytes == 0)
        return WEFT_OK;
    if (cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, first) != CUDA_SUCCESS)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "%s is at %p, which is not memory that a GPU can use", what, pointer);
    end = allocation_end(cu, first);
    if ((end && last >= end) ||
        cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, last) != CUDA_SUCCESS)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "%s begins at %p and has %zu bytes, which reach beyond the memory there", what,
                              pointer, bytes);
    if (type == CU_MEMORYTYPE_DEVICE &&
        cu->cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, first) == CUDA_SUCCESS &&
        owner != device->device)
        return weft_error_set(&group->error, WEFT_ERR_ARGUMENT,
                              "%s is at %p, which is memory of GPU %d; rank %d runs on GPU %d", what, pointer,
                              owner, group->rank, device->device);
    return WEFT_OK;
}

static weft_status check_place(const weft_plan *plan, int operand, const weft_given *given)
{
    const weft_operand *o = &plan->part.operands[operand];
    size_t bytes = weft_given_span(plan, operand, given);
    char what[64];

    if (bytes == 0 || !weft_given_needed(plan, o->role))
        return WEFT_OK;
    if (plan->part.world > 1 && plan->touched & 1u << o->role &&
        weft_cuda_contains(plan->group, given->data, bytes))
        return WEFT_OK;
    snprintf(what, sizeof(what), "operand %s of %s", o->name, weft_op_name(plan->part.problem.op));
    return weft_cuda_check_memory(plan->group, what, given->data, bytes);
}

unsigned weft_cuda_memory_type(const weft_cuda_group *g, const void *pointer)
{
    unsigned type = 0;
    bool known;

    weft_cuda_push(g);
    known = g->device->cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                 (CUdeviceptr)(uintptr_t)pointer) == CUDA_SUCCESS;
    weft_cuda_pop(g);
    return known ? type : 0;
}

bool weft_cuda_reads(const weft_cuda_group *g, const void *pointer)
{
    return weft_cuda_memory_type(g, pointer) == CU_MEMORYTYPE_DEVICE;
}

weft_cuda_values weft_cuda_values_of(const weft_plan *plan, const weft_operands *operands)
{
    const weft_problem *p = &plan->part.problem;
    const weft_cuda_group *g = weft_cuda_of(plan->group);
    weft_cuda_values values = {.alpha = p->alpha, .beta = p->beta};

    if (operands->alpha && weft_cuda_reads(g, operands->alpha))
        values.alpha_at = operands->alpha;
    else if (operands->alpha)
        values.alpha = *operands->alpha;
    if (operands->beta && weft_cuda_reads(g, operands->beta))
        values.beta_at = operands->beta;
    else if (operands->beta)
        values.beta = *operands->beta;
    return values;
}

static weft_status check_scales(const weft_plan *plan, const weft_operands *operands)
{
    const weft_plan_part *part = &plan->part;
    int d = plan->operand_of_role[WEFT_ROLE_D];
    int64_t width = weft_problem_is_gated(&part->problem) ? 2 : 1;
    weft_cuda_values values = weft_cuda_values_of(plan, operands);
    const struct {
        const char *name;
        const float *at;
        int64_t count;
    } arrays[] = {
        {"alpha", values.alpha_at, 1},
        {"beta", values.beta_at, 1},
        {"row_scale", operands->row_scale,
         d < 0 ? 0 : weft_operand_rows(&part->operands[d], part->world, part->rank)},
        {"col_scale", operands->col_scale,
         d < 0 ? 0 : weft_operand_cols(&part->operands[d], part->world, part->rank) * width},
        {"a_scale", operands->a_scale, weft_scales_of_a(part).count},
        {"b_scale", operands->b_scale, weft_scales_of_b(part).count},
    };
    weft_status status = WEFT_OK;

    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]) && status == WEFT_OK; i++)
        if (arrays[i].at && arrays[i].count > INT32_MAX) /* as the walkers count them */
            status =
                weft_error_set(&plan->group->error, WEFT_ERR_UNSUPPORTED, "%s has %lld factors: too many",
                               arrays[i].name, (long long)arrays[i].count);
        else if (arrays[i].at)
            status = weft_cuda_check_memory(plan->group, arrays[i].name, arrays[i].at,
                                            (size_t)arrays[i].count * sizeof(float));
    return status;
}

weft_status weft_cuda_check_operands(const weft_plan *plan, const weft_operands *operands)
{
    for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++) {
        int operand = plan->operand_of_role[role];
        weft_given given;
        weft_status status;

        if (operand < 0)
            continue;
        given = weft_given_of(plan, operand, operands);
        status = weft_given_check(plan, operand, &given);
        if (status == WEFT_OK)
            status = check_place(plan, operand, &given);
        if (status != WEFT_OK)
            return status;
    }
    return plan->part.problem.op < WEFT_OP_ALL_REDUCE ? check_scales(plan, operands) : WEFT_OK;
}
