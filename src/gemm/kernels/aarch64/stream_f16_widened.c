/* Streaming fp16 by FCVTL and FMLA, on every aarch64: see stream.h. */
#include "kernels.h"

#define WIDEN(lo, hi, raw, zero) "fcvtl v" #lo ".4s, v" #raw ".4h\n fcvtl2 v" #hi ".4s, v" #raw ".8h\n"

#include "stream_widened.h"

const weft_stream weft_stream_f16_widened_across[] = {{1, across_1}, {2, across_2}, {4, across_4}, {0}};
const weft_stream weft_stream_f16_widened_along[] = {
    {1, along_1}, {2, along_2}, {4, along_4}, {8, along_8}, {0}};
