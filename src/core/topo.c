#include "core/topo.h"

#include <stdio.h>
#include <unistd.h>

static int64_t read_number(const char *path)
{
    FILE *file = fopen(path, "re");
    long long number = -1;

    if (!file)
        return -1;
    if (fscanf(file, "%lld", &number) != 1)
        number = -1; /* "max" */
    fclose(file);
    return number;
}

int64_t weft_topo_memory_bytes(void)
{
    static const char *const limits[] = {"/sys/fs/cgroup/memory.max",
                                         "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);

    for (int i = 0; i < 2; i++) {
        int64_t limit = read_number(limits[i]);

        if (limit > 0 && limit < bytes)
            bytes = limit;
    }
    return bytes;
}
