/*
 * Tiles. On a GPU a compute lane is one multiprocessor and a GEMM task one tile of the description; a
 * collective uses as many lanes as saturate a link. On a CPU a compute lane is a thread; its tiles are
 * those of plan/tiles.h, as the executor takes them.
 */
#include "choose/machine.h"

#include "choose/tuned.h"
#include "core/dtype.h"
#include "core/round.h"
#include "gemm/gemm.h"
#include "plan/crews.h"
#include "plan/tiles.h"
#include "sim/sim.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum {
    GPU_COLLECTIVE_LANES = 32,       /* multiprocessors that saturate a link with plain loads and stores */
    GPU_COLLECTIVE_BYTES = 64 << 10, /* smallest chunk worth a task */
    GPU_PACKETS_BYTES = 2 << 10,     /* the same where each thread stores a packet of eight bytes */
    GPU_COPIERS = 2,                 /* where every tile would read its rows over a link by itself */
    TWO_LEVEL_LANES = 8,             /* with whose transfers in flight a link is busy */
    SUM_LANES = 2,                   /* where each waits for the sums that it sends: more only mix them up */
    FEW_LANES = 32,                  /* that still keep all links of a rank busy */
    FETCH_LANES = 4,                 /* the same where each fetches large blocks, one behind the other */
    FETCH_TIMES = 8,                 /* as long as a product: then its tasks may be of any size */
    BLOCK_LANES = 64,                /* of blocks, and */
    BLOCK_CUTS = 16,                 /* messages of each, at most */
    LANE_TASKS = 48,                 /* of a lane, at least, so that their size changes no result by 1 % */
    ROUNDS = 16,                     /* of tasks, at least, where two lanes become one: ends are ragged */
    BEYOND = 8,                      /* times as many regions as asked for, before that is given up */
    LOWERED_BYTES = 16 << 20,        /* that schedules which do not know nodes are tried for, at most */
    REMEMBERED = 512,
    LAYERS = 512 /* whose few rows are remembered */
};

static bool is_collective(const weft_problem *problem)
{
    return problem->op >= WEFT_OP_ALL_REDUCE;
}

static bool several_nodes(const weft_machine *machine, int world)
{
    return machine->ranks_per_node > 0 && world > machine->ranks_per_node;
}

static int64_t cuts(int64_t extent, int64_t tile)
{
    return tile > 0 ? weft_max(1, weft_divide_up(extent, tile)) : 1;
}

/*
 * A gemm_rs in two levels on very many ranks has blocks for all of them, of few rows, each tile of which is a
 * product, a store and a message by itself: tiles of so many bytes that a message is worth its start, and a
 * BLOCK_CUTS-th of a block at least. How long it takes follows from the bytes that all lanes have in hand:
 * twice as large tiles on half as many lanes are the same, as long as the lanes keep a link busy.
 */
static void coarsen_blocks(int world, int64_t regions, weft_problem *p)
{
    bool by_rows = p->layout != WEFT_LAYOUT_SCATTER_COLS;
    int64_t whole = by_rows ? p->n : p->m, block = weft_divide_up(by_rows ? p->m : p->n, world);
    int64_t *along = by_rows ? &p->tuning.tile_n : &p->tuning.tile_m;
    int64_t *across = by_rows ? &p->tuning.tile_m : &p->tuning.tile_n;
    /* Of sums in float32, also where half as much travels: twice as large tiles made that 13 to 18 % slower.
     */
    int64_t line_bytes = weft_max(1, weft_min(*across, block)) * (int64_t)weft_dtype_size(WEFT_F32);
    int64_t least = weft_max(weft_divide_up(GPU_COLLECTIVE_BYTES, line_bytes), whole / BLOCK_CUTS);

    p->tuning.workers = (int)weft_min(p->tuning.workers, BLOCK_LANES);
    *along = weft_round_up(least, *along);
    while ((*along < whole || *across < block) && weft_sim_regions(p, world) > (double)regions) {
        int fewest = (int)weft_min(p->tuning.workers, TWO_LEVEL_LANES);

        p->tuning.workers = (int)weft_max(fewest, p->tuning.workers / 2);
        *(*along < whole ? along : across) *= 2;
    }
}

/* Whether taking in what all others have made is so much longer than making one's own that tasks of any size
 * hide behind it. */
static bool fetches_most(const weft_machine *machine, int world, const weft_problem *p)
{
    double fetch = (double)weft_dtype_size(p->d_dtype) / machine->link_gbs;
    double multiply = 2 * (double)p->k / (machine->gflops[p->dtype] * machine->units) / world;

    return p->op == WEFT_OP_GEMM_AS && p->schedule != WEFT_SCHEDULE_UNFUSED &&
           fetch >= FETCH_TIMES * multiply;
}

