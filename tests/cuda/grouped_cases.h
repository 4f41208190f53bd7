/*
 * weft_grouped_gemm on a GPU beside the same call on the CPU, bit for bit on small integers: every width of
 * tile, edges of rows, columns and k, forms of B, epilogues; rows that belong to nobody stay. The GPU may be
 * a fake one.
 */
#ifndef WEFT_TESTS_CUDA_GROUPED_CASES_H
#define WEFT_TESTS_CUDA_GROUPED_CASES_H

#include "core/dtype.h"
#include "support/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

enum { GROUPED_EXPERTS = 40 };

typedef struct grouped_rank {
    weft_group *gpu;
    char *device;
    size_t used, bytes;
} grouped_rank;

typedef struct grouped_case {
    weft_dtype dtype, b_dtype, d_dtype;
    weft_act act;
    int experts;
    int64_t n, k, rows_most;                         /* of an expert */
    bool transb, bias, scales, factors, gaps, odd_d; /* scales: of rows and columns; factors: of columns */
    uint64_t seed;
} grouped_case;

/* A call with host memory, and the same with memory of the GPU. */
typedef struct grouped_pair {
    weft_grouped_args cpu, gpu;
    void *host[7];
    size_t d_bytes;
    char *there_d;
} grouped_pair;

static inline void grouped_begin(weft_group *group, size_t bytes, grouped_rank *r)
{
    void *memory = NULL;

    *r = (grouped_rank){.gpu = group, .bytes = bytes};
    CHECK_INT(weft_group_use_gpu(group, 0), WEFT_OK);
    CHECK_INT(weft_alloc(group, bytes, 0, &memory), WEFT_OK);
    r->device = memory;
}

static inline void *grouped_up(grouped_rank *r, const void *host, size_t bytes)
{
    char *at = r->device + r->used;

    r->used += (bytes + 255) / 256 * 256;
    CHECK(r->used <= r->bytes);
    CHECK_INT(weft_memcpy(r->gpu, at, host, bytes), WEFT_OK);
    return at;
}

static inline void *grouped_random(weft_dtype dtype, int64_t count, uint64_t *seed)
{
    char *m = malloc((size_t)count * weft_dtype_size(dtype) + 16);

    for (int64_t i = 0; i < count; i++)
        weft_element_set(dtype, m, (size_t)i, (double)(check_random(seed) % 5) - 2);
    return m;
}

/* Rows of each expert: none, one, at the edges of tiles, or anything. */
static inline int64_t grouped_rows(const grouped_case *c, uint64_t *seed, int64_t *offset, int64_t *start)
{
    static const int64_t edges[] = {0, 1, 15, 16, 17, 32, 33, 64, 65, 128, 129, 192, 193, 256, 257, 300, 513};
    int64_t next = c->gaps ? 3 : 0;

    offset[0] = 0;
    for (int e = 0; e < c->experts; e++) {
        int64_t rows = check_random(seed) % 3 ? edges[check_random(seed) % 17]
                                              : (int64_t)(check_random(seed) % (uint64_t)(c->rows_most + 1));

        rows = rows < c->rows_most ? rows : c->rows_most;
        offset[e + 1] = offset[e] + rows;
        start[e] = next;
        next += rows + (c->gaps ? (int64_t)(check_random(seed) % 5) : 0);
    }
    return next ? next : 1;
}

static inline int64_t grouped_round(int64_t x)
{
    return (x + 15) / 16 * 16;
}

