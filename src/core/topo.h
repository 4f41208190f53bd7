/* What this machine offers the process besides its CPUs (core/cpu.h): memory. */
#ifndef WEFT_CORE_TOPO_H
#define WEFT_CORE_TOPO_H

#include <stdint.h>

/* Bytes of memory this process may use: the machine's, or its control group's limit when that is less. */
int64_t weft_topo_memory_bytes(void);

#endif
