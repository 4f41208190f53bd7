/*
 * The Hopper instructions the walker uses, one function each: mbarriers, the copy engine, wgmma.
 */
#ifndef WEFT_RUN_CUDA_HOPPER_CUH
#define WEFT_RUN_CUDA_HOPPER_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

static __device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}

/* A barrier of consumer 0's or 1's 128 threads. */
static __device__ __forceinline__ void group_sync(uint32_t consumer)
{
    __syncwarp();
    if (consumer == 0)
        asm volatile("bar.sync 1, 128;" ::: "memory");
    else
        asm volatile("bar.sync 2, 128;" ::: "memory");
}

/* The next kernel on the stream may be brought in when CTAs of this one end, if it was launched to wait for
 * the rest by itself: by grid_wait. */
static __device__ __forceinline__ void grid_began()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

static __device__ __forceinline__ void grid_wait()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

static __device__ __forceinline__ void bar_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

static __device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\nbra again;\ndone:\n}\n" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* At the same barrier of CTA `cta`. Not .release.cluster: that drains all memory traffic, and all the arrival
 * says is that wgmma has read a stage, which its completion already orders. */
static __device__ __forceinline__ void bar_arrive_at(uint32_t bar, uint32_t cta)
{
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(bar),
                 "r"(cta)
                 : "memory");
}

static __device__ __forceinline__ void bar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void tile_load(uint32_t dst, const void *map, uint32_t bar, int x, int y)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(dst),
        "l"(map), "r"(bar), "r"(x), "r"(y)
        : "memory");
}

/* The same into the same place of every CTA named in `mask`, each one's own barrier counting its bytes. */
static __device__ __forceinline__ void tile_load_shared(uint32_t dst, const void *map, uint32_t bar, int x,
                                                        int y, uint16_t mask)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
        "l"(map), "r"(bar), "r"(x), "r"(y), "h"(mask)
        : "memory");
}

static __device__ __forceinline__ void tile_store(const void *map, uint32_t src, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(src), "r"(x), "r"(y)
                 : "memory");
}

/* Adds to what is there instead: in the memory itself, so that nothing is read into the SM. */
static __device__ __forceinline__ void tile_add(const void *map, uint32_t src, int x, int y)
{
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
            map),
        "r"(src), "r"(x), "r"(y)
        : "memory");
}

static __device__ __forceinline__ void bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}

static __device__ __forceinline__ void bulk_store(void *dst, uint32_t src, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* All but the last N groups have been read out of shared memory. */
template <int N> static __device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ float2 shared_pair(uint32_t address)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}

static __device__ __forceinline__ uint32_t shared_word(uint32_t address)
{
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}

/* Before a CTA first uses a map whose memory has held another one: what an SM keeps of maps outlives a
 * kernel. */
static __device__ __forceinline__ void map_acquire(const void *map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}

static __device__ __forceinline__ void map_prefetch(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* A word of this CTA's shared memory: the store's partner is the load of another thread of the CTA. */
static __device__ __forceinline__ void word_release(uint32_t address, uint32_t value)
{
    asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

static __device__ __forceinline__ uint32_t word_acquire(uint32_t address)
{
    uint32_t value;
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

/* The same for a word that only grows. Atomics, so that racecheck does not take the two for a race. */
static __device__ __forceinline__ void word_raise(uint32_t address, uint32_t value)
{
    asm volatile("red.release.cta.shared::cta.max.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

static __device__ __forceinline__ uint32_t word_seen(uint32_t address)
{
    uint32_t value;
    asm volatile("atom.acquire.cta.shared::cta.or.b32 %0, [%1], 0;" : "=r"(value) : "r"(address) : "memory");
    return value;
}

/* All groups are written: what a post may follow. */
static __device__ __forceinline__ void bulk_wait_written()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

static __device__ __forceinline__ void fence_proxy_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void registers_grow()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_shrink()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/*
 * A shared-memory operand with 128-byte swizzle. `stride` is the distance between groups of eight rows
 * (K-major) or of eight k (MN-major); `leading` the distance between blocks of 64 along M or N (MN-major).
 */
static __device__ __forceinline__ uint64_t operand(uint32_t address, uint32_t leading, uint32_t stride)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 62;
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
#define WEFT_SUMS_32 \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

#define WEFT_SUMS_64 WEFT_SUMS_32 ", " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define WEFT_SUMS_112 WEFT_SUMS_64 ", " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"

#define WEFT_SUMS_128 WEFT_SUMS_112 \
        ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define WEFT_SUM_OPERANDS_32 \
          "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])

#define WEFT_SUM_OPERANDS_64 WEFT_SUM_OPERANDS_32, \
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])

#define WEFT_SUM_OPERANDS_112 WEFT_SUM_OPERANDS_64, \
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), \
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), \
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])

