"""Groups of ranks: how they meet, and the collectives among them.

A handle of the library is used by one thread at a time, so every call takes the group's lock. The garbage collector runs in any
thread and in any order: what it finds is left to the group's next call, or to its end, to be given back.
"""

from __future__ import annotations

import ctypes as C
import gc
import itertools
import os
import sys
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from . import _arrays, _interrupt, products
from ._library import check, constants, error_of, lib, quick, structs
from .errors import ArgumentError, Error, StateError, TimeoutError

REDUCTIONS: Dict[str, int] = {
    name: constants[c]
    for name, c in (
        ("sum", "WEFT_SUM"),
        ("min", "WEFT_MIN"),
        ("max", "WEFT_MAX"),
        ("product", "WEFT_PRODUCT"),
        ("average", "WEFT_AVERAGE"),
    )
    if c in constants
}


def reduction_of(name: str) -> int:
    """The library's code of a reduction."""
    try:
        return REDUCTIONS[name]
    except KeyError:
        raise ArgumentError(f"there is no reduction '{name}'; there are {', '.join(REDUCTIONS)}") from None


class _Handle:
    """A rank's handle of a group, and what of the library is to be given back before it."""

    def __init__(self, value: int, free: Callable[[int], Any]) -> None:
        self.value = value
        self.argument = C.c_void_p(value)  # as calls take it, made once
        self.free = free
        self.pid = os.getpid()
        self.made: Dict[int, Callable[[int], Any]] = {}  # plans, layers, memory: how each is given back
        self.trash: Deque[int] = deque()  # those that the garbage collector has found

    def drain(self) -> None:
        while self.trash:
            self.give_back(self.trash.popleft())

    def give_back(self, value: int) -> None:
        free = self.made.pop(value, None)
        if free is not None and self.value:
            free(value)

    def end(self) -> None:
        """Leaves the group. The child of a fork owns nothing of it."""
        if self.value and self.pid == os.getpid():
            for value in list(self.made):
                self.give_back(value)
            value, self.value = self.value, 0
            self.free(value)


def _dropped(handle: _Handle, lock: Any) -> None:
    """The end of a group that nobody has any more, or of the program. A thread that is in a call then has the group, and the
    program's end is its end: nothing may be taken from under it."""
    if lock.acquire(blocking=False):
        try:
            handle.end()
        finally:
            lock.release()


