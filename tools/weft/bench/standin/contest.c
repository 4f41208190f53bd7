#include "bench/standin/contest.h"

#include <math.h>
#include <stdbool.h>

#include "core/dtype.h"

const weft_contest_shape weft_contest_tests[WEFT_CONTEST_TESTS] = {
    {8, 2, 6144, 4},    {64, 6, 2048, 4},    {64, 6, 2048, 8},   {128, 4, 2880, 16},  {128, 4, 2880, 32},
    {128, 8, 4096, 64}, {128, 8, 4096, 128}, {256, 8, 7168, 64}, {256, 8, 7168, 128},
};

const weft_contest_shape weft_contest_benches[WEFT_CONTEST_BENCHES] = {
    {8, 2, 6144, 16}, {64, 6, 2048, 32}, {128, 4, 2880, 128}, {128, 8, 4096, 256}, {256, 8, 7168, 256},
};

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double uniform(uint64_t *state)
{
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

static bool contains(const int32_t *list, int count, int32_t value)
{
    for (int i = 0; i < count; i++)
        if (list[i] == value)
            return true;
    return false;
}

/* The first `topk` places of a permutation: draw until the expert is new. For most experts, take the rest in
 * order, so that topk = experts ends too. */
static void choose(uint64_t *state, int experts, int topk, int32_t *expert)
{
    for (int k = 0; k < topk; k++) {
        int32_t one = (int32_t)(next_random(state) % (uint64_t)experts);

        while (contains(expert, k, one))
            one =
                topk * 2 > experts ? (one + 1) % experts : (int32_t)(next_random(state) % (uint64_t)experts);
        expert[k] = one;
    }
}

uint64_t weft_contest_draw(const weft_contest_shape *shape, uint64_t seed, int rank, int64_t tokens,
                           double skew, weft_contest_data *data)
{
    uint64_t state = (seed + (uint64_t)rank) * 0xd1342543de82ef95u + 1;
    int64_t most = shape->tokens > 2 ? shape->tokens - 1 : 1;

    data->tokens = 1 + (int64_t)(next_random(&state) % (uint64_t)most);
    if (tokens >= 0)
        data->tokens = tokens;
    for (int64_t t = 0; t < data->tokens; t++) {
        int32_t *expert = data->expert + t * shape->topk;
        bool skewed = uniform(&state) < skew;

        choose(&state, shape->experts, shape->topk, expert);
        for (int k = 0; skewed && k < shape->topk; k++)
            expert[k] = k;
    }
    for (int64_t i = 0; i < data->tokens * shape->topk; i++)
        data->weight[i] = (float)(next_random(&state) >> 40) * 0x1p-24f;
    return state;
}

void weft_contest_fill(const weft_contest_shape *shape, weft_dtype dtype, uint64_t seed, int rank,
                       int64_t tokens, double skew, weft_contest_data *data)
{
    uint64_t state = weft_contest_draw(shape, seed, rank, tokens, skew, data);

    for (int64_t i = 0; i < data->tokens * shape->hidden; i += 2) {
        double radius = sqrt(-2 * log(1 - uniform(&state))), angle = 6.283185307179586 * uniform(&state);

        weft_element_set(dtype, data->x, (size_t)i, radius * cos(angle));
        if (i + 1 < data->tokens * shape->hidden)
            weft_element_set(dtype, data->x, (size_t)i + 1, radius * sin(angle));
    }
}
