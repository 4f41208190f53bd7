/*
 * All workers of a rank work: for layers of Llama 3, few and many rows, ranks and workers, the tiles that
 * plans, executor and simulator take leave no worker idle where there is enough for all, give none much more
 * than the mean, and are no slower in the simulation than tiles that do not cut k.
 */
#include "support/check.h"
#include "core/dtype.h"
#include "core/round.h"
#include "plan/check.h"
#include "plan/tiles.h"
#include "sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES_MAX = 64 };

typedef struct layer {
    const char *name;
    bool gathers; /* column-parallel: ag_gemm, gemm_as; else row-parallel: gemm_rs, gemm_ar */
    int64_t n, k;
} layer;

static const layer layers[] = {
    {"8B qkv", true, 6144, 4096},       {"8B o", false, 4096, 4096},      {"8B gate_up", true, 28672, 4096},
    {"8B down", false, 4096, 14336},    {"70B qkv", true, 10240, 8192},   {"70B o", false, 8192, 8192},
    {"70B gate_up", true, 57344, 8192}, {"70B down", false, 8192, 28672},
};
static const int64_t rows[] = {1, 16, 64, 256, 1024, 4096};
static const int worlds[] = {2, 4, 8};
static const int workers[] = {4, 16, 64};

enum {
    LAYERS = sizeof(layers) / sizeof(*layers),
    ROWS = sizeof(rows) / sizeof(*rows),
    WORLDS = sizeof(worlds) / sizeof(*worlds),
    WORKERS = sizeof(workers) / sizeof(*workers)
};

/* Of kernels that the CPU at hand need not have. */
static const weft_gemm_steps kernels[] = {
    {.mr = 32, .nr = 32, .k_step = 32, .m_tile = 256, .n_tile = 512, .k_tile = 1536}, /* AMX */
    {.mr = 12, .nr = 32, .k_step = 1, .m_tile = 360, .n_tile = 512, .k_tile = 512},   /* AVX-512 */
    {.mr = 6, .nr = 16, .k_step = 1, .m_tile = 144, .n_tile = 512, .k_tile = 256},    /* AVX2 */
    {.mr = 8, .nr = 12, .k_step = 4, .m_tile = 192, .n_tile = 516, .k_tile = 1280},   /* Neoverse */
};

enum { KERNELS = sizeof(kernels) / sizeof(*kernels) };

static weft_machine machine;
static weft_gemm_steps steps;
static const weft_gemm_steps amx = {
    .mr = 32, .nr = 32, .k_step = 32, .m_tile = 256, .n_tile = 256, .k_tile = 256};

static weft_problem problem_of(weft_op op, weft_schedule schedule, const layer *of, int64_t m, int world,
                               int threads)
{
    weft_problem p = {.size = sizeof(p),
                      .op = op,
                      .schedule = schedule,
                      .m = m,
                      .n = of->n,
                      .k = of->k,
                      .l = 1,
                      .dtype = WEFT_BF16,
                      .d_dtype = WEFT_BF16,
                      .b_form = WEFT_B_PREPACKED,
                      .alpha = 1,
                      .tuning.workers = threads};
    weft_error_text error = {0};

    CHECK_INT(weft_problem_resolve(&p, world, &p, &error), WEFT_OK);
    return p;
}

/* Multiplications of each compute lane of a part; `whole`: of micro-tiles, which take as long when rows or
 * columns of them are missing. */
static double lane_work(const weft_plan_part *part, bool whole, double work[LANES_MAX])
{
    double sum = 0;

    memset(work, 0, LANES_MAX * sizeof(*work));
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];
        const weft_region *d = weft_task_regions(part, task), *a = weft_task_inputs(part, task);
        double product;

        if (task->kind != WEFT_TASK_GEMM)
            continue;
        product = (double)weft_round_up(d->rows, whole ? steps.mr : 1) *
                  (double)weft_round_up(d->cols, whole ? steps.nr : 1) * (double)a->cols;
        work[task->lane] += product;
        sum += product;
    }
    return sum;
}

static double slices_bytes(const weft_plan_part *part)
{
    for (uint32_t i = 0; i < part->operand_count; i++)
        if (!strcmp(part->operands[i].name, "slices"))
            return (double)part->operands[i].rows * (double)part->operands[i].cols * 4;
    return 0;
}

