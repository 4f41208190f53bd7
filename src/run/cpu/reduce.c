/*
 * Reductions. Rows are cut into blocks; two sources go straight from memory to memory, more pass through a
 * block of accumulators that stays in the first-level cache, so that every source is read once and every
 * destination written once.
 */
#include "run/cpu/reduce.h"

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/round.h"
#include "core/signal.h"
#include "gemm/convert.h"
#include "run/cpu/reduce_loops.h"

#include <stdbool.h>

enum { BLOCK = 1024, SHORT = 4096 };

/* Where compilers have no vectors that convert float16, loops would be scalar: such elements are converted a
 * block at a time instead, by what the CPU has. */
static bool converts_in_loops(weft_dtype dtype)
{
#if defined(__aarch64__)
    (void)dtype;
    return true;
#else
    return dtype != WEFT_F16;
#endif
}

typedef union accumulators {
    float f[BLOCK];
    uint32_t w[BLOCK];
    uint64_t q[BLOCK];
    double d[BLOCK];
    uint8_t b[BLOCK];
} accumulators;

const weft_reduce_loops weft_reduce_portable = {pair, widen};

/* For rows of so many elements. Elements that are added as they lie take what their lines take. Vectors of
 * 512 bits spare nothing there, but lower the clock of some CPUs for all that is around them; of few elements
 * those of 256 bits are no faster either, while lines that come from a peer's cache are asked for ahead more
 * often by CPUs that see several loads of each. Conversions are worth the widest. */
static const weft_reduce_loops *loops_for(weft_dtype dtype, int64_t cols)
{
#if defined(__x86_64__)
    bool plain = dtype != WEFT_F16 && dtype != WEFT_BF16;

    if (!plain && weft_cpu_has(WEFT_CPU_LEVEL_AVX512))
        return &weft_reduce_avx512;
    if (weft_cpu_has(WEFT_CPU_LEVEL_AVX2))
        return plain && cols <= SHORT ? &weft_reduce_short : &weft_reduce_avx2;
#else
    (void)dtype;
    (void)cols;
#endif
    return &weft_reduce_portable;
}

static void start(weft_dtype dtype, accumulators *sum, const void *a, int64_t n)
{
    if (dtype == WEFT_F16 || dtype == WEFT_BF16)
        weft_convert_row(WEFT_F32, sum->f, dtype, a, n);
    else
        memcpy(sum, a, (size_t)n * weft_dtype_size(dtype));
}

static void take(const weft_reduce_loops *loops, weft_dtype dtype, weft_reduction reduction,
                 accumulators *sum, const void *a, int64_t n)
{
    float wide[BLOCK];

    if (!converts_in_loops(dtype)) {
        weft_convert_row(WEFT_F32, wide, dtype, a, n);
        loops->pair(WEFT_F32, reduction, sum->f, NULL, sum->f, wide, n);
    } else if (dtype == WEFT_F16 || dtype == WEFT_BF16) {
        loops->widen(dtype, reduction, sum->f, a, n);
    } else {
        loops->pair(dtype, reduction, sum, NULL, sum, a, n);
    }
}

/* The first two sources, `b` if there are two: in one pass where the type allows, as a core waits for the
 * lines of one while it asks for those of the other. */
static void begin(const weft_reduce_loops *loops, weft_dtype dtype, weft_reduction reduction,
                  accumulators *sum, const void *a, const void *b, int64_t n)
{
    if (b && dtype != WEFT_F16 && dtype != WEFT_BF16) {
        loops->pair(dtype, reduction, sum, NULL, a, b, n);
        return;
    }
    start(dtype, sum, a, n);
    if (b)
        take(loops, dtype, reduction, sum, b, n);
}

static void finish_i32(weft_dtype to, void *d, const accumulators *sum, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        weft_element_set(to, d, (size_t)i, (double)(int32_t)sum->w[i]);
}

/* `dtype` is the type of the sources: what the accumulators hold follows from it. */
static void finish(weft_dtype dtype, weft_dtype to, void *d, const accumulators *sum, int64_t n)
{
    if (dtype == WEFT_I32 && to != WEFT_I32)
        finish_i32(to, d, sum, n);
    else if (to == WEFT_F16 || to == WEFT_BF16)
        weft_convert_row(to, d, WEFT_F32, sum->f, n);
    else
        memcpy(d, sum, (size_t)n * weft_dtype_size(to));
}

static void divide(weft_dtype dtype, accumulators *sum, int count, int64_t n)
{
    if (dtype == WEFT_F64)
        for (int64_t i = 0; i < n; i++)
            sum->d[i] /= count;
    else
        for (int64_t i = 0; i < n; i++)
            sum->f[i] /= (float)count;
}

static char *at(const weft_view *view, int64_t row, int64_t col, int64_t element_bytes)
{
    return view->data + (row * view->ld + col) * element_bytes;
}

