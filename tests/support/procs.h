/*
 * Runs a function once per rank, with ranks as forked processes, as weft run would start them. A rank's
 * failed checks make its exit status 1, which procs_join reports. Tests that use this are labelled `forks`.
 */
#ifndef WEFT_TESTS_SUPPORT_PROCS_H
#define WEFT_TESTS_SUPPORT_PROCS_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/weft.h>

#include "group/launcher.h"
#include "group/segment.h"
#include "support/check.h"
#include "support/leaks.h"

typedef void (*procs_body)(int rank, void *argument);

typedef struct procs {
    int size;
    weft_segment segment;
    pid_t pids[64];
} procs;

/* Forks the ranks. Each calls body(rank, argument), which calls weft_init itself. */
static inline procs procs_start(int size, procs_body body, void *argument)
{
    procs all = {.size = size};
    weft_error_text error;

    if (weft_segment_create(size, false, &all.segment, &error) != WEFT_OK) {
        fprintf(stderr, "cannot make a world: %s\n", error.text);
        exit(1);
    }
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        all.pids[rank] = fork();
        if (all.pids[rank] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            leaks_are_elsewhere = 1;
            check_failures = 0;
            if (!weft_launcher_announce(&all.segment, rank))
                _exit(1);
            body(rank, argument);
            exit(check_failures ? 1 : 0);
        }
        if (all.pids[rank] < 0) {
            perror("fork");
            exit(1);
        }
    }
    return all;
}

/* Waits for one rank; returns its exit status, or 128 + the signal that ended it. */
static inline int procs_wait(procs *all, int rank)
{
    int status = 0;

    if (all->pids[rank] <= 0)
        return 0;
    while (waitpid(all->pids[rank], &status, 0) < 0)
        ;
    all->pids[rank] = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Waits for all ranks, which must have ended with 0, and drops the memory. */
static inline void procs_join(procs *all)
{
    for (int rank = 0; rank < all->size; rank++)
        CHECK_INT(procs_wait(all, rank), 0);
    weft_segment_release(&all->segment);
}

static inline void procs_run(int size, procs_body body, void *argument)
{
    procs all = procs_start(size, body, argument);

    procs_join(&all);
}

typedef struct procs_rank {
    void (*body)(weft_group *group, void *argument);
    void *argument;
} procs_rank;

static inline void procs_be_rank(int rank, void *opaque)
{
    const procs_rank *self = opaque;
    weft_group *group;

    (void)rank;
    CHECK_INT(weft_init(&group), WEFT_OK);
    self->body(group, self->argument);
    weft_barrier(group); /* peers may still read what is here; of a group that has failed it fails at once */
    weft_finalize(group);
}

/* The same for what ranks_run takes: each is in a group with the others. */
static inline void procs_run_ranks(int size, void (*body)(weft_group *, void *), void *argument)
{
    procs_run(size, procs_be_rank, &(procs_rank){body, argument});
}

#endif
