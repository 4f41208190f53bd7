/* The feed-forward expert on a group of GPUs beside the CPU's, also captured and with stored weights. */
#ifndef WEFT_TESTS_CUDA_MOE_FFN_CASES_H
#define WEFT_TESTS_CUDA_MOE_FFN_CASES_H

#include "moe_cases.h"

/* Weights for which everything is exact: gates and ups pick one element of a row each, so that a gate is so
 * large that its activation is itself, and the product of both has one significant bit. */
typedef struct moe_weights {
    int64_t inter;
    void *cpu[3][64], *gpu[3][64]; /* gate, up, down of each local expert */
} moe_weights;

static inline void moe_weights_make(moe_rank *r, const moe_case *c, weft_moe *cpu, moe_weights *w)
{
    const int32_t *here;
    int experts = weft_moe_local_experts(cpu, &here);
    size_t bytes = (size_t)(c->hidden * w->inter) * weft_dtype_size(c->dtype);

    for (int e = 0; e < experts; e++) {
        for (int i = 0; i < 3; i++)
            w->cpu[i][e] = calloc(1, bytes);
        for (int64_t j = 0; j < w->inter; j++) {
            int64_t gate = (j * 5 + here[e]) % c->hidden, up = (j * 3 + here[e] * 7) % c->hidden;

            weft_element_set(c->dtype, w->cpu[0][e], (size_t)(gate * w->inter + j), 64);
            weft_element_set(c->dtype, w->cpu[1][e], (size_t)(up * w->inter + j),
                             (double)((j + here[e]) % 4) - 1);
        }
        for (int64_t j = 0; j < w->inter * c->hidden; j++)
            weft_element_set(c->dtype, w->cpu[2][e], (size_t)j, (double)((j * 7 + here[e]) % 3) - 1);
        for (int i = 0; i < 3; i++)
            w->gpu[i][e] = moe_up(r, w->cpu[i][e], bytes);
    }
}

/* Tokens for which the weights above are exact. */
static inline moe_tokens moe_ffn_tokens(const moe_case *c, int rank, int round)
{
    moe_tokens t = moe_tokens_make(c, rank, round);

    for (int64_t j = 0; j < c->tokens * c->hidden; j++)
        weft_element_set(c->dtype, t.x, (size_t)j, (double)(1 + (j * 3 + round + rank) % 7 / 4));
    return t;
}

/* Whole rounds on both, each in a call; on a stream too, several before the first is waited for. */
static inline void moe_forward_rounds(moe_rank *r, moe_case c, weft_moe *cpu, weft_moe *gpu,
                                      const weft_moe_expert *expert, const weft_moe_expert *there,
                                      bool ordered)
{
    enum { ROUNDS = MOE_KINDS };
    size_t y_bytes = (size_t)(c.tokens * moe_row_bytes(&c)), mark = r->used;
    char *y[ROUNDS], *there_y[ROUNDS];

    CHECK_INT(weft_group_set_stream(r->gpu, ordered, WEFT_STREAM_OWN), WEFT_OK);
    for (int i = 0; i < ROUNDS; i++) {
        c.kind = i;
        moe_tokens t = moe_ffn_tokens(&c, weft_rank(r->gpu), i);
        weft_moe_input input = {
            .size = sizeof(input), .tokens = t.count, .x = t.x, .expert = t.expert, .weight = t.weight};

        y[i] = calloc(1, y_bytes);
        there_y[i] = moe_up(r, y[i], y_bytes);
        weft_moe_input up = moe_input_up(r, &c, &t);
        CHECK_INT(weft_moe_forward(cpu, 0, &input, expert, y[i]), WEFT_OK);
        CHECK_INT(weft_moe_forward(gpu, 0, &up, there, there_y[i]), WEFT_OK);
        moe_tokens_free(&t);
    }
    CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
    for (int i = 0; i < ROUNDS; i++) {
        moe_same(r, there_y[i], y[i], y_bytes, "results of the feed-forward expert");
        free(y[i]);
    }
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    r->used = mark;
}

