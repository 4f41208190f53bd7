/*
 * Products of few rows on one rank of eight that has a GPU to itself, over an emulated link:
 *
 *     build/bench/cuda_decode_link [GB/s [us [rounds]]]
 *
 * N = K = 8192 over all ranks, 1 to 128 rows, bfloat16 with sums that travel as bfloat16, all replayed from
 * graphs. The rank runs as the library would run it; its peers are their memory, and what they would send it
 * comes when the link would have brought it (bench/cuda/link.h). A run takes other weights than the seven
 * before it, so that they come from memory. `cublas` and `own` are the rank's product alone, cuBLASLt's and
 * weft's, with no link and no peers; `hops1` and `hops2` the whole product, its sums sent by the kernel that
 * multiplies, in one hop or in two; `own+` weft's product and behind it the collective that reduces its sums,
 * as one call; `auto` says in how many hops it sends. What the collective takes by itself is
 * `weft bench all_reduce --backend cuda -n 8 --link ...`, which reduces the same bytes. cuBLASLt's product
 * is not timed beside peers: its CTAs need all registers of an SM, and so the SMs on which nobody stands for
 * one. D is compared on small integers. Medians, us.
 */
#include "bench/cuda/failed.h"
#include "bench/cuda/loop.h"
#include "core/dtype.h"
#include "core/round.h"
#include "run/cuda/collective.h"
#include "run/cuda/halves.h"

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
    PEERS_LINES = 8 /* that a CTA of them has at least */
};

typedef struct bench {
    loop_gpu gpu;
    int rounds;
    char *a, *b, *d;
    uint16_t *host, *own; /* own: the product of this rank, row by row */
} bench;

/* One way of making a product. */
typedef struct product {
    loop loop;
    weft_plan_part collective; /* behind the product, or without ranks */
    char *inboxes[WORLD];      /* of the collective */
    weft_cuda_executor executors[WEIGHTS];
} product;

/* ---- a plan ------------------------------------------------------------------------------------------ */

static weft_problem whole_problem(weft_op op, int64_t m)
{
    weft_problem p;

    weft_problem_init(&p, op);
    p.m = m;
    p.n = p.k = SIZE;
    p.dtype = p.d_dtype = p.wire_dtype = WEFT_BF16;
    return p;
}

static int make_parts(bench *b, product *made, const weft_problem *p, int world)
{
    weft_cuda_basis basis = loop_basis(&b->gpu, world);

    return loop_make_parts(&b->gpu, &made->loop, p, world) ||
           failed(&b->gpu.error, weft_cuda_halves_make(&made->loop.parts[0], &basis, true, &made->collective,
                                                       &b->gpu.error));
}

/* In how many hops `auto` sends; 0: it does not. */
static int chosen(const bench *b, weft_op op, int64_t m)
{
    weft_cuda_basis basis = loop_basis(&b->gpu, WORLD);
    weft_problem p = whole_problem(op, m);

    return weft_cuda_choose(&basis, &p).tuning.exchange % 3;
}

static const weft_cuda_wire wire = {.whole_lines = true, .apart = true};

/* What the plan has of its own is in the slots; peers' operands of the caller are the rank's. */
static int make_memory(bench *b, product *p)
{
    const weft_plan_part *part = &p->loop.parts[0];
    size_t bytes[OPERANDS_MOST] = {0}, world = (size_t)part->world;

    if (part->operand_count > OPERANDS_MOST)
        return failed(&b->gpu.error,
                      weft_error_set(&b->gpu.error, WEFT_ERR_UNSUPPORTED, "too many operands"));
    for (uint32_t o = 0; o < part->operand_count; o++) {
        size_t sent = weft_cuda_exchange_bytes(part, o);

        if (part->operands[o].place != WEFT_PLACE_USER)
            bytes[o] = sent ? sent
                            : (size_t)(weft_operand_rows(&part->operands[o], part->world, 0) *
                                       weft_operand_cols(&part->operands[o], part->world, 0)) *
                                  2;
    }
    if (loop_make_memory(&b->gpu, &p->loop, bytes, weft_cuda_halves_bytes(&p->collective, wire),
                         p->collective.signal_count, p->inboxes))
        return 1;
    for (uint32_t o = 0; o < part->operand_count; o++)
        for (size_t r = 0; r < world && part->operands[o].place == WEFT_PLACE_USER; r++)
            p->loop.places[o * world + r].base = part->operands[o].role == WEFT_ROLE_A   ? b->a
                                                 : part->operands[o].role == WEFT_ROLE_B ? b->b
                                                                                         : b->d;
    return 0;
}

