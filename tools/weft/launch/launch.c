#include "launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "choose/tuned.h"
#include "core/clock.h"
#include "core/env.h"
#include "core/part.h"
#include "core/topo.h"
#include "gemm/gemm.h"
#include "group/launcher.h"
#include "group/segment.h"
#include "launch/family.h"
#include "launch/output.h"
#include "net/secret.h"
#include "sim/machine.h"

enum {
    CPUS_MAX = 4096,
    GRACE_MS = 500, /* after a rank failed the others may end by themselves: weft tells them why … */
    TERM_MS = 3000, /* … then they are asked to, and after this long killed */
};

typedef struct warden {
    const launch_job *job;
    weft_segment segment;
    pid_t *pids; /* 0 once the rank has ended */
    launch_stream *streams;
    int stream_count;
    int running;
    int signals;  /* signalfd */
    int lifeline; /* ends when the front is gone */
    int status;   /* what launch_ranks returns */
    bool ending;  /* a rank failed or a signal came */
    bool asked;   /* a signal came */
    int64_t next_step_ns;
    int next_signal;
    bool unwritten;              /* output of the ranks is lost, and that is said */
    struct rlimit files;         /* as it was inherited: ranks get it back */
    struct sigaction on_sigpipe; /* likewise */
    weft_topo_cpu *cpus;
    int cpu_count;
    int port; /* where ranks of several nodes meet, and the secret that they ask each other for */
    char secret[40];
} warden;

__attribute__((format(printf, 2, 3))) static void fail(const launch_job *job, const char *format, ...)
{
    char line[1024];
    int used = snprintf(line, sizeof(line), "%s: ", job->who);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line + used, sizeof(line) - (size_t)used, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s\n", line);
}

/* ---- placement ------------------------------------------------------------------------------------ */

static int count_distinct(const weft_topo_cpu *cpus, int count, bool nodes)
{
    int distinct = 0;

    for (int i = 0; i < count; i++)
        distinct += i == 0 || (nodes ? cpus[i].node != cpus[i - 1].node : cpus[i].core != cpus[i - 1].core);
    return distinct;
}

/* Chooses what AUTO means here; false when cores were demanded and there are too few. */
static bool settle_bind(const launch_job *job, int count, launch_bind *bind)
{
    *bind = job->bind;
    if (*bind == LAUNCH_BIND_AUTO)
        *bind = job->size <= count && job->size > 1 ? LAUNCH_BIND_CORE : LAUNCH_BIND_NONE;
    return *bind != LAUNCH_BIND_CORE || job->size <= count;
}

/* The CPUs of rank r: its part of the cores (or of the CPUs, where cores do not suffice), or all of its node.
 */
static void bind_rank(const warden *w, launch_bind bind, int rank)
{
    bool nodes = bind == LAUNCH_BIND_NUMA;
    int units = count_distinct(w->cpus, w->cpu_count, nodes);
    bool singly = !nodes && units < w->job->size;
    weft_span mine = nodes ? (weft_span){(int64_t)rank * units / w->job->size, 1}
                           : weft_part(singly ? w->cpu_count : units, w->job->size, rank);
    size_t bytes = CPU_ALLOC_SIZE(1 << 16);
    cpu_set_t *set = CPU_ALLOC(1 << 16);
    int unit = -1;

    if (!set)
        return;
    CPU_ZERO_S(bytes, set);
    for (int i = 0; i < w->cpu_count; i++) {
        unit += i == 0 || singly ||
                (nodes ? w->cpus[i].node != w->cpus[i - 1].node : w->cpus[i].core != w->cpus[i - 1].core);
        if (unit >= mine.begin && unit < mine.begin + mine.count)
            CPU_SET_S(w->cpus[i].cpu, bytes, set);
    }
    sched_setaffinity(0, bytes, set); /* placement is a favour; without it the rank still runs */
    CPU_FREE(set);
}

/* ---- nodes ---------------------------------------------------------------------------------------- */

/* A port that is free now. Whoever takes it before rank 0 does makes the job fail, with a sentence. */
static bool find_meeting(warden *w)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(at);
    uint64_t random[2];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool found = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 &&
                 getsockname(fd, (struct sockaddr *)&at, &bytes) == 0 && weft_random(random, sizeof(random));

    if (fd >= 0)
        close(fd);
    if (!found)
        return false;
    w->port = ntohs(at.sin_port);
    snprintf(w->secret, sizeof(w->secret), "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return true;
}

/* ---- starting ------------------------------------------------------------------------------------- */

