/* What a caller asks for: checked, completed where the machine does not matter, and hashed for agreement. */
#include "plan/plan.h"
#include "core/dtype.h"
#include "core/round.h"
#include "plan/user_operands.h"

#include <stdio.h>
#include <string.h>

static bool is_gemm(weft_op op)
{
    return op <= WEFT_OP_GEMM_AS;
}

static bool reduces(weft_op op)
{
    return op == WEFT_OP_ALL_REDUCE || op == WEFT_OP_REDUCE_SCATTER;
}

/* The layout a schedule's name implies, or DEFAULT. */
static weft_layout implied_layout(weft_schedule schedule)
{
    switch (schedule) {
    case WEFT_SCHEDULE_ALLGATHER_ROTATING_A:
        return WEFT_LAYOUT_GATHER_A;
    case WEFT_SCHEDULE_ALLGATHER_ROTATING_B:
        return WEFT_LAYOUT_GATHER_B;
    case WEFT_SCHEDULE_REDUCESCATTER_TILING_A:
        return WEFT_LAYOUT_SCATTER_ROWS;
    case WEFT_SCHEDULE_REDUCESCATTER_TILING_B:
        return WEFT_LAYOUT_SCATTER_COLS;
    default:
        return WEFT_LAYOUT_DEFAULT;
    }
}

static const char *layout_name(weft_layout layout)
{
    static const char *const names[] = {"default",      "gather a",         "gather b",        "scatter rows",
                                        "scatter cols", "gather a along k", "gather b along k"};

    return (unsigned)layout < 7 ? names[layout] : "invalid";
}

static weft_status resolve_layout(weft_problem *problem, weft_error_text *error)
{
    bool gathers = problem->op == WEFT_OP_AG_GEMM, scatters = problem->op == WEFT_OP_GEMM_RS;
    weft_layout implied = implied_layout(problem->schedule);
    weft_layout asked = problem->layout;

    if (!gathers && !scatters) {
        problem->layout = WEFT_LAYOUT_DEFAULT;
        return WEFT_OK;
    }
    if (asked == WEFT_LAYOUT_DEFAULT)
        asked = implied != WEFT_LAYOUT_DEFAULT ? implied
                : gathers                      ? WEFT_LAYOUT_GATHER_A
                                               : WEFT_LAYOUT_SCATTER_ROWS;
    if ((gathers && asked != WEFT_LAYOUT_GATHER_A && asked != WEFT_LAYOUT_GATHER_B &&
         !weft_layout_gathers_k(asked)) ||
        (scatters && asked != WEFT_LAYOUT_SCATTER_ROWS && asked != WEFT_LAYOUT_SCATTER_COLS))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s cannot have the layout '%s'; it takes %s",
                              weft_op_name(problem->op), layout_name(asked),
                              gathers ? "gather a or gather b, also along k"
                                      : "scatter rows or scatter cols");
    if (implied != WEFT_LAYOUT_DEFAULT && implied != asked)
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT, "schedule %s means the layout '%s', but '%s' was asked for",
            weft_schedule_name(problem->op, problem->schedule), layout_name(implied), layout_name(asked));
    problem->layout = asked;
    return WEFT_OK;
}

static weft_status check_schedule(const weft_problem *problem, weft_error_text *error)
{
    int count;
    const weft_schedule *list = weft_schedule_list(problem->op, problem->layout, &count);
    char known[256] = "auto";
    int used = (int)strlen(known);

    if (problem->schedule == WEFT_SCHEDULE_AUTO || problem->schedule == WEFT_SCHEDULE_CUSTOM)
        return WEFT_OK;
    for (int i = 0; i < count; i++) {
        if (list[i] == problem->schedule)
            return WEFT_OK;
        used += snprintf(known + used, sizeof(known) - (size_t)used, ", %s",
                         weft_schedule_name(problem->op, list[i]));
    }
    return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s has no schedule %s; it has %s",
                          weft_op_name(problem->op), weft_schedule_name(problem->op, problem->schedule),
                          known);
}

/* Pieces of at most `tile` in an extent, as a real number: none of these can overflow. */
static double pieces(int64_t extent, int64_t tile)
{
    return tile == 0 || tile >= extent ? 1 : (double)extent / (double)tile;
}

