/*
 * The public contest's contract: its shapes, its data, and its stand-in expert. Shared by tests and the
 * bench.
 *
 * The contest's expert multiplies by 1 + the rank that owns it, which does not notice a wrong expert inside a
 * rank; `by_expert` multiplies by 1 + the expert's id instead. Either is exact before rounding to the dtype.
 */
#ifndef WEFT_MOE_CONTEST_H
#define WEFT_MOE_CONTEST_H

#include <stdbool.h>

#include "moe/moe.h"

typedef struct weft_contest_shape {
    int experts, topk;
    int64_t hidden, tokens;
} weft_contest_shape;

enum { WEFT_CONTEST_TESTS = 9, WEFT_CONTEST_BENCHES = 5 };

extern const weft_contest_shape weft_contest_tests[WEFT_CONTEST_TESTS];
extern const weft_contest_shape weft_contest_benches[WEFT_CONTEST_BENCHES];

/* One rank's tokens. The arrays are the caller's, for shape.tokens tokens. */
typedef struct weft_contest_data {
    int64_t tokens;
    int32_t *expert;
    float *weight;
    void *x;
} weft_contest_data;

/*
 * Fills tokens, experts, weights and x, in this order, from a generator seeded seed + rank: tokens uniform in
 * 1 .. shape.tokens - 1 (or `tokens` when that is >= 0), the first topk of a permutation of the experts,
 * weights uniform in [0, 1), x normal. `skew` in [0, 1] is the part of tokens that all choose experts 0 ..
 * topk - 1.
 */
void weft_contest_fill(const weft_contest_shape *shape, weft_dtype dtype, uint64_t seed, int rank,
                       int64_t tokens, double skew, weft_contest_data *data);

/* The same without x. Returns the generator's state. */
uint64_t weft_contest_draw(const weft_contest_shape *shape, uint64_t seed, int rank, int64_t tokens,
                           double skew, weft_contest_data *data);

/* The context of the stand-in expert. */
typedef struct weft_standin {
    weft_dtype dtype;
    int64_t hidden;
    int topk;
    const int32_t *owner; /* expert -> rank; NULL: by expert */
} weft_standin;

float weft_standin_factor(const weft_standin *standin, int expert);
weft_moe_expert weft_standin_expert(weft_standin *standin);

#endif
