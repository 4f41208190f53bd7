/* Barrier, exchange, broadcast and agreement hold for any number of ranks, and mistakes are errors
 * everywhere. */
#include "group/sync.h"
#include "support/check.h"
#include "support/ranks.h"

static int shared_counts[64];

/* After barrier i every rank has made its i-th write, and none has begun the next before all have read. */
static void barrier_orders(weft_group *group, void *argument)
{
    long rounds = *(long *)argument;

    for (long round = 1; round <= rounds; round++) {
        shared_counts[weft_rank(group)] = (int)round;
        CHECK_INT(weft_barrier(group), WEFT_OK);
        for (int rank = 0; rank < weft_size(group); rank++)
            if (shared_counts[rank] != (int)round)
                CHECK_INT(shared_counts[rank], round);
        CHECK_INT(weft_barrier(group), WEFT_OK);
    }
}

static void exchange_shows(weft_group *group, void *argument)
{
    (void)argument;
    for (int round = 0; round < 200; round++) {
        int mine[2] = {weft_rank(group), round};

        CHECK_INT(weft_group_exchange(group, WEFT_SYNC_AGREE, mine, sizeof(mine)), WEFT_OK);
        for (int rank = 0; rank < weft_size(group); rank++) {
            const int *theirs = weft_group_board(group, rank);

            CHECK(theirs[0] == rank && theirs[1] == round);
        }
    }
}

static void broadcast_copies(weft_group *group, void *argument)
{
    static const size_t sizes[] = {0, 1, 100, WEFT_BOARD_BYTES, 3 * WEFT_BOARD_BYTES + 17};
    unsigned char data[3 * WEFT_BOARD_BYTES + 17];

    (void)argument;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int root = 0; root < weft_size(group); root++) {
            int wrong = 0;

            for (size_t at = 0; at < sizes[i]; at++)
                data[at] = weft_rank(group) == root ? (unsigned char)(at * 7 + (size_t)root) : 0xee;
            CHECK_INT(weft_group_broadcast(group, root, data, sizes[i]), WEFT_OK);
            for (size_t at = 0; at < sizes[i]; at++)
                wrong += data[at] != (unsigned char)(at * 7 + (size_t)root);
            CHECK_INT(wrong, 0);
        }
}

static void agree_compares(weft_group *group, void *argument)
{
    int odd = weft_rank(group) == weft_size(group) - 1;

    (void)argument;
    CHECK_INT(weft_group_agree(group, "gemm", 42, "m=1"), WEFT_OK);
    if (weft_size(group) > 1) {
        CHECK_INT(weft_group_agree(group, "gemm", odd ? 43 : 42, odd ? "m=2" : "m=1"), WEFT_ERR_MISMATCH);
        CHECK_HAS(weft_error(group), "rank 0 gemm (m=1)");
        CHECK_HAS(weft_error(group), "gemm (m=2)");
    }
    /* A disagreement is not the end of the group. */
    CHECK_INT(weft_barrier(group), WEFT_OK);
}

static void different_calls(weft_group *group, void *argument)
{
    void *memory;
    weft_status status;

    (void)argument;
    status = weft_rank(group) == 1 ? weft_alloc(group, 64, 0, &memory) : weft_barrier(group);
    CHECK_INT(status, WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "weft_barrier");
    CHECK_HAS(weft_error(group), "rank 1 weft_alloc");
    CHECK_INT(weft_barrier(group), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "rank 1 weft_alloc");
}

static void broadcast_disagrees(weft_group *group, void *argument)
{
    char data[16] = {0};

    (void)argument;
    CHECK_INT(weft_group_broadcast(group, 0, data, weft_rank(group) ? 8 : 16), WEFT_ERR_MISMATCH);
    CHECK_HAS(weft_error(group), "rank 0 expects 16 bytes");
}

int main(void)
{
    static const int sizes[] = {1, 2, 3, 5, 8, 9, 17, 33};
    weft_group *group = NULL;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        long rounds = check_repeat(sizes[i] > 8 ? 50 : 500, 5000);

        ranks_run(sizes[i], barrier_orders, &rounds);
        ranks_run(sizes[i], exchange_shows, NULL);
        ranks_run(sizes[i], broadcast_copies, NULL);
        ranks_run(sizes[i], agree_compares, NULL);
        if (sizes[i] > 1) {
            ranks_run(sizes[i], different_calls, NULL);
            ranks_run(sizes[i], broadcast_disagrees, NULL);
        }
    }
    CHECK_INT(weft_group_threads(0, &group), WEFT_ERR_ARGUMENT);
    CHECK_HAS(weft_error(NULL), "size is 0");
    CHECK_INT(weft_barrier(NULL), WEFT_ERR_ARGUMENT);
    return check_report("test_group_sync");
}
