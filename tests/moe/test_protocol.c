/*
 * The protocol of src/moe/moe.h as a model, and a search of all its interleavings.
 *
 * A rank's program is a list of steps, each one access to shared memory. A state is where every rank stands
 * and what the memory holds; the search visits every state that can be reached. It fails when a rank reads
 * something of another epoch than its own (corrupt), or when nobody can go on before all are done (deadlock).
 * Routings are all that are possible: in each of three epochs each rank sends a row, or none, to each rank,
 * or rejects its input. Variants that leave out one part of the protocol must fail, or the search would show
 * nothing.
 */
#include "search.h"
#include "support/check.h"

enum { EPOCHS = 3, RANKS_MOST = 3, REJECT = 1 << RANKS_MOST };

typedef enum variant {
    AS_WRITTEN,
    ONE_WORD,     /* count words not doubled by parity */
    RESET_FLAGS,  /* count words are 0/1 and reset by the reader */
    NO_COMBINE,   /* dispatch again without waiting for the results */
    EAGER,        /* read rows of a rank before the words of all ranks are in */
    NO_DRAIN,     /* a rank that rejects its input goes on without reading the others' words */
    NO_COUNT_ZERO /* the word is not sent when there are no rows */
} variant;

/* Shared memory and the ranks' places. Bytes hold epochs, counted from 1. */
typedef struct state {
    uint8_t pc[RANKS_MOST];                   /* epoch * 64 + step */
    uint8_t gone[RANKS_MOST];                 /* this epoch was rejected by somebody */
    uint8_t count[RANKS_MOST][2][RANKS_MOST]; /* epoch of the word of a source */
    uint8_t value[RANKS_MOST][2][RANKS_MOST]; /* its count: 0, 1 or REJECT */
    uint8_t known[RANKS_MOST];                /* private: bit s, rows of source s are coming */
    uint8_t routing[RANKS_MOST], stage[RANKS_MOST], staged[RANKS_MOST];
    uint8_t slot[RANKS_MOST][RANKS_MOST]; /* epoch * 4 + writer */
    uint8_t done[RANKS_MOST][RANKS_MOST];
} state;

typedef struct model {
    int ranks;
    variant variant;
    uint8_t sends[EPOCHS][RANKS_MOST]; /* mask of destinations, or REJECT */
} model;

static bool passed(int now, int epoch)
{
    return now >= epoch;
}

/* Which of its slots `owner` has given to `rank`. */
static int slot_of(const model *m, int epoch, int owner, int rank)
{
    return __builtin_popcount(m->sends[epoch - 1][owner] & ((1u << rank) - 1));
}

/* The word of `source` for `rank`: waits for it, and notes what it says. */
static step_result read_word(const model *m, state *s, int rank, int source, int epoch)
{
    int parity = m->variant == ONE_WORD || m->variant == RESET_FLAGS ? 0 : epoch & 1;
    uint8_t *word = &s->count[rank][parity][source];

    if (m->variant == RESET_FLAGS) {
        if (!*word)
            return BLOCKED;
        *word = 0;
    } else {
        if (!passed(*word, epoch))
            return BLOCKED;
        if (*word != epoch)
            return BROKE;
    }
    s->gone[rank] |= s->value[rank][parity][source] == REJECT;
    s->known[rank] &= (uint8_t) ~(1u << source);
    if (s->value[rank][parity][source] == 1)
        s->known[rank] |= (uint8_t)(1u << source);
    return WENT;
}

static void write_word(const model *m, state *s, int rank, int to, int epoch, uint8_t sends)
{
    int parity = m->variant == ONE_WORD || m->variant == RESET_FLAGS ? 0 : epoch & 1;

    if (m->variant == NO_COUNT_ZERO && sends != REJECT && !(sends >> to & 1))
        return;
    s->count[to][parity][rank] = m->variant == RESET_FLAGS ? 1 : (uint8_t)epoch;
    s->value[to][parity][rank] = sends == REJECT ? REJECT : sends >> to & 1;
}

/* Serving one source: four accesses. */
static step_result serve(const model *m, state *s, int rank, int source, int part, int epoch)
{
    if (!(s->known[rank] >> source & 1))
        return WENT;
    switch (part) {
    case 0:
        return s->routing[source] == epoch ? WENT : BROKE;
    case 1:
        return passed(s->staged[source], epoch) ? WENT : BLOCKED;
    case 2:
        if (s->stage[source] != epoch)
            return BROKE;
        s->slot[source][slot_of(m, epoch, source, rank)] = (uint8_t)(epoch * 4 + rank);
        return WENT;
    default:
        s->done[source][rank] = (uint8_t)epoch;
        return WENT;
    }
}

/* Taking back what `from` returned: two accesses. */
static step_result take(const model *m, state *s, int rank, int from, int part, int epoch)
{
    if (!(m->sends[epoch - 1][rank] >> from & 1) || m->variant == NO_COMBINE)
        return WENT;
    if (part == 0)
        return passed(s->done[rank][from], epoch) ? WENT : BLOCKED;
    return s->slot[rank][slot_of(m, epoch, rank, from)] == epoch * 4 + from ? WENT : BROKE;
}

