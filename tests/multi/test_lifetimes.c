/*
 * Free, destroy and group free in any order, as a garbage collector makes them: every rank makes the same
 * things of a world (memory, plans, layers, plans that calls keep, sub-groups and things of theirs), and lets
 * go of them in an order of its own, the groups among them, while others still work. Now and then a thread
 * ends the group by weft_group_abort while all are at it. Ranks are threads, processes, or both.
 *
 * usage: test_multi_lifetimes [seed]   runs that one world
 */
#include "support/check.h"
#include "support/leaks.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <weft/weft.h>

enum { WORLD_MOST = 4, THINGS = 10, SIDE = 24, ELEMENTS = SIDE * SIDE };

typedef enum thing_kind { MEMORY, PLAN, LAYER, SUB, KEPT, KINDS } thing_kind;

typedef struct thing {
    thing_kind kind;
    weft_group *of; /* which group it was made in */
    void *handle;
} thing;

typedef struct member {
    pthread_t thread;
    weft_group *group;
    weft_id id;
    uint64_t seed;
    int rank, world;
} member;

static uint64_t pick(uint64_t *state, uint64_t count)
{
    return check_random(state) % count;
}

static void nap(uint64_t *mine)
{
    if (pick(mine, 3) == 0)
        nanosleep(&(struct timespec){0, (long)pick(mine, 300000)}, NULL);
}

static weft_status product(weft_group *group, weft_op op, weft_plan **plan)
{
    float a[ELEMENTS] = {0}, b[ELEMENTS] = {0}, d[ELEMENTS];
    weft_operands operands = {.size = sizeof(operands), .a = a, .b = b, .d = d};
    weft_problem problem;
    weft_status status;

    weft_problem_init(&problem, op);
    problem.m = problem.n = problem.k = SIDE;
    if (!plan)
        return weft_gemm_ar(group, &problem, &operands);
    status = weft_plan_create(group, &problem, plan);
    return status == WEFT_OK ? weft_run(*plan, &operands) : status;
}

static weft_status layer(weft_group *group, weft_moe **moe)
{
    weft_moe_config config;

    weft_moe_config_init(&config);
    config.experts = 4;
    config.topk = 1;
    config.hidden = config.tokens = SIDE;
    config.dtype = WEFT_F32;
    return weft_moe_create(group, &config, moe);
}

/* Collective; what came of it is in `t` also where it failed half-way. */
static weft_status make(weft_group *group, thing_kind kind, uint64_t *common, thing *t)
{
    *t = (thing){.kind = kind, .of = group};
    switch (kind) {
    case MEMORY:
        return weft_alloc(group, 1 + pick(common, 100000), 0, &t->handle);
    case PLAN:
        return product(group, (weft_op)pick(common, 4), (weft_plan **)&t->handle);
    case LAYER:
        return layer(group, (weft_moe **)&t->handle);
    case SUB:
        return weft_group_split(group, 0, weft_rank(group), (weft_group **)&t->handle);
    default:
        return product(group, WEFT_OP_GEMM_AR, NULL);
    }
}

/* Memory and kept plans go with their group, if that is gone. */
static void let_go(thing *t, bool group_is_gone)
{
    switch (t->kind) {
    case MEMORY:
        if (!group_is_gone)
            CHECK_INT(weft_free(t->of, t->handle), WEFT_OK);
        break;
    case PLAN:
        weft_plan_destroy(t->handle);
        break;
    case LAYER:
        weft_moe_free(t->handle);
        break;
    case SUB:
        weft_group_free(t->handle);
        break;
    default:
        break;
    }
}

static void *abort_later(void *group)
{
    nanosleep(&(struct timespec){0, 200000}, NULL);
    CHECK_INT(weft_group_abort(group, "enough"), WEFT_OK);
    return NULL;
}

static bool is_gone(const weft_group *group, weft_group *const *gone, int count)
{
    for (int i = 0; i < count; i++)
        if (gone[i] == group)
            return true;
    return false;
}

