/* PyTorch's symmetric memory as a peer of all_reduce on GPUs: as many processes as weft has, on the same
 * GPUs, in graphs, too. */
#ifndef WEFT_TOOLS_BENCH_CUDA_SYMMETRIC_H
#define WEFT_TOOLS_BENCH_CUDA_SYMMETRIC_H

#include "bench/bench.h"
#include "bench/interpreter.h"

/* What it does of one size, in microseconds; NaN: not there. */
typedef struct symmetric_times {
    double one_shot, two_shot, multimem;
} symmetric_times;

/* Collective. Starts rank 0's interpreter where --torch names one and it can do what is measured; says on
 * standard error when it cannot. Its pid is 0 then, on every rank. */
void symmetric_open(bench_context *context, const weft_problem *problem, interpreter *python);

/* Collective: a graph of `calls` calls of each kind, replayed by turns. Every rank gets the times; false when
 * the interpreter was lost, which is then closed. */
bool symmetric_measure(bench_context *context, interpreter *python, int64_t bytes, int calls,
                       symmetric_times *times);

/* The faster of both, and of multimem where there is one. */
double symmetric_best(const symmetric_times *times);

#endif
