"""Mixture of experts: tokens go to the ranks that have their experts, and the weighted sums of results come back.

In a group on GPUs arrays are CUDA tensors. :meth:`MoE.dispatch` and :meth:`MoE.gather` wait there, because what they return has as
many rows as came; :meth:`MoE.combine` and :meth:`MoE.forward` wait for nothing where calls are ordered on a stream.
"""

from __future__ import annotations

import ctypes as C
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _arrays
from ._library import array, check, constants, lib, structs
from .dtypes import DType, dtype_of
from .errors import ArgumentError
from .group import Group
from .products import _vector

_Config = structs["weft_moe_config"]
_Input = structs["weft_moe_input"]
_View = structs["weft_moe_view"]
_Stats = structs["weft_moe_stats"]
_Weights = structs["weft_moe_weights"]

MODES = {"exact": constants["WEFT_MOE_EXACT"], "reduced": constants["WEFT_MOE_REDUCED"]}
WIRES = {"given": constants["WEFT_MOE_WIRE_GIVEN"], "fp8": constants["WEFT_MOE_WIRE_FP8"]}
IMPLS = {name: constants["WEFT_MOE_" + name.upper()] for name in ("fused", "rows", "sorted", "reference")}


class Received(NamedTuple):
    """What a rank received in a round. An entry is a row for one local expert; entries of local expert j are
    ``offset[j]`` to ``offset[j + 1]``, ordered by source rank, then token."""

    rows: int
    source: List[int]
    """The rank each row came from."""
    token: List[int]
    """Which of that rank's tokens it is."""
    expert: List[int]
    """Global ids of the experts here, ascending."""
    offset: List[int]
    entry_row: List[int]
    entry_weight: List[float]


