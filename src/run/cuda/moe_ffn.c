/*
 * Weights of a layer's feed-forward experts on a GPU, as grouped products read them: gate and up woven into
 * one matrix, the factors of columns beside it. Those that are stored as fp8 stay so, turned to n x k, their
 * lines on 16-byte boundaries for the copy engine; others become of the layer's type, k x n. Done on the
 * host: once for the life of an expert.
 */
#include "run/cuda/moe_ffn.h"

#include "core/dtype.h"
#include "core/round.h"
#include "gemm/convert.h"
#include "run/cuda/group.h"
#include "run/cuda/moe.h"

#include <stdlib.h>

enum { VECTOR = 16, WORD = 2 /* bytes of an element of the layer's type */ };

weft_status weft_cuda_moe_ffn_check(weft_group *group, const weft_device_ffn_shape *shape)
{
    if ((shape->dtype == WEFT_F16 || shape->dtype == WEFT_BF16) && shape->hidden % (VECTOR / WORD) == 0 &&
        shape->inter % (VECTOR / WORD) == 0)
        return WEFT_OK;
    return weft_error_set(&group->error, WEFT_ERR_UNSUPPORTED,
                          "moe: on GPUs the feed-forward expert is of float16 or bfloat16, and hidden and "
                          "inter are multiples of %d; this one is of %s, %lld and %lld",
                          VECTOR / WORD, weft_dtype_name(shape->dtype), (long long)shape->hidden,
                          (long long)shape->inter);
}

/* What is being packed, of all experts here, and where it is woven: `host` has room for an expert's. */
typedef struct packing {
    weft_group *group;
    const weft_device_ffn_shape *shape;
    const weft_moe_weights *weights;
    weft_device_ffn *to;
    char *host;
} packing;

static bool has_scales(const weft_moe_weights *w)
{
    return w->gate_scale || w->up_scale || w->down_scale;
}

/* A k x n matrix of every expert, as it will lie. */
static weft_device_matrix matrix_of(const weft_device_ffn_shape *shape, weft_dtype stored, int64_t k,
                                    int64_t n)
{
    bool turned = weft_dtype_is_fp8(stored);

    return (weft_device_matrix){.dtype = turned ? stored : shape->dtype,
                                .transposed = turned,
                                .ld = turned ? weft_round_up(k, VECTOR) : n};
}

static size_t gate_up_bytes(const packing *p)
{
    const weft_device_matrix *m = &p->to->gate_up;

    return (size_t)((m->transposed ? 2 * p->shape->inter : p->shape->hidden) * m->ld) *
           weft_dtype_size(m->dtype);
}

static size_t down_bytes(const packing *p)
{
    const weft_device_matrix *m = &p->to->down;

    return (size_t)((m->transposed ? p->shape->hidden : p->shape->inter) * m->ld) * weft_dtype_size(m->dtype);
}

static weft_status allocate(const packing *p)
{
    const weft_device_ffn_shape *s = p->shape;
    weft_device_ffn *to = p->to;
    size_t experts = (size_t)s->experts;
    weft_status status = weft_cuda_moe_memory(p->group, experts * gate_up_bytes(p), &to->gate_up.memory);

    if (!status)
        status = weft_cuda_moe_memory(p->group, experts * down_bytes(p), &to->down.memory);
    if (!status && has_scales(p->weights))
        status = weft_cuda_moe_memory(p->group, 2 * experts * (size_t)s->inter * sizeof(float),
                                      &to->gate_up.col_scale);
    if (!status && has_scales(p->weights))
        status =
            weft_cuda_moe_memory(p->group, experts * (size_t)s->hidden * sizeof(float), &to->down.col_scale);
    return status;
}

/* Room on the host for a matrix as it is stored, of 4 bytes an element at most, and four as they are
 * multiplied: also for all three of an expert as fp8, whose lines are at most doubled. */
enum { HOST_BYTES = 4 + 4 * WORD };

/* One matrix to `to` on the host, in the layer's type; by way of `stored`, where there is room for it. */
static weft_status fetch(const packing *p, const void *matrix, char *stored, char *to)
{
    int64_t count = p->shape->hidden * p->shape->inter;
    weft_dtype dtype = p->weights->dtype;
    weft_status status = weft_cuda_copy(p->group, stored, matrix, (size_t)count * weft_dtype_size(dtype));

    if (!status)
        weft_convert_row(p->shape->dtype, to, dtype, stored, count);
    return status;
}

