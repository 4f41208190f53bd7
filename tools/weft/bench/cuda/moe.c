/* What rounds on GPUs are held against and how they are printed, whoever ran them. */
#include "bench/cuda/moe.h"

#include "core/dtype.h"
#include "moe/moe.h"

#include <math.h>
#include <stdlib.h>

const report_column cuda_moe_columns[] = {{"E", "experts", REPORT_PLAIN, 4},
                                          {"K", "topk", REPORT_PLAIN, 3},
                                          {"H", "hidden", REPORT_PLAIN, 6},
                                          {"T", "tokens", REPORT_PLAIN, 5},
                                          {"impl", "impl", REPORT_PLAIN, 10},
                                          {"mode", "mode", REPORT_PLAIN, 8},
                                          {"dispatch µs", "dispatch_us", REPORT_TIME, 16},
                                          {"bound µs", "dispatch_bound_us", REPORT_RATE, 8},
                                          {"combine µs", "combine_us", REPORT_TIME, 16},
                                          {"bound µs", "combine_bound_us", REPORT_RATE, 8},
                                          {"total µs", "total_us", REPORT_TIME, 16},
                                          {"÷ bound", "over_bound", REPORT_RATIO, 8},
                                          {"ok", "ok", REPORT_PLAIN, 3},
                                          {NULL, NULL, REPORT_PLAIN, 0}};

int64_t cuda_moe_wire_bytes(const weft_contest_shape *shape, weft_dtype dtype, weft_moe_wire wire)
{
    return wire == WEFT_MOE_WIRE_FP8 ? weft_moe_fp8_bytes(shape->hidden)
                                     : shape->hidden * (int64_t)weft_dtype_size(dtype);
}

/* The results of one token, which experts saw as `x`. */
static bool token_right(const weft_contest_shape *shape, weft_dtype dtype, const void *x, const float *weight,
                        const void *y)
{
    double unit = dtype == WEFT_F16 ? 0x1p-11 : dtype == WEFT_BF16 ? 0x1p-8 : 0x1p-20;

    for (int64_t j = 0; j < shape->hidden; j++) {
        double value = weft_element_get(dtype, x, (size_t)j), sum = 0, size = 0;

        for (int k = 0; k < shape->topk; k++) {
            sum += (double)weight[k] * value;
            size += fabs((double)weight[k] * value);
        }
        if (!(fabs(weft_element_get(dtype, y, (size_t)j) - sum) <= 3 * unit * size + 1e-6))
            return false;
    }
    return true;
}

bool cuda_moe_right(const weft_contest_shape *shape, weft_dtype dtype, weft_moe_wire wire,
                    const weft_contest_data *data, const void *y)
{
    int64_t step = 1 + data->tokens / 400, row = shape->hidden * (int64_t)weft_dtype_size(dtype);
    int64_t travels = cuda_moe_wire_bytes(shape, dtype, wire);
    char *seen = malloc((size_t)(travels + row));
    bool right = seen != NULL;

    for (int64_t t = 0; t < data->tokens && right; t += step) {
        const char *x = (const char *)data->x + t * row;

        if (wire == WEFT_MOE_WIRE_FP8) {
            weft_moe_quantise(dtype, shape->hidden, seen, x);
            weft_moe_expand(dtype, shape->hidden, seen + travels, seen);
            x = seen + travels;
        }
        right = token_right(shape, dtype, x, data->weight + t * shape->topk, (const char *)y + t * row);
    }
    free(seen);
    return right;
}

weft_status cuda_moe_copy_rate(const weft_cuda_driver *cu, CUstream stream, double *bytes_per_us,
                               weft_error_text *error)
{
    enum { BYTES = 256 << 20, COPIES = 10 };
    CUdeviceptr memory;
    CUevent begin, end;
    float ms = 0;

    WEFT_CUDA_TRY(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    WEFT_CUDA_TRY(cuEventCreate(&end, CU_EVENT_DEFAULT));
    WEFT_CUDA_TRY(cuMemAlloc(&memory, 2 * (size_t)BYTES));
    for (int i = -2; i < COPIES; i++) {
        if (i == 0)
            WEFT_CUDA_TRY(cuEventRecord(begin, stream));
        WEFT_CUDA_TRY(cuMemcpyAsync(memory + BYTES, memory, BYTES, stream));
    }
    WEFT_CUDA_TRY(cuEventRecord(end, stream));
    WEFT_CUDA_TRY(cuStreamSynchronize(stream));
    WEFT_CUDA_TRY(cuEventElapsedTime(&ms, begin, end));
    WEFT_CUDA_TRY(cuMemFree(memory));
    WEFT_CUDA_TRY(cuEventDestroy(begin));
    WEFT_CUDA_TRY(cuEventDestroy(end));
    *bytes_per_us = 2.0 * BYTES * COPIES / ((double)ms * 1e3);
    return WEFT_OK;
}

void cuda_moe_describe(report *r, const weft_contest_shape *shape, weft_dtype dtype, weft_moe_wire wire,
                       const char *impl, bool reduced, int world, const char *how)
{
    report_text(r, "op", "moe");
    report_text(r, "backend", "cuda");
    report_int(r, "ranks", world);
    report_text(r, "how", "%s", how);
    report_text(r, "dtype", "%s", weft_dtype_name(dtype));
    if (wire == WEFT_MOE_WIRE_FP8)
        report_text(r, "wire", "fp8");
    report_text(r, "impl", "%s", impl);
    report_int(r, "experts", shape->experts);
    report_int(r, "topk", shape->topk);
    report_int(r, "hidden", shape->hidden);
    report_int(r, "tokens", shape->tokens);
    report_text(r, "mode", "%s", reduced ? "reduced" : "exact");
}

void cuda_moe_legend(report *r, double copy_bytes_per_us)
{
    report_note(
        r,
        "E experts, K of them a token, H elements a row, T tokens on every rank; " REPORT_TIME_LEGEND
        "\nbound: what must pass memory at the rate of a copy (%.0f GB/s) or the link, whichever takes "
        "longer, and its latency",
        copy_bytes_per_us * 1e-3);
}

void cuda_moe_print(report *r, report_stats dispatch, report_stats combine, report_stats total,
                    const double bound_us[2], bool ok)
{
    report_time(r, "dispatch_us", dispatch);
    report_real(r, "dispatch_bound_us", bound_us[0]);
    report_time(r, "combine_us", combine);
    report_real(r, "combine_bound_us", bound_us[1]);
    report_time(r, "total_us", total);
    report_real(r, "over_bound", (dispatch.median + combine.median) / (bound_us[0] + bound_us[1]));
    report_bool(r, "ok", ok);
    report_row(r);
}