/* A whole round captured, and replayed with other routings: only the memory that the graph reads changes. */
static inline void moe_forward_graph(moe_rank *r, moe_case c, weft_moe *cpu, weft_moe *gpu,
                                     const weft_moe_expert *expert, const weft_moe_expert *there,
                                     const weft_cuda_driver *cu)
{
    size_t y_bytes = (size_t)(c.tokens * moe_row_bytes(&c)), pairs = (size_t)(c.tokens * c.topk),
           mark = r->used;
    char *y = calloc(1, y_bytes), *there_y = moe_up(r, y, y_bytes);
    moe_tokens none = moe_ffn_tokens(&c, 0, 0);
    weft_moe_input up = moe_input_up(r, &c, &none);
    CUstream stream;
    CUgraph graph;
    CUgraphExec replay;

    moe_tokens_free(&none);
    up.tokens = c.tokens;
    CHECK_INT(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_INT(weft_group_set_stream(r->gpu, 1, stream), WEFT_OK);
    CHECK_INT(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_INT(weft_moe_forward(gpu, 0, &up, there, there_y), WEFT_OK);
    CHECK_INT(cu->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_INT(cu->cuGraphInstantiate(&replay, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < 2 * MOE_KINDS; i++) {
        c.kind = i % MOE_KINDS;
        moe_tokens t = moe_ffn_tokens(&c, weft_rank(r->gpu), i);
        weft_moe_input input = {
            .size = sizeof(input), .tokens = c.tokens, .x = t.x, .expert = t.expert, .weight = t.weight};

        for (int64_t j = t.count * c.topk; j < c.tokens * c.topk; j++)
            t.expert[j] = -1;
        CHECK_INT(weft_memcpy(r->solo, (void *)(uintptr_t)up.x, t.x, y_bytes), WEFT_OK);
        CHECK_INT(weft_memcpy(r->solo, (void *)(uintptr_t)up.expert, t.expert, pairs * sizeof(*t.expert)),
                  WEFT_OK);
        CHECK_INT(weft_memcpy(r->solo, (void *)(uintptr_t)up.weight, t.weight, pairs * sizeof(*t.weight)),
                  WEFT_OK);
        CHECK_INT(cu->cuGraphLaunch(replay, stream), CUDA_SUCCESS);
        CHECK_INT(weft_group_wait(r->gpu), WEFT_OK);
        CHECK_INT(weft_moe_forward(cpu, 0, &input, expert, y), WEFT_OK);
        moe_same(r, there_y, y, y_bytes, "results of a replayed round");
        moe_tokens_free(&t);
    }
    CHECK_INT(weft_group_set_stream(r->gpu, 0, NULL), WEFT_OK);
    cu->cuGraphExecDestroy(replay);
    cu->cuGraphDestroy(graph);
    cu->cuStreamDestroy(stream);
    free(y);
    r->used = mark;
}

/* The same numbers as another type stores them, and factors of their columns: still exact. `up` is without
 * any.
 */
typedef struct moe_stored {
    weft_moe_weights cpu, gpu;
    void *matrix[2][3][64];
    float *scale[2][3][64];
} moe_stored;

static inline void moe_stored_make(moe_rank *r, const moe_case *c, const moe_weights *w, int experts,
                                   weft_dtype dtype, moe_stored *s)
{
    size_t count = (size_t)(c->hidden * w->inter);

    for (int i = 0; i < 3; i++)
        for (int e = 0; e < experts; e++) {
            int64_t cols = i == 2 ? c->hidden : w->inter;

            s->matrix[0][i][e] = malloc(count * weft_dtype_size(dtype));
            for (size_t j = 0; j < count; j++)
                weft_element_set(dtype, s->matrix[0][i][e], j, weft_element_get(c->dtype, w->cpu[i][e], j));
            s->matrix[1][i][e] = moe_up(r, s->matrix[0][i][e], count * weft_dtype_size(dtype));
            s->scale[0][i][e] = malloc((size_t)cols * sizeof(float));
            for (int64_t j = 0; j < cols; j++)
                s->scale[0][i][e][j] = (j + e + i) % 3 ? 1 : 0.5f;
            s->scale[1][i][e] = moe_up(r, s->scale[0][i][e], (size_t)cols * sizeof(float));
        }
    for (int there = 0; there < 2; there++)
        *(there ? &s->gpu : &s->cpu) =
            (weft_moe_weights){.size = sizeof(weft_moe_weights),
                               .inter = w->inter,
                               .dtype = dtype,
                               .gate = (const void *const *)s->matrix[there][0],
                               .up = (const void *const *)s->matrix[there][1],
                               .down = (const void *const *)s->matrix[there][2],
                               .gate_scale = (const float *const *)s->scale[there][0],
                               .down_scale = (const float *const *)s->scale[there][2]};
}

/* Experts of stored weights, on both. */
static inline void moe_ffn_stored(moe_rank *r, const moe_case *c, const moe_weights *w, weft_moe *cpu,
                                  weft_moe *gpu, weft_dtype dtype)
{
    int experts = weft_moe_local_experts(cpu, NULL);
    moe_stored *s = calloc(1, sizeof(*s));
    weft_moe_ffn *ffn = NULL, *there = NULL;
    weft_moe_expert expert = {.size = sizeof(expert)}, its = {.size = sizeof(its)};

    moe_stored_make(r, c, w, experts, dtype, s);
    CHECK_INT(weft_moe_ffn_create_stored(cpu, &s->cpu, &ffn), WEFT_OK);
    CHECK_INT(weft_moe_ffn_create_stored(gpu, &s->gpu, &there), WEFT_OK);
    CHECK_INT(weft_moe_ffn_expert(ffn, &expert), WEFT_OK);
    CHECK_INT(weft_moe_ffn_expert(there, &its), WEFT_OK);
    moe_forward_rounds(r, *c, cpu, gpu, &expert, &its, false);
    weft_moe_ffn_free(ffn);
    weft_moe_ffn_free(there);
    for (int i = 0; i < 3; i++)
        for (int e = 0; e < experts; e++) {
            free(s->matrix[0][i][e]);
            free(s->scale[0][i][e]);
        }
    free(s);
}

/* One layer on both, its experts, and what is done with them. */
typedef struct moe_ffn_pair {
    moe_case c;
    weft_moe *cpu, *gpu;
    weft_moe_ffn *ffn, *there_ffn;
    weft_moe_expert expert, there;
    moe_weights w;
} moe_ffn_pair;

/* `works`: the GPU has the products. */
static inline void moe_ffn_open(moe_rank *r, const moe_case *c, bool works, moe_ffn_pair *p)
{
    int table[64];
    weft_moe_config config;

    *p = (moe_ffn_pair){.c = *c,
                        .expert = {.size = sizeof(p->expert)},
                        .there = {.size = sizeof(p->there)},
                        .w = {.inter = 32}};
    r->used = 0;
    moe_configure(c, weft_size(r->gpu), table, &config);
    CHECK_INT(weft_moe_create(r->cpu, &config, &p->cpu), WEFT_OK);
    CHECK_INT(weft_moe_create(r->gpu, &config, &p->gpu), WEFT_OK);
    moe_weights_make(r, c, p->cpu, &p->w);
    CHECK_INT(weft_moe_ffn_create(p->cpu, p->w.inter, (const void *const *)p->w.cpu[0],
                                  (const void *const *)p->w.cpu[1], (const void *const *)p->w.cpu[2],
                                  &p->ffn),
              WEFT_OK);
    CHECK_INT(weft_moe_ffn_create(p->gpu, p->w.inter, (const void *const *)p->w.gpu[0],
                                  (const void *const *)p->w.gpu[1], (const void *const *)p->w.gpu[2],
                                  &p->there_ffn),
              works ? WEFT_OK : WEFT_ERR_UNSUPPORTED);
    CHECK_INT(weft_moe_ffn_expert(p->ffn, &p->expert), WEFT_OK);
    if (works)
        CHECK_INT(weft_moe_ffn_expert(p->there_ffn, &p->there), WEFT_OK);
}

static inline void moe_ffn_close(moe_ffn_pair *p, bool layer_first)
{
    for (int e = 0; e < weft_moe_local_experts(p->cpu, NULL); e++)
        for (int j = 0; j < 3; j++)
            free(p->w.cpu[j][e]);
    weft_moe_ffn_free(p->ffn);
    CHECK_INT(weft_moe_free(p->cpu), WEFT_OK);
    if (!layer_first)
        weft_moe_ffn_free(p->there_ffn);
    CHECK_INT(weft_moe_free(p->gpu), WEFT_OK);
    if (layer_first)
        weft_moe_ffn_free(p->there_ffn);
}

/* `cu`: the GPU's driver, with the calling thread's context. */
static inline void moe_ffn(moe_rank *r, bool works, const weft_cuda_driver *cu)
{
    static const moe_case cases[] = {
        {7, 3, 64, 9, 0, WEFT_F16, WEFT_MOE_EXACT, false, 0, 1, 0, 21, 0},
        {10, 4, 40, 7, 0, WEFT_BF16, WEFT_MOE_REDUCED, true, 0, 1, 0, 22, 0},
        {9, 3, 264, 6, 0, WEFT_BF16, WEFT_MOE_EXACT, true, 0, 1, 0, 23, WEFT_MOE_WIRE_FP8}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        moe_ffn_pair p;

        moe_ffn_open(r, &cases[i], works, &p);
        if (works) {
            moe_forward_rounds(r, p.c, p.cpu, p.gpu, &p.expert, &p.there, false);
            moe_forward_rounds(r, p.c, p.cpu, p.gpu, &p.expert, &p.there, true);
            moe_forward_graph(r, p.c, p.cpu, p.gpu, &p.expert, &p.there, cu);
            moe_ffn_stored(r, &p.c, &p.w, p.cpu, p.gpu,
                           i == 0   ? WEFT_FP8_E4M3
                           : i == 1 ? WEFT_I8
                                    : WEFT_FP8_E5M2);
        }
        moe_ffn_close(&p, i % 2 == 0);
    }
}

#endif
