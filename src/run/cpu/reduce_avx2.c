/* Reductions by the vectors of AVX2. */
#include "run/cpu/reduce_loops.h"

const weft_reduce_loops weft_reduce_avx2 = {pair, widen};
