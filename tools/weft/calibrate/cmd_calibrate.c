/* `weft calibrate`: measures this machine and writes its description, which `auto` and `weft sim` then use.
 */
#include "calibrate/calibrate.h"
#include "cli/commands.h"
#include "cli/options.h"

#include "core/clock.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "core/place.h"
#include "core/topo.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const int64_t QUIET_NS = 5000000000;
static const double MOST_NOISE = 0.2; /* that rounds may differ by */

enum { LARGE_PRODUCT = 8192, USUAL_SECONDS = 60, LEAST_SECONDS = 1, MOST_SECONDS = 3600 };

static void put_curve(FILE *file, const char *key, const char *type, const weft_curve *curve)
{
    for (int i = 0; i < curve->count; i++)
        fprintf(file, "%s%s%s %.0f %.3g %.3g # measured\n", key, *type ? " " : "", type, curve->bytes[i],
                curve->alone[i], curve->all[i]);
}

static void put_type(FILE *file, const char *key, const double *values)
{
    for (int type = 0; type < WEFT_MACHINE_DTYPES; type++)
        if (values[type] > 0)
            fprintf(file, "%s %s %.4g # measured, each of all cores\n", key,
                    weft_dtype_name((weft_dtype)type), values[type]);
}

static void put_steps(FILE *file, const char *key, const int64_t *values)
{
    for (int type = 0; type < WEFT_MACHINE_DTYPES; type++)
        if (values[type] > 0)
            fprintf(file, "%s %s %lld # of the kernels of this build\n", key,
                    weft_dtype_name((weft_dtype)type), (long long)values[type]);
}

static void put_products(FILE *file, const weft_machine *m, const calibrate_spread *spread)
{
    for (int type = 0; type < WEFT_MACHINE_DTYPES; type++)
        if (m->gflops[type] > 0)
            fprintf(file, "gflops %s %.4g # measured, each of all cores; rounds differ by +- %.0f %%\n",
                    weft_dtype_name((weft_dtype)type), m->gflops[type], 50 * spread->of[type]);
}

/* `others`: what points are for that have no bytes. */
static void put_few(FILE *file, const char *key, const char *type, const weft_few_rows *few,
                    const char *others)
{
    for (int i = 0; i < few->count; i++)
        fprintf(file, "%s %s %.0f %.0f %.4g %.4g # measured, %s\n", key, type, few->rows[i], few->bytes[i],
                few->plain_ns[i], few->packed_ns[i], few->bytes[i] > 0 ? "each of all cores" : others);
}

