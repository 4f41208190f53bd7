/* Groups whose ranks are on several nodes: meeting, showing, memory, messages, sub-groups, errors and deaths.
 */
#include "support/nodes.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "core/clock.h"
#include "group/far.h"
#include "group/group.h"
#include "group/sync.h"
#include "symm/symm.h"

static const char *placement;
static _Atomic bool arrived; /* in the group */

static bool is_near(int one, int other)
{
    return placement[one] == placement[other];
}

static void check_memory(weft_group *group, int rank, int size)
{
    int64_t *object = NULL;

    CHECK_INT(weft_alloc(group, 1000 * sizeof(*object), 0, (void **)&object), WEFT_OK);
    for (int peer = 0; peer < size; peer++) {
        int64_t *theirs = weft_peer(group, object, peer);

        CHECK_INT(theirs != NULL, is_near(rank, peer));
        if (theirs)
            theirs[rank] = 100 + rank;
    }
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int peer = 0; peer < size; peer++)
        CHECK_INT(object[peer], is_near(rank, peer) ? 100 + peer : 0);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    /* What all have let go of is used again. */
    CHECK_INT(weft_free(group, object), WEFT_OK);
    for (int i = 0; i < 12; i++) {
        bool clear = true;

        CHECK_INT(weft_alloc(group, 4 << 20, 0, (void **)&object), WEFT_OK);
        if (!object)
            return;
        for (int j = 0; j < 4 << 17; j += 100)
            clear = clear && object[j] == 0;
        CHECK(clear);
        memset(object, 1, 4 << 20);
        CHECK_INT(weft_free(group, object), WEFT_OK);
    }
}

/* What a far rank shows is seen by its receiver alone: ranks of a node do not tell each other. */
static void check_shadows(weft_group *group, int rank, int size)
{
    int64_t *word = NULL;

    CHECK_INT(weft_symm_alloc(group, sizeof(*word), 128, (void **)&word), WEFT_OK);
    *word = 1 + rank;
    for (int peer = 0; peer < size; peer++)
        if (peer != rank && !is_near(rank, peer) && peer % 2 == 0)
            weft_far_show_to(group, peer, word, sizeof(*word), NULL);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    for (int peer = 0; peer < size; peer++)
        if (!is_near(rank, peer))
            CHECK_INT(*(int64_t *)weft_symm_peer(group, word, peer), rank % 2 == 0 ? 1 + peer : 0);
    CHECK_INT(weft_barrier(group), WEFT_OK);
    CHECK_INT(weft_free(group, word), WEFT_OK);
}

/* put-with-signal to the next rank, wherever it is. */
static void check_put(weft_group *group, int rank, int size)
{
    struct {
        weft_signal signal;
        char data[100000];
    } *object = NULL;
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    char *data = malloc(100000);
    weft_wait_note note = {.op = "put", .peer = before, .task = -1};
    bool equal = true;

    CHECK_INT(weft_symm_alloc(group, sizeof(*object), 128, (void **)&object), WEFT_OK);
    for (int i = 1; i <= 8; i++) {
        memset(data, rank * 20 + i, 100000);
        if (is_near(rank, next)) {
            CHECK_INT(weft_put_signal(group, object->data, data, 100000, &object->signal, 1, next), WEFT_OK);
        } else {
            weft_net_put put = {.into = weft_symm_reach(group, object->data, next),
                                .from = data,
                                .rows = 1,
                                .row_bytes = 100000,
                                .post_count = 1,
                                .posts = {{weft_symm_reach(group, &object->signal, next), 1}}};

            CHECK_INT(weft_put_signal(group, object->data, data, 100000, &object->signal, 1, next),
                      WEFT_ERR_UNSUPPORTED);
            weft_net_send(group->world->net, next, &put, NULL);
        }
        CHECK_INT(weft_signal_wait(group, &object->signal, (uint64_t)i, &note), WEFT_OK);
        for (int at = 0; at < 100000; at += 99)
            equal = equal && object->data[at] == (char)(before * 20 + i);
        CHECK_INT(weft_barrier(group), WEFT_OK);
    }
    CHECK(equal);
    free(data);
    CHECK_INT(weft_free(group, object), WEFT_OK);
}

