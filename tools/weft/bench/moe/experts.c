/*
 * `weft bench moe --inter`: the feed-forward experts of a rank over their rows, in calls as weft_moe_forward
 * makes them, beside one GEMM of the same work on the same engine. All ranks work at once, as in a layer.
 */
#include "bench/moe/bench_moe.h"

#include "core/dtype.h"
#include "core/round.h"
#include "core/topo.h"
#include "gemm/product.h"
#include "moe/ffn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct experts_subject {
    bench_context *context;
    int64_t experts, hidden, inter, rows;
    weft_dtype dtype;
    weft_moe *moe;
    weft_moe_ffn *ffn;
    weft_moe_expert expert;
    char *x, *y; /* experts x rows x hidden */
    const void **in;
    void **out;
    const weft_binding *bind;
    weft_packed *packed; /* hidden x 3 inter */
    void *workspace;
    float *product; /* experts * rows x 3 inter */
    const int32_t *local;
} experts_subject;

static size_t rounded(size_t bytes)
{
    return weft_round_up_bytes(bytes, WEFT_GEMM_ALIGNMENT);
}

static int run_grouped(void *argument, int iteration)
{
    experts_subject *it = argument;

    (void)iteration;
    for (int64_t e = 0; e < it->experts; e++)
        for (int64_t done = 0, rows; done < it->rows; done += rows) {
            rows = weft_moe_next_call(it->expert.expert_rows, it->rows - done);
            it->expert.block(it->expert.context, it->local[e], rows, it->in + e * it->rows + done,
                             it->out + e * it->rows + done);
        }
    return 0;
}

static int run_single(void *argument, int iteration)
{
    experts_subject *it = argument;
    weft_gemm_tile tile = weft_gemm_tile_init(it->bind, it->dtype);

    (void)iteration;
    tile.m = it->experts * it->rows;
    tile.n = 3 * it->inter;
    tile.k = it->hidden;
    tile.a = it->x;
    tile.a_rs = it->hidden;
    tile.a_cs = 1;
    tile.packed_b = it->packed;
    tile.d_dtype = WEFT_F32;
    tile.d[0] = it->product;
    tile.d_ld[0] = tile.n;
    if (it->context->threads > 1) {
        weft_error_text error;

        return weft_product_run(&(weft_product){.tile = tile, .batch = 1, .threads = it->context->threads},
                                &error) != WEFT_OK;
    }
    weft_gemm_run_tile(&tile, it->workspace);
    return 0;
}

static void fill_random(bench_context *context, weft_dtype dtype, void *memory, int64_t count)
{
    uint64_t state = bench_random(context);

    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        weft_element_set(dtype, memory, (size_t)i, ((double)(state >> 40) * 0x1p-24 - 0.5) * 0.05);
    }
}

/* One row of one expert against loops in double. */
static bool row_right(experts_subject *it, const void *const w[3], int64_t row)
{
    int64_t hidden = it->hidden, inter = it->inter;
    double *mid = calloc((size_t)inter * 2, sizeof(double)), worst = 0, largest = 0;
    double bound = it->dtype == WEFT_F32 ? 1e-4 : it->dtype == WEFT_F16 ? 1e-2 : 5e-2;

    for (int64_t h = 0; mid && h < hidden; h++) {
        double x = weft_element_get(it->dtype, it->x, (size_t)(row * hidden + h));

        for (int64_t i = 0; i < inter; i++) {
            mid[i] += x * weft_element_get(it->dtype, w[0], (size_t)(h * inter + i));
            mid[inter + i] += x * weft_element_get(it->dtype, w[1], (size_t)(h * inter + i));
        }
    }
    for (int64_t i = 0; mid && i < inter; i++)
        mid[i] = mid[i] / (1 + exp(-mid[i])) * mid[inter + i];
    for (int64_t h = 0; mid && h < hidden; h += 97) {
        double sum = 0;

        for (int64_t i = 0; i < inter; i++)
            sum += mid[i] * weft_element_get(it->dtype, w[2], (size_t)(i * hidden + h));
        largest = fmax(largest, fabs(sum));
        worst = fmax(worst, fabs(sum - weft_element_get(it->dtype, it->y, (size_t)(row * hidden + h))));
    }
    free(mid);
    return largest > 0 && worst <= bound * largest;
}

