"""Matrix products: on one rank, over the ranks of a group, and as plans that run many times.

D = act(alpha A B + beta C + bias). Operands are numpy arrays, torch tensors or ``weft.Tensor``; row-major, with
gaps between rows, or transposed views of such (``w.T`` costs nothing).
"""

from __future__ import annotations

import contextlib
import ctypes as C
import math
import mmap
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from . import _arrays
from ._library import check, constants, lib, structs
from .dtypes import BY_CODE, DType, dtype_of, result_dtype
from .errors import ArgumentError

if TYPE_CHECKING:
    from .group import Group

_GemmArgs = structs["weft_gemm_args"]
_Problem = structs["weft_problem"]
_Operands = structs["weft_operands"]

ACTIVATIONS: Dict[Optional[str], int] = {
    None: constants["WEFT_ACT_NONE"],
    "none": constants["WEFT_ACT_NONE"],
    "relu": constants["WEFT_ACT_RELU"],
    "gelu": constants["WEFT_ACT_GELU"],
    "silu": constants["WEFT_ACT_SILU"],
    "relu_gated": constants["WEFT_ACT_RELU_GATED"],
    "gelu_gated": constants["WEFT_ACT_GELU_GATED"],
    "silu_gated": constants["WEFT_ACT_SILU_GATED"],
}
SCHEDULES: Dict[str, int] = {
    name[len("WEFT_SCHEDULE_") :].lower(): value
    for name, value in constants.items()
    if name.startswith("WEFT_SCHEDULE_")
}
LAYOUTS: Dict[str, int] = {
    name[len("WEFT_LAYOUT_") :].lower(): value for name, value in constants.items() if name.startswith("WEFT_LAYOUT_")
}
OPS: Dict[str, int] = {
    name[len("WEFT_OP_") :].lower(): value for name, value in constants.items() if name.startswith("WEFT_OP_")
}


def _named(table: Dict[Any, int], what: str, name: Any) -> int:
    try:
        return table[name]
    except KeyError:
        raise ArgumentError(f"there is no {what} '{name}'; there are {', '.join(str(n) for n in table if n)}") from None


