"""The backend of torch.distributed where a rank dies, leaves, is late or gives up: who waits is told, and in time."""

import datetime
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any

import support

support.need("torch")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from groups import beside_store, inside  # noqa: E402

import weft  # noqa: E402


class Lost(unittest.TestCase):
    def test_a_message_without_the_other_end(self) -> None:
        """The group's own timeout ends its wait, and so does an abort."""

        def body(rank: int) -> None:
            short = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=0.3))
            store = dist.group.WORLD.get_group_store()
            if rank == 0:
                store.get("done")
            else:
                works = [dist.irecv(torch.ones(1), 0, group=short), dist.isend(torch.ones(1), 0, group=short), dist.irecv(torch.ones(1), group=short)]
                for work in works:
                    try:
                        work.wait()
                    except weft.errors.TimeoutError as error:
                        assert re.search("rank 1 of process group '.*' waited 0.3 s for (rank 0|any rank).*0.3 s", str(error)), error
                        continue
                    raise AssertionError("no error")
                works = [dist.irecv(torch.ones(1), 0), dist.isend(torch.ones(1), 0)]
                dist.group.WORLD.abort()
                for work in works:
                    try:
                        work.wait()
                    except weft.errors.AbortedError:
                        continue
                    raise AssertionError("no error")
                store.set("done", "")

        support.ranks(2, inside("weft", body), seconds=30)

    def test_a_rank_that_gave_up_is_not_waited_for(self) -> None:
        """Each makes the group when the other has given up: both are told within their timeout, and meet when they try again."""

        def body(rank: int, store: Any) -> None:
            make = lambda seconds: dist.init_process_group(  # noqa: E731
                "weft", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=seconds)
            )
            if rank == 1:
                store.get("gave up 0")
            try:
                make(0.3)
            except weft.errors.TimeoutError as error:
                assert f"for rank {1 - rank}" in str(error), error
            else:
                raise AssertionError("no error")
            store.set(f"gave up {rank}", "")
            store.get("gave up 1")
            make(20)
            dist.barrier()
            dist.destroy_process_group()

        support.ranks(2, beside_store(body), seconds=30)

    def test_a_killed_rank_is_named_in_time(self) -> None:
        def body(rank: int) -> Any:
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            began = time.monotonic()
            try:
                dist.all_reduce(torch.ones(4))
            except weft.errors.PeerDiedError as error:
                return str(error), time.monotonic() - began
            return "no error", 0

        answers = support.finish(support.start(3, inside("weft", body)))
        for rank in (0, 2):
            self.assertRegex(answers[rank][1][0], "rank 1")

    def test_a_first_message_of_a_rank_that_is_gone(self) -> None:
        """Killed, it is named to who waits for it or for any, also where torch's store went with it (rank 0); so is one that left."""

        def body(rank: int, gone: int, killed: bool, source: Any) -> Any:
            dist.barrier()
            if rank == gone:
                if killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                return "left"
            try:
                dist.recv(torch.ones(4), source)
            except weft.errors.PeerDiedError as error:
                return str(error)
            return "no error"

        died, left = "rank {} .process .* died", "rank {} has left the group"
        for gone, killed, source, said in ((1, True, 1, died), (1, True, None, died), (0, True, 0, died), (1, False, 1, left)):
            with self.subTest(gone=gone, killed=killed, source=source):
                answers = support.finish(support.start(2, inside("weft", body), gone, killed, source), 30)
                self.assertRegex(answers[1 - gone][1], said.format(gone))

    def test_a_rank_that_is_gone_is_not_met_in_a_new_group(self) -> None:
        """Its rank in the world is what others are told, also where torch's store went with it (rank 0)."""

        def body(rank: int, gone: int, split: bool) -> Any:
            dist.barrier()
            if rank == gone:
                os.kill(os.getpid(), signal.SIGKILL)
            members = sorted({1, 2, gone})
            if rank not in members:  # it has the store
                time.sleep(2)
                return "none"
            try:
                if split:
                    dist.group.WORLD.split_group(members, group_name="part")
                else:
                    dist.new_group(members)
            except weft.errors.PeerDiedError as error:
                return str(error)
            return "no error"

        for gone, split in ((2, False), (2, True), (0, False)):
            with self.subTest(gone=gone, split=split):
                answers = support.finish(support.start(3, inside("weft", body), gone, split), 30)
                self.assertRegex(answers[1][1], f"rank {gone} .process .* died")

    @unittest.skipUnless(support.SOAK, "four more interpreters; a killed rank is told by the test above")
    def test_torchrun_lets_ranks_say_who_died(self) -> None:
        """Of three that torchrun started one is killed; both others name it before torchrun ends them."""
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "program.py")
            with open(program, "w") as file:
                file.write(KILLED)
            run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
            run += ["--master-port", str(support.free_port()), program, folder]
            done = subprocess.run(run, capture_output=True, text=True, timeout=240)
            said = [os.path.join(folder, str(rank)) for rank in (0, 2)]
            self.assertNotEqual(done.returncode, 0)
            for path in said:
                self.assertTrue(os.path.exists(path), done.stderr[-3000:])
                with open(path) as file:
                    self.assertRegex(file.read(), "rank 1")

    def test_a_late_rank_is_a_timeout(self) -> None:
        def body(rank: int) -> Any:
            if rank == 1:
                time.sleep(3)
                return "late"
            try:
                dist.all_reduce(torch.ones(4))
            except weft.errors.TimeoutError as error:
                return str(error)
            return "no error"

        answers = support.ranks(2, inside("weft", body, timeout=1))
        self.assertRegex(answers[0], "rank 1")

    def test_abort_ends_a_wait(self) -> None:
        def body(rank: int) -> str:
            if rank == 0:
                threading.Timer(0.3, dist.group.WORLD.abort).start()
                try:
                    dist.all_reduce(torch.ones(4))
                except weft.errors.AbortedError as error:
                    return str(error)
                return "no error"
            time.sleep(1)
            return "away"

        self.assertRegex(support.ranks(2, inside("weft", body))[0], "the process group was aborted")

    def test_a_wait_that_is_interrupted_ends_the_group(self) -> None:
        """The peer comes only after the group was left: who left did not wait for it."""

        def body(rank: int, store: Any, message: bool) -> None:
            dist.init_process_group("weft", store=store, rank=rank, world_size=2)
            dist.barrier()
            if rank == 0:
                store.get("left")
                dist.destroy_process_group()
                return
            x = torch.ones(4)
            work = dist.irecv(x, 0) if message else dist.all_reduce(x, async_op=True)
            try:
                work.wait(datetime.timedelta(seconds=0.1))
            except weft.errors.TimeoutError as error:
                assert error.status > 0 and (not message or "0 to 1" in str(error)), error
            else:
                raise AssertionError("no error")
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                work.wait()
            except KeyboardInterrupt:
                dist.destroy_process_group()
                store.set("left", "")
                return
            raise AssertionError("no interrupt")

        for message in (False, True):
            with self.subTest(message=message):
                support.ranks(2, beside_store(body), message, seconds=30)


KILLED = """
import os, signal, sys
import torch, torch.distributed as dist
import weft.torch

dist.init_process_group("weft")
rank = dist.get_rank()
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, which sees the death as soon
dist.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(4))
except weft.errors.PeerDiedError as error:
    with open(os.path.join(sys.argv[1], str(rank)), "w") as file:
        file.write(str(error))
"""

if __name__ == "__main__":
    support.main()
