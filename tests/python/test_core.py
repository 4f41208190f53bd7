"""Products, collectives and mixture of experts on numpy arrays."""

import copy
import os
import unittest

import support

support.need("numpy")

import numpy as np  # noqa: E402
import weft  # noqa: E402


def whole(seed: int, rows: int, cols: int, dtype: str = "float32") -> np.ndarray:
    """Small integers: products of them are exact in every schedule."""
    return np.random.default_rng(seed).integers(-3, 4, (rows, cols)).astype(dtype)


def cut(array: np.ndarray, axis: int, group: weft.Group, granule: int = 1) -> np.ndarray:
    begin, count = weft.part(array.shape[axis], group.size, group.rank, granule)
    return array[(slice(None),) * axis + (slice(begin, begin + count),)]


class Products(unittest.TestCase):
    def check_products(self, group: weft.Group) -> None:
        a, b = whole(1, 23, 14), whole(2, 14, 31)
        bias, c = whole(3, 1, 31)[0], whole(4, 23, 31)
        d = a @ b
        np.testing.assert_array_equal(group.ag_gemm(cut(a, 0, group), cut(b, 1, group), m=23, n=31), cut(d, 1, group))
        np.testing.assert_array_equal(
            group.ag_gemm(cut(a, 1, group), cut(b, 1, group), n=31, layout="gather_a_k"), cut(d, 1, group)
        )
        np.testing.assert_array_equal(
            group.ag_gemm(cut(a, 0, group), cut(b, 0, group), m=23, layout="gather_b_k"), cut(d, 0, group)
        )
        np.testing.assert_array_equal(
            group.ag_gemm(cut(a, 0, group), cut(b, 1, group), m=23, n=31, layout="gather_b", bias=bias),
            cut(d + bias, 0, group),
        )
        np.testing.assert_array_equal(
            group.gemm_rs(cut(a, 1, group), cut(b, 0, group), k=14, act="relu"), np.maximum(cut(d, 0, group), 0)
        )
        np.testing.assert_array_equal(
            group.gemm_rs(cut(a, 1, group), cut(b, 0, group), k=14, layout="scatter_cols"), cut(d, 1, group)
        )
        np.testing.assert_array_equal(  # the schedule alone says which dimension a rank keeps
            group.gemm_rs(cut(a, 1, group), cut(b, 0, group), k=14, schedule="reducescatter_tiling_b"), cut(d, 1, group)
        )
        np.testing.assert_array_equal(
            group.ag_gemm(cut(a, 0, group), cut(b, 1, group), m=23, n=31, schedule="allgather_rotating_b"), cut(d, 0, group)
        )
        np.testing.assert_array_equal(  # heads of 4 columns stay whole, in the product that makes them and the next
            group.ag_gemm(cut(a, 0, group), cut(b, 1, group, 4), m=23, n=31, granule_n=4), cut(d, 1, group, 4)
        )
        np.testing.assert_array_equal(
            group.gemm_rs(cut(a, 1, group, 4), cut(b, 0, group, 4), k=14, granule_k=4), cut(d, 0, group)
        )
        np.testing.assert_array_equal(
            group.gemm_ar(cut(a, 1, group), cut(b, 0, group), k=14, alpha=2.0, beta=3.0, c=c), 2 * d + 3 * c
        )
        transposed = np.ascontiguousarray(b.T).T
        np.testing.assert_array_equal(group.gemm_as(a, cut(transposed, 1, group), n=31, schedule="unfused"), d)
        packed = weft.Packed(cut(b, 0, group))
        np.testing.assert_array_equal(group.gemm_ar(cut(a, 1, group), packed, k=14), d)
        x = weft.empty((24, 14), "float32", group)
        x.numpy()[:] = whole(5, 24, 14)
        batch = np.stack([a, -a])
        np.testing.assert_array_equal(
            group.gemm_ar(np.ascontiguousarray(batch[:, :, :2]), np.stack([b[:2], b[:2]])),
            group.size * batch[:, :, :2] @ b[:2],
        )
        i8 = group.gemm_ar(whole(6, 5, 8, "int8"), whole(7, 8, 9, "int8"))
        self.assertEqual(i8.dtype, np.int32)
        np.testing.assert_array_equal(i8, group.size * whole(6, 5, 8, "int32") @ whole(7, 8, 9, "int32"))

    def test_fp8(self) -> None:
        def check(group: weft.Group) -> None:
            codes = {0: 0x00, 1: 0x38, 2: 0x40, 3: 0x44, -1: 0xB8, -2: 0xC0, -3: 0xC4}  # of float8_e4m3fn
            a, b = (weft.empty(shape, "fp8_e4m3", group) for shape in ((5, 8), (8, 9)))
            left, right = whole(6, 5, 8, "int32"), whole(7, 8, 9, "int32")
            a.numpy()[:], b.numpy()[:] = np.vectorize(codes.get)(left), np.vectorize(codes.get)(right)
            out = group.gemm_ar(a, b, out_dtype="float32", out=weft.empty((5, 9), "float32", group))
            np.testing.assert_array_equal(out.numpy(), group.size * left @ right)

        weft.run_threads(2, check)

    def test_fp8_scales(self) -> None:
        """Of rows and columns, and of blocks of 128, by the products and by plans; a wrong number of them is an error."""
        k, codes = 200, np.array([0xC4, 0xC0, 0xB8, 0x00, 0x38, 0x40, 0x44], "u1")  # -3 … 3 of float8_e4m3fn

        def fp8(values: np.ndarray, group: weft.Group) -> weft.Tensor:
            out = weft.empty(values.shape, "fp8_e4m3", group)
            out.numpy()[:] = codes[values + 3]
            return out

        def check(group: weft.Group) -> None:
            left, right = whole(6, 5, k, "int32"), whole(7, k, 9, "int32")
            a, b = fp8(left, group), fp8(right, group)
            rows, cols = np.arange(1, 6, dtype="f4"), np.arange(9, dtype="f4") - 4
            of_a, of_b = np.arange(1, 11, dtype="f4").reshape(5, 2), np.array([[2], [0.5]], "f4")
            want = sum(left[:, i : i + 128] * of_a[:, [j]] @ right[i : i + 128] * of_b[j] for j, i in enumerate((0, 128)))
            scaled = {"row_scale": rows, "col_scale": cols}
            for more, product in (({}, left @ right), ({"a_scale": of_a, "b_scale": of_b}, want)):
                out = group.gemm_ar(a, b, weft.empty((5, 9), "float32", group), **scaled, **more)
                np.testing.assert_array_equal(out.numpy(), group.size * rows[:, None] * product * cols)
                out = weft.empty((5, 9), "float32", group)
                fields = {"m": 5, "n": 9, "k": group.size * k, "dtype": "fp8_e4m3", "d_dtype": "float32"}
                plan = weft.Plan(group, "gemm_ar", scales=128 if more else 1, **fields)
                plan.run(a, b, out, alpha=np.array([2], "f4"), **scaled, **more)
                np.testing.assert_array_equal(out.numpy(), 2 * group.size * rows[:, None] * product * cols)
                plan = weft.Plan(group, "gemm_ar", scales=128 if more else 1, beta=1, **fields)
                plan.run(a, b, out, c=out, beta=np.array([-1], "f4"), **scaled, **more)
                np.testing.assert_array_equal(out.numpy(), -group.size * rows[:, None] * product * cols)
            with self.assertRaisesRegex(weft.errors.ArgumentError, "a_scale must be 10 elements"):
                group.gemm_ar(a, b, out, a_scale=rows)

        weft.run_threads(2, check)

    def test_threads(self) -> None:
        for size in (1, 3):
            weft.run_threads(size, self.check_products)

    def test_processes(self) -> None:
        support.ranks(2, lambda rank: self.check_products(weft.init()))

    def test_gemm(self) -> None:
        a, b = whole(1, 17, 40), whole(2, 40, 29)
        np.testing.assert_array_equal(weft.gemm(a, b), a @ b)
        np.testing.assert_array_equal(weft.gemm(a[:, ::1].T.copy().T, b.T.copy().T), a @ b)
        np.testing.assert_array_equal(weft.gemm(a, weft.Packed(b)), a @ b)
        np.testing.assert_array_equal(weft.gemm(a[2:9, 3:], b[3:, :7]), a[2:9, 3:] @ b[3:, :7])
        rows, cols = np.arange(17, dtype="f4"), np.arange(29, dtype="f4")
        np.testing.assert_array_equal(
            weft.gemm(a, b, row_scale=rows, col_scale=cols, bias=cols), (a @ b) * rows[:, None] * cols + cols
        )
        out = np.zeros((17, 32), "f4")
        weft.gemm(a, b, out[:, :29])
        np.testing.assert_array_equal(out[:, :29], a @ b)
        self.assertFalse(out[:, 29:].any())
        gate, up = whole(3, 40, 8), whole(4, 40, 8)
        gated = np.maximum(a @ gate, 0) * (a @ up)
        for both in (weft.gate_up(gate, up), weft.gate_up(gate.T.copy().T, up.T.copy().T)):
            np.testing.assert_array_equal(weft.gemm(a, both, act="relu_gated"), gated)
            np.testing.assert_array_equal(weft.gemm(a, weft.Packed(both), act="relu_gated"), gated)
        with self.assertRaisesRegex(weft.errors.ArgumentError, "in pairs; b has 29"):
            weft.gemm(a, b, act="silu_gated")
        with self.assertRaisesRegex(weft.errors.ArgumentError, "a is 17 x 40, b is 29 x 40"):
            weft.gemm(a, b.T)
        with self.assertRaisesRegex(ValueError, "strides"):
            weft.gemm(a[::2, ::2], b)

    def test_a_plan_runs_again_and_says_what_was_decided(self) -> None:
        def body(group: weft.Group) -> None:
            plan = weft.Plan(group, "gemm_rs", m=12, n=10, k=8, dtype="float32", schedule="direct")
            self.assertEqual(
                (plan.problem["schedule"], plan.problem["m"], plan.problem["dtype"]), ("direct", 12, "float32")
            )
            for seed in range(3):
                a, b, d = whole(seed, 12, 8), whole(seed + 9, 8, 10), np.empty((12 // group.size, 10), "f4")
                plan.run(cut(a, 1, group), cut(b, 0, group), d)
                np.testing.assert_array_equal(d, cut(a @ b, 0, group))

        weft.run_threads(2, body)

    def test_a_plan_takes_what_its_problem_says(self) -> None:
        def body(group: weft.Group) -> None:
            a, b = whole(1, 12, 8), whole(2, 8, 10)
            for layout in ("gather_a", "gather_b", "gather_a_k", "gather_b_k"):
                plan = weft.Plan(group, "ag_gemm", m=12, n=10, k=8, layout=layout, transa=1)
                d = np.empty(cut(a @ b, int(layout.startswith("gather_a")), group).shape, "f4")
                mine = cut(a, int(layout == "gather_a_k"), group).T.copy()
                for given in (mine, mine.T):  # as it is stored, or as it is meant
                    plan.run(given, cut(b, int(layout != "gather_b_k"), group), d)
                    np.testing.assert_array_equal(d, cut(a @ b, int(layout.startswith("gather_a")), group))
            plan = weft.Plan(group, "gemm_ar", m=12, n=10, k=8)
            a, b, d = cut(a, 1, group), cut(b, 0, group), np.empty((12, 10), "f4")
            for wrong in ((a[:-1], b, d), (a, b.astype("f8"), d), (a, b, d[:, :-1]), (a[None].repeat(2, 0), b, d)):
                with self.assertRaisesRegex(weft.errors.ArgumentError, "is stored as .*; the plan has .* on rank"):
                    plan.run(*wrong)
            with self.assertRaisesRegex(weft.errors.ArgumentError, "b is packed"):
                plan.run(a, weft.Packed(b), d)
            with self.assertRaisesRegex(weft.errors.ArgumentError, "takes no recv"):
                plan.run(a, b, d, recv=d)
            with self.assertRaisesRegex(weft.errors.ArgumentError, "recv is stored as"):
                weft.Plan(group, "all_gather", count=4).run(send=np.zeros(4, "f4"), recv=np.zeros(4, "f4"))
            self.assertIs(copy.deepcopy(plan), plan)

        weft.run_threads(2, body)

    def test_arrays_that_are_not_what_they_seem(self) -> None:
        a, b = whole(1, 3, 4), whole(2, 4, 5)
        fields = np.zeros((3, 4), [("tag", "u1"), ("value", "f4")])
        packed = weft.Packed(b)
        with weft.threads(1)[0] as group:
            for refused, text in (
                (lambda: weft.gemm(fields["value"], b), "not whole elements"),
                (lambda: group.all_reduce(fields["value"][0], np.zeros(4, "f4")), "not whole elements"),
                (lambda: weft.gemm(a.astype(">f4"), b), "order of other machines"),
                (lambda: group.all_reduce(np.frombuffer(bytes(16), "f4")), "recv is read-only"),
                (lambda: weft.gemm(a, b, np.frombuffer(bytes(60), "f4").reshape(3, 5)), "out is read-only"),
                (lambda: weft.gemm(a[None].repeat(2, 0), np.broadcast_to(b, (2, 4, 5))), "b is one matrix 2 times"),
                (lambda: weft.Packed(b[None].repeat(2, 0)), "not a batch of 2"),
                (lambda: group.gemm_ar(a[None].repeat(2, 0), packed), "packed weights are one matrix"),
            ):
                with self.assertRaisesRegex((TypeError, ValueError), text):
                    refused()
            x = np.frombuffer(bytes(16), "f4")
            self.assertIs(group.broadcast(x), x)  # which the root's is not for
            np.testing.assert_array_equal(weft.gemm(a[None].repeat(2, 0)[::-1], b[None].repeat(2, 0)), [a @ b] * 2)

    def test_matrices_without_elements(self) -> None:
        for m, n, k in ((0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0)):
            for order in ("C", "F"):
                a, b = np.ones((m, k), "f4", order), np.ones((k, n), "f4", order)
                np.testing.assert_array_equal(weft.gemm(a, b), a @ b)

    def test_a_rank_without_a_part_is_transposed_as_the_others_are(self) -> None:
        def body(group: weft.Group) -> None:
            mine = (2, 2, 0)[group.rank]
            held = np.ones((4, 8), "f4")
            w = held[:mine]  # a slice keeps its strides
            d = group.ag_gemm(np.ones((2, 8), "f4"), w.T, n=4, granule_n=2)
            np.testing.assert_array_equal(d, np.full((6, mine), 8, "f4"))

        weft.run_threads(3, body)

    def test_a_rank_with_one_column_is_transposed_as_the_others_are(self) -> None:
        def body(group: weft.Group) -> None:
            a, w = whole(1, 6, 8), whole(2, 3, 8)
            mine = cut(w, 0, group)  # two rows of three, or one
            np.testing.assert_array_equal(group.ag_gemm(cut(a, 0, group), mine.T, n=3), a @ mine.T)
            plan, d = weft.Plan(group, "ag_gemm", m=6, n=3, k=8, transb=1), np.empty((6, mine.shape[0]), "f4")
            plan.run(cut(a, 0, group), mine.T, d)
            np.testing.assert_array_equal(d, a @ mine.T)

        weft.run_threads(2, body)

    def test_a_rank_with_one_row_is_transposed_as_the_others_are(self) -> None:
        def body(group: weft.Group) -> None:
            a, w = whole(1, 8, 5), whole(2, 8, 4)
            for m, granule in ((5, 1), (3, 1), (2, 1), (5, 2)):
                mine = cut(a[:, :m], 1, group, granule).copy().T
                y = group.ag_gemm(mine, w, m=m, n=4 * group.size, granule_m=granule)
                np.testing.assert_array_equal(y, a[:, :m].T @ w)

        weft.run_threads(3, body)

    def test_a_plan_reads_one_row_where_it_lies(self) -> None:
        x, b, held = whole(1, 8, 1), whole(2, 8, 3), np.full((8, 16), 99, "f4")
        held[:, :1] = x
        with weft.threads(1)[0] as group:
            for transa in (0, 1):
                plan, d = weft.Plan(group, "gemm_ar", m=1, n=3, k=8, transa=transa), np.zeros((1, 3), "f4")
                for given in (x, x.T, x.T.copy(), *((held[:, :1], held[:, :1].T) if transa else ())):
                    plan.run(given, b, d)
                    np.testing.assert_array_equal(d, x.T @ b)
            plan = weft.Plan(group, "gemm_ar", m=1, n=3, k=8)
            for wrong in ((held[:, :1], b, d), (x.T, b, held[:3, :1])):
                with self.assertRaisesRegex(weft.errors.ArgumentError, "is one row in the plan; its elements are 16 apart"):
                    plan.run(*wrong)

    def test_a_plan_wants_a_factor_for_each(self) -> None:
        a, b, d, few = whole(1, 4, 2), whole(2, 2, 3), np.zeros((4, 3), "f4"), np.ones(1, "f4")
        with weft.threads(1)[0] as group:
            plan = weft.Plan(group, "gemm_ar", m=4, n=3, k=2, scales=1)
            for wrong in ({"row_scale": few}, {"col_scale": few}, {"alpha": np.ones(2, "f4")}):
                with self.assertRaisesRegex(weft.errors.ArgumentError, f"{next(iter(wrong))} must be [431] elements"):
                    plan.run(a, b, d, **wrong)
            plan.run(a, b, d, row_scale=np.arange(4, dtype="f4"), col_scale=np.arange(3, dtype="f4"))
            np.testing.assert_array_equal(d, np.arange(4)[:, None] * (a @ b) * np.arange(3))
            with self.assertRaisesRegex(weft.errors.ArgumentError, "takes no factors"):
                weft.Plan(group, "all_reduce", count=8).run(send=a, recv=np.empty_like(a), alpha=few)

    def test_a_plan_refuses_what_lies_the_other_way(self) -> None:
        a, b = whole(1, 4, 4), whole(2, 4, 4)
        with weft.threads(1)[0] as group:
            plan = weft.Plan(group, "gemm_ar", m=4, n=4, k=4)
            for wrong in ((a.T, b, np.zeros((4, 4), "f4")), (a, b.T, np.zeros((4, 4), "f4")), (a, b, np.zeros((4, 4), "f4").T)):
                with self.assertRaisesRegex(weft.errors.ArgumentError, "transposed"):
                    plan.run(*wrong)

    def test_names_that_do_not_exist(self) -> None:
        with weft.threads(1)[0] as group:
            for options in ({"schedule": "best"}, {"act": "tanh"}, {"layout": "gather_c"}):
                with self.assertRaisesRegex(weft.errors.ArgumentError, "there is no .*; there are "):
                    group.gemm_ar(whole(1, 2, 2), whole(2, 2, 2), **options)
            with self.assertRaisesRegex(weft.errors.ArgumentError, "no field 'colour'"):
                weft.Plan(group, "gemm_ar", colour=3)


class Collectives(unittest.TestCase):
    def check_collectives(self, group: weft.Group) -> None:
        w, r = group.size, group.rank
        x = np.arange(6, dtype="f4").reshape(3, 2) + r
        every = [np.arange(6, dtype="f4").reshape(3, 2) + q for q in range(w)]
        np.testing.assert_array_equal(group.all_reduce(x.copy()), sum(every))
        np.testing.assert_array_equal(group.all_reduce(x, np.empty_like(x), op="max"), every[-1])
        np.testing.assert_array_equal(group.all_gather(x), np.concatenate(every))
        big = np.concatenate([x + 10 * q for q in range(w)])
        np.testing.assert_array_equal(group.reduce_scatter(big), sum(every) + 10 * r * w)
        np.testing.assert_array_equal(group.all_to_all(big), np.concatenate([e + 10 * r for e in every]))
        np.testing.assert_array_equal(group.broadcast(x.copy(), root=w - 1), every[-1])
        np.testing.assert_array_equal(group.all_reduce(np.array([r], "int64"), op="product"), [0])

    def test_threads(self) -> None:
        for size in (1, 2, 3):
            weft.run_threads(size, self.check_collectives)

    def test_processes_and_sub_groups(self) -> None:
        def body(rank: int) -> None:
            world = weft.init()
            self.assertIs(weft.init(), world)
            self.check_collectives(world)
            half = world.split(rank % 2, -rank)
            self.assertEqual((half.size, half.rank), (2, 1 - rank // 2))
            self.check_collectives(half)
            self.assertIsNone(world.split(-1))

        support.ranks(4, body)

    def test_errors_are_exceptions_with_the_librarys_sentence(self) -> None:
        def body(group: weft.Group) -> str:
            try:
                group.broadcast(np.zeros(3 + group.rank, "f4"))
            except weft.errors.MismatchError as error:
                return str(error)
            return "no error"

        for sentence in weft.run_threads(2, body):
            self.assertRegex(sentence, r"rank|differ")
        with weft.threads(1)[0] as group:
            with self.assertRaises(ValueError):
                group.broadcast(np.zeros(3, "f4"), root=4)
            with self.assertRaisesRegex(weft.errors.ArgumentError, "contiguous"):
                group.all_reduce(np.zeros((4, 4), "f4")[:, ::2])
            with self.assertRaisesRegex(weft.errors.ArgumentError, "recv has 3 elements; with 2 in send it needs 2"):
                group.all_gather(np.zeros(2, "f4"), np.zeros(3, "f4"))
            with self.assertRaisesRegex(TypeError, "complex64"):
                group.all_reduce(np.zeros(2, "complex64"))
        with self.assertRaisesRegex(weft.errors.StateError, "closed"):
            group.barrier()

    def test_memory_that_is_gone(self) -> None:
        with weft.threads(1)[0] as group:
            freed, left = weft.empty(4, "float32", group), weft.empty(4, "float32", group)
            freed.free()
            other = weft.empty(4, "float32", group)  # where the first one was
            for use in (freed.numpy, freed.__dlpack__):
                with self.assertRaisesRegex(weft.errors.StateError, "was freed"):
                    use()
            self.assertEqual(other.numpy().sum(), 0)
        for use in (left.numpy, left.__dlpack__):
            with self.assertRaisesRegex(weft.errors.StateError, "the group is closed"):
                use()
        self.assertEqual(left.shape, (4,))

    def test_integers_that_c_cannot_hold(self) -> None:
        a, four = np.zeros((4, 4), "f4"), 2**32
        with weft.threads(1)[0] as group:
            shared = weft.empty(4, "float32", group)
            for call, sentence in (
                (lambda: group.broadcast(np.zeros(3, "f4"), root=four), "weft_broadcast: root is 4294967296; it can be from"),
                (lambda: group.broadcast(np.zeros(3, "f4"), root=np.int64(four)), "weft_broadcast: root is 4294967296; it can be"),
                (lambda: group.broadcast(np.zeros(3, "f4"), root=0.0), "weft_broadcast: root is 0.0; it must be an integer"),
                (lambda: group.split(None), "colour is None; it must be an integer"),
                (lambda: weft.empty((2.5,), "float32", group), r"a shape is an integer or integers, not \(2.5,\)"),
                (lambda: weft.empty("ab", "float32", group), "a shape is an integer or integers, not 'ab'"),
                (lambda: group.split(four), "colour is 4294967296"),
                (lambda: group.split(0, -four), "key is -4294967296"),
                (lambda: shared.peer(four), "rank 4294967296 is not in a group of 1"),
                (lambda: weft.create(weft.new_id(), four, four + 1), "rank is 4294967296"),
                (lambda: weft.signal_pad(2**64 + 1, group), "count is 18446744073709551617"),
                (lambda: weft.gemm(a, a, threads=four), "threads is 4294967296"),
                (lambda: weft.Plan(group, "gemm_ar", m=8, n=8, k=8, tile_m=2**64), "tile_m is 18446744073709551616"),
                (lambda: weft.Plan(group, "ag_gemm", m=2**64 + 8, n=8, k=8), "weft_problem.m is"),
                (lambda: weft.MoE(group, four, 2, 8, 16, "float32"), "experts is 4294967296"),
                (lambda: weft.MoE(group, 2, 2, 8, 16, "float32", expert_rank=[0, four]), r"expert_rank\[1\] is 4294967296"),
            ):
                with self.assertRaisesRegex(weft.errors.ArgumentError, sentence):
                    call()

    def test_a_killed_rank_is_named(self) -> None:
        def body(rank: int) -> str:
            group = weft.init()
            group.barrier()
            if rank == 1:
                os._exit(0)
            try:
                group.barrier()
            except weft.errors.PeerDiedError as error:
                return str(error)
            return "no error"

        answers = support.finish(support.start(3, body))
        self.assertIsNone(answers[1])
        for rank in (0, 2):
            self.assertRegex(answers[rank][1], "rank 1")


class MixtureOfExperts(unittest.TestCase):
    experts, topk, hidden, inter, tokens = 6, 2, 16, 8, 10

    def weights(self, seed: int, rows: int, cols: int) -> np.ndarray:
        return (np.random.default_rng(seed).standard_normal((rows, cols)) * 0.3).astype("f4")

    def expected(self, x: np.ndarray, expert: np.ndarray, weight: np.ndarray) -> np.ndarray:
        y = np.zeros_like(x)
        for t in range(len(x)):
            for e, w in zip(expert[t], weight[t]):
                if e >= 0:
                    gate = x[t] @ self.weights(3 * e, self.hidden, self.inter)
                    up = x[t] @ self.weights(3 * e + 1, self.hidden, self.inter)
                    y[t] += w * ((gate / (1 + np.exp(-gate)) * up) @ self.weights(3 * e + 2, self.inter, self.hidden))
        return y

    def check_rounds(self, group: weft.Group) -> None:
        moe = weft.MoE(group, self.experts, self.topk, self.hidden, self.tokens, "float32")
        rng = np.random.default_rng(group.rank)
        mine = moe.local_experts
        gate = [self.weights(3 * e, self.hidden, self.inter) for e in mine]
        up = [self.weights(3 * e + 1, self.hidden, self.inter) for e in mine]
        down = [self.weights(3 * e + 2, self.inter, self.hidden) for e in mine]
        ffn = weft.FeedForward(moe, gate, up, down)
        for tokens in (self.tokens, 0, 3):
            x = rng.standard_normal((tokens, self.hidden)).astype("f4")
            expert = np.array([rng.permutation(self.experts)[: self.topk] for _ in range(tokens)], "int32").reshape(
                tokens, self.topk
            )
            weight = rng.random((tokens, self.topk)).astype("f4")
            if tokens:
                expert[0, 1] = -1
            want = self.expected(x, expert, weight)
            np.testing.assert_allclose(moe.forward(x, expert, weight, ffn), want, atol=1e-5)
            received = moe.dispatch(x, expert, weight)
            self.assertEqual(received.expert, mine)
            rows, start = moe.gather(x)
            results = np.zeros((len(rows), self.hidden), "f4")
            for j, s in enumerate(start):
                block = rows[s : s + received.offset[j + 1] - received.offset[j]]
                g = block @ gate[j]
                results[s : s + len(block)] = (g / (1 + np.exp(-g)) * (block @ up[j])) @ down[j]
            np.testing.assert_allclose(moe.combine(results, start), want, atol=1e-5)
        self.assertEqual(moe.stats()["tokens"], 3)
        self.check_stored(moe, rng)
        self.check_fp8(group, rng)
        with self.assertRaisesRegex(weft.errors.ArgumentError, "rows of 64 bytes"):
            moe.dispatch(np.zeros((2, 5), "f4"))
        self.check_results_are_there(moe)
        odd = weft.MoE(group, self.experts, self.topk, self.hidden, self.tokens, "float32", row_bytes=6)
        odd.dispatch(np.zeros((2, 3), "f2"), np.zeros((2, 2), "i4") + np.arange(2, dtype="i4"))
        with self.assertRaisesRegex(weft.errors.ArgumentError, "rows of 6 bytes are no whole elements of float32"):
            odd.gather(gate[0])
        self.assertEqual(odd.gather(np.zeros(0, "f2"))[0].shape[1:], (3,))
        with self.assertRaisesRegex(weft.errors.ArgumentError, "gate must be hidden x inter"):
            weft.FeedForward(moe, [g[0] for g in gate], up, down)

    def check_results_are_there(self, moe: weft.MoE) -> None:
        expert = np.zeros((self.tokens, self.topk), "int32") + np.arange(self.topk, dtype="int32")
        entries = moe.dispatch(np.zeros((self.tokens, self.hidden), "f4"), expert).offset[-1]
        results, here = np.zeros((entries, self.hidden), "f4"), len(moe.local_experts)
        if entries:
            with self.assertRaisesRegex(weft.errors.ArgumentError, f"results has {entries - 1} rows; .* needs {entries}"):
                moe.combine(results[1:])
            with self.assertRaisesRegex(weft.errors.ArgumentError, f"results has {entries} rows"):
                moe.combine(results, [entries] * here)
        with self.assertRaisesRegex(weft.errors.ArgumentError, f"start has {here + 1} places for {here} experts"):
            moe.combine(results, [0] * (here + 1))
        moe.combine(results)
        self.assertIs(copy.deepcopy(moe), moe)

    def check_fp8(self, group: weft.Group, rng: np.random.Generator) -> None:
        """Tokens that travel as fp8: of those a rank gets, each is within half a step of what was sent."""
        moe = weft.MoE(group, self.experts, self.topk, 200, self.tokens, "float32", wire="fp8")
        x = rng.standard_normal((self.tokens, 200)).astype("f4")
        expert = np.full((self.tokens, self.topk), -1, "int32")
        expert[:, 0] = np.arange(self.tokens) % self.experts
        moe.dispatch(x, expert)
        rows, start = moe.gather(x)
        y = moe.combine(rows, start)
        self.assertTrue((y != x).any())
        np.testing.assert_allclose(y, x, rtol=0.07, atol=0.01)
        self.assertEqual(moe.stats()["dispatch_bytes"], self.tokens * (208 + 16))
        with self.assertRaisesRegex(weft.errors.ArgumentError, "wire one of given, fp8"):
            weft.MoE(group, 1, 1, 8, 1, wire="int4")

    def check_stored(self, moe: weft.MoE, rng: np.random.Generator) -> None:
        """Experts of int8 weights and scales of their columns: those that the same numbers in float32 are."""
        matrices, scales, plain = [], [], []
        for which, shape in enumerate(((self.hidden, self.inter), (self.hidden, self.inter), (self.inter, self.hidden))):
            own = [np.random.default_rng(3 * e + which) for e in moe.local_experts]
            matrices.append([r.integers(-127, 128, shape, "int8") for r in own])
            scales.append([r.random(shape[1]).astype("f4") / 256 for r in own])
            plain.append([m.astype("f4") * s for m, s in zip(matrices[-1], scales[-1])])
        stored = weft.FeedForward(moe, *matrices, gate_scale=scales[0], up_scale=scales[1], down_scale=scales[2])
        x = rng.standard_normal((self.tokens, self.hidden)).astype("f4")
        expert = np.array([rng.permutation(self.experts)[: self.topk] for _ in x], "int32")
        weight = rng.random(expert.shape).astype("f4")
        want = moe.forward(x, expert, weight, weft.FeedForward(moe, *plain))
        np.testing.assert_allclose(moe.forward(x, expert, weight, stored), want, rtol=1e-4, atol=1e-4)
        if moe.local_experts:
            with self.assertRaisesRegex(weft.errors.ArgumentError, "up must be .* of int8; it is .* of float32"):
                weft.FeedForward(moe, matrices[0], plain[1], matrices[2])
            with self.assertRaisesRegex(weft.errors.ArgumentError, f"down_scale must be {self.hidden} elements of float32"):
                weft.FeedForward(moe, *matrices, down_scale=scales[0])

    def test_threads(self) -> None:
        for size in (1, 4):
            weft.run_threads(size, self.check_rounds)

    def test_processes(self) -> None:
        support.ranks(2, lambda rank: self.check_rounds(weft.init()))


support.main()
