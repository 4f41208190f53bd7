/*
 * Starting the ranks of a bench. See start.h.
 *
 * Rank 0 prints into a pipe of the command that started it, not into the launcher's pipes: launchers add
 * lines of their own, and JSON readers want nothing else on standard output. After the text comes a zero byte
 * and the exit status. What goes wrong on a rank comes as lines by a second pipe, so that the command can say
 * one thing, whoever of ranks and launcher notices. mpirun's ranks say there first which process they are:
 * the command sees which of them ends first, which mpirun, told to be quiet, does not name.
 *
 * Ranks of `weft run` inherit the pipes. mpirun closes what its ranks would inherit; they open the pipes as
 * /proc/COMMAND/fd/N, which the kernel grants to those who may read the command's memory: nobody else's
 * process can print rows, and nothing can connect and stay silent.
 */
#include "bench/start.h"
#include "launch/family.h"
#include "launch/launch.h"

#include "core/clock.h"
#include "group/launcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char OUTPUT_VARIABLE[] = "WEFT_BENCH_OUTPUT";
static const char TERMINAL_VARIABLE[] = "WEFT_BENCH_TERMINAL";
static const char SHARED_VARIABLE[] = "WEFT_BENCH_SHARED";

static const char *launched = "bench"; /* the command whose ranks are started, and that speaks */

enum {
    PATH_BYTES = 4096,
    MOST_ARGUMENTS = 512,
    SHARED_BYTES = 32,
    LINE_BYTES = 1024, /* of what a rank says; a pipe takes it in one piece */
};

static const char HERE[] = "\001"; /* begins a line that says which process a rank is */

#define ENDING_NS INT64_C(5000000000) /* that mpirun may take to end its ranks */

bool bench_is_rank(void)
{
    weft_error_text error;
    weft_launch launch = {0};

    /* An environment that names a launcher and makes no sense is for weft_init to explain. */
    return weft_launcher_find(&launch, &error) != WEFT_OK || launch.launcher;
}

/* ---- where things are ----------------------------------------------------------------------------- */

/* The helper beside the command, or where `make install` puts it. */
static bool helper_path(char path[PATH_BYTES])
{
    static const char *const places[] = {"weft-bench-mpi", "../libexec/weft/weft-bench-mpi"};
    char own[PATH_BYTES];

    if (!launch_own_path(own, sizeof own))
        return false;
    *strrchr(own, '/') = 0;
    for (int i = 0; i < 2; i++) {
        if (snprintf(path, PATH_BYTES, "%s/%s", own, places[i]) < PATH_BYTES && access(path, X_OK) == 0)
            return true;
    }
    return false;
}

bool bench_has_mpi(void)
{
    char path[PATH_BYTES];

    return helper_path(path) && getenv("PATH") && launch_finds("mpirun"); /* mpirun itself needs a path */
}

/* ---- the output of rank 0 ------------------------------------------------------------------------- */

/* One of the two pipes that ranks write into: its ends, and its number in the kernel. */
typedef struct output_pipe {
    int read, write;
    unsigned long long inode;
} output_pipe;

typedef struct output_pipes {
    output_pipe text, lines;
} output_pipes;

static bool open_pipe(output_pipe *it, bool inherited)
{
    struct stat about;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    *it = (output_pipe){.read = ends[0], .write = ends[1]};
    if (fcntl(it->read, F_SETFL, O_NONBLOCK) != 0 || fstat(it->read, &about) != 0 ||
        (inherited && fcntl(it->write, F_SETFD, 0) != 0))
        return false;
    it->inode = about.st_ino;
    return true;
}