static void be_rank(warden *w, launch_bind bind, int rank, int out[2], int err[2], pid_t parent)
{
    sigset_t none;
    char node[16];
    bool announced;
    int null;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it ended before the line above */
        _exit(1);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    sigaction(SIGPIPE, &w->on_sigpipe, NULL);
    setrlimit(RLIMIT_NOFILE, &w->files);
    close(w->signals);
    close(w->lifeline);
    if (out[1] >= 0) {
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        close(out[1]);
        close(err[1]);
    }
    if (rank > 0 || w->job->total) { /* standard input goes to rank 0 */
        null = open("/dev/null", O_RDONLY);
        if (null > 0) {
            dup2(null, STDIN_FILENO);
            close(null);
        }
    }
    if (bind != LAUNCH_BIND_NONE)
        bind_rank(w, bind, rank);
    if (w->job->total) {
        announced = weft_launcher_announce_node(w->job->first + rank, w->job->total, w->job->host,
                                                w->job->master, w->job->port, w->job->secret);
    } else if (w->job->domain) {
        snprintf(node, sizeof(node), "%d", (int)w->job->domain[rank]);
        announced = weft_launcher_announce_node(rank, w->job->size, node, "127.0.0.1", w->port, w->secret);
    } else {
        announced = weft_launcher_announce(&w->segment, rank);
    }
    if (!announced) {
        fail(w->job, "cannot set the environment of rank %d", rank);
        _exit(1);
    }
    exit(w->job->body(rank, w->job->argument));
}

static bool start_rank(warden *w, launch_bind bind, int rank)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    pid_t self = getpid();

    if (w->job->output == LAUNCH_OUTPUT_PREFIX &&
        (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)) {
        fail(w->job, "cannot make pipes for the output of rank %d: %s (--output merge needs none)", rank,
             strerror(errno));
        if (out[0] >= 0) {
            close(out[0]);
            close(out[1]);
        }
        return false;
    }
    w->pids[rank] = fork();
    if (w->pids[rank] == 0)
        be_rank(w, bind, rank, out, err, self);
    if (w->pids[rank] < 0) {
        fail(w->job, "cannot start rank %d: %s", rank, strerror(errno));
        w->pids[rank] = 0;
        return false;
    }
    w->running++;
    if (out[0] >= 0) {
        close(out[1]);
        close(err[1]);
        w->streams[w->stream_count++] =
            (launch_stream){.from = out[0], .to = STDOUT_FILENO, .rank = w->job->first + rank};
        w->streams[w->stream_count++] =
            (launch_stream){.from = err[0], .to = STDERR_FILENO, .rank = w->job->first + rank};
    }
    return true;
}

/* ---- watching ------------------------------------------------------------------------------------- */

static void signal_ranks(const warden *w, int signal)
{
    launch_family_signal(w->pids, w->job->size, signal);
}

/* From here on ranks get `now` (0: nothing), after `ms` the signal `then`, and in the end SIGKILL. */
static void begin_ending(warden *w, int status, int now, int ms, int then)
{
    if (!w->ending)
        w->status = status;
    w->ending = true;
    if (now)
        signal_ranks(w, now);
    w->next_signal = then;
    w->next_step_ns = weft_clock_ns() + (int64_t)ms * 1000000;
}

static void step_ending(warden *w)
{
    if (!w->ending || weft_clock_ns() < w->next_step_ns)
        return;
    signal_ranks(w, w->next_signal);
    w->next_signal = SIGKILL;
    w->next_step_ns = weft_clock_ns() + (int64_t)TERM_MS * 1000000;
}

static void rank_ended(warden *w, int rank, int wait_status)
{
    bool entered = weft_segment_came(&w->segment, rank);
    char where[300];

    w->running--;
    if (!entered) /* whoever waits for it in weft_init need not wait any longer */
        weft_segment_set_left(&w->segment, rank);
    if (wait_status == 0 || w->ending) {
        w->pids[rank] = 0;
        return;
    }
    snprintf(where, sizeof(where), w->job->total ? " on %s" : "%s", w->job->total ? w->job->host : "");
    if (WIFSIGNALED(wait_status)) {
        fail(w->job, "rank %d%s (process %d) was ended by signal %d (%s)%s", w->job->first + rank, where,
             (int)w->pids[rank], WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)),
             w->running ? "; ending the others" : "");
        begin_ending(w, 128 + WTERMSIG(wait_status), 0, GRACE_MS, SIGTERM);
    } else {
        fail(w->job, "rank %d%s (process %d) ended with status %d%s", w->job->first + rank, where,
             (int)w->pids[rank], WEXITSTATUS(wait_status), w->running ? "; ending the others" : "");
        begin_ending(w, WEXITSTATUS(wait_status), 0, GRACE_MS, SIGTERM);
    }
    w->pids[rank] = 0;
}

static void reap(warden *w)
{
    int wait_status;
    pid_t pid;

    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0)
        for (int rank = 0; rank < w->job->size; rank++)
            if (w->pids[rank] == pid)
                rank_ended(w, rank, wait_status);
}

