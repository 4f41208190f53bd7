/*
 * `weft bench moe`: rounds of dispatch, experts and combine, every rung of the ladder beside the same work
 * with MPI and beside a plain copy of the bytes that must move. With --inter: the grouped GEMM of real
 * experts.
 *
 * Every rank draws its tokens as the contest does. All contenders of an iteration get the same data; the data
 * changes with the iteration. Every element of every result is compared with sums in double.
 */
#include "bench/moe/bench_moe.h"

#include "bench/cuda/bench_cuda.h"
#include "bench/standin/scale_kernels.h"
#include "cli/moe_flags.h"
#include "core/dtype.h"
#include "core/part.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static moe_asked asked;
static int64_t asked_rows, asked_movers;
static const char *asked_weights;

const options_flag bench_moe_flags[] = {
    MOE_FLAGS(
        asked, "; in the contest's set each rank draws 1 to T - 1",
        "; 1 with --topk 1: all tokens to one expert",
        "exact (same bits for any number of ranks), reduced (one row per token and rank) or both (default)",
        "measure the experts' grouped GEMM instead: gate and up H x I, down I x H, --experts of them "
        "(default 8) on each rank; with --backend cuda: of one rank, on the whole GPU, beside cuBLAS; and "
        "with --tokens too: whole rounds with such experts, --experts (default 256) over all ranks"),
    {"--movers", "M", OPTIONS_INT, &asked_movers, NULL, 2, 128, "moe",
     "CTAs that move rows while experts begin, in whole rounds with --inter (default: the library's)"},
    {"--rows", "R", OPTIONS_INT, &asked_rows, NULL, 1, 1 << 20, "moe",
     "rows of each expert, with --inter (default 8 to 512, on a GPU 16 to 1024)"},
    {"--weights", "T", OPTIONS_TEXT, &asked_weights, NULL, 0, 0, "moe",
     "with --inter on a GPU: weights stored as fp8_e4m3 or fp8_e5m2, with a factor for every column"},
    {0},
};

/* ---- data ---------------------------------------------------------------------------------------------- */

static double rounding(weft_dtype dtype)
{
    return dtype == WEFT_F16 ? 0x1p-11 : dtype == WEFT_BF16 ? 0x1p-8 : 0x1p-24;
}

/* What combine should give, in double, and the sum of the sizes of its terms. */
static int expect(moe_subject *it, int draw)
{
    const weft_contest_data *data = &it->data[draw];
    int64_t hidden = it->shape.hidden;
    int topk = it->shape.topk;
    double *sum = calloc((size_t)hidden * 2, sizeof(double)), *size = sum ? sum + hidden : NULL;
    char *scaled = malloc((size_t)it->row_bytes), *token = malloc((size_t)(it->row_bytes + it->wire_bytes));
    int status = !sum || !scaled || !token;

    for (int64_t t = 0; !status && t < data->tokens; t++) {
        const char *row = (const char *)data->x + t * it->row_bytes;

        if (it->wire == WEFT_MOE_WIRE_FP8) {
            weft_moe_quantise(it->dtype, hidden, token, row);
            weft_moe_expand(it->dtype, hidden, token + it->wire_bytes, token);
            row = token + it->wire_bytes;
        }
        memset(sum, 0, (size_t)hidden * 2 * sizeof(double));
        for (int k = 0; k < topk; k++) {
            double weight = data->weight[t * topk + k];

            weft_standin_kernels_portable.scale(it->dtype, scaled, row,
                                                weft_standin_factor(&it->standin, data->expert[t * topk + k]),
                                                hidden);
            for (int64_t i = 0; i < hidden; i++) {
                double term = weight * weft_element_get(it->dtype, scaled, (size_t)i);

                sum[i] += term;
                size[i] += fabs(term);
            }
        }
        for (int64_t i = 0; i < hidden; i++) {
            it->expected[draw][t * hidden + i] = (float)sum[i];
            it->magnitude[draw][t * hidden + i] = (float)size[i];
        }
    }
    free(sum);
    free(scaled);
    free(token);
    return status;
}

