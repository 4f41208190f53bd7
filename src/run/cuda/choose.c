/* What measured fastest. See choose.h. */
#include "run/cuda/choose.h"

#include "core/dtype.h"
#include "core/part.h"
#include "core/round.h"
#include "run/cuda/collective.h"
#include "run/cuda/cost.h"
#include "run/cuda/cublaslt.h"
#include "run/cuda/exchanged.h"
#include "run/cuda/splitk_product.h"

enum {
    PANELS_SIDE_BY_SIDE = 8, /* 8 x 8 tiles are about a round of the crews: least traffic for the product */
    CHUNK_K = 512,           /* 1 KiB of a row: small enough to start early, large enough to copy fast */
    COPIERS = 2,
    CREW_CTAS = 2,
    NARROW_N = 224, /* narrower tiles of crews of two: see walker.h */
    HALF_N = 128,
    OWN_ROWS = 2048,
    LINK_K = 878,      /* 790 TFLOP/s beside 450 GB/s */
    SPLITK_ROWS = 8,   /* up to which the kernel for products by themselves is faster than cuBLASLt, */
    SPLITK_COLS = 192, /* if all its tiles fit the GPU at once: so many columns to an SM */
    HALF_A_GPU = 33,   /* crews of an H200 */
    A_QUARTER = 16,
    SHARED_ROWS = 1024,    /* of a gemm_rs */
    SEND_ROWS = 32,        /* up to which the product's kernel sends its sums faster than a collective does */
    PADDED = 8,            /* elements, to which lines of staged operands are padded */
    SUM_ROWS = 32,         /* of what is added up at once */
    MOVED_BYTES = 16 << 10 /* of A, at once */
};

static weft_schedule usual_schedule(const weft_problem *p)
{
    switch (p->op) {
    case WEFT_OP_AG_GEMM:
        return p->layout == WEFT_LAYOUT_GATHER_B ? WEFT_SCHEDULE_ALLGATHER_ROTATING_B
                                                 : WEFT_SCHEDULE_ALLGATHER_ROTATING_A;
    case WEFT_OP_GEMM_RS:
        return p->layout == WEFT_LAYOUT_SCATTER_COLS ? WEFT_SCHEDULE_REDUCESCATTER_TILING_B
                                                     : WEFT_SCHEDULE_REDUCESCATTER_TILING_A;
    case WEFT_OP_GEMM_AR:
        return WEFT_SCHEDULE_TWO_SHOT;
    default:
        return WEFT_SCHEDULE_ALL_SCATTER;
    }
}

/* Panels of 256 rows and columns of tiles that a rank computes. */
static int64_t tiles_of(const weft_problem *p, int world, int64_t tile_n)
{
    bool ag = p->op == WEFT_OP_AG_GEMM, gather_a = p->layout == WEFT_LAYOUT_GATHER_A;
    int64_t down = 0, across = 0;
    for (int r = 0; r < world; r++) {
        down += (weft_part(p->m, world, r).count + p->tuning.tile_m - 1) / p->tuning.tile_m;
        across += (weft_part(p->n, world, r).count + tile_n - 1) / tile_n;
    }
    if (ag && gather_a)
        across = (weft_part(p->n, world, 0).count + tile_n - 1) / tile_n;
    else if (ag)
        down = (weft_part(p->m, world, 0).count + p->tuning.tile_m - 1) / p->tuning.tile_m;
    return down * across * p->l;
}

/*
 * The ring of a gemm_rs has narrow tiles where the links are busy for longer than the tensor cores, or where
 * a step's tiles are too few for the crews: the first are finished sooner, and no crew waits for sums of
 * another that began when it did. A link takes as long for an element as the product for LINK_K times its
 * bytes in k.
 */
static bool narrow_ring(const weft_problem *p, int world, int crews)
{
    int64_t k = weft_part(p->k, world, 0).count, wire = (int64_t)weft_dtype_size(p->wire_dtype);
    return k < LINK_K * wire || tiles_of(p, world, WEFT_CUDA_TILE_N) * 2 <= (int64_t)crews * world;
}

