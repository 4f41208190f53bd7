"""Arrays of numpy, of torch and of weft's own, as the library sees them: an address, a shape, strides, a type."""

from __future__ import annotations

import ctypes as C
import sys
from typing import Any, NamedTuple, Sequence, Tuple

from .dtypes import BY_NAME, DType, dtype_of, numpy_dtype, torch_dtype
from .errors import ArgumentError

_NOTHING = (C.c_int64 * 2)()
NOWHERE = C.addressof(_NOTHING)
"""Where what has no elements lies: torch says 0, by which the library is told that there is no such operand."""

_TORCH_DTYPES: dict = {}
_NUMPY_DTYPES: dict = {}


class View(NamedTuple):
    """An array in memory. Strides are in elements."""

    pointer: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    dtype: DType

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


def dense_strides(shape: Sequence[int]) -> Tuple[int, ...]:
    """Row-major strides, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def view_of(x: Any, what: str = "array") -> View:
    """Where an array lies. It may be a numpy array, a torch tensor or a ``weft.Tensor``."""
    described = getattr(x, "_weft_view", None)
    if described is not None:
        return described
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        dtype = _TORCH_DTYPES.get(x.dtype)
        if dtype is None:
            dtype = _TORCH_DTYPES[x.dtype] = dtype_of(x.dtype)
        if x.is_neg():
            raise ArgumentError(f"{what} is a view that negates what is in memory; resolve_neg() gives what it says")
        try:
            pointer = x.data_ptr()
        except RuntimeError as error:
            if x.layout is torch.strided:
                raise ArgumentError(f"{what} lies in no memory: {error}") from error
            raise ArgumentError(f"{what} of the layout {x.layout} lies in no memory of its own; to_dense() does") from error
        if not pointer and x.is_meta and x.numel():
            raise ArgumentError(f"{what} is on the device 'meta', where tensors have no elements")
        return View(pointer or (NOWHERE if x.is_cpu and not x.numel() else 0), tuple(x.shape), x.stride(), dtype)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ndarray):
        dtype = _NUMPY_DTYPES.get(x.dtype)
        if dtype is None:
            if not x.dtype.isnative:
                raise TypeError(f"{what}: its elements ({x.dtype.str}) have their bytes in the order of other machines")
            dtype = _NUMPY_DTYPES[x.dtype] = dtype_of(x.dtype.name)
        size = x.itemsize
        if x.size > 1 and any(step % size for step in x.strides):  # a field of a structured array
            raise ArgumentError(f"{what} has strides of {x.strides} bytes, which are not whole elements of {size}")
        return View(x.__array_interface__["data"][0], x.shape, tuple(s // size for s in x.strides), dtype)
    raise TypeError(f"{what}: expected a numpy array, a torch tensor or a weft.Tensor, not {type(x).__name__}")


def check_on_cpu(*arrays: Any) -> None:
    """For what works on the CPU, where an address of a GPU's memory would end the program."""
    torch = sys.modules.get("torch")
    for x in arrays if torch is not None else ():
        if isinstance(x, torch.Tensor) and x.is_cuda:
            raise ArgumentError(f"a tensor is on {x.device}, and the call on the CPU; group.use_gpu() puts a group's on GPUs")


def _check_writable(x: Any, what: str) -> None:
    """What results go into is not what others must not see changed: bytes, a file mapped to be read."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ndarray) and not x.flags.writeable:
        raise ArgumentError(f"{what} is read-only")


def flat(x: Any, what: str, written: bool = False) -> View:
    """An array without gaps, as collectives take it."""
    view = view_of(x, what)
    if written:
        _check_writable(x, what)
    if view.strides != dense_strides(view.shape) and view.elements > 1:
        expected = dense_strides(view.shape)
        gaps = [i for i, extent in enumerate(view.shape) if extent != 1 and view.strides[i] != expected[i]]
        if gaps:
            raise ArgumentError(f"{what} must be contiguous; its strides are {view.strides} for the shape {view.shape}")
    return view


def _numpy_has(dtype: DType) -> bool:
    """Whether numpy is there, and has arrays of a type as such, not as bits."""
    try:
        name = numpy_dtype(dtype).name
    except ImportError:
        return False
    return dtype.name in (name, "byte")


def new_like(x: Any, shape: Sequence[int], dtype: DType, *others: Any) -> Any:
    """A fresh array from the library that ``x`` comes from. Where that is weft, whose memory nobody makes alone, it is torch's
    on a GPU, beside ``others`` of torch's, and where torch is loaded and numpy has no such type; else numpy's."""
    own = hasattr(x, "_weft_view")
    device: Any = f"cuda:{x.__dlpack_device__()[1]}" if own and x.group.on_gpu else None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        device = x.device
    elif torch is not None and own and device is None:
        if any(isinstance(other, torch.Tensor) for other in others) or not _numpy_has(dtype):
            device = "cpu"
    if torch is not None and device is not None:
        return torch.empty(tuple(shape), dtype=torch_dtype(dtype), device=device)
    if not _numpy_has(dtype):
        raise ArgumentError(
            f"nobody here has arrays of {dtype.name} for a result: torch is not loaded, and numpy has them with ml_dtypes "
            "alone or is not there; load one, or give the array (weft.empty makes them)"
        )
    import numpy

    return numpy.empty(tuple(shape), dtype=numpy_dtype(dtype))


class Matrix(NamedTuple):
    """One operand of a product: the last two extents as stored, whether they are transposed, and the batch."""

    pointer: int
    rows: int
    cols: int
    ld: int
    trans: int
    batch: int
    stride: int
    dtype: DType


def by_rows(x: Any) -> Any:
    """The same matrix row by row: itself, or a copy."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.contiguous() if x.numel() else x.new_empty(x.shape)
    import numpy

    return numpy.array(x, order="C")


def matrix_of(x: Any, what: str, written: bool = False) -> Matrix:
    """A matrix or a batch of matrices, row-major or transposed, as the library takes it."""
    view = view_of(x, what)
    if written:
        _check_writable(x, what)
    if len(view.shape) not in (2, 3):
        raise ArgumentError(f"{what} must have 2 or 3 dimensions, not {len(view.shape)}")
    rows, cols = view.shape[-2:]
    row_step, col_step = view.strides[-2:]
    if (not rows or not cols) and 1 not in (row_step, col_step):  # as numpy makes them: they say nothing
        row_step, col_step = cols, 1
    if col_step == 1 or cols == 1:
        trans, ld = 0, max(row_step, cols) if rows > 1 else cols
    elif row_step == 1 or rows == 1:
        trans, ld = 1, max(col_step, rows) if cols > 1 else rows
    else:
        raise ArgumentError(f"{what} must have one dimension without gaps; its strides are {view.strides}")
    if (rows > 1 if trans == 0 else cols > 1) and (row_step if trans == 0 else col_step) < (
        cols if trans == 0 else rows
    ):
        raise ArgumentError(f"{what} has rows that overlap; its strides are {view.strides} for the shape {view.shape}")
    batch, stride = (view.shape[0], view.strides[0]) if len(view.shape) == 3 else (1, 0)
    if batch > 1 and not stride and rows and cols:  # 0 says to the library that they lie one after another
        raise ArgumentError(f"{what} is one matrix {batch} times; a batch has its matrices apart (contiguous() copies them)")
    return Matrix(view.pointer, rows, cols, ld, trans, batch, stride, view.dtype)


__all__ = ["View", "Matrix", "view_of", "flat", "check_on_cpu", "matrix_of", "new_like", "dense_strides", "BY_NAME"]
