/*
 * What it costs to watch for the dead does not grow with the ranks: a rank that waits asks the kernel for at
 * most two ranks' locks at each look, of which it takes one in five milliseconds. Counted, not timed.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "support/check.h"
#include "support/leaks.h"
#include <weft/weft.h>

enum { MOST = 32, LATE_US = 150000, LOOK_NS = 5000000 };

static _Atomic int64_t queries;

/* In place of the C library's: the same, and the questions for locks counted. */
int fcntl(int fd, int command, ...)
{
    va_list arguments;
    long argument;

    va_start(arguments, command);
    argument = va_arg(arguments, long);
    va_end(arguments);
    queries += command == F_OFD_GETLK;
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

/* All wait for the last rank, which comes late. */
static void wait_for_last(const weft_id *id, int rank, int size)
{
    weft_group *group = NULL;
    int64_t begun, looks;

    CHECK_INT(weft_group_create(id, rank, size, &group), WEFT_OK);
    if (!group)
        return;
    CHECK_INT(weft_barrier(group), WEFT_OK);
    begun = weft_clock_ns();
    queries = 0;
    if (rank == size - 1)
        usleep(LATE_US);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    looks = (weft_clock_ns() - begun) / LOOK_NS;
    CHECK(queries <= 2 * looks);
    if (queries > 2 * looks)
        fprintf(stderr, "  rank %d of %d: %lld locks in %lld looks\n", rank, size, (long long)queries,
                (long long)looks);
    if (rank == 0)
        CHECK(queries > 0); /* they are counted */
    CHECK_INT(weft_barrier(group), WEFT_OK);
    weft_group_free(group);
}

static void run(int size)
{
    pid_t children[MOST];
    weft_id id;

    CHECK_INT(weft_id_create(&id), WEFT_OK);
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            leaks_are_elsewhere = 1;
            check_failures = 0;
            wait_for_last(&id, rank, size);
            exit(check_failures ? 1 : 0);
        }
    }
    for (int rank = 0; rank < size; rank++) {
        int status = -1;

        CHECK_INT(waitpid(children[rank], &status, 0), children[rank]);
        CHECK_INT(status, 0);
    }
}

int main(void)
{
    run(4);
    run(MOST);
    return check_report("test_multi_liveness");
}
