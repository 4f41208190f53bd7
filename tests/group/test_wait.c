/* Waits end: by the signal, at the deadline, by poison, and when the awaited rank has left. */
#include <unistd.h>

#include "core/clock.h"
#include "group/sync.h"
#include "support/check.h"
#include "support/ranks.h"

static weft_signal signals[8];

static bool never(void *argument)
{
    (void)argument;
    return false;
}

static bool reached(void *argument)
{
    return weft_signal_reached(argument, 1);
}

/* The post comes late enough that the waiter sleeps. */
static void post_wakes(weft_group *group, void *argument)
{
    weft_wait_note note = {.op = "test", .peer = 0, .task = -1, .epoch = 1, .kind = WEFT_WAIT_PROGRESS};

    (void)argument;
    if (weft_rank(group) == 0) {
        usleep(20000);
        weft_signal_post(&signals[0], 1);
    } else {
        CHECK_INT(weft_signal_wait(group, &signals[0], 1, &note), WEFT_OK);
        CHECK_INT(weft_wait_until(group, reached, &signals[0], &note), WEFT_OK);
    }
}

static void deadline_names(weft_group *group, void *argument)
{
    weft_wait_note note = {.op = "all_reduce", .peer = 1, .task = 12, .epoch = 7, .kind = WEFT_WAIT_PROGRESS};
    weft_status status;

    weft_set_deadlines(group, 100, 0.05);
    if (weft_rank(group) == 0)
        status = argument ? weft_wait_until(group, never, NULL, &note)
                          : weft_signal_wait(group, &signals[1], 1, &note);
    else
        status = weft_barrier(group); /* has 100 s, but rank 0's timeout ends it */
    CHECK_INT(status, WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "rank 0 waited 0.");
    CHECK_HAS(weft_error(group), "for rank 1: all_reduce, task 12, epoch 7; rank 1 is alive but");
    CHECK_INT(weft_barrier(group), WEFT_ERR_TIMEOUT);
    CHECK_INT(weft_group_poison(group, WEFT_ERR_SYSTEM, "too late"), WEFT_ERR_TIMEOUT);
}

static void enter_deadline(weft_group *group, void *argument)
{
    (void)argument;
    weft_set_deadlines(group, 0.05, 100);
    if (weft_rank(group) == 2) {
        while (weft_group_check(group) == WEFT_OK)
            usleep(1000);
        return;
    }
    CHECK_INT(weft_barrier(group), WEFT_ERR_TIMEOUT);
    CHECK_HAS(weft_error(group), "for rank 2: weft_barrier, epoch 1; rank 2 is alive but has not arrived");
}

static void leaver_is_named(weft_group *group, void *argument)
{
    (void)argument;
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (weft_rank(group) == 1)
        return; /* ranks_run frees the handle: the rank leaves */
    CHECK_INT(weft_barrier(group), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(group), "rank 1 has left the group");
}

/* True when it is asked for the last time that a condition may need, counted from when rank 1 is in its sync
 * or has left. It takes so long each time that whoever waits looks around after every turn. */
typedef struct rare {
    weft_group *group;
    int asked, last;
} rare;

static bool rarely(void *argument)
{
    rare *r = argument;

    usleep(1000);
    if (weft_group_absent(r->group, 1) ||
        weft_signal_load(&r->group->seats[1].control->arrived) >> 16 > r->group->sync)
        r->asked++;
    return r->asked >= r->last;
}

/* A peer in a sync that we have not begun is no mistake while the condition may still end by what it did
 * before; afterwards it is one, on both ranks, at once. */
static void peer_elsewhere(weft_group *group, void *argument)
{
    rare r = {.group = group, .last = WEFT_WAIT_LOOKS};
    weft_wait_note note = {.op = "all_reduce", .peer = 1, .task = -1, .epoch = 3, .kind = WEFT_WAIT_ENTER};

    (void)argument;
    if (weft_rank(group) == 0)
        CHECK_INT(weft_wait_until(group, rarely, &r, &note), WEFT_OK);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_rank(group) == 0 ? weft_wait_until(group, never, NULL, &note) : weft_barrier(group),
              WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group),
              "rank 0 waited in weft_barrier for rank 1: all_reduce, epoch 3, but rank 1 is in weft_barrier");
}

