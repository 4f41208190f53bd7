#include "choose/machine.h"
#include "sim/published.h"

#include "core/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const published_parameter_names[PUBLISHED_PARAMETERS] = {
    "gflops", "link_gbs", "launch_graph_us", "launch_library_us", "multicast_us",
};

static bool shared_buffer(weft_op op)
{
    return op == WEFT_OP_ALL_GATHER || op == WEFT_OP_REDUCE_SCATTER || op == WEFT_OP_ALL_TO_ALL;
}

static bool read_row(char *line, published_row *row)
{
    char *words[14] = {0}, *rest = line;
    weft_problem *p = &row->problem;
    weft_op op;
    int count = 0;

    while (count < 14 && (words[count] = strsep(&rest, ",")))
        count++;
    if (count != 14)
        return false;
    memset(row, 0, sizeof(*row));
    snprintf(row->class_name, PUBLISHED_WORD, "%s", words[0]);
    snprintf(row->source, PUBLISHED_WORD, "%s", words[1]);
    snprintf(row->machine, PUBLISHED_WORD, "%s", words[2]);
    snprintf(row->how, PUBLISHED_WORD, "%s", words[5]);
    row->ranks = atoi(words[3]);
    row->product = strcmp(words[4], "gemm") == 0;
    row->graph = strcmp(words[6], "graph") == 0;
    row->us = atof(words[13]);
    if (!row->product && weft_op_parse(words[4], &op) != WEFT_OK)
        return false;
    weft_problem_init(p, row->product ? WEFT_OP_AG_GEMM : op);
    if (weft_dtype_parse(words[7], &p->dtype) || weft_dtype_parse(words[8], &p->wire_dtype))
        return false;
    p->d_dtype = p->dtype;
    p->m = atoll(words[9]);
    p->n = atoll(words[10]);
    p->k = atoll(words[11]);
    row->bytes = atoll(words[12]);
    p->count = row->bytes / (int64_t)weft_dtype_size(p->dtype) / (shared_buffer(p->op) ? row->ranks : 1);
    return row->us > 0 && row->ranks > 0;
}

int published_read(const char *path, published_row *rows)
{
    FILE *file = fopen(path, "r");
    char line[512];
    int count = 0, at = 0;

    if (!file) {
        fprintf(stderr, "cannot read %s\n", path);
        return -1;
    }
    while (fgets(line, sizeof(line), file)) {
        at++;
        if (line[0] == '#' || strncmp(line, "class,", 6) == 0)
            continue;
        if (count == PUBLISHED_MOST || !read_row(line, &rows[count])) {
            fprintf(stderr, "%s:%d: not a row\n", path, at);
            fclose(file);
            return -1;
        }
        count++;
    }
    fclose(file);
    return count;
}

bool published_is_fused(const published_row *row)
{
    return strcmp(row->class_name, "product") != 0 && strcmp(row->class_name, "unfused") != 0 &&
           strcmp(row->class_name, "collective") != 0;
}

static bool of_library(const published_row *row)
{
    return strcmp(row->how, "library") == 0 || strcmp(row->how, "ring") == 0 ||
           strcmp(row->how, "switch") == 0;
}

bool published_uses(const published_row *row, published_parameter parameter)
{
    bool product = row->problem.op <= WEFT_OP_GEMM_AS;

    switch (parameter) {
    case PUBLISHED_GFLOPS:
        return product;
    case PUBLISHED_LINK:
        return !of_library(row);
    case PUBLISHED_GRAPH:
        return row->graph;
    case PUBLISHED_LIBRARY:
        return of_library(row) && !row->graph && !row->product;
    case PUBLISHED_MULTICAST:
        return strcmp(row->how, "switch") == 0 ||
               (of_library(row) &&
                (row->problem.op == WEFT_OP_GEMM_AR || row->problem.op == WEFT_OP_ALL_REDUCE));
    default:
        return false;
    }
}

static double simulated_us(const weft_machine *machine, const published_row *row)
{
    weft_problem problem = row->problem;
    weft_sim_source source = {.problem = &problem, .world = row->ranks, .graph = row->graph};
    weft_error_text error = {0};
    weft_sim_result result = {0};

    if (weft_schedule_parse(row->how, &problem.schedule) ||
        weft_problem_resolve(&problem, row->ranks, &problem, &error)) {
        fprintf(stderr, "%s %s: %s\n", row->source, row->how, error.text);
        return NAN;
    }
    weft_choose_tiles(machine, row->ranks, &problem);
    if (weft_sim_run(machine, &source, WEFT_SIM_ALL, false, &result, &error)) {
        fprintf(stderr, "%s: %s\n", row->source, error.text);
        return NAN;
    }
    return result.us;
}

