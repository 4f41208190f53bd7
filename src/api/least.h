/*
 * What a caller's structs have at least: never more than in version 0.2, or in the one they came with
 * (tests/package/test_frozen.py). A field that is added later does not change these; then the end of a
 * shorter struct is zero, which is its default.
 */
#ifndef WEFT_API_LEAST_H
#define WEFT_API_LEAST_H

#include "core/sized.h"

#include <weft/weft.h>

#define WEFT_PROBLEM_LEAST WEFT_SIZE_TO(weft_problem, tuning)
#define WEFT_OPERANDS_LEAST WEFT_SIZE_TO(weft_operands, recv)
#define WEFT_GEMM_ARGS_LEAST WEFT_SIZE_TO(weft_gemm_args, threads)
#define WEFT_GROUPED_ARGS_LEAST WEFT_SIZE_TO(weft_grouped_args, threads)
#define WEFT_MOE_CONFIG_LEAST WEFT_SIZE_TO(weft_moe_config, threads)
#define WEFT_MOE_INPUT_LEAST WEFT_SIZE_TO(weft_moe_input, weight)
#define WEFT_MOE_VIEW_LEAST WEFT_SIZE_TO(weft_moe_view, entry_weight)
#define WEFT_MOE_EXPERT_LEAST WEFT_SIZE_TO(weft_moe_expert, expert_rows)
#define WEFT_SIGNAL_PAD_LEAST WEFT_SIZE_TO(weft_signal_pad, deadline_ns)
#define WEFT_MOE_WEIGHTS_LEAST WEFT_SIZE_TO(weft_moe_weights, down_scale)
#define WEFT_MOE_STATS_LEAST WEFT_SIZE_TO(weft_moe_stats, combine_us)

#endif