/* A signal that was sent to us is passed on; one from the terminal has reached the ranks already. The second
 * one means at once. */
static void pass_on(warden *w, int signal, bool reached)
{
    int status = 128 + signal;

    switch (signal) {
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
    case SIGQUIT:
        if (w->asked)
            signal = SIGKILL;
        else if (reached)
            signal = 0;
        w->asked = true;
        begin_ending(w, status, signal, TERM_MS, SIGKILL);
        break;
    default: /* not for what the ranks started */
        for (int rank = 0; rank < w->job->size; rank++)
            if (w->pids[rank] > 0 && !reached)
                kill(w->pids[rank], signal);
    }
}

static void take_signal(warden *w)
{
    struct signalfd_siginfo info;

    if (read(w->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGCHLD)
        reap(w);
    else
        pass_on(w, (int)info.ssi_signo, info.ssi_code == SI_KERNEL);
}

/* What another host sends; false when it is gone. */
static bool take_command(warden *w)
{
    unsigned char byte;
    ssize_t got = read(w->job->commands, &byte, 1);

    if (got == 1 && byte > 0 && byte < 32)
        pass_on(w, byte, false);
    return got == 1 || (got < 0 && errno == EINTR);
}

/* The output of the ranks cannot be written. A reader that is gone ends the job, as it would end one process;
 * without room the ranks' work goes on, and its status says that their words are lost. */
static void output_lost(warden *w, int why)
{
    if (why == EPIPE) {
        if (!w->ending)
            begin_ending(w, 128 + SIGPIPE, SIGTERM, TERM_MS, SIGKILL);
    } else if (!w->unwritten) {
        fail(w->job, "cannot write the output of the ranks: %s", strerror(why));
        w->unwritten = true;
    }
}

/* Passes output on and watches until every rank and every stream has ended. */
static void watch(warden *w)
{
    enum { SIGNALS, LIFELINE, COMMANDS, FIXED };
    struct pollfd *polled = calloc((size_t)w->stream_count + FIXED, sizeof(*polled));

    if (!polled) {
        fail(w->job, "out of memory");
        begin_ending(w, 1, SIGKILL, 0, SIGKILL);
        return;
    }
    polled[SIGNALS] = (struct pollfd){.fd = w->signals, .events = POLLIN};
    polled[LIFELINE] = (struct pollfd){.fd = w->lifeline, .events = POLLIN};
    polled[COMMANDS] = (struct pollfd){.fd = w->job->total ? w->job->commands : -1, .events = POLLIN};
    for (;;) {
        int open = 0;

        for (int i = 0; i < w->stream_count; i++) {
            polled[FIXED + i] = (struct pollfd){.fd = w->streams[i].from, .events = POLLIN};
            open += w->streams[i].from >= 0;
        }
        if (w->running == 0 && open == 0)
            break;
        /* When the ranks are gone, output still in the pipes is read; what others hold open is not waited
         * for. */
        if (poll(polled, (nfds_t)w->stream_count + FIXED, w->running ? 100 : 0) == 0 && w->running == 0)
            break;
        if (polled[LIFELINE].revents || (polled[COMMANDS].revents && !take_command(w))) { /* it is gone */
            w->status = 1;
            break;
        }
        for (int i = 0; i < w->stream_count; i++)
            if (w->streams[i].from >= 0 && polled[FIXED + i].revents && !launch_stream_pump(&w->streams[i]))
                output_lost(w, errno);
        if (polled[SIGNALS].revents)
            take_signal(w);
        step_ending(w);
    }
    free(polled);
}

static int be_warden(const launch_job *job, weft_segment segment, weft_topo_cpu *cpus, int cpu_count,
                     launch_bind bind, int lifeline, const sigset_t *watched)
{
    warden w = {.job = job, .segment = segment, .lifeline = lifeline, .cpus = cpus, .cpu_count = cpu_count};

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, &w.on_sigpipe);
    getrlimit(RLIMIT_NOFILE, &w.files);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){w.files.rlim_max, w.files.rlim_max}); /* two pipes a rank */
    w.pids = calloc((size_t)job->size, sizeof(*w.pids));
    w.streams = calloc((size_t)job->size * 2, sizeof(*w.streams));
    w.signals = signalfd(-1, watched, SFD_CLOEXEC);
    if (!w.pids || !w.streams || w.signals < 0) {
        fail(job, "cannot prepare to start ranks: %s", strerror(errno));
        w.status = 1;
    }
    if (w.status == 0 && job->domain && !find_meeting(&w)) {
        fail(job, "cannot find a port for the ranks to meet at: %s", strerror(errno));
        w.status = 1;
    }
    for (int rank = 0; rank < job->size && w.status == 0; rank++)
        if (!start_rank(&w, bind, rank))
            w.status = 1;
    if (w.status == 0)
        watch(&w);
    for (int i = 0; i < w.stream_count; i++) /* /proc is read with descriptors, which may have run out */
        if (w.streams[i].from >= 0)
            close(w.streams[i].from);
    if (!launch_family_end(w.pids, w.pids ? job->size : 0))
        fail(job, "what the ranks left behind cannot be found without /proc and may still run");
    if (w.status == 0 && w.unwritten)
        w.status = 1;
    free(w.pids);
    free(w.streams);
    return w.status;
}

