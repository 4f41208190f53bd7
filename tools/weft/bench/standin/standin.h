/*
 * The stand-in expert of benches and tests: it costs next to nothing, so that a round's time is that of its
 * communication and of combine, and every result can be checked. Contenders of other libraries run the same
 * kernels (scale.h).
 *
 * The contest's expert multiplies by 1 + the rank that owns it, which does not notice a wrong expert inside a
 * rank; without owners it multiplies by 1 + the expert's id instead. Either is exact before rounding to the
 * dtype.
 */
#ifndef WEFT_TOOLS_BENCH_STANDIN_STANDIN_H
#define WEFT_TOOLS_BENCH_STANDIN_STANDIN_H

#include <weft/weft.h>

/* The context of the stand-in expert. */
typedef struct weft_standin {
    weft_dtype dtype;
    int64_t hidden;
    int topk;
    const int32_t *owner; /* expert -> rank; NULL: by expert */
} weft_standin;

float weft_standin_factor(const weft_standin *standin, int expert);
weft_moe_expert weft_standin_expert(weft_standin *standin);

#endif
