"""Groups of ranks: how they meet, and the collectives among them.

Two things the library leaves to its caller are done here. A handle is used by one thread at a time: every call
takes the group's lock. And symmetric memory is given back by all ranks together, which a garbage collector
cannot do: what it finds is only marked, and now and then (at the same call on every rank) the ranks agree on
what is dead everywhere and give it back.
"""

from __future__ import annotations

import ctypes as C
import os
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from . import _arrays, products
from ._library import check, constants, error_of, lib
from .errors import ArgumentError, Error, StateError

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
    """A rank's handle of a group, and everything of the library that must be given back before it."""

    def __init__(self, value: int, free: Callable[[int], Any], parent: Optional["_Handle"]) -> None:
        self.value = value
        self.free = free
        self.parent = parent
        self.pid = os.getpid()
        self.users = 1  # the Group, and the handles split from it
        self.plans: Dict[int, Callable[[int], Any]] = {}  # to be freed by this rank alone
        self.trash: Deque[Callable[[], None]] = deque()  # left by the garbage collector for the next call

    def drain(self) -> None:
        while self.trash:
            self.trash.popleft()()

    def destroy(self, plan: int) -> None:
        free = self.plans.pop(plan, None)
        if free is not None and self.value:
            free(plan)

    def leave(self) -> None:
        """One user fewer; the last one gives everything back. A fork of the process owns nothing."""
        self.users -= 1
        if self.users or not self.value or self.pid != os.getpid():
            return
        self.drain()
        for plan, free in list(self.plans.items()):
            free(plan)
        self.plans.clear()
        value, self.value = self.value, 0
        self.free(value)
        if self.parent is not None:
            self.parent.leave()


def _dropped(handle: _Handle) -> None:
    """A Group is gone. A sub-group is freed by whoever uses its parent, because they share what a rank keeps."""
    if handle.parent is not None and handle.parent.value and handle.parent.users > 1:
        handle.parent.trash.append(handle.leave)
    else:
        handle.leave()


class _Object:
    """Something that all ranks made together and can only give back together."""

    __slots__ = ("value", "bytes", "free", "dead")

    def __init__(self, value: int, size: int, free: Callable[[int], int]) -> None:
        self.value, self.bytes, self.free, self.dead = value, size, free, False


_SWEEP_COUNT = 32
_SWEEP_BYTES = 64 << 20