/*
 * Thousands of ranks with a task per tile would be a hundred million tasks, so tasks grow until there are few
 * enough. First, twice as large tasks on half as many lanes of twice as many units: where there are several
 * waves they stay the same, and so do many lanes that move bytes. Then larger tasks on the same lanes, while
 * a lane keeps so many that its last one does not show. What is left then is too much by far: fewer lanes,
 * whatever it does. So it is in a gemm_as of many ranks: each of them fetches all results but its own, beside
 * which a product of so few columns takes no time.
 */
static void coarsen_gpu(const weft_machine *machine, int world, int64_t regions, weft_problem *p)
{
    int64_t cols = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR ? p->n : weft_divide_up(p->n, world);
    bool many = p->schedule == WEFT_SCHEDULE_TWO_LEVEL && world > WEFT_SIM_LOWERED,
         fetches = (many && p->op == WEFT_OP_GEMM_AS) || fetches_most(machine, world, p);
    int least = fetches ? FETCH_LANES : 1;

    if (many && p->op == WEFT_OP_GEMM_RS) {
        coarsen_blocks(world, regions, p);
        return;
    }
    while ((p->tuning.tile_n < cols || p->tuning.tile_m < p->m) &&
           weft_sim_regions(p, world) > (double)regions) {
        int64_t tasks = cuts(p->m, p->tuning.tile_m) * cuts(cols, p->tuning.tile_n);
        bool many_lanes = p->tuning.workers >= 2 * FEW_LANES,
             few = tasks < (many_lanes ? (int64_t)ROUNDS : 2 * (int64_t)LANE_TASKS) * p->tuning.workers;

        if (few && !fetches && weft_sim_regions(p, world) < (double)regions * BEYOND)
            break;
        /* Lanes beyond a round of tasks stay idle: which lane fetches what depends on how many there are. */
        if ((many_lanes || few) && p->tuning.workers > least)
            p->tuning.workers = (int)weft_max(least, (p->tuning.workers + (tasks < p->tuning.workers)) / 2);
        /* Columns of few are soon ragged. */
        if (p->tuning.tile_n < cols && !(fetches && p->tuning.tile_m < p->m))
            p->tuning.tile_n *= 2;
        else
            p->tuning.tile_m *= 2;
    }
}

/*
 * A unit is cut so that what is inside a node overlaps with what is across: many nodes are many units anyway.
 * A broadcast is a pipeline as deep as there are nodes, and wants as many chunks at least.
 */
static void tune_two_level(const weft_machine *machine, int world, weft_problem *p)
{
    int64_t ranks = machine->ranks_per_node > 0 ? weft_min(machine->ranks_per_node, world) : world;
    int64_t nodes = weft_divide_up(world, ranks),
            smallest = GPU_COLLECTIVE_BYTES / (int64_t)weft_dtype_size(p->dtype);
    int64_t unit = p->op == WEFT_OP_ALL_REDUCE  ? p->count / world
                   : p->op == WEFT_OP_BROADCAST ? p->count / ranks
                                                : p->count;
    /* By multimem, whose sums and results pass the same port in turn, twice as many. */
    int64_t cut = p->schedule == WEFT_SCHEDULE_MULTIMEM ? 128 : 64;
    int64_t chunks = p->op == WEFT_OP_BROADCAST ? weft_max(32, nodes) : weft_max(1, cut / nodes);

    if (!p->tuning.workers)
        p->tuning.workers = p->op == WEFT_OP_REDUCE_SCATTER ? SUM_LANES : TWO_LEVEL_LANES;
    if (!p->tuning.tile_n)
        p->tuning.tile_n = weft_max(weft_max(1, smallest), weft_divide_up(unit, chunks));
}

static void tune_gpu_collective(const weft_machine *machine, int world, weft_problem *p)
{
    bool whole = p->schedule == WEFT_SCHEDULE_ONE_SHOT || p->op == WEFT_OP_BROADCAST;
    int64_t smallest, even;

    if (p->schedule == WEFT_SCHEDULE_TWO_LEVEL ||
        (p->schedule == WEFT_SCHEDULE_MULTIMEM && several_nodes(machine, world))) {
        tune_two_level(machine, world, p);
        return;
    }
    if (!p->tuning.workers)
        p->tuning.workers = (int)weft_min(GPU_COLLECTIVE_LANES, machine->units);
    smallest = (weft_schedule_is_packets(p->schedule) ? GPU_PACKETS_BYTES : GPU_COLLECTIVE_BYTES) /
               (int64_t)weft_dtype_size(p->dtype);
    even = weft_divide_up(whole ? p->count : p->count / world, p->tuning.workers);
    if (!p->tuning.tile_n)
        p->tuning.tile_n = weft_max(even, smallest);
}

