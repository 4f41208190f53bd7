"""``torch.distributed.all_reduce`` of a plain tensor that is waited for, without what torch does around a backend.

torch makes an object of options for each call and looks for reasons to do something else with it; with what a backend needs to read
that object again, it takes longer than the library's whole call of a few kilobytes. So what torch calls first knows the backend's
groups: of a call that is like most, it asks the group at once. Everything else, and every other backend's, goes torch's way.

The function that users call stays the same object, whenever they imported it, and torch's compiler knows it by that: it is torch's
logger of exceptions, and what changes is the function that it calls.
"""

from __future__ import annotations

import functools
from typing import Any, Optional

import torch.distributed as dist
from torch._C import _len_torch_function_stack as _function_modes  # type: ignore[attr-defined]
from torch._C._distributed_c10d import ReduceOp
from torch.distributed import distributed_c10d as _c10d  # whose world may be exchanged

from ._quick import PLAIN

_Named = type(ReduceOp.SUM)  # an operation without a factor of its own


def install(kind: Any) -> bool:
    """Lets calls on groups of a class take the short way. Whether torch's function is one that can be told so."""
    cell = dict(zip(dist.all_reduce.__code__.co_freevars, dist.all_reduce.__closure__ or ())).get("func")
    if cell is None:
        return False
    theirs = cell.cell_contents

    @functools.wraps(theirs)
    def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Optional[Any]:
        asked: Any = _c10d._world.default_pg if group is None else group
        if type(asked) is kind and not async_op and type(op) is _Named and type(tensor) in PLAIN:
            if not _c10d._world.pg_coalesce_state and not _function_modes() and asked._reduce_now(tensor, hash(op)):
                return None
        return theirs(tensor, op, group, async_op)

    cell.cell_contents = all_reduce
    return True


__all__ = ["install"]
