/*
 * Products of few rows on one rank of eight that has a GPU to itself, over an emulated link:
 *
 *     build/bench/cuda_decode_link [GB/s [us [rounds]]]
 *
 * N = K = 8192 over all ranks, 1 to 128 rows, bfloat16 with sums that travel as bfloat16, all replayed from
 * graphs. The rank runs as the library would run it; its peers are their memory, and what they would send it
 * comes when the link would have brought it (run/cuda/link.h). A run takes other weights than the seven
 * before it, so that they come from memory. `cublas` and `own` are the rank's product alone, cuBLASLt's and
 * weft's, with no link and no peers; `hops1` and `hops2` the whole product, its sums sent by the kernel that
 * multiplies, in one hop or in two; `own+` weft's product and behind it the collective that reduces its sums,
 * as one call; `auto` says in how many hops it sends. What the collective takes by itself is
 * `weft bench all_reduce --backend cuda -n 8 --link ...`, which reduces the same bytes. cuBLASLt's product
 * is not timed beside peers: its CTAs need all registers of an SM, and so the SMs on which nobody stands for
 * one. D is compared on small integers. Medians, us.
 */
#include "bench/cuda/failed.h"
#include "bench/cuda/graph.h"
#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/choose.h"
#include "run/cuda/collective.h"
#include "run/cuda/executor.h"
#include "run/cuda/halves.h"
#include "run/cuda/heap.h"
#include "run/cuda/link.h"

#include <stdlib.h>
#include <string.h>

enum {
    WORLD = 8,
    SIZE = 8192,
    PART = SIZE / WORLD,
    M_MOST = 128,
    WEIGHTS = 8, /* sets of them */
    CALLS = 40,
    ROUNDS_MOST = 100,
    OPERANDS_MOST = 8,
    PEERS_LINES = 8, /* that a CTA of them has at least */
    ANSWER_SECONDS = 8
};

typedef struct bench {
    weft_cuda_device device;
    weft_error_text error;
    CUstream stream, side; /* of the rank, and of what stands for its peers */
    CUevent begin, end;
    double bytes_per_ns, latency_ns;
    int rounds;
    CUdeviceptr a, b, d;
    uint16_t *host, *own; /* own: the product of this rank, row by row */
} bench;

/* One way of making a product. */
typedef struct loop {
    weft_plan_part parts[WORLD], collective; /* collective: behind the product, or without ranks */
    weft_cuda_heap heap;
    weft_cuda_place places[OPERANDS_MOST * WORLD];
    char *inboxes[WORLD]; /* of the collective */
    uint64_t *signals[WORLD];
    weft_cuda_control *controls[WORLD];
    weft_cuda_executor executors[WEIGHTS];
    weft_cuda_link peers;
    unsigned peers_grid; /* 0: there are none */
    CUdeviceptr tables;
    gpu_graph runs;
} loop;

static int put(bench *b, CUdeviceptr to, const void *from, size_t bytes)
{
    TRY(cuMemcpyHtoDAsync(to, from, bytes, b->device.uploads));
    TRY(cuStreamSynchronize(b->device.uploads));
    return 0;
}

/* ---- a plan ------------------------------------------------------------------------------------------ */

static weft_cuda_basis basis_of(const bench *b, int world)
{
    return (weft_cuda_basis){.world = world,
                             .crews = b->device.crews,
                             .hopper = b->device.hopper,
                             .library = weft_cublaslt_source() != NULL,
                             .whole = true,
                             .adds = true};
}

static weft_problem whole_problem(weft_op op, int64_t m)
{
    weft_problem p;

    weft_problem_init(&p, op);
    p.m = m;
    p.n = p.k = SIZE;
    p.dtype = p.d_dtype = p.wire_dtype = WEFT_BF16;
    return p;
}

static int make_parts(bench *b, loop *l, const weft_problem *p, int world)
{
    weft_cuda_basis basis = basis_of(b, world);
    weft_problem asked, resolved;

    if (failed(&b->error, weft_problem_resolve(p, world, &asked, &b->error)))
        return 1;
    resolved = weft_cuda_choose(&basis, &asked);
    for (int r = 0; r < world; r++)
        if (failed(&b->error, weft_plan_make(&resolved, world, r, &l->parts[r], &b->error)))
            return 1;
    return failed(&b->error, weft_cuda_halves_make(&l->parts[0], &basis, true, &l->collective, &b->error));
}

