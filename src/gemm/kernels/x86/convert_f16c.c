/* fp16 and bf16 to and from fp32 by AVX2 and F16C: the same results as the portable code, many times as fast.
 */
#define VECTOR_BYTES 32
#include "gemm/convert.h"
#include "gemm/kernels/x86/vector.h"

/* By whole vectors, the last ones by way of a padded copy. */
#define CONVERT(name, TO, FROM, one)                                                                         \
    void name(TO *dst, const FROM *src, int64_t n)                                                           \
    {                                                                                                        \
        int64_t i = 0;                                                                                       \
        FROM last[LANES] = {0};                                                                              \
        TO result[LANES];                                                                                    \
                                                                                                             \
        for (; i + LANES <= n; i += LANES)                                                                   \
            one(dst + i, src + i);                                                                           \
        if (i == n)                                                                                          \
            return;                                                                                          \
        memcpy(last, src + i, (size_t)(n - i) * sizeof(FROM));                                               \
        one(result, last);                                                                                   \
        memcpy(dst + i, result, (size_t)(n - i) * sizeof(TO));                                               \
    }

#define TO_F16(to, from) vec_store_f16(to, vec_load(from))
#define TO_BF16(to, from) vec_store_bf16(to, vec_load(from))
#define FROM_F16(to, from) vec_store(to, vec_load_f16(from))

CONVERT(weft_convert_f16_f16c, uint16_t, float, TO_F16)
CONVERT(weft_convert_bf16_avx2, uint16_t, float, TO_BF16)
CONVERT(weft_convert_f32_f16c, float, uint16_t, FROM_F16)