static inline void grouped_make(grouped_rank *r, const grouped_case *c, grouped_pair *p)
{
    uint64_t seed = c->seed;
    int64_t offset[GROUPED_EXPERTS + 1], start[GROUPED_EXPERTS], rows = grouped_rows(c, &seed, offset, start);
    int64_t n = c->act >= WEFT_ACT_RELU_GATED ? 2 * c->n : c->n, lda = grouped_round(c->k) + 8;
    int64_t ldb = grouped_round(c->transb ? c->k : n), stride = (c->transb ? n : c->k) * ldb + 16;
    int64_t ldd = c->odd_d ? c->n + 3 : grouped_round(c->n);
    size_t experts = (size_t)c->experts, ints = sizeof(int64_t), size = weft_dtype_size(c->dtype);
    weft_grouped_args g;

    weft_grouped_args_init(&g, c->dtype, c->experts, rows, c->n, c->k);
    g.b_dtype = c->b_dtype;
    g.d_dtype = c->d_dtype;
    g.transb = c->transb;
    g.lda = lda;
    g.ldb = ldb;
    g.ldd = ldd;
    g.stride_b = stride;
    g.alpha = c->scales || (c->factors && c->act) ? 0.5f : 1;
    g.act = c->act;
    *p = (grouped_pair){.cpu = g, .gpu = g};
    p->host[0] = grouped_random(c->dtype, rows * lda, &seed);
    p->host[1] = grouped_random(c->b_dtype, c->experts * stride, &seed);
    p->host[2] = grouped_random(c->d_dtype, rows * ldd, &seed);
    p->host[3] = grouped_random(c->d_dtype, c->experts * n, &seed);
    p->host[4] = grouped_random(WEFT_F32, rows, &seed);
    p->host[5] = grouped_random(WEFT_F32, c->experts * n, &seed);
    p->host[6] = malloc((2 * experts + 1) * ints);
    memcpy(p->host[6], offset, (experts + 1) * ints);
    memcpy((int64_t *)p->host[6] + experts + 1, start, experts * ints);
    p->d_bytes = (size_t)(rows * ldd) * weft_dtype_size(c->d_dtype);
    r->used = 0;
    p->cpu.a = p->host[0];
    p->gpu.a = grouped_up(r, p->host[0], (size_t)(rows * lda) * size);
    p->cpu.b = p->host[1];
    p->gpu.b = grouped_up(r, p->host[1], experts * (size_t)stride * weft_dtype_size(c->b_dtype));
    p->cpu.d = p->host[2];
    p->gpu.d = p->there_d = grouped_up(r, p->host[2], p->d_bytes);
    if (c->bias) {
        p->cpu.bias = p->host[3];
        p->gpu.bias = grouped_up(r, p->host[3], experts * (size_t)n * weft_dtype_size(c->d_dtype));
    }
    if (c->scales) {
        p->cpu.row_scale = p->host[4];
        p->gpu.row_scale = grouped_up(r, p->host[4], (size_t)rows * sizeof(float));
    }
    if (c->scales || c->factors) {
        p->cpu.col_scale = p->host[5];
        p->gpu.col_scale = grouped_up(r, p->host[5], experts * (size_t)n * sizeof(float));
    }
    p->cpu.offset = p->host[6];
    p->gpu.offset = grouped_up(r, p->host[6], (2 * experts + 1) * ints);
    if (c->gaps) {
        p->cpu.start = (int64_t *)p->host[6] + experts + 1;
        p->gpu.start = p->gpu.offset + experts + 1;
    }
}

static inline void grouped_free(grouped_pair *p)
{
    for (int i = 0; i < 7; i++)
        free(p->host[i]);
}

/* Whether D on the GPU is what the CPU has, bit for bit. */
static inline bool grouped_same(grouped_rank *r, const grouped_pair *p)
{
    char *copy = malloc(p->d_bytes + 1);

    CHECK_INT(weft_memcpy(r->gpu, copy, p->there_d, p->d_bytes), WEFT_OK);
    bool same = memcmp(copy, p->host[2], p->d_bytes) == 0;
    free(copy);
    return same;
}

static inline void grouped_run(grouped_rank *r, const grouped_case *c)
{
    grouped_pair p;

    grouped_make(r, c, &p);
    CHECK_INT(weft_grouped_gemm(NULL, &p.cpu), WEFT_OK);
    CHECK_INT(weft_grouped_gemm(r->gpu, &p.gpu), WEFT_OK);
    bool same = grouped_same(r, &p);
    CHECK(same);
    if (!same)
        fprintf(stderr,
                "  experts %d n %lld k %lld %s x %s -> %s act %d transb %d bias %d scales %d factors %d gaps "
                "%d odd %d\n",
                c->experts, (long long)c->n, (long long)c->k, weft_dtype_name(c->dtype),
                weft_dtype_name(c->b_dtype), weft_dtype_name(c->d_dtype), (int)c->act, c->transb, c->bias,
                c->scales, c->factors, c->gaps, c->odd_d);
    grouped_free(&p);
}

