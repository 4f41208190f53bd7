/*
 * The collectives with --link: rank 0 of `-n` in the loop (loop.h). Each schedule is
 * checked on small integers, every element, what peers store at the rank included; then graphs of many runs
 * are replayed, and what the last one leaves is checked again.
 *
 * The bound is what the best schedule must move in one direction over the link's rate, and a latency for each
 * of its hops: of all_reduce the faster of everything from everyone in one hop and slices in two.
 */
#include "bench/cuda/bench_cuda.h"
#include "bench/cuda/collective_data.h"
#include "bench/cuda/failed.h"
#include "bench/cuda/loop.h"
#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/done.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GRAPHS = 15, SCHEDULES_MOST = 8, OPERANDS_MOST = 4 };

static const report_column columns[] = {{"bytes", "bytes", REPORT_PLAIN, 9},
                                        {"impl", "impl", REPORT_PLAIN, 13},
                                        {"time µs", "us", REPORT_TIME, 14},
                                        {"bound µs", "bound_us", REPORT_RATE, 8},
                                        {"÷ bound", "over_bound", REPORT_RATIO, 8},
                                        {"bus GB/s", "busbw_gbs", REPORT_RATE, 8},
                                        {"ok", "ok", REPORT_PLAIN, 3},
                                        {NULL, NULL, REPORT_PLAIN, 0}};

typedef struct link_bench {
    loop_gpu gpu;
    collective_data data;
    report report;
} link_bench;

/* One schedule of one size. */
typedef struct collective {
    loop loop;
    uint32_t sent[LOOP_RANKS_MOST], heard[LOOP_RANKS_MOST]; /* DONE: see link.h */
    weft_cuda_executor executor;
    double link_bytes;    /* that the link carries in a run, in one direction */
    CUdeviceptr expected; /* what recv is to be in the end */
    char *results;        /* the same on the host */
} collective;

/* ---- the ranks' memory --------------------------------------------------------------------------------- */

static int make_parts(link_bench *b, collective *c)
{
    const weft_plan_part *part = &c->loop.parts[0];

    if (loop_make_parts(&b->gpu, &c->loop, &b->data.problem, b->data.world))
        return 1;
    for (uint32_t i = 0; i < part->post_count && !weft_schedule_is_packets(part->problem.schedule); i++)
        if (part->posts[i].rank != 0 && part->posts[i].signal >= 2 * (uint32_t)b->data.world)
            return options_error(
                "bench", "--link: %s of %s waits for its peers half-way, and cannot run alone",
                weft_schedule_name(part->problem.op, part->problem.schedule), weft_op_name(part->problem.op));
    return 0;
}

static int make_memory(link_bench *b, collective *c)
{
    const weft_plan_part *part = &c->loop.parts[0];
    size_t bytes[OPERANDS_MOST];

    if (part->operand_count > OPERANDS_MOST)
        return failed(&b->gpu.error, weft_error_set(&b->gpu.error, WEFT_ERR_UNSUPPORTED,
                                                    "a plan of %u operands", part->operand_count));
    for (uint32_t o = 0; o < part->operand_count; o++)
        bytes[o] = part->operands[o].place == WEFT_PLACE_STAGING
                       ? weft_cuda_inbox_bytes(part, (weft_cuda_wire){true, true})
                       : (size_t)(weft_operand_rows(&part->operands[o], part->world, 0) *
                                  weft_operand_cols(&part->operands[o], part->world, 0)) *
                             b->data.element;
    return loop_make_memory(&b->gpu, &c->loop, bytes, 0, 0, NULL);
}

