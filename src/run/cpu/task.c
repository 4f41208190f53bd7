#include "run/cpu/task.h"

#include "core/dtype.h"
#include "core/round.h"
#include "group/far.h"
#include "gemm/epilogue.h"
#include "run/cpu/reduce.h"
#include "run/given.h"
#include "run/scales.h"

#include <stdlib.h>
#include <string.h>

void weft_task_bind(weft_executor *x, int rank)
{
    const weft_record *record = weft_session_record(x->session, rank);
    const weft_plan *plan = x->plan;
    uint32_t free_lock = 0;

    /* Partner: the release at the end of this function, in another worker. */
    if (atomic_load_explicit(&x->bound[rank], memory_order_acquire) == x->session->sequence)
        return;
    while (!atomic_compare_exchange_weak_explicit(&x->binding[rank], &free_lock, 1, memory_order_acquire,
                                                  memory_order_relaxed)) {
        free_lock = 0;
        weft_pause();
    }
    if (atomic_load_explicit(&x->bound[rank], memory_order_relaxed) != x->session->sequence) {
        /* Partner: weft_session_publish there. Whoever comes here knows that the record is out. */
        (void)weft_signal_load(&record->sequence);
        for (int role = WEFT_ROLE_A; role < WEFT_ROLE_COUNT; role++) {
            int operand = plan->operand_of_role[role];
            weft_place *place;

            if (operand < 0 || !(plan->touched & 1u << role))
                continue;
            place = &x->places[(size_t)operand * (size_t)x->world + (size_t)rank];
            place->base =
                weft_symm_at(x->group, rank, record->place[weft_record_index((weft_operand_role)role)]);
            place->ld = role <= WEFT_ROLE_D ? record->ld[role] : x->program->operands[operand].ld;
            place->stride_bytes =
                role <= WEFT_ROLE_D ? record->stride[role] : x->program->operands[operand].stride_bytes;
        }
        atomic_store_explicit(&x->bound[rank], x->session->sequence, memory_order_release);
    }
    atomic_store_explicit(&x->binding[rank], 0, memory_order_release);
}

/* A worker's memory, cut up. */
typedef struct space {
    weft_view *views, *more_views; /* each has room for every region of a task */
    weft_region *regions;          /* likewise */
    char *sums, *edge, *blocks[2], *engine;
} space;

static space cut(const weft_program *program, char *workspace)
{
    weft_view *views = (weft_view *)workspace;
    char *sums = workspace + program->lists_bytes, *edge = sums + program->sums_bytes,
         *blocks = edge + program->edge_bytes;

    return (space){.views = views,
                   .more_views = views + program->regions_max,
                   .regions = (weft_region *)(views + 2 * program->regions_max),
                   .sums = sums,
                   .edge = edge,
                   .blocks = {blocks, blocks + program->blocks_bytes},
                   .engine = blocks + 2 * program->blocks_bytes};
}

/* Where a region lies. Strides are in elements; `packed` regions have only their batch's start. */
typedef struct located {
    char *data;
    int64_t row_stride, col_stride;
    const weft_operand *operand;
} located;

/* Whether the engine decides how this operand's tiles lie. */
static bool in_order(const weft_executor *x, const weft_operand *operand)
{
    return operand->handed_on && x->program->order;
}

static located locate(weft_executor *x, const weft_region *region)
{
    const weft_operand *operand = &x->plan->part.operands[region->operand];
    const weft_place *place = &x->places[(size_t)region->operand * (size_t)x->world + (size_t)region->rank];
    located at = {.operand = operand};
    int64_t element_bytes = x->program->operands[region->operand].element_bytes;
    int64_t col0 = region->col0 * weft_operand_width(operand);

    if (region->rank != x->rank && operand->place == WEFT_PLACE_USER)
        weft_task_bind(x, region->rank);
    at.row_stride = operand->transposed ? 1 : place->ld;
    at.col_stride = operand->transposed ? place->ld : 1;
    at.data = place->base + region->batch * place->stride_bytes;
    if (in_order(x, operand)) /* a band of tiles is one tile after another */
        at.data += (region->row0 * place->ld + col0 * region->rows) * element_bytes;
    else if (!operand->packed)
        at.data += (region->row0 * at.row_stride + col0 * at.col_stride) * element_bytes;
    return at;
}

