"""A mixture-of-experts layer as an ``nn.Module``: experts spread over ranks, tokens brought to them and back.

Backward is a round of its own: gradients of outputs go to the experts by the way the tokens went, those of inputs come back.
"""

from __future__ import annotations

from functools import partial
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor, nn

from ..dtypes import torch_dtype
from ..moe import FeedForward, MoE
from ._autocast import cast, type_under
from ._groups import group_of, name_of
from .moe_ops import experts_name, layer_name


_ops = torch.ops.weft


class _Expert(nn.Module):
    """One expert: w2(silu(w1 x) * w3 x), by the names of Mixtral's weights."""

    def __init__(self, hidden: int, inter: int, **kind: Any) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden, inter, bias=False, **kind)
        self.w2 = nn.Linear(inter, hidden, bias=False, **kind)
        self.w3 = nn.Linear(hidden, inter, bias=False, **kind)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class _Experts(nn.ModuleDict):
    """The experts of this rank, by their global ids; weights of others' are passed over when loading."""

    packed: Optional[FeedForward] = None
    """What serves in their place without gradients, until weights are loaded or converted: on every rank, or on none."""

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, strict: bool, *rest: Any) -> None:
        self.packed = None
        super()._load_from_state_dict(state, prefix, metadata, False, *rest)  # type: ignore[no-untyped-call]

    def _apply(self, *arguments: Any, **options: Any) -> Any:
        self.packed = None
        return super()._apply(*arguments, **options)


class MoELayer(nn.Module):
    """A router (``gate``) and experts (``experts.N.w1``, ``w2``, ``w3``): loads the weights of a Mixtral layer.

    Each rank gives its own tokens and gets their outputs; a token goes to ``topk`` experts with the softmax of their scores,
    normalized over them. The gradients of an expert's weights are sums over every rank's tokens; the router's, of which every
    rank has a copy, are those of this rank's tokens. All ranks make forward and backward calls in the same order. Converting
    a layer (``bfloat16()``) is collective: tokens travel in its experts' type, whatever the router's is. Experts that were packed
    are to be packed again when weights were loaded or converted.
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
        device: Any = None,
        wire: str = "given",
    ) -> None:
        """Collective. ``max_tokens`` is the most that a rank gives in one call. CUDA tensors need a group on GPUs: a
        ``weft.Group`` after ``use_gpu``, or a process group and ``device``, where the weights are made. With
        ``wire="fp8"`` tokens travel to their experts as e4m3 with a scale for every 128 elements, and in backward so do
        the gradients of their outputs; what comes back does not."""
        super().__init__()
        self.group = name_of(group)
        self._group_alive = group_of(self.group, None if device is None else torch.device(device))
        self.hidden, self.topk = hidden, topk
        kind = dtype or torch.get_default_dtype()
        self._routing = partial(MoE, self._group_alive, experts, topk, hidden, max_tokens, wire=wire)
        self._travel_by(self._routing(kind))
        where: Any = {"dtype": kind, "device": device}
        self.gate = nn.Linear(hidden, experts, bias=False, **where)
        self.experts = _Experts({str(e): _Expert(hidden, inter, **where) for e in self.moe.local_experts})

    def _travel_by(self, moe: MoE) -> None:
        self.moe, self._layer = moe, layer_name(moe)

    def _apply(self, fn: Any, *rest: Any, **options: Any) -> Any:
        """Of ``to``, ``bfloat16`` and the like. What they make of the experts' type is asked of an empty tensor, since a rank may
        have no expert; a type that tokens cannot travel in is refused before a weight has changed."""
        before = torch_dtype(self.moe.dtype)
        after = fn(torch.empty(0, dtype=before, device=self.gate.weight.device)).dtype
        moe = self.moe if after == before else self._routing(after)
        super()._apply(fn, *rest, **options)
        self._travel_by(moe)
        return self

    def prepack(self, packed: Optional[FeedForward] = None) -> "MoELayer":
        """Packs this rank's experts for weft's kernels (on GPUs float16 and bfloat16); used under ``torch.no_grad()``, on GPUs
        without a wait, until weights are loaded anew; those changed in place must be packed again. ``packed`` are experts that take their place, made of
        weights as a model stores them (int8, fp8): ``weft.FeedForward(layer.moe, …)``."""
        if packed is not None:
            self.experts.packed = packed
            return self
        local: List[_Expert] = list(self.experts.values())  # type: ignore[arg-type]
        w1, w3, w2 = (
            [m.weight.detach().t().contiguous() for m in (getattr(e, n) for e in local)] for n in ("w1", "w3", "w2")
        )
        if self.gate.weight.is_cuda:
            torch.cuda.current_stream(self.gate.weight.device).synchronize()  # what was made there is copied from here
        self.experts.packed = FeedForward(self.moe, w1, w3, w2)
        return self

    def route(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """The experts of each token (int32) and their weights (float32)."""
        scores = torch.softmax(self.gate(x).float(), dim=-1)
        weight, expert = torch.topk(scores, self.topk, dim=-1)
        return expert.to(torch.int32), weight / weight.sum(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        """Collective. x: (tokens, …, hidden); the same shape comes back."""
        flat = x.reshape(-1, self.hidden)
        expert, weight = self.route(flat)
        under = type_under(x)  # autocast's; tokens travel in the layer's, and experts are layers under it
        own = under and torch_dtype(self.moe.dtype)
        (flat,) = cast(own, flat)
        packed = self.experts.packed
        if packed is not None and not torch.is_grad_enabled():
            y = _ops.moe_forward(flat, expert, weight, experts_name(packed), self._layer)
        else:
            rows, counts, entry_weight, round = _ops.moe_dispatch(flat, expert, weight, None, self._layer)
            parts = [e(part) for e, part in zip(self.experts.values(), rows.split(counts.tolist()))]
            (results,) = cast(own, torch.cat(parts or [rows]))
            y = _ops.moe_combine(results, expert, weight, entry_weight, round, self._layer)
        (y,) = cast(under, y)
        return y.view(x.shape)


__all__ = ["MoELayer"]
