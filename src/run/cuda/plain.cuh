/*
 * COPY and REDUCE by ordinary loads and stores, and the arithmetic of the epilogue. A crew divides a region
 * over its threads. Loads go past L1 (__ldcg): the memory may be a peer's and change between runs.
 */
#ifndef WEFT_RUN_CUDA_PLAIN_CUH
#define WEFT_RUN_CUDA_PLAIN_CUH

#include "ptx.cuh"
#include "task.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifdef WEFT_CUDA_FP8
#include <cuda_fp8.h>
#endif

enum { DTYPE_F32 = 0, DTYPE_F16 = 1, DTYPE_BF16 = 2 }; /* weft_dtype's first three */
enum { DTYPE_E4M3 = 10, DTYPE_E5M2 = 11 };             /* and its last two, where WEFT_CUDA_FP8 is defined */
enum { COPY_DEPTH = 16, REDUCE_DEPTH = 4, REDUCE_SOURCES = 4 }; /* loads of 16 bytes in flight a thread */
enum { REDUCE_FEW = 8 }; /* vectors a thread: fewer are added by the shorter code */
enum { ACT_NONE = 0, ACT_RELU = 1, ACT_GELU = 2, ACT_SILU = 3 };

#ifdef WEFT_CUDA_FP8
static __device__ __forceinline__ bool is_fp8(int dtype)
{
    return dtype >= DTYPE_E4M3;
}

static __device__ __forceinline__ __nv_fp8_interpretation_t fp8_kind(int dtype)
{
    return dtype == DTYPE_E4M3 ? __NV_E4M3 : __NV_E5M2;
}

/* The value as a float16, which holds it exactly. */
static __device__ __forceinline__ uint16_t fp8_widen(uint8_t code, int dtype)
{
    return __nv_cvt_fp8_to_halfraw(code, fp8_kind(dtype)).x;
}

static __device__ __forceinline__ uint8_t fp8_narrow(float value, int dtype)
{
    return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, fp8_kind(dtype));
}
#else
static __device__ __forceinline__ constexpr bool is_fp8(int)
{
    return false;
}

static __device__ __forceinline__ uint16_t fp8_widen(uint8_t, int)
{
    return 0;
}

static __device__ __forceinline__ uint8_t fp8_narrow(float, int)
{
    return 0;
}
#endif

static __device__ __forceinline__ float element_get(const void *base, int64_t i, int dtype)
{
    if (dtype == DTYPE_F32)
        return __ldcg((const float *)base + i);
    if (is_fp8(dtype))
        return __half2float(__ushort_as_half(fp8_widen(__ldcg((const unsigned char *)base + i), dtype)));
    uint16_t bits = __ldcg((const unsigned short *)base + i);
    return dtype == DTYPE_F16 ? __half2float(__ushort_as_half(bits)) : __uint_as_float((uint32_t)bits << 16);
}

static __device__ __forceinline__ uint16_t narrow(float value, int dtype)
{
    return dtype == DTYPE_F16 ? __half_as_ushort(__float2half_rn(value))
                              : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

static __device__ __forceinline__ uint32_t narrow2(float lo, float hi, int dtype)
{
    if (dtype == DTYPE_F16) {
        __half2 pair = __floats2half2_rn(lo, hi);
        return *(uint32_t *)&pair;
    }
    __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&pair;
}

static __device__ __forceinline__ void element_set(void *base, int64_t i, float value, int dtype)
{
    if (dtype == DTYPE_F32)
        ((float *)base)[i] = value;
    else if (is_fp8(dtype))
        ((uint8_t *)base)[i] = fp8_narrow(value, dtype);
    else
        ((uint16_t *)base)[i] = narrow(value, dtype);
}

static __device__ __forceinline__ float2 widen2(uint32_t bits, int dtype)
{
    if (dtype == DTYPE_F16)
        return __half22float2(*(__half2 *)&bits);
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}

/* x / (1 + exp(-x)) of N at once. */
template <int N> static __device__ __forceinline__ void silu_all(float *x)
{
    constexpr float LOG2_E = 1.4426950408889634f;
    float y[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] = exp2_approx(-LOG2_E * x[i]);
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] = reciprocal_approx(1.0f + y[i]);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] *= y[i];
}

