/* Loads programs, launches them, reads back how they ended. */
#include "run/cuda/executor.h"

#include "core/dtype.h"
#include "run/cuda/choose.h"
#include "run/cuda/emulate.h"
#include "run/cuda/halves.h"
#include "run/cuda/maps.h"
#include "run/scales.h"

#include <stdlib.h>
#include <string.h>

/* ---- tables ------------------------------------------------------------------------------------------ */

static weft_status encode_map(const weft_cuda_driver *cu, const weft_cuda_map *map, CUtensorMap *out,
                              weft_error_text *error)
{
    CUtensorMapDataType type = map->dtype == WEFT_F32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                               : map->dtype == WEFT_F16  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                               : map->dtype == WEFT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                         : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    cuuint64_t extents[2] = {map->inner, map->outer}, pitch[1] = {map->pitch_bytes};
    cuuint32_t box[2] = {map->box_inner, map->box_outer}, steps[2] = {1, 1};
    WEFT_CUDA_TRY(cuTensorMapEncodeTiled(
        out, type, 2, map->base, extents, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return WEFT_OK;
}

/* One table after another in one allocation, each on a line of its own. */
typedef struct layout {
    size_t copies, tasks, views, waits, posts, maps, peers, transfers, link, bytes;
} layout;

static size_t place(size_t *at, size_t count, size_t size)
{
    size_t begin = *at;
    *at = (begin + count * size + 127) / 128 * 128;
    return begin;
}

static layout lay_out(const weft_cuda_program *p, uint32_t transfers, int world)
{
    layout l;
    size_t at = 0;
    l.copies = place(&at, p->copy_count, sizeof(*p->copies));
    l.tasks = place(&at, p->task_count + 1, sizeof(*p->tasks));
    l.views = place(&at, p->view_count, sizeof(*p->views));
    l.waits = place(&at, p->wait_count, sizeof(*p->waits));
    l.posts = place(&at, p->post_count, sizeof(*p->posts));
    l.maps = place(&at, p->map_count, sizeof(CUtensorMap));
    l.peers = place(&at, (size_t)world, sizeof(void *));
    l.transfers = place(&at, transfers, sizeof(*p->transfers));
    l.link = place(&at, 1, sizeof(weft_cuda_emulation));
    l.bytes = at;
    return l;
}

static void put(char *image, size_t at, const void *array, size_t bytes)
{
    if (bytes)
        memcpy(image + at, array, bytes);
}

/* The emulated link that `binding` has; its transfers lie where they are uploaded to. */
static weft_cuda_emulation emulation_of(const weft_cuda_binding *binding, int world)
{
    return (weft_cuda_emulation){.latency_ns = (uint64_t)binding->link_latency_ns,
                                 .late_ns = (uint64_t)binding->link_late_ns,
                                 .eighths_per_byte = (float)(8 / binding->link_bytes_per_ns),
                                 .peers = (uint32_t)world - 1,
                                 .first = UINT64_MAX,
                                 .run_first = UINT64_MAX};
}

static weft_status upload(weft_cuda_executor *executor, const weft_cuda_program *p,
                          const weft_plan_part *part, const weft_cuda_binding *binding,
                          weft_cuda_control *const *controls, weft_error_text *error)
{
    int world = part->world;
    bool link = binding->link_bytes_per_ns > 0;
    const weft_cuda_driver *cu = executor->device->cu;
    layout l = lay_out(p, p->transfers ? part->task_count + 1 : 0, world);
    char *image = aligned_alloc(128, l.bytes), *base;
    weft_status status = WEFT_OK;
    if (!image)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u tasks", p->task_count);
    memset(image, 0, l.bytes);
    put(image, l.copies, p->copies, p->copy_count * sizeof(*p->copies));
    put(image, l.tasks, p->tasks, p->task_count * sizeof(*p->tasks));
    put(image, l.views, p->views, p->view_count * sizeof(*p->views));
    put(image, l.waits, p->waits, p->wait_count * sizeof(*p->waits));
    put(image, l.posts, p->posts, p->post_count * sizeof(*p->posts));
    put(image, l.peers, controls, (size_t)world * sizeof(*controls));
    if (p->transfers)
        put(image, l.transfers, p->transfers, part->task_count * sizeof(*p->transfers));
    for (uint32_t i = 0; i < p->map_count && status == WEFT_OK && p->hopper; i++)
        status = encode_map(cu, &p->maps[i], (CUtensorMap *)(image + l.maps) + i, error);
    if (status == WEFT_OK)
        status =
            weft_cuda_check(cu, cu->cuMemAllocAsync(&executor->tables, l.bytes, executor->device->uploads),
                            "cuMemAllocAsync", error);
    if (status == WEFT_OK && link) {
        weft_cuda_emulation emulation = emulation_of(binding, world);
        emulation.transfers = (weft_cuda_transfer *)((char *)(uintptr_t)executor->tables + l.transfers);
        put(image, l.link, &emulation, sizeof(emulation));
        executor->args.link = (weft_cuda_emulation *)((char *)(uintptr_t)executor->tables + l.link);
    }
    if (status == WEFT_OK)
        status = weft_cuda_check(
            cu, cu->cuMemcpyHtoDAsync(executor->tables, image, l.bytes, executor->device->uploads),
            "cuMemcpyHtoDAsync", error);
    if (status == WEFT_OK)
        status = weft_cuda_check(cu, cu->cuStreamSynchronize(executor->device->uploads),
                                 "cuStreamSynchronize", error);
    executor->table_bytes = l.bytes;
    base = (char *)(uintptr_t)executor->tables;
    executor->args.maps = base + l.maps;
    executor->args.maps_reused = 1;
    if (status == WEFT_OK && p->hopper && p->map_count) {
        CUdeviceptr fresh =
            weft_cuda_maps_place(executor->device, (CUtensorMap *)(image + l.maps), p->map_count);
        if (fresh) {
            executor->args.maps = (const void *)(uintptr_t)fresh;
            executor->args.maps_reused = 0;
        }
    }
    free(image);
    executor->args.copies = (const weft_cuda_lane *)(base + l.copies);
    executor->args.tasks = (const weft_cuda_task *)(base + l.tasks);
    executor->args.views = (const weft_cuda_view *)(base + l.views);
    executor->args.waits = (const weft_cuda_wait *)(base + l.waits);
    executor->args.posts = (uint64_t *const *)(base + l.posts);
    executor->args.peers = (weft_cuda_control *const *)(base + l.peers);
    return status;
}

/* ---- kernels ----------------------------------------------------------------------------------------- */

static CUfunction pick_kernel(const weft_cuda_executor *executor, const weft_problem *problem, int walker)
{
    const weft_cuda_device *device = executor->device;
    int f16 = problem->dtype == WEFT_F16;
    bool link = executor->args.link != NULL;
    if (executor->kind == WEFT_CUDA_PACKETS)
        return !executor->packets.lines     ? device->packets[problem->dtype]
               : !executor->packets.reduces ? device->lines_moved
                                            : device->lines[executor->packets.whole_lines][problem->dtype];
    if (executor->kind == WEFT_CUDA_SUMS)
        return link ? device->sums_link : device->sums;
    if (executor->kind == WEFT_CUDA_COLLECTIVE)
        return !link                         ? device->collective[problem->dtype]
               : problem->dtype <= WEFT_BF16 ? device->collective_link[problem->dtype]
                                             : NULL;
    if (link)
        return walker < WEFT_CUDA_LINK_WALKERS && problem->dtype == WEFT_BF16 && executor->hopper &&
                       !problem->transa && !problem->transb
                   ? device->walkers_link[walker]
                   : NULL;
    if (weft_dtype_is_fp8(problem->dtype))
        return executor->hopper
                   ? device->fp8[problem->dtype == WEFT_FP8_E5M2][weft_cuda_walkers[walker].ctas == 1]
                   : device->any_fp8;
    if (!executor->hopper)
        return device->any[f16];
    return device->walkers[f16][walker][weft_cuda_walker_form(&weft_cuda_walkers[walker], problem->transa,
                                                              problem->transb)];
}

/* What a run brings in device memory. */
static void fill_scales(weft_cuda_args *args, const weft_plan_part *part, const weft_operands *values)
{
    weft_scale_strides a = weft_scales_of_a(part), b = weft_scales_of_b(part);

    args->alpha_at = values->alpha;
    args->row_scale = values->row_scale;
    args->col_scale = values->col_scale;
    args->a_scale = values->a_scale;
    args->b_scale = values->b_scale;
    args->a_scale_row = a.row;
    args->a_scale_k = a.col;
    args->b_scale_k = b.row;
    args->b_scale_col = b.col;
}

static void fill_args(weft_cuda_args *args, const weft_plan_part *part, const weft_cuda_program *program,
                      weft_cuda_control *control, const weft_cuda_limits *limits)
{
    if (program->lane_count <= WEFT_CUDA_CREWS_MAX)
        memcpy(args->lanes, program->lanes, program->lane_count * sizeof(*program->lanes));
    args->copy_count = program->copy_count;
    args->map_count = program->map_count;
    args->tile_m = weft_cuda_walkers[program->walker].tile_m;
    args->tile_n = weft_cuda_walkers[program->walker].tile_n;
    args->exchanged = weft_cuda_walkers[program->walker].exchanged;
    args->control = control;
    args->world = part->world;
    args->rank = part->rank;
    args->enter_post0 = program->enter_post0;
    args->enter_posts = program->enter_posts;
    args->enter_wait0 = program->enter_wait0;
    args->enter_waits = program->enter_waits;
    args->exit_wait0 = program->exit_wait0;
    args->exit_waits = program->exit_waits;
    args->alpha = part->problem.alpha;
    args->beta = part->problem.beta;
    args->act = (int32_t)part->problem.act;
    args->enter_deadline_ns = (uint64_t)(limits->enter_seconds * 1e9);
    args->progress_deadline_ns = (uint64_t)(limits->progress_seconds * 1e9);
    args->ranks_enter = (uint32_t)part->world;
    args->fast = (uint32_t)part->problem.fp8_fast;
}

/* ---- the gate ---------------------------------------------------------------------------------------- */

static bool has_product(const weft_cuda_executor *executor)
{
    return executor->library.lt || executor->splitk.kernel;
}

/* An ENTER signal of every rank, and how often the gate has run. */
static uint32_t gate_signals(const weft_plan_part *part)
{
    return (uint32_t)part->world + 1;
}

/*
 * Whether CTAs that wait for peers would keep so many SMs of a GPU that ranks share that a peer's product,
 * which may come in clusters, finds no place. Then a kernel of one CTA waits first, see weft_gate. Every rank
 * must answer alike: so by what is equal on all.
 */
static bool needs_gate(const weft_plan_part *part, const weft_cuda_binding *binding,
                       const weft_cuda_executor *made, int crews)
{
    int waiting = (made->kind == WEFT_CUDA_EXCHANGE ? weft_cuda_ctas(made->device, crews)
                                                    : part->problem.tuning.workers) *
                  (part->world - 1);

    return !binding->wire.apart && (has_product(made) || binding->collective) &&
           waiting > weft_cuda_waiting_most(weft_cuda_ctas(made->device, crews), part->world);
}

/* Its signals are the last of the private ones; its posts stand behind the program's. */
static weft_status add_gate(const weft_plan_part *part, const weft_cuda_binding *binding,
                            weft_cuda_program *program, weft_cuda_executor *made, weft_error_text *error)
{
    uint32_t world = (uint32_t)part->world,
             first = part->signal_count + WEFT_CUDA_PRIVATE_SIGNALS - gate_signals(part);
    uint64_t **posts = realloc(program->posts, (program->post_count + world) * sizeof(*posts));

    if (!posts)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the signals of %u ranks", world);
    made->gate = binding->signals[part->rank] + (size_t)first * WEFT_CUDA_LINE_WORDS;
    made->gate_post0 = program->post_count;
    program->posts = posts;
    for (uint32_t r = 0; r < world; r++)
        if ((int)r != part->rank)
            posts[program->post_count++] =
                binding->signals[r] + (first + (size_t)part->rank) * WEFT_CUDA_LINE_WORDS;
    return WEFT_OK;
}

/* ---- programs ---------------------------------------------------------------------------------------- */

/* A CTA has a thread for every wait, post and region of a task, and a line of its own behind the signals. */
static weft_status check_collective(const weft_plan_part *part, const weft_cuda_program *program,
                                    uint32_t lanes, weft_error_text *error)
{
    if (2 * part->world > WEFT_CUDA_COLLECTIVE_THREADS)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "collectives on GPUs are for at most %d ranks, not %d",
                              WEFT_CUDA_COLLECTIVE_THREADS / 2, part->world);
    if (program->private_signals + lanes + gate_signals(part) > WEFT_CUDA_PRIVATE_SIGNALS)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "the plan needs %u signals beside its own",
                              program->private_signals + lanes + gate_signals(part));
    return WEFT_OK;
}

