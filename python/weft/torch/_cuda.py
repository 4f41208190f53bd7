"""CUDA tensors: the group's calls in torch's current stream, and symmetric memory for what peers touch.

torch's tensors are memory of its own, which peers cannot reach. What they touch of a product (the rows that ag_gemm gathers, the
result of the others) goes through symmetric memory that the group keeps, one buffer for each purpose, as large as the largest so
far. Runs in a stream follow each other, so they can share it. Making it is collective; a CUDA graph is captured after a first
call of the same sizes has made it.
"""

from __future__ import annotations

import math
from typing import Dict, List, Tuple

import torch
from torch import Tensor

from .. import tensor
from .._library import lib
from ..errors import ArgumentError
from ..group import Group


class _State:
    """What a group on a GPU keeps for torch."""

    def __init__(self) -> None:
        self.stream = -1
        self.buffers: Dict[str, List[Tensor]] = {}  # by purpose, the last one in use: graphs may hold those before it


def ready(group: Group, x: Tensor) -> Group:
    """The group, with its next calls in torch's current stream."""
    if not group.on_gpu:
        raise ArgumentError(f"a tensor is on {x.device}, and the group on the CPU; group.use_gpu() puts it on GPUs")
    state = group.__dict__.get("_torch_state")
    if state is None:
        state = group.__dict__["_torch_state"] = _State()
    stream = torch.cuda.current_stream(x.device).cuda_stream or 1  # the default stream has another name in the library
    if stream != state.stream:
        group._call(lib.weft_group_set_stream, 1, stream)
        state.stream = stream
    return group


def symmetric(group: Group, purpose: str, shape: Tuple[int, int], most_rows: int, like: Tensor) -> Tensor:
    """A matrix in symmetric memory for one call, of ``most_rows`` on the rank that has most."""
    buffers = group.__dict__["_torch_state"].buffers.setdefault(purpose, [])
    need = max(most_rows * shape[1] * like.element_size(), 1)
    if not buffers or buffers[-1].numel() < need:
        with torch.cuda.device(like.device):
            buffers.append(tensor.empty(1 << math.ceil(math.log2(need)), "uint8", group).torch())
    return buffers[-1][: shape[0] * shape[1] * like.element_size()].view(like.dtype).view(shape)
