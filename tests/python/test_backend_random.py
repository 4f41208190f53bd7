"""Calls of torch.distributed drawn at random, on weft as on gloo: types, shapes, strides, counts, sub-groups, now or later.

Every rank draws the same calls. A call is made on gloo with tensors in order, then on weft with tensors that may have gaps, lie
backwards or overlap what the other argument lies in; what comes out must be equal, and what lies between must stay.
A seed and a number of calls may be given: ``WEFT_SEED=7 WEFT_CALLS=5000``.
"""

import datetime
import os
import random
import unittest
import warnings
from typing import Any, Callable, Dict, List, Tuple

import support

support.need("torch")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402

import weft.torch  # noqa: E402,F401

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
REALS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
TYPES = (*INTEGERS, *REALS, torch.complex64, torch.complex128)
GUARD = 77  # what lies in gaps


class Draw:
    """What is drawn for a call, the same on every rank; only numbers in tensors differ."""

    def __init__(self, seed: int, rank: int, members: List[int]) -> None:
        self.random, self.members = random.Random(seed), members
        self.size, self.rank = len(members), members.index(rank) if rank in members else -1
        self.numbers = torch.Generator().manual_seed(100 * seed + rank)
        self.guarded: List[Tuple[torch.Tensor, torch.Tensor]] = []

    def shape(self, first: int = -1) -> List[int]:
        dims = self.random.choice([0, 1, 1, 2, 2, 3])
        shape = [self.random.choice([0, 1, 2, 3, 5, 17]) for _ in range(dims)]
        if self.random.random() < 0.1:
            shape = [*shape[:-2], self.random.choice([999, 20011, 70001])]  # without a plan, with one, in chunks
        return shape if first < 0 else [first, *shape]

    def values(self, shape: List[int], dtype: torch.dtype) -> torch.Tensor:
        x = torch.randint(0, 3, shape, generator=self.numbers)
        if dtype.is_complex:
            return torch.complex(x.double(), torch.randint(0, 3, shape, generator=self.numbers).double()).to(dtype)
        return x.to(dtype)

    def laid(self, x: torch.Tensor, conj: bool = False) -> torch.Tensor:
        """The same tensor laid out otherwise: in a wider one, transposed, or as it is."""
        way = self.random.randrange(5)
        if way == 0 and x.dim():  # every other of the last dimension, and one before
            wide = torch.full([*x.shape[:-1], 2 * x.shape[-1] + 1], GUARD, dtype=torch.float64).to(x.dtype)
            view = wide[..., 1::2]
        elif way == 1 and x.dim() > 1:
            wide = torch.full(list(x.shape)[::-1], GUARD, dtype=torch.float64).to(x.dtype)
            view = wide.permute(*reversed(range(x.dim())))
        elif way == 2:  # in order, but not at a beginning that vectors like
            wide = torch.full([x.numel() + 3], GUARD, dtype=torch.float64).to(x.dtype)
            view = wide[1 : 1 + x.numel()].view(x.shape)
        else:
            wide = view = torch.empty_like(x)
        if conj and x.is_complex() and self.random.random() < 0.5:
            view = view.conj()
        view.copy_(x)
        self.guarded.append((wide, view))
        return view

    def check_gaps(self) -> None:
        for wide, view in self.guarded:
            if wide is not view:
                view.fill_(GUARD)
                assert bool((wide == torch.full((), GUARD, dtype=torch.float64).to(wide.dtype)).all()), "written between"


def finish(work: Any, later: bool) -> None:
    if later and work is not None:
        work.wait()