static int open_layer(experts_subject *it, const void *const w[3])
{
    bench_context *context = it->context;
    weft_moe_config config;
    const void **same[3];
    int status = 0;

    weft_moe_config_init(&config);
    config.experts = (int)it->experts * context->size;
    config.topk = 1;
    config.hidden = it->hidden;
    config.tokens = 1;
    config.dtype = it->dtype;
    config.threads = context->threads;
    if (weft_moe_create(context->group, &config, &it->moe) != WEFT_OK)
        return bench_fail(context, "moe");
    for (int m = 0; m < 3; m++) {
        same[m] = malloc((size_t)it->experts * sizeof(void *));
        for (int64_t e = 0; same[m] && e < it->experts; e++)
            same[m][e] = w[m];
    }
    if (!same[0] || !same[1] || !same[2] ||
        weft_moe_ffn_create(it->moe, it->inter, same[0], same[1], same[2], &it->ffn) != WEFT_OK)
        status = bench_fail(context, "packing");
    for (int m = 0; m < 3; m++)
        free(same[m]);
    weft_moe_local_experts(it->moe, &it->local);
    if (!status)
        it->expert.size = sizeof(it->expert);
    weft_moe_ffn_expert(it->ffn, &it->expert);
    return status;
}

/* `weights`: hidden x 3 inter of them, whichever they are, for the one GEMM. */
static bool allocate(experts_subject *it, const void *weights)
{
    size_t size = weft_dtype_size(it->dtype), total = (size_t)(it->experts * it->rows);
    size_t row = (size_t)it->hidden * size;
    const weft_core *core;
    weft_error_text error;

    if (weft_core_current(&core, &error) != WEFT_OK)
        return false;
    it->bind = weft_core_binding(core, it->dtype, false);
    it->x = aligned_alloc(WEFT_GEMM_ALIGNMENT, rounded(total * row));
    it->y = aligned_alloc(WEFT_GEMM_ALIGNMENT, rounded(total * row));
    it->in = malloc(total * sizeof(void *));
    it->out = malloc(total * sizeof(void *));
    it->packed =
        aligned_alloc(WEFT_GEMM_ALIGNMENT, rounded(weft_packed_bytes(it->bind, it->hidden, 3 * it->inter)));
    it->workspace = aligned_alloc(
        WEFT_GEMM_ALIGNMENT,
        rounded(weft_gemm_workspace_bytes(it->bind, (int64_t)total, 3 * it->inter, it->hidden, true)));
    it->product = aligned_alloc(WEFT_GEMM_ALIGNMENT, rounded(total * 3 * (size_t)it->inter * sizeof(float)));
    if (!it->x || !it->y || !it->in || !it->out || !it->packed || !it->workspace || !it->product)
        return false;
    weft_packed_begin(it->bind, it->hidden, 3 * it->inter, it->packed);
    weft_packed_fill(it->bind, it->packed, weights, it->dtype, 3 * it->inter, 1, 0, it->hidden, 0,
                     3 * it->inter);
    for (size_t i = 0; i < total; i++) {
        it->in[i] = it->x + i * row;
        it->out[i] = it->y + i * row;
    }
    fill_random(it->context, it->dtype, it->x, (int64_t)total * it->hidden);
    return true;
}

static void release(experts_subject *it)
{
    free(it->x);
    free(it->y);
    free(it->in);
    free(it->out);
    free(it->packed);
    free(it->workspace);
    free(it->product);
}

