#include "launch/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/env.h"
#include "group/segment.h"
#include "net/secret.h"

extern char **environ;

enum {
    GRACE_MS = 1000, /* after a host failed the others may end by themselves … */
    TERM_MS = 4000, /* … then they are asked to; after this long their members are cut off, then the agents */
    DEAF_MS = 1000, /* an agent that has not taken its letter so long after that is killed */
    SILENT_MS =
        3000, /* an agent that has not taken its letter by then is named; it may be waiting for a host */
    LEAST_PORT = 20000,
    PORTS = 12000, /* from there on: below those that systems give to whoever connects */
    MOST_STRINGS = 1 << 16,
    MOST_BYTES = 1 << 20,
};

static const uint32_t MAGIC = 0x77667431;

/* ---- what is asked for ---------------------------------------------------------------------------- */

/* Cuts "name:4" into the two, and "[::1]:4"; the colon, or NULL: one rank. False: an address that would be
 * read in two ways. */
static bool cut_count(char **name, char **colon)
{
    char *close = **name == '[' ? strchr(*name, ']') : NULL;

    *colon = strchr(close ? close : *name, ':');
    if (close) {
        if (close[1] && *colon != close + 1)
            return false;
        (*name)++;
        *close = 0;
    } else if (*colon && strchr(*colon + 1, ':')) {
        return false;
    }
    if (*colon)
        **colon = 0;
    return true;
}

bool launch_hosts_parse(char *text, launch_hosts *hosts)
{
    char *rest = text, *name;

    while ((name = strsep(&rest, ","))) {
        char *colon, *end;
        long ranks = 1;

        if (!cut_count(&name, &colon))
            return false;
        if (colon) {
            ranks = strtol(colon + 1, &end, 10);
            if (end == colon + 1 || *end)
                return false;
        }
        if (!*name || *name == '-' || strpbrk(name, " \t\n'\"\\$`;&|<>()[]") || ranks < 1 ||
            ranks > WEFT_RANKS_MAX - hosts->ranks || hosts->count == LAUNCH_HOSTS_MAX)
            return false;
        hosts->host[hosts->count++] = (launch_host){name, hosts->ranks, (int)ranks};
        hosts->ranks += (int)ranks;
    }
    return hosts->count > 0;
}

bool launch_hosts_agent(char *text, launch_hosts *hosts)
{
    int words = 0;
    char *rest = text, *word;

    while ((word = strsep(&rest, " \t")))
        if (*word) {
            if (words == LAUNCH_AGENT_WORDS)
                return false;
            hosts->agent[words++] = word;
        }
    hosts->agent[words] = NULL;
    return words > 0;
}

/* ---- what a member is told ------------------------------------------------------------------------ */

/* Strings one after another, each behind its length. */
typedef struct letter {
    char *data;
    size_t used, room;
    bool failed;
} letter;

static void add_bytes(letter *l, const void *data, size_t bytes)
{
    if (l->used + bytes > l->room) {
        size_t room = 2 * (l->used + bytes) + 4096;
        char *more = realloc(l->data, room);

        l->failed |= !more;
        if (!more)
            return;
        l->data = more;
        l->room = room;
    }
    memcpy(l->data + l->used, data, bytes);
    l->used += bytes;
}

static void add_number(letter *l, uint32_t number)
{
    add_bytes(l, &number, sizeof(number));
}

static void add_text(letter *l, const char *text)
{
    add_number(l, (uint32_t)strlen(text));
    add_bytes(l, text, strlen(text));
}

/* What is set for weft and what it uses goes along; agents such as ssh bring no environment. */
static bool goes_along(const char *variable)
{
    static const char *const prefixes[] = {"WEFT_", "UCX_", "OMP_"};
    static const char *const own[] = {
        "WEFT_RANK=", "WEFT_SIZE=", "WEFT_FD=", "WEFT_NONCE=", "WEFT_NODE=", "WEFT_SECRET="};

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strncmp(variable, own[i], strlen(own[i])) == 0)
            return false;
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

