# mypy: disable-error-code="override"
"""The ``torch.distributed`` backend "weft": ``init_process_group("weft")`` on CPU and CUDA tensors, among ranks of one machine.

A process group is a group of the library, made from an id that its first rank puts into torch's store: sub-groups need only
their members. A call that is waited for at once runs in the caller's thread, without a detour. An asynchronous one runs in the
group's own thread, in the order of the calls, so that ranks may have several groups in flight in different orders. A message
from one rank to another has a channel of its own, a group of two with its thread, so that sends and receives that cross do
not wait for each other.

CUDA tensors have a group of their own, on the GPUs, made when the first of them comes; its calls go on torch's current stream,
whatever they are asked for, and are done as soon as they are on it.

What the library reduces it reduces; other types and operations (int16, bool, bitwise) gather and reduce here, in rank order.
"""

from __future__ import annotations

import ctypes as C
import datetime
import queue
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from .._library import constants, lib
from ..dtypes import dtype_of
from ..errors import AbortedError, Error, TimeoutError, UnsupportedError
from ..group import Group, from_store, wait_for
from ..tensor import empty
from . import _cuda, _groups

_all_reduce = lib.weft_all_reduce
_TAGS = 64  # below which a message can be received from any rank
_BYTE = constants["WEFT_BYTE"]
_SUM, _AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_REDUCTIONS: Dict[Tuple[torch.dtype, int], Tuple[int, int]] = {
    # What the library reduces: its type and its reduction. By torch's number of an operation, since comparing what pybind
    # wraps takes microseconds.
    (kind, int(op)): (dtype_of(kind).code, constants[code])  # type: ignore[call-overload]
    for op, code in (
        (dist.ReduceOp.SUM, "WEFT_SUM"),
        (dist.ReduceOp.AVG, "WEFT_AVERAGE"),
        (dist.ReduceOp.MIN, "WEFT_MIN"),
        (dist.ReduceOp.MAX, "WEFT_MAX"),
        (dist.ReduceOp.PRODUCT, "WEFT_PRODUCT"),
    )
    for kind in (*_FLOATS, torch.int32, torch.int64, torch.uint8, torch.int8, torch.bool)
    if kind in _FLOATS or op != _AVG
}
_ON_GPU = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64)
_LOCAL: Dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


class Work(c10d.Work):
    """A call that may still be under way. ``wait`` raises what went wrong."""

    _error: Optional[BaseException] = None
    _future: Optional[torch.futures.Future] = None
    _source = -1  # the rank that a message came from

    def __init__(self, tensors: Sequence[Tensor], done: bool) -> None:
        super().__init__()
        self._tensors = tensors
        self._event = None if done else threading.Event()
        self._lock = threading.Lock()

    def _finish(self, error: Optional[BaseException]) -> Optional[torch.futures.Future]:
        """Ends it for those who wait. Returns the future that is to be settled, if somebody has asked for one."""
        assert self._event is not None
        with self._lock:
            self._error = error
            self._event.set()
            return self._future

    def _settle(self, future: Any) -> None:
        if self._error is None:
            future.set_result(list(self._tensors))
        else:
            future.set_exception(self._error)

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Until the call is done; raises what went wrong. A timeout of 0 is the group's own."""
        if self._event is not None and not self._event.is_set():
            seconds = timeout.total_seconds() if timeout else 0
            if not self._event.wait(seconds if seconds > 0 else None):
                raise RuntimeError(f"weft: a call was not done after {seconds} s")
        if self._error is not None:
            raise self._error
        return True

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
                self._future = torch.futures.Future()
                if self.is_completed():
                    self._settle(self._future)
        return self._future


_DONE = Work([], done=True)
"""Of calls that were waited for: the caller has the tensors, and nobody keeps it."""


