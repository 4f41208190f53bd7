/*
 * Unfused gemm_rs and gemm_ar whose sums are stored to where they are added up (`exchange` of a tuning): for
 * few rows, whose time is latency. A rank owns its part of the rows (gemm_rs: or of the columns).
 *
 *   1  The whole product; then each rank's block of it into that rank's inbox, in a gemm_ar all of it into
 *      every rank's; then every rank adds up what it has, in rank order. One hop.
 *   2  gemm_ar: each rank's rows into its inbox; the owner adds them up in rank order and stores the result
 *      to all, where it is copied to D. Two hops, and every sum travels once.
 *
 * A backend may let the product store into the inboxes itself, and carry each post inside of what it stores.
 */
#include "plan/gemm_whole.h"

typedef struct gemm_packets {
    weft_gemm_gen gen;
    weft_gemm_whole whole;
    bool by_rows, everywhere, returns; /* how D is divided; not at all; the owner stores to all */
    int64_t slot;                      /* extent of the longest block along the divided dimension */
    uint32_t sums, inbox, results;     /* operands: of this rank; of others; finished by others */
    uint32_t arrived, told;            /* a signal for each rank: its sums are here; its results are */
} gemm_packets;

/* What a rank adds up, cut for the lanes. */
static weft_shares block_of(const gemm_packets *x, int rank)
{
    const weft_problem *p = x->gen.problem;
    weft_span rows = weft_whole(p->m), cols = weft_whole(p->n);

    if (!x->everywhere && x->by_rows)
        rows = weft_problem_part_m(p, x->gen.world, rank);
    else if (!x->everywhere)
        cols = weft_problem_part_n(p, x->gen.world, rank);
    return weft_shares_of(p, rows, cols, p->tuning.tile_m, p->tuning.tile_n);
}

/* Tasks that cover a block, of all batch elements. */
static int64_t pieces_of(const gemm_packets *x, const weft_shares *block)
{
    return x->gen.problem->l * weft_shares_count(block);
}

static weft_tile piece_at(const weft_shares *block, int64_t index)
{
    int64_t count = weft_shares_count(block);
    weft_tile piece = {.batch = index / count};

    weft_share(block, index % count, &piece.rows, &piece.cols);
    return piece;
}

static weft_region in_sums(const gemm_packets *x, const weft_tile *piece)
{
    return weft_region_make(x->sums, x->gen.me, piece->batch, piece->rows, piece->cols);
}

/* Where rank `from` leaves its sums of `owner`'s block. */
static weft_region in_inbox(const gemm_packets *x, int owner, int from, const weft_shares *block,
                            const weft_tile *piece)
{
    weft_span rows = piece->rows, cols = piece->cols;

    if (x->by_rows)
        rows.begin += from * x->slot - block->rows.begin;
    else
        cols.begin += from * x->slot - block->cols.begin;
    return weft_region_make(x->inbox, owner, piece->batch, rows, cols);
}

static void send_sums(gemm_packets *x, int to)
{
    weft_builder *b = x->gen.builder;
    weft_shares block = block_of(x, to);

    for (int64_t i = 0; i < pieces_of(x, &block); i++) {
        weft_tile piece = piece_at(&block, i);

        weft_builder_task(b, weft_gemm_lane(&x->gen), WEFT_TASK_COPY, 0);
        weft_builder_to(b, in_inbox(x, to, x->gen.me, &block, &piece));
        weft_builder_from(b, in_sums(x, &piece));
        weft_builder_post(b, x->arrived + (uint32_t)x->gen.me, to);
        weft_builder_end(b);
    }
}

static void add_up(gemm_packets *x)
{
    weft_gemm_gen *gen = &x->gen;
    weft_builder *b = gen->builder;
    weft_shares block = block_of(x, gen->me);
    bool scattered = gen->problem->op == WEFT_OP_GEMM_RS;

    for (int64_t i = 0; i < pieces_of(x, &block); i++) {
        weft_tile piece = piece_at(&block, i);
        weft_span rows = piece.rows, cols = piece.cols;

        if (scattered) {
            rows.begin -= block.rows.begin;
            cols.begin -= block.cols.begin;
        }
        weft_gemm_open(gen, weft_gemm_lane(gen), WEFT_TASK_REDUCE, true, false);
        weft_builder_to(b, weft_region_make(gen->d, gen->me, piece.batch, rows, cols));
        for (int step = 1; step < gen->world && x->returns; step++)
            weft_builder_to(b, weft_region_make(x->results, weft_rotate(gen->me, step, gen->world),
                                                piece.batch, rows, cols));
        for (int rank = 0; rank < gen->world; rank++)
            weft_builder_from(b, rank == gen->me ? in_sums(x, &piece)
                                                 : in_inbox(x, gen->me, rank, &block, &piece));
        for (int rank = 0; rank < gen->world; rank++)
            if (rank != gen->me)
                weft_builder_wait(b, x->arrived + (uint32_t)rank, pieces_of(x, &block));
        for (int step = 1; step < gen->world && x->returns; step++)
            weft_builder_post(b, x->told + (uint32_t)gen->me, weft_rotate(gen->me, step, gen->world));
        weft_gemm_close(gen, true, piece.batch, rows, cols);
    }
}

