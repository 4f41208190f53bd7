/* A lane's memory and kernels. See moe.h. */
#include "run/cuda/moe.h"

#include "core/dtype.h"
#include "core/round.h"

#include <string.h>

enum { LINE = WEFT_CUDA_LINE_WORDS * (int)sizeof(uint64_t) };

_Static_assert((int)WEFT_CUDA_MOE_BLOCK == (int)WEFT_DEVICE_MOE_BLOCK, "kernels are told of one format");

/* ---- where things lie -----------------------------------------------------------------------------------
 */

/* Hands out pieces of a block; with base NULL it only measures. */
typedef struct carver {
    char *base;
    size_t used;
} carver;

static void *carve(carver *c, int64_t count, size_t size)
{
    size_t at = c->used;

    c->used += weft_round_up_bytes((size_t)count * size, LINE);
    return c->base ? c->base + at : NULL;
}

static uint32_t grid_of(int64_t units, int ctas)
{
    return (uint32_t)(units < 1 ? 1 : weft_min(units, ctas));
}

static void carve_symmetric(weft_cuda_moe *l, carver *c)
{
    int64_t lists = 2 * (int64_t)l->world * l->capacity;

    l->control = carve(c, 1, sizeof(*l->control));
    l->arrived = carve(c, l->world, LINE);
    l->returned = carve(c, l->world, LINE);
    l->rejected = carve(c, 2 * l->world, sizeof(*l->rejected));
    l->tokens = carve(c, 2 * l->world, sizeof(*l->tokens));
    l->key = carve(c, lists * l->keys, sizeof(*l->key));
    l->entry = carve(c, lists * l->keys, sizeof(*l->entry));
    l->row = carve(c, l->world * l->capacity, (size_t)l->row_stride);
    l->slot = carve(c, l->capacity * l->terms, (size_t)l->slot_stride);
    if (l->movers)
        l->landed = carve(c, l->world, LINE);
}

static void carve_private(weft_cuda_moe *l, carver *c)
{
    int64_t rows = l->world * l->capacity, entries = rows * l->keys;
    uint32_t runs = 0;

    for (int phase = 0; phase < WEFT_CUDA_MOE_PHASES; phase++) {
        l->run0[phase] = runs;
        runs += l->grid[phase];
    }
    l->state = carve(c, 1, sizeof(*l->state));
    l->runs = carve(c, runs, LINE);
    l->fault = carve(c, l->capacity, sizeof(*l->fault));
    l->terms_of = carve(c, l->capacity, sizeof(*l->terms_of));
    l->term_weight = carve(c, l->capacity * l->terms, sizeof(*l->term_weight));
    l->kept_expert = carve(c, 2 * l->capacity * l->topk, sizeof(*l->kept_expert));
    l->kept_weight = carve(c, 2 * l->capacity * l->topk, sizeof(*l->kept_weight));
    l->place = carve(c, entries, sizeof(*l->place));
    l->view_row = carve(c, rows, sizeof(*l->view_row));
    l->source = carve(c, rows, sizeof(*l->source));
    l->token = carve(c, rows, sizeof(*l->token));
    l->offset = carve(c, l->experts_here + 1, sizeof(*l->offset));
    l->entry_row = carve(c, entries, sizeof(*l->entry_row));
    l->entry_expert = carve(c, entries, sizeof(*l->entry_expert));
    l->entry_weight = carve(c, entries, sizeof(*l->entry_weight));
    l->entry_to = carve(c, entries, sizeof(*l->entry_to));
    if (!l->movers)
        return;
    l->goes = carve(c, l->capacity * l->world, sizeof(*l->goes));
    l->entry_step = carve(c, entries, sizeof(*l->entry_step));
    l->ready = carve(c, l->world + 1, LINE);
}

/* As many pieces of a token as CTAs would be idle otherwise, none smaller than what a CTA reads at a time. */
static void divide_sums(weft_cuda_moe *l, int ctas)
{
    enum { READ = 16 * WEFT_CUDA_MOE_THREADS };
    int64_t most = l->result_bytes / READ, pieces = l->capacity > 0 ? ctas / l->capacity : 1;

    pieces = weft_max(1, weft_min(pieces, most));
    l->piece_bytes = weft_divide_up(l->result_bytes, 16 * pieces) * 16;
    l->pieces = l->piece_bytes ? weft_divide_up(l->result_bytes, l->piece_bytes) : 1;
}

static weft_cuda_moe facts(const weft_device_moe_shape *s, int world, weft_cuda_moe_room room)
{
    int64_t result_bytes = s->hidden * (int64_t)weft_dtype_size(s->dtype);
    weft_cuda_moe l = {.world = world,
                       .experts = s->experts,
                       .experts_here = s->experts_here,
                       .topk = s->topk,
                       .terms = s->terms_per_token,
                       .keys = (int32_t)weft_round_up(weft_min(s->topk, s->experts_most), 4),
                       .dtype = (int32_t)s->dtype,
                       .reduced = s->reduced,
                       .capacity = s->capacity,
                       .hidden = s->hidden,
                       .row_bytes = s->row_bytes,
                       .result_bytes = result_bytes,
                       .row_stride = weft_round_up(s->wire_bytes, LINE),
                       .scales_at = s->scales_at,
                       .slot_stride = weft_round_up(result_bytes, LINE)};

    l.grid[WEFT_CUDA_MOE_DISPATCH_SEND] = grid_of(l.capacity, room.ctas);
    l.grid[WEFT_CUDA_MOE_DISPATCH_RECV] = grid_of(l.experts_here, room.waiting);
    l.grid[WEFT_CUDA_MOE_COMBINE_SEND] = grid_of(l.world * l.capacity * (l.reduced ? 1 : l.keys), room.ctas);
    divide_sums(&l, room.waiting);
    l.grid[WEFT_CUDA_MOE_COMBINE_RECV] = grid_of(l.capacity * l.pieces, room.waiting);
    l.movers = weft_cuda_moe_can_move(s)
                   ? (uint32_t)weft_min(room.movers, l.grid[WEFT_CUDA_MOE_DISPATCH_SEND] / 2 * 2)
                   : 0;
    return l;
}

