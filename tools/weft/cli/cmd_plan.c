/*
 * `weft plan`: the plan of an operation as text or JSON, checked, or drawn on a simulated time axis. What the
 * problem leaves open (tiles, workers, the schedule) is what a run here would take, or what is chosen for the
 * machine that is named. The same for a plan from a file.
 */
#include "cli/commands.h"
#include "cli/given_plan.h"
#include "cli/nodes.h"
#include "report/draw.h"
#include "cli/options.h"

#include "core/dtype.h"
#include "group/segment.h"
#include "plan/check.h"
#include "plan/print.h"
#include "choose/choose.h"
#include "choose/tuned.h"
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

static const char *machine_name;
static int64_t rank_asked;
static bool check_asked;
static const char *from_path;
static const char *nodes_asked;
static int world_asked;
static int32_t *domain; /* of each rank; NULL: there is one node */
static given_plan given;

static const options_flag plan_flags[] = {
    {.names = "--check",
     .kind = OPTIONS_SWITCH,
     .target = &check_asked,
     .help = "prove the plan of all ranks right, or say what is wrong with it"},
    {.names = "--rank",
     .value = "R",
     .kind = OPTIONS_INT,
     .target = &rank_asked,
     .min = -1,
     .max = 1e6,
     .help = "print this rank's part only; -1, the default: all"},
    {.names = "--nodes",
     .value = "N",
     .kind = OPTIONS_TEXT,
     .target = &nodes_asked,
     .help = "the ranks are on N nodes, in blocks; or on nodes of 3 and 5: --nodes 3+5"},
    {.names = "--from",
     .value = "FILE",
     .kind = OPTIONS_TEXT,
     .target = &from_path,
     .help = "the plan in this file, text or JSON, in place of an operation's"},
    {.names = "--machine",
     .value = "NAME",
     .kind = OPTIONS_TEXT,
     .target = &machine_name,
     .help = "whose schedule, tiles and workers to take; default: what a run here would"},
    {0},
};

static int fail(const weft_error_text *error, weft_status status)
{
    fprintf(stderr, "weft plan: %s\n", error->text);
    return status == WEFT_ERR_ARGUMENT || status == WEFT_ERR_UNSUPPORTED ? 2 : 1;
}

/* Elements of one rank's share (or of the buffer) for the first message size asked for, as bench counts them.
 */
static int64_t count_of(const weft_options *options)
{
    const weft_problem *p = &options->problem;
    int64_t bytes = options->bytes_first ? options->bytes_first : 1 << 16;
    bool shared =
        p->op == WEFT_OP_ALL_GATHER || p->op == WEFT_OP_REDUCE_SCATTER || p->op == WEFT_OP_ALL_TO_ALL;
    int64_t count = bytes / (int64_t)weft_dtype_size(p->dtype) / (shared ? options->ranks : 1);

    return count > 0 ? count : 1;
}

/* What is printed, checked or drawn by the tile should end while somebody waits for it. */
static weft_status check_tiles(const weft_problem *p, weft_error_text *error)
{
    const double most = 1 << 22;
    double tiles = p->op >= WEFT_OP_ALL_REDUCE
                       ? 1
                       : (double)p->m / (double)(p->tuning.tile_m ? p->tuning.tile_m : p->m) * (double)p->n /
                             (double)(p->tuning.tile_n ? p->tuning.tile_n : p->n) * (double)p->l;

    if (!(tiles > most)) /* no number where an extent is 0 */
        return WEFT_OK;
    return weft_error_set(
        error, WEFT_ERR_ARGUMENT,
        "the plan would have %.3g tiles, and at most %.3g are made here: choose larger ones", tiles, most);
}

/* What was decided for a problem that left its schedule open, in words. */
static char decided_by[1400];

