"""Operators: opcheck, and outputs and gradients equal to one process."""

import unittest
import unittest.mock
import warnings
from typing import Any

import support

support.need("torch")

import torch  # noqa: E402

import weft  # noqa: E402
import weft.torch  # noqa: E402
from tensors import cut  # noqa: E402

ops = torch.ops.weft
EXPERTS = ("moe_dispatch", "moe_combine", "_moe_weights_back", "_moe_first_only", "moe_forward")


def whole(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers: every schedule gives exactly equal results."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Ops(unittest.TestCase):
    def test_tensors_without_memory(self) -> None:
        with weft.threads(1)[0] as group:
            with self.assertRaisesRegex(weft.errors.ArgumentError, "a is on the device 'meta'"):
                weft.gemm(torch.ones(3, 3, device="meta"), torch.ones(3, 3))
            with self.assertRaisesRegex(weft.errors.ArgumentError, "send of the layout torch.sparse_coo lies in no memory"):
                group.all_reduce(torch.eye(3).to_sparse())

    def test_matrices_without_elements_are_there(self) -> None:
        for m, n, k in ((0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0)):
            a, b, c = torch.ones(m, k), torch.ones(k, n), torch.ones(m, n)
            torch.testing.assert_close(weft.gemm(a, b, c=c, beta=2.0, bias=torch.ones(n)), a @ b + 3)
            torch.testing.assert_close(weft.gemm(a, weft.Packed(b)), a @ b)
        gone = torch.ones(4)
        gone.untyped_storage().resize_(0)
        with weft.threads(1)[0] as group, self.assertRaisesRegex(weft.errors.ArgumentError, "NULL"):
            group.all_reduce(gone)

    def test_calls_on_the_cpu_take_no_tensors_of_a_gpu(self) -> None:
        x = torch.ones(4, 4)
        with weft.threads(1)[0] as group, unittest.mock.patch.object(torch.Tensor, "is_cuda", True):
            for call in (
                lambda: weft.gemm(x, x),
                lambda: weft.Packed(x),
                lambda: weft.gate_up(x, x),
                lambda: group.gemm_ar(x, x),
                lambda: group.all_reduce(x),
                lambda: group.broadcast(x),
                lambda: weft.Plan(group, "gemm_ar", m=4, n=4, k=4).run(x, x, x),
            ):
                with self.assertRaisesRegex(weft.errors.ArgumentError, "on the CPU; group.use_gpu"):
                    call()

    def test_a_rank_without_rows_brings_factors(self) -> None:
        def body(group: weft.Group) -> None:
            a, b, factors = whole(1, 8), whole(8, 5), torch.full((1,), 2.0)
            mine = cut(a, 1, group), cut(b, 0, group)
            d = group.gemm_rs(*mine, row_scale=cut(factors, 0, group).clone(), bias=b[0].clone())
            self.assertTrue(torch.equal(d, cut(2 * (a @ b) + b[0], 0, group)))

        weft.run_threads(2, body)

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


support.main()
