#include "group/wait.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "core/clock.h"
#include "group/sync_kind.h"
#include "group/far.h"
#include "group/group.h"

enum {
    POLLS = 32,             /* looks at the signal between two looks at the clock */
    CROWDED_POLLS = 4,      /* the same with fewer cores than ranks: whoever we wait for needs this core */
    FAR_POLLS = 2,          /* the same where the net may bring it, which is asked as often */
    SPIN_NS = 200000,       /* spin this long, at most, when every rank has a core */
    CROWDED_SPIN_NS = 100,  /* the same with fewer cores than ranks */
    YIELD_NS = 400000,      /* until then yield; after that sleep */
    AT_ONCE_NS = 2000,      /* a yield that takes no longer found nobody else on this core … */
    SLICE_NS = 1000000,     /* … and one that takes this long somebody who does not wait for us */
    LONELY_YIELDS = 8,      /* so many that found nobody, in a row, and it is asked whether that is so */
    ROOM_NS = 20000,        /* a sleep that leaves the core to a rank that stands behind another */
    SLEEP_FIRST_NS = 50000, /* sleeps without a futex double from this to … */
    SLEEP_POLL_MAX_NS = 500000, /* … this */
    SLEEP_NS = 2000000,         /* a sleep with a futex, which is woken; in a crowd up to … */
    SLEEP_CROWD_NS = 40000000,  /* … this, so that a death is told within 100 ms */
    CROWD = 8,                  /* ranks a core from which on it is one */
    LIVENESS_NS = 5000000,
    PROGRESS_LOOKS = 8, /* at the peers' progress within the deadline for it */
    /* What a far rank has shown is heard by one process of a node for all; that it left or is elsewhere, by
       each for itself, and maybe sooner: by as long as that process gets no core. One that gets none for 4 s
       is lost. */
    FAR_LOOKS = 800,
};

typedef struct waiter {
    weft_group *group;
    const weft_wait_note *note;
    weft_signal *signal; /* to sleep on; NULL: none */
    uint64_t value;
    bool (*ready)(void *);
    void *argument;
    int64_t start;
    int64_t next_liveness;
    int64_t next_progress; /* when to look for it; 0: not yet */
    uint64_t progress;     /* what the peers had done at the last look */
    int64_t progress_at;   /* when that was new */
    int elsewhere;         /* looks in a row that found the peer in another call */
    int absent;            /* looks in a row that found it gone */
    uint64_t peer_looks;   /* that the peer had made in waits for us when we first saw one; 0: we have not */
    weft_lonely lonely;
} waiter;

/* Where every rank could have a core. */
static _Thread_local int64_t spin_ns = SPIN_NS;

static int polls_of(const weft_group *group)
{
    if (group->spread)
        return FAR_POLLS;
    return group->alone ? POLLS : CROWDED_POLLS;
}

static bool satisfied(const waiter *wait)
{
    return wait->ready ? wait->ready(wait->argument) : weft_signal_reached(wait->signal, wait->value);
}

/* "for rank 5: barrier, task 3, epoch 7" */
static void describe(const waiter *wait, char *text, size_t bytes)
{
    const weft_wait_note *note = wait->note;
    char peer[32] = "", task[32] = "";

    if (note->peer >= 0)
        snprintf(peer, sizeof(peer), " for rank %d", note->peer);
    if (note->task >= 0)
        snprintf(task, sizeof(task), ", task %lld", (long long)note->task);
    snprintf(text, bytes, "%s: %s%s, epoch %llu", peer, note->op, task, (unsigned long long)note->epoch);
}

/* Whether the kernel says the process is stopped (SIGSTOP or a debugger). */
static bool is_stopped(int pid)
{
    char path[48], line[512], *after;
    FILE *file;
    bool stopped = false;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return false;
    if (fgets(line, sizeof(line), file)) {
        after = strrchr(line, ')');
        stopped = after && after[1] == ' ' && (after[2] == 'T' || after[2] == 't');
    }
    fclose(file);
    return stopped;
}

