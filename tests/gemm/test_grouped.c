/*
 * Products of many experts in one call: the bits of a weft_gemm of each expert's rows, whatever their number
 * and place, in every type, form of B and epilogue; rows between the experts stay as they are; and what is
 * refused.
 */
#include "core/dtype.h"
#include "support/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

enum { EXPERTS_MOST = 6 };

typedef struct grouped_case {
    weft_dtype dtype, b_dtype, d_dtype;
    weft_act act;
    int experts;
    int64_t n, k;
    bool transb, packed, bias, scales, gaps;
    uint64_t seed;
} grouped_case;

static void *random_matrix(weft_dtype dtype, int64_t count, uint64_t *seed)
{
    char *m = malloc((size_t)count * weft_dtype_size(dtype) + 1);

    for (int64_t i = 0; i < count; i++)
        weft_element_set(dtype, m, (size_t)i, (double)(check_random(seed) % 9) - 4);
    return m;
}

static char *at(const void *base, int64_t index, weft_dtype dtype)
{
    return (char *)base + index * (int64_t)weft_dtype_size(dtype);
}

/* Rows of each expert, some none, and where they begin. */
static int64_t lay_out(const grouped_case *c, uint64_t *seed, int64_t *offset, int64_t *start)
{
    static const int64_t rows[] = {0, 1, 3, 16, 17, 40};
    int64_t next = c->gaps ? 2 : 0;

    offset[0] = 0;
    for (int e = 0; e < c->experts; e++) {
        int64_t count = rows[check_random(seed) % 6];

        offset[e + 1] = offset[e] + count;
        start[e] = next;
        next += count + (c->gaps ? 3 : 0);
    }
    return next;
}

/* The same by weft_gemm, expert by expert. */
static void run_each(const weft_grouped_args *g, char *d)
{
    int64_t width = g->act >= WEFT_ACT_RELU_GATED ? 2 : 1, n = width * g->n;

    for (int e = 0; e < g->experts; e++) {
        int64_t first = g->start ? g->start[e] : g->offset[e];
        weft_gemm_args one;

        weft_gemm_args_init(&one, g->dtype, g->offset[e + 1] - g->offset[e], g->n, g->k);
        one.b_dtype = g->b_dtype;
        one.d_dtype = g->d_dtype;
        one.transb = g->transb;
        one.a = at(g->a, first * g->lda, g->dtype);
        one.b = at(g->b, e * g->stride_b, g->b_dtype);
        one.bias = g->bias ? at(g->bias, e * n, g->d_dtype) : NULL;
        one.row_scale = g->row_scale ? g->row_scale + first : NULL;
        one.col_scale = g->col_scale ? g->col_scale + e * n : NULL;
        one.d = at(d, first * g->ldd, g->d_dtype);
        one.lda = g->lda;
        one.ldb = g->ldb;
        one.ldd = g->ldd;
        one.alpha = g->alpha;
        one.act = g->act;
        CHECK_INT(weft_gemm(&one), WEFT_OK);
    }
}

static void pack_all(const weft_grouped_args *g, char **memory, const weft_packed **packed)
{
    for (int e = 0; e < g->experts; e++) {
        weft_gemm_args one;

        weft_gemm_args_init(&one, g->dtype, 1, g->n, g->k);
        one.b_dtype = g->b_dtype;
        one.b = at(g->b, e * g->stride_b, g->b_dtype);
        one.transb = g->transb;
        one.ldb = g->ldb;
        one.act = g->act;
        memory[e] = aligned_alloc(128, (weft_pack_bytes(&one) + 127) / 128 * 128);
        CHECK_INT(weft_pack(&one, memory[e], &packed[e]), WEFT_OK);
    }
}

