/*
 * Products nobody thought of on groups of fake GPUs, one call after another, each of another size: any
 * operation, layout, schedule, type, transpose, pitch, address, epilogue and granule, ranks' parts that
 * differ, operands that peers cannot reach. Integers, compared with the exact product.
 *
 * usage: test_cuda_random [SEED [COUNT]]   from that seed on, so many for each group
 */
#include "fake_cublaslt.h"
#include "fake_gpu.h"
#include "run/tp_case.h"
#include "support/check.h"
#include "support/procs.h"
#include "support/ranks.h"

#include <inttypes.h>
#include <string.h>

enum {
    MEMORY = 16 << 20,
    EXTENT_MOST = 300,
    MULTIPLICATIONS_MOST = 600000,
    EACH = 16, /* calls of a group */
    SOAK_EACH = 1000
};

static uint64_t pick(uint64_t *state, uint64_t count)
{
    return check_random(state) % count;
}

static int64_t extent(uint64_t *s)
{
    static const int64_t edges[] = {1,  2,  3,  4,  7,  8,  9,   15,  16,  17, 24,
                                    31, 32, 33, 40, 64, 65, 128, 130, 256, 264};

    return pick(s, 3) ? edges[pick(s, sizeof(edges) / sizeof(*edges))] : 1 + (int64_t)pick(s, EXTENT_MOST);
}

static tp_case random_case(uint64_t seed)
{
    static const weft_dtype inputs[] = {WEFT_BF16, WEFT_BF16, WEFT_F16, WEFT_FP8_E4M3, WEFT_FP8_E5M2};
    static const weft_layout layouts[][4] = {
        {WEFT_LAYOUT_DEFAULT, WEFT_LAYOUT_GATHER_B, WEFT_LAYOUT_GATHER_A_K, WEFT_LAYOUT_GATHER_B_K},
        {WEFT_LAYOUT_DEFAULT, WEFT_LAYOUT_DEFAULT, WEFT_LAYOUT_DEFAULT, WEFT_LAYOUT_SCATTER_COLS}};
    uint64_t state = seed, *s = &state;
    tp_case t = {.seed = seed, .integers = true};
    weft_problem *p = &t.problem;
    const weft_schedule *list;
    int count;

    check_random(s);
    weft_problem_init(p, (weft_op)pick(s, 4));
    if (p->op <= WEFT_OP_GEMM_RS)
        p->layout = layouts[p->op][pick(s, 4)];
    list = weft_schedule_list(p->op, p->layout, &count);
    if (pick(s, 3) == 0)
        p->schedule = list[pick(s, (uint64_t)count)];
    if (p->schedule == WEFT_SCHEDULE_MULTIMEM || p->schedule == WEFT_SCHEDULE_TWO_LEVEL)
        p->schedule = WEFT_SCHEDULE_AUTO;
    do {
        p->m = extent(s);
        p->n = extent(s);
        p->k = extent(s);
    } while (p->m * p->n * p->k > MULTIPLICATIONS_MOST);
    p->dtype = inputs[pick(s, 5)];
    p->d_dtype = pick(s, 2) || weft_dtype_is_fp8(p->dtype) ? WEFT_F32 : p->dtype;
    if (p->k > 8 && p->d_dtype != WEFT_F32) /* sums that are rounded on the wire are not exact */
        p->wire_dtype = WEFT_F32;
    p->transa = (int)pick(s, 2);
    p->transb = (int)pick(s, 2);
    p->l = pick(s, 8) ? 1 : 2;
    if (pick(s, 3) == 0) {
        p->granule_m = (int64_t)pick(s, 20);
        p->granule_n = (int64_t)pick(s, 40);
        p->granule_k = (int64_t)pick(s, 40);
    }
    if (p->dtype == WEFT_FP8_E4M3 && pick(s, 2)) { /* as a library takes it, of up to four ranks */
        p->m = 1 + (int64_t)pick(s, 12);
        p->n = p->k = 192;
        p->transa = 0;
        p->transb = 1;
        p->granule_m = p->granule_n = p->granule_k = 0;
        p->l = 1;
    }
    if (pick(s, 2)) {
        p->alpha = (float)(1 + pick(s, 2));
        p->beta = (float)pick(s, 2);
        p->bias = (int)pick(s, 2);
        p->act = pick(s, 3) ? WEFT_ACT_NONE : WEFT_ACT_RELU;
    }
    if ((p->op == WEFT_OP_AG_GEMM || p->op == WEFT_OP_GEMM_AS) && p->layout == WEFT_LAYOUT_DEFAULT &&
        !weft_dtype_is_fp8(p->dtype) && pick(s, 6) == 0) {
        p->act = WEFT_ACT_RELU_GATED;
        p->beta = 0;
        p->d_dtype = WEFT_F32; /* whose largest number no product of two sums reaches */
    }
    t.row_scale = pick(s, 5) == 0;
    t.col_scale = pick(s, 5) == 0;
    p->scales = t.row_scale || t.col_scale;
    t.slack = (const int[]){0, 0, 8, 3, 1, 16}[pick(s, 6)];
    return t;
}

