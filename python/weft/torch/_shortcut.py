"""``torch.distributed.all_reduce`` of a plain tensor and ``barrier``, waited for, without what torch does around a backend.

torch makes an object of options for each call and looks for reasons to do something else with it; with what a backend needs to read
that object again, it takes longer than the library's whole call of a few kilobytes. So what torch calls first knows the backend's
groups: of a call that is like most, it asks the group at once. Everything else, and every other backend's, goes torch's way.

The function that users call stays the same object, whenever they imported it, and torch's compiler knows it by that: it is torch's
logger of exceptions, and what changes is the function that it calls.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import torch.distributed as dist
from torch._C import _len_torch_function_stack as _function_modes  # type: ignore[attr-defined]
from torch._C._distributed_c10d import ReduceOp
from torch.distributed import distributed_c10d as _c10d  # whose world may be exchanged

from ._quick import PLAIN

_NUMBERS = {
    id(op): int(op)  # type: ignore[call-overload]
    for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT)
}
"""Of operations without a factor of their own, which live as long as torch: asking pybind for it takes longer."""


def _all_reduce(kind: Any, theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Optional[Any]:
        asked: Any = _c10d._world.default_pg if group is None else group
        number = _NUMBERS.get(id(op))
        if type(asked) is kind and not async_op and number is not None and type(tensor) in PLAIN:
            if not _c10d._world.pg_coalesce_state and not _function_modes() and asked._reduce_now(tensor, number):
                return None
        return theirs(tensor, op, group, async_op)

    return all_reduce


def _barrier(kind: Any, theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def barrier(group: Any = None, async_op: bool = False, *rest: Any, **named: Any) -> Optional[Any]:
        asked: Any = _c10d._world.default_pg if group is None else group
        if type(asked) is kind and not async_op and not rest and not named and asked._meet_now():
            return None
        return theirs(group, async_op, *rest, **named)

    return barrier


def install(kind: Any) -> bool:
    """Lets calls on groups of a class take the short way. Whether torch's functions are ones that can be told so."""
    told = True
    for function, short in ((dist.all_reduce, _all_reduce), (dist.barrier, _barrier)):
        cell = dict(zip(function.__code__.co_freevars, function.__closure__ or ())).get("func")
        if cell is None:
            told = False
        else:
            cell.cell_contents = short(kind, cell.cell_contents)
    return told


__all__ = ["install"]
