/*
 * Plans over domains: every operation, schedule and layout is legal by the checker and exact by the
 * interpreter, for any partition of the ranks; what the checker must refuse it refuses.
 */
#include "interpret.h"
#include "plan/check.h"

#include "support/check.h"

#include <string.h>

enum { MOST = 9 };

static const char *describe(const weft_problem *problem, const int32_t *domain, int world)
{
    static char text[500];
    int used = snprintf(text, sizeof(text), "%s, domains", interpret_describe(problem, world));

    for (int rank = 0; rank < world; rank++)
        used += snprintf(text + used, sizeof(text) - (size_t)used, " %d", domain[rank]);
    return text;
}

static void check_right(const weft_problem *problem, const int32_t *domain, int world, uint64_t seed)
{
    weft_plan_part parts[MOST];
    weft_check_report report;
    weft_error_text error;

    if (!interpret_make_over(problem, domain, world, parts)) {
        CHECK(!"a plan was made");
        return;
    }
    CHECK_INT(weft_plan_check(parts, world, &report, &error), WEFT_OK);
    if (report.count)
        fprintf(stderr, "%s: %s\n", describe(problem, domain, world), report.findings[0].text);
    CHECK_INT(report.count, 0);
    for (int one_thread = 0; one_thread < 2; one_thread++) {
        interpret_result result = interpret(parts, world, 3, one_thread, seed);

        if (result != INTERPRET_EXACT)
            fprintf(stderr, "%s: %s (seed %llu)\n", describe(problem, domain, world),
                    result == INTERPRET_WRONG ? "wrong" : "stuck", (unsigned long long)seed);
        CHECK_INT(result, INTERPRET_EXACT);
    }
    interpret_free(parts, world);
}

/* B that travels must not be packed before. */
static weft_problem random_problem(const interpret_kind *kind, uint64_t *state)
{
    weft_problem problem = interpret_random(kind->op, kind->schedule, kind->layout, state);

    if (kind->layout == WEFT_LAYOUT_GATHER_B && problem.b_form == WEFT_B_PREPACKED)
        problem.b_form = WEFT_B_PLAIN;
    return problem;
}

static void every_partition(const interpret_kind *kind)
{
    static const int32_t partitions[][8] = {
        {0, 1},
        {0, 0, 1},
        {0, 1, 1},
        {0, 0, 1, 1},
        {0, 1, 0, 1},
        {0, 0, 0, 1, 1, 1, 1, 1},
        {0, 0, 1, 1, 2, 2},
        {0, 1, 2, 3, 4},
        {2, 0, 1, 0, 2, 1, 0},
        {0, 0, 0, 0, 1, 1, 1, 1},
    };
    static const int worlds[] = {2, 3, 3, 4, 4, 8, 6, 5, 7, 8};

    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        for (int workers = 1; workers <= 3; workers += 2) {
            weft_problem problem = {.op = kind->op,
                                    .layout = kind->layout,
                                    .schedule = kind->schedule,
                                    .m = 13,
                                    .n = 11,
                                    .k = 7,
                                    .l = 1,
                                    .count = 37,
                                    .alpha = 2,
                                    .beta = 1,
                                    .bias = 1,
                                    .act = WEFT_ACT_RELU,
                                    .tuning.tile_m = 2,
                                    .tuning.tile_n = 4,
                                    .tuning.tile_k = 2,
                                    .b_form = WEFT_B_PACK_IN_RUN,
                                    .root = worlds[i] / 2,
                                    .tuning.workers = workers,
                                    .tuning.copiers = workers == 3 ? 3 : 0,
                                    .tuning.chunk_k = workers == 3 ? 2 : 0,
                                    .tuning.raster = workers == 3 ? 2 : 0,
                                    .tuning.sums_stay = workers == 3,
                                    .tuning.exchange = workers - 1,
                                    .tuning.staged = (int)(i + (size_t)workers / 2) % 2};

            check_right(&problem, partitions[i], worlds[i], i + 1);
        }
    }
}

