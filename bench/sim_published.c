/*
 * How far the simulator is off from what others published: every row of tests/sim/published.csv, then the
 * errors by class and by source, with the descriptions as they are and, for each source, as fitted without
 * its rows.
 *
 *     sim_published [FILE.csv]
 */
#include "sim/published.h"

#include <math.h>
#include <string.h>

static published_row rows[PUBLISHED_MOST];
static double predicted[PUBLISHED_MOST], errors[PUBLISHED_MOST];

static void summary(const char *what, int count)
{
    int near = 0;

    for (int i = 0; i < count; i++)
        near += errors[i] <= 0.15;
    if (count)
        printf("%-44s %3d rows: median %5.1f %%, within 15 %%: %3d %%, worst %5.1f %%\n", what, count,
               50 * (errors[count / 2] + errors[(count - 1) / 2]), 100 * near / count,
               100 * errors[count - 1]);
}

/* Calls `each` with every name that the field of a row at `offset` has, once. */
static void each_name(int count, size_t offset, void (*each)(const char *name, int count))
{
    for (int i = 0; i < count; i++) {
        const char *name = (const char *)&rows[i] + offset;
        bool seen = false;

        for (int j = 0; j < i && !seen; j++)
            seen = strcmp((const char *)&rows[j] + offset, name) == 0;
        if (!seen)
            each(name, count);
    }
}

static void of_source(const char *name, int count)
{
    summary(name, published_errors(rows, predicted, count, NULL, name, errors));
}

static void without_source(const char *name, int count)
{
    double other[PUBLISHED_MOST];
    published_factors factors;
    char text[64];

    if (!published_errors(rows, predicted, count, NULL, name, errors))
        return;
    published_fit(rows, count, name, &factors);
    for (int i = 0; i < count; i++)
        other[i] = strcmp(rows[i].source, name) == 0 ? published_predict(&rows[i], &factors) : 0;
    snprintf(text, sizeof(text), "%s, fitted without it", name);
    summary(text, published_errors(rows, other, count, NULL, name, errors));
}

static void of_class(const char *name, int count)
{
    double a, b;
    int found = 0;
    char text[96];

    for (int i = 0; i < count; i++)
        found += strcmp(rows[i].class_name, name) == 0 && published_is_fused(&rows[i]);
    if (!found) {
        summary(name, published_errors(rows, predicted, count, name, NULL, errors));
        return;
    }
    published_fit_class(rows, predicted, count, name, &a, &b, predicted);
    found = 0;
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].class_name, name) == 0)
            errors[found++] = fabs(predicted[i] / rows[i].us - 1);
    for (int i = 1; i < found; i++)
        for (int j = i; j > 0 && errors[j] < errors[j - 1]; j--) {
            double swap = errors[j];

            errors[j] = errors[j - 1];
            errors[j - 1] = swap;
        }
    snprintf(text, sizeof(text), "%s: %.0f us + %.2f x", name, a, b);
    summary(text, found);
}

int main(int argc, char **argv)
{
    published_factors factors;
    int count = published_read(argc > 1 ? argv[1] : PUBLISHED_CSV, rows);

    if (count < 0)
        return 1;
    printf("%-18s %-17s %-10s %-15s %-31s %-26s %10s %10s\n", "class", "source", "machine", "op", "schedule",
           "size", "us", "predicted");
    for (int i = 0; i < count; i++) {
        const weft_problem *p = &rows[i].problem;
        char size[64];

        predicted[i] = published_predict(&rows[i], NULL);
        snprintf(size, sizeof(size), "%lld %lld %lld", (long long)p->m, (long long)p->n, (long long)p->k);
        if (p->op >= WEFT_OP_ALL_REDUCE)
            snprintf(size, sizeof(size), "%lld bytes", (long long)rows[i].bytes);
        printf("%-18s %-17s %-10s %-15s %-31s %-26s %10.1f %10.1f %+6.1f %%\n", rows[i].class_name,
               rows[i].source, rows[i].machine, rows[i].product ? "gemm" : weft_op_name(p->op), rows[i].how,
               size, rows[i].us, predicted[i], 100 * (predicted[i] / rows[i].us - 1));
    }
    puts("\nby source");
    each_name(count, offsetof(published_row, source), of_source);
    puts("\nby source, with parameters fitted on the others");
    each_name(count, offsetof(published_row, source), without_source);
    puts("\nby class (others' fused kernels: a and b of a + b x simulated are fitted on the class)");
    each_name(count, offsetof(published_row, class_name), of_class);
    published_fit(rows, count, NULL, &factors);
    puts("\nfitted on all rows, as multiples of the descriptions");
    for (int i = 0; i < PUBLISHED_PARAMETERS; i++)
        printf("%-20s %.2f\n", published_parameter_names[i], factors.of[i]);
    return 0;
}
