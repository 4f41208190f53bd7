/* Streaming bf16 by FMLA, on every aarch64: a half above zeros is its fp32. See stream.h. */
#include "kernels.h"

#define WIDEN(lo, hi, raw, zero)                                                                             \
    "zip1 v" #lo ".8h, v" #zero ".8h, v" #raw ".8h\n zip2 v" #hi ".8h, v" #zero ".8h, v" #raw ".8h\n"

#include "stream_widened.h"

const weft_stream weft_stream_bf16_widened_across[] = {{1, across_1}, {2, across_2}, {4, across_4}, {0}};
const weft_stream weft_stream_bf16_widened_along[] = {
    {1, along_1}, {2, along_2}, {4, along_4}, {8, along_8}, {0}};
