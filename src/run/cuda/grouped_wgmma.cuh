/* wgmma for sums of 16, 32 and 192 columns, beside those that hopper.cuh has. */
#ifndef WEFT_RUN_CUDA_GROUPED_WGMMA_CUH
#define WEFT_RUN_CUDA_GROUPED_WGMMA_CUH

#include "hopper.cuh"

/* clang-format off */
#define WEFT_SUMS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WEFT_SUMS_16 WEFT_SUMS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WEFT_SUMS_96 WEFT_SUMS_64 ", " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WEFT_SUM_OPERANDS_8 \
          "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define WEFT_SUM_OPERANDS_16 WEFT_SUM_OPERANDS_8, \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define WEFT_SUM_OPERANDS_96 WEFT_SUM_OPERANDS_64, \
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define WEFT_AFTER_8(i) WEFT_AFTER_8_##i
#define WEFT_AFTER_8_0 "%8"
#define WEFT_AFTER_8_1 "%9"
#define WEFT_AFTER_8_2 "%10"
#define WEFT_AFTER_8_3 "%11"
#define WEFT_AFTER_8_4 "%12"
#define WEFT_AFTER_16(i) WEFT_AFTER_16_##i
#define WEFT_AFTER_16_0 "%16"
#define WEFT_AFTER_16_1 "%17"
#define WEFT_AFTER_16_2 "%18"
#define WEFT_AFTER_16_3 "%19"
#define WEFT_AFTER_16_4 "%20"
#define WEFT_AFTER_96(i) WEFT_AFTER_96_##i
#define WEFT_AFTER_96_0 "%96"
#define WEFT_AFTER_96_1 "%97"
#define WEFT_AFTER_96_2 "%98"
#define WEFT_AFTER_96_3 "%99"
#define WEFT_AFTER_96_4 "%100"
/* clang-format on */

template <bool BF16, int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma(float (&d)[8], uint64_t a, uint64_t b, int keep)
{
    if constexpr (BF16)
        WEFT_WGMMA("bf16", "16", WEFT_SUMS_8, WEFT_SUM_OPERANDS_8, WEFT_AFTER_8);
    else
        WEFT_WGMMA("f16", "16", WEFT_SUMS_8, WEFT_SUM_OPERANDS_8, WEFT_AFTER_8);
}

template <bool BF16, int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma(float (&d)[16], uint64_t a, uint64_t b, int keep)
{
    if constexpr (BF16)
        WEFT_WGMMA("bf16", "32", WEFT_SUMS_16, WEFT_SUM_OPERANDS_16, WEFT_AFTER_16);
    else
        WEFT_WGMMA("f16", "32", WEFT_SUMS_16, WEFT_SUM_OPERANDS_16, WEFT_AFTER_16);
}

template <bool BF16, int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma(float (&d)[96], uint64_t a, uint64_t b, int keep)
{
    if constexpr (BF16)
        WEFT_WGMMA("bf16", "192", WEFT_SUMS_96, WEFT_SUM_OPERANDS_96, WEFT_AFTER_96);
    else
        WEFT_WGMMA("f16", "192", WEFT_SUMS_96, WEFT_SUM_OPERANDS_96, WEFT_AFTER_96);
}

#endif
