/*
 * `weft tune`: tries every schedule with the tiles weft would take, then the best two with other tiles,
 * chunks and workers, and keeps what won where `auto` finds it. On this machine by measuring, on its CPU or
 * GPUs, on one node or several, all tries of a step side by side; for another one (--machine) by simulating.
 *
 * Ranks of several nodes are processes, started by this command (--nodes) or by any launcher: all of them
 * search, with the same times and so the same result, and rank 0 prints and keeps it.
 */
#include "tune/tune.h"

#include "bench/start.h"
#include "choose/machine.h"
#include "cli/commands.h"
#include "cli/nodes.h"
#include "cli/options.h"
#include "report/report.h"

#include "core/dtype.h"
#include "group/group.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *machine_name;
static const char *nodes_asked;
static double seconds = 1;

static const options_flag tune_flags[] = {
    {.names = "--machine",
     .value = "NAME",
     .kind = OPTIONS_TEXT,
     .target = &machine_name,
     .help = "simulate on this description, by name or path; default: measure here"},
    {.names = "--nodes",
     .value = "N",
     .kind = OPTIONS_TEXT,
     .target = &nodes_asked,
     .help = "measure as if the ranks were on N nodes, in blocks, or on nodes of 3 and 5 (3+5)"},
    {.names = "--seconds",
     .value = "S",
     .kind = OPTIONS_REAL,
     .target = &seconds,
     .min = 0.01,
     .max = 3600,
     .help = "about how long to measure each of the two steps (default 1)"},
    {0},
};

static const report_column columns[] = {
    {"schedule", "schedule", REPORT_PLAIN, 30},
    {"tile m", "tile_m", REPORT_PLAIN, 7},
    {"tile n", "tile_n", REPORT_PLAIN, 9},
    {"tile k", "tile_k", REPORT_PLAIN, 7},
    {"workers", "workers", REPORT_PLAIN, 7},
    {"time µs", "us", REPORT_TIME, 10},
    {"÷ auto", "of_auto", REPORT_RATIO, 7},
    {"", "shown_won", REPORT_PLAIN, 6},
    {0},
};

/* What wins by less may have won by chance: then what auto takes today is kept. */
static const double worth_it = 0.98;

typedef struct tuning {
    weft_options options;
    weft_problem asked; /* resolved, its schedule and tuning open */
    int world;
    bool simulated;
    bool several; /* nodes */
    bool speaks;  /* a rank of a launcher: whether it is rank 0 */
    weft_machine machine;
    tune_place place;
    tune_try tries[TUNE_MOST_TRIES];
    int count;
    report report;
} tuning;

static void add_try(tuning *t, weft_schedule schedule, weft_tuning how)
{
    tune_try *next = &t->tries[t->count];

    if (t->count == TUNE_MOST_TRIES)
        return;
    next->problem = t->asked;
    next->problem.schedule = schedule;
    next->problem.tuning = how;
    next->us = INFINITY;
    t->count++;
}

static void simulate(tuning *t)
{
    for (int i = 0; i < t->count; i++) {
        weft_problem problem = t->tries[i].problem;
        weft_sim_source source = {.problem = &problem, .world = t->world};
        weft_sim_result result;
        weft_error_text ignored;

        t->tries[i].us = INFINITY;
        weft_choose_tiles(&t->machine, t->world, &problem);
        if (weft_sim_can_run(&t->machine, &problem, t->world, &ignored) &&
            weft_problem_resolve(&problem, t->world, &problem, &ignored) == WEFT_OK &&
            weft_sim_run(&t->machine, &source, WEFT_SIM_ALL, false, &result, &ignored) == WEFT_OK) {
            t->tries[i].problem = problem;
            t->tries[i].us = result.us;
        }
    }
}