/* What weft's kernels for such a GPU take where nothing is asked. */
static void tune_crews(const weft_machine *machine, int world, weft_problem *p)
{
    int crews = machine->units / WEFT_CREW_SMS;

    p->tuning.crew = WEFT_CREW_SMS;
    weft_crews_tune(p, p->schedule, world, crews, true, &p->tuning);
    /* Of four times as many, who would fetch only when they have nothing to store. */
    if (p->tuning.sums_stay && p->op == WEFT_OP_GEMM_AR)
        p->tuning.copiers = crews;
}

static void tune_gpu(const weft_machine *machine, int world, int64_t regions, weft_problem *p)
{
    bool open = !p->tuning.workers && !p->tuning.tile_m && !p->tuning.tile_n;
    /* What does not know nodes queues at network cards tile by tile, and is simulated so, or not at all. */
    bool grows = p->schedule == WEFT_SCHEDULE_TWO_LEVEL || !several_nodes(machine, world);

    if (is_collective(p)) {
        tune_gpu_collective(machine, world, p);
        return;
    }
    if (open && machine->crews && p->schedule != WEFT_SCHEDULE_UNFUSED &&
        (weft_dtype_size(p->dtype) == 2 || weft_dtype_is_fp8(p->dtype)))
        tune_crews(machine, world, p);
    else if (machine->crews && p->tuning.crew == WEFT_CREW_SMS) /* as weft tune kept it */
        p->tuning.sums_stay = weft_crews_ring(p, p->schedule);
    p->tuning.workers = p->tuning.workers ? p->tuning.workers : machine->units;
    p->tuning.tile_m = p->tuning.tile_m ? p->tuning.tile_m : machine->tile_m;
    p->tuning.tile_n = p->tuning.tile_n ? p->tuning.tile_n : machine->tile_n;
    p->tuning.tile_k = p->tuning.tile_k ? p->tuning.tile_k : machine->tile_k;
    p->b_form = p->b_form == WEFT_B_PACK_IN_RUN ? WEFT_B_PLAIN : p->b_form;
    if (p->op == WEFT_OP_AG_GEMM && p->schedule == WEFT_SCHEDULE_TWO_LEVEL && !p->tuning.copiers)
        p->tuning.copiers = GPU_COPIERS;
    if (open && grows && p->tuning.tile_m && p->tuning.tile_n)
        coarsen_gpu(machine, world, regions, p);
}

/*
 * Steps of the kernels there. Of this CPU they are those of this build; of another one those it is described
 * with, so that what is said of it does not depend on where it is said.
 */
static weft_gemm_steps steps_on(const weft_machine *machine, const weft_core *core, weft_dtype dtype)
{
    enum { TILE = 128 };
    bool here = machine->cpu[0] || strcmp(machine->name, WEFT_CHOOSE_GENERIC) == 0;
    int mr = (int)machine->step_m, nr = (int)machine->step_n, k_step = (int)machine->step_k;

    if (here)
        return weft_gemm_steps_of(weft_core_binding(core, dtype, false));
    return (weft_gemm_steps){.mr = mr,
                             .nr = nr,
                             .k_step = k_step,
                             .m_tile = (int)weft_round_up(TILE, mr),
                             .n_tile = (int)weft_round_up(TILE, nr),
                             .k_tile = (int)weft_round_up(TILE, k_step)};
}

static void tune_cpu(const weft_machine *machine, int world, weft_problem *p)
{
    int ranks = machine->ranks_per_node ? (int)weft_min(machine->ranks_per_node, world) : world;
    weft_error_text ignored;
    const weft_core *core;
    weft_gemm_steps steps;

    if (!p->tuning.workers)
        p->tuning.workers = machine->units >= 2 * ranks ? machine->units / ranks : 1;
    if (is_collective(p)) {
        p->tuning.tile_n = p->tuning.tile_n ? p->tuning.tile_n : weft_plan_chunk(p, world);
        return;
    }
    if (weft_core_current(&core, &ignored) != WEFT_OK)
        return;
    steps = steps_on(machine, core, p->dtype);
    p->tuning.tile_m = p->tuning.tile_m ? p->tuning.tile_m : machine->tile_m;
    p->tuning.tile_n = p->tuning.tile_n ? p->tuning.tile_n : machine->tile_n;
    p->tuning.tile_k = p->tuning.tile_k ? p->tuning.tile_k : machine->tile_k;
    weft_plan_tiles(p, world, &steps);
}

