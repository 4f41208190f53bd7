"""Collectives of torch.distributed on weft and on gloo, call by call in turn, in the same processes.

    torchrun --nproc-per-node 2 bench/torch_collectives.py [OP …] [--bytes 1024 65536] [--dtype bfloat16] [--seconds 1] [--calls 20]

Every rank starts together; a call's time is that of the rank that took longest. Rows are medians, and of the ratio also the
quartiles over pairs of calls. ``bytes`` are of the whole tensor: what is reduced, gathered or scattered. In turn, each library
finds the caches as the other left them; with ``--calls``, each makes so many calls behind one another before it is the other's turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist

import weft.torch  # noqa: F401


def calls(whole: torch.Tensor, rank: int, size: int) -> Dict[str, Callable[[Any], Any]]:
    """By name: the collective on a tensor of so many bytes, in a group."""
    share = whole[: whole.numel() // size].clone()
    return {
        "all_reduce": lambda group: dist.all_reduce(whole, group=group),
        "all_gather": lambda group: dist.all_gather_into_tensor(whole, share, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter_tensor(share, whole, group=group),
        "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
        "all_to_all": lambda group: dist.all_to_all_single(torch.empty_like(whole), whole, group=group),
    }


def measure(call: Callable[[Any], Any], whole: torch.Tensor, gloo: Any, seconds: float, calls: int) -> List[Tuple[float, float]]:
    """Microseconds of pairs of calls, or of rows of calls, gloo's and weft's, of the slowest rank."""
    pairs: List[Tuple[float, float]] = []
    began, took = time.monotonic(), torch.zeros(3, dtype=torch.float64)
    while True:
        for i, group in enumerate((gloo, None)):
            whole.zero_()
            dist.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                call(group)
            took[i] = (time.perf_counter() - start) / calls
        took[2] = time.monotonic() - began
        dist.all_reduce(took, dist.ReduceOp.MAX)
        pairs.append((float(took[0]) * 1e6, float(took[1]) * 1e6))
        if len(pairs) >= 2003 or (float(took[2]) > seconds and len(pairs) >= 8):
            return pairs[3:]


def main() -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", default=["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
    parser.add_argument("--bytes", type=int, nargs="*", default=[1 << n for n in range(10, 27, 2)])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=1.0, help="for a row")
    parser.add_argument("--calls", type=int, default=1, help="of one library before the other's turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("weft")
    gloo, rank, size = dist.new_group(backend="gloo"), dist.get_rank(), dist.get_world_size()
    dtype = getattr(torch, options.dtype)
    if rank == 0:
        print(f"{options.dtype}, {size} ranks, torch {torch.__version__}; microseconds")
        print(f"{'':14} {'bytes':>9} {'gloo':>9} {'weft':>9} {'ratio':>6}   quartiles")
    for op in options.ops:
        for amount in options.bytes:
            whole = torch.zeros(amount // dtype.itemsize, dtype=dtype)
            pairs = measure(calls(whole, rank, size)[op], whole, gloo, options.seconds, options.calls)
            slow, fast = (statistics.median(times) for times in zip(*pairs))
            low, _, high = statistics.quantiles([g / w for g, w in pairs], n=4)
            if rank == 0:
                print(f"{op:14} {amount:>9} {slow:>9.1f} {fast:>9.1f} {slow / fast:>6.2f}   {low:.2f} to {high:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
