/*
 * `weft bench moe --backend cuda --inter I --tokens T`: whole rounds with feed-forward experts: dispatch,
 * gate and up with the gated activation, down, combine. Ranks run as in moe_world.c: all on shares of the
 * GPU, or one of them with the rest behind an emulated link. Both orders of a round are measured: the one
 * whose products begin when all rows have come, and the one whose products begin with rows that have arrived;
 * in graphs of several rounds, replayed, one order after the other. Beside them stand the parts: dispatch and
 * combine as the first order's kernels note them, and the experts (rows packed, two products) alone.
 *
 * Before that come rounds of all ranks. Some tokens' results are compared with sums in double, and the two
 * orders must give the same bits.
 */
#include "bench/cuda/moe.h"

#include "bench/cuda/bench_cuda.h"
#include "bench/cuda/emulated.h"
#include "bench/cuda/failed.h"
#include "bench/cuda/moe_ranks.h"
#include "bench/moe/bench_moe.h"

#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/grouped.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 4, SHIFT = 64, CHECKED = 2, WARM = 2, GRAPHS = 9 };

/* What products may sustain: docs/performance/gpu.md. */
static const double FLOP_PER_US = 790e6;

typedef struct round_rank {
    CUdeviceptr gate_up, down, middle, counter;
} round_rank;

typedef struct round_bench {
    gpu_experts b;
    int64_t inter, rows; /* rows: that experts of a rank may get, together */
    int movers;          /* 0: the products wait for all rows */
    float *pool; /* random elements on the host: matrices of expert e begin e * SHIFT of them into it */
    CUdeviceptr pool_there;
    round_rank ranks[RANKS_MOST];
    gpu_graph experts;
    char *y; /* of the first order, to compare with */
} round_bench;

static const report_column columns[] = {{"E", "experts", REPORT_PLAIN, 4},
                                        {"K", "topk", REPORT_PLAIN, 3},
                                        {"H", "hidden", REPORT_PLAIN, 6},
                                        {"inter", "inter", REPORT_PLAIN, 6},
                                        {"T", "tokens", REPORT_PLAIN, 5},
                                        {"mode", "mode", REPORT_PLAIN, 8},
                                        {"dispatch µs", "dispatch_us", REPORT_TIME, 16},
                                        {"experts µs", "experts_us", REPORT_TIME, 16},
                                        {"combine µs", "combine_us", REPORT_TIME, 16},
                                        {"bound µs", "bound_us", REPORT_RATE, 8},
                                        {"round µs", "total_us", REPORT_TIME, 16},
                                        {"÷ parts", "over_parts", REPORT_RATIO, 8},
                                        {"arriving µs", "arriving_us", REPORT_TIME, 16},
                                        {"gain", "gain", REPORT_RATIO, 6},
                                        {"ok", "ok", REPORT_PLAIN, 3},
                                        {NULL, NULL, REPORT_PLAIN, 0}};

/* ---- experts ------------------------------------------------------------------------------------------- */

static int make_pool(round_bench *m)
{
    gpu_experts *b = &m->b;
    int64_t count = 2 * b->shape.hidden * m->inter + b->shape.experts * SHIFT;
    double scale = 2 / sqrt((double)(b->shape.hidden > m->inter ? b->shape.hidden : m->inter));
    uint64_t state = 88172645463325252u;
    char *narrow = malloc((size_t)count * 2);
    int status;

    m->pool = malloc((size_t)count * sizeof(*m->pool));
    for (int64_t i = 0; i < count && m->pool && narrow; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        weft_element_set(b->dtype, narrow, (size_t)i, ((double)(state >> 40) * 0x1p-24 - 0.5) * 2 * scale);
        m->pool[i] = (float)weft_element_get(b->dtype, narrow, (size_t)i);
    }
    status = m->pool && narrow
                 ? moe_ranks_upload(b, &m->pool_there, narrow, (size_t)count * 2)
                 : failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for the weights"));
    free(narrow);
    return status;
}

