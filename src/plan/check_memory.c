/* Rectangles of symbolic values; see check_memory.h. */
#include "plan/check_memory.h"

#include "core/round.h"

#include <stdlib.h>

enum { BANDS_MAX = 256 };

void weft_pieces_add(weft_memory *memory, weft_pieces *pieces, const weft_piece *piece)
{
    if (pieces->count == pieces->room) {
        uint32_t room = pieces->room ? 2 * pieces->room : 16;
        weft_piece *more = realloc(pieces->list, room * sizeof(*more));

        if (!more) {
            memory->failed = true;
            return;
        }
        pieces->list = more;
        pieces->room = room;
    }
    pieces->list[pieces->count++] = *piece;
}

static int64_t extent(const weft_matrix *matrix)
{
    return matrix->by_cols ? matrix->cols : matrix->rows;
}

static uint32_t band_of(const weft_matrix *matrix, int64_t at)
{
    return (uint32_t)(at * matrix->bands / extent(matrix));
}

/* The first write decides how the matrix is divided. */
static bool open_bands(weft_memory *memory, weft_matrix *matrix, const weft_piece *piece)
{
    if (matrix->bands)
        return true;
    matrix->by_cols = piece->row0 == 0 && piece->row1 == matrix->rows;
    matrix->bands = (uint32_t)weft_min(extent(matrix), BANDS_MAX);
    matrix->heads = calloc(matrix->bands, sizeof(*matrix->heads));
    if (!matrix->heads)
        memory->failed = true;
    return matrix->heads != NULL;
}

static void insert(weft_memory *memory, weft_matrix *matrix, const weft_piece *piece)
{
    uint32_t number = memory->all.count;
    uint32_t first = band_of(matrix, matrix->by_cols ? piece->col0 : piece->row0);
    uint32_t last = band_of(matrix, (matrix->by_cols ? piece->col1 : piece->row1) - 1);

    weft_pieces_add(memory, &memory->all, piece);
    for (uint32_t band = first; band <= last && !memory->failed; band++) {
        if (memory->node_count == memory->node_room) {
            uint32_t room = memory->node_room ? 2 * memory->node_room : 64;
            weft_band_node *more = realloc(memory->nodes, room * sizeof(*more));

            if (!more) {
                memory->failed = true;
                return;
            }
            memory->nodes = more;
            memory->node_room = room;
        }
        memory->nodes[memory->node_count] = (weft_band_node){number, matrix->heads[band]};
        matrix->heads[band] = ++memory->node_count;
    }
}

/* A look at every live piece that meets a rectangle, once each. */
typedef struct walk {
    weft_memory *memory;
    weft_matrix *matrix;
    int64_t row0, row1, col0, col1;
    uint32_t band, last, node;
} walk;

static walk walk_begin(weft_memory *memory, weft_matrix *matrix, int64_t row0, int64_t row1, int64_t col0,
                       int64_t col1)
{
    walk w = {memory, matrix, row0, row1, col0, col1, 0, 0, 0};

    memory->look_up++;
    w.band = band_of(matrix, matrix->by_cols ? col0 : row0);
    w.last = band_of(matrix, (matrix->by_cols ? col1 : row1) - 1);
    w.node = matrix->heads[w.band];
    return w;
}

static weft_piece *walk_next(walk *w)
{
    for (;;) {
        weft_piece *piece;

        while (!w->node) {
            if (w->band == w->last)
                return NULL;
            w->node = w->matrix->heads[++w->band];
        }
        piece = &w->memory->all.list[w->memory->nodes[w->node - 1].piece];
        w->node = w->memory->nodes[w->node - 1].next;
        if (piece->dead || piece->seen == w->memory->look_up)
            continue;
        piece->seen = w->memory->look_up;
        if (piece->row0 < w->row1 && w->row0 < piece->row1 && piece->col0 < w->col1 && w->col0 < piece->col1)
            return piece;
    }
}

void weft_memory_look(weft_memory *memory, weft_matrix *matrix, const weft_region *region, weft_pieces *found)
{
    int64_t row1 = region->row0 + region->rows, col1 = region->col0 + region->cols;
    weft_piece *piece;
    walk w;

    if (!matrix->bands || !region->rows || !region->cols)
        return;
    w = walk_begin(memory, matrix, region->row0, row1, region->col0, col1);
    while ((piece = walk_next(&w))) {
        weft_piece part = *piece;

        part.row0 = weft_max(part.row0, region->row0);
        part.row1 = weft_min(part.row1, row1);
        part.col0 = weft_max(part.col0, region->col0);
        part.col1 = weft_min(part.col1, col1);
        weft_pieces_add(memory, found, &part);
    }
}

/* What is left of a piece when a rectangle is cut out of it: above, below, left, right. */
static int remains(const weft_piece *old, const weft_piece *cut, weft_piece *rest)
{
    int64_t row0 = weft_max(old->row0, cut->row0), row1 = weft_min(old->row1, cut->row1);
    weft_piece sides[4] = {*old, *old, *old, *old};
    int count = 0;

    sides[0].row1 = row0;
    sides[1].row0 = row1;
    sides[2].row0 = sides[3].row0 = row0;
    sides[2].row1 = sides[3].row1 = row1;
    sides[2].col1 = weft_max(old->col0, cut->col0);
    sides[3].col0 = weft_min(old->col1, cut->col1);
    for (int i = 0; i < 4; i++) {
        if (sides[i].row0 < sides[i].row1 && sides[i].col0 < sides[i].col1)
            rest[count++] = sides[i];
    }
    return count;
}

bool weft_memory_store(weft_memory *memory, weft_matrix *matrix, const weft_piece *piece)
{
    weft_pieces rest = {0};
    weft_piece *old, sides[4];
    walk w;
    bool met = false;

    if (!open_bands(memory, matrix, piece))
        return false;
    w = walk_begin(memory, matrix, piece->row0, piece->row1, piece->col0, piece->col1);
    while ((old = walk_next(&w))) {
        int count = remains(old, piece, sides);

        met = true;
        for (int i = 0; i < count; i++)
            weft_pieces_add(memory, &rest, &sides[i]);
        old->dead = true;
    }
    for (uint32_t i = 0; i < rest.count && !memory->failed; i++)
        insert(memory, matrix, &rest.list[i]);
    free(rest.list);
    insert(memory, matrix, piece);
    return met;
}