static bool is_cut(const weft_plan_part *part)
{
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];
        const weft_region *a = weft_task_inputs(part, task);

        if (task->kind == WEFT_TASK_GEMM &&
            a->cols < weft_operand_cols(&part->operands[a->operand], part->world, part->rank))
            return true;
    }
    return false;
}

static int64_t columns_of(const weft_problem *p, int world)
{
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;

    return sums ? p->n : p->n / world;
}

/* Micro-tiles of the product of this rank: what could be given to a worker at least. */
static double micro_tiles(const weft_problem *p, int world)
{
    return (double)weft_divide_up(p->m, steps.mr) * (double)weft_divide_up(columns_of(p, world), steps.nr);
}

/* A plan says how wide tiles are, not how many: of columns that workers do not divide, some have none. */
static int64_t left_by_columns(const weft_problem *p, int world)
{
    int64_t cols = columns_of(p, world), lanes = p->tuning.workers;

    return lanes - weft_divide_up(cols, weft_divide_up(cols, lanes));
}

static void all_workers_work(const weft_problem *p, const layer *of, int world, int rank, bool whole)
{
    weft_error_text error = {0};
    weft_plan_part part = {0};
    /* Where k is not cut a worker has whole micro-tiles, of which some are narrower than others. */
    double each = micro_tiles(p, world) / p->tuning.workers, quantum = 1.01 * ceil(each) / each;
    double work[LANES_MAX], sum, busiest = 0, limit = fmax(p->m == 1 ? 1.3 : 1.15, quantum);
    int idle = 0;

    CHECK_INT(weft_plan_make(p, world, rank, &part, &error), WEFT_OK);
    sum = lane_work(&part, whole, work);
    for (int lane = 0; lane < p->tuning.workers; lane++) {
        busiest = work[lane] > busiest ? work[lane] : busiest;
        idle += work[lane] == 0;
    }
    bool all = micro_tiles(p, world) < p->tuning.workers || idle <= left_by_columns(p, world);

    if (busiest > limit * sum / p->tuning.workers || !all)
        fprintf(stderr,
                "%s %s %s m=%lld ranks=%d workers=%d: busiest %.3f of the mean, %d idle; tile %lld x %lld x "
                "%lld\n",
                of->name, weft_op_name(p->op), weft_schedule_name(p->op, p->schedule), (long long)p->m, world,
                p->tuning.workers, busiest * p->tuning.workers / sum, idle, (long long)p->tuning.tile_m,
                (long long)p->tuning.tile_n, (long long)p->tuning.tile_k);
    CHECK(busiest <= limit * sum / p->tuning.workers);
    CHECK(all);
    CHECK((slices_bytes(&part) > 0) == is_cut(&part));
    CHECK(slices_bytes(&part) < 64e6);
    weft_plan_part_free(&part);
}

static double simulated(const weft_problem *p, int world)
{
    weft_sim_source source = {.problem = p, .world = world};
    weft_error_text error = {0};
    weft_sim_result result = {0};

    CHECK_INT(weft_sim_run(&machine, &source, WEFT_SIM_ALL, false, &result, &error), WEFT_OK);
    return result.us;
}

/* The best of plans that do not cut k: the tiles chosen with all of k, and whole rows of tiles. */
static void no_slower_than_uncut(const weft_problem *asked, const weft_problem *chosen, const layer *of,
                                 int world)
{
    weft_problem even = *asked, broad = *asked;
    double us = simulated(chosen, world), even_us, broad_us, uncut;

    even.tuning.tile_k = even.k;
    weft_plan_tiles(&even, world, &steps);
    broad.tuning.tile_m = steps.m_tile;
    weft_plan_tiles(&broad, world, &steps);
    even_us = simulated(&even, world);
    broad_us = simulated(&broad, world);
    uncut = even_us < broad_us ? even_us : broad_us;
    if (us > 1.02 * uncut)
        fprintf(stderr,
                "%s %s %s m=%lld ranks=%d workers=%d: %.1f us, uncut %.1f (even) %.1f (broad); tile %lld x "
                "%lld x %lld\n",
                of->name, weft_op_name(asked->op), weft_schedule_name(asked->op, asked->schedule),
                (long long)asked->m, world, asked->tuning.workers, us, even_us, broad_us,
                (long long)chosen->tuning.tile_m, (long long)chosen->tuning.tile_n,
                (long long)chosen->tuning.tile_k);
    CHECK(us <= 1.02 * uncut);
}

