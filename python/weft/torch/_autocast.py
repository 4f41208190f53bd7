"""``torch.autocast`` of the layers: the types that ``nn.Linear`` has under it. Operators take tensors as they are given."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor


def type_under(x: Tensor) -> Optional[torch.dtype]:
    """What products with x are made in where autocast is on for its device; None where it is off."""
    device = x.device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def cast(dtype: Optional[torch.dtype], *tensors: Optional[Tensor]) -> Tuple[Any, ...]:
    """The tensors in a type, if there is one; not float64, which autocast leaves alone."""
    if dtype is None:
        return tensors
    return tuple(t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors)


__all__ = ["cast", "type_under"]
