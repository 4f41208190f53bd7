/* The arithmetic of the fake GPU: what a task of a plan reads and stores, element by element, as the kernels'
 * arrays name it. Nothing here waits or posts. */
#ifndef WEFT_TESTS_CUDA_FAKE_TASKS_H
#define WEFT_TESTS_CUDA_FAKE_TASKS_H

#include "fake_gpu.h"

/* The product of a GEMM task as the loader sees A and B now; the caller's to free. */
float *fake_task_multiply(const weft_cuda_args *args, bool hopper, const weft_cuda_task *task);

/* Whether a task's tile leaves by the boxes of the copy engine. */
bool fake_task_bulk(bool hopper, const weft_cuda_task *task);

/* The rest of a task: sums, epilogue, stores. `product` may be NULL. */
void fake_task_finish(const weft_cuda_args *args, bool hopper, const weft_cuda_task *task,
                      const float *product);

/* Where an address in the tables of a collective is in this run. */
void *fake_task_at(const weft_cuda_args *args, const void *at);

/* A task of a collective: rows of bytes and of elements, by the CPU's own arithmetic. */
void fake_task_move(const weft_cuda_args *args, weft_reduction reduction, const weft_cuda_task *task);

double fake_activate(int32_t act, double x);

/* An element through a tensor map; along x the copy engine knows only whole 16 bytes. */
double fake_through_map(const fake_map *map, weft_dtype dtype, uint64_t x, uint64_t y);

#endif
