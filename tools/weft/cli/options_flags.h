/* The table of problem flags, between options.c (which reads arguments by it) and options_flags.c. */
#ifndef WEFT_TOOLS_CLI_OPTIONS_FLAGS_H
#define WEFT_TOOLS_CLI_OPTIONS_FLAGS_H

#include "cli/options.h"

#define OPTIONS_MOST_EXTENT (INT64_C(1) << 40)

enum { OPTIONS_MOST_FLAGS = 96 };

/* Fills `flags` with the rows that `command` knows, whose targets lie in `options`; returns their number. */
int options_problem_flags(weft_options *options, const char *command, options_flag *flags);

#endif
