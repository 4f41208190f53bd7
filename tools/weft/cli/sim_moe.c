/*
 * `weft sim moe`: a round of mixture of experts on a described machine, by the formulas of sim/moe.h. The
 * flags are those of `weft bench moe`.
 */
#include "cli/sim.h"

#include "cli/moe_flags.h"
#include "core/dtype.h"
#include "sim/moe.h"

#include <math.h>
#include <string.h>

static moe_asked asked = {.experts = 256, .topk = 8, .hidden = 7168, .tokens = 256, .mode = "both"};

const options_flag sim_moe_flags[] = {
    MOE_FLAGS(asked, "", " (default 0)",
              "combine: exact (a row for every expert), reduced (a row for every rank) or both (default)",
              "the experts' feed-forward in between: gate and up H x I, down I x H (default: none)"),
    {0},
};

static const report_column columns[] = {
    {"impl", "impl", REPORT_PLAIN, 8},
    {"dispatch µs", "dispatch_us", REPORT_TIME, 11},
    {"experts µs", "experts_us", REPORT_TIME, 10},
    {"combine µs", "combine_us", REPORT_TIME, 10},
    {"total µs", "total_us", REPORT_TIME, 10},
    {"link µs", "link_us", REPORT_TIME, 9},
    {"memory µs", "memory_us", REPORT_TIME, 9},
    {"rows", "rows", REPORT_RATE, 9},
    {"bound by", "bound", REPORT_PLAIN, 8},
    {0},
};

static const char *bound_of(const weft_moe_time *time)
{
    double latency = time->dispatch_us + time->combine_us - time->link_us - time->memory_us;
    double most = fmax(fmax(time->experts_us, time->link_us), fmax(time->memory_us, latency));

    return most == time->experts_us  ? "experts"
           : most == time->link_us   ? "link"
           : most == time->memory_us ? "memory"
                                     : "latency";
}

static weft_moe_shape shape_of(const simulation *s, bool reduced)
{
    const weft_options *o = s->options;

    return (weft_moe_shape){.experts = (int)asked.experts,
                            .topk = (int)asked.topk,
                            .ranks = s->world,
                            .hidden = asked.hidden,
                            .tokens = asked.tokens,
                            .inter = asked.inter,
                            .skew = asked.skew,
                            .reduced = reduced,
                            .dtype = o->dtype_given ? o->problem.dtype : WEFT_F16,
                            .fp8 = o->wire_given};
}

static void show(simulation *s, bool reduced)
{
    weft_moe_shape shape = shape_of(s, reduced);
    weft_error_text ignored;
    report *r = &s->report;
    weft_moe_time time;

    if (weft_sim_moe(&s->machine, &shape, s->graph, &time, &ignored) != WEFT_OK)
        return;
    report_text(r, "op", "moe");
    report_text(r, "backend", "sim");
    report_int(r, "ranks", s->world);
    report_text(r, "impl", "%s", reduced ? "reduced" : "exact");
    report_text(r, "dtype", "%s", weft_dtype_name(shape.dtype));
    if (shape.fp8)
        report_text(r, "wire", "fp8");
    report_int(r, "experts", shape.experts);
    report_int(r, "topk", shape.topk);
    report_int(r, "hidden", shape.hidden);
    report_int(r, "tokens", shape.tokens);
    report_int(r, "inter", shape.inter);
    report_real(r, "skew", shape.skew);
    report_real(r, "dispatch_us", time.dispatch_us);
    report_real(r, "experts_us", shape.inter ? time.experts_us : NAN);
    report_real(r, "combine_us", time.combine_us);
    report_real(r, "total_us", time.dispatch_us + time.experts_us + time.combine_us);
    report_real(r, "link_us", time.link_us);
    report_real(r, "memory_us", time.memory_us);
    report_real(r, "rows", time.rows);
    report_real(r, "link_bytes", time.link_bytes);
    report_real(r, "network_bytes", time.network_bytes);
    report_text(r, "bound", "%s", bound_of(&time));
    report_text(r, "machine", "%s", s->machine.name);
    sim_add_trust(s, weft_trust_kind_of_moe(&s->machine, s->world));
    report_bool(r, "ok", true);
    report_row(r);
}

int sim_moe_show(simulation *s)
{
    weft_moe_shape shape = shape_of(s, false);
    weft_error_text error = {0};
    weft_moe_time time;
    char words[200];

    weft_trust_words(weft_trust_of(weft_trust_kind_of_moe(&s->machine, s->world)), words, sizeof(words));
    /* Refused before anything is said. */
    if (moe_wire_fault(s->options))
        return options_error("sim", "%s", moe_wire_fault(s->options));
    if (weft_sim_moe(&s->machine, &shape, s->graph, &time, &error) != WEFT_OK)
        return options_error("sim", "%s", error.text);
    report_note(&s->report,
                "moe over %d ranks, predicted for %s: %s\nlink, memory: what dispatch and combine spend on "
                "what passes the "
                "busiest rank's link (or network card), and its memory;\nrows: that it gets. A formula of "
                "expected rows; "
                "error so far: %s;\nthe experts' products were not compared",
                s->world, s->machine.name, s->machine.about, words);
    s->report.columns = columns;
    if (strcmp(asked.mode, "reduced") != 0)
        show(s, false);
    if (strcmp(asked.mode, "exact") != 0)
        show(s, true);
    return 0;
}
