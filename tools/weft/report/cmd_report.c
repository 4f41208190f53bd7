/*
 * `weft report`: a short selection of benches and simulations as one page, or pages of --html merged into
 * one.
 *
 * Each line of the selection is run as the command it is, with its table on standard output, so that what the
 * page shows can be run again by hand. It ends with this command, however that ends, and its page has no name
 * that could be left behind.
 */
#include "cli/commands.h"
#include "cli/options.h"
#include "launch/launch.h"
#include "report/page.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, MOST_WORDS = 32, MOST_PARTS = 256 };

/* "RANKS" stands for -n, and --iterations for that of each line. Shapes have the communication that makes
 * overlap worth having. */
static const char *const selection[] = {
    "bench ag_gemm 1024 48 1024 -n RANKS --iterations 15",
    "bench gemm_rs 1024 1024 48 -n RANKS --schedule all --iterations 15",
    "bench gemm_ar 768 768 64 -n RANKS --schedule all --iterations 15",
    "bench gemm_as 768 1024 48 -n RANKS --iterations 15",
    "bench all_reduce -n RANKS --bytes 64:1M --schedule all --iterations 30",
    "bench all_gather -n RANKS --bytes 64:1M --iterations 30",
    "bench reduce_scatter -n RANKS --bytes 64:1M --iterations 30",
    "bench all_to_all -n RANKS --bytes 64:1M --iterations 30",
    "bench broadcast -n RANKS --bytes 64:1M --iterations 30",
    "bench moe -n RANKS --experts 64 --topk 6 --hidden 2048 --tokens 32 --impl all --iterations 15",
    "sim ag_gemm 8192 28672 8192 -n 2 --dtype bf16 --machine h100x8",
    "sim ag_gemm 8192 28672 8192 -n 4 --dtype bf16 --machine h100x8",
    "sim ag_gemm 8192 28672 8192 -n 8 --dtype bf16 --machine h100x8",
};

static const char help[] =
    "usage: weft report [-n RANKS] [--iterations I] [--output FILE]\n"
    "       weft report [--output FILE] PAGE...\n"
    "\n"
    "Without pages: measures a short selection of products, collectives and experts on this machine, "
    "predicts\n"
    "one product for eight GPUs, and writes everything as one page. With pages that weft bench --html or\n"
    "weft sim --html wrote: merges them. The page needs no network.\n"
    "\n"
    "  -n, --ranks N      ranks of the selection (default 2)\n"
    "  --iterations I     measured runs of each row (default 15, of collectives 30)\n"
    "  --output FILE      default weft-report.html\n"
    "\n"
    "The exit status is 1 when a row of the selection is not ok, or cannot be measured.\n";

/* Runs `weft LINE --html part`; returns its exit status. `iterations`: NULL = the line's own. */
static int run_line(const char *own, const char *line, const char *ranks, const char *iterations, char *part)
{
    char copy[256], *words[MOST_WORDS] = {(char *)own}, *rest = copy;
    int count = 1, status;
    pid_t self = getpid(), pid;

    snprintf(copy, sizeof copy, "%s", line);
    for (char *word; (word = strsep(&rest, " ")) && count < MOST_WORDS - 3; count++)
        words[count] = strcmp(word, "RANKS") == 0                                    ? (char *)ranks
                       : iterations && strcmp(words[count - 1], "--iterations") == 0 ? (char *)iterations
                                                                                     : word;
    words[count++] = "--html";
    words[count++] = part;
    words[count] = NULL;
    fputs("\n$ weft", stdout);
    for (int i = 1; i < count - 2; i++)
        printf(" %s", words[i]);
    putchar('\n');
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() == self)
            execv(own, words);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return options_error("report", "cannot start %s: %s", own, strerror(errno));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run_selection(const char *ranks, const char *iterations, const char *output)
{
    enum { LINES = sizeof selection / sizeof selection[0] };
    char own[PATH_BYTES], paths[LINES][64], *parts[LINES];
    int worst = 0, count = 0, status = 0;

    for (int i = 0; i < LINES && status < 2; i++) {
        int page = launch_own_path(own, sizeof own) ? memfd_create("weft-report", MFD_CLOEXEC) : -1;
        struct stat about;

        if (page < 0)
            return options_error("report", "cannot prepare the selection: %s", strerror(errno));
        parts[count] = paths[count];
        snprintf(parts[count], sizeof paths[count], "/proc/%d/fd/%d", (int)getpid(), page);
        status = run_line(own, selection[i], ranks, iterations, parts[count]);
        worst = status > worst ? status : worst;
        count += fstat(page, &about) == 0 && about.st_size > 0;
    }
    if (worst < 2)
        status = report_page_merge(output, parts, count, "report");
    return worst ? worst : status;
}

int cmd_report(int argc, char **argv)
{
    const char *output = "weft-report.html", *ranks = NULL, *iterations = NULL;
    char *parts[MOST_PARTS], *end;
    int count = 0, status;

    for (int i = 0; i < argc; i++) {
        bool has_value = i + 1 < argc;

        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return 0;
        }
        if (strncmp(argv[i], "--output=", 9) == 0 && argv[i][9]) {
            output = argv[i] + 9;
        } else if (strcmp(argv[i], "--output") == 0 && has_value) {
            output = argv[++i];
        } else if ((strcmp(argv[i], "-n") == 0 || strcmp(argv[i], "--ranks") == 0) && has_value) {
            long number = strtol(argv[++i], &end, 10);

            if (*end || number < 1 || number > 1024)
                return options_error("report", "-n %s: must be a whole number from 1 to 1024", argv[i]);
            ranks = argv[i];
        } else if (strcmp(argv[i], "--iterations") == 0 && has_value) {
            long number = strtol(argv[++i], &end, 10);

            if (*end || number < 1 || number > 1000000)
                return options_error("report", "--iterations %s: must be a whole number from 1 to 1000000",
                                     argv[i]);
            iterations = argv[i];
        } else if (argv[i][0] == '-') {
            return options_error(
                "report", "%s is not one of its flags, or lacks its value (weft report --help)", argv[i]);
        } else if (count < MOST_PARTS) {
            parts[count++] = argv[i];
        } else {
            return options_error("report", "at most %d pages are merged", MOST_PARTS);
        }
    }
    if (count && (ranks || iterations))
        return options_error("report", "%s is for measuring: pages that are merged were measured already",
                             ranks ? "-n" : "--iterations");
    status = options_check_writable("report", "--output", output);
    if (status)
        return status;
    status = count ? report_page_merge(output, parts, count, "report")
                   : run_selection(ranks ? ranks : "2", iterations, output);
    if (status == 0)
        printf("%sreport: %s\n", count ? "" : "\n", output);
    return status;
}
