"""Kernels of one's own in Triton on weft's symmetric memory: a one-shot all-reduce, and an all-gather with a matmul.

    torchrun --nproc-per-node 2 examples/python/triton_kernels.py [--M 4096 --N 4096 --K 4096] [--bytes 1048576]

Kernels get addresses of peers' memory from a table (``Tensor.peer_table()``) and meet by signals (``weft.signal_pad``). Rank 0
prints what each takes, beside weft's own. Every result is checked. Ranks may share a GPU; each then uses its share of the SMs,
so that a program that waits never keeps out the one it waits for.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any, Callable, List, Optional, Tuple

import torch
import triton
import triton.language as tl

import weft
import weft.torch

LINE = tl.constexpr(16)  # words between signals
POLLS = tl.constexpr(1 << 26)  # of a wait before it is given up: half a minute and more


@triton.jit
def post(pads, signal, rank):
    """Adds one to a signal of a rank, after everything this program did before."""
    tl.debug_barrier()
    there = tl.load(pads + rank).to(tl.pointer_type(tl.int64))
    tl.atomic_add(there + signal * LINE, 1, sem="release", scope="sys")


@triton.jit
def give_up(pads, signals, count, signal, have, want, RANKS: tl.constexpr):
    """Writes weft_signal_record, behind the last signal, and ends the waits of all ranks."""
    record = signals + count * LINE
    words = record.to(tl.pointer_type(tl.int32))
    if tl.atomic_cas(words + 1, 0, 1) == 0:
        tl.store(words + 2, signal)
        tl.store(record + 2, have)
        tl.store(record + 3, want)
        tl.debug_barrier()
        tl.atomic_xchg(words + 1, 2, sem="release", scope="sys")
    for rank in tl.static_range(RANKS):
        there = tl.load(pads + rank).to(tl.pointer_type(tl.int64)) + count * LINE
        tl.atomic_xchg(there.to(tl.pointer_type(tl.int32)), 1, scope="sys")


@triton.jit
def wait(pads, signals, count, signal, value, RANKS: tl.constexpr):
    """Until this rank's signal is at least ``value``: true; false when waits have ended."""
    here = signals + signal * LINE
    ended = (signals + count * LINE).to(tl.pointer_type(tl.int32))
    seen = tl.atomic_add(here, 0, sem="acquire", scope="sys")
    over = tl.atomic_add(ended, 0, sem="relaxed", scope="sys")
    polls = 0
    while (seen < value) & (over == 0):
        seen = tl.atomic_add(here, 0, sem="acquire", scope="sys")
        over = tl.atomic_add(ended, 0, sem="relaxed", scope="sys")
        polls += 1
        if polls == POLLS:
            give_up(pads, signals, count, signal, seen, value, RANKS)
    tl.debug_barrier()
    return seen >= value