/* The program of a part, unaligned operands replaced by the copies that its runs make of them. */
static weft_status lower(weft_cuda_device *device, const weft_plan_part *part,
                         const weft_cuda_binding *binding, bool hopper, weft_cuda_repitched *repitched,
                         weft_cuda_program *program, weft_error_text *error)
{
    size_t count = (size_t)part->operand_count * (size_t)part->world;
    weft_cuda_place *places = malloc((count + 1) * sizeof(*places));
    weft_cuda_binding bound = *binding;
    weft_status status;

    if (!places)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u operands",
                              part->operand_count);
    memcpy(places, binding->places, count * sizeof(*places));
    bound.places = places;
    status = weft_cuda_repitched_make(device, part, places, repitched, error);
    if (status == WEFT_OK)
        status = weft_cuda_program_make(part, &bound, hopper, program, error);
    if (status != WEFT_OK)
        weft_cuda_repitched_free(device, repitched);
    free(places);
    return status;
}

/* Loads what the walker or the collectives' kernels do. */
static weft_status make_kernel(const weft_plan_part *part, const weft_cuda_binding *binding,
                               weft_cuda_control *const *controls, int crews, const weft_cuda_limits *limits,
                               weft_cuda_executor *made, weft_error_text *error)
{
    weft_cuda_device *device = made->device;
    bool product = made->kind == WEFT_CUDA_PRODUCT, packets = made->kind == WEFT_CUDA_PACKETS;
    weft_cuda_program program = {0};
    int share = crews;
    weft_status status =
        packets ? weft_cuda_packets_make(part, binding, &made->packets, &made->packet_rows, error)
                : lower(device, part, binding, product && device->hopper, &made->repitched, &program, error);
    if (status != WEFT_OK)
        return status;
    made->hopper = program.hopper;
    uint32_t lanes = packets ? weft_cuda_packets_grid(&made->packets) : program.lane_count;
    made->grid = lanes * (program.hopper ? (unsigned)weft_cuda_walkers[program.walker].ctas : 1);
    made->link_bytes = program.link_bytes;
    fill_args(&made->args, part, &program, controls[part->rank], limits);
    if (binding->values)
        fill_scales(&made->args, part, binding->values);
    made->args.signals = binding->signals[part->rank];
    made->args.alone = program.hopper && crews >= device->crews;
    if (!product) {
        bool alone = crews >= device->crews;
        crews = weft_cuda_ctas(device, crews);
        made->early = device->hopper && (alone || 2 * (int)lanes <= crews);
        crews *= 2; /* of them fit an SM */
        made->runs = binding->signals[part->rank] +
                     (size_t)(part->signal_count + program.private_signals) * WEFT_CUDA_LINE_WORDS;
        status = check_collective(part, &program, lanes, error);
    }
    if (program.hopper)
        crews = crews * WEFT_CUDA_PAIR / weft_cuda_walkers[program.walker].ctas;
    if (crews > WEFT_CUDA_CREWS_MAX)
        crews = WEFT_CUDA_CREWS_MAX;
    if (status == WEFT_OK && lanes > (uint32_t)crews)
        status = weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "rank %d's plan has %u lanes, but only %d can be resident at once on its share of %s; "
            "use fewer workers or ranks",
            part->rank, lanes, crews, device->name);
    if (status == WEFT_OK && needs_gate(part, binding, made, share))
        status = add_gate(part, binding, &program, made, error);
    if (status == WEFT_OK)
        status = upload(made, &program, part, binding, controls, error);
    made->walk = pick_kernel(made, &part->problem, program.walker);
    if (status == WEFT_OK && made->args.link && !made->walk)
        status = weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                "an emulated link is there for products of bfloat16 on Hopper GPUs, nothing "
                                "transposed, whose rows begin on 16 bytes");
    made->packets.control = made->args.control;
    made->packets.controls = made->args.peers;
    weft_cuda_program_free(&program);
    return status;
}

