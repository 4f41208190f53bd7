/* Placement of wire rows, entries, slots and terms against their definition, and that a rejected input
 * changes nothing. */
#include "moe/routing.h"
#include "support/check.h"

enum { RANKS = 3, EXPERTS = 8, TOPK = 4, TOKENS = 9, PAIRS = TOKENS * TOPK };

typedef struct fixture {
    int32_t owner[EXPERTS];
    weft_moe_shape shape;
    weft_moe_routing routing;
    int32_t row_base[RANKS + 1], entry_base[RANKS + 1], terms[TOKENS], next[4][RANKS], stamp[RANKS];
    weft_moe_wire_row row[PAIRS];
    weft_moe_wire_entry entry[PAIRS];
    weft_moe_term term[PAIRS];
    uint64_t order[PAIRS];
    int32_t ordered[TOKENS];
    int32_t expert[PAIRS];
    float weight[PAIRS];
} fixture;

static void prepare(fixture *f, bool dedup, bool reduced, uint64_t *state)
{
    memset(f, 0, sizeof(*f));
    for (int e = 0; e < EXPERTS; e++)
        f->owner[e] = (int32_t)(check_random(state) % RANKS);
    f->shape = (weft_moe_shape){.ranks = RANKS,
                                .experts = EXPERTS,
                                .topk = TOPK,
                                .capacity = TOKENS,
                                .owner = f->owner,
                                .one_row_per_rank = dedup,
                                .one_result_per_row = reduced,
                                .terms_per_token = reduced ? RANKS : TOPK};
    f->routing = (weft_moe_routing){.row_base = f->row_base,
                                    .entry_base = f->entry_base,
                                    .row = f->row,
                                    .entry = f->entry,
                                    .terms = f->terms,
                                    .term = f->term,
                                    .row_next = f->next[0],
                                    .entry_next = f->next[1],
                                    .stamp = f->stamp,
                                    .slot_next = f->next[2],
                                    .slot_stamp = f->next[3],
                                    .order = f->order,
                                    .ordered = f->ordered};
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOPK; k++) {
            f->expert[t * TOPK + k] =
                (int32_t)((check_random(state) % 2 + 2 * (uint64_t)(TOPK - 1 - k)) % EXPERTS);
            if (check_random(state) % 4 == 0)
                f->expert[t * TOPK + k] = -1;
            f->weight[t * TOPK + k] = (float)(t * TOPK + k);
        }
}

/* The term of token t that comes back to this slot. */
static const weft_moe_term *term_of(const fixture *f, int t, int32_t slot)
{
    const weft_moe_term *term = f->term + t * f->shape.terms_per_token;

    while (term->slot != slot && term < &f->term[t * f->shape.terms_per_token + f->terms[t] - 1])
        term++;
    CHECK_INT(term->slot, slot);
    return term;
}

/* Walks ranks, tokens and experts in the order that defines the wire, and compares. */
static void check_wire(const fixture *f)
{
    int32_t row = 0, entry = 0;

    for (int rank = 0; rank < RANKS; rank++) {
        CHECK_INT(f->row_base[rank], row);
        CHECK_INT(f->entry_base[rank], entry);
        for (int t = 0; t < TOKENS; t++) {
            int in_row = 0;

            for (int e = 0; e < EXPERTS; e++)
                for (int k = 0; k < TOPK; k++) {
                    const weft_moe_term *term;

                    if (f->expert[t * TOPK + k] != e || f->owner[e] != rank)
                        continue;
                    if (!f->shape.one_row_per_rank || !in_row) {
                        CHECK_INT(f->row[row].token, t);
                        row++;
                    }
                    in_row++;
                    CHECK_INT(f->entry[entry].expert, e);
                    CHECK(f->entry[entry].weight == f->weight[t * TOPK + k]);
                    CHECK_INT(f->entry[entry].slot, f->shape.one_result_per_row ? row - 1 : entry);
                    term = term_of(f, t, f->entry[entry].slot);
                    CHECK_INT(term->rank, rank);
                    CHECK_INT(term->row, row - 1 - f->row_base[rank]);
                    CHECK(term->weight == (f->shape.one_result_per_row ? 1 : f->weight[t * TOPK + k]));
                    entry++;
                }
            if (f->shape.one_row_per_rank && in_row)
                CHECK_INT(f->row[row - 1].entries, in_row);
        }
    }
    CHECK_INT(f->row_base[RANKS], row);
    CHECK_INT(f->routing.rows, row);
    CHECK_INT(f->routing.entries, entry);
}