class Group:
    """One rank's handle of a group of ranks. Made by :func:`weft.init`, :func:`weft.threads` or :meth:`split`.

    Methods marked *collective* are called by every rank, in the same order.
    """

    def __init__(self, handle: int, free: Callable[[int], Any]) -> None:
        self._native: _Handle = _Handle(handle, free)
        self._lock = threading.RLock()
        self.rank: int = lib.weft_rank(handle)
        self.size: int = lib.weft_size(handle)
        self.on_gpu = False
        self._lane: Any = None  # a thread that makes calls in this group; those of others wait for what it was given before
        self._finalizer = weakref.finalize(self, _dropped, self._native, self._lock)
        _interrupt.install()

    # ---- calls -----------------------------------------------------------------------------------------

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        """A call into the library with this rank's handle first. Ctrl-C ends it (:mod:`weft._interrupt`)."""
        self._call_on(function, self._native.argument, *arguments)

    def _call_on(self, function: Callable[..., int], *arguments: Any) -> None:
        """A call on an object of the group (a plan, a layer), whose errors are the group's."""
        native, lane = self._native, self._lane
        if lane is not None and lane.pending:
            lane.settle()
        with self._lock:
            if native.trash:
                native.drain()
            if not native.value:
                raise StateError("the group is closed")
            status = function(*arguments)
            if status:
                raise error_of(status, native.value)

    def _follow(self, *arrays: Any, ordered: bool = True) -> None:
        """Before a call that takes arrays. On GPUs torch's current stream has passed what it has, for which the group's own stream
        does not wait; or the call goes there, where those of torch's operators in this group went (not a plan's: ``ordered``)."""
        if not self.on_gpu:
            _arrays.check_on_cpu(*arrays)
            return
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        here = next((x for x in arrays if isinstance(x, torch.Tensor) and x.is_cuda), None)
        if ordered and here is not None and "_torch_state" in self.__dict__:
            from .torch._cuda import ready

            ready(self, here)
        else:
            torch.cuda.current_stream(here.device if here is not None else None).synchronize()

    @property
    def handle(self) -> int:
        """The address of the library's ``weft_group``."""
        if not self._native.value:
            raise StateError("the group is closed")
        return self._native.value

    @property
    def error(self) -> str:
        """The sentence of the last error of this rank."""
        return lib.weft_error(self.handle).decode(errors="replace")

    def close(self) -> None:
        """Leaves the group, with whatever this rank still has in it: arrays and torch tensors made of its symmetric memory
        may not be used after. Waits for nobody."""
        with self._lock:
            self._finalizer()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __deepcopy__(self, memo: Any) -> "Group":
        """Itself: copies of what uses it, such as layers, are of the same ranks."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "a weft.Group, which layers and symmetric memory hold, is this process's and cannot be pickled; of a layer save its "
            "state_dict(), and load that into one made of the group there"
        )

    def __repr__(self) -> str:
        return f"<weft.Group rank {self.rank} of {self.size}{'' if self._native.value else ', closed'}>"

    # ---- making groups ---------------------------------------------------------------------------------

    def split(self, colour: int, key: int = 0) -> Optional["Group"]:
        """Collective: ranks with the same colour become a group. A negative colour joins none and gets None."""
        out = C.c_void_p()
        self._call(lib.weft_group_split, colour, key, C.byref(out))
        return Group(out.value, lib.weft_group_free) if out.value else None

    def set_deadlines(self, enter_seconds: float, progress_seconds: float) -> None:
        """How long to wait for a peer to enter a call, and for progress once all have entered."""
        self._call(lib.weft_set_deadlines, enter_seconds, progress_seconds)

    def use_gpu(self, device: int = -1) -> None:
        """Collective, once: the group's ranks work on NVIDIA GPUs from here on (``weft_group_use_gpu``)."""
        self._call(lib.weft_group_use_gpu, device)
        self.on_gpu = True

    def abort(self, why: Optional[str] = None) -> None:
        """From any thread: every wait of every rank ends with :class:`weft.errors.AbortedError`, and the group with it."""
        handle = self._native.value
        if handle:
            check(lib.weft_group_abort(handle, why.encode() if why else None), handle)

    def check_peer(self, rank: int = -1) -> None:
        """For waits outside the library: raises :class:`weft.errors.PeerDiedError` when a rank has died or left; with -1, when any
        has died or all others have left. It waits for no call that another thread was given: that may wait for the same rank."""
        with self._lock:
            handle = self.handle
            check(lib.weft_group_check_peer(handle, rank), handle)

    def wait(self) -> None:
        """On GPUs: returns when the stream of this rank's calls has passed them all; raises what went wrong there."""
        self._call(lib.weft_group_wait)

    def barrier(self) -> None:
        """Collective: returns when every rank has called it."""
        self._call(lib.weft_barrier)

    # ---- what is made in a group ------------------------------------------------------------------------

    def _keep(self, owner: Any, value: int, free: Callable[[int], Any]) -> "weakref.finalize[Any, Any]":
        """Gives ``value`` back when ``owner`` is gone, in the group's next call or at its end."""
        native = self._native
        native.made[value] = free
        finalizer = weakref.finalize(owner, native.trash.append, value)
        finalizer.atexit = False
        return finalizer

    def _give_back(self, finalizer: Any, value: int) -> None:
        """Now instead."""
        if finalizer.detach():
            with self._lock:
                self._native.give_back(value)

    def _alloc(self, size: int) -> int:
        """Collective: symmetric memory. Where it is exhausted, what is garbage on some rank may be what is missing."""
        out = C.c_void_p()
        size = min(size, (1 << 64) - 1)  # more would be its remainder there
        try:
            self._call(lib.weft_alloc, size, 0, C.byref(out))
        except MemoryError:
            gc.collect()
            self.barrier()
            self._call(lib.weft_alloc, size, 0, C.byref(out))
        return out.value or 0

    # ---- products --------------------------------------------------------------------------------------

    def ag_gemm(self, a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        """Collective: gathers A's rows while multiplying: D = A B, this rank's columns of it.

        Rank r holds a row part of A and a column part of B. With ``layout="gather_b"`` it is B that is gathered,
        and the rank's rows of D that it gets. ``gather_a_k`` and ``gather_b_k`` gather k instead, for gradients of
        weights: A's columns (B and D by columns), or B's rows (A and D by rows). Options of all four products:

        - ``m``, ``n``, ``k``: global extents; one that is spread over ranks is only needed when parts differ;
        - ``bias``, ``act`` ("relu", "gelu", "silu"), ``alpha``, ``beta``, ``c``: the epilogue, distributed like D;
          in ag_gemm and gemm_as also "silu_gated" and so on, with a b of :func:`weft.gate_up`;
        - ``row_scale``, ``col_scale``: float32 factors of the rows and columns of D here; of fp8 also ``a_scale`` and ``b_scale``
          of blocks: 128 of k in a row of A, 128 of k and 128 columns of B, of what this rank multiplies; ``fp8_fast`` as in weft.h;
        - ``granule_m``, ``granule_n``, ``granule_k``: parts are multiples of these (:func:`weft.part`), so that heads stay whole;
        - ``schedule`` (a name in ``weft.SCHEDULES``), ``layout``, ``workers``, ``out_dtype``.

        ``b`` may be a :class:`weft.Packed`; ``out`` is allocated when it is not given.
        """
        return products.product("ag_gemm", self, a, b, out, **options)

    def gemm_rs(self, a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        """Collective: A's columns times B's rows, summed over ranks; this rank keeps its rows of D.

        With ``layout="scatter_cols"`` its columns. Options as in :meth:`ag_gemm`.
        """
        return products.product("gemm_rs", self, a, b, out, **options)

    def gemm_ar(self, a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        """Collective: A's columns times B's rows, summed over ranks; every rank gets all of D.

        Options as in :meth:`ag_gemm`.
        """
        return products.product("gemm_ar", self, a, b, out, **options)

    def gemm_as(self, a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        """Collective: all of A times this rank's columns of B; every rank gets all of D.

        Options as in :meth:`ag_gemm`.
        """
        return products.product("gemm_as", self, a, b, out, **options)

    # ---- collectives -----------------------------------------------------------------------------------

    def all_reduce(self, send: Any, recv: Any = None, op: str = "sum") -> Any:
        """Collective: the sum (``op``: ``min``, ``max``, ``product``, ``average``) over ranks, in place unless ``recv`` is given."""
        recv = send if recv is None else recv
        a, b = _pair(send, recv, 1, 1)
        self._follow(send, recv)
        self._call(quick.weft_all_reduce, a.pointer, b.pointer, a.elements, a.dtype.code, reduction_of(op))
        return recv

    def all_gather(self, send: Any, recv: Any = None) -> Any:
        """Collective: every rank's ``send``, one after another in rank order, on every rank."""
        if recv is None:
            view = _arrays.view_of(send)
            shape = (self.size * view.shape[0], *view.shape[1:]) if view.shape else (self.size,)
            recv = _arrays.new_like(send, shape, view.dtype)
        a, b = _pair(send, recv, self.size, 1)
        self._follow(send, recv)
        self._call(quick.weft_all_gather, a.pointer, b.pointer, a.elements, a.dtype.code)
        return recv

    def reduce_scatter(self, send: Any, recv: Any = None, op: str = "sum") -> Any:
        """Collective: the sum over ranks; rank r keeps the r-th share of the first dimension."""
        recv = self._share(send) if recv is None else recv
        a, b = _pair(send, recv, 1, self.size)
        self._follow(send, recv)
        self._call(quick.weft_reduce_scatter, a.pointer, b.pointer, b.elements, a.dtype.code, reduction_of(op))
        return recv

    def all_to_all(self, send: Any, recv: Any = None) -> Any:
        """Collective: the r-th share of ``send`` goes to rank r; shares come in rank order."""
        recv = (
            _arrays.new_like(send, _arrays.view_of(send).shape, _arrays.view_of(send).dtype) if recv is None else recv
        )
        a, b = _pair(send, recv, 1, 1)
        if a.elements % self.size:
            raise ArgumentError(f"{a.elements} elements do not divide over {self.size} ranks")
        self._follow(send, recv)
        self._call(quick.weft_all_to_all, a.pointer, b.pointer, a.elements // self.size, a.dtype.code)
        return recv

    def broadcast(self, buffer: Any, root: int = 0) -> Any:
        """Collective: the root's buffer to every rank's."""
        view = _arrays.flat(buffer, "buffer", written=self.rank != root)
        self._follow(buffer)
        self._call(lib.weft_broadcast, view.pointer, view.elements, view.dtype.code, root)
        return buffer

    def _share(self, send: Any) -> Any:
        view = _arrays.view_of(send)
        if not view.shape or view.shape[0] % self.size:
            raise ArgumentError(f"the first dimension of {view.shape} does not divide over {self.size} ranks")
        return _arrays.new_like(send, (view.shape[0] // self.size, *view.shape[1:]), view.dtype)


_interrupt.calls.add(Group._call_on.__code__)


def _pair(send: Any, recv: Any, more: int, less: int) -> Any:
    """send and recv of a collective, recv with ``more / less`` times the elements."""
    a, b = _arrays.flat(send, "send"), _arrays.flat(recv, "recv", written=True)
    if a.dtype != b.dtype:
        raise ArgumentError(f"send is {a.dtype.name}, recv is {b.dtype.name}")
    if a.elements * more != b.elements * less:
        raise ArgumentError(
            f"recv has {b.elements} elements; with {a.elements} in send it needs {a.elements * more // less}"
        )
    return a, b


_world: Optional["weakref.ref[Group]"] = None


def init() -> Group:
    """The world: the group of all ranks that ``weft run``, torchrun, mpirun or srun started; else a group of one.

    Returns when every rank has come. A second call gives the same group while the first is alive.
    """
    global _world
    group = _world() if _world else None
    if group is None or not group._native.value or group._native.pid != os.getpid():
        out = C.c_void_p()
        check(lib.weft_init(C.byref(out)))
        group = Group(out.value or 0, lib.weft_finalize)
        _world = weakref.ref(group)
    return group


def new_id() -> bytes:
    """The id of a group that is to be made with :func:`create`: a secret of its members, for one group."""
    out = structs["weft_id"]()
    check(lib.weft_id_create(C.byref(out)))
    return bytes(out)


def create(identity: bytes, rank: int, size: int) -> Group:
    """A group without a launcher: one member makes an id, and each, and nobody else, calls this with it."""
    given, out = structs["weft_id"](), C.c_void_p()
    if len(identity) != C.sizeof(given):
        raise ArgumentError(f"an id has {C.sizeof(given)} bytes, not {len(identity)}")
    C.memmove(C.byref(given), identity, len(identity))
    check(lib.weft_group_create(C.byref(given), rank, size, C.byref(out)))
    return Group(out.value or 0, lib.weft_group_free)


_Allgather = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_size_t, C.c_void_p)


def _gathered(gather: Callable[[bytes], List[bytes]], rank: int, size: int) -> Group:
    """A group of those who can gather, on one machine or several: ``gather`` gives every rank's bytes, in rank order."""
    failed: List[BaseException] = []

    def call(_context: Any, mine: int, count: int, into: int) -> int:
        try:
            every = gather(C.string_at(mine, count))
            if [len(theirs) for theirs in every] != [count] * size:
                raise ArgumentError("the ranks have different versions of weft")
            C.memmove(into, b"".join(every), count * size)
            return 0
        except BaseException as error:  # the library's callers are to see it, not the library
            failed.append(error)
            return 1

    out, function = C.c_void_p(), _Allgather(call)
    status = lib.weft_group_create_from(C.cast(function, C.c_void_p), None, rank, size, C.byref(out))
    if failed:
        raise failed[0]
    check(status)
    return Group(out.value or 0, lib.weft_group_free)


def from_store(
    store: Any,
    rank: int,
    size: int,
    key: str = "weft",
    waits_for: Optional[Callable[[int], Callable[[float], None]]] = None,
) -> Group:
    """A group of those who give the same key in a store of ``torch.distributed``, on one machine or several; a key serves once.

    ``waits_for`` gives the ``still_waits`` of :func:`wait_for` for a rank.
    """
    rounds = itertools.count()

    def gather(mine: bytes) -> List[bytes]:
        this = f"{key}/{next(rounds)}"
        store.set(f"{this}/{rank}", mine.hex())
        try:
            for peer in range(size):
                wait_for(store, f"{this}/{peer}", None if waits_for is None else waits_for(peer))
        except (Error, KeyboardInterrupt):  # who comes later is not to wait in the library for one that has given up
            store.delete_key(f"{this}/{rank}")
            raise
        return [bytes.fromhex(store.get(f"{this}/{peer}").decode()) for peer in range(size)]

    return _gathered(gather, rank, size)


def wait_for(store: Any, key: str, still_waits: Optional[Callable[[float], None]] = None) -> None:
    """Until a store has a key. By asking again and again: one that waits in the store lets no other thread of the process
    reach it, which may have to set what a peer waits for before that peer sets this.

    ``still_waits`` is called between with the seconds that have passed, and raises when the wait is to end; without one the
    store's timeout ends it.
    """
    began, pause = time.monotonic(), 100e-6
    while not store.check([key]):
        waited = time.monotonic() - began
        if still_waits is not None:
            still_waits(waited)
        elif waited > store.timeout.total_seconds():
            raise TimeoutError(f"nobody set '{key}' in the store within {store.timeout.total_seconds():g} s: a rank has not come")
        time.sleep(pause)
        pause = min(2 * pause, 5e-3)


def from_mpi(communicator: Any) -> Group:
    """A group of the ranks of an mpi4py communicator, on one machine or several. Collective over it."""
    return _gathered(communicator.allgather, communicator.Get_rank(), communicator.Get_size())


def threads(size: int) -> List[Group]:
    """A group of ``size`` ranks that are threads of this process: element r is rank r's handle."""
    if size < 1:
        raise ArgumentError(f"a group of {size} ranks cannot be")
    handles = (C.c_void_p * size)()
    check(lib.weft_group_threads(size, handles))
    return [Group(handle or 0, lib.weft_group_free) for handle in handles]


def run_threads(size: int, body: Callable[..., Any], *arguments: Any) -> List[Any]:
    """Calls ``body(group, *arguments)`` in ``size`` threads, one rank each; their results in rank order.

    An exception of one rank is raised here when all have ended; those of the others come of it.
    """
    groups = threads(size)
    results: List[Any] = [None] * size
    errors: List[Optional[BaseException]] = [None] * size

    def rank(r: int) -> None:
        try:
            results[r] = body(groups[r], *arguments)
        except BaseException as error:
            errors[r] = error
        finally:
            if errors[r] is not None:
                groups[r].abort(f"rank {r} raised {type(errors[r]).__name__}")

    crew = [threading.Thread(target=rank, args=(r,)) for r in range(size)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    for group in groups:
        group.close()
    raised = [e for e in errors if e is not None]
    own = [e for e in raised if not isinstance(e, Error)]
    if raised:
        raise (own or raised)[0]
    return results


__all__ = ["Group", "create", "from_mpi", "from_store", "init", "new_id", "run_threads", "threads", "REDUCTIONS"]