static weft_status fail_dead(const waiter *wait, int dead)
{
    const weft_world *world = wait->group->world;
    int world_rank = wait->group->seats[dead].world_rank;
    char what[160];

    describe(wait, what, sizeof(what));
    if (wait->group->seats[dead].far)
        return weft_group_poison(wait->group, WEFT_ERR_PEER_DIED,
                                 "rank %d (process %d on %s) is lost (%s); rank %d waited%s", dead,
                                 weft_group_pid(wait->group, dead), world->hosts[world_rank],
                                 weft_net_why(world->net, world_rank), wait->group->rank, what);
    return weft_group_poison(wait->group, WEFT_ERR_PEER_DIED,
                             "rank %d (process %d) died while rank %d waited%s", dead,
                             weft_group_pid(wait->group, dead), wait->group->rank, what);
}

static weft_status fail_absent(const waiter *wait)
{
    char what[160];

    describe(wait, what, sizeof(what));
    return weft_group_poison(wait->group, WEFT_ERR_PEER_DIED,
                             "rank %d has left the group while rank %d waited%s", wait->note->peer,
                             wait->group->rank, what);
}

static weft_status fail_late(const waiter *wait, int64_t waited_ns)
{
    weft_group *group = wait->group;
    char what[160], who[160];
    int stopped = -1;

    describe(wait, what, sizeof(what));
    /* A stopped rank is to blame, also when the one we wait for only waits for it in turn. */
    for (int rank = 0; rank < group->size && stopped < 0; rank++) {
        int pid = weft_group_pid(group, rank);

        if (pid && rank != group->rank && !group->seats[rank].far && is_stopped(pid))
            stopped = rank;
    }
    if (stopped >= 0)
        snprintf(who, sizeof(who), "rank %d (process %d) is stopped", stopped,
                 weft_group_pid(group, stopped));
    else if (wait->note->peer >= 0)
        snprintf(who, sizeof(who), "rank %d is alive but %s", wait->note->peer,
                 wait->note->kind == WEFT_WAIT_ENTER ? "has not arrived" : "makes no progress");
    else
        snprintf(who, sizeof(who), "every rank is alive");
    return weft_group_poison(group, WEFT_ERR_TIMEOUT, "rank %d waited %.1f s%s; %s", group->rank,
                             (double)waited_ns * 1e-9, what, who);
}

/* Says whom this rank waits for. Only the thread of the handle waits for a signal of a peer to enter: other
 * waits are for conditions, which a third rank may end. */
static void tell_awaited(const waiter *wait)
{
    const weft_group *group = wait->group;
    _Atomic uint64_t *awaits = &group->seats[group->rank].control->awaits;
    uint64_t looks = (atomic_load_explicit(awaits, memory_order_relaxed) >> 24) + 1;

    if (!wait->ready && !group->seats[wait->note->peer].far)
        /* Partner: awaits_us on the peer. */
        atomic_store_explicit(awaits,
                              looks << 24 | (uint64_t)group->entry << 16 | (uint64_t)(1 + wait->note->peer),
                              memory_order_release);
}

/* Whether the peer has gone on waiting for us since we wait for it: its second look after one that we saw
 * came after all that we have done. A far one may not have heard of it yet, however often it looks. */
static bool awaits_us(waiter *wait)
{
    const weft_group *group = wait->group;
    /* Partner: tell_awaited on the peer. */
    uint64_t word =
        atomic_load_explicit(&group->seats[wait->note->peer].control->awaits, memory_order_acquire);

    if ((word & 0xffff) != (uint64_t)(1 + group->rank) || group->seats[wait->note->peer].far)
        return false;
    if (!wait->peer_looks)
        wait->peer_looks = word >> 24;
    return word >> 24 >= wait->peer_looks + 2;
}

/* Whether the peer is in a sync that we have not begun. What it did before is visible to whoever sees it. */
static bool in_later_sync(const waiter *wait)
{
    const weft_group *group = wait->group;

    /* Partner: the stores in weft_group_sync. */
    return weft_signal_load(&group->seats[wait->note->peer].control->arrived) >> 16 > group->sync;
}

/* Whether the peer, for whom we wait to enter this call, waits for us in another: then nobody will ever come.
 */
static bool is_elsewhere(waiter *wait)
{
    int peer = wait->note->peer;

    if (wait->note->kind != WEFT_WAIT_ENTER || wait->note->by_kernels || peer < 0 ||
        peer == wait->group->rank)
        return false;
    tell_awaited(wait);
    return (in_later_sync(wait) || awaits_us(wait)) && !satisfied(wait);
}

