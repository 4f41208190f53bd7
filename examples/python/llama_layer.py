"""The products of a Llama layer (attention projections and feed-forward), tensor parallel: weft's modules beside DTensor on gloo.

    torchrun --nproc-per-node 2 examples/python/llama_layer.py [--tokens 1 16 512] [--backward]

Sizes are those of Llama 3 8B. Outputs of both are compared, of the first 16 tokens; weights are packed for decoding unless --backward is given.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable, List, Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import weft.torch
from weft.torch import ColumnParallelLinear, RowParallelLinear, SwiGLU

COLUMNS, ROWS = ("q_proj", "k_proj", "v_proj", "mlp.gate_proj", "mlp.up_proj"), ("o_proj", "mlp.down_proj")


class Mlp(nn.Module):
    """The feed-forward part as an ordinary module."""

    def __init__(self, hidden: int, inter: int, **options: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, inter, bias=False, **options) for _ in range(2))
        self.down_proj = nn.Linear(inter, hidden, bias=False, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Every product of a layer, in order; what attention does between them is left out."""

    def __init__(self, column: Any, row: Any, mlp: Any, hidden: int, inter: int, kv: int, **options: Any) -> None:
        super().__init__()
        self.mlp = mlp(hidden, inter, **options)
        options = dict(bias=False, **options)
        self.q_proj, self.k_proj, self.v_proj = (column(hidden, n, **options) for n in (hidden, kv, kv))
        self.o_proj = row(hidden, hidden, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        x = x + self.o_proj(q + (k.sum() + v.sum()) * 1e-6)
        return x + self.mlp(x)


def median_ms(call: Callable[[], Any], iterations: int, warmups: int) -> float:
    """Milliseconds of a call, the median; every rank starts together."""
    times = []
    for i in range(iterations + warmups):
        dist.barrier()
        began = time.perf_counter()
        call()
        if i >= warmups:
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def main(arguments: Optional[List[str]] = None) -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="*", default=[1, 16, 512])
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--inter", type=int, default=14336)
    parser.add_argument("--kv", type=int, default=1024)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="both in turn so often; the median is shown")
    parser.add_argument("--backward", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    dist.init_process_group("weft")
    gloo, rank, size = dist.new_group(backend="gloo"), dist.get_rank(), dist.get_world_size()
    dtype = getattr(torch, options.dtype)
    torch.manual_seed(0)
    shape = (options.hidden, options.inter, options.kv)
    ordinary = Layer(nn.Linear, nn.Linear, Mlp, *shape, dtype=dtype)
    mine = Layer(ColumnParallelLinear, RowParallelLinear, SwiGLU, *shape, group=dist.group.WORLD, dtype=dtype)
    mine.load_state_dict(ordinary.state_dict())
    plan: Any = {name: ColwiseParallel() for name in COLUMNS}
    plan.update((name, RowwiseParallel()) for name in ROWS)
    theirs = parallelize_module(ordinary, DeviceMesh.from_group(gloo, "cpu"), plan)
    if not options.backward:
        for layer in mine.children():
            layer.prepack()
    if rank == 0:
        print(f"the products of a layer, {size} ranks, {options.dtype}; milliseconds")
        print(f"{'tokens':>7} {'DTensor on gloo':>16} {'weft':>8} {'speedup':>8}")
    for tokens in options.tokens:
        x = torch.randn(tokens, options.hidden, generator=torch.Generator().manual_seed(tokens)).to(dtype)

        def step(model: nn.Module, x: torch.Tensor = x) -> torch.Tensor:
            if not options.backward:
                with torch.no_grad():
                    return model(x)
            y = model(x)
            y.sum().backward()
            return y.detach()

        torch.testing.assert_close(step(mine)[:16], step(theirs, x[:16]), rtol=0.05, atol=0.05)  # others add next to nothing
        often = options.iterations, options.warmups
        rounds = [[median_ms(lambda m=m: step(m), *often) for m in (theirs, mine)] for _ in range(options.rounds)]
        slow, fast = (statistics.median(times) for times in zip(*rounds))
        if rank == 0:
            print(f"{tokens:>7} {slow:>16.2f} {fast:>8.2f} {slow / fast:>8.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
