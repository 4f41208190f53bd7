"""weft in PyTorch: operators (``torch.ops.weft``), tensor-parallel modules and their groups.

import weft, weft.torch

mlp = weft.torch.SwiGLU(4096, 14336, dtype=torch.bfloat16)      # the world's ranks; loads ordinary weights
mlp.load_state_dict(ordinary_weights)
y = mlp(x)
"""

from . import backend, ops
from ._groups import group_of, name_of
from .moe import MoELayer
from .moe_ops import experts_name, layer_name
from .nn import ColumnParallelLinear, RowParallelLinear, SwiGLU

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