static void random_problems(const interpret_kind *kind, long count, uint64_t base)
{
    for (long i = 0; i < count; i++) {
        uint64_t state = base + (uint64_t)i;
        weft_problem problem = random_problem(kind, &state);
        int world = 2 + (int)(check_random(&state) % 7);
        int32_t domain[MOST];

        problem.root = (int)(check_random(&state) % (uint64_t)world);
        interpret_domains(world, domain, &state);
        check_right(&problem, domain, world, base + (uint64_t)i);
    }
}

/* One domain, however it is called, is the plan without domains; each rank's part is that of all made at
 * once. */
static void same_parts(void)
{
    static const int32_t one[] = {7, 7, 7, 7}, names[] = {9, 9, 4, 4};
    weft_problem problem = {.op = WEFT_OP_GEMM_RS, .m = 9, .n = 8, .k = 7, .l = 1, .alpha = 1};
    weft_plan_part alone, plain, parts[4];
    weft_error_text error;

    problem.schedule = WEFT_SCHEDULE_UNFUSED;
    CHECK_INT(weft_plan_make_over(&problem, one, 4, 2, &alone, &error), WEFT_OK);
    CHECK_INT(weft_plan_make(&problem, 4, 2, &plain, &error), WEFT_OK);
    CHECK(!alone.domain && alone.hash == plain.hash && alone.task_count == plain.task_count);
    weft_plan_part_free(&alone);
    CHECK_INT(weft_plan_make_over(&problem, names, 4, 2, &alone, &error), WEFT_OK);
    CHECK(interpret_make_over(&problem, names, 4, parts));
    CHECK(alone.hash != plain.hash && alone.hash == parts[2].hash && alone.domain[0] == 0 &&
          alone.domain[3] == 1);
    CHECK(alone.task_count == parts[2].task_count && alone.region_count == parts[2].region_count &&
          !memcmp(alone.tasks, parts[2].tasks, alone.task_count * sizeof(*alone.tasks)) &&
          !memcmp(alone.regions, parts[2].regions, alone.region_count * sizeof(*alone.regions)));
    CHECK_INT(weft_plan_make_over(&problem, names, 4, 4, &alone, &error), WEFT_ERR_ARGUMENT);
    weft_plan_part_free(&alone);
    weft_plan_part_free(&plain);
    interpret_free(parts, 4);
}

/* ENTER goes to those who push here, and to no other rank elsewhere; nothing else of the kind crosses. */
static void only_neighbours(void)
{
    static const int32_t domain[] = {0, 0, 1, 1, 2, 2};
    weft_problem problem = {.op = WEFT_OP_BROADCAST, .schedule = WEFT_SCHEDULE_PUSH, .count = 5, .root = 1};
    weft_plan_part parts[6];

    CHECK(interpret_make_over(&problem, domain, 6, parts));
    for (int rank = 0; rank < 6; rank++) {
        const weft_task *enter = &parts[rank].tasks[0];
        int far = 0;

        for (uint32_t i = 0; i < enter->post_count; i++)
            far += weft_domains_differ(&parts[rank], rank, parts[rank].posts[enter->post0 + i].rank);
        CHECK_INT(far, rank >= 2); /* to the root alone */
        CHECK_INT(parts[rank].signal_posts[WEFT_SIGNAL_LANDED(6, 1)], rank >= 2);
    }
    interpret_free(parts, 6);
}

/* Where all others are elsewhere nobody is told DONE: lanes do not join, and sums do not wait for what is
 * sent, which other lanes of a plan on one node do in front of them. */