/* A plan has a few hundred bytes for every tile, and a generator that cannot get them takes as long to fail
 * as to succeed: what no memory holds is refused before. */
static weft_status check_tiles(double tiles, weft_error_text *error)
{
    const double most = 1 << 26;

    if (tiles <= most)
        return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_ARGUMENT,
                          "that are %.3g tiles, and a plan has at most %.3g: choose "
                          "larger ones",
                          tiles, most);
}

/* More than the extent is all of it, whatever number says so: nothing that is made of a tile overflows. */
static int64_t clamp_tile(int64_t tile, int64_t extent)
{
    return weft_min(tile, extent);
}

/* One element is no granule, and more than the extent is all of it. */
static int64_t canonical_granule(int64_t granule, int64_t extent)
{
    int64_t within = clamp_tile(granule, extent);

    return within > 1 ? within : 0;
}

static weft_status check_extents(const weft_problem *p, weft_error_text *error)
{
    if (!weft_extents_fit(p->m, p->n, p->l) || !weft_extents_fit(p->m, p->k, p->l) ||
        !weft_extents_fit(p->k, p->n, p->l))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "m = %lld, n = %lld, k = %lld, l = %lld: a matrix has at most 2^46 elements",
                              (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->l);
    return check_tiles(pieces(p->m, p->tuning.tile_m) * pieces(p->n, p->tuning.tile_n) * (double)p->l *
                           (p->tuning.copiers ? pieces(p->k, p->tuning.chunk_k) : 1),
                       error);
}

/* Blocks are those of B as it lies: packed shards of a gathered B begin where its columns do not. */
static weft_status check_scales(weft_problem *problem, weft_error_text *error)
{
    bool blocks = problem->scales == WEFT_SCALE_BLOCK;

    problem->fp8_fast = problem->fp8_fast && weft_dtype_is_fp8(problem->dtype);
    if (problem->scales < 0 || (problem->scales > 1 && !blocks))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "scales = %d: 0, 1 and %d are possible",
                              problem->scales, WEFT_SCALE_BLOCK);
    if (blocks && (!weft_dtype_is_fp8(problem->dtype) || weft_problem_is_gated(problem) ||
                   weft_layout_gathers_k(problem->layout) || problem->b_form == WEFT_B_PREPACKED))
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "scales of blocks are for products of fp8, not of %s, without gated activations, "
            "packed weights and gathering along k",
            weft_dtype_name(problem->dtype));
    if (blocks)
        problem->b_form = WEFT_B_PLAIN;
    return WEFT_OK;
}