static int time_all(tuning *t)
{
    weft_error_text error = {0};

    if (t->simulated) {
        simulate(t);
        return 0;
    }
    if (tune_measure(t->tries, t->count, seconds, &t->place, &error) == WEFT_OK)
        return 0;
    if (t->place.group)
        bench_output_say(error.text);
    else
        fprintf(stderr, "weft tune: %s\n", error.text);
    return error.status == WEFT_ERR_UNSUPPORTED || error.status == WEFT_ERR_ARGUMENT ? 2 : 1;
}

static int best_of(const tune_try *tries, int count, int but)
{
    int best = -1;

    for (int i = 0; i < count; i++)
        if (i != but && isfinite(tries[i].us) && (best < 0 || tries[i].us < tries[best].us))
            best = i;
    return best;
}

/* Every schedule as weft would run it, and what `auto` takes today, which is the first try. */
static int try_schedules(tuning *t)
{
    int count;
    const weft_schedule *list = weft_schedule_list(t->asked.op, t->asked.layout, &count);

    t->count = 0;
    if (!t->simulated) {
        add_try(t, WEFT_SCHEDULE_AUTO, (weft_tuning){0});
    } else {
        weft_schedule picked = WEFT_SCHEDULE_AUTO;
        weft_error_text error = {0};

        if (weft_choose_schedule(&t->machine, &t->asked, t->world, &picked, &error))
            return options_error("tune", "%s", error.text);
        add_try(t, picked, (weft_tuning){0});
    }
    for (int i = 0; i < count; i++)
        if (t->several || list[i] != WEFT_SCHEDULE_TWO_LEVEL) /* one node: the exchange inside */
            add_try(t, list[i], (weft_tuning){0});
    return time_all(t);
}

/* Around what weft takes: half and twice of each, at least one of everything. */
static void add_variations(tuning *t, const weft_problem *from)
{
    bool product = from->op < WEFT_OP_ALL_REDUCE;
    const weft_tuning *base = &from->tuning;
    int64_t cols = product ? from->n : from->count;

    add_try(t, from->schedule, *base);
    for (int i = 0; i < 4; i++) {
        weft_tuning how = *base;
        int64_t *tile = !product || i < 2 ? &how.tile_n : &how.tile_m;

        if (!product && i >= 2) /* chunks of a quarter, and of four */
            *tile = i == 2 ? *tile / 4 : *tile * 4;
        else
            *tile = i % 2 ? *tile * 2 : *tile / 2;
        if (*tile > 0 && *tile <= (tile == &how.tile_m ? from->m : cols))
            add_try(t, from->schedule, how);
    }
    if (base->workers > 1) {
        weft_tuning how = *base;

        how.workers /= 2;
        add_try(t, from->schedule, how);
    }
}

/* The same of a product on GPUs, of what its kernels are made for: widths of tiles, chunks of k, copiers,
 * crews; and of one that is not fused, who multiplies and how sums travel. */
static void add_gpu_variations(tuning *t, const weft_problem *from)
{
    static const int64_t widths[] = {128, 224, 256}, chunks[] = {256, 1024}, rasters[] = {4, 16};
    const weft_tuning *base = &from->tuning;

    add_try(t, from->schedule, *base);
    if (base->library != 2) {
        for (int library = 1; library <= 3; library += 2)
            for (int exchange = 1; exchange <= 3; exchange++)
                if (library != base->library || exchange != base->exchange)
                    add_try(t, from->schedule, (weft_tuning){.library = library, .exchange = exchange});
        return;
    }
    for (int i = 0; i < 3; i++) {
        weft_tuning how = *base;

        how.tile_n = widths[i];
        if (widths[i] != base->tile_n && !weft_dtype_is_fp8(from->dtype))
            add_try(t, from->schedule, how);
    }
    for (int i = 0; i < 2; i++) {
        weft_tuning chunked = *base, walked = *base, fewer = *base;

        chunked.chunk_k = chunks[i];
        walked.raster = rasters[i];
        fewer.workers = i ? base->workers / 2 : base->workers - 1;
        if (base->copiers && from->k > chunks[i])
            add_try(t, from->schedule, chunked);
        if (base->raster)
            add_try(t, from->schedule, walked);
        if (fewer.workers > 0)
            add_try(t, from->schedule, fewer);
    }
}