@triton.jit
def all_reduce_kernel(inputs, out, elements, pads, signals, count, run, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """out = the sum of every rank's input. The i-th programs of all ranks meet before they read and after."""
    me = tl.program_id(0)
    for rank in tl.static_range(RANKS):
        post(pads, me, rank)
    if wait(pads, signals, count, me, (2 * run + 1) * RANKS, RANKS):
        for begin in range(me * BLOCK, elements, tl.num_programs(0) * BLOCK):
            at = begin + tl.arange(0, BLOCK)
            total = tl.zeros((BLOCK,), tl.float32)
            for rank in tl.static_range(RANKS):
                x = tl.multiple_of(tl.load(inputs + rank).to(tl.pointer_type(out.dtype.element_ty)), 16)
                total += tl.load(x + at, mask=at < elements, other=0).to(tl.float32)
            tl.store(out + at, total.to(out.dtype.element_ty), mask=at < elements)
        for rank in tl.static_range(RANKS):
            post(pads, me, rank)
        wait(pads, signals, count, me, (2 * run + 2) * RANKS, RANKS)


@triton.jit
def all_gather_matmul_kernel(
    parts, b, d, rows, n, k, pads, signals, count, run, rank,
    RANKS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """d = A b, where every rank has ``rows`` rows of A, read from where they are; the own ones first.

    Signal r: rank r's rows may be read. Signal RANKS: how many programs of any rank are done with this rank's."""
    me = tl.program_id(0)
    if me == 0:
        for peer in tl.static_range(RANKS):
            post(pads, rank, peer)
    across = tl.cdiv(n, BN)
    each = tl.cdiv(rows, BM) * across
    for tile in range(me, RANKS * each, tl.num_programs(0)):
        source = (rank + tile // each) % RANKS
        if wait(pads, signals, count, source, run + 1, RANKS):
            a = tl.multiple_of(tl.load(parts + source).to(tl.pointer_type(b.dtype.element_ty)), 16)
            row = tile % each // across * BM + tl.arange(0, BM)
            col = tile % across * BN + tl.arange(0, BN)
            inner = tl.arange(0, BK)
            total = tl.zeros((BM, BN), tl.float32)
            for i in range(0, k, BK):
                x = tl.load(a + row[:, None] * k + (i + inner)[None, :], mask=row[:, None] < rows, other=0)
                y = tl.load(b + (i + inner)[:, None] * n + col[None, :], mask=col[None, :] < n, other=0)
                total = tl.dot(x, y, total)
            out = d + (source * rows + row)[:, None] * n + col[None, :]
            tl.store(out, total.to(d.dtype.element_ty), mask=(row[:, None] < rows) & (col[None, :] < n))
    for peer in tl.static_range(RANKS):
        post(pads, RANKS, peer)
    if me == 0:
        wait(pads, signals, count, RANKS, (run + 1) * RANKS * tl.num_programs(0), RANKS)


class Kernels:
    """A rank's pads, tables and numbers of runs."""

    def __init__(self, group: weft.Group) -> None:
        self.group = group
        sharing = -(-group.size // torch.cuda.device_count())
        self.programs = torch.cuda.get_device_properties(0).multi_processor_count // sharing
        self.pads = [weft.signal_pad(max(self.programs, group.size + 1), group) for _ in range(2)]
        self.tensors = [(pad.peer_table().torch(), pad.signals.torch(), pad.count) for pad in self.pads]
        self.runs = [0, 0]

    def _signals(self, which: int) -> Tuple[Any, ...]:
        self.runs[which] += 1
        return (*self.tensors[which], self.runs[which] - 1)

    def all_reduce(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """``x`` is the peer table of the input."""
        all_reduce_kernel[(self.programs,)](
            x, out, out.numel(), *self._signals(0), RANKS=self.group.size, BLOCK=2048
        )

    def all_gather_matmul(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
        """``a`` is the peer table of this rank's rows."""
        all_gather_matmul_kernel[(self.programs,)](
            a, b, d, d.shape[0] // self.group.size, b.shape[1], b.shape[0], *self._signals(1), self.group.rank,
            RANKS=self.group.size, BM=128, BN=128, BK=64, num_warps=8, num_stages=3,
        )  # fmt: skip

    def check(self) -> None:
        for pad in self.pads:
            pad.wait(torch.cuda.current_stream().cuda_stream)


def whole(*shape: int, seed: int) -> torch.Tensor:
    """Small integers, the same on every rank: sums of them are exact."""
    values = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed))
    return values.to(torch.bfloat16).cuda()


def median_us(group: weft.Group, call: Callable[[], Any], iterations: int) -> float:
    """Microseconds of one call of ten on the stream, so that the launches are hidden."""
    times = []
    for _ in range(iterations):
        group.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e2)
    return statistics.median(times)


def main(arguments: Optional[List[str]] = None) -> None:
    """Runs on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--M", type=int, default=4096)
    parser.add_argument("--N", type=int, default=4096)
    parser.add_argument("--K", type=int, default=4096)
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--iterations", type=int, default=20)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("triton_kernels.py: there is no NVIDIA GPU here")
    group = weft.init()
    torch.cuda.set_device(group.rank % torch.cuda.device_count())
    group.use_gpu(torch.cuda.current_device())
    name, size, rank = weft.torch.name_of(group), group.size, group.rank
    if options.M % size or options.N % size or options.K % 64:
        raise SystemExit(f"M and N must be multiples of {size} here, K of 64")
    kernels = Kernels(group)

    x = weft.empty(options.bytes // 2, "bfloat16", group)
    x_table = x.peer_table().torch()
    out = torch.empty(options.bytes // 2, dtype=torch.bfloat16, device="cuda")
    for run in range(3):
        x.torch().copy_(whole(out.numel(), seed=10 * run + rank))
        kernels.all_reduce(x_table, out)
        want = sum(whole(out.numel(), seed=10 * run + r).float() for r in range(size))
        assert torch.equal(out.float(), want), "all_reduce: wrong sum"
    kernels.check()

    a, b = whole(options.M, options.K, seed=1), whole(options.K, options.N, seed=2)
    rows, cols = options.M // size, options.N // size
    mine, weight = weft.empty((rows, options.K), "bfloat16", group), b[:, rank * cols : (rank + 1) * cols].contiguous()
    a_table = mine.peer_table().torch()
    d = torch.empty(options.M, cols, dtype=torch.bfloat16, device="cuda")
    for run in range(3):
        mine.torch().copy_(a[rank * rows : (rank + 1) * rows] * (run + 1))
        kernels.all_gather_matmul(a_table, weight, d.fill_(float("nan")))
        assert torch.equal(d, ((a * (run + 1)).float() @ weight.float()).to(d.dtype)), "all_gather_matmul: wrong"
    kernels.check()

    rows_of: List[Any] = [
        ("all_reduce", lambda: kernels.all_reduce(x_table, out), lambda: torch.ops.weft.all_reduce(out, "sum", name)),
        (
            "all_gather_matmul",
            lambda: kernels.all_gather_matmul(a_table, weight, d),
            lambda: torch.ops.weft.ag_gemm(mine.torch(), weight, None, options.M, name),
        ),
    ]
    if rank == 0:
        print(f"{size} ranks on {torch.cuda.device_count()} GPU(s)\n{'kernel':>18} {'Triton us':>10} {'weft us':>10}")
    for title, own, ours in rows_of:
        for call in (own, ours):
            call()
        times = [median_us(group, call, options.iterations) for call in (own, ours)]
        kernels.check()
        if rank == 0:
            print(f"{title:>18} {times[0]:>10.1f} {times[1]:>10.1f}", flush=True)
    torch.cuda.synchronize()
    group.barrier()


if __name__ == "__main__":
    main()
