#include "choose/choose.h"

#include "core/cores.h"
#include "core/dtype.h"
#include "core/hash.h"
#include "core/pool.h"
#include "gemm/gemm.h"
#include "plan/generate.h"
#include "plan/tiles.h"

#include <string.h>

enum {
    ONE_SHOT_BYTES = 4 << 10,
    ACROSS_LEAST_BYTES = 64 << 10,
    ACROSS_MOST_BYTES = 256 << 10,
    PUSHED_RANKS = 3, /* measured with so many */
    PUSHED_LEAST_BYTES = 128 << 10,
    PUSHED_MOST_BYTES = 4 << 20,
    /* Of a product: beyond, hiding the copy of what an epilogue made gains nothing; float32 sums wait in
     * memory, and two places take more than they save. */
    EPILOGUE_K = 256,
    LONG_K = 640,
    /* At most: what takes a second for so many takes half a minute for four times as many. */
    SIMULATED_RANKS = 256,
};

/* Measured on shared memory: a slice reduced and stored to everyone in one pass moves the fewest lines, but
 * for messages so small that the second hop shows. */
static weft_schedule choose_collective(const weft_problem *p, int world)
{
    int64_t bytes = p->count * (int64_t)weft_dtype_size(p->dtype);

    switch (p->op) {
    case WEFT_OP_ALL_REDUCE:
        return bytes * (world - 1) <= ONE_SHOT_BYTES ? WEFT_SCHEDULE_ONE_SHOT : WEFT_SCHEDULE_MULTIMEM;
    default:
        return WEFT_SCHEDULE_PULL;
    }
}

/* What is inside a node overlaps with what is across chunk by chunk; a message costs as much as 64 KiB. */
static int64_t chunk_across(const weft_problem *p, int world)
{
    int64_t size = (int64_t)weft_dtype_size(p->dtype), chunk = weft_plan_chunk(p, world);
    int64_t least = ACROSS_LEAST_BYTES / size, most = ACROSS_MOST_BYTES / size;

    return chunk < least ? least : chunk < most ? chunk : most;
}

/* Sums of few ranks, each alone on its node, which have nobody to share with: stored where they are wanted
 * they need not be copied there, but for so few bytes that one trip less counts more. */
static bool is_pushed(int64_t bytes, int world)
{
    return world <= PUSHED_RANKS && bytes * (world - 1) >= PUSHED_LEAST_BYTES && bytes <= PUSHED_MOST_BYTES;
}

/* Sums of ranks alone on their nodes, with one worker each: on a Neoverse V1 what the kernel does for TCP is
 * not hidden beside the one core that multiplies, and starting from the other node's sums costs 5 to 7 %; on
 * a Neoverse N1 the two are alike, on a Sapphire Rapids two_level is ahead. */
static bool is_multiplied_first(const weft_problem *p, const weft_core *core)
{
    return (p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR) && p->tuning.workers == 1 && core &&
           strncmp(core->name, "neon", 4) == 0;
}

/*
 * Over nodes: what crosses once, but for rows that each go to one rank anyway. Few rows of A are gathered
 * first, so that B is read once; parts of k are read where they lie.
 */
static weft_schedule choose_across(const weft_problem *p, int world, bool alone, const weft_core *core)
{
    if (p->op == WEFT_OP_ALL_TO_ALL || (p->op == WEFT_OP_ALL_REDUCE && alone &&
                                        is_pushed(p->count * (int64_t)weft_dtype_size(p->dtype), world)))
        return WEFT_SCHEDULE_PUSH;
    if (p->op == WEFT_OP_AG_GEMM && (weft_layout_gathers_k(p->layout) || p->b_form == WEFT_B_PREPACKED) &&
        p->layout != WEFT_LAYOUT_GATHER_A)
        return WEFT_SCHEDULE_DIRECT;
    if (p->op == WEFT_OP_AG_GEMM && p->layout == WEFT_LAYOUT_GATHER_A && p->m <= WEFT_FEW_ROWS)
        return WEFT_SCHEDULE_UNFUSED;
    if (alone && is_multiplied_first(p, core))
        return WEFT_SCHEDULE_UNFUSED;
    return WEFT_SCHEDULE_TWO_LEVEL;
}

/* Where nobody has calibrated the machine: what measured fastest on shared memory. Few rows are over before
 * hiding the little they send could pay. */
static weft_schedule usual_schedule(const weft_problem *p, int world)
{
    bool f32 = p->dtype == WEFT_F32, few = p->m <= (f32 ? 512 : 256);
    /* Four ranks of four workers: owners' sums took longer than the collective that all workers share. */
    bool crowd = world > 2 && p->tuning.workers > 1;

    switch (p->op) {
    case WEFT_OP_GEMM_RS:
        return few ? WEFT_SCHEDULE_UNFUSED : WEFT_SCHEDULE_DIRECT;
    case WEFT_OP_GEMM_AR:
        return few || crowd || (f32 && p->k / world > LONG_K) ? WEFT_SCHEDULE_UNFUSED
                                                              : WEFT_SCHEDULE_TWO_SHOT;
    case WEFT_OP_GEMM_AS:
        return (f32 && p->k > LONG_K) || (!weft_problem_only_rounds(p) && p->k > EPILOGUE_K)
                   ? WEFT_SCHEDULE_UNFUSED
                   : WEFT_SCHEDULE_ALL_SCATTER;
    default:
        return weft_ag_gemm_has_few_rows(p, world) ? WEFT_SCHEDULE_UNFUSED : WEFT_SCHEDULE_DIRECT;
    }
}

