/* Every schedule computes the exact result under random scheduling, run after run without barriers. */
#include "interpret.h"

#include "support/check.h"

static void check_exact(const weft_problem *problem, int world, uint64_t seed)
{
    weft_plan_part parts[9];

    CHECK(interpret_make(problem, world, parts));
    for (int one_thread = 0; one_thread < 2; one_thread++) {
        interpret_result result = interpret(parts, world, 3, one_thread, seed);

        if (result != INTERPRET_EXACT)
            fprintf(stderr, "%s: %s (seed %llu, %s)\n", interpret_describe(problem, world),
                    result == INTERPRET_WRONG ? "wrong" : "stuck", (unsigned long long)seed,
                    one_thread ? "one thread a rank" : "one worker a lane");
        CHECK_INT(result, INTERPRET_EXACT);
    }
    interpret_free(parts, world);
}

static void every_world_and_shape(const interpret_kind *kind)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {5, 3, 2}, {13, 11, 7}, {2, 17, 9}, {9, 9, 0}, {0, 4, 4}};

    for (int world = 1; world <= 9; world++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            for (int workers = 1; workers <= 3; workers += 2) {
                weft_problem problem = {.op = kind->op,
                                        .layout = kind->layout,
                                        .schedule = kind->schedule,
                                        .m = shapes[i][0],
                                        .n = shapes[i][1],
                                        .k = shapes[i][2],
                                        .l = 1,
                                        .count = shapes[i][0] * shapes[i][1],
                                        .alpha = 2,
                                        .beta = 1,
                                        .bias = 1,
                                        .act = WEFT_ACT_RELU,
                                        .tuning.tile_m = 2,
                                        .tuning.tile_n = 4,
                                        .tuning.tile_k = 2,
                                        .b_form = WEFT_B_PACK_IN_RUN,
                                        .root = world / 2,
                                        .tuning.workers = workers,
                                        .tuning.copiers = workers == 3 ? 3 : 0,
                                        .tuning.chunk_k = workers == 3 ? 2 : 0,
                                        .tuning.raster = workers == 3 ? 2 : 0,
                                        .tuning.sums_stay = workers == 3,
                                        .tuning.exchange = workers - 1,
                                        .tuning.staged = (int)(i + (size_t)workers / 2) % 2};

                check_exact(&problem, world, i + 1);
            }
        }
    }
}

static void random_problems(const interpret_kind *kind, long count, uint64_t base)
{
    for (long i = 0; i < count; i++) {
        uint64_t seed = base + (uint64_t)i, state = seed;
        weft_problem problem = interpret_random(kind->op, kind->schedule, kind->layout, &state);
        int world = 1 + (int)(check_random(&state) % 9);

        problem.root = (int)(check_random(&state) % (uint64_t)world);
        check_exact(&problem, world, seed);
    }
}

int main(void)
{
    interpret_kind kind;

    for (int i = 0; interpret_kind_at(i, &kind); i++) {
        uint64_t base = 1000000 * (uint64_t)(i + 1);
        long count = check_repeat(100, 2000);

        printf("%s %s: seeds %llu to %llu\n", weft_op_name(kind.op),
               weft_schedule_name(kind.op, kind.schedule), (unsigned long long)base,
               (unsigned long long)base + (unsigned long long)count - 1);
        every_world_and_shape(&kind);
        random_problems(&kind, count, base);
    }
    return check_report("test_plan_interpret");
}
