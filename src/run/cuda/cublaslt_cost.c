/* See cublaslt_cost.h. */
#include "run/cuda/cublaslt_cost.h"

#include "core/round.h"
#include "choose/cuda/cost.h"

#include <math.h>

enum { STEP = 64 /* of k */, LINE = 2 * STEP, LONG_SIDE = 448, OTHER_SIDE = 48, PARTS_MOST = 1024 };

/*
 * Nanoseconds, and bytes or products a nanosecond; all but the loads and the products of one SM are of the
 * whole GPU. Fitted to 5 000 algorithms for 640 products on H200s of 132 SMs, so that what is taken is near
 * the fastest.
 */
static const double LAUNCH = 2712, MEMORY = 4226, CACHE = 10440, MULTIPLIES = 3279, LOADS = 165;
static const double STEP_LEAST = 71; /* whatever the tile */
/* By how much each further CTA of a cluster spares L2 loads: of weights those below, of tokens those beside.
 */
static const double WEIGHTS_SHARED = 0.70, TOKENS_SHARED = 0.41;
static const double ENDS = 0.032; /* for each of a tile's sums */
static const double SPLIT = 1895; /* where k is split, */
static const double PART = 39;    /* for each part of it, */
static const double SUMS = 1888;  /* and the sums of all parts */
/* Times all, by the part of D's columns and rows that clusters' tiles have beyond it: the copy engine takes
 * longer for zeros than for data. */
static const double BEYOND_ACROSS = 0.21, BEYOND_DOWN = 0.046;
static const double OVERFULL = 1.38; /* long tiles of many sums */
static const double NARROW = 1.29;   /* tiles of 32 columns, */
static const double UNEVEN = 1.07;   /* of 96 and of 160 */
/* By an algorithm's custom option, whose two bits here cuBLASLt does not explain. */
static const double OPTIONS[2][2] = {{0.952, 1}, {1.066, 1.03}};

typedef struct sides {
    int across, down; /* columns and rows of D */
} sides;

/* Tiles have numbers: those that came first, */
static const struct {
    uint32_t number;
    sides tile;
} early[] = {
    {10, {64, 8}},     {12, {32, 64}},   {13, {64, 32}},    {14, {32, 128}},   {15, {64, 64}},
    {16, {128, 32}},   {17, {64, 128}},  {18, {128, 64}},   {19, {64, 256}},   {20, {128, 128}},
    {21, {256, 64}},   {22, {64, 512}},  {23, {128, 256}},  {24, {256, 128}},  {25, {512, 64}},
    {26, {64, 96}},    {27, {96, 64}},   {28, {96, 128}},   {29, {128, 160}},  {30, {160, 128}},
    {31, {192, 128}},  {32, {128, 192}}, {33, {128, 96}},   {34, {32, 256}},   {35, {256, 32}},
    {116, {64, 192}},  {117, {64, 320}}, {118, {64, 384}},  {119, {64, 448}},  {176, {128, 320}},
    {177, {128, 384}}, {193, {160, 64}}, {208, {192, 64}},  {209, {192, 192}}, {210, {192, 256}},
    {232, {256, 192}}, {247, {320, 64}}, {248, {320, 128}}, {263, {384, 64}},  {264, {384, 128}},
    {272, {448, 64}},
};

/* and then, from a number on, those of so many columns and 8, 16, 24 ... rows that had none yet. */
static const struct {
    uint32_t first, end;
    int across;
} later[] = {
    {312, 365, 64},  {393, 448, 128}, {448, 486, 192}, {486, 514, 256},
    {514, 537, 320}, {537, 556, 384}, {556, 573, 448}, {573, 588, 512},
};

static bool is_early(int across, int down)
{
    for (size_t i = 0; i < sizeof early / sizeof *early; i++)
        if (early[i].tile.across == across && early[i].tile.down == down)
            return true;
    return false;
}

/* The tile of a number; none where it is not known. */
static sides tile_of(uint32_t number)
{
    for (size_t i = 0; i < sizeof early / sizeof *early; i++)
        if (early[i].number == number)
            return early[i].tile;
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (number >= later[i].first && number < later[i].end) {
            int down = 0;

            for (uint32_t at = later[i].first; at <= number; at++)
                do
                    down += 8;
                while (is_early(later[i].across, down));
            return (sides){later[i].across, down};
        }
    return (sides){0, 0};
}

