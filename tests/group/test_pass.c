/* Descriptors reach every rank, threads and processes alike, and a rank that dies meanwhile is named. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "group/pass.h"
#include "support/check.h"
#include "support/procs.h"
#include "support/ranks.h"

enum { ROUNDS = 5 };

/* Each rank's descriptor is a memory file that holds its rank and the round. */
static void pass_rounds(weft_group *group, void *argument)
{
    int fds[32];

    (void)argument;
    for (int round = 0; round < ROUNDS; round++) {
        int mine[2] = {weft_rank(group), round}, fd = memfd_create("passed", MFD_CLOEXEC);

        CHECK_INT(pwrite(fd, mine, sizeof(mine), 0), sizeof(mine));
        CHECK_INT(weft_group_pass(group, WEFT_SYNC_ALLOC, fd, fds), WEFT_OK);
        close(fd);
        for (int rank = 0; rank < weft_size(group); rank++) {
            int theirs[2] = {-1, -1};

            CHECK_INT(pread(fds[rank], theirs, sizeof(theirs), 0), sizeof(theirs));
            CHECK_INT(theirs[0], rank);
            CHECK_INT(theirs[1], round);
            close(fds[rank]);
        }
    }
}

/* Rank 1 comes to the exchange and is gone before it has sent. */
static void die_before_sending(int rank, void *argument)
{
    struct {
        int32_t bytes;
        char name[16];
    } nowhere = {.bytes = 1};
    weft_group *group;
    int fds[32];

    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    if (rank == 1) {
        weft_group_exchange(group, WEFT_SYNC_ALLOC, &nowhere, sizeof(nowhere));
        kill(getpid(), SIGKILL);
    }
    int fd = memfd_create("passed", MFD_CLOEXEC);
    CHECK_INT(weft_group_pass(group, WEFT_SYNC_ALLOC, fd, fds), WEFT_ERR_PEER_DIED);
    CHECK_HAS(weft_error(group), "rank 1");
    weft_group_free(group);
    close(fd);
}

int main(void)
{
    static const int sizes[] = {1, 2, 3, 8, 20};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ranks_run(sizes[i], pass_rounds, NULL);
        procs_run_ranks(sizes[i], pass_rounds, NULL);
    }
    procs all = procs_start(3, die_before_sending, NULL);
    CHECK_INT(procs_wait(&all, 1), 128 + SIGKILL);
    procs_join(&all);
    return check_report("test_group_pass");
}
