/*
 * What `weft calibrate` measures, apart from how it prints it. All measurements run on one thread per core,
 * pinned, each the owner of a rank's buffers, as ranks of a run would be.
 */
#ifndef WEFT_TOOLS_CALIBRATE_CALIBRATE_H
#define WEFT_TOOLS_CALIBRATE_CALIBRATE_H

#include "gemm/gemm.h"
#include "sim/machine.h"

enum { CALIBRATE_MOST_CORES = 256, CALIBRATE_MOST_GPUS = 8 };

/* One thread's piece of a measurement. */
typedef struct calibrate_job {
    void *arg;
    /* Fresh data, not timed; then, from a common start on, the work. `rank` owns what it prepares. */
    void (*prepare)(void *arg, int rank, int iteration);
    void (*work)(void *arg, int rank);
    int workers;     /* ranks 0 .. workers-1 do the work; all prepare */
    bool loose;      /* ranks are not pinned: they have threads of their own beside them */
    double seconds;  /* about how long to repeat it, where calibrate_pace is 1 */
    double quantile; /* of the times that is the answer; 0 = the lower quartile */
} calibrate_job;

/* The longest time a rank took, in nanoseconds: the lower quartile over repetitions, as other processes of
 * the machine can only add to it. Only repetitions count in which every core was its own, where there are
 * any. */
double calibrate_time(int cores, const calibrate_job *job);

/* From here on jobs are repeated for so many times their seconds. */
void calibrate_pace(double times);

/* Whether that is less than asked for: rounds are fewer then. */
bool calibrate_hurries(void);

/* Whole pages, which have been touched; NULL without memory. */
void *calibrate_room(size_t bytes);

/* How often cores were slower than they can be, since the last call. */
typedef struct calibrate_company {
    int jobs, disturbed; /* of which so many found too few repetitions in which cores were their own */
    bool misled;         /* what a core can do was learnt only in the midst of them: some may be disturbed */
} calibrate_company;

calibrate_company calibrate_company_kept(void);
bool calibrate_company_last(void); /* whether the last job was disturbed */

/* One core's eye on whether it is as fast as it can be; sights are bits, for what several see. */
typedef struct calibrate_watch calibrate_watch;
typedef enum calibrate_sight {
    CALIBRATE_ALONE = 0, /* as fast as ever */
    CALIBRATE_DISTURBED = 1,
    CALIBRATE_NEVER_SO_GOOD = 2 /* alone, and all that came before was not */
} calibrate_sight;

calibrate_watch *calibrate_watch_new(void); /* NULL: there cannot be one */
void calibrate_watch_free(calibrate_watch *w);
calibrate_sight calibrate_watch_look(calibrate_watch *w,
                                     int core); /* by the thread on it; some microseconds */

/* How far the middle three of five rounds of measuring products of a type were apart, as a share of their
 * median rate; 0: none were made. */
typedef struct calibrate_spread {
    double of[WEFT_MACHINE_DTYPES];
} calibrate_spread;

/* Each fills its part of the description; 0, or 1 after a line on standard error. */
int calibrate_memory(int cores, weft_machine *machine);
int calibrate_products(int cores, weft_machine *machine, calibrate_spread *spread);
int calibrate_few_rows(int cores, const weft_binding *bind, weft_dtype dtype, weft_machine *machine);
int calibrate_runs(int cores, weft_machine *machine);

/* What the GPUs are, beside what was measured of them. */
typedef struct calibrate_gpu {
    int gpus;         /* with one, links are those of `like` */
    const char *like; /* the shipped description that says what cannot be measured */
    char name[128];
} calibrate_gpu;

/* Says what comes next. */
typedef void calibrate_said(const char *what);

/* The GPUs of this machine, with products of `extent` rows, columns and k. 0, or the exit status after a line
 * on standard error. */
int calibrate_gpus(int64_t extent, calibrate_said *say, weft_machine *machine, calibrate_gpu *gpu);

#endif
