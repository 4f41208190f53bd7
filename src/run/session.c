#include "run/session.h"

#include "core/dtype.h"
#include "group/far.h"
#include "symm/symm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void session_free(weft_session *s)
{
    if (!s)
        return;
    free(s->delta);
    free((void *)s->of);
    free((void *)s->opened);
    free(s->listeners);
    free(s->seating);
    free(s->load);
    free(s);
}

static void seat_all(const weft_group *group, weft_seating *s)
{
    const weft_world *world = group->world;

    s->node_count = 0;
    for (int rank = 0; rank < group->size; rank++) {
        int node = 0;

        while (node < s->node_count && world->domain[group->seats[rank].world_rank] !=
                                           world->domain[group->seats[s->first[node]].world_rank])
            node++;
        if (node == s->node_count) {
            s->node_count++;
            s->first[node] = rank;
            s->size[node] = 0;
        }
        s->node[rank] = node;
        s->place[rank] = s->size[node]++;
    }
    s->before[0] = 0;
    for (int node = 1; node < s->node_count; node++)
        s->before[node] = s->before[node - 1] + s->size[node - 1];
}

/* Whether `rank` is shown what `far`, of another node, shows. */
static bool listens(const weft_seating *s, int rank, int far)
{
    return s->node[rank] != s->node[far] && s->place[far] % s->size[s->node[rank]] == s->place[rank];
}

/* How many far ranks a rank listens to before `far`. */
static int count_heard(const weft_seating *s, int rank, int far)
{
    int count = 0;

    for (int other = 0; other < far; other++)
        count += listens(s, rank, other);
    return count;
}

static int most_heard(const weft_seating *s, int world)
{
    int most = 0;

    for (int rank = 0; rank < world; rank++) {
        int count = count_heard(s, rank, world);

        most = count > most ? count : most;
    }
    return most;
}

/* The records that `rank` keeps of the far one that it listens to as the `heard`-th. */
static weft_record *records_heard(const weft_session *s, int rank, int heard)
{
    weft_run_control *control = weft_symm_peer(s->group, s->control, rank);

    return (weft_record *)(control + 1) + (size_t)heard * 2;
}

static void find_controls(weft_session *s)
{
    const weft_seating *seats = s->seating;

    for (int rank = 0; rank < s->world; rank++) {
        weft_run_control *control = weft_symm_peer(s->group, s->control, rank);

        s->of[rank] = control->records;
        s->delta[rank] = (char *)control - (char *)s->control;
    }
    for (int step = 1; seats && step < s->world; step++) {
        int far = (s->rank + step) % s->world;

        if (listens(seats, far, s->rank))
            s->listeners[s->listener_count++] = (weft_listener){
                .rank = far, .there = records_heard(s, far, count_heard(seats, far, s->rank))};
    }
    for (int rank = 0; seats && rank < s->world; rank++)
        for (int far = 0; seats->node[rank] == seats->node[s->rank] && far < s->world; far++)
            if (listens(seats, rank, far))
                s->of[far] = records_heard(s, rank, count_heard(seats, rank, far));
}

static weft_session *new_session(weft_group *group)
{
    size_t world = (size_t)group->size;
    weft_session *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->group = group;
    s->rank = group->rank;
    s->world = group->size;
    s->delta = calloc(world, sizeof(*s->delta));
    s->of = calloc(world, sizeof(*s->of));
    s->opened = calloc(world, sizeof(*s->opened));
    s->listeners = calloc(world, sizeof(*s->listeners));
    s->seating = group->spread ? malloc(sizeof(*s->seating)) : NULL;
    if (s->seating) {
        seat_all(group, s->seating);
        s->load = malloc(WEFT_BUNDLE_BYTES);
    }
    if (!s->delta || !s->of || !s->opened || !s->listeners || (group->spread && (!s->seating || !s->load))) {
        session_free(s);
        return NULL;
    }
    return s;
}

weft_status weft_session_of(weft_group *group, weft_session **session)
{
    size_t bytes = sizeof(weft_run_control);
    weft_session *s = group->session;
    weft_status status;
    void *control;

    if (s) {
        *session = s;
        return WEFT_OK;
    }
    s = new_session(group);
    if (!s)
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for its plans", group->rank);
    if (s->seating) {
        s->bundles = bytes + (size_t)most_heard(s->seating, s->world) * 2 * sizeof(weft_record);
        bytes = s->bundles + 2 * (sizeof(weft_bundle) * (size_t)s->seating->node_count + WEFT_BUNDLE_BYTES);
    }
    status = weft_symm_alloc(group, bytes, WEFT_RUN_ALIGNMENT, &control);
    if (status != WEFT_OK) {
        session_free(s);
        return status;
    }
    s->control = control;
    find_controls(s);
    group->session = s;
    *session = s;
    return WEFT_OK;
}

void weft_session_free(weft_group *group)
{
    session_free(group->session);
    group->session = NULL;
}

