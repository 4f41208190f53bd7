/*
 * Runs a function once per rank, with ranks as forked processes on virtual nodes: ranks of different ones
 * share no memory and reach each other over loopback. A placement names the node of each rank by a letter:
 * "aabb".
 */
#ifndef WEFT_TESTS_SUPPORT_NODES_H
#define WEFT_TESTS_SUPPORT_NODES_H

#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "net/find.h"
#include "support/procs.h"

/* What main returns then, so that ctest says so too. */
enum { NODES_SKIPPED = 77 };

/* Says in one line why the test is skipped, where there is no engine. A rank that got no core for a while, as
 * happens where tests run, is not lost. */
static inline bool nodes_possible(const char *name)
{
    const weft_engine *engine;
    weft_error_text error;

    setenv("WEFT_LINK_TIMEOUT", "60", 0);
    if (weft_engine_find(&engine, &error) == WEFT_OK)
        return true;
    printf("%s: skipped: %s\n", name, error.text);
    return false;
}

/* A port that was free a moment ago. */
static inline int nodes_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    CHECK(bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &bytes) == 0);
    close(fd);
    return ntohs(at.sin_port);
}

static inline procs nodes_start(const char *placement, procs_body body, void *argument)
{
    procs all = {.size = (int)strlen(placement)};
    int port = nodes_port();

    fflush(NULL);
    for (int rank = 0; rank < all.size; rank++) {
        all.pids[rank] = fork();
        if (all.pids[rank] == 0) {
            char node[2] = {placement[rank], 0};

            prctl(PR_SET_PDEATHSIG, SIGKILL);
            leaks_are_elsewhere = 1;
            check_failures = 0;
            setenv("WEFT_HEAP", "64M", 0);
            if (!weft_launcher_announce_node(rank, all.size, node, "127.0.0.1", port, "secret"))
                _exit(1);
            body(rank, argument);
            exit(check_failures ? 1 : 0);
        }
    }
    return all;
}

static inline void nodes_run(const char *placement, procs_body body, void *argument)
{
    procs all = nodes_start(placement, body, argument);

    for (int rank = 0; rank < all.size; rank++)
        CHECK_INT(procs_wait(&all, rank), 0);
}

/* The same where one rank is killed and the others live; the argument of all is that rank's number. */
static inline void nodes_lose(const char *placement, int lost, procs_body body)
{
    procs all = nodes_start(placement, body, &lost);

    for (int rank = 0; rank < all.size; rank++)
        CHECK_INT(procs_wait(&all, rank), rank == lost ? 128 + SIGKILL : 0);
}

/* Of a rank in a loop that a script watches: it works; then when and how its last call failed. */
static inline void nodes_say_running(const weft_group *group)
{
    if (weft_rank(group) == 0) {
        puts("running");
        fflush(stdout);
    }
}

static inline void nodes_say_end(const weft_group *group)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    printf("%lld rank %d: %s\n", (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000,
           group ? weft_rank(group) : -1, weft_error(group));
    fflush(stdout);
}

#endif