/* The other half of a product, by itself. */
static weft_status make_collective(const weft_plan_part *part, const weft_cuda_binding *binding,
                                   weft_cuda_control *const *controls, int crews,
                                   const weft_cuda_limits *limits, weft_cuda_executor *made,
                                   weft_error_text *error)
{
    const weft_plan_part *collective = binding->collective;
    weft_cuda_place *places =
        calloc((size_t)collective->operand_count * (size_t)part->world + 1, sizeof(*places));
    weft_cuda_binding bound = *binding;
    weft_status status;

    if (!places)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u operands",
                              part->operand_count);
    weft_cuda_halves_places(part, binding, places);
    bound.places = places;
    made->reduction = weft_cuda_reduction_of(&collective->problem);
    made->kind =
        weft_schedule_is_packets(collective->problem.schedule) ? WEFT_CUDA_PACKETS : WEFT_CUDA_COLLECTIVE;
    status = make_kernel(collective, &bound, controls, crews, limits, made, error);
    if (status == WEFT_OK && made->kind == WEFT_CUDA_PACKETS)
        weft_cuda_packets_bind(&made->packet_rows, places[part->rank].base,
                               places[part->world + part->rank].base, &made->packets);
    free(places);
    return status;
}

/* Sums that go as marked words: a kernel behind the product's, or none where that one can wait for them. */
static weft_status make_exchange(const weft_plan_part *part, const weft_cuda_binding *binding,
                                 weft_cuda_control *const *controls, int crews,
                                 const weft_cuda_limits *limits, weft_cuda_executor *made,
                                 weft_error_text *error)
{
    weft_cuda_device *device = made->device;
    weft_cuda_program nothing = {0};
    bool sent = made->splitk.kernel != NULL, link = binding->link_bytes_per_ns > 0, by_lines;
    int ctas = weft_cuda_ctas(device, crews);
    weft_status status;

    weft_cuda_exchange_make(part, binding, sent, &made->exchange);
    by_lines = !link && weft_cuda_exchange_by_lines(&made->exchange);
    fill_args(&made->args, part, &nothing, controls[part->rank], limits);
    made->link_bytes = weft_cuda_exchange_sent(part);
    made->early = device->hopper && crews >= device->crews;
    made->exchange.receives = sent && made->splitk.fits && !link;
    made->walk = link        ? device->exchange_link /* which knows no lines */
                 : !by_lines ? device->exchange
                             : device->exchange_lines[part->problem.d_dtype == WEFT_F16];
    made->threads = weft_cuda_exchange_threads(&made->exchange, by_lines, ctas);
    if (!made->exchange.receives)
        made->grid = weft_cuda_exchange_grid(&made->exchange, by_lines, ctas);
    status = made->grid && needs_gate(part, binding, made, crews)
                 ? add_gate(part, binding, &nothing, made, error)
                 : WEFT_OK;
    if (status == WEFT_OK)
        status = upload(made, &nothing, part, binding, controls, error);
    weft_cuda_program_free(&nothing);
    made->exchange.link = made->args.link;
    made->exchange.control = made->args.control;
    made->exchange.controls = made->args.peers;
    return status;
}

