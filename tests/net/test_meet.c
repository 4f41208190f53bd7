/* The first words of ranks on several nodes: all get all blocks; strangers, garbage and the silent do not
 * matter. */
#include "net/meet.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "net/secret.h"
#include "support/check.h"

enum { RANKS = 4, BYTES = 700 };

typedef struct part {
    weft_meet meet;
    weft_status status;
    weft_error_text error;
    unsigned char all[RANKS][BYTES];
} part;

/* A port that was free a moment ago. */
static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    CHECK(bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &bytes) == 0);
    close(fd);
    return ntohs(at.sin_port);
}

static int connect_to(int port)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    for (int i = 0; i < 1000; i++) {
        if (connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0)
            return fd;
        usleep(10000);
    }
    close(fd);
    return -1;
}

static void *run_part(void *argument)
{
    part *p = argument;
    unsigned char mine[BYTES];

    memset(mine, 1 + p->meet.rank, sizeof(mine));
    p->status = weft_meet_gather(&p->meet, mine, sizeof(mine), p->all, &p->error);
    return NULL;
}

static void begin(part *parts, pthread_t *threads, int first, int end, int port, double seconds)
{
    for (int rank = first; rank < end; rank++) {
        parts[rank].meet = (weft_meet){.host = "127.0.0.1",
                                       .port = port,
                                       .ports = 1,
                                       .secret = "a secret",
                                       .rank = rank,
                                       .size = RANKS,
                                       .deadline_ns = weft_clock_ns() + (int64_t)(seconds * 1e9),
                                       .tell_ns = INT64_MAX};
        CHECK_INT(pthread_create(&threads[rank], NULL, run_part, &parts[rank]), 0);
    }
}

static void check_all(void)
{
    static part parts[RANKS];
    static part wrong;
    pthread_t threads[RANKS];
    int port = free_port(), silent, garbage;
    bool equal = true;

    begin(parts, threads, 0, 1, port, 60);
    silent = connect_to(port);
    garbage = connect_to(port);
    CHECK(silent >= 0 && garbage >= 0);
    CHECK(send(garbage, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
    wrong.meet = (weft_meet){.host = "127.0.0.1",
                             .port = port,
                             .ports = 1,
                             .secret = "another secret",
                             .rank = 2,
                             .size = RANKS,
                             .deadline_ns = weft_clock_ns() + 60000000000};
    run_part(&wrong);
    CHECK_INT(wrong.status, WEFT_ERR_LAUNCH);
    CHECK_HAS(wrong.error.text, "WEFT_SECRET differs");
    begin(parts, threads, 1, RANKS, port, 60);
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK_INT(pthread_join(threads[rank], NULL), 0);
        CHECK_INT(parts[rank].status, WEFT_OK);
        for (int other = 0; other < RANKS; other++)
            for (int at = 0; at < BYTES; at++)
                equal = equal && parts[rank].all[other][at] == 1 + other;
    }
    CHECK(equal);
    close(silent);
    close(garbage);
    silent = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(silent,
                  (struct sockaddr *)&(struct sockaddr_in){.sin_family = AF_INET,
                                                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                                           .sin_port = htons((uint16_t)port)},
                  sizeof(struct sockaddr_in)) != 0); /* nobody listens any more */
    close(silent);
}

/* A rank that does not come: rank 0 names it, and those who came hear it. */
static void check_missing(void)
{
    static part parts[RANKS];
    pthread_t threads[RANKS];
    int port = free_port();

    begin(parts, threads, 0, 1, port, 1);
    begin(parts, threads, 1, RANKS - 1, port, 30);
    for (int rank = 0; rank < RANKS - 1; rank++) {
        CHECK_INT(pthread_join(threads[rank], NULL), 0);
        CHECK_INT(parts[rank].status, WEFT_ERR_LAUNCH);
        CHECK_HAS(parts[rank].error.text, "have not come to rank 0");
        CHECK_HAS(parts[rank].error.text, ": 3");
    }
}

