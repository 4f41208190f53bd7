/* What the collectives share: their two operands, one row per rank's share, cut into chunks of tile_n. */
#include "plan/generate.h"
#include "plan/user_operands.h"

weft_collective weft_collective_begin(weft_builder *builder)
{
    const weft_problem *problem = builder->problem;
    weft_collective collective = {
        .builder = builder, .lanes = weft_compute_lanes(problem), .tile = problem->tuning.tile_n};
    weft_operand operands[WEFT_USER_OPERANDS_MAX];

    weft_user_operands(problem, builder->world, operands);
    collective.send = weft_builder_operand(builder, operands[0]);
    collective.recv = weft_builder_operand(builder, operands[1]);
    weft_builder_lanes(builder, WEFT_LANE_COMPUTE, collective.lanes);
    return collective;
}

void weft_collective_exchange(weft_builder *b)
{
    weft_collective c = weft_collective_begin(b);
    int64_t count = b->problem->count;
    bool push = b->problem->schedule == WEFT_SCHEDULE_PUSH, own_rows = b->problem->op == WEFT_OP_ALL_TO_ALL;

    for (int step = 0; step < b->world; step++) {
        int peer = weft_rotate(b->rank, step, b->world);
        int from = push ? b->rank : peer, to = push ? peer : b->rank;

        for (int64_t i = 0; i < weft_cut_count(count, c.tile); i++) {
            weft_span cols = weft_cut(weft_whole(count), c.tile, i);

            weft_builder_copy(b, weft_collective_lane(&c), weft_row(c.recv, to, from, cols),
                              weft_row(c.send, from, own_rows ? to : 0, cols));
        }
    }
}