/* Terms of a token stand in ascending expert id: combine sums them in that order. */
static void check_terms(const fixture *f)
{
    for (int t = 0; t < TOKENS && !f->shape.one_result_per_row; t++) {
        int used = 0;

        for (int e = 0; e < EXPERTS; e++)
            for (int k = 0; k < TOPK; k++)
                if (f->expert[t * TOPK + k] == e)
                    CHECK_INT(f->term[t * TOPK + used++].position, k);
        CHECK_INT(f->terms[t], used);
    }
}

/* What comes back of ranks that return one sum together: a slot for each token that has an expert on any of
 * them, in token order behind those of the ranks before, and a term with the row of the one of its lowest
 * expert there. */
static void check_returners(const fixture *f, const int32_t *returner)
{
    int terms[TOKENS] = {0}, slot = 0;

    for (int returns = 0; returns < RANKS; returns++)
        for (int t = 0; t < TOKENS; t++) {
            const weft_moe_term *term = NULL;
            int first = -1;

            for (int32_t j = 0, row = 0, left = 0; j < f->routing.entries; j++, left--) {
                int rank = f->owner[f->entry[j].expert];

                row += j > 0 && !left;
                left = left ? left : f->row[row].entries;
                if (f->row[row].token != t || returner[rank] != returns)
                    continue;
                CHECK_INT(f->entry[j].slot, slot);
                if (!term) {
                    term = term_of(f, t, slot);
                    terms[t]++;
                }
                if (first < 0 || f->entry[j].expert < first) {
                    first = f->entry[j].expert;
                    if (term->rank == rank)
                        CHECK_INT(term->row, row - f->row_base[rank]);
                }
            }
            if (term)
                CHECK_INT(term->rank, f->owner[first]);
            slot += term != NULL;
        }
    for (int t = 0; t < TOKENS; t++)
        CHECK_INT(f->terms[t], terms[t]);
}

static void sums_together(uint64_t *state)
{
    static const int32_t returners[][RANKS] = {{0, 1, 1}, {0, 0, 2}, {0, 1, 0}, {0, 1, 2}};
    weft_error_text error;
    fixture f;

    for (int i = 0; i < 200; i++) {
        prepare(&f, true, true, state);
        f.shape.returner = returners[i % 4];
        CHECK_INT(weft_moe_route(&f.shape, TOKENS, f.expert, f.weight, &f.routing, &error), WEFT_OK);
        check_returners(&f, f.shape.returner);
        if (i % 4 == 3)
            check_wire(&f);
    }
}

int main(void)
{
    uint64_t state = 21;
    weft_error_text error;
    fixture f;

    for (int i = 0; i < 300; i++) {
        fixture before;

        prepare(&f, i % 3 > 0, i % 3 == 2, &state);
        CHECK_INT(weft_moe_route(&f.shape, TOKENS, f.expert, f.weight, &f.routing, &error), WEFT_OK);
        check_wire(&f);
        check_terms(&f);
        for (int j = 0; j < PAIRS; j++)
            f.weight[j] = (float)(100 - j);
        weft_moe_reweigh(&f.shape, f.weight, &f.routing);
        check_wire(&f);
        before = f;
        f.expert[PAIRS - 1] = EXPERTS;
        CHECK_INT(weft_moe_route(&f.shape, TOKENS, f.expert, f.weight, &f.routing, &error),
                  WEFT_ERR_ARGUMENT);
        CHECK_INT(weft_moe_route(&f.shape, TOKENS + 1, f.expert, f.weight, &f.routing, &error),
                  WEFT_ERR_ARGUMENT);
        CHECK(!memcmp(f.row, before.row, sizeof(f.row)) && !memcmp(f.term, before.term, sizeof(f.term)));
        CHECK(!memcmp(f.row_base, before.row_base, sizeof(f.row_base)) &&
              f.routing.rows == before.routing.rows);
    }
    sums_together(&state);
    return check_report("test_moe_routing");
}
