/* Reductions of few elements: what AVX2 knows, by vectors of 128 bits. */
#include "run/cpu/reduce_loops.h"

const weft_reduce_loops weft_reduce_short = {pair, widen};
