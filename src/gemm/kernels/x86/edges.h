/*
 * Micro-tiles at an edge of D: a loop of their own for every number of rows and of vectors of columns, so
 * that what D does not have costs nothing. The including file defines MR, LANES and
 *
 *     edge_rows(rows, vectors, cols, k, a, b, c, c_ld, add)
 */
#ifndef WEFT_GEMM_KERNELS_X86_EDGES_H
#define WEFT_GEMM_KERNELS_X86_EDGES_H

#define WEFT_EDGE_ROWS(r, cols, ...)                                                                         \
    case r:                                                                                                  \
        if (r <= MR && (cols) <= LANES)                                                                      \
            edge_rows(r, 1, cols, __VA_ARGS__);                                                              \
        else if (r <= MR)                                                                                    \
            edge_rows(r, 2, cols, __VA_ARGS__);                                                              \
        break;

/* The body of a weft_edge_kernel. */
#define WEFT_EDGES(rows, ...)                                                                                \
    _Static_assert(MR <= 12, "every number of rows has its loop");                                           \
    switch (rows) {                                                                                          \
        WEFT_EDGE_ROWS(1, __VA_ARGS__)                                                                       \
        WEFT_EDGE_ROWS(2, __VA_ARGS__)                                                                       \
        WEFT_EDGE_ROWS(3, __VA_ARGS__)                                                                       \
        WEFT_EDGE_ROWS(4, __VA_ARGS__)                                                                       \
        WEFT_EDGE_ROWS(5, __VA_ARGS__)                                                                       \
        WEFT_EDGE_ROWS(6, __VA_ARGS__)                                                                       \
        WEFT_EDGE_ROWS(7, __VA_ARGS__)                                                                       \
        WEFT_EDGE_ROWS(8, __VA_ARGS__)                                                                       \
        WEFT_EDGE_ROWS(9, __VA_ARGS__)                                                                       \
        WEFT_EDGE_ROWS(10, __VA_ARGS__)                                                                      \
        WEFT_EDGE_ROWS(11, __VA_ARGS__)                                                                      \
        WEFT_EDGE_ROWS(12, __VA_ARGS__)                                                                      \
    default:                                                                                                 \
        break;                                                                                               \
    }

#endif