/* Whether an epilogue is better run over all results in the end: between products, a costly activation is up
 * to 13 % behind, and so is any epilogue of sums that are handed on a panel at a time. */
static bool epilogue_is_last(const weft_problem *p, int world, const weft_binding *bind)
{
    if ((p->op != WEFT_OP_GEMM_RS && p->op != WEFT_OP_GEMM_AR) || weft_problem_only_rounds(p))
        return false;
    return p->act == WEFT_ACT_GELU || p->act == WEFT_ACT_SILU ||
           weft_gemm_order(bind, p->m, weft_problem_part_k(p, world, 0).count, p->op == WEFT_OP_GEMM_AR) <= 1;
}

/* Whatever rows a layer is first called with: what is simulated for few of them is, and no later call waits
 * for it. */
static weft_status choose_gemm(const weft_basis *basis, const weft_problem *p, int world,
                               const weft_binding *bind, weft_chosen_few *few, weft_schedule *schedule,
                               weft_origin *origin, weft_error_text *error)
{
    const weft_machine *machine = &basis->machine;

    *schedule = WEFT_SCHEDULE_UNFUSED;
    if (epilogue_is_last(p, world, bind))
        return WEFT_OK;
    *schedule = usual_schedule(p, world);
    if (machine->kind != WEFT_MACHINE_CPU || strcmp(machine->name, WEFT_CHOOSE_GENERIC) == 0 ||
        world > SIMULATED_RANKS)
        return WEFT_OK;
    *origin = WEFT_ORIGIN_SIMULATED;
    weft_choose_few(machine, p, world, few);
    *schedule = weft_choose_is_few(p) ? weft_choose_of_few(few, p->m) : WEFT_SCHEDULE_AUTO;
    return *schedule == WEFT_SCHEDULE_AUTO ? weft_choose_schedule(machine, p, world, schedule, error)
                                           : WEFT_OK;
}

static int workers_of(int cores)
{
    return weft_pool_threads() ? weft_pool_threads() : cores;
}

static int workers_here(const weft_group *group)
{
    return workers_of(group->cores);
}

/* A rank that is on the same node as the one before it, or not. */
static uint64_t hash_place(uint64_t hash, bool same)
{
    return weft_hash(hash, &same, sizeof(same));
}

static uint64_t nodes_of(const weft_group *group)
{
    uint64_t hash = WEFT_HASH_START;

    for (int rank = 1; group->spread && rank < group->size; rank++) {
        const int *domain = group->world->domain;

        hash = hash_place(hash,
                          domain[group->seats[rank].world_rank] == domain[group->seats[rank - 1].world_rank]);
    }
    return group->spread ? hash : 0;
}

uint64_t weft_choose_tuned_as(const weft_group *group)
{
    return weft_tuned_this(workers_here(group), nodes_of(group));
}

/* What of a basis the process finds without its peers. */
static void find_here(weft_basis *basis)
{
    basis->tuned_why.status = weft_tuned_open(&basis->tuned, &basis->tuned_why);
    basis->pool_uses = weft_pool_uses();
    basis->core = NULL;
    basis->why.status = weft_core_current(&basis->core, &basis->why);
    if (basis->why.status == WEFT_OK)
        basis->why.status = weft_machine_find(NULL, &basis->machine, &basis->why);
}

void weft_basis_drop(weft_basis *basis)
{
    weft_tuned_close(basis->tuned);
    basis->tuned = NULL;
}

/* No two ranks are on one node. */
static bool all_apart(const int32_t *domain, int world)
{
    for (int rank = 1; rank < world; rank++)
        for (int other = 0; other < rank; other++)
            if (domain[rank] == domain[other])
                return false;
    return true;
}

void weft_basis_find(const weft_group *group, weft_basis *basis)
{
    int32_t domain[WEFT_RANKS_MAX];

    basis->workers = workers_here(group);
    basis->spread = group->spread;
    basis->nodes = nodes_of(group);
    for (int rank = 0; rank < group->size && basis->spread; rank++)
        domain[rank] = group->world->domain[group->seats[rank].world_rank];
    basis->alone = basis->spread && all_apart(domain, group->size);
    find_here(basis);
}

