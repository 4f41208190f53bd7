/* Loads programs, launches them, reads back how they ended. */
#include "run/cuda/executor.h"

#include "core/dtype.h"
#include "choose/cuda/choose.h"
#include "run/cuda/halves.h"
#include "run/cuda/leftover.h"
#include "run/cuda/tail.h"
#include "run/scales.h"

#include <stdlib.h>
#include <string.h>

/* ---- kernels ----------------------------------------------------------------------------------------- */

static CUfunction pick_kernel(const weft_cuda_executor *executor, const weft_problem *problem, int walker)
{
    const weft_cuda_device *device = executor->device;
    int f16 = problem->dtype == WEFT_F16;
    if (executor->kind == WEFT_CUDA_PACKETS)
        return !executor->packets.lines     ? device->packets[problem->dtype]
               : !executor->packets.reduces ? device->lines_moved
                                            : device->lines[executor->packets.whole_lines][problem->dtype];
    if (executor->kind == WEFT_CUDA_SUMS)
        return device->sums;
    if (executor->kind == WEFT_CUDA_COLLECTIVE && executor->switched)
        return device->multimem[problem->dtype];
    if (executor->kind == WEFT_CUDA_COLLECTIVE)
        return device->collective[problem->dtype];
    if (weft_dtype_is_fp8(problem->dtype))
        return executor->hopper
                   ? device->fp8[problem->dtype == WEFT_FP8_E5M2][weft_cuda_walkers[walker].ctas == 1]
                   : device->any_fp8;
    if (!executor->hopper)
        return device->any[f16];
    return device->walkers[f16][walker][weft_cuda_walker_form(&weft_cuda_walkers[walker], problem->transa,
                                                              problem->transb)];
}

/* Its tables; with a kernel that stands in, that one and what it reads beside them. */
static weft_status make_tables(const weft_plan_part *part, const weft_cuda_binding *binding,
                               const weft_cuda_program *program, weft_cuda_control *const *controls,
                               weft_cuda_executor *made, weft_error_text *error)
{
    const weft_cuda_stand_in *stand_in = made->kind == WEFT_CUDA_PACKETS ? NULL : binding->stand_in;
    weft_cuda_beside beside = {0};
    weft_status status;

    if (stand_in) {
        made->walk = stand_in->kernel(stand_in, made->kind, &part->problem,
                                      program->hopper ? program->walker : WEFT_CUDA_WALKERS);
        if (!made->walk)
            return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "%s", stand_in->limits);
        beside = stand_in->beside(stand_in, made->kind, part, binding, program);
        if (!beside.at)
            return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u tasks",
                                  part->task_count);
    }
    status = weft_cuda_tables_make(made->device, program, part->world, beside, controls, &made->args,
                                   &made->tables, error);
    free(beside.at);
    return status;
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
    if (2 * part->world + 2 > WEFT_CUDA_COLLECTIVE_THREADS) /* two: of the switch */
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "collectives on GPUs are for at most %d ranks, not %d",
                              WEFT_CUDA_COLLECTIVE_THREADS / 2 - 1, part->world);
    if (program->private_signals + lanes + gate_signals(part) > WEFT_CUDA_PRIVATE_SIGNALS)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "the plan needs %u signals beside its own",
                              program->private_signals + lanes + gate_signals(part));
    return WEFT_OK;
}

/* The program of a part, unaligned operands replaced by the copies that its runs make of them; NULL: there is
 * nothing to multiply. */