static weft_status fail_elsewhere(const waiter *wait)
{
    const weft_group *group = wait->group;
    int peer = wait->note->peer;
    const weft_control *control = group->seats[peer].control;
    bool later = in_later_sync(wait);
    uint64_t theirs = later ? weft_signal_load(&control->arrived) >> 4
                            : atomic_load_explicit(&control->awaits, memory_order_relaxed) >> 16;
    char what[160];

    describe(wait, what, sizeof(what));
    return weft_group_poison(wait->group, WEFT_ERR_MISMATCH,
                             "the ranks made different calls: rank %d waited in %s%s, but rank %d is in %s%s",
                             group->rank, weft_entry_name(group->entry), what, peer,
                             weft_entry_name(theirs & 0xff), later ? "" : ", which waits for it");
}

/*
 * Since when nothing has happened. Once all ranks are in a call, a wait may be as long as their work takes:
 * what has a deadline is the time in which none of them finished anything. Looked for now and then, since it
 * means looking at every rank.
 */
static int64_t idle_since(waiter *wait, int64_t now)
{
    const weft_group *group = wait->group;
    uint64_t done = 0;

    if (wait->note->kind != WEFT_WAIT_PROGRESS)
        return wait->start;
    if (now >= wait->next_progress) {
        /* Partner: weft_group_progress there. */
        for (int rank = 0; rank < group->size; rank++)
            done += rank == group->rank
                        ? 0
                        : atomic_load_explicit(&group->seats[rank].control->progress, memory_order_relaxed);
        if (!wait->next_progress)
            wait->progress_at = wait->start;
        else if (done != wait->progress)
            wait->progress_at = now;
        wait->progress = done;
        wait->next_progress = now + group->progress_ns / PROGRESS_LOOKS;
    }
    return wait->progress_at;
}

static bool is_absent(const waiter *wait)
{
    const weft_group *group = wait->group;
    int peer = wait->note->peer;

    return peer >= 0 && peer != group->rank && weft_group_absent(group, peer) && !satisfied(wait);
}

/* Between so many the condition has been asked often enough to have seen all that the peer did before. */
static int looks_for(const waiter *wait)
{
    return wait->group->seats[wait->note->peer].far ? FAR_LOOKS : 2 + WEFT_WAIT_LOOKS / polls_of(wait->group);
}

/* The looks that are not for every turn: poison, then the dead and the gone, then the deadline. A rank that
 * was stopped itself finds the poison before it looks at the clock. */
static weft_status look_around(waiter *wait, int64_t now)
{
    weft_group *group = wait->group;
    int64_t limit = wait->note->kind == WEFT_WAIT_ENTER ? group->enter_ns : group->progress_ns;
    weft_status status = weft_group_check(group);

    if (status != WEFT_OK)
        return status;
    if (now >= wait->next_liveness) {
        int dead = weft_group_find_dead(group, wait->note->peer);

        wait->next_liveness = now + LIVENESS_NS;
        if (dead >= 0)
            return fail_dead(wait, dead);
        /* What a rank posted before it left is visible to whoever sees that it left and asks often enough. */
        wait->absent = is_absent(wait) ? wait->absent + 1 : 0;
        if (wait->absent && wait->absent == looks_for(wait))
            return fail_absent(wait);
        wait->elsewhere = is_elsewhere(wait) ? wait->elsewhere + 1 : 0;
        if (wait->elsewhere && wait->elsewhere == looks_for(wait))
            return fail_elsewhere(wait);
    }
    if (now - idle_since(wait, now) >= limit && !satisfied(wait))
        return fail_late(wait, now - wait->start);
    return WEFT_OK;
}

int64_t weft_wait_spin(int64_t before_ns, int64_t yield_ns, bool brought)
{
    if (yield_ns >= SLICE_NS)
        return SPIN_NS;
    if (yield_ns <= AT_ONCE_NS)
        return before_ns < SPIN_NS / 2 ? 2 * before_ns : SPIN_NS;
    if (!brought)
        return before_ns;
    return before_ns > 8 * CROWDED_SPIN_NS ? before_ns / 8 : CROWDED_SPIN_NS;
}