/* In how many hops `auto` sends; 0: it does not. */
static int chosen(const bench *b, weft_op op, int64_t m)
{
    weft_cuda_basis basis = basis_of(b, WORLD);
    weft_problem p = whole_problem(op, m);

    return weft_cuda_choose(&basis, &p).tuning.exchange % 3;
}

static const weft_cuda_wire wire = {.whole_lines = true, .apart = true};

/* What the plan has of its own, at the same place of every rank's slot. */
static int make_memory(bench *b, loop *l)
{
    const weft_plan_part *part = &l->parts[0];
    size_t world = (size_t)part->world, at = 0, offset[OPERANDS_MOST] = {0}, grain, signal_bytes, inboxes;
    uint32_t signals = part->signal_count + l->collective.signal_count + WEFT_CUDA_PRIVATE_SIGNALS;

    if (part->operand_count > OPERANDS_MOST)
        return failed(&b->error, weft_error_set(&b->error, WEFT_ERR_UNSUPPORTED, "too many operands"));
    for (uint32_t o = 0; o < part->operand_count; o++) {
        int64_t rows = weft_operand_rows(&part->operands[o], part->world, 0),
                cols = weft_operand_cols(&part->operands[o], part->world, 0);
        size_t sent = weft_cuda_exchange_bytes(part, o);

        offset[o] = at;
        for (size_t r = 0; r < world; r++)
            l->places[o * world + r].ld = cols;
        if (part->operands[o].place != WEFT_PLACE_USER)
            at = weft_round_up_bytes(at + (sent ? sent : (size_t)(rows * cols) * 2), 1024);
    }
    inboxes = at;
    at = weft_round_up_bytes(at + weft_cuda_halves_bytes(&l->collective, wire), 1024);
    signal_bytes = signals * sizeof(uint64_t) * WEFT_CUDA_LINE_WORDS;
    if (failed(&b->error, weft_cuda_heap_grain(&b->device, &grain, &b->error)) ||
        failed(&b->error, weft_cuda_heap_reserve(&b->device, part->world, at + signal_bytes + 4096, grain,
                                                 &l->heap, &b->error)))
        return 1;
    for (int r = 0; r < part->world; r++) {
        char *slot = weft_cuda_heap_slot(&l->heap, r);

        if (failed(&b->error, weft_cuda_heap_create(&l->heap, r, 0, l->heap.stride, NULL, &b->error)))
            return 1;
        for (uint32_t o = 0; o < part->operand_count; o++) {
            weft_operand_role role = part->operands[o].role;

            l->places[o * world + (size_t)r].base = part->operands[o].place != WEFT_PLACE_USER
                                                        ? slot + offset[o]
                                                    : role == WEFT_ROLE_A ? (char *)(uintptr_t)b->a
                                                    : role == WEFT_ROLE_B ? (char *)(uintptr_t)b->b
                                                                          : (char *)(uintptr_t)b->d;
        }
        l->inboxes[r] = slot + inboxes;
        l->signals[r] = (uint64_t *)(slot + at);
        l->controls[r] = (weft_cuda_control *)(slot + at + signal_bytes);
    }
    return 0;
}

/* The same plan with each of the weights. */
static int make_executors(bench *b, loop *l)
{
    const weft_plan_part *part = &l->parts[0];
    weft_cuda_limits limits = {5, 5};

    for (size_t i = 0; i < WEIGHTS; i++) {
        weft_cuda_binding binding = {.places = l->places,
                                     .signals = l->signals,
                                     .wire = wire,
                                     .collective = l->collective.world ? &l->collective : NULL,
                                     .inboxes = l->inboxes};

        for (uint32_t o = 0; o < part->operand_count; o++)
            if (part->operands[o].place == WEFT_PLACE_USER && part->operands[o].role == WEFT_ROLE_B)
                l->places[o * (uint32_t)part->world].base =
                    (char *)(uintptr_t)(b->b + i * (size_t)SIZE * PART * 2);
        if (failed(&b->error, weft_cuda_executor_make(&b->device, part, &binding, l->controls,
                                                      b->device.crews, &limits, &l->executors[i], &b->error)))
            return 1;
    }
    return 0;
}

