/*
 * A mixture-of-experts feed-forward layer: a router picks two of eight experts for every token, the tokens
 * travel to the ranks that have them, the experts work, and the weighted sums come back.
 *
 *     weft run -n 4 -- example_moe_layer
 *
 * Without a launcher it is a group of one. Every rank checks its first token against plain loops.
 */
#include <weft/weft.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXPERTS = 8, TOPK = 2, HIDDEN = 256, INTER = 512, TOKENS = 64 };
enum { GATE = 1, UP, DOWN, ROUTER, TOKEN };

static void check(weft_status status, weft_group *group)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "%s\n", weft_error(group));
    exit(1);
}

/* Numbers that depend on their name alone, so that any rank can make them. */
static float *numbers(int what, int which, int count)
{
    uint64_t state = (uint64_t)(what * 1000 + which);
    float *values = malloc((size_t)count * sizeof(float));

    for (int i = 0; values && i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = ((float)(state >> 40) / (float)(1 << 24) - 0.5f) * (what == TOKEN ? 1 : 0.2f);
    }
    return values;
}

/* The two experts with the largest scores, and the softmax of those scores. */
static void pick(const float *score, int32_t *expert, float *weight)
{
    expert[0] = expert[1] = -1;
    for (int32_t e = 0; e < EXPERTS; e++)
        if (expert[0] < 0 || score[e] > score[expert[0]])
            expert[1] = expert[0], expert[0] = e;
        else if (expert[1] < 0 || score[e] > score[expert[1]])
            expert[1] = e;
    weight[1] = 1 / (1 + expf(score[expert[0]] - score[expert[1]]));
    weight[0] = 1 - weight[1];
}

/* The largest error of one token, by plain loops. */
static double error_of(const float *x, const int32_t *expert, const float *weight, const float *y)
{
    double right[HIDDEN] = {0}, worst = 0;

    for (int k = 0; k < TOPK; k++) {
        float *gate = numbers(GATE, expert[k], HIDDEN * INTER), *up = numbers(UP, expert[k], HIDDEN * INTER),
              *down = numbers(DOWN, expert[k], INTER * HIDDEN);

        for (int i = 0; i < INTER; i++) {
            double a = 0, b = 0;

            for (int h = 0; h < HIDDEN; h++)
                a += (double)x[h] * gate[h * INTER + i], b += (double)x[h] * up[h * INTER + i];
            for (int h = 0; h < HIDDEN; h++)
                right[h] += a / (1 + exp(-a)) * b * weight[k] * down[i * HIDDEN + h];
        }
        free(gate), free(up), free(down);
    }
    for (int h = 0; h < HIDDEN; h++)
        if (fabs(y[h] - right[h]) > worst)
            worst = fabs(y[h] - right[h]);
    return worst;
}

int main(void)
{
    static int32_t expert[TOKENS * TOPK];
    static float weight[TOKENS * TOPK], score[TOKENS * EXPERTS], y[TOKENS * HIDDEN];
    float *gate[EXPERTS], *up[EXPERTS], *down[EXPERTS];
    weft_moe_config config;
    weft_moe_expert callbacks = {.size = sizeof(callbacks)};
    weft_moe_stats stats = {.size = sizeof(stats)};
    weft_gemm_args scores;
    weft_moe_ffn *ffn;
    weft_group *group;
    weft_moe *moe;
    const int32_t *id;

    check(weft_init(&group), NULL);

    /* The layer, and the experts of this rank, whose weights are packed. */
    weft_moe_config_init(&config);
    config.experts = EXPERTS, config.topk = TOPK, config.hidden = HIDDEN;
    config.tokens = TOKENS, config.dtype = WEFT_F32;
    check(weft_moe_create(group, &config, &moe), group);
    int here = weft_moe_local_experts(moe, &id);
    for (int e = 0; e < here; e++) {
        gate[e] = numbers(GATE, id[e], HIDDEN * INTER);
        up[e] = numbers(UP, id[e], HIDDEN * INTER);
        down[e] = numbers(DOWN, id[e], INTER * HIDDEN);
    }
    check(weft_moe_ffn_create(moe, INTER, (const void *const *)gate, (const void *const *)up,
                              (const void *const *)down, &ffn),
          group);
    for (int e = 0; e < here; e++)
        free(gate[e]), free(up[e]), free(down[e]);
    check(weft_moe_ffn_expert(ffn, &callbacks), group);

    /* The router is a product. */
    float *x = numbers(TOKEN, weft_rank(group), TOKENS * HIDDEN),
          *router = numbers(ROUTER, 0, HIDDEN * EXPERTS);
    weft_gemm_args_init(&scores, WEFT_F32, TOKENS, EXPERTS, HIDDEN);
    scores.a = x, scores.b = router, scores.d = score;
    check(weft_gemm(&scores), NULL);
    for (int t = 0; t < TOKENS; t++)
        pick(score + t * EXPERTS, expert + t * TOPK, weight + t * TOPK);

    check(weft_moe_forward(moe, 0, &(weft_moe_input){sizeof(weft_moe_input), TOKENS, x, expert, weight},
                           &callbacks, y),
          group);
    check(weft_moe_get_stats(moe, 0, &stats), group);
    double worst = error_of(x, expert, weight, y);
    printf("rank %d of %d: sent %lld rows, experts here worked on %lld, largest error %.1e\n",
           weft_rank(group), weft_size(group), (long long)stats.rows_sent, (long long)stats.entries, worst);

    weft_moe_ffn_free(ffn);
    weft_moe_free(moe);
    free(x), free(router);
    check(weft_finalize(group), NULL);
    return worst < 1e-4 ? 0 : 1;
}
