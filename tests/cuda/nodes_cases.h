/*
 * GPU ranks on virtual nodes: collectives and products beside the same calls of CPU ranks, what cannot be had
 * there, and that a rank's mistake is an error on all. The GPU may be a fake one.
 */
#ifndef WEFT_TESTS_CUDA_NODES_CASES_H
#define WEFT_TESTS_CUDA_NODES_CASES_H

#include "api_cases.h"
#include "counted_cases.h"
#include "support/nodes.h"

static inline void nodes_collectives(weft_group *group)
{
    static const int64_t counts[] = {0, 1, 61, 4099};
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_I32, WEFT_BYTE};
    uint64_t seed = 1;
    coll_rank r;

    if (coll_begin(group, &r)) {
        for (weft_op op = WEFT_OP_ALL_REDUCE; op <= WEFT_OP_BROADCAST; op++)
            for (int c = 0; c < 4; c++)
                for (int d = 0; d < 4; d++, seed++) {
                    coll_job j = {.op = op,
                                  .schedule = seed % 3 ? WEFT_SCHEDULE_AUTO : WEFT_SCHEDULE_TWO_LEVEL,
                                  .dtype = dtypes[d],
                                  .reduction = coll_reduces(op) ? coll_reduction(dtypes[d], seed) : WEFT_SUM,
                                  .count = counts[c],
                                  .root = (int)(seed % (uint64_t)weft_size(group)),
                                  .runs = 1 + (int)(seed % 3),
                                  .in_place = seed / 2 % 3 == 0,
                                  .shift = seed % 4 == 3 ? (int)(seed % 5) : 0,
                                  .place = seed % 5 > 2 ? COLL_ELSEWHERE : COLL_SYMMETRIC,
                                  .seed = seed};

                    if (!coll_reduces(op) || dtypes[d] != WEFT_BYTE)
                        coll_try(&r, &j);
                }
        coll_stream(&r, 60, 3000);
        counted_all(&r, 2);
        counted_messages(&r);
    }
    coll_end(&r);
}

/* On a group that is on GPUs. */
static inline void nodes_errors(weft_group *group)
{
    int me = weft_rank(group);
    weft_moe_config config;
    weft_moe *moe;
    void *memory;

    CHECK_INT(weft_alloc(group, 4096, 0, &memory), WEFT_OK);
    CHECK(weft_peer(group, memory, me) == memory);
    CHECK(weft_peer(group, memory, 1 - me) == NULL);
    weft_moe_config_init(&config);
    CHECK_INT(weft_moe_create(group, &config, &moe), WEFT_ERR_UNSUPPORTED);
    CHECK_HAS(weft_error(group), "has no mixture of experts");
    CHECK_INT(weft_all_reduce(group, me ? memory : NULL, memory, 100, WEFT_F32, WEFT_SUM),
              me ? WEFT_ERR_PEER : WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_all_reduce(group, memory, memory, 5 + me, WEFT_F32, WEFT_SUM), WEFT_ERR_MISMATCH);
    CHECK_INT(weft_all_reduce(group, memory, memory, 100, WEFT_F32, WEFT_SUM), WEFT_OK);
    CHECK_INT(weft_free(group, (char *)memory + 256), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_free(group, memory), WEFT_OK);
}

static inline void nodes_body(int rank, void *argument)
{
    api_run run = {.small = true, .runs = 2, .shapes = 2};
    weft_group *group, *second, *cpu = NULL;

    (void)rank;
    (void)argument;
    CHECK_INT(weft_init(&group), WEFT_OK);
    CHECK_INT(weft_group_split(group, 0, weft_rank(group), &second), WEFT_OK);
    nodes_collectives(group);
    if (weft_size(group) == 2)
        nodes_errors(group);
    if (api_groups(second, false, &cpu)) {
        api_all(second, cpu, second, &run);
        api_forms(second, cpu, second, &run);
        api_reals(second, cpu, second, &run);
        api_epilogues(second, cpu, second, &run);
    }
    CHECK_INT(weft_barrier(second), WEFT_OK);
    weft_group_free(cpu);
    weft_group_free(second);
    weft_finalize(group);
}

#endif
