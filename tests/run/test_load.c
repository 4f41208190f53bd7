/*
 * Plans from files: weft's own come back and give the same bits; a ring that weft does not have (the example,
 * whose plan is the argument) gives what weft's own schedule gives; a plan that is not right never runs, and
 * says why on every rank; so do ranks with different files.
 */
#include "plan/plan.h"
#include "support/check.h"
#include "support/plan_file.h"
#include "support/ranks.h"

#include <unistd.h>

enum { RANKS = 4, M = 37, N = 22, K = 8 };

typedef struct files {
    char own[32], wrong[32];
    const char *ring;
    weft_problem problem;
} files;

static float *numbers(size_t count, uint64_t seed)
{
    float *values = malloc(count * sizeof(*values));

    for (size_t i = 0; i < count; i++)
        values[i] = (float)((int)(check_random(&seed) % 9) - 4);
    return values;
}

/* One run of a plan on operands that every rank makes alike. */
static void run_plan(weft_group *group, weft_plan *plan, const weft_problem *p, float *d)
{
    int rank = weft_rank(group);
    bool scatters = p->op == WEFT_OP_GEMM_RS;
    weft_span k = scatters ? weft_part(K, RANKS, rank) : (weft_span){0, K};
    int64_t rows = scatters ? M : weft_part(M, RANKS, rank).count,
            cols = scatters ? N : weft_part(N, RANKS, rank).count;
    float *a = numbers((size_t)(rows * k.count), 1 + (uint64_t)rank),
          *b = numbers((size_t)(k.count * cols), 99);
    weft_operands operands = {.size = sizeof(operands), .a = a, .b = b, .d = d};

    for (int64_t i = 0; i < M * N; i++)
        d[i] = -1e9f;
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    free(a);
    free(b);
}

/* Does the plan in a file give what weft's own plan of the problem gives? */
static void same_result(weft_group *group, const weft_problem *problem, const char *path)
{
    weft_plan *own = NULL, *loaded = NULL;
    float *one = malloc(M * N * sizeof(*one)), *other = malloc(M * N * sizeof(*other));

    CHECK_INT(weft_plan_create(group, problem, &own), WEFT_OK);
    CHECK_INT(weft_plan_load(group, path, &loaded), WEFT_OK);
    if (!loaded)
        fprintf(stderr, "%s\n", weft_error(group));
    for (int run = 0; own && loaded && run < 3; run++) {
        run_plan(group, own, problem, one);
        run_plan(group, loaded, problem, other);
        CHECK(memcmp(one, other, M * N * sizeof(*one)) == 0);
    }
    weft_plan_destroy(own);
    weft_plan_destroy(loaded);
    free(one);
    free(other);
}

static void body(weft_group *group, void *argument)
{
    const files *f = argument;
    weft_problem gathered;
    weft_plan *plan = NULL;

    same_result(group, &f->problem, f->own);
    CHECK_INT(weft_plan_load(group, f->wrong, &plan), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "is not right: ");
    CHECK_HAS(weft_error(group), "of rank 0");
    CHECK_INT(weft_plan_load(group, "/nowhere/a.plan", &plan), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "cannot read /nowhere/a.plan");
    CHECK_INT(weft_plan_load(group, NULL, &plan), WEFT_ERR_ARGUMENT);
    weft_problem_init(&gathered, WEFT_OP_AG_GEMM);
    gathered.m = M;
    gathered.n = N;
    gathered.k = K;
    gathered.schedule = WEFT_SCHEDULE_DIRECT;
    if (f->ring) {
        same_result(group, &gathered, f->ring);
        CHECK_INT(weft_plan_load(group, weft_rank(group) == 2 ? f->own : f->ring, &plan), WEFT_ERR_MISMATCH);
        same_result(group, &gathered, f->ring);
    }
    gathered.schedule = WEFT_SCHEDULE_CUSTOM;
    CHECK_INT(weft_plan_create(group, &gathered, &plan), WEFT_ERR_ARGUMENT);
}

int main(int argc, char **argv)
{
    files f = {.ring = argc > 1 ? argv[1] : NULL};

    weft_problem_init(&f.problem, WEFT_OP_GEMM_RS);
    f.problem.schedule = WEFT_SCHEDULE_REDUCESCATTER_TILING_A;
    f.problem.m = M;
    f.problem.n = N;
    f.problem.k = K;
    f.problem.tuning.tile_m = 8;
    f.problem.tuning.tile_n = 192;
    f.problem.tuning.tile_k = 192;
    f.problem.tuning.workers = 2;
    plan_file_write(f.own, &f.problem, RANKS, NULL, NULL);
    plan_file_write(f.wrong, &f.problem, RANKS, " epilogue", "");
    ranks_run(RANKS, body, &f);
    unlink(f.own);
    unlink(f.wrong);
    return check_report("test_run_load");
}
