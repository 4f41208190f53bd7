"""Ctrl-C ends a wait in the library.

ctypes holds a signal back until the call it came in returns, and a call that waits for a peer may not return for long. So a
thread is told of signals at once (``signal.set_wakeup_fd``); if Ctrl-C finds the main thread in a call that does not end by
itself within a moment, it aborts that call's group. The call returns, and Python raises KeyboardInterrupt.

Which call that is, the main thread's frame says: a call pays nothing for being watched.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from typing import Any, Set

GRACE_SECONDS = 0.05  # for a call that is about to return: its group stays usable

main: int = threading.main_thread().ident or 0
calls: Set[Any] = set()
"""The code of functions that call the library and have the group in ``self``."""

_installed = False
_ours = _before = -1
_sockets: Any = None


def install() -> None:
    """Starts watching, once; only the main thread may."""
    global _installed, _ours, _before, _sockets
    if _installed or threading.get_ident() != main:
        return
    reader, writer = _sockets = socket.socketpair()
    writer.setblocking(False)
    _ours = writer.fileno()
    _before = signal.set_wakeup_fd(_ours, warn_on_full_buffer=False)
    _installed = True
    threading.Thread(target=_watch, args=(reader, _before), name="weft signals", daemon=True).start()


def _watch(reader: socket.socket, before: int) -> None:
    while True:
        numbers = reader.recv(64)
        if not numbers:
            return
        if before >= 0:
            try:
                os.write(before, numbers)  # whoever listened before us
            except OSError:
                pass
        call = _call()
        if signal.SIGINT in numbers and call is not None and callable(signal.getsignal(signal.SIGINT)):
            time.sleep(GRACE_SECONDS)
            if _call() is call:
                call.f_locals["self"].abort("interrupted")
        call = None


def _call() -> Any:
    """The frame of the call that the main thread is in, or just above; None if there is none."""
    frame = sys._current_frames().get(main)
    if frame is not None and frame.f_code not in calls:
        frame = frame.f_back
    return frame if frame is not None and frame.f_code in calls else None


def _forget() -> None:
    """In the child of a fork: it has no watcher, and what it writes would reach its parent's."""
    global _installed, main
    main = threading.get_ident()
    if _installed:
        _installed = False
        signal.set_wakeup_fd(_before)


os.register_at_fork(after_in_child=_forget)