class _Lane:
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
        weakref.finalize(self, self._calls.put, None).atexit = False

    def submit(self, tensors: Sequence[Tensor], call: Callable[[], None], work: Optional[Work] = None) -> Work:
        """Has a call made when its turn comes; its work, which a call that writes into it brings along."""
        work = Work(tensors, done=False) if work is None else work
        with self._lock:
            self.pending += 1
            if self._thread is None:
                self._start()
        self._calls.put((work, call))
        return work

    def _start(self) -> None:
        self._thread = threading.Thread(target=_Lane._serve, args=(weakref.ref(self), self._calls), name=self._name, daemon=True)
        self._thread.start()

    @staticmethod
    def _serve(lane: "weakref.ref[_Lane]", calls: Any) -> None:
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
        """Waits until everything that was given is done."""
        if self.pending:
            self.submit([], lambda: None).wait()


class _Channel:
    """From one rank to another: a group of the two, made in the lane with the first message."""

    def __init__(self, source: int, destination: int, tag: int) -> None:
        self.name = f"{source} to {destination} tag {tag}"
        self.lane = _Lane(f"weft {self.name}")
        self.group: Optional[Group] = None
        self.timeout = datetime.timedelta(0)  # that the group has


def _dense(x: Tensor) -> Tensor:
    """Memory without gaps and in order, which is what the tensor says; complex numbers as pairs."""
    x = x.detach().resolve_conj().resolve_neg()
    x = torch.view_as_real(x) if x.is_complex() else x
    return x if x.is_contiguous() else x.contiguous()


def _check_alike(call: str, x: Tensor, others: Sequence[Tensor]) -> None:
    """What goes into tensors, or comes out of them, is as large and of the same type."""
    for y in others:
        if y.dtype != x.dtype or y.numel() != x.numel():
            raise ValueError(f"{call}: {x.numel()} elements of {x.dtype} and {y.numel()} of {y.dtype} do not fit each other")


def _octets(x: Tensor) -> Tensor:
    """The memory of a tensor, byte by byte. A dimension of one element may have any stride, which views of another type refuse."""
    dense = _dense(x)
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _counts(sizes: Sequence[int]) -> Any:
    return (C.c_int64 * len(sizes))(*sizes)


def _unpack(packed: Tensor, sizes: Sequence[int], outputs: Sequence[Tensor]) -> None:
    """Bytes that lie one after another, into the tensors they are for."""
    for y, got in zip(outputs, packed.split(list(sizes))):
        real = torch.view_as_real(y.detach()) if y.is_complex() else y.detach()
        # A copy begins where its type may begin.
        real.copy_(got.clone().view(real.dtype).view(real.shape))


def _codes(x: Tensor, op: Any) -> Optional[Tuple[int, int]]:
    """The library's type and reduction; None where it has none for this tensor."""
    if x.is_cuda and (x.dtype not in _ON_GPU or op == _AVG):
        return None
    return _REDUCTIONS.get((x.dtype, int(op)))


def _options(kind: Any, **fields: Any) -> Any:
    options = kind()
    for name, value in fields.items():
        setattr(options, name, value)
    return options


