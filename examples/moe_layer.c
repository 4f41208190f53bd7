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
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXPERTS = 8, TOPK = 2, HIDDEN = 256, INTER = 512, TOKENS = 64 };

static float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / (float)(1 << 24) - 0.5f;
}

/* A matrix that depends on its name alone, so that any rank can make it. */
static float *matrix(uint64_t name, int rows, int cols)
{
    float *values = malloc((size_t)rows * (size_t)cols * sizeof(float));

    for (int i = 0; values && i < rows * cols; i++)
        values[i] = noise(&name) * 0.2f;
    return values;
}

static float *gate_of(int expert)
{
    return matrix(3u * (unsigned)expert + 1, HIDDEN, INTER);
}

static float *up_of(int expert)
{
    return matrix(3u * (unsigned)expert + 2, HIDDEN, INTER);
}

static float *down_of(int expert)
{
    return matrix(3u * (unsigned)expert + 3, INTER, HIDDEN);
}

/* The expert with the largest score, `but` left out. */
static int32_t best(const float *score, int32_t but)
{
    int32_t found = -1;

    for (int32_t e = 0; e < EXPERTS; e++)
        if (e != but && (found < 0 || score[e] > score[found]))
            found = e;
    return found;
}

/* The two experts with the largest scores, and the softmax of those scores. */
static void route(const float *x, const float *router, int32_t *expert, float *weight)
{
    float score[EXPERTS] = {0};

    for (int h = 0; h < HIDDEN; h++)
        for (int e = 0; e < EXPERTS; e++)
            score[e] += x[h] * router[h * EXPERTS + e];
    expert[0] = best(score, -1);
    expert[1] = best(score, expert[0]);
    weight[1] = 1 / (1 + expf(score[expert[0]] - score[expert[1]]));
    weight[0] = 1 - weight[1];
}

/* One token by plain loops. */
static void expected(const float *x, const int32_t *expert, const float *weight, double *y)
{
    for (int h = 0; h < HIDDEN; h++)
        y[h] = 0;
    for (int k = 0; k < TOPK; k++) {
        float *gate = gate_of(expert[k]), *up = up_of(expert[k]), *down = down_of(expert[k]);

        for (int i = 0; i < INTER; i++) {
            double a = 0, b = 0;

            for (int h = 0; h < HIDDEN; h++) {
                a += (double)x[h] * gate[h * INTER + i];
                b += (double)x[h] * up[h * INTER + i];
            }
            a = a / (1 + exp(-a)) * b * weight[k];
            for (int h = 0; h < HIDDEN; h++)
                y[h] += a * down[i * HIDDEN + h];
        }
        free(gate);
        free(up);
        free(down);
    }
}

static double difference(const float *y, const double *right)
{
    double worst = 0;

    for (int h = 0; h < HIDDEN; h++)
        if (!(fabs(y[h] - right[h]) <= worst))
            worst = fabs(y[h] - right[h]);
    return worst;
}

static int fail(weft_group *group, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_error(group));
    return 1;
}

/* Packs the weights of the experts that live on this rank. */
static weft_status make_experts(weft_moe *moe, weft_moe_ffn **ffn)
{
    const int32_t *id;
    int here = weft_moe_local_experts(moe, &id);
    float *gate[EXPERTS], *up[EXPERTS], *down[EXPERTS];
    weft_status status;

    for (int e = 0; e < here; e++) {
        gate[e] = gate_of(id[e]);
        up[e] = up_of(id[e]);
        down[e] = down_of(id[e]);
    }
    status = weft_moe_ffn_create(moe, INTER, (const void *const *)gate, (const void *const *)up,
                                 (const void *const *)down, ffn);
    for (int e = 0; e < here; e++) {
        free(gate[e]);
        free(up[e]);
        free(down[e]);
    }
    return status;
}

int main(void)
{
    static int32_t expert[TOKENS * TOPK];
    static float weight[TOKENS * TOPK], y[TOKENS * HIDDEN];
    static double right[HIDDEN];
    float *router = matrix(1000, HIDDEN, EXPERTS), *x;
    weft_moe_config config;
    weft_moe_expert callbacks = {.size = sizeof(callbacks)};
    weft_moe_stats stats = {.size = sizeof(stats)};
    weft_moe_ffn *ffn;
    weft_group *group;
    weft_moe *moe;
    uint64_t seed;
    double worst;

    if (weft_init(&group) != WEFT_OK)
        return fail(NULL, "weft_init");

    /* The layer, and the experts of this rank. */
    weft_moe_config_init(&config);
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.hidden = HIDDEN;
    config.tokens = TOKENS;
    config.dtype = WEFT_F32;
    if (weft_moe_create(group, &config, &moe) != WEFT_OK)
        return fail(group, "weft_moe_create");
    if (make_experts(moe, &ffn) != WEFT_OK)
        return fail(group, "weft_moe_ffn_create");
    weft_moe_ffn_expert(ffn, &callbacks);

    /* Tokens in symmetric memory are read in place by the ranks that have their experts. */
    if (weft_alloc(group, sizeof(float) * TOKENS * HIDDEN, 0, (void **)&x) != WEFT_OK)
        return fail(group, "weft_alloc");
    seed = 77 + (uint64_t)weft_rank(group);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = noise(&seed);
    for (int t = 0; t < TOKENS; t++)
        route(x + t * HIDDEN, router, expert + t * TOPK, weight + t * TOPK);

    if (weft_moe_forward(moe, 0, &(weft_moe_input){sizeof(weft_moe_input), TOKENS, x, expert, weight},
                         &callbacks, y) != WEFT_OK)
        return fail(group, "weft_moe_forward");

    weft_moe_get_stats(moe, 0, &stats);
    expected(x, expert, weight, right);
    worst = difference(y, right);
    printf("rank %d of %d: sent %lld rows, experts here worked on %lld, largest error %.1e\n",
           weft_rank(group), weft_size(group), (long long)stats.rows_sent, (long long)stats.entries, worst);

    weft_moe_ffn_free(ffn);
    weft_moe_free(moe);
    weft_free(group, x);
    weft_finalize(group);
    free(router);
    return worst < 1e-4 ? 0 : 1;
}