/* What is left of a part whose product is a launch of its own: its arrays are the caller's to free. */
typedef struct leftover {
    weft_plan_part part;
    weft_task *tasks;
    weft_region *regions;
    weft_wait *waits;
    weft_post *posts;
} leftover;

static void leftover_free(leftover *rest)
{
    free(rest->tasks);
    free(rest->regions);
    free(rest->waits);
    free(rest->posts);
}

/* Whether a signal only says that a rank's product is there: the product's own task posts it, or the task
 * that tells the peers, which moves nothing. */
static bool tells_of_product(const weft_plan_part *part, uint32_t product, uint32_t signal)
{
    if (signal < WEFT_SIGNAL_DONE((uint32_t)part->world, (uint32_t)part->world))
        return false;
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];
        bool empty = task->kind == WEFT_TASK_COPY && part->regions[task->region0].rows == 0;

        for (uint32_t j = 0; j < task->post_count && (i == product || empty); j++)
            if (part->posts[task->post0 + j].signal == signal &&
                (i == product || part->posts[task->post0 + j].rank != part->rank))
                return true;
    }
    return false;
}

/*
 * A part without its product, whose task does nothing. Sums that are made first are there before their rank
 * enters the run, and nobody touches a rank's memory before that: so nothing else need say that they are.
 */
