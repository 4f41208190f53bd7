/* The ranks of a mixture-of-experts layer on one GPU, in this process: their memory, tokens and kernels, and
 * an emulated link to those that do not run. */
#ifndef WEFT_TOOLS_BENCH_CUDA_MOE_RANKS_H
#define WEFT_TOOLS_BENCH_CUDA_MOE_RANKS_H

#include "bench/bench.h"
#include "bench/cuda/bench_cuda.h"
#include "bench/cuda/emulated.h"
#include "bench/cuda/graph.h"
#include "bench/cuda/ladder.h"
#include "bench/standin/contest.h"
#include "run/cuda/moe.h"

enum { RANKS_MOST = 8 };

/* One rank: its lane, and its buffers on the GPU. */
typedef struct gpu_rank {
    weft_cuda_moe lane; /* fused; below it: steps */
    ladder_args steps;
    CUstream stream;
    weft_contest_data data; /* on the host */
    CUdeviceptr x, expert, weight, packed, y, own;
    int experts_here;
    gpu_graph rounds;
} gpu_rank;

typedef struct gpu_experts {
    const bench_link *link; /* NULL: all ranks run */
    weft_cuda_device device;
    emulated emulated; /* where there is a link */
    report report;
    weft_error_text error;
    weft_contest_shape shape;
    weft_dtype dtype;
    weft_moe_wire wire;
    bool reduced;
    ladder_rung rung;
    ladder ladder;
    weft_cuda_moe_room room;
    int world;
    int32_t *owner, *local;
    int64_t row_bytes, wire_bytes;
    CUdeviceptr symmetric, tables, local_table, link_runs;
    size_t stride;
    gpu_rank ranks[RANKS_MOST];
    CUstream side; /* of the link */
    CUevent begin, end, fork;
    double copy_bytes_per_us;
    int graphs; /* replays that count */
} gpu_experts;

static inline void *at(CUdeviceptr pointer)
{
    return (void *)(uintptr_t)pointer;
}

/* What measures them on a device that is open: events, the link's stream, the rate of a copy. 0, or 1 with a
 * line on standard error, as all of these. */
int moe_ranks_open(gpu_experts *b);

/* `movers`: of every rank, 0: none. */
int moe_ranks_make(gpu_experts *b, uint64_t seed, int movers);
void moe_ranks_free(gpu_experts *b);
int moe_ranks_upload(gpu_experts *b, CUdeviceptr *to, const void *from, size_t bytes);
int moe_ranks_read(gpu_experts *b, void *to, const void *from, size_t bytes);

/* A kernel on the rank's stream. `lists`: of a round whose rows are moved for themselves. */
int moe_ranks_put(gpu_experts *b, gpu_rank *r, weft_device_moe_kernel kernel, bool lists);

/* The link's kernel beside a phase of rank 0, or beside MOVE: what its peers post then, `bytes` over the link
 * later; of MOVE one peer after another. */
int moe_ranks_link(gpu_experts *b, int phase, double bytes);

/* What crosses rank 0's link in each half, in the direction that has more, and what its memory moves. */
typedef struct moe_traffic {
    double dispatch, combine, dispatch_memory, combine_memory;
    double entries; /* rows of rank 0's experts */
} moe_traffic;
moe_traffic moe_ranks_traffic(const gpu_experts *b);

#endif
