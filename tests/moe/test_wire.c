/*
 * Tokens that travel as fp8. A row and its scales are what weft.h says, element by element, by every kernel
 * of this CPU; a round gives, to the bit, what a round of tokens gives that were quantised and expanded
 * before: on every rung, in both modes, by every kind of expert and by halves. And what such a layer is
 * refused.
 */
#include "bench/standin/contest.h"
#include "bench/standin/standin.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "moe/moe.h"
#include "moe/wire_kernels.h"
#include "support/check.h"
#include "support/ranks.h"

#include <math.h>

enum { BLOCK = 128 };

/* By weft.h, one element at a time. */
static void quantise(weft_dtype dtype, int64_t hidden, const void *row, uint8_t *code, float *scale)
{
    for (int64_t i = 0; i < hidden; i++) {
        float largest = 0x1p-100f;

        for (int64_t j = i / BLOCK * BLOCK; j < hidden && j < (i / BLOCK + 1) * BLOCK; j++)
            largest = fmaxf(largest, fabsf((float)weft_element_get(dtype, row, (size_t)j)));
        scale[i / BLOCK] = largest / 448;
        code[i] =
            weft_f32_to_fp8(WEFT_FP8_E4M3, (float)weft_element_get(dtype, row, (size_t)i) * (448 / largest));
    }
}

static void expand(weft_dtype dtype, int64_t hidden, const uint8_t *code, const float *scale, void *row)
{
    for (int64_t i = 0; i < hidden; i++)
        weft_element_set(dtype, row, (size_t)i, weft_fp8_to_f32(WEFT_FP8_E4M3, code[i]) * scale[i / BLOCK]);
}

/* Values of every size: rows of small ones, of large ones, blocks of zeros. */
static void fill(weft_dtype dtype, int64_t hidden, uint64_t *state, void *row)
{
    double size = ldexp(1, (int)(check_random(state) % 24) - 12);
    bool tiny = dtype != WEFT_F16 && check_random(state) % 5 == 0;

    for (int64_t i = 0; i < hidden; i++) {
        double value = ((double)(check_random(state) % 4001) - 2000) / 2000 * size;

        value = (i / BLOCK + (int64_t)size) % 3 == 2 ? 0 : tiny ? value * 0x1p-110 : value;
        weft_element_set(dtype, row, (size_t)i, value);
    }
}

static const weft_dtype types[] = {WEFT_F16, WEFT_BF16, WEFT_F32};

static void rows(const weft_moe_wire_kernel *kernel)
{
    static const int64_t widths[] = {1, 15, 16, 127, 128, 129, 300, 1024};
    uint64_t state = 3;

    for (int d = 0; d < 3; d++)
        for (int pass = 0; pass < 200; pass++) {
            int64_t hidden = widths[pass % 8], bytes = hidden * (int64_t)weft_dtype_size(types[d]);
            float row[1024], back[1024], same[1024], scale[8], wire[512];
            uint8_t code[1024];

            fill(types[d], hidden, &state, row);
            quantise(types[d], hidden, row, code, scale);
            expand(types[d], hidden, code, scale, same);
            memset(wire, 0xff, sizeof(wire));
            kernel->quantise(types[d], hidden, wire, row);
            CHECK_INT(weft_moe_fp8_bytes(hidden),
                      (hidden + 15) / 16 * 16 + ((hidden + 127) / 128 * 4 + 15) / 16 * 16);
            CHECK_INT(memcmp(wire, code, (size_t)hidden), 0);
            CHECK_INT(memcmp((char *)wire + (hidden + 15) / 16 * 16, scale,
                             (size_t)((hidden + 127) / 128) * sizeof(float)),
                      0);
            kernel->expand(types[d], hidden, back, wire);
            CHECK_INT(memcmp(back, same, (size_t)bytes), 0);
            /* half a step of 1/8, and of the smallest numbers; what is rounded to dtype once more */
            for (int64_t i = 0; i < hidden; i++) {
                double x = weft_element_get(types[d], row, (size_t)i);

                CHECK(fabs(weft_element_get(types[d], back, (size_t)i) - x) <=
                      fabs(x) * 0x1.1p-4 + scale[i / BLOCK] * 0x1.1p-10 + 0x1p-24);
            }
        }
}

