/*
 * A whole product on one rank: tiles over the threads of a pool.
 *
 * Strips of columns, and blocks of rows of these, are dealt out as tiles; B is packed once, strip by strip,
 * by those who begin there (unless it comes packed). The bits of the result do not depend on the number of
 * threads or on who computes what.
 */
#ifndef WEFT_GEMM_PRODUCT_H
#define WEFT_GEMM_PRODUCT_H

#include "gemm/gemm.h"

typedef struct weft_product {
    weft_gemm_tile tile; /* the whole product, first of the batch */
    int64_t batch;
    int64_t a_stride, b_stride, c_stride, d_stride; /* elements between batch entries */
    int threads;                                    /* 0 = all this thread may run on */
} weft_product;

/* Of workspace, that each of so many threads has. */
size_t weft_product_member_bytes(const weft_gemm_tile *tile, int members);

/* The tile has been checked. */
weft_status weft_product_run(const weft_product *product, weft_error_text *error);

/* Packs all of B, by the pool; `packed` has been begun. */
weft_status weft_product_pack(const weft_binding *bind, weft_packed *packed, const void *b,
                              weft_dtype b_dtype, int64_t b_rs, int64_t b_cs, int threads,
                              weft_error_text *error);

#endif
