/*
 * What a task costs on a machine, alone; contention for links, engines, threads and cores is the event
 * loop's.
 *
 * GEMM   A product of m x n over kk costs as much as one whose extents are rounded up to the machine's
 *        steps. On a GPU a lane is a share of the device's units: 132 lanes are one multiprocessor each,
 *        fewer lanes are several, and then the task is cut into the machine's tiles, which go over the
 *        lane's units in whole waves. It takes the longer of arithmetic and memory traffic. On a CPU a
 *        lane is a core: packing A (and B where it is not packed yet) and writing the result are added to
 *        the arithmetic, which overlaps with nothing on a core. Few rows have kernels by how many they are
 *        and wait for B, by where it lies: of them whole times are measured. They leave their sums for an
 *        epilogue, which many rows have in registers; a long k fills the caches with more of A and B, at a
 *        lower rate; a B that no cache has is waited for where the arithmetic is too fast to hide it; and
 *        lines that a peer has read are asked back before they are written.
 * COPY   Bytes over the rate. On a GPU the bytes of a peer are a transfer over links.
 * REDUCE Bytes of all sources over the rate of adding.
 * ENTER  On a GPU, of a collective, `enter_us`: that lanes of a kernel meet to enter and to be done.
 * EXIT   Costs nothing of its own beyond flags and waits.
 */
#include "sim/model.h"
#include "core/dtype.h"
#include "core/round.h"
#include "gemm/cost.h"
#include "plan/crews.h"
#include "sim/library.h"

#include <math.h>
#include <string.h>

enum { PAGE_BYTES = 4096 };

typedef struct traffic {
    double local, remote; /* bytes */
} traffic;

static double region_bytes(const weft_plan_part *part, const weft_region *region)
{
    const weft_operand *operand = &part->operands[region->operand];

    return (double)region->rows * (double)(region->cols * weft_operand_width(operand)) *
           (double)weft_dtype_size(operand->dtype);
}

static double instance_bytes(const weft_plan_part *part, uint32_t index, int rank)
{
    const weft_operand *operand = &part->operands[index];

    return (double)weft_operand_rows(operand, part->world, rank) *
           (double)(weft_operand_cols(operand, part->world, rank) * weft_operand_width(operand)) *
           (double)(operand->batch ? operand->batch : 1) * (double)weft_dtype_size(operand->dtype);
}

static bool is_far(const model *m, int here, int there)
{
    return here != there &&
           (m->machine->kind == WEFT_MACHINE_GPU || model_node(m, here) != model_node(m, there));
}

/* A region that is read (or written) by this rank; when it lies across a link, its bytes are a transfer, so
 * many times. */
static void count_region(model *m, const weft_plan_part *part, const weft_region *region, bool written,
                         double times, traffic *sum)
{
    double bytes = region_bytes(part, region);

    if (region->rank == part->rank) {
        sum->local += bytes;
        return;
    }
    sum->remote += bytes;
    if (m->mode == WEFT_SIM_GEMM_ONLY || bytes <= 0 || !is_far(m, part->rank, region->rank))
        return;
    m->transfers[m->transfers_count++] = (model_transfer){
        written ? part->rank : region->rank, written ? region->rank : part->rank, (float)(bytes * times)};
}

/*
 * How much data a task's operands are, as the curves count it: the mean of source and result when there is
 * one of each. What of it a cache holds decides how fast it moves.
 */
static double working_set(const weft_plan_part *part, const weft_task *task)
{
    const weft_region *regions = weft_task_regions(part, task);
    double sum = 0;

    for (uint32_t i = 0; i < task->region_count; i++) {
        bool seen = false;

        for (uint32_t j = 0; j < i && !seen; j++)
            seen = regions[j].operand == regions[i].operand;
        if (!seen)
            sum += instance_bytes(part, regions[i].operand, part->rank);
    }
    return sum / 2;
}

static double padded(int64_t value, int64_t step)
{
    return (double)weft_round_up(value, step);
}

static bool has(uint64_t operands, uint32_t operand)
{
    return operand < 64 && operands >> operand & 1;
}

/* How much memory a CPU's rank works in, and what of it peers read and write: ranks do alike, so what this
 * one reads of them they read of it. */