/* As kernels that know only rows see it: a transposed operand is a plain one with rows and columns swapped.
 */
static weft_view view_of(const located *at)
{
    return (weft_view){at->data, at->operand->transposed ? at->col_stride : at->row_stride};
}

static void run_copy(weft_executor *x, const weft_region *to, const weft_region *from)
{
    located destination = locate(x, to), source = locate(x, from);
    size_t element_bytes = weft_dtype_size(source.operand->dtype);
    weft_view into = view_of(&destination), out_of = view_of(&source);
    int64_t width = weft_operand_width(source.operand), col0 = to->col0 * width, cols = to->cols * width;

    if (destination.operand->packed) {
        /* The engine counts from element (0, 0) of all of B, as the packed operand numbers it. */
        const char *origin =
            source.data - (to->row0 * source.row_stride + col0 * source.col_stride) * (int64_t)element_bytes;

        weft_packed_fill(x->plan->bind, (weft_packed *)destination.data, origin, source.operand->dtype,
                         source.row_stride, source.col_stride, to->row0, to->rows, col0, cols);
    } else if (destination.operand->dtype != source.operand->dtype) {
        bool swap = source.operand->transposed;

        weft_reduce_rows(source.operand->dtype, WEFT_SUM, swap ? cols : to->rows, swap ? to->rows : cols,
                         &out_of, 1, destination.operand->dtype, &into, 1);
    } else if (destination.operand->transposed != source.operand->transposed) {
        bool swap = destination.operand->transposed;

        weft_copy_transposed(element_bytes, swap ? cols : to->rows, swap ? to->rows : cols, into, out_of);
    } else {
        bool swap = destination.operand->transposed;

        weft_copy(element_bytes, swap ? cols : to->rows, swap ? to->rows : cols, into, out_of);
    }
}

/* The part of a tile that is the same for GEMM and for the end of a REDUCE; `d` is where it begins in D. */
static void set_epilogue(weft_executor *x, const weft_region *d, const weft_region *c,
                         const weft_region *bias, weft_gemm_tile *tile)
{
    const weft_run_values *values = &x->values;
    int64_t width = weft_act_width(x->plan->part.problem.act);

    tile->raw = false;
    tile->alpha = values->alpha;
    tile->act = x->plan->part.problem.act;
    tile->beta = 0;
    tile->row_scale = values->row_scale ? values->row_scale + d->row0 : NULL;
    tile->col_scale = values->col_scale ? values->col_scale + d->col0 * width : NULL;
    if (c) {
        located at = locate(x, c);

        tile->beta = values->beta;
        tile->c = at.data;
        tile->c_ld = at.row_stride;
    }
    if (bias)
        tile->bias = locate(x, bias).data;
}

/*
 * Runs a tile into its destinations, the rank's own first, from which the engine copies what goes to further
 * ones; those it has no room for are copied afterwards. Bare sums in a type the engine does not write go
 * through `sums`.
 */