/* What every rank sends, and what rank 0 is to have in the end. */
static int fill(link_bench *b, collective *c)
{
    const collective_data *d = &b->data;
    size_t send = (size_t)d->send_elems * d->element, recv = (size_t)d->recv_elems * d->element;
    char *host = malloc(send > recv ? send : recv);
    int status =
        host ? 0
             : failed(&b->gpu.error, weft_error_set(&b->gpu.error, WEFT_ERR_MEMORY, "no memory for buffers"));

    for (int r = 0; r < d->world && !status; r++) {
        for (int64_t i = 0; i < d->send_elems; i++)
            weft_element_set(d->problem.dtype, host, (size_t)i, collective_data_value(d, r, i));
        status = loop_put(&b->gpu, c->loop.places[r].base, host, send);
    }
    c->results = malloc(recv + 1);
    if (!status && !c->results)
        status =
            failed(&b->gpu.error, weft_error_set(&b->gpu.error, WEFT_ERR_MEMORY, "no memory for results"));
    for (int64_t i = 0; i < d->recv_elems && !status; i++)
        weft_element_set(d->problem.dtype, c->results, (size_t)i, collective_data_expected(d, 0, i));
    if (!status)
        status = failed(&b->gpu.error, weft_cuda_check(b->gpu.device.cu,
                                                       b->gpu.device.cu->cuMemAlloc(&c->expected, recv + 16),
                                                       "cuMemAlloc", &b->gpu.error)) ||
                 loop_put(&b->gpu, (void *)(uintptr_t)c->expected, c->results, recv);
    free(host);
    return status;
}

/* ---- its peers ----------------------------------------------------------------------------------------- */

/* What stands for peers, before it goes to the GPU. */
typedef struct peer_tables {
    weft_cuda_link_lane *lanes;
    weft_cuda_link_store *stores;
    uint32_t lane_count, store_count;
    double bytes; /* in one direction */
    bool reads;
} peer_tables;

static double region_bytes(const link_bench *b, const weft_region *region)
{
    return (double)(region->rows * region->cols) * (double)b->data.element;
}

/* What rank 0 reads of its peers. */
static void add_reads(const link_bench *b, const weft_plan_part *part, peer_tables *t)
{
    for (uint32_t i = 0; i < part->task_count; i++) {
        const weft_task *task = &part->tasks[i];
        const weft_region *regions = weft_task_regions(part, task);

        for (uint32_t j = task->destinations; j < task->region_count; j++)
            if (regions[j].rank != 0 && region_bytes(b, &regions[j]) > 0) {
                t->bytes += region_bytes(b, &regions[j]);
                t->reads = true;
            }
    }
}

/* What a lane of a peer stores at rank 0. */
static void add_stores(const link_bench *b, const collective *c, const weft_plan_part *part, uint32_t lane,
                       peer_tables *t)
{
    for (uint32_t i = 0; i < part->lanes[lane].task_count; i++) {
        const weft_task *task = &part->tasks[part->lanes[lane].task0 + i];
        const weft_region *regions = weft_task_regions(part, task);

        for (uint32_t j = 0; j < task->destinations; j++) {
            const weft_cuda_place *place = &c->loop.places[regions[j].operand * (uint32_t)part->world];
            int64_t at = (regions[j].row0 * place->ld + regions[j].col0) * (int64_t)b->data.element;

            if (regions[j].rank != 0 || region_bytes(b, &regions[j]) <= 0)
                continue;
            t->bytes += region_bytes(b, &regions[j]);
            t->stores[t->store_count++] =
                (weft_cuda_link_store){.from = (const char *)(uintptr_t)c->expected + at,
                                       .to = (char *)place->base + at,
                                       .bytes = (int64_t)region_bytes(b, &regions[j])};
        }
    }
}

static bool touches(const weft_plan_part *part, uint32_t lane, int rank)
{
    for (uint32_t i = 0; i < part->lanes[lane].task_count; i++) {
        const weft_task *task = &part->tasks[part->lanes[lane].task0 + i];

        for (uint32_t j = 0; j < task->region_count; j++)
            if (weft_task_regions(part, task)[j].rank == rank)
                return true;
    }
    return false;
}

/* Lane by lane, each peer's first ones first. What the link carries is divided evenly among them: which lane
 * of rank 0 has said DONE is not known, only how many. */
