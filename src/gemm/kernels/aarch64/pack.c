/*
 * Fast packers for full panels. What matters is only how many bytes of k one line holds side by side (the
 * granule: element size times kr), so fp32, BFDOT and SDOT share the 4-byte transposes, BFMMLA and SMMLA the
 * 8-byte ones. "Along" transposes granules; "across" copies, or interleaves the k that make up a granule.
 */
#include "pack.h"

#include "core/round.h"

#include <arm_neon.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE uint8x16_t load16(const void *p)
{
    return vld1q_u8(p);
}

INLINE uint32_t load_u32(const void *p)
{
    uint32_t value;

    memcpy(&value, p, sizeof(value));
    return value;
}

INLINE uint64_t load_u64(const void *p)
{
    uint64_t value;

    memcpy(&value, p, sizeof(value));
    return value;
}

INLINE uint8x16_t zip1_16(uint8x16_t a, uint8x16_t b)
{
    return vreinterpretq_u8_u16(vzip1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
}

INLINE uint8x16_t zip2_16(uint8x16_t a, uint8x16_t b)
{
    return vreinterpretq_u8_u16(vzip2q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
}

INLINE uint8x16_t zip1_32(uint8x16_t a, uint8x16_t b)
{
    return vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}

INLINE uint8x16_t zip2_32(uint8x16_t a, uint8x16_t b)
{
    return vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}

INLINE uint8x16_t zip1_64(uint8x16_t a, uint8x16_t b)
{
    return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

INLINE uint8x16_t zip2_64(uint8x16_t a, uint8x16_t b)
{
    return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

/* ---- along: `bytes` of k in each of `lines` lines, `ld` bytes apart ------------------------------- */

INLINE void along_8(char *to, const char *from, int64_t ld, int64_t bytes, int lines)
{
    int64_t at = 0, row = 8 * lines;

    for (; at + 16 <= bytes; at += 16, to += 2 * row) {
        for (int i = 0; i < lines; i += 2) {
            uint8x16_t x = load16(from + i * ld + at), y = load16(from + (i + 1) * ld + at);

            vst1q_u8((uint8_t *)to + 8 * i, zip1_64(x, y));
            vst1q_u8((uint8_t *)to + row + 8 * i, zip2_64(x, y));
        }
    }
    for (int i = 0; i < lines && at < bytes; i++)
        memcpy(to + 8 * i, from + i * ld + at, 8);
}

INLINE void along_4(char *to, const char *from, int64_t ld, int64_t bytes, int lines)
{
    int64_t at = 0, row = 4 * lines;

    for (; at + 16 <= bytes; at += 16, to += 4 * row) {
        for (int i = 0; i < lines; i += 4) {
            const char *line = from + i * ld + at;
            uint8x16_t a = load16(line), b = load16(line + ld), c = load16(line + 2 * ld),
                       d = load16(line + 3 * ld);
            uint8x16_t ac = zip1_32(a, c), bd = zip1_32(b, d), ac2 = zip2_32(a, c), bd2 = zip2_32(b, d);
            uint8_t *out = (uint8_t *)to + 4 * i;

            vst1q_u8(out, zip1_32(ac, bd));
            vst1q_u8(out + row, zip2_32(ac, bd));
            vst1q_u8(out + 2 * row, zip1_32(ac2, bd2));
            vst1q_u8(out + 3 * row, zip2_32(ac2, bd2));
        }
    }
    for (; at < bytes; at += 4, to += row) {
        for (int i = 0; i < lines; i++)
            memcpy(to + 4 * i, from + i * ld + at, 4);
    }
}

INLINE void along_2(char *to, const char *from, int64_t ld, int64_t bytes, int lines)
{
    int64_t at = 0, row = 2 * lines;

    for (; at + 16 <= bytes; at += 16, to += 8 * row) {
        for (int i = 0; i < lines; i += 4) {
            const char *line = from + i * ld + at;
            uint8x16_t a = load16(line), b = load16(line + ld), c = load16(line + 2 * ld),
                       d = load16(line + 3 * ld);
            uint8x16_t ac = zip1_16(a, c), bd = zip1_16(b, d), ac2 = zip2_16(a, c), bd2 = zip2_16(b, d);
            uint8x16_t two[4] = {zip1_16(ac, bd), zip2_16(ac, bd), zip1_16(ac2, bd2), zip2_16(ac2, bd2)};
            uint8_t *out = (uint8_t *)to + 2 * i;

            for (int p = 0; p < 4; p++) {
                vst1_u8(out + 2 * p * row, vget_low_u8(two[p]));
                vst1_u8(out + (2 * p + 1) * row, vget_high_u8(two[p]));
            }
        }
    }
    for (; at < bytes; at += 2, to += row) {
        for (int i = 0; i < lines; i++)
            memcpy(to + 2 * i, from + i * ld + at, 2);
    }
}

/* ---- across: `k` rows, each with `lines` elements side by side, `ld` bytes apart ------------------ */

INLINE void across_copy(char *to, const char *from, int64_t ld, int64_t k, int row)
{
    for (int64_t p = 0; p < k; p++)
        memcpy(to + p * row, from + p * ld, (size_t)row);
}

/* Loads 8 bytes, or the 4 that a 12-byte row has left. */
INLINE uint8x16_t load_part(const char *p, int bytes)
{
    return vreinterpretq_u8_u64(vsetq_lane_u64(bytes >= 8 ? load_u64(p) : load_u32(p), vdupq_n_u64(0), 0));
}

/* 2-byte elements, kr = 2 or 4. */
INLINE void across_2(char *to, const char *from, int64_t ld, int64_t k, int lines, int kr)
{
    for (int64_t p = 0; p < k; p += kr, to += 2 * lines * kr) {
        for (int i = 0; i < lines; i += 4) {
            const char *row = from + p * ld + 2 * i;
            uint8_t *out = (uint8_t *)to + 2 * kr * i;
            uint8x16_t low = zip1_16(load_part(row, 8), load_part(row + ld, 8));

            if (kr == 2) {
                vst1q_u8(out, low);
            } else {
                uint8x16_t high = zip1_16(load_part(row + 2 * ld, 8), load_part(row + 3 * ld, 8));

                vst1q_u8(out, zip1_32(low, high));
                vst1q_u8(out + 16, zip2_32(low, high));
            }
        }
    }
}

/* 1-byte elements, four k of eight lines (or of the last four) interleaved to 4-byte granules. */
INLINE void interleave_4(uint8x16_t granules[2], const char *row, int64_t ld, int bytes)
{
    uint8x16_t a = vzip1q_u8(load_part(row, bytes), load_part(row + ld, bytes));
    uint8x16_t b = vzip1q_u8(load_part(row + 2 * ld, bytes), load_part(row + 3 * ld, bytes));

    granules[0] = zip1_16(a, b);
    granules[1] = zip2_16(a, b);
}

INLINE void across_1(char *to, const char *from, int64_t ld, int64_t k, int lines, int kr)
{
    for (int64_t p = 0; p < k; p += kr, to += lines * kr) {
        for (int i = 0; i < lines; i += 8) {
            const char *row = from + p * ld + i;
            uint8_t *out = (uint8_t *)to + kr * i;
            int bytes = lines - i < 8 ? lines - i : 8;
            uint8x16_t low[2], high[2];

            interleave_4(low, row, ld, bytes);
            if (kr == 4) {
                vst1q_u8(out, low[0]);
                if (bytes == 8)
                    vst1q_u8(out + 16, low[1]);
                continue;
            }
            interleave_4(high, row + 4 * ld, ld, bytes);
            vst1q_u8(out, zip1_32(low[0], high[0]));
            vst1q_u8(out + 16, zip2_32(low[0], high[0]));
            if (bytes == 8) {
                vst1q_u8(out + 32, zip1_32(low[1], high[1]));
                vst1q_u8(out + 48, zip2_32(low[1], high[1]));
            }
        }
    }
}

/* ---- the named packers: element size, kr, lines --------------------------------------------------- */

#define ALONG(size, kr, lines, granule)                                                                      \
    void weft_pack_along_##size##_##kr##x##lines(void *panel, const void *source, int64_t ld, int64_t k)     \
    {                                                                                                        \
        along_##granule(panel, source, ld *size, k *size, lines);                                            \
    }

#define ACROSS_COPY(size, lines)                                                                             \
    void weft_pack_across_##size##_1x##lines(void *panel, const void *source, int64_t ld, int64_t k)         \
    {                                                                                                        \
        across_copy(panel, source, ld *size, k, size *lines);                                                \
    }

#define ACROSS(size, kr, lines)                                                                              \
    void weft_pack_across_##size##_##kr##x##lines(void *panel, const void *source, int64_t ld, int64_t k)    \
    {                                                                                                        \
        across_##size(panel, source, ld *size, k, lines, kr);                                                \
    }

ALONG(4, 1, 8, 4)
ALONG(4, 1, 12, 4)
ALONG(2, 1, 8, 2)
ALONG(2, 1, 12, 2)
ALONG(2, 1, 24, 2)
ALONG(2, 2, 8, 4)
ALONG(2, 2, 12, 4)
ALONG(2, 4, 8, 8)
ALONG(2, 4, 12, 8)
ALONG(1, 4, 8, 4)
ALONG(1, 4, 12, 4)
ALONG(1, 8, 8, 8)
ALONG(1, 8, 12, 8)
ACROSS_COPY(4, 8)
ACROSS_COPY(4, 12)
ACROSS_COPY(2, 8)
ACROSS_COPY(2, 12)
ACROSS_COPY(2, 24)
ACROSS(2, 2, 8)
ACROSS(2, 2, 12)
ACROSS(2, 4, 8)
ACROSS(2, 4, 12)
ACROSS(1, 4, 8)
ACROSS(1, 4, 12)
ACROSS(1, 8, 8)
ACROSS(1, 8, 12)

/*
 * ---- wide: many panels of 12 columns, 8 lines of B at a time --------------------------------------
 *
 * Hardware follows eight streams well; with four or sixteen lines at a time packing ran at two thirds of
 * that. Zips have but two of the four pipes, so an interleaving store does the last of them.
 */
enum { WIDE_LINES = 8 };

INLINE void store_zip_32(char *to, uint8x16_t a, uint8x16_t b)
{
    uint32x4x2_t both = {{vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)}};

    vst2q_u32((uint32_t *)(void *)to, both);
}

/* Where 4 columns (32 bytes) of a step go that are the c-th such of a group of panels. */
INLINE char *quarter(char *panels, int64_t panel_bytes, int c)
{
    return panels + c / 3 * panel_bytes + c % 3 * 32;
}

/* 4 lines of 8 columns from the c-th 4 on. */
INLINE void wide_2_4(char *panels, int64_t panel_bytes, int c, const char *row, int64_t ld)
{
    uint8x16_t w = load16(row), x = load16(row + ld), y = load16(row + 2 * ld), z = load16(row + 3 * ld);

    store_zip_32(quarter(panels, panel_bytes, c), zip1_16(w, x), zip1_16(y, z));
    store_zip_32(quarter(panels, panel_bytes, c + 1), zip2_16(w, x), zip2_16(y, z));
}

void weft_pack_wide_2_4x12(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k,
                           int64_t count)
{
    int64_t bytes = 2 * ld;

    for (int64_t p = 0; p < k; p += WIDE_LINES) {
        const char *row = (const char *)source + p * bytes;
        char *to = (char *)panels + p * 24;
        int64_t lines = weft_min(k - p, WIDE_LINES), u = 0;

        for (; u + 2 <= count; u += 2, row += 48, to += 2 * panel_bytes) {
            for (int64_t q = 0; q < lines; q += 4) {
                for (int c = 0; c < 6; c += 2)
                    wide_2_4(to + q * 24, panel_bytes, c, row + q * bytes + 8 * c, bytes);
            }
        }
        if (u < count)
            weft_pack_across_2_4x12(to, row, ld, lines);
    }
}

/* 8 lines of 16 columns from the c-th 4 on. */
INLINE void wide_1_8(char *panels, int64_t panel_bytes, int c, const char *row, int64_t ld)
{
    uint8x16_t low[4], high[4];

    for (int h = 0; h < 2; h++, row += 4 * ld) {
        uint8x16_t w = load16(row), x = load16(row + ld), y = load16(row + 2 * ld), z = load16(row + 3 * ld);
        uint8x16_t wx = vzip1q_u8(w, x), yz = vzip1q_u8(y, z), wx2 = vzip2q_u8(w, x), yz2 = vzip2q_u8(y, z);
        uint8x16_t *to = h ? high : low;

        to[0] = zip1_16(wx, yz);
        to[1] = zip2_16(wx, yz);
        to[2] = zip1_16(wx2, yz2);
        to[3] = zip2_16(wx2, yz2);
    }
    for (int i = 0; i < 4; i++)
        store_zip_32(quarter(panels, panel_bytes, c + i), low[i], high[i]);
}

void weft_pack_wide_1_8x12(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k,
                           int64_t count)
{
    for (int64_t p = 0; p < k; p += WIDE_LINES) {
        const char *row = (const char *)source + p * ld;
        char *to = (char *)panels + p * 12;
        int64_t u = 0;

        for (; u + 4 <= count; u += 4, row += 48, to += 4 * panel_bytes) {
            for (int c = 0; c < 12; c += 4)
                wide_1_8(to, panel_bytes, c, row + 4 * c, ld);
        }
        for (; u < count; u++, row += 12, to += panel_bytes)
            weft_pack_across_1_8x12(to, row, ld, WIDE_LINES);
    }
}

/* Lines of a panel that are copied. */
INLINE void wide_copy(char *to, int64_t panel_bytes, const char *source, int64_t ld, int64_t k, int64_t count,
                      int row_bytes)
{
    for (int64_t p = 0; p < k; p += WIDE_LINES) {
        int64_t lines = weft_min(k - p, WIDE_LINES);

        for (int64_t u = 0; u < count; u++)
            across_copy(to + u * panel_bytes + p * row_bytes, source + p * ld + u * row_bytes, ld, lines,
                        row_bytes);
    }
}

void weft_pack_wide_4_1x12(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k,
                           int64_t count)
{
    wide_copy(panels, panel_bytes, source, 4 * ld, k, count, 48);
}

void weft_pack_wide_2_1x12(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k,
                           int64_t count)
{
    wide_copy(panels, panel_bytes, source, 2 * ld, k, count, 24);
}
