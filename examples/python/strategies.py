"""A profile of overlap strategies: the products of a feed-forward layer by every schedule, beside the product alone.

    torchrun --nproc-per-node 2 examples/python/strategies.py [--tokens 512] [--dtype bfloat16]

ag_gemm is the layer's first product (rows gathered), gemm_rs its second (sums scattered). "hidden" is the part of the
communication, unfused minus GEMM only, that a schedule hides; "slower" where it takes longer than unfused.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable, Dict, List, Optional

import torch

import weft

SCHEDULES = {
    "ag_gemm": ("unfused", "direct", "allgather_rotating_a"),
    "gemm_rs": ("unfused", "direct", "reducescatter_tiling_a", "reducescatter_tiling_b"),
}


def contest(group: weft.Group, contenders: Dict[str, Callable[[], Any]], iterations: int) -> Dict[str, float]:
    """Milliseconds of each, the median of rounds in which they take turns; the slowest rank counts."""
    times: Dict[str, List[float]] = {name: [] for name in contenders}
    for i in range(iterations + 2):
        for name, call in contenders.items():
            group.barrier()
            began = time.perf_counter()
            call()
            took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
            if i >= 2:
                times[name].append(float(group.all_reduce(took, op="max")) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def main(arguments: Optional[List[str]] = None) -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--inter", type=int, default=2048)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--iterations", type=int, default=9)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    group, dtype = weft.init(), getattr(torch, options.dtype)
    shapes = {
        "ag_gemm": (options.tokens, options.inter, options.hidden),
        "gemm_rs": (options.tokens, options.hidden, options.inter),
    }
    if group.rank == 0:
        print(f"{group.size} ranks, {options.dtype}; milliseconds")
        print(f"{'product':<8} {'schedule':<24} {'time':>8} {'hidden':>7}")
    for op, (m, n, k) in shapes.items():
        rows, cols, inner = (weft.part(x, group.size, group.rank)[1] for x in (m, n, k))
        a = torch.randn(rows, k) if op == "ag_gemm" else torch.randn(m, inner)
        b = torch.randn(k, cols) if op == "ag_gemm" else torch.randn(inner, n)
        a, b = a.to(dtype), weft.Packed(b.to(dtype))
        alone = torch.randn(m, a.shape[1]).to(dtype)
        contenders: Dict[str, Callable[[], Any]] = {"GEMM only": lambda: weft.gemm(alone, b, threads=1)}
        for name in SCHEDULES[op]:
            run = getattr(group, op)
            contenders[name] = lambda name=name: run(a, b, m=m, n=n, k=k, schedule=name, workers=1)
        took = contest(group, contenders, options.iterations)
        spent = took["unfused"] - took["GEMM only"]
        for name, ms in took.items():
            gained = took["unfused"] - ms
            hidden = "" if name in ("GEMM only", "unfused") else "slower" if gained < 0 else f"{gained / spent:.0%}"
            if group.rank == 0:
                print(f"{op:<8} {name:<24} {ms:>8.3f} {hidden if spent > 0 else '–':>7}")


if __name__ == "__main__":
    main()