/* ---- its peers --------------------------------------------------------------------------------------- */

static int sent_by(int rank, int64_t row, int64_t col)
{
    return (int)((row * 31 + col * 7 + rank) % 5) - 2;
}

/* What D is to be. */
static double expected(const bench *b, int64_t row, int64_t col)
{
    double sum = weft_element_get(WEFT_BF16, b->own, (size_t)(row * SIZE + col));

    for (int r = 1; r < WORLD; r++)
        sum += sent_by(r, row, col);
    return sum;
}

/* Rows as they lie in an inbox: sums of peer r, or results. */
static void fill_image(const bench *b, int r, bool results, int64_t row0, int64_t rows, uint16_t *image)
{
    for (int64_t i = 0; i < rows * SIZE; i++) {
        int64_t row = row0 + i / SIZE, col = i % SIZE;

        weft_element_set(WEFT_BF16, image, (size_t)i, results ? expected(b, row, col) : sent_by(r, row, col));
        image[i] = (uint16_t)~image[i];
    }
}

/* What peer r sends in a hop as lines with the run's number in the last word, of which the images have none:
 * its part of this rank's slice, or its own, added up. */
static int fill_lines(bench *b, const weft_cuda_packets *p, int r, bool results, char *image)
{
    enum { WORDS = WEFT_CUDA_LINE_BYTES / sizeof(uint64_t), HALF = WEFT_CUDA_LINE_THREADS };
    const weft_cuda_packet_peer *slice = &p->peer[results ? r : 0];
    int64_t first = (slice->send - p->peer[0].send) / 2,
            words = weft_divide_up(slice->bytes, weft_cuda_line_payload(true)) * (WORDS - 1);
    uint64_t *payload = calloc((size_t)words + 1, sizeof(*payload)), *row = (uint64_t *)(void *)image;

    if (!payload)
        return failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for lines"));
    for (int64_t i = 0; i < slice->bytes / 2; i++) {
        int64_t line = (first + i) / SIZE, col = (first + i) % SIZE;

        weft_element_set(WEFT_BF16, payload, (size_t)i,
                         results ? expected(b, line, col) : sent_by(r, line, col));
    }
    for (int64_t i = 0; i < words; i++) {
        int64_t at = i % (WORDS - 1);

        row[i / (WORDS - 1) * WORDS + at % HALF * 2 + at / HALF] = payload[i];
    }
    free(payload);
    return 0;
}

/* The same kernel answers marked words and lines with a number: what it is given of either. */
typedef struct answers {
    int64_t row_bytes, parity_bytes;
    bool returns;
    weft_cuda_link_hop hop[2];
} answers;

static answers answers_of(const weft_cuda_executor *executor)
{
    const weft_cuda_exchange *x = &executor->exchange;
    const weft_cuda_packets *p = &executor->packets;
    int64_t lines = x->row_bytes / WEFT_CUDA_LINE_BYTES, payload = weft_cuda_line_payload(true),
            mine = weft_divide_up(p->peer[0].bytes, payload),
            theirs = weft_divide_up(p->peer[1].bytes, payload);

    if (executor->kind == WEFT_CUDA_PACKETS)
        return (answers){.row_bytes = p->row_bytes,
                         .parity_bytes = p->parity_bytes,
                         .returns = p->results != NULL,
                         .hop = {{NULL, p->peer[1].to, (char *)(uintptr_t)p->inbox, mine, theirs},
                                 {NULL, p->peer[1].back, (char *)(uintptr_t)p->results, theirs, mine}}};
    return (answers){.row_bytes = x->row_bytes,
                     .parity_bytes = x->inbox_bytes,
                     .returns = x->returns,
                     .hop = {{NULL, x->to[1], x->inbox, lines, lines},
                             {NULL, x->results[1], x->results[0], lines, lines}}};
}

