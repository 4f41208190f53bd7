/*
 * Layers of experts nobody thought of on groups of fake GPUs, each beside the same on CPUs, bit for bit: any
 * number of experts, choices, elements and tokens, type, mode, wire, width of rows, alignment and table.
 *
 * usage: test_cuda_random_moe [SEED [COUNT]]   from that seed on, so many for each group
 */
#include "fake_gpu.h"
#include "moe_cases.h"
#include "support/procs.h"
#include "support/ranks.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    EACH = 8, /* layers of a group */
    SOAK_EACH = 400,
    RANKS_MOST = 4,
    CHOICES_MOST = 40,
    ROUNDS = MOE_KINDS,
    PACKED_MOST = 800000 /* elements of rows that were received */
};

static uint64_t pick(uint64_t *state, uint64_t count)
{
    return check_random(state) % count;
}

static int64_t packed_most(const moe_case *c)
{
    int64_t rows = c->alignment < 0 ? -c->alignment * c->experts
                                    : c->alignment * c->experts + RANKS_MOST * c->tokens * c->topk;

    return rows * (c->hidden + c->row_bytes);
}

static moe_case random_layer(uint64_t seed)
{
    static const weft_dtype types[] = {WEFT_F32, WEFT_F16, WEFT_BF16};
    uint64_t state = seed, *s = &state;
    moe_case c = {.seed = seed, .rounds = ROUNDS};

    check_random(s);
    do {
        c.experts = 1 + (int)pick(s, pick(s, 4) ? 24 : 300);
        c.topk = 1 + (int)pick(s, (uint64_t)(c.experts < CHOICES_MOST ? c.experts : CHOICES_MOST));
        c.hidden = 1 + (int64_t)pick(s, pick(s, 4) ? 160 : 5000);
        c.tokens = 1 + (int64_t)pick(s, pick(s, 5) ? 20 : 200);
        c.dtype = types[pick(s, 3)];
        c.mode = pick(s, 2) ? WEFT_MOE_EXACT : WEFT_MOE_REDUCED;
        c.table = pick(s, 2);
        c.wire = pick(s, 4) ? WEFT_MOE_WIRE_GIVEN : WEFT_MOE_WIRE_FP8;
        c.row_bytes = c.wire == WEFT_MOE_WIRE_GIVEN && pick(s, 4) == 0 ? 1 + (int64_t)pick(s, 300) : 0;
        /* or so many rows for each expert */
        c.alignment = pick(s, 4) ? 1 + (int64_t)pick(s, 20) : -(RANKS_MOST * c.tokens + (int64_t)pick(s, 9));
    } while (packed_most(&c) > PACKED_MOST);
    return c;
}

typedef struct random_run {
    uint64_t first;
    int count;
    bool apart;
} random_run;

static void random_rank(weft_group *group, void *argument)
{
    const random_run *it = argument;
    moe_rank r;

    if (moe_begin_on(group, it->apart ? weft_rank(group) : 0, &r))
        for (int i = 0; i < it->count; i++) {
            moe_case c = random_layer(it->first + (uint64_t)i);
            int failures = check_failures;

            moe_layer(&r, c);
            if (check_failures != failures)
                fprintf(stderr,
                        "test_cuda_random_moe: seed %" PRIu64 ", rank %d of %d: %d experts, %d choices, %lld "
                        "elements, %lld tokens, rows of %lld bytes, type %d, mode %d, wire %d, table %d, "
                        "alignment %lld\n",
                        c.seed, weft_rank(group), weft_size(group), c.experts, c.topk, (long long)c.hidden,
                        (long long)c.tokens, (long long)c.row_bytes, c.dtype, c.mode, c.wire, c.table,
                        (long long)c.alignment);
        }
    moe_end(&r);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    int count = argc > 2 ? atoi(argv[2]) : (int)check_repeat(EACH, SOAK_EACH);

    for (int world = 1; world <= RANKS_MOST; world++)
        for (int form = 0; form < 4; form++) {
            random_run it = {
                .first = seed + (uint64_t)(world * 10 + form) * 1000000, .count = count, .apart = form % 2};

            fake_gpu_install(it.apart ? world : 1, form / 2 ? 16 : 66, form != 3);
            ranks_run(world, random_rank, &it);
            procs_run_ranks(world, random_rank, &it);
        }
    return check_report("test_cuda_random_moe");
}
