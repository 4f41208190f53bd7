/*
 * How far predictions may be off from times that others published (published.csv), and from weft's own on one
 * H200 behind an emulated link (measured.csv). The descriptions' fitted parameters are in published.h; none
 * has fewer than five rows, and the fit is repeated: it must lead to what the files say. Then for every
 * source the parameters are fitted without its rows, and its rows predicted. bench/sim_published shows all
 * rows.
 */
#include "support/check.h"
#include "sim/published.h"
#include "sim/trust.h"

#include <math.h>

static published_row rows[PUBLISHED_MOST];
static double predicted[PUBLISHED_MOST], errors[PUBLISHED_MOST];

static double median(int count)
{
    return (errors[count / 2] + errors[(count - 1) / 2]) / 2;
}

static void within(const char *what, int count, double middle, double worst)
{
    CHECK(count > 0 && median(count) <= middle && errors[count - 1] <= worst);
    if (count > 0 && (median(count) > middle || errors[count - 1] > worst))
        fprintf(stderr, "%s: median error %.1f %%, worst %.1f %%\n", what, 100 * median(count),
                100 * errors[count - 1]);
}

static int predict_all(const char *path)
{
    int count = published_read(path, rows);

    CHECK(count > 0);
    for (int i = 0; i < count; i++) {
        predicted[i] = published_predict(&rows[i], NULL);
        CHECK(isfinite(predicted[i]) && predicted[i] > 0);
    }
    return count;
}

static void the_fit_is_in_the_files(int count)
{
    published_factors factors;

    published_fit(rows, count, NULL, &factors);
    for (int i = 0; i < PUBLISHED_PARAMETERS; i++) {
        int used = 0;

        for (int j = 0; j < count; j++)
            used += !published_is_fused(&rows[j]) && published_uses(&rows[j], (published_parameter)i);
        CHECK(used >= 5);
        CHECK(fabs(log(factors.of[i])) <= 0.15);
        if (fabs(log(factors.of[i])) > 0.15)
            fprintf(stderr, "%s: the fit gives %.2f times what the descriptions have\n",
                    published_parameter_names[i], factors.of[i]);
    }
}

static void a_source_left_out(int count, const char *source)
{
    double other[PUBLISHED_MOST] = {0};
    published_factors factors;

    if (!published_errors(rows, predicted, count, NULL, source, errors))
        return;
    published_fit(rows, count, source, &factors);
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].source, source) == 0 && !published_is_fused(&rows[i]))
            other[i] = published_predict(&rows[i], &factors);
    within(source, published_errors(rows, other, count, NULL, source, errors), 0.15, 0.40);
}

static void a_class_of_fused_kernels(int count, const char *class_name, double middle, double worst)
{
    double fitted[PUBLISHED_MOST], a, b;
    int found = 0;

    published_fit_class(rows, predicted, count, class_name, &a, &b, fitted);
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].class_name, class_name) == 0) {
            double error = fabs(fitted[i] / rows[i].us - 1);
            int at = found++;

            for (; at > 0 && errors[at - 1] > error; at--)
                errors[at] = errors[at - 1];
            errors[at] = error;
        }
    within(class_name, found, middle, worst);
}

/* What predictions say about themselves is what their rows have shown. */
static void says_what_was_shown(int count, weft_trust_kind kind)
{
    const weft_trust *trust = weft_trust_of(kind);
    int found = 0;

    for (int i = 0; i < count; i++) {
        bool library = strcmp(rows[i].how, "library") == 0 || strcmp(rows[i].how, "ring") == 0 ||
                       strcmp(rows[i].how, "switch") == 0;
        double error = fabs(predicted[i] / rows[i].us - 1);
        weft_machine machine;
        int at;

        CHECK(published_machine(&rows[i], &machine));
        CHECK(weft_trust_has_rows(&machine));
        if (rows[i].product ||
            weft_trust_kind_of(&machine, &rows[i].problem, rows[i].ranks, library) != kind ||
            (published_is_fused(&rows[i]) && strcmp(rows[i].source, "weft") != 0))
            continue;
        for (at = found++; at > 0 && errors[at - 1] > error; at--)
            errors[at] = errors[at - 1];
        errors[at] = error;
    }
    CHECK_INT(found, trust->rows);
    CHECK(found && fabs(100 * median(found) - trust->median_pct) <= 0.5 &&
          fabs(100 * errors[found - 1] - trust->worst_pct) <= 1);
    if (found && (fabs(100 * median(found) - trust->median_pct) > 0.5 ||
                  fabs(100 * errors[found - 1] - trust->worst_pct) > 1))
        fprintf(stderr, "%s: %d rows, median %.1f %%, worst %.1f %%\n", trust->what, found,
                100 * median(found), 100 * errors[found - 1]);
}

