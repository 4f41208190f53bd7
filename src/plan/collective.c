/* What the collectives share: their two operands, one row per rank's share, cut into chunks of tile_n. */
#include "plan/generate.h"

weft_collective weft_collective_begin(weft_builder *builder, int64_t send_rows, int64_t recv_rows)
{
    const weft_problem *problem = builder->problem;
    weft_operand send = {
        .name = "send",
        .place = WEFT_PLACE_USER,
        .role = WEFT_ROLE_SEND,
        .dtype = problem->dtype,
        .rows = send_rows,
        .cols = problem->count,
        .batch = 1,
    };
    weft_operand recv;
    weft_collective collective = {
        .builder = builder, .lanes = weft_compute_lanes(problem), .tile = problem->tuning.tile_n};

    recv = (weft_operand){
        .name = "recv",
        .place = WEFT_PLACE_USER,
        .role = WEFT_ROLE_RECV,
        .dtype = problem->dtype,
        .rows = recv_rows,
        .cols = problem->count,
        .output = true,
        .batch = 1,
    };
    collective.send = weft_builder_operand(builder, send);
    collective.recv = weft_builder_operand(builder, recv);
    weft_builder_lanes(builder, WEFT_LANE_COMPUTE, collective.lanes);
    return collective;
}

void weft_collective_exchange(weft_builder *b, int64_t send_rows)
{
    weft_collective c = weft_collective_begin(b, send_rows, b->world);
    int64_t count = b->problem->count;
    bool push = b->problem->schedule == WEFT_SCHEDULE_PUSH;

    for (int step = 0; step < b->world; step++) {
        int peer = weft_rotate(b->rank, step, b->world);
        int from = push ? b->rank : peer, to = push ? peer : b->rank;

        for (int64_t i = 0; i < weft_cut_count(count, c.tile); i++) {
            weft_span cols = weft_cut(weft_whole(count), c.tile, i);

            weft_builder_copy(b, weft_collective_lane(&c), weft_row(c.recv, to, from, cols),
                              weft_row(c.send, from, send_rows > 1 ? to : 0, cols));
        }
    }
}
