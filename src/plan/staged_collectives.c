/*
 * Collectives of operands where peers cannot reach them (`staged` of a tuning; see staged.h), in waves: in
 * wave i a lane copies its i-th chunk of what others read to its own symmetric memory, and then takes what
 * the peers copied in the wave before; in an all-reduce it adds that up, and takes what they had added up a
 * wave before that. Nothing waits for a later wave, and what is taken is still in a cache.
 *
 * So does the memory that chunks pass through: a lane goes round in that of a few waves. Nobody has to say
 * that a place is free again. In an all-reduce, whoever adds up writes the sums over the copies that it
 * added, so a rank takes them where it staged, and stages its chunk i where it has taken the sums of chunk
 * i - 3. That is also the cheapest way between caches: a line that is written where it was just read
 * moves once there and once back, where memory of their own for sums, or copies that the peers have still in
 * their caches, would move twice as often. Elsewhere a rank has taken chunk i - 2, before which the peers
 * had taken its own chunk i - 4. Only in a broadcast, which has no other way back, ranks tell the root what
 * they have taken.
 *
 * Chunk i belongs to lane i mod lanes on every rank, so one lane makes all posts of a signal, in order.
 * Sources are added in rank order. In place is as safe as without staging: what a rank overwrites has been
 * copied, since whoever sent it has read that copy; the own share is read where it lies, by whoever writes
 * it.
 */
#include "plan/generate.h"

typedef struct staged_waves {
    weft_collective c;
    uint32_t copy;           /* what peers read, and add up in place */
    uint32_t copied, summed; /* signals: (owner, lane) */
    uint32_t taken;          /* at the root of a broadcast: (reader, lane) */
    int64_t chunks;          /* in the longest share */
    int64_t places;          /* for chunks, which take them in turn */
} staged_waves;

static uint32_t of_lane(const staged_waves *w, uint32_t first, int rank, int64_t chunk)
{
    return first + (uint32_t)(rank * w->c.lanes + chunk % w->c.lanes);
}

/* Which columns of a row `rank` gets: a slice of an all-reduce, else all of them. */
static weft_span share_of(const staged_waves *w, int rank)
{
    const weft_builder *b = w->c.builder;

    return b->problem->op == WEFT_OP_ALL_REDUCE ? weft_part(b->problem->count, b->world, rank)
                                                : weft_whole(b->problem->count);
}

static bool has(const staged_waves *w, int rank, int64_t chunk)
{
    return chunk >= 0 && chunk < weft_cut_count(share_of(w, rank).count, w->c.tile);
}

static bool is_broadcast(const staged_waves *w)
{
    return w->c.builder->problem->op == WEFT_OP_BROADCAST;
}

static bool sends_alike(const staged_waves *w)
{
    return w->c.builder->problem->op == WEFT_OP_ALL_GATHER || is_broadcast(w);
}

/* Chunk `chunk` of what `from` sends `to`, where SEND has it, and where it is staged. */
static weft_region sent(const staged_waves *w, int from, int to, int64_t chunk)
{
    weft_op op = w->c.builder->problem->op;
    bool own_rows = op == WEFT_OP_REDUCE_SCATTER || op == WEFT_OP_ALL_TO_ALL;

    return weft_row(w->c.send, from, own_rows ? to : 0, weft_cut(share_of(w, to), w->c.tile, chunk));
}

static weft_span place_of(const staged_waves *w, int rank, int64_t chunk)
{
    return (weft_span){chunk % w->places * w->c.tile, weft_cut(share_of(w, rank), w->c.tile, chunk).count};
}

static weft_region copy_of(const staged_waves *w, int from, int to, int64_t chunk)
{
    return weft_row(w->copy, from, sends_alike(w) ? 0 : to, place_of(w, to, chunk));
}

static bool sends(const staged_waves *w, int rank)
{
    return !is_broadcast(w) || rank == w->c.builder->problem->root;
}

/* What peers read of a chunk: one copy for all, or one for each. */
static void stage(staged_waves *w, int64_t chunk)
{
    weft_builder *b = w->c.builder;
    bool alike = sends_alike(w);

    if (!sends(w, b->rank))
        return;
    for (int step = 1; step < (alike ? 2 : b->world); step++) {
        int to = weft_rotate(b->rank, step, b->world);

        if (!has(w, to, chunk))
            continue;
        weft_builder_task(b, (int)(chunk % w->c.lanes), WEFT_TASK_COPY, 0);
        weft_builder_to(b, copy_of(w, b->rank, to, chunk));
        weft_builder_from(b, sent(w, b->rank, to, chunk));
        for (int peer = 0; peer < b->world && is_broadcast(w) && chunk >= w->places; peer++)
            if (peer != b->rank)
                weft_builder_wait(b, of_lane(w, w->taken, peer, chunk), (chunk - w->places) / w->c.lanes + 1);
        for (int other = alike ? 1 : step; other < (alike ? b->world : step + 1); other++)
            weft_builder_post(b, of_lane(w, w->copied, b->rank, chunk),
                              weft_rotate(b->rank, other, b->world));
        weft_builder_end(b);
    }
}

static weft_region received(const staged_waves *w, int from, int64_t chunk)
{
    const weft_builder *b = w->c.builder;

    return weft_row(w->c.recv, b->rank, is_broadcast(w) ? 0 : from,
                    weft_cut(share_of(w, b->rank), w->c.tile, chunk));
}

