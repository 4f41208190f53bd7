#include "sim/trust.h"

#include <string.h>

static const weft_trust figures[WEFT_TRUST_KINDS] = {
    [WEFT_TRUST_UNFUSED] = {"products and collectives of libraries, one after the other", 21, 2.9, 7.2},
    [WEFT_TRUST_LIBRARY] = {"collectives of libraries", 30, 4.4, 22.1},
    [WEFT_TRUST_LIBRARY_NODES] = {"collectives of libraries over nodes", 4, 7.9, 12.2},
    [WEFT_TRUST_LOADS] = {"collectives by loads and stores over a link", 20, 2.3, 15.4},
    [WEFT_TRUST_PRODUCTS] = {"weft's products over an emulated link", 60, 2.3, 10.0},
    [WEFT_TRUST_CPU_COLLECTIVES] = {"weft's collectives on a calibrated CPU", 154, 6.3, 52},
    [WEFT_TRUST_CPU_PRODUCTS] = {"weft's products on a calibrated CPU", 72, 2.7, 12.7},
};

static const char *const with_rows[] = {"h100x8", "h100x16", "h100x1024", "h20x8",
                                        "h800x8", "mi300x8", "h200_link"};

const weft_trust *weft_trust_of(weft_trust_kind kind)
{
    return &figures[kind];
}

weft_trust_kind weft_trust_kind_of(const weft_machine *machine, const weft_problem *problem, int world,
                                   bool library)
{
    bool product = problem->op <= WEFT_OP_GEMM_AS;

    if (machine->kind == WEFT_MACHINE_CPU)
        return product ? WEFT_TRUST_CPU_PRODUCTS : WEFT_TRUST_CPU_COLLECTIVES;
    if (!library)
        return product ? WEFT_TRUST_PRODUCTS : WEFT_TRUST_LOADS;
    if (product)
        return WEFT_TRUST_UNFUSED;
    return machine->ranks_per_node > 0 && world > machine->ranks_per_node ? WEFT_TRUST_LIBRARY_NODES
                                                                          : WEFT_TRUST_LIBRARY;
}

bool weft_trust_has_rows(const weft_machine *machine)
{
    for (size_t i = 0; i < sizeof(with_rows) / sizeof(with_rows[0]); i++)
        if (strcmp(machine->name, with_rows[i]) == 0)
            return true;
    return false;
}