static void run_tile(weft_executor *x, weft_gemm_tile *tile, const weft_task *task,
                     const weft_region *regions, char *sums, char *engine)
{
    weft_dtype sum_type = weft_dtype_accumulator(x->plan->part.problem.dtype);
    int count = task->destinations, here = 0, next = 0;
    located first = locate(x, regions);

    while (here < count - 1 && regions[here].rank != x->rank)
        here++;
    tile->d_dtype = first.operand->dtype;
    if (tile->raw && tile->d_dtype != sum_type) {
        weft_view from = {sums, tile->n};

        tile->d_dtype = sum_type;
        tile->d_count = 1;
        tile->d[0] = sums;
        tile->d_ld[0] = tile->n;
        weft_gemm_run_tile(tile, engine);
        for (int i = 0; i < count; i++) {
            located to = locate(x, &regions[i]);
            weft_view into = view_of(&to);

            weft_reduce_rows(sum_type, WEFT_SUM, tile->m, tile->n, &from, 1, to.operand->dtype, &into, 1);
        }
        return;
    }
    first = locate(x, &regions[here]);
    tile->d_count = 1;
    tile->d[0] = first.data;
    tile->d_ld[0] = first.row_stride;
    tile->d_in_order = in_order(x, first.operand);
    tile->order = tile->d_in_order ? x->program->order : tile->order;
    for (; next < count && tile->d_count < WEFT_GEMM_DESTINATIONS_MAX; next++) {
        located to = locate(x, &regions[next]);

        if (next == here)
            continue;
        tile->d[tile->d_count] = to.data;
        tile->d_ld[tile->d_count++] = to.row_stride;
    }
    weft_gemm_run_tile(tile, engine);
    for (; next < count; next++) {
        located to = locate(x, &regions[next]);

        if (next != here)
            weft_copy(weft_dtype_size(tile->d_dtype), tile->m, regions->cols * weft_operand_width(to.operand),
                      view_of(&to), view_of(&first));
    }
}

/* The accumulators a tile starts from, as the engine wants them: `sums` holds them when they travel in
 * another type. */
static void set_acc(weft_executor *x, const weft_region *region, weft_gemm_tile *tile, char *sums)
{
    weft_dtype sum_type = weft_dtype_accumulator(x->plan->part.problem.dtype);
    located at = locate(x, region);

    tile->acc = at.data;
    tile->acc_ld = at.row_stride;
    tile->acc_in_order = in_order(x, at.operand);
    tile->order = tile->acc_in_order ? x->program->order : tile->order;
    if (at.operand->dtype != sum_type) {
        weft_view into = {sums, tile->n}, from = view_of(&at);

        weft_reduce_rows(at.operand->dtype, WEFT_SUM, region->rows, tile->n, &from, 1, sum_type, &into, 1);
        tile->acc = sums;
        tile->acc_ld = tile->n;
    }
}

/*
 * Columns that begin inside a panel of a packed B: the panel's `skip` columns before them are computed as
 * well, into `edge`, and thrown away; what remains is the accumulator of a product over an empty k-range.
 */
static void compute_edge(weft_gemm_tile *tile, int64_t skip, char *edge, char *engine)
{
    weft_gemm_tile wide = *tile;
    int64_t ld = skip + tile->n;

    wide.n = ld;
    wide.packed_n0 -= skip;
    wide.raw = true;
    wide.d_dtype = weft_dtype_accumulator(tile->a_dtype);
    wide.d_count = 1;
    wide.d[0] = edge;
    wide.d_ld[0] = ld;
    if (tile->acc) {
        memset(edge, 0, (size_t)(tile->m * ld) * 4);
        weft_copy(4, tile->m, tile->n, (weft_view){edge + skip * 4, ld},
                  (weft_view){(char *)(uintptr_t)tile->acc, tile->acc_ld});
        wide.acc = edge;
        wide.acc_ld = ld;
    }
    weft_gemm_run_tile(&wide, engine);
    tile->k = 0;
    tile->acc = edge + skip * 4;
    tile->acc_ld = ld;
}

/* sums += part times the factors of one block of k, from k = `k` on. */
static void add_block(const weft_executor *x, const weft_region *a, const weft_region *b, int64_t k,
                      const float *part, float *sums)
{
    const weft_plan_part *plan = &x->plan->part;
    weft_scale_strides of_a = weft_scales_of_a(plan), of_b = weft_scales_of_b(plan);
    int64_t row = weft_scales_row(plan, a), col = weft_scales_col(plan, b), at = k / WEFT_SCALE_BLOCK;
    const weft_run_values *values = &x->values;

    for (int64_t i = 0; i < a->rows; i++) {
        float of_row = values->a_scale ? values->a_scale[(row + i) * of_a.row + at * of_a.col] : 1;

        for (int64_t j = 0, end; j < b->cols; j = end) {
            int64_t block = (col + j) / WEFT_SCALE_BLOCK, next = (block + 1) * WEFT_SCALE_BLOCK - col;
            float scale = of_row * (values->b_scale ? values->b_scale[at * of_b.row + block * of_b.col] : 1);

            end = weft_min(next, b->cols);
            for (int64_t e = i * b->cols + j; e < i * b->cols + end; e++)
                sums[e] += scale * part[e];
        }
    }
}