/* A chunk of what `from` sends; the own is not staged. */
static void take(staged_waves *w, int from, int64_t chunk)
{
    weft_builder *b = w->c.builder;
    bool own = from == b->rank;

    if (!sends(w, from) || !has(w, b->rank, chunk))
        return;
    weft_builder_task(b, (int)(chunk % w->c.lanes), WEFT_TASK_COPY, 0);
    weft_builder_to(b, received(w, from, chunk));
    weft_builder_from(b, own ? sent(w, from, from, chunk) : copy_of(w, from, b->rank, chunk));
    if (!own)
        weft_builder_wait(b, of_lane(w, w->copied, from, chunk), chunk / w->c.lanes + 1);
    if (!own && is_broadcast(w))
        weft_builder_post(b, of_lane(w, w->taken, b->rank, chunk), from);
    weft_builder_end(b);
}

/* A chunk of the own share, added up; in an all-reduce also where each peer staged its own. */
static void add_up(staged_waves *w, int64_t chunk)
{
    weft_builder *b = w->c.builder;
    bool for_all = b->problem->op == WEFT_OP_ALL_REDUCE;
    weft_span cols;

    if (!has(w, b->rank, chunk))
        return;
    cols = weft_cut(share_of(w, b->rank), w->c.tile, chunk);
    weft_builder_task(b, (int)(chunk % w->c.lanes), WEFT_TASK_REDUCE, 0);
    weft_builder_to(b, weft_row(w->c.recv, b->rank, 0, cols));
    for (int step = 1; step < b->world && for_all; step++)
        weft_builder_to(b, copy_of(w, weft_rotate(b->rank, step, b->world), b->rank, chunk));
    for (int rank = 0; rank < b->world; rank++)
        weft_builder_from(b, rank == b->rank ? sent(w, rank, rank, chunk) : copy_of(w, rank, b->rank, chunk));
    for (int step = 1; step < b->world; step++) {
        int peer = weft_rotate(b->rank, step, b->world);

        weft_builder_wait(b, of_lane(w, w->copied, peer, chunk), chunk / w->c.lanes + 1);
        if (for_all)
            weft_builder_post(b, of_lane(w, w->summed, b->rank, chunk), peer);
    }
    weft_builder_end(b);
}

/* A chunk of the slice that `from` has added up. */
static void take_sums(staged_waves *w, int from, int64_t chunk)
{
    weft_builder *b = w->c.builder;
    weft_span cols;

    if (from == b->rank || !has(w, from, chunk))
        return;
    cols = weft_cut(share_of(w, from), w->c.tile, chunk);
    weft_builder_task(b, (int)(chunk % w->c.lanes), WEFT_TASK_COPY, 0);
    weft_builder_to(b, weft_row(w->c.recv, b->rank, 0, cols));
    weft_builder_from(b, copy_of(w, b->rank, from, chunk));
    weft_builder_wait(b, of_lane(w, w->summed, from, chunk), chunk / w->c.lanes + 1);
    weft_builder_end(b);
}

/* Posts that this rank gets of each peer's lanes. */
static void expect_posts(const staged_waves *w)
{
    weft_builder *b = w->c.builder;
    int64_t mine = weft_cut_count(share_of(w, b->rank).count, w->c.tile);

    for (int peer = 0; peer < b->world; peer++) {
        int64_t theirs = weft_cut_count(share_of(w, peer).count, w->c.tile);

        for (int lane = 0; lane < w->c.lanes && peer != b->rank; lane++) {
            uint32_t place = (uint32_t)(peer * w->c.lanes + lane);

            if (sends(w, peer))
                weft_builder_expect(b, w->copied + place, (mine + w->c.lanes - 1 - lane) / w->c.lanes);
            else if (sends(w, b->rank))
                weft_builder_expect(b, w->taken + place, (mine + w->c.lanes - 1 - lane) / w->c.lanes);
            if (b->problem->op == WEFT_OP_ALL_REDUCE)
                weft_builder_expect(b, w->summed + place, (theirs + w->c.lanes - 1 - lane) / w->c.lanes);
        }
    }
}

static uint32_t scratch(const staged_waves *w)
{
    weft_builder *b = w->c.builder;
    weft_operand operand = {.name = "copy", .place = WEFT_PLACE_STAGING, .batch = 1};

    operand.rows = sends_alike(w) ? 1 : b->world;
    operand.cols = w->chunks > 1 ? w->places * w->c.tile : share_of(w, 0).count;
    if (!b->failed)
        operand.dtype = b->part.operands[w->c.send].dtype;
    return weft_builder_operand(b, operand);
}

void weft_generate_staged_collective(weft_builder *b)
{
    weft_op op = b->problem->op;
    bool reduces = op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_REDUCE_SCATTER;
    staged_waves w = {.c = weft_collective_begin(b)};
    int lanes = w.c.lanes;

    w.chunks = weft_cut_count(share_of(&w, 0).count, w.c.tile);
    w.places = (op == WEFT_OP_ALL_REDUCE ? 3 : 4) * (int64_t)lanes;
    if (w.places > w.chunks)
        w.places = w.chunks;
    w.copy = scratch(&w);
    w.copied = weft_builder_signals(b, (int64_t)b->world * lanes);
    if (op == WEFT_OP_BROADCAST)
        w.taken = weft_builder_signals(b, (int64_t)b->world * lanes);
    if (op == WEFT_OP_ALL_REDUCE)
        w.summed = weft_builder_signals(b, (int64_t)b->world * lanes);
    expect_posts(&w);
    for (int64_t i = 0; i < w.chunks + 2 * (int64_t)lanes; i++) {
        if (i < w.chunks)
            stage(&w, i);
        if (!reduces)
            take(&w, b->rank, i);
        for (int step = 1; step < b->world && !reduces; step++)
            take(&w, weft_rotate(b->rank, step, b->world), i - lanes);
        if (reduces)
            add_up(&w, i - lanes);
        for (int step = 1; step < b->world && op == WEFT_OP_ALL_REDUCE; step++)
            take_sums(&w, weft_rotate(b->rank, step, b->world), i - 2 * (int64_t)lanes);
    }
}