def op_of(draw: Draw, dtype: torch.dtype) -> Any:
    ops = [dist.ReduceOp.SUM]
    if not dtype.is_complex:
        ops += [dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]
    if dtype in INTEGERS and dtype != torch.bool:
        ops += [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
    return draw.random.choice(ops)


def gathered(draw: Draw, x: torch.Tensor, gloo: Any) -> List[torch.Tensor]:
    """Every rank's tensor, all of one shape, by gloo: what reductions that it lacks are made from."""
    raw = torch.view_as_real(x) if x.is_complex() else x
    flat = raw.contiguous().view(-1).view(torch.uint8)
    every = [torch.empty_like(flat) for _ in draw.members]
    dist.all_gather(every, flat, group=gloo)
    out = [e.view(raw.dtype).view(raw.shape) for e in every]
    return [torch.view_as_complex(o) for o in out] if x.is_complex() else out


LOCAL: Dict[Any, Callable[..., Any]] = {
    dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MIN: torch.minimum, dist.ReduceOp.MAX: torch.maximum, dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.BAND: torch.bitwise_and, dist.ReduceOp.BOR: torch.bitwise_or, dist.ReduceOp.BXOR: torch.bitwise_xor,
}  # fmt: skip


def reduced(draw: Draw, x: torch.Tensor, op: Any, gloo: Any) -> torch.Tensor:
    every = gathered(draw, x, gloo)
    total = every[0]
    for other in every[1:]:
        total = LOCAL[op](total, other)
    return total


# Each call: what gloo makes of the tensors, and what weft must.


def all_reduce(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    op, x = op_of(draw, dtype), draw.values(draw.shape(), dtype)
    want = reduced(draw, x, op, gloo)
    y = draw.laid(x)
    finish(dist.all_reduce(y, op, group=group, async_op=later), later)
    return [want], [y]


def reduce(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    op, x, root = op_of(draw, dtype), draw.values(draw.shape(), dtype), draw.random.choice(draw.members)
    want, y = reduced(draw, x, op, gloo), draw.laid(x)
    finish(dist.reduce(y, root, op, group=group, async_op=later), later)
    return ([want], [y]) if draw.members[draw.rank] == root else ([], [])


def several(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    xs = [draw.values(draw.shape(), dtype) for _ in range(3)]
    want, ys = [reduced(draw, x, dist.ReduceOp.SUM, gloo) for x in xs], [draw.laid(x) for x in xs]
    if draw.random.random() < 0.5:
        with dist._coalescing_manager(group=group, async_ops=later) as manager:
            for y in ys:
                dist.all_reduce(y, group=group)
        finish(manager, later)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            finish(dist.all_reduce_coalesced(ys, group=group, async_op=later), later)
    return want, ys


def broadcast(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    x, root = draw.values(draw.shape(), dtype), draw.random.choice(draw.members)
    want = gathered(draw, x, gloo)[draw.members.index(root)]
    y = draw.laid(x)
    finish(dist.broadcast(y, root, group=group, async_op=later), later)
    return [want], [y]


def all_gather(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    x = draw.values(draw.shape(), dtype)
    want, y = gathered(draw, x, gloo), draw.laid(x)
    out = [draw.laid(torch.zeros_like(x)) for _ in draw.members]
    if draw.random.random() < 0.2:  # this rank's place is what it gives
        out[draw.rank] = y
    finish(dist.all_gather(out, y, group=group, async_op=later), later)
    return want, out


def all_gather_uneven(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    shapes = [draw.shape() for _ in draw.members]
    x, most = draw.values(shapes[draw.rank], dtype), max(torch.Size(s).numel() for s in shapes)
    padded = torch.zeros(most, dtype=dtype)
    padded[: x.numel()] = x.flatten()
    want = [p[: torch.Size(s).numel()].view(s) for p, s in zip(gathered(draw, padded, gloo), shapes)]
    out = [draw.laid(torch.zeros(s, dtype=dtype)) for s in shapes]
    finish(dist.all_gather(out, draw.laid(x), group=group, async_op=later), later)
    return want, out


def all_gather_one(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    x = draw.values(draw.shape(draw.random.choice([0, 1, 4])), dtype)
    want = torch.cat(gathered(draw, x, gloo))
    out, y = draw.laid(torch.zeros_like(want)), draw.laid(x)
    if draw.random.random() < 0.2:
        y = out[draw.rank * x.shape[0] : (draw.rank + 1) * x.shape[0]]
        y.copy_(x)
    finish(dist.all_gather_into_tensor(out, y, group=group, async_op=later), later)
    return [want], [out]


def reduce_scatter(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    op, even = op_of(draw, dtype), draw.random.random() < 0.5
    shapes = [draw.shape()] * draw.size if even else [draw.shape() for _ in draw.members]
    xs = [draw.values(s, dtype) for s in shapes]
    want = [reduced(draw, x, op, gloo) for x in xs][draw.rank]
    out = draw.laid(torch.zeros_like(want))
    inputs = [draw.laid(x) for x in xs]
    if draw.random.random() < 0.2:
        out = inputs[draw.rank]
    finish(dist.reduce_scatter(out, inputs, op, group=group, async_op=later), later)
    return [want], [out]


def reduce_scatter_one(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    op, rows = op_of(draw, dtype), draw.random.choice([0, 1, 4])
    x = draw.values(draw.shape(rows * draw.size), dtype)
    want = reduced(draw, x, op, gloo)[draw.rank * rows : (draw.rank + 1) * rows]
    y = draw.laid(x)
    out = draw.laid(torch.zeros_like(want)) if draw.random.random() < 0.8 else y[draw.rank * rows : (draw.rank + 1) * rows]
    finish(dist.reduce_scatter_tensor(out, y, op, group=group, async_op=later), later)
    return [want], [out]


def exchanged(draw: Draw, x: torch.Tensor, counts: List[List[int]], gloo: Any) -> List[torch.Tensor]:
    """What this rank gets of an x whose rows go where counts[from][to] says."""
    most = max(sum(row) for row in counts)
    padded = torch.zeros([most, *x.shape[1:]], dtype=x.dtype)
    padded[: x.shape[0]] = x
    every = gathered(draw, padded, gloo)
    return [e[sum(row[: draw.rank]) : sum(row[: draw.rank + 1])] for e, row in zip(every, counts)]


def all_to_all(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    way, most = draw.random.choice(["even", "uneven", "list", "half"]), draw.random.choice([1, 3, 40])
    rows = draw.random.choice([0, 1, 3])
    counts = [[rows if way in ("even", "half") else draw.random.randrange(most) for _ in draw.members] for _ in draw.members]
    tail = draw.shape()
    x = draw.values([sum(counts[draw.rank]), *tail], dtype)
    want = exchanged(draw, x, counts, gloo)
    if way == "list":
        out = [draw.laid(torch.zeros_like(w)) for w in want]
        finish(dist.all_to_all(out, [draw.laid(p) for p in x.split(counts[draw.rank])], group=group, async_op=later), later)
        return want, out
    one = draw.laid(torch.zeros_like(torch.cat(want)))
    here, there = [w.shape[0] for w in want], counts[draw.rank]
    splits: Any = {"even": (None, None), "half": (here, None)}.get(way, (here, there))
    finish(dist.all_to_all_single(one, draw.laid(x), *splits, group=group, async_op=later), later)
    return [torch.cat(want)], [one]


def gather(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    x, root = draw.values(draw.shape(), dtype), draw.random.choice(draw.members)
    want, mine = gathered(draw, x, gloo), draw.members[draw.rank] == root
    out = [draw.laid(torch.zeros_like(x), conj=True) for _ in draw.members]
    finish(dist.gather(draw.laid(x, conj=True), out if mine else None, root, group=group, async_op=later), later)
    return (want, out) if mine else ([], [])


def scatter(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    shape, root = draw.shape(), draw.random.choice(draw.members)
    xs, mine = [draw.values(shape, dtype) for _ in draw.members], draw.members[draw.rank] == root
    want = [gathered(draw, x, gloo)[draw.members.index(root)] for x in xs][draw.rank]
    out = draw.laid(torch.zeros_like(want))
    inputs = [draw.laid(x) for x in xs]
    finish(dist.scatter(out, inputs if mine else None, root, group=group, async_op=later), later)
    return [want], [out]


def messages(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    """A ring: from the rank before, to the one behind."""
    x, tag = draw.values(draw.shape(), dtype), draw.random.choice([0, 3])
    want = gathered(draw, x, gloo)[draw.rank - 1]
    out, given = draw.laid(torch.zeros_like(x)), draw.laid(x)
    before, behind = draw.members[draw.rank - 1], draw.members[(draw.rank + 1) % draw.size]
    way = draw.random.randrange(3)
    if way == 0:
        both = [dist.P2POp(dist.isend, given, behind, group), dist.P2POp(dist.irecv, out, before, group)]
        for work in dist.batch_isend_irecv(both if draw.rank % 2 else both[::-1]):
            work.wait()
    elif way == 1:
        work = dist.isend(given, behind, group, tag)
        got = dist.recv(out, before if later else None, group, tag)
        assert got == before, (got, before)
        work.wait()
    else:
        works = [dist.irecv(out, before, group, tag), dist.isend(given, behind, group, tag)]
        for work in works if later else works[::-1]:
            work.wait()
    return [want], [out]


def objects(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    root, lengths = draw.random.choice(draw.members), [draw.random.choice([0, 1, 1000, 100000]) for _ in draw.members]
    own: Any = {"rank": draw.rank, "text": "y" * lengths[draw.rank]}
    every: List[Any] = [None] * draw.size
    dist.all_gather_object(every, own, group=group)
    assert [len(o["text"]) for o in every] == lengths and [o["rank"] for o in every] == list(range(draw.size))
    told: List[Any] = [own, draw.rank]
    dist.broadcast_object_list(told, root, group=group)
    assert told[1] == draw.members.index(root) and len(told[0]["text"]) == lengths[told[1]]
    at_root: List[Any] = [None] * draw.size
    dist.gather_object(own, at_root if draw.members[draw.rank] == root else None, root, group=group)
    assert draw.members[draw.rank] != root or [len(o["text"]) for o in at_root] == lengths
    mine: List[Any] = [None]
    dist.scatter_object_list(mine, [n * "z" for n in lengths] if draw.members[draw.rank] == root else None, root, group=group)
    assert mine == [lengths[draw.rank] * "z"]
    return [], []


def functions(draw: Draw, dtype: torch.dtype, gloo: Any, group: Any, later: bool) -> Any:
    """Functional collectives."""
    rows = draw.random.choice([1, 2, 4])
    x = draw.values([rows * draw.size, *draw.shape()], dtype)
    every, total, y = gathered(draw, x, gloo), reduced(draw, x, dist.ReduceOp.SUM, gloo), x.clone()
    wants = [total, torch.cat(every), total[draw.rank * rows : (draw.rank + 1) * rows]]
    wants += [torch.cat([e[draw.rank * rows : (draw.rank + 1) * rows] for e in every]), every[-1]]
    got = [functional.all_reduce(y, "sum", group), functional.all_gather_tensor(y, 0, group)]
    got.append(functional.reduce_scatter_tensor(y, "sum", 0, group))
    got += [functional.all_to_all_single(y, None, None, group), functional.broadcast(y, draw.size - 1, group)]
    if later:
        wants += [total, reduced(draw, x.flip(0), dist.ReduceOp.SUM, gloo)]
        got += functional.all_reduce_coalesced([y, y.flip(0)], "sum", group)
    return wants, [functional.wait_tensor(g) for g in got]


CALLS = (
    all_reduce, reduce, several, broadcast, all_gather, all_gather_uneven, all_gather_one, reduce_scatter, reduce_scatter_one,
    all_to_all, gather, scatter, messages, objects, functions,
)  # fmt: skip


def body(rank: int, size: int, seed: int, count: int) -> None:
    for stream in (1, 2):  # gloo prints what it connects to
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    torch.set_num_threads(1)
    dist.init_process_group("weft", timeout=datetime.timedelta(seconds=60))
    sets = [list(range(size)), [0, size - 1], [1, 0]] + ([[2, 0], [1, 2]] if size > 2 else [])
    groups = [[dist.new_group(sorted(members), backend=backend) for backend in ("gloo", "weft")] for members in sets]
    under_way: List[Any] = []
    for i in range(count):
        chance = random.Random(seed + i)
        at, call, dtype, later = chance.randrange(len(sets)), chance.choice(CALLS), chance.choice(TYPES), chance.random() < 0.5
        members = sorted(sets[at])
        if rank not in members:
            continue
        draw = Draw(seed + i, rank, members)
        gloo, group = groups[at]
        what = f"call {seed + i} of {size} ranks: {call.__name__} of {dtype} among {members}, {'later' if later else 'now'}"
        if chance.random() < 0.3:  # something is still on its way
            under_way.append((dist.all_reduce(one := torch.full((5,), rank), group=group, async_op=True), one, sum(members)))
        try:
            wants, got = call(draw, dtype, gloo, group, later)
            assert len(wants) == len(got)
            for want, y in zip(wants, got):
                assert y.dtype == want.dtype and y.shape == want.shape and bool((y == want).all()), f"{y} is not {want}"
            draw.check_gaps()
        except Exception as error:
            raise AssertionError(what) from error
        if chance.random() < 0.3:
            for work, one, total in under_way:
                work.wait()
                assert one.tolist() == [total] * 5, what
            under_way.clear()
    dist.destroy_process_group()


class Random(unittest.TestCase):
    def test_calls_are_as_on_gloo(self) -> None:
        seed, count = int(os.environ.get("WEFT_SEED", 1100)), int(os.environ.get("WEFT_CALLS", 200))
        for size in (2, 3):
            support.ranks(size, body, size, seed, count, seconds=120 + count)


if __name__ == "__main__":
    support.main()