static weft_status resolve_gemm(weft_problem *problem, weft_error_text *error)
{
    weft_dtype accumulator = weft_dtype_accumulator(problem->dtype);

    if (problem->m < 0 || problem->n < 0 || problem->k < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "m = %lld, n = %lld, k = %lld: sizes cannot be negative", (long long)problem->m,
                              (long long)problem->n, (long long)problem->k);
    if (problem->l < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "batch l = %lld cannot be negative",
                              (long long)problem->l);
    if (problem->l == 0) { /* no product is one without elements: generators know no empty batch */
        problem->m = problem->n = 0;
        problem->l = 1;
    }
    if (check_extents(problem, error) != WEFT_OK)
        return error->status;
    if (problem->granule_m < 0 || problem->granule_n < 0 || problem->granule_k < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "parts in multiples of %lld, %lld and %lld: granules cannot be negative",
                              (long long)problem->granule_m, (long long)problem->granule_n,
                              (long long)problem->granule_k);
    problem->granule_m = canonical_granule(problem->granule_m, problem->m);
    problem->granule_n = canonical_granule(problem->granule_n, problem->n);
    problem->granule_k = canonical_granule(problem->granule_k, problem->k);
    if (problem->dtype != WEFT_F32 && problem->dtype != WEFT_F16 && problem->dtype != WEFT_BF16 &&
        problem->dtype != WEFT_I8 && !weft_dtype_is_fp8(problem->dtype))
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "a GEMM of %s is not possible; dtypes are float32, float16, bfloat16, int8 and fp8",
            weft_dtype_name(problem->dtype));
    if (problem->d_dtype == WEFT_DTYPE_DEFAULT)
        problem->d_dtype = weft_dtype_result(problem->dtype);
    if (!weft_dtype_stores(problem->dtype, problem->d_dtype))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "D of a product of %s cannot be %s",
                              weft_dtype_name(problem->dtype), weft_dtype_name(problem->d_dtype));
    if (problem->wire_dtype == WEFT_DTYPE_DEFAULT || accumulator == WEFT_I32)
        problem->wire_dtype = accumulator;
    if (accumulator == WEFT_F32 && problem->wire_dtype != WEFT_F32 && problem->wire_dtype != WEFT_F16 &&
        problem->wire_dtype != WEFT_BF16)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "partial sums of %s cannot travel as %s; float32, float16 or bfloat16 can",
                              weft_dtype_name(problem->dtype), weft_dtype_name(problem->wire_dtype));
    if ((unsigned)problem->b_form > WEFT_B_PREPACKED || (unsigned)problem->act > WEFT_ACT_SILU_GATED)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "b_form %d or act %d is not one",
                              (int)problem->b_form, (int)problem->act);
    if (weft_problem_is_gated(problem) &&
        (problem->op == WEFT_OP_GEMM_RS || problem->op == WEFT_OP_GEMM_AR || problem->beta != 0 ||
         weft_dtype_size(problem->d_dtype) == 1 || problem->d_dtype == WEFT_I32))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "%s with beta = %g and D of %s cannot have a gated activation: ag_gemm and "
                              "gemm_as can, without C, for a D of float32, float16 or bfloat16",
                              weft_op_name(problem->op), (double)problem->beta,
                              weft_dtype_name(problem->d_dtype));
    if (weft_layout_gathers_k(problem->layout)) { /* parts of k begin where packed panels may not */
        if (problem->b_form == WEFT_B_PREPACKED)
            return weft_error_set(error, WEFT_ERR_ARGUMENT,
                                  "packed weights cannot be multiplied with k in the parts of the ranks: "
                                  "gathering k takes B as it is");
        problem->b_form = WEFT_B_PLAIN;
    }
    if (check_scales(problem, error) != WEFT_OK)
        return error->status;
    problem->tuning.tile_m = clamp_tile(problem->tuning.tile_m, problem->m);
    problem->tuning.tile_n = clamp_tile(problem->tuning.tile_n, problem->n);
    problem->tuning.tile_k = clamp_tile(problem->tuning.tile_k, problem->k);
    problem->tuning.chunk_k = clamp_tile(problem->tuning.chunk_k, problem->k);
    problem->tuning.raster = clamp_tile(problem->tuning.raster, weft_max(problem->m, problem->n));
    problem->transa = problem->transa != 0;
    problem->transb = problem->transb != 0;
    problem->bias = problem->bias != 0;
    problem->tuning.sums_stay = problem->tuning.sums_stay != 0;
    problem->count = 0;
    problem->reduction = WEFT_SUM;
    problem->root = 0;
    return WEFT_OK;
}

static weft_status resolve_collective(weft_problem *problem, int world, weft_error_text *error)
{
    if (problem->count < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "count = %lld cannot be negative",
                              (long long)problem->count);
    if (!weft_extents_fit(problem->count, world, 1))
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "count = %lld: the ranks have at most 2^46 elements together",
                              (long long)problem->count);
    if (check_tiles(pieces(problem->count, problem->tuning.tile_n) * world, error) != WEFT_OK)
        return error->status;
    if (!weft_dtype_size(problem->dtype))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "dtype %d is not one", (int)problem->dtype);
    if ((unsigned)problem->reduction > WEFT_AVERAGE)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "reduction %d is not one", (int)problem->reduction);
    if (reduces(problem->op) && !weft_dtype_reduces(problem->dtype, problem->reduction))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s cannot %s %s", weft_op_name(problem->op),
                              problem->reduction == WEFT_AVERAGE ? "average" : "reduce",
                              weft_dtype_name(problem->dtype));
    if (problem->op == WEFT_OP_BROADCAST && (problem->root < 0 || problem->root >= world))
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "root %d is not one of the ranks 0 to %d",
                              problem->root, world - 1);
    if (problem->op != WEFT_OP_BROADCAST)
        problem->root = 0;
    if (!reduces(problem->op))
        problem->reduction = WEFT_SUM;
    problem->m = problem->n = problem->k = 0;
    problem->granule_m = problem->granule_n = problem->granule_k = 0;
    problem->scales = problem->fp8_fast = 0;
    problem->l = 1;
    problem->d_dtype = problem->wire_dtype = problem->dtype;
    problem->transa = problem->transb = problem->bias = 0;
    problem->b_form = WEFT_B_PLAIN;
    problem->alpha = 1;
    problem->beta = 0;
    problem->act = WEFT_ACT_NONE;
    problem->tuning.tile_n = clamp_tile(problem->tuning.tile_n, problem->count);
    problem->tuning.tile_m = problem->tuning.tile_k = problem->tuning.grain_n = 0;
    problem->tuning.exchange = 0;
    problem->tuning.sums_stay =
        problem->op == WEFT_OP_ALL_REDUCE && problem->tuning.sums_stay &&
        (problem->schedule == WEFT_SCHEDULE_TWO_SHOT || problem->schedule == WEFT_SCHEDULE_AUTO);
    return WEFT_OK;
}

