/* Sub-groups: who is in them, that they work on their own, and that their place is used again. */
#include "group/sync.h"
#include "support/check.h"
#include "support/ranks.h"
#include "symm/symm.h"

/* Rank r of n goes to colour r % 3 with descending keys; colour 2 joins none. */
static void colours(weft_group *group, void *argument)
{
    int rank = weft_rank(group), size = weft_size(group), colour = rank % 3 == 2 ? -1 : rank % 3;
    int members = (size - rank % 3 + 2) / 3;
    weft_group *sub = (weft_group *)argument;

    CHECK_INT(weft_group_split(group, colour, -rank, &sub), WEFT_OK);
    if (colour < 0) {
        CHECK(sub == NULL);
    } else {
        int *word = NULL, mine = weft_rank(sub);

        CHECK_INT(weft_size(sub), members);
        CHECK_INT(mine, members - 1 - rank / 3);
        CHECK_INT(weft_alloc(sub, sizeof(int), 0, (void **)&word), WEFT_OK);
        *(int *)weft_peer(sub, word, (mine + 1) % members) = rank + 1;
        CHECK_INT(weft_barrier(sub), WEFT_OK);
        /* The one before in the sub-group is the next higher of the colour, cyclically. */
        CHECK_INT(*word, (rank / 3 + 1) % members * 3 + rank % 3 + 1);
        CHECK_INT(weft_barrier(sub), WEFT_OK);
        weft_group_free(sub);
    }
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

/* Many more splits than there are windows, freed at different times by different ranks. */
static void again_and_again(weft_group *group, void *argument)
{
    weft_group *older = NULL;

    (void)argument;
    for (int round = 0; round < 100; round++) {
        weft_group *sub = NULL, *nested = NULL;
        unsigned char *memory = NULL;
        size_t dirty = 0;

        CHECK_INT(weft_group_split(group, (weft_rank(group) + round) % 2, 0, &sub), WEFT_OK);
        if (!sub)
            return;
        CHECK_INT(weft_group_split(sub, weft_rank(sub), 0, &nested), WEFT_OK);
        CHECK_INT(weft_size(nested), 1);
        CHECK_INT(weft_alloc(sub, 300, 0, (void **)&memory), WEFT_OK);
        for (int i = 0; i < 300; i++)
            dirty += memory[i] != 0;
        CHECK_INT(dirty, 0);
        memset(memory, 0xff, 300);
        CHECK_INT(weft_barrier(sub), WEFT_OK);
        weft_group_free(nested);
        if (weft_rank(group) % 2) {
            weft_group_free(older);
            older = sub;
        } else {
            weft_group_free(sub);
        }
    }
    weft_group_free(older);
}

static void too_many(weft_group *group, void *argument)
{
    weft_group *subs[WEFT_WINDOWS_MAX] = {NULL};
    int made = 0;
    weft_status status = WEFT_OK;

    (void)argument;
    while (made < WEFT_WINDOWS_MAX && (status = weft_group_split(group, 0, 0, &subs[made])) == WEFT_OK)
        made++;
    CHECK_INT(status, WEFT_ERR_MEMORY);
    CHECK_INT(made, group->world->segment.header->windows - 1);
    CHECK_HAS(weft_error(group), "free some first");
    for (int i = 0; i < made; i++)
        weft_group_free(subs[i]);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_group_split(group, 0, 0, &subs[0]), WEFT_OK);
    weft_group_free(subs[0]);
}

/* What one sub-group holds, the other groups of its members cannot have too. */
static void shared_budget(weft_group *group, void *argument)
{
    weft_group *sub = NULL;
    uint64_t budget, used;
    void *memory = NULL, *other = NULL;

    (void)argument;
    CHECK_INT(weft_group_split(group, weft_rank(group) == 0 ? 0 : 1, 0, &sub), WEFT_OK);
    weft_symm_usage(group, &budget, &used);
    if (weft_rank(group) == 0)
        CHECK_INT(weft_alloc(sub, 1 << 20, 0, &memory), WEFT_OK);
    CHECK_INT(weft_alloc(group, budget - 4096, 0, &other), WEFT_ERR_MEMORY);
    CHECK_HAS(weft_error(group), "rank 0 has");
    weft_group_free(sub);
    weft_symm_usage(group, &budget, &used);
    CHECK_INT(used, 0);
}

