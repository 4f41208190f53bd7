"""Operators ``torch.ops.weft.*``: the four products and the collectives, with fake kernels and autograd.

On CPU tensors, and on CUDA tensors in a group whose ranks work on GPUs (:meth:`weft.Group.use_gpu`), in torch's current stream.

Each takes the name of its group last (:func:`weft.torch.name_of`). A product is called by every rank of the group, in the
same order, in backward too. Gradients are each other's: that of ``ag_gemm`` is ``gemm_rs``, and the other way round.

An operand or a result that is whole on every rank (the result of ``gemm_ar`` and ``gemm_as``, ``a`` of ``gemm_as`` and
``gemm_columns``) stands for one tensor, of which every rank has a copy: its gradient is that tensor's, the same on every
rank, as if one process had computed it. The collectives follow torch's own convention instead: the gradient of
``all_gather`` is ``reduce_scatter``, that of ``all_reduce`` is ``all_reduce``. Gradients of gradients follow: a rank's part of a
gradient that was computed with a whole tensor is ``_as_part`` of it, and the sum of such parts is ``_as_whole``.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from ..products import part
from ._forms import AllReduceInPlace, Broadcast, Collective, Gemm, Product, check2, shape_of, type_of_result
from ._groups import group_of
from ._quick import PLAIN, quicken

_library = torch.library.Library("weft", "DEF")

# ---- kernels ------------------------------------------------------------------------------------------------

_KERNELS: Dict[str, Any] = {
    "ag_gemm": Product("ag_gemm", 5),
    "gemm_rs": Product("gemm_rs", 4),
    "gemm_ar": Product("gemm_ar", 4),
    "gemm_as": Product("gemm_as", 4),
    "gemm": Gemm("gemm", 3),
    "gemm_columns": Gemm("gemm", 4),
    "all_reduce": Collective("all_reduce", 3, reduces=True),
    "all_reduce_": AllReduceInPlace("all_reduce_", 3, reduces=True),
    "all_gather": Collective("all_gather", 2, scale="gathers"),
    "reduce_scatter": Collective("reduce_scatter", 3, scale="scatters", reduces=True, per_rank=True),
    "all_to_all": Collective("all_to_all", 2, per_rank=True),
    "broadcast": Broadcast("broadcast", 3),
}


def _fake(name: str) -> Any:
    """The fake kernel of an operator."""
    kernel = _KERNELS[name]

    def of_product(a: Any, b: Any, bias: Any, *rest: Any) -> Any:
        check2(name, a, b)
        shape = (a.shape[0], b.shape[1])
        if not isinstance(kernel, Gemm):
            shape = shape_of(name, a, b, rest[0] if len(rest) == 2 else -1, group_of(rest[-1]))
        return a.new_empty(shape, dtype=type_of_result(a.dtype))

    def of_collective(x: Any, *rest: Any) -> Any:
        return None if kernel.in_place else x.new_empty(kernel.shape(tuple(x.shape), group_of(rest[-1]).size))

    return of_collective if kernel.tensors else of_product


# ---- definitions --------------------------------------------------------------------------------------------

_SCHEMAS: Dict[str, str] = {
    "ag_gemm": "(Tensor a, Tensor b, Tensor? bias, SymInt m, str group) -> Tensor",
    "gemm_rs": "(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor",
    "gemm_ar": "(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor",
    "gemm_as": "(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor",
    "gemm": "(Tensor a, Tensor b, Tensor? bias) -> Tensor",
    "gemm_columns": "(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor",
    "all_reduce": "(Tensor x, str op, str group) -> Tensor",
    "all_reduce_": "(Tensor(a!) x, str op, str group) -> ()",
    "all_gather": "(Tensor x, str group) -> Tensor",
    "reduce_scatter": "(Tensor x, str op, str group) -> Tensor",
    "all_to_all": "(Tensor x, str group) -> Tensor",
    "broadcast": "(Tensor x, int root, str group) -> Tensor",
}


def _define(name: str, schema: str, kernel: Any, fake: Any, devices: Tuple[str, ...] = ("CPU", "CUDA")) -> None:
    _library.define(name + schema)
    for device in devices:
        _library.impl(name, kernel, device)
    torch.library.register_fake(f"weft::{name}", fake, lib=_library)


def _as_part(x: Tensor, group: str) -> Tensor:
    """A tensor that is whole on every rank, for what each rank makes of it by itself: its gradient is the sum of theirs."""
    return x.clone(memory_format=torch.contiguous_format)


def _as_whole(x: Tensor, group: str) -> Tensor:
    """The sum of all ranks' tensors as one that is whole on every rank: its gradient is each one's."""
    return _KERNELS["all_reduce"](x, "sum", group)


def _alike(x: Any, *rest: Any) -> Any:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


for _kernel in (_as_part, _as_whole):
    _define(_kernel.__name__, "(Tensor x, str group) -> Tensor", _kernel, _alike)
for _name, _schema in _SCHEMAS.items():
    _define(_name, _schema, _KERNELS[_name], _fake(_name))
    quicken(getattr(torch.ops.weft, _name), _KERNELS[_name])

# ---- gradients ----------------------------------------------------------------------------------------------

_ops = torch.ops.weft
_modes = torch._C._len_torch_dispatch_stack  # type: ignore[attr-defined]
_transforms = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]


def _bare(x: Any) -> bool:
    """Whether nothing but a kernel has to see a tensor, or what stands in its place."""
    return not isinstance(x, Tensor) or (type(x) in PLAIN and (x.is_cpu or x.is_cuda) and not x.is_neg())


def _refuse_gradients(name: str) -> None:
    """Has an operator that writes to its first tensor refuse one whose gradient is asked for: it would be another's."""
    op = getattr(_ops, name).default

    def at_autograd(*inputs: Any) -> Any:
        tangent = forward_ad._current_level >= 0 and forward_ad.unpack_dual(inputs[0]).tangent is not None
        if tangent or torch.is_grad_enabled() and inputs[0].requires_grad:
            raise RuntimeError(
                f"weft::{name}: the tensor requires a gradient, which a change in place does not have; "
                f"weft::{name.rstrip('_')} has one, and torch.no_grad() asks for none"
            )
        with torch._C._AutoDispatchBelowAutograd():
            return op(*inputs)

    _library.impl(name, at_autograd, "Autograd")


