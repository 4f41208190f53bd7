"""A tensor-parallel layer in a dozen lines; `torchrun --nproc-per-node 2 examples/python/quickstart.py`, or any launcher."""

import torch

import weft
import weft.torch

group = weft.init()  # the ranks of torchrun, weft run, mpirun or srun; else one
mlp = weft.torch.SwiGLU(256, 512, group)  # the feed-forward layer of Llama; loads ordinary weights
x = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
y = mlp(x)  # all-reduced while multiplying, the same on every rank
y.sum().backward()  # and the gradients of one process

a = weft.empty((4, 256), "float32", group)  # symmetric memory: on every rank, and within reach of its peers
a.torch().fill_(group.rank)
group.barrier()
assert float(a.peer(group.size - 1).torch()[0, 0]) == group.size - 1
group.all_reduce(a)
assert float(a.torch()[0, 0]) == group.size * (group.size - 1) / 2