static void run_case(const grouped_case *c)
{
    uint64_t seed = c->seed;
    int64_t offset[EXPERTS_MOST + 1], start[EXPERTS_MOST], rows = lay_out(c, &seed, offset, start);
    int64_t n = c->act >= WEFT_ACT_RELU_GATED ? 2 * c->n : c->n, lda = c->k + 3, ldd = c->n + 5;
    int64_t ldb = (c->transb ? c->k : n) + 2, stride = (c->transb ? n : c->k) * ldb + 7;
    char *a = random_matrix(c->dtype, rows * lda, &seed),
         *b = random_matrix(c->b_dtype, c->experts * stride, &seed);
    char *bias = random_matrix(c->d_dtype, c->experts * n, &seed);
    char *d = random_matrix(c->d_dtype, rows * ldd, &seed);
    float *row_scale = random_matrix(WEFT_F32, rows, &seed),
          *col_scale = random_matrix(WEFT_F32, c->experts * n, &seed);
    size_t bytes = (size_t)(rows * ldd) * weft_dtype_size(c->d_dtype);
    char *want = malloc(bytes + 1), *memory[EXPERTS_MOST] = {0};
    const weft_packed *packed[EXPERTS_MOST];
    weft_grouped_args g;

    memcpy(want, d, bytes);
    weft_grouped_args_init(&g, c->dtype, c->experts, rows, c->n, c->k);
    g.b_dtype = c->b_dtype;
    g.d_dtype = c->d_dtype;
    g.transb = c->transb;
    g.offset = offset;
    g.start = c->gaps ? start : NULL;
    g.a = a;
    g.b = b;
    g.bias = c->bias ? bias : NULL;
    g.row_scale = c->scales ? row_scale : NULL;
    g.col_scale = c->scales ? col_scale : NULL;
    g.d = d;
    g.lda = lda;
    g.ldb = ldb;
    g.ldd = ldd;
    g.stride_b = stride;
    g.alpha = c->scales ? 0.5f : 1;
    g.act = c->act;
    run_each(&g, want);
    if (c->packed) {
        pack_all(&g, memory, packed);
        g.packed_b = packed;
    }
    CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_OK);
    CHECK_INT(memcmp(d, want, bytes), 0);
    for (int e = 0; e < c->experts; e++)
        free(memory[e]);
    free(a);
    free(b);
    free(bias);
    free(d);
    free(row_scale);
    free(col_scale);
    free(want);
}

static void test_bits(void)
{
    static const weft_dtype types[][3] = {
        {WEFT_F32, WEFT_F32, WEFT_F32},       {WEFT_F16, WEFT_F16, WEFT_F16},
        {WEFT_BF16, WEFT_BF16, WEFT_BF16},    {WEFT_BF16, WEFT_F32, WEFT_BF16},
        {WEFT_I8, WEFT_I32, WEFT_I8},         {WEFT_I8, WEFT_F32, WEFT_I8},
        {WEFT_BF16, WEFT_BF16, WEFT_I8},      {WEFT_F16, WEFT_F16, WEFT_I8},
        {WEFT_BF16, WEFT_BF16, WEFT_FP8_E4M3}};
    static const weft_act acts[] = {WEFT_ACT_NONE, WEFT_ACT_SILU, WEFT_ACT_SILU_GATED};
    uint64_t seed = 7;

    for (int i = 0; i < 120; i++) {
        uint64_t draw = check_random(&seed);
        int type = (int)(draw % 9);
        grouped_case c = {.dtype = types[type][0],
                          .d_dtype = types[type][1],
                          .b_dtype = types[type][2],
                          .act = acts[types[type][1] == WEFT_I32 ? 0
                                      : draw >> 8 & 1            ? 0
                                                                 : 1 + (draw >> 9 & 1)],
                          .experts = (int)(draw >> 12) % (EXPERTS_MOST + 1),
                          .n = 1 + (int64_t)(draw >> 16 & 63),
                          .k = (int64_t)(draw >> 24 & 127),
                          .transb = draw >> 32 & 1,
                          .packed = draw >> 33 & 1,
                          .bias = draw >> 34 & 1,
                          .scales = draw >> 35 & 1,
                          .gaps = draw >> 36 & 1,
                          .seed = draw};

        c.experts = c.experts < 0 ? -c.experts : c.experts;
        run_case(&c);
    }
}

