#!/usr/bin/env python3
"""How well `auto` chooses on a GPU: forty random products over virtual ranks, each with every schedule.

    python3 bench/cuda_auto.py build/weft [seed [first [iterations [seconds]]]]

A row has the time of what `auto` took over the fastest of `--schedule all`, unfused included, all of `weft bench`. The last
line is the geometric mean, the share within 1.10 and the worst, from problem `first` (0) on, of those that began within `seconds`
(all). Standard library only.
"""
import json
import math
import random
import subprocess
import sys
import time


ITERATIONS = sys.argv[4] if len(sys.argv) > 4 else "60"


def rows(weft, op, shape, ranks, wire, *more):
    command = [weft, "bench", op, *map(str, shape), "-n", str(ranks), "--dtype", "bf16", "--backend", "cuda",
               "--iters", ITERATIONS, "--json", *more]
    if op in ("gemm_rs", "gemm_ar"):
        command += ["--wire", wire]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def draw(source):
    def size(least, most):
        return max(8, int(math.exp(source.uniform(math.log(least), math.log(most)))) // 8 * 8)

    ranks = source.choice((2, 2, 4, 8))
    op = source.choice(("ag_gemm", "gemm_rs", "gemm_ar", "gemm_as"))
    rows_of = source.choice((size(8, 512), size(512, 8192)))
    return op, (rows_of, size(1024, 16384) // 64 * 64, size(1024, 16384) // 64 * 64), ranks, source.choice(("bf16", "f32"))


def main():
    weft, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    seconds = float(sys.argv[5]) if len(sys.argv) > 5 else math.inf
    source, begun = random.Random(seed), time.monotonic()
    ratios = []
    for op, shape, ranks, wire in [draw(source) for _ in range(40)][first:]:
        if ratios and time.monotonic() - begun > seconds:
            break
        taken = rows(weft, op, shape, ranks, wire)[0]
        every = rows(weft, op, shape, ranks, wire, "--schedule", "all")
        times = {row["schedule"]: row["fused_us"] for row in every}
        times["unfused"] = min(row["own_unfused_us"] for row in every)
        best = min(times, key=times.get)
        # the same schedule was timed twice: what differs between the two is not the choice's
        mine = min(taken["fused_us"], times.get(taken["schedule"], math.inf))
        ratios.append(mine / min(mine, times[best]))
        print(f"{op:8} {'x'.join(map(str, shape)):18} {ranks} ranks, wire {wire:4}: {taken['schedule']} {mine:.1f}, "
              f"{best} {times[best]:.1f} us: {ratios[-1]:.3f}", flush=True)
    ratios.sort()
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    within = sum(ratio <= 1.10 for ratio in ratios) / len(ratios)
    print(f"seed {seed}: {len(ratios)} problems, geometric mean {mean:.3f}, {within:.0%} within 1.10, worst {ratios[-1]:.3f}")


if __name__ == "__main__":
    main()
