/*
 * Products on a group of GPUs through weft.h, each beside the same product on a group of CPUs: small integers
 * must give the same bits, and nothing outside D may change; real numbers stay under the derived bound and
 * give the same bits every run. Ranks are threads or processes; the GPU may be a fake one.
 */
#ifndef WEFT_TESTS_CUDA_API_CASES_H
#define WEFT_TESTS_CUDA_API_CASES_H

#include "run/tp_case.h"
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

typedef struct api_run {
    bool small;     /* the fake GPU: small tiles and shapes */
    int runs;       /* back to back, for each case */
    int shapes;     /* at most so many */
    bool elsewhere; /* operands in memory that peers cannot reach */
    bool apart;     /* the GPUs in turn, not all on the first */
} api_run;

static const struct {
    weft_op op;
    weft_schedule schedule;
} api_kinds[] = {
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_A},
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_ALLGATHER_ROTATING_B},
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_DIRECT},
    {WEFT_OP_AG_GEMM, WEFT_SCHEDULE_UNFUSED},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_A},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_REDUCESCATTER_TILING_B},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_DIRECT},
    {WEFT_OP_GEMM_RS, WEFT_SCHEDULE_UNFUSED},
    {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_ONE_SHOT},
    {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_TWO_SHOT},
    {WEFT_OP_GEMM_AR, WEFT_SCHEDULE_UNFUSED},
    {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_ALL_SCATTER},
    {WEFT_OP_GEMM_AS, WEFT_SCHEDULE_UNFUSED},
};
enum { API_KINDS = sizeof(api_kinds) / sizeof(api_kinds[0]) };

static inline void api_tell(const tp_case *t, weft_group *group, const char *what, const char *why)
{
    fprintf(stderr, "%s: %s: ", what, why);
    tp_print(t, weft_size(group), weft_rank(group));
}

/* One block of GPU memory of the group `memory` with this rank's instances, D poisoned like the host's. */
static inline weft_status api_upload(const tp_case *t, weft_group *gpu, weft_group *memory,
                                     const tp_instance hosts[], tp_instance devices[], void **block)
{
    size_t bytes = 0, at[TP_OPERANDS];
    weft_status status;

    for (int which = 0; which < TP_OPERANDS; which++) {
        at[which] = bytes;
        bytes += (tp_largest(t, which, weft_size(gpu)) + 255) / 256 * 256;
    }
    status = weft_alloc(memory, bytes, 0, block);
    for (int which = 0; which < TP_OPERANDS && status == WEFT_OK; which++) {
        devices[which] = hosts[which];
        devices[which].data = (char *)*block + at[which];
        status = weft_memcpy(gpu, devices[which].data, hosts[which].data, hosts[which].bytes);
    }
    return status;
}

/* Factors of rows, columns and blocks, alpha and beta, on the host (of which `memory` has room for all) and,
 * at the same places, in GPU memory, which is set at `device`. */
static inline void api_scales(const tp_case *t, weft_group *gpu, weft_group *memory, const tp_instance *d,
                              weft_operands *host, weft_operands *on_gpu, float **values, void **device)
{
    int world = weft_size(gpu), rank = weft_rank(gpu);
    int64_t width = tp_width(&t->problem), outer = d->rows.count + d->cols.count * width,
            a = tp_blocks(t, false, world, rank, NULL), b = tp_blocks(t, true, world, rank, NULL), most = 0;

    for (int r = 0; r < world; r++) { /* symmetric memory is asked for alike */
        tp_instance other = tp_shape(t, TP_D, world, r);
        int64_t count = other.rows.count + other.cols.count * width + tp_blocks(t, false, world, r, NULL) +
                        tp_blocks(t, true, world, r, NULL) + 2;

        most = count > most ? count : most;
    }
    *values = calloc((size_t)most, sizeof(**values));
    tp_values(t, d, *values, host);
    tp_blocks(t, false, world, rank, *values + outer);
    tp_blocks(t, true, world, rank, *values + outer + a);
    (*values)[outer + a + b] = t->problem.alpha;
    (*values)[outer + a + b + 1] = t->problem.beta;
    host->a_scale = t->a_scale ? *values + outer : NULL;
    host->b_scale = t->b_scale ? *values + outer + a : NULL;
    CHECK_INT(weft_alloc(memory, (size_t)most * sizeof(float), 0, device), WEFT_OK);
    CHECK_INT(weft_memcpy(gpu, *device, *values, (size_t)most * sizeof(float)), WEFT_OK);
    on_gpu->row_scale = t->row_scale ? *device : NULL;
    on_gpu->col_scale = t->col_scale ? (float *)*device + d->rows.count : NULL;
    on_gpu->a_scale = t->a_scale ? (float *)*device + outer : NULL;
    on_gpu->b_scale = t->b_scale ? (float *)*device + outer + a : NULL;
    if (t->run_values && t->host_values) {
        on_gpu->alpha = host->alpha;
        on_gpu->beta = host->beta;
    } else if (t->run_values) {
        on_gpu->alpha = (float *)*device + outer + a + b;
        on_gpu->beta = t->problem.beta != 0 ? on_gpu->alpha + 1 : NULL;
    }
}

