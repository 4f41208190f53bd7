/*
 * The threads of a GPU on a CPU, so that a kernel's own text runs where there is none. Included before the
 * kernel: what CUDA C++ has beyond C++, and every function of src/run/cuda/ptx.cuh, for which it stands in.
 *
 * A thread is a stack that runs until it meets others: at a barrier of its CTA or its warp, or in an
 * instruction that a warp executes together. Instructions do what the PTX manual says, and no more than it
 * promises: an asynchronous copy spoils its destination at once and writes it when the thread waits for it,
 * and a warp runs as far as the next barrier of the CTA lets it before another one does, in random order. So
 * too few barriers, too few stages or a wait for the wrong group give wrong results. What is wrong by itself
 * (an unaligned address, one outside of shared memory, a warp that is not together) ends the test.
 */
#ifndef WEFT_TESTS_CUDA_SIMT_H
#define WEFT_TESTS_CUDA_SIMT_H

#define WEFT_RUN_CUDA_PTX_CUH /* in place of it */

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "simt_threads.h"

using std::max;
using std::min;

#define threadIdx (simt::self().index)
#define blockIdx (simt::self().block())
#define gridDim (simt::self().grid())
#ifndef __grid_constant__
#define __grid_constant__
#endif
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))

/* ---- of CUDA C++ ------------------------------------------------------------------------------------- */

static inline void __syncthreads()
{
    simt::meet_cta();
}

static inline void __syncwarp()
{
    simt::meet_warp(NULL, NULL);
}

static inline void __threadfence() {}

static inline void __threadfence_system() {}

template <class T> static inline T __ldcg(const T *at)
{
    simt::must(reinterpret_cast<uintptr_t>(at) % alignof(T) == 0, "an unaligned load");
    return *at;
}

static inline float __uint_as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift)
{
    return (uint32_t)((((uint64_t)high << 32) | low) >> (shift & 31));
}

static inline uint32_t atomicCAS(uint32_t *word, uint32_t before, uint32_t after)
{
    __atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return before;
}

static inline uint32_t atomicExch(uint32_t *word, uint32_t value)
{
    return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST);
}

static inline uint32_t atomicExch_system(uint32_t *word, uint32_t value)
{
    return atomicExch(word, value);
}

static inline uint32_t atomicAdd(uint32_t *word, uint32_t value)
{
    return __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST);
}

/* ---- of ptx.cuh -------------------------------------------------------------------------------------- */

static inline float exp2_approx(float x)
{
    return exp2f(x);
}

static inline float reciprocal_approx(float x)
{
    return 1.0f / x;
}

static inline uint64_t load_acquire(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Who waits looks at a word of the host now and then: there others come in. */
static inline uint32_t load_relaxed(const uint32_t *word)
{
    simt::let_others();
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void add_release(uint64_t *word)
{
    __atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
}

static inline void add_release_here(uint64_t *word)
{
    add_release(word);
}

static inline uint64_t add_acquire_release(uint64_t *word, uint64_t value)
{
    return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}

static inline void count_relaxed(uint32_t *word)
{
    __atomic_fetch_add(word, 1, __ATOMIC_RELAXED);
}

static inline uint64_t now_ns()
{
    return simt::clock_ns();
}

static inline char *shared_memory()
{
    return simt::self().shared();
}

static inline void copy_async(char *to, const void *from, int bytes)
{
    simt::copy_begin(to, from, bytes);
}

static inline void copy_async_commit()
{
    simt::copy_commit();
}

template <int PENDING> static inline void copy_async_wait()
{
    simt::copy_wait(PENDING);
}

template <bool TRANSPOSED> static inline void load_matrices(uint32_t (&x)[4], const char *at)
{
    simt::Matrices mine = {at, x};
    simt::meet_warp(TRANSPOSED ? simt::load_transposed : simt::load_lines, &mine);
}

template <bool BF16>
static inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    simt::Product mine = {d, a, {b0, b1}};
    simt::meet_warp(BF16 ? simt::multiply_bf16 : simt::multiply_f16, &mine);
}

#endif