typedef struct meeting {
    char master[256], secret[40], directory[4096];
    uint32_t port;
} meeting;

static letter write_letter(const launch_job *job, const launch_hosts *hosts, int index, const meeting *at,
                           char **argv)
{
    const launch_host *host = &hosts->host[index];
    letter l = {0};
    uint32_t count = 0;

    add_number(&l, MAGIC);
    add_number(&l, (uint32_t)host->first);
    add_number(&l, (uint32_t)host->ranks);
    add_number(&l, (uint32_t)hosts->ranks);
    add_number(&l, at->port);
    add_number(&l, (uint32_t)job->bind);
    add_number(&l, (uint32_t)job->output);
    add_text(&l, host->name);
    add_text(&l, at->master);
    add_text(&l, at->secret);
    add_text(&l, at->directory);
    for (char **variable = environ; *variable; variable++)
        count += goes_along(*variable);
    add_number(&l, count);
    for (char **variable = environ; *variable; variable++)
        if (goes_along(*variable))
            add_text(&l, *variable);
    for (count = 0; argv[count]; count++)
        ;
    add_number(&l, count);
    for (uint32_t i = 0; i < count; i++)
        add_text(&l, argv[i]);
    return l;
}

/* ---- the side that starts agents ------------------------------------------------------------------ */

typedef struct agent {
    pid_t pid; /* 0 once it has ended */
    int pipe;  /* -1: closed; writes do not wait */
    letter letter;
    size_t sent; /* bytes of it */
    bool taken;  /* all of it */
    bool named;  /* as one that is waited for */
} agent;

typedef struct agents {
    const launch_job *job;
    const launch_hosts *hosts;
    agent *each;
    int running, status;
    bool ending, asked;
    int step; /* of ending: what comes next */
    int64_t next_step_ns;
    int64_t deaf_ns; /* of ending: when agents must have taken their letter */
    int64_t began_ns;
    double patience_s; /* with an agent that takes nothing */
} agents;

static void say(const agents *a, int index, const char *before, const char *what, double number,
                const char *after)
{
    const launch_host *host = &a->hosts->host[index];

    fprintf(stderr, "%s: %shost %s (ranks %d to %d): %s %s %g%s\n", a->job->who, before, host->name,
            host->first, host->first + host->ranks - 1, a->hosts->agent[0], what, number, after);
}

static void tell(agents *a, int signal)
{
    char byte = (char)signal;

    for (int i = 0; i < a->hosts->count; i++) {
        agent *to = &a->each[i];

        /* One that is gone, or has no room for a byte, is noticed elsewhere. */
        if (to->pipe >= 0 && to->pid && to->sent == to->letter.used && write(to->pipe, &byte, 1) < 0)
            continue;
    }
}

static void cut(agent *one)
{
    if (one->pipe >= 0)
        close(one->pipe);
    one->pipe = -1;
}

static void cut_off(agents *a)
{
    for (int i = 0; i < a->hosts->count; i++)
        cut(&a->each[i]);
}

enum { STEP_ASK, STEP_CUT, STEP_KILL };

static void begin_ending(agents *a, int status, int ms, int step)
{
    int64_t now = weft_clock_ns();

    if (!a->ending)
        a->status = status;
    a->ending = true;
    a->step = step;
    a->next_step_ns = now + (int64_t)ms * 1000000;
    a->deaf_ns = (step == STEP_ASK ? a->next_step_ns : now) + (int64_t)DEAF_MS * 1000000;
}

/* Whether it has read all that it was told. */
static bool hears(const agent *one)
{
    int unread;

    return one->pipe >= 0 && one->sent == one->letter.used && ioctl(one->pipe, FIONREAD, &unread) == 0 &&
           unread == 0;
}

