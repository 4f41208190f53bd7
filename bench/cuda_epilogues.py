"""Epilogues of products on one GPU: gated activations, and factors of rows and columns.

    weft run -n 1 -- python3 bench/cuda_epilogues.py [M N K]...

bfloat16, weights n x k; N columns of D, so that a gated product has 2 N of B. Each side in a CUDA graph of several calls,
the sides in turn, medians in us: the product alone (of 2 N columns where it is gated); with the epilogue; and torch's
product with torch's own kernels behind it. weft's result is compared with the product in float32.
"""

import statistics
import sys

import torch
import torch.nn.functional as F
import weft

CALLS, ROUNDS = 10, 15
LAYERS = ((14336, 4096), (3584, 8192), (1792, 4096), (18944, 3584))
SHAPES = [(m, n, k) for n, k in LAYERS for m in (1, 16, 64, 200, 512, 2048, 4096)]


def graph_of(run):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            run()
    return graph


def time_all(graphs):
    times = {name: [] for name in graphs}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(ROUNDS + 2):
        for name in list(graphs)[turn % len(graphs):] + list(graphs)[: turn % len(graphs)]:
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            if turn > 1:
                times[name].append(begin.elapsed_time(end) * 1e3 / CALLS)
    return {name: statistics.median(t) for name, t in times.items()}


def plan_of(group, m, n, k, **more):
    return weft.Plan(group, "ag_gemm", m=m, n=n, k=k, dtype="bf16", transb=1, **more)


def measure(group, m, n, k, gated):
    a = (torch.rand(m, k, device="cuda") - 0.5).bfloat16()
    b = (torch.rand(2 * n if gated else n, k, device="cuda") - 0.5).bfloat16()
    d = torch.full((m, n), float("nan"), device="cuda").bfloat16()
    plain = torch.empty(m, b.shape[0], device="cuda").bfloat16()
    rows, cols = torch.rand(m, device="cuda") + 0.5, torch.rand(n, device="cuda") + 0.5
    values = {} if gated else {"row_scale": rows, "col_scale": cols}
    fields = {"act": "silu_gated"} if gated else {"scales": 1}
    product, whole = plan_of(group, m, b.shape[0], k), plan_of(group, m, n, k, **fields)

    def here(plan, out, values):
        plan.run(a=a, b=b, d=out, stream=torch.cuda.current_stream().cuda_stream, **values)

    def by_torch():
        x = a @ b.t()
        return F.silu(x[:, 0::2]) * x[:, 1::2] if gated else x * rows[:, None].bfloat16() * cols.bfloat16()

    us = time_all({
        "product": graph_of(lambda: here(product, plain, {})),
        "weft": graph_of(lambda: here(whole, d, values)),
        "torch": graph_of(by_torch),
    })
    x = a.float() @ b.float().t()
    want = F.silu(x[:, 0::2]) * x[:, 1::2] if gated else x * rows[:, None] * cols
    return us, ((d.float() - want).abs().max() / want.abs().max()).item() <= 0.01


def main():
    group = weft.init()
    group.use_gpu(torch.cuda.current_device())
    given = [int(x) for x in sys.argv[1:]]
    shapes = [tuple(given[i:i + 3]) for i in range(0, len(given), 3)] or SHAPES
    print("             M      N      K  product     weft    torch  weft/product  torch/weft")
    for gated in (True, False):
        ratios = []
        for m, n, k in shapes:
            us, right = measure(group, m, n, k, gated)
            ratios.append(us["torch"] / us["weft"])
            print("%-7s %6d %6d %6d %8.1f %8.1f %8.1f %13.2f %11.2f%s" % (
                ("gated" if gated else "factors", m, n, k) + tuple(us.values())
                + (us["weft"] / us["product"], ratios[-1], "" if right else "  WRONG")), flush=True)
        print("torch/weft: geometric mean %.2f, least %.2f" % (statistics.geometric_mean(ratios), min(ratios)))


main()
