"""The backend of torch.distributed: equal to gloo in every collective, DTensor, FSDP2, DDP and functional collectives."""

import datetime
import os
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, List

import support

support.need("torch")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as checkpoint  # noqa: E402
from groups import beside_store, inside  # noqa: E402
from programs import PROGRAMS, TYPES, newest, numbers  # noqa: E402
from torch import nn  # noqa: E402

import weft  # noqa: E402
import weft.torch  # noqa: E402


def programs(rank: int, backend: str) -> Any:
    if backend == "gloo":  # which prints what it connects to
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    run = inside(backend, lambda r: {name: program(r) for name, program in PROGRAMS.items()})
    return run(rank)


class Equal(unittest.TestCase):
    """The same programs under gloo and under weft."""

    def test_two_and_four_processes(self) -> None:
        for size in (2, 4):
            gloo, mine = (support.ranks(size, programs, backend) for backend in ("gloo", "weft"))
            for name in PROGRAMS:
                tolerance = 0 if name == "collectives" else 1e-5
                for rank in range(size):
                    want, got = gloo[rank][name], mine[rank][name]
                    self.assertEqual(len(want), len(got))
                    for i, (a, b) in enumerate(zip(want, got)):
                        where = f"{name}, rank {rank} of {size}, result {i}: "
                        torch.testing.assert_close(
                            b, a, rtol=tolerance, atol=tolerance, msg=lambda text, where=where: where + text
                        )


