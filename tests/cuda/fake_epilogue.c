#include "fake_epilogue.h"

#include "core/dtype.h"
#include "fake_gpu.h"
#include "gemm/epilogue.h"
#include "support/check.h"

#include <stdlib.h>

/* With scales, C and bias, before the activation: column `col` of B. */
static float scaled(const weft_cuda_epilogue *e, int64_t batch, int64_t row, int64_t col)
{
    float alpha = e->alpha_at ? *e->alpha_at : e->alpha, beta = e->beta_at ? *e->beta_at : e->beta,
          scale = alpha * (e->row_scale ? e->row_scale[row] : 1) * (e->col_scale ? e->col_scale[col] : 1),
          x = alpha == 0 ? 0 : scale * e->sums[batch * e->sums_stride + row * e->sums_ld + col];
    weft_dtype dtype = (weft_dtype)e->dtype;

    if (e->c && beta != 0)
        x += beta * (float)weft_element_get(dtype, e->c, (size_t)(batch * e->c_stride + row * e->c_ld + col));
    return e->bias ? x + (float)weft_element_get(dtype, e->bias, (size_t)col) : x;
}

static void run(void *argument)
{
    weft_cuda_epilogue *e = argument;
    int64_t width = e->gated ? 2 : 1;

    CHECK_INT((uintptr_t)e->sums % 16, 0);
    CHECK_INT(e->sums_ld % (WEFT_CUDA_EPILOGUE_WIDTH * width), 0);
    CHECK(!e->wide ||
          (uintptr_t)e->d % (WEFT_CUDA_EPILOGUE_WIDTH * weft_dtype_size((weft_dtype)e->dtype)) == 0);
    for (int64_t batch = 0; batch < e->batch; batch++)
        for (int64_t row = 0; row < e->rows; row++)
            for (int64_t col = 0; col < e->cols; col++) {
                float x = weft_act_apply((weft_act)e->act, scaled(e, batch, row, width * col));

                if (e->gated)
                    x *= scaled(e, batch, row, width * col + 1);
                weft_element_set((weft_dtype)e->dtype, e->d,
                                 (size_t)(batch * e->d_stride + row * e->d_ld + col), (double)x);
            }
    free(e);
}

bool fake_epilogue(const weft_cuda_epilogue *epilogue, CUstream stream)
{
    weft_cuda_epilogue *copy = malloc(sizeof(*copy));

    *copy = *epilogue;
    return fake_gpu_call(run, copy, stream);
}