static int make_data(moe_subject *it, bool contest)
{
    bench_context *context = it->context;
    size_t pairs = (size_t)(it->shape.tokens * it->shape.topk),
           row = (size_t)it->shape.hidden * sizeof(float);

    it->draws = contest ? MOE_DRAWS : MOE_SETS_OF_TOKENS;
    for (int draw = 0; draw < it->draws; draw++) {
        weft_contest_data *data = &it->data[draw];
        uint64_t seed = bench_random(context) >> 20;

        data->expert = malloc(pairs * sizeof(int32_t));
        data->weight = malloc(pairs * sizeof(float));
        if (!data->expert || !data->weight)
            return 1;
        if (draw < MOE_SETS_OF_TOKENS) {
            if (weft_alloc(context->group, (size_t)(it->shape.tokens * it->row_bytes), 0, &it->x[draw]) !=
                WEFT_OK)
                return bench_fail(context, "allocating");
            data->x = it->x[draw];
            weft_contest_fill(&it->shape, it->dtype, seed, context->rank, it->shape.tokens, 0, data);
        }
        data->x = it->x[draw % MOE_SETS_OF_TOKENS];
        weft_contest_draw(&it->shape, seed, context->rank, contest ? -1 : it->shape.tokens, asked.skew, data);
        it->expected[draw] = malloc((size_t)data->tokens * row);
        it->magnitude[draw] = malloc((size_t)data->tokens * row);
        if (!it->expected[draw] || !it->magnitude[draw] || expect(it, draw))
            return 1;
    }
    it->y = malloc((size_t)it->shape.tokens * (size_t)it->row_bytes);
    return it->y ? 0 : 1;
}

static void free_data(moe_subject *it)
{
    for (int set = 0; set < MOE_SETS_OF_TOKENS; set++)
        weft_free(it->context->group, it->x[set]);
    for (int draw = 0; draw < it->draws; draw++) {
        free(it->data[draw].expert);
        free(it->data[draw].weight);
        free(it->expected[draw]);
        free(it->magnitude[draw]);
    }
    free(it->y);
    free(it->owner);
    free(it->local_index);
}

int moe_prepare(moe_subject *it)
{
    memset(it->y, 0xff, (size_t)it->shape.tokens * (size_t)it->row_bytes);
    return 0;
}

int moe_check(moe_subject *it, int iteration, bool reduced)
{
    int draw = iteration % it->draws;
    int64_t elements = it->data[draw].tokens * it->shape.hidden;
    int topk = it->shape.topk;
    double unit = rounding(it->dtype), sums = ((reduced ? 2 : 1) * topk + 3) * 0x1p-22;

    /* fp32 sums, in reduced mode what standin/scale_fp16.c puts in their place, and one rounding to the type;
     * in reduced mode every rank's part is rounded once more. Last, steps where float16 has no smaller ones.
     */
    for (int64_t i = 0; i < elements; i++) {
        double value = weft_element_get(it->dtype, it->y, (size_t)i), right = it->expected[draw][i];
        double bound = it->magnitude[draw][i] * (sums + (reduced ? 2 * unit : 0)) +
                       fabs(right) * unit * 1.01 + (topk + 3) * 0x1p-25;

        if (!(fabs(value - right) <= bound))
            it->ok = false;
    }
    return 0;
}

static weft_moe_wire wire_asked(const weft_options *options)
{
    return options->wire_given ? WEFT_MOE_WIRE_FP8 : WEFT_MOE_WIRE_GIVEN;
}

/* ---- the rungs ----------------------------------------------------------------------------------------- */

enum { ROUNDS_KEPT = 1024 };

typedef struct rung {
    moe_subject *it;
    const char *name;
    bool reduced;
    weft_moe *moe;
    weft_moe_stats sum;                                       /* of the counts, over all rounds */
    double dispatch_us[ROUNDS_KEPT], combine_us[ROUNDS_KEPT]; /* of the last rounds */
    int64_t rounds;
} rung;