static int make_experts(round_bench *m)
{
    gpu_experts *b = &m->b;
    size_t each = (size_t)(b->shape.hidden * m->inter) * 2;

    m->rows = b->world * b->shape.tokens * weft_min(b->shape.topk, b->ranks[0].experts_here);
    for (int i = 0; i < b->world; i++) {
        round_rank *r = &m->ranks[i];
        size_t experts = (size_t)b->ranks[i].experts_here;

        TRY(cuMemAlloc(&r->gate_up, 2 * each * experts + 256));
        TRY(cuMemAlloc(&r->down, each * experts + 256));
        TRY(cuMemAlloc(&r->middle, (size_t)(m->rows * m->inter) * 2 + 256));
        TRY(cuMemAlloc(&r->counter, 2 * sizeof(uint32_t)));
        TRY(cuMemsetD8Async(r->counter, 0, 2 * sizeof(uint32_t), b->device.uploads));
        for (int e = 0; e < b->shape.experts; e++) {
            CUdeviceptr from = m->pool_there + (size_t)(e * SHIFT) * 2;

            if (b->owner[e] != i)
                continue;
            TRY(cuMemcpyAsync(r->gate_up + 2 * each * (size_t)b->local[e], from, 2 * each,
                              b->device.uploads));
            TRY(cuMemcpyAsync(r->down + each * (size_t)b->local[e], from, each, b->device.uploads));
        }
    }
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}

static void free_experts(round_bench *m)
{
    const weft_cuda_driver *cu = m->b.device.cu;

    for (int i = 0; i < m->b.world; i++) {
        const CUdeviceptr all[] = {m->ranks[i].gate_up, m->ranks[i].down, m->ranks[i].middle,
                                   m->ranks[i].counter};

        for (size_t j = 0; j < sizeof(all) / sizeof(*all); j++)
            if (all[j])
                cu->cuMemFree(all[j]);
        m->ranks[i] = (round_rank){0};
    }
    if (m->pool_there)
        cu->cuMemFree(m->pool_there);
    m->pool_there = 0;
    gpu_graph_drop(cu, &m->experts);
    free(m->pool);
    m->pool = NULL;
}

/* Both products of a rank. `arrives`: the first begins with rows that have. */
static int put_products(round_bench *m, int rank, bool arrives)
{
    gpu_experts *b = &m->b;
    const gpu_rank *r = &b->ranks[rank];
    const round_rank *own = &m->ranks[rank];
    weft_cuda_arriving_rows arriving = weft_cuda_moe_arriving(&r->lane);
    bool alone = b->link || b->world == 1;

    for (int i = 0; i < 2; i++) {
        int64_t n = i ? b->shape.hidden : m->inter, k = i ? m->inter : b->shape.hidden;
        weft_cuda_grouped_launch launch;
        weft_grouped_args args;
        weft_status status;

        weft_grouped_args_init(&args, b->dtype, r->experts_here, m->rows, n, k);
        args.offset = r->lane.offset;
        args.a = at(i ? own->middle : r->packed);
        args.b = at(i ? own->down : own->gate_up);
        args.d = at(i ? r->packed : own->middle);
        args.act = i ? WEFT_ACT_NONE : WEFT_ACT_SILU_GATED;
        args.lda = k;
        args.ldb = i ? n : 2 * n;
        args.ldd = n;
        args.stride_b = args.ldb * k;
        status = weft_cuda_grouped_prepare(&b->device, &args, arrives && i == 0 ? &arriving : NULL,
                                           at(own->counter), b->device.crews / (alone ? 1 : b->world),
                                           &launch, &b->error);
        if (status == WEFT_OK)
            status = weft_cuda_grouped_start(&b->device, &launch, alone, r->stream, &b->error);
        if (failed(&b->error, status))
            return 1;
    }
    return 0;
}

/* ---- rounds -------------------------------------------------------------------------------------------- */

/* Dispatch and experts of a round of one rank. */
static int put_front(round_bench *m, int rank, const moe_traffic *bytes)
{
    gpu_experts *b = &m->b;
    gpu_rank *r = &b->ranks[rank];
    bool moves = m->movers > 0;

    if (b->link &&
        moe_ranks_link(b, WEFT_CUDA_MOE_DISPATCH_SEND, moves ? bytes->entries * 12 : bytes->dispatch))
        return 1;
    if (moe_ranks_put(b, r, WEFT_DEVICE_MOE_DISPATCH_SEND, moves) ||
        moe_ranks_put(b, r, WEFT_DEVICE_MOE_DISPATCH_RECV, moves))
        return 1;
    if (b->link && moves && moe_ranks_link(b, WEFT_CUDA_MOE_MOVE, bytes->dispatch))
        return 1;
    return moe_ranks_put(b, r, moves ? WEFT_DEVICE_MOE_MOVE : WEFT_DEVICE_MOE_GATHER, moves) ||
           put_products(m, rank, moves);
}

