/* Many worlds: one after another and at the same time, in one process and in several. A world takes address
 * space in proportion to the machine's memory, once, and memory only for what is used, also where a program
 * locks all of its own. */
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/topo.h"
#include "support/check.h"
#include "support/leaks.h"
#include <weft/weft.h>

enum { AT_ONCE = 20 };

static void use(weft_group *group)
{
    float one = (float)(weft_rank(group) + 1), sum = 0;

    CHECK_INT(weft_all_reduce(group, &one, &sum, 1, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK_INT((int)sum, weft_size(group) * (weft_size(group) + 1) / 2);
}

/* "VmSize", "VmRSS" of this process, in bytes. */
static double status_bytes(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256], key[64];
    double kib = 0, found = 0;

    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "%63[^:]: %lf kB", key, &kib) == 2 && strcmp(key, name) == 0)
            found = kib * 1024;
    if (file)
        fclose(file);
    return found;
}

typedef struct member {
    pthread_t thread;
    const weft_id *ids;
    int rank, worlds;
    bool at_once;
} member;

static void *be_member(void *argument)
{
    const member *self = argument;
    weft_group *groups[AT_ONCE] = {NULL};

    for (int i = 0; i < self->worlds; i++) {
        weft_group **group = &groups[self->at_once ? i : 0];

        CHECK_INT(weft_group_create(&self->ids[i], self->rank, 2, group), WEFT_OK);
        if (!*group) {
            fprintf(stderr, "world %d: %s\n", i, weft_error(NULL));
            return NULL;
        }
        if (self->at_once)
            continue;
        if (i % 50 == 0)
            use(*group);
        weft_group_free(*group);
    }
    for (int i = 0; self->at_once && i < self->worlds; i++)
        use(groups[i]);
    for (int i = 0; self->at_once && i < self->worlds; i++)
        weft_group_free(groups[i]);
    return NULL;
}

/* Two ranks in each of the worlds: threads of this process, or processes. */
static void pair(int worlds, bool at_once, bool processes)
{
    weft_id *ids = calloc((size_t)worlds, sizeof(*ids));
    member members[2];
    pid_t child = -1;
    int status = 0;

    for (int i = 0; i < worlds; i++)
        CHECK_INT(weft_id_create(&ids[i]), WEFT_OK);
    for (int rank = 0; rank < 2; rank++)
        members[rank] = (member){.ids = ids, .rank = rank, .worlds = worlds, .at_once = at_once};
    if (processes) {
        fflush(NULL);
        child = fork();
        if (child == 0) {
            leaks_are_elsewhere = 1;
            be_member(&members[1]);
            _exit(check_failures ? 1 : 0);
        }
        be_member(&members[0]);
        CHECK_INT(waitpid(child, &status, 0), child);
        CHECK_INT(status, 0);
    } else {
        for (int rank = 0; rank < 2; rank++)
            CHECK_INT(pthread_create(&members[rank].thread, NULL, be_member, &members[rank]), 0);
        for (int rank = 0; rank < 2; rank++)
            pthread_join(members[rank].thread, NULL);
    }
    free(ids);
}

static void of_threads(int worlds)
{
    for (int i = 0; i < worlds; i++) {
        weft_group *group = NULL;

        CHECK_INT(weft_group_threads(1, &group), WEFT_OK);
        if (i % 100 == 0)
            use(group);
        weft_group_free(group);
    }
}

/* What one world of the default size takes. */
static void address_space(void)
{
    double memory = (double)weft_topo_memory_bytes(), before = status_bytes("VmSize");
    weft_group *groups[AT_ONCE];

    for (int i = 0; i < AT_ONCE; i++) {
        groups[i] = NULL;
        CHECK_INT(weft_group_threads(1, &groups[i]), WEFT_OK);
        use(groups[i]);
        if (i == 0) /* a window is nine quarters of a heap, which is three quarters of the memory */
            CHECK(status_bytes("VmSize") - before < 2 * memory);
    }
    CHECK(status_bytes("VmRSS") < 0.1 * memory);
    for (int i = 0; i < AT_ONCE; i++)
        weft_group_free(groups[i]);
    CHECK(status_bytes("VmSize") - before < 0.5 * memory);
}

/* Locked memory is there as a whole, so what is only reserved must not be memory. */
static void locked(void)
{
    weft_group *group = NULL, *sub = NULL;
    char *memory = NULL;
    double before;

    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
        return; /* not allowed here */
    before = status_bytes("VmRSS");
    CHECK_INT(weft_group_threads(1, &group), WEFT_OK);
    CHECK_INT(weft_group_split(group, 0, 0, &sub), WEFT_OK);
    use(sub);
    CHECK_INT(weft_alloc(group, 10 << 20, 0, (void **)&memory), WEFT_OK);
    memory[5 << 20] = 1;
    CHECK(status_bytes("VmRSS") - before < 64 << 20);
    CHECK_INT(mlockall(MCL_CURRENT), 0);
    CHECK(status_bytes("VmRSS") - before < 64 << 20);
    weft_group_free(sub);
    weft_group_free(group);
    munlockall();
}

int main(void)
{
    int many = (int)check_repeat(1000, 10000);

    unsetenv("WEFT_HEAP");
    address_space();
    locked();
    of_threads(many);
    pair(many / 4, false, false);
    pair(many / 2, false, true);
    pair(AT_ONCE, true, false);
    pair(AT_ONCE, true, true);
    return check_report("test_multi_worlds");
}