static int make_peers(bench *b, loop *l)
{
    const weft_cuda_executor *executor = &l->executors[0];
    bool marked = executor->kind == WEFT_CUDA_EXCHANGE;
    answers a = answers_of(executor);
    size_t image = (size_t)a.parity_bytes, counters;
    char *images = calloc(2, image), *base;
    int status = 0;

    if (!images)
        return failed(&b->error, weft_error_set(&b->error, WEFT_ERR_MEMORY, "no memory for peers"));
    for (int hop = 0; hop < (a.returns ? 2 : 1); hop++)
        for (int r = 1; r < WORLD && !status; r++) {
            char *row = images + (size_t)hop * image + r * a.row_bytes;

            if (marked)
                fill_image(b, r, hop, hop ? r * executor->exchange.rows : 0, executor->exchange.rows,
                           (uint16_t *)(void *)row);
            else
                status = fill_lines(b, &executor->packets, r, hop, row);
        }
    l->peers =
        (weft_cuda_link){.world = WORLD,
                         .marked = marked,
                         .latency_ns = (int64_t)b->latency_ns,
                         .notice_ns = WEFT_CUDA_LINK_PACKET_NS,
                         .deadline_ns = (uint64_t)ANSWER_SECONDS * 1000000000u,
                         .row_bytes = a.row_bytes,
                         .parity_bytes = a.parity_bytes,
                         .chunk_packets = weft_round_up(
                             weft_divide_up(a.hop[0].lines, WEFT_CUDA_LINK_LINES_CTAS), PEERS_LINES),
                         .chunks = 1,
                         .busy_ps = (int64_t)((WORLD - 1) * WEFT_CUDA_LINE_BYTES * 1e3 / b->bytes_per_ns)};
    l->peers_grid = (unsigned)weft_divide_up(a.hop[0].lines, l->peers.chunk_packets);
    counters = (l->peers_grid + 2) * sizeof(uint64_t) * WEFT_CUDA_LINE_WORDS;
    if (!status) {
        TRY(cuMemAlloc(&l->tables, counters + 2 * image));
        TRY(cuMemsetD8Async(l->tables, 0, counters, b->device.uploads));
        status = put(b, l->tables + counters, images, 2 * image);
    }
    free(images);
    base = (char *)(uintptr_t)l->tables;
    l->peers.answered = (uint64_t *)base;
    l->peers.free_ns = l->peers.answered + (size_t)l->peers_grid * WEFT_CUDA_LINE_WORDS;
    l->peers.up = (uint32_t *)(l->peers.free_ns + WEFT_CUDA_LINE_WORDS);
    for (int hop = 0; hop < (a.returns ? 2 : 1); hop++) {
        l->peers.hop[hop] = a.hop[hop];
        l->peers.hop[hop].images = base + counters + (size_t)hop * image;
    }
    return status;
}

/* All CTAs that stand for peers are there before the rank's first kernel, which could take their place. */
static int start_peers(bench *b, loop *l, uint32_t runs)
{
    CUlaunchConfig config = {.gridDimX = l->peers_grid,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = WEFT_CUDA_LINK_THREADS * 2,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = b->side};
    weft_cuda_link peers = l->peers;
    void *parameters[] = {&peers};
    uint32_t up = 0;

    if (!l->peers_grid)
        return 0;
    peers.runs = runs;
    if (failed(&b->error, weft_cuda_device_measures(&b->device, &b->error)) ||
        put(b, (CUdeviceptr)(uintptr_t)peers.up, &up, sizeof(up)))
        return 1;
    TRY(cuLaunchKernelEx(&config, b->device.link[2], parameters, NULL));
    while (up < l->peers_grid) {
        TRY(cuMemcpyDtoHAsync(&up, (CUdeviceptr)(uintptr_t)peers.up, sizeof(up), b->device.uploads));
        TRY(cuStreamSynchronize(b->device.uploads));
    }
    return 0;
}

/* ---- runs -------------------------------------------------------------------------------------------- */

static int end_runs(bench *b, loop *l)
{
    weft_status status = weft_cuda_executor_outcome(&l->executors[0], b->stream, NULL, &b->error);

    TRY(cuStreamSynchronize(b->side));
    return failed(&b->error, status);
}

