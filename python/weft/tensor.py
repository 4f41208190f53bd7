"""Symmetric memory as arrays: memory that every rank has, and can address on its peers.

A tensor's memory lives until the tensor, its peer views and every numpy array or torch tensor made of them are gone, on
every rank, in whatever order; or until this rank calls :meth:`Tensor.free` or closes the group, after which nothing made
of it may be used.
"""

from __future__ import annotations

import ctypes as C
from operator import index
from typing import Any, List, Optional, Sequence, Tuple, Union

from . import _arrays, _dlpack
from ._library import lib, structs
from .dtypes import DType, dtype_of, numpy_dtype, torch_dtype
from .errors import ArgumentError, StateError, UnsupportedError
from .group import Group, init

Shape = Union[int, Sequence[int]]


class _Memory:
    """The local end of an allocation; every view of it holds this."""

    def __init__(self, group: Group, pointer: int) -> None:
        self.group = group
        self.pointer = pointer
        native = group._native
        self.finalizer = group._keep(self, self.pointer, lambda pointer: lib.weft_free(native.value, pointer))

    def check(self) -> None:
        """Before it is given to others, who would not be told that it is gone."""
        if not self.group._native.value:
            raise StateError("the group is closed, and this memory went with it")
        if not self.finalizer.alive:
            raise StateError("this memory was freed")


class Tensor:
    """A dense array in symmetric memory, made by :func:`weft.empty`.

    Every operation of weft takes it as it is; :meth:`numpy`, :meth:`torch` and DLPack give the same memory to
    others without a copy.
    """

    def __init__(self, memory: _Memory, pointer: int, shape: Tuple[int, ...], dtype: DType, rank: int) -> None:
        self._memory = memory
        self._weft_view = _arrays.View(pointer, shape, _arrays.dense_strides(shape), dtype)
        self.rank = rank
        """The rank on whose memory this is a window."""

    @property
    def group(self) -> Group:
        """The group that has the memory."""
        return self._memory.group

    @property
    def shape(self) -> Tuple[int, ...]:
        return self._weft_view.shape

    @property
    def dtype(self) -> str:
        """The name of the element type."""
        return self._weft_view.dtype.name

    @property
    def pointer(self) -> int:
        """The address in this process (on a GPU: on the device)."""
        return self._weft_view.pointer

    @property
    def nbytes(self) -> int:
        return self._weft_view.elements * self._weft_view.dtype.size

    def peer(self, rank: int) -> "Tensor":
        """The same object on another rank: loads and stores reach that rank's memory."""
        if not 0 <= rank < self.group.size:
            raise ArgumentError(f"rank {rank} is not in a group of {self.group.size}")
        mine = self.pointer if self.rank == self.group.rank else self._memory.pointer
        pointer = lib.weft_peer(self.group.handle, mine, rank)
        if not pointer:
            raise UnsupportedError(f"rank {rank} has memory that this rank cannot address")
        return Tensor(self._memory, pointer, self.shape, self._weft_view.dtype, rank)

    def pointers(self) -> List[int]:
        """The object's address on every rank, in rank order: what a kernel of one's own needs."""
        return [self.peer(rank).pointer for rank in range(self.group.size)]

    def peer_table(self) -> "Tensor":
        """The same addresses as int64 in the memory of this rank's GPU, for kernels (Triton, CuPy). For groups on GPUs."""
        table = C.c_void_p()
        mine = self.pointer if self.rank == self.group.rank else self._memory.pointer
        self.group._call(lib.weft_peer_table, mine, C.byref(table))
        return Tensor(self._memory, table.value or 0, (self.group.size,), dtype_of("int64"), self.group.rank)

    def reshape(self, *shape: int) -> "Tensor":
        """The same memory in another shape of as many elements."""
        view = self._weft_view
        out = Tensor(self._memory, view.pointer, tuple(shape), view.dtype, self.rank)
        if out._weft_view.elements != view.elements or any(extent < 0 for extent in shape):
            raise ArgumentError(
                f"{view.shape} has {view.elements} elements, {tuple(shape)} has {out._weft_view.elements}"
            )
        return out

    def _buffer(self) -> Any:
        self._memory.check()
        if self.group.on_gpu:
            raise UnsupportedError("this memory is on a GPU; use torch() or DLPack")
        buffer: Any = (C.c_char * self.nbytes).from_address(self.pointer)
        buffer._weft_memory = self._memory  # what is made of the buffer keeps the memory
        return buffer

    def numpy(self) -> Any:
        """The same memory as a numpy array. bfloat16 comes as uint16 unless ml_dtypes is loaded."""
        import numpy

        dtype = numpy_dtype(self._weft_view.dtype)
        if not self.nbytes:
            return numpy.empty(self.shape, dtype=dtype)
        return numpy.frombuffer(self._buffer(), dtype=dtype).reshape(self.shape)

    def torch(self) -> Any:
        """The same memory as a torch tensor, on the GPU if the group is."""
        import torch

        if self.group.on_gpu:
            return torch.from_dlpack(self)
        if not self.nbytes:
            return torch.empty(self.shape, dtype=torch_dtype(self._weft_view.dtype))
        return torch.frombuffer(self._buffer(), dtype=torch_dtype(self._weft_view.dtype)).reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = self.numpy()
        if dtype is None or dtype == array.dtype:
            return array.copy() if copy else array
        if copy is False:
            raise ValueError(f"an array of {dtype} cannot be this memory, which has {array.dtype}")
        return array.astype(dtype)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _dlpack.device_of(self)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Optional[bool] = None
    ) -> Any:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("symmetric memory is given as it is and where it is; copy what is made of it")
        self._memory.check()
        return _dlpack.capsule_of(self)

    def free(self) -> None:
        """Lets go of the memory now; nothing made of it may be used after. Peers may use it until they free theirs."""
        self.group._give_back(self._memory.finalizer, self._memory.pointer)

    def __deepcopy__(self, memo: Any) -> "Tensor":
        raise TypeError("symmetric memory cannot be copied by one rank alone: weft.empty, on every rank, makes more of it")

    def __repr__(self) -> str:
        whose = "" if self.rank == self.group.rank else f" of rank {self.rank}"
        return f"<weft.Tensor {self.dtype}{list(self.shape)}{whose}, rank {self.group.rank} of {self.group.size}>"


