"""Calls of one form: everything about a product or a collective that does not depend on addresses, made once.

A form is found by shapes, strides and types, so that a call that was made before costs a look into a table, a few addresses and
the call itself. Operators remember forms, too, and find them sooner (:mod:`weft.torch._quick`).
"""

from __future__ import annotations

import ctypes as C
import weakref
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from torch._C._dynamo.guards import _empty_strided_cpu  # type: ignore[attr-defined]

from .. import products
from .._arrays import by_rows, dense_strides
from .._library import check, interface, number, quick, structs
from ..dtypes import dtype_of, result_dtype, torch_dtype
from ..errors import StateError
from ..group import Group, reduction_of
from . import _cuda
from ._groups import group_of

_Operands = structs["weft_operands"]
MOST = 4096  # forms that an operator keeps


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


def type_of_result(kind: torch.dtype) -> torch.dtype:
    """Of a product of matrices of a type: int32 of int8, bfloat16 of fp8, else the same."""
    return kind if kind.is_floating_point and kind.itemsize > 1 else torch_dtype(result_dtype(dtype_of(kind)))


def plain(x: Tensor) -> Tensor:
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


def maker(shape: Tuple[int, ...], like: Tensor, dtype: Optional[torch.dtype] = None) -> Callable[[], Tensor]:
    """What makes tensors of a shape, in the quickest way there is: on a GPU, like one that has the shape with memory for one
    element, unless it is a vector, whose strides would not be those of memory without gaps."""
    dtype = dtype or like.dtype
    if like.is_cpu:
        return partial(_empty_strided_cpu, shape, dense_strides(shape), dtype)
    few = len(shape) != 2 or min(shape) < 2
    return partial(torch.empty_like, torch.empty(shape if few else (), dtype=dtype, device=like.device).expand(shape))


class Form:
    """What forms share: their group, and the calls of which operators remember that they are of this form."""

    def __init__(self, function: Any, group: Optional[Group], like: Tensor) -> None:
        self.function = function
        self.group: Any = weakref.ref(group) if group is not None else None
        self.cuda = like.is_cuda
        self.calls: List[Any] = []

    def ready(self) -> Any:
        """The group; None if it has ended, and its name may have a new one."""
        group = self.group()
        return None if group is None or not group._native.value else group


class _Product(Form):
    """A product of operands of one type on one device, each with rows or columns without gaps."""

    def __init__(self, op: str, a: Tensor, b: Tensor, bias: Optional[Tensor], m: int, group: Optional[Group]) -> None:
        super().__init__(getattr(quick, "weft_" + op), group, a)
        self.shape: Tuple[int, int] = (a.shape[0], b.shape[1])
        (transa, lda), (transb, ldb), dtype = _stored(a), _stored(b), dtype_of(a.dtype)
        if group is None:
            self.first: Any = products._gemm_args(dtype, *self.shape, a.shape[1])
            self.first.transa, self.first.transb = transa, transb
        else:
            self.shape = shape_of(op, a, b, m, group)
            rows, cols, inner = a.shape[0], b.shape[1], a.shape[1]
            if op == "ag_gemm":
                has = products.part(self.shape[0], group.size, group.rank)[1]
                if has != rows:
                    raise ValueError(f"weft::{op}: rank {group.rank} of {group.size} has {has} of m = {m} rows; a has {rows}")
                rows, cols = self.shape[0], cols * group.size
            elif op == "gemm_as":
                cols = self.shape[1]
            else:
                inner *= group.size
            self.problem = products._problem(
                op, m=rows, n=cols, k=inner, dtype=dtype.code, d_dtype=result_dtype(dtype).code,
                bias=int(bias is not None), transa=transa, transb=transb,
            )  # fmt: skip
            self.pointer = C.byref(self.problem)
            self.first = _Operands(size=C.sizeof(_Operands))
        self.first.lda, self.first.ldb = lda, ldb
        if bias is not None and tuple(bias.shape) != self.shape[1:]:
            raise ValueError(f"weft::{op}: bias has the shape {tuple(bias.shape)}; the result has {self.shape[1]} columns")
        self.new = maker(self.shape, a, type_of_result(a.dtype))
        self.spare: List[Any] = []  # operands that no call has in use, for threads may share a form

    def operands(self) -> Tuple[Any, Any]:
        """Operands with everything but addresses, and how a call takes them."""
        own = type(self.first).from_buffer_copy(self.first)
        return own, C.byref(own)

    def run(self, group: Any, a: Tensor, b: Tensor, bias: Optional[Tensor]) -> Tensor:
        """The product."""
        if self.cuda:
            _cuda.ready(group, a)
        both = self.spare.pop() if self.spare else self.operands()
        operands, out = both[0], self.new()
        operands.a, operands.b, operands.d = a.data_ptr(), b.data_ptr(), out.data_ptr()
        if bias is not None:
            operands.bias = bias.data_ptr()
        self.call(group, both[1])
        self.spare.append(both)
        return out

    def call(self, group: Any, operands: Any) -> None:
        group._call(self.function, self.pointer, operands)


