"""Finds libweft and its header, and calls it.

An installed package has both inside (``_lib/``). In a clone of the repository they are taken from where the
build and the sources have them. ``WEFT_LIBRARY`` names another libweft.so, beside its header or in the build folder of a clone.
"""

from __future__ import annotations

import ctypes as C
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Sequence, Tuple

from . import _header
from .errors import BY_STATUS, Error

_HERE = Path(__file__).resolve().parent
_CLONE = _HERE.parent.parent


def _find() -> Tuple[Path, Path]:
    named = os.environ.get("WEFT_LIBRARY")
    libraries = [Path(named)] if named else [_HERE / "_lib" / "libweft.so", _CLONE / "build" / "libweft.so"]
    for library in libraries:
        if library.is_file():
            beside, clone = library.parent / "weft.h", library.parent.parent / "include" / "weft" / "weft.h"
            for header in (beside, clone, _HERE / "_lib" / "weft.h", _CLONE / "include" / "weft" / "weft.h"):
                if header.is_file():
                    return library, header
    raise ImportError(f"weft: no libweft.so with its weft.h at {' or '.join(map(str, libraries))}; `make` builds it")


library_path, header_path = _find()
interface = _header.read(header_path.read_text())
constants = interface.constants
structs = interface.structs
quick: Any = C.CDLL(str(library_path))
"""The functions as ctypes calls them: for integers that a tensor or the header has, not for those that a user gives."""
lib: Any = SimpleNamespace()
"""The functions. An integer that C's type cannot hold is an ArgumentError, not its remainder."""


def _checked(symbol: Any, function: _header.Function) -> Any:
    numbers = [
        (place, f"{function.name}: {argument}", *_header.LIMITS[kind])
        for place, (argument, kind) in enumerate(zip(function.argnames, function.argtypes))
        if kind in _header.LIMITS
    ]

    def call(*arguments: Any) -> Any:
        for place, what, least, most in numbers:
            _header.check_number(what, arguments[place], least, most)
        return symbol(*arguments)

    return call if numbers else symbol


def number(kind: Any, value: Any, what: str) -> Any:
    """An integer as a call takes it."""
    _header.check_number(what, value, *_header.LIMITS[kind])
    return kind(value)


def array(kind: Any, values: Sequence[Any], what: str) -> Any:
    """Integers one after the other in memory, as C takes them; at least one place."""
    return (kind * max(len(values), 1))(*(number(kind, v, f"{what}[{i}]") for i, v in enumerate(values)))


def _bind() -> None:
    missing = []
    for name, function in interface.functions.items():
        try:
            symbol = getattr(quick, name)
        except AttributeError:
            missing.append(name)
            continue
        symbol.restype = function.restype
        symbol.argtypes = function.argtypes
        setattr(lib, name, _checked(symbol, function))
    if missing:
        raise ImportError(f"weft: {library_path} is not the library of {header_path}: it lacks {', '.join(missing)}")


_bind()

_ERRORS = {constants[name]: kind for name, kind in BY_STATUS.items() if name in constants}


def error_of(status: int, handle: Any = None) -> Error:
    """The exception of a status, with the sentence of a group's handle (or of this thread's last call)."""
    sentence = lib.weft_error(handle).decode(errors="replace") or lib.weft_status_text(status).decode()
    error = _ERRORS.get(status, Error)(sentence)
    error.status = status
    return error


def check(status: int, handle: Any = None) -> None:
    """Raises the exception of a status that is not WEFT_OK."""
    if status:
        raise error_of(status, handle)


def version() -> str:
    """The library's version."""
    return lib.weft_version().decode()
