/*
 * Receivers pull. A stream that lies in symmetric memory is read in place; another passes through the rank's
 * stage, a piece of STAGE_BYTES at a time: all write theirs, meet, read what they need of the others', and
 * meet again. What goes to whom stands in a table beside the stage, written before the first meeting, and
 * every rank compares all of it, so that different counts are the same error everywhere. To a rank on another
 * node the table is shown, and of each piece what that rank will read; in place nothing is read then.
 */
#include "run/cpu/counted.h"

#include <stdlib.h>
#include <string.h>

#include "core/round.h"
#include "group/far.h"
#include "run/cpu/reduce.h"
#include "symm/symm.h"

enum { STAGE_BYTES = 1 << 20 };

/* What a rank does with one other. */
typedef struct dealing {
    int64_t send_begin, send_bytes; /* in its stream */
    int64_t recv_bytes;
} dealing;

/* Symmetric, one per rank; each rank writes its own. */
typedef struct weft_counted {
    _Alignas(WEFT_LINE_BYTES) char stage[STAGE_BYTES];
    dealing with[];
} weft_counted;

/* What a rank shows when it comes. */
typedef struct notice {
    uint64_t asked;           /* a hash of what must be alike */
    weft_symm_place in_place; /* where the stream lies; INT64_MIN: it is staged */
    int64_t bytes;            /* of the stream */
} notice;

static weft_counted *of_rank(const weft_executor *x, int rank)
{
    return (weft_counted *)((char *)x->counted + x->delta[rank]);
}

static weft_status prepare(weft_executor *x)
{
    void *memory;
    weft_status status;

    if (x->counted)
        return WEFT_OK;
    status = weft_symm_alloc(x->group, sizeof(weft_counted) + (size_t)x->world * sizeof(dealing),
                             WEFT_RUN_ALIGNMENT, &memory);
    if (status == WEFT_OK)
        x->counted = memory;
    return status;
}

static notice fill(weft_executor *x, const weft_counted_job *job)
{
    int64_t element = (int64_t)weft_dtype_size(job->dtype), begin = 0;
    uint32_t kind[] = {(uint32_t)job->dtype, (uint32_t)job->reduces, (uint32_t)job->reduction,
                       (uint32_t)job->shared};
    notice mine = {.asked = weft_hash(WEFT_HASH_START, kind, sizeof(kind)), .in_place = INT64_MIN};

    for (int rank = 0; rank < x->world; rank++) {
        dealing *with = &x->counted->with[rank];

        with->send_begin = job->shared ? 0 : begin;
        with->send_bytes = job->send_count[job->shared ? x->rank : rank] * element;
        with->recv_bytes = job->recv_count[rank] * element;
        begin += with->send_bytes;
    }
    weft_far_show(x->group, x->counted->with, (size_t)x->world * sizeof(dealing), NULL);
    mine.bytes = job->shared ? x->counted->with[0].send_bytes : begin;
    if (mine.bytes && !x->group->spread)
        weft_symm_find(x->group, job->send, (size_t)mine.bytes, &mine.in_place);
    return mine;
}

/* The same outcome on every rank. */
static weft_status compare(weft_executor *x, const char *call, int64_t *rounds)
{
    const notice *first = weft_group_board(x->group, 0);

    *rounds = 0;
    for (int rank = 0; rank < x->world; rank++) {
        const notice *theirs = weft_group_board(x->group, rank);
        int64_t needed = weft_divide_up(theirs->bytes, STAGE_BYTES);

        if (theirs->asked != first->asked)
            return weft_error_set(&x->group->error, WEFT_ERR_MISMATCH,
                                  "%s: ranks 0 and %d ask for different operations or types", call, rank);
        if (theirs->in_place == INT64_MIN && needed > *rounds)
            *rounds = needed;
    }
    for (int from = 0; from < x->world; from++)
        for (int to = 0; to < x->world; to++) {
            int64_t sent = of_rank(x, from)->with[to].send_bytes;
            int64_t expected = of_rank(x, to)->with[from].recv_bytes;

            if (sent != expected)
                return weft_error_set(&x->group->error, WEFT_ERR_MISMATCH,
                                      "%s: rank %d sends %lld bytes to rank %d, which expects %lld", call,
                                      from, (long long)sent, to, (long long)expected);
        }
    return WEFT_OK;
}

/* The bytes [begin, end) of the stream of a rank, as they can be read in this round; where of its stage. */
static const char *readable(const weft_executor *x, int rank, int64_t begin)
{
    const notice *theirs = weft_group_board(x->group, rank);

    return theirs->in_place == INT64_MIN
               ? of_rank(x, rank)->stage + begin % STAGE_BYTES
               : (const char *)weft_symm_at(x->group, rank, theirs->in_place) + begin;
}

/* Of a rank's piece [*begin, *end) what this round brings. In place all of it comes in the first. */
static void cut(const weft_executor *x, int rank, int64_t round, int64_t *begin, int64_t *end)
{
    const notice *theirs = weft_group_board(x->group, rank);
    int64_t low = round * STAGE_BYTES, high = low + STAGE_BYTES;

    if (theirs->in_place != INT64_MIN) {
        *end = round == 0 ? *end : *begin;
        return;
    }
    *begin = weft_max(*begin, low);
    *end = weft_min(*end, high);
}

