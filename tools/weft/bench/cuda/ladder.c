/* See ladder.h; what the rungs do stands in ladder_kernels.h. */
#include "bench/cuda/ladder.h"

#include "core/round.h"
#include "run/cuda/embed.h"

#ifdef WEFT_LADDER_KERNELS
WEFT_CUDA_EMBED(weft_ladder_kernels, ".incbin \"" WEFT_LADDER_KERNELS "\"\n");
#else
WEFT_CUDA_EMBED(weft_ladder_kernels, "");
#endif
extern const char __attribute__((visibility("hidden"))) weft_ladder_kernels[];

enum { LINE = LADDER_LINE_WORDS * (int)sizeof(uint64_t), STEPS_MOST = 6 };

#define NONE LADDER_COUNT_OF_KERNELS /* ends a list */

static const struct {
    const char *name;
    ladder_kernel steps[2][STEPS_MOST + 1];
} rungs[] = {
    [LADDER_REFERENCE] = {"reference",
                          {{LADDER_stage, LADDER_meet, LADDER_collect, LADDER_look, LADDER_fetch, NONE},
                           {LADDER_answer, LADDER_meet, LADDER_sum, NONE}}},
    [LADDER_SORTED] = {"sorted",
                       {{LADDER_count, LADDER_scan, LADDER_pack, LADDER_meet, LADDER_pieces, LADDER_take,
                         NONE},
                        {LADDER_give, LADDER_meet, LADDER_sum, NONE}}},
    [LADDER_ROWS] = {"rows",
                     {{LADDER_push, LADDER_await, LADDER_count, LADDER_scan, LADDER_list, NONE},
                      {LADDER_answer, LADDER_sum, NONE}}},
    [LADDER_FUSED] = {"fused", {{NONE}, {NONE}}},
};

const char *ladder_name(ladder_rung rung)
{
    return rungs[rung].name;
}

weft_status ladder_open(const weft_cuda_driver *cu, ladder *l, weft_error_text *error)
{
    static const char *const names[] = {
#define NAME(name) "weft_ladder_" #name,
        LADDER_KERNELS(NAME)
#undef NAME
    };

    *l = (ladder){.cu = cu};
    WEFT_CUDA_TRY(cuModuleLoadData(&l->module, weft_ladder_kernels));
    for (int i = 0; i < LADDER_COUNT_OF_KERNELS; i++)
        WEFT_CUDA_TRY(cuModuleGetFunction(&l->kernel[i], l->module, names[i]));
    return WEFT_OK;
}

void ladder_close(ladder *l)
{
    if (l->module)
        l->cu->cuModuleUnload(l->module);
    *l = (ladder){0};
}

/* ---- where things lie ---------------------------------------------------------------------------------- */

/* The next `count` things of that size; NULL while it only measures. */
static void *next(char *base, size_t *used, int64_t count, size_t size)
{
    char *at = base ? base + *used : NULL;

    *used += weft_round_up_bytes((size_t)count * size, LINE);
    return at;
}

ladder_args ladder_lay_out(ladder_rung rung, const weft_device_moe_shape *shape, int world, int rank,
                           char *symmetric, char *own, size_t *symmetric_bytes, size_t *own_bytes)
{
    bool sorted = rung == LADDER_SORTED;
    ladder_args p = {.world = world,
                     .rank = rank,
                     .rung = (int32_t)rung,
                     .dtype = (int32_t)shape->dtype,
                     .experts = shape->experts,
                     .topk = shape->topk,
                     .experts_here = shape->experts_here,
                     .tokens = shape->capacity,
                     .pairs = shape->capacity * shape->topk,
                     .row_bytes = shape->row_bytes,
                     .row_stride = weft_round_up(shape->row_bytes, LINE)};
    int64_t all = world * p.pairs;
    size_t *s = symmetric_bytes, *o = own_bytes;

    while (p.first < p.experts && shape->owner[p.first] < rank)
        p.first++;
    *s = *o = 0;
    p.met = next(symmetric, s, world, LINE);
    p.staged = next(symmetric, s,
                    sorted                ? p.pairs
                    : rung == LADDER_ROWS ? all
                                          : p.tokens,
                    (size_t)p.row_stride);
    p.shown = next(symmetric, s, p.pairs, sizeof(*p.shown));
    p.piece = next(symmetric, s, (int64_t)world * p.experts, sizeof(*p.piece));
    p.word = next(symmetric, s, 2 * all, sizeof(*p.word));
    p.slot = next(symmetric, s, p.pairs, (size_t)p.row_stride);
    p.answered = next(symmetric, s, p.pairs, sizeof(*p.answered));

    p.state = next(own, o, 1, sizeof(*p.state));
    p.key = next(own, o, all, sizeof(*p.key));
    p.key_count = sorted ? p.pairs : all;
    p.first_key = sorted ? 0 : p.first;
    p.buckets = sorted ? p.experts : p.experts_here;
    p.earlier = next(own, o, p.key_count, sizeof(*p.earlier));
    p.chunk = next(own, o, weft_divide_up(p.key_count, LADDER_CHUNK) * p.buckets, sizeof(*p.chunk));
    p.bucket = next(own, o, p.buckets + 1, sizeof(*p.bucket));
    p.bucket_rows = next(own, o, p.buckets, sizeof(*p.bucket_rows));
    p.base = next(own, o, p.experts_here + 1, sizeof(*p.base));
    p.from = next(own, o, all, sizeof(*p.from));
    p.pair = next(own, o, all, sizeof(*p.pair));
    p.place = next(own, o, p.pairs, sizeof(*p.place));
    p.arrive = next(own, o, (int64_t)p.experts_here * world, sizeof(*p.arrive));
    return p;
}

/* ---- rounds -------------------------------------------------------------------------------------------- */

static weft_status launch(const ladder *l, ladder_kernel kernel, const ladder_args *rank,
                          weft_cuda_moe_room room, CUstream stream, weft_error_text *error)
{
    const weft_cuda_driver *cu = l->cu;
    bool one = kernel == LADDER_meet || kernel == LADDER_scan || kernel == LADDER_pieces,
         waits = kernel == LADDER_await || kernel == LADDER_sum;
    ladder_args p = *rank;
    void *parameters[] = {&p};
    CUlaunchConfig config =
        weft_cuda_config(one ? 1u : (unsigned)(waits ? room.waiting : room.ctas), LADDER_THREADS, 0, stream);

    p.keys = p.rung == LADDER_SORTED ? p.expert : p.key;
    WEFT_CUDA_TRY(cuLaunchKernelEx(&config, l->kernel[kernel], parameters, NULL));
    return WEFT_OK;
}

weft_status ladder_put(const ladder *l, const ladder_args *rank, int half, bool fetches,
                       weft_cuda_moe_room room, CUstream stream, weft_error_text *error)
{
    const ladder_kernel *steps = rungs[rank->rung].steps[half];
    weft_status status = WEFT_OK;

    for (int i = 0; steps[i] != NONE && status == WEFT_OK; i++) {
        ladder_args p = *rank;

        p.begins = i == 0 ? half + 1 : 0;
        p.ends = steps[i + 1] == NONE ? half + 1 : 0;
        status = launch(l, steps[i], &p, room, stream, error);
    }
    if (status == WEFT_OK && fetches && half == 0 && rank->rung == LADDER_ROWS)
        status = launch(l, LADDER_fetch, rank, room, stream, error);
    return status;
}

weft_status ladder_scale(const ladder *l, const ladder_args *rank, weft_cuda_moe_room room, CUstream stream,
                         weft_error_text *error)
{
    return launch(l, LADDER_scale, rank, room, stream, error);
}
