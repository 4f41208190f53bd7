/* Tasks of a plan part as the walkers read them. See lower.h. */
#include "run/cuda/lower.h"

#include "core/dtype.h"
#include "core/round.h"
#include "run/scales.h"

#include <stdlib.h>
#include <string.h>

/* Room for one more element of an array of the program. */
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

static const weft_operand *operand_of(const weft_lowering *low, const weft_region *region)
{
    return &low->part->operands[region->operand];
}

static const weft_cuda_place *place_of(const weft_lowering *low, const weft_region *region)
{
    return &low->binding->places[region->operand * (uint32_t)low->part->world + (uint32_t)region->rank];
}

/* The first element of the region's batch element. */
static char *matrix_of(const weft_lowering *low, const weft_region *region)
{
    const weft_operand *operand = operand_of(low, region);
    const weft_cuda_place *place = place_of(low, region);
    int64_t lines = operand->transposed ? weft_operand_cols(operand, low->part->world, region->rank)
                                        : weft_operand_rows(operand, low->part->world, region->rank);
    int64_t stride = place->stride ? place->stride : lines * place->ld;
    return (char *)place->base + region->batch * stride * (int64_t)weft_dtype_size(operand->dtype);
}

static weft_cuda_view view_of(const weft_lowering *low, const weft_region *region)
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

