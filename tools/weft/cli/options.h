/*
 * The flags that describe a problem and how to measure it, read in one place for bench, plan and sim.
 *
 * Every flag is a row of a table: its names as typed, where its value goes, its range and one line of help.
 * --help is printed from the same rows. A command adds rows of its own (options_flag tables). A row says
 * which operations it means something to; anywhere else it is an error, not ignored.
 */
#ifndef WEFT_TOOLS_CLI_OPTIONS_H
#define WEFT_TOOLS_CLI_OPTIONS_H

#include <weft/weft.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum options_kind {
    OPTIONS_SWITCH, /* bool: no value */
    OPTIONS_INT,    /* int64_t in [min, max] */
    OPTIONS_REAL,   /* double in [min, max] */
    OPTIONS_TEXT,   /* const char *, points into argv */
    OPTIONS_CALL    /* options_reader: anything with its own syntax */
} options_kind;

/* Reads one value. Returns NULL, or what the value should have been ("one of a, b"). */
typedef const char *options_reader(void *target, const char *value);

typedef struct options_flag {
    const char *names; /* "-n|--ranks|--tp": as typed */
    const char *value; /* what help calls the value; NULL for a switch */
    options_kind kind;
    void *target;
    options_reader *read; /* OPTIONS_CALL */
    double min, max;      /* OPTIONS_INT, OPTIONS_REAL */
    const char *ops; /* the operations it belongs to: words, also "products", "collectives"; NULL = any */
    const char *help;
} options_flag;

typedef struct weft_options {
    weft_problem problem; /* as asked: schedule may be AUTO, tiles and workers 0 */
    const char *op_name;  /* the operation asked for, NULL when none was */
    bool is_plan_op;      /* op_name is one of weft_op, and problem.op is it */
    bool sizes_given;     /* any of m, n, k */
    bool dtype_given;
    bool schedule_given;
    bool pack_given; /* --pack; else B is packed in the run, or beforehand where the set is about weights that
                        stay */
    bool schedule_all;           /* --schedule all: compare every one */
    const char *impl;            /* --schedule as typed: operations that are not plans read it themselves */
    const char *schedule_wanted; /* not a schedule: what it should have been */
    const char *set;             /* --set: a list of shapes by name */
    double scale;                /* what the set's extents are divided by; 0 = the set's default */
    int64_t bytes_first, bytes_last; /* collectives: message sizes, doubled from first to last; 0 = default */
    int64_t ranks;
    bool ranks_given;
    int64_t threads;    /* compute threads of a rank; 0 = cores / ranks, at least 1 */
    int64_t iterations; /* 0 = 100, fewer when a run is long */
    int64_t warmup;
    double eps; /* 0 = the derived bound */
    uint64_t seed;
    weft_dtype wire_dtype;
    bool wire_given;
    bool cuda;
    bool json;
    bool help;
    const char *trace, *svg, *html;

    const char *problem_flag; /* the first that was typed of those that say what the problem is, or how it is
                                 made; NULL: none */

    /* what the readers leave for the end of the parse */
    const char *collective;
    int numbers; /* plain numbers seen: m, n, k */
} weft_options;

/*
 * Reads the arguments after the command's name. `ops` lists operations beside those of weft_op that this
 * command knows (NULL-terminated, may be NULL); `flags` are the command's own rows (ended by a NULL name, may
 * be NULL). Returns 0, or 2 after one line on standard error. With --help it returns 0 and sets `help`;
 * nothing else need be right then.
 */
int options_parse(weft_options *options, const char *command, const char *const *ops,
                  const options_flag *flags, int argc, char **argv);

/* Prints the rows of the problem flags and of `flags`, in that order, as `weft COMMAND --help` shows them. */
void options_print_help(FILE *file, const char *command, const options_flag *flags);

/* One line on standard error, "weft COMMAND: sentence"; returns 2, the status of a call that cannot be right.
 */
int options_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether a file can be written, said before the measurement, not after it: 0, or 2 after a line. NULL can.
 */
int options_check_writable(const char *command, const char *flag, const char *path);

/* Threads a rank computes with when --threads was not given. */
int options_threads(const weft_options *options);

#endif