static int prepare_rung(void *argument, int iteration)
{
    rung *r = argument;

    (void)iteration;
    return moe_prepare(r->it);
}

static int run_rung(void *argument, int iteration)
{
    rung *r = argument;
    const weft_contest_data *data = moe_data(r->it, iteration);
    weft_moe_input input = {sizeof(input), data->tokens, data->x, data->expert, data->weight};

    return weft_moe_forward(r->moe, 0, &input, &r->it->expert, r->it->y) != WEFT_OK;
}

static int check_rung(void *argument, int iteration)
{
    rung *r = argument;
    weft_moe_stats stats = {.size = sizeof(stats)};

    weft_moe_get_stats(r->moe, 0, &stats);
    r->dispatch_us[r->rounds % ROUNDS_KEPT] = stats.dispatch_us;
    r->combine_us[r->rounds % ROUNDS_KEPT] = stats.combine_us;
    r->sum.dispatch_bytes += stats.dispatch_bytes;
    r->sum.combine_bytes += stats.combine_bytes;
    r->sum.entries += stats.entries;
    r->rounds++;
    return moe_check(r->it, iteration, r->reduced);
}

static int open_rung(moe_subject *it, rung *r, const char *name, weft_moe_impl impl, bool reduced)
{
    weft_moe_config config;

    weft_moe_config_init(&config);
    config.experts = it->shape.experts;
    config.topk = it->shape.topk;
    config.hidden = it->shape.hidden;
    config.tokens = it->shape.tokens;
    config.dtype = it->dtype;
    config.impl = impl;
    config.wire = it->wire;
    config.mode = reduced ? WEFT_MOE_REDUCED : WEFT_MOE_EXACT;
    *r = (rung){.it = it, .name = name, .reduced = reduced};
    return weft_moe_create(it->context->group, &config, &r->moe) == WEFT_OK ? 0
                                                                            : bench_fail(it->context, "moe");
}

static const struct {
    const char *name;
    weft_moe_impl impl;
} ladder[] = {{"fused", WEFT_MOE_FUSED},
              {"rows", WEFT_MOE_ROWS},
              {"sorted", WEFT_MOE_SORTED},
              {"reference", WEFT_MOE_REFERENCE}};

static const char *rung_asked(const weft_options *options)
{
    return options->impl && strcmp(options->impl, "auto") ? options->impl : "fused";
}

/* The rungs that were asked for; returns how many, or -1. */
static int open_rungs(moe_subject *it, rung rungs[8])
{
    const weft_options *options = it->context->options;
    const char *impl = rung_asked(options);
    const char *mode = asked.mode ? asked.mode : "both";
    int count = 0;

    for (int i = 0; i < 4; i++) {
        if (strcmp(impl, "all") && strcmp(impl, ladder[i].name))
            continue;
        if ((i == 0 && strcmp(mode, "exact")) &&
            open_rung(it, &rungs[count++], ladder[i].name, ladder[i].impl, true))
            return -1;
        if ((i > 0 || strcmp(mode, "reduced")) &&
            open_rung(it, &rungs[count++], ladder[i].name, ladder[i].impl, false))
            return -1;
    }
    return count;
}

/* ---- a shape ------------------------------------------------------------------------------------------- */

static const report_column columns[] = {
    {"E", "experts", REPORT_PLAIN, 4},
    {"K", "topk", REPORT_PLAIN, 3},
    {"H", "hidden", REPORT_PLAIN, 6},
    {"T", "tokens", REPORT_PLAIN, 5},
    {"impl", "impl", REPORT_PLAIN, 10},
    {"mode", "mode", REPORT_PLAIN, 8},
    {"dispatch µs", "dispatch_us", REPORT_RATE, 11},
    {"combine µs", "combine_us", REPORT_RATE, 10},
    {"total µs", "total_us", REPORT_TIME, 16},
    {"memcpy µs", "memcpy_us", REPORT_TIME, 16},
    {"÷ memcpy", "over_memcpy", REPORT_RATIO, 8},
    {"sort + MPI µs", "peer_us", REPORT_TIME, 16},
    {"speedup", "speedup", REPORT_RATIO, 8},
    {"load max/mean", "imbalance", REPORT_RATIO, 14},
    {"ok", "ok", REPORT_PLAIN, 4},
    {NULL, NULL, REPORT_PLAIN, 0},
};