/* Random cases of at most that size. */
static inline void grouped_cases(grouped_rank *r, int count, int experts, int64_t n, int64_t k, int64_t rows)
{
    static const weft_act acts[] = {WEFT_ACT_NONE, WEFT_ACT_NONE, WEFT_ACT_RELU, WEFT_ACT_RELU_GATED};
    uint64_t seed = 99;

    for (int i = 0; i < count; i++) {
        uint64_t draw = check_random(&seed), flags = check_random(&seed);
        weft_dtype dtype = draw & 1 ? WEFT_F16 : WEFT_BF16;
        bool stored = (flags >> 8 & 3) == 0; /* as fp8 */
        grouped_case c = {.dtype = dtype,
                          .b_dtype = !stored           ? dtype
                                     : flags >> 10 & 1 ? WEFT_FP8_E4M3
                                                       : WEFT_FP8_E5M2,
                          .d_dtype = draw >> 1 & 3 ? dtype : WEFT_F32,
                          .act = acts[draw >> 3 & 3],
                          .experts = (int)(draw >> 8 & 0xffff) % (experts + 1),
                          .n = 1 + (int64_t)(draw >> 24 & 0xffff) % n,
                          .k = (int64_t)(draw >> 40 & 0xffff) % (k + 1),
                          .rows_most = rows,
                          .transb = stored || flags & 1,
                          .bias = (flags >> 1 & 3) == 0,
                          .scales = (flags >> 3 & 3) == 0,
                          .factors = flags >> 11 & 1,
                          .gaps = flags >> 5 & 1,
                          .odd_d = (flags >> 6 & 3) == 0,
                          .seed = flags};

        grouped_run(r, &c);
    }
}

static inline void grouped_errors(grouped_rank *r)
{
    grouped_case c = {.dtype = WEFT_BF16,
                      .b_dtype = WEFT_BF16,
                      .d_dtype = WEFT_BF16,
                      .act = WEFT_ACT_NONE,
                      .experts = 3,
                      .n = 16,
                      .k = 24,
                      .rows_most = 9,
                      .transb = true,
                      .seed = 5};
    weft_grouped_args g;
    grouped_pair p;

    grouped_make(r, &c, &p);
    g = p.gpu;
    g.dtype = WEFT_F32;
    CHECK_INT(weft_grouped_gemm(r->gpu, &g), WEFT_ERR_UNSUPPORTED);
    CHECK(strstr(weft_error(r->gpu), "A and B are both float16 or both bfloat16"));
    g = p.gpu;
    g.b_dtype = WEFT_FP8_E4M3;
    g.transb = 0;
    CHECK_INT(weft_grouped_gemm(r->gpu, &g), WEFT_ERR_UNSUPPORTED);
    CHECK(strstr(weft_error(r->gpu), "B is fp8 and stored n x k"));
    g = p.gpu;
    g.lda += 1;
    CHECK_INT(weft_grouped_gemm(r->gpu, &g), WEFT_ERR_UNSUPPORTED);
    CHECK(strstr(weft_error(r->gpu), "16-byte boundaries"));
    g = p.gpu;
    g.a = p.cpu.a; /* memory of the host */
    CHECK(weft_grouped_gemm(r->gpu, &g) != WEFT_OK);
    g = p.gpu;
    g.offset = NULL;
    CHECK_INT(weft_grouped_gemm(r->gpu, &g), WEFT_ERR_ARGUMENT);
    g = p.gpu;
    g.rows = ((const int64_t *)p.host[6])[c.experts] - 2; /* what is beyond is left out */
    if (g.rows > 0) {
        p.cpu.rows = g.rows;
        ((int64_t *)p.host[6])[c.experts] = g.rows;
        if (g.rows >= ((int64_t *)p.host[6])[c.experts - 1]) {
            CHECK_INT(weft_grouped_gemm(NULL, &p.cpu), WEFT_OK);
            CHECK_INT(weft_grouped_gemm(r->gpu, &g), WEFT_OK);
            CHECK(grouped_same(r, &p));
        }
    }
    grouped_free(&p);
}

#endif
