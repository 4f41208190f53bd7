/*
 * `weft sim`: the bench table with predicted times, for any machine there is a description of, and what
 * bounds each result. The same plans that would run are simulated; --svg and --trace draw the last one.
 */
#include "cli/commands.h"
#include "cli/given_plan.h"
#include "cli/sets.h"
#include "cli/sim.h"
#include "report/draw.h"

#include "core/dtype.h"
#include "choose/machine.h"
#include "sim/library.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *machine_name, *plan_path;
static bool from_graph;
static sim_sweep swept;
static given_plan given;

static const char *read_launch(void *target, const char *value)
{
    if (strcmp(value, "eager") != 0 && strcmp(value, "graph") != 0)
        return "eager or graph";
    *(bool *)target = strcmp(value, "graph") == 0;
    return NULL;
}

static const options_flag sim_flags[] = {
    {.names = "--machine",
     .value = "NAME",
     .kind = OPTIONS_TEXT,
     .target = &machine_name,
     .help = "a description by name or path; default: this machine, as calibrated"},
    {.names = "--launch",
     .value = "eager|graph",
     .kind = OPTIONS_CALL,
     .target = &from_graph,
     .read = read_launch,
     .help = "on GPUs: kernels are launched by the host (default), or captured in a graph"},
    {.names = "--sweep",
     .value = "NAME=A:B",
     .kind = OPTIONS_CALL,
     .target = &swept,
     .read = sim_sweep_read,
     .ops = "products collectives",
     .help = "a row for A, 2 A, 4 A ... up to B of ranks, m, n, k or bytes: where the time goes, and what a "
             "faster "
             "link would buy; --svg and --html draw it"},
    {.names = "--plan",
     .value = "FILE",
     .kind = OPTIONS_TEXT,
     .target = &plan_path,
     .help = "the plan in this file, beside weft's own unfused one of its problem"},
    {0},
};

static const report_column product_columns[] = {
    {"M", "m", REPORT_PLAIN, 6},
    {"N", "n", REPORT_PLAIN, 6},
    {"K", "k", REPORT_PLAIN, 6},
    {"GEMM only µs", "gemm_us", REPORT_TIME, 12},
    {"comm only µs", "comm_us", REPORT_TIME, 12},
    {"unfused µs", "unfused_us", REPORT_TIME, 10},
    {"fused µs", "fused_us", REPORT_TIME, 10},
    {"speedup", "speedup", REPORT_RATIO, 7},
    {"fused÷GEMM", "fused_over_gemm", REPORT_RATIO, 10},
    {"hidden", "hidden", REPORT_PLAIN, 7},
    {"bound by", "bound", REPORT_PLAIN, 8},
    {"of path", "bound_pct", REPORT_PERCENT, 7},
    {"schedule", "shown_schedule", REPORT_PLAIN, 8},
    {0},
};

static const report_column collective_columns[] = {
    {"bytes", "bytes", REPORT_PLAIN, 10},
    {"impl", "shown_impl", REPORT_PLAIN, 14},
    {"time µs", "us", REPORT_TIME, 12},
    {"library µs", "peer_us", REPORT_TIME, 10},
    {"network ≥ µs", "network_limit_us", REPORT_TIME, 12},
    {"node ≥ µs", "node_limit_us", REPORT_TIME, 9},
    {"bus GB/s", "busbw_gbs", REPORT_RATE, 8},
    {"bound by", "bound", REPORT_PLAIN, 8},
    {"of path", "bound_pct", REPORT_PERCENT, 7},
    {0},
};

int sim_fail(const weft_error_text *error, weft_status status)
{
    fprintf(stderr, "weft sim: %s\n", error->text);
    return status == WEFT_ERR_ARGUMENT || status == WEFT_ERR_UNSUPPORTED ? 2 : 1;
}