/* `runs` runs on the group's stream, then D as it lies there. */
static inline weft_status api_product(weft_group *gpu, weft_plan *plan, const weft_operands *operands,
                                      int runs, const tp_instance *d, char *out)
{
    weft_status status = WEFT_OK;

    for (int i = 0; i < runs && status == WEFT_OK; i++)
        status = weft_run_on(plan, operands, WEFT_STREAM_OWN);
    if (status == WEFT_OK)
        status = weft_run_wait(plan, WEFT_STREAM_OWN);
    return status == WEFT_OK ? weft_memcpy(gpu, out, d->data, d->bytes) : status;
}

/* What of D differs from the CPU's, bit for bit. */
static inline long api_differ(const tp_instance *d, const char *got)
{
    size_t size = weft_dtype_size(d->dtype);
    long differ = 0;

    for (size_t i = 0; i < d->bytes / size; i++)
        differ += memcmp(got + i * size, d->data + i * size, size) != 0;
    return differ;
}

static inline void api_try(weft_group *gpu, weft_group *cpu, weft_group *memory, const tp_case *t, int runs)
{
    tp_instance hosts[TP_OPERANDS], devices[TP_OPERANDS];
    weft_plan *on_cpu = NULL, *on_gpu = NULL;
    weft_operands operands, on_cpu_operands;
    weft_problem planned = tp_planned(t);
    weft_status status;
    void *block = NULL, *scales = NULL;
    float *values = NULL;
    char *got, *again;

    tp_place(t, weft_size(gpu), weft_rank(gpu), NULL, hosts);
    for (int which = 0; which < TP_OPERANDS; which++)
        tp_fill(t, which, &hosts[which]);
    got = malloc(hosts[TP_D].bytes + 1);
    again = malloc(hosts[TP_D].bytes + 1);
    status = api_upload(t, gpu, memory, hosts, devices, &block);
    operands = tp_operands(devices);
    on_cpu_operands = tp_operands(hosts);
    if (t->problem.scales || t->row_scale || t->col_scale || t->run_values)
        api_scales(t, gpu, memory, &hosts[TP_D], &on_cpu_operands, &operands, &values, &scales);
    if (status == WEFT_OK)
        status = weft_plan_create(gpu, &planned, &on_gpu);
    if (status == WEFT_OK) {
        status = api_product(gpu, on_gpu, &operands, runs, &devices[TP_D], got);
    }
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK) {
        api_tell(t, gpu, "gpu", weft_error(gpu));
    } else if (t->integers) {
        weft_problem problem = planned;

        problem.tuning.tile_m = problem.tuning.tile_n = problem.tuning.tile_k = 0;
        status = weft_plan_create(cpu, &problem, &on_cpu);
        if (status == WEFT_OK)
            status = weft_run(on_cpu, &on_cpu_operands);
        CHECK_INT(status, WEFT_OK);
        if (status != WEFT_OK)
            api_tell(t, cpu, "cpu", weft_error(cpu));
        else if (api_differ(&hosts[TP_D], got) != 0)
            api_tell(t, gpu, "gpu and cpu", "differ");
        CHECK_INT(api_differ(&hosts[TP_D], got), 0);
    } else {
        memcpy(hosts[TP_D].data, got, hosts[TP_D].bytes);
        CHECK_INT(tp_wrong(t, weft_size(gpu), &hosts[TP_D]), 0);
        CHECK_INT(api_product(gpu, on_gpu, &operands, 3, &devices[TP_D], again), WEFT_OK);
        CHECK_INT(memcmp(got, again, hosts[TP_D].bytes), 0);
    }
    weft_plan_destroy(on_cpu);
    weft_plan_destroy(on_gpu);
    if (block)
        CHECK_INT(weft_free(memory, block), WEFT_OK);
    if (scales)
        CHECK_INT(weft_free(memory, scales), WEFT_OK);
    free(values);
    free(got);
    free(again);
    tp_release(hosts);
}