/* A block whose scale is 1 has the codes of its numbers: every float16 up to 448, and what lies half way
 * between two codes and beside it; and every code, NaN too, is expanded to its number. */
static void codes(const weft_moe_wire_kernel *kernel)
{
    float row[BLOCK], back[2 * BLOCK], scale[4] = {1, 1}, wire[BLOCK];
    uint8_t *code = (uint8_t *)wire;

    for (uint32_t half = 0; half < 0x5f00; half++) { /* 448 */
        for (int i = 0; i < 7; i++) {
            uint32_t bits;

            row[i] = weft_f16_to_f32((uint16_t)half);
            memcpy(&bits, &row[i], sizeof(bits));
            bits = i < 6 && half ? bits + (uint32_t)(i / 2) - 1 : bits;
            memcpy(&row[i], &bits, sizeof(bits));
            row[i] = i % 2 ? -row[i] : row[i];
        }
        row[6] = 448;
        kernel->quantise(WEFT_F32, 7, wire, row);
        for (int i = 0; i < 7; i++)
            CHECK_INT(code[i], weft_f32_to_fp8(WEFT_FP8_E4M3, row[i]));
    }
    for (int i = 0; i < 2 * BLOCK; i++)
        code[i] = (uint8_t)i;
    memcpy(code + sizeof(wire) / 2, scale, sizeof(scale));
    kernel->expand(WEFT_F32, 2 * BLOCK, back, wire);
    for (int i = 0; i < 2 * BLOCK; i++) {
        float value = weft_fp8_to_f32(WEFT_FP8_E4M3, (uint8_t)i);

        CHECK_INT(memcmp(&value, &back[i], sizeof(value)), 0);
    }
}

/* An infinity or NaN spoils its own 128 elements and no others. */
static void not_numbers(const weft_moe_wire_kernel *kernel)
{
    for (int d = 0; d < 3; d++)
        for (int pass = 0; pass < 2; pass++) {
            float row[300], back[300], wire[128];

            for (size_t i = 0; i < 300; i++)
                weft_element_set(types[d], row, i, i == 140 ? (pass ? (double)NAN : -INFINITY) : 1);
            kernel->quantise(types[d], 300, wire, row);
            kernel->expand(types[d], 300, back, wire);
            for (size_t i = 0; i < 300; i++) {
                double value = weft_element_get(types[d], back, i);

                CHECK(i / BLOCK == 1 ? isnan(value) : value == 1);
            }
        }
}

typedef struct round_case {
    weft_contest_shape shape;
    weft_dtype dtype;
    weft_moe_mode mode;
    weft_moe_impl impl;
    bool symmetric;
    int how; /* 0: the row callback where there is one, 1: blocks, 2: many rows a call, 3: halves */
    uint64_t seed;
} round_case;

static weft_moe *open_layer(weft_group *group, const round_case *c, weft_moe_wire wire)
{
    weft_moe_config config;
    weft_moe *moe = NULL;

    weft_moe_config_init(&config);
    config.experts = c->shape.experts;
    config.topk = c->shape.topk;
    config.hidden = c->shape.hidden;
    config.tokens = c->shape.tokens;
    config.dtype = c->dtype;
    config.mode = c->mode;
    config.impl = c->impl;
    config.wire = wire;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    return moe;
}