/* Runs with the first weights, D poisoned before; the rows of D that this rank has into b->host. */
static int run_once(bench *b, loop *l, int64_t rows)
{
    size_t bytes = (size_t)(rows * SIZE) * 2;

    TRY(cuMemsetD8Async(b->d, 0xa5, bytes, b->stream));
    if (start_peers(b, l, 1) ||
        failed(&b->error, weft_cuda_executor_launch(&l->executors[0], b->stream, &b->error)) ||
        end_runs(b, l))
        return 1;
    TRY(cuMemcpyDtoHAsync(b->host, b->d, bytes, b->stream));
    TRY(cuStreamSynchronize(b->stream));
    return 0;
}

static int check(bench *b, loop *l, bool *wrong)
{
    int64_t rows =
        l->parts[0].problem.op == WEFT_OP_GEMM_RS ? l->parts[0].problem.m / WORLD : l->parts[0].problem.m;

    for (int n = 0; n < 3; n++) {
        if (run_once(b, l, rows))
            return 1;
        for (int64_t i = 0; i < rows * SIZE; i++)
            *wrong |= weft_element_get(WEFT_BF16, b->host, (size_t)i) != expected(b, i / SIZE, i % SIZE);
    }
    return 0;
}

static int by_size(const void *one, const void *other)
{
    double x = *(const double *)one, y = *(const double *)other;

    return (x > y) - (x < y);
}

static int measure(bench *b, loop *l, double *median)
{
    const weft_cuda_driver *cu = b->device.cu;
    double us[ROUNDS_MOST];
    weft_status status = WEFT_OK;

    if (failed(&b->error, weft_cuda_check(cu, gpu_graph_begin(cu, b->stream), "capturing", &b->error)))
        return 1;
    for (int i = 0; i < CALLS && status == WEFT_OK; i++)
        status = weft_cuda_executor_launch(&l->executors[i % WEIGHTS], b->stream, &b->error);
    if (failed(&b->error,
               weft_cuda_check(cu, gpu_graph_end(cu, b->stream, &l->runs), "a graph", &b->error)) ||
        failed(&b->error, status))
        return 1;
    for (int n = -2; n < b->rounds; n++) {
        float ms = 0;

        if (start_peers(b, l, CALLS))
            return 1;
        TRY(cuEventRecord(b->begin, b->stream));
        TRY(cuGraphLaunch(l->runs.replay, b->stream));
        TRY(cuEventRecord(b->end, b->stream));
        if (end_runs(b, l))
            return 1;
        TRY(cuEventElapsedTime(&ms, b->begin, b->end));
        if (n >= 0)
            us[n] = (double)ms * 1e3 / CALLS;
    }
    qsort(us, (size_t)b->rounds, sizeof(*us), by_size);
    *median = us[b->rounds / 2];
    return 0;
}

static void free_loop(bench *b, loop *l)
{
    gpu_graph_drop(b->device.cu, &l->runs);
    for (int i = 0; i < WEIGHTS; i++)
        weft_cuda_executor_free(&l->executors[i]);
    if (l->tables)
        b->device.cu->cuMemFree(l->tables);
    if (l->heap.base)
        weft_cuda_heap_free(&l->heap);
    for (int r = 0; r < WORLD; r++)
        weft_plan_part_free(&l->parts[r]);
    weft_plan_part_free(&l->collective);
}

/* The product of this rank alone; `own` of it into b->own, by whoever comes first. */
static int measure_product(bench *b, int64_t m, int library)
{
    loop l = {0};
    weft_problem p;
    double us = 0;
    int status;

    weft_problem_init(&p, WEFT_OP_AG_GEMM);
    p.schedule = WEFT_SCHEDULE_UNFUSED;
    p.m = m;
    p.n = SIZE;
    p.k = PART;
    p.dtype = p.d_dtype = WEFT_BF16;
    p.tuning.library = library;
    status = make_parts(b, &l, &p, 1) || make_memory(b, &l) || make_executors(b, &l) || run_once(b, &l, m);
    if (!status)
        memcpy(b->own, b->host, (size_t)(m * SIZE) * 2);
    status = status || measure(b, &l, &us);
    if (!status)
        printf("  %s %.2f", library == 1 ? "cublas" : "own", us);
    free_loop(b, &l);
    return status;
}

