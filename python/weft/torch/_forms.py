"""Products of one form: everything about a call that does not depend on addresses, made once.

A form is found by shapes, strides and types, so that a call that was made before costs a look into a table, three addresses and
the call itself.
"""

from __future__ import annotations

import ctypes as C
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .. import products
from .._library import check, lib, structs
from ..dtypes import dtype_of
from ..group import Group
from . import _cuda
from ._groups import group_of

_Operands = structs["weft_operands"]
empty_like = torch.empty_like
_MOST = 4096  # forms that an operator keeps


def check2(op: str, a: Any, b: Any) -> None:
    """Two matrices that can be multiplied, real or symbolic."""
    torch._check(
        a.dim() == 2 and b.dim() == 2,
        lambda: f"weft::{op}: a and b are matrices, not {a.dim()} and {b.dim()} dimensions",
    )
    torch._check(a.shape[1] == b.shape[0], lambda: f"weft::{op}: a is {tuple(a.shape)}, b is {tuple(b.shape)}")


def shape_of(op: str, a: Any, b: Any, m: Any, group: Group) -> Tuple[Any, Any]:
    """Of the result on this rank, for real and for symbolic sizes. ``m`` < 0: every rank has as many rows."""
    rows, cols = a.shape[0], b.shape[1]
    if op == "ag_gemm":
        return rows * group.size if m < 0 else m, cols
    if op == "gemm_rs":
        return (rows + group.size - 1 - group.rank) // group.size, cols
    return rows, cols * group.size if op == "gemm_as" else cols


def _plain(x: Tensor) -> Tensor:
    """The tensor, copied if neither it nor its transpose is row-major."""
    (rows, cols), (down, right) = x.shape, x.stride()
    if (right == 1 or cols == 1) and (down >= cols or rows == 1):
        return x
    if (down == 1 or rows == 1) and (right >= rows or cols == 1):
        return x
    return x.contiguous()


def _stored(x: Tensor) -> Tuple[int, int]:
    """Whether a matrix lies transposed, and its leading dimension."""
    trans = not (x.stride(1) == 1 or x.shape[1] == 1)
    stored, width = (x.shape[1], x.shape[0]) if trans else tuple(x.shape)
    step = x.stride(1) if trans else x.stride(0)
    return int(trans), step if stored > 1 else width


class _Form:
    """A product of operands of one type on one device, each with rows or columns without gaps."""

    def __init__(self, op: str, a: Tensor, b: Tensor, bias: Optional[Tensor], m: int, group: Optional[Group]) -> None:
        self.shape: Tuple[int, int] = (a.shape[0], b.shape[1])
        self.function = getattr(lib, "weft_" + op)
        (transa, lda), (transb, ldb), dtype = _stored(a), _stored(b), dtype_of(a.dtype)
        if group is None:
            self.first: Any = products._gemm_args(dtype, *self.shape, a.shape[1])
            self.first.transa, self.first.transb = transa, transb
        else:
            self.group = weakref.ref(group)
            self.shape = shape_of(op, a, b, m, group)
            rows, cols, inner = a.shape[0], b.shape[1], a.shape[1]
            if op == "ag_gemm":
                rows, cols = self.shape[0], cols * group.size
            elif op == "gemm_as":
                cols = self.shape[1]
            else:
                inner *= group.size
            self.problem = products._problem(
                op, m=rows, n=cols, k=inner, dtype=dtype.code, d_dtype=dtype.code, bias=int(bias is not None),
                transa=transa, transb=transb,
            )  # fmt: skip
            self.pointer = C.byref(self.problem)
            self.first = _Operands(size=C.sizeof(_Operands))
        self.first.lda, self.first.ldb = lda, ldb
        if bias is not None and tuple(bias.shape) != self.shape[1:]:
            raise ValueError(f"weft::{op}: bias has the shape {tuple(bias.shape)}; the result has {self.shape[1]} columns")
        # A result is made like this, which is the quickest way there is: the shape, with memory for one element unless it is a
        # vector, whose strides would not be those of memory without gaps.
        few = min(self.shape) < 2
        self.like = torch.empty(self.shape if few else (), dtype=a.dtype, device=a.device).expand(self.shape)
        self.spare: List[Any] = []  # operands that no call has in use, for threads may share a form

    def operands(self) -> Tuple[Any, Any]:
        """Operands with everything but addresses, and how a call takes them."""
        own = type(self.first).from_buffer_copy(self.first)
        return own, C.byref(own)


