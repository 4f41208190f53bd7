/* Rows as fp8 on x86-64 with AVX2, FMA and F16C. */
#define VECTOR_BYTES 32
#include "moe/lanes_x86.h"
#include "moe/wire_lanes.h"

const weft_moe_wire_kernel weft_moe_wire_avx2 = {quantise, expand};
