/* Calls of `weft bench … --backend cuda`: what is read and refused, in builds without CUDA too. */
#include "bench/cuda/bench_cuda.h"

#include "core/dtype.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINK_FORM                                                                                            \
    "a rate and a latency, such as 450GB/s,2us; of products also how much later peers are: 450GB/s,2us,10us"

const char *bench_read_link(void *target, const char *value)
{
    bench_link *link = target;
    char *end;
    double rate = strtod(value, &end);

    if (end == value || rate <= 0 || strncmp(end, "GB/s,", 5) != 0)
        return LINK_FORM;
    value = end + 5;
    double latency = strtod(value, &end), late = 0;
    if (end == value || !(latency >= 0) || strncmp(end, "us", 2) != 0)
        return LINK_FORM;
    if (end[2] == ',') {
        value = end + 3;
        late = strtod(value, &end);
        if (end == value || !(late >= 0 && late <= 1e6) || strncmp(end, "us", 2) != 0)
            return LINK_FORM;
    }
    if (end[2])
        return LINK_FORM;
    *link = (bench_link){rate, latency * 1e3, late * 1e3};
    return NULL;
}

bool bench_cuda_has_mps(void)
{
    const char *place = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char control[4096];

    snprintf(control, sizeof control, "%s/control", place && *place ? place : "/tmp/nvidia-mps");
    return access(control, F_OK) == 0;
}

weft_schedule bench_cuda_link_schedule(weft_op op)
{
    return op == WEFT_OP_GEMM_AR ? WEFT_SCHEDULE_TWO_SHOT : WEFT_SCHEDULE_ALL_SCATTER;
}

/* One line for what is not measured, NULL for what is. */
static const char *refusal(const weft_options *o, const bench_link *link)
{
    const weft_problem *p = &o->problem;

    if (!o->is_plan_op)
        return "--backend cuda measures ag_gemm, gemm_rs, gemm_ar, gemm_as, the collectives and moe, not ";
    if (p->op == WEFT_OP_BROADCAST && link)
        return "--link: ranks that all do the same can run as one in the loop, not those of ";
    if (p->op > WEFT_OP_GEMM_AS)
        return link && link->late_ns > 0 ? "--link: peers that are late are for products, not for " : NULL;
    if (p->beta != 0 || p->bias || p->act != WEFT_ACT_NONE || p->alpha != 1 || p->l != 1)
        return "--backend cuda measures plain products: alpha 1, beta 0, no bias, act or batch, for ";
    if (o->set && strcmp(o->set, "overlap") == 0)
        return "--set overlap is for the cpu backend; the others may be used for ";
    if (o->pack_given)
        return "--pack is for the cpu backend: kernels on GPUs read B as it lies, for ";
    if (link && p->op >= WEFT_OP_GEMM_AR &&
        (o->schedule_all ||
         (p->schedule != WEFT_SCHEDULE_AUTO && p->schedule != bench_cuda_link_schedule(p->op))))
        return "--link: gemm_ar runs as one rank in the loop as two_shot, gemm_as as all_scatter: not so ";
    if (link && p->op != WEFT_OP_AG_GEMM && (p->m % o->ranks || p->n % o->ranks))
        return "--link: the ranks must divide m and n evenly for ";
    if (link && (p->dtype != WEFT_BF16 || p->transa || p->transb))
        return "--link: products of bfloat16 are measured so, nothing transposed: give --dtype bf16 for ";
    return NULL;
}

bool bench_cuda_refuses(const weft_options *options, const bench_link *link, bool tells)
{
    const char *why = refusal(options, link);

    if (why && tells)
        options_error("bench", "%s%s", why, options->op_name);
    return why;
}

bool bench_cuda_refuses_dtype(const weft_options *options)
{
    weft_dtype dtype = options->problem.dtype;

    if (dtype == WEFT_F16 || dtype == WEFT_BF16 || weft_dtype_is_fp8(dtype))
        return false;
    options_error("bench",
                  "--backend cuda multiplies float16, bfloat16 and fp8: give --dtype f16, bf16, fp8_e4m3 or "
                  "fp8_e5m2");
    return true;
}

/* ---- builds without CUDA ------------------------------------------------------------------------------ */

#ifndef WEFT_HAVE_CUDA

int bench_cuda_ready(void)
{
    return options_error(
        "bench",
        "--backend cuda: this build has no CUDA backend (it was made without nvcc, or with WEFT_CUDA=OFF)");
}

int bench_cuda(const weft_options *options, const bench_link *link, report_page *page)
{
    (void)options, (void)link, (void)page;
    return bench_cuda_ready();
}

int bench_cuda_collective_link(const weft_options *options, const bench_link *link, report_page *page)
{
    (void)options, (void)link, (void)page;
    return bench_cuda_ready();
}

int bench_cuda_collectives_virtual(const weft_options *options, report_page *page)
{
    (void)options, (void)page;
    return bench_cuda_ready();
}

int bench_cuda_moe(const weft_options *options, const bench_link *link, report_page *page)
{
    (void)options, (void)link, (void)page;
    return bench_cuda_ready();
}

int bench_cuda_ranks(bench_context *context)
{
    return context->rank ? 2 : bench_cuda_ready();
}

int bench_cuda_collectives(bench_context *context)
{
    return context->rank ? 2 : bench_cuda_ready();
}

int bench_cuda_moe_ranks(bench_context *context)
{
    return context->rank ? 2 : bench_cuda_ready();
}

#endif
