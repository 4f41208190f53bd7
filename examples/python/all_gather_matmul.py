"""A fused all-gather matmul beside all_gather + matmul of torch on gloo: the table of the symmetric-memory recipes, on CPUs.

    torchrun --nproc-per-node 2 examples/python/all_gather_matmul.py --M 512 --N 3584 --K 4096 [--dtype bfloat16]

Each rank has M / ranks rows of A (M x K) and N columns of B; N is what one rank computes, as in the recipes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable, List, Optional

import torch
import torch.distributed as dist

import weft.torch


def median_us(call: Callable[[], Any], iterations: int) -> float:
    """Microseconds of a call on this rank, the median; every rank starts together."""
    times = []
    for i in range(iterations + 2):
        dist.barrier()
        began = time.perf_counter()
        call()
        if i >= 2:
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def main(arguments: Optional[List[str]] = None) -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--M", type=int, nargs="*", default=[64, 512, 2048])
    parser.add_argument("--N", type=int, default=1792)
    parser.add_argument("--K", type=int, default=4096)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--iterations", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    dist.init_process_group("weft")
    gloo, rank, size = dist.new_group(backend="gloo"), dist.get_rank(), dist.get_world_size()
    name, dtype = dist.group.WORLD.group_name, getattr(torch, options.dtype)
    if rank == 0:
        print(f"all_gather + matmul, {size} ranks, N {options.N}, K {options.K}, {options.dtype}; microseconds")
        print(f"{'M':>7} {'matmul only':>12} {'gloo + matmul':>14} {'weft fused':>11} {'speedup':>8}")
    b = torch.randn(options.K, options.N, generator=torch.Generator().manual_seed(rank)).to(dtype)
    for m in options.M:
        a = torch.randn(m // size, options.K, generator=torch.Generator().manual_seed(m + rank)).to(dtype)
        whole = a.new_empty(m // size * size, options.K)

        def unfused() -> torch.Tensor:
            dist.all_gather_into_tensor(whole, a, group=gloo)
            return whole @ b

        def fused() -> torch.Tensor:
            return torch.ops.weft.ag_gemm(a, b, None, -1, name)

        torch.testing.assert_close(fused(), unfused(), rtol=0.02, atol=0.02 * options.K**0.5)
        alone = median_us(lambda: whole @ b, options.iterations)
        slow, fast = median_us(unfused, options.iterations), median_us(fused, options.iterations)
        if rank == 0:
            print(f"{m:>7} {alone:>12.0f} {slow:>14.0f} {fast:>11.0f} {slow / fast:>8.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