/* Dispatch, experts over packed rows, combine. Rows in the view are as they travelled. */
static void by_halves(weft_moe *moe, const round_case *c, const weft_moe_input *input, weft_standin *standin,
                      bool fp8, void *y)
{
    int64_t bytes = c->shape.hidden * (int64_t)weft_dtype_size(c->dtype), start[64], rows = 0;
    weft_moe_expert expert = weft_standin_expert(standin);
    weft_moe_view view = {.size = sizeof(view)};

    CHECK_INT(weft_moe_dispatch(moe, 0, input, &view), WEFT_OK);
    CHECK_INT(weft_moe_layout(moe, 0, 4, start, &rows), WEFT_OK);
    char *packed = calloc((size_t)rows + 1, (size_t)bytes),
         *results = calloc((size_t)rows + 1, (size_t)bytes), *row = malloc((size_t)bytes);
    CHECK_INT(weft_moe_gather(moe, 0, start, packed), WEFT_OK);
    for (int e = 0; e < view.experts; e++)
        for (int64_t i = 0; i < view.offset[e + 1] - view.offset[e]; i++) {
            const void *in = packed + (start[e] + i) * bytes;
            void *out = results + (start[e] + i) * bytes;
            const char *wire = view.row[view.entry_row[view.offset[e] + i]];

            expand(c->dtype, c->shape.hidden, (const uint8_t *)wire,
                   (const float *)(const void *)(wire + (c->shape.hidden + 15) / 16 * 16), row);
            CHECK_INT(memcmp(fp8 ? row : wire, in, (size_t)bytes), 0);
            expert.block(expert.context, view.expert[e], 1, &in, &out);
        }
    CHECK_INT(weft_moe_combine(moe, 0, results, start, y), WEFT_OK);
    free(packed);
    free(results);
    free(row);
}

static void run_round(weft_group *group, void *argument)
{
    const round_case *c = argument;
    int64_t hidden = c->shape.hidden;
    size_t row = (size_t)hidden * weft_dtype_size(c->dtype), all = (size_t)c->shape.tokens * row;
    weft_contest_data data = {.expert = malloc((size_t)(c->shape.tokens * c->shape.topk) * 4),
                              .weight = malloc((size_t)(c->shape.tokens * c->shape.topk) * 4)};
    char *x[2] = {malloc(all), malloc(all)}, *y[2] = {calloc(1, all), calloc(1, all)};
    uint8_t *code = malloc((size_t)hidden);
    float *scale = malloc((size_t)hidden * sizeof(float));
    uint64_t state = c->seed * 977 + (uint64_t)weft_rank(group);
    weft_moe_stats stats[2] = {{.size = sizeof(stats[0])}, {.size = sizeof(stats[0])}};

    if (c->symmetric) {
        free(x[1]);
        CHECK_INT(weft_alloc(group, all, 0, (void **)&x[1]), WEFT_OK);
    }
    weft_contest_draw(&c->shape, c->seed, weft_rank(group), -1, 0, &data);
    for (int64_t t = 0; t < data.tokens; t++) {
        fill(c->dtype, hidden, &state, x[1] + (size_t)t * row);
        quantise(c->dtype, hidden, x[1] + (size_t)t * row, code, scale);
        expand(c->dtype, hidden, code, scale, x[0] + (size_t)t * row);
    }
    for (int fp8 = 0; fp8 < 2; fp8++) {
        weft_moe *moe = open_layer(group, c, fp8 ? WEFT_MOE_WIRE_FP8 : WEFT_MOE_WIRE_GIVEN);
        weft_standin standin = {.dtype = c->dtype, .hidden = hidden, .topk = c->shape.topk};
        weft_moe_expert expert = weft_standin_expert(&standin);

        if (c->how)
            expert.row = NULL;
        expert.expert_rows = c->how == 2 ? 5 : 0;
        for (int pass = 0; pass < 2; pass++) {
            weft_moe_input input = {.size = sizeof(input),
                                    .tokens = data.tokens,
                                    .x = x[fp8],
                                    .expert = pass ? NULL : data.expert,
                                    .weight = pass ? NULL : data.weight};

            memset(y[fp8], 0xff, all);
            if (c->how == 3)
                by_halves(moe, c, &input, &standin, fp8, y[fp8]);
            else
                CHECK_INT(weft_moe_forward(moe, 0, &input, &expert, y[fp8]), WEFT_OK);
        }
        CHECK_INT(weft_moe_get_stats(moe, 0, &stats[fp8]), WEFT_OK);
        CHECK_INT(weft_moe_free(moe), WEFT_OK);
    }
    CHECK_INT(memcmp(y[0], y[1], (size_t)data.tokens * row), 0);
    CHECK_INT(stats[0].dispatch_bytes, stats[0].rows_sent * (int64_t)row);
    CHECK_INT(stats[1].dispatch_bytes, stats[1].rows_sent * weft_moe_fp8_bytes(hidden));
    CHECK_INT(stats[1].combine_bytes, stats[0].combine_bytes);
    if (c->symmetric)
        CHECK_INT(weft_free(group, x[1]), WEFT_OK);
    else
        free(x[1]);
    free(x[0]);
    free(y[0]);
    free(y[1]);
    free(code);
    free(scale);
    free(data.expert);
    free(data.weight);
}

