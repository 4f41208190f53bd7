/*
 * A tensor-parallel feed-forward layer, as in Llama: tokens are spread over ranks (sequence parallel), the
 * weights are cut by the hidden dimension.
 *
 *     H = silu(X G) * (X U)    ag_gemm: gathers X while multiplying; the gate is in the epilogue
 *     Y = H W                  gemm_rs: sums over ranks while multiplying; each rank keeps its tokens
 *
 *     weft run -n 2 -- ./mlp [tokens model hidden]
 *
 * Nothing is copied between the two: H stays where the first product wrote it. Some results are checked
 * against a plain computation, and the time of a layer is printed.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <weft/weft.h>

static weft_group *group;

static void check(weft_status status)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "%s\n", weft_error(group));
    exit(1);
}

/* Element (i, j) of a global matrix: every rank can make its part, and any other. */
static float element(int which, int64_t i, int64_t j)
{
    uint64_t z = (uint64_t)(i * 100003 + j) * 0x9e3779b97f4a7c15u + (uint64_t)which;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    return (float)(z >> 40) * 0x1p-24f - 0.5f;
}

static float *matrix(int which, weft_span rows, weft_span cols)
{
    float *values = malloc(sizeof(float) * (size_t)(rows.count * cols.count + 1));

    for (int64_t i = 0; i < rows.count; i++)
        for (int64_t j = 0; j < cols.count; j++)
            values[i * cols.count + j] = element(which, rows.begin + i, cols.begin + j);
    return values;
}

/* Y of one token and one column, by plain loops. */
static double expected(int64_t token, int64_t col, int64_t model, int64_t hidden)
{
    double y = 0;

    for (int64_t h = 0; h < hidden; h++) {
        double gate = 0, up = 0;

        for (int64_t i = 0; i < model; i++) {
            gate += (double)element(0, token, i) * element(1, i, h);
            up += (double)element(0, token, i) * element(2, i, h);
        }
        y += gate / (1 + exp(-gate)) * up * element(3, h, col);
    }
    return y;
}

int main(int argc, char **argv)
{
    int64_t tokens = argc > 3 ? atoll(argv[1]) : 256, model = argc > 3 ? atoll(argv[2]) : 512,
            hidden = argc > 3 ? atoll(argv[3]) : 1408;
    enum { RUNS = 20 };
    struct timespec from, to;
    weft_problem first, second;
    double worst = 0, largest = 1e-30;

    if ((argc != 1 && argc != 4) || tokens < 1 || model < 1 || hidden < 1)
        return fprintf(stderr, "usage: %s [tokens model hidden]\n", argv[0]), 2;
    check(weft_init(&group));
    int rank = weft_rank(group), ranks = weft_size(group);
    weft_span mine = weft_part(tokens, ranks, rank), part = weft_part(hidden, ranks, rank), all = {0, model};

    /* What this rank holds, anywhere in its memory: its tokens, and its part of every weight. */
    float *x = matrix(0, mine, all), *gate = matrix(1, all, part), *up = matrix(2, all, part),
          *down = matrix(3, part, all), *both = malloc(sizeof(float) * 2 * (size_t)(model * part.count + 1)),
          *h = malloc(sizeof(float) * (size_t)(tokens * part.count + 1)),
          *y = malloc(sizeof(float) * (size_t)(mine.count * model + 1));
    check(weft_gate_up(WEFT_F32, 0, model, part.count, gate, 0, up, 0, both, 0));

    weft_problem_init(&first, WEFT_OP_AG_GEMM);
    first.m = tokens, first.n = hidden, first.k = model;
    first.act = WEFT_ACT_SILU_GATED;
    weft_problem_init(&second, WEFT_OP_GEMM_RS);
    second.m = tokens, second.n = model, second.k = hidden;
    for (int run = 0; run <= RUNS; run++) { /* the first makes the plans */
        if (run == 1)
            clock_gettime(CLOCK_MONOTONIC, &from);
        check(
            weft_ag_gemm(group, &first, &(weft_operands){sizeof(weft_operands), .a = x, .b = both, .d = h}));
        check(
            weft_gemm_rs(group, &second, &(weft_operands){sizeof(weft_operands), .a = h, .b = down, .d = y}));
    }
    clock_gettime(CLOCK_MONOTONIC, &to);

    for (int64_t i = 0; i < mine.count; i += mine.count / 2 + 1)
        for (int64_t j = 0; j < model; j += model / 4 + 1) {
            double right = expected(mine.begin + i, j, model, hidden);

            worst = fmax(worst, fabs(right - y[i * model + j]));
            largest = fmax(largest, fabs(right));
        }
    double ms = ((double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) * 1e-6) / RUNS;
    if (rank == 0)
        printf(
            "%lld tokens, model %lld, hidden %lld, %d ranks: %.3f ms a layer, %.1f GFLOP/s a rank, relative "
            "error %.2g\n",
            (long long)tokens, (long long)model, (long long)hidden, ranks, ms,
            6e-6 * (double)(tokens * model * hidden) / ranks / ms, worst / largest);
    check(weft_finalize(group));
    return worst < 1e-4 * largest ? 0 : 1;
}