/* Nothing is staged where ranks touch no operand of each other's, or the schedule has a way of its own; nor
 * where rows must be known as those of the whole A or B, for the scales of their blocks. */
bool weft_problem_can_be_staged(const weft_problem *problem)
{
    weft_problem plain = *problem;

    plain.tuning.staged = 0;
    if (problem->op == WEFT_OP_AG_GEMM && problem->scales == WEFT_SCALE_BLOCK)
        return false;
    return problem->schedule == WEFT_SCHEDULE_AUTO ||
           (problem->schedule != WEFT_SCHEDULE_CUSTOM && weft_user_operands_touched(&plain) != 0 &&
            (problem->b_form != WEFT_B_PREPACKED || problem->layout != WEFT_LAYOUT_GATHER_B));
}

weft_status weft_problem_resolve(const weft_problem *problem, int world, weft_problem *resolved,
                                 weft_error_text *error)
{
    weft_problem result = *problem;
    weft_status status;

    if (world < 1 || world > 16384)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%d ranks: there must be 1 to 16384", world);
    if ((unsigned)result.op > WEFT_OP_BROADCAST)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "operation %d is not one", (int)result.op);
    if (result.tuning.tile_m < 0 || result.tuning.tile_n < 0 || result.tuning.tile_k < 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "tile %lld x %lld x %lld: tiles cannot be negative",
                              (long long)result.tuning.tile_m, (long long)result.tuning.tile_n,
                              (long long)result.tuning.tile_k);
    for (size_t i = 0; i < sizeof(result.tuning.reserved) / sizeof(result.tuning.reserved[0]); i++)
        if (result.tuning.reserved[i])
            return weft_error_set(error, WEFT_ERR_ARGUMENT,
                                  "tuning.reserved[%zu] is %d: this weft knows no meaning of it", i,
                                  (int)result.tuning.reserved[i]);
    if (result.tuning.copiers < 0 || result.tuning.copiers > 4096)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "%d copiers: there must be 1 to 4096, or 0 for the usual",
                              result.tuning.copiers);
    if (result.tuning.chunk_k < 0 || result.tuning.raster < 0 || result.tuning.grain_n < 0 ||
        result.tuning.grain_n > 1 << 20)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "chunks of %lld, rasters of %lld, grains of %lld: none can be negative, and "
                              "a grain has at most 2^20 columns",
                              (long long)result.tuning.chunk_k, (long long)result.tuning.raster,
                              (long long)result.tuning.grain_n);
    if (result.tuning.workers < 0 || result.tuning.workers > 4096)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%d workers: there must be 1 to 4096",
                              result.tuning.workers);
    if (result.tuning.crew < 0 || result.tuning.crew > 2)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "a crew of %d: there are crews of 1 and 2",
                              result.tuning.crew);
    if (result.tuning.library < 0 || result.tuning.library > 3)
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "library %d: it is 0, 1 (cuBLASLt), 2 (weft's walkers) or 3 (weft's product kernel)",
            result.tuning.library);
    if (result.tuning.exchange < 0 || result.tuning.exchange > 3)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "exchange %d: it is 0 (fetched), 1 or 2 (stored, in so many hops) or 3 (a "
                              "collective by itself)",
                              result.tuning.exchange);
    status = resolve_layout(&result, error);
    if (status == WEFT_OK)
        status = check_schedule(&result, error);
    if (status == WEFT_OK)
        status =
            is_gemm(result.op) ? resolve_gemm(&result, error) : resolve_collective(&result, world, error);
    if (status == WEFT_OK && result.layout == WEFT_LAYOUT_GATHER_B && result.b_form == WEFT_B_PREPACKED &&
        result.schedule != WEFT_SCHEDULE_DIRECT && result.schedule != WEFT_SCHEDULE_AUTO)
        status = weft_error_set(error, WEFT_ERR_ARGUMENT,
                                "packed weights are read in place: gathering b with them needs the schedule "
                                "direct, not %s",
                                weft_schedule_name(result.op, result.schedule));
    if (status == WEFT_OK) {
        result.tuning.staged = result.tuning.staged && world > 1 && weft_problem_can_be_staged(&result);
        *resolved = result;
    }
    return status;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    uint64_t z = (hash ^ value) + 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t bits(float value)
{
    uint32_t word;

    memcpy(&word, &value, sizeof(word));
    return word;
}

