"""Compiled DTensor models: collectives and products become weft's fused operators, with the same results."""

import itertools
import os
import tempfile
import unittest
from typing import Any, List
from unittest import mock

import support

support.need("torch")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as collectives  # noqa: E402
from functorch.compile import make_boxed_func  # noqa: E402
from torch import fx, nn  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402

import weft.torch.compile  # noqa: E402


class Mlp(nn.Module):
    def __init__(self, hidden: int = 16, bias: bool = False) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(hidden, 2 * hidden, bias=bias) for _ in range(2))
        self.down = nn.Linear(2 * hidden, hidden, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def parallel(sequence: bool, model: nn.Module, dim: int = 0) -> nn.Module:
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    inner = {"input_layouts": Shard(dim)} if sequence else {}
    outer = {"output_layouts": Shard(dim)} if sequence else {}
    plan = {"gate": ColwiseParallel(**inner), "up": ColwiseParallel(**inner), "down": RowwiseParallel(**outer)}
    return parallelize_module(model, mesh, plan)


def begin_inductor() -> Any:
    """The pass, and inductor with loops that are compiled once for all ranks, as plain C++: to find out which vectors a compiler can
    make takes it a minute. A graph from its cache would need no pass."""
    import torch._inductor.cpu_vec_isa as vectors

    vectors.valid_vec_isa_list = lambda: []
    torch._functorch.config.enable_autograd_cache = torch._inductor.config.fx_graph_cache = False
    torch._inductor.config.compile_threads = 1
    return weft.torch.compile.enable()


class Counting:
    """A compiler that does nothing but the pass, and remembers which operators there were after it."""

    def __init__(self) -> None:
        self.calls: List[str] = []

    def __call__(self, module: fx.GraphModule, inputs: Any) -> Any:
        weft.torch.compile.fuse(module.graph)
        module.recompile()
        for node in module.graph.nodes:  # inductor reads the strides of an operator's own inputs there
            assert "weft" not in str(node.target) or "eager_input_vals" not in node.meta, node.meta["eager_input_vals"]
        names = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
        self.calls += [name.partition(".default")[0] for name in names if "weft" in name or "c10d" in name]
        return make_boxed_func(module)


def close_gradients(model, x: torch.Tensor, got: torch.Tensor, want: torch.Tensor, **within) -> None:
    """What a model's input and parameters get of two results for it."""
    want.sum().backward()
    grads, x.grad = [x.grad, *(p.grad for p in model.parameters())], None
    model.zero_grad()
    got.sum().backward()
    for a, b in zip([x.grad, *(p.grad for p in model.parameters())], grads):
        torch.testing.assert_close(*(y.full_tensor() if hasattr(y, "full_tensor") else y for y in (a, b)), **within)
    model.zero_grad()


def body(
    rank: int, inductor: bool, bias: bool = False, shape: Any = (8, 16), dim: int = 0, dynamic: bool = False, train: bool = True
) -> List[List[str]]:
    """What a model became: with a sequence that is divided along ``dim``, in inference and perhaps training, and with a whole one.
    ``dynamic``: its length is not known when the model is compiled."""
    torch.set_num_threads(1)
    dist.init_process_group("weft")
    seen = []
    try:
        for sequence in (True, False):
            torch.manual_seed(1)
            model = parallel(sequence, Mlp(bias=bias), dim)
            x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
            x = x.chunk(dist.get_world_size(), dim)[rank].clone() if sequence else x
            for grad in (False, True)[: 1 + train]:
                x = x.detach().requires_grad_(grad)
                for unknown in range(dim, x.dim() - 1) if dynamic else ():
                    torch._dynamo.mark_dynamic(x, unknown)
                with torch.set_grad_enabled(grad):
                    want = model(x)
                    counting = Counting()
                    found = begin_inductor() if inductor else None
                    compiled = torch.compile(
                        model, backend="inductor" if inductor else aot_autograd(fw_compiler=counting), fullgraph=True
                    )
                    got = compiled(x)
                torch.testing.assert_close(got, want)
                if grad:
                    close_gradients(model, x, got, want)
                seen.append(counting.calls if found is None else [str(found.found)])
                torch._dynamo.reset()
    finally:
        dist.destroy_process_group()
    return seen


def body_other_sums(rank: int) -> List[List[str]]:
    """Sums that the operators do not make: of a bias of each rank's own, of a matrix, with factors."""
    torch.set_num_threads(1)
    dist.init_process_group("weft")
    seen = []
    try:
        generator = torch.Generator().manual_seed(rank)
        x, w, b, c = (torch.randn(*shape, generator=generator) for shape in ((4, 8), (8, 6), (6,), (4, 6)))
        for product in (
            lambda: collectives.all_reduce(torch.addmm(b, x, w), "sum", dist.group.WORLD),
            lambda: collectives.all_reduce(torch.addmm(b / 3, x, w), "sum", dist.group.WORLD),
            lambda: collectives.all_reduce(torch.addmm(c, x, w), "sum", dist.group.WORLD),
            lambda: torch.addmm(b, collectives.all_gather_tensor(x, 0, dist.group.WORLD), w, beta=2),
            lambda: torch.addmm(b[:1], collectives.all_gather_tensor(x, 0, dist.group.WORLD), w),
        ):
            counting = Counting()
            compiled = torch.compile(product, backend=aot_autograd(fw_compiler=counting), fullgraph=True)
            torch.testing.assert_close(compiled(), product())
            seen.append(counting.calls)
            torch._dynamo.reset()
    finally:
        dist.destroy_process_group()
    return seen


def body_without_loops(rank: int) -> int:
    """Two products and nothing between them: inductor has no loops to compile, only calls to arrange."""
    torch.set_num_threads(1)
    dist.init_process_group("weft")
    try:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False))
        plan = {"0": ColwiseParallel(input_layouts=Shard(0)), "1": RowwiseParallel(output_layouts=Shard(0))}
        model = parallelize_module(model, mesh, plan)
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(rank))
        found = weft.torch.compile.enable()
        torch._inductor.config.force_disable_caches = True  # a graph from there needs no pass
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x))
    finally:
        dist.destroy_process_group()
    return int(found.found)


