"""Has torch's compiler run what is not a layer as it is.

Where a graph breaks, the compiler looks at every Python function that runs until the next one begins: kernels of operators among them,
with the backend behind them, which speak to the library by ctypes and have nothing to compile. A mark on their code, which the
compiler reads in C, costs a call nothing; what a marked function calls is run as it is too.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch._C._dynamo.eval_frame import (  # type: ignore[import-not-found]
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)

_AS_IT_IS = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)


def _mark(code: CodeType) -> None:
    """A function's code, and that of functions and classes that it makes."""
    set_code_exec_strategy(code, _AS_IT_IS)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _mark(inner)


def run_as_it_is(module: ModuleType) -> None:
    """Marks the functions of a module and the methods of its classes."""

    def mark_all(owner: Any) -> None:
        for value in vars(owner).values():
            for function in (getattr(value, "__func__", value), getattr(value, "fget", None)):
                if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                    _mark(function.__code__)
            if inspect.isclass(value) and value.__module__ == module.__name__ and owner is module:
                mark_all(value)

    mark_all(module)


__all__ = ["run_as_it_is"]