/* One step of a rank. Steps of an epoch: routing, words to all, tokens, staged, words of all, serve, take. */
static step_result advance(const model *m, state *s, int rank)
{
    int n = m->ranks, epoch = s->pc[rank] / 64 + 1, step = s->pc[rank] % 64;
    uint8_t sends = m->sends[epoch - 1][rank];
    int words = 3 + n, served = words + n, taken = served + 4 * n, end = taken + 2 * n;
    step_result went = WENT;

    if (step == 0) {
        s->gone[rank] = 0;
        if (sends != REJECT)
            s->routing[rank] = (uint8_t)epoch;
    } else if (step <= n) {
        write_word(m, s, rank, (rank + step) % n, epoch, sends);
    } else if (step == n + 1) {
        if (sends != REJECT)
            s->stage[rank] = (uint8_t)epoch;
    } else if (step == n + 2) {
        if (sends != REJECT)
            s->staged[rank] = (uint8_t)epoch;
        if (sends == REJECT && m->variant == NO_DRAIN)
            step = end - 1;
    } else if (m->variant == EAGER && step < taken) {
        /* word of a source, then serving it, then the next source */
        int source = (step - words) / 5, part = (step - words) % 5;

        went = part == 0                          ? read_word(m, s, rank, source, epoch)
               : sends == REJECT || s->gone[rank] ? WENT
                                                  : serve(m, s, rank, source, part - 1, epoch);
    } else if (step < served) {
        went = read_word(m, s, rank, step - words, epoch);
    } else if (s->gone[rank] || sends == REJECT) {
        step = end - 1;
    } else if (step < taken) {
        went = serve(m, s, rank, (step - served) / 4, (step - served) % 4, epoch);
    } else {
        went = take(m, s, rank, (step - taken) / 2, (step - taken) % 2, epoch);
    }
    if (went == WENT)
        s->pc[rank] = (uint8_t)(step + 1 == end ? epoch * 64 : (epoch - 1) * 64 + step + 1);
    return went;
}

/* ---- the search ------------------------------------------------------------------------------------------
 */

static search all;

static step_result step_of(const void *m, void *s, int rank)
{
    return ((state *)s)->pc[rank] / 64 == EPOCHS ? OVER : advance(m, s, rank);
}

static result search_model(const model *m)
{
    return search_all(&all, m, m->ranks, step_of);
}

/* Routing number `index`: a digit 0 .. choices - 1 per epoch and rank; the digit after all masks is REJECT.
 */
static void set_routing(model *m, long index, int choices)
{
    for (int e = 0; e < EPOCHS; e++)
        for (int r = 0; r < m->ranks; r++) {
            int digit = (int)(index % choices);

            m->sends[e][r] = (uint8_t)(digit == 1 << m->ranks ? REJECT : digit);
            index /= choices;
        }
}

/* How many of all routings of two ranks fail. */
static long failures(variant which, bool rejections, long stride)
{
    int choices = rejections ? 5 : 4;
    long total = 1, failed = 0;
    model m = {.ranks = 2, .variant = which};

    for (int i = 0; i < EPOCHS * 2; i++)
        total *= choices;
    for (long i = 0; i < total; i += stride) {
        set_routing(&m, i, choices);
        failed += search_model(&m) != FINE;
    }
    return failed;
}

/* Rows read before all words are in: the sender may already know that a third rank rejected, and be gone. */
static void eager_fails(void)
{
    model m = {.ranks = 3, .variant = EAGER, .sends = {{2, 0, REJECT}, {2, 0, 0}, {0, 0, 0}}};

    CHECK(search_model(&m) != FINE);
    m.variant = AS_WRITTEN;
    CHECK_INT(search_model(&m), FINE);
}

static void three_ranks(void)
{
    uint64_t state_random = 3;
    model m = {.ranks = 3};

    for (long i = 0; i < check_repeat(4, 400); i++) {
        set_routing(&m, (long)(check_random(&state_random) >> 2), 9);
        CHECK_INT(search_model(&m), FINE);
    }
}

int main(void)
{
    if (!search_open(&all, sizeof(state)))
        abort();
    CHECK_INT(failures(AS_WRITTEN, false, 1), 0);
    CHECK_INT(failures(AS_WRITTEN, true, check_repeat(3, 1)), 0);
    three_ranks();
    CHECK_INT(failures(ONE_WORD, false, 1), 3840);
    CHECK_INT(failures(RESET_FLAGS, false, 1), 3840);
    CHECK_INT(failures(NO_COMBINE, false, 1), 3840);
    CHECK_INT(failures(NO_COUNT_ZERO, false, 1), 4095);
    eager_fails();
    CHECK(failures(NO_DRAIN, true, 7) > 0);
    search_close(&all);
    return check_report("test_moe_protocol");
}