def _extents(shape: Any) -> Tuple[int, ...]:
    try:
        return (index(shape),)
    except TypeError:
        pass
    try:
        return tuple(index(extent) for extent in shape)
    except TypeError:
        raise ArgumentError(f"a shape is an integer or integers, not {shape!r}") from None


def empty(shape: Shape, dtype: Any = "float32", group: Optional[Group] = None) -> Tensor:
    """Collective: an array in symmetric memory, with the same shape and type on every rank (of the world, unless
    a group is given), zeroed."""
    group = group or init()
    extents = _extents(shape)
    if any(extent < 0 for extent in extents):
        raise ArgumentError(f"the shape {extents} has a negative extent")
    kind = dtype_of(dtype)
    size = kind.size
    for extent in extents:
        size *= extent
    memory = _Memory(group, group._alloc(max(size, 1)))
    return Tensor(memory, memory.pointer, extents, kind, group.rank)


class SignalPad:
    """Counts in symmetric memory that kernels on GPUs post and wait for; made by :func:`weft.signal_pad`.

    ``weft.h`` says, at ``weft_signal_pad``, which order a post and a wait promise, and how a wait ends that does not get what
    it waits for.
    """

    def __init__(self, group: Group, count: int) -> None:
        self.native: Any = structs["weft_signal_pad"](size=C.sizeof(structs["weft_signal_pad"]))
        """The ``weft_signal_pad`` of ``weft.h``: what kernels that include ``weft/device.cuh`` take."""
        group._call(lib.weft_signal_pad_create, count, C.byref(self.native))
        memory = _Memory(group, self.native.signals)
        self.group = group
        self.count = count
        self.signals = Tensor(memory, self.native.signals, (count, 16), dtype_of("int64"), group.rank)
        """This rank's: signal i is the first of row i."""
        self.record = Tensor(memory, self.native.record, (8,), dtype_of("int32"), group.rank)
        """``weft_signal_record``; right behind the signals, on every rank. Its first word ends waits."""

    def peer_table(self) -> Tensor:
        """Where every rank has its signals, as :meth:`Tensor.peer_table`."""
        return self.signals.peer_table()

    def wait(self, stream: int = 0) -> None:
        """Waits until a CUDA stream (the default one unless given) has passed everything on it, looking after the peers;
        raises what went wrong in the kernels' waits."""
        self.group._call(lib.weft_signal_pad_wait, C.byref(self.native), stream)


def signal_pad(count: int, group: Optional[Group] = None) -> SignalPad:
    """Collective: ``count`` signals on every rank of a group on GPUs, all 0."""
    return SignalPad(group or init(), count)


__all__ = ["SignalPad", "Tensor", "empty", "signal_pad"]
