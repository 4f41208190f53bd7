/* Streaming bf16 through BFMMLA: see stream.h. */
#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT uint16_t
#define SUM float

enum { K_STEP = 4 };

#define MMLA(d, x, y) "bfmmla v" #d ".4s, v" #x ".8h, v" #y ".8h\n"

#define DOT(d, y, a, l) "bfdot v" #d ".4s, v" #y ".8h, v" #a ".2h[" #l "]\n"

/* 2 lines, interleaved. */
#define GATHER(b)                                                                                            \
    "ldr q12, [%[" #b "]]\n ldr q13, [%[" #b "], %[ld]]\n add %[" #b "], %[" #b "], #16\n"                   \
    "ldr q14, [%[" #b "]]\n ldr q15, [%[" #b "], %[ld]]\n add %[" #b "], %[" #b "], #16\n"                   \
    "zip1 v8.8h, v12.8h, v13.8h\n zip2 v9.8h, v12.8h, v13.8h\n"                                              \
    "zip1 v10.8h, v14.8h, v15.8h\n zip2 v11.8h, v14.8h, v15.8h\n"

#define GRANULE(b, c)                                                                                        \
    "ldr q8, [%[" #b "]]\n ldr q9, [%[" #b "], %[ld]]\n ldr q10, [%[" #c "]]\n ldr q11, [%[" #c              \
    "], %[ld]]\n"                                                                                            \
    "add %[" #b "], %[" #b "], #16\n add %[" #c "], %[" #c "], #16\n"                                        \
    "zip1 v12.8h, v8.8h, v9.8h\n zip2 v13.8h, v8.8h, v9.8h\n"                                                \
    "zip1 v14.8h, v10.8h, v11.8h\n zip2 v15.8h, v10.8h, v11.8h\n"                                            \
    "zip1 v8.4s, v12.4s, v14.4s\n zip2 v9.4s, v12.4s, v14.4s\n"                                              \
    "zip1 v10.4s, v13.4s, v15.4s\n zip2 v11.4s, v13.4s, v15.4s\n"

#include "stream_matrix.h"

const weft_stream weft_stream_bf16_across[] = {{1, across_1}, {2, across_2}, {4, across_4}, {0}};
const weft_stream weft_stream_bf16_along[] = {{2, along_2}, {4, along_4}, {8, along_8}, {0}};
