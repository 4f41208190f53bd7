/*
 * A program of 0.2: built with the header of that version, which lies beside it, and run with the library of
 * this tree. Behind each of its structs lies what no library may touch.
 */
#include <weft/weft.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define GUARDED(type, name)                                                                                  \
    struct {                                                                                                 \
        type it;                                                                                             \
        unsigned char behind[256];                                                                           \
    } name;                                                                                                  \
    memset(&name, 0xa5, sizeof(name))

enum { SIDE = 8, EXPERTS = 2 };

static int failures;

static void expect(int condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "abi: %s (%s)\n", what, weft_error(NULL));
    failures++;
}

static int untouched(const unsigned char *behind)
{
    for (int i = 0; i < 256; i++)
        if (behind[i] != 0xa5)
            return 0;
    return 1;
}

static void names(void)
{
    int count = 0;

    expect(WEFT_VERSION_MAJOR == 0 && WEFT_VERSION_MINOR == 2, "the header is that of 0.2");
    expect(strcmp(weft_status_name(WEFT_ERR_TIMEOUT), "WEFT_ERR_TIMEOUT") == 0, "a status has its name");
    expect(weft_dtype_size(WEFT_BF16) == 2 && strcmp(weft_dtype_name(WEFT_I8), "int8") == 0, "dtypes");
    expect(weft_part(7, 3, 0).count == 3 && weft_part(7, 3, 2).begin == 5 &&
               weft_part_granular(7, 2, 3, 1).begin == 4 && weft_part_granular(7, 2, 3, 2).count == 1,
           "parts");
    expect(weft_schedule_list(WEFT_OP_GEMM_AR, WEFT_LAYOUT_DEFAULT, &count) && count >= 3, "schedules");
}

static void one_rank(void)
{
    float a[SIDE * SIDE], b[SIDE * SIDE], d[SIDE * SIDE];
    const int64_t offset[EXPERTS + 1] = {0, 3, SIDE};
    GUARDED(weft_gemm_args, args);
    GUARDED(weft_grouped_args, grouped);

    for (int i = 0; i < SIDE * SIDE; i++)
        a[i] = b[i] = 1;
    weft_gemm_args_init(&args.it, WEFT_F32, SIDE, SIDE, SIDE);
    expect(untouched(args.behind), "weft_gemm_args_init stays inside");
    args.it.a = a;
    args.it.b = b;
    args.it.d = d;
    expect(weft_gemm(&args.it) == WEFT_OK && d[SIDE] == SIDE, "weft_gemm");
    weft_grouped_args_init(&grouped.it, WEFT_F32, EXPERTS, SIDE, SIDE, SIDE / 2);
    expect(untouched(grouped.behind), "weft_grouped_args_init stays inside");
    grouped.it.offset = offset;
    grouped.it.a = a;
    grouped.it.b = b;
    grouped.it.d = d;
    expect(weft_grouped_gemm(NULL, &grouped.it) == WEFT_OK && d[SIDE] == SIDE / 2, "weft_grouped_gemm");
}

static void twice(void *context, int expert, int64_t rows, const void *const *in, void *const *out)
{
    (void)context;
    (void)expert;
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < SIDE; i++)
            ((float *)out[r])[i] = 2 * ((const float *)in[r])[i];
}