bool launch_own_path(char *path, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
    const char *started = (const char *)getauxval(AT_EXECFN); /* where there is no /proc */
    char *real;

    if (length > 0) {
        path[length] = 0;
        return true;
    }
    real = started ? realpath(started, NULL) : NULL;
    if (real)
        snprintf(path, bytes, "%s", real);
    free(real);
    return real != NULL;
}

bool launch_finds(const char *program)
{
    const char *path = getenv("PATH"), *rest = path ? path : "/bin:/usr/bin"; /* as execvp reads it */
    char candidate[4096];

    if (strchr(program, '/'))
        return access(program, X_OK) == 0;
    errno = ENOENT;
    while (*rest) {
        size_t length = strcspn(rest, ":");

        snprintf(candidate, sizeof(candidate), "%.*s/%s", length ? (int)length : 1, length ? rest : ".",
                 program);
        if (access(candidate, X_OK) == 0)
            return true;
        rest += length + (rest[length] == ':');
    }
    return false;
}

/* ---- the front ------------------------------------------------------------------------------------ */

/* Waits for the warden, handing it the signals that are meant for the ranks. */
static int wait_for_warden(const launch_job *job, pid_t pid, const sigset_t *watched)
{
    int status;

    for (;;) {
        siginfo_t info;
        int signal = sigwaitinfo(watched, &info);

        if (signal == SIGCHLD) {
            if (waitpid(pid, &status, WNOHANG) == pid)
                break;
        } else if (signal > 0 && info.si_code != SI_KERNEL) {
            kill(pid, signal);
        }
    }
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    fail(job, "the process that looked after the ranks was ended by signal %d; ending the ranks",
         WTERMSIG(status));
    if (!launch_family_end(NULL, 0))
        fail(job, "what the ranks left behind cannot be found without /proc and may still run");
    return 128 + WTERMSIG(status);
}

/* Whether the caller wants it ignored: what nohup started outlives its terminal. */
static bool stays_ignored(int signal)
{
    struct sigaction action;

    return signal == SIGHUP && sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* What every rank would find wrong is said here once, also of the words that weft_env_check leaves to their
 * readers. */
static bool settings_make_sense(weft_error_text *error)
{
    const weft_core *core;
    weft_machine machine;

    return weft_env_check(error) == WEFT_OK && weft_core_current(&core, error) == WEFT_OK &&
           (!*weft_env_word(WEFT_ENV_MACHINE) || weft_machine_find(NULL, &machine, error) == WEFT_OK) &&
           (!*weft_env_word(WEFT_ENV_TUNE) || weft_tuned_readable(error) == WEFT_OK);
}

int launch_ranks(const launch_job *job)
{
    static const int forwarded[] = {SIGCHLD, SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                    SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH};
    weft_topo_cpu cpus[CPUS_MAX];
    int cpu_count = weft_topo_cpus(cpus, CPUS_MAX), lifeline[2], status;
    weft_segment segment;
    weft_error_text error;
    launch_bind bind;
    sigset_t watched, before;
    pid_t pid;

    if (!settle_bind(job, cpu_count, &bind)) {
        fail(job,
             "--bind core needs a core per rank; there are %d for %d ranks (--bind none runs them anyway)",
             cpu_count, job->size);
        return 2;
    }
    if (!settings_make_sense(&error) || weft_segment_create(job->size, false, &segment, &error) != WEFT_OK) {
        fail(job, "%s", error.text);
        return 2;
    }
    if (pipe2(lifeline, O_CLOEXEC) != 0) {
        fail(job, "cannot make a pipe: %s", strerror(errno));
        return 1;
    }
    sigemptyset(&watched);
    for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++)
        if (!stays_ignored(forwarded[i]))
            sigaddset(&watched, forwarded[i]);
    sigprocmask(SIG_BLOCK, &watched, &before);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        close(lifeline[1]);
        _exit(be_warden(job, segment, cpus, cpu_count, bind, lifeline[0], &watched));
    }
    close(lifeline[0]);
    if (pid > 0) {
        status = wait_for_warden(job, pid, &watched);
    } else {
        fail(job, "cannot start a process: %s", strerror(errno));
        status = 1;
    }
    close(lifeline[1]);
    weft_segment_release(&segment);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}
