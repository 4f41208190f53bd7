/*
 * int8 to int32, AVX-512 VNNI. VPDPBUSD multiplies unsigned by signed bytes, so B is packed with 128 added,
 * and the kernel takes 128 * (row sums of A) off: one more accumulator gathers them as it goes, a row in each
 * lane.
 *
 * Tile 12x32, k in fours: 24 accumulators of 16, 1 for the correction, 2 for B, 1 constant, A by broadcast.
 * Per four of k: 2 loads of B, 10 broadcasts of A and 5 loads of it inside VPDPBUSD, 3 fetches, 25 VPDPBUSD,
 * of which 24 are the product. Panels come from L2, as those of the fp32 kernel do, since k blocks are long.
 */
#define VECTOR_BYTES 64
#include "gemm/kernels/x86/edges.h"
#include "gemm/kernels/x86/kernels.h"
#include "gemm/kernels/x86/pack.h"
#include "gemm/kernels/x86/pack_vectors.h"

enum {
    MR = 12,
    NR = 32,
    FEW = 4,
    EMBEDDED = 2,  /* rows whose A is broadcast by the products themselves: a load more, an
                      instruction less */
    UNROLLED = 2,  /* fours of k: with more of them gcc 12 copies registers */
    A_AHEAD = 512, /* bytes of panels, from L2 */
    B_AHEAD = 1024,
    FEW_AHEAD = 4096, /* of B, from memory */
    LATE = 128        /* of k */
};

/* excess + 128 * the sum of the four bytes, for each of the first `rows` words at `a`. A masked load of its
 * own would take one of the two ports that multiply. */
INLINE __m512i add_excess(__m512i excess, __m512i offset, const int8_t *a, int rows)
{
    const __mmask16 some = (__mmask16)((1u << rows) - 1);

    __asm__("vpdpbusd %2, %1, %0 %{%3%}"
            : "+v"(excess)
            : "v"(offset), "m"(*(const char(*)[64])a), "Yk"(some));
    return excess;
}

/* sum + the products of four of k, *a in all lanes, in one instruction. */
INLINE __m512i dot_one(const int8_t *a, __m512i b, __m512i sum)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*(const char(*)[4])a));
    return sum;
}

/* Four of k: sum += A * B, and what is too much in it; in assembly, as in f32_fma.h. */
INLINE void product(int rows, int vectors, const int8_t *a, const uint8_t *b, __m512i sum[][2],
                    __m512i *excess)
{
    __m512i b0 = _mm512_loadu_si512(b), b1 = vectors > 1 ? _mm512_loadu_si512(b + 64) : b0;

    *excess = add_excess(*excess, _mm512_set1_epi8((char)128), a, rows);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        if (rows == MR && i * EMBEDDED / MR != (i + 1) * EMBEDDED / MR) {
            sum[i][0] = dot_one(a + 4 * i, b0, sum[i][0]);
            if (vectors > 1)
                sum[i][1] = dot_one(a + 4 * i, b1, sum[i][1]);
        } else {
            int32_t four;
            __m512i x;

            memcpy(&four, a + 4 * i, sizeof(four));
            x = _mm512_set1_epi32(four);
            __asm__("vpdpbusd %2, %1, %0" : "+v"(sum[i][0]) : "v"(b0), "v"(x));
            if (vectors > 1)
                __asm__("vpdpbusd %2, %1, %0" : "+v"(sum[i][1]) : "v"(b1), "v"(x));
        }
    }
}

/* The first `rows` rows of a panel of A of `lines`. */
INLINE void products(int rows, int vectors, int lines, int64_t k, const int8_t *a, const uint8_t *b,
                     __m512i sum[][2], __m512i *excess)
{
    const int b_ahead = lines <= FEW ? FEW_AHEAD : B_AHEAD, step = 4 * lines;
    int64_t p = 0;

    for (; p + 4 * UNROLLED <= k; p += 4 * UNROLLED) {
#pragma GCC unroll 2
        for (int u = 0; u < UNROLLED; u++) {
            _mm_prefetch((const char *)b + 4 * NR * u + b_ahead, _MM_HINT_T0);
            if (vectors > 1)
                _mm_prefetch((const char *)b + 4 * NR * u + b_ahead + 64, _MM_HINT_T0);
            _mm_prefetch((const char *)a + step * u + A_AHEAD, _MM_HINT_T0);
            product(rows, vectors, a + step * u, b + 4 * NR * u, sum, excess);
        }
        a += UNROLLED * step;
        b += UNROLLED * 4 * NR;
    }
    for (; p < k; p += 4, a += step, b += 4 * NR)
        product(rows, vectors, a, b, sum, excess);
}

