/* The whole local product, then its announcement; see gemm_whole.h. */
#include "plan/gemm_whole.h"

weft_gemm_whole weft_gemm_whole_begin(weft_gemm_gen *gen, int64_t cols)
{
    const weft_problem *p = gen->problem;
    weft_gemm_whole whole = {.gen = gen, .cols = cols};

    if (weft_gemm_by_library(gen)) {
        whole.tasks = p->m && cols ? p->l : 0;
    } else {
        whole.stream = weft_stream_k_begin(gen, cols, 1);
        whole.tasks = whole.stream.tiles;
    }
    whole.finished = weft_builder_signals(gen->builder, 1);
    return whole;
}

static void multiply_at_once(weft_gemm_whole *whole, int64_t batch)
{
    weft_gemm_gen *gen = whole->gen;
    weft_span rows = weft_whole(gen->problem->m), cols = {whole->target_col, whole->cols};

    weft_gemm_open(gen, 0, WEFT_TASK_GEMM, whole->epilogue, false);
    weft_builder_to(gen->builder, weft_region_make(whole->target, gen->me, batch, rows, cols));
    if (whole->copies)
        weft_builder_to(gen->builder, weft_region_make(gen->results, gen->me, batch, rows, cols));
    weft_builder_from(gen->builder, weft_region_make(gen->a, gen->me, batch, rows, gen->local_k));
    weft_builder_from(gen->builder,
                      weft_region_make(gen->b_source, gen->me, batch, gen->local_k, weft_whole(whole->cols)));
    if (gen->lanes > 1)
        weft_builder_post(gen->builder, whole->finished, gen->me);
    weft_gemm_close(gen, whole->epilogue, batch, rows, cols);
}

static void emit_tile(void *context, int lane, int64_t number, const weft_slices *slices)
{
    weft_gemm_whole *whole = context;
    weft_gemm_gen *gen = whole->gen;
    weft_tile tile = weft_stream_k_tile(&whole->stream, number);
    weft_span cols = {whole->target_col + tile.cols.begin, tile.cols.count};

    weft_gemm_open(gen, lane, slices ? WEFT_TASK_REDUCE : WEFT_TASK_GEMM, whole->epilogue, false);
    weft_builder_to(gen->builder, weft_region_make(whole->target, gen->me, tile.batch, tile.rows, cols));
    if (whole->copies)
        weft_builder_to(gen->builder, weft_region_make(gen->results, gen->me, tile.batch, tile.rows, cols));
    if (slices)
        weft_stream_k_sources(&whole->stream, &tile, slices);
    else
        weft_stream_k_product(&whole->stream, &tile);
    if (gen->lanes > 1)
        weft_builder_post(gen->builder, whole->finished, gen->me);
    weft_gemm_close(gen, whole->epilogue, tile.batch, tile.rows, cols);
}

void weft_gemm_whole_multiply(weft_gemm_whole *whole)
{
    weft_gemm_gen *gen = whole->gen;
    weft_builder *b = gen->builder;

    if (weft_gemm_by_library(gen))
        for (int64_t batch = 0; batch < whole->tasks; batch++)
            multiply_at_once(whole, batch);
    else
        weft_stream_k_run(&whole->stream, NULL, emit_tile, whole);
    if (gen->lanes > 1) {
        weft_builder_expect(b, whole->finished, whole->tasks);
        weft_builder_gate(b, whole->finished, whole->tasks);
    }
}

void weft_gemm_whole_run(weft_gemm_whole *whole, uint32_t ready)
{
    weft_gemm_gen *gen = whole->gen;
    weft_builder *b = gen->builder;
    weft_region nothing = {.rank = gen->me};

    weft_gemm_whole_multiply(whole);
    if (gen->world == 1)
        return;
    weft_builder_task(b, 0, WEFT_TASK_COPY, 0);
    weft_builder_to(b, nothing);
    weft_builder_from(b, nothing);
    for (int step = 1; step < gen->world; step++)
        weft_builder_post(b, ready, weft_rotate(gen->me, step, gen->world));
    weft_builder_end(b);
}

uint32_t weft_gemm_whole_sums(weft_gemm_gen *gen)
{
    const weft_problem *p = gen->problem;
    weft_gemm_whole whole = weft_gemm_whole_begin(gen, p->n);
    uint32_t ready = weft_builder_signals(gen->builder, 1);

    whole.epilogue = gen->world == 1;
    whole.target = gen->world == 1 ? gen->d : weft_gemm_staging(gen, "partial", p->m, p->n, p->l);
    weft_gemm_pack(gen);
    weft_gemm_whole_run(&whole, ready);
    if (gen->world > 1) {
        weft_builder_expect(gen->builder, ready, gen->world - 1);
        weft_builder_gate(gen->builder, ready, gen->world - 1);
    }
    return whole.target;
}
