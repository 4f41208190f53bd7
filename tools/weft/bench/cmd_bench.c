/*
 * `weft bench OP`: measures an operation beside its competitors and checks every result.
 *
 * The command reads the flags, so that a wrong call ends here, starts the ranks (start.c) and passes
 * on what rank 0 prints. A rank reads the same flags again and runs the operation's function.
 */
#include "cli/nodes.h"
#include "bench/bench.h"
#include "bench/cuda/bench_cuda.h"
#include "bench/start.h"
#include "cli/commands.h"
#include "cli/given_plan.h"
#include "core/dtype.h"

#include "core/env.h"
#include "gemm/gemm.h"
#include "group/group.h"
#include "group/segment.h"
#include "plan/plan.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *peer_choice = "auto";

static bench_link link_choice;

static bool processes;

static const char *read_peer(void *target, const char *value)
{
    (void)target;
    if (strcmp(value, "auto") && strcmp(value, "mpi") && strcmp(value, "none"))
        return "auto (whatever is installed), mpi, or none";
    peer_choice = value;
    return NULL;
}

static const char *torch_python;

const char *bench_torch_python(void)
{
    const char *python = torch_python ? torch_python : getenv("WEFT_TORCH_PYTHON");

    return python && *python ? python : NULL;
}

bool bench_torch_asked(void)
{
    return torch_python != NULL;
}

/* Whether PyTorch is measured beside this. */
static bool torch_stands_beside(const weft_options *options)
{
    bool collective = options->is_plan_op && options->problem.op > WEFT_OP_GEMM_AS;

    if (!options->cuda)
        return strcmp(options->op_name, "gemm") == 0 || (options->is_plan_op && !collective);
    return link_choice.bytes_per_ns == 0 &&
           (collective ? processes : strcmp(options->op_name, "moe") == 0 && !processes);
}

/* Whether the Python of --torch can do what it is asked for; said before anything is measured. */
static int check_torch(const weft_options *options)
{
    char *const words[] = {(char *)bench_torch_python(), "-c", "import torch.distributed", NULL};
    int status = 1;
    pid_t pid;

    if (torch_python && !torch_stands_beside(options))
        return options_error("bench",
                             "--torch stands beside products of the cpu backend, and with --backend "
                             "cuda beside all_reduce of --processes and the experts of moe, without --link");
    if (!words[0] || !torch_stands_beside(options))
        return 0;
    pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);

        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        execvp(words[0], words);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return options_error("bench", "%s %s: it cannot be started, or cannot import torch.distributed",
                             torch_python ? "--torch" : "WEFT_TORCH_PYTHON", words[0]);
    return 0;
}

static const char *nodes_asked;

static bool user_memory;

bool bench_user_memory(void)
{
    return user_memory;
}

static const char *plan_path;

const char *bench_plan_path(void)
{
    return plan_path;
}

static const options_flag bench_flags[] = {
    {"--peer", "WHICH", OPTIONS_CALL, NULL, read_peer, 0, 0, NULL,
     "competitors in the same run: auto (whatever is installed), mpi, none"},
    {"--link", "RATE,LATENCY[,LATE]", OPTIONS_CALL, &link_choice, bench_read_link, 0, 0,
     "products collectives moe",
     "with --backend cuda: one rank in the loop, its peers behind an emulated link, such as 450GB/s,2us; "
     "products: 450GB/s,2us,10us has them 10 µs late"},
    {"--processes", NULL, OPTIONS_SWITCH, &processes, NULL, 0, 0, "products collectives moe",
     "with --backend cuda: a process for each rank, on this machine's GPUs in turn"},
    {"--user-memory", NULL, OPTIONS_SWITCH, &user_memory, NULL, 0, 0, "collectives",
     "with --backend cuda: buffers outside symmetric memory, beside copies through it around the run"},
    {"--nodes", "N", OPTIONS_TEXT, &nodes_asked, NULL, 0, 0, "products collectives moe barrier",
     "as if the ranks were on N nodes, in blocks, or on nodes of 3 and 5 (3+5): over this machine's network"},
    {"--plan", "FILE", OPTIONS_TEXT, &plan_path, NULL, 0, 0, "products collectives",
     "the plan in this file, which says of what sizes and ranks it is, beside what auto takes; with "
     "--backend "
     "cuda a process for each rank"},
    {"--torch", "PYTHON", OPTIONS_TEXT, &torch_python, NULL, 0, 0, "products collectives gemm moe",
     "a Python that has PyTorch, as one more peer of the products; with --backend cuda of all_reduce with "
     "--processes, or of experts (also WEFT_TORCH_PYTHON)"},
    {0},
};