static void gather_lanes(const link_bench *b, const collective *c, peer_tables *t)
{
    add_reads(b, &c->loop.parts[0], t);
    for (uint32_t index = 0; index < t->lane_count; index++) {
        t->lanes[index].store0 = t->store_count;
        for (int r = 1; r < b->data.world; r++) {
            uint32_t seen = 0;

            for (uint32_t lane = 0; lane < c->loop.parts[r].lane_count; lane++)
                if (touches(&c->loop.parts[r], lane, 0) && seen++ == index)
                    add_stores(b, c, &c->loop.parts[r], lane, t);
        }
        t->lanes[index].store_count = t->store_count - t->lanes[index].store0;
    }
    for (uint32_t index = 0; index < t->lane_count; index++) {
        t->lanes[index].busy_ns = (int64_t)(t->bytes / t->lane_count / b->gpu.bytes_per_ns + 0.5);
        t->lanes[index].latency_ns = (int64_t)((t->reads ? 2 : 1) * b->gpu.latency_ns);
    }
}

static int make_signal_peers(link_bench *b, collective *c)
{
    uint32_t regions = 0;
    peer_tables t = {.lane_count = 1};
    int status;

    for (int r = 0; r < b->data.world; r++) {
        uint32_t sent = weft_cuda_done_lanes(&c->loop.parts[0], r),
                 heard = weft_cuda_done_lanes(&c->loop.parts[r], 0);

        /* a rank that is never touched is told so by ENTER */
        c->sent[r] = sent ? sent : 1;
        c->heard[r] = heard ? heard : 1;
        regions += c->loop.parts[r].region_count;
        if (r > 0 && c->sent[r] > t.lane_count)
            t.lane_count = c->sent[r];
        if (r > 0 && c->heard[r] > t.lane_count)
            t.lane_count = c->heard[r];
    }
    t.lanes = calloc(t.lane_count, sizeof(*t.lanes));
    t.stores = calloc(regions + 1, sizeof(*t.stores));
    status = t.lanes && t.stores
                 ? 0
                 : failed(&b->gpu.error, weft_error_set(&b->gpu.error, WEFT_ERR_MEMORY,
                                                        "no memory for %u lanes", t.lane_count));
    if (!status) {
        void *at[4] = {0};

        gather_lanes(b, c, &t);
        c->link_bytes = t.bytes;
        c->loop.peers_grid = t.lane_count + 1;
        status =
            loop_load_peers(&b->gpu, &c->loop, (const void *[]){t.lanes, t.stores, c->sent, c->heard},
                            (size_t[]){t.lane_count * sizeof(*t.lanes), t.store_count * sizeof(*t.stores),
                                       sizeof(c->sent), sizeof(c->heard)},
                            4, at);
        c->loop.peers.lanes = at[0];
        c->loop.peers.stores = at[1];
        c->loop.peers.sent = at[2];
        c->loop.peers.heard = at[3];
    }
    free(t.lanes);
    free(t.stores);
    c->loop.peers.signals = c->loop.signals[0];
    c->loop.peers.stride = (int64_t)(c->loop.heap.stride / sizeof(uint64_t));
    return status;
}

