/* weft_reduce_rows: every element as one after the other in float32 and rounded once, in rows of any length,
 * whatever is converted a block at a time; NaN wins in min and max; a destination may be a source. The loops
 * for other vectors give the same bits. */
#include "core/cpu.h"
#include "core/dtype.h"
#include "run/cpu/reduce.h"
#include "run/cpu/reduce_kernels.h"
#include "support/check.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { SOURCES_MOST = 4, COLS_MOST = 2100, ROWS = 2 };

static float combine(weft_reduction reduction, float a, float b)
{
    switch (reduction) {
    case WEFT_MIN:
        return a < b || isnan(a) ? a : b;
    case WEFT_MAX:
        return a > b || isnan(a) ? a : b;
    case WEFT_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

/* Halves that a sum rounds, zeros and numbers at the ends of a type; `nan`: now and then one of those. */
static double value(uint64_t *seed, bool nan)
{
    uint64_t r = check_random(seed);

    if (nan && r % 31 == 0)
        return NAN;
    switch (r >> 8 & 15) {
    case 0:
        return -0.0;
    case 1:
        return 65504;
    case 2:
        return 0x1p-24;
    case 3:
        return -INFINITY;
    default:
        return ((double)(r >> 20) * 0x1p-43 - 1) * 8;
    }
}

static void check_row(weft_dtype dtype, weft_reduction reduction, int count, int places, int64_t cols,
                      uint64_t seed)
{
    static float data[SOURCES_MOST + 3][ROWS * (COLS_MOST + 3)], expected[ROWS * (COLS_MOST + 3)];
    int64_t ld = cols + 3;
    weft_view sources[SOURCES_MOST], to[3];
    bool same = true;

    for (int s = 0; s < count; s++) {
        sources[s] = (weft_view){(char *)data[s], ld};
        for (int64_t i = 0; i < ROWS * ld; i++)
            weft_element_set(dtype, data[s], (size_t)i, value(&seed, reduction <= WEFT_MAX));
    }
    for (int d = 0; d < places; d++) /* the second of them is the last source */
        to[d] = d == 1 ? sources[count - 1] : (weft_view){(char *)data[SOURCES_MOST + d], ld};
    for (int64_t i = 0; i < ROWS * ld; i++) {
        float sum = (float)weft_element_get(dtype, data[0], (size_t)i);

        for (int s = 1; s < count; s++)
            sum = combine(reduction, sum, (float)weft_element_get(dtype, data[s], (size_t)i));
        weft_element_set(dtype, expected, (size_t)i, (double)sum);
    }
    weft_reduce_rows(dtype, reduction, ROWS, cols, sources, count, dtype, to, places);
    for (int d = 0; d < places; d++) {
        for (int64_t i = 0; i < ROWS * ld; i++) {
            double got = weft_element_get(dtype, to[d].data, (size_t)i);
            double want = weft_element_get(dtype, expected, (size_t)i);

            same = same && (i % ld >= cols || got == want || (isnan(got) && isnan(want)));
        }
    }
    CHECK(same);
    if (!same)
        fprintf(stderr, "%s reduction %d, %d sources, %d places, %lld columns\n", weft_dtype_name(dtype),
                (int)reduction, count, places, (long long)cols);
}

#if defined(__x86_64__)
/* Any bits of a type, in places that no vector is aligned to; a NaN may be another NaN. */
static void check_loops(const weft_reduce_loops *loops, weft_dtype dtype, weft_reduction reduction,
                        uint64_t seed)
{
    enum { COUNT = 203 };
    static uint64_t random[2][COUNT + 1], both[2][2][COUNT + 1];
    size_t element = weft_dtype_size(dtype);
    bool same = true, sums = dtype == WEFT_F16 || dtype == WEFT_BF16;
    float wide[2][COUNT];

    for (int i = 0; i < 2 * (COUNT + 1); i++)
        random[i / (COUNT + 1)][i % (COUNT + 1)] = check_random(&seed);
    for (int i = 0; i < COUNT; i++)
        wide[0][i] = wide[1][i] = (float)value(&seed, true);
    for (int kind = 0; kind < 2; kind++) {
        const weft_reduce_loops *l = kind ? loops : &weft_reduce_portable;
        char *a = (char *)random[0] + element, *d = (char *)both[kind][0] + element;

        l->pair(dtype, reduction, d, NULL, a, random[1], COUNT);
        l->pair(dtype, reduction, both[kind][1], d, d, random[1], COUNT);
        if (sums)
            l->widen(dtype, reduction, wide[kind], a, COUNT);
    }
    for (size_t i = 0; i < COUNT; i++) {
        for (int d = 0; d < 2; d++) {
            char *x = (char *)both[0][d] + (i + !d) * element, *y = (char *)both[1][d] + (i + !d) * element;

            same = same && (memcmp(x, y, element) == 0 ||
                            (isnan(weft_element_get(dtype, x, 0)) && isnan(weft_element_get(dtype, y, 0))));
        }
        same = same && (wide[0][i] == wide[1][i] || (isnan(wide[0][i]) && isnan(wide[1][i])));
    }
    CHECK(same);
    if (!same)
        fprintf(stderr, "loops of %s, reduction %d\n", weft_dtype_name(dtype), (int)reduction);
}

static void check_all_loops(const weft_reduce_loops *loops)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_F64,
                                       WEFT_I8,  WEFT_U8,  WEFT_I32,  WEFT_I64};

    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (weft_reduction r = WEFT_SUM; r <= WEFT_PRODUCT; r++)
            check_loops(loops, types[t], r, t * 8 + r + 1);
}
#endif

int main(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16};
    static const weft_reduction reductions[] = {WEFT_SUM, WEFT_MIN, WEFT_MAX, WEFT_PRODUCT};
    static const int64_t cols[] = {1, 7, 8, 33, 1023, 1024, 1025, COLS_MOST};
    uint64_t seed = 1;

    for (int t = 0; t < 3; t++)
        for (int r = 0; r < 4; r++)
            for (int count = 2; count <= SOURCES_MOST; count++)
                for (int places = 1; places <= 3; places++)
                    for (size_t c = 0; c < sizeof(cols) / sizeof(cols[0]); c++)
                        check_row(types[t], reductions[r], count, places, cols[c], seed++);
#if defined(__x86_64__)
    if (weft_cpu_has(WEFT_CPU_LEVEL_AVX2))
        check_all_loops(&weft_reduce_avx2);
    if (weft_cpu_has(WEFT_CPU_LEVEL_AVX512))
        check_all_loops(&weft_reduce_avx512);
#endif
    return check_report("reduce");
}
