/*
 * The operands of a tensor-parallel product, filled from a function of the position, and the check of
 * results.
 *
 * Every element of the global A, B, C and bias is a function of (seed, set, operand, row, column), so a rank
 * can compute any of them without asking. Several sets of inputs exist and take turns: together they are
 * larger than the caches.
 *
 * How a result is checked. Small shapes (`elements`): every element against a float64 product, under a bound
 * for that type, K and W. Large shapes (`residual`): the first result of a set is verified against float64 in
 * SAMPLES places per rank and, row by row, by D·t = alpha A(B t) + … for a random vector t of ±1; then it is
 * the reference, and every element of every later result is compared with it under twice the bound. In both
 * cases outputs are poisoned with NaN before each run.
 */
#ifndef WEFT_TOOLS_BENCH_TP_DATA_H
#define WEFT_TOOLS_BENCH_TP_DATA_H

#include "bench/bench.h"

#include "core/part.h"
#include "plan/plan.h"

/* What of a global matrix a rank has. */
typedef struct tp_block {
    int64_t row0, rows, col0, cols;
} tp_block;

typedef struct tp_layout {
    tp_block a, b, d; /* C is like D, bias like the columns of D */
} tp_layout;

/* The blocks of `rank` out of `world`. */
tp_layout tp_layout_of(const weft_problem *problem, int world, int rank);

enum { TP_SAMPLES = 256, TP_MOST_SETS = 8 };

typedef enum tp_operand { TP_A, TP_B, TP_C, TP_BIAS } tp_operand;

typedef struct tp_set {
    void *a, *b, *c, *bias;        /* symmetric, as the problem stores them */
    void *packed;                  /* B as weft_pack writes it, when the problem takes it so; else NULL */
    int64_t sample_at[TP_SAMPLES]; /* positions in D of the rank, batch by batch, row by row */
    double sample[TP_SAMPLES], sample_bound[TP_SAMPLES];
    double *reference; /* elements: float64; else the first result, NULL before it */
    double *residual;  /* per row of D: alpha A(B t) + beta C t + bias t; NULL when elements are checked */
} tp_set;

typedef struct tp_data {
    bench_context *context;
    weft_problem problem;
    uint64_t seed;
    tp_layout layout;
    int sets;
    unsigned turn; /* of the contenders; see tp_set_of */
    bool by_element;
    void *d; /* symmetric */
    size_t d_bytes;
    double sum_bound; /* from summing, for the samples' largest sum of |a b| and a quarter more */
    double largest;   /* |D| among the samples */
    double worst;     /* largest error found so far on this rank */
    int64_t wrong;    /* elements outside their bound */
    tp_set set[TP_MOST_SETS];
} tp_data;

/* Whether the memory for a measurement is there: 0, or 1 after a line on standard error. `peer`: beside
 * OpenBLAS and MPI. Asked before anything is filled, which takes as long as it is large. */
int tp_data_fits(bench_context *context, const weft_problem *problem, bool peer);

/* Collective: allocates and fills. 0, or the exit status after a line on standard error. */
int tp_data_open(tp_data *data, bench_context *context, const weft_problem *problem);
void tp_data_close(tp_data *data);

/* One element of a global operand of a set, rounded to its type. */
double tp_element(const tp_data *data, int set, tp_operand operand, int64_t batch, int64_t row, int64_t col);

/* Fills `block` of an operand, row-major or transposed, as `dtype`. */
void tp_fill(const tp_data *data, int set, tp_operand operand, tp_block block, bool transposed,
             weft_dtype dtype, void *memory);

void tp_poison(tp_data *data);

/* Compares D of the rank, as it stands in `d` with elements of `dtype`, with what it should be for this set.
 */
void tp_check(tp_data *data, int set, const void *d, weft_dtype dtype);

/* The bound of an element as large as the largest sample. */
double tp_bound(const tp_data *data);

#endif