static weft_status part_without(const weft_plan_part *part, uint32_t product, leftover *rest,
                                weft_error_text *error)
{
    bool sums = part->problem.op == WEFT_OP_GEMM_RS || part->problem.op == WEFT_OP_GEMM_AR;
    weft_task *task;

    *rest = (leftover){.part = *part,
                       .tasks = malloc((part->task_count + 1) * sizeof(*rest->tasks)),
                       .regions = calloc(part->region_count + 2, sizeof(*rest->regions)),
                       .waits = malloc((part->wait_count + 1) * sizeof(*rest->waits)),
                       .posts = malloc((part->post_count + 1) * sizeof(*rest->posts))};
    if (!rest->tasks || !rest->regions || !rest->waits || !rest->posts)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u tasks", part->task_count);
    memcpy(rest->tasks, part->tasks, part->task_count * sizeof(*rest->tasks));
    memcpy(rest->regions, part->regions, part->region_count * sizeof(*rest->regions));
    memcpy(rest->waits, part->waits, part->wait_count * sizeof(*rest->waits));
    memcpy(rest->posts, part->posts, part->post_count * sizeof(*rest->posts));
    rest->regions[part->region_count].rank = rest->regions[part->region_count + 1].rank = part->rank;
    for (uint32_t i = 0; i < part->task_count && sums; i++) {
        uint16_t waits = 0, posts = 0;

        task = &rest->tasks[i];
        for (uint32_t j = 0; j < task->wait_count; j++)
            if (!tells_of_product(part, product, part->waits[task->wait0 + j].signal))
                rest->waits[task->wait0 + waits++] = part->waits[task->wait0 + j];
        for (uint32_t j = 0; j < task->post_count; j++)
            if (!tells_of_product(part, product, part->posts[task->post0 + j].signal))
                rest->posts[task->post0 + posts++] = part->posts[task->post0 + j];
        task->wait_count = waits;
        task->post_count = posts;
    }
    task = &rest->tasks[product];
    task->kind = WEFT_TASK_COPY;
    task->flags = 0;
    task->destinations = 1;
    task->region0 = part->region_count;
    task->region_count = 2;
    rest->part.tasks = rest->tasks;
    rest->part.regions = rest->regions;
    rest->part.waits = rest->waits;
    rest->part.posts = rest->posts;
    rest->part.region_count += 2;
    return WEFT_OK;
}