static weft_status add_view(weft_lowering *low, const weft_cuda_view *view)
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
static int32_t map_of(weft_lowering *low, const weft_region *region, bool cut_rows, bool cut_cols,
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
    bool exact = (operand->transposed ? cut_rows : cut_cols) && !place_of(low, region)->padded;
    weft_cuda_map map = {.base = matrix_of(low, region),
                         .inner = (uint64_t)(exact ? end : weft_round_up(end, granule)),
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

int weft_cuda_widest(weft_dtype dtype)
{
    return weft_dtype_is_fp8(dtype) ? WEFT_CUDA_FP8_N : WEFT_CUDA_TILE_N;
}

int64_t weft_lower_step_k(const weft_lowering *low)
{
    return weft_dtype_is_fp8(low->part->problem.dtype) ? WEFT_CUDA_FP8_K : WEFT_CUDA_TILE_K;
}

/* A and B of a GEMM for the Hopper walker, whose tensor cores take fp8 along k alone. */
static weft_status bind_operands(weft_lowering *low, const weft_region *a, const weft_region *b,
                                 weft_cuda_task *task)
{
    bool ta = operand_of(low, a)->transposed, tb = operand_of(low, b)->transposed;
    /* a is cut along k (its columns), b along k (its rows); a k-range that ends on a step needs no cut */
    uint32_t along_k = (uint32_t)weft_lower_step_k(low);
    bool cut = a->cols % along_k != 0, fp8 = along_k == WEFT_CUDA_FP8_K;
    /* the walker loads 128 or 256 columns of B: those beyond the tile need not come from memory */
    const weft_cuda_walker *walker = &weft_cuda_walkers[low->program->walker];
    bool cut_n = walker->tile_n % 128 != 0 && (tb || (b->col0 + b->cols) % 8 == 0);
    uint32_t right = weft_cuda_walker_box(walker), left = 128;
    if (fp8 && (ta || !tb)) {
        low->program->hopper = false;
        return WEFT_OK;
    }
    if (task->k == 0) {
        task->a_map = task->b_map = 0;
        return WEFT_OK;
    }
    task->a_map = map_of(low, a, false, cut, along_k, ta ? 64 : walker->exchanged ? right : left);
    task->b_map = map_of(low, b, cut, cut_n, along_k, !tb ? 64 : walker->exchanged ? left : right);
    if (task->a_map == -2 || task->b_map == -2)
        return weft_error_set(low->error, WEFT_ERR_MEMORY, "no memory for the tensor maps of a plan");
    if (task->a_map < 0 || task->b_map < 0)
        low->program->hopper = false;
    task->a_m = (int32_t)a->row0;
    task->a_k = (int32_t)a->col0;
    task->b_k = (int32_t)b->row0;
    task->b_n = (int32_t)b->col0;
    if (walker->exchanged) {
        weft_cuda_task t = *task;
        task->a_map = t.b_map, task->a_m = t.b_n, task->a_k = t.b_k;
        task->b_map = t.a_map, task->b_n = t.a_m, task->b_k = t.a_k;
    }
    return WEFT_OK;
}

/* A matrix of sums that goes through the consumers' boxes. */
static weft_status bind_boxes(weft_lowering *low, const weft_region *d, bool cut_rows, bool cut_cols,
                              weft_cuda_view *view)
{
    if (operand_of(low, d)->transposed || weft_dtype_is_fp8(operand_of(low, d)->dtype))
        return WEFT_OK;
    view->map = map_of(low, d, cut_rows, cut_cols, operand_of(low, d)->dtype != WEFT_F32 ? 64 : 32, 64);
    if (view->map == -2)
        return weft_error_set(low->error, WEFT_ERR_MEMORY, "no memory for the tensor maps of a plan");
    view->row = (int32_t)d->row0;
    view->col = (int32_t)d->col0;
    return WEFT_OK;
}

static weft_status bind_destination(weft_lowering *low, const weft_region *d, weft_cuda_view *view)
{
    bool narrow = operand_of(low, d)->dtype != WEFT_F32;
    /* whole tiles never reach past their region, so they can share the map of the whole matrix */
    const weft_cuda_walker *walker = &weft_cuda_walkers[low->program->walker];
    bool cut_rows = d->rows % walker->tile_m != 0,
         cut_cols = d->cols % (narrow ? weft_round_up(walker->tile_n, 64) : walker->tile_n) != 0;
    return bind_boxes(low, d, cut_rows, cut_cols, view);
}

/* ---- waits and posts --------------------------------------------------------------------------------- */

weft_status weft_lower_wait(weft_lowering *low, uint32_t signal, uint32_t count, uint32_t total, int64_t step)
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

/* Alone: the rank to which this one is what `rank` is to this one. */
static int mirrored(const weft_plan_part *part, int rank)
{
    return (2 * part->rank + part->world - rank) % part->world;
}

weft_status weft_lower_post(weft_lowering *low, uint32_t signal, int rank)
{
    weft_cuda_program *program = low->program;
    const weft_plan_part *part = low->part;
    uint32_t world = (uint32_t)part->world;
    /* no peer runs where kernels stand in: DONE to one stands for that of another to this rank */
    if (low->binding->stand_in && rank != part->rank &&
        signal == WEFT_SIGNAL_DONE(world, (uint32_t)part->rank)) {
        signal = WEFT_SIGNAL_DONE(world, (uint32_t)mirrored(part, rank));
        rank = part->rank;
    }
    if (!RESERVE(program, post))
        return weft_error_set(low->error, WEFT_ERR_MEMORY, "no memory for the posts of a plan");
    program->posts[program->post_count++] =
        low->binding->signals[rank] + (size_t)signal * WEFT_CUDA_LINE_WORDS;
    return WEFT_OK;
}

weft_status weft_lower_waits(weft_lowering *low, const weft_task *task, int64_t step, uint32_t *count)
{
    const weft_plan_part *part = low->part;
    weft_status status = WEFT_OK;
    *count += task->wait_count;
    for (uint32_t i = 0; i < task->wait_count && status == WEFT_OK; i++) {
        const weft_wait *wait = &part->waits[task->wait0 + i];
        status = weft_lower_wait(low, wait->signal, wait->count, part->signal_posts[wait->signal], step);
    }
    return status;
}

static bool tells(const weft_plan_part *part, const weft_task *task, int rank)
{
    for (uint32_t i = 0; i < task->post_count; i++) {
        const weft_post *post = &part->posts[task->post0 + i];
        if (post->rank == rank && post->signal >= 2 * (uint32_t)part->world)
            return true;
    }
    return false;
}

/* The same task of the rank that does to this one what `task` does to its own peer, if the ranks' plans are
 * that much alike. */
static const weft_task *same_task(const weft_lowering *low, const weft_task *task, int rank)
{
    const weft_plan_part *peer = &low->binding->peers[rank];
    uint32_t index = (uint32_t)(task - low->part->tasks);
    const weft_region *d = weft_task_regions(low->part, task), *x;
    bool ring = low->part->problem.op == WEFT_OP_GEMM_RS || low->part->problem.tuning.sums_stay;
    if (index >= peer->task_count || peer->tasks[index].kind != task->kind)
        return NULL;
    x = weft_task_regions(peer, &peer->tasks[index]);
    return x->rank == low->part->rank && x->operand == d->operand && x->batch == d->batch &&
                   x->rows == d->rows && x->cols == d->cols &&
                   (!ring || (x->row0 == d->row0 && x->col0 == d->col0)) &&
                   tells(peer, &peer->tasks[index], low->part->rank)
               ? &peer->tasks[index]
               : NULL;
}

/* Alone: the task that is to a peer what `task` is to this rank, and whose posts come here. */
static const weft_task *counterpart(weft_lowering *low, const weft_task *task, int *rank)
{
    const weft_region *d = weft_task_regions(low->part, task);
    int world = low->part->world;
    const weft_task *same = same_task(low, task, mirrored(low->part, d->rank));
    if (same) {
        *rank = mirrored(low->part, d->rank);
        return same;
    }
    for (int turn = 1; turn < world; turn++) { /* the one before this rank first: rings need no other */
        int r = (low->part->rank + world - turn) % world;
        const weft_plan_part *peer = &low->binding->peers[r];
        for (uint32_t n = 0; n < peer->task_count; n++) {
            /* the order of tasks is much the same on all ranks: go on from the one found last */
            uint32_t i = (n + low->found) % peer->task_count;
            const weft_region *x = weft_task_regions(peer, &peer->tasks[i]);
            if (peer->tasks[i].kind == WEFT_TASK_GEMM && x->rank == (d->rank + world - turn) % world &&
                x->operand == d->operand && x->batch == d->batch && x->row0 == d->row0 &&
                x->col0 == d->col0 && tells(peer, &peer->tasks[i], low->part->rank)) {
                low->found = i;
                *rank = r;
                return &peer->tasks[i];
            }
        }
    }
    return NULL;
}

weft_status weft_lower_posts(weft_lowering *low, const weft_task *task, uint32_t *first, uint32_t *count)
{
    const weft_plan_part *part = low->part;
    bool remote = (task->kind == WEFT_TASK_GEMM || task->kind == WEFT_TASK_REDUCE) &&
                  weft_task_regions(part, task)->rank != part->rank;
    weft_status status = WEFT_OK;
    *first = low->program->post_count;
    *count = 0;
    if (low->binding->peers && remote) {
        int from = 0;
        const weft_task *other = counterpart(low, task, &from);
        for (uint32_t i = 0; !other && i < task->post_count; i++)
            if (part->posts[task->post0 + i].rank != part->rank)
                return weft_error_set(low->error, WEFT_ERR_UNSUPPORTED,
                                      "no rank does to rank %d what its task %u does to rank %d: with shares "
                                      "that differ it cannot run without its peers",
                                      part->rank, (unsigned)(task - part->tasks),
                                      weft_task_regions(part, task)->rank);
        for (uint32_t i = 0; other && i < other->post_count && status == WEFT_OK; i++) {
            const weft_post *post = &low->binding->peers[from].posts[other->post0 + i];
            if (post->rank == part->rank && post->signal >= 2 * (uint32_t)part->world) {
                status = weft_lower_post(low, post->signal, post->rank);
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
        status = weft_lower_post(low, post->signal, back ? part->rank : post->rank);
        ++*count;
    }
    return status;
}

/* ---- tasks ------------------------------------------------------------------------------------------- */

static weft_status check_gemm(const weft_lowering *low, const weft_task *task, const weft_region *a)
{
    const weft_region *d = weft_task_regions(low->part, task);
    weft_dtype dtype = operand_of(low, a)->dtype;
    bool fp8 = weft_dtype_is_fp8(dtype);
    int widest = weft_cuda_widest(dtype);
    if (dtype != WEFT_F16 && dtype != WEFT_BF16 && !fp8)
        return weft_error_set(low->error, WEFT_ERR_UNSUPPORTED,
                              "the cuda backend multiplies float16, bfloat16 and fp8, not %s",
                              weft_dtype_name(dtype));
    if (d->rows > WEFT_CUDA_TILE_M || d->cols > widest)
        return weft_error_set(
            low->error, WEFT_ERR_ARGUMENT,
            "tiles of the cuda backend are at most %d x %d, and the plan has one of %lld x %lld",
            WEFT_CUDA_TILE_M, widest, (long long)d->rows, (long long)d->cols);
    if (low->part->problem.scales == WEFT_SCALE_BLOCK && a->col0 % WEFT_SCALE_BLOCK)
        return weft_error_set(low->error, WEFT_ERR_UNSUPPORTED,
                              "with scales of blocks the cuda backend takes k from multiples of %d on, not "
                              "from %lld: give other tiles",
                              WEFT_SCALE_BLOCK, (long long)a->col0);
    for (uint32_t i = 0; i < task->region_count; i++) {
        weft_dtype other = operand_of(low, d + i)->dtype;
        if (fp8 && (weft_dtype_is_fp8(other) || weft_dtype_size(other) == 2))
            continue;
        if (other != WEFT_F32 && other != dtype)
            return weft_error_set(low->error, WEFT_ERR_UNSUPPORTED,
                                  "the cuda backend takes C, D, bias and sums in float32 or %s, not %s",
                                  weft_dtype_name(dtype), weft_dtype_name(other));
    }
    return WEFT_OK;
}

static bool same_region(const weft_region *x, const weft_region *y)
{
    return x->operand == y->operand && x->rank == y->rank && x->batch == y->batch && x->row0 == y->row0 &&
           x->col0 == y->col0 && x->rows == y->rows && x->cols == y->cols;
}

/* Where a task stores to first. Alone, in a peer's staging memory: where that peer's counterpart would store
 * here. */
static const weft_region *first_destination(weft_lowering *low, const weft_task *task)
{
    const weft_region *d = weft_task_regions(low->part, task);
    int rank;
    const weft_task *other =
        low->binding->peers && d->rank != low->part->rank && operand_of(low, d)->place == WEFT_PLACE_STAGING
            ? counterpart(low, task, &rank)
            : NULL;
    return other ? weft_task_regions(&low->binding->peers[rank], other) : d;
}

/*
 * Carried sums: tasks of a lane that continue one another's, each but the last marked as carrying. The
 * walkers keep the sums in registers: one GEMM over the whole k-range, whose waits say from which step on
 * they count.
 */
const weft_task *weft_lower_first_carried(const weft_lowering *low, const weft_lane *lane, uint32_t last)
{
    const weft_task *tasks = &low->part->tasks[lane->task0];
    while (last > 0 && tasks[last - 1].flags & WEFT_TASK_CARRY)
        last--;
    return &tasks[last];
}

/* A and B of all tasks from `first`, which carries, to `last`. */
static void join_carried(const weft_lowering *low, const weft_task *first, const weft_task *last,
                         weft_region *a, weft_region *b)
{
    const weft_region *end = weft_product_a(low->part, last);
    *a = *weft_product_a(low->part, first);
    *b = *weft_product_b(low->part, first);
    a->cols = b->rows = end->col0 + end->cols - a->col0;
}

/* Where the factors of A's rows and B's columns are, and of k. */
static void count_scales(const weft_lowering *low, const weft_region *a, const weft_region *b, bool of_a,
                         weft_cuda_view *view)
{
    view->row = (int32_t)(of_a ? weft_scales_row(low->part, a) : b->row0);
    view->col = (int32_t)(of_a ? a->col0 : weft_scales_col(low->part, b));
}

weft_status weft_lower_gemm(weft_lowering *low, const weft_task *first, const weft_task *task,
                            weft_cuda_task *out)
{
    const weft_region *regions = weft_task_regions(low->part, task);
    weft_region operands[2], *a = &operands[0], *b = &operands[1];
    bool joined = first != task;
    weft_task_roles roles = weft_task_roles_of(task);
    bool bulk = !weft_cuda_walkers[low->program->walker].exchanged;
    weft_status status;
    join_carried(low, first, task, a, b);
    status = check_gemm(low, task, a);
    out->kind = WEFT_CUDA_GEMM;
    out->k = (int32_t)a->cols;
    if (status == WEFT_OK)
        status = bind_operands(low, a, b, out);
    out->acc = (int16_t)roles.acc;
    out->c = (int16_t)roles.c;
    out->bias = (int16_t)roles.bias;
    for (int i = 0; i < task->region_count && status == WEFT_OK; i++) {
        const weft_region *region = i == roles.a   ? a
                                    : i == roles.b ? b
                                    : i == 0       ? first_destination(low, task)
                                                   : regions + i;
        weft_cuda_view view = view_of(low, region);
        if (region == a || region == b)
            count_scales(low, a, b, region == a, &view);
        if (i < task->destinations) {
            view.row = (int32_t)region->row0;
            view.col = (int32_t)region->col0;
            status = bind_destination(low, region, &view);
            bulk &= view.map >= 0 && view.dtype == (int32_t)operand_of(low, regions)->dtype;
        } else if (i > roles.b) {
            bulk &= aligned(&view, 2 * (int64_t)weft_dtype_size((weft_dtype)view.dtype)) &&
                    !weft_dtype_is_fp8((weft_dtype)view.dtype);
            if (i == out->acc) /* what is read beside the region is not stored */
                status = bind_boxes(low, regions + i, false, false, &view);
        }
        if (i == out->bias)
            view.rs = 0;
        if (status == WEFT_OK)
            status = add_view(low, &view);
    }
    if (joined)
        out->acc = -1;
    if (bulk && out->acc >= 0 && task->destinations == 1 && !(task->flags & WEFT_TASK_EPILOGUE) &&
        same_region(regions, regions + out->acc))
        out->flags |= WEFT_CUDA_ADD;
    if (bulk)
        out->flags |= WEFT_CUDA_BULK;
    if (operand_of(low, regions)->dtype == WEFT_F32)
        out->flags |= WEFT_CUDA_D_F32;
    if (weft_region_is_given(low->part, a) && weft_region_is_given(low->part, b))
        out->flags |= WEFT_CUDA_LATE;
    return status;
}

/* The destination and the source of a REDUCE as the switch knows them: behind its addresses lie those of all
 * ranks. */
static weft_status add_switched(weft_lowering *low, const weft_task *task, weft_cuda_task *out)
{
    const weft_region *regions = weft_task_regions(low->part, task);
    int begins[3] = {0, out->destinations, out->destinations + out->sources};
    weft_status status = WEFT_OK;

    for (int role = 0; role < 2 && status == WEFT_OK; role++) {
        int own = begins[role];
        weft_cuda_view view;

        while (own < begins[role + 1] && regions[own].rank != low->part->rank)
            own++;
        if (begins[role + 1] - begins[role] != low->part->world || own == begins[role + 1])
            return weft_error_set(low->error, WEFT_ERR_ARGUMENT,
                                  "task %u of rank %d is not of all ranks: the switch reduces nothing else",
                                  out->plan_task, low->part->rank);
        view = view_of(low, regions + own);
        view.ptr = (char *)view.ptr + low->binding->to_switch;
        status = add_view(low, &view);
    }
    out->kind = WEFT_CUDA_SWITCHED;
    out->sources = (uint16_t)(out->sources + 2);
    return status;
}

weft_status weft_lower_plain(weft_lowering *low, const weft_task *task, weft_cuda_task *out)
{
    const weft_region *regions = weft_task_regions(low->part, task);
    weft_task_roles roles = weft_task_roles_of(task);
    int extra = roles.ends;
    bool wide = true, f32 = true, copy = task->kind == WEFT_TASK_COPY;
    weft_status status = WEFT_OK;
    if (regions->rows > INT32_MAX || regions->cols > INT32_MAX / (int64_t)sizeof(double))
        return weft_error_set(low->error, WEFT_ERR_UNSUPPORTED,
                              "task %u of rank %d has %lld x %lld elements: on GPUs a task moves less",
                              out->plan_task, low->part->rank, (long long)regions->rows,
                              (long long)regions->cols);
    out->kind = copy ? WEFT_CUDA_COPY : WEFT_CUDA_REDUCE;
    out->bias = (int16_t)roles.bias;
    out->c = (int16_t)roles.c;
    out->sources = (uint16_t)(extra - out->destinations);
    for (int i = 0; i < task->region_count && status == WEFT_OK; i++) {
        weft_cuda_view view = view_of(low, i == 0 && !copy ? first_destination(low, task) : regions + i);
        int64_t size = (int64_t)weft_dtype_size((weft_dtype)view.dtype);
        if (copy && view.rs == 1 && view.cs != 1) { /* by its lines in memory */
            view.rs = view.cs;
            view.cs = 1;
            out->rows = (int32_t)regions->cols;
            out->cols = (int32_t)regions->rows;
        }
        if (copy && size > 4 && low->part->problem.op < WEFT_OP_ALL_REDUCE)
            return weft_error_set(low->error, WEFT_ERR_UNSUPPORTED, "the cuda backend does not move %s",
                                  weft_dtype_name((weft_dtype)view.dtype));
        if (low->part->problem.op >=
            WEFT_OP_ALL_REDUCE) /* rows that are equally far from the next 16 bytes */
            wide &= (uintptr_t)view.ptr % 16 ==
                    (uintptr_t)(i ? low->program->views[out->view0].ptr : view.ptr) % 16;
        else if (i < extra)
            wide &= copy ? aligned(&view, 16) && out->cols * size % 16 == 0 : aligned(&view, 4 * size);
        if (i >= out->destinations && i < extra)
            f32 &= view.dtype == WEFT_F32;
        out->copy_bytes = (int32_t)(out->cols * size);
        if (i == out->bias)
            view.rs = 0;
        if (i < out->destinations) {
            view.row = (int32_t)regions[i].row0;
            view.col = (int32_t)regions[i].col0;
        }
        status = add_view(low, &view);
    }
    if (wide)
        out->flags |= WEFT_CUDA_WIDE;
    if (!copy && low->binding->to_switch && status == WEFT_OK)
        status = add_switched(low, task, out);
    if (!copy && f32)
        out->flags |= WEFT_CUDA_D_F32;
    if (copy) {
        const weft_cuda_view *to = &low->program->views[out->view0], *from = to + 1;
        out->copy_to = to->ptr;
        out->copy_from = from->ptr;
        out->copy_to_step = to->rs * (int64_t)weft_dtype_size((weft_dtype)to->dtype);
        out->copy_from_step = from->rs * (int64_t)weft_dtype_size((weft_dtype)from->dtype);
    }
    return status;
}
