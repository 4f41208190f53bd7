"""What the tests of the package share: a silent runner, skipping in one line, and ranks as forked processes."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import random
import signal
import socket
import sys
import time
import traceback
import unittest
from typing import Any, Callable, List

SOAK = os.environ.get("WEFT_SOAK") == "1"


def need(*modules: str) -> None:
    """Ends the test as skipped, in one line, where a module cannot be had."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"skipped: {error} (scripts/setup.sh python makes an environment that has it)")
            sys.exit(77)


def main() -> None:
    """Runs the tests of the main module: silent when they pass."""
    stream = io.StringIO()
    result = unittest.TextTestRunner(stream=stream, verbosity=0).run(
        unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:], sys.modules["__main__"])
        if sys.argv[1:]
        else unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    )
    if not result.wasSuccessful():
        print(stream.getvalue())
    sys.stdout.flush()
    sys.exit(not result.wasSuccessful())


class RankFailed(AssertionError):
    """A rank of `ranks` raised; its traceback is the text."""


def free_port() -> int:
    """A port that nobody has, below those that the system gives to whoever connects; drawn, because tests run side by side."""
    while True:
        port = random.SystemRandom().randrange(10000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:
                continue


def start(size: int, body: Callable[..., Any], *arguments: Any) -> List[Any]:
    """Forks ``size`` ranks, with the variables that torchrun sets; (pid, pipe) of each. Each calls
    ``body(rank, *arguments)`` and ends."""
    port = free_port()
    sys.stdout.flush()
    family = []
    for rank in range(size):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(reader)
                os.environ.update(
                    RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID=f"{os.getppid()}-{port}",
                )  # fmt: skip
                with os.fdopen(writer, "wb") as pipe:
                    try:
                        answer = (True, body(rank, *arguments))
                    except BaseException:
                        answer = (False, traceback.format_exc())
                    try:
                        pipe.write(pickle.dumps(answer))
                    except Exception:
                        pipe.write(pickle.dumps((False, traceback.format_exc())))
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        family.append((pid, os.fdopen(reader, "rb")))
    return family


def finish(family: List[Any], seconds: float = 120) -> List[Any]:
    """What each rank returned or raised, as (succeeded, value); None for one that was killed."""
    answers = []
    deadline = time.monotonic() + seconds

    def late(*_: Any) -> None:
        raise TimeoutError(f"the ranks did not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    try:
        for pid, pipe in family:
            signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), 0.001))
            text = pipe.read()
            answers.append(pickle.loads(text) if text else None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        for pid, pipe in family:
            pipe.close()
            if len(answers) < len(family):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return answers


def ranks(size: int, body: Callable[..., Any], *arguments: Any, seconds: float = 120) -> List[Any]:
    """``body(rank, *arguments)`` in ``size`` processes; their results. Raises the first failure."""
    answers = finish(start(size, body, *arguments), seconds)
    for rank, answer in enumerate(answers):
        if answer is None:
            raise RankFailed(f"rank {rank} of {size} ended without a word")
    for rank, answer in enumerate(answers):
        if not answer[0]:
            others = "".join(
                f"\nrank {r}: {a[1].strip().splitlines()[-1]}" for r, a in enumerate(answers) if r != rank and not a[0]
            )
            raise RankFailed(f"rank {rank} of {size}:\n{answer[1]}{others}")
    return [answer[1] for answer in answers]
