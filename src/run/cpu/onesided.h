/* Put, get, signals and atomics of programs in host memory. */
#ifndef WEFT_RUN_CPU_ONESIDED_H
#define WEFT_RUN_CPU_ONESIDED_H

#include "run/onesided.h"

extern const weft_onesided_ops weft_cpu_onesided;

#endif