def _differentiable(name: str, kernel: Any, setup: Any, backward: Any) -> None:
    """Gives an operator its gradient.

    Where none is asked for, and nobody looks on (a mode, a transform, a subclass), the kernel is called from here: a second pass
    through torch's dispatcher costs more than a small product. Transforms (``torch.func.grad``) come here one after another, by the
    dispatcher: the function is one of a single level, for ``autograd.Function`` would ask for them all again.
    """
    op = getattr(_ops, name).default

    class Gradient(_SingleLevelFunction):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            if _transforms() is None:
                with torch._C._AutoDispatchBelowAutograd():
                    return op(*inputs)
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):  # the next transform's, or its tensors'
                with torch._C._AutoDispatchBelowAutograd():
                    return op(*inputs)

        setup_context = staticmethod(setup)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise NotImplementedError(f"weft::{name} has no derivative in forward mode; torch.func.grad and vjp have one")

    Gradient.backward = staticmethod(backward)  # type: ignore[assignment]
    Gradient.__name__ = f"weft_{name}"

    def at_autograd(*inputs: Any) -> Any:
        wanted = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs[:3])
        if wanted or forward_ad._current_level >= 0:  # which refuses tensors that have a tangent
            with contextlib.nullcontext() if _transforms() is None else enable_single_level_autograd_function():
                return Gradient.apply(*inputs)
        if not _modes() and _transforms() is None and all(map(_bare, inputs[:3])):
            return kernel(*inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*inputs)

    _library.impl(name, at_autograd, "Autograd")


