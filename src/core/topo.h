/* What this machine offers the process besides instruction sets (core/cpu.h): which CPUs, on which cores and
 * memory nodes, caches and memory. Read from /sys and the process's affinity mask; never cached. */
#ifndef WEFT_CORE_TOPO_H
#define WEFT_CORE_TOPO_H

#include <stdint.h>

typedef struct weft_topo_cpu {
    int cpu;
    int core; /* the lowest CPU of the same physical core */
    int node; /* memory node; 0 where the system knows none */
} weft_topo_cpu;

/* The CPUs this process may run on, those of a core side by side, cores of a node side by side. Returns how
 * many there are; writes at most `most` of them. */
int weft_topo_cpus(weft_topo_cpu *cpus, int most);

/* Bytes of the data or unified cache of a level (1 to 3) as the first allowed CPU sees it, and as a given one
 * does; 0 if unknown. */
int64_t weft_topo_cache_bytes(int level);
int64_t weft_topo_cache_bytes_of(int cpu, int level);

/* Bytes of memory this process may use: the machine's, or what its control groups allow when that is less.
 * Read from a dozen files in the first call, and the same from then on. */
int64_t weft_topo_memory_bytes(void);

/* The least limit of the process's control group and those above it, of either version; 0: none. Its list of
 * groups is read from `list` (/proc/self/cgroup), their files under `root` (/sys/fs/cgroup). */
int64_t weft_topo_memory_limit(const char *list, const char *root);

/* What the kernel is set to for huge pages: of private memory, and of shared memory. The word in
 * brackets of its switch ("madvise"), or "unknown". */
void weft_topo_huge_pages(char private_memory[32], char shared_memory[32]);

#endif