static void count_operands(const weft_plan_part *part, model_products *products)
{
    double read = 0, stored = 0;

    for (uint32_t i = 0; i < part->operand_count; i++) {
        bool laid_out = part->operands[i].role == WEFT_ROLE_B && part->problem.b_form == WEFT_B_PLAIN;

        products->set += instance_bytes(part, i, part->rank) / (laid_out ? 1 : 2);
    }
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];
        const weft_region *regions = weft_task_regions(part, task);

        for (uint32_t r = 0; r < task->region_count; r++) {
            uint64_t operand = regions[r].operand < 64 ? (uint64_t)1 << regions[r].operand : 0;

            if (regions[r].rank == part->rank || !operand)
                continue;
            *(r < task->destinations ? &products->filled : &products->shared) |= operand;
            read += r < task->destinations ? 0 : region_bytes(part, &regions[r]);
        }
    }
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_region *d = weft_task_regions(part, &part->tasks[i]);

        if (part->tasks[i].kind == WEFT_TASK_GEMM && has(products->shared, d->operand))
            stored += region_bytes(part, d);
    }
    products->share = fmin(1, read / fmax(1, stored));
}

model_products model_products_of(const model *m, const weft_plan_part *part)
{
    model_products products = {.reuse = 1, .idle = 1};
    double named = 0, once = 0, tiles = 0;

    if (m->machine->kind != WEFT_MACHINE_GPU) {
        count_operands(part, &products);
        return products;
    }
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];

        if (task->kind != WEFT_TASK_GEMM)
            continue;
        tiles++;
        products.results +=
            (double)weft_task_regions(part, task)->rows * (double)weft_task_regions(part, task)->cols;
        named +=
            region_bytes(part, weft_product_a(part, task)) + region_bytes(part, weft_product_b(part, task));
    }
    for (uint32_t i = 0; i < part->operand_count; i++) {
        const weft_operand *operand = &part->operands[i];

        if (operand->role == WEFT_ROLE_A)
            once += (double)operand->rows * (double)operand->cols * (double)weft_dtype_size(operand->dtype);
        else if (operand->role == WEFT_ROLE_B)
            once += instance_bytes(part, i, part->rank);
    }
    if (part->problem.schedule == WEFT_SCHEDULE_UNFUSED && tiles > 0)
        products.idle = fmax(1, floor(m->machine->units / tiles));
    if (named > once)
        products.reuse = once / named;
    products.operands = named * products.reuse;
    return products;
}

double model_lane_units(const model *m)
{
    int crews = m->machine->units / WEFT_CREW_SMS;

    return m->crew_cols ? fmax(1, floor((double)crews / m->threads)) * WEFT_CREW_SMS
                        : fmax(1, (double)m->machine->units / m->threads);
}

/* What of a task a unit makes at a time. A crew's units share its tile by rows. */
static int64_t unit_rows(const model *m)
{
    return m->crew_cols ? WEFT_CREW_ROWS / WEFT_CREW_SMS : m->machine->tile_m;
}

static int64_t unit_cols(const model *m)
{
    return m->crew_cols ? m->crew_cols : m->machine->tile_n;
}

/* Tiles, along an extent, that a task of a lane of several units is cut into. */
static double tiles_along(const model *m, int64_t extent, int64_t tile)
{
    return m->machine->kind != WEFT_MACHINE_GPU || model_lane_units(m) < 2 || !tile || extent <= tile
               ? 1
               : ceil((double)extent / (double)tile);
}

/* Share of a GPU's memory bandwidth that a unit can draw by itself: several times its even share. */
static double unit_share(const model *m)
{
    return fmin(1, 4.0 / m->machine->units);
}

/* Bytes of local operands, which slices of k share, and of what is added to and of results. */
typedef struct gemm_bytes {
    double a, b, kept;
} gemm_bytes;

/* What a task of a GPU is, whole. */
typedef struct gemm_task {
    gemm_bytes loads;   /* of each unit, which makes its tiles by itself: that is as fast as a unit can */
    double from_memory; /* bytes of A and B that caches do not catch */
    double sums;        /* bytes of a slice's, written and read again, in float32 */
    double compute_ns, k, row_steps;
    double deep;  /* k in whole steps, which slices are cut from */
    double times; /* so many make the whole product */
} gemm_task;

