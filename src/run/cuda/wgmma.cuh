/*
 * wgmma of 64 x N x 16 (of fp8: x 32) on a warpgroup, for the widths N that the kernels use: both operands in
 * shared memory, or A in registers, and N / 2 sums of a thread in registers.
 */
#ifndef WEFT_RUN_CUDA_WGMMA_CUH
#define WEFT_RUN_CUDA_WGMMA_CUH

#include <stdint.h>

/*
 * A shared-memory operand with 128-byte swizzle. `stride` is the distance between groups of eight rows
 * (K-major) or of eight k (MN-major); `leading` the distance between blocks of 64 along M or N (MN-major).
 */
static __device__ __forceinline__ uint64_t operand(uint32_t address, uint32_t leading, uint32_t stride)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same of an address in shared memory of 16 bytes each: one addition. */
static __device__ __forceinline__ uint64_t operand_at(uint32_t address, uint32_t leading, uint32_t stride)
{
    return (uint64_t)((stride >> 4) + (1u << 30)) << 32 | (address + (leading >> 4 << 16));
}

static __device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* clang-format off */
#define WEFT_SUMS_4 \
        "%0, %1, %2, %3"
#define WEFT_SUMS_8 WEFT_SUMS_4 ", " \
        "%4, %5, %6, %7"
#define WEFT_SUMS_16 WEFT_SUMS_8 ", " \
        "%8, %9, %10, %11, %12, %13, %14, %15"
#define WEFT_SUMS_24 WEFT_SUMS_16 ", " \
        "%16, %17, %18, %19, %20, %21, %22, %23"
#define WEFT_SUMS_32 WEFT_SUMS_24 ", " \
        "%24, %25, %26, %27, %28, %29, %30, %31"
#define WEFT_SUMS_40 WEFT_SUMS_32 ", " \
        "%32, %33, %34, %35, %36, %37, %38, %39"
#define WEFT_SUMS_48 WEFT_SUMS_40 ", " \
        "%40, %41, %42, %43, %44, %45, %46, %47"
#define WEFT_SUMS_56 WEFT_SUMS_48 ", " \
        "%48, %49, %50, %51, %52, %53, %54, %55"
#define WEFT_SUMS_64 WEFT_SUMS_56 ", " \
        "%56, %57, %58, %59, %60, %61, %62, %63"
#define WEFT_SUMS_72 WEFT_SUMS_64 ", " \
        "%64, %65, %66, %67, %68, %69, %70, %71"
#define WEFT_SUMS_80 WEFT_SUMS_72 ", " \
        "%72, %73, %74, %75, %76, %77, %78, %79"
#define WEFT_SUMS_88 WEFT_SUMS_80 ", " \
        "%80, %81, %82, %83, %84, %85, %86, %87"
#define WEFT_SUMS_96 WEFT_SUMS_88 ", " \
        "%88, %89, %90, %91, %92, %93, %94, %95"
#define WEFT_SUMS_104 WEFT_SUMS_96 ", " \
        "%96, %97, %98, %99, %100, %101, %102, %103"
#define WEFT_SUMS_112 WEFT_SUMS_104 ", " \
        "%104, %105, %106, %107, %108, %109, %110, %111"
#define WEFT_SUMS_120 WEFT_SUMS_112 ", " \
        "%112, %113, %114, %115, %116, %117, %118, %119"
#define WEFT_SUMS_128 WEFT_SUMS_120 ", " \
        "%120, %121, %122, %123, %124, %125, %126, %127"

#define WEFT_SUM_OPERANDS_4 \
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define WEFT_SUM_OPERANDS_8 WEFT_SUM_OPERANDS_4, \
        "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define WEFT_SUM_OPERANDS_16 WEFT_SUM_OPERANDS_8, \
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define WEFT_SUM_OPERANDS_24 WEFT_SUM_OPERANDS_16, \
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define WEFT_SUM_OPERANDS_32 WEFT_SUM_OPERANDS_24, \
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WEFT_SUM_OPERANDS_40 WEFT_SUM_OPERANDS_32, \
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define WEFT_SUM_OPERANDS_48 WEFT_SUM_OPERANDS_40, \
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define WEFT_SUM_OPERANDS_56 WEFT_SUM_OPERANDS_48, \
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define WEFT_SUM_OPERANDS_64 WEFT_SUM_OPERANDS_56, \
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define WEFT_SUM_OPERANDS_72 WEFT_SUM_OPERANDS_64, \
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define WEFT_SUM_OPERANDS_80 WEFT_SUM_OPERANDS_72, \
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define WEFT_SUM_OPERANDS_88 WEFT_SUM_OPERANDS_80, \
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define WEFT_SUM_OPERANDS_96 WEFT_SUM_OPERANDS_88, \
        "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define WEFT_SUM_OPERANDS_104 WEFT_SUM_OPERANDS_96, \
        "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define WEFT_SUM_OPERANDS_112 WEFT_SUM_OPERANDS_104, \
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define WEFT_SUM_OPERANDS_120 WEFT_SUM_OPERANDS_112, \
        "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define WEFT_SUM_OPERANDS_128 WEFT_SUM_OPERANDS_120, \
        "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
/* clang-format on */

