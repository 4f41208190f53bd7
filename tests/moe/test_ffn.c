/* The feed-forward expert against loops in double: every type, rungs and modes, one to four ranks; weights of
 * the layer's type, and stored as int8 with scales. */
#include <math.h>

#include "core/dtype.h"
#include "support/check.h"
#include "support/ranks.h"

enum { EXPERTS = 5, TOPK = 2, HIDDEN = 52, INTER = 37, TOKENS = 21 };

typedef struct ffn_case {
    weft_dtype dtype;
    weft_moe_mode mode;
    weft_moe_impl impl;
    weft_dtype stored; /* of the weights; not the layer's: with scales */
} ffn_case;

/* Element (i, j) of matrix `which` of an expert: the same on every rank. */
static double weight_at(int expert, int which, int64_t index)
{
    uint64_t state = ((uint64_t)expert * 3 + (uint64_t)which) * 1000003 + (uint64_t)index;

    return ((double)(check_random(&state) % 65) - 32) / 128;
}

/* Of column j: powers of two, so that weights divided by them are whole numbers. */
static double scale_at(int64_t j)
{
    return j % 3 ? 0x1p-7 : 0x1p-8;
}

static void *weights(const ffn_case *c, int expert, int which)
{
    int64_t cols = which == 2 ? HIDDEN : INTER;
    void *matrix = malloc((size_t)HIDDEN * INTER * 4);

    for (int64_t i = 0; i < HIDDEN * INTER; i++)
        weft_element_set(c->stored, matrix, (size_t)i,
                         weight_at(expert, which, i) / (c->stored == c->dtype ? 1 : scale_at(i % cols)));
    return matrix;
}

static weft_status create(weft_moe *moe, const ffn_case *c, int64_t inter, void *const *matrix[3],
                          weft_moe_ffn **ffn)
{
    const float *list[EXPERTS];
    float scale[HIDDEN > INTER ? HIDDEN : INTER];
    weft_moe_weights weights = {.size = sizeof(weights),
                                .inter = inter,
                                .dtype = c->stored,
                                .gate = (const void *const *)matrix[0],
                                .up = (const void *const *)matrix[1],
                                .down = (const void *const *)matrix[2],
                                .gate_scale = list,
                                .up_scale = list,
                                .down_scale = list};

    if (c->stored == c->dtype)
        return weft_moe_ffn_create(moe, inter, weights.gate, weights.up, weights.down, ffn);
    for (size_t j = 0; j < sizeof(scale) / sizeof(*scale); j++)
        scale[j] = (float)scale_at((int64_t)j);
    for (int e = 0; e < EXPERTS; e++)
        list[e] = scale;
    weights.dtype = WEFT_I64;
    CHECK_INT(weft_moe_ffn_create_stored(moe, &weights, ffn), WEFT_ERR_ARGUMENT);
    weights.dtype = c->stored;
    return weft_moe_ffn_create_stored(moe, &weights, ffn);
}

static void expected(const double *x, int expert, double *y)
{
    double mid[INTER];

    for (int i = 0; i < INTER; i++) {
        double gate = 0, up = 0;

        for (int h = 0; h < HIDDEN; h++) {
            gate += x[h] * weight_at(expert, 0, (int64_t)h * INTER + i);
            up += x[h] * weight_at(expert, 1, (int64_t)h * INTER + i);
        }
        mid[i] = gate / (1 + exp(-gate)) * up;
    }
    for (int h = 0; h < HIDDEN; h++) {
        y[h] = 0;
        for (int i = 0; i < INTER; i++)
            y[h] += mid[i] * weight_at(expert, 2, (int64_t)i * HIDDEN + h);
    }
}

static void check_tokens(weft_dtype dtype, int64_t count, const void *x, const int32_t *expert,
                         const float *weight, const void *y)
{
    double bound = dtype == WEFT_F32 ? 1e-5 : dtype == WEFT_F16 ? 4e-3 : 3e-2;
    long wrong = 0;

    for (int64_t t = 0; t < count; t++) {
        double in[HIDDEN], one[HIDDEN], sum[HIDDEN] = {0}, size = 0.05;

        for (int h = 0; h < HIDDEN; h++)
            in[h] = weft_element_get(dtype, x, (size_t)(t * HIDDEN + h));
        for (int k = 0; k < TOPK; k++) {
            expected(in, expert[t * TOPK + k], one);
            for (int h = 0; h < HIDDEN; h++) {
                sum[h] += (double)weight[t * TOPK + k] * one[h];
                size = fabs(one[h]) > size ? fabs(one[h]) : size;
            }
        }
        for (int h = 0; h < HIDDEN; h++)
            wrong += !(fabs(weft_element_get(dtype, y, (size_t)(t * HIDDEN + h)) - sum[h]) <= bound * size);
    }
    CHECK_INT(wrong, 0);
}

