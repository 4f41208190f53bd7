/* The one clock: monotonic nanoseconds, comparable between processes of this machine. */
#ifndef WEFT_CORE_CLOCK_H
#define WEFT_CORE_CLOCK_H

#include <stdint.h>

int64_t weft_clock_ns(void);

#endif
