/* Calls of `weft bench … --backend cuda`: what is read and refused, in builds without CUDA too. */
#include "bench/cuda/bench_cuda.h"

#include "core/dtype.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *bench_read_link(void *target, const char *value)
{
    bench_link *link = target;
    char *end;
    double rate = strtod(value, &end);

    if (end == value || rate <= 0 || strncmp(end, "GB/s,", 5) != 0)
        return "a rate and a latency, such as 450GB/s,2us";
    value = end + 5;
    double latency = strtod(value, &end);
    if (end == value || latency < 0 || strcmp(end, "us") != 0)
        return "a rate and a latency, such as 450GB/s,2us";
    *link = (bench_link){rate, latency * 1e3};
    return NULL;
}

bool bench_cuda_has_mps(void)
{
    const char *place = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char control[4096];

    snprintf(control, sizeof control, "%s/control", place && *place ? place : "/tmp/nvidia-mps");
    return access(control, F_OK) == 0;
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
        return NULL;
    if (p->beta != 0 || p->bias || p->act != WEFT_ACT_NONE || p->alpha != 1 || p->l != 1)
        return "--backend cuda measures plain products: alpha 1, beta 0, no bias, act or batch, for ";
    if (o->set && strcmp(o->set, "overlap") == 0)
        return "--set overlap is for the cpu backend; the others may be used for ";
    if (o->pack_given)
        return "--pack is for the cpu backend: kernels on GPUs read B as it lies, for ";
    if (link && p->op != WEFT_OP_AG_GEMM && p->op != WEFT_OP_GEMM_RS)
        return "--link: ag_gemm, gemm_rs and collectives can run as one rank in the loop, not ";
    if (link && p->op == WEFT_OP_GEMM_RS && (p->m % o->ranks || p->n % o->ranks))
        return "--link: the ranks must divide m and n evenly for ";
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
