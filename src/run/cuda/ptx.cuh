/*
 * The instructions that CUDA C++ has no words for, of any GPU from sm_80 on: those of the memory order
 * (order.cuh), and asynchronous copies, fragments and products of the tensor cores (block_sm80.cuh). Those of
 * Hopper alone are in hopper.cuh. A test runs the kernels that use nothing else on a CPU: it has its own of
 * every function here (tests/cuda/simt.h).
 */
#ifndef WEFT_RUN_CUDA_PTX_CUH
#define WEFT_RUN_CUDA_PTX_CUH

#include <stdint.h>

static __device__ __forceinline__ uint64_t load_acquire(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

static __device__ __forceinline__ uint32_t load_relaxed(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

static __device__ __forceinline__ void add_release(uint64_t *word)
{
    asm volatile("red.release.sys.global.add.u64 [%0], 1;" ::"l"(word) : "memory");
}

/* The same for a signal that only this GPU looks at. */
static __device__ __forceinline__ void add_release_here(uint64_t *word)
{
    asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(word) : "memory");
}

/* For a signal or a word that every rank may add to; what it was. */
static __device__ __forceinline__ uint64_t add_acquire_release(uint64_t *word, uint64_t value)
{
    uint64_t before;
    asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(word), "l"(value)
                 : "memory");
    return before;
}

/* After a fence.acq_rel.sys of the same thread: a release whose fence was paid for earlier. */
static __device__ __forceinline__ void add_relaxed(uint64_t *word)
{
    asm volatile("red.relaxed.sys.global.add.u64 [%0], 1;" ::"l"(word) : "memory");
}

/* 2^x and 1 / x, approximately: in the order of the text, since the compiler, short of registers, would let
 * each wait for the one before. */
static __device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float reciprocal_approx(float x)
{
    float y;
    asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint64_t now_ns()
{
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

static __device__ __forceinline__ void count_relaxed(uint32_t *word)
{
    asm volatile("red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(word) : "memory");
}

/* The memory that a launch gives a CTA. */
static __device__ __forceinline__ char *shared_memory()
{
    extern __shared__ __align__(128) char shared_bytes[];
    return shared_bytes;
}

/* 16 bytes to shared memory, of which `bytes` come from `from` and the rest are zeros; past L1, for the
 * memory may be a peer's. */
static __device__ __forceinline__ void copy_async(char *to, const void *from, int bytes)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most `PENDING` of the groups that this thread has committed are under way. */
template <int PENDING> static __device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Four matrices of 8 x 8 elements of 16 bits, whose lines `at` of lanes 0-7, 8-15, ... point to: a lane gets
 * elements 2 * (lane % 4) and the next of line lane / 4; TRANSPOSED: of the matrix with lines for columns. */
template <bool TRANSPOSED>
static __device__ __forceinline__ void load_matrices(uint32_t (&x)[4], const char *at)
{
    uint32_t from = (uint32_t)__cvta_generic_to_shared(at);
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(from));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(from));
}

/* d += a * b of 16 x 8 x 16, by a warp. */
template <bool BF16>
static __device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                    uint32_t b1)
{
    if constexpr (BF16)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