weft_record *weft_session_begin(weft_session *s, weft_call_kind kind, uint64_t hash,
                                const weft_problem *problem)
{
    weft_record *record;

    s->sequence++;
    record = weft_session_record(s, s->rank);
    record->hash = hash ^ (uint64_t)kind << 56;
    record->kind = (uint16_t)kind;
    record->beyond = 0;
    record->status = WEFT_OK;
    record->own_bytes = 0;
    record->op = (uint8_t)problem->op;
    record->dtype = (uint8_t)problem->dtype;
    record->m = problem->op >= WEFT_OP_ALL_REDUCE ? problem->count : problem->m;
    record->n = problem->n;
    record->k = problem->k;
    atomic_store_explicit(&s->fault, 0, memory_order_relaxed);
    return record;
}

void weft_session_publish_near(weft_session *s)
{
    /* Partner: weft_session_seen on the peers. */
    weft_signal_store(&weft_session_record(s, s->rank)->sequence, s->sequence);
}

static bool show(weft_session *s, weft_listener *listener, weft_net_put *put)
{
    const weft_record *record = weft_session_record(s, s->rank);
    weft_record *there = &listener->there[s->sequence & 1];

    if (listener->shown == s->sequence)
        return false;
    listener->shown = s->sequence;
    *put = (weft_net_put){.into = &there->hash,
                          .from = &record->hash,
                          .rows = 1,
                          .row_bytes = sizeof(*record) - offsetof(weft_record, hash),
                          .effect = WEFT_NET_STORE,
                          .post_count = 1,
                          .posts = {{&there->sequence, s->sequence}}};
    return true;
}

bool weft_session_take_along(weft_session *s, int rank, weft_net_put *put)
{
    for (int i = 0; i < s->listener_count; i++)
        if (s->listeners[i].rank == rank)
            return show(s, &s->listeners[i], put);
    return false;
}

void weft_session_publish_far(weft_session *s)
{
    weft_net_put put;

    for (int i = 0; i < s->listener_count; i++)
        if (show(s, &s->listeners[i], &put))
            weft_net_send(s->group->world->net, s->group->seats[s->listeners[i].rank].world_rank, &put, NULL);
}

void weft_session_publish(weft_session *s)
{
    weft_session_publish_near(s);
    weft_session_publish_far(s);
}

/* Operands of the peer may lie where this process had no access so far. */
static void open_own(weft_session *s, int rank, uint64_t bytes)
{
    if (!weft_symm_open_own(s->group, rank, bytes)) {
        weft_group_end(s->group, WEFT_ERR_MEMORY, "the system refused a rank access to memory of a peer");
        return;
    }
    /* Partner: weft_session_seen. */
    atomic_store_explicit(&s->opened[rank], bytes, memory_order_release);
}

bool weft_session_seen(weft_session *s, int rank)
{
    const weft_record *theirs = weft_session_record(s, rank), *mine = weft_session_record(s, s->rank);

    /* Partner: weft_session_publish. */
    if (!weft_signal_reached(&theirs->sequence, s->sequence))
        return false;
    /* Partner: the store in open_own, by another worker. */
    if (theirs->own_bytes &&
        __builtin_expect(theirs->own_bytes > atomic_load_explicit(&s->opened[rank], memory_order_acquire), 0))
        open_own(s, rank, theirs->own_bytes);
    if (__builtin_expect(theirs->hash != mine->hash || theirs->status != WEFT_OK, 0)) {
        int none = 0;

        atomic_compare_exchange_strong_explicit(&s->fault, &none, 1 + rank, memory_order_relaxed,
                                                memory_order_relaxed);
    }
    return true;
}

bool weft_session_beyond(const weft_session *s)
{
    bool beyond = false;

    for (int rank = 0; rank < s->world; rank++)
        beyond = beyond || weft_session_record(s, rank)->beyond;
    return beyond;
}

void weft_session_learn(weft_session *s, weft_op op, bool beyond)
{
    s->reach[op] = beyond ? WEFT_REACH_BEYOND : WEFT_REACH_ALL;
}

bool weft_session_faulted(weft_session *s)
{
    for (int rank = 0; rank < s->world; rank++)
        if (rank != s->rank)
            weft_session_seen(s, rank);
    return atomic_load_explicit(&s->fault, memory_order_relaxed) != 0;
}

typedef struct meeting {
    weft_session *session;
    int peer;
} meeting;

static bool met(void *argument)
{
    meeting *m = argument;

    return weft_session_seen(m->session, m->peer) || weft_session_faulted(m->session);
}

static weft_status await(weft_session *s, int peer)
{
    meeting m = {s, peer};
    weft_wait_note note = {.op = weft_op_name((weft_op)weft_session_record(s, s->rank)->op),
                           .peer = peer,
                           .task = -1,
                           .epoch = s->sequence,
                           .kind = WEFT_WAIT_ENTER};

    return weft_wait_beside(s->group, &weft_session_record(s, peer)->sequence, met, &m, &note);
}

