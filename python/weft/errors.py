"""What goes wrong, as exceptions: one class per status of the library, each with the library's own sentence."""

from __future__ import annotations

import builtins
from typing import Dict, Type


class Error(RuntimeError):
    """An error of weft. ``status`` is the library's code for it."""

    status = -1


class ArgumentError(Error, ValueError):
    """A value the call cannot take."""


class MismatchError(Error):
    """The ranks asked for different things."""


class OutOfMemoryError(Error, MemoryError):
    """Host, symmetric or device memory is exhausted."""


class TimeoutError(Error, builtins.TimeoutError):
    """A wait reached its deadline."""


class PeerDiedError(Error, ConnectionError):
    """A rank ended before its work did."""


class PeerError(Error):
    """Another rank failed or rejected its arguments."""


class LaunchError(Error):
    """Ranks were announced that could not be met."""


class SystemCallError(Error, OSError):
    """The operating system refused something."""


class UnsupportedError(Error, NotImplementedError):
    """This build or machine cannot do it."""


class StateError(Error):
    """Calls out of order."""


class AbortedError(Error):
    """The group was aborted."""


BY_STATUS: Dict[str, Type[Error]] = {
    "WEFT_ERR_ARGUMENT": ArgumentError,
    "WEFT_ERR_MISMATCH": MismatchError,
    "WEFT_ERR_MEMORY": OutOfMemoryError,
    "WEFT_ERR_TIMEOUT": TimeoutError,
    "WEFT_ERR_PEER_DIED": PeerDiedError,
    "WEFT_ERR_PEER": PeerError,
    "WEFT_ERR_LAUNCH": LaunchError,
    "WEFT_ERR_SYSTEM": SystemCallError,
    "WEFT_ERR_UNSUPPORTED": UnsupportedError,
    "WEFT_ERR_STATE": StateError,
    "WEFT_ERR_ABORTED": AbortedError,
}