/* The same with k cut into so many slices, each made by units that are idle otherwise; in ns. */
typedef struct gemm_slices {
    double compute, loads; /* of a unit */
    double memory;         /* of the memory that all units share; */
    double operands;       /* of that, for A and B */
} gemm_slices;

static gemm_slices slices_of(const model *m, const gemm_task *task, double idle, double count)
{
    /* Units that are idle still take rows of it: a library has lower tiles where there are few. */
    double shares = fmax(1, fmin(floor(idle / count), task->row_steps));
    double sums = count > 1 ? task->sums : 0, kept = task->loads.kept + sums;

    return (gemm_slices){
        .compute = task->compute_ns / count / shares,
        .loads = ((task->loads.a / shares + task->loads.b) * fmin(1, task->deep / count / task->k) +
                  kept / shares) /
                 unit_share(m) / m->machine->memory_gbs,
        .memory = (task->from_memory + task->loads.kept + count * sums) / m->machine->memory_gbs,
        .operands = task->from_memory / m->machine->memory_gbs,
    };
}

/* As many slices as take the least time where all tiles are cut so: their sums cost memory. They may end
 * anywhere in k, so that twice as many over twice as long a k take no less. */
static gemm_slices best_slices(const model *m, const model_products *products, const gemm_task *task)
{
    double most = fmax(1, fmin(products->idle, task->deep / WEFT_LIBRARY_SPLIT_K)), best_ns = INFINITY;
    gemm_slices best = {0};

    for (int count = 1; count <= (int)ceil(most); count++) {
        gemm_slices s = slices_of(m, task, products->idle, fmin(count, most));
        double memory = task->times * (s.memory - s.operands) + products->operands / m->machine->memory_gbs;
        double ns = fmax(fmax(s.compute, s.loads), memory);

        if (ns < best_ns) {
            best = s;
            best_ns = ns;
        }
    }
    return best;
}

static double gpu_gemm_ns(const model *m, const model_products *products, int64_t rows, int64_t cols,
                          int64_t kk, const gemm_bytes *bytes, double gflops, model_task *out)
{
    const weft_machine *machine = m->machine;
    double down = tiles_along(m, rows, unit_rows(m)), across = tiles_along(m, cols, unit_cols(m));
    double units = model_lane_units(m), waves = ceil(down * across / floor(units));
    double busy = fmin(floor(units), down * across);
    gemm_task task = {.loads = {bytes->a * across / busy, bytes->b * down / busy, bytes->kept / busy},
                      .from_memory = (bytes->a + bytes->b) * products->reuse,
                      .sums = 8 * (double)rows * (double)cols,
                      .k = (double)weft_max(kk, 1),
                      .times = products->results / fmax(1, (double)rows * (double)cols),
                      .deep = padded(kk, machine->step_k),
                      .row_steps = padded(rows, machine->step_m) / (double)machine->step_m};
    gemm_slices made;

    if (units >= 2) /* no unit idles because the lanes do not divide them evenly */
        waves *= floor(units) / units;
    if (down > 1)
        rows = unit_rows(m);
    if (across > 1) /* tiles of crews may be narrower than the description's */
        cols = weft_divide_up(cols, (int64_t)across);
    task.compute_ns =
        waves * 2 * padded(rows, machine->step_m) * padded(cols, machine->step_n) * task.deep / gflops;
    if (m->crew_cols) /* the descriptions have the rate of a library's products */
        task.compute_ns /= weft_crews_rate(m->crew_cols);
    if (units < 2) {
        made = best_slices(m, products, &task);
        out->memory_ns = (float)made.memory;
    } else {
        made = slices_of(m, &task, 1, 1);
        out->memory_ns = (float)((task.from_memory + bytes->kept) / machine->memory_gbs);
    }
    out->bound = made.loads > made.compute ? WEFT_BOUND_MEMORY : WEFT_BOUND_COMPUTE;
    out->last_share = (float)(1 / fmax(1, ceil(down * across / floor(units))));
    out->stores_ns = (float)(fmax(made.compute, made.loads) * out->last_share);
    return fmax(made.compute, made.loads);
}