bool published_machine(const published_row *row, weft_machine *machine)
{
    size_t name = strcspn(row->machine, "@");
    weft_error_text error = {0};
    char text[PUBLISHED_WORD];

    snprintf(text, sizeof(text), "%.*s", (int)name, row->machine);
    if (weft_machine_find(text, machine, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return false;
    }
    if (row->machine[name])
        machine->link_gbs = atof(row->machine + name + 1);
    return true;
}

double published_predict(const published_row *row, const published_factors *factors)
{
    const weft_problem *p = &row->problem;
    weft_machine machine;

    if (!published_machine(row, &machine))
        return NAN;
    if (factors) {
        for (int i = 0; i < WEFT_MACHINE_DTYPES; i++)
            machine.gflops[i] *= factors->of[PUBLISHED_GFLOPS];
        machine.link_gbs *= factors->of[PUBLISHED_LINK];
        machine.launch_graph_us *= factors->of[PUBLISHED_GRAPH];
        machine.launch_library_us *= factors->of[PUBLISHED_LIBRARY];
        machine.multicast_us *= factors->of[PUBLISHED_MULTICAST];
    }
    if (strcmp(row->source, "weft") != 0) /* others' kernels have tiles as libraries have them */
        machine.crews = false;
    if (row->product)
        return weft_library_gemm_us(&machine, p->dtype, p->m, p->n, p->k);
    if (!of_library(row))
        return simulated_us(&machine, row);
    if (p->op < WEFT_OP_ALL_REDUCE)
        return weft_library_unfused_us(&machine, p, row->ranks, row->graph);
    return weft_library_collective_us(&machine, p, row->ranks,
                                      strcmp(row->how, "ring") == 0     ? WEFT_LIBRARY_RING
                                      : strcmp(row->how, "switch") == 0 ? WEFT_LIBRARY_SWITCH
                                                                        : WEFT_LIBRARY_FASTEST,
                                      row->graph);
}

static double misfit(const published_row *rows, int count, const char *without, published_parameter parameter,
                     const published_factors *factors)
{
    double sum = 0;

    for (int i = 0; i < count; i++)
        if (!published_is_fused(&rows[i]) && published_uses(&rows[i], parameter) &&
            (!without || strcmp(rows[i].source, without) != 0))
            sum += fabs(log(published_predict(&rows[i], factors) / rows[i].us));
    return sum;
}

/* Whether rows of the source have a say in the parameter; without them it stays what it is. */
static bool has_a_say(const published_row *rows, int count, const char *source, published_parameter parameter)
{
    for (int i = 0; i < count; i++)
        if ((!source || strcmp(rows[i].source, source) == 0) && !published_is_fused(&rows[i]) &&
            published_uses(&rows[i], parameter))
            return true;
    return false;
}

/* One parameter after another: few rows feel more than two of them. */
void published_fit(const published_row *rows, int count, const char *without, published_factors *factors)
{
    for (int i = 0; i < PUBLISHED_PARAMETERS; i++)
        factors->of[i] = 1;
    for (int i = 0; i < PUBLISHED_PARAMETERS; i++) {
        double best, kept = 1;

        if (!has_a_say(rows, count, without, (published_parameter)i))
            continue;
        best = misfit(rows, count, without, (published_parameter)i, factors);
        for (double f = 0.5; f < 2; f *= 1.12) {
            double sum;

            factors->of[i] = f;
            sum = misfit(rows, count, without, (published_parameter)i, factors);
            if (sum < best) {
                best = sum;
                kept = f;
            }
        }
        factors->of[i] = kept;
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int published_errors(const published_row *rows, const double *predicted, int count, const char *class_name,
                     const char *source, double *errors)
{
    int found = 0;

    for (int i = 0; i < count; i++)
        if (!published_is_fused(&rows[i]) && (!class_name || strcmp(rows[i].class_name, class_name) == 0) &&
            (!source || strcmp(rows[i].source, source) == 0))
            errors[found++] = fabs(predicted[i] / rows[i].us - 1);
    qsort(errors, (size_t)found, sizeof(double), by_size);
    return found;
}

int published_fit_class(const published_row *rows, const double *simulated, int count, const char *class_name,
                        double *a, double *b, double *predicted)
{
    double s1 = 0, sx = 0, sxx = 0, sy = 0, sxy = 0, det;
    int found = 0;

    /* Least squares of (a + b x) / y - 1. */
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].class_name, class_name) == 0) {
            double y = rows[i].us, u = 1 / y, x = simulated[i] / y;

            s1 += u * u;
            sx += u * x;
            sxx += x * x;
            sy += u;
            sxy += x;
            found++;
        }
    det = s1 * sxx - sx * sx;
    *a = found > 1 && det > 1e-12 * s1 * sxx ? (sxx * sy - sx * sxy) / det : 0;
    *a = fmax(0, *a);
    *b = (sxy - *a * sx) / sxx;
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].class_name, class_name) == 0)
            predicted[i] = *a + *b * simulated[i];
    return found;
}