static weft_status lower(weft_cuda_device *device, const weft_plan_part *part,
                         const weft_cuda_binding *binding, bool hopper, weft_cuda_repitched *repitched,
                         weft_cuda_program *program, weft_error_text *error)
{
    size_t count = (size_t)part->operand_count * (size_t)part->world;
    weft_cuda_place *places = malloc((count + 1) * sizeof(*places));
    weft_operand *operands = malloc((part->operand_count + 1) * sizeof(*operands));
    weft_cuda_binding bound = *binding;
    weft_plan_part copied = *part;
    weft_status status;

    if (!places || !operands) {
        free(places);
        free(operands);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u operands",
                              part->operand_count);
    }
    memcpy(places, binding->places, count * sizeof(*places));
    memcpy(operands, part->operands, part->operand_count * sizeof(*operands));
    bound.places = places;
    copied.operands = operands;
    status = repitched
                 ? weft_cuda_repitched_make(device, part, device->hopper, places, operands, repitched, error)
                 : WEFT_OK;
    if (status == WEFT_OK)
        status = weft_cuda_program_make(&copied, &bound, hopper, program, error);
    if (status != WEFT_OK && repitched)
        weft_cuda_repitched_free(device, repitched);
    free(places);
    free(operands);
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
                : lower(device, part, binding, product && device->hopper,
                        has_product(made) ? NULL : &made->repitched, &program, error);
    if (status != WEFT_OK)
        return status;
    made->hopper = program.hopper;
    uint32_t lanes = packets ? weft_cuda_packets_grid(&made->packets) : program.lane_count;
    made->grid = lanes * (program.hopper ? (unsigned)weft_cuda_walkers[program.walker].ctas : 1);
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
    if (product) /* the walker for any GPU stands in where operands lie as the other cannot take them */
        crews = weft_cuda_ctas(device, crews) / (program.hopper ? weft_cuda_walkers[program.walker].ctas : 1);
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
    made->switched = binding->to_switch != 0;
    made->walk = pick_kernel(made, &part->problem, program.walker);
    if (status == WEFT_OK)
        status = make_tables(part, binding, &program, controls, made, error);
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
    bool sent = made->splitk.kernel != NULL, own = !binding->stand_in, by_lines;
    int ctas = weft_cuda_ctas(device, crews);
    weft_status status;

    weft_cuda_exchange_make(part, binding, sent, &made->exchange);
    by_lines = own && weft_cuda_exchange_by_lines(&made->exchange);
    fill_args(&made->args, part, &nothing, controls[part->rank], limits);
    made->early = device->hopper && crews >= device->crews;
    made->exchange.receives = sent && made->splitk.fits && own;
    made->walk = by_lines ? device->exchange_lines[part->problem.d_dtype == WEFT_F16] : device->exchange;
    made->threads = weft_cuda_exchange_threads(&made->exchange, by_lines, ctas);
    if (!made->exchange.receives)
        made->grid = weft_cuda_exchange_grid(&made->exchange, by_lines, ctas);
    status = made->grid && needs_gate(part, binding, made, crews)
                 ? add_gate(part, binding, &nothing, made, error)
                 : WEFT_OK;
    if (status == WEFT_OK)
        status = make_tables(part, binding, &nothing, controls, made, error);
    weft_cuda_program_free(&nothing);
    made->exchange.link = made->args.link;
    made->exchange.control = made->args.control;
    made->exchange.controls = made->args.peers;
    return status;
}

/* cuBLASLt's product of a task. Of fp8 it takes no unaligned operands, and of several ranks nobody else is
 * there to multiply them: they are copied. */
static weft_status make_library(const weft_plan_part *part, const weft_cuda_binding *binding,
                                const weft_task *task, weft_cuda_executor *made, weft_error_text *error)
{
    size_t count = (size_t)part->operand_count * (size_t)part->world;
    bool copies = part->world > 1 && weft_dtype_is_fp8(part->problem.dtype);
    weft_cuda_place *places = malloc((count + 1) * sizeof(*places));
    weft_status status = WEFT_OK;

    if (!places)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for a plan of %u operands",
                              part->operand_count);
    memcpy(places, binding->places, count * sizeof(*places));
    if (copies)
        status = weft_cuda_repitched_make(made->device, part, true, places, NULL, &made->repitched, error);
    if (status == WEFT_OK)
        status = weft_cublaslt_product_make(made->device, part, places, task, binding->workspace,
                                            &made->library, error);
    free(places);
    return status;
}

/* What makes the product by itself, and what remains of the plan where it has several ranks. */
static weft_status leave_product(const weft_plan_part *part, const weft_cuda_binding *binding, int crews,
                                 weft_cuda_executor *made, weft_cuda_leftover *rest, weft_error_text *error)
{
    weft_cuda_device *device = made->device;
    uint32_t at = 0;
    weft_status status = WEFT_OK;

    while (at < part->task_count && part->tasks[at].kind != WEFT_TASK_GEMM)
        at++;
    if (at == part->task_count) /* a rank with nothing to multiply */
        return WEFT_OK;
    if (part->problem.tuning.library == 3)
        status = weft_splitk_product_make(device, part, binding->places, &part->tasks[at], crews, NULL,
                                          &made->splitk, error);
    if (status == WEFT_OK && !made->splitk.kernel && (part->problem.tuning.library == 1 || part->world > 1))
        status = make_library(part, binding, &part->tasks[at], made, error);
    made->product_ends = part->world == 1 || part->tasks[at].flags & WEFT_TASK_EPILOGUE;
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
    return made->kind == WEFT_CUDA_EXCHANGE ? WEFT_OK : weft_cuda_leftover_make(part, at, rest, error);
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
    weft_cuda_leftover rest = {0};
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
    weft_cuda_leftover_free(&rest);
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
    if (executor->tables.at)
        executor->device->cu->cuMemFreeAsync(executor->tables.at, executor->device->uploads);
    if (executor->device)
        weft_cuda_repitched_free(executor->device, &executor->repitched);
    weft_cublaslt_product_free(executor->device, &executor->library);
    weft_splitk_product_free(executor->device, &executor->splitk);
    *executor = (weft_cuda_executor){0};
}

