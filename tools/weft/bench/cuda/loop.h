/*
 * One rank of a plan in the loop: rank 0 runs with the whole GPU, as the library would run it; its peers are
 * their memory, and a kernel on another stream that sends what they would when the link would have brought
 * it (link.h). Calls say why they fail and give 1.
 */
#ifndef WEFT_TOOLS_BENCH_CUDA_LOOP_H
#define WEFT_TOOLS_BENCH_CUDA_LOOP_H

#include "bench/cuda/emulated.h"
#include "bench/cuda/link.h"
#include "bench/cuda/graph.h"
#include "plan/plan.h"
#include "choose/cuda/choose.h"
#include "run/cuda/executor.h"
#include "run/cuda/heap.h"

enum { LOOP_RANKS_MOST = 1 + WEFT_CUDA_LINK_PEERS };

typedef struct loop_gpu {
    weft_cuda_device device;
    emulated emulated; /* what stands for peers, from when it is first needed */
    weft_error_text error;
    CUstream stream, side; /* of the rank, and of what stands for its peers */
    CUevent begin, end;
    double bytes_per_ns, latency_ns; /* of the link */
} loop_gpu;

/* One plan and its ranks. All zeros: there is none. */
typedef struct loop {
    weft_plan_part parts[LOOP_RANKS_MOST];
    weft_cuda_heap heap;
    weft_cuda_place *places; /* [operand * world + rank] */
    uint64_t *signals[LOOP_RANKS_MOST];
    weft_cuda_control *controls[LOOP_RANKS_MOST];
    weft_cuda_link peers;
    unsigned peers_grid; /* 0: nobody stands for peers */
    CUdeviceptr tables;
    gpu_graph runs;
} loop;

/* The first GPU, which the calling thread uses from now on. */
weft_status loop_gpu_open(loop_gpu *gpu);
int loop_gpu_begin(loop_gpu *gpu); /* its streams and events */

int loop_put(loop_gpu *gpu, void *to, const void *from, size_t bytes);
int loop_take(loop_gpu *gpu, void *to, const void *from, size_t bytes); /* after what the rank's stream has */

weft_cuda_basis loop_basis(const loop_gpu *gpu, int world);

/* Every rank's part of what the library makes of a problem. */
int loop_make_parts(loop_gpu *gpu, loop *l, const weft_problem *problem, int world);

/* Operands of so many bytes, signals and a control block, at the same place of every rank's slot. Operands of
 * no bytes lie elsewhere: their places have no address yet. Of extra bytes rank r has extra[r], of signals so
 * many beside the plan's. */
int loop_make_memory(loop_gpu *gpu, loop *l, const size_t *operand_bytes, size_t extra_bytes,
                     uint32_t signals, char **extra);

/* What the peers' kernel needs besides, with peers_grid CTAs: its counters, and `count` tables, which lie
 * at[i] then. */
int loop_load_peers(loop_gpu *gpu, loop *l, const void *const *tables, const size_t *bytes, int count,
                    void **at);

/* Element `index`, counted over all slices, of what a peer sends: its own, or of what all add up to. */
typedef double (*loop_value)(const void *context, int peer, bool result, int64_t index);

/* What a peer sends in a hop as whole lines, without the run's number, as it lies in an inbox: its part of
 * this rank's slice, or its own slice, added up. */
int loop_fill_lines(loop_gpu *gpu, const weft_cuda_packets *p, weft_dtype dtype, int peer, bool results,
                    loop_value value, const void *context, char *inbox);

/* How many runs the peers answer from now on. All CTAs that stand for peers are there before the rank's first
 * kernel, which could take their place. */
int loop_start_peers(loop_gpu *gpu, loop *l, const weft_cuda_executor *executor, uint32_t runs);

/* Until the rank's runs and its peers have ended: how they did. */
int loop_end(loop_gpu *gpu, const weft_cuda_executor *executor);

/* A graph of so many runs, by executors of the plan in turn, the first of them at the end. */
int loop_capture(loop_gpu *gpu, loop *l, const weft_cuda_executor *executors, int count, int runs);

int loop_replay(loop_gpu *gpu, loop *l);

/* µs of a run of that graph, `graphs` times; the first launches are not counted. The plan's executors are
 * all of the kind of this one. */
int loop_measure(loop_gpu *gpu, loop *l, const weft_cuda_executor *executor, int runs, int graphs,
                 double *samples);

/* All but the executors, which go first. */
void loop_free(const loop_gpu *gpu, loop *l);

#endif
