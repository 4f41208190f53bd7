/*
 * A round of mixture of experts, predicted: against weft's own times on one H200 behind an emulated link
 * (docs/performance/moe.md, microseconds; nothing is fitted to them), and what must hold on every shipped
 * machine.
 */
#include "support/check.h"
#include "sim/moe.h"
#include "sim/trust.h"

#include <math.h>

static const struct {
    int experts, topk;
    int64_t hidden, tokens;
    double link_gbs, dispatch_us, exact_us, reduced_us;
} table[] = {
    {8, 2, 6144, 16, 450, 8.3, 6.2, 7.4},         {64, 6, 2048, 32, 450, 8.8, 6.6, 6.6},
    {128, 4, 2880, 128, 450, 13.8, 11.0, 9.9},    {128, 8, 4096, 256, 450, 41.6, 44.7, 32.1},
    {256, 8, 7168, 256, 450, 64.4, 74.9, 53.2},   {256, 8, 7168, 128, 450, 30.3, 42.1, 30.2},
    {256, 8, 7168, 128, 48, 189.0, 285.0, 189.0},
};

enum { ROWS = sizeof(table) / sizeof(table[0]) };

static weft_machine find(const char *name)
{
    weft_error_text error = {0};
    weft_machine machine;

    CHECK_INT(weft_machine_find(name, &machine, &error), WEFT_OK);
    return machine;
}

static weft_moe_time predict(const weft_machine *machine, const weft_moe_shape *shape, bool graph)
{
    weft_error_text error = {0};
    weft_moe_time time = {0};

    CHECK_INT(weft_sim_moe(machine, shape, graph, &time, &error), WEFT_OK);
    CHECK(time.dispatch_us > 0 && time.combine_us > 0 &&
          isfinite(time.dispatch_us + time.combine_us + time.experts_us));
    return time;
}

static double round_us(const weft_machine *machine, const weft_moe_shape *shape)
{
    weft_moe_time time = predict(machine, shape, false);

    return time.dispatch_us + time.experts_us + time.combine_us;
}

static void measured_rounds(void)
{
    weft_machine machine = find("h200_link");
    const weft_trust *trust = weft_trust_of(weft_trust_kind_of_moe(&machine, 8));
    double errors[3 * ROWS];
    int count = 0;

    for (int i = 0; i < ROWS; i++) {
        weft_moe_shape shape = {.experts = table[i].experts,
                                .topk = table[i].topk,
                                .ranks = 8,
                                .hidden = table[i].hidden,
                                .tokens = table[i].tokens,
                                .dtype = WEFT_F16};
        weft_moe_time exact, reduced;

        machine.link_gbs = table[i].link_gbs;
        exact = predict(&machine, &shape, true);
        shape.reduced = true;
        reduced = predict(&machine, &shape, true);
        errors[count++] = fabs(exact.dispatch_us / table[i].dispatch_us - 1);
        errors[count++] = fabs(exact.combine_us / table[i].exact_us - 1);
        errors[count++] = fabs(reduced.combine_us / table[i].reduced_us - 1);
    }
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && errors[j] < errors[j - 1]; j--) {
            double swap = errors[j];

            errors[j] = errors[j - 1];
            errors[j - 1] = swap;
        }
    if (fabs(100 * errors[count / 2] - trust->median_pct) > 0.5 ||
        fabs(100 * errors[count - 1] - trust->worst_pct) > 0.5)
        fprintf(stderr, "%d times, median %.1f %%, worst %.1f %%\n", count, 100 * errors[count / 2],
                100 * errors[count - 1]);
    CHECK_INT(count, trust->rows);
    CHECK(fabs(100 * errors[count / 2] - trust->median_pct) <= 0.5);
    CHECK(fabs(100 * errors[count - 1] - trust->worst_pct) <= 0.5);
}

/* More of anything takes no less; so do skew, exact sums, and a second node. */
static void what_must_hold(const weft_machine *machine)
{
    weft_moe_shape shape = {.experts = 64,
                            .topk = 4,
                            .ranks = 8,
                            .hidden = 2048,
                            .tokens = 128,
                            .inter = 1024,
                            .dtype = WEFT_BF16};
    double once = round_us(machine, &shape);
    weft_moe_shape more = shape;

    more.tokens *= 2;
    CHECK(round_us(machine, &more) >= once);
    more = shape;
    more.hidden *= 2;
    CHECK(round_us(machine, &more) >= once);
    more = shape;
    more.topk *= 2;
    CHECK(round_us(machine, &more) >= once);
    more = shape;
    more.inter *= 2;
    CHECK(round_us(machine, &more) >= once);
    more = shape;
    more.skew = 0.5;
    CHECK(round_us(machine, &more) >= once);
    more = shape;
    more.reduced = true;
    CHECK(round_us(machine, &more) <= once);
    more = shape;
    more.tokens = 65536; /* no faster than the arithmetic */
    if (machine->kind == WEFT_MACHINE_GPU)
        CHECK(predict(machine, &more, false).experts_us >=
              6e-3 * 65536.0 * 8 * 4 / 8 * 2048 * 1024 / machine->gflops[WEFT_BF16] / machine->units);
}

