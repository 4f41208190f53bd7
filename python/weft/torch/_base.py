# mypy: disable-error-code="override"
"""A process group of the backend without its calls: how its ranks meet and part, and how a call is made, now or later."""

from __future__ import annotations

import contextlib
import datetime
import time
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from ..errors import AbortedError, TimeoutError, UnsupportedError
from ..group import Group, from_store
from . import _cuda, _groups
from ._work import DONE, Lane, Work


class _Named(c10d.Backend):  # type: ignore[misc]
    """What torch finds, from 2.14 on, where it looks for the backend behind a process group: a name."""

    def getBackendName(self) -> str:
        return "weft"

    @staticmethod
    def of(rank: int, size: int) -> Optional["_Named"]:
        try:
            return _Named(rank, size)
        except TypeError:  # before 2.14 nobody can make one
            return None


_LOOK_SECONDS = 0.05  # between two looks of a wait whether its peer lives


class Base(dist.ProcessGroup):
    """A group of the library, as a process group."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: datetime.timedelta, among: Optional[Tuple["Base", Sequence[int]]] = None
    ) -> None:
        """``among``: a group that all members are in already, and their ranks there."""
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._rank, self._size, self._among = rank, size, among
        self._met: Optional[Group] = None  # the group, once it is made
        # A store may outlive the group, as torchrun's does: keys of one that was before are not those of this one.
        with self._store_may_end(range(size)):
            self._store = dist.PrefixStore(f"weft/{store.add(f'weft/made/{rank}', 1)}", store)
        # Torch's own side of the group, whose devices and name its recorder asks for.
        self._named, custom = _Named.of(rank, size), dist.ProcessGroup.BackendType.CUSTOM
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), custom, self._named)
        self._set_default_backend(custom)
        self._timeout = timeout
        self._aborted = self._closed = False
        self._name, self._desc = "", "undefined"
        self.group: Group = self._meet("world", rank, range(size))
        """The library's group."""
        self._met, self._among = self.group, None  # which knows from here on who lives
        self._gpu: Optional[Group] = None
        self._lane = self.group._lane = Lane("weft")

    def _meet(self, key: str, rank: int, members: Sequence[int]) -> Group:
        """A group of those who name the same key in this group's store: the members, ranks here, of which this is the rank-th."""
        with self._store_may_end(members):
            group = from_store(self._store, rank, len(members), key, lambda peer: self._waits_for(members[peer]))
        seconds = self._timeout.total_seconds()
        group.set_deadlines(seconds, seconds)
        return group

    def _waits_for(self, peer: int) -> Callable[[float], None]:
        """What a wait outside the library for a peer, or for any (-1), calls again and again with how long it has lasted: raises
        when that is to end."""
        look = _LOOK_SECONDS

        def still_waits(seconds: float) -> None:
            nonlocal look
            if self._aborted:
                raise AbortedError("the process group was aborted")
            if seconds > self._timeout.total_seconds():
                whom = f"rank {peer}, which has not come" if peer >= 0 else "any rank, and none has come"
                of = f"process group '{self._name}'" if self._name else f"a new process group of {self._size}"
                raise TimeoutError(f"rank {self._rank} of {of} waited {seconds:.1f} s for {whom}")
            if seconds > look:
                look = seconds + _LOOK_SECONDS
                self._check_peer(peer)

        return still_waits

    @contextlib.contextmanager
    def _store_may_end(self, peers: Sequence[int]) -> Iterator[None]:
        """The store may be a peer's, and have gone a moment before it: then it is the peer that is named."""
        try:
            yield
        except dist.DistError:
            time.sleep(_LOOK_SECONDS)
            for peer in peers:
                self._check_peer(peer)
            raise

    def _check_peer(self, peer: int) -> None:
        """Raises when a rank is gone. While another thread is in a call of the group, that one looks; while the ranks meet, a group
        that they are in already."""
        if self._among is not None:
            other, ranks = self._among
            other._check_peer(ranks[peer] if peer >= 0 else peer)
        elif self._met is not None and self._met._lock.acquire(blocking=False):
            try:
                self._met.check_peer(peer)
            finally:
                self._met._lock.release()

    # ---- what torch asks of a group --------------------------------------------------------------------------

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "weft"

    def getBackendName(self) -> str:
        return "weft"

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)  # type: ignore[misc]
        self._name = name
        _groups.process_groups[name] = self

    def _set_group_desc(self, desc: str) -> None:
        super()._set_group_desc(desc)  # type: ignore[misc]
        self._desc = desc

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    def _get_backend(self, device: Any) -> Any:
        return self

    supports_coalescing = False
    supports_splitting = True
    options = None

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: Optional[datetime.timedelta] = None,
        opts: Any = None,
        group_name: Optional[str] = None,
        group_desc: Optional[str] = None,
        device_types: Any = None,
    ) -> Any:
        """The group of these ranks of this one, who meet in its store; None for a rank that is not among them."""
        if self._rank not in ranks:
            return None
        store = dist.PrefixStore(f"split/{group_name}", self._store)
        part = type(self)(store, list(ranks).index(self._rank), len(ranks), timeout or self._timeout, (self, ranks))
        part._set_group_name(group_name or "")
        part._set_group_desc(group_desc or "undefined")
        return part

    def _set_sequence_number_for_group(self) -> None:
        """The library compares what ranks call, and needs no number of it."""

    def perform_nocolor_split(self, device: Any) -> None:
        """A rank in no part has nothing to do: only members meet."""

    def eager_connect_single_device(self, device: Any) -> None:
        """Of a process group that is bound to a device: the group there is not left for the first tensor."""
        self.group_on(device)

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout
        self._lane.settle()
        for group in filter(None, (self.group, self._gpu)):
            group.set_deadlines(timeout.total_seconds(), timeout.total_seconds())

    def _set_default_timeout(self, timeout: datetime.timedelta) -> None:
        self.set_timeout(timeout)

    def abort(self) -> None:
        """Ends every wait of every rank of the group, from any thread."""
        self._aborted = True
        for group in filter(None, (self.group, self._gpu)):
            group.abort("the process group was aborted")

    def shutdown(self) -> None:
        """Leaves the group when what is under way is done; at once where a signal, such as Ctrl-C, ended a wait for it."""
        if not self._closed:
            self._closed = True
            if any(lane.interrupted for lane in self._lanes()):
                self.abort()
            self._finish()

    def _lanes(self) -> List[Lane]:
        return [self._lane]

    def _finish(self) -> None:
        """The end of what is under way, then of the groups."""
        self._lane.settle()
        for group in filter(None, (self._gpu, self.group)):
            group.close()

    def _wait_for_pending_works(self) -> None:
        self._lane.settle()

    def group_on(self, device: Any = None) -> Group:
        """The library's group; for CUDA tensors, that on GPUs."""
        return self._on_gpu(device) if device is not None and device.type == "cuda" else self.group

    def _on_gpu(self, device: Any) -> Group:
        """The group of the same ranks on GPUs, made when the first CUDA tensor comes."""
        if self._gpu is None:
            self._gpu = self._meet("cuda", self._rank, range(self._size))
            self._gpu.use_gpu(torch.cuda.current_device() if device.index is None else device.index)
        return self._gpu

    def _of(self, x: Tensor) -> Group:
        """The group for calls on a tensor, ready for them."""
        return _cuda.ready(self._on_gpu(x.device), x) if x.is_cuda else self.group

    # ---- how a call is made ------------------------------------------------------------------------------------

    def _late(self, error: TimeoutError) -> TimeoutError:
        """What a wait raises that took too long: also how long it may take."""
        told = TimeoutError(f"{error} (a timeout of {self._timeout.total_seconds():g} s is the process group's)")
        told.status = error.status
        return told

    def _timed(self, call: Callable[[], None]) -> Callable[[], None]:
        def within() -> None:
            try:
                call()
            except TimeoutError as error:
                raise self._late(error) from None

        return within

    def _make(self, opts: Any, tensors: Sequence[Tensor], call: Callable[[], None], given: Sequence[Tensor] = ()) -> Work:
        """A call whose results are tensors; what else it reads is given."""
        call = self._timed(call)
        kinds = {x.device.type for x in (*tensors, *given)}
        if kinds - {"cpu", "cuda"} or len(kinds) > 1:
            raise UnsupportedError(f"the backend weft takes CPU or CUDA tensors in a call; these are on {kinds}")
        if "cuda" in kinds:  # in torch's current stream: what follows there follows the call
            call()
            later = getattr(opts, "asyncOp", True) and tensors  # it may be waited for in another one
            return Work(tensors, done=True, mark=_cuda.mark(tensors[0]) if later else None)
        if getattr(opts, "asyncOp", True) or self._lane.pending:
            return self._lane.submit(tensors, call)
        call()
        return Work(tensors, done=True)

    def _at_once(self, opts: Any, x: Tensor, y: Tensor) -> bool:
        """Whether a call needs no more than the library's: it is waited for, none is under way, and memory is without gaps."""
        return (
            not getattr(opts, "asyncOp", True)
            and not self._lane.pending
            and x.is_cpu
            and x.is_contiguous()
            and not (x.is_neg() or x.is_conj())
            and (y is x or (y.is_cpu and y.is_contiguous() and y.dtype == x.dtype and not (y.is_neg() or y.is_conj())))
        )

    def _now(self, function: Callable[..., int], *arguments: Any) -> Work:
        """A call of the library that is waited for."""
        try:
            self.group._call(function, *arguments)
        except TimeoutError as error:
            raise self._late(error) from None
        return DONE

    def __repr__(self) -> str:
        return f"<ProcessGroupWeft '{self._name}', rank {self._rank} of {self._size}>"


__all__ = ["Base"]
