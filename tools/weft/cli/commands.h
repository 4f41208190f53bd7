/* The subcommands of `weft`: one function per file cmd_<name>.c, each with its line in main.c's table. */
#ifndef WEFT_TOOLS_CLI_COMMANDS_H
#define WEFT_TOOLS_CLI_COMMANDS_H

/* Each takes the arguments after its name and returns the exit status: 0, 1 (it failed), 2 (a wrong call). */
typedef int weft_command_run(int argc, char **argv);

typedef struct weft_command {
    const char *name;
    weft_command_run *run;
    const char *help;
} weft_command;

weft_command_run cmd_bench;
weft_command_run cmd_plan;
weft_command_run cmd_sim;
weft_command_run cmd_tune;
weft_command_run cmd_calibrate;
weft_command_run cmd_run;
weft_command_run cmd_report;
weft_command_run cmd_info;

#endif