static void take_results(gemm_packets *x, int from)
{
    weft_gemm_gen *gen = &x->gen;
    weft_builder *b = gen->builder;
    weft_shares block = block_of(x, from);

    for (int64_t i = 0; i < pieces_of(x, &block); i++) {
        weft_tile piece = piece_at(&block, i);

        weft_builder_task(b, weft_gemm_lane(gen), WEFT_TASK_COPY, 0);
        weft_builder_to(b, weft_region_make(gen->d, gen->me, piece.batch, piece.rows, piece.cols));
        weft_builder_from(b, weft_region_make(x->results, gen->me, piece.batch, piece.rows, piece.cols));
        weft_builder_wait(b, x->told + (uint32_t)from, pieces_of(x, &block));
        weft_builder_end(b);
    }
}

static void declare(gemm_packets *x)
{
    weft_gemm_gen *gen = &x->gen;
    weft_builder *b = gen->builder;
    const weft_problem *p = gen->problem;
    weft_shares mine = block_of(x, gen->me);

    x->slot = x->everywhere ? p->m
              : x->by_rows  ? weft_problem_part_m(p, gen->world, 0).count
                            : weft_problem_part_n(p, gen->world, 0).count;
    x->whole = weft_gemm_whole_begin(gen, p->n);
    x->arrived = weft_builder_signals(b, gen->world);
    x->told = x->returns ? weft_builder_signals(b, gen->world) : 0;
    x->sums = weft_builder_operand(b, (weft_operand){.name = "sums", /* of the type they are added in */
                                                     .place = WEFT_PLACE_PRIVATE,
                                                     .dtype = p->wire_dtype,
                                                     .rows = p->m,
                                                     .cols = p->n,
                                                     .batch = p->l});
    x->inbox = weft_gemm_staging(gen, "inbox", x->by_rows ? gen->world * x->slot : p->m,
                                 x->by_rows ? p->n : gen->world * x->slot, p->l);
    if (x->returns)
        x->results = weft_builder_operand(b, (weft_operand){.name = "results",
                                                            .place = WEFT_PLACE_STAGING,
                                                            .dtype = p->d_dtype,
                                                            .rows = p->m,
                                                            .cols = p->n,
                                                            .batch = p->l});
    for (int rank = 0; rank < gen->world; rank++) {
        weft_shares theirs = block_of(x, rank);

        if (rank == gen->me)
            continue;
        weft_builder_expect(b, x->arrived + (uint32_t)rank, pieces_of(x, &mine));
        if (x->returns)
            weft_builder_expect(b, x->told + (uint32_t)rank, pieces_of(x, &theirs));
    }
}

void weft_generate_gemm_packets(weft_builder *builder)
{
    const weft_problem *p = builder->problem;
    bool reduces = p->op == WEFT_OP_GEMM_AR;
    gemm_packets x = {.gen = weft_gemm_begin(builder),
                      .by_rows = reduces || p->layout == WEFT_LAYOUT_SCATTER_ROWS,
                      .everywhere = reduces && p->tuning.exchange == 1,
                      .returns = reduces && p->tuning.exchange == 2};

    weft_gemm_declare_packed(&x.gen);
    declare(&x);
    weft_gemm_pack(&x.gen);
    x.whole.target = x.sums;
    weft_gemm_whole_multiply(&x.whole);
    for (int step = 1; step < builder->world; step++)
        send_sums(&x, weft_rotate(builder->rank, step, builder->world));
    add_up(&x);
    for (int step = 1; step < builder->world && x.returns; step++)
        take_results(&x, weft_rotate(builder->rank, step, builder->world));
}