/*
 * The products of blocks of k, each times its factors: what remains is the accumulator of a product over an
 * empty k-range.
 */
static void compute_blocks(weft_executor *x, weft_gemm_tile *tile, const weft_region *a, const weft_region *b,
                           space room)
{
    int64_t bytes = tile->m * tile->n * 4, first = a->col0, end = a->col0 + a->cols;
    weft_gemm_tile block = *tile;

    if (tile->acc)
        weft_copy(4, tile->m, tile->n, (weft_view){room.blocks[0], tile->n},
                  (weft_view){(char *)(uintptr_t)tile->acc, tile->acc_ld});
    else
        memset(room.blocks[0], 0, (size_t)bytes);
    block.acc = NULL;
    block.raw = true;
    block.d_dtype = WEFT_F32;
    block.d_count = 1;
    block.d[0] = room.blocks[1];
    block.d_ld[0] = tile->n;
    for (int64_t k = first, next; k < end; k = next) {
        next = (k / WEFT_SCALE_BLOCK + 1) * WEFT_SCALE_BLOCK;
        next = weft_min(next, end);
        block.k = next - k;
        block.a = (const char *)tile->a + (k - first) * tile->a_cs; /* elements of one byte */
        block.b = (const char *)tile->b + (k - first) * tile->b_rs;
        weft_gemm_run_tile(&block, room.engine);
        add_block(x, a, b, k, (const float *)room.blocks[1], (float *)room.blocks[0]);
    }
    tile->k = 0;
    tile->acc = room.blocks[0];
    tile->acc_ld = tile->n;
}

/* `skip` is how far into a panel of a packed B the columns begin. */
static void multiply(weft_executor *x, const weft_task *task, const weft_region *regions, int64_t skip,
                     space room)
{
    weft_task_roles roles = weft_task_roles_of(task);
    const weft_region *a = &regions[roles.a], *b = &regions[roles.b];
    weft_gemm_tile tile = weft_gemm_tile_init(x->plan->bind, x->plan->part.problem.dtype);
    int64_t width = weft_act_width(x->plan->part.problem.act);
    located at = locate(x, a);

    tile.m = regions->rows;
    tile.n = b->cols * width;
    tile.k = a->cols;
    tile.a = at.data;
    tile.a_rs = at.row_stride;
    tile.a_cs = at.col_stride;
    at = locate(x, b);
    if (at.operand->packed) {
        tile.packed_b = (const weft_packed *)at.data;
        tile.packed_k0 = b->row0;
        tile.packed_n0 = b->col0 * width;
    } else {
        tile.b = at.data;
        tile.b_rs = at.row_stride;
        tile.b_cs = at.col_stride;
    }
    if (roles.acc >= 0)
        set_acc(x, &regions[roles.acc], &tile, room.sums);
    if ((x->values.a_scale || x->values.b_scale) && tile.k)
        compute_blocks(x, &tile, a, b, room);
    else if (skip && tile.k)
        compute_edge(&tile, skip, room.edge, room.engine);
    tile.raw = true;
    if (task->flags & WEFT_TASK_EPILOGUE)
        set_epilogue(x, regions, roles.c >= 0 ? &regions[roles.c] : NULL,
                     roles.bias >= 0 ? &regions[roles.bias] : NULL, &tile);
    run_tile(x, &tile, task, regions, room.sums, room.engine);
}

