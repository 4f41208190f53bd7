/*
 * Streaming one row of bf16 against a row-major B, by BFMLALB and BFMLALT, which take the even and the odd
 * columns: no element has to be moved. BFMMLA would have to gather 4 k first. See stream.h.
 */
#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT uint16_t

enum { K_STEP = 4, UNIT = 24 };

#define LOAD_B "ldp q2, q3, [%[b]]\n ldr q4, [%[b], #32]\n"
#define LOAD_A_1 "ldr h0, [%[a]], #2\n"
#define ROW(d0, d1, d2, d3, d4, d5, e)                                                                       \
    "bfmlalb v" #d0 ".4s, v2.8h, v0.h[" #e "]\n bfmlalt v" #d1 ".4s, v2.8h, v0.h[" #e "]\n bfmlalb v" #d2    \
    ".4s, v3.8h, v0.h[" #e "]\n bfmlalt v" #d3 ".4s, v3.8h, v0.h[" #e "]\n bfmlalb v" #d4                    \
    ".4s, v4.8h, v0.h[" #e "]\n bfmlalt v" #d5 ".4s, v4.8h, v0.h[" #e "]\n"

/* Each 8 columns: the even ones, then the odd ones. */
static inline int64_t sum_at(int64_t i, int64_t j)
{
    return i * UNIT + j / 8 * 8 + j % 2 * 4 + j % 8 / 2;
}

#include "stream_element.h"

#include "stream_across.h"

void weft_stream_bf16_across_1(int64_t m, int64_t n, int64_t k, int64_t block, const void *a, const void *b,
                               int64_t ldb, void *c, int64_t c_ld, int add)
{
    across(1, m, n, k, block, a, b, ldb, c, c_ld, add);
}
