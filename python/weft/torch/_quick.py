"""Operators called without a way through torch's dispatcher, which costs more than a small product.

An operator remembers calls that it has made: what its tensors were (type, dispatch keys, device, dtype, sizes, strides, whether
a gradient is asked for) and the form that served them. torch compares all of that in one step, the guard that its compiler
uses, with what this thread adds to dispatch keys: a mode, a transform, a tracer, autocast or a subclass make another call of it.
A call that is like a remembered one runs its form; any other goes through the dispatcher.

What remembers is the operator itself (``torch.ops.weft.gemm`` and its ``default``), so that users call nothing else.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Set, Tuple

import torch
from torch import Tensor
from torch._C import _dispatch_keys  # type: ignore[attr-defined]
from torch._C import _dispatch_tls_local_exclude_set as _excluded  # type: ignore[attr-defined]
from torch._C import _dispatch_tls_local_include_set as _included  # type: ignore[attr-defined]
from torch._C import _len_torch_function_stack as _function_modes  # type: ignore[attr-defined]
from torch._C._autograd import _profiler_enabled as _profiled  # type: ignore[attr-defined]
from torch._C._dynamo.guards import TensorGuards  # type: ignore[import-not-found]
from torch.autograd import forward_ad

_grad_enabled = torch.is_grad_enabled
PLAIN = (Tensor, torch.nn.Parameter)
_MOST = 4096  # calls that an operator remembers

_ordinary: Set[Tuple[int, int]] = set()
"""What threads add to dispatch keys, and take from them, where nobody looks on."""


def _state() -> Tuple[int, int]:
    return _included().raw_repr(), _excluded().raw_repr()


def _find_ordinary() -> None:
    _ordinary.add(_state())
    with torch.inference_mode():
        _ordinary.add(_state())


_thread = threading.Thread(target=_find_ordinary)  # one of its own: this one may be anywhere
_thread.start()
_thread.join()


def _is_plain(x: Any) -> bool:
    """Whether there is nothing about a tensor but memory, sizes and strides."""
    if type(x) not in PLAIN:
        return False
    with torch.inference_mode(False):
        kinds = {_dispatch_keys(torch.empty(0, device=x.device)).raw_repr()}
    with torch.inference_mode():
        kinds.add(_dispatch_keys(torch.empty(0, device=x.device)).raw_repr())
    return _dispatch_keys(x).raw_repr() in kinds


class Call:
    """A call that was made: its guard, what it was given besides tensors, and its form."""

    __slots__ = ("check", "tensors", "rest", "form", "grads")

    def __init__(self, inputs: Tuple[Any, ...], tensors: int, rest: Tuple[Any, ...], form: Any) -> None:
        given = inputs[:tensors]
        sizes: Any = [list(x.shape) for x in given]
        strides: Any = [list(x.stride()) for x in given]
        self.check = TensorGuards(*given, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        self.tensors, self.rest, self.form = tensors, rest, form
        self.grads = any(x.requires_grad for x in given)  # it was made where gradients were off, and serves only there


def _remember(calls: Dict[Any, Call], key: Any, inputs: Tuple[Any, ...], tensors: int, most: int, kernel: Any) -> None:
    """After a call through the dispatcher that asked for no gradient."""
    if _state() not in _ordinary:
        return
    form = kernel.form_of(*inputs)
    if form is None or not all(_is_plain(x) for x in inputs[:tensors]):
        return
    for call in form.calls:  # the same with another key
        if call.tensors == tensors and call.check(*inputs[:tensors]):
            break
    else:
        call = Call(inputs, tensors, inputs[most:], form)
        form.calls = [call, *form.calls[:7]]
    if len(calls) >= _MOST:
        calls.clear()
    calls[key] = call


def _of_two(kernel: Any, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """For operators that begin with two matrices and perhaps a vector. The second is usually a weight, which stays."""
    calls: Dict[int, Call] = {}
    count = kernel.arguments

    def __call__(op: Any, /, *inputs: Any, **named: Any) -> Any:
        if len(inputs) != count:
            return otherwise(op, *inputs, **named)
        a, b, bias = inputs[:3]
        call = calls.get(id(b))
        if call is not None and call.rest == inputs[3:] and not _function_modes() and not _profiled() and forward_ad._current_level < 0:
            if (call.tensors == 2 and call.check(a, b)) if bias is None else (call.tensors == 3 and call.check(a, b, bias)):
                group = None if call.grads and _grad_enabled() else call.form.ready()
                if group is not None:
                    return call.form.run(group, a, b, bias)
        out = otherwise(op, *inputs, **named)
        if not out.requires_grad:
            _remember(calls, id(b), inputs, 2 if bias is None else 3, 3, kernel)
        return out

    return __call__


def _of_shape(kernel: Any, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """For operators that begin with some tensors, of which the first one says how large they are."""
    calls: Dict[Any, Call] = {}
    count, tensors = kernel.arguments, kernel.tensors

    def __call__(op: Any, /, *inputs: Any, **named: Any) -> Any:
        if len(inputs) != count or type(inputs[0]) not in PLAIN:
            return otherwise(op, *inputs, **named)
        given = inputs[:tensors]
        key = given[0].shape, inputs[tensors:]
        call = calls.get(key)
        if call is not None and call.check(*given) and not _function_modes() and not _profiled() and forward_ad._current_level < 0:
            group = None if call.grads and _grad_enabled() else call.form.ready()
            if group is not None:
                return call.form.run(group, *given)
        out = otherwise(op, *inputs, **named)
        if not (given[0] if out is None else out[0] if type(out) is tuple else out).requires_grad:
            _remember(calls, key, inputs, tensors, tensors, kernel)
        return out

    return __call__


def quicken(packet: Any, kernel: Any) -> None:
    """Lets an operator remember its calls.

    ``kernel.form_of(*inputs)`` is the form that serves them, or None; ``form.ready()`` its group, or None where the form serves no
    more; ``form.run(group, *tensors)`` the call. ``kernel.arguments`` is how many the operator takes, ``kernel.tensors`` how many
    of them are tensors at its beginning, or 0 for two matrices and perhaps a vector.
    """
    for op in (packet, packet.default):
        kind = type(op)
        make = _of_shape if kernel.tensors else _of_two
        op.__class__ = type(kind.__name__, (kind,), {"__call__": make(kernel, kind.__call__), "__module__": kind.__module__})


__all__ = ["PLAIN", "quicken"]
