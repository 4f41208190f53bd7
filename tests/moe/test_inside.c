/*
 * The sums of src/moe/inside.c as a model, and a search of all its interleavings: an owner elsewhere, and the
 * three ranks of a node, of which in each of three epochs any have rows of it. The search fails when a sum
 * lacks the part of a rank, holds one of another epoch, or comes too early, and when nobody can go on.
 * Variants that leave out what keeps them apart must fail.
 */
#include "search.h"
#include "support/check.h"

enum { EPOCHS = 3, MAKERS = 3, OWNER = MAKERS, ACTORS };

typedef enum variant {
    AS_WRITTEN,
    NO_ORDER, /* a rank goes on without the words of its node, and the owner without the sum: either is enough
               */
    COUNT_STAYS, /* a count does not begin anew with an epoch */
    ANY_COUNT,   /* the rows of a rank are believed of whichever epoch they are */
    FIRST_SUMS   /* the first that is done sums */
} variant;

typedef struct state {
    uint8_t step[ACTORS], epoch[ACTORS];
    uint8_t word[ACTORS];                         /* epoch */
    uint8_t part[MAKERS], listed[MAKERS];         /* epoch; epoch * 2 + whether it has rows */
    uint8_t counted[2], last[MAKERS], at[MAKERS]; /* epoch and ranks; private: who sums, and how far */
    uint8_t sum, of, summed;                      /* ranks in it; their epoch; epoch of the word */
} state;

typedef struct model {
    variant variant;
    uint8_t rows[EPOCHS]; /* mask of ranks that have some */
} model;

static bool words_are_in(const model *m, const state *s, int epoch)
{
    for (int actor = 0; actor < ACTORS; actor++)
        if (s->word[actor] < epoch && (m->variant != NO_ORDER || actor == OWNER))
            return false;
    return true;
}

static step_result own(const model *m, state *s)
{
    int epoch = s->epoch[OWNER] + 1;
    bool any = m->rows[epoch - 1] != 0 && m->variant != NO_ORDER;

    switch (s->step[OWNER]++) {
    case 0:
        s->word[OWNER] = (uint8_t)epoch;
        return WENT;
    case 1:
        return words_are_in(m, s, epoch) ? WENT : BLOCKED;
    case 2:
        return !any || s->summed >= epoch ? WENT : BLOCKED;
    default:
        s->step[OWNER] = 0;
        s->epoch[OWNER]++;
        return !any || (s->sum == m->rows[epoch - 1] && s->of == epoch) ? WENT : BROKE;
    }
}

/* Counts a rank in, by which it may be the last. */
static void count_in(const model *m, state *s, int rank, int epoch)
{
    int sharers = __builtin_popcount(m->rows[epoch - 1]);

    if (s->counted[0] != epoch && m->variant != COUNT_STAYS)
        s->counted[1] = 0;
    s->counted[0] = (uint8_t)epoch;
    s->last[rank] = ++s->counted[1] == (m->variant == FIRST_SUMS ? 1 : sharers);
    s->at[rank] = 0;
}

/* Adds the part of the next rank of the node. */
static step_result add(const model *m, state *s, int rank, int epoch)
{
    int of = s->at[rank]++;
    bool listed = m->variant == ANY_COUNT ? s->listed[of] & 1 : s->listed[of] == epoch * 2 + 1;

    if (of == 0)
        s->sum = 0;
    s->of = (uint8_t)epoch;
    if (!listed)
        return WENT;
    s->sum |= (uint8_t)(1u << of);
    return s->part[of] == epoch ? WENT : BROKE;
}

static step_result make(const model *m, state *s, int rank)
{
    int epoch = s->epoch[rank] + 1, step = s->step[rank]++;
    bool has = m->rows[epoch - 1] >> rank & 1;

    if (step == 0) {
        s->word[rank] = (uint8_t)epoch;
    } else if (step == 1) {
        return words_are_in(m, s, epoch) ? WENT : BLOCKED;
    } else if (step == 2) {
        s->listed[rank] = (uint8_t)(epoch * 2 + has);
    } else if (step == 3) {
        if (has)
            s->part[rank] = (uint8_t)epoch;
    } else if (step == 4) {
        s->last[rank] = 0;
        if (has)
            count_in(m, s, rank, epoch);
    } else if (s->last[rank] && s->at[rank] < MAKERS) {
        s->step[rank]--;
        return add(m, s, rank, epoch);
    } else {
        if (s->last[rank] && (s->sum != m->rows[epoch - 1] || s->of != epoch))
            return BROKE;
        if (s->last[rank])
            s->summed = (uint8_t)epoch;
        s->step[rank] = 0;
        s->epoch[rank]++;
    }
    return WENT;
}

static step_result step_of(const void *m, void *memory, int actor)
{
    state *s = memory;

    return s->epoch[actor] == EPOCHS ? OVER : actor == OWNER ? own(m, s) : make(m, s, actor);
}

/* Whether any of all routings fails. */
static bool fails(search *all, variant which)
{
    model m = {.variant = which};
    bool failed = false;

    for (int i = 0; i < 1 << (MAKERS * EPOCHS) && !failed; i++) {
        for (int e = 0; e < EPOCHS; e++)
            m.rows[e] = (uint8_t)(i >> MAKERS * e & ((1 << MAKERS) - 1));
        failed = search_all(all, &m, ACTORS, step_of) != FINE;
    }
    return failed;
}

int main(void)
{
    search all;

    if (!search_open(&all, sizeof(state)))
        abort();
    CHECK(!fails(&all, AS_WRITTEN));
    CHECK(fails(&all, NO_ORDER));
    CHECK(fails(&all, COUNT_STAYS));
    CHECK(fails(&all, ANY_COUNT));
    CHECK(fails(&all, FIRST_SUMS));
    search_close(&all);
    return check_report("test_moe_inside");
}
