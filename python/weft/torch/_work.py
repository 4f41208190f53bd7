# mypy: disable-error-code="override"
"""Calls of the backend that are under way: torch's work objects, and the threads that make them in order."""

from __future__ import annotations

import datetime
import queue
import threading
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from .._library import constants
from ..errors import TimeoutError


class Work(c10d.Work):
    """A call that may still be under way. ``wait`` raises what went wrong."""

    _error: Optional[BaseException] = None
    _future: Optional[torch.futures.Future] = None
    _source = -1  # the rank that a message came from
    _lane: Optional["Lane"] = None  # that is to make the call

    def __init__(self, tensors: Sequence[Tensor], done: bool, mark: Any = None) -> None:
        """``mark``: of a call on a CUDA stream, which those of who waits for it are to pass."""
        super().__init__()
        self._tensors, self._mark = tensors, mark
        self._event = None if done else threading.Event()
        self._lock = threading.Lock()

    def _finish(self, error: Optional[BaseException]) -> Optional[torch.futures.Future]:
        """Ends it for those who wait. Returns the future that is to be settled, if somebody has asked for one."""
        assert self._event is not None
        with self._lock:
            self._error, self._lane = error, None
            self._event.set()
            return self._future

    def _settle(self, future: Any) -> None:
        if self._error is None:
            future.set_result(list(self._tensors))
        else:
            future.set_exception(self._error)

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Until the call is done; raises what went wrong. A timeout of 0 is the group's own."""
        lane = self._lane
        if self._event is not None and not self._event.is_set():
            seconds = timeout.total_seconds() if timeout else 0
            try:
                done = self._event.wait(seconds if seconds > 0 else None)
            except BaseException:  # of a signal
                if lane is not None:
                    lane.interrupted = True
                raise
            if not done:
                late = TimeoutError(f"{lane._name if lane else 'weft'}: a call was not done after {seconds:g} s")
                late.status = constants["WEFT_ERR_TIMEOUT"]
                raise late
        if self._error is not None:
            raise self._error
        self._pass_mark()
        return True

    def _pass_mark(self) -> None:
        """Has the current stream of the call's device wait for it; that device need not be the current one."""
        if self._mark is not None:
            self._mark.wait(torch.cuda.current_stream(self._tensors[0].device))

    def _source_rank(self) -> int:
        return self._source

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._event is None or self._event.is_set()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def result(self) -> List[Tensor]:
        self.wait()
        return list(self._tensors)

    def get_future(self) -> Any:
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future(devices=list({x.device for x in self._tensors if x.is_cuda}))
                self._pass_mark()  # the future's own mark is of this stream
                if self.is_completed():
                    self._settle(self._future)
        return self._future


DONE = Work([], done=True)
"""Of calls that were waited for: the caller has the tensors, and nobody keeps it."""


class Lane:
    """A thread that makes calls in the order they were given, from the first one on. It dies with its owner.

    What hangs on a call's future runs in this thread and may make calls of its own and wait for them: while it runs, the lane
    has no thread, and the next call starts another one.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: "queue.SimpleQueue[Optional[Tuple[Work, Callable[[], None]]]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()
        self.pending = 0
        self.interrupted = False  # who waited for a call went away before it was done
        weakref.finalize(self, self._calls.put, None).atexit = False

    def submit(self, tensors: Sequence[Tensor], call: Callable[[], None], work: Optional[Work] = None) -> Work:
        """Has a call made when its turn comes; its work, which a call that writes into it brings along."""
        work = Work(tensors, done=False) if work is None else work
        work._lane = self
        with self._lock:
            self.pending += 1
            if self._thread is None:
                self._start()
        self._calls.put((work, call))
        return work

    def _start(self) -> None:
        self._thread = threading.Thread(target=Lane._serve, args=(weakref.ref(self), self._calls), name=self._name, daemon=True)
        self._thread.start()

    @staticmethod
    def _serve(lane: "weakref.ref[Lane]", calls: Any) -> None:
        while True:
            item = calls.get()
            if item is None:
                return
            work, call = item
            error: Optional[BaseException] = None
            try:
                call()
            except BaseException as raised:
                error = raised
            owner = lane()
            if owner is not None:
                with owner._lock:
                    owner.pending -= 1
            future = work._finish(error)
            if future is not None:
                if owner is not None:
                    owner._leave()
                work._settle(future)
                if owner is not None and not owner._return():
                    return
            del item, work, call, future, owner

    def _leave(self) -> None:
        """What this thread does next may wait for calls behind."""
        with self._lock:
            self._thread = None
            if self.pending:
                self._start()

    def _return(self) -> bool:
        """Whether this thread has its lane again: nobody took it."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.current_thread()
            return self._thread is threading.current_thread()

    def settle(self) -> None:
        """Waits until everything that was given is done; the thread that does it goes on."""
        thread = self._thread
        if self.pending and (thread is None or thread.ident != threading.get_ident()):
            self.submit([], lambda: None).wait()


__all__ = ["DONE", "Lane", "Work"]