static int report_rung(moe_subject *it, rung *r, const bench_contender *weft, const bench_contender *copy,
                       const bench_contender *peer, bool ok)
{
    bench_context *context = it->context;
    report *out = &context->report;
    double rounds = (double)(r->rounds ? r->rounds : 1), most = 0, mean = 0;
    int kept = r->rounds < ROUNDS_KEPT ? (int)r->rounds : ROUNDS_KEPT;
    double mine[5] = {report_summarise(r->dispatch_us, kept).median,
                      report_summarise(r->combine_us, kept).median, (double)r->sum.dispatch_bytes / rounds,
                      (double)r->sum.combine_bytes / rounds, (double)r->sum.entries / rounds};
    double all[5 * context->size], dispatch = 0, combine = 0, bytes[2] = {0, 0};
    char loads[REPORT_TEXT_BYTES] = "";

    if (bench_share(context, mine, 5, all) != 0)
        return 1;
    for (int i = 0; i < context->size; i++) {
        const double *one = all + 5 * i;
        size_t used = strlen(loads);

        dispatch = fmax(dispatch, one[0]);
        combine = fmax(combine, one[1]);
        bytes[0] += one[2];
        bytes[1] += one[3];
        most = fmax(most, one[4]);
        mean += one[4] / context->size;
        snprintf(loads + used, sizeof loads - used, "%s%.0f", i ? " " : "", one[4]);
    }
    out->columns = columns;
    report_text(out, "op", "moe");
    report_text(out, "backend", "cpu");
    report_int(out, "ranks", context->size);
    report_text(out, "dtype", "%s", weft_dtype_name(it->dtype));
    if (it->wire == WEFT_MOE_WIRE_FP8)
        report_text(out, "wire", "fp8");
    report_text(out, "impl", "%s", r->name);
    report_text(out, "mode", "%s", r->reduced ? "reduced" : "exact");
    report_int(out, "experts", it->shape.experts);
    report_int(out, "topk", it->shape.topk);
    report_int(out, "hidden", it->shape.hidden);
    report_int(out, "tokens", it->shape.tokens);
    report_real(out, "skew", asked.skew);
    report_real(out, "dispatch_us", dispatch);
    report_real(out, "combine_us", combine);
    report_time(out, "total_us", weft->stats);
    report_time(out, "memcpy_us", copy->stats);
    report_real(out, "over_memcpy", weft->over);
    report_real(out, "dispatch_bytes", bytes[0]);
    report_real(out, "combine_bytes", bytes[1]);
    report_real(out, "imbalance", mean > 0 ? most / mean : NAN);
    report_text(out, "load", "%s", loads);
    if (peer) {
        report_text(out, "peer", "sort + MPI_Alltoallv, %s", context->mpi->name);
        report_time(out, "peer_us", peer->stats);
        report_real(out, "speedup", peer->stats.median / weft->stats.median);
    }
    report_bool(out, "ok", ok);
    report_row(out);
    return 0;
}