/* Finishing a tile of results on a core, so many nanoseconds for each: epilogue, conversion and stores; or
 * the memory they go to, which takes lines from whoever has them. */
static double cpu_finish_ns(const model *m, const weft_plan_part *part, const weft_region *d, double ns)
{
    const weft_machine *machine = m->machine;
    double rate = weft_curve_rate(machine->store.count ? &machine->store : &machine->copy_own,
                                  instance_bytes(part, d->operand, d->rank), m->all);

    return fmax(ns, region_bytes(part, d) / rate);
}

/* Of a product: in registers, or after its sums have waited in memory. */
static double cpu_result_ns(const weft_machine *machine, weft_dtype dtype, bool wait)
{
    double waiting = machine->epilogue_ns[dtype];

    return wait && waiting > 0 ? waiting : machine->finish_ns[dtype];
}

/* Few rows: as long as their results of the usual type, of which whole times were measured, and what another
 * type takes longer. */
static double cpu_product_ns(const model *m, const weft_plan_part *part, const weft_region *d,
                             weft_dtype product, bool wait, bool packed, int64_t mr)
{
    const weft_few_rows *few = &m->machine->few_results[product];
    weft_dtype dtype = part->operands[d->operand].dtype, usual = weft_dtype_result(product);
    double results = (double)d->rows * (double)d->cols, each = cpu_result_ns(m->machine, dtype, wait);

    if (d->rows > WEFT_GEMM_STREAM_ROWS || !few->count)
        return results * each;
    return (double)d->cols * weft_few_rows_ns(few, d->rows, mr, 0, packed) +
           results * fmax(0, each - cpu_result_ns(m->machine, usual, wait && usual != WEFT_I32));
}

/* Of a sum: rounded as it is added up, or by the epilogue of a product of no k, as all of int8 are. */
static double cpu_sum_finish_ns(const model *m, const weft_plan_part *part, const weft_region *d,
                                weft_dtype sum)
{
    weft_dtype dtype = part->operands[d->operand].dtype;
    double rounding = m->machine->round_ns[dtype], results = (double)d->rows * (double)d->cols;

    if (dtype != sum && rounding > 0 && (dtype == WEFT_I8 || weft_problem_only_rounds(&part->problem)))
        return cpu_finish_ns(m, part, d, results * rounding);
    return cpu_finish_ns(m, part, d, results * cpu_result_ns(m->machine, dtype, dtype != sum));
}

/* Of a core, over such a k. */
static double cpu_gflops(const weft_machine *machine, weft_dtype dtype, int64_t rows, int64_t k)
{
    double rate = machine->gflops[dtype], slow = machine->gflops_long[dtype], share;

    if (rows <= WEFT_GEMM_STREAM_ROWS || slow <= 0 || k <= WEFT_MACHINE_SHORT_K)
        return rate;
    share = fmin(1, log2((double)k / WEFT_MACHINE_SHORT_K) /
                        log2((double)WEFT_MACHINE_LONG_K / WEFT_MACHINE_SHORT_K));
    return 1 / ((1 - share) / rate + share / slow);
}

/* Whether the sums of a product that leaves them in D go there by an epilogue of their own. */
static bool sums_wait(const weft_plan_part *part, weft_dtype dtype, const weft_region *d)
{
    return part->operands[d->operand].dtype != weft_dtype_accumulator(dtype) &&
           (d->rows <= WEFT_GEMM_STREAM_ROWS || !weft_problem_only_rounds(&part->problem));
}

/* Whether a core's cache still has a packed B: what is packed in the run it read and wrote just before. */
static bool b_stays(const model *m, const weft_plan_part *part, const model_products *products,
                    uint32_t operand)
{
    double bytes = part->problem.b_form == WEFT_B_PACK_IN_RUN ? instance_bytes(part, operand, part->rank)
                                                              : products->set;

    return 2 * bytes <= m->machine->cache_bytes;
}

/* Laying out B: as fast as a core can, and as B and what it becomes come and go. */
static double cpu_pack_b_gbs(const model *m, const model_products *products, weft_dtype dtype)
{
    const weft_machine *machine = m->machine;

    return machine->cache_bytes > 0
               ? fmin(machine->pack_b_gbs[dtype], weft_curve_rate(&machine->copy_own, products->set, m->all))
               : machine->pack_b_gbs[dtype];
}

