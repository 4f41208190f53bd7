"""The four products beside torch's symmetric memory on the same matrices, several processes on one GPU.

    weft run -n 2 -- python3 bench/torch_products.py [--ours] [--fused | --unfused] [--staged] [M N K ...]

Under MPS; bf16; medians in us, in turn. N and K are over all ranks. ``mm`` is torch's product of a rank alone, all ranks at once. ``torch`` of ag_gemm and gemm_rs is its fused operator; of
gemm_ar ``mm`` and the better of its one_shot and two_shot; of gemm_as ``mm`` and the better of its own gather (which leaves the columns of
the ranks below one another) and copies of the peers' columns. ``weft`` is a plan on operands in symmetric memory, ``apart`` the same plan on
ordinary tensors, ``whole`` the first with copies around it of what peers touch, ``operator`` is ``torch.ops.weft`` on ordinary tensors,
whose sums travel in float32. ``beyond`` is what weft takes beyond ``mm`` over what torch takes beyond it. With --ours torch's side is left out; with --fused plans have the
schedules that ranks with a GPU each take, with --unfused that one; with --staged they stage in chunks where they can, whether that pays
or not.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, Callable, Dict, List, Set, Tuple

from torch_modules import in_turn, recorded

import torch
import torch.distributed as dist

import weft
import weft.torch

CALLS = 10
FUSED = {
    "ag_gemm": "allgather_rotating_a",
    "gemm_rs": "reducescatter_tiling_a",
    "gemm_ar": "two_shot",
    "gemm_as": "all_scatter",
}


def ready(call: Callable[[], Any], captured: bool = True) -> Tuple[Callable[[], Any], str]:
    """Ten calls as one: a graph, or one by one (marked e) where torch cannot capture them."""
    if captured:
        return recorded(call, CALLS).replay, ""

    def eager() -> None:
        for _ in range(CALLS):
            call()

    eager()
    return eager, "e"


def peers_of(mine: Any, b: Any, out: Any, world: str) -> Callable[[], Any]:
    """torch's product into symmetric memory, and copies of the columns of all ranks."""
    import torch.distributed._symmetric_memory as symmetric

    part = symmetric.empty((mine.shape[0], b.shape[1]), dtype=mine.dtype, device="cuda")
    handle = symmetric.rendezvous(part, group=world)
    width = b.shape[1]

    def call() -> None:
        torch.mm(mine, b, out=part)
        handle.barrier(channel=0)
        for rank in range(handle.world_size):
            out[:, rank * width : (rank + 1) * width].copy_(handle.get_buffer(rank, part.shape, part.dtype))
        handle.barrier(channel=1)

    return call


