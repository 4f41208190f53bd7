#include "gemm/pack.h"
#include "core/dtype.h"
#include "core/round.h"
#include "gemm/convert.h"
#include "gemm/gemm.h"

#include <string.h>

enum {
    LINES_MAX = 64,
    CONVERT_K = 64,
    STRIP_K = 8,
    EDGE_K = 64,      /* a multiple of every k_step */
    WIDE_LINES = 192, /* that lie side by side are converted together, */
    WIDE_K = 32       /* for so many k: a multiple of every k_step */
};

static const uint64_t packed_magic = 0x3142206b63617057u;

weft_pack_side weft_pack_side_a(const weft_binding *bind, int rows)
{
    const weft_kernel *kernel = bind->kernel;
    weft_pack_side side = {.lines = rows, .kr = kernel->a_kr, .narrow = bind->narrow};

    if (rows == kernel->mr) {
        side.widen = bind->widen_a;
        side.along = kernel->pack_a_along;
        side.across = kernel->pack_a_across;
        side.wide = kernel->pack_a_wide;
    }
    return side;
}

weft_pack_side weft_pack_side_b(const weft_binding *bind)
{
    const weft_kernel *kernel = bind->kernel;

    return (weft_pack_side){.lines = kernel->nr,
                            .kr = kernel->b_kr,
                            .flip = kernel->b_flip,
                            .narrow = bind->narrow,
                            .along = kernel->pack_b_along,
                            .across = kernel->pack_b_across,
                            .wide = kernel->pack_b_wide,
                            .widen = bind->widen_b};
}

/* Whether elements of `dtype` are packed as they are: no conversion, and nothing rounded on the way. */
static bool as_is(const weft_kernel *kernel, weft_dtype narrow, weft_dtype dtype)
{
    return dtype == kernel->type && narrow == WEFT_F32;
}

/* Whether they have the half type for which the kernel stands in. */
static bool is_narrow(weft_dtype narrow, weft_dtype dtype)
{
    return dtype == narrow && narrow != WEFT_F32;
}

int64_t weft_pack_k(const weft_kernel *kernel, int64_t k)
{
    return weft_round_up(k, kernel->k_step);
}

/*
 * The plain definition of a panel, for elements of 1, 2 or 4 bytes: `lines` lines of `k`, padded to
 * side->lines and padded_k. `T` is the element, `flip` is added to each. Panels of few rows are packed by it:
 * where `kr` is a constant, no element is a call.
 */