/* Columns [col0, col0 + cols) of every region of a GEMM task but A. */
static const weft_region *slice(const weft_task *task, const weft_region *regions, int64_t col0, int64_t cols,
                                weft_region *into)
{
    int a = weft_task_roles_of(task).a;

    for (int i = 0; i < task->region_count; i++) {
        into[i] = regions[i];
        if (i != a) {
            into[i].col0 += col0;
            into[i].cols = cols;
        }
    }
    return into;
}

static void run_gemm(weft_executor *x, const weft_task *task, const weft_region *regions, space room)
{
    const weft_region *b = &regions[weft_task_roles_of(task).b];
    int64_t nr = x->plan->bind->kernel->nr, width = weft_act_width(x->plan->part.problem.act), skip = 0, head;

    if (x->plan->part.operands[b->operand].packed)
        skip = b->col0 * width % nr;
    if (!skip) {
        multiply(x, task, regions, 0, room);
        return;
    }
    head = weft_min((nr - skip) / width, b->cols); /* panels hold whole pairs */
    multiply(x, task, slice(task, regions, 0, head, room.regions), skip, room);
    if (head < b->cols)
        multiply(x, task, slice(task, regions, head, b->cols - head, room.regions), 0, room);
}

/* Sums that need an epilogue: block by block into accumulators, which the engine then finishes as a product
 * over an empty k-range, so that a value has the same bits whichever way it came. */
static void reduce_with_epilogue(weft_executor *x, const weft_task *task, const weft_region *regions,
                                 int source_count, weft_dtype dtype, space room)
{
    weft_task_roles roles = weft_task_roles_of(task);
    weft_dtype sum_type = weft_dtype_accumulator(x->plan->part.problem.dtype);
    int64_t width = weft_act_width(x->plan->part.problem.act);
    int64_t elems = (int64_t)x->program->sums_bytes / 4 / width, from_bytes = (int64_t)weft_dtype_size(dtype);
    int64_t step_cols = weft_min(regions->cols, elems), step_rows = step_cols ? elems / step_cols : 0;
    const weft_view *sources = room.views;

    for (int64_t row = 0; row < regions->rows && step_cols; row += step_rows) {
        for (int64_t col = 0; col < regions->cols; col += step_cols) {
            int64_t rows = weft_min(regions->rows - row, step_rows);
            int64_t cols = weft_min(regions->cols - col, step_cols);
            weft_gemm_tile tile = weft_gemm_tile_init(x->plan->bind, x->plan->part.problem.dtype);
            weft_region to[WEFT_GEMM_DESTINATIONS_MAX];
            weft_view *blocks = room.more_views, into = {room.sums, cols * width};
            weft_region c = {0}, bias = {0}, at_d = regions[0];

            for (int i = 0; i < source_count; i++) {
                blocks[i] = sources[i];
                blocks[i].data += (row * sources[i].ld + col * width) * from_bytes;
            }
            weft_reduce_rows(dtype, WEFT_SUM, rows, cols * width, blocks, source_count, sum_type, &into, 1);
            if (roles.c >= 0) {
                c = regions[roles.c];
                c.row0 += row;
                c.col0 += col;
            }
            if (roles.bias >= 0) {
                bias = regions[roles.bias];
                bias.col0 += col;
            }
            at_d.row0 += row;
            at_d.col0 += col;
            tile.m = rows;
            tile.n = cols * width;
            tile.acc = room.sums;
            tile.acc_ld = cols * width;
            set_epilogue(x, &at_d, roles.c >= 0 ? &c : NULL, roles.bias >= 0 ? &bias : NULL, &tile);
            for (int done = 0; done < task->destinations; done += tile.d_count) {
                tile.d_count = task->destinations - done;
                if (tile.d_count > WEFT_GEMM_DESTINATIONS_MAX)
                    tile.d_count = WEFT_GEMM_DESTINATIONS_MAX;
                for (int i = 0; i < tile.d_count; i++) {
                    located at;

                    to[i] = regions[done + i];
                    to[i].row0 += row;
                    to[i].col0 += col;
                    at = locate(x, &to[i]);
                    tile.d[i] = at.data;
                    tile.d_ld[i] = at.row_stride;
                    tile.d_dtype = at.operand->dtype;
                }
                weft_gemm_run_tile(&tile, room.engine);
            }
        }
    }
}