/* What makes the product by itself, and what remains of the plan where it has several ranks. */
static weft_status leave_product(const weft_plan_part *part, const weft_cuda_binding *binding, int crews,
                                 weft_cuda_executor *made, leftover *rest, weft_error_text *error)
{
    weft_cuda_device *device = made->device;
    uint32_t at = 0;
    weft_status status = WEFT_OK;

    while (at < part->task_count && part->tasks[at].kind != WEFT_TASK_GEMM)
        at++;
    if (at == part->task_count) /* a rank with nothing to multiply */
        return WEFT_OK;
    if (part->problem.tuning.library == 3)
        status = weft_splitk_product_make(device, part, binding->places, &part->tasks[at], crews,
                                          &made->splitk, error);
    if (status == WEFT_OK && !made->splitk.kernel && (part->problem.tuning.library == 1 || part->world > 1))
        status = weft_cublaslt_product_make(device, part, binding->places, &part->tasks[at],
                                            binding->workspace, &made->library, error);
    if (status != WEFT_OK || part->world == 1)
        return status;
    if (!has_product(made))
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "neither weft's kernel for products by themselves nor cuBLASLt makes the "
                              "product of this rank; with "
                              "library = 2 of the tuning weft's walkers do");
    made->product_last = part->problem.op == WEFT_OP_AG_GEMM;
    if (binding->collective)
        return WEFT_OK;
    made->kind = weft_cuda_is_exchanged(part) ? WEFT_CUDA_EXCHANGE : WEFT_CUDA_SUMS;
    return made->kind == WEFT_CUDA_EXCHANGE ? WEFT_OK : part_without(part, at, rest, error);
}