int sim_simulate(simulation *s, const weft_problem *asked, weft_schedule schedule, weft_sim_mode mode,
                 weft_sim_result *result)
{
    weft_problem problem = *asked;
    weft_sim_source source = {.problem = &problem, .world = s->world, .graph = s->graph};
    weft_error_text error = {0};
    weft_status status;

    report_progress(&s->report, "%s %s", weft_op_name(problem.op), weft_schedule_name(problem.op, schedule));
    problem.schedule = schedule;
    if (given.parts && schedule == given.parts[0].problem.schedule) {
        source.make = given_plan_make;
        source.arg = &given;
    } else {
        if (given.parts) /* weft's own is tuned as weft would */
            memset(&problem.tuning, 0, sizeof(problem.tuning));
        weft_choose_tiles(&s->machine, s->world, &problem);
    }
    status = weft_problem_resolve(&problem, s->world, &problem, &error);
    if (!status)
        status = weft_sim_run(&s->machine, &source, mode, false, result, &error);
    if (status)
        return sim_fail(&error, status);
    if (mode == WEFT_SIM_ALL)
        s->last = problem;
    return 0;
}

/* The schedules to show: the one asked for, the fastest, or all. */
static int choose(simulation *s, weft_problem *problem, weft_schedule *chosen, const weft_schedule **list)
{
    weft_error_text error = {0};
    weft_problem decided;
    weft_status status;
    weft_origin origin;
    int count = 1;

    if (s->options->schedule_all)
        problem->schedule = WEFT_SCHEDULE_AUTO;
    status = weft_problem_resolve(problem, s->world, problem, &error);
    if (!status && s->options->schedule_all) {
        *list = weft_schedule_list(problem->op, problem->layout, &count);
        return count;
    }
    decided = *problem;
    if (!status)
        status = weft_choose_schedule_of(&s->machine, &decided, s->world, &origin, &error);
    if (status)
        return -sim_fail(&error, status);
    s->tuned = origin == WEFT_ORIGIN_TUNED;
    s->tuning = decided.tuning;
    *chosen = decided.schedule;
    *list = chosen;
    return 1;
}

static void add_bound(simulation *s, const weft_sim_result *result)
{
    double path = 0;

    for (int i = 0; i < WEFT_BOUND_COUNT; i++)
        path += result->path_us[i];
    report_text(&s->report, "bound", "%s", weft_bound_name(result->bound));
    report_real(&s->report, "bound_pct", 100 * result->path_us[result->bound] / path);
    report_int(&s->report, "tasks", (int64_t)result->tasks);
    report_text(&s->report, "machine", "%s", s->machine.name);
    report_bool(&s->report, "ok", true);
}

void sim_add_trust(simulation *s, weft_trust_kind kind)
{
    const weft_trust *trust = weft_trust_of(kind);

    report_text(&s->report, "error_class", "%s", trust->what);
    report_int(&s->report, "error_rows", trust->rows);
    report_real(&s->report, "error_median_pct", trust->median_pct);
    report_real(&s->report, "error_nine_tenths_pct", trust->most_pct);
    report_real(&s->report, "error_worst_pct", trust->worst_pct);
}

/* What rows like these have shown, in words. */
static void note_trust(simulation *s, bool library)
{
    const weft_problem *problem = &s->options->problem;
    const weft_trust *trust = weft_trust_of(weft_trust_kind_of(&s->machine, problem, s->world, library));

    char words[200];

    weft_trust_words(trust, words, sizeof(words));
    report_note(&s->report, "error so far%s: %s",
                s->machine.kind == WEFT_MACHINE_CPU ? ""
                : library                           ? " (libraries)"
                                                    : " (weft's plans)",
                words);
}

/* Libraries are given sums of the type asked for; where nobody asks, of the result's. */
static weft_problem of_libraries(const simulation *s, const weft_problem *problem)
{
    weft_problem p = *problem;

    p.wire_dtype = s->options->wire_given ? problem->wire_dtype : WEFT_DTYPE_DEFAULT;
    return p;
}

double sim_library_us(const simulation *s, const weft_problem *problem)
{
    weft_problem p = of_libraries(s, problem);

    return weft_library_unfused_us(&s->machine, &p, s->world, s->graph);
}

/* Where sums travel in another type than theirs. */
static void note_wire(simulation *s)
{
    const weft_problem *problem = &s->options->problem;
    weft_problem theirs = of_libraries(s, problem);
    weft_dtype wire = weft_library_wire(&theirs);

    if (s->machine.kind == WEFT_MACHINE_GPU &&
        (problem->op == WEFT_OP_GEMM_RS || problem->op == WEFT_OP_GEMM_AR) && wire != problem->wire_dtype)
        report_note(
            &s->report,
            "sums travel as %s, the libraries' as %s, which is less exact: --wire says what both send",
            weft_dtype_name(problem->wire_dtype), weft_dtype_name(wire));
}

