/*
 * All-reduce. Sources are always added in rank order, so every rank gets the same bits.
 *   one_shot  every rank reduces everything from all ranks: one hop, W times the reading
 *   two_shot  rank r reduces slice r, then everyone fetches the slices; with sums_stay from memory of the
 *             plan's, so that no rank touches another's recv
 *   multimem  rank r reduces slice r and stores it to everyone in the same pass: by multicast on GPUs
 *   push      the same by plain stores
 * In place (recv is send) is safe with all but one_shot: slice r is read by rank r alone, before it is
 * written.
 */
#include "plan/generate.h"

static void reduce_from_all(weft_collective *c, weft_span cols)
{
    for (int rank = 0; rank < c->builder->world; rank++)
        weft_builder_from(c->builder, weft_row(c->send, rank, 0, cols));
}

static void one_shot(weft_collective *c)
{
    weft_builder *b = c->builder;
    int64_t count = b->problem->count;

    for (int64_t i = 0; i < weft_cut_count(count, c->tile); i++) {
        weft_span cols = weft_cut(weft_whole(count), c->tile, i);

        weft_builder_task(b, weft_collective_lane(c), WEFT_TASK_REDUCE, 0);
        weft_builder_to(b, weft_row(c->recv, b->rank, 0, cols));
        reduce_from_all(c, cols);
        weft_builder_end(b);
    }
}

static void store_to_all(weft_collective *c)
{
    weft_builder *b = c->builder;
    weft_span mine = weft_part(b->problem->count, b->world, b->rank);

    for (int64_t i = 0; i < weft_cut_count(mine.count, c->tile); i++) {
        weft_span cols = weft_cut(mine, c->tile, i);

        weft_builder_task(b, weft_collective_lane(c), WEFT_TASK_REDUCE, 0);
        for (int step = 0; step < b->world; step++)
            weft_builder_to(b, weft_row(c->recv, weft_rotate(b->rank, step, b->world), 0, cols));
        reduce_from_all(c, cols);
        weft_builder_end(b);
    }
}

/* Where a rank leaves the sums of its slice for the others. */
static uint32_t own_slice(const weft_collective *c)
{
    weft_builder *b = c->builder;
    weft_operand sums = {.name = "sums",
                         .place = WEFT_PLACE_STAGING,
                         .dtype = b->problem->dtype,
                         .rows = 1,
                         .cols = weft_part(b->problem->count, b->world, 0).count,
                         .batch = 1};

    return weft_builder_operand(b, sums);
}

static weft_span within(weft_span cols, weft_span slice)
{
    return (weft_span){cols.begin - slice.begin, cols.count};
}

/*
 * Signal (p, lane) tells how many chunks of slice p that lane of rank p has finished: chunk i belongs to lane
 * i mod lanes on every rank, so one lane makes all of its posts, in order.
 */
static void two_shot(weft_collective *c)
{
    weft_builder *b = c->builder;
    int64_t count = b->problem->count;
    bool stay = b->problem->tuning.sums_stay;
    uint32_t left = stay ? own_slice(c) : c->recv;
    uint32_t ready = weft_builder_signals(b, (int64_t)b->world * c->lanes);

    for (int step = 0; step < b->world; step++) {
        int from = weft_rotate(b->rank, step, b->world);
        weft_span slice = weft_part(count, b->world, from);
        int64_t chunks = weft_cut_count(slice.count, c->tile);

        for (int lane = 0; lane < c->lanes && step > 0; lane++)
            weft_builder_expect(b, ready + (uint32_t)(from * c->lanes + lane),
                                (chunks + c->lanes - 1 - lane) / c->lanes);
        for (int64_t i = 0; i < chunks; i++) {
            weft_span cols = weft_cut(slice, c->tile, i);
            int lane = (int)(i % c->lanes);

            weft_builder_task(b, lane, step == 0 ? WEFT_TASK_REDUCE : WEFT_TASK_COPY, 0);
            weft_builder_to(b, weft_row(c->recv, b->rank, 0, cols));
            if (step == 0) {
                if (stay)
                    weft_builder_to(b, weft_row(left, b->rank, 0, within(cols, slice)));
                reduce_from_all(c, cols);
                for (int other = 1; other < b->world; other++)
                    weft_builder_post(b, ready + (uint32_t)(b->rank * c->lanes + lane),
                                      weft_rotate(b->rank, other, b->world));
            } else {
                weft_builder_from(b, weft_row(left, from, 0, stay ? within(cols, slice) : cols));
                weft_builder_wait(b, ready + (uint32_t)(from * c->lanes + lane), i / c->lanes + 1);
            }
            weft_builder_end(b);
        }
    }
}

void weft_generate_all_reduce(weft_builder *builder)
{
    weft_collective c = weft_collective_begin(builder);

    if (builder->problem->schedule == WEFT_SCHEDULE_ONE_SHOT)
        one_shot(&c);
    else if (builder->problem->schedule == WEFT_SCHEDULE_TWO_SHOT)
        two_shot(&c);
    else
        store_to_all(&c);
}
