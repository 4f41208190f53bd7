"""CUDA tensors: operators, modules, graphs and the backend over processes on the GPUs that are there, by small integers exactly
equal to one process."""

import contextlib
import datetime
import importlib.util
import io
import os
import sys
import unittest
import warnings
from pathlib import Path
from typing import Any, Callable, List, Tuple

import support

support.need("torch")
os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"  # torch's own symmetric memory, for comparison
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking must not start CUDA: ranks are forked

import torch  # noqa: E402

if not torch.cuda.is_available():
    print("skipped: no GPU that torch can use")
    sys.exit(77)

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from programs import data_parallel, pipelined, sharded, tensor_parallel  # noqa: E402
import test_compile  # noqa: E402
import weft  # noqa: E402
import weft.torch.compile  # noqa: E402

ops = torch.ops.weft
SIZES = (2, 4)


def whole(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    values = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed))
    return (values.abs() > 1 if dtype == torch.bool else values.to(dtype)).cuda()


def cut(x: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    begin, count = weft.part(x.shape[dim], group.size, group.rank)
    return x.narrow(dim, begin, count).clone()


def exact(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.float() @ y.float()).to(x.dtype)


def on_gpu(rank: int) -> Any:
    torch.cuda.set_device(rank % torch.cuda.device_count())
    group = weft.init()
    group.use_gpu(torch.cuda.current_device())
    return group, weft.torch.name_of(group)


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype, f"{what}: {got.shape} {got.dtype}"
    wrong = int((got != want).sum())
    assert wrong == 0, f"{what}: {wrong} of {want.numel()} elements are wrong"


def products(rank: int) -> None:
    group, name = on_gpu(rank)
    for dtype in (torch.bfloat16, torch.float16):
        for m in (256, 250, 1):
            a, b = whole(m, 128, seed=1, dtype=dtype), whole(128, 256, seed=2, dtype=dtype)
            want = exact(a, b)
            mine = cut(a, 0, group), cut(b, 1, group)
            same(ops.ag_gemm(*mine, None, m, name), cut(want, 1, group), f"ag_gemm {m} {dtype}")
            same(ops.gemm_as(a, mine[1], None, name), want, f"gemm_as {m} {dtype}")
            mine = cut(a, 1, group), cut(b, 0, group)
            same(ops.gemm_rs(*mine, None, name), cut(want, 0, group), f"gemm_rs {m} {dtype}")
            same(ops.gemm_ar(*mine, None, name), want, f"gemm_ar {m} {dtype}")
    torch.cuda.synchronize()


def behind_torch(rank: int) -> None:
    """Calls that return when they are done take what torch's stream is still to write; behind operators' calls, too."""
    group, name = on_gpu(rank)
    a, b = whole(64, 128, seed=1), whole(128, 256, seed=2)
    parts, weight, want = cut(a, 1, group), cut(b, 0, group), exact(a, b)
    mine, d, total = torch.empty_like(parts), torch.empty_like(want), torch.empty_like(parts)
    slow = torch.randn(4096, 4096, device="cuda", dtype=torch.float64)
    plan = weft.Plan(group, "gemm_ar", m=64, n=256, k=128, dtype="bfloat16")

    def check(call: Callable[[], Any], got: torch.Tensor, want: torch.Tensor, what: str) -> None:
        mine.zero_()
        got.zero_()
        torch.cuda.synchronize()
        for _ in range(4):
            slow @ slow
        mine.copy_(parts)
        call()
        same(got, want, what)

    check(lambda: group.gemm_ar(mine, weight, d), d, want, "gemm_ar")
    check(lambda: plan.run(mine, weight, d), d, want, "a plan's run")
    check(lambda: group.all_reduce(mine, total), total, a.view(64, group.size, -1).sum(1), "all_reduce")
    ops.all_reduce(mine, "sum", name)  # from here on calls go where torch's do
    check(lambda: group.gemm_ar(mine, weight, d), d, want, "gemm_ar behind an operator")
    check(lambda: plan.run(mine, weight, d), d, want, "a plan's run behind an operator")
    torch.cuda.synchronize()


def layers(rank: int) -> None:
    group, name = on_gpu(rank)
    torch.manual_seed(0)
    options = dict(group=group, dtype=torch.bfloat16)
    for sequence in (False, True):
        first, second = nn.Linear(128, 256, bias=False), nn.Linear(256, 128, bias=False)
        first.weight.data, second.weight.data = whole(256, 128, seed=5).cpu(), whole(128, 256, seed=6).cpu()
        up = weft.torch.ColumnParallelLinear(128, 256, bias=False, sequence_parallel=sequence, **options)
        down = weft.torch.RowParallelLinear(256, 128, bias=False, sequence_parallel=sequence, **options)
        up.load_state_dict(first.state_dict())
        down.load_state_dict(second.state_dict())
        up, down = up.cuda(), down.cuda()
        x = whole(64, 128, seed=7)
        mine = (cut(x, 0, group) if sequence else x.clone()).requires_grad_()
        y = down(up(mine).clamp(-4, 4))
        hidden = exact(x, first.weight.data.cuda().t())
        want = exact(hidden.clamp(-4, 4), second.weight.data.cuda().t())
        same(y.detach(), cut(want, 0, group) if sequence else want, f"layers, sequence_parallel {sequence}")
        grad = whole(64, 128, seed=8)
        product = lambda t: down(up(t).clamp(-4, 4))  # noqa: E731
        _, back = torch.func.vjp(product, mine.detach())
        (by_func,) = back(cut(grad, 0, group) if sequence else grad)
        with warnings.catch_warnings(record=True) as said:
            y.backward(cut(grad, 0, group) if sequence else grad)
        assert not said, f"backward complains: {said[0].message}"
        wide = torch.where((hidden >= -4) & (hidden <= 4), exact(grad, second.weight.data.cuda()), 0)
        dx = exact(wide, first.weight.data.cuda())
        for got in (mine.grad, by_func):
            same(got, cut(dx, 0, group) if sequence else dx, f"gradient, sequence_parallel {sequence}")
        same(up.weight.grad, cut(exact(wide.t(), x), 0, group), "gradient of the weight")
    torch.cuda.synchronize()


def captured(step: Callable[[], Any]) -> Tuple[Any, Any]:
    """A CUDA graph of a step, and what it returned there; after two steps that made the memory it needs."""
    stream, recorded = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    with torch.cuda.graph(recorded, stream=stream):
        out = step()
    return recorded, out


def graph(rank: int) -> None:
    group, name = on_gpu(rank)
    a, b = whole(64, 128, seed=1), whole(128, 256, seed=2)
    mine, weight, x = cut(a, 1, group), cut(b, 0, group), whole(1000, seed=rank, dtype=torch.float32)

    def step() -> List[torch.Tensor]:
        y = ops.gemm_ar(mine, weight, None, name)
        return [y, ops.all_reduce(x, "sum", name), ops.ag_gemm(cut(y, 0, group), weight.t(), None, 64, name)]

    recorded, out = captured(step)
    for round in range(20):
        mine.copy_(cut(a + round % 3, 1, group))
        x.copy_(whole(1000, seed=rank + round, dtype=torch.float32))
        recorded.replay()
        same(out[0], exact(a + round % 3, b), f"replay {round}")
        total = sum(whole(1000, seed=r + round, dtype=torch.float32) for r in range(group.size))
        same(out[1], total, f"all_reduce in replay {round}")
    torch.cuda.synchronize()


def modules(rank: int) -> None:
    """Modules in a graph, beside one process and beside torch's symmetric memory on the same matrices."""
    import torch.distributed._symmetric_memory as symmetric

    group, _ = on_gpu(rank)
    dist.init_process_group("gloo")
    world = dist.group.WORLD.group_name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # needed up to torch 2.10
        symmetric.enable_symm_mem_for_group(world)
    m, hidden, inter = 256, 512, 1024
    x, up_weight, down_weight = whole(m, hidden, seed=1), whole(inter, hidden, seed=2), whole(hidden, inter, seed=3)
    options = dict(bias=False, group=group, sequence_parallel=True, dtype=torch.bfloat16)
    up = weft.torch.ColumnParallelLinear(hidden, inter, **options)
    down = weft.torch.RowParallelLinear(inter, hidden, **options)
    up.load_state_dict({"weight": up_weight.cpu()})
    down.load_state_dict({"weight": down_weight.cpu()})
    mlp = weft.torch.SwiGLU(hidden, inter, group, True, dtype=torch.bfloat16)
    mlp.load_state_dict(
        {"gate_proj.weight": up_weight.cpu(), "up_proj.weight": up_weight.cpu() / 4, "down_proj.weight": down_weight.cpu() / 8}
    )
    up, down, mlp, mine = up.cuda(), down.cuda(), mlp.cuda(), cut(x, 0, group)

    def step() -> List[torch.Tensor]:
        wide = up(mine)
        return [wide, down(wide.clamp(-4, 4)), mlp(mine)]

    with torch.no_grad():
        recorded, out = captured(step)
        for round in range(5):
            tokens = x + round % 3
            mine.copy_(cut(tokens, 0, group))
            recorded.replay()
            torch.cuda.synchronize()
            wide = exact(tokens, up_weight.t())
            same(out[0], cut(wide, 1, group), f"column parallel, replay {round}")
            total = exact(wide.clamp(-4, 4), down_weight.t())
            same(out[1], cut(total, 0, group), f"row parallel, replay {round}")
            gated = nn.functional.silu(wide) * exact(tokens, up_weight.t() / 4)
            whole_mlp = cut(gated.float() @ down_weight.float().t() / 8, 0, group)
            spread = (gated.float().abs() @ down_weight.float().abs().t() / 8).max() * 2**-7
            assert float((out[2].float() - whole_mlp).abs().max()) <= float(spread), "SwiGLU"
        gathered, theirs = torch.ops.symm_mem.fused_all_gather_matmul(mine, [up.weight.t()], 0, world)
        same(theirs[0], out[0], "torch's fused_all_gather_matmul")
        del gathered
        theirs = torch.ops.symm_mem.fused_matmul_reduce_scatter(out[0].clamp(-4, 4), down.weight.t(), "sum", 0, world)
        torch.testing.assert_close(theirs, out[1], rtol=2**-6, atol=4)  # its sums travel as bfloat16
    group.wait()
    torch.cuda.synchronize()
    dist.barrier()


def routing(experts: int, topk: int, tokens: int, seed: int) -> Any:
    """Distinct experts, some of them none, and weights that keep sums exact."""
    source = torch.Generator().manual_seed(seed)
    expert = torch.stack([torch.randperm(experts, generator=source)[:topk] for _ in range(tokens)]).to(torch.int32)
    expert[torch.rand(expert.shape, generator=source) < 0.2] = -1
    return expert.cuda(), whole(tokens, topk, seed=seed, dtype=torch.float32)


def experts(rank: int) -> None:
    group, _ = on_gpu(rank)
    count, topk, hidden, most = 5, 3, 64, 9
    for dtype in (torch.float32, torch.bfloat16):
        moe = weft.MoE(group, count, topk, hidden, most, dtype)
        layer = weft.torch.layer_name(moe)
        for tokens in (most, rank % 2, 4):  # one round has ranks without tokens
            expert, weight = routing(count, topk, most, seed=7 * rank + tokens)
            expert, weight = expert[:tokens].contiguous(), weight[:tokens].contiguous().requires_grad_()
            x = whole(tokens, hidden, seed=rank, dtype=dtype).requires_grad_()
            grad = whole(tokens, hidden, seed=rank + 9, dtype=dtype)
            rows, counts, entry_weight, round = ops.moe_dispatch(x, expert, weight, None, layer)
            scale = torch.tensor(moe.local_experts).repeat_interleave(counts).cuda() + 1
            y = ops.moe_combine(rows * scale[:, None].to(dtype), expert, weight, entry_weight, round, layer)
            factor = torch.where(expert >= 0, expert + 1, 0)
            sums = (weight.detach() * factor).sum(1, keepdim=True)
            same(y.detach(), (x.detach() * sums).to(dtype), f"moe of {tokens} tokens, {dtype}")
            y.backward(grad)
            same(x.grad, (grad * sums).to(dtype), f"gradient of tokens, {dtype}")
            same(weight.grad, factor * (x.detach().float() * grad.float()).sum(1, keepdim=True), "gradient of weights")
        received = moe.dispatch(x.detach(), expert, weight.detach())
        packed, start = moe.gather(x.detach(), alignment=4)
        sizes = [(b - a + 3) // 4 * 4 for a, b in zip(received.offset, received.offset[1:])]
        assert start.tolist() == [sum(sizes[:j]) for j in range(len(sizes))], start
        sums = (weight.detach() * (expert >= 0)).sum(1, keepdim=True)
        same(moe.combine(packed, start), (x.detach() * sums).to(dtype), "aligned")
        wrong = torch.full_like(expert, count) if rank == 0 else expert
        try:
            ops.moe_dispatch(x.detach(), wrong, weight.detach(), None, layer)
            raise AssertionError("a wrong expert was taken")
        except (weft.errors.ArgumentError, weft.errors.PeerError) as error:
            assert ("asks for expert 5" if rank == 0 else "rank 0 rejected") in str(error), str(error)
        torch.cuda.synchronize()
    expert_layer(rank, group)


def expert_layer(rank: int, group: Any) -> None:
    """The layer beside one process; its packed experts in a graph, replayed with other tokens and so other routings."""
    torch.manual_seed(4)
    (alone,) = weft.threads(1)
    shape = 64, 96, 5, 2, 8
    ordinary = weft.torch.MoELayer(*shape, alone)  # all experts on one rank, on the CPU
    layer = weft.torch.MoELayer(*shape, group, device="cuda")
    layer.load_state_dict(ordinary.state_dict())
    x = torch.randn(group.size, 8, 64)[rank]
    here, there = x.clone().requires_grad_(), x.cuda().requires_grad_()
    want, y = ordinary(here), layer(there)
    torch.testing.assert_close(y.detach().cpu(), want.detach(), rtol=1e-4, atol=1e-4)
    want.sum().backward()
    y.sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-4, atol=1e-4)
    half = weft.torch.MoELayer(*shape, group, dtype=torch.bfloat16, device="cuda")
    half.load_state_dict(ordinary.state_dict())
    fixed = x.cuda().bfloat16()
    with torch.no_grad():
        plain = half(fixed)
        same(layer.bfloat16()(fixed), plain, "a layer that was converted")
        packed = half.prepack()
        torch.testing.assert_close(packed(fixed), plain, rtol=0.03, atol=0.03)
        torch.cuda.synchronize()
        recorded, out = captured(lambda: packed(fixed))
        for round in range(20):
            tokens = torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * rank + round)).cuda().bfloat16()
            fixed.copy_(tokens)
            recorded.replay()
            got = out.clone()
            torch.cuda.synchronize()
            same(got, packed(tokens), f"replay {round}")
    group.wait()
    torch.cuda.synchronize()


