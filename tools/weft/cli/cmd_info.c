/* weft info: what this build and this machine can do, and every setting with its value and meaning. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

#include "cli/commands.h"
#include "core/cpu.h"
#include "core/env.h"
#include "core/topo.h"
#ifdef WEFT_HAVE_CUDA
#include "run/cuda/describe.h"
#endif

enum { CPUS_MAX = 4096 };

static void line(const char *name, const char *value)
{
    printf("  %-14s %s\n", name, value);
}

static void show_backends(void)
{
#ifdef WEFT_HAVE_CUDA
    char text[512];

    line("backends", "cpu, cuda");
    weft_cuda_describe(text, sizeof(text));
    line("cuda", text);
#else
    line("backends", "cpu");
    line("cuda", "not in this build: it was made without nvcc, or with WEFT_CUDA=OFF");
#endif
}

static void show_cpus(void)
{
    static weft_topo_cpu cpus[CPUS_MAX];
    int count = weft_topo_cpus(cpus, CPUS_MAX), cores = 0, nodes = 0;
    char text[512];

    for (int i = 0; i < count && i < CPUS_MAX; i++) {
        cores += i == 0 || cpus[i].core != cpus[i - 1].core;
        nodes += i == 0 || cpus[i].node != cpus[i - 1].node;
    }
    line("cpu", weft_cpu_name());
    weft_cpu_feature_list(weft_cpu_features(), text, sizeof(text));
    line("features", text);
    snprintf(text, sizeof(text), "%d CPUs on %d cores of %d memory node%s, for this process", count, cores,
             nodes, nodes == 1 ? "" : "s");
    line("cores", text);
    snprintf(text, sizeof(text), "L1d %lld KiB, L2 %lld KiB, L3 %lld KiB",
             (long long)weft_topo_cache_bytes(1) >> 10, (long long)weft_topo_cache_bytes(2) >> 10,
             (long long)weft_topo_cache_bytes(3) >> 10);
    line("caches", text);
}

static void show_memory(void)
{
    char private_memory[32], shared_memory[32], text[128];

    snprintf(text, sizeof(text), "%.1f GiB", (double)weft_topo_memory_bytes() / (1 << 30));
    line("memory", text);
    weft_topo_huge_pages(private_memory, shared_memory);
    snprintf(text, sizeof(text), "threads as ranks: %s; processes as ranks: %s", private_memory,
             shared_memory);
    line("huge pages", text);
}

static void show_settings(void)
{
    printf("\nenvironment\n");
    for (int id = 0; id < WEFT_ENV_IDS; id++) {
        const weft_env_entry *entry = weft_env_describe((weft_env_id)id);
        const char *value = getenv(entry->name);

        printf("  %-22s %s%s (%s, default %s)\n      %s\n", entry->name, value && *value ? "= " : "",
               value && *value ? value : "not set", weft_env_kind_name(entry->kind),
               *entry->fallback ? entry->fallback : "derived", entry->help);
    }
}

int cmd_info(int argc, char **argv)
{
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        puts("usage: weft info\n\nShows what this build and this machine can do, and every setting.");
        return 0;
    }
    if (argc > 0) {
        fprintf(stderr, "weft info: %s is not one of its flags; it takes none\n", argv[0]);
        return 2;
    }
    printf("weft %s\n", weft_version());
    show_backends();
    show_cpus();
    show_memory();
    show_settings();
    return 0;
}