static void step_ending(agents *a)
{
    int64_t now = weft_clock_ns();

    if (!a->ending)
        return;
    for (int i = 0; i < a->hosts->count; i++) {
        agent *one = &a->each[i];

        /* One that has taken its letter has ranks that may need their time, even if it does not read now: it
         * may wait for whoever reads its output. */
        one->taken |= hears(one);
        if (one->pid && (one->taken ? a->step == STEP_KILL && now >= a->next_step_ns : now >= a->deaf_ns))
            kill(one->pid, SIGKILL);
    }
    if (now < a->next_step_ns || a->step == STEP_KILL)
        return;
    if (a->step == STEP_ASK)
        tell(a, SIGTERM);
    else
        cut_off(a);
    a->step++;
    a->next_step_ns = now + (int64_t)TERM_MS * 1000000;
}

/* As much of its letter as there is room for, and whether it has taken all: nothing else tells that it has
 * come to its host. */
static void hand_over(agent *to)
{
    ssize_t written = 0;

    if (to->taken || to->pipe < 0)
        return;
    if (to->sent < to->letter.used)
        written = write(to->pipe, to->letter.data + to->sent, to->letter.used - to->sent);
    to->sent += written > 0 ? (size_t)written : 0;
    to->taken = hears(to);
}

static void look_at_letters(agents *a)
{
    double silent_s = (double)(weft_clock_ns() - a->began_ns) * 1e-9;
    char until[64];

    for (int i = 0; i < a->hosts->count && !a->ending; i++) {
        agent *one = &a->each[i];

        hand_over(one);
        if (one->taken || !one->pid)
            continue;
        if (silent_s >= a->patience_s) {
            say(a, i, "", "has started nothing there for", a->patience_s, " s; ending the others");
            begin_ending(a, 1, 0, STEP_CUT);
        } else if (silent_s >= fmin(SILENT_MS * 1e-3, a->patience_s / 2) && !one->named) {
            one->named = true;
            snprintf(until, sizeof(until), " s; it is given %g s (WEFT_ENTER_TIMEOUT)", a->patience_s);
            say(a, i, "waiting for ", "has started nothing there for", floor(silent_s), until);
        }
    }
}

static void start_agent(agents *a, int index, const char *weft, const sigset_t *before)
{
    agent *one = &a->each[index];
    char *words[LAUNCH_AGENT_WORDS + 5];
    int used = 0, pipe[2];
    pid_t self = getpid();

    for (; a->hosts->agent[used]; used++)
        words[used] = a->hosts->agent[used];
    words[used++] = a->hosts->host[index].name;
    words[used++] = (char *)(uintptr_t)weft;
    words[used++] = (char *)(uintptr_t) "run";
    words[used++] = (char *)(uintptr_t) "--member";
    words[used] = NULL;
    if (pipe2(pipe, O_CLOEXEC) != 0) {
        fprintf(stderr, "%s: cannot make a pipe: %s\n", a->job->who, strerror(errno));
        begin_ending(a, 1, 0, STEP_CUT);
        return;
    }
    one->pid = fork();
    if (one->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != self)
            _exit(1);
        setpgid(0, 0); /* what a terminal sends comes from the front, in order */
        dup2(pipe[0], STDIN_FILENO);
        sigprocmask(SIG_SETMASK, before, NULL);
        sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
        execvp(words[0], words);
        fprintf(stderr, "%s: cannot start %s: %s\n", a->job->who, words[0], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    close(pipe[0]);
    one->pipe = pipe[1];
    fcntl(one->pipe, F_SETFL, O_NONBLOCK); /* an agent that hangs is not to keep us from saying so */
    if (one->pid < 0) {
        fprintf(stderr, "%s: cannot start a process: %s\n", a->job->who, strerror(errno));
        one->pid = 0;
        begin_ending(a, 1, 0, STEP_CUT);
        return;
    }
    a->running++;
    hand_over(one);
}

static void agent_ended(agents *a, int index, int status)
{
    a->running--;
    a->each[index].pid = 0;
    cut(&a->each[index]);
    if (status == 0 || a->ending)
        return;
    if (WIFSIGNALED(status)) {
        say(a, index, "", "was ended by signal", WTERMSIG(status), "");
        begin_ending(a, 128 + WTERMSIG(status), GRACE_MS, STEP_ASK);
    } else {
        say(a, index, "", "ended with status", WEXITSTATUS(status), "");
        begin_ending(a, WEXITSTATUS(status), GRACE_MS, STEP_ASK);
    }
}

static void watch(agents *a, const sigset_t *watched)
{
    while (a->running) {
        struct timespec wait = {0, 50000000};
        siginfo_t info;
        int signal = sigtimedwait(watched, &info, &wait), status;
        pid_t pid;

        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            for (int i = 0; i < a->hosts->count; i++)
                if (a->each[i].pid == pid)
                    agent_ended(a, i, status);
        if (signal > 0 && signal != SIGCHLD)
            tell(a, signal);
        if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT) {
            if (a->step != STEP_KILL)
                begin_ending(a, 128 + signal, a->asked ? 0 : TERM_MS, STEP_CUT);
            a->asked = true;
        }
        look_at_letters(a);
        step_ending(a);
    }
}

