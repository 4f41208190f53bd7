"""What a rank has of a tensor."""

import torch

import weft


def cut(x: torch.Tensor, dim: int, group: weft.Group) -> torch.Tensor:
    begin, count = weft.part(x.shape[dim], group.size, group.rank)
    return x.narrow(dim, begin, count).clone()