static void layer(weft_group *group)
{
    float x[SIDE], y[SIDE];
    int32_t choice = (weft_rank(group) + 1) % EXPERTS;
    weft_moe *moe = NULL;
    GUARDED(weft_moe_config, config);
    GUARDED(weft_moe_view, view);
    GUARDED(weft_moe_stats, stats);
    weft_moe_input input = {.size = sizeof(input), .tokens = 1, .x = x, .expert = &choice};
    weft_moe_expert expert = {.size = sizeof(expert), .block = twice};

    for (int i = 0; i < SIDE; i++)
        x[i] = (float)(weft_rank(group) + i);
    weft_moe_config_init(&config.it);
    config.it.experts = EXPERTS;
    config.it.topk = 1;
    config.it.hidden = SIDE;
    config.it.tokens = 1;
    config.it.dtype = WEFT_F32;
    expect(weft_moe_create(group, &config.it, &moe) == WEFT_OK, "weft_moe_create");
    expect(weft_moe_forward(moe, 0, &input, &expert, y) == WEFT_OK && y[3] == 2 * x[3], "weft_moe_forward");
    stats.it.size = sizeof(stats.it);
    expect(weft_moe_get_stats(moe, 0, &stats.it) == WEFT_OK && stats.it.tokens == 1, "weft_moe_get_stats");
    view.it.size = sizeof(view.it);
    expect(weft_moe_dispatch(moe, 0, &input, &view.it) == WEFT_OK && view.it.rows == 1, "weft_moe_dispatch");
    expect(weft_moe_combine(moe, 0, view.it.row[0], NULL, y) == WEFT_OK && y[3] == x[3], "weft_moe_combine");
    expect(untouched(config.behind) && untouched(view.behind) && untouched(stats.behind),
           "mixture of experts stays inside its structs");
    expect(weft_moe_free(moe) == WEFT_OK, "weft_moe_free");
}

static void symmetric(weft_group *group)
{
    int64_t *words = NULL, sent = weft_rank(group) + 5;
    int peer = (weft_rank(group) + 1) % weft_size(group);

    expect(weft_alloc(group, 2 * WEFT_SIGNAL_BYTES, 0, (void **)&words) == WEFT_OK, "weft_alloc");
    expect(weft_put_signal(group, words + 16, &sent, sizeof(sent), words, 1, peer) == WEFT_OK &&
               weft_wait_signal(group, words, 1, -1) == WEFT_OK && words[16] == 6 - weft_rank(group),
           "weft_put_signal");
    expect(weft_barrier(group) == WEFT_OK && weft_free(group, words) == WEFT_OK, "weft_free");
}

static void *rank_main(void *argument)
{
    weft_group *group = argument;
    int64_t rows = weft_part(SIDE, weft_size(group), weft_rank(group)).count;
    float a[SIDE * SIDE], b[SIDE * SIDE], d[SIDE * SIDE], sum = 1;
    weft_operands operands = {.size = sizeof(operands), .a = a, .b = b, .d = d};
    weft_plan *plan = NULL;
    GUARDED(weft_problem, problem);

    for (int i = 0; i < SIDE * SIDE; i++)
        a[i] = b[i] = 1;
    weft_problem_init(&problem.it, WEFT_OP_AG_GEMM);
    expect(untouched(problem.behind), "weft_problem_init stays inside");
    problem.it.m = problem.it.n = problem.it.k = SIDE;
    problem.it.tuning.tile_m = 4;
    expect(weft_ag_gemm(group, &problem.it, &operands) == WEFT_OK && d[rows] == SIDE, "weft_ag_gemm");
    problem.it.granule_n = SIDE;
    expect(weft_ag_gemm(group, &problem.it, &operands) == WEFT_OK, "weft_ag_gemm, one granule");
    problem.it.granule_n = 0;
    symmetric(group);
    problem.it.op = WEFT_OP_GEMM_AR;
    expect(weft_plan_create(group, &problem.it, &plan) == WEFT_OK, "weft_plan_create");
    expect(weft_run(plan, &operands) == WEFT_OK && d[SIDE + 1] == SIDE, "weft_run");
    expect(weft_plan_problem(plan)->m == SIDE && weft_plan_problem(plan)->tuning.workers > 0,
           "a plan's problem");
    weft_plan_destroy(plan);
    expect(weft_all_reduce(group, &sum, &sum, 1, WEFT_F32, WEFT_SUM) == WEFT_OK && sum == 2,
           "weft_all_reduce");
    layer(group);
    weft_group_free(group);
    return NULL;
}

int main(void)
{
    weft_group *groups[2];
    pthread_t thread;

    names();
    one_rank();
    if (weft_group_threads(2, groups) != WEFT_OK)
        return 1;
    pthread_create(&thread, NULL, rank_main, groups[1]);
    rank_main(groups[0]);
    pthread_join(thread, NULL);
    return failures != 0;
}
