#include "core/topo.h"

#include "core/line.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { CPUS_MAX = 1 << 16, NODES_MAX = 1 << 10 };

static int64_t read_number(const char *path)
{
    char line[64], *end;
    long long number;

    if (!weft_read_line(path, line, sizeof(line)))
        return -1;
    number = strtoll(line, &end, 10);
    return end == line ? -1 : number; /* "max" is no number */
}

/* Whether "0-3,8" holds the number. */
static int list_holds(const char *list, int number)
{
    while (*list) {
        char *end;
        long first = strtol(list, &end, 10), last = first;

        if (end == list)
            return 0;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        if (number >= first && number <= last)
            return 1;
        list = *end == ',' ? end + 1 : end;
        if (*end != ',')
            return 0;
    }
    return 0;
}

static int node_of(int cpu)
{
    char path[96], list[4096];

    for (int node = 0, gap = 0; node < NODES_MAX && gap < 64; node++) {
        snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
        if (!weft_read_line(path, list, sizeof(list))) {
            gap++; /* node numbers may have holes */
            continue;
        }
        if (list_holds(list, cpu))
            return node;
    }
    return 0;
}

static int core_of(int cpu)
{
    char path[96];
    int64_t first;

    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    first = read_number(path);
    return first < 0 ? cpu : (int)first;
}

static int by_place(const void *a, const void *b)
{
    const weft_topo_cpu *one = a, *two = b;

    if (one->node != two->node)
        return one->node - two->node;
    if (one->core != two->core)
        return one->core - two->core;
    return one->cpu - two->cpu;
}

int weft_topo_cpus(weft_topo_cpu *cpus, int most)
{
    size_t bytes = CPU_ALLOC_SIZE(CPUS_MAX);
    cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
    int count = 0, written;

    if (!set)
        return 0;
    CPU_ZERO_S(bytes, set);
    if (sched_getaffinity(0, bytes, set) == 0)
        for (int cpu = 0; cpu < CPUS_MAX; cpu++)
            if (CPU_ISSET_S(cpu, bytes, set)) {
                if (count < most)
                    cpus[count] = (weft_topo_cpu){cpu, core_of(cpu), node_of(cpu)};
                count++;
            }
    CPU_FREE(set);
    written = count < most ? count : most;
    if (written > 0)
        qsort(cpus, (size_t)written, sizeof(*cpus), by_place);
    return count;
}

#if defined(__x86_64__)

/* For systems that show no /sys: what the CPU that this runs on says of itself. */
static int64_t cache_by_cpuid(int level)
{
    enum { CACHES_OF_INTEL = 4, CACHES_OF_AMD = 0x8000001d, INSTRUCTIONS = 2 };
    static const uint32_t leaves[] = {CACHES_OF_INTEL, CACHES_OF_AMD};
    uint32_t eax, ebx, ecx, edx;

    for (size_t i = 0; i < sizeof(leaves) / sizeof(*leaves); i++) {
        for (uint32_t index = 0;
             index < 8 && __get_cpuid_count(leaves[i], index, &eax, &ebx, &ecx, &edx) && (eax & 0x1f);
             index++) {
            if ((eax & 0x1f) != INSTRUCTIONS && (int)(eax >> 5 & 7) == level)
                return (int64_t)((ebx >> 22) + 1) * ((ebx >> 12 & 0x3ff) + 1) * ((ebx & 0xfff) + 1) *
                       ((int64_t)ecx + 1);
        }
    }
    return 0;
}

#else

static int64_t cache_by_cpuid(int level)
{
    (void)level;
    return 0;
}

#endif

int64_t weft_topo_cache_bytes(int level)
{
    weft_topo_cpu first = {0};

    weft_topo_cpus(&first, 1);
    return weft_topo_cache_bytes_of(first.cpu, level);
}

int64_t weft_topo_cache_bytes_of(int cpu, int level)
{
    char path[96], line[32];

    for (int index = 0; index < 8; index++) {
        char *unit;
        long long size;

        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/cache/index%d/level", cpu, index);
        if (read_number(path) != level)
            continue;
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/cache/index%d/type", cpu, index);
        if (!weft_read_line(path, line, sizeof(line)) || strncmp(line, "Instruction", 11) == 0)
            continue;
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/cache/index%d/size", cpu, index);
        if (!weft_read_line(path, line, sizeof(line)))
            continue;
        size = strtoll(line, &unit, 10);
        return size << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : 0);
    }
    return cache_by_cpuid(level);
}

/* The least limit in a group's folder and those above it, up to `root`. */
static int64_t narrow_memory(const char *root, const char *group, int64_t least)
{
    static const char *const files[] = {"memory.max", "memory.high", "memory.limit_in_bytes"};
    char folder[2048], path[2112];
    size_t base = strlen(root);

    if (snprintf(folder, sizeof(folder), "%s%s", root, group) >= (int)sizeof(folder))
        return least;
    for (;;) {
        char *slash;

        for (int i = 0; i < 3; i++) {
            int64_t limit;

            snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
            limit = read_number(path);
            if (limit > 0 && (least == 0 || limit < least))
                least = limit;
        }
        slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < base)
            return least;
        *slash = 0;
    }
}

int64_t weft_topo_memory_limit(const char *list, const char *root)
{
    FILE *file = fopen(list, "re");
    char line[2048], under[2048];
    int64_t least = 0;

    while (file && fgets(line, sizeof(line), file)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!group)
            continue;
        *group = 0;
        group[1 + strcspn(group + 1, "\n")] = 0;
        if (!controllers[1]) /* "0::/path" is version 2 */
            least = narrow_memory(root, group + 1, least);
        else if (strstr(controllers, "memory") &&
                 snprintf(under, sizeof(under), "%s/memory", root) < (int)sizeof(under))
            least = narrow_memory(under, group + 1, least);
    }
    if (file)
        fclose(file);
    return least;
}

int64_t weft_topo_memory_bytes(void)
{
    static _Atomic int64_t known; /* its partner is any later call: threads that read at once find the same */
    int64_t bytes = atomic_load_explicit(&known, memory_order_relaxed), limit;

    if (bytes)
        return bytes;
    bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    limit = weft_topo_memory_limit("/proc/self/cgroup", "/sys/fs/cgroup");
    bytes = limit > 0 && limit < bytes ? limit : bytes;
    atomic_store_explicit(&known, bytes, memory_order_relaxed);
    return bytes;
}

static void chosen_word(const char *path, char word[32])
{
    char line[128], *open, *close;

    snprintf(word, 32, "unknown");
    if (weft_read_line(path, line, sizeof(line)) && (open = strchr(line, '[')) && (close = strchr(open, ']')))
        snprintf(word, 32, "%.*s", (int)(close - open - 1), open + 1);
}

void weft_topo_huge_pages(char private_memory[32], char shared_memory[32])
{
    chosen_word("/sys/kernel/mm/transparent_hugepage/enabled", private_memory);
    chosen_word("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shared_memory);
}