static void is_right(const weft_problem *p, int world)
{
    weft_plan_part *parts = calloc((size_t)world, sizeof(*parts));
    weft_check_report *report = malloc(sizeof(*report));
    weft_error_text error = {0};

    for (int rank = 0; rank < world; rank++)
        CHECK_INT(weft_plan_make(p, world, rank, &parts[rank], &error), WEFT_OK);
    CHECK_INT(weft_plan_check(parts, world, report, &error), WEFT_OK);
    CHECK_INT(report->count, 0);
    for (int rank = 0; rank < world; rank++)
        weft_plan_part_free(&parts[rank]);
    free(report);
    free(parts);
}

static const weft_schedule *schedules_of(weft_op op, int *count)
{
    return weft_schedule_list(op,
                              op == WEFT_OP_GEMM_RS   ? WEFT_LAYOUT_SCATTER_ROWS
                              : op == WEFT_OP_AG_GEMM ? WEFT_LAYOUT_GATHER_A
                                                      : WEFT_LAYOUT_DEFAULT,
                              count);
}

static void layer_works(const layer *of, weft_op op, int64_t m, int world, int threads, int number)
{
    int count;
    const weft_schedule *list = schedules_of(op, &count);

    for (int i = 0; i < count; i++) {
        weft_problem asked = problem_of(op, list[i], of, m, world, threads), chosen = asked;

        weft_plan_tiles(&chosen, world, &steps);
        for (int rank = 0; rank < world; rank += check_repeat(world - 1, 1))
            all_workers_work(&chosen, of, world, rank, false);
        /* Each takes long for many ranks and workers: some of them, and all where there is time. */
        if (number++ % check_repeat(3, 1) == 0)
            no_slower_than_uncut(&asked, &chosen, of, world);
        if (number % check_repeat(5, 1) == 0 && world * threads <= check_repeat(128, 512) &&
            m <= check_repeat(256, 4096))
            is_right(&chosen, world);
    }
}

static void llama_layers(void)
{
    int number = 0;

    for (int l = 0; l < LAYERS; l++)
        for (int m = 0; m < ROWS; m++)
            for (int w = 0; w < WORLDS; w++)
                for (int t = 0; t < WORKERS; t++) {
                    const layer *of = &layers[l];

                    layer_works(of, of->gathers ? WEFT_OP_AG_GEMM : WEFT_OP_GEMM_RS, rows[m], worlds[w],
                                workers[t], number++);
                    layer_works(of, of->gathers ? WEFT_OP_GEMM_AS : WEFT_OP_GEMM_AR, rows[m], worlds[w],
                                workers[t], number++);
                }
}

static void work_with(weft_gemm_steps of)
{
    steps = of;
    machine.step_m = of.mr; /* it is taken for such a machine */
    machine.step_n = of.nr;
}

/* With the steps of the CPU at hand, and where there is time of all kernels. */
static void llama_layers_on_all(void)
{
    const weft_gemm_steps own = steps;

    llama_layers();
    for (int kernel = 0; kernel < check_repeat(0, KERNELS); kernel++) {
        work_with(kernels[kernel]);
        llama_layers();
    }
    work_with(own);
}

/* The first rank and the last, by every schedule of both operations. */
static void ends_work(const layer *of, int64_t m, int world, int threads)
{
    const weft_op ops[] = {of->gathers ? WEFT_OP_AG_GEMM : WEFT_OP_GEMM_RS,
                           of->gathers ? WEFT_OP_GEMM_AS : WEFT_OP_GEMM_AR};

    for (int op = 0; op < 2; op++) {
        int count;
        const weft_schedule *list = schedules_of(ops[op], &count);

        for (int i = 0; i < count; i++) {
            weft_problem p = problem_of(ops[op], list[i], of, m, world, threads);

            weft_plan_tiles(&p, world, &steps);
            all_workers_work(&p, of, world, 0, true);
            all_workers_work(&p, of, world, world - 1, true);
        }
    }
}

/* Layers of other models, numbers of workers that are no powers of two, and the steps of kernels that this
 * CPU need not have. */