/* One line per operation. */
static const bench_entry entries[] = {
    {"ag_gemm", bench_tp, NULL, "all-gather + GEMM: A (or B) is gathered while it is multiplied", false},
    {"gemm_rs", bench_tp, NULL, "GEMM + reduce-scatter: each rank keeps its part of the sum", false},
    {"gemm_ar", bench_tp, NULL, "GEMM + all-reduce, Stream-K: every rank gets the sum", false},
    {"gemm_as", bench_tp, NULL, "GEMM + all-scatter, Stream-K: every rank gets every rank's columns", false},
    {"gemm", bench_gemm, NULL, "the product on one rank, beside the core's ceiling and BLAS", true},
    {"all_reduce", bench_collective, NULL, "the sum of the ranks' buffers, 64 B to 16 MiB", false},
    {"all_gather", bench_collective, NULL, "every rank gets every rank's buffer", false},
    {"reduce_scatter", bench_collective, NULL, "each rank gets its part of the sum", false},
    {"all_to_all", bench_collective, NULL, "each rank sends a part to every other", false},
    {"broadcast", bench_collective, NULL, "every rank gets the root's buffer", false},
    {"moe", bench_moe, bench_moe_flags, "mixture of experts: dispatch, experts, combine, beside sort + MPI",
     false},
    {"barrier", bench_barrier, NULL, "a barrier, beside MPI_Barrier", false},
    {0},
};

enum { ENTRIES = sizeof entries / sizeof entries[0] - 1, MOST_BENCH_FLAGS = 48 };

static const bench_entry *find_entry(const char *op)
{
    for (int i = 0; i < ENTRIES; i++) {
        if (strcmp(entries[i].op, op) == 0)
            return &entries[i];
    }
    return NULL;
}

/* The flags of the command and of all operations, and the operations that are not plans. */
static void gather_tables(options_flag flags[MOST_BENCH_FLAGS], const char *ops[ENTRIES + 1])
{
    int flag_count = 0, op_count = 0;
    weft_op op;

    for (const options_flag *flag = bench_flags; flag->names; flag++)
        flags[flag_count++] = *flag;
    for (int i = 0; i < ENTRIES; i++) {
        for (const options_flag *flag = entries[i].flags;
             flag && flag->names && flag_count + 1 < MOST_BENCH_FLAGS; flag++)
            flags[flag_count++] = *flag;
        if (weft_op_parse(entries[i].op, &op) != 0)
            ops[op_count++] = entries[i].op;
    }
    flags[flag_count] = (options_flag){0};
    ops[op_count] = NULL;
}

static int help(const options_flag *flags)
{
    puts("usage: weft bench OP [flags]\n\n"
         "Measures an operation over several ranks, which it starts itself, beside its parts and its "
         "competitors in\n"
         "the same run, and checks every result. Prints medians with their spread.\n\noperations");
    for (int i = 0; i < ENTRIES; i++)
        printf("  %-16s  %s\n", entries[i].op, entries[i].help);
    puts("\nflags");
    options_print_help(stdout, "bench", flags);
    puts("\ncolumns of the four products\n"
         "  GEMM only   the local product alone, operands resident, while all ranks run theirs\n"
         "  comm only   the collective alone\n"
         "  unfused     one after the other\n"
         "  fused       the schedule asked for; speedup = unfused / fused\n"
         "  hidden      the share of the communication that costs no time: (unfused - fused) / (unfused - "
         "GEMM only)\n"
         "  error       largest difference from the reference, within a bound derived from K, ranks and "
         "type\n\n"
         "examples\n"
         "  weft bench ag_gemm 1024 12288 4096 --dtype bf16        one shape on two ranks\n"
         "  weft bench gemm_rs --schedule all --set llama3          every schedule on Llama 3 shapes / 8\n"
         "  weft bench all_reduce -n 4 --bytes 4K:1M --json         for a program\n"
         "  weft bench moe --set contest --impl all                 the ladder on the contest's shapes\n"
         "  weft bench -n 4 -c all_reduce                           GEMM + all-reduce on four ranks\n"
         "  weft run -n 2 -- weft bench ag_gemm                     on ranks that are there already\n"
         "  weft bench --plan ring.plan                             somebody's own schedule, beside weft's");
    return 0;
}

