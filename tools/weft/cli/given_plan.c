#include "cli/given_plan.h"
#include "plan/check.h"
#include "plan/read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int given_plan_open(given_plan *given, const char *command, const char *flag, int argc, char **argv)
{
    weft_error_text error = {0};
    const char *path = NULL;
    size_t length = strlen(flag);

    *given = (given_plan){.argc = argc};
    given->argv = calloc((size_t)argc + 2, sizeof(*given->argv));
    if (!given->argv)
        return options_error(command, "no memory for the arguments");
    for (int i = 0; i < argc; i++) {
        given->argv[i] = argv[i];
        if (strcmp(argv[i], flag) == 0 && i + 1 < argc)
            path = argv[i + 1];
        else if (strncmp(argv[i], flag, length) == 0 && argv[i][length] == '=')
            path = argv[i] + length + 1;
    }
    if (!path)
        return 0;
    if (weft_plan_read_file(path, &given->parts, &given->world, &error) != WEFT_OK) {
        given_plan_close(given);
        return options_error(command, "%s", error.text);
    }
    given->argv[given->argc++] = (char *)(uintptr_t)weft_op_name(given->parts[0].problem.op);
    return 0;
}

void given_plan_close(given_plan *given)
{
    weft_plan_parts_free(given->parts, given->world);
    free(given->argv);
    *given = (given_plan){0};
}

int given_plan_refuses(const given_plan *given, const char *command, const char *flag,
                       const weft_options *options)
{
    if (options->problem_flag || options->sizes_given)
        return options_error(command,
                             "%s: the file of %s says of what problem its plan is, and how it is made",
                             options->problem_flag ? options->problem_flag : "M N K", flag);
    if (options->threads && strcmp(command, "bench") != 0) /* there it is for what stands beside the plan */
        return options_error(command, "--threads: the file of %s says how many workers its plan has", flag);
    if (options->ranks_given && options->ranks != given->world)
        return options_error(command, "-n %lld: the plan of %s is of %d ranks", (long long)options->ranks,
                             flag, given->world);
    return 0;
}

int given_plan_check(const given_plan *given, const char *command)
{
    weft_check_report *report = malloc(sizeof(*report));
    weft_error_text error = {0};
    int wrong = 1;

    if (!report || weft_plan_check(given->parts, given->world, report, &error) != WEFT_OK)
        fprintf(stderr, "weft %s: %s\n", command, report ? error.text : "no memory to check the plan");
    else if (report->count)
        fprintf(stderr, "weft %s: the plan is not right: %s\n", command, report->findings[0].text);
    else
        wrong = 0;
    free(report);
    return wrong;
}

weft_status given_plan_make(void *given, int rank, weft_plan_part *part, weft_error_text *error)
{
    return weft_plan_part_copy(&((const given_plan *)given)->parts[rank], part, error);
}