static void check_messages(weft_group *group, int rank, int size)
{
    enum { COUNT = 300000 };
    float *data = malloc(COUNT * sizeof(*data));
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    bool equal = true;

    for (int count = 0; count <= COUNT; count += COUNT / 2)
        for (int turn = 0; turn < 2; turn++) { /* even ranks send first */
            for (int i = 0; i < count; i++)
                data[i] = (float)(rank + i);
            if (turn == rank % 2) {
                CHECK_INT(weft_send(group, data, count, WEFT_F32, next), WEFT_OK);
                continue;
            }
            CHECK_INT(weft_recv(group, data, count, WEFT_F32, before), WEFT_OK);
            for (int i = 0; i < count; i++)
                equal = equal && data[i] == (float)(before + i);
        }
    CHECK(equal);
    free(data);
}

static void check_sub_groups(weft_group *group, int rank, int size)
{
    for (int i = 0; i < 6; i++) {
        weft_group *sub = NULL;
        int colour = i % 2 ? rank % 2 : rank / 2, root = 0;
        int64_t word = rank;

        CHECK_INT(weft_group_split(group, colour, -rank, &sub), WEFT_OK);
        CHECK_INT(weft_barrier(sub), WEFT_OK);
        CHECK_INT(weft_group_broadcast(sub, root, &word, sizeof(word)), WEFT_OK);
        CHECK(i % 2 ? word % 2 == rank % 2 : word / 2 == rank / 2);
        CHECK(word >= rank);
        weft_group_free(sub);
    }
    (void)size;
}

/* A sub-group goes on when its members have left the group it was split from. */
static void outlive(weft_group *group, int rank, int size)
{
    weft_group *sub = NULL;

    CHECK_INT(weft_group_split(group, 0, -rank, &sub), WEFT_OK);
    CHECK_INT(weft_finalize(group), WEFT_OK);
    CHECK_INT(weft_barrier(sub), WEFT_OK);
    for (int peer = 0; peer < size; peer++)
        CHECK_INT(weft_group_check_peer(sub, peer), WEFT_OK);
    CHECK_INT(weft_barrier(sub), WEFT_OK);
    weft_group_free(sub);
}

static void check_agreement(weft_group *group, int rank, int size)
{
    char big[10000];
    char sentence[32];

    for (int root = 0; root < size; root++) {
        memset(big, rank == root ? 7 + root : 0, sizeof(big));
        CHECK_INT(weft_group_broadcast(group, root, big, sizeof(big)), WEFT_OK);
        CHECK_INT(big[9999], 7 + root);
    }
    CHECK_INT(weft_group_agree(group, "the answer", 42, "forty-two"), WEFT_OK);
    CHECK_INT(weft_group_agree(group, "the answer", rank == size - 1 ? 41 : 42, "differs"),
              WEFT_ERR_MISMATCH);
    snprintf(sentence, sizeof(sentence), "rank %d", size - 1);
    CHECK_HAS(weft_error(group), sentence);
    for (int i = 0; i < 50; i++)
        CHECK_INT(weft_barrier(group), WEFT_OK);
}

static void be_well(int rank, void *argument)
{
    weft_group *group = NULL;
    int size = (int)strlen(placement);

    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    if (!group) {
        fprintf(stderr, "rank %d: %s\n", rank, weft_error(NULL));
        return;
    }
    CHECK_INT(weft_rank(group), rank);
    CHECK_INT(weft_size(group), size);
    check_agreement(group, rank, size);
    check_memory(group, rank, size);
    check_shadows(group, rank, size);
    check_put(group, rank, size);
    if (size % 2 == 0)
        check_messages(group, rank, size);
    check_sub_groups(group, rank, size);
    outlive(group, rank, size);
}

/* What comes of a barrier in which one rank ends in some way. */
enum { ABORTS = 1, DIES, LEAVES, EXITS, LATE, ELSEWHERE };