/* Whether the lane's last task multiplied by the same of B. */
static bool has_b(const weft_plan_part *part, const weft_task *task, const weft_region *b)
{
    const weft_task *last = task - 1;

    if (task == &part->tasks[part->lanes[task->lane].task0] || last->kind != WEFT_TASK_GEMM)
        return false;
    return memcmp(weft_product_b(part, last), b, sizeof(*b)) == 0;
}

static int64_t step_of(const int64_t *of_types, int64_t of_all, weft_dtype dtype)
{
    return of_types[dtype] ? of_types[dtype] : of_all;
}

/*
 * Where it was measured what B costs, by where it is. Few rows are priced by how many they are: B is the
 * bound where they take twice as long as with one from a core's cache. More rows, whose arithmetic and A are
 * known, wait as long for B, or for packing it, as the most rows that were measured.
 */
static weft_gemm_cost cost_with_b(const model *m, const weft_plan_part *part, const weft_gemm_steps *steps,
                                  const weft_region *a, const weft_region *b, weft_gemm_b how,
                                  weft_gemm_cost cost, double pack_a_ns)
{
    const weft_operand *operand = &part->operands[b->operand];
    const weft_few_rows *few = &m->machine->few[part->operands[a->operand].dtype];
    bool packed = operand->packed || how == WEFT_GEMM_HAS_B, is_few = a->rows <= WEFT_GEMM_STREAM_ROWS;
    double bytes = how == WEFT_GEMM_HAS_B ? region_bytes(part, b)
                                          : instance_bytes(part, b->operand, part->rank) / m->threads;
    double elements = (double)a->cols * padded(b->cols * weft_operand_width(operand), steps->nr);
    int64_t rows = is_few ? a->rows : (int64_t)few->rows[few->count - 1];
    double near = weft_few_rows_ns(few, rows, steps->mr, 1, is_few ? operand->packed : true);
    double here = weft_few_rows_ns(few, rows, steps->mr, fmax(1, bytes), is_few ? operand->packed : packed);

    if (!is_few)
        return (weft_gemm_cost){.arithmetic = cost.arithmetic + elements * fmax(0, here - near),
                                .packing = pack_a_ns};
    return (weft_gemm_cost){
        .arithmetic = here > 2 * near ? 0 : elements * here,
        .stream = here > 2 * near ? elements * here : 0,
        .packing = (double)a->cols * weft_few_rows_ns(few, rows, steps->mr, 0, operand->packed),
    };
}

/* The last columns of a B that is not packed, where they are no whole micro-tile: each of k by itself. */
static double cpu_edge_ns(const weft_machine *machine, weft_dtype dtype, int64_t cols, int64_t k,
                          const weft_gemm_steps *steps, weft_gemm_b how)
{
    double each = how == WEFT_GEMM_PACKS_B ? machine->edge_ns[dtype] : machine->edge_place_ns[dtype];

    return cols % steps->nr ? (double)k * each : 0;
}

