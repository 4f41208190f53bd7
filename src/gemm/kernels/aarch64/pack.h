/*
 * Fast packers of full panels: weft_pack_<along|across>_<element bytes>_<kr>x<lines>, and the four lines of a
 * kernel's table that name those of its layout.
 */
#ifndef WEFT_KERNELS_AARCH64_PACK_H
#define WEFT_KERNELS_AARCH64_PACK_H

#include "gemm/kernel.h"

#define WEFT_PACKERS(size, kr, nr)                                                                           \
    .pack_a_along = weft_pack_along_##size##_##kr##x8, .pack_a_across = weft_pack_across_##size##_##kr##x8,  \
    .pack_b_along = weft_pack_along_##size##_##kr##x##nr,                                                    \
    .pack_b_across = weft_pack_across_##size##_##kr##x##nr

/* For panels of 12 columns. */
#define WEFT_WIDE_PACKER(size, kr) .pack_b_wide = weft_pack_wide_##size##_##kr##x12

#define WEFT_PACKER_PAIR(name)                                                                               \
    void weft_pack_along_##name(void *panel, const void *source, int64_t ld, int64_t k);                     \
    void weft_pack_across_##name(void *panel, const void *source, int64_t ld, int64_t k);

WEFT_PACKER_PAIR(4_1x8)
WEFT_PACKER_PAIR(4_1x12)
WEFT_PACKER_PAIR(2_1x8)
WEFT_PACKER_PAIR(2_1x12)
WEFT_PACKER_PAIR(2_1x24)
WEFT_PACKER_PAIR(2_2x8)
WEFT_PACKER_PAIR(2_2x12)
WEFT_PACKER_PAIR(2_4x8)
WEFT_PACKER_PAIR(2_4x12)
WEFT_PACKER_PAIR(1_4x8)
WEFT_PACKER_PAIR(1_4x12)
WEFT_PACKER_PAIR(1_8x8)
WEFT_PACKER_PAIR(1_8x12)

#define WEFT_PACKER_WIDE(name)                                                                               \
    void weft_pack_wide_##name(void *panels, int64_t panel_bytes, const void *source, int64_t ld, int64_t k, \
                               int64_t count);

WEFT_PACKER_WIDE(4_1x12)
WEFT_PACKER_WIDE(2_1x12)
WEFT_PACKER_WIDE(2_4x12)
WEFT_PACKER_WIDE(1_8x12)

#endif