void weft_basis_assume(int world, const int32_t *domain, weft_basis *basis)
{
    const weft_cores *ranks[WEFT_RANKS_MAX];
    weft_cores here;

    weft_cores_here(&here);
    for (int rank = 0; rank < world; rank++)
        ranks[rank] = &here;
    basis->workers = workers_of(weft_cores_workers(weft_cores_share(ranks, world, 0)));
    basis->spread = false;
    basis->nodes = WEFT_HASH_START;
    for (int rank = 1; domain && rank < world; rank++) {
        bool same = domain[rank] == domain[rank - 1];

        basis->spread |= !same;
        basis->nodes = hash_place(basis->nodes, same);
    }
    basis->alone = basis->spread && all_apart(domain, world);
    if (!basis->spread)
        basis->nodes = 0;
    find_here(basis);
}

uint64_t weft_basis_hash(const weft_basis *basis)
{
    uint64_t hash, tuned = weft_tuned_hash(basis->tuned);

    if (basis->why.status != WEFT_OK || basis->tuned_why.status != WEFT_OK)
        return 0;
    hash = weft_hash(WEFT_HASH_START, basis->core->name, strlen(basis->core->name));
    for (int c = 0; c < WEFT_COMPUTE_COUNT; c++) { /* from caches: tiles and the order of sums follow them */
        const int blocks[] = {basis->core->bind[c].mc, basis->core->bind[c].kc};

        hash = weft_hash(hash, blocks, sizeof(blocks));
    }
    hash = weft_hash(hash, &basis->nodes, sizeof(basis->nodes));
    if (!basis->spread) /* over nodes, each of which has its own, a rule chooses */
        hash = weft_hash(hash, &basis->machine.id, sizeof(basis->machine.id));
    if (tuned) {
        const uint64_t found[] = {tuned, weft_tuned_this(0, basis->nodes)};

        hash = weft_hash(hash, found, sizeof(found));
    }
    return hash;
}

bool weft_basis_holds(const weft_basis *basis)
{
    return weft_pool_uses() == basis->pool_uses;
}

weft_status weft_choose_cpu(const weft_basis *basis, const weft_problem *problem, int world,
                            weft_problem *resolved, weft_origin *origin, weft_error_text *error)
{
    weft_chosen_few few;

    return weft_choose_and_tell(basis, problem, world, resolved, &few, origin, error);
}

weft_status weft_choose_and_tell(const weft_basis *basis, const weft_problem *problem, int world,
                                 weft_problem *resolved, weft_chosen_few *few, weft_origin *origin,
                                 weft_error_text *error)
{
    weft_origin by = problem->schedule == WEFT_SCHEDULE_AUTO ? WEFT_ORIGIN_RULE : WEFT_ORIGIN_ASKED;
    int cores = problem->tuning.workers > 0 ? problem->tuning.workers : basis->workers;
    weft_problem p = *problem;
    weft_tuned tuned;
    weft_status status = weft_problem_resolve(problem, world, &p, error);

    few->key = 0;
    if (status != WEFT_OK)
        return status;
    if (weft_tuned_asks(problem)) {
        if (basis->tuned_why.status != WEFT_OK) {
            *error = basis->tuned_why;
            return error->status;
        }
        if (weft_tuned_find_in(basis->tuned, weft_tuned_this(cores, basis->nodes), &p, world, &tuned)) {
            by = WEFT_ORIGIN_TUNED;
            p.schedule = tuned.schedule;
            p.tuning = tuned.tuning;
            if (problem->tuning.workers > 0)
                p.tuning.workers = problem->tuning.workers;
        }
    }
    if (!p.tuning.workers)
        p.tuning.workers = cores;
    if (p.op >= WEFT_OP_ALL_REDUCE) {
        if (p.schedule == WEFT_SCHEDULE_AUTO)
            p.schedule = basis->spread ? choose_across(&p, world, basis->alone, basis->core)
                                       : choose_collective(&p, world);
        if (!p.tuning.tile_n)
            p.tuning.tile_n = basis->spread ? chunk_across(&p, world) : weft_plan_chunk(&p, world);
    } else {
        weft_schedule schedule = WEFT_SCHEDULE_AUTO;
        const weft_binding *bind;
        weft_gemm_steps steps;

        if (basis->why.status != WEFT_OK && (!basis->core || p.schedule == WEFT_SCHEDULE_AUTO)) {
            *error = basis->why;
            return error->status;
        }
        bind = weft_core_binding(basis->core, p.dtype, false);
        if (p.schedule == WEFT_SCHEDULE_AUTO && basis->spread)
            p.schedule = choose_across(&p, world, basis->alone, basis->core);
        else if (p.schedule == WEFT_SCHEDULE_AUTO)
            status = choose_gemm(basis, &p, world, bind, few, &schedule, &by, error);
        if (status != WEFT_OK)
            return status;
        if (p.schedule == WEFT_SCHEDULE_AUTO)
            p.schedule = schedule;
        steps = weft_gemm_steps_of(bind);
        weft_plan_tiles(&p, world, &steps);
    }
    *resolved = p;
    if (origin)
        *origin = by;
    return WEFT_OK;
}
