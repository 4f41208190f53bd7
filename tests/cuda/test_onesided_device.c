/* Put, get, signals and atomics of programs on the real GPU, which the ranks share. */
#include "device_parts.h"
#include "onesided_cases.h"
#include "support/ranks.h"

static uint64_t rounds = 2000;

static void ring_of(int world)
{
    ranks_run(world, ring_rank, &rounds);
}

static void handed_of(int world)
{
    ranks_run(world, handed_rank, &rounds);
}

static void counted_of(int world)
{
    bool adds = true;

    ranks_run(world, counted_rank, &adds);
}

static void wrongly_of(int world)
{
    ranks_run(world, asked_wrongly_rank, NULL);
}

static void ended_of(int world)
{
    ranks_run(world, aborted_rank, NULL);
    ranks_run(2, late_rank, NULL);
}

int main(int argc, char **argv)
{
    static const device_part parts[] = {{"ring", ring_of, 1},     {"ring", ring_of, 4},
                                        {"handed", handed_of, 4}, {"counted", counted_of, 4},
                                        {"wrong", wrongly_of, 2}, {"ended", ended_of, 3}};

    device_parts_run(parts, (int)(sizeof(parts) / sizeof(parts[0])), argc, argv);
    return device_parts_report("test_cuda_onesided_device");
}
