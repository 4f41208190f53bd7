/*
 * The collectives with --link: rank 0 of `-n` runs with the whole GPU, as the library would run it; its peers
 * are their memory, and what they would send comes over an emulated link (run/cuda/link.h). Each schedule is
 * checked on small integers, every element, what peers store at the rank included; then graphs of many runs
 * are replayed, and what the last one leaves is checked again.
 *
 * The bound is what the best schedule must move in one direction over the link's rate, and a latency for each
 * of its hops: of all_reduce the faster of everything from everyone in one hop and slices in two.
 */
#include "bench/cuda/bench_cuda.h"
#include "bench/cuda/failed.h"
#include "bench/cuda/graph.h"

#include "bench/cuda/collective_data.h"
#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/choose.h"
#include "run/cuda/done.h"
#include "run/cuda/executor.h"
#include "run/cuda/heap.h"
#include "run/cuda/link.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS_MOST = 1 + WEFT_CUDA_LINK_PEERS,
    GRAPHS = 15,
    SCHEDULES_MOST = 8,
    OPERANDS_MOST = 4,
    ANSWER_SECONDS = 8
};

static const report_column columns[] = {{"bytes", "bytes", REPORT_PLAIN, 9},
                                        {"impl", "impl", REPORT_PLAIN, 13},
                                        {"time µs", "us", REPORT_TIME, 14},
                                        {"bound µs", "bound_us", REPORT_RATE, 8},
                                        {"÷ bound", "over_bound", REPORT_RATIO, 8},
                                        {"bus GB/s", "busbw_gbs", REPORT_RATE, 8},
                                        {"ok", "ok", REPORT_PLAIN, 3},
                                        {NULL, NULL, REPORT_PLAIN, 0}};

typedef struct link_bench {
    const bench_link *link;
    weft_cuda_device device;
    collective_data data;
    CUstream stream, side; /* of the rank, and of what stands for its peers */
    CUevent begin, end;
    report report;
    weft_error_text error;
} link_bench;

/* One schedule of one size. */
typedef struct loop {
    weft_plan_part parts[RANKS_MOST];
    weft_cuda_heap heap;
    weft_cuda_place *places; /* [operand * world + rank] */
    uint64_t *signals[RANKS_MOST];
    weft_cuda_control *controls[RANKS_MOST];
    uint32_t sent[RANKS_MOST], heard[RANKS_MOST]; /* DONE: see link.h */
    weft_cuda_executor executor;
    weft_cuda_link peers;
    unsigned peers_grid;
    double link_bytes;            /* that the link carries in a run, in one direction */
    CUdeviceptr tables, expected; /* what recv is to be in the end */
    char *results;                /* the same on the host */
    gpu_graph runs;
} loop;