static void other_layers_and_workers(void)
{
    static const layer others[] = {
        {"Qwen 7B qkv", true, 4608, 3584},     {"Qwen 7B gate_up", true, 37888, 3584},
        {"Qwen 7B o", false, 3584, 3584},      {"Qwen 7B down", false, 3584, 18944},
        {"DeepSeek q", true, 24576, 1536},     {"DeepSeek down", false, 7168, 2048},
        {"Gemma gate_up", true, 28672, 3072},  {"Gemma down", false, 3072, 24576},
        {"Phi qkv", true, 7680, 5120},         {"Phi down", false, 5120, 17920},
        {"405B gate_up", true, 106496, 16384}, {"405B down", false, 16384, 53248},
        {"GPT-2 up", true, 6400, 1600},        {"GPT-2 o", false, 1600, 6400},
    };
    static const int64_t m_of[] = {1, 8, 32, 512, 2000, 8192};
    static const int worlds_of[] = {2, 3, 4, 6, 8}, workers_of[] = {3, 6, 8, 12, 24, 48};
    const weft_gemm_steps own = steps;
    long number = 0, every = check_repeat(11, 1); /* prime to those counts: each is met with each */

    for (int kernel = 0; kernel < KERNELS; kernel++)
        for (size_t of = 0; of < sizeof(others) / sizeof(*others); of++)
            for (size_t m = 0; m < sizeof(m_of) / sizeof(*m_of); m++)
                for (size_t w = 0; w < sizeof(worlds_of) / sizeof(*worlds_of); w++)
                    for (size_t t = 0; t < sizeof(workers_of) / sizeof(*workers_of); t++) {
                        if (number++ % every)
                            continue;
                        steps = kernels[kernel];
                        ends_work(&others[of], m_of[m], worlds_of[w], workers_of[t]);
                    }
    steps = own;
}

/* Layers and numbers of ranks that divide badly, with the steps of a Neoverse V1: owners of a two_shot have
 * no more tiles than pay, and rows are cut as often as it takes. */
static void odd_ranks_work(void)
{
    static const weft_gemm_steps v1 = {
        .mr = 8, .nr = 12, .k_step = 4, .m_tile = 192, .n_tile = 516, .k_tile = 1280};
    static const layer down = {"Qwen 7B down", false, 3584, 18944}, up = {"DeepSeek up", true, 4096, 7168};
    const weft_gemm_steps own = steps;

    work_with(v1);
    layer_works(&down, WEFT_OP_GEMM_AR, 14, 8, 6, 2); /* two_shot is simulated */
    layer_works(&down, WEFT_OP_GEMM_AR, 16, 8, 6, 2);
    layer_works(&up, WEFT_OP_GEMM_AS, 31, 5, 54, 0);
    work_with(own);
}

/* One worker: whole rows of tiles over all of k, where those are two for every owner. */
static void one_worker_is_left_alone(void)
{
    weft_problem p =
        problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, &layers[1], 8 * (int64_t)steps.m_tile, 4, 1);

    weft_plan_tiles(&p, 4, &steps);
    CHECK_INT(p.tuning.tile_m, steps.m_tile);
    CHECK(p.tuning.tile_n >= p.n && p.tuning.tile_k >= p.k);
    CHECK_INT(p.tuning.grain_n, 0);
    p = problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, &layers[1], 2 * (int64_t)steps.m_tile, 2, 1);
    weft_plan_tiles(&p, 2, &steps);
    CHECK_INT(p.tuning.tile_m, steps.m_tile);
    CHECK_INT(weft_divide_up(p.n, p.tuning.tile_n), 2);
}

/* A packed B is written panel by panel: a grain that cuts panels would have two tiles write one. */
static void a_grain_is_whole_panels(void)
{
    weft_problem p = problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, &layers[1], 1024, 4, 1);

    p.tuning.grain_n = (int)steps.nr + 1;
    weft_plan_tiles(&p, 4, &steps);
    CHECK_INT(p.tuning.grain_n, 2 * steps.nr);
}