weft_status weft_cuda_executor_make(weft_cuda_device *device, const weft_plan_part *part,
                                    const weft_cuda_binding *binding, weft_cuda_control *const *controls,
                                    int crews, const weft_cuda_limits *limits, weft_cuda_executor *executor,
                                    weft_error_text *error)
{
    bool product = part->problem.op < WEFT_OP_ALL_REDUCE,
         packets = weft_schedule_is_packets(part->problem.schedule);
    weft_cuda_executor made = {.device = device,
                               .rank = part->rank,
                               .kind = product   ? WEFT_CUDA_PRODUCT
                                       : packets ? WEFT_CUDA_PACKETS
                                                 : WEFT_CUDA_COLLECTIVE,
                               .reduction = weft_cuda_reduction_of(&part->problem)};
    leftover rest = {0};
    weft_status status = product && part->problem.tuning.library != 2
                             ? leave_product(part, binding, crews, &made, &rest, error)
                             : WEFT_OK;

    if (status == WEFT_OK && has_product(&made) && part->world == 1)
        made.args.control = controls[part->rank];
    else if (status == WEFT_OK && binding->collective)
        status = make_collective(part, binding, controls, crews, limits, &made, error);
    else if (status == WEFT_OK && made.kind == WEFT_CUDA_EXCHANGE)
        status = make_exchange(part, binding, controls, crews, limits, &made, error);
    else if (status == WEFT_OK)
        status = make_kernel(rest.tasks ? &rest.part : part, binding, controls, crews, limits, &made, error);
    leftover_free(&rest);
    if (status != WEFT_OK) {
        weft_cuda_executor_free(&made);
        return status;
    }
    *executor = made;
    return WEFT_OK;
}

void weft_cuda_executor_free(weft_cuda_executor *executor)
{
    /* not cuMemFree: that waits for every kernel of the GPU, also for one that waits for this rank */
    if (executor->tables)
        executor->device->cu->cuMemFreeAsync(executor->tables, executor->device->uploads);
    if (executor->device)
        weft_cuda_repitched_free(executor->device, &executor->repitched);
    weft_cublaslt_product_free(executor->device, &executor->library);
    weft_splitk_product_free(executor->device, &executor->splitk);
    *executor = (weft_cuda_executor){0};
}

size_t weft_cuda_executor_bytes(const weft_cuda_executor *executor)
{
    return executor->table_bytes + executor->repitched.bytes + executor->splitk.memory_bytes +
           (executor->library.borrowed ? 0 : executor->library.workspace_bytes);
}

/* With what changes from run to run. */
static weft_cuda_exchange exchange_of(const weft_cuda_executor *executor)
{
    weft_cuda_exchange exchange = executor->exchange;

    exchange.stop = executor->args.stop;
    exchange.deadline_ns = executor->args.enter_deadline_ns;
    return exchange;
}

static weft_status launch_gate(const weft_cuda_executor *executor, CUstream stream, weft_error_text *error)
{
    const weft_cuda_driver *cu = executor->device->cu;
    weft_cuda_args args = executor->args;
    uint64_t *runs = executor->gate + (size_t)args.world * WEFT_CUDA_LINE_WORDS;
    void *parameters[] = {&args, &runs};
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = WEFT_CUDA_COLLECTIVE_THREADS,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};

    args.signals = executor->gate;
    args.enter_post0 = executor->gate_post0;
    args.enter_posts = (uint32_t)args.world - 1;
    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, executor->device->gate, parameters, NULL));
    return WEFT_OK;
}

static weft_status launch_kernel(const weft_cuda_executor *executor, CUstream stream, weft_error_text *error)
{
    const weft_cuda_driver *cu = executor->device->cu;
    weft_cuda_args args = executor->args;
    weft_cuda_packets packets = executor->packets;
    int32_t reduction = executor->reduction;
    uint64_t *runs = executor->runs;
    bool by_packets = executor->kind == WEFT_CUDA_PACKETS,
         any = executor->kind == WEFT_CUDA_PRODUCT && !executor->hopper;
    weft_cuda_exchange exchange = exchange_of(executor);
    void *parameters[] = {by_packets                             ? (void *)&packets
                          : executor->kind == WEFT_CUDA_EXCHANGE ? (void *)&exchange
                                                                 : &args,
                          &reduction, &runs};
    CUlaunchConfig config = {.gridDimX = executor->grid,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = by_packets          ? weft_cuda_packets_threads(&packets)
                                          : executor->threads ? executor->threads
                                          : executor->hopper  ? WEFT_CUDA_THREADS
                                          : any               ? WEFT_CUDA_ANY_THREADS
                                                              : WEFT_CUDA_COLLECTIVE_THREADS,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .sharedMemBytes = executor->hopper ? WEFT_CUDA_SHARED_BYTES
                                               : any            ? WEFT_CUDA_ANY_SHARED_BYTES
                                                                : 0,
                             .hStream = stream};
    /* These kernels wait by themselves for what is before them on the stream, so they may be brought in
     * early; but not where that could take the SMs of another rank's kernel that a predecessor waits for. */
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value.programmaticStreamSerializationAllowed = 1};
    packets.stop = args.stop;
    packets.deadline_ns = args.enter_deadline_ns;
    if (args.alone || executor->early || (executor->gate && executor->device->hopper)) {
        config.attrs = &early;
        config.numAttrs = 1;
    }
    weft_status status = weft_cuda_repitched_launch(executor->device, &executor->repitched, stream, error);
    if (status != WEFT_OK)
        return status;
    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, executor->walk, parameters, NULL));
    return WEFT_OK;
}

