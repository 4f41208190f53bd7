/* A system that has no memory left is an error on every rank, not a signal, for objects of every size; and
 * the group goes on. The system's refusal is played by a madvise of this program. */
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/check.h"
#include "support/ranks.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static _Atomic int refuses;

int madvise(void *memory, size_t bytes, int advice)
{
    if (advice == MADV_POPULATE_WRITE && refuses) {
        errno = ENOMEM;
        return -1;
    }
    return (int)syscall(SYS_madvise, memory, bytes, advice);
}

static void body(weft_group *group, void *argument)
{
    static const size_t sizes[] = {8, 100000, 3 << 20, 9 << 20};

    (void)argument;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int turn = 0; turn < 2; turn++) {
            void *memory = NULL;

            CHECK_INT(weft_barrier(group), WEFT_OK);
            refuses = !turn;
            CHECK_INT(weft_barrier(group), WEFT_OK);
            CHECK_INT(weft_alloc(group, sizes[i], 0, &memory), turn ? WEFT_OK : WEFT_ERR_MEMORY);
            if (!turn)
                CHECK_HAS(weft_error(group), "no memory for them on rank");
            CHECK_INT(weft_free(group, memory), WEFT_OK);
        }
}

int main(void)
{
    ranks_run(2, body, NULL);
    return check_report("test_symm_refused");
}