static double cpu_gemm_ns(const model *m, const weft_plan_part *part, const weft_task *task,
                          const model_products *products, double read_bytes, uint8_t *bound)
{
    const weft_machine *machine = m->machine;
    weft_task_roles roles = weft_task_roles_of(task);
    const weft_region *d = weft_task_regions(part, task), *a = &d[roles.a], *b = &d[roles.b];
    weft_dtype dtype = part->operands[a->operand].dtype;
    double gflops = cpu_gflops(machine, dtype, a->rows, a->cols);
    bool stays = b_stays(m, part, products, b->operand);
    int64_t cols = b->cols * weft_operand_width(&part->operands[b->operand]);
    double b_bytes = region_bytes(part, b), element = (double)weft_dtype_size(dtype);
    weft_gemm_steps steps = {.mr = (int)step_of(machine->type_step_m, machine->step_m, dtype),
                             .nr = (int)step_of(machine->type_step_n, machine->step_n, dtype),
                             .k_step = (int)step_of(machine->type_step_k, machine->step_k, dtype)};
    weft_gemm_rates rates = {.multiply = 2 / gflops,
                             .pack_a = element / machine->pack_a_gbs[dtype],
                             .pack_b = element / cpu_pack_b_gbs(m, products, dtype),
                             .stream_b = stays ? 0 : element / machine->stream_gbs[dtype]};
    weft_gemm_b how =
        weft_gemm_b_of(a->rows, steps.mr, part->operands[b->operand].packed, has_b(part, task, b), b_bytes);
    weft_gemm_cost cost = weft_gemm_cost_of(&rates, &steps, a->rows, cols, a->cols, how);
    double move, finish = cpu_product_ns(m, part, d, dtype, sums_wait(part, dtype, d),
                                         part->operands[b->operand].packed, steps.mr);

    if (machine->few[dtype].count)
        cost =
            cost_with_b(m, part, &steps, a, b, how, cost, rates.pack_a * (double)a->rows * (double)a->cols);
    move = cost.packing;
    if (!part->operands[b->operand].packed)
        move += cpu_edge_ns(machine, dtype, cols, a->cols, &steps, how);
    *bound = cost.stream > cost.arithmetic ? WEFT_BOUND_MEMORY : WEFT_BOUND_COMPUTE;
    if (roles.acc >= 0) {
        double acc_bytes = region_bytes(part, &d[roles.acc]);

        /* Sums that an epilogue awaits come in rows. */
        move += acc_bytes / (machine->acc_gbs[dtype] > 0 && weft_problem_only_rounds(&part->problem)
                                 ? machine->acc_gbs[dtype]
                                 : weft_curve_rate(&machine->copy_pull, acc_bytes, m->all));
        read_bytes -= acc_bytes;
    }
    if (read_bytes > 0) /* C */
        move += read_bytes / weft_curve_rate(&machine->copy_own, read_bytes, m->all);
    if (task->destinations > 1)
        move +=
            (task->destinations - 1) * region_bytes(part, d) /
            (machine->twice_gbs[dtype] > 0
                 ? machine->twice_gbs[dtype]
                 : weft_curve_rate(&machine->copy_push, instance_bytes(part, d->operand, d->rank), m->all));
    if (machine->shared_gbs[dtype] > 0 && (d->rank != part->rank || has(products->shared, d->operand)))
        finish += region_bytes(part, d) * (d->rank != part->rank ? 1 : products->share) /
                  machine->shared_gbs[dtype];
    return fmax(cost.arithmetic, cost.stream) + move + cpu_finish_ns(m, part, d, finish);
}

static bool same_place(const weft_region *one, const weft_region *other)
{
    return memcmp(one, other, sizeof(*one)) == 0;
}

static weft_status price_gemm(model *m, const weft_plan_part *part, const weft_task *task,
                              const model_products *products, model_task *out, weft_error_text *error)
{
    const weft_region *regions = weft_task_regions(part, task);
    const weft_region *a = weft_product_a(part, task), *b = weft_product_b(part, task);
    weft_dtype dtype = part->operands[a->operand].dtype;
    double gflops = m->machine->gflops[dtype];
    traffic left = {0}, right = {0}, read = {0}, written = {0};

    if (gflops <= 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s has no rate for %s products", m->machine->name,
                              weft_dtype_name(dtype));
    for (uint32_t i = 0; i < task->region_count; i++) {
        traffic *sum = i < task->destinations ? &written
                       : &regions[i] == a     ? &left
                       : &regions[i] == b     ? &right
                                              : &read;
        /* Every tile reads its operands over the link by itself. */
        double times = &regions[i] == a   ? tiles_along(m, regions->cols, unit_cols(m))
                       : &regions[i] == b ? tiles_along(m, regions->rows, unit_rows(m))
                                          : 1;

        if (!m->crew_cols || sum != &read || !same_place(&regions[i], regions)) /* else stores add there */
            count_region(m, part, &regions[i], i < task->destinations, times, sum);
    }
    out->event = WEFT_EVENT_COMPUTE;
    out->bound = WEFT_BOUND_COMPUTE;
    if (m->mode == WEFT_SIM_COMM_ONLY)
        return WEFT_OK;
    out->overhead_ns = (float)(m->machine->gemm_us * 1e3);
    if (m->machine->kind == WEFT_MACHINE_GPU) {
        gemm_bytes bytes = {left.local, right.local, read.local + written.local};

        out->work_ns =
            (float)gpu_gemm_ns(m, products, regions->rows, regions->cols, a->cols, &bytes, gflops, out);
    } else {
        out->work_ns = (float)cpu_gemm_ns(m, part, task, products, read.local + read.remote, &out->bound);
    }
    out->work_ns += out->overhead_ns;
    return WEFT_OK;
}