/* The width with which the crews' rounds take less time: a round lasts as long as its tiles are wide. Wider
 * tiles load less for the same product, so they win a tie. Stream-K divides the last round anyway. */
static int64_t usual_width(const weft_problem *p, int world, int crews)
{
    int64_t wide = (tiles_of(p, world, WEFT_CUDA_TILE_N) + crews - 1) / crews * WEFT_CUDA_TILE_N;
    int64_t narrow = (tiles_of(p, world, NARROW_N) + crews - 1) / crews * NARROW_N;
    if (p->op == WEFT_OP_GEMM_AS || p->op == WEFT_OP_GEMM_AR)
        return WEFT_CUDA_TILE_N;
    return narrow < wide ? NARROW_N : WEFT_CUDA_TILE_N;
}

/* As few crews as take no more rounds. What a round needs is fetched side by side, and a few tiles of one
 * more shard would make all the others wait for it; and in a ring, a few tiles of a later step wait for this
 * one. */
static int even_crews(int64_t tiles, int crews)
{
    int64_t rounds = (tiles + crews - 1) / crews;
    return rounds > 0 ? (int)((tiles + rounds - 1) / rounds) : crews;
}

/* Nothing is asked about tiles and lanes. */
static bool all_open(const weft_tuning *t)
{
    return !t->tile_m && !t->tile_n && !t->tile_k && !t->workers && !t->chunk_k && !t->crew;
}

/*
 * Whether weft's own kernels beat cuBLASLt on aligned operands: with very few rows, and where tiles of 224
 * columns, which cuBLASLt has not, fill rounds that those of 256 leave half empty, and lines begin on whole
 * sectors.
 */
static bool own_wins(const weft_problem *p, int crews)
{
    weft_cuda_shape shape = {p->m, p->n, p->k, p->l, crews};
    weft_cuda_way way = weft_cuda_cost_least(&shape, false);

    if (weft_dtype_is_fp8(p->dtype))
        return false;
    return (p->m <= SPLITK_ROWS && p->n <= (int64_t)SPLITK_COLS * CREW_CTAS * crews &&
            weft_splitk_makes(p, 1)) ||
           (way.walker == WEFT_CUDA_PAIR_224 && way.chunk_k == 0 && p->m >= OWN_ROWS &&
            p->n % WEFT_CUDA_TILE_K == 0 && p->k % WEFT_CUDA_TILE_K == 0);
}

/* Whether a rank alone does without a walker, by the models. */
static bool splitk_wins(const weft_problem *p, int crews)
{
    weft_cuda_shape shape = {p->m, p->n, p->k, p->l, crews};

    return weft_splitk_makes(p, 1) && weft_splitk_fastest(p->m, p->n, p->k, CREW_CTAS * crews).ns <
                                          weft_cuda_cost_least(&shape, false).ns;
}

bool weft_cuda_halves(const weft_problem *p, int world)
{
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;

    if (world == 1 || p->l != 1 || p->schedule != WEFT_SCHEDULE_UNFUSED)
        return false;
    if (p->op == WEFT_OP_AG_GEMM)
        return p->layout != WEFT_LAYOUT_GATHER_B && !weft_layout_gathers_k(p->layout) && !p->transa &&
               p->m % world == 0 && p->k % PADDED == 0;
    return sums &&
           (p->op == WEFT_OP_GEMM_AR || (p->layout != WEFT_LAYOUT_SCATTER_COLS && p->m % world == 0)) &&
           p->n % PADDED == 0 && p->wire_dtype == p->d_dtype && p->alpha == 1 && p->beta == 0 && !p->bias &&
           p->act == WEFT_ACT_NONE;
}

/*
 * Few rows: tiles of a fused product leave most SMs without work for all of k, which costs more than the
 * communication that they hide. Not of gemm_as where many ranks share a GPU. Where ranks share one, what is
 * fused takes memory's time as well: a collective by itself adds up faster, of a gemm_ar any number of rows.
 */