/* alpha = 1 and nothing else: the sum itself, which the plain reduction writes without a detour. */
static bool epilogue_is_plain(const weft_executor *x, const weft_task *task)
{
    const weft_problem *problem = &x->plan->part.problem;

    return !(task->flags & (WEFT_TASK_HAS_C | WEFT_TASK_HAS_BIAS)) && x->values.alpha == 1.0f &&
           !x->values.row_scale && !x->values.col_scale && problem->act == WEFT_ACT_NONE &&
           problem->dtype != WEFT_I8 && !weft_dtype_is_fp8(problem->d_dtype);
}

static void run_reduce(weft_executor *x, const weft_task *task, const weft_region *regions, space room)
{
    int source_count = weft_task_roles_of(task).inputs;
    weft_view *sources = room.views, *destinations = room.more_views;
    weft_dtype dtype = WEFT_F32, to = WEFT_F32;
    int64_t width = weft_operand_width(&x->plan->part.operands[regions->operand]);
    weft_reduction reduction =
        x->plan->part.problem.op >= WEFT_OP_ALL_REDUCE ? x->plan->part.problem.reduction : WEFT_SUM;
    int64_t rows, cols;
    bool swap = false;

    for (int i = 0; i < source_count; i++) {
        located at = locate(x, &weft_task_inputs(&x->plan->part, task)[i]);

        sources[i] = view_of(&at);
        dtype = at.operand->dtype;
    }
    if (task->flags & WEFT_TASK_EPILOGUE && !epilogue_is_plain(x, task)) {
        reduce_with_epilogue(x, task, regions, source_count, dtype, room);
        return;
    }
    for (int i = 0; i < task->destinations; i++) {
        located at = locate(x, &regions[i]);

        destinations[i] = view_of(&at);
        to = at.operand->dtype;
        swap = at.operand->transposed;
    }
    rows = swap ? regions->cols * width : regions->rows;
    cols = swap ? regions->rows : regions->cols * width;
    if (reduction != WEFT_AVERAGE)
        weft_reduce_rows(dtype, reduction, rows, cols, sources, source_count, to, destinations,
                         task->destinations);
    else if (x->plan->part.operands[regions->operand].output)
        weft_average_rows(dtype, x->world, rows, cols, sources, source_count, to, destinations,
                          task->destinations);
    else /* a sum of some ranks, on its way */
        weft_reduce_rows(dtype, WEFT_SUM, rows, cols, sources, source_count, to, destinations,
                         task->destinations);
}

/* The posts of a message, as many as fit; returns how many. */
static int list_posts(weft_executor *x, const weft_task *task, uint32_t first, weft_net_put *put)
{
    put->post_count = 0;
    for (uint32_t i = first; i < task->post_count && put->post_count < WEFT_NET_POSTS; i++) {
        const weft_post *post = &x->plan->part.posts[task->post0 + i];

        put->posts[put->post_count++] =
            (weft_net_post){(char *)&x->signals[post->signal] + x->delta[post->rank], 1};
    }
    return put->post_count;
}

/* A source that has another type or order than the destination is changed here, on its way. */
static bool convert(weft_executor *x, const weft_region *to, const weft_region *from, weft_net_put *put)
{
    located destination = locate(x, to), source = locate(x, from);
    size_t element_bytes = weft_dtype_size(destination.operand->dtype);
    int64_t width = weft_operand_width(source.operand), cols = to->cols * width;
    bool swap = destination.operand->transposed;
    weft_view out_of = view_of(&source), into = {malloc(put->rows * put->row_bytes), swap ? to->rows : cols};

    if (!into.data)
        return false;
    if (destination.operand->dtype != source.operand->dtype)
        weft_reduce_rows(source.operand->dtype, WEFT_SUM, swap ? cols : to->rows, swap ? to->rows : cols,
                         &out_of, 1, destination.operand->dtype, &into, 1);
    else
        weft_copy_transposed(element_bytes, swap ? cols : to->rows, swap ? to->rows : cols, into, out_of);
    put->from = into.data;
    put->from_pitch = (ptrdiff_t)put->row_bytes;
    return true;
}

