/* Process ranks: they meet, share memory, synchronise and split; what one does wrong all hear. */
#include "group/sync.h"
#include "support/check.h"
#include "support/procs.h"

static weft_group *enter(int rank)
{
    weft_group *group = NULL;

    if (weft_init(&group) != WEFT_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, weft_error(NULL));
        exit(1);
    }
    CHECK_INT(weft_rank(group), rank);
    return group;
}

static void meets(int rank, void *argument)
{
    weft_group *group = enter(rank), *again = NULL;
    int size = *(int *)argument;
    int64_t *words = NULL;

    CHECK_INT(weft_size(group), size);
    CHECK_INT(weft_init(&again), WEFT_ERR_STATE);
    CHECK_HAS(weft_error(NULL), "called before");
    CHECK_INT(weft_alloc(group, sizeof(int64_t) * 64, 0, (void **)&words), WEFT_OK);
    for (int peer = 0; peer < size; peer++)
        ((int64_t *)weft_peer(group, words, peer))[rank] = 100 * peer + rank;
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int peer = 0; peer < size; peer++)
        CHECK_INT(words[peer], 100 * rank + peer);
    CHECK_INT(weft_finalize(group), WEFT_OK);
    for (int i = 0; i < 3; i++) { /* the next worlds of the same job */
        CHECK_INT(weft_init(&again), WEFT_OK);
        CHECK_INT(weft_rank(again), rank);
        CHECK_INT(weft_barrier(again), WEFT_OK);
        CHECK_INT(weft_finalize(again), WEFT_OK);
    }
}

/* The launcher's word and the memory it left do not agree. */
static void of_another_size(int rank, void *argument)
{
    weft_group *group = NULL;

    setenv("WEFT_SIZE", (const char *)argument, 1);
    CHECK_INT(weft_init(&group), WEFT_ERR_LAUNCH);
    CHECK(group == NULL);
    if (rank < 2)
        CHECK_HAS(weft_error(NULL), "the inherited memory is for 3");
}

/* A rank without a place for its handle: the others learn it at once, and all may come to the next world. */
static void without_place(int rank, void *argument)
{
    int which = *(int *)argument;
    weft_group *group = NULL;

    CHECK_INT(weft_init(rank == which ? NULL : &group), rank == which ? WEFT_ERR_ARGUMENT : WEFT_ERR_PEER);
    CHECK_HAS(weft_error(NULL), "weft_init: group is NULL");
    CHECK(group == NULL);
    CHECK_INT(weft_init(&group), WEFT_OK);
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

static void mismatched(int rank, void *argument)
{
    weft_group *group = enter(rank);
    void *memory = NULL;

    (void)argument;
    CHECK_INT(weft_alloc(group, rank == 2 ? 4096 : 64, 0, &memory), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "rank 2 for 4096");
    if (rank == 1)
        CHECK_INT(weft_alloc(group, 64, 0, &memory), WEFT_ERR_MISMATCH);
    else
        CHECK_INT(weft_barrier(group), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "rank 1 weft_alloc");
    weft_finalize(group);
}

static void barriers(int rank, void *argument)
{
    weft_group *group = enter(rank);
    long count = *(long *)argument;
    int wrong = 0;

    for (long i = 0; i < count; i++)
        wrong += weft_barrier(group) != WEFT_OK;
    CHECK_INT(wrong, 0);
    weft_finalize(group);
}

/* Leaves without weft_finalize, right after its last barrier: the others must not call it dead. */
static void exits_normally(int rank, void *argument)
{
    weft_group *group = enter(rank);

    (void)argument;
    for (int i = 0; i < 20; i++)
        CHECK_INT(weft_barrier(group), WEFT_OK);
}

int main(void)
{
    static int sizes[] = {1, 2, 3, 8, 12};
    long few = check_repeat(1000, 10000);

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        procs_run(sizes[i], meets, &sizes[i]);
    procs_run(3, of_another_size, "2");
    procs_run(3, of_another_size, "5");
    procs_run(3, without_place, &(int){0});
    procs_run(3, without_place, &(int){2});
    procs_run(3, mismatched, NULL);
    procs_run(8, barriers, &few);
    for (int i = 0; i < 20; i++)
        procs_run(4, exits_normally, NULL);
    return check_report("test_multi_world");
}
