/*
 * `weft sim OP --sweep ranks=8:1024`: one operation over a range of ranks or sizes. For every value: what
 * weft's fastest schedule takes, what it is spent on along the critical path, what libraries take one after
 * the other, and what a link of twice the rate would buy. The chart stacks the parts of the path, as shares,
 * and draws the speedup.
 */
#include "cli/sim.h"

#include "core/dtype.h"
#include "choose/machine.h"
#include "sim/library.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_POINTS = 40 };

typedef struct point {
    int64_t value;
    weft_schedule schedule;
    weft_sim_result result;
    double library_us, faster_us; /* libraries; with links of twice the rate */
} point;

static const report_column columns[] = {
    {"value", "shown_value", REPORT_PLAIN, 12},
    {"time µs", "us", REPORT_TIME, 10},
    {"compute µs", "compute_us", REPORT_TIME, 10},
    {"link µs", "link_us", REPORT_TIME, 9},
    {"memory µs", "memory_us", REPORT_TIME, 9},
    {"latency µs", "latency_us", REPORT_TIME, 10},
    {"bound by", "bound", REPORT_PLAIN, 8},
    {"libraries µs", "unfused_us", REPORT_TIME, 12},
    {"speedup", "speedup", REPORT_RATIO, 7},
    {"2× link µs", "faster_link_us", REPORT_TIME, 10},
    {"buys", "faster_link_pct", REPORT_PERCENT, 5},
    {"schedule", "schedule", REPORT_PLAIN, 10},
    {0},
};

const char *sim_sweep_read(void *target, const char *value)
{
    static const char *const names[] = {"ranks", "m", "n", "k", "bytes"};
    static const char wanted[] = "ranks=A:B, m=A:B, n=A:B, k=A:B or bytes=A:B (K, M and G are understood)";
    sim_sweep *sweep = target;
    size_t length = strcspn(value, "=");
    const char *at = value + length;

    sweep->name = NULL;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strlen(names[i]) == length && memcmp(names[i], value, length) == 0)
            sweep->name = names[i];
    if (!sweep->name || *at != '=')
        return wanted;
    for (int i = 0; i < 2; i++) {
        char *end;
        long long number;

        errno = 0;
        number = strtoll(at + 1, &end, 10);
        if (end == at + 1 || errno || number < 1 || number > INT64_C(1) << 40)
            return wanted;
        if (*end == 'K' || *end == 'M' || *end == 'G') {
            number <<= *end == 'K' ? 10 : *end == 'M' ? 20 : 30;
            end++;
        }
        if (*end != (i ? 0 : ':'))
            return wanted;
        *(i ? &sweep->last : &sweep->first) = number;
        at = end;
    }
    return sweep->first <= sweep->last && sweep->last <= INT64_C(1) << 40 ? NULL : wanted;
}

/* A collective's size where sizes are not what is swept. */
static int64_t swept_bytes(const simulation *s)
{
    return s->options->bytes_first ? s->options->bytes_first : 16 << 20;
}

static weft_problem problem_at(simulation *s, const sim_sweep *sweep, int64_t value)
{
    weft_problem problem = s->options->problem;
    int64_t bytes = swept_bytes(s);

    if (strcmp(sweep->name, "ranks") == 0)
        s->world = (int)value;
    else if (strcmp(sweep->name, "m") == 0)
        problem.m = value;
    else if (strcmp(sweep->name, "n") == 0)
        problem.n = value;
    else if (strcmp(sweep->name, "k") == 0)
        problem.k = value;
    else
        bytes = value;
    if (problem.op >= WEFT_OP_ALL_REDUCE)
        problem.count = sim_count_for(&problem, s->world, bytes);
    return problem;
}

/* What stays the same in every row. */
void sim_sweep_title(simulation *s, const sim_sweep *sweep)
{
    static const char *const names[] = {"m", "n", "k"};
    const weft_problem *p = &s->options->problem;
    const int64_t sizes[] = {p->m, p->n, p->k};
    char text[128] = "";
    size_t used = 0;

    for (int i = 0; i < 3 && p->op < WEFT_OP_ALL_REDUCE; i++)
        if (strcmp(sweep->name, names[i]) != 0)
            used += (size_t)snprintf(text + used, sizeof(text) - used, ", %s %" PRId64, names[i], sizes[i]);
    if (p->op >= WEFT_OP_ALL_REDUCE && strcmp(sweep->name, "bytes") != 0)
        used += (size_t)snprintf(text + used, sizeof(text) - used, " of %" PRId64 " bytes", swept_bytes(s));
    if (strcmp(sweep->name, "ranks") != 0)
        snprintf(text + used, sizeof(text) - used, " over %d ranks", s->world);
    report_note(&s->report, "%s of %s%s, predicted for %s: %s", s->options->op_name,
                weft_dtype_name(p->dtype), text, s->machine.name, s->machine.about);
}

