"""CUDA tensors: the group's calls in torch's current stream.

torch's tensors are memory of its own, which peers cannot reach. What they touch of a product (the rows that ag_gemm gathers, the
result of the others) the library copies through symmetric memory on the stream. A CUDA graph is captured after a first call of
the same sizes has made that memory.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from .._library import lib
from ..errors import ArgumentError
from ..group import Group


class _State:
    """What a group on a GPU keeps for torch."""

    def __init__(self) -> None:
        self.stream = -1


_threads = threading.local()


def bind(x: Tensor) -> None:
    """Gives this thread the CUDA context of a tensor's device, once. Threads of autograd have none before their first call of
    CUDA's runtime, and torch's products, which are no such call, complain."""
    bound = _threads.__dict__.setdefault("bound", set())
    device = x.get_device()
    if device not in bound:
        torch.cuda.mem_get_info(device)
        bound.add(device)


def ready(group: Group, x: Tensor) -> Group:
    """The group, with its next calls in torch's current stream."""
    if not group.on_gpu:
        raise ArgumentError(f"a tensor is on {x.device}, and the group on the CPU; group.use_gpu() puts it on GPUs")
    state = group.__dict__.get("_torch_state")
    if state is None:
        state = group.__dict__["_torch_state"] = _State()
    # The default stream has another name in the library.
    stream = torch._C._cuda_getCurrentRawStream(x.get_device()) or 1  # type: ignore[attr-defined]
    if stream != state.stream:
        group._call(lib.weft_group_set_stream, 1, stream)
        state.stream = stream
    return group