def broken(rank: int) -> None:
    """A MoE layer, whose graph breaks where it needs counts: between graphs, operators and the backend run as they are."""
    dist.init_process_group("weft")
    torch.manual_seed(1)
    layer = weft.torch.MoELayer(16, 24, 4, 2, 8, dist.group.WORLD)
    for backend, dynamic in (("eager", None), ("aot_eager", True)):
        torch._dynamo.reset()
        compiled = torch.compile(layer, backend=backend, dynamic=dynamic)
        for tokens in (3, 6):
            x = torch.randn(tokens, 16, requires_grad=True)
            close_gradients(layer, x, compiled(x), layer(x))
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), layer(x))

    @torch.compile(backend="eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = layer(x).sum()
        loss.backward()
        dist.all_reduce(loss.detach().clone())
        return loss

    got, x.grad = x.grad, None
    step(x)
    torch.testing.assert_close(got, x.grad)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(layer.prepack(), backend="eager")(x), layer(x))
    dist.destroy_process_group()


class Compile(unittest.TestCase):
    def test_products_are_woven(self) -> None:
        inputs = (((8, 16), 0), ((4, 3, 16), 0), ((3, 8, 16), 1))
        kinds = ((False, False), (True, True)) + (((True, False),) if support.SOAK else ())
        for (shape, dim), (bias, dynamic) in itertools.product(inputs, kinds):
            # torch 2.15 itself recurses without end in training where extents of three dimensions are not known.
            train = not (dynamic and len(shape) == 3 and torch.__version__ >= "2.15")
            for rank in support.ranks(2, body, False, bias, shape, dim, dynamic, train):
                with self.subTest(bias=bias, shape=shape, dim=dim, dynamic=dynamic):
                    divided, whole = rank[: 1 + train], rank[1 + train :]
                    self.assertEqual(divided[0], ["weft.ag_gemm", "weft.ag_gemm", "weft.gemm_rs"])
                    self.assertEqual(whole[0], ["weft.gemm_ar"])
                    if train:  # down, and the gradients of what gate and up got
                        self.assertEqual(divided[1].count("weft.gemm_rs"), 3)
                        self.assertEqual(whole[1].count("weft.gemm_ar"), 3)

    def test_other_sums_stay(self) -> None:
        for rank in support.ranks(2, body_other_sums):
            self.assertEqual(len(rank), 5)
            for calls in rank:
                self.assertEqual([name for name in calls if "weft" in name], [])

    def test_a_layer_whose_graph_breaks(self) -> None:
        support.ranks(2, broken)

    def test_inductor_arranges_products(self) -> None:
        self.assertEqual(support.ranks(2, body_without_loops), [2, 2])

    @unittest.skipUnless(support.SOAK, "a minute of compiling")
    def test_inductor(self) -> None:
        for shape, dim in (((8, 16), 0), ((3, 8, 16), 1)):
            with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
                for counts in support.ranks(2, body, True, False, shape, dim, seconds=900):
                    with self.subTest(shape=shape, dim=dim):
                        # Products in inference; those of training, forward and backward; the same where the sequence is whole.
                        self.assertEqual([int(n[0]) for n in counts], [3, 3, 1, 3])


if __name__ == "__main__":
    support.main()
