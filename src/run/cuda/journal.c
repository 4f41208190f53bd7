#include "run/cuda/journal.h"

/*
 * An entry: the plan's number, its operation, and the meeting, or MEETS of a rank that is in one. A rank that
 * has run after a meeting (MET) does not wonder at a peer that has not left it. Marks are no difference.
 */
enum {
    MEETS = 1,
    MET = 2,
    MARKS = MEETS | MET,
    OP_SHIFT = 2,
    OP_MASK = 15,
    CALL = OP_MASK, /* in place of an operation: no plan, and in the meeting's place which call */
    MEETING_SHIFT = 6,
    MEETING_MASK = (1 << 29) - 1,
    PLAN_SHIFT = 35
};

_Static_assert((int)WEFT_OP_BROADCAST < CALL, "an entry has room for the operation");

static weft_journal *journal_of(const weft_session *session, int rank)
{
    return &((weft_run_control *)(void *)((char *)session->control + session->delta[rank]))->journal;
}

static uint64_t add(uint64_t sum, uint64_t entry)
{
    sum = (sum ^ (entry & ~(uint64_t)MARKS)) * 0x9e3779b97f4a7c15u;
    return sum ^ sum >> 32;
}

static void enter(const weft_group *group, uint32_t number, uint32_t meeting, int op, unsigned marks)
{
    weft_journal *mine = &group->session->control->journal;
    uint64_t count = atomic_load_explicit(&mine->count, memory_order_relaxed);
    uint64_t entry = (uint64_t)number << PLAN_SHIFT | (uint64_t)(meeting & MEETING_MASK) << MEETING_SHIFT |
                     (uint64_t)op << OP_SHIFT | marks;
    uint64_t before =
        count ? atomic_load_explicit(&mine->sums[(count - 1) % WEFT_JOURNAL_ENTRIES], memory_order_relaxed)
              : 0;

    atomic_store_explicit(&mine->entries[count % WEFT_JOURNAL_ENTRIES], entry, memory_order_relaxed);
    atomic_store_explicit(&mine->sums[count % WEFT_JOURNAL_ENTRIES], add(before, entry),
                          memory_order_relaxed);
    atomic_store_explicit(&mine->count, count + 1, memory_order_release); /* partner: compare_with */
}

static void enter_run(const weft_group *group, uint32_t number, uint32_t meeting, int op)
{
    weft_cuda_group *g = weft_cuda_of(group);

    enter(group, number, meeting, op, g->has_met ? MET : 0);
    g->has_met = false;
}

/* Takes the last entry back, and returns it. */
static uint64_t withdraw(const weft_group *group)
{
    weft_journal *mine = &group->session->control->journal;
    uint64_t count = atomic_load_explicit(&mine->count, memory_order_relaxed) - 1;

    atomic_store_explicit(&mine->count, count, memory_order_release);
    return atomic_load_explicit(&mine->entries[count % WEFT_JOURNAL_ENTRIES], memory_order_relaxed);
}

void weft_cuda_journal_meet(const weft_plan *plan)
{
    enter(plan->group, weft_cuda_plan_of(plan)->number, 0, (int)plan->part.problem.op, MEETS);
}

void weft_cuda_journal_met(const weft_plan *plan)
{
    withdraw(plan->group);
    weft_cuda_of(plan->group)->has_met = true;
}

void weft_cuda_journal_meets(const weft_group *group, weft_op op, bool begins)
{
    if (begins)
        enter(group, 0, 0, (int)op, MEETS);
    else
        withdraw(group);
    weft_cuda_of(group)->has_met |= !begins;
}

void weft_cuda_journal_run(const weft_plan *plan, uint32_t meeting)
{
    enter_run(plan->group, weft_cuda_plan_of(plan)->number, meeting, (int)plan->part.problem.op);
}

void weft_cuda_journal_call(const weft_group *group, weft_entry entry)
{
    enter_run(group, 0, (uint32_t)entry, CALL);
}