static void put_machine(FILE *file, const weft_machine *m, const calibrate_spread *spread, const char *date)
{
    fprintf(file, "# Measured by weft calibrate (weft %s) on %s.\n", weft_version(), date);
    fprintf(file, "# Curves: bytes handled, GB/s of one core alone, GB/s of each when all work.\n");
    fprintf(file,
            "# Few rows: rows, bytes of B, ns of each of its elements where it is not packed, and where "
            "it is.\n");
    fprintf(file, "about %s, %d cores, calibrated %s\nname this\nkind cpu\n", weft_cpu_name(), m->units,
            date);
    fprintf(file, "cpu %s\n", weft_cpu_name());
    fprintf(file, "units %d # CPUs the process may use\n", m->units);
    put_products(file, m, spread);
    put_type(file, "pack_a_gbs", m->pack_a_gbs);
    put_type(file, "pack_b_gbs", m->pack_b_gbs);
    put_type(file, "edge_ns", m->edge_ns);
    put_type(file, "edge_place_ns", m->edge_place_ns);
    put_type(file, "acc_gbs", m->acc_gbs);
    put_type(file, "twice_gbs", m->twice_gbs);
    put_type(file, "stream_gbs", m->stream_gbs);
    put_type(file, "finish_ns", m->finish_ns);
    put_type(file, "gflops_long", m->gflops_long);
    put_type(file, "epilogue_ns", m->epilogue_ns);
    put_type(file, "round_ns", m->round_ns);
    put_type(file, "row_ns", m->row_ns);
    put_type(file, "shared_gbs", m->shared_gbs);
    fprintf(file, "cache_bytes %.0f # of a core, as the system says\n", m->cache_bytes);
    fprintf(file, "parts_gbs %.4g # measured, each of all cores\n", m->parts_gbs);
    fprintf(file, "step_m %lld # as float32\nstep_n %lld # as float32\n", (long long)m->step_m,
            (long long)m->step_n);
    put_steps(file, "type_step_m", m->type_step_m);
    put_steps(file, "type_step_n", m->type_step_n);
    put_steps(file, "type_step_k", m->type_step_k);
    fprintf(file, "memory_gbs %.4g # measured: all cores copy, read and written\n", m->memory_gbs);
    fprintf(file, "flag_us %.4g # measured: half of a round trip between two cores\n", m->flag_us);
    fprintf(file, "copy_us %.4g # measured: many small tasks against few\n", m->copy_us);
    fprintf(file, "reduce_us %.4g # measured: many small tasks against few\n", m->reduce_us);
    fprintf(file, "gemm_us %.4g # measured: the smallest product, with the cost of a task\n", m->gemm_us);
    fprintf(file, "launch_unfused_us %.4g # measured: what a small run takes beyond its tasks and flags\n",
            m->launch_unfused_us);
    fprintf(file, "launch_fused_us %.4g # as launch_unfused_us: a run is a run on a CPU\n",
            m->launch_fused_us);
    fprintf(file, "switch_us %.4g # measured: a small run with twice as many ranks as cores\n", m->switch_us);
    put_curve(file, "copy_own", "", &m->copy_own);
    put_curve(file, "copy_pull", "", &m->copy_pull);
    put_curve(file, "copy_push", "", &m->copy_push);
    put_curve(file, "reduce_shared", "", &m->reduce_shared);
    put_curve(file, "reduce_push", "", &m->reduce_push);
    for (int type = 0; type < WEFT_MACHINE_DTYPES; type++)
        put_few(file, "few", weft_dtype_name((weft_dtype)type), &m->few[type],
                "for each of k, however wide B is");
    for (int type = 0; type < WEFT_MACHINE_DTYPES; type++)
        put_few(file, "few_results", weft_dtype_name((weft_dtype)type), &m->few_results[type],
                "for each column of results");
    put_curve(file, "store", "", &m->store);
    for (int type = 0; type < WEFT_MACHINE_DTYPES; type++)
        put_curve(file, "reduce", weft_dtype_name((weft_dtype)type), &m->reduce[type]);
}

static void put_gpus(FILE *file, const weft_machine *m, const calibrate_gpu *gpu, const char *date)
{
    static const weft_dtype types[] = {WEFT_BF16, WEFT_F16, WEFT_FP8_E4M3, WEFT_FP8_E5M2};

    fprintf(file, "# Measured by weft calibrate --backend cuda (weft %s) on %s.\n", weft_version(), date);
    fprintf(file, "# What is not here is that of %s%s.\n", gpu->like,
            gpu->gpus > 1 ? "" : "; so are links, which one GPU cannot tell");
    fprintf(file, "like %s\n", gpu->like);
    if (gpu->gpus > 1)
        fprintf(file, "about %dx %s, calibrated %s\nranks_per_node %d # GPUs of this machine\n", gpu->gpus,
                gpu->name, date, gpu->gpus);
    else
        fprintf(file, "about %s, calibrated %s, behind the links of %s\n", gpu->name, date, gpu->like);
    fprintf(file, "name this_gpu\nunits %d # multiprocessors\n", m->units);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        fprintf(file, "gflops %s %.4g # measured: a large product as auto makes it, of a unit\n",
                weft_dtype_name(types[i]), m->gflops[types[i]]);
    fprintf(file, "memory_gbs %.4g # measured: a copy, read and written\n", m->memory_gbs);
    fprintf(file, "launch_fused_us %.4g # measured: the smallest product, many in a row\n",
            m->launch_fused_us);
    fprintf(file, "launch_unfused_us %.4g # as launch_fused_us\n", m->launch_unfused_us);
    fprintf(file, "launch_graph_us %.4g # measured: the smallest product, many in a graph\n",
            m->launch_graph_us);
    if (gpu->gpus > 1) {
        fprintf(file, "link_gbs %.4g # measured: all_gather on all GPUs\n", m->link_gbs);
        fprintf(file, "link_us %.4g # measured: the smallest all_reduce beyond a launch\n", m->link_us);
        fprintf(file, "flag_us %.4g # as link_us\n", m->flag_us);
    }
}

