/*
 * Choices that need a machine: tiles and workers of a problem, and the schedule behind `auto`.
 *
 * Tiles. On a GPU a compute lane is one multiprocessor and a GEMM task one tile of the description; a
 * collective uses as many lanes as saturate a link. On a CPU a compute lane is a thread; tiles are what the
 * description says keeps the kernels at full speed, cut shorter where a shard would otherwise be one
 * piece, since work should start before a whole shard has arrived.
 */
#include "sim/model.h"
#include "core/dtype.h"

#include <pthread.h>
#include <string.h>

enum {
    GPU_COLLECTIVE_LANES = 32,       /* multiprocessors that saturate a link with plain loads and stores */
    GPU_COLLECTIVE_BYTES = 64 << 10, /* smallest chunk worth a task */
    CPU_COLLECTIVE_BYTES = 64 << 10, /* half of a first-level cache's worth: source and result stay close */
    PICK_TASKS = 400,                /* GEMM tasks of a rank, at most about, while schedules are compared */
    REMEMBERED = 64
};

static bool is_collective(const weft_problem *problem)
{
    return problem->op >= WEFT_OP_ALL_REDUCE;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void tune_collective(const weft_machine *machine, int world, weft_problem *problem)
{
    int64_t element = (int64_t)weft_dtype_size(problem->dtype);
    int64_t chunk, smallest;

    if (machine->kind == WEFT_MACHINE_CPU) {
        if (!problem->tile_n)
            problem->tile_n = CPU_COLLECTIVE_BYTES / element;
        return;
    }
    if (problem->tile_n)
        return;
    smallest = GPU_COLLECTIVE_BYTES / element;
    chunk = (problem->count / world + problem->workers - 1) / problem->workers;
    problem->tile_n = chunk > smallest ? chunk : smallest;
}

void weft_sim_tune(const weft_machine *machine, int world, weft_problem *problem)
{
    bool gpu = machine->kind == WEFT_MACHINE_GPU;
    int on_node = machine->ranks_per_node ? (int)least(machine->ranks_per_node, world) : world;

    if (!problem->workers && gpu)
        problem->workers =
            is_collective(problem) ? (int)least(GPU_COLLECTIVE_LANES, machine->units) : machine->units;
    if (!problem->workers)
        problem->workers = machine->units > on_node ? machine->units / on_node : 1;
    if (is_collective(problem)) {
        tune_collective(machine, world, problem);
        return;
    }
    if (gpu && problem->b_form == WEFT_B_PACK_IN_RUN)
        problem->b_form = WEFT_B_PLAIN;
    if (!problem->tile_m)
        problem->tile_m = machine->tile_m;
    if (!problem->tile_n)
        problem->tile_n = machine->tile_n;
    if (!problem->tile_k)
        problem->tile_k = machine->tile_k;
}

/* ---- auto ----------------------------------------------------------------------------------------- */

typedef struct remembered {
    uint64_t key;
    weft_schedule schedule;
} remembered;

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static remembered memory[REMEMBERED];
static unsigned memory_count;

static bool recall(uint64_t key, weft_schedule *schedule)
{
    bool found = false;

    pthread_mutex_lock(&memory_lock);
    for (unsigned i = 0; i < REMEMBERED && i < memory_count && !found; i++)
        if (memory[i].key == key) {
            *schedule = memory[i].schedule;
            found = true;
        }
    pthread_mutex_unlock(&memory_lock);
    return found;
}

static void remember(uint64_t key, weft_schedule schedule)
{
    pthread_mutex_lock(&memory_lock);
    memory[memory_count++ % REMEMBERED] = (remembered){key, schedule};
    pthread_mutex_unlock(&memory_lock);
}

static double pieces(int64_t extent, int64_t tile)
{
    return tile > 0 && extent > tile ? (double)((extent + tile - 1) / tile) : 1;
}

/* Larger tiles until a rank has few tasks; every schedule is compared with the same ones. */
static void coarsen(weft_problem *problem, int world)
{
    if (is_collective(problem)) {
        while (pieces(problem->count, problem->tile_n) > PICK_TASKS)
            problem->tile_n *= 2;
        return;
    }
    while (problem->tile_m && problem->tile_n &&
           pieces(problem->m, problem->tile_m) * pieces(problem->n, problem->tile_n) / world > PICK_TASKS) {
        if (problem->tile_m <= problem->tile_n)
            problem->tile_m *= 2;
        else
            problem->tile_n *= 2;
    }
}

static bool can_run(const weft_machine *machine, weft_problem *candidate, int world)
{
    weft_error_text ignored;

    if (candidate->schedule == WEFT_SCHEDULE_MULTIMEM && machine->kind == WEFT_MACHINE_GPU &&
        !machine->multicast)
        return false;
    return weft_problem_resolve(candidate, world, candidate, &ignored) == WEFT_OK;
}

weft_status weft_sim_pick(const weft_machine *machine, const weft_problem *problem, int world,
                          weft_schedule *schedule, weft_error_text *error)
{
    uint64_t key = weft_problem_hash(problem, world) ^ machine->id;
    weft_schedule best = WEFT_SCHEDULE_AUTO;
    const weft_schedule *list;
    double best_us = 0;
    int count;

    if (recall(key, schedule))
        return WEFT_OK;
    list = weft_schedule_list(problem->op, problem->layout, &count);
    for (int i = 0; i < count; i++) {
        weft_problem candidate = *problem;
        weft_sim_source source = {.problem = &candidate, .world = world};
        weft_sim_result result;
        weft_status status;

        candidate.schedule = list[i];
        weft_sim_tune(machine, world, &candidate);
        coarsen(&candidate, world);
        if (!can_run(machine, &candidate, world))
            continue;
        status = weft_sim_run(machine, &source, WEFT_SIM_ALL, false, &result, error);
        if (status)
            return status;
        if (best == WEFT_SCHEDULE_AUTO || result.us < best_us) {
            best = list[i];
            best_us = result.us;
        }
    }
    if (best == WEFT_SCHEDULE_AUTO)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "no schedule of %s can run on %s",
                              weft_op_name(problem->op), machine->name);
    remember(key, best);
    *schedule = best;
    return WEFT_OK;
}