/* CTAs of a cluster, across and down; the rarer shapes count as one CTA. */
static sides cluster_of(uint32_t number)
{
    static const sides shapes[] = {{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}, {4, 2}, {1, 4}, {2, 4}, {4, 4}};
    uint32_t at = number - CUBLASLT_CLUSTER_SHAPE_1x1x1;

    return at < sizeof shapes / sizeof *shapes ? shapes[at] : (sides){1, 1};
}

/* A number that an algorithm has; 0 where it has none. */
static uint32_t number_of(const weft_cublaslt *lt, const cublasLtMatmulAlgo_t *algorithm,
                          cublasLtMatmulAlgoConfigAttributes_t what, size_t bytes)
{
    uint32_t wide = 0;
    uint16_t narrow = 0;
    size_t written;

    if (lt->config(algorithm, what, bytes == sizeof narrow ? (void *)&narrow : (void *)&wide, bytes,
                   &written))
        return 0;
    return bytes == sizeof narrow ? narrow : wide;
}

/* About the largest of three, all of which take their time beside each other. */
static double largest(double x, double y, double z)
{
    return pow(pow(x, 6) + pow(y, 6) + pow(z, 6), 1.0 / 6);
}

/* How much longer it takes where tiles reach beyond D: `tiled` columns or rows, of which it has `extent`. */
static double beyond(double each, int64_t tiled, int64_t extent)
{
    return 1 + each * fmin(1, (double)(tiled - extent) / (double)extent);
}

double weft_cublaslt_cost(const weft_cublaslt *lt, const cublasLtMatmulAlgo_t *algorithm, int64_t m,
                          int64_t n, int64_t k, int sms)
{
    sides tile = tile_of(number_of(lt, algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, sizeof(uint32_t))),
          cluster =
              cluster_of(number_of(lt, algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, sizeof(uint16_t)));
    uint32_t option = number_of(lt, algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, sizeof(uint32_t));
    int64_t asked = number_of(lt, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, sizeof(uint32_t)),
            parts = asked > 1 && asked <= PARTS_MOST ? asked : 1, across, down, ctas, steps;
    double sums = (double)tile.across * tile.down, fetched, step, bytes, far, ns;

    if (!tile.across)
        return 0;
    across = weft_round_up(weft_divide_up(n, tile.across), cluster.across);
    down = weft_round_up(weft_divide_up(m, tile.down), cluster.down);
    ctas = across * down * parts;
    steps = weft_divide_up(weft_divide_up(k, STEP), parts);
    fetched = tile.across / (1 + WEIGHTS_SHARED * (cluster.down - 1)) +
              tile.down / (1 + TOKENS_SHARED * (cluster.across - 1));
    step = largest(sums * STEP / MULTIPLIES, (double)(tile.across + tile.down) * LINE / LOADS, STEP_LEAST);
    bytes = 2 * ((double)m * (double)k + (double)k * (double)n + (double)m * (double)n);
    far = weft_cuda_beyond_l2(bytes, WEFT_CUDA_L2_BYTES);
    ns = LAUNCH + largest((double)weft_divide_up(ctas, sms) * ((double)steps * step + ENDS * sums),
                          (double)(ctas * steps) * fetched * LINE / CACHE, far * bytes / MEMORY);
    if (parts > 1)
        ns += SPLIT + PART * (double)parts + (double)m * (double)n * (double)parts * 4 / SUMS;
    if ((tile.across >= LONG_SIDE && tile.down >= OTHER_SIDE) ||
        (tile.down >= LONG_SIDE && tile.across >= OTHER_SIDE))
        ns *= OVERFULL;
    if (tile.across == 32)
        ns *= NARROW;
    if (tile.across == 96 || tile.across == 160)
        ns *= UNEVEN;
    ns *= beyond(BEYOND_ACROSS, across * tile.across, n) * beyond(BEYOND_DOWN, down * tile.down, m);
    return ns * OPTIONS[option >> 2 & 1][option & 1];
}
