"""weft: tensor-parallel matrix products, collectives and mixture of experts, with the communication woven into the compute.

    import weft

    group = weft.init()                              # ranks of weft run, torchrun, mpirun or srun; else one
    x = weft.empty((1024, 512), "bfloat16", group)   # symmetric memory: x.torch(), x.numpy(), x.peer(rank)
    y = group.ag_gemm(x.torch(), w)                  # gathers x's rows while multiplying
    group.all_reduce(y)

Everything takes numpy arrays, torch tensors and ``weft.Tensor``. Errors are exceptions with the library's sentence
(:mod:`weft.errors`). ``weft.torch`` has the operators, modules and the ``torch.distributed`` backend.
"""

from . import errors
from ._library import version as _version
from .dtypes import DType
from .errors import Error
from .group import REDUCTIONS, Group, create, from_mpi, from_store, init, new_id, run_threads, threads
from .moe import FeedForward, MoE, Received
from .products import ACTIVATIONS, LAYOUTS, SCHEDULES, Packed, Plan, gate_up, gemm, part
from .tensor import SignalPad, Tensor, empty, signal_pad

__version__: str = _version()

__all__ = [
    "ACTIVATIONS",
    "DType",
    "Error",
    "FeedForward",
    "Group",
    "LAYOUTS",
    "MoE",
    "Packed",
    "Plan",
    "REDUCTIONS",
    "Received",
    "SCHEDULES",
    "SignalPad",
    "Tensor",
    "create",
    "empty",
    "errors",
    "from_mpi",
    "from_store",
    "gate_up",
    "gemm",
    "init",
    "new_id",
    "part",
    "run_threads",
    "signal_pad",
    "threads",
]