/* The weights of one expert. */
static weft_status load_converted(const packing *p, int e)
{
    const weft_moe_weights *w = p->weights;
    int64_t count = p->shape->hidden * p->shape->inter, bytes = count * WORD;
    char *host = p->host, *stored = host + 4 * bytes;
    weft_status status = fetch(p, w->gate[e], stored, host);

    if (!status)
        status = fetch(p, w->up[e], stored, host + bytes);
    if (status)
        return status;
    weft_interleave(host + 2 * bytes, host, host + bytes, count, WORD);
    status = weft_cuda_copy(p->group, (char *)p->to->gate_up.memory + e * 2 * bytes, host + 2 * bytes,
                            (size_t)(2 * bytes));
    if (!status)
        status = fetch(p, w->down[e], stored, host);
    if (!status)
        status = weft_cuda_copy(p->group, (char *)p->to->down.memory + e * bytes, host, (size_t)bytes);
    return status;
}

/* One k x n matrix of bytes to n x k on the host, its lines `pitch` apart; by way of `stored`. */
static weft_status fetch_turned(const packing *p, const void *matrix, int64_t k, int64_t n, char *stored,
                                char *to, int64_t pitch)
{
    enum { BLOCK = 64 }; /* lines of the cache that both sides keep */
    weft_status status = weft_cuda_copy(p->group, stored, matrix, (size_t)(k * n));

    for (int64_t j0 = 0; j0 < n && !status; j0 += BLOCK)
        for (int64_t i0 = 0; i0 < k; i0 += BLOCK)
            for (int64_t j = j0; j < n && j < j0 + BLOCK; j++)
                for (int64_t i = i0; i < k && i < i0 + BLOCK; i++)
                    to[j * pitch + i] = stored[i * n + j];
    return status;
}

/* The same as load_converted of weights that stay fp8. */
static weft_status load_turned(const packing *p, int e)
{
    const weft_moe_weights *w = p->weights;
    int64_t hidden = p->shape->hidden, inter = p->shape->inter, line = p->to->gate_up.ld;
    size_t both = gate_up_bytes(p), rest = down_bytes(p);
    char *host = p->host, *down = host + both, *stored = down + rest;
    weft_status status = fetch_turned(p, w->gate[e], hidden, inter, stored, host, 2 * line);

    if (!status)
        status = fetch_turned(p, w->up[e], hidden, inter, stored, host + line, 2 * line);
    if (!status)
        status = fetch_turned(p, w->down[e], inter, hidden, stored, down, p->to->down.ld);
    if (!status)
        status = weft_cuda_copy(p->group, (char *)p->to->gate_up.memory + (size_t)e * both, host, both);
    if (!status)
        status = weft_cuda_copy(p->group, (char *)p->to->down.memory + (size_t)e * rest, down, rest);
    return status;
}

/* The factors of a matrix's columns to the host. */
static weft_status fetch_scale(const packing *p, const float *const *list, int e, int64_t count, float *to)
{
    if (list && list[e])
        return weft_cuda_copy(p->group, to, list[e], (size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        to[i] = 1;
    return WEFT_OK;
}

/* Those of one expert: on the host 4 inter + hidden. */
static weft_status load_scales(const packing *p, int e)
{
    const weft_moe_weights *w = p->weights;
    int64_t hidden = p->shape->hidden, inter = p->shape->inter;
    float *host = (float *)(void *)p->host, *both = host + 2 * inter, *down = both + 2 * inter;
    weft_status status = fetch_scale(p, w->gate_scale, e, inter, host);

    if (!status)
        status = fetch_scale(p, w->up_scale, e, inter, host + inter);
    if (!status)
        status = fetch_scale(p, w->down_scale, e, hidden, down);
    if (status)
        return status;
    weft_interleave(both, host, host + inter, inter, sizeof(float));
    status = weft_cuda_copy(p->group, (float *)p->to->gate_up.col_scale + e * 2 * inter, both,
                            (size_t)(2 * inter) * sizeof(float));
    if (!status)
        status = weft_cuda_copy(p->group, (float *)p->to->down.col_scale + e * hidden, down,
                                (size_t)hidden * sizeof(float));
    return status;
}

weft_status weft_cuda_moe_ffn_pack(weft_group *group, const weft_device_ffn_shape *shape,
                                   const weft_moe_weights *weights, weft_device_ffn *ffn)
{
    packing p = {group, shape, weights, ffn, NULL};
    weft_status status;

    ffn->gate_up = matrix_of(shape, weights->dtype, shape->hidden, 2 * shape->inter);
    ffn->down = matrix_of(shape, weights->dtype, shape->inter, shape->hidden);
    p.host = calloc((size_t)(shape->hidden * shape->inter) * HOST_BYTES +
                        (size_t)(4 * shape->inter + shape->hidden) * sizeof(float),
                    1); /* what is between lines is copied too */
    if (!p.host)
        return weft_error_set(&group->error, WEFT_ERR_MEMORY, "moe: no memory for an expert's weights");
    status = allocate(&p);
    for (int e = 0; e < shape->experts && !status; e++)
        status = ffn->down.transposed ? load_turned(&p, e) : load_converted(&p, e);
    for (int e = 0; e < shape->experts && !status && has_scales(weights); e++)
        status = load_scales(&p, e);
    free(p.host);
    return status;
}
