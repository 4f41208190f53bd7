/* `weft`: finds the subcommand in one table and hands it the rest of the line. */
#include "cli/commands.h"

#include <weft/weft.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const weft_command commands[] = {
    {"bench", cmd_bench, "measure an operation beside its competitors, and check it"},
    {"plan", cmd_plan, "print, check or draw the plan of an operation"},
    {"sim", cmd_sim, "predict how long an operation takes on a described machine"},
    {"tune", cmd_tune, "try schedules, tiles and workers, and keep what wins for `auto`"},
    {"calibrate", cmd_calibrate, "measure this machine and write its description"},
    {"run", cmd_run, "start ranks on this machine: weft run -n 4 -- ./program args"},
    {"report", cmd_report, "a short selection of benches as one page, or pages merged"},
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

/* A standard stream that the caller closed would be the next file or socket that is opened. What is written
 * to this one fails. */
static void hold_standard_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* Where the caller ignores SIGCHLD, children vanish unseen: every command that waits for one needs it. */
static void see_children(void)
{
    signal(SIGCHLD, SIG_DFL);
}

/* Whoever reads what is printed has enough of it, as `head` has: that is said by nobody, also where the
 * caller ignores the signal that ends such a command. */
static bool nobody_reads(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO};

    return poll(&out, 1, 0) == 1 && out.revents & POLLERR;
}

/* Whether this command's frames fit on the stack: beyond, the system ends it without a word. */
static bool has_stack(void)
{
    enum { LEAST_KIB = 256 };
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur / 1024 >= LEAST_KIB)
        return true;
    fprintf(stderr, "weft: the stack may have %llu KiB here (ulimit -s); at least %d are needed\n",
            (unsigned long long)limit.rlim_cur / 1024, LEAST_KIB);
    return false;
}

static int run_command(int argc, char **argv)
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

int main(int argc, char **argv)
{
    hold_standard_streams();
    see_children();
    int status = has_stack() ? run_command(argc, argv) : 2;

    if (fflush(stdout) != 0 || ferror(stdout)) {
        int why = errno;

        if (nobody_reads())
            return status ? status : 128 + SIGPIPE;
        fprintf(stderr, "weft: cannot write to standard output: %s\n", strerror(why));
        return status ? status : 1;
    }
    return status;
}