static int measure_shape(moe_subject *it, double *log_speedup, double *log_count)
{
    bench_context *context = it->context;
    static rung rungs[8];
    moe_copy *copies[2] = {moe_copy_open(it, false), moe_copy_open(it, true)};
    moe_peer *peer = moe_peer_can(it) ? moe_peer_open(it) : NULL;
    bench_contender contenders[16];
    int count = open_rungs(it, rungs), used = 0, status = count < 0;
    char label[64];

    if (!status && (!copies[0] || !copies[1] || (moe_peer_can(it) && !peer)))
        status = bench_say(context, "no memory for the peers' rows");
    for (int i = 0; i < count; i++)
        contenders[used++] = (bench_contender){.name = rungs[i].name,
                                               .argument = &rungs[i],
                                               .beside = &contenders[count + (rungs[i].reduced ? 1 : 0)],
                                               .prepare = prepare_rung,
                                               .run = run_rung,
                                               .check = check_rung};
    if (!status) {
        contenders[used++] = moe_copy_contender(copies[0]);
        contenders[used++] = moe_copy_contender(copies[1]);
        if (peer)
            contenders[used++] = moe_peer_contender(peer);
        snprintf(label, sizeof label, "moe %d/%d/%lld/%lld", it->shape.experts, it->shape.topk,
                 (long long)it->shape.hidden, (long long)it->shape.tokens);
        it->ok = true;
        status = bench_measure(context, contenders, used, 1, 15, label);
    }
    if (!status) {
        bool ok = bench_max(context, it->ok ? 0 : 1) == 0;
        const bench_contender *other = peer ? &contenders[count + 2] : NULL;

        for (int i = 0; i < count && !status; i++)
            status = report_rung(it, &rungs[i], &contenders[i],
                                 &contenders[count + (rungs[i].reduced ? 1 : 0)], other, ok);
        if (other && count > 0) {
            *log_speedup += log(other->stats.median / contenders[0].stats.median);
            *log_count += 1;
        }
    }
    for (int i = 0; i < count; i++)
        weft_moe_free(rungs[i].moe);
    moe_copy_close(copies[0]);
    moe_copy_close(copies[1]);
    moe_peer_close(peer);
    return status;
}

static int bench_shape(bench_context *context, weft_contest_shape shape, weft_dtype dtype, bool contest,
                       double *log_speedup, double *log_count)
{
    moe_subject it = {
        .context = context, .shape = shape, .dtype = dtype, .wire = wire_asked(context->options)};
    int *here = calloc((size_t)context->size, sizeof(int)), status = 1;

    it.row_bytes = shape.hidden * (int64_t)weft_dtype_size(dtype);
    it.wire_bytes = it.wire == WEFT_MOE_WIRE_FP8 ? weft_moe_fp8_bytes(shape.hidden) : it.row_bytes;
    it.owner = calloc((size_t)shape.experts, sizeof(int32_t));
    it.local_index = calloc((size_t)shape.experts, sizeof(int32_t));
    for (int e = 0; here && it.owner && it.local_index && e < shape.experts; e++) {
        it.owner[e] = (int32_t)weft_part_of(shape.experts, context->size, e);
        it.local_index[e] = here[it.owner[e]]++;
    }
    /* Factors that depend on the expert, up to what float16 holds exactly; beyond that on its owner. */
    it.standin = (weft_standin){.dtype = dtype,
                                .hidden = shape.hidden,
                                .topk = shape.topk,
                                .owner = shape.experts > 256 ? it.owner : NULL};
    it.expert = weft_standin_expert(&it.standin);
    if (here && it.owner && it.local_index)
        status = make_data(&it, contest);
    if (status && !weft_error(context->group)[0]) /* what the library said has been told */
        bench_say(context, "no memory for %lld tokens of %lld elements", (long long)shape.tokens,
                  (long long)shape.hidden);
    else if (!status)
        status = measure_shape(&it, log_speedup, log_count);
    free_data(&it);
    free(here);
    return status;
}

/* One of the contest's, with rows and tokens divided by --scale. A rank draws 1 to T - 1 tokens. */
static weft_contest_shape contest_shape(const weft_options *options, int index)
{
    weft_contest_shape shape = weft_contest_benches[index];
    double scale = fmax(options->scale, 1);

    shape.hidden = (int64_t)fmax(rint((double)shape.hidden / scale), 1);
    shape.tokens = (int64_t)fmax(rint((double)shape.tokens / scale), 2);
    return shape;
}

/* Whether rounds are measured with experts in them. */
static bool whole_rounds(const weft_options *options)
{
    return options->cuda && asked.inter && asked.tokens;
}