static void published_rows(void)
{
    int count = predict_all(PUBLISHED_CSV), all, near = 0;

    within("products", published_errors(rows, predicted, count, "product", NULL, errors), 0.05, 0.15);
    within("unfused", published_errors(rows, predicted, count, "unfused", NULL, errors), 0.06, 0.20);
    within("collectives", published_errors(rows, predicted, count, "collective", NULL, errors), 0.06, 0.30);
    all = published_errors(rows, predicted, count, NULL, NULL, errors);
    for (int i = 0; i < all; i++)
        near += errors[i] <= 0.15;
    CHECK(near >= 0.9 * all);
    the_fit_is_in_the_files(count);
    for (int i = 0; i < count; i++) {
        bool seen = false;

        for (int j = 0; j < i && !seen; j++)
            seen = strcmp(rows[j].source, rows[i].source) == 0;
        if (!seen)
            a_source_left_out(count, rows[i].source);
    }
    says_what_was_shown(count, WEFT_TRUST_UNFUSED);
    says_what_was_shown(count, WEFT_TRUST_LIBRARY);
    says_what_was_shown(count, WEFT_TRUST_LIBRARY_NODES);
    says_what_was_shown(count, WEFT_TRUST_LOADS);
    a_class_of_fused_kernels(count, "triton-copy-engine", 0.08, 0.35);
    a_class_of_fused_kernels(count, "cutlass-epilogue", 0.05, 0.10);
    a_class_of_fused_kernels(count, "triton-all-reduce", 0.05, 0.10);
}

/* The rows of a class, op and schedule (NULL: any). */
static int errors_of(int count, const char *class_name, weft_op op, const char *how)
{
    int found = 0;

    for (int i = 0; i < count; i++) {
        double error = fabs(predicted[i] / rows[i].us - 1);
        int at;

        if (strcmp(rows[i].class_name, class_name) != 0 || rows[i].problem.op != op ||
            (how && strcmp(rows[i].how, how) != 0))
            continue;
        for (at = found++; at > 0 && errors[at - 1] > error; at--)
            errors[at] = errors[at - 1];
        errors[at] = error;
    }
    return found;
}

/* Nothing is fitted to these but what a launch from a graph costs, by the rows of packets, and what entering
 * and being done does, by those of push. */
static void weft_itself(void)
{
    int count = predict_all(MEASURED_CSV);

    within("weft's unfused", published_errors(rows, predicted, count, "unfused", NULL, errors), 0.05, 0.10);
    within("weft's ag_gemm", errors_of(count, "fused", WEFT_OP_AG_GEMM, NULL), 0.08, 0.16);
    within("weft's gemm_rs", errors_of(count, "fused", WEFT_OP_GEMM_RS, NULL), 0.04, 0.10);
    within("weft's gemm_ar", errors_of(count, "fused", WEFT_OP_GEMM_AR, NULL), 0.08, 0.13);
    within("weft's gemm_as", errors_of(count, "fused", WEFT_OP_GEMM_AS, NULL), 0.04, 0.10);
    within("packets", errors_of(count, "collective", WEFT_OP_ALL_REDUCE, "packets"), 0.06, 0.10);
    within("lines", errors_of(count, "collective", WEFT_OP_ALL_REDUCE, "two_shot_packets"), 0.08, 0.25);
    within("push", errors_of(count, "collective", WEFT_OP_ALL_REDUCE, "push"), 0.05, 0.28);
    says_what_was_shown(count, WEFT_TRUST_PRODUCTS);
}

/* Every kind has its line in the table of docs/simulator.md, with these figures. */
static void the_docs_say_so(void)
{
    static char docs[1 << 16];
    FILE *file = fopen(SIMULATOR_MD, "r");

    CHECK(file != NULL);
    if (!file)
        return;
    docs[fread(docs, 1, sizeof(docs) - 1, file)] = 0;
    fclose(file);
    for (int kind = WEFT_TRUST_NONE + 1; kind < WEFT_TRUST_KINDS; kind++) {
        const weft_trust *trust = weft_trust_of((weft_trust_kind)kind);
        char most[32] = "", worst[32] = "", line[300];

        if (trust->most_pct > 0)
            snprintf(most, sizeof(most), "%g %%", trust->most_pct);
        if (trust->worst_pct > 0)
            snprintf(worst, sizeof(worst), "%g %%", trust->worst_pct);
        snprintf(line, sizeof(line), "| %s | %d | %g %% | %s | %s |", trust->what, trust->rows,
                 trust->median_pct, most, worst);
        CHECK(strstr(docs, line) != NULL);
        if (!strstr(docs, line))
            fprintf(stderr, "not in the docs: %s\n", line);
    }
}

int main(void)
{
    the_docs_say_so();
    published_rows();
    weft_itself();
    return check_report("sim published");
}