def part(extent: int, size: int, rank: int, granule: int = 1) -> Tuple[int, int]:
    """Where rank's part of an extent begins, and how long it is: parts differ by at most one, or one ``granule``."""
    each, longer = divmod(-(-extent // granule), size)
    begin, count = (rank * each + min(rank, longer)) * granule, (each + (rank < longer)) * granule
    if granule > 1:  # the last one may be shorter
        begin = min(begin, extent)
        count = min(count, extent - begin)
    return begin, count


# ---- on one rank ------------------------------------------------------------------------------------------


_HUGE_PAGE = 2 << 20


def _room(size: int) -> Tuple[Any, int]:
    """Memory, and where it begins: in huge pages if the system gives any, since weights that are read once a step
    spend much of that on looking up pages."""
    try:
        memory = mmap.mmap(-1, size + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for {size} bytes of packed weights") from error
    address = C.addressof(C.c_char.from_buffer(memory))
    if size >= _HUGE_PAGE:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, -(-address // _HUGE_PAGE) * _HUGE_PAGE


class Packed:
    """B packed once for this CPU's kernels: weights that stay. ``gemm`` and the group's products take it as b."""

    def __init__(self, b: Any, dtype: Any = None, threads: int = 0) -> None:
        """``b`` is k x n; ``dtype`` is what is multiplied (that of b unless given)."""
        _arrays.check_on_cpu(b)
        m = _arrays.matrix_of(b, "b")
        if m.batch != 1:
            raise ArgumentError(f"b must be one matrix, not a batch of {m.batch}")
        self.dtype: DType = dtype_of(dtype) if dtype is not None else m.dtype
        self.k, self.n = m.rows, m.cols
        args = _gemm_args(self.dtype, 1, self.n, self.k)
        args.b_dtype, args.b, args.ldb, args.transb, args.threads = m.dtype.code, m.pointer, m.ld, m.trans, threads
        size = lib.weft_pack_bytes(C.byref(args))
        if not size:
            raise ArgumentError(lib.weft_error(None).decode())
        self._memory, pointer = _room(size)
        self.pointer: int = pointer
        """The address of what ``weft_pack`` wrote."""
        self.nbytes: int = size
        out = C.c_void_p()
        check(lib.weft_pack(C.byref(args), self.pointer, C.byref(out)))
        self.handle: int = out.value or 0

    def __deepcopy__(self, memo: Any) -> "Packed":
        """Itself: nobody writes into it."""
        return self

    def __repr__(self) -> str:
        return f"<weft.Packed {self.dtype.name} {self.k} x {self.n}>"


def _gemm_args(dtype: DType, m: int, n: int, k: int) -> Any:
    args = _GemmArgs()
    lib.weft_gemm_args_init_sized(C.byref(args), C.sizeof(args), dtype.code, m, n, k)
    return args


def _columns(act: Optional[str], n: int) -> int:
    """Columns of D that n columns of B make: half as many where gates and ups lie side by side."""
    if not isinstance(act, str) or not act.endswith("_gated"):
        return n
    if n % 2:
        raise ArgumentError(f"{act} takes gates and ups in pairs; b has {n} columns")
    return n // 2


def gate_up(gate: Any, up: Any) -> Any:
    """B for a gated activation: columns of gate and up in turn, each k x n (rows in turn where both are transposed)."""
    _arrays.check_on_cpu(gate, up)
    one, other = _arrays.matrix_of(gate, "gate"), _arrays.matrix_of(up, "up")
    if (one.rows, one.cols, one.batch, one.trans, one.dtype) != (other.rows, other.cols, 1, other.trans, other.dtype):
        raise ArgumentError("gate and up must be two matrices of one shape, type and order")
    k, n, trans = one.rows, one.cols, one.trans
    b = _arrays.new_like(gate, (2 * n, k) if trans else (k, 2 * n), one.dtype, up)
    to = _arrays.matrix_of(b, "b")
    check(
        lib.weft_gate_up(one.dtype.code, trans, k, n, one.pointer, one.ld, other.pointer, other.ld, to.pointer, to.ld)
    )
    return b.T if trans else b


def gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    bias: Any = None,
    act: Optional[str] = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    row_scale: Any = None,
    col_scale: Any = None,
    dtype: Any = None,
    out_dtype: Any = None,
    threads: int = 0,
) -> Any:
    """D = act(alpha row_scale[i] col_scale[j] A B + beta C + bias), by the threads of this process.

    ``b`` may be a :class:`Packed`. ``dtype`` is what is multiplied (that of a unless given), ``out_dtype`` that
    of D, C and bias (that of a; int32 for int8 products, bfloat16 for fp8). ``threads`` 0 means all CPUs this thread may use.
    Gated activations ("silu_gated" and so on) take b as :func:`gate_up` makes it, and D has half its columns.
    """
    _arrays.check_on_cpu(a, b, out, bias, c)
    left = _arrays.matrix_of(a, "a")
    packed = b if isinstance(b, Packed) else None
    right = None if packed else _arrays.matrix_of(b, "b")
    kind = dtype_of(dtype) if dtype is not None else (packed.dtype if packed else left.dtype)
    k, n = (packed.k, packed.n) if packed else (right.rows, right.cols)  # type: ignore[union-attr]
    if left.cols != k:
        raise ArgumentError(f"a is {left.rows} x {left.cols}, b is {k} x {n}")
    wide, n = n, _columns(act, n)
    args = _gemm_args(kind, left.rows, n, k)
    batch = left.batch if packed else max(left.batch, right.batch)  # type: ignore[union-attr]
    if not packed and left.batch != right.batch:  # type: ignore[union-attr]
        raise ArgumentError(f"a has a batch of {left.batch}, b of {right.batch}")  # type: ignore[union-attr]
    args.l, args.a_dtype, args.a, args.lda, args.transa = batch, left.dtype.code, left.pointer, left.ld, left.trans
    args.stride_a = left.stride
    if packed:
        args.packed_b = packed.handle
    else:
        assert right is not None
        args.b_dtype, args.b, args.ldb, args.transb = right.dtype.code, right.pointer, right.ld, right.trans
        args.stride_b = right.stride
    if out is None:
        result = dtype_of(out_dtype) if out_dtype is not None else result_dtype(left.dtype)
        out = _arrays.new_like(
            a, ((batch,) if left.batch > 1 or len(_arrays.view_of(a).shape) == 3 else ()) + (left.rows, n), result, b
        )
    d = _arrays.matrix_of(out, "out", written=True)
    if (d.rows, d.cols, d.batch, d.trans) != (left.rows, n, batch, 0):
        raise ArgumentError(f"out must be row-major {left.rows} x {n} with a batch of {batch}")
    args.d, args.ldd, args.stride_d, args.d_dtype = d.pointer, d.ld, d.stride, d.dtype.code
    if c is not None:
        third = _arrays.matrix_of(c, "c")
        if (third.rows, third.cols, third.batch, third.trans, third.dtype) != (d.rows, d.cols, batch, 0, d.dtype):
            raise ArgumentError("c must have the shape and type of out")
        args.c, args.ldc, args.stride_c = third.pointer, third.ld, third.stride
    args.bias = _vector(bias, wide, d.dtype, "bias")
    args.row_scale = _vector(row_scale, left.rows, dtype_of("float32"), "row_scale")
    args.col_scale = _vector(col_scale, wide, dtype_of("float32"), "col_scale")
    args.alpha, args.beta, args.act, args.threads = alpha, beta, _named(ACTIVATIONS, "activation", act), threads
    check(lib.weft_gemm(C.byref(args)))
    return out


def _vector(x: Any, length: int, dtype: DType, what: str) -> Optional[int]:
    if x is None:
        return None
    view = _arrays.flat(x, what)
    if view.elements != length or view.dtype != dtype:
        raise ArgumentError(
            f"{what} must be {length} elements of {dtype.name}; it is {view.elements} of {view.dtype.name}"
        )
    return view.pointer or _arrays.NOWHERE  # 0, of a GPU's tensor without elements, says that there is no vector


def _scales(operands: Any, lengths: Dict[str, int], **given: Any) -> None:
    """Factors of a run."""
    for name, x in given.items():
        if x is not None:
            setattr(operands, name, _vector(x, lengths[name], dtype_of("float32"), name))


# ---- over the ranks of a group ----------------------------------------------------------------------------


_FIELDS = {name for name, _ in _Problem._fields_} - {"size", "op", "tuning"}
_TUNING = {name for name, _ in structs["weft_tuning"]._fields_} - {"reserved"}


def _problem(op: str, **fields: Any) -> Any:
    """A weft_problem: what the library fills in, then what is given. Names stand for schedules and the like."""
    problem = _Problem()
    lib.weft_problem_init_sized(C.byref(problem), C.sizeof(problem), _named(OPS, "operation", op))
    readers = {
        "schedule": lambda v: _named(SCHEDULES, "schedule", v),
        "layout": lambda v: _named(LAYOUTS, "layout", v),
        "act": lambda v: _named(ACTIVATIONS, "activation", v),
    }
    for name, value in fields.items():
        place = problem if name in _FIELDS else problem.tuning if name in _TUNING else None
        if place is None:
            raise ArgumentError(f"a problem has no field '{name}'")
        if name in readers and not isinstance(value, int):
            value = readers[name](value)
        elif name.endswith("dtype") and not isinstance(value, int):
            value = dtype_of(value).code
        setattr(place, name, value)
    return problem


def _whole(given: Optional[int], mine: int, group: Group, what: str, granules: Dict[str, int]) -> int:
    """A global extent: as given, else the same on every rank."""
    whole = mine * group.size if given is None else given
    has = part(whole, group.size, group.rank, granules[what])[1]
    if has != mine:
        raise ArgumentError(f"rank {group.rank} of {group.size} holds {has} of {what} = {whole}, not {mine}")
    return whole


_SPREAD = {
    ("ag_gemm", "default"): "mn",
    ("ag_gemm", "gather_b"): "mn",
    ("ag_gemm", "gather_a_k"): "nk",
    ("ag_gemm", "gather_b_k"): "mk",
    ("gemm_as", "default"): "n",
}
"""The extents of which A and B have a rank's part; of the products that are not here, k."""


def _extents(
    op: str, layout: str, group: Group, a: Tuple[int, int], b: Tuple[int, int], given: Dict[str, Any], granules: Dict[str, int]
) -> Dict[str, int]:
    """m, n and k over all ranks, of a product of these matrices here."""
    spread = _SPREAD.get((op, layout), "k")
    mine = {"m": a[0], "n": b[1], "k": b[0] if layout == "gather_b_k" else a[1]}
    if op == "ag_gemm" and given["k"] is None:  # the other matrix has it whole
        given = {**given, "k": max(a[1], b[0])}
    return {e: _whole(given[e], mine[e], group, e, granules) if e in spread else mine[e] for e in mine}


def _part_of_one(
    op: str, layout: str, extents: str, whole: Dict[str, int], granules: Dict[str, int], group: Group
) -> bool:
    """Whether some ranks have one row or column of a matrix, or none, and others more: how it lies says one row as little as one
    column, so that ranks would say different things, and all have it row by row."""
    spread = _SPREAD.get((op, layout), "k")
    sizes = ([part(whole[e], group.size, rank, granules[e])[1] for rank in (0, group.size - 1)] for e in extents if e in spread)
    return any(last <= 1 < first for first, last in sizes)


def _local(p: Any, group: Group) -> Dict[str, Tuple[int, int]]:
    """What of a problem's matrices this rank has."""
    m, n, k = (
        part(e, group.size, group.rank, g or 1)[1] for e, g in ((p.m, p.granule_m), (p.n, p.granule_n), (p.k, p.granule_k))
    )
    layout = next((name for name, value in LAYOUTS.items() if value == p.layout), "")
    if p.op == OPS["gemm_as"]:
        a, b, d = (p.m, p.k), (p.k, n), (p.m, p.n)
    elif p.op == OPS["ag_gemm"]:
        a = (p.m, k) if layout == "gather_a_k" else (m, p.k)
        b = (k, p.n) if layout == "gather_b_k" else (p.k, n)
        d = (m, p.n) if layout.startswith("gather_b") else (p.m, n)
    else:
        a, b, d = (p.m, k), (k, p.n), (p.m, p.n)
        if p.op == OPS["gemm_rs"]:
            d = (p.m, n) if layout == "scatter_cols" else (m, p.n)
    return {"a": a, "b": (b[0], b[1] * _paired(p)), "d": d}


def _paired(p: Any) -> int:
    """Columns of B for one of D."""
    return 1 + (p.act >= ACTIVATIONS["relu_gated"])


def _factors(p: Any, local: Dict[str, Tuple[int, int]]) -> Dict[str, int]:
    """How many factors a run of a problem has, where it has any."""
    (rows, cols), gathers = local["d"], p.op == OPS["ag_gemm"]  # which counts blocks over what it has gathered
    wide = cols * _paired(p)
    blocks = -(-(p.k if gathers else local["a"][1]) // 128)
    return {
        "alpha": 1,
        "beta": 1,
        "row_scale": rows,
        "col_scale": wide,
        "a_scale": (rows if gathers else local["a"][0]) * blocks,
        "b_scale": blocks * -(-(wide if gathers else local["b"][1]) // 128),
    }


_RUN = {op: getattr(lib, "weft_" + op) for op in ("ag_gemm", "gemm_rs", "gemm_ar", "gemm_as")}


def product(
    op: str,
    group: Group,
    a: Any,
    b: Any,
    out: Any = None,
    *,
    m: Optional[int] = None,
    n: Optional[int] = None,
    k: Optional[int] = None,
    bias: Any = None,
    act: Optional[str] = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    row_scale: Any = None,
    col_scale: Any = None,
    a_scale: Any = None,
    b_scale: Any = None,
    schedule: str = "auto",
    layout: str = "default",
    out_dtype: Any = None,
    workers: int = 0,
    fp8_fast: bool = False,
    granule_m: int = 1,
    granule_n: int = 1,
    granule_k: int = 1,
) -> Any:
    """One of the four products, see the methods of :class:`weft.Group`."""
    left = _arrays.matrix_of(a, "a")
    packed = b if isinstance(b, Packed) else None
    right = None if packed else _arrays.matrix_of(b, "b")
    k_b, n_b = (packed.k, packed.n) if packed else (right.rows, right.cols)  # type: ignore[union-attr]
    if layout == "default":  # two schedules mean the other layout
        layout = {"allgather_rotating_b": "gather_b", "reducescatter_tiling_b": "scatter_cols"}.get(schedule, layout)
    granules = {"m": granule_m, "n": granule_n, "k": granule_k}
    whole = _extents(
        op, layout, group, (left.rows, left.cols), (k_b, _columns(act, n_b)), {"m": m, "n": n, "k": k}, granules
    )
    if _part_of_one(op, layout, "mk", whole, granules, group) and left.trans:
        a = _arrays.by_rows(a)
        left = _arrays.matrix_of(a, "a")
    if right and _part_of_one(op, layout, "kn", whole, granules, group) and right.trans:
        b = _arrays.by_rows(b)
        right = _arrays.matrix_of(b, "b")
    blocked = a_scale is not None or b_scale is not None
    problem = _problem(
        op, **whole, l=left.batch, dtype=left.dtype, transa=left.trans, transb=0 if packed else right.trans,  # type: ignore[union-attr]
        alpha=alpha, beta=beta, bias=int(bias is not None), act=act, schedule=schedule, layout=layout, workers=workers,
        granule_m=granule_m, granule_n=granule_n, granule_k=granule_k, fp8_fast=int(fp8_fast),
        scales=128 if blocked else int(row_scale is not None or col_scale is not None),
    )  # fmt: skip
    local = _local(problem, group)
    rows, cols = local["d"]
    if (local["a"], local["b"]) != ((left.rows, left.cols), (k_b, n_b)):
        raise ArgumentError(f"{op}: a is {left.rows} x {left.cols}, b is {k_b} x {n_b}")
    if out is None:
        kind = dtype_of(out_dtype) if out_dtype is not None else result_dtype(left.dtype)
        batch = (left.batch,) if len(_arrays.view_of(a).shape) == 3 else ()
        out = _arrays.new_like(a, batch + (rows, cols), kind, b)
    d = _arrays.matrix_of(out, "out", written=True)
    if (d.rows, d.cols, d.batch, d.trans) != (rows, cols, left.batch, 0):
        raise ArgumentError(f"{op}: out must be row-major {rows} x {cols} with a batch of {left.batch}, not {d.rows} x {d.cols}")
    problem.d_dtype = d.dtype.code
    operands = _Operands(size=C.sizeof(_Operands))
    operands.a, operands.lda, operands.stride_a = left.pointer, left.ld, left.stride
    if packed:
        if packed.dtype != left.dtype:
            raise ArgumentError(f"a is {left.dtype.name}, b was packed for {packed.dtype.name}")
        if left.batch > 1:
            raise ArgumentError(f"a has a batch of {left.batch}, and packed weights are one matrix")
        operands.b = packed.pointer
        problem.b_form = constants["WEFT_B_PREPACKED"]
    else:
        assert right is not None
        if (right.dtype, right.batch) != (left.dtype, left.batch):
            raise ArgumentError(
                f"a is {left.dtype.name} with a batch of {left.batch}, b is {right.dtype.name} with {right.batch}"
            )
        operands.b, operands.ldb, operands.stride_b = right.pointer, right.ld, right.stride
    operands.d, operands.ldd, operands.stride_d = d.pointer, d.ld, d.stride
    if c is not None:
        third = _arrays.matrix_of(c, "c")
        if (third.rows, third.cols, third.batch, third.trans, third.dtype) != (d.rows, d.cols, d.batch, 0, d.dtype):
            raise ArgumentError("c must have the shape and type of out")
        operands.c, operands.ldc, operands.stride_c = third.pointer, third.ld, third.stride
    operands.bias = _vector(bias, cols * _paired(problem), d.dtype, "bias")
    _scales(operands, _factors(problem, local), row_scale=row_scale, col_scale=col_scale, a_scale=a_scale, b_scale=b_scale)
    group._follow(a, b, out, bias, c)
    group._call(_RUN[op], C.byref(problem), C.byref(operands))
    return out


# ---- plans ------------------------------------------------------------------------------------------------


def _stored(p: Any, group: Group) -> Dict[str, Tuple[int, ...]]:
    """What of a problem's matrices this rank has, as they are stored; of a vector or a collective's buffer, its elements."""
    if p.op > OPS["gemm_as"]:
        w = group.size
        wide = {OPS["all_gather"]: (1, w), OPS["reduce_scatter"]: (w, 1), OPS["all_to_all"]: (w, w)}.get(p.op, (1, 1))
        return {"send": (p.count * wide[0],), "recv": (p.count * wide[1],)}
    a, b, d = _local(p, group).values()
    return {"a": a[::-1] if p.transa else a, "b": b[::-1] if p.transb else b, "c": d, "d": d, "bias": (d[1] * _paired(p),)}


class Plan:
    """A schedule made once, to be run many times. Making it is collective.

    ``fields`` are those of ``weft_problem`` and ``weft_tuning`` in weft.h (m, n, k, l, dtype, d_dtype, schedule, layout, act,
    bias, tile_m …; names for types, schedules and activations).
    """

    def __init__(self, group: Group, op: str, **fields: Any) -> None:
        problem = _problem(op, **fields)
        out = C.c_void_p()
        group._call(lib.weft_plan_create, C.byref(problem), C.byref(out))
        self.group = group
        self._plan: int = out.value or 0
        self._finalizer = group._keep(self, self._plan, lib.weft_plan_destroy)
        self._made = _Problem.from_buffer_copy(_Problem.from_address(lib.weft_plan_problem(self._plan)))
        self._stored = _stored(self._made, group)

    def __deepcopy__(self, memo: Any) -> "Plan":
        """Itself: nothing of it changes."""
        return self

    @property
    def problem(self) -> Dict[str, Any]:
        """Everything decided: the problem's fields, with names for types, schedule and layout."""
        self.group.handle  # a closed group has no plans
        found = _Problem.from_address(lib.weft_plan_problem(self._plan))
        values = {name: getattr(found, name) for name, _ in _Problem._fields_ if name not in ("size", "tuning")}
        values.update(
            (name, getattr(found.tuning, name)) for name, _ in structs["weft_tuning"]._fields_ if name != "reserved"
        )
        names = {
            "op": OPS,
            "schedule": SCHEDULES,
            "layout": LAYOUTS,
            "act": {k: v for k, v in ACTIVATIONS.items() if k},
        }
        for field, table in names.items():
            values[field] = next((n for n, v in table.items() if v == values[field]), values[field])
        for field in [f for f in values if f.endswith("dtype")]:
            values[field] = BY_CODE[values[field]].name if values[field] in BY_CODE else values[field]
        return values

    def run(
        self,
        a: Any = None,
        b: Any = None,
        d: Any = None,
        *,
        c: Any = None,
        bias: Any = None,
        send: Any = None,
        recv: Any = None,
        alpha: Any = None,
        beta: Any = None,
        row_scale: Any = None,
        col_scale: Any = None,
        a_scale: Any = None,
        b_scale: Any = None,
        stream: Optional[int] = None,
    ) -> None:
        """Collective: one run. On a GPU ``stream`` is a CUDA stream's handle (0 is the default stream), and the call
        returns when the run is on it; see :meth:`wait`. Without it the call returns when the results are there.

        ``alpha`` and ``beta`` (one element each), ``row_scale``, ``col_scale`` and, of blocks, for plans made with ``scales`` 128,
        ``a_scale`` and ``b_scale`` are float32 arrays where the operands are: see ``weft_operands`` in weft.h."""
        operands = _Operands(size=C.sizeof(_Operands))
        for name, x in (("a", a), ("b", b), ("c", c), ("d", d)):
            if isinstance(x, Packed):
                self._check(name, x.dtype, 1, (x.n, x.k) if self._made.transb else (x.k, x.n), packed=True)
                operands.b = x.pointer
            elif x is not None:
                stored_transposed = bool({"a": self._made.transa, "b": self._made.transb}.get(name))
                m = _arrays.matrix_of(x, name, written=name == "d")
                if m.trans and not stored_transposed and 1 not in (m.rows, m.cols):
                    raise ArgumentError(f"{name} is transposed; the plan has it row by row (contiguous() copies it)")
                self._check(name, m.dtype, m.batch, (m.cols, m.rows) if m.trans else (m.rows, m.cols))
                setattr(operands, name, m.pointer)
                setattr(operands, "ld" + name, self._pitch(name, m))
                setattr(operands, "stride_" + name, m.stride)
        for name, x in (("bias", bias), ("send", send), ("recv", recv)):
            if x is not None:
                view = _arrays.flat(x, name, written=name == "recv")
                self._check(name, view.dtype, self._made.l, (view.elements,))
                setattr(operands, name, view.pointer)
        factors = {
            "alpha": alpha, "beta": beta, "row_scale": row_scale, "col_scale": col_scale, "a_scale": a_scale, "b_scale": b_scale
        }  # fmt: skip
        if any(x is not None for x in factors.values()):
            if "d" not in self._stored:
                raise ArgumentError("a plan of a collective takes no factors")
            _scales(operands, _factors(self._made, _local(self._made, self.group)), **factors)
        if stream is None:
            self.group._follow(a, b, d, c, bias, send, recv, ordered=False)
            self.group._call_on(lib.weft_run, self._plan, C.byref(operands))
        else:
            self.group._call_on(lib.weft_run_on, self._plan, C.byref(operands), stream)

    def _pitch(self, name: str, m: _arrays.Matrix) -> int:
        """Elements between the rows of an operand as the plan has it: one row may be given as a column, and the other way round."""
        rows, cols = self._stored[name]
        if 1 not in (rows, cols) or not rows * cols:
            return m.ld
        step = m.ld if (m.cols if m.trans else m.rows) > 1 else 1  # from one element to the next
        if cols == 1:
            return step
        if step > 1:
            raise ArgumentError(f"{name} is one row in the plan; its elements are {step} apart (contiguous() copies it)")
        return cols

    def _check(self, name: str, dtype: DType, batch: int, shape: Tuple[int, ...], packed: bool = False) -> None:
        """An operand is of the type and size that the plan has it on this rank, and packed where it wants that."""
        p, wanted = self._made, self._stored.get(name)
        if wanted is None:
            raise ArgumentError(f"this plan takes no {name}; it takes {', '.join(self._stored)}")
        kind = BY_CODE[p.d_dtype if name in ("c", "d", "bias") else p.dtype]
        alike = shape == wanted or 1 in wanted and math.prod(shape) == math.prod(wanted)  # one row is as good as one column
        bits = dtype.name == "uint8" and kind.name.startswith(("float8", "byte"))  # as numpy has them
        if dtype != kind and not bits or math.prod(wanted) and not (alike and batch == p.l):
            raise ArgumentError(
                f"{name} is stored as {shape} of {dtype.name} with a batch of {batch}; "
                f"the plan has {wanted} of {kind.name} with {p.l} on rank {self.group.rank}"
            )
        if name == "b" and packed != (p.b_form == constants["WEFT_B_PREPACKED"]):
            raise ArgumentError(f"b is {'' if packed else 'not '}packed; a plan with b_form = {p.b_form} is made for the other")

    def wait(self, stream: int = 0) -> None:
        """Waits until a CUDA stream has passed everything on it; raises what went wrong in the plan's runs."""
        self.group._call_on(lib.weft_run_wait, self._plan, stream)


__all__ = ["gemm", "gate_up", "Packed", "Plan", "part", "SCHEDULES", "LAYOUTS", "ACTIVATIONS", "OPS"]
