#include "run/bound.h"

#include "core/dtype.h"
#include "core/round.h"

#include <math.h>
#include <stdbool.h>

double weft_bound_unit(weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_F32:
        return 0x1p-24;
    case WEFT_F16:
        return 0x1p-11;
    case WEFT_BF16:
        return 0x1p-8;
    case WEFT_FP8_E4M3:
        return 0x1p-4;
    case WEFT_FP8_E5M2:
        return 0x1p-3;
    default:
        return 0;
    }
}

/* The smallest normal number: below it errors are absolute. */
static double smallest(weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_F16:
    case WEFT_FP8_E5M2:
        return 0x1p-14;
    case WEFT_FP8_E4M3:
        return 0x1p-6;
    case WEFT_I8:
    case WEFT_I32:
        return 0;
    default:
        return 0x1p-126;
    }
}

/* Of a sum before the activation. */
static double bound_sum(const weft_problem *p, int world, double magnitude)
{
    /* Matrix instructions may round each addition to odd instead of to nearest: a whole unit. */
    double u = 2 * weft_bound_unit(WEFT_F32), additions = (double)p->k + world + 4, error;

    if (p->dtype == WEFT_I8)
        additions = 4; /* the sum is exact; the epilogue is in float32 */
    error = additions * u / (1 - additions * u) * magnitude;
    if (p->wire_dtype != WEFT_F32 && p->wire_dtype != WEFT_I32)
        error += (p->tuning.sums_stay ? 2 : 1) * world * weft_bound_unit(p->wire_dtype) * magnitude;
    return error;
}

/* Of the activation of a sum that is `error` off. */
static double bound_act(double error, double exact)
{
    return 1.13 * error + 32 * weft_bound_unit(WEFT_F32) * fabs(exact) + 0x1p-30;
}

static double bound_stored(const weft_problem *p, double error, double exact)
{
    error += weft_bound_unit(p->d_dtype) * (fabs(exact) + error) + 2 * smallest(p->d_dtype);
    if (p->d_dtype == WEFT_I32 || p->d_dtype == WEFT_I8)
        error += 0.5;
    return error;
}

double weft_bound_gemm(const weft_problem *p, int world, double magnitude, double exact)
{
    double error = bound_sum(p, world, magnitude);

    return bound_stored(p, p->act != WEFT_ACT_NONE ? bound_act(error, exact) : error, exact);
}

/* What tensor cores cut off of fp8 sums, relative to the magnitude: see bound.h. */
static double tensor_loss(const weft_problem *p, int world)
{
    enum { AT_ONCE = 32, PROMOTED = 128 };
    bool sums = p->op == WEFT_OP_GEMM_RS || p->op == WEFT_OP_GEMM_AR;
    int64_t k = sums ? weft_divide_up(p->k, world) : p->k;
    int64_t together = !p->fp8_fast && k > PROMOTED ? PROMOTED : k;
    double terms = (double)weft_divide_up(together, AT_ONCE) * (AT_ONCE + 1);

    return terms * 0x1p-13 * (1 + terms * 0x1p-13);
}

double weft_bound_gemm_tensor(const weft_problem *p, int world, double magnitude, double exact)
{
    double error = bound_sum(p, world, magnitude) + tensor_loss(p, world) * magnitude;

    return bound_stored(p, p->act != WEFT_ACT_NONE ? bound_act(error, exact) : error, exact);
}

double weft_bound_gated(const weft_problem *p, int world, double gate_magnitude, double gate,
                        double up_magnitude, double up)
{
    double gate_error = bound_act(bound_sum(p, world, gate_magnitude), gate);
    double up_error = bound_sum(p, world, up_magnitude);
    double error = gate_error * (fabs(up) + up_error) + up_error * fabs(gate);

    return bound_stored(p, error + weft_bound_unit(WEFT_F32) * (fabs(gate * up) + error), gate * up);
}

double weft_bound_reduce(weft_dtype dtype, int world, double magnitude, double exact)
{
    double error = world * weft_bound_unit(WEFT_F32) * magnitude;

    if (dtype == WEFT_I8 || dtype == WEFT_U8 || dtype == WEFT_BOOL || dtype == WEFT_I32 || dtype == WEFT_I64)
        return 0;
    if (dtype == WEFT_F64)
        return world * 0x1p-53 * magnitude;
    return error + weft_bound_unit(dtype) * (fabs(exact) + error) + smallest(dtype);
}