static void pull(const weft_executor *x, const weft_counted_job *job, int64_t round)
{
    char *into = job->recv;

    for (int rank = 0; rank < x->world; rank++) {
        const dealing *theirs = &of_rank(x, rank)->with[x->rank];
        int64_t begin = theirs->send_begin, end = begin + theirs->send_bytes;

        cut(x, rank, round, &begin, &end);
        if (begin < end) {
            char *to = into + (begin - theirs->send_begin);
            const char *from = readable(x, rank, begin);

            if (to != from)
                memcpy(to, from, (size_t)(end - begin));
        }
        into += theirs->send_bytes;
    }
}

/* All ranks have the same counts, so the piece of this one begins at the same place of every stream. With no
 * stage in use it comes at once; else, stages and streams in place, a stage's worth at a time. */
static void combine(const weft_executor *x, const weft_counted_job *job, int64_t round, int64_t rounds,
                    weft_view *sources)
{
    const dealing *any = &x->counted->with[x->rank];
    int64_t begin = any->send_begin, end = begin + any->send_bytes;
    int64_t low = round * STAGE_BYTES, high = low + STAGE_BYTES;
    int64_t element = (int64_t)weft_dtype_size(job->dtype), first = begin;
    weft_view into;

    if (rounds > 0) {
        begin = weft_max(begin, low);
        end = weft_min(end, high);
    }
    if (begin >= end)
        return;
    for (int rank = 0; rank < x->world; rank++)
        sources[rank] = (weft_view){(char *)(uintptr_t)readable(x, rank, begin), (end - begin) / element};
    into = (weft_view){(char *)job->recv + (begin - first), (end - begin) / element};
    weft_reduce_rows(job->dtype, job->reduction, 1, (end - begin) / element, sources, x->world, job->dtype,
                     &into, 1);
}

static void stage(const weft_executor *x, const weft_counted_job *job, const notice *mine, int64_t round)
{
    int64_t begin = round * STAGE_BYTES, bytes = mine->bytes - begin;

    if (mine->in_place != INT64_MIN || bytes <= 0)
        return;
    bytes = weft_min(bytes, STAGE_BYTES);
    memcpy(x->counted->stage, (const char *)job->send + begin, (size_t)bytes);
    for (int rank = 0; x->group->spread && rank < x->world; rank++) {
        const dealing *with = &x->counted->with[rank];
        int64_t low = weft_max(with->send_begin, begin);
        int64_t high = with->send_begin + with->send_bytes;

        high = weft_min(high, begin + bytes);
        if (low < high && weft_group_far(x->group, rank))
            weft_far_show_to(x->group, rank, x->counted->stage + (low - begin), (size_t)(high - low), NULL);
    }
}

/* Counts that differ do so for every rank: the tables are written again when all have read them. */
static weft_status compare_all(weft_executor *x, const char *call, int64_t *rounds)
{
    weft_status status = compare(x, call, rounds), met;
    weft_error_text why = x->group->error;

    if (status == WEFT_OK)
        return WEFT_OK;
    met = weft_group_sync(x->group, WEFT_SYNC_COUNTED);
    if (met != WEFT_OK)
        return met;
    x->group->error = why;
    return status;
}

static weft_status move(weft_executor *x, const weft_counted_job *job, weft_view *sources)
{
    notice mine = fill(x, job);
    int64_t rounds;
    weft_status status;

    stage(x, job, &mine, 0);
    status = weft_group_exchange(x->group, WEFT_SYNC_COUNTED, &mine, sizeof(mine));
    if (status == WEFT_OK)
        status = compare_all(x, weft_entry_name(job->entry), &rounds);
    /* What was shown stays through the syncs that follow only for one of them: it is shown again. */
    for (int64_t round = 0; status == WEFT_OK; round++) {
        if (job->reduces)
            combine(x, job, round, rounds, sources);
        else
            pull(x, job, round);
        weft_group_progress(x->group, true);
        status = weft_group_sync(x->group, WEFT_SYNC_COUNTED); /* all have read */
        if (status != WEFT_OK || round + 1 >= rounds)
            return status;
        stage(x, job, &mine, round + 1);
        status = weft_group_exchange(x->group, WEFT_SYNC_COUNTED, &mine, sizeof(mine));
    }
    return status;
}

weft_status weft_counted_run(weft_group *group, const weft_counted_job *job)
{
    weft_error_text own = group->error;
    weft_executor *x = NULL;
    weft_view *sources;
    weft_status status = weft_executor_of(group, &x);

    if (status == WEFT_OK)
        status = prepare(x);
    if (status != WEFT_OK)
        return status;
    if (!job->send_count) {
        group->error = own;
        return weft_group_reject(group, WEFT_SYNC_COUNTED);
    }
    sources = malloc((size_t)x->world * sizeof(*sources));
    if (!sources)
        return weft_group_poison(group, WEFT_ERR_MEMORY, "rank %d has no memory for %s", x->rank,
                                 weft_entry_name(job->entry));
    status = move(x, job, sources);
    free(sources);
    return status;
}
