/*
 * Products and collectives whose sizes change in every call, on a group of GPUs: hosts tell each other
 * nothing for a new one, not even where a rank comes when the others' calls have returned, and results are
 * right, those of known sizes too. Ranks are threads or processes; the GPU may be a fake one.
 */
#ifndef WEFT_TESTS_CUDA_NEW_SIZES_CASES_H
#define WEFT_TESTS_CUDA_NEW_SIZES_CASES_H

#include "core/clock.h"
#include "run/cuda/group.h"
#include "run/tp_case.h"
#include "support/check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sizes_run {
    int sizes;             /* new ones, one after another */
    int at_once;           /* calls before somebody waits */
    int quiet;             /* from this one on nobody tells anything: the arena has grown as it has to */
    int64_t step, side;    /* m is a multiple of the one; n and k */
    bool apart;            /* each rank has a GPU */
    bool late;             /* the last rank begins when the others' calls have returned; of threads */
    _Atomic int *returned; /* of how many ranks they have */
    bool shown;            /* what rank 0's calls took */
} sizes_run;

enum { SIZES_GATED = 4, SIZES_GATHER, SIZES_KINDS, SIZES_GATHERED = 40000 };

typedef struct sizes_call {
    tp_case t;
    tp_instance hosts[TP_OPERANDS], devices[TP_OPERANDS];
    int kind;
    int64_t count;
    char *block;
} sizes_call;

static inline uint64_t sizes_told(const weft_group *group)
{
    return group->sync + (group->session ? group->session->sequence : 0);
}

static inline tp_case sizes_case(const sizes_run *run, int index)
{
    static const weft_op ops[] = {WEFT_OP_AG_GEMM, WEFT_OP_GEMM_RS, WEFT_OP_GEMM_AR,
                                  WEFT_OP_GEMM_AS, WEFT_OP_AG_GEMM, WEFT_OP_AG_GEMM};
    tp_case t = {.integers = index % SIZES_KINDS != SIZES_GATED, .seed = (uint64_t)index + 1};

    weft_problem_init(&t.problem, ops[index % SIZES_KINDS]);
    t.problem.m = run->step * (index + 1);
    t.problem.n = t.problem.k = run->side;
    t.problem.dtype = t.problem.d_dtype = WEFT_BF16;
    t.problem.wire_dtype = WEFT_F32;
    if (index % SIZES_KINDS == SIZES_GATED)
        t.problem.act = WEFT_ACT_SILU_GATED;
    return t;
}

static inline size_t sizes_bytes(const tp_case *t, int world)
{
    size_t bytes = 0;

    for (int which = 0; which < TP_OPERANDS; which++)
        bytes += (tp_largest(t, which, world) + 255) / 256 * 256;
    return bytes;
}

/* One call's operands, in symmetric memory at `*at`, which goes on behind them. */
static inline void sizes_begin(weft_group *group, const sizes_run *run, int index, char **at, sizes_call *c)
{
    int world = weft_size(group), rank = weft_rank(group);

    *c = (sizes_call){.t = sizes_case(run, index), .kind = index % SIZES_KINDS, .block = *at};
    if (c->kind == SIZES_GATHER) {
        int32_t *mine = malloc(sizeof(*mine) * (size_t)(SIZES_GATHERED + index));

        c->count = SIZES_GATHERED + index;
        for (int64_t i = 0; i < c->count; i++)
            mine[i] = (int32_t)(i * 7 + rank);
        CHECK_INT(weft_memcpy(group, c->block, mine, (size_t)c->count * 4), WEFT_OK);
        *at += (size_t)(c->count + 64) / 64 * 256 * (size_t)(world + 1);
        free(mine);
        return;
    }
    tp_place(&c->t, world, rank, NULL, c->hosts);
    for (int which = 0; which < TP_OPERANDS; which++) {
        tp_fill(&c->t, which, &c->hosts[which]);
        c->devices[which] = c->hosts[which];
        c->devices[which].data = *at;
        CHECK_INT(weft_memcpy(group, *at, c->hosts[which].data, c->hosts[which].bytes), WEFT_OK);
        *at += (tp_largest(&c->t, which, world) + 255) / 256 * 256;
    }
}

static inline weft_status sizes_issue(weft_group *group, const sizes_call *c)
{
    weft_operands operands = tp_operands(c->devices);
    const weft_problem *p = &c->t.problem;

    if (c->kind == SIZES_GATHER)
        return weft_all_gather(group, c->block, c->block + (size_t)(c->count + 64) / 64 * 256, c->count,
                               WEFT_I32);
    return p->op == WEFT_OP_AG_GEMM   ? weft_ag_gemm(group, p, &operands)
           : p->op == WEFT_OP_GEMM_RS ? weft_gemm_rs(group, p, &operands)
           : p->op == WEFT_OP_GEMM_AR ? weft_gemm_ar(group, p, &operands)
                                      : weft_gemm_as(group, p, &operands);
}