/* exchange: as of a tuning. */
static int measure_whole(bench *b, weft_op op, int64_t m, int exchange)
{
    loop l = {0};
    weft_problem p = whole_problem(op, m);
    double us = 0;
    bool wrong = false;
    int status;

    p.schedule = WEFT_SCHEDULE_UNFUSED;
    p.tuning.library = 3;
    p.tuning.exchange = exchange;
    status = make_parts(b, &l, &p, WORLD) || make_memory(b, &l) || make_executors(b, &l) ||
             make_peers(b, &l) || check(b, &l, &wrong) || measure(b, &l, &us);
    if (!status && exchange == 3)
        printf("  own+ %.2f%s", us, wrong ? " WRONG" : "");
    else if (!status)
        printf("  hops%d %.2f%s", exchange, us, wrong ? " WRONG" : "");
    fflush(stdout);
    free_loop(b, &l);
    return status;
}

/* Small integers, mostly zeros: sums over all of k and all ranks are exact in bfloat16. */
static int fill(bench *b, CUdeviceptr to, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t z = ((uint64_t)i + seed) * 0x9e3779b97f4a7c15u;

        z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9u;
        z ^= z >> 32;
        weft_element_set(WEFT_BF16, b->host, (size_t)i, z % 8 == 0 ? (z >> 8) % 2 ? 1 : -1 : 0);
    }
    return put(b, to, b->host, (size_t)count * 2);
}

static int run(bench *b)
{
    static const int rows[] = {1, 8, 32, 64, 128};
    static const weft_op ops[] = {WEFT_OP_GEMM_AR, WEFT_OP_GEMM_RS};
    int status = 0;

    TRY(cuEventCreate(&b->begin, CU_EVENT_DEFAULT));
    TRY(cuEventCreate(&b->end, CU_EVENT_DEFAULT));
    TRY(cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING));
    TRY(cuStreamCreate(&b->side, CU_STREAM_NON_BLOCKING));
    TRY(cuMemAlloc(&b->a, (size_t)M_MOST * PART * 2));
    TRY(cuMemAlloc(&b->b, (size_t)WEIGHTS * SIZE * PART * 2));
    TRY(cuMemAlloc(&b->d, (size_t)M_MOST * SIZE * 2));
    if (fill(b, b->a, (int64_t)M_MOST * PART, 1))
        return 1;
    for (size_t i = 0; i < WEIGHTS && !status; i++)
        status = fill(b, b->b + i * (size_t)SIZE * PART * 2, (int64_t)SIZE * PART, 77 + i);
    for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]); o++)
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && !status; i++) {
            bool reduces = ops[o] == WEFT_OP_GEMM_AR;

            if (!reduces && rows[i] < WORLD)
                continue;
            printf("%-8s %4d", weft_op_name(ops[o]), rows[i]);
            status = measure_product(b, rows[i], 3) || measure_product(b, rows[i], 1);
            for (int hops = 1; hops <= (reduces && rows[i] >= WORLD ? 2 : 1) && !status; hops++)
                status = measure_whole(b, ops[o], rows[i], hops);
            if (reduces && !status)
                status = measure_whole(b, ops[o], rows[i], 3);
            printf("  (auto %d)\n", chosen(b, ops[o], rows[i]));
        }
    return status;
}

int main(int argc, char **argv)
{
    bench b = {.bytes_per_ns = argc > 1 ? atof(argv[1]) : 450,
               .latency_ns = (argc > 2 ? atof(argv[2]) : 2) * 1e3,
               .rounds = argc > 3 ? atoi(argv[3]) : 15};
    int status;

    weft_cuda_driver_widen();
    if (b.rounds < 1 || b.rounds > ROUNDS_MOST ||
        failed(&b.error, weft_cuda_gpus.open(0, &b.device, &b.error)))
        return 1;
    b.device.cu->cuCtxSetCurrent(b.device.context);
    b.host = malloc((size_t)SIZE * PART * 2);
    b.own = malloc((size_t)M_MOST * SIZE * 2);
    status = !b.host || !b.own || run(&b);
    free(b.host);
    free(b.own);
    weft_cuda_device_close(&b.device);
    return status;
}