/* Every peer's payload for rank 0, in packets. */
static int make_packet_peers(link_bench *b, collective *c)
{
    const weft_cuda_packets *p = &c->executor.packets;
    int64_t packets = p->row_bytes / WEFT_CUDA_PACKET_BYTES;
    char *payload = calloc((size_t)(b->data.world * packets), WEFT_CUDA_PACKET_PAYLOAD);
    void *at[1] = {0};
    int status = payload ? 0
                         : failed(&b->gpu.error,
                                  weft_error_set(&b->gpu.error, WEFT_ERR_MEMORY, "no memory for packets"));

    for (int r = 1; r < b->data.world && !status; r++)
        for (int64_t i = 0; i < b->data.problem.count;
             i++) /* where send has a row for each rank, the first one */
            weft_element_set(b->data.problem.dtype, payload + r * packets * WEFT_CUDA_PACKET_PAYLOAD,
                             (size_t)i, collective_data_value(&b->data, r, i));
    c->loop.peers_grid = weft_cuda_packets_grid(p);
    if (!status)
        status =
            loop_load_peers(&b->gpu, &c->loop, (const void *[]){payload},
                            (size_t[]){(size_t)(b->data.world * packets * WEFT_CUDA_PACKET_PAYLOAD)}, 1, at);
    free(payload);
    if (status)
        return status;
    c->link_bytes = (double)((b->data.world - 1) * packets * WEFT_CUDA_PACKET_BYTES);
    c->loop.peers.payload = at[0];
    c->loop.peers.watched = p->peer[1].to;
    c->loop.peers.inbox = (char *)(uintptr_t)p->inbox;
    c->loop.peers.packets = packets;
    c->loop.peers.chunk_packets = p->chunk_packets;
    c->loop.peers.row_bytes = p->row_bytes;
    c->loop.peers.parity_bytes = p->parity_bytes;
    c->loop.peers.busy_ps =
        (int64_t)((b->data.world - 1) * WEFT_CUDA_PACKET_BYTES * 1e3 / b->gpu.bytes_per_ns);
    return 0;
}

static int64_t lines_of(int64_t bytes)
{
    return weft_divide_up(bytes, weft_cuda_line_payload(true));
}

static double value_of(const void *context, int peer, bool result, int64_t index)
{
    const link_bench *b = context;

    return result ? collective_data_expected(&b->data, 0, index)
                  : collective_data_value(&b->data, peer, index);
}

/* Every peer's lines for rank 0, of each hop. */
static int make_line_peers(link_bench *b, collective *c)
{
    const weft_cuda_packets *p = &c->executor.packets;
    int status = 0, hops = p->results ? 2 : 1;
    int64_t chunks = weft_cuda_packets_grid(p);
    size_t bytes[2] = {(size_t)p->parity_bytes, (size_t)p->parity_bytes};
    char *images = calloc(2, (size_t)p->parity_bytes + 16);
    void *at[2] = {0};

    if (!images)
        status = failed(&b->gpu.error, weft_error_set(&b->gpu.error, WEFT_ERR_MEMORY, "no memory for lines"));
    for (int hop = 0; hop < hops; hop++)
        for (int r = 1; r < b->data.world && !status; r++)
            status = loop_fill_lines(&b->gpu, p, b->data.problem.dtype, r, hop == 1, value_of, b,
                                     images + hop * p->parity_bytes + r * p->row_bytes);
    c->loop.peers.chunks = weft_divide_up(chunks, WEFT_CUDA_LINK_LINES_CTAS);
    c->loop.peers_grid = (unsigned)weft_divide_up(chunks, c->loop.peers.chunks);
    if (!status)
        status =
            loop_load_peers(&b->gpu, &c->loop, (const void *[]){images, images + bytes[0]}, bytes, 2, at);
    free(images);
    if (status)
        return status;
    c->link_bytes = (double)(b->data.world - 1) * (double)p->row_bytes * hops;
    c->loop.peers.hop[0] = (weft_cuda_link_hop){.images = at[0],
                                                .watched = p->peer[1].to,
                                                .inbox = (char *)(uintptr_t)p->inbox,
                                                .lines = lines_of(p->peer[0].bytes),
                                                .watched_lines = lines_of(p->peer[1].bytes)};
    if (p->results)
        c->loop.peers.hop[1] = (weft_cuda_link_hop){.images = at[1],
                                                    .watched = p->peer[1].back,
                                                    .inbox = (char *)(uintptr_t)p->results,
                                                    .lines = lines_of(p->peer[1].bytes),
                                                    .watched_lines = lines_of(p->peer[0].bytes)};
    c->loop.peers.chunk_packets = p->chunk_packets;
    c->loop.peers.row_bytes = p->row_bytes;
    c->loop.peers.parity_bytes = p->parity_bytes;
    c->loop.peers.busy_ps = (int64_t)((b->data.world - 1) * WEFT_CUDA_LINE_BYTES * 1e3 / b->gpu.bytes_per_ns);
    return 0;
}