/* What a rank finishes of a product whose sums travel between two nodes. */
static double finishes(const weft_problem *p, int world, int rank)
{
    int32_t domain[8];
    weft_error_text error = {0};
    weft_plan_part part = {0};
    double area = 0;

    for (int i = 0; i < world; i++)
        domain[i] = i >= world / 2;
    CHECK_INT(weft_plan_make_over(p, domain, world, rank, &part, &error), WEFT_OK);
    for (uint32_t i = 0; i < part.task_count; i++) {
        const weft_region *to = weft_task_regions(&part, &part.tasks[i]);

        CHECK(part.tasks[i].kind != WEFT_TASK_REDUCE);
        if (part.tasks[i].kind == WEFT_TASK_GEMM && part.tasks[i].flags & WEFT_TASK_EPILOGUE)
            area += (double)to->rows * (double)to->cols;
    }
    weft_plan_part_free(&part);
    return area;
}

/* Over two nodes one worker has several sums for every owner, none much larger than another, and nobody only
 * adds. */
static void one_worker_sends_while_it_multiplies(void)
{
    const layer small = {"small", false, 512, 1024};

    for (int w = 0; w < WORLDS; w++) {
        for (int op = 0; op < 2; op++) {
            weft_problem p = problem_of(op ? WEFT_OP_GEMM_AR : WEFT_OP_GEMM_RS, WEFT_SCHEDULE_TWO_LEVEL,
                                        &small, 512, worlds[w], 1);
            double mean = 512.0 * 512 / worlds[w];

            weft_plan_tiles(&p, worlds[w], &steps);
            CHECK((double)p.tuning.tile_m * (double)p.tuning.tile_n <= 0.6 * mean);
            /* Whole micro-tiles rarely divide rows into as many for each. */
            for (int rank = 0; rank < worlds[w]; rank++)
                CHECK(fabs(finishes(&p, worlds[w], rank) - mean) <
                      fmax(0.2 * mean, (double)p.tuning.tile_m * (double)p.tuning.tile_n));
        }
    }
}

/* A result that all nodes get travels as whole rows, two tiles for every owner, where rows are enough: then
 * nothing is gathered or scattered on its way. */
static void results_of_all_travel_dense(void)
{
    static const weft_gemm_steps avx512 = {
        .mr = 12, .nr = 32, .k_step = 1, .m_tile = 360, .n_tile = 512, .k_tile = 384};

    for (int64_t size = 512; size <= 2048; size *= 2) {
        for (int w = 0; w < WORLDS; w++) {
            const layer square = {"square", false, size, 2048};
            weft_problem p =
                problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_LEVEL, &square, size, worlds[w], 1);

            weft_plan_tiles(&p, worlds[w], &avx512);
            CHECK(p.tuning.tile_n >= size);
            CHECK(p.tuning.tile_m >= 2 * avx512.mr);
            CHECK(weft_divide_up(size, p.tuning.tile_m) >= 2 * worlds[w]);
        }
    }
}

/* Also where a twelfth of the rows is no whole number of micro-tiles: an owner with one tile would wait for
 * those with two. */
static void every_owner_has_two_tiles(void)
{
    static const weft_gemm_steps avx512 = {
        .mr = 12, .nr = 32, .k_step = 1, .m_tile = 360, .n_tile = 512, .k_tile = 384};

    for (int64_t m = 396; m <= 1032; m += 12) {
        const layer wide = {"wide", false, 512, 1536};
        weft_problem p = problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_LEVEL, &wide, m, 6, 1);

        weft_plan_tiles(&p, 6, &avx512);
        CHECK(weft_divide_up(m, p.tuning.tile_m) * weft_divide_up(512, p.tuning.tile_n) >= 12);
    }
}

/* One worker cuts rows only at micro-tiles, which are slower where they are not whole. */
static void one_worker_has_whole_micro_tiles(void)
{
    static const weft_gemm_steps avx512 = {
        .mr = 12, .nr = 32, .k_step = 1, .m_tile = 360, .n_tile = 512, .k_tile = 384};
    const layer wide = {"wide", false, 1024, 1024};

    for (int w = 0; w < WORLDS; w++) {
        weft_problem p = problem_of(WEFT_OP_GEMM_RS, WEFT_SCHEDULE_TWO_LEVEL, &wide, 512, worlds[w], 1);

        weft_plan_tiles(&p, worlds[w], &avx512);
        CHECK_INT(p.tuning.tile_m % avx512.mr, 0);
    }
}

/* A tile that does not divide the rows leaves nobody waiting where there is one worker: it is no reason for
 * tiles so small that starting them takes longest. */