static bool few_rows(const weft_problem *p, int world, int crews)
{
    int64_t few = p->op == WEFT_OP_GEMM_AS ? 32 : p->op == WEFT_OP_GEMM_AR ? 128 : 256;
    weft_problem unfused = *p;

    unfused.schedule = WEFT_SCHEDULE_UNFUSED;
    if (crews <= HALF_A_GPU && weft_cuda_halves(&unfused, world) && p->op != WEFT_OP_AG_GEMM)
        return p->op == WEFT_OP_GEMM_AR || p->m <= SHARED_ROWS;
    return p->m <= few && (p->op != WEFT_OP_GEMM_AS || crews >= HALF_A_GPU);
}

/* In how many hops the product's kernel sends its sums, where that is faster than a collective behind it; 0:
 * nowhere. */
static int hops_of(const weft_problem *p, int world)
{
    bool faster = p->op == WEFT_OP_GEMM_RS ? (world > 4) == (p->m <= 8)
                  : world > 4              ? p->m <= 4
                                           : world == 2 && p->m > 8;

    return faster && p->m <= SEND_ROWS && weft_splitk_makes(p, world) && weft_cuda_exchanges(p, world, 1);
}

/* Whether the kernel for products by themselves is faster than cuBLASLt beside others like it on one GPU: of
 * sums, where many ranks share it and each has little of k. */
static bool splits_beside(const weft_problem *p, int world, int crews)
{
    return (p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR) && world > 4 && crews <= A_QUARTER &&
           p->m <= 2 * SEND_ROWS && weft_splitk_makes(p, world);
}

/* Rows of A that are moved at once. */
static int64_t moved_rows(const weft_problem *p)
{
    int64_t rows = MOVED_BYTES / (p->k * (int64_t)weft_dtype_size(p->dtype) + 1);

    return rows > 1 ? rows : 1;
}

/* Unfused, of several ranks: who multiplies is decided, how the ranks get what they share is not. A
 * collective is the fastest way unless tiles are asked for, which it does not know. */
static void choose_exchange(weft_problem *p, int world, int crews)
{
    bool open = !p->tuning.tile_m && !p->tuning.tile_n && !p->tuning.workers;

    if (p->tuning.exchange == 3 || (p->tuning.exchange == 0 && open))
        p->tuning.exchange = weft_cuda_halves(p, world) ? 3 : 0;
    if (!p->tuning.tile_n)
        p->tuning.tile_n = HALF_N;
    if (!p->tuning.tile_m && p->op != WEFT_OP_AG_GEMM)
        p->tuning.tile_m = SUM_ROWS;
    else if (!p->tuning.tile_m && p->layout != WEFT_LAYOUT_GATHER_B)
        p->tuning.tile_m = moved_rows(p);
    if (!p->tuning.workers)
        p->tuning.workers = CREW_CTAS * crews < WEFT_CUDA_CREWS_MAX ? CREW_CTAS * crews : WEFT_CUDA_CREWS_MAX;
}

/* The kernel for products by themselves was asked for, and can. Of several ranks cuBLASLt makes those whose
 * operands turn out not to be aligned. */
static bool takes_splitk(const weft_problem *p, int world, bool hopper, bool library)
{
    return p->tuning.library == 3 && hopper && weft_splitk_makes(p, world) &&
           (world == 1 || (library && weft_cublaslt_makes(p, world) &&
                           (p->schedule == WEFT_SCHEDULE_AUTO || p->schedule == WEFT_SCHEDULE_UNFUSED)));
}

