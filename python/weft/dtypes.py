"""Element types: their names here, in numpy and in torch, and the library's codes for them."""

from __future__ import annotations

import sys
from typing import Any, Dict, NamedTuple

from ._library import constants


class DType(NamedTuple):
    """An element type: its name (that of numpy and torch), its code in weft.h and its size."""

    name: str
    code: int
    size: int


_KNOWN = [
    ("float32", "WEFT_F32", 4),
    ("float16", "WEFT_F16", 2),
    ("bfloat16", "WEFT_BF16", 2),
    ("int8", "WEFT_I8", 1),
    ("int32", "WEFT_I32", 4),
    ("int64", "WEFT_I64", 8),
    ("float64", "WEFT_F64", 8),
    ("uint8", "WEFT_U8", 1),
    ("bool", "WEFT_BOOL", 1),
    ("byte", "WEFT_BYTE", 1),
    ("float8_e4m3fn", "WEFT_FP8_E4M3", 1),
    ("float8_e5m2", "WEFT_FP8_E5M2", 1),
]
BY_NAME: Dict[str, DType] = {name: DType(name, constants[c], size) for name, c, size in _KNOWN if c in constants}
BY_NAME.setdefault("uint8", BY_NAME["byte"])
BY_CODE: Dict[int, DType] = {d.code: d for d in BY_NAME.values()}
_SHORT = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}


def dtype_of(what: Any) -> DType:
    """The type that a name, a numpy dtype, a torch dtype or a ``DType`` stands for."""
    if isinstance(what, DType):
        return what
    name = (
        what if isinstance(what, str) else getattr(what, "name", None) or getattr(what, "__name__", None) or str(what)
    )
    name = name.rpartition(".")[2]
    name = _SHORT.get(name, name)
    try:
        return BY_NAME[name]
    except KeyError:
        raise TypeError(f"weft knows no element type '{name}'; it knows {', '.join(BY_NAME)}") from None


def result_dtype(dtype: DType) -> DType:
    """What a product of this type gives where nobody says: int32 of int8, bfloat16 of fp8, else itself."""
    if dtype.name == "int8":
        return BY_NAME["int32"]
    return BY_NAME["bfloat16"] if dtype.name.startswith("float8") else dtype


def numpy_dtype(dtype: DType) -> Any:
    """The numpy dtype. bfloat16 and fp8 are ml_dtypes' where that is loaded, else the bits as uint16 or uint8."""
    import numpy

    if dtype.name == "bfloat16":
        ml_dtypes = sys.modules.get("ml_dtypes")
        return numpy.dtype(ml_dtypes.bfloat16 if ml_dtypes else numpy.uint16)
    if dtype.name.startswith("float8"):
        ml_dtypes = sys.modules.get("ml_dtypes")
        return numpy.dtype(getattr(ml_dtypes, dtype.name) if ml_dtypes else numpy.uint8)
    return numpy.dtype("uint8" if dtype.name == "byte" else dtype.name)


def torch_dtype(dtype: DType) -> Any:
    """The torch dtype."""
    import torch

    return getattr(torch, "uint8" if dtype.name == "byte" else dtype.name)