enum { FIELDS = 38 };

/* Everything that is asked, without the holes between the fields of the struct. */
static void list_fields(const weft_problem *p, uint64_t fields[FIELDS])
{
    const uint64_t list[] = {
        (uint64_t)p->op,
        (uint64_t)p->schedule,
        (uint64_t)p->layout,
        (uint64_t)p->m,
        (uint64_t)p->n,
        (uint64_t)p->k,
        (uint64_t)p->l,
        (uint64_t)p->dtype,
        (uint64_t)p->d_dtype,
        (uint64_t)p->wire_dtype,
        (uint64_t)p->transa,
        (uint64_t)p->transb,
        (uint64_t)p->b_form,
        bits(p->alpha),
        bits(p->beta),
        (uint64_t)p->bias,
        (uint64_t)p->act,
        (uint64_t)p->count,
        (uint64_t)p->reduction,
        (uint64_t)p->root,
        (uint64_t)p->tuning.tile_m,
        (uint64_t)p->tuning.tile_n,
        (uint64_t)p->tuning.tile_k,
        (uint64_t)p->tuning.workers,
        (uint64_t)p->tuning.copiers,
        (uint64_t)p->tuning.chunk_k,
        (uint64_t)p->tuning.raster,
        (uint64_t)p->tuning.sums_stay,
        (uint64_t)p->tuning.grain_n,
        (uint64_t)p->tuning.crew,
        (uint64_t)p->tuning.library,
        (uint64_t)p->granule_m,
        (uint64_t)p->granule_n,
        (uint64_t)p->granule_k,
        (uint64_t)p->tuning.exchange,
        (uint64_t)p->tuning.staged,
        (uint64_t)p->scales,
        (uint64_t)p->fp8_fast,
    };

    _Static_assert(sizeof(list) == FIELDS * sizeof(*list), "every field has its place");
    memcpy(fields, list, sizeof(list));
}

bool weft_problem_same(const weft_problem *one, const weft_problem *other)
{
    uint64_t left[FIELDS], right[FIELDS];

    /* Mostly asked of a problem and its copy, holes included. */
    if (memcmp(one, other, sizeof(*one)) == 0)
        return true;
    list_fields(one, left);
    list_fields(other, right);
    return memcmp(left, right, sizeof(left)) == 0;
}

bool weft_problem_only_rounds(const weft_problem *p)
{
    weft_dtype multiplied = weft_dtype_is_fp8(p->dtype) ? WEFT_BF16 : p->dtype;

    return p->alpha == 1 && p->beta == 0 && !p->bias && p->act == WEFT_ACT_NONE && p->d_dtype == multiplied;
}

uint64_t weft_problem_hash(const weft_problem *p, int world)
{
    uint64_t fields[FIELDS], hash = mix(0x77656674u /* "weft" */, (uint64_t)world);

    list_fields(p, fields);
    for (size_t i = 0; i < FIELDS; i++)
        hash = mix(hash, fields[i]);
    return hash;
}

uint64_t weft_plan_hash(const weft_problem *p, const int32_t *domain, int world)
{
    uint64_t hash = weft_problem_hash(p, world);

    for (int rank = 0; domain && rank < world; rank++)
        hash = mix(hash, (uint64_t)domain[rank] + 1);
    return hash;
}