static int make_collective(link_bench *b, collective *c)
{
    weft_cuda_limits limits = {5, 5};
    weft_cuda_binding binding = {0};

    if (make_parts(b, c) || make_memory(b, c) || fill(b, c))
        return 1;
    for (int r = 0; r < b->data.world; r++)
        c->heard[r] = weft_cuda_done_lanes(&c->loop.parts[r], 0);
    binding = (weft_cuda_binding){
        .places = c->loop.places, .signals = c->loop.signals, .done_posts = c->heard, .wire = {true, true}};
    if (failed(&b->gpu.error,
               weft_cuda_executor_make(&b->gpu.device, &c->loop.parts[0], &binding, c->loop.controls,
                                       b->gpu.device.crews, &limits, &c->executor, &b->gpu.error)))
        return 1;
    if (c->executor.kind == WEFT_CUDA_PACKETS)
        weft_cuda_packets_bind(&c->executor.packet_rows, c->loop.places[0].base,
                               c->loop.places[b->data.world].base, &c->executor.packets);
    c->loop.peers.notice_ns =
        c->executor.kind == WEFT_CUDA_PACKETS ? WEFT_CUDA_LINK_PACKET_NS : WEFT_CUDA_LINK_SIGNAL_NS;
    return c->executor.kind != WEFT_CUDA_PACKETS ? make_signal_peers(b, c)
           : c->executor.packets.lines           ? make_line_peers(b, c)
                                                 : make_packet_peers(b, c);
}