static void nobody_joins(void)
{
    static const int32_t domain[] = {0, 1, 2, 3, 4, 5};
    weft_problem problem = {.op = WEFT_OP_REDUCE_SCATTER,
                            .schedule = WEFT_SCHEDULE_PACKETS,
                            .count = 240,
                            .tuning = {.tile_n = 10, .workers = 4}};
    weft_plan_part parts[6];
    int sums = 0;

    CHECK(interpret_make_over(&problem, domain, 6, parts));
    for (int rank = 0; rank < 6; rank++)
        for (uint32_t i = 0; i < parts[rank].task_count; i++) {
            const weft_task *task = &parts[rank].tasks[i];

            sums += task->kind == WEFT_TASK_REDUCE;
            CHECK(task->kind != WEFT_TASK_COPY || weft_task_regions(&parts[rank], task)->rows ||
                  !task->wait_count);
        }
    CHECK_INT(sums, 6 * 24);
    interpret_free(parts, 6);
}

/* A is gathered before it is multiplied: a rank's rows go to one rank of each other node, where the others
 * fetch them; long ones in several messages. Few rows are multiplied together, more shard by shard. */
static void rows_cross_once(void)
{
    static const struct {
        int64_t m, k;
        int32_t domain[6], nodes;
    } cases[] = {
        {17, 8, {0, 0, 0, 1, 1, 1}, 2}, {17, 40000, {0, 1, 1, 2, 2, 2}, 3}, {300, 8, {0, 0, 1, 1, 1, 1}, 2}};

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        weft_problem problem = {.op = WEFT_OP_AG_GEMM,
                                .layout = WEFT_LAYOUT_GATHER_A,
                                .schedule = WEFT_SCHEDULE_UNFUSED,
                                .m = cases[c].m,
                                .n = 12,
                                .k = cases[c].k,
                                .l = 2,
                                .alpha = 1,
                                .tuning.workers = 4};
        weft_plan_part parts[6];
        weft_check_report report;
        weft_error_text error;

        CHECK(interpret_make_over(&problem, cases[c].domain, 6, parts));
        CHECK_INT(weft_plan_check(parts, 6, &report, &error), WEFT_OK);
        CHECK_INT(report.count, 0);
        for (int rank = 0; rank < 6; rank++) {
            int64_t rows = 0, messages = 0, mine = problem.l * weft_part(problem.m, 6, rank).count;

            for (uint32_t i = 0; i < parts[rank].task_count; i++)
                if (weft_task_crosses(&parts[rank], &parts[rank].tasks[i])) {
                    rows += weft_task_regions(&parts[rank], &parts[rank].tasks[i])->rows;
                    messages++;
                }
            CHECK_INT(rows, mine * (cases[c].nodes - 1));
            CHECK(messages == (c != 1 ? problem.l * (cases[c].nodes - 1) : rows));
        }
        interpret_free(parts, 6);
    }
}

/* Breaks a rule of domains in a right plan; the checker must say the sentence. */
static void refuses(const char *sentence, void (*spoil)(weft_plan_part *))
{
    static const int32_t domain[] = {0, 0, 1, 1};
    weft_problem problem = {
        .op = WEFT_OP_REDUCE_SCATTER, .schedule = WEFT_SCHEDULE_PUSH, .count = 6, .dtype = WEFT_F32};
    weft_plan_part parts[4];
    weft_check_report report;
    weft_error_text error;

    CHECK(interpret_make_over(&problem, domain, 4, parts));
    spoil(parts);
    CHECK_INT(weft_plan_check(parts, 4, &report, &error), WEFT_OK);
    if (!report.count || !strstr(report.findings[0].text, sentence))
        fprintf(stderr, "wanted '%s', found '%s'\n", sentence,
                report.count ? report.findings[0].text : "nothing");
    CHECK(report.count > 0 && strstr(report.findings[0].text, sentence));
    interpret_free(parts, 4);
}

/* The first crossing COPY of rank 0, or the first sum. */
static weft_task *first_task(weft_plan_part *part, bool crossing)
{
    for (uint32_t i = 0; i < part->task_count; i++) {
        if (crossing ? weft_task_crosses(part, &part->tasks[i]) : part->tasks[i].kind == WEFT_TASK_REDUCE)
            return &part->tasks[i];
    }
    return NULL;
}

