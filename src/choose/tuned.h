/*
 * What `weft tune` found fastest, kept in a file: a line for a machine, a version of weft and a problem.
 * `auto` takes it before it asks the simulator or a rule.
 *
 * The file is $WEFT_TUNE, or $XDG_CACHE_HOME/weft/tuned, or ~/.cache/weft/tuned; WEFT_TUNE=off keeps and
 * reads none. A file that has a line which is none is an error, as a description is: what it says must not be
 * ignored without a word.
 */
#ifndef WEFT_CHOOSE_TUNED_H
#define WEFT_CHOOSE_TUNED_H

#include "plan/plan.h"
#include "sim/machine.h"

typedef struct weft_tuned {
    weft_schedule schedule;
    weft_tuning tuning; /* all but sums_stay and grain_n, which follow */
    double us;          /* when it was tuned */
} weft_tuned;

/* What lines are kept for, where a backend does not say another machine: this one's CPU ranks that have so
 * many cores each, on nodes whose sizes `nodes` is the hash of (0: one node). */
uint64_t weft_tuned_this(int cores, uint64_t nodes);

/* Whether a problem leaves open what is tuned: it is taken whole, or not at all. Workers are what a rank has.
 */
bool weft_tuned_asks(const weft_problem *problem);

/* Where the file is; an empty path where there is none to be. */
weft_status weft_tuned_path(char *path, size_t bytes, weft_error_text *error);

/* Whether there is one, or nobody can say. */
bool weft_tuned_there(void);

/* What the file says as it is now, NULL where there is none; it stays as it is, whatever becomes of the file,
 * until it is closed. */
typedef struct weft_tuned_file weft_tuned_file;
weft_status weft_tuned_open(weft_tuned_file **file, weft_error_text *error);
void weft_tuned_close(weft_tuned_file *file);

/* Of all that this version finds in it, equal where the same is found; 0: nothing. */
uint64_t weft_tuned_hash(const weft_tuned_file *file);

/* What was found for a resolved problem whose schedule is AUTO and whose tuning is open; false, or *found:
 * nothing. The second looks in the file as it is now. */
bool weft_tuned_find_in(const weft_tuned_file *file, uint64_t machine, const weft_problem *problem, int world,
                        weft_tuned *tuned);
weft_status weft_tuned_find(uint64_t machine, const weft_problem *problem, int world, weft_tuned *tuned,
                            bool *found, weft_error_text *error);

/* Whether something was found for such a problem, but for another machine, other nodes or cores, or another
 * version, and nothing for this one: then it counts for nothing, and people are told. */
#define WEFT_TUNED_ELSEWHERE                                                                                 \
    "what weft tune kept for this problem is for another machine, other nodes or cores, or another version"
bool weft_tuned_elsewhere(uint64_t machine, const weft_problem *problem, int world);

/* How many lines there are, and how many of this version for ranks on one node of this CPU that have up to so
 * many cores each. */
weft_status weft_tuned_count(int cores, int *lines, int *here, weft_error_text *error);

/* Whether the file, where there is one, can be read to its end. */
weft_status weft_tuned_readable(weft_error_text *error);

/* Whether something can be kept; asked before minutes are spent on finding it. */
weft_status weft_tuned_prepare(weft_error_text *error);

/* Keeps it, in place of what was there for the same machine, version and problem. `what` is a line for
 * people. */
weft_status weft_tuned_keep(uint64_t machine, const weft_problem *problem, int world, const weft_tuned *tuned,
                            const char *what, weft_error_text *error);

#endif
