"""DLPack: symmetric memory handed to any array library, without a copy and without numpy or torch."""

from __future__ import annotations

import ctypes as C
from typing import Any, Dict, Tuple


class _Device(C.Structure):
    _fields_ = [("type", C.c_int), ("id", C.c_int)]


class _Type(C.Structure):
    _fields_ = [("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16)]


class _DLTensor(C.Structure):
    _fields_ = [
        ("data", C.c_void_p),
        ("device", _Device),
        ("ndim", C.c_int),
        ("dtype", _Type),
        ("shape", C.POINTER(C.c_int64)),
        ("strides", C.POINTER(C.c_int64)),
        ("byte_offset", C.c_uint64),
    ]


class _Managed(C.Structure):
    pass


_Deleter = C.CFUNCTYPE(None, C.POINTER(_Managed))
_Managed._fields_ = [("tensor", _DLTensor), ("context", C.c_void_p), ("deleter", _Deleter)]

_CPU, _CUDA = 1, 2
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6, "float8_e4m3fn": 10, "float8_e5m2": 12}
_lent: Dict[int, Tuple[Any, ...]] = {}  # what consumers still hold, by the address of its managed tensor


@_Deleter
def _give_back(managed: Any) -> None:
    _lent.pop(C.addressof(managed.contents), None)


_NAME = b"dltensor"
_new = C.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = C.py_object, [C.c_void_p, C.c_char_p, C.c_void_p]
_is_valid = C.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = C.c_int, [C.c_void_p, C.c_char_p]
_pointer = C.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = C.c_void_p, [C.c_void_p, C.c_char_p]


@C.CFUNCTYPE(None, C.c_void_p)
def _unused(capsule: int) -> None:
    """The end of a capsule that nobody took: one that was taken has another name by then."""
    if _is_valid(capsule, _NAME):
        _lent.pop(_pointer(capsule, _NAME), None)


def device_of(tensor: Any) -> Tuple[int, int]:
    """(device type, device number) as DLPack counts them."""
    if not tensor.group.on_gpu:
        return _CPU, 0
    import torch

    return _CUDA, torch.cuda.current_device()


def capsule_of(tensor: Any) -> Any:
    """A DLPack capsule; the memory lives as long as whoever takes it."""
    view = tensor._weft_view
    shape = (C.c_int64 * max(len(view.shape), 1))(*view.shape)
    strides = (C.c_int64 * max(len(view.shape), 1))(*view.strides)
    name = "uint8" if view.dtype.name == "byte" else view.dtype.name
    managed = _Managed()
    managed.tensor.data = view.pointer
    managed.tensor.device = _Device(*device_of(tensor))
    managed.tensor.ndim = len(view.shape)
    code = _CODES[name] if name in _CODES else _CODES[name.rstrip("0123456789")]
    managed.tensor.dtype = _Type(code, view.dtype.size * 8, 1)
    managed.tensor.shape, managed.tensor.strides = shape, strides
    managed.deleter = _give_back
    _lent[C.addressof(managed)] = (managed, shape, strides, tensor._memory)
    return _new(C.addressof(managed), _NAME, C.cast(_unused, C.c_void_p))
