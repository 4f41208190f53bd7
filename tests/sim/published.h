/*
 * The published rows (published.csv) and what the simulator says about them. Shared by test_published.c,
 * which holds the accuracy reached, and bench/sim_error, which shows it.
 */
#ifndef WEFT_TESTS_SIM_PUBLISHED_H
#define WEFT_TESTS_SIM_PUBLISHED_H

#include "sim/library.h"
#include "sim/sim.h"

enum { PUBLISHED_MOST = 256, PUBLISHED_WORD = 40 };

typedef struct published_row {
    char class_name[PUBLISHED_WORD], source[PUBLISHED_WORD], machine[PUBLISHED_WORD], how[PUBLISHED_WORD];
    int ranks;
    bool product; /* one device's alone */
    bool graph;
    weft_problem problem;
    int64_t bytes;
    double us;
} published_row;

/* The parameters of descriptions that were fitted on rows, not taken from a datasheet or a published rate. */
typedef enum published_parameter {
    PUBLISHED_GFLOPS,
    PUBLISHED_LINK,
    PUBLISHED_GRAPH,
    PUBLISHED_LIBRARY,
    PUBLISHED_MULTICAST,
    PUBLISHED_PARAMETERS
} published_parameter;

/* Each as a multiple of what the description has. */
typedef struct published_factors {
    double of[PUBLISHED_PARAMETERS];
} published_factors;

extern const char *const published_parameter_names[PUBLISHED_PARAMETERS];

/* Reads the rows; their number, or -1 with a line on standard error. */
int published_read(const char *path, published_row *rows);

/* The description of its machine, whose name may end with @ and the GB/s of a link; false with a line on
 * standard error. */
bool published_machine(const published_row *row, weft_machine *machine);

/* What the simulator says; NAN with a line on standard error where it refuses. NULL: the descriptions as they
 * are. */
double published_predict(const published_row *row, const published_factors *factors);

/* Others' fused kernels, which no description is fitted on. */
bool published_is_fused(const published_row *row);

/* Whether a parameter has a part in the row's time. */
bool published_uses(const published_row *row, published_parameter parameter);

/* Fits the factors on all rows but those of a source (NULL: all), least absolute logarithms. */
void published_fit(const published_row *rows, int count, const char *without, published_factors *factors);

/* |predicted / published - 1| of all rows of a class and source (NULL: any) that are no one's fused kernels;
 * their number. `errors` has them in ascending order. */
int published_errors(const published_row *rows, const double *predicted, int count, const char *class_name,
                     const char *source, double *errors);

/*
 * Fused kernels of one class: a + b times what the simulator says of weft's schedule, the two numbers fitted
 * on the class. Returns how many rows it has; writes their predictions.
 */
int published_fit_class(const published_row *rows, const double *simulated, int count, const char *class_name,
                        double *a, double *b, double *predicted);

#endif
