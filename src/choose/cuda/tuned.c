#include "choose/cuda/tuned.h"

#include "choose/tuned.h"
#include "core/hash.h"

#include <string.h>

uint64_t weft_cuda_tuned_as(const char *gpu, int crews, bool whole)
{
    const int has[] = {crews, whole};

    return weft_hash(weft_hash(WEFT_HASH_START, gpu, strlen(gpu)), has, sizeof(has));
}

weft_status weft_cuda_tuned(const weft_cuda_basis *basis, const char *gpu, weft_problem *problem,
                            weft_error_text *error)
{
    weft_status status;
    weft_tuned tuned;
    bool found;

    if (!weft_tuned_asks(problem) || problem->tuning.workers)
        return WEFT_OK;
    status = weft_tuned_find(weft_cuda_tuned_as(gpu, basis->crews, basis->whole), problem, basis->world,
                             &tuned, &found, error);
    if (status != WEFT_OK || !found)
        return status;
    problem->schedule = tuned.schedule;
    problem->tuning = tuned.tuning;
    return WEFT_OK;
}
