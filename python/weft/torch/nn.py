"""Tensor-parallel layers as ``nn.Module``s. They are made from ordinary weights: the whole matrix, of which each rank keeps
its part. Outputs and gradients are those of the ordinary layer on one process."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import torch
from torch import Tensor, nn

from .. import products
from ..dtypes import torch_dtype
from ..errors import ArgumentError
from ..products import Packed
from . import ops as _ops
from ._autocast import cast, type_under
from ._forms import plain
from ._groups import group_of, name_of


def _mine(whole: Tensor, dim: int, group: str) -> Tensor:
    g = group_of(group)
    return whole.narrow(dim, whole.shape[dim] // g.size * g.rank, whole.shape[dim] // g.size).clone()


def _by_packed(product: Callable[..., Tensor], flat: Tensor, packed: Packed, **options: Any) -> Tensor:
    """A product with packed weights, which keep their type under autocast: what they are given comes in it, and the result goes in
    autocast's."""
    under = type_under(flat)
    (given,) = cast(under and torch_dtype(packed.dtype), flat)
    (y,) = cast(under, product(plain(given), packed, **options))
    return y


class _ParallelLinear(nn.Module):
    """What both kinds share: a part of the weight (out x in), cut along one dimension, and perhaps a bias."""

    _cut = 0  # the dimension of the weight that is spread over ranks

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        group: Any = None,
        sequence_parallel: bool = False,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        self.group = name_of(group)
        self._group_alive = group_of(self.group)  # names hold nothing
        size = self._group_alive.size
        spread = (out_features, in_features)[self._cut]
        if spread % size:
            raise ArgumentError(
                f"{'out' if self._cut == 0 else 'in'}_features = {spread} do not divide over {size} ranks"
            )
        self.in_features, self.out_features, self.sequence_parallel = in_features, out_features, sequence_parallel
        shape = (out_features // size, in_features) if self._cut == 0 else (out_features, in_features // size)
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self._bias_size(size), dtype=dtype)) if bias else None
        self._packed: Optional[Packed] = None
        self._joint: Optional[Packed] = None  # of this layer and another, which take the same input: SwiGLU's
        self.reset_parameters()

    def _bias_size(self, size: int) -> int:
        return self.out_features

    def reset_parameters(self) -> None:
        """As ``nn.Linear`` does: uniform, by the whole layer's in_features."""
        bound = self.in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: Any = None, **options: Any) -> Any:
        """The part on this rank of an ordinary linear layer, which every rank has."""
        layer = cls(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            group,
            dtype=linear.weight.dtype,
            **options,
        )
        layer.load_state_dict(linear.state_dict())
        return layer

    def _load_from_state_dict(self, state: Dict[str, Any], prefix: str, *rest: Any) -> None:
        """Whole weights are cut; parts, as ``state_dict`` gives them, are taken as they are."""
        weight, bias = state.get(prefix + "weight"), state.get(prefix + "bias")
        state = dict(state)
        if weight is not None and tuple(weight.shape) == (self.out_features, self.in_features) != tuple(
            self.weight.shape
        ):
            state[prefix + "weight"] = _mine(weight, self._cut, self.group)
        if bias is not None and self.bias is not None and bias.shape[0] == self.out_features != self.bias.shape[0]:
            state[prefix + "bias"] = _mine(bias, 0, self.group)
        self._packed = self._joint = None
        super()._load_from_state_dict(state, prefix, *rest)

    def _apply(self, *arguments: Any, **options: Any) -> Any:
        """Of ``to``, ``bfloat16`` and the like: the weight may be another afterwards."""
        self._packed = self._joint = None
        return super()._apply(*arguments, **options)

    def prepack(self) -> "_ParallelLinear":
        """Packs the weight for the CPU's kernels, once: for decoding. Only without gradients, until the weight is loaded
        anew; a weight that is changed in place must be packed again."""
        self._packed = Packed(self.weight.detach().t())
        return self

    def extra_repr(self) -> str:
        kind = ", sequence_parallel=True" if self.sequence_parallel else ""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}{kind}"

    def forward(self, x: Tensor) -> Tensor:
        """x: (tokens, …, features), or one token's features."""
        flat = x.reshape(-1, x.shape[-1])
        if self._packed is not None and not torch.is_grad_enabled():
            y = self._with_packed(flat, self._packed, None if self.bias is None else self.bias.detach())
        else:
            y = self._with(*cast(type_under(x), flat, self.weight, self.bias))
        return self._shaped(y, x)

    def _shaped(self, y: Tensor, x: Tensor) -> Tensor:
        """The rows of a result in the dimensions of x, of which ``sequence_parallel`` changes the first."""
        if not self.sequence_parallel:
            return y.view(*x.shape[:-1], y.shape[-1])
        if x.dim() <= 2:
            return y
        size = self._group_alive.size
        first = x.shape[0] * size if self._cut == 0 else x.shape[0] // size
        return y.view(first, *x.shape[1:-1], y.shape[-1])

    def _with(self, flat: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        """The rows of the result."""
        raise NotImplementedError

    def _with_packed(self, flat: Tensor, packed: Packed, bias: Optional[Tensor]) -> Tensor:
        """The same with packed weights, without gradients."""
        raise NotImplementedError


class ColumnParallelLinear(_ParallelLinear):
    """y = x W^T + b with W's rows (the output features) spread over ranks.

    Rank r gets its columns of y; with ``gather_output`` all of them. x is whole on every rank, or, with
    ``sequence_parallel``, spread over ranks by its first dimension and gathered while multiplying.
    """

    _cut = 0

    def __init__(self, *arguments: Any, gather_output: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.gather_output = gather_output
        if gather_output and self.sequence_parallel:
            raise ArgumentError("gather_output and sequence_parallel exclude each other")

    def _bias_size(self, size: int) -> int:
        return self.out_features // size

    def _with(self, flat: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        if self.sequence_parallel:
            return _ops.ag_gemm(flat, weight.t(), bias, -1, self.group)
        if self.gather_output:
            return _ops.gemm_as(flat, weight.t(), None if bias is None else self._whole(bias), self.group)
        return _ops.gemm_columns(flat, weight.t(), bias, self.group)

    def _whole(self, bias: Tensor) -> Tensor:
        """Every rank's bias, as one whole tensor, of whose gradient each rank gets its part."""
        g, mine = self._group_alive, bias.shape[0]
        padded = nn.functional.pad(bias, (mine * g.rank, mine * (g.size - 1 - g.rank)))
        return torch.ops.weft._as_whole(padded, self.group)

    def _with_packed(self, flat: Tensor, packed: Packed, bias: Optional[Tensor]) -> Tensor:
        g = self._group_alive
        if self.sequence_parallel:
            return _by_packed(g.ag_gemm, flat, packed, bias=bias)
        if self.gather_output:
            return _by_packed(g.gemm_as, flat, packed, bias=None if bias is None else g.all_gather(bias))
        return _by_packed(products.gemm, flat, packed, bias=bias)


class RowParallelLinear(_ParallelLinear):
    """y = x W^T + b with W's columns (the input features) spread over ranks; x has this rank's features.

    Every rank gets all of y; with ``sequence_parallel`` its part of the first dimension, summed while multiplying.
    """

    _cut = 1

    def forward(self, x: Tensor) -> Tensor:
        """x: (tokens, …, in_features / ranks), or one token's features."""
        size = self._group_alive.size
        if self.sequence_parallel and x.dim() > 2 and x.shape[0] % size:
            raise ArgumentError(f"sequence_parallel: the first dimension, {x.shape[0]}, does not divide over {size} ranks")
        return super().forward(x)

    def _with(self, flat: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        return (_ops.gemm_rs if self.sequence_parallel else _ops.gemm_ar)(flat, weight.t(), bias, self.group)

    def _with_packed(self, flat: Tensor, packed: Packed, bias: Optional[Tensor]) -> Tensor:
        g = self._group_alive
        return _by_packed(g.gemm_rs if self.sequence_parallel else g.gemm_ar, flat, packed, bias=bias)


class SwiGLU(nn.Module):
    """The feed-forward layer of Llama: down(silu(gate(x)) * up(x)), with names that load its weights
    (``gate_proj``, ``up_proj``, ``down_proj``)."""

    def __init__(
        self,
        hidden: int,
        inter: int,
        group: Any = None,
        sequence_parallel: bool = False,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        options: Dict[str, Any] = dict(bias=False, group=group, sequence_parallel=sequence_parallel, dtype=dtype)
        self.gate_proj = ColumnParallelLinear(hidden, inter, **options)
        self.up_proj = ColumnParallelLinear(hidden, inter, **options)
        self.down_proj = RowParallelLinear(inter, hidden, **options)

    def prepack(self) -> "SwiGLU":
        """Packs the weights for the CPU's kernels, for decoding: those of gate and up as one product, which ends with silu(gate) * up
        of sums that are not rounded before."""
        gate, up = self.gate_proj, self.up_proj
        gate._joint = up._joint = Packed(products.gate_up(gate.weight.detach().t(), up.weight.detach().t()))
        self.down_proj.prepack()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """x: (tokens, …, hidden); the same shape comes back."""
        joint = self.gate_proj._joint
        if joint is None or joint is not self.up_proj._joint or torch.is_grad_enabled():
            return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        gemm = self.gate_proj._group_alive.ag_gemm if self.gate_proj.sequence_parallel else products.gemm
        y = _by_packed(gemm, x.reshape(-1, x.shape[-1]), joint, act="silu_gated")
        return self.down_proj(self.gate_proj._shaped(y, x))


__all__ = ["ColumnParallelLinear", "RowParallelLinear", "SwiGLU"]
