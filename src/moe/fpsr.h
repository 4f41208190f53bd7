/*
 * The CPU's notes on floating-point operations that went wrong (FPSR of aarch64): kernels that would give NaN
 * for infinite input look there once, after a whole row, instead of testing every element.
 */
#ifndef WEFT_MOE_FPSR_H
#define WEFT_MOE_FPSR_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_FPSR_WATCHED = 1 | 4 }; /* invalid operation, overflow */

/* Both order the loads and stores around them, and so the arithmetic in between. */
static inline uint64_t weft_fpsr_read(void)
{
    uint64_t notes;

    __asm__ volatile("mrs %0, fpsr" : "=r"(notes)::"memory");
    return notes;
}

static inline void weft_fpsr_write(uint64_t notes)
{
    __asm__ volatile("msr fpsr, %0" ::"r"(notes) : "memory");
}

/* Begins to watch. Returns what was noted before, for weft_fpsr_clean. */
static inline uint64_t weft_fpsr_watch(void)
{
    uint64_t before = weft_fpsr_read();

    if (before & WEFT_FPSR_WATCHED)
        weft_fpsr_write(before & ~(uint64_t)WEFT_FPSR_WATCHED);
    return before;
}

/* Whether no operation since was invalid or overflowed. What the caller had noted before is noted again. */
static inline bool weft_fpsr_clean(uint64_t before)
{
    uint64_t after = weft_fpsr_read();

    if (before & ~after)
        weft_fpsr_write(before | after);
    return !(after & WEFT_FPSR_WATCHED);
}

#endif