/* The same of one that has left. */
static void peer_left(weft_group *group, void *argument)
{
    rare r = {.group = group, .last = WEFT_WAIT_LOOKS};
    weft_wait_note note = {.op = "all_reduce", .peer = 1, .task = -1, .epoch = 3, .kind = WEFT_WAIT_ENTER};

    (void)argument;
    if (weft_rank(group) == 1)
        return;
    CHECK_INT(weft_wait_until(group, rarely, &r, &note), WEFT_OK);
    CHECK_INT(weft_wait_until(group, never, NULL, &note), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(group), "rank 1 has left the group while rank 0 waited for rank 1: all_reduce");
}

/* A peer that is only late, outside of any call, or still in the sync before, is waited for. */
static void peer_late(weft_group *group, void *argument)
{
    weft_wait_note note = {.op = "all_reduce", .peer = 1, .task = -1, .epoch = 3, .kind = WEFT_WAIT_ENTER};

    for (int round = 0; round < 3; round++) {
        CHECK_INT(weft_barrier(group), WEFT_OK);
        if (weft_rank(group) == 1) {
            usleep(50000);
            weft_signal_post(argument, 1);
        } else {
            CHECK_INT(weft_signal_wait(group, argument, (uint64_t)round + 1, &note), WEFT_OK);
        }
    }
}

static void wraps(void)
{
    CHECK(weft_signal_passed(5, 5) && weft_signal_passed(6, 5) && !weft_signal_passed(4, 5));
    CHECK(weft_signal_passed(2, UINT64_MAX - 2));
    CHECK(!weft_signal_passed(UINT64_MAX - 2, 2));
}

/* Beside a rank on the same core a thread soon spins hardly at all; alone, or beside a stranger, as long as
 * ever. */
static void spins_as_it_pays(void)
{
    int64_t longest = weft_wait_spin(0, INT64_MAX / 2, false), spin = longest;

    for (int wait = 0; wait < 3; wait++)
        spin = weft_wait_spin(spin, 10000, true);
    CHECK(spin * 50 <= longest);
    CHECK(weft_wait_spin(spin, 10000, true) > 0);
    CHECK_INT(weft_wait_spin(spin, 10000, false), spin);
    CHECK_INT(weft_wait_spin(spin, 5000000, true), longest);
    for (int wait = 0; wait < 10; wait++)
        spin = weft_wait_spin(spin, 300, wait % 2);
    CHECK_INT(spin, longest);
}

static long switches;

static long count_switches(void)
{
    return switches;
}

/* How many of a hundred yields find a rank to be lonely. */
static int count_lonely(bool at_once, bool leaves)
{
    weft_lonely lonely = {0};
    int found = 0;

    for (int yield = 0; yield < 100; yield++) {
        switches += leaves;
        found += weft_wait_is_lonely(&lonely, at_once || yield % 3 ? 300 : 10000, count_switches);
    }
    return found;
}

/* Who comes back at once without having left its core is alone there; who left it, however briefly, is not.
 */
static void is_lonely_when_nobody_else_runs(void)
{
    switches = 100;
    CHECK(count_lonely(true, false) > 0);
    CHECK_INT(count_lonely(true, true), 0);
    CHECK_INT(count_lonely(false, false), 0);
}

/* However many wait for one, they leave it more than half of a core; and none sleeps long enough to miss a
 * death for 100 ms. */
static void crowds_sleep(void)
{
    const int64_t look_ns = 10000;

    CHECK_INT(weft_wait_sleep(1), weft_wait_sleep(0.5));
    for (int ranks = 1; ranks <= 1024; ranks *= 2) {
        int64_t sleep_ns = weft_wait_sleep(1.0 / ranks);

        CHECK(ranks * look_ns <= sleep_ns / 2);
        CHECK(2 * sleep_ns < 100000000);
    }
}

int main(void)
{
    weft_group *groups[2];

    wraps();
    spins_as_it_pays();
    is_lonely_when_nobody_else_runs();
    crowds_sleep();
    ranks_run(4, post_wakes, NULL);
    ranks_run(3, deadline_names, NULL);
    ranks_run(3, deadline_names, "until");
    ranks_run(4, enter_deadline, NULL);
    ranks_run(2, peer_elsewhere, NULL);
    ranks_run(2, peer_left, NULL);
    ranks_run(2, peer_late, &signals[2]);
    ranks_run(16, peer_late, &signals[3]);
    for (int i = 0; i < 20; i++)
        ranks_run(3, leaver_is_named, NULL);

    CHECK_INT(weft_group_threads(2, groups), WEFT_OK);
    CHECK_INT(weft_set_deadlines(groups[0], 0, 1), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_set_deadlines(groups[0], 1, -1), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(groups[0]), "must be above 0");
    weft_group_free(groups[0]);
    weft_group_free(groups[1]);
    return check_report("test_group_wait");
}