/* x / 2 (1 + erf(y)), y = x / sqrt(2), of N at once, erf without branches: |error| < 2e-7 (a rational in t =
 * 1 / (1 + p|y|) times exp(-y^2)). */
template <int N> static __device__ __forceinline__ void gelu_all(float *x)
{
    constexpr float HALF_LOG2_E = 0.72134752f, P = 0.3275911f * 0.70710678f;
    float t[N], e[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        t[i] = reciprocal_approx(fmaf(P, fabsf(x[i]), 1.0f));
#pragma unroll
    for (int i = 0; i < N; i++)
        e[i] = exp2_approx(-HALF_LOG2_E * x[i] * x[i]);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float poly = t[i] * fmaf(t[i],
                                 fmaf(t[i], fmaf(t[i], fmaf(t[i], 1.061405429f, -1.453152027f), 1.421413741f),
                                      -0.284496736f),
                                 0.254829592f);
        x[i] = 0.5f * x[i] * (1.0f + copysignf(fmaf(-poly, e[i], 1.0f), x[i]));
    }
}

/* Of N at once: what waits for the special functions waits for those of eight together. */
template <int N> static __device__ __forceinline__ void activate_all(float *x, int act)
{
    constexpr int TOGETHER = N % 8 ? N : 8;
    if (act == ACT_RELU) { /* as on the CPU: NaN and -0 pass */
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = x[i] < 0.0f ? 0.0f : x[i];
    } else if (act == ACT_GELU) {
#pragma unroll
        for (int i = 0; i < N; i += TOGETHER)
            gelu_all<TOGETHER>(x + i);
    } else if (act == ACT_SILU) {
#pragma unroll
        for (int i = 0; i < N; i += TOGETHER)
            silu_all<TOGETHER>(x + i);
    }
}

static __device__ __forceinline__ float activate(float x, int act)
{
    activate_all<1>(&x, act);
    return x;
}

static __device__ __forceinline__ int element_bytes(int dtype)
{
    return dtype == DTYPE_F32 ? 4 : is_fp8(dtype) ? 1 : 2;
}

/* A COPY by threads first, first+step, ...: COPY_DEPTH loads in flight a thread. */
static __device__ void copy(const weft_cuda_task &t, const weft_cuda_view *v, int first, int step)
{
    int size = element_bytes(v[0].dtype);
    if (t.flags & WEFT_CUDA_WIDE) {
        int line = t.cols * size / 16, total = t.rows * line;
        int64_t dst_step = v[0].rs * size / 16, src_step = v[1].rs * size / 16;
        uint4 *dst = (uint4 *)v[0].ptr;
        const uint4 *src = (const uint4 *)v[1].ptr;
        for (int base = first; base < total; base += step * COPY_DEPTH) {
            uint4 x[COPY_DEPTH];
#pragma unroll
            for (int j = 0; j < COPY_DEPTH; j++) {
                int at = base + j * step;
                if (at < total)
                    x[j] = __ldcg(src + at / line * src_step + at % line);
            }
#pragma unroll
            for (int j = 0; j < COPY_DEPTH; j++) {
                int at = base + j * step;
                if (at < total)
                    dst[at / line * dst_step + at % line] = x[j];
            }
        }
        return;
    }
    for (int64_t at = first; at < (int64_t)t.rows * t.cols; at += step) {
        int64_t row = at / t.cols, col = at % t.cols, to = row * v[0].rs + col * v[0].cs,
                from = row * v[1].rs + col * v[1].cs;
        if (size == 4)
            ((uint32_t *)v[0].ptr)[to] = __ldcg((const uint32_t *)v[1].ptr + from);
        else if (size == 1)
            ((uint8_t *)v[0].ptr)[to] = __ldcg((const unsigned char *)v[1].ptr + from);
        else
            ((uint16_t *)v[0].ptr)[to] = __ldcg((const unsigned short *)v[1].ptr + from);
    }
}