void weft_choose_tiles_within(const weft_machine *machine, int world, int64_t regions, weft_problem *problem)
{
    if (machine->kind == WEFT_MACHINE_GPU)
        tune_gpu(machine, world, regions, problem);
    else
        tune_cpu(machine, world, problem);
}

void weft_choose_tiles(const weft_machine *machine, int world, weft_problem *problem)
{
    weft_choose_tiles_within(machine, world, WEFT_CHOOSE_REGIONS, problem);
}

/* ---- auto ----------------------------------------------------------------------------------------- */

typedef struct remembered {
    uint64_t key;
    weft_schedule schedule;
} remembered;

/* Few rows apart from the rest, so that many sizes of other calls do not push them out. */
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static remembered memory[REMEMBERED];
static weft_chosen_few layers[LAYERS];
static unsigned memory_count, layer_count;

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

/* With the lock. */
static weft_chosen_few *find_layer(uint64_t key)
{
    for (unsigned i = 0; i < LAYERS && i < layer_count; i++)
        if (layers[i].key == key)
            return &layers[i];
    return NULL;
}

static bool recall_layer(uint64_t key, weft_chosen_few *few)
{
    const weft_chosen_few *found;

    pthread_mutex_lock(&memory_lock);
    found = find_layer(key);
    if (found)
        *few = *found;
    pthread_mutex_unlock(&memory_lock);
    return found;
}

void weft_choose_learn_few(const weft_chosen_few *few)
{
    if (!few->key)
        return;
    pthread_mutex_lock(&memory_lock);
    if (!find_layer(few->key))
        layers[layer_count++ % LAYERS] = *few;
    pthread_mutex_unlock(&memory_lock);
}

/* What a node needs once, or has one sum of, a schedule that does not know nodes sends as often as it has
 * ranks: lowering that takes long where it is much, and then what travels decides, of which two levels need
 * least. What all send to all is as much by any, but waits least in line where one rank forwards it. */
static bool moves_much(const weft_machine *machine, const weft_problem *p, int world)
{
    double bytes = (double)p->count * (double)weft_dtype_size(p->dtype);

    switch (p->op) {
    case WEFT_OP_ALL_GATHER:
    case WEFT_OP_REDUCE_SCATTER:
        return bytes * world > LOWERED_BYTES;
    case WEFT_OP_ALL_TO_ALL: /* where nodes are full: of one that is not, few ranks forward for many */
        return bytes * world > LOWERED_BYTES && world % machine->ranks_per_node == 0;
    case WEFT_OP_ALL_REDUCE:
    case WEFT_OP_BROADCAST:
        return bytes > LOWERED_BYTES;
    case WEFT_OP_GEMM_RS:
    case WEFT_OP_GEMM_AR:
        return (double)p->m * (double)p->n * 4 > LOWERED_BYTES;
    default:
        return false;
    }
}

/* Much on several nodes only by what knows nodes; on one, that is the same as others for the products that
 * gather and those that scatter. Where a schedule cannot run, `why` says why not. */
static bool worth_trying(const weft_machine *machine, weft_problem *candidate, int world,
                         weft_error_text *why)
{
    bool several = several_nodes(machine, world), levels = candidate->schedule == WEFT_SCHEDULE_TWO_LEVEL;
    bool knows =
        levels || (machine->kind == WEFT_MACHINE_GPU && candidate->schedule == WEFT_SCHEDULE_MULTIMEM);

    if (levels && !several && (candidate->op == WEFT_OP_GEMM_RS || candidate->op == WEFT_OP_AG_GEMM))
        return false;
    if (!knows && several && moves_much(machine, candidate, world))
        return false;
    return weft_sim_can_run(machine, candidate, world, why) &&
           weft_problem_resolve(candidate, world, candidate, why) == WEFT_OK;
}

/* A fused schedule that stores results elsewhere must promise this much. What is predicted closer than that
 * is a guess, and `unfused` is what the caller would have had anyway. */
static const double worth_it = 0.99;

static uint64_t key_of(const weft_machine *machine, const weft_problem *problem, int world)
{
    return weft_problem_hash(problem, world) ^ machine->id;
}

