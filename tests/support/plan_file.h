/* A plan of all ranks in a file, as somebody may have written it. */
#ifndef WEFT_TESTS_SUPPORT_PLAN_FILE_H
#define WEFT_TESTS_SUPPORT_PLAN_FILE_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plan/plan.h"
#include "plan/print.h"
#include "support/check.h"

/* Writes the parts of a problem into a new file; where `from` is not NULL, with `to` in the place of its
 * first occurrence, and without hashes. */
static inline void plan_file_write(char path[32], const weft_problem *asked, int world, const char *from,
                                   const char *to)
{
    weft_error_text error;
    weft_problem problem;
    FILE *file, *lines;
    char *text = NULL, *at;
    size_t bytes;

    strcpy(path, "/tmp/weft-plan-XXXXXX");
    file = fdopen(mkstemp(path), "w");
    lines = open_memstream(&text, &bytes);
    CHECK(file && lines);
    CHECK_INT(weft_problem_resolve(asked, world, &problem, &error), WEFT_OK);
    for (int rank = 0; rank < world; rank++) {
        weft_plan_part part;

        CHECK_INT(weft_plan_make(&problem, world, rank, &part, &error), WEFT_OK);
        weft_plan_print_text(&part, lines);
        weft_plan_part_free(&part);
    }
    fclose(lines);
    for (at = text; from && (at = strstr(at, ", hash ")) != NULL;) /* it would not be that of this any more */
        memset(at, ' ', strlen(", hash 0123456789abcdef"));
    at = from ? strstr(text, from) : NULL;
    CHECK(!from || at);
    if (at)
        fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    else
        fputs(text, file);
    fclose(file);
    free(text);
}

#endif
