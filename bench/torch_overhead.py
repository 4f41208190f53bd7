"""What an operator of torch costs over the library's call, one rank, one thread: microseconds.

    PYTHONPATH=python taskset -c 1 python3 bench/torch_overhead.py

Each row: the call by ctypes with everything made beforehand, then what the function (weft.torch.ops) and the operator
(torch.ops.weft) take more, the tensor they return included. Nine rounds of 3000 calls, the least.
"""

from __future__ import annotations

import time
from typing import Any, Callable

import torch

import weft
import weft.torch
from weft._library import lib
from weft.torch import _forms, ops


def least(call: Callable[[], Any], calls: int = 3000) -> float:
    """Microseconds of a call."""
    rounds = []
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter() - began) / calls * 1e6)
    return min(rounds[1:])


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    group = weft.init()
    name, handle = weft.torch.name_of(group), group.handle
    a, b, x = torch.randn(1, 16), torch.randn(16, 16), torch.randn(16)
    out, torch_ops = torch.empty(1, 16), torch.ops.weft
    print(f"{'':12} {'ctypes':>7} {'function':>9} {'operator':>9}")
    for op in ("gemm_ar", "gemm"):
        form = _forms._Form(op, a, b, None, -1, group if op == "gemm_ar" else None)
        operands, pointer = form.operands()
        operands.a, operands.b, operands.d = a.data_ptr(), b.data_ptr(), out.data_ptr()
        given = (handle, form.pointer, pointer) if op == "gemm_ar" else (pointer,)
        rest = (name,) if op == "gemm_ar" else ()
        call, function, operator = form.function, getattr(ops, op), getattr(torch_ops, op)
        bare = least(lambda: call(*given))
        more = least(lambda: function(a, b, None, *rest)) - bare, least(lambda: operator(a, b, None, *rest)) - bare
        print(f"{op:12} {bare:7.1f} {more[0]:+9.1f} {more[1]:+9.1f}")
    at = x.data_ptr()
    bare = least(lambda: lib.weft_all_reduce(handle, at, at, 16, 0, 0))
    more = least(lambda: ops.all_reduce(x, "sum", name)) - bare, least(lambda: torch_ops.all_reduce(x, "sum", name)) - bare
    print(f"{'all_reduce':12} {bare:7.1f} {more[0]:+9.1f} {more[1]:+9.1f}")
    print(f"{'all_reduce_':12} {bare:7.1f} {'':9} {least(lambda: torch_ops.all_reduce_(x, 'sum', name)) - bare:+9.1f}")
    print(f"{'add_':12} {'':7} {'':9} {least(lambda: x.add_(1)):+9.1f}   (torch's own, for comparison)")


if __name__ == "__main__":
    main()
