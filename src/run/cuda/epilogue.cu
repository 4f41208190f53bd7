/*
 * Epilogues of products behind them: see epilogue.h.
 *
 * Card: 256 threads in rows as wide as a line of D needs, no shared memory. A thread makes four columns of a
 * row: 16 bytes of sums, 32 where they are gates and ups. It is bound by memory, which it reads and writes
 * once: 4 or 8 bytes of an element's sums, and its C and D.
 */
#define WEFT_CUDA_FP8
#include "early.cuh"
#include "epilogue_device.h"
#include "plain.cuh"

namespace
{

constexpr int WIDTH = WEFT_CUDA_EPILOGUE_WIDTH;

/* A sum times its factors; `scale`: alpha's and the row's. */
__device__ __forceinline__ float scaled_sum(const weft_cuda_epilogue &e, float sum, float scale, int64_t col)
{
    return (e.col_scale ? scale * __ldcg(e.col_scale + col) : scale) * sum;
}

__device__ __forceinline__ float biased(const weft_cuda_epilogue &e, float x, int64_t col)
{
    return e.bias ? x + element_get(e.bias, col, e.dtype) : x;
}

/* Columns `col` and on of a row of D, of which the last may lie beyond it. `none`: with alpha 0 the sums,
 * which may be NaN, do not count. */
__device__ __forceinline__ void finish_row(const weft_cuda_epilogue &e, int64_t batch, int64_t row,
                                           int64_t col, float scale, float beta, bool none)
{
    int64_t c_at = batch * e.c_stride + row * e.c_ld + col, d_at = batch * e.d_stride + row * e.d_ld + col;
    int count = (int)min((int64_t)WIDTH, e.cols - col);
    bool wide = e.wide && count == WIDTH;
    float x[WIDTH];
    if (e.gated) {
        const float4 *from = (const float4 *)(e.sums + batch * e.sums_stride + row * e.sums_ld + 2 * col);
        float4 lo = none ? float4{} : __ldcg(from), hi = none ? float4{} : __ldcg(from + 1);
        float pair[2 * WIDTH] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            int64_t gate = 2 * min(col + i, e.cols - 1);
            x[i] = activate(biased(e, scaled_sum(e, pair[2 * i], scale, gate), gate), e.act) *
                   biased(e, scaled_sum(e, pair[2 * i + 1], scale, gate + 1), gate + 1);
        }
    } else {
        const float *from = e.sums + batch * e.sums_stride + row * e.sums_ld + col;
        float4 sum = none ? float4{} : __ldcg((const float4 *)from);
        float own[WIDTH] = {sum.x, sum.y, sum.z, sum.w}, old[WIDTH] = {};
        if (e.c && beta != 0.0f && wide) {
            float4 c = load4(e.c, c_at, e.dtype);
            old[0] = c.x, old[1] = c.y, old[2] = c.z, old[3] = c.w;
        } else if (e.c && beta != 0.0f) {
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                old[i] = element_get(e.c, c_at + min(i, count - 1), e.dtype);
        }
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            int64_t at = min(col + i, e.cols - 1);
            float y = scaled_sum(e, own[i], scale, at);
            if (e.c && beta != 0.0f) /* which a NaN there does not pass */
                y = fmaf(beta, old[i], y);
            x[i] = activate(biased(e, y, at), e.act);
        }
    }
    if (wide) {
        store4(e.d, d_at, make_float4(x[0], x[1], x[2], x[3]), e.dtype);
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        if (i < count)
            element_set(e.d, d_at + i, x[i], e.dtype);
}

} // namespace

extern "C" __global__ void __launch_bounds__(WEFT_CUDA_EPILOGUE_THREADS, 6)
    weft_epilogue(const __grid_constant__ weft_cuda_epilogue e)
{
    wait_for_stream();
    float alpha = e.alpha_at ? __ldcg(e.alpha_at) : e.alpha, beta = e.beta_at ? __ldcg(e.beta_at) : e.beta;
    int64_t col0 = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * WIDTH,
            step = (int64_t)gridDim.x * blockDim.x * WIDTH;
    for (int64_t batch = blockIdx.z; batch < e.batch; batch += gridDim.z)
        for (int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; row < e.rows;
             row += (int64_t)gridDim.y * blockDim.y) {
            float scale = e.row_scale ? alpha * __ldcg(e.row_scale + row) : alpha;
            for (int64_t col = col0; col < e.cols; col += step)
                finish_row(e, batch, row, col, scale, beta, alpha == 0.0f);
        }
}
