/* See repitch.h. */
#include "run/cuda/repitch.h"

#include "core/dtype.h"
#include "core/round.h"

enum { THREADS = 256, BLOCKS_A_SM = 8, VECTOR = 16 /* bytes */ };

/* Whether the rank multiplies with its own instance of an operand. */
static bool multiplies(const weft_plan_part *part, uint32_t operand)
{
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];
        const weft_region *a, *b;

        if (task->kind != WEFT_TASK_GEMM)
            continue;
        a = weft_product_a(part, task);
        b = weft_product_b(part, task);
        if ((a->operand == operand && a->rank == part->rank) ||
            (b->operand == operand && b->rank == part->rank))
            return true;
    }
    return false;
}

/* Whether lines of memory go along k. */
static bool is_along_k(const weft_operand *o)
{
    return o->role == WEFT_ROLE_A ? !o->transposed : o->transposed;
}

/* Of fp8: whether both are along k once this rank's own are turned. */
static bool can_turn(const weft_plan_part *part)
{
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];
        const weft_region *both[2];

        if (task->kind != WEFT_TASK_GEMM)
            continue;
        both[0] = weft_product_a(part, task);
        both[1] = weft_product_b(part, task);
        for (int side = 0; side < 2; side++) {
            const weft_operand *o = &part->operands[both[side]->operand];
            bool along_k = side ? o->transposed : !o->transposed;

            if (!along_k && (o->place != WEFT_PLACE_USER || both[side]->rank != part->rank))
                return false;
        }
    }
    return true;
}

/* How operands are copied: `whole` as of weft_cuda_repitched_make; fp8 only to kernels that take it then. */
typedef struct copying {
    bool whole, fp8, turns;
} copying;

static copying copying_of(const weft_plan_part *part, bool whole, bool turns)
{
    bool along_k = !part->problem.transa && part->problem.transb;

    turns = turns && whole && weft_dtype_is_fp8(part->problem.dtype) && !along_k && can_turn(part);
    return (copying){whole, whole && (along_k || turns), turns};
}

/* The copy that an operand needs; false when it is aligned, or nothing. */
static bool copy_of(const weft_plan_part *part, uint32_t i, const weft_cuda_place *place, const copying *how,
                    weft_cuda_repitch *copy)
{
    const weft_operand *o = &part->operands[i];
    int64_t rows = weft_operand_rows(o, part->world, part->rank),
            cols = weft_operand_cols(o, part->world, part->rank), size = (int64_t)weft_dtype_size(o->dtype);
    bool fp8 = weft_dtype_is_fp8(o->dtype), along_k = is_along_k(o), turned = how->turns && fp8 && !along_k,
         lines_are_cols = o->transposed != turned;

    *copy = (weft_cuda_repitch){.from = place->base,
                                .lines = lines_are_cols ? cols : rows,
                                .length = size * (lines_are_cols ? rows : cols),
                                .from_ld = size * place->ld,
                                .batch = o->batch,
                                .turned = turned};
    copy->from_stride =
        place->stride ? size * place->stride : (turned ? copy->length : copy->lines) * copy->from_ld;
    copy->to_ld = weft_round_up(copy->length, VECTOR);
    return o->place == WEFT_PLACE_USER && (size == 2 || (fp8 && how->fp8)) && copy->lines > 0 &&
           copy->length > 0 && copy->batch > 0 &&
           (turned || (uintptr_t)place->base % VECTOR || copy->from_ld % VECTOR ||
            (how->whole && along_k && copy->length % VECTOR) ||
            (o->batch > 1 && copy->from_stride % VECTOR)) &&
           multiplies(part, i);
}

weft_status weft_cuda_repitched_make(weft_cuda_device *device, const weft_plan_part *part, bool whole,
                                     weft_cuda_place *places, weft_operand *turned, weft_cuda_repitched *made,
                                     weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    copying how = copying_of(part, whole, turned != NULL);
    weft_cuda_repitched found = {0};
    uint32_t operands[WEFT_CUDA_REPITCHED_MAX];
    int64_t bytes = 0;

    for (uint32_t i = 0; i < part->operand_count && found.count < WEFT_CUDA_REPITCHED_MAX; i++) {
        weft_cuda_repitch *copy = &found.copies[found.count];

        if (!copy_of(part, i, &places[i * (uint32_t)part->world + (uint32_t)part->rank], &how, copy))
            continue;
        operands[found.count++] = i;
        bytes += weft_round_up(copy->batch * copy->lines * copy->to_ld, 1024);
    }
    if (found.count) {
        found.bytes = (size_t)bytes;
        WEFT_CUDA_TRY(cuMemAllocAsync(&found.memory, found.bytes, device->uploads));
        WEFT_CUDA_TRY(cuStreamSynchronize(device->uploads));
    }
    bytes = 0;
    for (int i = 0; i < found.count; i++) {
        weft_cuda_repitch *copy = &found.copies[i];
        int64_t size = (int64_t)weft_dtype_size(part->operands[operands[i]].dtype);

        copy->to = (char *)(uintptr_t)found.memory + bytes;
        bytes += weft_round_up(copy->batch * copy->lines * copy->to_ld, 1024);
        places[operands[i] * (uint32_t)part->world + (uint32_t)part->rank] =
            (weft_cuda_place){copy->to, copy->to_ld / size, 0, true};
        if (copy->turned)
            turned[operands[i]].transposed = !turned[operands[i]].transposed;
    }
    *made = found;
    return WEFT_OK;
}

void weft_cuda_repitched_free(weft_cuda_device *device, weft_cuda_repitched *repitched)
{
    if (repitched->memory)
        device->cu->cuMemFreeAsync(repitched->memory, device->uploads);
    *repitched = (weft_cuda_repitched){0};
}

weft_status weft_cuda_repitched_launch(const weft_cuda_device *device, const weft_cuda_repitched *repitched,
                                       CUstream stream, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;

    for (int i = 0; i < repitched->count; i++) {
        weft_cuda_repitch copy = repitched->copies[i];
        void *parameters[] = {&copy};
        int64_t vectors = copy.batch * copy.lines * (copy.to_ld / VECTOR),
                blocks = weft_divide_up(vectors, THREADS), most = (int64_t)device->sm_count * BLOCKS_A_SM;
        CUlaunchConfig config =
            weft_cuda_config((unsigned)(blocks < most || most == 0 ? blocks : most), THREADS, 0, stream);

        WEFT_CUDA_TRY(
            cuLaunchKernelEx(&config, copy.turned ? device->turn : device->repitch, parameters, NULL));
    }
    return WEFT_OK;
}
