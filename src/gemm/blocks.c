/*
 * Blocks for the caches that are there, from blocks measured with others.
 *
 * What was measured stands for the share of each cache that is well used: a panel of B over kc of L1, mc x kc
 * of A of L2, kc x nc of B of L3, kc x nc_once what lies around L2. A block of k that was too long for L1
 * where it was measured comes from L2, and follows that. kc and nc only shrink: a longer sum of halves is
 * less exact, and a longer block than measured gains little. mc grows at most twofold: a larger L2 is often
 * shared by several cores.
 */
#include "core/dtype.h"
#include "core/round.h"
#include "gemm/gemm.h"

enum { K_GRAIN = 64, ROWS_LEAST = 4, GROW_MOST = 2 };

static double ratio(int64_t here, int64_t measured, double most)
{
    double r = here > 0 && measured > 0 ? (double)here / (double)measured : 1;

    return r < most ? r : most;
}

/* A multiple of `step`, at most `length` but for the first one. */
static int whole_steps(double length, int step)
{
    int64_t steps = (int64_t)(length / step);

    return (int)(steps > 1 ? steps * step : step);
}

weft_binding weft_binding_fit(const weft_binding *bind, const weft_caches *measured, const weft_caches *here)
{
    const weft_kernel *kernel = bind->kernel;
    weft_binding fit = *bind;
    int64_t panel = (int64_t)bind->kc * kernel->nr * (int64_t)weft_dtype_size(kernel->type);
    double k_ratio =
        panel < measured->l1 ? ratio(here->l1, measured->l1, 1) : ratio(here->l2, measured->l2, 1);

    if (k_ratio < 1)
        fit.kc = whole_steps(bind->kc * k_ratio, K_GRAIN > kernel->k_step ? K_GRAIN : kernel->k_step);
    if (fit.kc != bind->kc || here->l2 != measured->l2)
        fit.mc =
            whole_steps(ratio(here->l2, measured->l2, GROW_MOST) * bind->mc * bind->kc / fit.kc, kernel->mr);
    if (fit.mc < ROWS_LEAST * kernel->mr)
        fit.mc = ROWS_LEAST * kernel->mr;
    if (ratio(here->l3, measured->l3, 1) < 1)
        fit.nc = whole_steps(ratio(here->l3, measured->l3, 1) * bind->nc, kernel->nr);
    if (bind->nc_once > 0 && ratio(here->l2, measured->l2, 1) < 1)
        fit.nc_once = whole_steps(ratio(here->l2, measured->l2, 1) * bind->nc_once, kernel->nr);
    fit.l1_bytes = (int)(here->l1 > 0 ? here->l1 : measured->l1);
    return fit;
}