static void add_head(simulation *s, const weft_problem *problem)
{
    report_text(&s->report, "op", "%s", weft_op_name(problem->op));
    report_text(&s->report, "backend", "sim");
    report_int(&s->report, "ranks", s->world);
}

static int draw_last(simulation *s, const char *svg, const char *trace)
{
    weft_sim_source source = {.problem = &s->last, .world = s->world, .graph = s->graph};
    weft_error_text error = {0};
    weft_sim_result result = {0};
    char where[80];
    weft_status status;

    if (given.parts && s->last.schedule == given.parts[0].problem.schedule) {
        source.make = given_plan_make;
        source.arg = &given;
    }
    snprintf(where, sizeof(where), "%s (simulated)", s->machine.name);
    status = weft_sim_run(&s->machine, &source, WEFT_SIM_ALL, true, &result, &error);
    if (!status)
        status = draw_run(&source, where, result.events, result.event_count, svg, trace, &error);
    weft_sim_result_free(&result);
    return status ? sim_fail(&error, status) : 0;
}

/* The run of the row just printed, into the page. */
static int draw_row(simulation *s)
{
    char path[REPORT_PAGE_PATH];
    int file = report_page_scratch(path), status;

    if (file < 0)
        return options_error("sim", "cannot make a file in memory for a picture");
    status = draw_last(s, path, NULL);
    if (!status)
        report_page_picture(&s->page, s->page.count - 1, path);
    close(file);
    return status;
}

/* Schedule, tiles and workers as the table names them. Depth 0 is all of k. */
static void show_schedule(simulation *s, bool asked_auto, weft_op op, weft_schedule schedule)
{
    const weft_tuning *tuning = &s->last.tuning;
    char depth[32] = "";

    if (tuning->tile_k)
        snprintf(depth, sizeof(depth), " x %" PRId64, tuning->tile_k);
    report_shown(&s->report, "shown_schedule", "%s%s, tiles %" PRId64 " x %" PRId64 "%s, %d workers",
                 s->tuned     ? "tuned "
                 : asked_auto ? "auto "
                              : "",
                 weft_schedule_name(op, schedule), tuning->tile_m, tuning->tile_n, depth, tuning->workers);
}

static int show_product(simulation *s, weft_problem problem)
{
    bool several = s->machine.ranks_per_node > 0 && s->world > s->machine.ranks_per_node;
    weft_schedule parts = several ? WEFT_SCHEDULE_TWO_LEVEL : WEFT_SCHEDULE_UNFUSED; /* lowering takes long */
    weft_sim_result gemm, comm, fused;
    double baseline;
    weft_error_text ignored;
    const weft_schedule *list;
    weft_schedule chosen;
    bool asked_auto = !s->options->schedule_all && problem.schedule == WEFT_SCHEDULE_AUTO;
    int count = choose(s, &problem, &chosen, &list), status;
    report *r = &s->report;

    if (count < 0)
        return -count;
    if ((status = sim_simulate(s, &problem, parts, WEFT_SIM_GEMM_ONLY, &gemm)) ||
        (status = sim_simulate(s, &problem, parts, WEFT_SIM_COMM_ONLY, &comm)))
        return status;
    baseline = sim_library_us(s, &problem);
    if (!(baseline > 0)) {
        problem.schedule = WEFT_SCHEDULE_UNFUSED;
        baseline = NAN;
        if (weft_sim_can_run(&s->machine, &problem, s->world, &ignored)) {
            if ((status = sim_simulate(s, &problem, WEFT_SCHEDULE_UNFUSED, WEFT_SIM_ALL, &fused)))
                return status;
            baseline = fused.us;
        }
    }
    for (int i = 0; i < count; i++) {
        problem.schedule = list[i];
        if (s->options->schedule_all && !weft_sim_can_run(&s->machine, &problem, s->world, &ignored))
            continue;
        if (s->tuned)
            problem.tuning = s->tuning;
        if ((status = sim_simulate(s, &problem, list[i], WEFT_SIM_ALL, &fused)))
            return status;
        add_head(s, &problem);
        report_int(r, "m", problem.m);
        report_int(r, "n", problem.n);
        report_int(r, "k", problem.k);
        report_int(r, "l", problem.l);
        report_text(r, "dtype", "%s", weft_dtype_name(problem.dtype));
        report_text(r, "schedule", "%s", weft_schedule_name(problem.op, list[i]));
        report_real(r, "gemm_us", gemm.us);
        report_real(r, "comm_us", comm.us);
        report_real(r, "unfused_us", baseline);
        report_real(r, "fused_us", fused.us);
        report_real(r, "speedup", baseline / fused.us);
        report_real(r, "fused_over_gemm", fused.us / gemm.us);
        report_hidden(r, report_exact(gemm.us), report_exact(baseline), report_exact(fused.us));
        report_int(r, "workers", s->last.tuning.workers);
        report_int(r, "tile_m", s->last.tuning.tile_m);
        report_int(r, "tile_n", s->last.tuning.tile_n);
        report_int(r, "tile_k", s->last.tuning.tile_k);
        show_schedule(s, asked_auto, problem.op, list[i]);
        report_real(r, "max_err", NAN);
        report_real(r, "err_bound", NAN);
        sim_add_trust(s, weft_trust_kind_of(&s->machine, &problem, s->world, false));
        add_bound(s, &fused);
        report_row(r);
        if (s->report.page && (status = draw_row(s)))
            return status;
    }
    return 0;
}

