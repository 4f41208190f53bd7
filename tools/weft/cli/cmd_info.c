/* weft info: what this build and this machine can do, and every setting with its value and meaning. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <weft/weft.h>

#include "bench/interpreter.h"
#include "bench/start.h"
#include "cli/commands.h"
#include "core/cores.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "core/env.h"
#include "core/topo.h"
#include "gemm/gemm.h"
#include "launch/launch.h"
#include "run/backend.h"
#include "sim/machine.h"
#include "choose/tuned.h"

enum { CPUS_MAX = 4096 };

static void line(const char *name, const char *value)
{
    printf("  %-14s %s\n", name, value);
}

static void show_backends(void)
{
    const weft_backend *backend;
    char text[512] = "";
    size_t used = 0;

    for (int i = 0; (backend = weft_backend_at(i)); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? ", " : "", backend->name);
    line("backends", text);
    for (int i = 1; (backend = weft_backend_at(i)); i++) {
        backend->describe(text, sizeof(text));
        line(backend->name, text);
    }
    if (!weft_backend_at(1))
        line("cuda", "not in this build: it was made without nvcc, or with WEFT_CUDA=OFF");
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

/* How many workers a rank has when nobody says, and what they multiply with. */
static void show_workers(void)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I8};
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    weft_cores here;
    const weft_cores *alone[] = {&here};
    const weft_core *core;
    weft_error_text error;
    char text[512], quota[64] = "";
    size_t used = 0;
    double share;
    weft_cores unbounded;

    weft_cores_here(&here);
    share = weft_cores_share(alone, 1, 0);
    unbounded = here;
    unbounded.quota = 0;
    if (here.quota > 0)
        snprintf(quota, sizeof(quota), ", with a quota of %.3g CPUs", here.quota);
    snprintf(text, sizeof(text),
             "%d for one rank alone, bound to %d of %ld CPUs%s; ranks that share them divide",
             weft_cores_workers(share), weft_cores_whole(&unbounded), online, quota);
    line("workers", text);
    if (weft_core_current(&core, &error) != WEFT_OK) {
        line("gemm kernels", error.text);
        return;
    }
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s %s", i ? ", " : "",
                                 weft_dtype_name(types[i]),
                                 weft_core_binding(core, types[i], false)->kernel->name);
    snprintf(text + used, sizeof(text) - used, " (%s; WEFT_ISA forces another)", core->name);
    line("gemm kernels", text);
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

/* "3 days ago" */
static void tell_age(time_t then, char *text, size_t bytes)
{
    double seconds = difftime(time(NULL), then);

    if (seconds < 3600)
        snprintf(text, bytes, "%.0f minutes ago", seconds / 60);
    else if (seconds < 48 * 3600)
        snprintf(text, bytes, "%.0f hours ago", seconds / 3600);
    else
        snprintf(text, bytes, "%.0f days ago", seconds / 86400);
}

/* Which description `auto` reads, and how old it is. */
static void show_calibration(void)
{
    const char *named = getenv("WEFT_MACHINE");
    char path[4096], age[64], text[4400];
    weft_error_text error;
    weft_machine machine;
    struct stat about;

    if (named && *named)
        snprintf(text, sizeof(text), "%s, named by WEFT_MACHINE", named);
    else if (weft_machine_user_path(path, sizeof(path), &error) != WEFT_OK || stat(path, &about) != 0)
        snprintf(text, sizeof(text), "none: auto goes by a fixed rule; weft calibrate measures this machine");
    else {
        tell_age(about.st_mtime, age, sizeof(age));
        snprintf(text, sizeof(text), "%s, measured %s", path, age);
        if (weft_machine_find(NULL, &machine, &error) == WEFT_OK && strcmp(machine.name, "cpu") == 0)
            snprintf(text, sizeof(text), "%s is not used: %s", path, machine.about);
    }
    if (weft_machine_find(NULL, &machine, &error) != WEFT_OK)
        snprintf(text, sizeof(text), "%.400s", error.text);
    line("calibration", text);
}

/* The file of weft tune, and for whom its lines are: what is not for this machine counts for nothing here. */
static void show_tuned(void)
{
    char path[4096], text[4400];
    weft_error_text error = {0};
    struct stat about;
    int lines, here;

    if (weft_tuned_path(path, sizeof(path), &error) != WEFT_OK ||
        weft_tuned_count((int)sysconf(_SC_NPROCESSORS_ONLN), &lines, &here, &error) != WEFT_OK)
        snprintf(text, sizeof(text), "%.400s", error.text);
    else if (!*path)
        snprintf(text, sizeof(text), "none is read");
    else if (stat(path, &about) != 0)
        snprintf(text, sizeof(text), "nothing yet: weft tune finds what is fastest");
    else
        snprintf(text, sizeof(text), "%s: %d of %d lines for ranks on this CPU, one node, and this version%s",
                 path, here, lines,
                 here < lines ? "; others are for other CPUs, nodes, GPUs or versions" : "");
    line("tuned", text);
}

/* Whether the dynamic linker finds the first of these libraries; its name into `text`. */
static bool finds_library(const char *const *names, char *text, size_t bytes)
{
    for (; *names; names++) {
        void *library = dlopen(*names, RTLD_LAZY | RTLD_LOCAL);

        if (library) {
            snprintf(text, bytes, "%s", *names);
            dlclose(library);
            return true;
        }
    }
    return false;
}

/* The PyTorch of the Python that is named, else of python3, without loading it. */
static void show_torch(void)
{
    static char ask[] = "try:\n from importlib.metadata import version\n print('ready', version('torch'))\n"
                        "except Exception:\n pass";
    const char *named = getenv("WEFT_TORCH_PYTHON"), *path = named && *named ? named : "python3";
    char *const words[] = {(char *)(uintptr_t)path, "-c", ask, NULL};
    char text[512];
    interpreter python;

    if (!launch_finds(path))
        snprintf(text, sizeof(text), "not found: there is no %.400s", path);
    else if (interpreter_open(&python, words) != 0)
        snprintf(text, sizeof(text), "not found: %.300s has none (WEFT_TORCH_PYTHON names another Python)",
                 path);
    else {
        snprintf(text, sizeof(text), "%s of %.300s: %s", python.name, path,
                 named && *named ? "bench measures it beside products"
                                 : "weft bench --torch python3 measures it");
        interpreter_close(&python);
    }
    line("pytorch", text);
}

/* What can be measured beside weft, or carry it between nodes. */
static void show_others(void)
{
    static const char *const ucx[] = {"libucp.so.0", NULL}, *const blas[] = {"libopenblas.so.0", NULL};
    char text[256];

    line("mpi", bench_has_mpi()          ? "found: bench measures it beside weft"
                : launch_finds("mpirun") ? "mpirun found, but this build has no helper for it"
                                         : "not found (scripts/setup.sh bench installs it)");
    line("openblas", finds_library(blas, text, sizeof(text)) ? text : "not found");
    line("ucx", finds_library(ucx, text, sizeof(text)) ? text : "not found");
    show_torch();
}

static void show_settings(void)
{
    printf("\nenvironment\n");
    for (int id = 0; id < WEFT_ENV_IDS; id++) {
        const weft_env_entry *entry = weft_env_describe((weft_env_id)id);
        const char *value = getenv(entry->name);

        printf("  %-22s %s%s (%s, default %s)\n      %s\n", entry->name, value && *value ? "= " : "",
               value && *value ? value : "not set",
               *entry->choices ? entry->choices : weft_env_kind_name(entry->kind),
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
    show_workers();
    show_calibration();
    show_tuned();
    show_others();
    show_settings();
    return 0;
}
