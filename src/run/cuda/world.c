/* Virtual ranks on one GPU. See world.h. */
#include "run/cuda/world.h"

#include "core/dtype.h"
#include "core/round.h"
#include "choose/cuda/choose.h"
#include "run/cuda/cublaslt.h"
#include "run/cuda/done.h"
#include "run/cuda/exchanged.h"
#include "run/cuda/halves.h"
#include "choose/cuda/tuned.h"

#include <stdlib.h>

static int64_t leading(const weft_operand *operand, int64_t rows, int64_t cols, bool dense)
{
    int64_t line = operand->transposed ? rows : cols;
    if (dense && operand->place == WEFT_PLACE_USER)
        return line > 0 ? line : 1;
    return (int64_t)weft_round_up_bytes((size_t)(line > 0 ? line : 1), 8); /* 16 bytes of 16-bit elements */
}

static weft_cuda_wire wire_of(const weft_cuda_world *w)
{
    return (weft_cuda_wire){.whole_lines = true, .apart = w->running == 1};
}

/* Lays every operand out at the same offset on all ranks, big enough for the largest instance. */
static size_t lay_out(weft_cuda_world *w, bool dense, size_t *offsets)
{
    const weft_plan_part *part = &w->parts[0];
    size_t at = 0;
    for (uint32_t o = 0; o < part->operand_count; o++) {
        const weft_operand *operand = &part->operands[o];
        size_t most = 0;
        for (int r = 0; r < w->world; r++) {
            int64_t rows = weft_operand_rows(operand, w->world, r),
                    cols = weft_operand_cols(operand, w->world, r);
            int64_t ld = leading(operand, rows, cols, dense), lines = operand->transposed ? cols : rows;
            size_t bytes = (size_t)(operand->batch * lines * ld) * weft_dtype_size(operand->dtype);
            w->places[o * (uint32_t)w->world + (uint32_t)r].ld = ld;
            most = weft_max_bytes(bytes, most);
        }
        if (weft_cuda_exchange_bytes(part, o))
            most = weft_cuda_exchange_bytes(part, o);
        if (weft_schedule_is_packets(part->problem.schedule) && operand->place != WEFT_PLACE_USER)
            most = weft_cuda_inbox_bytes(part, wire_of(w));
        offsets[o] = at;
        at = weft_round_up_bytes(at + most, 1024);
    }
    return at;
}

static weft_status give_memory(weft_cuda_world *w, const weft_cuda_world_options *options, uint64_t **signals,
                               char **inboxes, weft_error_text *error)
{
    const weft_plan_part *part = &w->parts[0], *collective = &w->collectives[0];
    size_t offsets[64] = {0}, data, inboxes_at, signal_bytes, grain;
    uint32_t signal_count = collective->world ? collective->signal_count : part->signal_count;
    weft_status status;
    if (part->operand_count > 64)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "a plan of %u operands", part->operand_count);
    inboxes_at = lay_out(w, options->dense, offsets);
    data = weft_round_up_bytes(inboxes_at + weft_cuda_halves_bytes(collective, wire_of(w)), 1024);
    signal_bytes = (signal_count + WEFT_CUDA_PRIVATE_SIGNALS) * sizeof(uint64_t) * WEFT_CUDA_LINE_WORDS;
    status = weft_cuda_heap_grain(w->device, &grain, error);
    if (status == WEFT_OK)
        status =
            weft_cuda_heap_reserve(w->device, w->world, data + signal_bytes + 4096, grain, &w->heap, error);
    for (int r = 0; r < w->world && status == WEFT_OK; r++) {
        char *slot = weft_cuda_heap_slot(&w->heap, r);
        status = weft_cuda_heap_create(&w->heap, r, 0, w->heap.stride, NULL, error);
        for (uint32_t o = 0; o < part->operand_count; o++)
            w->places[o * (uint32_t)w->world + (uint32_t)r].base = slot + offsets[o];
        inboxes[r] = (options->alone ? weft_cuda_heap_slot(&w->heap, 0) : slot) + inboxes_at;
        signals[r] = (uint64_t *)(slot + data);
        w->controls[r] = (weft_cuda_control *)(slot + data + signal_bytes);
    }
    return status;
}

