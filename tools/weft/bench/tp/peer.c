/*
 * What a user would otherwise take: OpenBLAS for the product, MPI for the collective, one after the other, on
 * the same float32 data. Rows and columns are laid out so that each needs as few calls and copies as it can.
 */
#include "bench/tp/bench_tp.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* BLAS and MPI count in int. */
static bool countable(const weft_problem *p)
{
    double m = (double)p->m, n = (double)p->n, k = (double)p->k;

    return m * n <= INT_MAX && m * k <= INT_MAX && k * n <= INT_MAX;
}

bool tp_peer_can(const bench_context *context, const weft_problem *p)
{
    return countable(p) && context->blas && context->mpi && p->l == 1 && p->beta == 0 && !p->bias &&
           p->act == WEFT_ACT_NONE && p->dtype <= WEFT_BF16;
}

static size_t elements(tp_block block)
{
    return (size_t)(block.rows * block.cols);
}

int tp_peer_open(tp_peer *peer, tp_data *data, bool vector)
{
    const weft_problem *p = &data->problem;
    int world = data->context->size;
    size_t scratch = (size_t)(p->m * p->n);

    memset(peer, 0, sizeof *peer);
    peer->data = data;
    peer->vector = vector;
    peer->own_operands = p->dtype != WEFT_F32;
    if (p->op == WEFT_OP_AG_GEMM)
        scratch = (size_t)(p->layout == WEFT_LAYOUT_GATHER_B ? p->k * p->n : p->m * p->k);
    if (p->op == WEFT_OP_GEMM_AS)
        scratch += elements(data->layout.b) + (size_t)(p->m * data->layout.b.cols);
    peer->d = malloc((elements(data->layout.d) + 1) * sizeof(float));
    peer->scratch = malloc((scratch + 1) * sizeof(float));
    peer->counts = calloc(2 * (size_t)world, sizeof(int));
    peer->offsets = peer->counts + world;
    if (!peer->d || !peer->scratch || !peer->counts)
        goto no_memory;
    memset(peer->scratch, 0, (scratch + 1) * sizeof(float));
    for (int s = 0; s < data->sets; s++) {
        if (!peer->own_operands) {
            peer->a[s] = data->set[s].a;
            peer->b[s] = data->set[s].b;
            continue;
        }
        peer->a[s] = malloc((elements(data->layout.a) + 1) * sizeof(float));
        peer->b[s] = malloc((elements(data->layout.b) + 1) * sizeof(float));
        if (!peer->a[s] || !peer->b[s])
            goto no_memory;
        tp_fill(data, s, TP_A, data->layout.a, p->transa, WEFT_F32, peer->a[s]);
        tp_fill(data, s, TP_B, data->layout.b, p->transb, WEFT_F32, peer->b[s]);
    }
    data->context->blas->set_threads(data->context->threads);
    return 0;
no_memory:
    return bench_say(data->context, "no memory for the peer's operands");
}

void tp_peer_close(tp_peer *peer)
{
    for (int s = 0; peer->own_operands && s < TP_MOST_SETS; s++) {
        free(peer->a[s]);
        free(peer->b[s]);
    }
    free(peer->d);
    free(peer->scratch);
    free(peer->counts);
}

int tp_peer_prepare(void *argument, int iteration)
{
    tp_peer *peer = argument;

    (void)iteration;
    tp_next_turn(peer->data);
    memset(peer->d, 0xff, elements(peer->data->layout.d) * sizeof(float));
    return 0;
}

int tp_peer_check(void *argument, int iteration)
{
    tp_peer *peer = argument;

    (void)iteration;
    tp_check(peer->data, tp_set_of(peer->data), peer->d, WEFT_F32);
    return 0;
}

/* d[m x n] = alpha a b, leading dimensions from how the operands are stored. */
static void product(const tp_peer *peer, tp_block a_block, const float *a, tp_block b_block, const float *b,
                    float *d, int64_t ldd)
{
    const weft_problem *p = &peer->data->problem;
    const blas_library *blas = peer->data->context->blas;
    int m = (int)a_block.rows, n = (int)b_block.cols, k = (int)a_block.cols;
    int lda = p->transa ? m : k, ldb = p->transb ? k : n;

    if (m == 0 || n == 0)
        return;
    if (k == 0) {
        for (int i = 0; i < m; i++)
            memset(d + i * ldd, 0, (size_t)n * sizeof *d);
    } else if (peer->vector && m == 1) {
        if (p->transb)
            blas->sgemv(BLAS_ROW_MAJOR, BLAS_PLAIN, n, k, p->alpha, b, k, a, 1, 0, d, 1);
        else
            blas->sgemv(BLAS_ROW_MAJOR, BLAS_TRANSPOSED, k, n, p->alpha, b, n, a, 1, 0, d, 1);
    } else {
        blas->sgemm(BLAS_ROW_MAJOR, p->transa ? BLAS_TRANSPOSED : BLAS_PLAIN,
                    p->transb ? BLAS_TRANSPOSED : BLAS_PLAIN, m, n, k, p->alpha, a, lda, b, ldb, 0, d,
                    (int)ldd);
    }
}