/* What is wrong with the flags, or an empty text. */
static void find_fault(const weft_options *options, const weft_contest_shape *shape, weft_dtype dtype,
                       char *text, size_t bytes)
{
    const char *impl = options->impl;
    bool known = !impl || strcmp(impl, "all") == 0 || strcmp(impl, "auto") == 0;
    weft_dtype stored;

    for (int i = 0; i < 4; i++)
        known = known || strcmp(impl, ladder[i].name) == 0;
    text[0] = 0;
    if (!known)
        snprintf(text, bytes, "--impl %s: must be fused, rows, sorted, reference or all", impl);
    else if (dtype != WEFT_F16 && dtype != WEFT_BF16 && dtype != WEFT_F32)
        snprintf(text, bytes, "--dtype %s: moe sums float16, bfloat16 or float32", weft_dtype_name(dtype));
    else if (moe_wire_fault(options))
        snprintf(text, bytes, "%s", moe_wire_fault(options));
    else if (whole_rounds(options) &&
             (asked_rows || asked_weights || asked.skew > 0 || impl || options->set || options->wire_given ||
              (dtype != WEFT_F16 && dtype != WEFT_BF16)))
        snprintf(
            text, bytes,
            "--inter %lld with --tokens: whole rounds of float16 or bfloat16; --rows, --weights, --skew, "
            "--impl, --wire and --set do not count with it",
            (long long)asked.inter);
    else if (asked_movers && (!whole_rounds(options) || asked_movers % 2))
        snprintf(text, bytes, "--movers %lld: an even number, with --backend cuda, --inter and --tokens",
                 (long long)asked_movers);
    else if (asked.inter && !whole_rounds(options) &&
             (asked.topk || asked.tokens || asked.skew > 0 || asked.mode || impl || options->set ||
              options->wire_given))
        snprintf(text, bytes,
                 "--inter %lld: measures experts alone; --topk, --tokens, --skew, --mode, --impl, --wire and "
                 "--set do not count with it",
                 (long long)asked.inter);
    else if (shape->topk > shape->experts && (!asked.inter || whole_rounds(options)))
        snprintf(text, bytes, "--topk %d: a token has at most %d different experts", shape->topk,
                 shape->experts);
    else if (options->threads > 1 && !asked.inter)
        snprintf(
            text, bytes,
            "--threads %lld: a round runs on one thread of a rank; threads share the products of --inter",
            (long long)options->threads);
    else if (asked_weights && (!asked.inter || !options->cuda))
        snprintf(text, bytes, "--weights %s: stored weights are measured with --inter and --backend cuda",
                 asked_weights);
    else if (asked_weights && (weft_dtype_parse(asked_weights, &stored) || !weft_dtype_is_fp8(stored)))
        snprintf(text, bytes, "--weights %s: weights are stored as fp8_e4m3 or fp8_e5m2", asked_weights);
    else if (asked_rows && !asked.inter)
        snprintf(text, bytes, "--rows %lld: the rows of an expert count with --inter only",
                 (long long)asked_rows);
    else if (options->scale > 0 && !options->set)
        snprintf(text, bytes, "--scale divides the shapes of a set: --set is missing");
    else if (options->set && strcmp(options->set, "contest"))
        snprintf(text, bytes, "--set %s: the set of shapes for moe is contest", options->set);
    else if (options->set && (asked.experts || asked.topk || asked.hidden || asked.tokens))
        snprintf(
            text, bytes,
            "--set contest brings its own --experts, --topk, --hidden and --tokens: give one or the other");
}