void weft_cuda_journal_failed(const weft_group *group)
{
    if (withdraw(group) & MET)
        weft_cuda_of(group)->has_met = true;
}

static bool differ(uint64_t x, uint64_t y)
{
    if ((x | y) & MEETS)
        return !(x & y & MEETS) && !((x | y) & MET);
    return (x ^ y) & ~(uint64_t)MARKS;
}

static const char *name_of(uint64_t entry)
{
    unsigned op = entry >> OP_SHIFT & OP_MASK;

    return op == CALL ? weft_entry_name(entry >> MEETING_SHIFT & MEETING_MASK) : weft_op_name((weft_op)op);
}

static weft_status say(weft_group *group, int rank, uint64_t mine, uint64_t theirs)
{
    const char *op = name_of(mine), *other = name_of(theirs);

    if (op != other)
        return weft_group_poison(
            group, WEFT_ERR_MISMATCH,
            "rank %d runs %s and rank %d %s: ranks make the same calls in the same order", group->rank, op,
            rank, other);
    return weft_group_poison(
        group, WEFT_ERR_MISMATCH,
        "rank %d ran another plan of %s than rank %d, or one with operands that it does not expect: what "
        "peers touch may change, and be in symmetric memory or not, only in the same call on all ranks",
        group->rank, op, rank);
}

/* Whether the ranks' runs differ up to number i, which both have, and one after it: it is not taken back. */
static bool differed(const weft_journal *own, const weft_journal *peer, uint64_t i)
{
    uint64_t x = atomic_load_explicit(&own->sums[i % WEFT_JOURNAL_ENTRIES], memory_order_relaxed),
             y = atomic_load_explicit(&peer->sums[i % WEFT_JOURNAL_ENTRIES], memory_order_acquire),
             now = atomic_load_explicit(&peer->count, memory_order_acquire);

    return x != y && now <= i + WEFT_JOURNAL_ENTRIES / 2; /* else it may be another's by now */
}

/* Everything that both have begun and that is still there; `all`: also what is not. */
static weft_status compare_with(weft_group *group, int rank, bool all)
{
    const weft_session *s = group->session;
    weft_journal *own = &s->control->journal, *peer = journal_of(s, rank);
    uint64_t mine = atomic_load_explicit(&own->count, memory_order_relaxed),
             theirs = atomic_load_explicit(&peer->count, memory_order_acquire),
             end = mine < theirs ? mine : theirs, most = mine < theirs ? theirs : mine;

    for (uint64_t i = most > WEFT_JOURNAL_ENTRIES ? most - WEFT_JOURNAL_ENTRIES : 0; i < end; i++) {
        uint64_t x = atomic_load_explicit(&own->entries[i % WEFT_JOURNAL_ENTRIES], memory_order_relaxed),
                 y = atomic_load_explicit(&peer->entries[i % WEFT_JOURNAL_ENTRIES], memory_order_acquire),
                 now = atomic_load_explicit(&peer->count, memory_order_acquire);

        /* the oldest may be overwritten while it is read */
        if (now > i && now <= i + WEFT_JOURNAL_ENTRIES / 2 && differ(x, y))
            return say(group, rank, x, y);
    }
    if (all && end > 1 && most - end < WEFT_JOURNAL_ENTRIES / 2 && differed(own, peer, end - 2))
        return weft_group_poison(group, WEFT_ERR_MISMATCH,
                                 "rank %d and rank %d ran different plans, or with operands that do not "
                                 "belong together, many calls ago: ranks make the same calls in the same "
                                 "order",
                                 group->rank, rank);
    return WEFT_OK;
}

weft_status weft_cuda_journal_compare(weft_group *group, bool all)
{
    weft_status status = WEFT_OK;

    for (int rank = 0; rank < group->size && status == WEFT_OK && group->session; rank++)
        if (rank != group->rank)
            status = compare_with(group, rank, all);
    return status;
}
