/* From parts to the model, rank by rank; see model.h. */
#include "sim/model.h"

#include "core/dtype.h"
#include "core/round.h"
#include "plan/crews.h"
#include "plan/two_level.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 120 bytes travel with 8 that say they have come, where ranks have a GPU each (src/run/cuda/collective.h).
 */
static const double LINE_TIMES = 128.0 / 120;

weft_status model_reserve(void **array, size_t *capacity, size_t count, size_t more, size_t element_bytes,
                          weft_error_text *error)
{
    size_t wanted = count + more, room = *capacity ? *capacity : 64;
    void *grown;

    if (wanted <= *capacity)
        return WEFT_OK;
    while (room < wanted)
        room += room / 2;
    grown = wanted < UINT32_MAX ? realloc(*array, room * element_bytes) : NULL;
    if (!grown)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory to simulate this many tasks (%zu)", wanted);
    *array = grown;
    *capacity = room;
    return WEFT_OK;
}

#define RESERVE(m, name, more)                                                                               \
    model_reserve((void **)&(m)->name, &(m)->name##_capacity, (m)->name##_count, (more), sizeof(*(m)->name), \
                  error)

/* What waits of a product guard where a crew needs none for its operands: its sums, and where they go. */
static bool waits_late(const model *m, const weft_plan_part *part, const weft_task *task)
{
    return m->crew_cols && task->kind == WEFT_TASK_GEMM && task->wait_count &&
           weft_region_is_given(part, weft_product_a(part, task)) &&
           weft_region_is_given(part, weft_product_b(part, task));
}

/* Of stores, those that lie in shared memory until the link takes them: the crew has gone on. */
static float boxed_ns(const model *m, const weft_plan_part *part, const weft_task *task,
                      const model_task *stores)
{
    const weft_region *d = weft_task_regions(part, task);
    double tile =
               (double)d->rows * (double)d->cols * (double)weft_dtype_size(part->operands[d->operand].dtype),
           bytes = 0;

    for (uint32_t i = 0; i < stores->transfer_count; i++)
        bytes += m->transfers[stores->transfer0 + i].bytes;
    return (float)(fmin(1, model_lane_units(m) / WEFT_CREW_SMS * WEFT_CREW_BOX_BYTES / fmax(1, tile)) *
                   bytes / m->machine->link_gbs);
}

/* The first wave of a task's tiles by itself: what is left of the task stores them, and makes the rest. */
static void split_product(model *m, const weft_plan_part *part, const weft_task *planned, model_task *task)
{
    model_task product = *task;

    product.stored_next = true;
    product.wait_count = product.post_count = product.transfer_count = 0;
    product.work_ns = task->overhead_ns + task->stores_ns;
    product.memory_ns = task->memory_ns * task->last_share;
    task->work_ns -= product.work_ns;
    task->memory_ns -= product.memory_ns;
    task->overhead_ns = task->stores_ns = 0;
    task->boxed_ns = boxed_ns(m, part, planned, task);
    m->tasks[m->tasks_count + 1] = *task;
    *task = product;
    m->tasks_count++;
}

static weft_status add_task(model *m, const weft_plan_part *part, const weft_task *task,
                            const model_products *products, weft_error_text *error)
{
    model_task *out = &m->tasks[m->tasks_count];
    weft_status status;

    *out = (model_task){.number = (uint32_t)(task - part->tasks),
                        .wait0 = (uint32_t)m->waits_count,
                        .post0 = (uint32_t)m->posts_count,
                        .transfer0 = (uint32_t)m->transfers_count};
    status = RESERVE(m, transfers, (size_t)task->region_count + 2);
    if (!status)
        status = model_price(m, part, task, products, out, error);
    if (status)
        return status;
    for (uint32_t i = 0; i < task->wait_count; i++) {
        const weft_wait *wait = &part->waits[task->wait0 + i];

        if (m->mode != WEFT_SIM_GEMM_ONLY &&
            !(m->packets && wait->signal < WEFT_SIGNAL_DONE(part->world, part->world)))
            m->waits[m->waits_count++] = (model_wait){wait->signal, wait->count};
    }
    for (uint32_t i = 0; i < task->post_count; i++)
        m->posts[m->posts_count++] =
            (model_post){part->posts[task->post0 + i].signal, part->posts[task->post0 + i].rank};
    out->wait_count = (uint16_t)(m->waits_count - out->wait0);
    out->post_count = task->post_count;
    out->transfer_count = (uint16_t)(m->transfers_count - out->transfer0);
    if (waits_late(m, part, task))
        split_product(m, part, task, out);
    m->tasks_count++;
    return WEFT_OK;
}