/* Who multiplies. `unfused` is cuBLASLt's; `auto` is unfused where that is faster. */
static void choose_library(weft_problem *p, int world, int crews, bool hopper, bool library)
{
    bool open = p->tuning.library == 0 && all_open(&p->tuning), left;

    if (weft_problem_stores_sums(p) && !weft_cuda_exchanges(p, world, p->tuning.exchange))
        p->tuning.library = 2; /* as any plan */
    if (takes_splitk(p, world, hopper, library)) {
        if (world > 1) {
            p->schedule = WEFT_SCHEDULE_UNFUSED;
            choose_exchange(p, world, hopper ? crews : crews / CREW_CTAS);
        }
        return;
    }
    if (p->tuning.library == 3)
        p->tuning.library = 2;
    library = library && weft_cublaslt_makes(p, world);
    left = world > 1 ? library && few_rows(p, world, crews) : library && !(hopper && own_wins(p, crews));
    if (p->schedule == WEFT_SCHEDULE_AUTO && open && left && world > 1 && hopper && hops_of(p, world)) {
        p->schedule = WEFT_SCHEDULE_UNFUSED;
        p->tuning.exchange = hops_of(p, world);
        p->tuning.library = 3;
        choose_exchange(p, world, crews);
        return;
    }
    if (p->schedule == WEFT_SCHEDULE_AUTO && open && left && hopper && splits_beside(p, world, crews)) {
        p->schedule = WEFT_SCHEDULE_UNFUSED;
        p->tuning.library = 3;
        choose_exchange(p, world, crews);
        return;
    }
    if (p->schedule == WEFT_SCHEDULE_AUTO && ((open && left) || (library && p->tuning.library == 1)))
        p->schedule = WEFT_SCHEDULE_UNFUSED;
    if (p->tuning.library != 2)
        p->tuning.library =
            library && (open || p->tuning.library) && p->schedule == WEFT_SCHEDULE_UNFUSED ? 1 : 2;
    if (world == 1 && open && p->tuning.library == 2 && hopper && splitk_wins(p, crews))
        p->tuning.library = 3;
    if (world > 1 && p->tuning.library == 1)
        choose_exchange(p, world, hopper ? crews : crews / CREW_CTAS);
}

/* The same for fp8, which has two walkers; their steps take twice the k of 16 bits in the same time. */
static void choose_fp8_alone(weft_problem *p, int crews)
{
    static const int walkers[] = {WEFT_CUDA_PAIR_128, WEFT_CUDA_ONE_128};
    weft_cuda_shape shape = {p->m, p->n, weft_divide_up(p->k, 2), p->l, crews};
    weft_cuda_way best = {0}, way;

    for (int i = 0; i < 4; i++)
        if (weft_cuda_cost(&shape, walkers[i / 2], i % 2, &way) && (best.workers == 0 || way.ns < best.ns))
            best = way;
    p->tuning.tile_m = weft_cuda_walkers[best.walker].tile_m;
    p->tuning.tile_n = weft_cuda_walkers[best.walker].tile_n;
    p->tuning.chunk_k = 2 * best.chunk_k;
    p->tuning.workers = best.workers;
    p->tuning.crew = weft_cuda_walkers[best.walker].ctas;
}

/* One rank has its product to itself: the fastest walker and division of k, by the model. */
static void choose_alone(weft_problem *p, int crews)
{
    weft_cuda_shape shape = {p->m, p->n, p->k, p->l, crews};
    weft_cuda_way way = weft_cuda_cost_least(&shape, false);

    p->tuning.tile_m = weft_cuda_walkers[way.walker].tile_m;
    p->tuning.tile_n = weft_cuda_walkers[way.walker].tile_n;
    p->tuning.chunk_k = way.chunk_k;
    p->tuning.workers = way.workers;
    p->tuning.crew = weft_cuda_walkers[way.walker].ctas;
}

