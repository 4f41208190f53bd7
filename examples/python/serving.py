"""Where weft plugs into vLLM and SGLang on CPUs. Neither is needed to read or to run this.

    torchrun --nproc-per-node 2 examples/python/serving.py        # the adapters, on a stand-in of the engines' classes

vLLM asks its platform for the class of a communicator, and a plugin may bring its own platform:

    # setup.py: entry_points={"vllm.platform_plugins": ["weft = my_plugin:platform"]}
    def platform():
        return "my_plugin.WeftPlatform"

    class WeftPlatform(vllm.platforms.cpu.CpuPlatform):
        @classmethod
        def get_device_communicator_cls(cls):
            return "my_plugin.Communicator"

    Communicator = communicator(vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase)

SGLang has one coordinator of a group; after it has made its groups:

    take_over(sglang.srt.distributed.get_tp_group())
"""

from __future__ import annotations

from typing import Any, List, Optional

import torch
import torch.distributed as dist

import weft
import weft.torch


def group_over(process_group: Any) -> weft.Group:
    """A group of weft over the ranks of any process group (gloo is what both engines make on CPUs). Collective over it."""
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    identity: List[Any] = [weft.new_id() if rank == 0 else None]
    dist.broadcast_object_list(identity, group=process_group, group_src=0)
    return weft.create(identity[0], rank, size)


def _along(group: weft.Group, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Every rank's x, side by side along a dimension."""
    every = group.all_gather(x.contiguous().view(1, -1)).view(group.size, *x.shape)
    return torch.cat(list(every), dim)


def communicator(base: Any) -> Any:
    """vLLM's communicator, on weft. ``base`` is its DeviceCommunicatorBase."""

    class Communicator(base):
        def __init__(self, cpu_group: Any, *rest: Any, **more: Any) -> None:
            super().__init__(cpu_group, *rest, **more)
            self.weft = group_over(cpu_group)

        def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
            return self.weft.all_reduce(input_ if input_.is_contiguous() else input_.contiguous())

        def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
            return _along(self.weft, input_, dim)

        def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
            first = input_.movedim(dim, 0).contiguous()
            return self.weft.reduce_scatter(first).movedim(0, dim)

        def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> Optional[torch.Tensor]:
            every = _along(self.weft, input_, dim)
            return every if self.weft.rank == dst else None

    return Communicator


def take_over(coordinator: Any) -> Any:
    """SGLang's GroupCoordinator, with its sums and gathers by weft."""
    group = coordinator.weft = group_over(coordinator.cpu_group)
    coordinator.all_reduce = lambda input_: group.all_reduce(input_ if input_.is_contiguous() else input_.contiguous())
    coordinator.all_gather = lambda input_, dim=-1: _along(group, input_, dim)
    return coordinator


class _StandIn:
    """What both engines' classes have in common: the process group they were made for."""

    def __init__(self, cpu_group: Any, *_: Any, **__: Any) -> None:
        self.cpu_group = cpu_group


def main(_: Optional[List[str]] = None) -> None:
    """Runs on every rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.arange(6.0).view(2, 3) + rank
    total, every = torch.stack([x - rank + r for r in range(size)]).sum(0), [x - rank + r for r in range(size)]
    vllm, sglang = communicator(_StandIn)(dist.group.WORLD), take_over(_StandIn(dist.group.WORLD))
    for engine in (vllm, sglang):
        torch.testing.assert_close(engine.all_reduce(x.clone()), total)
        torch.testing.assert_close(engine.all_gather(x), torch.cat(every, -1))
    wide = torch.cat([total] * size, 1)
    torch.testing.assert_close(vllm.reduce_scatter(torch.cat([x] * size, 1)), wide.chunk(size, 1)[rank])
    gathered = vllm.gather(x, dst=size - 1)
    assert (gathered is not None) == (rank == size - 1)
    if rank == 0:
        print(f"the adapters give what gloo gives, on {size} ranks")
    for engine in (vllm, sglang):
        engine.weft.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