/* What was measured, beside the description itself; `gpu`: NULL = a CPU. */
typedef struct measured {
    const calibrate_gpu *gpu;
    const calibrate_spread *spread;
} measured;

static void put_description(FILE *file, const weft_machine *machine, const measured *how)
{
    char date[32];
    time_t now = time(NULL);
    struct tm local;

    strftime(date, sizeof(date), "%Y-%m-%d", localtime_r(&now, &local));
    if (how->gpu)
        put_gpus(file, machine, how->gpu, date);
    else
        put_machine(file, machine, how->spread, date);
}

static int write_machine(const char *path, const weft_machine *machine, const measured *how)
{
    bool failed = false;
    FILE *file;

    if (strcmp(path, "-") == 0) {
        put_description(stdout, machine, how);
        return 0;
    }
    file = fopen(path, "w");
    if (file) {
        put_description(file, machine, how);
        failed = fflush(file) != 0 || ferror(file);
    }
    if (!file || fclose(file) != 0 || failed) {
        fprintf(stderr, "weft calibrate: cannot write %s: %s\n", path, strerror(errno));
        if (file)
            unlink(path); /* half a description would stop every later `auto` */
        return 1;
    }
    printf("wrote %s\n", path);
    return 0;
}

/* What comes next; where there is no terminal, once it has taken a while. */
static void say(const char *what)
{
    static int64_t begun_ns;

    if (!begun_ns)
        begun_ns = weft_clock_ns();
    if (isatty(STDERR_FILENO) || weft_clock_ns() - begun_ns > QUIET_NS)
        fprintf(stderr, "%3.0f s  %s\n", (double)(weft_clock_ns() - begun_ns) * 1e-9, what);
}

static int help(void)
{
    puts("usage: weft calibrate [--backend cuda | --seconds S] [--output FILE]\n\n"
         "Measures how fast this machine copies, adds, multiplies and signals, and writes its description, "
         "which\n"
         "schedule auto and weft sim then use. Takes about a minute, and up to four where others use the\n"
         "machine; nothing else should run meanwhile.\n\n"
         "  --seconds S     about how long to measure (default 60); less repeats less, and is less sure\n"
         "  --backend cuda  the GPUs of this machine instead of its CPU, for weft sim --machine this_gpu:\n"
         "                  products, memory, launches, and the links where there are several\n"
         "  --output FILE   where to; - is standard output. Default: $XDG_CONFIG_HOME/weft/machine, or\n"
         "                  ~/.config/weft/machine; gpu.machine beside it for GPUs");
    return 0;
}

/* Half of what the rounds differ by: a rate that is off by more tells schedules apart by chance. */
static void say_noise(const calibrate_spread *spread)
{
    int worst = 0;

    for (int type = 1; type < WEFT_MACHINE_DTYPES; type++)
        if (spread->of[type] > spread->of[worst])
            worst = type;
    if (spread->of[worst] > MOST_NOISE)
        fprintf(
            stderr,
            "weft calibrate: products of %s were measured +- %.0f %%: something else runs on this machine; "
            "calibrate again when it does not\n",
            weft_dtype_name((weft_dtype)worst), 50 * spread->of[worst]);
}

static int measure_cpu(int cores, weft_machine *machine, calibrate_spread *spread)
{
    *machine = (weft_machine){.kind = WEFT_MACHINE_CPU, .nodes = 1, .step_m = 1, .step_n = 1, .step_k = 1};
    machine->units = cores;
    machine->cache_bytes = fmax(0, (double)weft_topo_cache_bytes(2));
    if (cores > CALIBRATE_MOST_CORES)
        cores = CALIBRATE_MOST_CORES;
    say("copying and adding");
    if (calibrate_memory(cores, machine))
        return 1;
    say("multiplying");
    if (calibrate_products(cores, machine, spread))
        return 1;
    say("running small plans");
    return calibrate_runs(cores, machine);
}