void weft_cuda_choose(weft_problem *p, int world, int crews, bool hopper, bool library)
{
    bool fetches, fp8 = weft_dtype_is_fp8(p->dtype);
    choose_library(p, world, crews, hopper, library);
    if (p->schedule == WEFT_SCHEDULE_AUTO)
        p->schedule = usual_schedule(p);
    if (hopper && world == 1 && !p->tuning.tile_m && !p->tuning.tile_n && !p->tuning.workers &&
        !p->tuning.chunk_k) {
        if (fp8)
            choose_fp8_alone(p, crews);
        else
            choose_alone(p, crews);
    }
    if (!p->tuning.tile_m)
        p->tuning.tile_m = WEFT_CUDA_TILE_M;
    /* the copy engine adds in memory: the crews need not read what they add to */
    p->tuning.sums_stay = hopper && p->op == WEFT_OP_GEMM_RS && p->schedule != WEFT_SCHEDULE_DIRECT &&
                          p->schedule != WEFT_SCHEDULE_UNFUSED;
    if (!p->tuning.tile_n && fp8)
        p->tuning.tile_n = WEFT_CUDA_FP8_N;
    else if (!p->tuning.tile_n && p->tuning.sums_stay && world > 1 && narrow_ring(p, world, crews))
        p->tuning.tile_n = HALF_N;
    else if (!p->tuning.tile_n)
        p->tuning.tile_n = hopper ? usual_width(p, world, crews) : WEFT_CUDA_TILE_N;
    if (!p->tuning.tile_k)
        p->tuning.tile_k = fp8 ? WEFT_CUDA_FP8_K : WEFT_CUDA_TILE_K;
    if (!p->tuning.raster)
        p->tuning.raster = PANELS_SIDE_BY_SIDE;
    fetches = world > 1 && p->op == WEFT_OP_AG_GEMM && p->schedule != WEFT_SCHEDULE_DIRECT &&
              p->schedule != WEFT_SCHEDULE_UNFUSED;
    if (!fetches)
        p->tuning.copiers = 0;
    else if (!p->tuning.copiers)
        p->tuning.copiers = hopper ? crews * CREW_CTAS * WEFT_CUDA_CTA_COPIERS : COPIERS;
    if (fetches && !p->tuning.chunk_k)
        p->tuning.chunk_k = fp8 ? 2 * CHUNK_K : CHUNK_K;
    /* the storers of Hopper crews copy beside their own work; elsewhere a copy lane is a CTA */
    if (!p->tuning.workers && hopper && (fetches || p->tuning.sums_stay))
        p->tuning.workers = even_crews(tiles_of(p, world, p->tuning.tile_n), crews);
    else if (!p->tuning.workers)
        p->tuning.workers = hopper || crews <= p->tuning.copiers ? crews : crews - p->tuning.copiers;
    p->b_form = WEFT_B_PLAIN;
}

/* ---- collectives ------------------------------------------------------------------------------------- */

/* Measured on ranks that share a GPU, 2, 4 and 8 of them. */
enum {
    PACKETS_BYTES_2 = 128 << 10, /* of a rank: beyond, packets take longer than ENTER and DONE */
    PACKETS_BYTES_4 = 64 << 10,
    PACKETS_BYTES = 8 << 10,    /* and of a broadcast, which only its root sends */
    ONE_SHOT_BYTES = 896 << 10, /* that a rank reads of its peers: beyond, slices take less */
    CTA_PACKETS = 256,          /* a thread each, while there are CTAs */
    CTA_BYTES = 16 << 10,       /* less is not worth another CTA */
    MOST_BYTES = 48 << 10,      /* of a CTA while half of them do: then the next kernel can come in early */
    CHUNK_BYTES = 1 << 30,      /* a task counts its bytes in 31 bits */
};

/* Measured on one rank of eight over an emulated link of 450 GB/s and 2 us. */
enum {
    LINK_PACKETS_BYTES = 2 << 20, /* that a rank sends as packets: beyond, two more hops take less */
    LINK_CTA_BYTES = 2 << 10,
    LINK_CTAS = 64, /* have more bytes under way than a link carries in its latency */
};