static int put(link_bench *b, CUdeviceptr to, const void *from, size_t bytes)
{
    TRY(cuMemcpyHtoDAsync(to, from, bytes, b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}

static CUdeviceptr device_at(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

/* ---- the ranks' memory --------------------------------------------------------------------------------- */

static int make_parts(link_bench *b, loop *l)
{
    weft_cuda_basis basis = {.world = b->data.world,
                             .crews = b->device.crews,
                             .hopper = b->device.hopper,
                             .whole = true,
                             .adds = true};
    weft_problem asked, resolved;

    if (failed(&b->error, weft_problem_resolve(&b->data.problem, b->data.world, &asked, &b->error)))
        return 1;
    resolved = weft_cuda_choose(&basis, &asked);
    for (int r = 0; r < b->data.world; r++)
        if (failed(&b->error, weft_plan_make(&resolved, b->data.world, r, &l->parts[r], &b->error)))
            return 1;
    for (uint32_t i = 0; i < l->parts[0].post_count && !weft_schedule_is_packets(resolved.schedule); i++)
        if (l->parts[0].posts[i].rank != 0 && l->parts[0].posts[i].signal >= 2 * (uint32_t)b->data.world)
            return options_error(
                "bench", "--link: %s of %s waits for its peers half-way, and cannot run alone",
                weft_schedule_name(resolved.op, resolved.schedule), weft_op_name(resolved.op));
    return 0;
}

/* Operands, signals and control block, at the same place of every rank's slot. */
static int make_memory(link_bench *b, loop *l)
{
    const weft_plan_part *part = &l->parts[0];
    size_t world = (size_t)b->data.world, at = 0, offset[OPERANDS_MOST] = {0}, grain, signal_bytes;

    if (part->operand_count > OPERANDS_MOST)
        return failed(&b->error, weft_error_set(&b->error, WEFT_ERR_UNSUPPORTED, "a plan of %u operands",
                                                part->operand_count));
    l->places = calloc(part->operand_count * world, sizeof(*l->places));
    if (!l->places)
        return failed(&b->error,
                      weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for %zu ranks", world));
    for (uint32_t o = 0; o < part->operand_count; o++) {
        bool inbox = part->operands[o].place == WEFT_PLACE_STAGING;
        int64_t rows = weft_operand_rows(&part->operands[o], part->world, 0),
                cols = weft_operand_cols(&part->operands[o], part->world, 0);

        offset[o] = at;
        for (size_t r = 0; r < world; r++)
            l->places[o * world + r].ld = cols;
        at = weft_round_up_bytes(at + (inbox ? weft_cuda_inbox_bytes(part, (weft_cuda_wire){true, true})
                                             : (size_t)(rows * cols) * b->data.element),
                                 1024);
    }
    signal_bytes = (part->signal_count + WEFT_CUDA_PRIVATE_SIGNALS) * sizeof(uint64_t) * WEFT_CUDA_LINE_WORDS;
    if (failed(&b->error, weft_cuda_heap_grain(&b->device, &grain, &b->error)) ||
        failed(&b->error, weft_cuda_heap_reserve(&b->device, part->world, at + signal_bytes + 4096, grain,
                                                 &l->heap, &b->error)))
        return 1;
    for (int r = 0; r < part->world; r++) {
        char *slot = weft_cuda_heap_slot(&l->heap, r);

        if (failed(&b->error, weft_cuda_heap_create(&l->heap, r, 0, l->heap.stride, NULL, &b->error)))
            return 1;
        for (uint32_t o = 0; o < part->operand_count; o++)
            l->places[o * world + (size_t)r].base = slot + offset[o];
        l->signals[r] = (uint64_t *)(slot + at);
        l->controls[r] = (weft_cuda_control *)(slot + at + signal_bytes);
    }
    return 0;
}

/* What every rank sends, and what rank 0 is to have in the end. */
static int fill(link_bench *b, loop *l)
{
    const collective_data *d = &b->data;
    size_t send = (size_t)d->send_elems * d->element, recv = (size_t)d->recv_elems * d->element;
    char *host = malloc(send > recv ? send : recv);
    int status =
        host ? 0 : failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for buffers"));

    for (int r = 0; r < d->world && !status; r++) {
        for (int64_t i = 0; i < d->send_elems; i++)
            weft_element_set(d->problem.dtype, host, (size_t)i, collective_data_value(d, r, i));
        status = put(b, device_at(l->places[r].base), host, send);
    }
    l->results = malloc(recv + 1);
    if (!status && !l->results)
        status = failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for results"));
    for (int64_t i = 0; i < d->recv_elems && !status; i++)
        weft_element_set(d->problem.dtype, l->results, (size_t)i, collective_data_expected(d, 0, i));
    if (!status)
        status =
            failed(&b->error, weft_cuda_check(b->device.cu, b->device.cu->cuMemAlloc(&l->expected, recv + 16),
                                              "cuMemAlloc", &b->error)) ||
            put(b, l->expected, l->results, recv);
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
static void add_stores(const link_bench *b, const loop *l, const weft_plan_part *part, uint32_t lane,
                       peer_tables *t)
{
    for (uint32_t i = 0; i < part->lanes[lane].task_count; i++) {
        const weft_task *task = &part->tasks[part->lanes[lane].task0 + i];
        const weft_region *regions = weft_task_regions(part, task);

        for (uint32_t j = 0; j < task->destinations; j++) {
            const weft_cuda_place *place = &l->places[regions[j].operand * (uint32_t)part->world];
            int64_t at = (regions[j].row0 * place->ld + regions[j].col0) * (int64_t)b->data.element;

            if (regions[j].rank != 0 || region_bytes(b, &regions[j]) <= 0)
                continue;
            t->bytes += region_bytes(b, &regions[j]);
            t->stores[t->store_count++] =
                (weft_cuda_link_store){.from = (const char *)(uintptr_t)l->expected + at,
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
static void gather_lanes(const link_bench *b, const loop *l, peer_tables *t)
{
    add_reads(b, &l->parts[0], t);
    for (uint32_t index = 0; index < t->lane_count; index++) {
        t->lanes[index].store0 = t->store_count;
        for (int r = 1; r < b->data.world; r++) {
            uint32_t seen = 0;

            for (uint32_t lane = 0; lane < l->parts[r].lane_count; lane++)
                if (touches(&l->parts[r], lane, 0) && seen++ == index)
                    add_stores(b, l, &l->parts[r], lane, t);
        }
        t->lanes[index].store_count = t->store_count - t->lanes[index].store0;
    }
    for (uint32_t index = 0; index < t->lane_count; index++) {
        t->lanes[index].busy_ns = (int64_t)(t->bytes / t->lane_count / b->link->bytes_per_ns + 0.5);
        t->lanes[index].latency_ns = (int64_t)((t->reads ? 2 : 1) * b->link->latency_ns);
    }
}

/* Counters that are zero at first, then the tables, in one allocation. */
static int load_peers(link_bench *b, loop *l, const void *const *tables, const size_t *bytes, int count,
                      void **at)
{
    size_t counters = (l->peers_grid + 2) * sizeof(uint64_t) * WEFT_CUDA_LINE_WORDS, total = counters;
    char *base;

    for (int i = 0; i < count; i++)
        total += weft_round_up_bytes(bytes[i] + 16, 128);
    TRY(cuMemAlloc(&l->tables, total));
    TRY(cuMemsetD8Async(l->tables, 0, total, b->device.uploads));
    base = (char *)(uintptr_t)l->tables;
    l->peers.answered = (uint64_t *)base;
    l->peers.free_ns = l->peers.answered + (size_t)l->peers_grid * WEFT_CUDA_LINE_WORDS;
    l->peers.up = (uint32_t *)(l->peers.free_ns + WEFT_CUDA_LINE_WORDS);
    base += counters;
    for (int i = 0; i < count; i++) {
        at[i] = base;
        if (bytes[i] && put(b, device_at(base), tables[i], bytes[i]))
            return 1;
        base += weft_round_up_bytes(bytes[i] + 16, 128);
    }
    return 0;
}

static int make_signal_peers(link_bench *b, loop *l)
{
    uint32_t regions = 0;
    peer_tables t = {.lane_count = 1};
    int status;

    for (int r = 0; r < b->data.world; r++) {
        uint32_t sent = weft_cuda_done_lanes(&l->parts[0], r), heard = weft_cuda_done_lanes(&l->parts[r], 0);

        /* a rank that is never touched is told so by ENTER */
        l->sent[r] = sent ? sent : 1;
        l->heard[r] = heard ? heard : 1;
        regions += l->parts[r].region_count;
        if (r > 0 && l->sent[r] > t.lane_count)
            t.lane_count = l->sent[r];
        if (r > 0 && l->heard[r] > t.lane_count)
            t.lane_count = l->heard[r];
    }
    t.lanes = calloc(t.lane_count, sizeof(*t.lanes));
    t.stores = calloc(regions + 1, sizeof(*t.stores));
    status = t.lanes && t.stores ? 0
                                 : failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY,
                                                                    "no memory for %u lanes", t.lane_count));
    if (!status) {
        void *at[4] = {0};

        gather_lanes(b, l, &t);
        l->link_bytes = t.bytes;
        l->peers_grid = t.lane_count + 1;
        status = load_peers(b, l, (const void *[]){t.lanes, t.stores, l->sent, l->heard},
                            (size_t[]){t.lane_count * sizeof(*t.lanes), t.store_count * sizeof(*t.stores),
                                       sizeof(l->sent), sizeof(l->heard)},
                            4, at);
        l->peers.lanes = at[0];
        l->peers.stores = at[1];
        l->peers.sent = at[2];
        l->peers.heard = at[3];
    }
    free(t.lanes);
    free(t.stores);
    l->peers.signals = l->signals[0];
    l->peers.stride = (int64_t)(l->heap.stride / sizeof(uint64_t));
    return status;
}

/* Every peer's payload for rank 0, in packets. */
static int make_packet_peers(link_bench *b, loop *l)
{
    const weft_cuda_packets *p = &l->executor.packets;
    int64_t packets = p->row_bytes / WEFT_CUDA_PACKET_BYTES;
    char *payload = calloc((size_t)(b->data.world * packets), WEFT_CUDA_PACKET_PAYLOAD);
    void *at[1] = {0};
    int status =
        payload ? 0 : failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for packets"));

    for (int r = 1; r < b->data.world && !status; r++)
        for (int64_t i = 0; i < b->data.problem.count;
             i++) /* where send has a row for each rank, the first one */
            weft_element_set(b->data.problem.dtype, payload + r * packets * WEFT_CUDA_PACKET_PAYLOAD,
                             (size_t)i, collective_data_value(&b->data, r, i));
    l->peers_grid = weft_cuda_packets_grid(p);
    if (!status)
        status = load_peers(b, l, (const void *[]){payload},
                            (size_t[]){(size_t)(b->data.world * packets * WEFT_CUDA_PACKET_PAYLOAD)}, 1, at);
    free(payload);
    if (status)
        return status;
    l->link_bytes = (double)((b->data.world - 1) * packets * WEFT_CUDA_PACKET_BYTES);
    l->peers.payload = at[0];
    l->peers.watched = p->peer[1].to;
    l->peers.inbox = (char *)(uintptr_t)p->inbox;
    l->peers.packets = packets;
    l->peers.chunk_packets = p->chunk_packets;
    l->peers.row_bytes = p->row_bytes;
    l->peers.parity_bytes = p->parity_bytes;
    l->peers.busy_ps = (int64_t)((b->data.world - 1) * WEFT_CUDA_PACKET_BYTES * 1e3 / b->link->bytes_per_ns);
    return 0;
}

static int64_t lines_of(int64_t bytes)
{
    return weft_divide_up(bytes, weft_cuda_line_payload(true));
}

/* What rank r sends to rank 0 in a hop, as it lies in an inbox: of its part of the sums, or results. */
static int fill_row(const link_bench *b, const weft_cuda_packets *p, int r, bool results, uint64_t *row)
{
    enum { WORDS = WEFT_CUDA_LINE_BYTES / sizeof(uint64_t), HALF = WEFT_CUDA_LINE_THREADS };
    const weft_cuda_packet_peer *slice = &p->peer[results ? r : 0];
    int64_t size = (int64_t)b->data.element, lines = lines_of(slice->bytes),
            first = slice->bytes ? (slice->send - p->peer[0].send) / size : 0;
    uint64_t *payload = calloc((size_t)lines * (WORDS - 1) + 1, sizeof(*payload));

    if (!payload)
        return 1;
    for (int64_t i = 0; i < slice->bytes / size; i++)
        weft_element_set(b->data.problem.dtype, payload, (size_t)i,
                         results ? collective_data_expected(&b->data, 0, first + i)
                                 : collective_data_value(&b->data, r, first + i));
    for (int64_t i = 0; i < lines * (WORDS - 1); i++) {
        int64_t at = i % (WORDS - 1);

        row[i / (WORDS - 1) * WORDS + at % HALF * 2 + at / HALF] = payload[i];
    }
    free(payload);
    return 0;
}

/* Every peer's lines for rank 0, of each hop. */
static int make_line_peers(link_bench *b, loop *l)
{
    const weft_cuda_packets *p = &l->executor.packets;
    int status = 0, hops = p->results ? 2 : 1;
    int64_t chunks = weft_cuda_packets_grid(p);
    size_t bytes[2] = {(size_t)p->parity_bytes, (size_t)p->parity_bytes};
    char *images = calloc(2, (size_t)p->parity_bytes + 16);
    void *at[2] = {0};

    if (!images)
        status = 1;
    for (int hop = 0; hop < hops; hop++)
        for (int r = 1; r < b->data.world && !status; r++)
            status = fill_row(b, p, r, hop == 1,
                              (uint64_t *)(void *)(images + hop * p->parity_bytes + r * p->row_bytes));
    if (status)
        status = failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for lines"));
    l->peers.chunks = weft_divide_up(chunks, WEFT_CUDA_LINK_LINES_CTAS);
    l->peers_grid = (unsigned)weft_divide_up(chunks, l->peers.chunks);
    if (!status)
        status = load_peers(b, l, (const void *[]){images, images + bytes[0]}, bytes, 2, at);
    free(images);
    if (status)
        return status;
    l->link_bytes = (double)(b->data.world - 1) * (double)p->row_bytes * hops;
    l->peers.hop[0] = (weft_cuda_link_hop){.images = at[0],
                                           .watched = p->peer[1].to,
                                           .inbox = (char *)(uintptr_t)p->inbox,
                                           .lines = lines_of(p->peer[0].bytes),
                                           .watched_lines = lines_of(p->peer[1].bytes)};
    if (p->results)
        l->peers.hop[1] = (weft_cuda_link_hop){.images = at[1],
                                               .watched = p->peer[1].back,
                                               .inbox = (char *)(uintptr_t)p->results,
                                               .lines = lines_of(p->peer[1].bytes),
                                               .watched_lines = lines_of(p->peer[0].bytes)};
    l->peers.chunk_packets = p->chunk_packets;
    l->peers.row_bytes = p->row_bytes;
    l->peers.parity_bytes = p->parity_bytes;
    l->peers.busy_ps = (int64_t)((b->data.world - 1) * WEFT_CUDA_LINE_BYTES * 1e3 / b->link->bytes_per_ns);
    return 0;
}

static int make_loop(link_bench *b, loop *l)
{
    weft_cuda_limits limits = {5, 5};
    weft_cuda_binding binding = {0};

    if (make_parts(b, l) || make_memory(b, l) || fill(b, l))
        return 1;
    for (int r = 0; r < b->data.world; r++)
        l->heard[r] = weft_cuda_done_lanes(&l->parts[r], 0);
    binding = (weft_cuda_binding){
        .places = l->places, .signals = l->signals, .done_posts = l->heard, .wire = {true, true}};
    if (failed(&b->error, weft_cuda_executor_make(&b->device, &l->parts[0], &binding, l->controls,
                                                  b->device.crews, &limits, &l->executor, &b->error)))
        return 1;
    if (l->executor.kind == WEFT_CUDA_PACKETS)
        weft_cuda_packets_bind(&l->executor.packet_rows, l->places[0].base, l->places[b->data.world].base,
                               &l->executor.packets);
    l->peers.world = b->data.world;
    l->peers.latency_ns = (int64_t)b->link->latency_ns;
    l->peers.notice_ns =
        l->executor.kind == WEFT_CUDA_PACKETS ? WEFT_CUDA_LINK_PACKET_NS : WEFT_CUDA_LINK_SIGNAL_NS;
    l->peers.deadline_ns = (uint64_t)ANSWER_SECONDS * 1000000000u;
    return l->executor.kind != WEFT_CUDA_PACKETS ? make_signal_peers(b, l)
           : l->executor.packets.lines           ? make_line_peers(b, l)
                                                 : make_packet_peers(b, l);
}

static void free_loop(const link_bench *b, loop *l)
{
    const weft_cuda_driver *cu = b->device.cu;

    gpu_graph_drop(cu, &l->runs);
    weft_cuda_executor_free(&l->executor);
    if (l->tables)
        cu->cuMemFree(l->tables);
    if (l->expected)
        cu->cuMemFree(l->expected);
    if (l->heap.base)
        weft_cuda_heap_free(&l->heap);
    for (int r = 0; r < b->data.world; r++)
        weft_plan_part_free(&l->parts[r]);
    free(l->places);
    free(l->results);
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

/* All CTAs that stand for peers are there before the rank's first kernel, which could take their place. */
static int start_peers(link_bench *b, loop *l, uint32_t runs)
{
    bool packets = l->executor.kind == WEFT_CUDA_PACKETS, lines = packets && l->executor.packets.lines;
    CUlaunchConfig config = {.gridDimX = l->peers_grid,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = WEFT_CUDA_LINK_THREADS * (lines ? 2 : 1),
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = b->side};
    weft_cuda_link peers = l->peers;
    void *parameters[] = {&peers};
    uint32_t up = 0;

    peers.runs = runs;
    if (failed(&b->error, weft_cuda_device_measures(&b->device, &b->error)) ||
        put(b, device_at(peers.up), &up, sizeof(up)))
        return 1;
    TRY(cuLaunchKernelEx(&config, b->device.link[packets + lines], parameters, NULL));
    while (up < l->peers_grid) {
        TRY(cuMemcpyDtoHAsync(&up, device_at(peers.up), sizeof(up), b->device.uploads));
        TRY(cuStreamSynchronize(b->device.uploads));
    }
    return 0;
}

static int end_runs(link_bench *b, loop *l)
{
    weft_status status = weft_cuda_executor_outcome(&l->executor, b->stream, NULL, &b->error);

    TRY(cuStreamSynchronize(b->side));
    return failed(&b->error, status);
}

static int launch(link_bench *b, loop *l)
{
    return failed(&b->error, weft_cuda_executor_launch(&l->executor, b->stream, &b->error));
}

static int replay(link_bench *b, loop *l)
{
    TRY(cuGraphLaunch(l->runs.replay, b->stream));
    return 0;
}

static int take(link_bench *b, CUdeviceptr from, void *to, size_t bytes)
{
    TRY(cuMemcpyDtoHAsync(to, from, bytes, b->stream));
    TRY(cuStreamSynchronize(b->stream));
    return 0;
}

/* So many runs with recv poisoned before, every element compared. */
static int check(link_bench *b, loop *l, int runs, int (*start)(link_bench *, loop *), bool *ok)
{
    const collective_data *d = &b->data;
    size_t bytes = (size_t)d->recv_elems * d->element;
    CUdeviceptr recv = device_at(l->places[d->world].base);
    char *host = malloc(bytes + 1);
    int status =
        host ? 0 : failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for results"));

    if (!status) {
        memset(host, 0xa5, bytes);
        status = put(b, recv, host, bytes) || start_peers(b, l, (uint32_t)runs) || start(b, l) ||
                 end_runs(b, l) || take(b, recv, host, bytes);
        *ok &= status || memcmp(host, l->results, bytes) == 0;
    }
    free(host);
    return status;
}

static int capture(link_bench *b, loop *l)
{
    const weft_cuda_driver *cu = b->device.cu;
    weft_status status = weft_cuda_check(cu, gpu_graph_begin(cu, b->stream), "capturing runs", &b->error);
    CUresult ended;

    if (failed(&b->error, status))
        return 1;
    for (int i = 0; i < b->data.calls && status == WEFT_OK; i++)
        status = weft_cuda_executor_launch(&l->executor, b->stream, &b->error);
    ended = gpu_graph_end(cu, b->stream, &l->runs);
    return failed(&b->error, status) ||
           failed(&b->error, weft_cuda_check(cu, ended, "a graph of runs", &b->error));
}

/* The first launches are not counted. */
static int measure(link_bench *b, loop *l, report_stats *stats)
{
    double samples[GRAPHS];

    for (int n = -2; n < GRAPHS; n++) {
        float ms = 0;

        if (start_peers(b, l, (uint32_t)b->data.calls))
            return 1;
        TRY(cuEventRecord(b->begin, b->stream));
        TRY(cuGraphLaunch(l->runs.replay, b->stream));
        TRY(cuEventRecord(b->end, b->stream));
        if (end_runs(b, l))
            return 1;
        TRY(cuEventElapsedTime(&ms, b->begin, b->end));
        if (n >= 0)
            samples[n] = (double)ms * 1e3 / b->data.calls;
    }
    *stats = report_summarise(samples, GRAPHS);
    return 0;
}

static void print_row(link_bench *b, const loop *l, int64_t bytes, report_stats stats, bool ok)
{
    const weft_problem *p = &l->parts[0].problem;
    bool sums = p->op == WEFT_OP_ALL_REDUCE;
    double w = b->data.world, latency = b->link->latency_ns, rate = b->link->bytes_per_ns, n = (double)bytes,
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
    report_int(&b->report, "link_bytes", (int64_t)l->link_bytes);
    report_real(&b->report, "busbw_gbs", (sums ? 2 : 1) * shared / stats.median * 1e-3);
    report_bool(&b->report, "ok", ok);
    report_row(&b->report);
}

static int measure_schedule(link_bench *b, weft_schedule schedule, int64_t bytes)
{
    loop l = {0};
    report_stats stats = {0};
    bool ok = true;
    int status;

    b->data.problem.schedule = schedule;
    status = make_loop(b, &l) || check(b, &l, 1, launch, &ok) || check(b, &l, 1, launch, &ok) ||
             capture(b, &l) || measure(b, &l, &stats) || check(b, &l, b->data.calls, replay, &ok);
    if (!status)
        print_row(b, &l, bytes, stats, ok);
    free_loop(b, &l);
    return status;
}

static int run(link_bench *b, const weft_options *options)
{
    int64_t first = options->bytes_first ? options->bytes_first : 1024,
            last = options->bytes_first ? options->bytes_last : 16 << 20;
    weft_schedule schedules[SCHEDULES_MOST];
    int count = bench_cuda_schedules(options, true, schedules), status = 0;

    TRY(cuEventCreate(&b->begin, CU_EVENT_DEFAULT));
    TRY(cuEventCreate(&b->end, CU_EVENT_DEFAULT));
    TRY(cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING));
    TRY(cuStreamCreate(&b->side, CU_STREAM_NON_BLOCKING));
    report_note(
        &b->report,
        "%s of %s, one rank of %d in the loop over an emulated link of %g GB/s and %g µs on %s, in graphs",
        options->op_name, weft_dtype_name(b->data.problem.dtype), b->data.world, b->link->bytes_per_ns,
        b->link->latency_ns * 1e-3, b->device.name);
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
    link_bench b = {.link = link, .data = {.problem = options->problem, .world = (int)options->ranks}};
    int status, closed;

    if (bench_cuda_refuses(options, link, true))
        return 2;
    if (b.data.world < 2 || b.data.world > RANKS_MOST)
        return options_error("bench", "--link: %d ranks: there may be 2 to %d", b.data.world, RANKS_MOST);
    weft_cuda_driver_widen();
    if (weft_cuda_gpus.open(0, &b.device, &b.error) != WEFT_OK)
        return options_error("bench", "--backend cuda: %s", b.error.text);
    b.device.cu->cuCtxSetCurrent(b.device.context);
    report_open(&b.report, stdout, options->json, columns);
    b.report.page = page;
    status = run(&b, options);
    closed = report_close(&b.report);
    weft_cuda_device_close(&b.device);
    return status ? status : closed;
}