static int pick(uint64_t *seed, int least, int most)
{
    return least + (int)(check_random(seed) % (uint64_t)(most - least + 1));
}

/* The rows of a token that no expert of its own choice keeps from crossing: those of its rank's experts, to a
 * rank whose node has `here` of the ranks. */
static double crossing_bytes(const weft_moe_shape *s, int here)
{
    double experts = s->experts, per_rank = experts / s->ranks, none = 1;

    for (int i = 0; i < s->topk; i++)
        none *= fmax(0, (experts - per_rank - i) / (experts - i));
    return (1 - none) * (double)s->tokens * (s->ranks - here) * (double)s->hidden * 2;
}

/* Any shape on any number of ranks, nodes that are not full too. */
static void random_shape(const weft_machine *machine, uint64_t *seed)
{
    int most = machine->ranks_per_node ? machine->nodes * machine->ranks_per_node : 8;
    int full = machine->ranks_per_node ? machine->ranks_per_node : most, last;
    weft_moe_shape s = {.topk = pick(seed, 1, 8),
                        .ranks = pick(seed, 1, most < 64 ? most : 64),
                        .hidden = pick(seed, 1, 8192),
                        .tokens = pick(seed, 1, 4096),
                        .inter = pick(seed, 1, 4096),
                        .skew = pick(seed, 0, 2) ? 0 : pick(seed, 0, 100) / 100.0,
                        .reduced = pick(seed, 0, 1),
                        .dtype = WEFT_BF16};
    weft_moe_shape more[4];
    weft_moe_time time;
    double once;

    s.experts = s.ranks * pick(seed, 1, 16);
    s.topk = s.topk < s.experts ? s.topk : s.experts;
    last = s.ranks % full ? s.ranks % full : full < s.ranks ? full : s.ranks;
    time = predict(machine, &s, false);
    once = time.dispatch_us + time.experts_us + time.combine_us;
    for (int i = 0; i < 4; i++)
        more[i] = s;
    more[0].tokens *= 2;
    more[1].hidden *= 2;
    more[2].inter *= 2;
    more[3].topk = 2 * s.topk < s.experts ? 2 * s.topk : s.experts;
    for (int i = 0; i < 4; i++)
        CHECK(round_us(machine, &more[i]) >= 0.999 * once);
    CHECK(time.experts_us >= 0.999 * 6e-3 * (double)s.tokens * s.topk * (double)s.hidden * (double)s.inter /
                                 machine->gflops[WEFT_BF16] / machine->units);
    if (s.ranks > full && machine->network_gbs > 0)
        CHECK(time.dispatch_us >= 0.999e-3 * crossing_bytes(&s, last) / machine->network_gbs);
    if (machine->kind == WEFT_MACHINE_GPU && machine->link != WEFT_LINK_MESH && s.ranks > 1)
        CHECK(time.dispatch_us >= 0.999e-3 *
                                      crossing_bytes(&s, s.ranks - (full < s.ranks ? full : s.ranks) + 1) /
                                      machine->link_gbs);
}

int main(void)
{
    uint64_t seed = 21;

    weft_machine two = find("h100x16");
    weft_moe_shape shape = {
        .experts = 256, .topk = 8, .ranks = 8, .hidden = 7168, .tokens = 128, .dtype = WEFT_BF16};
    weft_error_text error = {0};
    weft_moe_time time;
    double one_node = predict(&two, &shape, false).dispatch_us;

    measured_rounds();
    for (int i = 0; weft_machine_builtin_name(i); i++) {
        weft_machine machine = find(weft_machine_builtin_name(i));

        what_must_hold(&machine);
        for (int j = 0; j < 200; j++)
            random_shape(&machine, &seed);
    }
    time = predict(&two, &shape, false);
    shape.fp8 = true; /* 7168 + 4 * 56 bytes a token instead of 2 * 7168; results as they are */
    CHECK(predict(&two, &shape, false).dispatch_us < one_node);
    CHECK(fabs(predict(&two, &shape, false).link_bytes / time.link_bytes - 7392.0 / 14336) < 1e-12);
    CHECK(predict(&two, &shape, false).combine_us == time.combine_us);
    shape.fp8 = false;
    shape.ranks = 16;
    time = predict(&two, &shape, false);
    CHECK(time.dispatch_us > one_node && time.network_bytes > 0);
    CHECK(time.dispatch_us >= time.network_bytes / two.network_gbs * 1e-3);
    shape.ranks = 17;
    CHECK_INT(weft_sim_moe(&two, &shape, false, &time, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "do not fit");
    shape.ranks = 8;
    shape.topk = 257;
    CHECK_INT(weft_sim_moe(&two, &shape, false, &time, &error), WEFT_ERR_ARGUMENT);
    return check_report("sim moe");
}