#define PACK_PLAIN(name, T)                                                                                  \
    static inline __attribute__((always_inline)) void name##_by(                                             \
        T *restrict panel, const T *restrict source, const weft_pack_side *side, int64_t ls, int64_t ks,     \
        int64_t lines, int64_t k, int64_t padded_k, T flip, int64_t kr)                                      \
    {                                                                                                        \
        int64_t width = side->lines;                                                                         \
                                                                                                             \
        for (int64_t p0 = 0; p0 < padded_k; p0 += kr) {                                                      \
            for (int64_t i = 0; i < width; i++) {                                                            \
                if (ks == 1 && i < lines && p0 + kr <= k && !flip) {                                         \
                    memcpy(panel, source + i * ls + p0, (size_t)kr * sizeof(T));                             \
                    panel += kr;                                                                             \
                    continue;                                                                                \
                }                                                                                            \
                for (int64_t q = 0; q < kr; q++) {                                                           \
                    bool inside = i < lines && p0 + q < k;                                                   \
                                                                                                             \
                    *panel++ = (T)((inside ? source[i * ls + (p0 + q) * ks] : 0) ^ flip);                    \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static void name(T *restrict panel, const T *restrict source, const weft_pack_side *side, int64_t ls,    \
                     int64_t ks, int64_t lines, int64_t k, int64_t padded_k, T flip)                         \
    {                                                                                                        \
        if (side->kr == 1)                                                                                   \
            name##_by(panel, source, side, ls, ks, lines, k, padded_k, flip, 1);                             \
        else if (side->kr == 2)                                                                              \
            name##_by(panel, source, side, ls, ks, lines, k, padded_k, flip, 2);                             \
        else if (side->kr == 4)                                                                              \
            name##_by(panel, source, side, ls, ks, lines, k, padded_k, flip, 4);                             \
        else                                                                                                 \
            name##_by(panel, source, side, ls, ks, lines, k, padded_k, flip, side->kr);                      \
    }

PACK_PLAIN(pack_plain_1, uint8_t)
PACK_PLAIN(pack_plain_2, uint16_t)
PACK_PLAIN(pack_plain_4, uint32_t)

static void pack_plain(size_t size, void *panel, const void *source, const weft_pack_side *side, int64_t ls,
                       int64_t ks, int64_t lines, int64_t k, int64_t padded_k)
{
    if (size == 1)
        pack_plain_1(panel, source, side, ls, ks, lines, k, padded_k, side->flip ? 0x80 : 0);
    else if (size == 2)
        pack_plain_2(panel, source, side, ls, ks, lines, k, padded_k, 0);
    else
        pack_plain_4(panel, source, side, ls, ks, lines, k, padded_k, 0);
}

/* What a fast packer does not take, fewer lines or a shorter k: laid out with its padding on the stack first,
 * which costs a copy where the plain definition goes by elements. */
static void pack_edge(const weft_kernel *kernel, const weft_pack_side *side, weft_panel_packer fast,
                      char *panel, const char *source, int64_t ls, int64_t ks, int64_t lines, int64_t k)
{
    _Alignas(64) char part[LINES_MAX * EDGE_K * sizeof(float)];
    int64_t size = (int64_t)weft_dtype_size(kernel->type), width = side->lines;

    for (int64_t p = 0; p < k; p += EDGE_K) {
        int64_t count = weft_min(k - p, EDGE_K), padded = weft_pack_k(kernel, count);
        int64_t ld = ks == 1 ? padded : width, runs = ks == 1 ? lines : count;
        size_t bytes = (size_t)((ks == 1 ? count : lines) * size);

        memset(part, 0, (size_t)(width * padded * size));
        for (int64_t x = 0; x < runs; x++)
            memcpy(part + x * ld * size, source + (p * ks + x * (ks == 1 ? ls : ks)) * size, bytes);
        fast(panel + p * width * size, part, ld, padded);
    }
}

/* One panel whose source has the kernel's type already. */
static void pack_same(const weft_kernel *kernel, const weft_pack_side *side, char *panel, const void *source,
                      int64_t ls, int64_t ks, int64_t lines, int64_t k)
{
    size_t size = weft_dtype_size(kernel->type);
    weft_panel_packer fast = ks == 1 ? side->along : ls == 1 ? side->across : NULL;
    int64_t done = lines == side->lines ? k / kernel->k_step * kernel->k_step : 0;

    if (!fast) {
        pack_plain(size, panel, source, side, ls, ks, lines, k, weft_pack_k(kernel, k));
        return;
    }
    if (done)
        fast(panel, source, ks == 1 ? ls : ks, done);
    if (done < k)
        pack_edge(kernel, side, fast, panel + (size_t)(done * side->lines) * size,
                  (const char *)source + (size_t)(done * ks) * size, ls, ks, lines, k - done);
}

/* At most WIDE_LINES elements, by way of the type they are rounded to. */
static void convert(const weft_kernel *kernel, weft_dtype narrow, void *to, weft_dtype dtype,
                    const void *from, int64_t count)
{
    uint16_t half[WIDE_LINES];

    /* Every type holds fp8 and int8. */
    if (narrow == WEFT_F32 || narrow == dtype || weft_dtype_is_fp8(dtype) || dtype == WEFT_I8) {
        weft_convert_row(kernel->type, to, dtype, from, count);
        return;
    }
    weft_convert_row(narrow, half, dtype, from, count);
    weft_convert_row(kernel->type, to, narrow, half, count);
}

/* One panel whose source has another type, k running along memory: a few k at a time are converted on the
 * stack, then packed. */
static void pack_converted(const weft_kernel *kernel, const weft_pack_side *side, char *panel,
                           const char *source, weft_dtype dtype, int64_t ls, int64_t lines, int64_t k)
{
    size_t from = weft_dtype_size(dtype), to = weft_dtype_size(kernel->type);
    _Alignas(64) char part[LINES_MAX * CONVERT_K * sizeof(float)];

    for (int64_t p = 0; p < k; p += CONVERT_K) {
        int64_t count = weft_min(k - p, CONVERT_K);

        for (int64_t i = 0; i < lines; i++)
            convert(kernel, side->narrow, part + (size_t)(i * CONVERT_K) * to, dtype,
                    source + (size_t)(i * ls + p) * from, count);
        pack_same(kernel, side, panel + (size_t)(p * side->lines) * to, part, CONVERT_K, 1, lines, count);
    }
}

/* Panels whose source has another type, the lines lying side by side: many are converted together. */
static void pack_converted_across(const weft_kernel *kernel, const weft_pack_side *side, char *panels,
                                  int64_t panel_bytes, const char *source, weft_dtype dtype, int64_t ks,
                                  int64_t lines, int64_t k)
{
    size_t from = weft_dtype_size(dtype), to = weft_dtype_size(kernel->type);
    int64_t wide = WIDE_LINES / side->lines * side->lines;
    _Alignas(64) char part[WIDE_LINES * WIDE_K * sizeof(float)];

    for (int64_t j = 0; j < lines; j += wide) {
        int64_t width = weft_min(lines - j, wide);

        for (int64_t p = 0; p < k; p += WIDE_K) {
            int64_t count = weft_min(k - p, WIDE_K);

            for (int64_t q = 0; q < count; q++)
                convert(kernel, side->narrow, part + (size_t)(q * WIDE_LINES) * to, dtype,
                        source + (size_t)((p + q) * ks + j) * from, width);
            for (int64_t i = 0; i < width; i += side->lines)
                pack_same(kernel, side,
                          panels + (j + i) / side->lines * panel_bytes + (size_t)(p * side->lines) * to,
                          part + (size_t)i * to, 1, WIDE_LINES, weft_min(width - i, side->lines), count);
        }
    }
}

static void pack_strip(const weft_kernel *kernel, const weft_pack_side *side, char *panels,
                       int64_t panel_bytes, const char *source, weft_dtype dtype, int64_t ls, int64_t ks,
                       int64_t lines, int64_t k)
{
    size_t size = weft_dtype_size(dtype);

    for (int64_t i = 0; i < lines; i += side->lines) {
        int64_t count = weft_min(lines - i, side->lines);
        char *panel = panels + i / side->lines * panel_bytes;
        const char *here = source + (size_t)(i * ls) * size;

        if (as_is(kernel, side->narrow, dtype))
            pack_same(kernel, side, panel, here, ls, ks, count, k);
        else if (is_narrow(side->narrow, dtype) && side->widen.along && count == side->lines)
            side->widen.along(panel, here, ls, k);
        else
            pack_converted(kernel, side, panel, here, dtype, ls, count, k);
    }
}

/*
 * When the lines lie side by side, a panel takes only part of each cache line of the source: then a few k of
 * all panels are packed at a time, so that the rest of it is still in cache for the next panel.
 */
void weft_pack_panels(const weft_kernel *kernel, const weft_pack_side *side, void *panels,
                      int64_t panel_bytes, const void *source, weft_dtype dtype, int64_t line_stride,
                      int64_t k_stride, int64_t lines, int64_t k)
{
    size_t from = weft_dtype_size(dtype), to = weft_dtype_size(kernel->type);
    int64_t strip = k_stride == 1 ? k : weft_max(STRIP_K, kernel->k_step);
    int64_t whole = k / kernel->k_step * kernel->k_step, count = lines / side->lines,
            done = count * side->lines;
    weft_wide_packer wide = as_is(kernel, side->narrow, dtype) ? side->wide
                            : is_narrow(side->narrow, dtype)   ? side->widen.wide
                                                               : NULL;

    if (wide && line_stride == 1 && whole > 0 && count > 0) {
        wide(panels, panel_bytes, source, k_stride, whole, count);
        if (whole < k)
            pack_strip(kernel, side, (char *)panels + (size_t)(whole * side->lines) * to, panel_bytes,
                       (const char *)source + (size_t)(whole * k_stride) * from, dtype, line_stride, k_stride,
                       done, k - whole);
        panels = (char *)panels + count * panel_bytes;
        source = (const char *)source + (size_t)done * from;
        lines -= done;
    }
    if (k_stride != 1 && !as_is(kernel, side->narrow, dtype)) {
        pack_converted_across(kernel, side, panels, panel_bytes, source, dtype, k_stride, lines, k);
        return;
    }
    for (int64_t p = 0; p < k; p += strip)
        pack_strip(kernel, side, (char *)panels + (size_t)(p * side->lines) * to, panel_bytes,
                   (const char *)source + (size_t)(p * k_stride) * from, dtype, line_stride, k_stride, lines,
                   weft_min(k - p, strip));
}

weft_dtype weft_packed_type(const weft_binding *bind)
{
    return bind->narrow == WEFT_F32 ? bind->kernel->type : bind->narrow;
}

static int64_t packed_panel_bytes(const weft_binding *bind, int64_t k)
{
    int64_t elements = weft_pack_k(bind->kernel, k) * bind->kernel->nr;
    int64_t bytes = elements * (int64_t)weft_dtype_size(weft_packed_type(bind));

    return weft_round_up(bytes, 64);
}

size_t weft_packed_bytes(const weft_binding *bind, int64_t k, int64_t n)
{
    int64_t panels = weft_divide_up(n, bind->kernel->nr);

    return sizeof(weft_packed) + (size_t)(panels * packed_panel_bytes(bind, k));
}

weft_packed *weft_packed_begin(const weft_binding *bind, int64_t k, int64_t n, void *memory)
{
    weft_packed *packed = memory;

    *packed = (weft_packed){
        .magic = packed_magic,
        .k = k,
        .n = n,
        .type = weft_packed_type(bind),
        .narrow = bind->narrow,
        .nr = bind->kernel->nr,
        .b_kr = bind->kernel->b_kr,
        .k_step = bind->kernel->k_step,
        .panel_bytes = packed_panel_bytes(bind, k),
    };
    return packed;
}

bool weft_packed_fits(const weft_binding *bind, const weft_packed *packed, int64_t k, int64_t n)
{
    const weft_kernel *kernel = bind->kernel;

    return packed->magic == packed_magic && packed->k == k && packed->n == n &&
           packed->type == (int32_t)weft_packed_type(bind) && packed->narrow == (int32_t)bind->narrow &&
           packed->nr == kernel->nr && packed->b_kr == kernel->b_kr && packed->k_step == kernel->k_step;
}

static inline void copy_lines(char *to, int64_t to_ld, const char *from, int64_t from_ld, int64_t lines,
                              size_t bytes)
{
    for (int64_t i = 0; i < lines; i++)
        memcpy(to + i * to_ld, from + i * from_ld, bytes);
}

/* Whole panels of a row-major B of halves: lines of each are copied, a few of all panels at a time. */
static void copy_panels(char *panels, int64_t panel_bytes, const char *source, int64_t ld, int64_t k,
                        int64_t count, int64_t line)
{
    for (int64_t p = 0; p < k; p += STRIP_K) {
        int64_t lines = weft_min(k - p, STRIP_K);

        for (int64_t c = 0; c < count; c++) {
            char *to = panels + c * panel_bytes + p * line;
            const char *from = source + p * ld + c * line;

            /* Known sizes are no calls. */
            if (line == 64)
                copy_lines(to, 64, from, ld, lines, 64);
            else if (line == 32)
                copy_lines(to, 32, from, ld, lines, 32);
            else
                copy_lines(to, line, from, ld, lines, (size_t)line);
        }
    }
}

/* Panels of the half type that the kernel stands in for. Rounded to it they are already in the panels that
 * the kernel reads: a piece of those is made on the stack, and loses nothing. */
static void pack_halves(const weft_binding *bind, const weft_pack_side *side, char *panels,
                        int64_t panel_bytes, const char *source, weft_dtype dtype, int64_t ls, int64_t ks,
                        int64_t lines, int64_t k)
{
    _Alignas(64) float part[WIDE_LINES * WIDE_K];
    const weft_kernel *kernel = bind->kernel;
    int64_t nr = kernel->nr, wide = WIDE_LINES / nr * nr, size = (int64_t)weft_dtype_size(dtype);
    int64_t copied = dtype == bind->narrow && ls == 1 ? lines / nr : 0;

    copy_panels(panels, panel_bytes, source, ks * size, k, copied, nr * 2);
    for (int64_t j = copied * nr; j < lines; j += wide) {
        int64_t width = weft_min(lines - j, wide);

        for (int64_t p = 0; p < k; p += WIDE_K) {
            int64_t count = weft_min(k - p, WIDE_K);

            weft_pack_panels(kernel, side, part, WIDE_K * nr * 4, source + (j * ls + p * ks) * size, dtype,
                             ls, ks, width, count);
            for (int64_t i = 0; i < width; i += nr)
                weft_convert_row(bind->narrow, panels + (j + i) / nr * panel_bytes + p * nr * 2, WEFT_F32,
                                 part + i * WIDE_K, count * nr);
        }
    }
}

void weft_packed_widen(const weft_binding *bind, char *to, int64_t to_bytes, const char *from,
                       int64_t from_bytes, int64_t k, int64_t count)
{
    int64_t nr = bind->kernel->nr;

    for (int64_t i = 0; i < count; i++, to += to_bytes, from += from_bytes) {
        if (bind->widen_b.wide) /* a panel is a row-major matrix of nr columns */
            bind->widen_b.wide(to, to_bytes, from, nr, k, 1);
        else
            weft_convert_row(WEFT_F32, to, bind->narrow, from, k * nr);
    }
}

void weft_packed_fill(const weft_binding *bind, weft_packed *packed, const void *b, weft_dtype b_dtype,
                      int64_t b_rs, int64_t b_cs, int64_t k0, int64_t k, int64_t n0, int64_t n)
{
    weft_pack_side side = weft_pack_side_b(bind);
    size_t size = weft_dtype_size(b_dtype);
    char *panels = (char *)(packed + 1) + n0 / packed->nr * packed->panel_bytes +
                   k0 * packed->nr * (int64_t)weft_dtype_size(weft_packed_type(bind));
    const char *source = (const char *)b + (size_t)(k0 * b_rs + n0 * b_cs) * size;

    if (bind->narrow != WEFT_F32)
        pack_halves(bind, &side, panels, packed->panel_bytes, source, b_dtype, b_cs, b_rs, n, k);
    else
        weft_pack_panels(bind->kernel, &side, panels, packed->panel_bytes, source, b_dtype, b_cs, b_rs, n, k);
}
