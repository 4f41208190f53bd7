/*
 * Sizes that change with every call, over nodes: after the first the ranks meet for none, whether there is a
 * file of weft tune or not; where they go by different things they meet for each, and agree.
 */
#include "run/alone_cases.h"

#include "support/nodes.h"

#include <unistd.h>

static char folder[] = "/tmp/weft_alone.XXXXXX";

static weft_group *begin(void)
{
    weft_group *group = NULL;

    CHECK_INT(weft_init(&group), WEFT_OK);
    if (!group)
        exit(1);
    return group;
}

/* Collectives too: by messages that land in RECV wherever it lies, and by peers of the node. */
static void new_counts(weft_group *group)
{
    enum { MOST_COUNT = 90000 };
    int world = weft_size(group), rank = weft_rank(group);
    float *data = malloc(MOST_COUNT * sizeof(*data)),
          *all = malloc((size_t)world * MOST_COUNT * sizeof(*all));

    for (int64_t count = MOST_COUNT; count > 20000; count -= 9973) {
        uint64_t syncs = group->sync;
        int64_t wrong = 0;

        for (int64_t i = 0; i < count; i++)
            data[i] = (float)(i % 100 + rank);
        CHECK_INT(weft_all_gather(group, data, all, count, WEFT_F32), WEFT_OK);
        CHECK_INT(weft_all_reduce(group, data, data, count, WEFT_F32, WEFT_MAX), WEFT_OK);
        for (int64_t i = 0; i < count; i++) {
            wrong += data[i] != (float)(i % 100 + world - 1);
            for (int source = 0; source < world; source++)
                wrong += all[source * count + i] != (float)(i % 100 + source);
        }
        CHECK_INT(wrong, 0);
        if (count < MOST_COUNT)
            CHECK_INT(group->sync, syncs);
    }
    free(all);
    free(data);
}

/* One rank asks for another size, or rejects its operands: an error on every rank, and then they go on. */
static void different_sizes(weft_group *group)
{
    int odd = weft_size(group) - 1;

    for (int64_t m = 30; m < 33; m++) {
        bool differs = weft_rank(group) == odd;
        weft_operands nothing = {.size = sizeof(nothing)};
        weft_problem problem;

        CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, differs ? m + 10 : m), WEFT_ERR_MISMATCH);
        CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, m + 20), WEFT_OK);
        CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, m + 24), WEFT_OK);
        weft_problem_init(&problem, WEFT_OP_GEMM_AR);
        problem.d_dtype = WEFT_F32;
        problem.m = m + 28;
        problem.n = 48;
        problem.k = 40;
        if (differs)
            CHECK_INT(weft_gemm_ar(group, &problem, &nothing), WEFT_ERR_ARGUMENT);
        else
            CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, m + 28), WEFT_ERR_PEER);
        CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, m + 32), WEFT_OK);
    }
}

static void be_well(int rank, void *argument)
{
    weft_group *group = begin();

    (void)rank;
    (void)argument;
    new_sizes(group, NULL);
    late_rank(group, NULL);
    new_counts(group);
    different_sizes(group);
    weft_finalize(group);
}

static void write_tuned(const char *path, const char *version, uint64_t machine)
{
    FILE *file = fopen(path, "w");

    CHECK(file != NULL);
    if (!file)
        return;
    fprintf(file, "%016llx %s 0000000000000001 two_shot 0 0 0 1 2.5 # test\n", (unsigned long long)machine,
            version);
    fclose(file);
}

/* A file that is the same on all ranks, though not the same file. */
static void be_tuned(int rank, void *argument)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%d", folder, rank);
    write_tuned(path, weft_version(), 1);
    setenv("WEFT_TUNE", path, 1);
    be_well(rank, argument);
    unlink(path);
}

/* One that is another on one rank: all meet, and are right. */
static void be_at_odds(int rank, void *argument)
{
    weft_group *group;
    char path[128];

    (void)argument;
    snprintf(path, sizeof(path), "%s/%d", folder, rank);
    write_tuned(path, weft_version(), rank == 1 ? 2 : 1);
    setenv("WEFT_TUNE", path, 1);
    group = begin();
    CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, MOST), WEFT_OK);
    for (int64_t m = 1; m < 8; m++) {
        uint64_t syncs = group->sync;

        CHECK_INT(multiply(group, NULL, WEFT_OP_GEMM_AR, m), WEFT_OK);
        CHECK(group->sync != syncs);
    }
    weft_finalize(group);
    unlink(path);
}

int main(void)
{
    static const char *const placements[] = {"ab", "aab", "abab", "abc"};

    if (!nodes_possible("test_nodes_alone"))
        return NODES_SKIPPED;
    if (!mkdtemp(folder))
        return 1;
    setenv("WEFT_TUNE", "off", 1);
    for (size_t i = 0; i < sizeof(placements) / sizeof(*placements); i++)
        nodes_run(placements[i], be_well, NULL);
    nodes_run("aab", be_tuned, NULL);
    nodes_run("aab", be_at_odds, NULL);
    rmdir(folder);
    return check_report("test_nodes_alone");
}
