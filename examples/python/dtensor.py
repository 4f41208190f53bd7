"""An ordinary DTensor program: tensor parallelism with sequence parallelism, forward and backward.

    torchrun --nproc-per-node 2 examples/python/dtensor.py                  # on gloo
    torchrun --nproc-per-node 2 examples/python/dtensor.py --backend weft   # the same program
    … --backend weft --compile                                              # with the products woven

Nothing in it knows of weft but the line that imports it.
"""

from __future__ import annotations

import argparse
import time
from typing import List, Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import weft.torch.compile  # registers the backend "weft"


class FeedForward(nn.Module):
    """The feed-forward layer of Llama."""

    def __init__(self, hidden: int, inter: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(hidden, inter, bias=False), nn.Linear(hidden, inter, bias=False)
        self.down = nn.Linear(inter, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def main(arguments: Optional[List[str]] = None) -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--inter", type=int, default=2816)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    plan = {
        "gate": ColwiseParallel(input_layouts=Shard(0)),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    }
    model: nn.Module = parallelize_module(
        FeedForward(options.hidden, options.inter), init_device_mesh("cpu", (size,)), plan
    )
    if options.compile:
        weft.torch.compile.enable()
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(options.tokens // size, options.hidden, generator=torch.Generator().manual_seed(rank))
    for step in range(options.steps):
        began = time.perf_counter()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(
                f"step {step}: loss {float(loss.detach()):.6f}, {(time.perf_counter() - began) * 1e3:.1f} ms",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