/* The port is not known to be free there; rank 0 says so if it is not. */
static bool find_meeting(const launch_hosts *hosts, meeting *at)
{
    const char *name = hosts->master ? hosts->master : hosts->host[0].name, *user = strrchr(name, '@');
    uint64_t random[3];

    if (!weft_random(random, sizeof(random)) || !getcwd(at->directory, sizeof(at->directory)))
        return false;
    snprintf(at->master, sizeof(at->master), "%s", user ? user + 1 : name);
    snprintf(at->secret, sizeof(at->secret), "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    at->port = LEAST_PORT + (uint32_t)(random[2] % PORTS);
    return true;
}

int launch_over_hosts(const launch_job *job, const launch_hosts *hosts, char **argv)
{
    static const int forwarded[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    agents a = {.job = job,
                .hosts = hosts,
                .each = calloc((size_t)hosts->count, sizeof(agent)),
                .began_ns = weft_clock_ns()};
    char weft[4096];
    sigset_t watched, before;
    weft_error_text error;
    meeting at;

    if (weft_env_seconds(WEFT_ENV_ENTER_TIMEOUT, &a.patience_s, &error) != WEFT_OK) {
        fprintf(stderr, "%s: %s\n", job->who, error.text);
        free(a.each);
        return 2;
    }
    if (!a.each || !find_meeting(hosts, &at) || !launch_own_path(weft, sizeof(weft))) {
        fprintf(stderr, "%s: cannot prepare to start ranks: %s\n", job->who, strerror(errno));
        free(a.each);
        return 1;
    }
    sigemptyset(&watched);
    for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++)
        sigaddset(&watched, forwarded[i]);
    sigprocmask(SIG_BLOCK, &watched, &before);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    for (int i = 0; i < hosts->count; i++)
        a.each[i].pipe = -1;
    for (int i = 0; i < hosts->count && !a.ending; i++) {
        a.each[i].letter = write_letter(job, hosts, i, &at, argv);
        if (a.each[i].letter.failed) {
            fprintf(stderr, "%s: out of memory\n", job->who);
            begin_ending(&a, 1, 0, STEP_CUT);
        } else {
            start_agent(&a, i, weft, &before);
        }
    }
    watch(&a, &watched);
    cut_off(&a);
    for (int i = 0; i < hosts->count; i++)
        free(a.each[i].letter.data);
    free(a.each);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return a.status;
}

/* ---- the member ----------------------------------------------------------------------------------- */

static bool read_all(void *data, size_t bytes)
{
    char *into = data;

    while (bytes > 0) {
        ssize_t got = read(STDIN_FILENO, into, bytes);

        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        into += got > 0 ? got : 0;
        bytes -= got > 0 ? (size_t)got : 0;
    }
    return true;
}

static bool read_number(uint32_t *number, uint32_t most)
{
    return read_all(number, sizeof(*number)) && *number <= most;
}

static char *read_text(void)
{
    uint32_t bytes;
    char *text;

    if (!read_number(&bytes, MOST_BYTES))
        return NULL;
    text = malloc((size_t)bytes + 1);
    if (text && read_all(text, bytes)) {
        text[bytes] = 0;
        return text;
    }
    free(text);
    return NULL;
}

/* NULL at the end; whatever of it was read stays, since the process ends soon. */
static char **read_texts(void)
{
    uint32_t count;
    char **texts;

    if (!read_number(&count, MOST_STRINGS))
        return NULL;
    texts = calloc((size_t)count + 1, sizeof(*texts));
    for (uint32_t i = 0; texts && i < count; i++) {
        texts[i] = read_text();
        if (!texts[i])
            return NULL;
    }
    return texts;
}

static int be_program(int rank, void *argument)
{
    char **argv = argument;
    int why;

    (void)rank;
    execvp(argv[0], argv);
    why = errno;
    fprintf(stderr, "weft run: cannot start %s: %s\n", argv[0], strerror(why));
    return why == ENOENT ? 127 : 126;
}

/* Ranks would wait for rank 0 as long as they may, and only then say why. Programs that are no ranks of weft
 * need not meet: so this is told, and not an error. */
static void look_for_master(const launch_job *job)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int failed = getaddrinfo(job->master, NULL, &hints, &list);

    if (failed)
        fprintf(stderr,
                "weft run: host %s does not know \"%s\", where its ranks are to find rank 0: %s; --master "
                "ADDRESS says how it is reached from there\n",
                job->host, job->master, gai_strerror(failed));
    else
        freeaddrinfo(list);
}