/* Makes the pipes and tells ranks of them by the environment. */
static bool open_output(output_pipes *pipes, bool inherited)
{
    char name[160];

    if (!open_pipe(&pipes->text, inherited) || !open_pipe(&pipes->lines, inherited))
        return false;
    snprintf(name, sizeof name, "%d:%d:%llu:%d:%llu", (int)getpid(), pipes->text.write, pipes->text.inode,
             pipes->lines.write, pipes->lines.inode);
    setenv(OUTPUT_VARIABLE, name, 1);
    setenv(LAUNCH_FOR, launched, 1);
    if (isatty(STDERR_FILENO))
        setenv(TERMINAL_VARIABLE, "1", 1);
    return true;
}

bool bench_has_output(void)
{
    return getenv(OUTPUT_VARIABLE);
}

/* Whether the descriptor is an end of the pipe with that number. */
static bool is_pipe(int fd, unsigned long long inode)
{
    struct stat about;

    return fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode) && about.st_ino == inode;
}

/* A descriptor for writing into the pipe of the command, or -1. */
static int find_output(bool lines)
{
    const char *name = getenv(OUTPUT_VARIABLE);
    int command, numbers[2], fd;
    unsigned long long inodes[2];
    char path[64];

    if (!name ||
        sscanf(name, "%d:%d:%llu:%d:%llu", &command, &numbers[0], &inodes[0], &numbers[1], &inodes[1]) != 5)
        return -1;
    if (is_pipe(numbers[lines], inodes[lines]))
        return fcntl(numbers[lines], F_DUPFD_CLOEXEC, 0);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", command, numbers[lines]);
    fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || (is_pipe(fd, inodes[lines]) && fcntl(fd, F_SETFL, 0) == 0))
        return fd;
    close(fd); /* the command is gone, and its number is another's */
    return -1;
}

FILE *bench_output_open(int rank)
{
    int fd = rank == 0 ? find_output(false) : -1;
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;

    return rank == 0 && !out ? stdout : out;
}

void bench_speak_as(const char *command)
{
    launched = command;
}

void bench_output_say(const char *line)
{
    char text[LINE_BYTES];
    int length = snprintf(text, sizeof text, "%s\n", line);
    int fd = find_output(true);
    size_t bytes = length < (int)sizeof text ? (size_t)length : sizeof text - 1;
    bool sent = fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes; /* in one piece: it is that short */

    if (!sent && line[0] != HERE[0]) /* who a rank is, nobody reads there */
        fprintf(stderr, "weft %s: %s\n", launched, line);
    if (fd >= 0)
        close(fd);
}

void bench_output_here(void)
{
    weft_error_text error;
    weft_launch launch = {0};
    char line[64];

    if (!bench_has_output() || weft_launcher_find(&launch, &error) != WEFT_OK || !launch.launcher)
        return;
    snprintf(line, sizeof line, "%s%d %d", HERE, launch.rank, (int)getpid());
    bench_output_say(line);
}

void bench_output_close(FILE *out, int status)
{
    if (!out)
        return;
    if (out != stdout) {
        fputc(0, out);
        fputc(status, out);
        fclose(out);
    } else {
        fflush(out);
    }
}

static int write_error; /* of standard output, the first */

/* Copies what has come of rank 0's text to standard output; returns false when nothing has. `status` becomes
 * rank 0's, once it has sent it; `zero` remembers that it comes next. */
static bool copy_output(int fd, bool *zero, int *status)
{
    char data[4096];
    ssize_t got = read(fd, data, sizeof data);

    if (got <= 0)
        return got < 0 && errno == EINTR;
    for (ssize_t i = 0; i < got && *status < 0; i++) {
        if (*zero)
            *status = (unsigned char)data[i];
        else if (data[i])
            fputc(data[i], stdout);
        else
            *zero = true;
    }
    if (fflush(stdout) != 0 && write_error == 0)
        write_error = errno;
    return true;
}

/* ---- what ranks say, and which of them ends first -------------------------------------------------- */

typedef struct rank_process {
    int rank;
    pid_t pid;
} rank_process;