/* Whether results are right; they are spoilt for the next time. */
static inline void sizes_check(weft_group *group, sizes_call *c)
{
    int64_t wrong = 0;
    tp_instance d = c->hosts[TP_D];

    if (c->kind == SIZES_GATHER) {
        size_t bytes = (size_t)c->count * 4 * (size_t)weft_size(group);
        char *at = c->block + (size_t)(c->count + 64) / 64 * 256;
        int32_t *got = malloc(bytes);

        CHECK_INT(weft_memcpy(group, got, at, bytes), WEFT_OK);
        for (int64_t i = 0; i < c->count * weft_size(group); i++)
            wrong += got[i] != (int32_t)(i % c->count * 7 + i / c->count);
        memset(got, 0xff, bytes);
        CHECK_INT(weft_memcpy(group, at, got, bytes), WEFT_OK);
        free(got);
    } else {
        CHECK_INT(weft_memcpy(group, d.data, c->devices[TP_D].data, d.bytes), WEFT_OK);
        wrong = tp_wrong(&c->t, weft_size(group), &d);
        tp_fill(&c->t, TP_D, &d);
        CHECK_INT(weft_memcpy(group, c->devices[TP_D].data, d.data, d.bytes), WEFT_OK);
    }
    CHECK_INT(wrong, 0);
    if (wrong)
        tp_print(&c->t, weft_size(group), weft_rank(group));
}

static inline void sizes_wait_for_others(weft_group *group, const sizes_run *run)
{
    int64_t begun = weft_clock_ns();

    while (atomic_load(run->returned) < weft_size(group) - 1 && weft_clock_ns() - begun < 20000000000)
        ;
    CHECK_INT(atomic_load(run->returned), weft_size(group) - 1);
}

static inline int sizes_order(const void *x, const void *y)
{
    return *(const double *)x < *(const double *)y ? -1 : *(const double *)x > *(const double *)y;
}

/* The median and the most of what calls of new sizes took, by what they are. */
static inline void sizes_show(weft_group *group, const double *us, int sizes)
{
    static const char *const names[] = {"ag_gemm", "gemm_rs", "gemm_ar", "gemm_as", "gated", "all_gather"};
    double *of = calloc((size_t)sizes, sizeof(*of));

    for (int kind = 0; kind < SIZES_KINDS && weft_rank(group) == 0; kind++) {
        int count = 0;

        for (int i = kind; i < sizes; i += SIZES_KINDS)
            of[count++] = us[i];
        qsort(of, (size_t)count, sizeof(*of), sizes_order);
        printf("new size of %s, %d ranks: %.0f us, at most %.0f\n", names[kind], weft_size(group),
               of[count / 2], of[count - 1]);
    }
    fflush(stdout);
    free(of);
}

static inline void sizes_rank(weft_group *group, void *argument)
{
    const sizes_run *run = argument;
    int world = weft_size(group), last = weft_rank(group) == world - 1;
    sizes_call *calls = calloc((size_t)run->sizes, sizeof(*calls)), first;
    double *us = calloc((size_t)run->sizes, sizeof(*us));
    size_t bytes = 0;
    char *memory = NULL, *at;
    uint64_t told;

    CHECK_INT(weft_group_use_gpu(group, run->apart ? weft_rank(group) : 0), WEFT_OK);
    for (int i = -1; i < run->sizes; i++) {
        tp_case t = sizes_case(run, i < 0 ? run->sizes * SIZES_KINDS : i);

        bytes += sizes_bytes(&t, world) + (size_t)(i % SIZES_KINDS == SIZES_GATHER) *
                                              (size_t)(SIZES_GATHERED + i + 128) * 4 * (size_t)(world + 1);
    }
    CHECK_INT(weft_alloc(group, bytes, 256, (void **)&memory), WEFT_OK);
    at = memory;
    sizes_begin(group, run, run->sizes * SIZES_KINDS, &at, &first); /* the largest: they meet for it */
    for (int i = 0; i < run->sizes; i++)
        sizes_begin(group, run, i, &at, &calls[i]);
    CHECK_INT(weft_group_set_stream(group, 1, WEFT_STREAM_OWN), WEFT_OK);
    CHECK_INT(sizes_issue(group, &first), WEFT_OK);
    CHECK_INT(weft_group_wait(group), WEFT_OK);
    sizes_check(group, &first);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (run->late && last)
        sizes_wait_for_others(group, run);
    told = sizes_told(group);
    for (int i = 0, checked = 0; i < run->sizes; i++) {
        int64_t begun = weft_clock_ns();

        if (i == run->quiet)
            told = sizes_told(group);
        CHECK_INT(sizes_issue(group, &calls[i]), WEFT_OK);
        us[i] = (double)(weft_clock_ns() - begun) * 1e-3;
        if (i + 1 - checked < run->at_once && i + 1 < run->sizes)
            continue;
        if (i >= run->quiet)
            CHECK_INT((int64_t)(sizes_told(group) - told), 0);
        if (run->returned)
            atomic_fetch_add(run->returned, 1);
        CHECK_INT(weft_group_wait(group), WEFT_OK);
        for (; checked <= i; checked++)
            sizes_check(group, &calls[checked]);
    }
    for (int i = run->sizes > 24 ? run->sizes - 24 : 0; i < run->sizes; i++) /* known ones */
        CHECK_INT(sizes_issue(group, &calls[i]), WEFT_OK);
    CHECK_INT(weft_group_wait(group), WEFT_OK);
    for (int i = run->sizes > 24 ? run->sizes - 24 : 0; i < run->sizes; i++)
        sizes_check(group, &calls[i]);
    for (int i = 0; i < run->sizes; i++)
        if (calls[i].kind != SIZES_GATHER)
            tp_release(calls[i].hosts);
    tp_release(first.hosts);
    if (run->shown)
        sizes_show(group, us, run->sizes);
    free(us);
    free(calls);
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

#endif
