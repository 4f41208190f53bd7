/* Plans from files on groups of GPUs, with fake ones: they run as the library's own do, or are refused with a
 * reason. */
#include "api_cases.h"
#include "fake_gpu.h"
#include "plan/plan.h"
#include "small_product.h"
#include "support/plan_file.h"
#include "support/ranks.h"

#include <unistd.h>

static weft_problem tiled(int kind, int64_t n)
{
    weft_problem p = product(64, n, 48);

    p.op = api_kinds[kind].op;
    p.schedule = api_kinds[kind].schedule;
    p.b_form = WEFT_B_PLAIN;
    p.tuning.tile_m = p.tuning.tile_n = 32, p.tuning.tile_k = 16;
    p.tuning.workers = 2;
    p.tuning.copiers = p.op == WEFT_OP_AG_GEMM && p.schedule != WEFT_SCHEDULE_DIRECT;
    return p;
}

/* D after a run of a plan, on operands that every call makes alike. */
static void run_given(weft_group *group, weft_plan *plan, char *block, uint16_t d[64 * 64])
{
    enum { NUMBERS = BLOCK_BYTES / 2 };
    uint16_t *numbers = malloc(BLOCK_BYTES);
    uint64_t seed = 5 + (uint64_t)weft_rank(group);
    weft_operands operands = operands_in(block);

    for (int i = 0; i < NUMBERS; i++) /* small integers of bfloat16 */
        numbers[i] = (const uint16_t[]){0, 0x3f80, 0x4000, 0xbf80}[check_random(&seed) % 4];
    CHECK_INT(weft_memcpy(group, block, numbers, BLOCK_BYTES), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    CHECK_INT(weft_memcpy(group, d, operands.d, 64 * 64 * sizeof(*d)), WEFT_OK);
    free(numbers);
}

/* Collectives, and what on their plans' files is not as the kernels would have it. */
static const struct given_collective {
    weft_op op;
    weft_schedule schedule;
    weft_reduction reduction;
    int staged;
} given_collectives[] = {
    {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_ONE_SHOT, WEFT_SUM, 0},
    {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_TWO_SHOT, WEFT_MAX, 0},
    {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_PUSH, WEFT_AVERAGE, 0},
    {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_PACKETS, WEFT_SUM, 0},
    {WEFT_OP_REDUCE_SCATTER, WEFT_SCHEDULE_PULL, WEFT_SUM, 0},
    {WEFT_OP_REDUCE_SCATTER, WEFT_SCHEDULE_PUSH, WEFT_PRODUCT, 0},
    {WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_PULL, WEFT_SUM, 0},
    {WEFT_OP_ALL_GATHER, WEFT_SCHEDULE_PACKETS, WEFT_SUM, 0},
    {WEFT_OP_ALL_TO_ALL, WEFT_SCHEDULE_PUSH, WEFT_SUM, 0},
    {WEFT_OP_BROADCAST, WEFT_SCHEDULE_PULL, WEFT_SUM, 0},
    {WEFT_OP_ALL_REDUCE, WEFT_SCHEDULE_TWO_SHOT, WEFT_AVERAGE, 1},
    {WEFT_OP_ALL_TO_ALL, WEFT_SCHEDULE_PULL, WEFT_SUM, 1},
    {WEFT_OP_BROADCAST, WEFT_SCHEDULE_PUSH, WEFT_SUM, 1},
};

enum { GIVEN_COLLECTIVES = sizeof(given_collectives) / sizeof(given_collectives[0]), GIVEN_COUNT = 37 };

typedef struct given_plans {
    char right[API_KINDS][32], large[32], packed[32], odd[32];
    char moved[GIVEN_COLLECTIVES][32], rows[32];
} given_plans;

static weft_problem moves(int number)
{
    weft_problem p;

    weft_problem_init(&p, given_collectives[number].op);
    p.schedule = given_collectives[number].schedule;
    p.reduction = given_collectives[number].reduction;
    p.tuning.staged = given_collectives[number].staged;
    p.dtype = number % 2 ? WEFT_F32 : WEFT_BF16;
    p.count = GIVEN_COUNT;
    p.tuning.tile_n = 9;
    p.tuning.workers = 2;
    return p;
}

/* What is received, on operands that every call makes alike. */
static void run_moves(weft_group *group, weft_plan *plan, char *block, weft_dtype dtype, char *recv)
{
    enum { ELEMENTS = 3 * GIVEN_COUNT, BYTES = 4 * ELEMENTS };
    char numbers[BYTES] = {0};
    weft_operands operands = {.size = sizeof(operands), .send = block, .recv = block + 4096};
    uint64_t seed = 11 + (uint64_t)weft_rank(group);

    for (size_t i = 0; i < ELEMENTS; i++)
        weft_element_set(dtype, numbers, i, 1 + (double)(check_random(&seed) % 3));
    CHECK_INT(weft_memcpy(group, block, numbers, BYTES), WEFT_OK);
    memset(numbers, 0x5a, BYTES);
    CHECK_INT(weft_memcpy(group, block + 4096, numbers, BYTES), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    CHECK_INT(weft_memcpy(group, recv, operands.recv, BYTES), WEFT_OK);
}

static void run_given_collectives(weft_group *group, const given_plans *plans, char *block)
{
    for (int i = 0; i < GIVEN_COLLECTIVES; i++) {
        char own[12 * GIVEN_COUNT], given[12 * GIVEN_COUNT];
        weft_problem p = moves(i);
        weft_plan *plan = NULL, *loaded = NULL;

        CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
        CHECK_INT(weft_plan_load(group, plans->moved[i], &loaded), WEFT_OK);
        if (!loaded) {
            fprintf(stderr, "collective %d: %s\n", i, weft_error(group));
            weft_plan_destroy(plan);
            continue;
        }
        for (int run = 0; run < 3; run++) {
            run_moves(group, plan, block, p.dtype, own);
            run_moves(group, loaded, block, p.dtype, given);
            CHECK(memcmp(own, given, sizeof(own)) == 0);
        }
        weft_plan_destroy(plan);
        weft_plan_destroy(loaded);
    }
}

static void refused(weft_group *group, const char *path, const char *why)
{
    weft_plan *plan = NULL;

    CHECK_INT(weft_plan_load(group, path, &plan), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(group), why);
}

static void given_rank(weft_group *group, void *argument)
{
    const given_plans *plans = argument;
    uint16_t own[64 * 64], given[64 * 64];
    void *block;

    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, BLOCK_BYTES, 0, &block), WEFT_OK);
    for (int kind = 0; kind < API_KINDS; kind++) {
        weft_problem p = tiled(kind, 48);
        weft_plan *plan = NULL, *loaded = NULL;

        CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
        CHECK_INT(weft_plan_load(group, plans->right[kind], &loaded), WEFT_OK);
        if (!loaded) {
            fprintf(stderr, "kind %d: %s\n", kind, weft_error(group));
            continue;
        }
        for (int run = 0; run < 2; run++) {
            run_given(group, plan, block, own);
            run_given(group, loaded, block, given);
            CHECK(memcmp(own, given, sizeof(own)) == 0);
        }
        weft_plan_destroy(plan);
        weft_plan_destroy(loaded);
    }
    weft_plan *odd = NULL;
    weft_operands operands = operands_in(block);
    CHECK_INT(weft_plan_load(group, plans->odd, &odd), WEFT_OK);
    CHECK_INT(weft_run(odd, &operands), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(group), "begin and end on 16 bytes");
    weft_plan_destroy(odd);
    refused(group, plans->large, "at most 256 x 256");
    refused(group, plans->packed, "is packed as CPU kernels read it");
    refused(group, plans->rows, "task 1 of rank 0 has 3 rows: on GPUs a task of a collective has one");
    run_given_collectives(group, plans, block);
}

