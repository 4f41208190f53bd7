"""Times torch's symmetric-memory all-reduce with several processes on one GPU, in CUDA graphs: the peer of
`weft bench all_reduce --backend cuda`. Run both under MPS, in turn.

usage: python3 bench/torch_symmetric.py RANKS [BYTES ...]      (bf16; one line a size: bytes, one_shot us, two_shot us)
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def replay_time(op, calls, rounds):
    """Median microseconds of a call: a graph of `calls` of them, from a barrier until all ranks are done."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            op()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            op()
    samples = []
    for _ in range(rounds):
        dist.barrier()
        begin = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        took = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        samples.append(float(took) / calls * 1e6)
    return statistics.median(samples)


def rank_main(rank, ranks, sizes):
    import torch.distributed._symmetric_memory as symm

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29531", RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    group = dist.group.WORLD.group_name
    symm.enable_symm_mem_for_group(group)
    for size in sizes:
        buffer = symm.empty(size // 2, dtype=torch.bfloat16, device="cuda")
        symm.rendezvous(buffer, group=group)
        buffer.fill_(0)
        calls = max(8, min(200, (64 << 20) // size))
        shots = [lambda: torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group),
                 lambda: torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group)]
        times = [replay_time(op, calls, 30) for op in shots]
        if rank == 0:
            print(f"{size:>10} {times[0]:>9.2f} {times[1]:>9.2f}", flush=True)
    dist.barrier()
    os._exit(0)  # what symmetric memory leaves in graphs does not come apart cleanly


if __name__ == "__main__":
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    count = int(sys.argv[1])
    asked = [int(x) for x in sys.argv[2:]] or [1 << i for i in range(10, 25, 2)]
    mp.spawn(rank_main, args=(count, asked), nprocs=count)
