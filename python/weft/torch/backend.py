"""The ``torch.distributed`` backend "weft": ``init_process_group("weft")`` on CPU and CUDA tensors, among ranks
of one machine or several.

A process group is a group of the library, whose members meet through torch's store: sub-groups need only
their members. A call that is waited for at once runs in the caller's thread, without a detour. An asynchronous one runs in the
group's own thread, in the order of the calls, so that ranks may have several groups in flight in different orders. A message
from one rank to another has a channel of its own, a group of two with its thread, so that sends and receives that cross do
not wait for each other.

CUDA tensors have a group of their own, on the GPUs, made when the first of them comes; its calls go on torch's current stream,
whatever they are asked for; who waits for one in another stream waits there. Messages of CUDA tensors go through the CPU's memory.

In ``_work.py`` are work objects and the threads behind them, in ``_tensors.py`` torch's tensors as memory, in ``_base.py`` how a
group lives and makes a call, and in ``_collectives.py`` and ``_messages.py`` the calls.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ..errors import Error
from . import _shortcut
from ._collectives import Collectives
from ._messages import Messages
from ._work import Work


class ProcessGroupWeft(Messages, Collectives):
    """A process group over a weft group."""


def _create(how: Any, _options: Any) -> ProcessGroupWeft:
    """What torch calls. The members of all groups but the first are in that one, which knows meanwhile who lives."""
    world = dist.group.WORLD
    among = (world, how.global_ranks_in_group) if isinstance(world, ProcessGroupWeft) and how.global_ranks_in_group else None
    return ProcessGroupWeft(how.store, how.group_rank, how.group_size, how.timeout, among)


if "weft" not in dist.Backend.backend_list:
    dist.Backend.register_backend("weft", _create, extended_api=True, devices=["cpu", "cuda"])
    _shortcut.install(ProcessGroupWeft)

__all__ = ["ProcessGroupWeft", "Work", "Error"]