def _make(
    op: str, forms: Dict[Any, _Form], key: Any, a: Tensor, b: Tensor, bias: Optional[Tensor], m: int, name: Optional[str]
) -> Tuple[_Form, Tensor, Tensor]:
    """A form that is not in the table, and the operands in it: copies where theirs have gaps."""
    check2(op, a, b)
    for what, x in (("b", b), ("bias", bias)):
        if x is not None and x.dtype != a.dtype:
            raise TypeError(f"weft::{op}: a is {a.dtype}, {what} is {x.dtype}")
        if x is not None and x.device != a.device:
            raise TypeError(f"weft::{op}: a is on {a.device}, {what} on {x.device}")
    if bias is not None and not bias.is_contiguous():
        raise ValueError(f"weft::{op}: bias must be contiguous")
    x, y = _plain(a), _plain(b)
    form = _Form(op, x, y, bias, m, None if name is None else group_of(name, a.device))
    if x is a and y is b:
        if len(forms) >= _MOST:
            forms.clear()
        forms[key] = form
    return form, x, y


def over_ranks(op: str) -> Callable[..., Tensor]:
    """The kernel of a product over the ranks of a group."""
    forms: Dict[Any, _Form] = {}

    def kernel(a: Tensor, b: Tensor, bias: Optional[Tensor], *rest: Any) -> Tensor:
        key: Any = rest, a.shape, a.stride(), b.shape, b.stride(), a.dtype, b.dtype
        cuda = a.is_cuda or b.is_cuda
        if bias is not None or cuda:
            key += (a.device, b.device, None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device))
        form = forms.get(key)
        group = None if form is None else form.group()
        if form is None or group is None or not group._native.value:  # a group that ended; its name may have a new one
            form, a, b = _make(op, forms, key, a, b, bias, rest[0] if len(rest) == 2 else -1, rest[-1])
            group = group_of(rest[-1], a.device)
        if group._lane is not None:
            group._lane.settle()
        if cuda:
            _cuda.ready(group, a)
        both = form.spare.pop() if form.spare else form.operands()
        operands = both[0]
        operands.a, operands.b = a.data_ptr(), b.data_ptr()
        if bias is not None:
            operands.bias = bias.data_ptr()
        out = empty_like(form.like)
        operands.d = out.data_ptr()
        group._call(form.function, form.pointer, both[1])
        form.spare.append(both)
        return out

    return kernel


def on_one_rank() -> Callable[..., Tensor]:
    """The kernel of a product that needs no peer: torch's own on GPUs."""
    forms: Dict[Any, _Form] = {}

    def kernel(a: Tensor, b: Tensor, bias: Optional[Tensor], *_: Any) -> Tensor:
        if not a.is_cpu or not b.is_cpu:
            check2("gemm", a, b)
            _cuda.bind(a)
            return a @ b if bias is None else torch.addmm(bias, a, b)
        key: Any = a.shape, a.stride(), b.shape, b.stride(), a.dtype, b.dtype
        if bias is not None:
            key += (bias.shape, bias.stride(), bias.dtype)
        form = forms.get(key)
        if form is None:
            form, a, b = _make("gemm", forms, key, a, b, bias, -1, None)
        both = form.spare.pop() if form.spare else form.operands()
        args = both[0]
        args.a, args.b = a.data_ptr(), b.data_ptr()
        if bias is not None:
            args.bias = bias.data_ptr()
        out = empty_like(form.like)
        args.d = out.data_ptr()
        check(form.function(both[1]))
        form.spare.append(both)
        return out

    return kernel


__all__ = ["check2", "on_one_rank", "over_ranks", "shape_of"]
