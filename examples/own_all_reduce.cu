/*
 * A one-shot all-reduce as a kernel of one's own: every rank reads all ranks' copies of a symmetric buffer
 * and adds them up in rank order.
 *
 *     nvcc -arch=sm_90 own_all_reduce.cu -lweft && weft run -n 2 -- ./a.out
 *
 * The i-th blocks of all ranks meet twice a run, on a signal of their own: before they read (all have
 * written), and after (the buffer may be written again). Nothing waits on the host between runs, so they can
 * follow each other in a stream. On ranks that share a GPU all blocks must be there at once: they are few.
 */
#include <stdio.h>
#include <stdlib.h>
#include <vector>
#include <weft/device.cuh>

enum { BLOCKS = 16, THREADS = 512, RUNS = 20 };

static void check(weft_status status, weft_group *group)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "%s\n", weft_error(group));
    exit(1);
}

static void check(cudaError_t error)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s\n", cudaGetErrorString(error));
    exit(1);
}

template <class T>
__global__ void all_reduce(weft_signal_pad pad, T *to, const T *from, size_t count, uint64_t run)
{
    size_t share = (count / gridDim.x + 7) / 8 * 8, begin = share * blockIdx.x, end = begin + share;

    end = blockIdx.x == gridDim.x - 1 || end > count ? count : end;
    if (!weft::block_meet(pad, blockIdx.x, 2 * run + 1))
        return;
    if (begin < end)
        weft::block_sum(pad, to + begin, from + begin, end - begin);
    weft::block_meet(pad, blockIdx.x, 2 * run + 2);
}

/* Small integers, so that sums are exact; another value in every run. */
__global__ void fill(__nv_bfloat16 *x, size_t count, int rank, int run)
{
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < count; i += blockDim.x * gridDim.x)
        x[i] = __float2bfloat16((float)((i + 3 * rank + run) % 7));
}

int main(void)
{
    const size_t counts[] = {1, 100, 1000, 1 << 16, (1 << 20) + 3};
    weft_signal_pad pad = {};
    weft_group *group;
    cudaStream_t stream;
    size_t wrong = 0, most = counts[4];
    void *x;

    pad.size = sizeof(pad);
    check(weft_init(&group), NULL);
    check(weft_group_use_gpu(group, -1), group);
    int rank = weft_rank(group), ranks = weft_size(group), devices;
    check(cudaGetDeviceCount(&devices));
    check(cudaSetDevice(rank % devices)); /* as -1 takes them */
    check(cudaStreamCreate(&stream));

    __nv_bfloat16 *sum;
    check(weft_alloc(group, most * sizeof(*sum), 0, &x), group);
    check(weft_signal_pad_create(group, BLOCKS, &pad), group);
    check(cudaMalloc((void **)&sum, most * sizeof(*sum)));
    std::vector<__nv_bfloat16> host(most);
    uint64_t run = 0;
    for (size_t count : counts) {
        for (int i = 0; i < RUNS; i++, run++) {
            fill<<<BLOCKS, THREADS, 0, stream>>>((__nv_bfloat16 *)x, count, rank, i);
            all_reduce<<<BLOCKS, THREADS, 0, stream>>>(pad, sum, (const __nv_bfloat16 *)x, count, run);
        }
        check(weft_signal_pad_wait(group, &pad, stream), group);
        check(cudaGetLastError());
        check(cudaMemcpy(host.data(), sum, count * sizeof(*sum), cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < count; i++) {
            float want = 0;

            for (int r = 0; r < ranks; r++)
                want += (float)((i + 3 * r + RUNS - 1) % 7);
            wrong += __bfloat162float(host[i]) != want;
        }
    }
    printf("rank %d of %d: %d runs, %zu elements wrong\n", rank, ranks, (int)run, wrong);
    check(cudaFree(sum));
    check(weft_barrier(group), group); /* a peer may still need this rank's memory */
    return weft_finalize(group) == WEFT_OK && !wrong ? 0 : 1;
}
