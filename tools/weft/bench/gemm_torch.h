/* PyTorch's matmul as a peer of `weft bench gemm`: an interpreter that is asked for some products at a time.
 */
#ifndef WEFT_TOOLS_BENCH_GEMM_TORCH_H
#define WEFT_TOOLS_BENCH_GEMM_TORCH_H

#include "bench/interpreter.h"

#include <weft/weft.h>

/* Starts `python`, which makes `sets` random pairs of matrices. 1 when it has no torch that can do this. */
int gemm_torch_open(interpreter *peer, const char *python, int64_t m, int64_t n, int64_t k, weft_dtype dtype,
                    int threads, int sets);

/* `calls` products, over the pairs in turn; returns when they are done. */
int gemm_torch_run(interpreter *peer, int calls);

#endif
