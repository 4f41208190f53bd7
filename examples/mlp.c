/*
 * A tensor-parallel feed-forward layer, as in Megatron: tokens are spread over ranks (sequence parallel), the
 * weights are cut by the hidden dimension.
 *
 *     H = SiLU(X W1)    ag_gemm: gathers X while multiplying; the activation is in the epilogue
 *     Y = H W2          gemm_rs: sums over ranks while multiplying; each rank keeps its tokens
 *
 *     weft run -n 2 -- ./mlp [tokens model hidden]
 *
 * Nothing is copied between the two: H stays where the first product wrote it. The result is checked against
 * a plain computation of a few tokens, and the time of a layer is printed.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <weft/weft.h>

typedef struct layer {
    weft_group *group;
    int64_t tokens, model, hidden; /* of the whole layer */
    int64_t my_tokens, my_hidden;  /* on this rank */
    int64_t token0, hidden0;       /* where they begin */
    weft_plan *up, *down;
    uint16_t *x, *w1, *h, *w2, *y; /* bfloat16 */
} layer;

static void die(weft_group *group)
{
    fprintf(stderr, "%s\n", weft_error(group));
    exit(1);
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Element (i, j) of a global matrix: every rank can make its part, and any other. */
static uint16_t element(int which, int64_t i, int64_t j)
{
    uint64_t z = (uint64_t)(i * 100003 + j) * 0x9e3779b97f4a7c15u + (uint64_t)which;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    return to_bf16((float)(z >> 40) * 0x1p-24f - 0.5f);
}

/* part(x, W, r): the first x mod W ranks have one more. */
static void part(int64_t extent, int ranks, int rank, int64_t *begin, int64_t *count)
{
    int64_t each = extent / ranks, longer = extent % ranks;

    *count = each + (rank < longer);
    *begin = rank * each + (rank < longer ? rank : longer);
}

static uint16_t *symmetric(weft_group *group, int64_t elements)
{
    void *memory;

    if (weft_alloc(group, (size_t)elements * sizeof(uint16_t), 0, &memory) != WEFT_OK)
        die(group);
    return memory;
}

static weft_plan *plan_of(layer *l, weft_op op, int64_t n, int64_t k, weft_act act)
{
    weft_problem problem;
    weft_plan *plan;

    weft_problem_init(&problem, op);
    problem.m = l->tokens;
    problem.n = n;
    problem.k = k;
    problem.dtype = problem.d_dtype = WEFT_BF16;
    problem.act = act;
    if (weft_plan_create(l->group, &problem, &plan) != WEFT_OK)
        die(l->group);
    return plan;
}

static void layer_init(layer *l)
{
    int ranks = weft_size(l->group), rank = weft_rank(l->group);
    int64_t longest_tokens = (l->tokens + ranks - 1) / ranks,
            longest_hidden = (l->hidden + ranks - 1) / ranks;

    part(l->tokens, ranks, rank, &l->token0, &l->my_tokens);
    part(l->hidden, ranks, rank, &l->hidden0, &l->my_hidden);
    l->x = symmetric(l->group, longest_tokens * l->model);
    l->y = symmetric(l->group, longest_tokens * l->model);
    l->w1 = symmetric(l->group, l->model * longest_hidden);
    l->w2 = symmetric(l->group, longest_hidden * l->model);
    l->h = symmetric(l->group, l->tokens * longest_hidden);
    for (int64_t i = 0; i < l->my_tokens; i++)
        for (int64_t j = 0; j < l->model; j++)
            l->x[i * l->model + j] = element(0, l->token0 + i, j);
    for (int64_t i = 0; i < l->model; i++)
        for (int64_t j = 0; j < l->my_hidden; j++)
            l->w1[i * l->my_hidden + j] = element(1, i, l->hidden0 + j);
    for (int64_t i = 0; i < l->my_hidden; i++)
        for (int64_t j = 0; j < l->model; j++)
            l->w2[i * l->model + j] = element(2, l->hidden0 + i, j);
    l->up = plan_of(l, WEFT_OP_AG_GEMM, l->hidden, l->model, WEFT_ACT_SILU);
    l->down = plan_of(l, WEFT_OP_GEMM_RS, l->model, l->hidden, WEFT_ACT_NONE);
}

static void layer_forward(layer *l)
{
    weft_operands up = {.size = sizeof up, .a = l->x, .b = l->w1, .d = l->h};
    weft_operands down = {.size = sizeof down, .a = l->h, .b = l->w2, .d = l->y};

    if (weft_run(l->up, &up) != WEFT_OK || weft_run(l->down, &down) != WEFT_OK)
        die(l->group);
}

/* The largest difference of a few outputs from the plain computation, relative to the largest of them. */
static double layer_error(const layer *l)
{
    double worst = 0, largest = 1e-30;

    for (int64_t i = 0; i < l->my_tokens; i += l->my_tokens / 2 + 1) {
        float *h = malloc((size_t)l->hidden * sizeof *h);

        for (int64_t j = 0; j < l->hidden; j++) {
            double sum = 0;

            for (int64_t p = 0; p < l->model; p++)
                sum += (double)from_bf16(element(0, l->token0 + i, p)) * from_bf16(element(1, p, j));
            h[j] = from_bf16(to_bf16((float)(sum / (1 + exp(-sum)))));
        }
        for (int64_t j = 0; j < l->model; j += 17) {
            double sum = 0;

            for (int64_t p = 0; p < l->hidden; p++)
                sum += (double)h[p] * from_bf16(element(2, p, j));
            worst = fmax(worst, fabs(sum - from_bf16(l->y[i * l->model + j])));
            largest = fmax(largest, fabs(sum));
        }
        free(h);
    }
    return worst / largest;
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    layer l = {.tokens = argc > 3 ? atoll(argv[1]) : 256,
               .model = argc > 3 ? atoll(argv[2]) : 512,
               .hidden = argc > 3 ? atoll(argv[3]) : 1408};
    const int runs = 20;
    double start, error;

    if ((argc != 1 && argc != 4) || l.tokens < 1 || l.model < 1 || l.hidden < 1) {
        fprintf(stderr, "usage: %s [tokens model hidden]\n", argv[0]);
        return 2;
    }
    if (weft_init(&l.group) != WEFT_OK)
        die(NULL);
    layer_init(&l);
    layer_forward(&l);
    start = seconds();
    for (int i = 0; i < runs; i++)
        layer_forward(&l);
    start = (seconds() - start) / runs;
    error = layer_error(&l);
    if (weft_rank(l.group) == 0)
        printf(
            "%lld tokens, model %lld, hidden %lld, %d ranks: %.3f ms a layer, %.1f GFLOP/s a rank (%s, %s), "
            "relative error %.2g\n",
            (long long)l.tokens, (long long)l.model, (long long)l.hidden, weft_size(l.group), start * 1e3,
            4e-9 * (double)(l.tokens * l.model * l.hidden) / weft_size(l.group) / start,
            weft_plan_problem(l.up)->schedule == WEFT_SCHEDULE_UNFUSED ? "unfused" : "fused",
            weft_plan_problem(l.down)->schedule == WEFT_SCHEDULE_UNFUSED ? "unfused" : "fused", error);
    weft_plan_destroy(l.up);
    weft_plan_destroy(l.down);
    weft_barrier(l.group);
    weft_finalize(l.group);
    return error < 0.02 ? 0 : 1;
}
