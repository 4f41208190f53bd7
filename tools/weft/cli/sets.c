/* The named shapes. See sets.h. */
#include "cli/sets.h"

#include <math.h>
#include <string.h>

const char set_names[] = "llama3, llama3-down, contest, cutlass, decode, overlap";

/* Llama 3 8B, 70B and 105B, N over all ranks: the up projection, B split by columns. */
static const set_shape llama3[] = {
    {4096, 14336, 4096, 0, 0},  {8192, 14336, 4096, 0, 0},  {16384, 14336, 4096, 0, 0},
    {4096, 28672, 8192, 0, 0},  {8192, 28672, 8192, 0, 0},  {16384, 28672, 8192, 0, 0},
    {4096, 53248, 16384, 0, 0}, {8192, 53248, 16384, 0, 0}, {16384, 53248, 16384, 0, 0},
};

/* The contest's shapes have weights stored [N, K]; a product with a reduction has N and K exchanged. */
static const set_shape contest_gather[] = {
    {64, 18432, 7168, 0, 1},  {512, 12288, 4096, 1, 1},  {2048, 2880, 2880, 1, 1},
    {4096, 4096, 4096, 0, 1}, {8192, 14336, 4096, 1, 1}, {8192, 29568, 8192, 0, 1},
};
static const set_shape contest_reduce[] = {
    {64, 7168, 18432, 0, 1},  {512, 4096, 12288, 1, 1},  {2048, 2880, 2880, 1, 1},
    {4096, 4096, 4096, 0, 1}, {8192, 4096, 14336, 1, 1}, {8192, 8192, 29568, 0, 1},
};

static const set_shape cutlass[] = {{16384, 106496, 16384, 0, 0}};

/* A few tokens against one layer's weights. */
static const set_shape decode[] = {
    {1, 4096, 4096, 0, 0},  {2, 4096, 4096, 0, 0},  {4, 4096, 4096, 0, 0},  {8, 4096, 4096, 0, 0},
    {16, 4096, 4096, 0, 0}, {32, 4096, 4096, 0, 0}, {64, 4096, 4096, 0, 0},
};

static int64_t scaled(int64_t extent, double scale)
{
    double result = rint((double)extent / scale);

    return result < 1 ? 1 : (int64_t)result;
}

int set_shapes(const char *name, weft_op op, double scale, set_shape shapes[SETS_MOST_SHAPES])
{
    int reduces = op == WEFT_OP_GEMM_RS || op == WEFT_OP_GEMM_AR;
    const set_shape *list;
    int count;

#define USE(table) (list = table, count = (int)(sizeof table / sizeof table[0]))
    if (strcmp(name, "llama3") == 0 || strcmp(name, "llama3-down") == 0)
        USE(llama3);
    else if (strcmp(name, "contest") == 0 && reduces)
        USE(contest_reduce);
    else if (strcmp(name, "contest") == 0)
        USE(contest_gather);
    else if (strcmp(name, "cutlass") == 0)
        USE(cutlass);
    else if (strcmp(name, "decode") == 0)
        USE(decode);
    else
        return -1;
#undef USE
    if (scale == 0)
        scale = list == decode ? 1 : 8;
    for (int i = 0; i < count; i++) {
        shapes[i] = list[i];
        shapes[i].m = scaled(list[i].m, scale);
        shapes[i].n = scaled(list[i].n, scale);
        shapes[i].k = scaled(list[i].k, scale);
        if (strcmp(name, "llama3-down") == 0) { /* the down projection: N and K exchanged */
            int64_t n = shapes[i].n;
            shapes[i].n = shapes[i].k;
            shapes[i].k = n;
        }
    }
    return count;
}

int set_is_known(const char *name)
{
    set_shape shapes[SETS_MOST_SHAPES];

    return strcmp(name, "overlap") == 0 || set_shapes(name, WEFT_OP_AG_GEMM, 0, shapes) > 0;
}
