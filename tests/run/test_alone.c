/*
 * Sizes that change with every call: once the ranks have met for a product, the next one of another size is
 * planned by each rank alone. They meet again only where it needs more memory than there is, and those who
 * ask for different things are still told.
 */
#include "run/tp_case.h"

#include "run/session.h"
#include "support/ranks.h"

enum { SYMMETRIC_BYTES = 4 << 20, MOST = 200 };

typedef weft_status (*product)(weft_group *group, const weft_problem *problem, const weft_operands *operands);

static const product products[] = {weft_ag_gemm, weft_gemm_rs, weft_gemm_ar, weft_gemm_as};

/* Runs a product of m rows and checks it, unless it is a large one. */
static weft_status multiply(weft_group *group, char *symmetric, weft_op op, int64_t m)
{
    tp_case t = {.integers = true, .symmetric = m % 3 ? 31 : 0, .seed = (uint64_t)m};
    tp_instance s[TP_OPERANDS];
    weft_operands operands;
    weft_status status;

    weft_problem_init(&t.problem, op);
    t.problem.d_dtype = WEFT_F32;
    t.problem.m = m;
    t.problem.n = 48;
    t.problem.k = 40;
    t.problem.layout = op == WEFT_OP_AG_GEMM   ? WEFT_LAYOUT_GATHER_A
                       : op == WEFT_OP_GEMM_RS ? WEFT_LAYOUT_SCATTER_ROWS
                                               : WEFT_LAYOUT_DEFAULT;
    tp_place(&t, weft_size(group), weft_rank(group), symmetric, s);
    for (int which = 0; which < TP_OPERANDS; which++)
        tp_fill(&t, which, &s[which]);
    operands = tp_operands(s);
    status = products[op](group, &t.problem, &operands);
    if (status == WEFT_OK && m <= MOST)
        CHECK_INT(tp_wrong(&t, weft_size(group), &s[TP_D]), 0);
    tp_release(s);
    return status;
}

static void new_sizes(weft_group *group, void *argument)
{
    void *symmetric = NULL;

    (void)argument;
    CHECK_INT(weft_alloc(group, SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    for (weft_op op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++)
        CHECK_INT(multiply(group, symmetric, op, MOST), WEFT_OK);
    for (int64_t m = 1; m < MOST; m += m < 10 ? 1 : 17) {
        for (weft_op op = WEFT_OP_AG_GEMM; op <= WEFT_OP_GEMM_AS; op++) {
            uint64_t syncs = group->sync, calls = group->session->sequence;

            CHECK_INT(multiply(group, symmetric, op, m), WEFT_OK);
            CHECK_INT(group->sync, syncs);
            CHECK_INT(group->session->sequence, calls + 1); /* the run's own ENTER */
        }
    }
    weft_free(group, symmetric);
}

static void new_counts(weft_group *group, void *argument)
{
    enum { ELEMENTS = 100000 };
    float *data = malloc(ELEMENTS * sizeof(*data));

    (void)argument;
    for (int64_t count = ELEMENTS; count > 10000; count -= 9973) {
        uint64_t syncs = group->sync;

        for (int64_t i = 0; i < count; i++)
            data[i] = (float)(i % 100 + weft_rank(group));
        CHECK_INT(weft_all_reduce(group, data, data, count, WEFT_F32, WEFT_MAX), WEFT_OK);
        CHECK(data[count - 1] == (float)((count - 1) % 100 + weft_size(group) - 1));
        if (count < ELEMENTS)
            CHECK_INT(group->sync, syncs);
    }
    free(data);
}

/* Sizes that rise: the ranks meet for a few of them. */
static void rising_sizes(weft_group *group, void *argument)
{
    void *symmetric = NULL;
    int met = 0;

    (void)argument;
    CHECK_INT(weft_alloc(group, 4 * SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    for (int64_t m = 16; m < 9000; m += 450) {
        uint64_t syncs = group->sync;

        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, m), WEFT_OK);
        met += group->sync != syncs;
    }
    CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, MOST), WEFT_OK);
    CHECK(met >= 2 && met <= 6);
    weft_free(group, symmetric);
}

/* Of two that ask for different sizes one may have to meet the others and one not. */
static void different_sizes(weft_group *group, void *argument)
{
    void *symmetric = NULL;
    int64_t large = 6000;

    (void)argument;
    CHECK_INT(weft_alloc(group, 4 * SYMMETRIC_BYTES, 0, &symmetric), WEFT_OK);
    CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, MOST), WEFT_OK);
    for (int i = 0; i < 3; i++) {
        bool odd = weft_rank(group) == 1;

        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, odd ? 7 : 9), WEFT_ERR_MISMATCH);
        CHECK_HAS(weft_error(group), "m=7");
        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, 11), WEFT_OK);
        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, odd ? large : 12), WEFT_ERR_MISMATCH);
        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, 12), WEFT_OK);
        CHECK_INT(multiply(group, symmetric, WEFT_OP_GEMM_RS, 13 + i), WEFT_OK);
    }
    weft_free(group, symmetric);
}

int main(void)
{
    setenv("WEFT_TUNE", "off", 1);
    for (int world = 2; world <= 3; world++) {
        ranks_run(world, new_sizes, NULL);
        ranks_run(world, new_counts, NULL);
        ranks_run(world, rising_sizes, NULL);
        ranks_run(world, different_sizes, NULL);
    }
    return check_report("test_run_alone");
}
