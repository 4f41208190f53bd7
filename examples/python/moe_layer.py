"""A mixture-of-experts layer, experts spread over ranks: weft's MoELayer beside sort + all_to_all on gloo.

    torchrun --nproc-per-node 2 examples/python/moe_layer.py [--tokens 64 256] [--experts 16] [--topk 4]

Both have the same weights and the same routing; their outputs are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable, List, Optional

import torch
import torch.distributed as dist

import weft.torch
from weft.torch import MoELayer


def sorted_exchange(layer: MoELayer, x: torch.Tensor, gloo: Any) -> torch.Tensor:
    """The layer as programs without weft write it: a row for each token and expert, sorted, sent, and summed at home."""
    size, mine = dist.get_world_size(gloo), list(layer.experts)
    expert, weight = layer.route(x)
    order = expert.flatten().argsort(stable=True)
    owner_counts = torch.bincount(expert.flatten()[order] // len(mine), minlength=size)
    arriving = torch.empty_like(owner_counts)
    dist.all_to_all_single(arriving, owner_counts, group=gloo)
    there, here = owner_counts.tolist(), arriving.tolist()
    rows = x[order // layer.topk]
    got, ids = x.new_empty((sum(here), x.shape[1])), torch.empty(sum(here), dtype=expert.dtype)
    dist.all_to_all_single(got, rows, here, there, group=gloo)
    dist.all_to_all_single(ids, expert.flatten()[order], here, there, group=gloo)
    results = torch.empty_like(got)
    for name in mine:
        chosen = ids == int(name)
        results[chosen] = layer.experts[name](got[chosen])
    back = torch.empty_like(rows)
    dist.all_to_all_single(back, results, there, here, group=gloo)
    out = torch.zeros(x.shape, dtype=torch.float32)
    out.index_add_(0, order // layer.topk, back.float() * weight.flatten()[order, None])
    return out.to(x.dtype)


def median_ms(call: Callable[[], Any], iterations: int) -> float:
    """Milliseconds of a call, the median; every rank starts together."""
    times = []
    for i in range(iterations + 2):
        dist.barrier()
        began = time.perf_counter()
        call()
        if i >= 2:
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def main(arguments: Optional[List[str]] = None) -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--inter", type=int, default=512)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--topk", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    dist.init_process_group("weft")
    gloo, rank = dist.new_group(backend="gloo"), dist.get_rank()
    torch.manual_seed(1)
    layer = MoELayer(
        options.hidden, options.inter, options.experts, options.topk, max(options.tokens), group=dist.group.WORLD
    )
    dist.broadcast(layer.gate.weight.data, 0)
    layer.prepack()
    if rank == 0:
        print(f"{options.experts} experts, top-{options.topk}, {dist.get_world_size()} ranks; milliseconds")
        print(f"{'tokens':>7} {'sort + all_to_all on gloo':>26} {'weft':>8} {'speedup':>8}")
    for tokens in options.tokens:
        x = torch.randn(tokens, options.hidden, generator=torch.Generator().manual_seed(rank))
        with torch.no_grad():
            torch.testing.assert_close(layer(x), sorted_exchange(layer, x, gloo), rtol=1e-3, atol=1e-4)
            calls = (lambda: sorted_exchange(layer, x, gloo)), (lambda: layer(x))
            rounds = [[median_ms(call, options.iterations) for call in calls] for _ in range(3)]
        slow, fast = (statistics.median(times) for times in zip(*rounds))
        if rank == 0:
            print(f"{tokens:>7} {slow:>26.2f} {fast:>8.2f} {slow / fast:>8.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
