"""Parallel linear layers on CUDA tensors beside torch's symmetric-memory operators, in CUDA graphs, several processes on one GPU.

    weft run -n 2 -- python3 bench/torch_modules.py [M N K]      (under MPS; bf16; medians in us, in turn)
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from typing import Any, Callable, List

os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import weft  # noqa: E402
import weft.torch  # noqa: E402


def recorded(call: Callable[[], Any], calls: int) -> Any:
    """A graph of so many calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            call()
    return graph


def in_turn(made: List[Any], calls: int, rounds: int = 15) -> List[float]:
    """Medians of a call, from a barrier until the last rank is done."""
    samples: List[List[float]] = [[] for _ in made]
    for _ in range(rounds):
        for call, taken in zip(made, samples):
            torch.cuda.synchronize()
            dist.barrier()
            began = time.perf_counter()
            call()
            torch.cuda.synchronize()
            took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            taken.append(float(took) / calls * 1e6)
    return [statistics.median(taken) for taken in samples]


def main() -> None:
    """Runs on every rank."""
    import torch.distributed._symmetric_memory as symmetric

    m, n, k = (int(x) for x in sys.argv[1:4]) if len(sys.argv) > 3 else (4096, 4096, 4096)
    torch.cuda.set_device(0)
    group = weft.init()
    group.use_gpu(0)
    os.environ.setdefault("MASTER_PORT", "29541")
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(group.rank), WORLD_SIZE=str(group.size))
    dist.init_process_group("gloo")
    world = dist.group.WORLD.group_name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # needed up to torch 2.10
        symmetric.enable_symm_mem_for_group(world)
    options = dict(bias=False, group=group, sequence_parallel=True, dtype=torch.bfloat16)
    up, down = (kind(k, n, **options).cuda() for kind in (weft.torch.ColumnParallelLinear, weft.torch.RowParallelLinear))
    x = torch.randn(m // group.size, k, device="cuda").bfloat16()
    y = torch.randn(m, k // group.size, device="cuda").bfloat16()
    calls = 10
    with torch.no_grad():
        fused = torch.ops.symm_mem
        pairs = {
            "ColumnParallelLinear": (lambda: up(x), lambda: fused.fused_all_gather_matmul(x, [up.weight.t()], 0, world)),
            "RowParallelLinear": (
                lambda: down(y),
                lambda: fused.fused_matmul_reduce_scatter(y, down.weight.t(), "sum", 0, world),
            ),
        }
        for name, (mine, theirs) in pairs.items():

            def eager(call: Any = theirs) -> None:
                for _ in range(calls):
                    call()

            eager()
            ours, torchs = in_turn([recorded(mine, calls).replay, eager], calls)
            if group.rank == 0:
                print(f"{name:22} {group.size} ranks: weft, in a graph {ours:8.1f} torch {torchs:8.1f} {torchs / ours:6.2f}", flush=True)
    group.wait()
    dist.barrier()
    os._exit(0)  # what symmetric memory leaves does not come apart cleanly


if __name__ == "__main__":
    main()
