/* An architecture weft has no kernels of its own for: the portable ones do everything. */
#include "gemm/kernel.h"

const weft_core *const weft_cores_of_arch[] = {NULL};
const int weft_cores_of_arch_count = 0;
