"""Operators and modules: opcheck, and outputs and gradients equal to one process."""

import copy
import gc
import io
import os
import threading
import unittest
import unittest.mock
import warnings
from typing import Any, List

import support

support.need("torch")

import torch  # noqa: E402
from torch import nn  # noqa: E402

import weft  # noqa: E402
import weft.torch  # noqa: E402

ops = torch.ops.weft
EXPERTS = ("moe_dispatch", "moe_combine", "_moe_weights_back", "_moe_first_only", "moe_forward")
SEED = threading.Lock()  # ranks that are threads share torch's generator


def whole(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers: every schedule gives exactly equal results."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def cut(x: torch.Tensor, dim: int, group: weft.Group) -> torch.Tensor:
    begin, count = weft.part(x.shape[dim], group.size, group.rank)
    return x.narrow(dim, begin, count).clone()


class Ops(unittest.TestCase):
    def test_opcheck(self) -> None:
        with weft.threads(1)[0] as group:
            name = weft.torch.name_of(group)
            a, b, bias = (whole(*s).requires_grad_() for s in ((6, 4), (4, 5), (5,)))
            cases = [
                (ops.ag_gemm, (a, b, bias, -1, name)),
                (ops.gemm_rs, (a, b, bias, name)),
                (ops.gemm_ar, (a, b, None, name)),
                (ops.gemm_as, (a, b, bias, name)),
                (ops.gemm, (a, b, bias)),
                (ops.gemm_columns, (a, b, bias, name)),
                (ops.all_reduce, (a, "sum", name)),
                (ops.all_reduce_, (whole(6), "max", name)),
                (ops.all_gather, (a, name)),
                (ops.reduce_scatter, (a, "sum", name)),
                (ops.all_to_all, (a, name)),
                (ops.broadcast, (a, 0, name)),
                (ops._as_part, (a, name)),
                (ops._as_whole, (a.t(), name)),
            ]
            for op, arguments in cases:
                with self.subTest(op=str(op)):
                    torch.library.opcheck(op.default, arguments)
            every = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("weft::")}
            checked = {op.default._schema.name for op, _ in cases}
            self.assertEqual(every - checked, {f"weft::{name}" for name in EXPERTS})

    def test_opcheck_of_experts(self) -> None:
        support.ranks(1, lambda rank: self.check_experts())  # what it leaves behind in torch, a fork does not survive

    def check_experts(self) -> None:
        with weft.threads(1)[0] as group:
            moe = weft.MoE(group, 3, 2, 4, 6, "float32")
            layer = weft.torch.layer_name(moe)
            x = whole(5, 4).requires_grad_()
            expert = torch.tensor([[0, 1], [-1, 0], [1, 2], [2, -1], [-1, -1]], dtype=torch.int32)
            weight = whole(5, 2, seed=2).requires_grad_()
            rows, counts, entry_weight, round = ops.moe_dispatch(x, expert, weight, None, layer)
            self.assertEqual(counts.tolist(), [2, 2, 2])
            results = rows.detach().clone().requires_grad_()
            packed = weft.FeedForward(moe, *([whole(4, 4, seed=s).contiguous() for _ in range(3)] for s in range(3)))
            cases = [
                (ops.moe_dispatch, (x, expert, weight, torch.tensor(4), layer)),
                (ops.moe_combine, (results, expert, weight, entry_weight, round, layer)),
                (ops._moe_weights_back, (rows.detach().sum(1), expert, counts, layer)),
                (ops._moe_first_only, (whole(3, 4).t(), rows.detach(), weight.detach())),
                (ops.moe_forward, (x.detach(), expert, weight.detach(), weft.torch.experts_name(packed), layer)),
            ]
            self.assertEqual({op.default._schema.name for op, _ in cases}, {f"weft::{name}" for name in EXPERTS})
            for op, arguments in cases:
                with self.subTest(op=str(op)):
                    torch.library.opcheck(op.default, arguments)
            # What a round of the library's own had is no measure for an operator's.
            came = moe.dispatch(x.detach(), torch.tensor([[0, 1]] * 5, dtype=torch.int32), weight.detach())
            moe.combine(torch.zeros(came.offset[-1], 4))
            few = ops.moe_dispatch(x.detach(), expert, weight.detach(), None, layer)
            ops.moe_combine(few[0], expert, weight.detach(), *few[2:], layer)
            # In any order: rounds of two inputs one inside the other, and one that is never combined.
            first = ops.moe_dispatch(x, expert, weight, None, layer)
            second = ops.moe_dispatch(2 * x, expert, weight, None, layer)
            ops.moe_dispatch(3 * x, expert, weight, None, layer)
            y = [ops.moe_combine(d[0], expert, weight, *d[2:], layer) for d in (first, second)]
            self.assertTrue(torch.equal(y[1], 2 * y[0]))
            sums = (weight * (expert >= 0)).sum(1, keepdim=True)
            self.assertTrue(torch.equal(y[0], x * sums))
            y[0].sum().backward()
            self.assertTrue(torch.equal(x.grad, sums.expand_as(x)))
            self.assertTrue(torch.equal(weight.grad, (expert >= 0) * x.detach().sum(1, keepdim=True)))
            # Calls like ones before them, which pass the dispatcher by: in turn, one inside the other, with gaps.
            with torch.no_grad():
                for turn in (2, 0, 1):
                    for t in (x, torch.stack([x, x], 2)[:, :, 0]):
                        first = ops.moe_dispatch(t, expert, weight, None, layer)
                        self.assertEqual((first[1].tolist(), int(first[3]) % 2), ([2, 2, 2], 0))
                        self.assertTrue(torch.equal(first[0], rows) and torch.equal(first[2], entry_weight))
                        second = ops.moe_dispatch(2 * x, expert, weight, None, layer) if turn == 2 else first
                        y = [ops.moe_combine(d[0], expert, weight, *d[2:], layer) for d in (first, second)]
                        self.assertTrue(torch.equal(y[0], x * sums))
                        self.assertTrue(torch.equal(y[1], y[0] * (1 + (turn == 2))))
                with unittest.mock.patch.object(weft.torch.moe_ops, "_layer", side_effect=AssertionError) as through:
                    d = ops.moe_dispatch(x, expert, weight, None, layer)
                    ops.moe_combine(d[0], expert, weight, *d[2:], layer)
                self.assertEqual(through.call_count, 0)
                more = torch.tensor([[0, 1], [1, 0], [1, 2], [2, 0], [0, 1]], dtype=torch.int32)
                d = ops.moe_dispatch(x, more, weight, None, layer)
                with self.assertRaisesRegex(ValueError, "6 results; 10 rows came"):
                    ops.moe_combine(rows, more, weight, entry_weight, d[3], layer)
            self.assertIsNotNone(ops.moe_dispatch(x, expert, weight, None, layer)[0].grad_fn)
            d = ops.moe_dispatch(x, expert, weight, None, layer)
            (first,) = torch.autograd.grad(ops.moe_combine(d[0], expert, weight, *d[2:], layer).sum(), x, create_graph=True)
            with self.assertRaisesRegex(NotImplementedError, "no second derivative where weights have a first one"):
                first.sum().backward()
            with self.assertRaisesRegex(ValueError, "no layer is named 'nobody'"):
                ops.moe_dispatch(x, expert, weight, None, "nobody")

    def test_functions_are_the_operators(self) -> None:
        """A function that skips the dispatcher does so only where nobody looks on."""
        from torch.utils._python_dispatch import TorchDispatchMode

        seen: list = []

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, op, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
                seen.append(op)
                return op(*arguments, **(options or {}))

        with weft.threads(1)[0] as group:
            name = weft.torch.name_of(group)
            a, b = whole(6, 4), whole(4, 5)
            want = a @ b
            for x in (a, a.t().contiguous().t(), torch.stack([a, a], 2)[:, :, 0]):
                self.assertTrue(torch.equal(weft.torch.ops.gemm_ar(x, b, None, name), want))
                self.assertTrue(torch.equal(weft.torch.ops.gemm(x, b, b[0].clone()), want + b[0]))
            with Watch():
                weft.torch.ops.gemm_ar(a, b, None, name)
                weft.torch.ops.all_reduce(a, "sum", name)
            self.assertIn(ops.gemm_ar.default, seen)
            self.assertIn(ops.all_reduce.default, seen)
            x = a.clone().requires_grad_()
            weft.torch.ops.gemm_ar(x, b, None, name).sum().backward()
            self.assertTrue(torch.equal(x.grad, b.sum(1).expand(6, 4)))
            graphs: list = []

            def keep(graph, inputs):  # type: ignore[no-untyped-def]
                graphs.append(graph)
                return graph

            compiled = torch.compile(lambda x: weft.torch.ops.gemm_ar(x, b, None, name) + 1, backend=keep, fullgraph=True)
            self.assertTrue(torch.equal(compiled(a), want + 1))
            self.assertIn("weft.gemm_ar", str(graphs[0].graph))
            wrong = ((TypeError, "a is torch.float32, b is torch.float64", (a, b.double(), None)),
                     (ValueError, "bias has the shape", (a, b, whole(4))))  # fmt: skip
            for kind, text, arguments in wrong:
                with self.assertRaisesRegex(kind, text):
                    weft.torch.ops.gemm_ar(*arguments, name)
        with self.assertRaisesRegex(RuntimeError, "the group is closed"):
            weft.torch.ops.gemm_ar(a, b, None, name)

    def test_remembered_calls(self) -> None:
        """A call like one before it passes the dispatcher by; any other does not."""
        with weft.threads(1)[0] as group:
            name = weft.torch.name_of(group)
            a, b, v = whole(6, 4), whole(4, 5), whole(5)
            calls = {
                "gemm_ar": lambda x: ops.gemm_ar(x, b, None, name),
                "gemm": lambda x: ops.gemm.default(x, b, v),
                "ag_gemm": lambda x: ops.ag_gemm(x, b, v, 6, name),
                "all_reduce": lambda x: ops.all_reduce(x, "sum", name),
                "broadcast": lambda x: ops.broadcast(x, 0, name),
                "all_reduce_": lambda x: ops.all_reduce_(x, "sum", name),
            }
            for op, call in calls.items():
                kernel = weft.torch.ops._KERNELS[op]
                want = a @ b if "gemm" in op else None if op[-1] == "_" else a
                want = want + v if op in ("gemm", "ag_gemm") else want

                def passes(x: torch.Tensor, told: bool, want: Any = want) -> Any:
                    kind = type(kernel)
                    watched = unittest.mock.patch.object(kind, "__call__", autospec=True, side_effect=kind.__call__)
                    with watched as through:
                        got = call(x)
                    self.assertEqual(bool(through.call_count), told, op)
                    self.assertTrue(got is want if want is None else torch.equal(got, want), op)

                with self.subTest(op=op):
                    call(a)
                    passes(a, False)
                    passes(a.clone(), False)
                    with torch.no_grad():
                        passes(a, False)
                    if op != "all_reduce_":
                        passes(torch.stack([a, a], 2)[:, :, 0], True)
                        passes(torch._neg_view(-a), True)
                    with torch.autograd.profiler.profile() as profile:
                        passes(a, True)
                    self.assertIn(f"weft::{op}", [event.key for event in profile.key_averages()])
                    with torch.inference_mode():
                        for told in (True, False):
                            x = a.clone()
                            passes(x, told)
                    if op != "all_reduce_":
                        x = a.clone().requires_grad_()
                        self.assertIsNotNone(call(x).grad_fn)
                        with torch.no_grad():
                            for _ in range(2):
                                self.assertIsNone(call(x).grad_fn)
                        self.assertIsNotNone(call(x).grad_fn)
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore")  # from 2.15 on it is said to be old
                            traced = torch.jit.trace(call, a)
                        self.assertIn(f"weft::{op}", str(traced.graph))
                    with self.assertRaisesRegex(RuntimeError, "missing value for argument"):
                        getattr(ops, op)()
            self.assertTrue(torch.equal(ops.gemm(a=a, b=b, bias=None), a @ b))

    def check_products(self, group: weft.Group) -> None:
        """Outputs and gradients of the four products, by small integers exactly those of one process."""
        name = weft.torch.name_of(group)
        for m in (12, 13):
            a, b, bias = (whole(m, 24, seed=1), whole(24, 36, seed=2), whole(36, seed=3))
            grad = whole(m, 36, seed=4)
            for x in (a, b, bias):
                x.requires_grad_()
            d = a @ b + bias
            d.backward(grad)

            def part(x: torch.Tensor, dim: int) -> torch.Tensor:
                return cut(x.detach(), dim, group).requires_grad_()

            def same(got: torch.Tensor, want: torch.Tensor, dim: int = -1) -> None:
                want = want.detach() if dim < 0 else cut(want.detach(), dim, group)
                self.assertTrue(torch.equal(got, want), f"{got}\n{want}")

            x, w, v = part(a, 0), part(b, 1), part(bias, 0)
            y = ops.ag_gemm(x, w, v, m, name)
            same(y, d, 1)
            y.backward(cut(grad, 1, group))
            same(x.grad, a.grad, 0), same(w.grad, b.grad, 1), same(v.grad, bias.grad, 0)

            x, w, v = part(a, 1), part(b, 0), bias.detach().clone().requires_grad_()
            y = ops.gemm_rs(x, w, v, name)
            same(y, d, 0)
            y.backward(cut(grad, 0, group))
            same(x.grad, a.grad, 1), same(w.grad, b.grad, 0), same(v.grad, bias.grad)

            x, w, v = part(a, 1), part(b, 0), bias.detach().clone().requires_grad_()
            y = ops.gemm_ar(x, w, v, name)
            same(y, d)
            y.backward(grad)
            same(x.grad, a.grad, 1), same(w.grad, b.grad, 0), same(v.grad, bias.grad)

            x, w, v = a.detach().clone().requires_grad_(), part(b, 1), bias.detach().clone().requires_grad_()
            y = ops.gemm_as(x, w, v, name)
            same(y, d)
            y.backward(grad)
            same(x.grad, a.grad), same(w.grad, b.grad, 1), same(v.grad, bias.grad)

            x, w, v = a.detach().clone().requires_grad_(), part(b, 1), part(bias, 0)
            y = ops.gemm_columns(x, w, v, name)
            same(y, d, 1)
            y.backward(cut(grad, 1, group))
            same(x.grad, a.grad), same(w.grad, b.grad, 1), same(v.grad, bias.grad, 0)

    def check_transforms(self, group: weft.Group) -> None:
        """Gradients by ``torch.func`` are those of ``backward``, also of gradients; derivatives in forward mode are refused."""
        name, w = weft.torch.name_of(group), group.size
        a, b, v = whole(2 * w, 4, seed=group.rank), whole(4, 3, seed=5 + group.rank), whole(3, seed=9)
        calls = [
            lambda a, b, v: ops.ag_gemm(a, b, v, -1, name),
            lambda a, b, v: ops.gemm_rs(a, b, v, name),
            lambda a, b, v: ops.gemm_ar(a, b, v, name),
            lambda a, b, v: ops.gemm_as(a, b, v.repeat(w), name),
            lambda a, b, v: ops.gemm_columns(a, b, v, name),
            lambda a, b, v: ops.gemm(ops.all_reduce(a, "sum", name), b, v),
            lambda a, b, v: ops.gemm(ops.all_gather(ops.reduce_scatter(a, "sum", name), name), b, v),
            lambda a, b, v: ops.gemm(ops.all_to_all(a, name), ops.broadcast(b, 0, name), v),
        ]
        for i, call in enumerate(calls):

            def loss(*given: torch.Tensor, call: Any = call) -> torch.Tensor:
                return call(*given).square().sum()

            def again(*given: torch.Tensor, loss: Any = loss) -> torch.Tensor:
                return sum((x * x.detach()).sum() for x in torch.func.grad(loss, (0, 1, 2))(*given))

            mine = [x.clone().requires_grad_() for x in (a, b, v)]
            want = torch.autograd.grad(loss(*mine), mine, create_graph=True)
            twice = torch.autograd.grad(sum((x * x.detach()).sum() for x in want), mine, allow_unused=True)
            y, back = torch.func.vjp(call, a, b, v)
            for got in (torch.func.grad(loss, (0, 1, 2))(a, b, v), back(2 * y)):
                for x, z in zip(got, want):
                    self.assertTrue(torch.equal(x, z), f"call {i}: {x}\n{z}")
            for x, z in zip(torch.func.grad(again, (0, 1, 2))(a, b, v), twice):
                self.assertTrue(torch.equal(x, torch.zeros_like(x) if z is None else z), f"call {i}: {x}\n{z}")
        for _ in range(2):  # also of a call like one before it
            ops.gemm(a, b, None)
            with self.assertRaisesRegex(NotImplementedError, "weft::gemm has no derivative in forward mode"):
                torch.func.jvp(lambda x: ops.gemm(x, b, None), (a,), (a,))
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(a, a)
                with self.assertRaisesRegex(NotImplementedError, "weft::gemm has no derivative in forward mode"):
                    ops.gemm(dual, b, None)
                with self.assertRaisesRegex(RuntimeError, "weft::all_reduce_: the tensor requires a gradient"):
                    ops.all_reduce_(dual, "sum", name)

    def check_collectives(self, group: weft.Group) -> None:
        name, w, r = weft.torch.name_of(group), group.size, group.rank
        every = [whole(2 * w, 3, seed=q) for q in range(w)]
        x = every[r].clone().requires_grad_()
        self.assertTrue(torch.equal(ops.all_reduce(x, "sum", name), sum(every)))
        self.assertTrue(torch.equal(ops.all_gather(x, name), torch.cat(every)))
        self.assertTrue(torch.equal(ops.reduce_scatter(x, "sum", name), sum(every)[2 * r : 2 * r + 2]))
        self.assertTrue(torch.equal(ops.all_to_all(x, name), torch.cat([e[2 * r : 2 * r + 2] for e in every])))
        self.assertTrue(torch.equal(ops.broadcast(x, w - 1, name), every[-1]))
        ops.reduce_scatter(x, "sum", name).backward(torch.full((2, 3), float(r)))
        self.assertTrue(torch.equal(x.grad, torch.arange(w).repeat_interleave(2)[:, None].expand(2 * w, 3).float()))
        with self.assertRaisesRegex(NotImplementedError, "'max' has no gradient"):
            ops.all_reduce(x, "max", name).sum().backward()

    def test_threads(self) -> None:
        for size in (1, 2, 3):
            weft.run_threads(size, self.check_products)
            weft.run_threads(size, self.check_collectives)

    def test_processes(self) -> None:
        def body(rank: int) -> None:
            self.check_products(weft.init())
            self.check_collectives(weft.init())
            self.check_transforms(weft.init())

        support.ranks(4, body)

    def test_symmetric_memory_is_a_tensor(self) -> None:
        with weft.threads(1)[0] as group:
            x = weft.empty((3, 4), "bfloat16", group)
            t = x.torch()
            self.assertEqual((t.dtype, tuple(t.shape)), (torch.bfloat16, (3, 4)))
            t.fill_(2)
            self.assertTrue(torch.equal(torch.from_dlpack(x), t))
            self.assertEqual(t.data_ptr(), x.pointer)
            del x
            self.assertEqual(float(t.sum()), 24)

    def test_results_of_symmetric_memory(self) -> None:
        """They are torch's where other operands are, or where numpy has no such type; else numpy's."""
        for kind in (torch.float32, torch.bfloat16):
            with weft.threads(1)[0] as group:
                x = weft.empty((3, 4), kind, group)
                x.torch().copy_(whole(3, 4))
                b = whole(4, 5, seed=1, dtype=kind)
                for y in (group.ag_gemm(x, b), group.gemm_rs(x, b), weft.gemm(x, b)):
                    self.assertTrue(torch.equal(group.all_reduce(y), x.torch() @ b))
                every = group.all_gather(x)
                self.assertEqual(isinstance(every, torch.Tensor), kind == torch.bfloat16)
                self.assertTrue(torch.equal(torch.as_tensor(every), x.torch()))
                self.assertEqual(torch.as_tensor(group.all_to_all(x)).dtype, kind)

    def test_fp8(self) -> None:
        for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
            a, b = whole(5, 24), whole(24, 7)
            d = weft.gemm(a.to(kind), b.to(kind))
            self.assertEqual(d.dtype, torch.bfloat16)
            self.assertTrue(torch.equal(d.float(), (a.double() @ b.double()).bfloat16().float()))
            narrow = weft.gemm(a.to(kind), b.to(kind), alpha=0.25, out_dtype=kind)
            self.assertTrue(torch.equal(narrow.float(), ((a @ b) * 0.25).to(kind).float()))

    def test_operators_whose_results_are_of_a_wider_type(self) -> None:
        """int32 of int8, bfloat16 of fp8; a bias is of the result's type."""
        for kind, result in ((torch.int8, torch.int32), (torch.float8_e4m3fn, torch.bfloat16), (torch.float8_e5m2, torch.bfloat16)):
            a, b, bias = (x.clamp(-3, 3).round() for x in (whole(64, 24), whole(24, 40), whole(40)))
            want = a @ b + bias
            with weft.threads(1)[0] as group:
                name = weft.torch.name_of(group)
                for op, rest in (
                    (ops.gemm, ()), (ops.gemm_columns, (name,)), (ops.ag_gemm, (-1, name)), (ops.gemm_rs, (name,)),
                    (ops.gemm_ar, (name,)), (ops.gemm_as, (name,)),
                ):  # fmt: skip
                    given = (a.to(kind), b.to(kind), bias.to(result), *rest)
                    for _ in range(2):  # by the dispatcher, and past it
                        got = op(*given)
                        self.assertEqual((got.dtype, got.shape), (result, want.shape))
                        self.assertTrue(torch.equal(got, want.to(result)))
                    torch.library.opcheck(op.default, given, test_utils="test_faketensor")
                    with self.assertRaisesRegex(TypeError, f"bias is {kind}, not {result}"):
                        op(*given[:2], bias.to(kind), *rest)

    def test_wrong_arguments(self) -> None:
        with weft.threads(1)[0] as group:
            name = weft.torch.name_of(group)
            with self.assertRaisesRegex(RuntimeError, "a tensor has no rows"):
                ops.all_gather(torch.tensor(1.0), name)
            with self.assertRaisesRegex(RuntimeError, r"a is \(2, 3\), b is \(4, 5\)"):
                ops.gemm_ar(whole(2, 3), whole(4, 5), None, name)
            with self.assertRaisesRegex(TypeError, "bfloat16"):
                ops.gemm_ar(whole(2, 3), whole(3, 5, dtype=torch.bfloat16), None, name)
            with self.assertRaisesRegex(ValueError, "no group is named 'nobody'"):
                ops.all_reduce(whole(2), "sum", "nobody")
            with self.assertRaisesRegex(ValueError, "rank 0 of 1 has 5 of m = 5 rows; a has 4"):
                ops.ag_gemm(whole(4, 3), whole(3, 2), None, 5, name)
            with self.assertRaisesRegex(ValueError, "root must be a rank"):
                ops.broadcast(whole(2), 7, name)
            with self.assertRaisesRegex(ValueError, "root is 4294967296; it can be from"):
                ops.broadcast(whole(2), 2**32, name)
            x = whole(2).requires_grad_()
            for y in (x, 2 * x):
                with self.assertRaisesRegex(RuntimeError, "weft::all_reduce_: the tensor requires a gradient"):
                    ops.all_reduce_(y, "sum", name)
            with torch.no_grad():
                ops.all_reduce_(x, "sum", name)


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
        with self.assertRaisesRegex(ValueError, "8 tokens in one call; the layer was made for 7"):
            layer(torch.zeros(8, hidden))
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