static int measure_rows(experts_subject *it, const void *const w[3])
{
    static const report_column columns[] = {
        {"experts", "experts", REPORT_PLAIN, 8},
        {"H", "hidden", REPORT_PLAIN, 6},
        {"inter", "inter", REPORT_PLAIN, 6},
        {"rows each", "rows", REPORT_PLAIN, 10},
        {"grouped µs", "us", REPORT_TIME, 18},
        {"Gop/s", "gflops", REPORT_RATE, 8},
        {"one GEMM µs", "engine_us", REPORT_TIME, 18},
        {"Gop/s", "engine_gflops", REPORT_RATE, 8},
        {"of engine", "of_engine", REPORT_PERCENT, 10},
        {"ok", "ok", REPORT_PLAIN, 4},
        {NULL, NULL, REPORT_PLAIN, 0},
    };
    report *out = &it->context->report;
    double work = 6.0 * (double)it->experts * (double)it->rows * (double)it->hidden * (double)it->inter;
    bench_contender contenders[] = {
        {.name = "grouped", .argument = it, .run = run_grouped},
        {.name = "one GEMM", .argument = it, .run = run_single},
    };
    bool failed = !allocate(it, w[0]), ok;

    if (bench_max(it->context, failed) != 0)
        return bench_say(it->context, "no memory for %lld rows of %lld elements",
                         (long long)(it->experts * it->rows), (long long)it->hidden);
    if (bench_measure(it->context, contenders, 2, 1, 15, "moe experts") != 0)
        return 1;
    ok = row_right(it, w, 0) && row_right(it, w, it->experts * it->rows - 1);
    ok = bench_max(it->context, ok ? 0 : 1) == 0;
    out->columns = columns;
    report_text(out, "op", "moe_experts");
    report_text(out, "backend", "cpu");
    report_int(out, "ranks", it->context->size);
    report_int(out, "threads", it->context->threads);
    report_text(out, "dtype", "%s", weft_dtype_name(it->dtype));
    report_int(out, "experts", it->experts);
    report_int(out, "hidden", it->hidden);
    report_int(out, "inter", it->inter);
    report_int(out, "rows", it->rows);
    report_time(out, "us", contenders[0].stats);
    report_real(out, "gflops", work / contenders[0].stats.median * 1e-3);
    report_time(out, "engine_us", contenders[1].stats);
    report_real(out, "engine_gflops", work / contenders[1].stats.median * 1e-3);
    report_real(out, "of_engine", 100 * contenders[1].stats.median / contenders[0].stats.median);
    report_bool(out, "ok", ok);
    report_row(out);
    return 0;
}

int bench_moe_experts(bench_context *context, int64_t experts, int64_t hidden, int64_t inter, int64_t rows,
                      weft_dtype dtype)
{
    experts_subject it = {.context = context,
                          .experts = experts,
                          .hidden = hidden,
                          .inter = inter,
                          .rows = rows,
                          .dtype = dtype};
    int64_t elements = hidden * inter;
    size_t bytes = (size_t)elements * weft_dtype_size(dtype);
    /* Each rank has the weights, those of every expert packed, and packed for the one GEMM. Where they do not
     * fit the system would grant them, and end somebody when they are touched. */
    bool fits =
        3.0 * (double)bytes * (double)(experts + 2) * context->size < 0.75 * (double)weft_topo_memory_bytes();
    char *all = fits ? malloc(3 * bytes) : NULL; /* gate, up and down, one after another */
    const void *const w[3] = {all, all ? all + bytes : NULL, all ? all + 2 * bytes : NULL};
    int status;

    if (bench_max(context, !all) != 0) {
        free(all);
        return bench_say(context, "no memory for experts of %lld x %lld", (long long)hidden,
                         (long long)inter);
    }
    report_note(
        &context->report,
        "experts (gate, up, down) of %s on each of %d ranks, %s\n" REPORT_TIME_LEGEND
        "; one GEMM: the same work as one product with as many rows; of engine: its time over grouped's",
        weft_dtype_name(dtype), context->size, bench_workers(context, dtype, true));
    fill_random(context, dtype, all, 3 * elements);
    status = open_layer(&it, w);
    for (int64_t r = rows ? rows : 8; r <= (rows ? rows : 512) && !status; r *= 2) {
        it.rows = r;
        status = measure_rows(&it, w);
        release(&it);
    }
    weft_moe_ffn_free(it.ffn);
    weft_moe_free(it.moe);
    free(all);
    return status;
}