class MoE:
    """A layer's routing. Making it is collective, with the same configuration on every rank.

    One round is :meth:`dispatch`, experts, :meth:`combine`; or :meth:`forward` with a :class:`FeedForward`.
    """

    def __init__(
        self,
        group: Group,
        experts: int,
        topk: int,
        hidden: int,
        tokens: int,
        dtype: Any = "bfloat16",
        *,
        row_bytes: int = 0,
        expert_rank: Optional[Sequence[int]] = None,
        mode: str = "exact",
        impl: str = "fused",
        lanes: int = 1,
        threads: int = 1,
        wire: str = "given",
    ) -> None:
        """``tokens`` is the most that a rank gives in one round; the rest as in ``weft_moe_config`` in weft.h."""
        if mode not in MODES or impl not in IMPLS or wire not in WIRES:
            raise ArgumentError(
                f"mode is one of {', '.join(MODES)}; impl one of {', '.join(IMPLS)}; wire one of {', '.join(WIRES)}"
            )
        self.group, self.dtype = group, dtype_of(dtype)
        self.experts, self.topk, self.hidden, self.tokens = experts, topk, hidden, tokens
        config = _Config()
        lib.weft_moe_config_init_sized(C.byref(config), C.sizeof(config))
        config.experts, config.topk, config.hidden, config.tokens = experts, topk, hidden, tokens
        config.dtype, config.row_bytes, config.mode, config.impl = self.dtype.code, row_bytes, MODES[mode], IMPLS[impl]
        config.lanes, config.threads, config.wire = lanes, threads, WIRES[wire]
        table = None
        if expert_rank is not None:
            if len(expert_rank) != experts:
                raise ArgumentError(f"expert_rank has {len(expert_rank)} places for {experts} experts")
            table = array(C.c_int, expert_rank, "expert_rank")
            config.expert_rank = C.addressof(table)
        self.row_bytes = row_bytes or hidden * self.dtype.size
        out = C.c_void_p()
        group._call(lib.weft_moe_create, C.byref(config), C.byref(out))
        self._moe: int = out.value or 0
        self._finalizer = group._keep(self, self._moe, lib.weft_moe_free)
        self._sent: Dict[int, Tuple[int, Any]] = {}
        self._offset: Dict[int, List[int]] = {}  # of the entries that each lane's last dispatch brought
        ids = C.c_void_p()
        count = lib.weft_moe_local_experts(self._moe, C.byref(ids))
        self.local_experts: List[int] = list((C.c_int32 * count).from_address(ids.value)) if count else []
        """Global ids of the experts that live on this rank, ascending."""

    def __deepcopy__(self, memo: Any) -> "MoE":
        """Itself, as its group: copies of layers are routed by the same."""
        return self

    def _input(self, x: Any, expert: Any, weight: Any) -> Tuple[Any, int]:
        rows = _arrays.flat(x, "x")
        if not rows.shape or (rows.shape[0] and rows.elements * rows.dtype.size != rows.shape[0] * self.row_bytes):
            raise ArgumentError(
                f"x must have rows of {self.row_bytes} bytes; its shape is {rows.shape} of {rows.dtype.name}"
            )
        tokens = rows.shape[0]
        given = _Input(size=C.sizeof(_Input), tokens=tokens, x=rows.pointer)
        for name, array, kind in (("expert", expert, "int32"), ("weight", weight, "float32")):
            if array is not None:
                view = _arrays.flat(array, name)
                if view.shape != (tokens, self.topk) or view.dtype.name != kind:
                    raise ArgumentError(
                        f"{name} must be {tokens} x {self.topk} of {kind}; it is {view.shape} of {view.dtype.name}"
                    )
                setattr(given, name, view.pointer)
        return given, tokens

    def _dispatch(self, x: Any, expert: Any, weight: Any, lane: int) -> Any:
        """The library's view of a round. On GPUs its arrays are there, and complete."""
        given, tokens = self._input(x, expert, weight)
        view = _View(size=C.sizeof(_View))
        self.group._follow(x, expert, weight)
        self.group._call_on(lib.weft_moe_dispatch, self._moe, lane, C.byref(given), C.byref(view))
        if self.group.on_gpu:
            self.group.wait()
        self._sent[lane] = (tokens, x)
        return view

    def _read(self, address: Optional[int], kind: Any, count: int) -> List[Any]:
        array = (kind * count)()
        if address and count:
            self.group._call(lib.weft_memcpy, array, address, C.sizeof(array))
        return list(array)

    def dispatch(self, x: Any, expert: Any = None, weight: Any = None, lane: int = 0) -> Received:
        """Collective: sends tokens to their experts' ranks; what came here. ``expert`` is tokens x topk of int32
        (-1 is none; None is the routing before), ``weight`` the same of float32."""
        view = self._dispatch(x, expert, weight, lane)
        rows = int(self.stats(lane)["rows_received"]) if view.rows < 0 else view.rows
        offset = self._offset[lane] = self._read(view.offset, C.c_int64, view.experts + 1)
        return Received(
            rows,
            self._read(view.source, C.c_int32, rows),
            self._read(view.token, C.c_int32, rows),
            list(self.local_experts),
            offset,
            self._read(view.entry_row, C.c_int32, offset[-1]),
            self._read(view.entry_weight, C.c_float, offset[-1]),
        )

    def gather(self, like: Any, alignment: int = 1, lane: int = 0) -> Tuple[Any, Any]:
        """The received rows, expert by expert, in an array of the library of ``like`` (rows x hidden), and where each
        local expert's rows start (on GPUs an array there). Experts start at multiples of ``alignment``; a negative one gives each
        expert so many rows."""
        here = len(self.local_experts)
        kind: DType = _arrays.view_of(like).dtype
        if self.row_bytes % kind.size:
            raise ArgumentError(f"rows of {self.row_bytes} bytes are no whole elements of {kind.name}")
        start: Any
        places: Any
        if self.group.on_gpu:
            start = _arrays.new_like(like, (here + 1,), dtype_of("int64"))  # one more: the number of rows
            places = _arrays.view_of(start).pointer
            self.group._call_on(lib.weft_moe_layout, self._moe, lane, alignment, places, places + 8 * here)
            self.group.wait()
            (rows,) = self._read(places + 8 * here, C.c_int64, 1)
            start = start[:here]
        else:
            places, counted = (C.c_int64 * max(here, 1))(), C.c_int64()
            self.group._call_on(lib.weft_moe_layout, self._moe, lane, alignment, places, C.byref(counted))
            start, rows = list(places)[:here], counted.value
        packed = _arrays.new_like(like, (rows, self.row_bytes // kind.size), kind)
        if rows:
            self.group._call_on(lib.weft_moe_gather, self._moe, lane, places, _arrays.view_of(packed).pointer)
        return packed, start

    def combine(self, results: Any, start: Any = None, out: Any = None, lane: int = 0) -> Any:
        """Collective: brings results back. They are rows of ``hidden`` elements where :meth:`gather` put their inputs
        (``start``), or entry after entry; y is tokens x hidden."""
        view = _arrays.flat(results, "results")
        if view.dtype != self.dtype or (view.elements and view.shape[-1] != self.hidden):
            raise ArgumentError(
                f"results must be rows of {self.hidden} {self.dtype.name}; the shape is {view.shape} of {view.dtype.name}"
            )
        tokens, given = self._sent.get(lane, (0, results))
        out = _arrays.new_like(results, (tokens, self.hidden), self.dtype) if out is None else out
        y = self._output(out, tokens)
        places: Any = None
        if not self.group.on_gpu:
            self._check_results(view.elements // self.hidden, start, lane)
        if start is not None:
            on_gpu = self.group.on_gpu
            places = _arrays.flat(start, "start").pointer if on_gpu else array(C.c_int64, start, "start")
        if not view.elements and self.group.on_gpu:  # how many rows there are only the GPU knows
            view = _arrays.flat(_arrays.new_like(results, (1, self.hidden), self.dtype), "results")
        self.group._follow(results, out)
        self.group._call_on(lib.weft_moe_combine, self._moe, lane, view.pointer, places, y)
        del given  # in symmetric memory the tokens were read in place until here
        self._sent.pop(lane, None)
        self._offset.pop(lane, None)
        return out

    def _check_results(self, rows: int, start: Any, lane: int) -> None:
        """There are rows for all entries, in their places."""
        offset = self._offset.get(lane)
        here = len(self.local_experts)
        if start is not None and len(start) != here:
            raise ArgumentError(f"start has {len(start)} places for {here} experts of this rank")
        if offset is None:  # nothing was dispatched, which the library says
            return
        places = offset[:here] if start is None else start
        ends = [begin + offset[j + 1] - offset[j] for j, begin in enumerate(places) if offset[j + 1] > offset[j]]
        if any(begin < 0 for begin in places) or max(ends, default=0) > rows:
            raise ArgumentError(f"results has {rows} rows; with these entries it needs {max(ends, default=0)}, from row 0 on")

    def forward(self, x: Any, expert: Any, weight: Any, experts: "FeedForward", out: Any = None, lane: int = 0) -> Any:
        """Collective: a whole round. Experts start on rows that have arrived while others are on their way."""
        given, tokens = self._input(x, expert, weight)
        out = _arrays.new_like(x, (tokens, self.hidden), self.dtype, expert) if out is None else out
        self.group._follow(x, expert, weight, out)
        self.group._call_on(
            lib.weft_moe_forward, self._moe, lane, C.byref(given), C.byref(experts._expert), self._output(out, tokens)
        )
        return out

    def _output(self, out: Any, tokens: int) -> int:
        view = _arrays.flat(out, "out", written=True)
        if view.shape != (tokens, self.hidden) or view.dtype != self.dtype:
            raise ArgumentError(
                f"out must be {tokens} x {self.hidden} of {self.dtype.name}; it is {view.shape} of {view.dtype.name}"
            )
        return view.pointer

    def stats(self, lane: int = 0) -> Dict[str, float]:
        """What the last round of a lane did on this rank: rows, bytes and microseconds."""
        stats = _Stats(size=C.sizeof(_Stats))
        self.group._call_on(lib.weft_moe_get_stats, self._moe, lane, C.byref(stats))
        return {name: getattr(stats, name) for name, _ in _Stats._fields_ if name != "size"}

    def free(self) -> None:
        """Gives the layer back now."""
        self.group._give_back(self._finalizer, self._moe)


class FeedForward:
    """The experts of this rank as down(silu(x gate) * (x up)), with weights packed for the GEMM engine or woven for the GPU's.

    For each expert in ``moe.local_experts``: gate and up are hidden x inter, down is inter x hidden, row-major. The arrays may be
    freed after. On CPUs they may be of another type than the layer, as models store them (int8, float8_e4m3fn, float8_e5m2 …,
    all of one): each is converted exactly while it is packed. A list of scales has for each expert float32 factors of its
    matrix's columns (inter of gate and up, hidden of down), by which products are multiplied; None, the list or one of it, is 1.
    """

    def __init__(
        self,
        moe: MoE,
        gate: Sequence[Any],
        up: Sequence[Any],
        down: Sequence[Any],
        *,
        gate_scale: Optional[Sequence[Any]] = None,
        up_scale: Optional[Sequence[Any]] = None,
        down_scale: Optional[Sequence[Any]] = None,
    ) -> None:
        count = len(moe.local_experts)
        if not len(gate) == len(up) == len(down) == count:
            raise ArgumentError(
                f"this rank has {count} experts; gate, up and down have {len(gate)}, {len(up)} and {len(down)}"
            )
        first = _arrays.view_of(gate[0]) if count else None
        if first is not None and len(first.shape) != 2:
            raise ArgumentError(f"gate must be hidden x inter; its shape is {first.shape}")
        inter, kind = (first.shape[1], first.dtype) if first is not None else (8, moe.dtype)
        stored = _Weights(size=C.sizeof(_Weights), inter=inter, dtype=kind.code)
        kept = []  # the lists of addresses, until the weights are packed
        for name, arrays, scales, shape in (
            ("gate", gate, gate_scale, (moe.hidden, inter)),
            ("up", up, up_scale, (moe.hidden, inter)),
            ("down", down, down_scale, (inter, moe.hidden)),
        ):
            views = [_arrays.flat(a, name) for a in arrays]
            for v in views:
                if v.shape != shape or v.dtype != kind:
                    raise ArgumentError(f"{name} must be {shape} of {kind.name}; it is {v.shape} of {v.dtype.name}")
            kept.append((C.c_void_p * max(count, 1))(*(v.pointer for v in views)))
            setattr(stored, name, C.addressof(kept[-1]))
            if scales is not None:
                if len(scales) != count:
                    raise ArgumentError(f"this rank has {count} experts; {name}_scale has {len(scales)}")
                factors = [_vector(s, shape[1], dtype_of("float32"), f"{name}_scale") for s in scales]
                kept.append((C.c_void_p * max(count, 1))(*factors))
                setattr(stored, f"{name}_scale", C.addressof(kept[-1]))
        out = C.c_void_p()
        moe.group._follow(*gate, *up, *down, ordered=False)
        moe.group._call_on(lib.weft_moe_ffn_create_stored, moe._moe, C.byref(stored), C.byref(out))
        del kept
        self.moe = moe
        ffn = out.value or 0
        self._expert = structs["weft_moe_expert"](size=C.sizeof(structs["weft_moe_expert"]))
        check(lib.weft_moe_ffn_expert(ffn, C.byref(self._expert)))
        moe.group._keep(self, ffn, lib.weft_moe_ffn_free)

    def __deepcopy__(self, memo: Any) -> "FeedForward":
        """Itself: nobody writes into it."""
        return self


__all__ = ["MoE", "FeedForward", "Received"]
