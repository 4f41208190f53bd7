/*
 * `weft tune`: tries every schedule with the tiles weft would take, then the best two with other tiles,
 * chunks and workers, and keeps what won where `auto` finds it. On this machine by measuring, all tries of a
 * step side by side; for another one (--machine) by simulating.
 */
#include "tune/tune.h"

#include "choose/machine.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "report/report.h"

#include "core/dtype.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *machine_name;
static double seconds = 1;

static const options_flag tune_flags[] = {
    {.names = "--machine",
     .value = "NAME",
     .kind = OPTIONS_TEXT,
     .target = &machine_name,
     .help = "simulate on this description, by name or path; default: measure here"},
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
    int world, cores;
    bool simulated;
    weft_machine machine;
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
    if (!t->simulated)
        return tune_measure(t->tries, t->count, t->world, seconds, &t->cores);
    simulate(t);
    return 0;
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
        if (list[i] != WEFT_SCHEDULE_TWO_LEVEL) /* one node: the exchange inside */
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

static void show(tuning *t, int won)
{
    for (int i = 0; i < t->count; i++) {
        const tune_try *tried = &t->tries[i];
        report *r = &t->report;

        if (!isfinite(tried->us))
            continue;
        report_text(r, "op", "%s", weft_op_name(t->asked.op));
        report_text(r, "backend", t->simulated ? "sim" : "cpu");
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
    uint64_t machine = t->simulated ? t->machine.id : weft_tuned_this(t->cores);
    weft_tuned tuned = {.schedule = p->schedule, .us = t->tries[won].us};
    weft_error_text error = {0};
    char what[200], path[1024];

    tuned.tuning.tile_m = p->tuning.tile_m;
    tuned.tuning.tile_n = p->tuning.tile_n;
    tuned.tuning.tile_k = p->tuning.tile_k;
    tuned.tuning.workers = p->tuning.workers;
    if (p->op < WEFT_OP_ALL_REDUCE)
        snprintf(what, sizeof(what), "%s %" PRId64 " %" PRId64 " %" PRId64 " %s on %d ranks, %s",
                 weft_op_name(p->op), p->m, p->n, p->k, weft_dtype_name(p->dtype), t->world,
                 t->simulated ? t->machine.name : "measured");
    else
        snprintf(what, sizeof(what), "%s %" PRId64 " %s on %d ranks, %s", weft_op_name(p->op), p->count,
                 weft_dtype_name(p->dtype), t->world, t->simulated ? t->machine.name : "measured");
    if (weft_tuned_keep(machine, &t->asked, t->world, &tuned, what, &error) ||
        weft_tuned_path(path, sizeof(path), &error)) {
        fprintf(stderr, "weft tune: %s\n", error.text);
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
    add_variations(t, &best[0].problem);
    if (second >= 0 && (best[1].problem.schedule != best[0].problem.schedule))
        add_variations(t, &best[1].problem);
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
    puts("usage: weft tune OP [flags]\n\n"
         "Tries every schedule, then other tiles, chunks and workers around the best two, and keeps what won "
         "in the\n"
         "file that schedule auto goes by first: $WEFT_TUNE, or $XDG_CACHE_HOME/weft/tuned, or "
         "~/.cache/weft/tuned. A\n"
         "line there is for this CPU (or the machine that was simulated), this version of weft, and this "
         "problem.\n\n"
         "flags");
    options_print_help(stdout, "tune", tune_flags);
    puts("\nexamples\n"
         "  weft tune gemm_rs 4096 8192 28672 -n 2\n"
         "  weft tune all_reduce --bytes 1M -n 2 --seconds 3\n"
         "  weft tune ag_gemm 8192 28672 8192 --dtype bf16 -n 8 --machine h100x8");
    return 0;
}

static int check(const tuning *t)
{
    const weft_options *o = &t->options;
    const weft_problem *p = &o->problem;

    if (!o->is_plan_op)
        return options_error("tune", "%s has no plan to tune", o->op_name ? o->op_name : "nothing");
    if (o->schedule_given || p->tuning.tile_m || p->tuning.tile_n || p->tuning.tile_k || o->threads)
        return options_error("tune", "schedule, tiles and threads are what it finds: leave them open");
    if (o->set || o->html || o->svg || o->trace)
        return options_error("tune", "it tunes one problem, and draws nothing");
    if (p->op < WEFT_OP_ALL_REDUCE && !o->sizes_given)
        return options_error("tune", "%s needs its sizes: three numbers m n k", o->op_name);
    if (p->op >= WEFT_OP_ALL_REDUCE && (!o->bytes_first || o->bytes_first != o->bytes_last))
        return options_error("tune", "%s needs one size: --bytes", o->op_name);
    if (!t->simulated && p->op < WEFT_OP_ALL_REDUCE &&
        (p->b_form == WEFT_B_PREPACKED || weft_problem_is_gated(p) || weft_layout_gathers_k(p->layout)))
        return options_error("tune",
                             "packed weights, gated activations and gathering along k are not measured here");
    return 0;
}

int cmd_tune(int argc, char **argv)
{
    tuning t = {0};
    weft_error_text error = {0};
    int status = options_parse(&t.options, "tune", NULL, tune_flags, argc, argv), closed;
    bool shared;

    if (status)
        return status;
    if (t.options.help)
        return help();
    t.simulated = machine_name != NULL;
    t.world = (int)t.options.ranks;
    if ((status = check(&t)))
        return status;
    if (t.simulated && weft_machine_find(machine_name, &t.machine, &error))
        return options_error("tune", "%s", error.text);
    t.asked = t.options.problem;
    shared = t.asked.op == WEFT_OP_ALL_GATHER || t.asked.op == WEFT_OP_REDUCE_SCATTER ||
             t.asked.op == WEFT_OP_ALL_TO_ALL;
    if (t.asked.op >= WEFT_OP_ALL_REDUCE) {
        t.asked.count =
            t.options.bytes_first / (int64_t)weft_dtype_size(t.asked.dtype) / (shared ? t.world : 1);
        t.asked.count = t.asked.count > 0 ? t.asked.count : 1;
    }
    if (weft_problem_resolve(&t.asked, t.world, &t.asked, &error))
        return options_error("tune", "%s", error.text);
    report_open(&t.report, stdout, t.options.json, columns);
    report_note(&t.report, "%s over %d ranks, %s", t.options.op_name, t.world,
                t.simulated ? t.machine.about : "measured here");
    status = search(&t);
    closed = report_close(&t.report);
    return status ? status : closed;
}