/* Two sources into one or two destinations of their type. */
static void pair_row(weft_dtype dtype, weft_reduction reduction, int64_t cols, int64_t row,
                     int64_t element_bytes, const weft_view *sources, const weft_view *destinations,
                     int destination_count)
{
    const weft_reduce_loops *loops = loops_for(dtype, cols);

    for (int64_t col = 0; col < cols; col += BLOCK) {
        int64_t n = weft_min(cols - col, BLOCK);
        char *first = at(&destinations[0], row, col, element_bytes),
             *second = destination_count == 2 ? at(&destinations[1], row, col, element_bytes) : NULL;

        if (second) { /* one is a peer's: its lines take half of the time when asked for ahead */
            weft_fetch_all_to_write(first, n * element_bytes);
            weft_fetch_all_to_write(second, n * element_bytes);
        }
        loops->pair(dtype, reduction, first, second, at(&sources[0], row, col, element_bytes),
                    at(&sources[1], row, col, element_bytes), n);
    }
}

/* Any. `over` > 0: an average. Apart, so that pairs do not reach over accumulators that they do not use. */
static void __attribute__((noinline))
sum_row(weft_dtype dtype, weft_reduction reduction, int over, int64_t cols, int64_t row,
        const weft_view *sources, int source_count, weft_dtype to, const weft_view *destinations,
        int destination_count)
{
    int64_t from_bytes = (int64_t)weft_dtype_size(dtype), to_bytes = (int64_t)weft_dtype_size(to);
    const weft_reduce_loops *loops = loops_for(dtype, cols);
    accumulators sum;

    for (int64_t col = 0; col < cols; col += BLOCK) {
        int64_t n = weft_min(cols - col, BLOCK);

        begin(loops, dtype, reduction, &sum, at(&sources[0], row, col, from_bytes),
              source_count > 1 ? at(&sources[1], row, col, from_bytes) : NULL, n);
        for (int source = 2; source < source_count; source++)
            take(loops, dtype, reduction, &sum, at(&sources[source], row, col, from_bytes), n);
        if (over)
            divide(dtype, &sum, over, n);
        for (int destination = 0; destination < destination_count; destination++)
            finish(dtype, to, at(&destinations[destination], row, col, to_bytes), &sum, n);
    }
}

void weft_average_rows(weft_dtype dtype, int over, int64_t rows, int64_t cols, const weft_view *sources,
                       int source_count, weft_dtype to, const weft_view *destinations, int destination_count)
{
    for (int64_t row = 0; row < rows; row++)
        sum_row(dtype, WEFT_SUM, over, cols, row, sources, source_count, to, destinations, destination_count);
}

void weft_reduce_rows(weft_dtype dtype, weft_reduction reduction, int64_t rows, int64_t cols,
                      const weft_view *sources, int source_count, weft_dtype to,
                      const weft_view *destinations, int destination_count)
{
    if (reduction == WEFT_AVERAGE) {
        weft_average_rows(dtype, source_count, rows, cols, sources, source_count, to, destinations,
                          destination_count);
        return;
    }
    if (dtype == WEFT_BOOL) { /* of bytes that are 0 or 1 */
        reduction = reduction == WEFT_SUM ? WEFT_MAX : reduction == WEFT_PRODUCT ? WEFT_MIN : reduction;
        dtype = to = WEFT_U8;
    }
    if (source_count == 2 && destination_count <= 2 && dtype == to && converts_in_loops(dtype)) {
        int64_t element_bytes = (int64_t)weft_dtype_size(dtype);

        for (int64_t row = 0; row < rows; row++)
            pair_row(dtype, reduction, cols, row, element_bytes, sources, destinations, destination_count);
        return;
    }
    for (int64_t row = 0; row < rows; row++)
        sum_row(dtype, reduction, 0, cols, row, sources, source_count, to, destinations, destination_count);
}

void weft_copy(size_t element_bytes, int64_t rows, int64_t cols, weft_view destination, weft_view source)
{
    size_t row_bytes = (size_t)cols * element_bytes;

    if (destination.data == source.data || rows <= 0 || cols <= 0)
        return;
    if (destination.ld == cols && source.ld == cols) {
        memcpy(destination.data, source.data, (size_t)rows * row_bytes);
        return;
    }
    for (int64_t row = 0; row < rows; row++)
        memcpy(destination.data + (size_t)(row * destination.ld) * element_bytes,
               source.data + (size_t)(row * source.ld) * element_bytes, row_bytes);
}

void weft_copy_transposed(size_t element_bytes, int64_t rows, int64_t cols, weft_view destination,
                          weft_view source)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < cols; col++)
            memcpy(destination.data + (size_t)(row * destination.ld + col) * element_bytes,
                   source.data + (size_t)(col * source.ld + row) * element_bytes, element_bytes);
}