/* A collective's size is that of the whole buffer. */
static void take_bytes(weft_options *options, int ranks)
{
    const weft_problem *p = &options->problem;
    bool shared = p->op != WEFT_OP_ALL_REDUCE && p->op != WEFT_OP_BROADCAST;

    if (p->op >= WEFT_OP_ALL_REDUCE)
        options->bytes_first = options->bytes_last =
            p->count * (int64_t)weft_dtype_size(p->dtype) * (shared ? ranks : 1);
}

/* The problem that a plan from a file is of, and as many ranks. Ranks check it when they load it. */
static int take_plan(weft_options *options, const given_plan *given)
{
    const weft_problem *problem = &given->parts[0].problem;
    int status = given_plan_refuses(given, "bench", "--plan", options);

    if (status)
        return status;
    if (options->cuda && link_choice.bytes_per_ns > 0)
        return options_error("bench", "--plan: plans from files run on all their ranks: leave --link out");
    if (options->cuda && problem->op >= WEFT_OP_ALL_REDUCE)
        return options_error("bench",
                             "--plan: of plans from files, bench measures those of products on GPUs; "
                             "weft_plan_load runs this one there");
    if (problem->op >= WEFT_OP_ALL_REDUCE && problem->count < 1)
        return options_error("bench", "--plan: this plan is of nothing");
    if (!bench_is_rank() && given_plan_check(given, "bench"))
        return 1;
    processes |= options->cuda;
    options->problem = *problem;
    take_bytes(options, given->world);
    options->problem.schedule = WEFT_SCHEDULE_AUTO;
    memset(&options->problem.tuning, 0, sizeof(options->problem.tuning));
    options->ranks = given->world;
    return 0;
}

static int read_options(weft_options *options, int argc, char **argv)
{
    options_flag flags[MOST_BENCH_FLAGS];
    const char *ops[ENTRIES + 1];
    given_plan given;
    int status = given_plan_open(&given, "bench", "--plan", argc, argv);

    if (status)
        return status;
    gather_tables(flags, ops);
    status = options_parse(options, "bench", ops, flags, given.argc, given.argv);
    if (status == 0 && !options->help && given.parts)
        status = take_plan(options, &given);
    given_plan_close(&given);
    if (status == 0 && options->help)
        help(flags);
    else if (status == 0 && !find_entry(options->op_name))
        status = options_error("bench", "%s cannot be measured (weft bench --help lists what can)",
                               options->op_name);
    return status;
}

/* ---- who computes --------------------------------------------------------------------------------- */

/* CPUs of this rank; negative when other ranks may run on some of them too. */
static int own_cpus(const weft_group *group)
{
    const weft_segment_header *header = group->world->segment.header;
    int self = group->seats[group->rank].world_rank, count = 0;
    const weft_cores *mine = &header->ranks[self].cores;
    bool shared = false;

    for (int word = 0; word < WEFT_CORES_WORDS; word++) {
        count += __builtin_popcountll(mine->cpus[word]);
        for (int rank = 0; rank < header->size; rank++)
            shared |= rank != self && header->ranks[rank].cores.machine == mine->machine &&
                      header->ranks[rank].cores.cpus[word] & mine->cpus[word];
    }
    return shared ? -count : count;
}