static int show_products(simulation *s)
{
    set_shape shapes[SETS_MOST_SHAPES];
    weft_problem problem = s->options->problem;
    int count, status = 0;

    s->report.columns = product_columns;
    if (!s->options->set)
        return show_product(s, problem);
    count = set_shapes(s->options->set, problem.op, s->options->scale > 0 ? s->options->scale : 1, shapes);
    if (count < 0)
        return options_error("sim",
                             "--set %s: there are %s; overlap is found by measuring, which sim does not",
                             s->options->set, set_names);
    for (int i = 0; i < count && !status; i++) {
        problem.m = shapes[i].m;
        problem.n = shapes[i].n;
        problem.k = shapes[i].k;
        problem.bias = shapes[i].bias || s->options->problem.bias;
        problem.transb = shapes[i].transb || s->options->problem.transb;
        status = show_product(s, problem);
    }
    return status;
}

int64_t sim_count_for(const weft_problem *problem, int world, int64_t bytes)
{
    bool shared = problem->op == WEFT_OP_ALL_GATHER || problem->op == WEFT_OP_REDUCE_SCATTER ||
                  problem->op == WEFT_OP_ALL_TO_ALL;
    int64_t count = bytes / (int64_t)weft_dtype_size(problem->dtype) / (shared ? world : 1);

    return count > 0 ? count : 1;
}

static double bus_bytes(const weft_problem *problem, int world, int64_t bytes)
{
    double share = (double)(world - 1) / world;

    if (problem->op == WEFT_OP_BROADCAST)
        return (double)bytes;
    return (problem->op == WEFT_OP_ALL_REDUCE ? 2 : 1) * share * (double)bytes;
}

/* Where the switch adds: it does so in an order of its own, so that weft's `auto` takes another. */
static int show_instead(simulation *s, const weft_problem *problem, int64_t bytes)
{
    weft_problem instead = *problem;
    weft_schedule best = WEFT_SCHEDULE_AUTO;
    bool several = s->machine.ranks_per_node > 0 && s->world > s->machine.ranks_per_node;
    double least = INFINITY;
    const weft_schedule *list;
    int count;

    memset(&instead.tuning, 0, sizeof(instead.tuning));
    list = weft_schedule_list(problem->op, problem->layout, &count);
    for (int i = 0; i < count; i++) {
        weft_sim_result result;
        int status;

        /* over nodes, what does not know them is lowered, which takes long */
        if (list[i] == WEFT_SCHEDULE_MULTIMEM || (several && list[i] != WEFT_SCHEDULE_TWO_LEVEL))
            continue;
        if ((status = sim_simulate(s, &instead, list[i], WEFT_SIM_ALL, &result)))
            return status;
        if (result.us < least) {
            least = result.us;
            best = list[i];
        }
    }
    report_note(&s->report,
                "  %lld bytes by multimem: weft's GPU backend takes it by its name only; else %s is fastest, "
                "%.1f µs",
                (long long)bytes, weft_schedule_name(problem->op, best), least);
    return 0;
}

