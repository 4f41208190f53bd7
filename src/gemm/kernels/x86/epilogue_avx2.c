/* Epilogues by vectors of 32 bytes. Of integer sums, four columns at a time: doubles from the sums to D,
 * which hold every int32, in the order of the portable code and without fused multiplies, so that both give
 * the same integers. */
#include "gemm/epilogue.h"
#include "gemm/epilogue_columns.h"

#include <immintrin.h>
#include <stdbool.h>

static inline __m256d load_four(const int32_t *from)
{
    __m128i four = _mm_loadu_si128((const __m128i *)from);

    /* QEMU 7.2 reads 32 bytes where the conversion takes its 16 from memory: they go through a register. */
    __asm__("" : "+x"(four));
    return _mm256_cvtepi32_pd(four);
}

/* The flags are constants where this is called: a loop for each. */
static inline __attribute__((always_inline)) void finish_fours(const weft_integer_row *row, int64_t n,
                                                               bool scales, bool adds_c, bool adds_bias)
{
    const __m256d alpha = _mm256_set1_pd(row->alpha), row_scale = _mm256_set1_pd(row->row_scale),
                  beta = _mm256_set1_pd(row->beta), most = _mm256_set1_pd(2147483647.0),
                  least = _mm256_set1_pd(-2147483648.0),
                  floor = row->act == WEFT_ACT_RELU ? _mm256_setzero_pd() : least;

    for (int64_t i = 0; i < n; i += 4) {
        __m256d t = _mm256_mul_pd(_mm256_mul_pd(load_four(row->acc + i), alpha), row_scale);

        if (scales)
            t = _mm256_mul_pd(t, _mm256_cvtps_pd(_mm_loadu_ps(row->col_scale + i)));
        if (adds_c)
            t = _mm256_add_pd(t, _mm256_mul_pd(beta, load_four(row->c + i)));
        if (adds_bias)
            t = _mm256_add_pd(t, load_four(row->bias + i));
        /* Of NaN and a number the second is taken: NaN stays at first, and is the least in the end. */
        t = _mm256_min_pd(_mm256_max_pd(_mm256_max_pd(floor, t), least), most);
        _mm_storeu_si128((__m128i *)(row->d + i), _mm256_cvtpd_epi32(t));
    }
}

int64_t weft_integer_fours_avx2(const weft_integer_row *row)
{
    int64_t n = row->n - row->n % 4;

    if ((row->act != WEFT_ACT_NONE && row->act != WEFT_ACT_RELU) || row->alpha == 0)
        return 0;
    if (row->col_scale)
        finish_fours(row, n, true, row->c, row->bias);
    else if (row->c && row->bias)
        finish_fours(row, n, false, true, true);
    else if (row->c)
        finish_fours(row, n, false, true, false);
    else if (row->bias)
        finish_fours(row, n, false, false, true);
    else
        finish_fours(row, n, false, false, false);
    return n;
}

void weft_finish_columns_avx2(const weft_epilogue *e, int64_t rows, int64_t j0, int64_t cols, const char *acc,
                              int64_t acc_ld, char *d, int64_t d_ld)
{
    finish_columns(e, rows, j0, cols, acc, acc_ld, d, d_ld);
}