static int put_round(round_bench *m, int rank, const moe_traffic *bytes)
{
    gpu_experts *b = &m->b;
    gpu_rank *r = &b->ranks[rank];

    if (put_front(m, rank, bytes) ||
        (b->link && moe_ranks_link(b, WEFT_CUDA_MOE_COMBINE_SEND, bytes->combine)))
        return 1;
    return moe_ranks_put(b, r, WEFT_DEVICE_MOE_COMBINE_SEND, false) ||
           moe_ranks_put(b, r, WEFT_DEVICE_MOE_COMBINE_RECV, false);
}

/* A round of all ranks, phase by phase, on whatever streams. */
static int round_of_all(round_bench *m)
{
    gpu_experts *b = &m->b;

    for (int phase = 0; phase < WEFT_CUDA_MOE_PHASES; phase++) {
        for (int i = 0; i < b->world; i++)
            if (moe_ranks_put(b, &b->ranks[i], (weft_device_moe_kernel)phase, false))
                return 1;
        for (int i = 0; i < b->world && phase == WEFT_CUDA_MOE_DISPATCH_RECV; i++)
            if (moe_ranks_put(b, &b->ranks[i], WEFT_DEVICE_MOE_GATHER, false) || put_products(m, i, false))
                return 1;
    }
    for (int i = 0; i < b->world; i++)
        TRY(cuStreamSynchronize(b->ranks[i].stream));
    return 0;
}

static int capture(round_bench *m, int rank, const moe_traffic *bytes)
{
    gpu_experts *b = &m->b;
    const weft_cuda_driver *cu = b->device.cu;
    gpu_rank *r = &b->ranks[rank];
    int status =
        failed(&b->error, weft_cuda_check(cu, gpu_graph_begin(cu, r->stream), "capturing rounds", &b->error));

    if (status)
        return status;
    if (b->link) {
        TRY(cuEventRecord(b->fork, r->stream));
        TRY(cuStreamWaitEvent(b->side, b->fork, 0));
    }
    for (int i = 0; i < ROUNDS && !status; i++)
        status = put_round(m, rank, bytes);
    if (b->link) {
        TRY(cuEventRecord(b->fork, b->side));
        TRY(cuStreamWaitEvent(r->stream, b->fork, 0));
    }
    return status || failed(&b->error, weft_cuda_check(cu, gpu_graph_end(cu, r->stream, &r->rounds),
                                                       "a graph of rounds", &b->error));
}

/* Rank 0's experts alone, on the rows of its last round. */
static int capture_experts(round_bench *m)
{
    gpu_experts *b = &m->b;
    const weft_cuda_driver *cu = b->device.cu;
    gpu_rank *r = &b->ranks[0];
    int status = failed(&b->error,
                        weft_cuda_check(cu, gpu_graph_begin(cu, r->stream), "capturing experts", &b->error));

    for (int i = 0; i < ROUNDS && !status; i++)
        status = moe_ranks_put(b, r, WEFT_DEVICE_MOE_GATHER, false) || put_products(m, 0, false);
    return status || failed(&b->error, weft_cuda_check(cu, gpu_graph_end(cu, r->stream, &m->experts),
                                                       "a graph of experts", &b->error));
}

/* One replay of the graphs that are given, one a rank: a round's share of it. */
static int replay_once(round_bench *m, const gpu_graph *one, int running, double *us)
{
    gpu_experts *b = &m->b;
    float ms = 0;

    TRY(cuEventRecord(b->begin, b->ranks[0].stream));
    for (int i = 0; i < running; i++)
        TRY(cuGraphLaunch(one ? one->replay : b->ranks[i].rounds.replay, b->ranks[i].stream));
    TRY(cuEventRecord(b->end, b->ranks[0].stream));
    for (int i = 0; i < running; i++)
        TRY(cuStreamSynchronize(b->ranks[i].stream));
    TRY(cuEventElapsedTime(&ms, b->begin, b->end));
    *us = (double)ms * 1e3 / ROUNDS;
    return 0;
}