static inline tp_case api_case(const api_run *run, int kind, int64_t m, int64_t n, int64_t k)
{
    tp_case t = {.integers = true, .seed = (uint64_t)(m + n + k)};

    weft_problem_init(&t.problem, api_kinds[kind].op);
    t.problem.schedule = api_kinds[kind].schedule;
    t.problem.m = m;
    t.problem.n = n;
    t.problem.k = k;
    t.problem.dtype = t.problem.d_dtype = WEFT_BF16;
    t.problem.wire_dtype = WEFT_F32;
    if (run->small)
        t.problem.tuning.tile_m = t.problem.tuning.tile_n = 32, t.problem.tuning.tile_k = 16;
    return t;
}

/* Every operation and schedule, with shapes that divide evenly and that do not. */
static inline void api_all(weft_group *gpu, weft_group *cpu, weft_group *memory, const api_run *run)
{
    static const int64_t large[][3] = {{520, 392, 600}, {301, 275, 131}, {1024, 512, 256}},
                         small[][3] = {{72, 88, 40}, {61, 47, 33}, {64, 64, 32}};

    for (int s = 0; s < 3 && s < run->shapes; s++)
        for (int kind = 0; kind < API_KINDS; kind++) {
            const int64_t *shape = run->small ? small[s] : large[s];
            tp_case t = api_case(run, kind, shape[0], shape[1], shape[2]);

            t.problem.bias = s != 2;
            t.problem.beta = s == 0;
            api_try(gpu, cpu, memory, &t, run->runs);
        }
}

/* Epilogues, transposes, strides, dtypes, batches and granules, over all operations in turn. */
static inline void api_forms(weft_group *gpu, weft_group *cpu, weft_group *memory, const api_run *run)
{
    int64_t m = run->small ? 56 : 333, n = run->small ? 40 : 304, k = run->small ? 48 : 208;

    for (int i = 0; i < 2 * API_KINDS; i++) {
        tp_case t = api_case(run, i % API_KINDS, m, n, k);

        t.problem.dtype = i % 2 ? WEFT_F16 : WEFT_BF16;
        t.problem.d_dtype = i % 5 == 4 ? WEFT_F32 : t.problem.dtype;
        t.problem.transa = i % 3 == 1;
        t.problem.transb = i % 4 > 1;
        t.problem.alpha = i % 3 ? 1 : 2;
        t.problem.beta = i % 4 == 3 ? -1 : 0;
        t.problem.bias = i % 2;
        t.problem.act = i % 3 == 2 ? WEFT_ACT_RELU : WEFT_ACT_NONE;
        t.problem.l = i % 7 == 6 ? 3 : 1;
        t.problem.granule_m = i % 5 == 1 ? 9 : 0;
        t.problem.granule_n = i % 5 == 2 ? 16 : 0;
        t.problem.granule_k = i % 5 == 3 ? 7 : 0;
        t.slack = (const int[]){0, 8, 3, 16}[i % 4]; /* 3: rows the copy engine cannot address */
        api_try(gpu, cpu, memory, &t, 2);
    }
}

/* k gathered, as for the gradient of a weight: of A and of B, by every schedule, both ways they lie, even
 * parts and others. */
static inline void api_gathers_k(weft_group *gpu, weft_group *cpu, weft_group *memory, const api_run *run)
{
    static const weft_schedule schedules[] = {WEFT_SCHEDULE_AUTO, WEFT_SCHEDULE_DIRECT,
                                              WEFT_SCHEDULE_UNFUSED};

    for (int i = 0; i < (run->small ? 6 : 12); i++) {
        bool even = i % 4 < 2;
        tp_case t = api_case(run, 0, run->small ? 40 : 520, run->small ? 72 : 392,
                             (run->small ? 16 : 128) * (int64_t)weft_size(gpu) + (even ? 0 : 5));

        t.problem.schedule = schedules[i % 3];
        t.problem.layout = i % 2 ? WEFT_LAYOUT_GATHER_B_K : WEFT_LAYOUT_GATHER_A_K;
        t.problem.transa = i % 3 != 1;
        t.problem.transb = i % 5 == 4;
        t.problem.beta = i % 3 == 2;
        t.problem.d_dtype = i % 4 == 3 ? WEFT_F32 : t.problem.dtype;
        t.problem.granule_k = i == 5 ? 8 : 0;
        t.slack = even ? 0 : 3;
        api_try(gpu, cpu, memory, &t, 2);
    }
}

