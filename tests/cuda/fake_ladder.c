/* See fake_ladder.h. A thread alone needs no barrier: what threads of a CTA must not do to each other is not
 * tested here. */
#include "fake_ladder.h"

#include "core/clock.h"
#include "core/dtype.h"

#include <string.h>

typedef struct uint4 {
    uint32_t x, y, z, w;
} uint4;

typedef struct index_of {
    uint32_t x;
} index_of;

static const index_of threadIdx = {0}, blockDim = {1};
static index_of blockIdx, gridDim;

#define LADDER_KERNEL(name) static void run_##name(const ladder_args p)
#define LADDER_DEVICE static inline
#define LADDER_SHARED static
#define LADDER_UNROLL

static inline void __syncthreads(void) {}

static inline uint64_t load_acquire(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void store_release(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline void add_release(uint64_t *word)
{
    __atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
}

static inline uint64_t now_ns(void)
{
    return (uint64_t)weft_clock_ns();
}

static inline void latest(uint64_t *word, uint64_t value)
{
    *word = *word > value ? *word : value;
}

static inline void add_here(int32_t *count, int32_t more)
{
    *count += more;
}

static inline uint4 load_vector(const uint4 *from)
{
    return *from;
}

static inline void add_vector(int dtype, float *sums, uint4 v, float weight)
{
    for (size_t i = 0; i < 16 / weft_dtype_size((weft_dtype)dtype); i++)
        sums[i] += weight * (float)weft_element_get((weft_dtype)dtype, &v, i);
}

static inline uint4 put_vector(int dtype, const float *sums)
{
    uint4 v;

    for (size_t i = 0; i < 16 / weft_dtype_size((weft_dtype)dtype); i++)
        weft_element_set((weft_dtype)dtype, &v, i, (double)sums[i]);
    return v;
}

#include "bench/cuda/ladder_kernels.h"

static const struct {
    const char *name;
    void (*run)(ladder_args p);
} kernels[] = {
#define KERNEL(name) {"weft_ladder_" #name, run_##name},
    LADDER_KERNELS(KERNEL)
#undef KERNEL
};

int fake_ladder_find(const char *name)
{
    for (int i = 0; i < LADDER_COUNT_OF_KERNELS; i++)
        if (strcmp(kernels[i].name, name) == 0)
            return i;
    return -1;
}

void fake_ladder_begin(const ladder_args *args, ladder_kernel kernel)
{
    if (kernel == LADDER_meet)
        come(args);
}

static bool waits(const ladder_args *p, ladder_kernel kernel)
{
    int64_t count = kernel == LADDER_meet    ? p->world
                    : kernel == LADDER_await ? p->world * p->pairs
                                             : p->pairs;

    for (int64_t i = 0; i < count; i++)
        if (!(kernel == LADDER_meet    ? has_come(p, (int)i)
              : kernel == LADDER_await ? word_is_there(p, i)
                                       : answer_is_there(p, i)))
            return true;
    return false;
}

bool fake_ladder_run(const ladder_args *args, ladder_kernel kernel, uint32_t cta, uint32_t ctas)
{
    if ((kernel == LADDER_meet || kernel == LADDER_await || kernel == LADDER_sum) && !args->state->lost &&
        waits(args, kernel))
        return false;
    blockIdx.x = cta;
    gridDim.x = ctas;
    if (kernel == LADDER_meet)
        args->state->meets++; /* it came in fake_ladder_begin */
    else
        kernels[kernel].run(*args);
    return true;
}