static __device__ __forceinline__ float4 load4(const void *base, int64_t i, int dtype)
{
    if (dtype == DTYPE_F32)
        return __ldcg((const float4 *)((const float *)base + i));
    uint2 x = __ldcg((const uint2 *)((const uint16_t *)base + i));
    if (dtype == DTYPE_F16) {
        float2 a = __half22float2(*(__half2 *)&x.x), b = __half22float2(*(__half2 *)&x.y);
        return make_float4(a.x, a.y, b.x, b.y);
    }
    return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u),
                       __uint_as_float(x.y << 16), __uint_as_float(x.y & 0xffff0000u));
}

static __device__ __forceinline__ void store4(void *base, int64_t i, float4 x, int dtype)
{
    if (dtype == DTYPE_F32)
        *(float4 *)((float *)base + i) = x;
    else if (is_fp8(dtype))
        *(uchar4 *)((uint8_t *)base + i) = make_uchar4(fp8_narrow(x.x, dtype), fp8_narrow(x.y, dtype),
                                                       fp8_narrow(x.z, dtype), fp8_narrow(x.w, dtype));
    else
        *(uint2 *)((uint16_t *)base + i) = make_uint2(narrow2(x.x, x.y, dtype), narrow2(x.z, x.w, dtype));
}

/* What an element's way out needs of a task, in registers: views are in memory that stores might change. */
struct Ends {
    weft_cuda_view first, acc, c, bias;

    __device__ __forceinline__ Ends(const weft_cuda_task &t, const weft_cuda_view *v)
        : first(v[0]), acc(v[max((int)t.acc, 0)]), c(v[max((int)t.c, 0)]), bias(v[max((int)t.bias, 0)])
    {
    }
};

/* A sum times alpha and the factors of its row and column; only products of fp8 have those. */
static __device__ __forceinline__ float scaled(const weft_cuda_args &g, const weft_cuda_view &d, float sum,
                                               int row, int col)
{
#ifdef WEFT_CUDA_FP8
    float scale = g.alpha_at ? __ldcg(g.alpha_at) : g.alpha;
    if (g.row_scale)
        scale *= __ldcg(g.row_scale + d.row + row);
    if (g.col_scale)
        scale *= __ldcg(g.col_scale + d.col + col);
    return scale * sum;
#else
    return g.alpha * sum;
#endif
}

/* One sum of a GEMM: what it is added to, the epilogue, all destinations. */
static __device__ __forceinline__ void end_element(const weft_cuda_args &g, const weft_cuda_task &t,
                                                   const weft_cuda_view *v, const Ends &e, float x, int row,
                                                   int col)
{
    if (t.acc >= 0)
        x = element_get(e.acc.ptr, row * e.acc.rs + col * e.acc.cs, e.acc.dtype) + x;
    if (t.flags & WEFT_CUDA_EPILOGUE) {
        x = scaled(g, e.first, x, row, col);
        if (t.c >= 0)
            x = fmaf(g.beta, element_get(e.c.ptr, row * e.c.rs + col * e.c.cs, e.c.dtype), x);
        if (t.bias >= 0)
            x += element_get(e.bias.ptr, col * e.bias.cs, e.bias.dtype);
        x = activate(x, g.act);
    }
    element_set(e.first.ptr, row * e.first.rs + col * e.first.cs, x, e.first.dtype);
    for (int n = 1; n < t.destinations; n++)
        element_set(v[n].ptr, row * v[n].rs + col * v[n].cs, x, v[n].dtype);
}

/* One element's epilogue; row and column count from the region's first element. */
static __device__ __forceinline__ float finish_element(const weft_cuda_args &g, const weft_cuda_task &t,
                                                       const weft_cuda_view *v, float sum, int row, int col)
{
    float x = scaled(g, v[0], sum, row, col);
    if (t.c >= 0)
        x = fmaf(g.beta, element_get(v[t.c].ptr, row * v[t.c].rs + col * v[t.c].cs, v[t.c].dtype), x);
    if (t.bias >= 0)
        x += element_get(v[t.bias].ptr, col * v[t.bias].cs, v[t.bias].dtype);
    return activate(x, g.act);
}