int launch_member(void)
{
    uint32_t magic, first, ranks, total, port, bind, output;
    launch_job job = {.who = "weft run", .body = be_program, .commands = -1};
    char *directory = NULL, **variables = NULL, **argv = NULL;

    if (!read_number(&magic, UINT32_MAX) || magic != MAGIC || !read_number(&first, WEFT_RANKS_MAX) ||
        !read_number(&ranks, WEFT_RANKS_MAX) || !read_number(&total, WEFT_RANKS_MAX) ||
        !read_number(&port, 65535) || !read_number(&bind, LAUNCH_BIND_NUMA) ||
        !read_number(&output, LAUNCH_OUTPUT_PREFIX) || !(job.host = read_text()) ||
        !(job.master = read_text()) || !(job.secret = read_text()) || !(directory = read_text()) ||
        !(variables = read_texts()) || !(argv = read_texts()) || !argv[0]) {
        fprintf(stderr, "weft run: --member is what --hosts starts on each of them\n");
        return 2;
    }
    for (char **variable = variables; *variable; variable++)
        putenv(*variable);
    if (chdir(directory) != 0) {
        fprintf(stderr, "weft run: host %s has no directory %s: %s\n", job.host, directory, strerror(errno));
        return 2;
    }
    if (!launch_finds(argv[0])) {
        fprintf(stderr, "weft run: host %s: cannot start %s: %s\n", job.host, argv[0], strerror(errno));
        return errno == ENOENT ? 127 : 126;
    }
    job.size = (int)ranks;
    job.first = (int)first;
    job.total = (int)total;
    job.port = (int)port;
    job.bind = (launch_bind)bind;
    job.output = (launch_output)output;
    job.commands = STDIN_FILENO;
    job.argument = argv;
    if (job.first + job.size > 1) /* rank 0 looks for nobody */
        look_for_master(&job);
    return launch_ranks(&job);
}