static void add_around(tuning *t, const weft_problem *from)
{
    if (t->options.cuda && !t->several && from->op < WEFT_OP_ALL_REDUCE)
        add_gpu_variations(t, from);
    else
        add_variations(t, from);
}

static void show(tuning *t, int won)
{
    for (int i = 0; i < t->count && t->speaks; i++) {
        const tune_try *tried = &t->tries[i];
        report *r = &t->report;

        if (!isfinite(tried->us))
            continue;
        report_text(r, "op", "%s", weft_op_name(t->asked.op));
        report_text(r, "backend", t->simulated ? "sim" : t->options.cuda ? "cuda" : "cpu");
        report_int(r, "ranks", t->world);
        report_text(r, "schedule", "%s", weft_schedule_name(t->asked.op, tried->problem.schedule));
        report_int(r, "tile_m", tried->problem.tuning.tile_m);
        report_int(r, "tile_n", tried->problem.tuning.tile_n);
        report_int(r, "tile_k", tried->problem.tuning.tile_k);
        report_int(r, "workers", tried->problem.tuning.workers);
        report_real(r, "us", tried->us);
        report_real(r, "of_auto", tried->us / t->tries[0].us);
        report_bool(r, "won", i == won);
        report_shown(r, "shown_won", "%s", i == won ? "won" : i == 0 ? "auto" : "");
        report_bool(r, "ok", true);
        report_row(r);
    }
}

static int keep(tuning *t, int won)
{
    const weft_problem *p = &t->tries[won].problem;
    uint64_t machine = t->simulated ? t->machine.id : t->place.machine;
    weft_tuned tuned = {.schedule = p->schedule, .us = t->tries[won].us};
    weft_error_text error = {0};
    char what[200], path[1024];
    const char *where = t->simulated      ? t->machine.name
                        : t->options.cuda ? "measured on GPUs"
                        : t->several      ? "measured over nodes"
                                          : "measured";

    if (!t->speaks)
        return 0;

    tuned.tuning.tile_m = p->tuning.tile_m;
    tuned.tuning.tile_n = p->tuning.tile_n;
    tuned.tuning.tile_k = p->tuning.tile_k;
    tuned.tuning.workers = p->tuning.workers;
    if ((t->options.cuda && !t->several) || (t->simulated && t->machine.crews)) {
        tuned.tuning = p->tuning;
        tuned.tuning.sums_stay = tuned.tuning.grain_n = 0;
    }
    if (p->op < WEFT_OP_ALL_REDUCE)
        snprintf(what, sizeof(what), "%s %" PRId64 " %" PRId64 " %" PRId64 " %s on %d ranks, %s",
                 weft_op_name(p->op), p->m, p->n, p->k, weft_dtype_name(p->dtype), t->world, where);
    else
        snprintf(what, sizeof(what), "%s %" PRId64 " %s on %d ranks, %s", weft_op_name(p->op), p->count,
                 weft_dtype_name(p->dtype), t->world, where);
    if (weft_tuned_keep(machine, &t->asked, t->world, &tuned, what, &error) ||
        weft_tuned_path(path, sizeof(path), &error)) {
        bench_output_say(error.text);
        return 1;
    }
    report_note(&t->report, "kept in %s for auto", path);
    return 0;
}

