"""Groups, waits and symmetric memory."""

import copy
import gc
import importlib.util
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock
from typing import Any, List

import support

support.need("numpy")

import numpy as np  # noqa: E402
import weft  # noqa: E402


class Waiting(unittest.TestCase):
    def test_control_c_ends_a_wait(self) -> None:
        def body(rank: int) -> Any:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            group = weft.init()
            group.barrier()
            if rank == 1:
                time.sleep(0.3)
                os.kill(os.getppid(), signal.SIGUSR1)  # now rank 0 waits
                time.sleep(1.5)
                try:
                    group.barrier()
                except weft.errors.AbortedError as error:
                    return str(error), time.monotonic()
                return "no error", 0
            try:
                group.barrier()
            except KeyboardInterrupt:
                return "interrupted", time.monotonic()
            return "no error", 0

        when = []
        before = signal.signal(signal.SIGUSR1, lambda *_: when.append(True))
        try:
            family = support.start(2, body)
            while not when:
                time.sleep(0.01)
            time.sleep(0.3)
            os.kill(family[0][0], signal.SIGINT)
            first, second = support.finish(family)
        finally:
            signal.signal(signal.SIGUSR1, before)
        self.assertEqual(first[1][0], "interrupted")
        self.assertLess(first[1][1], second[1][1])  # not when its peer came
        self.assertRegex(second[1][0], "interrupted")

    def test_control_c_leaves_a_group_alone_when_nobody_waits(self) -> None:
        def body(rank: int) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            group = weft.init()
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(10)
            except KeyboardInterrupt:
                pass
            group.barrier()

        support.ranks(2, body)

    def test_a_program_may_end_while_a_thread_of_it_waits_in_a_call(self) -> None:
        program = """
import threading, time, weft
group, other = weft.threads(2)
threading.Thread(target=group.barrier, daemon=True).start()
while group._lock.acquire(blocking=False):
    group._lock.release()
    time.sleep(0.01)
time.sleep(0.1)
print("end")
"""
        for _ in range(4):
            ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
            self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "end\n", ""))

    def test_a_group_from_an_id(self) -> None:
        identity = weft.new_id()

        def body(rank: int) -> List[float]:
            with weft.create(identity, rank, 3) as group:
                return group.all_reduce(np.full(2, rank, "f4")).tolist()

        self.assertEqual(support.ranks(3, body), [[3.0, 3.0]] * 3)
        with self.assertRaisesRegex(weft.errors.ArgumentError, "an id has 128 bytes, not 3"):
            weft.create(b"abc", 0, 1)

    def test_a_group_from_a_communicator(self) -> None:
        class Communicator:
            """What is asked of mpi4py's, for one rank."""

            def Get_rank(self) -> int:
                return 0

            def Get_size(self) -> int:
                return 1

            def allgather(self, what: Any) -> List[Any]:
                return [what]

        with weft.from_mpi(Communicator()) as group:
            group.barrier()
            self.assertEqual((group.rank, group.size), (0, 1))

    def test_groups_from_real_communicators(self) -> None:
        """mpi4py's, under Open MPI: the world and halves of it."""
        mpirun = shutil.which("mpirun")
        if mpirun is None or importlib.util.find_spec("mpi4py") is None:
            self.skipTest("there is no mpirun, or no mpi4py")
        done = subprocess.run(
            [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "4", sys.executable, "-c", COMMUNICATORS],
            env=dict(os.environ, OMPI_MCA_plm_rsh_agent=""), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


COMMUNICATORS = """
import numpy as np
from mpi4py import MPI
import weft

world = MPI.COMM_WORLD
half = world.Split(world.rank % 2)
for communicator, members in ((world, range(4)), (half, range(world.rank % 2, 4, 2))):
    with weft.from_mpi(communicator) as group:
        assert (group.rank, group.size) == (communicator.rank, communicator.size)
        x = group.all_reduce(np.full(5, world.rank, "f4"))
        assert x.tolist() == [sum(members)] * 5, x
"""


class Memory(unittest.TestCase):
    def test_peers_share_it(self) -> None:
        def body(group: weft.Group) -> None:
            x = weft.empty((5, 3), "int32", group)
            self.assertFalse(x.numpy().any())
            x.numpy()[:] = group.rank
            group.barrier()
            following = (group.rank + 1) % group.size
            np.testing.assert_array_equal(x.peer(following).numpy(), np.full((5, 3), following))
            self.assertEqual(x.pointers()[group.rank], x.pointer)
            self.assertEqual(x.peer(following).peer(group.rank).pointer, x.pointer)
            with self.assertRaises(weft.errors.ArgumentError):
                x.peer(group.size)
            group.barrier()
            x.peer(following).numpy()[0, 0] = 100 + group.rank
            group.barrier()
            self.assertEqual(x.numpy()[0, 0], 100 + (group.rank - 1) % group.size)
            x.free()

        weft.run_threads(3, body)
        support.ranks(2, lambda rank: body(weft.init()))

    def test_what_no_rank_has_and_what_one_cannot_copy(self) -> None:
        with weft.threads(1)[0] as group:
            with self.assertRaisesRegex(MemoryError, "WEFT_HEAP"):
                weft.empty((1 << 62, 4), "float32", group)  # 2^66 bytes
            with self.assertRaisesRegex(TypeError, "by one rank alone"):
                copy.deepcopy(weft.empty(4, "float32", group))

    def test_a_result_that_numpy_has_no_type_for(self) -> None:
        """Nor torch, which nobody has loaded here."""
        self.assertNotIn("torch", sys.modules)
        with weft.threads(1)[0] as group:
            a, b = weft.empty((4, 2), "bfloat16", group), weft.empty((2, 3), "bfloat16", group)
            for call in (lambda: group.ag_gemm(a, b), lambda: group.all_gather(a), lambda: weft.gemm(a, b)):
                with self.assertRaisesRegex(ValueError, "nobody here has arrays of bfloat16 for a result"):
                    call()
            out = weft.empty((4, 3), "bfloat16", group)
            self.assertIs(group.ag_gemm(a, b, out), out)

    def test_without_numpy(self) -> None:
        with weft.threads(1)[0] as group, unittest.mock.patch.dict(sys.modules, numpy=None):
            x = weft.empty((4, 2), "float32", group)
            self.assertIs(group.all_gather(x, x), x)
            with self.assertRaisesRegex(ValueError, "nobody here has arrays of float32 for a result"):
                group.all_gather(x)

    def test_dlpack_keeps_the_memory(self) -> None:
        (group,) = weft.threads(1)
        x = weft.empty((4, 2), "float32", group)
        x.numpy()[:] = 7
        y = np.from_dlpack(x)
        del x
        gc.collect()
        for _ in range(100):
            weft.empty((4, 2), "float32", group).numpy()[:] = 1
        np.testing.assert_array_equal(y, np.full((4, 2), 7, "f4"))

    def test_a_copy_is_none_of_the_memory(self) -> None:
        with weft.threads(1)[0] as group:
            x = weft.empty((4, 2), "float32", group)
            for array, shares in ((np.array(x), False), (np.array(x, "f8"), False), (np.asarray(x), True)):
                self.assertEqual(np.shares_memory(array, x.numpy()), shares)
            self.assertFalse(np.shares_memory(x.__array__(copy=True), x.numpy()))  # as numpy 2 asks for one
            with self.assertRaisesRegex(ValueError, "cannot be this memory"):
                x.__array__("f8", copy=False)
            for other in ({"copy": True}, {"dl_device": (2, 0)}):
                with self.assertRaisesRegex(BufferError, "as it is and where it is"):
                    x.__dlpack__(**other)
            with self.assertRaisesRegex(ValueError, "has 8 elements"):
                x.reshape(-2, -4)

    def test_what_the_collector_finds_on_every_rank_is_given_back(self) -> None:
        count = 10000 if support.SOAK else 1000

        def body(group: weft.Group) -> None:
            kept = []
            for i in range(count):
                x = weft.empty(1 << 20, "byte", group)  # 1 GB in all, and more than the heap holds
                if group.rank == i % 2 and i % 100 == 0:
                    kept.append(x.numpy())  # dead on the other rank, alive here
                if len(kept) > 3:
                    kept.pop(0)

        os.environ["WEFT_HEAP"] = "256M"
        try:
            weft.run_threads(2, body)
        finally:
            del os.environ["WEFT_HEAP"]

    def test_groups_come_and_go(self) -> None:
        count = 10000 if support.SOAK else 300

        def lifetimes(many: int) -> None:
            for i in range(many):
                if i % 10 == 0:
                    gc.collect()
                groups = weft.threads(2)
                halves = [None, None]

                def rank(r: int) -> None:
                    halves[r] = groups[r].split(0)
                    plan = weft.Plan(halves[r], "all_reduce", count=4, dtype="f32")
                    x = weft.empty(4, "float32", halves[r])
                    plan.run(send=x, recv=x)
                    cycle = [groups[r], halves[r], plan, x]
                    cycle.append(cycle)

                crew = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
                for thread in crew:
                    thread.start()
                for thread in crew:
                    thread.join()

        lifetimes(50)
        gc.collect()
        before, files = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(os.listdir("/proc/self/fd"))
        maps = len(open("/proc/self/maps").readlines())
        lifetimes(count)
        gc.collect()
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 30 << 10)
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), files + 2)
        self.assertLess(len(open("/proc/self/maps").readlines()), maps + 50)

    def test_a_peer_that_has_left_is_found(self) -> None:
        groups = weft.threads(3)
        groups[0].check_peer()
        for rank in range(3):
            groups[0].check_peer(rank)
        with self.assertRaisesRegex(weft.errors.ArgumentError, "no rank 3"):
            groups[0].check_peer(3)
        groups[1].close()
        groups[0].check_peer()
        groups[0].check_peer(2)
        with self.assertRaisesRegex(weft.errors.PeerDiedError, "rank 1 has left"):
            groups[0].check_peer(1)
        groups[2].close()
        with self.assertRaisesRegex(weft.errors.PeerDiedError, "every other rank has left"):
            groups[0].check_peer()
        groups[0].close()

    def test_a_fork_does_no_harm(self) -> None:
        def body(rank: int) -> None:
            group = weft.init()
            x = weft.empty(4, "float32", group)
            x.numpy()[:] = 1
            plan = weft.Plan(group, "all_reduce", count=4, dtype="f32")
            group.barrier()
            child = os.fork()
            if child == 0:
                del x, plan, group
                gc.collect()
                os._exit(0)
            os.waitpid(child, 0)
            plan.run(send=x, recv=x)
            np.testing.assert_array_equal(x.numpy(), [2] * 4)

        support.ranks(2, body)


support.main()
