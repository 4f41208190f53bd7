/* Small collectives of more ranks than cores, whatever the system says of the core a rank is on: nothing, the
 * same of all, another each time. Who gives way to whom changes no result and stops nobody. */
#include <weft/weft.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "support/check.h"

enum { CALLS = 100, ROUNDS = 5, MOST = 64 };

static enum { NONE, SAME, CHANGING } says;
static _Atomic int asked, wrong;

int __wrap_sched_getcpu(void);
int __wrap_sched_yield(void);
int __real_sched_yield(void);
int __real_sched_getcpu(void);

int __wrap_sched_getcpu(void)
{
    int times = atomic_fetch_add(&asked, 1);

    return says == NONE ? -1 : says == SAME ? 0 : times % 3;
}

static _Atomic int waits, turn, coming;
static _Thread_local int given_way;

int __wrap_sched_yield(void)
{
    given_way++;
    waits++;
    return __real_sched_yield();
}

static void *come_first(void *group)
{
    for (int i = 0; i < ROUNDS; i++) {
        float one = 1, sum = 0;

        while (turn <= i)
            usleep(1000);
        waits = 0;
        coming = i + 1;
        if (weft_all_reduce(group, &one, &sum, 1, WEFT_F32, WEFT_SUM) != WEFT_OK || sum != 2)
            wrong++;
    }
    return NULL;
}

/* Two ranks on one core: the second gives way to the first if the system says that they share it. */
static void check_second(int expected)
{
    weft_group *groups[2];
    pthread_t first;

    turn = coming = 0;
    CHECK_INT(weft_group_threads(2, groups), WEFT_OK);
    CHECK_INT(pthread_create(&first, NULL, come_first, groups[0]), 0);
    for (int i = 0; i < ROUNDS; i++) {
        float one = 1, sum = 0;

        turn++;
        for (int looks = 0; (coming <= i || waits == 0) && looks < 20000; looks++)
            usleep(1000);
        given_way = 0;
        CHECK_INT(weft_all_reduce(groups[1], &one, &sum, 1, WEFT_F32, WEFT_SUM), WEFT_OK);
        CHECK(sum == 2);
        if (i > 0) /* the first call makes what calls keep */
            CHECK_INT(given_way, expected);
    }
    CHECK_INT(pthread_join(first, NULL), 0);
    weft_group_free(groups[0]);
    weft_group_free(groups[1]);
}

static void *run_rank(void *argument)
{
    weft_group *group = argument;
    int size = weft_size(group);

    for (int i = 0; i < CALLS; i++) {
        float given[3] = {(float)i, (float)weft_rank(group), 1}, sum[3] = {0};

        if (weft_all_reduce(group, given, sum, 3, WEFT_F32, WEFT_SUM) != WEFT_OK ||
            sum[0] != (float)(i * size) || sum[1] != (float)(size * (size - 1)) / 2 || sum[2] != (float)size)
            wrong++;
    }
    return NULL;
}

static void check_ranks(int size)
{
    weft_group *groups[MOST];
    pthread_t threads[MOST];

    CHECK_INT(weft_group_threads(size, groups), WEFT_OK);
    for (int rank = 0; rank < size; rank++)
        CHECK_INT(pthread_create(&threads[rank], NULL, run_rank, groups[rank]), 0);
    for (int rank = 0; rank < size; rank++) {
        CHECK_INT(pthread_join(threads[rank], NULL), 0);
        weft_group_free(groups[rank]);
    }
}

int main(void)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(__real_sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
    says = NONE;
    check_second(0);
    says = SAME;
    check_second(1);
    for (says = NONE; says <= CHANGING; says++) {
        check_ranks(3);
        check_ranks(MOST);
    }
    CHECK_INT(wrong, 0);
    CHECK(asked > 0);
    return check_report("test_run_way");
}