static int show_collective(simulation *s, int64_t bytes)
{
    weft_problem problem = s->options->problem;
    const weft_schedule *list;
    weft_sim_result result;
    weft_schedule chosen;
    report *r = &s->report;
    bool asked_auto = !s->options->schedule_all && problem.schedule == WEFT_SCHEDULE_AUTO;
    weft_sim_limits limits;
    double library;
    weft_error_text ignored;
    int count, status;

    problem.count = sim_count_for(&problem, s->world, bytes);
    count = choose(s, &problem, &chosen, &list);
    if (count < 0)
        return -count;
    for (int i = 0; i < count; i++) {
        problem.schedule = list[i];
        if (s->options->schedule_all && !weft_sim_can_run(&s->machine, &problem, s->world, &ignored))
            continue;
        if (s->tuned)
            problem.tuning = s->tuning;
        if ((status = sim_simulate(s, &problem, list[i], WEFT_SIM_ALL, &result)))
            return status;
        add_head(s, &problem);
        report_text(r, "dtype", "%s", weft_dtype_name(problem.dtype));
        report_int(r, "bytes", bytes);
        report_text(r, "impl", "%s", weft_schedule_name(problem.op, list[i]));
        report_shown(r, "shown_impl", "%s%s",
                     s->tuned     ? "tuned "
                     : asked_auto ? "auto "
                                  : "",
                     weft_schedule_name(problem.op, list[i]));
        report_real(r, "us", result.us);
        library = weft_library_collective_us(&s->machine, &problem, s->world, WEFT_LIBRARY_FASTEST, s->graph);
        if (library > 0)
            report_text(r, "peer", "the vendor's library, predicted");
        report_real(r, "peer_us", library > 0 ? library : NAN);
        limits = weft_sim_limits_of(&s->machine, &problem, s->world);
        report_real(r, "network_limit_us", limits.network_us > 0 ? limits.network_us : NAN);
        report_real(r, "node_limit_us", limits.node_us > 0 ? limits.node_us : NAN);
        report_real(r, "busbw_gbs", bus_bytes(&problem, s->world, bytes) / result.us * 1e-3);
        report_bool(r, "auto_takes_it",
                    s->machine.kind != WEFT_MACHINE_GPU || list[i] != WEFT_SCHEDULE_MULTIMEM);
        sim_add_trust(s, weft_trust_kind_of(&s->machine, &problem, s->world, false));
        add_bound(s, &result);
        report_row(r);
        if (asked_auto && s->machine.kind == WEFT_MACHINE_GPU && list[i] == WEFT_SCHEDULE_MULTIMEM &&
            (status = show_instead(s, &problem, bytes)))
            return status;
    }
    return 0;
}

static int show_collectives(simulation *s)
{
    int64_t first = s->options->bytes_first ? s->options->bytes_first : 4096;
    int64_t last = s->options->bytes_first ? s->options->bytes_last : 16 << 20;
    int status = 0;

    s->report.columns = collective_columns;
    for (int64_t bytes = first; bytes <= last && !status; bytes *= 2)
        status = show_collective(s, bytes);
    return status;
}

static int draw(simulation *s)
{
    if (!s->options->svg && !s->options->trace)
        return 0;
    return draw_last(s, s->options->svg, s->options->trace);
}