#define WEFT_SUM_OPERANDS_128 WEFT_SUM_OPERANDS_112, \
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

/* One step of 64 x N x 16 on a warpgroup; both operands in shared memory, N / 2 sums in registers. */
#define WEFT_WGMMA(TYPE, N, SUMS, OPERANDS, AT)                                                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " AT(2) ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" SUMS "}, "                \
                 AT(0) ", " AT(1) ", p, 1, 1, " AT(3) ", " AT(4) ";\n}\n"                                    \
                 : OPERANDS                                                                                   \
                 : "l"(a), "l"(b), "r"(keep), "n"(TRANS_A), "n"(TRANS_B))
#define WEFT_AFTER_32(i) WEFT_AFTER_32_##i
#define WEFT_AFTER_32_0 "%32"
#define WEFT_AFTER_32_1 "%33"
#define WEFT_AFTER_32_2 "%34"
#define WEFT_AFTER_32_3 "%35"
#define WEFT_AFTER_32_4 "%36"
#define WEFT_AFTER_64(i) WEFT_AFTER_64_##i
#define WEFT_AFTER_64_0 "%64"
#define WEFT_AFTER_64_1 "%65"
#define WEFT_AFTER_64_2 "%66"
#define WEFT_AFTER_64_3 "%67"
#define WEFT_AFTER_64_4 "%68"
#define WEFT_AFTER_112(i) WEFT_AFTER_112_##i
#define WEFT_AFTER_112_0 "%112"
#define WEFT_AFTER_112_1 "%113"
#define WEFT_AFTER_112_2 "%114"
#define WEFT_AFTER_112_3 "%115"
#define WEFT_AFTER_112_4 "%116"
#define WEFT_AFTER_128(i) WEFT_AFTER_128_##i
#define WEFT_AFTER_128_0 "%128"
#define WEFT_AFTER_128_1 "%129"
#define WEFT_AFTER_128_2 "%130"
#define WEFT_AFTER_128_3 "%131"
#define WEFT_AFTER_128_4 "%132"
/* clang-format on */

/* keep = 0 starts from zero instead of the sums so far. */
template <bool BF16, int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b, int keep)
{
    if constexpr (BF16)
        WEFT_WGMMA("bf16", "256", WEFT_SUMS_128, WEFT_SUM_OPERANDS_128, WEFT_AFTER_128);
    else
        WEFT_WGMMA("f16", "256", WEFT_SUMS_128, WEFT_SUM_OPERANDS_128, WEFT_AFTER_128);
}

template <bool BF16, int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma(float (&d)[112], uint64_t a, uint64_t b, int keep)
{
    if constexpr (BF16)
        WEFT_WGMMA("bf16", "224", WEFT_SUMS_112, WEFT_SUM_OPERANDS_112, WEFT_AFTER_112);
    else
        WEFT_WGMMA("f16", "224", WEFT_SUMS_112, WEFT_SUM_OPERANDS_112, WEFT_AFTER_112);
}

template <bool BF16, int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b, int keep)
{
    if constexpr (BF16)
        WEFT_WGMMA("bf16", "128", WEFT_SUMS_64, WEFT_SUM_OPERANDS_64, WEFT_AFTER_64);
    else
        WEFT_WGMMA("f16", "128", WEFT_SUMS_64, WEFT_SUM_OPERANDS_64, WEFT_AFTER_64);
}

template <bool BF16, int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma(float (&d)[32], uint64_t a, uint64_t b, int keep)
{
    if constexpr (BF16)
        WEFT_WGMMA("bf16", "64", WEFT_SUMS_32, WEFT_SUM_OPERANDS_32, WEFT_AFTER_32);
    else
        WEFT_WGMMA("f16", "64", WEFT_SUMS_32, WEFT_SUM_OPERANDS_32, WEFT_AFTER_32);
}

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

static __device__ __forceinline__ void matrices_store(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                                      uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
}

#endif