static void read_elsewhere(weft_plan_part *parts)
{
    weft_task *sum = first_task(&parts[0], false);

    parts[0].regions[sum->region0 + 1].rank = 2;
}

static void write_elsewhere(weft_plan_part *parts)
{
    weft_task *sum = first_task(&parts[0], false);

    parts[0].regions[sum->region0].rank = 2;
}

static void pull(weft_plan_part *parts)
{
    weft_task *copy = first_task(&parts[0], true);
    weft_region *regions = &parts[0].regions[copy->region0], target = regions[0];

    regions[0] = regions[1];
    regions[1] = target;
    copy->post_count = 0;
}

static void post_to_third(weft_plan_part *parts)
{
    weft_task *copy = first_task(&parts[0], true);
    weft_post *post = &parts[0].posts[copy->post0];

    post->rank = post->rank == 2 ? 3 : 2;
}

static void post_from_sum(weft_plan_part *parts)
{
    weft_task *copy = first_task(&parts[0], true), *sum = first_task(&parts[0], false);

    sum->post0 = copy->post0;
    sum->post_count = 1;
}

static void silent(weft_plan_part *parts)
{
    first_task(&parts[0], true)->post_count--;
}

static void no_credit(weft_plan_part *parts)
{
    first_task(&parts[0], true)->wait_count = 0;
}

static void gone_too_early(weft_plan_part *parts)
{
    weft_task *exit = &parts[2].tasks[parts[2].lanes[0].task_count - 1];

    for (uint32_t i = 0; i < exit->wait_count; i++) {
        if (parts[2].waits[exit->wait0 + i].signal == WEFT_SIGNAL_LANDED(4, 0))
            parts[2].waits[exit->wait0 + i] = parts[2].waits[exit->wait0 + --exit->wait_count];
    }
    for (uint32_t i = 0; i < parts[2].task_count; i++) { /* nor does anything that adds it up wait */
        if (parts[2].tasks[i].kind == WEFT_TASK_REDUCE)
            parts[2].tasks[i].wait_count = 0;
    }
}

static void other_domains(weft_plan_part *parts)
{
    parts[3].domain[1] = 1;
}

static void rules(void)
{
    refuses("only a COPY that pushes crosses", read_elsewhere);
    refuses("only a COPY that pushes crosses", write_elsewhere);
    refuses("only a COPY that pushes crosses", pull);
    refuses("which it does not push to", post_to_third);
    refuses("is in another domain", post_from_sum);
    refuses("does not say at rank", silent);
    refuses("before that rank's ENTER", no_credit);
    refuses("may still touch", gone_too_early);
    refuses("knows other domains", other_domains);
}

/* Packed panels cannot be pushed; that is said. */
static void refused(void)
{
    static const int32_t domain[] = {0, 1};
    weft_problem problem = {.op = WEFT_OP_AG_GEMM,
                            .schedule = WEFT_SCHEDULE_DIRECT,
                            .layout = WEFT_LAYOUT_GATHER_B,
                            .m = 8,
                            .n = 8,
                            .k = 8,
                            .l = 1,
                            .alpha = 1,
                            .b_form = WEFT_B_PREPACKED};
    weft_plan_part part;
    weft_error_text error;

    CHECK_INT(weft_plan_make_over(&problem, domain, 2, 0, &part, &error), WEFT_ERR_UNSUPPORTED);
    CHECK(strstr(error.text, "packed"));
}

int main(void)
{
    interpret_kind kind;

    for (int i = 0; interpret_kind_at(i, &kind); i++) {
        every_partition(&kind);
        random_problems(&kind, check_repeat(40, 1500), 5000000 * (uint64_t)(i + 1));
    }
    same_parts();
    only_neighbours();
    nobody_joins();
    rows_cross_once();
    rules();
    refused();
    return check_report("test_plan_nodes");
}