static weft_status add_part(model *m, const weft_plan_part *part, weft_error_text *error)
{
    model_products products = model_products_of(m, part);
    weft_status status;

    m->plan_tasks += part->task_count;

    if (part->rank == 0)
        m->signal_count = part->signal_count;
    else if (part->signal_count != m->signal_count)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "rank %d has %u signals, rank 0 has %u", part->rank,
                              part->signal_count, m->signal_count);
    if ((status = RESERVE(m, tasks, 2 * (size_t)part->task_count)) ||
        (status = RESERVE(m, waits, part->wait_count)) || (status = RESERVE(m, posts, part->post_count)) ||
        (status = RESERVE(m, lanes, part->lane_count)))
        return status;
    for (uint32_t l = 0; l < part->lane_count; l++) {
        const weft_lane *lane = &part->lanes[l];
        uint32_t task0 = (uint32_t)m->tasks_count;

        for (uint32_t t = 0; t < lane->task_count && !status; t++)
            status = add_task(m, part, &part->tasks[lane->task0 + t], &products, error);
        if (status)
            return status;
        m->lanes[m->lanes_count++] =
            (model_lane){part->rank, (uint16_t)l, (uint16_t)lane->kind, task0, (uint32_t)m->tasks_count};
    }
    return WEFT_OK;
}

static double cuts(int64_t extent, int64_t tile)
{
    return tile > 0 && extent > tile ? ceil((double)extent / (double)tile) : 1;
}

double weft_sim_regions(const weft_problem *p, int world)
{
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;
    double rows = cuts(p->m, p->tuning.tile_m),
           cols = cuts(sums ? p->n : weft_divide_up(p->n, world), p->tuning.tile_n);

    if (p->op == WEFT_OP_GEMM_RS && p->layout == WEFT_LAYOUT_SCATTER_COLS)
        cols = fmax(cols, world);
    else if (p->op == WEFT_OP_AG_GEMM || p->op == WEFT_OP_GEMM_RS)
        rows = fmax(rows, world); /* every shard has a piece of its own */
    if (p->op == WEFT_OP_GEMM_AS || p->op == WEFT_OP_GEMM_AR)
        rows *= world; /* every tile goes to everyone, or is summed from everyone's */
    return rows * cols * world;
}

/* The tiles that a product would be cut into, where nobody asked for others. */
static double regions_on(const weft_machine *machine, const weft_problem *problem, int world)
{
    weft_problem cut = *problem;

    if (!cut.tuning.tile_m)
        cut.tuning.tile_m = machine->tile_m;
    if (!cut.tuning.tile_n)
        cut.tuning.tile_n = machine->tile_n;
    return problem->op < WEFT_OP_ALL_REDUCE ? weft_sim_regions(&cut, world) : 0;
}

bool weft_sim_can_run(const weft_machine *machine, const weft_problem *problem, int world,
                      weft_error_text *error)
{
    bool several = machine->ranks_per_node > 0 && world > machine->ranks_per_node;
    bool multimem = problem->schedule == WEFT_SCHEDULE_MULTIMEM && machine->kind == WEFT_MACHINE_GPU;
    bool flat = several && !multimem && problem->schedule != WEFT_SCHEDULE_TWO_LEVEL &&
                problem->schedule != WEFT_SCHEDULE_CUSTOM;

    if (flat && world > WEFT_SIM_LOWERED) {
        weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                       "over several nodes %s is simulated on at most %d ranks; two_level takes %d",
                       weft_schedule_name(problem->op, problem->schedule), WEFT_SIM_LOWERED, world);
        return false;
    }
    if (flat && machine->kind == WEFT_MACHINE_GPU &&
        regions_on(machine, problem, world) > WEFT_SIM_LOWERED_REGIONS) {
        weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                       "over several nodes %s is simulated tile by tile, up to %d regions, and this product "
                       "has about %.0f; two_level takes it",
                       weft_schedule_name(problem->op, problem->schedule), WEFT_SIM_LOWERED_REGIONS,
                       regions_on(machine, problem, world));
        return false;
    }
    if (!multimem)
        return true;
    if (!machine->multicast)
        weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                       "multimem needs a link that adds and spreads by itself; "
                       "that of %s does not",
                       machine->name);
    else if (several && world != 2 * machine->ranks_per_node)
        weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                       "multimem ends at a node's switch: it is for one node of %s or two full ones, and %d "
                       "ranks take several",
                       machine->name, world);
    else
        return true;
    return false;
}

static weft_status check_fits(const weft_machine *machine, int world, weft_error_text *error)
{
    int64_t most = (int64_t)machine->nodes * machine->ranks_per_node;

    if (machine->ranks_per_node > 0 && world > most)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%d ranks do not fit on %s, which has %lld", world,
                              machine->name, (long long)most);
    return WEFT_OK;
}