const char *bench_workers(const bench_context *context, weft_dtype dtype, bool products)
{
    static char text[160];
    const weft_group *group = context->group;
    double quota = group->world->segment.header->ranks[group->seats[group->rank].world_rank].cores.quota;
    int cpus = own_cpus(group), used;
    const weft_core *core;
    weft_error_text error;

    used = snprintf(text, sizeof(text), "%d worker%s a rank on %d CPU%s %s", context->threads,
                    context->threads == 1 ? "" : "s", abs(cpus), abs(cpus) == 1 ? "" : "s",
                    cpus < 0 ? "that ranks share" : "of its own");
    if (quota > 0)
        used += snprintf(text + used, sizeof(text) - (size_t)used, ", with a quota of %.4g CPUs", quota);
    if (products && weft_core_current(&core, &error) == WEFT_OK)
        snprintf(text + used, sizeof(text) - (size_t)used, ", kernel %s",
                 weft_core_binding(core, dtype, false)->kernel->name);
    return text;
}

/* ---- one rank ------------------------------------------------------------------------------------- */

static int run_in_group(bench_context *context, FILE *out, int argc, char **argv)
{
    const char *html = context->options->html;
    double seed = (double)(context->options->seed >> 12), seeds[weft_size(context->group)];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    bool products = context->options->is_plan_op && context->options->problem.op <= WEFT_OP_GEMM_AS;

    context->rank = weft_rank(context->group);
    context->size = weft_size(context->group);
    if (context->options->threads) /* counts for calls of the library too */
        context->group->cores = (int)context->options->threads;
    context->threads = context->group->cores;
    context->oversubscribed = (long)context->size * context->threads > cores;
    report_open(&context->report, context->rank == 0 ? out : NULL, context->options->json, NULL);
    if (html && context->rank == 0) {
        if (!report_page_open(&context->page, html, "bench", argc, argv))
            return bench_say(context, "no memory for %s", html);
        context->report.page = &context->page;
    }
    /* The clock gave each rank its own seed: rank 0's counts. */
    if (bench_share(context, &seed, 1, seeds) != 0)
        return 1;
    if (context->spread && (context->options->svg || context->options->trace))
        return context->rank ? 1
                             : bench_say(context, "--svg and --trace draw the ranks of one node, and these "
                                                  "are on several");
    context->random = (uint64_t)seeds[0];
    int status = find_entry(context->options->op_name)->run(context);
    int closed = report_close(&context->report);
    if (context->report.page && !status && report_page_close(&context->page, "bench") != 0)
        closed = 1;
    else if (context->report.page && !status)
        report_note(&context->report, "page: %s%s", html,
                    context->spread && products ? " (without timelines: ranks are on several nodes)" : "");
    return status ? status : closed;
}

int bench_run_rank(int argc, char **argv, const bench_mpi *mpi)
{
    weft_options options;
    bench_context context = {.options = &options};
    int status = read_options(&options, argc, argv);

    /* Peers may wait for this rank in weft_init. A launcher ends them when it fails; MPI_Finalize would wait
     * for them, and a command that started it has read the same words and expects nothing of the kind. */
    if (status && (mpi || bench_has_output()))
        _exit(status);
    if (status || options.help)
        return status;
    if (weft_init(&context.group) != WEFT_OK) {
        bench_output_say(weft_error(NULL));
        if (mpi)
            _exit(1);
        return 1;
    }
    if (options.ranks_given && options.ranks != weft_size(context.group)) {
        if (weft_rank(context.group) == 0)
            options_error("bench", "-n %lld: this bench runs on the %d ranks it was started with",
                          (long long)options.ranks, weft_size(context.group));
        weft_finalize(context.group);
        return 2;
    }
    options.ranks = weft_size(context.group);
    context.mpi_asked = strcmp(peer_choice, "mpi") == 0;
    if (strcmp(peer_choice, "none")) {
        context.mpi = mpi;
        context.blas = blas_openblas();
    }
    FILE *out = bench_output_open(weft_rank(context.group));
    status = run_in_group(&context, out, argc, argv);
    bench_output_close(out, status);
    weft_finalize(context.group);
    return status;
}

