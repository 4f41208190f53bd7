"""CUDA tensors: the group's calls in torch's current stream.

torch's tensors are memory of its own, which peers cannot reach. What they touch of a product (the rows that ag_gemm gathers, the
result of the others) the library copies through symmetric memory on the stream. A CUDA graph is captured after a first call of
the same sizes has made that memory.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator, Optional

import torch
from torch import Tensor

from .._library import quick
from ..errors import ArgumentError
from ..group import Group


class _State:
    """What a group on a GPU keeps for torch."""

    def __init__(self) -> None:
        self.stream = -1  # of the last call: its handle
        self.last: Optional[torch.cuda.Stream] = None


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
        now = torch.cuda.current_stream(x.device)
        # Calls of a group share memory, so those of one stream follow those of another. What is captured is ordered by whoever
        # captures it.
        if state.last is not None and not torch.cuda.is_current_stream_capturing():
            now.wait_stream(state.last)
        group._call(quick.weft_group_set_stream, 1, stream)
        state.stream, state.last = stream, now
    return group


def mark(x: Tensor) -> Any:
    """What torch's current stream has come to, for a call on this tensor that another thread makes; None for one on the CPU."""
    if not x.is_cuda:
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(x.device))
    return event


@contextlib.contextmanager
def behind(event: Any, x: Tensor) -> Iterator[None]:
    """A stream of this thread's own, behind a mark; at the end, also of what failed, what was put on it is done."""
    own = torch.cuda.Stream(x.device)
    own.wait_event(event)
    try:
        with torch.cuda.stream(own):
            yield
    finally:
        own.synchronize()
