"""A mixture-of-experts layer as an ``nn.Module``: experts spread over ranks, tokens brought to them and back.

Backward is a round of its own: gradients of outputs go to the experts by the way the tokens went, those of inputs come back.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor, nn

from ..errors import ArgumentError
from ..moe import FeedForward, MoE
from ._groups import group_of, name_of


class _Round:
    """One round of a layer: its routing, and what arrived here."""

    def __init__(self, layer: "MoELayer", expert: Tensor, weight: Tensor) -> None:
        self.layer, self.expert, self.weight = layer, expert, weight
        self.start: List[int] = []
        self.counts: List[int] = []
        self.entry_weight = torch.empty(0)

    def send(self, x: Tensor, weight: Tensor) -> Tensor:
        """x to the experts: their rows, expert by expert."""
        moe = self.layer.moe
        received = moe.dispatch(x.contiguous(), self.expert, weight)
        rows, self.start = moe.gather(x)
        self.counts = [b - a for a, b in zip(received.offset, received.offset[1:])]
        self.entry_weight = torch.tensor(received.entry_weight, dtype=torch.float32)
        return rows[: received.offset[-1]]

    def bring(self, results: Tensor) -> Tensor:
        """The weighted sums of results, back at their tokens."""
        return self.layer.moe.combine(results.contiguous(), self.start)


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, round: _Round) -> Tensor:  # type: ignore[override]
        ctx.round = round
        return round.send(x.detach(), round.weight.detach())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return ctx.round.bring(grad), None  # the second half of the round that _Combine.backward began


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, results: Tensor, weight: Tensor, round: _Round) -> Tensor:  # type: ignore[override]
        ctx.round = round
        ctx.save_for_backward(results, round.entry_weight)
        return round.bring(results.detach())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        results, entry_weight = ctx.saved_tensors
        round = ctx.round
        grads = round.send(grad, torch.ones_like(round.weight))
        along = (grads.float() * results.float()).sum(1)
        return (grads * entry_weight[:, None].to(grads.dtype)), round.layer._weights_back(round, along), None


class _Expert(nn.Module):
    """One expert: w2(silu(w1 x) * w3 x), by the names of Mixtral's weights."""

    def __init__(self, hidden: int, inter: int, dtype: Optional[torch.dtype]) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden, inter, bias=False, dtype=dtype)
        self.w2 = nn.Linear(inter, hidden, bias=False, dtype=dtype)
        self.w3 = nn.Linear(hidden, inter, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class _Experts(nn.ModuleDict):
    """The experts of this rank, by their global ids; weights of others' are passed over when loading."""

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, strict: bool, *rest: Any) -> None:
        super()._load_from_state_dict(state, prefix, metadata, False, *rest)  # type: ignore[no-untyped-call]


class MoELayer(nn.Module):
    """A router (``gate``) and experts (``experts.N.w1``, ``w2``, ``w3``): loads the weights of a Mixtral layer.

    Each rank gives its own tokens and gets their outputs; a token goes to ``topk`` experts with the softmax of their scores,
    normalized over them. The gradients of an expert's weights are sums over every rank's tokens; the router's, of which every
    rank has a copy, are those of this rank's tokens. All ranks make forward and backward calls in the same order.
    """

    def __init__(
        self,
        hidden: int,
        inter: int,
        experts: int,
        topk: int,
        max_tokens: int,
        group: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        """Collective. ``max_tokens`` is the most that a rank gives in one call."""
        super().__init__()
        self.group = name_of(group)
        self._group_alive = group_of(self.group)
        self.hidden, self.topk = hidden, topk
        kind = dtype or torch.get_default_dtype()
        self.moe = MoE(self._group_alive, experts, topk, hidden, max_tokens, kind)
        self._weights: Optional[MoE] = None
        self.gate = nn.Linear(hidden, experts, bias=False, dtype=kind)
        self.experts = _Experts({str(e): _Expert(hidden, inter, kind) for e in self.moe.local_experts})
        self._packed: Optional[FeedForward] = None

    def prepack(self) -> "MoELayer":
        """Packs this rank's experts for the CPU's kernels; used under ``torch.no_grad()``. Weights that change later must be
        packed again."""
        local: List[_Expert] = list(self.experts.values())  # type: ignore[arg-type]
        w1, w3, w2 = (
            [m.weight.detach().t().contiguous() for m in (getattr(e, n) for e in local)] for n in ("w1", "w3", "w2")
        )
        self._packed = FeedForward(self.moe, w1, w3, w2)
        return self

    def route(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """The experts of each token (int32) and their weights (float32)."""
        scores = torch.softmax(self.gate(x).float(), dim=-1)
        weight, expert = torch.topk(scores, self.topk, dim=-1)
        return expert.to(torch.int32), weight / weight.sum(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        """Collective. x: (tokens, …, hidden); the same shape comes back."""
        flat = x.reshape(-1, self.hidden)
        if flat.shape[0] > self.moe.tokens:
            raise ArgumentError(f"{flat.shape[0]} tokens in one call; the layer was made for {self.moe.tokens}")
        expert, weight = self.route(flat)
        if self._packed is not None and not torch.is_grad_enabled():
            y = self.moe.forward(flat.contiguous(), expert, weight.contiguous(), self._packed)
        else:
            round = _Round(self, expert.contiguous(), weight.contiguous())
            rows = _Dispatch.apply(flat, round)
            parts = (
                [e(part) for e, part in zip(self.experts.values(), rows.split(round.counts))]
                if round.counts
                else [rows]
            )
            y = _Combine.apply(torch.cat(parts), weight, round)
        return y.view(x.shape)

    def _weights_back(self, round: _Round, along: Tensor) -> Tensor:
        """What backward found for each entry, at the expert's rank, brought to its token and place: in a row with a column
        for every expert."""
        if self._weights is None:
            own = self.moe
            self._weights = MoE(self._group_alive, own.experts, own.topk, own.experts, own.tokens, "float32")
        small = self._weights
        small.dispatch(torch.zeros(round.expert.shape[0], small.hidden), round.expert, torch.ones_like(round.weight))
        rows = torch.zeros(along.shape[0], small.hidden)
        ids = torch.tensor(self.moe.local_experts, dtype=torch.int64).repeat_interleave(
            torch.tensor(round.counts, dtype=torch.int64)
        )
        rows[torch.arange(along.shape[0]), ids] = along
        return small.combine(rows, round.start).gather(1, round.expert.long().clamp(min=0))


__all__ = ["MoELayer"]
