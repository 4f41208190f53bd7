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

import ctypes as C
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .. import products
from .._library import lib, structs
from ..dtypes import dtype_of
from ..group import Group, reduction_of
from ..products import part
from . import _cuda
from ._groups import group_of

_Operands = structs["weft_operands"]
_library = torch.library.Library("weft", "DEF")

# ---- calls --------------------------------------------------------------------------------------------------

_codes: Dict[torch.dtype, int] = {}


def _code(dtype: torch.dtype) -> int:
    code = _codes.get(dtype)
    if code is None:
        code = _codes[dtype] = dtype_of(dtype).code
    return code


def _plain(x: Tensor) -> Tensor:
    """The tensor, copied if neither it nor its transpose is row-major."""
    (rows, cols), (down, right) = x.shape, x.stride()
    if (right == 1 or cols == 1) and (down >= cols or rows == 1):
        return x
    if (down == 1 or rows == 1) and (right >= rows or cols == 1):
        return x
    return x.contiguous()


def _group(name: str, x: Tensor) -> Group:
    """The group of a name, for calls on this tensor."""
    group = group_of(name, x.device)
    return _cuda.ready(group, x) if x.is_cuda else group


class _Call:
    """A product of one form: everything about the call that does not depend on addresses."""

    def __init__(self, op: str, group: Group, a: Tensor, b: Tensor, bias: Optional[Tensor], m: int) -> None:
        _check2(op, a, b)
        if a.dtype != b.dtype or (bias is not None and bias.dtype != a.dtype):
            raise TypeError(
                f"weft::{op}: a is {a.dtype}, b is {b.dtype}{'' if bias is None else f', bias is {bias.dtype}'}"
            )
        self.function = getattr(lib, "weft_" + op)
        self.shape = _shape(op, a, b, m, group)
        rows, cols, inner = a.shape[0], b.shape[1], a.shape[1]
        if op == "ag_gemm":
            rows, cols = self.shape[0], cols * group.size
        elif op == "gemm_as":
            cols = self.shape[1]
        else:
            inner *= group.size
        code = _code(a.dtype)
        self.problem = products._problem(
            op, m=rows, n=cols, k=inner, dtype=code, d_dtype=code, bias=int(bias is not None)
        )
        self.operands = _Operands(size=C.sizeof(_Operands))
        for name, x in (("a", a), ("b", b)):
            trans = not (x.stride(1) == 1 or x.shape[1] == 1)
            setattr(self.problem, "trans" + name, int(trans))
            stored, width = (x.shape[1], x.shape[0]) if trans else tuple(x.shape)
            step = x.stride(1) if trans else x.stride(0)
            setattr(self.operands, "ld" + name, step if stored > 1 else width)
        self.pointer = C.byref(self.problem)
        self.spare: List[Any] = []  # operands that no call has in use, for threads may share a form

    def run(self, group: Group, a: Tensor, b: Tensor, bias: Optional[Tensor], out: Tensor) -> Tensor:
        operands = self.spare.pop() if self.spare else _Operands.from_buffer_copy(self.operands)
        operands.a, operands.b, operands.d = a.data_ptr(), b.data_ptr(), out.data_ptr()
        if bias is not None:
            operands.bias = bias.data_ptr()
        group._call(self.function, self.pointer, C.byref(operands))
        self.spare.append(operands)
        return out


_calls: Dict[Tuple[Any, ...], _Call] = {}


def _product(op: str, a: Tensor, b: Tensor, bias: Optional[Tensor], m: int, name: str) -> Tensor:
    group = _group(name, a)
    dtypes = a.dtype, b.dtype, None if bias is None else bias.dtype
    key = (op, group.rank, group.size, a.shape, a.stride(), b.shape, b.stride(), dtypes, m)
    call = _calls.get(key)
    if call is None:
        if a.dim() == 2 and b.dim() == 2:
            plain = _plain(a), _plain(b)
            if plain[0] is not a or plain[1] is not b:
                return _product(op, *plain, bias, m, name)
        if len(_calls) > 4096:
            _calls.clear()
        call = _calls[key] = _Call(op, group, a, b, bias, m)
    return call.run(group, a, b, bias, a.new_empty(call.shape))


