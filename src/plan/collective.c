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
        .builder = builder, .lanes = weft_compute_lanes(problem), .tile = problem->tile_n};

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