static void say_origin(const weft_problem *asked, const weft_problem *decided, int world, weft_origin origin,
                       const char *machine, uint64_t kept_for)
{
    char path[1024] = "";
    weft_error_text ignored;

    decided_by[0] = 0;
    if (origin == WEFT_ORIGIN_ASKED)
        return;
    weft_tuned_path(path, sizeof(path), &ignored);
    snprintf(decided_by, sizeof(decided_by), "auto is %s here, %s%s%s",
             weft_schedule_name(decided->op, decided->schedule),
             origin == WEFT_ORIGIN_TUNED       ? "kept by weft tune in "
             : origin == WEFT_ORIGIN_SIMULATED ? "the fastest as simulated on "
                                               : "by a fixed rule",
             origin == WEFT_ORIGIN_TUNED       ? path
             : origin == WEFT_ORIGIN_SIMULATED ? machine
                                               : "",
             weft_tuned_elsewhere(kept_for, asked, world) ? "; " WEFT_TUNED_ELSEWHERE : "");
}

/* On CPU ranks of this machine: as a group of so many would decide. */
static weft_status complete_here(weft_problem *problem, int world, weft_error_text *error)
{
    weft_problem asked = *problem;
    weft_origin origin;
    weft_basis basis;
    weft_status status;

    weft_basis_assume(world, domain, &basis);
    status = weft_choose_cpu(&basis, &asked, world, problem, &origin, error);
    if (status == WEFT_OK)
        say_origin(&asked, problem, world, origin, basis.machine.name,
                   weft_tuned_this(asked.tuning.workers ? asked.tuning.workers : basis.workers, basis.nodes));
    weft_basis_drop(&basis);
    return status;
}

static weft_status complete_on(const weft_machine *machine, weft_problem *problem, int world,
                               weft_error_text *error)
{
    weft_problem asked = *problem;
    weft_origin origin;
    weft_status status = weft_choose_schedule_of(machine, problem, world, &origin, error);

    if (status != WEFT_OK)
        return status;
    say_origin(&asked, problem, world, origin, machine->name, machine->id);
    weft_choose_tiles(machine, world, problem);
    return WEFT_OK;
}

static weft_status complete(const weft_machine *machine, const weft_options *options, weft_problem *problem,
                            weft_error_text *error)
{
    bool here = machine->kind == WEFT_MACHINE_CPU && (!machine_name || strcmp(machine_name, "this") == 0);
    int world = (int)options->ranks;
    weft_status status;

    *problem = options->problem;
    if (problem->op >= WEFT_OP_ALL_REDUCE)
        problem->count = count_of(options);
    if (options->threads)
        problem->tuning.workers = (int)options->threads;
    status = weft_problem_resolve(problem, world, problem, error);
    if (!status && problem->schedule == WEFT_SCHEDULE_AUTO && problem->op < WEFT_OP_ALL_REDUCE) {
        weft_problem tiled = *problem; /* choosing would take as long */

        tiled.schedule = WEFT_SCHEDULE_UNFUSED;
        weft_choose_tiles(machine, world, &tiled);
        status = check_tiles(&tiled, error);
    }
    if (!status)
        status = here ? complete_here(problem, world, error) : complete_on(machine, problem, world, error);
    if (!status)
        status = weft_problem_resolve(problem, world, problem, error);
    return status ? status : check_tiles(problem, error);
}

static void report_check(const weft_problem *problem, int world, const weft_check_report *report, bool json)
{
    int kept = report->count < WEFT_FINDINGS_MAX ? (int)report->count : WEFT_FINDINGS_MAX;

    if (!json) {
        for (int i = 0; i < kept; i++)
            printf("%s\n", report->findings[i].text);
        if (report->count)
            printf("%s %s over %d ranks: %lld findings\n", weft_op_name(problem->op),
                   weft_schedule_name(problem->op, problem->schedule), world, (long long)report->count);
        else
            printf("%s %s over %d ranks is right: %lld tasks, %lld pairs of accesses compared; no deadlock, "
                   "no race, "
                   "every contribution once, over any number of runs\n",
                   weft_op_name(problem->op), weft_schedule_name(problem->op, problem->schedule), world,
                   (long long)report->tasks, (long long)report->pairs);
        return;
    }
    printf("{\"op\":\"%s\",\"schedule\":\"%s\",\"ranks\":%d,\"tasks\":%lld,\"pairs\":%lld,\"findings\":[",
           weft_op_name(problem->op), weft_schedule_name(problem->op, problem->schedule), world,
           (long long)report->tasks, (long long)report->pairs);
    for (int i = 0; i < kept; i++)
        printf("%s{\"rank\":%d,\"task\":%lld,\"text\":\"%s\"}", i ? "," : "", report->findings[i].rank,
               (long long)report->findings[i].task, report->findings[i].text);
    printf("],\"ok\":%s}\n", report->count ? "false" : "true");
}