/* An all_to_all of three ranks that puts all it sends, three rows, where the others fetch it. */
static void write_rows(char path[32])
{
    FILE *file;

    strcpy(path, "/tmp/weft-plan-XXXXXX");
    file = fdopen(mkstemp(path), "w");
    CHECK(file);
    for (int me = 0; me < 3; me++) {
        int one = (me + 1) % 3, two = (me + 2) % 3;

        fprintf(file, "plan all_to_all custom rank %d of 3\nproblem count 4 workers 1\n", me);
        fprintf(file, "operand send user float32 3 x 4\noperand recv user float32 3 x 4 output\n");
        fprintf(file, "operand kept staging float32 3 x 4\nsignals 7\nlane 0 compute\n");
        fprintf(file, "r%d lane 0 task 0 ENTER post %d@%d %d@%d\n", me, me, one, me, two);
        fprintf(file, "r%d lane 0 task 1 COPY kept[0:3, 0:4] = send[0:3, 0:4] wait %d>=1 %d>=1", me, one,
                two);
        fprintf(file, " post 6@%d 6@%d\n", one, two);
        for (int from = 0; from < 3; from++)
            fprintf(file, "r%d lane 0 task %d COPY recv[%d:%d, 0:4] = kept@%d[%d:%d, 0:4] wait 6>=2%s", me,
                    2 + from, from, from + 1, from, me, me + 1, from == 2 ? "" : "\n");
        fprintf(file, " post %d@%d %d@%d\nr%d lane 0 task 5 EXIT wait %d>=1 %d>=1\n", 3 + me, one, 3 + me,
                two, me, 3 + one, 3 + two);
    }
    fclose(file);
}

static void test_given(void)
{
    enum { WORLD = 3 };
    given_plans plans;
    weft_problem p = product(768, 300, 16);

    for (int kind = 0; kind < API_KINDS; kind++) {
        weft_problem fits = tiled(kind, 48);

        plan_file_write(plans.right[kind], &fits, WORLD, NULL, NULL);
    }
    p.b_form = WEFT_B_PLAIN;
    p.tuning.tile_m = p.tuning.tile_n = 512, p.tuning.tile_k = 16;
    p.op = WEFT_OP_GEMM_AR;
    p.schedule = WEFT_SCHEDULE_ONE_SHOT;
    plan_file_write(plans.large, &p, WORLD, NULL, NULL);
    p = tiled(1, 56); /* B's columns are 19, 19 and 18 */
    plan_file_write(plans.odd, &p, WORLD, NULL, NULL);
    p = tiled(0, 48);
    p.b_form = WEFT_B_PACK_IN_RUN;
    p.tuning.copiers = 0;
    p.schedule = WEFT_SCHEDULE_DIRECT;
    plan_file_write(plans.packed, &p, WORLD, NULL, NULL);
    for (int i = 0; i < GIVEN_COLLECTIVES; i++) {
        p = moves(i);
        plan_file_write(plans.moved[i], &p, WORLD, NULL, NULL);
    }
    write_rows(plans.rows);
    ranks_run(WORLD, given_rank, &plans);
    for (int kind = 0; kind < API_KINDS; kind++)
        unlink(plans.right[kind]);
    unlink(plans.large);
    unlink(plans.packed);
    unlink(plans.odd);
    for (int i = 0; i < GIVEN_COLLECTIVES; i++)
        unlink(plans.moved[i]);
    unlink(plans.rows);
}

int main(void)
{
    fake_gpu_install(1, 16, true);
    test_given();
    return check_report("test_cuda_plan_files");
}