weft_status weft_session_meet(weft_session *s)
{
    weft_status status = WEFT_OK;

    for (int peer = 0; peer < s->world && status == WEFT_OK; peer++) {
        if (peer == s->rank || weft_session_seen(s, peer))
            continue;
        status = await(s, peer);
        if (atomic_load_explicit(&s->fault, memory_order_relaxed))
            break;
    }
    if (status != WEFT_OK)
        return status;
    return atomic_load_explicit(&s->fault, memory_order_relaxed) ? WEFT_ERR_PEER : WEFT_OK;
}

/* "a run of ag_gemm m=512 n=64 k=128 float32" */
static void describe(const weft_record *record, char *text, size_t bytes)
{
    const char *op = weft_op_name((weft_op)record->op), *dtype = weft_dtype_name((weft_dtype)record->dtype);
    const char *what = record->kind == WEFT_CALLED_CREATE ? "a plan for" : "a run of";

    if (record->kind == WEFT_CALLED_UNREAD)
        snprintf(text, bytes, "a plan or a product");
    else if (record->op >= WEFT_OP_ALL_REDUCE)
        snprintf(text, bytes, "%s %s, %lld elements of %s", what, op, (long long)record->m, dtype);
    else
        snprintf(text, bytes, "%s %s, m=%lld n=%lld k=%lld, %s", what, op, (long long)record->m,
                 (long long)record->n, (long long)record->k, dtype);
}

/* The same sentence on every rank: all records of the call are there. */
static weft_status explain(weft_session *s)
{
    const weft_record *first = weft_session_record(s, 0);
    char one[160], other[160];

    for (int rank = 0; rank < s->world; rank++) {
        const weft_record *record = weft_session_record(s, rank);

        if (record->status != WEFT_OK) {
            describe(record, one, sizeof(one));
            return weft_error_set(&s->group->error, WEFT_ERR_PEER,
                                  "rank %d rejected its arguments for %s: %s", rank, one,
                                  weft_status_text((weft_status)record->status));
        }
    }
    for (int rank = 1; rank < s->world; rank++) {
        const weft_record *record = weft_session_record(s, rank);

        if (record->hash != first->hash) {
            describe(first, one, sizeof(one));
            describe(record, other, sizeof(other));
            return weft_error_set(
                &s->group->error, WEFT_ERR_MISMATCH,
                "the ranks asked for different things: rank 0 for %s; rank %d for %s%s", one, rank, other,
                strcmp(one, other)                ? ""
                : first->op >= WEFT_OP_ALL_REDUCE ? " (with another reduction, root or schedule)"
                                                  : " (with other layout, schedule, tiles or epilogue)");
        }
    }
    return weft_error_set(&s->group->error, WEFT_ERR_STATE, "call %llu failed on some rank only",
                          (unsigned long long)s->sequence);
}

static bool is_shown(void *argument)
{
    const meeting *m = argument;

    /* Partner: weft_session_publish there. */
    return weft_signal_reached(&weft_session_record(m->session, m->peer)->sequence, m->session->sequence);
}

/* A record of a far rank comes to one rank of this node, maybe after the word of the barrier came to this
 * one. */
static weft_status await_records(weft_session *s)
{
    weft_status status = WEFT_OK;

    for (int peer = 0; peer < s->world && status == WEFT_OK; peer++) {
        meeting m = {s, peer};
        weft_wait_note note = {
            .op = "barrier", .peer = peer, .task = -1, .epoch = s->sequence, .kind = WEFT_WAIT_PROGRESS};

        if (peer != s->rank)
            status = weft_wait_until(s->group, is_shown, &m, &note);
    }
    return status;
}

weft_status weft_session_resync(weft_session *s, bool rejected)
{
    weft_error_text own = s->group->error;
    weft_status status, error;

    weft_session_publish_far(s); /* what a small collective has not shown; those who differ wait for it */
    status = weft_group_sync(s->group, WEFT_SYNC_RESYNC);
    if (status == WEFT_OK)
        status = await_records(s);
    if (status != WEFT_OK)
        return status;
    error = explain(s);
    if (s->rebase)
        s->rebase(s->group);
    s->failures++;
    memset(s->reach, 0, sizeof(s->reach)); /* WEFT_REACH_UNKNOWN: some rank may not have learnt the last */
    if (rejected) {
        s->group->error = own;
        error = own.status;
    }
    own = s->group->error;
    status = weft_group_sync(s->group, WEFT_SYNC_RESYNC);
    if (status != WEFT_OK)
        return status;
    s->group->error = own;
    return error;
}

weft_status weft_session_reject(weft_group *group, const weft_problem *asked, weft_status rejection)
{
    weft_error_text own = group->error;
    weft_call_kind kind = asked ? WEFT_CALLED_RUN : WEFT_CALLED_UNREAD;
    weft_problem nothing = {0};
    weft_session *s;
    weft_status status = weft_group_check(group);

    if (status == WEFT_OK)
        status = weft_session_of(group, &s);
    if (status != WEFT_OK)
        return status;
    group->error = own;
    weft_session_begin(s, kind, 0, asked ? asked : &nothing)->status = (int32_t)rejection;
    weft_session_publish(s);
    return weft_session_resync(s, true);
}