static int simulate_point(simulation *s, const weft_problem *asked, point *p)
{
    weft_machine machine = s->machine;
    weft_error_text error = {0};
    weft_problem problem;
    weft_sim_result faster;
    weft_status status = weft_problem_resolve(asked, s->world, &problem, &error);
    int failed;

    p->schedule = problem.schedule;
    if (!status && problem.schedule == WEFT_SCHEDULE_AUTO)
        status = weft_choose_schedule(&s->machine, &problem, s->world, &p->schedule, &error);
    if (status)
        return sim_fail(&error, status);
    failed = sim_simulate(s, &problem, p->schedule, WEFT_SIM_ALL, &p->result);
    if (failed)
        return failed;
    p->library_us =
        problem.op < WEFT_OP_ALL_REDUCE
            ? sim_library_us(s, &problem)
            : weft_library_collective_us(&machine, &problem, s->world, WEFT_LIBRARY_FASTEST, s->graph);
    s->machine.link_gbs *= 2;
    s->machine.multicast_gbs *= 2;
    s->machine.network_gbs *= 2;
    failed = sim_simulate(s, &problem, p->schedule, WEFT_SIM_ALL, &faster);
    s->machine = machine;
    p->faster_us = faster.us;
    return failed;
}

static void add_row(simulation *s, const sim_sweep *sweep, const weft_problem *problem, const point *p)
{
    report *r = &s->report;
    bool gpu = s->machine.kind == WEFT_MACHINE_GPU, product = problem->op < WEFT_OP_ALL_REDUCE;

    report_text(r, "op", "%s", weft_op_name(problem->op));
    report_text(r, "backend", "sim");
    report_int(r, "ranks", s->world);
    report_text(r, "dtype", "%s", weft_dtype_name(problem->dtype));
    if (product) {
        report_int(r, "m", problem->m);
        report_int(r, "n", problem->n);
        report_int(r, "k", problem->k);
    } else {
        report_int(r, "count", problem->count);
    }
    report_text(r, "sweep", "%s", sweep->name);
    report_int(r, "value", p->value);
    report_shown(r, "shown_value", "%s %" PRId64, sweep->name, p->value);
    report_text(r, "schedule", "%s", weft_schedule_name(problem->op, p->schedule));
    report_real(r, "us", p->result.us);
    report_real(r, "compute_us", p->result.path_us[WEFT_BOUND_COMPUTE]);
    report_real(r, "link_us", p->result.path_us[WEFT_BOUND_LINK]);
    report_real(r, "memory_us", p->result.path_us[WEFT_BOUND_MEMORY]);
    report_real(r, "latency_us", p->result.path_us[WEFT_BOUND_LATENCY]);
    report_text(r, "bound", "%s", weft_bound_name(p->result.bound));
    report_real(r, "unfused_us", p->library_us > 0 ? p->library_us : NAN);
    report_real(r, "speedup", p->library_us > 0 ? p->library_us / p->result.us : NAN);
    report_real(r, "faster_link_us", gpu ? p->faster_us : NAN);
    report_real(r, "faster_link_pct", gpu ? 100 * (1 - p->faster_us / p->result.us) : NAN);
    report_text(r, "machine", "%s", s->machine.name);
    sim_add_trust(s, weft_trust_kind_of(&s->machine, problem, s->world, false));
    report_bool(r, "ok", true);
    report_row(r);
}

/* ---- the chart ------------------------------------------------------------------------------------ */

enum { LEFT = 60, TOP = 60, HEIGHT = 240, COLUMN = 56, GAP = 16 };

static const struct {
    weft_bound bound;
    const char *colour;
} parts[WEFT_BOUND_COUNT] = {
    {WEFT_BOUND_COMPUTE, "#4477aa"},
    {WEFT_BOUND_LINK, "#ee6677"},
    {WEFT_BOUND_MEMORY, "#ccbb44"},
    {WEFT_BOUND_LATENCY, "#bbbbbb"},
};

static void draw_column(FILE *file, const point *p, int index)
{
    double path = 0, y = TOP + HEIGHT;
    int x = LEFT + GAP + index * (COLUMN + GAP);

    for (int i = 0; i < WEFT_BOUND_COUNT; i++)
        path += p->result.path_us[i];
    for (int i = 0; i < WEFT_BOUND_COUNT; i++) {
        double share = path > 0 ? p->result.path_us[parts[i].bound] / path : 0;

        y -= share * HEIGHT;
        fprintf(file,
                "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" fill=\"%s\"><title>%s: %.1f µs, %.0f "
                "%%</title></rect>\n",
                x, y, COLUMN, share * HEIGHT, parts[i].colour, weft_bound_name(parts[i].bound),
                p->result.path_us[parts[i].bound], 100 * share);
    }
    fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%" PRId64 "</text>\n", x + COLUMN / 2,
            TOP + HEIGHT + 16, p->value);
    fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.*f µs</text>\n", x + COLUMN / 2, TOP - 6,
            p->result.us < 100 ? 1 : 0, p->result.us);
    if (p->library_us > 0)
        fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.2f×</text>\n", x + COLUMN / 2,
                TOP + HEIGHT + 34, p->library_us / p->result.us);
}