void weft_task_send(weft_executor *x, const weft_task *task, weft_signal *departed)
{
    const weft_region *to = weft_task_regions(&x->plan->part, task);
    const weft_region *from = weft_copy_source(&x->plan->part, task);
    int there = x->group->seats[to->rank].world_rank;
    weft_net_put put = {.effect = WEFT_NET_ADD};
    uint32_t posted = (uint32_t)list_posts(x, task, 0, &put);
    bool converted = false;

    if (to->rows > 0 && to->cols > 0) {
        located destination = locate(x, to), source = locate(x, from);
        size_t element_bytes = weft_dtype_size(destination.operand->dtype);
        int64_t cols = to->cols * weft_operand_width(source.operand);
        bool swap = destination.operand->transposed;

        put.into = destination.data;
        put.from = source.data;
        put.rows = (size_t)(swap ? cols : to->rows);
        put.row_bytes = (size_t)(swap ? to->rows : cols) * element_bytes;
        put.into_pitch = (swap ? destination.col_stride : destination.row_stride) * (ptrdiff_t)element_bytes;
        put.from_pitch = (swap ? source.col_stride : source.row_stride) * (ptrdiff_t)element_bytes;
        if (destination.operand->dtype != source.operand->dtype || swap != source.operand->transposed) {
            converted = convert(x, to, from, &put);
            if (!converted) {
                weft_group_end(x->group, WEFT_ERR_MEMORY, "a rank has no memory for a message");
                weft_signal_post(departed, 1);
                return;
            }
        }
    }
    weft_net_send(x->group->world->net, there, &put, converted ? NULL : departed);
    if (converted) {
        free((void *)(uintptr_t)put.from);
        weft_signal_post(departed, 1);
    }
    while (posted < task->post_count) {
        put = (weft_net_put){.effect = WEFT_NET_ADD};
        posted += (uint32_t)list_posts(x, task, posted, &put);
        weft_net_send(x->group->world->net, there, &put, NULL);
    }
}

/* ---- before the destination has entered ------------------------------------------------------------- */

/* What an early message says: where its rows go in an operand of the receiver, and which two signals to post
 * there, by number + 1. */
enum { WHAT_OPERAND, WHAT_ROWS, WHAT_ROW0, WHAT_COLS, WHAT_COL0, WHAT_POSTS };

bool weft_task_may_be_early(const weft_executor *x, const weft_task *task)
{
    const weft_region *to = weft_task_regions(&x->plan->part, task);

    return weft_given_lands(&x->plan->part, task) &&
           (to->rows == 0 || to->cols == 0 || !in_order(x, &x->plan->part.operands[to->operand]));
}

bool weft_task_is_placed(const weft_executor *x, const weft_task *task)
{
    const weft_operand *into = &x->plan->part.operands[weft_task_regions(&x->plan->part, task)->operand];

    return into->place == WEFT_PLACE_USER && !(x->plan->touched & 1u << into->role);
}

static size_t region_bytes(const weft_executor *x, const weft_region *region)
{
    const weft_operand *operand = &x->plan->part.operands[region->operand];

    return (size_t)(region->cols * weft_operand_width(operand)) * weft_dtype_size(operand->dtype);
}