class Own(unittest.TestCase):
    """What gloo has no measure for."""

    def test_average_and_operators_on_a_process_group(self) -> None:
        def body(rank: int) -> None:
            x = torch.full((3,), float(rank))
            dist.all_reduce(x, dist.ReduceOp.AVG)
            assert x.tolist() == [0.5] * 3
            x = torch.arange(24.0).view(4, 6)
            dist.all_reduce(x.t()[1:4])  # a view with gaps: its elements and no others
            assert x[:, 1:4].equal(2 * torch.arange(24.0).view(4, 6)[:, 1:4])
            assert x[:, 4:].equal(torch.arange(24.0).view(4, 6)[:, 4:])
            for dtype in TYPES:  # in chunks, and a rest
                one = torch.arange(270_001) % 5
                for op, want in ((dist.ReduceOp.SUM, 2 * one + 1), (dist.ReduceOp.MAX, one + 1)):
                    x = (one + rank).to(dtype)
                    dist.all_reduce(x, op)
                    assert x.equal(want.to(dtype)), f"{dtype} {op}"
            work = dist.all_reduce(torch.ones(100000), async_op=True)
            y = torch.ops.weft.gemm_ar(torch.ones(2, 3), torch.ones(3, 2), None, dist.group.WORLD.group_name)
            assert y.tolist() == [[6.0, 6.0]] * 2, y
            work.wait()
            layer = weft.torch.RowParallelLinear(8, 4, group=dist.group.WORLD)
            assert layer(torch.ones(2, 4)).shape == (2, 4)

        support.ranks(2, inside("weft", body))

    def test_ranks_of_several_nodes_meet(self) -> None:
        def body(rank: int) -> None:
            x = torch.full((1000,), float(rank))
            dist.all_reduce(x)
            assert x.tolist() == [3.0] * 1000
            message = torch.full((9,), float(rank))
            if rank != 2:  # from the other node to this one, and on within it
                dist.recv(message, 2 - 2 * rank)
            if rank != 1:
                dist.send(message, 0 if rank == 2 else 1)
            assert message.tolist() == [2.0] * 9
            with self.assertRaisesRegex(weft.errors.UnsupportedError, "one node"):
                dist.recv(x)
            with weft.from_store(dist.distributed_c10d._get_default_store(), rank, 3, "ours") as group:
                mine = weft.empty((4,), group=group)
                for peer in range(3):  # what is on another node cannot be addressed
                    if (peer == 2) == (rank == 2):
                        mine.peer(peer)
                    else:
                        with self.assertRaises(weft.errors.UnsupportedError):
                            mine.peer(peer)

        def run(rank: int) -> None:
            os.environ["WEFT_NODE"] = "first" if rank < 2 else "second"
            inside("weft", body)(rank)

        support.ranks(3, run)

    def test_calls_now_and_later_are_equal(self) -> None:
        """What is waited for at once and lies without gaps takes a shorter way than the rest."""

        def body(rank: int) -> None:
            size = dist.get_world_size()

            def gaps(x: torch.Tensor) -> torch.Tensor:
                return torch.stack([x, x], -1)[..., 0]

            calls = (
                (dist.all_reduce, lambda n: (numbers(rank, n, 2),)),
                (dist.broadcast, lambda n: (numbers(rank, n, 2), size - 1)),
                (newest(dist, "all_gather_single", "all_gather_into_tensor"), lambda n: (torch.zeros(n * size, 2), numbers(rank, n, 2))),
                (newest(dist, "reduce_scatter_single", "reduce_scatter_tensor"), lambda n: (torch.zeros(n, 2), numbers(rank, n * size, 2))),
                (dist.all_to_all_single, lambda n: (torch.zeros(n * size, 2), numbers(rank, n * size, 2))),
            )
            for call, make in calls:
                for n in (0, 3, 1000, 40000):  # nothing, without a plan, the same in memory of torch's own, in chunks
                    for again in range(2):
                        now, later, apart = make(n), make(n), [gaps(x) if isinstance(x, torch.Tensor) else x for x in make(n)]
                        call(*now)
                        call(*later, async_op=True).wait()
                        call(*apart)
                        assert now[0].equal(later[0]) and now[0].equal(apart[0]), (call, n, again)
                        if n:
                            assert now[0].count_nonzero()

        for size in (2, 3):
            support.ranks(size, inside("weft", body))

    def test_all_reduce_takes_the_short_way_only_where_it_may(self) -> None:
        """Plain calls never reach torch's wrapper; what is gathered, looked on, compiled or another backend's does."""
        from torch.overrides import TorchFunctionMode

        from weft.torch import _collectives

        class Looking(TorchFunctionMode):
            seen: List[Any] = []

            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                self.seen.append(function)
                return function(*args, **(kwargs or {}))

        def body(rank: int) -> None:
            both = float(sum(range(1, 3)))
            short: List[int] = []
            plain = _collectives.Collectives._reduce_now

            def counted(self: Any, x: torch.Tensor, op: int) -> bool:
                done = plain(self, x, op)
                short.append(done)
                return done

            torch_way = _collectives.Collectives.allreduce
            _collectives.Collectives._reduce_now = counted
            _collectives.Collectives.allreduce = None
            everybody = dist.new_group([0, 1])
            x = torch.full((4,), rank + 1.0)
            for arguments in ((x,), (x, dist.ReduceOp.MAX), (x, dist.ReduceOp.SUM, everybody), (nn.Parameter(x),)):
                x.fill_(rank + 1)
                assert dist.all_reduce(*arguments) is None
                assert x.tolist() == [2.0 if len(arguments) == 2 else both] * 4, x
            assert short == [True] * 4, short
            _collectives.Collectives.allreduce = torch_way
            short.clear()

            x = torch.full((4,), rank + 1.0)
            with Looking():
                dist.all_reduce(x)
            assert dist.all_reduce in Looking.seen
            with dist._coalescing_manager():
                dist.all_reduce(x)
                assert not short[1:] and x.tolist() == [both] * 4
            assert x.tolist() == [2 * both] * 4, x
            gloo = dist.new_group(backend="gloo")
            del short[:]
            dist.all_reduce(x, group=gloo)
            assert not short and x.tolist() == [4 * both] * 4, x
            dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True).wait()
            for wrong in (lambda: dist.all_reduce([x]), lambda: dist.all_reduce(x, ""), lambda: dist.all_reduce()):
                with unittest.TestCase().assertRaises(TypeError):
                    wrong()

            @torch.compile(fullgraph=True, backend="aot_eager")
            def compiled(y: torch.Tensor) -> torch.Tensor:
                y = y * 2
                dist.all_reduce(y, op=dist.ReduceOp.SUM)
                return y + 1

            assert compiled(torch.full((4,), rank + 1.0)).tolist() == [2 * both + 1] * 4

        support.ranks(2, inside("weft", body, timeout=60))

    def test_barrier_takes_the_short_way_only_where_it_may(self) -> None:
        """A barrier that is waited for never reaches torch's wrapper; an asynchronous one, one behind a call that is under way
        and another backend's do."""
        from weft.torch import _collectives

        def body(rank: int) -> None:
            gloo, everybody = dist.new_group(backend="gloo"), dist.new_group([0, 1])
            torch_way = _collectives.Collectives.barrier
            _collectives.Collectives.barrier = None
            for arguments in ((), (None,), (everybody,)):
                for late in (0, 1):  # nobody leaves before everybody has come
                    come = time.monotonic()
                    if rank == late:
                        time.sleep(0.05)
                        come = time.monotonic()
                    assert dist.barrier(*arguments) is None
                    left, comes = time.monotonic(), [None, None]
                    dist.all_gather_object(comes, come)
                    assert left >= max(comes), (left, comes)
            dist.barrier(group=gloo)
            _collectives.Collectives.barrier = torch_way
            x = torch.full((1 << 20,), rank + 1.0)
            under_way = dist.all_reduce(x, async_op=True)
            dist.barrier()
            assert x[0] == 3
            under_way.wait()
            dist.barrier(async_op=True).wait()
            dist.barrier(device_ids=None)
            with unittest.TestCase().assertRaises(TypeError):
                dist.barrier(unknown=None)

        support.ranks(2, inside("weft", body, timeout=60))

    def test_methods_of_a_group_in_their_short_forms(self) -> None:
        """An operation or a root in place of options, or by name, as torch's own groups take them."""

        def body(rank: int) -> List[List[float]]:
            group, size, most, patience = dist.group.WORLD, 2, dist.ReduceOp.MAX, datetime.timedelta(seconds=30)
            got: List[List[float]] = []

            def ran(call: Callable[..., Any], x: torch.Tensor, *arguments: Any, **named: Any) -> None:
                call(x, *arguments, **named).wait()
                got.append(x.tolist())

            def mine() -> torch.Tensor:
                return torch.arange(2.0) + 10 * rank

            ran(group.allreduce, mine())
            ran(group.allreduce, mine(), most)
            ran(group.allreduce, mine(), op=most)
            ran(group.allreduce, mine(), most, patience)
            ran(group.allreduce, mine(), op=most, timeout=patience)
            ran(group.broadcast, mine(), 1)
            ran(group.broadcast, mine(), root=1, timeout=patience)
            for arguments, named in (((1,), {}), ((1, most), {}), ((), {"root": 1, "op": most, "timeout": patience})):
                x = mine()
                group.reduce(x, *arguments, **named).wait()
                got.append(x.tolist() if rank == 1 else [])
            ran(group.reduce_scatter, torch.zeros(2), [mine(), mine() + 1])
            ran(group.reduce_scatter, torch.zeros(2), [mine(), mine() + 1], most)
            ran(group.reduce_scatter, torch.zeros(2), [mine(), mine() + 1], op=most)
            ran(group.scatter, torch.zeros(2), [mine(), mine() + 1] if rank else [], 1)
            ran(group.scatter, torch.zeros(2), [mine(), mine() + 1] if rank else [], root=1)
            every = [torch.zeros(2) for _ in range(size)]
            group.allgather(every, mine(), timeout=patience).wait()
            got.extend(x.tolist() for x in every)
            for named in ({"root": 1}, {"root": 1, "timeout": patience}):
                group.gather([x.zero_() for x in every] if rank else [], mine(), **named).wait()
                got.extend(x.tolist() for x in (every if rank else []))
            out = torch.zeros(2)
            group.alltoall_base(out, mine(), [1, 1], [1, 1], timeout=patience).wait()
            got.append(out.tolist())
            group.barrier(timeout=patience).wait()
            return got

        self.assertEqual(support.ranks(2, inside("weft", body)), support.ranks(2, inside("gloo", body)))

    def test_different_calls_are_errors_on_every_rank(self) -> None:
        """And the group works afterwards."""

        def body(rank: int) -> None:
            calls = [lambda n=n: dist.all_reduce(torch.ones(n[rank])) for n in ((4, 5), (0, 5), (20000, 30000), (3 << 18, 5 << 18))]
            calls += [
                lambda: dist.all_reduce(torch.ones(4, dtype=(torch.float32, torch.float64)[rank])),
                lambda: dist.all_reduce(torch.ones(4), (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[rank]),
                lambda: dist.all_reduce(torch.ones(4)) if rank else dist.broadcast(torch.ones(4), 0),
                lambda: dist.broadcast(torch.ones(4), rank),
                lambda: dist.all_reduce(torch.ones(4 + rank), async_op=True).wait(),
            ]
            for i, call in enumerate(calls):
                try:
                    call()
                except weft.errors.MismatchError:
                    x = torch.ones(3)
                    dist.all_reduce(x)
                    assert x.tolist() == [2.0] * 3
                else:
                    raise AssertionError(f"no error of call {i}")

        support.ranks(2, inside("weft", body, timeout=20))

    def test_a_root_that_c_cannot_hold_is_refused(self) -> None:
        def body(rank: int) -> None:
            x, both = torch.ones(4), [torch.ones(4), torch.ones(4)]
            for call in (
                lambda: dist.broadcast(x, 2**32),
                lambda: dist.broadcast(x, 2**32, async_op=True).wait(),
                lambda: dist.reduce(x, 2**32),
                lambda: dist.group.WORLD.gather([[]], [x], root=2**32).wait(),
                lambda: dist.group.WORLD.scatter([x], [[]], root=2**32).wait(),
            ):
                try:
                    call()
                except ValueError as error:
                    assert "root is 4294967296; it can be from" in str(error), error
                else:
                    raise AssertionError("no error")
            dist.all_gather(both, x)

        support.ranks(2, inside("weft", body, timeout=20))

    def test_tensors_that_do_not_fit_are_refused(self) -> None:
        """Before anything is read or written beyond them."""

        def body(rank: int) -> None:
            two, three, wide = torch.ones(2), torch.ones(3), torch.ones(2, dtype=torch.float64)
            calls = [
                lambda: dist.all_to_all_single(two, torch.ones(4)),
                lambda: dist.all_to_all_single(torch.ones(2, 2), torch.ones(2, 3)),
                lambda: dist.all_gather([three, three], two),
                lambda: dist.reduce_scatter(two, [three, three]),
                lambda: dist.reduce_scatter(wide, [two, two]),
                lambda: dist.reduce_scatter(two, [two]),
                lambda: dist.reduce_scatter_tensor(two, torch.ones(6)),
                lambda: dist.all_gather_into_tensor(three, two),
                lambda: dist.all_to_all_single(two, two, [2], [2]),
                lambda: dist.all_to_all_single(two, two, [1, 1], [1, 2]),
                lambda: dist.all_to_all_single(torch.tensor(1.0), torch.tensor(1.0)),
                lambda: dist.all_to_all([two], [two]),
                lambda: dist.all_to_all([two, wide], [two, two]),
                lambda: dist.send(two, 9),
                lambda: dist.recv(two, 9),
            ]
            if rank == 0:
                calls += [
                    lambda: dist.scatter(three, [two, two]),
                    lambda: dist.gather(two, [three, three]),
                    lambda: dist.gather(two, [wide, wide]),
                    lambda: dist.scatter(two, [two]),
                    lambda: dist.gather(two, [two]),
                ]
            for i, call in enumerate(calls):
                try:
                    call()
                except ValueError:
                    continue
                raise AssertionError(f"no error of call {i}")
            shaped = [torch.zeros(6), torch.ones(3, 2)]  # those that fit in the number of elements do
            dist.scatter(out := torch.zeros(2, 3), shaped if rank == 0 else None)
            assert out.eq(rank).all(), out

        support.ranks(2, inside("weft", body, timeout=20))

    def test_views_that_say_something_else_than_their_memory(self) -> None:
        def body(rank: int) -> None:
            now = torch._C._distributed_c10d.BroadcastOptions()
            now.asyncOp, z = False, torch.tensor([1 + 1j]) if rank else torch.tensor([2 + 2j]).conj()
            dist.group.WORLD.broadcast([z], now)
            assert z.tolist() == [2 - 2j], z
            x = torch._neg_view(torch.arange(4.0) + rank)
            dist.all_reduce(x, dist.ReduceOp.MAX)
            assert x.tolist() == [0.0, -1.0, -2.0, -3.0], x
            out = torch.zeros(8)
            dist.all_gather_into_tensor(out, torch._neg_view(torch.arange(4.0) + rank))
            assert out.tolist() == [-0.0, -1.0, -2.0, -3.0, -1.0, -2.0, -3.0, -4.0], out

        support.ranks(2, inside("weft", body, timeout=20))

    def test_groups_in_flight_in_different_orders(self) -> None:
        def body(rank: int) -> None:
            one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
            order = [one, two] if rank == 0 else [two, one]
            tensors = [torch.full((5,), float(rank)) for _ in order]
            for work in [dist.all_reduce(x, group=g, async_op=True) for x, g in zip(tensors, order)]:
                work.wait()
            assert all(x.tolist() == [1.0] * 5 for x in tensors)

        support.ranks(2, inside("weft", body))

    def test_parts_of_a_group(self) -> None:
        """``split_group``, also again for the same ranks; a mesh asks for it where a group is bound to a device."""

        def body(rank: int) -> None:
            everybody = dist.group.WORLD
            everybody.bound_device_id = torch.device("cuda", 0)  # as where a device is given to init_process_group
            for _ in range(2):
                half = dist.split_group(split_ranks=[[0, 2], [1, 3]], group_desc="half")
                x = torch.full((3,), float(rank))
                dist.all_reduce(x, group=half)
                assert x.tolist() == [2.0 + 2 * (rank % 2)] * 3, x
                assert (half.rank(), half.size(), half.group_desc) == (rank // 2, 2, "half")
                assert dist.get_process_group_ranks(half) == [rank % 2, rank % 2 + 2]
                dist.destroy_process_group(half)
            two = dist.split_group(split_ranks=[[1, 2]])
            if rank in (1, 2):
                x = torch.ones(2)
                dist.all_reduce(x, group=two)
                assert x.tolist() == [2.0] * 2
            else:
                assert two in (None, dist.GroupMember.NON_GROUP_MEMBER)
            dist.barrier()  # rank 0 has the store

        support.ranks(4, inside("weft", body, timeout=20))

    def test_what_hangs_on_a_future_makes_calls_and_waits(self) -> None:
        """As hooks of DDP do, with other calls behind."""

        def body(rank: int) -> None:
            hold, x, y = threading.Event(), torch.ones(3), torch.ones(3)
            dist.group.WORLD._lane.submit([], hold.wait)
            first, behind = (dist.all_reduce(z, async_op=True) for z in (x, y))

            def more(done: Any) -> torch.Tensor:
                z = done.value()[0] * 10
                dist.all_reduce(z)
                dist.all_reduce(z, async_op=True).get_future().then(lambda _: dist.barrier()).wait()
                return z

            z = first.get_future().then(more)
            hold.set()
            assert z.wait().tolist() == [80.0] * 3
            behind.wait()
            dist.all_reduce(x)
            assert x.tolist() == [4.0] * 3 and y.tolist() == [2.0] * 3

        support.ranks(2, inside("weft", body, timeout=20))

    def test_layers_and_calls_of_the_group_wait_for_calls_under_way(self) -> None:
        def body(rank: int) -> None:
            world: Any = dist.group.WORLD
            group = weft.torch.group_of(world.group_name)
            plan = weft.Plan(group, "all_reduce", count=1000)
            layer = weft.torch.MoELayer(16, 24, 4, 2, 8, world)
            column = weft.torch.ColumnParallelLinear(16, 8, group=world, sequence_parallel=True).prepack()
            row = weft.torch.RowParallelLinear(16, 8, group=world).prepack()
            x = torch.randn(4, 16, requires_grad=True)
            y: Any = None

            def forward() -> None:
                nonlocal y
                y = layer(x)

            def packed() -> None:
                with torch.no_grad():
                    row(column(x)[:, :1].expand(-1, 8))

            def reduced(by: Any) -> None:
                mine = torch.full((1000,), 10.0)
                by(mine)
                self.assertTrue(torch.equal(mine, torch.full((1000,), 20.0)), mine)

            for call in (
                forward, lambda: y.sum().backward(), packed, lambda: layer.bfloat16(), group.barrier, lambda: group.split(0),
                lambda: reduced(group.all_reduce), lambda: reduced(lambda x: plan.run(send=x, recv=x)),
                lambda: weft.empty((4,), group=group),
            ):  # fmt: skip
                if rank == 0:  # whose thread of calls comes later than its caller, unless that waits
                    world._lane.submit([], lambda: time.sleep(0.1))
                total = torch.ones(1000)
                work = dist.all_reduce(total, async_op=True)
                if rank == 1:
                    time.sleep(0.05)
                call()
                work.wait()
                self.assertTrue(torch.equal(total, torch.full((1000,), 2.0)))

        support.ranks(2, inside("weft", body))

    def test_tensors_that_cannot_be_taken_are_refused(self) -> None:
        def body(rank: int) -> None:
            here, there = torch.ones(1, 2), torch.ones(1, 2, device="meta")
            for call in (
                lambda: dist.all_reduce(there),
                lambda: dist.all_reduce(here.to(torch.float8_e4m3fn)),
                lambda: dist.all_gather_into_tensor(here, there),
                lambda: dist.all_gather([here], there),
                lambda: dist.reduce_scatter_tensor(here, there),
                lambda: dist.reduce_scatter(here, [there]),
                lambda: dist.all_to_all_single(here, there),
                lambda: dist.all_to_all([here], [there]),
                lambda: dist.scatter(here, [there]),
                lambda: dist.gather(there, [here]),
            ):
                try:
                    call()
                except weft.errors.UnsupportedError:
                    continue
                raise AssertionError("no error")

        support.ranks(1, inside("weft", body))

    def test_process_groups_after_each_other_in_one_store(self) -> None:
        """As under torchrun, whose store stays: their keys are not mixed up, neither of the groups nor of messages."""

        def body(rank: int, store: Any) -> None:
            for i in range(3):
                dist.init_process_group("weft", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=20))
                x = torch.full((4,), float(rank + i))
                dist.all_reduce(x)
                assert x.tolist() == [2.0 * i + 1] * 4, (i, x)
                dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
                dist.barrier()
                dist.destroy_process_group()

        support.ranks(2, beside_store(body), seconds=60)

    def test_a_checkpoint_is_saved_beside_the_program(self) -> None:
        """That needs to know that the group serves tensors of the CPU."""

        def body(rank: int, folder: str) -> None:
            assert sorted(dist.distributed_c10d._device_capability(dist.group.WORLD)) == ["cpu", "cuda"]
            checkpoint.async_save({"x": torch.arange(4.0)}, checkpoint_id=folder).result()
            read = {"x": torch.zeros(4)}
            checkpoint.load(read, checkpoint_id=folder)
            assert read["x"].tolist() == [0.0, 1.0, 2.0, 3.0], read

        with tempfile.TemporaryDirectory() as folder:
            support.ranks(2, inside("weft", body), folder)

    def test_data_loader_workers_do_no_harm(self) -> None:
        def body(rank: int) -> None:
            dist.all_reduce(torch.ones(4))
            for _ in torch.utils.data.DataLoader(list(range(8)), batch_size=2, num_workers=2):
                x = torch.ones(4)
                dist.all_reduce(x)
                assert x.tolist() == [2.0] * 4

        support.ranks(2, inside("weft", body))

    def test_messages_from_any_rank(self) -> None:
        def body(rank: int) -> None:
            x = torch.zeros(1)
            if rank == 0:
                seen = []
                for i in range(8):  # two of each rank with tag 5; those with tag 6 are left for later, by name
                    source = dist.recv(x, tag=5) if i < 6 else dist.recv(x, src=i - 5, tag=6)
                    assert int(x) == 100 * source + (5 if i < 6 else 6), (source, x)
                    seen.append(source)
                assert sorted(seen[:6]) == [1, 1, 2, 2, 3, 3] and seen[6:] == [1, 2], seen
            else:
                sent = [dist.isend(torch.full((1,), 100.0 * rank + tag), 0, tag=tag) for tag in ((6, 5, 5) if rank < 3 else (5, 5))]
                for work in sent:
                    work.wait()

        support.ranks(4, inside("weft", body))

    def test_messages_that_cross(self) -> None:
        """Ranks that first of all receive from each other, each on a channel that is new."""

        def body(rank: int) -> None:
            for tag in range(4):
                got, peer = torch.zeros(3), 1 - rank
                work = dist.irecv(got, peer, tag=tag)
                time.sleep(0.02)  # it is under way
                dist.send(torch.full((3,), float(rank)), peer, tag=tag)
                work.wait()
                assert got.tolist() == [float(peer)] * 3, got

        support.ranks(2, inside("weft", body, timeout=20))

    def test_sparse_tensors_are_added(self) -> None:
        def body(rank: int) -> None:
            whole = torch.zeros(5, 2)
            whole[: rank + 1] = rank + 1.0
            x = whole.to_sparse(1)
            dist.all_reduce(x)
            assert x.to_dense().equal(torch.tensor([3.0, 2.0, 0.0, 0.0, 0.0])[:, None].expand(5, 2)), x

        support.ranks(2, inside("weft", body))

    def test_what_it_cannot_do_says_so(self) -> None:
        def body(rank: int) -> None:
            for call, text in (
                (lambda: dist.recv(torch.ones(1), tag=1000), "tags below 64"),
                (lambda: dist.all_reduce(torch.ones(2).to_sparse(), dist.ReduceOp.MAX), "adds sparse tensors"),
            ):
                try:
                    call()
                except (NotImplementedError, RuntimeError) as error:
                    assert text in str(error), error
                else:
                    raise AssertionError(text)

        support.ranks(1, inside("weft", body))


if __name__ == "__main__":
    support.main()
