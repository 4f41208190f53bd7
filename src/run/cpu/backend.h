/* The CPU's backend: ranks are threads or processes that share memory. */
#ifndef WEFT_RUN_CPU_BACKEND_H
#define WEFT_RUN_CPU_BACKEND_H

#include "run/backend.h"

extern const weft_backend weft_cpu_backend;

#endif