/* C (rows x 32) = what it starts from, if anything, + A * B. Rows of C are asked for late, as in sums.h. */
INLINE void tile(int rows, int64_t k, const int8_t *a, const uint8_t *b, const int32_t *start, int32_t *c,
                 int64_t c_ld)
{
    __m512i excess = _mm512_setzero_si512();
    __m512i sum[MR][2];
    int32_t off[LANES];
    int64_t early = k > 2 * LATE ? k - LATE : 0;

#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_si512();
    if (early)
        products(rows, 2, rows, early, a, b, sum, &excess);
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        __builtin_prefetch(c + i * c_ld, 1, 3);
        __builtin_prefetch(c + i * c_ld + 16, 1, 3);
        __builtin_prefetch(c + i * c_ld + NR - 1, 1, 3);
    }
    products(rows, 2, rows, k - early, a + early * rows, b + early * NR, sum, &excess);
    _mm512_storeu_si512(off, excess);
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        __m512i less = _mm512_set1_epi32(off[i]);
        __m512i first = _mm512_sub_epi32(sum[i][0], less), second = _mm512_sub_epi32(sum[i][1], less);

        if (start) {
            first = _mm512_add_epi32(first, _mm512_loadu_si512(start + i * c_ld));
            second = _mm512_add_epi32(second, _mm512_loadu_si512(start + i * c_ld + 16));
        }
        _mm512_storeu_si512(c + i * c_ld, first);
        _mm512_storeu_si512(c + i * c_ld + 16, second);
    }
}

/* Edges: `vectors` vectors of columns, the last of them in part. */
INLINE void edge_rows(int rows, int vectors, int64_t cols, int64_t k, const int8_t *a, const uint8_t *b,
                      int32_t *c, int64_t c_ld, int add)
{
    int64_t early = k > 2 * LATE ? k - LATE : 0;
    __m512i excess = _mm512_setzero_si512();
    __m512i sum[MR][2];
    int32_t off[LANES];

#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_si512();
    for (int64_t p = 0, end = early; p < k; p = end, end = k) {
        products(rows, vectors, MR, end - p, a + p * MR, b + p * NR, sum, &excess);
#pragma GCC unroll 12
        for (int i = 0; i < rows && end == early; i++) {
            __builtin_prefetch(c + i * c_ld, 1, 3);
            __builtin_prefetch(c + i * c_ld + cols / 2, 1, 3);
            __builtin_prefetch(c + i * c_ld + cols - 1, 1, 3);
        }
    }
    _mm512_storeu_si512(off, excess);
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        __m512i less = _mm512_set1_epi32(off[i]);

#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            int32_t *to = c + i * c_ld + v * LANES;
            int count = v + 1 < vectors ? LANES : (int)cols - v * LANES;
            __m512i old = words_load_some(to, add ? count : 0);

            words_store_some(to, _mm512_add_epi32(_mm512_sub_epi32(sum[i][v], less), old), count);
        }
    }
}

static void edge(int64_t rows, int64_t cols, int64_t k, const void *a, const void *b, void *c, int64_t c_ld,
                 int add)
{
    WEFT_EDGES(rows, cols, k, a, b, c, c_ld, add)
}

static void run(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    tile(MR, k, a, b, add ? c : NULL, c, c_ld);
}

static void run_few(int64_t k, const void *a, const void *b, void *c, int64_t c_ld, int add)
{
    tile(FEW, k, a, b, add ? c : NULL, c, c_ld);
}

static void keep(int64_t k, const void *a, const void *b, const void *start, void *to)
{
    tile(MR, k, a, b, start, to, NR);
}

static void pack_a_along(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_words(panel, source, ld, k, MR, 0);
}

static void pack_b_along(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_words(panel, source, ld, k, NR, 0x80808080);
}

static void pack_a_across(void *panel, const void *source, int64_t ld, int64_t k)
{
    weft_pack_across_uint8_t(panel, source, ld, k, MR, 4, 0);
}

static void pack_b_across(void *panel, const void *source, int64_t ld, int64_t k)
{
    pack_wide_bytes(panel, 0, source, ld, k, 1, 0x80808080);
}

static void pack_b_wide(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k,
                        int64_t count)
{
    pack_wide_bytes(panels, panel_bytes, source, ld, k, count, 0x80808080);
}

const weft_kernel weft_kernel_avx512_i8_12x32_dpbusd = {
    .name = "avx512_i8_12x32_dpbusd",
    .type = WEFT_I8,
    .mr = MR,
    .nr = NR,
    .a_kr = 4,
    .b_kr = 4,
    .k_step = 4,
    .b_flip = true,
    .run = run,
    .edge = edge,
    .keep = keep,
    .keep_block = 1,
    .fetches = true,
    .few = (const weft_few[]){{FEW, run_few}, {0}},
    .along = weft_avx512_i8_along,
    .across = weft_avx512_i8_across,
    WEFT_PACKERS,
    .pack_b_wide = pack_b_wide,
};