/* The operands behind the sums: A, B, whether to keep the sums so far, and how A and B lie. */
#define WEFT_WGMMA(TYPE, SUMS, N, A, B, KEEP, TRANS_A_AT, TRANS_B_AT)                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " KEEP ", 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" WEFT_SUMS_##SUMS        \
                 "}, " A ", " B ", p, 1, 1, " TRANS_A_AT ", " TRANS_B_AT ";\n}\n"                            \
                 : WEFT_SUM_OPERANDS_##SUMS                                                                  \
                 : "l"(a), "l"(b), "r"(keep), "n"(TRANS_A), "n"(TRANS_B))

/* keep = 0 starts from zero instead of the sums so far. */
#define WEFT_WGMMA_OF(SUMS, N, ...)                                                                          \
    template <bool BF16, int TRANS_A, int TRANS_B>                                                           \
    static __device__ __forceinline__ void wgmma(float(&d)[SUMS], uint64_t a, uint64_t b, int keep)          \
    {                                                                                                        \
        if constexpr (BF16)                                                                                  \
            WEFT_WGMMA("bf16", SUMS, N, __VA_ARGS__);                                                        \
        else                                                                                                 \
            WEFT_WGMMA("f16", SUMS, N, __VA_ARGS__);                                                         \
    }

WEFT_WGMMA_OF(4, "8", "%4", "%5", "%6", "%7", "%8")
WEFT_WGMMA_OF(8, "16", "%8", "%9", "%10", "%11", "%12")
WEFT_WGMMA_OF(16, "32", "%16", "%17", "%18", "%19", "%20")
WEFT_WGMMA_OF(32, "64", "%32", "%33", "%34", "%35", "%36")
WEFT_WGMMA_OF(40, "80", "%40", "%41", "%42", "%43", "%44")
WEFT_WGMMA_OF(48, "96", "%48", "%49", "%50", "%51", "%52")
WEFT_WGMMA_OF(56, "112", "%56", "%57", "%58", "%59", "%60")
WEFT_WGMMA_OF(64, "128", "%64", "%65", "%66", "%67", "%68")
WEFT_WGMMA_OF(72, "144", "%72", "%73", "%74", "%75", "%76")
WEFT_WGMMA_OF(80, "160", "%80", "%81", "%82", "%83", "%84")
WEFT_WGMMA_OF(88, "176", "%88", "%89", "%90", "%91", "%92")
WEFT_WGMMA_OF(96, "192", "%96", "%97", "%98", "%99", "%100")
WEFT_WGMMA_OF(104, "208", "%104", "%105", "%106", "%107", "%108")
WEFT_WGMMA_OF(112, "224", "%112", "%113", "%114", "%115", "%116")
WEFT_WGMMA_OF(120, "240", "%120", "%121", "%122", "%123", "%124")
WEFT_WGMMA_OF(128, "256", "%128", "%129", "%130", "%131", "%132")

/* A in registers, of which a thread has those of rows lane / 4 and lane / 4 + 8 of its warp's sixteen: {a[0],
 * a[1]} k 2 (lane % 4) and the next of either row, {a[2], a[3]} the same eight further. They stay as they are
 * until the group has been waited for. B has k along memory. */
#define WEFT_WGMMA_HELD(TYPE, SUMS, N, A0, A1, A2, A3, B, KEEP)                                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " KEEP ", 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" WEFT_SUMS_##SUMS        \
                 "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", p, 1, 1, 0;\n}\n"                              \
                 : WEFT_SUM_OPERANDS_##SUMS                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))

#define WEFT_WGMMA_HELD_OF(SUMS, N, ...)                                                                     \
    template <bool BF16>                                                                                     \
    static __device__ __forceinline__ void wgmma_held(float(&d)[SUMS], const uint32_t *a, uint64_t b,        \
                                                      int keep)                                              \
    {                                                                                                        \
        if constexpr (BF16)                                                                                  \
            WEFT_WGMMA_HELD("bf16", SUMS, N, __VA_ARGS__);                                                   \
        else                                                                                                 \
            WEFT_WGMMA_HELD("f16", SUMS, N, __VA_ARGS__);                                                    \
    }

WEFT_WGMMA_HELD_OF(8, "16", "%8", "%9", "%10", "%11", "%12", "%13")
WEFT_WGMMA_HELD_OF(16, "32", "%16", "%17", "%18", "%19", "%20", "%21")
WEFT_WGMMA_HELD_OF(32, "64", "%32", "%33", "%34", "%35", "%36", "%37")
WEFT_WGMMA_HELD_OF(64, "128", "%64", "%65", "%66", "%67", "%68", "%69")

/* One step of 64 x 128 x 32 of fp8; both operands have k along memory. */
#define WEFT_WGMMA_FP8(TYPE)                                                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                                \
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32." TYPE "." TYPE " {" WEFT_SUMS_64              \
                 "}, %64, %65, p, 1, 1;\n}\n"                                                                \
                 : WEFT_SUM_OPERANDS_64                                                                      \
                 : "l"(a), "l"(b), "r"(keep))

template <bool E5M2>
static __device__ __forceinline__ void wgmma_fp8(float (&d)[64], uint64_t a, uint64_t b, int keep)
{
    if constexpr (E5M2)
        WEFT_WGMMA_FP8("e5m2");
    else
        WEFT_WGMMA_FP8("e4m3");
}

#endif
