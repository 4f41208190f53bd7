/* Rows as a table or as JSON. See report.h. */
#include "report/report.h"

#include "core/clock.h"
#include "report/page.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t PROGRESS_AFTER_NS = INT64_C(2000000000);
static const int64_t PROGRESS_EVERY_NS = INT64_C(100000000);
static const int64_t PROGRESS_LINE_NS = INT64_C(10000000000); /* where there is no terminal */

void report_open(report *r, FILE *out, bool json, const report_column *columns)
{
    memset(r, 0, sizeof *r);
    r->out = out;
    r->json = json;
    r->columns = columns;
    r->start_ns = weft_clock_ns();
    /* Ranks that another launcher started write to its pipes: what it tells them about its own terminal
     * counts. */
    r->terminal = isatty(STDERR_FILENO) || getenv("WEFT_BENCH_TERMINAL");
}

/* ---- values --------------------------------------------------------------------------------------- */

static report_value *add(report *r, const char *key, int kind)
{
    static report_value overflow;
    report_value *value = r->count < REPORT_MOST_VALUES ? &r->values[r->count++] : &overflow;

    value->key = key;
    value->kind = kind;
    value->spread_pct = NAN;
    value->shown_only = false;
    return value;
}

void report_text(report *r, const char *key, const char *format, ...)
{
    report_value *value = add(r, key, REPORT_VALUE_TEXT);
    va_list args;

    va_start(args, format);
    vsnprintf(value->text, sizeof value->text, format, args);
    va_end(args);
}

void report_shown(report *r, const char *key, const char *format, ...)
{
    report_value *value = add(r, key, REPORT_VALUE_TEXT);
    va_list args;

    va_start(args, format);
    vsnprintf(value->text, sizeof value->text, format, args);
    va_end(args);
    value->shown_only = true;
}

void report_int(report *r, const char *key, int64_t number)
{
    add(r, key, REPORT_VALUE_INT)->integer = number;
}

void report_real(report *r, const char *key, double number)
{
    add(r, key, REPORT_VALUE_REAL)->real = number;
}

void report_bool(report *r, const char *key, bool truth)
{
    add(r, key, REPORT_VALUE_BOOL)->integer = truth;
    if (!truth && strcmp(key, "ok") == 0)
        r->failed = true;
}

void report_time(report *r, const char *key, report_stats stats)
{
    report_value *value = add(r, key, REPORT_VALUE_REAL);

    value->real = stats.median;
    value->spread_pct = (stats.high - stats.low) / 2 / stats.median * 100;
    value->low = stats.low;
    value->high = stats.high;
    r->wide |= value->spread_pct > 50;
}

report_stats report_exact(double us)
{
    return (report_stats){us, us, us};
}

void report_hidden(report *r, report_stats gemm, report_stats unfused, report_stats fused)
{
    double spread = fmax(unfused.high - unfused.low, gemm.high - gemm.low) / 2;
    double hides = unfused.median - gemm.median, saved = unfused.median - fused.median;
    bool measurable = hides > spread && hides > 0;

    report_real(r, "hidden_pct", measurable ? saved / hides * 100 : NAN);
    if (saved < -fmax(spread, (fused.high - fused.low) / 2))
        report_shown(r, "hidden", "slower");
    else if (measurable) /* what is lost within the spread is not known to be lost */
        report_shown(r, "hidden", "%.0f%%", fmax(saved / hides * 100, 0));
}

static const report_value *find(const report *r, const char *key)
{
    for (int i = 0; i < r->count; i++) {
        if (strcmp(r->values[i].key, key) == 0)
            return &r->values[i];
    }
    return NULL;
}

/* ---- JSON ----------------------------------------------------------------------------------------- */