static weft_status part_of(const weft_problem *problem, int world, int rank, weft_plan_part *part,
                           weft_error_text *error)
{
    return given.parts ? given_plan_make(&given, rank, part, error)
                       : weft_plan_make_over(problem, domain, world, rank, part, error);
}

/* For the simulator. */
static weft_status part_over_nodes(void *problem, int rank, weft_plan_part *part, weft_error_text *error)
{
    const weft_problem *p = problem;

    return weft_plan_make_over(p, domain, world_asked, rank, part, error);
}

static int check(const weft_problem *problem, int world, bool json)
{
    weft_plan_part *parts = calloc((size_t)world, sizeof(*parts));
    weft_check_report *report = malloc(sizeof(*report));
    weft_error_text error = {0};
    weft_status status = WEFT_OK;
    int made = 0, result;

    if (!parts || !report)
        status = weft_error_set(&error, WEFT_ERR_MEMORY, "no memory for the plans of %d ranks", world);
    if (!status && !given.parts)
        status = weft_plan_make_all(problem, domain, world, parts, &error);
    for (; given.parts && made < world && !status; made++)
        status = part_of(problem, world, made, &parts[made], &error);
    if (!status)
        status = weft_plan_check(parts, world, report, &error);
    if (!status)
        report_check(problem, world, report, json);
    result = status ? fail(&error, status) : report->count != 0;
    for (int rank = 0; parts && rank < world; rank++)
        weft_plan_part_free(&parts[rank]);
    free(parts);
    free(report);
    return result;
}

static int print(const weft_problem *problem, int world, bool json)
{
    weft_error_text error = {0};

    for (int rank = 0; rank < world; rank++) {
        weft_plan_part part;
        weft_status status;

        if (rank_asked >= 0 && rank != rank_asked)
            continue;
        status = part_of(problem, world, rank, &part, &error);
        if (status)
            return fail(&error, status);
        if (json)
            weft_plan_print_json(&part, stdout);
        else
            weft_plan_print_text(&part, stdout);
        weft_plan_part_free(&part);
    }
    return 0;
}

static int draw(const weft_machine *machine, const weft_problem *problem, int world,
                const weft_options *options)
{
    weft_sim_source source = {.problem = problem, .world = world};
    weft_error_text error = {0};
    weft_sim_result result = {0};
    char where[80];
    weft_status status;

    if (given.parts) {
        source.make = given_plan_make;
        source.arg = &given;
    } else if (domain) {
        source.make = part_over_nodes;
        source.arg = (void *)(uintptr_t)problem;
    }
    status = weft_sim_run(machine, &source, WEFT_SIM_ALL, true, &result, &error);
    snprintf(where, sizeof(where), "%s (simulated)", machine->name);
    if (!status)
        status =
            draw_run(&source, where, result.events, result.event_count, options->svg, options->trace, &error);
    weft_sim_result_free(&result);
    return status ? fail(&error, status) : 0;
}