static void rounds(void)
{
    static const weft_contest_shape shapes[] = {
        {7, 3, 1, 16}, {16, 6, 200, 9}, {30, 8, 384, 12}, {5, 2, 1030, 8}};
    uint64_t seed = 1;

    for (int s = 0; s < 4; s++)
        for (int ranks = 1; ranks <= 4; ranks++)
            for (int impl = 0; impl < 5; impl++)
                for (int how = 0; how < 4; how++, seed++) {
                    round_case c = {.shape = shapes[s],
                                    .dtype = types[seed % 3],
                                    .mode = impl == 4 ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT,
                                    .impl = (weft_moe_impl)(impl % 4),
                                    .symmetric = seed % 2,
                                    .how = how,
                                    .seed = seed};

                    ranks_run(ranks, run_round, &c);
                }
}

static void refused(weft_group *group, void *argument)
{
    weft_moe_config config;
    weft_moe *moe = NULL;
    size_t symmetric[2], own[2];

    (void)argument;
    weft_moe_config_init(&config);
    config.experts = 4;
    config.topk = 2;
    config.hidden = 1024;
    config.tokens = 64;
    CHECK_INT(weft_moe_bytes(&config, 2, &symmetric[0], &own[0]), WEFT_OK);
    config.wire = WEFT_MOE_WIRE_FP8;
    CHECK_INT(weft_moe_bytes(&config, 2, &symmetric[1], &own[1]), WEFT_OK);
    CHECK_INT(symmetric[0] - symmetric[1], 64 * (2048 - 1088)); /* what is staged; in steps of a line */
    config.wire = weft_rank(group) ? WEFT_MOE_WIRE_FP8 : WEFT_MOE_WIRE_GIVEN;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_MISMATCH);
}

static void refused_alone(weft_group *group, void *argument)
{
    weft_moe_config config;
    weft_moe *moe = NULL;

    (void)argument;
    weft_moe_config_init(&config);
    config.experts = config.topk = 1;
    config.hidden = 8;
    config.tokens = 1;
    config.wire = (weft_moe_wire)7;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_ARGUMENT);
    CHECK(strstr(weft_error(group), "wire 7"));
    config.wire = WEFT_MOE_WIRE_FP8;
    config.row_bytes = 24;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_ARGUMENT);
    CHECK(strstr(weft_error(group), "rows of 24 bytes cannot travel as fp8"));
    config.row_bytes = 16;
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_OK);
    CHECK_INT(weft_moe_free(moe), WEFT_OK);
}

static void check_kernel(const weft_moe_wire_kernel *kernel)
{
    codes(kernel);
    rows(kernel);
    not_numbers(kernel);
}

/* What this CPU uses, and what the others of its kind do. */
int main(void)
{
    const weft_moe_wire_kernel chosen = {weft_moe_quantise, weft_moe_expand};

    check_kernel(&chosen);
    check_kernel(&weft_moe_wire_portable);
#if defined(__x86_64__)
    if (weft_cpu_has(WEFT_CPU_LEVEL_AVX2))
        check_kernel(&weft_moe_wire_avx2);
#endif
    rounds();
    ranks_run(2, refused, NULL);
    ranks_run(1, refused_alone, NULL);
    return check_report("test_moe_wire");
}
