"""Programs that run under any backend of torch.distributed, to be held against each other."""

from typing import Any, List

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def numbers(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, the same for the same rank: sums of them are exact."""
    values = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(rank))
    return values.bool() if dtype == torch.bool else values.to(dtype)


TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool)


def newest(module: Any, name: str, before: str) -> Any:
    """A function that torch has renamed."""
    return getattr(module, name, None) or getattr(module, before)


def collectives(rank: int) -> List[torch.Tensor]:
    """The results of every collective; what one backend returns another must."""
    size, got = dist.get_world_size(), []

    def keep(*tensors: torch.Tensor) -> None:
        got.extend(t.clone() for t in tensors)

    for dtype in TYPES:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            x = numbers(rank, 7, 3, dtype=dtype)
            dist.all_reduce(x, op)
            keep(x)
        x = numbers(rank, 5, dtype=dtype)
        every = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(every, x)
        keep(*every)
        dist.broadcast(x, src=size - 1)
        keep(x)
    x = numbers(rank, 3, dtype=torch.complex64)
    dist.all_reduce(x)
    keep(torch.view_as_real(x))
    x = numbers(rank, 6, dtype=torch.int32)
    dist.all_reduce(x, dist.ReduceOp.BOR)
    keep(x)
    x = numbers(rank, 6)
    dist.reduce(x, dst=size - 1)
    if rank == size - 1:
        keep(x)
    x = numbers(rank, 2, 3)
    out = torch.empty(2 * size, 3)
    newest(dist, "all_gather_single", "all_gather_into_tensor")(out, x)
    keep(out)
    share = torch.empty(2, 3)
    dist.reduce_scatter_tensor(share, numbers(rank, 2 * size, 3))
    keep(share)
    dist.reduce_scatter(share, [numbers(rank + 10 * r, 2, 3) for r in range(size)])
    keep(share)
    gathered = [torch.empty(2, 3) for _ in range(size)] if rank == 0 else None
    dist.gather(x, gathered)
    keep(*(gathered or []))
    dist.scatter(share, [numbers(r, 2, 3) for r in range(size)] if rank == 1 else None, src=1)
    keep(share)
    out = torch.empty(2 * size, 3)
    dist.all_to_all_single(out, numbers(rank, 2 * size, 3))
    keep(out)
    splits = [(rank + r) % 3 for r in range(size)]
    out = torch.empty(sum(splits), 2)
    dist.all_to_all_single(out, numbers(rank, sum(splits), 2), splits, splits)
    keep(out)
    objects: List[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (1 + 50 * rank)})
    assert [o["rank"] for o in objects] == list(range(size)) and len(objects[-1]["text"]) == 50 * size - 49
    work = dist.all_reduce(numbers(rank, 1000), async_op=True)
    dist.barrier()
    assert work.wait() and work.is_completed()
    if rank:
        dist.recv(x, rank - 1)
        keep(x)
    if rank < size - 1:
        dist.send(numbers(rank, 2, 3) + 5, rank + 1)
    peer, y = rank ^ 1, torch.empty(4)
    if peer < size:  # sends that cross
        for request in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, numbers(rank, 4), peer), dist.P2POp(dist.irecv, y, peer)]
        ):
            request.wait()
        keep(y)
    halves = [dist.new_group([r for r in range(size) if r % 2 == half]) for half in range(2)]
    x = numbers(rank, 9)
    dist.all_reduce(x, group=halves[rank % 2])
    keep(x)
    keep(functional.all_reduce(numbers(rank, 3), "sum", dist.group.WORLD))
    keep(newest(functional, "all_gather_single", "all_gather_tensor")(numbers(rank, 2, 2), 0, dist.group.WORLD))
    keep(newest(functional, "reduce_scatter_single", "reduce_scatter_tensor")(numbers(rank, 2 * size, 2), "sum", 0, dist.group.WORLD))
    return got


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def model(device: str) -> nn.Module:
    torch.manual_seed(7)
    return Mlp().to(device)


def batch(device: str) -> torch.Tensor:
    return torch.randn(8, 4, 16, generator=torch.Generator().manual_seed(3)).to(device)


def whole(x: Any) -> torch.Tensor:
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone().cpu()


def tensor_parallel(rank: int, sequence: bool, device: str = "cpu") -> List[torch.Tensor]:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    plan: Any = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sequence:
        plan = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
    parallel = parallelize_module(model(device), mesh, plan)
    x = distribute_tensor(batch(device), mesh, [Shard(1)]) if sequence else batch(device)
    y = parallel(x)
    y.sum().backward()
    return [whole(y), *(whole(p.grad) for p in parallel.parameters())]


def sharded(rank: int, device: str = "cpu") -> List[torch.Tensor]:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    net = model(device)
    fully_shard(net.up, mesh=mesh)  # so that one layer's weights are gathered while another computes
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(2):
        net((batch(device) + rank + step)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [whole(p) for p in net.parameters()]


def data_parallel(rank: int, device: str = "cpu") -> List[torch.Tensor]:
    net = nn.parallel.DistributedDataParallel(model(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(2):
        net(batch(device) + rank + step).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [whole(p) for p in net.parameters()]


def pipelined(rank: int, device: str = "cpu") -> List[torch.Tensor]:
    """A stage on every rank, micro-batches on their way forward and backward at once."""
    size, got = dist.get_world_size(), []
    for schedule in (ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(rank)
        net = nn.Sequential(nn.Linear(16, 16), nn.Tanh()).to(device)
        stage = PipelineStage(net, rank, size, torch.device(device))
        steps, losses = schedule(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss), []
        x, target = batch(device), batch(device).flip(0)
        for _ in range(2):
            given = (x,) if rank == 0 else ()
            out = steps.step(*given, target=target, losses=losses) if rank == size - 1 else steps.step(*given)
        got += [whole(p.grad) for p in net.parameters()]
        if rank == size - 1:
            got += [whole(out), *map(whole, losses)]
    return got


PROGRAMS = {
    "collectives": collectives,
    "tensor parallel": lambda rank: tensor_parallel(rank, False),
    "tensor and sequence parallel": lambda rank: tensor_parallel(rank, True),
    "FSDP2": sharded,
    "DDP": data_parallel,
    "pipelines": pipelined,
}