/* The bytes of the UTF-8 sequence that begins here; 0 where none does. */
static int sequence(const unsigned char *text)
{
    int bytes = *text < 0x80   ? 1
                : *text < 0xc2 ? 0
                : *text < 0xe0 ? 2
                : *text < 0xf0 ? 3
                : *text < 0xf5 ? 4
                               : 0;

    for (int i = 1; i < bytes; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    /* Longer than needed, a surrogate, or past the last character. */
    if ((*text == 0xe0 && text[1] < 0xa0) || (*text == 0xed && text[1] > 0x9f) ||
        (*text == 0xf0 && text[1] < 0x90) || (*text == 0xf4 && text[1] > 0x8f))
        return 0;
    return bytes;
}

void report_json_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        int bytes = sequence(c);

        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(out, "\\u%04x", *c);
        else if (bytes)
            fwrite(c, 1, (size_t)bytes, out);
        else
            fputs("\\ufffd", out);
        c += bytes ? bytes : 1;
    }
    fputc('"', out);
}

static void print_json_real(FILE *out, double number)
{
    if (isfinite(number))
        fprintf(out, "%.6g", number);
    else
        fputs("null", out);
}

static void print_json(const report *r, FILE *out)
{
    bool first = true;

    for (int i = 0; i < r->count; i++) {
        const report_value *value = &r->values[i];
        if (value->shown_only)
            continue;
        fputs(first ? "{" : ", ", out);
        first = false;
        report_json_string(out, value->key);
        fputs(": ", out);
        switch (value->kind) {
        case REPORT_VALUE_TEXT:
            report_json_string(out, value->text);
            break;
        case REPORT_VALUE_INT:
            fprintf(out, "%" PRId64, value->integer);
            break;
        case REPORT_VALUE_BOOL:
            fputs(value->integer ? "true" : "false", out);
            break;
        case REPORT_VALUE_REAL:
            print_json_real(out, value->real);
            if (isfinite(value->spread_pct))
                fprintf(out, ", \"%s_low\": %.6g, \"%s_high\": %.6g", value->key, value->low, value->key,
                        value->high);
            break;
        }
    }
    fputs("}\n", out);
}

/* ---- the table ------------------------------------------------------------------------------------ */

static const char *const SEPARATOR = " │ ";

