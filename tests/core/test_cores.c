/* Ranks that are bound to their CPUs have all of them, ranks that share some divide them, quotas count. */
#include "core/cores.h"
#include "core/cpu.h"
#include "core/topo.h"
#include "support/check.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char root[] = "/tmp/weft_cores_XXXXXX";

static weft_cores cores_of(int first, int last)
{
    weft_cores cores = {.machine = 1};

    for (int cpu = first; cpu <= last; cpu++)
        cores.cpus[cpu / 64] |= (uint64_t)1 << cpu % 64;
    return cores;
}

static bool near(double value, double expected)
{
    return fabs(value - expected) < 1e-9;
}

static void cpus_are_divided(void)
{
    weft_cores a = cores_of(0, 15), b = a, c = cores_of(60, 67), d = cores_of(64, 71);
    const weft_cores *unbound[] = {&a, &b}, *bound[] = {&a, &c}, *overlapping[] = {&c, &d};

    CHECK(near(weft_cores_share(unbound, 2, 0), 8));
    CHECK(near(weft_cores_share(bound, 2, 0), 16));
    CHECK(near(weft_cores_share(bound, 2, 1), 8));
    CHECK(near(weft_cores_share(overlapping, 2, 0), 6));
    b.machine = 2;
    CHECK(near(weft_cores_share(unbound, 2, 0), 16));
}

static void quotas_count(void)
{
    weft_cores a = cores_of(0, 15), b = cores_of(0, 15), c = cores_of(16, 31);
    const weft_cores *ranks[] = {&a, &b, &c};

    a.quota = b.quota = c.quota = 6;
    a.control = b.control = 7;
    c.control = 8;
    CHECK(near(weft_cores_share(ranks, 3, 0), 3));
    CHECK(near(weft_cores_share(ranks, 3, 2), 6));
    a.quota = b.quota = 100;
    CHECK(near(weft_cores_share(ranks, 3, 0), 8));
    CHECK_INT(weft_cores_whole(&a), 16);
    a.quota = 2.5;
    CHECK_INT(weft_cores_whole(&a), 2);
    a.quota = 0.5;
    CHECK_INT(weft_cores_whole(&a), 1);
}

static void put(const char *path, const char *text)
{
    char full[4096];
    FILE *file;

    snprintf(full, sizeof(full), "%s/%s", root, path);
    file = fopen(full, "w");
    CHECK(file != NULL);
    if (file) {
        fputs(text, file);
        fclose(file);
    }
}

static void folder(const char *path)
{
    char full[4096];

    snprintf(full, sizeof(full), "%s/%s", root, path);
    CHECK_INT(mkdir(full, 0755), 0);
}

static double quota(uint64_t *control)
{
    char list[4096];

    snprintf(list, sizeof(list), "%s/list", root);
    return weft_cores_quota(list, root, control);
}

static void quotas_are_read(void)
{
    uint64_t none, inner, outer, old;

    folder("a");
    folder("a/b");
    put("list", "0::/a/b\n");
    CHECK(near(quota(&none), 0) && none == 0);
    put("a/b/cpu.max", "max 100000\n");
    CHECK(near(quota(&none), 0) && none == 0);
    put("a/b/cpu.max", "250000 100000\n");
    CHECK(near(quota(&inner), 2.5) && inner != 0);
    put("a/cpu.max", "150000 100000\n");
    CHECK(near(quota(&outer), 1.5) && outer != 0 && outer != inner);
    put("a/cpu.max", "400000 100000\n");
    CHECK(near(quota(&outer), 2.5) && outer == inner);
    folder("cpu");
    folder("cpu/c");
    put("cpu/c/cpu.cfs_quota_us", "300000\n");
    put("cpu/c/cpu.cfs_period_us", "100000\n");
    put("list", "5:cpuset:/c\n4:cpu,cpuacct:/c\n");
    CHECK(near(quota(&old), 3) && old != 0);
    put("cpu/c/cpu.cfs_quota_us", "-1\n");
    CHECK(near(quota(&none), 0));
    put("list", "nonsense\n");
    CHECK(near(quota(&none), 0));
    CHECK(near(weft_cores_quota("/nowhere/at/all", root, &none), 0));
}

/* ---- a machine of 1500 CPUs ------------------------------------------------------------------------- */

static int large;

int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
    if (!large)
        return syscall(SYS_sched_getaffinity, pid, bytes, set) < 0 ? -1 : 0;
    if (bytes * 8 < 2048) { /* as the kernel says of a mask that is too short */
        errno = EINVAL;
        return -1;
    }
    CPU_ZERO_S(bytes, set);
    for (size_t cpu = 100; cpu < 1500; cpu++)
        CPU_SET_S(cpu, bytes, set);
    return 0;
}

static void many_cpus(void)
{
    weft_cores here;
    const weft_cores *two[] = {&here, &here};
    weft_topo_cpu *cpus = calloc(1500, sizeof(*cpus));

    large = 1;
    CHECK_INT(weft_topo_cpus(cpus, 1500), 1400);
    weft_cores_here(&here);
    CHECK_INT(weft_cpu_count(), weft_cores_whole(&here));
    here.quota = 0;
    CHECK_INT(weft_cores_whole(&here), 1400);
    here.control = 0;
    CHECK(near(weft_cores_share(two, 1, 0), 1400));
    CHECK(near(weft_cores_share(two, 2, 0), 700));
    large = 0;
    free(cpus);
}

int main(void)
{
    static const char *const made[] = {"cpu/c/cpu.cfs_quota_us",
                                       "cpu/c/cpu.cfs_period_us",
                                       "a/b/cpu.max",
                                       "a/cpu.max",
                                       "list",
                                       "cpu/c",
                                       "cpu",
                                       "a/b",
                                       "a",
                                       ""};
    weft_cores here;
    const weft_cores *alone[] = {&here};
    char full[4096];

    weft_cores_here(&here);
    CHECK_INT(weft_cpu_count(), weft_cores_whole(&here));
    CHECK(weft_cores_share(alone, 1, 0) > 0);
    CHECK(here.quota > 0 || near(weft_cores_share(alone, 1, 0), weft_cpu_count()));
    many_cpus();
    cpus_are_divided();
    quotas_count();
    CHECK(mkdtemp(root) != NULL);
    quotas_are_read();
    for (size_t i = 0; i < sizeof(made) / sizeof(*made); i++) {
        snprintf(full, sizeof(full), "%s/%s", root, made[i]);
        CHECK_INT(remove(full), 0);
    }
    return check_report("test_core_cores");
}