static int calibrate_cpu(weft_machine *machine, calibrate_spread *spread)
{
    calibrate_company company;
    int status = measure_cpu(weft_cpu_count(), machine, spread);

    company = calibrate_company_kept();
    if (!status && company.misled) { /* now it is known what a core does by itself */
        say("again: cores became faster meanwhile");
        status = measure_cpu(weft_cpu_count(), machine, spread);
        company = calibrate_company_kept();
    }
    if (!status && company.disturbed)
        fprintf(
            stderr,
            "weft calibrate: %d of %d times were taken while cores were slower than they can be, as beside a "
            "neighbour; calibrate again when nothing else runs\n",
            company.disturbed, company.jobs);
    return status;
}

static bool set_pace(const char *seconds)
{
    char *end;
    double wanted = strtod(seconds, &end);

    if (end == seconds || *end || !(wanted >= LEAST_SECONDS && wanted <= MOST_SECONDS))
        return false;
    calibrate_pace(wanted / USUAL_SECONDS);
    return true;
}

int cmd_calibrate(int argc, char **argv)
{
    weft_machine machine;
    calibrate_gpu gpu;
    calibrate_spread spread = {0};
    weft_error_text error = {0};
    char path[1024] = "";
    const char *backend = "cpu", *output = NULL, *seconds = NULL;
    int status;

    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return help();
        if (strncmp(argv[i], "--output=", 9) == 0)
            output = argv[i] + 9;
        else if (strcmp(argv[i], "--output") == 0 && i + 1 < argc)
            output = argv[++i];
        else if (strncmp(argv[i], "--backend=", 10) == 0)
            backend = argv[i] + 10;
        else if (strcmp(argv[i], "--backend") == 0 && i + 1 < argc)
            backend = argv[++i];
        else if (strncmp(argv[i], "--seconds=", 10) == 0)
            seconds = argv[i] + 10;
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = argv[++i];
        else
            return options_error("calibrate",
                                 "%s: it takes --backend cuda, --seconds S and --output FILE, nothing else",
                                 argv[i]);
    }
    bool gpus = strcmp(backend, "cuda") == 0;
    if (!gpus && strcmp(backend, "cpu") != 0)
        return options_error("calibrate", "--backend %s: it should be cpu or cuda", backend);
    if (seconds && !set_pace(seconds))
        return options_error("calibrate", "--seconds %s: must be a number from %d to %d", seconds,
                             LEAST_SECONDS, MOST_SECONDS);
    if (seconds && gpus)
        return options_error("calibrate", "--seconds is for the CPU: leave it out with --backend cuda");
    if (output && !*output)
        return options_error("calibrate", "--output needs a file, or - for standard output");
    if (output)
        snprintf(path, sizeof(path), "%s", output);
    if (!output && (gpus ? weft_machine_gpu_path : weft_machine_user_path)(path, sizeof(path), &error))
        return options_error("calibrate", "%s", error.text);
    if (strcmp(path, "-") != 0 && weft_place_prepare(path, &error)) { /* before a minute is spent */
        fprintf(stderr, "weft calibrate: %s\n", error.text);
        return 1;
    }
    if (gpus)
        status = calibrate_gpus(LARGE_PRODUCT, say, &machine, &gpu);
    else
        status = calibrate_cpu(&machine, &spread);
    if (!status && !gpus)
        say_noise(&spread);
    return status ? status : write_machine(path, &machine, &(measured){gpus ? &gpu : NULL, &spread});
}

#ifndef WEFT_HAVE_CUDA
int calibrate_gpus(int64_t extent, calibrate_said *saying, weft_machine *machine, calibrate_gpu *gpu)
{
    (void)extent, (void)saying, (void)machine, (void)gpu;
    return options_error("calibrate", "--backend cuda: this build has no CUDA backend (it was made without "
                                      "nvcc, or with WEFT_CUDA=OFF)");
}
#endif