class ProcessGroupWeft(dist.ProcessGroup):
    """A process group over a weft group."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._rank, self._size, self._store = rank, size, store
        self._timeout = timeout
        self._aborted = self._closed = False
        self._name, self._desc = "", "undefined"
        self.group: Group = self._meet("world", rank, size)
        """The library's group."""
        self._gpu: Optional[Group] = None
        self._lane = self.group._lane = _Lane("weft")
        self._channels: Dict[Tuple[int, int, int], _Channel] = {}
        self._mail = empty((size, _TAGS), "int64", self.group)
        C.memset(self._mail.pointer, 0, 8 * size * _TAGS)
        self.group.barrier()
        self._mail_lock, self._channels_lock = threading.Lock(), threading.Lock()
        self._sent: Dict[Tuple[int, int], int] = {}  # to a rank, with a tag
        self._received: Dict[Tuple[int, int], int] = {}  # from a rank, with a tag
        self._any = _Lane("weft from any")

    def _meet(self, key: str, rank: int, size: int) -> Group:
        """A group of those who name the same key in this group's store."""
        group = from_store(self._store, rank, size, f"weft/{key}", self._still_waits)
        seconds = self._timeout.total_seconds()
        group.set_deadlines(seconds, seconds)
        return group

    def _still_waits(self, seconds: float) -> None:
        """Called again and again by what waits for a peer outside the library, with how long it has: raises when that is to end."""
        if self._aborted:
            raise AbortedError("the process group was aborted")
        if seconds > self._timeout.total_seconds():
            raise TimeoutError("the peer has not come")

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
        self._name = name
        _groups.process_groups[name] = self

    def _set_group_desc(self, desc: str) -> None:
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
        with self._channels_lock:
            channels = [channel.group for channel in self._channels.values()]
        for group in filter(None, (self.group, self._gpu, *channels)):
            group.abort("the process group was aborted")

    def shutdown(self) -> None:
        """Leaves the group when what is under way is done."""
        if not self._closed:
            self._closed = True
            self._lane.settle()
            self._any.settle()
            for channel in self._channels.values():
                channel.lane.settle()
                if channel.group is not None:
                    channel.group.close()
            if self._gpu is not None:
                self._gpu.close()
            self.group.close()

    def _wait_for_pending_works(self) -> None:
        self._lane.settle()

    def settled(self, device: Any = None) -> Group:
        """The library's group, when no call of an asynchronous kind is on its way; for CUDA tensors, that on GPUs."""
        if device is not None and device.type == "cuda":
            return self._on_gpu(device)
        self._lane.settle()
        return self.group

    def _on_gpu(self, device: Any) -> Group:
        """The group of the same ranks on GPUs, made when the first CUDA tensor comes."""
        if self._gpu is None:
            self._gpu = self._meet("cuda", self._rank, self._size)
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
            return Work(tensors, done=True)
        if getattr(opts, "asyncOp", True) or self._lane.pending:
            return self._lane.submit(tensors, call)
        call()
        return Work(tensors, done=True)

    def _at_once(self, opts: Any, x: Tensor, y: Tensor) -> bool:
        """Whether a call needs no more than the library's: it is waited for, none is under way, and memory is without gaps."""
        return (
            opts is not None
            and not opts.asyncOp
            and not self._lane.pending
            and x.is_cpu
            and x.is_contiguous()
            and not x.is_neg()
            and (y is x or (y.is_cpu and y.is_contiguous() and y.dtype == x.dtype and not y.is_neg()))
        )

    def _now(self, function: Callable[..., int], *arguments: Any) -> Work:
        """A call of the library that is waited for."""
        try:
            self.group._call(function, *arguments)
        except TimeoutError as error:
            raise self._late(error) from None
        return _DONE

    def _reduce_dense(self, x: Tensor, op: Any) -> Tensor:
        """The reduction over ranks of memory without gaps, in place."""
        codes = _codes(x, op)
        if codes is not None:
            pointer = x.data_ptr()
            self._of(x)._call(_all_reduce, pointer, pointer, x.numel(), *codes)
            return x
        if op not in _LOCAL:
            raise UnsupportedError(f"the backend weft has no reduction {op}")
        every = self._gather_dense(x)
        total = every[0]
        for other in every[1:]:
            total = _LOCAL[op](total, other)
        if op == _AVG:
            total = total.div(self._size, rounding_mode=None if total.is_floating_point() else "trunc")
        return x.copy_(total)

    def _gather_dense(self, x: Tensor) -> Tensor:
        """ranks x shape."""
        every = x.new_empty((self._size, *x.shape))
        self._of(x)._call(lib.weft_all_gather, x.data_ptr(), every.data_ptr(), _bytes(x), _BYTE)
        return every

    def _check_op(self, op: Any, x: Tensor) -> Any:
        kind = op.op if hasattr(op, "op") else op
        if x.is_sparse and kind != _SUM:
            raise UnsupportedError("the backend weft adds sparse tensors; other reductions are for dense ones")
        if x.is_complex() and kind not in (_SUM, _AVG):
            raise ValueError(f"all_reduce does not support {op} on complex tensors")
        return kind

    def _check_many(self, call: str, each: Sequence[Any]) -> None:
        """Something for every rank."""
        if len(each) != self._size:
            raise ValueError(f"{call}: {len(each)} are given for {self._size} ranks")

    @staticmethod
    def _back(dense: Tensor, x: Tensor) -> None:
        """The result into the caller's tensor, if it was not made there."""
        if x.is_conj() or x.is_neg():
            x.detach().copy_(torch.view_as_complex(dense) if x.is_complex() else dense)
            return
        whole = torch.view_as_real(x.detach()) if x.is_complex() else x.detach()
        if whole.data_ptr() != dense.data_ptr():
            whole.copy_(dense.view(whole.shape))

    # ---- collectives -----------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, **_: Any) -> Work:
        if opts is not None and not self._lane.pending and len(tensors) == 1:
            # The case that must be fast: one plain tensor, waited for at once. The hash of an operation is its number.
            x = tensors[0]
            codes = _REDUCTIONS.get((x.dtype, hash(opts.reduceOp)))
            if codes is not None and x.is_contiguous() and x.is_cpu and not opts.asyncOp and not x.is_neg():
                pointer = x.data_ptr()
                return self._now(_all_reduce, pointer, pointer, x.numel(), *codes)
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        opts = (
            opts if hasattr(opts, "reduceOp") else _options(c10d.AllreduceOptions, reduceOp=opts or dist.ReduceOp.SUM)
        )
        ops = [self._check_op(opts.reduceOp, x) for x in tensors]

        def call() -> None:
            for x, op in zip(tensors, ops):
                if x.is_sparse:
                    self._add_sparse(x)
                else:
                    self._back(self._reduce_dense(_dense(x), op), x)

        return self._make(opts, tensors, call)

    def _add_sparse(self, x: Tensor) -> None:
        """Every rank's entries, as one tensor of them all."""
        own = x.detach().coalesce()
        indices, values = own.indices().t().contiguous(), own.values()
        counts = self._gather_dense(torch.tensor(own._nnz(), dtype=torch.int64, device=x.device)).tolist()
        where = [indices.new_empty((count, indices.shape[1])) for count in counts]
        what = [values.new_empty((count, *values.shape[1:])) for count in counts]
        self._gather_into(where, indices)
        self._gather_into(what, values)
        total = torch.sparse_coo_tensor(torch.cat(where).t(), torch.cat(what), x.shape, check_invariants=False)
        with torch.no_grad():
            x.copy_(total.coalesce())

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Any, opts: Any, **_: Any) -> Work:
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        ops = [self._check_op(opts.reduceOp, x) for x in tensors]

        def call() -> None:
            for x, op in zip(tensors, ops):
                dense, codes = _dense(x), _codes(x, op)
                if codes is None or x.is_cuda:
                    dense = self._reduce_dense(dense.clone(), op)
                else:
                    at = dense.data_ptr()
                    self.group._call(lib.weft_reduce, at, at, dense.numel(), *codes, opts.rootRank)
                if self._rank == opts.rootRank:
                    self._back(dense, x)

        return self._make(opts, tensors, call)

    def broadcast(self, tensors: Any, opts: Any, **_: Any) -> Work:
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        if len(tensors) == 1 and self._at_once(opts, tensors[0], tensors[0]):
            return self._now(lib.weft_broadcast, tensors[0].data_ptr(), tensors[0].nbytes, _BYTE, opts.rootRank)

        def call() -> None:
            for x in tensors:
                dense = _dense(x)
                self._of(dense)._call(lib.weft_broadcast, dense.data_ptr(), _bytes(dense), _BYTE, opts.rootRank)
                self._back(dense, x)

        return self._make(opts, tensors, call)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> Work:
        lists = [outputs] if outputs and isinstance(outputs[0], Tensor) else list(outputs)
        inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        for out, x in zip(lists, inputs):
            self._check_many("all_gather", out)
            for y in out:
                if y.dtype != x.dtype:
                    raise ValueError(f"all_gather: the output is {y.dtype}, the input {x.dtype}")
            _check_alike("all_gather", x, [out[self._rank]])

        def call() -> None:
            for out, x in zip(lists, inputs):
                self._gather_into(out, x)

        return self._make(opts, [y for out in lists for y in out], call, inputs)

    def _gather_into(self, out: Sequence[Tensor], x: Tensor) -> None:
        """Every rank's tensor; sizes may differ, and every rank knows them all from the outputs."""
        dense, sizes = _dense(x), [_bytes(y) for y in out]
        if x.is_cuda:
            _unpack(torch.cat(self._padded(self._gather_dense, [dense], max(sizes), sizes)), sizes, out)
            return
        every = torch.empty(sum(sizes), dtype=torch.uint8)
        self.group._call(lib.weft_all_gather_v, dense.data_ptr(), every.data_ptr(), _counts(sizes), _BYTE)
        _unpack(every, sizes, out)

    def _padded(
        self, call: Callable[[Tensor], Tensor], parts: Sequence[Tensor], most: int, sizes: Sequence[int]
    ) -> List[Tensor]:
        """A call on parts that are padded to the longest of any rank, for the library's calls with counts are not for
        GPUs; what it returns, one part a rank, without the padding."""
        send = torch.zeros((len(parts), most), dtype=torch.uint8, device=parts[0].device)
        for place, x in zip(send, parts):
            place[: _bytes(x)] = _octets(x)
        return [got[:size] for got, size in zip(call(send).view(self._size, most), sizes)]

    def _exchange_dense(self, x: Tensor) -> Tensor:
        """A part for each rank, of equal length; a part of each."""
        out = torch.empty_like(x)
        self._of(x)._call(lib.weft_all_to_all, x.data_ptr(), out.data_ptr(), _bytes(x) // self._size, _BYTE)
        return out

    def _exchange(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """inputs[r] to rank r, outputs[r] from it; sizes differ, and no rank knows them all."""
        there, here = [_bytes(x) for x in inputs], [_bytes(y) for y in outputs]
        if inputs[0].is_cuda:
            self._lane.settle()  # this call is made at once, and its counts meet on the CPU
            longest = torch.tensor([max(*there, *here)])
            most = int(self._reduce_dense(longest, dist.ReduceOp.MAX))
            if most:
                _unpack(torch.cat(self._padded(self._exchange_dense, inputs, most, here)), here, outputs)
            return
        send = torch.cat([_octets(x) for x in inputs])
        recv = torch.empty(sum(here), dtype=torch.uint8)
        self.group._call(
            lib.weft_all_to_all_v, send.data_ptr(), _counts(there), recv.data_ptr(), _counts(here), _BYTE
        )
        _unpack(recv, here, outputs)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        columns = [[out[i] for out in outputs] for i in range(len(inputs))]
        return self.allgather(columns, inputs, opts)

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        if self._at_once(opts, input, output) and output.numel() == self._size * input.numel():
            return self._now(lib.weft_all_gather, input.data_ptr(), output.data_ptr(), input.nbytes, _BYTE)
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        for y, x in zip(outputs, inputs):
            if y.dtype != x.dtype or y.numel() != x.numel() * self._size:
                raise ValueError(
                    f"all_gather: {x.numel()} elements of {x.dtype} from {self._size} ranks do not fit {y.numel()} of {y.dtype}"
                )

        def call() -> None:
            for y, x in zip(outputs, inputs):
                dense, result = _dense(x), _dense(y)
                self._of(dense)._call(lib.weft_all_gather, dense.data_ptr(), result.data_ptr(), _bytes(dense), _BYTE)
                self._back(result, y)

        return self._make(opts, list(outputs), call, inputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, **_: Any) -> Work:
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        lists = [inputs] if inputs and isinstance(inputs[0], Tensor) else list(inputs)
        opts = opts or c10d.ReduceScatterOptions()
        ops = [self._check_op(opts.reduceOp, y) for y in outputs]
        for y, xs in zip(outputs, lists):
            self._check_many("reduce_scatter", xs)
            _check_alike("reduce_scatter", y, [xs[self._rank]])

        def call() -> None:
            for y, xs, op in zip(outputs, lists, ops):
                flat = [_dense(x).flatten() for x in xs]
                self._scatter_sum(y, torch.cat(flat), op, [part.numel() for part in flat])

        return self._make(opts, outputs, call, [x for xs in lists for x in xs])

    def _scatter_sum(self, y: Tensor, dense: Tensor, op: Any, counts: List[int]) -> None:
        """This rank's share of the reduction of ``dense`` (ranks' shares, one after another) into y."""
        result, codes = _dense(y), _codes(dense, op)
        send, recv = dense.data_ptr(), result.data_ptr()
        if codes is not None and len(set(counts)) == 1:
            self._of(dense)._call(lib.weft_reduce_scatter, send, recv, counts[0], *codes)
        elif codes is not None and not dense.is_cuda:
            self.group._call(lib.weft_reduce_scatter_v, send, recv, _counts(counts), *codes)
        else:
            whole = self._reduce_dense(dense.clone().flatten(), op)
            result.copy_(whole.split(counts)[self._rank].view(result.shape))
        self._back(result, y)

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        if self._at_once(opts, input, output) and input.numel() == self._size * output.numel():
            codes = _REDUCTIONS.get((input.dtype, hash(opts.reduceOp)))
            if codes is not None:
                at, to = input.data_ptr(), output.data_ptr()
                return self._now(lib.weft_reduce_scatter, at, to, output.numel(), *codes)
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = opts or c10d.ReduceScatterOptions()
        ops = [self._check_op(opts.reduceOp, y) for y in outputs]
        for y, x in zip(outputs, inputs):
            if y.dtype != x.dtype or x.numel() != y.numel() * self._size:
                raise ValueError(
                    f"reduce_scatter: {x.numel()} elements of {x.dtype} over {self._size} ranks do not fit {y.numel()} of {y.dtype}"
                )

        def call() -> None:
            for y, x, op in zip(outputs, inputs, ops):
                dense = _dense(x)
                self._scatter_sum(y, dense, op, [dense.numel() // self._size] * self._size)

        return self._make(opts, list(outputs), call, inputs)

    def alltoall_base(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Optional[List[int]] = None,
        input_split_sizes: Optional[List[int]] = None,
        opts: Any = None,
    ) -> Work:
        if not input.dim() or not output.dim():
            raise ValueError("all_to_all: tensors without a dimension have no rows to exchange")
        rows_in = input_split_sizes or self._even(input, "input")
        rows_out = output_split_sizes or self._even(output, "output")
        for x, rows in ((input, rows_in), (output, rows_out)):
            self._check_many("all_to_all", rows)
            if sum(rows) != x.shape[0]:
                raise ValueError(f"all_to_all: rows {list(rows)} are not those of a tensor of {tuple(x.shape)}")
        if output.dtype != input.dtype:
            raise ValueError(f"all_to_all: the output is {output.dtype}, the input {input.dtype}")
        even = not input_split_sizes and not output_split_sizes
        if even:
            _check_alike("all_to_all", input, [output])
        if even and self._at_once(opts, input, output):
            at, to = input.data_ptr(), output.data_ptr()
            return self._now(lib.weft_all_to_all, at, to, input.nbytes // self._size, _BYTE)

        def call() -> None:
            dense, result = _dense(input), _dense(output)
            if even:
                send, recv = dense.data_ptr(), result.data_ptr()
                self._of(dense)._call(lib.weft_all_to_all, send, recv, _bytes(dense) // self._size, _BYTE)
            else:
                self._exchange(result.split(rows_out), dense.split(rows_in))
            self._back(result, output)

        return self._make(opts, [output], call, [input])

    def _even(self, x: Tensor, what: str) -> List[int]:
        rows = x.shape[0]
        if rows % self._size:
            raise ValueError(
                f"all_to_all: the {what}'s first dimension, {rows}, does not divide over {self._size} ranks"
            )
        return [rows // self._size] * self._size

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        outputs, inputs = list(outputs), list(inputs)
        for tensors in (outputs, inputs):
            self._check_many("all_to_all", tensors)
        if len({x.dtype for x in (*outputs, *inputs)}) > 1:
            raise ValueError("all_to_all: the tensors are not all of one type")

        def call() -> None:
            self._exchange(outputs, inputs)

        return self._make(opts, outputs, call, inputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any, **_: Any) -> Work:
        inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        lists = list(outputs)
        if self._rank == opts.rootRank:
            for x, out in zip(inputs, lists):
                self._check_many("gather", out)
                _check_alike("gather", x, out)

        def call() -> None:
            for i, x in enumerate(inputs):
                dense, root = _dense(x), self._rank == opts.rootRank
                if x.is_cuda:
                    every = self._gather_dense(dense)
                else:
                    every = dense.new_empty((self._size if root else 0, *dense.shape))
                    at, to = dense.data_ptr(), every.data_ptr()
                    self.group._call(lib.weft_gather, at, to, _bytes(dense), _BYTE, opts.rootRank)
                for y, got in zip(lists[i] if root else [], every):
                    self._back(got, y)

        return self._make(opts, inputs, call, [y for out in lists for y in out])

    def gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:
        root = self._rank == opts.rootRank
        if root and (output.dtype != input.dtype or output.numel() != input.numel() * self._size):
            raise ValueError(
                f"gather: {input.numel()} elements of {input.dtype} from {self._size} ranks do not fit {output.numel()} of {output.dtype}"
            )
        return self.gather([list(output.view(self._size, *input.shape))] if root else [], [input], opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any, **_: Any) -> Work:
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        lists = list(inputs)
        if self._rank == opts.rootRank:
            for y, xs in zip(outputs, lists):
                self._check_many("scatter", xs)
                _check_alike("scatter", y, xs)

        def call() -> None:
            for i, y in enumerate(outputs):
                result = _dense(y)
                every = torch.stack([_dense(x) for x in lists[i]]) if self._rank == opts.rootRank else result
                if y.is_cuda:
                    every = every if every is not result else result.new_empty((self._size, *result.shape))
                    self._of(y)._call(lib.weft_broadcast, every.data_ptr(), _bytes(every), _BYTE, opts.rootRank)
                    result = every[self._rank]
                else:
                    at, to = every.data_ptr(), result.data_ptr()
                    self.group._call(lib.weft_scatter, at, to, _bytes(result), _BYTE, opts.rootRank)
                self._back(result, y)

        return self._make(opts, outputs, call, [x for xs in lists for x in xs])

    def barrier(self, opts: Any = None, **_: Any) -> Work:
        if opts is not None and not opts.asyncOp and not self._lane.pending:
            return self._now(lib.weft_barrier)
        return self._make(opts, [], self.group.barrier)

    # ---- from one rank to another ------------------------------------------------------------------------------

    def _channel(self, source: int, destination: int, tag: int, tensors: List[Tensor]) -> Work:
        key = (source, destination, tag)
        if any(x.is_cuda for x in tensors):
            raise UnsupportedError("the backend weft sends and receives CPU tensors; collectives take CUDA tensors")
        if source == destination:
            raise ValueError(f"rank {source} cannot send to itself")
        with self._channels_lock:
            channel = self._channels.get(key)
            if channel is None:
                channel = self._channels[key] = _Channel(*key)

        def call() -> None:
            group = self._both_ends(channel, int(self._rank == destination))
            for x in tensors:
                dense = _dense(x)
                group._call(lib.weft_broadcast, dense.data_ptr(), _bytes(dense), _BYTE, 0)
                if self._rank == destination:
                    self._back(dense, x)

        return channel.lane.submit(tensors, self._timed(call))

    def _both_ends(self, channel: _Channel, end: int) -> Group:
        """The group of a channel, with the timeout of today."""
        if channel.group is None:
            # Both are there before they make it: a wait in the store can be ended, that of the library for a second member,
            # of a group that is not there yet, cannot.
            self._store.set(f"weft/{channel.name}/{end}", "here")
            wait_for(self._store, f"weft/{channel.name}/{1 - end}", self._still_waits)
            channel.group, channel.timeout = self._meet(channel.name, end, 2), self._timeout
        elif channel.timeout != self._timeout:
            channel.timeout = self._timeout
            channel.group.set_deadlines(self._timeout.total_seconds(), self._timeout.total_seconds())
        return channel.group

    def send(self, tensors: List[Tensor], dstRank: int, tag: int = 0) -> Work:
        work = self._channel(self._rank, dstRank, tag, list(tensors))
        if 0 <= tag < _TAGS:
            with self._mail_lock:
                self._sent[dstRank, tag] = count = self._sent.get((dstRank, tag), 0) + 1
                self._letters(dstRank)[self._rank * _TAGS + tag] = count
        return work

    def recv(self, tensors: List[Tensor], srcRank: int, tag: int = 0) -> Work:
        with self._mail_lock:
            self._received[srcRank, tag] = self._received.get((srcRank, tag), 0) + 1
        work = self._channel(srcRank, self._rank, tag, list(tensors))
        work._source = srcRank
        return work

    def recv_anysource(self, tensors: List[Tensor], tag: int = 0) -> Work:
        if not 0 <= tag < _TAGS:
            raise UnsupportedError(f"the backend weft receives from any rank with tags below {_TAGS}, not {tag}")

        work = Work(tensors, done=False)

        def call() -> None:
            source = self._sender(tag)
            self._channel(source, self._rank, tag, list(tensors)).wait()
            work._source = source

        return self._any.submit(tensors, self._timed(call), work)

    def _letters(self, rank: int) -> Any:
        """A rank's counts of what was sent to it, by sender and tag: each written by its sender alone, a word at a time."""
        return (C.c_int64 * (self._size * _TAGS)).from_address(self._mail.peer(rank).pointer)

    def _sender(self, tag: int) -> int:
        """Waits for a rank that has sent what nobody has taken, and takes it."""
        letters, began = self._letters(self._rank), time.monotonic()
        while True:
            with self._mail_lock:
                for source in range(self._size):
                    taken = self._received.get((source, tag), 0)
                    if letters[source * _TAGS + tag] > taken:
                        self._received[source, tag] = taken + 1
                        return source
            if self._closed:
                raise AbortedError("the process group was left")
            self._still_waits(time.monotonic() - began)
            time.sleep(50e-6)

    # What torch calls them from 2.15 on.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def __repr__(self) -> str:
        return f"<ProcessGroupWeft '{self._name}', rank {self._rank} of {self._size}>"


def _create(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> ProcessGroupWeft:
    return ProcessGroupWeft(store, rank, size, timeout)


if "weft" not in dist.Backend.backend_list:
    dist.Backend.register_backend("weft", _create, devices=["cpu", "cuda"])

__all__ = ["ProcessGroupWeft", "Work", "Error"]
