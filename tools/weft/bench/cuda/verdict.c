/* See verdict.h. */
#include "bench/cuda/verdict.h"

#include "core/dtype.h"
#include "run/bound.h"

#include <math.h>
#include <stdio.h>

static double got_at(const gpu_result *r, int64_t row, int64_t col)
{
    return weft_element_get(r->problem->d_dtype, r->image, (size_t)(row * r->ld + col));
}

/* One element becomes the worst when it is the first one or further beyond its bound than the worst so far.
 */
static void compare(gpu_verdict *worst, const gpu_result *r, int64_t row, int64_t col)
{
    const weft_problem *p = r->problem;
    double got = got_at(r, row, col), magnitude = 0, bound = 0, error;
    double sum = r->exact(r->source, r->rank, row, col, &magnitude);
    char element[8];

    if (isnan(sum))
        return;
    if (p->wire_dtype != WEFT_F32)
        bound = weft_bound_gemm(p, r->world, magnitude, sum);
    weft_element_set(p->d_dtype, element, 0, sum);
    sum = weft_element_get(p->d_dtype, element, 0);
    error = isnan(got) ? INFINITY : fabs(got - sum);
    if (!worst->any || error - bound > worst->error - worst->bound)
        *worst = (gpu_verdict){error, bound, r->rank, row, col, got, sum, true};
}

void gpu_verdict_add(gpu_verdict *worst, const gpu_result *r, int samples, uint64_t seed)
{
    for (int64_t at = 0; at < r->rows * r->cols && worst->error < INFINITY; at++)
        if (isnan(got_at(r, at / r->cols, at % r->cols)))
            compare(worst, r, at / r->cols, at % r->cols);
    for (int s = 0; s < samples && r->rows * r->cols > 0 && worst->error < INFINITY; s++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        compare(worst, r, (int64_t)((seed >> 33) % (uint64_t)r->rows),
                (int64_t)((seed >> 13) % (uint64_t)r->cols));
    }
}

bool gpu_verdict_good(const gpu_verdict *worst)
{
    return worst->error <= worst->bound;
}

void gpu_verdict_tell(const gpu_verdict *worst)
{
    if (gpu_verdict_good(worst))
        return;
    if (worst->error == INFINITY)
        fprintf(stderr, "weft bench: rank %d did not get row %lld, column %lld of its D: it must be %g\n",
                worst->rank, (long long)worst->row, (long long)worst->col, worst->expected);
    else
        fprintf(stderr, "weft bench: rank %d has %g in row %lld, column %lld of its D, and it must be %g\n",
                worst->rank, worst->got, (long long)worst->row, (long long)worst->col, worst->expected);
}