/* A rank alone finds its peers' ENTER and DONE posts of every run there already, unless kernels stand in that
 * make them. */
static weft_status enter_peers(weft_cuda_world *w, uint64_t *signals, weft_error_text *error)
{
    const weft_cuda_driver *cu = w->device->cu;
    uint64_t many = (uint64_t)1 << 40;
    for (int p = 0; p < w->world; p++) {
        CUdeviceptr enter = (CUdeviceptr)(uintptr_t)(signals + WEFT_SIGNAL_ENTER(p) * WEFT_CUDA_LINE_WORDS);
        CUdeviceptr done =
            (CUdeviceptr)(uintptr_t)(signals + WEFT_SIGNAL_DONE(w->world, p) * WEFT_CUDA_LINE_WORDS);
        WEFT_CUDA_TRY(cuMemcpyHtoDAsync(enter, &many, sizeof(many), NULL));
        WEFT_CUDA_TRY(cuMemcpyHtoDAsync(done, &many, sizeof(many), NULL));
    }
    WEFT_CUDA_TRY(cuStreamSynchronize(NULL));
    return WEFT_OK;
}

/* A rank alone that sends to peers sends to itself. */
static void loop_back(weft_cuda_world *w)
{
    const weft_plan_part *part = &w->parts[0];
    for (uint32_t o = 0; o < part->operand_count; o++)
        for (int r = 1; r < w->world && part->operands[o].place == WEFT_PLACE_STAGING; r++)
            w->places[o * (uint32_t)w->world + (uint32_t)r] = w->places[o * (uint32_t)w->world];
}

/* Who says DONE to a rank, and how often: see done.h. */
static void count_done(const weft_cuda_world *w, int rank, uint32_t *posts)
{
    for (int r = 0; r < w->world; r++)
        posts[r] =
            r == rank
                ? 0
                : weft_cuda_done_lanes(w->collectives[0].world ? &w->collectives[r] : &w->parts[r], rank);
}

/* Collectives are chosen as asked for; what stands beside products is made here. */
static weft_status make_parts(weft_cuda_world *w, const weft_problem *problem, int crews, bool own,
                              weft_error_text *error)
{
    weft_cuda_basis basis = {.world = w->world,
                             .crews = crews,
                             .hopper = w->device->hopper,
                             .library = weft_cublaslt_source() != NULL,
                             .whole = w->running == 1,
                             .adds = true};
    weft_problem asked = *problem, decided;
    /* What was tuned had kernels of the library's own. */
    weft_status status = own ? weft_cuda_tuned(&basis, w->device->name, &asked, error) : WEFT_OK;

    decided = weft_cuda_choose(&basis, &asked);
    for (int r = 0; r < w->world && status == WEFT_OK; r++) {
        status = weft_plan_make(&decided, w->world, r, &w->parts[r], error);
        if (status == WEFT_OK)
            status = weft_cuda_halves_make(&w->parts[r], &basis, own, &w->collectives[r], error);
    }
    return status;
}

