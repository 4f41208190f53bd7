"""Operators of mixture of experts: ``torch.ops.weft.moe_dispatch``, ``moe_combine``, ``moe_forward``.

On CPU tensors, and on CUDA tensors for a layer of a group on GPUs, in torch's current stream. There ``moe_dispatch`` waits for the
round, because it returns as many rows as came. ``moe_forward`` waits for nothing and can be captured in CUDA graphs; a routing that
cannot be right is raised by the layer's next dispatch, or by ``group.wait()``.

Each takes the name of its layer last (:func:`layer_name`), and every rank calls them in the same order::

    rows, counts, entry_weight, round = ops.moe_dispatch(x, expert, weight, None, layer)
    results = torch.cat([f(part) for f, part in zip(experts, rows.split(counts.tolist()))])
    y = ops.moe_combine(results, expert, weight, entry_weight, round, layer)

``rows`` are what came here, expert by expert, as many of each as ``counts`` says, which is on the CPU; ``y[t]`` is the sum of ``weight[t, k]`` times the result of expert
``expert[t, k]``. The two are each other's gradients. They are functions of their arguments: a combine whose dispatch is the
layer's last one ends that round, any other sends the routing again first.
"""

from __future__ import annotations

import ctypes as C
import itertools
import weakref
from operator import sub
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .._library import quick, structs
from ..errors import ArgumentError
from ..moe import FeedForward, MoE
from . import _cuda
from ._forms import MOST, Form, _empty_strided_cpu, maker
from ._quick import quicken
from .ops import _alike, _define, _differentiable, _ops

_layers: "weakref.WeakValueDictionary[str, _Layer]" = weakref.WeakValueDictionary()
_experts: "weakref.WeakValueDictionary[str, FeedForward]" = weakref.WeakValueDictionary()
_numbers = itertools.count()
_View = structs["weft_moe_view"]
_LANE = C.c_int(0)  # all that the operators use of a layer
_gather = quick.weft_moe_gather


class _Layer:
    """What the operators keep of a layer: the round that is open, and the way back for gradients of weights."""

    def __init__(self, moe: MoE) -> None:
        self.name = ""
        self.moe: Any = weakref.proxy(moe)
        self.sent = moe._sent
        self.last = 0  # number of the last round; backward's own are odd
        self.open: Optional[int] = None
        self.entries = 0  # of the local experts
        self.tokens = 0
        self.device = torch.device("cpu")
        self.weights: Optional[MoE] = None

    def on(self, x: Tensor) -> Any:
        """The layer, for calls on this tensor."""
        if x.is_cuda:
            _cuda.ready(self.moe.group, x)
        elif self.moe.group.on_gpu:
            raise ArgumentError(f"a tensor is on {x.device}, and the layer's group on GPUs")
        return self.moe

    def send(self, x: Tensor, expert: Tensor, weight: Optional[Tensor], number: int) -> Tuple[Any, List[int]]:
        """Begins a round: the library's view of it, and where the local experts' entries begin."""
        self.close()
        unit = torch.ones_like(expert, dtype=torch.float32) if weight is None else weight
        moe = self.on(x)
        view = moe._dispatch(x.contiguous(), expert.contiguous(), unit.contiguous(), 0)
        offset = moe._read(view.offset, C.c_int64, view.experts + 1)
        self.entries, self.open, self.tokens, self.device = offset[-1], number, x.shape[0], x.device
        return view, offset

    def gather(self, like: Tensor) -> Tensor:
        """The rows that came, entry after entry."""
        rows = like.new_empty(self.entries, like.shape[1])
        if rows.shape[0]:
            self.moe.group._call_on(_gather, self.moe._moe, 0, None, rows.data_ptr())
        return rows

    def bring(self, results: Tensor) -> Tensor:
        moe = self.on(results)
        self.open = None
        return moe.combine(results.contiguous())

    def close(self) -> None:
        """Ends a round that nobody combined. Every rank has it open, or none."""
        if self.open is not None:
            self.bring(torch.zeros(self.entries, self.moe.hidden, dtype=_dtype(self.moe), device=self.device))