/* The same plan with each of the weights. */
static int make_executors(bench *b, product *p)
{
    const weft_plan_part *part = &p->loop.parts[0];
    weft_cuda_limits limits = {5, 5};

    for (size_t i = 0; i < WEIGHTS; i++) {
        weft_cuda_binding binding = {.places = p->loop.places,
                                     .signals = p->loop.signals,
                                     .wire = wire,
                                     .collective = p->collective.world ? &p->collective : NULL,
                                     .inboxes = p->inboxes};

        for (uint32_t o = 0; o < part->operand_count; o++)
            if (part->operands[o].place == WEFT_PLACE_USER && part->operands[o].role == WEFT_ROLE_B)
                p->loop.places[o * (uint32_t)part->world].base = b->b + i * (size_t)SIZE * PART * 2;
        if (failed(&b->gpu.error,
                   weft_cuda_executor_make(&b->gpu.device, part, &binding, p->loop.controls,
                                           b->gpu.device.crews, &limits, &p->executors[i], &b->gpu.error)))
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

static double value_of(const void *context, int peer, bool result, int64_t index)
{
    return result ? expected(context, index / SIZE, index % SIZE) : sent_by(peer, index / SIZE, index % SIZE);
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

static int make_peers(bench *b, product *p)
{
    const weft_cuda_executor *executor = &p->executors[0];
    bool marked = executor->kind == WEFT_CUDA_EXCHANGE;
    answers a = answers_of(executor);
    size_t image = (size_t)a.parity_bytes;
    char *images = calloc(2, image);
    void *at[2] = {0};
    int status = 0;

    if (!images)
        return failed(&b->gpu.error, weft_error_set(&b->gpu.error, WEFT_ERR_MEMORY, "no memory for peers"));
    for (int hop = 0; hop < (a.returns ? 2 : 1); hop++)
        for (int r = 1; r < WORLD && !status; r++) {
            char *row = images + (size_t)hop * image + r * a.row_bytes;

            if (marked)
                fill_image(b, r, hop, hop ? r * executor->exchange.rows : 0, executor->exchange.rows,
                           (uint16_t *)(void *)row);
            else
                status = loop_fill_lines(&b->gpu, &executor->packets, WEFT_BF16, r, hop, value_of, b, row);
        }
    p->loop.peers = (weft_cuda_link){
        .marked = marked,
        .notice_ns = WEFT_CUDA_LINK_PACKET_NS,
        .row_bytes = a.row_bytes,
        .parity_bytes = a.parity_bytes,
        .chunk_packets =
            weft_round_up(weft_divide_up(a.hop[0].lines, WEFT_CUDA_LINK_LINES_CTAS), PEERS_LINES),
        .chunks = 1,
        .busy_ps = (int64_t)((WORLD - 1) * WEFT_CUDA_LINE_BYTES * 1e3 / b->gpu.bytes_per_ns)};
    p->loop.peers_grid = (unsigned)weft_divide_up(a.hop[0].lines, p->loop.peers.chunk_packets);
    status = status || loop_load_peers(&b->gpu, &p->loop, (const void *[]){images, images + image},
                                       (size_t[]){image, image}, 2, at);
    free(images);
    for (int hop = 0; hop < (a.returns ? 2 : 1); hop++) {
        p->loop.peers.hop[hop] = a.hop[hop];
        p->loop.peers.hop[hop].images = at[hop];
    }
    return status;
}

/* ---- runs -------------------------------------------------------------------------------------------- */

/* Runs with the first weights, D poisoned before; the rows of D that this rank has into b->host. */
static int run_once(bench *b, product *p, int64_t rows)
{
    size_t bytes = (size_t)(rows * SIZE) * 2;

    memset(b->host, 0xa5, bytes);
    return loop_put(&b->gpu, b->d, b->host, bytes) ||
           loop_start_peers(&b->gpu, &p->loop, &p->executors[0], 1) ||
           failed(&b->gpu.error, weft_cuda_executor_launch(&p->executors[0], b->gpu.stream, &b->gpu.error)) ||
           loop_end(&b->gpu, &p->executors[0]) || loop_take(&b->gpu, b->host, b->d, bytes);
}

static int64_t rows_of(const product *p)
{
    const weft_problem *problem = &p->loop.parts[0].problem;

    return problem->op == WEFT_OP_GEMM_RS ? problem->m / WORLD : problem->m;
}

/* Whether b->host is what D is to be. */
static bool is_right(const bench *b, int64_t rows)
{
    for (int64_t i = 0; i < rows * SIZE; i++)
        if (weft_element_get(WEFT_BF16, b->host, (size_t)i) != expected(b, i / SIZE, i % SIZE))
            return false;
    return true;
}

static int check(bench *b, product *p, bool *wrong)
{
    for (int n = 0; n < 3; n++) {
        if (run_once(b, p, rows_of(p)))
            return 1;
        *wrong |= !is_right(b, rows_of(p));
    }
    return 0;
}

/* The same of the last run of a graph, which has the first weights and follows others that have not. */
static int check_graph(bench *b, const product *p, bool *wrong)
{
    if (loop_take(&b->gpu, b->host, b->d, (size_t)(rows_of(p) * SIZE) * 2))
        return 1;
    *wrong |= !is_right(b, rows_of(p));
    return 0;
}

static int by_size(const void *one, const void *other)
{
    double x = *(const double *)one, y = *(const double *)other;

    return (x > y) - (x < y);
}

static int measure(bench *b, product *p, double *median)
{
    double us[ROUNDS_MOST];

    if (loop_capture(&b->gpu, &p->loop, p->executors, WEIGHTS, CALLS) ||
        loop_measure(&b->gpu, &p->loop, &p->executors[0], CALLS, b->rounds, us))
        return 1;
    qsort(us, (size_t)b->rounds, sizeof(*us), by_size);
    *median = us[b->rounds / 2];
    return 0;
}

static void free_product(bench *b, product *p)
{
    for (int i = 0; i < WEIGHTS; i++)
        weft_cuda_executor_free(&p->executors[i]);
    loop_free(&b->gpu, &p->loop);
    weft_plan_part_free(&p->collective);
}

/* The product of this rank alone; `own` of it into b->own, by whoever comes first. */
static int measure_product(bench *b, int64_t m, int library)
{
    product made = {0};
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
    status = make_parts(b, &made, &p, 1) || make_memory(b, &made) || make_executors(b, &made) ||
             run_once(b, &made, m);
    if (!status)
        memcpy(b->own, b->host, (size_t)(m * SIZE) * 2);
    status = status || measure(b, &made, &us);
    if (!status)
        printf("  %s %.2f", library == 1 ? "cublas" : "own", us);
    free_product(b, &made);
    return status;
}

/* exchange: as of a tuning. */
static int measure_whole(bench *b, weft_op op, int64_t m, int exchange)
{
    product made = {0};
    weft_problem p = whole_problem(op, m);
    double us = 0;
    bool wrong = false;
    int status;

    p.schedule = WEFT_SCHEDULE_UNFUSED;
    p.tuning.library = 3;
    p.tuning.exchange = exchange;
    status = make_parts(b, &made, &p, WORLD) || make_memory(b, &made) || make_executors(b, &made) ||
             make_peers(b, &made) || check(b, &made, &wrong) || measure(b, &made, &us) ||
             check_graph(b, &made, &wrong);
    if (!status && exchange == 3)
        printf("  own+ %.2f%s", us, wrong ? " WRONG" : "");
    else if (!status)
        printf("  hops%d %.2f%s", exchange, us, wrong ? " WRONG" : "");
    fflush(stdout);
    free_product(b, &made);
    return status;
}

/* Small integers, mostly zeros: sums over all of k and all ranks are exact in bfloat16. */
static int fill(bench *b, char *to, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t z = ((uint64_t)i + seed) * 0x9e3779b97f4a7c15u;

        z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9u;
        z ^= z >> 32;
        weft_element_set(WEFT_BF16, b->host, (size_t)i, z % 8 == 0 ? (z >> 8) % 2 ? 1 : -1 : 0);
    }
    return loop_put(&b->gpu, to, b->host, (size_t)count * 2);
}

static int make(loop_gpu *b, size_t bytes, char **memory)
{
    CUdeviceptr made;

    TRY(cuMemAlloc(&made, bytes));
    *memory = (char *)(uintptr_t)made;
    return 0;
}

static int run(bench *b)
{
    static const int rows[] = {1, 8, 32, 64, 128};
    static const weft_op ops[] = {WEFT_OP_GEMM_AR, WEFT_OP_GEMM_RS};
    int status = 0;

    if (loop_gpu_begin(&b->gpu) || make(&b->gpu, (size_t)M_MOST * PART * 2, &b->a) ||
        make(&b->gpu, (size_t)WEIGHTS * SIZE * PART * 2, &b->b) ||
        make(&b->gpu, (size_t)M_MOST * SIZE * 2, &b->d) || fill(b, b->a, (int64_t)M_MOST * PART, 1))
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
    bench b = {.gpu = {.bytes_per_ns = argc > 1 ? atof(argv[1]) : 450,
                       .latency_ns = (argc > 2 ? atof(argv[2]) : 2) * 1e3},
               .rounds = argc > 3 ? atoi(argv[3]) : 15};
    int status;

    if (b.rounds < 1 || b.rounds > ROUNDS_MOST || failed(&b.gpu.error, loop_gpu_open(&b.gpu)))
        return 1;
    b.host = malloc((size_t)SIZE * PART * 2);
    b.own = malloc((size_t)M_MOST * SIZE * 2);
    status = !b.host || !b.own || run(&b);
    free(b.host);
    free(b.own);
    emulated_free(&b.gpu.device, &b.gpu.emulated);
    weft_cuda_device_close(&b.gpu.device);
    return status;
}
