/*
 * A mixture of vectors: an expert is one vector, by which a token is multiplied element by element (adapters
 * of frozen layers are such). It is so cheap that storing what each expert makes of a token would take longer
 * than making it: the callback `row` takes a token through all of its experts on this rank and adds up.
 *
 *     weft run -n 3 -- moe_vectors
 *
 * Without a launcher it is a group of one. Every rank checks all of its results.
 */
#include <weft/weft.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXPERTS = 16, TOPK = 4, HIDDEN = 1000, TOKENS = 50 };

static float vectors[EXPERTS][HIDDEN];

/* Rows through one expert: what a round falls back on, and all that most experts have. */
static void block(void *context, int expert, int64_t rows, const void *const *in, void *const *out)
{
    (void)context;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = in[r];
        float *y = out[r];

        for (int h = 0; h < HIDDEN; h++)
            y[h] = x[h] * vectors[expert][h];
    }
}

/* A row through all of its experts here, their weighted results added up in the order given; `other` is what
 * another rank made of the same token, if it is there already. */
static void row(void *context, int64_t experts, const int32_t *expert, const float *weight, const void *in,
                const void *other, void *out)
{
    const float *x = in, *theirs = other;
    float *y = out;

    (void)context;
    for (int h = 0; h < HIDDEN; h++) {
        float sum = 0;

        for (int64_t i = 0; i < experts; i++)
            sum += weight[i] * (x[h] * vectors[expert[i]][h]);
        y[h] = theirs ? sum + theirs[h] : sum;
    }
}

static double noise(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) / (1 << 24) - 0.5;
}

static int fail(weft_group *group, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_error(group));
    return 1;
}

int main(void)
{
    static int32_t expert[TOKENS][TOPK];
    static float weight[TOKENS][TOPK], x[TOKENS][HIDDEN], y[TOKENS][HIDDEN];
    const weft_moe_expert callbacks = {.size = sizeof(callbacks), .block = block, .row = row};
    const weft_moe_input input = {sizeof(input), TOKENS, x, &expert[0][0], &weight[0][0]};
    weft_moe_config config;
    weft_group *group;
    weft_moe *moe;
    unsigned seed = 1;
    double worst = 0;

    for (int i = 0; i < EXPERTS * HIDDEN; i++) /* every rank has all of them */
        vectors[i / HIDDEN][i % HIDDEN] = (float)noise(&seed);
    if (weft_init(&group) != WEFT_OK)
        return fail(NULL, "weft_init");
    weft_moe_config_init(&config);
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.hidden = HIDDEN;
    config.tokens = TOKENS;
    config.dtype = WEFT_F32;
    config.mode = WEFT_MOE_REDUCED; /* one row comes back from every rank: that is what `row` makes */
    if (weft_moe_create(group, &config, &moe) != WEFT_OK)
        return fail(group, "weft_moe_create");

    seed = 100u + (unsigned)weft_rank(group);
    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < TOPK; k++) { /* four experts, each in another quarter */
            expert[t][k] = k * (EXPERTS / TOPK) + (int)((noise(&seed) + 0.5) * (EXPERTS / TOPK));
            weight[t][k] = (float)(noise(&seed) + 0.5);
        }
        for (int h = 0; h < HIDDEN; h++)
            x[t][h] = (float)noise(&seed);
    }
    if (weft_moe_forward(moe, 0, &input, &callbacks, y) != WEFT_OK)
        return fail(group, "weft_moe_forward");

    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HIDDEN; h++) {
            double right = 0;

            for (int k = 0; k < TOPK; k++)
                right += (double)weight[t][k] * x[t][h] * vectors[expert[t][k]][h];
            if (!(fabs(y[t][h] - right) <= worst))
                worst = fabs(y[t][h] - right);
        }
    printf("rank %d of %d: largest error %.1e\n", weft_rank(group), weft_size(group), worst);
    weft_moe_free(moe);
    weft_finalize(group);
    return worst < 1e-6 ? 0 : 1;
}
