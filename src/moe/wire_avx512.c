/* Rows as fp8 on x86-64 with AVX-512. */
#define VECTOR_BYTES 64
#include "moe/lanes_x86.h"
#include "moe/wire_lanes.h"

const weft_moe_wire_kernel weft_moe_wire_avx512 = {quantise, expand};