typedef struct listener {
    char said[LINE_BYTES]; /* the first line that says what went wrong */
    char data[4 * LINE_BYTES];
    size_t bytes;          /* of lines that have not come whole */
    int ranks;             /* that have said which process they are */
    rank_process *process; /* of those */
    struct pollfd *fds;    /* the two pipes, then their processes */
    int most;              /* ranks */
    bool ended;            /* one of them; nobody is watched any more */
    rank_process first;    /* it; a pid of 0: several had ended when the command looked */
} listener;

enum { PIPES = 2 };

static bool open_listener(listener *l, const output_pipes *pipes, int ranks)
{
    *l = (listener){.most = ranks,
                    .process = calloc((size_t)ranks, sizeof(*l->process)),
                    .fds = calloc((size_t)ranks + PIPES, sizeof(*l->fds))};
    if (!l->process || !l->fds)
        return false;
    l->fds[0] = (struct pollfd){.fd = pipes->text.read, .events = POLLIN};
    l->fds[1] = (struct pollfd){.fd = pipes->lines.read, .events = POLLIN};
    return true;
}

static void stop_watching(listener *l)
{
    for (int i = 0; i < l->ranks; i++)
        close(l->fds[PIPES + i].fd);
    l->ranks = 0;
}

static void close_listener(listener *l)
{
    stop_watching(l);
    free(l->process);
    free(l->fds);
}

