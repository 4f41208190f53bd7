/* `weft`: finds the subcommand in one table and hands it the rest of the line. */
#include "commands.h"

#include <weft/weft.h>

#include <stdio.h>
#include <string.h>

static const weft_command commands[] = {
    {"bench", cmd_bench, "measure an operation beside its competitors, and check it"},
    {"plan", cmd_plan, "print, check or draw the plan of an operation"},
    {"sim", cmd_sim, "predict how long an operation takes on a described machine"},
    {"calibrate", cmd_calibrate, "measure this machine and write its description"},
    {"run", cmd_run, "start ranks on this machine: weft run -n 4 -- ./program args"},
    {"info", cmd_info, "what this build and this machine can do"},
    {NULL, NULL, NULL},
};

static int usage(FILE *file, int status)
{
    fputs("usage: weft COMMAND ...\n\n"
          "Multiplies matrices and routes mixture-of-experts tokens over several ranks, with the "
          "communication\n"
          "woven into the compute.\n\n",
          file);
    for (const weft_command *command = commands; command->name; command++)
        fprintf(file, "  %-10s  %s\n", command->name, command->help);
    fputs("\nweft COMMAND --help tells more about each; weft --version prints the version.\n", file);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return usage(stderr, 2);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return usage(stdout, 0);
    if (strcmp(argv[1], "--version") == 0) {
        printf("weft %s\n", weft_version());
        return 0;
    }
    for (const weft_command *command = commands; command->name; command++) {
        if (strcmp(argv[1], command->name) == 0)
            return command->run(argc - 2, argv + 2);
    }
    fprintf(stderr, "weft: %s is not a command (weft --help lists them)\n", argv[1]);
    return 2;
}
