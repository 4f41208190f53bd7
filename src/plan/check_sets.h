/*
 * Sets of contributions as sorted intervals, each distinct set stored once so that sets compare by number.
 * For a GEMM op the members are indices of the global k, for a collective they are ranks. Set 0 is empty.
 */
#ifndef WEFT_PLAN_CHECK_SETS_H
#define WEFT_PLAN_CHECK_SETS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_sets weft_sets;

enum { WEFT_SETS_OVERLAP = -1, WEFT_SETS_NO_MEMORY = -2 };

weft_sets *weft_sets_new(void);
void weft_sets_free(weft_sets *sets);

/* The set [begin, end), or WEFT_SETS_NO_MEMORY. */
int64_t weft_sets_interval(weft_sets *sets, int64_t begin, int64_t end);

/* The union of two sets that have no member in common, else WEFT_SETS_OVERLAP. */
int64_t weft_sets_join(weft_sets *sets, int64_t a, int64_t b);

/* "0..4 7..9", for sentences. */
const char *weft_sets_text(const weft_sets *sets, int64_t set);

#endif