class Group:
    """One rank's handle of a group of ranks. Made by :func:`weft.init`, :func:`weft.threads` or :meth:`split`.

    Methods marked *collective* are called by every rank, in the same order.
    """

    def __init__(self, handle: int, free: Callable[[int], Any], parent: Optional["Group"] = None) -> None:
        self._native: _Handle = _Handle(handle, free, parent._native if parent else None)
        if parent:
            parent._native.users += 1
        self._lock = threading.RLock()
        self._objects: List[_Object] = []
        self._since_count = self._since_bytes = 0
        self.rank: int = lib.weft_rank(handle)
        self.size: int = lib.weft_size(handle)
        self.on_gpu = False
        self._finalizer = weakref.finalize(self, _dropped, self._native)

    # ---- calls -----------------------------------------------------------------------------------------

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        """A call into the library with this rank's handle first."""
        native = self._native
        with self._lock:
            if native.trash:
                native.drain()
            handle = native.value
            if not handle:
                raise StateError("the group is closed")
            status = function(handle, *arguments)
            if status:
                raise error_of(status, handle)

    def _call_on(self, function: Callable[..., int], *arguments: Any) -> None:
        """A call on an object of the group (a plan, a layer), whose errors are the group's."""
        self._call(lambda _, *rest: function(*rest), *arguments)

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
        """Leaves the group, with whatever this rank still has in it. Waits for nobody."""
        with self._lock:
            self._finalizer()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<weft.Group rank {self.rank} of {self.size}{'' if self._native.value else ', closed'}>"

    # ---- making groups ---------------------------------------------------------------------------------

    def split(self, colour: int, key: int = 0) -> Optional["Group"]:
        """Collective: ranks with the same colour become a group. A negative colour joins none and gets None."""
        out = C.c_void_p()
        self._call(lib.weft_group_split, colour, key, C.byref(out))
        return Group(out.value, lib.weft_group_free, self) if out.value else None

    def set_deadlines(self, enter_seconds: float, progress_seconds: float) -> None:
        """How long to wait for a peer to enter a call, and for progress once all have entered."""
        self._call(lib.weft_set_deadlines, enter_seconds, progress_seconds)

    def use_gpu(self, device: int = -1) -> None:
        """Collective, once: the group's ranks work on NVIDIA GPUs from here on (``weft_group_use_gpu``)."""
        self._call(lib.weft_group_use_gpu, device)
        self.on_gpu = True

    def barrier(self) -> None:
        """Collective: returns when every rank has called it."""
        self._call(lib.weft_barrier)

    # ---- what all ranks make and give back together -----------------------------------------------------

    def _keep(self, value: int, size: int, free: Callable[[int], int]) -> _Object:
        made = _Object(value, size, free)
        self._objects.append(made)
        self._since_count += 1
        self._since_bytes += size
        return made

    def _sweep(self, always: bool = False) -> None:
        """Collective, and decided alike by every rank: gives back what is dead on all of them."""
        live = self._objects
        enough = self._since_count >= max(_SWEEP_COUNT, len(live) // 2) or self._since_bytes >= _SWEEP_BYTES
        if not live or not (enough or always):
            return
        flags = (C.c_int32 * len(live))(*(o.dead for o in live))
        self._call(lib.weft_all_reduce, flags, flags, len(live), constants["WEFT_I32"], constants["WEFT_MIN"])
        self._objects = [o for o, dead in zip(live, flags) if not dead]
        self._since_count = self._since_bytes = 0
        for o, dead in zip(live, flags):
            if dead:
                self._call(lambda _, free=o.free, value=o.value: free(value))

    def _give_back(self, made: _Object) -> None:
        """Collective: gives one object back now."""
        if made in self._objects:
            self._objects.remove(made)
            made.dead = True
            self._call(lambda _: made.free(made.value))

    def _alloc(self, size: int) -> _Object:
        """Collective: symmetric memory, after giving back what is dead everywhere."""
        self._sweep()
        out = C.c_void_p()
        try:
            self._call(lib.weft_alloc, size, 0, C.byref(out))
        except MemoryError:
            import gc

            gc.collect()
            self._sweep(always=True)
            self._call(lib.weft_alloc, size, 0, C.byref(out))
        handle = self._native
        return self._keep(out.value or 0, size, lambda value: lib.weft_free(handle.value, value))

    # ---- products --------------------------------------------------------------------------------------

    def ag_gemm(self, a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        """Collective: gathers A's rows while multiplying: D = A B, this rank's columns of it.

        Rank r holds a row part of A and a column part of B. With ``layout="gather_b"`` it is B that is gathered,
        and the rank's rows of D that it gets. Options of all four products:

        - ``m``, ``n``, ``k``: global extents; one that is spread over ranks is only needed when parts differ;
        - ``bias``, ``act`` ("relu", "gelu", "silu"), ``alpha``, ``beta``, ``c``: the epilogue, distributed like D;
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
        """Collective: the sum (``min``, ``max``, ``product``) over ranks, in place unless ``recv`` is given."""
        recv = send if recv is None else recv
        a, b = _pair(send, recv, 1, 1)
        self._call(lib.weft_all_reduce, a.pointer, b.pointer, a.elements, a.dtype.code, reduction_of(op))
        return recv

    def all_gather(self, send: Any, recv: Any = None) -> Any:
        """Collective: every rank's ``send``, one after another in rank order, on every rank."""
        if recv is None:
            view = _arrays.view_of(send)
            shape = (self.size * view.shape[0], *view.shape[1:]) if view.shape else (self.size,)
            recv = _arrays.new_like(send, shape, view.dtype)
        a, b = _pair(send, recv, self.size, 1)
        self._call(lib.weft_all_gather, a.pointer, b.pointer, a.elements, a.dtype.code)
        return recv

    def reduce_scatter(self, send: Any, recv: Any = None, op: str = "sum") -> Any:
        """Collective: the sum over ranks; rank r keeps the r-th share of the first dimension."""
        recv = self._share(send) if recv is None else recv
        a, b = _pair(send, recv, 1, self.size)
        self._call(lib.weft_reduce_scatter, a.pointer, b.pointer, b.elements, a.dtype.code, reduction_of(op))
        return recv

    def all_to_all(self, send: Any, recv: Any = None) -> Any:
        """Collective: the r-th share of ``send`` goes to rank r; shares come in rank order."""
        recv = (
            _arrays.new_like(send, _arrays.view_of(send).shape, _arrays.view_of(send).dtype) if recv is None else recv
        )
        a, b = _pair(send, recv, 1, 1)
        if a.elements % self.size:
            raise ArgumentError(f"{a.elements} elements do not divide over {self.size} ranks")
        self._call(lib.weft_all_to_all, a.pointer, b.pointer, a.elements // self.size, a.dtype.code)
        return recv

    def broadcast(self, buffer: Any, root: int = 0) -> Any:
        """Collective: the root's buffer to every rank's."""
        view = _arrays.flat(buffer, "buffer")
        self._call(lib.weft_broadcast, view.pointer, view.elements, view.dtype.code, root)
        return buffer

    def _share(self, send: Any) -> Any:
        view = _arrays.view_of(send)
        if not view.shape or view.shape[0] % self.size:
            raise ArgumentError(f"the first dimension of {view.shape} does not divide over {self.size} ranks")
        return _arrays.new_like(send, (view.shape[0] // self.size, *view.shape[1:]), view.dtype)


def _pair(send: Any, recv: Any, more: int, less: int) -> Any:
    """send and recv of a collective, recv with ``more / less`` times the elements."""
    a, b = _arrays.flat(send, "send"), _arrays.flat(recv, "recv")
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
                groups[r].close()

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


__all__ = ["Group", "init", "threads", "run_threads", "REDUCTIONS"]
