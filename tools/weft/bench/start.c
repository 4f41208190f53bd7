/*
 * Starting the ranks of a bench. See start.h.
 *
 * Rank 0 prints into a socket of the command that started it, not into the launcher's pipes: launchers add
 * lines of their own, and JSON readers want nothing else on standard output. The socket has no name in the
 * file system. After the text comes a zero byte and the exit status. What goes wrong on a rank comes by
 * datagrams to the same name, so that the command can say one thing, whoever of ranks and launcher notices.
 */
#include "bench/start.h"
#include "launch/launch.h"

#include "group/launcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const char OUTPUT_VARIABLE[] = "WEFT_BENCH_OUTPUT";
static const char TERMINAL_VARIABLE[] = "WEFT_BENCH_TERMINAL";

enum { PATH_BYTES = 4096, MOST_ARGUMENTS = 512 };

bool bench_is_rank(void)
{
    weft_error_text error;
    weft_launch launch = {0};

    /* An environment that names a launcher and makes no sense is for weft_init to explain. */
    return weft_launcher_find(&launch, &error) != WEFT_OK || launch.launcher;
}

/* ---- where things are ----------------------------------------------------------------------------- */

static bool own_path(char path[PATH_BYTES])
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_BYTES - 1);

    if (length <= 0)
        return false;
    path[length] = 0;
    return true;
}

/* The helper beside the command, or where `make install` puts it. */
static bool helper_path(char path[PATH_BYTES])
{
    static const char *const places[] = {"weft-bench-mpi", "../libexec/weft/weft-bench-mpi"};
    char own[PATH_BYTES];

    if (!own_path(own))
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

/* A listening socket, and one for datagrams, with a name the kernel chooses, outside the file system, told to
 * ranks by the environment. */
static int listen_for_output(int *lines)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = sizeof(sa_family_t);
    char name[2 * sizeof address.sun_path + 1];
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *lines = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || *lines < 0)
        goto err_close;
    if (bind(fd, (struct sockaddr *)&address, length) != 0 || listen(fd, 1) != 0)
        goto err_close;
    length = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0 ||
        bind(*lines, (struct sockaddr *)&address, length) != 0)
        goto err_close;
    size_t bytes = length - sizeof(sa_family_t);
    for (size_t i = 0; i < bytes; i++)
        snprintf(name + 2 * i, 3, "%02x", (unsigned char)address.sun_path[i]);
    setenv(OUTPUT_VARIABLE, name, 1);
    if (isatty(STDERR_FILENO))
        setenv(TERMINAL_VARIABLE, "1", 1);
    return fd;
err_close:
    close(fd);
    close(*lines);
    return -1;
}

bool bench_has_output(void)
{
    return getenv(OUTPUT_VARIABLE);
}

/* A socket for the command that takes the output, or -1; `length` is that of its address. */
static int find_output(int type, struct sockaddr_un *address, socklen_t *length)
{
    const char *name = getenv(OUTPUT_VARIABLE);
    size_t bytes = 0;
    unsigned byte;

    if (!name)
        return -1;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    for (; bytes < sizeof address->sun_path && sscanf(name + 2 * bytes, "%2x", &byte) == 1; bytes++)
        address->sun_path[bytes] = (char)byte;
    *length = (socklen_t)(sizeof(sa_family_t) + bytes);
    return socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
}

FILE *bench_output_open(int rank)
{
    struct sockaddr_un address;
    socklen_t length;

    if (rank != 0)
        return NULL;
    int fd = find_output(SOCK_STREAM, &address, &length);
    if (fd < 0)
        return stdout;
    if (connect(fd, (struct sockaddr *)&address, length) != 0) {
        close(fd);
        return stdout;
    }
    FILE *out = fdopen(fd, "w");
    return out ? out : stdout;
}

