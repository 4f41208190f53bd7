/* Rounds of mixture of experts on GPUs: what the ranks of one process and those of several share. */
#ifndef WEFT_TOOLS_BENCH_CUDA_MOE_H
#define WEFT_TOOLS_BENCH_CUDA_MOE_H

#include "bench/bench.h"
#include "bench/standin/contest.h"
#include "run/cuda/driver.h"

/* Rounds of a graph, and replays of it. */
enum { CUDA_MOE_ROUNDS = 40, CUDA_MOE_GRAPHS = 15 };

extern const report_column cuda_moe_columns[];

/* What the columns are, and the rate of a copy, by which bounds go. */
void cuda_moe_legend(report *r, double copy_bytes_per_us);

/* What a row says first: how its ranks run, of what type, how tokens travel, by which rung. */
void cuda_moe_describe(report *r, const weft_contest_shape *shape, weft_dtype dtype, weft_moe_wire wire,
                       const char *impl, bool reduced, int world, const char *how);

/* Both halves beside their bounds, and the end of the row. */
void cuda_moe_print(report *r, report_stats dispatch, report_stats combine, report_stats total,
                    const double bound_us[2], bool ok);

/* Bytes of a token that travels. */
int64_t cuda_moe_wire_bytes(const weft_contest_shape *shape, weft_dtype dtype, weft_moe_wire wire);

/* Whether a rank's results, of experts that change nothing, are its tokens' weighted sums, by sums in double:
 * all of them, or those of some 400 tokens spread over its own. */
bool cuda_moe_right(const weft_contest_shape *shape, weft_dtype dtype, weft_moe_wire wire,
                    const weft_contest_data *data, const void *y);

/* Bytes that a copy inside the GPU's memory reads and writes in a microsecond. */
weft_status cuda_moe_copy_rate(const weft_cuda_driver *cu, CUstream stream, double *bytes_per_us,
                               weft_error_text *error);

#endif
