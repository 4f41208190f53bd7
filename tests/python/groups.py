"""Bodies of ranks within process groups of torch.distributed."""

import datetime
import os
from typing import Any, Callable

import torch
import torch.distributed as dist

import weft.torch  # noqa: F401  the backend


def inside(backend: str, body: Callable[..., Any], timeout: float = 60) -> Callable[..., Any]:
    """The body of a rank, within a process group."""

    def run(rank: int, *arguments: Any) -> Any:
        torch.set_num_threads(1)
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
        try:
            return body(rank, *arguments)
        finally:
            dist.destroy_process_group()

    return run


def beside_store(body: Callable[..., Any]) -> Callable[..., Any]:
    """The body of one of two ranks, with a store that outlives process groups: rank 0, who has it, ends last."""

    def run(rank: int, *arguments: Any) -> None:
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, rank == 0)
        body(rank, store, *arguments)
        store.set(f"done {rank}", "")
        if rank == 0:
            store.get("done 1")

    return run
