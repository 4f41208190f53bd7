"""Modules: outputs and gradients equal to one process, conversion, what can be saved."""

import copy
import gc
import io
import os
import threading
import unittest
from typing import Any, List

import support

support.need("torch")

import torch  # noqa: E402
from torch import nn  # noqa: E402

import weft  # noqa: E402
import weft.torch  # noqa: E402
from tensors import cut  # noqa: E402

SEED = threading.Lock()  # ranks that are threads share torch's generator


class Llama(nn.Module):
    """An ordinary feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(32, 48, bias=False), nn.Linear(32, 48, bias=False)
        self.down_proj = nn.Linear(48, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def twice(y: torch.Tensor, given: List[torch.Tensor]) -> Any:
    """Gradients, and those of what they are together."""
    first = torch.autograd.grad((0.1 * y).pow(3).sum(), given, create_graph=True)
    return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), given)]


class Modules(unittest.TestCase):
    def check_linear(self, group: weft.Group) -> None:
        with SEED:
            torch.manual_seed(1)
            first, second = nn.Linear(16, 24), nn.Linear(24, 8)
            x = torch.randn(6 * group.size, 2, 16, requires_grad=True)
            grad = torch.randn(6 * group.size, 2, 8)
        group.barrier()  # layers made below draw from the same generator
        y = second(torch.relu(first(x)))
        y.backward(grad)
        for sequence in (False, True):
            one = weft.torch.ColumnParallelLinear.from_linear(first, group, sequence_parallel=sequence)
            two = weft.torch.RowParallelLinear.from_linear(second, group, sequence_parallel=sequence)
            mine = (cut(x.detach(), 0, group) if sequence else x.detach().clone()).requires_grad_()
            z = two(torch.relu(one(mine)))
            self.close(z, cut(y, 0, group) if sequence else y)
            z.backward(cut(grad, 0, group) if sequence else grad)
            self.close(mine.grad, cut(x.grad, 0, group) if sequence else x.grad)
            self.close(one.weight.grad, cut(first.weight.grad, 0, group))
            self.close(one.bias.grad, cut(first.bias.grad, 0, group))
            self.close(two.weight.grad, cut(second.weight.grad, 1, group))
            self.close(two.bias.grad, second.bias.grad)
            got = twice(two(torch.relu(one(mine))), [mine, one.weight, one.bias, two.weight, two.bias])
            want = twice(
                second(torch.relu(first(x))), [x, first.weight, first.bias, second.weight, second.bias]
            )
            for a, b, dim in zip(got, want, 2 * [0 if sequence else None, 0, 0, 1, None]):
                self.close(a, b if dim is None else cut(b, dim, group))
            if sequence:  # a rank may have nothing, in any dimension
                for few in ((0, 2, 16), (group.size, 0, 16)):
                    self.assertEqual(two(one(torch.zeros(few))).shape, (*few[:2], 8))
            with torch.no_grad():
                self.close(two.prepack()(torch.relu(one.prepack()(mine))), z)
        gathered = weft.torch.ColumnParallelLinear.from_linear(first, group, gather_output=True)
        z = gathered(x)
        self.close(z, first(x))
        got, want = twice(z, [x, gathered.weight, gathered.bias]), twice(first(x), [x, first.weight, first.bias])
        for a, b, dim in zip(got, want, 2 * [None, 0, 0]):
            self.close(a, b if dim is None else cut(b, dim, group))
        with torch.no_grad():
            self.close(gathered.prepack()(x), z)
        again = weft.torch.ColumnParallelLinear(16, 24, group=group)
        again.load_state_dict(gathered.state_dict())
        self.close(again.weight, gathered.weight)
        if 25 % group.size:
            with self.assertRaisesRegex(ValueError, "out_features = 25 do not divide"):
                weft.torch.ColumnParallelLinear(16, 25, group=group)

    def check_swiglu(self, group: weft.Group) -> None:
        with SEED:
            torch.manual_seed(2)
            ordinary = Llama()
            x = torch.randn(4 * group.size, 32, requires_grad=True)
        group.barrier()  # layers made below draw from the same generator
        y = ordinary(x)
        y.sum().backward()
        for sequence in (False, True):
            mlp = weft.torch.SwiGLU(32, 48, group, sequence_parallel=sequence)
            mlp.load_state_dict(ordinary.state_dict())
            mine = (cut(x.detach(), 0, group) if sequence else x.detach().clone()).requires_grad_()
            z = mlp(mine)
            self.close(z, cut(y, 0, group) if sequence else y)
            z.sum().backward()
            self.close(mine.grad, cut(x.grad, 0, group) if sequence else x.grad)
            self.close(mlp.gate_proj.weight.grad, cut(ordinary.gate_proj.weight.grad, 0, group))
            self.close(mlp.down_proj.weight.grad, cut(ordinary.down_proj.weight.grad, 1, group))
            half = weft.torch.SwiGLU(32, 48, group, sequence, dtype=torch.bfloat16)
            half.load_state_dict({k: v.bfloat16() for k, v in ordinary.state_dict().items()})
            with torch.no_grad():
                plain = half(mine.bfloat16())
                self.close(half.prepack()(mine.bfloat16()), plain, 0.02)
                self.close(plain.float(), z, 0.05)
                self.close(mlp.prepack()(mine), z)
                self.close(mlp(mine[:, None]), z[:, None])
                other = copy.deepcopy(mlp)
                self.assertIs(other.gate_proj._joint, mlp.gate_proj._joint)
                self.close(other(mine), z)
                self.close(other.bfloat16()(mine.bfloat16()).float(), z, 0.05)  # converted: what was packed serves no more
                self.assertIsNone(other.down_proj._packed)
                mlp.up_proj.load_state_dict({"weight": 2 * ordinary.up_proj.weight})  # what was packed serves no more
                self.close(mlp(mine), 2 * z)

    def check_inputs(self, group: weft.Group) -> None:
        """What an ordinary layer takes: tensors with gaps, one token alone, none, and other types under autocast."""
        with SEED:
            torch.manual_seed(4)
            before, first, second, ordinary = nn.Linear(32, 32), nn.Linear(32, 24), nn.Linear(24, 32), Llama()
            x = torch.randn(6, 64)
        group.barrier()  # layers made below draw from the same generator
        one = weft.torch.ColumnParallelLinear.from_linear(first, group)
        two = weft.torch.RowParallelLinear.from_linear(second, group)
        every = weft.torch.ColumnParallelLinear.from_linear(first, group, gather_output=True)
        mlp = weft.torch.SwiGLU(32, 48, group)
        mlp.load_state_dict(ordinary.state_dict())
        pairs = [
            (lambda t: two(one(t)), lambda t: second(first(t))),
            (every, first),
            (mlp, ordinary),
            (two, lambda t: second(t.repeat(*(1,) * (t.dim() - 1), group.size))),  # the same features on every rank
        ]
        for packed in (False, True):
            with torch.set_grad_enabled(not packed):
                for layer, plain in pairs:
                    wide = 64 if layer is not two else 2 * 24 // group.size
                    for t in (x[:, :wide:2], x[0, : wide // 2], x[0, :wide:2], x[:, None, :wide:2], x[:0, : wide // 2]):
                        self.close(layer(t), plain(t))
                for kind in (torch.bfloat16, torch.float16):
                    for layer, plain in pairs[:3]:
                        with torch.autocast("cpu", kind):
                            for t in (x[:, ::2], before(x[:, ::2])):
                                self.close(layer(t), plain(t), 0.02)
                        if not packed:
                            self.assertEqual(layer(x[:, ::2]).dtype, torch.float32)
            for layer in (one, two, every, mlp):
                layer.prepack()
        first.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            every(before(x[:, ::2])).sum().backward()
            first(before(x[:, ::2])).sum().backward()
        self.assertEqual(every.weight.grad.dtype, torch.float32)
        self.close(every.weight.grad, cut(first.weight.grad, 0, group), 0.05)
        layer = weft.torch.MoELayer(32, 24, 4, 2, 6, group)
        with torch.no_grad():  # all experts alike: where a rounded token goes does not matter
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)) / 6)
        for packed in (False, True):
            with torch.set_grad_enabled(not packed):
                want = layer(x[:, ::2])
                with torch.autocast("cpu", torch.bfloat16):
                    for t in (x[:, ::2], x[:, ::2].bfloat16()):
                        y = layer(t)
                        self.assertEqual(y.dtype, torch.bfloat16)
                        self.close(y.float(), want, 0.05)
            if not packed:
                y.sum().backward()
            layer.prepack()

    def check_moe(self, group: weft.Group) -> None:
        hidden, inter, experts, tokens = 16, 24, 5, 7
        with SEED:
            torch.manual_seed(3)
            (alone,) = weft.threads(1)
            ordinary = weft.torch.MoELayer(hidden, inter, experts, 2, tokens, alone)  # all experts on one rank
            xs = torch.randn(group.size, tokens, hidden)
            grads = torch.randn(group.size, tokens, hidden)
        group.barrier()  # layers made below draw from the same generator
        layer = weft.torch.MoELayer(hidden, inter, experts, 2, tokens, group)
        layer.load_state_dict(ordinary.state_dict())
        x = xs[group.rank].clone().requires_grad_()
        y = layer(x)
        y.backward(grads[group.rank])
        for rank in range(group.size):  # every rank's tokens through all experts here
            theirs = xs[rank].clone().requires_grad_()
            whole = ordinary(theirs)
            plain = self.by_hand(ordinary, theirs)
            self.close(whole, plain)
            want = torch.autograd.grad(plain, [theirs, ordinary.gate.weight], grads[rank], retain_graph=True)
            plain.backward(grads[rank])
            if rank == group.rank:
                self.close(y, whole)
                self.close(x.grad, want[0])
                self.close(layer.gate.weight.grad, want[1])
        for name, parameter in layer.experts.named_parameters():
            self.close(parameter.grad, ordinary.get_parameter(f"experts.{name}").grad)
        with torch.no_grad():
            self.close(layer.prepack()(x), y)
            stored = [
                [e.get_submodule(n).weight.detach().t().to(torch.float8_e4m3fn).contiguous() for e in layer.experts.values()]
                for n in ("w1", "w3", "w2")
            ]
            for n, matrices in zip(("w1", "w3", "w2"), stored):
                for e, matrix in zip(layer.experts.values(), matrices):
                    e.get_submodule(n).weight.copy_(matrix.t().float())
            exact = layer.prepack()(x)
            self.close(layer.prepack(weft.FeedForward(layer.moe, *stored))(x), exact, 1e-5)
            half = copy.deepcopy(layer).bfloat16()  # what was packed serves no more
            self.assertIsNone(half.experts.packed)
            half.gate.float()  # so that tokens go to the same experts
            half.route = lambda t: weft.torch.MoELayer.route(half, t.float())
            for _ in range(2):
                y = half(x.bfloat16())
                self.assertEqual(y.dtype, torch.bfloat16)
                self.close(y.float(), exact, 0.05)
                half.prepack()
        with self.assertRaisesRegex(ValueError, "8 tokens, but the layer was made for at most 7"):
            layer(torch.zeros(8, hidden))
        with torch.no_grad():
            before = layer(x)
            if group.size > 1:  # one rank has too many: nobody waits for it
                with self.assertRaises(ValueError if group.rank == 0 else weft.errors.Error):
                    layer(torch.zeros(1 if group.rank else 8, hidden))
            self.close(layer(x), before)
        self.check_wire(group, layer, x.detach())

    def check_conversion(self, group: weft.Group) -> None:
        """Tokens travel in the type of the experts, of which there is one: the other ranks have none to look at."""
        layer = weft.torch.MoELayer(16, 24, 1, 1, 4, group).bfloat16()
        layer.gate.float()
        layer.route = lambda t: weft.torch.MoELayer.route(layer, t.float())
        routing = layer.moe
        for call in (lambda: layer.to("cpu"), layer.bfloat16, layer.share_memory):
            call()
            self.assertIs(layer.moe, routing)
            layer.gate.float()
        x = torch.ones(3, 16, dtype=torch.bfloat16)
        y = layer(x)
        self.assertEqual(y.dtype, torch.bfloat16)
        with self.assertRaisesRegex(ValueError, "float64|f64"):
            layer.double()
        self.assertEqual({p.dtype for p in layer.experts.parameters()} | {torch.bfloat16}, {torch.bfloat16})
        self.assertEqual(layer.gate.weight.dtype, torch.float32)
        torch.testing.assert_close(layer(x), y)
        del layer.route
        layer.float()
        self.assertEqual(layer(x.float()).dtype, torch.float32)
        zeros = {name: torch.zeros_like(weight) for name, weight in layer.state_dict().items()}
        for load in (layer.load_state_dict, nn.ModuleDict({"inner": layer}).load_state_dict):
            layer.prepack()
            load({("" if load.__self__ is layer else "inner.") + name: zero for name, zero in zeros.items()})
            with torch.no_grad():
                self.assertEqual(float(layer(x.float()).abs().max()), 0)
        group.barrier()

    def check_wire(self, group: weft.Group, layer: nn.Module, x: torch.Tensor) -> None:
        """Tokens that travel as fp8 have other outputs and gradients than those that do not, by no more than it rounds."""
        hidden, inter = layer.hidden, layer.experts[str(layer.moe.local_experts[0])].w1.out_features
        half = weft.torch.MoELayer(hidden, inter, layer.moe.experts, 2, layer.moe.tokens, group, wire="fp8")
        half.load_state_dict(layer.state_dict())
        results = []
        for each in (layer, half):
            given = x.clone().requires_grad_()
            y = each(given)
            y.square().sum().backward()
            results.append((y.detach(), given.grad))
        for plain, rounded in zip(*results):
            self.assertFalse(torch.equal(plain, rounded))
            self.assertLess(float((plain - rounded).norm()), 0.1 * float(plain.norm()))
        with torch.no_grad():
            self.close(half.prepack()(x), results[1][0], 1e-4)

    def by_hand(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        expert, weight = layer.route(x)
        rows = []
        for t in range(len(x)):
            rows.append(sum(w * layer.experts[str(int(e))](x[t]) for e, w in zip(expert[t], weight[t])))
        return torch.stack(rows)

    def close(self, got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-4) -> None:
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)

    def test_threads(self) -> None:
        weft.run_threads(2, self.check_linear)
        weft.run_threads(2, self.check_swiglu)
        weft.run_threads(2, self.check_inputs)
        weft.run_threads(3, self.check_moe)
        weft.run_threads(2, self.check_conversion)

    def test_processes(self) -> None:
        def body(rank: int) -> None:
            self.check_linear(weft.init())
            self.check_swiglu(weft.init())
            self.check_inputs(weft.init())
            self.check_moe(weft.init())

        support.ranks(4, body)

    def test_what_cannot_be_saved_says_what_can(self) -> None:
        with weft.threads(1)[0] as group:
            for layer in (
                weft.torch.ColumnParallelLinear(4, 6, group=group),
                weft.torch.RowParallelLinear(4, 6, group=group).prepack(),
                weft.torch.SwiGLU(4, 6, group),
                weft.torch.MoELayer(4, 6, 2, 1, 4, group),
            ):
                with self.assertRaisesRegex(TypeError, r"cannot be pickled; of a layer save its state_dict\(\)"):
                    torch.save(layer, io.BytesIO())
                torch.save(layer.state_dict(), io.BytesIO())

    def test_groups_of_others(self) -> None:
        def body(rank: int) -> None:
            for stream in (1, 2):  # gloo prints what it connects to
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            for other in (torch.distributed.group.WORLD, 3):
                with self.assertRaisesRegex(ValueError, "with the backend weft; this .* is neither"):
                    weft.torch.ColumnParallelLinear(4, 6, group=other)

        support.ranks(1, body)

    def test_layers_of_the_world_hold_it(self) -> None:
        def body(rank: int) -> List[float]:
            layer = weft.torch.ColumnParallelLinear(4, 6, bias=False)  # nobody else has the world
            layer.load_state_dict({"weight": torch.arange(24.0).view(6, 4)})
            gc.collect()
            total = torch.ops.weft.all_reduce(layer(torch.ones(1, 4)), "sum", weft.torch.name_of())
            return total[0].tolist()

        one, other = support.ranks(2, body)
        self.assertEqual(one, other)
        self.assertEqual(len(one), 3)


support.main()
