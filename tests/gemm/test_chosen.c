/*
 * The kernels that this CPU is given are right, for every type, few rows and many, a B that lies as it does
 * and a packed one: a short test, so that emulation can run it for CPUs that are not at hand.
 *
 *     test_gemm_chosen [NAME]     NAME: the core that must be chosen
 */
#include "gemm/gemm_case.h"

#include <string.h>

static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I8, WEFT_FP8_E4M3, WEFT_FP8_E5M2};
static const int64_t rows[] = {1, 3, 8, 13, 40};

int main(int argc, char **argv)
{
    const weft_core *core = NULL;
    weft_error_text error;

    CHECK_INT(weft_core_current(&core, &error), WEFT_OK);
    if (!core)
        return check_report("gemm chosen");
    if (argc > 1)
        CHECK(!strcmp(core->name, argv[1]));
    for (size_t t = 0; t < sizeof(types) / sizeof(*types); t++) {
        for (size_t r = 0; r < sizeof(rows) / sizeof(*rows); r++) {
            for (int lies = 0; lies < 4; lies++) {
                gemm_case c = gemm_case_plain(core, types[t], rows[r], 61, 131);

                c.transpose_b = lies & 1;
                c.packed_b = lies >> 1;
                c.f16_fast = lies & 1;
                c.seed = 7 * r + t;
                gemm_case_run(&c);
                c.values = GEMM_REALS;
                gemm_case_run(&c);
            }
        }
    }
    return check_report("gemm chosen");
}