static weft_status launch_product(const weft_cuda_executor *executor, CUstream stream, weft_error_text *error)
{
    weft_cuda_exchange exchange = exchange_of(executor);

    if (executor->splitk.kernel)
        return weft_splitk_product_launch(executor->device, &executor->splitk, &exchange, stream, error);
    return executor->library.lt ? weft_cublaslt_product_launch(&executor->library, stream, error) : WEFT_OK;
}

weft_status weft_cuda_executor_launch(const weft_cuda_executor *executor, CUstream stream,
                                      weft_error_text *error)
{
    weft_status status = executor->product_last ? WEFT_OK : launch_product(executor, stream, error);

    if (status == WEFT_OK && executor->gate)
        status = launch_gate(executor, stream, error);
    if (status == WEFT_OK && executor->grid)
        status = launch_kernel(executor, stream, error);
    if (status == WEFT_OK && executor->product_last)
        status = launch_product(executor, stream, error);
    return status;
}

weft_status weft_cuda_executor_link(const weft_cuda_executor *executor, CUstream stream,
                                    weft_cuda_emulation *link, weft_error_text *error)
{
    const weft_cuda_driver *cu = executor->device->cu;
    WEFT_CUDA_TRY(
        cuMemcpyDtoHAsync(link, (CUdeviceptr)(uintptr_t)executor->args.link, sizeof(*link), stream));
    WEFT_CUDA_TRY(cuStreamSynchronize(stream));
    return WEFT_OK;
}

weft_status weft_cuda_executor_outcome(const weft_cuda_executor *executor, CUstream stream,
                                       weft_cuda_control *copy, weft_error_text *error)
{
    const weft_cuda_driver *cu = executor->device->cu;
    weft_cuda_control control;
    WEFT_CUDA_TRY(
        cuMemcpyDtoHAsync(&control, (CUdeviceptr)(uintptr_t)executor->args.control, sizeof(control), stream));
    WEFT_CUDA_TRY(cuStreamSynchronize(stream));
    if (copy)
        *copy = control;
    if (control.record.set) {
        const weft_cuda_record *r = &control.record;
        uint32_t world = (uint32_t)executor->args.world;
        if (r->plan_task == WEFT_CUDA_OTHER_MEETING)
            return weft_error_set(
                error, WEFT_ERR_MISMATCH,
                "rank %d ran with operands that rank %u does not expect: what peers touch may change only in "
                "the same call on all ranks",
                executor->rank, r->signal);
        if (r->signal < world)
            return weft_error_set(error, WEFT_ERR_TIMEOUT,
                                  "rank %d waited %.3g s for rank %u to enter run %llu, and it did not come",
                                  executor->rank, (double)executor->args.enter_deadline_ns * 1e-9, r->signal,
                                  (unsigned long long)r->run + 1);
        return weft_error_set(
            error, WEFT_ERR_TIMEOUT,
            "rank %d waited %.3g s for signal %u in task %d of run %llu: it stands at %llu and must "
            "reach %llu",
            executor->rank, (double)executor->args.progress_deadline_ns * 1e-9, r->signal, (int)r->plan_task,
            (unsigned long long)r->run + 1, (unsigned long long)r->have, (unsigned long long)r->want);
    }
    if (control.abort)
        return weft_error_set(error, WEFT_ERR_PEER, "rank %d gave up its run because a peer did",
                              executor->rank);
    return WEFT_OK;
}
