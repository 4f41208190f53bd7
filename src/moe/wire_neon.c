/* Rows as fp8 on aarch64. */
#include "moe/lanes_neon.h"
#include "moe/wire_lanes.h"

const weft_moe_wire_kernel weft_moe_wire_neon = {quantise, expand};