typedef struct random_run {
    uint64_t first;
    int count;
    bool apart;
} random_run;

static weft_status run(weft_group *group, const weft_problem *p, const weft_operands *operands)
{
    return p->op == WEFT_OP_AG_GEMM   ? weft_ag_gemm(group, p, operands)
           : p->op == WEFT_OP_GEMM_RS ? weft_gemm_rs(group, p, operands)
           : p->op == WEFT_OP_GEMM_AR ? weft_gemm_ar(group, p, operands)
                                      : weft_gemm_as(group, p, operands);
}

static void random_rank(weft_group *group, void *argument)
{
    const random_run *it = argument;
    int world = weft_size(group), rank = weft_rank(group);
    weft_group *mine = NULL;
    char *memory = NULL;
    weft_status status = WEFT_OK;

    CHECK_INT(weft_group_use_gpu(group, it->apart ? rank : 0), WEFT_OK);
    CHECK_INT(weft_group_threads(1, &mine), WEFT_OK);
    CHECK_INT(weft_group_use_gpu(mine, it->apart ? rank : 0), WEFT_OK);
    CHECK_INT(weft_alloc(mine, MEMORY, 0, (void **)&memory), WEFT_OK);
    for (int i = 0; i < it->count && status == WEFT_OK; i++) {
        tp_case t = random_case(it->first + (uint64_t)i);
        uint64_t own = t.seed * 31 + (uint64_t)rank;
        tp_instance hosts[TP_OPERANDS], devices[TP_OPERANDS];
        weft_operands operands;
        char *at = memory;
        float factors[3 * EXTENT_MOST];
        int64_t wrong = 0;

        tp_place(&t, world, rank, NULL, hosts);
        for (int which = 0; which < TP_OPERANDS; which++) {
            tp_fill(&t, which, &hosts[which]);
            devices[which] = hosts[which];
            devices[which].data =
                at + (pick(&own, 3) ? 0 : pick(&own, 9) * weft_dtype_size(hosts[which].dtype));
            CHECK_INT(weft_memcpy(group, devices[which].data, hosts[which].data, hosts[which].bytes),
                      WEFT_OK);
            at += (hosts[which].bytes + 511) / 256 * 256;
        }
        CHECK(at < memory + MEMORY - sizeof(factors));
        operands = tp_operands(devices);
        tp_values(&t, &hosts[TP_D], factors, &operands);
        CHECK_INT(weft_memcpy(group, at, factors, sizeof(factors)), WEFT_OK);
        operands.row_scale = t.row_scale ? (float *)(void *)at : NULL;
        operands.col_scale = t.col_scale ? (float *)(void *)at + hosts[TP_D].rows.count : NULL;
        for (uint64_t runs = 1 + t.seed % 3 / 2; runs && status == WEFT_OK; runs--)
            status = run(group, &t.problem, &operands);
        if (status == WEFT_OK) {
            CHECK_INT(weft_memcpy(group, hosts[TP_D].data, devices[TP_D].data, hosts[TP_D].bytes), WEFT_OK);
            wrong = tp_wrong(&t, world, &hosts[TP_D]);
        }
        CHECK_INT(status, WEFT_OK);
        CHECK_INT(wrong, 0);
        if (status != WEFT_OK || wrong) {
            fprintf(stderr, "test_cuda_random: seed %" PRIu64 ": %s\n  ", t.seed,
                    status ? weft_error(group) : "wrong");
            tp_print(&t, world, rank);
        }
        tp_release(hosts);
    }
    CHECK_INT(weft_free(mine, memory), WEFT_OK);
    weft_group_free(mine);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    int count = argc > 2 ? atoi(argv[2]) : (int)check_repeat(EACH, SOAK_EACH);

    for (int world = 1; world <= 4; world++)
        for (int form = 0; form < 4; form++) {
            random_run it = {
                .first = seed + (uint64_t)(world * 10 + form) * 1000000, .count = count, .apart = form % 2};

            fake_gpu_install(it.apart ? world : 1, form / 2 ? 16 : 66, form != 3);
            fake_gpu_atomics(form == 1);
            fake_cublaslt_install(form > 1);
            ranks_run(world, random_rank, &it);
            procs_run_ranks(world, random_rank, &it);
        }
    fake_gpu_atomics(false);
    return check_report("test_cuda_random");
}