/* What the kernels of rank 0 noted of their halves so far. */
static int read_halves(round_bench *m, double ns[2])
{
    weft_cuda_moe_state state;

    if (moe_ranks_read(&m->b, &state, m->b.ranks[0].lane.state, sizeof(state)))
        return 1;
    ns[0] = (double)state.dispatch_ns;
    ns[1] = (double)state.combine_ns;
    return 0;
}

typedef struct times {
    report_stats dispatch, combine, experts, round;
} times;

static int measure_rounds(round_bench *m, times *t)
{
    gpu_experts *b = &m->b;
    int running = b->link ? 1 : b->world, graphs = b->graphs < GRAPHS ? b->graphs : GRAPHS;
    double samples[4][GRAPHS], before[2], after[2], us;

    for (int n = -WARM; n < graphs; n++) {
        if (read_halves(m, before) || replay_once(m, NULL, running, &us) || read_halves(m, after))
            return 1;
        if (n < 0)
            continue;
        samples[0][n] = (after[0] - before[0]) / ROUNDS * 1e-3;
        samples[1][n] = (after[1] - before[1]) / ROUNDS * 1e-3;
        samples[2][n] = us;
        if (!m->movers && replay_once(m, &m->experts, 1, &samples[3][n]))
            return 1;
    }
    t->dispatch = report_summarise(samples[0], graphs);
    t->combine = report_summarise(samples[1], graphs);
    t->round = report_summarise(samples[2], graphs);
    t->experts = m->movers ? report_missing() : report_summarise(samples[3], graphs);
    return 0;
}

/* ---- results ------------------------------------------------------------------------------------------- */

/* out[n] = in[k] times the k x n matrix at `first` of the pool. */
static void multiply(const round_bench *m, const double *in, int64_t k, int64_t n, int64_t first, double *out)
{
    for (int64_t j = 0; j < n; j++)
        out[j] = 0;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < n; j++)
            out[j] += in[i] * (double)m->pool[first + i * n + j];
}

/* What one token should give, in double. */
static void expect(const round_bench *m, int rank, int64_t token, double *y, double *work)
{
    const weft_contest_data *data = &m->b.ranks[rank].data;
    int64_t hidden = m->b.shape.hidden, inter = m->inter;
    double *x = work, *both = x + hidden, *row = both + 2 * inter;

    for (int64_t i = 0; i < hidden; i++) {
        x[i] = weft_element_get(m->b.dtype, data->x, (size_t)(token * hidden + i));
        y[i] = 0;
    }
    for (int k = 0; k < m->b.shape.topk; k++) {
        int64_t at = token * m->b.shape.topk + k, first = (int64_t)data->expert[at] * SHIFT;

        multiply(m, x, hidden, 2 * inter, first, both);
        for (int64_t i = 0; i < inter; i++)
            both[i] = both[2 * i] / (1 + exp(-both[2 * i])) * both[2 * i + 1];
        multiply(m, both, inter, hidden, first, row);
        for (int64_t i = 0; i < hidden; i++)
            y[i] += (double)data->weight[at] * row[i];
    }
}

static int check(round_bench *m, const char *y, bool *ok)
{
    int64_t hidden = m->b.shape.hidden, tokens = m->b.ranks[0].data.tokens;
    double *want = malloc((size_t)(3 * hidden + 2 * m->inter) * sizeof(double));
    double tolerance = m->b.dtype == WEFT_F16 ? 0x1p-8 : 0x1p-5;

    for (int64_t i = 0; want && i < CHECKED && i < tokens; i++) {
        int64_t token = i * (tokens - 1);

        expect(m, 0, token, want, want + hidden);
        for (int64_t j = 0; j < hidden; j++)
            *ok &= fabs(weft_element_get(m->b.dtype, y, (size_t)(token * hidden + j)) - want[j]) <=
                   tolerance * (fabs(want[j]) + 1); /* sums are about 1 */
    }
    free(want);
    return want == NULL;
}

/* Rank 0's results: of the first order by themselves, of the second beside those. */
static int check_results(round_bench *m, bool *ok)
{
    gpu_experts *b = &m->b;
    size_t bytes = (size_t)(b->shape.tokens * b->row_bytes);
    char *y = malloc(bytes);
    weft_cuda_control control;
    int status = !y || moe_ranks_read(b, y, at(b->ranks[0].y), bytes) ||
                 moe_ranks_read(b, &control, b->ranks[0].lane.control, sizeof(control));

    *ok &= !status && !control.abort;
    if (!status && m->y)
        *ok &= memcmp(y, m->y, (size_t)(b->ranks[0].data.tokens * b->row_bytes)) == 0;
    else if (!status)
        status = check(m, y, ok);
    if (m->y || status)
        free(y);
    else
        m->y = y;
    return status;
}