/* Characters a terminal shows: bytes that do not continue a UTF-8 sequence. */
static int shown(const char *text)
{
    int count = 0;

    for (; *text; text++)
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

static void print_cell(FILE *out, const char *text, int width, bool left)
{
    int pad = width - shown(text);

    if (pad < 0)
        pad = 0;
    fprintf(out, "%*s%s%*s", left ? 0 : pad, "", text, left ? pad : 0, "");
}

static void format_time(const report_value *value, char *text, size_t bytes)
{
    double us = value->real;
    int decimals = us < 10 ? 2 : us < 1000 ? 1 : 0;

    if (isfinite(value->spread_pct))
        snprintf(text, bytes, "%.*f ±%2.0f%%", decimals, us, value->spread_pct);
    else
        snprintf(text, bytes, "%.*f", decimals, us);
}

static void format_value(const report_value *value, report_format format, char *text, size_t bytes)
{
    if (value && value->kind == REPORT_VALUE_TEXT)
        snprintf(text, bytes, "%s", value->text);
    else if (value && value->kind == REPORT_VALUE_BOOL)
        snprintf(text, bytes, "%s", value->integer ? "yes" : strcmp(value->key, "ok") == 0 ? "NO" : "no");
    else if (value && value->kind == REPORT_VALUE_INT)
        snprintf(text, bytes, "%" PRId64, value->integer);
    else if (!value || !isfinite(value->real))
        snprintf(text, bytes, "–");
    else if (format == REPORT_TIME)
        format_time(value, text, bytes);
    else if (format == REPORT_RATIO)
        snprintf(text, bytes, "%.3f", value->real);
    else if (format == REPORT_PERCENT)
        snprintf(text, bytes, "%.0f%%", value->real);
    else if (format == REPORT_ERROR)
        snprintf(text, bytes, value->real ? "%.1e" : "exact", value->real);
    else if (format == REPORT_RATE)
        snprintf(text, bytes, "%.*f", value->real < 10 ? 2 : 1, value->real);
    else
        snprintf(text, bytes, "%g", value->real);
}

static void print_header(report *r)
{
    for (const report_column *c = r->columns; c->key; c++) {
        fputs(c == r->columns ? "" : SEPARATOR, r->out);
        print_cell(r->out, c->title, c->width, false);
    }
    fputc('\n', r->out);
    for (const report_column *c = r->columns; c->key; c++) {
        fputs(c == r->columns ? "" : "─┼─", r->out);
        for (int i = 0; i < c->width; i++)
            fputs("─", r->out);
    }
    fputc('\n', r->out);
}

static void wipe_progress(report *r)
{
    if (r->progress_shown)
        fputs("\r\033[K", stderr);
    r->progress_shown = false;
}

void report_row(report *r)
{
    char text[REPORT_TEXT_BYTES];

    wipe_progress(r);
    if (!r->out) {
        r->count = 0;
        return;
    }
    if (r->page) {
        fputs(r->page->count++ ? "," : "", r->page->rows);
        print_json(r, r->page->rows);
    }
    if (r->json) {
        print_json(r, r->out);
    } else {
        if (!r->header_done)
            print_header(r);
        r->header_done = true;
        for (const report_column *c = r->columns; c->key; c++) {
            const report_value *value = find(r, c->key);
            fputs(c == r->columns ? "" : SEPARATOR, r->out);
            format_value(value, c->format, text, sizeof text);
            print_cell(r->out, text, c->width, value && value->kind == REPORT_VALUE_TEXT);
        }
        fputc('\n', r->out);
    }
    fflush(r->out);
    r->count = 0;
    r->rows++;
    r->wide_rows += r->wide;
    r->wide = false;
}

/* ---- notes and progress --------------------------------------------------------------------------- */

void report_note(report *r, const char *format, ...)
{
    va_list args;

    if (r->json || !r->out)
        return;
    wipe_progress(r);
    va_start(args, format);
    vfprintf(r->out, format, args);
    va_end(args);
    fputc('\n', r->out);
    fflush(r->out);
}

void report_progress(report *r, const char *format, ...)
{
    int64_t now = weft_clock_ns();
    char line[256];
    va_list args;

    if (!r->out || now - r->start_ns < (r->terminal ? PROGRESS_AFTER_NS : PROGRESS_LINE_NS) ||
        now - r->progress_ns < (r->terminal ? PROGRESS_EVERY_NS : PROGRESS_LINE_NS))
        return;
    r->progress_ns = now;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    /* One call each: other ranks may write there too. */
    fprintf(stderr, r->terminal ? "\r\033[K%3.0f s  %s" : "%3.0f s  %s\n", (double)(now - r->start_ns) * 1e-9,
            line);
    fflush(stderr);
    r->progress_shown = r->terminal;
}

int report_close(report *r)
{
    wipe_progress(r);
    if (r->wide_rows > r->rows / 2)
        report_note(
            r, "spreads beyond half of a time: something else ran on these CPUs, and the times tell little");
    if (r->out)
        fflush(r->out);
    return r->failed ? 1 : 0;
}

/* ---- statistics ----------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int count, double q)
{
    double position = q * (count - 1);
    int below = (int)position;
    double part = position - below;

    return below + 1 < count ? sorted[below] * (1 - part) + sorted[below + 1] * part : sorted[below];
}

report_stats report_summarise(double *samples, int count)
{
    if (count < 1)
        return report_missing();
    qsort(samples, (size_t)count, sizeof *samples, compare_doubles);
    return (report_stats){quantile(samples, count, 0.5), quantile(samples, count, 0.1),
                          quantile(samples, count, 0.9)};
}

report_stats report_missing(void)
{
    return (report_stats){NAN, NAN, NAN};
}