static void take_line(listener *l, const char *line)
{
    rank_process it;
    int fd;

    if (line[0] != HERE[0]) {
        if (!l->said[0])
            snprintf(l->said, sizeof l->said, "%.*s", LINE_BYTES - 1, line);
        return;
    }
    if (l->ended || l->ranks == l->most || sscanf(line + 1, "%d %d", &it.rank, &it.pid) != 2)
        return;
    fd = (int)syscall(SYS_pidfd_open, it.pid, 0);
    if (fd < 0) /* the kernel is older than that, or the rank has ended */
        return;
    l->process[l->ranks] = it;
    l->fds[PIPES + l->ranks++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

/* What has come; false: nothing. */
static bool hear(listener *l)
{
    ssize_t got = read(l->fds[1].fd, l->data + l->bytes, sizeof l->data - l->bytes);
    char *line = l->data, *end;

    if (got <= 0)
        return got < 0 && errno == EINTR;
    l->bytes += (size_t)got;
    while ((end = memchr(line, '\n', l->bytes))) {
        *end = 0;
        take_line(l, line);
        l->bytes -= (size_t)(end + 1 - line);
        line = end + 1;
    }
    if (l->bytes == sizeof l->data) /* no rank says that much */
        l->bytes = 0;
    memmove(l->data, line, l->bytes);
    return true;
}

/* After a poll. */
static void look_for_ended(listener *l)
{
    int ended = 0;

    for (int i = 0; i < l->ranks; i++) {
        if (l->fds[PIPES + i].revents) {
            l->first = l->process[i];
            ended++;
        }
    }
    if (ended > 1)
        l->first.pid = 0;
    if (ended) {
        l->ended = true;
        stop_watching(l);
    }
}

/* Says in one line what went wrong, if anything: what a rank said, unless `weft run` has already named a rank
 * that ended badly, which the others only notice. mpirun is told to be quiet. */
static void explain(const listener *l, int launcher_status, bool with_mpi, bool finished)
{
    int signal = launcher_status - 128;

    if (l->said[0] && (with_mpi || launcher_status == 0))
        fprintf(stderr, "weft %s: %s\n", launched, l->said);
    else if (with_mpi && !finished && signal > 0 && signal < NSIG && l->first.pid)
        fprintf(stderr, "weft %s: rank %d (process %d) was ended by signal %d (%s)\n", launched,
                l->first.rank, (int)l->first.pid, signal, strsignal(signal));
    else if (with_mpi && !finished && signal > 0 && signal < NSIG)
        fprintf(stderr, "weft %s: a rank, or mpirun, was ended by signal %d (%s)\n", launched, signal,
                strsignal(signal));
    else if (with_mpi && !finished)
        fprintf(
            stderr,
            "weft %s: mpirun ended with status %d before any rank said why; --peer none goes without it\n",
            launched, launcher_status);
}

/* Passes on what rank 0 prints until the launcher has ended; returns the exit status of the bench. */
static int follow(listener *l, pid_t launcher, bool with_mpi)
{
    int text = l->fds[0].fd, status = -1, wait_status = 0;
    bool running = true, zero = false;

    while (running) {
        if (poll(l->fds, (nfds_t)(PIPES + l->ranks), 50) > 0) {
            look_for_ended(l);
            if (l->fds[0].revents)
                copy_output(text, &zero, &status);
            if (l->fds[1].revents)
                hear(l);
        }
        running = waitpid(launcher, &wait_status, status >= 0 ? 0 : WNOHANG) != launcher;
    }
    while (copy_output(text, &zero, &status)) /* what it left in the pipe */
        ;
    while (hear(l))
        ;
    wait_status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
    explain(l, wait_status, with_mpi, status >= 0);
    return status >= 0 ? status : wait_status ? wait_status : 1;
}

/* ---- the launchers -------------------------------------------------------------------------------- */

/*
 * Open MPI's ranks share memory through files, and when they are ended by a signal the files stay. So mpirun
 * gets a directory of its own for those files, which the ranks remove as soon as all have opened them: from
 * then on nothing has a name, whoever is killed. Until then, while MPI starts, mpirun runs under a keeper,
 * which removes the directory when mpirun has ended. The keeper is in a process group of its own, so that it
 * outlives what ends the others; it passes on what it is asked, also by the end of the command, however that
 * comes. If it is the keeper that is killed, the command ends what is left below it and removes the
 * directory.
 */
/* The directory's name into `path`, told to Open MPI; "" where there is none to be had. */
static void make_directory(char path[static SHARED_BYTES])
{
    snprintf(path, SHARED_BYTES, "/dev/shm/weft-XXXXXX");
    if (!mkdtemp(path)) {
        path[0] = 0;
        return;
    }
    setenv(SHARED_VARIABLE, path, 1);
    setenv("OMPI_MCA_btl_vader_backing_directory", path, 0); /* Open MPI 4 */
    setenv("OMPI_MCA_btl_sm_backing_directory", path, 0);    /* Open MPI 5 */
}

static void remove_directory(const char *path)
{
    DIR *directory = *path ? opendir(path) : NULL;

    for (struct dirent *entry; directory && (entry = readdir(directory));)
        unlinkat(dirfd(directory), entry->d_name, 0);
    if (directory)
        closedir(directory);
    if (*path)
        rmdir(path);
}

void bench_shared_forget(void)
{
    const char *path = getenv(SHARED_VARIABLE);

    if (path)
        remove_directory(path);
}

static void start(char **words, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    execvp(words[0], words);
    fprintf(stderr, "weft %s: cannot start %s: %s\n", launched, words[0], strerror(errno));
    _exit(127);
}

static void keep(char **words, pid_t command, const char *directory)
{
    int status = 0;
    sigset_t watched, before;
    pid_t self = getpid(), group = getpgrp(), launcher;
    struct sigaction on_hangup;

    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGINT);
    if (sigaction(SIGHUP, NULL, &on_hangup) == 0 && on_hangup.sa_handler != SIG_IGN) /* nohup */
        sigaddset(&watched, SIGHUP);
    sigprocmask(SIG_BLOCK, &watched, &before);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0);
    launcher = getppid() == command ? fork() : -1;
    if (launcher == 0) {
        setpgid(0, group);
        sigprocmask(SIG_SETMASK, &before, NULL);
        start(words, self);
    }
    while (launcher > 0 && waitpid(launcher, &status, WNOHANG) == 0) {
        int signal = sigwaitinfo(&watched, NULL);

        if (signal > 0 && signal != SIGCHLD)
            kill(launcher, SIGTERM);
    }
    remove_directory(directory);
    if (launcher > 0 && WIFSIGNALED(status)) {
        char line[LINE_BYTES];

        snprintf(line, sizeof line, "mpirun was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
        bench_output_say(line);
    }
    _exit(launcher < 0 ? 1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* The words that start the ranks: mpirun with the helper, or `weft run` with this command. */
static int compose(char **words, const weft_options *options, int argc, char **argv, const char *nodes,
                   bool with_mpi)
{
    static char own[PATH_BYTES], helper[PATH_BYTES], ranks[24], mapping[32];
    int count = 0, threads = options_threads(options);
    bool crowded = options->ranks * threads > sysconf(_SC_NPROCESSORS_ONLN);

    if (argc > MOST_ARGUMENTS - 24) {
        errno = E2BIG;
        return -1;
    }
    if (!launch_own_path(own, sizeof own))
        return -1;
    snprintf(ranks, sizeof ranks, "%d", (int)options->ranks);
    if (with_mpi && helper_path(helper)) {
        snprintf(mapping, sizeof mapping, "slot:PE=%d", threads);
        /* Quiet: what goes wrong is said by the ranks, in a line, not by mpirun, in a page. */
        char *const start[] = {
            "mpirun", "--quiet", "-n", ranks, "--oversubscribe", "--bind-to", crowded ? "none" : "core"};
        memcpy(words, start, sizeof start);
        count = (int)(sizeof start / sizeof start[0]);
        if (!crowded) {
            words[count++] = "--map-by";
            words[count++] = mapping;
        }
        words[count++] = helper;
    } else {
        char *const start[] = {own,
                               "run",
                               "-n",
                               ranks,
                               nodes ? "--nodes" : "--bind",
                               nodes ? (char *)(uintptr_t)nodes : "auto",
                               "--",
                               own,
                               (char *)(uintptr_t)launched};
        memcpy(words, start, sizeof start);
        count = (int)(sizeof start / sizeof start[0]);
    }
    for (int i = 0; i < argc; i++)
        words[count++] = argv[i];
    words[count] = NULL;
    return 0;
}

/* An mpirun whose keeper was killed has been asked to end, and takes its own files away if it gets the time.
 */
static void let_end(void)
{
    int64_t begun_ns = weft_clock_ns();

    while (weft_clock_ns() - begun_ns < ENDING_NS) {
        pid_t ended = waitpid(-1, NULL, WNOHANG);

        if (ended < 0 && errno == ECHILD)
            return;
        if (ended == 0)
            nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
}

int bench_launch(const weft_options *options, int argc, char **argv, const char *nodes, bool with_mpi)
{
    char *words[MOST_ARGUMENTS], shared[SHARED_BYTES] = "";
    output_pipes pipes;
    listener heard;

    with_mpi = with_mpi && bench_has_mpi();
    if (!open_output(&pipes, !with_mpi) || !open_listener(&heard, &pipes, (int)options->ranks) ||
        compose(words, options, argc, argv, nodes, with_mpi) != 0) {
        fprintf(stderr, "weft %s: cannot prepare to start ranks: %s\n", launched, strerror(errno));
        return 1;
    }
    /* Open MPI refuses to run as root without these; containers are root. */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    if (with_mpi) {
        make_directory(shared);
        prctl(PR_SET_CHILD_SUBREAPER, 1); /* to end what a keeper that was killed leaves */
    }
    pid_t command = getpid(), launcher = fork();
    if (launcher == 0) {
        if (with_mpi)
            keep(words, command, shared);
        start(words, command);
    }
    if (launcher < 0) {
        fprintf(stderr, "weft %s: cannot start ranks: %s\n", launched, strerror(errno));
        remove_directory(shared);
        return 1;
    }
    int status = follow(&heard, launcher, with_mpi);
    close_listener(&heard);
    if (with_mpi) {
        let_end();
        launch_family_end(NULL, 0);
        remove_directory(shared);
    }
    errno = write_error; /* for whoever finds that standard output has failed */
    return status;
}