void bench_output_say(const char *line)
{
    struct sockaddr_un address;
    socklen_t length;
    int fd = find_output(SOCK_DGRAM, &address, &length);
    /* A full queue is no loss: the first line counts. */
    bool sent =
        fd >= 0 && (sendto(fd, line, strlen(line), MSG_DONTWAIT, (struct sockaddr *)&address, length) >= 0 ||
                    errno == EAGAIN);

    if (!sent)
        fprintf(stderr, "weft bench: %s\n", line);
    if (fd >= 0)
        close(fd);
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

/* Copies rank 0's text to standard output. Returns its status, or -1 while it has sent none. */
static int copy_output(int fd, bool *ended)
{
    char data[4096];
    ssize_t got = read(fd, data, sizeof data);

    *ended = got == 0 || (got < 0 && errno != EINTR);
    if (got <= 0)
        return -1;
    char *zero = memchr(data, 0, (size_t)got);
    fwrite(data, 1, zero ? (size_t)(zero - data) : (size_t)got, stdout);
    fflush(stdout);
    if (!zero)
        return -1;
    unsigned char status = 1;
    if (zero + 1 < data + got)
        status = (unsigned char)zero[1];
    else if (read(fd, &status, 1) != 1)
        status = 1;
    return status;
}

/* Says in one line what went wrong, if anything: what a rank said, unless `weft run` has already named a rank
 * that ended badly, which the others only notice. mpirun is told to be quiet. */
static void explain(int lines, int launcher_status, bool with_mpi, bool finished)
{
    char line[1024];
    ssize_t said = recv(lines, line, sizeof line, MSG_DONTWAIT);
    int signal = launcher_status - 128;

    if (said > 0 && (with_mpi || launcher_status == 0))
        fprintf(stderr, "weft bench: %.*s\n", (int)said, line);
    else if (with_mpi && !finished && signal > 0 && signal < NSIG)
        fprintf(stderr, "weft bench: a rank, or mpirun, was ended by signal %d (%s)\n", signal,
                strsignal(signal));
}

/* Passes on what rank 0 prints until the launcher ends; returns the exit status of the bench. */
static int follow(int listener, int lines, pid_t launcher, bool with_mpi)
{
    int connection = -1, status = -1, wait_status = 0;
    bool ended = false, running = true;

    while (running || (connection >= 0 && !ended)) {
        struct pollfd fd = {.fd = connection >= 0 ? connection : listener, .events = POLLIN};
        bool ready = !ended && poll(&fd, 1, 50) > 0;
        if (ready && connection < 0)
            connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        else if (ready) {
            int sent = copy_output(connection, &ended);
            if (sent >= 0)
                status = sent;
        }
        if (running && waitpid(launcher, &wait_status, ended ? 0 : WNOHANG) == launcher)
            running = false;
        if (!running && connection < 0)
            break;
    }
    if (connection >= 0)
        close(connection);
    wait_status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
    explain(lines, wait_status, with_mpi, status >= 0);
    return status >= 0 ? status : wait_status ? wait_status : 1;
}

/* ---- the launchers -------------------------------------------------------------------------------- */

/*
 * Open MPI's ranks share memory through files, and when they are ended by a signal the files stay. So mpirun
 * runs under a keeper, which gives it a directory of its own for those files and removes that when mpirun has
 * ended. The keeper is in a process group of its own, so that it outlives what ends the others; it passes on
 * what it is asked, also by the end of the command, however that comes.
 */
static void remove_directory(const char *path)
{
    DIR *directory = opendir(path);

    for (struct dirent *entry; directory && (entry = readdir(directory));)
        unlinkat(dirfd(directory), entry->d_name, 0);
    if (directory)
        closedir(directory);
    rmdir(path);
}

static void start(char **words, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    execvp(words[0], words);
    fprintf(stderr, "weft bench: cannot start %s: %s\n", words[0], strerror(errno));
    _exit(127);
}

static void keep(char **words, pid_t command)
{
    char directory[] = "/dev/shm/weft-XXXXXX";
    bool made = mkdtemp(directory) != NULL;
    int status = 0;
    sigset_t watched, before;
    pid_t self = getpid(), group = getpgrp(), launcher;

    if (made) {
        setenv("OMPI_MCA_btl_vader_backing_directory", directory, 0); /* Open MPI 4 */
        setenv("OMPI_MCA_btl_sm_backing_directory", directory, 0);    /* Open MPI 5 */
    }
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGINT);
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
    if (made)
        remove_directory(directory);
    _exit(launcher < 0 ? 1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* The words that start the ranks: mpirun with the helper, or `weft run` with this command. */
static int compose(char **words, const weft_options *options, int argc, char **argv, bool with_mpi)
{
    static char own[PATH_BYTES], helper[PATH_BYTES], ranks[24], seed[40], mapping[32];
    int count = 0, threads = options_threads(options);
    bool crowded = options->ranks * threads > sysconf(_SC_NPROCESSORS_ONLN);

    if (!own_path(own) || argc > MOST_ARGUMENTS - 24)
        return -1;
    snprintf(ranks, sizeof ranks, "%d", (int)options->ranks);
    snprintf(seed, sizeof seed, "--seed=%llu", (unsigned long long)options->seed);
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
        char *const start[] = {own, "run", "-n", ranks, "--", own, "bench"};
        memcpy(words, start, sizeof start);
        count = (int)(sizeof start / sizeof start[0]);
    }
    for (int i = 0; i < argc; i++)
        words[count++] = argv[i];
    words[count++] = seed;
    words[count] = NULL;
    return 0;
}

int bench_launch(const weft_options *options, int argc, char **argv, bool with_mpi)
{
    char *words[MOST_ARGUMENTS];
    int lines, listener = listen_for_output(&lines);

    with_mpi = with_mpi && bench_has_mpi();
    if (listener < 0 || compose(words, options, argc, argv, with_mpi) != 0) {
        fprintf(stderr, "weft bench: cannot prepare to start ranks: %s\n", strerror(errno));
        return 1;
    }
    /* Open MPI refuses to run as root without these; containers are root. */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    pid_t command = getpid(), launcher = fork();
    if (launcher == 0) {
        if (with_mpi)
            keep(words, command);
        start(words, command);
    }
    if (launcher < 0) {
        fprintf(stderr, "weft bench: cannot start ranks: %s\n", strerror(errno));
        close(listener);
        close(lines);
        return 1;
    }
    int status = follow(listener, lines, launcher, with_mpi);
    close(listener);
    close(lines);
    return status;
}
