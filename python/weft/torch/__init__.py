"""weft in PyTorch: operators (``torch.ops.weft``), tensor-parallel modules and their groups.

import weft, weft.torch

mlp = weft.torch.SwiGLU(4096, 14336, dtype=torch.bfloat16)      # the world's ranks; loads ordinary weights
mlp.load_state_dict(ordinary_weights)
y = mlp(x)
"""

import sys as _sys

from . import backend, ops
from ._groups import group_of, name_of
from ._uncompiled import run_as_it_is as _run_as_it_is
from .moe import MoELayer
from .moe_ops import experts_name, layer_name
from .nn import ColumnParallelLinear, RowParallelLinear, SwiGLU

_LAYERS = ("weft.torch.nn", "weft.torch.moe", "weft.torch._autocast")  # what models are compiled with
for _name, _module in list(_sys.modules.items()):
    if _name.partition(".")[0] == "weft" and _name not in _LAYERS:
        _run_as_it_is(_module)

__all__ = [
    "ColumnParallelLinear",
    "MoELayer",
    "RowParallelLinear",
    "SwiGLU",
    "backend",
    "experts_name",
    "group_of",
    "layer_name",
    "name_of",
    "ops",
]