/* A failure in a sub-group ends that sub-group only. */
static void poison_stays_inside(weft_group *group, void *argument)
{
    weft_group *sub = NULL;

    (void)argument;
    CHECK_INT(weft_group_split(group, weft_rank(group) < 2 ? 0 : 1, 0, &sub), WEFT_OK);
    if (weft_rank(group) == 0)
        weft_group_poison(sub, WEFT_ERR_PEER, "only here");
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_barrier(sub), weft_rank(group) < 2 ? WEFT_ERR_PEER : WEFT_OK);
    weft_group_free(sub);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_group_split(group, weft_rank(group) == 0, 0, &sub), WEFT_OK);
    if (weft_rank(group) == 3)
        weft_group_poison(sub, WEFT_ERR_PEER, "rank 2 is tired");
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (weft_rank(group) > 0) { /* whose rank 2 it is has to be said */
        CHECK_INT(weft_barrier(sub), WEFT_ERR_PEER);
        CHECK_HAS(weft_error(sub),
                  "rank 2 is tired (ranks are those of a sub-group: 0 to 2 are 1-3 of the world)");
    }
    weft_group_free(sub);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_group_split(group, 0, 0, &sub), WEFT_OK);
    CHECK_INT(weft_barrier(sub), WEFT_OK);
    weft_group_free(sub);
}

/* Memory of all groups that a group was split from is reached in it where it lies, that of others is not; nor
 * is what was freed. */
static void memory_of_ancestors(weft_group *group, void *argument)
{
    weft_group *sub = NULL, *nested = NULL, *aside = NULL;
    int *memory[4] = {NULL}, size = weft_size(group), next = (weft_rank(group) + 1) % size;

    (void)argument;
    CHECK_INT(weft_group_split(group, 0, 0, &sub), WEFT_OK);
    CHECK_INT(weft_group_split(group, 0, 0, &aside), WEFT_OK);
    CHECK_INT(weft_group_split(sub, 0, -weft_rank(group), &nested), WEFT_OK);
    CHECK_INT(weft_alloc(group, 100, 0, (void **)&memory[0]), WEFT_OK);
    CHECK_INT(weft_alloc(sub, 100000, 0, (void **)&memory[1]), WEFT_OK);
    CHECK_INT(weft_alloc(nested, 100, 0, (void **)&memory[2]), WEFT_OK);
    CHECK_INT(weft_alloc(aside, 100, 0, (void **)&memory[3]), WEFT_OK);
    for (int i = 0; i < 3; i++) {
        int *theirs = weft_peer(nested, memory[i], size - 1 - next);

        CHECK(theirs != NULL);
        *theirs = weft_rank(group);
        CHECK_INT(weft_barrier(group), WEFT_OK);
        CHECK_INT(*memory[i], (weft_rank(group) + size - 1) % size);
    }
    CHECK(weft_peer(nested, memory[3], 0) == NULL);
    CHECK(weft_peer(group, memory[1], 0) == NULL);
    weft_group_free(sub);
    CHECK(weft_peer(nested, memory[1], 0) == NULL);
    CHECK(weft_peer(nested, memory[0], 0) != NULL);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    weft_group_free(nested);
    weft_group_free(aside);
}

/* Freeing a group says nothing of those that were split from it. */
static void *leave_the_first(void *group)
{
    weft_group *sub = NULL;

    CHECK_INT(weft_group_split(group, 0, 0, &sub), WEFT_OK);
    weft_group_free(group);
    CHECK_INT(weft_barrier(sub), WEFT_OK);
    for (int peer = -1; peer < weft_size(sub); peer++)
        CHECK_INT(weft_group_check_peer(sub, peer), WEFT_OK);
    CHECK_INT(weft_barrier(sub), WEFT_OK);
    weft_group_free(sub);
    return NULL;
}

static void sub_groups_outlive(void)
{
    pthread_t threads[3];
    weft_group *groups[3];

    CHECK_INT(weft_group_threads(3, groups), WEFT_OK);
    for (int rank = 0; rank < 3; rank++)
        CHECK_INT(pthread_create(&threads[rank], NULL, leave_the_first, groups[rank]), 0);
    for (int rank = 0; rank < 3; rank++)
        pthread_join(threads[rank], NULL);
}

int main(void)
{
    ranks_run(1, colours, NULL);
    ranks_run(3, memory_of_ancestors, NULL);
    ranks_run(4, colours, NULL);
    ranks_run(8, colours, NULL);
    ranks_run(4, again_and_again, NULL);
    ranks_run(3, too_many, NULL);
    ranks_run(3, shared_budget, NULL);
    ranks_run(4, poison_stays_inside, NULL);
    sub_groups_outlive();
    return check_report("test_group_split");
}
