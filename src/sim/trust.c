#include "sim/trust.h"

#include "gemm/gemm.h"

#include <math.h>
#include <string.h>

static const weft_trust figures[WEFT_TRUST_KINDS] = {
    [WEFT_TRUST_NONE] = {"nothing of this kind was compared", 0, NAN, NAN, NAN},
    [WEFT_TRUST_UNFUSED] = {"products and collectives of libraries, one after the other", 21, 2.9, NAN, 7.2},
    [WEFT_TRUST_LIBRARY] = {"collectives of libraries", 30, 4.4, NAN, 22.1},
    [WEFT_TRUST_LIBRARY_NODES] = {"collectives of libraries over nodes", 4, 7.9, NAN, 12.2},
    [WEFT_TRUST_LOADS] = {"collectives by loads and stores over a link", 20, 2.3, NAN, 15.4},
    [WEFT_TRUST_PRODUCTS] = {"weft's products over an emulated link", 60, 2.3, NAN, 10.0},
    [WEFT_TRUST_MOE] = {"weft's dispatch and combine over an emulated link", 21, 5.3, NAN, 16.5},
    [WEFT_TRUST_CPU_COLLECTIVES_F32] = {"weft's collectives of float32 on a calibrated CPU", 161, 4.8, 25,
                                        87},
    [WEFT_TRUST_CPU_COLLECTIVES_BF16] = {"weft's collectives of bfloat16 on a calibrated CPU", 161, 7.4, 44,
                                         NAN},
    [WEFT_TRUST_CPU_F32] = {"weft's float32 products of random shapes on a calibrated CPU", 48, 5.3, 20, 28},
    [WEFT_TRUST_CPU_BF16] = {"weft's bfloat16 products of random shapes on a calibrated CPU", 48, 8.2, 17,
                             34},
    [WEFT_TRUST_CPU_F16] = {"weft's float16 products of random shapes on a calibrated CPU", 48, 8.8, 20, 32},
    [WEFT_TRUST_CPU_I8] = {"weft's int8 products of random shapes on a calibrated CPU", 48, 8.1, 25, 39},
    [WEFT_TRUST_CPU_FEW_F32] = {"weft's float32 products of 1 to 64 rows on a calibrated CPU", 48, 7.3, 20,
                                28},
    [WEFT_TRUST_CPU_FEW_BF16] = {"weft's bfloat16 products of 1 to 64 rows on a calibrated CPU", 48, 5.4, 16,
                                 26},
    [WEFT_TRUST_CPU_FEW_F16] = {"weft's float16 products of 1 to 64 rows on a calibrated CPU", 48, 6.8, 16,
                                30},
    [WEFT_TRUST_CPU_FEW_I8] = {"weft's int8 products of 1 to 64 rows on a calibrated CPU", 48, 9.1, 24, 35},
};

static const char *const with_rows[] = {"h100x8", "h100x16", "h100x1024", "h20x8",
                                        "h800x8", "mi300x8", "h200_link"};

const weft_trust *weft_trust_of(weft_trust_kind kind)
{
    return &figures[kind];
}

static bool over_nodes(const weft_machine *machine, int world)
{
    return machine->ranks_per_node > 0 && world > machine->ranks_per_node;
}

/* Of a CPU that was calibrated, and of types that were compared. */
static weft_trust_kind kind_of_cpu(const weft_machine *machine, const weft_problem *problem)
{
    bool few = problem->m <= WEFT_GEMM_STREAM_ROWS;

    if (!machine->cpu[0])
        return WEFT_TRUST_NONE;
    if (problem->op >= WEFT_OP_ALL_REDUCE)
        return problem->dtype == WEFT_F32    ? WEFT_TRUST_CPU_COLLECTIVES_F32
               : problem->dtype == WEFT_BF16 ? WEFT_TRUST_CPU_COLLECTIVES_BF16
                                             : WEFT_TRUST_NONE;
    switch (problem->dtype) {
    case WEFT_F32:
        return few ? WEFT_TRUST_CPU_FEW_F32 : WEFT_TRUST_CPU_F32;
    case WEFT_BF16:
        return few ? WEFT_TRUST_CPU_FEW_BF16 : WEFT_TRUST_CPU_BF16;
    case WEFT_F16:
        return few ? WEFT_TRUST_CPU_FEW_F16 : WEFT_TRUST_CPU_F16;
    case WEFT_I8:
        return few ? WEFT_TRUST_CPU_FEW_I8 : WEFT_TRUST_CPU_I8;
    default:
        return WEFT_TRUST_NONE;
    }
}

weft_trust_kind weft_trust_kind_of(const weft_machine *machine, const weft_problem *problem, int world,
                                   bool library)
{
    bool product = problem->op <= WEFT_OP_GEMM_AS, several = over_nodes(machine, world),
         half = problem->dtype == WEFT_BF16 || problem->dtype == WEFT_F16;

    if (machine->kind == WEFT_MACHINE_CPU)
        return several ? WEFT_TRUST_NONE : kind_of_cpu(machine, problem);
    if (product && !half) /* all rows of products are of these */
        return WEFT_TRUST_NONE;
    if (several)
        return library && !product ? WEFT_TRUST_LIBRARY_NODES : WEFT_TRUST_NONE;
    if (library)
        return product ? WEFT_TRUST_UNFUSED : WEFT_TRUST_LIBRARY;
    return product ? WEFT_TRUST_PRODUCTS : WEFT_TRUST_LOADS;
}

weft_trust_kind weft_trust_kind_of_moe(const weft_machine *machine, int world)
{
    return machine->kind == WEFT_MACHINE_GPU && !over_nodes(machine, world) ? WEFT_TRUST_MOE
                                                                            : WEFT_TRUST_NONE;
}

void weft_trust_words(const weft_trust *trust, char *text, size_t bytes)
{
    if (!trust->rows)
        snprintf(text, bytes, "%s", trust->what);
    else if (trust->worst_pct > 0)
        snprintf(text, bytes, "%s, median %.0f %%, at most %.0f %% of %d rows", trust->what,
                 trust->median_pct, trust->worst_pct, trust->rows);
    else if (trust->most_pct > 0)
        snprintf(text, bytes, "%s, median %.0f %%, nine tenths within %.0f %% of %d rows", trust->what,
                 trust->median_pct, trust->most_pct, trust->rows);
    else
        snprintf(text, bytes, "%s, median %.0f %% of %d rows", trust->what, trust->median_pct, trust->rows);
}

bool weft_trust_has_rows(const weft_machine *machine)
{
    for (size_t i = 0; i < sizeof(with_rows) / sizeof(with_rows[0]); i++)
        if (strcmp(machine->name, with_rows[i]) == 0)
            return true;
    return false;
}
