/* The CPUs a process may use agree with its affinity mask, each once, neighbours side by side. */
#include <sched.h>

#include "core/cpu.h"
#include "core/topo.h"
#include "support/check.h"

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
    CHECK(weft_topo_memory_bytes() > 1 << 20);
    CHECK(weft_topo_cache_bytes(1) >= 0 && weft_topo_cache_bytes(9) == 0);
    return check_report("test_core_topo");
}