class _Alone(_Product):
    """A product that needs no peer."""

    def ready(self) -> Any:
        return self

    def call(self, group: Any, operands: Any) -> None:
        check(self.function(operands))


class Product:
    """The kernel of a product over the ranks of a group: ``(a, b, bias, [m,] group)``."""

    tensors = 0
    form = _Product

    def __init__(self, op: str, arguments: int) -> None:
        self.op, self.arguments = op, arguments
        self.forms: Dict[Any, Any] = {}

    def key(self, a: Tensor, b: Tensor, bias: Optional[Tensor], rest: Tuple[Any, ...]) -> Any:
        key: Any = rest, a.shape, a.stride(), b.shape, b.stride(), a.dtype, b.dtype
        if bias is not None or not a.is_cpu or not b.is_cpu:
            key += (a.device, b.device, None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device))
        return key

    def form_of(self, a: Tensor, b: Tensor, bias: Optional[Tensor], *rest: Any) -> Any:
        """The form of a call that was made; None for one whose operands had to be copied."""
        return self.forms.get(self.key(a, b, bias, rest))

    def group(self, a: Tensor, rest: Tuple[Any, ...]) -> Optional[Group]:
        return group_of(rest[-1], a.device)

    def __call__(self, a: Tensor, b: Tensor, bias: Optional[Tensor], *rest: Any) -> Tensor:
        key = self.key(a, b, bias, rest)
        form = self.forms.get(key)
        group = None if form is None else form.ready()
        if form is None or group is None:
            form, a, b = self.make(key, a, b, bias, rest)
            group = form.ready()
            if group is None:
                raise StateError("the group is closed")
        return form.run(group, a, b, bias)

    def make(self, key: Any, a: Tensor, b: Tensor, bias: Optional[Tensor], rest: Tuple[Any, ...]) -> Tuple[Any, Tensor, Tensor]:
        """A form that is not in the table, and the operands in it: copies where theirs have gaps."""
        check2(self.op, a, b)
        for what, x, kind in (("b", b, a.dtype), ("bias", bias, type_of_result(a.dtype))):
            if x is not None and x.dtype != kind:
                raise TypeError(f"weft::{self.op}: a is {a.dtype}, {what} is {x.dtype}, not {kind}")
            if x is not None and x.device != a.device:
                raise TypeError(f"weft::{self.op}: a is on {a.device}, {what} on {x.device}")
        if bias is not None and not bias.is_contiguous():
            raise ValueError(f"weft::{self.op}: bias must be contiguous")
        group = self.group(a, rest)
        x, y = plain(a), plain(b)
        if group is not None and len(rest) == 2 and 0 <= rest[0] < 2 * group.size and rest[0] % group.size:
            x = by_rows(a)  # some ranks have one row or none, of which nobody can say whether it lies transposed
        form = self.form(self.op, x, y, bias, rest[0] if len(rest) == 2 else -1, group)
        if x is a and y is b:
            if len(self.forms) >= MOST:
                self.forms.clear()
            self.forms[key] = form
        return form, x, y


class Gemm(Product):
    """The kernel of a product that needs no peer, ``(a, b, bias[, group])``: torch's own on GPUs."""

    form = _Alone

    def group(self, a: Tensor, rest: Tuple[Any, ...]) -> None:
        return None

    def __call__(self, a: Tensor, b: Tensor, bias: Optional[Tensor], *rest: Any) -> Tensor:
        if a.is_cpu and b.is_cpu:
            return super().__call__(a, b, bias, *rest)
        check2("gemm", a, b)
        _cuda.bind(a)
        return a @ b if bias is None else torch.addmm(bias, a, b)


# ---- collectives --------------------------------------------------------------------------------------------