int bench_moe_choose(const weft_options *options, bench_moe_choice *choice)
{
    weft_contest_shape shape = {asked.experts ? (int)asked.experts : 256, asked.topk ? (int)asked.topk : 8,
                                asked.hidden ? asked.hidden : 7168, asked.tokens ? asked.tokens : 256};
    const char *mode = asked.mode ? asked.mode : "both";
    char fault[256];

    *choice = (bench_moe_choice){.shape = {shape},
                                 .shapes = 1,
                                 .exact = strcmp(mode, "reduced") != 0,
                                 .reduced = strcmp(mode, "exact") != 0,
                                 .impl = rung_asked(options),
                                 .dtype = options->dtype_given ? options->problem.dtype
                                          : asked.inter        ? WEFT_BF16
                                                               : WEFT_F16,
                                 .wire = wire_asked(options),
                                 .experts = asked.experts ? (int)asked.experts : 8,
                                 .inter = asked.inter,
                                 .round = whole_rounds(options),
                                 .movers = asked_movers,
                                 .rows = asked_rows};
    find_fault(options, &shape, choice->dtype, fault, sizeof fault);
    choice->ladder = strcmp(choice->impl, "fused") != 0;
    if (!asked_weights || weft_dtype_parse(asked_weights, &choice->weights))
        choice->weights = choice->dtype;
    if (!fault[0] && asked.skew > 0)
        snprintf(fault, sizeof fault, "--backend cuda measures rounds of moe without --skew");
    if (!fault[0] && choice->ladder && choice->wire != WEFT_MOE_WIRE_GIVEN)
        snprintf(fault, sizeof fault,
                 "--wire fp8: on GPUs rungs below fused send tokens as they are given; leave --impl %s out",
                 choice->impl);
    if (fault[0])
        return options_error("bench", "%s", fault);
    for (int i = 0; options->set && i < WEFT_CONTEST_BENCHES; i++)
        choice->shape[i] = contest_shape(options, i);
    choice->shapes = options->set ? WEFT_CONTEST_BENCHES : 1;
    return 0;
}

int bench_moe(bench_context *context)
{
    const weft_options *options = context->options;
    bool contest = options->set != NULL;
    weft_dtype dtype = options->dtype_given ? options->problem.dtype : asked.inter ? WEFT_BF16 : WEFT_F16;
    weft_contest_shape shape = {asked.experts ? (int)asked.experts : 256, asked.topk ? (int)asked.topk : 8,
                                asked.hidden ? asked.hidden : 7168, asked.tokens ? asked.tokens : 256};
    double log_speedup = 0, log_count = 0;
    char fault[256];
    int status = 0;

    if (options->cuda)
        return bench_cuda_moe_ranks(context);
    find_fault(options, &shape, dtype, fault, sizeof fault);
    if (fault[0])
        return context->rank ? 2 : options_error("bench", "%s", fault);
    if (context->mpi_asked && (asked.inter || !context->mpi || options->wire_given))
        return bench_say(context,
                         "--peer mpi: MPI is not in these ranks, or stands beside rounds of tokens as "
                         "they are given, not beside --inter or --wire");
    if (asked.inter)
        return bench_moe_experts(context, asked.experts ? asked.experts : 8, shape.hidden, asked.inter,
                                 asked_rows, dtype);
    report_note(&context->report, "moe of %s%s over %d ranks, %s%s%s", weft_dtype_name(dtype),
                options->wire_given ? ", tokens travel as fp8," : "", context->size,
                bench_workers(context, dtype, false), context->mpi && !options->wire_given ? ", beside " : "",
                context->mpi && !options->wire_given ? context->mpi->name : "");
    report_note(
        &context->report,
        "E experts, K of them a token, H elements a row, T tokens a rank; " REPORT_TIME_LEGEND "\n"
        "dispatch, combine: each half on the rank where it takes longest; total: a round, from the last "
        "rank's start to\nthe last rank's end; memcpy: the bytes that the mode must move, copied plainly; "
        "load: "
        "rows of the busiest rank over\nthe mean");
    if (context->options->schedule_all)
        report_note(&context->report,
                    "fused is the rung to use, reference the one to read first: it copies a "
                    "token once, and may pass sorted and rows");
    for (int i = 0; i < (contest ? WEFT_CONTEST_BENCHES : 1) && !status; i++)
        status = bench_shape(context, contest ? contest_shape(options, i) : shape, dtype, contest,
                             &log_speedup, &log_count);
    if (!status && log_count > 1)
        report_note(&context->report,
                    "geometric mean of the speedups of the first row of each shape over sort + MPI: %.2f",
                    exp(log_speedup / log_count));
    return status;
}