/* A REDUCE by threads first, first+step, ...: sources are added in their order, loads of several in flight.
 */
static __device__ void reduce_wide(const weft_cuda_args &g, const weft_cuda_task &t, const weft_cuda_view *v,
                                   int first, int step)
{
    const weft_cuda_view *sources = v + t.destinations;
    int quads = t.cols / 4, total = t.rows * quads;
    for (int base = first; base < total; base += step * REDUCE_DEPTH) {
        float4 sum[REDUCE_DEPTH];
#pragma unroll
        for (int j = 0; j < REDUCE_DEPTH; j++)
            sum[j] = make_float4(0, 0, 0, 0);
        const void *next[REDUCE_SOURCES];
        int64_t next_rs[REDUCE_SOURCES];
        int next_dtype[REDUCE_SOURCES];
        auto look_up = [&](int s0) {
#pragma unroll
            for (int s = 0; s < REDUCE_SOURCES; s++) {
                const weft_cuda_view &source = sources[min(s0 + s, t.sources - 1)];
                next[s] = source.ptr;
                next_rs[s] = source.rs;
                next_dtype[s] = source.dtype;
            }
        };
        look_up(0);
        for (int s0 = 0; s0 < t.sources; s0 += REDUCE_SOURCES) {
            float4 x[REDUCE_SOURCES][REDUCE_DEPTH];
#pragma unroll
            for (int s = 0; s < REDUCE_SOURCES; s++) {
                const void *ptr = next[s];
                int64_t rs = next_rs[s];
                int dtype = next_dtype[s];
#pragma unroll
                for (int j = 0; j < REDUCE_DEPTH; j++) {
                    int at = base + j * step;
                    x[s][j] = at < total && s0 + s < t.sources
                                  ? load4(ptr, at / quads * rs + at % quads * 4, dtype)
                                  : make_float4(0, 0, 0, 0);
                }
            }
            look_up(s0 + REDUCE_SOURCES); /* while the elements come */
#pragma unroll
            for (int s = 0; s < REDUCE_SOURCES; s++)
#pragma unroll
                for (int j = 0; j < REDUCE_DEPTH; j++)
                    sum[j] = make_float4(sum[j].x + x[s][j].x, sum[j].y + x[s][j].y, sum[j].z + x[s][j].z,
                                         sum[j].w + x[s][j].w);
        }
#pragma unroll
        for (int j = 0; j < REDUCE_DEPTH; j++) {
            int at = base + j * step, row = at / quads, col = at % quads * 4;
            if (at >= total)
                break;
            if (t.flags & WEFT_CUDA_EPILOGUE) {
                sum[j].x = finish_element(g, t, v, sum[j].x, row, col);
                sum[j].y = finish_element(g, t, v, sum[j].y, row, col + 1);
                sum[j].z = finish_element(g, t, v, sum[j].z, row, col + 2);
                sum[j].w = finish_element(g, t, v, sum[j].w, row, col + 3);
            }
            for (int d = 0; d < t.destinations; d++)
                store4(v[d].ptr, row * v[d].rs + col, sum[j], v[d].dtype);
        }
    }
}

/*
 * The same for little to add, all of it float32, as the slices of a tile are. A lane does it once or twice in
 * a launch, and its instructions come from memory: so the code is as short as it can be.
 */