/* Virtual ranks: all of them in this process, on one GPU. */
static int bench_one_gpu(const weft_options *options, int argc, char **argv)
{
    bool experts = strcmp(options->op_name, "moe") == 0,
         collective = options->is_plan_op && options->problem.op > WEFT_OP_GEMM_AS;
    report_page page = {0}, *drawn = options->html ? &page : NULL;

    if (drawn && !report_page_open(drawn, options->html, "bench", argc, argv))
        return options_error("bench", "no memory for %s", options->html);
    int status = experts                        ? bench_cuda_moe(options, &link_choice, drawn)
                 : !collective                  ? bench_cuda(options, &link_choice, drawn)
                 : link_choice.bytes_per_ns > 0 ? bench_cuda_collective_link(options, &link_choice, drawn)
                                                : bench_cuda_collectives_virtual(options, drawn);

    if (drawn && !status && report_page_close(drawn, "bench") == 0 && !options->json)
        printf("page: %s\n", options->html);
    return status;
}

int cmd_bench(int argc, char **argv)
{
    weft_options options;
    weft_error_text error;
    const weft_core *core;

    if (bench_is_rank()) {
        int result = bench_run_rank(argc, argv, NULL);

        return bench_has_output() ? 0
                                  : result; /* the command got it from rank 0, and has said what it means */
    }
    int status = read_options(&options, argc, argv);
    if (status || options.help)
        return status;
    if (link_choice.bytes_per_ns > 0 && !options.cuda)
        return options_error("bench", "--link emulates a link for --backend cuda only");
    if (processes && (!options.cuda || link_choice.bytes_per_ns > 0))
        return options_error("bench", "--processes is for --backend cuda without --link");
    if (user_memory && (!options.cuda || link_choice.bytes_per_ns > 0))
        return options_error("bench", "--user-memory is for --backend cuda without --link");
    bool collective = options.is_plan_op && options.problem.op > WEFT_OP_GEMM_AS;
    if (strcmp(peer_choice, "mpi") == 0 && (options.cuda || find_entry(options.op_name)->alone))
        return options_error("bench", "--peer mpi stands beside what several ranks of the cpu backend do");
    if ((processes || (collective && options.cuda)) && (options.svg || options.trace))
        return options_error(
            "bench", collective ? "--svg and --trace draw collectives of the cpu backend"
                                : "--svg and --trace draw the ranks of one process: leave --processes out");
    status = check_torch(&options);
    if (status)
        return status;
    /* Said here once, not by every rank. */
    if (weft_env_check(&error) != WEFT_OK || weft_core_current(&core, &error) != WEFT_OK)
        return options_error("bench", "%s", error.text);
    if (options.ranks > WEFT_RANKS_MAX)
        return options_error("bench", "-n %lld: a group has at most %d ranks", (long long)options.ranks,
                             WEFT_RANKS_MAX);
    if (options.cuda && !processes)
        return bench_one_gpu(&options, argc, argv);
    if (options.cuda && strcmp(options.op_name, "moe") == 0)
        return bench_cuda_ready() ? 2 : bench_launch(&options, argc, argv, NULL, false);
    if (options.cuda)
        return bench_cuda_refuses(&options, NULL, true) || bench_cuda_ready() ||
                       (!collective && bench_cuda_refuses_dtype(&options))
                   ? 2
                   : bench_launch(&options, argc, argv, NULL, false);
    if (find_entry(options.op_name)->alone)
        return bench_run_rank(argc, argv, NULL);
    if (nodes_asked) {
        static int32_t domain[WEFT_RANKS_MAX];
        const char *wrong = nodes_parse(nodes_asked, (int)options.ranks, domain);

        if (wrong)
            return options_error("bench", "--nodes '%s': it should be %s", nodes_asked, wrong);
        if (options.svg || options.trace)
            return options_error("bench", "--svg and --trace draw the ranks of one node: leave --nodes out");
        if (strcmp(peer_choice, "mpi") == 0)
            return options_error("bench", "--peer mpi measures the ranks of one node: leave --nodes out");
        return bench_launch(&options, argc, argv, nodes_asked, false);
    }
    if (strcmp(peer_choice, "mpi") == 0 && !bench_has_mpi())
        return options_error("bench",
                             "--peer mpi: this build has no MPI helper, or mpirun is not in the path");
    return bench_launch(&options, argc, argv, NULL, strcmp(peer_choice, "none") != 0);
}