static weft_schedule schedule_over_links(const weft_problem *p, int world, int64_t bytes)
{
    if (world > 1 && world <= WEFT_CUDA_PACKET_RANKS && bytes * (world - 1) <= LINK_PACKETS_BYTES)
        return WEFT_SCHEDULE_PACKETS;
    return p->op == WEFT_OP_BROADCAST || p->op == WEFT_OP_ALL_REDUCE ? WEFT_SCHEDULE_PUSH
                                                                     : WEFT_SCHEDULE_PULL;
}

static weft_schedule collective_schedule(const weft_problem *p, int world, int64_t bytes)
{
    int64_t packets = world > 4 || p->op == WEFT_OP_BROADCAST ? PACKETS_BYTES
                      : world > 2                             ? PACKETS_BYTES_4
                                                              : PACKETS_BYTES_2;
    if (world > 1 && world <= WEFT_CUDA_PACKET_RANKS && bytes <= packets)
        return WEFT_SCHEDULE_PACKETS;
    if (p->op == WEFT_OP_BROADCAST)
        return WEFT_SCHEDULE_PUSH;
    if (p->op != WEFT_OP_ALL_REDUCE)
        return WEFT_SCHEDULE_PULL;
    return bytes * (world - 1) <= ONE_SHOT_BYTES ? WEFT_SCHEDULE_ONE_SHOT : WEFT_SCHEDULE_PUSH;
}

static int64_t at_most(int64_t value, int64_t most)
{
    return value < most ? value : most;
}

void weft_cuda_choose_collective(weft_problem *p, int world, int ctas, bool whole)
{
    int64_t size = (int64_t)weft_dtype_size(p->dtype), bytes = p->count * size, granule = 16 / size, work,
            cut, least = whole ? LINK_CTA_BYTES : CTA_BYTES;
    if (2 * ctas > WEFT_CUDA_CREWS_MAX)
        ctas = WEFT_CUDA_CREWS_MAX / 2;
    if (p->schedule == WEFT_SCHEDULE_AUTO)
        p->schedule = whole ? schedule_over_links(p, world, bytes) : collective_schedule(p, world, bytes);
    /* what a rank's lanes have in all, and what they cut */
    cut = p->op == WEFT_OP_ALL_REDUCE && p->schedule != WEFT_SCHEDULE_ONE_SHOT &&
                  p->schedule != WEFT_SCHEDULE_PACKETS
              ? (p->count + world - 1) / world
              : p->count;
    work = p->op == WEFT_OP_ALL_REDUCE ? cut * size : bytes * world;
    if (p->schedule == WEFT_SCHEDULE_PACKETS) {
        int64_t packets = (bytes + WEFT_CUDA_PACKET_PAYLOAD - 1) / WEFT_CUDA_PACKET_PAYLOAD;
        int64_t chunks = at_most((packets + CTA_PACKETS - 1) / CTA_PACKETS, ctas);

        /* a chunk is a CTA, so both are decided here */
        p->tuning.tile_n = chunks ? weft_round_up((p->count + chunks - 1) / chunks, granule) : 0;
        p->tuning.workers =
            p->tuning.tile_n ? (int)((p->count + p->tuning.tile_n - 1) / p->tuning.tile_n) : 1;
        return;
    }
    if (!p->tuning.workers)
        p->tuning.workers = (int)at_most((work + least - 1) / least,
                                         whole ? at_most(LINK_CTAS, 2 * ctas)
                                         : work > (int64_t)MOST_BYTES * (ctas / 2) || ctas < 2 ? 2 * ctas
                                                                                               : ctas / 2);
    if (!p->tuning.workers)
        p->tuning.workers = 1;
    if (!p->tuning.tile_n) {
        int64_t rows =
            cut ? (work + cut * size - 1) / (cut * size) : 1; /* lanes are dealt chunks of every row */
        int64_t pieces = (p->tuning.workers + rows - 1) / rows;

        p->tuning.tile_n = cut ? weft_round_up((cut + pieces - 1) / pieces, granule) : granule;
    }
    p->tuning.tile_n = at_most(p->tuning.tile_n, CHUNK_BYTES / size);
}
