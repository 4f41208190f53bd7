/* `weft bench … --backend cuda`: ranks on the GPU of this machine; products beside cuBLAS. */
#ifndef WEFT_TOOLS_BENCH_CUDA_BENCH_CUDA_H
#define WEFT_TOOLS_BENCH_CUDA_BENCH_CUDA_H

#include "bench/bench.h"

/* A link that is emulated: copies from peers arrive at this rate and this much later. Rate 0: none. */
typedef struct bench_link {
    double bytes_per_ns, latency_ns;
    double late_ns; /* products: by which the peers are later than the rank */
} bench_link;

/* Reads "450GB/s,2us" or "450GB/s,2us,10us" into a bench_link. An options_reader. */
const char *bench_read_link(void *target, const char *value);

/* In which gemm_ar and gemm_as run as one rank in the loop. */
weft_schedule bench_cuda_link_schedule(weft_op op);

/* All ranks in this process, on its first GPU. Returns the exit status; 2 where this build or machine has no
 * GPU to run on. The rows go to the page too, where there is one. */
int bench_cuda(const weft_options *options, const bench_link *link, report_page *page);

/* Mixture of experts: all ranks in this process, or one of them over a link. */
int bench_cuda_moe(const weft_options *options, const bench_link *link, report_page *page);

/* A collective as one rank of several over a link. */
int bench_cuda_collective_link(const weft_options *options, const bench_link *link, report_page *page);

/* The schedules of a collective that a call asks for, at most 8; `alone`: without those that --link cannot.
 */
int bench_cuda_schedules(const weft_options *options, bool alone, weft_schedule *schedules);

/* The experts of one rank; `choice` is a bench_moe_choice. */
struct bench_moe_choice;
int bench_cuda_experts(const weft_options *options, const struct bench_moe_choice *choice, report_page *page);

/* Whole rounds with experts; ranks as those of bench_cuda_moe. */
int bench_cuda_moe_round(const weft_options *options, const struct bench_moe_choice *choice,
                         const bench_link *link, report_page *page);

/* Whether the control process of MPS runs here. */
bool bench_cuda_has_mps(void);

/* In a process of its own for each rank, on the machine's GPUs in turn. */
bench_operation bench_cuda_ranks;

/* Mixture of experts, likewise. */
bench_operation bench_cuda_moe_ranks;

/* The collectives, likewise, or all ranks in this process, on its first GPU; and the table of all
 * collectives. */
bench_operation bench_cuda_collectives;
int bench_cuda_collectives_virtual(const weft_options *options, report_page *page);
extern const report_column bench_collective_columns[];

/* The table of both, and what their rows say first: the problem, its schedule, how its ranks run. */
extern const report_column bench_cuda_columns[];
void bench_cuda_describe(report *r, const weft_problem *problem, int world, const char *how);
void bench_cuda_legend(report *r);

/* Whether a call asks for something that is not measured on GPUs; says so when `tells`. `link`: NULL = none.
 */
bool bench_cuda_refuses(const weft_options *options, const bench_link *link, bool tells);

/* The same for what GPUs do not multiply; asked once there is one, because its absence says more. */
bool bench_cuda_refuses_dtype(const weft_options *options);

/* 0, or 2 after a line on standard error where there is no GPU. */
int bench_cuda_ready(void);

#endif
