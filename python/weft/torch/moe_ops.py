"""Operators of mixture of experts: ``torch.ops.weft.moe_dispatch``, ``moe_combine``, ``moe_forward``, on CPU tensors.

Each takes the name of its layer last (:func:`layer_name`), and every rank calls them in the same order::

    rows, counts, entry_weight, round = ops.moe_dispatch(x, expert, weight, None, layer)
    results = torch.cat([f(part) for f, part in zip(experts, rows.split(counts.tolist()))])
    y = ops.moe_combine(results, expert, weight, entry_weight, round, layer)

``rows`` are what came here, expert by expert; ``y[t]`` is the sum of ``weight[t, k]`` times the result of expert
``expert[t, k]``. The two are each other's gradients. They are functions of their arguments: a combine whose dispatch is the
layer's last one ends that round, any other sends the routing again first.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..moe import FeedForward, MoE
from .ops import _define, _differentiable, _ops

_layers: "weakref.WeakValueDictionary[str, _Layer]" = weakref.WeakValueDictionary()
_experts: "weakref.WeakValueDictionary[str, FeedForward]" = weakref.WeakValueDictionary()
_numbers = itertools.count()


class _Layer:
    """What the operators keep of a layer: the round that is open, and the way back for gradients of weights."""

    def __init__(self, moe: MoE) -> None:
        self.name = ""
        self.moe: Any = weakref.proxy(moe)
        self.last = 0  # number of the last round; backward's own are odd
        self.open: Optional[int] = None
        self.start: List[int] = []
        self.tokens = 0
        self.weights: Optional[MoE] = None

    def send(self, x: Tensor, expert: Tensor, weight: Optional[Tensor], number: int) -> Any:
        self.close()
        unit = torch.ones(expert.shape, dtype=torch.float32) if weight is None else weight.contiguous()
        received = self.moe.dispatch(x.contiguous(), expert.contiguous(), unit)
        self.open, self.tokens = number, x.shape[0]
        return received

    def gather(self, like: Tensor) -> Tensor:
        rows, self.start = self.moe.gather(like)
        return rows

    def bring(self, results: Tensor) -> Tensor:
        self.open = None
        return self.moe.combine(results.contiguous(), self.start)

    def close(self) -> None:
        """Ends a round that nobody combined. Every rank has it open, or none."""
        if self.open is not None:
            entries = self.gather(torch.empty(0, self.moe.hidden, dtype=_dtype(self.moe)))
            self.bring(torch.zeros_like(entries))


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


# ---- operators ----------------------------------------------------------------------------------------------


def _dispatch(
    x: Tensor, expert: Tensor, weight: Optional[Tensor], round: Optional[Tensor], layer: str
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    it = _layer(layer)
    if round is None:
        it.last += 2
        round = torch.tensor(it.last)
    received = it.send(x, expert, weight, int(round))
    rows = it.gather(x)[: received.offset[-1]]
    counts = torch.tensor([b - a for a, b in zip(received.offset, received.offset[1:])], dtype=torch.int64)
    return rows, counts, torch.tensor(received.entry_weight, dtype=torch.float32), round.clone()


def _dispatch_fake(x: Any, expert: Any, weight: Any, round: Any, layer: str) -> Any:
    rows = torch.library.get_ctx().new_dynamic_size()
    counts = x.new_empty(len(_layer(layer).moe.local_experts), dtype=torch.int64)
    return (
        x.new_empty(rows, x.shape[1]),
        counts,
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty((), dtype=torch.int64),
    )


def _combine(
    results: Tensor, expert: Tensor, weight: Optional[Tensor], entry_weight: Tensor, round: Tensor, layer: str
) -> Tensor:
    it = _layer(layer)
    if it.open != int(round):
        it.send(torch.zeros(expert.shape[0], it.moe.hidden, dtype=results.dtype), expert, weight, int(round))
        it.gather(results)
    elif it.tokens != expert.shape[0]:
        raise ArgumentError(f"weft::moe_combine: {expert.shape[0]} tokens; {it.tokens} were dispatched")
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
    back = it.weights
    back.dispatch(torch.zeros(expert.shape[0], back.hidden), expert.contiguous(), torch.ones(expert.shape))
    rows = torch.zeros(along.shape[0], back.hidden)
    ids = torch.tensor(own.local_experts, dtype=torch.int64).repeat_interleave(counts)
    rows[torch.arange(along.shape[0]), ids] = along
    _, start = back.gather(rows)
    return back.combine(rows, start).gather(1, expert.long().clamp(min=0))


def _forward(x: Tensor, expert: Tensor, weight: Tensor, experts: str, layer: str) -> Tensor:
    it, packed = _layer(layer), _experts.get(experts)
    if packed is None:
        raise ArgumentError(
            f"no experts are named '{experts}'; weft.torch.experts_name(experts) names some, while they live"
        )
    it.close()
    return it.moe.forward(x.contiguous(), expert.contiguous(), weight.contiguous(), packed)


_define(
    "moe_dispatch",
    "(Tensor x, Tensor expert, Tensor? weight, Tensor? round, str layer) -> (Tensor, Tensor, Tensor, Tensor)",
    _dispatch,
    _dispatch_fake,
    ("CPU",),
)
_define(
    "moe_combine",
    "(Tensor results, Tensor expert, Tensor? weight, Tensor entry_weight, Tensor round, str layer) -> Tensor",
    _combine,
    _combine_fake,
    ("CPU",),
)
_define(
    "_moe_weights_back",
    "(Tensor along, Tensor expert, Tensor counts, str layer) -> Tensor",
    _weights_back,
    lambda along, expert, counts, layer: along.new_empty(expert.shape, dtype=torch.float32),
    ("CPU",),
)
_define(
    "moe_forward",
    "(Tensor x, Tensor expert, Tensor weight, str experts, str layer) -> Tensor",
    _forward,
    lambda x, expert, weight, experts, layer: torch.empty_like(x, memory_format=torch.contiguous_format),
    ("CPU",),
)

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
    results, expert, _, entry_weight, round, ctx.layer = inputs
    ctx.save_for_backward(results, expert, entry_weight, round)


def _combine_backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    results, expert, entry_weight, round = ctx.saved_tensors
    rows, counts, _, _ = _ops.moe_dispatch(grad, expert, None, round + 1, ctx.layer)
    for_weight = None
    if ctx.needs_input_grad[2]:
        for_weight = _ops._moe_weights_back((rows.float() * results.float()).sum(1), expert, counts, ctx.layer)
    return rows * entry_weight[:, None].to(rows.dtype), None, for_weight, None, None, None


_differentiable("moe_dispatch", _dispatch, _dispatch_keep, _dispatch_backward)
_differentiable("moe_combine", _combine, _combine_keep, _combine_backward)

__all__ = ["experts_name", "layer_name"]