/*
 * A reduction by the switch itself: it reads every peer's bytes, hands over one sum, takes one result and
 * spreads it; over nodes, a task does one or the other. Fills the transfers in place of count_region.
 */
static void price_multicast(model *m, const weft_plan_part *part, const weft_task *task)
{
    const weft_region *regions = weft_task_regions(part, task);
    float bytes = (float)region_bytes(part, regions);
    bool adds = false, spreads = false;

    for (uint32_t i = 0; i < task->region_count; i++)
        *(i < task->destinations ? &spreads : &adds) |= regions[i].rank != part->rank;
    if (adds)
        m->transfers[m->transfers_count++] = (model_transfer){-1, part->rank, bytes};
    if (spreads)
        m->transfers[m->transfers_count++] = (model_transfer){part->rank, -1, bytes};
    for (uint32_t i = 0; i < task->region_count; i++) {
        bool written = i < task->destinations;

        if (regions[i].rank != part->rank)
            m->transfers[m->transfers_count++] =
                (model_transfer){written ? -1 : regions[i].rank, written ? regions[i].rank : -1, bytes};
    }
}

static bool is_multicast(const model *m, const weft_plan_part *part, const weft_task *task)
{
    return m->machine->multicast && m->machine->link == WEFT_LINK_SWITCH &&
           part->problem.schedule == WEFT_SCHEDULE_MULTIMEM && task->kind == WEFT_TASK_REDUCE;
}

/* Whether rows of what is read go on, within a page, with what its owner writes meanwhile: fetching ahead
 * takes those lines from it. */
static bool is_part_of_rows(const weft_plan_part *part, const weft_region *from)
{
    const weft_operand *operand = &part->operands[from->operand];
    int64_t bytes = from->cols * weft_operand_width(operand) * (int64_t)weft_dtype_size(operand->dtype);

    return from->rows > 1 && bytes < PAGE_BYTES &&
           from->cols < weft_operand_cols(operand, part->world, from->rank);
}

static double cpu_packed_edge_ns(const weft_machine *machine, weft_dtype dtype, const weft_region *b)
{
    int64_t nr = step_of(machine->type_step_n, machine->step_n, dtype);

    return b->cols % nr ? (double)b->rows * machine->edge_ns[dtype] : 0;
}

/* Sums are added up and rounded row by row, as they lie. */
static double cpu_rows_ns(const weft_machine *machine, const weft_plan_part *part, const weft_region *d)
{
    const weft_operand *operand = &part->operands[d->operand];
    int64_t rows = operand->transposed ? d->cols * weft_operand_width(operand) : d->rows;

    return (double)rows * machine->row_ns[operand->dtype];
}

/* Nanoseconds of moving (and adding) on a core: rates depend on caches, and on who touches the same lines. */
static double cpu_move_ns(const model *m, const weft_plan_part *part, const weft_task *task,
                          const model_products *products, traffic from, traffic to)
{
    const weft_machine *machine = m->machine;
    const weft_region *regions = weft_task_regions(part, task), *source = weft_task_inputs(part, task);
    weft_dtype dtype = part->operands[source->operand].dtype;
    double set = working_set(part, task), bytes = from.local + from.remote, rate, further;

    if (task->kind == WEFT_TASK_COPY) {
        /* What a peer has just written here comes from its cache as what lies there. */
        bool theirs = from.remote > 0 || has(products->filled, source->operand);
        const weft_curve *curve = theirs          ? &machine->copy_pull
                                  : to.remote > 0 ? &machine->copy_push
                                                  : &machine->copy_own;

        if (part->operands[regions->operand].packed)
            return bytes / cpu_pack_b_gbs(m, products, dtype) + cpu_packed_edge_ns(machine, dtype, source);
        rate = weft_curve_rate(curve, set, m->all);
        if (from.remote > 0 && machine->parts_gbs > 0 && is_part_of_rows(part, source))
            rate = fmin(rate, machine->parts_gbs);
        return bytes / rate;
    }
    rate = weft_curve_rate(
        machine->reduce[dtype].count ? &machine->reduce[dtype] : &machine->reduce[WEFT_F32], set, m->all);
    if (part->problem.schedule == WEFT_SCHEDULE_ONE_SHOT && from.remote > 0)
        rate = fmin(rate, weft_curve_rate(&machine->reduce_shared, set, m->all));
    if (task->flags & WEFT_TASK_EPILOGUE)
        bytes += rate * cpu_sum_finish_ns(m, part, regions, dtype);
    /* Stores to further destinations ride along with the loads: about half of a copy, where nobody says. */
    further = machine->reduce_push.count ? weft_curve_rate(&machine->reduce_push, set, m->all)
                                         : 2 * weft_curve_rate(&machine->copy_push, set, m->all);
    return bytes / rate + cpu_rows_ns(machine, part, regions) +
           (task->destinations - 1) * region_bytes(part, regions) / further;
}