static __device__ void reduce_slices(const weft_cuda_args &g, const weft_cuda_task &t,
                                     const weft_cuda_view *v, int first, int step)
{
    enum { DEPTH = 2 };
    const weft_cuda_view *sources = v + t.destinations;
    const void *ptr[REDUCE_SOURCES];
    int64_t rs[REDUCE_SOURCES];
    int quads = t.cols / 4, total = t.rows * quads;
    auto look_up = [&](int s0) {
#pragma unroll
        for (int s = 0; s < REDUCE_SOURCES; s++) {
            ptr[s] = sources[min(s0 + s, t.sources - 1)].ptr;
            rs[s] = sources[min(s0 + s, t.sources - 1)].rs;
        }
    };
    look_up(0);
#pragma unroll 1
    for (int base = first; base < total; base += step * DEPTH) {
        float4 sum[DEPTH] = {};
#pragma unroll 1
        for (int s0 = 0; s0 < t.sources; s0 += REDUCE_SOURCES) {
            float4 x[REDUCE_SOURCES][DEPTH];
#pragma unroll
            for (int s = 0; s < REDUCE_SOURCES; s++)
#pragma unroll
                for (int j = 0; j < DEPTH; j++) {
                    int at = base + j * step;
                    x[s][j] = make_float4(0, 0, 0, 0);
                    if (at < total && s0 + s < t.sources)
                        x[s][j] =
                            __ldcg((const float4 *)((const float *)ptr[s] + at / quads * rs[s]) + at % quads);
                }
            look_up(s0 + REDUCE_SOURCES < t.sources ? s0 + REDUCE_SOURCES : 0); /* while the elements come */
#pragma unroll
            for (int s = 0; s < REDUCE_SOURCES; s++)
#pragma unroll
                for (int j = 0; j < DEPTH; j++)
                    sum[j] = make_float4(sum[j].x + x[s][j].x, sum[j].y + x[s][j].y, sum[j].z + x[s][j].z,
                                         sum[j].w + x[s][j].w);
        }
#pragma unroll 1
        for (int j = 0; j < DEPTH; j++) {
            int at = base + j * step, row = at / quads, col = at % quads * 4;
            float4 x = j ? sum[1] : sum[0];
            if (at >= total)
                break;
            if (t.flags & WEFT_CUDA_EPILOGUE) {
                x.x = finish_element(g, t, v, x.x, row, col);
                x.y = finish_element(g, t, v, x.y, row, col + 1);
                x.z = finish_element(g, t, v, x.z, row, col + 2);
                x.w = finish_element(g, t, v, x.w, row, col + 3);
            }
            for (int d = 0; d < t.destinations; d++)
                store4(v[d].ptr, row * v[d].rs + col, x, v[d].dtype);
        }
    }
}

/* Any strides, element by element; also the columns that reduce_wide leaves at the end of a row. */
static __device__ void reduce_elements(const weft_cuda_args &g, const weft_cuda_task &t,
                                       const weft_cuda_view *v, int first, int step, int col0)
{
    const weft_cuda_view *sources = v + t.destinations;
    int cols = t.cols - col0;
    for (int at = first; at < t.rows * cols; at += step) {
        int row = at / cols, col = col0 + at % cols;
        float sum = 0;
        for (int s = 0; s < t.sources; s++)
            sum += element_get(sources[s].ptr, row * sources[s].rs + col * sources[s].cs, sources[s].dtype);
        if (t.flags & WEFT_CUDA_EPILOGUE)
            sum = finish_element(g, t, v, sum, row, col);
        for (int d = 0; d < t.destinations; d++)
            element_set(v[d].ptr, row * v[d].rs + col * v[d].cs, sum, v[d].dtype);
    }
}

static __device__ __forceinline__ void reduce(const weft_cuda_args &g, const weft_cuda_task &t,
                                              const weft_cuda_view *v, int first, int step)
{
    bool wide = t.flags & WEFT_CUDA_WIDE;
    bool few = t.rows * (t.cols / 4) <= REDUCE_FEW * step;
    if (wide && few && t.flags & WEFT_CUDA_D_F32)
        reduce_slices(g, t, v, first, step);
    else if (wide)
        reduce_wide(g, t, v, first, step);
    if (!wide || t.cols % 4)
        reduce_elements(g, t, v, first, step, wide ? t.cols / 4 * 4 : 0);
}

#endif
