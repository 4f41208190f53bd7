/*
 * Packing: from any strides and floating type into the panels of kernel.h. Internal to the engine.
 *
 * A and B are packed by the same code: what follows says "lines" for rows of A and columns of B.
 */
#ifndef WEFT_GEMM_PACK_H
#define WEFT_GEMM_PACK_H

#include "gemm/kernel.h"

typedef struct weft_pack_side {
    int lines; /* per panel: mr (or fewer, see weft_few) or nr */
    int kr;
    bool flip;
    weft_dtype narrow;               /* of the binding */
    weft_panel_packer along, across; /* NULL: portable */
    weft_wide_packer wide;           /* or NULL */
    weft_packers widen;              /* the same from elements of `narrow` */
} weft_pack_side;

weft_pack_side weft_pack_side_a(const weft_binding *bind, int rows);
weft_pack_side weft_pack_side_b(const weft_binding *bind);

/* k rounded up to the kernel's k_step. */
int64_t weft_pack_k(const weft_kernel *kernel, int64_t k);

/*
 * Packs `lines` lines of `k` elements into ceil(lines / side->lines) panels that lie panel_bytes apart.
 * Element (line, p) is at source[line * line_stride + p * k_stride]; one of the strides is 1 (or that
 * extent is 1). Padding lines and k up to the next k_step are filled.
 */
void weft_pack_panels(const weft_kernel *kernel, const weft_pack_side *side, void *panels,
                      int64_t panel_bytes, const void *source, weft_dtype dtype, int64_t line_stride,
                      int64_t k_stride, int64_t lines, int64_t k);

/* Of the elements of a packed B. */
weft_dtype weft_packed_type(const weft_binding *bind);

/* `count` panels of halves become panels of the kernel's type, over k. */
void weft_packed_widen(const weft_binding *bind, char *to, int64_t to_bytes, const char *from,
                       int64_t from_bytes, int64_t k, int64_t count);

#endif
