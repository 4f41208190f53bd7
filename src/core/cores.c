#include "core/cores.h"

#include "core/hash.h"
#include "core/line.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_MOST = 4096 };

static uint64_t name_of(const char *text)
{
    uint64_t hash = weft_hash(WEFT_HASH_START, text, strlen(text));

    return hash ? hash : 1;
}

/* CPUs by the files of one group, of either version of control groups; 0 where they set none. */
static double quota_of(const char *folder)
{
    char path[PATH_MOST + 32], line[64];
    double quota, period = 0;

    snprintf(path, sizeof(path), "%s/cpu.max", folder); /* "max 100000", "250000 100000" */
    if (weft_read_line(path, line, sizeof(line)))
        return sscanf(line, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0 ? quota / period : 0;
    snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", folder);
    if (!weft_read_line(path, line, sizeof(line)))
        return 0;
    quota = strtod(line, NULL);
    snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", folder);
    if (weft_read_line(path, line, sizeof(line)))
        period = strtod(line, NULL);
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* The least of a group and those above it, up to `root`. */
static void narrow(const char *root, const char *group, double *least, uint64_t *control)
{
    char folder[PATH_MOST];
    size_t base = strlen(root);

    if (snprintf(folder, sizeof(folder), "%s%s", root, group) >= (int)sizeof(folder))
        return;
    for (;;) {
        double quota = quota_of(folder);
        char *slash;

        if (quota > 0 && (*least == 0 || quota < *least)) {
            struct stat about;

            *least = quota;
            /* Two containers may call their groups alike: the folder itself tells them apart. */
            *control = name_of(folder) ^ (stat(folder, &about) == 0 ? (uint64_t)about.st_ino << 1 : 0);
        }
        slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < base)
            return;
        *slash = 0;
    }
}

/* Whether "cpu" is one of the controllers "cpu,cpuacct". */
static int has_cpu(const char *controllers, size_t length)
{
    while (length) {
        const char *comma = memchr(controllers, ',', length);
        size_t word = comma ? (size_t)(comma - controllers) : length;

        if (word == 3 && strncmp(controllers, "cpu", 3) == 0)
            return 1;
        length -= word + (comma != NULL);
        controllers += word + (comma != NULL);
    }
    return 0;
}

double weft_cores_quota(const char *list, const char *root, uint64_t *control)
{
    FILE *file = fopen(list, "re");
    char line[PATH_MOST], under[PATH_MOST];
    double least = 0;

    *control = 0;
    while (file && fgets(line, sizeof(line), file)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!group)
            continue;
        group[1 + strcspn(group + 1, "\n")] = 0;
        if (group == controllers + 1) { /* "0::/path" is version 2 */
            narrow(root, group + 1, &least, control);
        } else if (has_cpu(controllers + 1, (size_t)(group - controllers - 1)) &&
                   snprintf(under, sizeof(under), "%s/cpu", root) < (int)sizeof(under)) {
            narrow(under, group + 1, &least, control);
        }
    }
    if (file)
        fclose(file);
    return least;
}

bool weft_cores_allowed(uint64_t cpus[WEFT_CORES_WORDS])
{
    const size_t bytes = WEFT_CORES_WORDS * sizeof(cpus[0]);

    _Static_assert(sizeof(__cpu_mask) == sizeof(uint64_t), "a set of CPUs is words of 64");
    memset(cpus, 0, bytes);
    return sched_getaffinity(0, bytes, (cpu_set_t *)cpus) == 0;
}

void weft_cores_here(weft_cores *cores)
{
    char boot[64];

    memset(cores, 0, sizeof(*cores));
    cores->machine =
        weft_read_line("/proc/sys/kernel/random/boot_id", boot, sizeof(boot)) ? name_of(boot) : 0;
    cores->quota = weft_cores_quota("/proc/self/cgroup", "/sys/fs/cgroup", &cores->control);
    weft_cores_allowed(cores->cpus);
}

double weft_cores_share(const weft_cores *const *ranks, int count, int rank)
{
    const weft_cores *mine = ranks[rank];
    double share = 0, quota = mine->quota;
    int sharers = 0;

    for (int cpu = 0; cpu < 64 * WEFT_CORES_WORDS; cpu++) {
        uint64_t bit = (uint64_t)1 << cpu % 64;
        int users = 0;

        if (!(mine->cpus[cpu / 64] & bit))
            continue;
        for (int i = 0; i < count; i++)
            users += ranks[i]->machine == mine->machine && ranks[i]->cpus[cpu / 64] & bit;
        share += 1.0 / users;
    }
    for (int i = 0; i < count; i++)
        sharers += ranks[i]->machine == mine->machine && ranks[i]->control == mine->control;
    if (quota > 0 && quota / sharers < share)
        share = quota / sharers;
    return share;
}

int weft_cores_workers(double share)
{
    const double rounding = 1e-6; /* a share of three thirds is one core */

    return share > 2 - rounding ? (int)(share + rounding) : 1;
}

int weft_cores_whole(const weft_cores *cores)
{
    int count = 0;

    for (int word = 0; word < WEFT_CORES_WORDS; word++)
        count += __builtin_popcountll(cores->cpus[word]);
    if (cores->quota > 0 && cores->quota < count)
        count = (int)cores->quota;
    return count > 0 ? count : 1;
}
