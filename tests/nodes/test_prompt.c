/*
 * What ranks of other nodes wait for leaves as soon as it can, also where this one has other work: the sums
 * of a product that goes on, and the word that this rank has entered, before what it has to send.
 */
#include <stdatomic.h>
#include <sys/mman.h>

#include "run/cpu/executor.h"
#include "run/program.h"
#include "support/nodes.h"

enum { MOST = 256 };

static const weft_plan_part *watched;
static uint32_t ran[MOST];
static int ran_count;

static void note(int rank, uint32_t task)
{
    (void)rank;
    if (watched && ran_count < MOST)
        ran[ran_count++] = task;
}

/* One worker, whose lane of products never blocks, beside the lane that sends. */
static void multiply(int rank, void *argument)
{
    enum { SIZE = 64 };
    static float a[SIZE * SIZE], b[SIZE * SIZE], d[SIZE * SIZE];
    weft_operands operands = {
        .size = sizeof(operands), .a = a, .b = b, .d = d, .lda = SIZE / 2, .ldb = SIZE, .ldd = SIZE};
    int first_sent = -1, last_product = -1;
    weft_group *group = NULL;
    weft_plan *plan = NULL;
    weft_problem p;

    (void)rank;
    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    weft_problem_init(&p, WEFT_OP_GEMM_RS);
    p.schedule = WEFT_SCHEDULE_TWO_LEVEL;
    p.m = p.n = p.k = SIZE;
    p.tuning.tile_m = 16;
    p.tuning.workers = 1;
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    if (!plan)
        return;
    weft_run_before_task = note;
    watched = &plan->part;
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    for (int i = 0; i < ran_count; i++) {
        const weft_task *task = &watched->tasks[ran[i]];

        if (task->kind == WEFT_TASK_GEMM)
            last_product = i;
        else if (weft_task_crosses(watched, task) && first_sent < 0)
            first_sent = i;
    }
    CHECK(first_sent >= 0);
    CHECK(first_sent < last_product);
    watched = NULL;
    weft_plan_destroy(plan);
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

/* ---- who has entered ------------------------------------------------------------------------------ */

typedef struct meeting {
    _Atomic int entered, sends; /* by rank 0 */
} meeting;

static meeting *shared;
static int sent;

static bool happens(_Atomic int *what)
{
    for (int i = 0; i < 10000 && !atomic_load(what); i++)
        usleep(1000);
    return atomic_load(what);
}

/* Rank 1 does not send on before rank 0 has begun to, for which that must know that rank 1 has entered. */
static void hold_up(int rank, uint32_t index)
{
    const weft_task *task = &watched->tasks[index];

    if (rank == 0 && task->kind == WEFT_TASK_ENTER)
        atomic_store(&shared->entered, 1);
    if (!weft_task_crosses(watched, task))
        return;
    if (rank == 0)
        atomic_store(&shared->sends, 1);
    else if (sent++ == 1)
        CHECK(happens(&shared->sends));
}

static void gather(int rank, void *argument)
{
    enum { COUNT = 300000 }; /* in two messages that do not leave before their receiver has entered */
    float *send = calloc(COUNT, sizeof(*send)), *recv = calloc(2 * COUNT, sizeof(*recv));
    weft_operands operands = {.size = sizeof(operands), .send = send, .recv = recv};
    weft_group *group = NULL;
    weft_plan *plan = NULL;
    weft_problem p;

    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    weft_problem_init(&p, WEFT_OP_ALL_GATHER);
    p.schedule = WEFT_SCHEDULE_TWO_LEVEL;
    p.count = COUNT;
    p.tuning.tile_n = COUNT / 2;
    CHECK_INT(weft_plan_create(group, &p, &plan), WEFT_OK);
    if (!plan)
        return;
    watched = &plan->part;
    weft_run_before_task = hold_up;
    if (rank == 1) {
        CHECK(happens(&shared->entered));
        usleep(50000); /* so that this rank most likely knows it too */
    }
    CHECK_INT(weft_run(plan, &operands), WEFT_OK);
    weft_run_before_task = NULL;
    weft_plan_destroy(plan);
    CHECK_INT(weft_finalize(group), WEFT_OK);
    free(send);
    free(recv);
}

int main(void)
{
    if (!nodes_possible("test_nodes_prompt"))
        return NODES_SKIPPED;
    nodes_run("ab", multiply, NULL);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    if (shared != MAP_FAILED)
        nodes_run("ab", gather, NULL);
    return check_report("test_nodes_prompt");
}
