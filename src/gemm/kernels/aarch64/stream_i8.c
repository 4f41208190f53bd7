/* Streaming int8 through SMMLA: see stream.h. */
#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define ELEMENT int8_t
#define SUM uint32_t /* they wrap */

enum { K_STEP = 8 };

#define MMLA(d, x, y) "smmla v" #d ".4s, v" #x ".16b, v" #y ".16b\n"

#define DOT(d, y, a, l) "sdot v" #d ".4s, v" #y ".16b, v" #a ".4b[" #l "]\n"

/* 4 lines, interleaved. */
#define GATHER(b)                                                                                            \
    "ldr q8, [%[" #b "]]\n ldr q9, [%[" #b "], %[ld]]\n ldr q10, [%[" #b "], %[ld2]]\n"                      \
    "ldr q11, [%[" #b "], %[ld3]]\n add %[" #b "], %[" #b "], #16\n"                                         \
    "zip1 v12.16b, v8.16b, v9.16b\n zip2 v13.16b, v8.16b, v9.16b\n"                                          \
    "zip1 v14.16b, v10.16b, v11.16b\n zip2 v15.16b, v10.16b, v11.16b\n"                                      \
    "zip1 v8.8h, v12.8h, v14.8h\n zip2 v9.8h, v12.8h, v14.8h\n"                                              \
    "zip1 v10.8h, v13.8h, v15.8h\n zip2 v11.8h, v13.8h, v15.8h\n"

#define GRANULE(b, c)                                                                                        \
    "ldr d8, [%[" #b "]]\n ldr d9, [%[" #b "], %[ld]]\n ldr d10, [%[" #b "], %[ld2]]\n"                      \
    "ldr d11, [%[" #b "], %[ld3]]\n ldr d12, [%[" #c "]]\n ldr d13, [%[" #c "], %[ld]]\n"                    \
    "ldr d14, [%[" #c "], %[ld2]]\n ldr d15, [%[" #c "], %[ld3]]\n"                                          \
    "add %[" #b "], %[" #b "], #8\n add %[" #c "], %[" #c "], #8\n"                                          \
    "zip1 v8.16b, v8.16b, v9.16b\n zip1 v9.16b, v10.16b, v11.16b\n"                                          \
    "zip1 v10.16b, v12.16b, v13.16b\n zip1 v11.16b, v14.16b, v15.16b\n"                                      \
    "zip1 v12.8h, v8.8h, v9.8h\n zip2 v13.8h, v8.8h, v9.8h\n"                                                \
    "zip1 v14.8h, v10.8h, v11.8h\n zip2 v15.8h, v10.8h, v11.8h\n"                                            \
    "zip1 v8.4s, v12.4s, v14.4s\n zip2 v9.4s, v12.4s, v14.4s\n"                                              \
    "zip1 v10.4s, v13.4s, v15.4s\n zip2 v11.4s, v13.4s, v15.4s\n"

#include "stream_matrix.h"

const weft_stream weft_stream_i8_across[] = {{1, across_1}, {2, across_2}, {4, across_4}, {0}};
const weft_stream weft_stream_i8_along[] = {{2, along_2}, {4, along_4}, {8, along_8}, {0}};