/* ---- one shape ----------------------------------------------------------------------------------------- */

/* The results, and rows that the rounds before brought and those to come bring again: over a link a rank's
 * own.
 */
static int poison(round_bench *m)
{
    gpu_experts *b = &m->b;

    for (int i = 0; i < (b->link ? 1 : b->world); i++) {
        const weft_cuda_moe *lane = &b->ranks[i].lane;
        size_t rows = (size_t)(lane->capacity * lane->row_stride);

        TRY(cuMemsetD8Async((CUdeviceptr)(uintptr_t)lane->row, 0xff, (b->link ? 1 : (size_t)b->world) * rows,
                            b->device.uploads));
    }
    TRY(cuMemsetD8Async(b->ranks[0].y, 0xff, (size_t)(b->shape.tokens * b->row_bytes), b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}

/* One order of a round. */
static int bench_order(round_bench *m, int movers, moe_traffic *bytes, times *t, bool *ok)
{
    gpu_experts *b = &m->b;
    int running = b->link ? 1 : b->world, status;
    uint64_t began[3] = {2, 2, 2}; /* rounds of all ranks: lists are doubled by parity */

    m->movers = movers;
    status = moe_ranks_make(b, 20, movers) || make_pool(m) || make_experts(m) || round_of_all(m) ||
             round_of_all(m) || moe_ranks_upload(b, &b->link_runs, began, sizeof(began));
    *bytes = moe_ranks_traffic(b);
    for (int i = 0; i < running && !status; i++)
        status = capture(m, i, bytes);
    if (!status && !movers)
        status = capture_experts(m);
    if (!status)
        status = poison(m) || measure_rounds(m, t) || check_results(m, ok);
    free_experts(m);
    moe_ranks_free(b);
    return status;
}

static void print_row(round_bench *m, const moe_traffic *bytes, const times *whole, const times *arriving,
                      bool ok)
{
    gpu_experts *b = &m->b;
    report *r = &b->report;
    double experts = b->shape.experts / (double)b->world,
           link = b->link ? b->link->bytes_per_ns * 1e3 : INFINITY;
    double latency = b->link ? b->link->latency_ns * 1e-3 : 0, share = b->link ? 1 : b->world;
    double weights = experts * 3 * (double)(b->shape.hidden * m->inter) * 2;
    double products = fmax(6 * bytes->entries * (double)(b->shape.hidden * m->inter) / FLOP_PER_US,
                           (weights + bytes->entries * (double)(2 * b->shape.hidden + 2 * m->inter) * 2) /
                               b->copy_bytes_per_us);
    double bound =
        2 * latency + fmax(bytes->dispatch / link, share * bytes->dispatch_memory / b->copy_bytes_per_us) +
        share * products + fmax(bytes->combine / link, share * bytes->combine_memory / b->copy_bytes_per_us);

    report_text(r, "op", "moe");
    report_text(r, "backend", "cuda");
    report_int(r, "ranks", b->world);
    report_text(r, "how", "%s", b->link ? "link" : "virtual");
    report_text(r, "dtype", "%s", weft_dtype_name(b->dtype));
    report_text(r, "impl", "round");
    report_int(r, "experts", b->shape.experts);
    report_int(r, "topk", b->shape.topk);
    report_int(r, "hidden", b->shape.hidden);
    report_int(r, "inter", m->inter);
    report_int(r, "tokens", b->shape.tokens);
    report_text(r, "mode", "%s", b->reduced ? "reduced" : "exact");
    report_time(r, "dispatch_us", whole->dispatch);
    report_time(r, "experts_us", whole->experts);
    report_time(r, "combine_us", whole->combine);
    report_real(r, "bound_us", bound);
    report_time(r, "total_us", whole->round);
    report_real(r, "over_parts",
                whole->round.median /
                    (whole->dispatch.median + whole->experts.median + whole->combine.median));
    report_time(r, "arriving_dispatch_us", arriving->dispatch);
    report_time(r, "arriving_us", arriving->round);
    report_real(r, "gain", whole->round.median / arriving->round.median);
    report_bool(r, "ok", ok);
    report_row(r);
}

static int bench_shape(round_bench *m, int movers)
{
    gpu_experts *b = &m->b;
    moe_traffic bytes = {0};
    times whole = {0}, arriving = {.round = report_missing(), .dispatch = report_missing()};
    bool ok = true;
    int status = 1;

    b->row_bytes = b->wire_bytes = b->shape.hidden * (int64_t)weft_dtype_size(b->dtype);
    b->owner = calloc((size_t)b->shape.experts, sizeof(int32_t));
    b->local = calloc((size_t)b->shape.experts, sizeof(int32_t));
    if (b->owner && b->local)
        status = bench_order(m, 0, &bytes, &whole, &ok);
    if (!status && movers)
        status = bench_order(m, movers, &bytes, &arriving, &ok);
    if (!status)
        print_row(m, &bytes, &whole, &arriving, ok);
    free(m->y);
    m->y = NULL;
    free(b->owner);
    free(b->local);
    return status;
}

static int measure(round_bench *m, const bench_moe_choice *choice)
{
    gpu_experts *b = &m->b;
    int sms = weft_cuda_ctas(&b->device, b->device.crews) / (b->link ? 1 : b->world), movers, status;

    status = moe_ranks_open(b);
    movers = choice->movers ? (int)choice->movers : weft_cuda_moe_movers(sms);
    if (b->link)
        report_note(&b->report,
                    "rounds with experts of %s, one rank of %d in the loop over an emulated link of %g GB/s "
                    "and %g µs on %s",
                    weft_dtype_name(b->dtype), b->world, b->link->bytes_per_ns, b->link->latency_ns * 1e-3,
                    b->device.name);
    else
        report_note(&b->report,
                    "rounds with experts of %s, %d virtual ranks (not the times of a fabric) on %s",
                    weft_dtype_name(b->dtype), b->world, b->device.name);
    report_note(
        &b->report,
        "E experts, K of them a token, H elements a row, inter between the products, T tokens on every "
        "rank; " REPORT_TIME_LEGEND "\nexperts: rows packed and both products, alone; bound: dispatch, "
        "products and combine one after another, each at the rate of\nmemory (%.0f GB/s), the link or "
        "%.0f TFLOP/s, whichever takes longest; ÷ parts: the round over the sum of its parts;\n"
        "arriving: the products begin with rows that have arrived, %d CTAs move them; gain: round ÷ "
        "arriving",
        b->copy_bytes_per_us * 1e-3, FLOP_PER_US * 1e-6, movers);
    for (int reduced = 0; reduced < 2 && !status; reduced++) {
        b->shape = choice->shape[0];
        b->rung = LADDER_FUSED;
        b->reduced = reduced;
        if (reduced ? choice->reduced : choice->exact)
            status = bench_shape(m, movers);
    }
    return status;
}

int bench_cuda_moe_round(const weft_options *options, const bench_moe_choice *choice, const bench_link *link,
                         report_page *page)
{
    round_bench *m = calloc(1, sizeof(*m));
    gpu_experts *b = m ? &m->b : NULL;
    int status, closed;

    if (!b)
        return 1;
    b->link = link->bytes_per_ns > 0 ? link : NULL;
    b->world = (int)options->ranks;
    b->dtype = choice->dtype;
    m->inter = choice->inter;
    b->graphs = options->iterations ? (int)options->iterations : GRAPHS;
    weft_cuda_driver_widen();
    status = weft_cuda_gpus.open(0, &b->device, &b->error) != WEFT_OK;
    if (!status) {
        b->device.cu->cuCtxSetCurrent(b->device.context);
        if (b->link && emulated_load(&b->device, &b->emulated, &b->error) != WEFT_OK) {
            weft_cuda_device_close(&b->device);
            status = 1;
        }
    }
    if (status) {
        options_error("bench", "--backend cuda: %s", b->error.text);
        free(m);
        return 2;
    }
    report_open(&b->report, stdout, options->json, columns);
    b->report.page = page;
    status = measure(m, choice);
    closed = report_close(&b->report);
    emulated_free(&b->device, &b->emulated);
    weft_cuda_device_close(&b->device);
    free(m);
    return status ? status : closed;
}
