"""Groups by name: operators take a name, because a compiled graph can hold a string but no handle."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Optional, Union

from ..errors import ArgumentError
from ..group import Group, init

_named: "weakref.WeakValueDictionary[str, Group]" = weakref.WeakValueDictionary()
process_groups: "weakref.WeakValueDictionary[str, Any]" = weakref.WeakValueDictionary()
"""The process groups of the backend "weft", by torch's names for them."""
_numbers = itertools.count()
_world: Optional[Group] = None
"""The world that somebody asked for by None: names hold nothing, and nobody else may have it."""


def name_of(group: Optional[Union[Group, str, Any]] = None) -> str:
    """The name by which operators know a group: a ``weft.Group``, a ``torch.distributed`` process group of the backend
    "weft", a name already, or None for the world."""
    global _world
    if isinstance(group, str):
        return group
    if group is None:
        group = _world = init()
    if not isinstance(group, Group):
        if getattr(group, "group_name", None) not in process_groups:
            raise ArgumentError(
                "a group must be a weft.Group or a process group of torch.distributed with the backend weft; "
                f"this {type(group).__name__} is neither"
            )
        return group.group_name
    name = getattr(group, "_torch_name", None)
    if name is None:
        name = f"weft{next(_numbers)}"
        group._torch_name = name  # type: ignore[attr-defined]
        _named[name] = group
    return name


def group_of(name: str, device: Any = None) -> Group:
    """The group of a name. A process group has another one for CUDA tensors."""
    group = _named.get(name)
    if group is not None:
        return group
    behind = process_groups.get(name)
    if behind is None:
        raise ArgumentError(
            f"no group is named '{name}'; weft.torch.name_of(group) names one, while it lives, and so does a process "
            "group of the backend weft"
        )
    return behind.group_on(device)
