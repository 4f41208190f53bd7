/*
 * What this CPU can do, found at run time: instruction-set features, a name for people, and how many
 * CPUs this process may use. The first call looks; later calls read the answer.
 */
#ifndef WEFT_CORE_CPU_H
#define WEFT_CORE_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One bit each in weft_cpu_features(). A bit means usable: the operating system keeps its registers too. */
enum weft_cpu_feature {
    /* aarch64 */
    WEFT_CPU_ASIMD = 1 << 0,
    WEFT_CPU_FP16 = 1 << 1,    /* half-precision vector arithmetic (asimdhp) */
    WEFT_CPU_FHM = 1 << 2,     /* FMLAL: fp16 products into fp32 */
    WEFT_CPU_DOTPROD = 1 << 3, /* SDOT, UDOT */
    WEFT_CPU_BF16 = 1 << 4,    /* BFDOT, BFMMLA */
    WEFT_CPU_I8MM = 1 << 5,    /* SMMLA */
    WEFT_CPU_SVE = 1 << 6,
    WEFT_CPU_SVE2 = 1 << 7,
    /* x86-64 */
    WEFT_CPU_AVX2 = 1 << 8,
    WEFT_CPU_FMA = 1 << 9,
    WEFT_CPU_F16C = 1 << 10,
    WEFT_CPU_AVX512F = 1 << 11,
    WEFT_CPU_AVX512BW = 1 << 12,
    WEFT_CPU_AVX512VL = 1 << 13,
    WEFT_CPU_AVX512DQ = 1 << 14,
    WEFT_CPU_AVX512VNNI = 1 << 15,
    WEFT_CPU_AVX512BF16 = 1 << 16,
    WEFT_CPU_AVX512FP16 = 1 << 17,
    WEFT_CPU_AVXVNNI = 1 << 18,
    WEFT_CPU_AMX_TILE = 1 << 19, /* the process holds the kernel's permission to use tile data */
    WEFT_CPU_AMX_BF16 = 1 << 20,
    WEFT_CPU_AMX_INT8 = 1 << 21,
    WEFT_CPU_FEATURE_COUNT = 22
};

/* What kernels of x86-64 are written for: all bits of a level, or not that level. */
enum {
    WEFT_CPU_LEVEL_AVX2 = WEFT_CPU_AVX2 | WEFT_CPU_FMA | WEFT_CPU_F16C,
    WEFT_CPU_LEVEL_AVX512 =
        WEFT_CPU_LEVEL_AVX2 | WEFT_CPU_AVX512F | WEFT_CPU_AVX512BW | WEFT_CPU_AVX512VL | WEFT_CPU_AVX512DQ
};

uint32_t weft_cpu_features(void);
bool weft_cpu_has(uint32_t features); /* all of them */

/* The short name of feature bit number `index` ("bf16", "avx512f"); NULL past the last. */
const char *weft_cpu_feature_name(int index);

/* Names of all features in `features`, separated by spaces, cut to fit. */
void weft_cpu_feature_list(uint32_t features, char *text, size_t bytes);

/* "Neoverse V1", a brand string, or the architecture's name. Never NULL. */
const char *weft_cpu_name(void);

/* CPUs in this thread's affinity mask (asked anew each time), or as many as the process's quota is good for;
 * at least 1. */
int weft_cpu_count(void);

#endif