/* fp8 with every kind of scales, as run values: of rows and columns, of blocks, alpha; all operations, types
 * of D, both ways A and B lie, n and k that end inside blocks and begin there. */
static inline void api_scaled(weft_group *gpu, weft_group *cpu, weft_group *memory, const api_run *run)
{
    static const weft_dtype outputs[] = {WEFT_BF16, WEFT_F16, WEFT_F32, WEFT_FP8_E4M3};

    for (int i = 0; i < (run->small ? 1 : 2) * API_KINDS; i++) {
        tp_case t = api_case(run, i % API_KINDS, run->small ? 24 : 272, run->small ? 136 : 432,
                             run->small ? 272 : 784);

        t.problem.dtype = i % 2 ? WEFT_FP8_E5M2 : WEFT_FP8_E4M3;
        t.problem.d_dtype = outputs[i % 4];
        t.problem.scales = i % 3 ? TP_BLOCK : 1;
        t.problem.transb = i % 5 != 4;
        t.problem.transa = i % 7 == 6;
        t.problem.alpha = 2;
        t.problem.bias = i % 4 == 1;
        t.problem.tuning.tile_k = run->small ? TP_BLOCK : 0;
        t.run_values = i % 2;
        t.row_scale = i % 3 != 1;
        t.col_scale = i % 4 != 2;
        t.problem.beta = i % 5 == 3 ? -1 : 0;
        t.host_values = i % 4 == 3;
        t.a_scale = i % 3 == 1 || i % 6 == 2;
        t.b_scale = i % 3 == 1 || i % 6 == 5;
        api_try(gpu, cpu, memory, &t, 2);
    }
}

/* Epilogues behind the product: gated activations, scales that the plan knows of and others, alpha and beta
 * as values of the run, in memory of the GPU and of the host. */
static inline void api_epilogues(weft_group *gpu, weft_group *cpu, weft_group *memory, const api_run *run)
{
    for (int i = 0; i < (run->small ? 9 : 2 * API_KINDS); i++) {
        tp_case t = api_case(run, i * 5 % API_KINDS, run->small ? 40 : 333, run->small ? 56 : 304,
                             run->small ? 48 : 208);
        bool gated = (t.problem.op == WEFT_OP_AG_GEMM || t.problem.op == WEFT_OP_GEMM_AS) && i % 4 != 3;

        t.problem.dtype = i % 2 ? WEFT_F16 : WEFT_BF16;
        t.problem.d_dtype = i % 5 == 2 ? WEFT_F32 : t.problem.dtype;
        t.problem.act = gated ? WEFT_ACT_RELU_GATED : i % 3 ? WEFT_ACT_NONE : WEFT_ACT_RELU;
        t.problem.scales = i % 3 == 1;
        t.problem.alpha = i % 4 == 1 ? 0 : 2;
        t.problem.beta = !gated && i % 2 ? -1 : 0;
        t.problem.bias = i % 3 != 2;
        t.problem.transb = i % 2;
        t.problem.l = i % 7 == 6 ? 2 : 1;
        t.problem.granule_n = i % 4 == 0 ? 12 : 0;
        t.row_scale = i % 3 != 2 && i != 6;
        t.col_scale = i % 3 == 1;
        t.run_values = i % 3 != 0;
        t.host_values = i % 3 == 2;
        t.slack = i % 4 == 2 ? 3 : 0;
        api_try(gpu, cpu, memory, &t, 2);
    }
}

/* Unfused products whose other half is a collective by itself: small ones by packets, others by the kernel of
 * the arrays, with lines that have gaps; and some that no collective can do. Of some gemm_ar the sums stay
 * with their owners, as of a D that peers cannot reach. The last two are fused, and stage so where they have
 * to. */
