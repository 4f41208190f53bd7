/* Symmetric memory of processes lies on huge pages where the system can make some, on every rank that maps
 * it.
 */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "support/check.h"
#include "support/procs.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { HUGE_KIB = 2048 };

/* KiB of shared memory that this process sees through huge pages. */
static long huge_kib(void)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    long sum = 0, kib;

    while (maps && fgets(line, sizeof(line), maps))
        sum += sscanf(line, "ShmemPmdMapped: %ld", &kib) == 1 ? kib : 0;
    if (maps)
        fclose(maps);
    return sum;
}

/* Whether this system makes huge pages of shared memory at all. */
static bool possible(void)
{
    size_t huge = HUGE_KIB << 10;
    char *room = mmap(NULL, 2 * huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *page;
    bool made;

    if (room == MAP_FAILED)
        return false;
    page = (char *)(((uintptr_t)room + huge - 1) / huge * huge);
    made = mmap(page, huge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page;
    if (made) {
        memset(page, 0, huge);
        made = madvise(page, huge, MADV_COLLAPSE) == 0 && huge_kib() > 0;
    }
    munmap(room, 2 * huge);
    return made;
}

static void body(int rank, void *argument)
{
    static const size_t sizes[] = {1 << 20, 10 << 20};
    long expected = 0;
    weft_group *group = NULL;

    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char *memory = NULL;

        CHECK_INT(weft_alloc(group, sizes[i], 0, (void **)&memory), WEFT_OK);
        CHECK_INT(weft_barrier(group), WEFT_OK);
        memset(weft_peer(group, memory, 1 - rank), rank + 1, sizes[i]);
        CHECK_INT(weft_barrier(group), WEFT_OK);
        CHECK(memory[0] == 2 - rank && memory[sizes[i] - 1] == 2 - rank);
        /* own and the peer's; the first block is less than a huge page */
        expected += 2 * (i == 0 ? HUGE_KIB : (long)(sizes[i] >> 10));
        CHECK(huge_kib() >= expected);
    }
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

int main(void)
{
    if (!possible()) {
        printf("test_symm_huge: this system makes no huge pages of shared memory\n");
        return 0;
    }
    procs_run(2, body, NULL);
    return check_report("test_symm_huge");
}