bool weft_wait_is_lonely(weft_lonely *lonely, int64_t yield_ns, long (*count_switches)(void))
{
    long before = lonely->switches;

    lonely->yields = yield_ns <= AT_ONCE_NS ? lonely->yields + 1 : 0;
    if (lonely->yields < LONELY_YIELDS)
        return false;
    lonely->yields = 0;
    lonely->switches = count_switches();
    return lonely->switches == before;
}

int64_t weft_wait_sleep(double core)
{
    return (int64_t)fmax(SLEEP_NS, fmin(SLEEP_CROWD_NS, SLEEP_NS / (CROWD * core)));
}

/* How often this thread has left its core. */
static long count_switches(void)
{
    struct rusage usage;

    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw + usage.ru_nivcsw;
}

/* Sleeps so that this core is free for a rank that stands behind another one on its own. */
static void make_room(const waiter *wait)
{
    uint64_t seen = wait->signal ? weft_signal_load(wait->signal) : 0;

    if (satisfied(wait))
        return;
    if (wait->signal)
        weft_signal_sleep(wait->signal, seen, ROOM_NS);
    else
        nanosleep(&(struct timespec){0, ROOM_NS}, NULL);
}

static void yield(waiter *wait, int64_t now)
{
    int64_t yield_ns;

    sched_yield();
    yield_ns = weft_clock_ns() - now;
    if (wait->group->alone)
        spin_ns = weft_wait_spin(spin_ns, yield_ns, satisfied(wait));
    else if (!wait->group->spread && weft_wait_is_lonely(&wait->lonely, yield_ns, count_switches))
        make_room(wait);
}

static void rest(waiter *wait, int64_t now, int64_t *sleep_ns)
{
    int64_t elapsed = now - wait->start;

    if (elapsed < (wait->group->alone ? spin_ns : CROWDED_SPIN_NS))
        return;
    if (elapsed < YIELD_NS) {
        yield(wait, now);
        return;
    }
    if (wait->group->spread)
        weft_net_rest(wait->group->world->net);
    if (wait->signal) {
        uint64_t seen = weft_signal_load(wait->signal);

        /* Another signal may end a wait for a condition, so that one sleeps in shorter slices. */
        if (!satisfied(wait))
            weft_signal_sleep(wait->signal, seen,
                              wait->ready ? SLEEP_POLL_MAX_NS : weft_wait_sleep(wait->group->share));
        return;
    }
    nanosleep(&(struct timespec){0, *sleep_ns}, NULL);
    if (*sleep_ns < SLEEP_POLL_MAX_NS)
        *sleep_ns *= 2;
}

static weft_status wait_slowly(waiter *wait)
{
    int64_t sleep_ns = SLEEP_FIRST_NS;
    int polls = polls_of(wait->group);

    wait->start = weft_clock_ns();
    wait->next_liveness = wait->start + LIVENESS_NS;
    for (;;) {
        int64_t now;
        weft_status status;

        for (int poll = 0; poll < polls; poll++) {
            if (satisfied(wait))
                return WEFT_OK;
            if (wait->group->spread)
                weft_net_poll(wait->group->world->net);
            else
                weft_pause();
        }
        now = weft_clock_ns();
        status = look_around(wait, now);
        if (status != WEFT_OK)
            return status;
        rest(wait, now, &sleep_ns);
    }
}

weft_status weft_signal_wait(weft_group *group, weft_signal *signal, uint64_t value,
                             const weft_wait_note *note)
{
    for (int poll = polls_of(group); poll > 0; poll--) {
        if (weft_signal_reached(signal, value))
            return WEFT_OK;
        weft_pause();
    }
    return wait_slowly(&(waiter){.group = group, .note = note, .signal = signal, .value = value});
}

weft_status weft_wait_until(weft_group *group, bool (*ready)(void *argument), void *argument,
                            const weft_wait_note *note)
{
    waiter wait = {.group = group, .note = note, .ready = ready, .argument = argument};

    if (ready(argument))
        return WEFT_OK;
    return wait_slowly(&wait);
}

weft_status weft_wait_beside(weft_group *group, weft_signal *signal, bool (*ready)(void *argument),
                             void *argument, const weft_wait_note *note)
{
    waiter wait = {.group = group, .note = note, .signal = signal, .ready = ready, .argument = argument};

    if (ready(argument))
        return WEFT_OK;
    return wait_slowly(&wait);
}
