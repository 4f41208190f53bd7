/* The four tensor-parallel products: what the bench, its local product and its outside peer share. */
#ifndef WEFT_TOOLS_BENCH_TP_BENCH_TP_H
#define WEFT_TOOLS_BENCH_TP_BENCH_TP_H

#include "bench/tp/data.h"

enum { TP_MOST_FUSED = 5 };

/* A plan of the problem itself, with one schedule. */
typedef struct tp_fused {
    tp_data *data;
    weft_plan *plan;
    weft_schedule schedule;
} tp_fused;

/* The local product alone: a plan on a group of one. */
typedef struct tp_local {
    tp_data *data;
    weft_group *solo;
    weft_plan *plan;
    void *full[TP_MOST_SETS]; /* the operand that the op gathers, resident; NULL when it gathers none */
    void *d;
    size_t d_bytes;
    int64_t d_cols; /* gemm_as: all of D, of which the product fills this rank's columns */
} tp_local;

/* The collective alone. */
typedef struct tp_comm {
    tp_data *data;
    weft_plan *plan;
    void *send, *recv;
} tp_comm;

/* OpenBLAS and MPI in float32, one after the other. */
typedef struct tp_peer {
    tp_data *data;
    bool vector; /* gemv instead of gemm, for one row */
    bool own_operands;
    float *a[TP_MOST_SETS], *b[TP_MOST_SETS];
    float *d, *scratch;
    int *counts, *offsets;
} tp_peer;

/* Each *_open returns 0, or 1 after a line on standard error; *_close takes what is half open. */
int tp_local_open(tp_local *local, tp_data *data);
void tp_local_close(tp_local *local);
int tp_comm_open(tp_comm *comm, tp_data *data);
void tp_comm_close(tp_comm *comm);

/* Whether OpenBLAS and MPI can compute this problem: they have no epilogue and no batch. */
bool tp_peer_can(const bench_context *context, const weft_problem *problem);
int tp_peer_open(tp_peer *peer, tp_data *data, bool vector);
void tp_peer_close(tp_peer *peer);
int tp_peer_prepare(void *peer, int iteration);
int tp_peer_run(void *peer, int iteration);
int tp_peer_check(void *peer, int iteration);

int tp_local_prepare(void *local,
                     int iteration); /* poisons D, as the others do: the same lines are in cache */
int tp_local_run(void *local, int iteration);
int tp_comm_run(void *comm, int iteration);

/* Median microseconds of the problem in PyTorch with gloo, in processes of its own after the others have run;
 * NaN when no Python was named or it cannot do it. Rank 0 runs it; the others wait. Writes its name and
 * version. */
double tp_torch_us(bench_context *context, const weft_problem *problem, char *name, size_t bytes);

/*
 * The operands of the contender whose turn it is. Each takes others than the one before it: where two sets do
 * not fit a cache together, whoever came second would find some of its weights there.
 */
static inline int tp_set_of(const tp_data *data)
{
    return (int)(data->turn % (unsigned)data->sets);
}

static inline void tp_next_turn(tp_data *data)
{
    data->turn++;
}

#endif