static void price_move(model *m, const weft_plan_part *part, const weft_task *task,
                       const model_products *products, model_task *out)
{
    const weft_machine *machine = m->machine;
    const weft_region *regions = weft_task_regions(part, task);
    bool packs = task->kind == WEFT_TASK_COPY && part->operands[regions->operand].packed;
    bool reduces = task->kind == WEFT_TASK_REDUCE, far = false;
    traffic from = {0}, to = {0};

    out->event = reduces ? WEFT_EVENT_REDUCE : WEFT_EVENT_COPY;
    out->bound = WEFT_BOUND_MEMORY;
    if (m->mode == WEFT_SIM_GEMM_ONLY && !packs)
        return;
    if (m->packets && regions->rows == 0) /* lanes join to be done, which nobody is here */
        return;
    for (uint32_t i = 0; i < task->region_count; i++) {
        bool written = i < task->destinations;

        far = far || is_far(m, part->rank, regions[i].rank);
        count_region(m, part, &regions[i], written, m->times, written ? &to : &from);
    }
    if (is_multicast(m, part, task)) {
        m->transfers_count = out->transfer0;
        price_multicast(m, part, task);
    }
    /* Packets for all peers are stored one after the other, and waited for by nobody here. */
    if (!m->packets || task == part->tasks || task[-1].kind != task->kind || task[-1].lane != task->lane)
        out->overhead_ns = (float)(1e3 * (reduces ? machine->reduce_us : machine->copy_us));
    if (machine->kind == WEFT_MACHINE_GPU && reduces && from.remote > 0)
        out->stores_ns = (float)(1e3 * machine->link_us);
    out->work_ns = out->overhead_ns;
    if (machine->kind == WEFT_MACHINE_CPU) {
        out->work_ns += (float)cpu_move_ns(m, part, task, products, from, to);
    } else if (!far || reduces) { /* what passes a link is slower than memory */
        double bytes = from.local + to.local;
        bool engine = part->lanes[task->lane].kind == WEFT_LANE_COPY;

        out->memory_ns = (float)(bytes / machine->memory_gbs);
        out->work_ns += (float)(out->memory_ns / (engine ? 1 : fmin(1, unit_share(m) * model_lane_units(m))));
    }
}

weft_status model_price(model *m, const weft_plan_part *part, const weft_task *task,
                        const model_products *products, model_task *out, weft_error_text *error)
{
    switch ((weft_task_kind)task->kind) {
    case WEFT_TASK_GEMM:
        return price_gemm(m, part, task, products, out, error);
    case WEFT_TASK_COPY:
    case WEFT_TASK_REDUCE:
        price_move(m, part, task, products, out);
        return WEFT_OK;
    case WEFT_TASK_ENTER:
        out->event = WEFT_EVENT_ENTER;
        if (part->problem.op >= WEFT_OP_ALL_REDUCE && !m->packets && m->mode != WEFT_SIM_GEMM_ONLY)
            out->overhead_ns = out->work_ns = (float)(1e3 * m->machine->enter_us);
        break;
    case WEFT_TASK_EXIT:
        out->event = WEFT_EVENT_EXIT;
        break;
    }
    out->bound = WEFT_BOUND_LATENCY;
    return WEFT_OK;
}