static int draw_chart(const simulation *s, const sim_sweep *sweep, const point *points, int count,
                      const char *path)
{
    FILE *file = fopen(path, "w");
    int width =
        LEFT + GAP + count * (COLUMN + GAP) + 20 > 520 ? LEFT + GAP + count * (COLUMN + GAP) + 20 : 520;
    bool failed;

    if (!file)
        return options_error("sim", "cannot write %s: %s", path, strerror(errno));
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<text x=\"%d\" y=\"18\" font-size=\"13\">%s on %s: where the time goes, by %s</text>\n",
            width, TOP + HEIGHT + 76, LEFT, s->options->op_name, s->machine.name, sweep->name);
    for (int i = 0; i <= 4; i++)
        fprintf(
            file,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%d %%</text>\n<line x1=\"%d\" y1=\"%d\" x2=\"%d\" "
            "y2=\"%d\" stroke=\"#dddddd\"/>\n",
            LEFT - 6, TOP + HEIGHT - i * HEIGHT / 4 + 4, 25 * i, LEFT, TOP + HEIGHT - i * HEIGHT / 4,
            width - 10, TOP + HEIGHT - i * HEIGHT / 4);
    for (int i = 0; i < count; i++)
        draw_column(file, &points[i], i);
    fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">speedup</text>\n", LEFT - 6,
            TOP + HEIGHT + 34);
    for (int i = 0; i < WEFT_BOUND_COUNT; i++)
        fprintf(file,
                "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n<text x=\"%d\" "
                "y=\"%d\">%s</text>\n",
                LEFT + 110 * i, TOP + HEIGHT + 52, parts[i].colour, LEFT + 110 * i + 18, TOP + HEIGHT + 62,
                weft_bound_name(parts[i].bound));
    fputs("</svg>\n", file);
    failed = ferror(file) != 0;
    failed |= fclose(file) != 0;
    return failed ? options_error("sim", "cannot write %s", path) : 0;
}

static int draw_into_page(simulation *s, const sim_sweep *sweep, const point *points, int count)
{
    char path[REPORT_PAGE_PATH];
    int file = report_page_scratch(path), status;

    if (file < 0)
        return options_error("sim", "cannot make a file in memory for a picture");
    status = draw_chart(s, sweep, points, count, path);
    if (!status)
        report_page_picture(&s->page, s->page.count - 1, path);
    close(file);
    return status;
}

/* ---- the table ------------------------------------------------------------------------------------ */

int sim_sweep_check(const simulation *s, const sim_sweep *sweep)
{
    int64_t most = s->machine.ranks_per_node ? (int64_t)s->machine.nodes * s->machine.ranks_per_node : 4096;
    bool product = s->options->problem.op < WEFT_OP_ALL_REDUCE;

    if (product == (strcmp(sweep->name, "bytes") == 0) && strcmp(sweep->name, "ranks") != 0)
        return options_error("sim", "--sweep %s: %s has no such size", sweep->name, s->options->op_name);
    if (s->options->bytes_first != s->options->bytes_last)
        return options_error("sim", "--sweep %s: it takes one size of --bytes", sweep->name);
    if (strcmp(sweep->name, "ranks") == 0 && (sweep->first < 2 || sweep->last > most))
        return options_error("sim", "--sweep ranks: %s has %" PRId64 ", and two are the fewest",
                             s->machine.name, most);
    return 0;
}

int sim_sweep_show(simulation *s, const sim_sweep *sweep)
{
    point points[MOST_POINTS];
    int count = 0, status = 0;

    s->report.columns = columns;
    for (int64_t value = sweep->first; value <= sweep->last && count < MOST_POINTS && !status; value *= 2) {
        weft_problem problem = problem_at(s, sweep, value);

        report_progress(&s->report, "%s %" PRId64, sweep->name, value);
        points[count].value = value;
        status = simulate_point(s, &problem, &points[count]);
        if (!status)
            add_row(s, sweep, &problem, &points[count++]);
    }
    if (!status && s->options->svg)
        status = draw_chart(s, sweep, points, count, s->options->svg);
    if (!status && s->report.page)
        status = draw_into_page(s, sweep, points, count);
    return status;
}