static weft_status find_fastest(const weft_machine *machine, const weft_problem *problem, int world,
                                weft_schedule *schedule, weft_error_text *error)
{
    weft_schedule best = WEFT_SCHEDULE_AUTO;
    const weft_schedule *list;
    weft_schedule only = WEFT_SCHEDULE_AUTO;
    double best_us = 0, unfused_us = INFINITY;
    weft_error_text why = {0};
    int count, tries = 0;

    list = weft_schedule_list(problem->op, problem->layout, &count);
    for (int i = 0; i < count; i++) {
        weft_problem candidate = *problem;

        candidate.schedule = list[i];
        if (worth_trying(machine, &candidate, world, &why)) {
            only = list[i];
            tries++;
        }
    }
    if (tries == 1) { /* nothing to compare it with */
        *schedule = only;
        return WEFT_OK;
    }
    for (int i = 0; i < count; i++) {
        weft_problem candidate = *problem;
        weft_sim_source source = {.problem = &candidate, .world = world};
        weft_sim_result result;
        weft_status status;

        candidate.schedule = list[i];
        weft_choose_tiles(machine, world, &candidate);
        if (!worth_trying(machine, &candidate, world, &why))
            continue;
        status = weft_sim_run(machine, &source, WEFT_SIM_ALL, false, &result, error);
        if (status)
            return status;
        if (list[i] == WEFT_SCHEDULE_UNFUSED)
            unfused_us = result.us;
        if (best == WEFT_SCHEDULE_AUTO || result.us < best_us) {
            best = list[i];
            best_us = result.us;
        }
    }
    if (problem->op != WEFT_OP_AG_GEMM && best_us > worth_it * unfused_us)
        best = WEFT_SCHEDULE_UNFUSED;
    if (best == WEFT_SCHEDULE_AUTO)
        return weft_error_set(error, why.status == WEFT_OK ? WEFT_ERR_UNSUPPORTED : why.status,
                              "no schedule of %s can run on %s: %.300s", weft_op_name(problem->op),
                              machine->name, why.text);
    *schedule = best;
    return WEFT_OK;
}

weft_status weft_choose_schedule(const weft_machine *machine, const weft_problem *problem, int world,
                                 weft_schedule *schedule, weft_error_text *error)
{
    uint64_t key = key_of(machine, problem, world);
    weft_status status;

    if (recall(key, schedule))
        return WEFT_OK;
    status = find_fastest(machine, problem, world, schedule, error);
    if (status == WEFT_OK)
        remember(key, *schedule);
    return status;
}

static uint64_t layer_key(const weft_machine *machine, const weft_problem *problem, int world)
{
    weft_problem layer = *problem;
    uint64_t key;

    layer.m = WEFT_CHOOSE_FEW;
    key = key_of(machine, &layer, world);
    return key ? key : 1;
}

bool weft_choose_recall_few(const weft_machine *machine, const weft_problem *problem, int world,
                            weft_chosen_few *few)
{
    return recall_layer(layer_key(machine, problem, world), few);
}

void weft_choose_few(const weft_machine *machine, const weft_problem *problem, int world,
                     weft_chosen_few *few)
{
    weft_problem like = *problem;

    *few = (weft_chosen_few){.key = layer_key(machine, problem, world)};
    if (recall_layer(few->key, few))
        return;
    like.m = 1;
    for (int i = 0; i < WEFT_CHOOSE_FEW_CLASSES; i++, like.m *= 2) {
        weft_schedule schedule;
        weft_error_text ignored;

        if (find_fastest(machine, &like, world, &schedule, &ignored) != WEFT_OK)
            schedule = WEFT_SCHEDULE_AUTO;
        few->schedule[i] = (uint8_t)schedule;
    }
    weft_choose_learn_few(few);
}

weft_schedule weft_choose_of_few(const weft_chosen_few *few, int64_t m)
{
    int class = 0;

    while ((int64_t)1 << class < m)
        class ++;
    return (weft_schedule)few->schedule[class];
}

weft_status weft_choose_schedule_of(const weft_machine *machine, weft_problem *problem, int world,
                                    weft_origin *origin, weft_error_text *error)
{
    weft_status status = WEFT_OK;
    bool found = false;
    weft_tuned tuned;

    *origin = WEFT_ORIGIN_ASKED;
    if (problem->schedule != WEFT_SCHEDULE_AUTO)
        return WEFT_OK;
    if (weft_tuned_asks(problem) && !problem->tuning.workers)
        status = weft_tuned_find(machine->id, problem, world, &tuned, &found, error);
    if (status != WEFT_OK)
        return status;
    *origin = found ? WEFT_ORIGIN_TUNED : WEFT_ORIGIN_SIMULATED;
    if (!found)
        return weft_choose_schedule(machine, problem, world, &problem->schedule, error);
    problem->schedule = tuned.schedule;
    problem->tuning = tuned.tuning;
    return WEFT_OK;
}