def _dtype(moe: MoE) -> torch.dtype:
    return getattr(torch, moe.dtype.name)


def layer_name(moe: MoE) -> str:
    """The name by which the operators know a layer, while it lives."""
    layer = getattr(moe, "_torch_layer", None)
    if layer is None:
        layer = moe._torch_layer = _Layer(moe)  # type: ignore[attr-defined]
        layer.name = f"moe{next(_numbers)}"
        _layers[layer.name] = layer
    return layer.name


def experts_name(experts: FeedForward) -> str:
    """The name by which ``moe_forward`` knows packed experts, while they live."""
    name = getattr(experts, "_torch_name", None)
    if name is None:
        name = experts._torch_name = f"experts{next(_numbers)}"  # type: ignore[attr-defined]
        _experts[name] = experts
    return name


def _layer(name: str) -> _Layer:
    layer = _layers.get(name)
    if layer is None:
        raise ArgumentError(f"no layer is named '{name}'; weft.torch.layer_name(moe) names one, while it lives")
    return layer


def _no_experts(name: str) -> ArgumentError:
    return ArgumentError(f"no experts are named '{name}'; weft.torch.experts_name(experts) names some, while they live")


# ---- operators ----------------------------------------------------------------------------------------------


def _dispatch(
    x: Tensor, expert: Tensor, weight: Optional[Tensor], round: Optional[Tensor], layer: str
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    it = _layer(layer)
    if round is None:
        it.last += 2
        round = torch.tensor(it.last)
    view, offset = it.send(x, expert, weight, int(round))
    counts = torch.tensor([b - a for a, b in zip(offset, offset[1:])], dtype=torch.int64)
    entry_weight = x.new_empty(it.entries, dtype=torch.float32)
    if it.entries:
        it.moe.group._call(quick.weft_memcpy, entry_weight.data_ptr(), view.entry_weight, 4 * it.entries)
    return it.gather(x), counts, entry_weight, round.clone()


def _dispatch_fake(x: Any, expert: Any, weight: Any, round: Any, layer: str) -> Any:
    rows = torch.library.get_ctx().new_dynamic_size()
    counts = len(_layer(layer).moe.local_experts)
    return (
        x.new_empty(rows, x.shape[1]),
        torch.empty(counts, dtype=torch.int64, device="cpu"),
        x.new_empty(rows, dtype=torch.float32),
        torch.empty((), dtype=torch.int64, device="cpu"),
    )


def _combine(
    results: Tensor, expert: Tensor, weight: Optional[Tensor], entry_weight: Tensor, round: Tensor, layer: str
) -> Tensor:
    it = _layer(layer)
    if it.open != int(round):
        it.send(results.new_zeros(expert.shape[0], it.moe.hidden), expert, weight, int(round))
    elif it.tokens != expert.shape[0]:
        raise ArgumentError(f"weft::moe_combine: {expert.shape[0]} tokens; {it.tokens} were dispatched")
    if results.shape[0] != it.entries:
        raise ArgumentError(f"weft::moe_combine: {results.shape[0]} results; {it.entries} rows came")
    return it.bring(results)


def _combine_fake(results: Any, expert: Any, weight: Any, entry_weight: Any, round: Any, layer: str) -> Any:
    return results.new_empty(expert.shape[0], results.shape[1])


def _weights_back(along: Tensor, expert: Tensor, counts: Tensor, layer: str) -> Tensor:
    """What was found for each entry, at the expert's rank, brought to its token and place: in a row with a column for
    every expert."""
    it = _layer(layer)
    own = it.moe
    if it.weights is None:
        it.weights = MoE(own.group, own.experts, own.topk, own.experts, own.tokens, "float32")
    back, device = it.weights, along.device
    it.on(along)
    back.dispatch(
        torch.zeros(expert.shape[0], back.hidden, device=device),
        expert.contiguous(),
        torch.ones(expert.shape, device=device),
    )
    rows = torch.zeros(along.shape[0], back.hidden, device=device)
    ids = torch.tensor(own.local_experts, dtype=torch.int64).repeat_interleave(counts).to(device)
    rows[torch.arange(along.shape[0], device=device), ids] = along
    found = back.combine(rows).gather(1, expert.long().clamp(min=0))
    return torch.where(expert >= 0, found, 0)


class _Call(Form):
    """A call of a layer, with everything ready but addresses."""

    begins = False  # a round

    def __init__(self, function: Any, it: _Layer, like: Tensor) -> None:
        super().__init__(function, it.moe.group, like)
        self.layer, self.moe = weakref.ref(it), it.moe._moe
        self.handle = C.c_void_p(self.moe)  # as a call takes it

    def ready(self) -> Any:
        it, group = self.layer(), self.group()
        if it is None or group is None or self.moe not in group._native.made:
            return None
        if self.begins and it.open is not None:
            it.close()
        return group


class _Send(_Call):
    """A call that begins a round, of so many tokens."""

    begins = True

    def __init__(self, function: Any, it: _Layer, x: Tensor, expert: Tensor, weight: Tensor) -> None:
        super().__init__(function, it, x)
        self.first, self.tokens = it.moe._input(x, expert, weight)
        self.spare: List[Any] = []  # inputs and views that no call has in use, as products have their operands

    def take(self, x: Tensor, expert: Tensor, weight: Tensor) -> Tuple[Any, Any, Any, Any]:
        """An input with these tensors and a view, each with how a call takes it."""
        if self.spare:
            taken = self.spare.pop()
        else:
            own, view = type(self.first).from_buffer_copy(self.first), _View(size=C.sizeof(_View))
            taken = own, C.byref(own), view, C.byref(view)
        given = taken[0]
        given.x, given.expert, given.weight = x.data_ptr(), expert.data_ptr(), weight.data_ptr()
        return taken


class _Dispatch(_Send):
    """``moe_dispatch`` on the CPU, of a round that is not backward's own."""

    def __init__(self, it: _Layer, x: Tensor, expert: Tensor, weight: Tensor) -> None:
        super().__init__(quick.weft_moe_dispatch, it, x, expert, weight)
        self.dtype, self.hidden, self.device = x.dtype, x.shape[1], x.device
        self.here = len(it.moe.local_experts)
        self.words, self.offsets = C.c_int64 * self.here, C.c_int64 * (self.here + 1)

    def run(self, group: Any, x: Tensor, expert: Tensor, weight: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        it: Any = self.layer()
        taken = self.take(x, expert, weight)
        view = taken[2]
        it.last = number = it.last + 2
        group._call_on(self.function, self.handle, _LANE, taken[1], taken[3])
        it.sent[0] = self.tokens, x
        offset = self.offsets.from_address(view.offset)[:]
        it.entries = entries = offset[-1]
        it.open, it.tokens, it.device, weights = number, self.tokens, self.device, view.entry_weight
        self.spare.append(taken)
        rows = _empty_strided_cpu((entries, self.hidden), (self.hidden, 1), self.dtype)
        entry_weight = _empty_strided_cpu((entries,), (1,), torch.float32)
        if entries:
            C.memmove(entry_weight.data_ptr(), weights, 4 * entries)
            group._call_on(_gather, self.handle, _LANE, None, rows.data_ptr())
        counts, round = _empty_strided_cpu((self.here,), (1,), torch.int64), _empty_strided_cpu((), (), torch.int64)
        if self.here:
            self.words.from_address(counts.data_ptr())[:] = list(map(sub, offset[1:], offset))
        C.c_int64.from_address(round.data_ptr()).value = number
        return rows, counts, entry_weight, round


class _Combine(_Call):
    """``moe_combine`` on the CPU."""

    def __init__(self, it: _Layer, results: Tensor, tokens: int) -> None:
        super().__init__(quick.weft_moe_combine, it, results)
        self.tokens, self.new = tokens, maker((tokens, it.moe.hidden), results)

    def run(self, group: Any, results: Tensor, expert: Tensor, weight: Tensor, entry_weight: Tensor, round: Tensor) -> Tensor:
        it: Any = self.layer()
        asked = it.open, it.tokens, it.entries
        if asked != (C.c_int64.from_address(round.data_ptr()).value, self.tokens, results.shape[0]):
            return _combine(results, expert, weight, entry_weight, round, it.name)
        it.open = None
        out = self.new()
        group._call_on(self.function, self.handle, _LANE, results.data_ptr(), None, out.data_ptr())
        it.sent.pop(0, None)
        return out


class _DispatchKernel:
    """The kernel of ``moe_dispatch``."""

    arguments, tensors = 5, 3

    def form_of(self, x: Tensor, expert: Tensor, weight: Tensor, round: Optional[Tensor], layer: str) -> Any:
        """The form of a call that was made; None for backward's own, for one on a GPU and with tensors that have gaps."""
        it = _layers.get(layer)
        if it is None or round is not None or not _plain(it, x, expert, weight):
            return None
        return _Dispatch(it, x, expert, weight)

    __call__ = staticmethod(_dispatch)


class _CombineKernel:
    """The kernel of ``moe_combine``."""

    arguments, tensors = 6, 5

    def form_of(
        self, results: Tensor, expert: Tensor, weight: Tensor, entry_weight: Tensor, round: Tensor, layer: str
    ) -> Any:
        """As that of ``moe_dispatch``."""
        it = _layers.get(layer)
        return _Combine(it, results, expert.shape[0]) if it is not None and _plain(it, results) and round.is_cpu else None

    __call__ = staticmethod(_combine)


def _plain(it: _Layer, *tensors: Tensor) -> bool:
    """Of a layer on the CPU, in its type, without gaps."""
    return tensors[0].dtype == _dtype(it.moe) and all(t.is_cpu and t.is_contiguous() for t in tensors)


class _Forward(_Send):
    """A round of so many tokens, through the experts of a layer."""

    def __init__(self, it: _Layer, packed: FeedForward, x: Tensor, expert: Tensor, weight: Tensor) -> None:
        super().__init__(quick.weft_moe_forward, it, x, expert, weight)
        self.experts, self.name = weakref.ref(packed), experts_name(packed)
        self.new = maker((self.tokens, it.moe.hidden), x)
        self.pointer = C.byref(packed._expert)

    def run(self, group: Any, x: Tensor, expert: Tensor, weight: Tensor) -> Tensor:
        """The round."""
        packed = self.experts()  # nobody gives them back while the call lasts
        if packed is None:
            raise _no_experts(self.name)
        if self.cuda:
            _cuda.ready(group, x)
        taken, out = self.take(x, expert, weight), self.new()
        group._call_on(self.function, self.handle, _LANE, taken[1], self.pointer, out.data_ptr())
        self.spare.append(taken)
        return out


class _ForwardKernel:
    """The kernel of ``moe_forward``."""

    arguments, tensors = 5, 3

    def __init__(self) -> None:
        self.forms: Dict[Any, _Forward] = {}

    def form_of(self, x: Tensor, expert: Tensor, weight: Tensor, experts: str, layer: str) -> Any:
        """The form of a call that was made; None for one with tensors that have gaps."""
        it, packed = _layers.get(layer), _experts.get(experts)
        if it is None or packed is None or not all(t.is_contiguous() for t in (x, expert, weight)):
            return None
        if x.dtype != _dtype(it.moe):
            return None
        key = x.shape, experts, layer
        form = self.forms.get(key)
        if form is None:
            if len(self.forms) >= MOST:
                self.forms.clear()
            form = self.forms[key] = _Forward(it, packed, x, expert, weight)
        return form

    def __call__(self, x: Tensor, expert: Tensor, weight: Tensor, experts: str, layer: str) -> Tensor:
        it, packed = _layer(layer), _experts.get(experts)
        if packed is None:
            raise _no_experts(experts)
        it.close()
        return it.on(x).forward(x.contiguous(), expert.contiguous(), weight.contiguous(), packed)


_DISPATCH, _COMBINE, _FORWARD = _DispatchKernel(), _CombineKernel(), _ForwardKernel()
_define(
    "moe_dispatch",
    "(Tensor x, Tensor expert, Tensor? weight, Tensor? round, str layer) -> (Tensor, Tensor, Tensor, Tensor)",
    _DISPATCH,
    _dispatch_fake,
)
_define(
    "moe_combine",
    "(Tensor results, Tensor expert, Tensor? weight, Tensor entry_weight, Tensor round, str layer) -> Tensor",
    _COMBINE,
    _combine_fake,
)
_define(
    "_moe_weights_back",
    "(Tensor along, Tensor expert, Tensor counts, str layer) -> Tensor",
    _weights_back,
    lambda along, expert, counts, layer: along.new_empty(expert.shape, dtype=torch.float32),
)
def _first_only(x: Tensor, results: Tensor, weight: Tensor) -> Tensor:
    """A first derivative of what results and weights make, of which there is no second one."""
    return x.clone(memory_format=torch.contiguous_format)


_define("_moe_first_only", "(Tensor x, Tensor results, Tensor weight) -> Tensor", _first_only, _alike)
_define(
    "moe_forward",
    "(Tensor x, Tensor expert, Tensor weight, str experts, str layer) -> Tensor",
    _FORWARD,
    lambda x, expert, weight, experts, layer: torch.empty_like(x, memory_format=torch.contiguous_format),
)
for _op, _kernel in ((_ops.moe_dispatch, _DISPATCH), (_ops.moe_combine, _COMBINE), (_ops.moe_forward, _FORWARD)):
    quicken(_op, _kernel)

# ---- gradients ----------------------------------------------------------------------------------------------


def _dispatch_keep(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[1], output[2], output[3])
    ctx.layer = inputs[-1]
    ctx.mark_non_differentiable(*output[1:])


def _dispatch_backward(ctx: Any, grad: Tensor, *_: Any) -> Tuple[Optional[Tensor], ...]:
    """Ends the round that the gradient of combine began, if it did."""
    expert, entry_weight, round = ctx.saved_tensors
    return _ops.moe_combine(grad, expert, None, entry_weight, round + 1, ctx.layer), None, None, None, None


def _combine_keep(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    results, expert, weight, entry_weight, round, ctx.layer = inputs
    ctx.save_for_backward(results, expert, weight, entry_weight, round)


def _combine_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    results, expert, weight, entry_weight, round = ctx.saved_tensors
    rows, counts, _, _ = _ops.moe_dispatch(grad, expert, None, round + 1, ctx.layer)
    for_results, for_weight = rows * entry_weight[:, None].to(rows.dtype), None
    if ctx.needs_input_grad[2]:
        along = (rows.float() * results.float()).sum(1).detach()
        for_weight = _ops._moe_weights_back(along, expert, counts, ctx.layer)
        if torch.is_grad_enabled():
            for_results, for_weight = (_ops._moe_first_only(d, results, weight) for d in (for_results, for_weight))
    return for_results, None, for_weight, None, None, None


def _no_second(ctx: Any, grad: Tensor) -> Any:
    raise NotImplementedError("weft::moe_combine has no second derivative where weights have a first one")


_differentiable("moe_dispatch", _DISPATCH, _dispatch_keep, _dispatch_backward)
_differentiable("moe_combine", _COMBINE, _combine_keep, _combine_backward)
_differentiable("_moe_first_only", _first_only, lambda ctx, inputs, output: None, _no_second)

__all__ = ["experts_name", "layer_name"]
