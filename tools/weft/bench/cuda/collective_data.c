/* See collective_data.h. */
#include "bench/cuda/collective_data.h"

#include "bench/bench.h"
#include "core/dtype.h"

enum { MOST_CALLS = 200, GRAPH_BYTES = 64 << 20 };

int64_t collective_data_size(collective_data *d, int64_t bytes, int64_t iterations)
{
    weft_op op = d->problem.op;
    bool shared = op == WEFT_OP_ALL_GATHER || op == WEFT_OP_REDUCE_SCATTER || op == WEFT_OP_ALL_TO_ALL;
    int64_t elems;

    d->element = weft_dtype_size(d->problem.dtype);
    elems = bytes / (int64_t)d->element;
    d->problem.count = shared ? elems / d->world : elems;
    if (d->problem.count < 1)
        d->problem.count = 1;
    elems = shared ? d->problem.count * d->world : d->problem.count;
    d->send_elems = op == WEFT_OP_ALL_GATHER ? d->problem.count : elems;
    d->recv_elems = op == WEFT_OP_REDUCE_SCATTER ? d->problem.count : elems;
    d->calls = (int)(GRAPH_BYTES / (elems * (int64_t)d->element));
    d->calls = d->calls > MOST_CALLS ? MOST_CALLS : d->calls < 8 ? 8 : d->calls;
    d->calls = iterations && iterations < d->calls ? (int)iterations : d->calls;
    return elems * (int64_t)d->element;
}

double collective_data_value(const collective_data *d, int rank, int64_t index)
{
    uint64_t z = (uint64_t)index * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xd1342543de82ef95u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z ^= z >> 29;
    return d->problem.reduction == WEFT_PRODUCT ? (z & 1 ? 1 : -1) : (double)(z % 15) - 7;
}

double collective_data_expected(const collective_data *d, int rank, int64_t index)
{
    int64_t count = d->problem.count;
    double value;

    switch (d->problem.op) {
    case WEFT_OP_ALL_GATHER:
        return collective_data_value(d, (int)(index / count), index % count);
    case WEFT_OP_ALL_TO_ALL:
        return collective_data_value(d, (int)(index / count), rank * count + index % count);
    case WEFT_OP_BROADCAST:
        return collective_data_value(d, d->problem.root, index);
    default:
        index += d->problem.op == WEFT_OP_REDUCE_SCATTER ? rank * count : 0;
        value = collective_data_value(d, 0, index);
        for (int other = 1; other < d->world; other++)
            value = bench_reduce_two(d->problem.reduction, value, collective_data_value(d, other, index));
        return bench_reduce_end(d->problem.reduction, value, d->world);
    }
}
