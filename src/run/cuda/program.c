/* Lowers a plan part to device arrays. See program.h. */
#include "run/cuda/program.h"

#include "core/dtype.h"

#include <stdlib.h>
#include <string.h>

typedef struct lowering {
    const weft_plan_part *part;
    const weft_cuda_binding *binding;
    weft_cuda_program *program;
    weft_error_text *error;
    uint32_t found;     /* see counterpart */
    bool storers, bulk; /* copy lanes are for the storers of the Hopper walker; all of them can be */
} lowering;

static bool reserve(void **array, uint32_t *room, uint32_t count, size_t size)
{
    if (count < *room)
        return true;
    uint32_t wider = *room ? *room * 2 : 64;
    void *grown = realloc(*array, wider * size);
    if (!grown)
        return false;
    *array = grown;
    *room = wider;
    return true;
}

#define RESERVE(p, what)                                                                                     \
    reserve((void **)&(p)->what##s, &(p)->what##_room, (p)->what##_count, sizeof(*(p)->what##s))

/* ---- regions to addresses ---------------------------------------------------------------------------- */

static const weft_operand *operand_of(const lowering *low, const weft_region *region)
{
    return &low->part->operands[region->operand];
}

static const weft_cuda_place *place_of(const lowering *low, const weft_region *region)
{
    return &low->binding->places[region->operand * (uint32_t)low->part->world + (uint32_t)region->rank];
}

/* The first element of the region's batch element. */
static char *matrix_of(const lowering *low, const weft_region *region)
{
    const weft_operand *operand = operand_of(low, region);
    const weft_cuda_place *place = place_of(low, region);
    int64_t lines = operand->transposed ? weft_operand_cols(operand, low->part->world, region->rank)
                                        : weft_operand_rows(operand, low->part->world, region->rank);
    int64_t stride = place->stride ? place->stride : lines * place->ld;
    return (char *)place->base + region->batch * stride * (int64_t)weft_dtype_size(operand->dtype);
}

static weft_cuda_view view_of(const lowering *low, const weft_region *region)
{
    const weft_operand *operand = operand_of(low, region);
    int64_t ld = place_of(low, region)->ld;
    weft_cuda_view view = {.rs = operand->transposed ? 1 : ld,
                           .cs = operand->transposed ? ld : 1,
                           .dtype = (int32_t)operand->dtype,
                           .map = -1};
    view.ptr = matrix_of(low, region) +
               (region->row0 * view.rs + region->col0 * view.cs) * (int64_t)weft_dtype_size(operand->dtype);
    return view;
}

/* Whether vectors of `bytes` may be used along the rows of a view. */
static bool aligned(const weft_cuda_view *view, int64_t bytes)
{
    int64_t size = (int64_t)weft_dtype_size((weft_dtype)view->dtype);
    return view->cs == 1 && (uintptr_t)view->ptr % (uintptr_t)bytes == 0 && view->rs * size % bytes == 0;
}

static weft_status add_view(lowering *low, const weft_cuda_view *view)
{
    weft_cuda_program *program = low->program;
    if (!RESERVE(program, view))
        return weft_error_set(low->error, WEFT_ERR_MEMORY, "no memory for a plan of %u regions",
                              low->part->region_count);
    program->views[program->view_count++] = *view;
    return WEFT_OK;
}

/* ---- tensor maps ------------------------------------------------------------------------------------- */

static bool same_map(const weft_cuda_map *x, const weft_cuda_map *y)
{
    return x->base == y->base && x->inner == y->inner && x->outer == y->outer &&
           x->pitch_bytes == y->pitch_bytes && x->box_inner == y->box_inner && x->box_outer == y->box_outer &&
           x->dtype == y->dtype;
}

/*
 * The map of the matrix a region lies in, cut off at the region's end along the dimensions in which the
 * copy engine must not go further (k of A and B: zeros are read there; both of D: nothing is written).
 *
 * The copy engine knows nothing finer than 16 bytes along rows in memory: there a region must begin on them,
 * and end on them where the end matters. Where it does not (m of A, n of B), the end is rounded up into the
 * padding: what is read there is never stored. Returns -1 when the map is impossible, -2 without memory.
 */
static int32_t map_of(lowering *low, const weft_region *region, bool cut_rows, bool cut_cols,
                      uint32_t box_inner, uint32_t box_outer)
{
    weft_cuda_program *program = low->program;
    const weft_operand *operand = operand_of(low, region);
    int64_t size = (int64_t)weft_dtype_size(operand->dtype), granule = 16 / size;
    int64_t rows =
        cut_rows ? region->row0 + region->rows : weft_operand_rows(operand, low->part->world, region->rank);
    int64_t cols =
        cut_cols ? region->col0 + region->cols : weft_operand_cols(operand, low->part->world, region->rank);
    int64_t begin = operand->transposed ? region->row0 : region->col0,
            end = operand->transposed ? rows : cols;
    bool exact = operand->transposed ? cut_rows : cut_cols;
    weft_cuda_map map = {.base = matrix_of(low, region),
                         .inner = (uint64_t)(exact ? end : (end + granule - 1) / granule * granule),
                         .outer = (uint64_t)(operand->transposed ? cols : rows),
                         .pitch_bytes = (uint64_t)(place_of(low, region)->ld * size),
                         .box_inner = box_inner,
                         .box_outer = box_outer,
                         .dtype = (int32_t)operand->dtype};
    if ((uintptr_t)map.base % 16 || map.pitch_bytes % 16 || begin % granule ||
        map.inner % (uint64_t)granule || map.inner == 0 || map.outer == 0 || map.inner >= (uint64_t)1 << 31 ||
        map.outer >= (uint64_t)1 << 31)
        return -1;
    for (uint32_t i = program->map_count; i-- > 0;)
        if (same_map(&program->maps[i], &map))
            return (int32_t)i;
    if (!RESERVE(program, map))
        return -2;
    program->maps[program->map_count] = map;
    return (int32_t)program->map_count++;
}

/* A and B of a GEMM for the Hopper walker. */
static weft_status bind_operands(lowering *low, const weft_region *a, const weft_region *b,
                                 weft_cuda_task *task)
{
    bool ta = operand_of(low, a)->transposed, tb = operand_of(low, b)->transposed;
    /* a is cut along k (its columns), b along k (its rows); a k-range that ends on a step needs no cut */
    bool cut = a->cols % WEFT_CUDA_TILE_K != 0;
    /* the walker loads 256 columns of B: those beyond a narrower tile need not come from memory */
    bool cut_n = low->program->tile_n != WEFT_CUDA_TILE_N && (tb || (b->col0 + b->cols) % 8 == 0);
    if (task->k == 0) {
        task->a_map = task->b_map = 0;
        return WEFT_OK;
    }
    task->a_map = map_of(low, a, false, cut, 64, ta ? 64 : 128);
    task->b_map = map_of(low, b, cut, cut_n, 64, tb ? 128 : 64);
    if (task->a_map == -2 || task->b_map == -2)
        return weft_error_set(low->error, WEFT_ERR_MEMORY, "no memory for the tensor maps of a plan");
    if (task->a_map < 0 || task->b_map < 0)
        low->program->hopper = false;
    task->a_m = (int32_t)a->row0;
    task->a_k = (int32_t)a->col0;
    task->b_k = (int32_t)b->row0;
    task->b_n = (int32_t)b->col0;
    return WEFT_OK;
}

static weft_status bind_destination(lowering *low, const weft_region *d, weft_cuda_view *view)
{
    bool narrow = operand_of(low, d)->dtype != WEFT_F32;
    /* whole tiles never reach past their region, so they can share the map of the whole matrix */
    bool cut_rows = d->rows % WEFT_CUDA_TILE_M != 0,
         cut_cols = d->cols % (narrow ? WEFT_CUDA_TILE_N : low->program->tile_n) != 0;
    if (operand_of(low, d)->transposed)
        return WEFT_OK;
    view->map = map_of(low, d, cut_rows, cut_cols, narrow ? 64 : 32, 64);
    if (view->map == -2)
        return weft_error_set(low->error, WEFT_ERR_MEMORY, "no memory for the tensor maps of a plan");
    view->row = (int32_t)d->row0;
    view->col = (int32_t)d->col0;
    return WEFT_OK;
}

/* ---- waits and posts --------------------------------------------------------------------------------- */

static weft_status add_wait(lowering *low, uint32_t signal, uint32_t count, uint32_t total, int64_t step)
{
    weft_cuda_program *program = low->program;
    if (!RESERVE(program, wait))
        return weft_error_set(low->error, WEFT_ERR_MEMORY, "no memory for the waits of a plan");
    program->waits[program->wait_count++] = (weft_cuda_wait){
        .signal = low->binding->signals[low->part->rank] + (size_t)signal * WEFT_CUDA_LINE_WORDS,
        .count = count,
        .total = total,
        .number = signal,
        .step = (int32_t)step};
    return WEFT_OK;
}

static weft_status add_post(lowering *low, uint32_t signal, int rank)
{
    weft_cuda_program *program = low->program;
    if (!RESERVE(program, post))
        return weft_error_set(low->error, WEFT_ERR_MEMORY, "no memory for the posts of a plan");
    program->posts[program->post_count++] =
        low->binding->signals[rank] + (size_t)signal * WEFT_CUDA_LINE_WORDS;
    return WEFT_OK;
}

static weft_status add_waits(lowering *low, const weft_task *task, int64_t step, uint32_t *count)
{
    const weft_plan_part *part = low->part;
    weft_status status = WEFT_OK;
    *count += task->wait_count;
    for (uint32_t i = 0; i < task->wait_count && status == WEFT_OK; i++) {
        const weft_wait *wait = &part->waits[task->wait0 + i];
        status = add_wait(low, wait->signal, wait->count, part->signal_posts[wait->signal], step);
    }
    return status;
}

/* Alone: the task of a peer that fills the same place here as `task` fills at a peer. */
static const weft_task *counterpart(lowering *low, const weft_task *task, int *rank)
{
    const weft_region *d = &low->part->regions[task->region0];
    for (int r = 0; r < low->part->world; r++) {
        const weft_plan_part *peer = &low->binding->peers[r];
        for (uint32_t n = 0; n < peer->task_count && r != low->part->rank; n++) {
            /* the order of tasks is much the same on all ranks: go on from the one found last */
            uint32_t i = (n + low->found) % peer->task_count;
            const weft_region *x = &peer->regions[peer->tasks[i].region0];
            if (peer->tasks[i].kind == WEFT_TASK_GEMM && x->rank == low->part->rank &&
                x->operand == d->operand && x->batch == d->batch && x->row0 == d->row0 &&
                x->col0 == d->col0) {
                low->found = i;
                *rank = r;
                return &peer->tasks[i];
            }
        }
    }
    return NULL;
}

static weft_status add_posts(lowering *low, const weft_task *task, uint32_t *first, uint32_t *count)
{
    const weft_plan_part *part = low->part;
    bool remote = task->kind == WEFT_TASK_GEMM && part->regions[task->region0].rank != part->rank;
    weft_status status = WEFT_OK;
    *first = low->program->post_count;
    *count = 0;
    if (low->binding->peers && remote) {
        int from = 0;
        const weft_task *other = counterpart(low, task, &from);
        for (uint32_t i = 0; other && i < other->post_count && status == WEFT_OK; i++) {
            const weft_post *post = &low->binding->peers[from].posts[other->post0 + i];
            if (post->rank == part->rank && post->signal >= 2 * (uint32_t)part->world) {
                status = add_post(low, post->signal, post->rank);
                ++*count;
            }
        }
    }
    for (uint32_t i = 0; i < task->post_count && status == WEFT_OK; i++) {
        const weft_post *post = &part->posts[task->post0 + i];
        bool back =
            low->binding->peers && post->rank != part->rank && post->signal >= 2 * (uint32_t)part->world;
        if (back && remote)
            continue; /* its counterpart was posted */
        status = add_post(low, post->signal, back ? part->rank : post->rank);
        ++*count;
    }
    return status;
}

/* ---- tasks ------------------------------------------------------------------------------------------- */

static weft_status check_gemm(const lowering *low, const weft_task *task, const weft_region *a)
{
    const weft_region *d = &low->part->regions[task->region0];
    weft_dtype dtype = operand_of(low, a)->dtype;
    if (dtype != WEFT_F16 && dtype != WEFT_BF16)
        return weft_error_set(low->error, WEFT_ERR_UNSUPPORTED,
                              "the cuda backend multiplies float16 and bfloat16, not %s",
                              weft_dtype_name(dtype));
    if (d->rows > WEFT_CUDA_TILE_M || d->cols > WEFT_CUDA_TILE_N)
        return weft_error_set(
            low->error, WEFT_ERR_ARGUMENT,
            "tiles of the cuda backend are at most %d x %d, and the plan has one of %lld x %lld",
            WEFT_CUDA_TILE_M, WEFT_CUDA_TILE_N, (long long)d->rows, (long long)d->cols);
    for (uint32_t i = 0; i < task->region_count; i++) {
        weft_dtype other = operand_of(low, d + i)->dtype;
        if (other != WEFT_F32 && other != dtype)
            return weft_error_set(low->error, WEFT_ERR_UNSUPPORTED,
                                  "the cuda backend takes C, D, bias and sums in float32 or %s, not %s",
                                  weft_dtype_name(dtype), weft_dtype_name(other));
    }
    return WEFT_OK;
}

static bool own_input(const lowering *low, const weft_region *region)
{
    return region->rank == low->part->rank && operand_of(low, region)->place == WEFT_PLACE_USER;
}

/* Over an emulated link: how long it carries what the task stores at peers or reads there. */
static void settle_transfer(lowering *low, const weft_task *task, weft_cuda_task *out)
{
    const weft_region *d = &low->part->regions[task->region0];
    int64_t bytes = 0;
    for (int i = 0; i < task->region_count; i++)
        if (d[i].rank != low->part->rank)
            bytes += d[i].rows * d[i].cols * (int64_t)weft_dtype_size(operand_of(low, d + i)->dtype);
    if (low->binding->link_bytes_per_ns == 0 || bytes == 0)
        return;
    low->program->link_bytes += bytes;
    out->due_ns = (int64_t)((double)bytes / low->binding->link_bytes_per_ns + 0.5);
}

/*
 * A chain: tasks of a lane that continue one another's sums, each but the last marked as carrying. The
 * walkers keep the sums in registers: one GEMM over the whole k-range, whose waits say from which step on
 * they count.
 */
static const weft_task *chain_of(const lowering *low, const weft_lane *lane, uint32_t last)
{
    const weft_task *tasks = &low->part->tasks[lane->task0];
    while (last > 0 && tasks[last - 1].flags & WEFT_TASK_CARRY)
        last--;
    return &tasks[last];
}

static const weft_region *region_a(const lowering *low, const weft_task *task)
{
    return &low->part->regions[task->region0] + task->destinations;
}

/* A and B of the whole chain. */
static void join_chain(const lowering *low, const weft_task *first, const weft_task *last, weft_region *a,
                       weft_region *b)
{
    *a = region_a(low, first)[0];
    *b = region_a(low, first)[1];
    a->cols = b->rows = region_a(low, last)->col0 + region_a(low, last)->cols - a->col0;
}

static weft_status lower_gemm(lowering *low, const weft_task *first, const weft_task *task,
                              weft_cuda_task *out)
{
    const weft_region *regions = &low->part->regions[task->region0];
    weft_region operands[2], *a = operands, *b = operands + 1;
    bool joined = first != task;
    int extra = task->destinations + 2; /* where acc, c and bias follow */
    bool bulk = true;
    weft_status status;
    join_chain(low, first, task, a, b);
    status = check_gemm(low, task, a);
    out->kind = WEFT_CUDA_GEMM;
    out->k = (int32_t)a->cols;
    if (status == WEFT_OK)
        status = bind_operands(low, a, b, out);
    if (task->flags & WEFT_TASK_HAS_ACC)
        out->acc = (int16_t)extra++;
    if (task->flags & WEFT_TASK_HAS_C)
        out->c = (int16_t)extra++;
    if (task->flags & WEFT_TASK_HAS_BIAS)
        out->bias = (int16_t)extra++;
    for (int i = 0; i < task->region_count && status == WEFT_OK; i++) {
        bool product = i >= task->destinations && i < task->destinations + 2;
        weft_cuda_view view = view_of(low, product ? &operands[i - task->destinations] : regions + i);
        if (i < task->destinations) {
            status = bind_destination(low, regions + i, &view);
            bulk &= view.map >= 0 && view.dtype == (int32_t)operand_of(low, regions)->dtype;
        } else if (i >= task->destinations + 2) {
            bulk &= aligned(&view, 2 * (int64_t)weft_dtype_size((weft_dtype)view.dtype));
        }
        if (i == out->bias)
            view.rs = 0;
        if (status == WEFT_OK)
            status = add_view(low, &view);
    }
    if (joined)
        out->acc = -1;
    if (bulk)
        out->flags |= WEFT_CUDA_BULK;
    if (operand_of(low, regions)->dtype == WEFT_F32)
        out->flags |= WEFT_CUDA_WIDE_D;
    if (own_input(low, a) && own_input(low, b))
        out->flags |= WEFT_CUDA_LATE;
    settle_transfer(low, task, out);
    return status;
}

static weft_status lower_plain(lowering *low, const weft_task *task, weft_cuda_task *out)
{
    const weft_region *regions = &low->part->regions[task->region0];
    int extra = task->region_count;
    bool wide = true, copy = task->kind == WEFT_TASK_COPY;
    weft_status status = WEFT_OK;
    out->kind = copy ? WEFT_CUDA_COPY : WEFT_CUDA_REDUCE;
    if (task->flags & WEFT_TASK_HAS_BIAS)
        out->bias = (int16_t)--extra;
    if (task->flags & WEFT_TASK_HAS_C)
        out->c = (int16_t)--extra;
    out->sources = (uint16_t)(extra - out->destinations);
    for (int i = 0; i < task->region_count && status == WEFT_OK; i++) {
        weft_cuda_view view = view_of(low, regions + i);
        int64_t size = (int64_t)weft_dtype_size((weft_dtype)view.dtype);
        if (copy && view.rs == 1 && view.cs != 1) { /* by its lines in memory */
            view.rs = view.cs;
            view.cs = 1;
            out->rows = (int32_t)regions->cols;
            out->cols = (int32_t)regions->rows;
        }
        if (copy && size != 2 && size != 4)
            return weft_error_set(low->error, WEFT_ERR_UNSUPPORTED, "the cuda backend does not move %s",
                                  weft_dtype_name((weft_dtype)view.dtype));
        if (i < extra)
            wide &= copy ? aligned(&view, 16) && out->cols * size % 16 == 0 : aligned(&view, 4 * size);
        out->copy_bytes = (int32_t)(out->cols * size);
        if (i == out->bias)
            view.rs = 0;
        status = add_view(low, &view);
    }
    if (wide)
        out->flags |= WEFT_CUDA_WIDE;
    if (copy) {
        const weft_cuda_view *to = &low->program->views[out->view0], *from = to + 1;
        out->copy_to = to->ptr;
        out->copy_from = from->ptr;
        out->copy_to_step = to->rs * (int64_t)weft_dtype_size((weft_dtype)to->dtype);
        out->copy_from_step = from->rs * (int64_t)weft_dtype_size((weft_dtype)from->dtype);
    }
    if (copy && low->binding->link_bytes_per_ns > 0 && regions[0].rank != regions[1].rank && out->rows > 0)
        out->due_ns = 1; /* on the link: settled when all copies are known */
    if (!copy)
        settle_transfer(low, task, out);
    return status;
}

/* ---- order within a lane ----------------------------------------------------------------------------- */

/*
 * A plan may rely on a lane doing its tasks one after another. The members of a crew do not wait for each
 * other between tasks, so where a task touches what an earlier one of its lane wrote (or writes what that one
 * touched) the lowering adds a signal of its own: the earlier task posts it, the later one waits. What a
 * chain carries never leaves its registers.
 */
typedef struct lane_order {
    uint32_t *signal; /* per task of the lane: the private signal it posts, 0 = none (0 is never private) */
} lane_order;

static bool overlap(const weft_region *x, const weft_region *y)
{
    return x->operand == y->operand && x->rank == y->rank && x->batch == y->batch &&
           x->row0 < y->row0 + y->rows && y->row0 < x->row0 + x->rows && x->col0 < y->col0 + y->cols &&
           y->col0 < x->col0 + x->cols;
}

static int destinations_of(const weft_task *task)
{
    return task->kind == WEFT_TASK_COPY ? 1 : task->destinations;
}

static bool depends(const weft_plan_part *part, const weft_task *later, const weft_task *earlier)
{
    const weft_region *x = &part->regions[later->region0], *y = &part->regions[earlier->region0];
    int x_out = destinations_of(later), y_out = destinations_of(earlier);
    for (int i = 0; i < later->region_count; i++)
        for (int j = 0; j < earlier->region_count; j++)
            if ((i < x_out || j < y_out) && overlap(x + i, y + j))
                return true;
    return false;
}

static void order_lane(lowering *low, const weft_lane *lane, lane_order *order)
{
    const weft_task *tasks = &low->part->tasks[lane->task0];
    memset(order->signal, 0, lane->task_count * sizeof(*order->signal));
    for (uint32_t i = 1; i < lane->task_count; i++)
        for (uint32_t j = 0; j < i && !(tasks[i].flags & WEFT_TASK_CARRY); j++)
            if (!order->signal[j] && !(tasks[j].flags & WEFT_TASK_CARRY) &&
                depends(low->part, &tasks[i], &tasks[j]))
                order->signal[j] = low->part->signal_count + low->program->private_signals++;
}

/* By the step before which they must hold; the order of equals stays. */
static void sort_waits(weft_cuda_program *program, const weft_cuda_task *task)
{
    weft_cuda_wait *waits = program->waits + task->wait0;
    for (int i = 1; i < task->wait_count; i++)
        for (int j = i; j > 0 && waits[j - 1].step > waits[j].step; j--) {
            weft_cuda_wait later = waits[j - 1];
            waits[j - 1] = waits[j];
            waits[j] = later;
        }
}

static weft_status lower_task(lowering *low, const weft_lane *lane, uint32_t at, const lane_order *order,
                              weft_cuda_task *out)
{
    const weft_task *tasks = &low->part->tasks[lane->task0], *task = &tasks[at];
    const weft_region *d = &low->part->regions[task->region0];
    const weft_task *first = task->kind == WEFT_TASK_GEMM ? chain_of(low, lane, at) : task;
    uint32_t waits = 0, posts;
    weft_status status;
    *out = (weft_cuda_task){.destinations = (uint16_t)destinations_of(task),
                            .acc = -1,
                            .c = -1,
                            .bias = -1,
                            .view0 = low->program->view_count,
                            .rows = (int32_t)d->rows,
                            .cols = (int32_t)d->cols,
                            .plan_task = lane->task0 + at};
    if (task->flags & WEFT_TASK_EPILOGUE)
        out->flags |= WEFT_CUDA_EPILOGUE;
    status = task->kind == WEFT_TASK_GEMM ? lower_gemm(low, first, task, out) : lower_plain(low, task, out);
    out->wait0 = low->program->wait_count;
    for (const weft_task *link = first; link <= task && status == WEFT_OK; link++) {
        int64_t k0 = first == task ? 0 : region_a(low, link)->col0 - region_a(low, first)->col0;
        status = k0 % WEFT_CUDA_TILE_K
                     ? weft_error_set(low->error, WEFT_ERR_UNSUPPORTED,
                                      "the cuda backend takes k in chunks of multiples of %d, not of %lld",
                                      WEFT_CUDA_TILE_K, (long long)k0)
                     : add_waits(low, link, k0 / WEFT_CUDA_TILE_K, &waits);
    }
    for (uint32_t j = 0; j < at && status == WEFT_OK; j++)
        if (order->signal[j] && depends(low->part, task, &tasks[j])) {
            status = add_wait(low, order->signal[j], 1, 1, 0);
            waits++;
        }
    if (status == WEFT_OK)
        status = add_posts(low, task, &out->post0, &posts);
    if (status == WEFT_OK && order->signal[at]) {
        status = add_post(low, order->signal[at], low->part->rank);
        posts++;
    }
    if (status == WEFT_OK) {
        out->wait_count = (uint16_t)waits;
        out->post_count = (uint16_t)posts;
        sort_waits(low->program, out);
    }
    return status;
}

/*
 * A post says that its task and all before it in the lane are done. Bulk stores are finished by other threads
 * than plain work, so plain work after them first waits for them.
 */
static void settle_lane(weft_cuda_program *program, const weft_cuda_lane *lane)
{
    weft_cuda_task *tasks = program->tasks + lane->task0;
    for (uint32_t i = 1; i < lane->task_count; i++)
        if (!(tasks[i].flags & WEFT_CUDA_BULK) && tasks[i - 1].flags & WEFT_CUDA_BULK) {
            tasks[i].flags |= WEFT_CUDA_AFTER_BULK;
            tasks[i - 1].flags |= WEFT_CUDA_DRAIN;
        }
}

/* Nothing but copies that the bulk engine can do: a storer runs such a lane. */
static bool bulk_lane(const weft_cuda_program *program, const weft_cuda_lane *lane)
{
    const weft_cuda_task *tasks = program->tasks + lane->task0;
    for (uint32_t i = 0; i < lane->task_count; i++)
        if (tasks[i].kind != WEFT_CUDA_COPY || !(tasks[i].flags & WEFT_CUDA_WIDE))
            return false;
    return true;
}

/*
 * A plan lists a wait once per lane: later tasks of the lane rely on it. On Hopper the thread that loads A
 * and B runs ahead of the consumers, so before it loads anything that is not the rank's own input it makes
 * the waits that the consumers make for earlier tasks, too.
 */
static weft_status carry_waits(lowering *low, const weft_cuda_lane *lane, weft_cuda_task *task,
                               uint32_t *carried)
{
    weft_cuda_program *program = low->program;
    bool loads = task->kind == WEFT_CUDA_GEMM && task->k > 0 && !(task->flags & WEFT_CUDA_LATE);
    for (; loads && *carried < lane->task_count; (*carried)++) {
        const weft_cuda_task *earlier = &program->tasks[lane->task0 + *carried];
        if (earlier->kind == WEFT_CUDA_GEMM && earlier->k > 0 && !(earlier->flags & WEFT_CUDA_LATE))
            continue;
        for (uint32_t i = 0; i < earlier->wait_count; i++, task->wait_count++) {
            weft_cuda_wait wait = program->waits[earlier->wait0 + i];
            weft_status status = add_wait(low, wait.number, wait.count, wait.total, 0);
            if (status != WEFT_OK)
                return status;
        }
    }
    sort_waits(program, task);
    return WEFT_OK;
}

static weft_status lower_lane(lowering *low, const weft_lane *lane, lane_order *order)
{
    weft_cuda_program *program = low->program;
    weft_cuda_lane made = {.task0 = program->task_count};
    weft_status status = WEFT_OK;
    uint32_t carried = 0;
    order_lane(low, lane, order);
    for (uint32_t i = 0; i < lane->task_count && status == WEFT_OK; i++) {
        const weft_task *task = &low->part->tasks[lane->task0 + i];
        if (task->kind == WEFT_TASK_ENTER) {
            program->enter_wait0 = program->wait_count;
            status = add_waits(low, task, 0, &program->enter_waits);
            if (status == WEFT_OK)
                status = add_posts(low, task, &program->enter_post0, &program->enter_posts);
        } else if (task->kind == WEFT_TASK_EXIT) {
            program->exit_wait0 = program->wait_count;
            status = add_waits(low, task, 0, &program->exit_waits);
        } else if (!(task->flags & WEFT_TASK_CARRY)) {
            weft_cuda_task *lowered = &program->tasks[program->task_count];
            status = lower_task(low, lane, i, order, lowered);
            if (status == WEFT_OK)
                status = carry_waits(low, &made, lowered, &carried);
            program->task_count += status == WEFT_OK;
            made.task_count += status == WEFT_OK;
        }
    }
    if (status != WEFT_OK || made.task_count == 0)
        return status;
    settle_lane(program, &made);
    if (low->storers && lane->kind == WEFT_LANE_COPY) {
        program->copies[program->copy_count++] = made;
        low->bulk &= bulk_lane(program, &made);
    } else {
        program->lanes[program->lane_count++] = made;
    }
    return WEFT_OK;
}

/*
 * Where storers cannot run the copy lanes (operands the bulk engine or the Hopper walker refuses), the crews
 * do their work first: it waits for nothing that a crew does.
 */
static weft_status fold_copies(lowering *low)
{
    weft_cuda_program *program = low->program;
    weft_cuda_task *tasks = calloc(program->task_count + 1, sizeof(*tasks)); /* one more, as ever */
    uint32_t at = 0;
    if (!tasks)
        return weft_error_set(low->error, WEFT_ERR_MEMORY, "no memory for a plan of %u tasks",
                              program->task_count);
    for (uint32_t lane = 0; lane < program->lane_count; lane++) {
        weft_cuda_lane made = {.task0 = at}, old = program->lanes[lane];
        bool more = true;
        for (uint32_t turn = 0; more; turn++) {
            more = false;
            for (uint32_t i = lane; i < program->copy_count; i += program->lane_count)
                if (turn < program->copies[i].task_count) {
                    tasks[at++] = program->tasks[program->copies[i].task0 + turn];
                    more = true;
                }
        }
        for (uint32_t i = 0; i < old.task_count; i++)
            tasks[at++] = program->tasks[old.task0 + i];
        made.task_count = at - made.task0;
        program->lanes[lane] = made;
    }
    free(program->tasks);
    program->tasks = tasks;
    program->copy_count = 0;
    return WEFT_OK;
}

/* When each copy of a run would have come over the emulated link: one after another, in the order in which
 * the lanes come to them. */
static void settle_link(weft_cuda_program *program, const weft_cuda_lane *lanes, uint32_t count,
                        const weft_cuda_binding *binding, int64_t *carried)
{
    bool more = true;
    for (uint32_t at = 0; more; at++) {
        more = false;
        for (uint32_t i = 0; i < count; i++) {
            if (at >= lanes[i].task_count)
                continue;
            weft_cuda_task *task = &program->tasks[lanes[i].task0 + at];
            more = true;
            if (task->due_ns == 0 || task->kind != WEFT_CUDA_COPY)
                continue;
            *carried += (int64_t)task->rows * task->copy_bytes;
            task->due_ns =
                (int64_t)(binding->link_latency_ns + (double)*carried / binding->link_bytes_per_ns);
        }
    }
}

/* The narrower walker where no tile is wider than its own. */
static int32_t width_of(const weft_plan_part *part)
{
    for (uint32_t i = 0; i < part->task_count; i++)
        if (part->tasks[i].kind == WEFT_TASK_GEMM &&
            part->regions[part->tasks[i].region0].cols > WEFT_CUDA_NARROW_N)
            return WEFT_CUDA_TILE_N;
    return WEFT_CUDA_NARROW_N;
}

weft_status weft_cuda_program_make(const weft_plan_part *part, const weft_cuda_binding *binding, bool hopper,
                                   weft_cuda_program *program, weft_error_text *error)
{
    weft_cuda_program made = {.hopper = hopper, .tile_n = width_of(part)};
    int64_t carried = 0;
    lowering low = {part, binding, &made, error, 0, hopper, true};
    lane_order order = {calloc(part->task_count + 1, sizeof(*order.signal))};
    weft_status status = WEFT_OK;

    made.lanes = calloc(part->lane_count + 1, sizeof(*made.lanes));
    made.copies = calloc(part->lane_count + 1, sizeof(*made.copies));
    made.tasks = calloc(part->task_count + 1, sizeof(*made.tasks)); /* one more: the walkers prefetch ahead */
    if (!made.lanes || !made.copies || !made.tasks || !order.signal) {
        free(order.signal);
        weft_cuda_program_free(&made);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u tasks", part->task_count);
    }
    for (uint32_t i = 0; i < part->lane_count && status == WEFT_OK; i++)
        status = lower_lane(&low, &part->lanes[i], &order);
    free(order.signal);
    if (status == WEFT_OK && made.private_signals > WEFT_CUDA_PRIVATE_SIGNALS)
        status = weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                "the plan needs %u signals within its lanes; there is room for %d",
                                made.private_signals, WEFT_CUDA_PRIVATE_SIGNALS);
    if (status != WEFT_OK) {
        weft_cuda_program_free(&made);
        return status;
    }
    if (made.lane_count == 0)
        made.lane_count = 1; /* an empty lane still does ENTER and EXIT */
    if (made.copy_count && !(made.hopper && low.bulk))
        status = fold_copies(&low);
    if (status != WEFT_OK) {
        weft_cuda_program_free(&made);
        return status;
    }
    /* every copy lane has a storer */
    while (made.lane_count * WEFT_CUDA_CREW_COPIERS < made.copy_count)
        made.lanes[made.lane_count++] = (weft_cuda_lane){.task0 = 0};
    settle_link(&made, made.lanes, made.lane_count, binding, &carried);
    settle_link(&made, made.copies, made.copy_count, binding, &carried);
    made.link_bytes += carried;
    *program = made;
    return WEFT_OK;
}

void weft_cuda_program_free(weft_cuda_program *program)
{
    free(program->lanes);
    free(program->copies);
    free(program->tasks);
    free(program->views);
    free(program->waits);
    free(program->posts);
    free(program->maps);
    *program = (weft_cuda_program){0};
}