def row(group: Any, world: str, op: str, m: int, n: int, k: int, flags: Set[str]) -> None:
    """One operation of one shape."""
    import torch.distributed._symmetric_memory as symmetric

    size, bf16 = group.size, torch.bfloat16
    gathers, cut_k = op == "ag_gemm", op in ("gemm_rs", "gemm_ar")
    shapes = {
        "a": (m // size if gathers else m, k // size if cut_k else k),
        "b": (k // size if cut_k else k, n if cut_k else n // size),
        "d": (m // size if op == "gemm_rs" else m, n // size if gathers else n),
    }
    memory = {name: weft.empty(shape, "bfloat16", group) for name, shape in shapes.items()}
    a, b, d = (memory[name].torch() for name in "abd")
    a.normal_()
    b.normal_()
    mine, weight, result = a.clone(), b.clone(), torch.empty_like(d)
    whole = torch.randn(m, shapes["a"][1], device="cuda").to(bf16)  # what a rank's product reads when all is there
    schedule = FUSED[op] if "--fused" in flags else "unfused" if "--unfused" in flags else "auto"
    plan = weft.Plan(
        group,
        op,
        m=m,
        n=n,
        k=k,
        dtype="bfloat16",
        d_dtype="bfloat16",
        wire_dtype="bfloat16",
        schedule=schedule,
        staged=int("--staged" in flags),
    )
    ops, theirs, name = torch.ops.weft, torch.ops.symm_mem, weft.torch.name_of(group)
    candidates: List[Callable[[], Any]] = []
    if op == "ag_gemm":
        operator = lambda: ops.ag_gemm(mine, weight, None, m, name)  # noqa: E731
        candidates.append(lambda: theirs.fused_all_gather_matmul(mine, [weight], 0, world))
    elif op == "gemm_rs":
        operator = lambda: ops.gemm_rs(mine, weight, None, name)  # noqa: E731
        candidates.append(lambda: theirs.fused_matmul_reduce_scatter(mine, weight, "sum", 0, world))
    elif op == "gemm_ar":
        operator = lambda: ops.gemm_ar(mine, weight, None, name)  # noqa: E731
        sums = symmetric.empty((m, n), dtype=bf16, device="cuda")
        symmetric.rendezvous(sums, group=world)
        candidates.append(lambda: (torch.mm(mine, weight, out=sums), theirs.one_shot_all_reduce(sums, "sum", world)))
        candidates.append(lambda: (torch.mm(mine, weight, out=sums), theirs.two_shot_all_reduce_(sums, "sum", world)))
    else:
        operator = lambda: ops.gemm_as(mine, weight, None, name)  # noqa: E731
        out = torch.empty(m, n, device="cuda", dtype=bf16)
        candidates.append(lambda: theirs._low_contention_all_gather(torch.mm(mine, weight), world))
        candidates.append(peers_of(mine, weight, out, world))

    def run(a: Any, b: Any, d: Any) -> None:
        plan.run(a, b, d, stream=torch.cuda.current_stream().cuda_stream)

    def copied() -> None:
        if gathers:
            a.copy_(mine)
        run(a, weight, result if gathers or op == "gemm_rs" else d)
        if op in ("gemm_ar", "gemm_as"):
            result.copy_(d)

    def apart() -> None:
        run(mine, weight, result)

    run(a, b, d)
    apart()
    group.wait()
    assert torch.equal(d, result), f"{op} of {m} x {n} x {k} differs on other memory"
    made = [ready(call) for call in (lambda: torch.mm(whole, weight), lambda: run(a, b, d), apart, copied, operator)]
    if "--ours" in flags:
        candidates.clear()
    own_streams = candidates[: op != "gemm_ar"]  # torch's fused operators and its gather, which no graph takes
    made += [ready(call, call not in own_streams) for call in candidates]
    times = in_turn([call for call, _ in made], CALLS)
    group.wait()
    mm, on_symmetric, on_others, on_copies, by_operator = times[:5]
    text = f"{op:8} {m:5} {n:5} {k:5} {size} ranks: mm {mm:7.1f} weft {on_symmetric:7.1f} apart {on_others:7.1f} "
    text += f"whole {on_copies:7.1f} operator {by_operator:7.1f} "
    if candidates:
        torchs, how = min(zip(times[5:], (mark for _, mark in made[5:])))
        beyond = (on_symmetric - mm) / max(torchs - mm, 1e-9)
        text += f"torch {torchs:7.1f}{how or ' '} torch / weft {torchs / on_symmetric:5.2f} "
        text += f"/ operator {torchs / by_operator:5.2f} beyond {beyond:5.2f} "
    if group.rank == 0:
        print(text + str(plan.problem["schedule"]), flush=True)
    dist.barrier()


def main() -> None:
    """Runs on every rank."""
    import torch.distributed._symmetric_memory as symmetric

    flags = {x for x in sys.argv[1:] if x.startswith("--")}
    given = [int(x) for x in sys.argv[1:] if x not in flags] or [4096, 4096, 4096, 64, 8192, 8192, 512, 8192, 8192]
    torch.cuda.set_device(0)
    group = weft.init()
    group.use_gpu(0)
    settings: Dict[str, str] = {"MASTER_ADDR": "127.0.0.1", "RANK": str(group.rank), "WORLD_SIZE": str(group.size)}
    os.environ.setdefault("MASTER_PORT", "29542")
    os.environ.update(settings)
    dist.init_process_group("gloo")
    world = dist.group.WORLD.group_name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # needed up to torch 2.10
        symmetric.enable_symm_mem_for_group(world)
    with torch.no_grad():
        for i in range(0, len(given), 3):
            for op in ("ag_gemm", "gemm_rs", "gemm_ar", "gemm_as"):
                row(group, world, op, *given[i : i + 3], flags)
    os._exit(0)  # what symmetric memory leaves does not come apart cleanly


if __name__ == "__main__":
    main()