static int search(tuning *t)
{
    int status = try_schedules(t), first, second, won;
    tune_try best[2], today;

    if (status)
        return status;
    first = best_of(t->tries, t->count, -1);
    if (first < 0)
        return options_error("tune", "no schedule of %s can run", weft_op_name(t->asked.op));
    second = best_of(t->tries, t->count, first);
    today = t->tries[0];
    best[0] = t->tries[first];
    best[1] = t->tries[second < 0 ? first : second];
    show(t, -1);
    t->count = 0;
    add_try(t, today.problem.schedule, today.problem.tuning);
    add_around(t, &best[0].problem);
    if (second >= 0 && (best[1].problem.schedule != best[0].problem.schedule))
        add_around(t, &best[1].problem);
    if (t->speaks)
        report_note(&t->report, "around the best:");
    status = time_all(t);
    if (status)
        return status;
    won = best_of(t->tries, t->count, -1);
    if (won < 0 || t->tries[won].us > worth_it * t->tries[0].us)
        won = 0;
    show(t, won);
    return keep(t, won);
}

static int help(void)
{
    puts(
        "usage: weft tune OP [flags]\n\n"
        "Tries every schedule, then other tiles, chunks and workers around the best two, and keeps what won "
        "in the\n"
        "file that schedule auto goes by first: $WEFT_TUNE, or $XDG_CACHE_HOME/weft/tuned, or "
        "~/.cache/weft/tuned. A\n"
        "line there is for this CPU or GPU and these nodes (or the machine that was simulated), this version "
        "of\n"
        "weft, and this problem. Under a launcher (weft run --hosts, mpirun) its ranks are those that are "
        "timed.\n\n"
        "flags");
    options_print_help(stdout, "tune", tune_flags);
    puts("\nexamples\n"
         "  weft tune gemm_rs 4096 8192 28672 -n 2\n"
         "  weft tune all_reduce --bytes 1M -n 2 --seconds 3\n"
         "  weft tune all_reduce --bytes 1M -n 4 --nodes 2\n"
         "  weft tune gemm_rs 4096 8192 28672 --dtype bf16 -n 8 --backend cuda\n"
         "  weft tune ag_gemm 8192 28672 8192 --dtype bf16 -n 8 --machine h100x8");
    return 0;
}

static int check(const tuning *t)
{
    const weft_options *o = &t->options;
    const weft_problem *p = &o->problem;
    weft_error_text error = {0};
    char path[1024] = "";

    if (!o->is_plan_op)
        return options_error("tune", "%s has no plan to tune", o->op_name ? o->op_name : "nothing");
    if (o->schedule_given) /* by -c all_gather */
        return options_error("tune", "the schedule is what it finds: leave it open");
    if (p->op < WEFT_OP_ALL_REDUCE && !o->sizes_given)
        return options_error("tune", "%s needs its sizes: three numbers m n k", o->op_name);
    if (p->op >= WEFT_OP_ALL_REDUCE && (!o->bytes_first || o->bytes_first != o->bytes_last))
        return options_error("tune", "%s needs one size: --bytes", o->op_name);
    if (t->simulated && (nodes_asked || o->cuda))
        return options_error("tune", "--machine simulates: leave %s out",
                             nodes_asked ? "--nodes" : "--backend");
    if (!t->simulated && p->op < WEFT_OP_ALL_REDUCE &&
        (p->b_form == WEFT_B_PREPACKED || weft_problem_is_gated(p) || weft_layout_gathers_k(p->layout)))
        return options_error("tune",
                             "packed weights, gated activations and gathering along k are not measured here");
    if (weft_tuned_path(path, sizeof(path), &error) || weft_tuned_readable(&error))
        return options_error("tune", "%s", error.text);
    if (!*path)
        return options_error("tune",
                             "there is no place for what it finds: WEFT_TUNE is off, or HOME is not set");
    return 0;
}

/* Before minutes are spent on what could not be kept. */
static int prepare(void)
{
    weft_error_text error = {0};

    if (weft_tuned_prepare(&error) == WEFT_OK)
        return 0;
    bench_output_say(error.text);
    return 1;
}

/* Ranks of a launcher: rank 0 keeps it, the others hear whether it can. */
static int prepare_together(const tuning *t)
{
    int32_t wrong = t->speaks ? prepare() : 0;
    weft_status status = weft_broadcast(t->place.group, &wrong, 1, WEFT_I32, 0);

    if (status != WEFT_OK && !wrong)
        bench_output_say(weft_error(t->place.group));
    return status == WEFT_OK ? wrong : 1;
}