/* Counts and offsets of `block_elements(r)`, in rank order. */
static void set_counts(tp_peer *peer, size_t (*count)(tp_layout layout))
{
    int at = 0, world = peer->data->context->size;

    for (int r = 0; r < world; r++) {
        peer->counts[r] = (int)count(tp_layout_of(&peer->data->problem, world, r));
        peer->offsets[r] = at;
        at += peer->counts[r];
    }
}

static size_t count_a(tp_layout layout)
{
    return elements(layout.a);
}

static size_t count_b(tp_layout layout)
{
    return elements(layout.b);
}

static size_t count_d(tp_layout layout)
{
    return elements(layout.d);
}

static void run_ag(tp_peer *peer, const float *a, const float *b)
{
    const weft_problem *p = &peer->data->problem;
    tp_layout mine = peer->data->layout;
    int world = peer->data->context->size;
    bool gather_b = p->layout == WEFT_LAYOUT_GATHER_B;

    set_counts(peer, gather_b ? count_b : count_a);
    peer->data->context->mpi->all_gather_v(gather_b ? b : a, peer->scratch, peer->counts, peer->offsets,
                                           WEFT_F32);
    if (!gather_b && !p->transa) {
        product(peer, (tp_block){0, p->m, 0, p->k}, peer->scratch, mine.b, b, peer->d, mine.d.cols);
        return;
    }
    for (int r = 0; r < world; r++) {
        tp_layout theirs = tp_layout_of(p, world, r);
        const float *shard = peer->scratch + peer->offsets[r];
        if (gather_b)
            product(peer, mine.a, a, theirs.b, shard, peer->d + theirs.b.col0, mine.d.cols);
        else
            product(peer, theirs.a, shard, mine.b, b, peer->d + theirs.a.row0 * mine.d.cols, mine.d.cols);
    }
}

static void run_rs(tp_peer *peer, const float *a, const float *b)
{
    const weft_problem *p = &peer->data->problem;
    tp_layout mine = peer->data->layout;
    int world = peer->data->context->size;

    set_counts(peer, count_d);
    if (p->layout != WEFT_LAYOUT_SCATTER_COLS) {
        product(peer, mine.a, a, mine.b, b, peer->scratch, p->n);
    } else {
        for (int r = 0; r < world; r++) {
            /* A window of B's columns: its leading dimension stays n, so gemm is called on the window. */
            tp_block d = tp_layout_of(p, world, r).d;
            const blas_library *blas = peer->data->context->blas;
            const float *window = p->transb ? b + d.col0 * mine.b.rows : b + d.col0;
            if (d.cols && mine.b.rows)
                blas->sgemm(BLAS_ROW_MAJOR, p->transa ? BLAS_TRANSPOSED : BLAS_PLAIN,
                            p->transb ? BLAS_TRANSPOSED : BLAS_PLAIN, (int)p->m, (int)d.cols,
                            (int)mine.b.rows, p->alpha, a, (int)(p->transa ? p->m : mine.a.cols), window,
                            (int)(p->transb ? mine.b.rows : p->n), 0, peer->scratch + peer->offsets[r],
                            (int)d.cols);
            else
                memset(peer->scratch + peer->offsets[r], 0, elements(d) * sizeof(float));
        }
    }
    peer->data->context->mpi->reduce_scatter(peer->scratch, peer->d, peer->counts, WEFT_F32, WEFT_SUM);
}

static void run_as(tp_peer *peer, const float *a, const float *b)
{
    const weft_problem *p = &peer->data->problem;
    tp_layout mine = peer->data->layout;
    int world = peer->data->context->size, at = 0;
    float *columns = peer->scratch + p->m * p->n;

    product(peer, mine.a, a, mine.b, b, columns, mine.b.cols);
    for (int r = 0; r < world; r++) {
        peer->counts[r] = (int)(p->m * weft_problem_part_n(p, world, r).count);
        peer->offsets[r] = at;
        at += peer->counts[r];
    }
    peer->data->context->mpi->all_gather_v(columns, peer->scratch, peer->counts, peer->offsets, WEFT_F32);
    for (int64_t i = 0; i < p->m; i++) {
        for (int r = 0; r < world; r++) {
            weft_span span = weft_problem_part_n(p, world, r);
            memcpy(peer->d + i * p->n + span.begin, peer->scratch + peer->offsets[r] + i * span.count,
                   (size_t)span.count * sizeof(float));
        }
    }
}

int tp_peer_run(void *argument, int iteration)
{
    tp_peer *peer = argument;
    const weft_problem *p = &peer->data->problem;
    int set = tp_set_of(peer->data);
    const float *a = peer->a[set], *b = peer->b[set];

    (void)iteration;
    switch (p->op) {
    case WEFT_OP_AG_GEMM:
        run_ag(peer, a, b);
        break;
    case WEFT_OP_GEMM_RS:
        run_rs(peer, a, b);
        break;
    case WEFT_OP_GEMM_AS:
        run_as(peer, a, b);
        break;
    default:
        product(peer, peer->data->layout.a, a, peer->data->layout.b, b, peer->scratch, p->n);
        peer->data->context->mpi->all_reduce(peer->scratch, peer->d, p->m * p->n, WEFT_F32, WEFT_SUM);
        break;
    }
    return 0;
}