/* What the columns mean, and how far they were off where somebody measured. */
static void explain(simulation *s)
{
    bool gpu = s->machine.kind == WEFT_MACHINE_GPU;

    if (swept.name)
        report_note(
            &s->report, "compute, link, memory, latency: µs of the critical path that are spent on it%s",
            gpu ? "; libraries: NCCL (RCCL) and cuBLAS (hipBLASLt), one\nafter the other; 2× link: with "
                  "links and networks of twice the rate, which buys so much of the time"
                : "; of libraries and links\nonly descriptions of GPUs say something");
    else if (s->options->problem.op >= WEFT_OP_ALL_REDUCE)
        report_note(
            &s->report,
            "%sbus GB/s: bytes that cross a rank's border over the time; network ≥,\nnode ≥: what must "
            "pass each rank's link to the network, and inside its node, takes at least this; bound by: "
            "what\nmost of the critical path is spent on",
            gpu ? "library: NCCL (RCCL on AMD) on the same machine; " : "");
    else
        report_note(
            &s->report,
            "%shidden: the share of the communication that costs no time (– where there is none, slower "
            "where fused loses);\nbound by: what most of the critical path is spent on",
            gpu ? "unfused µs: NCCL (RCCL) and cuBLAS (hipBLASLt), one after the other, not the schedule of "
                  "that name; "
                : "");
    note_wire(s);
    note_trust(s, false);
    if (gpu)
        note_trust(s, true);
    if (gpu && !weft_trust_has_rows(&s->machine))
        report_note(
            &s->report,
            "none of these rows is of %s: its description has datasheet rates at the shares that others "
            "reach",
            s->machine.name);
}

enum { MOST_SIM_FLAGS = 24 };

/* The command's own flags and those of moe. */
static void gather_flags(options_flag flags[MOST_SIM_FLAGS])
{
    int count = 0;

    for (const options_flag *flag = sim_flags; flag->names; flag++)
        flags[count++] = *flag;
    for (const options_flag *flag = sim_moe_flags; flag->names && count + 1 < MOST_SIM_FLAGS; flag++)
        flags[count++] = *flag;
    flags[count] = (options_flag){0};
}

static int help(const options_flag *flags)
{
    puts("usage: weft sim OP [flags]\n"
         "       weft sim --plan FILE [flags]\n\n"
         "Predicts how long an operation takes on a machine, from the same plan that would run there, and "
         "says\n"
         "what bounds it: compute, link, latency or memory, by its share of the critical path.\n\nmachines");
    for (int i = 0; weft_machine_builtin_name(i); i++) {
        static weft_machine machine; /* large for a stack */
        weft_error_text ignored;

        if (weft_machine_find(weft_machine_builtin_name(i), &machine, &ignored) == WEFT_OK)
            printf("  %-10s  %s\n", machine.name, machine.about);
    }
    puts("  this        the machine weft runs on (weft calibrate measures it)\n\nflags");
    options_print_help(stdout, "sim", flags);
    puts("\nexamples\n"
         "  weft sim ag_gemm 8192 28672 8192 --dtype bf16 -n 8 --machine h100x8\n"
         "  weft sim ag_gemm --set llama3 --dtype bf16 -n 8 --machine h100x8 --schedule all\n"
         "  weft sim all_reduce --bytes 4K:16M -n 8 --machine mi300x8 --schedule all\n"
         "  weft sim ag_gemm 131072 53248 16384 --dtype bf16 -n 1024 --machine h100x1024\n"
         "  weft sim gemm_rs 4096 8192 28672 -n 2 --svg run.svg           a picture of the run\n"
         "  weft sim moe --experts 256 --topk 8 --hidden 7168 --inter 2048 -n 16 --machine h100x16\n"
         "  weft sim ag_gemm 16384 53248 16384 --dtype bf16 --machine h100x1024 --sweep ranks=8:1024 --svg "
         "sweep.svg");
    return 0;
}

static int sim_moe(const weft_options *options)
{
    simulation s = {.options = options, .world = (int)options->ranks, .graph = from_graph};
    weft_error_text error = {0};
    weft_status found;
    int status, closed;

    if (options->set || options->impl || options->html)
        return options_error("sim",
                             "moe is one shape: --experts, --topk, --hidden, --tokens, --mode, and no page");
    if (options->threads)
        return options_error("sim",
                             "--threads: the formulas of moe know no threads, only the machine's rates");
    found = weft_machine_find(machine_name, &s.machine, &error);
    if (found)
        return sim_fail(&error, found);
    if (from_graph && s.machine.kind != WEFT_MACHINE_GPU)
        return options_error("sim", "--launch graph: %s is a CPU, which launches nothing", s.machine.name);
    report_open(&s.report, stdout, options->json, NULL);
    status = sim_moe_show(&s);
    closed = report_close(&s.report);
    return status ? status : closed;
}