void weft_task_send_early(weft_executor *x, const weft_task *task, weft_signal *departed)
{
    const weft_plan_part *part = &x->plan->part;
    const weft_region *to = weft_task_regions(part, task), *from = weft_copy_source(part, task);
    weft_net_early early = {.call = x->early.call};
    weft_net_put record;
    bool along = weft_session_take_along(x->session, to->rank, &record);

    if (to->rows > 0 && to->cols > 0) {
        located source = locate(x, from);

        early.from = source.data;
        early.rows = (size_t)to->rows;
        early.row_bytes = region_bytes(x, to);
        early.from_pitch = source.row_stride * (ptrdiff_t)weft_dtype_size(source.operand->dtype);
    }
    early.what[WHAT_OPERAND] = (uint64_t)to->operand << 32 | (uint32_t)to->batch;
    early.what[WHAT_ROWS] = (uint64_t)to->rows;
    early.what[WHAT_ROW0] = (uint64_t)to->row0;
    early.what[WHAT_COLS] = (uint64_t)to->cols;
    early.what[WHAT_COL0] = (uint64_t)to->col0;
    for (uint32_t i = 0; i < task->post_count; i++)
        early.what[WHAT_POSTS] |= ((uint64_t)part->posts[task->post0 + i].signal + 1) << 32 * i;
    weft_net_send_early(x->group->world->net, x->group->seats[to->rank].world_rank, &early,
                        along ? &record : NULL, departed);
}

/* `count` from `first` on lie within `all`. */
static bool within(uint64_t first, uint64_t count, int64_t all)
{
    return all >= 0 && count <= (uint64_t)all && first <= (uint64_t)all - count;
}

char *weft_task_place_early(void *executor, const uint64_t what[WEFT_NET_WORDS], uint64_t rows,
                            uint64_t row_bytes, ptrdiff_t *pitch)
{
    weft_executor *x = executor;
    uint64_t operand = what[WHAT_OPERAND] >> 32, batch = what[WHAT_OPERAND] & UINT32_MAX;
    const weft_operand *into;
    weft_region region;
    located at;

    if (operand >= x->plan->part.operand_count)
        return NULL;
    into = &x->plan->part.operands[operand];
    if (into->transposed || into->packed || in_order(x, into) || !within(batch, 1, into->batch) ||
        !within(what[WHAT_ROW0], what[WHAT_ROWS], weft_operand_rows(into, x->world, x->rank)) ||
        !within(what[WHAT_COL0], what[WHAT_COLS], weft_operand_cols(into, x->world, x->rank)))
        return NULL;
    region = (weft_region){.operand = (uint32_t)operand,
                           .rank = x->rank,
                           .batch = (int64_t)batch,
                           .row0 = (int64_t)what[WHAT_ROW0],
                           .rows = (int64_t)what[WHAT_ROWS],
                           .col0 = (int64_t)what[WHAT_COL0],
                           .cols = (int64_t)what[WHAT_COLS]};
    if (rows != what[WHAT_ROWS] || row_bytes != region_bytes(x, &region))
        return NULL;
    at = locate(x, &region);
    *pitch = at.row_stride * (ptrdiff_t)weft_dtype_size(into->dtype);
    return at.data;
}

void weft_task_landed_early(void *executor, const uint64_t what[WEFT_NET_WORDS])
{
    weft_executor *x = executor;

    for (int i = 0; i < WEFT_LANDED_POSTS; i++) {
        uint32_t signal = (uint32_t)(what[WHAT_POSTS] >> 32 * i);

        if (signal && signal <= x->plan->part.signal_count)
            weft_signal_post(&x->signals[signal - 1], 1);
    }
}

void weft_task_run(weft_executor *x, const weft_task *task, char *workspace)
{
    const weft_region *regions = weft_task_regions(&x->plan->part, task);

    switch ((weft_task_kind)task->kind) {
    case WEFT_TASK_COPY:
        run_copy(x, regions, weft_copy_source(&x->plan->part, task));
        break;
    case WEFT_TASK_GEMM:
        run_gemm(x, task, regions, cut(x->program, workspace));
        break;
    case WEFT_TASK_REDUCE:
        run_reduce(x, task, regions, cut(x->program, workspace));
        break;
    case WEFT_TASK_ENTER:
    case WEFT_TASK_EXIT:
        break;
    }
}
