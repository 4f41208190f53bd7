/* Reductions by the vectors of AVX-512. */
#include "run/cpu/reduce_loops.h"

const weft_reduce_loops weft_reduce_avx512 = {pair, widen};