static void free_collective(const link_bench *b, collective *c)
{
    weft_cuda_executor_free(&c->executor);
    if (c->expected)
        b->gpu.device.cu->cuMemFree(c->expected);
    loop_free(&b->gpu, &c->loop);
    free(c->results);
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

static int launch(link_bench *b, collective *c)
{
    return failed(&b->gpu.error, weft_cuda_executor_launch(&c->executor, b->gpu.stream, &b->gpu.error));
}

static int replay(link_bench *b, collective *c)
{
    return loop_replay(&b->gpu, &c->loop);
}

/* So many runs with recv poisoned before, every element compared. */
static int check(link_bench *b, collective *c, int runs, int (*start)(link_bench *, collective *), bool *ok)
{
    const collective_data *d = &b->data;
    size_t bytes = (size_t)d->recv_elems * d->element;
    void *recv = c->loop.places[d->world].base;
    char *host = malloc(bytes + 1);
    int status =
        host ? 0
             : failed(&b->gpu.error, weft_error_set(&b->gpu.error, WEFT_ERR_MEMORY, "no memory for results"));

    if (!status) {
        memset(host, 0xa5, bytes);
        status = loop_put(&b->gpu, recv, host, bytes) ||
                 loop_start_peers(&b->gpu, &c->loop, &c->executor, (uint32_t)runs) || start(b, c) ||
                 loop_end(&b->gpu, &c->executor) || loop_take(&b->gpu, host, recv, bytes);
        *ok &= status || memcmp(host, c->results, bytes) == 0;
    }
    free(host);
    return status;
}

static int measure(link_bench *b, collective *c, report_stats *stats)
{
    double samples[GRAPHS];

    if (loop_measure(&b->gpu, &c->loop, &c->executor, b->data.calls, GRAPHS, samples))
        return 1;
    *stats = report_summarise(samples, GRAPHS);
    return 0;
}

static void print_row(link_bench *b, const collective *c, int64_t bytes, report_stats stats, bool ok)
{
    const weft_problem *p = &c->loop.parts[0].problem;
    bool sums = p->op == WEFT_OP_ALL_REDUCE;
    double w = b->data.world, latency = b->gpu.latency_ns, rate = b->gpu.bytes_per_ns, n = (double)bytes,
           shared = (w - 1) / w * n;
    double bound =
        sums ? fmin((w - 1) * n / rate + latency, 2 * shared / rate + 2 * latency) : shared / rate + latency;

    report_text(&b->report, "op", "%s", weft_op_name(p->op));
    report_text(&b->report, "backend", "cuda");
    report_text(&b->report, "how", "one rank in the loop, emulated link");
    report_int(&b->report, "ranks", b->data.world);
    report_text(&b->report, "dtype", "%s", weft_dtype_name(p->dtype));
    report_int(&b->report, "bytes", bytes);
    report_text(&b->report, "impl", "%s", weft_schedule_name(p->op, p->schedule));
    report_time(&b->report, "us", stats);
    report_real(&b->report, "bound_us", bound * 1e-3);
    report_real(&b->report, "over_bound", stats.median / (bound * 1e-3));
    report_int(&b->report, "link_bytes", (int64_t)c->link_bytes);
    report_real(&b->report, "busbw_gbs", (sums ? 2 : 1) * shared / stats.median * 1e-3);
    report_bool(&b->report, "ok", ok);
    report_row(&b->report);
}

static int measure_schedule(link_bench *b, weft_schedule schedule, int64_t bytes)
{
    collective c = {0};
    report_stats stats = {0};
    bool ok = true;
    int status;

    b->data.problem.schedule = schedule;
    status = make_collective(b, &c) || check(b, &c, 1, launch, &ok) || check(b, &c, 1, launch, &ok) ||
             loop_capture(&b->gpu, &c.loop, &c.executor, 1, b->data.calls) || measure(b, &c, &stats) ||
             check(b, &c, b->data.calls, replay, &ok);
    if (!status)
        print_row(b, &c, bytes, stats, ok);
    free_collective(b, &c);
    return status;
}

static int run(link_bench *b, const weft_options *options)
{
    int64_t first = options->bytes_first ? options->bytes_first : 1024,
            last = options->bytes_first ? options->bytes_last : 16 << 20;
    weft_schedule schedules[SCHEDULES_MOST];
    int count = bench_cuda_schedules(options, true, schedules), status = 0;

    if (loop_gpu_begin(&b->gpu))
        return 1;
    report_note(
        &b->report,
        "%s of %s, one rank of %d in the loop over an emulated link of %g GB/s and %g µs on %s, in graphs",
        options->op_name, weft_dtype_name(b->data.problem.dtype), b->data.world, b->gpu.bytes_per_ns,
        b->gpu.latency_ns * 1e-3, b->gpu.device.name);
    report_note(&b->report,
                REPORT_TIME_LEGEND "; bound: what the best schedule must move over the link at its rate, and "
                                   "a latency for\neach of its hops; bus GB/s: bytes that cross the "
                                   "rank's border over the time");
    for (int64_t bytes = first; bytes <= last && !status; bytes *= 2)
        for (int i = 0; i < count && !status; i++)
            status =
                measure_schedule(b, schedules[i], collective_data_size(&b->data, bytes, options->iterations));
    return status;
}

int bench_cuda_collective_link(const weft_options *options, const bench_link *link, report_page *page)
{
    link_bench b = {.gpu = {.bytes_per_ns = link->bytes_per_ns, .latency_ns = link->latency_ns},
                    .data = {.problem = options->problem, .world = (int)options->ranks}};
    int status, closed;

    if (bench_cuda_refuses(options, link, true))
        return 2;
    if (b.data.world < 2 || b.data.world > LOOP_RANKS_MOST)
        return options_error("bench", "--link: %d ranks: there may be 2 to %d", b.data.world,
                             LOOP_RANKS_MOST);
    if (loop_gpu_open(&b.gpu) != WEFT_OK)
        return options_error("bench", "--backend cuda: %s", b.gpu.error.text);
    report_open(&b.report, stdout, options->json, columns);
    b.report.page = page;
    status = run(&b, options);
    closed = report_close(&b.report);
    emulated_free(&b.gpu.device, &b.gpu.emulated);
    weft_cuda_device_close(&b.gpu.device);
    return status ? status : closed;
}
