/*
 * Where the system promises no memory that it does not have (vm.overcommit_memory = 2), memory that is all
 * given out is WEFT_ERR_MEMORY on every rank, never a signal: in objects of 3 MB one after another, in a
 * large collective, and in the first small one after it. When there is memory again the group goes on.
 *
 * Skipped (77) on other systems. To run it on one of one's own, without starving what else runs there:
 *   sysctl vm.overcommit_memory=2, and as a user without CAP_SYS_ADMIN, for whom vm.admin_reserve_kbytes less
 *   are promised.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "support/check.h"
#include "support/procs.h"
#include "support/ranks.h"

enum { FILLS = 4096, BLOCKS = 2000, BLOCK_BYTES = 3 << 20, LARGE = 24 << 20, SMALL = 32 };

typedef struct filling {
    void *memory[FILLS];
    size_t bytes[FILLS];
    int count;
} filling;

/* Takes all that the system promises, without touching it. */
static void fill(filling *all)
{
    size_t bytes = (size_t)1 << 34;

    while (bytes >= 65536 && all->count < FILLS) {
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (memory == MAP_FAILED) {
            bytes /= 2;
            continue;
        }
        all->memory[all->count] = memory;
        all->bytes[all->count++] = bytes;
    }
}

static void empty(filling *all)
{
    while (all->count > 0) {
        all->count--;
        munmap(all->memory[all->count], all->bytes[all->count]);
    }
}

static int is_fine_or_memory(weft_status status)
{
    return status == WEFT_OK || status == WEFT_ERR_MEMORY || status == WEFT_ERR_PEER;
}

/* Whatever else needs memory, of any kind: it works, or says on every rank that there is none. */
static void all_the_rest(weft_group *group)
{
    weft_moe_config config;
    weft_problem problem;
    weft_plan *plan = NULL;
    weft_moe *moe = NULL;
    weft_group *sub = NULL;
    weft_status status;

    weft_problem_init(&problem, WEFT_OP_GEMM_RS);
    problem.m = problem.n = problem.k = 2048;
    problem.tuning.workers = 3;
    CHECK(is_fine_or_memory(weft_plan_create(group, &problem, &plan)));
    weft_plan_destroy(plan);
    weft_moe_config_init(&config);
    config.experts = 8;
    config.topk = 2;
    config.hidden = 4096;
    config.tokens = 1024;
    CHECK(is_fine_or_memory(weft_moe_create(group, &config, &moe)));
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
    status = weft_group_split(group, 0, 0, &sub);
    CHECK(is_fine_or_memory(status));
    weft_group_free(sub);
}

static void starve(weft_group *group, void *unused)
{
    static _Thread_local filling all;
    static _Thread_local void *blocks[BLOCKS];
    int rank = weft_rank(group), taken = 0, refused = 0;
    float *large = malloc(LARGE), small[SMALL], sum[SMALL];
    weft_status status;

    (void)unused;
    for (int i = 0; i < SMALL; i++)
        small[i] = (float)i;
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (rank == 0)
        fill(&all);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (; taken < BLOCKS; taken++) {
        status = weft_alloc(group, BLOCK_BYTES, 0, &blocks[taken]);
        if (status != WEFT_OK)
            break;
        memset(blocks[taken], 1, BLOCK_BYTES);
        memset(weft_peer(group, blocks[taken], (rank + 1) % weft_size(group)), 2, BLOCK_BYTES);
    }
    CHECK_INT(status, WEFT_ERR_MEMORY);
    if (rank == 0)
        fill(&all);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int turn = 0; turn < 3; turn++) {
        status = weft_all_reduce(group, large, large, LARGE / 4, WEFT_F32, WEFT_MAX);
        refused += status != WEFT_OK;
        CHECK(is_fine_or_memory(status));
        status = weft_all_reduce(group, small, sum, SMALL, WEFT_F32, WEFT_SUM);
        CHECK(is_fine_or_memory(status));
        for (int i = 0; i < SMALL && status == WEFT_OK; i++)
            CHECK(sum[i] == (float)(i * weft_size(group)));
        all_the_rest(group);
    }
    CHECK(refused > 0);
    while (taken > 0)
        CHECK_INT(weft_free(group, blocks[--taken]), WEFT_OK);
    empty(&all);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_all_reduce(group, large, large, LARGE / 4, WEFT_F32, WEFT_MAX), WEFT_OK);
    CHECK_INT(weft_all_reduce(group, small, sum, SMALL, WEFT_F32, WEFT_SUM), WEFT_OK);
    for (int i = 0; i < SMALL; i++)
        CHECK(sum[i] == (float)(i * weft_size(group)));
    free(large);
}

static void be_rank(int rank, void *unused)
{
    weft_group *group = NULL;

    (void)rank;
    CHECK_INT(weft_init(&group), WEFT_OK);
    if (group)
        starve(group, unused);
    weft_finalize(group);
}

static int is_strict(void)
{
    FILE *file = fopen("/proc/sys/vm/overcommit_memory", "re");
    int mode = 0, read = file ? fscanf(file, "%d", &mode) : 0;

    if (file)
        fclose(file);
    return read == 1 && mode == 2;
}

int main(void)
{
    if (!is_strict())
        return 77;
    procs_run(2, be_rank, NULL);
    procs_run(3, be_rank, NULL);
    ranks_run(2, starve, NULL);
    return check_report("test_symm_strict");
}