static int help(void)
{
    puts("usage: weft plan OP [flags]\n"
         "       weft plan --from FILE [flags]\n\n"
         "Prints the plan of an operation: every task of every rank, one line each. With --check it proves "
         "the\n"
         "plan right instead; with --svg or --trace it draws the simulated run of it.\n\nflags");
    options_print_help(stdout, "plan", plan_flags);
    puts("\nexamples\n"
         "  weft plan ag_gemm 1024 1024 512 -n 2 --rank 0\n"
         "  weft plan gemm_ar 4096 8192 8192 -n 8 --schedule two_shot --check\n"
         "  weft plan gemm_rs 4096 8192 8192 -n 4 --machine h100x8 --svg plan.svg\n"
         "  weft plan all_gather --bytes 64K -n 8 --nodes 3+5 --schedule pull --check\n"
         "  weft plan all_reduce --bytes 64K -n 4 --schedule two_shot --json > sums.plan\n"
         "  weft plan --from sums.plan --check                               is it right?\n"
         "  weft plan --from sums.plan                                       as text");
    return 0;
}

/* What the plan from the file or of the operation is asked for. */
static int plan(int argc, char **argv)
{
    weft_error_text error = {0};
    weft_options options;
    weft_problem problem;
    weft_machine machine;
    weft_status found;
    int status, world;

    rank_asked = -1;
    status = options_parse(&options, "plan", NULL, plan_flags, argc, argv);
    if (status)
        return status;
    if (options.help)
        return help();
    if (!options.is_plan_op)
        return options_error("plan", "%s has no plan", options.op_name ? options.op_name : "nothing");
    if (options.problem.op < WEFT_OP_ALL_REDUCE && !options.sizes_given && !given.parts)
        return options_error("plan", "%s needs its sizes: three numbers m n k", options.op_name);
    if (options.schedule_all)
        return options_error("plan", "--schedule all: a plan has one schedule (weft plan --help lists them)");
    if (options.bytes_last != options.bytes_first)
        return options_error("plan", "--bytes: a plan has one size, not a range");
    if (rank_asked >= 0 && (check_asked || options.svg || options.trace))
        return options_error("plan", "--rank is for printing: what is checked or drawn is every rank's part");
    if (options.json && !check_asked && (options.svg || options.trace))
        return options_error("plan", "--json is for a plan that is printed or checked: %s draws it",
                             options.svg ? "--svg" : "--trace");
    if (given.parts && (status = given_plan_refuses(&given, "plan", "--from", &options)))
        return status;
    world = given.parts ? given.world : (int)options.ranks;
    if (world > WEFT_RANKS_MAX)
        return options_error("plan", "-n %d: a group has at most %d ranks (weft sim takes more)", world,
                             WEFT_RANKS_MAX);
    if (rank_asked >= world)
        return options_error("plan", "--rank %lld: there are ranks 0 to %d", (long long)rank_asked,
                             world - 1);
    if (nodes_asked && given.parts)
        return options_error("plan", "--nodes: the plan in a file says itself on which nodes its ranks are");
    if (nodes_asked) {
        const char *wrong;

        domain = malloc((size_t)world * sizeof(*domain));
        if (!domain)
            return options_error("plan", "no memory for the nodes of %d ranks", world);
        wrong = nodes_parse(nodes_asked, world, domain);
        if (wrong)
            return options_error("plan", "--nodes '%s': it should be %s", nodes_asked, wrong);
    }
    world_asked = world;
    found = weft_machine_find(machine_name, &machine, &error);
    if (!found && given.parts)
        problem = given.parts[0].problem;
    else if (!found)
        found = complete(&machine, &options, &problem, &error);
    if (found)
        return fail(&error, found);
    if (given.parts && (options.svg || options.trace) && !check_asked && given_plan_check(&given, "plan"))
        return 1;
    if (check_asked)
        status = check(&problem, world, options.json);
    if (!status && (options.svg || options.trace))
        status = draw(&machine, &problem, world, &options);
    if (!status && !check_asked && !options.svg && !options.trace)
        status = print(&problem, world, options.json);
    if (!status && decided_by[0])
        fprintf(stderr, "weft plan: %s\n", decided_by);
    return status;
}

int cmd_plan(int argc, char **argv)
{
    int status = given_plan_open(&given, "plan", "--from", argc, argv);

    if (status)
        return status;
    status = plan(given.argc, given.argv);
    given_plan_close(&given);
    free(domain);
    domain = NULL;
    return status;
}
