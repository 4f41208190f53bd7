/*
 * What bench and sim print: the same rows as a table for people or as JSON objects for programs.
 *
 * A row is a list of named values. With --json every value of a row is printed, in the order set, one object
 * per line, and nothing else goes to standard output. Without it the columns of the report pick values by
 * name. A value that was not measured is NaN: null in JSON, a dash in the table.
 *
 * Progress is told on standard error. On a terminal it is one line, which appears when the command has run
 * for two seconds and is wiped before anything else is printed; elsewhere it is a line now and then, every
 * ten seconds.
 */
#ifndef WEFT_TOOLS_REPORT_REPORT_H
#define WEFT_TOOLS_REPORT_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* How a column shows its value. */
typedef enum report_format {
    REPORT_PLAIN,   /* text, whole numbers, booleans (yes / NO) */
    REPORT_TIME,    /* microseconds; with the spread when the row has one: "812.4 ±1%" */
    REPORT_RATIO,   /* 1.234 */
    REPORT_PERCENT, /* 87 % */
    REPORT_ERROR,   /* 1.2e-05 */
    REPORT_RATE     /* 123.4 */
} report_format;

typedef struct report_column {
    const char *title;
    const char *key; /* NULL ends a list of columns */
    report_format format;
    int width;
} report_column;

/* Median and the middle 80 % of samples. */
typedef struct report_stats {
    double median, low, high;
} report_stats;

enum { REPORT_MOST_VALUES = 64, REPORT_TEXT_BYTES = 128 };

typedef struct report_value {
    const char *key;
    enum { REPORT_VALUE_TEXT, REPORT_VALUE_INT, REPORT_VALUE_REAL, REPORT_VALUE_BOOL } kind;
    char text[REPORT_TEXT_BYTES];
    int64_t integer;
    double real;
    double low, high, spread_pct; /* of a time; spread NaN = none */
    bool shown_only;              /* not in JSON */
} report_value;

typedef struct report {
    FILE *out;
    bool json;
    const report_column *columns;
    bool header_done;
    bool failed;         /* a row with ok = false was printed */
    int rows, wide_rows; /* printed; of them with a time whose spread is beyond half of it */
    bool wide;           /* the row being made is one */
    int64_t start_ns, progress_ns;
    bool terminal, progress_shown;
    struct report_page *page; /* gets the rows too; NULL: none. See page.h */
    report_value values[REPORT_MOST_VALUES];
    int count;
} report;

/* `out` NULL: a report that prints nothing, for ranks other than 0. */
void report_open(report *r, FILE *out, bool json, const report_column *columns);

/* The values of the row being made. Keys must outlive the row. */
void report_text(report *r, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
void report_shown(report *r, const char *key, const char *format, ...) /* in the table only */
    __attribute__((format(printf, 3, 4)));
void report_int(report *r, const char *key, int64_t value);
void report_real(report *r, const char *key, double value);
void report_bool(report *r, const char *key, bool value);

/* A time in microseconds with its spread; adds <key>_low and <key>_high (10th and 90th percentile) to JSON.
 */
void report_time(report *r, const char *key, report_stats stats);

/*
 * The share of the communication that costs no time, (unfused - fused) / (unfused - GEMM only): `hidden_pct`
 * in JSON, `hidden` in the table. A product whose communication does not stand out of the spread has none
 * (null, a dash); one that loses to unfused reads "slower" in the table, and less than 0 in JSON.
 */
void report_hidden(report *r, report_stats gemm, report_stats unfused, report_stats fused);

/* A time without a spread. */
report_stats report_exact(double us);

/* Prints the row made since the last one. A value `ok` = false is remembered for report_close. */
void report_row(report *r);

/* What a REPORT_TIME is, for the legend above a table. */
#define REPORT_TIME_LEGEND "medians in µs ± half the width of the middle 80 %%"

/* A sentence for people; with --json nothing. */
void report_note(report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Replaces the progress line; see above for when it is shown. */
void report_progress(report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A string as JSON has it. Names come from files and commands: what is not UTF-8 in them becomes the
 * character that says so. */
void report_json_string(FILE *out, const char *text);

/* Ends the table, and says so where the spreads are too wide for most rows to tell anything. Returns the exit
 * status: 1 when a row was not ok. */
int report_close(report *r);

/* Sorts the samples. Empty: all NaN. */
report_stats report_summarise(double *samples, int count);

/* The statistics of something that was not measured. */
report_stats report_missing(void);

#endif