static weft_status make_all(weft_cuda_world *w, const weft_problem *problem,
                            const weft_cuda_world_options *options, weft_error_text *error)
{
    const weft_cuda_driver *cu = w->device->cu;
    uint64_t *signals[WEFT_CUDA_WORLD_MAX] = {0};
    char *inboxes[WEFT_CUDA_WORLD_MAX] = {0};
    int crews = w->device->crews / w->running;
    weft_status status = make_parts(w, problem, crews, !options->alone || !options->stand_in, error);
    const weft_cuda_stand_in *stand_in = options->alone && w->world > 1 ? options->stand_in : NULL;
    bool lanes_say_done;
    if (status != WEFT_OK)
        return status;
    w->places = calloc((size_t)w->parts[0].operand_count * (size_t)w->world, sizeof(*w->places));
    if (!w->places)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the operands of %d ranks", w->world);
    lanes_say_done = w->parts[0].problem.op >= WEFT_OP_ALL_REDUCE ||
                     (w->world > 1 && w->parts[0].problem.tuning.library != 2);
    status = give_memory(w, options, signals, inboxes, error);
    if (status == WEFT_OK && options->alone && !stand_in)
        status = enter_peers(w, signals[0], error);
    if (options->alone)
        loop_back(w);
    for (int r = 0; r < w->running && status == WEFT_OK; r++) {
        uint32_t done_posts[WEFT_CUDA_WORLD_MAX];
        weft_cuda_binding binding = {.places = w->places,
                                     .signals = signals,
                                     .stand_in = stand_in,
                                     .peers = options->alone ? w->parts : NULL,
                                     .done_posts = lanes_say_done ? done_posts : NULL,
                                     .wire = wire_of(w),
                                     .collective = w->collectives[r].world ? &w->collectives[r] : NULL,
                                     .inboxes = inboxes};
        count_done(w, r, done_posts);
        status = weft_cuda_executor_make(w->device, &w->parts[r], &binding, w->controls, crews,
                                         &options->limits, &w->executors[r], error);
        if (status == WEFT_OK)
            WEFT_CUDA_TRY(cuStreamCreate(&w->streams[r], CU_STREAM_NON_BLOCKING));
    }
    return status;
}

weft_status weft_cuda_world_make(weft_cuda_device *device, const weft_problem *problem, int world,
                                 const weft_cuda_world_options *options, weft_cuda_world *made,
                                 weft_error_text *error)
{
    weft_cuda_world w = {.device = device, .world = world, .running = options->alone ? 1 : world};
    weft_status status;
    if (world < 1 || world > WEFT_CUDA_WORLD_MAX)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%d ranks on one GPU: there may be 1 to %d", world,
                              WEFT_CUDA_WORLD_MAX);
    status = make_all(&w, problem, options, error);
    if (status != WEFT_OK) {
        weft_cuda_world_free(&w);
        return status;
    }
    *made = w;
    return WEFT_OK;
}

void weft_cuda_world_free(weft_cuda_world *w)
{
    for (int r = 0; r < w->world; r++) {
        weft_cuda_executor_free(&w->executors[r]);
        if (w->streams[r])
            w->device->cu->cuStreamDestroy(w->streams[r]);
        weft_plan_part_free(&w->parts[r]);
        weft_plan_part_free(&w->collectives[r]);
    }
    weft_cuda_heap_free(&w->heap);
    free(w->places);
    *w = (weft_cuda_world){0};
}

weft_cuda_place weft_cuda_world_place(const weft_cuda_world *w, weft_operand_role role, int rank)
{
    const weft_plan_part *part = &w->parts[0];
    for (uint32_t o = 0; o < part->operand_count; o++)
        if (part->operands[o].role == role && part->operands[o].place == WEFT_PLACE_USER)
            return w->places[o * (uint32_t)w->world + (uint32_t)rank];
    return (weft_cuda_place){0};
}

weft_status weft_cuda_world_launch(weft_cuda_world *w, weft_error_text *error)
{
    weft_status status = WEFT_OK;
    for (int r = 0; r < w->running && status == WEFT_OK; r++)
        status = weft_cuda_executor_launch(&w->executors[r], w->streams[r], error);
    return status;
}

weft_status weft_cuda_world_finish(weft_cuda_world *w, weft_error_text *error)
{
    weft_status first = WEFT_OK;
    for (int r = 0; r < w->running; r++) {
        weft_error_text later = {0};
        weft_status status = weft_cuda_executor_outcome(&w->executors[r], w->streams[r], NULL,
                                                        first == WEFT_OK ? error : &later);
        first = first == WEFT_OK ? status : first;
    }
    return first;
}