def _keep(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    a, b, bias = inputs[:3]
    ctx.save_for_backward(a, b)
    ctx.group = inputs[-1]
    ctx.has_bias = bias is not None


def _needs(ctx: Any) -> Tuple[bool, bool, bool]:
    return ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias and ctx.needs_input_grad[2]


def _part(x: Tensor, group: str) -> Tensor:
    """``_as_part`` in a backward that may have a gradient itself."""
    return _ops._as_part(x, group) if torch.is_grad_enabled() else x


def _rows(x: Tensor, whole: int, group: str) -> Tensor:
    """Every rank's rows of a matrix of ``whole`` rows. Parts that are a row shorter are padded on the way."""
    g = group_of(group)
    if whole % g.size == 0:
        return _ops.all_gather(x, group)
    most = whole // g.size + 1
    every = _ops.all_gather(torch.nn.functional.pad(x, (0, 0, 0, most - x.shape[0])), group).view(g.size, most, -1)
    return torch.cat([every[r, : part(whole, g.size, r)[1]] for r in range(g.size)])


def _ag_gemm_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    a, b = ctx.saved_tensors
    for_a, for_b, for_bias = _needs(ctx)
    da = _ops.gemm_rs(grad, b.t(), None, ctx.group) if for_a else None
    db = _ops.gemm(_rows(a, grad.shape[0], ctx.group).t(), grad, None) if for_b else None
    return da, db, grad.sum(0) if for_bias else None, None, None


def _gemm_rs_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    a, b = ctx.saved_tensors
    for_a, for_b, for_bias = _needs(ctx)
    da = _ops.ag_gemm(grad, b.t(), None, a.shape[0], ctx.group) if for_a else None
    db = _ops.gemm(a.t(), _rows(grad, a.shape[0], ctx.group), None) if for_b else None
    return da, db, _ops._as_whole(grad.sum(0), ctx.group) if for_bias else None, None


def _gemm_ar_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    a, b = ctx.saved_tensors
    for_a, for_b, for_bias = _needs(ctx)
    part = _part(grad, ctx.group)
    da = _ops.gemm(part, b.t(), None) if for_a else None
    db = _ops.gemm(a.t(), part, None) if for_b else None
    return da, db, grad.sum(0) if for_bias else None, None


def _gemm_as_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    a, b = ctx.saved_tensors
    for_a, for_b, for_bias = _needs(ctx)
    mine = _part(grad, ctx.group).narrow(1, group_of(ctx.group).rank * b.shape[1], b.shape[1])
    da = _ops.gemm_ar(mine, b.t(), None, ctx.group) if for_a else None
    db = _ops.gemm(_part(a, ctx.group).t(), mine, None) if for_b else None
    return da, db, grad.sum(0) if for_bias else None, None


def _gemm_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    a, b = ctx.saved_tensors
    for_a, for_b, for_bias = _needs(ctx)
    da = _ops.gemm(grad, b.t(), None) if for_a else None
    db = _ops.gemm(a.t(), grad, None) if for_b else None
    return da, db, grad.sum(0) if for_bias else None


def _gemm_columns_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    a, b = ctx.saved_tensors
    for_a, for_b, for_bias = _needs(ctx)
    da = _ops.gemm_ar(grad, b.t(), None, ctx.group) if for_a else None
    db = _ops.gemm(_part(a, ctx.group).t(), grad, None) if for_b else None
    return da, db, grad.sum(0) if for_bias else None, None


for _name in ("ag_gemm", "gemm_rs", "gemm_ar", "gemm_as", "gemm", "gemm_columns"):
    _differentiable(_name, _KERNELS[_name], _keep, globals()[f"_{_name}_backward"])
_refuse_gradients("all_reduce_")


def _keep_op(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    ctx.op, ctx.group = inputs[1], inputs[-1]


def _only_sums(ctx: Any) -> None:
    if ctx.op != "sum":
        raise NotImplementedError(f"weft: the reduction '{ctx.op}' has no gradient; 'sum' has one")


def _all_reduce_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    _only_sums(ctx)
    return _ops.all_reduce(grad, "sum", ctx.group), None, None


def _reduce_scatter_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    _only_sums(ctx)
    return _ops.all_gather(grad, ctx.group), None, None


def _all_gather_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    return _ops.reduce_scatter(grad, "sum", ctx.group), None


def _all_to_all_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    return _ops.all_to_all(grad, ctx.group), None


def _broadcast_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    whole = _ops.all_reduce(grad, "sum", ctx.group)
    if group_of(ctx.group).rank != ctx.op:  # zeros that come from it: its own gradient is asked for by all ranks, or by none
        whole = whole.masked_fill(whole.new_ones((), dtype=torch.bool), 0)
    return whole, None, None


def _keep_group(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    ctx.group = inputs[-1]


_differentiable("_as_part", _as_part, _keep_group, lambda ctx, grad: (_ops._as_whole(grad, ctx.group), None))
_differentiable("_as_whole", _as_whole, _keep_group, lambda ctx, grad: (_part(grad, ctx.group), None))
for _name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"):
    _differentiable(_name, _KERNELS[_name], _keep_op, globals()[f"_{_name}_backward"])

# ---- the operators as functions -----------------------------------------------------------------------------

ag_gemm, gemm_rs, gemm_ar, gemm_as = _ops.ag_gemm, _ops.gemm_rs, _ops.gemm_ar, _ops.gemm_as
gemm, gemm_columns = _ops.gemm, _ops.gemm_columns
all_reduce, all_reduce_, broadcast = _ops.all_reduce, _ops.all_reduce_, _ops.broadcast
all_gather, reduce_scatter, all_to_all = _ops.all_gather, _ops.reduce_scatter, _ops.all_to_all