def backend(rank: int) -> None:
    torch.cuda.set_device(rank % torch.cuda.device_count())
    here = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("weft", timeout=datetime.timedelta(seconds=60), device_id=here)
    size = dist.get_world_size()

    def both(call: Any, *inputs: torch.Tensor) -> None:
        """A call on CUDA tensors gives what it gives on the same tensors on the CPU."""
        here, there = [x.clone() for x in inputs], [x.cpu() for x in inputs]
        for got, want in zip(call(*here), call(*there)):
            same(got.cpu(), want, str(call))

    def reduced(op: Any) -> Any:
        def call(x: torch.Tensor) -> List[torch.Tensor]:
            dist.all_reduce(x, op)
            return [x]

        return call

    def moved(x: torch.Tensor) -> List[torch.Tensor]:
        every = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(every, x)
        flat = x.new_empty((size * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(flat, x)
        swapped = torch.empty_like(flat)
        dist.all_to_all_single(swapped, flat)
        uneven = [(rank + r) % 3 for r in range(size)]
        some = flat.new_empty((sum(uneven), *x.shape[1:]))
        dist.all_to_all_single(some, flat[: sum(uneven)], uneven, uneven)
        share = torch.empty_like(x)
        dist.scatter(share, list(flat.split(x.shape[0])) if rank == 1 else None, src=1)
        gathered = [torch.empty_like(x) for _ in range(size)] if rank == 0 else None
        dist.gather(x, gathered)
        dist.broadcast(x, src=size - 1)
        return [*every, flat, swapped, some, share, *(gathered or []), x]

    def summed(x: torch.Tensor) -> List[torch.Tensor]:
        share = x.new_empty((x.shape[0] // size, *x.shape[1:]))
        dist.reduce_scatter_tensor(share, x)
        dist.reduce(x, dst=0)
        return [share, x] if rank == 0 else [share]

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.float64, torch.uint8, torch.bool):
        seed = rank if dtype != torch.uint8 else 3 * rank
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            both(reduced(op), whole(7, 3, seed=seed, dtype=dtype))
        both(moved, whole(5, 3, seed=seed, dtype=dtype))
        both(summed, whole(4 * size, 3, seed=seed, dtype=dtype))
    both(reduced(dist.ReduceOp.AVG), whole(9, seed=rank, dtype=torch.float32) * size)
    both(reduced(dist.ReduceOp.SUM), whole(1 << 20, seed=rank, dtype=torch.float32))
    half = dist.new_group([r for r in range(size) if r % 2 == rank % 2], use_local_synchronization=True)
    x = torch.full((3,), float(rank), device="cuda")
    dist.all_reduce(x, group=half)
    assert x.tolist() == [float(sum(r for r in range(size) if r % 2 == rank % 2))] * 3
    mesh = init_device_mesh("cuda", (size // 2, 2))  # by split_group, since the group is bound to a device
    x.fill_(rank)
    dist.all_reduce(x, group=mesh.get_group(1))
    assert x.tolist() == [float(rank // 2 * 4 + 1)] * 3, x
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(8, 4).cuda())
    wrapped(torch.ones(2, 8, device="cuda") * rank).sum().backward()
    every = [torch.empty_like(wrapped.module.weight.grad) for _ in range(size)]
    dist.all_gather(every, wrapped.module.weight.grad)
    for other in every:
        same(other, every[0], "gradients over ranks")
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def programs(rank: int) -> None:
    """Unmodified programs of torch on CUDA tensors, beside the same on the CPU."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("weft", timeout=datetime.timedelta(seconds=60))
    for name, program in {
        "tensor parallel": lambda device: tensor_parallel(rank, False, device),
        "tensor and sequence parallel": lambda device: tensor_parallel(rank, True, device),
        "FSDP2": lambda device: sharded(rank, device),
        "DDP": lambda device: data_parallel(rank, device),
        "pipelines": lambda device: pipelined(rank, device),
    }.items():
        for got, want in zip(program("cuda"), program("cpu")):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=lambda text: f"{name}: {text}")
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def streams(rank: int) -> None:
    """Calls of one group on two streams, waited for on a third, and messages between computation."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("weft", timeout=datetime.timedelta(seconds=60))
    size, count = dist.get_world_size(), 1 << 20
    two = [torch.cuda.Stream(), torch.cuda.Stream()]
    for round in range(20):
        given, works = [], []
        for i in range(4):
            with torch.cuda.stream(two[i % 2]):
                torch.cuda._sleep(1000000 * (i % 3))
                given.append(torch.full((count,), float(rank + i + round), device="cuda"))
                works.append(dist.all_reduce(given[i], async_op=True))
        for i, work in enumerate(works):
            if i % 2:
                work.wait()
            else:
                work.get_future().wait()
            same(given[i] + 0, torch.full_like(given[i], float(sum(range(size)) + size * (i + round))), f"call {i} of round {round}")
        after, before = (rank + 1) % size, (rank - 1) % size
        torch.cuda._sleep(1000000)
        mine, theirs = torch.full((count,), float(rank + round), device="cuda"), torch.zeros(count, device="cuda")
        sent = dist.isend(mine, after)
        if round % 2:
            dist.recv(theirs, before)
        else:
            assert dist.recv(theirs) == before
        same(theirs, torch.full_like(theirs, float(before + round)), f"message of round {round}")
        sent.wait()
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


def compiled(rank: int) -> None:
    """A compiled DTensor model: its collectives and products are woven, with the results of the one that is not compiled."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("weft", timeout=datetime.timedelta(seconds=60))
    size = dist.get_world_size()
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.force_disable_caches = True  # a graph from there needs no pass
    found = weft.torch.compile.enable()
    for sequence in (True, False):
        torch.manual_seed(1)
        model = test_compile.parallel(sequence, test_compile.Mlp(128).cuda().bfloat16())
        x = torch.randn(64, 128, generator=torch.Generator().manual_seed(2)).cuda().bfloat16()
        x = x.chunk(size)[rank].clone() if sequence else x
        for train in (False, True):
            x, before = x.detach().requires_grad_(train), found.found
            with torch.set_grad_enabled(train):
                want, got = model(x), torch.compile(model, fullgraph=True)(x)
            torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)
            if train:
                test_compile.close_gradients(model, x, got, want, rtol=0.05, atol=0.1)
                assert found.found > before, "nothing was woven for training"
            else:
                assert found.found - before == (3 if sequence else 1), f"{found.found - before} products were woven"
            torch._dynamo.reset()
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


def own_kernels(rank: int) -> None:
    """The Triton example, and a wait that nobody answers."""
    source = Path(os.environ["WEFT_SOURCE"]) / "examples" / "python" / "triton_kernels.py"
    spec: Any = importlib.util.spec_from_file_location("triton_kernels", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    group = weft.init()  # main's too
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        module.main(["--M", "512", "--N", "1024", "--K", "256", "--bytes", "100002", "--iterations", "3"])
    lines = printed.getvalue().splitlines()
    assert len(lines) == (4 if rank == 0 else 0), lines
    pad = weft.signal_pad(2, group)
    assert pad.peer_table().torch().tolist() == [pad.signals.peer(r).pointer for r in range(group.size)]
    try:
        group.barrier()
        if rank == 0:
            group.abort("enough")
        while True:
            pad.wait(torch.cuda.current_stream().cuda_stream)
    except weft.errors.AbortedError as error:
        assert "enough" in str(error), str(error)


class Cuda(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("triton"), "no triton")
    def test_own_kernels(self) -> None:
        for size in SIZES:
            support.ranks(size, own_kernels)

    def test_products(self) -> None:
        for size in SIZES:
            support.ranks(size, products)

    def test_behind_torch(self) -> None:
        for size in SIZES:
            support.ranks(size, behind_torch)

    def test_layers(self) -> None:
        for size in SIZES:
            support.ranks(size, layers)

    def test_graph(self) -> None:
        for size in SIZES:
            support.ranks(size, graph)

    def test_modules(self) -> None:
        for size in SIZES:
            support.ranks(size, modules)

    def test_experts(self) -> None:
        for size in SIZES:
            support.ranks(size, experts)

    def test_backend(self) -> None:
        for size in SIZES:
            support.ranks(size, backend)

    def test_programs(self) -> None:
        for size in SIZES:
            support.ranks(size, programs)

    def test_streams(self) -> None:
        for size in SIZES:
            support.ranks(size, streams)

    @unittest.skipUnless(importlib.util.find_spec("triton"), "no triton")
    def test_compile(self) -> None:
        support.ranks(2, compiled)


if __name__ == "__main__":
    support.main()