static void one_worker_keeps_large_tiles(void)
{
    const layer odd = {"odd", false, 1479, 22};
    weft_problem p = problem_of(WEFT_OP_GEMM_RS, WEFT_SCHEDULE_TWO_LEVEL, &odd, 1683, 5, 1);

    weft_plan_tiles(&p, 5, &amx);
    CHECK(weft_divide_up(1683, p.tuning.tile_m) * weft_divide_up(1479, p.tuning.tile_n) <= 64);
}

/* Tiles that the caller cut share a B that is packed once; a single tile of rows packs it as it goes. */
static void cut_rows_share_a_packed_b(void)
{
    const layer small = {"small", false, 1024, 1024};

    for (int cut = 0; cut < 2; cut++) {
        weft_problem p = problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, &small, steps.m_tile, 2, 1);

        p.b_form = WEFT_B_PACK_IN_RUN;
        p.tuning.tile_m = cut ? 2 * steps.mr : 0;
        weft_plan_tiles(&p, 2, &steps);
        CHECK_INT(p.b_form, cut ? WEFT_B_PACK_IN_RUN : WEFT_B_PLAIN);
    }
}

/* Rows of tiles that are many rounds by themselves keep their columns: narrow tiles would each pack A again.
 */
static void few_workers_keep_wide_tiles(void)
{
    const layer odd = {"odd", true, 3072, 8192};
    weft_problem p = problem_of(WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A, &odd, 4096, 3, 2);

    weft_plan_tiles(&p, 3, &amx);
    CHECK_INT(weft_divide_up(p.n / 3, p.tuning.tile_n), 1);
}

/* A B that lies as the caller has it is packed by every tile of rows but the smallest: columns are cut, not
 * rows, also where a micro-tile has as many. */
static void a_plain_b_is_packed_once(void)
{
    const layer small = {"small", false, 896, 517};

    for (int threads = 2; threads <= 28; threads *= threads == 4 ? 7 : 2) { /* which divide its panels */
        weft_problem p = problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED, &small, 100, 2, threads);

        p.b_form = WEFT_B_PLAIN;
        weft_plan_tiles(&p, 2, &amx);
        CHECK(p.tuning.tile_m >= p.m);
    }
}

/* Between two ranks an owner's product starts from its peer's: tiles of each are enough for all workers, or
 * the half of them waits for the other. */
static void both_halves_use_all_workers(void)
{
    for (int w = 0; w < WORKERS; w++)
        for (int64_t m = 64; m <= 4096; m *= 4) {
            weft_problem p = problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, &layers[1], m, 2,
                                        workers[w]),
                         halved;
            double us;

            if (m * p.n < (int64_t)workers[w] << 14)
                continue;
            weft_plan_tiles(&p, 2, &steps);
            us = simulated(&p, 2);
            halved = p;
            halved.tuning.workers = workers[w] / 2;
            CHECK(us < 0.75 * simulated(&halved, 2));
        }
}

/* All workers of an owner add up what its peers have sent, not the two that have its tiles. */
static void owners_finish_with_all_workers(void)
{
    const layer wide = {"wide", false, 1792, 512};
    weft_problem p = problem_of(WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT, &wide, 512, 4, 4);
    weft_error_text error = {0};

    weft_plan_tiles(&p, 4, &amx);
    for (int rank = 0; rank < 4; rank++) {
        weft_plan_part part = {0};
        bool adds[4] = {false};

        CHECK_INT(weft_plan_make(&p, 4, rank, &part, &error), WEFT_OK);
        for (uint32_t i = 0; i < part.task_count; i++)
            if (part.tasks[i].kind == WEFT_TASK_REDUCE)
                adds[part.tasks[i].lane] = true;
        CHECK(adds[0] && adds[1] && adds[2] && adds[3]);
        weft_plan_part_free(&part);
    }
}

/* A packed B of halves that the kernel does not read is widened by every tile: a tile has rows enough for it.
 */