static void be_bad(int rank, void *argument)
{
    int how = *(const int *)argument, bad = (int)strlen(placement) - 1;
    weft_group *group = NULL;
    weft_status status;
    int64_t begun;
    char sentence[24];

    CHECK_INT(weft_init(&group), WEFT_OK);
    if (!group)
        return;
    CHECK_INT(weft_barrier(group), WEFT_OK);
    if (rank == bad) {
        nanosleep(&(struct timespec){0, 50000000}, NULL);
        if (how == DIES)
            kill(getpid(), SIGKILL);
        if (how == ABORTS)
            CHECK_INT(weft_group_abort(group, "had enough"), WEFT_OK);
        if (how == LEAVES)
            CHECK_INT(weft_finalize(group), WEFT_OK);
        if (how == LATE)
            nanosleep(&(struct timespec){3, 0}, NULL);
        if (how == ELSEWHERE)
            CHECK_INT(weft_group_sync(group, WEFT_SYNC_ALLOC), WEFT_ERR_MISMATCH);
        if (how == ELSEWHERE)
            CHECK_INT(weft_finalize(group), WEFT_OK);
        return;
    }
    if (how == LATE)
        CHECK_INT(weft_set_deadlines(group, 0.5, 0.5), WEFT_OK);
    begun = weft_clock_ns();
    status = weft_barrier(group);
    CHECK(weft_clock_ns() - begun < 10000000000); /* far below any default deadline but that of a link */
    snprintf(sentence, sizeof(sentence), "rank %d", bad);
    if (how != ABORTS)
        CHECK_HAS(weft_error(group), sentence);
    switch (how) {
    case ABORTS:
        CHECK_INT(status, WEFT_ERR_ABORTED);
        CHECK_HAS(weft_error(group), "had enough");
        break;
    case DIES:
    case LEAVES:
    case EXITS:
        CHECK_INT(status, WEFT_ERR_PEER_DIED);
        if (status == WEFT_ERR_PEER_DIED && how != DIES)
            CHECK_HAS(weft_error(group), "has left the group");
        break;
    case LATE:
        CHECK_INT(status, WEFT_ERR_TIMEOUT);
        break;
    default:
        CHECK_INT(status, WEFT_ERR_MISMATCH);
    }
    CHECK_INT(weft_barrier(group), status);
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

static void check_bad(int how)
{
    procs all = nodes_start(placement, be_bad, &how);

    for (int rank = 0; rank < all.size; rank++)
        CHECK_INT(procs_wait(&all, rank), how == DIES && rank == all.size - 1 ? 128 + SIGKILL : 0);
}

/* Moves the first thread of the process from one CPU to the other, again and again. */
static void *wander(void *argument)
{
    const cpu_set_t *cpus = argument;

    for (int i = 0; !atomic_load(&arrived); i++)
        sched_setaffinity(getpid(), sizeof(*cpus), &cpus[i % 2]);
    return NULL;
}

/* Whether ranks share cores decides which way messages go: all must think the same, even of a rank whose
 * cores change while it comes. */
static void be_wandering(int rank, void *argument)
{
    cpu_set_t *cpus = argument;
    weft_group *group = NULL;
    unsigned char alone, all[2] = {0};
    pthread_t thread;

    if (rank == 1)
        CHECK_INT(pthread_create(&thread, NULL, wander, cpus), 0);
    else
        sched_setaffinity(0, sizeof(*cpus), &cpus[0]);
    CHECK_INT(weft_init(&group), WEFT_OK);
    atomic_store(&arrived, true);
    if (rank == 1)
        pthread_join(thread, NULL);
    if (group) {
        alone = group->alone;
        CHECK_INT(weft_all_gather(group, &alone, all, 1, WEFT_U8), WEFT_OK);
        CHECK_INT(all[0], all[1]);
    }
    CHECK_INT(weft_finalize(group), WEFT_OK);
}

static void check_wandering(void)
{
    cpu_set_t allowed, cpus[2];
    int found = 0;

    CHECK_INT(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET(cpu, &allowed)) {
            CPU_ZERO(&cpus[found]);
            CPU_SET(cpu, &cpus[found++]);
        }
    placement = "ab";
    for (int round = 0; found == 2 && round < 6; round++)
        nodes_run(placement, be_wandering, cpus);
}

int main(void)
{
    static const char *const placements[] = {"ab", "aabb", "abab", "aabcb"};

    if (!nodes_possible("test_nodes_group"))
        return NODES_SKIPPED;
    for (int i = 0; i < 4; i++) {
        placement = placements[i];
        nodes_run(placement, be_well, NULL);
    }
    placement = "abab";
    for (int how = ABORTS; how <= ELSEWHERE; how++)
        check_bad(how);
    check_wandering();
    return check_report("test_nodes_group");
}
