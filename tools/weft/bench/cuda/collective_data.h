/* What collectives on GPUs are measured with: sizes of buffers, small integers in them, and what must come of
 * them. */
#ifndef WEFT_TOOLS_BENCH_CUDA_COLLECTIVE_DATA_H
#define WEFT_TOOLS_BENCH_CUDA_COLLECTIVE_DATA_H

#include <weft/weft.h>

#include <stddef.h>

typedef struct collective_data {
    weft_problem problem;
    int world;
    int64_t send_elems, recv_elems;
    size_t element;
    int calls; /* in a graph: its launch must not show */
} collective_data;

/* Sets all but problem's operation and type and the world for buffers of about so many bytes, shares of all
 * ranks together, and for no more calls than the iterations that were asked for, if any were; returns how
 * many bytes.
 */
int64_t collective_data_size(collective_data *data, int64_t bytes, int64_t iterations);

/* Element `index` of what a rank sends: small, so that sums over all ranks are exact in bfloat16; products
 * stay 1 and -1. */
double collective_data_value(const collective_data *data, int rank, int64_t index);

/* Element `index` of what a rank has received in the end. */
double collective_data_expected(const collective_data *data, int rank, int64_t index);

#endif