static void widened_tiles_are_thick(void)
{
    static const weft_gemm_steps widening = {
        .mr = 12, .nr = 32, .k_step = 1, .m_tile = 360, .n_tile = 512, .k_tile = 512, .widens = true};
    const layer square = {"square", false, 1024, 512};
    const weft_schedule schedules[] = {WEFT_SCHEDULE_DIRECT, WEFT_SCHEDULE_TWO_LEVEL};

    for (int i = 0; i < 2; i++) {
        weft_problem p = problem_of(WEFT_OP_GEMM_RS, schedules[i], &square, 1024, 2, 2);

        weft_plan_tiles(&p, 2, &widening);
        CHECK(p.tuning.tile_m >= 10 * widening.mr);
    }
}

/* Where starting a task takes longer than its product, workers without one are cheaper than a second round:
 * ten tiles for nineteen workers, not twenty and more. */
static void starts_are_not_bought(void)
{
    weft_problem p = {
        .size = sizeof(p), .op = WEFT_OP_AG_GEMM, .alpha = 1, .l = 1, .m = 229, .n = 20, .k = 4};
    const weft_gemm_steps of_epyc = {
        .mr = 12, .nr = 32, .k_step = 2, .m_tile = 132, .n_tile = 128, .k_tile = 128};
    weft_error_text error = {0};

    p.dtype = p.d_dtype = WEFT_BF16;
    p.schedule = WEFT_SCHEDULE_ALLGATHER_ROTATING_A;
    p.tuning.workers = 19;
    CHECK_INT(weft_problem_resolve(&p, 5, &p, &error), WEFT_OK);
    weft_plan_tiles(&p, 5, &of_epyc);
    CHECK(5 * weft_divide_up(46, p.tuning.tile_m) <= 19);
}

/* Collectives from 16 KB to 32 MB: every lane of a rank moves about as much as another. */
static void collectives_use_the_team(void)
{
    for (int64_t bytes = 16 << 10; bytes <= 32 << 20; bytes *= 8) {
        for (int w = 0; w < WORLDS; w++) {
            weft_problem p = {.size = sizeof(p),
                              .op = WEFT_OP_ALL_REDUCE,
                              .schedule = WEFT_SCHEDULE_MULTIMEM,
                              .dtype = WEFT_F32,
                              .count = bytes / 4,
                              .tuning.workers = 16};
            weft_error_text error = {0};
            weft_plan_part part = {0};
            double moved[LANES_MAX] = {0}, most = 0, sum = 0;
            int idle = 0;

            CHECK_INT(weft_problem_resolve(&p, worlds[w], &p, &error), WEFT_OK);
            p.tuning.tile_n = weft_plan_chunk(&p, worlds[w]);
            CHECK_INT(weft_plan_make(&p, worlds[w], 0, &part, &error), WEFT_OK);
            for (uint32_t i = 0; i < part.task_count; i++)
                if (part.tasks[i].kind == WEFT_TASK_REDUCE)
                    moved[part.tasks[i].lane] += (double)weft_task_regions(&part, &part.tasks[i])->cols;
            for (int lane = 0; lane < p.tuning.workers; lane++) {
                most = moved[lane] > most ? moved[lane] : most;
                sum += moved[lane];
                idle += moved[lane] == 0;
            }
            CHECK_INT(idle, 0);
            CHECK(most <= 1.15 * sum / p.tuning.workers);
            weft_plan_part_free(&part);
        }
    }
}

int main(void)
{
    weft_error_text error = {0};
    const weft_core *core = NULL;

    CHECK_INT(weft_machine_find("cpu", &machine, &error), WEFT_OK);
    CHECK_INT(weft_core_current(&core, &error), WEFT_OK);
    machine.units = 8 * 64; /* a core for every worker */
    work_with(weft_gemm_steps_of(weft_core_binding(core, WEFT_BF16, false)));
    one_worker_is_left_alone();
    a_grain_is_whole_panels();
    one_worker_sends_while_it_multiplies();
    results_of_all_travel_dense();
    every_owner_has_two_tiles();
    one_worker_has_whole_micro_tiles();
    one_worker_keeps_large_tiles();
    cut_rows_share_a_packed_b();
    few_workers_keep_wide_tiles();
    a_plain_b_is_packed_once();
    both_halves_use_all_workers();
    owners_finish_with_all_workers();
    collectives_use_the_team();
    widened_tiles_are_thick();
    starts_are_not_bought();
    other_layers_and_workers();
    odd_ranks_work();
    llama_layers_on_all();
    return check_report("test_sim_tiles");
}
