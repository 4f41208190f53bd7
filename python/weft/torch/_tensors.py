"""Tensors as memory that the library moves and reduces: without gaps, as bytes, and back; and what it reduces of torch's."""

from __future__ import annotations

import ctypes as C
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from .._library import constants, number
from ..dtypes import dtype_of

_BYTE = constants["WEFT_BYTE"]
_SUM, _AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_REDUCTIONS: Dict[Tuple[torch.dtype, int], Tuple[C.c_int, C.c_int]] = {
    # What the library reduces: its type and its reduction, as a call takes them. By torch's number of an operation, since
    # comparing what pybind wraps takes microseconds.
    (kind, int(op)): (C.c_int(dtype_of(kind).code), C.c_int(constants[code]))  # type: ignore[call-overload]
    for op, code in (
        (dist.ReduceOp.SUM, "WEFT_SUM"),
        (dist.ReduceOp.AVG, "WEFT_AVERAGE"),
        (dist.ReduceOp.MIN, "WEFT_MIN"),
        (dist.ReduceOp.MAX, "WEFT_MAX"),
        (dist.ReduceOp.PRODUCT, "WEFT_PRODUCT"),
    )
    for kind in (*_FLOATS, torch.int32, torch.int64, torch.uint8, torch.int8, torch.bool)
    if kind in _FLOATS or op != _AVG
}
class _Roots(Dict[int, C.c_int]):
    """Roots as a call takes them. torch looks at none of the whole group's, and its integers are longer than C's."""

    def __missing__(self, root: int) -> C.c_int:
        made = self[root] = number(C.c_int, root, "root")
        return made


_ROOTS = _Roots()
_ON_GPU = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64)
_LOCAL: Dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def _dense(x: Tensor) -> Tensor:
    """Memory without gaps and in order, which is what the tensor says; complex numbers as pairs."""
    x = x.detach().resolve_conj().resolve_neg()
    x = torch.view_as_real(x) if x.is_complex() else x
    return x if x.is_contiguous() else x.contiguous()


def _check_alike(call: str, x: Tensor, others: Sequence[Tensor]) -> None:
    """What goes into tensors, or comes out of them, is as large and of the same type."""
    for y in others:
        if y.dtype != x.dtype or y.numel() != x.numel():
            raise ValueError(f"{call}: {x.numel()} elements of {x.dtype} and {y.numel()} of {y.dtype} do not fit each other")


def _octets(x: Tensor) -> Tensor:
    """The memory of a tensor, byte by byte. A dimension of one element may have any stride, which views of another type refuse."""
    dense = _dense(x)
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _counts(sizes: Sequence[int]) -> Any:
    return (C.c_int64 * len(sizes))(*sizes)


def _unpack(packed: Tensor, sizes: Sequence[int], outputs: Sequence[Tensor]) -> None:
    """Bytes that lie one after another, into the tensors they are for."""
    for y, got in zip(outputs, packed.split(list(sizes))):
        real = torch.view_as_real(y.detach()) if y.is_complex() else y.detach()
        # A copy begins where its type may begin.
        real.copy_(got.clone().view(real.dtype).view(real.shape))


def _codes(x: Tensor, op: Any) -> Optional[Tuple[C.c_int, C.c_int]]:
    """The library's type and reduction; None where it has none for this tensor."""
    if x.is_cuda and (x.dtype not in _ON_GPU or op == _AVG):
        return None
    return _REDUCTIONS.get((x.dtype, int(op)))


def _back(dense: Tensor, x: Tensor) -> None:
    """The result into the caller's tensor, if it was not made there."""
    if x.is_conj() or x.is_neg():
        x.detach().copy_(torch.view_as_complex(dense) if x.is_complex() else dense)
        return
    whole = torch.view_as_real(x.detach()) if x.is_complex() else x.detach()
    if whole.data_ptr() != dense.data_ptr():
        whole.copy_(dense.view(whole.shape))