static int sim(int argc, char **argv)
{
    weft_error_text error = {0};
    simulation s = {0};
    weft_options options;
    weft_status found;
    static const char *const others[] = {"moe", NULL};
    options_flag flags[MOST_SIM_FLAGS];
    int status, closed;

    gather_flags(flags);
    status = options_parse(&options, "sim", others, flags, argc, argv);
    if (status)
        return status;
    if (options.help)
        return help(flags);
    if (!options.is_plan_op)
        return sim_moe(&options);
    if (given.parts && (status = given_plan_refuses(&given, "sim", "--plan", &options)))
        return status;
    if (given.parts && given_plan_check(&given, "sim"))
        return 1;
    if (given.parts) {
        const weft_problem *p = &given.parts[0].problem;
        bool shared =
            p->op == WEFT_OP_ALL_GATHER || p->op == WEFT_OP_REDUCE_SCATTER || p->op == WEFT_OP_ALL_TO_ALL;

        options.problem = *p;
        options.ranks = given.world;
        options.bytes_first = options.bytes_last =
            p->count * (int64_t)weft_dtype_size(p->dtype) * (shared ? given.world : 1);
    } else if (options.problem.op < WEFT_OP_ALL_REDUCE && !options.sizes_given && !options.set)
        return options_error("sim", "%s needs its sizes: three numbers m n k, or --set", options.op_name);
    if (swept.name && (given.parts || options.set || options.schedule_all || options.trace))
        return options_error(
            "sim", "--sweep goes over sizes or ranks of one problem and schedule, without --plan, --set "
                   "and --trace");
    if (swept.name && ((options.ranks_given && strcmp(swept.name, "ranks") == 0) ||
                       (options.bytes_first && strcmp(swept.name, "bytes") == 0)))
        return options_error("sim", "--sweep %s: leave %s out, which it goes over", swept.name,
                             options.ranks_given && strcmp(swept.name, "ranks") == 0 ? "-n" : "--bytes");
    s.options = &options;
    s.world = (int)options.ranks;
    s.graph = from_graph;
    found = weft_machine_find(machine_name, &s.machine, &error);
    if (found)
        return sim_fail(&error, found);
    if (from_graph && s.machine.kind != WEFT_MACHINE_GPU)
        return options_error("sim", "--launch graph: %s is a CPU, which launches nothing", s.machine.name);
    if (swept.name && (status = sim_sweep_check(&s, &swept)))
        return status;
    if (!swept.name && s.machine.ranks_per_node && s.world > s.machine.nodes * s.machine.ranks_per_node)
        return options_error("sim", "%d ranks do not fit on %s, which has %d", s.world, s.machine.name,
                             s.machine.nodes * s.machine.ranks_per_node);
    report_open(&s.report, stdout, options.json, NULL);
    if (options.html) {
        if (!report_page_open(&s.page, options.html, "sim", argc, argv))
            return options_error("sim", "no memory for %s", options.html);
        s.report.page = &s.page;
    }
    if (swept.name)
        sim_sweep_title(&s, &swept);
    else
        report_note(&s.report, "%s of %s over %d ranks, predicted for %s: %s", options.op_name,
                    weft_dtype_name(options.problem.dtype), s.world, s.machine.name, s.machine.about);
    explain(&s);
    if (swept.name)
        status = sim_sweep_show(&s, &swept);
    else if (options.problem.op >= WEFT_OP_ALL_REDUCE)
        status = show_collectives(&s);
    else
        status = show_products(&s);
    if (!status && !swept.name)
        status = draw(&s);
    closed = report_close(&s.report);
    if (s.report.page && !status) {
        status = report_page_close(&s.page, "sim");
        if (!status)
            report_note(&s.report, "page: %s", options.html);
    }
    return status ? status : closed;
}

int cmd_sim(int argc, char **argv)
{
    int status = given_plan_open(&given, "sim", "--plan", argc, argv);

    if (status)
        return status;
    status = sim(given.argc, given.argv);
    given_plan_close(&given);
    return status;
}