/* It reads rows of its own layer's length. */
static void refuse_elsewhere(weft_group *group, const weft_moe_config *config, const weft_moe_expert *ffn)
{
    weft_moe_config other = *config;
    weft_moe *moe = NULL;

    other.hidden--;
    CHECK_INT(weft_moe_create(group, &other, &moe), WEFT_OK);
    CHECK_INT(weft_moe_forward(moe, 0, &(weft_moe_input){.size = sizeof(weft_moe_input)}, ffn, NULL),
              WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(group), "for a layer of other experts, sizes or types");
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
}

static void run(weft_group *group, void *argument)
{
    const ffn_case *c = argument;
    uint64_t state = 50 + (uint64_t)weft_rank(group);
    void *gate[EXPERTS], *up[EXPERTS], *down[EXPERTS];
    int32_t expert[TOKENS * TOPK];
    float weight[TOKENS * TOPK], x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    const int32_t *local;
    weft_moe_config config;
    weft_moe_expert callbacks = {.size = sizeof(callbacks)};
    weft_moe_ffn *ffn = NULL;
    weft_moe *moe;
    int here;

    weft_moe_config_init(&config);
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.hidden = HIDDEN;
    config.tokens = TOKENS;
    config.dtype = c->dtype;
    config.mode = c->mode;
    config.impl = c->impl;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    here = weft_moe_local_experts(moe, &local);
    for (int e = 0; e < here; e++) {
        gate[e] = weights(c, local[e], 0);
        up[e] = weights(c, local[e], 1);
        down[e] = weights(c, local[e], 2);
    }
    CHECK_INT(create(moe, c, 0, (void *const *[]){gate, up, down}, &ffn), WEFT_ERR_ARGUMENT);
    CHECK_INT(create(moe, c, INTER, (void *const *[]){gate, up, down}, &ffn), WEFT_OK);
    for (int e = 0; e < here; e++) {
        free(gate[e]);
        free(up[e]);
        free(down[e]);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < TOKENS; i++) {
            expert[i * TOPK] = (int32_t)(check_random(&state) % EXPERTS);
            expert[i * TOPK + 1] =
                (expert[i * TOPK] + 1 + (int32_t)(check_random(&state) % (EXPERTS - 1))) % EXPERTS;
            weight[i * TOPK] = 0.75f;
            weight[i * TOPK + 1] = 0.25f;
        }
        for (int i = 0; i < TOKENS * HIDDEN; i++)
            weft_element_set(c->dtype, x, (size_t)i, ((double)(check_random(&state) % 33) - 16) / 8);
        CHECK_INT(weft_moe_ffn_expert(ffn, &callbacks), WEFT_OK);
        if (round == 2)
            callbacks.block_rows = 5; /* start before all rows are there */
        memset(y, 0xff, sizeof(y));
        CHECK_INT(weft_moe_forward(moe, 0,
                                   &(weft_moe_input){sizeof(weft_moe_input), TOKENS, x, expert, weight},
                                   &callbacks, y),
                  WEFT_OK);
        check_tokens(c->dtype, TOKENS, x, expert, weight, y);
    }
    refuse_elsewhere(group, &config, &callbacks);
    weft_moe_ffn_free(ffn);
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
}

int main(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16};

    for (int d = 0; d < 3; d++)
        for (int variant = 0; variant < 5; variant++)
            for (int ranks = 1; ranks <= 4; ranks += 1 + variant % 2) {
                ffn_case c = {types[d], variant == 4 ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT,
                              (weft_moe_impl)(variant % 4), types[d]};

                ranks_run(ranks, run, &c);
            }
    ranks_run(2, run, &(ffn_case){WEFT_BF16, WEFT_MOE_EXACT, WEFT_MOE_FUSED, WEFT_I8});
    ranks_run(2, run, &(ffn_case){WEFT_F16, WEFT_MOE_EXACT, WEFT_MOE_FUSED, WEFT_I8});
    ranks_run(1, run, &(ffn_case){WEFT_F32, WEFT_MOE_REDUCED, WEFT_MOE_FUSED, WEFT_I8});
    return check_report("test_moe_ffn");
}
