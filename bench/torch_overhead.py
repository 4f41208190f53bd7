"""What an operator of torch costs over the library's call, one rank, one thread: microseconds.

    PYTHONPATH=python taskset -c 1 python3 bench/torch_overhead.py

Each row: the call by ctypes with everything made beforehand, then what the operator (torch.ops.weft.OP, and OP.default, which
compiled graphs call) takes more, the tensor it returns included. Nine rounds of 3000 calls, the least.
"""

from __future__ import annotations

import ctypes as C
import time
from typing import Any, Callable, List, Tuple

import torch

import weft
import weft.torch
from weft._library import lib


def least(call: Callable[[], Any], calls: int = 3000) -> float:
    """Microseconds of a call."""
    rounds = []
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter() - began) / calls * 1e6)
    return min(rounds[1:])


def product(op: str, group: weft.Group, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Callable[[], Any]:
    """The library's call of a product."""
    kernel = weft.torch.ops._KERNELS[op]
    alone = op in ("gemm", "gemm_columns")
    form = kernel.form(kernel.op, a, b, None, -1, None if alone else group)
    operands, pointer = form.operands()
    operands.a, operands.b, operands.d = a.data_ptr(), b.data_ptr(), out.data_ptr()
    function, given = form.function, (pointer,) if alone else (group.handle, form.pointer, pointer)

    def call(keep: Any = (form, operands)) -> Any:
        return function(*given)

    return call


def experts(group: weft.Group) -> Tuple[Callable[[], Any], Tuple[Any, ...], Any]:
    """The library's call of a round of experts, and what the operator takes."""
    moe = weft.MoE(group, 2, 1, 16, 4, "float32")
    ffn = weft.FeedForward(moe, *([torch.randn(16, 16) for _ in range(2)] for _ in range(3)))
    x, expert, weight = torch.randn(1, 16), torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1)
    given, _ = moe._input(x, expert, weight)
    out, function = torch.empty(1, 16), lib.weft_moe_forward
    arguments = (moe._moe, 0, C.byref(given), C.byref(ffn._expert), out.data_ptr())
    inputs = (x, expert, weight, weft.torch.experts_name(ffn), weft.torch.layer_name(moe))
    return lambda: function(*arguments), inputs, (moe, ffn, given, out)


def round_trip(group: weft.Group) -> Tuple[float, float]:
    """A round in two operators, with rows gathered for experts between them: the library's three calls, and what is more."""
    moe = weft.MoE(group, 2, 1, 16, 4, "float32")
    x, expert, weight = torch.randn(1, 16), torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1)
    given, _ = moe._input(x, expert, weight)
    view, handle, layer = moe._dispatch(x, expert, weight, 0), moe._moe, weft.torch.layer_name(moe)
    rows, out = torch.empty(1, 16), torch.empty(1, 16)
    moe.combine(rows)
    given_at, view_at, at, to = C.byref(given), C.byref(view), rows.data_ptr(), out.data_ptr()

    def bare() -> None:
        lib.weft_moe_dispatch(handle, 0, given_at, view_at)
        lib.weft_moe_gather(handle, 0, None, at)
        lib.weft_moe_combine(handle, 0, at, None, to)

    def operators() -> None:
        rows, _, entry_weight, number = torch.ops.weft.moe_dispatch(x, expert, weight, None, layer)
        torch.ops.weft.moe_combine(rows, expert, weight, entry_weight, number, layer)

    least_bare = least(bare)
    return least_bare, least(operators) - least_bare


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    group = weft.init()
    name, handle = weft.torch.name_of(group), group.handle
    a, b, x = torch.randn(1, 16), torch.randn(16, 16), torch.randn(16)
    out = torch.empty(1, 16)
    at, to = x.data_ptr(), out.data_ptr()
    rows: List[Tuple[str, Callable[[], Any], Tuple[Any, ...]]] = []
    for op in ("ag_gemm", "gemm_rs", "gemm_ar", "gemm_as", "gemm_columns"):
        rows.append((op, product(op, group, a, b, out), (a, b, None, -1, name) if op == "ag_gemm" else (a, b, None, name)))
    rows.append(("gemm", product("gemm", group, a, b, out), (a, b, None)))
    rows += [
        ("all_reduce", lambda: lib.weft_all_reduce(handle, at, to, 16, 0, 0), (x, "sum", name)),
        ("all_reduce_", lambda: lib.weft_all_reduce(handle, at, at, 16, 0, 0), (x, "sum", name)),
        ("all_gather", lambda: lib.weft_all_gather(handle, at, to, 16, 0), (x, name)),
        ("reduce_scatter", lambda: lib.weft_reduce_scatter(handle, at, to, 16, 0, 0), (x, "sum", name)),
        ("all_to_all", lambda: lib.weft_all_to_all(handle, at, to, 16, 0), (x, name)),
        ("broadcast", lambda: lib.weft_broadcast(handle, at, 16, 0, 0), (x, 0, name)),
    ]
    call, inputs, keep = experts(group)
    rows.append(("moe_forward", call, inputs))
    print(f"{'':15} {'ctypes':>7} {'operator':>9} {'default':>9}")
    for op, call, inputs in rows:
        packet = getattr(torch.ops.weft, op)
        default = packet.default
        bare = least(call)
        more = least(lambda: packet(*inputs)) - bare, least(lambda: default(*inputs)) - bare
        print(f"{op:15} {bare:7.1f} {more[0]:+9.1f} {more[1]:+9.1f}")
    print("{:15} {:7.1f} {:+9.1f}   (two operators)".format("dispatch+combine", *round_trip(group)))
    print(f"{'add_':15} {'':7} {least(lambda: x.add_(1)):+9.1f}   (torch's own, for comparison)")
    del keep


if __name__ == "__main__":
    main()
