"""All-reduce of growing buffers, through torch.distributed on weft and on gloo in turns.

    torchrun --nproc-per-node 4 examples/python/all_reduce.py [--dtype bfloat16] [--max-bytes 16777216]

One process in the group prints a table: the medians, and how many times faster weft is. Every result is checked.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, List, Optional

import torch
import torch.distributed as dist

import weft.torch


def measure(x: torch.Tensor, group: Any, iterations: int) -> float:
    """Microseconds of one all-reduce, the median; every rank starts together."""
    times = []
    for i in range(iterations + 2):
        x.fill_(1)
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(x, group=group)
        if i >= 2:
            times.append(time.perf_counter() - began)
        assert bool((x == dist.get_world_size()).all()), "wrong sum"
    return statistics.median(times) * 1e6


def main(arguments: Optional[List[str]] = None) -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-bytes", type=int, default=16 << 20)
    parser.add_argument("--iterations", type=int, default=20)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    dist.init_process_group("weft")
    gloo = dist.new_group(backend="gloo")
    dtype = getattr(torch, options.dtype)
    rank = dist.get_rank()
    if rank == 0:
        print(
            f"all_reduce {options.dtype}, {dist.get_world_size()} ranks\n{'bytes':>10} {'gloo us':>10} {'weft us':>10} {'speedup':>8}"
        )
    size = 1024
    while size <= options.max_bytes:
        x = torch.empty(size // dtype.itemsize, dtype=dtype)
        rounds = [(measure(x, gloo, options.iterations), measure(x, None, options.iterations)) for _ in range(3)]
        slow, fast = (statistics.median(times) for times in zip(*rounds))
        if rank == 0:
            print(f"{size:>10} {slow:>10.0f} {fast:>10.0f} {slow / fast:>8.1f}", flush=True)
        size *= 4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
