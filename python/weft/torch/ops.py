"""Operators ``torch.ops.weft.*``: the four products and the collectives, with fake kernels and autograd.

On CPU tensors, and on CUDA tensors in a group whose ranks work on GPUs (:meth:`weft.Group.use_gpu`), in torch's current stream.

Each takes the name of its group last (:func:`weft.torch.name_of`). A product is called by every rank of the group, in the
same order, in backward too. Gradients are each other's: that of ``ag_gemm`` is ``gemm_rs``, and the other way round.

An operand or a result that is whole on every rank (the result of ``gemm_ar`` and ``gemm_as``, ``a`` of ``gemm_as`` and
``gemm_columns``) stands for one tensor, of which every rank has a copy: its gradient is that tensor's, the same on every
rank, as if one process had computed it. The collectives follow torch's own convention instead: the gradient of
``all_gather`` is ``reduce_scatter``, that of ``all_reduce`` is ``all_reduce``.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor

from .._library import lib
from ..dtypes import dtype_of
from ..group import Group, reduction_of
from ..products import part
from . import _cuda
from ._forms import check2, on_one_rank, over_ranks, shape_of
from ._groups import group_of

_library = torch.library.Library("weft", "DEF")

# ---- calls --------------------------------------------------------------------------------------------------

_codes: Dict[torch.dtype, int] = {}


def _code(dtype: torch.dtype) -> int:
    code = _codes.get(dtype)
    if code is None:
        code = _codes[dtype] = dtype_of(dtype).code
    return code


def _group(name: str, x: Tensor) -> Group:
    """The group of a name, for calls on this tensor."""
    group = group_of(name, x.device)
    return _cuda.ready(group, x) if x.is_cuda else group


# ---- the products -------------------------------------------------------------------------------------------


def _kernels(op: str) -> Tuple[Any, Any]:
    """The kernel of a product and its fake."""

    def fake(a: Any, b: Any, bias: Any, *rest: Any) -> Any:
        check2(op, a, b)
        return a.new_empty(shape_of(op, a, b, rest[0] if len(rest) == 2 else -1, group_of(rest[-1])))

    return over_ranks(op), fake


_gemm = on_one_rank()


def _gemm_fake(a: Any, b: Any, bias: Any) -> Any:
    check2("gemm", a, b)
    return a.new_empty((a.shape[0], b.shape[1]))


def _gemm_columns_fake(a: Any, b: Any, bias: Any, group: str) -> Any:
    return _gemm_fake(a, b, bias)


# ---- the collectives ----------------------------------------------------------------------------------------


def _all_reduce_(x: Tensor, op: str, group: str) -> None:
    if not x.is_contiguous():
        raise ValueError("weft::all_reduce_: the tensor must be contiguous")
    pointer = x.data_ptr()
    _group(group, x)._call(lib.weft_all_reduce, pointer, pointer, x.numel(), _code(x.dtype), reduction_of(op))


def _all_reduce(x: Tensor, op: str, group: str) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _group(group, x)._call(
        lib.weft_all_reduce, x.data_ptr(), out.data_ptr(), x.numel(), _code(x.dtype), reduction_of(op)
    )
    return out


def _all_gather(x: Tensor, group: str) -> Tensor:
    g, x = _group(group, x), x.contiguous()
    out = x.new_empty((x.shape[0] * g.size, *x.shape[1:]))
    g._call(lib.weft_all_gather, x.data_ptr(), out.data_ptr(), x.numel(), _code(x.dtype))
    return out


def _all_gather_fake(x: Any, group: str) -> Any:
    return x.new_empty((x.shape[0] * group_of(group).size, *x.shape[1:]))


def _reduce_scatter(x: Tensor, op: str, group: str) -> Tensor:
    g, x = _group(group, x), x.contiguous()
    torch._check(
        x.shape[0] % g.size == 0, lambda: f"weft::reduce_scatter: {x.shape[0]} rows do not divide over {g.size} ranks"
    )
    out = x.new_empty((x.shape[0] // g.size, *x.shape[1:]))
    g._call(lib.weft_reduce_scatter, x.data_ptr(), out.data_ptr(), out.numel(), _code(x.dtype), reduction_of(op))
    return out


def _reduce_scatter_fake(x: Any, op: str, group: str) -> Any:
    return x.new_empty((x.shape[0] // group_of(group).size, *x.shape[1:]))


def _all_to_all(x: Tensor, group: str) -> Tensor:
    g, x = _group(group, x), x.contiguous()
    torch._check(
        x.shape[0] % g.size == 0, lambda: f"weft::all_to_all: {x.shape[0]} rows do not divide over {g.size} ranks"
    )
    out = torch.empty_like(x)
    g._call(lib.weft_all_to_all, x.data_ptr(), out.data_ptr(), x.numel() // g.size, _code(x.dtype))
    return out


def _broadcast(x: Tensor, root: int, group: str) -> Tensor:
    out = x.contiguous().clone()
    _group(group, x)._call(lib.weft_broadcast, out.data_ptr(), out.numel(), _code(out.dtype), root)
    return out


def _same(x: Any, *_: Any) -> Any:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# ---- definitions --------------------------------------------------------------------------------------------

_OPS: Dict[str, Tuple[str, Any, Any]] = {
    "ag_gemm": ("(Tensor a, Tensor b, Tensor? bias, SymInt m, str group) -> Tensor", *_kernels("ag_gemm")),
    "gemm_rs": ("(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor", *_kernels("gemm_rs")),
    "gemm_ar": ("(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor", *_kernels("gemm_ar")),
    "gemm_as": ("(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor", *_kernels("gemm_as")),
    "gemm": ("(Tensor a, Tensor b, Tensor? bias) -> Tensor", _gemm, _gemm_fake),
    "gemm_columns": ("(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor", _gemm, _gemm_columns_fake),
    "all_reduce": ("(Tensor x, str op, str group) -> Tensor", _all_reduce, _same),
    "all_gather": ("(Tensor x, str group) -> Tensor", _all_gather, _all_gather_fake),
    "reduce_scatter": ("(Tensor x, str op, str group) -> Tensor", _reduce_scatter, _reduce_scatter_fake),
    "all_to_all": ("(Tensor x, str group) -> Tensor", _all_to_all, _same),
    "broadcast": ("(Tensor x, int root, str group) -> Tensor", _broadcast, _same),
}


def _define(name: str, schema: str, kernel: Any, fake: Any, devices: Tuple[str, ...] = ("CPU", "CUDA")) -> None:
    _library.define(name + schema)
    for device in devices:
        _library.impl(name, kernel, device)
    torch.library.register_fake(f"weft::{name}", fake, lib=_library)


for _name, _parts in _OPS.items():
    _define(_name, *_parts)
_define("all_reduce_", "(Tensor(a!) x, str op, str group) -> ()", _all_reduce_, lambda x, op, group: None)

# ---- gradients ----------------------------------------------------------------------------------------------

_ops = torch.ops.weft
_PLAIN = (Tensor, torch.nn.Parameter)
_modes = torch._C._len_torch_dispatch_stack  # type: ignore[attr-defined]
_function_modes = torch._C._len_torch_function_stack  # type: ignore[attr-defined]
_grads = torch.is_grad_enabled
compiling = torch.compiler.is_compiling
_transforms = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]


def _differentiable(name: str, kernel: Any, setup: Any, backward: Any) -> Any:
    """Gives an operator its gradient; returns it as a function.

    Where no gradient is asked for, and nobody looks on (a compiler, a mode, a transform, a subclass), both call the kernel from
    here: a pass through torch's dispatcher costs more than a small product, and the function needs none.
    """
    packet = getattr(_ops, name)
    op = packet.default

    class Gradient(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return op(*inputs)

        setup_context = staticmethod(setup)

    Gradient.backward = staticmethod(backward)  # type: ignore[assignment]
    Gradient.__name__ = f"weft_{name}"

    def slowly(*inputs: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs[:3]):
            return Gradient.apply(*inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*inputs)

    shortcut = _of_two if str(op._schema.arguments[1].type) == "Tensor" else _of_one
    _library.impl(name, shortcut(kernel, slowly), "Autograd")
    quick = shortcut(kernel, packet)

    def function(*inputs: Any) -> Any:
        return packet(*inputs) if compiling() or _function_modes() else quick(*inputs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"``torch.ops.weft.{name}``, without a way through torch's dispatcher where that is nobody's loss."
    return function


def _of_two(kernel: Any, otherwise: Any) -> Any:
    """The kernel of an operator that begins with two tensors and perhaps a third, where it alone is asked for."""

    def call(a: Any, b: Any, c: Any, *rest: Any) -> Any:
        if (
            type(a) in _PLAIN
            and type(b) in _PLAIN
            and (a.is_cpu or a.is_cuda)
            and (b.is_cpu or b.is_cuda)
            and (c is None or (type(c) in _PLAIN and (c.is_cpu or c.is_cuda)))
            and not _modes()
            and _transforms() is None
            and not ((a.requires_grad or b.requires_grad or (c is not None and c.requires_grad)) and _grads())
        ):
            return kernel(a, b, c, *rest)
        return otherwise(a, b, c, *rest)

    return call


def _of_one(kernel: Any, otherwise: Any) -> Any:
    """The same for one that begins with one tensor."""

    def call(x: Any, *rest: Any) -> Any:
        if (
            type(x) in _PLAIN
            and (x.is_cpu or x.is_cuda)
            and not _modes()
            and _transforms() is None
            and not (x.requires_grad and _grads())
        ):
            return kernel(x, *rest)
        return otherwise(x, *rest)

    return call


def _keep(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    a, b, bias = inputs[:3]
    ctx.save_for_backward(a, b)
    ctx.group = inputs[-1]
    ctx.has_bias = bias is not None


def _needs(ctx: Any) -> Tuple[bool, bool, bool]:
    return ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias and ctx.needs_input_grad[2]


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
    return da, db, _ops.all_reduce(grad.sum(0), "sum", ctx.group) if for_bias else None, None


def _gemm_ar_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    a, b = ctx.saved_tensors
    for_a, for_b, for_bias = _needs(ctx)
    da = _ops.gemm(grad, b.t(), None) if for_a else None
    db = _ops.gemm(a.t(), grad, None) if for_b else None
    return da, db, grad.sum(0) if for_bias else None, None


def _gemm_as_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    a, b = ctx.saved_tensors
    for_a, for_b, for_bias = _needs(ctx)
    mine = grad.narrow(1, group_of(ctx.group).rank * b.shape[1], b.shape[1])
    da = _ops.gemm_ar(mine, b.t(), None, ctx.group) if for_a else None
    db = _ops.gemm(a.t(), mine, None) if for_b else None
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
    db = _ops.gemm(a.t(), grad, None) if for_b else None
    return da, db, grad.sum(0) if for_bias else None, None


for _name in ("ag_gemm", "gemm_rs", "gemm_ar", "gemm_as", "gemm", "gemm_columns"):
    globals()[_name] = _differentiable(_name, _OPS[_name][1], _keep, globals()[f"_{_name}_backward"])


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
    return whole if group_of(ctx.group).rank == ctx.op else torch.zeros_like(whole), None, None


for _name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"):
    globals()[_name] = _differentiable(_name, _OPS[_name][1], _keep_op, globals()[f"_{_name}_backward"])
