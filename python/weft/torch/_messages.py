"""The backend's messages: each pair of ranks and tag has a channel, a group of the two with a thread of its own."""

from __future__ import annotations

import contextlib
import ctypes as C
import datetime
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .._library import quick
from ..errors import AbortedError, UnsupportedError
from ..group import Group, wait_for
from ..tensor import empty
from . import _cuda
from ._base import Base
from ._tensors import _BYTE, _back, _bytes, _dense
from ._work import Lane, Work

_TAGS = 64  # below which a message can be received from any rank


class _Channel:
    """From one rank to another: a group of the two, made in the lane with the first message."""

    def __init__(self, source: int, destination: int, tag: int) -> None:
        self.ends = source, destination
        self.name = f"{source} to {destination} tag {tag}"
        self.lane = Lane(f"weft {self.name}")
        self.group: Optional[Group] = None
        self.timeout = datetime.timedelta(0)  # that the group has


class Messages(Base):
    """Calls of two ranks of a group. One who receives from any rank finds in its mail who has sent."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta, *among: Any) -> None:
        super().__init__(store, rank, size, timeout, *among)
        self._channels: Dict[Tuple[int, int, int], _Channel] = {}
        self._mail = empty((size, _TAGS), "int64", self.group)
        C.memset(self._mail.pointer, 0, 8 * size * _TAGS)
        self._one_node = all(quick.weft_peer(self.group.handle, self._mail.pointer, rank) for rank in range(size))
        self.group.barrier()
        self._mail_lock, self._channels_lock = threading.Lock(), threading.Lock()
        self._sent: Dict[Tuple[int, int], int] = {}  # to a rank, with a tag
        self._received: Dict[Tuple[int, int], int] = {}  # from a rank, with a tag
        self._any = Lane("weft from any")

    def abort(self) -> None:
        super().abort()
        with self._channels_lock:
            channels = list(self._channels.values())
        for channel in channels:
            if channel.group is not None:
                channel.group.abort("the process group was aborted")

    def _lanes(self) -> List[Lane]:
        return [*super()._lanes(), self._any, *(channel.lane for channel in self._channels.values())]

    def _finish(self) -> None:
        self._any.settle()
        for channel in self._channels.values():
            channel.lane.settle()
            if channel.group is not None:
                channel.group.close()
        super()._finish()

    def _channel(self, source: int, destination: int, tag: int, tensors: List[Tensor], marks: List[Any]) -> Work:
        """A message. CUDA tensors, each with a mark of what comes before it in the caller's stream, go through memory of the CPU."""
        key = (source, destination, tag)
        if source == destination:
            raise ValueError(f"rank {source} cannot send to itself")
        if not 0 <= source + destination - self._rank < self._size:
            raise ValueError(f"rank {source + destination - self._rank} is not in a group of {self._size}")
        with self._channels_lock:
            channel = self._channels.get(key)
            if channel is None:
                channel = self._channels[key] = _Channel(*key)

        def call() -> None:
            group = self._both_ends(channel, int(self._rank == destination))
            for x, mark in zip(tensors, marks):
                with contextlib.nullcontext() if mark is None else _cuda.behind(mark, x):
                    receives = self._rank == destination
                    dense = _dense(x)
                    if x.is_cuda:
                        dense = torch.empty(dense.shape, dtype=dense.dtype) if receives else dense.cpu()
                    group._call(quick.weft_broadcast, dense.data_ptr(), _bytes(dense), _BYTE, 0)
                    if receives:
                        _back(dense, x)

        return channel.lane.submit(tensors, self._timed(call))

    def _both_ends(self, channel: _Channel, end: int) -> Group:
        """The group of a channel, with the timeout of today."""
        if channel.group is None:
            # Both are there before they make it: a wait in the store can be ended, that of the library for a second member,
            # of a group that is not there yet, cannot.
            peer = channel.ends[1 - end]
            with self._store_may_end([peer]):
                self._store.set(f"{channel.name}/{end}", "here")
                wait_for(self._store, f"{channel.name}/{1 - end}", self._waits_for(peer))
            channel.group, channel.timeout = self._meet(channel.name, end, channel.ends), self._timeout
        elif channel.timeout != self._timeout:
            channel.timeout = self._timeout
            channel.group.set_deadlines(self._timeout.total_seconds(), self._timeout.total_seconds())
        return channel.group

    def send(self, tensors: List[Tensor], dstRank: int, tag: int = 0) -> Work:
        work = self._channel(self._rank, dstRank, tag, list(tensors), list(map(_cuda.mark, tensors)))
        if 0 <= tag < _TAGS and self._one_node:
            with self._mail_lock:
                self._sent[dstRank, tag] = count = self._sent.get((dstRank, tag), 0) + 1
                self._letters(dstRank)[self._rank * _TAGS + tag] = count
        return work

    def recv(self, tensors: List[Tensor], srcRank: int, tag: int = 0) -> Work:
        with self._mail_lock:
            self._received[srcRank, tag] = self._received.get((srcRank, tag), 0) + 1
        work = self._channel(srcRank, self._rank, tag, list(tensors), list(map(_cuda.mark, tensors)))
        work._source = srcRank
        return work

    def recv_anysource(self, tensors: List[Tensor], tag: int = 0) -> Work:
        if not 0 <= tag < _TAGS:
            raise UnsupportedError(f"the backend weft receives from any rank with tags below {_TAGS}, not {tag}")
        if not self._one_node:
            raise UnsupportedError("the backend weft receives from any rank among ranks of one node; name the rank")

        work, marks = Work(tensors, done=False), list(map(_cuda.mark, tensors))

        def call() -> None:
            source = self._sender(tag)
            self._channel(source, self._rank, tag, list(tensors), marks).wait()
            work._source = source

        return self._any.submit(tensors, self._timed(call), work)

    def _letters(self, rank: int) -> Any:
        """A rank's counts of what was sent to it, by sender and tag: each written by its sender alone, a word at a time."""
        return (C.c_int64 * (self._size * _TAGS)).from_address(self._mail.peer(rank).pointer)

    def _sender(self, tag: int) -> int:
        """Waits for a rank that has sent what nobody has taken, and takes it."""
        letters, began, still_waits = self._letters(self._rank), time.monotonic(), self._waits_for(-1)
        while True:
            with self._mail_lock:
                for source in range(self._size):
                    taken = self._received.get((source, tag), 0)
                    if letters[source * _TAGS + tag] > taken:
                        self._received[source, tag] = taken + 1
                        return source
            if self._closed:
                raise AbortedError("the process group was left")
            still_waits(time.monotonic() - began)
            time.sleep(50e-6)


__all__ = ["Messages"]
