/* The aarch64 cores, best first: which kernel and which blocks for each compute type. */
#include "core/cpu.h"
#include "gemm/kernel.h"

const weft_core *const weft_cores_of_arch[] = {NULL};
const int weft_cores_of_arch_count = 0;