size_t weft_cuda_executor_bytes(const weft_cuda_executor *executor)
{
    return executor->tables.bytes + executor->repitched.bytes + executor->splitk.memory_bytes +
           (executor->library.borrowed ? 0 : executor->library.workspace_bytes);
}

void weft_cuda_executor_values(weft_cuda_executor *executor, float alpha, float beta)
{
    executor->args.alpha = executor->exchange.alpha = alpha;
    executor->args.beta = executor->exchange.beta = beta;
    if (executor->product_ends) {
        executor->library.alpha = executor->splitk.args.alpha = alpha;
        executor->library.beta = executor->splitk.args.beta = beta;
    }
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
    CUlaunchConfig config = weft_cuda_config(1, WEFT_CUDA_COLLECTIVE_THREADS, 0, stream);

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
    CUlaunchConfig config = weft_cuda_config(executor->grid,
                                             by_packets          ? weft_cuda_packets_threads(&packets)
                                             : executor->threads ? executor->threads
                                             : executor->hopper  ? WEFT_CUDA_THREADS
                                             : any               ? WEFT_CUDA_ANY_THREADS
                                                                 : WEFT_CUDA_COLLECTIVE_THREADS,
                                             executor->hopper ? WEFT_CUDA_SHARED_BYTES
                                             : any            ? WEFT_CUDA_ANY_SHARED_BYTES
                                                              : 0,
                                             stream);
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
    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, executor->walk, parameters, NULL));
    return WEFT_OK;
}

/* What a run of sums as marked words writes of the caller's memory: its rows of D. */
static weft_cuda_extent written_by(const weft_cuda_exchange *x)
{
    uintptr_t d = (uintptr_t)x->d;
    int64_t rows = x->returns ? x->m : x->rows;

    return (weft_cuda_extent){d, d + (size_t)(rows * x->d_ld) * weft_dtype_size((weft_dtype)x->dtype)};
}

/* Such a run's kernels: the first waits for all that precedes the run before it lets the second in. */
static bool leads(const weft_cuda_executor *executor)
{
    return executor->kind == WEFT_CUDA_EXCHANGE && executor->splitk.kernel && executor->splitk.early;
}

static weft_status launch_product(const weft_cuda_executor *executor, CUstream stream, weft_error_text *error)
{
    weft_cuda_exchange exchange = exchange_of(executor);
    bool ahead =
        leads(executor) && weft_cuda_tail_leaves(executor->device->cu, stream, executor->splitk.weights);

    if (executor->splitk.kernel)
        return weft_splitk_product_launch(executor->device, &executor->splitk, &exchange, ahead, stream,
                                          error);
    return executor->library.lt ? weft_cublaslt_product_launch(&executor->library, stream, error) : WEFT_OK;
}

weft_status weft_cuda_executor_launch(const weft_cuda_executor *executor, CUstream stream,
                                      weft_error_text *error)
{
    weft_status status = weft_cuda_repitched_launch(executor->device, &executor->repitched, stream, error);

    if (status == WEFT_OK && !executor->product_last)
        status = launch_product(executor, stream, error);
    if (status == WEFT_OK && executor->gate)
        status = launch_gate(executor, stream, error);
    if (status == WEFT_OK && executor->grid)
        status = launch_kernel(executor, stream, error);
    if (status == WEFT_OK && executor->product_last)
        status = launch_product(executor, stream, error);
    if (status == WEFT_OK && leads(executor))
        weft_cuda_tail_set(executor->device->cu, stream, written_by(&executor->exchange));
    return status;
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
