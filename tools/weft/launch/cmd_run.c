/* weft run: starts ranks on this machine, or on several, as torchrun or mpirun would. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/nodes.h"
#include "cli/options.h"
#include "group/segment.h"
#include "launch/hosts.h"

static const char help[] =
    "usage: weft run -n RANKS [--nodes N] [--bind auto|none|core|numa] [--output merge|prefix] [--] PROGRAM\n"
    "                [ARGUMENTS]\n"
    "       weft run --hosts A:RANKS,B:RANKS [--agent COMMAND] [--master ADDRESS] [--bind …] [--output …] "
    "[--]\n"
    "                PROGRAM [ARGUMENTS]\n"
    "\n"
    "Starts RANKS processes of PROGRAM that find each other in weft_init.\n"
    "\n"
    "  -n, --ranks N      how many\n"
    "  --nodes N          as if they were on N nodes, in blocks (or on nodes of 3 and 5: --nodes 3+5): ranks "
    "of\n"
    "                     different ones share no memory, and talk over this machine's network\n"
    "  --hosts A:4,B:4    four on host A, four on host B, by an agent that starts weft there: the same "
    "program\n"
    "                     in the same directory, with what is set here of WEFT_*, UCX_* and OMP_*\n"
    "  --agent COMMAND    runs a command on a host: COMMAND HOST weft … (default: ssh, without questions;\n"
    "                     network namespaces are hosts for 'ip netns exec')\n"
    "  --master ADDRESS   where the other hosts find the first one (default: by its name in --hosts)\n"
    "  --bind core        each rank its own share of the cores; numa: the cores of one memory node;\n"
    "                     none: wherever the system likes; auto (default): core where there are enough\n"
    "  --output prefix    put \"[rank] \" before each line; merge (default): ranks write as they are\n"
    "\n"
    "When a rank fails the others are ended, and the exit status is that of the rank: its own, or 128 + the\n"
    "signal that ended it. Signals are passed on to the ranks. Standard input goes to rank 0, with --hosts "
    "to\n"
    "none. When weft run ends, however it does, so does everything that it started, on every host.\n";

static const char *nodes_asked;
static launch_hosts hosts;

static int wrong(const char *format, const char *what)
{
    char sentence[512];

    snprintf(sentence, sizeof(sentence), format, what);
    return options_error("run", "%s (weft run --help)", sentence);
}

static int cannot_start(const char *program)
{
    int why = errno;

    fprintf(stderr, "weft run: cannot start %s: %s\n", program, strerror(why));
    return why == ENOENT ? 127 : 126;
}

static int be_program(int rank, void *argument)
{
    char **argv = argument;

    (void)rank;
    execvp(argv[0], argv);
    return cannot_start(argv[0]);
}

/* The index of `value` among `words`, or -1. */
static int choose(const char *value, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(value, words[i]) == 0)
            return i;
    return -1;
}

/* Reads one flag with its value into the job; returns 0, or the exit status. */
static int take_flag(launch_job *job, const char *flag, const char *value)
{
    static const char *const binds[] = {"auto", "none", "core", "numa", NULL};
    static const char *const outputs[] = {"merge", "prefix", NULL};
    char *end;
    int chosen;

    if (strcmp(flag, "-n") == 0 || strcmp(flag, "--ranks") == 0) {
        long size = strtol(value, &end, 10);

        if (end == value || *end || size < 1 || size > WEFT_RANKS_MAX)
            return wrong("-n takes a number of ranks from 1 to 1024, not \"%s\"", value);
        job->size = (int)size;
        return 0;
    }
    if (strcmp(flag, "--nodes") == 0) {
        nodes_asked = value;
        return 0;
    }
    if (strcmp(flag, "--hosts") == 0)
        return launch_hosts_parse(strdup(value), &hosts)
                   ? 0
                   : wrong("--hosts takes hosts with their ranks as in a:4,b:4 or [fd00::1]:4, not \"%s\"",
                           value);
    if (strcmp(flag, "--agent") == 0)
        return launch_hosts_agent(strdup(value), &hosts)
                   ? 0
                   : wrong("--agent takes a command such as ssh, not \"%s\"", value);
    if (strcmp(flag, "--master") == 0) {
        hosts.master = value;
        return 0;
    }
    chosen = choose(value, strcmp(flag, "--bind") == 0 ? binds : outputs);
    if (strcmp(flag, "--bind") == 0) {
        if (chosen < 0)
            return wrong("--bind takes auto, none, core or numa, not \"%s\"", value);
        job->bind = (launch_bind)chosen;
    } else {
        if (chosen < 0)
            return wrong("--output takes merge or prefix, not \"%s\"", value);
        job->output = (launch_output)chosen;
    }
    return 0;
}

static int run_on_hosts(const launch_job *job, char **argv)
{
    static char ssh[] = "ssh -o BatchMode=yes -o ConnectTimeout=10";

    if (job->size || nodes_asked)
        return wrong("--hosts says where how many ranks are: leave %s out", job->size ? "-n" : "--nodes");
    if (!hosts.agent[0])
        launch_hosts_agent(ssh, &hosts);
    if (!argv[0])
        return wrong("%s", "the program to start is missing");
    return launch_over_hosts(job, &hosts, argv);
}

/* Who speaks; not what ranks start in turn. */
static const char *find_speaker(void)
{
    static char speaker[32];
    const char *command = getenv(LAUNCH_FOR);

    snprintf(speaker, sizeof(speaker), "weft %.16s", command ? command : "run");
    unsetenv(LAUNCH_FOR);
    return speaker;
}

int cmd_run(int argc, char **argv)
{
    static const char *const flags[] = {"-n",      "--ranks", "--nodes",  "--bind", "--output",
                                        "--hosts", "--agent", "--master", NULL};
    static int32_t domain[WEFT_RANKS_MAX];
    launch_job job = {.who = find_speaker(), .body = be_program};
    const char *misread;
    int at = 0;

    if (argc == 1 && strcmp(argv[0], "--member") == 0)
        return launch_member();
    while (at < argc && argv[at][0] == '-') {
        char flag[16];
        const char *equals = strchr(argv[at], '=');
        int status;

        if (strcmp(argv[at], "--") == 0) {
            at++;
            break;
        }
        if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            fputs(help, stdout);
            return 0;
        }
        snprintf(flag, sizeof(flag), "%.*s", equals ? (int)(equals - argv[at]) : (int)sizeof(flag), argv[at]);
        if (choose(flag, flags) < 0)
            return wrong("%s is not one of its flags", argv[at]);
        if (!equals && at + 1 >= argc)
            return wrong("%s needs a value", argv[at]);
        status = take_flag(&job, flag, equals ? equals + 1 : argv[at + 1]);
        if (status != 0)
            return status;
        at += equals ? 1 : 2;
    }
    if (hosts.count)
        return run_on_hosts(&job, &argv[at]);
    if (hosts.agent[0] || hosts.master)
        return wrong("%s belongs to --hosts, which is missing", hosts.agent[0] ? "--agent" : "--master");
    if (job.size == 0)
        return wrong("%s", "-n says how many ranks to start; it is missing");
    misread = nodes_parse(nodes_asked, job.size, domain);
    if (misread)
        return wrong("--nodes should be %s", misread);
    for (int rank = 1; rank < job.size; rank++)
        job.domain = domain[rank] != domain[0] ? domain : job.domain;
    if (at >= argc)
        return wrong("%s", "the program to start is missing");
    if (!launch_finds(argv[at])) /* said once, before there are ranks to fail one by one */
        return cannot_start(argv[at]);
    job.argument = &argv[at];
    return launch_ranks(&job);
}