bool weft_cuda_moe_can_move(const weft_device_moe_shape *s)
{
    return weft_dtype_size(s->dtype) == 2 && s->scales_at == 0 && s->wire_bytes == s->row_bytes &&
           s->row_bytes > 0 && s->row_bytes % 16 == 0 &&
           (s->topk <= WEFT_CUDA_MOE_MOVED_KEYS || s->experts_most <= WEFT_CUDA_MOE_MOVED_KEYS);
}

bool weft_cuda_moe_moves(const weft_device_moe_shape *s, int world)
{
    return weft_cuda_moe_can_move(s) && world > 1 && s->experts_most <= WEFT_CUDA_GROUPED_EXPERTS / 2 &&
           s->capacity * world * s->topk >= WEFT_CUDA_GROUPED_ROWS * (int64_t)s->experts;
}

int weft_cuda_moe_movers(int sms)
{
    return sms < 8 ? 2 : sms / 4 / 2 * 2;
}

/* The lists have their time to come, and then the rows of each rank, one after another: what a tile may wait
 * for, where no wait of those who bring its rows has expired. */
static uint64_t wait_of_tiles(const weft_cuda_moe *lane)
{
    uint64_t waits = (uint64_t)lane->world + 2;

    return lane->deadline_ns > UINT64_MAX / waits ? UINT64_MAX : waits * lane->deadline_ns;
}

weft_cuda_arriving_rows weft_cuda_moe_arriving(const weft_cuda_moe *lane)
{
    return (weft_cuda_arriving_rows){.ready = lane->ready,
                                     .runs = &lane->state->moved,
                                     .step = lane->entry_step,
                                     .abort = &lane->control->abort,
                                     .deadline_ns = wait_of_tiles(lane),
                                     .posts = (int32_t)lane->movers,
                                     .steps = lane->world};
}

void weft_cuda_moe_measure(const weft_device_moe_shape *shape, int world, weft_cuda_moe_room room,
                           size_t *symmetric, size_t *private_bytes)
{
    weft_cuda_moe lane = facts(shape, world, room);
    carver shared = {NULL, 0}, own = {NULL, 0};

    carve_symmetric(&lane, &shared);
    carve_private(&lane, &own);
    *symmetric = shared.used;
    *private_bytes = own.used;
}

weft_cuda_moe weft_cuda_moe_lay_out(const weft_device_moe_shape *shape, int world, int rank,
                                    weft_cuda_moe_room room, char *symmetric, int64_t stride,
                                    char *private_memory, const int32_t *owner, const int32_t *local)
{
    weft_cuda_moe lane = facts(shape, world, room);
    carver shared = {symmetric, 0}, own = {private_memory, 0};

    carve_symmetric(&lane, &shared);
    carve_private(&lane, &own);
    lane.rank = rank;
    lane.stride = stride;
    lane.owner = owner;
    lane.local = local;
    return lane;
}

/* ---- kernels --------------------------------------------------------------------------------------------
 */

static CUdeviceptr at(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

weft_status weft_cuda_moe_clear(const weft_cuda_device *device, const weft_cuda_moe *lane,
                                char *private_memory, size_t bytes, CUstream stream, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    weft_cuda_moe_state *state = lane->state;

    WEFT_CUDA_TRY(cuMemsetD8Async(at(private_memory), 0, bytes, stream));
    WEFT_CUDA_TRY(cuMemsetD8Async(at(&state->fault), 0xff, sizeof(state->fault), stream));
    WEFT_CUDA_TRY(cuMemsetD8Async(at(&state->peer_fault), 0xff, sizeof(state->peer_fault), stream));
    WEFT_CUDA_TRY(cuMemsetD8Async(at(&state->overflow), 0xff, sizeof(state->overflow), stream));
    WEFT_CUDA_TRY(cuStreamSynchronize(stream));
    return WEFT_OK;
}

weft_status weft_cuda_moe_launch(const weft_cuda_device *device, const weft_cuda_moe *lane,
                                 weft_device_moe_kernel kernel, const weft_device_moe_args *call, bool early,
                                 CUstream stream, weft_error_text *error)
{
    const weft_cuda_driver *cu = device->cu;
    weft_cuda_moe p = *lane;
    weft_cuda_moe_args c = {.x = call->x,
                            .expert = call->expert,
                            .weight = call->weight,
                            .tokens = call->reject ? 0 : call->tokens,
                            .reject = call->reject,
                            .lists = call->lists,
                            .start = call->start,
                            .out = call->out,
                            .rows = call->rows,
                            .alignment = call->alignment};
    void *parameters[] = {&p, &c};
    bool moves = kernel == WEFT_DEVICE_MOE_MOVE;
    unsigned grid = kernel == WEFT_DEVICE_MOE_LAYOUT   ? 1
                    : kernel == WEFT_DEVICE_MOE_GATHER ? lane->grid[WEFT_CUDA_MOE_COMBINE_SEND]
                    : moves                            ? lane->movers
                                                       : lane->grid[kernel];
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = weft_cuda_config(grid, moves ? WEFT_CUDA_MOE_MOVE_THREADS : WEFT_CUDA_MOE_THREADS,
                                             moves ? WEFT_CUDA_MOE_MOVE_SHARED : 0, stream);

    config.attrs = &attribute;
    config.numAttrs = early;
    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, device->moe[kernel], parameters, NULL));
    return WEFT_OK;
}
