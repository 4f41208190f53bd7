/* `weft bench moe`: what its files share. */
#ifndef WEFT_TOOLS_BENCH_MOE_BENCH_MOE_H
#define WEFT_TOOLS_BENCH_MOE_BENCH_MOE_H

#include "bench/bench.h"

#include "bench/standin/contest.h"
#include "bench/standin/standin.h"
#include "moe/moe.h"

/* Ranks draw 1 to T - 1 tokens, and how evenly they did decides how a round compares with a copy: many draws.
 * Their tokens' values are some sets in turn, which together are more than the caches hold. */
enum { MOE_DRAWS = 48, MOE_SETS_OF_TOKENS = 16 };

/* What is asked for, read from the flags. */
typedef struct bench_moe_choice {
    weft_contest_shape shape[WEFT_CONTEST_BENCHES];
    int shapes;
    bool exact, reduced;
    const char *impl; /* fused, rows, sorted, reference or all */
    bool ladder;      /* not fused alone */
    weft_dtype dtype;
    weft_moe_wire wire;
    int experts;         /* with inter: of a rank */
    int64_t inter, rows; /* 0: rounds; 0: several numbers of rows */
    bool round;          /* with inter: whole rounds, on GPUs */
    int64_t movers;      /* of those; 0: as many as the library takes */
    weft_dtype weights;  /* with inter: dtype, or the fp8 that they are stored as */
} bench_moe_choice;

/* What GPUs can be asked for: 0, or 2 after a line on standard error. */
int bench_moe_choose(const weft_options *options, bench_moe_choice *choice);

/* One shape on one rank, with the data all contenders use. */
typedef struct moe_subject {
    bench_context *context;
    weft_contest_shape shape;
    weft_dtype dtype;
    weft_standin standin;
    weft_moe_expert expert;
    int32_t *owner, *local_index;
    int64_t row_bytes, wire_bytes;
    weft_moe_wire wire;
    void *x[MOE_SETS_OF_TOKENS]; /* symmetric */
    int draws;
    weft_contest_data data[MOE_DRAWS]; /* x is one of those above */
    float *expected[MOE_DRAWS];        /* tokens x hidden, in double rounded once */
    float *magnitude[MOE_DRAWS];       /* sum of the sizes of the terms */
    char *y;
    bool ok;
} moe_subject;

static inline const weft_contest_data *moe_data(const moe_subject *it, int iteration)
{
    return &it->data[iteration % it->draws];
}

/* Poisons y. */
int moe_prepare(moe_subject *it);

/* Compares every element of y with what is expected; clears it->ok when one is outside its bound. */
int moe_check(moe_subject *it, int iteration, bool reduced);

/* Sort by expert, MPI_Alltoallv, experts, MPI_Alltoallv back, inverse and weighted sum. */
typedef struct moe_peer moe_peer;

/* Whether there is an MPI, what it has to count fits the int in which it counts, and tokens travel as they
 * are.
 */
bool moe_peer_can(const moe_subject *it);
moe_peer *moe_peer_open(moe_subject *it); /* NULL without memory */
void moe_peer_close(moe_peer *peer);
bench_contender moe_peer_contender(moe_peer *peer);

/* A plain memcpy of the rows that dispatch and combine of a mode send, by all ranks at once. */
typedef struct moe_copy moe_copy;

moe_copy *moe_copy_open(moe_subject *it, bool reduced);
void moe_copy_close(moe_copy *copy);
bench_contender moe_copy_contender(moe_copy *copy);

/* The grouped GEMM of the feed-forward expert beside one GEMM of the same work. */
int bench_moe_experts(bench_context *context, int64_t experts, int64_t hidden, int64_t inter, int64_t rows,
                      weft_dtype dtype);

#endif