static void *run_rank(void *argument)
{
    const member *m = argument;
    uint64_t common = m->seed, mine = m->seed * 31 + (uint64_t)m->rank + 1;
    bool aborts = pick(&common, 4) == 0, here = aborts && (int)pick(&common, (uint64_t)m->world) == m->rank;
    weft_group *group = m->group, *world = NULL, *gone[THINGS + 1];
    int left = 0, gone_count = 0;
    thing things[THINGS + 1];
    pthread_t ender;
    weft_status status = WEFT_OK;

    if (!group)
        status = weft_group_create(&m->id, m->rank, m->world, &group);
    if (!group) { /* one that has come earlier may have ended it already */
        CHECK_INT(status, aborts ? WEFT_ERR_ABORTED : WEFT_OK);
        return NULL;
    }
    world = group;
    if (here)
        CHECK_INT(pthread_create(&ender, NULL, abort_later, world), 0);
    for (int i = 0; i < THINGS && status == WEFT_OK; i++) {
        status = make(group, (thing_kind)pick(&common, KINDS), &common, &things[left]);
        if (things[left].handle && things[left].kind == SUB && pick(&common, 2))
            group = things[left].handle;
        left += things[left].handle != NULL;
        nap(&mine);
    }
    CHECK_INT(status, aborts && status != WEFT_OK ? WEFT_ERR_ABORTED : WEFT_OK);
    if (status != WEFT_OK)
        CHECK_HAS(weft_error(group), "enough");
    if (here)
        pthread_join(ender, NULL);
    things[left++] = (thing){.kind = SUB, .of = world, .handle = world};
    while (left > 0) {
        thing *t = &things[pick(&mine, (uint64_t)left)];

        let_go(t, is_gone(t->of, gone, gone_count));
        if (t->kind == SUB)
            gone[gone_count++] = t->handle;
        *t = things[--left];
        nap(&mine);
    }
    return NULL;
}

/* Ranks that are threads of a group made for them; or that come by an id: processes, both, threads. */
static void run_world(uint64_t seed)
{
    uint64_t s = seed;
    int world = 2 + (int)pick(&s, WORLD_MOST - 1), way = (int)pick(&s, 4);
    weft_group *groups[WORLD_MOST] = {0};
    member members[WORLD_MOST];
    pid_t pids[WORLD_MOST] = {0};
    weft_id id;

    CHECK_INT(weft_id_create(&id), WEFT_OK);
    if (way == 0)
        CHECK_INT(weft_group_threads(world, groups), WEFT_OK);
    fflush(NULL);
    for (int r = 0; r < world; r++) {
        members[r] = (member){.group = groups[r], .id = id, .seed = seed, .rank = r, .world = world};
        if (way == 1 || (way == 2 && r % 2)) {
            pids[r] = fork();
            if (pids[r] == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                leaks_are_elsewhere = 1;
                check_failures = 0;
                run_rank(&members[r]);
                exit(check_failures ? 1 : 0);
            }
        }
    }
    for (int r = 0; r < world; r++)
        if (!pids[r])
            CHECK_INT(pthread_create(&members[r].thread, NULL, run_rank, &members[r]), 0);
    for (int r = 0; r < world; r++) {
        int status = 0;

        if (pids[r])
            CHECK(waitpid(pids[r], &status, 0) == pids[r] && status == 0);
        else
            pthread_join(members[r].thread, NULL);
    }
}

int main(int argc, char **argv)
{
    const long worlds = check_repeat(60, 5000);

    if (argc > 1) {
        run_world(strtoull(argv[1], NULL, 10));
        return check_report("test_multi_lifetimes");
    }
    for (long seed = 1; seed <= worlds; seed++) {
        int before = check_failures;

        run_world((uint64_t)seed);
        if (check_failures != before)
            fprintf(stderr, "test_multi_lifetimes: seed %ld\n", seed);
    }
    return check_report("test_multi_lifetimes");
}
