/* The CPUs a process may use agree with its affinity mask, each once, neighbours side by side. */
#include <sched.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/cpu.h"
#include "core/topo.h"
#include "support/check.h"

static void put(const char *folder, const char *name, const char *text)
{
    char path[256];
    FILE *file;

    mkdir(folder, 0700);
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "w");
    CHECK(file != NULL);
    if (file) {
        fputs(text, file);
        fclose(file);
    }
}

/* The least limit counts, wherever above the process it stands. */
static void nested_limits(void)
{
    char root[] = "/tmp/weft-topo-XXXXXX", folder[128], list[128], command[128];

    CHECK(mkdtemp(root) != NULL);
    snprintf(list, sizeof(list), "%s/list", root);
    put(root, "list", "0::/a/b\n");
    CHECK_INT(weft_topo_memory_limit(list, root), 0);
    snprintf(folder, sizeof(folder), "%s/a", root);
    put(folder, "memory.max", "500000000\n");
    snprintf(folder, sizeof(folder), "%s/a/b", root);
    put(folder, "memory.max", "max\n");
    CHECK_INT(weft_topo_memory_limit(list, root), 500000000);
    put(folder, "memory.high", "400000000\n");
    CHECK_INT(weft_topo_memory_limit(list, root), 400000000);
    put(root, "list", "5:cpu,cpuacct:/a\n7:memory:/c\n");
    snprintf(folder, sizeof(folder), "%s/memory", root);
    put(folder, "memory.limit_in_bytes", "9223372036854771712\n");
    snprintf(folder, sizeof(folder), "%s/memory/c", root);
    put(folder, "memory.limit_in_bytes", "300000000\n");
    CHECK_INT(weft_topo_memory_limit(list, root), 300000000);
    CHECK_INT(weft_topo_memory_limit("/nowhere", root), 0);
    snprintf(command, sizeof(command), "rm -r %s", root);
    CHECK_INT(system(command), 0);
}

/* A plan that needs more memory than all before it asks for the limit: files are read in the first call
 * alone.
 */
static void limit_is_read_once(void)
{
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    int64_t bytes = weft_topo_memory_bytes();
    char events[256];

    CHECK(bytes > 1 << 20);
    if (watch >= 0 && inotify_add_watch(watch, "/proc/self/cgroup", IN_OPEN) >= 0) {
        CHECK(weft_topo_memory_bytes() == bytes);
        CHECK(read(watch, events, sizeof(events)) < 0);
        weft_topo_memory_limit("/proc/self/cgroup", "/sys/fs/cgroup");
        CHECK(read(watch, events, sizeof(events)) > 0); /* such a reading is seen */
    }
    if (watch >= 0)
        close(watch);
}

int main(void)
{
    enum { MOST = 4096 };
    static weft_topo_cpu cpus[MOST];
    int count = weft_topo_cpus(cpus, MOST), only;
    cpu_set_t before, one;

    CHECK_INT(count, weft_cpu_count());
    for (int i = 0; i < count && i < MOST; i++) {
        CHECK(cpus[i].core <= cpus[i].cpu && cpus[i].node >= 0);
        CHECK(i == 0 || cpus[i - 1].node <= cpus[i].node);
        for (int j = 0; j < i; j++)
            CHECK(cpus[j].cpu != cpus[i].cpu);
    }
    CHECK_INT(weft_topo_cpus(NULL, 0), count);

    only = cpus[count - 1].cpu;
    if (count <= MOST && only < CPU_SETSIZE && sched_getaffinity(0, sizeof(before), &before) == 0) {
        CPU_ZERO(&one);
        CPU_SET(only, &one);
        CHECK_INT(sched_setaffinity(0, sizeof(one), &one), 0);
        CHECK_INT(weft_topo_cpus(cpus, MOST), 1);
        CHECK_INT(cpus[0].cpu, only);
        sched_setaffinity(0, sizeof(before), &before);
    }
    limit_is_read_once();
    nested_limits();
    CHECK(weft_topo_cache_bytes(1) >= 0 && weft_topo_cache_bytes(9) == 0);
    return check_report("test_core_topo");
}