static inline void api_halves(weft_group *gpu, weft_group *cpu, weft_group *memory, const api_run *run)
{
    static const weft_op ops[] = {WEFT_OP_AG_GEMM, WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AR, WEFT_OP_GEMM_AS};
    int world = weft_size(gpu);

    for (int i = 0; i < 17; i++) {
        bool fused = i >= 15, stays = i == 8 || i == 14;
        weft_op op = ops[fused ? i - 13 : i % 3];
        bool big = i / 3 % 3 == 2, uneven = i >= 9 && i < 12;
        int64_t m = (big ? 24 : 2) * world + (uneven && op != WEFT_OP_GEMM_AR),
                n = uneven && op == WEFT_OP_GEMM_AR ? 68
                                                    : (run->small ? 64
                                                       : big      ? 4096
                                                                  : 256) *
                                                          world,
                k = 16 * world;
        tp_case t = api_case(run, 0, m, n, k);

        weft_problem_init(&t.problem, op);
        t.problem.schedule = fused   ? WEFT_SCHEDULE_TWO_LEVEL
                             : i % 2 ? WEFT_SCHEDULE_AUTO
                                     : WEFT_SCHEDULE_UNFUSED;
        t.problem.tuning.staged = stays;
        t.problem.m = m;
        t.problem.n = n;
        t.problem.k = k;
        t.problem.dtype = t.problem.d_dtype = t.problem.wire_dtype = i % 4 ? WEFT_BF16 : WEFT_F16;
        t.problem.tuning.library = i % 2 || fused ? 0 : 1;
        t.problem.transb = i % 5 == 0;
        t.slack = i >= 12 && !fused ? 8 : 0;
        /* auto may take a ring, which rounds what it hands on: more than 256 is not exact there */
        t.integers = i % 7 != 6 && (i % 2 == 0 || op == WEFT_OP_AG_GEMM);
        api_try(gpu, cpu, memory, &t, 3);
        if (world > 1 && i % 2 == 0) {
            weft_plan *plan = NULL;

            CHECK_INT(weft_plan_create(gpu, &t.problem, &plan), WEFT_OK);
            if (plan && weft_plan_problem(plan)->tuning.library == 1) {
                CHECK_INT(weft_plan_problem(plan)->tuning.exchange, uneven ? 0 : 3);
                CHECK_INT(weft_plan_problem(plan)->tuning.staged, stays);
            }
            weft_plan_destroy(plan);
        }
    }
}

static inline void api_reals(weft_group *gpu, weft_group *cpu, weft_group *memory, const api_run *run)
{
    static const weft_act acts[] = {WEFT_ACT_NONE, WEFT_ACT_GELU, WEFT_ACT_SILU};
    int64_t m = run->small ? 48 : 200, n = run->small ? 56 : 152, k = run->small ? 40 : 328;

    for (int kind = 0; kind < API_KINDS; kind++) {
        tp_case t = api_case(run, kind, m, n, k);

        t.integers = false;
        t.problem.dtype = t.problem.d_dtype = kind % 2 ? WEFT_F16 : WEFT_BF16;
        t.problem.alpha = 0.5f;
        t.problem.beta = kind % 3 ? 0 : 1;
        t.problem.bias = 1;
        t.problem.act = acts[kind % 3];
        if (kind == 1 || kind == 3 || kind == 11) { /* ag_gemm, gemm_as */
            t.problem.act = kind == 1 ? WEFT_ACT_GELU_GATED : WEFT_ACT_SILU_GATED;
            t.problem.beta = 0;
        }
        api_try(gpu, cpu, memory, &t, 1);
    }
}

/* A group on GPU 0 (or apart) and, of the same ranks, one on the CPU. False when there is no GPU to use. */
static inline bool api_groups(weft_group *group, bool apart, weft_group **cpu)
{
    CHECK_INT(weft_group_split(group, 0, weft_rank(group), cpu), WEFT_OK);
    weft_status status = weft_group_use_gpu(group, apart ? -1 : 0);
    CHECK_INT(status, WEFT_OK);
    if (status != WEFT_OK)
        fprintf(stderr, "rank %d: %s\n", weft_rank(group), weft_error(group));
    weft_set_deadlines(group, 20, 20);
    return status == WEFT_OK;
}

static inline void api_scaled_rank(weft_group *group, void *argument)
{
    weft_group *cpu = NULL;

    if (api_groups(group, false, &cpu))
        api_scaled(group, cpu, group, argument);
    weft_group_free(cpu);
}

static inline void api_rank(weft_group *group, void *argument)
{
    const api_run *run = argument;
    weft_group *cpu = NULL, *memory = group;

    if (api_groups(group, run->apart, &cpu)) {
        if (run->elsewhere) {
            CHECK_INT(weft_group_split(cpu, 0, weft_rank(group), &memory), WEFT_OK);
            CHECK_INT(weft_group_use_gpu(memory, run->apart ? -1 : 0), WEFT_OK);
        }
        api_all(group, cpu, memory, run);
        api_forms(group, cpu, memory, run);
        api_gathers_k(group, cpu, memory, run);
        api_epilogues(group, cpu, memory, run);
        api_reals(group, cpu, memory, run);
        if (run->small)
            api_scaled(group, cpu, memory, run);
        api_halves(group, cpu, memory, run);
    }
    if (memory != group)
        weft_group_free(memory);
    weft_group_free(cpu);
}

#endif
