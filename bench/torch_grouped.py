"""Grouped products of experts on one GPU: weft_grouped_gemm beside torch._grouped_mm and cuBLAS in a loop.

    PYTHONPATH=python python3 bench/torch_grouped.py [--quick]

bfloat16, the experts of a layer with hidden 7168 and intermediate 2048: gate and up (n 4096, k 7168), then down
(n 7168, k 2048); weights n x k. Each side in a CUDA graph of several calls, the sides in turn, medians; the weights
are far larger than the L2 cache. weft reads the rows per expert from GPU memory, the loop gets them on the host. Every
result is compared with the loop's. The bound is the larger of weights and rows over 4.3 TB/s and operations over 790
TFLOP/s.
"""

import ctypes as C
import math
import statistics
import sys

import torch
from weft._library import check, constants, lib, structs

HIDDEN, INTER, CALLS = 7168, 2048, 4


def rows_of(experts, mean, even):
    """Rows of each expert: the same for all, or from none to three times as many."""
    if even:
        return [mean] * experts
    generator = torch.Generator().manual_seed(experts * 4096 + mean)
    drawn = torch.rand(experts, generator=generator) ** 2 * 3
    rows = (drawn / drawn.sum() * mean * experts).round().int().tolist()
    return [max(r, 0) for r in rows]


class Case:
    def __init__(self, group, experts, rows, n, k):
        total = sum(rows)
        self.group, self.experts, self.rows, self.n, self.k, self.total = group, experts, rows, n, k, total
        self.a = torch.randn(total, k, device="cuda").bfloat16()
        self.b = torch.empty(experts, n, k, device="cuda", dtype=torch.bfloat16)
        for e in range(experts):
            self.b[e] = torch.randn(n, k, device="cuda") * k**-0.5
        ends = torch.tensor(rows).cumsum(0)
        self.ends = [0] + ends.tolist()
        self.offset = torch.tensor(self.ends, device="cuda", dtype=torch.int64)
        self.offs32 = ends.to(device="cuda", dtype=torch.int32)
        self.d = [torch.full((total, n), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        args = structs["weft_grouped_args"]()
        lib.weft_grouped_args_init_sized(
            C.byref(args), C.sizeof(args), constants["WEFT_BF16"], experts, total, n, k)
        args.transb = 1
        args.offset = self.offset.data_ptr()
        args.a, args.b, args.d = self.a.data_ptr(), self.b.data_ptr(), self.d[0].data_ptr()
        self.args = args

    def weft(self):
        stream = torch.cuda.current_stream().cuda_stream
        check(lib.weft_group_set_stream(self.group, 1, stream or None), self.group)
        check(lib.weft_grouped_gemm(self.group, C.byref(self.args)), self.group)

    def torch(self):
        self.d[1] = torch._grouped_mm(self.a, self.b.transpose(-2, -1), offs=self.offs32)

    def loop(self):
        for e in range(self.experts):
            begin, end = self.ends[e], self.ends[e + 1]
            if end > begin:
                torch.mm(self.a[begin:end], self.b[e].t(), out=self.d[2][begin:end])

    def bound_us(self):
        active = sum(r > 0 for r in self.rows)
        moved = 2 * (active * self.n * self.k + self.total * (self.n + self.k))
        return max(moved / 4.3e6, 2 * self.total * self.n * self.k / 790e6)


def measure(sides, rounds):
    graphs = []
    for side in sides:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            side()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(CALLS):
                side()
        graphs.append(graph)
    times = [[] for _ in sides]
    for i in range(rounds + 2):
        for graph, seen in zip(graphs, times):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if i >= 2:
                seen.append(begin.elapsed_time(end) * 1000 / CALLS)
    return [statistics.median(t) for t in times]


def main():
    quick = "--quick" in sys.argv
    group = C.c_void_p()
    check(lib.weft_group_threads(1, C.byref(group)), None)
    check(lib.weft_group_use_gpu(group, 0), group)
    shapes = [(e, m, even) for e in (8, 32, 64) for m in (16, 64, 256, 1024) for even in (True, False)]
    if quick:
        shapes = [(8, 16, True), (8, 64, False), (8, 256, True), (8, 1024, True), (8, 1024, False), (32, 64, False), (32, 256, False), (64, 64, True)]
    print("experts  rows        product     weft    torch     loop    bound us  best/weft  bound/weft", flush=True)
    ratios = []
    for experts, mean, even in shapes:
        for name, n, k in (("gate+up", 2 * INTER, HIDDEN), ("down", HIDDEN, INTER)):
            case = Case(group, experts, rows_of(experts, mean, even), n, k)
            weft, grouped, loop = measure((case.weft, case.torch, case.loop), 7 if quick else 11)
            wrong = (case.d[0].float() - case.d[2].float()).abs().max().item()
            size = case.d[2].float().abs().max().item()
            ratios.append(min(grouped, loop) / weft)
            ok = "" if wrong <= size / 64 else f"  WRONG by {wrong}"
            print(f"{experts:7} {mean:5} {'even' if even else 'uneven':7} {name:8} {weft:7.1f} {grouped:8.1f} {loop:8.1f}"
                  f" {case.bound_us():8.1f}   {ratios[-1]:8.3f} {case.bound_us() / weft:9.2f}{ok}", flush=True)
            del case
            torch.cuda.empty_cache()
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean {mean:.3f}, least {min(ratios):.3f}")


main()