/* Weights stored as int8 or fp8 give the bits of the same ones stored as bfloat16, which holds them. */
static void test_stored(weft_dtype stored)
{
    enum { ROWS = 9, N = 21, K = 70 };
    uint16_t a[ROWS * K], d[2][ROWS * N], b[K * N];
    uint8_t small[K * N];
    float scale[N];
    int64_t offset[2] = {0, ROWS};
    uint64_t seed = 5;

    for (int i = 0; i < ROWS * K; i++)
        weft_element_set(WEFT_BF16, a, (size_t)i, (double)(check_random(&seed) % 255) / 64 - 2);
    for (int i = 0; i < K * N; i++) {
        weft_element_set(stored, small, (size_t)i,
                         (double)(check_random(&seed) % 256) - 128); /* every int8; fp8 rounds */
        weft_element_set(WEFT_BF16, b, (size_t)i, weft_element_get(stored, small, (size_t)i));
    }
    for (int j = 0; j < N; j++)
        scale[j] = (float)(j + 1) / 64;
    for (int i = 0; i < 2; i++) {
        weft_grouped_args g;

        weft_grouped_args_init(&g, WEFT_BF16, 1, ROWS, N, K);
        g.b_dtype = i ? stored : WEFT_BF16;
        g.offset = offset;
        g.a = a;
        g.b = i ? (const void *)small : b;
        g.col_scale = scale;
        g.d = d[i];
        CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_OK);
    }
    CHECK_INT(memcmp(d[0], d[1], sizeof(d[0])), 0);
}

static void test_refused(void)
{
    float a[8] = {0}, b[32] = {0}, d[8] = {0};
    int64_t offset[3] = {0, 1, 2}, start[2] = {0, 1};
    char *memory[EXPERTS_MOST] = {0};
    const weft_packed *packed[EXPERTS_MOST];
    weft_grouped_args g;
    weft_group *group;

    CHECK_INT(weft_grouped_gemm(NULL, NULL), WEFT_ERR_ARGUMENT);
    weft_grouped_args_init(&g, WEFT_F32, 2, 2, 4, 4);
    g.a = a;
    g.b = b;
    g.d = d;
    CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_ERR_ARGUMENT); /* no offsets */
    g.offset = offset;
    CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_OK);
    offset[2] = 3; /* more rows than there are */
    CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_ERR_ARGUMENT);
    CHECK(strstr(weft_error(NULL), "expert 1 has 2 rows from row 1 on, but there are 2"));
    offset[2] = 0; /* falling */
    CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_ERR_ARGUMENT);
    offset[2] = 2;
    g.start = start;
    start[1] = 2;
    CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_ERR_ARGUMENT);
    start[1] = 1;
    g.ldd = 3;
    CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_ERR_ARGUMENT);
    g.ldd = 0;
    g.ldb = INT64_MAX / 2;
    CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_ERR_ARGUMENT);
    CHECK(strstr(weft_error(NULL), "span at most 2^46 elements"));
    g.ldb = 0;
    g.stride_b = -16;
    CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_ERR_ARGUMENT);
    CHECK(strstr(weft_error(NULL), "stride_b = -16: it must not be negative"));
    g.ldb = INT64_MAX / 2;
    g.k = 1; /* one row: the number is not used */
    g.stride_b = 4;
    CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_OK);
    g.k = 4;
    g.ldb = g.stride_b = 0;
    g.n = 3;
    pack_all(&g, memory, packed);
    g.n = 4;
    g.packed_b = packed;
    CHECK_INT(weft_grouped_gemm(NULL, &g), WEFT_ERR_ARGUMENT);
    CHECK(strstr(weft_error(NULL), "weft_grouped_gemm: expert 0: weft_gemm: packed_b is a B of 4 x 3"));
    g.packed_b = NULL;
    free(memory[0]);
    free(memory[1]);
    g.dtype = WEFT_I64;
    CHECK_INT(weft_group_threads(1, &group), WEFT_OK);
    CHECK_INT(weft_grouped_gemm(group, &g), WEFT_ERR_ARGUMENT);
    CHECK(strstr(weft_error(group), "there is no product of int64"));
    g.dtype = WEFT_F32;
    g.n = INT64_MAX;
    CHECK_INT(weft_grouped_gemm(group, &g), WEFT_ERR_ARGUMENT);
    weft_group_free(group);
}

int main(void)
{
    test_bits();
    test_stored(WEFT_I8);
    test_stored(WEFT_FP8_E4M3);
    test_stored(WEFT_FP8_E5M2);
    test_refused();
    return check_report("gemm grouped");
}
