/* Blocks follow the caches that are there: each within its share, none beyond what was measured but rows. */
#include "gemm/gemm_case.h"

static void check_fit(const weft_core *core, const weft_binding *bind, const weft_caches *here)
{
    const weft_kernel *kernel = bind->kernel;
    weft_binding fit = weft_binding_fit(bind, &core->caches, here);
    int64_t size = (int64_t)weft_dtype_size(kernel->type), measured_a = (int64_t)bind->mc * bind->kc * size;
    int64_t a = (int64_t)fit.mc * fit.kc * size;

    CHECK(fit.kernel == bind->kernel && fit.narrow == bind->narrow && fit.l1_bytes > 0);
    CHECK(fit.kc >= kernel->k_step && fit.kc <= bind->kc);
    CHECK(fit.mc >= kernel->mr && (fit.mc == bind->mc || fit.mc % kernel->mr == 0));
    CHECK(fit.nc >= kernel->nr && fit.nc <= bind->nc);
    CHECK(bind->nc_once ? fit.nc_once >= kernel->nr && fit.nc_once <= bind->nc_once : !fit.nc_once);
    if (here->l1 < core->caches.l1 && here->l1 > 0 && bind->kc * kernel->nr * size < core->caches.l1)
        CHECK(fit.kc * core->caches.l1 <= bind->kc * here->l1 || fit.kc <= 64);
    if (here->l2 > 0) /* the share of L2 that was measured, or as few rows as there must be */
        CHECK(a * core->caches.l2 <= measured_a * here->l2 || fit.mc <= 4 * kernel->mr);
    if (here->l2 == core->caches.l2 && here->l1 == core->caches.l1)
        CHECK(fit.kc == bind->kc && fit.mc == bind->mc);
    if (here->l2 >= 2 * core->caches.l2 && here->l1 >= core->caches.l1)
        CHECK(fit.mc > bind->mc);
}

/* The same product with the blocks of a small core: other blocks, the same integers. */
static void check_product(const weft_core *core, weft_dtype dtype, const weft_caches *here)
{
    weft_core small = *core;
    const weft_binding *bind = weft_core_binding(&small, dtype, false);
    gemm_case c;

    for (int i = 0; i < WEFT_COMPUTE_COUNT; i++)
        small.bind[i] = weft_binding_fit(&core->bind[i], &core->caches, here);
    c = gemm_case_plain(&small, dtype, bind->mc + 3, 2 * bind->kernel->nr + 5, 3 * bind->kc + 7);
    c.d_dtype = dtype == WEFT_I8 ? WEFT_I32 : WEFT_F32; /* long sums do not fit a half exactly */
    gemm_case_run(&c);
}

int main(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I8};
    static const int64_t l1[] = {0, 16 << 10, 32 << 10, 48 << 10, 64 << 10, 128 << 10};
    static const int64_t l2[] = {0, 128 << 10, 256 << 10, 1 << 20, 2 << 20, 16 << 20};
    static const int64_t l3[] = {0, 2 << 20, 32 << 20, 300 << 20};

    for (int i = 0; weft_core_at(i); i++) {
        const weft_core *core = weft_core_at(i);

        for (int t = 0; t < 4; t++) {
            for (int c = 0; c < 6 * 6 * 4; c++) {
                weft_caches here = {.l1 = l1[c % 6], .l2 = l2[c / 6 % 6], .l3 = l3[c / 36]};

                check_fit(core, weft_core_binding(core, types[t], false), &here);
            }
            if (weft_core_available(core))
                check_product(core, types[t], &(weft_caches){32 << 10, 256 << 10, 2 << 20});
        }
    }
    return check_report("gemm blocks");
}