/* What a rank says on standard error that reaches nobody at `host` for a moment, before its error. */
static void check_unreached(const char *host, int port)
{
    part lost = {.meet = {.host = host,
                          .port = port,
                          .ports = 1,
                          .secret = "a secret",
                          .rank = 2,
                          .size = RANKS,
                          .deadline_ns = weft_clock_ns() + 200000000,
                          .tell_ns = 50000000}};
    char said[1024] = "";
    int before = dup(STDERR_FILENO), ends[2];

    CHECK_INT(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    run_part(&lost);
    dup2(before, STDERR_FILENO);
    close(before);
    CHECK(read(ends[0], said, sizeof(said) - 1) > 0);
    close(ends[0]);
    CHECK_HAS(said, "rank 2 has not reached rank 0 at ");
    CHECK_HAS(said, host);
    CHECK_HAS(said, "MASTER_ADDR must name the host of rank 0");
    CHECK(strchr(said, '\n') == said + strlen(said) - 1); /* one line */
    CHECK_INT(lost.status, WEFT_ERR_LAUNCH);
}

/* Rank 0 may open no more than its listener and one rank: that is said, not waited for. */
static void check_no_more_files(void)
{
    static part parts[RANKS];
    pthread_t threads[RANKS];
    int port = free_port(), told = 0, ended = 0;
    pid_t host = fork();

    if (host == 0) {
        int next = dup(STDIN_FILENO);
        struct rlimit files = {(rlim_t)next + 2, (rlim_t)next + 2};

        close(next);
        setrlimit(RLIMIT_NOFILE, &files);
        begin(parts, threads, 0, 1, port, 60);
        pthread_join(threads[0], NULL);
        _exit(parts[0].status == WEFT_ERR_SYSTEM && strstr(parts[0].error.text, "with 2 of 4 ranks there")
                  ? 0
                  : 1);
    }
    begin(parts, threads, 1, RANKS, port, 10);
    CHECK(waitpid(host, &ended, 0) == host && ended == 0);
    for (int rank = 1; rank < RANKS; rank++) {
        CHECK_INT(pthread_join(threads[rank], NULL), 0);
        told += parts[rank].status == WEFT_ERR_SYSTEM && strstr(parts[rank].error.text, "ulimit -n");
    }
    CHECK_INT(told, 1);
}

/* A rank that may open nothing says so at once, and does not look for rank 0 until its time is over. */
static void check_guest_without_files(void)
{
    static part parts[RANKS];
    int ended = 0;
    pid_t guest = fork();

    if (guest == 0) {
        int next = dup(STDIN_FILENO);
        struct rlimit files = {(rlim_t)next, (rlim_t)next};

        close(next);
        setrlimit(RLIMIT_NOFILE, &files);
        alarm(60);
        parts[1].meet = (weft_meet){.host = "127.0.0.1",
                                    .port = 1,
                                    .ports = 1,
                                    .secret = "",
                                    .rank = 1,
                                    .size = RANKS,
                                    .deadline_ns = weft_clock_ns() + 600000000000};
        run_part(&parts[1]);
        _exit(parts[1].status == WEFT_ERR_SYSTEM &&
                      strstr(parts[1].error.text, "rank 1 cannot connect to rank 0 at 127.0.0.1") &&
                      strstr(parts[1].error.text, "ulimit -n")
                  ? 0
                  : 1);
    }
    CHECK(waitpid(guest, &ended, 0) == guest);
    CHECK_INT(ended, 0);
}

/* Two jobs that were given the same port: the second one's rank 0 takes the next, and nobody who is turned
 * away by the first takes that for an answer. */
static void check_neighbours(void)
{
    static part parts[2][RANKS];
    pthread_t threads[2][RANKS];
    int port = free_port();

    for (int job = 0; job < 2; job++) {
        for (int rank = 0; rank < (job ? RANKS : 1); rank++) {
            parts[job][rank].meet =
                (weft_meet){.host = "localhost",
                            .port = port,
                            .ports = 8,
                            .secret = job ? "second" : "first",
                            .rank = rank,
                            .size = RANKS,
                            .deadline_ns = weft_clock_ns() + (job ? 60 : 4) * 1000000000ll};
            CHECK_INT(pthread_create(&threads[job][rank], NULL, run_part, &parts[job][rank]), 0);
        }
        if (job == 0)
            close(connect_to(port));
    }
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK_INT(pthread_join(threads[1][rank], NULL), 0);
        CHECK_INT(parts[1][rank].status, WEFT_OK);
    }
    CHECK_INT(pthread_join(threads[0][0], NULL), 0);
    CHECK_HAS(parts[0][0].error.text, "came with another WEFT_SECRET");
}

/* The reference vector of SipHash-2-4: key 00..0f, message 00..0e. */
static void check_code(void)
{
    static const weft_secret secret = {{0x0706050403020100u, 0x0f0e0d0c0b0a0908u}};
    unsigned char message[15];

    for (unsigned char i = 0; i < sizeof(message); i++)
        message[i] = i;
    CHECK(weft_secret_code(&secret, message, sizeof(message)) == 0xa129ca6149be45e5u);
}

/* What the system is told of a silence of so many ns, of the connection that rank 0 takes; -1: nothing. */
static int told_of_silence(int64_t silence_ns)
{
    static part host;
    pthread_t thread;
    int port = free_port(), fd, told = -1;

    host.meet = (weft_meet){.host = "127.0.0.1",
                            .port = port,
                            .ports = 1,
                            .secret = "a secret",
                            .size = RANKS,
                            .deadline_ns = weft_clock_ns() + 2000000000,
                            .silence_ns = silence_ns};
    CHECK_INT(pthread_create(&thread, NULL, run_part, &host), 0);
    fd = connect_to(port);
    for (int i = 0; i < 1000 && told < 0; i++) {
        for (int at = 0; at < 64 && told < 0; at++) {
            int ms = 0;
            socklen_t bytes = sizeof(ms);

            if (getsockopt(at, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &bytes) == 0 && ms)
                told = ms;
        }
        usleep(1000);
    }
    close(fd);
    CHECK_INT(pthread_join(thread, NULL), 0);
    return told;
}

/* A silence that a system cannot count is as long as it can. */
static void check_silence(void)
{
    CHECK_INT(told_of_silence(4000000000), 4000);
    CHECK_INT(told_of_silence(((int64_t)1 << 32) * 1000000 + 700000000), INT_MAX);
}

int main(void)
{
    check_code();
    check_all();
    check_missing();
    check_unreached("127.0.0.1", free_port());
    check_unreached("no such host", 1);
    check_no_more_files();
    check_guest_without_files();
    check_neighbours();
    check_silence();
    return check_report("test_net_meet");
}
