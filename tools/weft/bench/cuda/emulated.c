/* See emulated.h. The images are made of the library's own sources, with WEFT_LINK, and of link.cu. */
#include "bench/cuda/emulated.h"

#include "core/dtype.h"
#include "run/cuda/embed.h"
#include "run/cuda/exchanged.h"
#include "choose/cuda/walker.h"

#include <stdlib.h>

#ifdef WEFT_LINK_KERNELS
#define CONTENT(file) ".incbin \"" WEFT_LINK_KERNELS file ".fatbin\"\n"
#else
#define CONTENT(file) ""
#endif

#define EMBED(name)                                                                                          \
    WEFT_CUDA_EMBED(emulated_##name, CONTENT(#name));                                                        \
    extern const char __attribute__((visibility("hidden"))) emulated_##name[]

EMBED(link);
EMBED(collective_link);
EMBED(sums_link);
EMBED(exchange_link);
EMBED(bf16_link);
EMBED(bf16_224_link);
EMBED(bf16_128_link);

enum { PEERS, COLLECTIVE, SUMS, EXCHANGE, WALKERS };

/* ---- kernels ------------------------------------------------------------------------------------------ */

static weft_status load_images(const weft_cuda_device *device, emulated *e, weft_error_text *error)
{
    const void *images[EMULATED_IMAGES] = {
        emulated_link,      emulated_collective_link, emulated_sums_link,    emulated_exchange_link,
        emulated_bf16_link, emulated_bf16_224_link,   emulated_bf16_128_link};
    const weft_cuda_driver *cu = device->cu;

    for (int i = 0; i < (device->hopper ? EMULATED_IMAGES : WALKERS); i++)
        WEFT_CUDA_TRY(cuModuleLoadData(&e->modules[i], images[i]));
    return WEFT_OK;
}

static weft_status load_peers(const weft_cuda_driver *cu, emulated *e, weft_error_text *error)
{
    static const char *const names[] = {[EMULATED_SIGNALS] = "weft_link_signals",
                                        [EMULATED_PACKETS] = "weft_link_packets",
                                        [EMULATED_LINES] = "weft_link_lines"};
    weft_status status =
        weft_cuda_load_kernel(cu, e->modules[PEERS], "weft_experts_link", 0, &e->experts, error);

    for (int i = 0; i <= EMULATED_LINES && status == WEFT_OK; i++)
        status = weft_cuda_load_beside(cu, e->modules[PEERS], names[i], &e->peers[i], error);
    return status;
}

static weft_status load_walks(const weft_cuda_device *device, emulated *e, weft_error_text *error)
{
    static const char *const names[] = {[WEFT_F32] = "weft_collective_link_f32",
                                        [WEFT_F16] = "weft_collective_link_f16",
                                        [WEFT_BF16] = "weft_collective_link_bf16"};
    const weft_cuda_driver *cu = device->cu;
    weft_status status = weft_cuda_load_kernel(cu, e->modules[SUMS], "weft_sums_link", 0, &e->sums, error);

    if (status == WEFT_OK)
        status =
            weft_cuda_load_kernel(cu, e->modules[EXCHANGE], "weft_exchange_link", 0, &e->exchange, error);
    for (int i = 0; i <= WEFT_BF16 && status == WEFT_OK; i++)
        status = weft_cuda_load_kernel(cu, e->modules[COLLECTIVE], names[i], 0, &e->collective[i], error);
    for (int i = 0; i < EMULATED_WALKERS && status == WEFT_OK && device->hopper; i++)
        status = weft_cuda_load_kernel(cu, e->modules[WALKERS + i], "weft_walk_bf16_nn",
                                       WEFT_CUDA_SHARED_BYTES, &e->walkers[i], error);
    return status;
}

static CUfunction kernel_of(const weft_cuda_stand_in *self, weft_cuda_kind kind, const weft_problem *problem,
                            int walker)
{
    const emulated *e = (const emulated *)(const void *)self;

    switch (kind) {
    case WEFT_CUDA_SUMS:
        return e->sums;
    case WEFT_CUDA_EXCHANGE:
        return e->exchange;
    case WEFT_CUDA_COLLECTIVE:
        return problem->dtype <= WEFT_BF16 ? e->collective[problem->dtype] : NULL;
    default:
        return walker < EMULATED_WALKERS && problem->dtype == WEFT_BF16 && !problem->transa &&
                       !problem->transb
                   ? e->walkers[walker]
                   : NULL;
    }
}

/* ---- what they read ----------------------------------------------------------------------------------- */

/* Whether it posts to peers. DONE of lanes that say it themselves is no post of the plan's: it stands, in
 * this rank's memory, for that of a peer. */
static bool tells_peers(const weft_plan_part *part, const weft_cuda_binding *binding,
                        const weft_cuda_program *program, const weft_cuda_task *lowered)
{
    const weft_task *task = &part->tasks[lowered->plan_task];
    const uint64_t *signals = binding->signals[part->rank];

    for (uint32_t i = 0; i < task->post_count; i++)
        if (part->posts[task->post0 + i].rank != part->rank)
            return true;
    for (uint32_t i = 0; i < lowered->post_count; i++)
        for (int rank = 0; rank < part->world; rank++)
            if (rank != part->rank &&
                program->posts[lowered->post0 + i] ==
                    signals + (size_t)WEFT_SIGNAL_DONE(part->world, rank) * WEFT_CUDA_LINE_WORDS)
                return true;
    return false;
}

/* What the task stores at peers or reads there; sums that it adds to cross once. */
static int64_t bytes_over(const weft_plan_part *part, const weft_cuda_task *lowered)
{
    const weft_task *task = &part->tasks[lowered->plan_task];
    const weft_region *regions = weft_task_regions(part, task);
    int64_t bytes = 0;

    for (int i = 0; i < task->region_count; i++)
        if (regions[i].rank != part->rank && !(i == lowered->acc && lowered->flags & WEFT_CUDA_ADD))
            bytes += regions[i].rows * regions[i].cols *
                     (int64_t)weft_dtype_size(part->operands[regions[i].operand].dtype);
    return bytes;
}

static weft_cuda_beside beside_of(const weft_cuda_stand_in *self, weft_cuda_kind kind,
                                  const weft_plan_part *part, const weft_cuda_binding *binding,
                                  const weft_cuda_program *program)
{
    const emulated *e = (const emulated *)(const void *)self;
    size_t bytes = sizeof(weft_cuda_emulation) + (part->task_count + 1) * sizeof(weft_cuda_transfer);
    weft_cuda_emulation *link = calloc(1, bytes);

    if (!link)
        return (weft_cuda_beside){0};
    *link = (weft_cuda_emulation){.latency_ns = (uint64_t)e->latency_ns,
                                  .late_ns = (uint64_t)e->late_ns,
                                  .eighths_per_byte = (float)(8 / e->bytes_per_ns),
                                  .peers = (uint32_t)part->world - 1,
                                  .first = UINT64_MAX,
                                  .run_first = UINT64_MAX};
    for (uint32_t i = 0; i < program->task_count; i++) {
        const weft_cuda_task *lowered = &program->tasks[i];
        int64_t over = bytes_over(part, lowered);

        link->bytes += over;
        link->transfers[lowered->plan_task] =
            (weft_cuda_transfer){(uint32_t)over, tells_peers(part, binding, program, lowered)};
    }
    if (kind == WEFT_CUDA_EXCHANGE) {
        link->bytes = weft_cuda_exchange_sent(part);
        link->exchange_ns = (int64_t)(e->latency_ns + e->late_ns + (double)link->bytes / e->bytes_per_ns);
    }
    return (weft_cuda_beside){link, bytes};
}

weft_status emulated_read(const weft_cuda_executor *executor, CUstream stream, weft_cuda_emulation *link,
                          weft_error_text *error)
{
    const weft_cuda_driver *cu = executor->device->cu;

    WEFT_CUDA_TRY(
        cuMemcpyDtoHAsync(link, (CUdeviceptr)(uintptr_t)executor->args.link, sizeof(*link), stream));
    WEFT_CUDA_TRY(cuStreamSynchronize(stream));
    return WEFT_OK;
}

/* ---- both --------------------------------------------------------------------------------------------- */

weft_status emulated_load(const weft_cuda_device *device, emulated *e, weft_error_text *error)
{
    weft_status status;

    if (e->modules[0])
        return WEFT_OK;
    e->stand_in =
        (weft_cuda_stand_in){.kernel = kernel_of,
                             .beside = beside_of,
                             .limits = "an emulated link is there for products of bfloat16 on Hopper GPUs, "
                                       "nothing transposed, whose rows begin on 16 bytes"};
    status = load_images(device, e, error);
    if (status == WEFT_OK)
        status = load_walks(device, e, error);
    if (status == WEFT_OK)
        status = load_peers(device->cu, e, error);
    if (status != WEFT_OK)
        emulated_free(device, e);
    return status;
}

void emulated_free(const weft_cuda_device *device, emulated *e)
{
    for (int i = 0; i < EMULATED_IMAGES; i++) {
        if (e->modules[i])
            device->cu->cuModuleUnload(e->modules[i]);
        e->modules[i] = NULL;
    }
}