/* What is asked, as weft resolves it. */
static int resolve(tuning *t)
{
    weft_error_text error = {0};
    bool shared;

    if (t->simulated && weft_machine_find(machine_name, &t->machine, &error))
        return options_error("tune", "%s", error.text);
    t->several = t->simulated     ? t->machine.ranks_per_node > 0 && t->world > t->machine.ranks_per_node
                 : t->place.group ? t->place.group->spread
                                  : false;
    t->asked = t->options.problem;
    shared = t->asked.op == WEFT_OP_ALL_GATHER || t->asked.op == WEFT_OP_REDUCE_SCATTER ||
             t->asked.op == WEFT_OP_ALL_TO_ALL;
    if (t->asked.op >= WEFT_OP_ALL_REDUCE) {
        t->asked.count =
            t->options.bytes_first / (int64_t)weft_dtype_size(t->asked.dtype) / (shared ? t->world : 1);
        t->asked.count = t->asked.count > 0 ? t->asked.count : 1;
    }
    if (weft_problem_resolve(&t->asked, t->world, &t->asked, &error))
        return options_error("tune", "%s", error.text);
    return 0;
}

static int tune(tuning *t, FILE *out)
{
    int status = resolve(t), closed = 0;

    if (status)
        return status;
    if (t->speaks) {
        report_open(&t->report, out, t->options.json, columns);
        report_note(&t->report, "%s over %d ranks, %s", t->options.op_name, t->world,
                    t->simulated ? t->machine.about : "measured here");
    }
    status = search(t);
    if (t->speaks)
        closed = report_close(&t->report);
    return status ? status : closed;
}

/* One of the ranks that a launcher started. */
static int tune_rank(tuning *t)
{
    weft_group *group;
    FILE *out;
    int status = 0;

    if (weft_init(&group) != WEFT_OK) {
        bench_output_say(weft_error(NULL));
        return 1;
    }
    t->place.group = group;
    t->world = t->place.ranks = weft_size(group);
    t->speaks = weft_rank(group) == 0;
    out = bench_output_open(weft_rank(group));
    if (t->options.ranks_given && t->options.ranks != t->world) {
        if (t->speaks)
            options_error("tune", "-n %lld: it is timed on the %d ranks it was started with",
                          (long long)t->options.ranks, t->world);
        status = 2;
    } else if (t->options.cuda && weft_group_use_gpu(group, -1) != WEFT_OK) {
        if (t->speaks)
            bench_output_say(weft_error(group));
        status = 2;
    }
    status = status ? status : prepare_together(t);
    status = status ? status : tune(t, out);
    bench_output_close(out, status);
    weft_finalize(group);
    return bench_has_output() ? 0 : status;
}

int cmd_tune(int argc, char **argv)
{
    tuning t = {.speaks = true};
    int status = options_parse(&t.options, "tune", NULL, tune_flags, argc, argv);

    if (status)
        return status;
    if (t.options.help)
        return help();
    bench_speak_as("tune");
    t.simulated = machine_name != NULL;
    t.world = t.place.ranks = (int)t.options.ranks;
    t.place.cuda = t.options.cuda;
    if ((status = check(&t)))
        return status;
    if (!t.simulated && bench_is_rank())
        return tune_rank(&t);
    if ((status = prepare()))
        return status;
    if (nodes_asked) {
        static int32_t domain[WEFT_RANKS_MAX];
        const char *wrong = t.world <= WEFT_RANKS_MAX ? nodes_parse(nodes_asked, t.world, domain)
                                                      : "of at most as many ranks as a group has";

        return wrong ? options_error("tune", "--nodes '%s': it should be %s", nodes_asked, wrong)
                     : bench_launch(&t.options, argc, argv, nodes_asked, false);
    }
    return tune(&t, stdout);
}