/* One part after another, none kept. */
static weft_status add_parts(model *m, const weft_sim_source *source, const int32_t *node,
                             weft_error_text *error)
{
    weft_status status = WEFT_OK;
    /* Where nobody waits for anybody, the first of many has as much to do as any, parts being cut so. */
    int count = m->mode == WEFT_SIM_GEMM_ONLY && source->world > WEFT_SIM_LOWERED ? 1 : source->world;

    for (int rank = 0; rank < count && !status; rank++) {
        weft_plan_part part;

        status = source->make ? source->make(source->arg, rank, &part, error)
                              : weft_plan_make_over(source->problem, node, source->world, rank, &part, error);
        if (status)
            break;
        status = add_part(m, &part, error);
        weft_plan_part_free(&part);
    }
    return status;
}

/* All of them at once, as lowering needs them. */
static weft_status add_lowered(model *m, const weft_sim_source *source, const int32_t *node,
                               weft_error_text *error)
{
    weft_plan_part *parts = calloc((size_t)source->world, sizeof(*parts));
    weft_status status;

    if (!parts)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the plans of %d ranks", source->world);
    status = weft_plan_make_all(source->problem, node, source->world, parts, error);
    for (int rank = 0; rank < source->world && !status; rank++)
        status = add_part(m, &parts[rank], error);
    for (int rank = 0; rank < source->world; rank++)
        weft_plan_part_free(&parts[rank]);
    free(parts);
    return status;
}

static weft_status add_over_nodes(model *m, const weft_sim_source *source, weft_error_text *error)
{
    int32_t *node = malloc((size_t)source->world * sizeof(*node));
    weft_status status;

    if (!node)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the nodes of %d ranks", source->world);
    for (int rank = 0; rank < source->world; rank++)
        node[rank] = model_node(m, rank);
    if (source->problem->schedule == WEFT_SCHEDULE_TWO_LEVEL ||
        weft_two_level_takes_multimem(source->problem, node, source->world))
        status = add_parts(m, source, node, error);
    else
        status = add_lowered(m, source, node, error);
    free(node);
    return status;
}

/* `unfused` is two launches on a GPU: a library's product, and the kernel that communicates. */
static double launch_us(const weft_machine *machine, const weft_sim_source *source, weft_sim_mode mode)
{
    bool product = source->problem->op <= WEFT_OP_GEMM_AS;
    bool fused = product && source->problem->schedule != WEFT_SCHEDULE_UNFUSED;
    bool graph = source->graph && machine->kind == WEFT_MACHINE_GPU;
    double own = graph   ? machine->launch_graph_us
                 : fused ? machine->launch_fused_us
                         : machine->launch_unfused_us;

    if (mode == WEFT_SIM_GEMM_ONLY)
        return 0;
    if (machine->kind != WEFT_MACHINE_GPU || !product || fused)
        return own;
    return own + (graph ? machine->launch_graph_us : machine->launch_library_us);
}

weft_status model_load(model *m, const weft_machine *machine, const weft_sim_source *source,
                       weft_sim_mode mode, weft_error_text *error)
{
    weft_status status = check_fits(machine, source->world, error);
    int cores = machine->units;

    memset(m, 0, sizeof(*m));
    if (status)
        return status;
    m->machine = machine;
    m->world = source->world;
    m->ranks_per_node = machine->ranks_per_node ? machine->ranks_per_node : source->world;
    if (machine->kind == WEFT_MACHINE_GPU && source->problem->tuning.crew == WEFT_CREW_SMS)
        m->crew_cols = weft_crews_cols(source->problem, source->world, machine->units / WEFT_CREW_SMS);
    m->threads = source->problem->tuning.workers > 0 ? source->problem->tuning.workers : 1;
    m->all = m->threads * (source->world < m->ranks_per_node ? source->world : m->ranks_per_node) >
             (cores + 1) / 2;
    m->packets = machine->kind == WEFT_MACHINE_GPU && weft_schedule_is_packets(source->problem->schedule) &&
                 source->world <= m->ranks_per_node;
    m->times = m->packets ? LINE_TIMES : 1;
    m->mode = mode;
    m->launch_ns = 1e3 * launch_us(machine, source, mode);
    if (!weft_sim_can_run(machine, source->problem, source->world, error))
        return WEFT_ERR_UNSUPPORTED;
    status = source->make || source->world <= m->ranks_per_node ? add_parts(m, source, NULL, error)
                                                                : add_over_nodes(m, source, error);
    if (status)
        model_free(m);
    return status;
}

void model_free(model *m)
{
    free(m->tasks);
    free(m->waits);
    free(m->posts);
    free(m->transfers);
    free(m->lanes);
    memset(m, 0, sizeof(*m));
}

void weft_sim_result_free(weft_sim_result *result)
{
    free(result->events);
    memset(result, 0, sizeof(*result));
}
