/* Climbs over halves, 8 columns of 8 k at a time. */
#ifndef WEFT_KERNELS_AARCH64_STREAM_HALVES_H
#define WEFT_KERNELS_AARCH64_STREAM_HALVES_H

/* 8 columns of 8 k in v8..v15: one register for each k, v0..v7. Each of three rounds zips i with i + 4. */
#define ZIP_BOTH(d, e, x, y)                                                                                 \
    "zip1 v" #d ".8h, v" #x ".8h, v" #y ".8h\n zip2 v" #e ".8h, v" #x ".8h, v" #y ".8h\n"
#define ZIP_UP                                                                                               \
    ZIP_BOTH(0, 1, 8, 12)                                                                                    \
    ZIP_BOTH(2, 3, 9, 13) ZIP_BOTH(4, 5, 10, 14) ZIP_BOTH(6, 7, 11, 15)
#define TRANSPOSE                                                                                            \
    ZIP_UP ZIP_BOTH(8, 9, 0, 4) ZIP_BOTH(10, 11, 1, 5) ZIP_BOTH(12, 13, 2, 6) ZIP_BOTH(14, 15, 3, 7) ZIP_UP

/*
 * One row or two are not worth the zips: sums of every fourth k are kept, and joined at the end.
 */
#define CLIMBS_BY_DOTS
#define ZERO_8(a, b, c, d, e, f, g, h)                                                                       \
    "movi v" #a ".2d, #0\n movi v" #b ".2d, #0\n movi v" #c ".2d, #0\n movi v" #d ".2d, #0\n"                \
    "movi v" #e ".2d, #0\n movi v" #f ".2d, #0\n movi v" #g ".2d, #0\n movi v" #h ".2d, #0\n"
#define JOIN(d, e, f, g)                                                                                     \
    "faddp v" #d ".4s, v" #d ".4s, v" #e ".4s\n faddp v" #f ".4s, v" #f ".4s, v" #g ".4s\n"                  \
    "faddp v" #d ".4s, v" #d ".4s, v" #f ".4s\n"
#define ADD_SUMS(d, at)                                                                                      \
    "ldr q0, [%[c], #" #at "]\n fadd v" #d ".4s, v0.4s, v" #d ".4s\n str q" #d ", [%[c], #" #at "]\n"
#define BEGIN_1 ZERO_8(16, 17, 18, 19, 20, 21, 22, 23)
#define END_1 JOIN(16, 17, 18, 19) JOIN(20, 21, 22, 23) ADD_SUMS(16, 0) ADD_SUMS(20, 16)
#define BEGIN_2 BEGIN_1 ZERO_8(24, 25, 26, 27, 28, 29, 30, 31)
#define END_2 END_1 JOIN(24, 25, 26, 27) JOIN(28, 29, 30, 31) ADD_SUMS(24, 32) ADD_SUMS(28, 48)

#endif
