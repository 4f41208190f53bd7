/* The public contest's contract: its shapes and its data. Shared by the bench and the tests. */
#ifndef WEFT_TOOLS_BENCH_STANDIN_CONTEST_H
#define WEFT_TOOLS_BENCH_STANDIN_CONTEST_H

#include <weft/weft.h>

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

#endif