class _Exchange(Form):
    """A collective on tensors without gaps, of one shape and type."""

    def __init__(self, kernel: "Collective", x: Tensor, group: Group, rest: Tuple[Any, ...]) -> None:
        super().__init__(getattr(quick, "weft_" + kernel.op.rstrip("_")), group, x)
        count = x.numel() // group.size if kernel.per_rank else x.numel()
        self.new = maker(kernel.shape(tuple(x.shape), group.size), x)
        self.numbers = (count, dtype_of(x.dtype).code, *kernel.tail(rest))
        declared = interface.functions[self.function.__name__]
        first = len(declared.argtypes) - len(self.numbers)
        self.tail = tuple(map(number, declared.argtypes[first:], self.numbers, declared.argnames[first:]))

    def run(self, group: Group, x: Tensor) -> Optional[Tensor]:
        """The collective."""
        if self.cuda:
            _cuda.ready(group, x)
        out = self.new()
        group._call(self.function, x.data_ptr(), out.data_ptr(), *self.tail)
        return out


class _InPlace(_Exchange):
    """One whose result replaces what was sent."""

    def run(self, group: Group, x: Tensor) -> None:
        if self.cuda:
            _cuda.ready(group, x)
        pointer = x.data_ptr()
        group._call(self.function, pointer, pointer, *self.tail)


class _FromRoot(_Exchange):
    """A broadcast: in place, in a tensor of its own, which only the root fills."""

    def run(self, group: Group, x: Tensor) -> Tensor:
        out = self.new()
        pointer = out.data_ptr()
        if self.cuda:
            _cuda.ready(group, x)
        if group.rank == self.numbers[-1]:
            if self.cuda:
                out.copy_(x)
            else:
                C.memmove(pointer, x.data_ptr(), x.nbytes)
        group._call(self.function, pointer, *self.tail)
        return out


class Collective:
    """The kernel of a collective: ``(x, …, group)``."""

    tensors = 1

    def __init__(
        self, op: str, arguments: int, *, scale: str = "", reduces: bool = False, per_rank: bool = False, form: Any = _Exchange
    ) -> None:
        self.op, self.arguments, self.scale, self.reduces = op, arguments, scale, reduces
        self.per_rank, self.form = per_rank, form
        self.forms: Dict[Any, Any] = {}

    @property
    def in_place(self) -> bool:
        return self.form is _InPlace

    def shape(self, shape: Tuple[Any, ...], size: int) -> Tuple[Any, ...]:
        """Of the result, for real and for symbolic sizes."""
        if self.scale == "gathers":
            return (shape[0] * size, *shape[1:])
        return (shape[0] // size, *shape[1:]) if self.scale == "scatters" else shape

    def tail(self, rest: Tuple[Any, ...]) -> Tuple[int, ...]:
        """What the library's function takes after a count and a type: a reduction, or a root."""
        return (reduction_of(rest[0]),) if self.reduces else tuple(rest[:-1])

    def form_of(self, x: Tensor, *rest: Any) -> Any:
        """The form of a call that was made; None for one whose tensor has gaps."""
        return self.forms.get((x.shape, x.dtype, x.device, rest)) if x.is_contiguous() else None

    def __call__(self, x: Tensor, *rest: Any) -> Optional[Tensor]:
        key = x.shape, x.dtype, x.device, rest
        form = self.forms.get(key)
        group = None if form is None else form.ready()
        if not x.is_contiguous():
            if self.in_place:
                raise ValueError(f"weft::{self.op}: the tensor must be contiguous")
            x = x.contiguous()
        if form is None or group is None:
            group = group_of(rest[-1], x.device)
            torch._check(x.dim() > 0 or not (self.scale or self.per_rank), lambda: f"weft::{self.op}: a tensor has no rows")
            if self.per_rank:
                torch._check(
                    x.shape[0] % group.size == 0,
                    lambda: f"weft::{self.op}: {x.shape[0]} rows do not divide over {group.size} ranks",
                )
            if len(self.forms) >= MOST:
                self.forms.clear()
            form = self.forms[key] = self.form(self, x, group, rest)
        return form.run(group, x)


AllReduceInPlace = partial(Collective, form=_InPlace)
Broadcast = partial(Collective, form=_FromRoot)

__all__ = ["AllReduceInPlace", "Broadcast", "Collective", "Form", "Gemm", "MOST", "Product", "check2", "maker", "shape_of", "type_of_result"]