def _check2(op: str, a: Any, b: Any) -> None:
    torch._check(
        a.dim() == 2 and b.dim() == 2,
        lambda: f"weft::{op}: a and b are matrices, not {a.dim()} and {b.dim()} dimensions",
    )
    torch._check(a.shape[1] == b.shape[0], lambda: f"weft::{op}: a is {tuple(a.shape)}, b is {tuple(b.shape)}")


# ---- the products -------------------------------------------------------------------------------------------


def _shape(op: str, a: Any, b: Any, m: Any, group: Group) -> Tuple[Any, Any]:
    """Of the result on this rank, for real and for symbolic sizes. ``m`` < 0: every rank has as many rows."""
    rows, cols = a.shape[0], b.shape[1]
    if op == "ag_gemm":
        return rows * group.size if m < 0 else m, cols
    if op == "gemm_rs":
        return (rows + group.size - 1 - group.rank) // group.size, cols
    return rows, cols * group.size if op == "gemm_as" else cols


def _kernels(op: str) -> Tuple[Any, Any]:
    """The kernel of a product and its fake."""

    def kernel(a: Tensor, b: Tensor, bias: Optional[Tensor], *rest: Any) -> Tensor:
        return _product(op, a, b, bias, rest[0] if len(rest) == 2 else -1, rest[-1])

    def fake(a: Any, b: Any, bias: Any, *rest: Any) -> Any:
        _check2(op, a, b)
        return a.new_empty(_shape(op, a, b, rest[0] if len(rest) == 2 else -1, group_of(rest[-1])))

    return kernel, fake


def _gemm(a: Tensor, b: Tensor, bias: Optional[Tensor]) -> Tensor:
    _check2("gemm", a, b)
    if a.is_cuda:
        return a @ b if bias is None else torch.addmm(bias, a, b)
    return products.gemm(_plain(a.detach()), _plain(b.detach()), bias=bias if bias is None else bias.detach())


def _gemm_fake(a: Any, b: Any, bias: Any) -> Any:
    _check2("gemm", a, b)
    return a.new_empty((a.shape[0], b.shape[1]))


def _gemm_columns(a: Tensor, b: Tensor, bias: Optional[Tensor], group: str) -> Tensor:
    return _gemm(a, b, bias)


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
    "gemm_columns": ("(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor", _gemm_columns, _gemm_columns_fake),
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
_transforms = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]


def _differentiable(name: str, kernel: Any, setup: Any, backward: Any) -> None:
    """Gives an operator its gradient. Where none is asked for, and nobody looks on (a mode, a transform, a subclass),
    the kernel is called from here: a second pass through torch's dispatcher costs more than a small product."""
    op = getattr(_ops, name).default

    class Gradient(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return op(*inputs)

        setup_context = staticmethod(setup)

    Gradient.backward = staticmethod(backward)  # type: ignore[assignment]
    Gradient.__name__ = f"weft_{name}"

    def call(*inputs: Any) -> Any:
        plain = not _modes() and _transforms() is None
        needed = torch.is_grad_enabled()
        for x in inputs[:3] if needed or plain else ():
            if isinstance(x, Tensor):
                if needed and x.requires_grad:
                    return Gradient.apply(*inputs)
                plain = plain and type(x) in _PLAIN and (x.is_cpu or x.is_cuda)
        if plain:
            return kernel(*inputs)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*inputs)

    _library.impl(name, call, "Autograd")


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
    _differentiable(_name, _OPS[_name][1], _keep, globals()[f"_{_name}_backward"])


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
    _differentiable(_name, _OPS[_name][1], _keep_op, globals()[f"_{_name}_backward"])
