/*
 * What every matrix holds during the data stage: rectangles with one symbolic value each. Rectangles are
 * found through bands of rows (or of columns, where writes span all rows).
 */
#ifndef WEFT_PLAN_CHECK_MEMORY_H
#define WEFT_PLAN_CHECK_MEMORY_H

#include "plan/plan.h"

typedef enum weft_value_kind {
    WEFT_VALUE_A, /* elements of the global operands */
    WEFT_VALUE_B,
    WEFT_VALUE_C,
    WEFT_VALUE_BIAS,
    WEFT_VALUE_SUM,  /* of the contributions in `set`, to global element (row, col) */
    WEFT_VALUE_FINAL /* a complete sum after the epilogue, or divided */
} weft_value_kind;

/* Element (i, j) of a rectangle is about global element (i + row, j + col). */
typedef struct weft_value {
    weft_value_kind kind;
    int64_t set, batch, row, col;
    uint64_t order;   /* a hash of how it was added up: of what lengths, in which order, rounded where */
    uint32_t carried; /* the only task that may go on with it, or 0 */
} weft_value;

typedef struct weft_piece {
    int64_t row0, row1, col0, col1;
    weft_value value; /* row, col: offsets from the matrix's own rows and columns */
    uint32_t seen;    /* the last look-up that met it */
    bool dead;
} weft_piece;

typedef struct weft_pieces { /* a growing list */
    weft_piece *list;
    uint32_t count, room;
} weft_pieces;

typedef struct weft_matrix {
    int64_t rows, cols;
    bool by_cols;
    uint32_t bands;  /* 0 until the first write */
    uint32_t *heads; /* [band] 1 + first node */
} weft_matrix;

typedef struct weft_band_node {
    uint32_t piece, next;
} weft_band_node;

typedef struct weft_memory {
    weft_pieces all;
    weft_band_node *nodes;
    uint32_t node_count, node_room;
    uint32_t look_up;
    bool failed; /* memory is exhausted */
} weft_memory;

/* Appends the parts of pieces that lie inside the rectangle to `found`, in its matrix's coordinates. */
void weft_memory_look(weft_memory *memory, weft_matrix *matrix, const weft_region *region,
                      weft_pieces *found);

/* Stores a value in a rectangle; what was there is cut away. True when something was there. */
bool weft_memory_store(weft_memory *memory, weft_matrix *matrix, const weft_piece *piece);

void weft_pieces_add(weft_memory *memory, weft_pieces *pieces, const weft_piece *piece);

#endif
